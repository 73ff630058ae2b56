/* text/tokenizer/splitter.c - steps that cut pieces into smaller ones, or rewrite them.
 *
 * A cut is found in two stages, as the hub's tokenizers have it: what matches and what lies between, in order; then a
 * behaviour says which of them stay, and which join their neighbours.
 */
#include "text/tokenizer/splitter.h"
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/char_class.h"
#include "text/tokenizer/normalizer.h"
#include "text/pattern.h"

enum step_kind { STEP_PATTERN, STEP_CHARS, STEP_SCAN, STEP_FIXED, STEP_PREFIX_SPACE, STEP_BYTES, STEP_META };
enum behaviour { CUT_REMOVED, CUT_ISOLATED, CUT_WITH_PREVIOUS, CUT_WITH_NEXT, CUT_CONTIGUOUS };
enum char_test { TEST_SPACE, TEST_PUNCTUATION, TEST_NUMBER, TEST_DELIMITER };
enum prepend { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };
#define MAX_STEPS 64
#define MAX_DEPTH 16

struct step {
    enum step_kind kind;
    enum behaviour behaviour;
    enum char_test test;
    enum pretokenizer scanner;
    enum prepend prepend;
    bool invert;
    struct pattern *pattern;
    char mark[UTF8_MAX_BYTES]; /* META: the replacement; DELIMITER */
    uint32_t n_mark, length;
};
struct splitter {
    struct step steps[MAX_STEPS];
    size_t n;
    bool bytes_last, scans;
    enum pretokenizer scanner;
};

/* ---- reading ---- */

