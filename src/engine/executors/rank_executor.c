/* engine/executors/rank_executor.c - one job at a time, done by all ranks: passes, and steps that are not waited for. */
#include <assert.h>
#include <string.h>
#include "backend/ranks.h"
#include "base/checked.h"
#include "base/log.h"
#include "engine/executors/rank_inside.h"
#include "model/adapter.h"

#define LOADING_NS 86400000000000u /* weights come from wherever they are */

/* ---- jobs ---- */

static void do_part(void *arg, uint32_t rank)
{
    struct rank_executor *all = arg;
    struct rank *r = &all->ranks[rank];

    r->st = all->job(r, all->arg);
}

uint32_t ranks_do(struct rank_executor *all, job_fn fn, const void *arg)
{
    all->job = fn;
    all->arg = arg;
    return rank_crew_do(all->crew, do_part, all, all->o ? LOADING_NS : all->patience_ns);
}

/* One of them did not come to a meeting (lost), or back (away), in time. */
static rd_status end_lost(struct rank_executor *all, bool is_lost, uint32_t lost, uint32_t away)
{
    if (is_lost)
        log_error("rank %u of %u did not come to a meeting of the ranks in time", lost, all->n);
    else
        log_error("rank %u of %u did not come back in time", away, all->n);
    rank_group_leave(all->group, RD_E_DEVICE); /* devices that wait in a join end, too */
    all->is_dead = true;
    return RD_E_DEVICE;
}

rd_status ranks_run(struct rank_executor *all, job_fn fn, const void *arg)
{
    rd_status st = RD_OK;
    uint32_t lost = 0, away;
    bool is_lost;

    if (all->is_dead) return RD_E_DEVICE;
    away = ranks_do(all, fn, arg);
    is_lost = rank_group_has_lost(all->group, &lost);
    if (is_lost || away < RANKS_MAX) return end_lost(all, is_lost, lost, away);
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

/* One rank a node; of fewer ranks each has several nodes, of more some share one. */
void rank_keep_to(const struct rank *r, struct numa_place *before)
{
    const struct rank_executor *all = r->all;
    const uint32_t n = all->nodes.n, first = r->index * n / all->n;

    if (before) before->is_known = false;
    if (n < 2) return;
    if (numa_keep_to(&all->nodes, first, u32_max(1, (r->index + 1) * n / all->n - first), before))
        log_debug("rank %u keeps to node %u", r->index, all->nodes.ids[first]);
    else
        log_warn("rank %u may not keep to node %u: its memory may be far", r->index, all->nodes.ids[first]);
}

rd_status rank_leave(struct rank *r, rd_status st)
{
    if (st != RD_OK) rank_group_leave(r->all->group, st);
    return st;
}

/* ---- passes ---- */

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
    return rank_leave(r, st == RD_OK ? r->x->forward(r->x->self, &b, logits_of(r, job)) : st);
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
    if (!all->keeps_to) rank_keep_to(&all->ranks[0], NULL); /* the engine's thread is rank 0's */
    all->keeps_to = true;
    all->pass = (struct pass_job){.batch = *batch, .logits = logits};
    st = ranks_run(all, forward_one, &all->pass);
    if (st != RD_OK || agree(all, batch)) return st;
    all->is_dead = true;
    return RD_E_DEVICE;
}

static rd_status head_one(struct rank *r, const void *arg)
{
    const struct pass_job *job = arg;

    return rank_leave(r, r->x->head(r->x->self, job->n, job->states, logits_of(r, job)));
}

static rd_status head(void *self, uint32_t n, const float *const *states, float *logits)
{
    struct rank_executor *all = self;

    if (all->is_dead) return RD_E_DEVICE;
    all->pass = (struct pass_job){.n = n, .states = states, .logits = logits};
    return ranks_run(all, head_one, &all->pass);
}

static rd_status read_one(struct rank *r, const void *arg)
{
    const struct pass_job *job = arg;

    return rank_leave(r, r->x->read_logits(r->x->self, job->n, logits_of(r, job)));
}

static rd_status read_logits(void *self, uint32_t row, float *logits)
{
    struct rank_executor *all = self;

    all->pass = (struct pass_job){.n = row, .logits = logits};
    return ranks_run(all, read_one, &all->pass);
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
    return rank_leave(r, st == RD_OK ? r->x->begin(r->x->self, &b, job->from) : st);
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
    return ranks_run(all, begin_one, &all->pass);
}

static rd_status end_one(struct rank *r, const void *arg)
{
    (void)arg;
    return rank_leave(r, r->x->end(r->x->self));
}

/* All chose the same, and with the same logit. */
static rd_status end(void *self)
{
    struct rank_executor *all = self;
    const uint32_t turn = all->n_ended++ % N_AHEAD;
    rd_status st = ranks_run(all, end_one, NULL);

    for (uint32_t i = 1; st == RD_OK && i < all->n; i++)
        if (memcmp(all->ahead[turn].choices, all->ranks[i].choices[turn],
                   all->ahead[turn].n * sizeof(struct row_choice)) != 0) {
            log_error("rank %u of %u chose something else than rank 0", i, all->n);
            all->is_dead = true;
            st = RD_E_DEVICE;
        }
    return st;
}

static rd_status warm_one(struct rank *r, const void *arg)
{
    const rd_status st = r->x->warm_up(r->x->self);

    (void)arg;
    r->has_more = st == RD_E_AGAIN;
    return rank_leave(r, r->has_more ? RD_OK : st);
}

static rd_status warm_up(void *self)
{
    struct rank_executor *all = self;
    rd_status st = ranks_run(all, warm_one, NULL);

    return st == RD_OK && all->ranks[0].has_more ? RD_E_AGAIN : st;
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

/* ---- images: rank 0's ---- */

static rd_status image_begin(void *self, struct vision_image *image, struct vision_run **out)
{
    struct executor *x = ((struct rank_executor *)self)->ranks[0].x;

    return x->image_begin(x->self, image, out);
}
static rd_status image_step(void *self, struct vision_run *run, uint64_t n_flops, uint64_t *n_done)
{
    struct executor *x = ((struct rank_executor *)self)->ranks[0].x;

    return x->image_step(x->self, run, n_flops, n_done);
}
static uint32_t image_phase(void *self, const struct vision_run *run)
{
    struct executor *x = ((struct rank_executor *)self)->ranks[0].x;

    return x->image_phase(x->self, run);
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

void ranks_show_passes(struct rank_executor *all)
{
    const struct executor *x = all->ranks[0].x;
    struct executor *face = &all->face;

    face->forward = forward;
    face->head = head;
    face->read_logits = read_logits;
    face->begin = x->begin ? begin : NULL;
    face->end = end;
    face->warm_up = x->warm_up ? warm_up : NULL;
    face->is_dead = is_dead;
    face->pin = x->pin ? pin : NULL;
    face->adapter_load = x->adapter_load ? load_adapter : NULL;
    face->image_begin = x->image_begin ? image_begin : NULL;
    face->image_step = x->image_step ? image_step : NULL;
    face->image_phase = x->image_phase ? image_phase : NULL;
    face->image_rows = x->image_rows ? image_rows : NULL;
    face->image_end = x->image_end ? image_end : NULL;
    face->point_begin = x->point_begin ? point_begin : NULL;
    face->point_step = x->point_step ? point_step : NULL;
    face->point_scores = x->point_scores ? point_scores : NULL;
    face->point_end = x->point_end ? point_end : NULL;
}
