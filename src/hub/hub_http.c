/* hub/hub_http.c - see hub_http.h. */
#include "hub/hub_http.h"
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"

enum {
    MAX_HOPS = 10,
    MAX_WAIT_S = 300, /* whoever wants more patience is told to come back */
    MAX_URL_BYTES = 8192
};

struct hub_http {
    struct hub_http_options o;
    CURL *curl;
    char *bearer; /* "Authorization: Bearer ..." */
};

/* One request and its answer. */
struct attempt {
    struct hub_http *http;
    const struct hub_sink *sink;
    struct hub_answer *answer;
    struct rd_error *err;
    uint64_t from, n_total, n_length; /* from: asked for; n_length: Content-Length */
    uint64_t range_from, range_total; /* Content-Range */
    long status;
    bool is_first, has_range, has_begun, has_moved, is_head;
    rd_status failed; /* of the sink */
    char said[256];   /* X-Error-Message, quoted */
};

static void *curl_alloc(size_t n)
{
    return mem_alloc(n, 1);
}

static void *curl_realloc(void *p, size_t n)
{
    return mem_realloc(p, n, 1);
}

bool hub_http_is_built(void)
{
    return true;
}

/* The library's own state stays until the process ends, as it wants. */
bool hub_http_start(void)
{
    static bool is_started;

    if (!is_started)
        is_started = curl_global_init_mem(CURL_GLOBAL_DEFAULT, curl_alloc, mem_free, curl_realloc, mem_strdup,
                                          mem_zalloc) == CURLE_OK;
    return is_started;
}

rd_status hub_http_create(const struct hub_http_options *o, struct hub_http **out, struct rd_error *err)
{
    struct hub_http *h = mem_zalloc(1, sizeof(*h));
    size_t n = o->token ? strlen(o->token) : 0;

    if (!h) goto fail;
    if (!hub_http_start()) {
        hub_http_destroy(h);
        return error_set(err, RD_E_UNSUPPORTED,
                         "libcurl.so.4 cannot be used, which downloads (Debian: apt-get install libcurl4)");
    }
    h->o = *o;
    if (n) {
        if (strpbrk(o->token, "\r\n")) {
            hub_http_destroy(h);
            return error_set(err, RD_E_INVALID, "the token has more than one line");
        }
        h->bearer = mem_alloc(n + 32, 1);
        if (!h->bearer) goto fail;
        snprintf(h->bearer, n + 32, "Authorization: Bearer %s", o->token);
    }
    h->curl = curl_easy_init();
    if (!h->curl) goto fail;
    *out = h;
    return RD_OK;

fail:
    hub_http_destroy(h);
    return error_set(err, RD_E_NOMEM, "out of memory");
}

void hub_http_destroy(struct hub_http *h)
{
    if (!h) return;
    curl_easy_cleanup(h->curl);
    mem_free(h->bearer);
    mem_free(h);
}

static bool is_cancelled(const struct hub_http *h)
{
    return h->o.cancelled && *h->o.cancelled;
}

/* The value of a header, without blanks around; false: another header, or too long for us. */
static bool header_value(const char *line, size_t n, const char *name, char *value, size_t cap)
{
    size_t k = strlen(name);

    if (n <= k || strncasecmp(line, name, k) || line[k] != ':') return false;
    line += k + 1;
    n -= k + 1;
    while (n && strchr(" \t", *line)) line++, n--;
    while (n && strchr(" \t\r\n", line[n - 1])) n--;
    if (n >= cap || memchr(line, 0, n)) return false;
    memcpy(value, line, n);
    value[n] = 0;
    return true;
}

/* W/"abc" -> abc. */
static bool plain_etag(const char *value, char *out, size_t cap)
{
    bool is_weak = !strncmp(value, "W/", 2);
    size_t n;

    if (is_weak) value += 2;
    n = strlen(value);
    if (n >= 2 && value[0] == '"' && value[n - 1] == '"') value++, n -= 2;
    if (n < cap) snprintf(out, cap, "%.*s", (int)n, value);
    return is_weak;
}

/* <URL>; rel="next" */
static void read_link(const char *value, char *next, size_t cap)
{
    const char *open = strchr(value, '<'), *close = open ? strchr(open, '>') : NULL;

    if (!close || !strstr(close, "rel=\"next\"") || (size_t)(close - open) > cap) return;
    snprintf(next, cap, "%.*s", (int)(close - open - 1), open + 1);
}

