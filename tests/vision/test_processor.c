/* tests/vision/test_processor.c - pictures become what transformers makes of them (tests/golden/images.txt), within 1/255. */
#include "vision/processor.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "model/model.h"
#include "sanitized.h"
#include "test.h"

#define QWEN2 "{\"image_processor_type\":\"Qwen2VLImageProcessorFast\"}"
#define QWEN3                                                                                                          \
    "{\"image_processor_type\":\"Qwen2VLImageProcessorFast\",\"patch_size\":16,\"size\":{\"shortest_edge\":65536,"     \
    "\"longest_edge\":1048576},\"image_mean\":[0.5,0.5,0.5],\"image_std\":[0.5,0.5,0.5]}"
#define GEMMA3                                                                                                         \
    "{\"image_processor\":{\"image_processor_type\":\"Gemma3ImageProcessor\",\"resample\":2,\"size\":{\"height\":896," \
    "\"width\":896}},\"processor_class\":\"Gemma3Processor\"}"

/* The picture of tests/golden/make_images.py. */
static uint8_t *picture(uint64_t w, uint64_t h)
{
    uint8_t *rgb = malloc(w * h * 3), *p = rgb;

    if (!rgb) abort();
    for (uint64_t y = 0; y < h; y++)
        for (uint64_t x = 0; x < w; x++)
            for (uint64_t c = 0; c < 3; c++) {
                uint64_t noise = (x * 73856093 ^ y * 19349663 ^ c * 83492791) & 0xffffffff;

                noise ^= noise >> 13;
                noise = noise * 0x5bd1e995 & 0xffffffff;
                *p++ = (uint8_t)(x * 128 / w + (noise >> 15) % 128 + y * 64 / h);
            }
    return rgb;
}

static struct image_processor processor(const char *json)
{
    struct image_processor p;
    struct rd_error err = {RD_OK, ""};

    if (image_processor_read(json, strlen(json), &p, &err) != RD_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return p;
}

static double check_line(const char *line)
{
    char name[16];
    unsigned w, h, t, gh, gw, at;
    int used = 0;
    float value;
    double worst = 0;
    struct image_processor p;
    struct vision_image *v = NULL;
    struct rd_error err = {RD_OK, ""};
    uint8_t *rgb;
    const uint8_t *frame;

    if (sscanf(line, "%15s %u %u %u %u %u%n", name, &w, &h, &t, &gh, &gw, &used) != 6) return 1e9;
    p = processor(!strcmp(name, "qwen2") ? QWEN2 : !strcmp(name, "qwen3") ? QWEN3 : GEMMA3);
    frame = rgb = picture(w, h);
    if (image_processor_run(&p, &frame, 1, w, h, &v, &err) != RD_OK || v->t != t || v->h != gh || v->w != gw ||
        v->n_rows != t * (gh / p.merge) * (gw / p.merge)) {
        test_note("%s %u x %u: %s", name, w, h, v ? "another grid" : err.text);
        worst = 1e9;
    }
    for (line += used; worst < 1e9 && sscanf(line, " %u:%f%n", &at, &value, &used) == 2; line += used) {
        uint32_t c = p.kind == PROCESSOR_SQUARE ? at / (896 * 896) : at / (p.temporal * p.patch * p.patch) % 3;
        double off = at < v->n_values ? fabs((double)v->values[at] - (double)value) * (double)p.std[c] * 255 : 1e9;

        if (off > worst) worst = off;
    }
    vision_image_unref(v);
    free(rgb);
    return worst;
}

/* Of a sanitized build's pictures, which take ten times as long, two of five; the kinds come by turns of two and three. */
static bool is_left_out(uint32_t line)
{
    return IS_SANITIZED && !test_is_long() && line % 5 > 1;
}

TEST(values_are_those_of_transformers_within_one_of_255)
{
    char *text = NULL, *rest = NULL;
    size_t n;
    uint32_t n_lines = 0, n_exact = 0;
    double worst = 0;

    CHECK_OK(file_read_all(test_path("images.txt"), 1 << 20, &text, &n, NULL));
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        double off;

        if (is_left_out(n_lines++)) continue;
        off = check_line(line);
        n_exact += off < 0.01;
        if (off > worst) worst = off;
    }
    test_note("%u pictures, %u of them exact; worst %.3f of 255", n_lines, n_exact, worst);
    CHECK(n_lines > 150);
    CHECK(worst < 1.01);
    mem_free(text);
}

