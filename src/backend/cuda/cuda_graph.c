/* backend/cuda/cuda_graph.c - decode steps as CUDA graphs.
 *
 * A graph is kept per (model, rows, power of two that all positions are below): kernels' grids depend on no more. It is
 * made lazily: the first step of a kind runs launch by launch, which also loads its kernels; the second is recorded; then
 * it is replayed. What changes from step to step is metadata in device memory at fixed places, sent by one copy before:
 *
 *     tokens [n] | positions [n] | row_page [n] | row_slot [n] | draws [n] | runs [n] | block tables, one after the other
 */
#include <assert.h>
#include <string.h>
#include "backend/cuda/cuda_backend.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define LEAST_END  512u

static cudaStream_t stream_of(const struct backend *be)
{
    return (cudaStream_t)be->l.stream;
}

void cuda_graphs_free(struct backend *be)
{
    if (be->n_timed > 0)
        log_debug("%llu replayed steps: the device was busy for %.1f ms, from the first to the last %.1f ms passed",
                  (unsigned long long)be->n_timed, be->busy_ms, (double)(be->last_ns - be->first_ns) / 1e6);
    if (be->step_begin) cudaEventDestroy(be->step_begin);
    if (be->step_end) cudaEventDestroy(be->step_end);
    for (size_t i = 0; i < be->n_graphs; i++)
        if (be->graphs[i].exec) cudaGraphExecDestroy(be->graphs[i].exec);
    mem_free(be->graphs);
    be->graphs = NULL;
    be->n_graphs = 0;
}

/* Without events nothing is timed. */
static void timing_begin(struct backend *be)
{
    if (!be->step_begin && cudaEventCreate(&be->step_begin) == cudaSuccess) cudaEventCreate(&be->step_end);
    be->is_timing = be->step_end && cudaEventRecord(be->step_begin, stream_of(be)) == cudaSuccess;
    if (be->is_timing && be->n_timed == 0) be->first_ns = clock_now_ns(clock_system());
}

void cuda_timing_end(struct backend *be)
{
    if (be->is_timing) be->is_timing = cudaEventRecord(be->step_end, stream_of(be)) == cudaSuccess;
}

void cuda_timing_read(struct backend *be)
{
    float ms = 0;

    if (be->is_timing && cudaEventElapsedTime(&ms, be->step_begin, be->step_end) == cudaSuccess) {
        be->busy_ms += (double)ms;
        be->n_timed++;
        be->last_ns = clock_now_ns(clock_system());
    }
    be->is_timing = false;
}

static void put(struct backend *be, const void *host, uint64_t n_bytes)
{
    memcpy(be->meta_host + be->n_meta, host, (size_t)n_bytes);
    be->sent[be->n_sent++] = (struct cuda_sent){host, n_bytes, be->meta_device + be->n_meta, NULL, 0, 0};
    be->n_meta = (be->n_meta + n_bytes + 255) / 256 * 256;
}

/* The step's metadata to its places; false: the block tables are beyond the buffer. */
static bool put_step(struct backend *be, const struct graph_step *s, uint32_t end)
{
    uint64_t row_bytes = s->n_rows * sizeof(uint32_t), at, n_pages = 0;
    struct cuda_run *runs;
    uint32_t *tables;

    be->n_sent = 0;
    be->n_meta = 0;
    for (uint32_t i = 0; i < s->n_rows; i++) n_pages += s->runs[i].pos0 / s->kv->layout.page_tokens + 1;
    if (s->n_rows * (16 * sizeof(uint32_t) + sizeof(*runs)) + n_pages * sizeof(*tables) + 4096 > CUDA_META_BYTES)
        return false;
    put(be, s->tokens, row_bytes);
    put(be, s->positions, row_bytes);
    put(be, s->row_page, row_bytes);
    put(be, s->row_slot, row_bytes);
    if (s->draws) put(be, s->draws, s->n_rows * sizeof(*s->draws));
    at = be->n_meta;
    runs = (struct cuda_run *)(be->meta_host + at);
    tables = (uint32_t *)(runs + s->n_rows);
    n_pages = 0;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct seq_run *r = &s->runs[i];
        uint32_t n = r->pos0 / s->kv->layout.page_tokens + 1;

        assert(r->row0 == i && r->n_rows == 1);
        runs[i] = (struct cuda_run){i, 1, r->pos0, (uint32_t)n_pages};
        memcpy(tables + n_pages, r->block_table, n * sizeof(*tables));
        n_pages += n;
    }
    be->sent[be->n_sent++] = (struct cuda_sent){s->runs, s->n_rows, be->meta_device + at,
                                                (uint32_t *)(be->meta_device + at + s->n_rows * sizeof(*runs)), 1, end};
    be->n_meta = (at + s->n_rows * sizeof(*runs) + n_pages * sizeof(*tables) + 255) / 256 * 256;
    return true;
}

/* The step's graph, seen or new; NULL: there is no room for another. */
static struct cuda_graph *find_graph(struct backend *be, const struct graph_step *s, uint32_t end, bool *is_new)
{
    *is_new = false;
    for (size_t i = 0; i < be->n_graphs; i++)
        if (be->graphs[i].owner == s->owner && be->graphs[i].n_rows == s->n_rows && be->graphs[i].end == end)
            return &be->graphs[i];
    if (be->n_graphs == CUDA_MAX_GRAPHS) return NULL;
    *is_new = true;
    be->graphs[be->n_graphs] = (struct cuda_graph){s->owner, s->n_rows, end, NULL};
    return &be->graphs[be->n_graphs++];
}

rd_status cuda_graph_begin(struct backend *be, const struct graph_step *s, enum graph_action *out)
{
    uint32_t end = LEAST_END;
    struct cuda_graph *g;
    bool is_new;
    rd_status st;

    *out = GRAPH_PLAIN;
    if (be->is_dead) return RD_E_DEVICE;
    if (be->no_graphs) return RD_OK;
    for (uint32_t i = 0; i < s->n_rows; i++)
        while (end <= s->runs[i].pos0) end *= 2;
    g = find_graph(be, s, end, &is_new);
    if (!g || !put_step(be, s, end)) return RD_OK;
    st = cuda_check(be, (int)cudaMemcpyAsync(be->meta_device, be->meta_host, (size_t)be->n_meta, cudaMemcpyHostToDevice,
                                             stream_of(be)), "metadata");
    if (st != RD_OK || is_new) return st;
    if (g->exec) {
        *out = GRAPH_REPLAYED;
        timing_begin(be);
        return cuda_check(be, (int)cudaGraphLaunch(g->exec, stream_of(be)), "graph launch");
    }
    be->recording = (size_t)(g - be->graphs);
    st = cuda_check(be, (int)cudaStreamBeginCapture(stream_of(be), cudaStreamCaptureModeThreadLocal), "graph capture");
    if (st == RD_OK) *out = GRAPH_RECORD;
    return st;
}

rd_status cuda_graph_end(struct backend *be)
{
    struct cuda_graph *g = &be->graphs[be->recording];
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamEndCapture(stream_of(be), &graph);

    if (error == cudaSuccess) error = cudaGraphInstantiate(&g->exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (error == cudaSuccess) error = cudaGraphLaunch(g->exec, stream_of(be));
    log_debug("graph of %u rows, positions below %u: %s", g->n_rows, g->end, cudaGetErrorString(error));
    return cuda_check(be, (int)error, "graph");
}
