/* cli/cli_stream.c - events of a request to stdout. */
#include "cli/cli_stream.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "cli/args.h"
#include "cli/cli_model.h"

enum { POLL_MS = 50 };                      /* how soon Ctrl-C is seen when no event comes */

/* The handler may only set this; main thread reads and clears it. */
static volatile sig_atomic_t n_interrupts;

static void on_interrupt(int sig)
{
    if (++n_interrupts > 1) _exit(EXIT_INTERRUPTED);
}

void stream_catch_interrupt(void)
{
    struct sigaction sa;

    memset(&sa, 0, sizeof(sa));
    sa.sa_handler = on_interrupt;           /* no SA_RESTART: a waiting read ends */
    sigaction(SIGINT, &sa, NULL);
}

bool stream_interrupted(void)
{
    bool was = n_interrupts > 0;

    n_interrupts = 0;
    return was;
}

bool stream_wait_input(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    sigset_t interrupt, before;
    bool ready;

    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &before);
    ready = !n_interrupts && (ppoll(&poll_fd, 1, NULL, &before) >= 0 || errno != EINTR); /* lets it in while it waits */
    sigprocmask(SIG_SETMASK, &before, NULL);
    return ready && !n_interrupts;
}

rd_status stream_request(rd_engine *engine, const struct rd_request_options *q, struct buf *said,
                         struct rd_usage *usage)
{
    struct rd_error err = {RD_OK, ""};
    struct rd_event ev;
    rd_request *request = NULL;
    rd_status st = rd_submit(engine, q, NULL, NULL, &request, &err);
    bool ended = false;

    memset(usage, 0, sizeof(*usage));
    if (st != RD_OK) {
        cli_fail("%s", *err.text ? err.text : rd_status_text(st));
        return st;
    }
    while (!ended) {
        st = rd_request_wait(request, POLL_MS, &ev);
        if (n_interrupts) rd_request_cancel(request);
        if (st == RD_E_AGAIN) continue;
        if (st != RD_OK) break;
        if (ev.text_bytes) {
            fwrite(ev.text, 1, ev.text_bytes, stdout);
            fflush(stdout);
            if (said) buf_append(said, ev.text, ev.text_bytes);
        }
        ended = ev.type == RD_EVENT_DONE || ev.type == RD_EVENT_ERROR;
        if (!ended) continue;
        *usage = ev.usage;
        if (ev.type == RD_EVENT_ERROR) {
            st = ev.status;
            if (st != RD_E_CANCELLED) cli_fail("%s", ev.message ? ev.message : rd_status_text(st));
        } else if (ev.finish == RD_FINISH_CANCELLED) {
            st = RD_E_CANCELLED;
        }
    }
    rd_request_release(request);
    return st;
}

static double per_second(uint32_t n, double ms)
{
    return ms > 0 ? n * 1000.0 / ms : 0;
}

void stream_print_usage(const struct rd_usage *u)
{
    uint32_t n_computed = u->n_prompt - u->n_cached;

    fprintf(stderr,
            "prompt %u tokens (%u cached) %.0f ms, %.1f tok/s | generated %u tokens %.0f ms, %.1f tok/s | first token "
            "after %.0f ms\n",
            u->n_prompt, u->n_cached, u->prompt_ms, per_second(n_computed, u->prompt_ms), u->n_generated,
            u->predicted_ms, per_second(u->n_generated, u->predicted_ms), u->ttft_ms);
}
