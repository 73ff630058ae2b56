/* tests/text/output_record.c - see output_record.h. */
#include "output_record.h"
#include <string.h>

static void put(struct record *r, const char *s, size_t n)
{
    if (n > sizeof(r->events) - r->n_events - 1) {
        r->wrong = true;
        return;
    }
    memcpy(r->events + r->n_events, s, n);
    r->n_events += n;
    r->events[r->n_events] = 0;
}

static void check_order(struct record *r, const struct output_event *ev)
{
    switch (ev->type) {
    case OUTPUT_CALL_BEGIN:
        r->wrong |= r->in_call || ev->index != r->n_calls || ev->n == 0;
        r->in_call = true;
        r->n_calls++;
        break;
    case OUTPUT_CALL_ARGS:
        r->wrong |= !r->in_call || ev->index + 1 != r->n_calls;
        break;
    case OUTPUT_CALL_END:
        r->wrong |= !r->in_call || ev->index + 1 != r->n_calls;
        r->in_call = false;
        break;
    case OUTPUT_SOURCE:
        break;
    default:
        r->wrong |= r->in_call;
        break;
    }
}

void record_event(void *user, const struct output_event *ev)
{
    static const char kinds[] = "crbaest";
    struct record *r = user;

    check_order(r, ev);
    if (ev->type == OUTPUT_CONTENT || ev->type == OUTPUT_REASONING || ev->type == OUTPUT_SOURCE ||
        ev->type == OUTPUT_CALL_TEXT) {
        r->wrong |= ev->n > sizeof(r->raw) - r->n_raw - 1;
        if (!r->wrong) memcpy(r->raw + r->n_raw, ev->text, ev->n), r->n_raw += ev->n;
        r->raw[r->n_raw] = 0;
    }
    if (ev->type == OUTPUT_SOURCE) return;
    if (r->last != (int)ev->type + 1 || ev->type == OUTPUT_CALL_BEGIN || ev->type == OUTPUT_CALL_END) {
        if (r->n_events) put(r, "|", 1);
        put(r, &kinds[ev->type], 1);
        put(r, ":", 1);
    }
    r->last = (int)ev->type + 1;
    put(r, ev->text, ev->n);
    if (ev->type == OUTPUT_CALL_END && !ev->complete) put(r, "!", 1);
}

rd_status record_run(const struct output_options *o, const char *text, size_t n, const unsigned char *cut,
                     struct record *r)
{
    struct output_options mine = *o;
    struct output_parser *p;
    rd_status st;
    size_t begin = 0;

    r->n_events = r->n_raw = 0;
    r->events[0] = r->raw[0] = 0;
    r->n_calls = 0;
    r->in_call = r->wrong = false;
    r->last = 0;
    mine.sink = record_event;
    mine.user = r;
    st = output_parser_create(&mine, &p);
    if (st != RD_OK) return st;
    for (size_t i = 0; i < n && st == RD_OK; i++) {
        if (i + 1 < n && !(cut && cut[i])) continue;
        st = output_parser_feed(p, text + begin, i + 1 - begin, false);
        begin = i + 1;
    }
    if (st == RD_OK) st = output_parser_finish(p);
    output_parser_destroy(p);
    r->wrong |= r->in_call;
    return st;
}

json_t *record_tools(void)
{
    return json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
        "\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"},\"c\":{\"type\":[\"array\",\"null\"]},"
        "\"d\":{\"anyOf\":[{\"type\":\"boolean\"},{\"type\":\"object\"}]},\"e\":{\"enum\":[1,2]},\"any\":{}}}}},"
        "{\"name\":\"get_weather\",\"input_schema\":{\"properties\":{\"city\":{\"type\":\"string\"}}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"function\"}},{\"type\":\"web_search\"},7]",
        0, NULL);
}
