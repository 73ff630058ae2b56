/* model/blocks.c - the shared pieces of a forward pass, in backend ops.
 *
 * Who uses which part of the workspace:
 *     x                the residual stream, from pass_begin to the last layer's cut
 *     x_last, q_last   its wanted rows from there on
 *     norm             written by pass_norm, read by the block that follows
 *     delta            written by that block, read by the next pass_norm
 *     q, k, v, attn    inside pass_attention;  gate, up: inside pass_mlp
 *     joined, part     of several ranks (share.h): a product's input from all of them; this rank's part of its output,
 *                      which delta has from all
 */
#include "model/blocks.h"
#include <assert.h>
#include <string.h>
#include "backend/compose.h"
#include "base/checked.h"
#include "base/draw.h"
#include "base/mem.h"

/* Of this rank's heads. */
static uint32_t q_width(const struct model *m)
{
    return m->share.heads.n * m->config.head_dim;
}
static uint32_t kv_width(const struct model *m)
{
    return m->share.kv_heads.n * m->config.head_dim;
}
static bool has_ranks(const struct model *m)
{
    return m->share.n_ranks > 1;
}
static const struct weight *loaded(const struct weight *w)
{
    return w->data ? w : NULL;
}

/* n_rows rows of all ranks, of whose columns this one has own. */
static struct join_args join_of(struct model *m, uint32_t n_rows, const uint32_t *ends, struct span own,
                                uint32_t own_stride, struct span out)
{
    return (struct join_args){.group = m->group,
                              .rank = m->share.rank,
                              .n_ranks = m->share.n_ranks,
                              .n_rows = n_rows,
                              .ends = ends,
                              .own = own,
                              .out = out,
                              .own_stride = own_stride};
}

/* The join of what a product reads. */
static struct join_args join_for_product(struct pass *p, const uint32_t *ends, struct span own, uint32_t n_own)
{
    struct join_args a = join_of(p->m, p->n_rows, ends, own, n_own, p->m->ws.joined);

    a.for_linear = true;
    a.for_low_rank = p->adapted.n > 0;
    return a;
}

/* What gives a join's columns may begin it, if nothing comes between. */
static const struct join_args *begun_with(const struct pass *p, const struct join_args *a)
{
    return has_ranks(p->m) && p->adapted.n == 0 ? a : NULL;
}

/* What a product reads, of all ranks: own, where this one is alone. */
static struct span joined(struct pass *p, const struct join_args *a)
{
    if (!has_ranks(p->m)) return a->own;
    if (p->st == RD_OK) p->st = p->m->ops->op.join(p->m->be, a);
    return a->out;
}

/* A product with its adapters; a NULL: this rank has nothing of it. */
static rd_status linear_adapted(struct pass *p, const struct adapt_args *low, struct linear_args *a)
{
    struct model *m = p->m;
    const struct adaptation adaptation = adapt_prepare(m, &p->adapted, low);
    rd_status st = RD_OK;

    if (a) {
        a->soon = adaptation.terms.n_terms > 0 ? &adaptation.terms : NULL;
        a->by_row = adaptation.by_row.n_rows > 0 ? &adaptation.by_row : NULL;
        st = m->ops->op.linear(m->be, a);
    }
    return st == RD_OK ? adapt(m, &adaptation) : st;
}

/* delta = w x, where x has all columns, with its adapters: wo and down. */
static void project_back(struct pass *p, const struct weight *w, uint32_t layer, enum adapter_target target,
                         struct span x, uint32_t n_in)
{
    struct model *m = p->m;
    const struct span out = has_ranks(m) ? m->ws.part : m->ws.delta;
    const struct adapt_args low = {.layer = layer,
                                   .first = target,
                                   .n_outs = 1,
                                   .x = x,
                                   .outs = {out},
                                   .n_in = n_in,
                                   .n_out = {m->share.hidden.n}};
    const bool once = p->adapted.n == 0;
    struct join_args join = join_of(m, p->n_rows, m->share.hidden_ends, out, m->share.hidden.n, m->ws.delta);
    struct linear_args a = {.n_rows = p->n_rows,
                            .x = x,
                            .x_stride = n_in,
                            .n_outs = 1,
                            .outs = {{w, NULL, out, m->share.hidden.n}},
                            .once = once && !has_ranks(m),
                            .then = begun_with(p, &join)};

