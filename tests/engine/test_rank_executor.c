/* tests/engine/test_rank_executor.c - promise 1 for any number of ranks: logits and pages of 1 rank are those of 2, 3, 4 and 8,
 * cold, cached, in chunks, among strangers, and from a disk that another number of ranks wrote; and what happens when a rank
 * fails, does not come back, or computes something else. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/log.h"
#include "engine/executors/rank_executor.h"
#include "engine/tiers/ram_link.h"
#include "fake_nodes.h"
#include "model/model_arch.h"
#include "rank_rig.h"

#define N_TOKENS (IS_SANITIZED ? 40u : 90u)

static const struct kv_types halves = {DTYPE_F16, DTYPE_F16};

/* The bytes of every page, one after the other: [n_pages, page_bytes]. */
static uint8_t *all_pages(const struct ranked *r)
{
    uint8_t *bytes = malloc(r->t.n_pages * r->x->page_bytes);

    for (uint32_t i = 0; i < r->t.n_pages; i++)
        if (r->x->page_out(r->x->self, i, bytes + i * r->x->page_bytes) != RD_OK)
            test_fail(__FILE__, __LINE__, "page %u does not come out", i);
    return bytes;
}

static void strangers(struct rig *g, struct request **out, uint32_t n)
{
    int32_t tokens[64];

    for (uint32_t i = 0; i < n; i++) {
        make_tokens(g, tokens, 10 + 9 * i, 500 + i);
        out[i] = submit(g, tokens, 10 + 9 * i, true, 100, NULL);
        CHECK(out[i] != NULL);
    }
}

static void send_away(struct rig *g, struct request **who, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        request_cancel(who[i], CANCEL_GONE);
        while (!atomic_load(&who[i]->ended)) engine_step(g->e);
        request_unref(who[i]);
    }
}

/* Four texts at once, to their ends; on a GPU in steps that are recorded, and begun ahead. They are what they are alone in
 * one rank. */
#define N_TEXT 30u
static void write_texts(struct ranked *r, int32_t texts[4][N_TEXT])
{
    struct request *who[4];
    int32_t tokens[64];

    for (uint32_t i = 0; i < 4; i++) {
        make_tokens(&r->g, tokens, 12 + 7 * i, 900 + i);
        who[i] = submit(&r->g, tokens, 12 + 7 * i, false, N_TEXT, NULL);
        CHECK(who[i] != NULL);
    }
    for (uint32_t i = 0; i < 4; i++) {
        while (!atomic_load(&who[i]->ended)) engine_step(r->g.e);
        CHECK_OK(who[i]->status);
        CHECK(who[i]->seq.n_keys >= 12 + 7 * i + N_TEXT - 1); /* the last one is not computed */
        for (uint32_t k = 0; k < N_TEXT - 1; k++) texts[i][k] = (int32_t)who[i]->seq.keys[12 + 7 * i + k];
        texts[i][N_TEXT - 1] = 0;
        request_unref(who[i]);
    }
}

/* What one rank gave: for the others to equal. */
struct given {
    float *logits;
    int32_t texts[4][N_TEXT];
    uint32_t n_texts;
    uint8_t *pages;
    uint64_t page_bytes;
};

/* Which pages have windows depends on how the prompt was cut, and that on time. */
static bool same_page(const struct ranked *r, const uint8_t *a, const uint8_t *b)
{
    const uint64_t n_global = r->t.page_bytes;
    const bool both = executor_has_window(r->x, a) && executor_has_window(r->x, b);

    return memcmp(a, b, n_global) == 0 && (!both || memcmp(a + n_global, b + n_global, r->t.window_bytes) == 0);
}

