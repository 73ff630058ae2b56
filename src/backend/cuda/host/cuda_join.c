/* backend/cuda/host/cuda_join.c - ranks on several GPUs: whose memory is where (rows/join_ranks.cu does the rest).
 *
 * Addresses are exchanged through the group (ranks.h), by the hosts: flags when the ranks connect, outputs at every join that is
 * launched. So no kernel waits on a device for a rank whose host has not come as far: what the hosts do until then (loading a
 * kernel, allocating) may want that device to be idle. For the same reason all ranks have a recorded step ready before one
 * launches it. Steps that are replayed need no host. What a rank does with a step (plain, recorded, replayed) is the same on
 * all, as it follows from the step.
 *
 * A join that was given up left rounds that differ from rank to rank, so that no other may follow: the device is dead then,
 * as by an error of its own.
 */
#include <assert.h>
#include <stdio.h>
#include "backend/cuda/host/cuda_backend.h"
#include "backend/cuda/rows/join_ranks.h"
#include "backend/ranks.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"

/* What a rank shows when it connects; or of a join. */
struct shown {
    int device;
    char name[64];
    struct cuda_joint *joint;
    void *out;
};

struct cuda_joins {
    struct rank_group *group;
    uint32_t rank, n_ranks;
    struct shown own[2]; /* the last two meetings' */
    uint32_t n_shown, most_blocks;
    struct cuda_joint *joint, *joints[RANKS_MAX]; /* on the devices: its own, and all */
    struct rank_words *host_words;
    uint32_t *words; /* on the device */
    bool owns_words; /* this rank mapped them */
};

void cuda_joins_free(struct backend *be)
{
    struct cuda_joins *j = be->joins;

    if (!j) return;
    cudaFree(j->joint);
    if (j->owns_words) cudaHostUnregister(j->host_words);
    mem_free(j);
    be->joins = NULL;
}

static rd_status meet(struct cuda_joins *j, const struct shown *what, const void *all[RANKS_MAX])
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

static rd_status make_joint(struct backend *be, struct cuda_joins *j, struct rd_error *err)
{
    void *p = NULL;
    rd_status st = cuda_device_alloc(be, sizeof(struct cuda_joint), &p);
    cudaError_t error;

    if (st != RD_OK) return error_set(err, st, "no memory for the flags of rank %u on %s", j->rank, be->name);
    j->joint = p;
    error = cudaMemset(p, 0, sizeof(struct cuda_joint));
    if (error == cudaSuccess) error = cudaDeviceSynchronize(); /* before anybody raises one */
    if (error == cudaSuccess) return RD_OK;
    return error_set(err, cuda_check(be, (int)error, "flags of ranks"), "rank %u: %s failed (see the log)", j->rank,
                     be->name);
}

/* This device may write to the memory of another one. */
static rd_status reach(struct backend *be, const struct shown *other, uint32_t rank, struct rd_error *err)
{
    int can = 0;
    cudaError_t error = cudaDeviceCanAccessPeer(&can, be->device, other->device);

    if (error == cudaSuccess && can) error = cudaDeviceEnablePeerAccess(other->device, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
        error = cudaSuccess;
    }
    if (error == cudaSuccess && can) return RD_OK;
    cudaGetLastError();
    return error_set(err, RD_E_UNSUPPORTED,
                     "GPU %d (%s) cannot write to the memory of GPU %d (%s), of rank %u: %s; --tp needs GPUs with peer "
                     "access (NVLink, or PCIe without isolation)",
                     be->device, be->name, other->device, other->name, rank,
                     error != cudaSuccess ? cudaGetErrorString(error) : "no peer access");
}

/* Any two of them. */
static bool shares_a_gpu(const struct cuda_joins *j, const void *const all[RANKS_MAX])
{
    uint64_t seen = 0;

    for (uint32_t r = 0; r < j->n_ranks; r++) {
        const uint64_t bit = 1ull << (((const struct shown *)all[r])->device & 63);

        if (seen & bit) return true;
        seen |= bit;
    }
    return false;
}

