/* store/shared_store.c - two connections, one for each direction, and the queue in front of the writing one. */
#include "store/shared_store.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/thread.h"
#include "store/resp_conn.h"

#define CONNECT_NS    1000000000ull
#define BATCH_NS      5000000000ull /* a batch of writes takes no longer */
#define CLOSE_NS      2000000000ull
#define FIRST_PAUSE_S 1u
#define LAST_PAUSE_S  60u
#define BATCH_BYTES   (2ull << 20)
#define BATCH_MOST    256u
#define FLIGHT_BYTES  (2ull << 20) /* answers of pages that are under way */
#define FLIGHT_MOST   64u
#define MOST_WAITING  65536u
#define LOOKUP_MOST   512u /* names in one round trip */
#define REPLY_LEAST   4096u
#define IDLE_NS       1000000000ull

/* A direction. The connection is its thread's; the rest is under the store's lock. */
struct way {
    const char *what; /* "read from", for the log */
    struct resp_conn *conn;
    uint64_t rest_until_ns; /* 0: well */
    uint32_t pause_s;
    bool is_failing;
    enum rd_store_trouble trouble;
};

/* What waits to be written; n_value 0: to be removed. */
struct offer {
    struct offer *next;
    struct hash128 digest;
    uint64_t page_bytes;
    size_t n_value;
    bool is_there; /* the store has it */
    uint8_t value[];
};

struct shared_store {
    struct store_url url;
    char shown[STORE_URL_SHOWN], prefix[SHARED_PREFIX_MOST + 1];
    struct shared_store_options o;
    struct shared_keys keys;
    struct thread writer;

    struct mutex lock; /* guards all below; never held while anything is sent or awaited */
    struct cond bell;
    struct way reading, writing;
    struct offer *head, *tail;
    uint32_t n_waiting;
    uint64_t generation, wanted_generation; /* wanted 0: no other than there is */
    uint64_t n_clears;                      /* a batch from before the last one is not written */
    bool closing;
    uint64_t closing_ns;
    struct shared_store_counts counts;
};

/* ---- well and not ---- */

static uint64_t now_ns(void)
{
    return clock_now_ns(clock_system());
}

/* The words are Redis' own, and resp_conn.c's. */
static enum rd_store_trouble trouble_of(const char *why)
{
    static const struct {
        const char *word;
        enum rd_store_trouble trouble;
    } known[] = {{"WRONGPASS", RD_STORE_PASSWORD}, {"NOAUTH", RD_STORE_PASSWORD},    {"AUTH: ", RD_STORE_PASSWORD},
                 {"OOM", RD_STORE_FULL},           {"READONLY", RD_STORE_READ_ONLY}, {"MISCONF", RD_STORE_READ_ONLY},
                 {"MOVED ", RD_STORE_CLUSTER},     {"ASK ", RD_STORE_CLUSTER},       {"CLUSTERDOWN", RD_STORE_CLUSTER},
                 {"as Redis does", RD_STORE_ODD},  {"its answer is", RD_STORE_ODD}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strstr(why, known[i].word)) return known[i].trouble;
    return RD_STORE_DOWN;
}

static const char *advice(enum rd_store_trouble trouble)
{
    return trouble == RD_STORE_CLUSTER
               ? " (this is one of a cluster's servers: radish wants one that has all, or a proxy)"
               : "";
}

static void way_failed(struct shared_store *s, struct way *w, const char *why)
{
    enum rd_store_trouble trouble = trouble_of(why);
    bool is_news;

    resp_close(w->conn);
    w->conn = NULL;
    mutex_lock(&s->lock);
    w->pause_s = w->pause_s ? u32_min(w->pause_s * 2, LAST_PAUSE_S) : FIRST_PAUSE_S;
    w->rest_until_ns = now_ns() + w->pause_s * 1000000000ull;
    is_news = !w->is_failing;
    w->is_failing = true;
    w->trouble = trouble;
    *(w == &s->reading ? &s->counts.n_read_errors : &s->counts.n_write_errors) += 1;
    mutex_unlock(&s->lock);
    if (is_news)
        log_event(LOG_WARN, "shared_store_down", LOG_FIELDS(LOG_F_TEXT("store", s->shown), LOG_F_TEXT("error", why)),
                  "shared store %s cannot be %s: %s%s; serving goes on without it, it is tried again in %u s", s->shown,
                  w->what, why, advice(trouble), w->pause_s);
}

