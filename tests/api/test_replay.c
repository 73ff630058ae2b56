/* tests/api/test_replay.c - answers come back as they were sampled, whatever the client's JSON library made of them. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "memory/answer_memory.h"
#include "base/mem.h"
#include "base/random.h"
#include "text/tiny_vocab.h"
#include "radish/radish.h"
#include "sanitized.h"
#include "test.h"

static const struct kv_space nobody;

/* Bytes, and "ab", "abc", "<end>". */
static struct tokenizer *tiny_tokenizer(int32_t *ab, int32_t *abc, int32_t *end)
{
    static struct tiny_vocab v;
    struct tokenizer *t = NULL;

    tiny_vocab_init(&v, TOKENIZER_BPE);
    *ab = tiny_vocab_add(&v, "ab", TOKEN_NORMAL, 0);
    *abc = tiny_vocab_add(&v, "abc", TOKEN_NORMAL, 0);
    *end = tiny_vocab_add(&v, "<end>", TOKEN_CONTROL, 0);
    tiny_vocab_merge(&v, "a", "b");
    tiny_vocab_merge(&v, "ab", "c");
    if (tokenizer_create(&v.spec, &t, NULL) != RD_OK) test_fail(__FILE__, __LINE__, "no tokenizer");
    return t;
}

static bool replays(struct answer_memory *m, struct kv_space owner, const int32_t *sent, uint32_t n_sent,
                    const int32_t *want, uint32_t n_want)
{
    int32_t *ids = (int32_t *)(void *)mem_memdup(sent, n_sent * sizeof(*sent));
    uint32_t n = n_sent;
    bool same;

    answer_memory_replay(m, owner, &ids, &n);
    same = n == n_want && memcmp(ids, want, n * sizeof(*ids)) == 0;
    mem_free(ids);
    return same;
}

#define LENGTH(a) (uint32_t)(sizeof(a) / sizeof(a[0]))

TEST(sampled_tokens_take_the_place_of_others_with_the_same_bytes)
{
    struct answer_memory *m;
    int32_t ab, abc, end;
    struct tokenizer *t = tiny_tokenizer(&ab, &abc, &end);
    const struct kv_space other = {.salt = {1, 2}};

    CHECK_OK(answer_memory_create(t, 1 << 20, &m));
    const uint32_t kept[] = {1, 2, 3, 4, 'a', 'b', 'c', 'x', (uint32_t)ab};
    const int32_t sent[] = {1, 2, 3, 4, abc, 'x', abc, end, 7}, want[] = {1, 2, 3, 4, 'a', 'b', 'c', 'x', abc, end, 7};
    const int32_t whole[] = {1, 2, 3, 4, abc, 'x', 'a', 'b', end, 'a'};
    const int32_t want_whole[] = {1, 2, 3, 4, 'a', 'b', 'c', 'x', ab, end, 'a'};
    const int32_t changed[] = {1, 2, 3, 4, ab, 'd', 'x'}, special[] = {1, 2, 3, 4, end, abc};

    answer_memory_keep(m, nobody, kept, LENGTH(kept), NULL);
    CHECK(replays(m, nobody, sent, LENGTH(sent), want, LENGTH(want)));
    CHECK(replays(m, nobody, whole, LENGTH(whole), want_whole, LENGTH(want_whole)));
    CHECK(replays(m, nobody, special, LENGTH(special), special, LENGTH(special)));
    const int32_t want_changed[] = {1, 2, 3, 4, 'a', 'b', 'd', 'x'};
    CHECK(replays(m, nobody, changed, LENGTH(changed), want_changed, LENGTH(want_changed)));
    CHECK(replays(m, other, sent, LENGTH(sent), sent, LENGTH(sent))); /* another salt */
    answer_memory_clear(m);
    CHECK(replays(m, nobody, sent, LENGTH(sent), sent, LENGTH(sent)));
    answer_memory_destroy(m);
    tokenizer_destroy(t);
}

