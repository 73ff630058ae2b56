/* grad/cuda/cuda_attention_back.c - runs as the kernels have them: sequences, tiles of their queries and keys, positions, pages. */
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "grad/cuda/cuda_grad.h"

#define TILE 64u

/* Sizes of the parts of what is sent, one behind the other. */
struct runs_shape {
    uint32_t n_sequences, n_q_tiles, n_key_tiles, n_positions, n_pages, n_keys, max_keys;
};
struct runs_parts {
    struct grad_cuda_sequence *sequences;
    struct grad_cuda_tile *q_tiles, *key_tiles;
    uint32_t *positions, *tables;
};

static uint64_t parts_of(const struct runs_shape *s, char *at, struct runs_parts *out)
{
    const char *begin = at;

    out->sequences = (struct grad_cuda_sequence *)(void *)at;
    at += s->n_sequences * sizeof(*out->sequences);
    out->q_tiles = (struct grad_cuda_tile *)(void *)at;
    at += s->n_q_tiles * sizeof(*out->q_tiles);
    out->key_tiles = (struct grad_cuda_tile *)(void *)at;
    at += s->n_key_tiles * sizeof(*out->key_tiles);
    out->positions = (uint32_t *)(void *)at;
    at += s->n_positions * sizeof(*out->positions);
    out->tables = (uint32_t *)(void *)at;
    at += s->n_pages * sizeof(*out->tables);
    return (uint64_t)(at - begin);
}

/* Runs of the same pages from i on are a sequence, or its wanted rows. */
static uint32_t end_of_sequence(const struct attention_args *a, uint32_t i)
{
    uint32_t end = i + 1;

    while (end < a->n_runs && a->runs[end].block_table == a->runs[i].block_table) end++;
    return end;
}

static uint32_t tiles_of(uint32_t n)
{
    return u32_ceil_div(n, TILE);
}

static struct grad_cuda_sequence sequence_of(const struct grad_attention *g, uint32_t i, uint32_t end)
{
    const struct attention_args *a = g->a;
    const struct seq_run *first = &a->runs[i], *last = &a->runs[end - 1];
    const uint32_t per_page = a->kv->layout.page_tokens;

    return (struct grad_cuda_sequence){.q_row0 = first->row0,
                                       .n_q = last->row0 + last->n_rows - first->row0,
                                       .key_row0 = g->row_of[first->block_table[0] * per_page],
                                       .n_keys = last->pos0 + last->n_rows};
}

static struct runs_shape shape_of(const struct grad_attention *g)
{
    const struct attention_args *a = g->a;
    struct runs_shape s = {.n_positions = a->n_rows};

    for (uint32_t i = 0, end; i < a->n_runs; i = end) {
        end = end_of_sequence(a, i);

        const struct grad_cuda_sequence q = sequence_of(g, i, end);

        s.n_sequences++;
        s.n_q_tiles += tiles_of(q.n_q);
        s.n_key_tiles += tiles_of(q.n_keys);
        s.n_pages += u32_ceil_div(q.n_keys, a->kv->layout.page_tokens);
        s.n_keys += q.n_keys;
        s.max_keys = u32_max(s.max_keys, q.n_keys);
    }
    return s;
}

static void fill(const struct grad_attention *g, const struct runs_parts *p)
{
    const struct attention_args *a = g->a;
    const uint32_t per_page = a->kv->layout.page_tokens;
    uint32_t n = 0, n_q = 0, n_key = 0, n_pages = 0;

    for (uint32_t i = 0, end; i < a->n_runs; i = end) {
        const kv_page *table = a->runs[i].block_table;
        struct grad_cuda_sequence s;

        end = end_of_sequence(a, i);
        s = sequence_of(g, i, end);
        s.table = n_pages;
        for (uint32_t k = i; k < end; k++)
            for (uint32_t r = 0; r < a->runs[k].n_rows; r++) p->positions[a->runs[k].row0 + r] = a->runs[k].pos0 + r;
        for (uint32_t t = 0; t < s.n_keys; t++) /* a pass is of whole sequences: their rows follow each other */
            assert(g->row_of[table[t / per_page] * per_page + t % per_page] == s.key_row0 + t);
        for (uint32_t t = 0; t < s.n_q; t += TILE) p->q_tiles[n_q++] = (struct grad_cuda_tile){n, t};
        for (uint32_t t = 0; t < s.n_keys; t += TILE) p->key_tiles[n_key++] = (struct grad_cuda_tile){n, t};
        memcpy(p->tables + n_pages, table, u32_ceil_div(s.n_keys, per_page) * sizeof(*table));
        n_pages += u32_ceil_div(s.n_keys, per_page);
        p->sequences[n++] = s;
    }
}

