/* engine/images.c - see the header. */
#include "engine/images.h"
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine_state.h"
#include "engine/listener.h"

#define LEAST_FLOPS 50000000ull /* of a piece: less is mostly turning */
#define PIECE_SHARE 0.4         /* of a step: how much steps and pieces differ by themselves comes on top */
#define ALONE_SHARE 0.33        /* of a step of prompts alone */
#define READY_SLOTS 1024u

enum entry_state { ENTRY_WANTED, ENTRY_RUNNING, ENTRY_READY };

/* In images.first .. last: of one that nobody wants now, in order of its last use; of one wanted, of when it first was. */
struct image_entry {
    struct image_entry *prev, *next;
    uint8_t digest[VISION_DIGEST];
    struct hash128
        salt; /* whose it is: a tenant that sends another one's image would else see by its time that it was here */
    uint32_t n_rows, n_users;
    struct vision_image *image; /* until it is ready */
    enum entry_state state;
    struct vision_run *run;
    struct vision_rows *rows; /* of one that is ready */
    uint64_t encoder_ns;
};

struct images {
    struct image_entry *first, *last;
    uint64_t kept_bytes, most_bytes;    /* kept: of all that are ready */
    uint32_t n_waiting;                 /* not ready yet */
    double flops_per_ns[VISION_PHASES]; /* of the last pieces of each; 0: none yet */
    uint64_t n_encoded, n_joined, n_kept, n_stored, encoder_ns, n_stopped, n_evicted, n_entries;
    /* Of ready entries, by their hash; of two in one place the later one. The engine writes, preparing threads read; relaxed:
     * a hint. */
    atomic_ullong ready[READY_SLOTS];
};

uint32_t images_before(const struct request *r, uint32_t n)
{
    uint32_t i = 0;

    while (i < r->images.n && r->images.places[i].begin < n) i++;
    return i;
}

static uint32_t place_end(const struct vision_place *p)
{
    return p->begin + p->image->n_rows;
}

/* ---- entries ---- */

static void list_add(struct images *im, struct image_entry *x)
{
    x->prev = im->last;
    x->next = NULL;
    *(im->last ? &im->last->next : &im->first) = x;
    im->last = x;
}

static void list_remove(struct images *im, struct image_entry *x)
{
    *(x->prev ? &x->prev->next : &im->first) = x->next;
    *(x->next ? &x->next->prev : &im->last) = x->prev;
}

static struct image_entry *find(const struct images *im, const struct vision_image *image, struct hash128 salt)
{
    struct image_entry *x = im->first;

    while (x && (x->n_rows != image->n_rows || !hash128_equal(x->salt, salt) ||
                 memcmp(x->digest, image->digest, sizeof(x->digest)) != 0))
        x = x->next;
    return x;
}

/* A digest is as good as random; a salt is a keyed digest. */
static uint64_t hash_of(const uint8_t digest[VISION_DIGEST], struct hash128 salt)
{
    uint64_t h;

    memcpy(&h, digest, sizeof(h));
    return (h ^ salt.low) | 1;
}

bool images_are_ready(const struct engine *e, const struct vision_image *v, struct hash128 salt)
{
    const uint64_t h = hash_of(v->digest, salt);

    return e->images && atomic_load_explicit(&e->images->ready[h / 2 % READY_SLOTS], memory_order_relaxed) == h;
}

static void note_ready(struct images *im, const struct image_entry *x, bool is_ready)
{
    const uint64_t h = hash_of(x->digest, x->salt);
    atomic_ullong *slot = &im->ready[h / 2 % READY_SLOTS];

    if (is_ready || atomic_load_explicit(slot, memory_order_relaxed) == h)
        atomic_store_explicit(slot, is_ready ? h : 0, memory_order_relaxed);
}

/* x has its rows. */
static void make_ready(struct images *im, struct image_entry *x)
{
    x->state = ENTRY_READY;
    im->kept_bytes += x->rows->n_bytes;
    note_ready(im, x, true);
}

static void drop(struct engine *e, struct image_entry *x)
{
    struct images *im = e->images;

    assert(x->n_users == 0);
    list_remove(im, x);
    im->n_entries--;
    if (x->state == ENTRY_READY) {
        im->kept_bytes -= x->rows->n_bytes;
        note_ready(im, x, false);
    } else {
        im->n_waiting--;
    }
    if (x->run) e->o.executor.image_end(e->o.executor.self, x->run);
    vision_image_unref(x->image);
    vision_rows_unref(x->rows);
    mem_free(x);
}

