/* text/tokenizer/tokenizer_json.c - a tokenizer from the text of a tokenizer.json.
 *
 * The two long parts, vocabulary and merges, are read straight from the text (text/json_scan.h); the rest is small and
 * goes through jansson. Order: vocabulary, added tokens, numbering of both, merges, then the components, which look
 * tokens up.
 */
#include <jansson.h>
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer/hub.h"
#include "text/json_scan.h"

struct part {
    const char *s;
    size_t n;
}; /* JSON text of a value; s NULL: absent */
struct added {
    struct part content;
    uint32_t id;
    uint8_t flags;
};

struct loader {
    struct tokenizer *t;
    struct hub *h;
    struct rd_error *err;
    struct part model, added_part, normalizer, pre_tokenizer, post_processor, decoder, vocab, merges;
    json_t *options;  /* the model's small members */
    struct buf texts; /* all strings of the vocabulary, one after the other */
    struct vocab_row {
        size_t at, n;
        uint32_t id;
        double score;
    } * rows;
    size_t n_rows, rows_cap;
    json_t *added_json;
    size_t *row_of;         /* [n_tokens] row + 1 by id; 0: none */
    uint32_t n_rows_wanted; /* tokenizer_files.n_rows */
};

static rd_status no_memory(struct loader *l)
{
    return error_set(l->err, RD_E_NOMEM, "tokenizer.json: out of memory");
}

static rd_status broken(struct loader *l, const struct json_scan *sc, const char *what)
{
    return error_set(l->err, RD_E_FORMAT, "tokenizer.json: %s: not as expected near byte %zu of it", what, sc->at);
}

