/* server/routes/model_gate.c - see model_gate.h. */
#include "server/routes/model_gate.h"
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/dialects/dialect.h"
#include "server/dialects/generation.h"
#include "server/http/http_io.h"
#include "server/http/offload.h"
#include "server/params/params.h"
#include "server/routes/routes.h"

#define POLL_NS    2000000ull  /* while running requests end */
#define LOOK_NS    10000000ull /* while a model's stay ends */
#define TICK_NS    100000000ull
#define REST_NS    60000000000ull /* nothing is due: a signal wakes the keeper */
#define SECOND_NS  1000000000ull
#define STAY_LOADS 4u /* a stay: so many times what loading took */
#define STAY_PARTS 8u /* unused for this part of it: it may be closed before */
#define NAME_BYTES 1600u
#define NONE       UINT32_MAX
#define ANY        (UINT32_MAX - 1) /* of models: whichever is there */

struct gate_model {
    const char *id; /* o.models' name, or info's */
    uint32_t number;
    enum gate_state state;
    bool has_info, closing; /* closing: what comes for it is parked */
    bool broken;            /* its file failed while it was loaded */
    bool is_stale;          /* to be loaded again: the settings have changed */
    bool was_alone;         /* beside another there was no memory for it */
    struct served_model served;
    atomic_uint n_users; /* requests that were given it: http_conn.n_users */
    uint32_t n_waiting;
    uint64_t loaded_ns, used_ns; /* when it was loaded; when a request was last seen to use it */
    uint64_t cost_ns, bytes;     /* of its last load */
};

/* A request that waits for its model. */
struct parked {
    struct http_task task; /* first: it may go on */
    struct model_gate *gate;
    struct http_conn *conn;
    struct parked *prev, *next; /* gate->lock, as is the next */
    bool listed;
    bool streams;             /* comments may tell how far it is */
    uint32_t model;           /* or ANY */
    struct gate_model *given; /* it goes on with this one, and counts among its users */
    uint64_t since_ns, told_ns;
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
    struct mutex lock;    /* guards what follows, and what models serve while it changes */
    struct cond changed;
    struct gate_model *models[LIMIT_SERVED_MODELS]; /* [n_models]: they stay where they are */
    atomic_uint n_models; /* whoever holds the lock counts on (release), any thread reads (acquire) */
    uint32_t current;     /* the one used last; of those loaded, if any is */
    uint32_t n_loaded;
    bool swapping, stopping;
    struct parked *first, *last;
    uint32_t n_any; /* parked that take any model */
    uint32_t n_probed;
    const char *last_tenant; /* whose model was loaded last */
    uint32_t round, closed;  /* the model that was looked at, and the one that was closed for it; or NONE */
    uint32_t loading;        /* or NONE */
    bool is_restoring;       /* it is loaded though nobody waits for it */
    atomic_uint percent;     /* of the load; the loading thread writes, any reads; relaxed */
    uint64_t looked_ns;      /* at the devices */
    atomic_uint_fast64_t
        n_loads; /* another engine is current: the keeper and passes count, any thread reads; relaxed */
};

const char *gate_state_name(enum gate_state state)
{
    static const char *const names[] = {"unloaded", "loaded", "loading", "failed"};

    return names[state];
}

static uint32_t count(const struct model_gate *g)
{
    return atomic_load_explicit(&g->n_models, memory_order_acquire);
}

/* Lock held. The models that there are since the last look; what there is no memory for is left to the next. */
static void take_new(struct model_gate *g)
{
    uint32_t n = g->o.models.count(g->o.models.user);

    for (uint32_t i = count(g); i < n && i < LIMIT_SERVED_MODELS; i++) {
        struct gate_model *m = mem_zalloc(1, sizeof(*m));

        if (!m) return;
        m->id = g->o.models.name(g->o.models.user, i);
        m->number = i;
        g->models[i] = m;
        atomic_store_explicit(&g->n_models, i + 1, memory_order_release);
    }
}

/* The same without the lock: most looks find nothing new. */
static void look_for_new(struct model_gate *g)
{
    if (count(g) == g->o.models.count(g->o.models.user)) return;
    mutex_lock(&g->lock);
    take_new(g);
    mutex_unlock(&g->lock);
}

