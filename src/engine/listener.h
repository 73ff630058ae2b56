/* engine/listener.h - what happens to requests and pages, told to those who care, one after the other.
 *
 * The step (step.c), admission (admission.c) and the plan (plan.c) name no tier, no draft, no verifier: they tell of an
 * event with ENGINE_TELL, or ask one of the questions below, and the listeners of listener.c hear it in the order of that
 * table. A new one is a file that defines a struct engine_listener, and its row there.
 *
 * A verb that a listener leaves out is nothing to it. All of them run on the engine thread between two forward passes;
 * after begin nothing allocates in the step loop, and nothing here fails a request.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kv/page_pool.h"
#include "radish/status.h"

struct engine;
struct engine_stats;
struct hash128;
struct radix_node;
struct rd_error;
struct request;
struct vision_rows;

struct engine_listener {
    /* ---- the engine's life ---- */
    rd_status (*begin)(struct engine *e); /* pages, tree and doorbell are there; RD_E_NOMEM: no engine */
    void (*let_go)(struct engine *e);     /* it ends, or never began: waits for what is on its way, gives all back */
    void (*hand_over)(struct engine *e);  /* the thread that calls next owns everything */
    rd_status (*check)(const struct engine *e, struct rd_error *err); /* invariants */
    void (*gather)(const struct engine *e, struct engine_stats *s);   /* adds what it counts */

    /* ---- a turn ---- */
    void (*collect)(struct engine *e, uint64_t now); /* first of all: what came, what is gone */
    void (*propose)(struct engine *e, uint32_t n_decoding, uint32_t n_free_rows); /* drafts for the plan: speculate.c */
    void (*before_step)(struct engine *e);                           /* the plan is made, nothing runs yet */
    void (*stepped)(struct engine *e, uint32_t n_rows, uint64_t ns); /* a step of decoding rows alone took so long */
    bool (*idle)(struct engine *e);                                  /* no request is there; true: it did something */
    void (*expire)(struct engine *e, uint64_t before_ns, uint64_t now); /* once a second, where there is a TTL */

    /* ---- a request, in the order of its life ---- */
    void (*matching)(struct engine *e, const struct request *r, struct radix_node *root, uint64_t now); /* soon */
    /* True: it stays queued, for us. root: its namespace in the tree, or NULL. */
    bool (*wait)(struct engine *e, struct request *r, struct radix_node *root, uint64_t now);
    void (*admitted)(struct engine *e, struct request *r);     /* live, also when it was preempted before */
    void (*committed)(struct engine *e, uint64_t now);         /* the rows of the plan's runs */
    void (*prompt_known)(struct engine *e, struct request *r); /* computed or matched whole; usage.n_cached is set */
    void (*at_end)(struct engine *e, struct request *r, const void *state);  /* the state of its last computed row */
    void (*sampled)(struct engine *e, struct request *r, uint64_t now);      /* a token, which its reader can have */
    void (*verified)(struct engine *e, struct request *r, uint32_t n_right); /* this many tokens of its draft */
    void (*preempting)(struct engine *e, struct request *r);                 /* its sequence still is there */
    /* Likewise, where it was live; is_kept: its keys stay. */
    void (*ending)(struct engine *e, struct request *r, bool is_kept);
    void (*left)(struct engine *e, struct request *r); /* behind both, and from the queue: lets go of it */
    /* An image of that digest and salt has its rows; rows: who keeps them takes a reference. */
    void (*image_encoded)(struct engine *e, const struct hash128 *salt, const uint8_t *digest, uint32_t n_rows,
                          struct vision_rows *rows);
    void (*kept)(struct engine *e, struct request *r); /* it has ended, and its keys are in the tree */
    /* finish, status and usage are what they will be; its reader does not know yet. */
    void (*ended)(struct engine *e, struct request *r);

    /* ---- pages and what is stored ---- */
    void (*page_begun)(struct engine *e, kv_page page);              /* rows are computed from its first one on */
    void (*page_copied)(struct engine *e, kv_page to, kv_page from); /* its first rows */
    void (*evicted)(struct engine *e);                               /* pages that are needed now: they must be free */
    void (*cleared)(struct engine *e);
    void (*condemned)(struct engine *e, struct request *r); /* what is stored of r's namespace is wrong; NULL: all */

    /* ---- questions that tiers answer ---- */
    uint64_t (*promised)(const struct engine *e); /* pages that requests in the queue will take beside their loans */
    uint32_t (*n_out)(const struct engine *e);    /* pages on loan, which come back */
    bool (*must_turn)(const struct engine *e);    /* who waits for it is not woken: the loop turns */
    uint32_t (*n_lossy)(const struct engine *e, const kv_page *pages, uint32_t n); /* of n tokens in these pages */
    bool (*may_differ)(const struct engine *e, uint32_t n); /* what is computed again from n on, rightly */
};

extern const struct engine_listener listens_ram, listens_store, listens_ahead, listens_speculation, listens_verifier,
    listens_public_prefix, listens_retention, listens_names, listens_events, listens_images, listens_pointers,
    listens_meter;

/* In order, with a NULL behind the last. */
extern const struct engine_listener *const engine_listeners[];

/* ENGINE_TELL(left, (e, r)): to all who have the verb. */
#define ENGINE_TELL(verb, args)                                                                                        \
    do {                                                                                                               \
        for (uint32_t i_ = 0; engine_listeners[i_]; i_++)                                                              \
            if (engine_listeners[i_]->verb) engine_listeners[i_]->verb args;                                           \
    } while (0)

/* The first failure; those behind it hear nothing. */
rd_status engine_begin_all(struct engine *e);
rd_status engine_check_all(const struct engine *e, struct rd_error *err);
/* The first that says so is the last that is asked. */
bool engine_waits(struct engine *e, struct request *r, struct radix_node *root, uint64_t now);
bool engine_idles(struct engine *e);
/* Sums, and whether any says so. */
uint64_t engine_promised(const struct engine *e);
uint32_t engine_n_out(const struct engine *e);
bool engine_must_turn(const struct engine *e);
uint32_t engine_n_lossy_of(const struct engine *e, const kv_page *pages, uint32_t n);
bool engine_may_differ(const struct engine *e, uint32_t n);
