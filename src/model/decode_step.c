/* model/decode_step.c - a forward pass; where every sequence has one row, as a graph that the backend recorded.
 *
 * Recorded graphs have few numbers of rows: 1, 2, 4, then multiples of 8, above 64 of 16, above 128 of 32. A step
 * between them is filled up with padding rows: token 0 at position 0, with the page beyond the pool to itself, and a run
 * of no rows, so that nothing is attended for it. Rows do not depend on each other, so that the bits stay the same.
 */
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "model/blocks.h"

struct padded_step {
    uint32_t max_rows;
    kv_page padding;                        /* the page of padding rows */
    struct model_batch rows;                /* whose arrays stay where they are */
    uint32_t *from;
};

void padded_step_destroy(struct model *m)
{
    struct padded_step *p = m->ws.padded;

    if (!p) return;
    model_batch_deinit(&p->rows);
    mem_free(p->from);
    mem_free(p);
    m->ws.padded = NULL;
}

rd_status padded_step_create(struct model *m)
{
    struct padded_step *p;
    uint32_t n = u32_min(m->max_rows, m->max_logits);

    if (!m->ops->async) return RD_OK;
    p = m->ws.padded = mem_zalloc(1, sizeof(*p));
    if (!p) return RD_E_NOMEM;
    p->max_rows = n;
    p->from = mem_zalloc(n, sizeof(*p->from));
    if (!p->from) return RD_E_NOMEM;
    if (model_batch_init(&p->rows, (struct model_batch_room){n, n, n, 0}) != RD_OK) return RD_E_NOMEM;
    for (uint32_t i = 0; i < n; i++) p->rows.logit_rows[i] = i;
    return RD_OK;
}

/* Rows of the graph for n rows; 0: none is wide enough. */
static uint32_t padded_rows(const struct padded_step *p, uint32_t n)
{
    uint32_t step = n <= 64 ? MODEL_PAD_ROWS : n <= 128 ? 2 * MODEL_PAD_ROWS : 4 * MODEL_PAD_ROWS;
    uint32_t padded = n <= 2 ? n : n <= 4 ? 4 : u32_ceil_div(n, step) * step;

    if (padded > p->max_rows) padded = u32_ceil_div(n, MODEL_PAD_ROWS) * MODEL_PAD_ROWS;
    return padded <= p->max_rows ? padded : n <= p->max_rows ? n : 0;
}

/* Every sequence one row, whose logits are wanted, in order. */
static bool is_decode(const struct model_batch *b)
{
    if (b->n_runs != b->n_rows || b->n_logits != b->n_rows || b->n_hidden > 0 || b->rope_positions) return false;
    for (uint32_t i = 0; i < b->n_rows; i++)
        if (b->logit_rows[i] != i || b->runs[i].row0 != i || b->runs[i].n_rows != 1) return false;
    return true;
}

/* b's rows at arrays that stay where they are, then padding. */
static struct model_batch fill_step(struct padded_step *p, const struct kv_storage *kv, const struct model_batch *b,
                                    uint32_t n)
{
    struct model_batch *s = &p->rows;

    p->padding = kv->n_pages;
    for (uint32_t i = 0; i < n; i++) {
        bool is_real = i < b->n_rows;

        s->tokens[i] = is_real ? b->tokens[i] : 0;
        s->positions[i] = is_real ? b->positions[i] : 0;
        s->row_page[i] = is_real ? b->row_page[i] : p->padding;
        s->row_slot[i] = is_real ? b->row_slot[i] : 0;
        s->draws[i] = is_real && b->choices ? b->draws[i] : (struct row_draw){0};
        s->unread[i] = !is_real || (b->unread && b->unread[i]);
        s->runs[i] = is_real ? b->runs[i] : (struct seq_run){i, 0, 0, &p->padding};
    }
    s->n_rows = s->n_runs = s->n_logits = n;
    s->choices = b->choices;
    return *s;
}

/* Steps of other kernels are other graphs: those that give logits, logits and choices, choices alone. */
static const void *graph_owner(const struct model *m, const struct model_batch *step)
{
    return !step->choices ? &m->ws.logits : pass_only_chooses(m, step) ? (const void *)&m->ws.choices : &m->ws.padded;
}

/* Gives the step to the backend, as a graph or op by op. n: rows with padding. from as in graph_step. */
static rd_status launch(struct model *m, struct kv_storage *kv, const struct model_batch *b, uint32_t n,
                        const uint32_t *from)
{
    struct padded_step *p = m->ws.padded;
    struct model_batch step = fill_step(p, kv, b, n);
    enum graph_action action = GRAPH_PLAIN;
    struct graph_step g = {graph_owner(m, &step), n, step.tokens, step.positions,
                           step.row_page, step.row_slot, step.runs, b->choices ? step.draws : NULL, kv, NULL, span_none()};
    rd_status st;

    if (from) {
        for (uint32_t i = 0; i < n; i++) p->from[i] = i < b->n_rows ? from[i] : GRAPH_OWN_TOKEN;
        g.from = p->from;
        g.choices = m->ws.choices;
    }
    st = m->ops->async->graph_begin(m->be, &g, &action);
    if (st != RD_OK || action == GRAPH_REPLAYED) return st;
    m->is_launching = true;
    st = m->arch->forward(m, kv, &step, NULL);
    m->is_launching = false;
    if (action == GRAPH_RECORD) {
        rd_status end = m->ops->async->graph_end(m->be);

        if (st == RD_OK) st = end;
    }
    return st;
}

rd_status decode_step_begin(struct model *m, struct kv_storage *kv, const struct model_batch *b, const uint32_t *from)
{
    uint32_t n = padded_rows(m->ws.padded, b->n_rows);
    rd_status st;

    assert(n > 0 && is_decode(b) && b->choices);
    st = launch(m, kv, b, n, from);
    if (st == RD_OK) st = pass_send(m, b, NULL);
    return st == RD_OK ? m->ops->async->mark(m->be) : st;
}

rd_status decode_step_forward(struct model *m, struct kv_storage *kv, const struct model_batch *b, float *logits)
{
    uint32_t n = m->ws.padded && is_decode(b) ? padded_rows(m->ws.padded, b->n_rows) : 0;
    rd_status st;

    if (n == 0) return m->arch->forward(m, kv, b, logits);
    st = launch(m, kv, b, n, NULL);
    return st == RD_OK ? pass_deliver(m, b, logits) : st;
}
