/* engine/executors/rank_executor.c - one job at a time, done by all ranks; pages put together from their heads. */
#include "engine/executors/rank_executor.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "backend/ranks.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "engine/executors/model_executor.h"
#include "model/adapter.h"
#include "model/share.h"

#define SPINS        2000u       /* about 50 us */
#define DONE_WAIT_NS 1000000000u /* a slice of a wait */
#define N_MOVES      64u
#define N_AHEAD      2u /* steps that are begun and not ended */

struct rank {
    struct rank_executor *all;
    uint32_t index;
    struct thread thread; /* of all but rank 0 */
    bool started;
    struct executor *x;
    struct executor_traits traits;
    struct model_share share;
    rd_status st; /* of the last job */
    struct rd_error err;
    void *results; /* mapped and pinned: choices, states, page */
    uint64_t results_bytes;
    float *states;                       /* [max_logits, hidden] to compare; of rank 0: where nobody else wants them */
    struct row_choice *choices[N_AHEAD]; /* [max_logits] likewise, of steps by turns; rank 0's are the engine's */
    uint8_t *page;                       /* its part of one */
};

/* A job is the executor's own memory: a rank that does not come back in time may still be reading it. */
struct pass_job {
    struct model_batch batch;
    uint32_t n;
    const float *const *states;
    float *logits;
    const uint32_t *from; /* of begin */
    uint32_t turn;        /* whose choices: of begin and end */
};

struct page_job {
    kv_page to, from;
    uint32_t n_rows;
    uint8_t *out; /* a whole page's bytes; or: */
    const uint8_t *in;
};

typedef rd_status (*job_fn)(struct rank *r, const void *arg);

struct rank_executor {
    struct executor face;
    uint32_t n;
    struct rank ranks[RANKS_MAX];
    struct rank_group *group;
    const struct executor_options *o; /* while it is opened */
    rd_status (*fault)(void *arg, uint32_t rank);
    void *fault_arg;
    uint64_t patience_ns;
    struct model_config config;
    struct kv_storage pages, windows; /* how the bytes of a whole page lie; no memory */
    /* The job of the other threads: written under lock. */
    struct mutex lock;
    struct cond begun, done;
    job_fn job;
    const void *arg; /* one of these: */
    struct pass_job pass;
    struct page_job page;
    uint32_t n_begun, n_done; /* jobs; ranks that are done with the last one */
    /* Steps that are not waited for: [n_ended, n_ahead), what rank 0 was given of each. */
    uint32_t n_ahead, n_ended;
    struct {
        const struct row_choice *choices;
        uint32_t n;
    } ahead[N_AHEAD];
    bool stop, is_dead;
    struct moves {
        uint64_t tickets[N_MOVES][RANKS_MAX]; /* of the last N_MOVES, by rank */
        uint64_t n_begun, n_done;             /* tickets of its own; of the first n_done it is known */
    } moves[2];                               /* to the devices, to the host */
};

/* ---- jobs ---- */

static void do_jobs(void *arg)
{
    struct rank *r = arg;
    struct rank_executor *all = r->all;
    uint32_t seen = 0;
    const void *what;
    job_fn job;

    mutex_lock(&all->lock);
    for (;;) {
        while (all->n_begun == seen && !all->stop) cond_wait(&all->begun, &all->lock); /* close sets stop */
        if (all->stop) break;
        seen = all->n_begun;
        job = all->job;
        what = all->arg;
        mutex_unlock(&all->lock);
        r->st = job(r, what);
        mutex_lock(&all->lock);
        all->n_done++;
        cond_signal(&all->done);
    }
    mutex_unlock(&all->lock);
}

/* Waits for the other ranks; false: one of them did not come back in time. A stop of the whole process is one slice. */
static bool wait_for_all(struct rank_executor *all)
{
    uint64_t waited = 0;

    while (all->n_done < all->n - 1 && waited < 2 * all->patience_ns)
        if (!cond_wait_ns(&all->done, &all->lock, u64_min(DONE_WAIT_NS, all->patience_ns)))
            waited += u64_min(DONE_WAIT_NS, all->patience_ns);
    return all->n_done == all->n - 1;
}

