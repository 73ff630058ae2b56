/* tests/api/test_process.c - the library over another program: requests, batches, what it can do and what not. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "radish/radish.h"
#include "test.h"

/* NULL where there is no python3, which is told. */
static rd_engine *open_fake(const char *options, struct rd_error *err)
{
    static char device[2048];
    struct rd_options o;
    rd_engine *e = NULL;

    snprintf(device, sizeof(device), "process:python3 %s %s", test_path("tests/server/fake_backend.py"), options);
    rd_options_default(&o);
    o.device = device;
    o.model = "any/name";
    o.process_silence_s = 5;
    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    if (rd_open(&o, &e, err) != RD_OK) return NULL;
    return e;
}

struct heard {
    char text[512];
    uint32_t n_events, n_ended, stop_after;
    struct rd_usage usage;
};

static int hear(void *user, uint32_t index, const struct rd_event *ev)
{
    struct heard *h = (struct heard *)user + index;

    if (ev->text_bytes && strlen(h->text) + ev->text_bytes < sizeof(h->text))
        strncat(h->text, ev->text, ev->text_bytes);
    h->n_ended += ev->type == RD_EVENT_DONE || ev->type == RD_EVENT_ERROR;
    if (ev->type == RD_EVENT_DONE) h->usage = ev->usage;
    return ++h->n_events == h->stop_after;
}

TEST(requests_run_over_another_program)
{
    struct rd_error err = {RD_OK, ""};
    rd_engine *e = open_fake("", &err);
    struct rd_request_options q[3];
    struct heard h[3] = {{.n_events = 0}};
    struct rd_stats s = {.size = sizeof(s)};
    struct rd_info info = {.size = sizeof(info)};

    CHECK(e != NULL);
    rd_get_info(e, &info);
    CHECK_STR(info.model_id, "name");
    CHECK(strstr(info.backend, "process: fake 1.0") && !info.exact && info.n_ctx == 4096);
    for (int i = 0; i < 3; i++) rd_request_options_default(&q[i]);
    q[0].messages_json = "[{\"role\":\"user\",\"content\":\"a b\"}]";
    q[1].prompt = "c", q[1].prompt_bytes = 1;
    q[2].prompt = "x REFUSE", q[2].prompt_bytes = 8;
    CHECK_EQ(rd_generate_batch(e, q, 3, hear, h, &err), RD_E_CONTEXT);
    CHECK_STR(h[0].text, "echo: a b ");
    CHECK_STR(h[1].text, "echo: c ");
    CHECK(h[0].usage.n_prompt == 2 && h[0].usage.n_generated == 3);
    for (int i = 0; i < 3; i++) CHECK_EQ(h[i].n_ended, 1);
    rd_get_stats(e, &s);
    CHECK(s.n_stop == 2 && s.n_failed == 1 && s.process_starts == 1 && !s.process_is_down && !rd_is_busy(e));
    rd_close(e);
}

TEST(a_request_is_cancelled_from_its_event)
{
    struct rd_error err = {RD_OK, ""};
    rd_engine *e = open_fake("parallel=1", &err);
    struct rd_request_options q;
    struct heard h = {.stop_after = 5};

    CHECK(e != NULL);
    rd_request_options_default(&q);
    q.prompt = "ENDLESS", q.prompt_bytes = 7;
    for (int i = 0; i < 20; i++) {
        h = (struct heard){.stop_after = 1 + (uint32_t)i % 7};
        CHECK_EQ(rd_generate(e, &q, hear, &h, &err), RD_E_CANCELLED);
    }
    q.prompt = "last", q.prompt_bytes = 4; /* the one that it takes at once is free again */
    h = (struct heard){.n_events = 0};
    CHECK_OK(rd_generate(e, &q, hear, &h, &err));
    CHECK_STR(h.text, "echo: last ");
    rd_close(e);
}

TEST(tokens_and_labels_are_the_programs)
{
    struct rd_error err = {RD_OK, ""};
    rd_engine *e = open_fake("", &err);
    const int32_t labels[] = {90, 99, 120};
    struct rd_classify_item items[2];
    float logprobs[3], logits[1];
    int32_t *tokens = NULL;
    uint32_t n = 0;
    char *text = NULL;
    size_t n_text = 0;

    CHECK(e != NULL);
    CHECK_OK(rd_tokenize(e, "abc", 3, true, true, &tokens, &n, &err));
    CHECK(n == 3 && tokens[2] == 'c');
    CHECK_OK(rd_detokenize(e, tokens, n, true, &text, &n_text, &err));
    CHECK_STR(text, "abc");
    for (int i = 0; i < 2; i++)
        items[i] = (struct rd_classify_item){.tokens = tokens, .n = n, .labels = labels, .n_labels = 3};
    items[0].logprobs = logprobs;
    CHECK_OK(rd_classify_batch(e, items, 2, &err));
    CHECK(items[0].best == 1 && items[1].best == 1 && logprobs[1] == -0.5f && logprobs[0] == -9.5f);
    items[0].logits = logits;
    CHECK_EQ(rd_classify_batch(e, items, 1, &err), RD_E_UNSUPPORTED);
    CHECK_EQ(rd_forward(e, NULL, tokens, n, NULL, NULL, &err), RD_E_UNSUPPORTED);
    rd_token_bytes(e, 5, &n_text);
    CHECK_EQ(n_text, 0);
    rd_free(tokens);
    rd_free(text);
    rd_close(e);
}

TEST(a_program_that_cannot_be_opened_leaves_nothing_behind)
{
    struct rd_error err = {RD_OK, ""};
    uint64_t alive;

    rd_close(open_fake("", &err)); /* what libraries keep is there now */
    alive = mem_n_alive();
    CHECK(open_fake("load=exit", &err) == NULL);
    CHECK(err.status == RD_E_DEVICE && strstr(err.text, "exit 5"));
    CHECK_EQ(mem_n_alive(), alive);
    CHECK(open_fake("load=error", &err) == NULL);
    CHECK(strstr(err.text, "no such model") != NULL);
    CHECK_EQ(mem_n_alive(), alive);
}
