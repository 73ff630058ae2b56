/* backend/process/process_pipes.c - lines in and out of the program's pipes; its stderr goes to the log. */
#include <errno.h>
#include <unistd.h>
#include "backend/process/process_inside.h"
#include "base/log.h"
#include "base/net.h"

#define LOG_LINES 50u /* of its stderr, a second */

static bool log_its_line(void *arg, const char *line, size_t n)
{
    struct process_backend *p = arg;
    const uint64_t now = process_now_ns();

    if (now - p->log_second_ns >= PROCESS_SECOND_NS) {
        if (p->n_unlogged) log_warn("backend process: %u more lines on its stderr", p->n_unlogged);
        p->log_second_ns = now;
        p->n_logged = p->n_unlogged = 0;
    }
    if (n == 0) return true;
    if (p->n_logged++ < LOG_LINES)
        log_info("backend process: %.*s", (int)(n < PROCESS_LOG_BYTES ? n : PROCESS_LOG_BYTES), line);
    else
        p->n_unlogged++;
    return true;
}

/* All that is there, but no more than a second's, so that deadlines are looked at. */
void process_read_out(struct process_backend *p)
{
    char bytes[PROCESS_READ_BYTES];

    for (size_t sum = 0; sum < PROCESS_SECOND_BYTES / 8 && !p->fault[0];) {
        const ssize_t n = read(p->child.out, bytes, sizeof(bytes));
        enum line_fault f;

        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            close(p->child.out);
            p->child.out = -1;
            return; /* its end is told by child.end, or soon */
        }
        sum += (size_t)n;
        p->heard_ns = process_now_ns();
        f = line_reader_feed(&p->out, bytes, (size_t)n, p->heard_ns, process_take_line, p);
        if (f == LINE_TOO_LONG) process_set_fault(p, "wrote a line of more than %u bytes", PROCESS_LINE_BYTES);
        if (f == LINE_FLOOD)
            process_set_fault(p, "wrote more than %u MiB or %u lines in a second", PROCESS_SECOND_BYTES >> 20,
                              PROCESS_SECOND_LINES);
        if (f == LINE_NO_MEMORY) process_set_fault(p, "wrote a line for which there was no memory");
    }
}

void process_read_err(struct process_backend *p)
{
    char bytes[PROCESS_READ_BYTES];

    for (int i = 0; i < 16; i++) {
        const ssize_t n = read(p->child.err, bytes, sizeof(bytes));

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return;
        if (n == 0) {
            close(p->child.err);
            p->child.err = -1;
            return;
        }
        if (line_reader_feed(&p->err, bytes, (size_t)n, process_now_ns(), log_its_line, p) != LINE_OK) {
            log_its_line(p, "(a line that is too long)", 25);
            line_reader_reset(&p->err);
        }
    }
}

void process_tell(struct process_backend *p, const char *line)
{
    if (p->to_child.n == p->sent) { /* all is written: the memory begins anew */
        buf_clear(&p->to_child);
        p->sent = 0;
        p->stuck_ns = 0;
    }
    buf_puts(&p->to_child, line);
    buf_putc(&p->to_child, '\n');
    if (p->to_child.failed) process_set_fault(p, "was not told: out of memory");
    if (!p->stuck_ns) p->stuck_ns = process_now_ns();
}

void process_write_in(struct process_backend *p)
{
    const size_t n = net_send_some(p->child.in, p->to_child.data + p->sent, p->to_child.n - p->sent);

    p->sent += n;
    if (n > 0) p->stuck_ns = p->sent == p->to_child.n ? 0 : process_now_ns();
}
