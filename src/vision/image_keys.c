/* vision/image_keys.c - the keys of images, and the table in which their first ones are taken.
 *
 *     digest, number n  ->  first key   taken by another image: n + 1
 *
 * The table is a hash of the process, by first keys, with linear probing; it only grows. What a process has not seen yet has
 * n = 0, as it had in others, but for one image in two thousand millions.
 */
#include <string.h>
#include "base/mem.h"
#include "base/sha.h"
#include "base/thread.h"
#include "vision/vision.h"

#define KEYS_OF_DIGEST 8u   /* 32 bytes, four a key */
#define LEAST_SLOTS    256u /* a power of two */

struct taken {
    kv_key first; /* 0: free */
    uint8_t digest[VISION_DIGEST];
};

static struct table {
    struct mutex lock;
    struct taken *slots;
    uint32_t n_slots, n;
} table;
static struct once table_once = ONCE_INIT;

static void make_table(void)
{
    mutex_init(&table.lock);
}

static void put_u32(uint8_t *to, uint32_t v)
{
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* KV_NO_KEY is no key of a row. */
static kv_key row_key(const uint8_t *b)
{
    kv_key key = KV_KEY_ROW | (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];

    return key == KV_NO_KEY ? key - 1 : key;
}

static void keys_of_block(const struct vision_image *v, uint32_t number, uint32_t block, kv_key keys[KEYS_OF_DIGEST])
{
    uint8_t numbers[8], digest[SHA_BYTES];
    struct sha s;

    put_u32(numbers, block);
    put_u32(numbers + 4, number);
    sha256_begin(&s);
    sha_add(&s, v->digest, sizeof(v->digest));
    sha_add(&s, numbers, sizeof(numbers));
    sha_end_bytes(&s, digest);
    for (uint32_t i = 0; i < KEYS_OF_DIGEST; i++) keys[i] = row_key(digest + (size_t)4 * i);
}

/* The slot that has this first key, or a free one. */
static struct taken *slot_of(struct taken *slots, uint32_t n_slots, kv_key first)
{
    uint32_t i = first & (n_slots - 1); /* bits of a digest */

    while (slots[i].first && slots[i].first != first) i = (i + 1) & (n_slots - 1);
    return &slots[i];
}

static rd_status grow(struct table *t)
{
    uint32_t n = t->n_slots ? 2 * t->n_slots : LEAST_SLOTS;
    struct taken *slots;

    if (2 * t->n < t->n_slots) return RD_OK;
    slots = mem_zalloc(n, sizeof(*slots));
    if (!slots) return RD_E_NOMEM;
    for (uint32_t i = 0; i < t->n_slots; i++)
        if (t->slots[i].first) *slot_of(slots, n, t->slots[i].first) = t->slots[i];
    mem_free(t->slots);
    t->slots = slots;
    t->n_slots = n;
    return RD_OK;
}

/* Under the lock. False: another image has this first key. */
static bool take(struct table *t, const struct vision_image *v, kv_key first)
{
    struct taken *at = slot_of(t->slots, t->n_slots, first);

    if (at->first) return memcmp(at->digest, v->digest, sizeof(v->digest)) == 0;
    if (t->n >= VISION_MOST_IMAGES) return true;
    at->first = first;
    memcpy(at->digest, v->digest, sizeof(v->digest));
    t->n++;
    return true;
}

rd_status vision_image_keys(const struct vision_image *v, kv_key *keys)
{
    kv_key some[KEYS_OF_DIGEST];
    uint32_t number = 0;
    rd_status st;

    once_run(&table_once, make_table);
    mutex_lock(&table.lock);
    st = grow(&table);
    for (keys_of_block(v, number, 0, some); st == RD_OK && !take(&table, v, some[0]);)
        keys_of_block(v, ++number, 0, some);
    mutex_unlock(&table.lock);
    for (uint32_t at = 0; st == RD_OK && at < v->n_rows; at += KEYS_OF_DIGEST) {
        uint32_t n = v->n_rows - at < KEYS_OF_DIGEST ? v->n_rows - at : KEYS_OF_DIGEST;

        keys_of_block(v, number, at / KEYS_OF_DIGEST, some);
        memcpy(keys + at, some, n * sizeof(*keys));
    }
    return st;
}
