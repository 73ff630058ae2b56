/* engine/tiers/image_store.c - see image_store.h. */
#include "engine/tiers/image_store.h"
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "engine/tiers/store_link_state.h"
#include "engine/tiers/store_shared.h"

#define SUFFIX       "|images"
#define ENTRY_TOKENS 16u

struct image_save {
    struct store_space *space;
    struct vision_rows *rows;
    uint8_t digest[VISION_DIGEST];
    uint32_t n_rows;
};

static uint32_t n_entries(uint32_t n_rows)
{
    return u32_ceil_div(n_rows, IMAGE_STORE_ROWS);
}

static uint64_t entry_bytes(uint64_t n_bytes, uint32_t n_rows)
{
    return n_bytes / n_rows * IMAGE_STORE_ROWS;
}

/* The "tokens" of an entry. */
static void put_tokens(const uint8_t digest[VISION_DIGEST], uint32_t n_rows, uint64_t n_bytes, uint32_t i,
                       uint32_t tokens[ENTRY_TOKENS])
{
    memset(tokens, 0, ENTRY_TOKENS * sizeof(*tokens));
    memcpy(tokens, digest, VISION_DIGEST);
    tokens[VISION_DIGEST / 4] = n_rows;
    tokens[VISION_DIGEST / 4 + 1] = (uint32_t)(n_bytes / n_rows);
    tokens[VISION_DIGEST / 4 + 2] = i;
}

static struct store_space *space_of(const struct engine *e, struct hash128 salt, uint64_t bytes)
{
    const struct kv_space kv = {.salt = salt};
    struct store_space *space = NULL;
    uint8_t name[LIMIT_STORE_NAME_BYTES];
    size_t n = e->o.namespace_bytes;

    if (n + KV_SPACE_NAME_MAX + strlen(SUFFIX) > sizeof(name)) return NULL;
    if (n > 0) memcpy(name, e->o.namespace_name, n);
    n += kv_space_name(&kv, name + n);
    memcpy(name + n, SUFFIX, strlen(SUFFIX));
    if (page_store_space(e->o.store->store, name, n + strlen(SUFFIX), ENTRY_TOKENS, bytes, &space) != RD_OK)
        return NULL;
    page_store_say(e->o.store->store, space, "images");
    return space;
}

void image_store_save(struct engine *e, const struct hash128 *salt, const uint8_t digest[VISION_DIGEST],
                      uint32_t n_rows, struct vision_rows *rows)
{
    struct store_link *l = e->o.store;
    struct image_save *save;
    bool ok;

    if (!l || !atomic_load_explicit(&l->is_writable, memory_order_relaxed)) return;
    if (atomic_fetch_add(&l->image_bytes, rows->n_bytes) + rows->n_bytes > IMAGE_STORE_WAITING ||
        !(save = mem_zalloc(1, sizeof(*save)))) {
        atomic_fetch_sub(&l->image_bytes, rows->n_bytes);
        return;
    }
    save->space = space_of(e, *salt, entry_bytes(rows->n_bytes, n_rows));
    save->rows = vision_rows_ref(rows);
    save->n_rows = n_rows;
    memcpy(save->digest, digest, VISION_DIGEST);
    ok = save->space && store_link_push_image(l, save);
    if (!ok) image_store_free(l, save);
}

void image_store_free(struct store_link *l, struct image_save *save)
{
    if (!save) return;
    page_store_unref(l->store, save->space);
    atomic_fetch_sub(&l->image_bytes, save->rows->n_bytes);
    vision_rows_unref(save->rows);
    mem_free(save);
}

rd_status image_store_write(struct store_link *l, const struct image_save *save)
{
    const uint32_t n = n_entries(save->n_rows);
    const uint64_t bytes = entry_bytes(save->rows->n_bytes, save->n_rows);
    uint32_t *tokens = mem_alloc((size_t)n * ENTRY_TOKENS, sizeof(*tokens));
    struct hash128 *digests = mem_alloc(n, sizeof(*digests));
    uint8_t *last = mem_zalloc(1, bytes);
    rd_status st = tokens && digests && last ? RD_OK : RD_E_NOMEM;

    if (st == RD_OK) {
        for (uint32_t i = 0; i < n; i++)
            put_tokens(save->digest, save->n_rows, save->rows->n_bytes, i, tokens + (size_t)i * ENTRY_TOKENS);
        page_store_chain(l->store, save->space, tokens, 0, n, digests);
    }
    for (uint32_t i = 0; st == RD_OK && i < n; i++) {
        const uint8_t *from = (const uint8_t *)save->rows->values + i * bytes;
        const uint64_t left = save->rows->n_bytes - i * bytes;

        if (left < bytes) memcpy(last, from, left);
        st = page_store_put(l->store, save->space, digests, i, tokens + (size_t)i * ENTRY_TOKENS,
                            left < bytes ? last : from);
    }
    mem_free(tokens);
    mem_free(digests);
    mem_free(last);
    return st;
}

struct vision_rows *image_store_read(struct engine *e, struct hash128 salt, const struct vision_image *v,
                                     const atomic_bool *stop)
{
    struct store_link *l = e->o.store;
    const uint32_t n = n_entries(v->n_rows), n_floats = e->o.executor.vision ? e->o.executor.vision->n_floats : 0;
    const uint64_t n_bytes = (uint64_t)v->n_rows * n_floats * sizeof(float), bytes = entry_bytes(n_bytes, v->n_rows);
    struct store_space *space = NULL;
    struct vision_rows *rows = NULL;
    struct hash128 *digests;
    uint32_t *tokens;
    void **entries;
    bool ok;

    if (!l || n_floats == 0 || atomic_load_explicit(&l->is_condemned, memory_order_relaxed)) return NULL;
    digests = mem_alloc(n, sizeof(*digests));
    tokens = mem_alloc((size_t)n * ENTRY_TOKENS, sizeof(*tokens));
    entries = mem_alloc(n, sizeof(*entries));
    ok = digests && tokens && entries && (space = space_of(e, salt, bytes));
    if (ok) {
        for (uint32_t i = 0; i < n; i++)
            put_tokens(v->digest, v->n_rows, n_bytes, i, tokens + (size_t)i * ENTRY_TOKENS);
        page_store_chain(l->store, space, tokens, 0, n, digests);
        ok = page_store_find(l->store, digests, n) == n && (rows = vision_rows_create(n * bytes));
    }
    if (ok) {
        for (uint32_t i = 0; i < n; i++) entries[i] = (uint8_t *)rows->values + i * bytes;
        ok = page_store_read(l->store, space, digests, tokens, 0, n, entries, stop) == n;
        rows->n_bytes = n_bytes; /* what is behind them in the last entry is zeros */
    }
    if (!ok) vision_rows_unref(rows);
    page_store_unref(l->store, space);
    mem_free(digests);
    mem_free(tokens);
    mem_free(entries);
    return ok ? rows : NULL;
}