/* A part through jansson. *out NULL when the part is absent. */
static rd_status parse_part(struct loader *l, struct part part, const char *what, json_t **out)
{
    json_error_t why;

    *out = NULL;
    if (!part.s) return RD_OK;
    *out = json_loadb(part.s, part.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (*out) return RD_OK;
    if (json_error_code(&why) == json_error_out_of_memory) return no_memory(l);
    return error_set(l->err, RD_E_FORMAT, "tokenizer.json: %s: %s", what, why.text);
}

/* ---- where everything stands ---- */

static rd_status find_parts(struct loader *l, const char *json, size_t n)
{
    struct {
        const char *name;
        struct part *part;
    } rows[] = {
        {"model", &l->model},
        {"added_tokens", &l->added_part},
        {"normalizer", &l->normalizer},
        {"pre_tokenizer", &l->pre_tokenizer},
        {"post_processor", &l->post_processor},
        {"decoder", &l->decoder},
    };
    struct json_scan sc = {json, n, 0, false};
    struct buf key = {0};

    if (json_scan_enter(&sc, '{'))
        while (json_scan_member(&sc, &key)) {
            struct part value;

            if (!json_scan_skip(&sc, &value.s, &value.n)) break;
            for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
                if (key.n == strlen(rows[i].name) && memcmp(key.data, rows[i].name, key.n) == 0) *rows[i].part = value;
        }
    if (key.failed) {
        buf_deinit(&key);
        return no_memory(l);
    }
    buf_deinit(&key);
    if (sc.failed || json_scan_peek(&sc)) return broken(l, &sc, "the file");
    if (!l->model.s) return error_set(l->err, RD_E_FORMAT, "tokenizer.json: no \"model\"");
    return RD_OK;
}

/* The model's members: vocabulary and merges by place, the others into l->options. */
static rd_status find_model(struct loader *l)
{
    struct json_scan sc = {l->model.s, l->model.n, 0, false};
    struct buf key = {0};
    rd_status st = RD_OK;

    l->options = json_object();
    if (!l->options) return no_memory(l);
    if (json_scan_enter(&sc, '{'))
        while (st == RD_OK && json_scan_member(&sc, &key)) {
            struct part value;
            json_t *v = NULL;

            if (!json_scan_skip(&sc, &value.s, &value.n)) break;
            buf_putc(&key, 0);
            if (key.failed)
                st = no_memory(l);
            else if (strcmp(key.data, "vocab") == 0)
                l->vocab = value;
            else if (strcmp(key.data, "merges") == 0)
                l->merges = value;
            else
                st = parse_part(l, value, key.data, &v);
            if (st == RD_OK && v && utf8_valid(key.data, key.n) && json_object_set(l->options, key.data, v) != 0)
                st = no_memory(l);
            json_decref(v);
        }
    if (key.failed) st = no_memory(l);
    buf_deinit(&key);
    if (st == RD_OK && sc.failed) st = broken(l, &sc, "model");
    if (st == RD_OK && !l->vocab.s) st = error_set(l->err, RD_E_FORMAT, "tokenizer.json: the model has no \"vocab\"");
    return st;
}

static rd_status find_kind(struct loader *l)
{
    static const struct {
        const char *name;
        enum hub_model model;
    } rows[] = {
        {"BPE", HUB_BPE},
        {"Unigram", HUB_UNIGRAM},
        {"WordPiece", HUB_WORD_PIECE},
        {"WordLevel", HUB_WORD_LEVEL},
    };
    const json_t *v = json_object_get(l->options, "type");
    const char *type = json_string_value(v);
    char quoted[64];

    if (!v && l->merges.s)
        type = "BPE"; /* old files do not say */
    else if (!v && *l->vocab.s == '[')
        type = "Unigram";
    else if (!v)
        type = json_object_get(l->options, "max_input_chars_per_word") ? "WordPiece" : "WordLevel";
    for (size_t i = 0; type && i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(rows[i].name, type) == 0) {
            l->h->model = rows[i].model;
            return RD_OK;
        }
    return error_set(l->err, RD_E_UNSUPPORTED, "model \"%s\" is not known; known: BPE, Unigram, WordPiece, WordLevel",
                     type ? error_quote(quoted, sizeof(quoted), type, strlen(type)) : "");
}

/* ---- the vocabulary ---- */

static rd_status add_row(struct loader *l, size_t at, uint64_t id, double score)
{
    size_t n = l->texts.n - at;

    if (l->texts.failed) return no_memory(l);
    if (n > LIMIT_TOKEN_BYTES)
        return error_set(l->err, RD_E_LIMIT, "token %llu has %zu bytes, at most %u", (unsigned long long)id, n,
                         LIMIT_TOKEN_BYTES);
    if (id >= LIMIT_VOCAB)
        return error_set(l->err, RD_E_LIMIT, "token id %llu, at most %u", (unsigned long long)id, LIMIT_VOCAB - 1);
    if (l->n_rows == l->rows_cap && !mem_grow((void **)&l->rows, &l->rows_cap, l->n_rows + 1, sizeof(*l->rows)))
        return no_memory(l);
    l->rows[l->n_rows++] = (struct vocab_row){at, n, (uint32_t)id, score};
    return RD_OK;
}

static rd_status read_vocab_object(struct loader *l)
{
    struct json_scan sc = {l->vocab.s, l->vocab.n, 0, false};
    struct buf key = {0};
    rd_status st = RD_OK;

    if (json_scan_enter(&sc, '{'))
        while (st == RD_OK && json_scan_member(&sc, &key)) {
            size_t at = l->texts.n;
            uint64_t id;

            if (!json_scan_uint(&sc, &id)) break;
            if (key.n) buf_append(&l->texts, key.data, key.n);
            st = key.failed ? no_memory(l) : add_row(l, at, id, 0);
        }
    if (key.failed) st = no_memory(l);
    buf_deinit(&key);
    return st == RD_OK && sc.failed ? broken(l, &sc, "vocab") : st;
}

/* Unigram: [["text", score], ...], ids in order. */
static rd_status read_vocab_list(struct loader *l)
{
    struct json_scan sc = {l->vocab.s, l->vocab.n, 0, false};
    rd_status st = RD_OK;
    double score = 0;

    if (json_scan_enter(&sc, '['))
        while (st == RD_OK && json_scan_element(&sc)) {
            size_t at = l->texts.n;

            if (!json_scan_enter(&sc, '[') || !json_scan_element(&sc) || !json_scan_string(&sc, &l->texts) ||
                !json_scan_element(&sc) || !json_scan_number(&sc, &score) || json_scan_element(&sc))
                break;
            st = add_row(l, at, l->n_rows, score);
        }
    return st == RD_OK && sc.failed ? broken(l, &sc, "vocab") : st;
}

/* ---- added tokens ---- */

static bool flag(const json_t *object, const char *name, bool fallback)
{
    const json_t *v = json_object_get(object, name);

    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

/* Ids of added tokens: the vocabulary's where it has the text, else the file's. */
static rd_status read_added(struct loader *l, struct string_table *texts)
{
    rd_status st = parse_part(l, l->added_part, "added_tokens", &l->added_json);
    size_t n = json_array_size(l->added_json);

    if (st != RD_OK || !l->added_json || json_is_null(l->added_json)) return st;
    if (!json_is_array(l->added_json)) return error_set(l->err, RD_E_FORMAT, "added_tokens must be an array");
    for (size_t i = 0; i < n; i++) {
        json_t *one = json_array_get(l->added_json, i);
        const json_t *content = json_object_get(one, "content"), *id = json_object_get(one, "id");
        size_t len = json_string_length(content), at = l->texts.n;
        uint32_t number;
        bool is_new = false;

        if (!json_is_string(content) || !json_is_integer(id) || json_integer_value(id) < 0)
            return error_set(l->err, RD_E_FORMAT, "added_tokens: entry %zu has no \"content\" and \"id\"", i);
        if (len == 0) continue;
        if (len > LIMIT_SEARCHED_TOKEN_BYTES)
            return error_set(l->err, RD_E_LIMIT, "added_tokens: entry %zu has %zu bytes, at most %u", i, len,
                             LIMIT_SEARCHED_TOKEN_BYTES);
        st = string_table_add(texts, json_string_value(content), len, &number, &is_new);
        if (st != RD_OK) return no_memory(l);
        if (!is_new) continue; /* its id is the vocabulary's, or an earlier entry's */
        if (l->n_rows_wanted && json_integer_value(id) >= l->n_rows_wanted) continue;
        buf_append(&l->texts, json_string_value(content), len);
        if ((st = add_row(l, at, (uint64_t)json_integer_value(id), NAN)) != RD_OK) return st;
    }
    return RD_OK;
}

/* Numbers all texts: t->strings gets them in the order of their ids. */
static rd_status number_tokens(struct loader *l, size_t n_model_rows)
{
    struct tokenizer *t = l->t;
    uint32_t n = 0, id;
    rd_status st;
    char quoted[64];

    for (size_t i = 0; i < l->n_rows; i++)
        if (l->rows[i].id >= n) n = l->rows[i].id + 1;
    if (n == 0) return error_set(l->err, RD_E_FORMAT, "the vocabulary is empty");
    if (l->n_rows_wanted && n > l->n_rows_wanted)
        return error_set(l->err, RD_E_FORMAT, "the vocabulary has %u tokens, the model %u", n, l->n_rows_wanted);
    if (l->n_rows_wanted) n = l->n_rows_wanted;
    t->n_tokens = n;
    l->row_of = mem_zalloc(n, sizeof(*l->row_of));
    l->h->flags = mem_zalloc(n, 1);
    l->h->scores = l->h->model == HUB_UNIGRAM ? mem_zalloc(n, sizeof(double)) : NULL;
    t->types = mem_alloc(n, 1);
    if (!l->row_of || !l->h->flags || !t->types || (l->h->model == HUB_UNIGRAM && !l->h->scores)) return no_memory(l);
    if (string_table_init(&t->strings, n, l->texts.n) != RD_OK) return no_memory(l);
    memset(t->types, TOKEN_UNUSED, n);
    for (size_t i = 0; i < l->n_rows; i++) {
        const struct vocab_row *r = &l->rows[i];

        if (l->row_of[r->id])
            return error_set(l->err, RD_E_FORMAT, "id %u stands for \"%s\" and for another token", r->id,
                             error_quote(quoted, sizeof(quoted), l->texts.data + r->at, r->n));
        l->row_of[r->id] = i + 1;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct vocab_row *r = l->row_of[i] ? &l->rows[l->row_of[i] - 1] : NULL;
        bool is_new = true;

        st = r && r->n ? string_table_add(&t->strings, l->texts.data + r->at, r->n, &id, &is_new)
                       : string_table_add_hidden(&t->strings, &id);
        if (st != RD_OK) return no_memory(l);
        if (!is_new)
            return error_set(l->err, RD_E_FORMAT, "tokens %u and %u are both \"%s\"", id, i,
                             error_quote(quoted, sizeof(quoted), l->texts.data + r->at, r->n));
        if (!r) continue;
        if (r->n > t->max_bytes) t->max_bytes = (uint32_t)r->n;
        t->types[i] = TOKEN_NORMAL;
        if (l->row_of[i] <= n_model_rows) l->h->flags[i] |= HUB_IN_MODEL;
        if (l->h->scores && l->row_of[i] <= n_model_rows) l->h->scores[i] = r->score;
    }
    return RD_OK;
}

/* ---- merges ---- */

struct merge_texts {
    struct buf left, right, both;
};

/* One merge, as ["left", "right"] or "left right". *skip: a comment. */
static bool read_merge(struct json_scan *sc, struct merge_texts *m, bool *skip)
{
    const char *space;

    buf_clear(&m->left);
    buf_clear(&m->right);
    *skip = false;
    if (json_scan_peek(sc) == '[') {
        json_scan_enter(sc, '[');
        return json_scan_element(sc) && json_scan_string(sc, &m->left) && json_scan_element(sc) &&
               json_scan_string(sc, &m->right) && !json_scan_element(sc) && !sc->failed;
    }
    if (!json_scan_string(sc, &m->left) || !m->left.n) return false;
    *skip = m->left.n >= 8 && memcmp(m->left.data, "#version", 8) == 0;
    space = memchr(m->left.data, ' ', m->left.n);
    if (!space) return *skip;
    buf_append(&m->right, space + 1, m->left.n - (size_t)(space + 1 - m->left.data));
    m->left.n = (size_t)(space - m->left.data);
    return m->right.n && (*skip || !memchr(m->right.data, ' ', m->right.n));
}

static rd_status add_merge(struct loader *l, struct merge_texts *m, uint32_t rank)
{
    const struct tokenizer *t = l->t;
    size_t skip = l->h->n_prefix < m->right.n ? l->h->n_prefix : m->right.n;
    uint32_t left, right, both;
    char quoted[3][64];

    if (m->left.failed || m->right.failed) return no_memory(l);
    left = m->left.n ? hub_find(t, m->left.data, m->left.n) : SYMBOL_NONE;
    right = m->right.n ? hub_find(t, m->right.data, m->right.n) : SYMBOL_NONE;
    buf_clear(&m->both);
    if (m->left.n) buf_append(&m->both, m->left.data, m->left.n);
    if (m->right.n > skip) buf_append(&m->both, m->right.data + skip, m->right.n - skip);
    if (m->both.failed) return no_memory(l);
    both = m->both.n ? hub_find(t, m->both.data, m->both.n) : SYMBOL_NONE;
    if (left == SYMBOL_NONE || right == SYMBOL_NONE || both == SYMBOL_NONE)
        return error_set(l->err, RD_E_FORMAT, "merge %u, \"%s\" + \"%s\" = \"%s\": one of them is no token", rank,
                         error_quote(quoted[0], 64, m->left.data ? m->left.data : "", m->left.n),
                         error_quote(quoted[1], 64, m->right.data ? m->right.data : "", m->right.n),
                         error_quote(quoted[2], 64, m->both.data ? m->both.data : "", m->both.n));
    if (l->h->cuts) hub_note_junction(l->h, m->left.data, m->left.n, m->right.data, m->right.n);
    for (unsigned b = 0; l->h->cuts && b < 256; b++) /* a byte token is not the characters of its name */
        if (left == l->h->byte_ids[b] || right == l->h->byte_ids[b]) l->h->cuts = false;
    bpe_pair_put(l->t, left, right, rank, both, true);
    return RD_OK;
}

static rd_status read_merges(struct loader *l)
{
    struct json_scan sc = {l->merges.s, l->merges.n, 0, false};
    struct merge_texts m = {{0}, {0}, {0}};
    uint32_t rank = 0;
    size_t n = 0;
    bool skip = false, good = true;
    rd_status st = RD_OK;

    if (!l->merges.s) return bpe_pairs_init(l->t, 0, l->err);
    if (json_scan_enter(&sc, '['))
        while (json_scan_element(&sc) && json_scan_skip(&sc, NULL, NULL)) n++;
    if (sc.failed) return broken(l, &sc, "merges");
    if (n > LIMIT_MERGES) return error_set(l->err, RD_E_LIMIT, "%zu merges, at most %u", n, LIMIT_MERGES);
    if ((st = bpe_pairs_init(l->t, n, l->err)) != RD_OK) return st;
    sc = (struct json_scan){l->merges.s, l->merges.n, 0, false};
    json_scan_enter(&sc, '[');
    while (st == RD_OK && good && json_scan_element(&sc)) {
        good = read_merge(&sc, &m, &skip);
        if (good && !skip) st = add_merge(l, &m, rank++);
    }
    if (m.left.failed || m.right.failed)
        st = no_memory(l);
    else if (st == RD_OK && (!good || sc.failed))
        st = broken(l, &sc, "merges (two texts with a space between, or a pair)");
    buf_deinit(&m.left);
    buf_deinit(&m.right);
    buf_deinit(&m.both);
    return st;
}

/* ---- the model's options ---- */

static rd_status copy_option(struct loader *l, const char *name, const char *fallback, char **out, size_t *n)
{
    const json_t *v = json_object_get(l->options, name);
    const char *s = json_is_string(v) ? json_string_value(v) : fallback;

    *n = json_is_string(v) ? json_string_length(v) : strlen(fallback);
    if (*n > LIMIT_SEARCHED_TOKEN_BYTES) return error_set(l->err, RD_E_LIMIT, "model: \"%s\" is too long", name);
    *out = mem_memdup(s, *n);
    return *out ? RD_OK : no_memory(l);
}

static rd_status read_unk(struct loader *l)
{
    const json_t *token = json_object_get(l->options, "unk_token"), *id = json_object_get(l->options, "unk_id");
    char quoted[64];
    uint32_t found;

    l->t->unk = TOKEN_NONE;
    if (l->h->model == HUB_UNIGRAM) {
        if (!json_is_integer(id)) return RD_OK;
        if (json_integer_value(id) < 0 || json_integer_value(id) >= (json_int_t)l->t->n_tokens ||
            !(l->h->flags[json_integer_value(id)] & HUB_IN_MODEL))
            return error_set(l->err, RD_E_FORMAT, "model: \"unk_id\" is %lld, which is no token",
                             (long long)json_integer_value(id));
        l->t->unk = (int32_t)json_integer_value(id);
        return RD_OK;
    }
    if (!json_is_string(token)) return RD_OK;
    found = hub_find(l->t, json_string_value(token), json_string_length(token));
    if (found == SYMBOL_NONE && l->h->model == HUB_BPE)
        return error_set(l->err, RD_E_FORMAT, "model: the unknown token \"%s\" is not in the vocabulary",
                         error_quote(quoted, sizeof(quoted), json_string_value(token), json_string_length(token)));
    if (found != SYMBOL_NONE) l->t->unk = (int32_t)found;
    return RD_OK;
}

/* All 256 characters of the byte alphabet are tokens: words can be merged as bytes. */
static bool has_alphabet(struct loader *l)
{
    char utf8[UTF8_MAX_BYTES];

    for (unsigned b = 0; b < 256; b++) {
        l->t->byte_symbol[b] = hub_find(l->t, utf8, (size_t)utf8_encode(byte_alphabet_char(b), utf8));
        if (l->t->byte_symbol[b] == SYMBOL_NONE) return false;
    }
    return true;
}

static rd_status read_options(struct loader *l)
{
    struct hub *h = l->h;
    const json_t *dropout = json_object_get(l->options, "dropout");
    const json_t *max_chars = json_object_get(l->options, "max_input_chars_per_word");
    const char *prefix_fallback = h->model == HUB_WORD_PIECE ? "##" : "";
    rd_status st = read_unk(l);

    if (st == RD_OK) st = copy_option(l, "continuing_subword_prefix", prefix_fallback, &h->prefix, &h->n_prefix);
    if (st == RD_OK) st = copy_option(l, "end_of_word_suffix", "", &h->suffix, &h->n_suffix);
    if (st != RD_OK) return st;
    if (json_is_number(dropout) && json_number_value(dropout) != 0)
        return error_set(l->err, RD_E_UNSUPPORTED,
                         "model: dropout is %g; ids that change from call to call are not known here",
                         json_number_value(dropout));
    h->byte_fallback = flag(l->options, "byte_fallback", false);
    h->fuse_unk = flag(l->options, "fuse_unk", false) || h->model == HUB_UNIGRAM;
    h->ignore_merges = flag(l->options, "ignore_merges", false);
    l->t->pre.ignore_merges = h->ignore_merges;
    h->max_chars = 100;
    if (json_is_integer(max_chars) && json_integer_value(max_chars) >= 0)
        h->max_chars = (size_t)json_integer_value(max_chars);
    return RD_OK;
}

/* ---- added tokens, once the normalizer is there ---- */

static uint8_t added_flags(const json_t *one)
{
    bool special = flag(one, "special", false);

    return (uint8_t)(HUB_ADDED | (special ? HUB_SPECIAL : 0) | (flag(one, "lstrip", false) ? HUB_LSTRIP : 0) |
                     (flag(one, "rstrip", false) ? HUB_RSTRIP : 0) |
                     (flag(one, "single_word", false) ? HUB_SINGLE_WORD : 0) |
                     (flag(one, "normalized", !special) ? HUB_NORMALIZED : 0));
}

/* What is looked for in normalised text is itself normalised. */
static rd_status add_entry(struct loader *l, const json_t *one, uint32_t id, struct normal_work *work,
                           struct prefix_entry *entries, size_t *places, size_t n[2], size_t most)
{
    const char *s = json_string_value(json_object_get(one, "content"));
    size_t len = json_string_length(json_object_get(one, "content")), at = l->texts.n;
    bool normalized = l->h->flags[id] & HUB_NORMALIZED;
    rd_status st;

    if (normalized && (st = normalizer_run(l->h->normalizer, work, s, len, &s, &len)) != RD_OK)
        return error_set(l->err, st, "added token %u: %s", id, rd_status_text(st));
    if (len == 0) return RD_OK;
    if (len > LIMIT_SEARCHED_TOKEN_BYTES) return error_set(l->err, RD_E_LIMIT, "added token %u is too long", id);
    buf_append(&l->texts, s, len); /* its place as a number: the texts may still move */
    if (l->texts.failed) return no_memory(l);
    places[normalized * most + n[normalized]] = at;
    entries[normalized * most + n[normalized]++] = (struct prefix_entry){NULL, len, id};
    return RD_OK;
}

static rd_status index_added(struct loader *l)
{
    size_t most = json_array_size(l->added_json), n[2] = {0, 0};
    struct prefix_entry *entries = mem_alloc(2 * most + 1, sizeof(*entries));
    size_t *places = mem_alloc(2 * most + 1, sizeof(*places));
    struct normal_work work = {0};
    rd_status st = entries && places ? RD_OK : no_memory(l);

    for (size_t i = 0; i < most && st == RD_OK; i++) {
        const json_t *one = json_array_get(l->added_json, i), *content = json_object_get(one, "content");
        uint32_t id = string_table_find(&l->t->strings, json_string_value(content), json_string_length(content));

        if (id == STRING_NONE) continue;
        if (l->h->flags[id] & HUB_ADDED) continue; /* the first entry of a text counts */
        l->h->flags[id] |= added_flags(one);
        l->t->types[id] = flag(one, "special", false) ? TOKEN_CONTROL : TOKEN_USER_DEFINED;
        st = add_entry(l, one, id, &work, entries, places, n, most);
    }
    for (unsigned k = 0; k < 2 && st == RD_OK; k++) {
        struct prefix_entry *list = entries + k * most;

        for (size_t i = 0; i < n[k]; i++) list[i].s = l->texts.data + places[k * most + i];
        if (n[k]) st = prefix_index_init(&l->h->added[k], list, n[k]);
        if (st != RD_OK) error_set(l->err, st, "added_tokens: %s", rd_status_text(st));
    }
    normal_work_deinit(&work);
    mem_free(entries);
    mem_free(places);
    return st;
}

/* ---- pipeline ---- */

static rd_status build_pipeline(struct loader *l)
{
    struct hub *h = l->h;
    bool bytes = h->model == HUB_BPE && !h->n_prefix && !h->n_suffix && has_alphabet(l);
    json_t *config = NULL;
    rd_status st = parse_part(l, l->normalizer, "normalizer", &config);

    if (st == RD_OK) st = normalizer_create(config, &h->normalizer, l->err);
    json_decref(config);
    if (st != RD_OK || (st = parse_part(l, l->pre_tokenizer, "pre_tokenizer", &config)) != RD_OK) return st;
    st = splitter_create(config, bytes, &h->splitter, l->err);
    json_decref(config);
    if (st != RD_OK || (st = parse_part(l, l->decoder, "decoder", &config)) != RD_OK) return st;
    st = hub_decoder_create(config, &h->decoder, l->err);
    json_decref(config);
    if (st != RD_OK) return st;
    h->works_on_bytes = splitter_bytes_last(h->splitter);
    h->scans = splitter_scanner(h->splitter, &h->scanner);
    return RD_OK;
}

static rd_status build_pieces(struct loader *l)
{
    struct tokenizer *t = l->t;
    struct buf all = {0}, work[2] = {{0}, {0}};
    struct normal_work normal = {0};
    rd_status st = RD_OK;

    t->piece_ends = mem_alloc(t->n_tokens, sizeof(*t->piece_ends));
    if (!t->piece_ends) return no_memory(l);
    for (uint32_t id = 0; id < t->n_tokens && st == RD_OK; id++) {
        struct text_span token;

        token.s = string_table_at(&t->strings, id, &token.n);
        if (l->h->flags[id] & HUB_NORMALIZED) /* such a token stands for its normalised text */
            st = normalizer_run(l->h->normalizer, &normal, token.s, token.n, &token.s, &token.n);
        if (l->h->flags[id] & HUB_ADDED)
            buf_append(&all, token.s, token.n);
        else if (token.n)
            st = hub_decoder_piece(l->h->decoder, token, work, &all);
        t->piece_ends[id] = (uint32_t)all.n;
    }
    if (st == RD_OK && all.n > UINT32_MAX) st = RD_E_LIMIT;
    buf_append(&all, "", 0);
    if (all.failed) st = RD_E_NOMEM;
    normal_work_deinit(&normal);
    buf_deinit(&work[0]);
    buf_deinit(&work[1]);
    if (st == RD_OK) {
        buf_putc(&all, 0);
        t->pieces = buf_take(&all, NULL);
        if (!t->pieces) st = RD_E_NOMEM;
    }
    buf_deinit(&all);
    return st == RD_OK ? st : error_set(l->err, st, "vocabulary: %s", rd_status_text(st));
}

static rd_status load(struct loader *l, const char *json, size_t n)
{
    struct string_table texts = {0};
    size_t n_model_rows;
    rd_status st = find_parts(l, json, n);

    if (st == RD_OK) st = find_model(l);
    if (st == RD_OK) st = find_kind(l);
    if (st == RD_OK) st = l->h->model == HUB_UNIGRAM ? read_vocab_list(l) : read_vocab_object(l);
    if (st != RD_OK) return st;
    n_model_rows = l->n_rows;
    if (string_table_init(&texts, l->n_rows, l->texts.n) != RD_OK) st = no_memory(l);
    for (size_t i = 0; i < l->n_rows && st == RD_OK; i++) {
        uint32_t number;

        if (l->rows[i].n &&
            string_table_add(&texts, l->texts.data + l->rows[i].at, l->rows[i].n, &number, NULL) != RD_OK)
            st = no_memory(l);
    }
    if (st == RD_OK) st = read_added(l, &texts);
    string_table_deinit(&texts);
    if (st == RD_OK) st = number_tokens(l, n_model_rows);
    if (st == RD_OK) st = read_options(l);
    if (st == RD_OK) st = build_pipeline(l);
    if (st == RD_OK) st = hub_model_build(l->t, l->err);
    if (st == RD_OK && l->h->model == HUB_BPE) st = read_merges(l);
    if (st == RD_OK) st = index_added(l);
    if (st == RD_OK) st = build_pieces(l);
    return st;
}

rd_status tokenizer_from_json(const struct tokenizer_files *files, struct tokenizer **out, struct rd_error *err)
{
    struct loader l = {.err = err, .n_rows_wanted = files->n_rows};
    rd_status st = RD_E_NOMEM;

    if (files->n_json > LIMIT_TOKENIZER_BYTES)
        return error_set(err, RD_E_LIMIT, "tokenizer.json: %zu bytes, at most %u", files->n_json,
                         LIMIT_TOKENIZER_BYTES);
    l.t = mem_zalloc(1, sizeof(*l.t));
    if (l.t) l.t->hub = l.h = mem_zalloc(1, sizeof(*l.h));
    if (!l.t || !l.h || !word_cache_init(&l.t->words)) {
        error_set(err, st, "tokenizer.json: out of memory");
        goto done;
    }
    l.t->model = TOKENIZER_BPE;
    l.t->bos = l.t->eos = l.t->eot = l.t->unk = TOKEN_NONE;
    st = load(&l, files->json, files->n_json);
    if (st == RD_OK) st = hub_read_processor(l.t, l.post_processor.s, l.post_processor.n, err);
    if (st == RD_OK) st = hub_read_config(l.t, files->config, files->n_config, err);
    if (st == RD_OK && l.t->eos < 0 && files->n_ends && files->ends[0] < (int64_t)l.t->n_tokens)
        l.t->eos = files->ends[0];
    if (st == RD_OK && ((st = special_find_ends(l.t, files->ends, files->n_ends)) != RD_OK ||
                        (st = special_marks_build(l.t)) != RD_OK))
        error_set(err, st, "vocabulary: %s", rd_status_text(st));
    if (st == RD_OK) l.t->add_space_prefix = hub_decoder_strips_first(l.h->decoder);
    if (st == RD_OK) *out = l.t;

done:
    json_decref(l.options);
    json_decref(l.added_json);
    buf_deinit(&l.texts);
    mem_free(l.rows);
    mem_free(l.row_of);
    if (st != RD_OK) tokenizer_destroy(l.t);
    return st;
}
