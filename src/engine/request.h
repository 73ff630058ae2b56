/* engine/request.h - one request as the engine sees it: token ids in, token ids out through a ring.
 *
 *     creator (prep worker)            engine thread                       consumer (io thread)
 *     request_create, fill params  ->  queue, sequence, sampler, ring  ->  request_pop, ended, results
 *
 * Two references: the engine's (until it has ended) and the consumer's. The engine pauses a request whose ring is full
 * (a slow reader costs the others nothing).
 *
 * Thread  fields are grouped by owner below; everything that crosses is atomic and says why its order is enough.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/thread.h"
#include "engine/constraint.h"
#include "engine/draft_index.h"
#include "engine/gaps.h"
#include "engine/prefill_result.h"
#include "engine/request_images.h"
#include "engine/request_pointers.h"
#include "engine/think_budget.h"
#include "engine/tier.h"
#include "kv/kv_seq.h"
#include "kv/kv_space.h"
#include "model/adapter.h"
#include "radish/inspect.h"
#include "radish/status.h"
#include "sample/sampler.h"

enum request_state { REQUEST_QUEUED, REQUEST_LIVE, REQUEST_ENDED };
/* Why not all of a prompt was stored. EVICTED to CLEARED: what dropped it. SALT is told by rd_cache_explain alone. */
enum miss_cause {
    MISS_NONE,
    MISS_NEW,
    MISS_DIFFERENT,
    MISS_EVICTED,
    MISS_EXPIRED,
    MISS_CLEARED,
    MISS_SALT,
    MISS_KV_TYPE,
    MISS_NEW_END,
    MISS_WINDOW, /* it was, but not what its next token sees in layers with a window */
    MISS_N_CAUSES
};
enum request_finish { REQUEST_STOP, REQUEST_LENGTH, REQUEST_CANCELLED, REQUEST_ERROR };
/* Why the consumer wants no more: it went away, or it has found a stop string. */
enum request_cancel { CANCEL_NONE, CANCEL_GONE, CANCEL_SATISFIED };

struct token_out {
    int32_t token;
    float logprob;
    uint32_t n_top;
};

/* What may come next: see speculate.c. Engine thread. */
#define DRAFT_MAX     31u
#define DRAFT_CLASSES 5u /* by how many tokens agreed; the last: from the draft model */
struct request_draft {
    struct draft_index *own; /* of this request's keys, made when it first decodes */
    uint32_t n_indexed;
    uint32_t n, class_now; /* tokens drafted for the running step */
    bool is_certain;       /* they are what a grammar forces */
    kv_key tokens[DRAFT_MAX];
    float right[DRAFT_CLASSES];  /* share of drafted tokens that were right */
    bool failed;                 /* no memory for the index */
    struct kv_seq *shadow;       /* under the draft model: see draft_model.h */
    uint32_t n_synced, n_wanted; /* its keys that are the request's; tokens it shall write now */
    uint64_t shadow_ns;          /* last used */
};

struct request_usage {
    uint32_t n_prompt, n_cached, n_joined, n_ram, n_disk, n_shared, n_lossy, n_generated, n_drafted, n_draft_accepted,
        n_forced;
    uint64_t submitted_ns, admitted_ns, first_token_ns, ended_ns; /* clock; 0 = never */
    enum miss_cause miss;
    enum radix_match_kind match;                               /* of its first admission, as miss */
    uint32_t n_match, n_preempted, n_images, n_images_encoded; /* encoded: not taken from the tree or from those kept */
    uint64_t encoder_ns, encoded_ns; /* of those encoded; clock: when the last of them was, 0: none */
};

/* What of a request's keys is worth keeping longer, from the first key on: radix_retain. */
struct request_keep {
    uint32_t n_keys;
    enum radix_class class;
};
#define REQUEST_N_KEEPS 3u

struct request_params {
    struct sampler_params sampling; /* what it points to is copied by request_create */
    uint32_t max_tokens;            /* 0: prefill only */
    uint32_t max_keys;              /* longest sequence, prompt included: min(n_ctx, n_prompt + max_tokens) is used */
    bool cached, ignore_eos, prompt_logprobs, hold, speculate;
    const int32_t *end_tokens; /* borrowed; lives as long as the engine */
    uint32_t n_end_tokens;
    const int32_t *stop_tokens; /* copied; they end the text too, whatever ignore_eos says */
    uint32_t n_stop_tokens;
    uint32_t min_tokens;                 /* until then neither end nor stop tokens are drawn */
    struct think_budget think;           /* copied; n_forced 0: none */
    struct constraint_params constraint; /* the grammar is retained; what it points to lives as long as the engine */
    bool idle;                           /* computed only when nothing else is to do: it comes last, and makes way */
    struct prefill_wish prefill;         /* copied */
    struct kv_space space;               /* it shares what is stored with requests of the same namespace only */
    const struct vision_place *places;   /* copied: images, whose keys the prompt has (vision_image_keys) */
    uint32_t n_places;
    const struct vision_traits *vision; /* the executor's; with places */
    struct pointer_tokens pointer;      /* likewise, where the model points */
    struct adapter_mix *adapters; /* that its rows are computed with: space holds its identity; a reference; or NULL */
    struct request_keep keep[REQUEST_N_KEEPS]; /* n_keys beyond what was computed: all of that */
    bool keep_match; /* others will come with the part that it found stored: that is SHORT, too */
    uint64_t fair_key;
    bool continues;    /* it goes on from such a one: no client asked for it by itself */
    uint64_t asked_ns; /* when the client did, by the engine's clock; 0: when it was submitted */
    bool goes_on;      /* where it reaches max_keys another request goes on: a grammar need not be whole by then */
    const int32_t
        *primed;       /* borrowed by request_create: what was generated before the prompt's end, for the grammar and */
    uint32_t n_primed; /* the budget of thinking */
    const char *label; /* copied, cut; or NULL */
    const char *name;  /* copied; or NULL: what it computes is a named cache's (names/cache_names.h) */
    float *logits_out; /* [n_vocab] of the prompt's last token, or NULL; the consumer's until it has ended */
    void (*wake)(void *arg); /* after tokens or the end were published; any cost is the engine's: must be quick */
    void *wake_arg;
};

