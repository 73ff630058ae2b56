/* tests/sim/test_sim.c - random requests with cancels, slow readers, saturation, evictions, preemption and device
 * errors, from a printed seed. After every step: every invariant of the tree, the pages and the requests. Every request
 * ends exactly once; greedy answers are what the model says, whatever happened to the cache meanwhile. In some worlds
 * pages go to a page store on disk and come back, at random times, while its file calls fail at random.
 *
 * RADISH_SIM_REQUESTS overrides the number of requests: 1,000,000 (./check: 200,000; with RADISH_LONG=1: 5,000,000), or
 * 20,000 where sanitizers or debugging make each ten times dearer.
 */
#include "base/file.h"
#include "base/log.h"
#include "engine/draft/draft_model.h"
#include "engine/names/cache_names.h"
#include "engine/tiers/ram_link.h"
#include "sim_executor.h"
#include "sim_images.h"
#include "sim_store.h"
#include "test.h"

#define MAX_TRACKED 48
#define MAX_PROMPT  160
#define MAX_NEW     24

struct tracked {
    struct request *r;
    uint32_t n_prompt, n_out, max_tokens;
    int32_t prompt[MAX_PROMPT], out[MAX_NEW];
    bool greedy, cancelled;
    uint32_t lifetime; /* steps after which it is cancelled; 0 = never */
};

struct world {
    struct sim_executor x, small; /* the served model and, in some worlds, a draft model */
    struct draft_model *draft;
    struct sim_images images; /* likewise */
    struct sim_store store;   /* in some worlds; link NULL otherwise */
    struct ram_link *ram;     /* likewise */
    bool is_ahead;
    struct engine *e;
    struct clock *clock;
    struct random random;
    struct tracked t[MAX_TRACKED];
    int32_t history[16][MAX_PROMPT]; /* texts that later prompts begin with */
    uint32_t n_history[16];
    int32_t end_token;
    uint64_t n_unseen; /* ended by an image that was not encoded */
    uint64_t n_drops, n_dropped_keys, n_saves, n_listed;
    uint64_t n_submitted, n_full, n_refused, n_ended, n_done, n_cancelled, n_device, n_other, n_verified, n_wrong_text,
        n_steps;
};

struct sim_setup {
    uint32_t n_pages, page_tokens, max_running, max_queue, max_rows, fail_one_in;
    uint64_t seed;
    bool draft_model;
    uint32_t store_bytes, store_fault_one_in;
    uint32_t ram_pages, ram_fault_one_in;
    uint32_t n_windows, window; /* 0: all layers see everything */
    bool ahead;                 /* steps ahead, on a device that chooses tokens */
};

/* What the model sees. */
struct sim_sight {
    uint32_t image_rows; /* of one at most; 0: nothing */
    bool both_ways;
    uint32_t fault_one_in;
};

#define N_NAMES 6u
static const char *const names[N_NAMES] = {"a", "agent-1", "agent-2", "b", "a longer name", "\xc3\xa9"};

static bool draft_open(struct world *w, const struct sim_setup *s)
{
    struct draft_model_options o = {0};

    if (!sim_init(&w->small, s->n_pages / 2, 8, s->seed + 3)) return false;
    o = (struct draft_model_options){.executor = sim_view(&w->small, 48, s->max_running),
                                     .clock = w->clock,
                                     .n_pages = s->n_pages / 2,
                                     .page_tokens = 8,
                                     .n_vocab = SIM_VOCAB,
                                     .max_running = s->max_running};
    w->small.wrong_one_in = 4;
    if (draft_model_create(&o, &w->draft) != RD_OK) return false;
    w->small.draft = w->draft;
    return true;
}

