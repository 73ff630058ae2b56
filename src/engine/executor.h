/* engine/executor.h - what the engine needs from a device: one forward pass, and copying rows between pages.
 *
 * The real one (executors/model_executor.h) is a model on a backend; the simulator's (tests/support/sim_executor.h) is a
 * hash of tokens that checks every page it reads. The scheduler, the tree and the tests are the same above both. Another
 * (a process, several GPUs) is a file in executors/ and a line in executor_open().
 * Thread  open, close: the loading thread; then the engine thread.
 * Errors  RD_E_DEVICE: what the step wrote must not be trusted.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "backend/join_way.h"
#include "kv/page_pool.h"
#include "model/adapter.h"
#include "model/model.h"
#include "radish/status.h"
#include "vision/encoder.h"
#include "vision/pointer.h"

/* Where two pages differ first. */
struct page_difference {
    uint32_t layer, is_value, kv_head, row, byte;
    uint8_t a, b;
};

struct executor {
    void *self;
    uint32_t n_vocab;
    uint32_t max_rows;   /* tokens in one forward pass at most */
    uint32_t max_logits; /* rows with logits in one pass at most */
    uint32_t n_state;    /* floats of a row's last hidden state (batch->states); 0: none are given out */
    /* logits: [n_logits, n_vocab]. RD_E_CANCELLED: batch->is_moot said so, what was written is of no use */
    rd_status (*forward)(void *self, const struct model_batch *batch, float *logits);
    /* Logits [n, n_vocab] of n kept states, n in 1 .. max_logits: the bits that forward gave. n_state > 0 only. */
    rd_status (*head)(void *self, uint32_t n, const float *const *states, float *logits);
    /* Whether batch->choices and unread (model.h) do anything; then: one row of the last pass that was unread. */
    bool gives_choices;
    bool gives_best; /* batch->best is written */
    rd_status (*read_logits)(void *self, uint32_t row, float *logits);
    /* A decode step (a row for each sequence, all of them unread) that is not waited for: at most two are under way.
     * from[i]: the row of the step begun before whose choice is row i's token; MODEL_OWN_TOKEN, or from NULL:
     * batch->tokens[i]. The batch's arrays stay until end, which waits for the step begun first: then its choices and
     * states are there. What is given to the device in between (copies of rows, pages) comes after both. NULL: no such. */
    rd_status (*begin)(void *self, const struct model_batch *batch, const uint32_t *from);
    rd_status (*end)(void *self);
    bool begins_adapted; /* begin knows rows with adapters, too */
    /* A piece of what makes later steps start sooner, while nothing is to be computed. RD_E_AGAIN: there is more; RD_OK: nothing
     * is left to do; anything else ends it, too. NULL: no such. */
    rd_status (*warm_up)(void *self);
    /* After RD_E_DEVICE: whether it is for good; NULL: it is not. */
    bool (*is_dead)(void *self);
    /* Memory that results go to, until it is unpinned (on = false); NULL: it makes no difference. */
    void (*pin)(void *self, void *p, uint64_t n_bytes, bool on);
    void (*copy_rows)(void *self, kv_page to, kv_page from, uint32_t n_rows);
    /* Layers that see the last `window` tokens alone have their keys and values in windows of their own (kv/page_pool.h),
     * n_windows of them; 0: all layers are in the pages. use_windows, when an engine begins: of [n_pages] says which window
     * a page has (KV_NO_PAGE: none) whenever a page is named here; a page whose rows are written or copied has one. */
    uint32_t window, n_windows;
    void (*use_windows)(void *self, const uint32_t *of);
    /* A page's bytes, page_bytes of them, in memory that any thread can reach; NULL: they are copied, below. With windows
     * they are the page's, its window's (zeros, where it has none), and executor_has_window. */
    void *(*page)(void *self, kv_page id);
    rd_status (*page_out)(void *self, kv_page id, void *to);
    rd_status (*page_in)(void *self, kv_page id, const void *from);
    uint64_t page_bytes;
    bool crosses_bus; /* page_out does, while the device waits */
    /* n pages to host memory (out) or from it, page_bytes each in an order of the executor's own (but for executor_has_window),
     * beside the steps, in the order of the calls of each direction; a page has the same window, or none, until move_end. What goes
     * out is of steps that have ended; what comes in is written after all that the device was given. *ticket: for
     * move_end. NULL: there is no such way. */
    rd_status (*move_begin)(void *self, bool out, uint32_t n, const kv_page *ids, void *const *host, uint64_t *ticket);
    /* RD_OK: done, and all before in that direction. RD_E_AGAIN: not yet; never with wait. Anything else, of move_begin
     * too: what they wrote must not be trusted, and nothing of them is under way. RD_E_DEVICE: see is_dead. */
    rd_status (*move_end)(void *self, bool out, uint64_t ticket, bool wait);
    /* Whether the first n_rows rows of two pages differ, and where; NULL: it cannot tell. */
    bool (*differs)(void *self, kv_page a, kv_page b, uint32_t n_rows, struct page_difference *where);
    /* model/adapter.h: any thread, while steps run. NULL: there are none here. */
    rd_status (*adapter_load)(void *self, const char *path, struct adapter **out, struct rd_error *err);
    /* Images: vision/encoder.h, between forward passes. vision NULL: the model sees nothing, and these are NULL. A step is about
     * n_flops of work (0: VISION_STEP_FLOPS), *n_done what it did, RD_E_AGAIN while there is more; rows: [n_rows,
     * vision->n_floats], what a batch's embeds are made of. end: at any time. Several runs may be open. */
    const struct vision_traits *vision;
    rd_status (*image_begin)(void *self, struct vision_image *image, struct vision_run **out);
    rd_status (*image_step)(void *self, struct vision_run *run, uint64_t n_flops, uint64_t *n_done);
    uint32_t (*image_phase)(void *self, const struct vision_run *run); /* vision_run_phase; NULL: all is one */
    const float *(*image_rows)(void *self, const struct vision_run *run);
    void (*image_end)(void *self, struct vision_run *run);
    /* vision/pointer.h, likewise, where vision->points; NULL: it does not point. */
    rd_status (*point_begin)(void *self, const struct vision_pointed *images, uint32_t n,
                             struct vision_pointer_run **out);
    rd_status (*point_step)(void *self, struct vision_pointer_run *run, uint64_t n_flops);
    rd_status (*point_scores)(void *self, struct vision_pointer_run *run, const float *state, float *scores);
    void (*point_end)(void *self, struct vision_pointer_run *run);
    void (*close)(void *self); /* executor_close; NULL: it is the caller's */
};

