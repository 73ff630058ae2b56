/* tests/api/test_api.c - the public library on a real model: chat, cache, batch, handles, stop strings, cancel. */
#include "radish/radish.h"
#include "test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_WRITTEN 4 /* ten times as slow, by the same ways */
#else
#define N_WRITTEN 20
#endif

static rd_engine *open_smollm2(void)
{
    struct rd_options o;
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine = NULL;

    rd_options_default(&o);
    o.model = test_model("smollm2");
    o.kv_tokens = 8192;
    if (!o.model) {
        test_skip("smollm2 has not been fetched (tools/fetch-model smollm2)");
        return NULL;
    }
    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    if (rd_open(&o, &engine, &err) != RD_OK) test_fail(__FILE__, __LINE__, "rd_open: %s", err.text);
    return engine;
}

struct heard {
    char text[8192];
    size_t n;
    uint32_t n_tokens;
    struct rd_usage usage;
    enum rd_finish finish;
    uint32_t cancel_after;
    char stop[16];
};

static int hear(void *user, uint32_t index, const struct rd_event *ev)
{
    struct heard *h = (struct heard *)user + index;

    if (h->n + ev->text_bytes < sizeof(h->text)) {
        memcpy(h->text + h->n, ev->text, ev->text_bytes);
        h->n += ev->text_bytes;
    }
    if (ev->type == RD_EVENT_TOKEN) h->n_tokens++;
    if (ev->type == RD_EVENT_DONE) {
        h->usage = ev->usage;
        h->finish = ev->finish;
        snprintf(h->stop, sizeof(h->stop), "%s", ev->stop_string ? ev->stop_string : "");
    }
    return h->cancel_after && h->n_tokens >= h->cancel_after;
}

static struct rd_request_options greedy(const char *messages, uint32_t max_tokens)
{
    struct rd_request_options q;

    rd_request_options_default(&q);
    q.messages_json = messages;
    q.max_tokens = max_tokens;
    q.sampling.temperature = 0;
    return q;
}

static const char *const hello = "[{\"role\":\"user\",\"content\":\"Name the capital of France.\"}]";

TEST(a_repeated_chat_is_served_from_the_tree_with_the_same_text)
{
    rd_engine *engine = open_smollm2();
    struct rd_request_options q = greedy(hello, 24);
    static struct heard a, b;

    if (!engine) return;
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    CHECK_OK(rd_generate(engine, &q, hear, &a, NULL));
    CHECK_OK(rd_generate(engine, &q, hear, &b, NULL));
    test_note("\"%.*s\" (%u + %u tokens, %.1f ms prompt)", (int)a.n, a.text, a.usage.n_prompt, a.usage.n_generated,
              a.usage.prompt_ms);
    CHECK(strstr(a.text, "Paris"));
    CHECK_STR(a.text, b.text);
    CHECK_EQ(a.usage.n_cached, 0);
    CHECK_EQ(b.usage.n_cached, b.usage.n_prompt);
    rd_close(engine);
}

TEST(a_batch_gives_each_request_the_text_it_gets_alone)
{
    enum { N = 6 };
    static const char *const prompts[N] = {"The sky is", "def fibonacci(n):",  "Once upon a time",
                                           "1 2 3 4 5",  "Dear Sir or Madam,", "The sky was"};
    rd_engine *engine = open_smollm2();
    struct rd_request_options q[N];
    static struct heard alone[N], together[N];

    if (!engine) return;
    memset(alone, 0, sizeof(alone));
    memset(together, 0, sizeof(together));
    for (int i = 0; i < N; i++) {
        q[i] = greedy(NULL, N_WRITTEN);
        q[i].prompt = prompts[i];
        q[i].prompt_bytes = strlen(prompts[i]);
        q[i].sampling.temperature = i % 2 ? 0.8f : 0;
        q[i].sampling.seed = 7;
        q[i].sampling.has_seed = true;
        q[i].cache_prompt = false;
        CHECK_OK(rd_generate(engine, &q[i], hear, &alone[i], NULL));
        q[i].cache_prompt = true;
    }
    CHECK_OK(rd_generate_batch(engine, q, N, hear, together, NULL));
    for (int i = 0; i < N; i++) CHECK_STR(together[i].text, alone[i].text);
    rd_close(engine);
}

TEST(handles_give_the_logits_of_one_cold_pass)
{
    rd_engine *engine = open_smollm2();
    struct rd_info info = {.size = sizeof(info)};
    int32_t *tokens = NULL;
    uint32_t n = 0;
    float *cold, *warm;
    rd_kv *base = NULL, *cut = NULL, *more = NULL;
    const char *text = "The quick brown fox jumps over the lazy dog, and then it sleeps in the sun for a while.";

    if (!engine) return;
    rd_get_info(engine, &info);
    CHECK_OK(rd_tokenize(engine, text, strlen(text), true, false, &tokens, &n, NULL));
    cold = malloc(info.n_vocab * sizeof(float));
    warm = malloc(info.n_vocab * sizeof(float));
    CHECK_OK(rd_forward_cold(engine, tokens, n, cold, NULL));
    CHECK_OK(rd_forward(engine, NULL, tokens, n - 3, NULL, &base, NULL));
    CHECK_OK(rd_kv_slice(base, 7, &cut, NULL));
    CHECK_EQ(rd_kv_length(cut), 7);
    CHECK_OK(rd_forward(engine, cut, tokens + 7, n - 7, warm, &more, NULL));
    CHECK(memcmp(cold, warm, info.n_vocab * sizeof(float)) == 0);
    CHECK_EQ(rd_kv_length(more), n);
    rd_kv_free(&base);
    rd_kv_free(&base);
    rd_kv_free(&cut);
    rd_kv_free(&more);
    free(cold);
    free(warm);
    rd_free(tokens);
    rd_close(engine);
}

