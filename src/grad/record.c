/* grad/record.c - the table of ops: each is written down, then the backend below does it. */
#include "grad/record.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "grad/tape.h"

/* ---- life, memory, weights, pages ---- */

static void destroy(struct backend *be)
{
    if (!be) return;
    tape_clear(be);
    be->dev->destroy(be->device);
    mem_free(be->pairs);
    mem_free(be->steps);
    mem_free(be->segments);
    mem_free(be->row_of);
    be->ops->life.destroy(be->inner);
    mem_free(be);
}

static void describe(const struct backend *be, char *buf, size_t n)
{
    be->ops->life.describe(be->inner, buf, n);
}
static rd_status mem_take(struct backend *be, uint64_t n, struct buffer **out)
{
    return be->ops->memory.alloc(be->inner, n, out);
}
static void mem_release(struct backend *be, struct buffer *b)
{
    be->ops->memory.free(be->inner, b);
}
static rd_status mem_read(struct backend *be, void *to, struct span from, uint64_t n)
{
    return be->ops->memory.read(be->inner, to, from, n);
}
static rd_status mem_write(struct backend *be, struct span to, const void *from, uint64_t n)
{
    return be->ops->memory.write(be->inner, to, from, n);
}
static rd_status mem_sync(struct backend *be)
{
    return be->ops->memory.sync(be->inner);
}

static rd_status load(struct backend *be, const struct host_tensor *t, enum weight_role role, struct weight *out,
                      struct rd_error *err)
{
    rd_status st = be->ops->weights.load(be->inner, t, role, out, err);

    if (st != RD_OK || role != WEIGHT_MATRIX || !be->dev->loaded) return st;
    st = be->dev->loaded(be->device, t, out);
    if (st == RD_OK) return st;
    be->ops->weights.unload(be->inner, out);
    return error_set(err, st, "%s: out of memory", t->name);
}

static void unload(struct backend *be, struct weight *w)
{
    if (w->data && be->dev->unloaded) be->dev->unloaded(be->device, w);
    be->ops->weights.unload(be->inner, w);
}

static bool takes(const struct backend *be, enum dtype t)
{
    return be->ops->weights.takes(be->inner, t);
}
static rd_status done(struct backend *be, struct rd_error *err)
{
    return be->ops->weights.done(be->inner, err);
}
static uint64_t mem_left(struct backend *be)
{
    return be->ops->memory.free_bytes(be->inner);
}
static bool is_dead(const struct backend *be)
{
    return be->ops->life.is_dead(be->inner);
}

static rd_status pages_create(struct backend *be, const struct kv_layout *l, uint32_t n, struct kv_storage *out)
{
    return be->ops->pages.create(be->inner, l, n, out);
}
static void pages_destroy(struct backend *be, struct kv_storage *kv)
{
    be->ops->pages.destroy(be->inner, kv);
}
static rd_status pages_copy(struct backend *be, struct kv_storage *kv, kv_page to, kv_page from, uint32_t n)
{
    return be->ops->pages.copy_rows(be->inner, kv, to, from, n);
}
static rd_status page_read(struct backend *be, const struct kv_storage *kv, void *to, kv_page from)
{
    return be->ops->pages.read(be->inner, kv, to, from);
}
static rd_status page_write(struct backend *be, const struct kv_storage *kv, kv_page to, const void *from)
{
    return be->ops->pages.write(be->inner, kv, to, from);
}

/* ---- writing down ---- */

/* The step of this op: a new one, or the one that is replayed. NULL: no memory. */
static struct step *step_of(struct backend *be, enum step_kind kind)
{
    if (be->replaying) {
        assert(be->steps[be->at].kind == kind);
        return &be->steps[be->at];
    }
    if (!mem_grow((void **)&be->steps, &be->cap_steps, be->n_steps + 1, sizeof(*be->steps))) return NULL;
    be->steps[be->n_steps] = (struct step){.kind = kind};
    return &be->steps[be->n_steps++];
}

static bool copy_into(struct backend *be, const void **p, size_t n)
{
    if (!*p || n == 0) return true;
    *p = arena_memdup(&be->arena, *p, n);
    return *p != NULL;
}
#define COPY(be, pointer, n) copy_into(be, (const void **)&(pointer), (n) * sizeof(*(pointer)))

