/* tests/vision/test_vision_models.c - the tiny models of tests/golden/make_vision.py: images in, transformers' logits out. On a
 * device (test_backend.h), whose products are of bf16, they are further off; what is of memory and errors stays on the CPU. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/linear/linear_dense.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/model_file.h"
#include "model/model.h"
#include "test.h"
#include "test_backend.h"
#include "vision/pointer.h"

#define PAGE_TOKENS 16u
#define MAX_TOKENS  128u
#define MAX_IMAGES  8u

static const char *const families[] = {"gemma3", "qwen2vl", "qwen25vl", "qwen3vl"};

/* ---- golden files ---- */

struct golden {
    char *bytes;
    const char *at;
    uint32_t n_prompts, n_vocab, hidden;
    bool has_steps; /* make_vision_video.py's */
    bool has_no_logits;
};

struct prompt {
    uint32_t n_images, n_tokens;
    const int32_t *tokens;
    const uint32_t *axes;
    uint32_t begin[MAX_IMAGES];
    struct vision_image *images[MAX_IMAGES];
    const float *logits;
    float *copies; /* of what is not aligned in the file */
};

static uint32_t take(struct golden *g)
{
    uint32_t v;

    memcpy(&v, g->at, sizeof(v));
    g->at += sizeof(v);
    return v;
}

static bool golden_open(const char *family, const char *file, struct golden *g)
{
    char name[128];
    size_t n;

    snprintf(name, sizeof(name), "tests/golden/vision/%s/%s.bin", family, file);
    memset(g, 0, sizeof(*g));
    g->has_steps = !strcmp(file, "video");
    if (file_read_all(test_path(name), 8u << 20, &g->bytes, &n, NULL) != RD_OK) return false;
    g->at = g->bytes;
    g->n_prompts = take(g);
    g->n_vocab = take(g);
    g->hidden = take(g);
    return true;
}

static struct vision_image *take_image(struct golden *g)
{
    struct vision_image *v = mem_zalloc(1, sizeof(*v));

    atomic_init(&v->n_refs, 1);
    v->t = take(g);
    v->h = take(g);
    v->w = take(g);
    v->merge = take(g);
    if (g->has_steps) {
        memcpy(&v->t_step, g->at, sizeof(v->t_step));
        g->at += sizeof(v->t_step);
    }
    v->n_rows = take(g);
    v->n_values = take(g);
    v->values = mem_alloc(v->n_values, sizeof(float));
    for (uint32_t i = 0; i < v->n_values; i++) v->values[i] = (float)(int8_t)g->at[i] / 32;
    g->at += v->n_values;
    return v;
}

static void next_prompt(struct golden *g, struct prompt *p)
{
    uint64_t n;

    memset(p, 0, sizeof(*p));
    p->n_images = take(g);
    p->n_tokens = take(g);
    n = p->n_tokens;
    p->copies = mem_alloc(n * (4 + g->n_vocab), sizeof(float));
    memcpy(p->copies, g->at, n * 4 * sizeof(float));
    g->at += n * 4 * sizeof(float);
    for (uint32_t i = 0; i < p->n_images; i++) {
        p->begin[i] = take(g);
        p->images[i] = take_image(g);
    }
    if (!g->has_no_logits) {
        memcpy(p->copies + n * 4, g->at, n * g->n_vocab * sizeof(float));
        g->at += n * g->n_vocab * sizeof(float);
    }
    p->tokens = (const int32_t *)(const void *)p->copies;
    p->axes = (const uint32_t *)(const void *)(p->copies + n);
    p->logits = p->copies + n * 4;
}

static void prompt_done(struct prompt *p)
{
    for (uint32_t i = 0; i < p->n_images; i++) vision_image_unref(p->images[i]);
    mem_free(p->copies);
}

/* ---- a model that sees ---- */

static const struct cpu_dense_kernels *dense; /* of encoders that are opened, in place of the processor's; or NULL */

struct rig {
    struct model_file *g, *mmproj;
    const struct backend_ops *ops;
    struct backend *be;
    struct model *m;
    struct vision_encoder *e;
    struct kv_storage kv;
    struct model_batch batch;
    kv_page table[MAX_TOKENS / PAGE_TOKENS];
};

