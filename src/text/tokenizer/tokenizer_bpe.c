/* text/tokenizer/tokenizer_bpe.c - byte-level BPE: words of bytes, merged by rank.
 *
 * The vocabulary writes bytes in an alphabet of 256 printable characters: bytes that are printable in Latin-1 as
 * themselves, the 68 others as U+0100 .. U+0143 in order (GPT-2's encoder). Merging works on symbol numbers, so that
 * only the building and the whole-word look-up ever see that alphabet.
 */
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer/hub.h"
#include "text/tokenizer/tokenizer_impl.h"

size_t bpe_piece(const char *text, size_t n, char *out)
{
    size_t n_out = 0;

    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = pretokenize_decode(text + i, n - i, &cp);
        int b = byte_alphabet_byte(cp);

        if (b >= 0) {
            out[n_out++] = (char)b;
        } else {
            memcpy(out + n_out, text + i, len);
            n_out += len;
        }
        i += len;
    }
    return n_out;
}

static inline size_t pair_slot(const struct tokenizer *t, uint64_t key)
{
    unsigned __int128 product = (unsigned __int128)(key ^ t->pair_seed) * 0x9e3779b97f4a7c15u;

    return ((uint64_t)product ^ (uint64_t)(product >> 64)) & (t->n_pair_slots - 1);
}

uint32_t bpe_pair(const struct tokenizer *t, uint32_t left, uint32_t right, uint32_t *symbol)
{
    uint64_t key = (uint64_t)left << 32 | right;

    for (size_t at = pair_slot(t, key); t->pairs[at].prio != PRIO_NONE; at = (at + 1) & (t->n_pair_slots - 1))
        if (t->pairs[at].key == key) {
            *symbol = t->pairs[at].symbol;
            return t->pairs[at].prio;
        }
    return PRIO_NONE;
}

void bpe_pair_put(struct tokenizer *t, uint32_t left, uint32_t right, uint32_t prio, uint32_t symbol, bool replace)
{
    uint64_t key = (uint64_t)left << 32 | right;
    size_t at = pair_slot(t, key);

    for (; t->pairs[at].prio != PRIO_NONE; at = (at + 1) & (t->n_pair_slots - 1))
        if (t->pairs[at].key == key) {
            if (replace) break;
            return;
        }
    t->pairs[at] = (struct merge_pair){key, prio, symbol};
}

rd_status bpe_pairs_init(struct tokenizer *t, size_t n, struct rd_error *err)
{
    for (t->n_pair_slots = 64; t->n_pair_slots / 8 * 5 < n;) t->n_pair_slots *= 2;
    random_os(&t->pair_seed, sizeof(t->pair_seed));
    t->pairs = mem_alloc(t->n_pair_slots, sizeof(*t->pairs));
    if (!t->pairs) return error_set(err, RD_E_NOMEM, "merges: out of memory");
    memset(t->pairs, 0xff, t->n_pair_slots * sizeof(*t->pairs));
    return RD_OK;
}

static rd_status add_merge(struct tokenizer *t, uint32_t rank, struct text_span merge, char *scratch,
                           struct rd_error *err)
{
    const char *space = merge.n > 1 ? memchr(merge.s + 1, ' ', merge.n - 1) : NULL;
    size_t n_left = space ? (size_t)(space - merge.s) : 0, n_right = space ? merge.n - n_left - 1 : 0;
    uint32_t left, right, both;
    rd_status st;

    if (!n_left || !n_right) {
        char quoted[64];

        return error_set(err, RD_E_FORMAT, "merge %u is %s, expected two strings with a space between", rank,
                         error_quote(quoted, sizeof(quoted), merge.s, merge.n));
    }
    memcpy(scratch, merge.s, n_left);
    memcpy(scratch + n_left, space + 1, n_right);
    if ((st = string_table_add(&t->strings, scratch, n_left, &left, NULL)) != RD_OK ||
        (st = string_table_add(&t->strings, scratch + n_left, n_right, &right, NULL)) != RD_OK ||
        (st = string_table_add(&t->strings, scratch, n_left + n_right, &both, NULL)) != RD_OK)
        return error_set(err, st, "merges: %s", rd_status_text(st));
    bpe_pair_put(t, left, right, rank, both, false);
    return RD_OK;
}

rd_status bpe_build(struct tokenizer *t, const struct tokenizer_spec *spec, struct rd_error *err)
{
    rd_status st = RD_OK;
    char *scratch = NULL;
    size_t longest = 0;

    if (!spec->pre || !pretokenize_find(spec->pre, strlen(spec->pre), &t->pre)) {
        char quoted[64];
        const char *pre = spec->pre ? spec->pre : "";

        return error_set(err, RD_E_UNSUPPORTED, "pre-tokenizer \"%s\" is unknown; known are %s (choose one with --pre)",
                         error_quote(quoted, sizeof(quoted), pre, strlen(pre)), pretokenize_known());
    }
    for (uint32_t b = 0; b < 256; b++) {
        char utf8[UTF8_MAX_BYTES];
        int n = utf8_encode(byte_alphabet_char(b), utf8);

        st = string_table_add(&t->strings, utf8, (size_t)n, &t->byte_symbol[b], NULL);
        if (st != RD_OK) return error_set(err, st, "bytes: %s", rd_status_text(st));
    }
    if ((st = bpe_pairs_init(t, spec->n_merges, err)) != RD_OK) return st;
    for (uint32_t i = 0; i < spec->n_merges; i++) {
        if (spec->merges[i].n > 2 * (size_t)LIMIT_TOKEN_BYTES)
            return error_set(err, RD_E_LIMIT, "merge %u has %zu bytes, at most %u", i, spec->merges[i].n,
                             2 * LIMIT_TOKEN_BYTES);
        if (spec->merges[i].n > longest) longest = spec->merges[i].n;
    }
    scratch = mem_alloc(longest + 1, 1);
    if (!scratch) return error_set(err, RD_E_NOMEM, "merges: out of memory");
    for (uint32_t i = 0; i < spec->n_merges && st == RD_OK; i++) st = add_merge(t, i, spec->merges[i], scratch, err);
    mem_free(scratch);
    return st;
}