/* All that was asked was answered. */
static void way_worked(struct shared_store *s, struct way *w)
{
    bool was_failing;

    mutex_lock(&s->lock);
    was_failing = w->is_failing;
    w->is_failing = false;
    w->trouble = RD_STORE_WELL;
    w->pause_s = 0;
    w->rest_until_ns = 0;
    mutex_unlock(&s->lock);
    if (was_failing)
        log_event(LOG_INFO, "shared_store_up", LOG_FIELDS(LOG_F_TEXT("store", s->shown)),
                  "shared store %s can be %s again", s->shown, w->what);
}

/* Connected, or resting (false). */
static bool way_open(struct shared_store *s, struct way *w, uint64_t deadline_ns)
{
    struct rd_error err = {RD_OK, ""};
    uint64_t now = now_ns(), rest;
    size_t most = shared_page_value_bytes(s->o.page_tokens, s->o.page_bytes);

    if (w->conn) return true;
    mutex_lock(&s->lock);
    rest = w->rest_until_ns;
    mutex_unlock(&s->lock);
    if (now < rest) return false;
    if (resp_open(&s->url, most > REPLY_LEAST ? most : REPLY_LEAST, u64_min(now + CONNECT_NS, deadline_ns), &w->conn,
                  &err) == RD_OK)
        return true;
    way_failed(s, w, err.text);
    return false;
}

bool shared_store_can_read(struct shared_store *s)
{
    bool can;

    mutex_lock(&s->lock);
    can = !s->wanted_generation && (s->reading.rest_until_ns == 0 || now_ns() >= s->reading.rest_until_ns);
    mutex_unlock(&s->lock);
    return can;
}

/* ---- asking ---- */

static uint64_t generation_now(struct shared_store *s)
{
    uint64_t g;

    mutex_lock(&s->lock);
    g = s->generation;
    mutex_unlock(&s->lock);
    return g;
}

/* An answer that is an error is one of the direction's. */
static rd_status refused(const struct resp_reply *r, struct rd_error *err)
{
    char quoted[120];

    if (r->kind != RESP_ERROR) return RD_OK;
    return error_set(err, RD_E_IO, "%s", error_quote(quoted, sizeof(quoted), r->bytes, r->n));
}

static rd_status ask(struct way *w, const char *a, const char *b, const char *c)
{
    const char *parts[] = {a, b, c};
    size_t n[] = {strlen(a), b ? strlen(b) : 0, c ? strlen(c) : 0};

    return resp_ask(w->conn, 1 + !!b + !!c, parts, n);
}

static void name_of(const struct shared_store *s, uint64_t generation, struct hash128 digest, uint64_t page_bytes,
                    char name[SHARED_NAME_BYTES])
{
    shared_page_name(&s->keys, s->prefix, generation, digest, s->o.page_tokens, page_bytes, name);
}

static void generation_name(const struct shared_store *s, char name[SHARED_NAME_BYTES])
{
    snprintf(name, SHARED_NAME_BYTES, "%s:generation", s->prefix);
}

static rd_status ask_generation(struct shared_store *s, struct way *w)
{
    char name[SHARED_NAME_BYTES];

    generation_name(s, name);
    return ask(w, "GET", name, NULL);
}

/* The answer to that; *same: names made before are right. A store that forgot it gets it back from whoever knows. */
static rd_status take_generation(struct shared_store *s, struct way *w, uint64_t deadline_ns, bool *same,
                                 struct rd_error *err)
{
    struct resp_reply r;
    rd_status st = resp_next(w->conn, deadline_ns, &r, err);
    uint64_t seen = 0, known;
    int n_read = 0;

    *same = false;
    if (st == RD_OK) st = refused(&r, err);
    if (st != RD_OK) return st;
    if (r.kind == RESP_BYTES && (sscanf(r.bytes, "%" SCNx64 "%n", &seen, &n_read) != 1 || (size_t)n_read != r.n))
        seen = 0;
    known = generation_now(s);
    if (seen == 0 && known != 0) { /* flushed or evicted: what was cleared must not come back with an older name */
        char name[SHARED_NAME_BYTES], text[24];
        const char *parts[] = {"SET", name, text, "NX"};
        size_t n[4];

        generation_name(s, name);
        snprintf(text, sizeof(text), "%" PRIx64, known);
        for (int i = 0; i < 4; i++) n[i] = strlen(parts[i]);
        st = resp_ask(w->conn, 4, parts, n);
        if (st == RD_OK) st = resp_next(w->conn, deadline_ns, &r, err);
        seen = known;
    }
    mutex_lock(&s->lock);
    *same = s->generation == seen && !s->wanted_generation;
    s->generation = seen;
    mutex_unlock(&s->lock);
    return st;
}

