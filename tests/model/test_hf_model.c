/* tests/model/test_hf_model.c - models as directories of the hub: the logits of the same weights as a GGUF file, which
 * tests/model/test_golden.c holds to transformers'; what is wrong in a directory is refused by name. */
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/model_file.h"
#include "hub_make.h"
#include "model/vocab.h"
#include "model_rig.h"
#include "test.h"
#include "test_backend.h"

#define N_TOKENS 40u
#define N_VOCAB  96u

static const char *const models[] = {
    "llama/tiny-llama", "llama/tiny-llama31",    "qwen2/tiny-qwen2",   "qwen2/tiny-qwen2-yarn",
    "qwen3/tiny-qwen3", "qwen3/tiny-qwen3-tied", "gemma2/tiny-gemma2", "gemma3/tiny-gemma3",
};

static const char *golden(const char *model)
{
    char name[128];

    snprintf(name, sizeof(name), "%s.gguf", model);
    return test_path(name);
}

static bool run(const char *path, float *logits)
{
    struct model_rig r;
    int32_t tokens[N_TOKENS];
    bool ok;

    for (uint32_t i = 0; i < N_TOKENS; i++) tokens[i] = (int32_t)(i * 37 % N_VOCAB);
    if (rig_open(&r, path, DTYPE_F32, 64, 64, NULL, 2) != RD_OK) return false;
    ok = rig_step(&r, tokens, 0, N_TOKENS, N_TOKENS, logits) == RD_OK;
    rig_close(&r);
    return ok;
}

TEST(a_directory_gives_the_logits_of_the_gguf_file_with_the_same_weights)
{
    static float want[N_TOKENS * N_VOCAB], got[N_TOKENS * N_VOCAB];
    const struct hub_options ways[] = {{.n_shards = 1}, {.n_shards = 3, .old_rope = true}};

    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        CHECK(run(golden(models[i]), want));
        for (size_t w = 0; w < 2; w++) {
            double worst = 0;
            char dir[64];

            CHECK(hub_make(golden(models[i]), &ways[w], dir));
            CHECK(run(dir, got));
            for (size_t k = 0; k < N_TOKENS * N_VOCAB; k++) worst = fmax(worst, fabs((double)got[k] - (double)want[k]));
            test_note("%s, %u shards: largest difference %.2e", models[i], ways[w].n_shards, worst);
            if (!strncmp(models[i], "llama", 5)) /* sums of q k^T in another order; bf16 activations on a GPU */
                CHECK(worst < (test_on_gpu() ? 0.1 : 1e-4));
            else
                CHECK(!memcmp(got, want, sizeof(want)));
            hub_remove(dir);
        }
    }
}

TEST(weights_tell_what_a_config_and_a_missing_index_do_not)
{
    static float want[N_TOKENS * N_VOCAB], got[N_TOKENS * N_VOCAB];
    const struct hub_options whole = {.n_shards = 3},
                             silent = {.n_shards = 3, .config_extra = ", \"model_type\": null, \"head_dim\": null"};

    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        char dir[64], path[128];

        CHECK(hub_make(golden(models[i]), &whole, dir));
        CHECK(run(dir, want));
        hub_remove(dir);
        CHECK(hub_make(golden(models[i]), &silent, dir));
        snprintf(path, sizeof(path), "%s/model.safetensors.index.json", dir);
        CHECK(unlink(path) == 0);
        CHECK(run(dir, got));
        test_note("%s", models[i]);
        CHECK(!memcmp(got, want, sizeof(want)));
        hub_remove(dir);
    }
}

