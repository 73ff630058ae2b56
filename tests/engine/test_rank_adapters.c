/* tests/engine/test_rank_adapters.c - adapters with ranks: for any number of them the logits and texts of a mix are those of one
 * rank, alone and beside other mixes, cold and cached. */
#include <stdlib.h>
#include "lora_make.h"
#include "rank_rig.h"

#define N_TOKENS 40u
#define N_TEXT   12u
#define N_MIXES  4u /* none, the first, the second, both */

static const struct {
    const char *path;
    bool interleaves;
} models[] = {{"tests/golden/llama/tiny-llama.gguf", true},
              {"tests/golden/qwen2/tiny-qwen2.gguf", false},
              {"tests/golden/qwen3/tiny-qwen3.gguf", false},
              {"tests/golden/gemma2/tiny-gemma2.gguf", false},
              {"tests/golden/gemma3/tiny-gemma3.gguf", false}};

/* What each mix gives: of one rank, the measure of all. */
struct given {
    float *logits[N_MIXES];
    uint32_t texts[N_MIXES][N_TEXT - 1];
};

static void make_mixes(struct adapter *const adapters[2], struct adapter_mix *mixes[N_MIXES])
{
    const struct adapter_use both[2] = {{adapters[0], 0.7f}, {adapters[1], -1.5f}};

    mixes[0] = NULL;
    CHECK_OK(adapter_mix_create(&both[0], 1, &mixes[1], NULL));
    CHECK_OK(adapter_mix_create(&both[1], 1, &mixes[2], NULL));
    CHECK_OK(adapter_mix_create(both, 2, &mixes[3], NULL));
}

/* Texts of all mixes at once, those of one mix beside those of others. */
static void write_texts(struct ranked *r, struct adapter_mix *const mixes[N_MIXES], const int32_t *tokens,
                        struct given *out)
{
    struct request *who[N_MIXES];

    for (uint32_t i = 0; i < N_MIXES; i++) {
        r->g.mix = mixes[i];
        who[i] = submit(&r->g, tokens, N_TOKENS, false, N_TEXT, NULL);
        CHECK(who[i] != NULL);
    }
    for (uint32_t i = 0; i < N_MIXES; i++) {
        while (!atomic_load(&who[i]->ended)) engine_step(r->g.e);
        CHECK_OK(who[i]->status);
        for (uint32_t k = 0; k < N_TEXT - 1; k++) out->texts[i][k] = (uint32_t)who[i]->seq.keys[N_TOKENS + k];
        request_unref(who[i]);
    }
}

static void check_ranked(struct ranked *r, struct adapter *const adapters[2], struct given *given)
{
    const bool is_first = !given->logits[0];
    const size_t n_bytes = r->g.n_vocab * sizeof(float);
    float *logits = malloc(n_bytes);
    struct adapter_mix *mixes[N_MIXES];
    int32_t tokens[N_TOKENS];
    struct given now;
    uint32_t n_cached;

    make_mixes(adapters, mixes);
    make_tokens(&r->g, tokens, N_TOKENS, 3);
    for (uint32_t i = 0; i < N_MIXES; i++) {
        r->g.mix = mixes[i];
        CHECK(run(&r->g, tokens, N_TOKENS, true, logits, &n_cached));
        CHECK_EQ(n_cached, 0); /* what another mix has stored is not this one's */
        if (is_first) {
            given->logits[i] = malloc(n_bytes);
            memcpy(given->logits[i], logits, n_bytes);
            for (uint32_t k = 0; k < i; k++) CHECK(memcmp(given->logits[k], logits, n_bytes) != 0);
        }
        CHECK(memcmp(given->logits[i], logits, n_bytes) == 0);
        CHECK(run(&r->g, tokens, N_TOKENS, true, logits, &n_cached));
        CHECK_EQ(n_cached, N_TOKENS);
        CHECK(memcmp(given->logits[i], logits, n_bytes) == 0);
    }
    for (int again = 0; again < 3; again++) { /* as they are, recorded, replayed */
        write_texts(r, mixes, tokens, &now);
        if (is_first && again == 0) memcpy(given->texts, now.texts, sizeof(now.texts));
        CHECK(memcmp(given->texts, now.texts, sizeof(now.texts)) == 0);
    }
    for (uint32_t i = 0; i < N_MIXES; i++) adapter_mix_unref(mixes[i]);
    free(logits);
}

TEST(an_adapter_has_the_bits_of_one_rank)
{
    for (size_t k = 0; k < sizeof(models) / sizeof(models[0]); k++) {
        struct given given = {.logits = {NULL}};
        struct hash128 digest = {0, 0};
        char dirs[2][64];

        for (uint32_t i = 0; i < 2; i++)
            CHECK(lora_make(test_path(models[k].path), models[k].interleaves,
                            &(struct lora_options){.rank = 3 + 5 * i, .seed = k + 10 * i, .bf16 = i == 1}, dirs[i]));
        for (size_t n = 0; n < sizeof(rank_numbers) / sizeof(rank_numbers[0]); n++) {
            struct ranked r;
            struct adapter *adapters[2] = {NULL, NULL};

            if (!rank_number_fits(rank_numbers[n])) break;
            CHECK(open_ranked(&r, models[k].path, rank_numbers[n], (struct kv_types){DTYPE_F16, DTYPE_F16}));
            for (uint32_t i = 0; i < 2; i++) CHECK_OK(r.x->adapter_load(r.x->self, dirs[i], &adapters[i], NULL));
            if (n == 0) digest = adapter_info(adapters[0])->digest;
            CHECK(hash128_equal(digest, adapter_info(adapters[0])->digest)); /* pages are those of any number */
            check_ranked(&r, adapters, &given);
            for (uint32_t i = 0; i < 2; i++) adapter_unref(adapters[i]);
            close_ranked(&r);
        }
        for (uint32_t i = 0; i < N_MIXES; i++) free(given.logits[i]);
        for (uint32_t i = 0; i < 2; i++) lora_remove(dirs[i]);
    }
}

TEST(an_adapter_that_does_not_fit_says_so_with_ranks)
{
    struct ranked r;
    struct adapter *a = NULL;
    struct rd_error err = {RD_OK, ""};
    char dir[64];

    CHECK(lora_make(test_path("tests/golden/qwen2/tiny-qwen2.gguf"), false, &(struct lora_options){.rank = 4}, dir));
    CHECK(open_ranked(&r, "tests/golden/gemma3/tiny-gemma3.gguf", 2, (struct kv_types){DTYPE_F16, DTYPE_F16}));
    CHECK_EQ(r.x->adapter_load(r.x->self, dir, &a, &err), RD_E_FORMAT);
    CHECK(strstr(err.text, "another model") != NULL);
    CHECK(!a);
    close_ranked(&r);
    lora_remove(dir);
}