static void rig_close(struct rig *r)
{
    if (r->kv.base) r->ops->pages.destroy(r->be, &r->kv);
    model_batch_deinit(&r->batch);
    vision_encoder_close(r->e);
    model_destroy(r->m);
    r->ops->life.destroy(r->be);
    model_file_close(r->mmproj);
    model_file_close(r->g);
}

static rd_status rig_open_on(const struct backend_ops *ops, struct rig *r, const char *family, bool is_gguf,
                             const char *isa, uint32_t n_threads)
{
    const struct backend_options options = {.n_threads = n_threads, .isa = isa};
    const struct model_config *c;
    struct rd_error err = {0};
    char name[128];
    rd_status st;

    memset(r, 0, sizeof(*r));
    r->ops = ops;
    snprintf(name, sizeof(name), "tests/golden/vision/%s%s", family, is_gguf ? "/text.gguf" : "");
    st = model_file_open(test_path(name), model_hub_families(), &r->g, &err);
    snprintf(name, sizeof(name), "tests/golden/vision/%s/mmproj.gguf", family);
    if (st == RD_OK && is_gguf) st = model_file_open(test_path(name), model_hub_families(), &r->mmproj, &err);
    if (st == RD_OK) st = ops->life.create(&options, &r->be, &err);
    if (st == RD_OK) st = model_load(r->g, ops, r->be, MAX_TOKENS, MAX_TOKENS, NULL, &r->m, &err);
    if (st == RD_OK && dense) r->be->dense = dense;
    if (st == RD_OK)
        st = vision_encoder_open(r->mmproj ? r->mmproj : model_file_vision(r->g), ops, r->be,
                                 model_config(r->m)->hidden, &r->e, &err);
    if (st != RD_OK) {
        test_note("%s: %s", family, err.text);
        return st;
    }
    c = model_config(r->m);
    for (uint32_t i = 0; i < MAX_TOKENS / PAGE_TOKENS; i++) r->table[i] = MAX_TOKENS / PAGE_TOKENS - 1 - i;
    st = model_batch_init(&r->batch, (struct model_batch_room){MAX_TOKENS, 8, MAX_TOKENS, 0});
    if (st != RD_OK) return st;
    return ops->pages.create(
        r->be, &(struct kv_layout){c->n_layers, c->n_kv_heads, c->head_dim, PAGE_TOKENS, DTYPE_F32, DTYPE_F32},
        MAX_TOKENS / PAGE_TOKENS, &r->kv);
}

static rd_status rig_open(struct rig *r, const char *family, bool is_gguf, const char *isa, uint32_t n_threads)
{
    return rig_open_on(test_backend_ops(), r, family, is_gguf, isa, n_threads);
}

/* *out: mem_free. */
static void encode(struct rig *r, struct vision_image *image, uint64_t n_flops, float **out)
{
    const struct vision_traits *t = vision_encoder_traits(r->e);
    const uint64_t n = (uint64_t)image->n_rows * t->n_floats;
    struct vision_run *run;
    rd_status st;

    CHECK_OK(vision_run_begin(r->e, image, &run));
    while ((st = vision_run_step(run, n_flops, NULL)) == RD_E_AGAIN)
        CHECK(vision_run_done(run) >= 0 && vision_run_done(run) <= 1);
    CHECK_OK(st);
    *out = mem_alloc(n, sizeof(**out));
    memcpy(*out, vision_run_rows(run), n * sizeof(**out));
    vision_run_end(run);
}