/* The token whose text is this word, or SYMBOL_NONE. */
static rd_status whole_word(const struct tokenizer *t, const char *word, size_t n, uint32_t *id)
{
    char stack[512], *text = stack;
    size_t n_text = 0;

    *id = SYMBOL_NONE;
    if (n > t->max_bytes) return RD_OK;
    if (n > sizeof(stack) / 2 && !(text = mem_alloc(n, 2))) return RD_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        n_text += (size_t)utf8_encode(byte_alphabet_char((unsigned char)word[i]), text + n_text);
    *id = string_table_find(&t->strings, text, n_text);
    if (*id >= t->n_tokens || (t->hub && !(t->hub->flags[*id] & HUB_IN_MODEL))) *id = SYMBOL_NONE;
    if (text != stack) mem_free(text);
    return RD_OK;
}

static rd_status merge_word(const struct tokenizer *t, struct merge_work *w, const char *word, uint32_t n,
                            struct id_list *out)
{
    uint32_t id = SYMBOL_NONE;
    rd_status st = RD_OK;

    if (t->pre.ignore_merges) st = whole_word(t, word, n, &id);
    if (st != RD_OK) return st;
    if (id < t->n_tokens) {
        if (!id_list_reserve(out, 1)) return RD_E_NOMEM;
        id_list_put(out, (int32_t)id);
        return RD_OK;
    }
    if (n > w->nodes_cap && !mem_grow((void **)&w->nodes, &w->nodes_cap, n, sizeof(*w->nodes))) return RD_E_NOMEM;
    for (uint32_t i = 0; i < n; i++)
        if (!merge_add(w, i, t->byte_symbol[(unsigned char)word[i]])) {
            w->n_nodes = 0;
            return RD_E_NOMEM;
        }
    return merge_run(t, w, word, n, out);
}

rd_status bpe_encode_word(const struct tokenizer *t, struct merge_work *w, const char *word, uint32_t n,
                          size_t n_readable, struct id_list *out)
{
    uint32_t id = n == 1 ? t->byte_symbol[(unsigned char)word[0]] : SYMBOL_NONE;
    size_t before = out->n, n_ids = 0;
    rd_status st;

    if (out->cap - out->n <= WORD_CACHE_IDS && !id_list_reserve(out, WORD_CACHE_IDS)) return RD_E_NOMEM;
    if (id < t->n_tokens) {
        id_list_put(out, (int32_t)id);
        return RD_OK;
    }
    if (n <= WORD_CACHE_BYTES) n_ids = word_cache_get(&t->words, word, n, n_readable, out->ids + out->n);
    out->n += n_ids;
    if (n_ids) return RD_OK;
    st = merge_word(t, w, word, n, out);
    if (st == RD_OK) word_cache_put(&t->words, word, n, out->ids + before, out->n - before);
    return st;
}

rd_status bpe_encode_words(const struct tokenizer *t, struct merge_work *w, enum pretokenizer scanner, const char *text,
                           uint32_t n, struct id_list *out)
{
    rd_status st = RD_OK;

    while (n > 0 && st == RD_OK) {
        uint32_t n_word = (uint32_t)pretokenize_word(scanner, text, n);

        st = bpe_encode_word(t, w, text, n_word, n, out);
        text += n_word;
        n -= n_word;
    }
    return st;
}

/* The text as pretokenize_decode() reads it, written as UTF-8: bytes that are no sequence become U+FFFD, overlong forms
 * the short one. */
static char *rewrite(const char *text, uint32_t n, uint32_t *n_out)
{
    char *out = mem_alloc((size_t)n * 3 + 1, 1);
    size_t at = 0;

    if (!out) return NULL;
    for (uint32_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = pretokenize_decode(text + i, n - i, &cp);

        if (cp >= 0xd800 && cp <= 0xdfff) {
            memcpy(out + at, text + i, len); /* a surrogate keeps its three bytes */
            at += len;
        } else {
            at += (size_t)utf8_encode(cp, out + at);
        }
        i += (uint32_t)len;
    }
    *n_out = (uint32_t)at;
    return out;
}

rd_status bpe_encode(const struct tokenizer *t, struct merge_work *w, const char *text, uint32_t n, struct id_list *out)
{
    char *rewritten = NULL;
    rd_status st = RD_OK;

    if (!utf8_valid(text, n)) {
        rewritten = rewrite(text, n, &n);
        if (!rewritten) return RD_E_NOMEM;
        text = rewritten;
    }
    st = bpe_encode_words(t, w, t->pre.kind, text, n, out);
    mem_free(rewritten);
    return st;
}