/* Whether the ops now keep what their gradients read. */
static bool keeps(const struct backend *be)
{
    return be->replaying || (be->n_segments > 0 && !be->segments[be->n_segments - 1].recomputed);
}

static bool keep_as(struct backend *be, struct step *s, int which, struct span at, uint64_t n, enum dtype type)
{
    if (!keeps(be)) return true;
    s->kept[which] = tape_keep(be, at, n, type);
    return s->kept[which] != NULL;
}

static bool keep(struct backend *be, struct step *s, int which, struct span at, uint64_t n)
{
    return keep_as(be, s, which, at, n, be->dev->kept_type);
}

/* Every second norm begins a layer. */
static bool begin_segment(struct backend *be, const struct residual_norm_args *a)
{
    struct segment seg = {.step = (uint32_t)be->n_steps};
    uint64_t n = (uint64_t)a->n_rows * a->width;

    if (be->replaying || be->n_norms++ % 2 != 0) return true;
    if (!mem_grow((void **)&be->segments, &be->cap_segments, be->n_segments + 1, sizeof(seg))) return false;
    seg.recomputed = be->n_segments < be->pass.n_recomputed;
    if (seg.recomputed) {
        seg.x = tape_keep(be, a->x, n, DTYPE_F32);
        if (!span_is_none(a->delta)) seg.delta = tape_keep(be, a->delta, n, DTYPE_F32);
    }
    be->segments[be->n_segments++] = seg;
    return !seg.recomputed || (seg.x && (seg.delta || span_is_none(a->delta)));
}

static rd_status embed(struct backend *be, const struct weight *w, uint32_t n, const int32_t *tokens, float scale,
                       struct span out)
{
    if (be->recording) {
        if (!step_of(be, STEP_EMBED)) return RD_E_NOMEM;
        be->n_rows = n;
        tape_wrote(be, out);
    }
    return be->ops->op.embed(be->inner, w, n, tokens, scale, out);
}

static rd_status residual_norm(struct backend *be, const struct residual_norm_args *a)
{
    uint64_t n = (uint64_t)a->n_rows * a->width;
    struct residual_norm_args plain = *a;
    struct step *s;
    rd_status st;

    if (!be->recording) return be->ops->op.residual_norm(be->inner, a);
    if (!begin_segment(be, a) || !(s = step_of(be, STEP_NORM))) return RD_E_NOMEM;
    plain.once = false;
    s->u.norm = plain;
    if (a->delta_norm && !keep(be, s, 1, a->delta, n)) return RD_E_NOMEM;
    st = be->ops->op.residual_norm(be->inner, &plain);
    tape_wrote(be, a->x);
    tape_wrote(be, a->out);
    return st != RD_OK || keep_as(be, s, 0, a->x, n, DTYPE_F32) ? st : RD_E_NOMEM;
}

static rd_status linear(struct backend *be, const struct linear_args *a)
{
    struct linear_args plain = *a;
    struct step *s;

    if (!be->recording) return be->ops->op.linear(be->inner, a);
    if (!(s = step_of(be, STEP_LINEAR))) return RD_E_NOMEM;
    plain.once = false;
    plain.soon = NULL; /* it does not outlive the call */
    s->u.linear = plain;
    for (uint32_t i = 0; i < a->n_outs; i++) tape_wrote(be, a->outs[i].out);
    return be->ops->op.linear(be->inner, &plain);
}

static bool copy_terms(struct backend *be, struct low_rank_args *a)
{
    struct low_rank_term *terms;

    if (!COPY(be, a->terms, a->n_terms)) return false;
    terms = (struct low_rank_term *)(uintptr_t)a->terms;
    for (uint32_t i = 0; i < a->n_terms; i++)
        if (!COPY(be, terms[i].rows, terms[i].n_rows)) return false;
    return true;
}

/* Floats of t of the first n terms. */
static uint64_t t_floats(const struct low_rank_args *a, uint32_t n)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++) sum += (uint64_t)a->terms[i].n_rows * a->terms[i].a->n_out;
    return sum;
}

