/* backend/mlx/mlx_pages.c - keys and values: an array of rows for every layer's K and V, which grows as pages are first used.
 *
 * A row is a token: n_kv_heads * head_dim values of the cache's type. A step writes its rows with one scatter and gathers what
 * attention reads, by row numbers that come from block tables. MLX updates such an array in place as long as nothing else holds
 * it: that is why copies and reads of pages are evaluated at once, and not left in the graph beside the next update.
 */
#include <assert.h>
#include <string.h>
#include "backend/mlx/mlx_backend.h"
#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"

#define FIRST_PAGES 64u

static struct mlx_pages *of(const struct kv_storage *kv)
{
    return kv->base;
}

static uint32_t width(const struct kv_storage *kv)
{
    return kv->layout.n_kv_heads * kv->layout.head_dim;
}

static enum mlx_type type_of(const struct kv_storage *kv, uint32_t which)
{
    const enum dtype t = which ? kv->layout.dtype_v : kv->layout.dtype_k;

    return t == DTYPE_F32 ? MLX_F32 : t == DTYPE_F16 ? MLX_F16 : MLX_BF16;
}

mlx_ref *mlx_pages_array(const struct kv_storage *kv, uint32_t layer, uint32_t which)
{
    return &of(kv)->arrays[2 * layer + which];
}

void mlx_pages_touch(const struct kv_storage *kv)
{
    of(kv)->dirty = true;
}

/* *array becomes a. */
static bool become(struct backend *be, mlx_ref *array, mlx_ref a)
{
    const mlx_ref kept = mlx_keep(be->g, a);

    if (!kept) return false;
    mlx_drop(*array);
    *array = kept;
    return true;
}

/* One array after the other: memory for one of them twice is what it takes. */
static bool grow(struct backend *be, const struct kv_storage *kv, uint32_t n_pages)
{
    struct mlx_pages *p = of(kv);
    const uint64_t rows = (uint64_t)n_pages * kv->layout.page_tokens;

    for (uint32_t i = 0; i < p->n_arrays; i++) {
        const enum mlx_type t = type_of(kv, i % 2);
        mlx_ref whole;

        if (p->arrays[i]) {
            const uint64_t had = (uint64_t)mlx_shape_of(p->arrays[i]).dims[0];
            const mlx_ref both[2] = {p->arrays[i],
                                     rows > had ? mlx_zeros(be->g, t, mlx_dims2(rows - had, width(kv))) : NULL};

            if (had >= rows) continue; /* of an earlier try that failed in the middle */
            whole = mlx_concat(be->g, 2, both, 0);
        } else {
            whole = mlx_zeros(be->g, t, mlx_dims2(rows, width(kv)));
        }
        if (!mlx_eval(be->g, 1, &whole) || !become(be, &p->arrays[i], whole)) return false;
        mlx_end(be->g);
    }
    p->capacity = n_pages;
    mlx_memory_clear(be->g); /* the smaller ones */
    return true;
}

bool mlx_pages_reach(struct backend *be, const struct kv_storage *kv, kv_page id)
{
    const struct mlx_pages *p = of(kv);

    if (id < p->capacity) return true;
    return grow(be, kv, u32_min(kv->n_pages, u32_max(id + 1, p->capacity + p->capacity / 2)));
}

rd_status mlx_pages_create(struct backend *be, const struct kv_layout *layout, uint32_t n_pages, struct kv_storage *out)
{
    struct mlx_pages *p;
    struct kv_storage kv = {.layout = *layout,
                            .n_pages = n_pages,
                            .row_bytes = {kv_row_bytes(layout, 0), kv_row_bytes(layout, 1)},
                            .page_bytes = kv_page_bytes(layout)};

    mlx_ahead_join(be);
    if ((uint64_t)n_pages * layout->page_tokens > INT32_MAX) return RD_E_NOMEM; /* rows have numbers of 31 bits */
    if (!mem_grow((void **)&be->pages, &be->cap_pages, be->n_pages + 1, sizeof(*be->pages))) return RD_E_NOMEM;
    p = mem_zalloc(1, sizeof(*p) + 2 * layout->n_layers * sizeof(p->arrays[0]));
    if (!p) return RD_E_NOMEM;
    p->n_arrays = 2 * layout->n_layers;
    kv.base = p;
    be->pages[be->n_pages++] = p;
    if (!grow(be, &kv, u32_min(n_pages, FIRST_PAGES))) {
        mlx_settle(be, "pages");
        mlx_pages_destroy(be, &kv);
        return RD_E_NOMEM;
    }
    *out = kv;
    return RD_OK;
}

