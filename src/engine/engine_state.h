/* engine/engine_state.h - inside of the engine: shared by engine.c (thread, inbox), admission.c (queue), plan.c (batch)
 * and step.c. */
#pragma once
#include <stdatomic.h>
#include "base/queue.h"
#include "base/random.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "engine/meter.h"
#include "engine/records.h"
#include "sample/vocab_scan.h"

_Static_assert(BEST_BLOCK == VOCAB_BLOCK, "what the model tells of a row is what the sampler wants");

#define ENGINE_FAIR_SLOTS  64u
#define PLAN_MAX_HIDDEN    256u /* hidden states of other than logit rows in one step at most */
#define ENGINE_STATS_WORDS (sizeof(struct engine_stats) / sizeof(uint64_t))

/* Round robin between API keys: when each key was served last, and when it had its turns. */
struct fair_slot {
    uint64_t key, last_tick, turns[REQUEST_TURNS];
};

struct cache_names;
struct images;
struct pointing;
struct public_prefixes;
struct speculation;
struct verifier;

/* One step's rows, made by plan.c; arrays are allocated once. */
struct step_plan {
    struct model_batch batch;
    float *hidden; /* [PLAN_MAX_HIDDEN, n_state], mapped, touched as far as used */
    uint64_t hidden_bytes;
    float *states; /* [max_logits, n_state], mapped, as choices */
    uint64_t states_bytes;
    float *best; /* [max_logits, n_best]; a row's first NaN: not known */
    uint32_t n_best;
    struct row_choice *choices;        /* [max_logits] from the device, and which rows of logits stayed there */
    struct request **run_request;      /* [max_live]: whose run it is */
    uint32_t *run_logits, *run_hidden; /* [max_live]: first logits row, first hidden row of the run */
    const float **embeds;              /* [max_rows] and [3, max_rows], of rows of images: batch's, where any is */
    uint32_t *axes;
    uint32_t *from;                         /* [max_logits] executor.begin's, of a step ahead */
    struct adapter_mix **mixes;             /* [max_live] of a step ahead: references, until step_ahead_done */
    struct request **heads;                 /* [max_logits]: stored whole, so only the head runs, on the state kept */
    const float **head_states;              /* [max_logits] */
    uint32_t n_heads;                       /* their logits are the last of max_logits rows */
    uint32_t n_decode;                      /* sequences that decode; their rows come first */
    uint32_t n_decode_rows, n_prefill_rows; /* with drafts */
};

struct engine {
    struct engine_options o;
    struct thread_owner owner;
    struct page_pool *pool;
    struct kv_cache cache;
    uint64_t *tenants;              /* [n_pages + n_windows]: kv_isolate; NULL: off */
    void *zeros;                    /* [page_bytes], mapped: for executors whose pages are not at hand */
    struct radix_node *root;        /* of the open space */
    struct cache_names *names;      /* names/cache_names.h */
    struct public_prefixes *public; /* NULL: none */
    uint8_t *space_name;            /* [namespace_bytes + KV_SPACE_NAME_MAX] */
    struct sampler_scratch *scratch;
    float *logits; /* [max_logits, n_vocab], mapped, touched as far as used */
    uint64_t logits_bytes;
    struct step_plan plan;
    struct step_plan next;           /* step_ahead.c: the step that is under way behind plan's; no arrays: never */
    bool has_next, is_begun;         /* next is under way; plan's step was begun, not waited for */
    uint64_t step_end_ns;            /* when the last step was seen to be done */
    struct speculation *speculation; /* NULL: off */
    struct verifier *verifier;       /* NULL: off */
    struct images *images;           /* images.h; NULL: the model sees nothing */
    struct pointing *pointing;       /* pointing.h; NULL: the model does not point */