static bool flag(const json_t *config, const char *name, bool fallback)
{
    const json_t *v = json_object_get(config, name);

    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

static rd_status add_step(struct splitter *s, enum step_kind kind, enum behaviour behaviour, struct step **out,
                          struct rd_error *err)
{
    if (s->n == MAX_STEPS) return error_set(err, RD_E_LIMIT, "pre_tokenizer: more than %d steps", MAX_STEPS);
    s->steps[s->n].kind = kind;
    s->steps[s->n].behaviour = behaviour;
    if (out) *out = &s->steps[s->n];
    s->n++;
    return RD_OK;
}

static rd_status add_chars(struct splitter *s, enum char_test test, enum behaviour behaviour, struct rd_error *err)
{
    struct step *step = NULL;
    rd_status st = add_step(s, STEP_CHARS, behaviour, &step, err);

    if (st == RD_OK) step->test = test;
    return st;
}

static rd_status read_behaviour(const json_t *config, const char *where, enum behaviour fallback, enum behaviour *out,
                                struct rd_error *err)
{
    static const struct {
        const char *name;
        enum behaviour behaviour;
    } rows[] = {
        {"Removed", CUT_REMOVED},          {"Isolated", CUT_ISOLATED},     {"MergedWithPrevious", CUT_WITH_PREVIOUS},
        {"MergedWithNext", CUT_WITH_NEXT}, {"Contiguous", CUT_CONTIGUOUS},
    };
    const json_t *v = json_object_get(config, "behavior");
    const char *name = json_string_value(v);
    char quoted[64];

    *out = fallback;
    if (!v) return RD_OK;
    for (size_t i = 0; name && i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(rows[i].name, name) == 0) {
            *out = rows[i].behaviour;
            return RD_OK;
        }
    return error_set(err, RD_E_UNSUPPORTED, "%s: behavior \"%s\" is not known", where,
                     name ? error_quote(quoted, sizeof(quoted), name, strlen(name)) : "");
}

/* One character. */
static rd_status read_mark(const json_t *config, const char *name, const char *where, struct step *step,
                           struct rd_error *err)
{
    const json_t *v = json_object_get(config, name);
    size_t n = json_string_length(v);
    uint32_t cp;

    if (!json_is_string(v) || n == 0 || n > UTF8_MAX_BYTES || utf8_decode(json_string_value(v), n, &cp) != (int)n)
        return error_set(err, RD_E_FORMAT, "%s: \"%s\" must be one character", where, name);
    memcpy(step->mark, json_string_value(v), n);
    step->n_mark = (uint32_t)n;
    return RD_OK;
}

static rd_status add_byte_level(struct splitter *s, const json_t *config, struct rd_error *err)
{
    struct step *step = NULL;
    rd_status st = RD_OK;

    if (flag(config, "add_prefix_space", true)) st = add_step(s, STEP_PREFIX_SPACE, 0, NULL, err);
    if (st == RD_OK && flag(config, "use_regex", true)) {
        st = add_step(s, STEP_SCAN, CUT_ISOLATED, &step, err);
        if (st == RD_OK) step->scanner = PRE_GPT2;
    }
    return st == RD_OK ? add_step(s, STEP_BYTES, 0, NULL, err) : st;
}

static rd_status add_split(struct splitter *s, const json_t *config, struct rd_error *err)
{
    struct step *step = NULL;
    rd_status st = add_step(s, STEP_PATTERN, CUT_ISOLATED, &step, err);

    if (st == RD_OK) st = read_behaviour(config, "pre_tokenizer Split", CUT_ISOLATED, &step->behaviour, err);
    if (st != RD_OK) return st;
    step->invert = flag(config, "invert", false);
    return pattern_create(json_object_get(config, "pattern"), "pre_tokenizer Split", &step->pattern, err);
}

static rd_status add_metaspace(struct splitter *s, const json_t *config, struct rd_error *err)
{
    const json_t *v = json_object_get(config, "prepend_scheme");
    const char *scheme = json_string_value(v);
    struct step *step = NULL;
    rd_status st = add_step(s, STEP_META, CUT_WITH_NEXT, &step, err);

    if (st == RD_OK) st = read_mark(config, "replacement", "pre_tokenizer Metaspace", step, err);
    if (st != RD_OK) return st;
    step->prepend = PREPEND_ALWAYS;
    if (scheme && strcmp(scheme, "first") == 0)
        step->prepend = PREPEND_FIRST;
    else if (scheme && strcmp(scheme, "never") == 0)
        step->prepend = PREPEND_NEVER;
    else if (v && (!scheme || strcmp(scheme, "always") != 0))
        return error_set(err, RD_E_FORMAT,
                         "pre_tokenizer Metaspace: \"prepend_scheme\" must be always, first or never");
    if (!flag(config, "add_prefix_space", true)) step->prepend = PREPEND_NEVER;
    step->invert = !flag(config, "split", true); /* no cuts */
    return RD_OK;
}

static rd_status add_whitespace(struct splitter *s, struct rd_error *err)
{
    /* \w as Rust's expressions have it: Alphabetic, Mark, decimal numbers, connectors, joiners */
#define WORD                                                                                                           \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}" \
    "\\x{1f170}-\\x{1f189}"
    static const char words[] = "[" WORD "]+|[^\\s" WORD "]+";
#undef WORD
    struct step *step = NULL;
    rd_status st = add_step(s, STEP_PATTERN, CUT_REMOVED, &step, err);

    if (st != RD_OK) return st;
    step->invert = true;
    return pattern_create_regex(words, sizeof(words) - 1, "pre_tokenizer Whitespace", &step->pattern, err);
}

static rd_status add_delimiter(struct splitter *s, const json_t *config, struct rd_error *err)
{
    struct step *step = NULL;
    rd_status st = add_step(s, STEP_CHARS, CUT_REMOVED, &step, err);

    if (st != RD_OK) return st;
    step->test = TEST_DELIMITER;
    return read_mark(config, "delimiter", "pre_tokenizer CharDelimiterSplit", step, err);
}

static rd_status add_fixed(struct splitter *s, const json_t *config, struct rd_error *err)
{
    const json_t *v = json_object_get(config, "length");
    json_int_t length = json_is_integer(v) ? json_integer_value(v) : 0;
    struct step *step = NULL;
    rd_status st;

    if (length < 1 || length > LIMIT_TEXT_BYTES)
        return error_set(err, RD_E_FORMAT, "pre_tokenizer FixedLength: \"length\" must be a number from 1");
    st = add_step(s, STEP_FIXED, CUT_ISOLATED, &step, err);
    if (st == RD_OK) step->length = (uint32_t)length;
    return st;
}

static rd_status add_config(struct splitter *s, const json_t *config, unsigned depth, struct rd_error *err);

static rd_status add_sequence(struct splitter *s, const json_t *config, unsigned depth, struct rd_error *err)
{
    const json_t *list = json_object_get(config, "pretokenizers");
    rd_status st = RD_OK;

    if (!json_is_array(list))
        return error_set(err, RD_E_FORMAT, "pre_tokenizer Sequence: \"pretokenizers\" must be an array");
    for (size_t i = 0; i < json_array_size(list) && st == RD_OK; i++)
        st = add_config(s, json_array_get(list, i), depth + 1, err);
    return st;
}

static rd_status add_config(struct splitter *s, const json_t *config, unsigned depth, struct rd_error *err)
{
    const char *type = json_string_value(json_object_get(config, "type"));
    enum behaviour behaviour;
    rd_status st;
    char quoted[64];

    if (!type) return error_set(err, RD_E_FORMAT, "pre_tokenizer: an entry without \"type\"");
    if (depth > MAX_DEPTH) return error_set(err, RD_E_LIMIT, "pre_tokenizer: nested more than %d deep", MAX_DEPTH);
    if (strcmp(type, "Sequence") == 0) return add_sequence(s, config, depth, err);
    if (strcmp(type, "ByteLevel") == 0) return add_byte_level(s, config, err);
    if (strcmp(type, "Split") == 0) return add_split(s, config, err);
    if (strcmp(type, "Metaspace") == 0) return add_metaspace(s, config, err);
    if (strcmp(type, "Whitespace") == 0) return add_whitespace(s, err);
    if (strcmp(type, "WhitespaceSplit") == 0) return add_chars(s, TEST_SPACE, CUT_REMOVED, err);
    if (strcmp(type, "CharDelimiterSplit") == 0) return add_delimiter(s, config, err);
    if (strcmp(type, "FixedLength") == 0) return add_fixed(s, config, err);
    if (strcmp(type, "Digits") == 0)
        return add_chars(s, TEST_NUMBER, flag(config, "individual_digits", false) ? CUT_ISOLATED : CUT_CONTIGUOUS, err);
    if (strcmp(type, "Punctuation") == 0) {
        st = read_behaviour(config, "pre_tokenizer Punctuation", CUT_ISOLATED, &behaviour, err);
        return st == RD_OK ? add_chars(s, TEST_PUNCTUATION, behaviour, err) : st;
    }
    if (strcmp(type, "BertPreTokenizer") == 0) {
        st = add_chars(s, TEST_SPACE, CUT_REMOVED, err);
        return st == RD_OK ? add_chars(s, TEST_PUNCTUATION, CUT_ISOLATED, err) : st;
    }
    return error_set(err, RD_E_UNSUPPORTED,
                     "pre_tokenizer \"%s\" is not known; known: ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, "
                     "Punctuation, Metaspace, BertPreTokenizer, CharDelimiterSplit, FixedLength, Sequence",
                     error_quote(quoted, sizeof(quoted), type, strlen(type)));
}

/* Every number by itself, then GPT-2's words. */
static bool is_smollm(const struct step steps[2])
{
    return steps[0].kind == STEP_CHARS && steps[0].test == TEST_NUMBER && steps[0].behaviour == CUT_ISOLATED &&
           steps[1].kind == STEP_SCAN && steps[1].scanner == PRE_GPT2;
}

/* A chain of isolated expressions that one scanner does at once becomes that scanner. */
static void find_scanner(struct splitter *s)
{
    struct text_piece regexes[3];
    size_t n = 0;
    struct step *steps = s->steps;
    enum pretokenizer kind;

    while (n < 3 && n < s->n && steps[n].kind == STEP_PATTERN && steps[n].behaviour == CUT_ISOLATED &&
           !steps[n].invert) {
        regexes[n].s = pattern_regex(steps[n].pattern, &regexes[n].n);
        if (!regexes[n].s) break;
        n++;
    }
    if (n && pretokenize_find_patterns(regexes, n, &kind)) {
        for (size_t i = 0; i < n; i++) pattern_destroy(steps[i].pattern);
        memmove(steps + 1, steps + n, (s->n - n) * sizeof(*steps));
        s->n -= n - 1;
        steps[0] = (struct step){.kind = STEP_SCAN, .behaviour = CUT_ISOLATED, .scanner = kind};
        for (size_t i = s->n; i < s->n + n - 1; i++) steps[i] = (struct step){0};
    }
    if (s->n == 2 && is_smollm(steps)) {
        steps[0] = (struct step){.kind = STEP_SCAN, .behaviour = CUT_ISOLATED, .scanner = PRE_SMOLLM};
        s->n = 1;
    }
    s->scans = s->n == 1 && steps[0].kind == STEP_SCAN;
    if (s->scans) s->scanner = steps[0].scanner;
}

rd_status splitter_create(const json_t *config, bool bytes_last, struct splitter **out, struct rd_error *err)
{
    struct splitter *s = mem_zalloc(1, sizeof(*s));
    rd_status st;

    if (!s) return error_set(err, RD_E_NOMEM, "pre_tokenizer: out of memory");
    st = config && !json_is_null(config) ? add_config(s, config, 0, err) : RD_OK;
    if (st != RD_OK) {
        splitter_destroy(s);
        return st;
    }
    s->bytes_last = bytes_last && s->n && s->steps[s->n - 1].kind == STEP_BYTES;
    if (s->bytes_last) s->n--;
    find_scanner(s);
    *out = s;
    return RD_OK;
}

void splitter_destroy(struct splitter *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) pattern_destroy(s->steps[i].pattern);
    mem_free(s);
}

