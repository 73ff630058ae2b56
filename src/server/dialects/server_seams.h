/* server/dialects/server_seams.h - what the server is given by whoever starts it, and does not know itself: models, settings of
 * the next load, and downloads.
 */
#pragma once
#include "radish/radish.h"
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "radish/status.h"

/* The models that load() knows, by number. There may be more with time, LIMIT_SERVED_MODELS at most, and never fewer. Any thread. */
struct server_models {
    void *user;
    uint32_t (*count)(void *user);                   /* one at least */
    const char *(*name)(void *user, uint32_t model); /* as clients name it; outlives server_run. "": it names itself */
};

struct server_setting {
    const char *name, *text; /* text NULL: as it was at the start */
};

/* What may be changed while the server runs, kept and checked by whoever loads models: load() takes it. Any thread. */
struct server_settings {
    void *user;
    /* Appends members of a JSON object: settings, failure, needs_restart, config (docs/playground.md). */
    void (*put)(void *user, struct buf *out);
    /* All of them or none. save: what the next load takes is kept for the next start, too; that may wait for a disk.
     * RD_E_INVALID: *at is the one that cannot be, err says what it wants. *at == n: they cannot be kept, err says why. */
    rd_status (*set)(void *user, const struct server_setting *list, size_t n, bool save, size_t *at,
                     struct rd_error *err);
};

/* Models of a hub, looked for and fetched by whoever knows hubs. Any thread. Errors are for the client: RD_E_INVALID (no such
 * name), RD_E_NOT_FOUND, RD_E_FULL, RD_E_UNSUPPORTED (offline, or built without), RD_E_IO (what the hub says). */
struct server_downloads {
    void *user;
    /* These wait for the hub; they append members of a JSON object. */
    rd_status (*search)(void *user, const char *words, struct buf *out, struct rd_error *err);
    rd_status (*look)(void *user, const char *model, struct buf *out, struct rd_error *err);
    /* These do not. start: *id names it in the list. cancel: RD_E_NOT_FOUND. */
    rd_status (*start)(void *user, const char *model, uint64_t *id, struct rd_error *err);
    rd_status (*cancel)(void *user, uint64_t id);
    void (*list)(void *user, struct buf *out);
};

/* Given to a load: told how far it is, and asked whether nobody waits for it any more. NULL: nobody looks. */
struct server_load_watch {
    void (*progress)(void *arg, double fraction);
    bool (*cancelled)(void *arg); /* true: load ends with RD_E_CANCELLED, soon */
    void *arg;
};
typedef rd_status (*server_load_fn)(void *user, uint32_t model, const struct server_load_watch *watch, rd_engine **out,
                                    struct rd_error *err);
