/* tests/draw_reference.h - a draw as base/draw.h tells it, token by token: what the host's sampler and a device's kernels
 * must choose. */
#pragma once
#include <stdint.h>
#include "base/draw.h"

/* -1: a logit is NaN or +inf, or none is more than -inf. banned: [n_banned]. */
static inline int32_t draw_reference_of(const float *row, uint32_t n, float temperature, float min_p, uint64_t seed,
                                        uint32_t position, const int32_t *banned, uint32_t n_banned)
{
    float most = -INFINITY, best = -INFINITY, from, least;
    int32_t token = -1;

    for (uint32_t i = 0; i < n; i++) {
        bool is_banned = false;

        if (!(row[i] < INFINITY)) return -1;
        for (uint32_t k = 0; k < n_banned; k++) is_banned |= banned[k] == (int32_t)i;
        if (!is_banned && row[i] > most) most = row[i];
    }
    from = draw_is_local(temperature, min_p) ? 0 : most;
    least = draw_least(temperature, min_p, most);
    for (uint32_t i = 0; i < n; i++) {
        const struct philox_words words = draw_words(seed, position, i & ~3u);
        const float score = draw_score(row[i], from, draw_inverse(temperature), words.w[i & 3]);
        bool is_banned = false;

        for (uint32_t k = 0; k < n_banned; k++) is_banned |= banned[k] == (int32_t)i;
        if (is_banned || row[i] < least || !(row[i] > -INFINITY) || (token >= 0 && score <= best)) continue;
        best = score;
        token = (int32_t)i;
    }
    return token;
}

static inline int32_t draw_reference(const float *row, uint32_t n, float temperature, float min_p, uint64_t seed,
                                     uint32_t position)
{
    return draw_reference_of(row, n, temperature, min_p, seed, position, NULL, 0);
}