/* Positions [from, to) of the prompt in one pass, a run for each image and what is before it. */
static rd_status pass(struct rig *r, const struct prompt *p, float *const rows[], uint32_t from, uint32_t to,
                      float *logits)
{
    const struct vision_traits *t = vision_encoder_traits(r->e);
    struct model_batch *b = &r->batch;
    const float *embeds[MAX_TOKENS] = {NULL};
    uint32_t axes[3 * MAX_TOKENS], at = from;

    model_batch_clear(b);
    for (uint32_t i = 0; i <= p->n_images; i++) {
        uint32_t begin = i < p->n_images ? p->begin[i] : to, end = i < p->n_images ? begin + p->images[i]->n_rows : to;

        end = u32_min(end, to);
        if (end <= at) continue;
        model_batch_begin_run(b, at, r->table, NULL);
        if (t->both_ways && begin < end && begin >= at) model_batch_set_span(b, begin, end);
        for (; at < end; at++) {
            uint32_t row = model_batch_add_row(b, at >= begin && i < p->n_images ? 0 : p->tokens[at], PAGE_TOKENS);

            if (at >= begin && i < p->n_images) embeds[row] = rows[i] + (size_t)(at - begin) * t->n_floats;
            model_batch_want_logits(b, row, NULL);
        }
    }
    for (uint32_t i = 0; i < 3 * (to - from); i++)
        axes[i] = p->axes[i / (to - from) * p->n_tokens + from + i % (to - from)];
    b->embeds = embeds;
    b->n_embed = t->n_floats;
    b->rope_axes = t->three_axes ? axes : NULL;
    return model_forward(r->m, &r->kv, b, logits);
}

static double error_of(const struct prompt *p, uint32_t n_vocab, const float *logits)
{
    double low = INFINITY, high = -INFINITY, worst = 0;

    for (uint32_t i = 0; i < p->n_tokens * n_vocab; i++) {
        double e = fabs((double)logits[i] - (double)p->logits[i]);

        low = fmin(low, (double)p->logits[i]);
        high = fmax(high, (double)p->logits[i]);
        worst = e <= worst ? worst : e;
    }
    return worst / (high - low);
}

/* What rows of images, and what is behind them, turn by. */
static void check_axes(const struct prompt *p, const char *family)
{
    struct vision_place places[MAX_IMAGES];
    uint32_t axes[3 * MAX_TOKENS];

    for (uint32_t i = 0; i < p->n_images; i++) places[i] = (struct vision_place){p->begin[i], p->images[i], NULL};
    vision_positions(places, p->n_images, 0, p->n_tokens, axes, p->n_tokens);
    if (strcmp(family, "gemma3") != 0) CHECK(memcmp(axes, p->axes, 3 * p->n_tokens * sizeof(uint32_t)) == 0);
}

static void check_file(const char *family, const char *file, bool is_gguf)
{
    struct golden g;
    struct rig r;

    CHECK(golden_open(family, file, &g));
    CHECK_OK(rig_open(&r, family, is_gguf, NULL, 2));
    for (uint32_t i = 0; i < g.n_prompts; i++) {
        struct prompt p;
        float *rows[MAX_IMAGES] = {NULL}, *logits;

        next_prompt(&g, &p);
        check_axes(&p, family);
        logits = mem_zalloc((size_t)p.n_tokens * g.n_vocab, sizeof(*logits));
        for (uint32_t k = 0; k < p.n_images; k++) encode(&r, p.images[k], 0, &rows[k]);
        CHECK_OK(pass(&r, &p, rows, 0, p.n_tokens, logits));
        test_note("%s%s, %s, %u images: %.2e of the range", family, is_gguf ? " (GGUF)" : "", file, p.n_images,
                  error_of(&p, g.n_vocab, logits));
        CHECK(error_of(&p, g.n_vocab, logits) < (test_on_gpu() ? 3e-2 : 1e-3));
        for (uint32_t k = 0; k < p.n_images; k++) mem_free(rows[k]);
        mem_free(logits);
        prompt_done(&p);
    }
    rig_close(&r);
    mem_free(g.bytes);
}

TEST(directories_give_the_logits_of_transformers)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) check_file(families[i], families[i], false);
}

/* Two frames a patch, several of them an image: each sees its own; Qwen2.5-VL's time goes on by seconds. */
TEST(videos_give_the_logits_of_transformers)
{
    for (size_t i = 1; i < sizeof(families) / sizeof(families[0]); i++) {
        check_file(families[i], "video", false);
        check_file(families[i], "video", true);
    }
}

TEST(files_of_llama_cpps_converter_give_the_same_logits)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) check_file(families[i], families[i], true);
}

