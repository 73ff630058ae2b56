/* tests/engine/test_pointing.c - pointers of answers in the step loop, over a head that gives a score of the state and the rows. */
#include "engine/pointing.h"
#include <string.h>
#include "base/mem.h"
#include "engine/images.h"
#include "images_rig.h"
#include "test.h"

#define MAX_PROMPT 128u
#define START      5
#define PAD        6
#define END        7
#define N_STEPS    4u

/* A head: `n_open` runs are there. */
static struct {
    uint32_t n_open, n_begun, n_steps;
    rd_status fail_begin, fail_step;
} head;

struct vision_pointer_run {
    const struct vision_pointed *images;
    uint32_t n, step;
};

static rd_status point_begin(void *self, const struct vision_pointed *images, uint32_t n,
                             struct vision_pointer_run **out)
{
    struct vision_pointer_run *run = mem_zalloc(1, sizeof(*run));

    if (head.fail_begin != RD_OK || !run) {
        mem_free(run);
        return head.fail_begin;
    }
    *run = (struct vision_pointer_run){images, n, 0};
    head.n_open++;
    head.n_begun++;
    *out = run;
    return RD_OK;
}

static rd_status point_step(void *self, struct vision_pointer_run *run, uint64_t n_flops)
{
    if (head.fail_step != RD_OK) return head.fail_step;
    head.n_steps++;
    return ++run->step < N_STEPS ? RD_E_AGAIN : RD_OK;
}

/* The first row of the last image stands out, by how much the state and the first image's rows say. */
static rd_status point_scores(void *self, struct vision_pointer_run *run, const float *state, float *scores)
{
    uint32_t n = 0, bits = 0, more;

    for (uint32_t i = 0; i < run->n; i++) n += run->images[i].h * run->images[i].w;
    memset(scores, 0, n * sizeof(*scores));
    memcpy(&bits, state, sizeof(bits));
    memcpy(&more, run->images[0].rows, sizeof(more));
    scores[n - run->images[run->n - 1].h * run->images[run->n - 1].w] = 1 + (float)((bits ^ more) * 2654435761u >> 8);
    return RD_OK;
}

static void point_end(void *self, struct vision_pointer_run *run)
{
    mem_free(run);
    head.n_open--;
}

static void give_head(struct images_rig *g, struct engine_options *o)
{
    g->images.traits.points = true;
    o->executor.point_begin = point_begin;
    o->executor.point_step = point_step;
    o->executor.point_scores = point_scores;
    o->executor.point_end = point_end;
}

static bool open_rig(struct images_rig *g, uint64_t image_bytes)
{
    memset(&head, 0, sizeof(head));
    return images_rig_open(g, false, image_bytes, give_head);
}

static void close_rig(struct images_rig *g)
{
    images_rig_close(g);
    CHECK_EQ(head.n_open, 0);
}

/* Text, two images, text, and <|pointer_start|>, which forces the rest. */
static struct request *ask(struct images_rig *g, int32_t text, uint32_t max_tokens, bool points)
{
    struct vision_place places[2];
    struct request_params p = {.cached = true,
                               .max_tokens = max_tokens,
                               .max_keys = 400,
                               .places = places,
                               .n_places = 2,
                               .vision = &g->images.traits,
                               .pointer = {points, START, PAD, END},
                               .space = sim_space(0)};
    struct request *r = NULL;
    int32_t prompt[MAX_PROMPT];
    uint32_t n = 3;

    for (uint32_t i = 0; i < MAX_PROMPT; i++) prompt[i] = text;
    for (uint32_t i = 0; i < 2; i++) {
        places[i] = (struct vision_place){.begin = n, .image = g->images.images[i]};
        memcpy(prompt + n, g->images.keys[i], g->images.images[i]->n_rows * sizeof(*prompt));
        n += g->images.images[i]->n_rows + 2;
    }
    prompt[n - 1] = START;
    sampler_params_default(&p.sampling);
    if (engine_take_place(g->e) != RD_OK) return NULL;
    if (request_create(&p, engine_cache(g->e), SIM_VOCAB, prompt, n, &r, NULL) != RD_OK) return NULL;
    return engine_submit(g->e, r) == RD_OK ? r : NULL;
}

static bool step(struct images_rig *g)
{
    bool turns = engine_step(g->e);

    clock_fake_advance(g->clock, 1000000);
    return turns;
}

static void end(struct images_rig *g, struct request *r, enum request_finish finish)
{
    for (int i = 0; r && !atomic_load(&r->ended) && i < 10000; i++) step(g);
    if (!r || !atomic_load(&r->ended) || r->finish != finish)
        test_fail(__FILE__, __LINE__, "the request did not end as it should");
}

/* Asks; *out is its one point. */
static void point_of(struct images_rig *g, int32_t text, struct vision_point *out)
{
    struct request *r = ask(g, text, 6, true);
    struct token_out t;
    struct token_logprob top[20];
    bool was_full;

    end(g, r, REQUEST_LENGTH);
    CHECK(request_pop(r, &t, top, &was_full) && t.token == PAD);
    CHECK(request_pop(r, &t, top, &was_full) && t.token == END);
    CHECK(r->pointers.n_points >= 1);
    *out = r->pointers.points[0];
    CHECK(out->pointer == 0 && out->image == 1 && out->score >= 1);
    request_unref(r);
}

