/* cli/server_view.c - see server_view.h. */
#include "cli/server_view.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/os_process.h"
#include "cli/http_client.h"

enum { PATIENCE_MS = 2000 };

const char *server_state_name(enum server_state state)
{
    static const char *const names[] = {"ready", "loading", "draining", "unhealthy", "silent"};

    return names[state];
}

/* Where a client on this machine reaches what listens on every address. */
static void local_address(const char *address, char *out, size_t cap)
{
    static const char *const every[][2] = {{"http://0.0.0.0:", "http://127.0.0.1:"}, {"http://[::]:", "http://[::1]:"}};

    snprintf(out, cap, "%s", address);
    for (size_t i = 0; i < 2; i++)
        if (strncmp(address, every[i][0], strlen(every[i][0])) == 0)
            snprintf(out, cap, "%s%s", every[i][1], address + strlen(every[i][0]));
}

/* *status 0: no answer. *v is the caller's, NULL: no JSON. */
static void ask(const struct run_entry *e, const char *key, const char *path, int *status, json_t **v)
{
    char url[RUN_ADDRESS_BYTES];
    struct buf answer = {.limit = LIMIT_BODY_BYTES};
    rd_status st;

    *status = 0;
    *v = NULL;
    local_address(e->address, url, sizeof(url));
    st = http_ask(url, PATIENCE_MS, "GET", path, key, NULL, status, &answer, NULL);
    if (st == RD_OK && answer.n) *v = json_loadb(answer.data, answer.n, 0, NULL);
    if (st != RD_OK) *status = 0;
    buf_deinit(&answer);
}

static uint64_t resident_of(const struct run_entry *e)
{
    return e->is_here ? os_process_resident(e->pid) : 0;
}

static enum server_state state_of(int status, const json_t *health)
{
    const char *said = json_string_value(json_object_get(health, "status"));

    if (status == 0) return SERVER_SILENT;
    if (status == 200) return SERVER_READY;
    for (enum server_state state = SERVER_LOADING; said && state < SERVER_SILENT; state++)
        if (strcmp(said, server_state_name(state)) == 0) return state;
    return SERVER_UNHEALTHY;
}

static uint64_t count(const json_t *requests, const char *name)
{
    json_int_t n = json_integer_value(json_object_get(requests, name));

    return n > 0 ? (uint64_t)n : 0;
}

static void read_requests(const struct run_entry *e, const char *key, struct server_view *out)
{
    static const char *const running[] = {"prefill", "decode"}, *const waiting[] = {"preparing", "queued", "loading",
                                                                                    "waiting", "paused"};
    int status;
    json_t *v, *requests;

    ask(e, key, "/stats", &status, &v);
    requests = json_object_get(v, "requests");
    out->is_locked = status == 401 || status == 403;
    out->has_requests = json_is_object(requests);
    for (size_t i = 0; i < sizeof(running) / sizeof(*running); i++) out->n_running += count(requests, running[i]);
    for (size_t i = 0; i < sizeof(waiting) / sizeof(*waiting); i++) out->n_waiting += count(requests, waiting[i]);
    json_decref(v);
}

/* A server with one model says nothing of its state: it is loaded. */
static bool is_loaded(const json_t *model)
{
    const json_t *state = json_object_get(json_object_get(model, "status"), "value");

    return !state || strcmp(json_string_value(state) ? json_string_value(state) : "", "loaded") == 0;
}

static void read_models(const struct run_entry *e, const char *key, struct server_view *out)
{
    int status;
    json_t *v, *model;
    size_t i, n = 0;

    ask(e, key, "/v1/models", &status, &v);
    json_array_foreach(json_object_get(v, "data"), i, model)
    {
        const char *id = json_string_value(json_object_get(model, "id"));

        if (!id || !is_loaded(model) || n + strlen(id) + 2 > sizeof(out->loaded)) continue;
        n += (size_t)snprintf(out->loaded + n, sizeof(out->loaded) - n, "%s%s", n ? "\n" : "", id);
    }
    json_decref(v);
}

void server_view_read(const struct run_entry *e, const char *key, struct server_view *out)
{
    int status;
    json_t *health;

    *out = (struct server_view){.state = SERVER_SILENT, .rss_bytes = resident_of(e)};
    ask(e, NULL, "/health", &status, &health);
    out->state = state_of(status, health);
    json_decref(health);
    if (out->state == SERVER_SILENT) return;
    read_requests(e, key, out);
    read_models(e, key, out);
}
