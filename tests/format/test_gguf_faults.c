/* tests/format/test_gguf_faults.c - broken and hostile GGUF files (docs/faults.md F01-F05, F08, F18): each is refused with
 * a text that names the place, before anything big is allocated, and leaves nothing behind. */
#include <sys/stat.h>
#include <unistd.h>
#include "format/gguf/gguf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/random.h"
#include "format/gguf/gguf_dump.h"
#include "gguf_make.h"
#include "test.h"

/* Opens a copy of exactly n bytes on the heap, so that a sanitizer sees the first byte read beyond. On success walks
 * all there is. Leaves the status and the text in err. */
static rd_status try_bytes(const void *bytes, size_t n, struct rd_error *err)
{
    uint8_t *copy = mem_alloc(n, 1);
    struct model_file *g = NULL;
    struct buf listing = {0};
    rd_status st;

    memcpy(copy, bytes, n);
    memset(err, 0, sizeof(*err));
    st = gguf_open_bytes(copy, n, &g, err);
    if (st == RD_OK) {
        volatile uint8_t sum = 0;

        for (uint64_t i = 0; i < model_file_n_tensors(g); i++) {
            const struct model_tensor *t = model_file_tensor(g, i);

            for (uint64_t k = 0; k < t->n_bytes; k++) sum = (uint8_t)(sum + t->data[k]);
        }
        st = gguf_dump_text(g, &listing, err);
        if (st == RD_OK) st = gguf_dump_json(g, &listing, err);
    }
    model_file_close(g);
    buf_deinit(&listing);
    mem_free(copy);
    return st;
}

static rd_status try_sample(const struct gguf_sample *s, struct rd_error *err)
{
    return try_bytes(s->bytes.data, s->bytes.n, err);
}

/* The texts name what was being read. */
static bool names_a_place(const struct rd_error *err)
{
    return !strncmp(err->text, "header: ", 8) || !strncmp(err->text, "metadata ", 9) ||
           !strncmp(err->text, "tensor ", 7);
}

TEST(every_truncation_is_refused_and_says_where)
{
    struct gguf_sample s;
    struct rd_error err;
    uint64_t alive;

    gguf_make_sample(&s, 3);
    alive = mem_n_alive();
    CHECK_OK(try_sample(&s, &err));
    for (size_t n = 0; n < s.bytes.n; n++) {
        CHECK_EQ(try_bytes(s.bytes.data, n, &err), RD_E_FORMAT);
        CHECK(names_a_place(&err));
    }
    CHECK_EQ(try_bytes(s.bytes.data, 0, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "header: not a GGUF file: it has less than 4 bytes");
    CHECK_EQ(try_bytes(s.bytes.data, 9, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "header: tensor count needs 8 bytes, but the file ends at byte 9 (at byte 8)");
    CHECK_EQ(mem_n_alive(), alive);
    buf_deinit(&s.bytes);
}

TEST(magic_version_and_byte_order_are_checked)
{
    static const struct {
        uint32_t version;
        const char *text;
    } cases[] = {
        {0, "header: version 0 is not supported, only 2 and 3 are (at byte 4)"},
        {1, "header: version 1 is not supported, only 2 and 3 are (at byte 4)"},
        {4, "header: version 4 is not supported, only 2 and 3 are (at byte 4)"},
        {UINT32_MAX, "header: version 4294967295 is not supported, only 2 and 3 are (at byte 4)"},
        {0x03000000, "header: big-endian file (version 3); only little-endian files are read (at byte 4)"},
        {0x02000000, "header: big-endian file (version 2); only little-endian files are read (at byte 4)"},
    };
    struct gguf_sample s;
    struct rd_error err;

    gguf_make_sample(&s, 3);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gguf_poke_u32(&s.bytes, s.at_version, cases[i].version);
        CHECK_EQ(try_sample(&s, &err), RD_E_UNSUPPORTED);
        CHECK_STR(err.text, cases[i].text);
    }
    s.bytes.data[0] = 'g';
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "header: not a GGUF file: begins with bytes 67 47 55 46, expected \"GGUF\" (at byte 0)");
    buf_deinit(&s.bytes);
}

