/* grad/tape.c - what is kept, gradients by place. */
#include "grad/tape.h"
#include <assert.h>
#include <string.h>
#include "base/mem.h"

static uint64_t bytes_of(enum dtype type, uint64_t n)
{
    return n * dtype_block_bytes(type);
}

struct kept *tape_keep(struct backend *be, struct span s, uint64_t n, enum dtype type)
{
    struct kept *k = NULL;

    for (uint32_t i = 0; i < MAX_ADJOINTS; i++)
        if (be->held[i] && span_equal(be->now[i].at, s) && be->held[i]->n == n && be->held[i]->type == type) {
            be->held[i]->refs++;
            return be->held[i];
        }
    k = mem_alloc(1, sizeof(*k));
    if (!k) return NULL;
    *k = (struct kept){1, type, n, be->dev->take(be->device, bytes_of(type, n))};
    if (!k->x || be->dev->keep(be->device, k->x, type, s, n) != RD_OK) {
        be->dev->give(be->device, k->x);
        mem_free(k);
        return NULL;
    }
    be->n_bytes += bytes_of(type, n);
    if (be->n_bytes > be->most_bytes) be->most_bytes = be->n_bytes;
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
    be->n_bytes -= bytes_of(k->type, k->n);
    be->dev->give(be->device, k->x);
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

bool tape_put(struct backend *be, struct span s, uint64_t n, void *g)
{
    assert(!find(be, s));
    for (uint32_t i = 0; g && i < MAX_ADJOINTS; i++)
        if (!be->adjoints[i].g) {
            be->adjoints[i] = (struct adjoint){s, n, g};
            return true;
        }
    be->dev->give(be->device, g);
    return false;
}

float *tape_adjoint_raw(struct backend *be, struct span s, uint64_t n, bool *is_new)
{
    struct adjoint *a = find(be, s);
    float *g;

    *is_new = !a;
    if (a) {
        assert(a->n == n);
        return a->g;
    }
    g = be->dev->take(be->device, n * sizeof(*g));
    return tape_put(be, s, n, g) ? g : NULL;
}

float *tape_adjoint(struct backend *be, struct span s, uint64_t n)
{
    bool is_new;
    float *g = tape_adjoint_raw(be, s, n, &is_new);

    return !g || !is_new || be->dev->zero(be->device, g, n * sizeof(*g)) == RD_OK ? g : NULL;
}

void *tape_find(struct backend *be, struct span s)
{
    struct adjoint *a = find(be, s);

    return a ? a->g : NULL;
}

void *tape_take(struct backend *be, struct span s)
{
    struct adjoint *a = find(be, s);
    void *g = a ? a->g : NULL;

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
        be->dev->give(be->device, be->adjoints[i].g);
        be->adjoints[i].g = NULL;
    }
    be->dev->give(be->device, be->dk);
    be->dev->give(be->device, be->dv);
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

struct grad_mask tape_mask(const struct backend *be, const struct low_rank_term *t)
{
    const struct record_pair *pair = tape_pair(be, t);
    const struct record_pass *p = &be->pass;

    return (struct grad_mask){pair ? p->dropout : 0, pair ? pair->id : 0, p->pass, p->seed};
}
