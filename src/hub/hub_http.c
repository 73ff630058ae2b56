/* hub/hub_http.c - see hub_http.h. */
#include "hub/hub_http.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/error.h"
#include "base/mem.h"
#include "hub/hub_attempt.h"

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

/* One try, along its redirects. */
static enum hub_outcome try_once(struct hub_attempt *a, const char *url, const char *if_range, uint32_t *wait_s,
                                 rd_status *st)
{
    char here[HUB_MAX_URL_BYTES], next[HUB_MAX_URL_BYTES], host[128];
    CURLcode rc;

    a->is_first = true;
    if (snprintf(here, sizeof(here), "%s", url) >= (int)sizeof(here))
        return *st = error_set(a->err, RD_E_INVALID, "the URL is too long"), HUB_FAILED;
    for (int hop = 0;; hop++) {
        rc = hub_attempt_start(a, here, if_range) ? curl_easy_perform(a->curl) : CURLE_OUT_OF_MEMORY;
        hub_attempt_end(a, rc, next);
        a->is_first = false;
        if (rc != CURLE_OK || !next[0]) break;
        if (hop == HUB_MAX_HOPS)
            return *st = error_set(a->err, RD_E_IO, "%s: more than %d redirects", hub_host_of(url, host, sizeof(host)),
                                   HUB_MAX_HOPS),
                   HUB_FAILED;
        *st = hub_attempt_may_redirect(here, next, a->err);
        if (*st != RD_OK) return HUB_FAILED;
        snprintf(here, sizeof(here), "%s", next);
    }
    return hub_attempt_judge(a, rc, here, wait_s, st);
}

/* false: cancelled. */
static bool wait_for(struct hub_http *h, uint32_t seconds)
{
    for (uint32_t i = 0; i < seconds * 10; i++) {
        struct timespec tenth = {.tv_nsec = 100000000};

        if (hub_http_is_cancelled(h)) return false;
        if (h->o.tick) h->o.tick(h->o.user);
        nanosleep(&tenth, NULL);
    }
    return !hub_http_is_cancelled(h);
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
        struct hub_attempt a = {.http = h,
                                .curl = h->curl,
                                .sink = sink,
                                .answer = answer,
                                .err = err,
                                .from = sink->have(sink->arg),
                                .to = UINT64_MAX};
        enum hub_outcome outcome;

        *answer = (struct hub_answer){.n_linked = UINT64_MAX, .n_bytes = UINT64_MAX};
        outcome = try_once(&a, url, if_range, &wait_s, &st);
        if (outcome == HUB_DONE) return RD_OK;
        if (outcome == HUB_FAILED) return st;
        if (a.has_moved) n_tried = 0;
        if (!hub_http_may_try_again(h, n_tried++, wait_s, &wait_s, err)) return st;
        if (!wait_for(h, wait_s)) return error_set(err, RD_E_CANCELLED, "stopped");
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
    struct hub_attempt a = {
        .http = h, .curl = h->curl, .sink = &sink, .answer = answer, .err = err, .to = UINT64_MAX, .is_head = true};
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
