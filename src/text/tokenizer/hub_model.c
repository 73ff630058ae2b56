/* text/tokenizer/hub_model.c - one piece of text to ids: BPE over bytes or characters, Unigram, WordPiece, WordLevel.
 *
 * BPE over characters often gets a whole text as one piece (SentencePiece's way). It is cut where two characters meet
 * that no merge brings together; the parts are words to the cache, and the heap of merges stays small.
 */
#include "text/tokenizer/hub.h"
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "base/utf8.h"

#define JUNCTION_BITS  20
#define JUNCTION_ASCII ((size_t)128 * 128)
#define UNK_PENALTY    10.0 /* unigram: below the lowest score */

struct hub_best {
    double score;
    int64_t start;
    uint32_t id;
}; /* of a path that ends here; start < 0: none */

void hub_work_deinit(struct hub_work *w)
{
    merge_work_deinit(&w->merge);
    normal_work_deinit(&w->normal);
    split_work_deinit(&w->split);
    mem_free(w->best);
    buf_deinit(&w->text);
}

uint32_t hub_find(const struct tokenizer *t, const char *s, size_t n)
{
    uint32_t id = n ? string_table_find(&t->strings, s, n) : STRING_NONE;

    return id < t->n_tokens && (t->hub->flags[id] & HUB_IN_MODEL) ? id : SYMBOL_NONE;
}

/* ---- building ---- */

static size_t junction_bit(uint32_t left, uint32_t right)
{
    uint64_t h;

    if (left < 128 && right < 128) return left << 7 | right;
    h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return JUNCTION_ASCII + (size_t)(h >> (64 - JUNCTION_BITS));
}

static uint32_t last_char(const char *s, size_t n)
{
    uint32_t cp = 0;
    size_t len = 1;

    while (len < n && len < 4 && (s[n - len] & '\xc0') == '\x80') len++;
    utf8_decode(s + n - len, len, &cp);
    return cp;
}

void hub_note_junction(struct hub *h, const char *left, size_t n_left, const char *right, size_t n_right)
{
    uint32_t first;
    size_t bit;

    utf8_decode(right, n_right, &first);
    bit = junction_bit(last_char(left, n_left), first);
    h->junctions[bit / 64] |= (uint64_t)1 << (bit % 64);
}

static void find_bytes(const struct tokenizer *t, struct hub *h, bool *all)
{
    *all = true;
    for (unsigned b = 0; b < 256; b++) {
        char name[8];

        snprintf(name, sizeof(name), "<0x%02X>", b);
        h->byte_ids[b] = hub_find(t, name, 6);
        *all &= h->byte_ids[b] != SYMBOL_NONE;
    }
}

static rd_status build_unigram(struct tokenizer *t, struct rd_error *err)
{
    struct hub *h = t->hub;
    struct prefix_entry *entries = mem_alloc(t->n_tokens, sizeof(*entries));
    double lowest = 0;
    size_t n = 0;
    bool first = true;
    rd_status st;

    if (!entries) return error_set(err, RD_E_NOMEM, "vocabulary: out of memory");
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        size_t len;
        const char *s = string_table_at(&t->strings, id, &len);

        if (!(h->flags[id] & HUB_IN_MODEL)) continue;
        if (first || h->scores[id] < lowest) lowest = h->scores[id];
        first = false;
        if (len) entries[n++] = (struct prefix_entry){s, len, id};
    }
    h->unk_score = lowest - UNK_PENALTY;
    st = prefix_index_init(&h->pieces, entries, n);
    mem_free(entries);
    if (st == RD_OK) return st;
    return error_set(err, st, "vocabulary: %s (a unigram token has at most %u bytes)", rd_status_text(st),
                     LIMIT_SEARCHED_TOKEN_BYTES);
}

rd_status hub_model_build(struct tokenizer *t, struct rd_error *err)
{
    struct hub *h = t->hub;
    bool all_bytes;

    find_bytes(t, h, &all_bytes);
    if (h->model == HUB_UNIGRAM) return build_unigram(t, err);
    h->cuts = h->model == HUB_BPE && !h->n_prefix && !h->n_suffix && !h->works_on_bytes &&
              (h->byte_fallback ? all_bytes : t->unk >= 0 && !h->fuse_unk);
    if (!h->cuts) return RD_OK;
    h->junctions = mem_zalloc((JUNCTION_ASCII + ((size_t)1 << JUNCTION_BITS)) / 64, sizeof(*h->junctions));
    return h->junctions ? RD_OK : error_set(err, RD_E_NOMEM, "merges: out of memory");
}

/* ---- BPE over characters ---- */

struct unk {
    bool pending;
    uint32_t start;
};

static bool flush_unk(const struct tokenizer *t, struct merge_work *w, struct unk *unk)
{
    bool pending = unk->pending;

    unk->pending = false;
    return !pending || merge_add(w, unk->start, (uint32_t)t->unk);
}

