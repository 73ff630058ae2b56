/* tests/support/sim_store.h - a page store in a folder of its own, linked to an engine, without threads: it works when
 * told to, so that a run can be repeated. */
#pragma once
#include "engine/tiers/store_link.h"

struct sim_store {
    char dir[96];
    struct store_link *link;
    uint32_t max_spaces; /* set before opening; 0: the limit */
    uint32_t lossy_from; /* set before opening: pages from this token on are packed, here without a loss */
    uint64_t page_bytes;
};

/* A fresh folder. */
bool sim_store_init(struct sim_store *s);
/* Opens the folder (again). page_bytes: sim_view's. threads: as in a server. */
bool sim_store_open(struct sim_store *s, uint32_t page_tokens, uint64_t page_bytes, uint64_t cap_bytes,
                    const struct clock *clock, bool threads);
/* The engine is gone. */
void sim_store_close(struct sim_store *s);
/* Closes; removes the folder. */
void sim_store_deinit(struct sim_store *s);
