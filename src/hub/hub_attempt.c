/* hub/hub_attempt.c - see hub_attempt.h. */
#include "hub/hub_attempt.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/checked.h"
#include "base/error.h"

bool hub_http_is_cancelled(const struct hub_http *h)
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
static void read_range(struct hub_attempt *a, const char *value)
{
    const char *dash = strchr(value, '-'), *slash = strchr(value, '/');

    if (strncasecmp(value, "bytes ", 6) || !slash) return;
    if (!parse_u64(slash + 1, strlen(slash + 1), &a->range_total)) a->range_total = UINT64_MAX;
    a->has_range = dash && dash < slash && parse_u64(value + 6, (size_t)(dash - value - 6), &a->range_from);
}

static size_t take_header(char *line, size_t size, size_t n, void *user)
{
    struct hub_attempt *a = user;
    struct hub_answer *r = a->answer;
    char value[1024];
    uint64_t number;

    n *= size;
    if (n > 5 && !strncasecmp(line, "HTTP/", 5)) { /* also behind 100 Continue and a proxy's answer */
        a->has_range = false;
        a->n_length = UINT64_MAX;
        a->said[0] = a->etag[0] = 0;
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
    else if (header_value(line, n, "ETag", value, sizeof(value)) && plain_etag(value, a->etag, sizeof(a->etag)))
        a->etag[0] = 0;
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
static rd_status begin(struct hub_attempt *a)
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
    struct hub_attempt *a = user;

    n *= size;
    if (!a->status) curl_easy_getinfo(a->curl, CURLINFO_RESPONSE_CODE, &a->status);
    if (a->status != 200 && a->status != 206) return n; /* a page that says what the status says */
    if (!a->has_begun) a->failed = begin(a);
    if (a->failed == RD_OK) a->failed = a->sink->put(a->sink->arg, data, n, a->err);
    if (a->failed != RD_OK) return 0;
    a->has_moved |= n > 0;
    return n;
}

static int take_progress(void *user, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now)
{
    struct hub_attempt *a = user;

    (void)total, (void)now, (void)up_total, (void)up_now;
    if (a->http->o.tick) a->http->o.tick(a->http->o.user);
    return hub_http_is_cancelled(a->http);
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

const char *hub_host_of(const char *url, char *host, size_t cap)
{
    const char *at = strstr(url, "://");
    size_t n;

    at = at ? at + 3 : url;
    n = strcspn(at, "/?#");
    if (memchr(at, '@', n)) return "the server"; /* a password may stand before it */
    return error_quote(host, cap, at, n);
}

bool hub_curl_set_usual(CURL *c)
{
    bool ok = !curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");

    ok = ok && !curl_easy_setopt(c, CURLOPT_USERAGENT, "radish/" RADISH_VERSION);
    ok = ok && !curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    for (size_t i = 0; i < 2; i++) { /* which other programs read for the same */
        static const char *const names[] = {"SSL_CERT_FILE", "CURL_CA_BUNDLE"};
        const char *file = getenv(names[i]);

        if (file && *file) ok = ok && !curl_easy_setopt(c, CURLOPT_CAINFO, file);
    }
    return ok;
}

static bool set_options(struct hub_attempt *a, const char *url)
{
    const struct hub_http *h = a->http;
    CURL *c = a->curl;
    bool ok = true;

    curl_easy_reset(c);
    ok = ok && hub_curl_set_usual(c);
    ok = ok && !curl_easy_setopt(c, CURLOPT_URL, url);
    ok = ok && !curl_easy_setopt(c, CURLOPT_HTTPHEADER, a->headers);
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
    return ok;
}

static bool add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);

    if (longer) *list = longer;
    return longer;
}