void mlx_pages_destroy(struct backend *be, struct kv_storage *kv)
{
    struct mlx_pages *p = of(kv);

    mlx_ahead_join(be);
    for (size_t i = 0; i < be->n_pages; i++)
        if (be->pages[i] == p) be->pages[i] = be->pages[--be->n_pages];
    for (uint32_t i = 0; i < p->n_arrays; i++) mlx_drop(p->arrays[i]);
    mem_free(p);
    kv->base = NULL;
    mlx_memory_clear(be->g);
}

/* Row numbers of a page's first n rows. */
static mlx_ref rows_of(struct backend *be, const struct kv_storage *kv, kv_page id, uint32_t n)
{
    int32_t rows[LIMIT_STORE_PAGE_TOKENS];

    assert(n <= LIMIT_STORE_PAGE_TOKENS);
    for (uint32_t i = 0; i < n; i++) rows[i] = (int32_t)(id * kv->layout.page_tokens + i);
    return mlx_from(be->g, MLX_I32, mlx_dims1(n), rows);
}

rd_status mlx_pages_copy_rows(struct backend *be, struct kv_storage *kv, kv_page to, kv_page from, uint32_t n_rows)
{
    struct mlx_pages *p = of(kv);
    mlx_ref source, target;
    bool done;

    mlx_ahead_join(be);
    done = mlx_pages_reach(be, kv, u32_max(to, from));
    source = rows_of(be, kv, from, n_rows);
    target = rows_of(be, kv, to, n_rows);
    for (uint32_t i = 0; done && i < p->n_arrays; i++) {
        const mlx_ref rows = mlx_take(be->g, p->arrays[i], source);

        done = mlx_eval(be->g, 1, &rows) && become(be, &p->arrays[i], mlx_put(be->g, p->arrays[i], target, rows));
    }
    p->dirty = true;
    const rd_status st = mlx_settle(be, "pages.copy_rows");

    return st == RD_OK && !done ? RD_E_DEVICE : st;
}

/* Bytes of one layer's K or V of a page. */
static uint64_t part_bytes(const struct kv_storage *kv, uint32_t which)
{
    return kv->row_bytes[which] * kv->layout.n_kv_heads * kv->layout.page_tokens;
}

rd_status mlx_pages_read(struct backend *be, const struct kv_storage *kv, void *to, kv_page from)
{
    const struct kv_layout *l = &kv->layout;
    uint8_t *at = to;
    mlx_ref rows;
    bool known;

    mlx_ahead_join(be);
    known = mlx_pages_reach(be, kv, from);
    rows = rows_of(be, kv, from, l->page_tokens);
    for (uint32_t i = 0; known && i < of(kv)->n_arrays; i++) {
        const mlx_ref page =
            mlx_reshape(be->g, mlx_take(be->g, of(kv)->arrays[i], rows),
                        (struct mlx_shape){3, {(int32_t)l->page_tokens, (int32_t)l->n_kv_heads, (int32_t)l->head_dim}});

        mlx_get(be->g, mlx_swap(be->g, page, 0, 1), at, part_bytes(kv, i % 2));
        at += part_bytes(kv, i % 2);
    }
    return mlx_settle(be, "pages.read");
}

rd_status mlx_pages_write(struct backend *be, const struct kv_storage *kv, kv_page to, const void *from)
{
    const struct kv_layout *l = &kv->layout;
    const uint8_t *at = from;
    mlx_ref rows;
    bool done;

    mlx_ahead_join(be);
    done = mlx_pages_reach(be, kv, to);
    rows = rows_of(be, kv, to, l->page_tokens);
    for (uint32_t i = 0; done && i < of(kv)->n_arrays; i++) {
        const mlx_ref page = mlx_swap(
            be->g,
            mlx_from(be->g, type_of(kv, i % 2),
                     (struct mlx_shape){3, {(int32_t)l->n_kv_heads, (int32_t)l->page_tokens, (int32_t)l->head_dim}},
                     at),
            0, 1);

        done = become(
            be, &of(kv)->arrays[i],
            mlx_put(be->g, of(kv)->arrays[i], rows, mlx_reshape(be->g, page, mlx_dims2(l->page_tokens, width(kv)))));
        at += part_bytes(kv, i % 2);
    }
    of(kv)->dirty = true;
    const rd_status st = mlx_settle(be, "pages.write");

    return st == RD_OK && !done ? RD_E_DEVICE : st;
}
