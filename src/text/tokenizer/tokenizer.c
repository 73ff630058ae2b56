/* text/tokenizer/tokenizer.c - building a tokenizer, whole texts to ids and back. */
#include "text/tokenizer/tokenizer.h"
#include <assert.h>
#include <string.h>
#include "base/error.h"
#include "base/hex.h"
#include "base/mem.h"
#include "text/tokenizer/hub.h"
#include "text/tokenizer/tokenizer_impl.h"

const char *tokenizer_known_pre(void)
{
    return pretokenize_known();
}

static rd_status check_id(int32_t id, const char *name, uint32_t n_tokens, struct rd_error *err)
{
    if (id == TOKEN_NONE || (id >= 0 && (uint32_t)id < n_tokens)) return RD_OK;
    return error_set(err, RD_E_FORMAT, "the %s token is %d, the vocabulary has %u tokens", name, id, n_tokens);
}

static rd_status check_spec(const struct tokenizer_spec *spec, struct rd_error *err)
{
    rd_status st = RD_OK;

    if (spec->model != TOKENIZER_BPE && spec->model != TOKENIZER_SPM)
        return error_set(err, RD_E_UNSUPPORTED, "unknown tokenizer model");
    if (spec->n_tokens == 0) return error_set(err, RD_E_FORMAT, "the vocabulary is empty");
    if (spec->n_tokens > LIMIT_VOCAB)
        return error_set(err, RD_E_LIMIT, "the vocabulary has %u tokens, at most %u", spec->n_tokens, LIMIT_VOCAB);
    const struct {
        const char *name;
        int32_t id;
    } ids[] = {
        {"bos", spec->bos}, {"eos", spec->eos},         {"eot", spec->eot},         {"unk", spec->unk},
        {"pad", spec->pad}, {"fim_pre", spec->fim_pre}, {"fim_suf", spec->fim_suf}, {"fim_mid", spec->fim_mid},
    };
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]) && st == RD_OK; i++)
        st = check_id(ids[i].id, ids[i].name, spec->n_tokens, err);
    if (st == RD_OK && spec->add_bos && spec->bos == TOKEN_NONE)
        st = error_set(err, RD_E_FORMAT, "the tokenizer adds a bos token but names none");
    if (st == RD_OK && spec->add_eos && spec->eos == TOKEN_NONE)
        st = error_set(err, RD_E_FORMAT, "the tokenizer adds an eos token but names none");
    return st;
}

static rd_status add_token(struct tokenizer *t, const struct tokenizer_spec *spec, uint32_t i, struct rd_error *err)
{
    const struct text_span *s = &spec->tokens[i];
    int32_t type = spec->types ? spec->types[i] : TOKEN_NORMAL;
    uint32_t id;
    bool is_new = true;
    rd_status st;

    if (s->n > LIMIT_TOKEN_BYTES)
        return error_set(err, RD_E_LIMIT, "token %u has %zu bytes, at most %u", i, s->n, LIMIT_TOKEN_BYTES);
    st = s->n ? string_table_add(&t->strings, s->s, s->n, &id, &is_new) : string_table_add_hidden(&t->strings, &id);
    if (st != RD_OK) return error_set(err, st, "vocabulary: %s", rd_status_text(st));
    if (!is_new) {
        char quoted[64];

        return error_set(err, RD_E_FORMAT, "tokens %u and %u are both \"%s\"", id, i,
                         error_quote(quoted, sizeof(quoted), s->s, s->n));
    }
    if (s->n > t->max_bytes) t->max_bytes = (uint32_t)s->n;
    t->types[i] = type >= TOKEN_NORMAL && type <= TOKEN_BYTE ? (uint8_t)type : TOKEN_UNUSED;
    return RD_OK;
}

static rd_status add_tokens(struct tokenizer *t, const struct tokenizer_spec *spec, struct rd_error *err)
{
    size_t n_bytes = 0;
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < spec->n_tokens; i++) /* at most LIMIT_VOCAB * LIMIT_TOKEN_BYTES: no overflow */
        n_bytes += spec->tokens[i].n <= LIMIT_TOKEN_BYTES ? spec->tokens[i].n : 0;
    st = n_bytes > UINT32_MAX ? RD_E_LIMIT : string_table_init(&t->strings, spec->n_tokens + 256, n_bytes + 1024);
    if (st != RD_OK) return error_set(err, st, "vocabulary of %zu bytes: %s", n_bytes, rd_status_text(st));
    t->types = mem_zalloc(spec->n_tokens, 1);
    if (!t->types) return error_set(err, RD_E_NOMEM, "vocabulary: out of memory");
    for (uint32_t i = 0; i < spec->n_tokens && st == RD_OK; i++) st = add_token(t, spec, i, err);
    return st;
}