/* ---- reading ---- */

/* expiry NULL: only looks. RD_E_AGAIN: the generation is another one; all answers were taken. */
static rd_status find_once(struct shared_store *s, const struct hash128 *digests, uint32_t n, uint64_t page_bytes,
                           const char *expiry, uint64_t deadline_ns, uint32_t *n_found, struct rd_error *err)
{
    struct way *w = &s->reading;
    uint64_t generation = generation_now(s);
    char name[SHARED_NAME_BYTES];
    struct resp_reply r;
    bool same, gap = false;
    rd_status st = ask_generation(s, w);

    *n_found = 0;
    for (uint32_t i = 0; st == RD_OK && i < n; i++) {
        name_of(s, generation, digests[i], page_bytes, name);
        st = ask(w, expiry ? "EXPIRE" : "EXISTS", name, expiry);
    }
    if (st == RD_OK) st = take_generation(s, w, deadline_ns, &same, err);
    for (uint32_t i = 0; st == RD_OK && i < n; i++) {
        st = resp_next(w->conn, deadline_ns, &r, err);
        if (st == RD_OK) st = refused(&r, err);
        gap = gap || st != RD_OK || r.kind != RESP_NUMBER || r.number != 1;
        *n_found += !gap;
    }
    return st == RD_OK && !same ? RD_E_AGAIN : st;
}

/* False: there is no answer. */
static bool find_all(struct shared_store *s, const struct hash128 *digests, uint32_t n, uint64_t page_bytes,
                     const char *expiry, uint64_t deadline_ns, uint32_t *out)
{
    struct rd_error err = {RD_OK, "no memory"};
    rd_status st = RD_OK;
    uint32_t n_found = 0;

    *out = 0;
    if (n == 0 || !shared_store_can_read(s) || !way_open(s, &s->reading, deadline_ns)) return false;
    for (int n_tries = 0; n_found < n;) {
        uint32_t n_some = u32_min(n - n_found, LOOKUP_MOST), n_more;

        st = find_once(s, digests + n_found, n_some, page_bytes, expiry, deadline_ns, &n_more, &err);
        if (st == RD_E_AGAIN && n_tries++ == 0) {
            n_found = 0;
            continue;
        }
        if (st != RD_OK) break;
        n_found += n_more;
        if (n_more < n_some) break;
    }
    if (st == RD_E_AGAIN) return false; /* it is being cleared */
    if (st != RD_OK) {
        way_failed(s, &s->reading, err.text);
        return false;
    }
    way_worked(s, &s->reading);
    *out = n_found;
    return true;
}

uint32_t shared_store_find(struct shared_store *s, const struct hash128 *digests, uint32_t n, uint64_t page_bytes,
                           uint64_t deadline_ns)
{
    uint64_t begin = now_ns(), us;
    uint32_t n_found;

    if (!find_all(s, digests, n, page_bytes, NULL, deadline_ns, &n_found)) return 0;
    us = (now_ns() - begin) / 1000;
    mutex_lock(&s->lock);
    s->counts.n_lookups++;
    s->counts.n_found += n_found;
    s->counts.lookup_us = s->counts.lookup_us ? (s->counts.lookup_us * 7 + us) / 8 : us;
    mutex_unlock(&s->lock);
    return n_found;
}

bool shared_store_touch(struct shared_store *s, const struct hash128 *digests, uint32_t n, uint64_t page_bytes,
                        uint64_t deadline_ns, uint32_t *n_there)
{
    char expiry[16];

    snprintf(expiry, sizeof(expiry), "%u", s->o.expiry_s);
    return find_all(s, digests, n, page_bytes, expiry, deadline_ns, n_there);
}

static rd_status ask_page(struct shared_store *s, const struct shared_want *want, uint64_t generation, const char *how)
{
    char name[SHARED_NAME_BYTES];

    name_of(s, generation, want->page.digest, want->page.page_bytes, name);
    return ask(&s->reading, how, name, NULL);
}

