/* tests/sample/test_draw.c - a draw with temperature and min_p alone: the host's sampler, which skips what cannot win,
 * against the plain loop that a device's kernels run (draw_reference.h), over random rows. test_cuda runs the kernels
 * against the same. */
#include "base/draw.h"
#include <stdlib.h>
#include "base/random.h"
#include "draw_reference.h"
#include "sample/sampler.h"
#include "sample/vocab_scan.h"
#include "sanitized.h"
#include "test.h"

#define MOST 1200u

static void make_row(struct random *r, float *row, uint32_t n)
{
    static const float spreads[] = {0, 1e-6f, 0.1f, 2, 12, 60, 1e4f, 1e30f};
    const float spread = spreads[random_below(r, 8)],
                shift = random_below(r, 3) ? 0 : (float)random_unit(r) * 200 - 100;
    const uint64_t kind = random_below(r, 7);

    for (uint32_t i = 0; i < n; i++) {
        row[i] = ((float)random_unit(r) - 0.5f) * spread + shift;
        if (kind == 1) row[i] = roundf(row[i]); /* many equal */
        if (kind == 2 && random_below(r, 3)) row[i] = -INFINITY;
        if (kind == 3 && random_below(r, 40)) row[i] = -INFINITY;
        if (kind == 4) row[i] = random_below(r, 2) ? 0.0f : -0.0f;
        if (kind == 5 && random_below(r, 100) == 0) row[i] += 20; /* a few are far above the rest */
    }
    if (random_below(r, 40) == 0) row[random_below(r, n)] = random_below(r, 2) ? NAN : INFINITY;
}

static const float temperatures[] = {1, 0.7f, 0.1f, 1.7f, 100, DRAW_LOCAL_TEMPERATURE, 0.0156f, 1e-3f, 1e-30f, 1e-44f};

TEST(the_host_draws_what_the_plain_loop_draws)
{
    const uint32_t n_rows = test_is_long() ? 3000000 : IS_SANITIZED ? 12000 : 150000;
    struct sampler_scratch *x = NULL;
    uint32_t n_drawn = 0, n_broken = 0, n_banned_hit = 0;
    static float row[MOST];
    struct random r;

    random_init(&r, test_seed());
    CHECK_OK(sampler_scratch_create(MOST, &x));
    for (uint32_t k = 0; k < n_rows; k++) {
        const uint32_t n = 1 + (uint32_t)random_below(&r, k % 20 ? 200 : MOST), position = (uint32_t)random_u64(&r);
        struct sampler_params p;
        struct sampler_result out;
        struct sampler *s = NULL;
        int32_t want, banned[2];
        uint32_t n_banned = 0;
        rd_status st;

        sampler_params_default(&p);
        p.temperature = temperatures[random_below(&r, sizeof(temperatures) / sizeof(*temperatures))];
        p.min_p = random_below(&r, 2) ? 0 : random_below(&r, 10) ? (float)random_unit(&r) : 1;
        if (random_below(&r, 50) == 0) p.min_p = 1e-42f;
        p.seed = random_u64(&r);
        p.want_logprob = random_below(&r, 2);
        p.n_top_logprobs = (uint32_t)random_below(&r, 3);
        make_row(&r, row, n);
        CHECK_OK(sampler_create(&p, n, 8, &s));
        want = draw_reference(row, n, p.temperature, p.min_p, p.seed, position);
        if (want >= 0 && n > 2 && random_below(&r, 3) == 0) { /* what was drawn may be banned, or another */
            banned[n_banned++] = random_below(&r, 2) ? want : (int32_t)random_below(&r, n);
            banned[n_banned++] = (int32_t)random_below(&r, n);
            if (banned[0] == want || banned[1] == want) {
                want = draw_reference_of(row, n, p.temperature, p.min_p, p.seed, position, banned, n_banned);
                n_banned_hit++;
            }
        }
        st =
            sampler_sample(s, x, row, &(struct sampler_bounds){.banned = banned, .n_banned = n_banned}, position, &out);
        sampler_destroy(s);
        n_broken += st != RD_OK;
        n_drawn += st == RD_OK;
        if ((st == RD_OK) == (want >= 0) && (st != RD_OK || out.token == want)) continue;
        test_fail(__FILE__, __LINE__, "row %u of %u at temperature %g, min_p %g, seed %llu, position %u: %d, wanted %d",
                  k, n, (double)p.temperature, (double)p.min_p, (unsigned long long)p.seed, position,
                  st == RD_OK ? out.token : -1, want);
        break;
    }
    test_note("%u rows: %u drawn, %u of them with what was drawn banned, %u broken", n_rows, n_drawn, n_banned_hit,
              n_broken);
    CHECK(n_drawn > n_rows / 2 && n_broken > n_rows / 1000 && n_banned_hit > n_rows / 100);
    sampler_scratch_destroy(x);
}

