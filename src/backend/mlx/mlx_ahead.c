/* backend/mlx/mlx_ahead.c - a step is computed by a thread beside, while the engine's deals with the step before, and writes down
 * the one behind.
 *
 *     MLX        | step N            ........ last tasks | step N+1
 *     beside     hands out N's tasks, waits for room | idle | hands out N+1's
 *     engine     finishes N-1 | waits for "idle" | writes N+1 down | posts it, waits for N's results | finishes N ..
 *
 * mlx::core::async_eval gives its tasks to the stream and waits while many are under way, so that it returns when most of the
 * step has been computed: the engine's thread would have the results of step N when N+1 is nearly done. The thread beside waits
 * in its place. MLX's graph belongs to one of the two at a time: who touches it asks mlx_ahead_join first. Results of a mark are
 * arrays of their own, which no later step reads, so that waiting for them needs no join.
 *
 * Only what has been computed, or will be, in the stream's order is read: a page's array is updated in place as ever, because
 * when N+1's layer comes, N's has been computed (mlx_pages.c).
 */
#include <assert.h>
#include "backend/mlx/mlx_backend.h"
#include "base/log.h"
#include "base/mem.h"

#define WHY_BYTES 256

struct mlx_ahead {
    struct thread thread;
    struct mutex lock;
    struct cond changed;
    struct mlx_context *g; /* the thread's, on the backend's stream */
    /* Under lock, down to ends: a job is posted when the one before is done. */
    mlx_ref *wanted; /* of the job; the thread drops them */
    uint32_t n;
    uint64_t n_posted, n_done;
    bool failed, ends;
    /* The engine's thread alone. */
    struct mlx_mark {
        struct mlx_reading *readings;
        size_t n, cap;
        uint64_t job;
    } marks[2];
    uint32_t first, n_marks;
    bool is_lost; /* a mark that is still set hangs on what has failed */
};

/* ---- the thread ---- */

static void drop_all(mlx_ref *a, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) mlx_drop(a[i]);
    mem_free(a);
}

static void ahead_main(void *arg)
{
    struct mlx_ahead *h = arg;

    mutex_lock(&h->lock);
    for (;;) {
        mlx_ref *wanted;
        char why[WHY_BYTES];
        bool done;

        while (!h->ends && h->n_done == h->n_posted) cond_wait(&h->changed, &h->lock);
        if (h->n_done == h->n_posted) break;
        wanted = h->wanted;
        mutex_unlock(&h->lock);
        done = mlx_eval_async(h->g, h->n, wanted);
        drop_all(wanted, h->n); /* or MLX could not update the pages in place */
        if (mlx_failure(h->g, why, sizeof(why)) != RD_OK) log_error("mlx: step: %s", why);
        mutex_lock(&h->lock);
        h->failed |= !done;
        h->n_done++;
        cond_broadcast(&h->changed);
    }
    mutex_unlock(&h->lock);
}

/* Until n jobs are done. MLX ends what it has begun. */
static void wait_for(struct mlx_ahead *h, uint64_t n)
{
    mutex_lock(&h->lock);
    while (h->n_done < n) cond_wait(&h->changed, &h->lock);
    mutex_unlock(&h->lock);
}

void mlx_ahead_join(struct backend *be)
{
    if (be->ahead) wait_for(be->ahead, be->ahead->n_posted); /* this thread posts */
}

bool mlx_ahead_is_set(const struct backend *be)
{
    return be->ahead && be->ahead->n_marks > 0;
}

/* ---- life ---- */

static void drop_mark(struct mlx_mark *m)
{
    for (size_t i = 0; i < m->n; i++) mlx_drop(m->readings[i].array);
    m->n = 0;
}

void mlx_ahead_destroy(struct backend *be)
{
    struct mlx_ahead *h = be->ahead;

    if (!h) return;
    mutex_lock(&h->lock);
    h->ends = true;
    cond_broadcast(&h->changed);
    mutex_unlock(&h->lock);
    thread_join(&h->thread);
    for (int i = 0; i < 2; i++) {
        drop_mark(&h->marks[i]);
        mem_free(h->marks[i].readings);
    }
    mlx_close(h->g);
    cond_deinit(&h->changed);
    mutex_deinit(&h->lock);
    mem_free(h);
    be->ahead = NULL;
}

