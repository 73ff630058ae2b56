/* text/chat/chat_messages.h - messages as clients send them to messages as a template can take them.
 *
 * A template gets what the client sent wherever it can cope with it; what it cannot is found out once, by rendering a
 * few small conversations when the template is compiled (chat_caps_probe), and adapted:
 *
 *     content parts          joined to one text, unless the template goes through parts itself
 *     developer              system, unless the template knows the role; function: tool
 *     null content           "", where the template would write "None" or fail
 *     arguments as text      the object they spell, unless the template wants the text
 *     function_call          tool_calls with one call
 *     reasoning, thinking    reasoning_content, and whichever other name the template reads
 *
 * Folds are for templates that refuse or lose a message: chat_template_prompt() tries them one after the other.
 *
 * Thread  any thread.
 * Errors  RD_E_INVALID names the message and the part.  RD_E_NOMEM.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "radish/status.h"
#include "text/jinja/jinja.h"

struct chat_caps {
    bool parts;        /* goes through content parts itself */
    bool only_parts;   /* and cannot take content as a text */
    bool text_args;    /* wants a call's arguments as a text */
    bool null_content; /* takes null as no content */
    bool developer;    /* knows the role */
    bool loses_system; /* writes nothing of a system message */
    bool loses_late;   /* writes nothing of a system message that is not the first */
    bool thinking;     /* reads message.thinking */
    bool reasoning;    /* reads message.reasoning */
};

/* source: the template's text, 0-terminated. RD_E_NOMEM alone fails. */
rd_status chat_caps_probe(const struct jinja *t, const char *source, const char *bos_token, const char *eos_token,
                          struct chat_caps *out);

enum chat_fold {
    CHAT_FOLD_LATE = 1,   /* system messages behind the first message go into the next user message */
    CHAT_FOLD_SYSTEM = 2, /* the first too */
    CHAT_FOLD_TURNS = 4,  /* user messages in a row, and assistant messages in a row, become one */
    CHAT_FOLD_IDS = 8,    /* ids of calls become 9 letters and digits, as Mistral's templates demand */
    CHAT_FOLD_EMPTY = 16, /* content that is missing becomes "" */
    CHAT_FOLD_CALLS = 32  /* a message with several calls becomes one per call, each followed by its result */
};

/* A new array; messages is not changed. folds: bits of enum chat_fold. */
rd_status chat_messages_adapt(const struct chat_caps *caps, const json_t *messages, unsigned folds, json_t **out,
                              struct rd_error *err);
