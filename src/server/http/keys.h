/* server/http/keys.h - who holds which key: the server's own, the admin's, and a file with a tenant a line.
 *
 *     # comment
 *     NAME sha256:SALT:DIGEST           `radish key NAME` makes one: the key itself stands nowhere
 *     NAME sha256:SALT:DIGEST admin     no tenant: may what the admin may
 *     KEY                               a key as it is; its tenant has no other name
 *
 * DIGEST is 64 hexadecimal digits of SHA-256 over SALT and key. Two lines of one NAME are two keys of one tenant. What is
 * sent is hashed once for each salt in use and compared with every digest, however early one fits: the time tells nothing.
 *
 * The admin does what concerns everybody: lists and clears the cache, sees the monitor, cancels requests. Where there is an
 * admin key, it alone may; else the server's own key, and where there is no key at all, everybody.
 *
 * keys_reload reads the file again, while requests go on: whoever was let in stays. A file that is wrong changes nothing.
 *
 * Units   a tenant is a text that lives as long as the keys do, and is the same pointer after a reload.
 * Thread  keys_find, keys_are_needed, keys_tenant_index: any. The others: one.
 * Errors  RD_E_FORMAT: "FILE:LINE: ..", never a key; RD_E_LIMIT, RD_E_NOMEM, those of file.h.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

struct keys;

struct keys_options {
    const char *own, *admin, *file; /* each may be NULL; the texts are not kept, but for the file's path */
};

struct key_holder {
    bool ok, is_admin;
    const char *tenant; /* NULL: the server's own namespace */
};

rd_status keys_create(const struct keys_options *o, struct keys **out, struct rd_error *err);
void keys_destroy(struct keys *k);
/* *n: keys of the file now. */
rd_status keys_reload(struct keys *k, uint32_t *n, struct rd_error *err);
bool keys_has_file(const struct keys *k);

/* sent NULL: none was. */
struct key_holder keys_find(struct keys *k, const char *sent);
/* Requests need a key. */
bool keys_are_needed(const struct keys *k);
/* 0 .. LIMIT_TENANTS - 1, the same for good; UINT32_MAX: tenant is NULL. */
uint32_t keys_tenant_index(const struct keys *k, const char *tenant);

/* Takes as long whichever bytes differ: all of sent are looked at, and as many of key. Not secret: both lengths. */
bool keys_equal(const char *sent, size_t n_sent, const char *key, size_t n_key);
