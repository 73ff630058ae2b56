/* kv/radix_claim.c - whose nodes are: one user's alone, or everybody's.
 *
 * A node's claim is 0 (nobody has claimed it yet), a user's number, or RADIX_COMMON. What is below a node can be of its
 * user, or of those to come, alone:
 *
 *     claim of a node    of its parent (a root has none)
 *     0                  any
 *     who                who, or RADIX_COMMON
 *     RADIX_COMMON       RADIX_COMMON
 */
#include <assert.h>
#include "base/checked.h"
#include "kv/radix_node.h"

uint64_t radix_node_claim(const struct radix_node *node)
{
    return node->claim;
}

static void claim_path(struct radix_node *node, uint64_t who, const kv_key *keys, const struct radix_claim *c)
{
    for (; node && node->parent && node->claim != RADIX_COMMON; node = node->parent) {
        uint64_t was = node->claim;

        if (was != 0 && was != who && c->shared) c->shared(c->arg, was, keys, radix_node_end(node));
        node->claim = was == 0 || was == who ? who : RADIX_COMMON;
        if (node->claim == RADIX_COMMON) who = RADIX_COMMON; /* and so is all above */
    }
}

void radix_claim(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n,
                 const struct radix_claim *c)
{
    thread_owner_check(&tree->owner);
    assert(c->who != 0);
    if (c->n_common > 0 && c->who != RADIX_COMMON)
        claim_path(radix_node_at(tree, root, keys, u32_min(c->n_common, n)), RADIX_COMMON, keys, c);
    if (n > 0) claim_path(radix_node_at(tree, root, keys, n), c->who, keys, c);
}

/* The first node of the path, from the root on, that is who's alone; NULL: none is. */
static struct radix_node *first_own(struct radix_node *node, uint64_t who)
{
    struct radix_node *first = NULL;

    for (; node->parent; node = node->parent)
        if (node->claim == who) first = node;
    return first;
}

uint32_t radix_drop_claim(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n, uint64_t who)
{
    struct radix_node *first = first_own(radix_match(tree, root, keys, n, tree->now).node, who);
    uint32_t n_freed;

    assert(who != 0 && who != RADIX_COMMON);
    if (!first) return 0;
    n_freed = radix_clear_below(tree, first, who);
    return n_freed + (radix_node_is_evictable(first) ? radix_leaf_remove(tree, first, GHOST_CLEARED) : 0);
}

uint32_t radix_n_common(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n, uint64_t who,
                        uint32_t *n_stored)
{
    struct radix_match m = radix_match(tree, root, keys, n, tree->now);
    struct radix_node *first = first_own(m.node, who);

    *n_stored = m.n_ready;
    return first ? u32_min(first->start, m.n_ready) : m.n_ready;
}
