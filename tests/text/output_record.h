/* tests/text/output_record.h - collects what an output parser delivers, in a form that two runs can be compared by. */
#pragma once
#include "text/output/output_parser.h"

/* Each piece as "kind:text|", neighbours of one kind joined: c content, r reasoning, b name, a arguments, e end (with
 * "!" when incomplete), t a call's text. raw: content, reasoning, texts of calls and source in order. */
struct record {
    char events[1 << 16], raw[1 << 16];
    size_t n_events, n_raw;
    uint32_t n_calls;
    bool in_call, wrong; /* wrong: an event where it must not be, or too much */
    int last;
};
void record_event(void *user, const struct output_event *ev);
/* Runs text through a parser, cut where cut (an array of 0 / 1 per byte, or NULL: one piece) says. */
rd_status record_run(const struct output_options *o, const char *text, size_t n, const unsigned char *cut,
                     struct record *r);
/* The tools of the tests. */
json_t *record_tools(void);
