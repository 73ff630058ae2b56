/* text/tokenizer/token_history.c - what of the last text can be kept, and the rest anew.
 *
 *     text    [stretch][special][stretch][special][stretch .. mark .. mark .. ]
 *     ids      ids_end  ids_end  ids_end  ids_end           id count at each mark
 *
 * A scanner decides where a word ends by looking past it: to the end of the white space there, and a few bytes more.
 * A mark is safe when all that lies in what both texts, and both stretches, share.
 */
#include "text/tokenizer/token_history.h"
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/char_class.h"
#include "text/tokenizer/hub.h"
#include "text/unicode_norm.h"

#define MARK_BYTES 256u /* at least so far apart */
#define LOOK_AHEAD 16u  /* bytes a scanner reads behind white space, at most */

struct mark {
    uint32_t at;
    size_t n_ids;
};
struct token_history {
    const struct tokenizer *t;
    char *text;
    size_t n, text_cap;
    bool parse_special;
    struct text_breaks breaks;
    struct id_list ids; /* without those that add_special puts around */
    struct fragment *fragments;
    size_t n_fragments;
    struct mark *marks; /* ascending */
    size_t n_marks, marks_cap;
    struct merge_work merge; /* these two within one call */
    struct hub_work work;
};

rd_status token_history_create(const struct tokenizer *t, struct token_history **out)
{
    struct token_history *h = mem_zalloc(1, sizeof(*h));

    if (!h) return RD_E_NOMEM;
    h->t = t;
    *out = h;
    return RD_OK;
}

static void forget(struct token_history *h)
{
    mem_free(h->fragments);
    h->fragments = NULL;
    h->n = h->n_fragments = h->n_marks = h->ids.n = h->breaks.n = 0;
}

void token_history_destroy(struct token_history *h)
{
    if (!h) return;
    forget(h);
    mem_free(h->text);
    mem_free(h->ids.ids);
    mem_free(h->marks);
    text_breaks_deinit(&h->breaks);
    mem_free(h);
}

static size_t common_prefix(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t n = n_a < n_b ? n_a : n_b, at = 0;

    while (n - at >= 64 && memcmp(a + at, b + at, 64) == 0) at += 64;
    while (at < n && a[at] == b[at]) at++;
    return at;
}

size_t token_history_shared(const struct token_history *h, const char *text, size_t n, size_t *n_text)
{
    if (n_text) *n_text = h->n;
    return common_prefix(h->text, h->n, text, n);
}

static void *copy_of(const void *p, size_t n)
{
    return mem_memdup(n ? p : "", n);
}

struct token_history *token_history_copy(const struct token_history *h)
{
    struct token_history *c = mem_zalloc(1, sizeof(*c));

    if (!c) return NULL;
    c->t = h->t;
    c->parse_special = h->parse_special;
    c->text = copy_of(h->text, h->n);
    c->ids.ids = copy_of(h->ids.ids, h->ids.n * sizeof(*h->ids.ids));
    c->fragments = copy_of(h->fragments, h->n_fragments * sizeof(*h->fragments));
    c->marks = copy_of(h->marks, h->n_marks * sizeof(*h->marks));
    c->breaks.at = copy_of(h->breaks.at, h->breaks.n * sizeof(*h->breaks.at));
    if (!c->text || !c->ids.ids || !c->fragments || !c->marks || !c->breaks.at) {
        token_history_destroy(c);
        return NULL;
    }
    c->n = c->text_cap = h->n;
    c->ids.n = c->ids.cap = h->ids.n;
    c->n_fragments = h->n_fragments;
    c->n_marks = c->marks_cap = h->n_marks;
    c->breaks.n = c->breaks.cap = h->breaks.n;
    return c;
}

size_t token_history_bytes(const struct token_history *h)
{
    return sizeof(*h) + h->text_cap + h->ids.cap * sizeof(*h->ids.ids) + h->n_fragments * sizeof(*h->fragments) +
           h->marks_cap * sizeof(*h->marks) + h->breaks.cap * sizeof(*h->breaks.at);
}

/* A stretch whose words a scanner cuts, each word on its own. */
static bool has_words(const struct token_history *h, const char *s, size_t n, enum pretokenizer *scanner)
{
    const struct tokenizer *t = h->t;
    bool changed = false;
    struct buf none = {0};
    rd_status st;

    if (!t->hub) {
        *scanner = t->pre.kind;
        return t->model == TOKENIZER_BPE && utf8_valid(s, n);
    }
    *scanner = t->hub->scanner;
    if (!t->hub->scans || !t->hub->works_on_bytes || t->hub->added[1].may_start) return false;
    if (normalizer_is_empty(t->hub->normalizer)) return true;
    if (!normalizer_is_nfc(t->hub->normalizer)) return false;
    st = unicode_normalize(FORM_NFC, s, n, &none, &changed);
    buf_deinit(&none);
    return st == RD_OK && !changed;
}