TEST(products_in_bf16_parts_are_as_close)
{
    if (test_backend_ops() != &backend_cpu_ops) return; /* a device has its own */
    dense = &dense_kernels_ref;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) check_file(families[i], families[i], i % 2);
    dense = NULL;
}

/* ---- exactness ---- */

/* The third prompt's rows and logits: cut after each image, and wherever an image may be cut. */
static void run_third(const char *family, const char *isa, uint32_t n_threads, uint64_t n_flops, uint32_t chunk,
                      float **logits, float **first_rows, struct golden *g, uint64_t *n_logits, uint64_t *n_floats)
{
    struct prompt p;
    struct rig r;
    float *rows[MAX_IMAGES] = {NULL};

    CHECK(golden_open(family, family, g));
    CHECK_OK(rig_open(&r, family, false, isa, n_threads));
    for (int i = 0; i < 2; i++) {
        next_prompt(g, &p);
        prompt_done(&p);
    }
    next_prompt(g, &p);
    *n_logits = (uint64_t)p.n_tokens * g->n_vocab;
    *logits = mem_zalloc(*n_logits, sizeof(float));
    for (uint32_t k = 0; k < p.n_images; k++) encode(&r, p.images[k], n_flops, &rows[k]);
    for (uint32_t at = 0, end; at < p.n_tokens; at = end) {
        end = u32_min(at + chunk, p.n_tokens);
        for (uint32_t k = 0; k < p.n_images && vision_encoder_traits(r.e)->both_ways; k++)
            if (end > p.begin[k] && end < p.begin[k] + p.images[k]->n_rows) end = p.begin[k] + p.images[k]->n_rows;
        CHECK_OK(pass(&r, &p, rows, at, end, *logits + (size_t)at * g->n_vocab));
    }
    *n_floats = (uint64_t)p.images[0]->n_rows * vision_encoder_traits(r.e)->n_floats;
    *first_rows = rows[0];
    for (uint32_t k = 1; k < p.n_images; k++) mem_free(rows[k]);
    prompt_done(&p);
    rig_close(&r);
    mem_free(g->bytes);
}

TEST(threads_steps_instruction_sets_and_chunks_change_no_bit)
{
    static const struct {
        const char *isa;
        uint32_t n_threads, chunk;
        uint64_t n_flops;
    } ways[] = {{NULL, 1, 128, 1}, {NULL, 3, 5, 100000}, {"ref", 2, 17, 30000000}, {"ref", 1, 128, 1000}},
      own_ways[] = {{NULL, 1, 128, 1}, {NULL, 3, 5, 100000}, {NULL, 2, 17, 30000000}, {NULL, 1, 128, 1000}};
    const bool has_own = test_on_gpu() || strcmp(cpu_isa_name(cpu_isa_best()), "amx") == 0; /* WEIGHT_DENSE */

    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++) {
        struct golden g;
        float *want, *want_rows;
        uint64_t n, n_rows;

        run_third(families[f], NULL, 2, 0, 128, &want, &want_rows, &g, &n, &n_rows);
        for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
            float *got, *rows;
            uint64_t n_got, n_got_rows;

            run_third(families[f], has_own ? own_ways[i].isa : ways[i].isa, ways[i].n_threads, ways[i].n_flops,
                      ways[i].chunk, &got, &rows, &g, &n_got, &n_got_rows);
            CHECK(n_got == n && n_got_rows == n_rows);
            CHECK(memcmp(rows, want_rows, n_rows * sizeof(float)) == 0);
            CHECK(memcmp(got, want, n * sizeof(float)) == 0);
            mem_free(got);
            mem_free(rows);
        }
        mem_free(want);
        mem_free(want_rows);
    }
}

/* ---- GUI-Actor's pointer (make_pointer.py) ---- */

static double take_double(struct golden *g)
{
    double v;

    memcpy(&v, g->at, sizeof(v));
    g->at += sizeof(v);
    return v;
}

/* Scores of the state over the prompt's images, in steps of n_flops; *out: mem_free. */
static void point(struct rig *r, const struct prompt *p, float *const rows[], const float *state, uint64_t n_flops,
                  struct vision_pointed images[MAX_IMAGES], float **out)
{
    struct vision_pointer_run *run;
    uint32_t n = 0;
    rd_status st;

