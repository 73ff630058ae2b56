/* text/grammar/grammar_vocab.c - the trie of a vocabulary, and the masks of states that grammars with it share.
 *
 * Sorted by bytes, tokens lie in the order of a depth-first walk; a node is made where a token leaves the path of the one
 * before it. Bytes 0xFF stand for special tokens alone, so a plain token with such a byte is never followed.
 */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/random.h"
#include "text/grammar/grammar_impl.h"

#define LOCALS_MAX  1024u /* masks of states: about 19 KiB each for 150,000 tokens, with leaves up to 2 MiB */
#define LOCAL_BYTES ((size_t)64 << 20)
#define DEPTH_MAX   4096u /* of the trie; longer tokens are never followed */
#define SPECIAL_MAX 0xFFFFFFu

struct sorted {
    const uint8_t *bytes;
    uint64_t n;
    uint32_t id;
};

static int by_bytes(const void *x, const void *y)
{
    const struct sorted *a = x, *b = y;
    int order = memcmp(a->bytes, b->bytes, a->n < b->n ? a->n : b->n);

    if (order) return order;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static size_t token_bytes(uint32_t id, const uint8_t *bytes, const uint64_t *offsets, bool special)
{
    uint64_t n = offsets[id + 1] - offsets[id];

    if (special) return id <= SPECIAL_MAX ? 4 : 0;
    return n > DEPTH_MAX || (n && memchr(bytes + offsets[id], 0xFF, n)) ? 0 : n;
}

/* The bytes of all tokens as texts see them. */
static bool copy_bytes(struct grammar_vocab *v, const uint8_t *bytes, const uint64_t *offsets, const bool *special)
{
    uint64_t n = 0;

    v->offsets = mem_alloc((size_t)v->n_tokens + 1, sizeof(*v->offsets));
    if (!v->offsets) return false;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        v->offsets[i] = n;
        n += token_bytes(i, bytes, offsets, special && special[i]);
    }
    v->offsets[v->n_tokens] = n;
    v->bytes = mem_alloc(n, 1);
    if (!v->bytes) return false;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        const uint8_t name[4] = {0xFF, (uint8_t)(i >> 16), (uint8_t)(i >> 8), (uint8_t)i};
        uint64_t size = v->offsets[i + 1] - v->offsets[i];

        if (size) memcpy(v->bytes + v->offsets[i], special && special[i] ? name : bytes + offsets[i], size);
        if (size == 1) v->has_byte[v->bytes[v->offsets[i]]] = true;
    }
    return true;
}

static uint64_t common(const struct sorted *a, const struct sorted *b)
{
    uint64_t n = a->n < b->n ? a->n : b->n, i = 0;

    while (i < n && a->bytes[i] == b->bytes[i]) i++;
    return i;
}

static void make_nodes(struct grammar_vocab *v, const struct sorted *sorted, uint32_t n, uint32_t *open)
{
    uint64_t depth = 0; /* open: the nodes of the path, [0] the root */

    open[0] = 0;
    v->nodes[0] = (struct trie_node){0};
    v->n_nodes = 1;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t keep = i ? common(&sorted[i - 1], &sorted[i]) : 0;

        for (; depth > keep; depth--) v->nodes[open[depth]].skip = v->n_nodes;
        for (; depth < sorted[i].n; depth++) {
            open[depth + 1] = v->n_nodes;
            v->nodes[v->n_nodes++] = (struct trie_node){0, i, (uint16_t)(depth + 1), sorted[i].bytes[depth], 0};
        }
        v->ids[i] = sorted[i].id;
        if (depth > v->max_depth) v->max_depth = (uint32_t)depth;
    }
    for (;; depth--) {
        v->nodes[open[depth]].skip = v->n_nodes;
        if (!depth) break;
    }
    v->nodes[v->n_nodes] = (struct trie_node){.skip = v->n_nodes, .first_id = n};
    for (uint32_t i = 1; i < v->n_nodes; i = v->nodes[i].skip) v->weight[v->nodes[i].byte] = v->nodes[i].skip - i;
}

static bool make_trie(struct grammar_vocab *v)
{
    struct sorted *sorted = mem_alloc(v->n_tokens, sizeof(*sorted));
    uint32_t *open = mem_alloc(DEPTH_MAX + 1, sizeof(*open)), n = 0;
    uint64_t n_nodes = 2;
    bool ok = sorted && open;

    for (uint32_t i = 0; ok && i < v->n_tokens; i++)
        if (v->offsets[i + 1] > v->offsets[i])
            sorted[n++] = (struct sorted){v->bytes + v->offsets[i], v->offsets[i + 1] - v->offsets[i], i};
    if (ok && n) qsort(sorted, n, sizeof(*sorted), by_bytes);
    for (uint32_t i = 0; i < n; i++) n_nodes += sorted[i].n - (i ? common(&sorted[i - 1], &sorted[i]) : 0);
    ok = ok && n_nodes < NONE;
    if (ok) {
        v->nodes = mem_alloc(n_nodes, sizeof(*v->nodes));
        v->ids = mem_alloc(n, sizeof(*v->ids));
        ok = v->nodes && v->ids;
    }
    if (ok) make_nodes(v, sorted, n, open);
    mem_free(sorted);
    mem_free(open);
    return ok;
}

