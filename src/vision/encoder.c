/* vision/encoder.c - walks an image through an encoder, block by block: a run's memory and tables, its phases, its steps. */
#include "vision/encoder.h"
#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/os_machine.h"
#include "base/thread.h"
#include "vision/encoder_inside.h"

#define SPARE_BYTES  (1ull << 30) /* of a device's memory are kept, at most */
#define DEVICE_LEAST 192u         /* rows: tiles of products and attention on devices are as large */
#define DEVICE_STEP  96u          /* times VISION_STEP_FLOPS on a device */
#define HOST_LEAST   48u          /* rows: fewer are not worth reading a layer's weights for */
#define STAGE_FLOPS  160000u /* on a device: a number that the host copies takes about as long as so many operations */
#define MANY_CORES   8u      /* these end together with more tiles than a block of rows has; their caches hold two */
#define PACK_FLOPS   32u     /* a number that is packed takes about as long as so many operations */

static uint32_t patches_of(const struct vision_image *v)
{
    uint64_t n = (uint64_t)v->t * v->h;

    return n <= VISION_PATCHES && n * v->w <= VISION_PATCHES ? (uint32_t)(n * v->w) : 0;
}

static uint32_t most_positions(const struct vision_image *v)
{
    return u32_max(v->h, v->w);
}

/* Floats of the run's parts, in this order: the backend's, then the host's; the sums of both in the last. */
struct sizes {
    uint64_t x, qkv, norm, delta, attn, up, gate, pack, cosines, sines, rows, angles, units, means, frames, windows,
        frame_blocks, window_blocks, device, host;
};

/* Rows of a block, in equal parts. */
static uint32_t rows_of_block(const struct vision_encoder *e, uint64_t n)
{
    const uint64_t parts = (n + DEVICE_ROWS - 1) / DEVICE_ROWS;

    if (e->ops->traits.shares_memory || n == 0) return thread_n_cores() < MANY_CORES ? BLOCK_ROWS : 2 * BLOCK_ROWS;
    return (uint32_t)(((n + parts - 1) / parts + 63) / 64 * 64);
}

/* Blocks of keys of all groups: a frame's, or where there are windows the more of both. */
static uint64_t most_blocks(const struct vision_encoder *e, const struct vision_image *v)
{
    const uint64_t side = e->window, h = v->h, w = v->w;
    const uint64_t frames = (h * w + ATTEND_BLOCK - 1) / ATTEND_BLOCK;
    const uint64_t windows =
        side ? ((h + side - 1) / side) * ((w + side - 1) / side) * ((side * side + ATTEND_BLOCK - 1) / ATTEND_BLOCK)
             : 0;

    return v->t * u64_max(frames, windows);
}

static struct sizes sizes_of(const struct vision_encoder *e, const struct vision_image *v)
{
    const uint64_t n = patches_of(v), h = e->hidden, unit = (uint64_t)v->merge * v->merge;
    /* where whole lines are pooled a block is those */
    const uint64_t block = u64_max(rows_of_block(e, n), e->family->pools_lines ? (uint64_t)v->w * e->merge : 0);
    struct sizes s = {.x = n * h,
                      .qkv = n * 3 * h,
                      /* also: patches in another order; merged rows, h * unit floats of block / unit rows */
                      .norm = block * u64_max(h, e->n_patch_values),
                      .delta = block * u64_max(h, e->text_hidden),
                      .attn = n * h,
                      .up = block * u64_max(e->ffn, h),
                      .gate = e->family->gated ? block * e->ffn : 0,
                      .pack = attend_packed_floats(e->head_dim, vision_most_heads(e), most_blocks(e, v)),
                      .cosines = e->family->turns ? n * e->head_dim / 2 : 0,
                      .sines = e->family->turns ? n * e->head_dim / 2 : 0,
                      .rows = (uint64_t)v->n_rows * e->traits.n_floats,
                      .angles = e->family->turns ? (uint64_t)most_positions(v) * e->head_dim / 2 : 0,
                      .units = n / u64_max(unit, 1),
                      .means = e->family->pools_lines ? n : 0,
                      .frames = v->t,
                      .windows = n,
                      .frame_blocks = (uint64_t)v->t + 1,
                      .window_blocks = n + 1};
    uint64_t *part = &s.x;

