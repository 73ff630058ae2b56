/* backend/cuda/host/cuda_nccl.c - ranks that join by NCCL's all-gather.
 *
 *     own columns --pack--> this rank's part --all-gather--> all ranks' parts --unpack--> out, or added to x
 *
 * A gather copies bytes, and what is added is added by our kernel: the bits do not depend on how NCCL does it. Many rows go in
 * pieces that fit the parts. It is recorded as a step's other kernels are.
 *
 * NCCL's kernels wait for the other ranks for ever. So every step, a replayed one as well, is launched once all hosts have come
 * to it, and a host waits by looking (cuda_wait_all, cuda_wait_event): when somebody left, or nobody got on for as long as the
 * group's patience, the device is dead. A thread beside has NCCL end its kernels when somebody left, also where no host waits for
 * them: a device with one that does not end lets no memory go, and so no process.
 */
#include <stdio.h>
#include <string.h>
#include "backend/cuda/host/cuda_join_inside.h"
#include "backend/spin_pause.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#define NCCL_PART_BYTES (16ull << 20)
#define LOOKS_A_CLOCK   64u
#define WATCH_NS        20000000u
#define NCCL_ENDED      1 /* ncclUnhandledCudaError: any but success */

rd_status cuda_nccl_find(struct cuda_joins *j, char *why, size_t cap, struct rd_error *err)
{
    struct shown own = {.nccl = NULL};
    const struct shown *first;
    const void *all[RANKS_MAX];
    rd_status st;

    if (j->rank == 0 && nccl_library_open(&j->library, own.apart, sizeof(own.apart)) == RD_OK) {
        int error = j->library.get_unique_id(&own.id);

        if (error == 0)
            own.nccl = &j->library;
        else
            snprintf(own.apart, sizeof(own.apart), "NCCL does not work here (%s)", j->library.error_string(error));
    }
    st = cuda_joins_meet(j, &own, all);
    if (st != RD_OK) return error_set(err, st, "rank %u: another rank could not begin", j->rank);
    first = all[0];
    j->nccl = first->nccl;
    j->id = first->id;
    snprintf(why, cap, "%s", first->apart);
    return RD_OK;
}

/* Ends what NCCL has under way on this rank, once. */
static void end_comm(struct cuda_joins *j)
{
    mutex_lock(&j->comm_lock);
    if (j->comm) j->nccl->comm_abort(j->comm);
    j->comm = NULL;
    mutex_unlock(&j->comm_lock);
}

static void watch(void *arg)
{
    struct cuda_joins *j = arg;

    while (!atomic_load(&j->is_closing)) {
        if (atomic_load(&j->host_words->stop)) {
            end_comm(j);
            return;
        }
        clock_sleep_ns(WATCH_NS);
    }
}

/* Not while it is ended. */
static int gather(struct cuda_joins *j, const void *from, uint64_t n_bytes, void *stream)
{
    int error = NCCL_ENDED;

    mutex_lock(&j->comm_lock);
    if (j->comm) error = j->nccl->all_gather(from, j->parts, n_bytes, NCCL_BYTES, j->comm, stream);
    mutex_unlock(&j->comm_lock);
    return error;
}

static rd_status check(struct backend *be, int error, const char *what)
{
    if (error == 0) return RD_OK;
    log_error("%s: NCCL, rank %u: %s: %s", be->name, be->joins->rank, what, be->joins->nccl->error_string(error));
    return cuda_check(be, (int)cudaErrorUnknown, "NCCL");
}

rd_status cuda_nccl_open(struct backend *be, struct rd_error *err)
{
    struct cuda_joins *j = be->joins;
    char version[32];
    void *parts = NULL;
    rd_status st = cuda_device_alloc(be, j->n_ranks * NCCL_PART_BYTES, &parts);

    j->parts = parts;
    if (st != RD_OK) return error_set(err, st, "no memory for NCCL's parts on %s", be->name);
    st = cuda_check(be, (int)cudaEventCreateWithFlags(&j->ended, cudaEventDisableTiming), "event");
    if (st == RD_OK)
        st = check(be, j->nccl->comm_init_rank(&j->comm, (int)j->n_ranks, j->id, (int)j->rank), "connecting");
    j->is_watched = st == RD_OK && thread_start(&j->watcher, "nccl", watch, j) == RD_OK;
    if (st == RD_OK && !j->is_watched) return error_set(err, RD_E_NOMEM, "cannot start a thread for rank %u", j->rank);
    for (uint64_t n = 16; n <= NCCL_PART_BYTES && st == RD_OK; n *= 1024) /* the first connects: not in a recording */
        st = check(be, gather(j, j->parts + j->rank * n, n, be->l.stream), "gather");
    if (st == RD_OK) st = cuda_wait_all(be, "NCCL");
    if (st != RD_OK)
        return error_set(
            err, st,
            "rank %u: NCCL does not connect (see the log; NCCL_DEBUG=WARN says more, --reduce host can do without)",
            j->rank);
    nccl_version_text(j->nccl->version, version, sizeof(version));
    if (j->rank == 0) log_info("NCCL %s", version);
    return RD_OK;
}