static bool world_open(struct world *w, const struct sim_setup *s, struct sim_sight sight, uint64_t n_requests)
{
    bool often = s->store_bytes || s->fail_one_in || s->ram_pages || n_requests < 50000; /* enough to be sure of some */

    struct engine_options o = {0};

    memset(w, 0, sizeof(*w));
    random_init(&w->random, s->seed);
    if (!sim_init(&w->x, s->n_pages, s->page_tokens, s->seed + 1)) return false;
    if (s->n_windows && !sim_make_windows(&w->x, s->n_windows, s->window)) return false;
    w->clock = clock_fake_create(1, 1);
    w->x.chooses = w->is_ahead = s->ahead;
    w->end_token = SIM_END_TOKEN;
    o = (struct engine_options){.executor = sim_view(&w->x, s->max_rows, s->max_running + 5),
                                .clock = w->clock,
                                .n_pages = s->n_pages,
                                .page_tokens = s->page_tokens,
                                .n_ctx = 512,
                                .max_running = s->max_running,
                                .max_queue = s->max_queue,
                                .max_chunk = s->max_rows,
                                .step_target_ns = 100000000,
                                .ttl_ns = 60000000000ull,
                                .kv_bytes = 1 << 20,
                                .namespace_name = "sim",
                                .namespace_bytes = 3,
                                .speculate = true,
                                .verify_share = often ? 0.2 : 0.01,
                                .verify_seed = s->seed + 4,
                                .chunk_seed = s->seed + 2};
    w->x.fail_one_in = s->fail_one_in;
    if (sight.image_rows) {
        if (!sim_images_init(&w->images, sight.both_ways, sight.image_rows, s->seed + 5)) return false;
        sim_images_give(&w->images, &o.executor);
        w->images.fail_one_in = sight.fault_one_in;
        o.image_bytes = 3 * sight.image_rows * sizeof(float);
    }
    if (s->draft_model && !draft_open(w, s)) return false;
    o.draft_model = w->draft;
    if (s->store_bytes &&
        (!sim_store_init(&w->store) ||
         !sim_store_open(&w->store, s->page_tokens, o.executor.page_bytes, s->store_bytes, w->clock, false)))
        return false;
    o.store = w->store.link;
    w->x.n_slow = 3;
    w->x.move_fail_one_in = s->ram_fault_one_in;
    if (s->ram_pages && ram_link_create(s->ram_pages * o.executor.page_bytes, o.executor.page_bytes, s->page_tokens,
                                        512 / s->page_tokens + 1, false, &w->ram) != RD_OK)
        return false;
    o.ram = w->ram;
    file_fail_one_in(s->store_fault_one_in, s->seed);
    if (engine_create(&o, &w->e) != RD_OK) return false;
    w->x.engine = w->e;
    return true;
}

static void world_close(struct world *w)
{
    engine_destroy(w->e);
    file_fail_one_in(0, 0);
    if (w->store.link) sim_store_deinit(&w->store);
    ram_link_destroy(w->ram);
    draft_model_destroy(w->draft);
    if (w->draft) sim_deinit(&w->small);
    sim_images_deinit(&w->images);
    clock_fake_destroy(w->clock);
    sim_deinit(&w->x);
}

/* One of the images, anywhere before a text's end; often where one is already. */
static uint32_t add_image(struct world *w, int32_t *prompt, uint32_t n)
{
    uint32_t i = (uint32_t)random_below(&w->random, SIM_IMAGES), n_rows = w->images.images[i]->n_rows;
    uint32_t at = (uint32_t)random_below(&w->random, n);

    while (at > 0 && (prompt[at] < 0 || prompt[at - 1] < 0)) at--; /* not into another one */
    if (n + n_rows > MAX_PROMPT - MAX_NEW) return n;
    memmove(prompt + at + n_rows, prompt + at, (n - at) * sizeof(*prompt));
    memcpy(prompt + at, w->images.keys[i], n_rows * sizeof(*prompt));
    return n + n_rows;
}

/* A new text, or one that goes on from something seen before, sometimes cut short: hits of every kind. */
static uint32_t make_prompt(struct world *w, int32_t *prompt)
{
    uint32_t h = (uint32_t)random_below(&w->random, 16), n = 0, n_more;

    if (random_below(&w->random, 8) > 0) {
        n = w->n_history[h];
        if (n > 0 && random_below(&w->random, 3) == 0) n = 1 + (uint32_t)random_below(&w->random, n);
        memcpy(prompt, w->history[h], n * sizeof(*prompt));
    }
    n_more = n == 0 ? 1 + (uint32_t)random_below(&w->random, 40) : (uint32_t)random_below(&w->random, 12);
    for (uint32_t i = 0; i < n_more && n < MAX_PROMPT - MAX_NEW; i++)
        prompt[n++] = 1 + (int32_t)random_below(&w->random, SIM_VOCAB - 1);
    if (n > MAX_PROMPT - MAX_NEW) n = MAX_PROMPT - MAX_NEW;
    if (w->x.images && random_below(&w->random, 3) == 0) n = add_image(w, prompt, n);
    return n;
}

