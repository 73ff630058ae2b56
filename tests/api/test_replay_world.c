/* tests/api/test_replay_world.c - conversations over tools that are spelled anew, cut, repeated, asked again: no prompt
 * holds a byte that its own conversation did not have, two clients of one server get the prompts that they would get
 * apart, and a conversation that only grows keeps every token.
 *
 * The text side of the library with a real vocabulary and template; what a model would write is drawn: calls in odd
 * spellings, cut into tokens as no tokenizer would.
 */
#include <jansson.h>
#include <string.h>
#include "api/api_state.h"
#include "base/mem.h"
#include "base/random.h"
#include "radish/radish.h"
#include "test.h"

#define N_CLIENTS 3u
#define MAX_CHAIN 24u

/* A conversation as its client holds it, and what its last answer left on each server. */
struct client {
    json_t *tools, *messages;
    bool own_ids; /* gives calls ids of its own (and sends tools as they are): only content tells */
    bool was_cut; /* may say again what it said: two answers of one text, cut in two ways */
    bool common;  /* begins as others do, so that nobody can tell whose it is */
    uint32_t n_answers;
    int32_t *kept; /* prompt and answer of its last turn, where it was not cut; the shared server's */
    uint32_t n_kept;
};

struct world {
    rd_engine *shared, *own[N_CLIENTS];
    struct client clients[N_CLIENTS];
    struct random r;
    uint32_t n_turns, n_grown, n_restored, n_cut, n_begun;
};

static rd_engine *open_texts(const char *model)
{
    struct rd_error err = {RD_OK, ""};
    rd_engine *e = NULL;

    if (rd_open_tokenizer(test_model(model), NULL, &e, &err) != RD_OK) test_fail(__FILE__, __LINE__, "%s", err.text);
    return e;
}

static json_t *json(const char *text)
{
    return json_loads(text, JSON_DECODE_ANY, NULL);
}

static json_t *copied(const json_t *v)
{
    char *text = json_dumps(v, JSON_COMPACT);
    json_t *copy = json(text);

    mem_free(text);
    return copy;
}

/* Keys in another order. */
static json_t *shuffled(struct random *r, const json_t *v)
{
    const char *keys[16], *key;
    json_t *out, *member;
    size_t n = 0, i;

    if (json_is_array(v)) {
        out = json_array();
        json_array_foreach(v, i, member) json_array_append_new(out, shuffled(r, member));
        return out;
    }
    if (!json_is_object(v)) return json_incref((json_t *)(uintptr_t)v);
    json_object_foreach((json_t *)(uintptr_t)v, key, member) keys[n++] = key;
    for (i = n; i > 1; i--) {
        size_t k = random_below(r, i);
        const char *t = keys[k];

        keys[k] = keys[i - 1];
        keys[i - 1] = t;
    }
    out = json_object();
    for (i = 0; i < n; i++) json_object_set_new(out, keys[i], shuffled(r, json_object_get(v, keys[i])));
    return out;
}

/* As a JSON library would send it this time. */
static char *spelled(struct random *r, const json_t *v)
{
    static const size_t flags[] = {JSON_COMPACT, 0, JSON_INDENT(2), JSON_ENSURE_ASCII};
    json_t *other = shuffled(r, v);
    char *text = json_dumps(other, flags[random_below(r, 4)] | JSON_ENCODE_ANY);

    json_decref(other);
    return text;
}

static void begin(struct world *w, struct client *c)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"read\",\"description\":\"Reads a "
        "file.\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"path\":{\"type\":\"string\"},\"line\":{\"type\":\"integer\"}},\"required\":[\"path\"]}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"run\",\"parameters\":{\"type\":\"object\",\"properties\":{"
        "\"cmd\":{\"type\":\"string\"}}}}}]";
    char text[64];

    json_decref(c->tools);
    json_decref(c->messages);
    mem_free(c->kept);
    *c = (struct client){.tools = json(tools), .own_ids = c - w->clients == 1};
    c->common = ++w->n_begun % 4 == 0;
    snprintf(text, sizeof(text), "Task %u", c->common ? 0 : w->n_begun);
    c->messages = json_pack("[{s:s, s:s}]", "role", "user", "content", text);
}

