/* tests/api/test_api_prompt.c - the tokens of conversations that grow, with the memory of prompts and without. */
#include "radish/radish.h"
#include "test.h"
#include "base/buf.h"
#include "base/random.h"
#include "base/thread.h"

#define VOCABULARY "tests/golden/qwen3/tiny-qwen3.gguf"

static void put_message(struct buf *messages, struct random *r, bool user)
{
    messages->n -= messages->n > 1; /* the bracket */
    buf_printf(messages, "%s{\"role\":\"%s\",\"content\":\"", messages->n > 1 ? "," : "", user ? "user" : "assistant");
    for (uint64_t n = random_below(r, 300); n > 0; n--) buf_putc(messages, " abcdefghijklmnop,."[random_below(r, 19)]);
    buf_puts(messages, "\"}]");
}

/* The prompt's tokens are those of its text. */
static bool alike(const rd_engine *e, const char *messages)
{
    struct rd_request_options o;
    int32_t *a = NULL, *b = NULL;
    uint32_t n_a = 0, n_b = 0;
    char *text = NULL;
    size_t n = 0;
    bool good;

    rd_request_options_default(&o);
    o.messages_json = messages;
    good = rd_prompt_tokens(e, &o, &a, &n_a, NULL) == RD_OK &&
           rd_apply_template(e, messages, NULL, NULL, RD_PROMPT_AUTO, &text, &n, NULL) == RD_OK &&
           rd_tokenize(e, text, n, true, true, &b, &n_b, NULL) == RD_OK && n_a == n_b && n_a > 0 &&
           memcmp(a, b, n_a * sizeof(*a)) == 0;
    rd_free(a);
    rd_free(b);
    rd_free(text);
    return good;
}

struct talker {
    const rd_engine *e;
    uint64_t seed;
    bool good;
};

static void talk(void *arg)
{
    struct talker *t = arg;
    struct buf messages = {0};
    struct random r;

    random_init(&r, t->seed);
    t->good = true;
    buf_puts(&messages, "[]");
    for (unsigned turn = 0; turn < 60 && t->good; turn++) {
        put_message(&messages, &r, turn % 2 == 0);
        t->good = alike(t->e, messages.data);
    }
    buf_deinit(&messages);
}

TEST(conversations_that_grow_in_several_threads_have_the_tokens_of_their_text)
{
    struct talker talkers[4];
    struct thread threads[4] = {{0}};
    rd_engine *e = NULL;

    CHECK_OK(rd_open_tokenizer(test_path(VOCABULARY), NULL, &e, NULL));
    for (unsigned i = 0; i < 4; i++) {
        talkers[i] = (struct talker){e, test_seed() + i / 2, false};
        CHECK_OK(thread_start(&threads[i], "talk", talk, &talkers[i]));
    }
    for (unsigned i = 0; i < 4; i++) thread_join(&threads[i]);
    for (unsigned i = 0; i < 4; i++) CHECK(talkers[i].good);
    rd_close(e);
}

TEST(the_tokens_of_a_text_prompt_are_those_of_the_text)
{
    struct rd_request_options o;
    rd_engine *e = NULL;
    struct buf text = {0};

    CHECK_OK(rd_open_tokenizer(test_path(VOCABULARY), NULL, &e, NULL));
    for (unsigned i = 0; i < 20; i++) {
        int32_t *a = NULL, *b = NULL;
        uint32_t n_a = 0, n_b = 0;

        for (unsigned k = 0; k < 300; k++) buf_putc(&text, "ab cd\n"[(i * 7 + k * k) % 6]);
        rd_request_options_default(&o);
        o.prompt = text.data;
        o.prompt_bytes = text.n;
        CHECK_OK(rd_prompt_tokens(e, &o, &a, &n_a, NULL));
        CHECK_OK(rd_tokenize(e, text.data, text.n, true, true, &b, &n_b, NULL));
        CHECK_EQ(n_a, n_b);
        CHECK(memcmp(a, b, n_a * sizeof(*a)) == 0);
        rd_free(a);
        rd_free(b);
    }
    buf_deinit(&text);
    rd_close(e);
}

static bool parts_are(const rd_engine *e, const struct rd_text_part *parts, size_t n_parts, const char *text,
                      bool special)
{
    int32_t *a = NULL, *b = NULL;
    uint32_t n_a = 0, n_b = 0;
    bool good = rd_tokenize_parts(e, parts, n_parts, true, &a, &n_a, NULL) == RD_OK &&
                rd_tokenize(e, text, strlen(text), true, special, &b, &n_b, NULL) == RD_OK && n_a == n_b &&
                memcmp(a, b, n_a * sizeof(*a)) == 0;

    rd_free(a);
    rd_free(b);
    return good;
}

TEST(a_text_in_parts_has_special_tokens_in_ones_own_alone)
{
    const struct rd_text_part own[] = {{"a<|en", 5, false}, {"d|>b", 4, false}};
    const struct rd_text_part foreign[] = {{"a<|en", 5, true}, {"d|>b", 4, true}};
    const struct rd_text_part half[] = {{"a<|en", 5, true}, {"d|>b", 4, false}};
    rd_engine *e = NULL;
    int32_t *ids = NULL;
    uint32_t n = 0;

    CHECK_OK(rd_open_tokenizer(test_path("tests/golden/fp8/tiny-qwen3-fp8/tokenizer.json"), NULL, &e, NULL));
    CHECK_OK(rd_tokenize(e, "<|end|>", 7, false, true, &ids, &n, NULL));
    CHECK_EQ(n, 1);
    rd_free(ids);
    CHECK(parts_are(e, own, 2, "a<|end|>b", true));
    CHECK(parts_are(e, foreign, 2, "a<|end|>b", false));
    CHECK(parts_are(e, half, 2, "a<|end|>b", false));
    CHECK(parts_are(e, own, 0, "", true));
    rd_close(e);
}
