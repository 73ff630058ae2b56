/* tests/format/test_gguf.c - what a valid file says is what the reader gives. Broken files: test_gguf_faults.c. */
#include "format/gguf.h"
#include <time.h>
#include "base/file.h"
#include "base/mem.h"
#include "gguf_make.h"
#include "test.h"

static struct gguf *open_sample(struct gguf_sample *s, uint32_t version)
{
    struct gguf *g = NULL;
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
        struct gguf *g = open_sample(&s, version);

        CHECK(g);
        CHECK_EQ(gguf_version(g), version);
        CHECK_EQ(gguf_file_bytes(g), s.bytes.n);
        CHECK_EQ(gguf_n_kv(g), 17);
        CHECK_EQ(gguf_n_tensors(g), SAMPLE_TENSORS);
        CHECK(gguf_unchanged(g));
        gguf_close(g);
        buf_deinit(&s.bytes);
    }
    gguf_close(NULL);
}

TEST(tensors_have_their_dims_sizes_and_places)
{
    struct gguf_sample s;
    struct gguf *g = open_sample(&s, 3);
    const struct gguf_tensor *t;

    CHECK(g);
    t = gguf_find_tensor(g, "q4");
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
    t = gguf_find_tensor(g, "half");
    CHECK(t && t == gguf_tensor_at(g, 2));
    CHECK_EQ(t->n_bytes, 10);
    CHECK(!gguf_find_tensor(g, "hal"));
    CHECK(!gguf_find_tensor(g, "half2"));
    CHECK(!gguf_find_tensor(g, ""));
    gguf_close(g);
    buf_deinit(&s.bytes);
}