bool splitter_bytes_last(const struct splitter *s)
{
    return s->bytes_last;
}
bool splitter_is_empty(const struct splitter *s)
{
    return s->n == 0;
}
bool splitter_ends_in_bytes(const struct splitter *s, bool *scans, enum pretokenizer *kind)
{
    const struct step *last = s->n ? &s->steps[s->n - 1] : NULL;
    size_t n = s->n;

    *scans = false;
    if (!s->bytes_last) {
        if (!last || last->kind != STEP_BYTES) return false;
        n--;
    }
    if (n == 1 && s->steps[0].kind == STEP_SCAN) {
        *scans = true;
        *kind = s->steps[0].scanner;
    } else if (n == 2 && is_smollm(s->steps)) {
        *scans = true;
        *kind = PRE_SMOLLM;
    }
    return true;
}

bool splitter_scanner(const struct splitter *s, enum pretokenizer *kind)
{
    *kind = s->scanner;
    return s->scans;
}

/* ---- cutting ---- */

void split_work_deinit(struct split_work *w)
{
    buf_deinit(&w->bufs[0]);
    buf_deinit(&w->bufs[1]);
    mem_free(w->pieces);
    mem_free(w->other);
    memset(w, 0, sizeof(*w));
}

/* The pieces of the next list, and where in it the piece being cut began. */
struct cuts {
    struct split_work *w;
    size_t n, first;
    enum behaviour behaviour;
    bool previous, failed;
};

