/* backend/process/process_life.c - the thread that keeps the program: starts, deadlines, faults, back-off. */
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include "backend/process/process_inside.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/net.h"

#define BACKOFF_NS     (PROCESS_SECOND_NS / 2) /* doubles up to: */
#define BACKOFF_MAX_NS (30 * PROCESS_SECOND_NS)
#define GOOD_NS        (60 * PROCESS_SECOND_NS) /* up so long: the next fault begins anew */

void process_set_fault(struct process_backend *p, const char *format, ...)
{
    va_list args;

    if (p->fault[0]) return; /* the first is the cause */
    va_start(args, format);
    vsnprintf(p->fault, sizeof(p->fault), format, args);
    va_end(args);
}

static uint64_t accept_ns(const struct process_backend *p)
{
    return u64_min(PROCESS_ACCEPT_NS, p->o.silence_ns);
}

/* Locked. */
static void check_deadlines(struct process_backend *p, uint64_t now)
{
    if (p->phase == PHASE_LOADING && now > p->began_ns && now - p->began_ns > p->o.load_ns)
        process_set_fault(p, "had not loaded after %llu s", (unsigned long long)(p->o.load_ns / PROCESS_SECOND_NS));
    if (p->stuck_ns && now > p->stuck_ns && now - p->stuck_ns > p->o.silence_ns && p->phase == PHASE_UP)
        process_set_fault(p, "did not read its stdin for %llu s",
                          (unsigned long long)(p->o.silence_ns / PROCESS_SECOND_NS));
    if (p->out.kept.n > 0 && now > p->out.kept_since_ns && now - p->out.kept_since_ns > accept_ns(p))
        process_set_fault(p, "began a line and did not end it");
    for (struct process_job *j = p->jobs; j && !p->fault[0]; j = j->next) {
        const uint64_t limit = j->state == JOB_SENT ? accept_ns(p) : p->o.silence_ns;

        if (!process_job_is_out(j)) continue;
        if (j->cancel_sent && now - j->cancel_ns > p->o.silence_ns)
            process_set_fault(p, "did not end a cancelled request within %llu ms",
                              (unsigned long long)(p->o.silence_ns / 1000000));
        else if (now > j->heard_ns && now - j->heard_ns > limit)
            process_set_fault(p, "said nothing of a request for %llu ms", (unsigned long long)(limit / 1000000));
    }
}

static void start(struct process_backend *p)
{
    static const char *const extra[] = {"PYTHONUNBUFFERED=1", "RADISH_BACKEND_PROTOCOL=1", NULL};
    struct rd_error why = {RD_OK, ""};
    rd_status st;

    p->began_ns = p->heard_ns = process_now_ns();
    p->fault[0] = 0;
    buf_deinit(&p->to_child);
    p->sent = 0;
    p->stuck_ns = 0;
    p->said.n_starts++;
    st = child_process_start(p->command, extra, &p->child, &why);
    if (st == RD_OK) {
        p->phase = PHASE_LOADING;
        process_tell_load(p);
    } else {
        process_set_fault(p, "%.150s", why.text);
        if (!p->first_status) p->first_status = st;
    }
}

/* What it was doing fails; what waits, waits for the next one. Locked. */
static void end_child(struct process_backend *p)
{
    const uint64_t now = process_now_ns();
    const bool was_up = p->phase == PHASE_UP;
    char message[256];

    child_process_end(&p->child);
    line_reader_reset(&p->out); /* half a line is nobody's now */
    line_reader_reset(&p->err);
    snprintf(message, sizeof(message), "the backend's process %s", p->fault);
    if (!p->closing) log_error("%s", message);
    p->phase = PHASE_DOWN;
    p->said.is_up = false;
    snprintf(p->said.why, sizeof(p->said.why), "%.159s", p->fault);
    if (!was_up) p->n_failed_starts++;
    for (struct process_job *j = p->jobs; j; j = j->next) {
        if (j->state == JOB_ENDED ||
            (j->state == JOB_QUEUED && p->n_failed_starts < PROCESS_MOST_FAILED && !p->closing))
            continue;
        process_job_over(j, PROCESS_STOP, p->closing ? RD_E_CLOSED : RD_E_DEVICE,
                         p->closing ? rd_status_text(RD_E_CLOSED) : message);
        j->state = JOB_ENDED;
        j->rung = true;
    }
    if (!p->loaded && !p->first_why[0]) {
        if (!p->first_status) p->first_status = RD_E_DEVICE;
        snprintf(p->first_why, sizeof(p->first_why), "%s", message);
    }
    p->backoff_ns = was_up && now - p->up_ns > GOOD_NS
                        ? BACKOFF_NS
                        : u64_min(BACKOFF_MAX_NS, u64_max(BACKOFF_NS, 2 * p->backoff_ns));
    if (was_up && p->backoff_ns > 4 * BACKOFF_NS) p->backoff_ns = 4 * BACKOFF_NS;
    p->again_ns = now + p->backoff_ns;
    p->fault[0] = 0;
    cond_broadcast(&p->changed);
}

