/* tests/engine/test_images.c - images in the step loop, one promise at a time; tests/sim mixes them with everything else. */
#include "engine/images.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/mem.h"
#include "images_rig.h"
#include "test.h"

#define MAX_PROMPT 96u

static uint32_t n_wanted = 2; /* tokens of an answer */

/* `text`, the image, and two tokens more, under this salt. */
static struct request *ask(struct images_rig *g, uint32_t image, int32_t text, uint64_t salt)
{
    const uint32_t n_rows = g->images.images[image]->n_rows, n = 3 + n_rows + 2;
    struct vision_place place = {.begin = 3, .image = g->images.images[image]};
    struct request_params p = {.cached = true,
                               .max_tokens = n_wanted,
                               .max_keys = 400,
                               .places = &place,
                               .n_places = 1,
                               .vision = &g->images.traits,
                               .space = sim_space(salt),
                               .fair_key = salt};
    struct request *r = NULL;
    int32_t prompt[MAX_PROMPT];

    for (uint32_t i = 0; i < n; i++) prompt[i] = text;
    memcpy(prompt + 3, g->images.keys[image], n_rows * sizeof(*prompt));
    sampler_params_default(&p.sampling);
    if (engine_take_place(g->e) != RD_OK) return NULL;
    if (request_create(&p, engine_cache(g->e), SIM_VOCAB, prompt, n, &r, NULL) != RD_OK) return NULL;
    return engine_submit(g->e, r) == RD_OK ? r : NULL;
}

static void step(struct images_rig *g)
{
    engine_step(g->e);
    clock_fake_advance(g->clock, 1000000);
}

static void end(struct images_rig *g, struct request *r)
{
    for (int i = 0; r && !atomic_load(&r->ended) && i < 10000; i++) step(g);
    if (!r || !atomic_load(&r->ended) || r->finish != REQUEST_LENGTH)
        test_fail(__FILE__, __LINE__, "the request did not end");
    request_unref(r);
}

static struct engine_stats stats_of(const struct images_rig *g)
{
    struct engine_stats s;

    engine_get_stats(g->e, &s);
    return s;
}

/* ---- a running stream beside an encoder ---- */

#define STEP_NS      10000000ull
#define FLOPS_PER_NS 50u

/* A step takes STEP_NS, an encoder's piece what its work takes, by the fake clock. */
static struct {
    struct clock *clock;
    rd_status (*forward)(void *self, const struct model_batch *batch, float *logits);
    rd_status (*image_begin)(void *self, struct vision_image *image, struct vision_run **out);
    rd_status (*image_step)(void *self, struct vision_run *run, uint64_t n_flops, uint64_t *n_done);
    uint64_t begin_ns;        /* what an image takes before its first piece */
    uint64_t left;            /* work of the image */
    uint32_t n_pieces, early; /* early: of so many pieces one does all that it was asked for, the others a quarter */
    uint32_t phase;           /* pieces; every other phase is slower, 20 for 50 */
    uint64_t most;            /* work of a piece so far */
} slow;

static rd_status slow_forward(void *self, const struct model_batch *batch, float *logits)
{
    clock_fake_advance(slow.clock, STEP_NS);
    return slow.forward(self, batch, logits);
}

static rd_status slow_begin(void *self, struct vision_image *image, struct vision_run **out)
{
    clock_fake_advance(slow.clock, slow.begin_ns);
    return slow.image_begin(self, image, out);
}

static bool in_slow_phase(void)
{
    return slow.phase > 0 && slow.n_pieces / slow.phase % 2 == 1;
}

static uint32_t slow_phase(void *self, const struct vision_run *run)
{
    return in_slow_phase() ? 3 : 1;
}

static rd_status slow_piece(void *self, struct vision_run *run, uint64_t n_flops, uint64_t *n_done)
{
    uint64_t n = n_flops ? n_flops : VISION_STEP_FLOPS, unused;
    rd_status st = RD_E_AGAIN;

    if (slow.n_pieces % slow.early > 0) n /= 4;
    slow.most = u64_max(slow.most, n);
    clock_fake_advance(slow.clock, n / (in_slow_phase() ? FLOPS_PER_NS * 2 / 5 : FLOPS_PER_NS));
    slow.n_pieces++;
    slow.left -= slow.left < n ? slow.left : n;
    while (slow.left == 0 && st == RD_E_AGAIN) st = slow.image_step(self, run, 0, &unused);
    *n_done = n;
    return st;
}