/* The words of text[at..end), with marks. */
static rd_status encode_words(struct token_history *h, enum pretokenizer scanner, const char *text, uint32_t at,
                              uint32_t end)
{
    uint32_t marked = at;

    while (at < end) {
        uint32_t n = (uint32_t)pretokenize_word(scanner, text + at, end - at);
        rd_status st = bpe_encode_word(h->t, &h->merge, text + at, n, end - at, &h->ids);

        if (st != RD_OK) return st;
        at += n;
        if (at - marked < MARK_BYTES || at == end) continue;
        if (h->n_marks == h->marks_cap &&
            !mem_grow((void **)&h->marks, &h->marks_cap, h->n_marks + 1, sizeof(*h->marks)))
            return RD_E_NOMEM;
        h->marks[h->n_marks++] = (struct mark){at, h->ids.n};
        marked = at;
    }
    return RD_OK;
}

/* from: where in the stretch to begin; its ids before that are there. */
static rd_status encode_fragment(struct token_history *h, const char *text, const struct fragment *f, uint32_t from)
{
    const struct tokenizer *t = h->t;
    const char *s = text + f->start;
    enum pretokenizer scanner;

    if (f->id != TOKEN_NONE) {
        if (!id_list_reserve(&h->ids, 1)) return RD_E_NOMEM;
        id_list_put(&h->ids, f->id);
        return RD_OK;
    }
    if (has_words(h, s, f->n, &scanner)) return encode_words(h, scanner, text, from, f->start + f->n);
    if (t->hub) return hub_encode_fragment(t, &h->work, text, *f, h->parse_special, &h->breaks, &h->ids);
    if (t->model == TOKENIZER_BPE) return bpe_encode(t, &h->merge, s, f->n, &h->ids);
    return spm_encode(t, &h->merge, s, f->n, t->add_space_prefix, &h->ids);
}

/* The stretch `f` replaces the old one `old`; text is equal up to `shared`. The place from which on it must be encoded;
 * marks and ids behind it go. */
static uint32_t safe_place(struct token_history *h, const char *text, const struct fragment *f,
                           const struct fragment *old, size_t shared)
{
    size_t old_end = (size_t)old->start + old->n, end = (size_t)f->start + f->n;
    size_t bound = shared < old_end ? shared : old_end;
    enum pretokenizer scanner;

    if (end < bound) bound = end;
    if (!h->n_marks || !has_words(h, text + f->start, f->n, &scanner)) return f->start;
    while (h->n_marks) {
        struct mark m = h->marks[h->n_marks - 1];
        size_t look = m.at;

        if (m.at <= f->start) break;
        while (look < bound) {
            uint32_t cp;
            size_t len = pretokenize_decode(text + look, bound - look, &cp);

            if (!char_is_space(cp)) break;
            look += len;
        }
        if (look + LOOK_AHEAD <= bound) {
            h->ids.n = m.n_ids;
            return m.at;
        }
        h->n_marks--;
    }
    return f->start;
}

static rd_status find_fragments(const struct token_history *h, const char *text, size_t n, struct fragment **out,
                                size_t *n_out)
{
    struct special_match *found = NULL;
    struct fragment *list;
    size_t n_found = 0, n_list = 0;
    uint32_t at = 0;
    rd_status st;

    if (h->t->hub) return hub_find_fragments(h->t, text, n, h->parse_special, &h->breaks, out, n_out);
    st = special_find(h->t, text, (uint32_t)n, h->parse_special, &h->breaks, &found, &n_found);
    if (st != RD_OK) return st;
    list = mem_alloc(2 * n_found + 1, sizeof(*list));
    for (size_t i = 0; list && i <= n_found; i++) {
        uint32_t end = i < n_found ? found[i].at : (uint32_t)n;

        if (end > at) list[n_list++] = (struct fragment){at, end - at, TOKEN_NONE, 0};
        if (i == n_found) break;
        list[n_list++] = (struct fragment){end, found[i].n, found[i].id, 0};
        at = end + found[i].n;
    }
    mem_free(found);
    *out = list;
    *n_out = n_list;
    return list ? RD_OK : RD_E_NOMEM;
}

/* Takes the new text's breaks. *shared: to where both texts have the same ones, at most. */
static rd_status take_breaks(struct token_history *h, const struct text_breaks *breaks, size_t *shared)
{
    const size_t n = breaks ? breaks->n : 0;
    size_t i = 0;

    while (i < n && i < h->breaks.n && breaks->at[i] == h->breaks.at[i]) i++;
    if (i < n && breaks->at[i] < *shared) *shared = breaks->at[i];
    if (i < h->breaks.n && h->breaks.at[i] < *shared) *shared = h->breaks.at[i];
    if (!mem_grow((void **)&h->breaks.at, &h->breaks.cap, n, sizeof(*h->breaks.at))) return RD_E_NOMEM;
    if (n > i) memcpy(h->breaks.at + i, breaks->at + i, (n - i) * sizeof(*h->breaks.at));
    h->breaks.n = n;
    return RD_OK;
}

