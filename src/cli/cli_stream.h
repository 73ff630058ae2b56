/* cli/cli_stream.h - runs one request and writes its text to stdout while it comes; Ctrl-C cancels it.
 *
 * On a terminal words are wrapped (cli/text_wrap.h), and a prompt that takes its time shows how far it is on stderr.
 * Thread  main thread.
 * Errors  the request's status; the message was printed (not for RD_E_CANCELLED).
 */
#pragma once
#include "base/buf.h"
#include "radish/radish.h"

/* From now on Ctrl-C cancels the running request; a second one, before the request has ended, ends the process. */
void stream_catch_interrupt(void);
/* Ctrl-C was pressed since the last call. */
bool stream_interrupted(void);
/* Waits until a terminal has a line; false: a signal came, before or while waiting (stream_interrupted: Ctrl-C). */
bool stream_wait_input(int fd);

/* How the text ended. */
enum stream_end {
    STREAM_DONE, /* by itself, or with an error */
    STREAM_CUT,  /* after max_tokens */
    STREAM_FULL  /* the context is full */
};

/* said: gets the text too, may be NULL. usage: of what was done, also after an error. end: may be NULL. */
rd_status stream_request(rd_engine *engine, const struct rd_request_options *q, struct buf *said,
                         struct rd_usage *usage, enum stream_end *end);
/* One line on stderr: tokens, times, speeds. */
void stream_print_usage(const struct rd_usage *u);
