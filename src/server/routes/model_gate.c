/* server/routes/model_gate.c - see model_gate.h. */
#include "server/routes/model_gate.h"
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/http/http_io.h"
#include "server/http/offload.h"
#include "server/params/params.h"

#define POLL_NS    2000000ull /* while running requests end */
#define TICK_NS    100000000ull
#define REST_NS    60000000000ull /* nothing is due: a signal wakes the keeper */
#define SECOND_NS  1000000000ull
#define NAME_BYTES 1600u

struct gate_model {
    const char *id; /* of o.ids, or info's */
    enum gate_state state;
    bool has_info;
    struct rd_info info; /* of its last load */
};

/* A request that waits for its model. */
struct parked {
    struct http_task task; /* first: it may go on */
    struct model_gate *gate;
    struct http_conn *conn;
    struct parked *prev, *next; /* gate->lock, as is the next */
    bool listed;
    uint32_t model; /* o.n_models: any will do */
    uint64_t since_ns;
    void (*serve)(struct http_conn *c);
    struct api_error error; /* http != 0: its model failed */
};

/* Every io thread runs one: then none of them is inside a handler that began before. */
struct probe {
    struct http_task task;
    struct model_gate *gate;
};

struct model_gate {
    struct model_gate_options o;
    struct server *server;
    struct probe *probes; /* [n_io] */
    struct mutex lock;    /* guards what follows, and server->engine while it changes */
    struct cond changed;
    struct gate_model *models; /* [o.n_models] */
    uint32_t current;          /* the loaded one, or the last that was */
    bool loaded, closing, swapping, stopping, reloading;
    struct parked *first, *last;
    uint32_t n_parked, n_working, n_probed; /* n_working: handlers on workers */
    uint32_t n_watching;
    atomic_uint_fast64_t n_loads; /* the keeper counts, any thread reads; relaxed */
};

const char *gate_state_name(enum gate_state state)
{
    static const char *const names[] = {"unloaded", "loaded", "loading", "failed"};

    return names[state];
}

rd_status model_gate_create(struct server *s, const struct model_gate_options *o, struct model_gate **out)
{
    struct model_gate *g = mem_zalloc(1, sizeof(*g));

    if (!g) return RD_E_NOMEM;
    g->models = mem_zalloc(o->n_models, sizeof(*g->models));
    g->probes = mem_zalloc(s->http.n_io, sizeof(*g->probes));
    mutex_init(&g->lock);
    cond_init(&g->changed);
    if (!g->models || !g->probes) {
        model_gate_destroy(g);
        return RD_E_NOMEM;
    }
    g->o = *o;
    g->server = s;
    for (uint32_t i = 0; i < o->n_models; i++) g->models[i].id = o->ids[i];
    *out = g;
    return RD_OK;
}

void model_gate_destroy(struct model_gate *g)
{
    if (!g) return;
    mutex_deinit(&g->lock);
    cond_deinit(&g->changed);
    mem_free(g->models);
    mem_free(g->probes);
    mem_free(g);
}

void model_gate_stop(struct model_gate *g)
{
    if (!g) return;
    mutex_lock(&g->lock);
    g->stopping = true;
    cond_broadcast(&g->changed);
    mutex_unlock(&g->lock);
}

rd_engine *model_gate_hold(struct model_gate *g, struct server *s)
{
    if (!g) return s->engine;
    mutex_lock(&g->lock);
    if (s->engine) return s->engine;
    mutex_unlock(&g->lock);
    return NULL;
}

void model_gate_release(struct model_gate *g)
{
    if (g) mutex_unlock(&g->lock);
}

uint64_t model_gate_loads(struct model_gate *g)
{
    return g ? atomic_load_explicit(&g->n_loads, memory_order_relaxed) : 0;
}

void model_gate_watch(struct model_gate *g, bool begins)
{
    if (!g) return;
    mutex_lock(&g->lock);
    g->n_watching += begins ? 1u : -1u;
    mutex_unlock(&g->lock);
}

void model_gate_list(struct model_gate *g,
                     void (*fn)(void *arg, const char *id, enum gate_state state, const struct rd_info *info),
                     void *arg)
{
    mutex_lock(&g->lock);
    for (uint32_t i = 0; i < g->o.n_models; i++)
        fn(arg, g->models[i].id, g->models[i].state, g->models[i].has_info ? &g->models[i].info : NULL);
    mutex_unlock(&g->lock);
}

/* ---- parked requests: lock held ---- */

static void list_parked(struct model_gate *g, struct parked *p)
{
    p->prev = g->last;
    if (g->last)
        g->last->next = p;
    else
        g->first = p;
    g->last = p;
    p->listed = true;
    g->n_parked++;
}

