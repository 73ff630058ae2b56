/* backend/process/process_events.c - messages: what the program says, and what it is told. See docs/process-backend.md. */
#include <stdio.h>
#include <string.h>
#include "backend/process/process_inside.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"

#define BEAT_NS (15 * PROCESS_SECOND_NS) /* an idle program is asked whether it is there */

/* ---- what it says ---- */

const char *process_text_of(const json_t *o, const char *key)
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

    p->about = (struct process_about){.name = process_text_of(o, "name"),
                                      .version = process_text_of(o, "version"),
                                      .model = process_text_of(o, "model"),
                                      .arch = process_text_of(o, "arch"),
                                      .chat_template = process_text_of(o, "chat_template"),
                                      .n_ctx = number_of(o, "n_ctx", 0),
                                      .n_vocab = number_of(o, "n_vocab", 0),
                                      .parallel = u32_max(1, u32_min(4096, number_of(o, "parallel", 1)))};
}

static void on_loaded(struct process_backend *p, json_t *o)
{
    const uint32_t protocol = number_of(o, "protocol", 0);

    if (p->phase != PHASE_LOADING) {
        process_set_fault(p, "said that it had loaded without being asked");
        return;
    }
    if (protocol != PROCESS_PROTOCOL) {
        process_set_fault(p, "speaks version %u of the protocol, this radish version %d", protocol, PROCESS_PROTOCOL);
        return;
    }
    if (!json_is_array(json_object_get(o, "ops"))) {
        process_set_fault(p, "did not say which ops it has");
        return;
    }
    if (!p->loaded) { /* later starts are the same program */
        p->loaded = json_incref(o);
        fill_about(p);
    }
    p->phase = PHASE_UP;
    p->up_ns = p->beat_ns = process_now_ns();
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
        process_set_fault(p, "wrote a text event without text");
        return;
    }
    if (j->is_over) return; /* its reader has left */
    j->n_generated += number_of(o, "tokens", 1);
    if (j->text_at > PROCESS_READ_BYTES &&
        j->text_at > j->text.n / 2) { /* its reader is behind: what it has read goes */
        j->text.n -= j->text_at;
        j->n_pieces -= j->first_piece;
        memmove(j->text.data, j->text.data + j->text_at, j->text.n);
        memmove(j->pieces, j->pieces + j->first_piece, j->n_pieces * sizeof(*j->pieces));
        j->text_at = j->first_piece = 0;
    }
    if (j->text.n - j->text_at + n > PROCESS_ROOM_BYTES) {
        process_job_over(j, PROCESS_STOP, RD_E_LIMIT, "its reader is too slow");
        return;
    }
    if (!mem_grow((void **)&j->pieces, &j->cap_pieces, (size_t)j->n_pieces + 1, sizeof(*j->pieces)))
        j->text.failed = true;
    buf_append(&j->text, json_string_value(v), n);
    if (j->text.failed) {
        process_job_over(j, PROCESS_STOP, RD_E_NOMEM, rd_status_text(RD_E_NOMEM));
        return;
    }
    j->pieces[j->n_pieces++] = (struct process_piece){(uint32_t)n, number_of(o, "tokens", 1)};
    j->rung = true;
    /* It should have ended by itself: it is told to. */
    if (j->max_tokens != UINT32_MAX && j->n_generated > j->max_tokens) process_job_over(j, PROCESS_LENGTH, RD_OK, "");
}

static void on_done(struct process_backend *p, struct process_job *j, const json_t *o)
{
    const char *finish = process_text_of(o, "finish");

    j->n_prompt = number_of(o, "prompt_tokens", j->n_prompt);
    j->n_cached = u32_min(j->n_prompt, number_of(o, "cached_tokens", j->n_cached));
    j->n_generated = number_of(o, "completion_tokens", j->n_generated);
    if (strcmp(finish, "stop") == 0)
        process_job_over(j, PROCESS_STOP, RD_OK, "");
    else if (strcmp(finish, "length") == 0)
        process_job_over(j, PROCESS_LENGTH, RD_OK, "");
    else if (strcmp(finish, "cancelled") == 0 && j->cancel_sent)
        process_job_over(j, PROCESS_CANCELLED, RD_OK, "");
    else
        process_set_fault(p, "ended request %llu with a finish that is none", (unsigned long long)j->id);
    j->state = JOB_ENDED;
}

static void on_error(struct process_job *j, const json_t *o)
{
    const char *message = process_text_of(o, "message");
    const rd_status st = status_of(process_text_of(o, "code"));

    process_job_over(j, PROCESS_STOP, st, *message ? message : rd_status_text(st));
    j->state = JOB_ENDED;
}

