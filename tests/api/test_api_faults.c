/* tests/api/test_api_faults.c - the public library on tiny models when things go wrong: no memory, broken files, bad
 * options, full queues, handles in odd order, many threads. The tiny models' vocabulary is 94 characters, "th" and one
 * end token (tests/golden).
 */
#include <math.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include "api/api_sizes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/thread.h"
#include "radish/radish.h"
#include "test.h"

#define N_VOCAB 96u

/* The first family fails at each allocation, the others at a random one of so many; what fails is no matter of threads. */
#if defined(__SANITIZE_THREAD__)
#define FIRST_STRIDE  20
#define OTHERS_STRIDE 60
#elif defined(__SANITIZE_ADDRESS__)
#define FIRST_STRIDE  1
#define OTHERS_STRIDE 20
#else
#define FIRST_STRIDE  1
#define OTHERS_STRIDE 1
#endif

static const char *const families[] = {"tests/golden/llama/tiny-llama.gguf", "tests/golden/qwen2/tiny-qwen2.gguf",
                                       "tests/golden/qwen3/tiny-qwen3.gguf", "tests/golden/gemma2/tiny-gemma2.gguf",
                                       "tests/golden/gemma3/tiny-gemma3.gguf"};

static struct rd_options tiny_options(const char *model)
{
    struct rd_options o;

    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    rd_options_default(&o);
    o.model = test_path(model);
    o.n_threads = 1;
    o.kv_tokens = 512;
    o.max_running = 4;
    o.max_queue = 8;
    o.max_chunk = 32;
    return o;
}

static rd_engine *open_tiny(void)
{
    struct rd_options o = tiny_options(families[0]);
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine = NULL;

    if (rd_open(&o, &engine, &err) != RD_OK) test_fail(__FILE__, __LINE__, "rd_open: %s", err.text);
    return engine;
}

static struct rd_request_options ask(const char *prompt, uint32_t max_tokens)
{
    struct rd_request_options q;

    rd_request_options_default(&q);
    q.prompt = prompt;
    q.prompt_bytes = strlen(prompt);
    q.max_tokens = max_tokens;
    q.sampling.temperature = 0;
    q.ignore_eos = true;
    return q;
}

struct heard {
    char text[2048];
    size_t n;
    uint32_t n_events, n_ends;
    enum rd_finish finish;
    char stop[16];
    struct rd_usage usage;
};

static int hear(void *user, uint32_t index, const struct rd_event *ev)
{
    struct heard *h = (struct heard *)user + index;

    h->n_events++;
    if (h->n + ev->text_bytes < sizeof(h->text)) memcpy(h->text + h->n, ev->text, ev->text_bytes);
    h->n += ev->text_bytes;
    if (ev->type != RD_EVENT_DONE && ev->type != RD_EVENT_ERROR) return 0;
    h->n_ends++;
    h->finish = ev->finish;
    snprintf(h->stop, sizeof(h->stop), "%s", ev->stop_string ? ev->stop_string : "");
    h->usage = ev->usage;
    return 0;
}

/* ---- memory and files ---- */

static rd_status open_generate_close(const char *model, struct rd_error *err)
{
    struct rd_options o = tiny_options(model);
    struct rd_request_options q = ask("the thing", 4);
    static const char *const stop[] = {"\x01"};
    static const struct rd_bias bias = {5, 1};
    rd_engine *engine = NULL;
    rd_status st = rd_open(&o, &engine, err);
    char *text = NULL;
    size_t n = 0;

    if (st != RD_OK) return engine ? RD_E_INTERNAL : st;
    q.stop = stop;
    q.n_stop = 1;
    q.sampling.bias = &bias;
    q.sampling.n_bias = 1;
    q.logprobs = true;
    q.n_top_logprobs = 2;
    q.sampling.presence_penalty = 0.5f;
    st = rd_generate(engine, &q, NULL, NULL, err);
    if (st == RD_OK)
        st = rd_apply_template(engine, "[{\"role\":\"user\",\"content\":\"hi\"}]", NULL, NULL, true, &text, &n, err);
    rd_free(text);
    if (st == RD_OK) {
        rd_kv *kv = NULL, *cut = NULL;

        st = rd_forward(engine, NULL, (const int32_t[]){1, 2, 3, 4, 5}, 5, NULL, &kv, err);
        if (st == RD_OK) st = rd_kv_slice(kv, 2, &cut, err);
        rd_kv_free(&cut);
        rd_kv_free(&kv);
    }
    rd_close(engine);
    return st;
}

