/* vision/pointer.c - the head's weights, and a run over the rows of some images, block by block. */
#include "vision/pointer.h"
#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "vision/encoder_inside.h"

#define POINTER_HEADS 8u
#define POINTER_EPS   1e-5f
#define DEVICE_STEP   24u /* times VISION_STEP_FLOPS on a device */

/* ---- weights ---- */

static rd_status load_linear(struct vision_encoder *e, const char *weight, const char *bias, uint32_t n_out,
                             struct weight *w, struct weight *b, struct rd_error *err)
{
    rd_status st = vision_matrix(e, weight, n_out, e->text_hidden, w, err);

    return st == RD_OK ? vision_vector(e, bias, n_out, false, b, err) : st;
}

rd_status vision_pointer_open(struct vision_encoder *e, struct rd_error *err)
{
    struct vit_pointer *p = &e->pointer;
    const uint32_t d = e->text_hidden;
    rd_status st;

    if (!model_file_find_tensor(e->g, "pointer.attn_in.weight")) return RD_OK;
    if (d % POINTER_HEADS || d / POINTER_HEADS % 4 || d / POINTER_HEADS > LIMIT_HEAD_DIM)
        return error_set(err, RD_E_UNSUPPORTED, "a pointer head of %u heads over width %u: heads of 4 to %u, by fours",
                         POINTER_HEADS, d, LIMIT_HEAD_DIM);
    st = load_linear(e, "pointer.attn_in.weight", "pointer.attn_in.bias", 3 * d, &p->in, &p->in_b, err);
    if (st == RD_OK)
        st = load_linear(e, "pointer.attn_out.weight", "pointer.attn_out.bias", d, &p->out, &p->out_b, err);
    if (st == RD_OK) st = vision_vector(e, "pointer.norm.weight", d, false, &p->norm, err);
    if (st == RD_OK) st = vision_vector(e, "pointer.norm.bias", d, false, &p->norm_b, err);
    if (st == RD_OK) st = load_linear(e, "pointer.enc.0.weight", "pointer.enc.0.bias", d, &p->enc1, &p->enc1_b, err);
    if (st == RD_OK) st = load_linear(e, "pointer.enc.2.weight", "pointer.enc.2.bias", d, &p->enc2, &p->enc2_b, err);
    if (st == RD_OK) st = load_linear(e, "pointer.dec.0.weight", "pointer.dec.0.bias", d, &p->dec1, &p->dec1_b, err);
    if (st == RD_OK) st = load_linear(e, "pointer.dec.2.weight", "pointer.dec.2.bias", d, &p->dec2, &p->dec2_b, err);
    e->traits.points = st == RD_OK;
    return st;
}

/* ---- a run ---- */

enum pointer_phase { POINTER_QKV, POINTER_PACK, POINTER_ATTEND, POINTER_MIX, POINTER_DONE };

struct vision_pointer_run {
    struct vision_encoder *e;
    struct vision_pointed *images;
    uint32_t n_images, n, block; /* n: rows */
    enum pointer_phase phase;
    uint32_t row, head;
    uint32_t end, blocks[2]; /* one group */
    float *memory;           /* mapped */
    uint64_t n_bytes;
    struct buffer *buffer; /* on a device: what the spans are in */
    struct span x, qkv, attn, pack, norm, up,
        delta;  /* [n, width], [n, 3 width], [n, width]; norm .. delta: of a block */
    float *enc; /* [n, width] */
};

static uint32_t heads_at_once(const struct vision_encoder *e)
{
    return e->ops->traits.shares_memory ? u32_min(ATTEND_HEADS, POINTER_HEADS) : POINTER_HEADS;
}

static uint64_t aligned(uint64_t n_floats)
{
    return (n_floats + 15) / 16 * 16;
}

static rd_status take_memory(struct vision_pointer_run *r)
{
    const struct vision_encoder *e = r->e;
    const uint64_t d = e->text_hidden, rows = aligned(r->n * d), block = aligned(r->block * d);
    const uint64_t qkv = aligned(3 * r->n * d);
    const uint64_t pack = aligned(attend_packed_floats((uint32_t)d / POINTER_HEADS, heads_at_once(e), r->blocks[1]));
    const uint64_t n_device = 2 * rows + qkv + pack + 3 * block;
    const bool shares = e->ops->traits.shares_memory;
    struct span at;
    rd_status st;

    r->n_bytes = (rows + (shares ? n_device : 0)) * sizeof(float);
    r->memory = mem_map((size_t)r->n_bytes);
    if (!r->memory) return RD_E_NOMEM;
    if (!shares && (st = e->ops->memory.alloc(e->be, n_device * sizeof(float), &r->buffer)) != RD_OK) return st;
    r->enc = r->memory;
    at = r->buffer ? span_of(r->buffer, 0) : span_of_host(r->memory + rows);
    r->x = vision_take_part(&at, rows);
    r->qkv = vision_take_part(&at, qkv);
    r->attn = vision_take_part(&at, rows);
    r->pack = vision_take_part(&at, pack);
    r->norm = vision_take_part(&at, block);
    r->up = vision_take_part(&at, block);
    r->delta = vision_take_part(&at, block);
    return RD_OK;
}