static void unlist_parked(struct model_gate *g, struct parked *p)
{
    if (!p->listed) return;
    if (p->prev)
        p->prev->next = p->next;
    else
        g->first = p->next;
    if (p->next)
        p->next->prev = p->prev;
    else
        g->last = p->prev;
    p->prev = p->next = NULL;
    p->listed = false;
    g->n_parked--;
}

/* Those of a model (o.n_models: that take any) go on, or fail. From here on they count as running. */
static void release_parked(struct model_gate *g, uint32_t model, const struct api_error *e)
{
    for (struct parked *p = g->first, *next; p; p = next) {
        next = p->next;
        if (p->model != model) continue;
        unlist_parked(g, p);
        if (e) p->error = *e;
        http_io_wake(p->conn->io, &p->task); /* under the lock: its client may leave */
    }
}

/* ---- on io threads ---- */

static void on_gone(void *arg)
{
    struct parked *p = arg;
    struct model_gate *g = p->gate;

    mutex_lock(&g->lock);
    unlist_parked(g, p);
    mutex_unlock(&g->lock);
    http_io_forget(p->conn->io, &p->task);
    mem_free(p);
}

/* Ends the wait, with an error. */
static void refuse_parked(struct parked *p, int http, const char *what)
{
    struct http_conn *c = p->conn;
    struct api_error e;

    if (p->model < p->gate->o.n_models)
        api_error_set(&e, http, "model", "The model `%.500s` %s", p->gate->models[p->model].id, what);
    else
        api_error_set(&e, http, NULL, "A model %s", what);
    on_gone(p);
    c->owner = NULL;
    c->owner_arg = NULL;
    http_reply_error(c, &e);
}

static void on_tick(void *arg, uint64_t now_ns)
{
    struct parked *p = arg;
    bool waits;

    mutex_lock(&p->gate->lock);
    waits = p->listed;
    mutex_unlock(&p->gate->lock);
    if (waits && now_ns > p->since_ns && now_ns - p->since_ns > p->gate->o.wait_s * SECOND_NS)
        refuse_parked(p, 503, "is not loaded yet; try again later");
}

static void on_stop(void *arg)
{
    refuse_parked(arg, 503, "is not loaded, and the server is shutting down");
}

static const struct conn_owner parked_owner = {on_gone, NULL, on_tick, on_stop};

static void go_on(struct http_task *task)
{
    struct parked *p = (struct parked *)task;
    struct http_conn *c = p->conn;
    void (*serve)(struct http_conn * c) = p->serve;
    struct api_error e = p->error;

    c->owner = NULL;
    c->owner_arg = NULL;
    mem_free(p);
    if (e.http)
        http_reply_error(c, &e);
    else
        serve(c);
}

/* The index of a name; n_models: there is none. */
static uint32_t find_model(const struct model_gate *g, const char *name)
{
    uint32_t i = 0;

    for (; i < g->o.n_models; i++) {
        size_t n = strlen(g->models[i].id);

        if (strncmp(name, g->models[i].id, n) == 0 && (!name[n] || strcmp(name + n, ":latest") == 0)) break;
    }
    return i;
}

static void refuse_name(const struct model_gate *g, struct http_conn *c, const char *name)
{
    struct buf names = {.limit = 0};
    struct api_error e;
    char quoted[160];

    for (uint32_t i = 0; i < g->o.n_models; i++) buf_printf(&names, "%s`%s`", i ? ", " : "", g->models[i].id);
    error_quote(quoted, sizeof(quoted), name, strlen(name));
    api_error_set(&e, 404, "model", "The model `%s` does not exist; this server has %.400s", quoted,
                  names.data ? names.data : "others");
    e.code = "model_not_found";
    buf_deinit(&names);
    http_reply_error(c, &e);
}

static void park(struct model_gate *g, struct parked *p, struct http_conn *c, uint32_t model,
                 void (*serve)(struct http_conn *c))
{
    *p = (struct parked){.task = {.run = go_on},
                         .gate = g,
                         .conn = c,
                         .model = model,
                         .since_ns = clock_now_ns(clock_system()),
                         .serve = serve};
    c->owner = &parked_owner;
    c->owner_arg = p;
    list_parked(g, p);
    cond_signal(&g->changed);
}

/* A handler on a worker: the copy of a request that has passed. Its client may have left, and the model with it. */
static void pass_worker(struct model_gate *g, struct http_conn *c, void (*serve)(struct http_conn *c))
{
    bool goes_on;

    mutex_lock(&g->lock);
    goes_on = !g->swapping && g->loaded;
    g->n_working += goes_on;
    mutex_unlock(&g->lock);
    if (!goes_on) return;
    serve(c);
    mutex_lock(&g->lock);
    g->n_working--;
    mutex_unlock(&g->lock);
}

