/* hub/hub_contents.h - what is in the shared cache: models, their revisions, the files of a snapshot.
 *
 * Names that no model of a hub may have are left out, and folders behind links are not looked into.
 * Thread  any thread.  Errors  as hub_cache.h. Lists are the caller's (mem_free), sorted; nothing there: n 0.
 */
#pragma once
#include "hub/hub_cache.h"

struct hub_repo_name {
    char text[HUB_REPO_BYTES];
}; /* "org/name" */
rd_status hub_cache_repos(struct hub_repo_name **list, size_t *n, struct rd_error *err);

/* A revision that was pulled. A snapshot that no revision names stands for itself: name is its commit. */
struct hub_revision {
    char name[HUB_REVISION_BYTES], commit[HUB_COMMIT_BYTES];
};
rd_status hub_repo_revisions(const struct hub_repo *r, struct hub_revision **list, size_t *n, struct rd_error *err);

struct hub_entry {
    char path[HUB_FILE_BYTES];     /* inside the snapshot */
    char digest[HUB_DIGEST_BYTES]; /* of the blob that it is a link to; "": it is none */
    uint64_t n_bytes;              /* UINT64_MAX: its blob is gone */
};
rd_status hub_repo_files(const struct hub_repo *r, const char *commit, struct hub_entry **list, size_t *n,
                         struct rd_error *err);

/* fn is given each name in the folder fd, which is closed; false: stop. */
void hub_each_name(int fd, bool (*fn)(void *arg, int dir, const char *name), void *arg);
