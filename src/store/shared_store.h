/* store/shared_store.h - pages in a server that many machines share (Redis, Valkey): what one of them computed, another reads.
 *
 * Behind the disk, and slower than it: pages are offered as they are written there, and asked for where the disk does not have
 * them. The server may be down, slow, full, empty, hostile: then there are no pages, and nothing else happens. What comes
 * back is checked as shared_page.h says before anyone sees it; what is damaged is removed there.
 *
 * WRITING is by a thread of its own, a batch at a time: those that the server has already only live longer (EXPIRE), the
 * others are sent (SET .. EX), at most max_rate bytes a second. What waits is bounded in bytes; beyond that it is dropped
 * and counted.
 * READING waits, so it is for a thread that may: shared_store_find asks for all names of a chain at once,
 * shared_store_read has a few answers under way at any time. Each has a deadline.
 * FAILING. Whatever goes wrong with the connection of a direction closes it, and that direction rests for 1 s, 2 s, .. 60 s.
 * It is said in the log once until it is well again.
 * CLEARING. Names carry a generation, which is kept in the store and read with each batch: shared_store_clear draws a
 * new one, so that nobody finds anything older. Until that has been written nothing is found here. What was offered before is
 * not written any more.
 *
 * Thread  open, close: the owner. find, touch, read: one thread (the shared loader). offer, remove: one thread (the saver).
 *         The rest: any.
 * Errors  open: RD_E_INVALID, RD_E_UNSUPPORTED (no libhiredis), RD_E_NOMEM. A server that is down is none.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "radish/radish.h"
#include "store/shared_page.h"

struct shared_store;

#define SHARED_PREFIX   "radish"
#define SHARED_EXPIRY_S 86400u
#define SHARED_QUEUE    (64ull << 20)

struct shared_store_options {
    const char *url;                /* store_url.h; copied, as the other texts */
    const char *secret;             /* that all machines on the store have; NULL, "": none */
    const char *prefix;             /* of all names; NULL: SHARED_PREFIX */
    uint32_t expiry_s;              /* after its last use by a writer a page goes; 0: SHARED_EXPIRY_S */
    uint64_t queue_bytes, max_rate; /* 0: SHARED_QUEUE; 0: no bound */
    uint64_t page_bytes;            /* of the largest page */
    uint32_t page_tokens;
};

struct shared_store_counts {
    uint64_t n_lookups, n_found;                  /* chains asked for; pages found of them */
    uint64_t n_read, n_bytes_read;                /* pages that came and were right */
    uint64_t n_refused;                           /* that were not: damaged, or of others */
    uint64_t n_written, n_bytes_written, n_known; /* n_known: there already */
    uint64_t n_dropped, n_removed;                /* not written: no room in the queue, or the store did not take it */
    uint64_t n_read_errors, n_write_errors;       /* times that a direction failed */
    uint64_t lookup_us;                           /* smoothed */
    uint64_t queue_bytes;                         /* now */
    uint64_t is_on, reads, writes;                /* 0 or 1: there is one; the direction is not resting */
    enum rd_store_trouble read_trouble, write_trouble;
};

rd_status shared_store_check(const struct shared_store_options *o, struct rd_error *err);
rd_status shared_store_open(const struct shared_store_options *o, struct shared_store **out, struct rd_error *err);
/* Writes what waits, for at most 2 s. NULL is fine. */
void shared_store_close(struct shared_store *s);

const struct shared_keys *shared_store_keys(const struct shared_store *s);
/* A look at it is worth a wait. */
bool shared_store_can_read(struct shared_store *s);

/* How many of the n pages are there, from the first on without a gap. */
uint32_t shared_store_find(struct shared_store *s, const struct hash128 *digests, uint32_t n, uint64_t page_bytes,
                           uint64_t deadline_ns);
/* As find; and those that are there live as long again as if they had been written now. False: there was no answer. */
bool shared_store_touch(struct shared_store *s, const struct hash128 *digests, uint32_t n, uint64_t page_bytes,
                        uint64_t deadline_ns, uint32_t *n_there);
/* A page to be read: where to, and what it has to be. */
struct shared_want {
    struct shared_page page;
    void *bytes;
};
/* Reads them, verified; returns how many came, from the first on without a gap. stop: as page_store_read's. */
uint32_t shared_store_read(struct shared_store *s, const struct shared_want *wants, uint32_t n, uint64_t deadline_ns,
                           const atomic_bool *stop);
/* A page of that size would find room in the queue, and writing does not rest. */
bool shared_store_has_room(struct shared_store *s, uint64_t page_bytes);
/* How often something may have got lost: a direction failed, or a page was dropped. */
uint64_t shared_store_n_losses(struct shared_store *s);
/* A copy of the page waits to be written. */
void shared_store_offer(struct shared_store *s, const struct shared_page *page, const void *bytes);
/* The page shall not be found any more. */
void shared_store_remove(struct shared_store *s, struct hash128 digest, uint64_t page_bytes);
void shared_store_clear(struct shared_store *s);
void shared_store_get_counts(struct shared_store *s, struct shared_store_counts *out);
