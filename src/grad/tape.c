/* grad/tape.c - what is kept, gradients by place, dropout. */
#include "grad/tape.h"
#include <assert.h>
#include <string.h>
#include "base/mem.h"
#include "base/philox.h"

struct kept *tape_keep(struct backend *be, struct span s, uint64_t n)
{
    struct kept *k = NULL;

    for (uint32_t i = 0; i < MAX_ADJOINTS; i++)
        if (be->held[i] && span_equal(be->now[i].at, s) && be->held[i]->n == n) {
            be->held[i]->refs++;
            return be->held[i];
        }
    k = mem_alloc(1, sizeof(*k));
    if (!k) return NULL;
    *k = (struct kept){1, n, float_pool_take(&be->floats, n)};
    if (!k->x || backend_cpu_ops.memory.read(be->inner, k->x, s, n * sizeof(float)) != RD_OK) {
        float_pool_give(&be->floats, k->x);
        mem_free(k);
        return NULL;
    }
    be->n_bytes += n * sizeof(float);
    if (be->n_bytes > be->most_bytes) be->most_bytes = be->n_bytes;
    tape_wrote(be, s);
    for (uint32_t i = 0; i < MAX_ADJOINTS; i++)
        if (!be->held[i]) {
            be->held[i] = k;
            be->now[i].at = s;
            k->refs++;
            break;
        }
    return k;
}

void tape_drop(struct backend *be, struct kept *k)
{
    if (!k || --k->refs > 0) return;
    be->n_bytes -= k->n * sizeof(float);
    float_pool_give(&be->floats, k->x);
    mem_free(k);
}

void tape_wrote(struct backend *be, struct span s)
{
    for (uint32_t i = 0; i < MAX_ADJOINTS; i++)
        if (be->held[i] && span_equal(be->now[i].at, s)) {
            tape_drop(be, be->held[i]);
            be->held[i] = NULL;
        }
}

void tape_forget(struct backend *be)
{
    for (uint32_t i = 0; i < MAX_ADJOINTS; i++) {
        tape_drop(be, be->held[i]);
        be->held[i] = NULL;
    }
}

static struct adjoint *find(struct backend *be, struct span s)
{
    for (uint32_t i = 0; i < MAX_ADJOINTS; i++)
        if (be->adjoints[i].g && span_equal(be->adjoints[i].at, s)) return &be->adjoints[i];
    return NULL;
}

bool tape_put(struct backend *be, struct span s, uint64_t n, float *g)
{
    assert(!find(be, s));
    for (uint32_t i = 0; g && i < MAX_ADJOINTS; i++)
        if (!be->adjoints[i].g) {
            be->adjoints[i] = (struct adjoint){s, n, g};
            return true;
        }
    float_pool_give(&be->floats, g);
    return false;
}

float *tape_adjoint(struct backend *be, struct span s, uint64_t n)
{
    struct adjoint *a = find(be, s);
    float *g;

    if (a) {
        assert(a->n == n);
        return a->g;
    }
    g = float_pool_take(&be->floats, n);
    if (g) memset(g, 0, n * sizeof(*g));
    return tape_put(be, s, n, g) ? g : NULL;
}

float *tape_find(struct backend *be, struct span s)
{
    struct adjoint *a = find(be, s);

    return a ? a->g : NULL;
}

float *tape_take(struct backend *be, struct span s)
{
    struct adjoint *a = find(be, s);
    float *g = a ? a->g : NULL;

    if (a) a->g = NULL;
    return g;
}

void tape_clear(struct backend *be)
{
    tape_forget(be);
    for (size_t i = 0; i < be->n_steps; i++)
        for (int k = 0; k < 2; k++) tape_drop(be, be->steps[i].kept[k]);
    for (size_t i = 0; i < be->n_segments; i++) {
        tape_drop(be, be->segments[i].x);
        tape_drop(be, be->segments[i].delta);
    }
    for (uint32_t i = 0; i < MAX_ADJOINTS; i++) {
        float_pool_give(&be->floats, be->adjoints[i].g);
        be->adjoints[i].g = NULL;
    }
    float_pool_give(&be->floats, be->dk);
    float_pool_give(&be->floats, be->dv);
    be->dk = be->dv = NULL;
    be->n_steps = be->n_segments = 0;
    be->n_norms = 0;
    be->first_low_rank = UINT32_MAX;
    arena_deinit(&be->arena);
}

const struct record_pair *tape_pair(const struct backend *be, const struct low_rank_term *t)
{
    for (size_t i = 0; i < be->n_pairs; i++)
        if (be->pairs[i].a->data == t->a->data) return &be->pairs[i];
    return NULL;
}

const struct grad_matrix *tape_frozen(const struct backend *be, const struct weight *w)
{
    for (size_t i = 0; i < be->n_frozen; i++)
        if (be->frozen[i].key == w->data) return &be->frozen[i].m;
    return NULL;
}

/* ---- dropout ---- */

struct mask_job {
    struct backend *be;
    const struct record_pair *pair;
    const float *x;
    float *out;
    uint32_t n_in;
};

/* Four columns a call of the generator; an element stays where its word is at least p * 2^32. */
static void mask_row(void *arg, uint32_t row, uint32_t thread)
{
    const struct mask_job *j = arg;
    const struct record_pass *p = &j->be->pass;
    const uint32_t least = (uint32_t)((double)p->dropout * 4294967296.0);
    const float scale = 1.0f / (1.0f - p->dropout), *x = j->x + (uint64_t)row * j->n_in;
    float *out = j->out + (uint64_t)row * j->n_in;

    (void)thread;
    for (uint32_t i = 0; i < j->n_in; i += 4) {
        struct philox_words w = philox_4x32(i / 4, row, j->pair->id, p->pass, p->seed);

        for (uint32_t k = 0; k < 4 && i + k < j->n_in; k++) out[i + k] = w.w[k] >= least ? x[i + k] * scale : 0.0f;
    }
}

float *tape_dropped(struct backend *be, const struct low_rank_term *t, const float *x)
{
    struct mask_job j = {be, tape_pair(be, t), x, NULL, t->a->n_in};

    if (!mem_grow((void **)&be->scratch, &be->cap_scratch, (size_t)t->n_rows * t->a->n_in, sizeof(float))) return NULL;
    j.out = be->scratch;
    grad_run(be->compute, mask_row, &j, t->n_rows);
    return be->scratch;
}

void tape_drop_back(struct backend *be, const struct low_rank_term *t, float *g)
{
    struct mask_job j = {be, tape_pair(be, t), g, g, t->a->n_in};

    grad_run(be->compute, mask_row, &j, t->n_rows);
}