rd_status model_gate_create(struct server *s, const struct model_gate_options *o, struct model_gate **out)
{
    struct model_gate *g = mem_zalloc(1, sizeof(*g));

    if (!g) return RD_E_NOMEM;
    g->probes = mem_zalloc(s->http.n_io, sizeof(*g->probes));
    mutex_init(&g->lock);
    cond_init(&g->changed);
    g->o = *o;
    g->server = s;
    g->round = g->closed = g->loading = NONE;
    mutex_lock(&g->lock);
    take_new(g);
    mutex_unlock(&g->lock);
    if (!g->probes || count(g) < o->models.count(o->models.user)) {
        model_gate_destroy(g);
        return RD_E_NOMEM;
    }
    *out = g;
    return RD_OK;
}

void model_gate_destroy(struct model_gate *g)
{
    if (!g) return;
    for (uint32_t i = 0; i < count(g); i++) {
        rd_close(g->models[i]->served.engine);
        mem_free(g->models[i]);
    }
    mutex_deinit(&g->lock);
    cond_deinit(&g->changed);
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
    if (!g) return s->only.engine;
    mutex_lock(&g->lock);
    if (g->n_loaded > 0) return g->models[g->current]->served.engine;
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

void model_gate_list(struct model_gate *g,
                     void (*fn)(void *arg, const char *id, enum gate_state state, const struct served_model *m),
                     void *arg)
{
    mutex_lock(&g->lock);
    take_new(g);
    for (uint32_t i = 0; i < count(g); i++) {
        struct served_model m = g->models[i]->served;

        if (g->models[i]->closing) m.engine = NULL;
        fn(arg, g->models[i]->id, g->models[i]->state, g->models[i]->has_info ? &m : NULL);
    }
    mutex_unlock(&g->lock);
}

/* ---- lock held ---- */

/* The one that looks are at. */
static void make_current(struct model_gate *g, uint32_t model)
{
    if (g->current != model) atomic_fetch_add_explicit(&g->n_loads, 1, memory_order_relaxed);
    g->current = model;
}

static bool is_open(const struct gate_model *m)
{
    return m->served.engine && !m->closing;
}

/* Which one a request for `model` can have now; NULL: it waits. */
static struct gate_model *open_one(struct model_gate *g, uint32_t model)
{
    if (model != ANY) return is_open(g->models[model]) ? g->models[model] : NULL;
    if (is_open(g->models[g->current])) return g->models[g->current];
    for (uint32_t i = 0; i < count(g); i++)
        if (is_open(g->models[i])) return g->models[i];
    return NULL;
}

static void give(struct model_gate *g, struct gate_model *m, uint64_t now)
{
    http_use(&m->n_users);
    m->used_ns = now;
    make_current(g, m->number);
}

static void count_waiting(struct model_gate *g, const struct parked *p, uint32_t n)
{
    if (p->model != ANY)
        g->models[p->model]->n_waiting += n;
    else
        g->n_any += n;
}

static void list_parked(struct model_gate *g, struct parked *p)
{
    p->prev = g->last;
    if (g->last)
        g->last->next = p;
    else
        g->first = p;
    g->last = p;
    p->listed = true;
    count_waiting(g, p, 1);
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
    count_waiting(g, p, -1u);
}

/* Those of a model (ANY: that take any) fail. */
static void fail_parked(struct model_gate *g, uint32_t model, const struct api_error *e)
{
    for (struct parked *p = g->first, *next; p; p = next) {
        next = p->next;
        if (p->model != model) continue;
        unlist_parked(g, p);
        p->error = *e;
        http_io_wake(p->conn->io, &p->task); /* under the lock: its client may leave */
    }
}

/* Those whose model is there go on. */
static void release_ready(struct model_gate *g, uint64_t now)
{
    for (struct parked *p = g->first, *next; p; p = next) {
        struct gate_model *m = open_one(g, p->model);

        next = p->next;
        if (!m) continue;
        unlist_parked(g, p);
        give(g, m, now);
        p->given = m;
        http_io_wake(p->conn->io, &p->task);
    }
}

/* ---- on io threads ---- */

static void on_gone(void *arg)
{
    struct parked *p = arg;
    struct model_gate *g = p->gate;

    mutex_lock(&g->lock);
    unlist_parked(g, p);
    if (p->given) http_unuse(&p->given->n_users);
    mutex_unlock(&g->lock);
    http_io_forget(p->conn->io, &p->task);
    mem_free(p);
}

/* Ends the wait, with an error. */
static void refuse_parked(struct parked *p, int http, const char *what)
{
    struct http_conn *c = p->conn;
    struct api_error e;

    if (p->model != ANY)
        api_error_set(&e, http, "model", "The model `%.500s` %s", p->gate->models[p->model]->id, what);
    else
        api_error_set(&e, http, NULL, "A model %s", what);
    on_gone(p);
    c->owner = NULL;
    c->owner_arg = NULL;
    http_reply_error(c, &e);
}

/* A comment in its stream: proxies and people see that something goes on. */
static void tell(struct parked *p, bool is_loading)
{
    unsigned percent = atomic_load_explicit(&p->gate->percent, memory_order_relaxed);
    char line[80];
    int n = is_loading ? snprintf(line, sizeof(line), ": loading the model, %u %%\n\n", percent)
                       : snprintf(line, sizeof(line), ": waiting for the model, another one is in use\n\n");

    if (!p->conn->early) http_stream_start_early(p->conn, "text/event-stream", CACHE_HEADER);
    if (http_output_bytes(p->conn) == 0) http_stream_write(p->conn, line, (size_t)n);
}

static void on_tick(void *arg, uint64_t now_ns)
{
    struct parked *p = arg;
    struct model_gate *g = p->gate;
    bool waits, is_loading;

    mutex_lock(&g->lock);
    waits = p->listed;
    is_loading = g->loading != NONE && (p->model == g->loading || p->model == ANY);
    mutex_unlock(&g->lock);
    if (!waits || now_ns < p->since_ns) return;
    if (now_ns - p->since_ns > g->o.wait_s * SECOND_NS) {
        refuse_parked(p, 503, "is not loaded yet; try again later");
        return;
    }
    if (!p->streams || !g->o.tell_s || now_ns < p->told_ns + u64_min(g->o.tell_s, 1) * SECOND_NS) return;
    p->told_ns = now_ns;
    tell(p, is_loading);
}

static void on_stop(void *arg)
{
    refuse_parked(arg, 503, "is not loaded, and the server is shutting down");
}

static const struct conn_owner parked_owner = {on_gone, NULL, on_tick, on_stop};

static void answered_by(struct http_conn *c, struct gate_model *m)
{
    c->served = &m->served;
    c->n_users = &m->n_users;
}

static void go_on(struct http_task *task)
{
    struct parked *p = (struct parked *)task;
    struct http_conn *c = p->conn;
    void (*serve)(struct http_conn * c) = p->serve;
    struct api_error e = p->error;

    c->owner = NULL;
    c->owner_arg = NULL;
    if (p->given) answered_by(c, p->given);
    mem_free(p);
    if (e.http)
        http_reply_error(c, &e);
    else
        serve(c);
}

/* The index of a name; ANY: there is none. Of names that begin alike the longest: org/x and org/x:Q8_0 are two. */
static uint32_t find_model(const struct model_gate *g, const char *name)
{
    uint32_t best = ANY;
    size_t n_best = 0;

    for (uint32_t i = 0; i < count(g); i++) {
        size_t n = strlen(g->models[i]->id);

        if (strncmp(name, g->models[i]->id, n) != 0 || (name[n] && name[n] != ':')) continue; /* an adapter's */
        if (best != ANY && n <= n_best) continue;
        best = i;
        n_best = n;
    }
    return best;
}

/* Lock held. */
static bool has_adapter(const struct gate_model *m, const char *name)
{
    uint32_t n;
    struct rd_adapter *list = served_adapters(m->served.engine, &n);
    bool has = false;

    for (uint32_t i = 0; i < n && list && !has; i++) has = strcmp(list[i].name, name) == 0;
    mem_free(list);
    return has;
}

/* A name that is no model's may be an adapter's: of one that is loaded; or of the first, whose handler knows those that it is
 * loaded with. ANY: it is not. */
static uint32_t model_of_adapter(struct model_gate *g, const char *name)
{
    uint32_t model = ANY;

    mutex_lock(&g->lock);
    for (uint32_t i = 0; i < count(g) && model == ANY; i++)
        if (is_open(g->models[i]) && (count(g) == 1 || has_adapter(g->models[i], name))) model = i;
    if (model == ANY && g->o.has_adapters && !is_open(g->models[0])) model = 0;
    mutex_unlock(&g->lock);
    return model;
}

static void refuse_name(const struct model_gate *g, struct http_conn *c, const char *name)
{
    struct buf names = {.limit = 0};
    struct api_error e;
    char quoted[160];

    for (uint32_t i = 0; i < count(g) && names.n < NAME_BYTES; i++)
        buf_printf(&names, "%s`%s`", i ? ", " : "", g->models[i]->id);
    error_quote(quoted, sizeof(quoted), name, strlen(name));
    api_error_set(&e, 404, "model", "The model `%s` does not exist; this server has %.400s", quoted,
                  names.data ? names.data : "others");
    e.code = "model_not_found";
    buf_deinit(&names);
    http_reply_error(c, &e);
}

/* Its client has asked for a stream of events, in which a comment is nothing. */
static bool can_be_told(const struct http_conn *c)
{
    const struct route *r = route_of(c);
    const unsigned streams = FOR_CHAT | FOR_TEXT | FOR_RESPONSES | FOR_MESSAGES;

    return (r->params & streams) && !r->max_body && r->dialect != &dialect_ollama &&
           stream_in_body(c->body.data, c->body.n);
}

static void park(struct model_gate *g, struct parked *p, struct http_conn *c, uint32_t model,
                 void (*serve)(struct http_conn *c))
{
    uint64_t now = clock_now_ns(clock_system());

    *p = (struct parked){.task = {.run = go_on},
                         .gate = g,
                         .conn = c,
                         .model = model,
                         .streams = can_be_told(c),
                         .since_ns = now,
                         .told_ns = now,
                         .serve = serve};
    c->owner = &parked_owner;
    c->owner_arg = p;
    list_parked(g, p);
    cond_signal(&g->changed);
}

/* A look is no reason to load: there is nothing to look at, and nobody waits for what could be. */
static bool rests(const struct model_gate *g, const struct http_conn *c, uint32_t model)
{
    const struct gate_model *m = model != ANY ? g->models[model] : NULL;

    if (!c->target.is_quick || g->loading != NONE) return false;
    return m ? !m->served.engine && !m->n_waiting : g->n_loaded == 0 && !g->first;
}

/* The name of the model that a request asks for; false: any will do, or its handler says what it thinks of the name. */
static bool name_in(struct model_gate *g, const struct http_conn *c, char name[NAME_BYTES])
{
    look_for_new(g);
    if (count(g) == 1 && !g->o.idle_unload_s) return false;
    if (c->body.n) return model_in_body(c->body.data, c->body.n, name, NAME_BYTES);
    return model_in_query(c->head.query, name, NAME_BYTES);
}

void model_gate_pass(struct model_gate *g, struct http_conn *c, void (*serve)(struct http_conn *c))
{
    char name[NAME_BYTES];
    bool has_name = !c->job && name_in(g, c, name), is_resting;
    uint32_t model = has_name ? find_model(g, name) : ANY;
    struct gate_model *m;
    struct parked *p;
    struct api_error e;

    if (c->job) { /* the copy of a request that has passed */
        serve(c);
        return;
    }
    if (has_name && model == ANY) model = model_of_adapter(g, name);
    if (has_name && model == ANY) {
        refuse_name(g, c, name);
        return;
    }
    p = mem_alloc(1, sizeof(*p));
    mutex_lock(&g->lock);
    m = open_one(g, model);
    is_resting = !m && rests(g, c, model);
    if (m && !c->target.is_quick) {
        give(g, m, clock_now_ns(clock_system()));
    } else if (m) {
        http_use(&m->n_users); /* looked at, not used */
    } else if (!is_resting && p) {
        park(g, p, c, model, serve);
        p = NULL;
    }
    mutex_unlock(&g->lock);
    if (!m && !is_resting && !p) return;
    mem_free(p);
    if (m) {
        answered_by(c, m);
        serve(c);
        return;
    }
    api_error_set(&e, 503, NULL,
                  is_resting ? "The model is not loaded; the next request that uses it loads it" : "out of memory");
    if (is_resting && !has_name) api_error_set(&e, 503, NULL, "No model is loaded; the next request for one loads it");
    http_reply_error(c, &e);
}

/* ---- the keeper: lock held, released where it is said ---- */

static void on_probe(struct http_task *task)
{
    struct model_gate *g = ((struct probe *)task)->gate;

    mutex_lock(&g->lock);
    g->n_probed++;
    cond_broadcast(&g->changed);
    mutex_unlock(&g->lock);
}

static bool is_used(struct gate_model *m)
{
    return atomic_load_explicit(&m->n_users, memory_order_acquire) > 0;
}

/* Released meanwhile. The model is closing and no request uses it; neither does what handlers do after their answers.
 * false: not yet. */
static bool drain(struct model_gate *g, struct gate_model *m)
{
    if (is_used(m)) return false;
    g->n_probed = 0;
    for (uint32_t i = 0; i < g->server->http.n_io; i++) {
        g->probes[i] = (struct probe){.task = {.run = on_probe}, .gate = g};
        http_io_wake(&g->server->http.io[i], &g->probes[i].task);
    }
    while (g->n_probed < g->server->http.n_io && !g->stopping) (void)cond_wait_ns(&g->changed, &g->lock, TICK_NS);
    return !g->stopping && !is_used(m);
}

/* Released meanwhile: closes it. */
static void unload(struct model_gate *g, struct gate_model *m)
{
    rd_engine *engine = m->served.engine;
    uint32_t other = 0;

    m->served.engine = NULL;
    g->n_loaded--;
    while (other < count(g) && !g->models[other]->served.engine) other++;
    if (g->n_loaded > 0 && !g->models[g->current]->served.engine) make_current(g, other);
    g->swapping = true;
    mutex_unlock(&g->lock);
    rd_close(engine);
    mem_give_back();
    mutex_lock(&g->lock);
    g->swapping = m->closing = false;
    m->state = m->broken ? GATE_FAILED : GATE_UNLOADED;
    m->broken = m->is_stale = false;
}

static void on_progress(void *arg, double fraction)
{
    struct model_gate *g = arg;

    atomic_store_explicit(&g->percent, (unsigned)(fraction * 100), memory_order_relaxed);
}

/* Not held. */
static bool is_unwanted(void *arg)
{
    struct model_gate *g = arg;
    bool is;

    mutex_lock(&g->lock);
    is = g->stopping || (!g->is_restoring && !g->models[g->loading]->n_waiting && !g->n_any);
    mutex_unlock(&g->lock);
    return is;
}

static uint64_t bytes_of(const struct rd_info *info)
{
    return info->weight_bytes + info->packed_bytes + info->workspace_bytes + info->kv_bytes;
}

static void note_loaded(struct model_gate *g, uint32_t model, uint64_t cost_ns)
{
    struct gate_model *m = g->models[model];

    rd_get_info(m->served.engine, &m->served.info);
    m->has_info = true;
    m->state = GATE_LOADED;
    m->cost_ns = cost_ns;
    m->bytes = bytes_of(&m->served.info);
    m->loaded_ns = m->used_ns = clock_now_ns(clock_system());
    g->n_loaded++;
    g->current = model;
    atomic_fetch_add_explicit(&g->n_loads, 1, memory_order_relaxed);
}

/* Released meanwhile. */
static rd_status load(struct model_gate *g, uint32_t model, struct rd_error *err)
{
    const struct server_load_watch watch = {on_progress, is_unwanted, g};
    struct gate_model *m = g->models[model];
    uint64_t begun_ns = clock_now_ns(clock_system()), cost_ns;
    enum gate_state was = m->state;
    rd_engine *engine = NULL;
    rd_status st;

    m->state = GATE_LOADING;
    g->loading = model;
    atomic_store_explicit(&g->percent, 0, memory_order_relaxed);
    g->swapping = true;
    mutex_unlock(&g->lock);
    st = g->o.load(g->o.user, model, &watch, &engine, err);
    if (st != RD_OK) mem_give_back();
    mutex_lock(&g->lock);
    g->swapping = false;
    g->loading = NONE;
    cost_ns = clock_now_ns(clock_system()) - begun_ns;
    if (st != RD_OK) {
        m->state = st == RD_E_CANCELLED || st == RD_E_NOMEM ? was : GATE_FAILED;
        return st;
    }
    m->served.engine = engine;
    note_loaded(g, model, cost_ns);
    log_event(LOG_INFO, "model_loaded",
              LOG_FIELDS(LOG_F_TEXT("model", m->id), LOG_F_REAL("seconds", (double)cost_ns / 1e9)),
              "%s is loaded, in %.1f s", m->id, (double)cost_ns / 1e9);
    return RD_OK;
}

/* The requests for a model fail, with what the log says in full. */
static void fail(struct model_gate *g, uint32_t model, rd_status st, const struct rd_error *err)
{
    struct api_error e;

    log_event(LOG_ERROR, "model_failed",
              LOG_FIELDS(LOG_F_TEXT("model", g->models[model]->id),
                         LOG_F_TEXT("error", err->text[0] ? err->text : rd_status_text(st))),
              "%s cannot be loaded: %s", g->models[model]->id, err->text[0] ? err->text : rd_status_text(st));
    g->models[model]->state = GATE_FAILED;
    api_error_set(&e, 503, "model", "The model `%.500s` cannot be loaded: %s", g->models[model]->id,
                  rd_status_text(st));
    e.is_broken = st != RD_E_NOMEM;
    fail_parked(g, model, &e);
    if (g->n_loaded == 0) fail_parked(g, ANY, &e);
}

/* How long a model stays, whoever else waits. */
static uint64_t stay_ns(const struct model_gate *g, const struct gate_model *m)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < count(g); i++) n += g->models[i]->n_waiting > 0;
    return u64_min(STAY_LOADS * m->cost_ns, g->o.wait_s * SECOND_NS / (2 * n));
}

