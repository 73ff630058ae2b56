/* vision/pointer_regions.c - scores to points, sums in the order of GUI-Actor's own code. */
#include <string.h>
#include "base/mem.h"
#include "vision/pointer.h"

#define SHARE_OF_MOST 0.3f

/* Of one image. */
struct regions {
    const float *scores;
    uint32_t h, w;
    float least;      /* a patch above it counts */
    bool *seen;       /* [h * w] */
    uint32_t *region; /* [h * w] patches of a region, as they were found */
};

static void look_at(struct regions *g, int64_t y, int64_t x, uint32_t *n)
{
    uint32_t at;

    if (y < 0 || x < 0 || y >= g->h || x >= g->w) return;
    at = (uint32_t)(y * g->w + x);
    if (g->seen[at] || !(g->scores[at] > g->least)) return;
    g->seen[at] = true;
    g->region[(*n)++] = at;
}

/* The region that patch `first` is in, side by side. */
static struct vision_point point_of(struct regions *g, uint32_t first)
{
    struct vision_point p = {0};
    uint32_t n = 0;
    double sum = 0, x = 0, y = 0;

    look_at(g, first / g->w, first % g->w, &n);
    for (uint32_t i = 0; i < n; i++) {
        const int64_t at_y = g->region[i] / g->w, at_x = g->region[i] % g->w;

        look_at(g, at_y - 1, at_x, &n);
        look_at(g, at_y + 1, at_x, &n);
        look_at(g, at_y, at_x - 1, &n);
        look_at(g, at_y, at_x + 1, &n);
    }
    for (uint32_t i = 0; i < n; i++) {
        const double score = (double)g->scores[g->region[i]];

        sum += score;
        x += (g->region[i] % g->w + 0.5) / g->w * score;
        y += (g->region[i] / g->w + 0.5) / g->h * score;
    }
    p.x = x / sum;
    p.y = y / sum;
    p.score = sum / n;
    return p;
}

static void put(const struct vision_point *p, struct vision_point out[VISION_POINTS_MOST], uint32_t *n)
{
    uint32_t at = *n;

    while (at > 0 && p->score > out[at - 1].score) at--;
    if (at == VISION_POINTS_MOST) return;
    if (*n < VISION_POINTS_MOST) ++*n;
    memmove(&out[at + 1], &out[at], (*n - 1 - at) * sizeof(*out));
    out[at] = *p;
}

rd_status vision_pointer_regions(const float *scores, const struct vision_pointed *images, uint32_t n,
                                 struct vision_point out[VISION_POINTS_MOST], uint32_t *n_out)
{
    uint32_t n_rows = 0, at = 0;
    float most = 0;
    bool *seen;
    uint32_t *region;

    *n_out = 0;
    for (uint32_t i = 0; i < n; i++) n_rows += images[i].h * images[i].w;
    seen = mem_zalloc(n_rows, sizeof(*seen));
    region = mem_alloc(n_rows, sizeof(*region));
    for (uint32_t i = 0; i < n_rows; i++) most = scores[i] > most ? scores[i] : most;
    for (uint32_t i = 0; seen && region && i < n; i++) {
        struct regions g = {scores + at, images[i].h, images[i].w, most * SHARE_OF_MOST, seen + at, region};

        for (uint32_t k = 0; k < g.h * g.w; k++) {
            struct vision_point p;

            if (g.seen[k] || !(g.scores[k] > g.least)) continue;
            p = point_of(&g, k);
            p.image = i;
            put(&p, out, n_out);
        }
        at += g.h * g.w;
    }
    mem_free(region);
    mem_free(seen);
    return seen && region ? RD_OK : RD_E_NOMEM;
}
