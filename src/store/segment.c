/* store/segment.c - making and checking heads and records. */
#include "store/segment.h"
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/limits.h"

#define MAGIC      "radishKV"
#define SUFFIX     ".pages"
#define SLOT_ALIGN 64u

static struct hash128 head_check(const struct segment_head *h)
{
    return hash128_of(h, offsetof(struct segment_head, check));
}

static uint32_t record_bytes_of(uint32_t page_tokens)
{
    return (uint32_t)(sizeof(struct segment_record) + (page_tokens * sizeof(uint32_t) + 15) / 16 * 16);
}

struct segment_head segment_make_head(uint64_t id, struct sip_key key, struct hash128 space, uint32_t page_tokens,
                                      uint64_t page_bytes, uint64_t segment_bytes)
{
    struct segment_head h = {.version = SEGMENT_VERSION,
                             .page_tokens = page_tokens,
                             .id = id,
                             .page_bytes = page_bytes,
                             .slot_bytes = (page_bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN,
                             .record_bytes = record_bytes_of(page_tokens),
                             .key = key,
                             .space = space};
    uint64_t n = segment_bytes > SEGMENT_HEAD_BYTES ? segment_bytes - SEGMENT_HEAD_BYTES : 0;

    memcpy(h.magic, MAGIC, sizeof(h.magic));
    n = u64_min(n / (h.slot_bytes + h.record_bytes), SEGMENT_MAX_SLOTS);
    n = u64_min(n, LIMIT_STORE_TABLE_BYTES / h.record_bytes);
    h.n_slots = n ? (uint32_t)n : 1;
    h.data_offset =
        SEGMENT_HEAD_BYTES + ((uint64_t)h.n_slots * h.record_bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
    h.check = head_check(&h);
    return h;
}

/* What is left to compute from the rest must be what we would compute. */
bool segment_head_is_good(const struct segment_head *h, uint64_t id)
{
    if (memcmp(h->magic, MAGIC, sizeof(h->magic)) || h->version != SEGMENT_VERSION || h->id != id) return false;
    if (!hash128_equal(h->check, head_check(h))) return false;
    if (h->page_tokens == 0 || h->page_tokens > LIMIT_STORE_PAGE_TOKENS) return false;
    if (h->page_bytes == 0 || h->page_bytes > LIMIT_STORE_PAGE_BYTES) return false;
    if (h->n_slots == 0 || h->n_slots > SEGMENT_MAX_SLOTS) return false;
    if ((uint64_t)h->n_slots * h->record_bytes > LIMIT_STORE_TABLE_BYTES) return false;
    return h->slot_bytes == (h->page_bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN &&
           h->record_bytes == record_bytes_of(h->page_tokens) &&
           h->data_offset ==
               SEGMENT_HEAD_BYTES + ((uint64_t)h->n_slots * h->record_bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
}

uint64_t segment_slot_offset(const struct segment_head *h, uint32_t slot)
{
    return h->data_offset + slot * h->slot_bytes;
}

uint64_t segment_record_offset(const struct segment_head *h, uint32_t slot)
{
    return SEGMENT_HEAD_BYTES + (uint64_t)slot * h->record_bytes;
}

static uint64_t record_check(const struct segment_head *h, const struct segment_record *r)
{
    return hash64_of((const uint8_t *)r + sizeof(r->check), h->record_bytes - sizeof(r->check));
}

void segment_make_record(const struct segment_head *h, uint32_t slot, struct hash128 digest, struct hash128 before,
                         const uint32_t *tokens, const void *page, struct segment_record *out)
{
    memset(out, 0, h->record_bytes);
    out->segment = h->id;
    out->slot = slot;
    out->n_tokens = h->page_tokens;
    out->digest = digest;
    out->before = before;
    out->page = hash128_of(page, h->page_bytes);
    memcpy(out->tokens, tokens, h->page_tokens * sizeof(*tokens));
    out->check = record_check(h, out);
}

bool segment_record_is_empty(const struct segment_head *h, const struct segment_record *r)
{
    const uint8_t *p = (const uint8_t *)r;

    return p[0] == 0 && memcmp(p, p + 1, h->record_bytes - 1) == 0;
}

bool segment_record_is_good(const struct segment_head *h, uint32_t slot, const struct segment_record *r)
{
    return r->segment == h->id && r->slot == slot && r->n_tokens == h->page_tokens && r->check == record_check(h, r);
}

rd_status segment_erase_record(const struct segment_head *h, const struct data_file *f, uint32_t slot)
{
    static const uint8_t zeros[sizeof(struct segment_record) + LIMIT_STORE_PAGE_TOKENS * sizeof(uint32_t)];

    return data_file_write(f, segment_record_offset(h, slot), zeros, h->record_bytes);
}

void segment_name(uint64_t id, char name[SEGMENT_NAME_BYTES])
{
    snprintf(name, SEGMENT_NAME_BYTES, "%016" PRIx64 SUFFIX, id);
}

bool segment_parse_name(const char *name, uint64_t *id)
{
    char again[SEGMENT_NAME_BYTES];

    *id = 0;
    for (int i = 0; i < 16; i++) {
        char c = name[i];

        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
        *id = *id << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    segment_name(*id, again);
    return strcmp(name, again) == 0;
}
