/* tests/engine/test_executor_open.c - the front door: what is open is described, what cannot be opened is named, and a
 * failing allocation leaves nothing behind. */
#include "base/log.h"
#include "base/mem.h"
#include "base/sysinfo.h"
#include "engine/executor.h"
#include "test.h"

static struct model_file *open_tiny(void)
{
    struct model_file *f = NULL;

    if (model_file_open(test_path("tests/golden/llama/tiny-llama.gguf"), model_hub_families(), &f, NULL) != RD_OK)
        abort();
    return f;
}

static struct executor_options options(const struct model_file *f)
{
    return (struct executor_options){.file = f,
                                     .device = "cpu",
                                     .n_threads = 1,
                                     .max_running = 4,
                                     .max_chunk = 16,
                                     .page_tokens = 8,
                                     .dtype_k = DTYPE_F16,
                                     .dtype_v = DTYPE_F16,
                                     .kv_tokens = 256};
}

TEST(an_open_executor_is_described)
{
    struct model_file *f = open_tiny();
    const struct executor_options o = options(f);
    struct executor_traits t, t2;
    struct executor *x = NULL, *second = NULL;
    struct executor_options beside = o;

    CHECK_OK(executor_open(&o, &x, &t, NULL));
    CHECK(t.device.shares_memory && t.device.slow_prompts && t.device.same_everywhere && x->page);
    CHECK_STR(t.computes, "cpu");
    CHECK(strstr(t.about, "1 thread") != NULL);
    CHECK_EQ(t.n_pages, 32);
    CHECK_EQ(t.max_chunk, 16);
    CHECK_EQ(x->max_rows, 16);
    CHECK_EQ(x->page_bytes, kv_page_bytes(&t.layout));
    CHECK(t.weight_bytes > 0 && t.workspace_bytes > 0);
    CHECK_EQ(t.adapter_bytes, sysinfo_memory() / 4);
    beside.beside = x;
    beside.max_logits = 3;
    CHECK_OK(executor_open(&beside, &second, &t2, NULL)); /* a draft model's: on the same device */
    CHECK_STR(t2.about, t.about);
    CHECK_EQ(second->max_logits, 3);
    executor_close(second);
    executor_close(x);
    executor_close(NULL);
    model_file_close(f);
}

TEST(what_cannot_be_opened_is_named)
{
    struct model_file *f = open_tiny();
    struct executor_options o = options(f);
    struct executor_traits t;
    struct executor *x = NULL;
    struct rd_error err = {RD_OK, ""};

    o.page_tokens = 24;
    CHECK_EQ(executor_open(&o, &x, &t, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "power of two"));
    o = options(f), o.device = "abacus";
    CHECK_EQ(executor_open(&o, &x, &t, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "\"abacus\""));
    o = options(f), o.isa = "mmx";
    CHECK(executor_open(&o, &x, &t, &err) != RD_OK);
    o = options(f), o.kv_tokens = 1;
    CHECK_EQ(executor_open(&o, &x, &t, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "KV budget"));
    o = options(f), o.kv_tokens = 1ull << 50;
    CHECK_EQ(executor_open(&o, &x, &t, &err), RD_E_NOMEM);
    CHECK(x == NULL);
    model_file_close(f);
}

