/* tests/api/test_api_output.c - deltas of a request: calls that were begun for the model, content, failed allocations.
 */
#include <string.h>
#include "base/mem.h"
#include "radish/radish.h"
#include "test.h"

#define TOOLS "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]"

static rd_status open_tiny(rd_engine **out, struct rd_error *err)
{
    struct rd_options o;

    rd_options_default(&o);
    o.model = test_path("tests/golden/qwen2/tiny-qwen2.gguf");
    o.chat_template_file = test_path("tests/api/tools.jinja");
    o.kv_tokens = 2048;
    o.n_threads = 1;
    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    return rd_open(&o, out, err);
}

static struct rd_request_options ask(void)
{
    struct rd_request_options q;

    rd_request_options_default(&q);
    q.messages_json = "[{\"role\":\"user\",\"content\":\"a\"}]";
    q.max_tokens = 12;
    q.sampling.temperature = 0;
    q.ignore_eos = true;
    return q;
}

struct seen {
    char content[4096], args[4096], name[64], id[64];
    uint32_t n_begun, n_ended;
    bool wrong;
};

static void add(char *to, size_t cap, const char *s, size_t n)
{
    size_t have = strlen(to);

    if (have + n < cap) memcpy(to + have, s, n), to[have + n] = 0;
}

static int see(void *user, uint32_t index, const struct rd_event *ev)
{
    struct seen *s = user;
    size_t n_content = 0;

    for (uint32_t i = 0; i < ev->n_deltas; i++) {
        const struct rd_delta *d = &ev->deltas[i];

        switch (d->type) {
        case RD_DELTA_CONTENT:
            add(s->content, sizeof(s->content), d->text, d->text_bytes);
            n_content += d->text_bytes;
            break;
        case RD_DELTA_CALL_BEGIN:
            add(s->name, sizeof(s->name), d->text, d->text_bytes);
            add(s->id, sizeof(s->id), d->id, strlen(d->id));
            s->n_begun++;
            break;
        case RD_DELTA_CALL_ARGUMENTS:
            add(s->args, sizeof(s->args), d->text, d->text_bytes);
            break;
        case RD_DELTA_CALL_END:
            s->n_ended++;
            break;
        case RD_DELTA_REASONING:
            s->wrong = true;
            break;
        }
    }
    s->wrong |= index != 0 || n_content != ev->text_bytes;
    return 0;
}

TEST(content_deltas_are_the_text)
{
    struct rd_request_options q = ask();
    static struct seen plain, parsed;
    rd_engine *engine = NULL;

    CHECK_OK(open_tiny(&engine, NULL));
    CHECK_OK(rd_generate(engine, &q, see, &plain, NULL));
    q.parse_tools = q.parse_thinking = true;
    CHECK_OK(rd_generate(engine, &q, see, &parsed, NULL));
    rd_close(engine);
    CHECK(!plain.wrong && !parsed.wrong && plain.content[0]);
    CHECK_STR(parsed.content, plain.content);
}

TEST(a_forced_call_is_announced_with_an_id_and_its_arguments_follow)
{
    struct rd_request_options q = ask();
    static struct seen s;
    rd_engine *engine = NULL;

    q.tools_json = TOOLS;
    q.parse_tools = true;
    q.forced_tool = "f";
    CHECK_OK(open_tiny(&engine, NULL));
    CHECK_OK(rd_generate(engine, &q, see, &s, NULL));
    rd_close(engine);
    CHECK(!s.wrong);
    CHECK_EQ(s.n_begun, 1);
    CHECK_EQ(s.n_ended, 1);
    CHECK_STR(s.name, "f");
    CHECK_EQ(strlen(s.id), 29);
    CHECK_EQ(s.args[0], '{');
    CHECK(strlen(s.args) > 1);
}

TEST(every_failed_allocation_of_a_parsed_request_is_a_clean_error)
{
    rd_engine *engine = NULL;
    struct rd_request_options q = ask();
    static struct seen s;
    uint64_t before;
    int64_t i = 0, n_failed = 0;

    CHECK_OK(open_tiny(&engine, NULL));
    q.tools_json = TOOLS;
    q.parse_tools = true;
    q.forced_tool = "f";
    q.cache_prompt = false;
    for (;; i++) {
        rd_status st;
        struct rd_error err = {RD_OK, ""};

        memset(&s, 0, sizeof(s));
        before = mem_n_allocs();
        mem_fail_after(i);
        st = rd_generate(engine, &q, see, &s, &err);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        CHECK(!s.wrong);
        if (st == RD_OK) CHECK_EQ(s.n_begun, 1);
        n_failed += st != RD_OK;
        if (mem_n_allocs() - before <= (uint64_t)i) break;
    }
    rd_close(engine);
    CHECK(n_failed > 10);
    test_note("%lld allocations, %lld clean errors", (long long)i, (long long)n_failed);
}
