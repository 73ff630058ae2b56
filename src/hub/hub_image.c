/* hub/hub_image.c - see hub_image.h. */
#include "hub/hub_image.h"
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/os_socket.h"
#include "hub/hub_attempt.h"

#define POLL_MS   100
#define SECOND_NS 1000000000ull

/* A hop. */
struct get {
    const struct rd_image_sink *sink;
    const struct fetch_host *entry;
    CURL *curl;
    uint64_t deadline_ns;
    size_t n_head, n_other; /* bytes of the head, of a body that nobody wants */
    bool was_private, is_full, has_long_head, has_other_type;
    long status;
    char host[FETCH_HOST_BYTES], type[96];
};

/* ---- the URL ---- */

/* One part of it; false: it has none, or it is too long. */
static bool part_of(CURLU *u, CURLUPart what, char *out, size_t cap, unsigned flags)
{
    char *part = NULL;
    bool ok = curl_url_get(u, what, &part, flags) == CURLUE_OK && part && strlen(part) < cap;

    if (ok) snprintf(out, cap, "%s", part);
    curl_free(part);
    return ok;
}

/* Parsed once: what is checked is what is connected to. */
static rd_status check_url(struct get *g, CURLU *u, const struct fetch_hosts *hosts, struct rd_error *err)
{
    char scheme[16] = "", port[16] = "", user[8] = "", shown[160];
    bool is_https;

    if (!part_of(u, CURLUPART_SCHEME, scheme, sizeof(scheme), 0) ||
        (strcasecmp(scheme, "http") != 0 && strcasecmp(scheme, "https") != 0))
        return error_set(err, RD_E_INVALID, "the URL is neither http nor https");
    is_https = strcasecmp(scheme, "https") == 0;
    if (part_of(u, CURLUPART_USER, user, sizeof(user), 0) || part_of(u, CURLUPART_PASSWORD, user, sizeof(user), 0) ||
        part_of(u, CURLUPART_ZONEID, user, sizeof(user), 0))
        return error_set(err, RD_E_INVALID, "the URL has a user, a password or a zone");
    if (!part_of(u, CURLUPART_HOST, g->host, sizeof(g->host), 0) ||
        !part_of(u, CURLUPART_PORT, port, sizeof(port), CURLU_DEFAULT_PORT))
        return error_set(err, RD_E_INVALID, "the URL has no host that can be reached");
    g->entry = fetch_hosts_find(hosts, g->host, (uint32_t)strtoul(port, NULL, 10), is_https);
    if (g->entry) return RD_OK;
    return error_set(err, RD_E_INVALID, "this server fetches no images from %s, port %s (--image-url-hosts)",
                     error_quote(shown, sizeof(shown), g->host, strlen(g->host)), port);
}

/* ---- what curl asks ---- */

static curl_socket_t open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct get *g = user;

    if (purpose != CURLSOCKTYPE_IPCXN) return CURL_SOCKET_BAD;
    if (!g->entry->is_private && !fetch_address_is_public(&a->addr)) {
        g->was_private = true;
        return CURL_SOCKET_BAD;
    }
    return os_socket(a->family, a->socktype, a->protocol, true);
}

static size_t take_header(char *line, size_t size, size_t n, void *user)
{
    struct get *g = user;

    (void)line;
    g->n_head += n * size;
    g->has_long_head = g->n_head > HUB_IMAGE_HEAD_BYTES;
    return g->has_long_head ? 0 : n * size;
}

/* Media types that files of images come with: what the bytes are is looked at later. */
static bool may_be_image(const char *type)
{
    return !type || !*type || strncasecmp(type, "image/", 6) == 0 ||
           strncasecmp(type, "application/octet-stream", 24) == 0 || strncasecmp(type, "binary/octet-stream", 19) == 0;
}

