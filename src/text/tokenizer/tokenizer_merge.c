/* text/tokenizer/tokenizer_merge.c - merging neighbours, best first, with a heap: O(n log n) whatever the text is.
 *
 * A few symbols (nearly every word) are merged by looking for the best pair again and again. Very long words go through
 * in windows, so that time is linear and what is touched stays in the cache. That is exact: nothing outside two
 * neighbouring results changes the order of the merges inside them, so a row of results is the result of the whole if,
 * and only if, each two neighbours alone give themselves again. Inside a window that holds by itself; where two windows
 * meet it is checked, and the windows are moved back by one result as long as it does not hold.
 *
 * Each node knows the priority of merging with its right neighbour. The heap holds (priority, left node); an entry
 * counts only while its node is alive and still has that priority, so that nothing has to be taken out of the middle.
 * The leftmost of equal priorities goes first, as in llama.cpp.
 */
#include <assert.h>
#include <string.h>
#include "base/mem.h"
#include "text/tokenizer/tokenizer_impl.h"

bool id_list_reserve(struct id_list *l, size_t n_more)
{
    return mem_grow((void **)&l->ids, &l->cap, l->n + n_more + 1, sizeof(*l->ids));
}

#define MERGE_SHORT   32u   /* symbols: up to here without a heap */
#define MERGE_WINDOW  4096u /* symbols of a window; words up to twice that are merged at once */
#define MERGE_MARGIN  24u   /* results at a window's end that the next window finds anew */
#define MERGE_RETRIES 64u

void merge_work_deinit(struct merge_work *w)
{
    mem_free(w->base);
    mem_free(w->kept);
    mem_free(w->nodes);
    mem_free(w->heap);
}

bool merge_add(struct merge_work *w, uint32_t start, uint32_t symbol)
{
    if (w->n_nodes >= w->nodes_cap &&
        !mem_grow((void **)&w->nodes, &w->nodes_cap, w->n_nodes < 32 ? 64 : w->n_nodes + 1, sizeof(*w->nodes)))
        return false;
    w->nodes[w->n_nodes] = (struct merge_node){start, (int32_t)w->n_nodes - 1, -1, symbol, PRIO_NONE, 0};
    if (w->n_nodes) w->nodes[w->n_nodes - 1].next = (int32_t)w->n_nodes;
    w->n_nodes++;
    return true;
}

