/* tests/api/test_api_sampling.c - words, ids and orders of sampling through the public library, on a tiny model whose
 * vocabulary is 94 characters, "th" and one end token (tests/golden).
 */
#include <math.h>
#include "base/mem.h"
#include "radish/radish.h"
#include "test.h"

struct heard {
    char text[1024];
    size_t n;
    int32_t tokens[256];
    uint32_t n_tokens;
    int32_t stop_token;
    enum rd_finish finish;
};

static rd_engine *open_tiny(void)
{
    struct rd_options o;
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine = NULL;

    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    rd_options_default(&o);
    o.model = test_path("tests/golden/llama/tiny-llama.gguf");
    o.n_threads = 1;
    o.kv_tokens = 512;
    o.max_running = 4;
    if (rd_open(&o, &engine, &err) != RD_OK) test_fail(__FILE__, __LINE__, "rd_open: %s", err.text);
    return engine;
}

static struct rd_request_options ask(uint32_t max_tokens, float temperature)
{
    struct rd_request_options q;

    rd_request_options_default(&q);
    q.prompt = "abcabcabc";
    q.prompt_bytes = strlen(q.prompt);
    q.max_tokens = max_tokens;
    q.sampling.temperature = temperature;
    q.sampling.has_seed = true;
    q.sampling.seed = 5;
    q.ignore_eos = true;
    return q;
}

static int hear(void *user, uint32_t index, const struct rd_event *ev)
{
    struct heard *h = (struct heard *)user + index;

    if (h->n + ev->text_bytes < sizeof(h->text)) memcpy(h->text + h->n, ev->text, ev->text_bytes);
    h->n += ev->text_bytes;
    if (ev->type == RD_EVENT_TOKEN && h->n_tokens < 256) h->tokens[h->n_tokens++] = ev->token;
    if (ev->type != RD_EVENT_DONE) return 0;
    h->finish = ev->finish;
    h->stop_token = ev->stop_token;
    return 0;
}

static void generate(rd_engine *engine, const struct rd_request_options *q, struct heard *h)
{
    struct rd_error err = {RD_OK, ""};

    memset(h, 0, sizeof(*h));
    if (rd_generate(engine, q, hear, h, &err) != RD_OK) test_fail(__FILE__, __LINE__, "%s", err.text);
}

static int32_t token_of(rd_engine *engine, const char *text)
{
    int32_t *ids = NULL, id;
    uint32_t n = 0;

    if (rd_tokenize(engine, text, strlen(text), false, false, &ids, &n, NULL) != RD_OK || n != 1) return -1;
    id = ids[0];
    rd_free(ids);
    return id;
}

TEST(words_are_banned_and_only_allowed_tokens_come)
{
    static const char *const bad[] = {"a", "bc", "th"};
    rd_engine *engine = open_tiny();
    struct rd_request_options q = ask(100, 100);
    int32_t allowed[3];
    struct heard h;

    if (!engine) return;
    allowed[0] = token_of(engine, "a");
    allowed[1] = token_of(engine, "b");
    allowed[2] = token_of(engine, "c");
    do generate(engine, &q, &h); /* 100 tokens of 96: an a comes in two of three texts */
    while (!strchr(h.text, 'a') && ++q.sampling.seed < 25);
    CHECK(strchr(h.text, 'a'));
    q.sampling.bad_words = bad;
    q.sampling.n_bad_words = 3;
    generate(engine, &q, &h);
    CHECK(!strchr(h.text, 'a') && !strstr(h.text, "bc"));
    q.sampling.allowed = allowed;
    q.sampling.n_allowed = 3;
    generate(engine, &q, &h);
    CHECK_EQ(strspn(h.text, "bc"), 100);
    CHECK(!strstr(h.text, "bc"));
    rd_close(engine);
}

TEST(texts_are_biased_and_sequence_breakers_protect)
{
    static const struct rd_text_bias never[] = {{"abc", -100}, {"x", 100}};
    static const char *const breakers[] = {"ca", "zzz"};
    rd_engine *engine = open_tiny();
    struct rd_request_options q = ask(60, 0);
    int32_t allowed[3], best;
    struct heard h;

    if (!engine) return;
    q.sampling.text_bias = never;
    q.sampling.n_text_bias = 1;
    q.sampling.temperature = 100;
    generate(engine, &q, &h);
    CHECK(!strpbrk(h.text, "abc"));
    q.sampling.n_text_bias = 2;
    q.sampling.temperature = 1;
    generate(engine, &q, &h);
    CHECK_EQ(strspn(h.text, "x"), 60);
    q = ask(1, 0);
    for (int i = 0; i < 3; i++) allowed[i] = token_of(engine, (const char *[]){"a", "b", "c"}[i]);
    q.sampling.allowed = allowed;
    q.sampling.n_allowed = 3;
    q.sampling.dry_multiplier = 100;
    generate(engine, &q, &h);
    CHECK(h.text[0] != 'a');            /* abcabcabca would be a repetition of six */
    q.sampling.dry_breakers = breakers; /* "ca": only "bc" lies behind it, and three are free */
    q.sampling.n_dry_breakers = 2;
    q.sampling.dry_allowed_length = 3;
    generate(engine, &q, &h);
    best = h.tokens[0];
    q.sampling.dry_multiplier = 0;
    generate(engine, &q, &h);
    CHECK_EQ(h.tokens[0], best);
    rd_close(engine);
}

