/* text/tokenizer/prefix_index.c - sorted strings, narrowed byte by byte. */
#include "text/tokenizer/prefix_index.h"
#include <stdlib.h>
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"

static int compare(const void *a, const void *b)
{
    const struct prefix_entry *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int order = n ? memcmp(x->s, y->s, n) : 0;

    if (order) return order;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return (x->value < y->value) - (x->value > y->value);
}

static uint32_t two_bytes(const char *s)
{
    return (uint32_t)(unsigned char)s[0] << 8 | (unsigned char)s[1];
}

/* Entries of one byte leave the list for a table of their own. */
static void take_singles(struct prefix_index *x)
{
    size_t kept = 0;

    for (size_t i = 0; i < x->n; i++) {
        struct prefix_entry e = x->entries[i];
        uint32_t first = (uint32_t)(unsigned char)e.s[0] << 8;

        if (e.n > 1) {
            x->entries[kept++] = e;
            continue;
        }
        x->has_single[(unsigned char)e.s[0]] = true;
        x->single[(unsigned char)e.s[0]] = e.value;
        for (uint32_t k = first; k <= first + 255; k++) x->may_start[k / 64] |= (uint64_t)1 << (k % 64);
    }
    x->n = kept;
}

static void note_starts(struct prefix_index *x)
{
    uint32_t two = 0;

    x->only_first = x->n ? (unsigned char)x->entries[0].s[0] : -1;
    for (size_t i = 0; i < x->n; i++)
        if ((unsigned char)x->entries[i].s[0] != x->only_first) x->only_first = -1;
    take_singles(x);
    for (uint32_t i = 0; i < x->n; i++) {
        uint32_t first = two_bytes(x->entries[i].s);

        x->may_start[first / 64] |= (uint64_t)1 << (first % 64);
        while (two <= first) x->starts[two++] = i;
    }
    while (two <= 65536) x->starts[two++] = (uint32_t)x->n;
}

rd_status prefix_index_init(struct prefix_index *x, const struct prefix_entry *entries, size_t n)
{
    size_t n_bytes = 0, kept = 0;
    char *to;

    memset(x, 0, sizeof(*x));
    x->only_first = -1;
    for (size_t i = 0; i < n; i++) {
        if (entries[i].n > LIMIT_SEARCHED_TOKEN_BYTES) return RD_E_LIMIT;
        n_bytes += entries[i].n;
    }
    x->entries = mem_alloc(n + 1, sizeof(*x->entries));
    x->bytes = to = mem_alloc(n_bytes + 1, 1);
    x->starts = mem_alloc(65537, sizeof(*x->starts));
    x->may_start = mem_zalloc(65536 / 64, sizeof(*x->may_start));
    if (!x->entries || !x->bytes || !x->starts || !x->may_start) {
        prefix_index_deinit(x);
        return RD_E_NOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        if (entries[i].n == 0) continue;
        memcpy(to, entries[i].s, entries[i].n);
        x->entries[x->n++] = (struct prefix_entry){to, entries[i].n, entries[i].value};
        to += entries[i].n;
    }
    qsort(x->entries, x->n, sizeof(*x->entries), compare);
    for (size_t i = 0; i < x->n; i++)
        if (kept == 0 || x->entries[kept - 1].n != x->entries[i].n ||
            memcmp(x->entries[kept - 1].s, x->entries[i].s, x->entries[i].n) != 0)
            x->entries[kept++] = x->entries[i];
    x->n = kept;
    note_starts(x);
    return RD_OK;
}

void prefix_index_deinit(struct prefix_index *x)
{
    mem_free(x->entries);
    mem_free(x->bytes);
    mem_free(x->starts);
    mem_free(x->may_start);
    memset(x, 0, sizeof(*x));
    x->only_first = -1;
}

struct prefix_walk prefix_walk_begin(const struct prefix_index *x, const char *s, size_t n)
{
    struct prefix_walk w = {.x = x, .s = s, .n = n};

    if (n > 1) {
        w.low = x->starts[two_bytes(s)];
        w.high = x->starts[two_bytes(s) + 1];
    }
    return w;
}

/* The first entry of [low, high) whose byte at `depth` is at least c; those that end there come first. */
static uint32_t first_from(const struct prefix_index *x, uint32_t low, uint32_t high, size_t depth, unsigned c)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct prefix_entry *e = &x->entries[middle];

        if (e->n <= depth || (unsigned char)e->s[depth] < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool prefix_walk_next(struct prefix_walk *w)
{
    const struct prefix_index *x = w->x;

    if (w->depth == 0) {
        w->depth = 1;
        if (w->n && x->has_single[(unsigned char)w->s[0]]) {
            w->length = 1;
            w->value = x->single[(unsigned char)w->s[0]];
            return true;
        }
    }
    while (w->low < w->high) {
        const struct prefix_entry *e;

        if (w->depth == 1) {
            w->depth = 2;
        } else {
            unsigned c = w->depth < w->n ? (unsigned char)w->s[w->depth] : 0;

            if (w->depth >= w->n) return false;
            w->low = first_from(x, w->low, w->high, w->depth, c);
            w->high = first_from(x, w->low, w->high, w->depth, c + 1);
            w->depth++;
            if (w->low == w->high) return false;
        }
        e = &x->entries[w->low];
        if (e->n != w->depth) continue;
        w->length = e->n;
        w->value = e->value;
        return true;
    }
    return false;
}

bool prefix_index_extends(const struct prefix_index *x, const char *s, size_t n)
{
    size_t low = 0, high = x->n;

    while (low < high) { /* the first entry that is not before s, and is longer */
        size_t middle = low + (high - low) / 2;
        const struct prefix_entry *e = &x->entries[middle];
        int order = memcmp(e->s, s, e->n < n ? e->n : n);

        if (order < 0 || (order == 0 && e->n <= n))
            low = middle + 1;
        else
            high = middle;
    }
    return n > 0 && low < x->n && x->entries[low].n > n && !memcmp(x->entries[low].s, s, n);
}
