/* hub/hub_attempt.h - one request over libcurl, and what its answer means: the inside of hub_http.c and hub_ranges.c.
 *
 *     hub_attempt_start -> curl performs -> hub_attempt_end: redirected? -> hub_attempt_may_redirect, start again
 *                                                            else        -> hub_attempt_judge
 *
 * Thread  its owner.
 */
#pragma once
#include <curl/curl.h>
#include "hub/hub_http.h"

enum {
    HUB_MAX_HOPS = 10,
    HUB_MAX_WAIT_S = 300, /* whoever wants more patience is told to come back */
    HUB_MAX_URL_BYTES = 8192
};

struct hub_http {
    struct hub_http_options o;
    CURL *curl;
    char *bearer; /* "Authorization: Bearer ..." */
};

/* One request and its answer. Zeroed but for the first two lines, which the caller sets. */
struct hub_attempt {
    struct hub_http *http;
    CURL *curl;
    const struct hub_sink *sink;
    struct hub_answer *answer;
    struct rd_error *err;
    uint64_t from, to;                /* bytes asked for: from 0 to UINT64_MAX: the whole; to: the first behind them */
    uint64_t n_total, n_length;       /* n_length: Content-Length */
    uint64_t range_from, range_total; /* Content-Range */
    struct curl_slist *headers;
    long status;
    bool is_first, has_range, has_begun, has_moved, is_head;
    rd_status failed; /* of the sink */
    char said[256];   /* X-Error-Message, quoted */
    char etag[160];   /* of this answer; "": none, or a weak one */
};

bool hub_http_is_cancelled(const struct hub_http *h);

/* Protocols, the name that radish goes by, no signals, certificates: of every request. */
bool hub_curl_set_usual(CURL *c);
/* Sets the handle up for one request at url; redirects are not followed. false: out of memory. */
bool hub_attempt_start(struct hub_attempt *a, const char *url, const char *if_range);
/* After curl's outcome: takes the status, and where it redirects ("": nowhere). */
void hub_attempt_end(struct hub_attempt *a, CURLcode rc, char location[HUB_MAX_URL_BYTES]);
rd_status hub_attempt_may_redirect(const char *from, const char *to, struct rd_error *err);

/* What the last answer on the way, from `here`, means. HUB_AGAIN: *wait_s is what the server wants, or 0; err says why.
 * HUB_FAILED: *st, and err. */
enum hub_outcome { HUB_DONE, HUB_AGAIN, HUB_FAILED };
enum hub_outcome hub_attempt_judge(struct hub_attempt *a, CURLcode rc, const char *here, uint32_t *wait_s,
                                   rd_status *st);

/* Whether another try may follow n_tried, after *wait_s seconds, which the user is told. asked_s: what the server wants,
 * or 0. false: err says why not. */
bool hub_http_may_try_again(struct hub_http *h, uint32_t n_tried, uint32_t asked_s, uint32_t *wait_s,
                            struct rd_error *err);
/* The host of a URL, for messages, in host[cap]. */
const char *hub_host_of(const char *url, char *host, size_t cap);