/* To the device, unless the same is there. */
static rd_status send(struct grad_device *d, char *host, uint64_t n_bytes)
{
    rd_status st;

    if (n_bytes == d->n_runs_bytes && memcmp(host, d->runs_host, n_bytes) == 0) {
        mem_free(host);
        return RD_OK;
    }
    mem_free(d->runs_host);
    cuda_grad_give(d, d->runs_device);
    d->runs_host = host;
    d->n_runs_bytes = 0;
    d->runs_device = cuda_grad_take(d, n_bytes);
    if (!d->runs_device) return RD_E_NOMEM;
    st = cuda_check(
        d->be, (int)cudaMemcpyAsync(d->runs_device, host, n_bytes, cudaMemcpyHostToDevice, (cudaStream_t)d->l.stream),
        "runs");
    if (st == RD_OK) d->n_runs_bytes = n_bytes;
    return st;
}

static rd_status launch(struct grad_device *d, const struct grad_attention *g, const struct runs_shape *s,
                        const struct runs_parts *p)
{
    const struct attention_args *a = g->a;
    const uint64_t kv_bytes = (uint64_t)g->n_rows * a->n_kv_heads * a->head_dim * sizeof(float);
    struct grad_cuda_attention k = {
        .n_rows = a->n_rows,
        .n_heads = a->n_heads,
        .n_kv_heads = a->n_kv_heads,
        .head_dim = a->head_dim,
        .q_stride = a->q_stride,
        .out_stride = a->out_stride,
        .q = g->q,
        .q_type = (int)a->kv->layout.dtype_k,
        .dout = g->dout,
        .scale = a->scale,
        .softcap = a->softcap,
        .window = a->window,
        .kv = cuda_layer_kv(a->kv, a->layer),
        .n_sequences = s->n_sequences,
        .n_q_tiles = s->n_q_tiles,
        .n_key_tiles = s->n_key_tiles,
        .max_keys = s->max_keys,
        .sequences = p->sequences,
        .q_tiles = p->q_tiles,
        .key_tiles = p->key_tiles,
        .positions = p->positions,
        .tables = p->tables,
        .dq = g->dq,
        .dk = g->dk,
        .dv = g->dv,
    };
    rd_status st = RD_OK;

    k.stats = cuda_grad_take(d, 2 * (uint64_t)a->n_rows * a->n_heads * sizeof(float));
    if (!k.stats) return RD_E_NOMEM;
    if (s->n_keys < g->n_rows) { /* rows behind the last that is wanted, or of sequences of which none is */
        st = cuda_check(d->be, (int)cudaMemsetAsync(g->dk, 0, kv_bytes, (cudaStream_t)d->l.stream), "zero");
        if (st == RD_OK)
            st = cuda_check(d->be, (int)cudaMemsetAsync(g->dv, 0, kv_bytes, (cudaStream_t)d->l.stream), "zero");
    }
    if (st == RD_OK) st = cuda_check(d->be, grad_cuda_attention(&d->l, &k), "gradient of attention");
    cuda_grad_give(d, k.stats);
    return st;
}

rd_status cuda_attention_back(struct grad_device *d, const struct grad_attention *g)
{
    const struct runs_shape s = shape_of(g);
    struct runs_parts parts;
    const uint64_t n_bytes = parts_of(&s, NULL, &parts);
    char *host = mem_zalloc(1, n_bytes);
    rd_status st;

    if (!host) return RD_E_NOMEM;
    (void)parts_of(&s, host, &parts);
    fill(g, &parts);
    st = send(d, host, n_bytes);
    if (st != RD_OK) return st;
    (void)parts_of(&s, d->runs_device, &parts);
    return launch(d, g, &s, &parts);
}
