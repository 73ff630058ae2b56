/* text/chat/chat_caps.c - what a template can take, found out by rendering small conversations with needles in them. */
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "text/chat/chat_messages.h"

#define NEEDLE    "nEEdLe"
#define CALL_HEAD "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
#define CALL_ARGS                                                                                                      \
    ",\"tool_calls\":[{\"id\":\"call00000\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
#define CALL_TAIL "}}]},{\"role\":\"tool\",\"tool_call_id\":\"call00000\",\"name\":\"f\",\"content\":\"r\"}]"

struct probe {
    const struct jinja *t;
    const char *bos, *eos;
    bool starved; /* memory ran out: what was found out is void */
};

/* The text of a conversation; NULL: the template refuses it. mem_free it. */
static char *render(struct probe *p, const char *messages)
{
    json_t *vars = json_object(), *list = json_loads(messages, 0, NULL);
    char *text = NULL;
    size_t n;
    bool bad = !vars || !list || json_object_set(vars, "messages", list) ||
               json_object_set_new(vars, "tools", json_null()) || json_object_set_new(vars, "documents", json_null()) ||
               json_object_set_new(vars, "add_generation_prompt", json_true()) ||
               json_object_set_new(vars, "bos_token", json_string(p->bos)) ||
               json_object_set_new(vars, "eos_token", json_string(p->eos));

    if (bad || jinja_render(p->t, vars, 0, &text, &n, NULL) == RD_E_NOMEM) p->starved = true;
    json_decref(vars);
    json_decref(list);
    return text;
}

enum { REFUSED = 1, HAS = 2, HAS_NOT = 4 };

/* What became of a conversation: whether the needle is there, and none of two texts that tell of a mishap. */
static int outcome(struct probe *p, const char *messages, const char *needle, const char *bad, const char *worse)
{
    char *text = render(p, messages);
    int out = !text                                                                                    ? REFUSED
              : strstr(text, needle) && !(bad && strstr(text, bad)) && !(worse && strstr(text, worse)) ? HAS
                                                                                                       : HAS_NOT;

    mem_free(text);
    return out;
}

/* The name as a whole word behind . or a quote: message.name, message['name']. */
static bool reads_field(const char *source, const char *name)
{
    size_t n = strlen(name);

    for (const char *s = source; (s = strstr(s, name)); s += n) {
        bool word = s[n] == '_' || (s[n] >= '0' && s[n] <= '9') || ((s[n] | 32) >= 'a' && (s[n] | 32) <= 'z');
        if (s > source && strchr(".'\"", s[-1]) && !word) return true;
    }
    return false;
}

rd_status chat_caps_probe(const struct jinja *t, const char *source, const char *bos_token, const char *eos_token,
                          struct chat_caps *out)
{
    struct probe p = {.t = t, .bos = bos_token, .eos = eos_token};
    int text, parts, object, string, null_call, null_plain;

    text = outcome(&p, "[{\"role\":\"user\",\"content\":\"" NEEDLE "\"}]", NEEDLE, NULL, NULL);
    parts = outcome(&p, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" NEEDLE "\"}]}]", NEEDLE,
                    "'type'", "\"type\"");
    object = outcome(&p, CALL_HEAD "\"\"" CALL_ARGS "{\"k\":\"" NEEDLE "\"}" CALL_TAIL, NEEDLE, "'k'", NULL);
    string = outcome(&p, CALL_HEAD "\"\"" CALL_ARGS "\"{\\\"k\\\": \\\"" NEEDLE "\\\"}\"" CALL_TAIL, "\"" NEEDLE "\"",
                     NULL, NULL);
    null_call = outcome(&p, CALL_HEAD "null" CALL_ARGS "{\"k\":\"v\"}" CALL_TAIL, "", "None", NULL);
    null_plain = outcome(&p, CALL_HEAD "null},{\"role\":\"user\",\"content\":\"b\"}]", "", "None", NULL);
    *out = (struct chat_caps){
        .parts = parts == HAS,
        .only_parts = parts == HAS && text != HAS,
        .text_args = string == HAS && object != HAS,
        .null_content = null_call == HAS && null_plain == HAS,
        .developer = strstr(source, "developer") != NULL,
        .loses_system =
            outcome(&p, "[{\"role\":\"system\",\"content\":\"" NEEDLE "\"},{\"role\":\"user\",\"content\":\"a\"}]",
                    NEEDLE, NULL, NULL) == HAS_NOT,
        .loses_late = outcome(&p,
                              CALL_HEAD "\"b\"},{\"role\":\"system\",\"content\":\"" NEEDLE "\"},"
                                        "{\"role\":\"user\",\"content\":\"c\"}]",
                              NEEDLE, NULL, NULL) == HAS_NOT,
        .thinking = reads_field(source, "thinking"),
        .reasoning = reads_field(source, "reasoning"),
    };
    return p.starved ? RD_E_NOMEM : RD_OK;
}