static bool may_close(const struct model_gate *g, struct gate_model *m, uint64_t now)
{
    uint64_t stay = stay_ns(g, m);

    return now - m->loaded_ns >= stay || (!is_used(m) && now - m->used_ns >= stay / STAY_PARTS);
}

/* The one that makes room: of those unused the one used longest ago, else the one that was loaded first. NULL: none yet. */
static struct gate_model *victim(struct model_gate *g, uint64_t now)
{
    struct gate_model *best = NULL;

    for (uint32_t i = 0; i < count(g); i++) {
        struct gate_model *m = g->models[i];
        bool used = m->served.engine && is_used(m);

        if (!m->served.engine || m->closing || !may_close(g, m, now)) continue;
        if (!best || (is_used(best) && !used) ||
            (used == is_used(best) && (used ? m->loaded_ns < best->loaded_ns : m->used_ns < best->used_ns)))
            best = m;
    }
    return best;
}

/* Whether one more can be loaded without closing any. */
static bool has_room(const struct model_gate *g, uint32_t model)
{
    const struct gate_model *wanted = g->models[model];
    uint64_t used = 0, kv_bytes = 0, bytes = wanted->bytes;

    if (g->n_loaded == 0) return true;
    if (g->n_loaded >= g->o.max_loaded || wanted->was_alone) return false;
    for (uint32_t i = 0; i < count(g); i++) {
        if (!g->models[i]->served.engine) continue;
        used += g->models[i]->bytes;
        kv_bytes = u64_max(kv_bytes, g->models[i]->served.info.kv_bytes);
    }
    if (!bytes) bytes = kv_bytes + (g->o.size ? g->o.size(g->o.user, model) : 0);
    return !g->o.memory_bytes || used + bytes <= g->o.memory_bytes;
}