/* Those that nobody uses, the least recently used first, until the rest fits. */
static void evict(struct engine *e)
{
    struct images *im = e->images;

    for (struct image_entry *x = im->first, *next; x && im->kept_bytes > im->most_bytes; x = next) {
        next = x->next;
        if (x->n_users > 0 || x->state != ENTRY_READY) continue;
        drop(e, x);
        im->n_evicted++;
    }
}

/* The request has its rows from now on, whatever is evicted: pixels have done their part. */
static void know_rows(struct vision_place *place, const struct image_entry *x)
{
    if (!place->rows) place->rows = vision_rows_ref(x->rows);
    vision_image_spend(place->image);
}

/* r's image i is wanted. False: no memory for that, or its pixels are not there. */
static bool want(struct engine *e, struct request *r, uint32_t i)
{
    struct images *im = e->images;
    struct vision_place *place = &r->images.places[i];
    struct vision_image *image = place->image;
    struct image_entry *x = find(im, image, r->p.space.salt);

    if (!x) {
        if ((!image->values && !place->rows) || !(x = mem_zalloc(1, sizeof(*x)))) return false;
        memcpy(x->digest, image->digest, sizeof(x->digest));
        x->salt = r->p.space.salt;
        x->n_rows = image->n_rows;
        im->n_entries++;
        list_add(im, x);
        if (place->rows) {
            x->rows = vision_rows_ref(place->rows);
            make_ready(im, x);
            im->n_stored++;
        } else {
            x->image = vision_image_ref(image);
            x->state = ENTRY_WANTED;
            im->n_waiting++;
        }
    } else if (x->state == ENTRY_READY) {
        list_remove(im, x);
        list_add(im, x);
        im->n_kept += x->n_users == 0;
        know_rows(place, x);
    } else {
        im->n_joined++;
    }
    x->n_users++;
    r->images.entries[i] = x;
    return true;
}

static void let_go_of(struct request *r, uint32_t i)
{
    if (r->images.entries[i]) r->images.entries[i]->n_users--;
    r->images.entries[i] = NULL;
}

/* ---- which rows ---- */

uint32_t images_most_rows(const struct engine *e)
{
    const struct vision_traits *v = e->o.executor.vision;

    return v && v->both_ways ? v->max_rows : 0;
}

static bool is_ready(struct engine *e, struct request *r, uint32_t i)
{
    if (!r->images.entries[i]) r->images.lost |= !want(e, r, i);
    return r->images.entries[i] && r->images.entries[i]->state == ENTRY_READY;
}

bool images_all_ready(struct engine *e, struct request *r)
{
    bool all = true;

    for (uint32_t i = 0; i < r->images.n; i++) all &= is_ready(e, r, i);
    return all;
}

uint32_t images_chunk(struct engine *e, struct request *r, uint32_t n, uint32_t n_room)
{
    const struct vision_traits *v = e->o.executor.vision;
    uint32_t from = r->seq.n_computed, end = from + n, n_seen = 0;

    if (r->images.n == 0 || n == 0) return n;
    for (uint32_t i = 0; i < r->images.n && r->images.places[i].begin < end; i++) {
        const struct vision_place *p = &r->images.places[i];

        if (place_end(p) <= from) continue;
        if (!is_ready(e, r, i) || (v->both_ways && n_seen++ > 0)) return p->begin > from ? p->begin - from : 0;
        if (!v->both_ways || place_end(p) <= end) continue;
        if (place_end(p) - from <= n_room) return place_end(p) - from; /* whole, though it is more than was meant */
        return p->begin > from ? p->begin - from : 0;
    }
    return n;
}

const float *images_row(struct engine *e, const struct request *r, uint32_t pos)
{
    uint32_t i = images_before(r, pos + 1) - 1;
    const struct image_entry *x = r->images.entries[i];

    assert(x && x->state == ENTRY_READY);
    return x->rows->values + (size_t)(pos - r->images.places[i].begin) * e->o.executor.vision->n_floats;
}

void images_span(const struct engine *e, const struct request *r, uint32_t from, uint32_t to, uint32_t span[2])
{
    span[0] = span[1] = 0;
    if (r->images.n == 0 || !e->o.executor.vision->both_ways) return;
    for (uint32_t i = 0; i < r->images.n; i++) {
        if (r->images.places[i].begin < from || place_end(&r->images.places[i]) > to) continue;
        span[0] = r->images.places[i].begin;
        span[1] = place_end(&r->images.places[i]);
        return;
    }
}

/* ---- the encoder ---- */

