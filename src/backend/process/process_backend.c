/* backend/process/process_backend.c - the thread that keeps the program, and the jobs that it has.
 *
 * One lock for all: lines are short, and what takes long (JSON, pipes) happens outside of it where it can. A job is in the list
 * until the program has ended it; its caller may have left it long before.
 */
#include "backend/process/process_backend.h"
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "backend/process/line_reader.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/child_process.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/net.h"
#include "base/queue.h"
#include "base/thread.h"

#define SECOND_NS      1000000000ull
#define BEAT_NS        (15 * SECOND_NS) /* an idle program is asked whether it is there */
#define BACKOFF_NS     (SECOND_NS / 2)  /* doubles up to: */
#define BACKOFF_MAX_NS (30 * SECOND_NS)
#define GOOD_NS        (60 * SECOND_NS) /* up so long: the next fault begins anew */
#define MOST_FAILED    3u               /* starts in a row: then jobs are refused */
#define LOG_LINES      50u              /* of its stderr, a second */
#define LOG_BYTES      512u
#define READ_BYTES     65536u
#define OUT_BYTES      (256u << 20) /* waiting to be written to it */

enum job_state { JOB_QUEUED, JOB_SENT, JOB_RUNNING, JOB_ENDED };

struct piece {
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
    struct piece *pieces;
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

static uint64_t now_ns(void)
{
    return clock_now_ns(clock_system());
}

/* ---- jobs ---- */

static void job_unref(struct process_job *j) /* locked */
{
    if (--j->refs > 0) return;
    buf_deinit(&j->text);
    buf_deinit(&j->handed);
    mem_free(j->pieces);
    mem_free(j->line);
    json_decref(j->reply);
    mem_free(j);
}

static void job_over(struct process_job *j, enum process_finish finish, rd_status st, const char *message)
{
    struct process_state *s = &j->p->said;

    if (j->is_over) return;
    j->is_over = j->rung = true;
    j->finish = finish;
    j->status = st;
    snprintf(j->message, sizeof(j->message), "%s", message);
    if (j->is_call) return;
    if (st != RD_OK)
        s->n_failed++;
    else if (finish == PROCESS_STOP)
        s->n_stop++;
    else if (finish == PROCESS_LENGTH)
        s->n_length++;
    else
        s->n_cancelled++;
    s->n_prompt_tokens += j->n_prompt;
    s->n_cached_tokens += j->n_cached;
    s->n_generated_tokens += j->n_generated;
}

static struct process_job *find_job(struct process_backend *p, uint64_t id)
{
    for (struct process_job *j = p->jobs; j; j = j->next)
        if (j->id == id) return j;
    return NULL;
}

static bool is_with_it(const struct process_job *j)
{
    return j->state == JOB_SENT || j->state == JOB_RUNNING;
}

/* Requests, no calls. */
static uint32_t count_jobs(const struct process_backend *p, bool queued)
{
    uint32_t n = 0;

    for (const struct process_job *j = p->jobs; j; j = j->next)
        n += !j->is_call && (queued ? j->state == JOB_QUEUED : is_with_it(j));
    return n;
}

/* Calls wake and gone of whom something happened to, without the lock; takes out what has ended. */
static void ring_jobs(struct process_backend *p)
{
    for (bool found = true; found;) {
        struct process_job **at = &p->jobs, *j = NULL;
        bool ended = false;

        found = false;
        mutex_lock(&p->lock);
        for (; *at && !found; at = found ? at : &(*at)->next) {
            j = *at;
            ended = j->state == JOB_ENDED && j->is_over;
            found = j->rung || ended;
            if (!found) continue;
            j->rung = false;
            if (ended) *at = j->next;
            break;
        }
        mutex_unlock(&p->lock);
        if (!found) return;
        if (j->wake) j->wake(j->arg);
        if (!ended) continue; /* the list's reference keeps it */
        if (j->gone) j->gone(j->arg);
        mutex_lock(&p->lock);
        job_unref(j);
        cond_broadcast(&p->changed);
        mutex_unlock(&p->lock);
    }
}

/* ---- what it says ---- */

static void set_fault(struct process_backend *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void set_fault(struct process_backend *p, const char *format, ...)
{
    va_list args;

    if (p->fault[0]) return; /* the first is the cause */
    va_start(args, format);
    vsnprintf(p->fault, sizeof(p->fault), format, args);
    va_end(args);
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

static uint32_t number_of(const json_t *o, const char *key, uint32_t fallback)
{
    const json_t *v = json_object_get(o, key);
    const json_int_t n = json_integer_value(v);

    return json_is_integer(v) && n >= 0 && n <= UINT32_MAX ? (uint32_t)n : fallback;
}

static rd_status status_of(const char *code)
{
    static const struct {
        const char *code;
        rd_status st;
    } all[] = {{"invalid", RD_E_INVALID},    {"context", RD_E_CONTEXT}, {"unsupported", RD_E_UNSUPPORTED},
               {"memory", RD_E_NOMEM},       {"full", RD_E_FULL},       {"template", RD_E_TEMPLATE},
               {"cancelled", RD_E_CANCELLED}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(all[i].code, code) == 0) return all[i].st;
    return RD_E_DEVICE;
}

static void fill_about(struct process_backend *p)
{
    const json_t *o = p->loaded;

    p->about = (struct process_about){.name = text_of(o, "name"),
                                      .version = text_of(o, "version"),
                                      .model = text_of(o, "model"),
                                      .arch = text_of(o, "arch"),
                                      .chat_template = text_of(o, "chat_template"),
                                      .n_ctx = number_of(o, "n_ctx", 0),
                                      .n_vocab = number_of(o, "n_vocab", 0),
                                      .parallel = u32_max(1, u32_min(4096, number_of(o, "parallel", 1)))};
}

static void on_loaded(struct process_backend *p, json_t *o)
{
    const uint32_t protocol = number_of(o, "protocol", 0);

    if (p->phase != PHASE_LOADING) {
        set_fault(p, "said that it had loaded without being asked");
        return;
    }
    if (protocol != PROCESS_PROTOCOL) {
        set_fault(p, "speaks version %u of the protocol, this radish version %d", protocol, PROCESS_PROTOCOL);
        return;
    }
    if (!json_is_array(json_object_get(o, "ops"))) {
        set_fault(p, "did not say which ops it has");
        return;
    }
    if (!p->loaded) { /* later starts are the same program */
        p->loaded = json_incref(o);
        fill_about(p);
    }
    p->phase = PHASE_UP;
    p->up_ns = p->beat_ns = now_ns();
    p->n_failed_starts = 0;
    p->said.is_up = true;
    p->said.why[0] = 0;
    cond_broadcast(&p->changed);
    log_info("backend process: %s %s has loaded, %u at once", p->about.name, p->about.version, p->about.parallel);
}

static void on_text(struct process_backend *p, struct process_job *j, const json_t *o)
{
    const json_t *v = json_object_get(o, "text");
    const size_t n = json_string_length(v);

    if (!json_is_string(v)) {
        set_fault(p, "wrote a text event without text");
        return;
    }
    if (j->is_over) return; /* its reader has left */
    j->n_generated += number_of(o, "tokens", 1);
    if (j->text_at > READ_BYTES && j->text_at > j->text.n / 2) { /* its reader is behind: what it has read goes */
        j->text.n -= j->text_at;
        j->n_pieces -= j->first_piece;
        memmove(j->text.data, j->text.data + j->text_at, j->text.n);
        memmove(j->pieces, j->pieces + j->first_piece, j->n_pieces * sizeof(*j->pieces));
        j->text_at = j->first_piece = 0;
    }
    if (j->text.n - j->text_at + n > PROCESS_ROOM_BYTES) {
        job_over(j, PROCESS_STOP, RD_E_LIMIT, "its reader is too slow");
        return;
    }
    if (!mem_grow((void **)&j->pieces, &j->cap_pieces, (size_t)j->n_pieces + 1, sizeof(*j->pieces)))
        j->text.failed = true;
    buf_append(&j->text, json_string_value(v), n);
    if (j->text.failed) {
        job_over(j, PROCESS_STOP, RD_E_NOMEM, rd_status_text(RD_E_NOMEM));
        return;
    }
    j->pieces[j->n_pieces++] = (struct piece){(uint32_t)n, number_of(o, "tokens", 1)};
    j->rung = true;
    /* It should have ended by itself: it is told to. */
    if (j->max_tokens != UINT32_MAX && j->n_generated > j->max_tokens) job_over(j, PROCESS_LENGTH, RD_OK, "");
}

static void on_done(struct process_backend *p, struct process_job *j, const json_t *o)
{
    const char *finish = text_of(o, "finish");

    j->n_prompt = number_of(o, "prompt_tokens", j->n_prompt);
    j->n_cached = u32_min(j->n_prompt, number_of(o, "cached_tokens", j->n_cached));
    j->n_generated = number_of(o, "completion_tokens", j->n_generated);
    if (strcmp(finish, "stop") == 0)
        job_over(j, PROCESS_STOP, RD_OK, "");
    else if (strcmp(finish, "length") == 0)
        job_over(j, PROCESS_LENGTH, RD_OK, "");
    else if (strcmp(finish, "cancelled") == 0 && j->cancel_sent)
        job_over(j, PROCESS_CANCELLED, RD_OK, "");
    else
        set_fault(p, "ended request %llu with a finish that is none", (unsigned long long)j->id);
    j->state = JOB_ENDED;
}

static void on_error(struct process_job *j, const json_t *o)
{
    const char *message = text_of(o, "message");
    const rd_status st = status_of(text_of(o, "code"));

    job_over(j, PROCESS_STOP, st, *message ? message : rd_status_text(st));
    j->state = JOB_ENDED;
}

static void on_event(struct process_backend *p, json_t *o)
{
    const char *event = text_of(o, "event");
    const json_int_t id = json_integer_value(json_object_get(o, "id"));
    struct process_job *j;

    p->said.n_events++;
    if (strcmp(event, "loaded") == 0) {
        on_loaded(p, o);
        return;
    }
    if (p->phase == PHASE_LOADING && strcmp(event, "error") == 0) {
        set_fault(p, "could not load: %.120s", text_of(o, "message"));
        return;
    }
    j = find_job(p, (uint64_t)id);
    if (!j || j->state == JOB_QUEUED || j->state == JOB_ENDED) {
        set_fault(p, "wrote an event of a request that it does not have");
        return;
    }
    j->heard_ns = now_ns();
    if (j->state == JOB_SENT) j->state = JOB_RUNNING;
    if (j->is_call && strcmp(event, "result") == 0) {
        if (j->id == p->beat_id)
            p->said.memory_bytes = (uint64_t)json_integer_value(json_object_get(o, "memory_bytes"));
        j->reply = json_incref(o);
        job_over(j, PROCESS_STOP, RD_OK, "");
        j->state = JOB_ENDED;
    } else if (strcmp(event, "error") == 0) {
        on_error(j, o);
    } else if (strcmp(event, "alive") == 0) {
        /* it is heard */
    } else if (j->is_call) {
        set_fault(p, "answered a call with the event \"%.40s\"", event);
    } else if (strcmp(event, "started") == 0) {
        j->n_prompt = number_of(o, "prompt_tokens", 0);
        j->n_cached = u32_min(j->n_prompt, number_of(o, "cached_tokens", 0));
        j->rung = true;
    } else if (strcmp(event, "text") == 0) {
        on_text(p, j, o);
    } else if (strcmp(event, "done") == 0) {
        on_done(p, j, o);
    } else {
        set_fault(p, "wrote the event \"%.40s\", which there is not", event);
    }
}

static bool take_line(void *arg, const char *line, size_t n)
{
    struct process_backend *p = arg;
    json_error_t why;
    json_t *o;

    while (n > 0 && (line[n - 1] == '\r' || line[n - 1] == ' ')) n--;
    if (n == 0) return true;
    o = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!o && json_error_code(&why) == json_error_out_of_memory) {
        set_fault(p, "wrote a line for which there was no memory");
    } else if (!json_is_object(o)) {
        char quoted[48];

        set_fault(p, "wrote a line that is no JSON object: %s", error_quote(quoted, sizeof(quoted), line, n));
    } else {
        mutex_lock(&p->lock);
        on_event(p, o);
        mutex_unlock(&p->lock);
    }
    json_decref(o);
    return !p->fault[0];
}

static bool log_its_line(void *arg, const char *line, size_t n)
{
    struct process_backend *p = arg;
    const uint64_t now = now_ns();

    if (now - p->log_second_ns >= SECOND_NS) {
        if (p->n_unlogged) log_warn("backend process: %u more lines on its stderr", p->n_unlogged);
        p->log_second_ns = now;
        p->n_logged = p->n_unlogged = 0;
    }
    if (n == 0) return true;
    if (p->n_logged++ < LOG_LINES)
        log_info("backend process: %.*s", (int)(n < LOG_BYTES ? n : LOG_BYTES), line);
    else
        p->n_unlogged++;
    return true;
}

/* All that is there, but no more than a second's, so that deadlines are looked at. */
static void read_out(struct process_backend *p)
{
    char bytes[READ_BYTES];

    for (size_t sum = 0; sum < PROCESS_SECOND_BYTES / 8 && !p->fault[0];) {
        const ssize_t n = read(p->child.out, bytes, sizeof(bytes));
        enum line_fault f;

        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            close(p->child.out);
            p->child.out = -1;
            return; /* its end is told by pidfd, or soon */
        }
        sum += (size_t)n;
        p->heard_ns = now_ns();
        f = line_reader_feed(&p->out, bytes, (size_t)n, p->heard_ns, take_line, p);
        if (f == LINE_TOO_LONG) set_fault(p, "wrote a line of more than %u bytes", PROCESS_LINE_BYTES);
        if (f == LINE_FLOOD)
            set_fault(p, "wrote more than %u MiB or %u lines in a second", PROCESS_SECOND_BYTES >> 20,
                      PROCESS_SECOND_LINES);
        if (f == LINE_NO_MEMORY) set_fault(p, "wrote a line for which there was no memory");
    }
}

static void read_err(struct process_backend *p)
{
    char bytes[READ_BYTES];

    for (int i = 0; i < 16; i++) {
        const ssize_t n = read(p->child.err, bytes, sizeof(bytes));

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return;
        if (n == 0) {
            close(p->child.err);
            p->child.err = -1;
            return;
        }
        if (line_reader_feed(&p->err, bytes, (size_t)n, now_ns(), log_its_line, p) != LINE_OK) {
            log_its_line(p, "(a line that is too long)", 25);
            line_reader_reset(&p->err);
        }
    }
}

/* ---- what it is told ---- */

static void tell(struct process_backend *p, const char *line)
{
    if (p->to_child.n == p->sent) { /* all is written: the memory begins anew */
        buf_clear(&p->to_child);
        p->sent = 0;
        p->stuck_ns = 0;
    }
    buf_puts(&p->to_child, line);
    buf_putc(&p->to_child, '\n');
    if (p->to_child.failed) set_fault(p, "was not told: out of memory");
    if (!p->stuck_ns) p->stuck_ns = now_ns();
}

static void write_in(struct process_backend *p)
{
    const size_t n = net_send_some(p->child.in, p->to_child.data + p->sent, p->to_child.n - p->sent);

    p->sent += n;
    if (n > 0) p->stuck_ns = p->sent == p->to_child.n ? 0 : now_ns();
}

static void tell_load(struct process_backend *p)
{
    json_t *o =
        json_pack("{s:s, s:i, s:i, s:s}", "op", "load", "id", 0, "protocol", PROCESS_PROTOCOL, "model", p->model);
    char *line;

    if (o && p->o.n_ctx) json_object_set_new(o, "n_ctx", json_integer(p->o.n_ctx));
    if (o && p->o.n_threads) json_object_set_new(o, "threads", json_integer(p->o.n_threads));
    line = o ? json_dumps(o, JSON_COMPACT) : NULL;
    if (line)
        tell(p, line);
    else
        set_fault(p, "was not told: out of memory");
    mem_free(line);
    json_decref(o);
}

/* As many as it takes at once, calls too: it may do one thing after the other. Locked. */
static void send_jobs(struct process_backend *p, uint64_t now)
{
    uint32_t n = 0;

    for (const struct process_job *j = p->jobs; j; j = j->next) n += is_with_it(j);
    for (struct process_job *j = p->jobs; j; j = j->next) {
        char line[64];

        if (j->state == JOB_QUEUED && j->is_over) { /* left before it began */
            j->state = JOB_ENDED;
            j->rung = true;
        }
        if (j->state == JOB_QUEUED && p->phase == PHASE_UP && n < p->about.parallel &&
            p->to_child.n - p->sent < OUT_BYTES) {
            tell(p, j->line);
            mem_free(j->line);
            j->line = NULL;
            j->state = JOB_SENT;
            j->sent_ns = j->heard_ns = now;
            n++;
        }
        if (is_with_it(j) && j->is_over && !j->cancel_sent && !j->is_call) {
            snprintf(line, sizeof(line), "{\"op\":\"cancel\",\"id\":%llu}", (unsigned long long)j->id);
            tell(p, line);
            j->cancel_sent = true;
            j->cancel_ns = now;
        }
    }
}

/* An idle program is asked whether it is there. Locked. */
static void beat(struct process_backend *p, uint64_t now)
{
    struct process_job *j;
    char line[96];

    if (p->jobs || now - p->heard_ns < BEAT_NS || now - p->beat_ns < BEAT_NS) return;
    p->beat_ns = now;
    j = mem_zalloc(1, sizeof(*j));
    if (!j) return;
    snprintf(line, sizeof(line), "{\"op\":\"%s\",\"id\":%llu}", process_can(p, "metrics") ? "metrics" : "info",
             (unsigned long long)p->next_id);
    j->line = mem_strdup(line);
    j->p = p;
    j->refs = 1; /* the list's */
    j->id = p->beat_id = p->next_id++;
    j->is_call = true;
    j->max_tokens = UINT32_MAX;
    if (j->line)
        p->jobs = j;
    else
        mem_free(j);
}

/* ---- deadlines ---- */

static uint64_t accept_ns(const struct process_backend *p)
{
    return u64_min(PROCESS_ACCEPT_NS, p->o.silence_ns);
}

/* Locked. */
static void check_deadlines(struct process_backend *p, uint64_t now)
{
    if (p->phase == PHASE_LOADING && now > p->began_ns && now - p->began_ns > p->o.load_ns)
        set_fault(p, "had not loaded after %llu s", (unsigned long long)(p->o.load_ns / SECOND_NS));
    if (p->stuck_ns && now > p->stuck_ns && now - p->stuck_ns > p->o.silence_ns && p->phase == PHASE_UP)
        set_fault(p, "did not read its stdin for %llu s", (unsigned long long)(p->o.silence_ns / SECOND_NS));
    if (p->out.kept.n > 0 && now > p->out.kept_since_ns && now - p->out.kept_since_ns > accept_ns(p))
        set_fault(p, "began a line and did not end it");
    for (struct process_job *j = p->jobs; j && !p->fault[0]; j = j->next) {
        const uint64_t limit = j->state == JOB_SENT ? accept_ns(p) : p->o.silence_ns;

        if (!is_with_it(j)) continue;
        if (j->cancel_sent && now - j->cancel_ns > p->o.silence_ns)
            set_fault(p, "did not end a cancelled request within %llu ms",
                      (unsigned long long)(p->o.silence_ns / 1000000));
        else if (now > j->heard_ns && now - j->heard_ns > limit)
            set_fault(p, "said nothing of a request for %llu ms", (unsigned long long)(limit / 1000000));
    }
}

/* ---- its life ---- */

static void start(struct process_backend *p)
{
    static const char *const extra[] = {"PYTHONUNBUFFERED=1", "RADISH_BACKEND_PROTOCOL=1", NULL};
    struct rd_error why = {RD_OK, ""};
    rd_status st;

    p->began_ns = p->heard_ns = now_ns();
    p->fault[0] = 0;
    buf_deinit(&p->to_child);
    p->sent = 0;
    p->stuck_ns = 0;
    p->said.n_starts++;
    st = child_process_start(p->command, extra, &p->child, &why);
    if (st == RD_OK) {
        p->phase = PHASE_LOADING;
        tell_load(p);
    } else {
        set_fault(p, "%.150s", why.text);
        if (!p->first_status) p->first_status = st;
    }
}

/* What it was doing fails; what waits, waits for the next one. Locked. */
static void end_child(struct process_backend *p)
{
    const uint64_t now = now_ns();
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
        if (j->state == JOB_ENDED || (j->state == JOB_QUEUED && p->n_failed_starts < MOST_FAILED && !p->closing))
            continue;
        job_over(j, PROCESS_STOP, p->closing ? RD_E_CLOSED : RD_E_DEVICE,
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
                          {.fd = p->child.pidfd, .events = POLLIN},
                          {.fd = p->child.out, .events = POLLIN},
                          {.fd = p->child.err, .events = POLLIN},
                          {.fd = p->to_child.n > p->sent ? p->child.in : -1, .events = POLLOUT}};
    char how[64];

    if (poll(f, 5, (int)(wait_ns / 1000000) + 1) > 0 && f[0].revents) net_wake_clear(p->wake_fd);
    if (p->child.err >= 0 && f[3].revents) read_err(p);
    if (p->child.out >= 0 && f[2].revents) read_out(p);
    if (f[4].revents) write_in(p);
    if (p->child.pid > 0 && p->child.out < 0 && p->child.pidfd >= 0) /* who ends closes that a moment before */
        (void)poll(&f[1], 1, 200);
    if (p->child.pid > 0 && (f[1].revents || p->child.pidfd < 0 || p->child.out < 0) &&
        child_process_reap(&p->child, how)) {
        if (p->child.out >= 0) read_out(p); /* its last words */
        if (p->child.err >= 0) read_err(p);
        set_fault(p, "ended: %s", how);
    } else if (p->child.pid > 0 && p->child.out < 0) {
        set_fault(p, "closed its stdout");
    }
}

/* Locked: how long nothing is due. */
static uint64_t next_look_ns(const struct process_backend *p, uint64_t now)
{
    uint64_t wait = SECOND_NS;

    if (p->phase == PHASE_DOWN) wait = p->again_ns > now ? u64_min(wait, p->again_ns - now) : 0;
    if (p->jobs || p->phase == PHASE_LOADING || p->out.kept.n > 0)
        wait = u64_min(wait, u64_max(10000000, p->o.silence_ns / 16));
    return u64_min(wait, SECOND_NS);
}

static void quit(struct process_backend *p)
{
    const uint64_t until = now_ns() + PROCESS_QUIT_NS;

    if (p->phase == PHASE_UP) tell(p, "{\"op\":\"quit\"}");
    while (p->phase == PHASE_UP && p->child.pid > 0 && !p->fault[0] && now_ns() < until) look_at_child(p, 50000000);
    set_fault(p, "was closed");
}

static void process_main(void *arg)
{
    struct process_backend *p = arg;
    bool closing = false;

    while (!closing) {
        uint64_t now = now_ns(), wait;

        mutex_lock(&p->lock);
        p->said.n_turns++;
        closing = p->closing;
        if (!closing && p->phase == PHASE_DOWN && now >= p->again_ns) start(p);
        if (p->phase == PHASE_UP) beat(p, now);
        if (!closing) send_jobs(p, now);
        check_deadlines(p, now);
        if (p->fault[0]) end_child(p);
        wait = p->fault[0] ? 0 : next_look_ns(p, now);
        mutex_unlock(&p->lock);
        ring_jobs(p);
        if (closing) break;
        if (p->to_child.n > p->sent && p->child.pid > 0) write_in(p);
        look_at_child(p, wait);
    }
    quit(p);
    mutex_lock(&p->lock);
    end_child(p);
    p->phase = PHASE_CLOSED;
    cond_broadcast(&p->changed);
    mutex_unlock(&p->lock);
    ring_jobs(p);
}

/* ---- from outside ---- */

static void destroy(struct process_backend *p)
{
    json_decref(p->loaded);
    line_reader_reset(&p->out);
    line_reader_reset(&p->err);
    buf_deinit(&p->to_child);
    if (p->wake_fd >= 0) close(p->wake_fd);
    cond_deinit(&p->changed);
    mutex_deinit(&p->lock);
    mem_free(p->command);
    mem_free(p->model);
    mem_free(p);
}

void process_close(struct process_backend *p)
{
    if (!p) return;
    mutex_lock(&p->lock);
    p->closing = true;
    mutex_unlock(&p->lock);
    net_wake(p->wake_fd);
    thread_join(&p->thread);
    destroy(p);
}

/* Until it is up, or its first start has failed. */
static rd_status wait_until_up(struct process_backend *p, bool (*cancelled)(void *user), void *user,
                               struct rd_error *err)
{
    rd_status st = RD_OK;

