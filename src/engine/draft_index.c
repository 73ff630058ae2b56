/* engine/draft_index.c - see the header. Positions count up from 1 without end and are masked into the ring; 0 is none.
 */
#include "engine/draft_index.h"
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"

#define MAX_CAPACITY (1u << 24)
#define MAX_LOOKS    24u        /* occurrences that a look-up compares */
#define SEPARATOR    UINT32_MAX /* no token id */

struct draft_index {
    kv_key *keys;       /* [capacity] */
    uint32_t *before;   /* [capacity] position of the previous occurrence of the three that end here */
    uint32_t *newest;   /* [capacity] by hash */
    uint64_t bytes;     /* of each */
    uint32_t mask, end; /* end: position of the next token; the first is 1 */
};

rd_status draft_index_create(uint32_t capacity, struct draft_index **out)
{
    struct draft_index *x = mem_zalloc(1, sizeof(*x));
    uint32_t n = 64;

    if (!x) return RD_E_NOMEM;
    while (n < capacity && n < MAX_CAPACITY) n *= 2;
    x->mask = n - 1;
    x->end = 1;
    x->bytes = (uint64_t)n * sizeof(uint32_t);
    x->keys = mem_map(x->bytes);
    x->before = mem_map(x->bytes);
    x->newest = mem_map(x->bytes);
    if (!x->keys || !x->before || !x->newest) {
        draft_index_destroy(x);
        return RD_E_NOMEM;
    }
    *out = x;
    return RD_OK;
}

void draft_index_destroy(struct draft_index *x)
{
    if (!x) return;
    mem_unmap(x->keys, x->bytes);
    mem_unmap(x->before, x->bytes);
    mem_unmap(x->newest, x->bytes);
    mem_free(x);
}

static uint32_t hash_of(const struct draft_index *x, kv_key a, kv_key b, kv_key c)
{
    uint64_t h = ((uint64_t)a * 0x9e3779b97f4a7c15ull + b) * 0xbf58476d1ce4e5b9ull + c;

    h *= 0x94d049bb133111ebull;
    return (uint32_t)(h >> 32) & x->mask;
}

static kv_key key_at(const struct draft_index *x, uint32_t position)
{
    return x->keys[position & x->mask];
}

static void append_one(struct draft_index *x, kv_key key)
{
    uint32_t h;

    if (x->end == UINT32_MAX) draft_index_clear(x); /* after four billion tokens: begin again */
    x->keys[x->end & x->mask] = key;
    x->before[x->end & x->mask] = 0;
    if (x->end >= DRAFT_MIN_MATCH && key != SEPARATOR) {
        h = hash_of(x, key_at(x, x->end - 2), key_at(x, x->end - 1), key);
        x->before[x->end & x->mask] = x->newest[h];
        x->newest[h] = x->end;
    }
    x->end++;
}

void draft_index_append(struct draft_index *x, const kv_key *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) append_one(x, keys[i]);
}

void draft_index_separate(struct draft_index *x)
{
    append_one(x, SEPARATOR);
}

void draft_index_clear(struct draft_index *x)
{
    memset(x->newest, 0, x->bytes);
    x->end = 1;
}

uint32_t draft_index_n(const struct draft_index *x)
{
    return x->end - 1;
}

/* Tokens that agree backwards from position and from the end of text. */
static uint32_t agreement(const struct draft_index *x, uint32_t position, uint32_t oldest, const kv_key *text,
                          uint32_t n)
{
    uint32_t most = u32_min(u32_min(n, DRAFT_MAX_MATCH), position - oldest + 1), k = 0;

    while (k < most && key_at(x, position - k) == text[n - 1 - k]) k++;
    return k;
}

uint32_t draft_index_find(const struct draft_index *x, bool own, const kv_key *text, uint32_t n, uint32_t n_most,
                          kv_key *draft, uint32_t *n_draft)
{
    uint32_t oldest = x->end > x->mask + 1 ? x->end - x->mask - 1 : 1, best = 0, best_at = 0, at, limit;

    *n_draft = 0;
    if (n < DRAFT_MIN_MATCH || n_most == 0) return 0;
    limit = x->end - 1 - own; /* nothing follows the last token yet */
    at = x->newest[hash_of(x, text[n - 3], text[n - 2], text[n - 1])];
    for (uint32_t looks = 0; looks < MAX_LOOKS && at >= oldest && at < x->end && best < DRAFT_MAX_MATCH; looks++) {
        uint32_t k = at <= limit ? agreement(x, at, oldest, text, n) : 0, before = x->before[at & x->mask];

        if (k > best) {
            best = k;
            best_at = at;
        }
        if (before >= at) break; /* none, or overwritten since */
        at = before;
    }
    if (best < DRAFT_MIN_MATCH) return 0;
    for (at = best_at + 1; at < x->end && *n_draft < n_most && key_is_token(key_at(x, at)); at++) /* nor a separator */
        draft[(*n_draft)++] = key_at(x, at);
    return *n_draft > 0 ? best : 0;
}
