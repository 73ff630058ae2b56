/* hub/hub_ranges.c - see hub_ranges.h. */
#include "hub/hub_ranges.h"
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "hub/hub_attempt.h"

#define SECOND_NS 1000000000ull
enum { POLL_MS = 100 };

/* A connection: its handle, and the piece that it asks for. */
struct lane {
    struct ranges *r;
    struct hub_attempt attempt;
    struct hub_sink sink;
    struct hub_answer answer;
    struct rd_error err;
    CURL *curl;
    uint64_t piece;
    bool is_busy, is_full; /* is_full: its piece is whole */
    bool is_direct;        /* it asks where another was redirected to, which may not hold any more */
    int hop;
    char here[HUB_MAX_URL_BYTES];
};

struct ranges {
    struct hub_http *http;
    const struct hub_pieces *p;
    const char *url, *if_range;
    CURLM *multi;
    struct lane *lanes;
    uint32_t n_lanes, n_busy, n_allowed;
    uint64_t n_pieces, first_missing;
    bool has_begun;   /* one was answered with a range */
    char etag[160];   /* of that answer; "": none, or a weak one */
    uint32_t n_tried; /* in a row, without a byte */
    uint64_t held_until_ns;
    rd_status st;
    struct rd_error *err;
    char direct[HUB_MAX_URL_BYTES]; /* where the first was redirected to; "": not known */
};

static uint64_t piece_size(const struct ranges *r, uint64_t piece)
{
    uint64_t from = piece * r->p->piece_bytes;

    return r->p->n_bytes - from < r->p->piece_bytes ? r->p->n_bytes - from : r->p->piece_bytes;
}

static bool is_whole(const struct ranges *r, uint64_t piece)
{
    return r->p->have(r->p->arg, piece) == piece_size(r, piece);
}

/* ---- the body of an answer ---- */

static uint64_t have(void *arg)
{
    (void)arg;
    return 0;
}

static rd_status begin(void *arg, uint64_t from, uint64_t n_total, struct rd_error *err)
{
    struct lane *l = arg;
    struct ranges *r = l->r;
    const char *etag = l->attempt.etag, *known = r->if_range ? r->if_range : r->etag;
    bool is_same = n_total == r->p->n_bytes && (!etag[0] || !known[0] || !strcmp(etag, known));
    char host[128];

    (void)from; /* hub_attempt saw that it is what was asked for */
    hub_host_of(l->here, host, sizeof(host));
    if (l->attempt.status == 200 && (is_same || n_total == UINT64_MAX))
        return error_set(err, RD_E_AGAIN, "%s gives no parts of a file", host);
    if (!is_same || l->attempt.status != 206)
        return error_set(err, RD_E_AGAIN, "the file has changed at %s meanwhile", host);
    if (!r->has_begun) snprintf(r->etag, sizeof(r->etag), "%s", etag);
    r->has_begun = true;
    return RD_OK;
}

static rd_status put(void *arg, const void *data, size_t n, struct rd_error *err)
{
    struct lane *l = arg;
    const struct hub_pieces *p = l->r->p;
    uint64_t missing = piece_size(l->r, l->piece) - p->have(p->arg, l->piece);
    size_t fits = n < missing ? n : (size_t)missing;
    rd_status st = p->put(p->arg, l->piece, data, fits, err);

    l->is_full = st == RD_OK && fits == missing;
    return st == RD_OK && fits < n ? error_set(err, RD_E_IO, "more came than was asked for") : st;
}

/* ---- connections ---- */

static void fail(struct ranges *r, rd_status st, const struct rd_error *err)
{
    if (r->st != RD_OK) return;
    r->st = st;
    error_set(r->err, st, "%s", err->text);
}

static void release(struct ranges *r, struct lane *l)
{
    l->is_busy = false;
    r->n_busy--;
}

/* Sends the lane's request to l->here. */
static void ask(struct ranges *r, struct lane *l)
{
    if (!hub_attempt_start(&l->attempt, l->here, r->if_range) || curl_multi_add_handle(r->multi, l->curl)) {
        error_set(&l->err, RD_E_NOMEM, "out of memory");
        fail(r, RD_E_NOMEM, &l->err);
        release(r, l);
    }
}