static void heap_push(struct merge_work *w, uint64_t key)
{
    size_t at = w->n_heap++;

    while (at && w->heap[(at - 1) / 2] > key) {
        w->heap[at] = w->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w->heap[at] = key;
}

static uint64_t heap_pop(struct merge_work *w)
{
    uint64_t top = w->heap[0], key = w->heap[--w->n_heap];
    size_t at = 0, child;

    while ((child = 2 * at + 1) < w->n_heap) {
        if (child + 1 < w->n_heap && w->heap[child + 1] < w->heap[child]) child++;
        if (w->heap[child] >= key) break;
        w->heap[at] = w->heap[child];
        at = child;
    }
    w->heap[at] = key;
    return top;
}

static uint32_t node_end(const struct merge_work *w, int32_t at, uint32_t n)
{
    return w->nodes[at].next < 0 ? n : w->nodes[w->nodes[at].next].start;
}

/* Finds out whether node `left` merges with its right neighbour, and queues that. */
static void consider(const struct tokenizer *t, struct merge_work *w, const char *text, uint32_t n, int32_t left)
{
    struct merge_node *l = &w->nodes[left];

    l->pair_prio = PRIO_NONE;
    if (l->next < 0) return;
    if (t->model == TOKENIZER_BPE)
        l->pair_prio = bpe_pair(t, l->symbol, w->nodes[l->next].symbol, &l->pair_symbol);
    else
        l->pair_prio = spm_pair(t, text + l->start, node_end(w, l->next, n) - l->start, &l->pair_symbol);
    if (l->pair_prio != PRIO_NONE) heap_push(w, (uint64_t)l->pair_prio << 32 | (uint32_t)left);
}

/* The ids of one result over text[start..end). Room for end - start was reserved. */
static void emit(const struct tokenizer *t, uint32_t symbol, const char *text, uint32_t start, uint32_t end,
                 struct id_list *out)
{
    if (symbol < t->n_tokens) {
        id_list_put(out, (int32_t)symbol);
        return;
    }
    for (uint32_t i = start; i < end; i++) {
        uint32_t byte = t->byte_symbol[(unsigned char)text[i]];

        if (byte < t->n_tokens) id_list_put(out, (int32_t)byte);
    }
}

/* The same merges as with the heap, for few symbols. */
static void merge_short(const struct tokenizer *t, struct merge_work *w)
{
    uint32_t symbols[MERGE_SHORT], starts[MERGE_SHORT], prios[MERGE_SHORT], results[MERGE_SHORT];
    size_t n = w->n_nodes;

    for (size_t i = 0; i < n; i++) symbols[i] = w->nodes[i].symbol, starts[i] = w->nodes[i].start;
    for (size_t i = 0; i + 1 < n; i++) prios[i] = bpe_pair(t, symbols[i], symbols[i + 1], &results[i]);
    while (n > 1) {
        size_t best = 0;

        for (size_t i = 1; i + 1 < n; i++)
            if (prios[i] < prios[best]) best = i;
        if (prios[best] == PRIO_NONE) break;
        symbols[best] = results[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            symbols[i] = symbols[i + 1];
            starts[i] = starts[i + 1];
        }
        for (size_t i = best + 1; i + 1 < n; i++) prios[i] = prios[i + 1], results[i] = results[i + 1];
        if (best + 1 < n) prios[best] = bpe_pair(t, symbols[best], symbols[best + 1], &results[best]);
        if (best) prios[best - 1] = bpe_pair(t, symbols[best - 1], symbols[best], &results[best - 1]);
    }
    for (size_t i = 0; i < n; i++)
        w->nodes[i] =
            (struct merge_node){starts[i], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1, symbols[i], PRIO_NONE, 0};
}

/* Merges the chain over text up to n, in place. false: out of memory. */
static bool merge_nodes(const struct tokenizer *t, struct merge_work *w, const char *text, uint32_t n)
{
    assert(w->n_nodes > 0 && w->n_nodes <= INT32_MAX);
    if (w->n_nodes <= MERGE_SHORT && t->model == TOKENIZER_BPE) {
        merge_short(t, w);
        return true;
    }
    /* One entry per pair at first; a merge takes one out and puts at most two in, and there are fewer merges than
     * nodes. */
    if (w->n_nodes * 2 > w->heap_cap && !mem_grow((void **)&w->heap, &w->heap_cap, w->n_nodes * 2, sizeof(*w->heap)))
        return false;
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < w->n_nodes; i++) consider(t, w, text, n, (int32_t)i);
    while (w->n_heap) {
        uint64_t key = heap_pop(w);
        struct merge_node *l = &w->nodes[(uint32_t)key], *r;

        if (l->symbol == SYMBOL_DEAD || l->pair_prio != key >> 32) continue;
        r = &w->nodes[l->next];
        l->symbol = l->pair_symbol;
        l->next = r->next;
        if (r->next >= 0) w->nodes[r->next].prev = (int32_t)(uint32_t)key;
        r->symbol = SYMBOL_DEAD;
        if (l->prev >= 0) consider(t, w, text, n, l->prev);
        consider(t, w, text, n, (int32_t)(uint32_t)key);
    }
    return true;
}

static rd_status merge_whole(const struct tokenizer *t, struct merge_work *w, const char *text, uint32_t n,
                             struct id_list *out)
{
    if (!merge_nodes(t, w, text, n) || !id_list_reserve(out, n))
        return RD_E_NOMEM; /* a token covers at least one byte */
    for (int32_t at = 0; at >= 0; at = w->nodes[at].next)
        emit(t, w->nodes[at].symbol, text, w->nodes[at].start, node_end(w, at, n), out);
    return RD_OK;
}

/* Merges symbols [from, to) of the long word. */
static bool merge_part(const struct tokenizer *t, struct merge_work *w, const char *text, size_t from, size_t to)
{
    w->n_nodes = 0;
    for (size_t i = from; i < to; i++)
        if (!merge_add(w, w->base[i].start, w->base[i].symbol)) return false;
    return merge_nodes(t, w, text, w->base[to].start);
}

/* Two neighbouring results alone: do they stay two? [from, middle) and [middle, to). */
static rd_status stays_cut(const struct tokenizer *t, struct merge_work *w, const char *text, size_t from,
                           size_t middle, size_t to, bool *stays)
{
    int32_t second;

    if (!merge_part(t, w, text, from, to)) return RD_E_NOMEM;
    second = w->nodes[0].next;
    *stays = second >= 0 && w->nodes[second].start == w->base[middle].start && w->nodes[second].next < 0;
    return RD_OK;
}