/* Whatever is kept: the bytes of the prompt stay the same, and control tokens stay where they are. */
TEST(random_replays_keep_the_bytes)
{
    struct answer_memory *m;
    int32_t ab, abc, end;
    struct tokenizer *t = tiny_tokenizer(&ab, &abc, &end);
    const int32_t tokens[] = {'a', 'b', 'c', ab, abc, end};
    struct random r;
    uint32_t n_replaced = 0;

    random_init(&r, test_seed());
    CHECK_OK(answer_memory_create(t, 1 << 14, &m));
    for (int round = 0; round < 3000; round++) {
        uint32_t kept[24] = {1, 2, 3, 4}, n = 4 + (uint32_t)random_below(&r, 20), n_sent = n;
        int32_t *sent = (int32_t *)(void *)mem_alloc(24, sizeof(*sent));
        char before[128] = "", after[128] = "";

        for (uint32_t i = 4; i < 24; i++) kept[i] = (uint32_t)tokens[random_below(&r, LENGTH(tokens) - (i % 7 != 0))];
        memcpy(sent, kept, 4 * sizeof(*sent));
        for (uint32_t i = 4; i < 24; i++) sent[i] = tokens[random_below(&r, LENGTH(tokens) - (i % 7 != 0))];
        for (uint32_t i = 4; i < n_sent; i++)
            strncat(before, tokenizer_piece(t, sent[i], true).s, tokenizer_piece(t, sent[i], true).n);
        n_replaced += answer_memory_replay(m, nobody, &sent, &n_sent) > 0;
        for (uint32_t i = 4; i < n_sent; i++)
            strncat(after, tokenizer_piece(t, sent[i], true).s, tokenizer_piece(t, sent[i], true).n);
        if (strcmp(before, after) != 0) test_fail(__FILE__, __LINE__, "\"%s\" became \"%s\"", before, after);
        mem_free(sent);
        answer_memory_keep(m, nobody, kept, n, NULL);
    }
    CHECK(n_replaced > 300);
    answer_memory_destroy(m);
    tokenizer_destroy(t);
}

/* The message, number i of its conversation, as compact JSON after the answer in memory was restored in it, or "as it
 * was". */
static const char *restored_at(struct answer_memory *m, size_t i, const char *message)
{
    static char out[1024];
    json_t *messages = json_array(), *now = NULL;
    struct answer_pick picks[8] = {{.serial = 0}};
    char *text = NULL;

    for (size_t k = 0; k < i; k++)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", "hi"));
    json_array_append_new(messages, json_loads(message, 0, NULL));
    picks[i] = answer_memory_pick(m, nobody, messages, i, 0, NULL, 0);
    if (picks[i].serial) now = answer_memory_restore(m, messages, picks);
    if (now) text = json_dumps(json_array_get(now, i), JSON_COMPACT);
    snprintf(out, sizeof(out), "%s", now ? text : "as it was");
    free(text);
    json_decref(now);
    json_decref(messages);
    return out;
}

static const char *restored(struct answer_memory *m, const char *message)
{
    return restored_at(m, 1, message);
}

#define CALL(id, arguments)                                                                                            \
    "\"tool_calls\":[{\"id\":\"" id                                                                                    \
    "\",\"type\":\"function\",\"function\":{\"name\":\"read\",\"arguments\":" arguments "}}]"

TEST(calls_come_back_in_the_models_own_spelling)
{
    struct answer_memory *m;
    int32_t ab, abc, end;
    struct tokenizer *t = tiny_tokenizer(&ab, &abc, &end);
    const uint32_t ids[] = {1, 2, 3, 4};
    const char *raw = "<think>hm</think>\n\nLook:\n<tool_call>{\"a\" : 1, \"b\":\"x\"}</tool_call>";
    json_t *calls =
        json_pack("[{s:s,s:s,s:s}]", "id", "call_1", "name", "read", "arguments", "{\"a\" : 1, \"b\":\"x\"}");
    struct answer_parts parts = {raw, strlen(raw), strlen("<think>hm</think>\n\n"), "Look:\n", "hm", calls, 1, 4};
    const char *plain =
        "{\"role\":\"assistant\",\"content\":\"Look:\\n<tool_call>{\\\"a\\\" : 1, \\\"b\\\":\\\"x\\\"}</tool_call>\"}";

    CHECK_OK(answer_memory_create(t, 1 << 20, &m));
    answer_memory_keep(m, nobody, ids, 4, &parts);
    CHECK_STR(restored(m, "{\"role\":\"assistant\",\"content\":\"Look:\"," CALL(
                              "call_1", "\"{\\\"b\\\":\\\"x\\\",\\\"a\\\":1}\"") "}"),
              plain);
    CHECK_STR(restored(m, "{\"role\":\"assistant\",\"content\":null," CALL("call_1", "{\"b\":\"x\",\"a\":1}") "}"),
              plain);
    CHECK_STR(
        restored(m, "{\"role\":\"assistant\",\"content\":\"Look:\"," CALL("toolu_other", "{\"b\":\"x\",\"a\":1}") "}"),
        plain);
    CHECK_STR(restored(m, "{\"role\":\"assistant\",\"content\":\"Look:\",\"reasoning_content\":\"hm\\n\"," CALL(
                              "call_1", "{\"b\":\"x\",\"a\":1}") "}"),
              "{\"role\":\"assistant\",\"content\":\"<think>hm</think>\\n\\nLook:\\n<tool_call>{\\\"a\\\" : 1, "
              "\\\"b\\\":\\\"x\\\"}</tool_call>\"}");
    CHECK_STR(restored(m, "{\"role\":\"assistant\",\"content\":\"Look:\"," CALL("call_1", "{\"b\":\"y\",\"a\":1}") "}"),
              "as it was");
    CHECK_STR(restored(m, "{\"role\":\"assistant\",\"content\":\"Other\"," CALL("call_1", "{\"b\":\"x\",\"a\":1}") "}"),
              "as it was");
    CHECK_STR(restored(m, "{\"role\":\"user\",\"content\":\"Look:\"," CALL("call_1", "{\"b\":\"x\",\"a\":1}") "}"),
              "as it was");
    CHECK_STR(restored(m, "{\"role\":\"assistant\",\"content\":\"Look:\",\"tool_calls\":[{\"id\":7,\"function\":3}]}"),
              "as it was");
    /* as another message of its conversation it was not generated */
    CHECK_STR(
        restored_at(m, 3, "{\"role\":\"assistant\",\"content\":\"Look:\"," CALL("call_1", "{\"b\":\"x\",\"a\":1}") "}"),
        "as it was");
    json_decref(calls);
    answer_memory_destroy(m);
    tokenizer_destroy(t);
}

