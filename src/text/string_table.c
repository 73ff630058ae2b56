/* text/string_table.c - open addressing with linear probing over (id, hash tag) pairs of 8 bytes. */
#include "text/string_table.h"
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "base/random.h"

static inline uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_bytes(uint64_t seed, const char *s, size_t n)
{
    uint64_t h = seed ^ (n * 0x9e3779b97f4a7c15u), word = 0;

    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&word, s, 8);
        h = fold(h ^ word, 0xd6e8feb86659fd93u);
    }
    word = 0;
    memcpy(&word, s, n);
    return fold(h ^ word, 0xa0761d6478bd642fu);
}

/* Slots for n strings at 5/8 load. 0: too many. */
static size_t slots_for(size_t n)
{
    size_t n_slots = 64;

    while (n_slots / 8 * 5 < n) {
        if (n_slots > SIZE_MAX / 4) return 0;
        n_slots *= 2;
    }
    return n_slots;
}

static rd_status slots_rebuild(struct string_table *t, size_t n_slots)
{
    struct string_slot *slots = n_slots ? mem_alloc(n_slots, sizeof(*slots)) : NULL;

    if (!slots) return RD_E_NOMEM;
    memset(slots, 0xff, n_slots * sizeof(*slots));
    for (size_t i = 0; i < t->n_slots; i++) {
        size_t n, at;
        const char *s;
        uint64_t h;

        if (t->slots[i].id == STRING_NONE) continue;
        s = string_table_at(t, t->slots[i].id, &n);
        h = hash_bytes(t->seed, s, n);
        for (at = h & (n_slots - 1); slots[at].id != STRING_NONE;) at = (at + 1) & (n_slots - 1);
        slots[at] = t->slots[i];
    }
    mem_free(t->slots);
    t->slots = slots;
    t->n_slots = n_slots;
    return RD_OK;
}

rd_status string_table_init(struct string_table *t, size_t n, size_t n_bytes)
{
    memset(t, 0, sizeof(*t));
    random_os(&t->seed, sizeof(t->seed));
    if (!mem_grow((void **)&t->bytes, &t->bytes_cap, n_bytes + 1, 1) ||
        !mem_grow((void **)&t->ends, &t->ends_cap, n + 1, sizeof(*t->ends)) ||
        slots_rebuild(t, slots_for(n)) != RD_OK) {
        string_table_deinit(t);
        return RD_E_NOMEM;
    }
    return RD_OK;
}

void string_table_deinit(struct string_table *t)
{
    mem_free(t->bytes);
    mem_free(t->ends);
    mem_free(t->slots);
    memset(t, 0, sizeof(*t));
}

/* The slot of s, or the free one where it belongs. */
static size_t slot_of(const struct string_table *t, uint64_t h, const char *s, size_t n)
{
    size_t at = h & (t->n_slots - 1);
    uint32_t tag = (uint32_t)(h >> 32);

    for (; t->slots[at].id != STRING_NONE; at = (at + 1) & (t->n_slots - 1)) {
        size_t have_n;
        const char *have;

        if (t->slots[at].tag != tag) continue;
        have = string_table_at(t, t->slots[at].id, &have_n);
        if (have_n == n && memcmp(have, s, n) == 0) break;
    }
    return at;
}

rd_status string_table_add(struct string_table *t, const char *s, size_t n, uint32_t *id, bool *is_new)
{
    uint64_t h = hash_bytes(t->seed, s, n);
    size_t at = slot_of(t, h, s, n);

    if (is_new) *is_new = false;
    if (t->slots[at].id != STRING_NONE) {
        *id = t->slots[at].id;
        return RD_OK;
    }
    if (n > UINT32_MAX - t->n_bytes || t->n >= STRING_NONE - 1) return RD_E_LIMIT;
    if (t->n + 1 > t->n_slots / 8 * 5) {
        rd_status st = slots_rebuild(t, t->n_slots * 2);

        if (st != RD_OK) return st;
        at = slot_of(t, h, s, n);
    }
    if (!mem_grow((void **)&t->bytes, &t->bytes_cap, t->n_bytes + n + 1, 1) ||
        !mem_grow((void **)&t->ends, &t->ends_cap, t->n + 1, sizeof(*t->ends)))
        return RD_E_NOMEM;
    memcpy(t->bytes + t->n_bytes, s, n);
    t->n_bytes += n;
    t->slots[at].id = (uint32_t)t->n;
    t->slots[at].tag = (uint32_t)(h >> 32);
    *id = (uint32_t)t->n;
    t->ends[t->n++] = (uint32_t)t->n_bytes;
    if (is_new) *is_new = true;
    return RD_OK;
}

rd_status string_table_add_hidden(struct string_table *t, uint32_t *id)
{
    if (t->n >= STRING_NONE - 1) return RD_E_LIMIT;
    if (!mem_grow((void **)&t->ends, &t->ends_cap, t->n + 1, sizeof(*t->ends))) return RD_E_NOMEM;
    *id = (uint32_t)t->n;
    t->ends[t->n++] = (uint32_t)t->n_bytes;
    return RD_OK;
}

uint32_t string_table_find(const struct string_table *t, const char *s, size_t n)
{
    return t->slots[slot_of(t, hash_bytes(t->seed, s, n), s, n)].id;
}
