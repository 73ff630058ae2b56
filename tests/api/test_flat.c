/* tests/api/test_flat.c - radish/flat.h on every backend that is here and the example of a shared object: a handle, however it
 * came about, gives the bits of one cold pass of an engine (where sums have no order, close ones); pages and handles are counted
 * to the last; what is no handle, no memory and no pages are answers.
 */
#include <math.h>
#include "base/mem.h"
#include "base/random.h"
#include "base/thread.h"
#include "radish/flat.h"
#include "test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STEPS 15
#else
#define STEPS 60
#endif
/* A walk and what fails have one thread: the thread sanitizer, a hundred times as slow, sees some of them. */
#if defined(__SANITIZE_THREAD__)
#define N_WALKED     2u
#define KINDS_WALKED 2u
#define STRIDE       16
#else
#define N_WALKED     (sizeof(families) / sizeof(families[0]))
#define KINDS_WALKED (sizeof(kv_types) / sizeof(kv_types[0]))
#define STRIDE       1
#endif
enum { MOST = 12, LONGEST = 150, KV_TOKENS = 256 };

static const char *const families[] = {"tests/golden/llama/tiny-llama.gguf",   "tests/golden/llama/tiny-llama31.gguf",
                                       "tests/golden/qwen2/tiny-qwen2.gguf",   "tests/golden/qwen3/tiny-qwen3.gguf",
                                       "tests/golden/gemma2/tiny-gemma2.gguf", "tests/golden/gemma3/tiny-gemma3.gguf"};
static const char *const kv_types[] = {"f16", "bf16", "f32", "q8_0", "q8_0/q4_0", "f8_e4m3", "q4_0"};

static struct rd_options options(const char *model, const char *device, const char *kv_type)
{
    struct rd_options o;

    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    rd_options_default(&o);
    o.model = model;
    o.device = device;
    o.kv_type = kv_type;
    o.kv_force = true;
    o.n_threads = 1;
    o.kv_tokens = KV_TOKENS;
    o.max_running = 4;
    o.max_chunk = 32;
    return o;
}

static struct rd_options tiny(void)
{
    return options(test_path(families[0]), "cpu", NULL);
}

static struct rd_flat_info info_of(rd_flat *f)
{
    struct rd_flat_info info = {.size = sizeof(info)};

    rd_flat_get_info(f, &info);
    return info;
}

/* A walk: handles that grow, fork, are sliced and freed, beside the tokens that they stand for. */
struct walk {
    const char *what;
    rd_flat *f;
    rd_engine *engine; /* the same model, for cold passes */
    struct random random;
    uint32_t n_vocab, n_lines, n_full;
    bool exact;
    float bound, worst;
    float *got, *cold; /* [3, n_vocab], [n_vocab] */
    struct line {
        rd_handle handle;
        uint32_t n;
        int32_t tokens[LONGEST];
    } lines[MOST];
};

static bool like_cold(struct walk *w, const int32_t *tokens, uint32_t n, const float *got)
{
    float most = 0;

    if (rd_forward_cold(w->engine, tokens, n, w->cold, NULL) != RD_OK) return false;
    if (w->exact) return memcmp(w->cold, got, w->n_vocab * sizeof(float)) == 0;
    for (uint32_t i = 0; i < w->n_vocab; i++) most = fmaxf(most, fabsf(w->cold[i]));
    for (uint32_t i = 0; i < w->n_vocab; i++) {
        w->worst = fmaxf(w->worst, fabsf(w->cold[i] - got[i]) / most);
        if (!(fabsf(w->cold[i] - got[i]) <= w->bound * most)) return false;
    }
    return true;
}

static struct line any(struct walk *w)
{
    const uint64_t i = random_below(&w->random, w->n_lines + 1);

    return i == w->n_lines ? (struct line){.handle = RD_EMPTY} : w->lines[i];
}

static void let_go(struct walk *w)
{
    const uint64_t k = random_below(&w->random, w->n_lines);

    rd_flat_free(w->f, w->lines[k].handle);
    rd_flat_free(w->f, w->lines[k].handle);
    w->lines[k] = w->lines[--w->n_lines];
}