static void submit(struct world *w, struct tracked *t)
{
    struct vision_place places[MAX_PROMPT];
    struct request_params p = {0};

    if (engine_take_place(w->e) != RD_OK) {
        w->n_full++;
        return;
    }
    memset(t, 0, sizeof(*t));
    t->n_prompt = make_prompt(w, t->prompt);
    if (w->x.images) {
        p.n_places = sim_images_find(&w->images, t->prompt, &t->n_prompt, places);
        p.places = places;
        p.vision = &w->images.traits;
        if (t->n_prompt == 0) t->prompt[t->n_prompt++] = 1;
    }
    t->max_tokens = (uint32_t)random_below(&w->random, MAX_NEW + 1);
    t->greedy = random_below(&w->random, w->is_ahead ? 10 : 2);
    t->lifetime = random_below(&w->random, 6) == 0 ? 1 + (uint32_t)random_below(&w->random, 12) : 0;
    sampler_params_default(&p.sampling);
    p.sampling.temperature = t->greedy ? 0 : 0.9f;
    p.sampling.seed = random_u64(&w->random);
    if (w->is_ahead && random_below(&w->random, 60) > 0) p.sampling.top_k = 0, p.sampling.top_p = 1; /* drawn there */
    p.max_tokens = t->max_tokens;
    p.max_keys = 512;
    p.cached = random_below(&w->random, 20) != 0;
    p.end_tokens = &w->end_token;
    p.n_end_tokens = 1;
    p.prompt_logprobs = random_below(&w->random, 50) == 0 && p.n_places == 0;
    p.fair_key = random_below(&w->random, 3);
    if (random_below(&w->random, 3) == 0) p.name = names[random_below(&w->random, N_NAMES)];
    p.speculate =
        random_below(&w->random, w->is_ahead ? 100 : 4) != 0 && !(w->is_ahead && random_below(&w->random, 50));
    p.idle = random_below(&w->random, 10) == 0;
    if (random_below(&w->random, 4) == 0) /* the same texts in other namespaces */
        p.space = sim_space(random_below(&w->random, 2) * SIM_ADAPTER + 1 + random_below(&w->random, 3));
    for (uint32_t i = 0; i < REQUEST_N_KEEPS; i++) /* prompts that are kept longer, in all classes */
        if (random_below(&w->random, 8) == 0)
            p.keep[i] = (struct request_keep){random_below(&w->random, 2 * t->n_prompt), i == 0   ? RADIX_SHORT
                                                                                         : i == 1 ? RADIX_LONG
                                                                                                  : RADIX_DAY};
    p.keep_match = random_below(&w->random, 8) == 0;
    if (random_below(&w->random, 16) == 0)
        (void)engine_hold_next(w->e, &p.space, (const kv_key *)t->prompt, t->n_prompt);
    if (w->is_ahead && !t->greedy) p.ignore_eos = true; /* ends are drawn all the same, and must not be */
    if (p.prompt_logprobs) p.cached = false;
    if (request_create(&p, engine_cache(w->e), SIM_VOCAB, t->prompt, t->n_prompt, &t->r, NULL) != RD_OK) {
        engine_give_place(w->e);
        return;
    }
    if (!w->is_ahead || random_below(&w->random, 20) == 0) t->r->ring_cap = 4; /* readers can fall behind */
    if (engine_submit(w->e, t->r) != RD_OK) {
        w->n_refused++;
        engine_give_place(w->e);
        request_unref(t->r);
        t->r = NULL;
        return;
    }
    w->n_submitted++;
}

static void verify_text(struct world *w, const struct tracked *t)
{
    int32_t want[MAX_NEW];
    uint64_t digest = sim_begin(&t->r->p);
    uint32_t n;

    for (uint32_t i = 0; i < t->n_prompt; i++) digest = sim_digest(digest, (uint32_t)t->prompt[i]);
    n = sim_greedy(digest, t->max_tokens, want);
    w->n_verified++;
    w->n_wrong_text += n != t->n_out || memcmp(want, t->out, n * sizeof(*want)) != 0;
}

static void remember(struct world *w, const struct tracked *t)
{
    uint32_t h = (uint32_t)random_below(&w->random, 16);

    memcpy(w->history[h], t->prompt, t->n_prompt * sizeof(t->prompt[0]));
    memcpy(w->history[h] + t->n_prompt, t->out, t->n_out * sizeof(t->out[0]));
    w->n_history[h] = t->n_prompt + t->n_out;
    if (w->n_history[h] > MAX_PROMPT - MAX_NEW) w->n_history[h] = MAX_PROMPT - MAX_NEW;
}

