/* model/decode_step.c - a forward pass; where every sequence has one row, as a graph that the backend recorded.
 *
 * Recorded graphs have few numbers of rows: 1, 2, 4, then multiples of 8, above 64 of 16, above 128 of 32. A step
 * between them is filled up with padding rows: token 0 at position 0, with the page beyond the pool to itself, and a run
 * of no rows, so that nothing is attended for it. Rows do not depend on each other, so that the bits stay the same.
 *
 * Warming up: while nobody waits, graphs are recorded of steps that are padding except for one row, which reads and writes
 * the padding's page, at the last position that its length allows. All of them use the one workspace and the same places
 * of the metadata, so that many cost little memory.
 */
#include <assert.h>
#include <string.h>
#include "backend/compose.h"
#include "backend/ranks.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/blocks.h"

#define WARM_UP_MOST  192u           /* graphs: others are left room for */
#define WARM_UP_SPARE (512ull << 20) /* device memory that stays free */
#define LEAST_RANKS   16u            /* ADAPTER_MIX_RANKS is this times a power of two */

struct padded_step {
    uint32_t max_rows;
    bool any_rows;           /* backend_async's */
    kv_page padding;         /* the page of padding rows */
    struct model_batch rows; /* whose arrays stay where they are */
    uint32_t *from;
    kv_page *window_page; /* [max_rows] of layers that have their keys and values in windows; likewise: */
    struct seq_run *window_runs;
    kv_page window_padding;
    struct low_rank_row *adapted; /* [max_rows]; NULL: the backend reads no tables of adapters */
    struct warm_up {
        bool begun, loaded;      /* loaded: the next ran once, which loads its kernels; now it is recorded */
        uint32_t n_rows, length; /* of the next; n_rows 0: none is left */
        uint32_t n_done;
        uint64_t ns;
        kv_page *table, *window_table; /* the padding's page all the way */
    } warm;
};

void padded_step_destroy(struct model *m)
{
    struct padded_step *p = m->ws.padded;

    if (!p) return;
    model_batch_deinit(&p->rows);
    mem_free(p->from);
    mem_free(p->window_page);
    mem_free(p->window_runs);
    mem_free(p->adapted);
    mem_free(p->warm.table);
    mem_free(p->warm.window_table);
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
    p->any_rows = m->ops->async->any_rows;
    p->from = mem_zalloc(n, sizeof(*p->from));
    p->window_page = mem_zalloc(n, sizeof(*p->window_page));
    p->window_runs = mem_zalloc(n, sizeof(*p->window_runs));
    if (!p->from || !p->window_page || !p->window_runs) return RD_E_NOMEM;
    if (m->ops->op.low_rank_rows && !(p->adapted = mem_zalloc(n, sizeof(*p->adapted)))) return RD_E_NOMEM;
    if (model_batch_init(&p->rows, (struct model_batch_room){n, n, n, 0}) != RD_OK) return RD_E_NOMEM;
    for (uint32_t i = 0; i < n; i++) p->rows.logit_rows[i] = i;
    return RD_OK;
}

/* Rows of the graph for n rows; 0: none is wide enough. */
static uint32_t padded_rows(const struct padded_step *p, uint32_t n)
{
    uint32_t step = n <= 64 ? MODEL_PAD_ROWS : n <= 128 ? 2 * MODEL_PAD_ROWS : 4 * MODEL_PAD_ROWS;
    uint32_t padded = p->any_rows || n <= 2 ? n : n <= 4 ? 4 : u32_ceil_div(n, step) * step;

    if (padded > p->max_rows) padded = u32_ceil_div(n, MODEL_PAD_ROWS) * MODEL_PAD_ROWS;
    return padded <= p->max_rows ? padded : n <= p->max_rows ? n : 0;
}

/* Every sequence one row, whose logits are wanted, in order; with adapters where graphs find them. */
static bool is_decode(const struct padded_step *p, const struct model_batch *b)
{
    if (b->n_runs != b->n_rows || b->n_logits != b->n_rows || b->n_hidden > 0 || b->rope_axes || b->embeds ||
        (b->n_adapted > 0 && !p->adapted))
        return false;
    for (uint32_t i = 0; i < b->n_rows; i++)
        if (b->logit_rows[i] != i || b->runs[i].row0 != i || b->runs[i].n_rows != 1) return false;
    return true;
}

