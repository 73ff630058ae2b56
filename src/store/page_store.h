/* store/page_store.h - finished KV pages on disk: found by the tokens that lead to them, verified before use.
 *
 * A page is known by a chain: digest of the page before it and of its own tokens; the first one's predecessor stands
 * for the namespace. So equal prefixes are one entry, whoever computed them, and a page is found only below exactly the
 * tokens that it was computed for:
 *
 *     seed = digest(key, namespace)     d0 = digest(key, seed, tokens of page 0)     d1 = digest(key, d0, tokens of page 1)
 *
 * The key is the folder's own secret (SipHash): a client cannot make up two texts with one digest. Tokens are compared
 * in full all the same, and bytes against their checksum, each time that a page is read. To the store a page is
 * page_bytes of anything; what they mean (model, KV type, adapter, salt, the build that computed them) is in the
 * namespace's name, and other names never see them.
 *
 *     DIR/lock       held by the one process that writes. Others on the folder only read (they see what is new at
 *                    page_store_refresh, and one of them becomes the writer when that one is gone)
 *     DIR/key        the secret; when it is damaged, that of the newest segment
 *     DIR/ID.pages   segments (store/segment.h), each of one namespace, appended to, dropped as a whole
 *
 * CRASHES. A page's bytes are written, then synced, then its record is written. Killed at any instant, the next start
 * finds each page whole or not at all; a power cut may lose what was written last, and is seen by the checks.
 * DAMAGE. A record that is not what it should be is never listed; a page that is not what its record says is dropped
 * when it is read, its record erased, and page_store_read returns the pages before it. A sync that fails drops the
 * segment.
 * FULL, BROKEN, READ-ONLY. Where the lock cannot be taken at all, the store only reads. A write that fails is counted
 * and said once in the log; writing is tried again after 10 s, then 20 s, ... 5 min. Reading goes on. A folder that is
 * removed meanwhile is begun anew at the next page_store_refresh.
 * ROOM. Where the disk has less free than it shall keep, the cap is what the files take at that moment.
 * SIZE. All segment files together never take more than cap_bytes, the one being written included: the least recently
 * used segment goes before a byte is written for which there is no room. A segment is used when a page of it is found,
 * read or written; the time survives restarts as the file's time of change.
 *
 * Thread  page_store_open, close: the owner, alone. put, flush, refresh, drop: one thread (the saver).
 *         chain, find, has, read, get_counts: any thread, beside the saver; only read touches files. The lock inside is
 *         never held across a file call.
 * Errors  open: RD_E_IO, RD_E_INVALID (the folder cannot be used: serve without), RD_E_NOMEM. The others as said.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/clock.h"
#include "base/hash.h"
#include "radish/status.h"

struct page_store;
struct store_space; /* a namespace of the store; lives as long as it is held, or the store lives */

struct store_options {
    const char *dir; /* made if missing, 0700 */
    uint64_t cap_bytes;
    uint64_t segment_bytes; /* of a file, about; 0: a 64th of the cap, at most 128 MiB */
    const struct clock *clock;
    /* This many bytes of the disk stay free, but no more than 1/keep_free_part of its size (0: of any size): below that
     * the files take no more room than they do, the least recently used goes for what is new. 0: it may fill up. */
    uint64_t keep_free_bytes, keep_free_part;
    uint32_t max_spaces; /* namespaces held at once; 0: LIMIT_STORE_SPACES */
    const char *about;   /* "MODEL\nKV TYPE", of what this process stores: for people; copied; or NULL */
};

struct store_counts {
    uint64_t n_pages, n_bytes, n_segments, cap_bytes; /* now; bytes: of all segment files */
    uint64_t n_written, n_bytes_written;              /* since opening, as all below: pages and their bytes */
    uint64_t n_known;                                 /* put, but stored already */
    uint64_t n_dropped;                               /* put, and not stored: no writer, backing off, failed */
    uint64_t n_read, n_bytes_read, n_evicted;
    uint64_t n_damaged; /* records, pages and files that the checks refused */
    uint64_t n_read_errors, n_write_errors;
    uint64_t n_remove_errors;       /* files that could not be removed, each time that it was tried */
    uint64_t is_writer, is_failing; /* 0 or 1: holds the lock; backs off after failed writes */
};

rd_status page_store_open(const struct store_options *o, struct page_store **out, struct rd_error *err);
/* Writes down what page_store_put left pending. NULL is fine. */
void page_store_close(struct page_store *s);

/* The namespace of that name (compared in full, at most LIMIT_STORE_NAME_BYTES), for pages of that size, and one holder
 * more: the caller, until it releases it. One that is not held may be forgotten, which drops no page: they are found
 * again by the name. Any thread. RD_E_NOMEM; RD_E_LIMIT: the name, the sizes, or too many namespaces are held. */
rd_status page_store_space(struct page_store *s, const void *name, size_t n, uint32_t page_tokens, uint64_t page_bytes,
                           struct store_space **out);
