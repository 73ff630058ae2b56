/* tests/engine/images_rig.c - see the header. */
#include "images_rig.h"
#include "base/log.h"
#include "test.h"

static void ignore_line(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

bool images_rig_open(struct images_rig *g, bool both_ways, uint64_t image_bytes,
                     void (*change)(struct images_rig *g, struct engine_options *o))
{
    struct engine_options o;

    log_set_sink(ignore_line, NULL);
    memset(g, 0, sizeof(*g));
    g->clock = clock_fake_create(1000000000, 1);
    if (!g->clock || !sim_init(&g->x, 256, 4, test_seed())) return false;
    if (!sim_images_init(&g->images, both_ways, IMAGES_RIG_ROWS, test_seed())) return false;
    o = (struct engine_options){.executor = sim_view(&g->x, 64, 8),
                                .clock = g->clock,
                                .n_pages = 256,
                                .page_tokens = 4,
                                .n_ctx = 512,
                                .max_running = 8,
                                .max_queue = 16,
                                .max_chunk = 64,
                                .step_target_ns = 100000000,
                                .ttl_ns = 10000000000ull,
                                .kv_bytes = 1 << 24,
                                .image_bytes = image_bytes,
                                .namespace_name = "sim",
                                .namespace_bytes = 3};
    sim_images_give(&g->images, &o.executor);
    if (change) change(g, &o);
    if (engine_create(&o, &g->e) != RD_OK) return false;
    g->x.engine = g->e;
    return true;
}

void images_rig_close(struct images_rig *g)
{
    struct rd_error err = {RD_OK, ""};

    if (engine_check(g->e, &err) != RD_OK) test_fail(__FILE__, __LINE__, "%s", err.text);
    CHECK_EQ(g->x.n_wrong_rows, 0);
    engine_destroy(g->e);
    clock_fake_destroy(g->clock);
    sim_deinit(&g->x);
    CHECK_EQ(g->images.n_begun, g->images.n_ended);
    sim_images_deinit(&g->images);
}