TEST(mlx_groups_give_the_logits_of_what_they_stand_for)
{
    static float want[N_TOKENS * N_VOCAB], got[N_TOKENS * N_VOCAB];
    static const char *const of_32[] = {"llama/tiny-llama", "qwen2/tiny-qwen2-yarn"}; /* the second one is tied */

    for (size_t i = 0; i < 2; i++)
        for (uint32_t bits = 2; bits <= 8; bits += bits < 6 ? 1 : 2) {
            const struct hub_options packed = {.n_shards = 2, .mlx_bits = bits};
            const struct hub_options opened = {.n_shards = 1, .mlx_bits = bits, .mlx_opened = true};
            double worst = 0, top = 0;
            char dir[2][64];

            CHECK(hub_make(golden(of_32[i]), &packed, dir[0]) && hub_make(golden(of_32[i]), &opened, dir[1]));
            CHECK(run(dir[0], got) && run(dir[1], want));
            for (size_t k = 0; k < N_TOKENS * N_VOCAB; k++) {
                worst = fmax(worst, fabs((double)got[k] - (double)want[k]));
                top = fmax(top, fabs((double)want[k]));
            }
            test_note("%s, %u bits: largest difference %.2e of %.2f", of_32[i], bits, worst, top);
            /* weights rounded to f16; activations to 8 bits, on a GPU to bf16 */
            CHECK(worst <= (bits > 5 && !test_on_gpu() ? 1e-2 : 0.1) * top);
            hub_remove(dir[0]);
            hub_remove(dir[1]);
        }
}

TEST(eight_bit_floats_give_the_logits_of_what_they_stand_for)
{
    static float want[N_TOKENS * N_VOCAB], got[N_TOKENS * N_VOCAB];
    static const char *const some[] = {"llama/tiny-llama", "qwen3/tiny-qwen3", "gemma3/tiny-gemma3"};

    for (size_t i = 0; i < 3; i++)
        for (enum hub_fp8 fp8 = HUB_FP8_BLOCKS; fp8 <= HUB_FP8_ONE; fp8++) {
            const struct hub_options packed = {.n_shards = 2, .fp8 = fp8};
            const struct hub_options opened = {.n_shards = 1, .fp8 = fp8, .fp8_opened = true};
            char dir[2][64];

            CHECK(hub_make(golden(some[i]), &packed, dir[0]) && hub_make(golden(some[i]), &opened, dir[1]));
            CHECK(run(dir[0], got) && run(dir[1], want));
            CHECK(!memcmp(got, want, sizeof(want)));
            hub_remove(dir[0]);
            hub_remove(dir[1]);
        }
}

TEST(a_directory_that_transformers_made_of_8_bit_floats_gives_its_logits)
{
    static float got[N_TOKENS * N_VOCAB], want[N_TOKENS * N_VOCAB];
    int32_t tokens[N_TOKENS];
    uint32_t head[2];
    double worst = 0, top = 0;
    struct model_rig r;
    char *ref = NULL;
    size_t n;

    CHECK_OK(file_read_all(test_path("fp8/tiny-qwen3-fp8.ref"), 1 << 20, &ref, &n, NULL));
    CHECK_EQ(n, sizeof(head) + sizeof(tokens) + sizeof(want));
    memcpy(head, ref, sizeof(head));
    memcpy(tokens, ref + sizeof(head), sizeof(tokens));
    memcpy(want, ref + sizeof(head) + sizeof(tokens), sizeof(want));
    mem_free(ref);
    CHECK(head[0] == N_TOKENS && head[1] == N_VOCAB);
    CHECK_OK(rig_open(&r, test_path("fp8/tiny-qwen3-fp8"), DTYPE_F32, 64, 64, NULL, 2));
    CHECK_OK(rig_step(&r, tokens, 0, N_TOKENS, N_TOKENS, got));
    rig_close(&r);
    for (size_t i = 0; i < N_TOKENS * N_VOCAB; i++) {
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
        top = fmax(top, fabs((double)want[i]));
    }
    test_note("largest difference %.2e of %.2f", worst, top);
    CHECK(worst <= (test_on_gpu() ? 3e-2 : 1e-5) * top); /* a GPU rounds what matrices read to bf16 */
}

