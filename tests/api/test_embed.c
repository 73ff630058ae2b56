/* tests/api/test_embed.c - vectors of texts, scores of next tokens: the same bytes with any cache and any company. */
#include <math.h>
#include "radish/radish.h"
#include "test.h"

#define N_PROMPT   48u
#define MAX_HIDDEN 4096u

static rd_engine *open_model(uint32_t max_chunk)
{
    struct rd_options o;
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine = NULL;

    rd_options_default(&o);
    o.model = test_model("smollm2");
    o.kv_tokens = 1024;
    o.max_chunk = max_chunk;
    if (!o.model) {
        test_skip("smollm2 has not been fetched (tools/fetch-model smollm2)");
        return NULL;
    }
    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    if (rd_open(&o, &engine, &err) != RD_OK) test_fail(__FILE__, __LINE__, "rd_open: %s", err.text);
    return engine;
}

static void make_tokens(int32_t *tokens, uint32_t seed)
{
    for (uint32_t i = 0; i < N_PROMPT; i++) tokens[i] = (int32_t)(1000 + (seed * 7919 + i * 31 + i * i) % 20000);
}

TEST(a_vector_has_the_same_bytes_with_every_cached_prefix_and_chunk_size)
{
    static float cold[RD_POOL_LAST + 1][MAX_HIDDEN], v[MAX_HIDDEN];
    int32_t tokens[N_PROMPT];
    struct rd_info info = {.size = sizeof(info)};

    make_tokens(tokens, 1);
    for (uint32_t pass = 0; pass < 2; pass++) {
        rd_engine *engine = open_model(pass ? 7 : 0);

        if (!engine) return;
        rd_get_info(engine, &info);
        CHECK(info.hidden <= MAX_HIDDEN);
        CHECK_EQ(info.pooling, RD_POOL_LAST);
        for (enum rd_pooling pooling = RD_POOL_MEAN; pooling <= RD_POOL_LAST; pooling++) {
            double square = 0;

            rd_cache_clear(engine);
            CHECK_OK(rd_embed(engine, tokens, N_PROMPT, pooling, v, NULL));
            if (pass == 0) memcpy(cold[pooling], v, sizeof(v));
            CHECK(memcmp(cold[pooling], v, info.hidden * sizeof(*v)) == 0);
            CHECK_OK(rd_embed(engine, tokens, N_PROMPT, pooling, v, NULL)); /* stored whole */
            CHECK(memcmp(cold[pooling], v, info.hidden * sizeof(*v)) == 0);
            for (uint32_t i = 0; i < info.hidden; i++) square += (double)v[i] * (double)v[i];
            CHECK(fabs(square - 1) < 1e-5);
            for (uint32_t n = 1; n <= N_PROMPT; n += 23) {
                rd_cache_clear(engine);
                CHECK_OK(rd_embed(engine, tokens, n, RD_POOL_LAST, v, NULL));
                CHECK_OK(rd_embed(engine, tokens, N_PROMPT, pooling, v, NULL));
                CHECK(memcmp(cold[pooling], v, info.hidden * sizeof(*v)) == 0);
            }
        }
        CHECK(memcmp(cold[RD_POOL_MEAN], cold[RD_POOL_LAST], info.hidden * sizeof(*v)) != 0);
        CHECK(memcmp(cold[RD_POOL_FIRST], cold[RD_POOL_LAST], info.hidden * sizeof(*v)) != 0);
        rd_close(engine);
    }
}

/* Runs a request to its end. */
static rd_request *run(rd_engine *engine, const struct rd_request_options *q, struct rd_event *last)
{
    rd_request *r = NULL;

    if (rd_submit(engine, q, NULL, NULL, &r, NULL) != RD_OK) return NULL;
    do {
        while (rd_request_wait(r, 1000, last) == RD_E_AGAIN) {}
    } while (last->type != RD_EVENT_DONE && last->type != RD_EVENT_ERROR);
    return r;
}