    for (uint32_t k = 0; k < p->n_images; k++) {
        const struct vision_image *v = p->images[k];

        images[k] = (struct vision_pointed){rows[k], v->h / v->merge, v->w / v->merge};
        n += v->n_rows;
    }
    *out = mem_alloc(n, sizeof(**out));
    CHECK_OK(vision_pointer_begin(r->e, images, p->n_images, &run));
    while ((st = vision_pointer_step(run, n_flops)) == RD_E_AGAIN) {}
    CHECK_OK(st);
    CHECK_OK(vision_pointer_scores(run, state, *out));
    vision_pointer_end(run);
}

/* Products in bf16 are further off. */
static double score_bound(void)
{
    return test_on_gpu() ? 1e-2 : 1e-4;
}

static void check_points(struct golden *g, const float *golden, const float *scores,
                         const struct vision_pointed *images, uint32_t n_images)
{
    const uint32_t n_points = take(g);
    struct vision_point exact[VISION_POINTS_MOST], own[VISION_POINTS_MOST];
    uint32_t n_exact = 0, n_own = 0;

    CHECK_OK(vision_pointer_regions(golden, images, n_images, exact, &n_exact));
    CHECK_OK(vision_pointer_regions(scores, images, n_images, own, &n_own));
    CHECK(n_own > 0);
    if (!test_on_gpu()) CHECK_EQ(n_own, n_exact);
    for (uint32_t i = 0; i < u32_min(n_own, n_exact); i++) CHECK(fabs(own[i].score - exact[i].score) < score_bound());
    if (n_images == 1) CHECK_EQ(n_exact, u32_min(n_points, VISION_POINTS_MOST));
    for (uint32_t i = 0; i < n_points; i++) {
        const double x = take_double(g), y = take_double(g), score = take_double(g);

        if (i >= n_exact) continue;
        CHECK(fabs(exact[i].x - x) < 1e-9 && fabs(exact[i].y - y) < 1e-9 && fabs(exact[i].score - score) < 1e-9);
        if (test_on_gpu()) continue; /* a patch at the threshold may be in on one side alone */
        CHECK(fabs(own[i].x - x) < 1e-3 && fabs(own[i].y - y) < 1e-3 && own[i].image == 0);
    }
}

TEST(a_pointer_has_the_scores_and_points_of_gui_actor)
{
    struct golden g;
    struct rig r;

    CHECK(golden_open("guiactor", "pointer", &g));
    CHECK_OK(rig_open(&r, "guiactor", false, NULL, 2));
    CHECK(vision_encoder_traits(r.e)->points);
    for (uint32_t i = 0; i < g.n_prompts; i++) {
        struct prompt p;
        struct vision_pointed images[MAX_IMAGES];
        float *rows[MAX_IMAGES] = {NULL}, *logits, *states, *scores, *others, worst = 0;
        const float *golden;
        uint32_t at, n;

        g.has_no_logits = true;
        next_prompt(&g, &p);
        at = take(&g);
        n = take(&g);
        golden = (float *)(void *)mem_memdup(g.at, n * sizeof(float));
        g.at += n * sizeof(float);
        logits = mem_zalloc((size_t)p.n_tokens * g.n_vocab, sizeof(*logits));
        states = mem_zalloc((size_t)p.n_tokens * g.hidden, sizeof(*states));
        r.batch.states = states;
        for (uint32_t k = 0; k < p.n_images; k++) encode(&r, p.images[k], 0, &rows[k]);
        CHECK_OK(pass(&r, &p, rows, 0, p.n_tokens, logits));
        point(&r, &p, rows, states + (size_t)at * g.hidden, 0, images, &scores);
        point(&r, &p, rows, states + (size_t)at * g.hidden, 1000, images, &others);
        CHECK(memcmp(scores, others, n * sizeof(float)) == 0);
        for (uint32_t k = 0; k < n; k++) worst = fmaxf(worst, fabsf(scores[k] - golden[k]));
        test_note("%u images: scores at most %.1e off", p.n_images, (double)worst);
        CHECK((double)worst < score_bound());
        check_points(&g, golden, scores, images, p.n_images);
        for (uint32_t k = 0; k < p.n_images; k++) mem_free(rows[k]);
        mem_free((void *)(uintptr_t)golden);
        mem_free(scores);
        mem_free(others);
        mem_free(states);
        mem_free(logits);
        prompt_done(&p);
    }
    rig_close(&r);
    mem_free(g.bytes);
}

