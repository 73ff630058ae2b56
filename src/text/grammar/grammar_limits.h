/* text/grammar/grammar_limits.h - what a grammar may cost, and the few words that its builder (grammar_build.h) and the
 * builder's inside (grammar_nodes.h) share.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/clock.h"

typedef uint32_t grammar_node; /* 0: none, of a builder that failed */
#define GRAMMAR_UNBOUNDED UINT32_MAX

struct grammar_limits {
    uint32_t max_nodes;  /* of the builder */
    uint32_t max_states; /* of all automata, before and after they are made deterministic */
    size_t max_bytes;    /* memory of the builder and of what is compiled */
    /* From create to the end of compile: of the thread's own time, and in all, so that a busy machine has time for what is
     * good and a bomb gets no more on an idle one. 0: no limit. */
    uint64_t max_ns, max_wall_ns;
    const struct clock *clock; /* NULL: the machine's */
};
extern const struct grammar_limits grammar_limits_default; /* 100,000 nodes, 1 M states, 64 MiB, 5 s, no limit in all */
struct grammar_range {
    uint32_t low, high;
}; /* code points, both included */