static void on_event(struct process_backend *p, json_t *o)
{
    const char *event = process_text_of(o, "event");
    const json_int_t id = json_integer_value(json_object_get(o, "id"));
    struct process_job *j;

    p->said.n_events++;
    if (strcmp(event, "loaded") == 0) {
        on_loaded(p, o);
        return;
    }
    if (p->phase == PHASE_LOADING && strcmp(event, "error") == 0) {
        process_set_fault(p, "could not load: %.120s", process_text_of(o, "message"));
        return;
    }
    j = process_job_find(p, (uint64_t)id);
    if (!j || j->state == JOB_QUEUED || j->state == JOB_ENDED) {
        process_set_fault(p, "wrote an event of a request that it does not have");
        return;
    }
    j->heard_ns = process_now_ns();
    if (j->state == JOB_SENT) j->state = JOB_RUNNING;
    if (j->is_call && strcmp(event, "result") == 0) {
        if (j->id == p->beat_id)
            p->said.memory_bytes = (uint64_t)json_integer_value(json_object_get(o, "memory_bytes"));
        j->reply = json_incref(o);
        process_job_over(j, PROCESS_STOP, RD_OK, "");
        j->state = JOB_ENDED;
    } else if (strcmp(event, "error") == 0) {
        on_error(j, o);
    } else if (strcmp(event, "alive") == 0) {
        /* it is heard */
    } else if (j->is_call) {
        process_set_fault(p, "answered a call with the event \"%.40s\"", event);
    } else if (strcmp(event, "started") == 0) {
        j->n_prompt = number_of(o, "prompt_tokens", 0);
        j->n_cached = u32_min(j->n_prompt, number_of(o, "cached_tokens", 0));
        j->rung = true;
    } else if (strcmp(event, "text") == 0) {
        on_text(p, j, o);
    } else if (strcmp(event, "done") == 0) {
        on_done(p, j, o);
    } else {
        process_set_fault(p, "wrote the event \"%.40s\", which there is not", event);
    }
}

bool process_take_line(void *arg, const char *line, size_t n)
{
    struct process_backend *p = arg;
    json_error_t why;
    json_t *o;

    while (n > 0 && (line[n - 1] == '\r' || line[n - 1] == ' ')) n--;
    if (n == 0) return true;
    o = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!o && json_error_code(&why) == json_error_out_of_memory) {
        process_set_fault(p, "wrote a line for which there was no memory");
    } else if (!json_is_object(o)) {
        char quoted[48];

        process_set_fault(p, "wrote a line that is no JSON object: %s", error_quote(quoted, sizeof(quoted), line, n));
    } else {
        mutex_lock(&p->lock);
        on_event(p, o);
        mutex_unlock(&p->lock);
    }
    json_decref(o);
    return !p->fault[0];
}

/* ---- what it is told ---- */

void process_tell_load(struct process_backend *p)
{
    json_t *o =
        json_pack("{s:s, s:i, s:i, s:s}", "op", "load", "id", 0, "protocol", PROCESS_PROTOCOL, "model", p->model);
    char *line;

    if (o && p->o.n_ctx) json_object_set_new(o, "n_ctx", json_integer(p->o.n_ctx));
    if (o && p->o.n_threads) json_object_set_new(o, "threads", json_integer(p->o.n_threads));
    line = o ? json_dumps(o, JSON_COMPACT) : NULL;
    if (line)
        process_tell(p, line);
    else
        process_set_fault(p, "was not told: out of memory");
    mem_free(line);
    json_decref(o);
}

/* As many as it takes at once, calls too: it may do one thing after the other. Locked. */
void process_send_jobs(struct process_backend *p, uint64_t now)
{
    uint32_t n = 0;

    for (const struct process_job *j = p->jobs; j; j = j->next) n += process_job_is_out(j);
    for (struct process_job *j = p->jobs; j; j = j->next) {
        char line[64];

        if (j->state == JOB_QUEUED && j->is_over) { /* left before it began */
            j->state = JOB_ENDED;
            j->rung = true;
        }
        if (j->state == JOB_QUEUED && p->phase == PHASE_UP && n < p->about.parallel &&
            p->to_child.n - p->sent < PROCESS_OUT_BYTES) {
            process_tell(p, j->line);
            mem_free(j->line);
            j->line = NULL;
            j->state = JOB_SENT;
            j->sent_ns = j->heard_ns = now;
            n++;
        }
        if (process_job_is_out(j) && j->is_over && !j->cancel_sent && !j->is_call) {
            snprintf(line, sizeof(line), "{\"op\":\"cancel\",\"id\":%llu}", (unsigned long long)j->id);
            process_tell(p, line);
            j->cancel_sent = true;
            j->cancel_ns = now;
        }
    }
}

/* An idle program is asked whether it is there. Locked. */
void process_beat(struct process_backend *p, uint64_t now)
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