/* Logits of the prompt in every way; those of the first run are the measure. */
static void check_ways(struct ranked *r, const int32_t *tokens, struct given *given, uint32_t gap)
{
    const size_t n_bytes = r->g.n_vocab * sizeof(float);
    float *logits = malloc(n_bytes);
    struct request *others[4];
    int32_t texts[4][N_TEXT];
    uint32_t n_cached = 0;

    CHECK(run(&r->g, tokens, N_TOKENS, true, logits, NULL));
    if (!given->logits) {
        given->logits = malloc(n_bytes);
        memcpy(given->logits, logits, n_bytes);
        given->pages = all_pages(r);
        given->page_bytes = r->x->page_bytes;
    } else {
        uint8_t *pages = all_pages(r);

        CHECK(memcmp(given->logits, logits, n_bytes) == 0);
        CHECK_EQ(r->x->page_bytes, given->page_bytes);
        for (uint32_t i = 0; i < r->t.n_pages; i++)
            if (!same_page(r, given->pages + i * given->page_bytes, pages + i * given->page_bytes))
                test_fail(__FILE__, __LINE__, "%s: page %u differs", r->t.about, i);
        free(pages);
    }
    CHECK(run(&r->g, tokens, N_TOKENS, true, logits, &n_cached)); /* the head alone */
    CHECK_EQ(n_cached, N_TOKENS);
    CHECK(memcmp(given->logits, logits, n_bytes) == 0);
    for (uint32_t n = N_TOKENS - 1; n > 0;
         n -= u32_min(n, gap)) { /* another prompt that ends here; then this one on from it */
        radix_clear(r->g.e->cache.tree, NULL);
        CHECK(run(&r->g, tokens, n, true, logits, NULL));
        CHECK(run(&r->g, tokens, N_TOKENS, true, logits, &n_cached));
        CHECK_EQ(n_cached, n);
        CHECK(memcmp(given->logits, logits, n_bytes) == 0);
    }
    r->g.e->o.max_chunk = 3;
    CHECK(run(&r->g, tokens, N_TOKENS, false, logits, NULL));
    CHECK(memcmp(given->logits, logits, n_bytes) == 0);
    r->g.e->o.max_chunk = 64;
    strangers(&r->g, others, 4);
    for (int i = 0; i < 3; i++) engine_step(r->g.e);
    CHECK(run(&r->g, tokens, N_TOKENS, false, logits, NULL));
    CHECK(memcmp(given->logits, logits, n_bytes) == 0);
    send_away(&r->g, others, 4);
    for (int again = 0; again < (r->g.e->o.executor.begin ? 3 : 1); again++) { /* as they are, recorded, replayed */
        write_texts(r, texts);
        if (given->n_texts++ == 0) memcpy(given->texts, texts, sizeof(texts));
        CHECK(memcmp(given->texts, texts, sizeof(texts)) == 0);
    }
    free(logits);
}

static void check_model(const char *model, struct kv_types kv, bool some)
{
    struct given given = {.logits = NULL};
    int32_t tokens[N_TOKENS];

    for (size_t i = 0; i < sizeof(rank_numbers) / sizeof(rank_numbers[0]); i++) {
        struct ranked r;

        if ((some && !test_is_long() && rank_numbers[i] > 2) || !rank_number_fits(rank_numbers[i])) break;
        CHECK(open_ranked(&r, model, rank_numbers[i], kv));
        make_tokens(&r.g, tokens, N_TOKENS, 42);
        check_ways(&r, tokens, &given, some && !test_is_long() ? 29 : 11);
        close_ranked(&r);
    }
    free(given.logits);
    free(given.pages);
}

TEST(every_architecture_has_the_bits_of_one_rank)
{
    static const char *const models[] = {
        "tests/golden/llama/tiny-llama.gguf",   "tests/golden/llama/tiny-llama31.gguf",
        "tests/golden/qwen2/tiny-qwen2.gguf",   "tests/golden/qwen2/tiny-qwen2-yarn.gguf",
        "tests/golden/qwen3/tiny-qwen3.gguf",   "tests/golden/qwen3/tiny-qwen3-tied.gguf",
        "tests/golden/gemma2/tiny-gemma2.gguf", "tests/golden/gemma3/tiny-gemma3.gguf",
        "tests/golden/fp8/tiny-qwen3-fp8",
    };

    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i += IS_SANITIZED && !test_is_long() ? 2 : 1)
        check_model(models[i], halves, false);
}