static size_t take_body(char *data, size_t size, size_t n, void *user)
{
    struct get *g = user;
    char *type = NULL;

    n *= size;
    if (!g->status) {
        (void)curl_easy_getinfo(g->curl, CURLINFO_RESPONSE_CODE, &g->status);
        (void)curl_easy_getinfo(g->curl, CURLINFO_CONTENT_TYPE, &type);
        g->has_other_type = g->status == 200 && !may_be_image(type);
        if (g->has_other_type) error_quote(g->type, sizeof(g->type), type, strcspn(type, ";"));
    }
    if (g->status >= 300 && g->status < 400) { /* where it leads is known once it ends */
        g->n_other += n;
        return g->n_other > HUB_IMAGE_HEAD_BYTES ? 0 : n;
    }
    if (g->status != 200 || g->has_other_type) return 0; /* a page that says what the status says */
    g->is_full = !g->sink->put(g->sink->arg, data, n);
    return g->is_full ? 0 : n;
}

static bool set_options(struct get *g, CURLU *u)
{
    CURL *c = g->curl;
    bool ok = hub_curl_set_usual(c);

    ok = ok && !curl_easy_setopt(c, CURLOPT_CURLU, u);
    ok = ok && !curl_easy_setopt(c, CURLOPT_PROXY, "");
    ok = ok && !curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    ok = ok && !curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    ok = ok && !curl_easy_setopt(c, CURLOPT_FORBID_REUSE, 1L);
    ok = ok && !curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    ok = ok && !curl_easy_setopt(c, CURLOPT_OPENSOCKETDATA, g);
    ok = ok && !curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_header);
    ok = ok && !curl_easy_setopt(c, CURLOPT_HEADERDATA, g);
    ok = ok && !curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_body);
    ok = ok && !curl_easy_setopt(c, CURLOPT_WRITEDATA, g);
    return ok;
}

/* ---- a hop ---- */

/* Until it ends: *rc. */
static rd_status drive(struct get *g, CURLM *multi, CURLcode *rc, struct rd_error *err)
{
    int n_running = 1, n_left;
    CURLMsg *m;

    for (;;) {
        if (curl_multi_perform(multi, &n_running)) return error_set(err, RD_E_NOMEM, "out of memory for the image");
        while ((m = curl_multi_info_read(multi, &n_left))) {
            if (m->msg != CURLMSG_DONE) continue;
            *rc = m->data.result;
            return RD_OK;
        }
        if (g->sink->is_cancelled(g->sink->arg)) return error_set(err, RD_E_CANCELLED, "cancelled");
        if (clock_now_ns(clock_system()) >= g->deadline_ns) {
            *rc = CURLE_OPERATION_TIMEDOUT;
            return RD_OK;
        }
        (void)curl_multi_poll(multi, NULL, 0, POLL_MS, NULL);
    }
}

/* What came of it, for a person. */
static rd_status judge(const struct get *g, CURLcode rc, struct rd_error *err)
{
    char host[160];

    error_quote(host, sizeof(host), g->host, strlen(g->host));
    if (g->is_full) return error_set(err, RD_E_LIMIT, "%s sends more than an image may have", host);
    if (g->has_long_head) return error_set(err, RD_E_INVALID, "%s sends headers without an end", host);
    if (g->has_other_type) return error_set(err, RD_E_INVALID, "%s sends %s, which is no image", host, g->type);
    if (g->status && g->status != 200)
        return error_set(err, RD_E_INVALID, "%s answered with status %ld", host, g->status);
    if (rc == CURLE_OK) return RD_OK;
    if (rc == CURLE_OUT_OF_MEMORY) return error_set(err, RD_E_NOMEM, "out of memory for the image");
    if (rc == CURLE_OPERATION_TIMEDOUT) return error_set(err, RD_E_INVALID, "%s takes too long", host);
    if (rc == CURLE_COULDNT_RESOLVE_HOST) return error_set(err, RD_E_INVALID, "%s is not found", host);
    if (g->was_private && rc == CURLE_COULDNT_CONNECT)
        return error_set(err, RD_E_INVALID, "%s is at an address of this machine, its networks or none of the internet",
                         host);
    if (rc == CURLE_COULDNT_CONNECT) return error_set(err, RD_E_INVALID, "%s cannot be reached", host);
    return error_set(err, RD_E_INVALID, "%s: the image did not arrive: %s", host, curl_easy_strerror(rc));
}

