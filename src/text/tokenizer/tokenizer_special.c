/* text/tokenizer/tokenizer_special.c - special tokens: which they are, which of them end a text, where they stand in a text.
 *
 * Order in text, as llama.cpp has it: the longest special tokens are taken first over the whole text, then shorter ones
 * in what is left. User-defined tokens are always taken, control and unknown ones when the caller asks (parse_special).
 *
 * Files often give the tokens that end a turn a wrong type. llama.cpp goes by their names, so we do.
 */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "text/tokenizer/tokenizer_impl.h"

/* Names that end a text or a turn: control tokens, whatever the file says. */
static const char *const end_names[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "[e~[",
    /* padding and separators of fill-in-the-middle: nothing sensible follows them */
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
};
/* Control tokens that end nothing. */
static const char *const control_names[] = {
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "<|code_prefix|>", "<|prefix|>",
    "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "<|code_suffix|>", "<|suffix|>",
    "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "<|code_middle|>", "<|middle|>",
};
/* Harmony's marks, shown always. */
static const char *const shown_names[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static int32_t find_name(const struct tokenizer *t, const char *name)
{
    return tokenizer_find(t, name, strlen(name));
}

static bool is_searched(const struct tokenizer *t, uint32_t id, bool parse_special)
{
    enum token_type type = t->types[id];

    return type == TOKEN_USER_DEFINED || (parse_special && (type == TOKEN_CONTROL || type == TOKEN_UNKNOWN));
}

static int compare_ids(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

static int compare_longest_first(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x < y) - (x > y);
}

/* Harmony ends a message with <|end|>, but not the text. */
static bool has_harmony_ends(const struct tokenizer *t)
{
    bool call = find_name(t, "<|call|>") >= 0;

    return (find_name(t, "<|return|>") >= 0 && call) ||
           (find_name(t, "<|flush|>") >= 0 && (call || find_name(t, "<|calls|>") >= 0));
}

rd_status special_find_ends(struct tokenizer *t, const int32_t *more, uint32_t n_more)
{
    int32_t id, s_end = find_name(t, "</s>");
    uint32_t n = 0;

    t->ends = mem_alloc(COUNT(end_names) + 3 + n_more, sizeof(*t->ends));
    if (!t->ends) return RD_E_NOMEM;
    for (size_t i = 0; i < COUNT(end_names); i++) {
        if ((id = find_name(t, end_names[i])) < 0) continue;
        t->types[id] = TOKEN_CONTROL;
        t->ends[n++] = id;
    }
    if (s_end >= 0 && find_name(t, "<|tool_response>") < 0 && find_name(t, "<|plamo:eos|>") < 0) {
        if (t->types[s_end] == TOKEN_CONTROL) t->ends[n++] = s_end; /* else markup for struck-out text, as in Gemma */
        t->types[s_end] = TOKEN_CONTROL;
    }
    if (t->eos >= 0) t->ends[n++] = t->eos;
    if (t->eot >= 0) t->ends[n++] = t->eot;
    for (uint32_t i = 0; i < n_more; i++)
        if (more[i] >= 0 && (uint32_t)more[i] < t->n_tokens) t->ends[n++] = more[i];
    if (has_harmony_ends(t) && (id = find_name(t, "<|end|>")) >= 0) {
        uint32_t kept = 0;

        for (uint32_t i = 0; i < n; i++)
            if (t->ends[i] != id) t->ends[kept++] = t->ends[i];
        n = kept;
        t->types[id] = TOKEN_USER_DEFINED;
    }
    qsort(t->ends, n, sizeof(*t->ends), compare_ids);
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || t->ends[i] != t->ends[i - 1]) t->ends[t->n_ends++] = t->ends[i];
    return RD_OK;
}

static rd_status set_build(struct tokenizer *t, bool parse_special)
{
    struct special_set *set = &t->special[parse_special];
    size_t n_lengths = 0, cap = 0;
    uint32_t kept = 0;

    set->starts = mem_zalloc(65536 / 64, sizeof(*set->starts));
    if (!set->starts) return RD_E_NOMEM;
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        size_t n;
        const char *s = string_table_at(&t->strings, id, &n);
        uint32_t first;

        if (n == 0 || !is_searched(t, id, parse_special)) continue;
        first = (uint32_t)(unsigned char)s[0] << 8;
        for (uint32_t i = n > 1 ? (unsigned char)s[1] : 0, last = n > 1 ? i : 255; i <= last; i++)
            set->starts[(first | i) / 64] |= (uint64_t)1 << (i % 64);
        if (n_lengths && set->lengths[n_lengths - 1] == n) continue;
        if (!mem_grow((void **)&set->lengths, &cap, n_lengths + 1, sizeof(*set->lengths))) return RD_E_NOMEM;
        set->lengths[n_lengths++] = (uint32_t)n;
    }
    if (n_lengths) qsort(set->lengths, n_lengths, sizeof(*set->lengths), compare_longest_first);
    for (size_t i = 0; i < n_lengths; i++)
        if (i == 0 || set->lengths[i] != set->lengths[i - 1]) set->lengths[kept++] = set->lengths[i];
    set->n_lengths = kept;
    return RD_OK;
}