TEST(quantised_pages_have_the_bits_of_one_rank)
{
    check_model("tests/golden/gemma3/tiny-gemma3.gguf", (struct kv_types){DTYPE_F32, DTYPE_BF16}, false);
    if (IS_SANITIZED || !test_model("qwen2.5-coder-0.5b")) {
        test_skip("the tiny models' heads are smaller than a block");
        return;
    }
    check_model("qwen2.5-coder-0.5b", (struct kv_types){DTYPE_Q8_0, DTYPE_Q8_0}, true); /* whose keys have a bias */
    check_model("smollm2", (struct kv_types){DTYPE_Q8_0, DTYPE_Q4_0}, true);
}

TEST(real_models_have_the_bits_of_one_rank)
{
    static const char *const models[] = {"smollm2", "gemma3-270m", "qwen2.5-coder-0.5b"};

    if (IS_SANITIZED) {
        test_skip("the tiny models take the same ways, in a tenth of the time");
        return;
    }
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        if (test_model(models[i]))
            check_model(models[i], halves, true);
        else
            test_skip("%s has not been fetched (tools/fetch-model %s)", models[i], models[i]);
}

/* The engine begins anew with the store, whose folder may be another number's. */
static bool begin_with(struct ranked *r, struct sim_store *s)
{
    engine_destroy(r->g.e);
    r->g.e = NULL;
    if (!sim_store_open(s, PAGE_TOKENS, r->x->page_bytes, 1ull << 30, clock_system(), true)) return false;
    r->g.o.store = s->link;
    return engine_create(&r->g.o, &r->g.e) == RD_OK;
}

TEST(what_one_number_of_ranks_stored_another_reads)
{
    static const char *const models[] = {"smollm2", "gemma3-270m"}; /* it takes longer to compute them than to read */

    uint32_t n_read = 0;

    if (IS_SANITIZED || !test_model(models[0]) || !test_model(models[1])) {
        test_skip("%s", IS_SANITIZED ? "the pages themselves are compared above" : "not both models have been fetched");
        return;
    }
    for (size_t k = 0; k < sizeof(models) / sizeof(models[0]); k++)
        for (size_t i = 0; i < sizeof(rank_numbers) / sizeof(rank_numbers[0]); i++) {
            struct ranked a, b;
            struct sim_store s = {0};
            int32_t tokens[N_TOKENS];
            float *cold, *logits;
            uint32_t n_cached = 0;

            CHECK(sim_store_init(&s));
            CHECK(open_ranked(&a, models[k], rank_numbers[i], halves));
            cold = malloc(a.g.n_vocab * sizeof(float));
            logits = malloc(a.g.n_vocab * sizeof(float));
            make_tokens(&a.g, tokens, N_TOKENS, 7);
            CHECK(begin_with(&a, &s));
            CHECK(run(&a.g, tokens, N_TOKENS, true, cold, NULL));
            engine_destroy(a.g.e);
            a.g.e = NULL;
            sim_store_close(&s);
            CHECK(open_ranked(&b, models[k], rank_numbers[(i + 1) % 5], halves));
            CHECK(begin_with(&b, &s));
            CHECK(run(&b.g, tokens, N_TOKENS, true, logits, &n_cached));
            n_read += n_cached == N_TOKENS;
            CHECK(memcmp(cold, logits, b.g.n_vocab * sizeof(float)) == 0);
            close_ranked(&b);
            sim_store_deinit(&s);
            close_ranked(&a);
            free(cold);
            free(logits);
        }
    test_note("%u of 10 read it, the others found computing faster", n_read);
    CHECK(n_read >= 5);
}

/* The engine begins anew with few pages, behind which is host memory. */
static bool begin_with_ram(struct ranked *r, uint32_t n_pages, struct ram_link **ram)
{
    engine_destroy(r->g.e);
    r->g.e = NULL;
    if (ram_link_create(200 * r->x->page_bytes, r->x->page_bytes, PAGE_TOKENS, 512 / PAGE_TOKENS, false, ram) != RD_OK)
        return false;
    r->g.o.ram = *ram;
    r->g.o.n_pages = n_pages;
    r->g.o.executor.n_windows =
        u32_min(r->x->n_windows, n_pages); /* of those that it has, as many as an engine can use */
    return engine_create(&r->g.o, &r->g.e) == RD_OK;
}