/* "<0x0A>" is the byte 10; nothing else is a byte token. */
static size_t byte_piece(const char *s, size_t n, char *out)
{
    int high = n == 6 ? hex_digit(s[3]) : -1, low = n == 6 ? hex_digit(s[4]) : -1;

    if (high < 0 || low < 0 || memcmp(s, "<0x", 3) || s[5] != '>') return 0;
    *out = (char)(high << 4 | low);
    return 1;
}

static rd_status build_pieces(struct tokenizer *t)
{
    size_t at = 0;

    t->pieces = mem_alloc(t->strings.n_bytes + 1, 1); /* a piece is never longer than its text */
    t->piece_ends = mem_alloc(t->n_tokens, sizeof(*t->piece_ends));
    if (!t->pieces || !t->piece_ends) return RD_E_NOMEM;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        size_t n;
        const char *s = string_table_at(&t->strings, i, &n);

        switch ((enum token_type)t->types[i]) {
        case TOKEN_NORMAL:
            at += t->model == TOKENIZER_BPE ? bpe_piece(s, n, t->pieces + at) : spm_piece(s, n, t->pieces + at);
            break;
        case TOKEN_BYTE:
            at += byte_piece(s, n, t->pieces + at);
            break;
        case TOKEN_UNUSED:
            break;
        default:
            memcpy(t->pieces + at, s, n);
            at += n;
        }
        t->piece_ends[i] = (uint32_t)at;
    }
    return RD_OK;
}

rd_status tokenizer_create(const struct tokenizer_spec *spec, struct tokenizer **out, struct rd_error *err)
{
    rd_status st;
    struct tokenizer *t = NULL;

    assert(spec && out);
    if ((st = check_spec(spec, err)) != RD_OK) return st;
    t = mem_zalloc(1, sizeof(*t));
    if (!t) return error_set(err, RD_E_NOMEM, "vocabulary: out of memory");
    t->model = spec->model;
    t->n_tokens = spec->n_tokens;
    t->bos = spec->bos;
    t->eos = spec->eos;
    t->eot = spec->eot;
    t->unk = spec->unk;
    t->add_bos = spec->add_bos;
    t->add_eos = spec->add_eos;
    t->add_space_prefix = spec->add_space_prefix;
    if (!word_cache_init(&t->words)) {
        st = error_set(err, RD_E_NOMEM, "vocabulary: out of memory");
        goto fail;
    }
    if ((st = add_tokens(t, spec, err)) != RD_OK) goto fail;
    st = spec->model == TOKENIZER_BPE ? bpe_build(t, spec, err) : spm_build(t, spec, err);
    if (st != RD_OK) goto fail;
    if ((st = special_build(t)) != RD_OK || (st = build_pieces(t)) != RD_OK) {
        error_set(err, st, "vocabulary: %s", rd_status_text(st));
        goto fail;
    }
    *out = t;
    return RD_OK;

fail:
    tokenizer_destroy(t);
    return st;
}

void tokenizer_destroy(struct tokenizer *t)
{
    if (!t) return;
    string_table_deinit(&t->strings);
    special_deinit(t);
    hub_destroy(t->hub);
    word_cache_deinit(&t->words);
    mem_free(t->types);
    mem_free(t->pieces);
    mem_free(t->piece_ends);
    mem_free(t->pairs);
    mem_free(t->prios);
    mem_free(t->neighbours);
    mem_free(t);
}

