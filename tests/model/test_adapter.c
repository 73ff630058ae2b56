/* tests/model/test_adapter.c - a model with an adapter gives what the merged model gives, from both kinds of file; rows without
 * one keep their bits, and those of one do not see who shares the batch. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/random.h"
#include "hub_make.h"
#include "lora_make.h"
#include "model/adapter.h"
#include "model_rig.h"
#include "test.h"
#include "test_backend.h"

#define N       24u
#define N_VOCAB 96u

static const struct {
    const char *path;
    bool interleaves;
} models[] = {{"llama/tiny-llama.gguf", true},  {"llama/tiny-llama31.gguf", true},  {"qwen2/tiny-qwen2.gguf", false},
              {"qwen3/tiny-qwen3.gguf", false}, {"gemma2/tiny-gemma2.gguf", false}, {"gemma3/tiny-gemma3.gguf", false}};

static int32_t token(uint32_t i)
{
    return (int32_t)(i * 37 % N_VOCAB);
}

static struct adapter_mix *mix_of(struct adapter *a, float scale)
{
    struct adapter_mix *x = NULL;

    return adapter_mix_create(&(struct adapter_use){a, scale}, 1, &x, NULL) == RD_OK ? x : NULL;
}

/* Logits of N tokens in chunks of `chunk`, with a mix or none. */
static void run(struct model_rig *r, const struct adapter_mix *mix, uint32_t chunk, float *logits)
{
    for (uint32_t at = 0; at < N; at += chunk) {
        int32_t tokens[N];
        uint32_t n = N - at < chunk ? N - at : chunk;

        for (uint32_t i = 0; i < n; i++) tokens[i] = token(at + i);
        CHECK(rig_fill(r, tokens, at, n, n));
        r->batch.adapters[0] = mix;
        r->batch.n_adapted = mix != NULL;
        CHECK_EQ(model_forward(r->m, &r->kv, &r->batch, logits + (size_t)at * N_VOCAB), RD_OK);
    }
}

static double worst(const float *a, const float *b)
{
    double range = 0, most = 0;

    for (uint32_t i = 0; i < N * N_VOCAB; i++) {
        range = fmax(range, fabs((double)a[i]));
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    }
    return most / range;
}

static void open_rig(struct model_rig *r, const char *path, const char *isa)
{
    CHECK_EQ(rig_open(r, path, DTYPE_F32, 64, 64, isa, 2), RD_OK);
}

TEST(an_adapter_is_the_model_with_it_merged_in)
{
    static float base[N * N_VOCAB], want[N * N_VOCAB], got[N * N_VOCAB], other[N * N_VOCAB];

    for (size_t k = 0; k < 2 * sizeof(models) / sizeof(models[0]); k++) {
        const struct lora_options o = {.rank = 3 + (uint32_t)k,
                                       .seed = k,
                                       .by_root = k % 3 == 1,
                                       .bf16 = k % 4 >= 2,
                                       .matrices = k % 5 == 4 ? 5 : 0};
        const char *path = test_path(models[k / 2].path);
        char dir[64], file[96];
        struct model_rig r;
        struct adapter *peft = NULL, *gguf = NULL;
        struct adapter_mix *mix;

        CHECK(lora_make(path, models[k / 2].interleaves, &o, dir));
        snprintf(file, sizeof(file), "%s/merged.gguf", dir);
        open_rig(&r, file, NULL);
        run(&r, NULL, N, want);
        rig_close(&r);
        open_rig(&r, path, NULL);
        run(&r, NULL, N, base);
        CHECK_EQ(adapter_load(r.m, dir, &peft, NULL), RD_OK);
        mix = mix_of(peft, 1);
        run(&r, mix, N, got);
        test_note("%s: %.1e from the merged model's, which is %.1e from the base's", models[k / 2].path,
                  worst(want, got), worst(want, base));
        /* a GPU rounds what the merged model adds to bf16 */
        CHECK(worst(want, got) < (test_on_gpu() ? worst(want, base) / 2 : 2e-5) && worst(want, base) > 1e-2);
        run(&r, mix, 5, other);
        CHECK(memcmp(got, other, sizeof(got)) == 0);
        run(&r, mix, 1, other);
        CHECK(memcmp(got, other, sizeof(got)) == 0);
        adapter_mix_unref(mix);

        snprintf(file, sizeof(file), "%s/lora.gguf", dir);
        if (!o.by_root) {
            CHECK_EQ(adapter_load(r.m, file, &gguf, NULL), RD_OK);
            CHECK(hash128_equal(adapter_info(peft)->digest, adapter_info(gguf)->digest));
        }
        adapter_unref(gguf);
        adapter_unref(peft);
        run(&r, NULL, N, other);
        CHECK(memcmp(base, other, sizeof(base)) == 0);
        rig_close(&r);
        lora_remove(dir);
    }
}