static void begin_piece(struct ranges *r, struct lane *l, uint64_t piece, bool is_direct)
{
    uint64_t from = piece * r->p->piece_bytes;

    l->piece = piece;
    l->is_full = false;
    l->is_direct = is_direct;
    l->hop = 0;
    snprintf(l->here, sizeof(l->here), "%s", is_direct ? r->direct : r->url);
    l->attempt = (struct hub_attempt){.http = r->http,
                                      .curl = l->curl,
                                      .sink = &l->sink,
                                      .answer = &l->answer,
                                      .err = &l->err,
                                      .from = from + r->p->have(r->p->arg, piece),
                                      .to = from + piece_size(r, piece)};
    l->err = (struct rd_error){RD_OK, ""};
    l->is_busy = true;
    r->n_busy++;
    ask(r, l);
}

static bool is_asked_for(const struct ranges *r, uint64_t piece)
{
    for (uint32_t i = 0; i < r->n_lanes; i++)
        if (r->lanes[i].is_busy && r->lanes[i].piece == piece) return true;
    return false;
}

/* The first piece that is missing and that nobody asks for; n_pieces: none. */
static uint64_t next_piece(struct ranges *r)
{
    uint64_t piece;

    while (r->first_missing < r->n_pieces && is_whole(r, r->first_missing)) r->first_missing++;
    for (piece = r->first_missing; piece < r->n_pieces; piece++)
        if (!is_whole(r, piece) && !is_asked_for(r, piece)) break;
    return piece;
}

static void begin_pieces(struct ranges *r)
{
    uint32_t n_most = r->has_begun ? r->n_allowed : 1;

    if (clock_now_ns(clock_system()) < r->held_until_ns) return;
    for (uint32_t i = 0; i < r->n_lanes && r->n_busy < n_most && r->st == RD_OK; i++) {
        uint64_t piece = r->lanes[i].is_busy ? r->n_pieces : next_piece(r);

        if (piece < r->n_pieces) begin_piece(r, &r->lanes[i], piece, r->direct[0]);
    }
}

/* Another try may follow: after a wait, for all connections. Those that fail together count once. */
static void hold(struct ranges *r, const struct lane *l, uint32_t asked_s, rd_status st)
{
    struct rd_error err = l->err;
    uint64_t now = clock_now_ns(clock_system());
    uint32_t wait_s;

    if (l->attempt.has_moved) r->n_tried = 0;
    if (l->attempt.status >= 400) r->n_allowed = r->n_allowed > 1 ? r->n_allowed / 2 : 1;
    if (now < r->held_until_ns && now + asked_s * SECOND_NS <= r->held_until_ns) return;
    if (!hub_http_may_try_again(r->http, r->n_tried, asked_s, &wait_s, &err)) {
        fail(r, st, &err);
        return;
    }
    r->n_tried++;
    r->held_until_ns = now + wait_s * SECOND_NS;
}

/* Goes on at `next`, where the lane was redirected to. */
static void follow(struct ranges *r, struct lane *l, const char *next)
{
    char host[128];
    rd_status st;

    if (l->hop++ == HUB_MAX_HOPS)
        st = error_set(&l->err, RD_E_IO, "%s: more than %d redirects", hub_host_of(r->url, host, sizeof(host)),
                       HUB_MAX_HOPS);
    else
        st = hub_attempt_may_redirect(l->here, next, &l->err);
    if (st != RD_OK) {
        fail(r, st, &l->err);
        release(r, l);
        return;
    }
    snprintf(l->here, sizeof(l->here), "%s", next);
    ask(r, l);
}

/* Unless it is another one by now. */
static void forget_direct(struct ranges *r, const struct lane *l)
{
    if (strcmp(r->direct, l->here) == 0) r->direct[0] = 0;
}