/* The characters of a word as symbols. false: out of memory. */
static bool add_chars(const struct tokenizer *t, struct hub_work *w, const char *s, uint32_t n)
{
    const struct hub *h = t->hub;
    struct unk unk = {false, 0};
    uint32_t cp;

    for (uint32_t at = 0, len; at < n; at += len) {
        const char *text = s + at;
        size_t n_text = len = (uint32_t)utf8_decode(s + at, n - at, &cp);
        bool first = at == 0, last = at + len == n, known = true;
        uint32_t id;

        if ((h->n_prefix && !first) || (h->n_suffix && last)) {
            buf_clear(&w->text);
            if (!first) buf_append(&w->text, h->prefix, h->n_prefix);
            buf_append(&w->text, text, n_text);
            if (last) buf_append(&w->text, h->suffix, h->n_suffix);
            if (w->text.failed) return false;
            text = w->text.data;
            n_text = w->text.n;
        }
        id = hub_find(t, text, n_text);
        if (id != SYMBOL_NONE) {
            if (!flush_unk(t, &w->merge, &unk) || !merge_add(&w->merge, at, id)) return false;
            continue;
        }
        for (size_t i = 0; i < n_text && h->byte_fallback; i++)
            known &= h->byte_ids[(unsigned char)text[i]] != SYMBOL_NONE;
        if (h->byte_fallback && known) {
            for (size_t i = 0; i < n_text; i++) {
                uint32_t start = at + (uint32_t)(i < len ? i : len - 1);

                if (!merge_add(&w->merge, start, h->byte_ids[(unsigned char)text[i]])) return false;
            }
            continue;
        }
        if (t->unk < 0) continue;
        if (unk.pending && h->fuse_unk) continue;
        if (!flush_unk(t, &w->merge, &unk)) return false;
        unk = (struct unk){true, at};
    }
    return flush_unk(t, &w->merge, &unk);
}

static rd_status encode_chars(const struct tokenizer *t, struct hub_work *w, const char *s, size_t n, size_t n_readable,
                              struct id_list *out)
{
    size_t before = out->n;
    int32_t cached[WORD_CACHE_IDS];
    size_t n_cached = n <= WORD_CACHE_BYTES ? word_cache_get(&t->words, s, n, n_readable, cached) : 0;
    uint32_t id;
    rd_status st = RD_OK;

    if (!id_list_reserve(out, n_cached + 1)) return RD_E_NOMEM;
    if (n_cached) {
        for (size_t i = 0; i < n_cached; i++) id_list_put(out, cached[i]);
        return RD_OK;
    }
    if (t->hub->ignore_merges && (id = hub_find(t, s, n)) != SYMBOL_NONE) {
        id_list_put(out, (int32_t)id);
    } else {
        w->merge.n_nodes = 0;
        if (!add_chars(t, w, s, (uint32_t)n))
            st = RD_E_NOMEM;
        else if (w->merge.n_nodes)
            st = merge_run(t, &w->merge, s, (uint32_t)n, out);
        w->merge.n_nodes = 0;
        if (st != RD_OK) return st;
    }
    word_cache_put(&t->words, s, n, out->ids + before, out->n - before);
    return RD_OK;
}

static rd_status encode_bpe(const struct tokenizer *t, struct hub_work *w, const char *s, size_t n, size_t n_readable,
                            struct id_list *out)
{
    const struct hub *h = t->hub;
    uint32_t left = 0, cp = 0;
    size_t start = 0;
    rd_status st = RD_OK;

    if (h->works_on_bytes) return bpe_encode_word(t, &w->merge, s, (uint32_t)n, n_readable, out);
    if (!h->cuts || h->ignore_merges) return encode_chars(t, w, s, n, n_readable, out);
    for (size_t at = 0, len; at < n && st == RD_OK; at += len, left = cp) {
        size_t bit;

        len = (size_t)utf8_decode(s + at, n - at, &cp);
        if (at == 0) continue;
        bit = junction_bit(left, cp);
        if (h->junctions[bit / 64] >> (bit % 64) & 1) continue;
        st = encode_chars(t, w, s + start, at - start, n_readable - start, out);
        start = at;
    }
    return st == RD_OK ? encode_chars(t, w, s + start, n - start, n_readable - start, out) : st;
}

/* ---- Unigram ---- */

static void offer(struct hub_best *to, double score, size_t start, uint32_t id)
{
    if (to->start < 0 || score > to->score) *to = (struct hub_best){score, (int64_t)start, id};
}

/* The best path through all ways to cut s: w->best[i] is the best that ends at byte i. */
static rd_status best_paths(const struct tokenizer *t, struct hub_work *w, const char *s, size_t n)
{
    const struct hub *h = t->hub;
    uint32_t cp;

    if (n + 1 > w->best_cap && !mem_grow((void **)&w->best, &w->best_cap, n + 1, sizeof(*w->best))) return RD_E_NOMEM;
    for (size_t i = 0; i <= n; i++) w->best[i] = (struct hub_best){0, -1, 0};
    for (size_t at = 0, len; at < n; at += len) {
        struct prefix_walk walk = prefix_walk_begin(&h->pieces, s + at, n - at);
        double here = w->best[at].score;
        bool whole = false;

        len = (size_t)utf8_decode(s + at, n - at, &cp);
        while (prefix_walk_next(&walk)) {
            offer(&w->best[at + walk.length], h->scores[walk.value] + here, at, walk.value);
            whole |= walk.length == len;
        }
        if (whole) continue;
        if (t->unk < 0) return RD_E_FORMAT;
        offer(&w->best[at + len], h->unk_score + here, at, (uint32_t)t->unk);
    }
    return RD_OK;
}

