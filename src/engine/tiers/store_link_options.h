/* engine/tiers/store_link_options.h - how a link between the engine and the page store is made. Thread  plain values. */
#pragma once
#include "base/clock.h"
#include "store/page_store.h"
#include "store/shared_store.h"

struct store_link_options {
    struct page_store *store;    /* becomes the link's, also when create fails */
    struct shared_store *shared; /* likewise; or NULL */
    const struct clock *clock;
    uint32_t page_tokens, max_pages; /* max_pages: of the longest sequence */
    uint64_t page_bytes;
    uint64_t staging_bytes; /* copies that wait for the disk; at least four pages */
    uint32_t lossy_from;    /* pages that begin at this token or later are packed; 0: none */
    uint64_t packed_bytes;
    const void *codec;                                             /* borrowed */
    void (*pack)(const void *codec, const void *page, void *out);  /* saver thread */
    void (*unpack)(const void *codec, const void *in, void *page); /* loader thread */
    bool threads; /* false: nothing happens but in store_link_work (tests) */
};