/* fn by every rank, rank 0 in this thread. As wait_for_all. */
static bool do_job(struct rank_executor *all, job_fn fn, const void *arg)
{
    bool came_back;

    mutex_lock(&all->lock);
    all->job = fn;
    all->arg = arg;
    all->n_done = 0;
    all->n_begun++;
    cond_broadcast(&all->begun);
    mutex_unlock(&all->lock);
    all->ranks[0].st = fn(&all->ranks[0], arg);
    mutex_lock(&all->lock);
    came_back = wait_for_all(all);
    mutex_unlock(&all->lock);
    return came_back;
}

/* A job for all: what one of them could not do; a device's error before others. */
static rd_status run_all(struct rank_executor *all, job_fn fn, const void *arg)
{
    rd_status st = RD_OK;
    uint32_t lost = 0;
    bool came_back;

    if (all->is_dead) return RD_E_DEVICE;
    came_back = do_job(all, fn, arg);
    if (rank_group_has_lost(all->group, &lost) || !came_back) {
        if (lost)
            log_error("rank %u of %u did not come to a meeting of the ranks in time", lost, all->n);
        else
            log_error("a rank of %u did not come back in time", all->n);
        rank_group_leave(all->group, RD_E_DEVICE); /* devices that wait in a join end, too */
        all->is_dead = true;
        return RD_E_DEVICE;
    }
    for (uint32_t i = 0; i < all->n; i++)
        if (st == RD_OK || all->ranks[i].st == RD_E_DEVICE) st = all->ranks[i].st;
    if (st != RD_OK && all->face.crosses_bus) { /* joins of devices do not go on after one that was given up */
        log_error("a rank of %u GPUs could not go on: none of them can", all->n);
        all->is_dead = true;
        return RD_E_DEVICE;
    }
    rank_group_reset(all->group);
    return st;
}

/* ---- passes ---- */

/* Nobody waits for a rank that cannot go on. */
static rd_status leave(struct rank *r, rd_status st)
{
    if (st != RD_OK) rank_group_leave(r->all->group, st);
    return st;
}

/* On a CPU all ranks write their columns there; from devices rank 0 reads all of them. */
static float *logits_of(const struct rank *r, const struct pass_job *job)
{
    return r->index > 0 && r->x->crosses_bus ? NULL : job->logits;
}

static rd_status forward_one(struct rank *r, const void *arg)
{
    struct rank_executor *all = r->all;
    const struct pass_job *job = arg;
    struct model_batch b = job->batch;
    rd_status st = all->fault ? all->fault(all->fault_arg, r->index) : RD_OK;
    uint32_t lost;

    if (rank_group_has_lost(all->group, &lost)) return RD_E_DEVICE; /* the pass is over: its batch is somebody else's */
    if (r->index > 0) {                                             /* rank 0 asks, and says what there is to say */
        b.is_moot = NULL;
        b.hidden = NULL;
        b.states = r->states;
        if (b.choices) b.choices = r->choices[0];
    } else if (!b.states) {
        b.states = r->states;
    }
    return leave(r, st == RD_OK ? r->x->forward(r->x->self, &b, logits_of(r, job)) : st);
}

/* Every rank computes the same residual stream: where one's is another, its memory or its processor is not sound. */
static bool agree(struct rank_executor *all, const struct model_batch *b)
{
    const float *first = b->states ? b->states : all->ranks[0].states;
    const size_t n = (size_t)b->n_logits * all->face.n_state;

    for (uint32_t i = 1; i < all->n; i++)
        if (memcmp(first, all->ranks[i].states, n * sizeof(*first)) != 0) {
            log_error("rank %u of %u computed something else than rank 0", i, all->n);
            return false;
        }
    return true;
}

static rd_status forward(void *self, const struct model_batch *batch, float *logits)
{
    struct rank_executor *all = self;
    rd_status st;

    if (all->is_dead) return RD_E_DEVICE;
    all->pass = (struct pass_job){.batch = *batch, .logits = logits};
    st = run_all(all, forward_one, &all->pass);
    if (st != RD_OK || agree(all, batch)) return st;
    all->is_dead = true;
    return RD_E_DEVICE;
}