/* Answers with equal calls: the prefix decides, then the id alone, then the oldest. */
TEST(an_answer_stands_only_behind_its_own_tokens_and_a_known_id_decides_alone)
{
    struct answer_memory *m;
    int32_t ab, abc, end;
    struct tokenizer *t = tiny_tokenizer(&ab, &abc, &end);
    const uint32_t here[] = {1, 2, 3, 4, 'a'}, there[] = {1, 2, 3, 5, 'a'};
    const int32_t sent[] = {1, 2, 3, 4, 'b', 'c'}, elsewhere[] = {1, 2, 3, 5, 'b'}, new[] = {1, 2, 3, 6};
    const char *const ids[] = {"call_1", "call_2", "call_3"}, *const raws[] = {"{ }", "{  }", "{   }"};
    const char *const asked[] = {"call_1", "call_2", "call_3", "mine"};
    struct answer_pick picks[4], none, second;
    json_t *messages[4];

    CHECK_OK(answer_memory_create(t, 1 << 20, &m));
    for (int i = 0; i < 3; i++) {
        json_t *calls = json_pack("[{s:s,s:s,s:s}]", "id", ids[i], "name", "read", "arguments", "{}");
        struct answer_parts parts = {raws[i], strlen(raws[i]), 0, "", "", calls, 0, 4};

        answer_memory_keep(m, nobody, i == 1 ? there : here, 5, &parts);
        json_decref(calls);
    }
    for (int i = 0; i < 4; i++)
        messages[i] = json_pack("[{s:s, s:[{s:s, s:{s:s, s:s}}]}]", "role", "assistant", "tool_calls", "id", asked[i],
                                "function", "name", "read", "arguments", "{}");
    for (int i = 0; i < 4; i++) picks[i] = answer_memory_pick(m, nobody, messages[i], 0, 0, sent, 6);
    CHECK(picks[0].serial && !picks[1].serial && picks[2].serial > picks[0].serial); /* call_2's prefix is another */
    CHECK_EQ(picks[3].serial, picks[0].serial);                                      /* unknown id: the oldest here */
    second = answer_memory_pick(m, nobody, messages[3], 0, picks[3].serial, sent, 6);
    CHECK_EQ(second.serial, picks[2].serial);
    CHECK(answer_memory_pick(m, nobody, messages[1], 0, 0, elsewhere, 5).serial);
    none = answer_memory_pick(m, nobody, messages[3], 0, 0, new, 4);
    CHECK_EQ(none.serial, 0);
    for (int i = 0; i < 4; i++) json_decref(messages[i]);
    answer_memory_destroy(m);
    tokenizer_destroy(t);
}

struct heard {
    char text[4096];
    size_t n;
    struct rd_usage usage;
};

static int hear(void *user, uint32_t index, const struct rd_event *ev)
{
    struct heard *h = user;

    (void)index;
    if (h->n + ev->text_bytes < sizeof(h->text))
        memcpy(h->text + h->n, ev->text, ev->text_bytes), h->n += ev->text_bytes;
    if (ev->type == RD_EVENT_DONE) h->usage = ev->usage;
    return 0;
}