TEST(a_pointer_without_memory_leaves_nothing)
{
    const float scores[12] = {0.9f, 0, 0, 0.5f, 0.8f, 0, 0, 0, 0, 0, 0, 0.2f};
    const struct vision_pointed image = {NULL, 3, 4};
    struct vision_point points[VISION_POINTS_MOST];
    struct vision_pointer_run *run = NULL;
    uint32_t n = 0;
    struct rig r;
    rd_status st;

    CHECK_OK(rig_open(&r, "guiactor", false, NULL, 1));
    for (int64_t i = 0;; i++) {
        mem_fail_after(i);
        st = vision_pointer_begin(r.e, &image, 1, &run);
        mem_fail_after(-1);
        if (st == RD_OK) break;
        CHECK_EQ(st, RD_E_NOMEM);
    }
    vision_pointer_end(run);
    for (int64_t i = 0;; i++) {
        mem_fail_after(i);
        st = vision_pointer_regions(scores, &image, 1, points, &n);
        mem_fail_after(-1);
        if (st == RD_OK) break;
        CHECK_EQ(st, RD_E_NOMEM);
    }
    CHECK_EQ(n, 2);
    CHECK(fabs(points[0].score - 0.85) < 1e-6 && fabs(points[1].x - 0.875) < 1e-6);
    rig_close(&r);
}

/* ---- faults ---- */

TEST(an_image_that_is_not_the_encoders_is_refused)
{
    struct rig r;
    struct vision_run *run;
    float values[16] = {0};
    struct vision_image wrong[] = {
        {.n_refs = 1, .t = 1, .h = 4, .w = 4, .merge = 2, .n_rows = 4, .n_values = 16, .values = values},
        {.n_refs = 1, .t = 1, .h = 4, .w = 4, .merge = 4, .n_rows = 1, .n_values = 16 * 216, .values = values},
        {.n_refs = 1, .t = 1, .h = 4, .w = 3, .merge = 2, .n_rows = 2, .n_values = 12 * 216, .values = values},
        {.n_refs = 1, .t = 1, .h = 4, .w = 4, .merge = 2, .n_rows = 4, .n_values = 16 * 216},
        {.n_refs = 1, .t = 1u << 20, .h = 1u << 20, .w = 1u << 20, .merge = 2, .n_rows = 4, .values = values},
    };

    CHECK_OK(rig_open(&r, "qwen2vl", false, NULL, 1));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK_EQ(vision_run_begin(r.e, &wrong[i], &run), RD_E_INVALID);
    rig_close(&r);
}

/* What all steps of a run say that they did. */
static void add_work(struct rig *r, struct vision_image *image, uint64_t n_flops, uint64_t *sum)
{
    struct vision_run *run;
    uint64_t n_done;
    rd_status st = RD_E_AGAIN;

    CHECK_OK(vision_run_begin(r->e, image, &run));
    while (st == RD_E_AGAIN) {
        st = vision_run_step(run, n_flops, &n_done);
        CHECK(n_done > 0);
        *sum += n_done;
    }
    CHECK_OK(st);
    vision_run_end(run);
}

/* However a step ends: by its budget, early for a rest of a few rows, or late, at its least block. */
TEST(steps_of_any_length_say_the_same_work_in_all)
{
    static const uint64_t budgets[] = {1, 50000, 300000, 1000000};
    uint64_t whole = 0;
    struct golden g;
    struct prompt p;
    struct rig r;

    CHECK(golden_open("qwen25vl", "qwen25vl", &g));
    CHECK_OK(rig_open(&r, "qwen25vl", false, NULL, 1));
    do next_prompt(&g, &p);
    while (p.n_images == 0 && (prompt_done(&p), true));
    add_work(&r, p.images[0], 0, &whole);
    for (size_t i = 0; i < sizeof(budgets) / sizeof(budgets[0]); i++) {
        uint64_t sum = 0;

        add_work(&r, p.images[0], budgets[i], &sum);
        CHECK_EQ(sum, whole);
    }
    prompt_done(&p);
    rig_close(&r);
    mem_free(g.bytes);
}

