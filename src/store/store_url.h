/* store/store_url.h - where a shared store is, as users write it:
 *
 *     redis://HOST[:PORT][/DB]      redis://[USER]:PASSWORD@HOST[:PORT][/DB]      [::1] for an address of IPv6
 *     unix:///PATH[?db=DB]          unix://[USER]:PASSWORD@/PATH[?db=DB]
 *
 * User and password may be percent-encoded, and must be where they hold one of : / ? @ %.
 *
 * Thread  any thread.
 * Errors  RD_E_INVALID; the text never holds what was given, since that may be the password.
 */
#pragma once
#include <stdint.h>
#include "radish/status.h"

#define STORE_URL_PORT     6379u
#define STORE_URL_SHOWN    320u /* of store_url_show: its end included */
#define STORE_URL_MOST_DBS 16384u

struct store_url {
    char host[256]; /* "": a socket of this machine, at path */
    char path[108];
    char user[128], password[512]; /* "": none */
    uint32_t port, db;
};

rd_status store_url_parse(const char *text, struct store_url *out, struct rd_error *err);
/* Without user and password: for logs and people. */
void store_url_show(const struct store_url *url, char out[STORE_URL_SHOWN]);