/* A text that the path takes as one: its token, its bytes, or unknown. */
static rd_status put_text(const struct tokenizer *t, const char *s, size_t n, struct id_list *out)
{
    const struct hub *h = t->hub;
    uint32_t id = hub_find(t, s, n);
    bool bytes = h->byte_fallback;

    if (!id_list_reserve(out, n + 1)) return RD_E_NOMEM;
    for (size_t i = 0; i < n && bytes && id == SYMBOL_NONE; i++)
        bytes = h->byte_ids[(unsigned char)s[i]] != SYMBOL_NONE;
    if (id != SYMBOL_NONE)
        id_list_put(out, (int32_t)id);
    else if (bytes)
        for (size_t i = 0; i < n; i++) id_list_put(out, (int32_t)h->byte_ids[(unsigned char)s[i]]);
    else if (t->unk < 0)
        return RD_E_FORMAT;
    else
        id_list_put(out, t->unk);
    return RD_OK;
}

static rd_status encode_unigram(const struct tokenizer *t, struct hub_work *w, const char *s, size_t n,
                                struct id_list *out)
{
    rd_status st = best_paths(t, w, s, n);
    size_t end = n, n_parts = 0;

    if (st != RD_OK) return st;
    /* The path's ends are written over the entries at the back, which the walk has left behind. */
    while (end > 0) {
        size_t start = (size_t)w->best[end].start, this_end = end;
        uint32_t id = w->best[end].id;

        while (t->hub->fuse_unk && (int32_t)id == t->unk && start > 0 && (int32_t)w->best[start].id == t->unk)
            start = (size_t)w->best[start].start;
        w->best[n - n_parts++].id = (uint32_t)this_end;
        end = start;
    }
    for (size_t start = 0; n_parts && st == RD_OK; n_parts--) {
        end = w->best[n - (n_parts - 1)].id;
        st = put_text(t, s + start, end - start, out);
        start = end;
    }
    return st;
}

/* ---- WordPiece, WordLevel ---- */

static rd_status put_unk(const struct tokenizer *t, struct id_list *out)
{
    if (t->unk < 0) return RD_E_FORMAT;
    if (!id_list_reserve(out, 1)) return RD_E_NOMEM;
    id_list_put(out, t->unk);
    return RD_OK;
}

static rd_status encode_word_piece(const struct tokenizer *t, struct hub_work *w, const char *s, size_t n,
                                   struct id_list *out)
{
    const struct hub *h = t->hub;
    size_t before = out->n;

    if (n > h->max_chars && utf8_length(s, n) > h->max_chars) return put_unk(t, out);
    for (size_t start = 0; start < n;) {
        size_t end = n - start > t->max_bytes ? start + t->max_bytes : n;
        uint32_t id = SYMBOL_NONE;

        buf_clear(&w->text);
        if (start) buf_append(&w->text, h->prefix, h->n_prefix);
        buf_append(&w->text, s + start, end - start);
        if (w->text.failed || !id_list_reserve(out, 1)) return RD_E_NOMEM;
        for (; end > start; end--) {
            if (end < n && (s[end] & '\xc0') == '\x80') continue;
            id = hub_find(t, w->text.data, (start ? h->n_prefix : 0) + end - start);
            if (id != SYMBOL_NONE) break;
        }
        if (id == SYMBOL_NONE) {
            out->n = before;
            return put_unk(t, out);
        }
        id_list_put(out, (int32_t)id);
        start = end;
    }
    return RD_OK;
}

static rd_status encode_word_level(const struct tokenizer *t, const char *s, size_t n, struct id_list *out)
{
    uint32_t id = hub_find(t, s, n);

    if (id == SYMBOL_NONE) return t->unk < 0 ? RD_OK : put_unk(t, out);
    if (!id_list_reserve(out, 1)) return RD_E_NOMEM;
    id_list_put(out, (int32_t)id);
    return RD_OK;
}

rd_status hub_encode_piece(const struct tokenizer *t, struct hub_work *w, const char *s, size_t n, size_t n_readable,
                           struct id_list *out)
{
    switch (t->hub->model) {
    case HUB_BPE:
        return encode_bpe(t, w, s, n, n_readable, out);
    case HUB_UNIGRAM:
        return encode_unigram(t, w, s, n, out);
    case HUB_WORD_PIECE:
        return encode_word_piece(t, w, s, n, out);
    default:
        return encode_word_level(t, s, n, out);
    }
}
