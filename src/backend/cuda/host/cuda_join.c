/* backend/cuda/host/cuda_join.c - ranks on several GPUs: whose memory is where, and which way they join (join_way.h; rows/join_*.cu do
 * the rest).
 *
 * Addresses are exchanged through the group (ranks.h), by the hosts: flags when the ranks connect, outputs at every join that is
 * launched. So no kernel waits on a device for a rank whose host has not come as far: what the hosts do until then (loading a
 * kernel, allocating) may want that device to be idle. For the same reason all ranks have a recorded step ready before one
 * launches it. Steps that are replayed need no host (NCCL's do: cuda_nccl.c). What a rank does with a step (plain, recorded,
 * replayed) is the same on all, as it follows from the step.
 *
 * A join that was given up left rounds that differ from rank to rank, so that no other may follow: the device is dead then,
 * as by an error of its own.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "backend/cuda/host/cuda_join_inside.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"

void cuda_joins_free(struct backend *be)
{
    struct cuda_joins *j = be->joins;

    if (!j) return;
    cuda_nccl_close(be);
    if (j->way == JOIN_HOST) {
        if (j->joint) cudaFreeHost(j->joint);
        if (j->stage) cudaFreeHost(j->stage);
    } else {
        cudaFree(j->joint);
    }
    cudaFree(j->counts);
    if (j->owns_words) cudaHostUnregister(j->host_words);
    mutex_deinit(&j->comm_lock);
    mem_free(j);
    be->joins = NULL;
}

rd_status cuda_joins_meet(struct cuda_joins *j, const struct shown *what, const void *all[RANKS_MAX])
{
    struct shown *own = &j->own[j->n_shown++ % 2];

    *own = *what;
    return rank_group_meet(j->group, j->rank, own, all);
}

/* ---- connecting ---- */

static cudaError_t map_words(struct cuda_joins *j)
{
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    cudaError_t error = cudaSuccess;
    void *p = NULL;

    if (j->rank == 0) {
        error = cudaHostRegister(j->host_words, sizeof(*j->host_words), flags);
        j->owns_words = error == cudaSuccess;
    }
    if (error == cudaSuccess) error = cudaHostGetDevicePointer(&p, j->host_words, 0);
    j->words = p;
    return error;
}

/* All zero; with addressing that is the same everywhere (64-bit Linux) a pointer is one for the host and for all devices. */
static cudaError_t host_alloc(uint64_t n_bytes, void **out)
{
    cudaError_t error = cudaHostAlloc(out, (size_t)n_bytes, cudaHostAllocPortable | cudaHostAllocMapped);

    if (error == cudaSuccess) memset(*out, 0, (size_t)n_bytes);
    return error;
}

static cudaError_t device_alloc(uint64_t n_bytes, void **out)
{
    cudaError_t error = cudaMalloc(out, (size_t)n_bytes);

    return error == cudaSuccess ? cudaMemset(*out, 0, (size_t)n_bytes) : error;
}

/* What this rank has to show, by the way that was chosen. */
static rd_status make_places(struct backend *be, struct cuda_joins *j, struct rd_error *err)
{
    const bool on_host = j->way == JOIN_HOST;
    void *joint = NULL, *counts = NULL, *stage = NULL;
    cudaError_t error = (on_host ? host_alloc : device_alloc)(sizeof(*j->joint), &joint);

    j->joint = joint;
    if (error == cudaSuccess) error = device_alloc(sizeof(*j->counts), &counts);
    j->counts = counts;
    if (error == cudaSuccess && on_host) error = host_alloc(sizeof(*j->stage), &stage);
    j->stage = stage;
    if (error == cudaSuccess) error = cudaDeviceSynchronize(); /* before anybody raises a flag */
    if (error == cudaSuccess) return RD_OK;
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return error_set(err, RD_E_NOMEM, "no memory for the flags of rank %u on %s", j->rank, be->name);
    }
    return error_set(err, cuda_check(be, (int)error, "flags of ranks"), "rank %u: %s failed (see the log)", j->rank,
                     be->name);
}

/* This device may write to the memory of another one; else why not. $RADISH_CUDA_PEER=0: as if none could, for tests. */
static void look_at(struct backend *be, const struct shown *other, char *apart, size_t cap)
{
    const char *set = getenv("RADISH_CUDA_PEER");
    int can = 0;
    cudaError_t error = cudaDeviceCanAccessPeer(&can, be->device, other->device);

    if (set && strcmp(set, "0") == 0) can = 0;
    if (error != cudaSuccess) cudaGetLastError();
    if (error == cudaSuccess && can) return;
    snprintf(apart, cap, "GPU %d (%.40s) cannot write to the memory of GPU %d (%.40s): %s", be->device, be->name,
             other->device, other->name, error != cudaSuccess ? cudaGetErrorString(error) : "no peer access");
}