    join.once = once;
    p->has_delta = true;
    if (p->st == RD_OK) p->st = linear_adapted(p, &low, m->share.hidden.n > 0 ? &a : NULL);
    if (p->st == RD_OK && has_ranks(m)) p->st = m->ops->op.join(m->be, &join);
}

/* How many rows from this one on are as it is: of an encoder, or not. */
static uint32_t count_alike(const struct model_batch *b, uint32_t row)
{
    uint32_t n = 1;

    while (row + n < b->n_rows && !b->embeds[row + n] == !b->embeds[row]) n++;
    return n;
}

/* Part `part` (of hidden floats) of the encoder's rows to their places in x. */
static rd_status put_rows(struct model *m, const struct model_batch *b, uint32_t part, struct span x)
{
    const uint64_t hidden = m->config.hidden;
    rd_status st = RD_OK;

    for (uint32_t row = 0; st == RD_OK && row < b->n_rows; row++)
        if (b->embeds[row])
            st = m->ops->memory.write(m->be, span_add(x, row * hidden), b->embeds[row] + part * hidden,
                                      hidden * sizeof(float));
    return st;
}

struct pass pass_begin(struct model *m, struct kv_storage *kv, const struct model_batch *b)
{
    struct pass p = {.m = m,
                     .kv = kv,
                     .b = b,
                     .n_rows = b->n_rows,
                     .x = m->ws.x,
                     .q = m->ws.q,
                     .n_runs = b->n_runs,
                     .runs = b->runs};

    assert(b->n_rows >= 1 && b->n_rows <= m->max_rows && b->n_logits <= m->max_logits && b->n_logits <= b->n_rows);
    assert(b->n_hidden <= b->n_rows - b->n_logits);
    p.adapted = adapted_rows_of(&m->ws, b, NULL, b->n_rows);
    assert(kv->layout.n_layers + (b->windows.kv ? b->windows.kv->layout.n_layers : 0) == m->config.n_layers);
    assert(kv->layout.n_kv_heads == m->share.kv_heads.n);
    assert(kv->layout.head_dim == m->config.head_dim);
    p.st = m->ops->op.embed(m->be, &m->outer.embed, b->n_rows, b->tokens, m->config.embed_scale, p.x);
    if (p.st == RD_OK && b->embeds) p.st = put_rows(m, b, 0, p.x);
    return p;
}

void pass_deep(struct pass *p, uint32_t layer)
{
    struct model *m = p->m;
    const uint32_t hidden = m->config.hidden;
    const struct model_batch *b = p->b;
    uint32_t n;

    if (p->st != RD_OK || !b->embeds || layer >= m->config.n_deep) return;
    p->st = put_rows(m, b, 1 + layer, m->ws.delta);
    for (uint32_t row = 0; p->st == RD_OK && row < b->n_rows; row += n) {
        const uint64_t at = (uint64_t)row * hidden;

        n = count_alike(b, row);
        if (!b->embeds[row]) continue;
        p->st = m->ops->op.residual_norm(m->be, &(struct residual_norm_args){.n_rows = n,
                                                                             .width = hidden,
                                                                             .x = span_add(p->x, at),
                                                                             .delta = span_add(m->ws.delta, at),
                                                                             .eps = m->config.norm_eps});
    }
}

/* once: the state is read by the block that follows alone, in products. */
static rd_status add_and_norm(const struct pass *p, const struct weight *post_norm, const struct weight *norm,
                              bool once)
{
    struct model *m = p->m;
    const struct residual_norm_args a = {
        .n_rows = p->n_rows,
        .width = m->config.hidden,
        .x = p->x,
        .delta = p->has_delta ? m->ws.delta : span_none(),
        .delta_norm = p->has_delta ? post_norm : NULL,
        .norm = norm,
        .eps = m->config.norm_eps,
        .out = m->ws.norm,
        .once = once,
        .for_linear = once,
    };

    return m->ops->op.residual_norm(m->be, &a);
}

