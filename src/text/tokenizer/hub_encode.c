/* text/tokenizer/hub_encode.c - whole texts to ids: added tokens first, what lies between them through the pipeline. */
#include <string.h>
#include "base/mem.h"
#include "base/utf8.h"
#include "text/char_class.h"
#include "text/tokenizer/hub.h"

/* A walk over a text's added tokens and what lies between, in order. */
struct added_scan {
    const struct tokenizer *t;
    const struct prefix_index *set;
    const char *s;
    size_t n;
    bool parse_special;
    const struct text_breaks *breaks; /* of s; or NULL */
    size_t at;                        /* where the next match may begin */
    size_t done;                      /* what was handed out ends here */
    size_t space_start, space_end;    /* the white space that an rstrip token took last */
    bool has_token;                   /* handed out next */
    size_t start, end;                /* of that token */
    uint32_t id;
};

/* Alphabetic, Mark, decimal number, connector or joiner: \w of Rust's regex. */
static bool is_word_char(uint32_t cp)
{
    const uint32_t set = CHARS_LETTER | CHARS_MARK | (uint32_t)3 << CHAR_ND | (uint32_t)1 << CHAR_PC;

    if (char_in(cp, set) || cp == 0x200c || cp == 0x200d) return true;
    return (cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) ||
           (cp >= 0x1f170 && cp <= 0x1f189);
}

/* The character that ends before s[at]; its length, 0 at the start. */
static size_t char_before(const char *s, size_t at, uint32_t *cp)
{
    size_t len = 1;

    if (at == 0) return 0;
    while (len < at && len < 4 && (s[at - len] & '\xc0') == '\x80') len++;
    utf8_decode(s + at - len, len, cp);
    return len;
}

static size_t space_after(struct added_scan *sc, size_t at)
{
    size_t start = at;

    if (at >= sc->space_start && at < sc->space_end) return sc->space_end;
    while (at < sc->n) {
        uint32_t cp;
        size_t len = (size_t)utf8_decode(sc->s + at, sc->n - at, &cp);

        if (!char_is_space(cp)) break;
        at += len;
    }
    sc->space_start = start;
    sc->space_end = at;
    return at;
}

/* The longest entry that begins at or after sc->at. */
static bool find_match(struct added_scan *sc, size_t *start, size_t *end, uint32_t *id)
{
    for (size_t at = sc->at; at < sc->n; at++) {
        struct prefix_walk walk;
        bool found = false;

        if (sc->set->only_first >= 0) {
            const char *hit = memchr(sc->s + at, sc->set->only_first, sc->n - at);

            if (!hit) return false;
            at = (size_t)(hit - sc->s);
        }
        if (!prefix_may_start(sc->set, sc->s + at, sc->n - at)) continue;
        walk = prefix_walk_begin(sc->set, sc->s + at, sc->n - at);
        while (prefix_walk_next(&walk)) {
            found = true;
            *end = at + walk.length;
            *id = walk.value;
        }
        if (!found) continue;
        *start = at;
        sc->at = *end;
        return true;
    }
    return false;
}

/* What the token's flags make of a match. false: it is none. */
static bool apply_flags(struct added_scan *sc, size_t *start, size_t *end, uint32_t id)
{
    uint8_t flags = sc->t->hub->flags[id];
    uint32_t before = 0, after = 0, cp;

    if ((flags & HUB_SPECIAL) && !sc->parse_special) return false;
    if (text_breaks_cut(sc->breaks, *start, *end)) return false;
    if (flags & HUB_SINGLE_WORD) {
        if (char_before(sc->s, *start, &before) && is_word_char(before)) return false;
        if (*end < sc->n && utf8_decode(sc->s + *end, sc->n - *end, &after) > 0 && is_word_char(after)) return false;
    }
    if (flags & HUB_LSTRIP) {
        while (*start > sc->done) {
            size_t len = char_before(sc->s, *start, &cp);

            if (!char_is_space(cp) || len > *start - sc->done) break;
            *start -= len;
        }
        if (*start < sc->done) *start = sc->done;
    }
    if (flags & HUB_RSTRIP) *end = space_after(sc, *end);
    if (*end > *start) return true;
    sc->done = *end > sc->done ? *end : sc->done; /* white space alone, which the token before took */
    return false;
}