rd_status vision_pointer_begin(struct vision_encoder *e, const struct vision_pointed *images, uint32_t n,
                               struct vision_pointer_run **out)
{
    struct vision_pointer_run *r = mem_zalloc(1, sizeof(*r));
    rd_status st;

    assert(e->traits.points && n > 0);
    if (!r) return RD_E_NOMEM;
    r->e = e;
    r->n_images = n;
    for (uint32_t i = 0; i < n; i++) r->n += images[i].h * images[i].w;
    r->block = u32_min(r->n, e->ops->traits.shares_memory ? BLOCK_ROWS : STAGE_ROWS);
    r->end = r->n;
    r->blocks[1] = u32_ceil_div(r->n, ATTEND_BLOCK);
    r->images = (struct vision_pointed *)(void *)mem_memdup(images, n * sizeof(*images));
    st = r->images ? take_memory(r) : RD_E_NOMEM;
    if (st == RD_OK)
        *out = r;
    else
        vision_pointer_end(r);
    return st;
}

void vision_pointer_end(struct vision_pointer_run *r)
{
    if (!r) return;
    if (r->buffer) r->e->ops->memory.free(r->e->be, r->buffer);
    if (r->memory) mem_unmap(r->memory, (size_t)r->n_bytes);
    mem_free(r->images);
    mem_free(r);
}

/* ---- blocks ---- */

/* Row i of all images. */
static const float *row_at(const struct vision_pointer_run *r, uint32_t i)
{
    uint32_t k = 0;

    while (i >= r->images[k].h * r->images[k].w) i -= r->images[k].h * r->images[k].w, k++;
    return r->images[k].rows + (size_t)i * r->e->traits.n_floats;
}

static struct span rows_of(const struct vision_pointer_run *r, struct span of, uint32_t row)
{
    return span_add(of, (uint64_t)row * r->e->text_hidden);
}

static rd_status do_qkv(struct vision_pointer_run *r, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const struct span x = rows_of(r, r->x, r->row);
    float *to = vision_room(r->e, x, 0);
    rd_status st;

    for (uint32_t i = 0; i < n; i++)
        memcpy(to + (size_t)i * e->text_hidden, row_at(r, r->row + i), e->text_hidden * sizeof(float));
    st = vision_put(r->e, x, 0, (uint64_t)n * e->text_hidden);
    if (st != RD_OK) return st;
    return vision_linear(e, &e->pointer.in, &e->pointer.in_b, n, x, rows_of(r, r->qkv, 3 * r->row));
}

static rd_status do_attend(struct vision_pointer_run *r, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const uint32_t d = e->text_hidden;
    const struct attend_args a = {.row0 = r->row,
                                  .n_rows = n,
                                  .n_heads = POINTER_HEADS,
                                  .head_dim = d / POINTER_HEADS,
                                  .q = r->qkv,
                                  .k = span_add(r->qkv, d),
                                  .v = span_add(r->qkv, 2 * (uint64_t)d),
                                  .stride = 3 * d,
                                  .head0 = r->head,
                                  .n_some = u32_min(heads_at_once(e), POINTER_HEADS - r->head),
                                  .out = rows_of(r, r->attn, r->row),
                                  .scale = 1.0f / sqrtf((float)(d / POINTER_HEADS)),
                                  .n_groups = 1,
                                  .group_ends = &r->end,
                                  .group_blocks = r->blocks,
                                  .packed = r->pack};

    return r->phase == POINTER_PACK ? e->ops->op.attend_pack(e->be, &a) : e->ops->op.attend(e->be, &a);
}

/* delta = w2 gelu(w1 norm), of n rows of the block. */
static rd_status do_mlp(const struct vision_pointer_run *r, const struct weight *w1, const struct weight *w1_b,
                        const struct weight *w2, const struct weight *w2_b, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    rd_status st = vision_linear_once(e, w1, w1_b, n, r->norm, r->up);

    if (st == RD_OK) st = vision_gelu(e, GELU_ERF, n, e->text_hidden, r->up);
    return st == RD_OK ? vision_linear(e, w2, w2_b, n, r->up, r->delta) : st;
}