/* The messages with the arguments of their calls spelled anew, as JSON text. */
static char *send(struct world *w, const struct client *c)
{
    json_t *messages = copied(c->messages), *message;
    char *text;
    size_t i;

    json_array_foreach(messages, i, message)
    {
        json_t *calls = json_object_get(message, "tool_calls");

        for (size_t k = 0; k < json_array_size(calls); k++) {
            json_t *function = json_object_get(json_array_get(calls, k), "function");
            json_t *value = json(json_string_value(json_object_get(function, "arguments")));

            text = spelled(&w->r, value);
            json_object_set_new(function, "arguments", json_string(text));
            mem_free(text);
            if (c->own_ids) json_object_set_new(json_array_get(calls, k), "id", json_sprintf("call_%zu", i));
            json_decref(value);
        }
    }
    text = json_dumps(messages, JSON_COMPACT);
    json_decref(messages);
    return text;
}

/* The prompt of a request. notes: NULL when it is only looked at. */
static int32_t *ask(rd_engine *e, const char *messages, const char *tools, bool replay, uint32_t *n,
                    struct api_prompt_notes *notes)
{
    struct rd_request_options o;
    int32_t *ids = NULL;

    rd_request_options_default(&o);
    o.messages_json = messages;
    o.tools_json = tools;
    o.prompt_end = RD_PROMPT_NEW;
    o.replay = replay;
    if (api_prompt_tokens(e, &o, notes, &ids, n, NULL) != RD_OK) test_fail(__FILE__, __LINE__, "no prompt");
    return ids;
}

static char *text_of(rd_engine *e, const int32_t *ids, uint32_t n)
{
    char *text = NULL;
    size_t n_bytes;

    (void)rd_detokenize(e, ids, n, true, &text, &n_bytes, NULL);
    return text;
}

/* Bytes without those that JSON spelling may change or move. */
static void sorted_letters(const char *s, uint32_t counts[256])
{
    memset(counts, 0, 256 * sizeof(*counts));
    for (; *s; s++)
        if (!strchr(" \n\t\r", *s)) counts[(unsigned char)*s]++;
}

/* Random cuts of a text into tokens: at every place a random one of the pieces that fit. */
static uint32_t cut_into_tokens(rd_engine *e, struct random *r, const char *text, uint32_t *ids)
{
    uint32_t n = 0;

    for (size_t left = strlen(text); left > 0;) {
        size_t take = 1 + random_below(r, left < 6 ? left : 6);
        int32_t *some = NULL;
        uint32_t n_some = 0;

        while (take < left && ((unsigned char)text[take] & 0xc0) == 0x80) take++;
        if (rd_tokenize(e, text, take, false, false, &some, &n_some, NULL) != RD_OK) return 0;
        for (uint32_t i = 0; i < n_some; i++) ids[n++] = (uint32_t)some[i];
        rd_free(some);
        text += take;
        left -= take;
    }
    return n;
}

/* What the model writes: a text, or a call in an odd spelling; and how it is delivered. */
static char *draw_answer(struct world *w, struct api_answer *a, json_t **message)
{
    static const char *const texts[] = {"Done.", "I looked at it.", "Zażółć gęślą", ""};
    static const char *const forms[] = {"{\"name\": \"read\", \"arguments\": %s}",
                                        "{\"name\":\"read\",\"arguments\":%s}",
                                        "{ \"arguments\": %s, \"name\": \"read\" }"};
    const char *text = texts[random_below(&w->r, 4)];
    bool calls = random_below(&w->r, 3) > 0 || !*text;
    char raw[1024], call[512] = "", id[48];

    if (calls) {
        json_t *arguments = json_pack("{s:s, s:i}", "path", random_below(&w->r, 2) ? "src/a.c" : "b \\ c\".txt", "line",
                                      (int)random_below(&w->r, 4));
        char *s = spelled(&w->r, arguments);

        snprintf(call, sizeof(call), forms[random_below(&w->r, 3)], s);
        snprintf(id, sizeof(id), "call_%llx", (unsigned long long)random_u64(&w->r));
        api_answer_add(a, RD_DELTA_CONTENT, NULL, text, strlen(text));
        api_answer_add(a, RD_DELTA_CALL_BEGIN, id, "read", 4);
        api_answer_add(a, RD_DELTA_CALL_ARGUMENTS, NULL, s, strlen(s));
        api_answer_add(a, RD_DELTA_CALL_END, NULL, NULL, 0);
        *message = json_pack("{s:s, s:s, s:[{s:s, s:s, s:{s:s, s:s}}]}", "role", "assistant", "content", text,
                             "tool_calls", "id", id, "type", "function", "function", "name", "read", "arguments", s);
        json_decref(arguments);
        mem_free(s);
        snprintf(raw, sizeof(raw), "%s%s<tool_call>\n%s\n</tool_call>", text, *text ? "\n" : "", call);
    } else {
        api_answer_add(a, RD_DELTA_CONTENT, NULL, text, strlen(text));
        *message = json_pack("{s:s, s:s}", "role", "assistant", "content", text);
        snprintf(raw, sizeof(raw), "%s", text);
    }
    return mem_strdup(raw);
}

