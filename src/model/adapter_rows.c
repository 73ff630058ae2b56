/* model/adapter_rows.c - which rows have which adapters, and the terms that this makes of a product. */
#include <assert.h>
#include "model/adapter_inside.h"
#include "model/model_arch.h"

/* Mixes are told apart by identity: two requests make two of the same. */
static bool is_same(const struct adapter_mix *a, const struct adapter_mix *b)
{
    return a == b || (a && b && hash128_equal(a->id, b->id));
}

static bool has_group(const struct adapted_rows *r, const struct adapter_mix *x)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (is_same(r->groups[i].mix, x)) return true;
    return false;
}

struct adapted_rows adapted_rows_of(const struct workspace *ws, const struct model_batch *b, const uint32_t *of,
                                    uint32_t n_rows)
{
    struct adapted_rows r = {.groups = ws->adapted_groups};
    uint32_t n = 0;

    if (b->n_adapted == 0) return r;
    if (b->adapted)
        return (struct adapted_rows){
            .n = b->n_adapted, .by_row = b->adapted, .n_rows = n_rows, .most_ranks = b->most_ranks};
    for (uint32_t i = 0; i < b->n_runs; i++) {
        const struct adapter_mix *mix = b->adapters[i];
        struct adapted_group g = {.mix = mix, .rows = ws->adapted_rows + n};

        if (!mix || has_group(&r, mix)) continue;
        for (uint32_t row = 0; row < n_rows; row++)
            if (is_same(b->adapters[model_batch_run_of(b, of ? of[row] : row)], mix)) ws->adapted_rows[n++] = row;
        g.n_rows = (uint32_t)(ws->adapted_rows + n - g.rows);
        if (g.n_rows > 0) r.groups[r.n++] = g;
    }
    return r;
}

uint32_t adapter_mix_row(const struct model *m, const struct adapter_mix *x, struct low_rank_row *out)
{
    uint32_t n_ranks = 0;

    static_assert(ADAPTER_MIX_MAX == LOW_RANK_USES, "a mix is a row's uses");
    out->n_uses = x ? x->n : 0;
    for (uint32_t i = 0; i < out->n_uses; i++) {
        out->uses[i] = (struct low_rank_use){&x->uses[i].adapter->parts[m->share.rank].table, x->uses[i].scale};
        n_ranks += x->uses[i].adapter->info.max_rank;
    }
    return n_ranks;
}

/* A rank may have nothing of a matrix. */
static struct low_rank_rows_args by_row_of(struct model *m, const struct adapted_rows *rows, const struct adapt_args *a)
{
    struct low_rank_rows_args all = {.n_rows = rows->by_row && a->n_out[0] > 0 ? rows->n_rows : 0,
                                     .rows = rows->by_row,
                                     .most_ranks = rows->most_ranks,
                                     .first = a->layer * ADAPT_N + a->first,
                                     .n_outs = a->n_outs,
                                     .x = a->x,
                                     .n_in = a->n_in,
                                     .t = m->ws.low_rank};

    for (uint32_t i = 0; i < a->n_outs; i++) {
        all.outs[i] = a->outs[i];
        all.n_out[i] = a->n_out[i];
    }
    return all;
}

static struct low_rank_args terms_of(struct model *m, const struct adapted_rows *rows, const struct adapt_args *a)
{
    struct low_rank_args all = {.x = a->x, .x_stride = a->n_in, .terms = m->ws.terms, .t = m->ws.low_rank};

    for (uint32_t o = 0; o < a->n_outs && !rows->by_row; o++)
        for (uint32_t g = 0; g < rows->n; g++) {
            const struct adapted_group *group = &rows->groups[g];

            for (uint32_t k = 0; k < group->mix->n; k++) {
                const struct adapter_use *use = &group->mix->uses[k];
                const struct adapter_part *part = &use->adapter->parts[m->share.rank];
                const struct adapter_pair *p = &part->pairs[a->layer * ADAPT_N + a->first + o];

                if (!p->a.data) continue;
                m->ws.terms[all.n_terms++] = (struct low_rank_term){
                    &p->a, &p->b, p->scale * use->scale, group->n_rows, group->rows, a->outs[o], a->n_out[o]};
            }
        }
    return all;
}

struct adaptation adapt_prepare(struct model *m, const struct adapted_rows *rows, const struct adapt_args *a)
{
    return (struct adaptation){terms_of(m, rows, a), by_row_of(m, rows, a)};
}

rd_status adapt(struct model *m, const struct adaptation *a)
{
    if (a->by_row.n_rows > 0) return m->ops->op.low_rank_rows(m->be, &a->by_row);
    return a->terms.n_terms > 0 ? m->ops->op.low_rank(m->be, &a->terms) : RD_OK;
}