static void lane_ended(struct ranges *r, struct lane *l, CURLcode rc)
{
    char next[HUB_MAX_URL_BYTES];
    enum hub_outcome outcome;
    uint32_t wait_s = 0;
    rd_status st = RD_OK;

    curl_multi_remove_handle(r->multi, l->curl);
    hub_attempt_end(&l->attempt, rc, next);
    if (l->is_full) {
        r->n_tried = 0;
        if (l->hop && !r->direct[0]) snprintf(r->direct, sizeof(r->direct), "%s", l->here);
        release(r, l);
        return;
    }
    if (rc == CURLE_OK && next[0]) {
        follow(r, l, next);
        return;
    }
    outcome = hub_attempt_judge(&l->attempt, rc, l->here, &wait_s, &st);
    release(r, l);
    if (outcome == HUB_FAILED && l->is_direct && l->attempt.failed == RD_OK && l->attempt.status >= 400)
        forget_direct(r, l); /* such an address holds for a while only: ask at the first one again */
    else if (outcome == HUB_FAILED)
        fail(r, st, &l->err);
    else if (outcome == HUB_AGAIN)
        hold(r, l, wait_s, st);
    else if (!l->attempt.has_moved) { /* a part of a part, and an empty one */
        error_set(&l->err, RD_E_IO, "nothing came of what was asked for");
        hold(r, l, 0, RD_E_IO);
    }
}

static bool has_missing(struct ranges *r)
{
    while (r->first_missing < r->n_pieces && is_whole(r, r->first_missing)) r->first_missing++;
    return r->first_missing < r->n_pieces;
}

static void turn(struct ranges *r)
{
    CURLMsg *m;
    int n;

    begin_pieces(r);
    if (curl_multi_perform(r->multi, &n)) {
        struct rd_error err;

        fail(r, error_set(&err, RD_E_NOMEM, "out of memory"), &err);
    }
    while (r->st == RD_OK && (m = curl_multi_info_read(r->multi, &n))) {
        CURLcode rc = m->data.result;
        CURL *curl = m->easy_handle;

        if (m->msg != CURLMSG_DONE) continue;
        for (uint32_t i = 0; i < r->n_lanes; i++)
            if (r->lanes[i].curl == curl) lane_ended(r, &r->lanes[i], rc);
    }
    if (r->http->o.tick) r->http->o.tick(r->http->o.user);
    if (hub_http_is_cancelled(r->http)) {
        struct rd_error err;

        fail(r, error_set(&err, RD_E_CANCELLED, "stopped"), &err);
    }
}

static bool open_lanes(struct ranges *r)
{
    r->lanes = mem_zalloc(r->n_lanes, sizeof(*r->lanes));
    r->multi = curl_multi_init();
    if (!r->lanes || !r->multi) return false;
    if (curl_multi_setopt(r->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING)) return false;
    for (uint32_t i = 0; i < r->n_lanes; i++) {
        struct lane *l = &r->lanes[i];

        l->r = r;
        l->sink = (struct hub_sink){l, have, begin, put};
        if (!(l->curl = curl_easy_init())) return false;
    }
    return true;
}

static void close_lanes(struct ranges *r)
{
    for (uint32_t i = 0; r->lanes && i < r->n_lanes; i++) {
        struct lane *l = &r->lanes[i];

        if (l->is_busy) curl_multi_remove_handle(r->multi, l->curl);
        curl_slist_free_all(l->attempt.headers);
        curl_easy_cleanup(l->curl);
    }
    curl_multi_cleanup(r->multi);
    mem_free(r->lanes);
}

rd_status hub_http_get_pieces(struct hub_http *h, const char *url, const char *if_range, uint32_t n_connections,
                              const struct hub_pieces *pieces, struct rd_error *err)
{
    struct rd_error unseen;
    struct ranges *r = mem_zalloc(1, sizeof(*r));
    rd_status st;

    if (!err) err = &unseen;
    if (!r) return error_set(err, RD_E_NOMEM, "out of memory");
    r->http = h;
    r->p = pieces;
    r->url = url;
    r->if_range = if_range;
    r->err = err;
    r->n_lanes = r->n_allowed = n_connections;
    r->n_pieces = (pieces->n_bytes + pieces->piece_bytes - 1) / pieces->piece_bytes;
    if (strlen(url) >= HUB_MAX_URL_BYTES)
        r->st = error_set(err, RD_E_INVALID, "the URL is too long");
    else if (!open_lanes(r))
        r->st = error_set(err, RD_E_NOMEM, "out of memory");
    while (r->st == RD_OK && has_missing(r)) {
        turn(r);
        if (r->st == RD_OK && has_missing(r)) curl_multi_poll(r->multi, NULL, 0, POLL_MS, NULL);
    }
    close_lanes(r);
    st = r->st;
    mem_free(r);
    return st;
}