/* bytes 100-199/200 */
static void read_range(struct attempt *a, const char *value)
{
    const char *dash = strchr(value, '-'), *slash = strchr(value, '/');

    if (strncasecmp(value, "bytes ", 6) || !slash) return;
    if (!parse_u64(slash + 1, strlen(slash + 1), &a->range_total)) a->range_total = UINT64_MAX;
    a->has_range = dash && dash < slash && parse_u64(value + 6, (size_t)(dash - value - 6), &a->range_from);
}

static size_t take_header(char *line, size_t size, size_t n, void *user)
{
    struct attempt *a = user;
    struct hub_answer *r = a->answer;
    char value[1024];
    uint64_t number;

    n *= size;
    if (n > 5 && !strncasecmp(line, "HTTP/", 5)) { /* also behind 100 Continue and a proxy's answer */
        a->has_range = false;
        a->n_length = UINT64_MAX;
        a->said[0] = 0;
        return n;
    }
    if (header_value(line, n, "Content-Length", value, sizeof(value)) && parse_u64(value, strlen(value), &number))
        a->n_length = number;
    else if (header_value(line, n, "Content-Range", value, sizeof(value)))
        read_range(a, value);
    else if (header_value(line, n, "X-Error-Message", value, sizeof(value)))
        error_quote(a->said, sizeof(a->said), value, strlen(value));
    else if (header_value(line, n, "Link", value, sizeof(value)))
        read_link(value, r->next, sizeof(r->next));
    if (!a->is_first) return n;
    if (header_value(line, n, "X-Repo-Commit", value, sizeof(r->commit)))
        snprintf(r->commit, sizeof(r->commit), "%.*s", (int)sizeof(r->commit) - 1, value);
    else if (header_value(line, n, "ETag", value, sizeof(value)))
        r->is_weak = plain_etag(value, r->etag, sizeof(r->etag));
    else if (header_value(line, n, "X-Linked-Etag", value, sizeof(value)))
        plain_etag(value, r->linked_etag, sizeof(r->linked_etag));
    else if (header_value(line, n, "X-Linked-Size", value, sizeof(value)) && parse_u64(value, strlen(value), &number))
        r->n_linked = number;
    return n;
}

/* Before an attempt's first byte. */
static rd_status begin(struct attempt *a)
{
    uint64_t from = 0, n_total = a->n_length;

    if (a->status == 206) {
        if (!a->has_range || a->range_from != a->from)
            return error_set(a->err, RD_E_IO, "bytes from %llu on were asked for, and others came",
                             (unsigned long long)a->from);
        from = a->from;
        n_total = a->range_total;
    }
    a->has_begun = true;
    a->n_total = n_total;
    a->answer->n_bytes = n_total;
    return a->sink->begin(a->sink->arg, from, n_total, a->err);
}

static size_t take_body(char *data, size_t size, size_t n, void *user)
{
    struct attempt *a = user;

    n *= size;
    if (!a->status) curl_easy_getinfo(a->http->curl, CURLINFO_RESPONSE_CODE, &a->status);
    if (a->status != 200 && a->status != 206) return n; /* a page that says what the status says */
    if (!a->has_begun) a->failed = begin(a);
    if (a->failed == RD_OK) a->failed = a->sink->put(a->sink->arg, data, n, a->err);
    if (a->failed != RD_OK) return 0;
    a->has_moved |= n > 0;
    return n;
}

static int take_progress(void *user, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now)
{
    struct attempt *a = user;

    (void)total, (void)now, (void)up_total, (void)up_now;
    if (a->http->o.tick) a->http->o.tick(a->http->o.user);
    return is_cancelled(a->http);
}

bool hub_same_origin(const char *a, const char *b)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *ua = curl_url(), *ub = curl_url();
    bool same = ua && ub && !curl_url_set(ua, CURLUPART_URL, a, 0) && !curl_url_set(ub, CURLUPART_URL, b, 0);

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts) && same; i++) {
        char *pa = NULL, *pb = NULL;

        same = !curl_url_get(ua, parts[i], &pa, CURLU_DEFAULT_PORT) &&
               !curl_url_get(ub, parts[i], &pb, CURLU_DEFAULT_PORT) && !strcasecmp(pa, pb);
        curl_free(pa);
        curl_free(pb);
    }
    curl_url_cleanup(ua);
    curl_url_cleanup(ub);
    return same;
}

