/* text/tokenizer/normalizer.c - steps that rewrite text, each from one buffer into the other. */
#include "text/tokenizer/normalizer.h"
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/char_class.h"
#include "text/tokenizer/charsmap.h"
#include "text/pattern.h"
#include "text/unicode_norm.h"

enum step_kind {
    STEP_FORM,
    STEP_LOWER,
    STEP_ACCENTS,
    STEP_STRIP,
    STEP_REPLACE,
    STEP_PREPEND,
    STEP_NMT,
    STEP_BERT_CLEAN,
    STEP_BERT_CHINESE,
    STEP_BERT_ACCENTS,
    STEP_CHARSMAP,
    STEP_BYTES
};
#define MAX_STEPS 64
#define MAX_DEPTH 16

struct step {
    enum step_kind kind;
    enum unicode_form form;
    bool left, right;        /* STRIP */
    struct pattern *pattern; /* REPLACE */
    struct charsmap *map;
    char *text; /* REPLACE: instead; PREPEND */
    size_t n;
};
struct normalizer {
    struct step steps[MAX_STEPS];
    size_t n;
};

/* ---- reading ---- */

static bool flag(const json_t *config, const char *name, bool fallback)
{
    const json_t *v = json_object_get(config, name);

    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

static rd_status add_step(struct normalizer *n, enum step_kind kind, struct step **out, struct rd_error *err)
{
    if (n->n == MAX_STEPS) return error_set(err, RD_E_LIMIT, "normalizer: more than %d steps", MAX_STEPS);
    n->steps[n->n].kind = kind;
    *out = &n->steps[n->n++];
    return RD_OK;
}

static rd_status take_text(const json_t *config, const char *name, const char *where, struct step *s,
                           struct rd_error *err)
{
    const json_t *v = json_object_get(config, name);

    if (!json_is_string(v)) return error_set(err, RD_E_FORMAT, "%s: \"%s\" must be a string", where, name);
    if (json_string_length(v) > LIMIT_TOKEN_BYTES)
        return error_set(err, RD_E_LIMIT, "%s: \"%s\" is too long", where, name);
    s->n = json_string_length(v);
    s->text = mem_memdup(json_string_value(v), s->n);
    return s->text ? RD_OK : error_set(err, RD_E_NOMEM, "%s: out of memory", where);
}

static rd_status add_bert(struct normalizer *n, const json_t *config, struct rd_error *err)
{
    const json_t *strip = json_object_get(config, "strip_accents");
    bool lower = flag(config, "lowercase", true), accents = json_is_boolean(strip) ? json_is_true(strip) : lower;
    struct step *s = NULL;
    rd_status st = RD_OK;

    if (flag(config, "clean_text", true)) st = add_step(n, STEP_BERT_CLEAN, &s, err);
    if (st == RD_OK && flag(config, "handle_chinese_chars", true)) st = add_step(n, STEP_BERT_CHINESE, &s, err);
    if (st == RD_OK && accents) {
        st = add_step(n, STEP_FORM, &s, err);
        if (st == RD_OK) s->form = FORM_NFD, st = add_step(n, STEP_BERT_ACCENTS, &s, err);
    }
    if (st == RD_OK && lower) st = add_step(n, STEP_LOWER, &s, err);
    return st;
}

static rd_status add_replace(struct normalizer *n, const json_t *config, struct rd_error *err)
{
    struct step *s = NULL;
    rd_status st = add_step(n, STEP_REPLACE, &s, err);

    if (st == RD_OK) st = pattern_create(json_object_get(config, "pattern"), "normalizer Replace", &s->pattern, err);
    return st == RD_OK ? take_text(config, "content", "normalizer Replace", s, err) : st;
}

static rd_status add_charsmap(struct normalizer *n, const json_t *config, struct rd_error *err)
{
    const json_t *map = json_object_get(config, "precompiled_charsmap");
    struct step *s = NULL;
    rd_status st;

    if (json_is_null(map)) return RD_OK;
    if (!json_is_string(map))
        return error_set(err, RD_E_FORMAT, "normalizer Precompiled: \"precompiled_charsmap\" must be a string");
    st = add_step(n, STEP_CHARSMAP, &s, err);
    return st == RD_OK ? charsmap_create(json_string_value(map), json_string_length(map), &s->map, err) : st;
}

static rd_status add_config(struct normalizer *n, const json_t *config, unsigned depth, struct rd_error *err);

static rd_status add_sequence(struct normalizer *n, const json_t *config, unsigned depth, struct rd_error *err)
{
    const json_t *list = json_object_get(config, "normalizers");
    rd_status st = RD_OK;

    if (!json_is_array(list))
        return error_set(err, RD_E_FORMAT, "normalizer Sequence: \"normalizers\" must be an array");
    for (size_t i = 0; i < json_array_size(list) && st == RD_OK; i++)
        st = add_config(n, json_array_get(list, i), depth + 1, err);
    return st;
}

static rd_status add_config(struct normalizer *n, const json_t *config, unsigned depth, struct rd_error *err)
{
    static const struct {
        const char *name;
        enum step_kind kind;
        enum unicode_form form;
    } plain[] = {
        {"NFC", STEP_FORM, FORM_NFC},   {"NFD", STEP_FORM, FORM_NFD}, {"NFKC", STEP_FORM, FORM_NFKC},
        {"NFKD", STEP_FORM, FORM_NFKD}, {"Lowercase", STEP_LOWER, 0}, {"StripAccents", STEP_ACCENTS, 0},
        {"Nmt", STEP_NMT, 0},           {"ByteLevel", STEP_BYTES, 0}, {"Strip", STEP_STRIP, 0},
        {"Prepend", STEP_PREPEND, 0},
    };
    const char *type = json_string_value(json_object_get(config, "type"));
    struct step *s = NULL;
    rd_status st;
    char quoted[64];

    if (!type) return error_set(err, RD_E_FORMAT, "normalizer: an entry without \"type\"");
    if (depth > MAX_DEPTH) return error_set(err, RD_E_LIMIT, "normalizer: nested more than %d deep", MAX_DEPTH);
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        if (strcmp(type, plain[i].name) != 0) continue;
        st = add_step(n, plain[i].kind, &s, err);
        if (st != RD_OK) return st;
        s->form = plain[i].form;
        s->left = flag(config, "strip_left", true);
        s->right = flag(config, "strip_right", true);
        return s->kind == STEP_PREPEND ? take_text(config, "prepend", "normalizer Prepend", s, err) : RD_OK;
    }
    if (strcmp(type, "Sequence") == 0) return add_sequence(n, config, depth, err);
    if (strcmp(type, "Replace") == 0) return add_replace(n, config, err);
    if (strcmp(type, "BertNormalizer") == 0) return add_bert(n, config, err);
    if (strcmp(type, "Precompiled") == 0) return add_charsmap(n, config, err);
    return error_set(err, RD_E_UNSUPPORTED,
                     "normalizer \"%s\" is not known; known: NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, "
                     "Replace, Prepend, Nmt, BertNormalizer, Precompiled, ByteLevel, Sequence",
                     error_quote(quoted, sizeof(quoted), type, strlen(type)));
}