    struct request *queue_head, *queue_tail;
    uint32_t n_queue;
    struct request **live; /* [max_live], in order of admission */
    uint32_t n_live, max_live;
    struct fair_slot fair[ENGINE_FAIR_SLOTS];
    uint64_t fair_tick, turn_tick, n_plans;
    uint32_t n_loading; /* requests in the queue that wait for the store */
    bool blocked;       /* the queue's head did not fit, and nothing has been released since */
    struct random chunk_random;
    uint64_t housekeeping_ns, prefill_rate, decode_rate; /* last time; smoothed, milli-tokens per second */
    uint64_t prompt_rate;      /* of the last large steps of prompts alone, likewise; 0: none yet */
    struct engine_stats stats; /* the engine thread's copy */
    struct meter meter;        /* the engine thread adds, any thread reads; likewise: */
    struct records records;

    /* shared */
    struct queue *inbox, *tasks; /* requests; struct engine_task */
    atomic_ullong n_handed;      /* requests put in the inbox so far, by any thread; stats.n_submitted: taken out */
    struct wake *bell;
    atomic_uint n_places; /* places taken in the bounded queue: any thread, compare-and-swap; only a count, relaxed */
    atomic_bool closed;   /* one writer (stop), readers: submit and the loop; relaxed, the bell orders the rest */
    struct thread thread;
    bool started;
    atomic_ullong n_turns,
        n_beats;               /* turns of the loop; layers of passes that look whether they are moot: the engine thread
                                     * writes, others see whether it gets on; relaxed */
    atomic_uint stats_version; /* sequence lock over stats_words: odd while the engine writes */
    _Atomic uint64_t stats_words[ENGINE_STATS_WORDS];
};

/* admission.c */
/* The namespace's root; NULL: no memory for it. */
struct radix_node *root_of(struct engine *e, const struct request *r);
void queue_put(struct engine *e, struct request *r, bool at_head);
void queue_remove(struct engine *e, struct request *r);
/* Pages that live requests and those that load will still take. */
uint64_t admission_promised(const struct engine *e);
/* Pages that r takes when it is admitted, behind the first n_there of its chain. */
uint32_t admission_pages_behind(const struct engine *e, const struct request *r, uint32_t n_there);
/* Makes room for pages on loan: all that r needs behind its first n_there pages and n_beside more, of which n are taken
 * at once. As at admission the whole request must fit before anything is evicted for it. False: no room. */
bool admission_make_loan_room(struct engine *e, const struct request *r, uint32_t n_there, uint32_t n_beside,
                              uint32_t n);
/* Admits until the queue is empty, its next request does not fit, or the live list is full. */
void admission_run(struct engine *e);
/* All live requests of this key have had their turn: those of others come first. */
void fair_had_turn(struct engine *e, uint64_t key, enum request_turn turn);

/* plan.c */
rd_status plan_create(struct engine *e);
void plan_destroy(struct engine *e);
/* Fills e->plan with rows whose pages are reserved; may preempt. */
void plan_step(struct engine *e);

/* step_ahead.c */
/* Plan's step is a decode that can be begun without waiting for it. */
bool step_ahead_can_begin(const struct engine *e);
/* While plan's step runs: the step behind it, of the same sequences, is given to the device, where nothing speaks against
 * it; their tokens come from plan's step there. */
void step_ahead_begin(struct engine *e);
/* The step under way becomes plan's. */
void step_ahead_take(struct engine *e);
/* Run i's choice cannot be, and its logits are gone: its row is computed again by a later step. */
bool step_ahead_redo(struct engine *e, uint32_t i);
/* p's step is done, or was not begun: the adapters that its rows were computed with may go. */
void step_ahead_done(struct step_plan *p);
/* Waits for the step under way, whose rows count for nothing. */
void step_ahead_drop(struct engine *e);

/* metering.c */
/* Lists those that are there now where that is due; nothing is left listed that is gone once nothing runs. */
void metering_list(struct engine *e, uint64_t now);

/* step.c */
/* Of one that has not ended. */
enum rd_phase request_phase(const struct request *r);
/* How many of r->ends must not be drawn now. */
uint32_t request_n_banned_ends(const struct request *r);
/* Ends a queued or live request: usage, sequence, results, wake. */
void request_end(struct engine *e, struct request *r, enum request_finish finish, rd_status st);
/* Live -> head of the queue; its computed keys stay in the tree, evictable. */
void request_preempt(struct engine *e, struct request *r);
void engine_publish_stats(struct engine *e);