/* next: where it is redirected to, or "". */
static rd_status get_one(struct get *g, CURLU *u, char next[HUB_IMAGE_URL_BYTES], struct rd_error *err)
{
    CURLM *multi = curl_multi_init();
    CURLcode rc = CURLE_OUT_OF_MEMORY;
    bool is_added = false;
    char *to = NULL;
    rd_status st = RD_OK;

    next[0] = 0;
    g->curl = curl_easy_init();
    if (!multi || !g->curl || !set_options(g, u) || curl_multi_add_handle(multi, g->curl))
        st = error_set(err, RD_E_NOMEM, "out of memory for the image");
    else
        is_added = true;
    if (st == RD_OK) st = drive(g, multi, &rc, err);
    if (st == RD_OK) {
        (void)curl_easy_getinfo(g->curl, CURLINFO_RESPONSE_CODE, &g->status);
        if (g->status >= 300 && g->status < 400 && !g->has_long_head &&
            curl_easy_getinfo(g->curl, CURLINFO_REDIRECT_URL, &to) == CURLE_OK && to &&
            strlen(to) < HUB_IMAGE_URL_BYTES)
            snprintf(next, HUB_IMAGE_URL_BYTES, "%s", to);
        if (!next[0]) st = judge(g, rc, err);
    }
    if (is_added) curl_multi_remove_handle(multi, g->curl);
    curl_easy_cleanup(g->curl);
    curl_multi_cleanup(multi);
    return st;
}

static rd_status hop(const struct hub_image_from *from, struct get *g, char url[HUB_IMAGE_URL_BYTES],
                     struct rd_error *err)
{
    CURLU *u = curl_url();
    char next[HUB_IMAGE_URL_BYTES];
    rd_status st;

    if (!u) return error_set(err, RD_E_NOMEM, "out of memory for the image");
    if (curl_url_set(u, CURLUPART_URL, url, 0))
        st = error_set(err, RD_E_INVALID, "the URL cannot be read");
    else
        st = check_url(g, u, from->hosts, err);
    if (st == RD_OK) st = get_one(g, u, next, err);
    curl_url_cleanup(u);
    if (st == RD_OK && next[0] && strncasecmp(url, "https:", 6) == 0 && strncasecmp(next, "https:", 6) != 0)
        st = error_set(err, RD_E_INVALID, "the URL redirects from https to something else");
    if (st == RD_OK) snprintf(url, HUB_IMAGE_URL_BYTES, "%s", next);
    return st;
}

rd_status hub_image_get(const struct hub_image_from *from, const char *url, const struct rd_image_sink *sink,
                        struct rd_error *err)
{
    const uint64_t deadline = clock_now_ns(clock_system()) + from->timeout_s * SECOND_NS;
    char here[HUB_IMAGE_URL_BYTES];
    rd_status st = RD_OK;

    if (strlen(url) >= sizeof(here)) return error_set(err, RD_E_INVALID, "the URL has more than 8,191 bytes");
    snprintf(here, sizeof(here), "%s", url);
    for (int i = 0; st == RD_OK; i++) {
        struct get g = {.sink = sink, .deadline_ns = deadline};

        if (i > HUB_IMAGE_HOPS)
            return error_set(err, RD_E_INVALID, "the URL redirects more than %d times", HUB_IMAGE_HOPS);
        if (i > 0) {
            struct rd_error why = {RD_OK, ""};

            st = hop(from, &g, here, &why);
            if (st != RD_OK) return error_set(err, st, "behind a redirect: %s", why.text);
        } else {
            st = hop(from, &g, here, err);
        }
        if (st == RD_OK && !here[0]) return RD_OK;
    }
    return st;
}