rd_status normalizer_create(const json_t *config, struct normalizer **out, struct rd_error *err)
{
    struct normalizer *n = mem_zalloc(1, sizeof(*n));
    rd_status st;

    if (!n) return error_set(err, RD_E_NOMEM, "normalizer: out of memory");
    st = config && !json_is_null(config) ? add_config(n, config, 0, err) : RD_OK;
    if (st == RD_OK)
        *out = n;
    else
        normalizer_destroy(n);
    return st;
}

void normalizer_destroy(struct normalizer *n)
{
    if (!n) return;
    for (size_t i = 0; i < n->n; i++) {
        pattern_destroy(n->steps[i].pattern);
        charsmap_destroy(n->steps[i].map);
        mem_free(n->steps[i].text);
    }
    mem_free(n);
}

bool normalizer_is_empty(const struct normalizer *n)
{
    return n->n == 0;
}
bool normalizer_is_nfc(const struct normalizer *n)
{
    return n->n == 1 && n->steps[0].kind == STEP_FORM && n->steps[0].form == FORM_NFC;
}

/* ---- running ---- */

void normal_work_deinit(struct normal_work *w)
{
    buf_deinit(&w->bufs[0]);
    buf_deinit(&w->bufs[1]);
}

void normalizer_map_bytes(const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n; i++) {
        char utf8[UTF8_MAX_BYTES];

        buf_append(out, utf8, (size_t)utf8_encode(byte_alphabet_char((unsigned char)s[i]), utf8));
    }
}

static bool nmt_drops(uint32_t cp)
{
    return (cp >= 1 && cp <= 8) || cp == 0xb || (cp >= 0xe && cp <= 0x1f) || cp == 0x7f || cp == 0x8f || cp == 0x9f;
}

static bool nmt_blanks(uint32_t cp)
{
    return cp == 9 || cp == 0xa || cp == 0xc || cp == 0xd || cp == 0x1680 || (cp >= 0x200b && cp <= 0x200f) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x2581 || cp == 0xfeff || cp == 0xfffd;
}

/* BERT's control characters: category C except for unassigned and newer format characters, and tab and line ends. */
static bool bert_drops(uint32_t cp)
{
    if (cp == 0 || cp == 0xfffd) return true;
    if (cp == '\t' || cp == '\n' || cp == '\r') return false;
    if (cp == 0x890 || cp == 0x891 || cp == 0x8e2 || cp == 0x110cd || (cp >= 0x13430 && cp <= 0x1343f)) return false;
    return char_in(cp, (uint32_t)7 << CHAR_CC);
}