TEST(stop_tokens_end_the_text_but_not_before_min_tokens)
{
    rd_engine *engine = open_tiny();
    struct rd_request_options q = ask(100, 100);
    static const char *stop[1];
    char one[2] = {0}, whole[1024];
    int32_t token;
    struct heard h;

    if (!engine) return;
    generate(engine, &q, &h);
    CHECK_EQ(h.n_tokens, 100);
    memcpy(whole, h.text, sizeof(whole));
    token = h.tokens[20];
    q.stop_tokens = &token;
    q.n_stop_tokens = 1;
    generate(engine, &q, &h);
    CHECK(h.n_tokens <= 20 && h.finish == RD_FINISH_STOP && h.stop_token == token);
    CHECK(memcmp(whole, h.text, h.n) == 0);
    q.include_stop = true;
    generate(engine, &q, &h);
    CHECK_EQ(token_of(engine, h.text + h.n - 1), token);
    q.min_tokens = 50;
    generate(engine, &q, &h);
    CHECK(h.n_tokens >= 50);
    for (uint32_t i = 0; i < 50; i++) CHECK(h.tokens[i] != token);
    q = ask(100, 100);
    one[0] = whole[5];
    stop[0] = one;
    q.stop = stop;
    q.n_stop = 1;
    generate(engine, &q, &h);
    CHECK(h.n <= 5 && !strchr(h.text, one[0]));
    q.include_stop = true;
    generate(engine, &q, &h);
    CHECK(h.n <= 6 && h.text[h.n - 1] == one[0]);
    q.min_tokens = 30;
    generate(engine, &q, &h);
    CHECK(h.n_tokens > 30 && memcmp(whole, h.text, 30) == 0);
    rd_close(engine);
}

TEST(the_order_of_samplers_is_read_in_every_form)
{
    static const char *const equal[] = {"top_k;temperature", "kt", "top-k,temp", ";top_k;infill;temperature;", "ket"};
    rd_engine *engine = open_tiny();
    struct rd_request_options q = ask(40, 2);
    struct heard first, h;

    if (!engine) return;
    q.sampling.top_k = 4;
    q.sampling.top_p = 0.01f; /* without effect: left out of every order */
    for (size_t i = 0; i < 5; i++) {
        q.sampling.samplers = equal[i];
        generate(engine, &q, i ? &h : &first);
        if (i) CHECK_STR(h.text, first.text);
    }
    q.sampling.samplers = NULL;
    generate(engine, &q, &h);
    CHECK(strcmp(h.text, first.text) != 0);
    rd_close(engine);
}

static void expect_bad(rd_engine *engine, const struct rd_request_options *q, const char *named)
{
    struct rd_error err = {RD_OK, ""};

    CHECK_EQ(rd_generate(engine, q, NULL, NULL, &err), RD_E_INVALID);
    if (strncmp(err.text, named, strlen(named)) != 0) test_fail(__FILE__, __LINE__, "%s: %s", named, err.text);
}

/* Never filled by the library, or built for another version. */
TEST(another_size_of_sampling_is_refused)
{
    rd_engine *engine = open_tiny();
    struct rd_error err = {RD_OK, ""};
    struct heard h[1];

    for (int i = 0; i < 2; i++) {
        struct rd_request_options q = ask(1, 0);

        q.sampling.size = i ? sizeof(q.sampling) + 8 : 0;
        CHECK_EQ(rd_generate(engine, &q, hear, h, &err), RD_E_INVALID);
        CHECK(strncmp(err.text, "sampling.size: ", 15) == 0);
    }
    rd_close(engine);
}

TEST(another_size_of_options_is_refused_by_every_call)
{
    rd_engine *engine = open_tiny();
    struct rd_cache_explanation found = {.size = sizeof(found)};
    struct rd_error err = {RD_OK, ""};
    struct heard h[1];

    if (!engine) return;
    for (int i = 0; i < 2; i++) {
        struct rd_request_options q = ask(1, 0);
        uint64_t n_pages, n_disk;
        int32_t *tokens = NULL;
        uint32_t n;

        q.size = i ? sizeof(q) + 8 : 0;
        CHECK_EQ(rd_generate(engine, &q, hear, h, &err), RD_E_INVALID);
        CHECK(strstr(err.text, "rd_request_options_default"));
        CHECK_EQ(rd_prompt_tokens(engine, &q, &tokens, &n, NULL), RD_E_INVALID);
        CHECK_EQ(rd_cache_explain(engine, &q, &found, NULL), RD_E_INVALID);
        CHECK_EQ(rd_cache_clear_behind(engine, &q, &n_pages, &n_disk, NULL), RD_E_INVALID);
        CHECK_EQ(rd_share_prefix(engine, &q, NULL), RD_E_INVALID);
    }
    rd_close(engine);
}

