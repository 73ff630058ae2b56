/* tests/format/test_gguf.c - what a valid file says is what the reader gives. Broken files: test_gguf_faults.c. */
#include "format/gguf/gguf.h"
#include <time.h>
#include "base/file.h"
#include "base/mem.h"
#include "gguf_make.h"
#include "test.h"

static struct model_file *open_sample(struct gguf_sample *s, uint32_t version)
{
    struct model_file *g = NULL;
    struct rd_error err;

    gguf_make_sample(s, version);
    if (gguf_open_bytes((const uint8_t *)s->bytes.data, s->bytes.n, &g, &err)) {
        test_fail(__FILE__, __LINE__, "sample: %s", err.text);
        return NULL;
    }
    return g;
}

TEST(versions_2_and_3_are_read)
{
    for (uint32_t version = 2; version <= 3; version++) {
        struct gguf_sample s;
        struct model_file *g = open_sample(&s, version);

        CHECK(g);
        CHECK_EQ(model_file_version(g), version);
        CHECK_EQ(model_file_bytes(g), s.bytes.n);
        CHECK_EQ(model_file_n_meta(g), 17);
        CHECK_EQ(model_file_n_tensors(g), SAMPLE_TENSORS);
        CHECK(model_file_unchanged(g));
        model_file_close(g);
        buf_deinit(&s.bytes);
    }
    model_file_close(NULL);
}

TEST(tensors_have_their_dims_sizes_and_places)
{
    struct gguf_sample s;
    struct model_file *g = open_sample(&s, 3);
    const struct model_tensor *t;

    CHECK(g);
    t = model_file_find_tensor(g, "q4");
    CHECK(t);
    CHECK_EQ(t->dtype, DTYPE_Q4_0);
    CHECK_EQ(t->n_dims, 2);
    CHECK_EQ(t->dims[0], 64);
    CHECK_EQ(t->dims[1], 3);
    CHECK_EQ(t->dims[2], 1);
    CHECK_EQ(t->dims[3], 1);
    CHECK_EQ(t->n_bytes, 108);
    CHECK_EQ(t->offset, s.n_header + 32);
    CHECK_EQ(t->data[0], 32);
    t = model_file_find_tensor(g, "half");
    CHECK(t && t == model_file_tensor(g, 2));
    CHECK_EQ(t->n_bytes, 10);
    CHECK(!model_file_find_tensor(g, "hal"));
    CHECK(!model_file_find_tensor(g, "half2"));
    CHECK(!model_file_find_tensor(g, ""));
    model_file_close(g);
    buf_deinit(&s.bytes);
}