rd_status special_build(struct tokenizer *t)
{
    rd_status st = special_find_ends(t, NULL, 0);
    int32_t id;

    if (st != RD_OK) return st;
    for (size_t i = 0; i < COUNT(control_names); i++)
        if ((id = find_name(t, control_names[i])) >= 0) t->types[id] = TOKEN_CONTROL;
    for (size_t i = 0; i < COUNT(shown_names); i++)
        if ((id = find_name(t, shown_names[i])) >= 0) t->types[id] = TOKEN_USER_DEFINED;
    st = set_build(t, false);
    if (st == RD_OK) st = set_build(t, true);
    return st == RD_OK ? special_marks_build(t) : st;
}

void special_deinit(struct tokenizer *t)
{
    for (unsigned i = 0; i < 2; i++) {
        mem_free(t->special[i].starts);
        mem_free(t->special[i].lengths);
    }
    mem_free(t->ends);
    prefix_index_deinit(&t->guarded);
}

/* Places where a special token may begin, by its first two bytes; at the end of the text any second byte counts. */
static rd_status find_candidates(const struct special_set *set, const char *text, uint32_t n,
                                 struct special_match **out, size_t *n_out)
{
    struct special_match *found = NULL;
    size_t n_found = 0, cap = 0;

    for (uint32_t at = 0; at < n; at++) {
        uint32_t start = (uint32_t)(unsigned char)text[at] << 8 | (at + 1 < n ? (unsigned char)text[at + 1] : 0);
        bool may = set->starts[start / 64] >> (start % 64) & 1;

        if (!may && at + 1 < n) continue;
        if (n_found == cap && !mem_grow((void **)&found, &cap, n_found + 1, sizeof(*found))) {
            mem_free(found);
            return RD_E_NOMEM;
        }
        found[n_found++] = (struct special_match){at, 0, TOKEN_NONE};
    }
    *out = found;
    *n_out = n_found;
    return RD_OK;
}

static bool bit_get(const uint64_t *bits, uint32_t i)
{
    return bits[i / 64] >> (i % 64) & 1;
}

static void bits_set(uint64_t *bits, uint32_t from, uint32_t n)
{
    for (uint32_t i = from; i < from + n; i++) bits[i / 64] |= (uint64_t)1 << (i % 64);
}

rd_status special_find(const struct tokenizer *t, const char *text, uint32_t n, bool parse_special,
                       const struct text_breaks *breaks, struct special_match **out, size_t *n_out)
{
    const struct special_set *set = &t->special[parse_special];
    struct special_match *found = NULL;
    uint64_t *taken = NULL; /* [n] bit set: bytes that belong to a token found before */
    size_t n_found = 0, kept = 0;
    rd_status st;

    *out = NULL;
    *n_out = 0;
    if (!set->n_lengths) return RD_OK;
    if ((st = find_candidates(set, text, n, &found, &n_found)) != RD_OK) return st;
    taken = n_found ? mem_zalloc(n / 64 + 1, sizeof(*taken)) : NULL;
    if (n_found && !taken) {
        mem_free(found);
        return RD_E_NOMEM;
    }
    for (uint32_t l = 0; l < set->n_lengths; l++) {
        uint32_t len = set->lengths[l];

        for (size_t i = 0; i < n_found; i++) {
            uint32_t id, at = found[i].at;

            /* What was taken before is at least as long: looking at both ends is enough. */
            if (len > n - at || bit_get(taken, at) || bit_get(taken, at + len - 1)) continue;
            id = string_table_find(&t->strings, text + at, len);
            if (id >= t->n_tokens || !is_searched(t, id, parse_special)) continue;
            if (text_breaks_cut(breaks, at, (size_t)at + len)) continue;
            found[i].id = (int32_t)id;
            found[i].n = len;
            bits_set(taken, at, len);
        }
    }
    for (size_t i = 0; i < n_found; i++)
        if (found[i].id != TOKEN_NONE) found[kept++] = found[i];
    mem_free(taken);
    *out = found;
    *n_out = kept;
    return RD_OK;
}
