/* server/http/keys.h - who holds which key: the server's own, the admin's, and a file with a tenant a line.
 *
 *     # comment
 *     NAME sha256:SALT:DIGEST           `radish key NAME` makes one: the key itself stands nowhere
 *     NAME sha256:SALT:DIGEST admin     no tenant: may what the admin may
 *     KEY                               a key as it is; its tenant has no other name
 *
 * The last line ends with a newline, too: what was cut in the middle of a line would else be a shorter key, or a name that is
 * one. Such a file is refused as a whole.
 *
 * DIGEST is 64 hexadecimal digits of SHA-256 over SALT and key. Two lines of one NAME are two keys of one tenant. A key has at
 * most KEY_MOST bytes; what is longer is refused unread. What is sent is hashed once for each salt in use and compared with
 * every digest, however early one fits: the time tells nothing. No lock is held meanwhile. A key that was let in is
 * remembered by a digest with a salt that was drawn at the start, and costs one hash from then on. Keys that are not are
 * held back where they cost too much: a sender may have KEY_BLOCKS_PER_S blocks of 64 bytes hashed for wrong ones, which few
 * salts never come to (one salt and a drawn key: 2 blocks), and 4,096 do with 16 keys a second.
 *
 * The admin does what concerns everybody: lists and clears the cache, sees the monitor, cancels requests. Where there is an
 * admin key, it alone may; else the server's own key, and where there is no key at all, everybody.
 *
 * keys_reload reads the file again, while requests go on: whoever was let in stays. A file that is wrong changes nothing.
 *
 * Units   a tenant is a text that lives as long as the keys do, and is the same pointer after a reload.
 * Thread  keys_find, keys_are_needed, keys_tenant_index: any. The others: one.
 * Errors  RD_E_FORMAT: "FILE:LINE: ..", never a key; RD_E_LIMIT: too many, or a key that is too long; RD_E_NOMEM, those of file.h.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

struct clock;
struct keys;

struct keys_options {
    const char *own, *admin, *file; /* each may be NULL; the texts are not kept, but for the file's path */
    const struct clock *clock;      /* NULL: the machine's */
};

#define KEY_BLOCKS_PER_S (1u << 17) /* 20 to 50 ms of a core */
#define KEY_BLOCKS_BURST (1u << 16)

struct key_holder {
    bool ok, is_admin;
    bool is_held_back;  /* !ok: not looked at; again in a second */
    const char *tenant; /* NULL: the server's own namespace */
};

rd_status keys_create(const struct keys_options *o, struct keys **out, struct rd_error *err);
void keys_destroy(struct keys *k);
/* *n: keys of the file now. */
rd_status keys_reload(struct keys *k, uint32_t *n, struct rd_error *err);
bool keys_has_file(const struct keys *k);

/* sent NULL: none was. sender: a number of whoever sent it, the same for the same machine. */
struct key_holder keys_find(struct keys *k, const char *sent, uint64_t sender);
/* Requests need a key. */
bool keys_are_needed(const struct keys *k);
/* 0 .. LIMIT_TENANTS - 1, the same for good; UINT32_MAX: tenant is NULL. */
uint32_t keys_tenant_index(const struct keys *k, const char *tenant);

/* Takes as long whichever bytes differ: all of sent are looked at, and as many of key. Not secret: both lengths. */
bool keys_equal(const char *sent, size_t n_sent, const char *key, size_t n_key);