/* ---- videos, and pictures in parts (tests/golden/make_videos.py) ---- */

static double off_by(const struct image_processor *p, const struct vision_image *v, uint32_t at, float value)
{
    uint32_t c = p->kind == PROCESSOR_SQUARE ? at / (896 * 896) : at / (p->temporal * p->patch * p->patch) % 3;

    return at < v->n_values ? fabs((double)v->values[at] - (double)value) * (double)p->std[c] * 255 : 1e9;
}

#define N_FRAMES 64u

/* A line of a video: the worst of its samples; images one after the other are the video's values. */
static void check_video(const struct image_processor *p, const char *line, unsigned n, unsigned w, unsigned h,
                        double *worst)
{
    uint8_t *rgb[N_FRAMES] = {NULL};
    struct vision_image *v[N_FRAMES] = {NULL};
    const uint32_t n_images = image_processor_video_images(p, n);
    struct rd_error err = {RD_OK, ""};
    unsigned t, gh, gw, at;
    int used;
    float value;

    CHECK(n <= N_FRAMES && sscanf(line, " %u %u %u%n", &t, &gh, &gw, &used) == 3);
    for (unsigned k = 0; k < n; k++) {
        rgb[k] = picture(w, h);
        for (size_t i = 0; i < (size_t)w * h * 3; i++) rgb[k][i] = (uint8_t)(rgb[k][i] + 31 * k);
    }
    CHECK_OK(image_processor_video(p, (const uint8_t *const *)rgb, n, w, h, 2, v, &err));
    CHECK_EQ(n_images, p->video.in_pairs ? t : 1);
    CHECK(v[0]->h == gh && v[0]->w == gw && v[0]->t == (p->video.in_pairs ? 1 : t));
    for (line += used; sscanf(line, " %u:%f%n", &at, &value, &used) == 2; line += used)
        *worst =
            fmax(*worst,
                 at / v[0]->n_values < n_images ? off_by(p, v[at / v[0]->n_values], at % v[0]->n_values, value) : 1e9);
    for (unsigned k = 0; k < n_images; k++) vision_image_unref(v[k]);
    for (unsigned k = 0; k < n; k++) free(rgb[k]);
}

/* What api_images.c does: the whole, and copies of its parts. */
static void check_parts(const struct image_processor *p, const char *line, unsigned w, unsigned h, unsigned n,
                        double *worst)
{
    struct picture_part parts[PROCESSOR_MOST_PARTS];
    struct vision_image *v[1 + PROCESSOR_MOST_PARTS] = {NULL};
    uint8_t *rgb = picture(w, h), *part = malloc((size_t)w * h * 3);
    const uint8_t *frame = rgb;
    unsigned i, at;
    int used;
    float value;

    CHECK_EQ(image_processor_parts(p, w, h, parts), n);
    CHECK_OK(image_processor_run(p, &frame, 1, w, h, &v[0], NULL));
    frame = part;
    for (i = 0; i < n; i++) {
        for (uint32_t y = 0; y < parts[i].h; y++)
            memcpy(part + (size_t)y * parts[i].w * 3, rgb + ((size_t)(parts[i].y + y) * w + parts[i].x) * 3,
                   (size_t)parts[i].w * 3);
        CHECK_OK(image_processor_run(p, &frame, 1, parts[i].w, parts[i].h, &v[1 + i], NULL));
    }
    for (; sscanf(line, " %u:%u:%f%n", &i, &at, &value, &used) == 3; line += used)
        *worst = fmax(*worst, i <= n ? off_by(p, v[i], at, value) : 1e9);
    for (i = 0; i <= n; i++) vision_image_unref(v[i]);
    free(rgb);
    free(part);
}