void cuda_nccl_close(struct backend *be)
{
    struct cuda_joins *j = be->joins;

    if (j->is_watched) {
        atomic_store(&j->is_closing, true);
        thread_join(&j->watcher);
    }
    if (j->comm) (be->is_dead ? j->nccl->comm_abort : j->nccl->comm_destroy)(j->comm);
    j->comm = NULL;
    cudaFree(j->parts);
    if (j->ended) cudaEventDestroy(j->ended);
    /* the library stays: other ranks may be in it, and it does not like to be opened twice */
}

rd_status cuda_nccl_join(struct backend *be, const struct cuda_join_args *a)
{
    struct cuda_joins *j = be->joins;
    const uint64_t row_bytes = (uint64_t)a->most * a->value_bytes;
    const uint32_t at_once = (uint32_t)u64_max(1, NCCL_PART_BYTES / u64_max(1, row_bytes));
    rd_status st = RD_OK;

    for (uint32_t row0 = 0; row0 < a->n_rows && st == RD_OK; row0 += at_once) {
        const uint32_t n = u32_min(at_once, a->n_rows - row0);
        const uint64_t part_bytes = (n * row_bytes + 15) / 16 * 16;
        uint8_t *own = j->parts + a->rank * part_bytes;

        st = cuda_check(be, cuda_join_pack(&be->l, a, row0, n, own), "join");
        if (st == RD_OK) st = check(be, gather(j, own, part_bytes, be->l.stream), "gather");
        if (st == RD_OK) st = cuda_check(be, cuda_join_unpack(&be->l, a, row0, n, j->parts, part_bytes), "join");
    }
    return st;
}

/* ---- waiting ---- */

static rd_status give_up(struct backend *be, const char *why)
{
    struct cuda_joins *j = be->joins;

    log_error("%s: rank %u of %u waited for the others in NCCL: %s", be->name, j->rank, j->n_ranks, why);
    rank_group_leave(j->group, RD_E_DEVICE);
    end_comm(j);
    return cuda_check(be, (int)cudaErrorLaunchTimeout, "joins by NCCL were given up");
}

static rd_status wait_by_looking(struct backend *be, cudaEvent_t event, const char *what)
{
    struct cuda_joins *j = be->joins;
    const uint64_t began = clock_now_ns(clock_system());

    for (uint32_t i = 1;; i++) {
        const cudaError_t error = cudaEventQuery(event);

        if (atomic_load(&j->host_words->stop)) return give_up(be, "one of them left"); /* or its kernels were ended */
        if (error != cudaErrorNotReady) return cuda_check(be, (int)error, what);
        pause_briefly();
        if (i % LOOKS_A_CLOCK) continue;
        if (clock_now_ns(clock_system()) - began > rank_group_patience(j->group)) return give_up(be, "too long");
    }
}

rd_status cuda_wait_event(struct backend *be, void *event, const char *what)
{
    cudaEvent_t e = event;

    if (be->is_dead) return RD_E_DEVICE;
    if (be->joins && be->joins->ended) return wait_by_looking(be, e, what);
    return cuda_check(be, (int)cudaEventSynchronize(e), what);
}

rd_status cuda_wait_all(struct backend *be, const char *what)
{
    cudaStream_t stream = be->l.stream;

    if (be->is_dead) return RD_E_DEVICE;
    if (!be->joins || !be->joins->ended) return cuda_check(be, (int)cudaStreamSynchronize(stream), what);
    if (cuda_check(be, (int)cudaEventRecord(be->joins->ended, stream), what) != RD_OK) return RD_E_DEVICE;
    return wait_by_looking(be, be->joins->ended, what);
}