/* Up to three that are computed together, with the logits of their last one or two tokens. */
static bool grow(struct walk *w)
{
    const uint32_t n_runs = 1 + (uint32_t)random_below(&w->random, 3);
    uint32_t n_free;
    struct line l[3] = {{0}};
    struct rd_flat_run runs[3] = {{0}};
    struct rd_error err = {RD_OK, ""};
    rd_status st;

    while (w->n_lines + n_runs > MOST) let_go(w);
    n_free = info_of(w->f).n_pages_free;
    for (uint32_t i = 0; i < n_runs; i++) {
        const uint32_t n = 1 + (uint32_t)random_below(&w->random, random_below(&w->random, 3) ? 5 : 50);

        l[i] = any(w);
        if (l[i].n + n > LONGEST) return true;
        runs[i] = (struct rd_flat_run){l[i].handle,   l[i].tokens + l[i].n,        n,
                                       n > 1 ? 2 : 1, w->got + i * 2 * w->n_vocab, &l[i].handle};
        for (uint32_t k = 0; k < n; k++) l[i].tokens[l[i].n + k] = (int32_t)random_below(&w->random, w->n_vocab);
    }
    st = rd_flat_forward_many(w->f, runs, n_runs, &err);
    if (st == RD_E_NO_PAGES) {
        w->n_full++;
        for (uint32_t i = 0; i < n_runs; i++)
            if (l[i].handle != RD_EMPTY) return false;
        return info_of(w->f).n_pages_free == n_free && strstr(err.text, "free") != NULL;
    }
    if (st != RD_OK) return false;
    for (uint32_t i = 0; i < n_runs; i++) {
        l[i].n += runs[i].n;
        for (uint32_t k = 0; k < runs[i].n_logits; k++)
            if (!like_cold(w, l[i].tokens, l[i].n - runs[i].n_logits + 1 + k, runs[i].logits + k * w->n_vocab))
                return false;
        if (rd_flat_length(w->f, l[i].handle) != l[i].n) return false;
        w->lines[w->n_lines++] = l[i];
    }
    return true;
}

static bool slice(struct walk *w)
{
    struct line l;
    uint32_t keep;

    if (w->n_lines == MOST) let_go(w);
    l = any(w);
    keep = (uint32_t)random_below(&w->random, l.n + 1);
    if (rd_flat_slice(w->f, l.handle, keep, &l.handle, NULL) != RD_OK || (l.handle == RD_EMPTY) != (keep == 0))
        return false;
    l.n = keep;
    if (keep) w->lines[w->n_lines++] = l;
    return true;
}

static void walk(struct walk *w, int n_steps)
{
    struct rd_flat_info info;
    bool well = true;

    for (int i = 0; i < n_steps && well; i++) {
        const uint64_t what = random_below(&w->random, 10);

        if (what < 6)
            well = grow(w);
        else if (what < 9)
            well = slice(w);
        else if (w->n_lines)
            let_go(w);
        if (!well) test_fail(__FILE__, __LINE__, "%s: step %d: not what a cold pass gives", w->what, i);
    }
    info = info_of(w->f);
    CHECK_EQ(info.n_handles, w->n_lines);
    while (w->n_lines) let_go(w);
    info = info_of(w->f);
    CHECK_EQ(info.n_handles, 0);
    CHECK_EQ(info.n_pages_free, info.n_pages);
}

static uint32_t n_full; /* how often a pool was, in all walks */

/* false: this backend or model has no such KV type. */
static bool walk_over(const struct rd_options *o, const char *what, int n_steps)
{
    struct walk w = {.what = what};
    struct rd_error err = {RD_OK, ""};
    struct rd_options eo = *o;
    struct rd_flat_info info;
    rd_status st = rd_flat_open(o, &w.f, &err);

    if (st != RD_OK) {
        if (!strstr(err.text, "multiple of 32") && !strstr(err.text, "--kv-type"))
            test_fail(__FILE__, __LINE__, "%s: %s", what, err.text);
        return false;
    }
    eo.kv_tokens = 1024;
    if (rd_open(&eo, &w.engine, &err) != RD_OK) test_fail(__FILE__, __LINE__, "%s: %s", what, err.text);
    info = info_of(w.f);
    w.exact = info.exact;
    w.n_vocab = info.n_vocab;
    w.bound = strcmp(info.kv_type, "f32") == 0 ? 1e-4f : 1e-2f; /* f16: a sum's last bit may turn a key's */
    w.got = malloc(6 * w.n_vocab * sizeof(float));
    w.cold = malloc(w.n_vocab * sizeof(float));
    random_init(&w.random, test_seed());
    walk(&w, n_steps);
    if (w.worst > 0) test_note("%s, keys and values %s: off by %.1e at most", what, info.kv_type, (double)w.worst);
    n_full += w.n_full;
    free(w.got);
    free(w.cold);
    rd_close(w.engine);
    rd_flat_close(w.f);
    return true;
}