/* The first that waits, of another tenant than the last one's where there is any. NULL: none, or for what is there. */
static struct parked *next_in_turn(const struct model_gate *g)
{
    struct parked *first = NULL;

    for (struct parked *p = g->first; p; p = p->next) {
        if (p->model != ANY ? g->models[p->model]->served.engine != NULL : g->n_loaded > 0) continue;
        if (p->conn->tenant != g->last_tenant) return p;
        if (!first) first = p;
    }
    return first;
}

/* Released meanwhile. */
static void load_wanted(struct model_gate *g, uint32_t wanted)
{
    struct rd_error err = {RD_OK, ""};
    uint32_t closed = g->closed;
    rd_status st = load(g, wanted, &err);

    g->round = g->closed = NONE;
    if (st == RD_OK) return;
    if (st == RD_E_CANCELLED) {
        log_info("%s is not loaded: nobody waits for it any more", g->models[wanted]->id);
        return;
    }
    if (st == RD_E_NOMEM && g->n_loaded > 0 && !g->models[wanted]->was_alone) {
        g->models[wanted]->was_alone = true;
        log_info("%s has no room beside what is loaded: %s", g->models[wanted]->id, err.text);
        return;
    }
    fail(g, wanted, st, &err);
    if (closed == NONE || g->models[closed]->served.engine || g->n_loaded >= g->o.max_loaded) return;
    err.text[0] = 0;
    g->is_restoring = true;
    st = load(g, closed, &err); /* as it was */
    g->is_restoring = false;
    if (st != RD_OK) fail(g, closed, st, &err);
}

