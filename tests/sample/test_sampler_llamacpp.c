/* tests/sample/test_sampler_llamacpp.c - what llama.cpp's samplers leave of a row, against ours; the file says its form
 * in tests/golden/make_llamacpp_samplers.py, which made it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "sample/sampler.h"
#include "test.h"

#define N       48u
#define HOT     100.0f /* a temperature at which every token that is left is drawn soon */
#define N_DRAWS 3000u

static float logits[N];

static bool read_logits(FILE *f)
{
    for (uint32_t i = 0; i < N; i++)
        if (fscanf(f, "%f", &logits[i]) != 1) return false;
    return true;
}

/* Numbers up to the point. */
static uint32_t read_list(FILE *f, int32_t *list, uint32_t most)
{
    uint32_t n = 0;

    while (n < most && fscanf(f, "%d", &list[n]) == 1) n++;
    if (fgetc(f) == ' ') (void)fgetc(f); /* the point itself */
    return n;
}

static uint8_t stage_of(char letter)
{
    switch (letter) {
    case 'k':
        return SAMPLER_TOP_K;
    case 'p':
        return SAMPLER_TOP_P;
    case 'm':
        return SAMPLER_MIN_P;
    case 'y':
        return SAMPLER_TYPICAL_P;
    case 's':
        return SAMPLER_TOP_N_SIGMA;
    default:
        return SAMPLER_XTC;
    }
}

static void check_cut(FILE *f, struct sampler_scratch *x)
{
    struct sampler_params p;
    struct sampler *s = NULL;
    char letters[8];
    int32_t left[N];
    uint32_t n_left, n_drawn = 0;
    bool drawn[N] = {false};

    sampler_params_default(&p);
    CHECK_EQ(fscanf(f, "%7s %d %f %f %f %f %f", letters, &p.top_k, &p.top_p, &p.min_p, &p.typical_p, &p.top_n_sigma,
                    &p.xtc_threshold),
             7);
    CHECK(read_logits(f));
    n_left = read_list(f, left, N);
    p.xtc_probability = 1;
    p.temperature = HOT;
    p.has_stages = true;
    for (const char *l = letters; *l; l++) p.stages[p.n_stages++] = stage_of(*l);
    p.stages[p.n_stages++] = SAMPLER_TEMPERATURE;
    CHECK_OK(sampler_create(&p, N, 8, &s));
    for (uint64_t i = 0; i < N_DRAWS; i++) {
        struct sampler_result out;

        CHECK_OK(sampler_sample(s, x, logits, NULL, i, &out));
        n_drawn += !drawn[out.token];
        drawn[out.token] = true;
    }
    CHECK_EQ(n_drawn, n_left);
    for (uint32_t i = 0; i < n_left; i++) CHECK(drawn[left[i]]);
    sampler_destroy(s);
}

static void check_dry(FILE *f, struct sampler_scratch *x)
{
    int32_t history[64], singles[8], pairs[8], want;
    uint32_t n_history, n_singles, n_pairs, ends[4] = {2, 4, 6, 8};
    struct sampler_result out;
    struct sampler_params p;
    struct sampler *s = NULL;
    uint64_t bits = 0;

    sampler_params_default(&p);
    p.temperature = 0;
    CHECK_EQ(fscanf(f, "%f %f %d %d", &p.dry_multiplier, &p.dry_base, &p.dry_allowed_length, &p.dry_last_n), 4);
    n_history = read_list(f, history, 64);
    n_singles = read_list(f, singles, 8);
    n_pairs = read_list(f, pairs, 8);
    CHECK(read_logits(f));
    CHECK_EQ(fscanf(f, "%d", &want), 1);
    for (uint32_t i = 0; i < n_singles; i++) bits |= 1ull << singles[i];
    p.dry_breakers = &bits;
    p.dry_break_words = (struct sampler_words){pairs, ends, n_pairs / 2};
    CHECK_OK(sampler_create(&p, N, 64, &s));
    for (uint32_t i = 0; i < n_history; i++) sampler_accept(s, history[i], true);
    CHECK_OK(sampler_sample(s, x, logits, NULL, 0, &out));
    CHECK_EQ(out.token, want);
    sampler_destroy(s);
}

TEST(cuts_and_penalties_are_those_of_llama_cpp)
{
    FILE *f = fopen(test_path("samplers/llamacpp.txt"), "r");
    struct sampler_scratch *x = NULL;
    uint32_t n_cuts = 0, n_dry = 0;
    char kind[8];

    CHECK(f);
    if (!f) return;
    CHECK_OK(sampler_scratch_create(N, &x));
    while (fscanf(f, "%7s", kind) == 1) {
        if (kind[0] == 'c') {
            check_cut(f, x);
            n_cuts++;
        } else if (kind[0] == 'd') {
            check_dry(f, x);
            n_dry++;
        } else if (kind[0] != '.') {
            test_fail(__FILE__, __LINE__, "an unknown line: %s", kind);
            break;
        }
    }
    CHECK_EQ(n_cuts, 120);
    CHECK_EQ(n_dry, 160);
    sampler_scratch_destroy(x);
    fclose(f);
}