static void walk_all(const char *device, int n_steps, uint32_t n_wanted)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < N_WALKED; i++)
        for (uint32_t t = 0; t < KINDS_WALKED; t++) {
            const struct rd_options o = options(test_path(families[i]), device, kv_types[t]);
            char what[128];

            snprintf(what, sizeof(what), "%s, %s", families[i] + strlen("tests/golden/"), kv_types[t]);
            n += walk_over(&o, what, n_steps);
        }
    if (n_wanted > N_WALKED * KINDS_WALKED / 2) n_wanted = N_WALKED * KINDS_WALKED / 2;
    if (n < n_wanted) test_fail(__FILE__, __LINE__, "%s: %u models and KV types, at least %u are", device, n, n_wanted);
}

TEST(on_a_cpu_every_handle_gives_the_bits_of_a_cold_pass)
{
    walk_all("cpu", STEPS, 22);
    CHECK(n_full > 0 || STEPS < 60); /* with few steps it may not come to that */
}

TEST(on_a_shared_object_every_handle_gives_the_bits_of_a_cold_pass)
{
    walk_all(RADISH_PLAIN_BACKEND, STEPS, 12);
}

TEST(on_mlx_every_handle_gives_a_cold_pass_within_what_its_sums_allow)
{
    struct rd_backend_info about = {.size = sizeof(about)};

    if (rd_backend_about("mlx", &about, NULL) != RD_OK || !about.is_available) {
        test_skip("this build has no MLX");
        return;
    }
    walk_all("mlx", STEPS / 4, 18);
}

TEST(ranks_give_the_bits_of_a_cold_pass)
{
    struct rd_options o = options(test_path(families[5]), "cpu", NULL);

    o.n_ranks = 2;
    CHECK(walk_over(&o, "two ranks", STEPS));
}

TEST(a_real_model_gives_the_bits_of_a_cold_pass)
{
    const char *model = test_model("smollm2");

    if (!model) {
        test_skip("smollm2 is not here");
        return;
    }
    if (STEPS < 60 && !test_is_long()) {
        test_skip("sanitized: minutes for what the tiny models show");
        return;
    }
    for (uint32_t t = 0; t < (test_is_long() ? sizeof(kv_types) / sizeof(kv_types[0]) : 1); t++) {
        struct rd_options o = options(model, "cpu", kv_types[t]);

        o.n_threads = 0;
        CHECK(walk_over(&o, kv_types[t], test_is_long() ? STEPS : 12));
    }
}

/* ---- answers ---- */

TEST(what_is_no_handle_is_an_answer_and_disturbs_nobody)
{
    const struct rd_options o = tiny();
    const int32_t tokens[3] = {3, 4, 5};
    struct rd_error err = {RD_OK, ""};
    rd_flat *one = NULL, *two = NULL;
    rd_handle a, b, c;

    CHECK_OK(rd_flat_open(&o, &one, &err));
    CHECK_OK(rd_flat_open(&o, &two, &err));
    CHECK_OK(rd_flat_forward(one, RD_EMPTY, tokens, 3, NULL, &a, &err));
    CHECK_OK(rd_flat_forward(two, RD_EMPTY, tokens, 3, NULL, &b, &err));
    rd_flat_free(two, a); /* one's */
    CHECK_EQ(rd_flat_length(two, a), 0);
    CHECK_EQ(rd_flat_forward(two, a, tokens, 1, NULL, &c, &err), RD_E_NOT_FOUND);
    CHECK_EQ(c, RD_EMPTY);
    CHECK_EQ(rd_flat_slice(two, a, 1, &c, &err), RD_E_NOT_FOUND);
    CHECK_EQ(rd_flat_length(one, a), 3);
    rd_flat_free(one, a);
    CHECK_OK(rd_flat_forward(one, RD_EMPTY, tokens, 2, NULL, &c, &err)); /* in its place */
    rd_flat_free(one, a);
    CHECK_EQ(rd_flat_length(one, c), 2);
    CHECK_EQ(rd_flat_length(one, a), 0);
    for (uint64_t i = 0; i < 64; i++) rd_flat_free(one, UINT64_C(1) << i == c ? 0 : UINT64_C(1) << i);
    rd_flat_free(one, UINT64_MAX);
    rd_flat_free(one, RD_EMPTY);
    CHECK_EQ(rd_flat_length(one, c), 2);
    CHECK_EQ(info_of(one).n_handles, 1);
    rd_flat_close(one); /* with a handle that is left */
    rd_flat_close(two);
    rd_flat_close(NULL);
}

