/* tests/engine/test_isolate.c - with isolation, a page that passes from one namespace to another holds nothing of the
 * first one, not even in the rows that nobody reads. (F78)
 */
#include "sim_rig.h"

#define P       4u
#define N_PAGES 24u
#define FIRST   0x5a5a5a5a00000001ull /* salts far apart: rows are hashes of them */
#define SECOND  0x00c3c3c3c3c3c302ull
#define N_FIRST 61u /* tokens of the first tenant: nearly all pages */

struct rig {
    struct sim_executor x;
    struct clock *clock;
    struct engine *e;
};

static rd_status page_in(void *self, kv_page id, const void *from)
{
    struct sim_executor *x = self;

    memcpy(x->rows + (size_t)id * P, from, P * sizeof(*x->rows));
    return RD_OK;
}

/* A device: pages are not at hand, they are written by page_in. */
static bool rig_open(struct rig *g, bool isolate, bool is_device)
{
    struct engine_options o;

    memset(g, 0, sizeof(*g));
    g->clock = clock_fake_create(1, 0);
    if (!g->clock || !sim_init(&g->x, N_PAGES, P, test_seed())) return false;
    o = sim_options(sim_view(&g->x, 64, 8), g->clock, N_PAGES, P);
    o.isolate = isolate;
    if (is_device) {
        o.executor.page = NULL;
        o.executor.page_in = page_in;
    }
    if (engine_create(&o, &g->e) != RD_OK) return false;
    g->x.engine = g->e;
    return true;
}

static bool rig_close(struct rig *g)
{
    bool ok = g->x.n_wrong_rows == 0;

    engine_destroy(g->e);
    sim_deinit(&g->x);
    clock_fake_destroy(g->clock);
    return ok;
}

/* Rows in the pages of r's block table that some row of the first tenant's had. */
static uint32_t n_foreign_rows(const struct rig *g, const struct request *r, const uint64_t *foreign, uint32_t n)
{
    uint32_t found = 0;

    for (uint32_t k = 0; k < r->seq.n_pages; k++)
        for (uint32_t row = 0; row < P; row++)
            for (uint32_t i = 0; i < n; i++) found += g->x.rows[(size_t)r->seq.pages[k] * P + row] == foreign[i];
    return found;
}

static uint32_t run(struct rig *g, uint64_t salt, uint64_t text, uint32_t n_prompt, bool cached,
                    const uint64_t *foreign, uint32_t n_foreign)
{
    struct request_params p = sim_params(3, salt);
    struct request *r;
    int32_t prompt[128];
    uint32_t found = 0;

    p.cached = cached;
    sim_prompt(prompt, n_prompt, text);
    r = sim_submit(g->e, &p, prompt, n_prompt);
    if (!r) return UINT32_MAX;
    while (!atomic_load(&r->ended)) {
        (void)sim_step(g->e);
        found += n_foreign_rows(g, r, foreign, n_foreign);
    }
    request_unref(r);
    return found;
}

/* The first tenant's rows that are seen in the second one's pages, over many requests of the second. */
static uint32_t count_foreign(bool isolate, bool is_device, bool cached)
{
    uint64_t foreign[N_FIRST] = {0};
    struct rig g;
    uint32_t n = 0, found = 0;

    if (!rig_open(&g, isolate, is_device)) return UINT32_MAX;
    (void)run(&g, FIRST, 7, N_FIRST, true, foreign, 0);
    for (uint32_t i = 0; i < N_PAGES * P && n < N_FIRST; i++)
        if (g.x.rows[i]) foreign[n++] = g.x.rows[i];
    for (uint32_t k = 0; k < 12; k++) found += run(&g, SECOND, 100 + k, 9 + k * 3, cached, foreign, n);
    return rig_close(&g) && n > 50 ? found : UINT32_MAX;
}

TEST(pages_are_zeros_when_they_change_namespaces)
{
    for (int is_device = 0; is_device < 2; is_device++)
        for (int cached = 0; cached < 2; cached++) {
            uint32_t found = count_foreign(false, is_device, cached);

            test_note("without isolation %u of the first tenant's rows lie in the second one's pages", found);
            CHECK(found > 0 && found < UINT32_MAX); /* the scan sees what there is to see */
            CHECK_EQ(count_foreign(true, is_device, cached), 0);
        }
}

TEST(a_tenant_keeps_its_own_pages_and_answers_stay_the_same)
{
    struct rig g;
    uint64_t none[1] = {0};

    CHECK(rig_open(&g, true, false));
    for (uint32_t k = 0; k < 40; k++) (void)run(&g, 1 + k % 3, k / 6, 5 + k % 30, k % 4 > 0, none, 0);
    CHECK(rig_close(&g)); /* every row that was read was the right one */
}
