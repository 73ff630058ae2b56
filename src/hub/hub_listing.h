/* hub/hub_listing.h - the files of a model on a hub, which of them make a model that can be loaded, and which are wanted.
 *
 * A repository holds one model in several quantisations (GGUF files, each whole or in parts NAME-00001-of-00003.gguf), or
 * the model as its makers published it (*.safetensors beside config.json).
 *
 * Thread  any thread.
 * Errors  RD_E_FORMAT: what the hub says is no list of files, or names one that no file may have; RD_E_NOT_FOUND: no such
 *         file or quantisation, err names those that there are; RD_E_LIMIT.
 */
#pragma once
#include "base/limits.h"
#include "hub/hub_cache.h"
#include "hub/hub_http.h"

struct hub_file {
    char *path;
    uint64_t n_bytes;
    char digest[HUB_DIGEST_BYTES]; /* SHA-256 of large files, git's SHA-1 of small ones */
    bool is_wanted;
};

/* One quantisation: a GGUF file or its parts. */
struct hub_variant {
    char label[HUB_LABEL_BYTES]; /* "Q4_K_M"; "": the name has none */
    uint64_t n_bytes;
    uint32_t first, n_files; /* its first file; sorted by path, its parts follow each other */
    uint32_t order;          /* the less, the sooner it is chosen; HUB_NEVER: not unless it is named */
    bool is_whole;           /* no part is missing */
};
#define HUB_NEVER 1000u

struct hub_listing {
    char commit[HUB_COMMIT_BYTES];
    struct hub_file *files; /* sorted by path */
    size_t n_files, cap;
    struct hub_variant *variants; /* smallest first; none: no GGUF file */
    size_t n_variants, cap_variants;
};

/* Asks the hub. out: zeroed; hub_listing_deinit in any case. */
rd_status hub_listing_ask(struct hub_http *http, const char *endpoint, const struct hub_ref *ref,
                          struct hub_listing *out, struct rd_error *err);
/* From the files that are there already. */
rd_status hub_listing_read(const struct hub_repo *r, const char *commit, struct hub_listing *out, struct rd_error *err);
void hub_listing_deinit(struct hub_listing *m);

/* Marks the files that ref names, or else the best of those that n_memory bytes hold. *first: the file to open, UINT32_MAX:
 * the folder. why: a sentence. */
rd_status hub_listing_choose(struct hub_listing *m, const struct hub_ref *ref, uint64_t n_memory, uint32_t *first,
                             struct buf *why, struct rd_error *err);
/* Of an RD_E_NOT_FOUND: the model is there, and has not what was named; err says what it has. */
bool hub_lacks_part(const struct rd_error *err);
/* What a model of n_bytes needs to run: itself, and room for a context. */
uint64_t hub_memory_for(uint64_t n_bytes);
/* The quantisation that a file's name ends in, upper case; "": none. */
void hub_label_of(const char *path, char label[HUB_LABEL_BYTES]);
