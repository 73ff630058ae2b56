/* tests/api/test_eyes.c - the encoder's file: given, found beside the model, not this model's; what names images by it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "api/api_state.h"
#include "base/file.h"
#include "base/mem.h"
#include "model/model_convert.h"
#include "test.h"

#define VISION "tests/golden/vision/"

/* A folder with model.gguf of this family. */
static char *make_folder(const char *family)
{
    const struct convert_options o = {.type = CONVERT_F16, .n_threads = 1};
    char from[256], *folder = strdup("/tmp/radish-eyes-XXXXXX");
    struct model_file *g = NULL;
    struct rd_error err = {RD_OK, ""};
    rd_status st;

    if (!folder || !mkdtemp(folder)) abort();
    snprintf(from, sizeof(from), VISION "%s", family);
    st = model_file_open(test_path(from), model_hub_families(), &g, &err);
    snprintf(from, sizeof(from), "%s/model.gguf", folder);
    if (st == RD_OK) st = model_convert(g, from, &o, &err);
    if (st != RD_OK) abort();
    model_file_close(g);
    return folder;
}

static const char *in(const char *folder, const char *name)
{
    static char path[2][512];
    static int turn;

    turn = !turn;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", folder, name);
    return path[turn];
}

/* change: this byte of the file, counted from its end, becomes another; 0: none. */
static void put_mmproj(const char *family, const char *to, size_t change)
{
    char from[256], *bytes = NULL;
    size_t n = 0;
    FILE *f;

    snprintf(from, sizeof(from), VISION "%s/mmproj.gguf", family);
    CHECK_OK(file_read_all(test_path(from), 8u << 20, &bytes, &n, NULL));
    if (change) bytes[n - change] ^= 1;
    f = fopen(to, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) abort();
    mem_free(bytes);
}

static void remove_folder(char *folder)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf %s", folder);
    CHECK_EQ(system(command), 0);
    free(folder);
}

static rd_status open_engine(const char *model, const char *mmproj, const char *cache, rd_engine **out,
                             struct rd_error *err)
{
    struct rd_options o;

    rd_options_default(&o);
    o.model = model;
    o.mmproj = mmproj;
    o.cache_dir = cache;
    o.kv_tokens = 256;
    o.n_threads = 1;
    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    *err = (struct rd_error){RD_OK, ""};
    return rd_open(&o, out, err);
}

/* It has an encoder and its processor; the tiny models' vocabularies have no tokens around images, so that none are taken. */
static bool has_eyes(const rd_engine *e)
{
    return e && e->executor->vision && e->processor.patch;
}

/* The digest of a picture, as this engine makes it of it. */
static void digest_of(const rd_engine *e, uint8_t digest[VISION_DIGEST])
{
    static uint8_t rgb[60 * 60 * 3];
    const uint8_t *frame = rgb;
    struct vision_image *v = NULL;
    struct rd_error err = {RD_OK, ""};

    CHECK_OK(image_processor_run(&e->processor, &frame, 1, 60, 60, &v, &err));
    memcpy(digest, v->digest, sizeof(v->digest));
    vision_image_unref(v);
}

TEST(a_directory_sees_by_itself)
{
    rd_engine *e = NULL;
    struct rd_error err;

    CHECK_OK(open_engine(test_path(VISION "gemma3"), NULL, NULL, &e, &err));
    CHECK(has_eyes(e) && !e->eyes);
    CHECK_EQ(e->processor.kind, PROCESSOR_SQUARE);
    CHECK_EQ(e->processor.side, 80);
    CHECK_EQ(e->processor.merge, 2);
    CHECK_EQ(e->processor.max_rows, 16);
    rd_close(e);
    CHECK_OK(open_engine(test_path("tests/golden/gemma3/tiny-gemma3.gguf"), NULL, NULL, &e, &err));
    CHECK(!has_eyes(e) && !*e->blind);
    rd_close(e);
}

TEST(the_one_file_beside_a_model_that_fits_it_is_its_encoder)
{
    char *folder = make_folder("gemma3");
    rd_engine *e = NULL;
    struct rd_error err;

    CHECK_OK(open_engine(in(folder, "model.gguf"), NULL, NULL, &e, &err));
    CHECK(!has_eyes(e));
    rd_close(e);
    put_mmproj("qwen2vl", in(folder, "mmproj-other.gguf"), 0);
    CHECK_OK(open_engine(in(folder, "model.gguf"), NULL, NULL, &e, &err));
    CHECK(!has_eyes(e) && !*e->blind);
    rd_close(e);
    put_mmproj("gemma3", in(folder, "model-MMPROJ-f16.gguf"), 0);
    CHECK_OK(open_engine(in(folder, "model.gguf"), NULL, NULL, &e, &err));
    CHECK(has_eyes(e) && e->eyes);
    CHECK_EQ(e->processor.side, 80);
    rd_close(e);
    put_mmproj("gemma3", in(folder, "mmproj-model-bf16.gguf"), 0);
    CHECK_OK(open_engine(in(folder, "model.gguf"), NULL, NULL, &e, &err));
    CHECK(!has_eyes(e));
    CHECK(strstr(e->blind, "model-MMPROJ-f16.gguf") && strstr(e->blind, "mmproj-model-bf16.gguf"));
    rd_close(e);
    CHECK_OK(open_engine(in(folder, "model.gguf"), in(folder, "mmproj-model-bf16.gguf"), NULL, &e, &err));
    CHECK(has_eyes(e));
    rd_close(e);
    remove_folder(folder);
}

