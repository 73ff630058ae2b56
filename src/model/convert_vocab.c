/* model/convert_vocab.c - see convert_vocab.h. */
#include "model/convert_vocab.h"
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "model/vocab.h"
#include "text/tokenizer/tokenizer_export.h"

/* Ids that no token has get a name and the type of what is never used. */
static void add_tokens(const struct tokenizer *t, struct gguf_writer *w, int32_t *types)
{
    uint32_t n = tokenizer_n_tokens(t);

    gguf_add_strings(w, "tokenizer.ggml.tokens", n);
    for (uint32_t i = 0; i < n; i++) {
        enum token_type type;
        struct text_span s = tokenizer_export_token(t, i, &type);
        char unused[32];

        types[i] = (int32_t)type;
        if (s.n == 0) {
            snprintf(unused, sizeof(unused), "[PAD%u]", i);
            s = (struct text_span){unused, strlen(unused)};
            types[i] = TOKEN_UNUSED;
        }
        gguf_add_string(w, s.s, s.n);
    }
    gguf_add_array(w, "tokenizer.ggml.token_type", META_I32, types, n);
}

static rd_status add_merges(const struct tokenizer *t, const struct tokenizer_export *e, struct gguf_writer *w,
                            struct rd_error *err)
{
    struct buf both = {0};
    bool failed;

    gguf_add_strings(w, "tokenizer.ggml.merges", e->n_merges);
    for (uint32_t i = 0; i < e->n_merges; i++) {
        struct text_span left, right;

        tokenizer_export_merge(t, e, i, &left, &right);
        buf_clear(&both);
        buf_append(&both, left.s, left.n);
        buf_putc(&both, ' ');
        buf_append(&both, right.s, right.n);
        if (!both.failed) gguf_add_string(w, both.data, both.n);
    }
    failed = both.failed;
    buf_deinit(&both);
    return failed ? error_set(err, RD_E_NOMEM, "merges: out of memory") : RD_OK;
}

static void add_ids(const struct model_file *g, const struct tokenizer *t, const struct tokenizer_export *e,
                    struct gguf_writer *w)
{
    const struct model_text *hub = model_file_text(g);
    const struct {
        const char *key;
        int32_t id;
    } rows[] = {
        {"tokenizer.ggml.bos_token_id", e->bos},
        {"tokenizer.ggml.eos_token_id", e->eos},
        {"tokenizer.ggml.unknown_token_id", e->unk},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].id >= 0) gguf_add_u32(w, rows[i].key, (uint32_t)rows[i].id);
    for (uint32_t i = 0; i < hub->n_ends; i++) /* a second end, beside eos */
        if (hub->ends[i] != e->eos && (uint32_t)hub->ends[i] < tokenizer_n_tokens(t)) {
            gguf_add_u32(w, "tokenizer.ggml.eot_token_id", (uint32_t)hub->ends[i]);
            break;
        }
    gguf_add_bool(w, "tokenizer.ggml.add_bos_token", e->add_bos);
    gguf_add_bool(w, "tokenizer.ggml.add_eos_token", e->add_eos);
    if (e->model == TOKENIZER_SPM) gguf_add_bool(w, "tokenizer.ggml.add_space_prefix", e->add_space_prefix);
}

rd_status convert_vocab(const struct model_file *g, const char *pre, struct gguf_writer *w, struct rd_error *err)
{
    struct tokenizer_export e = {0};
    struct tokenizer *t = NULL;
    int32_t *types = NULL;
    const char *model;
    rd_status st = vocab_load(g, NULL, &t, err);

    if (st == RD_OK) st = tokenizer_export(t, pre, &e, err);
    if (st != RD_OK) goto done;
    types = mem_alloc(tokenizer_n_tokens(t), sizeof(*types));
    if (!types) {
        st = error_set(err, RD_E_NOMEM, "vocabulary: out of memory");
        goto done;
    }
    model = e.model == TOKENIZER_BPE ? "gpt2" : "llama";
    gguf_add_str(w, "tokenizer.ggml.model", model, strlen(model));
    gguf_add_str(w, "tokenizer.ggml.pre", e.pre ? e.pre : "default", strlen(e.pre ? e.pre : "default"));
    add_tokens(t, w, types);
    if (e.scores)
        gguf_add_array(w, "tokenizer.ggml.scores", META_F32, e.scores, tokenizer_n_tokens(t));
    else
        st = add_merges(t, &e, w, err);
    add_ids(g, t, &e, w);

done:
    mem_free(types);
    tokenizer_export_deinit(&e);
    tokenizer_destroy(t);
    return st;
}
