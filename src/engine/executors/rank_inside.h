/* engine/executors/rank_inside.h - what the files of rank_executor.h share. */
#pragma once
#include "base/numa.h"
#include "engine/executors/model_executor.h"
#include "engine/executors/rank_crew.h"
#include "engine/executors/rank_executor.h"
#include "model/share.h"

#define N_MOVES 64u
#define N_AHEAD 2u /* steps that are begun and not ended */

struct rank {
    struct rank_executor *all;
    uint32_t index;
    struct executor *x;
    struct executor_traits traits;
    struct model_share share;
    rd_status st;  /* of the last job */
    bool has_more; /* to warm up */
    struct rd_error err;
    void *results; /* mapped and pinned: choices, states, page */
    uint64_t results_bytes;
    float *states;                       /* [max_logits, hidden] to compare; of rank 0: where nobody else wants them */
    struct row_choice *choices[N_AHEAD]; /* [max_logits] likewise, of steps by turns; rank 0's are the engine's */
    uint8_t *page;                       /* its part of one */
};

/* A job is the executor's own memory: a rank that does not come back in time may still be reading it. */
struct pass_job {
    struct model_batch batch;
    uint32_t n;
    const float *const *states;
    float *logits;
    const uint32_t *from; /* of begin */
    uint32_t turn;        /* whose choices: of begin and end */
};

struct page_job {
    kv_page to, from;
    uint32_t n_rows;
    uint8_t *out; /* a whole page's bytes; or: */
    const uint8_t *in;
};

/* A rank's part of a job, in its thread. */
typedef rd_status (*job_fn)(struct rank *r, const void *arg);

struct rank_executor {
    struct executor face;
    uint32_t n;
    struct rank ranks[RANKS_MAX];
    struct rank_group *group;
    struct rank_crew *crew;
    const struct executor_options *o; /* while it is opened */
    struct numa_nodes nodes;          /* more than one: a CPU's ranks keep to theirs */
    bool keeps_to;                    /* the thread of passes does, as rank 0's */
    rd_status (*fault)(void *arg, uint32_t rank);
    void *fault_arg;
    uint64_t patience_ns;
    struct model_config config;
    struct kv_storage pages, windows; /* how the bytes of a whole page lie; no memory */
    job_fn job;                       /* the last one */
    const void *arg;                  /* one of these: */
    struct pass_job pass;
    struct page_job page;
    /* Steps that are not waited for: [n_ended, n_ahead), what rank 0 was given of each. */
    uint32_t n_ahead, n_ended;
    struct {
        const struct row_choice *choices;
        uint32_t n;
    } ahead[N_AHEAD];
    bool is_dead;
    struct moves {
        uint64_t tickets[N_MOVES][RANKS_MAX]; /* of the last N_MOVES, by rank */
        uint64_t n_begun, n_done;             /* tickets of its own; of the first n_done it is known */
    } moves[2];                               /* to the devices, to the host */
};

/* ---- rank_executor.c ---- */

/* fn by every rank, rank 0 in this thread; what each gave is in its st. RANKS_MAX: all came back; else who did not. */
uint32_t ranks_do(struct rank_executor *all, job_fn fn, const void *arg);
/* The same, and what it comes to: what one of them could not do, a device's error before others. A rank that is lost, or a device
 * that could not go on, is logged, and ends the executor. */
rd_status ranks_run(struct rank_executor *all, job_fn fn, const void *arg);
/* This thread keeps to the nodes of a rank of a CPU, and whom it starts; where there are several (else it does nothing). before: as
 * numa_keep_to's. */
void rank_keep_to(const struct rank *r, struct numa_place *before);
/* st; nobody waits for a rank that cannot go on. */
rd_status rank_leave(struct rank *r, rd_status st);
/* The face's functions that ranks have: those of passes, steps ahead and images. */
void ranks_show_passes(struct rank_executor *all);

/* ---- rank_pages.c ---- */

/* Those of pages. */
void ranks_show_pages(struct rank_executor *all);