static rd_status reach(struct backend *be, const struct shown *other, struct rd_error *err)
{
    cudaError_t error = cudaDeviceEnablePeerAccess(other->device, 0);

    if (error == cudaErrorPeerAccessAlreadyEnabled) error = cudaSuccess;
    cudaGetLastError();
    if (error == cudaSuccess) return RD_OK;
    return error_set(err, RD_E_UNSUPPORTED,
                     "GPU %d (%s) cannot write to the memory of GPU %d (%s): %s; --reduce host can do without",
                     be->device, be->name, other->device, other->name, cudaGetErrorString(error));
}

/* Any two of them: which. */
static bool shares_a_gpu(const struct cuda_joins *j, const void *const all[RANKS_MAX], char *which, size_t cap)
{
    for (uint32_t a = 0; a < j->n_ranks; a++)
        for (uint32_t b = a + 1; b < j->n_ranks; b++)
            if (((const struct shown *)all[a])->device == ((const struct shown *)all[b])->device) {
                snprintf(which, cap, "ranks %u and %u are both on GPU %d", a, b,
                         ((const struct shown *)all[a])->device);
                return true;
            }
    return false;
}

/* Who is where, and what keeps them apart: the same facts for all ranks. */
static rd_status see_all(struct backend *be, struct cuda_joins *j, char *apart, char *shared, size_t cap,
                         struct rd_error *err)
{
    struct shown own = {.device = be->device};
    const void *all[RANKS_MAX];
    rd_status st;

    snprintf(own.name, sizeof(own.name), "%.63s", be->name);
    st = cuda_joins_meet(j, &own, all);
    for (uint32_t r = 0; st == RD_OK && r < j->n_ranks; r++) {
        const struct shown *other = all[r];

        if (other->device != be->device && !*own.apart) look_at(be, other, own.apart, sizeof(own.apart));
        if (other->device != be->device || r <= j->rank) continue;
        log_warn("ranks %u and %u are both on GPU %d: slower than one of them", j->rank, r, be->device);
    }
    for (uint32_t r = 0; st == RD_OK && r < j->n_ranks; r++)
        if (r != j->rank && ((const struct shown *)all[r])->device == be->device)
            be->l.pdl = false; /* a kernel that waits for its turn early keeps the other rank's from the device */
    if (st == RD_OK) st = cuda_joins_meet(j, &own, all);
    if (st != RD_OK) return error_set(err, st, "rank %u: another rank could not begin", j->rank);
    j->most_blocks = shares_a_gpu(j, all, shared, cap) ? CUDA_JOIN_BLOCKS / CUDA_JOIN_RANKS : CUDA_JOIN_BLOCKS;
    for (uint32_t r = j->n_ranks; r-- > 0;)
        if (*((const struct shown *)all[r])->apart) snprintf(apart, cap, "%s", ((const struct shown *)all[r])->apart);
    return RD_OK;
}

static rd_status choose_way(struct backend *be, struct cuda_joins *j, struct rd_error *err)
{
    char apart[256] = "", shared[256] = "", nccl[256] = "", why[640];
    struct join_facts facts = {apart, shared, nccl};
    rd_status st = see_all(be, j, apart, shared, sizeof(apart), err);

    if (st == RD_OK && be->join_way == JOIN_NCCL) st = cuda_nccl_find(j, nccl, sizeof(nccl), err);
    if (st == RD_OK) st = join_way_choose(be->join_way, &facts, &j->way, why, sizeof(why), err);
    if (st == RD_OK && j->rank == 0)
        log_info("ranks join %s: %s",
                 j->way == JOIN_PEER   ? "over peer memory"
                 : j->way == JOIN_NCCL ? "by NCCL"
                                       : "through host memory",
                 why);
    return st;
}