TEST(pages_of_all_ranks_go_to_host_memory_and_come_back)
{
    static const char *const models[] = {"tests/golden/llama/tiny-llama.gguf", "tests/golden/qwen2/tiny-qwen2.gguf",
                                         "tests/golden/gemma3/tiny-gemma3.gguf"};

    for (size_t k = 0; k < sizeof(models) / sizeof(models[0]); k++) {
        float *given = NULL;

        for (size_t i = 0; i < sizeof(rank_numbers) / sizeof(rank_numbers[0]); i++) {
            struct ram_link *ram = NULL;
            struct engine_stats s;
            struct ranked r;
            int32_t tokens[N_TOKENS], others[N_TOKENS];
            float *logits;
            size_t n_bytes;

            if (!rank_number_fits(rank_numbers[i])) break;
            CHECK(open_ranked(&r, models[k], rank_numbers[i], halves));
            CHECK(begin_with_ram(&r, N_TOKENS / PAGE_TOKENS + 3, &ram));
            n_bytes = r.g.n_vocab * sizeof(float);
            logits = malloc(n_bytes);
            make_tokens(&r.g, tokens, N_TOKENS, 42);
            CHECK(run(&r.g, tokens, N_TOKENS, true, logits, NULL));
            if (!given) memcpy(given = malloc(n_bytes), logits, n_bytes);
            CHECK(memcmp(given, logits, n_bytes) == 0);
            for (uint64_t n = 0; n < 4; n++) {
                make_tokens(&r.g, others, N_TOKENS, 100 + n); /* pushes it out, all of it or a part */
                CHECK(run(&r.g, others, N_TOKENS - 9 * (uint32_t)n, true, logits, NULL));
                CHECK(run(&r.g, tokens, N_TOKENS, true, logits, NULL));
                CHECK(memcmp(given, logits, n_bytes) == 0);
            }
            engine_get_stats(r.g.e, &s);
            CHECK(s.prompt_ram >= 2 * PAGE_TOKENS);
            engine_destroy(r.g.e);
            r.g.e = NULL;
            ram_link_destroy(ram);
            free(logits);
            close_ranked(&r);
        }
        free(given);
    }
}

TEST(steps_are_recorded_while_nothing_is_to_do_by_all_ranks)
{
    int32_t given[4][N_TEXT], texts[4][N_TEXT];

    for (uint32_t n_ranks = 1; n_ranks <= 2; n_ranks++) {
        struct ranked r;
        uint32_t n_steps = 0;
        rd_status st = RD_OK;

        CHECK(open_ranked(&r, "tests/golden/qwen3/tiny-qwen3.gguf", n_ranks, halves));
        CHECK_EQ(r.x->warm_up != NULL, test_on_gpu());
        while (r.x->warm_up && (st = r.x->warm_up(r.x->self)) == RD_E_AGAIN) n_steps++;
        CHECK_OK(st);
        CHECK_EQ(n_steps > 4, test_on_gpu());
        write_texts(&r, n_ranks == 1 ? given : texts); /* replayed from the first step on */
        close_ranked(&r);
    }
    CHECK(memcmp(given, texts, sizeof(texts)) == 0);
}

/* ---- nodes ---- */

/* A pass of one token at position 0, straight through the executor. */
static rd_status one_pass(struct executor *x, float *logits)
{
    const kv_page table[1] = {0};
    struct model_batch b;
    rd_status st;

    if (model_batch_init(&b, (struct model_batch_room){4, 4, 4, 0}) != RD_OK) return RD_E_NOMEM;
    model_batch_begin_run(&b, 0, table, NULL);
    model_batch_want_logits(&b, model_batch_add_row(&b, 5, PAGE_TOKENS), NULL);
    st = x->forward(x->self, &b, logits);
    model_batch_deinit(&b);
    return st;
}