static bool bert_spaces_out(uint32_t cp)
{
    return (cp >= 0x4e00 && cp <= 0x9fff) || (cp >= 0x3400 && cp <= 0x4dbf) || (cp >= 0x20000 && cp <= 0x2a6df) ||
           (cp >= 0x2a700 && cp <= 0x2b73f) || (cp >= 0x2b740 && cp <= 0x2b81f) || (cp >= 0x2b920 && cp <= 0x2ceaf) ||
           (cp >= 0xf900 && cp <= 0xfaff) || (cp >= 0x2f800 && cp <= 0x2fa1f);
}

/* What one character becomes. */
static void map_char(enum step_kind kind, uint32_t cp, const char *s, size_t n, struct buf *out)
{
    char lower[8];

    switch (kind) {
    case STEP_LOWER:
        buf_append(out, lower, unicode_lower(cp, lower));
        return;
    case STEP_ACCENTS:
        if (char_class_bits(cp) & CHAR_FLAG_MARK) return;
        break;
    case STEP_BERT_ACCENTS:
        if (char_class_bits(cp) & CHAR_FLAG_NONSPACING) return;
        break;
    case STEP_NMT:
        if (nmt_drops(cp)) return;
        if (nmt_blanks(cp)) {
            buf_putc(out, ' ');
            return;
        }
        break;
    case STEP_BERT_CLEAN:
        if (bert_drops(cp)) return;
        if (char_is_space(cp)) {
            buf_putc(out, ' ');
            return;
        }
        break;
    default: /* STEP_BERT_CHINESE */
        if (!bert_spaces_out(cp)) break;
        buf_putc(out, ' ');
        buf_append(out, s, n);
        buf_putc(out, ' ');
        return;
    }
    buf_append(out, s, n);
}

static void map_chars(enum step_kind kind, const char *s, size_t n, struct buf *out)
{
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        size_t len = (size_t)utf8_decode(s + at, n - at, &cp);

        map_char(kind, cp, s + at, len, out);
        at += len;
    }
}

static void strip(const struct step *step, const char **s, size_t *n)
{
    uint32_t cp;

    while (step->left && *n) {
        size_t len = (size_t)utf8_decode(*s, *n, &cp);

        if (!char_is_space(cp)) break;
        *s += len;
        *n -= len;
    }
    while (step->right && *n) {
        size_t len = 1;

        while (len < *n && ((*s)[*n - len] & '\xc0') == '\x80') len++;
        utf8_decode(*s + *n - len, len, &cp);
        if (!char_is_space(cp)) break;
        *n -= len;
    }
}

static rd_status replace(const struct step *step, const char *s, size_t n, struct buf *out, bool *changed)
{
    struct pattern_run run;
    bool found = true;
    size_t start = 0, end = 0, done = 0;
    rd_status st = pattern_begin(&run, step->pattern, s, n);

    if (st != RD_OK) return st;
    while ((st = pattern_next(&run, &found, &start, &end)) == RD_OK && found) {
        *changed = true;
        buf_append(out, s + done, start - done);
        buf_append(out, step->text, step->n);
        done = end;
    }
    if (*changed) buf_append(out, s + done, n - done);
    pattern_end(&run);
    return st;
}

/* *changed false: out holds nothing of use. */
static rd_status run_step(const struct step *step, const char **s, size_t *n, struct buf *out, bool *changed)
{
    *changed = true;
    switch (step->kind) {
    case STEP_FORM:
        return unicode_normalize(step->form, *s, *n, out, changed);
    case STEP_STRIP:
        *changed = false;
        strip(step, s, n);
        return RD_OK;
    case STEP_REPLACE:
        *changed = false;
        return replace(step, *s, *n, out, changed);
    case STEP_PREPEND:
        if (*n == 0) return RD_OK;
        buf_append(out, step->text, step->n);
        buf_append(out, *s, *n);
        return RD_OK;
    case STEP_CHARSMAP:
        return charsmap_run(step->map, *s, *n, out);
    case STEP_BYTES:
        normalizer_map_bytes(*s, *n, out);
        return RD_OK;
    default:
        map_chars(step->kind, *s, *n, out);
        return RD_OK;
    }
}

rd_status normalizer_run(const struct normalizer *n, struct normal_work *w, const char *s, size_t n_bytes,
                         const char **out, size_t *n_out)
{
    unsigned next = 0;

    w->front_lost = false;
    for (size_t i = 0; i < n->n; i++) {
        struct buf *to = &w->bufs[next];
        const char *before;
        bool changed = false;
        rd_status st;

        buf_clear(to);
        to->limit = LIMIT_TEXT_BYTES;
        before = s;
        st = run_step(&n->steps[i], &s, &n_bytes, to, &changed);
        w->front_lost |= n->steps[i].kind == STEP_STRIP && s != before;
        if (st == RD_OK && to->failed) st = to->n > LIMIT_TEXT_BYTES / 2 ? RD_E_LIMIT : RD_E_NOMEM;
        if (st != RD_OK) return st;
        if (!changed) continue;
        s = to->data ? to->data : "";
        n_bytes = to->n;
        next ^= 1;
    }
    *out = s;
    *n_out = n_bytes;
    return RD_OK;
}