static const char *host_of(const char *url, char *host, size_t cap)
{
    const char *at = strstr(url, "://");
    size_t n;

    at = at ? at + 3 : url;
    n = strcspn(at, "/?#");
    if (memchr(at, '@', n)) return "the server"; /* a password may stand before it */
    return error_quote(host, cap, at, n);
}

static bool set_options(struct hub_http *h, const char *url, struct attempt *a, struct curl_slist *headers)
{
    CURL *c = h->curl;
    bool ok = true;

    curl_easy_reset(c);
    ok = ok && !curl_easy_setopt(c, CURLOPT_URL, url);
    ok = ok && !curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    ok = ok && !curl_easy_setopt(c, CURLOPT_USERAGENT, "radish/" RADISH_VERSION);
    ok = ok && !curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    ok = ok && !curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    ok = ok && !curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)h->o.timeout_s);
    ok = ok && !curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    ok = ok && !curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)h->o.timeout_s);
    ok = ok && !curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_header);
    ok = ok && !curl_easy_setopt(c, CURLOPT_HEADERDATA, a);
    ok = ok && !curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_body);
    ok = ok && !curl_easy_setopt(c, CURLOPT_WRITEDATA, a);
    ok = ok && !curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, take_progress);
    ok = ok && !curl_easy_setopt(c, CURLOPT_XFERINFODATA, a);
    ok = ok && !curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    if (a->is_head) ok = ok && !curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
    for (size_t i = 0; i < 2; i++) { /* which other programs read for the same */
        static const char *const names[] = {"SSL_CERT_FILE", "CURL_CA_BUNDLE"};
        const char *file = getenv(names[i]);

        if (file && *file) ok = ok && !curl_easy_setopt(c, CURLOPT_CAINFO, file);
    }
    return ok;
}

static bool add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);

    if (longer) *list = longer;
    return longer;
}

/* The headers of a request to url; false: out of memory. */
static bool make_headers(const struct hub_http *h, const char *url, uint64_t from, const char *if_range,
                         struct curl_slist **out)
{
    char line[256];
    bool ok = true;

    *out = NULL;
    if (h->bearer && hub_same_origin(url, h->o.endpoint)) ok = add_header(out, h->bearer);
    if (ok && from) {
        snprintf(line, sizeof(line), "Range: bytes=%llu-", (unsigned long long)from);
        ok = add_header(out, line);
    }
    if (ok && from && if_range) {
        snprintf(line, sizeof(line), "If-Range: \"%s\"", if_range);
        ok = add_header(out, line);
    }
    return ok;
}

/* One request at url, redirects not followed: curl's outcome, and where it is redirected to ("": nowhere). */
static CURLcode ask(struct attempt *a, const char *url, const char *if_range, char location[MAX_URL_BYTES])
{
    struct hub_http *h = a->http;
    struct curl_slist *headers;
    CURLcode rc = CURLE_OUT_OF_MEMORY;
    char *to = NULL;

    location[0] = 0;
    a->status = 0;
    a->n_length = UINT64_MAX;
    a->answer->next[0] = 0;
    if (make_headers(h, url, a->from, if_range, &headers) && set_options(h, url, a, headers)) {
        rc = curl_easy_perform(h->curl);
        curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &a->status);
        if (rc == CURLE_OK && a->status >= 300 && a->status < 400 &&
            curl_easy_getinfo(h->curl, CURLINFO_REDIRECT_URL, &to) == CURLE_OK && to && strlen(to) < MAX_URL_BYTES)
            snprintf(location, MAX_URL_BYTES, "%s", to);
    }
    curl_slist_free_all(headers);
    return rc;
}

/* Whether a redirect may be followed. */
static rd_status check_redirect(const char *from, const char *to, struct rd_error *err)
{
    char a[128], b[128];
    bool is_secure = !strncasecmp(to, "https://", 8);

    if (!is_secure && strncasecmp(to, "http://", 7))
        return error_set(err, RD_E_IO, "%s redirects to what is neither http nor https", host_of(from, a, sizeof(a)));
    if (!is_secure && !strncasecmp(from, "https://", 8))
        return error_set(err, RD_E_IO, "%s redirects from https to http, at %s", host_of(from, a, sizeof(a)),
                         host_of(to, b, sizeof(b)));
    return RD_OK;
}