/* What /proc says of the threads of that name: the one core that all of them keep to; -1: there are others, or none. */
static int core_of_threads(const char *name)
{
    char command[256], line[64] = "";
    FILE *out;
    int core = -1, n = 0;

    snprintf(
        command, sizeof(command),
        "for t in /proc/%d/task/*; do [ \"$(cat $t/comm)\" != '%s' ] || sed -n 's/^Cpus_allowed_list:.//p' $t/status; "
        "done | sort -u",
        (int)getpid(), name);
    out = popen(command, "r");
    for (; fgets(line, sizeof(line), out); n++) core = strspn(line, "0123456789\n") == strlen(line) ? atoi(line) : -1;
    pclose(out);
    return n == 1 ? core : -1;
}

TEST(ranks_of_a_cpu_keep_to_a_node_each)
{
    struct fake_nodes nodes;
    struct model_file *f = NULL;
    struct executor_options o;
    struct executor_traits t;
    struct executor *x = NULL;
    cpu_set_t at_first, now;
    float *logits;
    int cores[2];

    if (test_on_gpu() || !two_cores(cores)) {
        test_skip("ranks of GPUs, or one core");
        return;
    }
    CHECK(fake_nodes_make(&nodes, "0-1"));
    for (uint32_t i = 0; i < 2; i++) {
        char text[16];

        snprintf(text, sizeof(text), "%d", cores[i]);
        CHECK(fake_nodes_add(&nodes, i, text));
    }
    CHECK_EQ(sched_getaffinity(0, sizeof(at_first), &at_first), 0);
    CHECK_OK(model_file_open(test_path("tests/golden/llama/tiny-llama.gguf"), model_hub_families(), &f, NULL));
    o = rank_options(f, 2, halves);
    o.numa_root = nodes.path;
    o.n_threads = 4;
    CHECK_OK(executor_open(&o, &x, &t, NULL));
    CHECK_EQ(sched_getaffinity(0, sizeof(now), &now), 0);
    CHECK(CPU_EQUAL(&at_first, &now)); /* who loads need not be who computes */
    CHECK_EQ(core_of_threads("rank 1"), cores[1]);
    logits = malloc(x->n_vocab * sizeof(float));
    CHECK_OK(one_pass(x, logits));
    CHECK_EQ(sched_getaffinity(0, sizeof(now), &now), 0);
    CHECK(CPU_COUNT(&now) == 1 && CPU_ISSET(cores[0], &now)); /* rank 0 */
    executor_close(x);
    CHECK_EQ(sched_setaffinity(0, sizeof(at_first), &at_first), 0);
    free(logits);
    model_file_close(f);
    CHECK(fake_nodes_remove(&nodes));
}

/* ---- faults ---- */

struct fault {
    atomic_int what; /* rd_status of rank 1's next passes */
    atomic_bool hang;
};

static rd_status say_fault(void *arg, uint32_t rank)
{
    struct fault *f = arg;

    if (rank != 1) return RD_OK;
    while (atomic_load(&f->hang)) usleep(1000);
    return (rd_status)atomic_load(&f->what);
}

/* A small model of ranks, the second of which may be made to fail. */
struct tiny {
    struct model_file *f;
    struct executor *x;
    struct executor_traits t;
    struct fault fault;
    float *logits, *again;
};

static void open_tiny(struct tiny *m, uint32_t n_ranks, uint64_t patience_ns)
{
    struct executor_options o;

    memset(m, 0, sizeof(*m));
    CHECK_OK(model_file_open(test_path("tests/golden/llama/tiny-llama.gguf"), model_hub_families(), &m->f, NULL));
    o = rank_options(m->f, n_ranks, halves);
    o.rank_fault = say_fault;
    o.rank_fault_arg = &m->fault;
    if (patience_ns) o.rank_patience_ns = patience_ns;
    CHECK_OK(executor_open(&o, &m->x, &m->t, NULL));
    m->logits = malloc(m->x->n_vocab * sizeof(float));
    m->again = malloc(m->x->n_vocab * sizeof(float));
    CHECK_OK(one_pass(m->x, m->logits));
}

static void close_tiny(struct tiny *m)
{
    executor_close(m->x);
    model_file_close(m->f);
    free(m->logits);
    free(m->again);
}