/* Rows as long as vocabularies are, for the blocks that are skipped. */
TEST(long_rows_are_drawn_from_as_short_ones)
{
    enum { N = 152000 };
    float *row = malloc(N * sizeof(*row));
    struct sampler_scratch *x = NULL;
    struct random r;

    random_init(&r, test_seed());
    CHECK_OK(sampler_scratch_create(N, &x));
    for (uint32_t k = 0; row && k < (IS_SANITIZED ? 6 : 60); k++) {
        struct sampler_params p;
        struct sampler_result out;
        struct sampler *s = NULL;

        sampler_params_default(&p);
        p.temperature = k % 4 ? 1 : 0.6f;
        p.min_p = k % 5 ? 0 : 0.05f;
        p.seed = k;
        for (uint32_t i = 0; i < N; i++)
            row[i] = (float)(random_unit(&r) + random_unit(&r) + random_unit(&r) - 1.5) * (float)(k % 30);
        CHECK_OK(sampler_create(&p, N, 8, &s));
        CHECK_OK(sampler_sample(s, x, row, NULL, k * 3, &out));
        CHECK_EQ(out.token, draw_reference(row, N, p.temperature, p.min_p, p.seed, k * 3));
        sampler_destroy(s);
    }
    sampler_scratch_destroy(x);
    free(row);
}

/* All 2^23. Also that none exceeds the largest of those whose words begin with as many ones. */
TEST(every_gumbel_number_is_right)
{
    const uint32_t step = test_is_long() ? 1 : IS_SANITIZED ? 101 : 7;
    double worst = 0, wander = 0;

    for (uint32_t u = 0; u < 1u << 23; u += step) {
        const uint32_t word = u << 9, lead = u == (1u << 23) - 1 ? 23 : (uint32_t)__builtin_clz(~word);
        const double want = -log(-log(((double)u + 0.5) / (1 << 23))), is = (double)draw_gumbel(word);

        worst = fmax(worst, fabs(is - want) / fmax(1, fabs(want)));
        wander = fmax(wander, is - (double)draw_gumbel(~(0x80000000u >> lead)));
    }
    test_note("error %.2g, above the largest %.2g", worst, wander);
    CHECK(worst < 1e-6 && wander < 1e-5);
    CHECK(draw_log(1) == 0 && fabs((double)draw_log(0x1p-126f) + 87.3365447506) < 1e-4);
}

TEST(random_words_are_the_same_under_every_instruction_set)
{
    const struct vocab_kernels *kernels[] = {&vocab_kernels_base, vocab_kernels_best()};
    struct random r;

    random_init(&r, test_seed());
    for (int round = 0; round < 1000; round++) {
        const uint64_t seed = random_u64(&r);
        const uint32_t position = (uint32_t)random_u64(&r), id = (uint32_t)random_below(&r, 1 << 22) * 4;
        uint32_t words[VOCAB_BLOCK];

        for (int k = 0; k < 2; k++) {
            bool same = true;

            kernels[k]->words(seed, position, id, words);
            for (uint32_t i = 0; i < VOCAB_BLOCK; i++)
                same &= words[i] == draw_words(seed, position, id + (i & ~3u)).w[i & 3];
            CHECK(same);
        }
    }
}

/* The first test vectors of the generator's own distribution (Random123, kat_vectors). */
TEST(the_generator_is_philox)
{
    const struct philox_words zero = philox_4x32(0, 0, 0, 0, 0), ones = philox_4x32(~0u, ~0u, ~0u, ~0u, ~0ull);

    CHECK(zero.w[0] == 0x6627e8d5 && zero.w[1] == 0xe169c58d && zero.w[2] == 0xbc57ac4c && zero.w[3] == 0x9b00dbd8);
    CHECK(ones.w[0] == 0x408f276d && ones.w[1] == 0x41c83b0e && ones.w[2] == 0xa20bc7c6 && ones.w[3] == 0x6d5451fd);
}