/* Released meanwhile: those that are closing go as soon as nobody uses them. false: they are used. */
static bool close_unused(struct model_gate *g)
{
    bool all = true;

    for (uint32_t i = 0; i < count(g); i++) {
        struct gate_model *m = g->models[i];

        if (!m->closing) continue;
        if (drain(g, m))
            unload(g, m);
        else
            all = false;
    }
    return all;
}

/* Released meanwhile: a step towards the model of the one whose turn it is. ns: until the next. */
static uint64_t go_towards(struct model_gate *g, const struct parked *p, uint64_t now)
{
    uint32_t wanted = p->model != ANY ? p->model : g->current;
    const char *tenant = p->conn->tenant;
    struct rd_error err = {RD_OK, ""};
    struct gate_model *m;
    rd_status st;

    if (g->round != wanted) {
        mutex_unlock(&g->lock);
        st = g->o.check(g->o.user, wanted, &err);
        mutex_lock(&g->lock);
        if (st != RD_OK) {
            fail(g, wanted, st, &err);
            return 0;
        }
        g->round = wanted;
        g->closed = NONE;
        return 0; /* its clients may have left */
    }
    if (has_room(g, wanted)) {
        g->last_tenant = tenant;
        load_wanted(g, wanted);
        return 0;
    }
    for (uint32_t i = 0; i < count(g); i++)
        if (g->models[i]->closing) return POLL_NS;
    m = victim(g, now);
    if (!m) return LOOK_NS;
    m->closing = true;
    g->closed = m->number;
    return 0;
}