static rd_status do_mix(struct vision_pointer_run *r, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const struct vit_pointer *p = &e->pointer;
    const uint32_t d = e->text_hidden;
    const struct span x = rows_of(r, r->x, r->row);
    const struct residual_norm_args add = {.n_rows = n, .width = d, .x = x, .delta = r->delta, .eps = POINTER_EPS};
    const struct layer_norm_args norm = {n, d, x, &p->norm, &p->norm_b, POINTER_EPS, r->norm, true};
    const float *rows = NULL;
    rd_status st = vision_linear(e, &p->out, &p->out_b, n, rows_of(r, r->attn, r->row), r->delta);

    if (st == RD_OK) st = e->ops->op.residual_norm(e->be, &add);
    if (st == RD_OK) st = e->ops->op.layer_norm(e->be, &norm);
    if (st == RD_OK) st = do_mlp(r, &p->enc1, &p->enc1_b, &p->enc2, &p->enc2_b, n);
    if (st == RD_OK) st = vision_get(r->e, r->delta, (uint64_t)n * d, &rows);
    if (st == RD_OK) memcpy(r->enc + (size_t)r->row * d, rows, (size_t)n * d * sizeof(float));
    return st;
}

static rd_status do_block(struct vision_pointer_run *r, uint32_t n)
{
    if (r->phase == POINTER_QKV) return do_qkv(r, n);
    return r->phase == POINTER_MIX ? do_mix(r, n) : do_attend(r, n);
}

static uint64_t row_flops(const struct vision_pointer_run *r)
{
    const uint64_t d = r->e->text_hidden;

    if (r->phase == POINTER_ATTEND) return 4 * d * r->n * heads_at_once(r->e) / POINTER_HEADS;
    return r->phase == POINTER_PACK ? 4 * d : 6 * d * d;
}

/* After a block of n rows. */
static void move_on(struct vision_pointer_run *r, uint32_t n)
{
    r->row += n;
    if (r->row < r->n) return;
    r->row = 0;
    if (r->phase == POINTER_ATTEND && (r->head += heads_at_once(r->e)) < POINTER_HEADS)
        r->phase = POINTER_PACK;
    else
        r->phase++;
}

rd_status vision_pointer_step(struct vision_pointer_run *r, uint64_t n_flops)
{
    const struct vision_encoder *e = r->e;
    uint64_t left = n_flops ? n_flops : VISION_STEP_FLOPS * (e->stage ? DEVICE_STEP : 1);
    rd_status st = RD_OK;

    while (r->phase != POINTER_DONE) {
        const uint64_t some = u64_max(u64_min(left / row_flops(r), r->block), u32_min(16, r->block));
        const uint32_t n = r->phase == POINTER_PACK ? r->n : u32_min((uint32_t)some, r->n - r->row);
        const uint64_t cost = n * row_flops(r);

        if ((st = do_block(r, n)) != RD_OK) return st;
        if (model_file_broken(e->g)) return RD_E_DEVICE;
        move_on(r, n);
        if (cost >= left) break;
        left -= cost;
    }
    if (e->stage) st = e->ops->memory.sync(e->be);
    return st != RD_OK ? st : r->phase == POINTER_DONE ? RD_OK : RD_E_AGAIN;
}

rd_status vision_pointer_scores(struct vision_pointer_run *r, const float *state, float *scores)
{
    const struct vision_encoder *e = r->e;
    const struct vit_pointer *p = &e->pointer;
    const uint32_t d = e->text_hidden;
    const float *dec = NULL;
    float most = -INFINITY;
    double sum = 0;
    rd_status st;

    assert(r->phase == POINTER_DONE);
    memcpy(vision_room(r->e, r->norm, 0), state, d * sizeof(float));
    st = vision_put(r->e, r->norm, 0, d);
    if (st == RD_OK) st = do_mlp(r, &p->dec1, &p->dec1_b, &p->dec2, &p->dec2_b, 1);
    if (st == RD_OK) st = vision_get(r->e, r->delta, d, &dec);
    if (st != RD_OK) return st;
    for (uint32_t i = 0; i < r->n; i++) {
        double dot = 0;

        for (uint32_t k = 0; k < d; k++) dot += (double)dec[k] * (double)r->enc[(size_t)i * d + k];
        scores[i] = (float)(dot / sqrt((double)d));
        most = scores[i] > most ? scores[i] : most;
    }
    for (uint32_t i = 0; i < r->n; i++) sum += (double)(scores[i] = expf(scores[i] - most));
    for (uint32_t i = 0; i < r->n; i++) scores[i] = (float)((double)scores[i] / sum);
    return isfinite(sum) ? RD_OK : RD_E_MODEL_OUTPUT;
}
