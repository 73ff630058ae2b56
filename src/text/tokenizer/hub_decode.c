/* text/tokenizer/hub_decode.c - decoders: each turns a list of texts into another. */
#include "text/tokenizer/hub_decode.h"
#include <string.h>
#include "base/error.h"
#include "base/hex.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/pattern.h"

enum step_kind {
    STEP_BYTE_LEVEL,
    STEP_BYTE_FALLBACK,
    STEP_META,
    STEP_FUSE,
    STEP_REPLACE,
    STEP_STRIP,
    STEP_WORD_PIECE,
    STEP_SUFFIX
};
#define MAX_STEPS 32
#define MAX_DEPTH 16
#define REPLACED  "\xef\xbf\xbd"

struct step {
    enum step_kind kind;
    struct pattern *pattern; /* REPLACE */
    char *text;              /* REPLACE: instead; META, STRIP: the character; WORD_PIECE: prefix; SUFFIX */
    size_t n, start, stop;   /* STRIP: most at the front, at the end */
    bool flag;               /* META: the first token's marks go; WORD_PIECE: clean up */
};
struct hub_decoder {
    struct step steps[MAX_STEPS];
    size_t n;
    bool joins;
};

/* ---- reading ---- */

static rd_status take_text(const json_t *config, const char *name, const char *fallback, struct step *s,
                           struct rd_error *err)
{
    const json_t *v = json_object_get(config, name);
    const char *text = json_is_string(v) ? json_string_value(v) : fallback;

    if (!text) return error_set(err, RD_E_FORMAT, "decoder: \"%s\" must be a string", name);
    s->n = json_is_string(v) ? json_string_length(v) : strlen(text);
    if (s->n > LIMIT_TOKEN_BYTES) return error_set(err, RD_E_LIMIT, "decoder: \"%s\" is too long", name);
    s->text = mem_memdup(text, s->n);
    return s->text ? RD_OK : error_set(err, RD_E_NOMEM, "decoder: out of memory");
}

static size_t count_of(const json_t *config, const char *name)
{
    json_int_t v = json_integer_value(json_object_get(config, name));

    return v > 0 ? (size_t)v : 0;
}

static rd_status read_step(struct step *s, const json_t *config, struct rd_error *err)
{
    const json_t *v;
    const char *scheme;

    switch (s->kind) {
    case STEP_META:
        v = json_object_get(config, "add_prefix_space");
        scheme = json_string_value(json_object_get(config, "prepend_scheme"));
        s->flag = !(scheme && strcmp(scheme, "never") == 0) && !json_is_false(v);
        return take_text(config, "replacement", NULL, s, err);
    case STEP_REPLACE:
        if (take_text(config, "content", NULL, s, err) != RD_OK) return err ? err->status : RD_E_FORMAT;
        return pattern_create(json_object_get(config, "pattern"), "decoder Replace", &s->pattern, err);
    case STEP_STRIP:
        s->start = count_of(config, "start");
        s->stop = count_of(config, "stop");
        return take_text(config, "content", NULL, s, err);
    case STEP_WORD_PIECE:
        s->flag = !json_is_false(json_object_get(config, "cleanup"));
        return take_text(config, "prefix", "##", s, err);
    case STEP_SUFFIX:
        return take_text(config, "suffix", "</w>", s, err);
    default:
        return RD_OK;
    }
}

static rd_status add_config(struct hub_decoder *d, const json_t *config, unsigned depth, struct rd_error *err)
{
    static const struct {
        const char *name;
        enum step_kind kind;
    } rows[] = {
        {"ByteLevel", STEP_BYTE_LEVEL}, {"ByteFallback", STEP_BYTE_FALLBACK},
        {"Metaspace", STEP_META},       {"Fuse", STEP_FUSE},
        {"Replace", STEP_REPLACE},      {"Strip", STEP_STRIP},
        {"WordPiece", STEP_WORD_PIECE}, {"BPEDecoder", STEP_SUFFIX},
    };
    const char *type = json_string_value(json_object_get(config, "type"));
    const json_t *list = json_object_get(config, "decoders");
    rd_status st = RD_OK;
    char quoted[64];

    if (!type) return error_set(err, RD_E_FORMAT, "decoder: an entry without \"type\"");
    if (depth > MAX_DEPTH) return error_set(err, RD_E_LIMIT, "decoder: nested more than %d deep", MAX_DEPTH);
    if (strcmp(type, "Sequence") == 0) {
        if (!json_is_array(list)) return error_set(err, RD_E_FORMAT, "decoder Sequence: \"decoders\" must be an array");
        for (size_t i = 0; i < json_array_size(list) && st == RD_OK; i++)
            st = add_config(d, json_array_get(list, i), depth + 1, err);
        return st;
    }
    if (d->n == MAX_STEPS) return error_set(err, RD_E_LIMIT, "decoder: more than %d steps", MAX_STEPS);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(rows[i].name, type) == 0) {
            d->steps[d->n].kind = rows[i].kind;
            return read_step(&d->steps[d->n++], config, err);
        }
    return error_set(err, RD_E_UNSUPPORTED,
                     "decoder \"%s\" is not known; known: ByteLevel, ByteFallback, Metaspace, Fuse, Replace, Strip, "
                     "WordPiece, BPEDecoder, Sequence",
                     error_quote(quoted, sizeof(quoted), type, strlen(type)));
}