/* Adapters that PEFT saved, and llama.cpp's converter wrote of them; logits that PEFT computed (golden/make_lora.py). */
TEST(adapters_of_peft_and_of_llamacpp_give_the_logits_of_peft)
{
    static float base[N * N_VOCAB], got[N * N_VOCAB], other[N * N_VOCAB];
    uint32_t n_gguf = 0;

    for (size_t k = 0; k < sizeof(models) / sizeof(models[0]); k++) {
        const char *name = strstr(models[k].path, "tiny-") + strlen("tiny-");
        char dir[64], file[96], *want = NULL;
        struct adapter *peft = NULL, *gguf = NULL;
        struct adapter_mix *mix;
        struct model_rig r;
        size_t n = 0;

        snprintf(dir, sizeof(dir), "tests/golden/lora/%.*s", (int)strcspn(name, "."), name);
        snprintf(file, sizeof(file), "%s/logits.ref", dir);
        CHECK_EQ(file_read_all(test_path(file), sizeof(base), &want, &n, NULL), RD_OK);
        CHECK_EQ(n, sizeof(base));
        open_rig(&r, test_path(models[k].path), NULL);
        run(&r, NULL, N, base);
        CHECK_EQ(adapter_load(r.m, test_path(dir), &peft, NULL), RD_OK);
        mix = mix_of(peft, 1);
        run(&r, mix, N, got);
        adapter_mix_unref(mix);
        test_note("%s: %.1e from PEFT's, which is %.1e from the base's", name, worst((const float *)(void *)want, got),
                  worst((const float *)(void *)want, base));
        CHECK(worst((const float *)(void *)want, got) < (test_on_gpu() ? 2e-2 : 1e-3));
        CHECK(worst((const float *)(void *)want, base) > 5e-3);
        snprintf(file, sizeof(file), "%s/adapter.gguf", dir);
        if (file_exists(test_path(file))) {
            CHECK_EQ(adapter_load(r.m, test_path(file), &gguf, NULL), RD_OK);
            mix = mix_of(gguf, 1);
            run(&r, mix, N, other);
            CHECK(memcmp(got, other, sizeof(got)) == 0);
            adapter_mix_unref(mix);
            n_gguf++;
        }
        adapter_unref(gguf);
        adapter_unref(peft);
        rig_close(&r);
        mem_free(want);
    }
    CHECK_EQ(n_gguf, 4);
}

TEST(an_adapter_of_a_gguf_file_fits_a_directory_and_the_other_way_round)
{
    static float want[N * N_VOCAB], got[N * N_VOCAB];
    const struct lora_options o = {.seed = 77};
    const struct hub_options plain = {.n_shards = 1};
    char dir[64], hub[64], file[96];
    const char *path = test_path(models[0].path);
    struct model_rig r;

    CHECK(lora_make(path, true, &o, dir) && hub_make(path, &plain, hub));
    snprintf(file, sizeof(file), "%s/lora.gguf", dir);
    for (int k = 0; k < 4; k++) {
        struct adapter *a = NULL;
        struct adapter_mix *mix;

        open_rig(&r, k < 2 ? path : hub, NULL);
        CHECK_EQ(adapter_load(r.m, k % 2 ? file : dir, &a, NULL), RD_OK);
        mix = mix_of(a, 1);
        run(&r, mix, N, k ? got : want);
        if (k) CHECK(worst(want, got) < (test_on_gpu() ? 2e-2 : 1e-5));
        adapter_mix_unref(mix);
        adapter_unref(a);
        rig_close(&r);
    }
    lora_remove(dir);
    hub_remove(hub);
}

