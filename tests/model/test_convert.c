/* tests/model/test_convert.c - a directory of the hub written as a GGUF file is what converting the GGUF file with the
 * same weights gives: tensor by tensor, config and tokens; whatever fails, no half file stays behind. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "format/gguf/gguf.h"
#include "gguf_edit.h"
#include "hub_make.h"
#include "model/model_convert.h"
#include "model/vocab.h"
#include "test.h"

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

static rd_status convert(const char *from, const char *to, enum convert_type type, struct rd_error *err)
{
    const struct convert_options o = {.type = type, .n_threads = 2};
    struct model_file *g = NULL;
    rd_status st = model_file_open(from, model_hub_families(), &g, err);

    if (st == RD_OK) st = model_convert(g, to, &o, err);
    model_file_close(g);
    return st;
}

static void check_same_tensors(const struct model_file *a, const struct model_file *b)
{
    CHECK_EQ(model_file_n_tensors(a), model_file_n_tensors(b));
    for (uint64_t i = 0; i < model_file_n_tensors(a); i++) {
        const struct model_tensor *t = model_file_tensor(a, i), *u;
        char name[128];

        snprintf(name, sizeof(name), "%.*s", (int)t->name.n, t->name.s);
        u = model_file_find_tensor(b, name);
        CHECK(u && u->dtype == t->dtype && u->n_bytes == t->n_bytes && !memcmp(u->dims, t->dims, sizeof(t->dims)));
        if (strcmp(name, "rope_freqs.weight") != 0) {
            CHECK(!memcmp(u->data, t->data, t->n_bytes));
            continue;
        }
        for (uint64_t k = 0; k < t->dims[0]; k++) { /* the script's own arithmetic */
            float x, y;

            memcpy(&x, t->data + 4 * k, 4);
            memcpy(&y, u->data + 4 * k, 4);
            CHECK(fabsf(x - y) <= 1e-6f * x);
        }
    }
}

static void check_same_tokens(const struct model_file *dir, const struct model_file *file)
{
    static const char text[] = "the thin  path, don't <|end|> 12\n th";
    struct tokenizer *a = NULL, *b = NULL;
    int32_t *x = NULL, *y = NULL;
    uint32_t n, m;

    CHECK_OK(vocab_load(dir, NULL, &a, NULL));
    CHECK_OK(vocab_load(file, NULL, &b, NULL));
    CHECK_EQ(tokenizer_n_tokens(a), tokenizer_n_tokens(b));
    CHECK_EQ(tokenizer_eos(a), tokenizer_eos(b));
    CHECK(tokenizer_is_end(b, 7)); /* generation_config's */
    CHECK_OK(tokenizer_encode(a, text, sizeof(text) - 1, true, true, &x, &n, NULL));
    CHECK_OK(tokenizer_encode(b, text, sizeof(text) - 1, true, true, &y, &m, NULL));
    CHECK(n == m && !memcmp(x, y, n * sizeof(*x)));
    mem_free(x);
    mem_free(y);
    tokenizer_destroy(a);
    tokenizer_destroy(b);
}

TEST(a_directory_and_the_gguf_file_convert_to_the_same_weights_config_and_tokens)
{
    const struct hub_options o = {.n_shards = 2};

    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        for (enum convert_type type = 0; type < CONVERT_N_TYPES; type++) {
            struct model_file *a = NULL, *b = NULL, *source = NULL;
            struct rd_error err = {RD_OK, ""};
            struct model_config x, y;
            char dir[64], out[2][128];

            CHECK(hub_make(golden(models[i]), &o, dir));
            for (int k = 0; k < 2; k++) snprintf(out[k], sizeof(out[k]), "%s/out-%d.gguf", dir, k);
            CHECK_OK(convert(dir, out[0], type, &err));
            CHECK_OK(convert(golden(models[i]), out[1], type, &err));
            CHECK_OK(gguf_open(out[0], &a, &err));
            CHECK_OK(gguf_open(out[1], &b, &err));
            check_same_tensors(b, a);
            CHECK_OK(model_read_config(a, &x, &err));
            CHECK_OK(model_read_config(b, &y, &err));
            CHECK(x.rope_layout == y.rope_layout && x.n_ctx_train == y.n_ctx_train && x.rope_base == y.rope_base);
            CHECK(x.yarn_factor == y.yarn_factor && x.yarn_n_ctx_orig == y.yarn_n_ctx_orig && x.window == y.window);
            CHECK(x.attn_scale == y.attn_scale && x.attn_softcap == y.attn_softcap && x.tied_head == y.tied_head);
            CHECK(!strcmp(x.arch, y.arch) && x.rope_llama3_factor == 0 && x.norm_eps == y.norm_eps);
            CHECK_OK(model_file_open(dir, model_hub_families(), &source, &err));
            check_same_tokens(source, a);
            model_file_close(source);
            model_file_close(a);
            model_file_close(b);
            hub_remove(dir);
        }
}