/* Term by term, each of its own x. */
static rd_status low_rank_dropped(struct backend *be, const struct low_rank_args *a)
{
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < a->n_terms && st == RD_OK; i++) {
        const struct grad_mask mask = tape_mask(be, &a->terms[i]);
        struct low_rank_args one = *a;

        one.terms = &a->terms[i];
        one.n_terms = 1;
        one.t = span_add(a->t, t_floats(a, i));
        if (mask.dropout > 0)
            st = be->dev->drop(be->device, &mask, a->x, a->terms[i].n_rows, a->terms[i].a->n_in, &one.x);
        if (st == RD_OK) st = be->ops->op.low_rank(be->inner, &one);
    }
    return st;
}

static rd_status low_rank(struct backend *be, const struct low_rank_args *a)
{
    struct step *s;
    rd_status st;
    uint64_t n;

    if (!be->recording) return be->ops->op.low_rank(be->inner, a);
    if (a->n_terms == 0) return RD_OK;
    n = (uint64_t)a->terms[0].n_rows * a->x_stride;
    for (uint32_t i = 0; i < a->n_terms; i++) {
        const struct low_rank_term *t = &a->terms[i];

        if (t->a->dtype != DTYPE_F32 || t->b->dtype != DTYPE_F32 || t->a->n_in != a->x_stride ||
            t->n_rows != a->terms[0].n_rows || t->rows[t->n_rows - 1] != t->n_rows - 1)
            return RD_E_UNSUPPORTED;
    }
    if (!(s = step_of(be, STEP_LOW_RANK))) return RD_E_NOMEM;
    if (!be->replaying) {
        s->u.low_rank = *a;
        if (!copy_terms(be, &s->u.low_rank)) return RD_E_NOMEM;
        if (be->first_low_rank == UINT32_MAX) be->first_low_rank = (uint32_t)be->n_steps - 1;
    }
    if (!keep(be, s, 0, a->x, n)) return RD_E_NOMEM;
    for (uint32_t i = 0; i < a->n_terms; i++) tape_wrote(be, a->terms[i].out);
    st = be->pass.dropout > 0 ? low_rank_dropped(be, a) : be->ops->op.low_rank(be->inner, a);
    tape_wrote(be, a->t);
    if (st != RD_OK || !be->dev->reads_t) return st;
    return keep_as(be, s, 1, a->t, t_floats(a, a->n_terms), DTYPE_F32) ? RD_OK : RD_E_NOMEM;
}

/* Which row wrote each slot of the pages. */
static bool note_rows(struct backend *be, const struct qkv_args *a)
{
    uint32_t per_page = a->kv->layout.page_tokens;

    if (!mem_grow((void **)&be->row_of, &be->cap_row_of, (size_t)a->kv->n_pages * per_page, sizeof(*be->row_of)))
        return false;
    for (uint32_t i = 0; i < a->n_rows; i++) be->row_of[a->row_page[i] * per_page + a->row_slot[i]] = i;
    return true;
}

static rd_status qkv_rope_write(struct backend *be, const struct qkv_args *a)
{
    struct qkv_args plain = *a;
    struct step *s;
    rd_status st;

    if (!be->recording) return be->ops->op.qkv_rope_write(be->inner, a);
    if (!(s = step_of(be, STEP_QKV)) || !note_rows(be, a)) return RD_E_NOMEM;
    plain.once = false;
    if (!be->replaying) {
        s->u.qkv = plain;
        if (!COPY(be, s->u.qkv.positions, a->n_rows) || !COPY(be, s->u.qkv.row_page, a->n_rows) ||
            !COPY(be, s->u.qkv.row_slot, a->n_rows))
            return RD_E_NOMEM;
    }
    if (a->q_norm && !keep(be, s, 0, a->q, (uint64_t)a->n_rows * a->q_stride)) return RD_E_NOMEM;
    if (a->k_norm && !keep(be, s, 1, a->k, (uint64_t)a->n_rows * a->k_stride)) return RD_E_NOMEM;
    st = be->ops->op.qkv_rope_write(be->inner, &plain);
    tape_wrote(be, a->q);
    tape_wrote(be, a->k);
    return st;
}

static bool is_plain(enum dtype t)
{
    return t == DTYPE_F32 || t == DTYPE_F16 || t == DTYPE_BF16;
}

