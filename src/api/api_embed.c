/* api/api_embed.c - what a model is good for beside writing on: how its states are pooled, whether it ranks, whether it
 * fills in the middle.
 *
 * ARCH.pooling_type is llama.cpp's number: 1 mean, 2 first ("cls"), 3 last, 4 rank; 0 or no key: nothing is said.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "api/api_state.h"

enum { FILE_POOL_MEAN = 1, FILE_POOL_FIRST = 2, FILE_POOL_LAST = 3, FILE_POOL_RANK = 4 };

/* The token of a metadata key, else the first name that the vocabulary holds as a control token, else none. */
static int32_t find_token(const rd_engine *e, const char *const keys[2], const char *const names[6])
{
    for (size_t i = 0; i < 2 && keys[i] && e->gguf; i++) {
        char key[64];
        uint64_t id;

        snprintf(key, sizeof(key), "tokenizer.ggml.%s_token_id", keys[i]);
        if (model_file_u64(e->gguf, key, 0, e->info.n_vocab - 1, &id, NULL) == RD_OK) return (int32_t)id;
    }
    for (size_t i = 0; i < 6 && names[i]; i++) {
        int32_t id = tokenizer_find(e->tokenizer, names[i], strlen(names[i]));

        if (id != TOKEN_NONE && tokenizer_type(e->tokenizer, id) != TOKEN_NORMAL) return id;
    }
    return TOKEN_NONE;
}

static void find_fim(rd_engine *e)
{
    static const struct {
        const char *keys[2], *names[6];
    } tokens[] = {
        {{"fim_pre", "prefix"}, {"<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<PRE>", "\u2581<PRE>", NULL}},
        {{"fim_suf", "suffix"}, {"<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<SUF>", "\u2581<SUF>", NULL}},
        {{"fim_mid", "middle"}, {"<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<MID>", "\u2581<MID>", NULL}},
        {{"fim_rep", NULL}, {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<reponame>", NULL}},
        {{"fim_sep", NULL}, {"<|file_sep|>", NULL}}};
    int32_t *to[] = {&e->info.fim_prefix, &e->info.fim_suffix, &e->info.fim_middle, &e->info.fim_repository,
                     &e->info.fim_file};

    for (size_t i = 0; i < 5; i++) *to[i] = find_token(e, tokens[i].keys, tokens[i].names);
    if (e->info.fim_prefix != TOKEN_NONE && e->info.fim_suffix != TOKEN_NONE && e->info.fim_middle != TOKEN_NONE)
        return;
    e->info.fim_prefix = e->info.fim_suffix = e->info.fim_middle = TOKEN_NONE;
}

static bool name_says_rerank(const char *name)
{
    for (; *name; name++)
        if (strncasecmp(name, "rerank", 6) == 0) return true;
    return false;
}

/* general.file_type is llama.cpp's number of the recipe; a directory has the type of its layers' matrices. */
static void find_quantization(rd_engine *e)
{
    const struct model_tensor *t =
        model_file_text(e->gguf) ? model_file_find_tensor(e->gguf, "blk.0.ffn_up.weight") : NULL;
    static const char *const names[] = {
        [0] = "F32",     [1] = "F16",     [2] = "Q4_0",    [3] = "Q4_1",    [7] = "Q8_0",    [8] = "Q5_0",
        [9] = "Q5_1",    [10] = "Q2_K",   [11] = "Q3_K_S", [12] = "Q3_K_M", [13] = "Q3_K_L", [14] = "Q4_K_S",
        [15] = "Q4_K_M", [16] = "Q5_K_S", [17] = "Q5_K_M", [18] = "Q6_K",   [32] = "BF16"};
    uint64_t type;

    if (t) snprintf(e->info.quantization, sizeof(e->info.quantization), "%s", dtype_name(t->dtype));
    if (model_file_u64(e->gguf, "general.file_type", 0, sizeof(names) / sizeof(names[0]) - 1, &type, NULL) != RD_OK)
        return;
    if (names[type]) snprintf(e->info.quantization, sizeof(e->info.quantization), "%s", names[type]);
}

void api_embed_init(rd_engine *e)
{
    char key[64];
    uint64_t pooling = 0;

    find_fim(e);
    e->info.pooling = RD_POOL_LAST;
    e->info.thinks = e->style.think != NULL;
    e->info.holds_calls = api_holds_calls(e);
    if (!e->gguf) return;
    find_quantization(e);
    snprintf(key, sizeof(key), "%s.pooling_type", e->info.arch);
    if (model_file_u64(e->gguf, key, 0, FILE_POOL_RANK, &pooling, NULL) != RD_OK) pooling = 0;
    if (pooling == FILE_POOL_MEAN) e->info.pooling = RD_POOL_MEAN;
    if (pooling == FILE_POOL_FIRST) e->info.pooling = RD_POOL_FIRST;
    e->info.is_reranker = pooling == FILE_POOL_RANK || model_file_find(e->gguf, "tokenizer.chat_template.rerank") ||
                          name_says_rerank(e->info.name);
}

void api_embed_wish(const rd_engine *engine, enum rd_pooling pooling, uint32_t n, struct prefill_wish *wish,
                    bool *cached)
{
    if (pooling == RD_POOL_MODEL) pooling = engine->info.pooling;
    wish->hidden = engine->info.hidden;
    wish->pool_from = pooling == RD_POOL_LAST ? n - 1 : 0;
    wish->pool_to = pooling == RD_POOL_FIRST ? 1 : n;
    if (pooling != RD_POOL_LAST) *cached = false; /* a cached prefix has no hidden states */
}
