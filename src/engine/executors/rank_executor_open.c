/* engine/executors/rank_executor_open.c - ranks are opened and closed, each in its thread. */
#include <stdio.h>
#include <string.h>
#include "backend/backend_registry.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/thread.h"
#include "engine/executors/rank_inside.h"

#define SPINS 2000u /* about 50 us */

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

/* In the thread of ranks 1 ..; rank 0's is another later: this one then is as it was. */
static rd_status open_one(struct rank *r, const void *arg)
{
    struct rank_executor *all = r->all;
    struct executor_options o = *all->o;
    const uint32_t n_threads = o.n_threads ? o.n_threads : thread_n_physical_cores();
    struct numa_place before;
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
    rank_keep_to(r, &before);
    r->st = executor_open(&o, &r->x, &r->traits, &r->err);
    if (r->index == 0) numa_put_back(&before);
    if (r->st != RD_OK) return r->st;
    return make_results(r) ? RD_OK : error_set(&r->err, RD_E_NOMEM, "out of memory");
}

/* Once all are open. */
static rd_status connect_one(struct rank *r, const void *arg)
{
    struct model_executor *m = model_executor_of(r->x);

    (void)arg;
    if (!m->ops->life.connect) return RD_OK;
    return rank_leave(r, m->ops->life.connect(m->backend, r->all->group, r->index, r->all->n, &r->err));
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

    if (all->crew && rank_crew_wait(all->crew, all->patience_ns) < RANKS_MAX)
        return; /* a thread that hangs has all of it in use */
    if (all->crew) ranks_do(all, close_one, NULL);
    rank_crew_destroy(all->crew);
    rank_group_destroy(all->group);
    mem_free(all);
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
        .gives_choices = x->gives_choices,
        .begins_adapted = x->begins_adapted,
        .window = x->window,
        .n_windows = x->n_windows,
        .crosses_bus = x->crosses_bus,
        .vision = x->vision,
        .close = close_all,
    };
    ranks_show_passes(all);
    ranks_show_pages(all);
}

/* A job of opening: what went wrong is in err. */
static rd_status run_named(struct rank_executor *all, job_fn fn, const void *arg, struct rd_error *err)
{
    rd_status st = ranks_run(all, fn, arg);

    for (uint32_t i = 0; st != RD_OK && i < all->n && err; i++)
        if (all->ranks[i].st == st && all->ranks[i].err.text[0]) {
            *err = all->ranks[i].err;
            break;
        }
    return st;
}

/* Whether ranks will be of the processor: a GPU's threads, and the driver's, are the system's to place. */
static bool is_cpu(const char *device)
{
    struct device_probe probes[BACKEND_MAX];
    const struct backend_entry *best;
    const char *why;

    if (device && strcmp(device, "auto") != 0) return strcmp(device, "cpu") == 0;
    best = backend_choice(probes, &why);
    return best && best->ops == &backend_cpu_ops;
}

rd_status rank_executor_open(const struct executor_options *o, struct executor **out, struct executor_traits *traits,
                             struct rd_error *err)
{
    struct rank_executor *all;
    const uint32_t n_threads = o->n_threads ? o->n_threads : thread_n_physical_cores();
    const uint32_t n_spin = u32_max(n_threads, o->n_ranks) > thread_n_cores() ? 0 : SPINS;
    uint32_t failed;
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
    numa_read(o->numa_root, &all->nodes);
    if (all->nodes.n > 1 && !is_cpu(o->device)) all->nodes.n = 0;
    st = model_read_config(o->file, &all->config, err);
    for (uint32_t i = 0; st == RD_OK && i < all->n; i++) {
        all->ranks[i].all = all;
        all->ranks[i].index = i;
        all->ranks[i].share = model_share_of(&all->config, i, all->n);
    }
    if (st == RD_OK && (rank_group_create(all->n, n_spin, all->patience_ns, &all->group) != RD_OK ||
                        rank_crew_create(all->n, n_spin, &all->crew) != RD_OK))
        st = error_set(err, RD_E_NOMEM, "out of memory");
    if (st == RD_OK && (st = open_one(&all->ranks[0], NULL)) != RD_OK && err) *err = all->ranks[0].err;
    if (st == RD_OK && (st = rank_crew_start(all->crew, &failed)) != RD_OK)
        error_set(err, st, "cannot start a thread for rank %u", failed);
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