TEST(sixteen_bits_of_the_file_stay_sixteen_bits)
{
    uint64_t bytes[2];

    if (strcmp(test_backend_ops()->name, "mlx") == 0) {
        test_skip("mlx opens them to f32");
        return;
    }
    for (int k = 0; k < 2; k++) {
        const struct lora_options o = {.seed = 5, .bf16 = k == 1};
        struct model_rig r;
        struct adapter *a = NULL;
        char dir[64];

        CHECK(lora_make(test_path(models[0].path), true, &o, dir));
        open_rig(&r, test_path(models[0].path), NULL);
        CHECK_EQ(adapter_load(r.m, dir, &a, NULL), RD_OK);
        bytes[k] = adapter_info(a)->n_bytes;
        adapter_unref(a);
        rig_close(&r);
        lora_remove(dir);
    }
    CHECK_EQ(bytes[0], 2 * bytes[1]);
}

/* Three sequences of one row each and one of many: base, a, b, and a + b. */
TEST(mixes_share_a_batch_and_do_not_see_each_other)
{
    enum { SEQS = 4, ROWS = 8 };
    static float alone[SEQS][ROWS * N_VOCAB], together[SEQS * ROWS * N_VOCAB];
    const struct lora_options o[2] = {{.seed = 5}, {.seed = 6, .rank = 9, .matrices = 0x6a}};
    static const char *const isas[] = {NULL, "ref", "avx2"};
    char dirs[2][64];
    const char *path = test_path(models[0].path);

    for (int i = 0; i < 2; i++) CHECK(lora_make(path, true, &o[i], dirs[i]));
    for (size_t isa = 0; isa < 3; isa++) {
        struct adapter *a[2] = {NULL, NULL};
        struct adapter_mix *mixes[SEQS] = {NULL};
        struct model_rig r;
        struct model_batch own, *b = &own;
        kv_page tables[SEQS][1];

        if (rig_open(&r, path, DTYPE_F32, 64, 64, isas[isa], 2) != RD_OK) continue; /* not this CPU */
        CHECK_EQ(model_batch_init(b, (struct model_batch_room){SEQS * ROWS, SEQS, SEQS * ROWS, 0}), RD_OK);
        for (int i = 0; i < 2; i++) CHECK_EQ(adapter_load(r.m, dirs[i], &a[i], NULL), RD_OK);
        mixes[1] = mix_of(a[0], 1);
        mixes[2] = mix_of(a[1], -0.5f);
        CHECK_EQ(adapter_mix_create((struct adapter_use[]){{a[1], 0.25f}, {a[0], 1}}, 2, &mixes[3], NULL), RD_OK);
        for (uint32_t pass = 0; pass <= SEQS; pass++) { /* each alone, then all */
            model_batch_clear(b);
            for (uint32_t s = 0; s < SEQS; s++) {
                if (pass < SEQS && s != pass) continue;
                tables[s][0] = s;
                model_batch_begin_run(b, 0, tables[s], mixes[s]);
                for (uint32_t i = 0; i < ROWS; i++)
                    model_batch_want_logits(b, model_batch_add_row(b, token(i), r.kv.layout.page_tokens), NULL);
            }
            CHECK_EQ(model_forward(r.m, &r.kv, b, pass < SEQS ? alone[pass] : together), RD_OK);
        }
        for (uint32_t s = 0; s < SEQS; s++) {
            CHECK(memcmp(alone[s], together + s * ROWS * N_VOCAB, sizeof(alone[s])) == 0);
            for (uint32_t t = 0; t < s; t++) CHECK(memcmp(alone[s], alone[t], sizeof(alone[s])) != 0);
        }
        model_batch_deinit(b);
        for (int i = 0; i < SEQS; i++) adapter_mix_unref(mixes[i]);
        for (int i = 0; i < 2; i++) adapter_unref(a[i]);
        rig_close(&r);
    }
    for (int i = 0; i < 2; i++) lora_remove(dirs[i]);
}

