/* text/chat/chat_template.c - the variables of a chat template; prompts: adapting, folding, continuing the last message. */
#include "text/chat/chat_template.h"
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "text/chat/chat_builtins.h"
#include "text/chat/chat_messages.h"
#include "text/jinja/jinja.h"

/* Stands behind the text that is to be continued; what comes after it in the rendered text is cut off. The blank at its
 * end tells whether the template trims. */
#define END_MARK "continue:here:7f3a "

struct chat_template {
    struct jinja *jinja;
    char *source, *bos_token, *eos_token;
    struct chat_caps caps;
};

void chat_template_destroy(struct chat_template *t)
{
    if (!t) return;
    jinja_destroy(t->jinja);
    mem_free(t->source);
    mem_free(t->bos_token);
    mem_free(t->eos_token);
    mem_free(t);
}

rd_status chat_template_create(const char *source, size_t n, const char *bos_token, const char *eos_token,
                               struct chat_template **out, struct rd_error *err)
{
    struct chat_template *t = mem_zalloc(1, sizeof(*t));
    rd_status st = RD_E_NOMEM;

    if (!t) goto fail;
    if ((st = jinja_create(source, n, &t->jinja, err)) != RD_OK) goto fail;
    st = RD_E_NOMEM;
    t->source = mem_memdup(source, n);
    t->bos_token = mem_strdup(bos_token ? bos_token : "");
    t->eos_token = mem_strdup(eos_token ? eos_token : "");
    if (!t->source || !t->bos_token || !t->eos_token) goto fail;
    if ((st = chat_caps_probe(t->jinja, t->source, t->bos_token, t->eos_token, &t->caps)) != RD_OK) goto fail;
    *out = t;
    return RD_OK;

fail:
    chat_template_destroy(t);
    return st == RD_E_NOMEM ? error_set(err, st, "out of memory while compiling a chat template") : st;
}

rd_status chat_template_builtin(const char *name, const char *bos_token, const char *eos_token,
                                struct chat_template **out, struct rd_error *err)
{
    const char *source = chat_builtin_source(name);
    char text[64];

    if (source) return chat_template_create(source, strlen(source), bos_token, eos_token, out, err);
    return error_set(err, RD_E_NOT_FOUND, "no built-in chat template '%s'; there are %s",
                     error_quote(text, sizeof(text), name, strlen(name)), chat_builtin_names());
}

const char *chat_template_source(const struct chat_template *t)
{
    return t->source;
}

bool chat_template_has_tools(const struct chat_template *t)
{
    return jinja_mentions(t->jinja, "tools");
}

const struct chat_caps *chat_template_caps(const struct chat_template *t)
{
    return &t->caps;
}

/* Names that chat_template_kwargs cannot replace. */
static bool is_internal(const char *name)
{
    static const char *const names[] = {"messages",
                                        "tools",
                                        "add_generation_prompt",
                                        "continue_final_message",
                                        "bos_token",
                                        "eos_token",
                                        "range",
                                        "dict",
                                        "lipsum",
                                        "namespace",
                                        "cycler",
                                        "joiner",
                                        "raise_exception",
                                        "strftime_now",
                                        "loop",
                                        "caller",
                                        "varargs",
                                        "kwargs",
                                        "self",
                                        "super",
                                        "true",
                                        "false",
                                        "none",
                                        "True",
                                        "False",
                                        "None"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strcmp(name, names[i])) return true;
    return name[0] == '_' && name[1] == '_';
}

static rd_status check_kwargs(const json_t *kwargs, struct rd_error *err)
{
    const char *key;
    json_t *value;
    char quoted[64];

    json_object_foreach((json_t *)(uintptr_t)kwargs, key, value)
    {
        if (!is_internal(key)) continue;
        return error_set(err, RD_E_INVALID, "chat_template_kwargs: '%s' is the server's own and cannot be replaced",
                         error_quote(quoted, sizeof(quoted), key, strlen(key)));
    }
    return RD_OK;
}