TEST(videos_and_parts_are_those_of_transformers_within_one_of_255)
{
    struct image_processor qwen2 = processor(QWEN2), qwen3 = processor(QWEN3), gemma3 = processor(GEMMA3);
    char *text = NULL, *rest = NULL;
    uint32_t n_lines = 0;
    double worst = 0;
    size_t size;

    qwen2.video = (struct video_traits){128 * 28 * 28, 768 * 28 * 28, false, 0};
    qwen3.video = (struct video_traits){4096, 25165824, true, 0};
    CHECK_OK(file_read_all(test_path("videos.txt"), 1 << 20, &text, &size, NULL));
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        unsigned a, b, c;
        char name[16];
        int used = 0;
        double off = 0;

        if (is_left_out(n_lines++)) continue;
        CHECK(sscanf(line, "%15s %u %u %u%n", name, &a, &b, &c, &used) == 4);
        if (!strcmp(name, "parts"))
            check_parts(&gemma3, line + used, a, b, c, &off);
        else
            check_video(!strcmp(name, "qwen2") ? &qwen2 : &qwen3, line + used, a, b, c, &off);
        if (off > 1.01) test_note("%.40s: %.2f", line, off);
        worst = fmax(worst, off);
    }
    test_note("%u lines; worst %.3f of 255", n_lines, worst);
    CHECK(n_lines > 50);
    CHECK(worst < 1.01);
    mem_free(text);
}

TEST(a_videos_speed_frames_and_sizes_tell_it_apart)
{
    struct image_processor p = processor(QWEN2);
    uint8_t *rgb = picture(56, 56);
    const uint8_t *frames[] = {rgb, rgb, rgb, rgb};
    struct vision_image *v[6];
    struct rd_error err;

    p.video = (struct video_traits){3136, 50000, false, 2};
    CHECK_OK(image_processor_video(&p, frames, 4, 56, 56, 2, &v[0], &err));
    CHECK_OK(image_processor_video(&p, frames, 4, 56, 56, 1, &v[1], &err));
    CHECK_OK(image_processor_video(&p, frames, 3, 56, 56, 2, &v[2], &err));
    CHECK_OK(image_processor_run(&p, frames, 4, 56, 56, &v[3], &err));
    p.video.min_pixels = 6000;
    CHECK_OK(image_processor_video(&p, frames, 4, 56, 56, 2, &v[4], &err));
    p.video.tokens_per_second = 0;
    CHECK_OK(image_processor_video(&p, frames, 4, 56, 56, 2, &v[5], &err));
    CHECK(v[0]->t_step == 2.0f && v[1]->t_step == 4.0f && v[5]->t_step == 0);
    CHECK(v[0]->h == 4 && v[4]->h > 4);
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < i; k++) CHECK(memcmp(v[i]->digest, v[k]->digest, VISION_DIGEST) != 0);
    for (int i = 0; i < 6; i++) vision_image_unref(v[i]);
    CHECK(image_processor_video(&p, frames, 0, 56, 56, 2, v, &err) == RD_E_INVALID);
    CHECK(image_processor_video(&p, frames, PROCESSOR_MOST_FRAMES + 1, 56, 56, 2, v, &err) == RD_E_LIMIT);
    p.max_rows = 7;
    CHECK(image_processor_video(&p, frames, 4, 56, 56, 2, v, &err) == RD_E_LIMIT);
    p = processor(GEMMA3);
    CHECK(image_processor_video(&p, frames, 4, 56, 56, 2, v, &err) == RD_E_INVALID);
    CHECK_STR(err.text, "this model takes pictures, no video");
    free(rgb);
}

TEST(a_pair_is_at_the_middle_of_its_frames)
{
    struct image_processor p = processor(QWEN3);

    CHECK(image_processor_seconds(&p, 0, 5, 2) == 0.25 && image_processor_seconds(&p, 1, 5, 2) == 1.25);
    CHECK(image_processor_seconds(&p, 2, 5, 2) == 2.0); /* the last frame stands in for itself */
}

