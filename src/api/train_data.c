/* api/train_data.c - lines of JSON to samples.
 *
 * A conversation is rendered by the model's template up to each of the assistant's messages, and with it: what the second has
 * beyond the first is what the assistant said. Pieces are tokenised one by one, as they are when served: a prompt is, then come
 * the tokens of the answer. Where a template writes earlier turns otherwise once later ones are there (it drops thinking), the
 * conversation goes on as a sample of its own.
 */
#include <string.h>
#include "api/api_trainer.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"

struct reader {
    struct train_data *d;
    const rd_engine *texts;
    uint32_t max_tokens;
    bool all_tokens;
    /* the sample that grows */
    int32_t *tokens;
    bool *targets;
    size_t cap_tokens, cap_targets, n;
    bool cut;
};

static rd_status add_tokens(struct reader *r, const int32_t *ids, uint32_t n, bool targets, struct rd_error *err)
{
    if (!mem_grow((void **)&r->tokens, &r->cap_tokens, r->n + n, sizeof(*r->tokens)) ||
        !mem_grow((void **)&r->targets, &r->cap_targets, r->n + n, sizeof(*r->targets)))
        return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++) {
        r->tokens[r->n] = ids[i];
        r->targets[r->n] = (targets || r->all_tokens) && r->n > 0;
        r->n++;
    }
    return RD_OK;
}

/* names: MARKED of what a template wrote, else TOKENS. */
static rd_status add_text(struct reader *r, const char *s, size_t n, enum token_names names, bool targets,
                          struct rd_error *err)
{
    int32_t *ids = NULL;
    uint32_t n_ids = 0;
    rd_status st = r->n == 0 ? api_encode_whole(r->texts, s, n, names, &ids, &n_ids, err)
                             : token_memory_encode(r->texts->texts, s, n, false, names, &ids, &n_ids, NULL, err);

    if (st == RD_OK) st = add_tokens(r, ids, n_ids, targets, err);
    rd_free(ids);
    return st;
}

static rd_status add_end(struct reader *r, struct rd_error *err)
{
    int32_t eos;
    struct rd_info info = {.size = sizeof(info)};

    rd_get_info(r->texts, &info);
    eos = info.eos;
    return eos < 0 ? RD_OK : add_tokens(r, &eos, 1, true, err);
}

/* The sample is whole: cut where it is too long, left out where nothing is to be learned in it. */
static rd_status end_sample(struct reader *r, struct rd_error *err)
{
    struct train_data *d = r->d;
    uint32_t n = (uint32_t)(r->n < r->max_tokens ? r->n : r->max_tokens), n_targets = 0;
    int32_t *tokens;
    bool *targets;

    for (uint32_t i = 1; i < n; i++) n_targets += r->targets[i];
    d->n_cut += n < r->n;
    r->n = 0;
    if (n_targets == 0) {
        d->n_dropped++;
        return RD_OK;
    }
    tokens = (int32_t *)(void *)arena_memdup(&d->arena, r->tokens, n * sizeof(*tokens));
    targets = (bool *)arena_memdup(&d->arena, r->targets, n * sizeof(*targets));
    if (!tokens || !targets || !mem_grow((void **)&d->samples, &d->cap, d->n + 1, sizeof(*d->samples)))
        return error_set(err, RD_E_NOMEM, "out of memory");
    d->samples[d->n++] = (struct rd_train_sample){tokens, targets, n};
    return RD_OK;
}

struct text {
    char *s;
    size_t n;
};

static rd_status render(const struct reader *r, json_t *messages, const char *tools, enum rd_prompt_end end,
                        struct text *out, struct rd_error *err)
{
    char *json = json_dumps(messages, JSON_COMPACT);
    struct rd_request_options o;
    rd_status st;

    rd_request_options_default(&o);
    o.messages_json = json;
    o.tools_json = tools;
    o.prompt_end = end;
    st = json ? api_prompt_marked(r->texts, &o, &out->s, &out->n, err) : error_set(err, RD_E_NOMEM, "out of memory");

    mem_free(json);
    return st;
}