void pass_norm(struct pass *p, const struct weight *post_norm, const struct weight *norm)
{
    if (p->st == RD_OK && p->b->is_moot && p->m->ops->traits.interruptible && p->b->is_moot(p->b->moot_arg))
        p->st = RD_E_CANCELLED;
    if (p->st != RD_OK || p->n_rows == 0) return;
    p->st = add_and_norm(p, post_norm, norm, p->adapted.n == 0 && !p->b->embeds);
}

/* Where a layer's keys and values are. */
struct layer_place {
    struct kv_storage *kv;
    uint32_t layer; /* there */
    const kv_page *row_page;
    const struct seq_run *runs; /* of all rows */
};

static struct layer_place place_of(const struct pass *p, uint32_t layer)
{
    const struct model_windows *w = &p->b->windows;
    uint32_t n_global = w->kv ? model_n_global(&p->m->config, layer) : layer; /* before it */

    if (!w->kv || layer_is_global(&p->m->config, layer))
        return (struct layer_place){p->kv, n_global, p->b->row_page, p->b->runs};
    return (struct layer_place){w->kv, layer - n_global, w->row_page, w->runs};
}

/* q, k, v of all rows, and what is to be done with them: k and v go to the cache, q stays. */
static struct qkv_args project(struct pass *p, uint32_t layer, const struct attention_kind *kind,
                               const struct layer_place *at)
{
    struct model *m = p->m;
    const struct model_config *c = &m->config;
    const struct layer *w = &m->layers[layer];
    struct linear_args qkv = {
        .n_rows = p->n_rows,
        .x = m->ws.norm,
        .x_stride = c->hidden,
        .n_outs = 3,
        .outs = {{&w->wq, loaded(&w->bq), m->ws.q, q_width(m)},
                 {&w->wk, loaded(&w->bk), m->ws.k, kv_width(m)},
                 {&w->wv, loaded(&w->bv), m->ws.v, kv_width(m)}},
    };

    const struct adapt_args low = {.layer = layer,
                                   .first = ADAPT_Q,
                                   .n_outs = 3,
                                   .x = m->ws.norm,
                                   .outs = {m->ws.q, m->ws.k, m->ws.v},
                                   .n_in = c->hidden,
                                   .n_out = {q_width(m), kv_width(m), kv_width(m)}};

    if (p->st == RD_OK) p->st = linear_adapted(p, &low, q_width(m) > 0 ? &qkv : NULL);
    return (struct qkv_args){
        .n_rows = p->n_rows,
        .layer = at->layer,
        .n_heads = m->share.heads.n,
        .n_kv_heads = m->share.kv_heads.n,
        .head_dim = c->head_dim,
        .q = m->ws.q,
        .q_stride = q_width(m),
        .k = m->ws.k,
        .k_stride = kv_width(m),
        .v = m->ws.v,
        .v_stride = kv_width(m),
        .q_norm = loaded(&w->q_norm),
        .k_norm = loaded(&w->k_norm),
        .k_bias = loaded(&w->bk),
        .norm_eps = c->norm_eps,
        .positions = p->b->positions,
        .axes = p->b->rope_axes,
        .axis_of = m->rope_axis_of,
        .inv_freq = kind->inv_freq,
        .n_rot = c->n_rot,
        .rope_mscale = kind->mscale,
        .layout = c->rope_layout,
        .row_page = at->row_page,
        .row_slot = p->b->row_slot,
        .kv = at->kv,
        .once = layer != c->n_layers - 1,
    };
}

/* The rows that are wanted, logits first; true: all of them, in their order. */
static bool list_wanted_rows(const struct model_batch *b, uint32_t *rows)
{
    uint32_t n = 0;
    bool in_order = true;

    for (uint32_t i = 0; i < b->n_logits; i++) rows[n++] = b->logit_rows[i];
    for (uint32_t i = 0; i < b->n_hidden; i++) rows[n++] = b->hidden_rows[i];
    for (uint32_t i = 0; i < n; i++) in_order &= rows[i] == i;
    return in_order && n == b->n_rows;
}