/* Text between special tokens, and the tokens themselves. */
static rd_status encode_fragments(const struct tokenizer *t, const char *text, uint32_t n, bool parse_special,
                                  const struct text_breaks *breaks, struct id_list *out)
{
    struct special_match *found = NULL;
    struct merge_work work = {0};
    size_t n_found = 0;
    uint32_t at = 0;
    rd_status st = special_find(t, text, n, parse_special, breaks, &found, &n_found);

    for (size_t i = 0; st == RD_OK && i <= n_found; i++) {
        uint32_t end = i < n_found ? found[i].at : n;

        if (end > at && t->model == TOKENIZER_BPE) /* a special token before, or the start of the text */
            st = bpe_encode(t, &work, text + at, end - at, out);
        else if (end > at)
            st = spm_encode(t, &work, text + at, end - at, t->add_space_prefix, out);
        if (st == RD_OK && i < n_found) {
            if (!id_list_reserve(out, 1))
                st = RD_E_NOMEM;
            else
                id_list_put(out, found[i].id);
            at = found[i].at + found[i].n;
        }
    }
    merge_work_deinit(&work);
    mem_free(found);
    return st;
}

static void put_ids(struct id_list *out, const int32_t *ids, size_t n)
{
    if (n) memcpy(out->ids + out->n, ids, n * sizeof(*ids));
    out->n += n;
}

static rd_status encode_hub(const struct tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                            bool parse_special, const struct text_breaks *breaks, int32_t **ids, uint32_t *n,
                            struct rd_error *err)
{
    const struct hub *h = t->hub;
    struct id_list out = {0};
    struct hub_work work = {0};
    struct fragment *found = NULL;
    size_t n_found = 0;
    char *repaired = NULL;
    rd_status st = hub_repair(text, n_bytes, &repaired, &n_bytes);

    if (repaired) text = repaired;
    if (st == RD_OK && !id_list_reserve(&out, n_bytes / 4 + h->n_before + h->n_after + 2)) st = RD_E_NOMEM;
    if (st == RD_OK && add_special) put_ids(&out, h->before, h->n_before);
    if (st == RD_OK) st = hub_find_fragments(t, text, n_bytes, parse_special, breaks, &found, &n_found);
    for (size_t i = 0; i < n_found && st == RD_OK; i++) {
        const struct fragment *f = &found[i];

        if (f->id == TOKEN_NONE)
            st = hub_encode_fragment(t, &work, text, *f, parse_special, breaks, &out);
        else if (!id_list_reserve(&out, 1))
            st = RD_E_NOMEM;
        else
            id_list_put(&out, f->id);
    }
    if (st == RD_OK && !id_list_reserve(&out, h->n_after)) st = RD_E_NOMEM;
    if (st == RD_OK && add_special) put_ids(&out, h->after, h->n_after);
    if (st == RD_OK && out.n > UINT32_MAX) st = RD_E_LIMIT;
    hub_work_deinit(&work);
    mem_free(found);
    mem_free(repaired);
    if (st != RD_OK) {
        mem_free(out.ids);
        return error_set(err, st, "tokenising %zu bytes: %s", n_bytes, rd_status_text(st));
    }
    *ids = out.ids;
    *n = (uint32_t)out.n;
    return RD_OK;
}

rd_status encode_with_breaks(const struct tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                             bool parse_special, const struct text_breaks *breaks, int32_t **ids, uint32_t *n,
                             struct rd_error *err)
{
    struct id_list out = {0};
    rd_status st = RD_E_NOMEM;

    if (t->hub && n_bytes <= LIMIT_TEXT_BYTES)
        return encode_hub(t, text, n_bytes, add_special, parse_special, breaks, ids, n, err);
    if (n_bytes > LIMIT_TEXT_BYTES)
        return error_set(err, RD_E_LIMIT, "the text has %zu bytes, at most %u", n_bytes, LIMIT_TEXT_BYTES);
    if (!id_list_reserve(&out, n_bytes / 4 + 2)) goto fail;
    if (add_special && t->add_bos) id_list_put(&out, t->bos);
    if (n_bytes && (st = encode_fragments(t, text, (uint32_t)n_bytes, parse_special, breaks, &out)) != RD_OK) goto fail;
    st = RD_E_NOMEM;
    if (!id_list_reserve(&out, 1)) goto fail;
    if (add_special && t->add_eos) id_list_put(&out, t->eos);
    *ids = out.ids;
    *n = (uint32_t)out.n;
    return RD_OK;

fail:
    mem_free(out.ids);
    return error_set(err, st, "tokenising %zu bytes: %s", n_bytes, rd_status_text(st));
}

rd_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                           bool parse_special, int32_t **ids, uint32_t *n, struct rd_error *err)
{
    return encode_with_breaks(t, text, n_bytes, add_special, parse_special, NULL, ids, n, err);
}