/* What the requests that run have by turns of their keys: rows of prompts, the encoder of images. */
enum request_turn { REQUEST_TURN_ROWS, REQUEST_TURN_IMAGE, REQUEST_TURNS };

struct request {
    /* written by the creator, read-only after engine_submit */
    uint64_t id;
    char label[RD_RECORD_LABEL];
    struct request_params p;
    uint32_t n_prompt, ring_cap, n_top_cap;

    /* engine thread */
    enum request_state state;
    struct kv_seq seq;
    struct sampler *sampler;
    struct constraint constraint;
    uint32_t n_generated;
    int32_t *ends;        /* [n_end_tokens + n_stop_tokens]: both */
    uint32_t prompt_high; /* prompt rows computed or matched so far, for counting each once */
    uint32_t n_prompt_computed;
    bool started_over; /* computed anew from an empty tree, because its path took too many pages */
    bool admitted_before, in_batch, published; /* published: public_prefix.h */
    bool redo;                                 /* its last row is computed once more: step_ahead.c */
    bool unsound;                              /* the running step gave it logits that are no numbers */
    struct request *prev, *next;               /* queue */
    uint64_t last_token_ns, prompt_known_ns;   /* 0: not yet */
    uint64_t turns[REQUEST_TURNS];             /* when its key had them last */
    uint64_t asked_plan;                       /* the last one that asked it for rows of its prompt */
    struct gaps gaps;
    enum rd_phase ended_in;                      /* where it was */
    uint64_t queued_ns, last_step, n_late_steps; /* late: begun after it was cancelled */
    struct request_draft draft;
    struct request_store store;
    struct request_ram ram;
    struct request_images images;
    struct request_pointers pointers; /* points: the consumer's, too, once it has ended */
    struct request_events events;
    char *name;                /* own copy; NULL: none */
    struct cache_named *named; /* NULL: not admitted yet, or none */
    uint32_t n_at_end;         /* keys that were computed when it ended */

    /* how far the prompt is: the engine writes, anyone reads; relaxed, each tells its own truth */
    atomic_uint prompt_seen, prompt_computed; /* rows computed or matched; of those, computed */

    /* results: the engine writes, then stores `ended` (release); the consumer reads after loading it (acquire) */
    enum request_finish finish;
    rd_status status;
    int32_t stop_token;
    struct request_usage usage;
    struct radix_node
        *held; /* p.hold: a kept path, covering the whole prompt; given back with kv_unhold on the engine thread */
    struct token_logprob *prompt_logprobs; /* [n_prompt], entry 0 unused */
    struct token_logprob *prompt_top;      /* [n_prompt, n_top_cap] */
    uint32_t *prompt_ranks;                /* [n_prompt]: 1: no token was more likely */
    struct prefill_result prefill;
    atomic_bool ended;

    /* ring: the engine writes entries, then n_pushed; the consumer reads n_pushed, then entries, then stores n_popped.
     * Sequentially consistent: either the engine sees the room, or the consumer sees that the ring was full and kicks.
     */
    struct token_out *ring;         /* [ring_cap], a power of two */
    struct token_logprob *ring_top; /* [ring_cap, n_top_cap] */
    atomic_uint n_pushed, n_popped;

    atomic_int cancel; /* any thread writes (only upwards from NONE), the engine reads: a flag, relaxed is enough */
    atomic_int refs;
};

/* It waits in the queue for a tier. Engine thread. */
static inline bool request_is_away(const struct request *r)
{
    return r->store.job || r->store.lookup || r->ram.load;
}

/* tokens: copied; keys of rows, which are negative here, where p->places say. The request has one reference, the caller's.
 * RD_E_NOMEM, RD_E_INVALID (sampling parameters), those of request_images_init. */
rd_status request_create(const struct request_params *p, struct kv_cache *cache, uint32_t n_vocab,
                         const int32_t *tokens, uint32_t n, struct request **out, struct rd_error *err);
void request_ref(struct request *r);
/* Frees with the last one; a request that was submitted must have ended. NULL is fine. */
void request_unref(struct request *r);
void request_cancel(struct request *r, enum request_cancel why);

/* Engine: false when the ring is full. */
bool request_push(struct request *r, const struct sampler_result *t);
bool request_ring_full(const struct request *r);
uint32_t request_ring_room(const struct request *r);
/* Consumer: false when there is nothing now. top: array of 20. *was_full: the engine may be waiting for room (kick it).
 */
bool request_pop(struct request *r, struct token_out *t, struct token_logprob *top, bool *was_full);
