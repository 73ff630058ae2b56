/* server/dialects/responses_store.c - a hash table of entries in a list by use, over turns that count their holders. */
#include "server/dialects/responses_store.h"
#include <stdio.h>
#include <string.h>
#include "base/hash.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/thread.h"
#include "server/params/params.h"

#define ID_BYTES  RESPONSES_KEY_BYTES
#define HEX_BYTES 24u /* of an id, after "resp_" */

struct responses_turn {
    struct responses_turn *parent; /* retained */
    uint32_t n_holders;            /* store->lock */
    size_t n_bytes;
    size_t n_tree; /* for the values of both: json_tree_bytes */
    char *input;   /* a JSON list; never changed */
    char *output;  /* likewise, once its entry runs no more; NULL: nothing */
};

struct entry {
    struct entry *newer, *older, *next; /* next: in its bucket */
    char id[ID_BYTES];
    bool running, cancelled;
    bool logged, log_ended;
    struct buf response, log;
    struct responses_turn *turn; /* retained */
};

struct responses_store {
    struct mutex lock; /* guards everything below */
    struct entry *newest, *oldest;
    struct entry *buckets[LIMIT_STORED_RESPONSES];
    uint32_t n_entries;
    size_t n_bytes, n_bytes_most;
    struct client_charge memory;
};

void responses_key(const char *tenant, const char *id, char key[RESPONSES_KEY_BYTES])
{
    if (tenant)
        snprintf(key, RESPONSES_KEY_BYTES, "%.40s@%016llx", id, (unsigned long long)hash64_of(tenant, strlen(tenant)));
    else
        snprintf(key, RESPONSES_KEY_BYTES, "%.40s", id);
}

rd_status responses_store_create(size_t n_bytes_most, struct responses_store **out)
{
    struct responses_store *s = mem_zalloc(1, sizeof(*s));

    if (!s) return RD_E_NOMEM;
    mutex_init(&s->lock);
    s->n_bytes_most = n_bytes_most;
    *out = s;
    return RD_OK;
}

/* After a change. */
static void unlock(struct responses_store *s)
{
    client_charge_force(&s->memory, CLIENT_STORED, s->n_bytes);
    mutex_unlock(&s->lock);
}

static struct entry **bucket_of(struct responses_store *s, const char *id)
{
    return &s->buckets[hash64_of(id, strlen(id)) % LIMIT_STORED_RESPONSES];
}

static struct entry *find(struct responses_store *s, const char *id)
{
    struct entry *e = *bucket_of(s, id);

    while (e && strcmp(e->id, id) != 0) e = e->next;
    return e;
}

static size_t entry_bytes(const struct entry *e)
{
    return sizeof(*e) + e->response.n + e->log.n;
}

static void link_newest(struct responses_store *s, struct entry *e)
{
    e->newer = NULL;
    e->older = s->newest;
    if (s->newest)
        s->newest->newer = e;
    else
        s->oldest = e;
    s->newest = e;
}

static void unlink_entry(struct responses_store *s, struct entry *e)
{
    if (e->newer)
        e->newer->older = e->older;
    else
        s->newest = e->older;
    if (e->older)
        e->older->newer = e->newer;
    else
        s->oldest = e->newer;
}

static void touch(struct responses_store *s, struct entry *e)
{
    unlink_entry(s, e);
    link_newest(s, e);
}

/* Under the lock. A long conversation ends one turn at a time: no recursion. */
static void release(struct responses_store *s, struct responses_turn *t)
{
    while (t && --t->n_holders == 0) {
        struct responses_turn *parent = t->parent;

        s->n_bytes -= t->n_bytes;
        mem_free(t->input);
        mem_free(t->output);
        mem_free(t);
        t = parent;
    }
}

static void drop(struct responses_store *s, struct entry *e)
{
    struct entry **at = bucket_of(s, e->id);

    while (*at != e) at = &(*at)->next;
    *at = e->next;
    unlink_entry(s, e);
    s->n_entries--;
    s->n_bytes -= entry_bytes(e);
    release(s, e->turn);
    buf_deinit(&e->response);
    buf_deinit(&e->log);
    mem_free(e);
}

