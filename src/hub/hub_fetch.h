/* hub/hub_fetch.h - one file, downloaded into a folder: resumed where it broke off, checked, and only then given its name.
 *
 * What is there of it lies under `partial` beside it, which one process at a time writes (flock): a second one waits, and
 * finds the file whole or goes on with it. A partial that is a link, no regular file, or another user's is not written to.
 *
 *     one connection      [bytes 0 .. n)                                              n < n_bytes: its beginning
 *     several             [piece 0 | piece 1 | ...  n_bytes][head | bytes there of piece 0 | of piece 1 | ...]
 *
 * Several are used from HUB_PIECES_FROM bytes on, where a digest or a strong etag tells one file from another (hub_ranges.h).
 * A piece's bytes are written before the number that counts them: a process may be killed between any two instructions.
 * After a power cut the digest decides. The second form is longer than the file, and is called a beginning by nobody.
 *
 * Thread  its owner.
 * Errors  as hub_http_get; RD_E_FORMAT: the size or the digest is another one, and what came is gone. RD_E_LIMIT: the
 *         disk has no room, nothing was asked for. Otherwise what came is kept.
 */
#pragma once
#include "hub/hub_http.h"

#define HUB_PIECES_FROM (8ull << 20)

struct hub_fetch {
    struct hub_http *http;
    const struct hub_http_options *options; /* cancelled, tell, tick, user */
    int dir;
    const char *name, *partial; /* inside dir */
    const char *shown;          /* what messages call it */
    const char *url, *if_range; /* if_range: a strong etag of the partial's file, or NULL */
    uint64_t n_bytes;           /* UINT64_MAX: unknown, and digest is no SHA-1 then */
    const char *digest;         /* 64 digits: SHA-256; 40: git's SHA-1 of a blob; NULL: unknown */
    const char *magic;          /* its first bytes, which it must have; NULL: any */
    uint64_t n_there;           /* progress: read by tick; of all pieces */
    bool is_checking;           /* n_there counts bytes of an earlier try that are read again */
};

rd_status hub_fetch_file(struct hub_fetch *f, struct rd_error *err);
/* Whether a new partial of f would have pieces. */
bool hub_fetch_has_pieces(const struct hub_fetch *f);

/* Opens or makes `name` and takes its lock, waiting for another's; flags as for open. The file is the one of that name
 * when it returns. */
rd_status hub_take_lock(int dir, const char *name, int flags, const struct hub_http_options *o, const char *shown,
                        int *fd, struct rd_error *err);