static uint32_t n_files(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    uint32_t n = 0;

    while (d && (e = readdir(d))) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

TEST(whatever_fails_no_half_file_stays_and_the_old_one_is_as_it_was)
{
    const struct hub_options o = {.n_shards = 1};
    struct rd_error err;
    char dir[64], out[128], *bytes = NULL;
    uint32_t before;
    size_t n;

    CHECK(hub_make(golden("qwen3/tiny-qwen3-tied"), &o, dir));
    snprintf(out, sizeof(out), "%s/out.gguf", dir);
    CHECK(hub_write(dir, "out.gguf", "old", 3));
    before = n_files(dir);
    uint64_t alive = mem_n_alive();
    for (int64_t i = 0;; i += 1 + i / 32) {
        rd_status st;

        err = (struct rd_error){RD_OK, ""};
        mem_fail_after(i);
        st = convert(dir, out, CONVERT_Q8_0, &err);
        mem_fail_after(-1);
        CHECK_EQ(mem_n_alive(), alive);
        CHECK_EQ(n_files(dir), before);
        if (st == RD_OK) break;
        CHECK(err.text[0]);
        CHECK_OK(file_read_all(out, 16, &bytes, &n, NULL));
        CHECK(n == 3 && !memcmp(bytes, "old", 3));
        mem_free(bytes);
    }
    CHECK(hub_write(dir, "out.gguf", "old", 3));
    for (int64_t i = 0;; i++) {
        rd_status st;

        err = (struct rd_error){RD_OK, ""};
        file_fail_after(i);
        st = convert(dir, out, CONVERT_F16, &err);
        file_fail_after(-1);
        CHECK_EQ(n_files(dir), before);
        if (st == RD_OK) break;
        CHECK(err.text[0]);
    }
    CHECK_EQ(mem_n_alive(), alive);
    CHECK_EQ(convert(dir, "/nowhere/at/all.gguf", CONVERT_F16, &err), RD_E_NOT_FOUND);
    CHECK_EQ(convert(dir, dir, CONVERT_F16, &err), RD_E_INVALID);
    hub_remove(dir);
}

/* A part's metadata, with the count of a merged file so that one file is whole. */
TEST(what_is_written_says_of_no_parts)
{
    const struct gguf_edit edits[] = {{EDIT_SET_U32, "split.no", 0, 0, NULL, {0}},
                                      {EDIT_SET_U32, "split.count", 0, 0, NULL, {0}},
                                      {EDIT_SET_U32, "split.tensors.count", 30, 0, NULL, {0}}};
    const struct convert_options o = {.type = CONVERT_F16, .n_threads = 1};
    struct model_file *g = NULL, *source = NULL;
    struct rd_error err = {RD_OK, ""};
    struct buf bytes = {0};
    char path[300];

    snprintf(path, sizeof(path), "%s/convert_parts_%ld.gguf", RADISH_BUILD_DIR, (long)getpid());
    CHECK_OK(gguf_open(golden(models[0]), &g, &err));
    CHECK_OK(gguf_rewrite(g, edits, 3, &bytes));
    model_file_close(g);
    CHECK_OK(gguf_open_bytes((const uint8_t *)bytes.data, bytes.n, &source, &err));
    CHECK(model_file_find(source, "split.tensors.count"));
    CHECK_OK(model_convert(source, path, &o, &err));
    CHECK_OK(gguf_open(path, &g, &err));
    for (uint32_t i = 0; i < 3; i++) CHECK(!model_file_find(g, edits[i].name));
    model_file_close(g);
    model_file_close(source);
    buf_deinit(&bytes);
    unlink(path);
}