/* Nobody waits for what is not there: nothing needs to be closed but what is broken. */
static void stay_open(struct model_gate *g)
{
    for (uint32_t i = 0; i < count(g); i++) g->models[i]->closing &= g->models[i]->broken || g->models[i]->is_stale;
    g->round = g->closed = NONE;
}

/* Released meanwhile: closed, unless a request comes first; whoever comes meanwhile is parked, and loads it again. */
static void unload_unused(struct model_gate *g, struct gate_model *m, const char *why)
{
    m->closing = true;
    if (drain(g, m)) {
        log_event(LOG_INFO, "model_unloaded", LOG_FIELDS(LOG_F_TEXT("model", m->id), LOG_F_TEXT("reason", why)),
                  "%s is unloaded: %s", m->id, why);
        unload(g, m);
    }
    m->closing = false;
}

/* What is loaded takes more than it may: a model was larger than its file. */
static bool is_too_much(const struct model_gate *g)
{
    uint64_t used = 0;

    for (uint32_t i = 0; i < count(g); i++) used += g->models[i]->served.engine ? g->models[i]->bytes : 0;
    return g->n_loaded > 1 && g->o.memory_bytes && used > g->o.memory_bytes;
}

/* Released meanwhile: models that nobody used for long, or that are too much. */
static void rest(struct model_gate *g, uint64_t now)
{
    struct gate_model *m = is_too_much(g) ? victim(g, now) : NULL;

    if (m && !is_used(m)) unload_unused(g, m, "what is loaded takes more than --models-memory");
    for (uint32_t i = 0; i < count(g); i++) {
        m = g->models[i];
        if (g->o.idle_unload_s && is_open(m) && !is_used(m) && now - m->used_ns >= g->o.idle_unload_s * SECOND_NS)
            unload_unused(g, m, "nobody used it for --idle-unload seconds");
    }
}