/* It is wrong: others are spared it, and it can be written anew. */
static rd_status drop_wrong(struct shared_store *s, const struct shared_want *want, uint64_t generation,
                            uint64_t deadline_ns, struct rd_error *err)
{
    struct resp_reply r;
    rd_status st;

    mutex_lock(&s->lock);
    s->counts.n_refused++;
    mutex_unlock(&s->lock);
    log_warn("shared store %s: a page is damaged, or not what its name says: removed", s->shown);
    st = ask_page(s, want, generation, "DEL");
    return st == RD_OK ? resp_next(s->reading.conn, deadline_ns, &r, err) : st;
}

uint32_t shared_store_read(struct shared_store *s, const struct shared_want *wants, uint32_t n, uint64_t deadline_ns,
                           const atomic_bool *stop)
{
    struct rd_error err = {RD_OK, "no memory"};
    uint64_t generation = generation_now(s), n_bytes = 0;
    uint32_t n_asked = 0, n_answered = 0, n_good = 0, n_flight;
    bool wrong = false, gap = false;
    rd_status st = RD_OK;

    if (n == 0 || !shared_store_can_read(s) || !way_open(s, &s->reading, deadline_ns)) return 0;
    n_flight = (uint32_t)u64_min(u64_max(FLIGHT_BYTES / (wants->page.page_bytes + 1), 2), FLIGHT_MOST);
    while (st == RD_OK && (n_answered < n_asked || (!gap && n_asked < n))) {
        struct resp_reply r;

        while (st == RD_OK && !gap && n_asked < n && n_asked - n_answered < n_flight)
            st = ask_page(s, &wants[n_asked++], generation, "GET");
        if (st == RD_OK) st = resp_next(s->reading.conn, deadline_ns, &r, &err);
        if (st != RD_OK) break;
        n_answered++;
        if (gap) continue;
        gap = wrong = r.kind == RESP_ERROR && strncmp(r.bytes, "WRONGTYPE", 9) == 0;
        if (gap) continue;
        st = refused(&r, &err);
        gap = st != RD_OK || r.kind != RESP_BYTES || (stop && atomic_load_explicit(stop, memory_order_relaxed));
        if (gap) continue;
        gap = wrong = !shared_page_open(&s->keys, &wants[n_good].page, r.bytes, r.n, wants[n_good].bytes);
        if (gap) continue;
        n_good++;
        n_bytes += r.n;
    }
    if (st == RD_OK && wrong) st = drop_wrong(s, &wants[n_good], generation, deadline_ns, &err);
    if (st == RD_OK)
        way_worked(s, &s->reading);
    else
        way_failed(s, &s->reading, err.text);
    mutex_lock(&s->lock);
    s->counts.n_read += n_good;
    s->counts.n_bytes_read += n_bytes;
    mutex_unlock(&s->lock);
    return n_good;
}

/* ---- the queue ---- */

static void enqueue(struct shared_store *s, struct offer *offer, uint64_t cost)
{
    bool has_room;

    mutex_lock(&s->lock);
    has_room = s->counts.queue_bytes + cost <= s->o.queue_bytes && s->n_waiting < MOST_WAITING && !s->closing;
    if (offer && has_room) {
        *(s->tail ? &s->tail->next : &s->head) = offer;
        s->tail = offer;
        s->n_waiting++;
        s->counts.queue_bytes += cost;
        cond_signal(&s->bell);
    } else {
        s->counts.n_dropped++;
    }
    mutex_unlock(&s->lock);
    if (!has_room) mem_free(offer);
}

void shared_store_offer(struct shared_store *s, const struct shared_page *page, const void *bytes)
{
    size_t n = shared_page_value_bytes(page->page_tokens, page->page_bytes);
    struct offer *offer;
    bool is_full;

    mutex_lock(&s->lock);
    is_full = s->counts.queue_bytes + sizeof(*offer) + n > s->o.queue_bytes;
    mutex_unlock(&s->lock);
    offer = is_full ? NULL : mem_alloc(1, sizeof(*offer) + n);
    if (offer) {
        *offer = (struct offer){.digest = page->digest, .page_bytes = page->page_bytes, .n_value = n};
        shared_page_seal(&s->keys, page, bytes, offer->value);
    }
    enqueue(s, offer, sizeof(*offer) + n);
}

void shared_store_remove(struct shared_store *s, struct hash128 digest, uint64_t page_bytes)
{
    struct offer *offer = mem_zalloc(1, sizeof(*offer));

    if (offer) *offer = (struct offer){.digest = digest, .page_bytes = page_bytes};
    enqueue(s, offer, sizeof(*offer));
}