/* The headers of a request to url; false: out of memory. */
static bool make_headers(struct hub_attempt *a, const char *url, const char *if_range)
{
    const struct hub_http *h = a->http;
    char line[256];
    bool is_part = a->from || a->to != UINT64_MAX, ok = true;

    if (h->bearer && hub_same_origin(url, h->o.endpoint)) ok = add_header(&a->headers, h->bearer);
    if (ok && is_part) {
        int n = snprintf(line, sizeof(line), "Range: bytes=%llu-", (unsigned long long)a->from);

        if (a->to != UINT64_MAX) snprintf(line + n, sizeof(line) - (size_t)n, "%llu", (unsigned long long)a->to - 1);
        ok = add_header(&a->headers, line);
    }
    if (ok && is_part && if_range) {
        snprintf(line, sizeof(line), "If-Range: \"%s\"", if_range);
        ok = add_header(&a->headers, line);
    }
    return ok;
}

bool hub_attempt_start(struct hub_attempt *a, const char *url, const char *if_range)
{
    a->status = 0;
    a->n_length = UINT64_MAX;
    a->has_begun = false;
    a->answer->next[0] = a->etag[0] = 0;
    curl_slist_free_all(a->headers);
    a->headers = NULL;
    return make_headers(a, url, if_range) && set_options(a, url);
}

void hub_attempt_end(struct hub_attempt *a, CURLcode rc, char location[HUB_MAX_URL_BYTES])
{
    char *to = NULL;

    location[0] = 0;
    curl_easy_getinfo(a->curl, CURLINFO_RESPONSE_CODE, &a->status);
    if (rc == CURLE_OK && a->status >= 300 && a->status < 400 &&
        curl_easy_getinfo(a->curl, CURLINFO_REDIRECT_URL, &to) == CURLE_OK && to && strlen(to) < HUB_MAX_URL_BYTES)
        snprintf(location, HUB_MAX_URL_BYTES, "%s", to);
    curl_slist_free_all(a->headers);
    a->headers = NULL;
}

rd_status hub_attempt_may_redirect(const char *from, const char *to, struct rd_error *err)
{
    char a[128], b[128];
    bool is_secure = !strncasecmp(to, "https://", 8);

    if (!is_secure && strncasecmp(to, "http://", 7))
        return error_set(err, RD_E_IO, "%s redirects to what is neither http nor https",
                         hub_host_of(from, a, sizeof(a)));
    if (!is_secure && !strncasecmp(from, "https://", 8))
        return error_set(err, RD_E_IO, "%s redirects from https to http, at %s", hub_host_of(from, a, sizeof(a)),
                         hub_host_of(to, b, sizeof(b)));
    return RD_OK;
}

/* What a final answer that is no 2xx means to a person, and what to do next. */
static rd_status refuse(const struct hub_attempt *a, const char *url, struct rd_error *err)
{
    const char *what = a->said[0] ? a->said : "", *colon = *what ? ": " : "";
    char host[128];

    hub_host_of(url, host, sizeof(host));
    switch (a->status) {
    case 401:
        if (a->http->bearer && hub_same_origin(url, a->http->o.endpoint))
            return error_set(
                err, RD_E_IO,
                "%s does not accept the token (401)%s%s. That of HF_TOKEN, or of a login, may be wrong or have "
                "expired: make another one in your account there; a public model needs none",
                host, colon, what);
        return error_set(
            err, RD_E_IO,
            "%s has no public model of this name (401)%s%s. Check how it is spelled; for a private or gated "
            "one set HF_TOKEN to a token of your account",
            host, colon, what);
    case 403:
        return error_set(
            err, RD_E_IO,
            "%s does not give it to you (403)%s%s. Open the model's page in a browser, ask for access there, "
            "then set HF_TOKEN to a token of that account",
            host, colon, what);
    case 404:
        return error_set(err, RD_E_NOT_FOUND,
                         "%s has no such model, revision or file (404)%s%s. Check how it is spelled", host, colon,
                         what);
    case 429:
        return error_set(err, RD_E_IO, "%s has had too many requests (429)%s%s. Try again later, or set HF_TOKEN", host,
                         colon, what);
    default:
        return error_set(err, RD_E_IO, "%s answered with status %ld%s%s", host, a->status, colon, what);
    }
}

