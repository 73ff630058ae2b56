/* bench/fleet/fleet_server.h - a server of the fleet: radish's tree over its page pool, without what the pages would hold; and the
 * digests of pages, by which a router or a store knows them. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/hash.h"
#include "kv/kv_seq.h"

#define PAGE_TOKENS 16u

struct fleet_server {
    struct page_pool *pool;
    struct kv_cache cache;
    struct radix_node *root;
    uint64_t now;
    double *ends; /* [n_ends of cap_ends] when what runs is done */
    uint32_t n_ends, cap_ends;
    uint64_t n_requests;
};

bool fleet_server_init(struct fleet_server *s, uint32_t n_pages);
void fleet_server_deinit(struct fleet_server *s);
/* A request that is answered: returns how many of its n_prompt tokens were in the tree. n: with its answer. */
uint32_t fleet_server_serve(struct fleet_server *s, const kv_key *keys, uint32_t n_prompt, uint32_t n);
/* How many run at this time; and one more, until then. */
uint32_t fleet_server_load(struct fleet_server *s, double time);
bool fleet_server_run_until(struct fleet_server *s, double end);

/* Digests of the whole pages of keys, each of all before it: returns how many. */
uint32_t fleet_digests(const kv_key *keys, uint32_t n, uint64_t *out);

/* A set of digests, each with a number; the oldest of a group of 8 gives way. */
struct digest_map {
    uint64_t *keys;
    uint32_t *values, *stamps;
    uint32_t n_groups, clock;
    uint64_t n_out; /* that gave way */
};
bool digest_map_init(struct digest_map *m, uint64_t n_most);
void digest_map_deinit(struct digest_map *m);
/* NULL: it is not there. What is found counts as new. */
uint32_t *digest_map_find(struct digest_map *m, uint64_t key);
/* True: it was not there. */
bool digest_map_put(struct digest_map *m, uint64_t key, uint32_t value);