/* What opening and loading say. */
static rd_status refusal(const char *dir, struct rd_error *err)
{
    const struct backend_options options = {.n_threads = 1, .isa = "ref"};
    struct backend *be = NULL;
    struct model *m = NULL;
    struct model_file *g = NULL;
    rd_status st = backend_cpu_ops.life.create(&options, &be, err);

    *err = (struct rd_error){RD_OK, ""};
    if (st == RD_OK) st = model_file_open(dir, model_hub_families(), &g, err);
    if (st == RD_OK) st = model_load(g, &backend_cpu_ops, be, 8, 8, NULL, &m, err);
    model_destroy(m);
    backend_cpu_ops.life.destroy(be);
    model_file_close(g);
    return st;
}

/* A directory made so opens (said NULL), or is refused with these words. */
static bool opens_or_says(const struct hub_options *o, const char *said)
{
    struct rd_error err;
    char dir[64];
    rd_status st;

    if (!hub_make(golden("llama/tiny-llama"), o, dir)) return false;
    st = refusal(dir, &err);
    hub_remove(dir);
    test_note("%s", err.text);
    return said ? st != RD_OK && strstr(err.text, said) : st == RD_OK;
}

TEST(what_the_config_says_of_one_matrixs_groups_goes_before_what_it_says_of_all)
{
    static const struct {
        const char *extra, *said;
    } rows[] = {
        {", \"quantization\": {\"group_size\": 32, \"bits\": 4, \"model.layers.1.mlp.up_proj\": {\"group_size\": 64}}",
         "model.layers.1.mlp.up_proj: rows of 8 words; 2 groups of 64 weights of 4 bits make 16"},
        {", \"quantization\": {\"group_size\": 32, \"bits\": 4, \"model.layers.0.mlp.up_proj\": {\"bits\": 8}}",
         "model.layers.0.mlp.up_proj: rows of 8 words"},
        {", \"quantization\": {\"group_size\": 32, \"bits\": 5}", "rows of"},
        {", \"quantization\": {\"group_size\": 32}", "no \"bits\" and \"group_size\""},
        {", \"quantization\": {\"group_size\": 32, \"bits\": 4, \"mode\": \"mxfp4\"}", "\"mxfp4\""},
        {", \"quantization\": {\"group_size\": 32, \"bits\": 4, \"model.layers.0.mlp.up_proj\": {\"bits\": 4}}", NULL},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct hub_options o = {.n_shards = 2, .mlx_bits = 4, .config_extra = rows[i].extra};

        CHECK(opens_or_says(&o, rows[i].said));
    }
}

#define COMPRESSED(rest) ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\"" rest "}"

TEST(an_fp8_directory_that_says_what_is_not_known_is_refused_by_name)
{
    static const struct {
        const char *extra, *said;
    } rows[] = {
        {", \"quantization_config\": {\"quant_method\": \"fp8\"}", NULL},
        {", \"quantization_config\": {\"quant_method\": \"fbgemm_fp8\"}", NULL},
        {", \"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\"}", NULL},
        {", \"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}", "\"NVFP4\""},
        {", \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"}", "\"e5m2\""},
        {", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [0, 128]}",
         "weight_block_size"},
        {", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": 128}", "weight_block_size"},
        {"", "type F8_E4M3"},
        {COMPRESSED(""), "config_groups"},
        {COMPRESSED(", \"format\": \"pack-quantized\""), "\"pack-quantized\""},
        {COMPRESSED(", \"sparsity_config\": {\"format\": \"sparse-24-bitmask\"}"), "\"sparse-24-bitmask\""},
        {COMPRESSED(", \"config_groups\": {\"a\": {\"weights\": {\"type\": \"int\", \"num_bits\": 8}}}"), "\"int\""},
        {COMPRESSED(", \"config_groups\": {\"a\": {\"weights\": {\"type\": \"float\", \"num_bits\": 4}}}"), "num_bits"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct hub_options o = {.fp8 = HUB_FP8_ROWS, .fp8_unsaid = true, .config_extra = rows[i].extra};

        CHECK(opens_or_says(&o, rows[i].said));
    }
}