static rd_status connect_all(struct backend *be, struct cuda_joins *j, struct rd_error *err)
{
    struct shown own = {.device = be->device};
    const void *all[RANKS_MAX];
    rd_status st = make_joint(be, j, err);

    if (st != RD_OK) return st;
    own.joint = j->joint;
    snprintf(own.name, sizeof(own.name), "%.63s", be->name);
    st = meet(j, &own, all);
    if (st != RD_OK) return error_set(err, st, "rank %u: another rank could not begin", j->rank);
    for (uint32_t r = 0; r < j->n_ranks; r++) {
        const struct shown *other = all[r];

        j->joints[r] = other->joint;
        if (r == j->rank) continue;
        if (other->device != be->device) {
            if ((st = reach(be, other, r, err)) != RD_OK) return st;
            continue;
        }
        if (j->rank < r)
            log_warn("ranks %u and %u are both on GPU %d: slower than one of them", j->rank, r, be->device);
        be->l.pdl = false; /* a kernel that waits for its turn early keeps the other rank's from the device */
    }
    j->most_blocks = shares_a_gpu(j, all) ? CUDA_JOIN_BLOCKS / CUDA_JOIN_RANKS : CUDA_JOIN_BLOCKS;
    if (j->rank == 0) st = cuda_check(be, (int)map_words(j), "words of ranks");
    if (st == RD_OK) st = cuda_check(be, cuda_join_load(), "loading a kernel");
    if (st == RD_OK && meet(j, &own, all) != RD_OK) st = RD_E_DEVICE; /* they are mapped */
    if (st == RD_OK && j->rank > 0) st = cuda_check(be, (int)map_words(j), "words of ranks");
    return st == RD_OK ? st : error_set(err, st, "rank %u: cannot connect (see the log)", j->rank);
}

rd_status cuda_connect(struct backend *be, struct rank_group *group, uint32_t rank, uint32_t n_ranks,
                       struct rd_error *err)
{
    struct cuda_joins *j = mem_zalloc(1, sizeof(*j));
    rd_status st = cuda_here(be);

    assert(!be->joins && n_ranks <= CUDA_JOIN_RANKS);
    if (!j) return error_set(err, RD_E_NOMEM, "out of memory");
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

    return be->joins ? meet(be->joins, &(struct shown){.out = NULL}, all) : RD_OK;
}

/* Which columns are whose; not where they go. */
static struct cuda_join_args args_of(const struct cuda_joins *j, const struct join_args *a)
{
    struct cuda_join_args args = {.rank = a->rank,
                                  .n_ranks = a->n_ranks,
                                  .n_rows = a->n_rows,
                                  .width = a->ends[a->n_ranks - 1],
                                  .value_bytes = a->for_linear ? sizeof(uint16_t) : sizeof(float),
                                  .most_blocks = j->most_blocks,
                                  .own = a->for_linear ? (const void *)cuda_shadow(a->own) : cuda_at(a->own),
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
    }
    return args;
}

static bool adds(const struct cuda_joins *j, const struct join_args *a)
{
    const struct cuda_join_args args = args_of(j, a);

    return cuda_join_adds(&args);
}

rd_status cuda_launch_join(struct backend *be, const struct join_args *a, float *add_to)
{
    const struct shown own = {.out = a->for_linear ? (void *)cuda_shadow(a->out) : cuda_at(a->out)};
    struct cuda_join_args args = args_of(be->joins, a);
    const void *all[RANKS_MAX];
    rd_status st = meet(be->joins, &own, all);

    if (st != RD_OK) return st;
    for (uint32_t r = 0; r < a->n_ranks; r++) args.outs[r] = ((const struct shown *)all[r])->out;
    args.add_to = add_to;
    return cuda_check(be, cuda_join(&be->l, &args), "join");
}

rd_status cuda_op_join(struct backend *be, const struct join_args *a)
{
    rd_status st = cuda_let_go(be);

    if (st != RD_OK) return st;
    if (!a->once || !adds(be->joins, a)) return cuda_launch_join(be, a, NULL);
    be->held.join = *a;
    be->held.op = CUDA_HELD_JOIN;
    return RD_OK;
}
