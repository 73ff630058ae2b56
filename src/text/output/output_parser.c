/* text/output/output_parser.c - the bytes held back, the states around calls, and the events. */
#include "text/output/output_parser.h"
#include <string.h>
#include "base/mem.h"
#include "text/output/output_impl.h"

#define SPACE_MAX 64u /* white space held back because a tag may follow */

/* ---- events out ---- */

static void flush_text(struct output_parser *p)
{
    struct output_event ev = {p->text_type, p->n_calls ? p->n_calls - 1 : 0, p->text.data, p->text.n, false};

    if (p->text.n && !p->text.failed) p->o.sink(p->o.user, &ev);
    buf_clear(&p->text);
}

static void flush_source(struct output_parser *p)
{
    struct output_event ev = {OUTPUT_SOURCE, 0, p->source.data, p->source.n, false};

    if (p->source.n && !p->source.failed) p->o.sink(p->o.user, &ev);
    buf_clear(&p->source);
}

/* Arguments and source are two views of the same bytes and may wait side by side; content and thinking keep their order
 * with source. */
static void put_text(struct output_parser *p, enum output_event_type type, const char *s, size_t n)
{
    if (type != p->text_type) flush_text(p);
    if (type != OUTPUT_CALL_ARGS) flush_source(p);
    p->text_type = type;
    buf_append(&p->text, s, n);
}

static void put_source(struct output_parser *p, const char *s, size_t n)
{
    if (p->text_type != OUTPUT_CALL_ARGS) flush_text(p);
    buf_append(&p->source, s, n);
}

void output_args(struct output_parser *p, const char *s, size_t n)
{
    put_text(p, OUTPUT_CALL_ARGS, s, n);
}

static void put_event(struct output_parser *p, enum output_event_type type, const char *s, size_t n, bool complete)
{
    struct output_event ev = {type, p->n_calls - 1, s, n, complete};

    flush_text(p);
    flush_source(p);
    p->o.sink(p->o.user, &ev);
}

/* ---- held bytes ---- */

size_t output_n_held(const struct output_parser *p)
{
    return p->held.n - p->from;
}

const char *output_held(const struct output_parser *p)
{
    return p->held.data + p->from;
}

enum output_match output_match(const struct output_parser *p, size_t at, const char *text)
{
    size_t n = strlen(text), have = output_n_held(p) - at;

    if (have >= n) return memcmp(output_held(p) + at, text, n) == 0 ? MATCH_FULL : MATCH_NO;
    return !p->at_end && memcmp(output_held(p) + at, text, have) == 0 ? MATCH_PART : MATCH_NO;
}

static void release_source(struct output_parser *p, size_t n)
{
    put_source(p, output_held(p), n);
    p->from += n;
}

/* Of a call, where its text is kept: at once, the bytes stay held. Control tokens are source. */
static void put_call_text(struct output_parser *p, size_t n)
{
    const char *s = output_held(p), *special = p->special.data + p->from;

    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && special[end] == special[i];) end++;
        if (special[i])
            put_source(p, s + i, end - i);
        else
            put_text(p, OUTPUT_CALL_TEXT, s + i, end - i);
    }
}

/* What stands around calls. */
static void release_around(struct output_parser *p, size_t n)
{
    if (p->keep)
        put_call_text(p, n);
    else
        put_source(p, output_held(p), n);
    p->from += n;
}

/* As content or thinking; control tokens in it are source. */
static void release_text(struct output_parser *p, size_t n, enum output_event_type type)
{
    const char *s = output_held(p), *special = p->special.data + p->from;

    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && special[end] == special[i];) end++;
        if (special[i])
            put_source(p, s + i, end - i);
        else
            put_text(p, type, s + i, end - i);
        for (size_t k = i; !special[i] && k < end && type == OUTPUT_CONTENT && !p->content_begun; k++)
            p->content_begun = !output_is_space(s[k]);
    }
    p->from += n;
}