void responses_store_charge_to(struct responses_store *s, struct client_memory *memory)
{
    client_charge_init(&s->memory, memory, NULL);
    s->memory.is_store = true;
}

void responses_store_destroy(struct responses_store *s)
{
    if (!s) return;
    while (s->newest) drop(s, s->newest);
    client_charge_clear(&s->memory);
    mutex_deinit(&s->lock);
    mem_free(s);
}

rd_status responses_store_turn(struct responses_store *s, const char *id, bool finished, struct responses_turn **out)
{
    rd_status st = RD_OK;
    struct entry *e;

    mutex_lock(&s->lock);
    e = find(s, id);
    if (!e) {
        st = RD_E_NOT_FOUND;
    } else if (finished && e->running) {
        st = RD_E_AGAIN;
    } else {
        touch(s, e);
        e->turn->n_holders++;
        *out = e->turn;
    }
    mutex_unlock(&s->lock);
    return st;
}

size_t responses_store_size(struct responses_store *s, const char *id)
{
    const struct entry *e;
    size_t n = 0;

    mutex_lock(&s->lock);
    e = id ? find(s, id) : NULL;
    if (e) n = entry_bytes(e);
    for (const struct responses_turn *t = e ? e->turn : NULL; t; t = t->parent) n += t->n_bytes;
    if (!id) n = s->n_bytes;
    mutex_unlock(&s->lock);
    return n;
}

void responses_turn_release(struct responses_store *s, struct responses_turn *turn)
{
    mutex_lock(&s->lock);
    release(s, turn);
    unlock(s);
}

/* Puts the elements of a JSON list before those of items. */
static bool prepend(const char *list, json_t *items)
{
    json_t *v = json_loads(list, JSON_ALLOW_NUL, NULL);
    bool ok = json_is_array(v);

    for (size_t i = json_array_size(v); ok && i > 0; i--) ok = json_array_append(items, json_array_get(v, i - 1)) == 0;
    json_decref(v);
    return ok;
}

rd_status responses_turn_items(const struct responses_turn *turn, bool with_output, json_t **items)
{
    json_t *backwards = json_array(), *list = json_array();
    bool ok = backwards && list;
    size_t n_tree = 0;

    for (const struct responses_turn *t = turn; ok && t; t = t->parent) {
        n_tree += t->n_tree;
        if (n_tree > LIMIT_JSON_TREE_BYTES) {
            json_decref(backwards);
            json_decref(list);
            return RD_E_LIMIT;
        }
        if ((t != turn || with_output) && t->output) ok = prepend(t->output, backwards);
        ok = ok && prepend(t->input, backwards);
    }
    for (size_t i = json_array_size(backwards); ok && i > 0; i--)
        ok = json_array_append(list, json_array_get(backwards, i - 1)) == 0;
    json_decref(backwards);
    if (!ok) {
        json_decref(list);
        return RD_E_NOMEM;
    }
    *items = list;
    return RD_OK;
}

uint64_t responses_turn_cost(const struct responses_turn *turn)
{
    uint64_t n = 0;

    for (const struct responses_turn *t = turn; t; t = t->parent)
        n += 2 * (uint64_t)t->n_tree + 3 * (uint64_t)t->n_bytes;
    return n;
}

rd_status responses_store_item(struct responses_store *s, const char *tenant, const char *item_id, json_t **item)
{
    const char *hex = strchr(item_id, '_');
    struct responses_turn *turn = NULL;
    json_t *list;
    char id[ID_BYTES], key[ID_BYTES];
    rd_status st;

    if (!hex || strlen(hex + 1) < HEX_BYTES) return RD_E_NOT_FOUND;
    snprintf(id, sizeof(id), "resp_%.*s", (int)HEX_BYTES, hex + 1);
    responses_key(tenant, id, key);
    st = responses_store_turn(s, key, true, &turn);
    if (st != RD_OK) return RD_E_NOT_FOUND;
    list = turn->output ? json_loads(turn->output, JSON_ALLOW_NUL, NULL) : json_array();
    st = list ? RD_E_NOT_FOUND : RD_E_NOMEM;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *v = json_array_get(list, i);
        const char *other = json_string_value(json_object_get(v, "id"));

        if (!other || strcmp(other, item_id) != 0) continue;
        *item = json_incref(v);
        st = RD_OK;
        break;
    }
    json_decref(list);
    responses_turn_release(s, turn);
    return st;
}

