/* backend/cuda/host/cuda_move.c - pages to and from host memory beside the steps: a stream and a ring of events each way.
 *
 * Neighbours on both sides go in one copy, up to the border of what was pinned in one call (pin_map.h). A copy to the
 * device begins after the ops that were given before it (an event of the ops' stream), one to the host at once; the ops
 * never wait for copies: their user hands nothing on before move_end.
 * A copy that fails harms its pages alone: RD_E_IO, once nothing of its lane is under way. Only an error that stays (a
 * CUDA context does not recover from a kernel that faulted) is the device's.
 */
#include "backend/cuda/host/cuda_backend.h"
#include "base/checked.h"
#include "base/log.h"

#define MOST_PAGES 64u /* in one call of copy_runs: their addresses lie on the stack */

static void close_lane(struct cuda_lane *lane)
{
    for (uint32_t i = 0; i < CUDA_LANE_EVENTS; i++)
        if (lane->done[i]) cudaEventDestroy(lane->done[i]);
    if (lane->order) cudaEventDestroy(lane->order);
    if (lane->stream) cudaStreamDestroy(lane->stream);
    *lane = (struct cuda_lane){0};
}

static cudaError_t open_lane(struct cuda_lane *lane)
{
    cudaStream_t stream = NULL;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);

    lane->stream = stream;
    for (uint32_t i = 0; i < CUDA_LANE_EVENTS && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&lane->done[i], cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&lane->order, cudaEventDisableTiming);
    if (error != cudaSuccess) close_lane(lane); /* the next copy tries again */
    return error;
}

void cuda_lanes_free(struct backend *be)
{
    for (uint32_t k = 0; k < 2; k++) close_lane(&be->lanes[k]);
}

/* RD_OK for 0. Else nothing of the lane is under way any more, and the device lives unless the error stayed. */
static rd_status check_copy(struct backend *be, struct cuda_lane *lane, cudaError_t error)
{
    cudaError_t now;

    if (error == cudaSuccess) return RD_OK;
    (void)cudaGetLastError();
    now = cudaStreamSynchronize(lane->stream);
    if (now != cudaSuccess) return cuda_check(be, (int)now, "pages to or from host memory");
    lane->n_done = lane->n_begun;
    be->n_copy_errors++;
    if ((be->n_copy_errors & (be->n_copy_errors - 1)) == 0) /* the 1st, 2nd, 4th, 8th .. */
        log_warn("CUDA device %d (%s): a copy of pages to or from host memory failed, they count as not there: %s (%s)",
                 be->device, be->name, cudaGetErrorString(error), cudaGetErrorName(error));
    return RD_E_IO;
}

static cudaError_t copy_runs(struct backend *be, struct cuda_lane *lane, const struct kv_storage *kv, bool out,
                             uint32_t n, const kv_page *ids, void *const *host)
{
    const uint64_t n_bytes = kv->page_bytes;
    void *device[MOST_PAGES];
    cudaError_t error = cudaSuccess;

    for (uint32_t i = 0; i < n; i++) device[i] = (char *)kv->base + ids[i] * n_bytes;
    for (uint32_t i = 0, k; i < n && error == cudaSuccess; i += k) {
        k = pin_map_run(&be->pins, n - i, device + i, host + i, n_bytes);
        error = cudaMemcpyAsync(out ? host[i] : device[i], out ? device[i] : host[i], (size_t)(k * n_bytes),
                                out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, lane->stream);
    }
    return error;
}

rd_status cuda_move_begin(struct backend *be, const struct kv_storage *kv, bool out, uint32_t n, const kv_page *ids,
                          void *const *host, uint64_t *ticket)
{
    struct cuda_lane *lane = &be->lanes[out];
    cudaError_t error = cudaSuccess;
    cudaEvent_t done;

    if (cuda_let_go(be) != RD_OK) return RD_E_DEVICE;
    if (!lane->stream) error = open_lane(lane);
    done = lane->done[lane->n_begun % CUDA_LANE_EVENTS];
    if (error == cudaSuccess && lane->n_begun - lane->n_done == CUDA_LANE_EVENTS) {
        error = cudaEventSynchronize(done);
        lane->n_done++;
    }
    if (error == cudaSuccess && !out) error = cudaEventRecord(lane->order, (cudaStream_t)be->l.stream);
    if (error == cudaSuccess && !out) error = cudaStreamWaitEvent(lane->stream, lane->order, 0);
    for (uint32_t at = 0; at < n && error == cudaSuccess; at += MOST_PAGES)
        error = copy_runs(be, lane, kv, out, u32_min(n - at, MOST_PAGES), ids + at, host + at);
    if (error == cudaSuccess) error = cudaEventRecord(done, lane->stream);
    if (error != cudaSuccess) return check_copy(be, lane, error);
    *ticket = ++lane->n_begun;
    return RD_OK;
}

rd_status cuda_move_end(struct backend *be, bool out, uint64_t ticket, bool wait)
{
    struct cuda_lane *lane = &be->lanes[out];
    cudaError_t error;

    if (be->is_dead) return RD_E_DEVICE;
    if (ticket <= lane->n_done) return RD_OK;
    error = wait ? cudaEventSynchronize(lane->done[(ticket - 1) % CUDA_LANE_EVENTS])
                 : cudaEventQuery(lane->done[(ticket - 1) % CUDA_LANE_EVENTS]);
    if (error == cudaErrorNotReady) return RD_E_AGAIN;
    if (error == cudaSuccess) lane->n_done = ticket;
    return check_copy(be, lane, error);
}
