/* server/http/offload.c - a queue, its workers, and the way back. */
#include "server/http/offload.h"
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/queue.h"
#include "server/http/http_conn.h"
#include "server/http/http_io.h"

#define N_WORKERS   2u
#define MAX_JOBS    256u
#define BIG_BYTES   (1u << 20) /* a body of so much leaves holes in the heap */
#define EXTRA_BYTES 256u

static char give_back_mark; /* an item of the queue that is no job */

struct offload {
    struct queue *jobs;
    atomic_bool giving_back; /* the mark is in the queue */
    struct thread workers[N_WORKERS];
};

enum outcome { NOTHING, REPLY, KEPT };

struct offload_job {
    struct http_task task;  /* once done */
    struct http_conn *conn; /* its io thread's; NULL: gone */
    struct http_conn copy;  /* owns head_bytes, body, ignored, memory */
    atomic_bool cancelled;  /* written by the io thread, relaxed: a worker that misses it works in vain */
    enum outcome outcome;
    int status; /* of REPLY, and what follows */
    const char *type;
    char extra[EXTRA_BYTES];
    struct buf body;
    void (*go_on)(struct http_conn *c, void *arg); /* of KEPT, and what follows */
    void (*drop)(void *arg);
    void *arg;
};

/* ---- on a worker ---- */

static void keep_reply(struct http_conn *copy, int status, const char *type, const char *extra, struct buf *body)
{
    struct offload_job *job = copy->job;

    job->outcome = REPLY;
    job->status = status;
    job->type = type;
    snprintf(job->extra, sizeof(job->extra), "%s", extra);
    if (body) {
        job->body = *body; /* it may be long: no copy */
        memset(body, 0, sizeof(*body));
    }
    client_charge_force(&copy->memory, CLIENT_TREES, 0);
    client_charge_force(&copy->memory, CLIENT_ANSWERS, job->body.n);
}

void offload_keep(struct http_conn *copy, void (*go_on)(struct http_conn *c, void *arg), void (*drop)(void *arg),
                  void *arg)
{
    struct offload_job *job = copy->job;

    job->outcome = KEPT;
    job->go_on = go_on;
    job->drop = drop;
    job->arg = arg;
}

static void work(struct offload_job *job)
{
    struct http_io *io = job->copy.io;
    bool is_big = job->copy.body.n > BIG_BYTES;

    if (!atomic_load_explicit(&job->cancelled, memory_order_relaxed)) http_serve(&job->copy);
    buf_deinit(&job->copy.body);
    if (is_big) offload_give_back(io->server->offload);
    http_io_wake(io, &job->task);
}

static void worker_main(void *arg)
{
    struct offload *o = arg;
    void *item;

    while ((item = queue_pop(o->jobs))) {
        if (item != &give_back_mark) {
            work(item);
            continue;
        }
        atomic_store(&o->giving_back, false);
        mem_give_back();
    }
}

void offload_give_back(struct offload *o)
{
    if (!o || atomic_exchange(&o->giving_back, true)) return;
    if (queue_push(o->jobs, &give_back_mark) != RD_OK) atomic_store(&o->giving_back, false);
}

/* ---- on the io thread ---- */

static void job_destroy(struct offload_job *job)
{
    if (job->outcome == KEPT) job->drop(job->arg);
    http_unuse(job->copy.n_users);
    mem_free(job->copy.head_bytes);
    buf_deinit(&job->copy.body);
    buf_deinit(&job->copy.ignored);
    buf_deinit(&job->body);
    client_charge_clear(&job->copy.memory);
    mem_free(job);
}

/* The job goes on without its connection. */
static void on_gone(void *arg)
{
    struct offload_job *job = arg;

    job->conn = NULL;
    atomic_store_explicit(&job->cancelled, true, memory_order_relaxed);
}

static void on_tick(void *arg, uint64_t now)
{
    (void)arg;
    (void)now;
}

static void on_stop(void *arg)
{
    struct offload_job *job = arg;
    struct http_conn *c = job->conn;
    struct api_error e;

    on_gone(job);
    c->owner = NULL;
    api_error_from_status(&e, RD_E_CLOSED, "The server is shutting down");
    http_reply_error(c, &e);
}

static void on_done(struct http_task *task);

static const struct conn_owner job_owner = {on_gone, NULL, on_tick, on_stop};

