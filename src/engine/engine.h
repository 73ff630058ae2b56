/* engine/engine.h - the engine: a queue of requests, a tree of what was computed, and a loop of steps.
 *
 *     drain inbox -> reap -> admit -> plan -> forward -> commit, sample -> finish -> housekeeping
 *     (docs/engine.md, "Step")
 *
 * engine_step() is one turn and can be called by hand with a fake clock (the simulator); engine_start() runs it on a
 * thread that sleeps when there is nothing to do.
 *
 * Thread  "any thread" where said; everything else belongs to the engine thread, or to the caller of engine_step.
 * Errors  engine_submit: RD_E_FULL (queue), RD_E_CONTEXT (can never fit), RD_E_CLOSED.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/clock.h"
#include "engine/executor.h"
#include "engine/request.h"
#include "kv/kv_seq.h"
#include "radish/inspect.h"
#include "store/page_store.h"
#include "store/shared_store.h"

struct draft_model;
struct engine;
struct ram_link;
struct kv_events;
struct store_link;

struct engine_options {
    struct executor executor; /* borrowed; outlives the engine */
    const struct clock *clock;
    uint32_t n_pages, page_tokens;
    uint32_t n_ctx;
    uint32_t max_running, max_queue, max_chunk;
    uint64_t step_target_ns, ttl_ns; /* target: of a step while any sequence decodes */
    uint64_t prompt_target_ns;       /* of a step of prompts alone; 0: max_chunk decides */
    uint64_t kv_bytes;               /* the budget, for bounding the tree's own memory */
    const void *namespace_name;      /* digest of model and KV type; copied */
    size_t namespace_bytes;
    uint64_t image_bytes;            /* of encoded images that are kept; 0: IMAGES_KEPT_BYTES */
    bool speculate;                  /* drafts from what was written before, verified losslessly */
    struct draft_model *draft_model; /* borrowed; drafts from it too; or NULL */
    struct kv_events *events;        /* borrowed; who is told what is cached; or NULL */
    struct store_link *store;        /* borrowed; pages on disk; or NULL. The executor has pages */
    struct ram_link *ram;            /* borrowed; pages in host memory; or NULL. The executor moves pages */
    bool isolate;                    /* pages are made zeros when they change namespaces */
    double verify_share;             /* 0 .. 1: of hits that are computed again while idle, see verify.c */
    uint64_t verify_seed;
    uint64_t chunk_seed; /* tests: not 0 = prefill chunks and drafts of random length */
};

/* Hits that were computed again: verify.c. */
struct verify_counts {
    uint64_t n_hits, n_waiting;    /* hits seen; drawn ones that wait now */
    uint64_t n_verified, n_tokens; /* hits that were compared whole; tokens compared */
    uint64_t n_skipped;            /* drawn, but evicted meanwhile, or too many waited, or no room */
    uint64_t n_mismatches;
};

/* Counters and gauges, published after every step (a consistent snapshot). */
struct engine_stats {
    uint64_t n_queued, n_waiting, n_prefill, n_decode;
    uint64_t n_loading, n_paused; /* of those queued: other tiers read for them; of those live: a slow reader's */
    uint64_t n_submitted, n_stop, n_length, n_cancelled, n_failed, n_preempted;
    uint64_t n_cancelled_in[RD_N_PHASES], n_corrupted; /* corrupted: of those failed, by logits that are no numbers */
    uint64_t prompt_computed, prompt_cached, prompt_joined, generated, recomputed;
    uint64_t prompt_device; /* of prompt_cached: neither joined nor brought by a tier */
    uint64_t drafts, drafted, draft_accepted;
    uint64_t keys_max; /* the longest sequence that ended */
    uint64_t matches[RADIX_N_KINDS];
    uint64_t misses[MISS_N_CAUSES];
    uint64_t pages_total, pages_free, pages_ready, pages_locked, pages_pending, pages_quarantined, pages_evicted;
    uint64_t windows_total, windows_free, windows_kept, windows_used, windows_dropped, window_cuts, window_cut_tokens;
    uint64_t tree_nodes, tree_keys, tree_bytes, insert_failed, rows_copied;
    uint64_t class_keys[RADIX_N_CLASSES];
    uint64_t depth_nodes[RADIX_N_DEPTHS], depth_keys[RADIX_N_DEPTHS];
    uint64_t pages_gone[GHOST_N_CAUSES], keys_gone[GHOST_N_CAUSES];
    uint64_t plan_ns, forward_ns, sample_ns,
        output_ns; /* of all steps, in this order; forward: waiting for the device */
    uint64_t n_steps, n_steps_ahead, step_runs, step_rows, step_ns_last, device_errors, accounting_errors;
    uint64_t steps_after_cancel; /* the most that one request had rows in after it was cancelled: 1 at most */
    uint64_t device_dead;        /* 1: every further step will fail */
    uint64_t n_turns;            /* of the engine's loop: at least one a second, unless a step is long */
    uint64_t n_beats;            /* signs of getting on within steps: on a CPU while prompts are computed */
    uint64_t prefill_milli_tok_s, decode_milli_tok_s;
    /* images.h: of prompts; encoded; wanted while another's was being encoded; wanted, and encoded before; left half done */
    uint64_t images, images_encoded, images_joined, images_kept, images_stopped, images_evicted, images_waiting;
    uint64_t images_stored;                          /* whose rows came from the disk */
    uint64_t image_entries, image_bytes, encoder_ns; /* entries: encoded and wanted; bytes: of those encoded */
    uint64_t prompt_disk, pages_loading;             /* of prompt_cached: brought by loads */
    uint64_t prompt_shared;                          /* of prompt_disk: from the shared store */
    uint64_t disk_loads, disk_loads_late, disk_declined, disk_pages_loaded, disk_staged, disk_unsaved;
    uint64_t shared_loads, shared_late, shared_declined, shared_pages_loaded, shared_page_us;
    struct shared_store_counts shared;
    struct kv_events_counts events;
    struct verify_counts verify; /* zeros without verify_share */
    struct store_counts disk;    /* zeros without a store */
    uint64_t prompt_ram;         /* of prompt_cached: brought from host memory */
    struct ram_link_counts ram;  /* zeros without such a tier */
};