static void put(struct cuts *c, uint32_t start, uint32_t end)
{
    if (c->n == c->w->other_cap && !mem_grow((void **)&c->w->other, &c->w->other_cap, c->n + 1, sizeof(*c->w->other))) {
        c->failed = true;
        return;
    }
    c->w->other[c->n++] = (struct split_piece){start, end - start};
}

/* One match, or what lies between two, in order. */
static void cut(struct cuts *c, uint32_t start, uint32_t end, bool is_match)
{
    bool joins = false;

    switch (c->behaviour) {
    case CUT_REMOVED:
        if (is_match) return;
        break;
    case CUT_CONTIGUOUS:
        joins = is_match == c->previous;
        break;
    case CUT_WITH_PREVIOUS:
        joins = is_match && !c->previous;
        break;
    case CUT_WITH_NEXT: /* a match that no other follows: this one joins it */
        joins = !is_match && c->previous;
        break;
    default:
        break;
    }
    c->previous = is_match;
    if (joins && c->n > c->first)
        c->w->other[c->n - 1].n = end - c->w->other[c->n - 1].start;
    else if (end > start || c->behaviour != CUT_ISOLATED)
        put(c, start, end);
}

static rd_status cut_pattern(const struct step *step, const char *text, struct split_piece piece, struct cuts *c)
{
    struct pattern_run run;
    size_t start = 0, end = 0, done = 0;
    bool found = true;
    rd_status st = pattern_begin(&run, step->pattern, text + piece.start, piece.n);

    if (st != RD_OK) return st;
    while ((st = pattern_next(&run, &found, &start, &end)) == RD_OK && found) {
        if (start > done) cut(c, piece.start + (uint32_t)done, piece.start + (uint32_t)start, step->invert);
        cut(c, piece.start + (uint32_t)start, piece.start + (uint32_t)end, !step->invert);
        done = end;
    }
    if (done < piece.n) cut(c, piece.start + (uint32_t)done, piece.start + piece.n, step->invert);
    pattern_end(&run);
    return st;
}

