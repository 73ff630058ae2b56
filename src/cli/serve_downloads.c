/* cli/serve_downloads.c - see serve_downloads.h. */
#include "cli/serve_downloads.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sysinfo.h"
#include "base/thread.h"
#include "cli/serve_models.h"
#include "hub/hub_pull.h"
#include "hub/hub_search.h"

enum { MOST = 16, WORD_BYTES = 512, SEARCH_TIMEOUT_S = 10, PULL_TIMEOUT_S = 30, PULL_RETRIES = 5 };

enum state { UNUSED, WAITING, RUNNING, DONE, FAILED, CANCELLED };

static const char *const state_names[] = {"", "waiting", "running", "done", "failed", "cancelled"};

struct download {
    uint64_t id;
    enum state state;
    bool is_unwanted; /* somebody cancelled it */
    char word[WORD_BYTES], file[128];
    char text[512];              /* why this quantisation, why it waits, why it failed; of one that is done why it is
                                  * not served */
    char name[MODEL_NAME_BYTES]; /* that it is served by; "": it is not */
    uint64_t n_done, n_total;
};

struct serve_downloads {
    struct serve_models *models;
    struct mutex lock; /* guards what follows */
    struct cond changed;
    struct thread thread;
    bool has_thread, is_asking, stopping;
    struct download list[MOST]; /* the oldest that ended makes room */
    uint64_t n_started;
};

/* The one that runs, of the thread alone but for what is copied under the lock. */
struct pull {
    struct serve_downloads *d;
    struct download *entry;
    struct hub_pull hub;
    volatile sig_atomic_t stop; /* written by tick, which this thread calls */
};

/* ---- the thread ---- */

static void tick(void *user)
{
    struct pull *p = user;
    const char *file = p->hub.file, *slash = file ? strrchr(file, '/') : NULL;

    mutex_lock(&p->d->lock);
    if (p->entry->is_unwanted || p->d->stopping) p->stop = 1;
    p->entry->n_total = p->hub.n_total;
    p->entry->n_done = p->hub.n_done + (file ? p->hub.now.n_there : 0);
    snprintf(p->entry->file, sizeof(p->entry->file), "%.127s", file ? slash ? slash + 1 : file : "");
    mutex_unlock(&p->d->lock);
}

static void tell(void *user, const char *text)
{
    struct pull *p = user;

    mutex_lock(&p->d->lock);
    snprintf(p->entry->text, sizeof(p->entry->text), "%s", text);
    mutex_unlock(&p->d->lock);
}

static void chosen(void *user, const struct hub_listing *m, const char *why)
{
    (void)m;
    tell(user, why);
}

static rd_status settings(struct hub_settings *s, struct rd_error *err)
{
    rd_status st = hub_settings_read(s, err);

    if (st == RD_OK && s->is_offline)
        st = error_set(err, RD_E_UNSUPPORTED, "HF_HUB_OFFLINE is set where this server was started: it asks no hub");
    return st;
}

static struct hub_http_options options(const struct hub_settings *s, uint32_t timeout_s, uint32_t n_retries)
{
    return (struct hub_http_options){.endpoint = s->endpoint,
                                     .token = s->token[0] ? s->token : NULL,
                                     .timeout_s = timeout_s,
                                     .n_retries = n_retries,
                                     .n_connections = HUB_CONNECTIONS};
}

static rd_status run(struct pull *p, char path[LIMIT_PATH_BYTES], struct rd_error *err)
{
    struct hub_settings s;
    struct hub_ref ref;
    rd_status st = settings(&s, err);

    if (st == RD_OK) st = hub_ref_parse(p->entry->word, &ref, err); /* the word does not change while it runs */
    if (st != RD_OK) return st;
    p->hub.http = options(&s, PULL_TIMEOUT_S, PULL_RETRIES);
    p->hub.http.cancelled = &p->stop;
    p->hub.http.tell = tell;
    p->hub.http.tick = tick;
    p->hub.http.user = p;
    p->hub.n_memory = sysinfo_memory();
    p->hub.chosen = chosen;
    return hub_pull(&p->hub, &ref, path, err);
}