TEST(a_pixel_a_size_and_a_parameter_tell_images_apart)
{
    struct image_processor p = processor(QWEN2), other = p;
    uint8_t *rgb = picture(60, 50);
    const uint8_t *frame = rgb, *frames[] = {rgb, rgb};
    struct vision_image *v[5];
    struct rd_error err;

    other.max_pixels--;
    CHECK_OK(image_processor_run(&p, &frame, 1, 60, 50, &v[0], &err));
    CHECK_OK(image_processor_run(&p, &frame, 1, 50, 60, &v[1], &err));
    CHECK_OK(image_processor_run(&other, &frame, 1, 60, 50, &v[2], &err));
    CHECK_OK(image_processor_run(&p, frames, 2, 60, 50, &v[3], &err));
    rgb[60 * 50 * 3 - 1] ^= 1;
    CHECK_OK(image_processor_run(&p, &frame, 1, 60, 50, &v[4], &err));
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < i; k++) CHECK(memcmp(v[i]->digest, v[k]->digest, VISION_DIGEST) != 0);
    for (int i = 0; i < 5; i++) vision_image_unref(v[i]);
    free(rgb);
}

TEST(three_frames_are_two_patches_deep)
{
    struct image_processor p = processor(QWEN2);
    uint8_t *rgb = picture(56, 56);
    const uint8_t *frames[] = {rgb, rgb, rgb};
    struct vision_image *one, *three;
    struct rd_error err;

    CHECK_OK(image_processor_run(&p, frames, 1, 56, 56, &one, &err));
    CHECK_OK(image_processor_run(&p, frames, 3, 56, 56, &three, &err));
    CHECK(three->t == 2 && three->n_rows == 2 * one->n_rows && three->n_values == 2 * one->n_values);
    for (uint32_t i = 0; i < 2; i++)
        CHECK(memcmp(three->values + (size_t)i * one->n_values, one->values, one->n_values * sizeof(float)) == 0);
    vision_image_unref(one);
    vision_image_unref(three);
    free(rgb);
}

TEST(what_cannot_be_is_said)
{
    static const struct {
        const char *json, *words;
    } bad[] = {
        {"{", "line 1"},
        {"[]", "image_processor_type (none) is not known"},
        {"{\"image_processor_type\":\"ViTImageProcessor\"}", "\"ViTImageProcessor\" is not known"},
        {"{\"image_processor_type\":\"Qwen2VLImageProcessor\",\"patch_size\":0}",
         "patch_size: an integer from 1 to 1024"},
        {"{\"image_processor_type\":\"Qwen2VLImageProcessor\",\"image_std\":[1,0,1]}",
         "image_std: three numbers above 0"},
        {"{\"image_processor_type\":\"Qwen2VLImageProcessor\",\"min_pixels\":9999999}", "min_pixels is more than"},
        {"{\"image_processor_type\":\"Qwen2VLImageProcessor\",\"do_resize\":false}", "do_resize: false"},
        {"{\"image_processor_type\":\"Qwen2VLImageProcessor\",\"resample\":1}", "resample"},
        {"{\"image_processor_type\":\"Gemma3ImageProcessor\",\"size\":{\"height\":10,\"width\":20}}", "no square"},
        {"{\"image_processor_type\":\"Gemma3ImageProcessor\",\"pan_and_scan_max_num_crops\":17}",
         "pan_and_scan_max_num_crops"},
    };
    static const struct {
        uint32_t w, h;
        const char *words;
    } sizes[] = {{0, 5, "0 x 5"}, {201, 1, "too narrow"}, {1, 60000, "too narrow"}, {70000, 70000, "sides of 1 to"}};
    struct image_processor p;
    struct rd_error err;
    uint32_t w, h;

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        err.text[0] = 0;
        CHECK(image_processor_read(bad[i].json, strlen(bad[i].json), &p, &err) != RD_OK);
        CHECK(strstr(err.text, bad[i].words));
    }
    p = processor(QWEN2);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        CHECK(image_processor_size(&p, sizes[i].w, sizes[i].h, &w, &h, &err) == RD_E_INVALID);
        CHECK(strstr(err.text, sizes[i].words));
    }
    p.kind = PROCESSOR_SQUARE;
    p.side = p.patch * p.merge - 1;
    CHECK(image_processor_size(&p, 100, 100, &w, &h, &err) == RD_E_INVALID);
    CHECK(strstr(err.text, "pixels have no token"));
    p = processor(QWEN2);
    p.max_rows = 3;
    CHECK(image_processor_run(&p, &(const uint8_t *){(const uint8_t *)"abc"}, 1, 1, 1, &(struct vision_image *){NULL},
                              &err) == RD_E_LIMIT);
    CHECK_STR(err.text, "a picture of 1 x 1 pixels takes 4 tokens, 3 are allowed");
}

