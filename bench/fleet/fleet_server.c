/* bench/fleet/fleet_server.c - see fleet_server.h. */
#include "fleet_server.h"
#include <string.h>
#include "base/mem.h"

static void copy_nothing(void *arg, kv_page to, kv_page from, uint32_t n_rows)
{
    (void)arg, (void)to, (void)from, (void)n_rows;
}

bool fleet_server_init(struct fleet_server *s, uint32_t n_pages)
{
    memset(s, 0, sizeof(*s));
    s->cap_ends = 64;
    s->ends = mem_zalloc(s->cap_ends, sizeof(*s->ends));
    if (!s->ends || page_pool_create(n_pages, PAGE_TOKENS, &s->pool) != RD_OK ||
        radix_create(s->pool, &s->cache.tree) != RD_OK)
        return false;
    s->cache.pool = s->pool;
    s->cache.copy_rows = copy_nothing;
    return radix_namespace(s->cache.tree, "m", 1, &s->root) == RD_OK;
}

void fleet_server_deinit(struct fleet_server *s)
{
    radix_destroy(s->cache.tree);
    if (s->pool) page_pool_destroy(s->pool);
    mem_free(s->ends);
    memset(s, 0, sizeof(*s));
}

uint32_t fleet_server_serve(struct fleet_server *s, const kv_key *keys, uint32_t n_prompt, uint32_t n)
{
    struct kv_seq seq;
    uint32_t n_hit, n_left, n_pages;

    if (kv_seq_init(&seq, &s->cache, keys, n, n) != RD_OK) return 0;
    if (kv_seq_admit(&seq, s->root, ++s->now) != RD_OK) {
        kv_seq_deinit(&seq);
        return 0;
    }
    n_hit = seq.n_hit < n_prompt ? seq.n_hit : n_prompt - 1;
    n_left = n - seq.n_computed;
    n_pages = kv_seq_pages_needed(&seq, n_left);
    while (page_pool_n_free(s->pool) < n_pages && radix_evict(s->cache.tree, n_pages - page_pool_n_free(s->pool)) > 0) {
    }
    if (kv_seq_reserve(&seq, n_left) == RD_OK) kv_seq_commit(&seq);
    kv_seq_finish(&seq, true, ++s->now);
    kv_seq_deinit(&seq);
    s->n_requests++;
    return n_hit;
}

uint32_t fleet_server_load(struct fleet_server *s, double time)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_ends; i++)
        if (s->ends[i] > time) s->ends[n++] = s->ends[i];
    return s->n_ends = n;
}

bool fleet_server_run_until(struct fleet_server *s, double end)
{
    if (s->n_ends == s->cap_ends) {
        double *more = mem_zalloc(2 * (size_t)s->cap_ends, sizeof(*more));

        if (!more) return false;
        memcpy(more, s->ends, s->n_ends * sizeof(*more));
        mem_free(s->ends);
        s->ends = more;
        s->cap_ends *= 2;
    }
    s->ends[s->n_ends++] = end;
    return true;
}

uint32_t fleet_digests(const kv_key *keys, uint32_t n, uint64_t *out)
{
    struct {
        struct hash128 before;
        kv_key keys[PAGE_TOKENS];
    } page = {.before = {0, 0}};

    for (uint32_t i = 0; i < n / PAGE_TOKENS; i++) {
        memcpy(page.keys, keys + (size_t)i * PAGE_TOKENS, sizeof(page.keys));
        page.before = hash128_of(&page, sizeof(page));
        out[i] = page.before.low | 1;
    }
    return n / PAGE_TOKENS;
}

bool digest_map_init(struct digest_map *m, uint64_t n_most)
{
    memset(m, 0, sizeof(*m));
    m->n_groups = (uint32_t)(n_most / 8 + 1);
    m->keys = mem_zalloc((size_t)m->n_groups * 8, sizeof(*m->keys));
    m->values = mem_zalloc((size_t)m->n_groups * 8, sizeof(*m->values));
    m->stamps = mem_zalloc((size_t)m->n_groups * 8, sizeof(*m->stamps));
    return m->keys && m->values && m->stamps;
}

void digest_map_deinit(struct digest_map *m)
{
    mem_free(m->keys);
    mem_free(m->values);
    mem_free(m->stamps);
    memset(m, 0, sizeof(*m));
}

static size_t group_of(const struct digest_map *m, uint64_t key)
{
    return (size_t)((key >> 1) % m->n_groups) * 8;
}

uint32_t *digest_map_find(struct digest_map *m, uint64_t key)
{
    size_t at = group_of(m, key);

    for (unsigned i = 0; i < 8; i++)
        if (m->keys[at + i] == key) {
            m->stamps[at + i] = ++m->clock;
            return &m->values[at + i];
        }
    return NULL;
}

bool digest_map_put(struct digest_map *m, uint64_t key, uint32_t value)
{
    uint32_t *there = digest_map_find(m, key);
    size_t at = group_of(m, key), oldest = at;

    if (there) {
        *there = value;
        return false;
    }
    for (unsigned i = 1; i < 8; i++)
        if (m->stamps[at + i] < m->stamps[oldest]) oldest = at + i;
    m->n_out += m->keys[oldest] != 0;
    m->keys[oldest] = key;
    m->values[oldest] = value;
    m->stamps[oldest] = ++m->clock;
    return true;
}