void model_gate_pass(struct model_gate *g, struct http_conn *c, void (*serve)(struct http_conn *c))
{
    char name[NAME_BYTES];
    bool chooses = g->o.n_models > 1 || g->o.idle_unload_s; /* else the handler says what it thinks of a name */
    bool has_name = chooses && c->body.n && model_in_body(c->body.data, c->body.n, name, sizeof(name)), passes, rests;
    uint32_t model = has_name ? find_model(g, name) : 0;
    struct parked *p;
    struct api_error e;

    if (c->job) {
        pass_worker(g, c, serve);
        return;
    }
    if (has_name && model == g->o.n_models) {
        refuse_name(g, c, name);
        return;
    }
    p = mem_alloc(1, sizeof(*p));
    mutex_lock(&g->lock);
    if (!has_name) model = g->o.n_models;
    passes = g->loaded && !g->closing && (model == g->current || !has_name);
    rests = !g->loaded && !g->closing && !g->first && c->target.is_quick; /* a look is no reason to load */
    if (!passes && !rests && p) {
        park(g, p, c, model, serve);
        p = NULL;
    }
    mutex_unlock(&g->lock);
    if (!passes && !rests && !p) return;
    mem_free(p);
    if (passes) {
        serve(c);
        return;
    }
    api_error_set(&e, 503, NULL, rests ? "No model is loaded; the next request for one loads it" : "out of memory");
    http_reply_error(c, &e);
}

/* ---- the keeper ---- */

static void on_probe(struct http_task *task)
{
    struct model_gate *g = ((struct probe *)task)->gate;

    mutex_lock(&g->lock);
    g->n_probed++;
    cond_broadcast(&g->changed);
    mutex_unlock(&g->lock);
}

/* Lock held: no request runs. What is counted as busy beyond those that are parked may use the engine. */
static bool is_quiet(const struct model_gate *g)
{
    return atomic_load_explicit(&g->server->http.n_busy, memory_order_acquire) <= g->n_parked + g->n_watching &&
           !g->n_working;
}

/* Lock held: the gate is closed and no request runs; neither does what handlers do after their answers. false: not yet. */
static bool drain(struct model_gate *g)
{
    if (!is_quiet(g)) return false;
    g->n_probed = 0;
    for (uint32_t i = 0; i < g->server->http.n_io; i++) {
        g->probes[i] = (struct probe){.task = {.run = on_probe}, .gate = g};
        http_io_wake(&g->server->http.io[i], &g->probes[i].task);
    }
    while (g->n_probed < g->server->http.n_io && !g->stopping) (void)cond_wait_ns(&g->changed, &g->lock, TICK_NS);
    return !g->stopping && is_quiet(g);
}

/* Lock held, released meanwhile: closes what is loaded. */
static void unload(struct model_gate *g)
{
    rd_engine *engine = g->server->engine;

    if (!g->loaded) return;
    g->server->engine = NULL;
    g->loaded = false;
    g->swapping = true;
    mutex_unlock(&g->lock);
    rd_close(engine);
    mem_give_back();
    mutex_lock(&g->lock);
    g->swapping = false;
    g->models[g->current].state = GATE_UNLOADED;
}

/* Lock held, released meanwhile. */
static rd_status load(struct model_gate *g, uint32_t model, struct rd_error *err)
{
    struct gate_model *m = &g->models[model];
    uint64_t begun_ns = clock_now_ns(clock_system());
    rd_engine *engine = NULL;
    rd_status st;

    m->state = GATE_LOADING;
    g->swapping = true;
    mutex_unlock(&g->lock);
    st = g->o.load(g->o.user, model, &engine, err);
    mutex_lock(&g->lock);
    g->swapping = false;
    if (st != RD_OK) {
        m->state = GATE_FAILED;
        return st;
    }
    rd_get_info(engine, &m->info);
    g->server->info = m->info;
    g->server->engine = engine;
    m->has_info = true;
    m->state = GATE_LOADED;
    g->current = model;
    g->loaded = true;
    atomic_fetch_add_explicit(&g->n_loads, 1, memory_order_relaxed);
    log_info("%s is loaded, in %.1f s", m->id, (double)(clock_now_ns(clock_system()) - begun_ns) / 1e9);
    return RD_OK;
}

/* Lock held: the requests for a model fail, with what the log says in full. */
static void fail(struct model_gate *g, uint32_t model, rd_status st, const struct rd_error *err)
{
    struct api_error e;

    log_error("%s cannot be loaded: %s", g->models[model].id, err->text[0] ? err->text : rd_status_text(st));
    g->models[model].state = GATE_FAILED;
    api_error_set(&e, 503, "model", "The model `%.500s` cannot be loaded: %s", g->models[model].id, rd_status_text(st));
    release_parked(g, model, &e);
    if (!g->loaded) release_parked(g, g->o.n_models, &e);
}

