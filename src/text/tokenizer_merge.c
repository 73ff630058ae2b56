/* text/tokenizer_merge.c - merging neighbours, best first, with a heap: O(n log n) whatever the text is.
 *
 * Each node knows the priority of merging with its right neighbour. The heap holds (priority, left node); an entry
 * counts only while its node is alive and still has that priority, so that nothing has to be taken out of the middle.
 * The leftmost of equal priorities goes first, as in llama.cpp.
 */
#include <assert.h>
#include <string.h>
#include "base/mem.h"
#include "text/tokenizer_impl.h"

bool id_list_reserve(struct id_list *l, size_t n_more)
{
    return mem_grow((void **)&l->ids, &l->cap, l->n + n_more + 1, sizeof(*l->ids));
}

void merge_work_deinit(struct merge_work *w)
{
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

static rd_status emit(const struct tokenizer *t, const struct merge_work *w, const char *text, uint32_t n,
                      struct id_list *out)
{
    if (!id_list_reserve(out, n)) return RD_E_NOMEM;        /* a token covers at least one byte */
    for (int32_t at = 0; at >= 0; at = w->nodes[at].next) {
        uint32_t end = node_end(w, at, n);

        if (w->nodes[at].symbol < t->n_tokens) {
            id_list_put(out, (int32_t)w->nodes[at].symbol);
            continue;
        }
        for (uint32_t i = w->nodes[at].start; i < end; i++) {
            uint32_t symbol = t->byte_symbol[(unsigned char)text[i]];

            if (symbol < t->n_tokens) id_list_put(out, (int32_t)symbol);
        }
    }
    return RD_OK;
}

rd_status merge_run(const struct tokenizer *t, struct merge_work *w, const char *text, uint32_t n, struct id_list *out)
{
    rd_status st;

    assert(w->n_nodes > 0 && w->n_nodes <= INT32_MAX);
    /* One entry per pair at first; a merge takes one out and puts at most two in, and there are fewer merges than
     * nodes. */
    if (w->n_nodes * 2 > w->heap_cap && !mem_grow((void **)&w->heap, &w->heap_cap, w->n_nodes * 2, sizeof(*w->heap))) {
        w->n_nodes = 0;
        return RD_E_NOMEM;
    }
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
    st = emit(t, w, text, n, out);
    w->n_nodes = 0;
    return st;
}
