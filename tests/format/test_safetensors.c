/* tests/format/test_safetensors.c - the table of a safetensors file: what does not add up is refused before a tensor is
 * touched (docs/faults.md F07). */
#include "format/hub/safetensors.h"
#include <stdio.h>
#include <string.h>
#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "test.h"

/* A file with this header and so many bytes of data. */
static void make(struct buf *b, const char *header, size_t n_header, size_t n_data)
{
    uint64_t n = n_header;

    buf_append(b, &n, sizeof(n));
    buf_append(b, header, n_header);
    for (size_t i = 0; i < n_data; i++) buf_putc(b, (char)i);
}

static rd_status read_bytes(const struct buf *b, struct st_table *table, struct rd_error *err)
{
    uint64_t n;
    rd_status st;

    *err = (struct rd_error){RD_OK, ""};
    if (b->n < 8) return RD_E_FORMAT;
    st = safetensors_header_bytes("x.safetensors", (const uint8_t *)b->data, b->n, &n, err);
    if (st == RD_OK) st = safetensors_read("x.safetensors", 0, (const uint8_t *)b->data, n, b->n, table, err);
    return st;
}

static rd_status read_header(const char *header, size_t n_data, struct rd_error *err)
{
    struct st_table table = {0};
    struct buf b = {0};
    rd_status st;

    make(&b, header, strlen(header), n_data);
    st = read_bytes(&b, &table, err);
    safetensors_deinit(&table);
    buf_deinit(&b);
    return st;
}

#define A "\"a\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]}"
#define B "\"b\": {\"data_offsets\": [24, 28], \"shape\": [2], \"dtype\": \"BF16\"}"

TEST(a_file_gives_its_tensors_by_name)
{
    struct st_table table = {0};
    struct rd_error err;
    struct buf b = {0};
    char *files[] = {"x.safetensors"};
    const struct st_tensor *t;

    const char header[] = "{\"__metadata__\": {\"format\": \"pt\"}, " B ", " A "}  ";
    make(&b, header, sizeof(header) - 1, 28);
    CHECK_OK(read_bytes(&b, &table, &err));
    CHECK_OK(safetensors_sort(&table, files, &err));
    CHECK_EQ(table.n, 2);
    t = safetensors_find(&table, "a");
    CHECK(t && t->type == ST_F32 && t->n_dims == 2 && t->dims[0] == 2 && t->dims[1] == 3 && t->dims[2] == 1);
    CHECK(t->n_bytes == 24 && t->offset == 8 + sizeof(header) - 1);
    t = safetensors_find(&table, "b");
    CHECK(t && t->type == ST_BF16 && t->n_bytes == 4 && t->offset == 8 + sizeof(header) - 1 + 24);
    CHECK(!safetensors_find(&table, "c"));
    safetensors_deinit(&table);
    buf_deinit(&b);
}