/* Lock held. The one that has waited longest. */
static struct download *next_waiting(struct serve_downloads *d)
{
    struct download *next = NULL;

    for (size_t i = 0; i < MOST; i++)
        if (d->list[i].state == WAITING && (!next || d->list[i].id < next->id)) next = &d->list[i];
    return next;
}

/* Clients can have it from now on. It is there in any case: what keeps it from being served is no failure of the download. */
static void offer(struct serve_downloads *d, struct download *entry, const char *path)
{
    struct rd_error err = {RD_OK, ""};
    char name[MODEL_NAME_BYTES] = "";
    rd_status st = serve_models_fetched(d->models, path, name, &err);
    size_t n_path = strlen(path);
    const char *why = *err.text ? err.text : rd_status_text(st);

    if (strncmp(why, path, n_path) == 0)
        why += n_path + strspn(why + n_path, ": "); /* not for clients: where it lies */
    mutex_lock(&d->lock);
    if (st == RD_OK)
        snprintf(entry->name, sizeof(entry->name), "%s", name);
    else
        snprintf(entry->text, sizeof(entry->text), "it cannot be served: %.450s", why);
    mutex_unlock(&d->lock);
}

static void tell_end(const struct download *e)
{
    bool failed = e->state == FAILED, is_unserved = e->state == DONE && !*e->name;

    log_event(failed || is_unserved ? LOG_WARN : LOG_INFO, "download",
              LOG_FIELDS(LOG_F_NUMBER("download", e->id), LOG_F_TEXT("state", state_names[e->state]),
                         LOG_F_TEXT("model", e->word), LOG_F_TEXT("error", failed || is_unserved ? e->text : NULL)),
              "download %llu: %s%s%.300s", (unsigned long long)e->id, state_names[e->state],
              *e->name                ? ", served as "
              : failed || is_unserved ? ": "
                                      : "",
              *e->name                ? e->name
              : failed || is_unserved ? e->text
                                      : "");
}

/* Lock held, released meanwhile. */
static void run_next(struct serve_downloads *d, struct download *entry)
{
    struct rd_error err = {RD_OK, ""};
    char path[LIMIT_PATH_BYTES];
    struct pull *p = mem_zalloc(1, sizeof(*p));
    rd_status st = RD_E_NOMEM;

    entry->state = RUNNING;
    if (p) {
        p->d = d;
        p->entry = entry;
        mutex_unlock(&d->lock);
        st = run(p, path, &err);
        if (st == RD_OK) offer(d, entry, path);
        mutex_lock(&d->lock);
        entry->n_total = p->hub.n_total;
        entry->n_done = st == RD_OK ? p->hub.n_total : entry->n_done;
    }
    mem_free(p);
    entry->file[0] = 0;
    entry->state = st == RD_OK ? DONE : st == RD_E_CANCELLED ? CANCELLED : FAILED;
    if (entry->state == FAILED)
        snprintf(entry->text, sizeof(entry->text), "%s", *err.text ? err.text : rd_status_text(st));
    tell_end(entry);
}

static void work(void *arg)
{
    struct serve_downloads *d = arg;

    mutex_lock(&d->lock);
    while (!d->stopping) {
        struct download *next = next_waiting(d);

        if (next)
            run_next(d, next);
        else
            cond_wait(&d->changed, &d->lock);
    }
    mutex_unlock(&d->lock);
}

/* ---- for the server ---- */

static void put_text(struct buf *out, const char *before, const char *text)
{
    buf_puts(out, before);
    buf_putc(out, '"');
    buf_put_json(out, text, strlen(text));
    buf_putc(out, '"');
}

static void list(void *user, struct buf *out)
{
    struct serve_downloads *d = user;
    bool first = true;

    buf_puts(out, "\"data\":[");
    mutex_lock(&d->lock);
    for (uint64_t id = d->n_started > 4 * MOST ? d->n_started - 4 * MOST : 0; id <= d->n_started; id++)
        for (size_t i = 0; i < MOST; i++) {
            const struct download *e = &d->list[i];

            if (e->state == UNUSED || e->id != id) continue;
            buf_printf(out, "%s{\"id\":%llu", first ? "" : ",", (unsigned long long)e->id);
            put_text(out, ",\"model\":", e->word);
            put_text(out, ",\"state\":", e->is_unwanted && e->state == RUNNING ? "cancelling" : state_names[e->state]);
            put_text(out, ",\"file\":", e->file);
            put_text(out, ",\"text\":", e->text);
            put_text(out, ",\"served\":", e->name);
            buf_printf(out, ",\"done\":%llu,\"total\":%llu}", (unsigned long long)e->n_done,
                       (unsigned long long)e->n_total);
            first = false;
        }
    mutex_unlock(&d->lock);
    buf_puts(out, "]");
}