static rd_status attention(struct backend *be, const struct attention_args *a)
{
    enum dtype type;
    struct step *s;

    if (!be->recording) return be->ops->op.attention(be->inner, a);
    if (!is_plain(a->kv->layout.dtype_k) || !is_plain(a->kv->layout.dtype_v)) return RD_E_UNSUPPORTED;
    if (!(s = step_of(be, STEP_ATTENTION))) return RD_E_NOMEM;
    if (!be->replaying) {
        s->u.attention = *a;
        if (!COPY(be, s->u.attention.runs, a->n_runs)) return RD_E_NOMEM;
    }
    type = be->dev->kept_type == DTYPE_F32 ? DTYPE_F32 : a->kv->layout.dtype_k;
    if (!keep_as(be, s, 0, a->q, (uint64_t)a->n_rows * a->q_stride, type)) return RD_E_NOMEM;
    tape_wrote(be, a->out);
    return be->ops->op.attention(be->inner, a);
}

static rd_status glu(struct backend *be, enum activation act, uint32_t n_rows, uint32_t width, struct span gate,
                     struct span up, struct span out)
{
    uint64_t n = (uint64_t)n_rows * width;
    struct step *s;

    if (!be->recording) return be->ops->op.glu(be->inner, act, n_rows, width, gate, up, out);
    if (!(s = step_of(be, STEP_GLU))) return RD_E_NOMEM;
    s->u.glu = (struct glu_step){act, n_rows, width, gate, up, out};
    if (!keep(be, s, 0, gate, n) || !keep(be, s, 1, up, n)) return RD_E_NOMEM;
    tape_wrote(be, out);
    return be->ops->op.glu(be->inner, act, n_rows, width, gate, up, out);
}

static rd_status gather(struct backend *be, uint32_t n, uint32_t width, struct span x, const uint32_t *rows,
                        struct span out)
{
    struct step *s;

    if (be->recording) {
        if (!(s = step_of(be, STEP_GATHER))) return RD_E_NOMEM;
        if (!be->replaying) {
            s->u.gather = (struct gather_step){n, width, x, out, rows};
            if (!COPY(be, s->u.gather.rows, n)) return RD_E_NOMEM;
        }
        tape_wrote(be, out);
    }
    return be->ops->op.gather(be->inner, n, width, x, rows, out);
}

/* Of logits: these are not on the tape. */
static rd_status softcap(struct backend *be, struct span x, uint64_t n, float cap)
{
    return be->recording ? RD_E_UNSUPPORTED : be->ops->op.softcap(be->inner, x, n, cap);
}

void record_ops(const struct backend_ops *inner, struct backend_ops *out)
{
    *out = (struct backend_ops){
        .name = inner->name,
        .traits = {.shares_memory = inner->traits.shares_memory,
                   .slow_prompts = inner->traits.slow_prompts,
                   .same_everywhere = inner->traits.same_everywhere,
                   .gives_best = inner->traits.gives_best,
                   .weight_types = inner->traits.weight_types,
                   .kv_types = inner->traits.kv_types},
        .life = {.destroy = destroy, .is_dead = inner->life.is_dead ? is_dead : NULL, .describe = describe},
        .memory = {.free_bytes = inner->memory.free_bytes ? mem_left : NULL,
                   .alloc = mem_take,
                   .free = mem_release,
                   .read = mem_read,
                   .write = mem_write,
                   .sync = mem_sync},
        .weights = {.takes = inner->weights.takes ? takes : NULL,
                    .load = load,
                    .done = inner->weights.done ? done : NULL,
                    .unload = unload},
        .pages = {.create = pages_create,
                  .destroy = pages_destroy,
                  .copy_rows = pages_copy,
                  .read = page_read,
                  .write = page_write},
        .op = {.embed = embed,
               .residual_norm = residual_norm,
               .linear = linear,
               .qkv_rope_write = qkv_rope_write,
               .attention = attention,
               .glu = glu,
               .low_rank = low_rank,
               .gather = gather,
               .softcap = softcap},
    };
}

rd_status record_create(const struct backend_options *o, const struct backend_ops *ops, struct backend *inner,
                        struct backend **out, struct rd_error *err)
{
    struct backend *be = mem_zalloc(1, sizeof(*be));
    rd_status st = be ? RD_OK : error_set(err, RD_E_NOMEM, "out of memory");