TEST(what_cannot_be_computed_is_an_answer_and_takes_nothing)
{
    struct rd_options o = tiny();
    static int32_t many[600];
    struct rd_error err = {RD_OK, ""};
    float logits[2 * 96];
    rd_flat *f = NULL;
    rd_handle a, b = 7;
    struct rd_flat_run runs[2] = {{RD_EMPTY, many, 3, 0, NULL, NULL}, {RD_EMPTY, many, 3, 1, logits, &b}};

    o.kv_tokens = 64; /* 4 pages */
    o.n_ctx = 60;
    CHECK_OK(rd_flat_open(&o, &f, &err));
    CHECK_EQ(info_of(f).n_ctx, 60);
    CHECK_EQ(rd_flat_forward(f, RD_EMPTY, many, 0, logits, &a, &err), RD_E_INVALID);
    CHECK_EQ(rd_flat_forward(f, RD_EMPTY, many, 61, NULL, &a, &err), RD_E_CONTEXT);
    CHECK_EQ(rd_flat_forward(f, RD_EMPTY, (const int32_t[]){1, -1}, 2, NULL, &a, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "token -1 at 1"));
    CHECK_EQ(rd_flat_forward(f, RD_EMPTY, (const int32_t[]){96}, 1, NULL, &a, &err), RD_E_INVALID);
    CHECK_EQ(a, RD_EMPTY);
    runs[1].n_logits = 4;
    CHECK_EQ(rd_flat_forward_many(f, runs, 2, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "run 1"));
    CHECK_EQ(b, RD_EMPTY);
    CHECK_EQ(info_of(f).n_pages_free, 4);
    runs[0].n = 40; /* 3 pages, and 2 more */
    runs[1].n_logits = 1;
    runs[1].n = 20;
    CHECK_EQ(rd_flat_forward_many(f, runs, 2, &err), RD_E_NO_PAGES);
    CHECK_EQ(info_of(f).n_pages_free, 4);
    CHECK_OK(rd_flat_forward(f, RD_EMPTY, many, 60, logits, NULL, &err)); /* no handle wanted */
    CHECK_EQ(info_of(f).n_pages_free, 4);
    CHECK_OK(rd_flat_forward_many(f, NULL, 0, &err));
    rd_flat_close(f);
    o.device = "process:cat";
    CHECK_EQ(rd_flat_open(&o, &f, &err), RD_E_UNSUPPORTED);
    o = tiny();
    o.model = test_path("tests/test.h");
    CHECK_EQ(rd_flat_open(&o, &f, &err), RD_E_FORMAT);
    o.size = 8;
    CHECK_EQ(rd_flat_open(&o, &f, &err), RD_E_INVALID);
    CHECK(!f);
}

TEST(a_computation_that_fails_changes_nothing)
{
    struct rd_options o = options(test_path(families[0]), RADISH_FAULTY_BACKEND, NULL);
    int32_t tokens[50];
    struct rd_error err = {RD_OK, ""};
    float before[96], after[96];
    rd_flat *f = NULL;
    rd_handle a, b = 7, c = 7;
    const struct rd_flat_run runs[2] = {{0, tokens, 40, 1, after, &b}, {0, tokens, 3, 0, NULL, &c}};

    for (int i = 0; i < 50; i++) tokens[i] = 3 + i;
    CHECK_OK(rd_flat_open(&o, &f, &err));
    CHECK_OK(rd_flat_forward(f, RD_EMPTY, tokens, 21, NULL, &a, &err));
    CHECK_OK(rd_flat_forward(f, a, tokens + 21, 9, before, NULL, &err));
    setenv("RADISH_FAULTY", "1", 1);
    CHECK_EQ(rd_flat_forward(f, a, tokens + 21, 9, after, &b, &err), RD_E_DEVICE);
    CHECK(b == RD_EMPTY && strstr(err.text, "computation failed"));
    CHECK_EQ(rd_flat_forward_many(f, runs, 2, &err), RD_E_DEVICE);
    CHECK(b == RD_EMPTY && c == RD_EMPTY);
    CHECK_EQ(info_of(f).n_handles, 1);
    CHECK_EQ(info_of(f).n_pages_free, info_of(f).n_pages - 2);
    unsetenv("RADISH_FAULTY");
    CHECK_OK(rd_flat_forward(f, a, tokens + 21, 9, after, &b, &err));
    CHECK(memcmp(before, after, sizeof(before)) == 0);
    CHECK_EQ(info_of(f).n_pages_free, info_of(f).n_pages - 2); /* behind a's last row, as if nothing had been */
    rd_flat_close(f);
}