/* The next stretch: a token, or text (*id TOKEN_NONE). false: the end. */
static bool added_next(struct added_scan *sc, size_t *start, size_t *end, int32_t *id)
{
    bool found = false;

    if (sc->has_token) {
        sc->has_token = false;
        *start = sc->start;
        *end = sc->done = sc->end;
        *id = (int32_t)sc->id;
        return true;
    }
    while (sc->set->may_start && find_match(sc, &sc->start, &sc->end, &sc->id))
        if ((found = apply_flags(sc, &sc->start, &sc->end, sc->id))) break;
    *id = TOKEN_NONE;
    *start = sc->done;
    *end = found ? sc->start : sc->n;
    if (!found) sc->at = sc->done = sc->n;
    sc->has_token = found;
    if (*start < *end) return true;
    return found ? added_next(sc, start, end, id) : false;
}

static rd_status put_id(struct id_list *out, int32_t id)
{
    if (!id_list_reserve(out, 1)) return RD_E_NOMEM;
    id_list_put(out, id);
    return RD_OK;
}

/* Text without added tokens, normalised. */
static rd_status encode_plain(const struct tokenizer *t, struct hub_work *w, const char *s, size_t n, bool at_start,
                              struct id_list *out)
{
    const struct hub *h = t->hub;
    rd_status st = RD_OK;

    if (h->scans && h->works_on_bytes) return bpe_encode_words(t, &w->merge, h->scanner, s, (uint32_t)n, out);
    st = splitter_run(h->splitter, &w->split, s, n, at_start);
    for (size_t i = 0; i < w->split.n && st == RD_OK; i++) {
        struct split_piece piece = w->split.pieces[i];

        st = hub_encode_piece(t, w, w->split.text + piece.start, piece.n, piece.n, out);
    }
    return st;
}

/* The text to be normalised, its breaks as marks again: they tell where they are afterwards. *out: NULL where it has none. */
static rd_status marked(const char *text, struct fragment f, const struct text_breaks *breaks, struct buf *out)
{
    size_t from = f.start, end = from + f.n;

    if (!text_breaks_cut(breaks, from, end)) return RD_OK;
    for (size_t i = 0; i < breaks->n; i++) {
        size_t at = breaks->at[i];

        if (at <= from || at >= end) continue;
        text_marks_write_text(out, text + from, at - from);
        text_marks_write(out);
        from = at;
    }
    text_marks_write_text(out, text + from, end - from);
    return out->failed ? RD_E_NOMEM : RD_OK;
}

/* Text in which added tokens are looked for once it is normalised. */
static rd_status encode_normal(const struct tokenizer *t, struct hub_work *w, struct added_scan *sc, bool at_start,
                               struct id_list *out)
{
    size_t start = 0, end = 0;
    int32_t id = TOKEN_NONE;
    rd_status st = RD_OK;

    while (st == RD_OK && added_next(sc, &start, &end, &id)) {
        if (id != TOKEN_NONE)
            st = put_id(out, id);
        else
            st = encode_plain(t, w, sc->s + start, end - start, at_start && start == 0, out);
    }
    return st;
}

rd_status hub_encode_fragment(const struct tokenizer *t, struct hub_work *w, const char *text, struct fragment f,
                              bool parse_special, const struct text_breaks *breaks, struct id_list *out)
{
    struct added_scan sc = {.t = t, .set = &t->hub->added[1], .parse_special = parse_special};
    struct text_breaks moved = {NULL, 0, 0};
    struct buf with_marks = {0};
    char *without = NULL;
    const char *s = text + f.start;
    size_t n = f.n, n_without = 0;
    rd_status st = t->hub->added[1].may_start ? marked(text, f, breaks, &with_marks) : RD_OK;

    if (with_marks.n > 0) s = with_marks.data, n = with_marks.n;
    if (st == RD_OK) st = normalizer_run(t->hub->normalizer, &w->normal, s, n, &sc.s, &sc.n);
    if (st == RD_OK && with_marks.n > 0) {
        st = text_marks_take(sc.s, sc.n, &without, &n_without, &moved);
        if (without) sc.s = without, sc.n = n_without;
        sc.breaks = &moved;
        sc.parse_special = moved.n > 0 && parse_special; /* no marks are left: no name in it may be a token */
    }
    if (st == RD_OK) st = encode_normal(t, w, &sc, f.start == 0 && !w->normal.front_lost, out);
    text_breaks_deinit(&moved);
    buf_deinit(&with_marks);
    mem_free(without);
    return st;
}

