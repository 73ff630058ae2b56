/* backend/cuda/host/cuda_graph.c - decode steps as CUDA graphs.
 *
 * A graph is kept per (model, rows, power of two that all positions are below, whether rows share pages, ranks of a row's
 * adapters at most, and what they are of): kernels' grids and which of them run depend on no more. It is made lazily: the first step of a kind runs launch by launch,
 * which also loads its kernels; the second is recorded; then it is replayed. What changes from step to step is metadata
 * in device memory at fixed places, sent before (step_edges.cu):
 *
 *     tokens [n] | positions [n] | row_page [n] | row_slot [n] | window_page [n] | draws [n] | adapters [n]
 *     | runs [n] | what they share | window_runs [n] | what they share | block tables of pages, of windows
 *
 * Of windows the tables begin where those of pages end, at another place in every step; runs say where. What kernels are told
 * when they are recorded is where the first table begins.
 *
 * A step may be given while the one before it runs: what is sent lies in two host buffers in turn, and the device
 * copies it in order. Tokens that only the step before knows are put in their places there, before the graph runs.
 */
#include <assert.h>
#include <string.h>
#include "backend/cuda/host/cuda_backend.h"
#include "backend/cuda/host/cuda_sharing.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

static cudaStream_t stream_of(const struct backend *be)
{
    return (cudaStream_t)be->l.stream;
}

void cuda_graphs_free(struct backend *be)
{
    if (be->n_gaps > 0)
        log_debug(
            "%llu replayed steps: the device was busy for %.1f ms; between %llu that followed each other it was idle "
            "for %.1f ms (%.2f %%)",
            (unsigned long long)be->n_timed, be->busy_ms, (unsigned long long)be->n_gaps, be->idle_ms,
            100 * be->idle_ms / (be->idle_ms + be->busy_ms * (double)be->n_gaps / (double)be->n_timed));
    for (uint32_t i = 0; i < CUDA_MARKS; i++) {
        if (be->timings[i].begin) cudaEventDestroy(be->timings[i].begin);
        if (be->timings[i].end) cudaEventDestroy(be->timings[i].end);
        if (be->marks[i]) cudaEventDestroy(be->marks[i]);
    }
    for (size_t i = 0; i < be->n_graphs; i++)
        if (be->graphs[i].exec) cudaGraphExecDestroy(be->graphs[i].exec);
    mem_free(be->graphs);
    be->graphs = NULL;
    be->n_graphs = 0;
}

/* Without events nothing is timed. */
static void timing_begin(struct backend *be)
{
    struct cuda_timing *t = &be->timings[be->n_begun % CUDA_MARKS];

    if (!t->begin && cudaEventCreate(&t->begin) == cudaSuccess) cudaEventCreate(&t->end);
    t->is_on = t->end && cudaEventRecord(t->begin, stream_of(be)) == cudaSuccess;
}

void cuda_timing_end(struct backend *be)
{
    struct cuda_timing *t = &be->timings[be->n_begun % CUDA_MARKS];

    if (t->is_on) t->is_on = cudaEventRecord(t->end, stream_of(be)) == cudaSuccess;
}

void cuda_timing_read(struct backend *be, uint64_t step)
{
    struct cuda_timing *t = &be->timings[step % CUDA_MARKS];
    cudaEvent_t before = be->last_end;
    float ms = 0;

    be->last_end = NULL;
    if (!t->is_on || cudaEventElapsedTime(&ms, t->begin, t->end) != cudaSuccess) return;
    t->is_on = false;
    be->busy_ms += (double)ms;
    be->n_timed++;
    be->last_end = t->end;
    if (!before || cudaEventElapsedTime(&ms, before, t->begin) != cudaSuccess) return;
    be->idle_ms += (double)ms;
    be->n_gaps++;
}

/* ---- steps that are waited for later ---- */

bool cuda_can_mark(const struct backend *be)
{
    return !be->no_graphs;
}

rd_status cuda_mark(struct backend *be)
{
    rd_status st = cuda_let_go(be);

    cuda_timing_end(be);
    return st != RD_OK
               ? st
               : cuda_check(be, (int)cudaEventRecord(be->marks[be->n_begun++ % CUDA_MARKS], stream_of(be)), "mark");
}

