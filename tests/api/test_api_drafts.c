/* tests/api/test_api_drafts.c - speculation on a real model: the same text with drafts from the text, from a draft model, and with none. */
#include "radish/radish.h"
#include "test.h"

struct heard {
    char text[16384];
    size_t n;
    struct rd_usage usage;
};

static int hear(void *user, uint32_t index, const struct rd_event *ev)
{
    struct heard *h = (struct heard *)user + index;

    if (h->n + ev->text_bytes < sizeof(h->text)) {
        memcpy(h->text + h->n, ev->text, ev->text_bytes);
        h->n += ev->text_bytes;
    }
    if (ev->type == RD_EVENT_DONE) h->usage = ev->usage;
    return 0;
}

static bool is_fetched(const char *model)
{
    if (test_model(model)) return true;
    test_skip("%s has not been fetched (tools/fetch-model %s)", model, model);
    return false;
}

static rd_engine *open_with(const char *draft_model, bool no_speculation, struct rd_error *err)
{
    struct rd_options o;
    rd_engine *engine = NULL;

    rd_options_default(&o);
    o.model = test_model("smollm2");
    o.draft_model = draft_model;
    o.no_speculation = no_speculation;
    o.kv_tokens = 8192;
    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    if (!o.model || rd_open(&o, &engine, err) != RD_OK) return NULL;
    return engine;
}

/* Three texts, greedy and drawn, one after the other and together. */
static void ask(rd_engine *engine, struct heard *out)
{
    static const char *const prompts[3] = {
        ("int add(int a, int b) { return a + b; }\nint sub(int a, int b) { return a - b; }\n"
         "int mul(int a, int b) { return a * b; }\nint add(int a, int b) {"),
        "One, two, three, four. One, two, three, four. One, two,", "The lighthouse keeper found a map that"};
    struct rd_request_options q[6];

    for (int i = 0; i < 6; i++) {
        rd_request_options_default(&q[i]);
        q[i].prompt = prompts[i % 3];
        q[i].prompt_bytes = strlen(q[i].prompt);
        q[i].max_tokens = 60;
        q[i].sampling.temperature = i < 3 ? 0 : 0.8f;
        q[i].sampling.has_seed = true;
        q[i].sampling.seed = 7;
    }
    memset(out, 0, 9 * sizeof(*out));
    CHECK_OK(rd_generate_batch(engine, q, 6, hear, out, NULL));
    for (int i = 0; i < 3; i++) CHECK_OK(rd_generate(engine, &q[i], hear, &out[6 + i], NULL));
}

TEST(drafts_from_the_text_and_from_a_model_change_nothing)
{
    static struct heard plain[9], drafted[9];
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine;

    if (!is_fetched("smollm2")) return;
    engine = open_with(NULL, true, &err);
    if (!engine) test_fail(__FILE__, __LINE__, "%s", err.text);
    if (!engine) return;
    ask(engine, plain);
    rd_close(engine);
    for (int model = 0; model < 2; model++) {
        uint32_t n_drafted = 0, n_accepted = 0;

        engine = open_with(model ? test_model("smollm2") : NULL, false, &err);
        CHECK(engine);
        ask(engine, drafted);
        for (int i = 0; i < 9; i++) {
            CHECK_STR(drafted[i].text, plain[i].text);
            CHECK_EQ(plain[i].usage.n_drafted, 0);
            n_drafted += drafted[i].usage.n_drafted;
            n_accepted += drafted[i].usage.n_draft_accepted;
        }
        test_note("%s: %u of %u drafted tokens were right", model ? "draft model" : "text", n_accepted, n_drafted);
        CHECK(n_accepted > 0 && n_accepted <= n_drafted);
        rd_close(engine);
    }
}

TEST(a_draft_model_with_another_vocabulary_is_refused)
{
    struct rd_error err = {RD_OK, ""};

    if (!is_fetched("smollm2") || !is_fetched("gemma3-270m")) return;
    CHECK(!open_with(test_model("gemma3-270m"), false, &err));
    CHECK(strstr(err.text, "draft model"));
}