/* The answer is kept on a server as the engine would keep it, behind the prompt that it got there. */
static void keep(rd_engine *e, const int32_t *prompt, uint32_t n_prompt, const uint32_t *answer, uint32_t n_answer,
                 const struct api_prompt_notes *notes, struct api_answer *a)
{
    uint32_t *ids = mem_alloc(n_prompt + n_answer + 1, sizeof(*ids));
    struct api_kept k = {.ids = ids,
                         .n_prompt = n_prompt,
                         .n_ids = n_prompt + n_answer,
                         .n_messages = notes->n_messages,
                         .spelled = &notes->spelled,
                         .whole = true};

    memcpy(ids, prompt, n_prompt * sizeof(*ids));
    memcpy(ids + n_prompt, answer, n_answer * sizeof(*ids));
    api_answer_keep_as(e, &k, a);
    mem_free(ids);
}

/* Two texts where they part. */
static void differ(const char *what, const char *a, const char *than, const char *b, uint32_t n_turn)
{
    size_t n = 0;

    while (a[n] && a[n] == b[n]) n++;
    n = n > 40 ? n - 40 : 0;
    test_fail(__FILE__, __LINE__, "turn %u: %s \"..%.80s\", %s \"..%.80s\"", n_turn, what, a + n, than, b + n);
}

/* One request of a client, to the shared server and to its own, and its answer. */
static void turn(struct world *w, uint32_t which)
{
    struct client *c = &w->clients[which];
    struct api_prompt_notes notes = {.n_messages = 0}, own_notes = {.n_messages = 0};
    struct api_answer a = {0}, b = {0};
    uint32_t n, n_own, n_as_sent, n_answer, before[256], after[256];
    char *messages = send(w, c), *tools = c->own_ids ? json_dumps(c->tools, 0) : spelled(&w->r, c->tools), *raw, *text,
         *plain;
    int32_t *ids = ask(w->shared, messages, tools, true, &n, &notes), *again;
    int32_t *own = ask(w->own[which], messages, tools, true, &n_own, &own_notes);
    int32_t *as_sent = ask(w->shared, messages, tools, false, &n_as_sent, NULL);
    uint32_t answer[2048];
    json_t *message = NULL;
    struct random fork;

    /* as apart */
    if (!c->common && (n != n_own || memcmp(ids, own, n * sizeof(*ids)) != 0)) {
        text = text_of(w->shared, ids, n);
        plain = text_of(w->shared, own, n_own);
        differ("shared", text, "apart", plain, w->n_turns);
        rd_free(text);
        rd_free(plain);
    }
    /* the same letters as were sent: no other conversation's */
    text = text_of(w->shared, ids, n);
    plain = text_of(w->shared, as_sent, n_as_sent);
    sorted_letters(text, after);
    sorted_letters(plain, before);
    if (memcmp(before, after, sizeof(after)) != 0) differ("sent", plain, "became", text, w->n_turns);
    rd_free(text);
    rd_free(plain);
    /* a second time, spelled anew: the same prompt, unless it is a beginning */
    if (c->n_answers > 0 && !c->common) {
        char *m2 = send(w, c), *t2 = c->own_ids ? json_dumps(c->tools, 0) : spelled(&w->r, c->tools);
        uint32_t n2;

        again = ask(w->shared, m2, t2, true, &n2, NULL);
        if (n2 != n || memcmp(again, ids, n * sizeof(*ids)) != 0)
            test_fail(__FILE__, __LINE__, "turn %u: sent again it has another prompt", w->n_turns);
        mem_free(again);
        mem_free(m2);
        mem_free(t2);
    }
    /* what it had, it keeps */
    if (c->kept && !c->own_ids && !c->common && !c->was_cut) {
        if (n < c->n_kept || memcmp(ids, c->kept, c->n_kept * sizeof(*ids)) != 0) {
            text = text_of(w->shared, ids, n);
            plain = text_of(w->shared, c->kept, c->n_kept);
            differ("prompt", text, "lost tokens of", plain, w->n_turns);
            rd_free(text);
            rd_free(plain);
        }
        w->n_grown++;
    }
    w->n_restored += notes.n_restored;
    fork = w->r;
    raw = draw_answer(w, &a, &message);
    w->r = fork;
    mem_free(raw);
    json_decref(message);
    raw = draw_answer(w, &b, &message); /* the same answer, on its own server */
    n_answer = cut_into_tokens(w->shared, &w->r, raw, answer);
    keep(w->shared, ids, n, answer, n_answer, &notes, &a);
    keep(w->own[which], own, n_own, answer, n_answer, &own_notes, &b);
    mem_free(c->kept);
    c->n_kept = n + n_answer;
    c->kept = mem_alloc(c->n_kept + 1, sizeof(*c->kept));
    memcpy(c->kept, ids, n * sizeof(*ids));
    memcpy(c->kept + n, answer, n_answer * sizeof(*ids));
    json_array_append_new(c->messages, message);
    if (json_object_get(message, "tool_calls"))
        json_array_append_new(
            c->messages,
            json_pack("{s:s, s:o, s:s}", "role", "tool", "tool_call_id",
                      json_incref(json_object_get(json_array_get(json_object_get(message, "tool_calls"), 0), "id")),
                      "content", "int main(void) { return 0; }"));
    else
        json_array_append_new(c->messages, json_pack("{s:s, s:s}", "role", "user", "content", "And now?"));
    c->n_answers++;
    w->n_turns++;
    mem_free(raw);
    mem_free(ids);
    mem_free(own);
    mem_free(as_sent);
    mem_free(messages);
    mem_free(tools);
    api_answer_deinit(&a);
    api_answer_deinit(&b);
    api_notes_deinit(w->shared, &notes);
    api_notes_deinit(w->own[which], &own_notes);
}