TEST(a_request_gives_the_vector_that_the_blocking_call_gives)
{
    rd_engine *engine = open_model(0);
    struct rd_request_options q;
    static float v[MAX_HIDDEN];
    int32_t tokens[N_PROMPT];
    struct rd_event ev = {.size = sizeof(ev)};
    rd_request *r, *other;
    const float *got;
    uint32_t n;

    if (!engine) return;
    make_tokens(tokens, 2);
    CHECK_OK(rd_embed(engine, tokens, N_PROMPT, RD_POOL_MEAN, v, NULL));
    rd_request_options_default(&q);
    q.tokens = tokens;
    q.n_tokens = N_PROMPT;
    q.max_tokens = 100;
    CHECK_OK(rd_submit(engine, &q, NULL, NULL, &other, NULL)); /* decodes beside it */
    q.max_tokens = RD_NO_LIMIT;
    q.embed = RD_POOL_MEAN;
    r = run(engine, &q, &ev);
    CHECK_EQ(ev.type, RD_EVENT_DONE);
    CHECK_EQ(ev.usage.n_prompt, N_PROMPT);
    CHECK_EQ(ev.usage.n_cached, 0);
    CHECK_EQ(ev.usage.n_generated, 0);
    got = rd_request_embedding(r, &n);
    CHECK(got && n > 0 && memcmp(got, v, n * sizeof(*v)) == 0);
    CHECK(!rd_request_scores(r, &n) && n == 0);
    rd_request_release(r);
    rd_request_release(other);
    rd_close(engine);
}

TEST(scores_are_the_log_probabilities_of_the_next_token_with_and_without_cache)
{
    rd_engine *engine = open_model(0);
    const int32_t asked[3] = {5, 400, 49000};
    int32_t tokens[N_PROMPT + 1];
    float first[3], sequence[N_PROMPT + 1];
    struct rd_request_options q;
    struct rd_event ev = {.size = sizeof(ev)};

    if (!engine) return;
    make_tokens(tokens, 3);
    tokens[N_PROMPT] = asked[1];
    rd_request_options_default(&q);
    q.tokens = tokens;
    q.n_tokens = N_PROMPT;
    q.max_tokens = 0;
    q.score_tokens = asked;
    q.n_score_tokens = 3;
    for (uint32_t pass = 0; pass < 2; pass++) {
        uint32_t n = 0;
        rd_request *r = run(engine, &q, &ev);
        const float *got = rd_request_scores(r, &n);

        CHECK_EQ(ev.type, RD_EVENT_DONE);
        CHECK_EQ(ev.usage.n_cached, pass ? N_PROMPT : 0);
        CHECK(got && n == 3);
        if (got && pass == 0) memcpy(first, got, sizeof(first));
        CHECK(got && memcmp(first, got, sizeof(first)) == 0);
        rd_request_release(r);
    }
    CHECK_OK(rd_score(engine, tokens, N_PROMPT + 1, sequence, NULL));
    CHECK(first[1] == sequence[N_PROMPT]);
    rd_close(engine);
}

TEST(what_cannot_be_is_refused_and_a_long_text_is_cut_when_asked)
{
    rd_engine *engine = open_model(0);
    static int32_t many[8192];
    const int32_t wrong = 1 << 30;
    struct rd_request_options q;
    struct rd_event ev = {.size = sizeof(ev)};
    rd_request *r = NULL;
    float v[MAX_HIDDEN];
    uint32_t n;

    if (!engine) return;
    for (uint32_t i = 0; i < 8192; i++) many[i] = 500 + (int32_t)(i % 300);
    CHECK_EQ(rd_embed(engine, many, 0, RD_POOL_LAST, v, NULL), RD_E_INVALID);
    CHECK_EQ(rd_embed(engine, &wrong, 1, RD_POOL_LAST, v, NULL), RD_E_INVALID);
    CHECK_EQ(rd_embed(engine, many, 4, RD_POOL_NONE, v, NULL), RD_E_INVALID);
    CHECK_EQ(rd_embed(engine, many, 8192, RD_POOL_LAST, v, NULL), RD_E_CONTEXT);
    rd_request_options_default(&q);
    q.tokens = many;
    q.n_tokens = 8192;
    q.score_tokens = &wrong;
    q.n_score_tokens = 1;
    q.max_tokens = 0;
    CHECK_EQ(rd_submit(engine, &q, NULL, NULL, &r, NULL), RD_E_INVALID);
    q.n_score_tokens = 0;
    q.embed = RD_POOL_LAST;
    q.prompt_logprobs = true;
    CHECK_EQ(rd_submit(engine, &q, NULL, NULL, &r, NULL), RD_E_INVALID);
    q.prompt_logprobs = false;
    r = run(engine, &q, &ev);
    CHECK_EQ(ev.type, RD_EVENT_ERROR);
    CHECK_EQ(ev.status, RD_E_CONTEXT);
    CHECK(!rd_request_embedding(r, &n));
    rd_request_release(r);
    q.truncate = true;
    q.n_tokens = 1100;
    r = run(engine, &q, &ev);
    CHECK_EQ(ev.type, RD_EVENT_DONE);
    CHECK(ev.usage.n_prompt <= 1024);
    CHECK(rd_request_embedding(r, &n) != NULL);
    rd_request_release(r);
    rd_close(engine);
}