    mutex_lock(&p->lock);
    while (!p->said.is_up && !p->first_why[0] && st == RD_OK) {
        cond_wait_ns(&p->changed, &p->lock, SECOND_NS / 10);
        if (cancelled && cancelled(user)) st = RD_E_CANCELLED;
    }
    if (!p->said.is_up && st == RD_OK)
        st = error_set(err, p->first_status, "%s", p->first_why);
    else if (st != RD_OK)
        error_set(err, st, "cancelled");
    mutex_unlock(&p->lock);
    return st;
}

rd_status process_open(const struct process_options *o, bool (*cancelled)(void *user), void *user,
                       struct process_backend **out, struct rd_error *err)
{
    struct process_backend *p = mem_zalloc(1, sizeof(*p));
    rd_status st;

    *out = NULL;
    if (!p) return error_set(err, RD_E_NOMEM, "out of memory");
    p->o = *o;
    p->wake_fd = -1;
    p->next_id = 1;
    p->out = (struct line_reader){PROCESS_LINE_BYTES, PROCESS_SECOND_BYTES, PROCESS_SECOND_LINES, {0}, 0, 0, 0, 0};
    p->err = (struct line_reader){LOG_BYTES * 16, 0, 0, {0}, 0, 0, 0, 0};
    p->child = (struct child_process){.pidfd = -1, .in = -1, .out = -1, .err = -1};
    mutex_init(&p->lock);
    cond_init(&p->changed);
    p->command = mem_strdup(o->command);
    p->model = mem_strdup(o->model);
    st = p->command && p->model ? net_wake_open(&p->wake_fd) : RD_E_NOMEM;
    if (st == RD_OK) st = thread_start(&p->thread, "process", process_main, p);
    if (st != RD_OK) {
        destroy(p);
        return error_set(err, st, "cannot start the backend's thread: %s", rd_status_text(st));
    }
    st = wait_until_up(p, cancelled, user, err);
    if (st == RD_OK)
        *out = p;
    else
        process_close(p);
    return st;
}

const struct process_about *process_about(const struct process_backend *p)
{
    return &p->about;
}

static bool lists(const json_t *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));

        if (s && strcmp(s, name) == 0) return true;
    }
    return false;
}