TEST(every_bad_option_is_named)
{
    static char long_word[300];
    static const char *const words[] = {"x", long_word}, *const empty[] = {""};
    static const struct rd_text_bias hot[] = {{"x", 101}}, none[] = {{"", 1}};
    static const int32_t outside[] = {-1, 96}, stop = 5;
    rd_engine *engine = open_tiny();
    struct rd_request_options good = ask(2, 1), q = good;

    if (!engine) return;
    memset(long_word, 'x', sizeof(long_word) - 1);
    q.sampling.samplers = "kq", expect_bad(engine, &q, "samplers"), q = good;
    q.sampling.samplers = "top_k;top_q", expect_bad(engine, &q, "samplers"), q = good;
    q.sampling.samplers = "eeeeeeeeeeeeeeeee", expect_bad(engine, &q, "samplers"), q = good;
    q.sampling.bad_words = words, q.sampling.n_bad_words = 2, expect_bad(engine, &q, "bad_words"), q = good;
    q.sampling.bad_words = empty, q.sampling.n_bad_words = 1, expect_bad(engine, &q, "bad_words"), q = good;
    q.sampling.dry_breakers = words, q.sampling.n_dry_breakers = 2, expect_bad(engine, &q, "dry_sequence_breakers"),
    q = good;
    q.sampling.n_dry_breakers = 65, q.sampling.dry_breakers = words, expect_bad(engine, &q, "dry_sequence_breakers"),
    q = good;
    q.sampling.text_bias = hot, q.sampling.n_text_bias = 1, expect_bad(engine, &q, "logit_bias"), q = good;
    q.sampling.text_bias = none, q.sampling.n_text_bias = 1, expect_bad(engine, &q, "logit_bias"), q = good;
    for (int i = 0; i < 2; i++) {
        q.sampling.allowed = &outside[i], q.sampling.n_allowed = 1, expect_bad(engine, &q, "allowed_token_ids"),
        q = good;
        q.stop_tokens = &outside[i], q.n_stop_tokens = 1, expect_bad(engine, &q, "stop_token_ids"), q = good;
    }
    q.min_tokens = 3, expect_bad(engine, &q, "min_tokens"), q = good;
    q.sampling.mirostat = 1, expect_bad(engine, &q, "mirostat"), q = good;
    q.sampling.allowed = &stop, q.sampling.n_allowed = 1, q.stop_tokens = &stop, q.n_stop_tokens = 1, q.min_tokens = 1;
    expect_bad(engine, &q, "allowed_token_ids: with"), q = good;
    q.sampling.dry_allowed_length = -1, expect_bad(engine, &q, "dry_allowed_length"), q = good;
    q.sampling.xtc_probability = NAN, expect_bad(engine, &q, "xtc_probability"), q = good;
    CHECK_OK(rd_generate(engine, &q, NULL, NULL, NULL));
    rd_close(engine);
}

TEST(every_failed_allocation_of_a_request_with_lists_is_a_clean_error)
{
    static const char *const words[] = {"a", "bc"}, *const breakers[] = {"ca", "\n"};
    static const struct rd_text_bias text_bias[] = {{"xy", 1}};
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, stop = 90;
    struct rd_request_options q = ask(4, 1);
    uint64_t alive = mem_n_alive(), before;
    uint32_t n_failed = 0;

    q.sampling.bad_words = words, q.sampling.n_bad_words = 2;
    q.sampling.dry_breakers = breakers, q.sampling.n_dry_breakers = 2, q.sampling.dry_multiplier = 1;
    q.sampling.text_bias = text_bias, q.sampling.n_text_bias = 1;
    q.sampling.allowed = ids, q.sampling.n_allowed = 12;
    q.stop_tokens = &stop, q.n_stop_tokens = 1;
    q.sampling.samplers = "edtkx";
    q.prompt_logprobs = true;
    for (int64_t i = 0;; i++) {
        struct rd_error err = {RD_OK, ""};
        rd_engine *engine = open_tiny();
        rd_status st;
        bool all;

        if (!engine) return;
        before = mem_n_allocs();
        mem_fail_after(i);
        st = rd_generate(engine, &q, NULL, NULL, &err);
        mem_fail_after(-1);
        all = mem_n_allocs() - before <= (uint64_t)i;
        rd_close(engine);
        CHECK_EQ(mem_n_alive(), alive);
        if (all) {
            CHECK_OK(st);
            break;
        }
        if (st == RD_OK) continue;
        n_failed++;
        CHECK_EQ(st, RD_E_NOMEM);
        CHECK(err.text[0]);
    }
    test_note("%u allocations failed in turn", n_failed);
    CHECK(n_failed > 20);
}