/* What a final answer that is no 2xx means to a person. */
static rd_status refuse(const struct attempt *a, const char *url, struct rd_error *err)
{
    char host[128];
    const char *what = a->said[0] ? a->said : NULL;

    host_of(url, host, sizeof(host));
    switch (a->status) {
    case 401:
        return error_set(err, RD_E_IO, "%s wants to know who asks (401)%s%s: set HF_TOKEN, if the model exists", host,
                         what ? ": " : "", what ? what : "");
    case 403:
        return error_set(err, RD_E_IO, "%s refuses (403)%s%s: ask for access on the model's page, and set HF_TOKEN",
                         host, what ? ": " : "", what ? what : "");
    case 404:
        return error_set(err, RD_E_NOT_FOUND, "%s has no such thing (404)%s%s", host, what ? ": " : "",
                         what ? what : "");
    default:
        return error_set(err, RD_E_IO, "%s answered with status %ld%s%s", host, a->status, what ? ": " : "",
                         what ? what : "");
    }
}

static bool is_passing(long status)
{
    return status == 408 || status == 425 || status == 429 || status >= 500;
}

static bool is_final(CURLcode rc)
{
    return rc == CURLE_URL_MALFORMAT || rc == CURLE_UNSUPPORTED_PROTOCOL || rc == CURLE_PEER_FAILED_VERIFICATION ||
           rc == CURLE_SSL_CACERT_BADFILE || rc == CURLE_OUT_OF_MEMORY;
}

enum outcome { DONE, AGAIN, FAILED };

/* One try, along its redirects. AGAIN: *wait_s is what the server wants, or 0; err says why. */
static enum outcome try_once(struct attempt *a, const char *url, const char *if_range, uint32_t *wait_s, rd_status *st)
{
    char here[MAX_URL_BYTES], next[MAX_URL_BYTES], host[128];
    curl_off_t retry_after = 0;
    CURLcode rc;

    *wait_s = 0;
    a->is_first = true;
    a->has_begun = false;
    if (snprintf(here, sizeof(here), "%s", url) >= (int)sizeof(here))
        return *st = error_set(a->err, RD_E_INVALID, "the URL is too long"), FAILED;
    for (int hop = 0;; hop++) {
        rc = ask(a, here, if_range, next);
        a->is_first = false;
        if (rc != CURLE_OK || !next[0]) break;
        if (hop == MAX_HOPS)
            return *st = error_set(a->err, RD_E_IO, "%s: more than %d redirects", host_of(url, host, sizeof(host)),
                                   MAX_HOPS),
                   FAILED;
        *st = check_redirect(here, next, a->err);
        if (*st != RD_OK) return FAILED;
        snprintf(here, sizeof(here), "%s", next);
    }
    host_of(here, host, sizeof(host));
    if (is_cancelled(a->http)) return *st = error_set(a->err, RD_E_CANCELLED, "stopped"), FAILED;
    if (a->failed != RD_OK) return *st = a->failed, FAILED;
    if (rc != CURLE_OK) {
        *st =
            error_set(a->err, rc == CURLE_OUT_OF_MEMORY ? RD_E_NOMEM : RD_E_IO, "%s: %s", host, curl_easy_strerror(rc));
        return is_final(rc) ? FAILED : AGAIN;
    }
    if (a->status == 416 && a->from) { /* there is no more, or there is less: the sink begins anew */
        *st = a->sink->begin(a->sink->arg, 0, UINT64_MAX, a->err);
        if (*st != RD_OK) return FAILED;
        *st = error_set(a->err, RD_E_IO, "%s has fewer bytes than are there already", host);
        return AGAIN;
    }
    if (is_passing(a->status)) {
        *st = refuse(a, here, a->err);
        if (curl_easy_getinfo(a->http->curl, CURLINFO_RETRY_AFTER, &retry_after) == CURLE_OK && retry_after > 0)
            *wait_s = retry_after > MAX_WAIT_S ? MAX_WAIT_S + 1 : (uint32_t)retry_after;
        return AGAIN;
    }
    if (a->status != 200 && a->status != 206) return *st = refuse(a, here, a->err), FAILED;
    if (a->is_head) a->answer->n_bytes = a->n_length;
    if (!a->has_begun && !a->is_head)
        *st = begin(a); /* an empty body */
    else
        *st = RD_OK;
    return *st == RD_OK ? DONE : FAILED;
}

