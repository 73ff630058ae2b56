/* tests/format/test_gguf_dump.c - the listings: what they say, that they are safe to show, and their failures. */
#include "format/gguf/gguf.h"
#include "format/gguf/gguf_dump.h"
#include "base/mem.h"
#include "gguf_make.h"
#include "test.h"

static struct model_file *open_buf(const struct buf *b)
{
    struct model_file *g = NULL;
    struct rd_error err;

    if (gguf_open_bytes((const uint8_t *)b->data, b->n, &g, &err))
        test_fail(__FILE__, __LINE__, "sample: %s", err.text);
    return g;
}

TEST(text_lists_metadata_tensors_and_totals)
{
    static const char *const lines[] = {
        "GGUF version 3, ",
        "\nmetadata (17)\n",
        "\n  general.architecture                         string           \"llama\"\n",
        "\n  test.i8                                      i8               -100\n",
        "\n  test.u64                                     u64              18446744073709551615\n",
        "\n  test.i64                                     i64              -9223372036854775808\n",
        "\n  test.f64                                     f64              1.0000000000000001e+300\n",
        "\n  test.bool                                    bool             true\n",
        "\n  test.u32s                                    u32[3]           [10, 11, 12]\n",
        "\n  test.f32s                                    f32[2]           [1.5, -2]\n",
        "\n  test.strings                                 string[3]        [\"one\", \"\", \"drei\\xff\"]\n",
        "\n  test.bools                                   bool[2]          [false, true]\n",
        "\ntensors (3)\n",
        "\n  q4                                           Q4_0  [64, 3]                  offset ",
        "\ntotals\n  F32        1 tensors               8 weights  32 bytes  32.00 bits per weight\n",
        "\n  Q4_0       1 tensors             192 weights  108 bytes  4.50 bits per weight\n",
        "\n  all        3 tensors             205 weights  150 bytes  5.85 bits per weight\n",
    };
    struct gguf_sample s;
    struct buf out = {0};
    struct rd_error err;

    gguf_make_sample(&s, 3);
    struct model_file *g = open_buf(&s.bytes);
    CHECK_OK(gguf_dump_text(g, &out, &err));
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        if (!strstr(out.data, lines[i])) test_fail(__FILE__, __LINE__, "not there: %s\nin\n%s", lines[i], out.data);
    model_file_close(g);
    buf_deinit(&out);
    buf_deinit(&s.bytes);
}

TEST(json_lists_metadata_tensors_and_totals)
{
    static const char *const parts[] = {
        "{\"version\": 2, \"file_bytes\": ",
        "{\"key\": \"general.architecture\", \"type\": \"string\", \"value\": \"llama\"}",
        "{\"key\": \"test.i64\", \"type\": \"i64\", \"value\": -9223372036854775808}",
        "{\"key\": \"test.bool\", \"type\": \"bool\", \"value\": true}",
        ("{\"key\": \"test.strings\", \"type\": \"array\", \"array_type\": \"string\", \"n\": 3, "
         "\"first\": [\"one\", \"\", \"drei\xef\xbf\xbd\"]}"),
        "{\"name\": \"q4\", \"type\": \"Q4_0\", \"dims\": [64, 3], \"offset\": ",
        "\"totals\": {\"metadata\": 17, \"tensors\": 3, \"weights\": 205, \"bytes\": 150, \"types\": [",
        "{\"type\": \"Q4_0\", \"tensors\": 1, \"weights\": 192, \"bytes\": 108}]}}\n",
    };
    struct gguf_sample s;
    struct buf out = {0};
    struct rd_error err;

    gguf_make_sample(&s, 2);
    struct model_file *g = open_buf(&s.bytes);
    CHECK_OK(gguf_dump_json(g, &out, &err));
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (!strstr(out.data, parts[i])) test_fail(__FILE__, __LINE__, "not there: %s\nin\n%s", parts[i], out.data);
    model_file_close(g);
    buf_deinit(&out);
    buf_deinit(&s.bytes);
}

TEST(long_arrays_and_strings_are_shortened_and_control_bytes_escaped)
{
    struct buf b = {0}, out = {0};
    struct rd_error err;
    char text[4001];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    gguf_put_header(&b, 3, 0, 4);
    gguf_put_kv_str(&b, "long", text);
    gguf_put_kv_str(&b, "evil\n\x1b[2J", "\x1b]0;title\x07\"");
    gguf_put_kv_array(&b, "many", META_U32, 1000);
    for (uint32_t i = 0; i < 1000; i++) gguf_put_u32(&b, i);
    gguf_put_kv_array(&b, "inf", META_F32, 1);
    gguf_put_u32(&b, 0x7f800000);
    struct model_file *g = open_buf(&b);
    CHECK_OK(gguf_dump_text(g, &out, &err));
    CHECK(out.n < 1000);
    CHECK(strstr(out.data, "[0, 1, 2, 3, 4, 5, ...]"));
    CHECK(strstr(out.data, "[inf]"));
    for (size_t i = 0; i < out.n; i++) CHECK(out.data[i] == '\n' || (out.data[i] >= ' ' && out.data[i] <= '~'));
    buf_clear(&out);
    CHECK_OK(gguf_dump_json(g, &out, &err));
    CHECK(strstr(out.data, text));
    CHECK(strstr(out.data, "\"n\": 1000, \"first\": [0, 1, "));
    CHECK(strstr(out.data, "\"first\": [null]"));
    CHECK(!strchr(out.data, '\x1b'));
    model_file_close(g);
    buf_deinit(&out);
    buf_deinit(&b);
}

TEST(a_listing_that_runs_out_of_memory_or_limit_says_so)
{
    struct gguf_sample s;
    struct rd_error err;
    uint64_t alive;

    gguf_make_sample(&s, 3);
    struct model_file *g = open_buf(&s.bytes);
    alive = mem_n_alive();
    for (int json = 0; json < 2; json++) {
        rd_status st = RD_E_NOMEM;

        for (int64_t i = 0; st != RD_OK; i++) {
            struct buf out = {0};

            mem_fail_after(i);
            st = json ? gguf_dump_json(g, &out, &err) : gguf_dump_text(g, &out, &err);
            mem_fail_after(-1);
            if (st != RD_OK) CHECK_EQ(st, RD_E_NOMEM);
            buf_deinit(&out);
            CHECK_EQ(mem_n_alive(), alive);
        }
        struct buf small = {.limit = 100};
        CHECK_EQ(json ? gguf_dump_json(g, &small, &err) : gguf_dump_text(g, &small, &err), RD_E_NOMEM);
        buf_deinit(&small);
    }
    model_file_close(g);
    buf_deinit(&s.bytes);
}