static rd_status head_one(struct rank *r, const void *arg)
{
    const struct pass_job *job = arg;

    return leave(r, r->x->head(r->x->self, job->n, job->states, logits_of(r, job)));
}

static rd_status head(void *self, uint32_t n, const float *const *states, float *logits)
{
    struct rank_executor *all = self;

    if (all->is_dead) return RD_E_DEVICE;
    all->pass = (struct pass_job){.n = n, .states = states, .logits = logits};
    return run_all(all, head_one, &all->pass);
}

static rd_status read_one(struct rank *r, const void *arg)
{
    const struct pass_job *job = arg;

    return leave(r, r->x->read_logits(r->x->self, job->n, logits_of(r, job)));
}

static rd_status read_logits(void *self, uint32_t row, float *logits)
{
    struct rank_executor *all = self;

    all->pass = (struct pass_job){.n = row, .logits = logits};
    return run_all(all, read_one, &all->pass);
}

/* ---- steps that are not waited for ---- */

static rd_status begin_one(struct rank *r, const void *arg)
{
    struct rank_executor *all = r->all;
    const struct pass_job *job = arg;
    struct model_batch b = job->batch;
    rd_status st = all->fault ? all->fault(all->fault_arg, r->index) : RD_OK;

    if (r->index > 0) {
        b.states = NULL;
        b.choices = r->choices[job->turn];
    }
    return leave(r, st == RD_OK ? r->x->begin(r->x->self, &b, job->from) : st);
}

static rd_status begin(void *self, const struct model_batch *batch, const uint32_t *from)
{
    struct rank_executor *all = self;
    const uint32_t turn = all->n_ahead % N_AHEAD;

    assert(all->n_ahead - all->n_ended < N_AHEAD);
    all->pass = (struct pass_job){.batch = *batch, .from = from, .turn = turn};
    all->ahead[turn].choices = batch->choices;
    all->ahead[turn].n = batch->n_rows;
    all->n_ahead++;
    return run_all(all, begin_one, &all->pass);
}

static rd_status end_one(struct rank *r, const void *arg)
{
    (void)arg;
    return leave(r, r->x->end(r->x->self));
}

/* All chose the same, and with the same logit. */
static rd_status end(void *self)
{
    struct rank_executor *all = self;
    const uint32_t turn = all->n_ended++ % N_AHEAD;
    rd_status st = run_all(all, end_one, NULL);

    for (uint32_t i = 1; st == RD_OK && i < all->n; i++)
        if (memcmp(all->ahead[turn].choices, all->ranks[i].choices[turn],
                   all->ahead[turn].n * sizeof(struct row_choice)) != 0) {
            log_error("rank %u of %u chose something else than rank 0", i, all->n);
            all->is_dead = true;
            st = RD_E_DEVICE;
        }
    return st;
}

/* What the engine is given is rank 0's. */
static void pin(void *self, void *p, uint64_t n_bytes, bool on)
{
    struct executor *x = ((struct rank_executor *)self)->ranks[0].x;

    x->pin(x->self, p, n_bytes, on);
}

static bool is_dead(void *self)
{
    struct rank_executor *all = self;

    for (uint32_t i = 0; i < all->n; i++)
        if (all->ranks[i].x->is_dead(all->ranks[i].x->self)) return true;
    return all->is_dead;
}

/* ---- pages ---- */

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
    return run_all(all, fn, &all->page);
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

/* ---- images: rank 0's ---- */

static rd_status image_begin(void *self, struct vision_image *image, struct vision_run **out)
{
    struct executor *x = ((struct rank_executor *)self)->ranks[0].x;

    return x->image_begin(x->self, image, out);
}
static rd_status image_step(void *self, struct vision_run *run, uint64_t n_flops)
{
    struct executor *x = ((struct rank_executor *)self)->ranks[0].x;

    return x->image_step(x->self, run, n_flops);
}
static const float *image_rows(void *self, const struct vision_run *run)
{
    struct executor *x = ((struct rank_executor *)self)->ranks[0].x;

    return x->image_rows(x->self, run);
}
static void image_end(void *self, struct vision_run *run)
{
    struct executor *x = ((struct rank_executor *)self)->ranks[0].x;

    x->image_end(x->self, run);
}
static rd_status point_begin(void *self, const struct vision_pointed *images, uint32_t n,
                             struct vision_pointer_run **out)
{
    struct executor *x = ((struct rank_executor *)self)->ranks[0].x;

