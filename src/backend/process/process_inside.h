/* backend/process/process_inside.h - what the parts of a process backend share.
 *
 *     process_backend.c   from outside: open, close, what it is like
 *     process_jobs.c      requests: their list, and what is handed to who asked
 *     process_life.c      the thread: starts, deadlines, faults, back-off
 *     process_events.c    messages: what it says, and what it is told
 *     process_pipes.c     lines in and out of its pipes
 *
 * One lock for all: lines are short, and what takes long (JSON, pipes) happens outside of it where it can. A job is in the list
 * until the program has ended it; its caller may have left it long before.
 *
 * Thread  the program's own, where nothing else is said; "locked": with the lock held.
 */
#pragma once
#include "backend/process/line_reader.h"
#include "backend/process/process_backend.h"
#include "base/buf.h"
#include "base/child_process.h"
#include "base/clock.h"
#include "base/thread.h"

#define PROCESS_SECOND_NS   1000000000ull
#define PROCESS_READ_BYTES  65536u
#define PROCESS_OUT_BYTES   (256u << 20) /* waiting to be written to it */
#define PROCESS_MOST_FAILED 3u           /* starts in a row: then jobs are refused */
#define PROCESS_LOG_BYTES   512u         /* of a line of its stderr */

enum job_state { JOB_QUEUED, JOB_SENT, JOB_RUNNING, JOB_ENDED };

struct process_piece {
    uint32_t n_text, n_tokens;
};

struct process_job {
    struct process_job *next;
    struct process_backend *p;
    uint32_t refs; /* caller and list; under the lock, as are all below */
    uint64_t id;
    char *line;   /* to be sent, without its end */
    bool is_call; /* its answer is `reply` */
    json_t *reply;
    uint32_t max_tokens;
    void (*wake)(void *arg);
    void (*gone)(void *arg);
    void *arg;
    enum job_state state; /* as the program sees it */
    bool is_over;         /* as the caller sees it: outcome stands */
    bool rung, cancel_sent, started_told, end_told;
    uint64_t sent_ns, heard_ns, cancel_ns;
    struct buf text; /* of pieces[first_piece ..], from text_at on */
    size_t text_at, cap_pieces;
    struct process_piece *pieces;
    uint32_t first_piece, n_pieces;
    enum process_finish finish;
    rd_status status;
    char message[256];
    uint32_t n_prompt, n_generated, n_cached;
    struct buf handed; /* the caller's alone: text of the event that it looks at */
};

enum phase { PHASE_DOWN, PHASE_LOADING, PHASE_UP, PHASE_CLOSED };

struct process_backend {
    struct process_options o;
    char *command, *model;
    struct thread thread;
    int wake_fd;
    struct mutex lock;
    struct cond changed; /* phase */
    enum phase phase;
    bool closing;
    struct process_state said; /* counters; why */
    struct process_job *jobs;  /* in the order they came */
    uint64_t next_id;
    uint32_t n_failed_starts;
    rd_status first_status; /* of the first start, that failed */
    char first_why[256];
    /* Said when it had loaded first; the strings are loaded's. Read-only from then on. */
    json_t *loaded;
    struct process_about about;
    /* the thread's alone */
    struct child_process child;
    struct line_reader out, err;
    struct buf to_child;
    size_t sent;       /* of to_child */
    uint64_t stuck_ns; /* since when it has not taken a byte of it; 0: it takes all */
    uint64_t began_ns, up_ns, again_ns, backoff_ns, heard_ns, beat_id, beat_ns, log_second_ns;
    uint32_t n_logged, n_unlogged;
    char fault[160]; /* "": none */
};

static inline uint64_t process_now_ns(void)
{
    return clock_now_ns(clock_system());
}

/* ---- process_jobs.c: locked, but for process_ring_jobs ---- */

void process_job_unref(struct process_job *j);
/* Its caller's outcome, unless it has one. */
void process_job_over(struct process_job *j, enum process_finish finish, rd_status st, const char *message);
/* NULL: there is none. */
struct process_job *process_job_find(struct process_backend *p, uint64_t id);
/* The program has it. */
bool process_job_is_out(const struct process_job *j);
/* Requests, no calls: that wait, or that the program has. */
uint32_t process_count_jobs(const struct process_backend *p, bool queued);
/* Calls wake and gone of whom something happened to, without the lock; takes out what has ended. */
void process_ring_jobs(struct process_backend *p);

/* ---- process_life.c ---- */

/* Thread of its own: until closing is set. */
void process_live(void *arg);
/* Why it is to be ended; the first is the cause. */
void process_set_fault(struct process_backend *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- process_events.c ---- */

/* line_reader's. false: a fault. */
bool process_take_line(void *p, const char *line, size_t n);
void process_tell_load(struct process_backend *p);
/* Locked: as many as it takes at once, calls too; cancels what is over. */
void process_send_jobs(struct process_backend *p, uint64_t now);
/* Locked: an idle program is asked whether it is there. */
void process_beat(struct process_backend *p, uint64_t now);
/* "": it is not there, or no text. Any thread. */
const char *process_text_of(const json_t *o, const char *key);

/* ---- process_pipes.c ---- */

/* All that is there, but no more than a second's, so that deadlines are looked at. */
void process_read_out(struct process_backend *p);
void process_read_err(struct process_backend *p);
/* Keeps a line, without its end, to be written; no memory: a fault. */
void process_tell(struct process_backend *p, const char *line);
/* What the pipe takes of it now. */
void process_write_in(struct process_backend *p);
