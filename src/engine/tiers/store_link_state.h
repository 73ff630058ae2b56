/* engine/tiers/store_link_state.h - inside of the link: shared by store_link.c (threads), store_load.c and store_save.c. */
#pragma once
#include <stdatomic.h>
#include "base/limits.h"
#include "base/queue.h"
#include "base/thread.h"
#include "engine/engine_state.h"
#include "engine/tiers/store_link_options.h"

#define LOAD_MAX_JOBS              8u
#define LOAD_MAX_TRIES             4u
#define SHARED_MOST_LOOKUPS        16u
#define SHARED_MOST_STALE          16u
#define SHARED_N_FRESH             4096u
#define LOAD_PATIENCE              4u
#define LOAD_LEAST_WAIT_NS         1000000000ull
#define N_CONDEMNED                3u
#define PACKED_SUFFIX              "|packed"
#define SAVE_DEVICE_PAGES_PER_STEP 8u  /* in all, where a copy crosses the bus while the device waits */
#define SAVE_PAGES_PER_STEP        32u /* copies per step and request: some milliseconds at most */

struct image_save;

enum saver_work { SAVER_PRUNE, SAVER_RELEASE, SAVER_SYNC, SAVER_IMAGE, SAVER_OFFER };

/* What the saver does beside saving, once all that was queued before is written. The saver holds it, and who waits. */
struct saver_job {
    struct saver_job *next;
    enum saver_work work;
    struct store_space *spaces[N_CONDEMNED]; /* held, as in all that follows */
    uint64_t n_dropped;
    rd_status st;
    uint32_t n_refs; /* under the link's lock */
    bool done;
    struct store_text *texts; /* [n_texts], in this block, with their tokens; PRUNE, OFFER: one */
    uint32_t n_texts;
    struct image_save *image; /* IMAGE */
};

/* A copy of one page on its way to the disk. */
struct save_job {
    struct save_job *next;
    struct store_space *space;
    struct hash128 digests[2]; /* of the page before it (unless it is the first) and its own */
    struct hash128 shared[2];  /* likewise in the shared store's chain (of the first: the seed) */
    bool is_first, is_packed;  /* is_packed: to be, by the saver */
    uint32_t *tokens;          /* [page_tokens] */
    void *bytes;
};

/* An end: see store_end.h. */
struct store_end {
    struct store_space *space;
    bool is_first;             /* no page is before it */
    uint32_t t;                /* its tokens */
    struct hash128 digests[2]; /* of the page before it, and its own */
    uint32_t tokens[LIMIT_STORE_PAGE_TOKENS];
};

/* Ends on their way to the disk; lists under the link's lock. */
struct end_staging {
    uint32_t state_bytes, n_jobs, n_waiting; /* state_bytes 0: no ends are kept */
    struct save_job *jobs, *free_jobs, *waiting;
    uint32_t *tokens; /* [n_jobs * page_tokens] */
    uint8_t *staging; /* [n_jobs] of page_bytes + state_bytes, mapped */
    uint64_t staging_bytes;
};

/* Pages of a chain on their way into the tree. The loader has it between submit and done; the engine otherwise. */
struct load_job {
    struct load_job *next;
    struct store_space *space, *packed_space; /* packed_space NULL: nothing is packed */
    struct radix_node *root, *hold;           /* hold: locked path of the first n_held tokens */
    struct kv_loan loan;                      /* the pages taken: [first, first + n) of the chain */
    uint32_t n_held, first, n, n_read, n_requests;
    uint32_t n_disk;       /* of n: the first are on disk, the others in the shared store */
    uint64_t deadline_ns;  /* those are of no use later */
    uint32_t n_taken;      /* pages on loan: n, and one for an end that has tokens */
    struct store_end *end; /* behind them; NULL: none */
    uint8_t *end_bytes;    /* [page_bytes + state_bytes] */
    bool end_read;
    uint32_t *tokens;        /* [(first + n) * page_tokens], and the end's */
    struct hash128 *digests; /* [first + n] */
    kv_page *pages;          /* [first + n + 1], those before first unused */
    void **bytes;            /* [n_taken]: the pages', or on a device in staging */
    uint8_t *staging;        /* [n_taken * page_bytes], mapped; NULL: the loader writes to the pages */
    uint64_t staging_bytes;
    uint64_t took_ns;
};

struct store_link_counts {
    uint64_t n_loads, n_loads_late, n_pages_loaded, n_declined; /* declined: computing was quicker */
    uint64_t n_staged, n_unsaved;                               /* pages copied; given up for want of staging room */
    uint64_t n_loading;                                         /* pages on loan now */
    uint64_t n_shared_loads, n_shared_pages, n_shared_declined, n_shared_late; /* as those, of the shared store */
};

/* The shared store's part of a link: store_shared.c. */
struct shared_link {
    struct shared_store *store;
    struct thread loader; /* its own: a slow network holds up no disk */
    struct cond bell;     /* with the link's lock, as the lists */
    struct load_job *load_head, *load_tail;
    struct shared_lookup *head, *tail, *done;
    struct shared_lookup *in_flight[SHARED_MOST_LOOKUPS]; /* engine thread, as all below */
    uint32_t n_in_flight;
    struct saver_job *stale_head,
        *stale_tail;  /* OFFER: for the loader to look which pages are there, then for the saver */
    uint32_t n_stale; /* under the lock, as the list */
    uint64_t page_ns; /* smoothed; 0: not measured */
    /* Pages that are there, as far as is known: digests on disk, at their last bits. [SHARED_N_FRESH] */
    struct shared_fresh {
        uint64_t digest, until_ns;
    } * fresh;
    uint64_t n_losses;       /* when that was begun: nothing of it is sure after another one */
    struct hash128 *digests; /* [max_pages + 1]: for store_link_save_path */
    uint8_t *unpacking;      /* its loader's */
};