    return x->point_begin(x->self, images, n, out);
}
static rd_status point_step(void *self, struct vision_pointer_run *run, uint64_t n_flops)
{
    struct executor *x = ((struct rank_executor *)self)->ranks[0].x;

    return x->point_step(x->self, run, n_flops);
}
static rd_status point_scores(void *self, struct vision_pointer_run *run, const float *state, float *scores)
{
    struct executor *x = ((struct rank_executor *)self)->ranks[0].x;

    return x->point_scores(x->self, run, state, scores);
}
static void point_end(void *self, struct vision_pointer_run *run)
{
    struct executor *x = ((struct rank_executor *)self)->ranks[0].x;

    x->point_end(x->self, run);
}

/* ---- adapters: each rank's part ---- */

static rd_status load_adapter(void *self, const char *path, struct adapter **out, struct rd_error *err)
{
    struct rank_executor *all = self;
    struct model *models[RANKS_MAX];

    for (uint32_t i = 0; i < all->n; i++) models[i] = model_executor_of(all->ranks[i].x)->model;
    return adapter_load_ranks(models, all->n, path, out, err);
}

/* ---- open and close ---- */

static bool make_results(struct rank *r)
{
    const uint64_t n = r->x->max_logits, choice_bytes = N_AHEAD * n * sizeof(struct row_choice);
    const uint64_t state_bytes = n * r->x->n_state * sizeof(float),
                   at_page = (choice_bytes + state_bytes + 63) / 64 * 64;

    r->results_bytes = at_page + r->x->page_bytes;
    r->results = mem_map(r->results_bytes);
    if (!r->results) return false;
    for (uint32_t i = 0; i < N_AHEAD; i++) r->choices[i] = (struct row_choice *)r->results + i * n;
    r->states = (float *)(void *)((uint8_t *)r->results + choice_bytes);
    r->page = (uint8_t *)r->results + at_page;
    if (r->x->pin) r->x->pin(r->x->self, r->results, r->results_bytes, true);
    return true;
}

static void free_results(struct rank *r)
{
    if (r->results && r->x->pin) r->x->pin(r->x->self, r->results, 0, false);
    if (r->results) mem_unmap(r->results, r->results_bytes);
    r->results = NULL;
}

static rd_status open_one(struct rank *r, const void *arg)
{
    struct rank_executor *all = r->all;
    struct executor_options o = *all->o;
    const uint32_t n_threads = o.n_threads ? o.n_threads : thread_n_physical_cores();
    struct executor_rank part = {.rank = r->index, .n_ranks = all->n, .group = all->group};
    const struct rank *first = &all->ranks[0];

    if (r->index == 0 && arg) return RD_OK; /* the others' turn */
    o.n_ranks = 1;
    o.as_rank = &part;
    o.n_threads = u32_max(1, n_threads * (r->index + 1) / all->n - n_threads * r->index / all->n);
    o.packed_dir = NULL;
    if (r->index > 0) {
        part.least_rows = first->x->max_rows;
        o.progress = (struct model_progress){0};
        o.kv_bytes = 0;
        o.kv_tokens = (uint64_t)first->traits.n_pages * o.page_tokens;
        o.max_chunk = first->traits.max_chunk;
        o.max_logits = first->x->max_logits;
    }
    r->st = executor_open(&o, &r->x, &r->traits, &r->err);
    if (r->st != RD_OK) return r->st;
    return make_results(r) ? RD_OK : error_set(&r->err, RD_E_NOMEM, "out of memory");
}

/* Once all are open. */
static rd_status connect_one(struct rank *r, const void *arg)
{
    struct model_executor *m = model_executor_of(r->x);

    (void)arg;
    if (!m->ops->life.connect) return RD_OK;
    return leave(r, m->ops->life.connect(m->backend, r->all->group, r->index, r->all->n, &r->err));
}

