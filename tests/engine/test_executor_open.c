/* tests/engine/test_executor_open.c - the front door: what is open is described, what cannot be opened is named, and a
 * failing allocation leaves nothing behind. */
#include "base/log.h"
#include "base/mem.h"
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
