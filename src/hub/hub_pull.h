/* hub/hub_pull.h - a model from a hub into the shared cache, or found there.
 *
 * A pull downloads what is missing, each file checked against the digest in the hub's list, then gives the files their
 * names in the commit's snapshot, and only then says that the revision is that commit: whoever reads the cache sees the
 * model as it was, or whole.
 *
 * Thread  its owner.  Errors  as hub_listing.h, hub_fetch.h, hub_cache.h.
 */
#pragma once
#include "hub/hub_fetch.h"
#include "hub/hub_listing.h"

/* What the environment says, as huggingface_hub reads it. */
struct hub_settings {
    char endpoint[1024]; /* $HF_ENDPOINT, else https://huggingface.co; no slash at its end */
    char token[1024];    /* $HF_TOKEN, $HUGGING_FACE_HUB_TOKEN, or the file of `hf auth login`; "": none */
    bool is_offline;     /* $HF_HUB_OFFLINE */
};
rd_status hub_settings_read(struct hub_settings *out, struct rd_error *err);

struct hub_pull {
    struct hub_http_options http;                                             /* its tick finds what follows */
    uint64_t n_memory;                                                        /* that the model may take */
    void (*chosen)(void *user, const struct hub_listing *m, const char *why); /* may be NULL; user: of http */
    bool only_list; /* nothing is downloaded: it ends after `chosen` */
    /* progress */
    uint64_t n_total, n_done; /* bytes of all files; of those that are whole */
    const char *file;         /* that is downloaded now; NULL: none */
    struct hub_fetch now;
};

/* *path: the file to open, or the folder. */
rd_status hub_pull(struct hub_pull *p, const struct hub_ref *ref, char path[LIMIT_PATH_BYTES], struct rd_error *err);
/* The same without a network: RD_E_NOT_FOUND when it was never pulled. */
rd_status hub_find_pulled(const struct hub_ref *ref, uint64_t n_memory, char path[LIMIT_PATH_BYTES],
                          struct rd_error *err);