/* Up to SPACE_MAX. */
static size_t count_space(const struct output_parser *p)
{
    size_t n = output_n_held(p), w = 0;

    while (w < n && w < SPACE_MAX && output_is_space(output_held(p)[w])) w++;
    return w;
}

/* ---- content ---- */

void output_begin(struct output_parser *p, enum output_head head, size_t opener_n, size_t cur)
{
    memset(&p->call, 0, sizeof(p->call));
    buf_clear(&p->value);
    p->state = IN_CALL;
    p->announced = false;
    p->head = head;
    p->opener_n = opener_n;
    p->cur = cur;
    p->n_name = 0;
}

static void enter_opener(struct output_parser *p, const struct output_opener *o, size_t w)
{
    size_t n = strlen(o->text);

    p->strict = o->strict;
    p->fence = memcmp(o->text, "```", n < 3 ? n : 3) == 0;
    p->keep = p->o.keep_bare && o->place == AT_LINE;
    p->tagged = o->place == ANYWHERE && *output_style_tails(p->o.style);
    p->closed = false;
    p->container = 0;
    output_begin(p, o->head, w + n, w + n - (o->text[n - 1] == '{' || o->text[n - 1] == '['));
}

/* The opener behind w bytes of white space, if one is wholly there. *part: one may be; the first of the list counts. */
static const struct output_opener *find_opener(const struct output_parser *p, size_t w, bool *part)
{
    enum output_place here = !p->content_begun ? AT_START : memchr(output_held(p), '\n', w) ? AT_LINE : ANYWHERE;

    for (const struct output_opener *o = output_style_openers(p->o.style); o->text; o++) {
        enum output_match m = o->place > here ? MATCH_NO : output_match(p, w, o->text);

        if (m == MATCH_FULL) return *part ? NULL : o;
        *part |= m == MATCH_PART;
    }
    return NULL;
}

static bool content_step(struct output_parser *p)
{
    size_t n = output_n_held(p), w = count_space(p), end;
    const struct output_opener *opener;
    bool part = false;

    if (n == 0) return false;
    if (w == SPACE_MAX || (w == n && p->at_end)) {
        release_text(p, w, OUTPUT_CONTENT);
        return true;
    }
    if (w == n) return false;
    if (p->leading[(unsigned char)output_held(p)[w]]) {
        opener = find_opener(p, w, &part);
        if (opener) {
            enter_opener(p, opener, w);
            return true;
        }
        if (p->o.think && !p->content_begun) {
            enum output_match m = output_match(p, w, p->o.think->open);

            if (m == MATCH_FULL) {
                release_source(p, w + strlen(p->o.think->open));
                p->state = IN_THINK_LEAD;
                return true;
            }
            part |= m == MATCH_PART;
        }
        if (part) return false;
    }
    for (end = w + 1; end < n; end++)
        if (output_is_space(output_held(p)[end]) || p->leading[(unsigned char)output_held(p)[end]]) break;
    release_text(p, end, OUTPUT_CONTENT);
    return true;
}

/* ---- thinking ---- */

static bool skip_space(struct output_parser *p, enum output_state next)
{
    size_t w = count_space(p);

    if (w == 0) {
        if (output_n_held(p) == 0) return false;
        p->state = next;
    } else {
        release_source(p, w);
    }
    return true;
}

static bool thinking_step(struct output_parser *p)
{
    size_t n = output_n_held(p), w = count_space(p), end;
    enum output_match m;

    if (n == 0) return false;
    if (w == SPACE_MAX || (w == n && p->at_end)) {
        release_text(p, w, OUTPUT_REASONING);
        return true;
    }
    if (w == n || (m = output_match(p, w, p->o.think->close)) == MATCH_PART) return false;
    if (m == MATCH_FULL) {
        release_source(p, w + strlen(p->o.think->close));
        p->state = IN_THINK_TAIL;
        return true;
    }
    for (end = w + 1; end < n; end++)
        if (output_is_space(output_held(p)[end]) || output_held(p)[end] == p->o.think->close[0]) break;
    release_text(p, end, OUTPUT_REASONING);
    return true;
}

/* ---- calls ---- */