/* Its client goes back to an earlier place and asks something else, or says again what it said. */
static void cut(struct world *w, struct client *c)
{
    size_t n = json_array_size(c->messages), to = 1 + random_below(&w->r, n), i;

    for (i = n; i > to; i--) json_array_remove(c->messages, i - 1);
    while ((n = json_array_size(c->messages)) > 1 &&
           strcmp(json_string_value(json_object_get(json_array_get(c->messages, n - 1), "role")), "assistant") == 0)
        json_array_remove(c->messages, n - 1);
    if (random_below(&w->r, 2))
        json_array_append_new(c->messages, json_pack("{s:s, s:s}", "role", "user", "content", "No, the other."));
    c->n_answers = 0;
    for (i = 0; i < json_array_size(c->messages); i++)
        c->n_answers +=
            strcmp(json_string_value(json_object_get(json_array_get(c->messages, i), "role")), "assistant") == 0;
    mem_free(c->kept);
    c->kept = NULL;
    c->was_cut = true;
    w->n_cut++;
}

static void live(const char *model, uint32_t n_turns)
{
    struct world w = {.n_turns = 0};

    if (!test_model(model)) {
        test_skip("%s has not been fetched (tools/fetch-model %s)", model, model);
        return;
    }
    random_init(&w.r, test_seed());
    w.shared = open_texts(model);
    for (uint32_t i = 0; i < N_CLIENTS; i++) w.own[i] = open_texts(model);
    CHECK(w.shared && w.own[0] && w.own[1] && w.own[2]);
    for (uint32_t i = 0; i < N_CLIENTS; i++) begin(&w, &w.clients[i]);
    /* longer where chance cut many conversations */
    while (w.n_turns < n_turns || (w.n_grown <= n_turns / 10 && w.n_turns < 4 * n_turns)) {
        uint32_t which = (uint32_t)random_below(&w.r, N_CLIENTS);
        struct client *c = &w.clients[which];

        if (json_array_size(c->messages) > 2 * MAX_CHAIN)
            begin(&w, c);
        else if (random_below(&w.r, 40) == 0)
            cut(&w, c);
        turn(&w, which);
    }
    test_note(
        "%u turns, %u of them after a turn of which every token was kept, %u conversations cut, %u answers put back",
        w.n_turns, w.n_grown, w.n_cut, w.n_restored);
    CHECK(w.n_restored > w.n_turns && w.n_grown > n_turns / 10);
    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        json_decref(w.clients[i].tools);
        json_decref(w.clients[i].messages);
        mem_free(w.clients[i].kept);
        rd_close(w.own[i]);
    }
    rd_close(w.shared);
}

TEST(no_prompt_has_what_its_own_conversation_had_not_and_none_that_grows_loses_a_token)
{
    live("qwen2.5-coder-0.5b", test_is_long() ? 3000 : 300);
}

/* Its template knows no tools: they are explained in a system message that the client did not send. */
TEST(the_same_where_tools_are_explained_in_the_system_message)
{
    live("smollm2", test_is_long() ? 1000 : 100);
}