    for (; part < &s.device; part++) { /* each begins on a cache line */
        *part = (*part + 15) / 16 * 16;
        *(part < &s.rows ? &s.device : &s.host) += *part;
    }
    return s;
}

uint64_t vision_run_bytes(const struct vision_encoder *e, const struct vision_image *image)
{
    const struct sizes s = sizes_of(e, image);

    return (s.device + s.host) * sizeof(float);
}

/* Whether grid, rows and values are such as this encoder's processor makes. */
static bool fits(const struct vision_encoder *e, const struct vision_image *v)
{
    const uint64_t n = patches_of(v);

    if (n == 0 || v->merge != e->merge || v->h % v->merge || v->w % v->merge || !v->values) return false;
    if (v->n_rows != (uint64_t)v->t * (v->h / v->merge) * (v->w / v->merge)) return false;
    if (e->family->pools_lines && (v->t != 1 || v->h != e->side || v->w != e->side)) return false;
    return v->n_values == n * e->n_patch_values;
}

/* Cosines, then sines, of all lines and columns: [2][most_positions][head_dim / 4]. */
static void fill_table(struct vision_run *r)
{
    const uint32_t half = r->e->head_dim / 2, quarter = half / 2, n = most_positions(r->image);
    float *cosines = r->angles, *sines = r->angles + (size_t)n * quarter;
    float inv_freq[LIMIT_HEAD_DIM / 4 + 1];

    for (uint32_t i = 0; i < quarter; i++) inv_freq[i] = 1.0f / powf(10000.0f, (float)(2 * i) / (float)half);
    for (uint32_t at = 0; at < n; at++)
        for (uint32_t i = 0; i < quarter; i++, cosines++, sines++) os_sincosf((float)at * inv_freq[i], sines, cosines);
}

/* Pairs of a head turn by the patch's line, then by its column. */
void vision_copy_angles(const struct vision_run *r, uint32_t row, uint32_t n, float *cosines, float *sines)
{
    const struct vision_image *v = r->image;
    const uint32_t half = r->e->head_dim / 2, quarter = half / 2, m = v->merge, unit = m * m;
    const float *const tables[2] = {r->angles, r->angles + (size_t)most_positions(v) * quarter};
    float *to[2] = {cosines, sines};

    for (const uint32_t end = row + n; row < end; row++) {
        const uint32_t at = r->unit_of ? r->unit_of[row / unit] : row / unit, in = row % unit;
        const uint32_t in_frame = at % (v->h / m * (v->w / m));
        const uint32_t line = in_frame / (v->w / m) * m + in / m, column = in_frame % (v->w / m) * m + in % m;

        for (uint32_t k = 0; k < 2; k++) {
            memcpy(to[k], tables[k] + (size_t)line * quarter, quarter * sizeof(float));
            memcpy(to[k] + quarter, tables[k] + (size_t)column * quarter, quarter * sizeof(float));
            to[k] += half;
        }
    }
}

/* Units in the order of windows, and where these end. */
static void fill_windows(struct vision_run *r)
{
    const struct vision_image *v = r->image;
    const uint32_t m = v->merge, h = v->h / m, w = v->w / m, side = r->e->window / m;
    uint32_t n = 0;

    for (uint32_t t = 0; t < v->t; t++)
        for (uint32_t y0 = 0; y0 < h; y0 += side)
            for (uint32_t x0 = 0; x0 < w; x0 += side) {
                for (uint32_t y = y0; y < u32_min(y0 + side, h); y++)
                    for (uint32_t x = x0; x < u32_min(x0 + side, w); x++) r->unit_of[n++] = (t * h + y) * w + x;
                r->windows[r->n_windows++] = n * m * m;
            }
}

static void count_blocks(const uint32_t *ends, uint32_t n, uint32_t *blocks)
{
    blocks[0] = 0;
    for (uint32_t g = 0; g < n; g++)
        blocks[g + 1] = blocks[g] + u32_ceil_div(ends[g] - (g ? ends[g - 1] : 0), ATTEND_BLOCK);
}