bool process_can(const struct process_backend *p, const char *op)
{
    return lists(json_object_get(p->loaded, "ops"), op);
}

const char *process_text(const struct process_backend *p, const char *key)
{
    return text_of(p->loaded, key);
}

bool process_takes(const struct process_backend *p, const char *parameter)
{
    static const char *const always[] = {"temperature", "top_p", "top_k", "min_p"};

    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++)
        if (strcmp(always[i], parameter) == 0) return true;
    return lists(json_object_get(p->loaded, "parameters"), parameter);
}

void process_get_state(struct process_backend *p, struct process_state *out)
{
    mutex_lock(&p->lock);
    *out = p->said;
    out->n_queued = count_jobs(p, true);
    out->n_running = count_jobs(p, false);
    mutex_unlock(&p->lock);
}

/* Locked. */
static rd_status may_submit(struct process_backend *p, bool is_call, struct rd_error *err)
{
    if (p->closing) return error_set(err, RD_E_CLOSED, "%s", rd_status_text(RD_E_CLOSED));
    if (p->n_failed_starts >= MOST_FAILED)
        return error_set(err, RD_E_DEVICE, "the backend's process %.120s; it is started again", p->said.why);
    if (is_call || count_jobs(p, true) < p->o.max_queue) return RD_OK;
    p->said.n_rejected++;
    return error_set(err, RD_E_FULL, "%s", rd_status_text(RD_E_FULL));
}

