/* tests/fuzz/fuzz_output_parser.c - any bytes as generated text: byte 0 the style, byte 1 thinking and tools, byte 2
 * how it is cut; delivered + source = generated, and the cuts do not matter (F30). A violation aborts. */
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "text/output/output_parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
    struct buf raw, events;
    int last;
};

static void on_event(void *user, const struct output_event *ev)
{
    struct seen *s = user;

    if (ev->type == OUTPUT_CONTENT || ev->type == OUTPUT_REASONING || ev->type == OUTPUT_SOURCE ||
        ev->type == OUTPUT_CALL_TEXT)
        buf_append(&s->raw, ev->text, ev->n);
    if (ev->type == OUTPUT_SOURCE) return;
    if (s->last != (int)ev->type || ev->type == OUTPUT_CALL_BEGIN || ev->type == OUTPUT_CALL_END) {
        buf_putc(&s->events, (char)('0' + ev->type));
        buf_putc(&s->events, ev->complete ? 'y' : 'n');
    }
    s->last = (int)ev->type;
    buf_append(&s->events, ev->text, ev->n);
}

static void parse(struct output_options o, const char *text, size_t n, size_t piece, struct seen *s)
{
    struct output_parser *p;

    o.sink = on_event;
    o.user = s;
    s->last = -1;
    if (output_parser_create(&o, &p) != RD_OK) abort();
    for (size_t i = 0; i < n; i += piece)
        if (output_parser_feed(p, text + i, n - i < piece ? n - i : piece, false) != RD_OK) abort();
    if (output_parser_finish(p) != RD_OK) abort();
    output_parser_destroy(p);
    if (s->raw.n != n || (n && memcmp(s->raw.data, text, n) != 0)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct think_tags tags = {"<think>", "</think>"};
    struct output_options o = {0};
    struct seen whole = {0}, parts = {0};
    json_t *tools;

    if (size < 3) return 0;
    tools = json_pack("[{s:{s:s,s:{s:{s:{s:s},s:{s:s},s:{s:[s,s]}}}}}]", "function", "name", "f", "parameters",
                      "properties", "a", "type", "integer", "b", "type", "string", "c", "type", "array", "null");
    o.style = (enum output_style)(data[0] % OUTPUT_N_STYLES);
    o.think = data[1] & 1 ? &tags : NULL;
    o.in_thinking = data[1] & 2;
    o.forced = data[1] & 8;
    o.tools = data[1] & 4 ? NULL : tools;
    parse(o, (const char *)data + 3, size - 3, size, &whole);
    parse(o, (const char *)data + 3, size - 3, 1 + data[2] % 7, &parts);
    if (whole.events.n != parts.events.n ||
        (whole.events.n && memcmp(whole.events.data, parts.events.data, whole.events.n) != 0))
        abort();
    buf_deinit(&whole.raw);
    buf_deinit(&whole.events);
    buf_deinit(&parts.raw);
    buf_deinit(&parts.events);
    json_decref(tools);
    return 0;
}
