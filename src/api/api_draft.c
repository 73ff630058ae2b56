/* api/api_draft.c - the draft model of an engine (--draft): a second, smaller model with the same tokens, on the same
 * backend, with a KV cache of its own for as many tokens. */
#include <string.h>
#include "api/api_state.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/draft/draft_model.h"
#include "format/model_file.h"
#include "model/vocab.h"

#define MAX_ROWS      256u
#define MAX_VOCAB_GAP 1024u /* padding rows that one of the two vocabularies may have more */

struct api_draft {
    struct model_file *gguf;
    struct executor *executor;
    struct executor_traits traits;
    struct draft_model *drafts;
};

/* A draft is a token id: both models must mean the same by it. */
static rd_status check_tokens(const rd_engine *e, const struct api_draft *d, const char *path, struct rd_error *err)
{
    struct tokenizer *small = NULL;
    uint32_t n_big, n_small, n;
    rd_status st = vocab_load(d->gguf, NULL, &small, err);

    if (st != RD_OK) return st;
    n_big = tokenizer_n_tokens(e->tokenizer);
    n_small = tokenizer_n_tokens(small);
    n = u32_min(n_big, n_small);
    if (u32_max(n_big, n_small) - n > MAX_VOCAB_GAP)
        st = error_set(err, RD_E_INVALID, "draft model %s: %u tokens, the served model has %u", path, n_small, n_big);
    for (uint32_t i = 0; st == RD_OK && i < n; i++) {
        struct text_span a = tokenizer_piece(e->tokenizer, (int32_t)i, true);
        struct text_span b = tokenizer_piece(small, (int32_t)i, true);

        if (a.n != b.n || memcmp(a.s, b.s, a.n) != 0)
            st = error_set(err, RD_E_INVALID,
                           "draft model %s: its token %u is another one than the served model's: only models with the "
                           "same vocabulary can draft for each other",
                           path, i);
    }
    tokenizer_destroy(small);
    return st;
}

static rd_status load_model(rd_engine *e, struct api_draft *d, uint32_t max_running, uint32_t page_tokens,
                            struct rd_error *err)
{
    struct draft_model_options o;
    const struct executor_options xo = {.file = d->gguf,
                                        .beside = e->executor,
                                        .max_running = max_running,
                                        .max_chunk = u32_max(MAX_ROWS, max_running * 8),
                                        .max_logits = max_running,
                                        .page_tokens = page_tokens,
                                        .dtype_k = DTYPE_F16,
                                        .dtype_v = DTYPE_F16,
                                        .whole_pages = true, /* what was guessed wrong is taken back */
                                        .kv_tokens = u64_max(2 * page_tokens, e->info.kv_tokens)};
    rd_status st = executor_open(&xo, &d->executor, &d->traits, err);

    if (st != RD_OK) return st;
    o = (struct draft_model_options){.executor = *d->executor,
                                     .clock = clock_system(),
                                     .n_pages = d->traits.n_pages,
                                     .page_tokens = page_tokens,
                                     .n_vocab = e->info.n_vocab,
                                     .max_running = max_running};
    st = draft_model_create(&o, &d->drafts);
    return st == RD_OK ? st : error_set(err, st, "cannot set up the draft model: %s", rd_status_text(st));
}

rd_status api_draft_open(rd_engine *e, const char *path, uint32_t max_running, uint32_t page_tokens,
                         struct rd_error *err)
{
    struct api_draft *d = mem_zalloc(1, sizeof(*d));
    rd_status st;

    if (!d) return error_set(err, RD_E_NOMEM, "out of memory");
    e->draft = d;
    st = model_file_open(path, model_hub_families(), &d->gguf, err);
    if (st == RD_OK) st = check_tokens(e, d, path, err);
    if (st == RD_OK) st = load_model(e, d, max_running, page_tokens, err);
    if (st == RD_OK)
        log_info("drafts from %s: %llu MiB of weights, %llu MiB of KV cache", path,
                 (unsigned long long)(d->traits.weight_bytes >> 20), (unsigned long long)(d->traits.kv_bytes >> 20));
    return st;
}

struct draft_model *api_draft_model(const rd_engine *e)
{
    return e->draft ? e->draft->drafts : NULL;
}

void api_draft_close(rd_engine *e)
{
    struct api_draft *d = e->draft;

    if (!d) return;
    draft_model_destroy(d->drafts);
    executor_close(d->executor);
    model_file_close(d->gguf);
    mem_free(d);
    e->draft = NULL;
}