rd_status hub_decoder_create(const json_t *config, struct hub_decoder **out, struct rd_error *err)
{
    struct hub_decoder *d = mem_zalloc(1, sizeof(*d));
    struct rd_error own = {RD_OK, ""};
    rd_status st;

    if (!d) return error_set(err, RD_E_NOMEM, "decoder: out of memory");
    d->joins = !config || json_is_null(config);
    st = d->joins ? RD_OK : add_config(d, config, 0, err ? err : &own);
    if (st == RD_OK)
        *out = d;
    else
        hub_decoder_destroy(d);
    return st;
}

void hub_decoder_destroy(struct hub_decoder *d)
{
    if (!d) return;
    for (size_t i = 0; i < d->n; i++) {
        pattern_destroy(d->steps[i].pattern);
        mem_free(d->steps[i].text);
    }
    mem_free(d);
}

bool hub_decoder_strips_first(const struct hub_decoder *d)
{
    bool fused = false;

    for (size_t i = 0; i < d->n; i++) {
        const struct step *s = &d->steps[i];

        fused |= s->kind == STEP_FUSE || s->kind == STEP_BYTE_LEVEL;
        if (fused && s->kind == STEP_STRIP && s->start && s->n == 1 && *s->text == ' ') return true;
        if ((s->kind == STEP_META && s->flag) || s->kind == STEP_WORD_PIECE) return true;
    }
    return d->joins;
}

/* ---- running ---- */

/* A list of texts: text i is data.data[ends[i-1] .. ends[i]). */
struct texts {
    struct buf data;
    size_t *ends;
    size_t n, cap;
    bool failed;
};

static void end_text(struct texts *t)
{
    if (t->n == t->cap && !mem_grow((void **)&t->ends, &t->cap, t->n + 1, sizeof(*t->ends))) {
        t->failed = true;
        return;
    }
    t->ends[t->n++] = t->data.n;
}

static struct text_span text_at(const struct texts *t, size_t i)
{
    size_t start = i ? t->ends[i - 1] : 0;

    return (struct text_span){t->data.data ? t->data.data + start : "", t->ends[i] - start};
}

/* A token in the byte alphabet, or else as it is. */
static void put_bytes(struct text_span s, struct buf *out)
{
    size_t before = out->n;

    for (size_t at = 0; at < s.n;) {
        uint32_t cp;
        int len = utf8_decode(s.s + at, s.n - at, &cp), b = byte_alphabet_byte(cp);

        if (b < 0 || len < 0) {
            out->n = before;
            buf_append(out, s.s, s.n);
            return;
        }
        buf_putc(out, (char)b);
        at += (size_t)len;
    }
}

static void put_lossy(const char *s, size_t n, struct buf *out)
{
    for (size_t at = 0; at < n;) {
        size_t good = utf8_valid_prefix(s + at, n - at);
        uint32_t cp;

        buf_append(out, s + at, good);
        at += good;
        if (at == n) return;
        buf_puts(out, REPLACED);
        at += (size_t)-utf8_decode(s + at, n - at, &cp);
    }
}

