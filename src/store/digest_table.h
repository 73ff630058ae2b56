/* store/digest_table.h - where is the page with this digest? The index of the page store, in memory.
 *
 * An open table with linear probing; entries that go are closed up, so that nothing is left behind by many of them. The
 * digests are keyed (base/sip_hash.h), so none can make them collide. 24 bytes per slot, at most 3/4 full: a million
 * pages take 32 to 64 MiB.
 *
 * Thread  its owner (page_store.c: under the store's lock).
 * Errors  RD_E_NOMEM: nothing changed.
 */
#pragma once
#include <stdbool.h>
#include "base/hash.h"
#include "radish/status.h"

struct digest_place {
    struct hash128 digest;
    uint32_t segment, slot;
}; /* segment UINT32_MAX: empty */
struct digest_table {
    struct digest_place *places;
    uint64_t n_places, n;
}; /* n_places: 0 or a power of two */

void digest_table_deinit(struct digest_table *t);
/* NULL: not there. Valid until the next change. */
const struct digest_place *digest_table_find(const struct digest_table *t, struct hash128 digest);
/* The digest must not be there. */
rd_status digest_table_insert(struct digest_table *t, struct digest_place place);
/* Harmless when it is not there. */
void digest_table_remove(struct digest_table *t, struct hash128 digest);
/* Removes everything in a segment; returns how much. */
uint64_t digest_table_remove_segment(struct digest_table *t, uint32_t segment);