static rd_status no_memory(struct rd_error *err)
{
    return error_set(err, RD_E_NOMEM, "out of memory while rendering a chat template");
}

/* The template over these messages. */
static rd_status render(const struct chat_template *t, const struct chat_input *in, const json_t *messages, bool prompt,
                        char **text, size_t *n_bytes, struct rd_error *err)
{
    json_t *vars = json_object();
    bool bad = json_object_set_new(vars, "documents", json_null());
    rd_status st;

    if (in->kwargs) bad |= json_object_update(vars, (json_t *)(uintptr_t)in->kwargs);
    bad |= json_object_set(vars, "messages", (json_t *)(uintptr_t)messages);
    bad |= in->tools ? json_object_set(vars, "tools", (json_t *)(uintptr_t)in->tools)
                     : json_object_set_new(vars, "tools", json_null());
    bad |= json_object_set_new(vars, "add_generation_prompt", json_boolean(prompt));
    bad |= json_object_set_new(vars, "bos_token", json_string(t->bos_token));
    bad |= json_object_set_new(vars, "eos_token", json_string(t->eos_token));
    st = bad ? no_memory(err) : jinja_render(t->jinja, vars, in->now_s, text, n_bytes, err);
    json_decref(vars);
    return st;
}

rd_status chat_template_render(const struct chat_template *t, const struct chat_input *in, char **text, size_t *n_bytes,
                               struct rd_error *err)
{
    rd_status st = check_kwargs(in->kwargs, err);

    if (st != RD_OK) return st;
    if (!json_is_array(in->messages)) return error_set(err, RD_E_INVALID, "messages must be an array");
    return render(t, in, in->messages, in->add_generation_prompt, text, n_bytes, err);
}

/* ---- the last message ---- */

/* The last message, when it is the assistant's and no call. */
static const json_t *last_answer(const json_t *messages)
{
    const json_t *m = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(m, "role"));

    if (!role || strcmp(role, "assistant") || json_array_size(json_object_get(m, "tool_calls"))) return NULL;
    return m;
}

static bool has_text(const json_t *message)
{
    const json_t *content = json_object_get(message, "content"), *part;
    size_t i;

    if (json_is_string(content)) return json_string_length(content) > 0;
    json_array_foreach(content, i, part) if (json_string_length(json_object_get(part, "text"))) return true;
    return false;
}

/* The mark behind the last message's text; messages are the caller's own copies. */
static rd_status put_mark(json_t *messages, struct rd_error *err)
{
    json_t *m = json_array_get(messages, json_array_size(messages) - 1), *owner = m,
           *text = json_object_get(m, "content");
    const char *name = "content";
    json_t *marked;
    char *joined;
    size_t n;

    if (json_is_array(text)) {
        owner = json_array_get(text, json_array_size(text) - 1);
        name = "text";
        text = json_object_get(owner, name);
    }
    if (!json_is_string(text))
        return error_set(err, RD_E_INVALID, "continue_final_message: the last message has no text to continue");
    n = json_string_length(text);
    joined = mem_alloc(n + sizeof(END_MARK), 1);
    if (!joined) return no_memory(err);
    memcpy(joined, json_string_value(text), n);
    memcpy(joined + n, END_MARK, sizeof(END_MARK));
    marked = json_stringn(joined, n + sizeof(END_MARK) - 1);
    mem_free(joined);
    return json_object_set_new(owner, name, marked) ? no_memory(err) : RD_OK;
}

/* Cuts the text at its last mark. */
static rd_status cut_at_mark(char *text, size_t *n, struct rd_error *err)
{
    const size_t n_mark = sizeof(END_MARK) - 2; /* without its blank */
    char *at = NULL;

    for (size_t i = *n >= n_mark ? *n - n_mark + 1 : 0; i-- > 0 && !at;)
        if (!memcmp(text + i, END_MARK, n_mark)) at = text + i;
    if (!at)
        return error_set(err, RD_E_TEMPLATE,
                         "continue_final_message: the chat template does not write the last message's text");
    if (at[n_mark] != ' ') /* the template trims, so the text ends without white space, too */
        while (at > text && strchr(" \t\n\r", at[-1]) && at[-1]) at--;
    *at = 0;
    *n = (size_t)(at - text);
    return RD_OK;
}