/* What its pages are, for people, where they are not KV of texts: a constant, "images". Any thread; by who holds it. */
void page_store_say(struct page_store *s, struct store_space *space, const char *what);
/* One more holder; returns space. One less. Any thread; NULL is fine. What is held at page_store_close ends with it. */
struct store_space *page_store_ref(struct page_store *s, struct store_space *space);
void page_store_unref(struct page_store *s, struct store_space *space);

/* Its name, [*n]; never changes. Any thread. */
const void *page_store_space_name(const struct store_space *space, size_t *n);

/* digests[first .. n) of the pages of tokens[0 .. n * page_tokens); digests[0 .. first) are known. */
void page_store_chain(struct page_store *s, const struct store_space *space, const uint32_t *tokens, uint32_t first,
                      uint32_t n, struct hash128 *digests);
/* How many of the n pages are stored, from the first on without a gap. They count as used. No file is touched. */
uint32_t page_store_find(struct page_store *s, const struct hash128 *digests, uint32_t n);
bool page_store_has(struct page_store *s, struct hash128 digest);

/* Stores page i of a chain (digests[0 .. i], its own page_tokens tokens). RD_OK also when it is known already.
 * RD_E_AGAIN: not now (no writer, or writing has failed lately); RD_E_IO: it failed; RD_E_LIMIT: larger than the cap;
 * RD_E_NOMEM. What is put can be found after the next flush, or sooner. */
rd_status page_store_put(struct page_store *s, struct store_space *space, const struct hash128 *digests, uint32_t i,
                         const uint32_t *tokens, const void *page);
rd_status page_store_flush(struct page_store *s);

/* Reads pages [first, n) of the chain into pages[0 .. n - first), verified; tokens: of the whole chain. Returns how many
 * came, from first on without a gap; what is behind the first that does not come is undefined. stop (may be NULL): set
 * by any thread to give up soon. Counts as a use. */
uint32_t page_store_read(struct page_store *s, struct store_space *space, const struct hash128 *digests,
                         const uint32_t *tokens, uint32_t first, uint32_t n, void *const *pages,
                         const atomic_bool *stop);

/* A reader looks at the folder again; it becomes the writer if there is none any more. A writer whose folder was removed
 * makes it again, or reads what another process has made of it meanwhile. */
void page_store_refresh(struct page_store *s);
/* Drops everything of a namespace, or (NULL) all there is; by the writer only. RD_OK: not even a power cut brings it
 * back. RD_E_IO: some of it is still there, or might be again. */
rd_status page_store_drop(struct page_store *s, struct store_space *space);
/* This process finds nothing that was stored so far of that namespace (NULL: of any) any more, nor what it puts there from
 * now on after its end. The caller holds the namespace. Any thread. */
void page_store_forsake(struct page_store *s, struct store_space *space);
/* Takes a text out: everything that goes on behind tokens[0 .. n), and of its own pages those that nothing else goes on
 * from, unless its whole pages are not all there. spaces[0] has the text's pages; the others (each may be NULL) are
 * chained to them. By the saver. RD_E_AGAIN: this process does not write; RD_E_IO: it is found no more here, but some of
 * it is still on the disk; RD_E_NOMEM: nothing happened. */
rd_status page_store_prune(struct page_store *s, struct store_space *const *spaces, uint32_t n_spaces,
                           const uint32_t *tokens, uint32_t n, uint64_t *n_dropped);
/* Texts whose owner lets go of them: of tokens[0 .. n), what lies behind the first n_keep and is followed by nothing but
 * these texts themselves. spaces[0] has their pages, spaces[1] (or NULL) their ends, as engine/tiers/store_end.h writes
 * them; the others are chained to the pages. By the saver. Errors as of page_store_prune. */
struct store_text {
    const uint32_t *tokens;
    uint32_t n, n_keep;
};
rd_status page_store_release(struct page_store *s, struct store_space *const *spaces, uint32_t n_spaces,
                             const struct store_text *texts, uint32_t n_texts, uint64_t *n_dropped);
/* A flush after which not even a power cut takes back what was put. By the saver. */
rd_status page_store_sync(struct page_store *s);
/* Reads every page and checks it; damaged ones are dropped as by page_store_read. */
void page_store_verify(struct page_store *s, uint64_t *n_good, uint64_t *n_bad);
/* What there is of each namespace, by use, the latest first: at most n_max of them; returns how many. */
struct store_space_info {
    struct hash128 space;
    uint64_t n_segments, n_pages, n_tokens, n_bytes;
    int64_t used_s;
    char about[320]; /* store_options.about and, in a line behind it, what page_store_say said; or "" */
};
uint32_t page_store_list(struct page_store *s, struct store_space_info *list, uint32_t n_max);
/* As page_store_drop, of a namespace that page_store_list told of. */
rd_status page_store_drop_listed(struct page_store *s, struct hash128 space);
void page_store_get_counts(struct page_store *s, struct store_counts *out);