/* Which adapters the rows have. Ranks are rounded up, so that few kinds of steps differ by them. */
static void fill_adapted(const struct model *m, struct padded_step *p, const struct model_batch *b, uint32_t n)
{
    p->rows.n_adapted = b->n_adapted;
    p->rows.adapted = b->n_adapted > 0 ? p->adapted : NULL;
    p->rows.most_ranks = LEAST_RANKS;
    for (uint32_t i = 0; i < n && b->n_adapted > 0; i++) {
        uint32_t n_ranks = adapter_mix_row(m, i < b->n_rows ? b->adapters[i] : NULL, &p->adapted[i]);

        while (p->rows.most_ranks < n_ranks) p->rows.most_ranks *= 2;
    }
}

/* Padding has a page beyond the windows, too. */
static struct model_windows fill_windows(struct padded_step *p, const struct model_batch *b, uint32_t n)
{
    const struct model_windows *w = &b->windows;

    if (!w->kv) return *w;
    p->window_padding = w->kv->n_pages;
    for (uint32_t i = 0; i < n; i++) {
        const bool is_real = i < b->n_rows;

        p->window_page[i] = is_real ? w->row_page[i] : p->window_padding;
        p->window_runs[i] = is_real ? w->runs[i] : (struct seq_run){i, 0, 0, &p->window_padding, 0, 0};
    }
    return (struct model_windows){w->kv, p->window_page, p->window_runs};
}

/* b's rows at arrays that stay where they are, then padding. */
static struct model_batch fill_step(const struct model *m, const struct kv_storage *kv, const struct model_batch *b,
                                    uint32_t n)
{
    struct padded_step *p = m->ws.padded;
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
        s->runs[i] = is_real ? b->runs[i] : (struct seq_run){i, 0, 0, &p->padding, 0, 0};
    }
    s->windows = fill_windows(p, b, n);
    s->n_rows = s->n_runs = s->n_logits = n;
    s->choices = b->choices;
    fill_adapted(m, p, b, n);
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
    struct model_batch step = fill_step(m, kv, b, n);
    enum graph_action action = GRAPH_PLAIN;
    struct graph_step g = {.owner = graph_owner(m, &step),
                           .n_rows = n,
                           .tokens = step.tokens,
                           .positions = step.positions,
                           .row_page = step.row_page,
                           .row_slot = step.row_slot,
                           .runs = step.runs,
                           .draws = b->choices ? step.draws : NULL,
                           .kv = kv,
                           .windows = step.windows.kv,
                           .window_page = step.windows.row_page,
                           .window_runs = step.windows.runs,
                           .choices = span_none(),
                           .adapted = step.adapted,
                           .most_ranks = step.most_ranks};
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

    assert(n > 0 && is_decode(m->ws.padded, b) && b->choices);
    st = launch(m, kv, b, n, from);
    if (st == RD_OK) st = pass_send(m, b, NULL);
    return st == RD_OK ? m->ops->async->mark(m->be) : st;
}

rd_status decode_step_forward(struct model *m, struct kv_storage *kv, const struct model_batch *b, float *logits)
{
    uint32_t n = m->ws.padded && is_decode(m->ws.padded, b) ? padded_rows(m->ws.padded, b->n_rows) : 0;
    rd_status st;

    if (n == 0) return m->arch->forward(m, kv, b, logits);
    st = launch(m, kv, b, n, NULL);
    return st == RD_OK ? pass_deliver(m, b, logits) : st;
}

/* ---- warming up ---- */

/* The number of rows before n. */
static uint32_t fewer_rows(const struct padded_step *p, uint32_t n)
{
    uint32_t fewer = n - 1;

    while (fewer > 0 && padded_rows(p, fewer) == n) fewer--;
    return fewer > 0 ? padded_rows(p, fewer) : 0;
}

/* Tokens that a sequence can have at most: as the model was trained, as the pages hold. */
static uint32_t longest(const struct model *m, const struct kv_storage *kv)
{
    return (uint32_t)u64_min(m->config.n_ctx_train, (uint64_t)kv->n_pages * kv->layout.page_tokens);
}

static kv_page *padding_table(const struct kv_storage *kv, uint32_t n)
{
    kv_page *table = mem_alloc(n, sizeof(*table));

    for (uint32_t i = 0; table && i < n; i++) table[i] = kv->n_pages;
    return table;
}