static void free_batch(struct offer *batch)
{
    for (struct offer *next; batch; batch = next) {
        next = batch->next;
        mem_free(batch);
    }
}

void shared_store_clear(struct shared_store *s)
{
    struct offer *waiting;
    uint64_t drawn = 0;

    while (drawn == 0) random_os(&drawn, sizeof(drawn));
    mutex_lock(&s->lock);
    s->wanted_generation = drawn;
    s->n_clears++;
    waiting = s->head;
    s->head = s->tail = NULL;
    s->n_waiting = 0;
    s->counts.queue_bytes = 0;
    cond_signal(&s->bell);
    mutex_unlock(&s->lock);
    free_batch(waiting);
}

bool shared_store_has_room(struct shared_store *s, uint64_t page_bytes)
{
    uint64_t n = sizeof(struct offer) + shared_page_value_bytes(s->o.page_tokens, page_bytes);
    bool has;

    mutex_lock(&s->lock);
    has = s->counts.queue_bytes + n <= s->o.queue_bytes && s->n_waiting < MOST_WAITING && !s->closing &&
          now_ns() >= s->writing.rest_until_ns;
    mutex_unlock(&s->lock);
    return has;
}

uint64_t shared_store_n_losses(struct shared_store *s)
{
    uint64_t n;

    mutex_lock(&s->lock);
    n = s->counts.n_read_errors + s->counts.n_write_errors + s->counts.n_dropped;
    mutex_unlock(&s->lock);
    return n;
}

/* ---- the writer ---- */

/* The first in the queue, a batch of them: pages, or such as are to be removed; so these stay in order. */
static struct offer *take_batch(struct shared_store *s, uint64_t *n_clears)
{
    struct offer *first = NULL, *last = NULL;
    uint64_t n_bytes = 0;

    mutex_lock(&s->lock);
    for (uint32_t n = 0; s->head && n < BATCH_MOST && n_bytes < BATCH_BYTES; n++) {
        struct offer *offer = s->head;

        if (first && !first->n_value != !offer->n_value) break;
        s->head = offer->next;
        if (!s->head) s->tail = NULL;
        offer->next = NULL;
        *(last ? &last->next : &first) = offer;
        last = offer;
        n_bytes += sizeof(*offer) + offer->n_value;
        s->n_waiting--;
        s->counts.queue_bytes -= sizeof(*offer) + offer->n_value;
    }
    *n_clears = s->n_clears;
    mutex_unlock(&s->lock);
    return first;
}

static rd_status answer(struct way *w, uint64_t deadline_ns, struct resp_reply *r, struct rd_error *err)
{
    rd_status st = resp_next(w->conn, deadline_ns, r, err);

    return st == RD_OK ? refused(r, err) : st;
}

/* A new generation, which makes all older names unknown. */
static rd_status write_generation(struct shared_store *s, uint64_t deadline_ns, struct rd_error *err)
{
    char name[SHARED_NAME_BYTES], text[24];
    struct resp_reply r;
    uint64_t wanted;
    rd_status st;

    mutex_lock(&s->lock);
    wanted = s->wanted_generation;
    mutex_unlock(&s->lock);
    if (wanted == 0) return RD_OK;
    generation_name(s, name);
    snprintf(text, sizeof(text), "%" PRIx64, wanted);
    st = ask(&s->writing, "SET", name, text);
    if (st == RD_OK) st = answer(&s->writing, deadline_ns, &r, err);
    if (st != RD_OK) return st;
    mutex_lock(&s->lock);
    s->generation = wanted;
    if (s->wanted_generation == wanted) s->wanted_generation = 0;
    mutex_unlock(&s->lock);
    return RD_OK;
}

/* What the store has lives longer, and is known then; what is to go goes. RD_E_AGAIN: another generation. */
static rd_status touch_batch(struct shared_store *s, struct offer *batch, const char *expiry, uint64_t deadline_ns,
                             struct rd_error *err)
{
    struct way *w = &s->writing;
    uint64_t generation = generation_now(s);
    char name[SHARED_NAME_BYTES];
    struct resp_reply r;
    bool same;
    rd_status st = ask_generation(s, w);