rd_status hub_find_fragments(const struct tokenizer *t, const char *s, size_t n, bool parse_special,
                             const struct text_breaks *breaks, struct fragment **out, size_t *n_out)
{
    struct added_scan sc = {
        .t = t, .set = &t->hub->added[0], .s = s, .n = n, .parse_special = parse_special, .breaks = breaks};
    size_t start = 0, end = 0, cap = 0;
    int32_t id = TOKEN_NONE;

    *out = NULL;
    *n_out = 0;
    while (added_next(&sc, &start, &end, &id)) {
        if (*n_out == cap && !mem_grow((void **)out, &cap, *n_out + 1, sizeof(**out))) {
            mem_free(*out);
            *out = NULL;
            return RD_E_NOMEM;
        }
        (*out)[(*n_out)++] = (struct fragment){(uint32_t)start, (uint32_t)(end - start), id, 0};
    }
    return RD_OK;
}

/* The hub's tokenizers take text that is well-formed alone: what is not becomes U+FFFD. NULL: out of memory. */
static char *repair(const char *s, size_t n, size_t *n_out)
{
    struct buf out = {0};

    for (size_t at = 0; at < n;) {
        size_t good = utf8_valid_prefix(s + at, n - at);
        uint32_t cp;

        buf_append(&out, s + at, good);
        at += good;
        if (at == n) break;
        buf_puts(&out, "\xef\xbf\xbd");
        at += (size_t)-utf8_decode(s + at, n - at, &cp);
    }
    return buf_take(&out, n_out);
}

rd_status hub_repair(const char *s, size_t n, char **out, size_t *n_out)
{
    *out = NULL;
    *n_out = n;
    if (utf8_valid(s, n)) return RD_OK;
    *out = repair(s, n, n_out);
    return *out ? RD_OK : RD_E_NOMEM;
}

rd_status hub_decode(const struct tokenizer *t, const int32_t *ids, uint32_t n, bool special, struct buf *out)
{
    struct text_span *tokens = mem_alloc(n, sizeof(*tokens));
    size_t n_tokens = 0;
    rd_status st;

    if (!tokens) return RD_E_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        struct text_span text;
        uint32_t id;

        if (ids[i] < 0 || (uint32_t)ids[i] >= t->n_tokens) continue;
        if (!(t->hub->flags[ids[i]] & (HUB_IN_MODEL | HUB_ADDED))) continue;
        text.s = string_table_at(&t->strings, (uint32_t)ids[i], &text.n);
        if (t->hub->flags[ids[i]] & HUB_ADDED) text = tokenizer_piece(t, ids[i], true);
        id = string_table_find(&t->strings, text.s, text.n); /* the text decides, as in the hub's tokenizers */
        if (!special && id < t->n_tokens && (t->hub->flags[id] & HUB_SPECIAL)) continue;
        tokens[n_tokens++] = text;
    }
    st = hub_decoder_run(t->hub->decoder, tokens, n_tokens, out);
    mem_free(tokens);
    return st;
}

void hub_destroy(struct hub *h)
{
    if (!h) return;
    normalizer_destroy(h->normalizer);
    splitter_destroy(h->splitter);
    hub_decoder_destroy(h->decoder);
    prefix_index_deinit(&h->added[0]);
    prefix_index_deinit(&h->added[1]);
    prefix_index_deinit(&h->pieces);
    mem_free(h->flags);
    mem_free(h->before);
    mem_free(h->after);
    mem_free(h->junctions);
    mem_free(h->prefix);
    mem_free(h->suffix);
    mem_free(h->scores);
    mem_free(h);
}
