/* engine/pointing.c - see the header. */
#include "engine/pointing.h"
#include <string.h>
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine_state.h"
#include "engine/images.h"
#include "engine/listener.h"

/* The run that is there, whose it is. */
struct pointing {
    struct vision_pointer_run *run;
    struct request *owner;
    struct vision_pointed *images; /* [n] of the owner's */
    uint32_t *numbers;             /* [n] which of the request's images each is */
    uint32_t n, n_rows;
    bool is_ready;
};

static bool points(const struct engine *e)
{
    return e->o.executor.vision && e->o.executor.vision->points && e->o.executor.point_begin;
}

int32_t pointer_next(const struct request *r, int32_t sampled)
{
    const struct pointer_tokens *t = &r->p.pointer;
    const kv_key last = r->seq.keys[r->seq.n_keys - 1];

    if (!t->is_on || !key_is_token(last)) return sampled;
    if (key_token(last) == t->start) return t->pad;
    return key_token(last) == t->pad ? t->end : sampled;
}

void pointer_note(struct engine *e, struct request *r, const float *state)
{
    struct request_pointers *p = &r->pointers;
    const uint32_t at = r->seq.n_computed - 1;

    if (!r->p.pointer.is_on || !points(e) || at < r->n_prompt || at <= p->last || p->n == POINTERS_MOST) return;
    if (r->seq.keys[at] != token_key(r->p.pointer.pad)) return;
    if (!p->states) {
        p->states = mem_alloc((size_t)POINTERS_MOST * e->o.executor.n_state, sizeof(*p->states));
        p->points = mem_alloc(POINTERS_MOST * VISION_POINTS_MOST, sizeof(*p->points));
    }
    if (!p->states || !p->points) {
        log_warn("a pointer of a request has no points: out of memory");
        request_pointers_deinit(p);
        return;
    }
    memcpy(p->states + (size_t)p->n++ * e->o.executor.n_state, state, e->o.executor.n_state * sizeof(*p->states));
    p->last = at;
}

bool pointer_holds(const struct request *r)
{
    return r->pointers.n > r->pointers.n_done;
}

static struct request *next_request(const struct engine *e)
{
    struct request *first = NULL;

    if (!e->pointing) return NULL;
    for (uint32_t i = 0; i < e->n_live; i++) {
        if (!pointer_holds(e->live[i])) continue;
        if (e->live[i] == e->pointing->owner) return e->live[i];
        if (!first) first = e->live[i];
    }
    return first;
}

bool pointer_waits(const struct engine *e)
{
    return next_request(e) != NULL;
}

/* ---- the run ---- */

static void end_run(struct engine *e)
{
    struct pointing *p = e->pointing;

    if (p->run) e->o.executor.point_end(e->o.executor.self, p->run);
    mem_free(p->images);
    mem_free(p->numbers);
    *p = (struct pointing){.run = NULL};
}

/* r's images are ready: the run over them. */
static rd_status begin_run(struct engine *e, struct request *r)
{
    struct pointing *p = e->pointing;

    end_run(e);
    p->images = mem_zalloc(r->images.n, sizeof(*p->images));
    p->numbers = mem_zalloc(r->images.n, sizeof(*p->numbers));
    if (!p->images || !p->numbers) return RD_E_NOMEM;
    for (uint32_t i = 0; i < r->images.n; i++) {
        const struct vision_place *place = &r->images.places[i];
        const struct vision_image *v = place->image;

        if (v->t != 1) continue;
        p->numbers[p->n] = i;
        p->images[p->n++] = (struct vision_pointed){images_row(e, r, place->begin), v->h / v->merge, v->w / v->merge};
        p->n_rows += v->n_rows;
    }
    p->owner = r;
    return p->n ? e->o.executor.point_begin(e->o.executor.self, p->images, p->n, &p->run) : RD_OK;
}

/* The points of r's next pointer. */
static rd_status find_points(struct engine *e, struct request *r)
{
    const struct pointing *p = e->pointing;
    struct request_pointers *out = &r->pointers;
    struct vision_point *to = out->points + out->n_points;
    float *scores = mem_alloc(p->n_rows, sizeof(*scores));
    uint32_t n = 0;
    rd_status st = RD_E_NOMEM;

    if (scores)
        st = e->o.executor.point_scores(e->o.executor.self, p->run,
                                        out->states + (size_t)out->n_done * e->o.executor.n_state, scores);
    if (st == RD_OK) st = vision_pointer_regions(scores, p->images, p->n, to, &n);
    for (uint32_t i = 0; i < n; i++) {
        to[i].pointer = out->n_done;
        to[i].image = p->numbers[to[i].image];
    }
    out->n_points += n;
    mem_free(scores);
    return st;
}

/* RD_E_AGAIN: more is to do. */
static rd_status work(struct engine *e, struct request *r)
{
    struct pointing *p = e->pointing;
    rd_status st = RD_OK;

    if (p->owner != r) {
        if (!images_all_ready(e, r)) return r->images.lost ? RD_E_NOMEM : RD_E_AGAIN;
        if ((st = begin_run(e, r)) != RD_OK) return st;
    }
    if (p->run && !p->is_ready) st = e->o.executor.point_step(e->o.executor.self, p->run, images_piece_flops(e));
    if (st != RD_OK) return st;
    p->is_ready = true;
    while (st == RD_OK && pointer_holds(r)) {
        if (p->run) st = find_points(e, r);
        r->pointers.n_done++;
    }
    return st;
}

void pointer_work(struct engine *e)
{
    struct request *r = next_request(e);
    rd_status st;

    if (!r) return;
    st = work(e, r);
    if (st == RD_E_AGAIN) return;
    if (st != RD_OK) {
        log_error("a pointer of a request was not computed: %s", rd_status_name(st));
        request_end(e, r, REQUEST_ERROR, st);
    } else if (r->pointers.ends) {
        request_end(e, r, REQUEST_LENGTH, RD_OK);
    }
}

/* ---- the listener ---- */

static rd_status begin_pointers(struct engine *e)
{
    if (!points(e)) return RD_OK;
    e->pointing = mem_zalloc(1, sizeof(*e->pointing));
    return e->pointing ? RD_OK : RD_E_NOMEM;
}

static void end_pointers(struct engine *e)
{
    if (e->pointing) end_run(e);
    mem_free(e->pointing);
    e->pointing = NULL;
}

/* Before its images are let go of (listener.c), whose rows the run reads. */
static void left(struct engine *e, struct request *r)
{
    if (e->pointing && e->pointing->owner == r) end_run(e);
}

const struct engine_listener listens_pointers = {.begin = begin_pointers, .let_go = end_pointers, .left = left};