static size_t common(struct text a, struct text b)
{
    size_t n = 0;

    while (n < a.n && n < b.n && a.s[n] == b.s[n]) n++;
    return n;
}

/* One of the assistant's messages, the last of so_far; done: the text that is in the sample already. */
static rd_status add_turn(struct reader *r, json_t *before, json_t *so_far, const char *tools, bool targets,
                          struct text *done, struct rd_error *err)
{
    struct text prompt = {NULL, 0}, whole = {NULL, 0};
    size_t n_done = 0, at;
    rd_status st = render(r, before, tools, RD_PROMPT_NEW, &prompt, err);

    if (st == RD_OK) st = render(r, so_far, tools, RD_PROMPT_CLOSED, &whole, err);
    if (st == RD_OK && r->n > 0) {
        n_done = done->n;
        if (common(*done, whole) < done->n) { /* earlier turns are written otherwise now */
            st = end_sample(r, err);
            n_done = 0;
        }
    }
    if (st == RD_OK) {
        at = common(prompt, whole);
        if (at < n_done) at = n_done;
        if (at > n_done) st = add_text(r, whole.s + n_done, at - n_done, NAMES_MARKED, false, err);
        if (st == RD_OK && whole.n > at) st = add_text(r, whole.s + at, whole.n - at, NAMES_MARKED, targets, err);
    }
    rd_free(prompt.s);
    rd_free(done->s);
    *done = whole;
    return st;
}

/* "weight": 0 in a message of the assistant, as OpenAI's files of samples have it: it is there, and not learned. */
static rd_status is_learned(const json_t *message, size_t number, bool *out, struct rd_error *err)
{
    const json_t *weight = json_object_get(message, "weight");
    double w = json_is_number(weight) ? json_number_value(weight) : 1;

    if (weight && !json_is_null(weight) && (!json_is_number(weight) || (w != 0 && w != 1)))
        return error_set(err, RD_E_INVALID, "message %zu: weight must be 0 or 1", number);
    *out = w != 0;
    return RD_OK;
}

/* n_given: so many messages come first of which nothing is learned. */
static rd_status add_messages(struct reader *r, const json_t *line, const json_t *messages, size_t n_given,
                              struct rd_error *err)
{
    const json_t *tools = json_object_get(line, "tools");
    json_t *before = json_array(), *so_far = json_array();
    char *tools_json = tools && !json_is_null(tools) ? json_dumps(tools, JSON_COMPACT) : NULL;
    struct text done = {NULL, 0};
    bool learns = false;
    rd_status st = before && so_far ? RD_OK : error_set(err, RD_E_NOMEM, "out of memory");

    for (size_t i = 0; st == RD_OK && i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        bool is_turn = role && strcmp(role, "assistant") == 0, wanted = true;

        if (!role) st = error_set(err, RD_E_INVALID, "message %zu has no role", i + 1);
        if (st == RD_OK && is_turn) st = is_learned(m, i + 1, &wanted, err);
        if (st == RD_OK && json_array_append(so_far, m) != 0) st = error_set(err, RD_E_NOMEM, "out of memory");
        if (st == RD_OK && is_turn) st = add_turn(r, before, so_far, tools_json, wanted && i >= n_given, &done, err);
        if (st == RD_OK && json_array_append(before, m) != 0) st = error_set(err, RD_E_NOMEM, "out of memory");
        learns |= is_turn && i >= n_given;
    }
    if (st == RD_OK && !learns)
        st = error_set(err, RD_E_INVALID, "no message of the assistant%s", n_given ? " in \"completion\"" : "");
    if (st == RD_OK) st = end_sample(r, err);
    rd_free(done.s);
    mem_free(tools_json);
    json_decref(before);
    json_decref(so_far);
    return st;
}

/* "prompt" and "completion" as lists of messages: one conversation, of which the second is learned. */
static rd_status add_conversation(struct reader *r, const json_t *line, const json_t *prompt, const json_t *completion,
                                  struct rd_error *err)
{
    json_t *all = json_copy((json_t *)(uintptr_t)prompt);
    rd_status st = RD_OK;