struct store_link {
    struct store_link_options o;
    struct page_store *store;
    struct thread saver, loader;

    struct mutex lock; /* guards the lists and flags below; never held while a file is touched */
    struct cond save_bell, load_bell, saver_idle;
    struct save_job *save_head, *save_tail, *free_jobs;
    struct load_job *load_head, *load_tail, *done_head;
    struct wake *engine_bell; /* NULL: none */
    bool closing, clear_wanted, saver_busy, all_condemned;
    struct saver_job *work;                     /* the first to be done is the first */
    struct store_space *condemned[N_CONDEMNED]; /* pages, ends, packed pages to be dropped; [0] NULL: none */
    struct end_staging ends;
    struct shared_link *shared; /* NULL: none */

    struct save_job *jobs;        /* [n_jobs] */
    uint8_t *staging;             /* [n_jobs * page_bytes], mapped, touched as far as used */
    uint8_t *packing, *unpacking; /* [packed_bytes]: the saver's, the loader's; NULL: nothing is packed */
    uint32_t *staging_tokens;     /* [n_jobs * page_tokens] */
    uint32_t n_jobs;
    atomic_bool stop; /* the loader gives up soon; relaxed: only a hint */
    atomic_bool
        is_condemned; /* a namespace waits for being dropped: the engine sets, the saver clears; relaxed: both under lock */
    atomic_ullong image_bytes; /* of rows of images that wait to be written */
    atomic_bool is_writable;   /* the saver writes, the engine reads: pages can be saved at all; relaxed: a hint */

    /* engine thread */
    struct load_job *in_flight[LOAD_MAX_JOBS];
    uint32_t n_in_flight;
    struct hash128 *digests; /* [max_pages]: of the prompt being looked up */
    uint8_t *is_lossy;       /* [n_pages] bool: was packed; NULL: none ever is */
    uint64_t load_page_ns;   /* smoothed; 0: not measured */
    uint64_t n_promised;
    struct store_link_counts counts;
};

/* A page's bytes to host memory. Engine thread. */
rd_status store_page_out(struct engine *e, kv_page id, void *to);
/* store_save.c */
/* A copy is not wanted any more, or never was made: lets go of its namespace. Under the lock. */
void store_save_free(struct store_link *l, struct save_job *job);
/* Saver thread, or store_link_work. False: nothing was queued. */
bool store_save_one(struct store_link *l);
/* After a commit, before any request is ended: the batch's new pages. */
void store_save_step(struct engine *e, uint64_t now);
/* r ends or is preempted, its sequence still live: the rest of its pages, if they are kept. */
void store_save_rest(struct engine *e, struct request *r);
/* store_load.c */
/* Loader thread, or store_link_work. */
bool store_load_one(struct store_link *l);
/* A job that was read goes back to the engine. Any loader's thread. */
void store_load_hand_back(struct store_link *l, struct load_job *job);
/* Of the first n_most pages of the job those that are on disk, without a gap. */
uint32_t store_load_read_disk(struct store_link *l, const struct load_job *job, uint32_t n_most);
/* True: r waits for a load now, in the queue. root: its namespace in the tree. */
bool store_load_wait(struct engine *e, struct request *r, struct radix_node *root, uint64_t now);
/* Attaches what was loaded; lets go of requests that have waited too long. */
void store_load_collect(struct engine *e, uint64_t now);
/* r ends while it is queued. */
void store_load_leave(struct engine *e, struct request *r);
/* Waits for loads: all pages are given back. */
void store_load_finish(struct engine *e);
/* A namespace of the store, with a suffix: the caller holds it; NULL: there is none to be had. Engine thread. */
struct store_space *store_link_name_space(struct engine *e, const struct kv_space *kv_space, const char *suffix,
                                          uint64_t page_bytes);
/* That of r's pages that are packed; as store_link_space. */
struct store_space *store_link_packed_space(struct engine *e, struct request *r);
/* Page i of a chain is stored packed. */
static inline bool store_link_packs(const struct store_link *l, uint32_t i)
{
    return l->o.lossy_from > 0 && (uint64_t)i * l->o.page_tokens >= l->o.lossy_from;
}
/* What r computes is kept, and can be written now. Engine thread. */
bool store_link_keeps(struct engine *e, const struct request *r);
/* The store's namespace of r, which r holds until it leaves; NULL: there is none to be had. Engine thread. */
struct store_space *store_link_space(struct engine *e, struct request *r);
/* r lets go of its namespaces. */
void store_link_unref_spaces(struct engine *e, struct request *r);
/* store_link.c. The saver's, from any thread. */
void store_link_push_work(struct store_link *l, struct saver_job *job);
/* A job with copies of the texts, in the namespaces of kv_space; NULL: no memory, or no namespace to be had. Engine thread. */
struct saver_job *store_link_make_job(struct engine *e, enum saver_work work, const struct kv_space *kv_space,
                                      const struct store_text *texts, uint32_t n_texts);
/* One holder less. Under the lock. */
void store_link_unref_job(struct store_link *l, struct saver_job *job);
/* Rows of an image are to be written, and are the saver's then. false: no memory. */
bool store_link_push_image(struct store_link *l, struct image_save *save);