static void look_at_child(struct process_backend *p, uint64_t wait_ns)
{
    struct pollfd f[5] = {{.fd = p->wake_fd, .events = POLLIN},
                          {.fd = p->child.end, .events = POLLIN},
                          {.fd = p->child.out, .events = POLLIN},
                          {.fd = p->child.err, .events = POLLIN},
                          {.fd = p->to_child.n > p->sent ? p->child.in : -1, .events = POLLOUT}};
    char how[64];

    if (poll(f, 5, (int)(wait_ns / 1000000) + 1) > 0 && f[0].revents) net_wake_clear(p->wake_fd);
    if (p->child.err >= 0 && f[3].revents) process_read_err(p);
    if (p->child.out >= 0 && f[2].revents) process_read_out(p);
    if (f[4].revents) process_write_in(p);
    if (p->child.pid > 0 && p->child.out < 0 && p->child.end >= 0) /* who ends closes that a moment before */
        (void)poll(&f[1], 1, 200);
    if (p->child.pid > 0 && (f[1].revents || p->child.end < 0 || p->child.out < 0) &&
        child_process_reap(&p->child, how)) {
        if (p->child.out >= 0) process_read_out(p); /* its last words */
        if (p->child.err >= 0) process_read_err(p);
        process_set_fault(p, "ended: %s", how);
    } else if (p->child.pid > 0 && p->child.out < 0) {
        process_set_fault(p, "closed its stdout");
    }
}

/* Locked: how long nothing is due. */
static uint64_t next_look_ns(const struct process_backend *p, uint64_t now)
{
    uint64_t wait = PROCESS_SECOND_NS;

    if (p->phase == PHASE_DOWN) wait = p->again_ns > now ? u64_min(wait, p->again_ns - now) : 0;
    if (p->jobs || p->phase == PHASE_LOADING || p->out.kept.n > 0)
        wait = u64_min(wait, u64_max(10000000, p->o.silence_ns / 16));
    return u64_min(wait, PROCESS_SECOND_NS);
}

static void quit(struct process_backend *p)
{
    const uint64_t until = process_now_ns() + PROCESS_QUIT_NS;

    if (p->phase == PHASE_UP) process_tell(p, "{\"op\":\"quit\"}");
    while (p->phase == PHASE_UP && p->child.pid > 0 && !p->fault[0] && process_now_ns() < until)
        look_at_child(p, 50000000);
    process_set_fault(p, "was closed");
}

void process_live(void *arg)
{
    struct process_backend *p = arg;
    bool closing = false;

    while (!closing) {
        uint64_t now = process_now_ns(), wait;

        mutex_lock(&p->lock);
        p->said.n_turns++;
        closing = p->closing;
        if (!closing && p->phase == PHASE_DOWN && now >= p->again_ns) start(p);
        if (p->phase == PHASE_UP) process_beat(p, now);
        if (!closing) process_send_jobs(p, now);
        check_deadlines(p, now);
        if (p->fault[0]) end_child(p);
        wait = p->fault[0] ? 0 : next_look_ns(p, now);
        mutex_unlock(&p->lock);
        process_ring_jobs(p);
        if (closing) break;
        if (p->to_child.n > p->sent && p->child.pid > 0) process_write_in(p);
        look_at_child(p, wait);
    }
    quit(p);
    mutex_lock(&p->lock);
    end_child(p);
    p->phase = PHASE_CLOSED;
    cond_broadcast(&p->changed);
    mutex_unlock(&p->lock);
    process_ring_jobs(p);
}