static rd_status submit(struct process_backend *p, json_t *request, bool is_call, struct process_job *j,
                        struct rd_error *err)
{
    struct process_job **at = &p->jobs;
    rd_status st;

    /* Numbers grow, whatever becomes of them: an id is never used twice. */
    mutex_lock(&p->lock);
    j->id = p->next_id++;
    mutex_unlock(&p->lock);
    j->line = json_object_set_new(request, "id", json_integer((json_int_t)j->id)) == 0
                  ? json_dumps(request, JSON_COMPACT)
                  : NULL;
    if (!j->line) return error_set(err, RD_E_NOMEM, "out of memory for a request");
    if (strlen(j->line) > OUT_BYTES / 4)
        return error_set(err, RD_E_LIMIT, "the request is too large for the backend's process");
    mutex_lock(&p->lock);
    st = may_submit(p, is_call, err);
    if (st == RD_OK) {
        j->p = p;
        j->refs = 2;
        j->is_call = is_call;
        p->said.n_submitted += !is_call;
        while (*at) at = &(*at)->next;
        *at = j;
    }
    mutex_unlock(&p->lock);
    if (st == RD_OK) net_wake(p->wake_fd);
    return st;
}

rd_status process_submit(struct process_backend *p, json_t *request, void (*wake)(void *arg), void (*gone)(void *arg),
                         void *arg, struct process_job **out, struct rd_error *err)
{
    const json_t *max_tokens = json_object_get(request, "max_tokens");
    struct process_job *j = mem_zalloc(1, sizeof(*j));
    rd_status st;

    if (!j) return error_set(err, RD_E_NOMEM, "out of memory for a request");
    j->wake = wake;
    j->gone = gone;
    j->arg = arg;
    j->max_tokens = json_is_integer(max_tokens) ? (uint32_t)json_integer_value(max_tokens) : UINT32_MAX;
    *out = j; /* before the first wake */
    st = submit(p, request, false, j, err);
    if (st == RD_OK) return st;
    *out = NULL;
    mem_free(j->line);
    mem_free(j);
    return st;
}