/* Ranks of unlike devices would wait for the slowest, and may not give the same bits. */
static rd_status check_alike(const struct rank_executor *all, const struct executor_options *o, struct rd_error *err)
{
    const struct rank *first = &all->ranks[0];

    if (!first->x->crosses_bus && (o->join_way == JOIN_PEER || o->join_way == JOIN_NCCL))
        return error_set(err, RD_E_UNSUPPORTED, "--reduce %s is for GPUs: ranks on %.48s have one memory",
                         join_way_name(o->join_way), first->traits.about);

    for (uint32_t i = 1; i < all->n && first->x->crosses_bus; i++)
        if (strcmp(all->ranks[i].traits.about, first->traits.about) != 0)
            return error_set(err, RD_E_UNSUPPORTED, "--tp needs equal GPUs: rank 0 has \"%s\", rank %u \"%s\"",
                             first->traits.about, i, all->ranks[i].traits.about);
    return RD_OK;
}

static rd_status close_one(struct rank *r, const void *arg)
{
    (void)arg;
    free_results(r);
    executor_close(r->x);
    r->x = NULL;
    return RD_OK;
}

static void close_all(void *self)
{
    struct rank_executor *all = self;
    bool came_back;

    mutex_lock(&all->lock);
    came_back = all->n_begun == 0 || wait_for_all(all);
    mutex_unlock(&all->lock);
    if (!came_back) return; /* a thread that hangs has all of it in use */
    if (all->ranks[all->n - 1].started) do_job(all, close_one, NULL);
    mutex_lock(&all->lock);
    all->stop = true;
    cond_broadcast(&all->begun);
    mutex_unlock(&all->lock);
    for (uint32_t i = 1; i < all->n; i++) thread_join(&all->ranks[i].thread);
    for (uint32_t i = 0; i < all->n; i++) close_one(&all->ranks[i], NULL);
    cond_deinit(&all->begun);
    cond_deinit(&all->done);
    mutex_deinit(&all->lock);
    rank_group_destroy(all->group);
    mem_free(all);
}

static rd_status start_threads(struct rank_executor *all, struct rd_error *err)
{
    for (uint32_t i = 1; i < all->n; i++) {
        struct rank *r = &all->ranks[i];
        char name[16];

        snprintf(name, sizeof(name), "rank %u", i);
        r->st = thread_start(&r->thread, name, do_jobs, r);
        if (r->st != RD_OK) return error_set(err, r->st, "cannot start a thread for rank %u", i);
        r->started = true;
    }
    return RD_OK;
}

static struct kv_storage storage_of(const struct kv_layout *l)
{
    return (struct kv_storage){
        .layout = *l, .row_bytes = {kv_row_bytes(l, 0), kv_row_bytes(l, 1)}, .page_bytes = kv_page_bytes(l)};
}

/* What the whole is like: rank 0's word for most of it. */
static void describe(struct rank_executor *all, struct executor_traits *t)
{
    struct kv_layout layout;

    *t = all->ranks[0].traits;
    snprintf(t->about, sizeof(t->about), "%u ranks of %.48s", all->n, all->ranks[0].traits.about);
    for (uint32_t i = 1; i < all->n; i++) {
        t->weight_bytes += all->ranks[i].traits.weight_bytes;
        t->workspace_bytes += all->ranks[i].traits.workspace_bytes;
    }
    layout = t->layout;
    layout.n_layers = model_executor_of(all->ranks[0].x)->kv.layout.n_layers;
    all->pages = storage_of(&layout);
    layout.n_layers = t->layout.n_layers - layout.n_layers;
    all->windows = storage_of(&layout);
}

