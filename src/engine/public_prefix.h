/* engine/public_prefix.h - prompts that are declared public: everybody finds them stored, whatever the namespace.
 *
 * A request of a salted namespace that begins as a public prompt does gets the pages that the common namespace (the
 * open one of its adapter: kv/kv_space.h) has of the part in common: its own namespace holds them too, as nodes of its
 * own, and nothing is computed or copied. When such a request has computed all of a public prompt itself, the common
 * namespace gets it from there (all but the last few tokens: text that goes on may change these). Behind the public part
 * every namespace is alone: what timing can reveal is whether a public prompt is stored.
 *
 *     common:   root --[public prompt: pages p0 p1 p2]--[...]
 *     salted:   root --[public prompt: pages p0 p1 p2]--[its own: p3 (a copy of p2's first rows, or appended to p2) ...]
 *
 * Thread  engine thread.  Errors  RD_E_NOMEM, RD_E_LIMIT (LIMIT_PUBLIC_PREFIXES): nothing was added.
 */
#pragma once
#include "kv/kv_seq.h"
#include "kv/kv_space.h"

struct engine;
struct request;
struct public_prefixes;

/* keys are copied; one that is there already is not added again. */
rd_status public_prefix_add(struct engine *e, const kv_key *keys, uint32_t n);
/* Before a match of keys[0..n) below root, that of space: links what is public of them. */
void public_prefix_link(struct engine *e, const struct kv_space *space, struct radix_node *root, const kv_key *keys,
                        uint32_t n, uint64_t now);
