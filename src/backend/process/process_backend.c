/* backend/process/process_backend.c - opens and closes, and says what the program is like. Its parts: process_inside.h. */
#include "backend/process/process_backend.h"
#include <string.h>
#include <unistd.h>
#include "backend/process/process_inside.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/net.h"

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
        cond_wait_ns(&p->changed, &p->lock, PROCESS_SECOND_NS / 10);
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
    p->err = (struct line_reader){PROCESS_LOG_BYTES * 16, 0, 0, {0}, 0, 0, 0, 0};
    p->child = (struct child_process){.end = -1, .in = -1, .out = -1, .err = -1, .guard = OS_GUARD_NONE};
    mutex_init(&p->lock);
    cond_init(&p->changed);
    p->command = mem_strdup(o->command);
    p->model = mem_strdup(o->model);
    st = p->command && p->model ? net_wake_open(&p->wake_fd) : RD_E_NOMEM;
    if (st == RD_OK) st = thread_start(&p->thread, "process", process_live, p);
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
    return process_text_of(p->loaded, key);
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
    out->n_queued = process_count_jobs(p, true);
    out->n_running = process_count_jobs(p, false);
    mutex_unlock(&p->lock);
}