/* Who is used now, and whose file failed: on the host nothing else can, and the others go on. */
static void look_at_models(struct model_gate *g, uint64_t now)
{
    bool deeply = now - g->looked_ns >= SECOND_NS;
    struct rd_stats s = {.size = sizeof(s)};

    if (deeply) g->looked_ns = now;
    for (uint32_t i = 0; i < count(g); i++) {
        struct gate_model *m = g->models[i];

        if (!m->served.engine) continue;
        if (is_used(m)) m->used_ns = now;
        if (!deeply || count(g) == 1 || m->broken || !m->served.info.on_host) continue;
        rd_get_stats(m->served.engine, &s);
        if (!s.device_dead) continue;
        log_error("%s is closed: its file failed while it was in use", m->id);
        m->broken = m->closing = true;
    }
}

/* Released meanwhile: one that is to be loaded again, by the settings that hold now. ns: until the next look; 0: at once. */
static uint64_t reload(struct model_gate *g, struct gate_model *m)
{
    struct rd_error err = {RD_OK, ""};
    uint32_t model = m->number;
    rd_status st;

    m->closing = true;
    if (!drain(g, m)) return POLL_NS;
    unload(g, m);
    m->is_stale = true; /* until it is there again */
    g->is_restoring = true;
    st = load(g, model, &err);
    g->is_restoring = m->is_stale = false;
    if (st != RD_OK) fail(g, model, st, &err);
    return 0;
}