/* "<0x41>" -> 0x41; else -1. */
static int byte_token(struct text_span s)
{
    int high, low;

    if (s.n != 6 || memcmp(s.s, "<0x", 3) || s.s[5] != '>') return -1;
    high = hex_digit(s.s[3]);
    low = hex_digit(s.s[4]);
    if (s.s[3] == '+' && low >= 0) return low; /* Rust's number parser takes a sign */
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static rd_status replace(const struct step *step, struct text_span s, struct buf *out)
{
    struct pattern_run run;
    size_t start = 0, end = 0, done = 0;
    bool found = true;
    rd_status st = pattern_begin(&run, step->pattern, s.s, s.n);

    if (st != RD_OK) return st;
    while ((st = pattern_next(&run, &found, &start, &end)) == RD_OK && found) {
        buf_append(out, s.s + done, start - done);
        buf_append(out, step->text, step->n);
        done = end;
    }
    buf_append(out, s.s + done, s.n - done);
    pattern_end(&run);
    return st;
}

/* Every place of `from` becomes `to`. */
static void replace_text(struct text_span s, struct text_span from, const char *to, struct buf *out)
{
    size_t at = 0;

    while (from.n) {
        const char *hit = s.n - at >= from.n ? memmem(s.s + at, s.n - at, from.s, from.n) : NULL;

        if (!hit) break;
        buf_append(out, s.s + at, (size_t)(hit - s.s) - at);
        buf_puts(out, to);
        at = (size_t)(hit - s.s) + from.n;
    }
    buf_append(out, s.s + at, s.n - at);
}

static bool starts_with(struct text_span s, const struct step *step)
{
    return step->n && s.n >= step->n && memcmp(s.s, step->text, step->n) == 0;
}

static struct text_span strip(const struct step *step, struct text_span s)
{
    for (size_t i = 0; i < step->start && starts_with(s, step); i++) s.s += step->n, s.n -= step->n;
    for (size_t i = 0; i < step->stop && step->n && s.n >= step->n; i++) {
        if (memcmp(s.s + s.n - step->n, step->text, step->n) != 0) break;
        s.n -= step->n;
    }
    return s;
}

/* WordPiece's undoing of spaces that its pre-tokenizer made. */
static void clean_up(struct buf *a, struct buf *b)
{
    static const char *const pairs[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };

    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        struct buf swap;

        if (!a->n) return;
        buf_clear(b);
        replace_text((struct text_span){a->data, a->n}, (struct text_span){pairs[i][0], strlen(pairs[i][0])},
                     pairs[i][1], b);
        swap = *a;
        *a = *b;
        *b = swap;
    }
}

/* A token of WordPiece with the space in front of it. work: scratch. */
static void word_piece(const struct step *step, struct text_span s, bool first, struct buf work[2], struct buf *out)
{
    buf_clear(&work[0]);
    if (!first && starts_with(s, step))
        s.s += step->n, s.n -= step->n;
    else if (!first)
        buf_putc(&work[0], ' ');
    buf_append(&work[0], s.s, s.n);
    if (step->flag) clean_up(&work[0], &work[1]);
    if (work[0].n) buf_append(out, work[0].data, work[0].n);
    out->failed |= work[0].failed || work[1].failed;
}

static void byte_fallback(const struct texts *in, struct texts *out)
{
    struct buf *to = &out->data;

    for (size_t i = 0; i < in->n;) {
        size_t start = to->n, n = 0;
        struct text_span s = text_at(in, i);

        for (; i < in->n && byte_token(text_at(in, i)) >= 0; i++, n++) buf_putc(to, (char)byte_token(text_at(in, i)));
        if (n && !to->failed && !utf8_valid(to->data + start, n)) {
            to->n = start;
            while (n--) buf_puts(to, REPLACED), end_text(out);
        } else if (n) {
            end_text(out);
        } else {
            buf_append(to, s.s, s.n);
            end_text(out);
            i++;
        }
    }
}

static rd_status run_each(const struct step *step, const struct texts *in, struct texts *out, struct buf work[2])
{
    rd_status st = RD_OK;

    for (size_t i = 0; i < in->n && st == RD_OK; i++) {
        struct text_span s = text_at(in, i);

        if (step->kind == STEP_REPLACE)
            st = replace(step, s, &out->data);
        else if (step->kind == STEP_META)
            replace_text(s, (struct text_span){step->text, step->n}, i == 0 && step->flag ? "" : " ", &out->data);
        else if (step->kind == STEP_SUFFIX)
            replace_text(s, (struct text_span){step->text, step->n}, i + 1 == in->n ? "" : " ", &out->data);
        else if (step->kind == STEP_WORD_PIECE)
            word_piece(step, s, i == 0, work, &out->data);
        else
            s = strip(step, s), buf_append(&out->data, s.s, s.n);
        end_text(out);
    }
    return st;
}