rd_status engine_create(const struct engine_options *o, struct engine **out);
/* Stops the thread, ends every request with RD_E_CLOSED, frees. NULL is fine. */
void engine_destroy(struct engine *e);
rd_status engine_start(struct engine *e);
/* Ends every request, joins the thread. engine_call still works afterwards (on the caller's thread). Idempotent. */
void engine_stop(struct engine *e);

/* Any thread: a place in the bounded queue (RD_E_FULL, RD_E_CLOSED), before a request is prepared; given back if it
 * never comes. */
rd_status engine_take_place(struct engine *e);
void engine_give_place(struct engine *e);
/* One for a request that goes on from one that has run: there always is. */
void engine_keep_place(struct engine *e);
/* Places taken now, of how many. */
uint32_t engine_n_places(const struct engine *e, uint32_t *n_max);
/* Any thread. The caller holds a place, which passes to the request; the engine takes a reference of its own. */
rd_status engine_submit(struct engine *e, struct request *r);
/* Any thread: look at the inbox, cancel flags and rings again. */
void engine_kick(struct engine *e);
/* Any thread but the engine's: runs fn(e, arg) between two steps and waits for it. */
rd_status engine_call(struct engine *e, void (*fn)(struct engine *e, void *arg), void *arg);
/* Any thread: the path of keys[0..n) in a namespace is HELD, soon; copied. Does not wait. RD_E_NOMEM, RD_E_FULL,
 * RD_E_CLOSED: it is not. */
rd_status engine_hold_next(struct engine *e, const struct kv_space *space, const kv_key *keys, uint32_t n);
/* Any thread: rd_ended_requests, rd_running_requests, rd_cancel_request. */
uint32_t engine_ended_requests(const struct engine *e, uint64_t *from, struct rd_record *out, uint32_t n_max);
uint32_t engine_running_requests(const struct engine *e, struct rd_record *out, uint32_t n_max);
rd_status engine_cancel_request(struct engine *e, uint64_t id);
/* Any thread. */
void engine_get_histogram(const struct engine *e, enum rd_histogram_id id, struct rd_histogram *out);
/* Any thread. */
void engine_get_stats(struct engine *e, struct engine_stats *out);
/* Longest prompt that can ever run: tokens. Any thread. */
uint32_t engine_max_prompt(const struct engine *e);

/* One turn; false: nothing to do until something is submitted, cancelled or popped. */
bool engine_step(struct engine *e);
/* Inside engine_call, or between steps. */
struct kv_cache *engine_cache(struct engine *e);
struct radix_node *engine_root(struct engine *e);
uint64_t engine_clear_cache(struct engine *e);
/* Evicts as radix_evict; what it returns is free. */
uint32_t engine_evict(struct engine *e, uint32_t n_pages);
/* Why a match of n keys, of that kind, ended at n_match. */
enum miss_cause engine_miss_cause(struct engine *e, const struct radix_node *root, const kv_key *keys, uint32_t n,
                                  uint32_t n_match, enum radix_match_kind kind);
/* Tokens of what a match found computed that lie in pages that were packed on disk (store_link.h). */
uint32_t engine_n_lossy(struct engine *e, const struct radix_match *m);
/* The namespace of a request with these parameters; NULL: no memory for it. */
struct radix_node *engine_root_of(struct engine *e, const struct kv_space *space);
/* Every invariant: kv_check, the accounting equation, requests by state. */
rd_status engine_check(struct engine *e, struct rd_error *err);