/* The symbol of the long word that begins at this byte; looked for from `at` on. */
static size_t symbol_at(const struct merge_work *w, size_t at, uint32_t start)
{
    while (w->base[at].start < start) at++;
    return at;
}

/* Takes the window's results, except for a margin unless it is the last; *next: where that margin begins. false: out of
 * memory. */
static bool keep_results(struct merge_work *w, size_t from, bool last, size_t *next)
{
    size_t n = 0, at = from;
    int32_t i = 0;

    for (; i >= 0; i = w->nodes[i].next) n++;
    if (!last) n -= MERGE_MARGIN;
    for (i = 0; n > 0; i = w->nodes[i].next, n--) {
        if (w->n_kept == w->kept_cap && !mem_grow((void **)&w->kept, &w->kept_cap, w->n_kept + 1, sizeof(*w->kept)))
            return false;
        at = symbol_at(w, at, w->nodes[i].start);
        w->kept[w->n_kept++] = (struct merge_kept){(uint32_t)at, w->nodes[i].symbol};
    }
    if (!last) *next = symbol_at(w, at, w->nodes[i].start);
    return true;
}

/* w->base holds the word's symbols and one past them. *exact false: too many windows had to move. */
static rd_status merge_windows(const struct tokenizer *t, struct merge_work *w, const char *text, size_t n, bool *exact)
{
    size_t from = 0, window = MERGE_WINDOW, retries = 0;
    rd_status st;

    w->n_kept = 0;
    *exact = true;
    while (from < n) {
        size_t to = n - from > 2 * window ? from + window : n, n_results = 0, second;
        bool stays = true;

        if (!merge_part(t, w, text, from, to)) return RD_E_NOMEM;
        for (int32_t i = 0; i >= 0 && n_results < 2 * MERGE_MARGIN; i = w->nodes[i].next) n_results++;
        if (n_results < 2 * MERGE_MARGIN && to < n) {
            window *= 2; /* very long results: the margin needs room */
            continue;
        }
        if (w->n_kept) {
            size_t before = w->kept[w->n_kept - 1].start;

            second = w->nodes[0].next < 0 ? to : symbol_at(w, from, w->nodes[w->nodes[0].next].start);
            if ((st = stays_cut(t, w, text, before, from, second, &stays)) != RD_OK) return st;
            if (!stays) {
                if (++retries > MERGE_RETRIES + n / MERGE_WINDOW) {
                    *exact = false;
                    return RD_OK;
                }
                from = before;
                w->n_kept--;
                continue;
            }
            if (!merge_part(t, w, text, from, to)) return RD_E_NOMEM;
        }
        if (!keep_results(w, from, to == n, &from)) return RD_E_NOMEM;
        if (to == n) break;
    }
    return RD_OK;
}

static rd_status merge_long(const struct tokenizer *t, struct merge_work *w, const char *text, uint32_t n,
                            struct id_list *out)
{
    size_t n_symbols = w->n_nodes;
    bool exact = false;
    rd_status st;

    if (n_symbols + 1 > w->base_cap && !mem_grow((void **)&w->base, &w->base_cap, n_symbols + 1, sizeof(*w->base)))
        return RD_E_NOMEM;
    for (size_t i = 0; i < n_symbols; i++) w->base[i] = (struct merge_kept){w->nodes[i].start, w->nodes[i].symbol};
    w->base[n_symbols] = (struct merge_kept){n, SYMBOL_NONE};
    if ((st = merge_windows(t, w, text, n_symbols, &exact)) != RD_OK) return st;
    if (!exact) {
        w->n_nodes = 0;
        for (size_t i = 0; i < n_symbols; i++)
            if (!merge_add(w, w->base[i].start, w->base[i].symbol)) return RD_E_NOMEM;
        return merge_whole(t, w, text, n, out);
    }
    if (!id_list_reserve(out, n)) return RD_E_NOMEM;
    for (size_t i = 0; i < w->n_kept; i++) {
        uint32_t end = i + 1 < w->n_kept ? w->base[w->kept[i + 1].start].start : n;

        emit(t, w->kept[i].symbol, text, w->base[w->kept[i].start].start, end, out);
    }
    return RD_OK;
}

rd_status merge_run(const struct tokenizer *t, struct merge_work *w, const char *text, uint32_t n, struct id_list *out)
{
    rd_status st = w->n_nodes > 2 * MERGE_WINDOW ? merge_long(t, w, text, n, out) : merge_whole(t, w, text, n, out);

    w->n_nodes = 0;
    return st;
}
