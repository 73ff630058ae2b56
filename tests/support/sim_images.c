/* tests/support/sim_images.c - see the header. */
#include "sim_images.h"
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "vision/encoder.h"

struct vision_run {
    const struct vision_image *image;
    uint32_t n_left;
    bool fails;
    float rows[];
};

static struct vision_image *make_image(uint32_t h, uint32_t w, uint32_t mark, uint64_t seed)
{
    struct vision_image *v = mem_zalloc(1, sizeof(*v));

    if (!v) return NULL;
    v->n_refs = 1;
    v->t = v->merge = 1;
    v->h = h, v->w = w;
    v->n_rows = h * w;
    v->n_values = 1;
    v->values = mem_zalloc(1, sizeof(float));
    memcpy(v->digest, &seed, sizeof(seed));
    v->digest[31] = (uint8_t)mark;
    return v;
}

bool sim_images_init(struct sim_images *s, bool both_ways, uint32_t max_rows, uint64_t seed)
{
    bool ok = true;

    memset(s, 0, sizeof(*s));
    random_init(&s->random, seed);
    s->traits = (struct vision_traits){
        .both_ways = both_ways, .three_axes = !both_ways, .n_floats = 2, .n_deep = 1, .max_rows = max_rows};
    for (uint32_t i = 0; i < SIM_IMAGES; i++) {
        uint32_t h = 1 + (uint32_t)random_below(&s->random, 4),
                 w = 2 + (uint32_t)random_below(&s->random, max_rows / 4 - 1);

        s->images[i] = make_image(h, w, i, seed);
        s->keys[i] = s->images[i] ? mem_alloc(h * w, sizeof(kv_key)) : NULL;
        ok &= s->keys[i] && s->images[i]->values && vision_image_keys(s->images[i], s->keys[i]) == RD_OK;
    }
    return ok;
}

void sim_images_deinit(struct sim_images *s)
{
    for (uint32_t i = 0; i < SIM_IMAGES; i++) {
        vision_image_unref(s->images[i]);
        mem_free(s->keys[i]);
    }
}

static rd_status image_begin(void *self, struct vision_image *image, struct vision_run **out)
{
    struct sim_images *s = self;
    struct vision_run *run = malloc(sizeof(*run) + (size_t)image->n_rows * 2 * sizeof(float));
    kv_key *keys = malloc(image->n_rows * sizeof(*keys));

    if (!run || !keys || vision_image_keys(image, keys) != RD_OK) abort();
    run->image = image;
    run->n_left = 1 + (uint32_t)random_below(&s->random, 6);
    run->fails = s->fail_one_in && random_below(&s->random, s->fail_one_in) == 0;
    for (uint32_t k = 0; k < image->n_rows; k++) {
        memcpy(&run->rows[2 * k], &keys[k], sizeof(float));
        memcpy(&run->rows[2 * k + 1], &keys[k], sizeof(float));
    }
    free(keys);
    s->n_begun++;
    *out = run;
    return RD_OK;
}

static rd_status image_step(void *self, struct vision_run *run, uint64_t n_flops, uint64_t *n_done)
{
    struct sim_images *s = self;

    *n_done = n_flops ? n_flops : VISION_STEP_FLOPS;
    s->n_pieces++;
    if (s->clock) clock_fake_advance(s->clock, 1000000);
    if (--run->n_left > 0) return RD_E_AGAIN;
    s->n_failed += run->fails;
    return run->fails ? RD_E_NOMEM : RD_OK;
}

static const float *image_rows(void *self, const struct vision_run *run)
{
    (void)self;
    return run->rows;
}

static void image_end(void *self, struct vision_run *run)
{
    ((struct sim_images *)self)->n_ended++;
    free(run);
}

