/* engine/executor.h - what the engine needs from a device: one forward pass, and copying rows between pages.
 *
 * The real one (model_executor.h) is a model on a backend; the simulator's (tests/sim) is a hash of tokens that checks
 * every page it reads. The scheduler, the tree and the tests are the same above both. Thread  engine thread only.
 * Errors  RD_E_DEVICE: what the step wrote must not be trusted.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kv/page_pool.h"
#include "model/model.h"
#include "radish/status.h"

/* Where two pages differ first. */
struct page_difference { uint32_t layer, is_value, kv_head, row, byte; uint8_t a, b; };

struct executor {
    void *self;
    uint32_t n_vocab;
    uint32_t max_rows;                   /* tokens in one forward pass at most */
    uint32_t max_logits;                 /* rows with logits in one pass at most */
    uint32_t n_state; /* floats of a row's last hidden state (batch->states); 0: none are given out */
    /* logits: [n_logits, n_vocab]. RD_E_CANCELLED: batch->is_moot said so, what was written is of no use */
    rd_status (*forward)(void *self, const struct model_batch *batch, float *logits);
    /* Logits [n, n_vocab] of n kept states, n in 1 .. max_logits: the bits that forward gave. n_state > 0 only. */
    rd_status (*head)(void *self, uint32_t n, const float *const *states, float *logits);
    /* Whether batch->choices and unread (model.h) do anything; then: one row of the last pass that was unread. */
    bool gives_choices;
    bool gives_best;                     /* batch->best is written */
    rd_status (*read_logits)(void *self, uint32_t row, float *logits);
    /* A decode step (a row for each sequence, all of them unread) that is not waited for: at most two are under way.
     * from[i]: the row of the step begun before whose choice is row i's token; MODEL_OWN_TOKEN, or from NULL:
     * batch->tokens[i]. The batch's arrays stay until end, which waits for the step begun first: then its choices and
     * states are there. What is given to the device in between (copies of rows, pages) comes after both. NULL: no such. */
    rd_status (*begin)(void *self, const struct model_batch *batch, const uint32_t *from);
    rd_status (*end)(void *self);
    /* After RD_E_DEVICE: whether it is for good; NULL: it is not. */
    bool (*is_dead)(void *self);
    /* Memory that results go to, until it is unpinned (on = false); NULL: it makes no difference. */
    void (*pin)(void *self, void *p, uint64_t n_bytes, bool on);
    void (*copy_rows)(void *self, kv_page to, kv_page from, uint32_t n_rows);
    /* A page's bytes, page_bytes of them, in memory that any thread can reach; NULL: they are copied, below. */
    void *(*page)(void *self, kv_page id);
    rd_status (*page_out)(void *self, kv_page id, void *to);
    rd_status (*page_in)(void *self, kv_page id, const void *from);
    uint64_t page_bytes;
    /* n pages to host memory (out) or from it, beside the steps, in the order of the calls of each direction. What goes
     * out is of steps that have ended; what comes in is written after all that the device was given. *ticket: for
     * move_end. NULL: there is no such way. */
    rd_status (*move_begin)(void *self, bool out, uint32_t n, const kv_page *ids, void *const *host, uint64_t *ticket);
    /* RD_OK: done, and all before in that direction. RD_E_AGAIN: not yet; never with wait. Anything else, of move_begin
     * too: what they wrote must not be trusted, and nothing of them is under way. RD_E_DEVICE: see is_dead. */
    rd_status (*move_end)(void *self, bool out, uint64_t ticket, bool wait);
    /* Whether the first n_rows rows of two pages differ, and where; NULL: nobody can tell. */
    bool (*differs)(void *self, kv_page a, kv_page b, uint32_t n_rows, struct page_difference *where);
};