/* From here on the pass has only the wanted rows; each is a run of its own, of those that runs was. */
static void keep_wanted_rows(struct pass *p, const struct seq_run *runs)
{
    struct model *m = p->m;
    const struct model_batch *b = p->b;
    uint32_t *rows = m->ws.rows_last, n = b->n_logits + b->n_hidden;

    if (list_wanted_rows(b, rows)) return;
    p->n_rows = n;
    if (n == 0) return;
    for (uint32_t i = 0; i < n; i++) {
        m->ws.runs_last[i] = runs[model_batch_run_of(b, rows[i])];
        m->ws.runs_last[i].row0 = i;
        m->ws.runs_last[i].n_rows = 1;
        m->ws.runs_last[i].pos0 = b->positions[rows[i]];
    }
    p->st = m->ops->op.gather(m->be, n, m->config.hidden, m->ws.x, rows, m->ws.x_last);
    if (p->st == RD_OK) p->st = m->ops->op.gather(m->be, n, q_width(m), m->ws.q, rows, m->ws.q_last);
    p->x = m->ws.x_last;
    p->q = m->ws.q_last;
    p->runs = m->ws.runs_last;
    p->n_runs = n;
    p->adapted = adapted_rows_of(&m->ws, b, rows, n);
}

void pass_attention(struct pass *p, uint32_t layer, const struct attention_kind *kind)
{
    struct model *m = p->m;
    const struct model_config *c = &m->config;
    const struct layer_place at = place_of(p, layer);
    const struct qkv_args qkv = project(p, layer, kind, &at);

    p->runs = at.runs;
    if (p->st == RD_OK && q_width(m) > 0) p->st = m->ops->op.qkv_rope_write(m->be, &qkv);
    if (p->st == RD_OK && layer == c->n_layers - 1) keep_wanted_rows(p, at.runs);
    if (p->st != RD_OK || p->n_rows == 0) return;

    struct attention_args a = {
        .n_rows = p->n_rows,
        .layer = at.layer,
        .n_heads = m->share.heads.n,
        .n_kv_heads = m->share.kv_heads.n,
        .head_dim = c->head_dim,
        .q = p->q,
        .q_stride = q_width(m),
        .out = m->ws.attn,
        .out_stride = q_width(m),
        .k_bias = loaded(&m->layers[layer].bk),
        .layout = c->rope_layout,
        .n_rot = c->n_rot,
        .scale = c->attn_scale,
        .softcap = c->attn_softcap,
        .window = kind->window,
        .n_runs = p->n_runs,
        .runs = p->runs,
        .kv = at.kv,
        .for_linear = p->adapted.n == 0 && !has_ranks(m),
    };
    const uint32_t width = c->n_heads * c->head_dim;
    const struct join_args join = join_for_product(p, m->share.q_ends, m->ws.attn, q_width(m));
    struct span heads;

    a.then = begun_with(p, &join);
    if (q_width(m) > 0) p->st = m->ops->op.attention(m->be, &a);
    heads = joined(p, &join);
    project_back(p, &m->layers[layer].wo, layer, ADAPT_O, heads, width);
}

/* act(gate n) * (up n) where rows have adapters: these come between the products and the rest. */
static rd_status adapted_glu(struct pass *p, uint32_t layer, const struct linear_glu_args *both)
{
    struct model *m = p->m;
    struct linear_args products = {
        .n_rows = both->n_rows,
        .x = both->x,
        .x_stride = both->x_stride,
        .n_outs = 2,
        .outs = {{both->gate, NULL, both->gate_out, m->share.ffn.n}, {both->up, NULL, both->up_out, m->share.ffn.n}}};
    const struct adapt_args low = {.layer = layer,
                                   .first = ADAPT_GATE,
                                   .n_outs = 2,
                                   .x = both->x,
                                   .outs = {both->gate_out, both->up_out},
                                   .n_in = m->config.hidden,
                                   .n_out = {m->share.ffn.n, m->share.ffn.n}};
    const rd_status st = linear_adapted(p, &low, &products);

    if (st != RD_OK) return st;
    return m->ops->op.glu(m->be, both->act, both->n_rows, m->share.ffn.n, both->gate_out, both->up_out, both->out);
}