/* A count of this size is refused without one allocation more than the valid file takes. */
TEST(counts_and_lengths_at_the_edges_are_refused_before_allocating)
{
    static const uint64_t edges[] = {UINT64_MAX,
                                     UINT64_MAX - 7,
                                     (uint64_t)1 << 63,
                                     ((uint64_t)1 << 63) - 1,
                                     (uint64_t)1 << 61,
                                     (uint64_t)1 << 60,
                                     ((uint64_t)1 << 32) + 1,
                                     (uint64_t)1 << 32,
                                     UINT32_MAX,
                                     (uint64_t)1 << 31,
                                     1 << 20,
                                     4096};
    struct gguf_sample s;
    struct rd_error err;
    uint64_t before, valid;

    gguf_make_sample(&s, 3);
    before = mem_n_allocs();
    CHECK_OK(try_sample(&s, &err));
    valid = mem_n_allocs() - before;
    const size_t places[] = {s.at_n_tensors,    s.at_n_kv,           s.at_key_length,   s.at_string_length,
                             s.at_array_length, s.at_strings_length, s.at_inner_length, s.tensors[1].name_length};
    for (size_t p = 0; p < sizeof(places) / sizeof(places[0]); p++) {
        uint64_t old;

        memcpy(&old, s.bytes.data + places[p], sizeof(old));
        for (size_t e = 0; e < sizeof(edges) / sizeof(edges[0]); e++) {
            gguf_poke_u64(&s.bytes, places[p], edges[e]);
            before = mem_n_allocs();
            CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
            CHECK(names_a_place(&err));
            CHECK(mem_n_allocs() - before <= (p < 2 ? 2 : valid)); /* counts: the copy and the handle alone */
        }
        gguf_poke_u64(&s.bytes, places[p], old);
        CHECK_OK(try_sample(&s, &err));
    }
    gguf_poke_u64(&s.bytes, s.at_array_length, (uint64_t)1 << 62); /* times 4 wraps to 0 */
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK_STR(err.text,
              "metadata \"test.u32s\": array length 4611686018427387904, at most 16777216 are allowed (at byte 356)");
    buf_deinit(&s.bytes);
}

TEST(a_count_off_by_one_is_refused)
{
    struct gguf_sample s;
    struct rd_error err;

    gguf_make_sample(&s, 3);
    for (int delta = -1; delta <= 1; delta += 2) {
        gguf_poke_u64(&s.bytes, s.at_n_kv, (uint64_t)(17 + delta));
        CHECK(try_sample(&s, &err) != RD_OK);
        CHECK(names_a_place(&err));
    }
    gguf_poke_u64(&s.bytes, s.at_n_kv, 17);
    gguf_poke_u64(&s.bytes, s.at_n_tensors, 4);
    CHECK(try_sample(&s, &err) != RD_OK);
    CHECK(names_a_place(&err));
    buf_deinit(&s.bytes);
}

TEST(shapes_whose_product_overflows_are_refused)
{
    static const struct {
        uint64_t dims[4];
        const char *text;
    } cases[] = {
        {{UINT64_MAX, 2, 1, 1}, "tensor \"t\": dims [18446744073709551615, 2, 1, 1]: the product overflows"},
        {{1, (uint64_t)1 << 32, (uint64_t)1 << 32, 1},
         "tensor \"t\": dims [1, 4294967296, 4294967296, 1]: the product overflows"},
        {{65536, 65536, 65536, 65536}, "tensor \"t\": dims [65536, 65536, 65536, 65536]: the product overflows"},
        {{(uint64_t)1 << 62, 1, 1, 1},
         "tensor \"t\": dims [4611686018427387904, 1, 1, 1] of type F32: the size overflows"},
        {{2, (uint64_t)1 << 61, 1, 1},
         "tensor \"t\": dims [2, 2305843009213693952, 1, 1] of type F32: the size overflows"},
        {{((uint64_t)1 << 62) - 8, 1, 1, 1}, "tensor \"t\": the offset plus 18446744073709551584 bytes overflows"},
        {{(uint64_t)1 << 40, 1, 1, 1},
         "tensor \"t\": offset 96 + 4398046511104 bytes is beyond the end of the file (128 bytes)"},
    };
    struct rd_error err;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buf b = {0};

        gguf_put_header(&b, 3, 1, 0);
        gguf_put_tensor(&b, "t", 4, cases[i].dims, DTYPE_F32, 0);
        gguf_put_padding(&b, 32);
        for (int k = 0; k < 32; k++) buf_putc(&b, 0);
        CHECK_EQ(try_bytes(b.data, b.n, &err), RD_E_FORMAT);
        CHECK_STR(err.text, cases[i].text);
        buf_deinit(&b);
    }
}