/* Locked. */
static void take_piece(struct process_job *j, struct process_event *ev)
{
    const struct piece piece = j->pieces[j->first_piece++];

    buf_clear(&j->handed);
    buf_append(&j->handed, j->text.data + j->text_at, piece.n_text);
    j->text_at += piece.n_text;
    if (j->first_piece == j->n_pieces) {
        j->first_piece = j->n_pieces = 0;
        j->text_at = 0;
        buf_clear(&j->text);
    }
    ev->kind = PROCESS_TEXT;
    ev->text = j->handed.n ? j->handed.data : "";
    ev->n_text = j->handed.n;
    ev->n_tokens = piece.n_tokens;
    if (!j->handed.failed) return;
    ev->kind = PROCESS_ERROR;
    ev->status = RD_E_NOMEM;
    ev->message = rd_status_text(RD_E_NOMEM);
    j->end_told = true;
}

bool process_next(struct process_job *j, struct process_event *ev)
{
    bool found = true;

    *ev = (struct process_event){.text = "", .message = ""};
    mutex_lock(&j->p->lock);
    if (j->end_told) {
        found = false;
    } else if (!j->started_told && j->state == JOB_RUNNING && !j->is_over) {
        j->started_told = true;
        ev->kind = PROCESS_STARTED;
    } else if (j->first_piece < j->n_pieces && !(j->is_over && j->status == RD_OK && j->finish == PROCESS_CANCELLED)) {
        take_piece(j, ev);
    } else if (j->is_over) {
        j->end_told = true;
        ev->kind = j->status == RD_OK ? PROCESS_DONE : PROCESS_ERROR;
        ev->finish = j->finish;
        ev->status = j->status;
        ev->message = j->message;
    } else {
        found = false;
    }
    ev->n_prompt = j->n_prompt;
    ev->n_cached = j->n_cached;
    ev->n_generated = j->n_generated;
    mutex_unlock(&j->p->lock);
    return found;
}

