/* model/adapter_rows.c - which rows have which adapters, and the terms that this makes of a product. */
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

rd_status adapt(struct model *m, const struct adapted_rows *rows, const struct adapt_args *a)
{
    struct low_rank_args all = {.x = a->x, .x_stride = a->n_in, .terms = m->ws.terms, .t = m->ws.low_rank};
    uint32_t n = 0;

    for (uint32_t o = 0; o < a->n_outs; o++)
        for (uint32_t g = 0; g < rows->n; g++) {
            const struct adapted_group *group = &rows->groups[g];

            for (uint32_t k = 0; k < group->mix->n; k++) {
                const struct adapter_use *use = &group->mix->uses[k];
                const struct adapter_pair *p = &use->adapter->pairs[a->layer * ADAPT_N + a->first + o];

                if (!p->a.data) continue;
                m->ws.terms[n++] = (struct low_rank_term){
                    &p->a, &p->b, p->scale * use->scale, group->n_rows, group->rows, a->outs[o], a->n_out[o]};
            }
        }
    all.n_terms = n;
    return n > 0 ? m->ops->op.low_rank(m->be, &all) : RD_OK;
}
