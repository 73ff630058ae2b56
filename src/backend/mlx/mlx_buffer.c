/* backend/mlx/mlx_buffer.c - which array is at which place of a buffer. */
#include <assert.h>
#include <string.h>
#include "backend/mlx/mlx_backend.h"
#include "base/checked.h"
#include "base/mem.h"

rd_status mlx_alloc(struct backend *be, uint64_t n_bytes, struct buffer **out)
{
    struct buffer *b = mem_zalloc(1, sizeof(*b));

    if (!b) return RD_E_NOMEM;
    b->n_bytes = n_bytes;
    b->next = be->buffers;
    b->self = &be->buffers;
    if (b->next) b->next->self = &b->next;
    be->buffers = b;
    *out = b;
    return RD_OK;
}

void mlx_free(struct backend *be, struct buffer *b)
{
    if (!b) return;
    mlx_ahead_join(be);
    *b->self = b->next;
    if (b->next) b->next->self = b->self;
    for (size_t i = 0; i < b->n; i++) mlx_drop(b->pieces[i].array);
    mem_free(b->pieces);
    mem_free(b);
}

/* Bytes [from, to) of a piece, flat. */
static mlx_ref part(struct backend *be, const struct mlx_piece *p, uint64_t from, uint64_t to)
{
    if (from == p->at && to == p->at + p->n_bytes) return p->array;
    return mlx_slice(be->g, mlx_reshape(be->g, p->array, mlx_dims1(p->n_bytes / 4)), 0, (int32_t)((from - p->at) / 4),
                     (int32_t)((to - p->at) / 4));
}

static mlx_ref flat(struct backend *be, mlx_ref a, uint64_t n_bytes)
{
    return a ? mlx_reshape(be->g, a, mlx_dims1(n_bytes / 4)) : NULL;
}

/* The first piece that ends behind `at`. */
static size_t find(const struct buffer *b, uint64_t at)
{
    size_t i = 0;

    while (i < b->n && b->pieces[i].at + b->pieces[i].n_bytes <= at) i++;
    return i;
}

/* n_bytes from at on, of several pieces and of zeros between them. */
static mlx_ref assemble(struct backend *be, const struct buffer *b, uint64_t at, uint64_t n_bytes)
{
    const uint64_t end = at + n_bytes;
    mlx_ref parts[64];
    uint32_t n = 0;

    for (size_t i = find(b, at); at < end; i++) {
        const bool is_gap = i >= b->n || b->pieces[i].at > at;
        const uint64_t to =
            u64_min(end, is_gap ? i < b->n ? b->pieces[i].at : end : b->pieces[i].at + b->pieces[i].n_bytes);

        parts[n++] = is_gap ? mlx_zeros(be->g, MLX_F32, mlx_dims1((to - at) / 4))
                            : flat(be, part(be, &b->pieces[i], at, to), to - at);
        if (n == sizeof(parts) / sizeof(parts[0])) {
            parts[0] = mlx_concat(be->g, n, parts, 0);
            n = 1;
        }
        at = to;
        i -= is_gap;
    }
    return n == 1 ? parts[0] : mlx_concat(be->g, n, parts, 0);
}

static mlx_ref at_place(struct backend *be, struct span s, uint64_t n_bytes)
{
    const struct buffer *b = s.buffer;
    const size_t i = find(b, s.at);

    assert(s.at % 4 == 0 && n_bytes % 4 == 0);
    if (i < b->n && b->pieces[i].at <= s.at && s.at + n_bytes <= b->pieces[i].at + b->pieces[i].n_bytes)
        return part(be, &b->pieces[i], s.at, s.at + n_bytes);
    return assemble(be, b, s.at, n_bytes);
}