void pass_mlp(struct pass *p, uint32_t layer)
{
    struct model *m = p->m;
    const struct model_config *c = &m->config;
    const struct layer *w = &m->layers[layer];
    const struct join_args join = join_for_product(p, m->share.ffn_ends, m->ws.gate, m->share.ffn.n);
    const struct linear_glu_args both = {p->n_rows, m->ws.norm, c->hidden, &w->gate,   &w->up,
                                         c->act,    m->ws.gate, m->ws.up,  m->ws.gate, begun_with(p, &join)};
    struct span inner;

    if (p->st != RD_OK || p->n_rows == 0) return;
    if (m->share.ffn.n > 0)
        p->st = p->adapted.n > 0 ? adapted_glu(p, layer, &both) : backend_linear_glu(m->ops, m->be, &both);
    inner = joined(p, &join);
    project_back(p, &w->down, layer, ADAPT_DOWN, inner, c->ffn);
}

static struct linear_args head_args(const struct model *m, uint32_t first, uint32_t n, struct span out)
{
    return (struct linear_args){
        .n_rows = n,
        .x = span_add(m->ws.norm, (uint64_t)first * m->config.hidden),
        .x_stride = m->config.hidden,
        .n_outs = 1,
        .outs = {{&m->outer.output, NULL, out, m->config.n_vocab}},
    };
}

/* x = cap(x) of this rank's columns. */
static rd_status cap_logits(struct model *m, uint32_t n, struct span out)
{
    const struct model_config *c = &m->config;
    rd_status st = RD_OK;

    if (!has_ranks(m)) return m->ops->op.softcap(m->be, out, (uint64_t)n * c->n_vocab, c->final_softcap);
    for (uint32_t i = 0; i < n && st == RD_OK; i++)
        st = m->ops->op.softcap(m->be, span_add(out, (uint64_t)i * c->n_vocab), m->share.vocab.n, c->final_softcap);
    return st;
}

/* Logits of n rows of ws.norm: to the device's own memory, or the caller's, of which a rank writes its columns (on a device
 * those of the others come, too). best: linear_args'. */
static rd_status head_logits(struct model *m, uint32_t first, uint32_t n, float *logits, float *best)
{
    const struct model_config *c = &m->config;
    const bool on_device = !span_is_none(m->ws.logits);
    struct span rows = on_device ? m->ws.logits : span_of_host(logits);
    struct span out = span_add(rows, m->share.vocab.first);
    struct linear_args head = head_args(m, first, n, out);
    struct join_args all;
    rd_status st = RD_OK;

    head.best = span_of_host(best);
    if (m->share.vocab.n > 0) st = m->ops->op.linear(m->be, &head);
    if (st == RD_OK && m->share.vocab.n > 0 && c->final_softcap > 0) st = cap_logits(m, n, out);
    if (st != RD_OK || !on_device || !has_ranks(m)) return st;
    all = join_of(m, n, m->share.vocab_ends, out, c->n_vocab, rows);
    return m->ops->op.join(m->be, &all);
}

bool pass_only_chooses(const struct model *m, const struct model_batch *b)
{
    if (!m->ops->op.linear_choose || span_is_none(m->ws.choices) || !b->choices || !b->unread ||
        m->config.final_softcap > 0 || has_ranks(m))
        return false;
    for (uint32_t i = 0; i < b->n_logits; i++) {
        const struct row_draw *d = &b->draws[i];

        if (!b->unread[i] || (d->temperature > 0 && !draw_is_local(d->temperature, d->min_p))) return false;
    }
    return true;
}

/* What is wanted of the rows: choices alone, or logits and choices. */
static rd_status head(struct model *m, const struct model_batch *b, float *logits)
{
    struct linear_args a = head_args(m, 0, b->n_logits, span_none());
    rd_status st = RD_E_UNSUPPORTED;

    if (pass_only_chooses(m, b)) st = m->ops->op.linear_choose(m->be, &a, b->draws, m->ws.choices);
    if (st != RD_E_UNSUPPORTED) return st;
    st = head_logits(m, 0, b->n_logits, logits, b->best);
    if (st != RD_OK || !b->choices || span_is_none(m->ws.choices)) return st;
    return m->ops->op.choose(m->be, b->n_logits, m->config.n_vocab, m->ws.logits, b->draws, m->ws.choices);
}