static struct gate_model *stale_one(const struct model_gate *g)
{
    for (uint32_t i = 0; i < count(g); i++)
        if (g->models[i]->is_stale) return g->models[i];
    return NULL;
}

void model_gate_open(struct model_gate *g)
{
    struct gate_model *m = g->models[0];

    mutex_lock(&g->lock);
    m->served = g->server->only;
    g->server->only.engine = NULL;
    note_loaded(g, 0, (uint64_t)(g->server->only.info.load_ms * 1e6));
    if (!*m->id) m->id = g->server->only.info.model_id; /* the only one names itself */
    mutex_unlock(&g->lock);
}

uint32_t model_gate_n_models(const struct model_gate *g)
{
    return g ? count(g) : 1;
}

void model_gate_reload(struct model_gate *g)
{
    mutex_lock(&g->lock);
    for (uint32_t i = 0; i < count(g); i++)
        if (g->models[i]->served.engine)
            g->models[i]->is_stale = g->models[i]->closing = true; /* whoever comes now waits */
    cond_signal(&g->changed);
    mutex_unlock(&g->lock);
}

bool model_gate_is_reloading(struct model_gate *g)
{
    bool is;

    mutex_lock(&g->lock);
    is = stale_one(g) != NULL;
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
    mutex_lock(&g->lock);
    while (!g->stopping) {
        uint64_t now = clock_now_ns(clock_system()), wait_ns = count(g) > 1 || g->o.idle_unload_s ? TICK_NS : REST_NS;
        struct gate_model *stale = stale_one(g);
        const struct parked *p;

        look_at_models(g, now);
        release_ready(g, now);
        if (stale) {
            wait_ns = reload(g, stale);
            if (wait_ns && !g->stopping) (void)cond_wait_ns(&g->changed, &g->lock, wait_ns);
            continue;
        }
        p = next_in_turn(g);
        if (!p) stay_open(g);
        release_ready(g, now);
        if (!close_unused(g)) wait_ns = POLL_NS;
        p = next_in_turn(g); /* the lock was released */
        if (p)
            wait_ns = go_towards(g, p, now);
        else
            rest(g, now);
        if (wait_ns && !g->stopping) (void)cond_wait_ns(&g->changed, &g->lock, wait_ns);
    }
    mutex_unlock(&g->lock);
}