static rd_status run_step(const struct step *step, const struct texts *in, struct texts *out, struct buf work[2])
{
    struct buf bytes = {0};

    switch (step->kind) {
    case STEP_BYTE_LEVEL:
        for (size_t i = 0; i < in->n; i++) put_bytes(text_at(in, i), &bytes);
        put_lossy(bytes.data ? bytes.data : "", bytes.n, &out->data);
        out->failed |= bytes.failed;
        buf_deinit(&bytes);
        end_text(out);
        return RD_OK;
    case STEP_FUSE:
        if (in->data.n) buf_append(&out->data, in->data.data, in->data.n);
        end_text(out);
        return RD_OK;
    case STEP_BYTE_FALLBACK:
        byte_fallback(in, out);
        return RD_OK;
    default:
        return run_each(step, in, out, work);
    }
}

static void texts_deinit(struct texts *t)
{
    buf_deinit(&t->data);
    mem_free(t->ends);
}

rd_status hub_decoder_run(const struct hub_decoder *d, const struct text_span *tokens, size_t n, struct buf *out)
{
    struct texts a = {0}, b = {0};
    struct buf work[2] = {{0}, {0}};
    rd_status st = RD_OK;

    for (size_t i = 0; i < n; i++) {
        if (d->joins && i) buf_putc(&a.data, ' ');
        buf_append(&a.data, tokens[i].s, tokens[i].n);
        end_text(&a);
    }
    for (size_t i = 0; i < d->n && st == RD_OK; i++) {
        struct texts swap;

        if (a.failed || a.data.failed) break;
        b.n = 0;
        buf_clear(&b.data);
        st = run_step(&d->steps[i], &a, &b, work);
        swap = a;
        a = b;
        b = swap;
    }
    if (st == RD_OK && (a.failed || a.data.failed)) st = RD_E_NOMEM;
    if (st == RD_OK && a.data.n) buf_append(out, a.data.data, a.data.n);
    if (st == RD_OK && out->failed) st = RD_E_NOMEM;
    texts_deinit(&a);
    texts_deinit(&b);
    buf_deinit(&work[0]);
    buf_deinit(&work[1]);
    return st;
}

/* One token as it stands in the middle of a text. */
static rd_status piece_step(const struct step *step, struct text_span s, bool fused, struct buf work[2],
                            struct buf *out)
{
    int b = byte_token(s);

    switch (step->kind) {
    case STEP_BYTE_LEVEL:
        put_bytes(s, out);
        break;
    case STEP_BYTE_FALLBACK:
        if (b >= 0)
            buf_putc(out, (char)b);
        else
            buf_append(out, s.s, s.n);
        break;
    case STEP_REPLACE:
        return replace(step, s, out);
    case STEP_META:
    case STEP_SUFFIX:
        replace_text(s, (struct text_span){step->text, step->n}, " ", out);
        break;
    case STEP_WORD_PIECE:
        word_piece(step, s, false, work, out);
        break;
    case STEP_STRIP: /* of each token, until all are one text */
        if (!fused) s = strip(step, s);
        buf_append(out, s.s, s.n);
        break;
    default: /* FUSE */
        buf_append(out, s.s, s.n);
    }
    return RD_OK;
}

rd_status hub_decoder_piece(const struct hub_decoder *d, struct text_span token, struct buf work[2], struct buf *out)
{
    struct buf steps[2] = {{0}, {0}};
    bool fused = false;
    rd_status st = RD_OK;

    if (d->joins) buf_putc(out, ' ');
    for (size_t i = 0; i < d->n && st == RD_OK; i++) {
        struct buf *to = i + 1 == d->n ? out : &steps[i & 1];

        if (to != out) buf_clear(to);
        fused |= d->steps[i].kind == STEP_FUSE || d->steps[i].kind == STEP_BYTE_LEVEL;
        st = piece_step(&d->steps[i], token, fused, work, to);
        if (to != out) token = (struct text_span){to->data ? to->data : "", to->n};
        if (to->failed) st = RD_E_NOMEM;
    }
    if (d->n == 0) buf_append(out, token.s, token.n);
    buf_deinit(&steps[0]);
    buf_deinit(&steps[1]);
    return st == RD_OK && out->failed ? RD_E_NOMEM : st;
}