static rd_status ahead_create(struct backend *be)
{
    struct mlx_ahead *h = mem_zalloc(1, sizeof(*h));
    rd_status st = RD_E_NOMEM;

    if (!h) return st;
    mutex_init(&h->lock);
    cond_init(&h->changed);
    h->g = mlx_open_beside(be->g);
    if (h->g) st = thread_start(&h->thread, "mlx-ahead", ahead_main, h);
    be->ahead = h;
    if (st != RD_OK) mlx_ahead_destroy(be);
    return st;
}

/* ---- struct backend_async ---- */

static rd_status graph_begin(struct backend *be, const struct graph_step *s, enum graph_action *out)
{
    mlx_ahead_join(be);
    mlx_low_rank_let_go(be);
    be->from = s->from; /* until embed */
    be->choices = s->choices;
    *out = GRAPH_PLAIN;
    return RD_OK;
}

static bool can_mark(const struct backend *be)
{
    return !be->no_ahead;
}

/* Arrays of their own for what is read, and a list of all that is to be computed. */
static bool fill_job(struct backend *be, mlx_ref **wanted, uint32_t *n)
{
    bool done = true;

    for (size_t i = 0; i < be->n_readings; i++) {
        struct mlx_reading *r = &be->readings[i];
        const mlx_ref own = mlx_keep(be->g, mlx_in_one_piece(be->g, r->array));

        if (!own) return false;
        mlx_drop(r->array);
        r->array = own;
    }
    if (!mlx_list_wanted(be, n)) return false;
    *wanted = mem_zalloc(*n + 1, sizeof(**wanted));
    for (uint32_t i = 0; *wanted && i < *n; i++)
        if (!((*wanted)[i] = mlx_keep(be->g, be->wanted[i]))) done = false;
    return *wanted && done;
}

static rd_status mark(struct backend *be)
{
    struct mlx_ahead *h;
    struct mlx_mark *m, was;
    mlx_ref *wanted = NULL;
    uint32_t n = 0;
    bool done;
    rd_status st;

    if (!be->ahead && (st = ahead_create(be)) != RD_OK) return st;
    h = be->ahead;
    assert(h->n_marks < 2 && h->n_done == h->n_posted);
    done = fill_job(be, &wanted, &n);
    st = mlx_settle(be, "step");
    if (st == RD_OK && !done) st = RD_E_NOMEM;
    if (st != RD_OK) {
        if (wanted) drop_all(wanted, n);
        mlx_forget_step(be);
        return RD_E_DEVICE;
    }
    m = &h->marks[(h->first + h->n_marks++) % 2];
    was = *m;
    *m = (struct mlx_mark){be->readings, be->n_readings, be->cap_readings, h->n_posted + 1};
    be->readings = was.readings;
    be->n_readings = 0;
    be->cap_readings = was.cap;
    mlx_forget_arguments(be);
    mlx_is_clean(be);
    mutex_lock(&h->lock);
    h->wanted = wanted;
    h->n = n;
    h->n_posted++;
    cond_broadcast(&h->changed);
    mutex_unlock(&h->lock);
    return RD_OK;
}

static rd_status wait_mark(struct backend *be)
{
    struct mlx_ahead *h = be->ahead;
    struct mlx_mark *m = &h->marks[h->first];
    char why[WHY_BYTES];
    bool done;

    assert(h->n_marks > 0);
    wait_for(h, m->job);
    mutex_lock(&h->lock);
    done = !h->failed && !h->is_lost;
    mutex_unlock(&h->lock);
    for (size_t i = 0; i < m->n && done; i++)
        done = mlx_copy_out(be->g, m->readings[i].array, m->readings[i].to, m->readings[i].n_bytes);
    if (mlx_failure(be->g, why, sizeof(why)) != RD_OK) log_error("mlx: results of a step: %s", why);
    drop_mark(m);
    h->first = (h->first + 1) % 2;
    h->n_marks--;
    if (done) return RD_OK;
    mlx_ahead_join(be);
    if (!h->is_lost) mlx_recover(be);
    h->is_lost = h->n_marks > 0;
    h->failed = false;
    return RD_E_DEVICE;
}

const struct backend_async mlx_async = {
    .any_rows = true, .graph_begin = graph_begin, .can_mark = can_mark, .mark = mark, .wait_mark = wait_mark};
