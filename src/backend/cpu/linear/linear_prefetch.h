/* backend/cpu/linear/linear_prefetch.h - asks for a tile's weights before they are needed; shared by all kernels.
 *
 * A tile is read as two streams, quants and scales, which jump at every tile's end: the processor's own prefetchers
 * lose them there and at each 4 KiB. So quants are asked for PREFETCH_BYTES ahead, over the tile's end into the next
 * tile (the next piece of memory, except for the matrix's last), and scales one tile ahead. Asking beyond a mapping does
 * nothing. Measured with the weights in huge pages on Intel, 2 threads, decode: Qwen2.5-Coder-0.5B 47 -> 56, SmolLM2
 * 234 -> 343 tok/s; 1 and 2 KiB ahead gave 52 and 55, 304 and 308.
 *
 * An AMD core has 24 lines on their way to L1 at most, and asking for L1 keeps them busy all the way from memory:
 * there quants are asked for PREFETCH_FAR_BYTES ahead, into the L2 (Zen 4, one row of Q4_K, 1 and 2 threads: 13.5 and
 * 24 GB/s, now 22 and 33; 4 and 6 KiB ahead the same, 16 KiB less; also near by into L1: no better).
 *
 * Work that opens weights and then multiplies them for a while asks farther ahead, into the L2 cache, and evenly over
 * both: a core waits for 16 lines on their way to L1 at most, so asking only while it opens leaves memory idle while it
 * multiplies (linear_k_amx.c).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "backend/cpu/linear/linear_kernels.h"

#define PREFETCH_BYTES     4096u /* to the L1 cache */
#define PREFETCH_FAR_BYTES 8192u /* to the L2 cache */

static inline __attribute__((always_inline)) void prefetch_lines(const uint8_t *p, uint32_t n_bytes)
{
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(p + i, 0, 3);
}

/* The same to the L2 cache. */
static inline __attribute__((always_inline)) void prefetch_lines_far(const uint8_t *p, uint32_t n_bytes)
{
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/* Where the streams of a tile with quants from `lines` and scales from `scales` go on. */
struct stream_ahead {
    const uint8_t *lines_end;
    uint64_t scale_bytes, tile_bytes;
    bool to_l2;
};

static inline struct stream_ahead stream_ahead_of(const uint8_t *lines, const uint8_t *scales, uint64_t scale_bytes,
                                                  bool to_l2)
{
    uint64_t rounded = (scale_bytes + 63) / 64 * 64;

    return (struct stream_ahead){scales, rounded, (uint64_t)(scales - lines) + rounded, to_l2};
}

/* A block's quants at `lines`, PREFETCH_FAR_BYTES ahead, to the L2 cache; unit: its scales where they begin with this
 * block, or NULL. */
static inline __attribute__((always_inline)) void prefetch_block_far(const struct stream_ahead *s, const uint8_t *lines,
                                                                     uint32_t n_bytes, const uint8_t *unit,
                                                                     uint32_t unit_bytes)
{
    const uint8_t *ahead = lines + PREFETCH_FAR_BYTES;

    if (ahead >= s->lines_end) ahead += s->scale_bytes;
    prefetch_lines_far(ahead, n_bytes);
    if (unit) prefetch_lines_far(unit + s->tile_bytes, unit_bytes);
}

/* The same to where this processor wants it. */
static inline __attribute__((always_inline)) void prefetch_block(const struct stream_ahead *s, const uint8_t *lines,
                                                                 uint32_t block_bytes, const uint8_t *unit,
                                                                 uint32_t unit_bytes)
{
    const uint8_t *ahead = lines + PREFETCH_BYTES;

    if (s->to_l2) {
        prefetch_block_far(s, lines, block_bytes, unit, unit_bytes);
        return;
    }
    if (ahead >= s->lines_end) ahead += s->scale_bytes;
    prefetch_lines(ahead, block_bytes);
    if (unit) prefetch_lines(unit + s->tile_bytes, unit_bytes);
}

/* n_blocks blocks' share of what is read after this product (linear_soon.h), to the L2 cache. */
static inline __attribute__((always_inline)) void prefetch_soon(struct soon_part *s, uint32_t n_blocks)
{
    for (uint32_t i = 0; i < n_blocks * s->step && s->at < s->end; i++, s->at += 64) __builtin_prefetch(s->at, 0, 2);
}