/* Taking a device's memory, and giving it back, takes milliseconds, in which it does nothing else: the last run's is kept. */
static rd_status take_buffer(struct vision_run *r, uint64_t n_floats)
{
    struct vision_encoder *e = r->e;
    rd_status st = RD_OK;

    if (e->spare && e->spare_floats >= n_floats) {
        r->buffer = e->spare;
        r->buffer_floats = e->spare_floats;
    } else {
        if (e->spare) e->ops->memory.free(e->be, e->spare);
        st = e->ops->memory.alloc(e->be, n_floats * sizeof(float), &r->buffer);
        r->buffer_floats = n_floats;
    }
    e->spare = NULL;
    return st;
}

static void give_buffer(struct vision_run *r)
{
    struct vision_encoder *e = r->e;

    if (!e->spare && r->buffer_floats * sizeof(float) <= SPARE_BYTES) {
        e->spare = r->buffer;
        e->spare_floats = r->buffer_floats;
    } else
        e->ops->memory.free(e->be, r->buffer);
}

/* The run's memory: on the host, and where the backend's is not that, on the device. */
static rd_status take_memory(struct vision_run *r, const struct sizes *s)
{
    const bool shares = r->e->ops->traits.shares_memory;

    r->n_bytes = (s->host + (shares ? s->device : 0)) * sizeof(float);
    r->memory = mem_map((size_t)r->n_bytes);
    if (!r->memory) return RD_E_NOMEM;
    return shares ? RD_OK : take_buffer(r, s->device);
}

struct span vision_take_part(struct span *at, uint64_t n)
{
    const struct span part = *at;

    *at = span_add(*at, n);
    return part;
}

rd_status vision_run_begin(struct vision_encoder *e, struct vision_image *image, struct vision_run **out)
{
    const struct sizes s = sizes_of(e, image);
    struct vision_run *r;
    struct span part;
    float *at;
    rd_status st;

    if (!fits(e, image)) return RD_E_INVALID;
    r = mem_zalloc(1, sizeof(*r));
    if (!r) return RD_E_NOMEM;
    r->e = e;
    r->n = patches_of(image);
    r->block = rows_of_block(e, r->n);
    st = take_memory(r, &s);
    if (st != RD_OK) {
        if (r->memory) mem_unmap(r->memory, (size_t)r->n_bytes);
        mem_free(r);
        return st;
    }
    r->image = vision_image_ref(image);
    part = r->buffer ? span_of(r->buffer, 0) : span_of_host(r->memory);
    r->x = vision_take_part(&part, s.x);
    r->qkv = vision_take_part(&part, s.qkv);
    r->norm = vision_take_part(&part, s.norm);
    r->delta = vision_take_part(&part, s.delta);
    r->attn = vision_take_part(&part, s.attn);
    r->up = vision_take_part(&part, s.up);
    r->gate = vision_take_part(&part, s.gate);
    r->pack = vision_take_part(&part, s.pack);
    r->cosines = vision_take_part(&part, s.cosines);
    r->sines = vision_take_part(&part, s.sines);
    at = r->memory + (r->buffer ? 0 : s.device);
    r->rows = at, at += s.rows;
    r->angles = at, at += s.angles;
    r->unit_of = e->window ? (uint32_t *)(void *)at : NULL, at += s.units;
    r->means = (uint32_t *)(void *)at, at += s.means;
    r->frames = (uint32_t *)(void *)at, at += s.frames;
    r->windows = (uint32_t *)(void *)at, at += s.windows;
    r->frame_blocks = (uint32_t *)(void *)at, at += s.frame_blocks;
    r->window_blocks = (uint32_t *)(void *)at;
    for (r->n_frames = 0; r->n_frames < image->t; r->n_frames++)
        r->frames[r->n_frames] = (r->n_frames + 1) * image->h * image->w;
    if (e->family->turns) fill_table(r);
    if (e->window) fill_windows(r);
    count_blocks(r->frames, r->n_frames, r->frame_blocks);
    if (e->window) count_blocks(r->windows, r->n_windows, r->window_blocks);
    *out = r;
    return RD_OK;
}

