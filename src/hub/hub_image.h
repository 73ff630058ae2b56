/* hub/hub_image.h - GET of an image that a client names by URL, as a server may do it for a stranger.
 *
 * http and https, from hosts that are listed (fetch_hosts.h), at addresses that are looked at when they are connected to; each
 * redirect like the first URL, HUB_IMAGE_HOPS of them, never from https to http. No proxy of the environment, no credentials,
 * no cookies, no compressed body (a bomb), one connection that nobody else uses. Bounded: bytes by the sink, an answer's head
 * by HUB_IMAGE_HEAD_BYTES, all of it together by time, so that a far side which sends a byte now and then ends, too.
 *
 * Thread  any; waits. Whoever asked is looked for every 100 ms.
 * Errors  RD_E_INVALID: what is wrong with the URL, or what the far side did: its status, never its body; RD_E_LIMIT the sink
 *         takes no more; RD_E_CANCELLED; RD_E_NOMEM; RD_E_UNSUPPORTED: built without libcurl.
 */
#pragma once
#include "hub/fetch_hosts.h"
#include "radish/radish.h"

#define HUB_IMAGE_HOPS       3
#define HUB_IMAGE_URL_BYTES  8192u
#define HUB_IMAGE_HEAD_BYTES 65536u

struct hub_image_from {
    const struct fetch_hosts *hosts;
    uint32_t timeout_s; /* of all hops together */
};

/* hub_http_start() went before. */
rd_status hub_image_get(const struct hub_image_from *from, const char *url, const struct rd_image_sink *sink,
                        struct rd_error *err);