/* false: cancelled. */
static bool wait_for(struct hub_http *h, uint32_t seconds)
{
    for (uint32_t i = 0; i < seconds * 10; i++) {
        struct timespec tenth = {.tv_nsec = 100000000};

        if (is_cancelled(h)) return false;
        if (h->o.tick) h->o.tick(h->o.user);
        nanosleep(&tenth, NULL);
    }
    return !is_cancelled(h);
}

/* Whether another try may follow, after the wait. */
static bool may_try_again(struct hub_http *h, uint32_t n_tried, uint32_t asked_s, struct rd_error *err)
{
    uint32_t wait_s = asked_s ? asked_s : 1u << u32_min(n_tried, 5);
    char text[768], why[512];

    snprintf(why, sizeof(why), "%s", err->text);
    if (asked_s > MAX_WAIT_S)
        return error_set(err, RD_E_IO, "%.400s; it asks to be left alone for more than %d s", why, MAX_WAIT_S), false;
    if (n_tried >= h->o.n_retries) {
        if (n_tried) error_set(err, RD_E_IO, "%.400s (tried %u times)", why, n_tried + 1);
        return false;
    }
    if (h->o.tell) {
        snprintf(text, sizeof(text), "%s; trying again in %u s (%u of %u)", why, wait_s, n_tried + 1, h->o.n_retries);
        h->o.tell(h->o.user, text);
    }
    if (wait_for(h, wait_s)) return true;
    error_set(err, RD_E_CANCELLED, "stopped");
    return false;
}

rd_status hub_http_get(struct hub_http *h, const char *url, const char *if_range, const struct hub_sink *sink,
                       struct hub_answer *answer, struct rd_error *err)
{
    struct rd_error unseen;
    struct hub_answer unread;
    uint32_t n_tried = 0, wait_s;
    rd_status st = RD_OK;

    if (!err) err = &unseen;
    if (!answer) answer = &unread;
    for (;;) {
        struct attempt a = {.http = h, .sink = sink, .answer = answer, .err = err, .from = sink->have(sink->arg)};
        enum outcome outcome;

        *answer = (struct hub_answer){.n_linked = UINT64_MAX, .n_bytes = UINT64_MAX};
        outcome = try_once(&a, url, if_range, &wait_s, &st);
        if (outcome == DONE) return RD_OK;
        if (outcome == FAILED) return st;
        if (a.has_moved) n_tried = 0;
        if (!may_try_again(h, n_tried++, wait_s, err)) return err->status == RD_E_CANCELLED ? RD_E_CANCELLED : st;
    }
}

static uint64_t have_nothing(void *arg)
{
    (void)arg;
    return 0;
}

static rd_status begin_text(void *arg, uint64_t from, uint64_t n_total, struct rd_error *err)
{
    (void)from, (void)n_total, (void)err;
    buf_clear(arg);
    return RD_OK;
}

static rd_status put_text(void *arg, const void *data, size_t n, struct rd_error *err)
{
    struct buf *out = arg;

    buf_append(out, data, n);
    if (!out->failed) return RD_OK;
    return error_set(err, RD_E_LIMIT, "the answer has more than %zu bytes, or memory is out", out->limit);
}

rd_status hub_http_text(struct hub_http *h, const char *url, size_t limit, struct buf *out, struct hub_answer *answer,
                        struct rd_error *err)
{
    struct hub_sink sink = {out, have_nothing, begin_text, put_text};

    out->limit = limit;
    return hub_http_get(h, url, NULL, &sink, answer, err);
}

rd_status hub_http_head(struct hub_http *h, const char *url, struct hub_answer *answer, struct rd_error *err)
{
    struct hub_sink sink = {NULL, have_nothing, NULL, NULL};
    struct attempt a = {.http = h, .sink = &sink, .answer = answer, .err = err, .is_head = true};
    uint32_t wait_s;
    rd_status st = RD_OK;

    *answer = (struct hub_answer){.n_linked = UINT64_MAX, .n_bytes = UINT64_MAX};
    (void)try_once(&a, url, NULL, &wait_s, &st);
    return st;
}

void hub_put_url_path(struct buf *out, const char *path)
{
    for (; *path; path++) {
        unsigned char c = (unsigned char)*path;

        if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || strchr("-._~/", c))
            buf_putc(out, (char)c);
        else
            buf_printf(out, "%%%02X", c);
    }
}