bool output_name_known(const struct output_parser *p)
{
    return p->n_name > 0 && (!p->o.tools || output_tool(p));
}

void output_announce(struct output_parser *p)
{
    p->announced = true;
    if (p->keep) put_call_text(p, p->cur);
    p->n_calls++;
    put_event(p, OUTPUT_CALL_BEGIN, p->name, p->n_name, false);
}

static enum output_step machine_step(struct output_parser *p)
{
    switch (p->head) {
    case HEAD_TAG:
    case HEAD_JSON:
        return output_json_step(p);
    case HEAD_XML:
        return output_xml_step(p);
    case HEAD_PY_LIST:
    case HEAD_PY_CODE:
        return output_python_step(p);
    case HEAD_MISTRAL:
        return output_mistral_step(p);
    case HEAD_DEEPSEEK:
    case HEAD_DEEPSEEK_CALL:
        return output_deepseek_step(p);
    }
    return STEP_FAIL;
}

static void end_call(struct output_parser *p)
{
    if (p->call.scan.kind == SCAN_SCALAR && !p->call.args_done) output_args_scalar_end(p, &p->call.scan);
    if (p->head == HEAD_XML && !p->call.args_done) output_xml_cut(p);
    if (p->keep)
        p->from += p->cur; /* told when it was announced */
    else
        release_source(p, p->cur);
    p->cur = 0;
    put_event(p, OUTPUT_CALL_END, "", 0, p->call.args_done);
    p->state = IN_TAIL;
}

/* It was no call: the opener is content, the rest is read again. */
static void give_up(struct output_parser *p)
{
    p->state = IN_CONTENT;
    p->container = 0;
    p->cur = 0;
    release_text(p, p->opener_n, OUTPUT_CONTENT);
    p->content_begun = true;
}

static bool call_step(struct output_parser *p)
{
    enum output_step s = machine_step(p);

    if (s == STEP_ON && !p->announced && p->cur > LIMIT_TOOL_HEAD_BYTES) s = STEP_FAIL;
    if (s == STEP_MORE && p->at_end) s = STEP_FAIL;
    if (s == STEP_MORE) return false;
    if (s == STEP_DONE) p->call.args_done = true;
    if (s == STEP_FAIL && !p->announced && !output_json_rescue(p)) {
        give_up(p);
    } else if (s == STEP_FAIL || s == STEP_DONE) {
        end_call(p);
    } else if (p->announced) {
        release_source(p, p->cur);
        p->cur = 0;
    }
    return true;
}

/* ---- after a call: closing tags, and the next call of the same container ---- */

enum output_match output_at_tail(const struct output_parser *p)
{
    bool part = false;

    for (const char *const *t = output_style_tails(p->o.style); *t; t++) {
        enum output_match m = output_match(p, p->cur, *t);

        if (m == MATCH_FULL) return m;
        part |= m == MATCH_PART;
    }
    return part ? MATCH_PART : MATCH_NO;
}

/* A closing tag at w: its length; 0: none. */
static size_t tail_length(const struct output_parser *p, size_t w, bool *part)
{
    enum output_match m;

    for (const char *const *t = output_style_tails(p->o.style); *t; t++) {
        m = output_match(p, w, *t);
        if (m == MATCH_FULL) return strlen(*t);
        *part |= m == MATCH_PART;
    }
    if (!p->fence) return 0;
    m = output_match(p, w, "```");
    *part |= m == MATCH_PART;
    return m == MATCH_FULL ? 3 : 0;
}

/* The byte at w begins or separates another call of this kind. */
static bool follow_up(struct output_parser *p, size_t w)
{
    char c = output_held(p)[w];

    if ((p->container == '[' || p->container == 'p') && c == ']') {
        release_around(p, w + 1);
        p->container = 0;
    } else if (p->container == '[' && c == ',') {
        output_begin(p, HEAD_JSON, w + 1, w + 1);
    } else if (p->container == 'p' && c == ',') {
        output_begin(p, HEAD_PY_LIST, w + 1, w + 1);
    } else if (p->container == 'c' && c != '`') {
        output_begin(p, HEAD_PY_CODE, w + 1, w);
    } else if (!p->container && (p->head == HEAD_TAG || p->head == HEAD_JSON) && c == '{') {
        output_begin(p, HEAD_JSON, w + 1, w);
    } else if (!p->container && p->head == HEAD_JSON && c == ';') {
        output_begin(p, HEAD_JSON, w + 1, w + 1);
    } else {
        return false;
    }
    return true;
}