TEST(a_text_model_with_a_vision_part_beside_it_is_the_text_model)
{
    static float want[N_TOKENS * N_VOCAB], got[N_TOKENS * N_VOCAB];
    const struct hub_options o = {.n_shards = 2, .in_text_config = true};
    char dir[64];

    CHECK(run(golden("gemma3/tiny-gemma3"), want));
    CHECK(hub_make(golden("gemma3/tiny-gemma3"), &o, dir));
    CHECK(run(dir, got));
    CHECK(!memcmp(got, want, sizeof(want)));
    hub_remove(dir);
}

TEST(a_directorys_tokenizer_has_the_models_size_and_all_its_ends)
{
    const struct hub_options o = {.n_shards = 1};
    struct rd_error err = {RD_OK, ""};
    struct tokenizer *t = NULL;
    struct model_str template;
    struct model_file *g = NULL;
    char dir[64];

    CHECK(hub_make(golden("qwen3/tiny-qwen3"), &o, dir));
    CHECK_OK(model_file_open(dir, model_hub_families(), &g, &err));
    CHECK_OK(vocab_load(g, NULL, &t, &err));
    CHECK_EQ(tokenizer_n_tokens(t), N_VOCAB);
    CHECK_EQ(tokenizer_eos(t), 95);
    CHECK(tokenizer_is_end(t, 95) && tokenizer_is_end(t, 7) && !tokenizer_is_end(t, 8));
    CHECK_OK(vocab_chat_template(g, &template));
    CHECK_EQ(template.n, strlen("{{ messages[0]['content'] }}"));
    tokenizer_destroy(t);
    model_file_close(g);
    CHECK(hub_write(dir, "chat_template.jinja", "own file", 8));
    CHECK_OK(model_file_open(dir, model_hub_families(), &g, &err));
    CHECK_OK(vocab_chat_template(g, &template));
    CHECK(template.n == 8 && !memcmp(template.s, "own file", 8));
    model_file_close(g);
    hub_remove(dir);
}

TEST(what_a_config_says_wrongly_is_refused_by_name)
{
    static const struct {
        const char *model, *extra, *said;
        rd_status st;
    } rows[] = {
        {"llama/tiny-llama", ", \"model_type\": \"mamba\"", "\"mamba\", which is not supported", RD_E_UNSUPPORTED},
        {"llama/tiny-llama", ", \"hidden_size\": \"64\"", "\"hidden_size\" is \"64\"", RD_E_FORMAT},
        {"llama/tiny-llama", ", \"hidden_size\": 72", "shape [64,96], expected [72,96]", RD_E_FORMAT},
        {"llama/tiny-llama", ", \"num_hidden_layers\": 4", "blk.3.attn_norm.weight): tensor is missing", RD_E_FORMAT},
        {"llama/tiny-llama", ", \"num_hidden_layers\": 2", "not a part of llama with 2 layers", RD_E_UNSUPPORTED},
        {"llama/tiny-llama", ", \"num_hidden_layers\": null", "\"num_hidden_layers\" is missing", RD_E_FORMAT},
        {"llama/tiny-llama", ", \"hidden_act\": \"relu\"", "\"hidden_act\" is \"relu\", expected silu",
         RD_E_UNSUPPORTED},
        {"llama/tiny-llama", ", \"rope_parameters\": {\"rope_type\": \"longrope\"}", "\"longrope\" is not supported",
         RD_E_UNSUPPORTED},
        {"llama/tiny-llama", ", \"quantization_config\": {\"quant_method\": \"gptq\"}", "\"gptq\"", RD_E_UNSUPPORTED},
        {"llama/tiny-llama", ", \"vocab_size\": 97", "96 rows, but config.json says \"vocab_size\": 97", RD_E_FORMAT},
        {"qwen3/tiny-qwen3-tied", ", \"tie_word_embeddings\": false", "\"lm_head.weight\" is missing", RD_E_FORMAT},
        {"gemma3/tiny-gemma3", ", \"layer_types\": [\"full_attention\"]", "1 entries, the model 7 layers", RD_E_FORMAT},
        {"gemma3/tiny-gemma3", ", \"use_bidirectional_attention\": true", "not supported", RD_E_UNSUPPORTED},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct hub_options o = {.n_shards = 2, .config_extra = rows[i].extra};
        struct rd_error err;
        char dir[64];

        CHECK(hub_make(golden(rows[i].model), &o, dir));
        CHECK_EQ(refusal(dir, &err), rows[i].st);
        test_note("%s", err.text);
        CHECK(strstr(err.text, rows[i].said));
        hub_remove(dir);
    }
}