void vision_run_end(struct vision_run *r)
{
    if (!r) return;
    if (r->buffer) give_buffer(r);
    mem_unmap(r->memory, (size_t)r->n_bytes);
    vision_image_unref(r->image);
    mem_free(r);
}

const float *vision_run_rows(const struct vision_run *r)
{
    assert(r->phase == VIT_DONE);
    return r->rows;
}

double vision_run_done(const struct vision_run *r)
{
    const double part = 1.0 / r->e->n_layers, heads = r->e->n_heads;
    const double some = vision_some_heads(r);
    double in_layer = 0;

    if (r->phase == VIT_PATCHES) return 0;
    if (r->phase >= VIT_TAIL) return 1;
    if (r->phase == VIT_ATTEND) in_layer = 0.2 + 0.4 * (r->head + some * r->row / r->n) / heads;
    if (r->phase > VIT_ATTEND) in_layer = 0.6 + 0.4 * (double)r->row / r->n;
    return part * (r->layer + in_layer);
}

/* ---- phases ---- */

/* Floating-point operations of a row of the present phase. */
static uint64_t row_flops(const struct vision_run *r)
{
    const struct vision_encoder *e = r->e;
    const uint64_t copied = e->stage ? STAGE_FLOPS : 0;
    const uint64_t h = e->hidden, keys = e->window && !e->full[r->layer] ? (uint64_t)e->window * e->window
                                                                         : (uint64_t)r->image->h * r->image->w;

    switch (r->phase) {
    case VIT_PATCHES:
        return 2 * h * e->n_patch_values + copied * e->n_patch_values;
    case VIT_QKV:
        return 6 * h * h;
    case VIT_ATTEND:
        if (!r->packed) return PACK_FLOPS * e->head_dim * vision_some_heads(r);
        return 4 * (uint64_t)e->head_dim * keys * vision_some_heads(r);
    case VIT_MIX:
        return 2 * h * h + (e->family->gated ? 6 : 4) * h * e->ffn;
    case VIT_DEEP:
    case VIT_TAIL:
        return 2 * h * h * e->merge * e->merge + 2 * h * e->text_hidden +
               copied * e->text_hidden / (e->merge * e->merge);
    case VIT_DONE:
        break;
    }
    return 1;
}

/* Rows of the next block: whole units, where they are merged whole lines. */
static uint32_t block_rows(const struct vision_run *r, uint64_t n_flops)
{
    const struct vision_encoder *e = r->e;
    const bool staged = e->stage && r->phase == VIT_PATCHES;
    const uint64_t most = r->phase == VIT_ATTEND ? r->n : staged ? u32_min(r->block, STAGE_ROWS) : r->block;
    uint64_t n = u64_min(n_flops / row_flops(r), most);
    uint32_t least = e->stage ? DEVICE_LEAST : n < 16 ? 8 : 16;

    /* a device does the rest at once, rather than little of it in another step */
    if (e->stage && n < most && n * 4 >= u64_min(most, r->n - r->row) * 3) n = most;
    if (r->phase == VIT_ATTEND && !r->packed) return r->n;
    if (r->phase >= VIT_DEEP) least = e->merge * e->merge;
    if (e->family->pools_lines && r->phase == VIT_TAIL) { /* its scratch: qkv's */
        least = r->image->w * e->merge;
        return e->stage ? u32_min(u32_max(STAGE_ROWS / least, 1) * least, r->n - r->row) : least;
    }
    if (e->stage && n >= u64_min(most, r->n - r->row)) return (uint32_t)u64_min(most, r->n - r->row);
    return u32_min(u32_max((uint32_t)n / least * least, least), r->n - r->row);
}

/* Whether what a step has left is for a few rows only, while there are more of them. */
static bool is_rest(const struct vision_run *r, uint64_t n_flops)
{
    const uint64_t n = n_flops / row_flops(r);

    return !r->e->stage && n < HOST_LEAST && n < r->n - r->row;
}

