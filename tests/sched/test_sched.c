/* tests/sched/test_sched.c - what several threads share, under orders of their steps that a seed decides: doorbell,
 * queue, token ring, an engine with clients that cancel and one that stops it, saver and loader, a store's readers beside
 * its writer, the ring that loads weights. No schedule may lose a wake-up or wait in a circle (F65), end a request twice
 * or not at all (F66), or save a page that is not finished (F124). See support/schedules.h.
 *
 * 12,000 schedules; 1,000,000 with RADISH_LONG=1; 2,000 under sanitizers; RADISH_SCHEDULES overrides.
 *
 * The same file is built again with one line of a source broken (mutants.py): one of these worlds must find the fault.
 */
#include <stdatomic.h>
#include "backend/load_ring.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/queue.h"
#include "mem_disk.h"
#include "schedules.h"
#include "sim_rig.h"
#include "sim_store.h"
#include "store/page_store.h"

#define MAX_NEW 12u

static void ignore_line(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

/* ---- doorbell ---- */

struct bells {
    struct wake *w;
    atomic_uint n;
};

static void ring_twice(void *arg)
{
    struct bells *b = arg;

    for (int i = 0; i < 2; i++) {
        sched_point();
        atomic_fetch_add(&b->n, 1);
        wake_ring(b->w);
    }
}

static bool doorbell(uint64_t seed)
{
    struct bells b = {.n = 0};
    struct thread t[2] = {{.started = false}};

    (void)seed;
    if (wake_create(&b.w) != RD_OK) return false;
    for (int i = 0; i < 2; i++) (void)thread_start(&t[i], "ringer", ring_twice, &b);
    while (atomic_load(&b.n) < 4) wake_wait(b.w, UINT64_MAX);
    for (int i = 0; i < 2; i++) thread_join(&t[i]);
    wake_destroy(b.w);
    return true;
}

/* ---- queue ---- */

struct queues {
    struct queue *q;
    char items[6];
    atomic_uint n_got[6];
    atomic_uint n_producers;
};
struct producer {
    struct queues *all;
    uint32_t first;
};

static void produce(void *arg)
{
    struct producer *p = arg;

    for (uint32_t i = p->first; i < p->first + 3; i++)
        while (queue_push(p->all->q, &p->all->items[i]) == RD_E_FULL) thread_yield();
}

static void consume(void *arg)
{
    struct queues *all = arg;
    char *item;

    while ((item = queue_pop(all->q))) atomic_fetch_add(&all->n_got[item - all->items], 1);
}

static bool bounded_queue(uint64_t seed)
{
    struct queues all = {.q = NULL};
    struct producer p[2] = {{&all, 0}, {&all, 3}};
    struct thread producers[2] = {{.started = false}}, consumers[2] = {{.started = false}};
    bool ok = true;

    (void)seed;
    if (queue_create(2, &all.q) != RD_OK) return false;
    for (int i = 0; i < 2; i++) {
        (void)thread_start(&consumers[i], "consumer", consume, &all);
        (void)thread_start(&producers[i], "producer", produce, &p[i]);
    }
    for (int i = 0; i < 2; i++) thread_join(&producers[i]);
    queue_close(all.q);
    for (int i = 0; i < 2; i++) thread_join(&consumers[i]);
    for (int i = 0; i < 6; i++) ok = ok && atomic_load(&all.n_got[i]) == 1;
    queue_destroy(all.q);
    return ok;
}

/* ---- token ring: an engine that sleeps while it is full, a consumer that sleeps while it is empty ---- */

#define RING_TOKENS 9

struct ring {
    struct request r;
    struct token_out entries[2];
    struct wake *engine, *consumer;
};

static void write_tokens(void *arg)
{
    struct ring *g = arg;
    struct sampler_result t = {.token = 0};

    for (t.token = 1; t.token <= RING_TOKENS; t.token++) {
        while (request_ring_full(&g->r)) wake_wait(g->engine, 1000000000ull);
        (void)request_push(&g->r, &t);
        wake_ring(g->consumer);
    }
    sched_point();
    atomic_store_explicit(&g->r.ended, true, memory_order_release);
    wake_ring(g->consumer);
}

static bool token_ring(uint64_t seed)
{
    struct ring g = {.r = {.ring_cap = 2}};
    struct thread engine = {.started = false};
    struct token_out t;
    struct token_logprob top[20];
    bool was_full, ended, ok = true;
    int32_t n = 0;

    (void)seed;
    g.r.ring = g.entries;
    if (wake_create(&g.engine) != RD_OK || wake_create(&g.consumer) != RD_OK) return false;
    (void)thread_start(&engine, "engine", write_tokens, &g);
    do {
        sched_point();
        ended = atomic_load_explicit(&g.r.ended, memory_order_acquire);
        while (request_pop(&g.r, &t, top, &was_full)) {
            ok = ok && t.token == ++n;
            if (was_full) wake_ring(g.engine);
        }
        if (!ended) wake_wait(g.consumer, 20000000000ull);
    } while (!ended);
    thread_join(&engine);
    wake_destroy(g.engine);
    wake_destroy(g.consumer);
    return ok && n == RING_TOKENS;
}

/* ---- an engine on its own thread, clients that read and cancel, one that stops it ---- */

struct client {
    struct engine *e;
    struct thread thread;
    struct wake *bell;
    uint64_t seed;
    uint32_t text, n_done, n_cancelled, n_closed, n_wrong, n_requests;
};

static void ring_bell(void *bell)
{
    wake_ring(bell);
}

static void check_answer(struct client *c, const struct request *r, const int32_t *prompt, const int32_t *out,
                         uint32_t n)
{
    int32_t want[MAX_NEW];
    uint64_t digest = 0;
    uint32_t n_want;

    for (uint32_t i = 0; i < r->n_prompt; i++) digest = sim_digest(digest, (uint32_t)prompt[i]);
    n_want = sim_greedy(digest, r->p.max_tokens, want);
    if (r->finish == REQUEST_CANCELLED) {
        c->n_cancelled++;
        c->n_wrong += n > n_want || memcmp(out, want, n * sizeof(*out)) != 0;
    } else if (r->status == RD_E_CLOSED) {
        c->n_closed++;
    } else {
        c->n_done++;
        c->n_wrong += n != n_want || memcmp(out, want, n * sizeof(*out)) != 0;
    }
}

static void follow(struct client *c, struct request *r, const int32_t *prompt, uint32_t patience)
{
    struct token_out t;
    struct token_logprob top[20];
    int32_t out[MAX_NEW];
    uint32_t n = 0;
    bool was_full, ended;

    do {
        if (patience == 0 || patience-- == 0) request_cancel(r, CANCEL_GONE), engine_kick(c->e);
        sched_point();
        ended = atomic_load_explicit(&r->ended, memory_order_acquire);
        while (request_pop(r, &t, top, &was_full)) {
            if (n < MAX_NEW) out[n++] = t.token;
            if (was_full) engine_kick(c->e);
        }
        if (!ended) wake_wait(c->bell, 20000000000ull);
    } while (!ended);
    check_answer(c, r, prompt, out, n);
}

static void client_main(void *arg)
{
    struct client *c = arg;
    struct random rnd;
    int32_t prompt[12];

    random_init(&rnd, c->seed);
    for (uint32_t i = 0; i < c->n_requests; i++) {
        static const int32_t end_token = SIM_END_TOKEN;
        struct request_params p = sim_params(1 + (uint32_t)random_below(&rnd, MAX_NEW), 0);
        struct request *r;

        p.wake = ring_bell;
        p.wake_arg = c->bell;
        p.end_tokens = &end_token;
        p.n_end_tokens = 1;
        sim_prompt(prompt, 12, c->text);
        r = NULL;
        if (engine_take_place(c->e) == RD_OK) {
            if (request_create(&p, engine_cache(c->e), SIM_VOCAB, prompt, 4 + (uint32_t)random_below(&rnd, 9), &r,
                               NULL) != RD_OK)
                c->n_wrong++;
            if (r) r->ring_cap = 2; /* full often */
            if (r && engine_submit(c->e, r) == RD_OK)
                follow(c, r, prompt, random_below(&rnd, 3) ? 99 : (uint32_t)random_below(&rnd, 4));
            else
                engine_give_place(c->e), c->n_closed++;
            request_unref(r);
        } else {
            c->n_closed++;
        }
    }
}

static bool start_engine(struct sim_executor *x, struct store_link *store, struct engine **e)
{
    struct engine_options o;

    if (!sim_init(x, 24, 4, 1)) return false;
    o = sim_options(sim_view(x, 16, 4), (struct clock *)(uintptr_t)clock_system(), 24, 4);
    o.n_ctx = 64;
    o.max_running = 2;
    o.max_queue = 3;
    o.max_chunk = 8;
    o.kv_bytes = 1 << 20;
    o.store = store;
    if (engine_create(&o, e) != RD_OK) return false;
    x->engine = *e;
    return engine_start(*e) == RD_OK;
}

static void start_clients(struct client *c, uint32_t n, struct engine *e, uint64_t seed, uint32_t n_requests)
{
    memset(c, 0, n * sizeof(*c));
    for (uint32_t i = 0; i < n; i++) {
        c[i].e = e;
        c[i].seed = seed + i;
        c[i].n_requests = n_requests;
        if (wake_create(&c[i].bell) != RD_OK) abort();
        (void)thread_start(&c[i].thread, "client", client_main, &c[i]);
    }
}

/* The engine may ring a client's bell behind `ended`: bells go after it. */
static bool end_clients(struct client *c, uint32_t n, struct engine *e, bool is_stopped)
{
    struct engine_stats stats;
    uint32_t n_done = 0, n_cancelled = 0, n_closed = 0, n_wrong = 0, n_all = 0;

    for (uint32_t i = 0; i < n; i++) {
        thread_join(&c[i].thread);
        n_done += c[i].n_done;
        n_cancelled += c[i].n_cancelled;
        n_closed += c[i].n_closed;
        n_wrong += c[i].n_wrong;
        n_all += c[i].n_requests;
    }
    engine_stop(e);
    for (uint32_t i = 0; i < n; i++) wake_destroy(c[i].bell);
    engine_get_stats(e, &stats);
    return n_wrong == 0 && n_done + n_cancelled + n_closed == n_all && (is_stopped || n_closed == 0) &&
           atomic_load(&e->n_places) == 0 && stats.n_stop + stats.n_length == n_done &&
           stats.n_cancelled == n_cancelled &&
           stats.pages_free + stats.pages_ready + stats.pages_locked + stats.pages_pending == stats.pages_total;
}

static bool engine_and_clients(uint64_t seed)
{
    struct sim_executor x;
    struct engine *e = NULL;
    struct client c[2];
    bool ok;

    if (!start_engine(&x, NULL, &e)) return false;
    start_clients(c, 2, e, seed, 2);
    ok = end_clients(c, 2, e, false) && x.n_wrong_rows == 0;
    engine_destroy(e);
    sim_deinit(&x);
    return ok;
}

static void nothing(struct engine *e, void *arg)
{
    (void)e;
    ++*(uint32_t *)arg;
}

static bool a_stop_among_clients(uint64_t seed)
{
    struct sim_executor x;
    struct engine *e = NULL;
    struct client c[2];
    uint32_t n_calls = 0, n_want = (uint32_t)(seed % 3);
    bool ok;

    if (!start_engine(&x, NULL, &e)) return false;
    start_clients(c, 2, e, seed, 2);
    for (uint32_t i = 0; i < n_want; i++)
        while (engine_call(e, nothing, &n_calls) == RD_E_FULL) thread_yield();
    engine_stop(e);
    ok = end_clients(c, 2, e, true) && x.n_wrong_rows == 0 && n_calls == n_want;
    engine_destroy(e);
    sim_deinit(&x);
    return ok;
}

/* ---- saver and loader beside the engine, its pages gone from memory and back from the disk ---- */

static void clear_memory(struct engine *e, void *arg)
{
    (void)arg;
    engine_clear_cache(e);
}

static bool saver_and_loader(uint64_t seed)
{
    struct sim_store store = {.dir = "/disk"};
    struct mem_disk *disk = mem_disk_create();
    struct sim_executor x, shape;
    struct engine *e = NULL;
    struct client c[2];
    bool ok = true;

    mem_disk_use(disk);
    if (!sim_init(&shape, 24, 4, 1)) return false;
    ok = sim_store_open(&store, 4, sim_view(&shape, 16, 4).page_bytes, 1 << 20, clock_system(), true);
    sim_deinit(&shape);
    if (!ok || !start_engine(&x, store.link, &e)) return false;
    start_clients(c, 1, e, seed, 2);
    if (seed % 4 == 0) store_link_clear(store.link);
    while (engine_call(e, clear_memory, NULL) == RD_E_FULL) thread_yield();
    c[1].thread.started = false;
    ok = end_clients(c, 1, e, false) && x.n_wrong_rows == 0;
    engine_destroy(e);
    store_link_destroy(store.link);
    sim_deinit(&x);
    mem_disk_use(NULL);
    mem_disk_destroy(disk);
    return ok;
}

/* ---- a store's readers beside its writer ---- */

#define S_PAGE 96u
#define S_N    4u

struct shelf {
    struct page_store *s;
    struct store_space *space;
    uint32_t tokens[S_N * 4];
    atomic_bool wrong;
};

static void fill_page(uint32_t i, uint8_t *page)
{
    for (uint32_t k = 0; k < S_PAGE; k++) page[k] = (uint8_t)(i * 31 + k);
}

static void read_shelf(void *arg)
{
    struct shelf *f = arg;
    uint8_t bytes[S_N][S_PAGE], want[S_PAGE];
    void *pages[S_N] = {bytes[0], bytes[1], bytes[2], bytes[3]};
    struct hash128 digests[S_N];

    for (int round = 0; round < 3; round++) {
        uint32_t n;

        page_store_chain(f->s, f->space, f->tokens, 0, S_N, digests);
        n = page_store_find(f->s, digests, S_N);
        sched_point();
        n = page_store_read(f->s, f->space, digests, f->tokens, 0, n, pages, NULL);
        for (uint32_t i = 0; i < n; i++) {
            fill_page(i, want);
            if (memcmp(want, bytes[i], S_PAGE)) atomic_store(&f->wrong, true);
        }
    }
}

static bool readers_beside_a_writer(uint64_t seed)
{
    struct mem_disk *disk = mem_disk_create();
    struct store_options o = {.dir = "/disk", .cap_bytes = 12000, .segment_bytes = 5000, .clock = clock_system()};
    struct thread readers[2] = {{.started = false}};
    struct hash128 digests[S_N];
    struct shelf f = {.s = NULL};
    struct random rnd;
    uint8_t page[S_PAGE];
    bool ok;

    random_init(&rnd, seed);
    mem_disk_use(disk);
    for (uint32_t i = 0; i < S_N * 4; i++) f.tokens[i] = i;
    if (page_store_open(&o, &f.s, NULL) != RD_OK || page_store_space(f.s, "a", 1, 4, S_PAGE, &f.space) != RD_OK)
        return false;
    for (int i = 0; i < 2; i++) (void)thread_start(&readers[i], "reader", read_shelf, &f);
    page_store_chain(f.s, f.space, f.tokens, 0, S_N, digests);
    for (int round = 0; round < 6; round++) {
        for (uint32_t i = 0; i < S_N; i++) {
            fill_page(i, page);
            (void)page_store_put(f.s, f.space, digests, i, f.tokens + (size_t)i * 4, page);
            sched_point();
        }
        if (random_below(&rnd, 3)) (void)page_store_flush(f.s);
        sched_point();
        if (random_below(&rnd, 3) == 0) (void)page_store_drop(f.s, NULL);
        if (random_below(&rnd, 4) == 0) page_store_refresh(f.s);
    }
    for (int i = 0; i < 2; i++) thread_join(&readers[i]);
    ok = !atomic_load(&f.wrong);
    page_store_close(f.s);
    mem_disk_use(NULL);
    mem_disk_destroy(disk);
    return ok;
}

/* ---- the ring that loads weights: tests/CMakeLists.txt makes its slices 64 bytes ---- */

#define L_STAGES 2u
#define L_STAGE  200u

struct device {
    char stages[L_STAGES][L_STAGE];
    char out[2000];
    uint64_t n_out, n_sent;
    bool in_send, wrong;
};

static int send_stage(void *arg, uint32_t stage, uint64_t n_bytes)
{
    struct device *d = arg;

    if (d->in_send || stage != d->n_sent++ % L_STAGES) d->wrong = true;
    d->in_send = true;
    sched_point();
    memcpy(d->out + d->n_out, d->stages[stage], n_bytes);
    d->n_out += n_bytes;
    d->in_send = false;
    return 0;
}

static int wait_stage(void *arg, uint32_t stage)
{
    (void)arg, (void)stage;
    return 0;
}

static bool load_ring(uint64_t seed)
{
    static struct device d;
    char *stages[L_STAGES] = {d.stages[0], d.stages[1]}, bytes[2000];
    struct load_target target = {send_stage, wait_stage, &d};
    struct load_ring *ring = NULL;
    struct random rnd;
    uint64_t at = 0;

    memset(&d, 0, sizeof(d));
    random_init(&rnd, seed);
    for (size_t i = 0; i < sizeof(bytes); i++) bytes[i] = (char)random_u64(&rnd);
    if (load_ring_create(stages, L_STAGES, 2, &target, &ring) != RD_OK) return false;
    for (int i = 0; i < 6; i++) {
        uint64_t n = 1 + random_below(&rnd, L_STAGE);
        uint32_t stage;

        if (load_ring_take(ring, &stage)) return false;
        load_ring_put(ring, bytes + at, n);
        at += n;
    }
    if (load_ring_drain(ring)) return false;
    load_ring_destroy(ring);
    return !d.wrong && d.n_out == at && memcmp(d.out, bytes, at) == 0;
}

/* ---- runs ---- */

static const struct {
    const char *name;
    sched_world world;
    uint64_t share;
} worlds[] = {
    {"doorbell", doorbell, 20},
    {"bounded_queue", bounded_queue, 20},
    {"token_ring", token_ring, 20},
    {"load_ring", load_ring, 15},
    {"readers_beside_a_writer", readers_beside_a_writer, 10},
    {"engine_and_clients", engine_and_clients, 6},
    {"a_stop_among_clients", a_stop_among_clients, 6},
    {"saver_and_loader", saver_and_loader, 3},
};
#define N_WORLDS (sizeof(worlds) / sizeof(worlds[0]))

#ifndef SCHED_MUTANT
static uint64_t n_schedules(void)
{
    const char *s = getenv("RADISH_SCHEDULES");

    if (s) return strtoull(s, NULL, 10);
#ifdef NDEBUG
    return test_is_long() ? 1000000 : 12000;
#else
    return 2000;
#endif
}

static void run(const char *name)
{
    for (size_t i = 0; i < N_WORLDS; i++) {
        struct sched_figures f = {0};
        uint64_t n = n_schedules() * worlds[i].share / 100;
        bool ok;

        if (strcmp(worlds[i].name, name)) continue;
        log_set_sink(ignore_line, NULL);
        ok = sched_run(name, worlds[i].world, test_seed(), n, &f);
        test_note("%llu schedules of up to %u threads, half of them PCT of depth 2 to 5, seed %llu: %llu points, "
                  "at most %llu in one, %llu switches",
                  (unsigned long long)f.n_schedules, f.most_threads, (unsigned long long)test_seed(),
                  (unsigned long long)f.n_points, (unsigned long long)f.most_points, (unsigned long long)f.n_switches);
        CHECK(ok);
    }
}

TEST(a_doorbell_is_heard)
{
    run("doorbell");
}
TEST(what_is_queued_comes_out_once)
{
    run("bounded_queue");
}
TEST(a_ring_that_is_full_and_one_that_is_empty_wake_each_other)
{
    run("token_ring");
}
TEST(weights_arrive_in_order)
{
    run("load_ring");
}
TEST(readers_see_whole_pages)
{
    run("readers_beside_a_writer");
}
TEST(clients_that_read_and_cancel_get_what_is_theirs)
{
    run("engine_and_clients");
}
TEST(a_stop_ends_every_request_once)
{
    run("a_stop_among_clients");
}
TEST(saver_and_loader_beside_the_engine)
{
    run("saver_and_loader");
}
#else
/* Sources with a line broken: found, and at once. */
TEST(the_fault_is_found)
{
    struct sched_figures f = {0};
    bool ok = true;

    log_set_sink(ignore_line, NULL);
    for (size_t i = 0; i < N_WORLDS; i++)
        if (strcmp(worlds[i].name, SCHED_MUTANT) == 0)
            ok = sched_run(SCHED_MUTANT, worlds[i].world, test_seed(), 5000, &f);
    test_note("found by schedule %llu", (unsigned long long)f.n_schedules + 1);
    CHECK(!ok);
}
#endif