TEST(a_run_that_ends_in_the_middle_leaves_nothing)
{
    struct golden g;
    struct prompt p;
    struct rig r;
    struct vision_run *run;

    CHECK(golden_open("qwen3vl", "qwen3vl", &g));
    CHECK_OK(rig_open(&r, "qwen3vl", false, NULL, 2));
    for (int i = 0; i < 2; i++) {
        next_prompt(&g, &p);
        if (i == 0) prompt_done(&p);
    }
    for (uint32_t n_steps = 0; n_steps < 12; n_steps++) {
        CHECK_OK(vision_run_begin(r.e, p.images[0], &run));
        for (uint32_t i = 0; i < n_steps; i++) CHECK_EQ(vision_run_step(run, 1, NULL), RD_E_AGAIN);
        vision_run_end(run);
    }
    CHECK_EQ(atomic_load(&p.images[0]->n_refs), 1);
    prompt_done(&p);
    rig_close(&r);
    mem_free(g.bytes);
}

TEST(a_text_model_of_another_width_does_not_fit)
{
    struct rig r;
    struct vision_encoder *e = NULL;
    struct rd_error err = {0};

    CHECK_OK(rig_open_on(&backend_cpu_ops, &r, "qwen25vl", true, NULL, 1));
    CHECK_EQ(vision_encoder_open(r.mmproj, &backend_cpu_ops, r.be, 64, &e, &err), RD_E_FORMAT);
    CHECK(strstr(err.text, "do not belong together"));
    CHECK_EQ(vision_encoder_open(r.g, &backend_cpu_ops, r.be, 48, &e, &err), RD_E_FORMAT);
    CHECK(strstr(err.text, "clip.projector_type"));
    CHECK(!e);
    CHECK_OK(vision_file_fits(r.mmproj, "qwen2vl", 48, &err));
    CHECK_EQ(vision_file_fits(r.mmproj, "qwen2vl", 64, &err), RD_E_FORMAT);
    CHECK(strstr(err.text, "width 48") && strstr(err.text, "width 64"));
    CHECK_EQ(vision_file_fits(r.mmproj, "qwen3vl", 48, &err), RD_E_FORMAT);
    rig_close(&r);
}

TEST(memory_that_runs_out_leaves_nothing)
{
    struct golden g;
    struct prompt p;
    struct rig r;

    CHECK(golden_open("qwen3vl", "qwen3vl", &g));
    CHECK_OK(rig_open_on(&backend_cpu_ops, &r, "qwen3vl", false, NULL, 1));
    next_prompt(&g, &p);
    prompt_done(&p);
    next_prompt(&g, &p);
    uint64_t alive = mem_n_alive();
    for (int64_t i = 0;; i++) {
        struct vision_encoder *e = NULL;
        struct vision_run *run = NULL;
        struct rd_error err;
        rd_status st;

        mem_fail_after(i);
        st = vision_encoder_open(model_file_vision(r.g), &backend_cpu_ops, r.be, g.hidden, &e, &err);
        if (st == RD_OK) st = vision_run_begin(e, p.images[0], &run);
        mem_fail_after(-1);
        vision_run_end(run);
        vision_encoder_close(e);
        CHECK_EQ(mem_n_alive(), alive);
        if (st == RD_OK) break;
        CHECK_EQ(st, RD_E_NOMEM);
    }
    for (int64_t i = 0;; i++) { /* the directory, whose vision part is not left out because memory is short */
        struct model_file *file = NULL;
        struct rd_error err;
        rd_status st;

        mem_fail_after(i);
        st = model_file_open(test_path("tests/golden/vision/qwen3vl"), model_hub_families(), &file, &err);
        mem_fail_after(-1);
        if (st != RD_OK) continue;
        CHECK(model_file_vision(file));
        model_file_close(file);
        break;
    }
    prompt_done(&p);
    rig_close(&r);
    mem_free(g.bytes);
}