/* The tenant in a key of the store; "": none. */
static const char *tenant_of(const struct entry *e)
{
    const char *at = strchr(e->id, '@');

    return at ? at : "";
}

/* Does whoever keep belongs to hold more than half of the store? */
static bool holds_most(const struct responses_store *s, const struct entry *keep)
{
    uint32_t n = 0;
    size_t n_bytes = 0;

    for (const struct entry *e = s->oldest; e; e = e->newer) {
        if (strcmp(tenant_of(e), tenant_of(keep)) != 0) continue;
        n++;
        n_bytes += entry_bytes(e) + e->turn->n_bytes;
    }
    return n > LIMIT_STORED_RESPONSES / 2 || n_bytes > s->n_bytes_most / 2;
}

/* What goes next, so that keep has room: what was not used for longest; of keep's own tenant, where that holds most, so
 * that nobody can drive out the others. NULL: all run. */
static struct entry *find_victim(const struct responses_store *s, const struct entry *keep)
{
    bool own = holds_most(s, keep);
    struct entry *first = NULL;

    for (struct entry *e = s->oldest; e; e = e->newer) {
        if (e->running || e == keep) continue;
        if (!own || strcmp(tenant_of(e), tenant_of(keep)) == 0) return e;
        if (!first) first = e;
    }
    return first;
}

/* Drops entries until n_bytes more, and n_entries, fit into the store and into what all clients may hold together. */
static bool make_room(struct responses_store *s, const struct entry *keep, size_t n_bytes, uint32_t n_entries)
{
    while (s->n_entries + n_entries > LIMIT_STORED_RESPONSES || s->n_bytes + n_bytes > s->n_bytes_most ||
           client_charge_set(&s->memory, CLIENT_STORED, s->n_bytes + n_bytes, NULL)) {
        struct entry *e = find_victim(s, keep);

        if (!e) return false;
        drop(s, e);
    }
    return true;
}

rd_status responses_store_begin(struct responses_store *s, const char *id, struct responses_turn *parent,
                                const struct buf *response, const char *input, bool logged)
{
    struct entry *e = mem_zalloc(1, sizeof(*e));
    struct responses_turn *t = mem_zalloc(1, sizeof(*t));
    rd_status st = RD_E_NOMEM;

    if (!e || !t || strlen(id) >= ID_BYTES || response->failed) goto fail;
    buf_append(&e->response, response->data, response->n);
    t->input = mem_strdup(input);
    if (e->response.failed || !t->input) goto fail;
    memcpy(e->id, id, strlen(id) + 1);
    e->running = true;
    e->logged = logged;
    e->turn = t;
    t->n_holders = 1;
    t->n_bytes = sizeof(*t) + strlen(input);
    t->n_tree = json_tree_bytes(input, strlen(input));

    mutex_lock(&s->lock);
    if (!make_room(s, e, entry_bytes(e) + t->n_bytes, 1)) {
        unlock(s);
        st = RD_E_LIMIT;
        goto fail;
    }
    t->parent = parent;
    if (parent) parent->n_holders++;
    s->n_bytes += entry_bytes(e) + t->n_bytes;
    s->n_entries++;
    e->next = *bucket_of(s, id);
    *bucket_of(s, id) = e;
    link_newest(s, e);
    unlock(s);
    return RD_OK;

fail:
    if (t) mem_free(t->input);
    if (e) buf_deinit(&e->response);
    mem_free(t);
    mem_free(e);
    return st;
}

/* Under the lock. */
static rd_status set_response(struct responses_store *s, struct entry *e, const struct buf *response)
{
    struct buf copy = {0};

    buf_append(&copy, response->data, response->n);
    if (copy.failed || response->failed || !make_room(s, e, copy.n, 0)) {
        buf_deinit(&copy);
        return RD_E_NOMEM;
    }
    s->n_bytes += copy.n;
    s->n_bytes -= e->response.n;
    buf_deinit(&e->response);
    e->response = copy;
    return RD_OK;
}

