/* backend/process/process_jobs.c - requests: their list, and what is handed to who asked. See process_inside.h. */
#include <stdio.h>
#include <string.h>
#include "backend/process/process_inside.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/net.h"

void process_job_unref(struct process_job *j) /* locked */
{
    if (--j->refs > 0) return;
    buf_deinit(&j->text);
    buf_deinit(&j->handed);
    mem_free(j->pieces);
    mem_free(j->line);
    json_decref(j->reply);
    mem_free(j);
}

void process_job_over(struct process_job *j, enum process_finish finish, rd_status st, const char *message)
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

struct process_job *process_job_find(struct process_backend *p, uint64_t id)
{
    for (struct process_job *j = p->jobs; j; j = j->next)
        if (j->id == id) return j;
    return NULL;
}

bool process_job_is_out(const struct process_job *j)
{
    return j->state == JOB_SENT || j->state == JOB_RUNNING;
}

/* Requests, no calls. */
uint32_t process_count_jobs(const struct process_backend *p, bool queued)
{
    uint32_t n = 0;

    for (const struct process_job *j = p->jobs; j; j = j->next)
        n += !j->is_call && (queued ? j->state == JOB_QUEUED : process_job_is_out(j));
    return n;
}

/* Calls wake and gone of whom something happened to, without the lock; takes out what has ended. */
void process_ring_jobs(struct process_backend *p)
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
        process_job_unref(j);
        cond_broadcast(&p->changed);
        mutex_unlock(&p->lock);
    }
}

/* ---- from outside ---- */

/* Locked. */
static rd_status may_submit(struct process_backend *p, bool is_call, struct rd_error *err)
{
    if (p->closing) return error_set(err, RD_E_CLOSED, "%s", rd_status_text(RD_E_CLOSED));
    if (p->n_failed_starts >= PROCESS_MOST_FAILED)
        return error_set(err, RD_E_DEVICE, "the backend's process %.120s; it is started again", p->said.why);
    if (is_call || process_count_jobs(p, true) < p->o.max_queue) return RD_OK;
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
    if (strlen(j->line) > PROCESS_OUT_BYTES / 4)
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
    const struct process_piece piece = j->pieces[j->first_piece++];

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
    if (!j->is_over) process_job_over(j, PROCESS_CANCELLED, RD_OK, "");
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
    process_job_unref(j);
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
    while (!j->is_over) cond_wait_ns(&p->changed, &p->lock, PROCESS_SECOND_NS);
    st = j->status;
    if (st == RD_OK)
        *reply = json_incref(j->reply);
    else
        error_set(err, st, "%s", j->message);
    process_job_unref(j);
    mutex_unlock(&p->lock);
    return st;
}
