/* text/output/output_named.c - calls whose name stands outside the JSON: Mistral's and DeepSeek's.
 *
 *     [TOOL_CALLS][{"name": .., "arguments": {..}}, ..]                              Mistral 7B v0.3, Nemo
 *     [TOOL_CALLS]name[ARGS]{..}    [TOOL_CALLS]name[CALL_ID]id[ARGS]{..}    [TOOL_CALLS]name{..}
 *
 *     <｜tool▁call▁begin｜>function<｜tool▁sep｜>name\n```json\n{..}\n```<｜tool▁call▁end｜>      DeepSeek V3, R1
 *     <｜tool▁call▁begin｜>name<｜tool▁sep｜>{..}<｜tool▁call▁end｜>                             DeepSeek V3.1
 */
#include <string.h>
#include "text/output/output_impl.h"

enum { N_START, N_NAME, N_ID, N_AFTER_SEP, N_FUNCTION, N_FENCE, N_ARGS };

static enum output_step put_name(struct output_parser *p, char b)
{
    if (p->n_name == LIMIT_TOOL_NAME_BYTES) return STEP_FAIL;
    p->cur++;
    p->name[p->n_name++] = b;
    p->name[p->n_name] = 0;
    return STEP_ON;
}

/* The arguments follow. */
static enum output_step name_ends(struct output_parser *p)
{
    while (p->n_name && output_is_space(p->name[p->n_name - 1])) p->name[--p->n_name] = 0;
    if (!output_name_known(p)) return STEP_FAIL;
    output_announce(p);
    p->call.at = N_ARGS;
    return STEP_ON;
}

static enum output_step mistral_start(struct output_parser *p, char b)
{
    if (output_is_space(b)) {
        p->cur++;
        return STEP_ON;
    }
    if (b == '[' || b == '{') {
        p->head = HEAD_JSON;
        p->call.at = 0; /* the JSON machine's start */
        p->container = b == '[' ? '[' : 0;
        p->cur += b == '[';
        return STEP_ON;
    }
    p->call.at = N_NAME;
    return STEP_ON;
}

static enum output_step mistral_marker(struct output_parser *p, const char *marker, enum output_match *m)
{
    *m = output_match(p, p->cur, marker);
    if (*m == MATCH_FULL) p->cur += strlen(marker);
    return *m == MATCH_PART ? STEP_MORE : STEP_ON;
}

static enum output_step mistral_name(struct output_parser *p, char b)
{
    enum output_match m;

    if (b == '{') return name_ends(p);
    if (b == '\n') return STEP_FAIL;
    if (b != '[') return put_name(p, b);
    if (mistral_marker(p, "[ARGS]", &m) == STEP_MORE) return STEP_MORE;
    if (m == MATCH_FULL) return name_ends(p);
    if (mistral_marker(p, "[CALL_ID]", &m) == STEP_MORE) return STEP_MORE;
    if (m != MATCH_FULL) return STEP_FAIL;
    p->call.at = N_ID;
    return STEP_ON;
}

enum output_step output_mistral_step(struct output_parser *p)
{
    enum output_match m;
    char b;

    if (p->call.at == N_ARGS) return output_args_step(p);
    if (p->cur >= output_n_held(p)) return STEP_MORE;
    b = output_held(p)[p->cur];
    if (p->call.at == N_START) return mistral_start(p, b);
    if (p->call.at == N_NAME) return mistral_name(p, b);
    if (b == '[') { /* N_ID */
        if (mistral_marker(p, "[ARGS]", &m) == STEP_MORE) return STEP_MORE;
        if (m == MATCH_FULL) return name_ends(p);
    }
    p->cur++;
    return b == '\n' ? STEP_FAIL : STEP_ON;
}

/* A literal at cur: STEP_DONE consumed it. Bytes that cannot begin it: STEP_FAIL. */
static enum output_step take(struct output_parser *p, const char *text)
{
    enum output_match m = output_match(p, p->cur, text);

    if (m == MATCH_FULL) p->cur += strlen(text);
    return m == MATCH_FULL ? STEP_DONE : m == MATCH_PART ? STEP_MORE : STEP_FAIL;
}

/* The text before the separator: "function", or a name. */
static enum output_step deepseek_type(struct output_parser *p, char b)
{
    enum output_step s;

    if (b == '\n') return STEP_FAIL;
    s = b == '<' ? take(p, DEEPSEEK_SEP) : STEP_FAIL;
    if (s == STEP_MORE) return s;
    if (s != STEP_DONE) return put_name(p, b);
    p->call.at = N_AFTER_SEP;
    return STEP_ON;
}

enum output_step output_deepseek_step(struct output_parser *p)
{
    struct output_call *c = &p->call;
    enum output_step s;
    char b;

    if (c->at == N_ARGS) return output_args_step(p);
    if (p->cur >= output_n_held(p)) return STEP_MORE;
    b = output_held(p)[p->cur];
    if (c->at != N_NAME && c->at != N_FUNCTION && output_is_space(b)) {
        p->cur++;
        return STEP_ON;
    }
    switch (c->at) {
    case N_START:
        s = p->head == HEAD_DEEPSEEK ? take(p, DEEPSEEK_CALL) : STEP_DONE;
        if (s != STEP_DONE) return s;
        c->at = N_NAME;
        return STEP_ON;
    case N_NAME:
        return deepseek_type(p, b);
    case N_AFTER_SEP:
        if (b == '{') return name_ends(p);
        p->n_name = 0;
        c->at = N_FUNCTION;
        return STEP_ON;
    case N_FUNCTION:
        if (b == '{') return name_ends(p);
        if (b != '\n') return put_name(p, b);
        s = name_ends(p);
        if (s == STEP_ON) c->at = N_FENCE;
        return s;
    default:
        break;
    }
    c->at = N_ARGS; /* N_FENCE */
    if (b != '`') return STEP_ON;
    s = take(p, "```json");
    if (s == STEP_MORE) c->at = N_FENCE;
    return s == STEP_DONE ? STEP_ON : s;
}