    for (struct offer *x = batch; st == RD_OK && x; x = x->next) {
        name_of(s, generation, x->digest, x->page_bytes, name);
        st = x->n_value ? ask(w, "EXPIRE", name, expiry) : ask(w, "DEL", name, NULL);
    }
    if (st == RD_OK) st = take_generation(s, w, deadline_ns, &same, err);
    for (struct offer *x = batch; st == RD_OK && x; x = x->next) {
        st = answer(w, deadline_ns, &r, err);
        if (st == RD_OK && r.kind != RESP_NUMBER) st = error_set(err, RD_E_FORMAT, "it does not answer as Redis does");
        x->is_there = st == RD_OK && r.kind == RESP_NUMBER && r.number == 1;
    }
    return st == RD_OK && !same ? RD_E_AGAIN : st;
}

static rd_status send_batch(struct shared_store *s, struct offer *batch, const char *expiry, uint64_t deadline_ns,
                            uint64_t *n_sent, struct rd_error *err)
{
    struct way *w = &s->writing;
    uint64_t generation = generation_now(s);
    char name[SHARED_NAME_BYTES];
    struct resp_reply r;
    rd_status st = RD_OK;

    *n_sent = 0;
    for (struct offer *x = batch; st == RD_OK && x; x = x->next) {
        const char *parts[] = {"SET", name, (const char *)x->value, "EX", expiry};
        size_t n[] = {3, 0, x->n_value, 2, strlen(expiry)};

        if (x->is_there || x->n_value == 0) continue;
        name_of(s, generation, x->digest, x->page_bytes, name);
        n[1] = strlen(name);
        st = resp_ask(w->conn, 5, parts, n);
    }
    for (struct offer *x = batch; st == RD_OK && x; x = x->next) {
        if (x->is_there || x->n_value == 0) continue;
        st = answer(w, deadline_ns, &r, err);
        if (st == RD_OK && r.kind != RESP_TEXT) st = error_set(err, RD_E_FORMAT, "it does not answer as Redis does");
        if (st != RD_OK) break;
        *n_sent += x->n_value;
        x->is_there = true;
        mutex_lock(&s->lock);
        s->counts.n_written++;
        s->counts.n_bytes_written += x->n_value;
        mutex_unlock(&s->lock);
    }
    return st;
}

static void count_touched(struct shared_store *s, const struct offer *batch)
{
    mutex_lock(&s->lock);
    for (const struct offer *x = batch; x; x = x->next) {
        if (!x->is_there) continue;
        if (x->n_value)
            s->counts.n_known++;
        else
            s->counts.n_removed++;
    }
    mutex_unlock(&s->lock);
}

static void count_dropped(struct shared_store *s, const struct offer *batch)
{
    mutex_lock(&s->lock);
    for (const struct offer *x = batch; x; x = x->next) s->counts.n_dropped += !x->is_there;
    mutex_unlock(&s->lock);
}

/* All was cleared since then. */
static bool is_cleared(struct shared_store *s, uint64_t n_clears)
{
    bool is;

    mutex_lock(&s->lock);
    is = s->n_clears != n_clears;
    mutex_unlock(&s->lock);
    return is;
}

/* batch NULL: only a new generation is written. n_clears: when it was taken. */
static void write_batch(struct shared_store *s, struct offer *batch, uint64_t n_clears, uint64_t *n_sent)
{
    struct rd_error err = {RD_OK, "no memory"};
    uint64_t deadline = now_ns() + BATCH_NS;
    rd_status st = RD_E_AGAIN;
    char expiry[16];

    *n_sent = 0;
    if (!way_open(s, &s->writing, deadline)) {
        count_dropped(s, batch);
        return;
    }
    snprintf(expiry, sizeof(expiry), "%u", s->o.expiry_s);
    for (int i = 0; i < 3 && st == RD_E_AGAIN; i++) {
        st = write_generation(s, deadline, &err);
        if (is_cleared(s, n_clears)) batch = NULL;
        if (st == RD_OK && batch) st = touch_batch(s, batch, expiry, deadline, &err);
    }
    if (st == RD_OK && batch) {
        count_touched(s, batch);
        st = send_batch(s, batch, expiry, deadline, n_sent, &err);
    }
    if (st == RD_OK)
        way_worked(s, &s->writing);
    else if (st != RD_E_AGAIN)
        way_failed(s, &s->writing, err.text);
    if (st != RD_OK) count_dropped(s, batch);
}