static bool char_matches(const struct step *step, uint32_t cp, const char *s, size_t n)
{
    switch (step->test) {
    case TEST_SPACE:
        return char_is_space(cp);
    case TEST_PUNCTUATION:
        return char_class_bits(cp) & CHAR_FLAG_PUNCTUATION;
    case TEST_NUMBER:
        return char_in(cp, CHARS_NUMBER);
    default:
        return n == step->n_mark && memcmp(s, step->mark, n) == 0;
    }
}

static void cut_chars(const struct step *step, const char *text, struct split_piece piece, struct cuts *c)
{
    uint32_t end = piece.start + piece.n, done = piece.start, cp;

    for (uint32_t at = piece.start; at < end;) {
        uint32_t len = (uint32_t)utf8_decode(text + at, end - at, &cp);

        if (char_matches(step, cp, text + at, len)) {
            if (at > done) cut(c, done, at, false);
            cut(c, at, at + len, true);
            done = at + len;
        }
        at += len;
    }
    if (done < end) cut(c, done, end, false);
}

static void cut_scan(const struct step *step, const char *text, struct split_piece piece, struct cuts *c)
{
    uint32_t at = piece.start, end = at + piece.n;

    while (at < end) {
        uint32_t n = (uint32_t)pretokenize_word(step->scanner, text + at, end - at);

        put(c, at, at + n);
        at += n;
    }
}

static void cut_fixed(const struct step *step, const char *text, struct split_piece piece, struct cuts *c)
{
    uint32_t at = piece.start, end = at + piece.n, start = at, n = 0, cp;

    while (at < end) {
        at += (uint32_t)utf8_decode(text + at, end - at, &cp);
        if (++n % step->length == 0 || at == end) put(c, start, at), start = at;
    }
}

/* Marks instead of spaces, one in front where the scheme says so; then a cut before each mark. */
static void rewrite_meta(const struct step *step, const char *text, struct split_piece piece, bool first,
                         struct cuts *c, struct buf *out)
{
    uint32_t start = (uint32_t)out->n, end, n_mark = step->n_mark, done;
    const char *s = text + piece.start;
    bool has_mark = (piece.n >= n_mark && memcmp(s, step->mark, n_mark) == 0) || s[0] == ' ';

