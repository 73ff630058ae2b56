/* backend/span.h - a place in memory: where an activation begins. The model adds offsets to it and never looks behind it.
 *
 *     { buffer, at }    byte `at` of what memory.alloc gave. What a buffer is, the backend alone knows (an address, an
 *                       object of a library, a name in another process)
 *     { NULL, at }      the host's memory at the address `at`: an op takes it where traits.shares_memory
 *     { NULL, 0 }       nowhere
 *
 * Thread  values: any thread.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct buffer;
struct span {
    struct buffer *buffer;
    uint64_t at;
};

static inline struct span span_of(struct buffer *b, uint64_t at)
{
    return (struct span){b, at};
}
static inline struct span span_of_host(const void *p)
{
    return (struct span){NULL, (uintptr_t)p};
}
static inline struct span span_none(void)
{
    return (struct span){NULL, 0};
}
static inline bool span_is_none(struct span s)
{
    return !s.buffer && s.at == 0;
}
static inline bool span_equal(struct span a, struct span b)
{
    return a.buffer == b.buffer && a.at == b.at;
}
/* n floats behind s. */
static inline struct span span_add(struct span s, uint64_t n)
{
    s.at += n * sizeof(float);
    return s;
}
