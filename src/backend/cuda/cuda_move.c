/* backend/cuda/cuda_move.c - pages to and from host memory beside the steps: a stream and a ring of events each way.
 *
 * Neighbours on both sides go in one copy. A copy to the device begins after the ops that were given before it (an event
 * of the ops' stream), one to the host at once; the ops never wait for copies: their user hands nothing on before move_end.
 */
#include "backend/cuda/cuda_backend.h"
#include "base/checked.h"

static cudaError_t open_lane(struct cuda_lane *lane)
{
    cudaStream_t stream = NULL;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);

    lane->stream = stream;
    for (uint32_t i = 0; i < CUDA_LANE_EVENTS && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&lane->done[i], cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&lane->order, cudaEventDisableTiming);
    return error;
}

void cuda_lanes_free(struct backend *be)
{
    for (uint32_t k = 0; k < 2; k++) {
        struct cuda_lane *lane = &be->lanes[k];

        for (uint32_t i = 0; i < CUDA_LANE_EVENTS; i++)
            if (lane->done[i]) cudaEventDestroy(lane->done[i]);
        if (lane->order) cudaEventDestroy(lane->order);
        if (lane->stream) cudaStreamDestroy(lane->stream);
        *lane = (struct cuda_lane){0};
    }
}

static cudaError_t copy_runs(struct cuda_lane *lane, bool out, uint32_t n, void *const *device, void *const *host,
                             uint64_t n_bytes)
{
    cudaError_t error = cudaSuccess;

    for (uint32_t i = 0, k; i < n && error == cudaSuccess; i = k) {
        for (k = i + 1; k < n; k++)
            if ((char *)device[k] != (char *)device[k - 1] + n_bytes ||
                (char *)host[k] != (char *)host[k - 1] + n_bytes)
                break;
        error =
            out ? cudaMemcpyAsync(host[i], device[i], (size_t)((k - i) * n_bytes), cudaMemcpyDeviceToHost, lane->stream)
                : cudaMemcpyAsync(device[i], host[i], (size_t)((k - i) * n_bytes), cudaMemcpyHostToDevice,
                                  lane->stream);
    }
    return error;
}

rd_status cuda_move_begin(struct backend *be, bool out, uint32_t n, void *const *device, void *const *host,
                          uint64_t n_bytes, uint64_t *ticket)
{
    struct cuda_lane *lane = &be->lanes[out];
    cudaError_t error = cudaSuccess;
    cudaEvent_t done;

    if (be->is_dead) return RD_E_DEVICE;
    if (!lane->stream) error = open_lane(lane);
    done = lane->done[lane->n_begun % CUDA_LANE_EVENTS];
    if (error == cudaSuccess && lane->n_begun - lane->n_done == CUDA_LANE_EVENTS) {
        error = cudaEventSynchronize(done);
        lane->n_done++;
    }
    if (error == cudaSuccess && !out) error = cudaEventRecord(lane->order, (cudaStream_t)be->l.stream);
    if (error == cudaSuccess && !out) error = cudaStreamWaitEvent(lane->stream, lane->order, 0);
    if (error == cudaSuccess) error = copy_runs(lane, out, n, device, host, n_bytes);
    if (error == cudaSuccess) error = cudaEventRecord(done, lane->stream);
    *ticket = ++lane->n_begun;
    return cuda_check(be, (int)error, "pages to or from host memory");
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
    return cuda_check(be, (int)error, "pages to or from host memory");
}