    if (!has_mark && (step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && first)))
        buf_append(out, step->mark, n_mark);
    for (uint32_t i = 0, from = 0; i <= piece.n; i++) {
        if (i < piece.n && s[i] != ' ') continue;
        buf_append(out, s + from, i - from);
        if (i < piece.n) buf_append(out, step->mark, n_mark);
        from = i + 1;
    }
    if (out->failed) return;
    end = (uint32_t)out->n;
    if (step->invert) {
        put(c, start, end);
        return;
    }
    done = start;
    for (uint32_t at = start; at < end;) {
        const char *hit = memmem(out->data + at, end - at, step->mark, n_mark);
        uint32_t mark = hit ? (uint32_t)(hit - out->data) : end;

        if (mark > done) put(c, done, mark);
        done = mark;
        at = mark + n_mark;
    }
    if (done < end) put(c, done, end);
}

static void rewrite(const struct step *step, const char *text, struct split_piece piece, bool first, struct cuts *c,
                    struct buf *out)
{
    uint32_t start = (uint32_t)out->n;

    if (step->kind == STEP_META) {
        rewrite_meta(step, text, piece, first, c, out);
        return;
    }
    if (step->kind == STEP_BYTES) {
        normalizer_map_bytes(text + piece.start, piece.n, out);
    } else {
        if (text[piece.start] != ' ') buf_putc(out, ' ');
        buf_append(out, text + piece.start, piece.n);
    }
    put(c, start, (uint32_t)out->n);
}

static rd_status run_step(const struct step *step, struct split_work *w, bool at_start, unsigned *next)
{
    bool rewrites = step->kind == STEP_META || step->kind == STEP_BYTES || step->kind == STEP_PREFIX_SPACE;
    struct buf *out = &w->bufs[*next];
    struct cuts c = {.w = w, .behaviour = step->behaviour};
    struct split_piece *pieces;
    size_t cap, kept = 0;
    rd_status st = RD_OK;

    buf_clear(out);
    out->limit = LIMIT_TEXT_BYTES * (size_t)4;
    for (size_t i = 0; i < w->n && st == RD_OK; i++) {
        c.first = c.n;
        c.previous = false;
        if (rewrites)
            rewrite(step, w->text, w->pieces[i], at_start && w->pieces[i].start == 0, &c, out);
        else if (step->kind == STEP_PATTERN)
            st = cut_pattern(step, w->text, w->pieces[i], &c);
        else if (step->kind == STEP_CHARS)
            cut_chars(step, w->text, w->pieces[i], &c);
        else if (step->kind == STEP_FIXED)
            cut_fixed(step, w->text, w->pieces[i], &c);
        else
            cut_scan(step, w->text, w->pieces[i], &c);
        if (c.failed || out->failed) st = RD_E_NOMEM;
    }
    if (st != RD_OK) return st;
    for (size_t i = 0; i < c.n; i++)
        if (w->other[i].n) w->other[kept++] = w->other[i];
    pieces = w->pieces;
    cap = w->cap;
    w->pieces = w->other;
    w->cap = w->other_cap;
    w->n = kept;
    w->other = pieces;
    w->other_cap = cap;
    if (rewrites) {
        w->text = out->data ? out->data : "";
        *next ^= 1;
    }
    return RD_OK;
}

rd_status splitter_run(const struct splitter *s, struct split_work *w, const char *text, size_t n, bool at_start)
{
    unsigned next = 0;
    rd_status st = RD_OK;

    if (w->cap == 0 && !mem_grow((void **)&w->pieces, &w->cap, 64, sizeof(*w->pieces))) return RD_E_NOMEM;
    w->text = text;
    w->n = n > 0;
    w->pieces[0] = (struct split_piece){0, (uint32_t)n};
    for (size_t i = 0; i < s->n && st == RD_OK; i++) st = run_step(&s->steps[i], w, at_start, &next);
    return st;
}