static bool is_deep(const struct vision_run *r)
{
    return r->deep < r->e->n_deep && r->e->deep[r->deep].layer == r->layer;
}

/* The layer's share of the result's memory is there when the rows come: a device computes meanwhile. */
static void touch_rows(const struct vision_run *r)
{
    const uint64_t n = (uint64_t)r->image->n_rows * r->e->traits.n_floats, n_layers = r->e->n_layers;
    const uint64_t from = n * r->layer / n_layers, to = n * (r->layer + 1) / n_layers;

    if (r->e->stage && r->deep == 0) memset(r->rows + from, 0, (size_t)(to - from) * sizeof(float));
}

/* After the last row of a phase. */
static void next_phase(struct vision_run *r)
{
    r->row = 0;
    switch (r->phase) {
    case VIT_PATCHES:
        r->phase = VIT_QKV;
        return;
    case VIT_QKV:
        r->phase = VIT_ATTEND;
        r->packed = r->filled;
        return;
    case VIT_ATTEND:
        r->phase = VIT_MIX;
        return;
    case VIT_MIX:
        if (is_deep(r)) {
            r->phase = VIT_DEEP;
            return;
        }
        break;
    case VIT_DEEP:
        r->deep++;
        break;
    case VIT_TAIL:
    case VIT_DONE:
        r->phase = VIT_DONE;
        return;
    }
    touch_rows(r);
    r->phase = ++r->layer < r->e->n_layers ? VIT_QKV : VIT_TAIL;
    if (r->phase == VIT_TAIL) r->layer = r->e->n_layers - 1;
}

static rd_status do_block(struct vision_run *r, uint32_t n)
{
    const struct vision_encoder *e = r->e;

    switch (r->phase) {
    case VIT_PATCHES:
        return e->family->patches(r, r->row, n);
    case VIT_QKV:
        return vision_qkv(r, r->row, n);
    case VIT_ATTEND:
        return vision_attend(r, r->row, n);
    case VIT_MIX:
        return vision_mix(r, r->row, n);
    case VIT_DEEP:
    case VIT_TAIL:
        return e->family->tail(r, r->row, n);
    case VIT_DONE:
        break;
    }
    return RD_E_INVALID;
}

/* After a block of n rows. */
static void move_on(struct vision_run *r, uint32_t n)
{
    if (r->phase == VIT_ATTEND && !r->packed) {
        r->packed = true;
        return;
    }
    r->row += n;
    if (r->row < r->n) return;
    r->packed = false;
    r->head += r->phase == VIT_ATTEND ? vision_some_heads(r) : 0;
    if (r->phase == VIT_ATTEND && r->head < r->e->n_heads) {
        r->row = 0;
        return;
    }
    r->head = 0;
    next_phase(r);
}

uint32_t vision_run_phase(const struct vision_run *r)
{
    static_assert(VIT_DONE + 1 == VISION_PHASES, "packing stands where the end does");
    return r->phase == VIT_ATTEND && !r->packed ? VIT_DONE : r->phase;
}

rd_status vision_run_step(struct vision_run *r, uint64_t n_flops, uint64_t *n_done)
{
    const struct vision_encoder *e = r->e;
    uint64_t left = n_flops ? n_flops : VISION_STEP_FLOPS * (e->stage ? DEVICE_STEP : 1), unasked;
    rd_status st = RD_OK;

    assert(r->phase != VIT_DONE);
    if (!n_done) n_done = &unasked;
    *n_done = 0;
    while (r->phase != VIT_DONE) {
        const uint32_t n = block_rows(r, left);
        const uint64_t cost = n * row_flops(r);

        st = do_block(r, n);
        if (st != RD_OK) return st;
        if (model_file_broken(e->g)) return RD_E_DEVICE;
        move_on(r, n);
        *n_done += cost;
        if (cost >= left || is_rest(r, left - cost)) break;
        left -= cost;
    }
    if (e->stage) st = e->ops->memory.sync(e->be); /* what a step takes is seen by who asked for it */
    return st != RD_OK ? st : r->phase == VIT_DONE ? RD_OK : RD_E_AGAIN;
}