rd_status cuda_wait_mark(struct backend *be)
{
    uint64_t step = be->n_waited;
    rd_status st;

    assert(step < be->n_begun);
    be->n_waited++;
    st = cuda_wait_event(be, be->marks[step % CUDA_MARKS], "step");
    cuda_timing_read(be, step);
    if (be->n_waited == be->n_begun) be->n_sent = be->n_meta = 0;
    return st;
}

static void put(struct backend *be, const void *host, uint64_t n_bytes)
{
    memcpy(be->meta_host + be->n_meta, host, (size_t)n_bytes);
    be->sent[be->n_sent++] =
        (struct cuda_sent){.host = host, .n_bytes = n_bytes, .device = be->meta_device + be->n_meta};
    be->n_meta = (be->n_meta + n_bytes + 255) / 256 * 256;
}

static void put_adapted(struct backend *be, const struct graph_step *s)
{
    cuda_adapted_tiles(s->adapted, s->n_rows, (struct cuda_low_rank_tile *)(void *)(be->meta_host + be->n_meta));
    be->sent[be->n_sent++] =
        (struct cuda_sent){.host = s->adapted, .n_bytes = s->n_rows, .device = be->meta_device + be->n_meta};
    be->n_meta = (be->n_meta + s->n_rows * sizeof(struct cuda_low_rank_tile) + 255) / 256 * 256;
}

static uint64_t table_pages(const struct graph_step *s)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->n_rows; i++) n += s->runs[i].pos0 / s->kv->layout.page_tokens + 1;
    return s->windows ? 2 * n : n;
}

/* One memory's runs at be->n_meta, what they share behind them, and their tables to tables[*n_pages]. *shares: something. */
static void put_runs(struct backend *be, const struct graph_step *s, const struct seq_run *from,
                     const struct kv_storage *kv, uint32_t end, uint32_t *tables, uint32_t *n_pages, bool *shares)
{
    const uint64_t at = be->n_meta, n_bytes = s->n_rows * sizeof(struct cuda_run) + cuda_sharing_bytes(s->n_rows);
    struct cuda_run *runs = (struct cuda_run *)(be->meta_host + at);
    struct cuda_sent *sent = &be->sent[be->n_sent++];

    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct seq_run *r = &from[i];
        const uint32_t n = r->pos0 / kv->layout.page_tokens + 1;

        assert(r->row0 == i && (r->n_rows == 1 || r->pos0 == 0)); /* padding: no rows */
        runs[i] = (struct cuda_run){.row0 = i, .n_rows = r->n_rows, .pos0 = r->pos0, .table = *n_pages};
        cuda_put_table(tables + *n_pages, r, n, kv);
        *n_pages += n;
    }
    *sent = (struct cuda_sent){
        .host = from, .n_bytes = s->n_rows, .device = be->meta_device + at, .longest = 1, .end = end};
    sent->tables = (const uint32_t *)(be->meta_device + ((char *)tables - be->meta_host));
    sent->shared = cuda_share_runs(be, runs, s->n_rows, end, tables, kv, runs + s->n_rows);
    *shares |= sent->shared.head != NULL;
    be->n_meta = (at + n_bytes + 255) / 256 * 256;
}

/* The step's metadata to its places; false: the block tables are beyond the buffer. */
static bool put_step(struct backend *be, const struct graph_step *s, uint32_t end, const uint32_t **from, bool *shares)
{
    const uint64_t row_bytes = s->n_rows * sizeof(uint32_t), n_all = table_pages(s),
                   runs_bytes = s->n_rows * sizeof(struct cuda_run) + cuda_sharing_bytes(s->n_rows) + 256;
    uint32_t *tables, n_pages = 0;

    assert(!cuda_is_loading(be));
    be->n_sent = 0;
    be->n_meta = 0;
    be->meta_host = be->meta_hosts[be->meta_host == be->meta_hosts[0]];
    if (s->n_rows * (17 * sizeof(uint32_t) + sizeof(struct cuda_low_rank_tile)) + 2 * runs_bytes +
            n_all * sizeof(*tables) + 4096 >
        CUDA_META_BYTES)
        return false;
    put(be, s->tokens, row_bytes);
    put(be, s->positions, row_bytes);
    put(be, s->row_page, row_bytes);
    put(be, s->row_slot, row_bytes);
    if (s->windows) put(be, s->window_page, row_bytes);
    if (s->draws) put(be, s->draws, s->n_rows * sizeof(*s->draws));
    if (s->adapted) put_adapted(be, s);
    *shares = false;
    tables = (uint32_t *)(void *)(be->meta_host + be->n_meta + (s->windows ? 2 : 1) * (runs_bytes + 255) / 256 * 256);
    put_runs(be, s, s->runs, s->kv, end, tables, &n_pages, shares);
    if (s->windows) put_runs(be, s, s->window_runs, s->windows, end, tables, &n_pages, shares);
    be->n_meta = ((uint64_t)((char *)(tables + n_pages) - be->meta_host) + 255) / 256 * 256;
    *from = s->from ? (const uint32_t *)(be->meta_host + be->n_meta) : NULL; /* behind all: graphs do not read it */
    if (s->from) put(be, s->from, row_bytes);
    return true;
}