static void read_some(struct world *w, struct tracked *t)
{
    struct token_logprob top[20];
    struct token_out out;
    bool was_full, ended = atomic_load(&t->r->ended);

    if (!ended && random_below(&w->random, 3) == 0) return; /* a slow reader */
    while (request_pop(t->r, &out, top, &was_full))
        if (t->n_out < MAX_NEW) t->out[t->n_out++] = out.token;
    if (t->lifetime && --t->lifetime == 0) {
        t->cancelled = true;
        request_cancel(t->r, random_below(&w->random, 2) ? CANCEL_GONE : CANCEL_SATISFIED);
    }
    if (!ended) return;
    w->n_ended++;
    if (t->r->finish == REQUEST_ERROR) {
        if (t->r->status == RD_E_DEVICE)
            w->n_device++;
        else if (t->r->status == RD_E_NOMEM && w->images.n_failed > 0)
            w->n_unseen++;
        else
            w->n_other += !(t->r->p.idle && t->r->status == RD_E_NO_PAGES); /* what nobody waits for may fail to fit */
    } else if (t->r->finish == REQUEST_CANCELLED || t->cancelled) {
        w->n_cancelled++;
    } else {
        w->n_done++;
        if (t->greedy) verify_text(w, t);
        remember(w, t);
    }
    request_unref(t->r);
    t->r = NULL;
}

/* Keys of the tree by who has them alone: so many claims at most are told apart. */
#define MAX_CLAIMS 512u
struct by_claim {
    uint64_t claim[MAX_CLAIMS], n_keys[MAX_CLAIMS];
    uint32_t n;
};

static bool count_claim(void *arg, const struct radix_node *node, uint32_t depth)
{
    struct by_claim *c = arg;
    uint32_t i = 0;

    if (depth == 0) return true;
    while (i < c->n && c->claim[i] != radix_node_claim(node)) i++;
    if (i == MAX_CLAIMS) return false;
    if (i == c->n) c->claim[c->n++] = radix_node_claim(node), c->n_keys[i] = 0;
    c->n_keys[i] += radix_node_n_keys(node);
    return true;
}

static uint64_t n_of(const struct by_claim *c, uint64_t claim)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->claim[i] == claim) return c->n_keys[i];
    return 0;
}

static void ignore_name(void *arg, const struct cache_name_info *info)
{
    struct world *w = arg;

    w->n_listed += info->n_own <= info->n_tokens;
}

/* A name is dropped: of its own keys some go, of everybody else's none. */
static bool drop_name(struct world *w, const struct kv_space *space, const char *name)
{
    static struct by_claim before, after;
    uint32_t n_changed = 0;
    uint64_t n_pages;

    before.n = after.n = 0;
    radix_walk(engine_cache(w->e)->tree, count_claim, &before);
    if (cache_names_drop(w->e, space, name, NULL, &n_pages) != RD_OK) return true;
    radix_walk(engine_cache(w->e)->tree, count_claim, &after);
    w->n_drops++;
    if (before.n == MAX_CLAIMS) return true;
    for (uint32_t i = 0; i < before.n; i++) {
        uint64_t left = n_of(&after, before.claim[i]);

        if (left == before.n_keys[i]) continue;
        n_changed++;
        w->n_dropped_keys += before.n_keys[i] - left;
        if (left > before.n_keys[i] || before.claim[i] == 0 || before.claim[i] == RADIX_COMMON) n_changed = 2;
    }
    if (n_changed > 1)
        test_fail(__FILE__, __LINE__, "step %llu: a drop took what others use", (unsigned long long)w->n_steps);
    return n_changed <= 1;
}

static bool use_names(struct world *w)
{
    struct kv_space space = {0};
    const char *name = names[random_below(&w->random, N_NAMES)];
    uint32_t n_left;

    if (random_below(&w->random, 4) == 0)
        space = sim_space(random_below(&w->random, 2) * SIM_ADAPTER + 1 + random_below(&w->random, 3));
    switch (random_below(&w->random, 400)) {
    case 0:
    case 1:
    case 2:
    case 3:
        return drop_name(w, &space, name);
    case 4:
        w->n_saves += cache_names_save(w->e, &space, name, NULL, &n_left) == RD_OK;
        return true;
    case 5:
        return cache_names_list(w->e, &space, ignore_name, w) == RD_OK;
    case 6:
        if (random_below(&w->random, 20) == 0) cache_names_clear(w->e);
        return true;
    default:
        return true;
    }
}