/* Lock held. A place; NULL: as many wait as may. */
static struct download *find_place(struct serve_downloads *d)
{
    struct download *place = NULL;

    for (size_t i = 0; i < MOST; i++) {
        struct download *e = &d->list[i];

        if (e->state == UNUSED) return e;
        if (e->state >= DONE && (!place || e->id < place->id)) place = e;
    }
    return place;
}

/* Lock held. */
static const struct download *find_same(const struct serve_downloads *d, const char *word)
{
    for (size_t i = 0; i < MOST; i++)
        if ((d->list[i].state == WAITING || d->list[i].state == RUNNING) && !d->list[i].is_unwanted &&
            strcmp(d->list[i].word, word) == 0)
            return &d->list[i];
    return NULL;
}

static rd_status start(void *user, const char *word, uint64_t *id, struct rd_error *err)
{
    struct serve_downloads *d = user;
    struct hub_settings s;
    struct hub_ref ref;
    const struct download *same;
    struct download *e;
    rd_status st = hub_ref_parse(word, &ref, err);

    if (st == RD_OK && strlen(word) >= WORD_BYTES) st = error_set(err, RD_E_INVALID, "model: the name is too long");
    if (st == RD_OK) st = settings(&s, err);
    if (st == RD_OK && !hub_http_is_built())
        st = error_set(err, RD_E_UNSUPPORTED, "this radish was built without libcurl and cannot download");
    if (st != RD_OK) return st;
    mutex_lock(&d->lock);
    same = find_same(d, word);
    e = same ? NULL : find_place(d);
    if (e && !hub_http_start()) st = RD_E_NOMEM;
    if (e && st == RD_OK && !d->has_thread) {
        st = thread_start(&d->thread, "radish-pull", work, d);
        d->has_thread = st == RD_OK;
    }
    if (same)
        *id = same->id;
    else if (!e)
        st = error_set(err, RD_E_FULL, "%d downloads wait already", MOST);
    else if (st == RD_OK) {
        *e = (struct download){.id = *id = ++d->n_started, .state = WAITING};
        snprintf(e->word, sizeof(e->word), "%s", word);
        cond_signal(&d->changed);
    }
    mutex_unlock(&d->lock);
    return st;
}

static rd_status cancel(void *user, uint64_t id)
{
    struct serve_downloads *d = user;
    rd_status st = RD_E_NOT_FOUND;

    mutex_lock(&d->lock);
    for (size_t i = 0; i < MOST; i++) {
        struct download *e = &d->list[i];

        if (e->id != id || (e->state != WAITING && e->state != RUNNING)) continue;
        if (e->state == WAITING) e->state = CANCELLED;
        e->is_unwanted = true;
        st = RD_OK;
    }
    mutex_unlock(&d->lock);
    return st;
}

/* One question to the hub at a time: they wait for its network, on threads that others need. */
static rd_status begin_asking(struct serve_downloads *d, struct hub_settings *s, struct rd_error *err)
{
    rd_status st = settings(s, err);

    if (st != RD_OK) return st;
    mutex_lock(&d->lock);
    if (!hub_http_start())
        st = error_set(err, RD_E_NOMEM, "out of memory");
    else if (d->is_asking)
        st = error_set(err, RD_E_FULL, "another search is not answered yet");
    else
        d->is_asking = true;
    mutex_unlock(&d->lock);
    return st;
}

static void end_asking(struct serve_downloads *d)
{
    mutex_lock(&d->lock);
    d->is_asking = false;
    mutex_unlock(&d->lock);
}

