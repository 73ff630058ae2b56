/* backend/mlx/mlx_rows.c - from token to row and from row to token, as functions in MLX's graph (mlx_call): what the next step
 * embeds is chosen when it is computed, not when it is written down.
 *
 * Rows of an embedding are opened from the file's bytes, in host memory. A choice is base/draw.h's, which the host's sampler
 * makes, too: its bits are the same wherever the row's are.
 */
#include <math.h>
#include <string.h>
#include "backend/mlx/mlx_backend.h"
#include "base/draw.h"
#include "base/mem.h"

/* ---- embed ---- */

struct embedding {
    const struct host_tensor *t;
    uint64_t row_bytes;
    uint32_t n_rows;
    float scale;
    struct {
        int32_t token;
        uint32_t from; /* GRAPH_OWN_TOKEN, or which of the choices before */
    } rows[];
};

static void open_row(const struct embedding *e, int32_t token, float *row)
{
    const struct host_tensor *t = e->t;

    if (token < 0 || (uint32_t)token >= t->n_out) { /* of a row that held no number: its request ends */
        memset(row, 0, t->n_in * sizeof(*row));
        return;
    }
    if (t->groups)
        weight_groups_row(t->groups, (uint64_t)token, row);
    else
        dtype_to_float(t->dtype, (const uint8_t *)t->data + (uint64_t)token * e->row_bytes, row, t->n_in);
    for (uint32_t i = 0; i < t->n_in && e->scale != 1; i++) row[i] *= e->scale;
}

/* in[0]: the choices, where a row wants one. */
static void embed_rows(void *arg, const void *const *in, float *out)
{
    const struct embedding *e = arg;

    for (uint32_t r = 0; r < e->n_rows; r++) {
        struct row_choice c = {.token = e->rows[r].token};

        if (e->rows[r].from != GRAPH_OWN_TOKEN)
            memcpy(&c, (const uint8_t *)in[0] + e->rows[r].from * sizeof(c), sizeof(c));
        open_row(e, c.token, out + (size_t)r * e->t->n_in);
    }
}

rd_status mlx_embed(struct backend *be, const struct weight *weight, uint32_t n_rows, const int32_t *tokens,
                    float scale, struct span out)
{
    const struct host_tensor *t = &mlx_weight_of(weight)->host;
    const struct mlx_shape shape = mlx_dims2(n_rows, t->n_in);
    const uint32_t *from = be->from;
    struct embedding *e = mem_alloc(sizeof(*e) + n_rows * sizeof(e->rows[0]), 1);
    uint32_t n_chosen = 0;
    mlx_ref choices;

    mlx_ahead_join(be);
    mlx_forget_arguments(be); /* a pass begins here */
    be->from = NULL;
    if (!e) return RD_E_NOMEM;
    *e = (struct embedding){.t = t, .n_rows = n_rows, .scale = scale};
    if (!t->groups && !dtype_row_bytes(t->dtype, t->n_in, &e->row_bytes)) {
        mem_free(e);
        return RD_E_NOMEM;
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        e->rows[r].token = tokens[r];
        e->rows[r].from = from ? from[r] : GRAPH_OWN_TOKEN;
        if (e->rows[r].from != GRAPH_OWN_TOKEN && e->rows[r].from >= n_chosen) n_chosen = e->rows[r].from + 1;
    }
    if (n_chosen) {
        choices = mlx_load(be, be->choices, n_chosen, 2, 2);
        mlx_store(be, out, mlx_call(be->g, shape, 1, &choices, embed_rows, e, mem_free), n_rows, t->n_in, t->n_in);
    } else { /* at once: these bytes may lie on a disk, and MLX's thread has other work */
        float *rows = mem_alloc((size_t)n_rows * t->n_in, sizeof(*rows));

        if (rows) embed_rows(e, NULL, rows);
        mem_free(e);
        if (!rows) return RD_E_NOMEM;
        mlx_store(be, out, mlx_from(be->g, MLX_F32, shape, rows), n_rows, t->n_in, t->n_in);
        mem_free(rows);
    }
    return mlx_settle(be, "embed");
}

/* ---- choose ---- */

struct choosing {
    uint32_t n_rows, n_vocab;
    struct row_draw draws[];
};

/* The lowest of the largest; -1: a number is NaN or +inf. */
static int32_t largest(const float *row, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (!(row[i] < INFINITY)) return -1;
        if (row[i] > row[best]) best = i;
    }
    return (int32_t)best;
}

/* The best score; of equal ones the lower id. Most tokens are passed by without their random word: no Gumbel number is larger
 * than that of the word with all bits. first: of the largest logit, whose score is mostly hard to beat. */
static int32_t drawn(const float *row, uint32_t n, const struct row_draw *d, uint32_t first)
{
    const float inverse = draw_inverse(d->temperature), most = draw_gumbel(UINT32_MAX);
    const float from = draw_is_local(d->temperature, d->min_p) ? 0 : row[first];
    const float least = draw_least(d->temperature, d->min_p, row[first]);
    uint32_t token = first;
    float best = draw_score(row[first], from, inverse, draw_words(d->seed, d->position, first & ~3u).w[first & 3]);

    for (uint32_t i = 0; i < n; i++) {
        float score;

        if (row[i] < least || !(row[i] > -INFINITY) || fmaf(row[i] - from, inverse, most) < best) continue;
        score = draw_score(row[i], from, inverse, draw_words(d->seed, d->position, i & ~3u).w[i & 3]);
        if (score < best || (score == best && i >= token)) continue;
        best = score;
        token = i;
    }
    return (int32_t)token;
}

static void choose_rows(void *arg, const void *const *in, float *out)
{
    const struct choosing *c = arg;

    for (uint32_t r = 0; r < c->n_rows; r++) {
        const float *row = (const float *)in[0] + (size_t)r * c->n_vocab;
        const int32_t first = largest(row, c->n_vocab);
        struct row_choice choice = {0, NAN};

        if (first >= 0) {
            choice.token = first;
            if (c->draws[r].temperature > 0 && row[first] > -INFINITY)
                choice.token = drawn(row, c->n_vocab, &c->draws[r], (uint32_t)first);
            choice.value = row[choice.token];
        }
        memcpy((uint8_t *)out + r * sizeof(choice), &choice, sizeof(choice));
    }
}

rd_status mlx_choose(struct backend *be, uint32_t n_rows, uint32_t n_vocab, struct span logits,
                     const struct row_draw *draws, struct span choices)
{
    const mlx_ref rows = mlx_load(be, logits, n_rows, n_vocab, n_vocab);
    struct choosing *c = mem_alloc(sizeof(*c) + n_rows * sizeof(c->draws[0]), 1);

    if (!c) {
        (void)mlx_settle(be, "choose");
        return RD_E_NOMEM;
    }
    c->n_rows = n_rows;
    c->n_vocab = n_vocab;
    memcpy(c->draws, draws, n_rows * sizeof(*draws));
    mlx_store(be, choices, mlx_call(be->g, mlx_dims2(n_rows, 2), 1, &rows, choose_rows, c, mem_free), n_rows, 2, 2);
    return mlx_settle(be, "choose");
}
