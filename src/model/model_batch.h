/* model/model_batch.h - the rows of one pass: the one home of their arrays, and how a row is added.
 *
 *     runs     [ 0: rows 0 .. 2, positions 5 .. 7 ][ 1: row 3, position 90 ]       one sequence each
 *     rows       0    1    2                          3
 *     logits               0                          1                            rows whose logits are wanted
 *
 * What a pass reads is the batch's own memory, made by model_batch_init; what it writes (states, hidden, choices, best)
 * is the caller's, who may have it pinned. A sequence's page table is borrowed until the pass is done.
 *
 * Images. Rows may come from a buffer instead of the table (embeds; they are not scaled, as those of the table may be), and
 * rows of one run may see each other both ways (model_batch_set_span; one span a run: a sequence with more images in one
 * pass is several runs, one behind the other, with the same table). Rows of a span come in one pass, all of them. In models
 * with M-RoPE rows rotate by three numbers (rope_axes). Rows that do not have any of it keep their bits.
 *
 * Thread  whoever has the batch.  Errors  init RD_E_NOMEM. More rows, runs or logits than there is room for: asserts.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "backend/backend.h"
#include "radish/status.h"

/* Where layers with a window have their keys and values, in place of a batch's pages: kv/page_pool.h, "windows". */
struct model_windows {
    struct kv_storage *kv;      /* of those layers alone; NULL: they are in the pages, as all are */
    const uint32_t *row_page;   /* [n_rows] */
    const struct seq_run *runs; /* [n_runs]; a table holds what its rows see, and what else there is may be read */
};

struct model_batch {
    uint32_t n_rows;
    int32_t *tokens;           /* [n_rows], each < n_vocab */
    uint32_t *positions;       /* [n_rows] in its sequence: which keys it sees, and where its own go */
    const uint32_t *rope_axes; /* [3][n_rows] what q and k are rotated by (time, height, width): vision_positions();
                                       NULL: positions. Borrowed; of a model with M-RoPE alone */
    kv_page *row_page;         /* [n_rows] page and row in it that receive the row's K, V */
    uint32_t *row_slot;
    /* [n_rows] where a row comes from, instead of the table: n_embed floats of an encoder's row, hidden for the embedding
     * itself and what is added behind the first layers (DeepStack); NULL: the row has a token. embeds NULL: all have.
     * Borrowed; tokens[row] of the others is any, 0 will do. */
    const float *const *embeds;
    uint32_t n_embed;
    uint32_t n_runs;
    struct seq_run *runs;
    const uint32_t *
        *run_windows; /* [n_runs] at the places of the block table, the windows of a sequence's pages that its
                                       rows see or are; NULL: there are none. Borrowed; an executor makes this of it: */
    struct model_windows windows;
    /* [n_runs] what is added to the weights for a run's rows (model/adapter.h), borrowed until the pass is done; NULL: nothing.
     * n_adapted: of how many runs something is. */
    const struct adapter_mix **adapters;
    uint32_t n_adapted;
    const struct low_rank_row
        *adapted;          /* the same of every row, in a step that is recorded (decode_step.c); else NULL */
    uint32_t most_ranks;   /* with adapted: as low_rank_rows_args' */
    uint32_t n_logits;     /* 0 .. max_logits */
    uint32_t *logit_rows;  /* [n_logits] rows whose logits are wanted */
    float *states;         /* out, [n_logits, hidden] host memory: what the head reads of each; or NULL */
    uint32_t n_hidden;     /* n_logits + n_hidden <= n_rows */
    uint32_t *hidden_rows; /* [n_hidden] rows of which only that is wanted, no logits */
    float *hidden;         /* out, [n_hidden, hidden] host memory: theirs */
    /* Where model_gives_choices: a token of every row of logits without its row crossing to the host. */
    struct row_choice *choices; /* out, [n_logits] host memory; or NULL */
    struct row_draw *draws;     /* [n_logits] how each is chosen; with choices */
    bool *unread;               /* [n_logits]: logits of row i need not come, its choice does; NULL: all come */
    /* Where model_gives_best: out, [n_logits, ceil(n_vocab / BEST_BLOCK)], see linear_args; or NULL. */
    float *best;
    /* Asked between layers; true: the results are not wanted any more, and the pass may end early, with RD_E_CANCELLED
     * and the rows' K, V partly written. NULL: they are wanted. A device does not ask. */
    bool (*is_moot)(void *arg);
    void *moot_arg;
};

struct adapter_mix;

/* The most of each in one pass. */
struct model_batch_room {
    uint32_t n_rows, n_runs, n_logits, n_hidden;
};

/* Empty, with room; everything that is out is NULL, and is set by the caller. On failure there is nothing to deinit. */
rd_status model_batch_init(struct model_batch *b, struct model_batch_room room);
/* Also of zeros. */
void model_batch_deinit(struct model_batch *b);
/* No rows, runs, wishes. */
void model_batch_clear(struct model_batch *b);
/* A sequence: the rows added next are its positions from pos0 on. table: its pages; adapters: NULL: none. */
void model_batch_begin_run(struct model_batch *b, uint32_t pos0, const kv_page *table,
                           const struct adapter_mix *adapters);
/* The last run's windows. */
void model_batch_set_windows(struct model_batch *b, const uint32_t *windows);
/* Positions [from, to) of the last run see each other both ways (in layers with a window as far back as it reaches); others
 * what is before them. The run has all of them. */
void model_batch_set_span(struct model_batch *b, uint32_t from, uint32_t to);
/* The next position of the last run. Returns the row. */
uint32_t model_batch_add_row(struct model_batch *b, int32_t token, uint32_t page_tokens);
/* The next row of logits is row's; d NULL: all of it is wanted, else no more than the token drawn like this, where the
 * batch has choices. */
void model_batch_want_logits(struct model_batch *b, uint32_t row, const struct row_draw *d);
void model_batch_want_hidden(struct model_batch *b, uint32_t row);
/* The index of the run that a row is of. */
uint32_t model_batch_run_of(const struct model_batch *b, uint32_t row);