static void slow_down(struct images_rig *g)
{
    memset(&slow, 0, sizeof(slow));
    slow.clock = g->clock;
    slow.forward = g->e->o.executor.forward;
    slow.image_begin = g->e->o.executor.image_begin;
    slow.image_step = g->e->o.executor.image_step;
    slow.early = 1;
    g->e->o.executor.forward = slow_forward;
    g->e->o.executor.image_begin = slow_begin;
    g->e->o.executor.image_step = slow_piece;
    g->e->o.executor.image_phase = slow_phase;
}

static void check_gap(uint32_t early, uint32_t phase, uint64_t begin_ns)
{
    struct images_rig g;
    struct request *stream, *other;
    uint64_t last_ns, largest = 0;
    uint32_t n_tokens;

    CHECK(images_rig_open(&g, false, 0, NULL));
    slow_down(&g);
    slow.left = 3 * VISION_STEP_FLOPS;
    n_wanted = 300;
    stream = ask(&g, 0, 1, 0);
    while (stream->n_generated < 20) engine_step(g.e);
    n_wanted = 2;
    slow.left = 20 * STEP_NS * FLOPS_PER_NS; /* as long as 20 steps */
    slow.n_pieces = 0;
    slow.early = early;
    slow.phase = phase;
    slow.begin_ns = begin_ns;
    other = ask(&g, 1, 2, 0);
    last_ns = clock_now_ns(g.clock);
    for (n_tokens = stream->n_generated; !atomic_load(&other->ended);) {
        engine_step(g.e);
        if (stream->n_generated == n_tokens) continue;
        n_tokens = stream->n_generated;
        largest = u64_max(largest, clock_now_ns(g.clock) - last_ns);
        last_ns = clock_now_ns(g.clock);
    }
    CHECK(slow.n_pieces >= 10);
    CHECK(largest > STEP_NS && largest <= 2 * STEP_NS);
    request_unref(other);
    request_cancel(stream, CANCEL_GONE);
    while (!atomic_load(&stream->ended)) engine_step(g.e);
    request_unref(stream);
    images_rig_close(&g);
}

TEST(the_largest_gap_of_a_stream_beside_an_encoder_is_less_than_two_steps)
{
    check_gap(1, 0, 0);
}

TEST(what_an_image_takes_before_its_first_piece_is_of_that_piece)
{
    check_gap(1, 0, STEP_NS * 4 / 5);
}

TEST(nor_is_it_two_steps_where_an_encoders_phases_differ)
{
    check_gap(1, 6, 0);
}

TEST(pieces_that_end_early_make_no_later_piece_longer)
{
    check_gap(4, 0, 0);
}

TEST(pieces_are_longer_while_nobody_decodes)
{
    struct images_rig g;

    CHECK(images_rig_open(&g, false, 0, NULL));
    slow_down(&g);
    g.e->o.prompt_target_ns = 1000000000; /* a third of it: twice the encoder's own piece */
    slow.left = 20 * VISION_STEP_FLOPS;
    end(&g, ask(&g, 0, 1, 0));
    CHECK(slow.most > 3 * VISION_STEP_FLOPS / 2 && slow.most <= FLOPS_PER_NS * g.e->o.prompt_target_ns / 2);
    images_rig_close(&g);
}

TEST(an_image_is_encoded_once_for_each_cache_salt)
{
    struct images_rig g;

    CHECK(images_rig_open(&g, false, 0, NULL));
    end(&g, ask(&g, 0, 1, 0));
    end(&g, ask(&g, 0, 2, 0)); /* another conversation: the rows are kept */
    CHECK_EQ(stats_of(&g).images_encoded, 1);
    CHECK_EQ(stats_of(&g).images_kept, 1);
    end(&g, ask(&g, 0, 1, 7)); /* a tenant must not learn from its time that others sent it */
    CHECK_EQ(stats_of(&g).images_encoded, 2);
    end(&g, ask(&g, 0, 2, 7));
    CHECK_EQ(stats_of(&g).images_encoded, 2);
    CHECK_EQ(stats_of(&g).images_kept, 2);
    images_rig_close(&g);
}

