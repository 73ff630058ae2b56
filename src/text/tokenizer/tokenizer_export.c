/* text/tokenizer/tokenizer_export.c - see tokenizer_export.h. */
#include "text/tokenizer/tokenizer_export.h"
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "text/tokenizer/hub.h"

#define NO_MERGE_SCORE (-1e9f) /* of a token that no merge makes: it is formed last */

static const char *name_of(enum pretokenizer kind, bool ignore_merges)
{
    switch (kind) {
    case PRE_GPT2:
        return "gpt-2";
    case PRE_SMOLLM:
        return "smollm";
    case PRE_LLAMA3:
    case PRE_LLAMA3_HUB:
        return ignore_merges ? "llama-bpe" : "dbrx";
    case PRE_QWEN2:
    case PRE_QWEN2_HUB:
        return "qwen2";
    case PRE_O200K:
        return "gpt-4o";
    case PRE_TEKKEN:
        return "tekken";
    case PRE_DEEPSEEK3:
        return "deepseek-v3";
    case PRE_COUNT:
        break;
    }
    return NULL;
}

static int by_rank(const void *a, const void *b)
{
    const struct merge_pair *x = a, *y = b;

    return (x->prio > y->prio) - (x->prio < y->prio);
}

static rd_status list_merges(const struct tokenizer *t, struct tokenizer_export *out, struct rd_error *err)
{
    uint32_t n = 0;

    for (size_t i = 0; i < t->n_pair_slots; i++) n += t->pairs[i].prio != PRIO_NONE;
    out->merges = mem_alloc(n, sizeof(*out->merges));
    if (!out->merges) return error_set(err, RD_E_NOMEM, "merges: out of memory");
    for (size_t i = 0; i < t->n_pair_slots; i++)
        if (t->pairs[i].prio != PRIO_NONE) out->merges[out->n_merges++] = t->pairs[i];
    if (n) qsort(out->merges, n, sizeof(*out->merges), by_rank);
    return RD_OK;
}

static rd_status find_scores(const struct tokenizer *t, struct tokenizer_export *out, struct rd_error *err)
{
    out->scores = mem_alloc(t->n_tokens, sizeof(*out->scores));
    if (!out->scores) return error_set(err, RD_E_NOMEM, "scores: out of memory");
    for (uint32_t i = 0; i < t->n_tokens; i++) out->scores[i] = NO_MERGE_SCORE;
    for (uint32_t i = out->n_merges; i-- > 0;) /* the first merge of a token counts */
        if (out->merges[i].symbol < t->n_tokens) out->scores[out->merges[i].symbol] = -(float)out->merges[i].prio;
    return RD_OK;
}

/* A text begins with U+2581 although it was not written. */
static rd_status find_space_prefix(const struct tokenizer *t, bool *out, struct rd_error *err)
{
    int32_t *ids = NULL;
    uint32_t n = 0;
    size_t len;
    const char *s;
    rd_status st = tokenizer_encode(t, "x", 1, false, false, &ids, &n, err);

    if (st != RD_OK) return st;
    s = n ? string_table_at(&t->strings, (uint32_t)ids[0], &len) : "";
    *out = n && len >= 3 && !memcmp(s, "\xe2\x96\x81", 3);
    mem_free(ids);
    return RD_OK;
}

rd_status tokenizer_export(const struct tokenizer *t, const char *pre, struct tokenizer_export *out,
                           struct rd_error *err)
{
    struct pretokenizer_info info;
    enum pretokenizer kind;
    struct hub *h = t->hub;
    bool scans = false, bytes = h && splitter_ends_in_bytes(h->splitter, &scans, &kind);
    rd_status st;

    memset(out, 0, sizeof(*out));
    if (!h || h->model != HUB_BPE || h->n_prefix || h->n_suffix || (!bytes && !h->byte_fallback))
        return error_set(err, RD_E_UNSUPPORTED,
                         "tokenizer.json: only BPE over bytes, or over characters with byte "
                         "tokens, can be written to a GGUF file");
    out->model = bytes ? TOKENIZER_BPE : TOKENIZER_SPM;
    out->bos = t->bos;
    out->eos = t->eos;
    out->unk = t->unk;
    out->add_bos = t->add_bos;
    out->add_eos = t->add_eos;
    if (pre && !pretokenize_find(pre, strlen(pre), &info))
        return error_set(err, RD_E_UNSUPPORTED, "pre-tokenizer \"%.40s\" is unknown; known are %s", pre,
                         pretokenize_known());
    out->pre = pre ? pre : scans ? name_of(kind, h->ignore_merges) : NULL;
    if (out->model == TOKENIZER_BPE && !out->pre)
        return error_set(err, RD_E_UNSUPPORTED,
                         "tokenizer.json: its pre_tokenizer has no name in GGUF files that is "
                         "known here; choose one with --pre: %s",
                         pretokenize_known());
    st = list_merges(t, out, err);
    if (st == RD_OK && out->model == TOKENIZER_SPM) st = find_scores(t, out, err);
    if (st == RD_OK && out->model == TOKENIZER_SPM) st = find_space_prefix(t, &out->add_space_prefix, err);
    if (st != RD_OK) tokenizer_export_deinit(out);
    return st;
}

void tokenizer_export_deinit(struct tokenizer_export *e)
{
    mem_free(e->merges);
    mem_free(e->scores);
    e->merges = NULL;
    e->scores = NULL;
}

static struct text_span text_of(const struct tokenizer *t, uint32_t id)
{
    struct text_span s;

    s.s = string_table_at(&t->strings, id, &s.n);
    return s;
}

void tokenizer_export_merge(const struct tokenizer *t, const struct tokenizer_export *e, uint32_t i,
                            struct text_span *left, struct text_span *right)
{
    *left = text_of(t, (uint32_t)(e->merges[i].key >> 32));
    *right = text_of(t, (uint32_t)e->merges[i].key);
}

struct text_span tokenizer_export_token(const struct tokenizer *t, uint32_t id, enum token_type *type)
{
    *type = (enum token_type)t->types[id];
    if (t->hub->flags[id] & HUB_SPECIAL)
        *type = TOKEN_CONTROL;
    else if (t->hub->flags[id] & HUB_ADDED)
        *type = TOKEN_USER_DEFINED;
    else if (t->hub->flags[id] & HUB_IN_MODEL)
        *type = TOKEN_NORMAL; /* whatever special_find_ends() made of it */
    for (unsigned b = 0; t->hub->byte_fallback && b < 256; b++)
        if (t->hub->byte_ids[b] == id) *type = TOKEN_BYTE;
    if ((int32_t)id == t->unk && *type == TOKEN_NORMAL) *type = TOKEN_UNKNOWN;
    return text_of(t, id);
}
