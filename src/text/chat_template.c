/* text/chat_template.c - the variables of a chat template, and the built-in templates of four families. */
#include "text/chat_template.h"
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "text/jinja.h"

struct chat_template {
    struct jinja *jinja;
    char *source, *bos_token, *eos_token;
};

/* Turns between markers, the assistant's called model; a system message goes before the first user text.
 * Format: Gemma's model card. */
static const char gemma_source[] =
    "{{ bos_token }}\n"
    "{%- set ns = namespace(system='') -%}\n"
    "{%- for message in messages -%}\n"
    "{%- if message['content'] is string -%}\n"
    "{%- set text = message['content'] | trim -%}\n"
    "{%- else -%}\n"
    "{%- set text = message['content'] | default([], true) | selectattr('type', 'equalto', 'text') | "
    "map(attribute='text') | join | trim -%}\n"
    "{%- endif -%}\n"
    "{%- if message['role'] == 'system' -%}\n"
    "{%- set ns.system = ns.system + text + '\\n\\n' -%}\n"
    "{%- else -%}\n"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' }}\n"
    "{%- if message['role'] == 'user' and ns.system -%}\n"
    "{{ ns.system }}\n"
    "{%- set ns.system = '' -%}\n"
    "{%- endif -%}\n"
    "{{ text + '<end_of_turn>\\n' }}\n"
    "{%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}";

/* Format: ChatML. */
static const char chatml_source[] =
    "{%- for message in messages -%}\n"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}\n"
    "{%- if message['content'] is string -%}{{ message['content'] }}\n"
    "{%- elif message['content'] -%}\n"
    "{{ message['content'] | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}\n"
    "{%- endif -%}\n"
    "{{ '<|im_end|>\\n' }}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

/* [INST] around user texts, the system text inside the first in <<SYS>>. Format: Llama 2's model card. */
static const char llama2_source[] = "{%- set ns = namespace(system='') -%}\n"
                                    "{%- for message in messages -%}\n"
                                    "{%- if message['content'] is string -%}\n"
                                    "{%- set text = message['content'] | trim -%}\n"
                                    "{%- else -%}\n"
                                    "{%- set text = message['content'] | default([], true) | selectattr('type', "
                                    "'equalto', 'text') | map(attribute='text') | join | trim -%}\n"
                                    "{%- endif -%}\n"
                                    "{%- if message['role'] == 'system' -%}\n"
                                    "{%- set ns.system = '<<SYS>>\\n' + text + '\\n<</SYS>>\\n\\n' -%}\n"
                                    "{%- elif message['role'] == 'assistant' -%}\n"
                                    "{{ ' ' + text + ' ' + eos_token }}\n"
                                    "{%- else -%}\n"
                                    "{{ bos_token + '[INST] ' + ns.system + text + ' [/INST]' }}\n"
                                    "{%- set ns.system = '' -%}\n"
                                    "{%- endif -%}\n"
                                    "{%- endfor -%}";

/* A header per message, <|eot_id|> after it. Format: Llama 3's model card. */
static const char llama3_source[] =
    "{{ bos_token }}\n"
    "{%- for message in messages -%}\n"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}\n"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}\n"
    "{%- elif message['content'] -%}\n"
    "{{ message['content'] | selectattr('type', 'equalto', 'text') | map(attribute='text') | join | trim }}\n"
    "{%- endif -%}\n"
    "{{ '<|eot_id|>' }}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif -%}";

static const struct {
    const char *name, *source;
} builtins[] = {
    {"gemma", gemma_source},
    {"chatml", chatml_source},
    {"llama2", llama2_source},
    {"llama3", llama3_source},
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
    *out = t;
    return RD_OK;

fail:
    chat_template_destroy(t);
    return st == RD_E_NOMEM ? error_set(err, st, "out of memory while compiling a chat template") : st;
}

rd_status chat_template_builtin(const char *name, const char *bos_token, const char *eos_token,
                                struct chat_template **out, struct rd_error *err)
{
    char text[64];

    for (size_t i = 0; i < sizeof(builtins) / sizeof(builtins[0]); i++)
        if (!strcmp(name, builtins[i].name))
            return chat_template_create(builtins[i].source, strlen(builtins[i].source), bos_token, eos_token, out, err);
    return error_set(err, RD_E_NOT_FOUND, "no built-in chat template '%s'; there are gemma, chatml, llama2, llama3",
                     error_quote(text, sizeof(text), name, strlen(name)));
}

const char *chat_template_source(const struct chat_template *t)
{
    return t->source;
}

bool chat_template_has_tools(const struct chat_template *t)
{
    return jinja_mentions(t->jinja, "tools");
}

/* Names that chat_template_kwargs cannot replace. */
static bool is_internal(const char *name)
{
    static const char *const names[] = {
        "messages",  "tools",  "documents", "add_generation_prompt", "bos_token",    "eos_token", "range", "dict",
        "namespace", "cycler", "joiner",    "raise_exception",       "strftime_now", "loop",      "caller"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

rd_status chat_template_render(const struct chat_template *t, const struct chat_input *in, char **text, size_t *n_bytes,
                               struct rd_error *err)
{
    json_t *vars = json_object(), *value;
    const char *key;
    int bad = 0;
    rd_status st;

    if (!json_is_array(in->messages)) {
        json_decref(vars);
        return error_set(err, RD_E_INVALID, "messages must be an array");
    }
    if (in->kwargs)
        json_object_foreach((json_t *)(uintptr_t)in->kwargs, key, value) if (!is_internal(key)) bad |=
            json_object_set(vars, key, value);
    bad |= json_object_set(vars, "messages", (json_t *)(uintptr_t)in->messages);
    bad |= in->tools ? json_object_set(vars, "tools", (json_t *)(uintptr_t)in->tools)
                     : json_object_set_new(vars, "tools", json_null());
    bad |= json_object_set_new(vars, "documents", json_null());
    bad |= json_object_set_new(vars, "add_generation_prompt", json_boolean(in->add_generation_prompt));
    bad |= json_object_set_new(vars, "bos_token", json_string(t->bos_token));
    bad |= json_object_set_new(vars, "eos_token", json_string(t->eos_token));
    if (bad)
        st = error_set(err, RD_E_NOMEM, "out of memory while rendering a chat template");
    else
        st = jinja_render(t->jinja, vars, in->now_s, text, n_bytes, err);
    json_decref(vars);
    return st;
}