/* The engine thread sleeps after a turn that says there is nothing to do: up to a second. */
TEST(no_turn_sleeps_while_an_image_is_wanted_or_was_just_encoded)
{
    for (int both_ways = 0; both_ways < 2; both_ways++) {
        struct images_rig g;

        CHECK(images_rig_open(&g, both_ways, 0, NULL));
        for (uint32_t i = 0; i < 3; i++) {
            struct request *r = ask(&g, i, 1, 0);

            CHECK(r != NULL);
            while (!atomic_load(&r->ended)) {
                const bool turns = engine_step(g.e);

                clock_fake_advance(g.clock, 1000000);
                if (!turns && !atomic_load(&r->ended)) test_fail(__FILE__, __LINE__, "image %u: it would sleep", i);
            }
            request_unref(r);
        }
        images_rig_close(&g);
    }
}

TEST(tenants_who_send_one_image_at_once_do_not_join)
{
    struct images_rig g;
    struct request *r[4];

    CHECK(images_rig_open(&g, true, 0, NULL));
    for (uint32_t i = 0; i < 4; i++) r[i] = ask(&g, 1, (int32_t)i, i / 2);
    for (uint32_t i = 0; i < 4; i++) end(&g, r[i]);
    CHECK_EQ(stats_of(&g).images_encoded, 2);
    CHECK_EQ(stats_of(&g).images_joined, 2);
    images_rig_close(&g);
}

/* A tenant whose images all wait already does not have the encoder until they are done. */
TEST(an_image_does_not_wait_for_all_images_of_another_key)
{
    for (int both_ways = 0; both_ways < 2; both_ways++) {
        struct images_rig g;
        struct request *r[5], *other;
        uint64_t n_before;

        CHECK(images_rig_open(&g, both_ways, 0, NULL));
        for (uint32_t i = 0; i < 5; i++) CHECK(r[i] = ask(&g, i, 1, 1));
        /* a small image may be done before the next request asks for its own */
        while (stats_of(&g).images_encoded == 0 || stats_of(&g).image_entries < 5) step(&g);
        n_before = stats_of(&g).images_encoded;
        CHECK(n_before <= 2 && stats_of(&g).images_waiting == 5 - n_before);
        CHECK(other = ask(&g, 5, 1, 2));
        while (other->images.n_encoded == 0 && !atomic_load(&other->ended)) step(&g);
        CHECK(stats_of(&g).images_encoded <= n_before + 2); /* one that was begun, and its own */
        end(&g, other);
        for (uint32_t i = 0; i < 5; i++) end(&g, r[i]);
        CHECK_EQ(stats_of(&g).images_encoded, 6);
        images_rig_close(&g);
    }
}

TEST(rows_that_are_kept_stay_within_their_bytes)
{
    const uint64_t most = IMAGES_RIG_ROWS * 2 * sizeof(float);
    struct images_rig g;

    CHECK(images_rig_open(&g, false, most, NULL));
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t i = 0; i < SIM_IMAGES; i++) {
            end(&g, ask(&g, i, (int32_t)round, round));
            CHECK(stats_of(&g).image_bytes <= most);
        }
    CHECK(stats_of(&g).images_evicted > 0);
    images_rig_close(&g);
}

TEST(a_match_that_ends_within_an_image_is_told_as_it_is_taken)
{
    struct images_rig g;
    struct kv_whole whole;
    struct radix_match m;
    struct radix_node *root;
    const struct kv_space open = sim_space(0);
    struct vision_place place;
    kv_key keys[MAX_PROMPT];
    kv_page pages[MAX_PROMPT];
    uint32_t n_rows;

    CHECK(images_rig_open(&g, true, 0, NULL));
    end(&g, ask(&g, 2, 1, 0));
    n_rows = g.images.images[2]->n_rows;
    for (uint32_t i = 0; i < MAX_PROMPT; i++) keys[i] = 1;
    memcpy(keys + 3, g.images.keys[2], n_rows * sizeof(*keys));
    place = (struct vision_place){.begin = 3, .image = g.images.images[2]};
    whole = request_images_whole(&place, &g.images.traits);
    CHECK(whole.begin == 3 && whole.sure == 3 + n_rows);
    root = engine_root_of(g.e, &open);
    CHECK(root);
    keys[3 + n_rows - 1]--; /* the last row is another one */
    m = radix_match(engine_cache(g.e)->tree, root, keys, 3 + n_rows, 0);
    CHECK_EQ(m.n_ready, 3 + n_rows - 1);
    CHECK_EQ(kv_match_reach(engine_cache(g.e), &m, NULL, 0, pages), 3 + n_rows - 1);
    CHECK_EQ(kv_match_reach(engine_cache(g.e), &m, &whole, 1, pages), 3);
    images_rig_close(&g);
}