    if (be) {
        *be = (struct backend){
            .ops = ops, .inner = inner, .dev = grad_device_of(ops->name), .first_low_rank = UINT32_MAX};
        st = be->dev ? be->dev->create(o, inner, &be->device, err)
                     : error_set(err, RD_E_UNSUPPORTED, "device %s: training runs on cpu and cuda alone", ops->name);
    }
    if (st == RD_OK) {
        *out = be;
        return RD_OK;
    }
    ops->life.destroy(inner);
    mem_free(be);
    return st;
}

/* ---- going back ---- */

rd_status record_pair(struct backend *be, const struct record_pair *p)
{
    if (!mem_grow((void **)&be->pairs, &be->cap_pairs, be->n_pairs + 1, sizeof(*p))) return RD_E_NOMEM;
    be->pairs[be->n_pairs++] = *p;
    return RD_OK;
}

rd_status record_begin(struct backend *be, const struct record_pass *p)
{
    const rd_status st = be->ops->memory.sync(be->inner); /* nothing reads what the last pass wrote down */

    if (st != RD_OK) return st;
    tape_clear(be);
    be->dev->trim(be->device);
    be->pass = *p;
    be->recording = true;
    be->most_bytes = be->n_bytes;
    return RD_OK;
}

void record_pause(struct backend *be)
{
    be->recording = false;
}

void record_end(struct backend *be)
{
    be->recording = be->replaying = false;
    (void)be->ops->memory.sync(be->inner); /* an error stays, and is the next one's */
    tape_clear(be);
}

uint64_t record_bytes(const struct backend *be, uint64_t *most)
{
    *most = be->most_bytes;
    return be->n_bytes;
}

const struct grad_device_ops *record_device(struct backend *be, struct grad_device **out)
{
    *out = be->device;
    return be->dev;
}

static rd_status replay_step(struct backend *be, const struct step *s)
{
    switch (s->kind) {
    case STEP_NORM:
        return residual_norm(be, &s->u.norm);
    case STEP_LINEAR:
        return linear(be, &s->u.linear);
    case STEP_LOW_RANK:
        return low_rank(be, &s->u.low_rank);
    case STEP_QKV:
        return qkv_rope_write(be, &s->u.qkv);
    case STEP_ATTENTION:
        return attention(be, &s->u.attention);
    case STEP_GLU:
        return glu(be, s->u.glu.act, s->u.glu.n_rows, s->u.glu.width, s->u.glu.gate, s->u.glu.up, s->u.glu.out);
    case STEP_GATHER:
        return gather(be, s->u.gather.n, s->u.gather.width, s->u.gather.x, s->u.gather.rows, s->u.gather.out);
    case STEP_EMBED:
        break;
    }
    return RD_OK;
}

/* The segment's ops once more, from what lives at its beginning; they keep what they would have. */
static rd_status replay(struct backend *be, const struct segment *seg, uint32_t end)
{
    const struct residual_norm_args *a = &be->steps[seg->step].u.norm;
    rd_status st = be->dev->restore(be->device, a->x, seg->x->x, seg->x->n);

    if (st == RD_OK && seg->delta) st = be->dev->restore(be->device, a->delta, seg->delta->x, seg->delta->n);
    tape_forget(be);
    be->recording = be->replaying = true;
    for (be->at = seg->step; be->at < end && st == RD_OK; be->at++) st = replay_step(be, &be->steps[be->at]);
    be->recording = be->replaying = false;
    tape_forget(be);
    return st;
}

rd_status record_backward(struct backend *be, float *d_rows, uint32_t n_rows, uint32_t width)
{
    uint32_t i = (uint32_t)be->n_steps, first = be->first_low_rank;
    rd_status st = RD_OK;

    be->recording = false;
    tape_forget(be);
    assert(i > 0 && be->steps[i - 1].kind == STEP_NORM);
    if (!tape_put(be, be->steps[i - 1].u.norm.out, (uint64_t)n_rows * width, d_rows)) st = RD_E_NOMEM;
    for (size_t k = be->n_segments; st == RD_OK && k-- > 0;) {
        const struct segment *seg = &be->segments[k];

        if (seg->recomputed && i > first) st = replay(be, seg, i);
        while (i > seg->step && st == RD_OK) {
            i--;
            if (i >= first) st = step_back(be, i);
            for (int n = 0; n < 2; n++) {
                tape_drop(be, be->steps[i].kept[n]);
                be->steps[i].kept[n] = NULL;
            }
        }
    }
    record_end(be);
    return st;
}