/* Rows of logits from the device, neighbours together; unread NULL: all n. logits NULL: they are another rank's to read. */
static rd_status copy_logits(struct model *m, uint32_t n, const bool *unread, float *logits)
{
    uint64_t width = m->config.n_vocab;
    rd_status st = RD_OK;

    if (span_is_none(m->ws.logits) || !logits) return RD_OK;
    for (uint32_t i = 0, end; i < n && st == RD_OK; i = end + 1) {
        for (end = i; end < n && !(unread && unread[end]);) end++; /* row end is unread, or there is none */
        if (end > i)
            st = m->ops->memory.read(m->be, logits + i * width, span_add(m->ws.logits, i * width),
                                     (end - i) * width * sizeof(float));
    }
    return st;
}

rd_status pass_send(struct model *m, const struct model_batch *b, float *logits)
{
    const uint64_t row_bytes = m->config.hidden * sizeof(float);
    rd_status st = RD_OK;

    if (b->states && b->n_logits > 0) st = m->ops->memory.read(m->be, b->states, m->ws.norm, b->n_logits * row_bytes);
    if (st == RD_OK && b->n_hidden > 0 && b->hidden)
        st = m->ops->memory.read(m->be, b->hidden, span_add(m->ws.norm, (uint64_t)b->n_logits * m->config.hidden),
                                 b->n_hidden * row_bytes);
    if (st == RD_OK) st = copy_logits(m, b->n_logits, b->choices ? b->unread : NULL, logits);
    if (st == RD_OK && b->choices && !span_is_none(m->ws.choices) && b->n_logits > 0)
        st = m->ops->memory.read(m->be, b->choices, m->ws.choices, b->n_logits * sizeof(*b->choices));
    return st;
}

rd_status pass_deliver(struct model *m, const struct model_batch *b, float *logits)
{
    rd_status st = pass_send(m, b, logits);

    return st != RD_OK ? st : m->ops->memory.sync(m->be);
}

rd_status pass_logits(struct pass *p, const struct weight *post_norm, float *logits)
{
    struct model *m = p->m;
    const struct model_batch *b = p->b;

    if (p->st == RD_OK && p->n_rows > 0) p->st = add_and_norm(p, post_norm, &m->outer.output_norm, false);
    if (p->st == RD_OK && b->n_logits > 0) p->st = head(m, b, logits);
    return p->st != RD_OK || m->is_launching ? p->st : pass_deliver(m, b, logits);
}

/* Logits of n rows of ws.norm, to the host. */
static rd_status read_head(struct model *m, uint32_t first, uint32_t n, float *logits)
{
    rd_status st = head_logits(m, first, n, logits, NULL);

    if (st == RD_OK) st = copy_logits(m, n, NULL, logits);
    return st != RD_OK ? st : m->ops->memory.sync(m->be);
}

rd_status pass_head(struct model *m, uint32_t n, const float *const *states, float *logits)
{
    uint32_t width = m->config.hidden;
    rd_status st = RD_OK;

    assert(n >= 1 && n <= m->max_logits && n <= m->max_rows);
    for (uint32_t i = 0; i < n && st == RD_OK; i++)
        st = m->ops->memory.write(m->be, span_add(m->ws.norm, (uint64_t)i * width), states[i], width * sizeof(float));
    return st != RD_OK ? st : read_head(m, 0, n, logits);
}

rd_status pass_head_of_pass(struct model *m, uint32_t first, uint32_t n, float *host, struct span *out)
{
    assert(n >= 1 && n <= m->max_logits && first + n <= m->max_rows);
    *out = span_is_none(m->ws.logits) ? span_of_host(host) : m->ws.logits;
    return head_logits(m, first, n, host, NULL);
}

rd_status pass_read_logits(struct model *m, uint32_t row, float *logits)
{
    return read_head(m, row, 1, logits);
}

struct attention_kind attention_global(const struct model *m)
{
    return (struct attention_kind){&m->inv_freq, m->rope_mscale, 0};
}

bool layer_is_global(const struct model_config *c, uint32_t layer)
{
    return c->window == 0 || (layer + 1) % c->window_pattern == 0;
}