/* a becomes what is at the place; what others had there goes, or is cut. */
static bool put(struct backend *be, struct span s, mlx_ref a, uint64_t n_bytes)
{
    struct buffer *b = s.buffer;
    const uint64_t end = s.at + n_bytes;
    struct mlx_piece left = {0}, right = {0}, now = {s.at, n_bytes, mlx_keep(be->g, a), true};
    const size_t first = find(b, s.at);
    size_t i = first, k = first, n_new;

    if (!now.array || !mem_grow((void **)&b->pieces, &b->cap, b->n + 3, sizeof(*b->pieces))) goto fail;
    while (k < b->n && b->pieces[k].at < end) k++; /* i .. k-1 overlap it */
    if (k > i && b->pieces[i].at < s.at) {
        const struct mlx_piece *p = &b->pieces[i];

        left = (struct mlx_piece){p->at, s.at - p->at, mlx_keep(be->g, part(be, p, p->at, s.at)), p->dirty};
        if (!left.array) goto fail;
    }
    if (k > i && b->pieces[k - 1].at + b->pieces[k - 1].n_bytes > end) {
        const struct mlx_piece *p = &b->pieces[k - 1];
        const uint64_t stop = p->at + p->n_bytes;

        right = (struct mlx_piece){end, stop - end, mlx_keep(be->g, part(be, p, end, stop)), p->dirty};
        if (!right.array) goto fail;
    }
    n_new = 1u + (left.array != NULL) + (right.array != NULL);
    for (size_t j = i; j < k; j++) mlx_drop(b->pieces[j].array);
    memmove(b->pieces + i + n_new, b->pieces + k, (b->n - k) * sizeof(*b->pieces));
    if (left.array) b->pieces[i++] = left;
    b->pieces[i++] = now;
    if (right.array) b->pieces[i] = right;
    b->n = b->n + n_new - (k - first);
    return true;

fail:
    mlx_drop(now.array);
    mlx_drop(left.array);
    mlx_drop(right.array);
    return false;
}

mlx_ref mlx_load(struct backend *be, struct span s, uint32_t n_rows, uint32_t width, uint32_t stride)
{
    mlx_ref a;

    if (stride == width || n_rows == 1) {
        a = at_place(be, s, (uint64_t)n_rows * width * 4);
        return a ? mlx_reshape(be->g, a, mlx_dims2(n_rows, width)) : NULL;
    }
    a = at_place(be, s, (uint64_t)n_rows * stride * 4);
    return a ? mlx_slice(be->g, mlx_reshape(be->g, a, mlx_dims2(n_rows, stride)), 1, 0, (int32_t)width) : NULL;
}

void mlx_store(struct backend *be, struct span s, mlx_ref a, uint32_t n_rows, uint32_t width, uint32_t stride)
{
    uint64_t n_bytes = (uint64_t)n_rows * width * 4;

    if (stride != width && n_rows > 1) {
        const mlx_ref before = mlx_load(be, s, n_rows, stride, stride);

        a = mlx_replace(be->g, before, a ? mlx_reshape(be->g, a, mlx_dims2(n_rows, width)) : NULL, 1, 0);
        n_bytes = (uint64_t)n_rows * stride * 4;
    }
    if (a) put(be, s, a, n_bytes);
}

/* Whole words, which may be a byte or three more than what is wanted. */
static uint64_t words(uint64_t n_bytes)
{
    return (n_bytes + 3) / 4 * 4;
}

rd_status mlx_buffer_read(struct backend *be, void *to, struct span from, uint64_t n_bytes)
{
    rd_status st, said;

    mlx_ahead_join(be);
    st = mlx_want(be, at_place(be, from, words(n_bytes)), to, n_bytes);
    said = mlx_settle(be, "read");
    return said != RD_OK ? said : st;
}

rd_status mlx_buffer_write(struct backend *be, struct span to, const void *from, uint64_t n_bytes)
{
    const uint64_t whole = n_bytes / 4 * 4, rest = n_bytes - whole;
    const struct span end = span_of(to.buffer, to.at + whole);
    uint8_t last[4];
    bool done = true;

    mlx_ahead_join(be);
    if (whole) done = put(be, to, mlx_from(be->g, MLX_F32, mlx_dims1(whole / 4), from), whole);
    if (done && rest) {
        done = mlx_get(be->g, at_place(be, end, 4), last, 4);
        memcpy(last, (const uint8_t *)from + whole, rest);
        done = done && put(be, end, mlx_from(be->g, MLX_F32, mlx_dims1(1), last), 4);
    }
    const rd_status st = mlx_settle(be, "write");

    return st == RD_OK && !done ? RD_E_NOMEM : st;
}