/* Those who wait for what cannot be. */
static void fail(struct engine *e, struct image_entry *x, rd_status st)
{
    log_error("an image of %u rows was not encoded: %s", x->n_rows, rd_status_name(st));
    for (uint32_t k = 0; k < e->n_live;) {
        struct request *r = e->live[k];
        bool waits = false;

        for (uint32_t i = 0; i < r->images.n; i++) waits |= r->images.entries[i] == x;
        if (waits)
            request_end(e, r, REQUEST_ERROR, st); /* lets go of x, which is dropped with its last user by our caller */
        else
            k++;
    }
}

/* now: when its rows were there. */
static rd_status finish(struct engine *e, struct image_entry *x, uint64_t now)
{
    const struct executor *ex = &e->o.executor;
    struct images *im = e->images;

    x->rows = vision_rows_create((uint64_t)x->n_rows * ex->vision->n_floats * sizeof(float));
    if (!x->rows) return RD_E_NOMEM;
    memcpy(x->rows->values, ex->image_rows(ex->self, x->run), x->rows->n_bytes);
    ex->image_end(ex->self, x->run);
    vision_image_unref(x->image);
    x->image = NULL;
    x->run = NULL;
    im->n_waiting--;
    make_ready(im, x);
    im->n_encoded++;
    ENGINE_TELL(image_encoded, (e, &x->salt, x->digest, x->n_rows, x->rows));
    for (uint32_t k = 0; k < e->n_live; k++) {
        struct request_images *ri = &e->live[k]->images;

        for (uint32_t i = 0; i < ri->n; i++) {
            if (ri->entries[i] != x) continue;
            know_rows(&ri->places[i], x);
            ri->n_encoded++;
            ri->encoder_ns += x->encoder_ns;
            ri->encoded_ns = now;
        }
    }
    evict(e);
    return RD_OK;
}

/* Those whose users all left are dropped; the one that runs, or NULL. */
static struct image_entry *sweep_entries(struct engine *e)
{
    struct image_entry *runs = NULL;

    for (struct image_entry *x = e->images->first, *next; x; x = next) {
        next = x->next;
        if (x->state == ENTRY_READY) continue;
        if (x->n_users == 0) {
            e->images->n_stopped += x->state == ENTRY_RUNNING;
            drop(e, x);
        } else if (x->state == ENTRY_RUNNING) {
            runs = x;
        }
    }
    return runs;
}

/* The first that r waits for. */
static struct image_entry *waits_for(const struct request *r)
{
    for (uint32_t i = 0; i < r->images.n; i++)
        if (r->images.entries[i] && r->images.entries[i]->state == ENTRY_WANTED) return r->images.entries[i];
    return NULL;
}

/* What the request that was admitted first waits for, of the key that had the encoder longest ago: that key's turn is now. */
static struct image_entry *wanted_entry(struct engine *e)
{
    const struct request *best = NULL;
    struct image_entry *wanted = NULL;

    for (uint32_t i = 0; i < e->n_live; i++) {
        const struct request *r = e->live[i];
        struct image_entry *x = waits_for(r);

        if (!x || (best && r->turns[REQUEST_TURN_IMAGE] >= best->turns[REQUEST_TURN_IMAGE])) continue;
        best = r;
        wanted = x;
    }
    if (best) fair_had_turn(e, best->p.fair_key, REQUEST_TURN_IMAGE);
    return wanted;
}

/* The one that runs, else the next in turn. */
static struct image_entry *next_entry(struct engine *e)
{
    struct image_entry *runs = sweep_entries(e);

    return runs || e->images->n_waiting == 0 ? runs : wanted_entry(e);
}

static double slowest_rate(const struct images *im)
{
    double rate = 0;

    for (uint32_t p = 0; p < VISION_PHASES; p++)
        if (im->flops_per_ns[p] > 0 && (rate <= 0 || im->flops_per_ns[p] < rate)) rate = im->flops_per_ns[p];
    return rate;
}

/* A good deal less than a step of those who decode, by what was measured: with the step behind it the gap between two tokens is to
 * be less than two steps. spent_ns: of that, already, by what came before the piece. While none do, pieces long enough for many
 * threads to end together; on a device the encoder's own are. */
static uint64_t piece_flops(const struct engine *e, double flops_per_ns, uint64_t spent_ns)
{
    double ns = e->decode_rate ? 1e12 * e->plan.n_decode / (double)e->decode_rate : 0;

    if (e->plan.n_decode == 0) {
        ns = ALONE_SHARE * (double)e->o.prompt_target_ns;
        return ns > 0 ? u64_max((uint64_t)(ns * flops_per_ns), VISION_STEP_FLOPS) : 0;
    }
    if (ns <= 0) return 0;
    ns = PIECE_SHARE * ns - (double)spent_ns;
    return ns > 0 ? u64_max((uint64_t)(ns * flops_per_ns), LEAST_FLOPS) : LEAST_FLOPS;
}