/* Whether the page that page_out gave these bytes of had a window: what page_in writes to that of its page, if it has one. */
static inline bool executor_has_window(const struct executor *x, const void *bytes)
{
    uint64_t has_window = 1;

    if (x->window) memcpy(&has_window, (const uint8_t *)bytes + x->page_bytes - sizeof(has_window), sizeof(has_window));
    return has_window == 1;
}

/* ---- the front door ---- */

/* Of rank_executor.c. */
struct executor_rank {
    uint32_t rank, n_ranks, least_rows; /* least_rows: max_rows is that at least; rank 0 has the images */
    struct rank_group *group;
};

struct executor_options {
    const struct model_file *file; /* stays open as long as the executor */
    const struct model_file *
        vision_file; /* its mmproj, which stays, too; NULL: what the model's file has (model_file_vision). Rows of images are of it:
                        whoever keeps pages longer than the process tells pages by it, as by file */
    const struct executor *beside; /* NULL; or an open one, which outlives this: on the same device */
    const char *device, *isa;      /* as in rd_options, these too: */
    uint32_t n_threads;
    bool no_graphs, no_warm_up;
    uint32_t max_running, max_chunk; /* max_chunk 0: what suits the device */
    uint32_t max_logits;             /* 0: as many as memory suits, at least max_running */
    uint32_t page_tokens;            /* a power of two */
    enum dtype dtype_k, dtype_v;     /* of a KV cache that the model can have (kv_type_fits) */
    bool whole_pages;                /* no windows: pages hold all layers */
    uint64_t kv_bytes, kv_tokens;    /* kv_tokens 0: kv_bytes; 0: a share of the device's memory */
    uint32_t n_ranks;                /* that compute it together, 1 .. 8; 0: 1 (executors/rank_executor.h) */
    enum join_way join_way;          /* of their devices (backend/join_way.h) */
    const char *numa_root;           /* tests: numa_read's; NULL: the system's */
    uint64_t rank_patience_ns;       /* how long one may keep the others waiting; 0: RANKS_PATIENCE_NS */
    rd_status (*rank_fault)(void *arg,
                            uint32_t rank); /* tests: what a rank says before a pass, in its thread; NULL: RD_OK */
    void *rank_fault_arg;
    const struct executor_rank *as_rank; /* one of them; NULL: all of the model */
    const char *packed_dir;              /* packed weights (format/packed_file.h); NULL: none */
    uint64_t packed_bytes;               /* 0: 16 GiB */
    struct model_progress progress;
};

/* What an open executor is like. */
struct executor_traits {
    struct device_traits device;
    bool in_host_memory; /* pages, too, though it need not share them: memory.free_bytes */
    char about[64];      /* "avx512, 2 threads" */
    char computes[64];   /* equal: the same bits for the same file */
    uint32_t max_chunk;
    struct kv_layout layout; /* of its pages */
    uint32_t n_pages;
    uint64_t kv_bytes;                 /* of all pages and windows */
    uint32_t window, n_windows;        /* tokens; as executor's */
    uint64_t page_bytes, window_bytes; /* of memory: of a page, without its window; of a window */
    double device_ms, weights_ms;      /* to open and to load them */
    uint64_t weight_bytes, packed_bytes, workspace_bytes;
    uint64_t
        adapter_bytes; /* what adapters may take where nothing is said: a quarter of memory, half of what the cache leaves a device */
    uint64_t vision_bytes; /* of the encoder, in host memory; 0: it sees nothing */
};

/* *out is executor_close's. RD_E_INVALID, RD_E_UNSUPPORTED, RD_E_FORMAT name option, device or tensor; RD_E_NOMEM,
 * RD_E_DEVICE. */
rd_status executor_open(const struct executor_options *o, struct executor **out, struct executor_traits *traits,
                        struct rd_error *err);
/* What the KV cache for so many tokens takes on a CPU, in pages of layout->page_tokens. */
uint64_t executor_kv_bytes(const struct model_config *c, const struct kv_layout *layout, uint64_t n_tokens);
void executor_close(struct executor *x); /* NULL is fine */