/* ---- prompts ---- */

/* One attempt: messages adapted and folded, then rendered. */
static rd_status attempt(const struct chat_template *t, const struct chat_input *in, const json_t *messages,
                         enum chat_end end, unsigned folds, char **text, size_t *n_bytes, struct rd_error *err)
{
    json_t *adapted = NULL;
    rd_status st = chat_messages_adapt(&t->caps, messages, folds, &adapted, err);

    if (st == RD_OK && end == CHAT_END_CONTINUE) st = put_mark(adapted, err);
    if (st == RD_OK) st = render(t, in, adapted, end == CHAT_END_GENERATION, text, n_bytes, err);
    json_decref(adapted);
    if (st != RD_OK || end != CHAT_END_CONTINUE) return st;
    if ((st = cut_at_mark(*text, n_bytes, err)) == RD_OK) return RD_OK;
    mem_free(*text);
    *text = NULL;
    return st;
}

rd_status chat_template_prompt(const struct chat_template *t, const struct chat_input *in, char **text, size_t *n_bytes,
                               struct rd_error *err)
{
    static const unsigned folds[] = {
        0,
        CHAT_FOLD_IDS,
        CHAT_FOLD_IDS | CHAT_FOLD_EMPTY,
        CHAT_FOLD_IDS | CHAT_FOLD_EMPTY | CHAT_FOLD_LATE,
        CHAT_FOLD_IDS | CHAT_FOLD_EMPTY | CHAT_FOLD_LATE | CHAT_FOLD_TURNS,
        CHAT_FOLD_IDS | CHAT_FOLD_EMPTY | CHAT_FOLD_LATE | CHAT_FOLD_TURNS | CHAT_FOLD_SYSTEM,
        CHAT_FOLD_CALLS,
        CHAT_FOLD_CALLS | CHAT_FOLD_IDS | CHAT_FOLD_EMPTY | CHAT_FOLD_LATE,
        CHAT_FOLD_CALLS | CHAT_FOLD_IDS | CHAT_FOLD_EMPTY | CHAT_FOLD_LATE | CHAT_FOLD_TURNS | CHAT_FOLD_SYSTEM,
    };
    enum chat_end end = in->end;
    json_t *shorter = NULL;
    const json_t *messages = in->messages, *answer;
    rd_status first = check_kwargs(in->kwargs, err), st;

    if (first != RD_OK) return first;
    if (!json_is_array(messages)) return error_set(err, RD_E_INVALID, "messages must be an array");
    answer = last_answer(messages);
    if (end == CHAT_END_CONTINUE && !json_array_size(messages))
        return error_set(err, RD_E_INVALID, "continue_final_message: there is no message to continue");
    if (end == CHAT_END_AUTO) {
        end = answer && has_text(answer) ? CHAT_END_CONTINUE : CHAT_END_GENERATION;
        if (answer && end == CHAT_END_GENERATION && json_array_size(messages) > 1) {
            shorter = json_copy((json_t *)(uintptr_t)messages);
            if (!shorter || json_array_remove(shorter, json_array_size(shorter) - 1)) {
                json_decref(shorter);
                return no_memory(err);
            }
            messages = shorter;
        }
    }
    first = attempt(t, in, messages, end, folds[0], text, n_bytes, err);
    st = first;
    for (size_t i = 1; st == RD_E_TEMPLATE && i < sizeof(folds) / sizeof(folds[0]); i++)
        st = attempt(t, in, messages, end, folds[i], text, n_bytes, NULL);
    json_decref(shorter);
    return st == RD_OK || st == RD_E_NOMEM ? st : first;
}
