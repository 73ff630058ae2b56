/* tests/support/sim_executor.h - a model that is a hash: a row of a page holds the digest of all tokens up to its
 * position.
 *
 * Before a sequence's rows are computed every earlier row in its block table must hold the digest of that sequence's
 * own prefix, so a page that is read before it was written, reused too early, shared wrongly or copied short is seen at
 * once. Logits are a function of the digest: what a greedy request must answer is known without the engine.
 */
#pragma once
#include "backend/pin_map.h"
#include "base/random.h"
#include "engine/engine_state.h"

#define SIM_VOCAB     24u
#define SIM_END_TOKEN 0
#define SIM_MOVES     8192u /* more than there are pages */
#define SIM_PINS      64u
#define SIM_RUN       64u  /* pages in one copy at most */
#define SIM_MAX_ROWS  128u /* of logits in a step, where it chooses */
#define SIM_STATE     2u   /* floats: a digest */

struct sim_images;
struct sim_executor {
    struct sim_images *images; /* sim_images.h; first of all; NULL: it sees nothing */
    uint32_t page_tokens, n_pages;
    uint64_t *rows;             /* [n_pages * page_tokens] */
    uint32_t window, n_windows; /* sim_make_windows; 0: none */
    uint64_t *window_rows;      /* [n_windows * page_tokens]: the same, of the layers with a window */
    const uint32_t *window_of;
    struct engine *engine;     /* whose plan tells the tokens behind a block table */
    struct draft_model *draft; /* instead: this is its executor */
    uint32_t public_tokens;    /* so many rows at first are of no salt */
    uint32_t wrong_one_in;     /* 0: never; else so many rows have the logits of another text */
    bool chooses;              /* set before sim_view: it chooses tokens itself, and steps can be begun */
    struct sim_late {          /* steps begun, the one waited for first at first_late; results come at the end */
        bool fail;
        struct row_choice choices[SIM_MAX_ROWS];
        float states[SIM_MAX_ROWS * SIM_STATE];
    } late[2];
    uint32_t first_late, n_late;
    int32_t chosen[SIM_MAX_ROWS]; /* by the last step */
    float last_logits[SIM_MAX_ROWS * SIM_VOCAB];
    uint64_t n_begun_ahead;
    uint64_t adapter_seen; /* of the last batch that ended with none behind it, if it had one */
    struct random random;
    uint32_t fail_one_in;           /* 0: no device errors */
    bool is_dead;                   /* what fails fails for good */
    struct request *leaves;         /* hangs up during the next step; NULL: nobody */
    uint64_t n_moot;                /* steps that ended early */
    bool fail_next, fail_next_head; /* the next step, the next head alone, fails */
    const struct request *broken;   /* its logits are NaN */
    struct clock *clock;            /* a fake one that a step moves on by step_ns + rows * row_ns; may be NULL */
    uint64_t step_ns, row_ns;
    struct sim_move {
        bool out, failed;
        kv_page page;
        uint32_t window; /* KV_NO_PAGE: it goes without one */
        void *host;
    } * moves;                         /* ring of [SIM_MOVES]: the last begun */
    uint64_t n_moves, n_moved[2];      /* begun; of each direction, done up to this one */
    uint32_t n_slow, move_fail_one_in; /* looks until a move is done, about; 0: it is at once. Failures; 0: never */
    uint32_t begin_fail_one_in;        /* moves that do not begin; 0: never */
    bool has_driver;                   /* set before sim_view: it wants memory pinned, and looks at copies */
    struct pin_map pins;               /* as a backend joins neighbours */
    struct {
        uintptr_t begin, end;
    } pinned[SIM_PINS]; /* as its driver knows them */
    uint32_t n_pinned;
    /* copies: of two pages or more; that ended where the next page is a neighbour as well; that the driver refuses */
    uint64_t n_joined, n_at_border, n_refused;
    uint64_t n_heads; /* rows of logits from kept states */
    uint64_t n_wrong_rows, n_rows_checked, n_forward, n_failed;
};

bool sim_init(struct sim_executor *x, uint32_t n_pages, uint32_t page_tokens, uint64_t seed);
/* Before sim_view: some of its layers see the last `window` tokens alone. */
bool sim_make_windows(struct sim_executor *x, uint32_t n_windows, uint32_t window);
void sim_deinit(struct sim_executor *x);
struct executor sim_view(struct sim_executor *x, uint32_t max_rows, uint32_t max_logits);
/* The digest of no tokens: another one in every namespace, so that a page of another namespace is seen to be wrong. */
#define SIM_ADAPTER 1000u
static inline uint64_t sim_adapter(const struct request_params *p)
{
    return p->space.adapter.low * SIM_ADAPTER;
}
static inline uint64_t sim_begin(const struct request_params *p)
{
    return p->space.salt.low + sim_adapter(p);
}
/* A namespace by a number: adapter * SIM_ADAPTER + salt, which is what its digests begin with. */
static inline struct kv_space sim_space(uint64_t n)
{
    return (struct kv_space){{n % SIM_ADAPTER, 0}, {n / SIM_ADAPTER, 0}};
}
uint64_t sim_digest(uint64_t before, uint32_t token);
void sim_logits(uint64_t digest, float *logits);
/* The greedy continuation of a digest; stops before the end token. Returns the number of tokens. */
uint32_t sim_greedy(uint64_t digest, uint32_t max_tokens, int32_t *out);