static rd_status search(void *user, const char *words, struct buf *out, struct rd_error *err)
{
    struct serve_downloads *d = user;
    struct hub_found found[HUB_FOUND_MOST];
    struct hub_http *http = NULL;
    struct hub_http_options o;
    struct hub_settings s;
    size_t n = 0;
    rd_status st = begin_asking(d, &s, err);

    if (st != RD_OK) return st;
    o = options(&s, SEARCH_TIMEOUT_S, 0);
    st = hub_http_create(&o, &http, err);
    if (st == RD_OK) st = hub_search(http, s.endpoint, words, found, &n, err);
    hub_http_destroy(http);
    end_asking(d);
    put_text(out, "\"hub\":", s.endpoint);
    buf_puts(out, ",\"data\":[");
    for (size_t i = 0; i < n; i++) {
        put_text(out, i ? ",{\"id\":" : "{\"id\":", found[i].repo);
        buf_printf(out, ",\"downloads\":%llu,\"likes\":%llu,\"gguf\":%s,\"gated\":%s}",
                   (unsigned long long)found[i].n_downloads, (unsigned long long)found[i].n_likes,
                   found[i].has_gguf ? "true" : "false", found[i].is_gated ? "true" : "false");
    }
    buf_puts(out, "]");
    return st;
}

struct look {
    struct buf *out;
    uint64_t n_memory;
};

static void put_variants(void *user, const struct hub_listing *m, const char *why)
{
    struct look *l = user;
    bool first = true;

    put_text(l->out, "\"why\":", why);
    buf_puts(l->out, ",\"data\":[");
    for (size_t i = 0; i < m->n_variants; i++) {
        const struct hub_variant *v = &m->variants[i];

        if (!v->is_whole || v->order == HUB_NEVER) continue;
        put_text(l->out, first ? "{\"label\":" : ",{\"label\":", v->label);
        put_text(l->out, ",\"file\":", m->files[v->first].path);
        buf_printf(l->out, ",\"bytes\":%llu,\"fits\":%s,\"chosen\":%s}", (unsigned long long)v->n_bytes,
                   hub_memory_for(v->n_bytes) <= l->n_memory ? "true" : "false",
                   m->files[v->first].is_wanted ? "true" : "false");
        first = false;
    }
    buf_puts(l->out, "]");
}

static rd_status look(void *user, const char *model, struct buf *out, struct rd_error *err)
{
    struct serve_downloads *d = user;
    struct look l = {out, sysinfo_memory()};
    struct hub_pull *p = NULL;
    char path[LIMIT_PATH_BYTES];
    struct hub_settings s;
    struct hub_ref ref;
    rd_status st = hub_ref_parse(model, &ref, err);

    if (st == RD_OK) st = begin_asking(d, &s, err);
    if (st != RD_OK) return st;
    p = mem_zalloc(1, sizeof(*p));
    if (p) {
        p->http = options(&s, SEARCH_TIMEOUT_S, 0);
        p->http.user = &l;
        p->n_memory = l.n_memory;
        p->chosen = put_variants;
        p->only_list = true;
        st = hub_pull(p, &ref, path, err);
    } else {
        st = error_set(err, RD_E_NOMEM, "out of memory");
    }
    mem_free(p);
    end_asking(d);
    return st;
}

/* ---- life ---- */

rd_status serve_downloads_create(struct serve_models *models, struct serve_downloads **out)
{
    struct serve_downloads *d = mem_zalloc(1, sizeof(*d));

    if (!d) return RD_E_NOMEM;
    d->models = models;
    mutex_init(&d->lock);
    cond_init(&d->changed);
    *out = d;
    return RD_OK;
}

void serve_downloads_destroy(struct serve_downloads *d)
{
    if (!d) return;
    mutex_lock(&d->lock);
    d->stopping = true;
    cond_broadcast(&d->changed);
    mutex_unlock(&d->lock);
    if (d->has_thread) thread_join(&d->thread);
    cond_deinit(&d->changed);
    mutex_deinit(&d->lock);
    mem_free(d);
}

struct server_downloads serve_downloads_seam(struct serve_downloads *d)
{
    return (struct server_downloads){
        .user = d, .search = search, .look = look, .start = start, .cancel = cancel, .list = list};
}