TEST(a_rank_that_fails_ends_the_pass_and_not_the_next)
{
    struct tiny m;

    if (test_on_gpu()) {
        test_skip("joins of GPUs do not go on after a pass that was given up: the next test");
        return;
    }
    open_tiny(&m, 4, 0);
    CHECK(strstr(m.t.about, "4 ranks of ") == m.t.about);
    CHECK_STR(m.t.computes, "cpu"); /* pages are those of any number of ranks */
    for (int i = 0; i < 100; i++) {
        atomic_store(&m.fault.what, i % 2 ? RD_E_DEVICE : RD_E_NOMEM);
        CHECK_EQ(one_pass(m.x, m.again), i % 2 ? RD_E_DEVICE : RD_E_NOMEM);
        CHECK(!m.x->is_dead(m.x->self));
        atomic_store(&m.fault.what, RD_OK);
        CHECK_OK(one_pass(m.x, m.again));
        CHECK(memcmp(m.logits, m.again, m.x->n_vocab * sizeof(float)) == 0);
    }
    close_tiny(&m);
}

TEST(a_gpu_that_fails_ends_all_of_them)
{
    struct tiny m;

    if (!test_on_gpu()) {
        test_skip("no GPU: the test before");
        return;
    }
    open_tiny(&m, 2, 0);
    atomic_store(&m.fault.what, RD_E_NOMEM);
    CHECK_EQ(one_pass(m.x, m.again), RD_E_DEVICE); /* and rank 0's kernel, which waits, comes back */
    CHECK(m.x->is_dead(m.x->self));
    close_tiny(&m);
}

TEST(a_rank_that_does_not_come_is_named_and_ends_the_executor)
{
    struct tiny m;

    open_tiny(&m, 2, 300000000);
    atomic_store(&m.fault.hang, true);
    CHECK_EQ(one_pass(m.x, m.again), RD_E_DEVICE); /* on a GPU rank 0's kernel waited in vain */
    CHECK(m.x->is_dead(m.x->self));
    CHECK_EQ(one_pass(m.x, m.again), RD_E_DEVICE); /* at once */
    atomic_store(&m.fault.hang, false);            /* it comes back after all: close takes it along */
    close_tiny(&m);
}

TEST(a_rank_that_computes_something_else_ends_the_executor)
{
    struct tiny m;
    struct model *first;

    if (test_on_gpu()) {
        test_skip("a GPU's memory is not written to from here");
        return;
    }
    open_tiny(&m, 2, 0);
    first = model_executor_of(rank_executor_first(m.x))->model;
    ((float *)first->outer.output_norm.data)[3] += 0.25f; /* a bit of its memory */
    CHECK_EQ(one_pass(m.x, m.again), RD_E_DEVICE);
    CHECK(m.x->is_dead(m.x->self));
    close_tiny(&m);
}

TEST(what_cannot_be_opened_is_named_and_leaves_nothing)
{
    struct model_file *f = NULL;
    struct executor_options o;
    struct executor_traits t;
    struct executor *x = NULL;
    struct rd_error err = {RD_OK, ""};
    uint64_t alive;
    rd_status st = RD_E_NOMEM;

    log_set_level(LOG_ERROR);
    CHECK_OK(model_file_open(test_path("tests/golden/llama/tiny-llama.gguf"), model_hub_families(), &f, NULL));
    o = rank_options(f, 9, halves);
    CHECK_EQ(executor_open(&o, &x, &t, &err), RD_E_INVALID);
    CHECK_STR(err.text, "9 ranks: 1 to 8 are possible");
    if (!rank_number_fits(3)) {
        model_file_close(f);
        return;
    }
    alive = mem_n_alive();
    o.n_ranks = 3;
    o.device = rank_devices(3);
    for (int64_t i = 0; st == RD_E_NOMEM && i < 4000; i++) {
        mem_fail_after(i);
        st = executor_open(&o, &x, &t, NULL);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        if (st == RD_OK) executor_close(x);
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK_OK(st);
    model_file_close(f);
}