TEST(every_integer_type_is_read_where_it_fits)
{
    struct gguf_sample s;
    struct model_file *g = open_sample(&s, 3);
    struct rd_error err;
    uint64_t v = 0;

    CHECK(g);
    CHECK_OK(model_file_u64(g, "test.u8", 0, UINT64_MAX, &v, &err));
    CHECK_EQ(v, 200);
    CHECK_OK(model_file_u64(g, "test.u16", 0, 60000, &v, &err));
    CHECK_EQ(v, 60000);
    CHECK_OK(model_file_u64(g, "test.u32", 4000000000u, UINT64_MAX, &v, &err));
    CHECK_EQ(v, 4000000000u);
    CHECK_OK(model_file_u64(g, "test.u64", 0, UINT64_MAX, &v, &err));
    CHECK(v == UINT64_MAX);
    v = 5;
    CHECK_EQ(model_file_u64(g, "test.i8", 0, UINT64_MAX, &v, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"test.i8\": -100, expected 0 .. 18446744073709551615");
    CHECK_EQ(model_file_u64(g, "test.i16", 0, 9, &v, &err), RD_E_FORMAT);
    CHECK_EQ(model_file_u64(g, "test.i32", 0, 9, &v, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"test.i32\": -7, expected 0 .. 9");
    CHECK_EQ(model_file_u64(g, "test.i64", 0, 9, &v, NULL), RD_E_FORMAT);
    CHECK_EQ(model_file_u64(g, "test.u8", 0, 199, &v, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"test.u8\": 200, expected 0 .. 199");
    CHECK_EQ(model_file_u64(g, "test.u8", 201, 300, &v, &err), RD_E_FORMAT);
    CHECK_EQ(model_file_u64(g, "test.bool", 0, 9, &v, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"test.bool\": type bool, expected an integer");
    CHECK_EQ(model_file_u64(g, "test.f32", 0, 9, &v, &err), RD_E_FORMAT);
    CHECK_EQ(model_file_u64(g, "test.u32s", 0, 99, &v, &err), RD_E_FORMAT);
    CHECK_EQ(model_file_u64(g, "general.architecture", 0, 9, &v, &err), RD_E_FORMAT);
    strcpy(err.text, "mine");
    CHECK_EQ(model_file_u64(g, "test.none", 0, 9, &v, &err), RD_E_NOT_FOUND);
    CHECK_STR(err.text, "mine");
    CHECK_EQ(v, 5);
    model_file_close(g);
    buf_deinit(&s.bytes);
}

TEST(floats_bools_and_strings_are_read_by_type)
{
    struct gguf_sample s;
    struct model_file *g = open_sample(&s, 3);
    struct rd_error err;
    struct model_str str;
    bool b = false;
    double d = 0;

    CHECK(g);
    CHECK_OK(model_file_f64(g, "test.f32", &d, &err));
    CHECK(d == 0.5);
    CHECK_OK(model_file_f64(g, "test.f64", &d, &err));
    CHECK(d == 1e300);
    CHECK_OK(model_file_f64(g, "test.i8", &d, &err));
    CHECK(d == -100);
    CHECK_EQ(model_file_f64(g, "test.bool", &d, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"test.bool\": type bool, expected a number");
    CHECK_EQ(model_file_f64(g, "no", &d, &err), RD_E_NOT_FOUND);
    CHECK_OK(model_file_bool(g, "test.bool", &b, &err));
    CHECK(b);
    CHECK_EQ(model_file_bool(g, "test.u8", &b, &err), RD_E_FORMAT);
    CHECK_EQ(model_file_bool(g, "no", &b, &err), RD_E_NOT_FOUND);
    CHECK_OK(model_file_str(g, "general.architecture", &str, &err));
    CHECK(str.n == 5 && !memcmp(str.s, "llama", 5));
    CHECK_EQ(model_file_str(g, "test.strings", &str, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"test.strings\": type array, expected string");
    CHECK_EQ(model_file_str(g, "no", &str, &err), RD_E_NOT_FOUND);
    model_file_close(g);
    buf_deinit(&s.bytes);
}

TEST(floats_that_are_not_finite_are_refused)
{
    static const uint32_t patterns[] = {0x7f800000, 0xff800000, 0x7fc00000};

    for (int i = 0; i < 3; i++) {
        struct buf b = {0};
        struct model_file *g = NULL;
        struct rd_error err;
        double d = 7;

        gguf_put_header(&b, 3, 0, 1);
        gguf_put_str(&b, "x");
        gguf_put_u32(&b, META_F32);
        gguf_put_u32(&b, patterns[i]);
        CHECK_OK(gguf_open_bytes((const uint8_t *)b.data, b.n, &g, &err));
        CHECK_EQ(model_file_f64(g, "x", &d, &err), RD_E_FORMAT);
        CHECK_STR(err.text, "metadata \"x\": the number is not finite");
        CHECK(d == 7);
        model_file_close(g);
        buf_deinit(&b);
    }
}

TEST(arrays_give_their_elements)
{
    struct gguf_sample s;
    struct model_file *g = open_sample(&s, 3);
    struct meta_strings it;
    struct model_str str;
    const struct model_meta *kv;

    CHECK(g);
    kv = model_file_find(g, "test.u32s");
    CHECK(kv && kv->type == META_ARRAY && kv->array_type == META_U32 && kv->n == 3);
    CHECK_EQ(meta_u64_at(kv, 0), 10);
    CHECK_EQ(meta_u64_at(kv, 2), 12);
    CHECK(meta_f64_at(kv, 2) == 12);
    meta_strings_of(kv, &it);
    CHECK(!meta_next_string(&it, &str)); /* not an array of strings: none */
    kv = model_file_find(g, "test.f32s");
    CHECK(kv && meta_f64_at(kv, 0) == 1.5 && meta_f64_at(kv, 1) == -2);
    kv = model_file_find(g, "test.bools");
    CHECK(kv && meta_u64_at(kv, 0) == 0 && meta_u64_at(kv, 1) == 1);
    kv = model_file_find(g, "test.strings");
    CHECK(kv && kv->array_type == META_STRING && kv->n == 3);
    meta_strings_of(kv, &it);
    CHECK(meta_next_string(&it, &str) && str.n == 3 && !memcmp(str.s, "one", 3));
    CHECK(meta_next_string(&it, &str) && str.n == 0);
    CHECK(meta_next_string(&it, &str) && str.n == 5 && !memcmp(str.s, "drei\xff", 5));
    CHECK(!meta_next_string(&it, &str));
    meta_strings_of(model_file_find(g, "test.u8"), &it);
    CHECK(!meta_next_string(&it, &str));
    model_file_close(g);
    buf_deinit(&s.bytes);
}

TEST(a_file_without_tensors_may_end_after_the_metadata)
{
    struct buf b = {0};
    struct model_file *g = NULL;
    struct rd_error err;

    gguf_put_header(&b, 3, 0, 1);
    gguf_put_kv_u32(&b, "x", 1);
    CHECK_OK(gguf_open_bytes((const uint8_t *)b.data, b.n, &g, &err));
    CHECK_EQ(model_file_n_tensors(g), 0);
    CHECK(!model_file_find_tensor(g, "x"));
    model_file_close(g);
    buf_clear(&b);
    gguf_put_header(&b, 3, 0, 0);
    CHECK_OK(gguf_open_bytes((const uint8_t *)b.data, b.n, &g, &err));
    CHECK(!model_file_find(g, "x"));
    model_file_close(g);
    buf_deinit(&b);
}

TEST(the_alignment_of_the_file_counts)
{
    struct buf b = {0};
    struct model_file *g = NULL;
    struct rd_error err;

    gguf_put_header(&b, 3, 2, 1);
    gguf_put_kv_u32(&b, "general.alignment", 8);
    gguf_put_tensor(&b, "a", 1, (uint64_t[]){1}, DTYPE_F32, 0);
    gguf_put_tensor(&b, "b", 1, (uint64_t[]){1}, DTYPE_F32, 8);
    gguf_put_padding(&b, 8);
    size_t start = b.n;
    buf_append(&b, "aaaa\0\0\0\0bbbb", 12);
    CHECK_OK(gguf_open_bytes((const uint8_t *)b.data, b.n, &g, &err));
    CHECK_EQ(model_file_find_tensor(g, "b")->offset, start + 8);
    CHECK_EQ(model_file_find_tensor(g, "b")->data[0], 'b');
    model_file_close(g);
    buf_deinit(&b);
}

TEST(every_key_and_name_of_many_is_found)
{
    enum { N = 3000 };
    struct buf b = {0};
    struct model_file *g = NULL;
    struct rd_error err;
    char name[32];

    gguf_put_header(&b, 3, N, N);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "key.%u", i * 7919 % N);
        gguf_put_kv_u32(&b, name, i);
    }
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "tensor.%u", i * 7919 % N);
        gguf_put_tensor(&b, name, 1, (uint64_t[]){8}, DTYPE_F32, (uint64_t)32 * (N - 1 - i));
    }
    gguf_put_padding(&b, 32);
    for (uint32_t i = 0; i < N * 32; i++) buf_putc(&b, 0);
    if (gguf_open_bytes((const uint8_t *)b.data, b.n, &g, &err)) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return;
    }
    for (uint32_t i = 0; i < N; i++) {
        uint64_t v = 0;

        snprintf(name, sizeof(name), "key.%u", i * 7919 % N);
        CHECK_OK(model_file_u64(g, name, 0, N, &v, &err));
        CHECK_EQ(v, i);
        snprintf(name, sizeof(name), "tensor.%u", i * 7919 % N);
        CHECK(model_file_find_tensor(g, name) == model_file_tensor(g, i));
    }
    CHECK(!model_file_find(g, "key.3000"));
    model_file_close(g);
    buf_deinit(&b);
}

TEST(a_real_vocabulary_opens_quickly)
{
    static const char *const names[] = {"gemma3-270m", "smollm2", "qwen2.5-coder-0.5b"};

    for (int i = 0; i < 3; i++) {
        const char *path = test_model(names[i]);
        struct timespec from, to;
        struct model_file *g = NULL;
        struct rd_error err;
        struct meta_strings it;
        struct model_str s;
        uint64_t n = 0;

        if (!path) {
            test_skip("%s has not been fetched (tools/fetch-model %s)", names[i], names[i]);
            continue;
        }
        clock_gettime(CLOCK_MONOTONIC, &from);
        CHECK_OK(gguf_open(path, &g, &err));
        clock_gettime(CLOCK_MONOTONIC, &to);
        const struct model_meta *tokens = model_file_find(g, "tokenizer.ggml.tokens");
        CHECK(tokens && model_file_find_tensor(g, "token_embd.weight"));
        meta_strings_of(tokens, &it);
        while (meta_next_string(&it, &s)) n++;
        CHECK_EQ(n, tokens->n);
        test_note("%s: %llu tokens, opened in %.1f ms", names[i], (unsigned long long)n,
                  1e3 * (double)(to.tv_sec - from.tv_sec) + 1e-6 * (double)(to.tv_nsec - from.tv_nsec));
        model_file_close(g);
    }
}