/* No answer came, or none that may be trusted. */
static rd_status unreachable(CURLcode rc, const char *host, struct rd_error *err)
{
    switch (rc) {
    case CURLE_OUT_OF_MEMORY:
        return error_set(err, RD_E_NOMEM, "out of memory");
    case CURLE_COULDNT_RESOLVE_HOST:
        return error_set(
            err, RD_E_IO,
            "%s is not found: is this machine on the network? HTTPS_PROXY names a proxy, HF_ENDPOINT another "
            "hub; what was pulled before runs without",
            host);
    case CURLE_COULDNT_RESOLVE_PROXY:
        return error_set(err, RD_E_IO, "the proxy that HTTPS_PROXY or HTTP_PROXY names is not found");
    case CURLE_COULDNT_CONNECT:
        return error_set(
            err, RD_E_IO,
            "%s cannot be reached: nothing answers there, or a firewall is in between. HTTPS_PROXY names a "
            "proxy, HF_ENDPOINT another hub",
            host);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return error_set(
            err, RD_E_IO,
            "%s cannot prove who it is: %s. Is the clock right, is ca-certificates installed? SSL_CERT_FILE "
            "names certificates of your own",
            host, curl_easy_strerror(rc));
    default:
        return error_set(err, RD_E_IO, "%s: %s", host, curl_easy_strerror(rc));
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

enum hub_outcome hub_attempt_judge(struct hub_attempt *a, CURLcode rc, const char *here, uint32_t *wait_s,
                                   rd_status *st)
{
    char host[128];
    curl_off_t retry_after = 0;

    *wait_s = 0;
    hub_host_of(here, host, sizeof(host));
    if (hub_http_is_cancelled(a->http)) return *st = error_set(a->err, RD_E_CANCELLED, "stopped"), HUB_FAILED;
    if (a->failed != RD_OK) return *st = a->failed, HUB_FAILED;
    if (rc != CURLE_OK) {
        *st = unreachable(rc, host, a->err);
        return is_final(rc) ? HUB_FAILED : HUB_AGAIN;
    }
    if (a->status == 416 && a->from) { /* there is no more, or there is less: the sink begins anew */
        *st = a->sink->begin(a->sink->arg, 0, UINT64_MAX, a->err);
        if (*st != RD_OK) return HUB_FAILED;
        *st = error_set(a->err, RD_E_IO, "%s has fewer bytes than are there already", host);
        return HUB_AGAIN;
    }
    if (is_passing(a->status)) {
        *st = refuse(a, here, a->err);
        if (curl_easy_getinfo(a->curl, CURLINFO_RETRY_AFTER, &retry_after) == CURLE_OK && retry_after > 0)
            *wait_s = retry_after > HUB_MAX_WAIT_S ? HUB_MAX_WAIT_S + 1 : (uint32_t)retry_after;
        return HUB_AGAIN;
    }
    if (a->status != 200 && a->status != 206) return *st = refuse(a, here, a->err), HUB_FAILED;
    if (a->is_head) a->answer->n_bytes = a->n_length;
    if (!a->has_begun && !a->is_head)
        *st = begin(a); /* an empty body */
    else
        *st = RD_OK;
    return *st == RD_OK ? HUB_DONE : HUB_FAILED;
}

bool hub_http_may_try_again(struct hub_http *h, uint32_t n_tried, uint32_t asked_s, uint32_t *wait_s,
                            struct rd_error *err)
{
    char text[768], why[512];

    *wait_s = asked_s ? asked_s : 1u << u32_min(n_tried, 5);
    snprintf(why, sizeof(why), "%s", err->text);
    if (asked_s > HUB_MAX_WAIT_S)
        return error_set(err, RD_E_IO, "%.400s; it asks to be left alone for more than %d s", why, HUB_MAX_WAIT_S),
               false;
    if (n_tried >= h->o.n_retries) {
        if (n_tried) error_set(err, RD_E_IO, "%.400s (tried %u times)", why, n_tried + 1);
        return false;
    }
    if (h->o.tell) {
        snprintf(text, sizeof(text), "%s; trying again in %u s (%u of %u)", why, *wait_s, n_tried + 1, h->o.n_retries);
        h->o.tell(h->o.user, text);
    }
    return true;
}