/* Brings h->ids and the rest to the new text. */
static rd_status update(struct token_history *h, const char *text, size_t n, const struct text_breaks *breaks,
                        size_t *n_kept)
{
    const size_t alike = common_prefix(h->text, h->n, text, n);
    size_t shared = alike, n_found = 0, i = 0;
    struct fragment *found = NULL;
    uint32_t from = 0;
    rd_status st = take_breaks(h, breaks, &shared);

    if (st == RD_OK) st = find_fragments(h, text, n, &found, &n_found);

    if (st != RD_OK) return st;
    while (i < n_found && i < h->n_fragments && found[i].start == h->fragments[i].start &&
           found[i].n == h->fragments[i].n && found[i].id == h->fragments[i].id &&
           found[i].start + found[i].n <= shared) {
        found[i].ids_end = h->fragments[i].ids_end;
        i++;
    }
    from = i < n_found ? found[i].start : (uint32_t)n;
    h->ids.n = i ? found[i - 1].ids_end : 0;
    if (i < n_found && i < h->n_fragments && found[i].id == TOKEN_NONE && h->fragments[i].id == TOKEN_NONE) {
        size_t before = h->ids.n;

        from = safe_place(h, text, &found[i], &h->fragments[i], shared);
        if (from == found[i].start) h->ids.n = before;
    }
    while (h->n_marks && h->marks[h->n_marks - 1].at > from) h->n_marks--;
    *n_kept = from;
    mem_free(h->fragments);
    h->fragments = found;
    h->n_fragments = n_found;
    for (; i < n_found && st == RD_OK; i++) {
        st = encode_fragment(h, text, &found[i], from > found[i].start ? from : found[i].start);
        found[i].ids_end = h->ids.n;
    }
    if (st == RD_OK && !mem_grow((void **)&h->text, &h->text_cap, n + 1, 1)) st = RD_E_NOMEM;
    if (st != RD_OK) return st;
    memcpy(h->text + alike, text + alike, n - alike);
    h->n = n;
    return RD_OK;
}

static rd_status copy_ids(const struct token_history *h, bool add_special, int32_t **ids, uint32_t *n)
{
    const struct tokenizer *t = h->t;
    const int32_t *before = t->hub ? t->hub->before : &t->bos, *after = t->hub ? t->hub->after : &t->eos;
    size_t n_before = t->hub ? t->hub->n_before : t->add_bos, n_after = t->hub ? t->hub->n_after : t->add_eos;
    int32_t *out;

    if (!add_special) n_before = n_after = 0;
    if (h->ids.n + n_before + n_after > UINT32_MAX) return RD_E_LIMIT;
    out = mem_alloc(h->ids.n + n_before + n_after + 1, sizeof(*out));
    if (!out) return RD_E_NOMEM;
    if (n_before) memcpy(out, before, n_before * sizeof(*out));
    if (h->ids.n) memcpy(out + n_before, h->ids.ids, h->ids.n * sizeof(*out));
    if (n_after) memcpy(out + n_before + h->ids.n, after, n_after * sizeof(*out));
    *ids = out;
    *n = (uint32_t)(h->ids.n + n_before + n_after);
    return RD_OK;
}

rd_status token_history_encode(struct token_history *h, const char *text, size_t n_bytes, bool add_special,
                               bool parse_special, const struct text_breaks *breaks, int32_t **ids, uint32_t *n,
                               size_t *n_kept, struct rd_error *err)
{
    char *repaired = NULL;
    size_t kept = 0;
    rd_status st = RD_OK;

    if (n_bytes > LIMIT_TEXT_BYTES)
        return error_set(err, RD_E_LIMIT, "the text has %zu bytes, at most %u", n_bytes, LIMIT_TEXT_BYTES);
    if (parse_special != h->parse_special) forget(h);
    h->parse_special = parse_special;
    if (h->t->hub) st = hub_repair(text, n_bytes, &repaired, &n_bytes);
    if (st == RD_OK) st = update(h, repaired ? repaired : text, n_bytes, breaks, &kept);
    if (st == RD_OK) st = copy_ids(h, add_special, ids, n);
    mem_free(repaired);
    merge_work_deinit(&h->merge);
    hub_work_deinit(&h->work);
    h->merge = (struct merge_work){0};
    h->work = (struct hub_work){0};
    if (n_kept) *n_kept = kept;
    if (st == RD_OK) return RD_OK;
    forget(h);
    return error_set(err, st, "tokenising %zu bytes: %s", n_bytes, rd_status_text(st));
}
