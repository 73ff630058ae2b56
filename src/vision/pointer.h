/* vision/pointer.h - where a GUI-Actor points: scores of a token over the patches of the images, and points of these.
 *
 *     enc = mlp_enc(norm(x + attention of x to x)),  x: the encoder's rows of all images    once a request, in pieces
 *     dec = mlp_dec(state),  state: what the text model's head reads at <|pointer_pad|>     a token
 *     scores = softmax(enc . dec / sqrt(width))                                             [n_rows]
 *     regions of scores above 0.3 of the largest, side by side --> a point each, the middle by scores
 *
 * Scores are the same bits for any threads and any cut into pieces, as the encoder's rows are.
 *
 * Thread  as the encoder's runs; vision_pointer_regions: any.
 * Errors  begin, regions: RD_E_NOMEM; step, scores: as vision_run_step.
 * Source  GUI-Actor, arXiv:2506.03143, section 3, and its code (nn.MultiheadAttention of 8 heads, LayerNorm 1e-5, GELU by erf).
 */
#pragma once
#include "vision/encoder.h"

#define VISION_POINTS_MOST 5u /* of one token */

struct vision_pointer_run;

/* Rows of an image, in its lines, without what DeepStack adds. */
struct vision_pointed {
    const float *rows; /* [h * w, text_hidden]; stay until step says RD_OK */
    uint32_t h, w;     /* in rows */
};

/* x, y: 0 .. 1 of the image, from its upper left corner. */
struct vision_point {
    double x, y, score; /* score: mean of the region's */
    uint32_t pointer;   /* for its owner: which token's */
    uint32_t image;     /* which of the images */
};

/* The encoder's traits say that it points. n >= 1; images is copied. */
rd_status vision_pointer_begin(struct vision_encoder *e, const struct vision_pointed *images, uint32_t n,
                               struct vision_pointer_run **out);
/* As vision_run_step. */
rd_status vision_pointer_step(struct vision_pointer_run *run, uint64_t n_flops);
/* After RD_OK of step, any number of times. state: [text_hidden]. scores: [n_rows of all images]. */
rd_status vision_pointer_scores(struct vision_pointer_run *run, const float *state, float *scores);
void vision_pointer_end(struct vision_pointer_run *run); /* NULL is fine */

/* The points of scores over images (rows are not looked at), the highest score first; of equal ones the first. *n_out: at most
 * VISION_POINTS_MOST. */
rd_status vision_pointer_regions(const float *scores, const struct vision_pointed *images, uint32_t n,
                                 struct vision_point out[VISION_POINTS_MOST], uint32_t *n_out);
