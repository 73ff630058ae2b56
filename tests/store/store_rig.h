/* tests/store/store_rig.h - a folder of its own, pages whose bytes follow from their tokens, and the folder's size. */
#pragma once
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "store/page_store.h"
#include "store/segment.h"
#include "test.h"

#define RIG_P         4u /* tokens of a page */
#define RIG_MAX_PAGES 24u

struct store_rig {
    char dir[128];
    struct clock *clock; /* fake */
    struct page_store *s;
    struct store_space *space;
    uint64_t page_bytes, cap_bytes, segment_bytes;
    uint64_t keep_free_bytes; /* 0 */
    uint32_t max_spaces;      /* 0: the limit */
};

/* A fresh folder; nothing opened. The log is silent from here on. */
void rig_init(struct store_rig *g, uint64_t page_bytes, uint64_t cap_bytes, uint64_t segment_bytes);
/* Closes, removes the folder. */
void rig_deinit(struct store_rig *g);
bool rig_open(struct store_rig *g); /* store and space "a"; false: not to be opened */
void rig_close(struct store_rig *g);

/* Bytes of page i of a text: a function of the space's name and of all tokens up to its end. */
void rig_fill(const struct store_rig *g, const char *space, const uint32_t *tokens, uint32_t i, uint8_t *page);
/* Puts the first n pages of a text. The last status that was not RD_OK. */
rd_status rig_put(struct store_rig *g, struct store_space *space, const char *name, const uint32_t *tokens, uint32_t n);
/* Finds and reads; returns how many pages came, and fails the test where one of them has wrong bytes. */
uint32_t rig_get(struct store_rig *g, struct store_space *space, const char *name, const uint32_t *tokens, uint32_t n);
/* Text number k: texts with equal k / 4 begin alike. */
void rig_text(uint64_t k, uint32_t *tokens, uint32_t n_pages);
struct store_counts rig_counts(const struct store_rig *g);
/* Bytes of all segment files; their names by number (0: the oldest), "" beyond. */
uint64_t rig_dir_bytes(const struct store_rig *g);
const char *rig_segment_path(const struct store_rig *g, uint32_t k);
