/* engine/executors/rank_pages.c - pages put together from the ranks' heads. */
#include <string.h>
#include "engine/executors/rank_inside.h"

static rd_status copy_one(struct rank *r, const void *arg)
{
    const struct page_job *job = arg;

    if (r->share.kv_heads.n > 0) r->x->copy_rows(r->x->self, job->to, job->from, job->n_rows);
    return RD_OK;
}

static rd_status run_pages(struct rank_executor *all, job_fn fn, struct page_job job)
{
    if (all->is_dead) return RD_E_DEVICE;
    all->page = job;
    return ranks_run(all, fn, &all->page);
}

static void copy_rows(void *self, kv_page to, kv_page from, uint32_t n_rows)
{
    /* a copy that failed is told by the next pass; so is a dead executor */
    run_pages(self, copy_one, (struct page_job){.to = to, .from = from, .n_rows = n_rows});
}

/* The rank's heads between a whole page's bytes and its own, of one of the two memories. */
static void move_heads(const struct rank *r, const struct kv_storage *whole, const struct kv_storage *own, uint8_t *all,
                       uint8_t *part, bool out)
{
    const struct kv_layout *l = &whole->layout;

    for (uint32_t i = 0; i < l->n_layers * 2 * r->share.kv_heads.n; i++) {
        const uint32_t layer = i / (2 * r->share.kv_heads.n), which = i / r->share.kv_heads.n % 2;
        const uint32_t at = i % r->share.kv_heads.n, kv_head = r->share.kv_heads.first + at;
        const uint64_t n = whole->row_bytes[which] * l->page_tokens;
        uint8_t *there = all + kv_head_offset(whole, layer, which, kv_head);
        uint8_t *here = part + kv_head_offset(own, layer, which, at);

        if (!out)
            memcpy(here, there, n);
        else if (model_share_owner(&r->all->config, r->all->n, kv_head) == r->index)
            memcpy(there, here, n);
    }
}

/* Both memories, and the word behind them. */
static void move_page(const struct rank *r, uint8_t *all, bool out)
{
    const struct model_executor *m = model_executor_of(r->x);
    const struct kv_storage *pages = &r->all->pages, *windows = &r->all->windows;

    move_heads(r, pages, &m->kv, all, r->page, out);
    if (!m->window) return;
    move_heads(r, windows, &m->windows, all + pages->page_bytes, r->page + m->kv.page_bytes, out);
    if (out && r->index > 0) return; /* all say the same */
    if (out)
        memcpy(all + pages->page_bytes + windows->page_bytes, r->page + m->kv.page_bytes + m->windows.page_bytes,
               sizeof(uint64_t));
    else
        memcpy(r->page + m->kv.page_bytes + m->windows.page_bytes, all + pages->page_bytes + windows->page_bytes,
               sizeof(uint64_t));
}

static rd_status page_out_one(struct rank *r, const void *arg)
{
    const struct page_job *job = arg;
    rd_status st = RD_OK;

    if (r->share.kv_heads.n == 0) return RD_OK;
    st = r->x->page_out(r->x->self, job->from, r->page);
    if (st == RD_OK) move_page(r, job->out, true);
    return st;
}

static rd_status page_in_one(struct rank *r, const void *arg)
{
    const struct page_job *job = arg;

    if (r->share.kv_heads.n == 0) return RD_OK;
    move_page(r, (uint8_t *)job->in, false);
    return r->x->page_in(r->x->self, job->to, r->page);
}

static rd_status page_out(void *self, kv_page id, void *to)
{
    return run_pages(self, page_out_one, (struct page_job){.from = id, .out = to});
}

static rd_status page_in(void *self, kv_page id, const void *from)
{
    return run_pages(self, page_in_one, (struct page_job){.to = id, .in = from});
}

/* ---- pages beside the steps ----
 *
 * In host memory a page is rank 0's heads of all layers, then rank 1's ..; its window likewise; and the word. Ranks that have the
 * same head have one place for it, which one of them fills. The engine's thread gives the copies to all devices. */

static struct page_places places_of(const struct rank *r)
{
    const struct kv_storage *pages = &r->all->pages, *windows = &r->all->windows;
    const uint64_t first = r->share.kv_heads.first, n = pages->layout.n_kv_heads;

