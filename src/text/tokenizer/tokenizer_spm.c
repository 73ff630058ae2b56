/* text/tokenizer/tokenizer_spm.c - SentencePiece's BPE: characters merged by score, byte tokens for what is no token.
 *
 * There are no words here: any two neighbours may merge if together they are a vocabulary entry. To keep heaps small
 * the text is cut where two characters meet that no entry has side by side: nothing can merge across such a place, so
 * the result is the same.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "text/tokenizer/tokenizer_impl.h"

#define SPACE_MARK     "\xe2\x96\x81" /* U+2581 stands for a space */
#define NEIGHBOUR_BITS 20

size_t spm_piece(const char *text, size_t n, char *out)
{
    size_t n_out = 0;

    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && memcmp(text + i, SPACE_MARK, 3) == 0) {
            out[n_out++] = ' ';
            i += 3;
        } else {
            out[n_out++] = text[i++];
        }
    }
    return n_out;
}

/* A character as SentencePiece counts it here: by the first byte alone, cut at the end of the text. */
static uint32_t char_bytes(const char *s, size_t n)
{
    unsigned high = (unsigned char)*s >> 4;
    uint32_t len = high < 12 ? 1 : high < 14 ? 2 : high == 14 ? 3 : 4;

    return len <= n ? len : (uint32_t)n;
}

static uint32_t neighbour_bit(unsigned char left_last, const char *right, uint32_t n_right)
{
    uint32_t word = 0;

    memcpy(&word, right, n_right);
    return (word * 0x9e3779b1u ^ left_last * 0x85ebca6bu) * 0xc2b2ae35u >> (32 - NEIGHBOUR_BITS);
}

static void note_neighbours(struct tokenizer *t, const char *s, size_t n)
{
    for (size_t at = n ? char_bytes(s, n) : 0; at < n;) {
        uint32_t len = char_bytes(s + at, n - at), bit = neighbour_bit((unsigned char)s[at - 1], s + at, len);

        t->neighbours[bit / 64] |= (uint64_t)1 << (bit % 64);
        at += len;
    }
}

/* Higher scores merge first; equal scores are equal priorities. Not PRIO_NONE for any number. */
static uint32_t prio_of(float score)
{
    uint32_t bits;

    score += 0.0f; /* -0 is 0 */
    memcpy(&bits, &score, sizeof(bits));
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

static void find_byte_tokens(struct tokenizer *t)
{
    for (unsigned b = 0; b < 256; b++) {
        char name[8], raw = (char)b;
        int n = snprintf(name, sizeof(name), "<0x%02X>", b);
        uint32_t id = string_table_find(&t->strings, name, (size_t)n);

        if (id == STRING_NONE) id = string_table_find(&t->strings, &raw, 1);
        if (id == STRING_NONE) id = t->unk >= 0 ? (uint32_t)t->unk : SYMBOL_NONE;
        t->byte_symbol[b] = id;
    }
}

rd_status spm_build(struct tokenizer *t, const struct tokenizer_spec *spec, struct rd_error *err)
{
    if (!spec->scores)
        return error_set(err, RD_E_FORMAT, "the vocabulary has no scores, which this tokenizer model needs");
    t->prios = mem_alloc(t->n_tokens, sizeof(*t->prios));
    t->neighbours = mem_zalloc(((size_t)1 << NEIGHBOUR_BITS) / 64, sizeof(*t->neighbours));
    if (!t->prios || !t->neighbours) return error_set(err, RD_E_NOMEM, "vocabulary: out of memory");
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        size_t n;
        const char *s = string_table_at(&t->strings, i, &n);

        if (isnan(spec->scores[i])) return error_set(err, RD_E_FORMAT, "token %u: its score is not a number", i);
        t->prios[i] = prio_of(spec->scores[i]);
        note_neighbours(t, s, n);
    }
    find_byte_tokens(t);
    return RD_OK;
}

uint32_t spm_pair(const struct tokenizer *t, const char *text, size_t n, uint32_t *symbol)
{
    if (n > t->max_bytes) return PRIO_NONE;
    *symbol = string_table_find(&t->strings, text, n);
    return *symbol == STRING_NONE ? PRIO_NONE : t->prios[*symbol];
}

/* Spaces become U+2581; one more in front if the model wants it. */
static char *mark_spaces(const char *text, uint32_t n, bool space_prefix, uint32_t *n_out)
{
    size_t n_spaces = space_prefix, at = 0;
    char *out;

    for (uint32_t i = 0; i < n; i++) n_spaces += text[i] == ' ';
    out = mem_alloc(n + 3 * n_spaces + 1, 1);
    if (!out) return NULL;
    if (space_prefix) {
        memcpy(out, SPACE_MARK, 3);
        at = 3;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (text[i] == ' ') {
            memcpy(out + at, SPACE_MARK, 3);
            at += 3;
        } else {
            out[at++] = text[i];
        }
    }
    *n_out = (uint32_t)at;
    return out;
}

rd_status spm_encode(const struct tokenizer *t, struct merge_work *w, const char *text, uint32_t n, bool space_prefix,
                     struct id_list *out)
{
    uint32_t n_marked = 0, segment = 0;
    char *s = mark_spaces(text, n, space_prefix, &n_marked);
    rd_status st = s ? RD_OK : RD_E_NOMEM;

    for (uint32_t at = 0; st == RD_OK && at < n_marked;) {
        uint32_t len = char_bytes(s + at, n_marked - at), id;

        if (at > segment) {
            uint32_t bit = neighbour_bit((unsigned char)s[at - 1], s + at, len);

            if (!(t->neighbours[bit / 64] >> (bit % 64) & 1)) {
                st = merge_run(t, w, s + segment, at - segment, out);
                segment = at;
                if (st != RD_OK) break;
            }
        }
        id = string_table_find(&t->strings, s + at, len);
        if (!merge_add(w, at - segment, id == STRING_NONE ? SYMBOL_NONE : id)) st = RD_E_NOMEM;
        at += len;
    }
    if (st == RD_OK && n_marked > segment) st = merge_run(t, w, s + segment, n_marked - segment, out);
    w->n_nodes = 0;
    mem_free(s);
    return st;
}