uint32_t model_n_global(const struct model_config *c, uint32_t n)
{
    return c->window == 0 ? n : n / c->window_pattern;
}

/* One part of the workspace: rows * width floats at the running offset, each part aligned to 64 bytes. */
static bool place(uint64_t *end, uint32_t rows, uint32_t width, uint64_t *at)
{
    uint64_t bytes;

    *at = *end;
    return checked_mul((uint64_t)rows * width, sizeof(float), &bytes) && checked_add(*end, bytes, end) &&
           checked_align(*end, 64, end);
}

rd_status workspace_init(struct model *m)
{
    const struct model_config *c = &m->config;
    struct workspace *ws = &m->ws;
    const uint32_t low = m->ops->op.low_rank ? 3 * ADAPTER_MIX_RANKS : 0;
    const uint32_t wide = has_ranks(m) ? u32_max(c->ffn, c->n_heads * c->head_dim) : 0;
    const uint32_t part = has_ranks(m) ? m->share.hidden.n : 0;
    struct {
        struct span *out;
        uint32_t rows, width;
        uint64_t at;
    } parts[] = {
        {&ws->x, m->max_rows, c->hidden, 0},         {&ws->norm, m->max_rows, c->hidden, 0},
        {&ws->delta, m->max_rows, c->hidden, 0},     {&ws->q, m->max_rows, q_width(m), 0},
        {&ws->attn, m->max_rows, q_width(m), 0},     {&ws->k, m->max_rows, kv_width(m), 0},
        {&ws->v, m->max_rows, kv_width(m), 0},       {&ws->gate, m->max_rows, m->share.ffn.n, 0},
        {&ws->up, m->max_rows, m->share.ffn.n, 0},   {&ws->x_last, m->max_rows, c->hidden, 0},
        {&ws->q_last, m->max_rows, q_width(m), 0},   {&ws->low_rank, m->max_rows, low, 0},
        {&ws->joined, m->max_rows, wide, 0},         {&ws->part, m->max_rows, part, 0},
        {&ws->logits, m->max_logits, c->n_vocab, 0},
    };
    const size_t n_parts =
        sizeof(parts) / sizeof(parts[0]) - m->ops->traits.shares_memory; /* the logits are the last */
    uint64_t n_bytes = 0, at_choices;
    rd_status st;

    for (size_t i = 0; i < n_parts; i++)
        if (!place(&n_bytes, parts[i].rows, parts[i].width, &parts[i].at)) return RD_E_NOMEM;
    ws->runs_last = mem_zalloc(m->max_rows, sizeof(*ws->runs_last));
    ws->rows_last = mem_zalloc(m->max_rows, sizeof(*ws->rows_last));
    ws->terms = mem_zalloc((size_t)m->max_rows * 3 * ADAPTER_MIX_MAX, sizeof(*ws->terms));
    ws->adapted_groups = mem_zalloc(m->max_rows, sizeof(*ws->adapted_groups));
    ws->adapted_rows = mem_zalloc(m->max_rows, sizeof(*ws->adapted_rows));
    if (!ws->runs_last || !ws->rows_last || !ws->terms || !ws->adapted_groups || !ws->adapted_rows) return RD_E_NOMEM;
    if (!place(&n_bytes, m->max_logits, sizeof(struct row_choice) / sizeof(float), &at_choices)) return RD_E_NOMEM;
    st = m->ops->memory.alloc(m->be, n_bytes, &ws->memory);
    if (st != RD_OK) return st;
    ws->n_bytes = n_bytes;
    for (size_t i = 0; i < n_parts; i++) *parts[i].out = span_of(ws->memory, parts[i].at);
    if (m->ops->op.choose) ws->choices = span_of(ws->memory, at_choices);
    return padded_step_create(m);
}

void workspace_deinit(struct model *m)
{
    padded_step_destroy(m);
    if (m->ws.memory) m->ops->memory.free(m->be, m->ws.memory);
    mem_free(m->ws.runs_last);
    mem_free(m->ws.rows_last);
    mem_free(m->ws.terms);
    mem_free(m->ws.adapted_groups);
    mem_free(m->ws.adapted_rows);
    memset(&m->ws, 0, sizeof(m->ws));
}