/* The step's graph, seen or new; NULL: there is no room for another. */
static struct cuda_graph *find_graph(struct backend *be, const struct graph_step *s, uint32_t end, bool shares,
                                     bool *is_new)
{
    const uint32_t kinds = s->adapted ? cuda_adapted_kinds(s->adapted, s->n_rows) : 0;

    *is_new = false;
    for (size_t i = 0; i < be->n_graphs; i++)
        if (be->graphs[i].owner == s->owner && be->graphs[i].n_rows == s->n_rows && be->graphs[i].end == end &&
            be->graphs[i].shares == shares && be->graphs[i].most_ranks == (s->adapted ? s->most_ranks : 0) &&
            be->graphs[i].kinds == kinds)
            return &be->graphs[i];
    if (be->n_graphs == CUDA_MAX_GRAPHS) return NULL;
    *is_new = true;
    be->graphs[be->n_graphs] =
        (struct cuda_graph){s->owner, s->n_rows, end, s->adapted ? s->most_ranks : 0, kinds, shares, NULL};
    return &be->graphs[be->n_graphs++];
}

rd_status cuda_graph_begin(struct backend *be, const struct graph_step *s, enum graph_action *out)
{
    uint32_t end = GRAPH_LEAST_END;
    const uint32_t *from;
    struct cuda_graph *g;
    bool is_new, shares;
    rd_status st;

    *out = GRAPH_PLAIN;
    st = cuda_let_go(be);
    if (st != RD_OK) return st;
    if (be->no_graphs) return RD_OK;
    for (uint32_t i = 0; i < s->n_rows; i++)
        while (end <= s->runs[i].pos0) end *= 2;
    if (!put_step(be, s, end, &from, &shares))
        return s->from ? cuda_check(be, (int)cudaErrorInvalidValue, "metadata") : RD_OK;
    g = find_graph(be, s, end, shares, &is_new);
    st = cuda_check(
        be, cuda_begin_step(&be->l, be->n_meta, be->meta_host, be->meta_device, s->n_rows, from, cuda_at(s->choices)),
        "metadata");
    if (st != RD_OK || is_new || !g) return st;
    if (g->exec) {
        *out = GRAPH_REPLAYED;
        timing_begin(be);
        st = cuda_joins_replay(be);
        return st != RD_OK ? st : cuda_check(be, (int)cudaGraphLaunch(g->exec, stream_of(be)), "graph launch");
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
    rd_status held = cuda_let_go(be);
    cudaError_t error = cudaStreamEndCapture(stream_of(be), &graph);

    if (error == cudaSuccess) error = cudaGraphInstantiate(&g->exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (error == cudaSuccess && be->joins) error = cudaGraphUpload(g->exec, stream_of(be));
    if (held == RD_OK && error == cudaSuccess) held = cuda_joins_ready(be);
    if (held == RD_OK && error == cudaSuccess) error = cudaGraphLaunch(g->exec, stream_of(be));
    log_debug("graph of %u rows%s, positions below %u, adapters of rank %u: %s", g->n_rows,
              g->shares ? " that share pages" : "", g->end, g->most_ranks, cudaGetErrorString(error));
    return held != RD_OK ? held : cuda_check(be, (int)error, "graph");
}