/* Lock held: whoever waits for what is loaded goes on. */
static void open_gate(struct model_gate *g)
{
    g->closing = false;
    if (!g->loaded) return;
    release_parked(g, g->current, NULL);
    release_parked(g, g->o.n_models, NULL);
}

/* Lock held, released meanwhile; the gate is closed. */
static void swap(struct model_gate *g, uint32_t wanted)
{
    struct rd_error err = {RD_OK, ""};
    uint32_t old = g->current;
    bool had = g->loaded;
    rd_status st;

    unload(g);
    st = load(g, wanted, &err);
    if (st == RD_OK) return;
    fail(g, wanted, st, &err);
    err.text[0] = 0;
    if (!had || old == wanted) return;
    st = load(g, old, &err); /* as it was */
    if (st != RD_OK) fail(g, old, st, &err);
}

/* Lock held, released meanwhile: a round for the first that waits. */
static void serve_first(struct model_gate *g)
{
    struct rd_error err = {RD_OK, ""};
    struct parked *p = g->first;
    uint32_t wanted = p->model < g->o.n_models ? p->model : g->current;
    rd_status st;

    if (g->loaded && wanted == g->current) {
        open_gate(g);
        return;
    }
    if (!g->closing) {
        mutex_unlock(&g->lock);
        st = g->o.check(g->o.user, wanted, &err);
        mutex_lock(&g->lock);
        if (st != RD_OK) {
            fail(g, wanted, st, &err);
            return;
        }
        g->closing = true;
    }
    if (!drain(g) || g->stopping) return;
    if (g->first && (g->first->model == wanted || !g->loaded)) swap(g, wanted); /* else its clients have left */
    open_gate(g);
}

/* Lock held, released meanwhile. *used_ns: when a request was last seen. */
static void rest(struct model_gate *g, uint64_t *used_ns)
{
    uint64_t now = clock_now_ns(clock_system());

    g->closing = false;
    if (!is_quiet(g) || !g->loaded) *used_ns = now;
    if (!g->o.idle_unload_s || now - *used_ns < g->o.idle_unload_s * SECOND_NS) return;
    g->closing = true; /* whoever comes now is parked, and loads it again */
    if (drain(g)) {
        log_info("%s is unloaded: not used for %u s", g->models[g->current].id, g->o.idle_unload_s);
        unload(g);
    }
    g->closing = false;
}

/* Lock held, released meanwhile: the same model again, by the settings that hold now. */
static void reload(struct model_gate *g)
{
    g->closing = g->loaded;
    if (g->loaded && !drain(g)) return;
    if (g->loaded) swap(g, g->current);
    g->reloading = false;
    open_gate(g);
}

void model_gate_open(struct model_gate *g)
{
    mutex_lock(&g->lock);
    g->models[0].info = g->server->info;
    g->models[0].has_info = g->loaded = true;
    g->models[0].state = GATE_LOADED;
    if (!*g->models[0].id) g->models[0].id = g->models[0].info.model_id; /* the only one names itself */
    mutex_unlock(&g->lock);
}

void model_gate_reload(struct model_gate *g)
{
    mutex_lock(&g->lock);
    g->reloading |= g->loaded;
    cond_signal(&g->changed);
    mutex_unlock(&g->lock);
}

bool model_gate_is_reloading(struct model_gate *g)
{
    bool is;

    mutex_lock(&g->lock);
    is = g->reloading;
    mutex_unlock(&g->lock);
    return is;
}

bool model_gate_is_swapping(struct model_gate *g)
{
    bool is;

    if (!g) return false;
    mutex_lock(&g->lock);
    is = g->swapping;
    mutex_unlock(&g->lock);
    return is;
}

void model_gate_run(struct model_gate *g)
{
    uint64_t used_ns = clock_now_ns(clock_system());

    mutex_lock(&g->lock);
    while (!g->stopping) {
        if (g->reloading) {
            reload(g);
            used_ns = clock_now_ns(clock_system());
        } else if (g->first) {
            serve_first(g);
            used_ns = clock_now_ns(clock_system());
        } else {
            rest(g, &used_ns);
        }
        if (!g->stopping && ((!g->first && !g->reloading) || g->closing))
            (void)cond_wait_ns(&g->changed, &g->lock, g->closing ? POLL_NS : g->o.idle_unload_s ? TICK_NS : REST_NS);
    }
    mutex_unlock(&g->lock);
}
