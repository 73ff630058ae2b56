/* text/chat/chat_template.h - chat messages to the prompt text of a model family, by the model's own Jinja template.
 *
 * The Jinja interpreter (text/jinja/jinja.h) is sandboxed: steps, depth, output and memory are limited (base/limits.h), it
 * has no host access. Models without a template get their family's built-in one (text/chat/chat_builtins.h).
 *
 *     chat_template_render   the template over exactly what is given, as transformers' apply_chat_template
 *     chat_template_prompt   what a server does: messages adapted to the template (text/chat/chat_messages.h), folded where
 *                            it refuses them, and the last message left open where it is to be continued
 *
 * Thread  a compiled template is read-only: any thread renders.
 * Errors  RD_E_TEMPLATE (syntax, raise_exception's text, undefined operations; err has line and message), RD_E_INVALID
 * (messages, kwargs), RD_E_LIMIT, RD_E_NOMEM.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

struct chat_template;
struct chat_caps;
/* Compiles. source: Jinja text (not terminated). bos, eos: the texts of these tokens, "" when none. */
rd_status chat_template_create(const char *source, size_t n, const char *bos_token, const char *eos_token,
                               struct chat_template **out, struct rd_error *err);
/* A built-in by name; RD_E_NOT_FOUND lists the names. */
rd_status chat_template_builtin(const char *name, const char *bos_token, const char *eos_token,
                                struct chat_template **out, struct rd_error *err);
void chat_template_destroy(struct chat_template *t);
const char *chat_template_source(const struct chat_template *t);
/* True when the source looks at `tools`. */
bool chat_template_has_tools(const struct chat_template *t);
const struct chat_caps *chat_template_caps(const struct chat_template *t);

/* How a prompt ends. The values of `false` and `true` are what they were when this was a bool. */
enum chat_end {
    CHAT_END_NONE,       /* with the last message, closed */
    CHAT_END_AUTO,       /* a last assistant message with text stays open, an empty one goes; else as GENERATION */
    CHAT_END_GENERATION, /* with the beginning of a new assistant message */
    CHAT_END_CONTINUE    /* the last message stays open; RD_E_INVALID when it has no text */
};

struct chat_input {
    const json_t *messages;     /* array of objects, as the client sent them */
    const json_t *tools;        /* array or NULL */
    const json_t *kwargs;       /* object or NULL: chat_template_kwargs; names of internals are RD_E_INVALID */
    bool add_generation_prompt; /* of chat_template_render */
    int64_t now_s;              /* for strftime_now; wall clock */
    enum chat_end end;          /* of chat_template_prompt */
};
/* mem_free *text. The template's own BOS text, if it writes one, is part of the text (the caller tokenises with
 * add_special only when the text does not begin with it). */
rd_status chat_template_render(const struct chat_template *t, const struct chat_input *in, char **text, size_t *n_bytes,
                               struct rd_error *err);
rd_status chat_template_prompt(const struct chat_template *t, const struct chat_input *in, char **text, size_t *n_bytes,
                               struct rd_error *err);
