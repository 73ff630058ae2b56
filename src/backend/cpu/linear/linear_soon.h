/* backend/cpu/linear/linear_soon.h - asks memory for what adapters read next, while a matrix product computes.
 *
 * With few rows an adapter is a stream from memory, and the product before it, of 16 rows, leaves memory idle. So the lines of
 * A and B of all terms are counted through, and each part of the product asks for its share of them, into the L2 cache: a few at
 * each block, for a core that has too many on their way waits for them (asked for tile by tile, 90 at a time, half of what was
 * won was lost so). Where rows meet a tile four at a time (AVX2) the first four wait for its weights, and the others ask. Measured:
 * docs/lora.md, "Cost".
 */
#pragma once
#include "backend/backend.h"
#include "backend/cpu/linear/linear_kernels.h"
#include "base/checked.h"

#define SOON_LINE 64u
#define SOON_ROWS 64u /* of more rows the product takes longer than memory, whatever it is asked for */

static inline uint64_t soon_lines_of(const struct weight *w)
{
    const uint64_t n_bytes = (uint64_t)w->n_out * w->n_in * (w->dtype == DTYPE_F32 ? 4 : 2);

    return (n_bytes + SOON_LINE - 1) / SOON_LINE;
}

/* NULL: none. */
static inline uint64_t soon_lines(const struct low_rank_args *a)
{
    uint64_t n = 0;

    for (uint32_t i = 0; a && i < a->n_terms; i++) n += soon_lines_of(a->terms[i].a) + soon_lines_of(a->terms[i].b);
    return n;
}

/* Where the next part goes on: `done` lines of matrix `at` (of term at / 2: A, B) have been asked for, `all` of all. */
struct soon_place {
    uint32_t at;
    uint64_t done, all;
};

/* At line n of all. */
static inline struct soon_place soon_place_of(const struct low_rank_args *a, uint64_t n)
{
    struct soon_place p = {0, n, n};

    for (; p.at < 2 * a->n_terms; p.at++) {
        const struct low_rank_term *m = &a->terms[p.at / 2];
        const uint64_t lines = soon_lines_of(p.at % 2 ? m->b : m->a);

        if (p.done < lines) break;
        p.done -= lines;
    }
    return p;
}

/* Of the lines up to number `to` of all those of one matrix; what is left comes with the next. */
static inline struct soon_part soon_next(const struct low_rank_args *a, struct soon_place *p, uint64_t to)
{
    struct soon_part part = {0};
    const struct weight *w;
    uint64_t n, left;

    if (p->at >= 2 * a->n_terms || to <= p->all) return part;
    w = p->at % 2 ? a->terms[p->at / 2].b : a->terms[p->at / 2].a;
    left = soon_lines_of(w) - p->done;
    n = u64_min(left, to - p->all);
    part.at = (const uint8_t *)w->data + p->done * SOON_LINE;
    part.end = part.at + n * SOON_LINE;
    p->all += n;
    p->done += n;
    if (n == left) {
        p->at++;
        p->done = 0;
    }
    return part;
}