static void fail_each_allocation(const char *model, int64_t stride)
{
    uint64_t alive = mem_n_alive(), before;
    int64_t i = 0, n_failed = 0, n_survived = 0;

    for (;; i += 1 + (i > 8 ? (int64_t)(random_at(test_seed(), (uint64_t)i) % (uint64_t)stride) : 0)) {
        struct rd_error err = {RD_OK, ""};
        rd_status st;

        before = mem_n_allocs();
        mem_fail_after(i);
        st = open_generate_close(model, &err);
        mem_fail_after(-1);
        CHECK_EQ(mem_n_alive(), alive);
        if (mem_n_allocs() - before <= (uint64_t)i) {
            CHECK_OK(st);
            break;
        }
        if (st == RD_OK) {
            n_survived++;
            continue;
        }
        n_failed++;
        if (st != RD_E_NOMEM)
            test_fail(__FILE__, __LINE__, "allocation %lld: %s: %s", (long long)i, rd_status_name(st), err.text);
        if (!err.text[0])
            test_fail(__FILE__, __LINE__, "allocation %lld: %s without a word", (long long)i, rd_status_name(st));
    }
    test_note("%s: %lld of %lld allocations failed in turn: %lld clean errors, %lld done without",
              strrchr(model, '/') + 1, (long long)(n_failed + n_survived), (long long)i, (long long)n_failed,
              (long long)n_survived);
}

TEST(every_failed_allocation_of_open_generate_close_is_a_clean_error)
{
    fail_each_allocation(families[0], test_is_long() ? 1 : FIRST_STRIDE);
    for (size_t i = 1; i < sizeof(families) / sizeof(families[0]); i++)
        fail_each_allocation(families[i], test_is_long() ? 1 : OTHERS_STRIDE);
}