    if (json_array_size(prompt) == 0)
        st = error_set(err, RD_E_INVALID, "\"prompt\" has no messages");
    else if (!all || json_array_extend(all, (json_t *)(uintptr_t)completion) != 0)
        st = error_set(err, RD_E_NOMEM, "out of memory");
    if (st == RD_OK) st = add_messages(r, line, all, json_array_size(prompt), err);
    json_decref(all);
    return st;
}

static rd_status add_line(struct reader *r, const char *s, size_t n, struct rd_error *err)
{
    json_error_t why = {.text = ""};
    json_t *line = json_loadb(s, n, JSON_ALLOW_NUL, &why);
    const json_t *text = json_object_get(line, "text"), *prompt = json_object_get(line, "prompt"),
                 *completion = json_object_get(line, "completion"), *messages = json_object_get(line, "messages");
    rd_status st;

    r->n = 0;
    if (!line && json_error_code(&why) == json_error_out_of_memory) {
        st = error_set(err, RD_E_NOMEM, "out of memory");
    } else if (!line) {
        st = error_set(err, RD_E_INVALID, "not JSON: %.200s", why.text);
    } else if (messages) {
        st = json_is_array(messages) && json_array_size(messages) > 0
                 ? add_messages(r, line, messages, 0, err)
                 : error_set(err, RD_E_INVALID, "\"messages\" must be an array of messages");
    } else if (json_is_array(prompt) && json_is_array(completion)) {
        st = add_conversation(r, line, prompt, completion, err);
    } else if (json_is_string(prompt) && json_is_string(completion)) {
        st = add_text(r, json_string_value(prompt), json_string_length(prompt), NAMES_TOKENS, false, err);
        if (st == RD_OK)
            st = add_text(r, json_string_value(completion), json_string_length(completion), NAMES_TOKENS, true, err);
        if (st == RD_OK) st = add_end(r, err);
        if (st == RD_OK) st = end_sample(r, err);
    } else if (json_is_string(text)) {
        st = add_text(r, json_string_value(text), json_string_length(text), NAMES_TOKENS, true, err);
        if (st == RD_OK) st = add_end(r, err);
        if (st == RD_OK) st = end_sample(r, err);
    } else {
        st = error_set(
            err, RD_E_INVALID,
            "no \"messages\", \"prompt\" and \"completion\" (both text, or both lists of messages), or \"text\"");
    }
    json_decref(line);
    return st;
}

rd_status train_data_read(struct train_data *d, const rd_engine *texts, const char *path, uint32_t max_tokens,
                          bool all_tokens, struct rd_error *err)
{
    struct reader r = {.d = d, .texts = texts, .max_tokens = max_tokens, .all_tokens = all_tokens};
    struct rd_error why = {RD_OK, ""};
    uint64_t number = 0;
    char *bytes = NULL;
    size_t n = 0, at;
    rd_status st = file_read_all(path, (size_t)4 << 30, &bytes, &n, err);

    if (st != RD_OK) return st;
    at = n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; /* a byte order mark, as some editors write it */
    for (size_t end; at < n && st == RD_OK; at = end + 1) {
        const char *newline = memchr(bytes + at, '\n', n - at);

        end = newline ? (size_t)(newline - bytes) : n;
        number++;
        if (strspn(bytes + at, " \t\r") >= end - at) continue; /* an empty line */
        st = add_line(&r, bytes + at, end - at, &why);
        if (st != RD_OK)
            st = error_set(err, st, "%.200s, line %llu: %.280s", path, (unsigned long long)number,
                           why.text[0] ? why.text : rd_status_text(st));
    }
    for (size_t i = 0; i < d->n; i++) {
        struct hash128 parts[3] = {d->digest, hash128_of(d->samples[i].tokens, d->samples[i].n * sizeof(int32_t)),
                                   hash128_of(d->samples[i].targets, d->samples[i].n * sizeof(bool))};

        d->digest = hash128_of(parts, sizeof(parts));
    }
    mem_free(bytes);
    mem_free(r.tokens);
    mem_free(r.targets);
    return st;
}

void train_data_deinit(struct train_data *d)
{
    mem_free(d->samples);
    arena_deinit(&d->arena);
}