TEST(an_encoder_of_another_family_or_width_is_refused_by_both_names)
{
    rd_engine *e = NULL;
    struct rd_error err;

    CHECK_EQ(open_engine(test_path(VISION "gemma3"), test_path(VISION "qwen25vl/mmproj.gguf"), NULL, &e, &err),
             RD_E_FORMAT);
    CHECK(!e && strstr(err.text, "mmproj.gguf") && strstr(err.text, "gemma3") && strstr(err.text, "qwen2vl"));
    CHECK_EQ(open_engine(test_path("tests/golden/llama/tiny-llama.gguf"), test_path(VISION "gemma3/mmproj.gguf"), NULL,
                         &e, &err),
             RD_E_FORMAT);
    CHECK(strstr(err.text, "mmproj.gguf") && strstr(err.text, "tiny-llama.gguf") && strstr(err.text, "width 48"));
    CHECK_EQ(open_engine(test_path(VISION "gemma3"), test_path(VISION "gemma3/text.gguf"), NULL, &e, &err),
             RD_E_FORMAT);
    CHECK(strstr(err.text, "clip.projector_type"));
    CHECK_EQ(open_engine(test_path(VISION "gemma3"), "/nowhere/mmproj.gguf", NULL, &e, &err), RD_E_NOT_FOUND);
    CHECK(strstr(err.text, "--mmproj"));
}

TEST(what_a_disk_keeps_of_images_is_of_one_encoder)
{
    char *folder = make_folder("qwen2vl");
    uint8_t digests[4][VISION_DIGEST];

    put_mmproj("qwen2vl", in(folder, "a-mmproj.gguf"), 0);
    for (int i = 0; i < 4; i++) { /* the file; again; with one bit of a weight otherwise; without a disk */
        rd_engine *e = NULL;
        struct rd_error err;

        if (i == 2) put_mmproj("qwen2vl", in(folder, "a-mmproj.gguf"), 1);
        CHECK_OK(open_engine(in(folder, "model.gguf"), NULL, i < 3 ? in(folder, "cache") : NULL, &e, &err));
        CHECK(has_eyes(e) && (i == 3 || e->store));
        digest_of(e, digests[i]);
        rd_close(e);
    }
    CHECK(memcmp(digests[0], digests[1], VISION_DIGEST) == 0);
    CHECK(memcmp(digests[0], digests[2], VISION_DIGEST) != 0);
    remove_folder(folder);
}

TEST(memory_that_runs_out_while_a_file_is_looked_for_leaves_nothing)
{
    char *folder = make_folder("gemma3");
    const uint64_t alive = mem_n_alive();

    put_mmproj("gemma3", in(folder, "mmproj.gguf"), 0);
    for (int64_t i = 0;; i++) {
        rd_engine *e = NULL;
        struct rd_error err;
        rd_status st;
        bool sees;

        mem_fail_after(i);
        st = open_engine(in(folder, "model.gguf"), NULL, NULL, &e, &err);
        mem_fail_after(-1);
        sees = has_eyes(e);
        rd_close(e);
        CHECK_EQ(mem_n_alive(), alive);
        CHECK(st == RD_E_NOMEM || sees);
        if (st == RD_OK) break;
    }
    remove_folder(folder);
}

TEST(a_prompt_with_images_does_not_shift)
{
    static int32_t tokens[1000];
    struct rd_request r = {.o = {.max_tokens = 4}};
    uint32_t n = 1000;
    struct rd_error err;

    CHECK_OK(open_engine(test_path(VISION "gemma3"), NULL, NULL, &r.engine, &err));
    tokens[500] = (int32_t)(KV_KEY_ROW | 5);
    api_shift_begin(&r, tokens, &n);
    CHECK(!r.shift.is_on && n == 1000);
    tokens[500] = 1;
    api_shift_begin(&r, tokens, &n);
    CHECK(r.shift.is_on && n < 1000);
    rd_close(r.engine);
}