TEST(every_integer_type_is_read_where_it_fits)
{
    struct gguf_sample s;
    struct gguf *g = open_sample(&s, 3);
    struct rd_error err;
    uint64_t v = 0;

    CHECK(g);
    CHECK_OK(gguf_get_u64(g, "test.u8", 0, UINT64_MAX, &v, &err));
    CHECK_EQ(v, 200);
    CHECK_OK(gguf_get_u64(g, "test.u16", 0, 60000, &v, &err));
    CHECK_EQ(v, 60000);
    CHECK_OK(gguf_get_u64(g, "test.u32", 4000000000u, UINT64_MAX, &v, &err));
    CHECK_EQ(v, 4000000000u);
    CHECK_OK(gguf_get_u64(g, "test.u64", 0, UINT64_MAX, &v, &err));
    CHECK(v == UINT64_MAX);
    v = 5;
    CHECK_EQ(gguf_get_u64(g, "test.i8", 0, UINT64_MAX, &v, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"test.i8\": -100, expected 0 .. 18446744073709551615");
    CHECK_EQ(gguf_get_u64(g, "test.i16", 0, 9, &v, &err), RD_E_FORMAT);
    CHECK_EQ(gguf_get_u64(g, "test.i32", 0, 9, &v, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"test.i32\": -7, expected 0 .. 9");
    CHECK_EQ(gguf_get_u64(g, "test.i64", 0, 9, &v, NULL), RD_E_FORMAT);
    CHECK_EQ(gguf_get_u64(g, "test.u8", 0, 199, &v, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"test.u8\": 200, expected 0 .. 199");
    CHECK_EQ(gguf_get_u64(g, "test.u8", 201, 300, &v, &err), RD_E_FORMAT);
    CHECK_EQ(gguf_get_u64(g, "test.bool", 0, 9, &v, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"test.bool\": type bool, expected an integer");
    CHECK_EQ(gguf_get_u64(g, "test.f32", 0, 9, &v, &err), RD_E_FORMAT);
    CHECK_EQ(gguf_get_u64(g, "test.u32s", 0, 99, &v, &err), RD_E_FORMAT);
    CHECK_EQ(gguf_get_u64(g, "general.architecture", 0, 9, &v, &err), RD_E_FORMAT);
    strcpy(err.text, "mine");
    CHECK_EQ(gguf_get_u64(g, "test.none", 0, 9, &v, &err), RD_E_NOT_FOUND);
    CHECK_STR(err.text, "mine");
    CHECK_EQ(v, 5);
    gguf_close(g);
    buf_deinit(&s.bytes);
}

TEST(floats_bools_and_strings_are_read_by_type)
{
    struct gguf_sample s;
    struct gguf *g = open_sample(&s, 3);
    struct rd_error err;
    struct gguf_str str;
    bool b = false;
    double d = 0;

    CHECK(g);
    CHECK_OK(gguf_get_f64(g, "test.f32", &d, &err));
    CHECK(d == 0.5);
    CHECK_OK(gguf_get_f64(g, "test.f64", &d, &err));
    CHECK(d == 1e300);
    CHECK_OK(gguf_get_f64(g, "test.i8", &d, &err));
    CHECK(d == -100);
    CHECK_EQ(gguf_get_f64(g, "test.bool", &d, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"test.bool\": type bool, expected a number");
    CHECK_EQ(gguf_get_f64(g, "no", &d, &err), RD_E_NOT_FOUND);
    CHECK_OK(gguf_get_bool(g, "test.bool", &b, &err));
    CHECK(b);
    CHECK_EQ(gguf_get_bool(g, "test.u8", &b, &err), RD_E_FORMAT);
    CHECK_EQ(gguf_get_bool(g, "no", &b, &err), RD_E_NOT_FOUND);
    CHECK_OK(gguf_get_str(g, "general.architecture", &str, &err));
    CHECK(str.n == 5 && !memcmp(str.s, "llama", 5));
    CHECK_EQ(gguf_get_str(g, "test.strings", &str, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"test.strings\": type array, expected string");
    CHECK_EQ(gguf_get_str(g, "no", &str, &err), RD_E_NOT_FOUND);
    gguf_close(g);
    buf_deinit(&s.bytes);
}

TEST(floats_that_are_not_finite_are_refused)
{
    static const uint32_t patterns[] = {0x7f800000, 0xff800000, 0x7fc00000};

    for (int i = 0; i < 3; i++) {
        struct buf b = {0};
        struct gguf *g = NULL;
        struct rd_error err;
        double d = 7;

        gguf_put_header(&b, 3, 0, 1);
        gguf_put_str(&b, "x");
        gguf_put_u32(&b, GGUF_F32);
        gguf_put_u32(&b, patterns[i]);
        CHECK_OK(gguf_open_bytes((const uint8_t *)b.data, b.n, &g, &err));
        CHECK_EQ(gguf_get_f64(g, "x", &d, &err), RD_E_FORMAT);
        CHECK_STR(err.text, "metadata \"x\": the number is not finite");
        CHECK(d == 7);
        gguf_close(g);
        buf_deinit(&b);
    }
}

TEST(arrays_give_their_elements)
{
    struct gguf_sample s;
    struct gguf *g = open_sample(&s, 3);
    struct gguf_str_iter it;
    struct gguf_str str;
    const struct gguf_kv *kv;

    CHECK(g);
    kv = gguf_find(g, "test.u32s");
    CHECK(kv && kv->type == GGUF_ARRAY && kv->array_type == GGUF_U32 && kv->n == 3);
    CHECK_EQ(gguf_array_u64(kv, 0), 10);
    CHECK_EQ(gguf_array_u64(kv, 2), 12);
    CHECK(gguf_array_f64(kv, 2) == 12);
    gguf_strings(kv, &it);
    CHECK(!gguf_next_string(&it, &str));                    /* not an array of strings: none */
    kv = gguf_find(g, "test.f32s");
    CHECK(kv && gguf_array_f64(kv, 0) == 1.5 && gguf_array_f64(kv, 1) == -2);
    kv = gguf_find(g, "test.bools");
    CHECK(kv && gguf_array_u64(kv, 0) == 0 && gguf_array_u64(kv, 1) == 1);
    kv = gguf_find(g, "test.strings");
    CHECK(kv && kv->array_type == GGUF_STRING && kv->n == 3);
    gguf_strings(kv, &it);
    CHECK(gguf_next_string(&it, &str) && str.n == 3 && !memcmp(str.s, "one", 3));
    CHECK(gguf_next_string(&it, &str) && str.n == 0);
    CHECK(gguf_next_string(&it, &str) && str.n == 5 && !memcmp(str.s, "drei\xff", 5));
    CHECK(!gguf_next_string(&it, &str));
    gguf_strings(gguf_find(g, "test.u8"), &it);
    CHECK(!gguf_next_string(&it, &str));
    gguf_close(g);
    buf_deinit(&s.bytes);
}

TEST(a_file_without_tensors_may_end_after_the_metadata)
{
    struct buf b = {0};
    struct gguf *g = NULL;
    struct rd_error err;

    gguf_put_header(&b, 3, 0, 1);
    gguf_put_kv_u32(&b, "x", 1);
    CHECK_OK(gguf_open_bytes((const uint8_t *)b.data, b.n, &g, &err));
    CHECK_EQ(gguf_n_tensors(g), 0);
    CHECK(!gguf_find_tensor(g, "x"));
    gguf_close(g);
    buf_clear(&b);
    gguf_put_header(&b, 3, 0, 0);
    CHECK_OK(gguf_open_bytes((const uint8_t *)b.data, b.n, &g, &err));
    CHECK(!gguf_find(g, "x"));
    gguf_close(g);
    buf_deinit(&b);
}

TEST(the_alignment_of_the_file_counts)
{
    struct buf b = {0};
    struct gguf *g = NULL;
    struct rd_error err;

    gguf_put_header(&b, 3, 2, 1);
    gguf_put_kv_u32(&b, "general.alignment", 8);
    gguf_put_tensor(&b, "a", 1, (uint64_t[]){1}, DTYPE_F32, 0);
    gguf_put_tensor(&b, "b", 1, (uint64_t[]){1}, DTYPE_F32, 8);
    gguf_put_padding(&b, 8);
    size_t start = b.n;
    buf_append(&b, "aaaa\0\0\0\0bbbb", 12);
    CHECK_OK(gguf_open_bytes((const uint8_t *)b.data, b.n, &g, &err));
    CHECK_EQ(gguf_find_tensor(g, "b")->offset, start + 8);
    CHECK_EQ(gguf_find_tensor(g, "b")->data[0], 'b');
    gguf_close(g);
    buf_deinit(&b);
}

TEST(every_key_and_name_of_many_is_found)
{
    enum { N = 3000 };
    struct buf b = {0};
    struct gguf *g = NULL;
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
        CHECK_OK(gguf_get_u64(g, name, 0, N, &v, &err));
        CHECK_EQ(v, i);
        snprintf(name, sizeof(name), "tensor.%u", i * 7919 % N);
        CHECK(gguf_find_tensor(g, name) == gguf_tensor_at(g, i));
    }
    CHECK(!gguf_find(g, "key.3000"));
    gguf_close(g);
    buf_deinit(&b);
}

TEST(a_real_vocabulary_opens_quickly)
{
    static const char *const names[] = {"gemma3-270m", "smollm2", "qwen2.5-coder-0.5b"};

    for (int i = 0; i < 3; i++) {
        const char *path = test_model(names[i]);
        struct timespec from, to;
        struct gguf *g = NULL;
        struct rd_error err;
        struct gguf_str_iter it;
        struct gguf_str s;
        uint64_t n = 0;

        if (!path) {
            test_skip("%s has not been fetched (tools/fetch-model %s)", names[i], names[i]);
            continue;
        }
        clock_gettime(CLOCK_MONOTONIC, &from);
        CHECK_OK(gguf_open(path, &g, &err));
        clock_gettime(CLOCK_MONOTONIC, &to);
        const struct gguf_kv *tokens = gguf_find(g, "tokenizer.ggml.tokens");
        CHECK(tokens && gguf_find_tensor(g, "token_embd.weight"));
        gguf_strings(tokens, &it);
        while (gguf_next_string(&it, &s)) n++;
        CHECK_EQ(n, tokens->n);
        test_note("%s: %llu tokens, opened in %.1f ms", names[i], (unsigned long long)n,
                  1e3 * (double)(to.tv_sec - from.tv_sec) + 1e-6 * (double)(to.tv_nsec - from.tv_nsec));
        gguf_close(g);
    }
}