/* The executor's own calls get its self, which begins with a pointer to this. */
static struct sim_images *sees(void *self)
{
    return *(struct sim_images **)self;
}
static rd_status x_begin(void *self, struct vision_image *image, struct vision_run **out)
{
    return image_begin(sees(self), image, out);
}
static rd_status x_step(void *self, struct vision_run *run, uint64_t n_flops, uint64_t *n_done)
{
    return image_step(sees(self), run, n_flops, n_done);
}
static const float *x_rows(void *self, const struct vision_run *run)
{
    return image_rows(sees(self), run);
}
static void x_end(void *self, struct vision_run *run)
{
    image_end(sees(self), run);
}

void sim_images_give(struct sim_images *s, struct executor *x)
{
    *(struct sim_images **)x->self = s;
    x->vision = &s->traits;
    x->image_begin = x_begin;
    x->image_step = x_step;
    x->image_rows = x_rows;
    x->image_end = x_end;
}

uint32_t sim_images_find(const struct sim_images *s, const int32_t *prompt, uint32_t *n, struct vision_place *places)
{
    uint32_t n_places = 0;

    for (uint32_t at = 0; at < *n;) {
        uint32_t i = 0;

        if (prompt[at] >= 0) {
            at++;
            continue;
        }
        while (s->keys[i][0] != (kv_key)prompt[at]) i++;
        if (s->images[i]->n_rows > *n - at ||
            memcmp(prompt + at, s->keys[i], s->images[i]->n_rows * sizeof(*prompt)) != 0) {
            *n = at;
            break;
        }
        places[n_places++] = (struct vision_place){.begin = at, .image = s->images[i]};
        at += s->images[i]->n_rows;
    }
    return n_places;
}

/* Written anew, so that it does not err as the engine would. */
static void axes_of(const struct request_images *ri, uint32_t pos, uint32_t axes[3])
{
    uint32_t next = 0;

    for (uint32_t at = 0, i = 0; at <= pos;) {
        if (i < ri->n && ri->places[i].begin == at) {
            const struct vision_image *v = ri->places[i].image;
            uint32_t k = pos - at;

            if (k < v->n_rows) {
                axes[0] = next;
                axes[1] = next + k / v->w;
                axes[2] = next + k % v->w;
                return;
            }
            next += v->h > v->w ? v->h : v->w;
            at += v->n_rows;
            i++;
        } else {
            axes[0] = axes[1] = axes[2] = next++;
            at++;
        }
    }
}

bool sim_images_are_right(const struct sim_images *s, const struct model_batch *b, uint32_t i,
                          const struct request_images *ri, const struct kv_seq *seq)
{
    const struct seq_run *run = &b->runs[i];
    uint32_t end = run->pos0 + run->n_rows, n_spans = 0;
    bool ok = true;

    for (uint32_t k = 0; k < run->n_rows; k++) {
        uint32_t row = run->row0 + k, pos = run->pos0 + k, axes[3] = {pos, pos, pos};
        const float *embed = b->embeds ? b->embeds[row] : NULL;

        kv_key key = pos < seq->n_keys ? seq->keys[pos] : 0; /* 0: drafts are tokens */

        if (ri->n > 0) axes_of(ri, pos, axes);
        for (uint32_t a = 0; a < 3 && s->traits.three_axes; a++)
            ok &= (b->rope_axes ? b->rope_axes[a * b->n_rows + row] : b->positions[row]) == axes[a];
        if (key_is_token(key))
            ok &= !embed;
        else
            ok &= embed && b->n_embed == 2 && memcmp(embed, &key, sizeof(float)) == 0 &&
                  memcmp(embed + 1, &key, sizeof(float)) == 0;
    }
    for (uint32_t p = 0; p < ri->n && s->traits.both_ways; p++) {
        uint32_t from = ri->places[p].begin, to = from + ri->places[p].image->n_rows;

        if (to <= run->pos0 || from >= end) continue;
        n_spans++;
        ok &= from >= run->pos0 && to <= end && run->both_from == from && run->both_to == to;
    }
    return ok && n_spans <= 1 && (n_spans == 1 || run->both_from == run->both_to);
}