rd_status unmarked_init(const struct tokenizer *t, const char *text, size_t n_bytes, struct unmarked *u,
                        struct rd_error *err)
{
    rd_status st = RD_OK;

    u->text = text;
    u->n = n_bytes;
    if (t->hub) st = hub_repair(text, n_bytes, &u->repaired, &u->n); /* before places are counted */
    if (u->repaired) u->text = u->repaired;
    if (st == RD_OK) {
        size_t n = 0;

        st = text_marks_take(u->text, u->n, &u->plain, &n, &u->breaks);
        if (u->plain) u->text = u->plain, u->n = n;
    }
    if (st == RD_OK) return RD_OK;
    unmarked_deinit(u);
    return error_set(err, st, "tokenising %zu bytes: %s", n_bytes, rd_status_text(st));
}

void unmarked_deinit(struct unmarked *u)
{
    text_breaks_deinit(&u->breaks);
    mem_free(u->repaired);
    mem_free(u->plain);
    *u = (struct unmarked){.text = NULL};
}

rd_status tokenizer_encode_marked(const struct tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                                  int32_t **ids, uint32_t *n, struct rd_error *err)
{
    struct unmarked u = {.text = NULL};
    rd_status st = unmarked_init(t, text, n_bytes, &u, err);

    if (st == RD_OK) st = encode_with_breaks(t, u.text, u.n, add_special, true, &u.breaks, ids, n, err);
    unmarked_deinit(&u);
    return st;
}

struct text_span tokenizer_piece(const struct tokenizer *t, int32_t id, bool special)
{
    struct text_span piece = {"", 0};
    uint32_t start;

    if (id < 0 || (uint32_t)id >= t->n_tokens) return piece;
    if (!special && (t->types[id] == TOKEN_CONTROL || t->types[id] == TOKEN_UNKNOWN)) return piece;
    start = id ? t->piece_ends[id - 1] : 0;
    piece.s = t->pieces + start;
    piece.n = t->piece_ends[id] - start;
    return piece;
}

rd_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, uint32_t n, bool special, char **text,
                           size_t *n_bytes)
{
    size_t total = 0, at = 0;
    char *out;

    if (t->hub) {
        struct buf decoded = {0};
        rd_status st = hub_decode(t, ids, n, special, &decoded);

        buf_putc(&decoded, 0); /* so that there is a block even for no text */
        if (st == RD_OK && decoded.failed) st = RD_E_NOMEM;
        *n_bytes = st == RD_OK ? decoded.n - 1 : 0;
        *text = st == RD_OK ? buf_take(&decoded, NULL) : NULL;
        buf_deinit(&decoded);
        return st;
    }
    for (uint32_t i = 0; i < n; i++) total += tokenizer_piece(t, ids[i], special).n;
    out = mem_alloc(total + 1, 1);
    if (!out) return RD_E_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        struct text_span piece = tokenizer_piece(t, ids[i], special);
        size_t skip = i == 0 && t->add_space_prefix && piece.n && piece.s[0] == ' ';

        memcpy(out + at, piece.s + skip, piece.n - skip);
        at += piece.n - skip;
    }
    out[at] = 0;
    *text = out;
    *n_bytes = at;
    return RD_OK;
}

uint32_t tokenizer_n_tokens(const struct tokenizer *t)
{
    return t->n_tokens;
}
int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}
int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}
bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->add_bos;
}

enum token_type tokenizer_type(const struct tokenizer *t, int32_t id)
{
    return id < 0 || (uint32_t)id >= t->n_tokens ? TOKEN_UNUSED : (enum token_type)t->types[id];
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n)
{
    uint32_t id = string_table_find(&t->strings, text, n);

    return id < t->n_tokens ? (int32_t)id : TOKEN_NONE;
}

const int32_t *tokenizer_end_tokens(const struct tokenizer *t, uint32_t *n)
{
    *n = t->n_ends;
    return t->ends;
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id)
{
    for (uint32_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id) return true;
    return false;
}

void token_decoder_init(struct token_decoder *d, const struct tokenizer *t, bool at_text_start)
{
    memset(d, 0, sizeof(*d));
    d->first = at_text_start;
    d->strip_first_space = t->add_space_prefix;
}