rd_status grammar_vocab_create(uint32_t n_tokens, const uint8_t *bytes, const uint64_t *offsets, const bool *special,
                               struct grammar_vocab **out)
{
    struct grammar_vocab *v = mem_zalloc(1, sizeof(*v));

    if (!v) return RD_E_NOMEM;
    mutex_init(&v->lock);
    atomic_init(&v->refs, 1);
    random_os(v->secret, sizeof(v->secret));
    v->n_tokens = n_tokens;
    v->n_words = (n_tokens + 31) / 32;
    v->cap_locals = 2 * LOCALS_MAX;
    v->locals = mem_zalloc(v->cap_locals, sizeof(struct local_mask *));
    if (!v->locals || !copy_bytes(v, bytes, offsets, special) || !make_trie(v) || !vocab_find_plain(v)) {
        grammar_vocab_unref(v);
        return RD_E_NOMEM;
    }
    *out = v;
    return RD_OK;
}

struct grammar_vocab *grammar_vocab_ref(struct grammar_vocab *v)
{
    atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
    return v;
}

void grammar_vocab_unref(struct grammar_vocab *v)
{
    /* Release and acquire: what other holders did is over when the last one frees. */
    if (!v || atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) != 1) return;
    for (uint32_t i = 0; v->locals && i < v->cap_locals; i++) local_mask_unref(v->locals[i]);
    mutex_deinit(&v->lock);
    mem_free(v->slices);
    mem_free(v->next_dirty);
    mem_free(v->locals);
    mem_free(v->nodes);
    mem_free(v->ids);
    mem_free(v->bytes);
    mem_free(v->offsets);
    mem_free(v);
}

bool vocab_is_special(const struct grammar_vocab *v, uint32_t token)
{
    return token < v->n_tokens && v->offsets[token] < v->offsets[token + 1] && v->bytes[v->offsets[token]] == 0xFF;
}

/* ---- masks of states --------------------------------------------------------------------------------------------- */

void local_mask_unref(struct local_mask *m)
{
    if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1) return;
    mem_free(m->leaves);
    mem_free(m);
}

static uint32_t place_of(const struct grammar_vocab *v, struct hash128 key)
{
    uint64_t h = key.low;

    while (v->locals[h % v->cap_locals] && !hash128_equal(v->locals[h % v->cap_locals]->key, key)) h++;
    return (uint32_t)(h % v->cap_locals);
}

struct local_mask *vocab_find(struct grammar_vocab *v, struct hash128 key)
{
    struct local_mask *m;

    mutex_lock(&v->lock);
    m = v->locals[place_of(v, key)];
    if (m) {
        atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
        m->used = ++v->now;
    }
    mutex_unlock(&v->lock);
    return m;
}

size_t local_mask_bytes(const struct grammar_vocab *v, const struct local_mask *m)
{
    return sizeof(*m) + v->n_words * sizeof(*m->bits) + m->n_leaves * sizeof(*m->leaves);
}

static int by_use(const void *x, const void *y)
{
    const struct local_mask *const *a = x, *const *b = y;

    return (*a)->used > (*b)->used ? -1 : (*a)->used < (*b)->used;
}

/* Half of the masks go, by number and by bytes: those not used for longest. Places are made anew. */
static void forget_old(struct grammar_vocab *v)
{
    struct local_mask *all[LOCALS_MAX];
    uint32_t n = 0;

    for (uint32_t i = 0; i < v->cap_locals; i++) {
        if (v->locals[i]) all[n++] = v->locals[i];
        v->locals[i] = NULL;
    }
    qsort(all, n, sizeof(struct local_mask *), by_use);
    v->n_locals = 0;
    v->local_bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        size_t bytes = local_mask_bytes(v, all[i]);

        if (i >= LOCALS_MAX / 2 || v->local_bytes + bytes > LOCAL_BYTES / 2) {
            local_mask_unref(all[i]);
            continue;
        }
        v->locals[place_of(v, all[i]->key)] = all[i];
        v->local_bytes += bytes;
        v->n_locals++;
    }
}

void vocab_keep(struct grammar_vocab *v, struct local_mask *m)
{
    size_t bytes = local_mask_bytes(v, m);
    uint32_t at;

    mutex_lock(&v->lock);
    if (v->n_locals >= LOCALS_MAX || v->local_bytes + bytes > LOCAL_BYTES) forget_old(v);
    at = place_of(v, m->key);
    if (!v->locals[at]) {
        atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
        m->used = ++v->now;
        v->locals[at] = m;
        v->n_locals++;
        v->local_bytes += bytes;
    }
    mutex_unlock(&v->lock);
}