    return (struct page_places){first * (pages->page_bytes / n), pages->page_bytes + first * (windows->page_bytes / n),
                                pages->page_bytes + windows->page_bytes};
}

static bool moves(const struct rank *r, bool out)
{
    if (r->share.kv_heads.n == 0) return false;
    return !out || model_share_owner(&r->all->config, r->all->n, r->share.kv_heads.first) == r->index;
}

/* Rank 0 last: whose device is this thread's then. The first n_ranks of this order. */
static struct rank *mover(struct rank_executor *all, uint32_t i)
{
    return &all->ranks[all->n - 1 - i];
}

/* RD_E_AGAIN of one counts if none has failed; after an error nothing of any is under way. */
static rd_status end_moves(struct rank_executor *all, bool out, const uint64_t tickets[RANKS_MAX], uint32_t n_ranks,
                           bool wait)
{
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < n_ranks; i++) {
        struct rank *r = mover(all, i);
        rd_status one;

        if (!moves(r, out)) continue;
        one = r->x->move_end(r->x->self, out, tickets[r->index], wait);
        if (one != RD_OK && (st == RD_OK || st == RD_E_AGAIN)) st = one;
    }
    if (st == RD_OK || st == RD_E_AGAIN || wait) return st;
    end_moves(all, out, tickets, n_ranks, true);
    return st;
}

static rd_status move_begin(void *self, bool out, uint32_t n, const kv_page *ids, void *const *host, uint64_t *ticket)
{
    struct rank_executor *all = self;
    struct moves *m = &all->moves[out];
    uint64_t *tickets = m->tickets[m->n_begun % N_MOVES];
    rd_status st = all->is_dead ? RD_E_DEVICE : RD_OK;

    if (st == RD_OK && m->n_begun - m->n_done == N_MOVES) { /* the ring is full: the first of it */
        st = end_moves(all, out, tickets, all->n, true);
        m->n_done++;
    }
    for (uint32_t i = 0; i < all->n && st == RD_OK; i++) {
        struct rank *r = mover(all, i);
        const struct page_places at = places_of(r);

        tickets[r->index] = 0;
        if (moves(r, out))
            st = model_executor_move(model_executor_of(r->x), &at, out, n, ids, host, &tickets[r->index]);
        if (st != RD_OK) end_moves(all, out, tickets, i, true);
    }
    if (st == RD_OK) *ticket = ++m->n_begun;
    return st;
}

static rd_status move_end(void *self, bool out, uint64_t ticket, bool wait)
{
    struct rank_executor *all = self;
    struct moves *m = &all->moves[out];
    rd_status st;

    if (all->is_dead) return RD_E_DEVICE;
    if (ticket <= m->n_done) return RD_OK;
    st = end_moves(all, out, m->tickets[(ticket - 1) % N_MOVES], all->n, wait);
    if (st != RD_E_AGAIN) m->n_done = ticket;
    return st;
}

static void use_windows(void *self, const uint32_t *of)
{
    struct rank_executor *all = self;

    for (uint32_t i = 0; i < all->n; i++) all->ranks[i].x->use_windows(all->ranks[i].x->self, of);
}

static bool differs(void *self, kv_page a, kv_page b, uint32_t n_rows, struct page_difference *where)
{
    struct rank_executor *all = self;

    for (uint32_t i = 0; i < all->n; i++) {
        struct rank *r = &all->ranks[i];

        if (r->share.kv_heads.n == 0 || !r->x->differs(r->x->self, a, b, n_rows, where)) continue;
        where->kv_head += r->share.kv_heads.first;
        return true;
    }
    return false;
}

void ranks_show_pages(struct rank_executor *all)
{
    const struct executor *x = all->ranks[0].x;
    struct executor *face = &all->face;

    face->copy_rows = copy_rows;
    face->use_windows = x->use_windows ? use_windows : NULL;
    face->move_begin = move_begin;
    face->move_end = move_end;
    face->page_out = page_out;
    face->page_in = page_in;
    face->page_bytes = all->pages.page_bytes + (x->window ? all->windows.page_bytes + sizeof(uint64_t) : 0);
    face->differs = x->differs ? differs : NULL;
}