TEST(a_pointer_is_the_same_from_the_tree_and_its_images_are_encoded_again)
{
    struct images_rig g;
    struct engine_stats s;
    struct vision_point cold, again, other;

    CHECK(open_rig(&g, 1)); /* no rows are kept when nobody has them */
    point_of(&g, 1, &cold);
    engine_get_stats(g.e, &s);
    CHECK_EQ(s.images_encoded, 2);
    point_of(&g, 1, &again);
    engine_get_stats(g.e, &s);
    CHECK_EQ(s.images_encoded, 4); /* for the pointer alone: the prompt was known */
    CHECK(memcmp(&cold, &again, sizeof(cold)) == 0);
    point_of(&g, 2, &other);
    CHECK(other.score < cold.score || other.score > cold.score); /* it is of the state */
    close_rig(&g);
}

TEST(an_answer_without_a_pointer_runs_no_head)
{
    struct images_rig g;
    struct request *r;

    CHECK(open_rig(&g, 0));
    r = ask(&g, 1, 6, false);
    end(&g, r, REQUEST_LENGTH);
    CHECK_EQ(head.n_begun, 0);
    CHECK_EQ(r->pointers.n_points, 0);
    request_unref(r);
    r = ask(&g, 1, 1, true); /* <|pointer_pad|> is the last: its row is not computed */
    end(&g, r, REQUEST_LENGTH);
    CHECK_EQ(head.n_begun, 0);
    request_unref(r);
    r = ask(&g, 1, 2, true); /* <|pointer_end|> is the last: it ends when its points are there */
    end(&g, r, REQUEST_LENGTH);
    CHECK_EQ(r->usage.n_generated, 2);
    CHECK_EQ(r->pointers.n_points, 1);
    request_unref(r);
    close_rig(&g);
}

/* A stream beside it has a row in every turn but those of a piece; the turns never sleep while a pointer waits. */
TEST(others_go_on_beside_a_pointer)
{
    struct images_rig g;
    struct request *stream, *r;
    uint32_t n_turns = 0;

    CHECK(open_rig(&g, 0));
    stream = ask(&g, 3, 200, false);
    while (stream->n_generated < 4) step(&g);
    r = ask(&g, 1, 6, true);
    while (!atomic_load(&r->ended)) {
        const uint32_t before = stream->n_generated;

        CHECK(step(&g));
        CHECK_EQ(stream->n_generated, before + 1);
        CHECK(++n_turns < 200);
    }
    CHECK_EQ(head.n_steps, N_STEPS);  /* a piece a turn, one run */
    CHECK(r->pointers.n_points >= 1); /* more where what is drawn happens to point again */
    request_unref(r);
    request_cancel(stream, CANCEL_GONE);
    end(&g, stream, REQUEST_CANCELLED);
    request_unref(stream);
    close_rig(&g);
}

TEST(a_hang_up_or_a_failure_ends_the_run_and_nobody_else)
{
    struct images_rig g;

    for (uint32_t when = 0; when < 40; when++) {
        struct request *r, *other;

        CHECK(open_rig(&g, 0));
        r = ask(&g, 1, 9, true);
        other = ask(&g, 2, 9, true);
        for (uint32_t i = 0; i < when; i++) step(&g);
        request_cancel(r, CANCEL_GONE);
        end(&g, other, REQUEST_LENGTH);
        CHECK(other->pointers.n_points >= 1);
        while (!atomic_load(&r->ended)) step(&g);
        request_unref(r);
        request_unref(other);
        close_rig(&g);
    }
    for (int i = 0; i < 2; i++) {
        struct request *r, *plain;

        CHECK(open_rig(&g, 0));
        *(i ? &head.fail_begin : &head.fail_step) = RD_E_NOMEM;
        r = ask(&g, 1, 9, true);
        plain = ask(&g, 2, 9, false);
        end(&g, r, REQUEST_ERROR);
        CHECK_EQ(r->status, RD_E_NOMEM);
        end(&g, plain, REQUEST_LENGTH);
        request_unref(r);
        request_unref(plain);
        close_rig(&g);
    }
}

/* Preempted at any moment of it, for want of pages, an answer is what it was. */
TEST(a_preempted_pointer_is_the_same)
{
    struct images_rig g;
    struct vision_point alone;

    CHECK(open_rig(&g, 0));
    point_of(&g, 1, &alone);
    close_rig(&g);
    for (uint32_t when = 0; when < 40; when++) {
        for (uint32_t n_tokens = 2; n_tokens < 7; n_tokens += 4) {
            struct request *r;

            CHECK(open_rig(&g, 1));
            r = ask(&g, 1, n_tokens, true);
            for (uint32_t i = 0; i < when; i++) step(&g);
            if (r->state == REQUEST_LIVE) request_preempt(g.e, r);
            if (when % 2) radix_clear(g.e->cache.tree, NULL); /* all of it is computed again, its pointer, too */
            end(&g, r, REQUEST_LENGTH);
            CHECK_EQ(r->usage.n_generated, n_tokens);
            CHECK(r->pointers.n_points == 1 || n_tokens > 2);
            CHECK(r->pointers.n_points >= 1 && memcmp(r->pointers.points, &alone, sizeof(alone)) == 0);
            request_unref(r);
            close_rig(&g);
        }
    }
}