TEST(a_mix_is_known_by_its_numbers)
{
    const struct lora_options o[2] = {{.seed = 5}, {.seed = 6}};
    char dirs[2][64];
    const char *path = test_path(models[0].path);
    struct adapter *a[2], *again;
    struct adapter_mix *x, *y, *none;
    struct model_rig r;
    struct rd_error err;

    for (int i = 0; i < 2; i++) CHECK(lora_make(path, true, &o[i], dirs[i]));
    open_rig(&r, path, NULL);
    for (int i = 0; i < 2; i++) CHECK_EQ(adapter_load(r.m, dirs[i], &a[i], NULL), RD_OK);
    CHECK_EQ(adapter_load(r.m, dirs[0], &again, NULL), RD_OK);
    CHECK(hash128_equal(adapter_info(a[0])->digest, adapter_info(again)->digest));
    CHECK(!hash128_equal(adapter_info(a[0])->digest, adapter_info(a[1])->digest));
    CHECK_EQ(adapter_mix_create((struct adapter_use[]){{a[0], 1}, {a[1], 2}}, 2, &x, NULL), RD_OK);
    CHECK_EQ(adapter_mix_create((struct adapter_use[]){{a[1], 2}, {again, 1}}, 2, &y, NULL), RD_OK);
    CHECK(hash128_equal(adapter_mix_id(x), adapter_mix_id(y)));
    adapter_mix_unref(y);
    y = mix_of(a[0], 1);
    CHECK(!hash128_equal(adapter_mix_id(x), adapter_mix_id(y)));
    CHECK_EQ(adapter_mix_create((struct adapter_use[]){{a[0], 0}}, 1, &none, NULL), RD_OK);
    CHECK(none == NULL);
    CHECK_EQ(adapter_mix_create((struct adapter_use[]){{a[0], NAN}}, 1, &none, &err), RD_E_INVALID);
    adapter_mix_unref(x);
    adapter_mix_unref(y);
    adapter_unref(again);
    for (int i = 0; i < 2; i++) adapter_unref(a[i]);
    rig_close(&r);
    for (int i = 0; i < 2; i++) lora_remove(dirs[i]);
}

/* What would give wrong answers silently is refused, and named. */
TEST(what_is_not_computed_is_refused_by_name)
{
    static const struct {
        const char *extra, *says;
        rd_status st;
    } cases[] = {
        {", \"use_dora\": true", "use_dora", RD_E_UNSUPPORTED},
        {", \"modules_to_save\": [\"lm_head\"]", "modules_to_save", RD_E_UNSUPPORTED},
        {", \"bias\": \"all\"", "bias", RD_E_UNSUPPORTED},
        {", \"peft_type\": \"IA3\"", "peft_type IA3", RD_E_UNSUPPORTED},
        {", \"lora_alpha\": \"8\"", "lora_alpha", RD_E_FORMAT},
        {", \"alpha_pattern\": {\"q.*\": 3}", "alpha_pattern", RD_E_UNSUPPORTED},
        {", \"fan_in_fan_out\": true", "fan_in_fan_out", RD_E_UNSUPPORTED},
    };
    struct adapter *a;
    struct model_rig r;
    struct rd_error err;
    char dir[64];

    open_rig(&r, test_path(models[0].path), NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK(lora_make(test_path(models[0].path), true, &(struct lora_options){.extra = cases[i].extra}, dir));
        CHECK_EQ(adapter_load(r.m, dir, &a, &err), cases[i].st);
        CHECK(strstr(err.text, cases[i].says) && !a);
        lora_remove(dir);
    }
    CHECK(lora_make(test_path(models[5].path), false, &(struct lora_options){0}, dir)); /* Gemma's */
    CHECK_EQ(adapter_load(r.m, dir, &a, &err), RD_E_FORMAT);
    test_note("%s", err.text);
    CHECK(strstr(err.text, "another model's"));
    CHECK_EQ(adapter_load(r.m, "/nowhere", &a, &err), RD_E_NOT_FOUND);
    lora_remove(dir);
    rig_close(&r);
}