/* Waits until there is something to write and the direction does not rest. False: it is over. */
static bool wait_for_work(struct shared_store *s)
{
    mutex_lock(&s->lock);
    for (;;) {
        uint64_t now = now_ns(), rest = s->writing.rest_until_ns;
        bool wanted = s->head || s->wanted_generation;

        if (s->closing && (!s->head || rest > now || now > s->closing_ns + CLOSE_NS)) {
            mutex_unlock(&s->lock);
            return false;
        }
        if (wanted && now >= rest) break;
        cond_wait_ns(&s->bell, &s->lock, wanted ? rest - now : IDLE_NS);
    }
    mutex_unlock(&s->lock);
    return true;
}

/* So that the average stays below the rate. */
static void hold_back(struct shared_store *s, uint64_t n_bytes)
{
    uint64_t until = now_ns() + (s->o.max_rate ? n_bytes * 1000000000 / s->o.max_rate : 0), now;

    mutex_lock(&s->lock);
    while (!s->closing && (now = now_ns()) < until) cond_wait_ns(&s->bell, &s->lock, until - now);
    mutex_unlock(&s->lock);
}

static void writer_main(void *arg)
{
    struct shared_store *s = arg;

    while (wait_for_work(s)) {
        uint64_t n_sent, n_clears;
        struct offer *batch = take_batch(s, &n_clears);

        write_batch(s, batch, n_clears, &n_sent);
        free_batch(batch);
        hold_back(s, n_sent);
    }
}

/* ---- life ---- */

rd_status shared_store_check(const struct shared_store_options *o, struct rd_error *err)
{
    struct store_url url;
    rd_status st = store_url_parse(o->url, &url, err);

    if (st != RD_OK) return st;
    if (!resp_is_built()) return resp_open(&url, 0, 0, &(struct resp_conn *){NULL}, err);
    if (o->prefix && (strlen(o->prefix) > SHARED_PREFIX_MOST || !*o->prefix))
        return error_set(err, RD_E_INVALID, "the prefix of names in the shared store: 1 to %u characters wanted",
                         SHARED_PREFIX_MOST);
    return RD_OK;
}

rd_status shared_store_open(const struct shared_store_options *o, struct shared_store **out, struct rd_error *err)
{
    rd_status st = shared_store_check(o, err);
    struct shared_store *s;

    if (st != RD_OK) return st;
    s = mem_zalloc(1, sizeof(*s));
    if (!s) return RD_E_NOMEM;
    (void)store_url_parse(o->url, &s->url, NULL);
    store_url_show(&s->url, s->shown);
    s->o = *o;
    s->o.url = s->o.secret = s->o.prefix = NULL;
    snprintf(s->prefix, sizeof(s->prefix), "%s", o->prefix ? o->prefix : SHARED_PREFIX);
    if (s->o.expiry_s == 0) s->o.expiry_s = SHARED_EXPIRY_S;
    if (s->o.queue_bytes == 0) s->o.queue_bytes = SHARED_QUEUE;
    shared_keys_make(o->secret, &s->keys);
    mutex_init(&s->lock);
    cond_init(&s->bell);
    s->reading.what = "read from";
    s->writing.what = "written to";
    st = thread_start(&s->writer, "store-writer", writer_main, s);
    if (st != RD_OK) {
        shared_store_close(s);
        return st;
    }
    log_info("shared store: %s", s->shown);
    *out = s;
    return RD_OK;
}

void shared_store_close(struct shared_store *s)
{
    if (!s) return;
    mutex_lock(&s->lock);
    s->closing = true;
    s->closing_ns = now_ns();
    cond_broadcast(&s->bell);
    mutex_unlock(&s->lock);
    thread_join(&s->writer);
    resp_close(s->reading.conn);
    resp_close(s->writing.conn);
    free_batch(s->head);
    cond_deinit(&s->bell);
    mutex_deinit(&s->lock);
    mem_free(s);
}

const struct shared_keys *shared_store_keys(const struct shared_store *s)
{
    return &s->keys;
}

void shared_store_get_counts(struct shared_store *s, struct shared_store_counts *out)
{
    mutex_lock(&s->lock);
    *out = s->counts;
    out->is_on = 1;
    out->reads = !s->reading.is_failing;
    out->writes = !s->writing.is_failing;
    out->read_trouble = s->reading.trouble;
    out->write_trouble = s->writing.trouble;
    mutex_unlock(&s->lock);
}
