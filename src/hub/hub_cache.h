/* hub/hub_cache.h - the cache of models that programs of the Hugging Face hub share, as huggingface_hub lays it out:
 *
 *     ROOT/models--org--name/refs/main                      a commit, 40 hexadecimal digits
 *                            blobs/DIGEST                   bytes, named by SHA-256 (or git's SHA-1 of small files)
 *                            blobs/DIGEST.incomplete        their beginning (.parts.incomplete: pieces, hub_fetch.h)
 *                            snapshots/COMMIT/folder/file -> ../../../blobs/DIGEST
 *     ROOT/.locks/models--org--name/DIGEST.lock             held (flock) while a blob is written
 *
 * ROOT: $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else
 * ~/.cache/huggingface/hub. Below ROOT no symbolic link to a folder is followed when something is written: another user of
 * a shared cache could lead it elsewhere.
 *
 * Thread  any thread; a struct hub_repo: its owner.
 * Errors  RD_E_NOT_FOUND, RD_E_IO, RD_E_INVALID (a link or no folder where a folder belongs; an unsafe name), RD_E_NOMEM.
 *         Every call goes through the fault hook of base/file.h.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/limits.h"
#include "hub/hub_ref.h"

enum { HUB_COMMIT_BYTES = 41, HUB_DIGEST_BYTES = 65 };

struct hub_repo {
    int fd;   /* ROOT/models--org--name; < 0: closed */
    int root; /* ROOT */
    char path[LIMIT_PATH_BYTES / 2];
};

/* NULL: not set, or empty. */
const char *hub_variable(const char *name);
/* Where the hub's programs keep something: at the first of `own` (NULL ends them) that is set, else at `below` in their home:
 * $HF_HOME, $XDG_CACHE_HOME/huggingface, ~/.cache/huggingface. */
rd_status hub_home_path(const char *const *own, const char *below, char *out, size_t cap, struct rd_error *err);
rd_status hub_cache_root(char root[LIMIT_PATH_BYTES / 4], struct rd_error *err);

/* repo: "org/name", checked by hub_ref_parse. make: with its folders, those above included; nothing of it is removed until
 * it is closed (a removal that is running is waited for). */
rd_status hub_repo_open(const char *repo, bool make, struct hub_repo *out, struct rd_error *err);
void hub_repo_close(struct hub_repo *r);

/* The commit that a revision stood for at the last pull; a commit stands for itself. RD_E_NOT_FOUND. */
rd_status hub_repo_commit(const struct hub_repo *r, const char *revision, char commit[HUB_COMMIT_BYTES],
                          struct rd_error *err);
rd_status hub_repo_set_commit(const struct hub_repo *r, const char *revision, const char *commit, struct rd_error *err);

/* Whether a blob is there, whole: its size is known. */
bool hub_repo_has_blob(const struct hub_repo *r, const char *digest, uint64_t n_bytes);
/* Gives a blob a file's name in a commit's snapshot. What stood there before is replaced at once. */
rd_status hub_repo_link(const struct hub_repo *r, const char *commit, const char *path, const char *digest,
                        struct rd_error *err);
/* ROOT/models--org--name/snapshots/COMMIT/PATH; path "": the snapshot. RD_E_INVALID: too long. */
rd_status hub_repo_path(const struct hub_repo *r, const char *commit, const char *path, char out[LIMIT_PATH_BYTES],
                        struct rd_error *err);

/* Which model's file a path is, by its form ".../models--ORG--NAME/snapshots/COMMIT[/FILE]"; file "": the snapshot. */
bool hub_whose_path(const char *path, char repo[HUB_REPO_BYTES], char commit[HUB_COMMIT_BYTES],
                    char file[HUB_FILE_BYTES]);

/* Opens (make: and makes) folder `name` below dir; name may hold slashes. Links are refused. */
rd_status hub_open_folder(int dir, const char *name, bool make, int *fd, struct rd_error *err);
/* A folder that a person named, with those above it when make; links are followed, being the user's own words. */
rd_status hub_open_root(const char *root, bool make, int *fd, struct rd_error *err);
/* Gives what lies at `target` another name in dir, as a symbolic link; replaces a link of that name, and nothing else. */
rd_status hub_make_link(int dir, const char *name, const char *target, struct rd_error *err);
/* "NAME: WHAT: reason of errno". */
rd_status hub_file_error(const char *name, const char *what, struct rd_error *err);