TEST(a_stop_string_cuts_exactly_and_frees_everything)
{
    rd_engine *engine = open_smollm2();
    struct rd_request_options q = greedy(hello, 40);
    static struct heard whole, h;
    char stop[8] = "";
    const char *stops[] = {stop};
    struct rd_stats s = {.size = sizeof(s)};

    if (!engine) return;
    memset(&whole, 0, sizeof(whole));
    memset(&h, 0, sizeof(h));
    CHECK_OK(rd_generate(engine, &q, hear, &whole, NULL));
    CHECK(whole.n > 20);
    memcpy(stop, whole.text + 11, 5); /* five bytes of the answer, wherever its tokens end */
    q.stop = stops;
    q.n_stop = 1;
    CHECK_OK(rd_generate(engine, &q, hear, &h, NULL));
    CHECK_EQ(h.finish, RD_FINISH_STOP);
    CHECK_STR(h.stop, stop);
    CHECK_EQ(h.n, strstr(whole.text, stop) - whole.text);
    CHECK(memcmp(h.text, whole.text, h.n) == 0);
    CHECK(h.usage.n_generated <= whole.usage.n_generated);
    rd_get_stats(engine, &s);
    CHECK_EQ(s.n_decode + s.n_prefill + s.n_waiting + s.n_queued, 0);
    CHECK_EQ(s.pages_free + s.pages_ready, s.pages_total);
    rd_close(engine);
}

TEST(a_callback_can_cancel)
{
    rd_engine *engine = open_smollm2();
    struct rd_request_options q = greedy(hello, 400);
    static struct heard h;

    if (!engine) return;
    memset(&h, 0, sizeof(h));
    q.ignore_eos = true;
    h.cancel_after = 3;
    CHECK_EQ(rd_generate(engine, &q, hear, &h, NULL), RD_E_CANCELLED);
    CHECK(h.n_tokens < 100);
    rd_close(engine);
}

TEST(bad_requests_say_what_is_wrong)
{
    rd_engine *engine = open_smollm2();
    struct rd_request_options q = greedy(hello, 4);
    struct rd_error err = {RD_OK, ""};
    static const int32_t bad[] = {1, 2, 1000000};

    if (!engine) return;
    q.sampling.temperature = -1;
    CHECK_EQ(rd_generate(engine, &q, NULL, NULL, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "temperature"));
    q = greedy("{\"not\": \"an array\"}", 4);
    CHECK_EQ(rd_generate(engine, &q, NULL, NULL, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "messages"));
    q = greedy(NULL, 4);
    CHECK_EQ(rd_generate(engine, &q, NULL, NULL, &err), RD_E_INVALID);
    q.tokens = bad;
    q.n_tokens = 3;
    CHECK_EQ(rd_generate(engine, &q, NULL, NULL, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "1000000"));
    rd_close(engine);
}

TEST(memory_is_counted_limited_and_given_back)
{
    struct rd_memory before = {.size = sizeof(before)}, open = before, after = before;
    struct rd_error err = {RD_OK, ""};
    struct rd_options o;
    rd_engine *engine = open_smollm2();

    if (!engine) return;
    rd_memory_usage(&open);
    CHECK(open.used_bytes > 8192 * 1024 && open.peak_bytes >= open.used_bytes && open.limit_bytes == 0);
    CHECK_EQ(rd_memory_limit(1 << 20, &err), RD_E_LIMIT);
    CHECK(strstr(err.text, "1048576 bytes, but"));
    rd_close(engine);
    rd_memory_usage(&before);
    CHECK(before.used_bytes < open.used_bytes / 4);
    rd_memory_reset_peak();
    rd_memory_usage(&after);
    CHECK_EQ(after.peak_bytes, after.used_bytes);

    CHECK_OK(rd_memory_limit(open.used_bytes / 2, NULL));
    rd_options_default(&o);
    o.model = test_model("smollm2");
    o.kv_tokens = 8192;
    CHECK_EQ(rd_open(&o, &engine, &err), RD_E_NOMEM);
    rd_memory_usage(&after);
    CHECK(after.used_bytes == before.used_bytes && after.peak_bytes <= open.used_bytes / 2 + (1 << 20));
    CHECK_OK(rd_memory_limit(0, NULL));
    engine = open_smollm2();
    CHECK(engine);
    rd_close(engine);
}