TEST(tensors_beyond_the_end_overlapping_unaligned_or_named_twice_are_refused)
{
    struct gguf_sample s;
    struct rd_error err;
    char text[200];

    gguf_make_sample(&s, 3);
    gguf_poke_u64(&s.bytes, s.tensors[2].offset, 192);
    snprintf(text, sizeof(text), "tensor \"half\": offset %zu + 10 bytes is beyond the end of the file (%zu bytes)",
             s.n_header + 192, s.bytes.n);
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK_STR(err.text, text);
    gguf_poke_u64(&s.bytes, s.tensors[2].offset, UINT64_MAX - 31);
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "tensor \"half\": the offset plus 10 bytes overflows");
    gguf_poke_u64(&s.bytes, s.tensors[2].offset, 150);
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "tensor \"half\": offset 150 is not a multiple of the alignment 32");
    gguf_poke_u64(&s.bytes, s.tensors[2].offset, 128); /* q4 goes on until 140 */
    snprintf(text, sizeof(text), "tensor \"q4\": offset %zu + 108 bytes overlaps tensor \"half\" at %zu",
             s.n_header + 32, s.n_header + 128);
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK_STR(err.text, text);
    gguf_poke_u64(&s.bytes, s.tensors[2].offset, 0); /* the same start as f32 */
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK(strstr(err.text, "overlaps"));
    buf_deinit(&s.bytes);

    struct buf b = {0};
    gguf_put_header(&b, 3, 2, 0);
    gguf_put_tensor(&b, "same", 1, (uint64_t[]){8}, DTYPE_F32, 0);
    gguf_put_tensor(&b, "same", 1, (uint64_t[]){8}, DTYPE_F32, 32);
    gguf_put_padding(&b, 32);
    for (int k = 0; k < 64; k++) buf_putc(&b, 0);
    CHECK_EQ(try_bytes(b.data, b.n, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "tensor \"same\": the name is there twice");
    buf_clear(&b);
    gguf_put_header(&b, 3, 0, 3);
    gguf_put_kv_u32(&b, "x.y", 1);
    gguf_put_kv_u32(&b, "x.z", 1);
    gguf_put_kv_str(&b, "x.y", "a");
    CHECK_EQ(try_bytes(b.data, b.n, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"x.y\": the key is there twice");
    buf_deinit(&b);
}

TEST(types_that_are_unknown_or_not_read_are_refused_by_name)
{
    struct gguf_sample s;
    struct rd_error err;

    gguf_make_sample(&s, 3);
    gguf_poke_u32(&s.bytes, s.tensors[1].type, 16);
    CHECK_EQ(try_sample(&s, &err), RD_E_UNSUPPORTED);
    CHECK(!strncmp(err.text, "tensor \"q4\": type IQ2_XXS is not supported (at byte ", 52));
    gguf_poke_u32(&s.bytes, s.tensors[1].type, 999);
    CHECK_EQ(try_sample(&s, &err), RD_E_UNSUPPORTED);
    CHECK(!strncmp(err.text, "tensor \"q4\": unknown type 999", 29));
    gguf_poke_u32(&s.bytes, s.tensors[1].type, DTYPE_Q4_K);
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "tensor \"q4\": dims [64, 3, 1, 1]: rows are not whole blocks of 256 weights (Q4_K)");
    gguf_poke_u32(&s.bytes, s.tensors[1].type, DTYPE_Q4_0);
    gguf_poke_u64(&s.bytes, s.tensors[1].dims + 8, 0);
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK(!strncmp(err.text, "tensor \"q4\": dims[1] is 0", 25));
    gguf_poke_u64(&s.bytes, s.tensors[1].dims + 8, 3);
    for (uint32_t bad = 0; bad < 3; bad++) {
        gguf_poke_u32(&s.bytes, s.tensors[1].n_dims, (uint32_t[]){0, 5, UINT32_MAX}[bad]);
        CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
        CHECK(strstr(err.text, "dims, expected 1 .. 4"));
    }
    gguf_poke_u32(&s.bytes, s.tensors[1].n_dims, 2);
    gguf_poke_u32(&s.bytes, s.at_type, 13);
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"general.architecture\": unknown value type 13 (at byte 52)");
    gguf_poke_u32(&s.bytes, s.at_type, META_STRING);
    gguf_poke_u32(&s.bytes, s.at_array_type, META_ARRAY);
    CHECK_EQ(try_sample(&s, &err), RD_E_UNSUPPORTED);
    CHECK(!strncmp(err.text, "metadata \"test.u32s\": array of arrays", 37));
    gguf_poke_u32(&s.bytes, s.at_array_type, 77);
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK(!strncmp(err.text, "metadata \"test.u32s\": unknown array type 77", 43));
    gguf_poke_u32(&s.bytes, s.at_array_type, META_BOOL); /* 10 is no bool */
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK(strstr(err.text, "bool with value 10, expected 0 or 1"));
    gguf_poke_u32(&s.bytes, s.at_array_type, META_U32);
    s.bytes.data[s.at_bool] = 2;
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK(!strncmp(err.text, "metadata \"test.bool\": bool with value 2", 39));
    s.bytes.data[s.at_bool] = 0;
    CHECK_OK(try_sample(&s, &err));
    buf_deinit(&s.bytes);
}