/* Files changed at random: refused or taken, never more than that. */
TEST(mutated_files_are_harmless)
{
    const char *path = test_path(models[0].path);
    static const char *const names[] = {"lora.gguf", "adapter_model.safetensors", "adapter_config.json"};
    uint32_t n_taken = 0, n_tries = 0;
    struct random random;
    struct model_rig r;
    char dir[64];

    random_init(&random, test_seed());
    CHECK(lora_make(path, true, &(struct lora_options){.rank = 2}, dir));
    open_rig(&r, path, NULL);
    for (size_t k = 0; k < 3; k++) {
        char file[96], *bytes = NULL;
        size_t n = 0;

        snprintf(file, sizeof(file), "%s/%s", dir, names[k]);
        CHECK_EQ(file_read_all(file, 1 << 20, &bytes, &n, NULL), RD_OK);
        for (int i = 0; i < 200; i++) {
            size_t head = random_below(&random, 2) ? n
                          : n < 3000               ? n
                                                   : 3000,
                   cut = random_below(&random, 8) ? n : random_below(&random, n);
            struct adapter *a = NULL;
            char *changed = mem_memdup(bytes, n);

            for (uint64_t c = 1 + random_below(&random, 4); c > 0; c--)
                changed[random_below(&random, head)] = (char)random_u64(&random);
            CHECK_EQ(file_write_all(file, changed, cut, NULL), RD_OK);
            n_taken += adapter_load(r.m, k ? dir : file, &a, NULL) == RD_OK;
            n_tries++;
            adapter_unref(a);
            mem_free(changed);
        }
        CHECK_EQ(file_write_all(file, bytes, n, NULL), RD_OK);
        mem_free(bytes);
    }
    test_note("%u of %u changed files were still adapters", n_taken, n_tries);
    rig_close(&r);
    lora_remove(dir);
}

/* Each allocation of loading and mixing fails once: an error, or what it is without; nothing stays (the sanitizer looks). */
TEST(any_allocation_of_loading_may_fail)
{
    uint32_t n_failed = 0;
    struct model_rig r;
    char dir[64], file[96];

    CHECK(lora_make(test_path(models[0].path), true, &(struct lora_options){.rank = 2}, dir));
    snprintf(file, sizeof(file), "%s/lora.gguf", dir);
    open_rig(&r, test_path(models[0].path), NULL);
    for (int k = 0; k < 2; k++) {
        struct hash128 whole = {0, 0};
        bool done = false;

        for (int64_t i = -1; !done && i < 5000; i++) {
            struct adapter *a = NULL;
            struct adapter_mix *x = NULL;
            rd_status st;

            if (i >= 0) mem_fail_after(i);
            st = adapter_load(r.m, k ? file : dir, &a, NULL);
            if (st == RD_OK) st = adapter_mix_create(&(struct adapter_use){a, 1}, 1, &x, NULL);
            done = i >= 0 && st == RD_OK;
            mem_fail_after(-1);
            if (i < 0) whole = adapter_mix_id(x);
            CHECK(st == RD_OK ? hash128_equal(adapter_mix_id(x), whole) : st == RD_E_NOMEM && !x);
            n_failed += st != RD_OK;
            adapter_mix_unref(x);
            adapter_unref(a);
        }
        CHECK(done);
    }
    test_note("%u allocations failed", n_failed);
    rig_close(&r);
    lora_remove(dir);
}