uint64_t images_piece_flops(const struct engine *e)
{
    return piece_flops(e, slowest_rate(e->images), 0);
}

void images_encode(struct engine *e)
{
    const struct executor *ex = &e->o.executor;
    struct images *im = e->images;
    struct image_entry *x = im && im->n_waiting > 0 ? next_entry(e) : NULL;
    uint64_t begin = clock_now_ns(e->o.clock), step_begin, end, n_done = 0;
    double *rate = NULL;
    rd_status st = RD_OK;

    if (!x) return;
    if (x->state == ENTRY_WANTED) {
        st = ex->image_begin(ex->self, x->image, &x->run);
        if (st == RD_OK) x->state = ENTRY_RUNNING;
    }
    step_begin = clock_now_ns(e->o.clock);
    if (st == RD_OK) {
        rate = &im->flops_per_ns[ex->image_phase ? ex->image_phase(ex->self, x->run) : 0];
        st = ex->image_step(ex->self, x->run,
                            piece_flops(e, *rate > 0 ? *rate : slowest_rate(im) / 2, step_begin - begin), &n_done);
    }
    end = clock_now_ns(e->o.clock);
    x->encoder_ns += end - begin;
    im->encoder_ns += end - begin;
    if (n_done > 0 && end > step_begin) { /* of what it did: a piece may end early */
        const double now = (double)n_done / (double)(end - step_begin);

        *rate = *rate > 0 ? (3 * *rate + now) / 4 : now;
    }
    if (st == RD_OK) st = finish(e, x, end);
    if (st == RD_OK || st == RD_E_AGAIN) return;
    fail(e, x, st);
    drop(e, x);
}

bool images_wait(const struct engine *e)
{
    return e->images && e->images->n_waiting > 0;
}

/* ---- the listener ---- */

static rd_status begin_images(struct engine *e)
{
    if (!e->o.executor.vision) return RD_OK;
    e->images = mem_zalloc(1, sizeof(*e->images));
    if (!e->images) return RD_E_NOMEM;
    e->images->most_bytes = e->o.image_bytes ? e->o.image_bytes : IMAGES_KEPT_BYTES;
    return RD_OK;
}

static void end_images(struct engine *e)
{
    if (!e->images) return;
    while (e->images->first) drop(e, e->images->first);
    mem_free(e->images);
    e->images = NULL;
}

/* What is stored is forgotten: so are rows that nobody uses. */
static void cleared(struct engine *e)
{
    for (struct image_entry *x = e->images ? e->images->first : NULL, *next; x; x = next) {
        next = x->next;
        if (x->n_users == 0 && x->state == ENTRY_READY) drop(e, x);
    }
}

static void left(struct engine *e, struct request *r)
{
    for (uint32_t i = 0; e->images && i < r->images.n; i++) let_go_of(r, i);
    if (e->images) evict(e);
}

/* Nobody computes anything of it any more: its pixels go, whenever its reader lets go of it. Not those that an entry, which
 * others joined, is being made of. */
static void ended(struct engine *e, struct request *r)
{
    for (uint32_t i = 0; e->images && i < r->images.n; i++) {
        const struct image_entry *x = e->images->first;

        while (x && x->image != r->images.places[i].image) x = x->next;
        if (!x) vision_image_spend(r->images.places[i].image);
    }
}

static void prompt_known(struct engine *e, struct request *r)
{
    if (!e->images) return;
    e->stats.images += r->images.n;
    r->usage.n_images = r->images.n;
    r->usage.n_images_encoded = r->images.n_encoded;
    r->usage.encoder_ns = r->images.encoder_ns;
    r->usage.encoded_ns = r->images.encoded_ns;
}

static void gather(const struct engine *e, struct engine_stats *s)
{
    const struct images *im = e->images;

    if (!im) return;
    s->images_encoded = im->n_encoded;
    s->images_joined = im->n_joined;
    s->images_kept = im->n_kept;
    s->images_stored = im->n_stored;
    s->images_stopped = im->n_stopped;
    s->images_evicted = im->n_evicted;
    s->images_waiting = im->n_waiting;
    s->image_entries = im->n_entries;
    s->image_bytes = im->kept_bytes;
    s->encoder_ns = im->encoder_ns;
}

const struct engine_listener listens_images = {.begin = begin_images,
                                               .let_go = end_images,
                                               .left = left,
                                               .prompt_known = prompt_known,
                                               .ended = ended,
                                               .cleared = cleared,
                                               .gather = gather};
