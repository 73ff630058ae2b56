/* cli/cli_stream.c - events of a request to stdout. */
#include "cli/cli_stream.h"
#include <errno.h>
#include <sys/select.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "cli/args.h"
#include "cli/cli_model.h"
#include "cli/text_wrap.h"

enum {
    POLL_MS = 50,           /* how soon Ctrl-C is seen when no event comes */
    PROGRESS_AFTER_MS = 300 /* a prompt that is read faster shows nothing */
};

/* The handler may only set this; main thread reads and clears it. */
static volatile sig_atomic_t n_interrupts;
static volatile sig_atomic_t is_running; /* main thread writes, the handler reads: a request runs */

static void on_interrupt(int sig)
{
    if (++n_interrupts > 1 && is_running) _exit(EXIT_INTERRUPTED);
}

void stream_catch_interrupt(void)
{
    struct sigaction sa;

    memset(&sa, 0, sizeof(sa));
    sa.sa_handler = on_interrupt; /* no SA_RESTART: a waiting read ends */
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
    fd_set readable;
    sigset_t interrupt, before;
    bool ready;

    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &before);
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    /* lets it in while it waits */
    ready = !n_interrupts && (pselect(fd + 1, &readable, NULL, NULL, NULL, &before) >= 0 || errno != EINTR);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return ready && !n_interrupts;
}

/* What a request shows while it runs. */
struct view {
    struct text_wrap wrap;
    bool wraps;          /* stdout is a terminal */
    bool shows_progress; /* stderr is one */
    bool shown;          /* a progress line stands there , with this: */
    uint32_t percent;
    bool has_text; /* the answer has begun */
    uint64_t start_ms;
};

static void view_init(struct view *v)
{
    v->wraps = isatty(STDOUT_FILENO);
    v->shows_progress = isatty(STDERR_FILENO);
    v->shown = v->has_text = false;
    v->start_ms = clock_now_ns(clock_system()) / 1000000;
    if (!v->wraps) return;
    text_wrap_locale();
    text_wrap_init(&v->wrap, stdout, text_wrap_columns(STDOUT_FILENO));
}

static void hide_progress(struct view *v)
{
    if (v->shown) fputs("\r\033[K", stderr);
    v->shown = false;
}

static void show_progress(struct view *v, const rd_request *request)
{
    struct rd_progress p;
    uint32_t percent;

    if (!v->shows_progress || clock_now_ns(clock_system()) / 1000000 - v->start_ms < PROGRESS_AFTER_MS) return;
    rd_request_progress(request, &p);
    if (p.n_prompt == 0 || p.n_done >= p.n_prompt) return;
    percent = (uint32_t)((uint64_t)p.n_done * 100 / p.n_prompt);
    if (v->shown && percent == v->percent) return;
    v->percent = percent;
    fprintf(stderr, "\r\033[Kreading the prompt: %u of %u tokens, %u %%", p.n_done, p.n_prompt, percent);
    v->shown = true;
}

static void show_text(struct view *v, const char *text, size_t n)
{
    hide_progress(v);
    if (v->wraps) {
        v->wrap.width = text_wrap_columns(STDOUT_FILENO); /* a window may change */
        text_wrap_put(&v->wrap, text, n);
    } else {
        fwrite(text, 1, n, stdout);
    }
    fflush(stdout);
}

/* Where the answer points: a line a pointer, its best point. */
static void show_points(const rd_request *request)
{
    uint32_t n;
    const struct rd_point *p = rd_request_points(request, &n);

    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || p[i].pointer != p[i - 1].pointer)
            printf("\npoint %u: x %.4f y %.4f in image %u (score %.4f)", p[i].pointer + 1, p[i].x, p[i].y,
                   p[i].image + 1, p[i].score);
}

static enum stream_end end_of(const struct rd_request_options *q, const struct rd_event *ev)
{
    if (ev->type != RD_EVENT_DONE || ev->finish != RD_FINISH_LENGTH) return STREAM_DONE;
    return ev->usage.n_generated >= q->max_tokens ? STREAM_CUT : STREAM_FULL;
}

/* Until its last event, which *ev is then; RD_OK or how waiting failed. */
static rd_status follow(rd_request *request, struct view *v, struct buf *said, struct rd_event *ev)
{
    for (;;) {
        rd_status st = rd_request_wait(request, POLL_MS, ev);

        if (n_interrupts) rd_request_cancel(request);
        if (st == RD_E_AGAIN) {
            if (!v->has_text) show_progress(v, request);
            continue;
        }
        if (st != RD_OK) return st;
        if (ev->text_bytes) {
            v->has_text = true;
            show_text(v, ev->text, ev->text_bytes);
            if (ferror(stdout)) return RD_E_IO; /* nobody gets the rest; main() tells */
            if (said) buf_append(said, ev->text, ev->text_bytes);
        }
        if (ev->type == RD_EVENT_DONE || ev->type == RD_EVENT_ERROR) return RD_OK;
    }
}

rd_status stream_request(rd_engine *engine, const struct rd_request_options *q, struct buf *said,
                         struct rd_usage *usage, enum stream_end *end)
{
    struct rd_error err = {RD_OK, ""};
    struct rd_event ev = {.size = sizeof(ev)};
    struct view view;
    rd_request *request = NULL;
    rd_status st = rd_submit(engine, q, NULL, NULL, &request, &err);

    memset(usage, 0, sizeof(*usage));
    if (end) *end = STREAM_DONE;
    if (st != RD_OK) {
        cli_fail("%s", *err.text ? err.text : rd_status_text(st));
        return st;
    }
    view_init(&view);
    is_running = 1;
    st = follow(request, &view, said, &ev);
    is_running = 0;
    hide_progress(&view);
    if (st == RD_OK && ev.type == RD_EVENT_DONE) show_points(request);
    if (st == RD_OK) {
        *usage = ev.usage;
        if (end) *end = end_of(q, &ev);
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