static rd_status connect_all(struct backend *be, struct cuda_joins *j, struct rd_error *err)
{
    const void *all[RANKS_MAX];
    rd_status st = choose_way(be, j, err);

    if (st == RD_OK) st = make_places(be, j, err);
    if (st != RD_OK) return st;
    /* $RADISH_JOIN_APART=1: joins begin after their columns, to measure what that costs */
    j->begins = j->way == JOIN_PEER && !(getenv("RADISH_JOIN_APART") && strcmp(getenv("RADISH_JOIN_APART"), "1") == 0);
    st = cuda_joins_meet(j, &(struct shown){.device = be->device, .joint = j->joint, .stage = j->stage}, all);
    for (uint32_t r = 0; st == RD_OK && r < j->n_ranks; r++) {
        const struct shown *other = all[r];

        j->joints[r] = other->joint;
        j->stages[r] = other->stage;
        if (j->way != JOIN_PEER || other->device == be->device) continue;
        if ((st = reach(be, other, err)) != RD_OK) return st;
    }
    if (st == RD_OK && j->rank == 0) st = cuda_check(be, (int)map_words(j), "words of ranks");
    if (st == RD_OK) st = cuda_check(be, cuda_join_load(), "loading a kernel");
    if (st == RD_OK) st = cuda_joins_meet(j, &(struct shown){.out = NULL}, all); /* they are mapped */
    if (st == RD_OK && j->rank > 0) st = cuda_check(be, (int)map_words(j), "words of ranks");
    if (st == RD_OK && j->way == JOIN_NCCL) return cuda_nccl_open(be, err);
    return st == RD_OK ? st : error_set(err, st, "rank %u: cannot connect (see the log)", j->rank);
}

rd_status cuda_connect(struct backend *be, struct rank_group *group, uint32_t rank, uint32_t n_ranks,
                       struct rd_error *err)
{
    struct cuda_joins *j = mem_zalloc(1, sizeof(*j));
    rd_status st = cuda_here(be);

    assert(!be->joins && n_ranks <= CUDA_JOIN_RANKS);
    if (!j) return error_set(err, RD_E_NOMEM, "out of memory");
    mutex_init(&j->comm_lock);
    j->group = group;
    j->rank = rank;
    j->n_ranks = n_ranks;
    j->host_words = rank_group_words(group);
    be->joins = j;
    return st == RD_OK ? connect_all(be, j, err) : st;
}

/* ---- joining ---- */

rd_status cuda_joins_ready(struct backend *be)
{
    const void *all[RANKS_MAX];

    return be->joins ? cuda_joins_meet(be->joins, &(struct shown){.out = NULL}, all) : RD_OK;
}

rd_status cuda_joins_replay(struct backend *be)
{
    return be->joins && be->joins->way == JOIN_NCCL ? cuda_joins_ready(be) : RD_OK;
}

/* As the bf16 that a product reads them as: what low_rank reads as well is sent as floats. */
static bool in_halves(const struct join_args *a)
{
    return a->for_linear && !a->for_low_rank;
}

static void *out_of(const struct join_args *a)
{
    return in_halves(a) ? (void *)cuda_shadow(a->out) : cuda_at(a->out);
}

/* Which columns are whose; not where they go. */
static struct cuda_join_args args_of(const struct cuda_joins *j, const struct join_args *a)
{
    struct cuda_join_args args = {.rank = a->rank,
                                  .n_ranks = a->n_ranks,
                                  .n_rows = a->n_rows,
                                  .width = a->ends[a->n_ranks - 1],
                                  .value_bytes = in_halves(a) ? sizeof(uint16_t) : sizeof(float),
                                  .most_blocks = j->most_blocks,
                                  .letter_bytes = j->way == JOIN_HOST ? CUDA_STAGED_LETTERS : CUDA_JOIN_LETTERS,
                                  .counts = j->counts,
                                  .own = in_halves(a) ? (const void *)cuda_shadow(a->own) : cuda_at(a->own),
                                  .own_stride = a->own_stride,
                                  .words = j->words,
                                  .patience_ns = rank_group_patience(j->group)};

    assert(j->group == a->group && j->rank == a->rank);
    for (uint32_t r = 0, first = 0; r < a->n_ranks; first = a->ends[r++]) {
        const uint32_t n = a->ends[r] - first;

        args.most = n > args.most ? n : args.most;
        if (r == a->rank) args.first = first, args.n = n;
        args.ends[r] = a->ends[r];
        args.joints[r] = j->joints[r];
        args.stages[r] = j->stages[r];
    }
    return args;
}

static bool adds(const struct cuda_joins *j, const struct join_args *a)
{
    const struct cuda_join_args args = args_of(j, a);

    return j->way == JOIN_NCCL ? args.value_bytes == sizeof(float) : cuda_join_adds(&args);
}

