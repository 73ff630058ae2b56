/* tests/rooms/test_number.c - docs/architecture.md, "What it takes to add something": a number of the sampler is a row and what
 * the sampler does with it. The build adds the row to a copy of sampling.h and the function to one of sampler_chain.c, and
 * compiles the sampler, and the tables of the library and the server, with them. */
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "radish/radish.h"
#include "sample/sampler.h"
#include "server/params/params.h"
#include "test.h"

enum { N_VOCAB = 64, N_DRAWS = 200 };

/* How many of the draws are odd tokens. */
static uint32_t count_odd(int32_t toy_even)
{
    struct sampler_params p;
    struct sampler_result r;
    struct sampler_scratch *x = NULL;
    struct sampler *s = NULL;
    float logits[N_VOCAB];
    uint32_t n_odd = 0;

    for (int i = 0; i < N_VOCAB; i++) logits[i] = (float)(i % 7) / 7;
    sampler_params_default(&p);
    p.toy_even = toy_even;
    p.seed = 5;
    p.has_stages = true;
    p.stages[p.n_stages++] = SAMPLER_TYPICAL_P; /* an order of its own: the chain */
    if (sampler_scratch_create(N_VOCAB, &x) != RD_OK || sampler_create(&p, N_VOCAB, N_DRAWS, &s) != RD_OK) abort();
    for (uint64_t i = 0; i < N_DRAWS; i++)
        if (sampler_sample(s, x, logits, NULL, i, &r) == RD_OK) n_odd += r.token & 1;
    sampler_destroy(s);
    sampler_scratch_destroy(x);
    return n_odd;
}

TEST(a_number_of_the_sampler_is_a_row_and_its_function)
{
    uint32_t plain = count_odd(0);

    CHECK(plain > 0 && plain < N_DRAWS);
    CHECK_EQ(count_odd(1), 0);
}

TEST(the_row_is_the_default_the_check_and_the_field_of_requests)
{
    struct rd_sampling sampling;
    struct sampler_params p;
    struct rd_error err = {RD_OK, ""};
    const struct param_spec *row = NULL, *rows;
    size_t n;

    rd_sampling_default(&sampling);
    CHECK_EQ(sampling.toy_even, 0);
    sampler_params_default(&p);
    p.toy_even = 2;
    CHECK_EQ(sampler_params_check(&p, N_VOCAB, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "toy_even") != NULL);
    rows = param_table(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, "toy_even") == 0) row = &rows[i];
    CHECK(row && row->type == PARAM_WHOLE && row->endpoints == FOR_GENERATION);
    CHECK(row->min == 0 && row->max == 1 && strcmp(row->alias, "only_even") == 0);
    CHECK_EQ(row->offset, offsetof(struct gen_params, sampling.toy_even));
}