void process_cancel(struct process_job *j)
{
    mutex_lock(&j->p->lock);
    if (!j->is_over) job_over(j, PROCESS_CANCELLED, RD_OK, "");
    mutex_unlock(&j->p->lock);
    net_wake(j->p->wake_fd);
}

void process_release(struct process_job *j)
{
    struct process_backend *p;

    if (!j) return;
    p = j->p;
    process_cancel(j);
    mutex_lock(&p->lock);
    job_unref(j);
    mutex_unlock(&p->lock);
}

rd_status process_call(struct process_backend *p, json_t *request, json_t **reply, struct rd_error *err)
{
    struct process_job *j = mem_zalloc(1, sizeof(*j));
    rd_status st;

    *reply = NULL;
    if (!j) return error_set(err, RD_E_NOMEM, "out of memory for a call");
    j->max_tokens = UINT32_MAX;
    st = submit(p, request, true, j, err);
    if (st != RD_OK) {
        mem_free(j->line);
        mem_free(j);
        return st;
    }
    mutex_lock(&p->lock);
    while (!j->is_over) cond_wait_ns(&p->changed, &p->lock, SECOND_NS);
    st = j->status;
    if (st == RD_OK)
        *reply = json_incref(j->reply);
    else
        error_set(err, st, "%s", j->message);
    job_unref(j);
    mutex_unlock(&p->lock);
    return st;
}