TEST(what_does_not_add_up_is_refused_with_what_was_found)
{
    static const struct {
        const char *header;
        size_t n_data;
        const char *said;
    } rows[] = {
        {"{" A "}", 23, "data_offsets [0, 24], but the data has 23 bytes"},
        {"{" A "}", 25, "the tensors end at byte"},
        {"{" A ", " A "}", 24, "overlaps"},
        {"{" B "}", 28, "with a hole before it from byte 0"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [8, 0]}}", 8, "data_offsets [8, 0]"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [3], \"data_offsets\": [0, 8]}}", 8, "make 12 bytes"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [4611686018427387904, 4], \"data_offsets\": [0, 0]}}", 0,
         "overflows"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [18446744073709551616], \"data_offsets\": [0, 0]}}", 0,
         "not as expected"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}}", 4, "not as expected"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1,1,1,1,1,1,1,1,1], \"data_offsets\": [0, 4]}}", 4,
         "not as expected"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4, 4]}}", 4, "not as expected"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4]}}", 4, "not as expected"},
        {"{\"a\": {\"dtype\": \"F4\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 4, "\"F4\" is not known"},
        {"{\"a\": {\"dtype\": 4, \"shape\": [1], \"data_offsets\": [0, 4]}}", 4, "a dtype: not as expected"},
        {"{\"a\": {\"shape\": [1], \"data_offsets\": [0, 4]}}", 4, "once each are wanted"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"shape\": [1], \"data_offsets\": [0, 4]}}", 4, "once each"},
        {"{\"a\": [1]}", 0, "not as expected"},
        {"{\"\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 4, "name of 0 bytes"},
        {"{\"a\\u0000\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 4, "0 byte in it"},
        {"{} x", 0, "not as expected"},
        {"[]", 0, "not as expected"},
        {"", 0, "not as expected"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rd_error err;
        rd_status st = read_header(rows[i].header, rows[i].n_data, &err);

        test_note("%s", err.text);
        CHECK(st == RD_E_FORMAT || st == RD_E_UNSUPPORTED);
        CHECK(strstr(err.text, rows[i].said) && !strncmp(err.text, "x.safetensors: ", 15));
    }
}

TEST(the_headers_length_is_compared_with_the_file_first)
{
    static const uint64_t lengths[] = {11, 1u << 20, LIMIT_SAFETENSORS_HEADER + 1, 1ull << 32, 1ull << 63, UINT64_MAX};
    struct rd_error err;
    uint64_t n;

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint8_t first[8];

        for (int k = 0; k < 8; k++) first[k] = (uint8_t)(lengths[i] >> (8 * k));
        CHECK_EQ(safetensors_header_bytes("x", first, 18, &n, &err), RD_E_FORMAT);
        CHECK(n == 0 && strstr(err.text, "header of"));
    }
    CHECK_OK(safetensors_header_bytes("x", (const uint8_t *)"\x0a\0\0\0\0\0\0", 18, &n, &err));
    CHECK_EQ(n, 18);
    CHECK_EQ(safetensors_header_bytes("x", (const uint8_t *)"\0\0\0\0\0\0\0", 7, &n, &err), RD_E_FORMAT);
}

TEST(every_truncation_and_a_million_brackets_are_refused)
{
    const char header[] = "{\"__metadata__\": {\"x\": [1]}, " A ", " B "}";
    const size_t deep = 1000000;
    struct rd_error err;
    struct buf b = {0};

    for (size_t n = 0; n < sizeof(header) - 1; n++) {
        struct st_table table = {0};

        make(&b, header, n, 28);
        CHECK(read_bytes(&b, &table, &err) != RD_OK && err.text[0]);
        safetensors_deinit(&table);
        buf_deinit(&b);
    }
    char *text = mem_alloc(deep + 16, 1);
    CHECK(text);
    memcpy(text, "{\"x\": ", 6);
    for (int kind = 0; kind < 2; kind++) {
        struct st_table table = {0};

        memset(text + 6, kind ? '{' : '[', deep);
        make(&b, text, deep + 6, 0);
        CHECK_EQ(read_bytes(&b, &table, &err), RD_E_FORMAT);
        safetensors_deinit(&table);
        buf_deinit(&b);
    }
    mem_free(text);
}

TEST(memory_that_runs_out_leaves_nothing)
{
    const char header[] = "{" A ", " B "}";
    uint64_t alive;
    struct buf b = {0};

    make(&b, header, sizeof(header) - 1, 28);
    alive = mem_n_alive();
    for (int64_t i = 0;; i++) {
        struct st_table table = {0};
        struct rd_error err;
        rd_status st;

        mem_fail_after(i);
        st = read_bytes(&b, &table, &err);
        mem_fail_after(-1);
        safetensors_deinit(&table);
        CHECK_EQ(mem_n_alive(), alive);
        if (st == RD_OK) break;
        CHECK_EQ(st, RD_E_NOMEM);
    }
    buf_deinit(&b);
}
