/* api/api_form.c - what a request's output is held to: its grammar, forced or strict calls, behind its thinking. */
#include <string.h>
#include "api/api_state.h"
#include "api/grammar_store.h"
#include "base/error.h"
#include "text/output/tool_grammar.h"

/* Some function wants its schema kept to. Mostly the text tells that none does. */
static bool wants_strict(const char *tools_json)
{
    json_t *tools;
    bool strict;

    if (!tools_json || !strstr(tools_json, "\"strict\"")) return false;
    tools = json_loads(tools_json, JSON_ALLOW_NUL, NULL);
    strict = tool_grammar_is_strict(tools);
    json_decref(tools);
    return strict;
}

bool api_holds_calls(const rd_engine *engine)
{
    const uint32_t n = tokenizer_n_tokens(engine->tokenizer);
    bool has[256] = {false};

    if (!tool_grammar_knows(engine->style.tools)) return false;
    for (uint32_t i = 0; i < n; i++) {
        struct text_span piece = tokenizer_piece(engine->tokenizer, (int32_t)i, false);

        if (piece.n == 1) has[(unsigned char)piece.s[0]] = true;
    }
    for (int c = ' '; c < 0x7f; c++)
        if (!has[c]) return false;
    return has['\n'];
}

bool api_begins_call(const rd_engine *engine, const struct rd_request_options *o)
{
    return o->forced_tool && !engine->info.holds_calls;
}

static struct output_form form_of(const rd_engine *engine, const struct rd_request_options *o, bool taught)
{
    const bool knows = o->messages_json && o->parse_tools && engine->info.holds_calls;

    return (struct output_form){.kind = o->grammar_kind,
                                .text = o->grammar,
                                .n_text = o->grammar_bytes,
                                .tools = knows ? o->tools_json : NULL,
                                .forced_tool = knows ? o->forced_tool : NULL,
                                .strict_tools = knows && wants_strict(o->tools_json),
                                .single = o->single_call || (knows && o->forced_tool && *o->forced_tool),
                                .taught = knows && o->forced_tool && taught,
                                .stop = o->stop,
                                .n_stop = o->n_stop,
                                .style = engine->style.tools,
                                .template_source = chat_template_source(engine->chat)};
}

rd_status api_form_fill(struct rd_request *r, enum api_thinking thinking, bool quickly, struct constraint_params *p,
                        struct rd_error *err)
{
    rd_engine *engine = r->engine;
    const struct rd_request_options *o = &r->o;
    const struct api_style *s = &engine->style;
    struct output_form f = form_of(engine, o, r->taught);
    struct rd_error why = {RD_OK, ""};
    rd_status st;

    if (!output_form_binds(&f) || o->max_tokens == 0) return RD_OK;
    f.thinks = thinking != API_THINKING_NONE;
    st = grammar_store_get(engine->grammars, &f, quickly, &p->grammar, &why);
    if (st != RD_OK)
        return error_set(err, st, "%s: %s",
                         f.kind == RD_GRAMMAR_NONE || f.forced_tool ? "tools"
                         : o->grammar_name                          ? o->grammar_name
                                                                    : "grammar",
                         why.text);
    if (thinking != API_THINKING_NONE) {
        p->open = s->open;
        p->close = s->close;
        p->n_open = s->n_open;
        p->n_close = s->n_close;
    }
    p->thinks = thinking == API_THINKING_OPEN;
    p->tokenise = o->jump_ahead ? grammar_store_tokenise : NULL;
    p->arg = engine->grammars;
    return RD_OK;
}