static bool tail_step(struct output_parser *p)
{
    size_t n = output_n_held(p), w = count_space(p), n_tail;
    bool part = false;

    if (n == 0) return false;
    if (w == SPACE_MAX || (w == n && p->at_end)) {
        release_source(p, w);
        return true;
    }
    if (w == n) return false;
    if (p->call.doubled && output_held(p)[w] == '}') { /* the second of {{..}} */
        p->call.doubled = false;
        release_around(p, w + 1);
        return true;
    }
    n_tail = tail_length(p, w, &part);
    if (n_tail) {
        if (output_held(p)[w] == '`') p->fence = false, p->container = 0;
        p->closed = true;
        release_around(p, w + n_tail);
        return true;
    }
    if (part) return false;
    if (follow_up(p, w)) return true;
    p->state = IN_CONTENT;
    p->container = 0;
    return true;
}

/* ---- the loop ---- */

static bool step(struct output_parser *p)
{
    if (p->held.failed || p->special.failed) return false;
    switch (p->state) {
    case IN_CONTENT:
        return content_step(p);
    case IN_THINK_LEAD:
        return skip_space(p, IN_THINKING);
    case IN_THINKING:
        return thinking_step(p);
    case IN_THINK_TAIL:
        return skip_space(p, IN_CONTENT);
    case IN_CALL:
        return call_step(p);
    case IN_TAIL:
        return tail_step(p);
    }
    return false;
}

static rd_status run(struct output_parser *p)
{
    while (step(p)) {}
    flush_text(p);
    flush_source(p);
    if (p->held.failed || p->special.failed || p->text.failed || p->source.failed || p->value.failed) return RD_E_NOMEM;
    return RD_OK;
}

/* Drops what was released from the front. */
static void compact(struct output_parser *p)
{
    size_t n = output_n_held(p);

    if (!p->from) return;
    memmove(p->held.data, p->held.data + p->from, n);
    memmove(p->special.data, p->special.data + p->from, n);
    p->held.n = p->special.n = n;
    p->from = 0;
}

rd_status output_parser_create(const struct output_options *o, struct output_parser **out)
{
    struct output_parser *p = mem_zalloc(1, sizeof(*p));

    if (!p) return RD_E_NOMEM;
    p->o = *o;
    if (o->in_thinking && o->think) p->state = IN_THINK_LEAD;
    for (const struct output_opener *at = output_style_openers(o->style); at->text; at++)
        p->leading[(unsigned char)at->text[0]] = true;
    if (o->think) p->leading[(unsigned char)o->think->open[0]] = true;
    *out = p;
    return RD_OK;
}

void output_parser_destroy(struct output_parser *p)
{
    if (!p) return;
    buf_deinit(&p->held);
    buf_deinit(&p->special);
    buf_deinit(&p->text);
    buf_deinit(&p->source);
    buf_deinit(&p->value);
    mem_free(p);
}

rd_status output_parser_feed(struct output_parser *p, const char *s, size_t n, bool special)
{
    if (n == 0) return RD_OK;
    compact(p);
    buf_append(&p->held, s, n);
    for (size_t i = 0; i < n; i++) buf_putc(&p->special, (char)special);
    return run(p);
}

rd_status output_parser_finish(struct output_parser *p)
{
    p->at_end = true;
    return run(p);
}

bool output_parser_awaits_tail(const struct output_parser *p)
{
    return p->state == IN_TAIL && p->tagged && !p->closed;
}

bool output_parser_thinks(const struct output_parser *p)
{
    return p->state == IN_THINK_LEAD || p->state == IN_THINKING;
}