TEST(a_file_that_is_missing_short_or_elsewhere_is_refused_by_name)
{
    static const char second[] = "model-00002-of-00002.safetensors";
    const struct hub_options o = {.n_shards = 2};
    struct rd_error err;
    char dir[64], path[256], *bytes = NULL;
    size_t n;

    CHECK(hub_make(golden("qwen2/tiny-qwen2"), &o, dir));
    snprintf(path, sizeof(path), "%s/%s", dir, second);
    CHECK_OK(file_read_all(path, 1 << 20, &bytes, &n, NULL));
    unlink(path);
    CHECK_EQ(refusal(dir, &err), RD_E_NOT_FOUND);
    CHECK(strstr(err.text, second));
    for (size_t cut = 0; cut < n; cut += cut < 32 ? 1 : 1 + cut / 3) {
        CHECK(hub_write(dir, second, bytes, cut));
        CHECK_EQ(refusal(dir, &err), RD_E_FORMAT);
        CHECK(strstr(err.text, second));
    }
    CHECK(hub_write(dir, second, "\x02\0\0\0\0\0\0\0{}", 10)); /* a shard without the tensors that it should have */
    CHECK_EQ(refusal(dir, &err), RD_E_FORMAT);
    CHECK(strstr(err.text, "is missing, which model.safetensors.index.json says is there"));
    CHECK(hub_write(dir, second, bytes, n));
    CHECK_OK(refusal(dir, &err));
    CHECK(hub_write(dir, "model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../x\"}}", 29));
    CHECK_EQ(refusal(dir, &err), RD_E_FORMAT);
    CHECK(strstr(err.text, "\"a\" is not in a file of this directory"));
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", dir);
    unlink(path);
    CHECK_OK(refusal(dir, &err)); /* the names of the two say that they are all */
    CHECK(hub_write(dir, "model-00001-of-00003.safetensors", bytes, n));
    CHECK_EQ(refusal(dir, &err), RD_E_FORMAT);
    CHECK(strstr(err.text, "files of two models"));
    snprintf(path, sizeof(path), "%s/model-00001-of-00003.safetensors", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/%s", dir, second);
    unlink(path);
    CHECK_EQ(refusal(dir, &err), RD_E_NOT_FOUND);
    CHECK(strstr(err.text, second));
    snprintf(path, sizeof(path), "%s/model-00001-of-00002.safetensors", dir);
    unlink(path);
    CHECK_EQ(refusal(dir, &err), RD_E_NOT_FOUND);
    CHECK(strstr(err.text, "neither"));
    snprintf(path, sizeof(path), "%s/config.json", dir);
    unlink(path);
    CHECK_EQ(refusal(dir, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "without a config.json"));
    mem_free(bytes);
    hub_remove(dir);
}

TEST(a_shard_cut_while_it_is_open_is_noticed)
{
    const struct hub_options o = {.n_shards = 1};
    struct rd_error err = {RD_OK, ""};
    struct model_file *g = NULL;
    char dir[64], path[128];

    CHECK(hub_make(golden("qwen2/tiny-qwen2"), &o, dir));
    CHECK_OK(model_file_open(dir, model_hub_families(), &g, &err));
    CHECK(model_file_unchanged(g));
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    CHECK_EQ(truncate(path, 4096), 0);
    CHECK(!model_file_unchanged(g));
    model_file_close(g);
    hub_remove(dir);
}

static void cut_shard(void *user, double fraction)
{
    (void)fraction;
    if (truncate(user, 4096) != 0) abort();
}

TEST(a_shard_cut_while_its_model_is_loaded_fails_that)
{
    const struct hub_options o = {.n_shards = 1};
    const struct backend_options one = {.n_threads = 1};
    const struct backend_ops *ops = test_backend_ops();
    struct rd_error err = {RD_OK, ""};
    struct backend *be = NULL;
    struct model *m = NULL;
    struct model_file *g = NULL;
    char dir[64], path[128];
    struct model_progress cut = {cut_shard, path, NULL};

    CHECK(hub_make(golden("qwen3/tiny-qwen3-tied"), &o, dir));
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    CHECK_OK(model_file_open(dir, model_hub_families(), &g, &err));
    CHECK_OK(ops->life.create(&one, &be, &err));
    CHECK_EQ(model_load(g, ops, be, 4, 4, &cut, &m, &err), RD_E_IO);
    CHECK(model_file_broken(g) && m == NULL);
    CHECK(strstr(err.text, "changed while it was being loaded"));
    ops->life.destroy(be);
    model_file_close(g);
    hub_remove(dir);
}

TEST(a_shard_cut_while_its_model_runs_fails_the_pass_and_nothing_else)
{
    const struct hub_options o = {.n_shards = 2};
    static float logits[N_VOCAB];
    const int32_t token = 1;
    char dir[64], path[128];
    struct model_rig r;

    CHECK(hub_make(golden("qwen3/tiny-qwen3-tied"), &o, dir));
    CHECK_OK(rig_open(&r, dir, DTYPE_F16, 16, 16, NULL, 1));
    CHECK_OK(rig_step(&r, &token, 0, 1, 1, logits));
    for (uint32_t i = 1; i <= 2; i++) {
        snprintf(path, sizeof(path), "%s/model-%05u-of-00002.safetensors", dir, i);
        CHECK_EQ(truncate(path, 0), 0);
    }
    /* On a CPU the embedding's rows are read from the file; a GPU has a copy of all weights. */
    CHECK_EQ(rig_step(&r, &token, 1, 1, 1, logits), test_on_gpu() ? RD_OK : RD_E_DEVICE);
    CHECK(model_file_broken(r.g) == !test_on_gpu());
    rig_close(&r);
    hub_remove(dir);
}

static void *json_alloc(size_t n)
{
    return mem_alloc(n, 1);
}

TEST(memory_that_runs_out_while_a_directory_opens_leaves_nothing)
{
    const struct hub_options o = {.n_shards = 2};
    struct rd_error err;
    char dir[64];

    CHECK(hub_make(golden("qwen3/tiny-qwen3-tied"), &o, dir));
    uint64_t alive = mem_n_alive();
    json_set_alloc_funcs(json_alloc, mem_free);
    for (int64_t i = 0;; i++) {
        struct model_file *g = NULL;
        rd_status st;

        mem_fail_after(i);
        st = model_file_open(dir, model_hub_families(), &g, &err);
        mem_fail_after(-1);
        if (st == RD_OK) {
            model_file_close(g);
            break;
        }
        /* jansson may take what it could not keep for an error in the text, or leave it out */
        CHECK(st == RD_E_NOMEM || (st == RD_E_FORMAT && strstr(err.text, ".json: ")));
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK_EQ(mem_n_alive(), alive);
    hub_remove(dir);
}
