/* api/turns.h - things of several owners that wait for one worker, in turns.
 *
 *     waiting:   a1 a2 a3 b1 c1      taken: a1 b1 c1 a2 a3
 *
 * Each has a round: the first of an owner that has nothing waiting is in the running one, his next ones are one round later
 * each. So an owner waits for at most one thing of each other owner, however many of them there are.
 *
 * Owns    nothing: what waits is the caller's, and holds its own link.
 * Thread  any (locks itself). Errors  none.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/thread.h"

struct turn {
    struct turn *next;
    uint64_t owner, round;
};
struct turns {
    struct mutex lock;
    struct cond filled; /* or closed */
    struct turn *first; /* by round, of one round in the order they came */
    uint64_t round;     /* of what was taken last */
    bool closed;
};

void turns_init(struct turns *t);
/* Must be empty. */
void turns_deinit(struct turns *t);
/* false: `most` of that owner wait already, and nothing was pushed. */
bool turns_push(struct turns *t, struct turn *item, uint64_t owner, uint32_t most);
/* Blocks until there is something; NULL: closed and empty. */
struct turn *turns_pop(struct turns *t);
void turns_close(struct turns *t);
bool turns_are_closed(struct turns *t);