/* Hot sampling writes words in pieces that no tokenizer would choose; the next turn has them from the tree all the same. */
TEST(the_next_turn_has_the_whole_answer_from_the_tree)
{
    struct rd_options o;
    rd_engine *engine = NULL;
    const uint32_t n_answers = IS_SANITIZED ? 2 : 6;
    uint32_t n_missed = 0, n_other = 0, n_canonical;

    rd_options_default(&o);
    o.kv_tokens = 8192;
    o.model = test_model("smollm2");
    if (!o.model) {
        test_skip("smollm2 has not been fetched (tools/fetch-model smollm2)");
        return;
    }
    CHECK_OK(rd_open(&o, &engine, NULL));
    for (uint64_t seed = 1; seed <= n_answers; seed++) {
        struct rd_request_options q;
        static struct heard first, second;
        json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "Invent a strange name.");
        char *text = json_dumps(messages, 0);

        memset(&first, 0, sizeof(first));
        memset(&second, 0, sizeof(second));
        rd_request_options_default(&q);
        q.messages_json = text;
        q.max_tokens = IS_SANITIZED ? 30 : 80;
        q.sampling.temperature = 1.6f;
        q.sampling.seed = seed;
        q.sampling.has_seed = true;
        CHECK_OK(rd_generate(engine, &q, hear, &first, NULL));
        mem_free(text);
        json_array_append_new(messages, json_pack("{s:s,s:s%}", "role", "assistant", "content", first.text, first.n));
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", "Another one."));
        q.messages_json = text = json_dumps(messages, 0);
        q.max_tokens = 1;
        q.cache_prompt = false;
        CHECK_OK(rd_generate(engine, &q, hear, &second, NULL));
        n_canonical = second.usage.n_prompt;
        q.cache_prompt = true;
        CHECK_OK(rd_generate(engine, &q, hear, &second, NULL));
        CHECK(second.usage.n_cached + 2 >= first.usage.n_prompt + first.usage.n_generated);
        n_other += second.usage.n_prompt != n_canonical;
        n_missed += first.usage.n_prompt + first.usage.n_generated - second.usage.n_cached;
        mem_free(text);
        json_decref(messages);
    }
    test_note("%u tokens of %u answers had to be computed again, the last sampled ones included; %u answers were not "
              "what the tokenizer makes of their text",
              n_missed, n_answers, n_other);
    CHECK(n_other > 0); /* some were not what the tokenizer makes of them */
    rd_close(engine);
}

/* ChatML; a new answer begins with thinking, and the history shows none. */
static const char think_template[] = "{%- for m in messages -%}<|im_start|>{{ m.role }}\n"
                                     "{{ m.content.split('</think>')[-1].lstrip('\\n') }}<|im_end|>\n{% endfor -%}"
                                     "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif -%}";

static uint64_t prompt_tokens_computed(rd_engine *engine)
{
    struct rd_stats s = {.size = sizeof(s)};

    rd_get_stats(engine, &s);
    return s.prompt_tokens_computed;
}

TEST(an_answer_without_its_thinking_is_there_before_the_next_turn)
{
    char path[] = "/tmp/radish-think-XXXXXX";
    int fd = mkstemp(path);
    struct rd_request_options q;
    static struct heard first, second;
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "Name three colours.");
    struct rd_options o;
    rd_engine *engine = NULL;
    uint64_t before;
    char *text;

    CHECK(fd >= 0 && write(fd, think_template, sizeof(think_template) - 1) == (ssize_t)sizeof(think_template) - 1);
    close(fd);
    rd_options_default(&o);
    o.kv_tokens = 4096;
    o.chat_template_file = path;
    o.model = test_model("smollm2");
    if (!o.model) {
        test_skip("smollm2 has not been fetched (tools/fetch-model smollm2)");
        json_decref(messages);
        unlink(path);
        return;
    }
    CHECK_OK(rd_open(&o, &engine, NULL));
    rd_request_options_default(&q);
    q.sampling.temperature = 0;
    q.max_tokens = 60;
    q.thinking_tokens = 6; /* then it is closed */
    q.parse_thinking = true;
    q.messages_json = text = json_dumps(messages, 0);
    CHECK_OK(rd_generate(engine, &q, hear, &first, NULL));
    mem_free(text);
    CHECK(first.usage.n_reasoning > 0 && first.n > 0);
    before = first.usage.n_prompt;
    for (int i = 0; i < 2000 && prompt_tokens_computed(engine) <= before; i++) usleep(5000); /* the idle prefill */
    usleep(50000);
    json_array_append_new(messages, json_pack("{s:s,s:s%}", "role", "assistant", "content", first.text, first.n));
    json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", "Two more."));
    q.messages_json = text = json_dumps(messages, 0);
    q.max_tokens = 1;
    CHECK_OK(rd_generate(engine, &q, hear, &second, NULL));
    mem_free(text);
    json_decref(messages);
    test_note("turn 1: %u + %u tokens; turn 2: %u of %u from the tree", first.usage.n_prompt, first.usage.n_generated,
              second.usage.n_cached, second.usage.n_prompt);
    CHECK(second.usage.n_prompt - second.usage.n_cached <= 16);
    rd_close(engine);
    unlink(path);
}