TEST(every_failed_file_call_of_open_is_a_clean_error)
{
    uint64_t alive = mem_n_alive();
    int i = 0;

    for (rd_status st = RD_E_IO; st != RD_OK && i < 1000; i++) {
        struct rd_options o = tiny_options(families[0]);
        struct rd_error err = {RD_OK, ""};
        rd_engine *engine = NULL;

        file_fail_after(i);
        st = rd_open(&o, &engine, &err);
        file_fail_after(-1);
        if (st == RD_OK) {
            rd_close(engine);
        } else {
            CHECK_EQ(st, RD_E_IO);
            CHECK(!engine && err.text[0]);
        }
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK(i >= 2);
}

/* ---- options ---- */

static void expect_bad_open(const struct rd_options *o, rd_status want, const char *named)
{
    struct rd_error err = {RD_OK, ""};
    uint64_t alive = mem_n_alive();
    rd_engine *engine = (rd_engine *)(void *)&err;
    rd_status st = rd_open(o, &engine, &err);

    if (st != want || engine || !strstr(err.text, named))
        test_fail(__FILE__, __LINE__, "%s: \"%s\", wanted %s naming \"%s\"", rd_status_name(st), err.text,
                  rd_status_name(want), named);
    CHECK_EQ(mem_n_alive(), alive);
}

TEST(every_bad_option_is_named)
{
    struct rd_options o = tiny_options(families[0]), good = o;

    o.model = NULL, expect_bad_open(&o, RD_E_INVALID, "model"), o = good;
    o.model = "no/such/file.gguf", expect_bad_open(&o, RD_E_NOT_FOUND, "file.gguf"), o = good;
    o.model = test_path("tests"), expect_bad_open(&o, RD_E_INVALID, "tests"), o = good;
    o.model = test_path("tests/test.h"), expect_bad_open(&o, RD_E_FORMAT, ""), o = good;
    o.page_tokens = 3, expect_bad_open(&o, RD_E_INVALID, "page_tokens"), o = good;
    o.page_tokens = 2048, expect_bad_open(&o, RD_E_INVALID, "page_tokens"), o = good;
    o.kv_type = "q4", expect_bad_open(&o, RD_E_INVALID, "\"q4\" is unknown; known: f16"), o = good;
    o.kv_type = "f16/", expect_bad_open(&o, RD_E_INVALID, "\"\" is unknown"), o = good;
    o.kv_type = "f16/q8_0/f16", expect_bad_open(&o, RD_E_INVALID, "q8_0/f16"), o = good;
    o.kv_type = "q8_0", expect_bad_open(&o, RD_E_INVALID, "multiple of 32"), o = good;
    o.kv_tokens = 0, o.kv_bytes = 10, expect_bad_open(&o, RD_E_INVALID, "KV budget"), o = good;
    o.kv_tokens = 1, expect_bad_open(&o, RD_E_INVALID, "KV budget"), o = good;
    o.max_running = 5000, expect_bad_open(&o, RD_E_INVALID, "max_running"), o = good;
    o.max_chunk = 70000, expect_bad_open(&o, RD_E_INVALID, "max_chunk"), o = good;
    o.isa = "abacus", expect_bad_open(&o, RD_E_UNSUPPORTED, "abacus"), o = good;
    o.pre = "nonsense", expect_bad_open(&o, RD_E_UNSUPPORTED, "nonsense"), o = good;
    o.chat_template_file = "no/such/template", expect_bad_open(&o, RD_E_NOT_FOUND, "template"), o = good;
    CHECK_OK(file_write_all(RADISH_BUILD_DIR "/broken.jinja", "{% if %}", 8, NULL));
    o.chat_template_file = RADISH_BUILD_DIR "/broken.jinja", expect_bad_open(&o, RD_E_TEMPLATE, "1"), o = good;
}

static void expect_bad_request(rd_engine *engine, const struct rd_request_options *q, const char *named)
{
    struct rd_error err = {RD_OK, ""};
    rd_status st = rd_generate(engine, q, NULL, NULL, &err);

    if (st != RD_E_INVALID || !strstr(err.text, named))
        test_fail(__FILE__, __LINE__, "%s: \"%s\", wanted RD_E_INVALID naming \"%s\"", rd_status_name(st), err.text,
                  named);
}

TEST(every_bad_request_option_is_named)
{
    rd_engine *engine = open_tiny();
    struct rd_request_options good = ask("the", 2), q = good;
    struct rd_bias bias = {(int32_t)N_VOCAB, 0};
    const char *stops[65], *empty[] = {""};
    static char long_stop[5000];
    const char *too_long[] = {long_stop};

    if (!engine) return;
    memset(long_stop, 'x', sizeof(long_stop) - 1);
    for (int i = 0; i < 65; i++) stops[i] = "x";
    q.prompt = NULL, expect_bad_request(engine, &q, "prompt"), q = good;
    q.messages_json = "[]", expect_bad_request(engine, &q, "exactly one"), q = good;
    q.prompt_bytes = 0, expect_bad_request(engine, &q, "empty"), q = good;
    q.sampling.temperature = -0.1f, expect_bad_request(engine, &q, "temperature"), q = good;
    q.sampling.top_p = 1.5f, expect_bad_request(engine, &q, "top_p"), q = good;
    q.sampling.min_p = NAN, expect_bad_request(engine, &q, "min_p"), q = good;
    q.sampling.repetition_penalty = 0, expect_bad_request(engine, &q, "repetition_penalty"), q = good;
    q.sampling.presence_penalty = 3, expect_bad_request(engine, &q, "presence_penalty"), q = good;
    q.sampling.frequency_penalty = -3, expect_bad_request(engine, &q, "frequency_penalty"), q = good;
    q.sampling.bias = &bias, q.sampling.n_bias = 1, expect_bad_request(engine, &q, "logit_bias");
    bias = (struct rd_bias){1, 101}, expect_bad_request(engine, &q, "logit_bias"), q = good;
    q.n_top_logprobs = 21, expect_bad_request(engine, &q, "top_logprobs"), q = good;
    q.stop = stops, q.n_stop = 65, expect_bad_request(engine, &q, "stop"), q = good;
    q.stop = empty, q.n_stop = 1, expect_bad_request(engine, &q, "stop"), q = good;
    q.stop = too_long, q.n_stop = 1, expect_bad_request(engine, &q, "stop"), q = good;
    CHECK_OK(rd_generate(engine, &q, NULL, NULL, NULL));
    rd_close(engine);
}

TEST(a_prompt_that_is_too_long_says_so)
{
    rd_engine *engine = open_tiny();
    struct rd_error err = {RD_OK, ""};
    struct rd_request_options q;
    struct rd_info info = {.size = sizeof(info)};
    static char text[4096];
    float logprobs[1];

    if (!engine) return;
    rd_get_info(engine, &info);
    memset(text, 'x', sizeof(text) - 1);
    q = ask(text, 4);
    CHECK_EQ(rd_generate(engine, &q, NULL, NULL, &err), RD_E_CONTEXT);
    CHECK(strstr(err.text, "maximum context length"));
    CHECK_EQ(rd_score(engine, (const int32_t *)(const void *)text, info.n_ctx + 1, logprobs, &err), RD_E_CONTEXT);
    CHECK_EQ(rd_score(engine, NULL, 0, logprobs, &err), RD_E_INVALID);
    CHECK_EQ(rd_forward(engine, NULL, (const int32_t[]){-1}, 1, NULL, NULL, &err), RD_E_INVALID);
    q = ask("the", RD_NO_LIMIT); /* until the context is full */
    CHECK_OK(rd_generate(engine, &q, NULL, NULL, &err));
    rd_close(engine);
}

TEST(a_tokenizer_handle_refuses_what_needs_weights)
{
    struct rd_request_options q = ask("the", 4);
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine = NULL;
    int32_t *tokens = NULL;
    uint32_t n = 0;
    float logits[N_VOCAB];
    struct rd_stats s = {.size = sizeof(s)};

    CHECK_OK(rd_open_tokenizer(test_path(families[0]), NULL, &engine, &err));
    CHECK_OK(rd_tokenize(engine, "the", 3, false, false, &tokens, &n, &err));
    CHECK_EQ(n, 2);
    CHECK_EQ(rd_generate(engine, &q, NULL, NULL, &err), RD_E_UNSUPPORTED);
    CHECK_EQ(rd_classify(engine, tokens, n, logits, &err), RD_E_UNSUPPORTED);
    rd_get_stats(engine, &s);
    CHECK_EQ(rd_cache_clear(engine), 0);
    rd_free(tokens);
    rd_close(engine);
    CHECK_EQ(rd_open_tokenizer("no/such.gguf", NULL, &engine, &err), RD_E_NOT_FOUND);
    CHECK(!engine);
}

/* ---- text ---- */

TEST(detokenize_and_template_errors_say_what_was_found)
{
    rd_engine *engine = open_tiny();
    struct rd_error err = {RD_OK, ""};
    static const int32_t bad[] = {1, 96}, negative[] = {-7};
    char *text = NULL;
    size_t n = 9;

    if (!engine) return;
    CHECK_EQ(rd_detokenize(engine, bad, 2, true, &text, &n, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "96"));
    CHECK_EQ(rd_detokenize(engine, negative, 1, true, &text, &n, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "-7"));
    CHECK_OK(rd_detokenize(engine, bad, 0, true, &text, &n, &err));
    CHECK_EQ(n, 0);
    CHECK_STR(text, "");
    rd_free(text);
    text = NULL;
    CHECK_EQ(rd_apply_template(engine, "not json", NULL, NULL, true, &text, &n, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "messages"));
    CHECK_EQ(rd_apply_template(engine, "{}", NULL, NULL, true, &text, &n, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "messages"));
    CHECK_EQ(rd_apply_template(engine, "[]", "{}", NULL, true, &text, &n, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "tools"));
    CHECK_EQ(rd_apply_template(engine, "[]", NULL, "[]", true, &text, &n, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "chat_template_kwargs"));
    CHECK(!text);
    rd_close(engine);
}

TEST(stop_strings_cut_between_and_inside_utf_8_characters)
{
    struct rd_options o = tiny_options(families[0]);
    struct rd_bias bias = {0, 100};
    static const char *const texts[] = {"\xC3\xA9\xC3\xA9",
                                        "\xEF\xBF\xBD\xEF\xBF\xBD"}; /* two of what is drawn: an e acute; a lone byte */
    rd_engine *engine = NULL;
    int32_t *tokens = NULL;
    uint32_t n = 0;

    o.model = test_model("smollm2");
    if (!o.model) {
        test_note(
            "smollm2 has not been fetched (tools/fetch-model smollm2): the tiny vocabularies have no byte above 127");
        return;
    }
    CHECK_OK(rd_open(&o, &engine, NULL));
    CHECK_OK(rd_tokenize(engine, "\xC3\xA9", 2, false, false, &tokens, &n, NULL));
    CHECK_EQ(n, 1);
    for (int i = 0; i < 2; i++) {
        struct rd_request_options q = ask("x", 6);
        struct heard h = {.n = 0};
        size_t n_bytes;

        bias.token = tokens[0];
        for (int32_t t = 0; i == 1 && t < 49152; t++) { /* the token that is the byte 0xC3 alone */
            const char *s = rd_token_bytes(engine, t, &n_bytes);

            if (n_bytes == 1 && (unsigned char)s[0] == 0xC3) bias.token = t;
        }
        q.sampling.bias = &bias;
        q.sampling.n_bias = 1;
        CHECK_OK(rd_generate(engine, &q, hear, &h, NULL));
        CHECK_EQ(h.n, (size_t)(i == 0 ? 2 : 3) * 6);
        CHECK(memcmp(h.text, texts[i], strlen(texts[i])) == 0);
        q.stop = &texts[i];
        q.n_stop = 1;
        memset(&h, 0, sizeof(h));
        CHECK_OK(rd_generate(engine, &q, hear, &h, NULL));
        CHECK_EQ(h.n, 0);
        CHECK_EQ(h.finish, RD_FINISH_STOP);
        CHECK_STR(h.stop, texts[i]);
    }
    rd_free(tokens);
    rd_close(engine);
}

/* ---- logits ---- */

static double log_softmax(const float *logits, int32_t token)
{
    double sum = 0;

    for (uint32_t i = 0; i < N_VOCAB; i++) sum += exp((double)logits[i]);
    return (double)logits[token] - log(sum);
}

TEST(score_classify_and_prompt_logprobs_are_the_log_softmax_of_forward)
{
    enum { N = 24 };
    static const int32_t tokens[N] = {20, 3,  94, 7,  7,  50, 60, 33, 2,  81, 90, 11,
                                      12, 13, 14, 15, 16, 17, 18, 19, 94, 94, 5,  6};
    rd_engine *engine = open_tiny();
    float scores[N], logits[N_VOCAB], warm[N_VOCAB];
    struct rd_request_options q = ask("x", 0);
    const struct rd_logprob *lp, *top;
    rd_request *r = NULL;
    struct rd_event ev = {.size = sizeof(ev)};
    uint32_t n = 0;

    if (!engine) return;
    CHECK_OK(rd_score(engine, tokens, N, scores, NULL));
    CHECK(scores[0] == 0);
    for (uint32_t i = 1; i < N; i++) {
        CHECK_OK(rd_forward(engine, NULL, tokens, i, logits, NULL, NULL));
        CHECK(fabs(scores[i] - log_softmax(logits, tokens[i])) < 1e-4);
        CHECK_OK(rd_classify(engine, tokens, i, warm, NULL));
        CHECK(memcmp(warm, logits, sizeof(logits)) == 0);
        CHECK_OK(rd_forward_cold(engine, tokens, i, warm, NULL));
        CHECK(memcmp(warm, logits, sizeof(logits)) == 0);
    }
    q.prompt = NULL;
    q.tokens = tokens;
    q.n_tokens = N;
    q.prompt_logprobs = true;
    q.n_top_logprobs = 3;
    CHECK_OK(rd_submit(engine, &q, NULL, NULL, &r, NULL));
    do CHECK_OK(rd_request_wait(r, 10000, &ev));
    while (ev.type == RD_EVENT_STARTED);
    CHECK_EQ(ev.type, RD_EVENT_DONE);
    CHECK_EQ(ev.finish, RD_FINISH_LENGTH);
    CHECK_EQ(ev.usage.n_cached, 0);
    CHECK(lp = rd_request_prompt_logprobs(r, &top, &n));
    CHECK_EQ(n, N);
    CHECK(lp[0].logprob == 0);
    for (uint32_t i = 1; i < N; i++) {
        CHECK_EQ(lp[i].token, tokens[i]);
        CHECK(lp[i].logprob == scores[i]);
        CHECK(top[i * 3].logprob >= top[i * 3 + 1].logprob && top[i * 3 + 1].logprob >= top[i * 3 + 2].logprob);
        CHECK(lp[i].logprob <= top[i * 3].logprob);
    }
    CHECK_EQ(rd_request_next(r, &ev), RD_E_CLOSED);
    rd_request_release(r);
    rd_close(engine);
}

/* ---- life of handles and requests ---- */

static uint64_t locked_pages(rd_engine *engine)
{
    struct rd_stats s = {.size = sizeof(s)};

    rd_get_stats(engine, &s);
    return s.pages_locked;
}

TEST(handles_hold_their_pages_and_may_go_in_any_order)
{
    rd_engine *engine = open_tiny();
    int32_t tokens[48];
    rd_kv *base = NULL, *more = NULL, *cut = NULL, *none = NULL;
    struct rd_error err = {RD_OK, ""};

    if (!engine) return;
    for (int i = 0; i < 48; i++) tokens[i] = (i * 37 + 5) % 90;
    CHECK_OK(rd_forward(engine, NULL, tokens, 32, NULL, &base, &err));
    CHECK_EQ(locked_pages(engine), 2);
    CHECK_OK(rd_forward(engine, base, tokens + 32, 16, NULL, &more, &err));
    CHECK_EQ(rd_kv_length(more), 48);
    CHECK_EQ(locked_pages(engine), 3);
    CHECK_OK(rd_kv_slice(more, 16, &cut, &err));
    CHECK_OK(rd_kv_slice(cut, 0, &none, &err));
    rd_kv_free(&none);
    CHECK_EQ(rd_kv_slice(cut, 17, &none, &err), RD_E_INVALID);
    CHECK(!none);
    rd_cache_clear(engine);
    CHECK_EQ(locked_pages(engine), 3);
    rd_kv_free(&base);
    CHECK_EQ(locked_pages(engine), 3); /* more still stands on them */
    rd_kv_free(&more);
    rd_kv_free(&more);
    CHECK_EQ(locked_pages(engine), 1); /* a slice keeps its own tokens and no more */
    CHECK_OK(rd_kv_slice(cut, 0, &none, &err));
    CHECK_EQ(rd_kv_length(none), 0);
    rd_kv_free(&cut);
    rd_kv_free(&none);
    CHECK_EQ(locked_pages(engine), 0);
    CHECK_EQ(rd_kv_length(NULL), 0);
    rd_kv_free(NULL);
    rd_close(engine);
}

TEST(close_ends_released_requests_that_still_run)
{
    uint64_t alive = mem_n_alive();

    for (uint32_t delay = 0; delay < 6; delay++) {
        rd_engine *engine = open_tiny();
        struct rd_request_options q = ask("the longest of all stories", RD_NO_LIMIT);
        rd_request *r[6];

        if (!engine) return;
        for (int i = 0; i < 6; i++) CHECK_OK(rd_submit(engine, &q, NULL, NULL, &r[i], NULL));
        clock_sleep_ns(delay * 300000);
        for (int i = 6; i-- > 0;) rd_request_release(r[i]);
        rd_close(engine);
        CHECK_EQ(mem_n_alive(), alive);
    }
    rd_close(NULL);
    rd_request_release(NULL);
}

TEST(a_batch_larger_than_the_queue_runs_whole)
{
    enum { N = 40 };
    rd_engine *engine = open_tiny();
    struct rd_request_options q[N];
    static struct heard h[N];
    static char prompts[N][16];

    if (!engine) return;
    memset(h, 0, sizeof(h));
    for (int i = 0; i < N; i++) {
        snprintf(prompts[i], sizeof(prompts[i]), "the %d", i % 7);
        q[i] = ask(prompts[i], 5);
    }
    q[3].sampling.temperature = -1; /* one is refused; the others run on */
    CHECK_EQ(rd_generate_batch(engine, q, N, hear, h, NULL), RD_E_INVALID);
    for (int i = 0; i < N; i++) {
        CHECK_EQ(h[i].n_ends, i != 3);
        if (i == 3) continue;
        CHECK_EQ(h[i].finish, RD_FINISH_LENGTH);
        CHECK_EQ(h[i].usage.n_generated, 5);
        if (i >= 7 && i != 10) CHECK_STR(h[i].text, h[i - 7].text);
    }
    CHECK_OK(rd_generate_batch(engine, q, 0, hear, h, NULL));
    rd_close(engine);
}

struct user {
    rd_engine *engine;
    struct thread thread;
    uint64_t seed;
    uint32_t n_ended, n_odd;
    atomic_int n_late;
};

static void count_wake(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void use_one(struct user *u, struct random *rnd)
{
    static const char *const prompts[] = {"the", "the thing", "something else", "{1,2,3}", "the thing that"};
    struct rd_request_options q = ask(prompts[random_below(rnd, 5)], 1 + (uint32_t)random_below(rnd, 30));
    uint32_t patience = random_below(rnd, 3) ? UINT32_MAX : (uint32_t)random_below(rnd, 8);
    atomic_int n_wakes;
    rd_request *r = NULL;
    struct rd_event ev = {.size = sizeof(ev)};
    rd_status st;
    int after;

    atomic_init(&n_wakes, 0);
    while ((st = rd_submit(u->engine, &q, count_wake, &n_wakes, &r, NULL)) == RD_E_FULL) thread_yield();
    u->n_odd += st != RD_OK;
    for (uint32_t i = 0; st == RD_OK; i++) {
        if (i == patience && random_below(rnd, 2)) break; /* gone without a word */
        if (i == patience) rd_request_cancel(r);
        st = i % 2 ? rd_request_wait(r, 10000, &ev) : rd_request_next(r, &ev);
        if (st == RD_E_AGAIN) {
            u->n_odd += i % 2; /* ten seconds */
            st = RD_OK;
            continue;
        }
        if (ev.type != RD_EVENT_DONE && ev.type != RD_EVENT_ERROR) continue;
        u->n_odd += ev.type == RD_EVENT_ERROR && ev.status != RD_E_CANCELLED;
        u->n_odd += rd_request_next(r, &ev) != RD_E_CLOSED;
        u->n_ended++;
        break;
    }
    rd_request_release(r);
    after = atomic_load(&n_wakes);
    thread_yield();
    atomic_fetch_add(&u->n_late, atomic_load(&n_wakes) != after);
}

static void use(void *arg)
{
    struct user *u = arg;
    struct random rnd;

    random_init(&rnd, u->seed);
    for (int i = 0; i < 40; i++) {
        struct rd_stats s = {.size = sizeof(s)};

        use_one(u, &rnd);
        rd_get_stats(u->engine, &s);
        if (i % 10 == 0) rd_cache_clear(u->engine);
        if (i % 10 == 5) {
            rd_kv *kv = NULL;
            float logits[N_VOCAB];

            u->n_odd += rd_forward(u->engine, NULL, (const int32_t[]){1, 2, 3}, 3, logits, &kv, NULL) != RD_OK;
            rd_kv_free(&kv);
        }
    }
}

TEST(threads_that_share_an_engine_do_not_disturb_each_other)
{
    enum { N = 4 };
    uint64_t alive = mem_n_alive();
    struct rd_options o = tiny_options(families[0]);
    rd_engine *engine = NULL;
    struct user u[N];
    uint32_t n_ended = 0;

    o.max_queue = 16; /* rd_forward takes no for an answer */
    CHECK_OK(rd_open(&o, &engine, NULL));
    memset(u, 0, sizeof(u));
    for (int i = 0; i < N; i++) {
        u[i].engine = engine;
        u[i].seed = test_seed() + (uint64_t)i;
        CHECK_OK(thread_start(&u[i].thread, "user", use, &u[i]));
    }
    for (int i = 0; i < N; i++) {
        thread_join(&u[i].thread);
        CHECK_EQ(u[i].n_odd, 0);
        CHECK_EQ(u[i].n_late, 0);
        n_ended += u[i].n_ended;
    }
    CHECK(n_ended > N * 10);
    rd_close(engine);
    CHECK_EQ(mem_n_alive(), alive);
}

static double cpu_ms(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}

TEST(an_idle_engine_uses_no_processor_time)
{
    rd_engine *engine = open_tiny();
    struct rd_request_options q = ask("the", 20);
    double before;

    if (!engine) return;
    CHECK_OK(rd_generate(engine, &q, NULL, NULL, NULL));
    clock_sleep_ns(20000000); /* what the last step still does */
    before = cpu_ms();
    clock_sleep_ns(300000000);
    test_note("%.2f ms in 300 ms", cpu_ms() - before);
    CHECK(cpu_ms() - before < 30);
    rd_close(engine);
}

/* ---- many prompts ---- */

enum { CLASSIFY_N = 60, CLASSIFY_LABELS = 5, CLASSIFY_SHARED = 20, CLASSIFY_MOST = 40 };
static const int32_t classify_labels[CLASSIFY_LABELS] = {28, 30, 94, 65, 11};
static int32_t classify_prompts[CLASSIFY_N][CLASSIFY_MOST];
static float classify_logprobs[CLASSIFY_N][CLASSIFY_LABELS];

/* More prompts than run and wait at once, their first tokens equal. */
static void classify_fill(struct rd_classify_item *items)
{
    for (uint32_t i = 0; i < CLASSIFY_N; i++) {
        for (uint32_t k = 0; k < CLASSIFY_MOST; k++)
            classify_prompts[i][k] = (int32_t)((k * 37 + (k < CLASSIFY_SHARED ? 0 : i * 11)) % 94);
        items[i] = (struct rd_classify_item){.tokens = classify_prompts[i],
                                             .n = CLASSIFY_SHARED + 1 + i % 7,
                                             .labels = classify_labels,
                                             .n_labels = CLASSIFY_LABELS,
                                             .logprobs = classify_logprobs[i],
                                             .best = 99,
                                             .status = RD_E_IO};
    }
}

TEST(a_batch_of_prompts_is_classified_as_each_alone)
{
    struct rd_classify_item items[CLASSIFY_N];
    float logits[N_VOCAB], alone[N_VOCAB];
    struct rd_error err = {RD_OK, ""};
    struct rd_stats s = {.size = sizeof(s)};
    rd_engine *engine = open_tiny();

    if (!engine) return;
    classify_fill(items);
    items[17].logits = logits;
    CHECK_OK(rd_classify_batch(engine, items, CLASSIFY_N, &err));
    rd_get_stats(engine, &s);
    CHECK(s.prompt_tokens_computed < CLASSIFY_N * CLASSIFY_SHARED / 2); /* the beginning once, not 60 times */
    for (uint32_t i = 0; i < CLASSIFY_N; i++) {
        uint32_t best = 0;

        CHECK_OK(items[i].status);
        CHECK_OK(rd_forward_cold(engine, classify_prompts[i], items[i].n, alone, &err));
        for (uint32_t k = 0; k < CLASSIFY_LABELS; k++) {
            CHECK(fabs(classify_logprobs[i][k] - log_softmax(alone, classify_labels[k])) < 1e-4);
            if (classify_logprobs[i][k] > classify_logprobs[i][best]) best = k;
        }
        CHECK_EQ(items[i].best, best);
        if (i == 17) CHECK_EQ(memcmp(logits, alone, sizeof(alone)), 0);
    }

    items[0].n = 0; /* one that cannot be does not stop the others */
    items[2].labels = (const int32_t[]){-1};
    items[2].n_labels = 1;
    classify_prompts[3][0] = N_VOCAB;
    CHECK_EQ(rd_classify_batch(engine, items, 5, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "no tokens"));
    CHECK(items[0].status == RD_E_INVALID && items[2].status == RD_E_INVALID && items[3].status == RD_E_INVALID);
    CHECK(items[1].status == RD_OK && items[4].status == RD_OK);
    CHECK_OK(rd_classify_batch(engine, items, 0, &err));
    rd_close(engine);
}

TEST(a_batch_of_prompts_without_memory_fails_and_leaves_nothing)
{
    struct rd_classify_item items[CLASSIFY_N];
    rd_engine *engine = open_tiny();
    rd_status st = RD_E_NOMEM;
    struct rd_stats s = {.size = sizeof(s)};

    if (!engine) return;
    classify_fill(items);
    for (int64_t i = 0; st != RD_OK; i++) {
        mem_fail_after(i);
        st = rd_classify_batch(engine, items, 6, NULL);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        CHECK(i < 2000);
        rd_get_stats(engine, &s);
        CHECK(s.n_queued + s.n_waiting + s.n_prefill + s.n_decode == 0);
    }
    CHECK_OK(rd_classify_batch(engine, items, CLASSIFY_N, NULL)); /* every place in the queue is back */
    rd_get_stats(engine, &s);
    CHECK_EQ(s.accounting_errors, 0);
    rd_close(engine);
}

/* What a program that was built with a later header passes: a member more, which this library leaves alone. */
#define LATER(type)                                                                                                    \
    struct {                                                                                                           \
        struct type it;                                                                                                \
        uint64_t added[3];                                                                                             \
    }
#define LATER_IS_LEFT_ALONE(later, call)                                                                               \
    do {                                                                                                               \
        memset(&(later), 0xa5, sizeof(later));                                                                         \
        (later).it.size = sizeof(later);                                                                               \
        call;                                                                                                          \
        CHECK_EQ((later).it.size, sizeof((later).it));                                                                 \
        for (int i = 0; i < 3; i++) CHECK_EQ((later).added[i], 0xa5a5a5a5a5a5a5a5);                                    \
    } while (0)

TEST(results_fit_the_structs_of_other_versions)
{
    static LATER(rd_classify_item) items[3];
    static struct rd_classify_item today[CLASSIFY_N];
    static const int32_t tokens[] = {5, 6, 7};
    LATER(rd_info) info;
    LATER(rd_stats) stats;
    LATER(rd_memory) memory;
    LATER(rd_event) ev;
    LATER(rd_cache_explanation) why;
    LATER(rd_backend_info) backend;
    struct rd_request_options q;
    rd_request *r = NULL;
    rd_engine *engine = open_tiny();

    if (!engine) return;
    rd_request_options_default(&q);
    q.tokens = tokens;
    q.n_tokens = 3;
    LATER_IS_LEFT_ALONE(info, rd_get_info(engine, &info.it));
    CHECK_EQ(info.it.n_vocab, N_VOCAB);
    LATER_IS_LEFT_ALONE(stats, rd_get_stats(engine, &stats.it));
    CHECK(stats.it.pages_total > 0 && stats.it.uptime_s > 0);
    LATER_IS_LEFT_ALONE(memory, rd_memory_usage(&memory.it));
    CHECK(memory.it.used_bytes > 0);
    LATER_IS_LEFT_ALONE(backend, CHECK_OK(rd_backend_about("cpu", &backend.it, NULL)));
    CHECK_STR(backend.it.name, "cpu");
    LATER_IS_LEFT_ALONE(why, CHECK_OK(rd_cache_explain(engine, &q, &why.it, NULL)));
    CHECK_EQ(why.it.n_prompt, 3);
    CHECK_OK(rd_submit(engine, &q, NULL, NULL, &r, NULL));
    LATER_IS_LEFT_ALONE(ev, CHECK_OK(rd_request_wait(r, 60000, &ev.it)));
    CHECK(ev.it.type == RD_EVENT_STARTED && ev.it.usage.n_prompt == 3);
    rd_request_release(r);

    classify_fill(today);
    CHECK_OK(rd_classify_batch(engine, today, 3, NULL)); /* no size was set: this header's */
    for (int i = 0; i < 3; i++) {
        memset(&items[i], 0xa5, sizeof(items[i]));
        items[i].it = today[i];
        items[i].it.best = 99;
        items[i].it.status = RD_E_IO;
        items[i].it.size = sizeof(items[i]);
    }
    CHECK_OK(rd_classify_batch(engine, &items[0].it, 3, NULL));
    for (int i = 0; i < 3; i++) {
        CHECK(items[i].it.best == today[i].best && items[i].it.status == RD_OK);
        CHECK_EQ(items[i].added[0], 0xa5a5a5a5a5a5a5a5);
    }
    mem_fail_after(0);
    CHECK_EQ(rd_classify_batch(engine, &items[0].it, 3, NULL), RD_E_NOMEM);
    mem_fail_after(-1);
    rd_close(engine);
}

TEST(what_an_older_program_has_no_room_for_is_not_written)
{
    struct {
        size_t size;
        uint32_t first, second, third;
    } all = {99, 1, 2, 3}, out = {16, 7, 8, 9}; /* the third was added; the caller's ends before it */

    api_give(&out, &all, sizeof(all), 16);
    CHECK(out.size == 16 && out.first == 1 && out.second == 2 && out.third == 9);
    out.size = 3; /* was never set: there has never been so short a one */
    api_give(&out, &all, sizeof(all), 16);
    CHECK(out.size == sizeof(all) && out.third == 3);
    out.size = SIZE_MAX;
    api_give(&out, &all, sizeof(all), 16);
    CHECK_EQ(out.size, sizeof(all));
}

TEST(options_of_another_size_are_refused)
{
    struct rd_options o = tiny_options(families[0]);
    struct rd_convert_options c;
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine = NULL;

    o.size--;
    CHECK_EQ(rd_open(&o, &engine, &err), RD_E_INVALID);
    CHECK(!engine && strstr(err.text, "rd_options_default"));
    o = (struct rd_options){.model = o.model};
    CHECK_EQ(rd_open(&o, &engine, &err), RD_E_INVALID);
    rd_convert_options_default(&c);
    c.size += 8;
    CHECK_EQ(rd_convert(o.model, "/nowhere/x.gguf", &c, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "rd_convert_options_default"));
}