static rd_status launch(struct backend *be, const struct join_args *a, float *add_to)
{
    const struct shown own = {.out = out_of(a)};
    struct cuda_join_args args = args_of(be->joins, a);
    const void *all[RANKS_MAX];
    rd_status st = cuda_joins_meet(be->joins, &own, all);

    if (st != RD_OK) return st;
    args.add_to = add_to;
    args.outs[a->rank] = own.out;
    if (be->joins->way == JOIN_NCCL) return cuda_nccl_join(be, &args);
    if (be->joins->way == JOIN_HOST) return cuda_check(be, cuda_join_staged(&be->l, &args), "join");
    for (uint32_t r = 0; r < a->n_ranks; r++) args.outs[r] = ((const struct shown *)all[r])->out;
    return cuda_check(be, cuda_join(&be->l, &args), "join");
}

/* The columns are on their way already: the rest of their join. */
static rd_status end_begun(struct backend *be, const struct join_args *a)
{
    const struct cuda_join_args args = args_of(be->joins, a);

    be->joins->has_begun = false;
    return cuda_check(be, cuda_join_flags(&be->l, &args), "join");
}

rd_status cuda_launch_join(struct backend *be, const struct join_args *a, float *add_to)
{
    const uint64_t n = (uint64_t)a->n_rows * a->ends[a->n_ranks - 1];
    rd_status st;

    if (be->joins->has_begun) return end_begun(be, a);
    st = launch(be, a, add_to);
    if (st != RD_OK || !a->for_low_rank) return st;
    return cuda_check(be, cuda_to_bf16(&be->l, n, cuda_at(a->out), cuda_shadow(a->out)), "join");
}

/* ---- joins that begin with their columns ---- */

static bool may_begin(const struct backend *be, const struct join_args *a)
{
    struct cuda_join_args args;

    if (!be->joins || !be->joins->begins || a->for_low_rank) return false;
    args = args_of(be->joins, a);
    if (cuda_join_is_small(&args)) return false;
    for (uint32_t r = 0, first = 0; r < a->n_ranks; first = a->ends[r++])
        if (a->ends[r] == first) return false; /* it computes nothing that might begin one */
    return true;
}

static void *place_in(const struct join_args *a, void *out)
{
    const uint32_t first = a->rank > 0 ? a->ends[a->rank - 1] : 0;

    return in_halves(a) ? (void *)((uint16_t *)out + first) : (void *)((float *)out + first);
}

void *cuda_join_place(const struct backend *be, const struct join_args *a, uint32_t *stride)
{
    if (!a || !may_begin(be, a)) return NULL;
    *stride = a->ends[a->n_ranks - 1];
    return place_in(a, out_of(a));
}

rd_status cuda_join_begin(struct backend *be, const struct join_args *a, bool can, struct cuda_copies *copies,
                          bool *begun)
{
    struct cuda_joins *j = be->joins;
    const void *all[RANKS_MAX];
    rd_status st = cuda_joins_meet(j, &(struct shown){.out = out_of(a), .copies = can}, all);

    assert(!j->has_begun);
    if (st != RD_OK) return st;
    *begun = true;
    copies->n = 0;
    for (uint32_t r = 0; r < a->n_ranks; r++) {
        const struct shown *other = all[r];

        *begun &= other->copies;
        if (r != a->rank) copies->to[copies->n++] = place_in(a, other->out);
    }
    j->has_begun = *begun;
    return RD_OK;
}

bool cuda_join_has_begun(const struct backend *be)
{
    return be->joins->has_begun;
}

rd_status cuda_join_norm(struct backend *be, const struct join_args *a, const struct cuda_norm_args *norm)
{
    const struct cuda_join_args args = args_of(be->joins, a);
    rd_status st;

    if (a->n_rows <= be->joins->most_blocks && cuda_norm_joins(norm)) {
        be->joins->has_begun = false;
        return cuda_check(be, cuda_join_flags_norm(&be->l, &args, norm), "join and norm");
    }
    st = end_begun(be, a);
    return st != RD_OK ? st : cuda_check(be, cuda_residual_norm(&be->l, norm), "residual_norm");
}

rd_status cuda_op_join(struct backend *be, const struct join_args *a)
{
    rd_status st = cuda_let_go(be);

    if (st != RD_OK) return st;
    if (be->joins->has_begun && !a->once) return end_begun(be, a);
    if (!be->joins->has_begun && (!a->once || !adds(be->joins, a))) return cuda_launch_join(be, a, NULL);
    be->held.join = *a;
    be->held.op = CUDA_HELD_JOIN;
    return RD_OK;
}