TEST(handles_have_an_end)
{
    const struct rd_options o = tiny();
    struct rd_error err = {RD_OK, ""};
    rd_flat *f = NULL;
    rd_handle a, b;

    CHECK_OK(rd_flat_open(&o, &f, &err));
    CHECK_OK(rd_flat_forward(f, RD_EMPTY, (const int32_t[]){1, 2, 3}, 3, NULL, &a, &err));
    for (uint32_t i = 1; i < RD_FLAT_HANDLES; i++) CHECK_OK(rd_flat_slice(f, a, 2, &b, &err));
    CHECK_EQ(rd_flat_slice(f, a, 2, &b, &err), RD_E_LIMIT);
    CHECK_EQ(rd_flat_forward(f, a, (const int32_t[]){1}, 1, NULL, &b, &err), RD_E_LIMIT);
    CHECK_EQ(info_of(f).n_pages_free, info_of(f).n_pages - 1);
    rd_flat_close(f);
}

static rd_status open_use_close(struct rd_error *err)
{
    const struct rd_options o = tiny();
    const int32_t tokens[20] = {1, 2, 3};
    float logits[2 * 96];
    rd_flat *f = NULL;
    rd_handle a = 0, b = 0, c = 0;
    rd_status st = rd_flat_open(&o, &f, err);

    if (st != RD_OK) return f ? RD_E_INTERNAL : st;
    st = rd_flat_forward(f, RD_EMPTY, tokens, 20, NULL, &a, err);
    if (st == RD_OK) {
        const struct rd_flat_run runs[2] = {{a, tokens, 3, 1, logits, &b}, {a, tokens, 2, 1, logits + 96, NULL}};

        st = rd_flat_forward_many(f, runs, 2, err);
        if (st != RD_OK && (info_of(f).n_handles != 1 || info_of(f).n_pages_free + 2 != info_of(f).n_pages))
            st = RD_E_INTERNAL;
    }
    if (st == RD_OK) st = rd_flat_slice(f, b, 10, &c, err);
    rd_flat_close(f);
    return st;
}

TEST(each_allocation_may_fail_and_nothing_leaks)
{
    struct rd_error err = {RD_OK, ""};
    uint64_t alive;

    CHECK_OK(open_use_close(&err));
    alive = mem_n_alive();
    for (int64_t k = 0;; k += STRIDE) {
        rd_status st;

        mem_clear_failed();
        mem_fail_after(k);
        st = open_use_close(&err);
        mem_fail_after(-1);
        CHECK_EQ(mem_n_alive(), alive);
        CHECK(st == RD_OK || st == RD_E_NOMEM); /* RD_OK: it was not needed */
        if (!mem_has_failed()) break;
    }
}

/* ---- threads ---- */

struct user {
    struct thread thread;
    rd_flat *f;
    const float *cold; /* [n_vocab] behind first and its own token */
    rd_handle first;
    int32_t token;
    uint32_t n_odd;
};

static void use(void *arg)
{
    struct user *u = arg;
    float logits[96];

    for (int i = 0; i < 60; i++) {
        rd_handle mine, part;

        u->n_odd += rd_flat_forward(u->f, u->first, &u->token, 1, logits, &mine, NULL) != RD_OK;
        u->n_odd += memcmp(logits, u->cold, sizeof(logits)) != 0;
        u->n_odd += rd_flat_slice(u->f, mine, 5, &part, NULL) != RD_OK || rd_flat_length(u->f, part) != 5;
        rd_flat_free(u->f, mine);
        rd_flat_free(u->f, part);
    }
}

TEST(threads_fork_the_same_handle)
{
    enum { N = 4 };
    const struct rd_options o = tiny();
    int32_t tokens[22];
    float cold[N][96];
    struct user users[N];
    rd_engine *engine = NULL;
    rd_flat *f = NULL;
    rd_handle first;

    CHECK_OK(rd_open(&o, &engine, NULL));
    CHECK_OK(rd_flat_open(&o, &f, NULL));
    for (int i = 0; i < 21; i++) tokens[i] = 3 + i;
    CHECK_OK(rd_flat_forward(f, RD_EMPTY, tokens, 21, NULL, &first, NULL));
    for (int i = 0; i < N; i++) {
        tokens[21] = 30 + i;
        CHECK_OK(rd_forward_cold(engine, tokens, 22, cold[i], NULL));
        users[i] = (struct user){.f = f, .cold = cold[i], .first = first, .token = tokens[21]};
        CHECK_OK(thread_start(&users[i].thread, "user", use, &users[i]));
    }
    for (int i = 0; i < N; i++) {
        thread_join(&users[i].thread);
        CHECK_EQ(users[i].n_odd, 0);
    }
    CHECK_EQ(info_of(f).n_handles, 1);
    rd_flat_close(f);
    rd_close(engine);
}