static void show(struct rank_executor *all)
{
    const struct executor *x = all->ranks[0].x;

    all->face = (struct executor){
        .self = all,
        .n_vocab = x->n_vocab,
        .max_rows = x->max_rows,
        .max_logits = x->max_logits,
        .n_state = x->n_state,
        .forward = forward,
        .head = head,
        .gives_choices = x->gives_choices,
        .read_logits = read_logits,
        .begin = x->begin ? begin : NULL,
        .end = end,
        .begins_adapted = x->begins_adapted,
        .is_dead = is_dead,
        .pin = x->pin ? pin : NULL,
        .copy_rows = copy_rows,
        .window = x->window,
        .n_windows = x->n_windows,
        .use_windows = x->use_windows ? use_windows : NULL,
        .move_begin = move_begin,
        .move_end = move_end,
        .page_out = page_out,
        .page_in = page_in,
        .page_bytes = all->pages.page_bytes + (x->window ? all->windows.page_bytes + sizeof(uint64_t) : 0),
        .crosses_bus = x->crosses_bus,
        .differs = x->differs ? differs : NULL,
        .adapter_load = x->adapter_load ? load_adapter : NULL,
        .vision = x->vision,
        .image_begin = x->image_begin ? image_begin : NULL,
        .image_step = x->image_step ? image_step : NULL,
        .image_rows = x->image_rows ? image_rows : NULL,
        .image_end = x->image_end ? image_end : NULL,
        .point_begin = x->point_begin ? point_begin : NULL,
        .point_step = x->point_step ? point_step : NULL,
        .point_scores = x->point_scores ? point_scores : NULL,
        .point_end = x->point_end ? point_end : NULL,
        .close = close_all,
    };
}

/* A job of opening: what went wrong is in err. */
static rd_status run_named(struct rank_executor *all, job_fn fn, const void *arg, struct rd_error *err)
{
    rd_status st = run_all(all, fn, arg);

    for (uint32_t i = 0; st != RD_OK && i < all->n && err; i++)
        if (all->ranks[i].st == st && all->ranks[i].err.text[0]) {
            *err = all->ranks[i].err;
            break;
        }
    return st;
}

rd_status rank_executor_open(const struct executor_options *o, struct executor **out, struct executor_traits *traits,
                             struct rd_error *err)
{
    struct rank_executor *all;
    const uint32_t n_threads = o->n_threads ? o->n_threads : thread_n_physical_cores();
    const bool crowded = u32_max(n_threads, o->n_ranks) > thread_n_cores();
    rd_status st;

    if (o->n_ranks > RANKS_MAX)
        return error_set(err, RD_E_INVALID, "%u ranks: 1 to %u are possible", o->n_ranks, RANKS_MAX);
    if (o->beside) return error_set(err, RD_E_INVALID, "a model beside another one has one rank");
    all = mem_zalloc(1, sizeof(*all));
    if (!all) return error_set(err, RD_E_NOMEM, "out of memory");
    all->n = o->n_ranks;
    all->o = o;
    all->fault = o->rank_fault;
    all->fault_arg = o->rank_fault_arg;
    all->patience_ns = o->rank_patience_ns ? o->rank_patience_ns : RANKS_PATIENCE_NS;
    mutex_init(&all->lock);
    cond_init(&all->begun);
    cond_init(&all->done);
    st = model_read_config(o->file, &all->config, err);
    for (uint32_t i = 0; st == RD_OK && i < all->n; i++) {
        all->ranks[i].all = all;
        all->ranks[i].index = i;
        all->ranks[i].share = model_share_of(&all->config, i, all->n);
    }
    if (st == RD_OK && rank_group_create(all->n, crowded ? 0 : SPINS, all->patience_ns, &all->group) != RD_OK)
        st = error_set(err, RD_E_NOMEM, "out of memory");
    if (st == RD_OK && (st = open_one(&all->ranks[0], NULL)) != RD_OK && err) *err = all->ranks[0].err;
    if (st == RD_OK) st = start_threads(all, err);
    if (st == RD_OK) st = run_named(all, open_one, all, err);
    if (st == RD_OK) st = check_alike(all, o, err);
    if (st == RD_OK) st = run_named(all, connect_one, NULL, err);
    all->o = NULL;
    if (st != RD_OK) {
        close_all(all);
        return st;
    }
    describe(all, traits);
    show(all);
    *out = &all->face;
    return RD_OK;
}

const struct executor *rank_executor_first(const struct executor *x)
{
    return x->close == close_all ? ((const struct rank_executor *)x->self)->ranks[0].x : x;
}