/* Whatever allocation fails: an error, and nothing is left. */
static struct model_file *eyes_of(const char *family)
{
    char name[128];
    struct model_file *g = NULL;

    snprintf(name, sizeof(name), "tests/golden/vision/%s/mmproj.gguf", family);
    if (model_file_open(test_path(name), model_hub_families(), &g, NULL) != RD_OK) abort();
    return g;
}

TEST(an_encoders_file_says_how_pictures_are_processed)
{
    struct image_processor p;
    struct rd_error err;
    struct model_file *g = eyes_of("gemma3");

    CHECK_OK(image_processor_of_keys(g, &p, &err));
    CHECK(p.kind == PROCESSOR_SQUARE && p.filter == RESIZE_BILINEAR && p.side == 80 && p.patch == 10 && p.merge == 2);
    CHECK(p.mean[1] == 0.5f && p.std[2] == 0.5f && p.temporal == 1);
    model_file_close(g);
    g = eyes_of("qwen3vl"); /* its keys of mean and deviation are those of the file */
    CHECK_OK(image_processor_of_keys(g, &p, &err));
    CHECK(p.kind == PROCESSOR_SMART && p.filter == RESIZE_BICUBIC && p.patch == 6 && p.merge == 2 && p.temporal == 2);
    CHECK(p.mean[0] == 0.5f && p.std[0] == 0.5f);
    CHECK_EQ(p.min_pixels, 65536);
    CHECK_EQ(p.max_pixels, 12 * 12 * PROCESSOR_MOST_ROWS);
    model_file_close(g);
    g = eyes_of("qwen25vl");
    CHECK_OK(image_processor_of_keys(g, &p, &err));
    CHECK_EQ(p.min_pixels, 3136);
    CHECK_EQ(p.patch, 14);
    model_file_close(g);
}

/* A folder with preprocessor_config.json of this text. */
static rd_status open_with(const char *text, const char *family, struct image_processor *p, struct rd_error *err)
{
    struct model_file *g = eyes_of(family);
    char folder[] = "/tmp/radish-processor-XXXXXX", path[64];
    rd_status st;
    FILE *f;

    if (!mkdtemp(folder)) abort();
    snprintf(path, sizeof(path), "%s/preprocessor_config.json", folder);
    f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0) abort();
    st = image_processor_open(folder, g, 77, p, err);
    if (unlink(path) != 0 || rmdir(folder) != 0) abort();
    model_file_close(g);
    return st;
}

TEST(a_directorys_processor_has_to_agree_with_its_encoder)
{
    struct image_processor p;
    struct rd_error err = {RD_OK, ""};

    CHECK_OK(open_with("{\"image_processor_type\":\"Qwen2VLImageProcessor\",\"min_pixels\":999,\"max_pixels\":99999}",
                       "qwen25vl", &p, &err));
    CHECK(p.min_pixels == 999 && p.max_pixels == 99999 && p.max_rows == 77);
    CHECK_EQ(open_with(QWEN3, "qwen25vl", &p, &err), RD_E_FORMAT);
    CHECK(strstr(err.text, "patches of 16") && strstr(err.text, "reads 14"));
    CHECK_EQ(open_with(QWEN2, "gemma3", &p, &err), RD_E_FORMAT);
    CHECK_EQ(open_with("{", "qwen25vl", &p, &err), RD_E_FORMAT);
    CHECK(strstr(err.text, "preprocessor_config.json: line 1"));
}

TEST(no_memory_is_an_error)
{
    struct image_processor p = processor(QWEN3);
    uint8_t *rgb = picture(70, 90);
    const uint8_t *frame = rgb;
    struct vision_image *v = NULL;
    struct rd_error err;
    uint32_t n = 0;

    for (rd_status st = RD_E_NOMEM; st != RD_OK; n++) {
        mem_fail_after((int64_t)n);
        st = image_processor_run(&p, &frame, 1, 70, 90, &v, &err);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
    }
    CHECK(n > 5);
    vision_image_unref(v);
    free(rgb);
}