static void begin_warm_up(struct model *m, const struct kv_storage *kv, const struct kv_storage *windows)
{
    struct padded_step *p = m->ws.padded;
    uint32_t n = longest(m, kv) / kv->layout.page_tokens + 1;

    p->warm = (struct warm_up){.begun = true, .length = GRAPH_LEAST_END, .table = padding_table(kv, n)};
    if (windows) p->warm.window_table = padding_table(windows, n);
    p->warm.n_rows = padded_rows(p, p->max_rows);
}

/* The next length of these rows, as far as the pages could hold that many sequences of half of it; else fewer rows. */
static void next_warm_up(struct model *m, const struct kv_storage *kv)
{
    struct warm_up *w = &m->ws.padded->warm;
    uint64_t n_tokens = (uint64_t)kv->n_pages * kv->layout.page_tokens;

    w->length *= 2;
    if (w->length / 2 < longest(m, kv) && (uint64_t)w->n_rows * w->length / 2 <= n_tokens) return;
    w->length = GRAPH_LEAST_END;
    w->n_rows = fewer_rows(m->ws.padded, w->n_rows);
}

static rd_status warm_up_step(struct model *m, struct kv_storage *kv, struct kv_storage *windows)
{
    struct padded_step *p = m->ws.padded;
    const struct warm_up *w = &p->warm;
    uint32_t position = u32_min(w->length, longest(m, kv)) - 1, logit_row = 0, slot = 0;
    kv_page page = kv->n_pages, window = windows ? windows->n_pages : KV_NO_PAGE;
    int32_t token = 0;
    bool unread = true;
    struct row_draw draw = {0};
    struct row_choice choice;
    struct seq_run run = {0, 1, position, w->table, 0, 0}, window_run = {0, 1, position, w->window_table, 0, 0};
    struct model_batch b = {.n_rows = 1,
                            .tokens = &token,
                            .positions = &position,
                            .row_page = &page,
                            .row_slot = &slot,
                            .n_runs = 1,
                            .runs = &run,
                            .windows = {windows, &window, &window_run},
                            .n_logits = 1,
                            .logit_rows = &logit_row,
                            .choices = &choice,
                            .draws = &draw,
                            .unread = &unread};
    rd_status st = launch(m, kv, &b, w->n_rows, NULL);

    return st == RD_OK ? m->ops->memory.sync(m->be) : st;
}

/* Whether there is memory for another graph, with every rank: each has graphs of the same steps. */
static rd_status have_room(struct model *m, bool has_windows, bool *yes)
{
    const struct warm_up *w = &m->ws.padded->warm;
    const bool own =
        w->table && (!has_windows || w->window_table) && backend_free_bytes(m->ops, m->be) >= WARM_UP_SPARE;
    const void *all[RANKS_MAX];
    rd_status st;

    *yes = own;
    if (m->share.n_ranks == 1) return RD_OK;
    st = rank_group_meet(m->group, m->share.rank, &own, all);
    for (uint32_t i = 0; st == RD_OK && i < m->share.n_ranks; i++) *yes &= *(const bool *)all[i];
    /* until all have read it */
    return st == RD_OK ? rank_group_meet(m->group, m->share.rank, NULL, all) : st;
}

rd_status decode_step_warm_up(struct model *m, struct kv_storage *kv, struct kv_storage *windows)
{
    struct warm_up *w = &m->ws.padded->warm;
    uint64_t begin = clock_now_ns(clock_system());
    bool has_room = false;
    rd_status st = RD_OK;

    if (m->ws.padded->any_rows) return RD_OK; /* nothing is recorded */
    if (!w->begun) begin_warm_up(m, kv, windows);
    if (w->n_rows == 0) return RD_OK;
    if (w->n_done < WARM_UP_MOST) st = have_room(m, windows != NULL, &has_room);
    if (st == RD_OK && has_room) st = warm_up_step(m, kv, windows);
    if (st != RD_OK || !has_room) {
        w->n_rows = 0;
    } else if (!w->loaded) {
        w->loaded = true;
    } else {
        w->loaded = false;
        w->n_done++;
        next_warm_up(m, kv);
    }
    w->ns += clock_now_ns(clock_system()) - begin;
    if (w->n_rows == 0)
        log_info("warmed up: %u kinds of decode steps recorded in %.1f s", w->n_done, (double)w->ns * 1e-9);
    return st == RD_OK && w->n_rows > 0 ? RD_E_AGAIN : st;
}