/* One turn of the world; false when an invariant broke. */
static bool turn(struct world *w, bool arrivals)
{
    struct rd_error err = {RD_OK, ""};

    for (int i = 0; i < MAX_TRACKED; i++) {
        if (!w->t[i].r && arrivals && random_below(&w->random, w->is_ahead ? 150 : 8) == 0) submit(w, &w->t[i]);
    }
    engine_step(w->e);
    if (w->store.link && random_below(&w->random, 4) == 0) store_link_work(w->store.link);
    w->n_steps++;
    if (!use_names(w)) return false;
    clock_fake_advance(w->clock, 1000000 + random_below(&w->random, 50000000));
    if (engine_check(w->e, &err) != RD_OK) {
        test_fail(__FILE__, __LINE__, "step %llu: %s", (unsigned long long)w->n_steps, err.text);
        return false;
    }
    if (w->x.n_wrong_rows || w->small.n_wrong_rows) {
        test_fail(__FILE__, __LINE__, "step %llu: a page was read that does not hold its sequence's prefix",
                  (unsigned long long)w->n_steps);
        return false;
    }
    for (int i = 0; i < MAX_TRACKED; i++)
        if (w->t[i].r) read_some(w, &w->t[i]);
    return true;
}

static void ignore_line(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

static void simulate_sight(const struct sim_setup *s, struct sim_sight sight, uint64_t n_requests)
{
    static struct world w;
    struct engine_stats stats;
    struct page_counts c;
    uint64_t quiet = 0;

    log_set_sink(ignore_line, NULL);
    CHECK(world_open(&w, s, sight, n_requests));
    for (uint64_t busy = 0, idle = 0; w.n_submitted < n_requests; busy++) {
        CHECK(turn(&w, busy < 400)); /* then quiet times, so that the engine is idle for a while */
        if (w.n_ended == w.n_submitted && ++idle == 60) busy = idle = 0;
    }
    while (w.n_ended < w.n_submitted) {
        CHECK(turn(&w, false));
        CHECK(++quiet < 100000); /* nothing may be stuck */
    }
    engine_get_stats(w.e, &stats);
    test_note("%u pages of %u: %llu requests in %llu steps: %llu done, %llu cancelled, %llu ended by %llu device "
              "errors; %llu turned away; "
              "%llu preempted, %llu pages evicted, %llu rows copied, %llu of %llu prompt tokens cached (%llu joined in "
              "flight), %llu of %llu drafted tokens right",
              s->n_pages, s->page_tokens, (unsigned long long)w.n_ended, (unsigned long long)w.n_steps,
              (unsigned long long)w.n_done, (unsigned long long)w.n_cancelled, (unsigned long long)w.n_device,
              (unsigned long long)w.x.n_failed, (unsigned long long)(w.n_full + w.n_refused),
              (unsigned long long)stats.n_preempted, (unsigned long long)stats.pages_evicted,
              (unsigned long long)stats.rows_copied, (unsigned long long)stats.prompt_cached,
              (unsigned long long)(stats.prompt_cached + stats.prompt_computed),
              (unsigned long long)stats.prompt_joined, (unsigned long long)stats.draft_accepted,
              (unsigned long long)stats.drafted);
    CHECK_EQ(w.n_ended, w.n_submitted);
    CHECK_EQ(w.n_other, 0);
    CHECK_EQ(w.n_wrong_text, 0);
    CHECK(w.n_verified > 0);
    CHECK_EQ(stats.n_stop + stats.n_length + stats.n_cancelled + stats.n_failed, w.n_submitted);
    CHECK_EQ(stats.accounting_errors, 0);
    CHECK_EQ(stats.verify.n_mismatches, 0);
    CHECK(stats.verify.n_verified > 0 || n_requests < 1000);
    test_note("verified: %llu hits, %llu tokens; %llu skipped", (unsigned long long)stats.verify.n_verified,
              (unsigned long long)stats.verify.n_tokens, (unsigned long long)stats.verify.n_skipped);
    test_note("%llu names dropped with %llu keys of their own, %llu saved, %llu listed", (unsigned long long)w.n_drops,
              (unsigned long long)w.n_dropped_keys, (unsigned long long)w.n_saves, (unsigned long long)w.n_listed);
    CHECK((w.n_drops > 0 && w.n_dropped_keys > 0 && w.n_listed > 0) || n_requests < 2000);
    CHECK(s->ahead || (stats.draft_accepted > 0 && stats.draft_accepted < stats.drafted));
    CHECK((w.x.n_begun_ahead > 0) == s->ahead);
    if (s->ahead)
        test_note("%llu of %llu steps began while the one before ran", (unsigned long long)w.x.n_begun_ahead,
                  (unsigned long long)w.x.n_forward);
    if (w.store.link) {
        const struct store_counts *d = &stats.disk;

        test_note(
            "store: %llu pages written, %llu dropped for room, %llu read; %llu prompt tokens from it, in %llu loads, "
            "%llu of them late; %llu write errors, %llu read errors, %llu pages not taken",
            (unsigned long long)d->n_written, (unsigned long long)d->n_evicted, (unsigned long long)d->n_read,
            (unsigned long long)stats.prompt_disk, (unsigned long long)stats.disk_loads,
            (unsigned long long)stats.disk_loads_late, (unsigned long long)d->n_write_errors,
            (unsigned long long)d->n_read_errors, (unsigned long long)(d->n_dropped + stats.disk_unsaved));
        CHECK(stats.prompt_disk > 0 && d->n_bytes <= d->cap_bytes);
        store_link_work(w.store.link);
        engine_step(w.e);
    }
    if (w.ram) {
        test_note(
            "host memory: %llu pages left to it, %llu dropped for room; %llu prompt tokens from it, in %llu loads; "
            "%llu copies failed",
            (unsigned long long)stats.ram.n_saved, (unsigned long long)stats.ram.n_dropped,
            (unsigned long long)stats.prompt_ram, (unsigned long long)stats.ram.n_loads,
            (unsigned long long)stats.ram.n_failed);
        CHECK(stats.prompt_ram > 0 && (stats.ram.n_failed > 0) == (s->ram_fault_one_in > 0));
    }
    if (s->n_windows) {
        struct window_counts n = page_pool_window_counts(w.e->pool);

        test_note("%u windows of %u tokens: %llu gave way; %llu matches cut short by %llu tokens", s->n_windows,
                  s->window, (unsigned long long)n.n_dropped, (unsigned long long)engine_cache(w.e)->n_cut_short,
                  (unsigned long long)engine_cache(w.e)->n_cut_tokens);
        CHECK(n.n_dropped > 0 && engine_cache(w.e)->n_cut_short > 0);
    }
    if (sight.image_rows) {
        test_note(
            "images: %llu in prompts, %llu encoded in %llu pieces, %llu joined, %llu kept, %llu left half done, %llu "
            "dropped for room; %llu requests ended by %llu that failed; matches taken %llu",
            (unsigned long long)stats.images, (unsigned long long)stats.images_encoded,
            (unsigned long long)w.images.n_pieces, (unsigned long long)stats.images_joined,
            (unsigned long long)stats.images_kept, (unsigned long long)stats.images_stopped,
            (unsigned long long)stats.images_evicted, (unsigned long long)w.n_unseen,
            (unsigned long long)w.images.n_failed, (unsigned long long)stats.prompt_cached);
        CHECK(stats.images_encoded > 0 && stats.images_encoded < stats.images && stats.images_kept > 0);
        CHECK(stats.images_evicted > 0);
        CHECK((stats.images_joined > 0 && stats.images_stopped > 0) || n_requests < 10000);
        CHECK_EQ(stats.images_waiting, 0);
        CHECK((w.n_unseen > 0) == (sight.fault_one_in > 0) || n_requests < 10000);
        CHECK_EQ(w.images.n_begun, w.images.n_ended);
    }
    engine_clear_cache(w.e);
    c = page_pool_counts(w.e->pool);
    CHECK_EQ(c.n_free, c.n_total);
    world_close(&w);
}

static void simulate(const struct sim_setup *s, uint64_t n_requests)
{
    simulate_sight(s, (struct sim_sight){0, false, 0}, n_requests);
}

static uint64_t n_requests(void)
{
    const char *s = getenv("RADISH_SIM_REQUESTS");

    if (s) return strtoull(s, NULL, 10);
#ifdef NDEBUG
    return test_is_long() ? 5000000 : 1000000;
#else
    return 20000;
#endif
}

TEST(a_roomy_pool_shares_everything)
{
    simulate(&(struct sim_setup){512, 16, 16, 64, 128, 0, test_seed(), false, 0, 0, 0, 0, 0, 0, false},
             n_requests() / 4);
}

TEST(a_tight_pool_evicts_preempts_and_loses_nothing)
{
    simulate(&(struct sim_setup){44, 4, 12, 24, 64, 0, test_seed() + 1, false, 0, 0, 0, 0, 0, 0, false},
             n_requests() / 4);
}

TEST(a_pool_that_barely_holds_one_sequence_starts_over_rather_than_failing)
{
    simulate(&(struct sim_setup){42, 4, 6, 16, 32, 0, test_seed() + 4, false, 0, 0, 0, 0, 0, 0, false},
             n_requests() / 10);
}

TEST(a_draft_model_that_is_often_wrong_changes_nothing)
{
    simulate(&(struct sim_setup){128, 4, 12, 32, 64, 0, test_seed() + 5, true, 0, 0, 0, 0, 0, 0, false},
             n_requests() / 10);
}

TEST(device_errors_end_only_what_they_touched)
{
    simulate(&(struct sim_setup){96, 4, 12, 32, 48, 200, test_seed() + 2, false, 0, 0, 0, 0, 0, 0, false},
             n_requests() / 4);
}

TEST(pages_of_one_token_and_a_tiny_batch)
{
    simulate(&(struct sim_setup){200, 1, 4, 16, 8, 1000, test_seed() + 3, false, 0, 0, 0, 0, 0, 0, false},
             n_requests() / 4);
}

TEST(steps_ahead_change_nothing)
{
    simulate(&(struct sim_setup){128, 4, 12, 32, 64, 0, test_seed() + 12, false, 0, 0, 0, 0, 0, 0, true},
             n_requests() / 8);
}

TEST(steps_ahead_in_a_tight_pool_on_a_device_that_fails_change_nothing)
{
    simulate(&(struct sim_setup){60, 4, 12, 32, 64, 300, test_seed() + 13, false, 0, 0, 0, 0, 0, 0, true},
             n_requests() / 8);
}

/* Each request moves pages to files and back: a tenth of the others' share, a million in all with RADISH_LONG=1. */
static uint64_t n_tiered(uint64_t share)
{
    return (test_is_long() && !getenv("RADISH_SIM_REQUESTS") ? 1000000 : n_requests() / 10) / share;
}

TEST(pages_that_left_come_back_from_disk)
{
    simulate(&(struct sim_setup){60, 4, 12, 24, 64, 0, test_seed() + 6, false, 1 << 20, 0, 0, 0, 0, 0, false},
             n_tiered(4));
}

/* A device's pages leave for host memory, and are found there, beside the disk and alone. */
static void simulate_ram(struct sim_setup s, uint32_t n_pages, uint32_t fault_one_in, uint64_t n)
{
    s.ram_pages = n_pages;
    s.ram_fault_one_in = fault_one_in;
    simulate(&s, n);
}

TEST(pages_that_left_come_back_from_host_memory)
{
    simulate_ram((struct sim_setup){60, 4, 12, 24, 64, 0, test_seed() + 9, false, 0, 0, 0, 0, 0, 0, false}, 400, 0,
                 n_requests() / 10);
}

TEST(a_little_host_memory_whose_copies_fail_and_a_device_that_fails_change_nothing)
{
    simulate_ram((struct sim_setup){44, 4, 12, 24, 64, 300, test_seed() + 10, false, 0, 0, 0, 0, 0, 0, false}, 40, 200,
                 n_requests() / 10);
}

TEST(steps_ahead_beside_host_memory_and_disk_change_nothing)
{
    simulate_ram((struct sim_setup){60, 4, 12, 24, 64, 1000, test_seed() + 14, false, 400000, 20000, 0, 0, 0, 0, true},
                 100, 1000, n_tiered(4));
}

TEST(host_memory_and_disk_and_drafts_go_together)
{
    simulate_ram((struct sim_setup){60, 4, 12, 24, 64, 1000, test_seed() + 11, true, 400000, 20000, 0, 0, 0, 0, false},
                 100, 1000, n_tiered(4));
}

TEST(a_disk_that_fails_at_random_changes_nothing)
{
    simulate(&(struct sim_setup){80, 4, 12, 24, 64, 300, test_seed() + 7, false, 200000, 400, 0, 0, 0, 0, false},
             n_tiered(4));
}

TEST(a_disk_that_fails_rarely_and_a_device_that_fails_and_drafts_change_nothing)
{
    simulate(&(struct sim_setup){80, 4, 12, 24, 64, 1000, test_seed() + 8, true, 400000, 20000, 0, 0, 0, 0, false},
             n_tiered(2));
}

/* Layers that see the last tokens alone keep no more than these, in fewer windows than there are pages. */
static void simulate_windows(struct sim_setup s, uint32_t n_windows, uint32_t window, uint64_t n)
{
    s.n_windows = n_windows;
    s.window = window;
    simulate(&s, n);
}

TEST(windows_are_there_for_whatever_is_seen)
{
    simulate_windows((struct sim_setup){300, 4, 12, 32, 64, 0, test_seed() + 20, false, 0, 0, 0, 0, 0, 0, false}, 100,
                     18, n_requests() / 10);
}

TEST(windows_that_barely_hold_one_sequence_are_enough)
{
    simulate_windows((struct sim_setup){60, 4, 6, 16, 32, 500, test_seed() + 21, true, 0, 0, 0, 0, 0, 0, false}, 9, 17,
                     n_requests() / 20);
}

TEST(windows_of_two_tokens_in_pages_of_one)
{
    simulate_windows((struct sim_setup){300, 1, 6, 16, 32, 1000, test_seed() + 22, false, 0, 0, 0, 0, 0, 0, false}, 30,
                     2, n_requests() / 10);
}

TEST(windows_leave_and_come_back_from_a_disk_that_fails)
{
    simulate_windows(
        (struct sim_setup){80, 4, 12, 24, 64, 1000, test_seed() + 23, true, 400000, 20000, 0, 0, 0, 0, false}, 40, 18,
        n_tiered(4));
}

TEST(windows_leave_for_host_memory_and_come_back)
{
    struct sim_setup s = {60, 4, 12, 24, 64, 1000, test_seed() + 25, false, 0, 0, 400, 0, 0, 0, false};

    simulate_windows(s, 40, 18, n_tiered(2));
    s.ram_fault_one_in = 100;
    simulate_windows(s, 24, 18, n_tiered(4));
}

TEST(windows_in_every_tier_of_a_device_that_works_ahead)
{
    simulate_windows(
        (struct sim_setup){60, 4, 12, 24, 64, 1000, test_seed() + 26, false, 400000, 20000, 100, 1000, 0, 0, true}, 40,
        18, n_tiered(4));
}

TEST(windows_in_a_pool_that_barely_holds_one_sequence)
{
    simulate_windows((struct sim_setup){42, 4, 6, 16, 32, 0, test_seed() + 24, false, 0, 0, 0, 0, 0, 0, false}, 20, 30,
                     n_requests() / 20);
}

/* Rows of an image come from its encoder, in one piece or in chunks, whatever else happens. */
TEST(images_are_keys_like_any_other)
{
    simulate_sight(&(struct sim_setup){200, 4, 12, 32, 64, 0, test_seed() + 30, false, 0, 0, 0, 0, 0, 0, false},
                   (struct sim_sight){40, false, 0}, n_requests() / 40);
}

TEST(images_that_see_both_ways_come_in_one_piece)
{
    simulate_sight(&(struct sim_setup){200, 4, 12, 32, 64, 0, test_seed() + 31, false, 0, 0, 0, 0, 0, 0, false},
                   (struct sim_sight){40, true, 0}, n_requests() / 40);
}

TEST(images_in_a_tight_pool_with_encoders_and_devices_that_fail_and_drafts)
{
    simulate_sight(&(struct sim_setup){60, 4, 12, 32, 64, 500, test_seed() + 32, true, 0, 0, 0, 0, 0, 0, false},
                   (struct sim_sight){40, true, 300}, n_requests() / 60);
    simulate_sight(&(struct sim_setup){60, 4, 12, 32, 64, 500, test_seed() + 33, false, 0, 0, 0, 0, 0, 0, true},
                   (struct sim_sight){40, false, 300}, n_requests() / 60);
}

TEST(images_leave_for_host_memory_and_disk_and_come_back)
{
    struct sim_setup s = {60, 4, 12, 24, 64, 1000, test_seed() + 34, false, 400000, 20000, 100, 1000, 0, 0, false};

    simulate_sight(&s, (struct sim_sight){40, true, 0}, n_tiered(4));
    s.seed++;
    simulate_sight(&s, (struct sim_sight){40, false, 0}, n_tiered(4));
}

TEST(images_in_windows)
{
    struct sim_setup s = {300, 4, 12, 32, 64, 0, test_seed() + 36, false, 0, 0, 0, 0, 60, 18, false};

    simulate_sight(&s, (struct sim_sight){40, true, 0}, n_requests() / 60);
    s.seed++;
    simulate_sight(&s, (struct sim_sight){40, false, 0}, n_requests() / 60);
}