TEST(bad_alignments_are_refused)
{
    static const uint32_t bad[] = {0, 1, 4, 7, 12, 48, 131072, UINT32_MAX};
    struct gguf_sample s;
    struct rd_error err;

    gguf_make_sample(&s, 3);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        gguf_poke_u32(&s.bytes, s.at_alignment, bad[i]);
        CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
        CHECK(!strncmp(err.text, "metadata \"general.alignment\": ", 30));
    }
    gguf_poke_u32(&s.bytes, s.at_alignment, 16);
    gguf_poke_u32(&s.bytes, s.at_alignment - 4, META_F32);
    CHECK_EQ(try_sample(&s, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"general.alignment\": type f32, expected an integer");
    buf_deinit(&s.bytes);
}

TEST(empty_keys_and_names_are_refused_and_odd_ones_are_quoted)
{
    struct buf b = {0};
    struct rd_error err;

    gguf_put_header(&b, 3, 0, 1);
    gguf_put_kv_u32(&b, "", 1);
    gguf_put_u32(&b, 0);
    CHECK_EQ(try_bytes(b.data, b.n, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "metadata 0: empty key (at byte 24)");
    buf_clear(&b);
    gguf_put_header(&b, 3, 1, 0);
    gguf_put_tensor(&b, "", 2, (uint64_t[]){1, 1}, DTYPE_F32, 0);
    CHECK_EQ(try_bytes(b.data, b.n, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "tensor 0: empty name (at byte 24)");
    buf_clear(&b);
    gguf_put_header(&b, 3, 0, 1);
    gguf_put_str(&b, "a\nb\x1b[31m");
    gguf_put_u32(&b, 13);
    gguf_put_u64(&b, 0);
    CHECK_EQ(try_bytes(b.data, b.n, &err), RD_E_FORMAT);
    for (const char *c = err.text; *c; c++) CHECK(*c >= ' ' && *c <= '~');
    buf_deinit(&b);
}

TEST(seeded_mutations_are_refused_by_name_or_read_consistently)
{
    struct gguf_sample s;
    struct random r;
    struct rd_error err;
    uint64_t alive;
    int n = test_is_long() ? 200000 : 4000, n_refused = 0;

    gguf_make_sample(&s, 3);
    random_init(&r, test_seed());
    alive = mem_n_alive();
    for (int i = 0; i < n; i++) {
        uint8_t *copy = mem_alloc(s.bytes.n, 1);
        uint64_t n_edits = 1 + random_below(&r, 4);

        CHECK(copy);
        memcpy(copy, s.bytes.data, s.bytes.n);
        for (uint64_t e = 0; e < n_edits; e++) {
            size_t at = random_below(&r, s.n_header);

            switch (random_below(&r, 4)) {
            case 0:
                copy[at] ^= (uint8_t)(1u << random_below(&r, 8));
                break;
            case 1:
                copy[at] = (uint8_t)random_u64(&r);
                break;
            case 2:
                copy[at] = (uint8_t)(copy[at] + 1);
                break;
            default:
                memset(copy + at, random_below(&r, 2) ? 0xff : 0, random_below(&r, s.n_header - at) % 9);
                break;
            }
        }
        if (try_bytes(copy, s.bytes.n, &err) != RD_OK) {
            n_refused++;
            if (!names_a_place(&err)) test_fail(__FILE__, __LINE__, "mutation %d: \"%s\"", i, err.text);
        }
        mem_free(copy);
    }
    test_note("%d of %d mutations refused", n_refused, n);
    CHECK(n_refused > n / 4 && n_refused < n);
    CHECK_EQ(mem_n_alive(), alive);
    buf_deinit(&s.bytes);
}

TEST(running_out_of_memory_at_any_point_leaks_nothing)
{
    struct gguf_sample s;
    struct model_file *g = NULL;
    struct rd_error err;
    uint64_t alive;
    int64_t i = 0;

    gguf_make_sample(&s, 3);
    alive = mem_n_alive();
    for (;; i++) {
        mem_fail_after(i);
        rd_status st = gguf_open_bytes((const uint8_t *)s.bytes.data, s.bytes.n, &g, &err);
        mem_fail_after(-1);
        if (st == RD_OK) break;
        CHECK_EQ(st, RD_E_NOMEM);
        CHECK(!g);
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK(i >= 5);
    model_file_close(g);
    CHECK_EQ(mem_n_alive(), alive);
    buf_deinit(&s.bytes);
}

/* ---- real files ---- */

static const char *temp_path(const char *name)
{
    static char path[300];

    snprintf(path, sizeof(path), "%s/gguf_test_%ld_%s", RADISH_BUILD_DIR, (long)getpid(), name);
    return path;
}

TEST(files_that_are_not_regular_are_refused)
{
    const char *path = temp_path("fifo");
    struct model_file *g = NULL;
    struct rd_error err;
    uint64_t alive = mem_n_alive();

    CHECK_EQ(mkfifo(path, 0600), 0);
    CHECK_EQ(gguf_open(path, &g, &err), RD_E_INVALID); /* and does not wait for a writer */
    unlink(path);
    CHECK_EQ(gguf_open("/dev/null", &g, &err), RD_E_INVALID);
    CHECK_EQ(gguf_open("/dev/zero", &g, &err), RD_E_INVALID);
    CHECK_EQ(gguf_open("/", &g, &err), RD_E_INVALID);
    CHECK_EQ(gguf_open(temp_path("absent"), &g, &err), RD_E_NOT_FOUND);
    CHECK(!g);
    CHECK_EQ(mem_n_alive(), alive);
}

TEST(an_empty_file_and_io_errors_are_refused)
{
    const char *path = temp_path("io");
    struct gguf_sample s;
    struct model_file *g = NULL;
    struct rd_error err;
    uint64_t alive;
    int64_t i = 0;

    CHECK_OK(file_write_all(path, "", 0, &err));
    CHECK_EQ(gguf_open(path, &g, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "header: not a GGUF file: it has less than 4 bytes");
    gguf_make_sample(&s, 3);
    CHECK_OK(file_write_all(path, s.bytes.data, s.bytes.n, &err));
    alive = mem_n_alive();
    for (;; i++) {
        file_fail_after(i);
        rd_status st = gguf_open(path, &g, &err);
        file_fail_after(-1);
        if (st == RD_OK) break;
        CHECK_EQ(st, RD_E_IO);
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK(i >= 2);
    model_file_close(g);
    unlink(path);
    buf_deinit(&s.bytes);
}

static rd_status sum_last_tensor(void *arg)
{
    const struct model_tensor *t = model_file_find_tensor(arg, "t");
    volatile uint8_t sum = 0;

    for (uint64_t i = 0; i < t->n_bytes; i++) sum = (uint8_t)(sum + t->data[i]);
    return RD_OK;
}

/* Four pages of data behind the header, so that cutting the file takes whole pages of the mapping away. */
TEST(a_file_cut_while_open_gives_an_error_and_no_signal)
{
    const char *path = temp_path("cut");
    struct buf b = {0}, listing = {0};
    struct model_file *g = NULL;
    struct rd_error err;

    gguf_put_header(&b, 3, 1, 1);
    gguf_put_kv_str(&b, "k", "v");
    gguf_put_tensor(&b, "t", 1, (uint64_t[]){16384 * 4}, DTYPE_F32, 0);
    gguf_put_padding(&b, 32);
    for (int i = 0; i < 16384 * 16; i++) buf_putc(&b, 1);
    CHECK_OK(file_write_all(path, b.data, b.n, &err));
    CHECK_OK(gguf_open(path, &g, &err));
    CHECK(model_file_unchanged(g));
    CHECK_OK(model_file_guard(g, sum_last_tensor, g, &err));
    CHECK_EQ(truncate(path, 8192), 0);
    CHECK(!model_file_unchanged(g));
    CHECK_EQ(model_file_guard(g, sum_last_tensor, g, &err), RD_E_IO);
    CHECK_OK(gguf_dump_text(g, &listing, &err)); /* the header is still there */
    CHECK_EQ(truncate(path, 0), 0);
    CHECK_EQ(gguf_dump_json(g, &listing, &err), RD_E_IO);
    model_file_close(g);
    CHECK_EQ(gguf_open(path, &g, &err), RD_E_FORMAT);
    unlink(path);
    buf_deinit(&b);
    buf_deinit(&listing);
}