static rd_status add_events(struct responses_store *s, struct entry *e, const struct buf *events)
{
    if (!e->logged || events->n == 0) return RD_OK;
    if (!make_room(s, e, events->n, 0)) return RD_E_LIMIT;
    buf_append(&e->log, events->data, events->n);
    if (e->log.failed) return RD_E_NOMEM;
    s->n_bytes += events->n;
    return RD_OK;
}

rd_status responses_store_append(struct responses_store *s, const char *id, const struct buf *response,
                                 const struct buf *events)
{
    rd_status st;
    struct entry *e;

    mutex_lock(&s->lock);
    e = find(s, id);
    st = !e ? RD_E_NOT_FOUND : e->cancelled ? RD_E_CANCELLED : add_events(s, e, events);
    if (st == RD_OK && response) st = set_response(s, e, response);
    unlock(s);
    return st;
}

/* Under the lock; e runs. */
static rd_status end_entry(struct responses_store *s, struct entry *e, const struct buf *response, const char *output)
{
    char *copy = mem_strdup(output);
    rd_status st = copy ? set_response(s, e, response) : RD_E_NOMEM;

    if (st == RD_OK && !make_room(s, e, strlen(output), 0)) st = RD_E_LIMIT;
    if (st != RD_OK) {
        mem_free(copy);
        return st;
    }
    e->turn->output = copy;
    e->turn->n_bytes += strlen(output);
    e->turn->n_tree += json_tree_bytes(output, strlen(output));
    s->n_bytes += strlen(output);
    e->running = false;
    return RD_OK;
}

rd_status responses_store_finish(struct responses_store *s, const char *id, const struct buf *response,
                                 const char *output, const struct buf *events)
{
    rd_status st;
    struct entry *e;

    mutex_lock(&s->lock);
    e = find(s, id);
    st = e ? add_events(s, e, events) : RD_E_NOT_FOUND;
    if (st == RD_OK && e->running) st = end_entry(s, e, response, output);
    if (st == RD_OK) e->log_ended = true;
    unlock(s);
    return st;
}

rd_status responses_store_cancel(struct responses_store *s, const char *id, const struct buf *response)
{
    rd_status st;
    struct entry *e;

    mutex_lock(&s->lock);
    e = find(s, id);
    st = !e ? RD_E_NOT_FOUND : !e->running ? RD_E_INVALID : set_response(s, e, response);
    if (st == RD_OK) {
        e->running = false;
        e->cancelled = true;
    }
    unlock(s);
    return st;
}

rd_status responses_store_log(struct responses_store *s, const char *id, size_t *at, size_t n_most, struct buf *out,
                              bool *ended)
{
    rd_status st = RD_OK;
    struct entry *e;

    mutex_lock(&s->lock);
    e = find(s, id);
    if (!e) {
        st = RD_E_NOT_FOUND;
    } else if (!e->logged) {
        st = RD_E_UNSUPPORTED;
    } else {
        size_t n = e->log.n - *at < n_most ? e->log.n - *at : n_most;

        if (n) buf_append(out, e->log.data + *at, n);
        *at += n;
        *ended = e->log_ended && *at == e->log.n;
    }
    mutex_unlock(&s->lock);
    return st;
}

rd_status responses_store_get(struct responses_store *s, const char *id, struct buf *out)
{
    struct entry *e;

    mutex_lock(&s->lock);
    e = find(s, id);
    if (e) {
        touch(s, e);
        buf_append(out, e->response.data, e->response.n);
    }
    mutex_unlock(&s->lock);
    return !e ? RD_E_NOT_FOUND : out->failed ? RD_E_NOMEM : RD_OK;
}

rd_status responses_store_remove(struct responses_store *s, const char *id)
{
    struct entry *e;

    mutex_lock(&s->lock);
    e = find(s, id);
    if (e) drop(s, e);
    unlock(s);
    return e ? RD_OK : RD_E_NOT_FOUND;
}