/* What the copy takes with it. c keeps its head, whose bytes live as long as the job. */
static void make_copy(struct offload_job *job, struct http_conn *c)
{
    struct http_conn *copy = &job->copy;

    copy->io = c->io;
    copy->state = CONN_BUSY;
    copy->target = c->target;
    copy->served = c->served;
    copy->n_users = c->n_users; /* on its own: the connection may end first */
    http_use(copy->n_users);
    copy->tenant = c->tenant;
    copy->is_admin = c->is_admin;
    copy->head = c->head;
    copy->head_bytes = c->head_bytes;
    copy->body = c->body;
    copy->request_ns = c->request_ns;
    memcpy(copy->request_id, c->request_id, sizeof(c->request_id));
    copy->job = job;
    copy->keep_reply = keep_reply;
    client_charge_init(&copy->memory, &c->io->server->memory, c->tenant);
    client_charge_move(&copy->memory, &c->memory, CLIENT_BODIES);
    c->head_bytes = NULL;
    memset(&c->body, 0, sizeof(c->body));
    job->task.run = on_done;
    job->conn = c;
    c->owner = &job_owner;
    c->owner_arg = job;
}

static void give_back(struct offload_job *job, struct http_conn *c)
{
    c->head_bytes = job->copy.head_bytes;
    job->copy.head_bytes = NULL;
    memcpy(c->request_id, job->copy.request_id, sizeof(c->request_id));
    memcpy(c->reason, job->copy.reason, sizeof(c->reason));
    buf_deinit(&c->ignored);
    c->ignored = job->copy.ignored;
    memset(&job->copy.ignored, 0, sizeof(job->copy.ignored));
    c->owner = NULL;
    c->owner_arg = NULL;
}

bool offload_if(struct http_conn *c, size_t n_bytes)
{
    struct offload_job *job;
    struct api_error e;

    if (c->job || n_bytes <= OFFLOAD_BYTES || !c->io->server->offload) return false;
    job = mem_zalloc(1, sizeof(*job));
    if (job) {
        make_copy(job, c);
        if (queue_push(c->io->server->offload->jobs, job) == RD_OK) return true;
        give_back(job, c);
        job_destroy(job);
        api_error_set(&e, 429, NULL, "too many big requests wait to be read; try again later");
        e.code = "queue_full";
    } else {
        api_error_set(&e, 503, NULL, "out of memory");
    }
    http_reply_error(c, &e);
    return true;
}

static void carry_out(struct offload_job *job, struct http_conn *c)
{
    struct api_error e;

    give_back(job, c);
    switch (job->outcome) {
    case REPLY:
        if (job->body.failed) break;
        client_charge_clear(&job->copy.memory);
        http_reply(c, job->status, job->type, job->extra, &job->body);
        return;
    case KEPT:
        job->outcome = NOTHING;
        client_charge_move(&c->memory, &job->copy.memory, CLIENT_TREES);
        client_charge_clear(&job->copy.memory);
        job->go_on(c, job->arg);
        return;
    case NOTHING:
        break;
    }
    api_error_set(&e, 503, NULL, "out of memory");
    http_reply_error(c, &e);
}

/* A job is done. */
static void on_done(struct http_task *task)
{
    struct offload_job *job = (struct offload_job *)task;

    if (job->conn) carry_out(job, job->conn);
    job_destroy(job);
}

/* ---- the whole ---- */

rd_status offload_create(struct offload **out)
{
    struct offload *o = mem_zalloc(1, sizeof(*o));
    rd_status st;

    if (!o) return RD_E_NOMEM;
    st = queue_create(MAX_JOBS, &o->jobs);
    for (uint32_t i = 0; st == RD_OK && i < N_WORKERS; i++)
        st = thread_start(&o->workers[i], "radish-work", worker_main, o);
    if (st == RD_OK) {
        *out = o;
        return RD_OK;
    }
    offload_stop(o);
    offload_destroy(o);
    return st;
}

void offload_stop(struct offload *o)
{
    if (!o) return;
    if (o->jobs) queue_close(o->jobs);
    for (uint32_t i = 0; i < N_WORKERS; i++) thread_join(&o->workers[i]);
}

void offload_destroy(struct offload *o)
{
    if (!o) return;
    queue_destroy(o->jobs);
    mem_free(o);
}