TEST(a_failing_allocation_leaves_nothing)
{
    struct model_file *f = open_tiny();
    const struct executor_options o = options(f);
    uint64_t alive = mem_n_alive();
    rd_status st = RD_E_NOMEM;

    log_set_level(LOG_ERROR);
    for (int64_t i = 0; st == RD_E_NOMEM && i < 2000; i++) {
        struct executor *x = NULL;
        struct executor_traits t;

        mem_fail_after(i);
        st = executor_open(&o, &x, &t, NULL);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        executor_close(x);
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK_OK(st);
    model_file_close(f);
}

/* The bar of layer groups: Gemma 3's cache for 8,192 tokens takes a third of what whole pages take. */
TEST(gemma3_takes_a_third_of_what_whole_pages_take)
{
    struct model_config c = {.n_layers = 18,
                             .n_heads = 4,
                             .n_kv_heads = 1,
                             .head_dim = 256,
                             .window = 512,
                             .window_pattern = 6,
                             .n_ctx_train = 32768};
    const struct kv_layout l = {18, 1, 256, 16, DTYPE_F16, DTYPE_F16};
    const uint64_t whole = 8192 / 16 * kv_page_bytes(&l), now = executor_kv_bytes(&c, &l, 8192);

    test_note("270M: %.1f MiB, of %.1f MiB in whole pages", (double)now / (1 << 20), (double)whole / (1 << 20));
    CHECK(now * 100 <= whole * 35);
    CHECK(now > whole / 6 + (whole - whole / 6) / 16); /* three layers of all tokens, the others of 512 at least */
    c.window = 0;
    CHECK_EQ(executor_kv_bytes(&c, &l, 8192), whole);
    c.window = 32768;
    CHECK_EQ(executor_kv_bytes(&c, &l, 8192), whole);
}

/* Every other layer of Gemma 2 sees 4,096 tokens: what they can see, and a chunk more, is all that those take. */
TEST(gemma2_takes_what_its_layers_can_see)
{
    struct model_config c = {.n_layers = 26,
                             .n_heads = 8,
                             .n_kv_heads = 4,
                             .head_dim = 256,
                             .window = 4096,
                             .window_pattern = 2,
                             .n_ctx_train = 8192};
    const struct kv_layout l = {26, 4, 256, 16, DTYPE_F16, DTYPE_F16};
    const uint64_t whole = 8192 / 16 * kv_page_bytes(&l), now = executor_kv_bytes(&c, &l, 8192);

    test_note("2B: %.1f MiB, of %.1f MiB in whole pages", (double)now / (1 << 20), (double)whole / (1 << 20));
    CHECK(now * 100 <= whole * 83);
    CHECK(now > whole / 2 + whole / 4); /* half of the layers all tokens, the others 4,096 at least */
}

TEST(windows_are_made_where_layers_have_one)
{
    struct model_file *f = NULL;
    struct executor_options o;
    struct executor_traits t, whole;
    struct executor *x = NULL;

    CHECK_OK(model_file_open(test_path("tests/golden/gemma3/tiny-gemma3.gguf"), model_hub_families(), &f, NULL));
    o = options(f);
    o.kv_tokens = 16384;
    CHECK_OK(executor_open(&o, &x, &t, NULL));
    CHECK(t.window == 12 && t.n_pages == 2048 && t.n_windows == x->n_windows && x->window == 12 && !x->page);
    CHECK_EQ(t.kv_bytes, t.n_pages * t.page_bytes + t.n_windows * t.window_bytes);
    CHECK_EQ(t.page_bytes + t.window_bytes, kv_page_bytes(&t.layout));
    CHECK_EQ(x->page_bytes, kv_page_bytes(&t.layout) + 8);
    executor_close(x);
    o.whole_pages = true;
    CHECK_OK(executor_open(&o, &x, &whole, NULL));
    CHECK(whole.window == 0 && whole.n_windows == 0 && x->page && x->window == 0);
    CHECK_EQ(whole.kv_bytes, whole.n_pages * kv_page_bytes(&t.layout));
    executor_close(x);
    o.whole_pages = false;
    o.kv_tokens = 0, o.kv_bytes = whole.kv_bytes; /* the same memory holds more, and no more than it is */
    CHECK_OK(executor_open(&o, &x, &t, NULL));
    CHECK(t.n_pages > whole.n_pages && t.kv_bytes <= whole.kv_bytes &&
          t.kv_bytes + kv_page_bytes(&t.layout) > whole.kv_bytes);
    executor_close(x);
    model_file_close(f);
}
