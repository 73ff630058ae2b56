/* tests/engine/test_engine_threads.c - the engine on its own thread: several threads submit, read, cancel and look at
 * statistics while it runs; another stops it under them. Run it with -fsanitize=thread too.
 */
#include "base/log.h"
#include "base/mem.h"
#include "sim_executor.h"
#include "test.h"

#define N_THREADS   4u
#define MAX_NEW     40u
#define PATIENCE_NS 20000000000ull

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_EACH 150u
#else
#define N_EACH 600u
#endif

struct client {
    struct engine *e;
    struct thread thread;
    struct random random;
    struct wake *bell; /* where it must outlive the engine's thread */
    uint32_t n_done, n_cancelled, n_closed, n_wrong, n_stuck;
};

static void ignore_line(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

static void ring(void *bell)
{
    wake_ring(bell);
}

static void nothing(struct engine *e, void *arg)
{
    (void)e;
    ++*(uint32_t *)arg;
}

static uint32_t expected(const int32_t *prompt, uint32_t n_prompt, uint32_t max_tokens, int32_t *out)
{
    uint64_t digest = 0;

    for (uint32_t i = 0; i < n_prompt; i++) digest = sim_digest(digest, (uint32_t)prompt[i]);
    return sim_greedy(digest, max_tokens, out);
}

/* Reads until the end, or cancels after a while. */
static void follow(struct client *c, struct request *r, struct wake *bell, const int32_t *prompt, uint32_t n_prompt)
{
    int32_t out[MAX_NEW], want[MAX_NEW];
    uint32_t n = 0, n_want,
             patience = random_below(&c->random, 4) ? UINT32_MAX : (uint32_t)random_below(&c->random, 10);
    struct token_logprob top[20];
    struct token_out t;
    bool was_full, ended;

    do {
        if (patience == 0 || patience-- == 0) request_cancel(r, CANCEL_GONE), engine_kick(c->e);
        ended = atomic_load_explicit(&r->ended, memory_order_acquire);
        while (request_pop(r, &t, top, &was_full)) {
            if (n < MAX_NEW) out[n++] = t.token;
            if (was_full) engine_kick(c->e);
        }
        if (!ended && !wake_wait(bell, PATIENCE_NS)) {
            c->n_stuck++;
            break;
        }
    } while (!ended);
    if (r->finish == REQUEST_CANCELLED) {
        c->n_cancelled++;
    } else if (r->status == RD_E_CLOSED) {
        c->n_closed++;
    } else {
        n_want = expected(prompt, n_prompt, r->p.max_tokens, want);
        c->n_done++;
        c->n_wrong += n != n_want || memcmp(out, want, n * sizeof(out[0])) != 0;
    }
}

static rd_status one_request(struct client *c, struct wake *bell)
{
    static const int32_t end_token = SIM_END_TOKEN;
    uint32_t n_prompt = 1 + (uint32_t)random_below(&c->random, 60);
    struct request_params p = {.cached = true,
                               .max_tokens = 1 + (uint32_t)random_below(&c->random, MAX_NEW),
                               .max_keys = 256,
                               .wake = ring,
                               .wake_arg = bell,
                               .end_tokens = &end_token,
                               .n_end_tokens = 1,
                               .fair_key = random_below(&c->random, 3)};
    struct request *r = NULL;
    int32_t prompt[60];
    rd_status st;

    sampler_params_default(&p.sampling);
    p.sampling.temperature = 0;
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = 1 + (int32_t)random_below(&c->random, i < 30 ? 2 : SIM_VOCAB - 1);
    st = engine_take_place(c->e);
    if (st != RD_OK) return st;
    st = request_create(&p, engine_cache(c->e), SIM_VOCAB, prompt, n_prompt, &r, NULL);
    if (st == RD_OK) r->ring_cap = 4; /* full often: pausing and waking are what is tested */
    if (st == RD_OK) st = engine_submit(c->e, r);
    if (st == RD_OK)
        follow(c, r, bell, prompt, n_prompt);
    else
        engine_give_place(c->e);
    request_unref(r);
    return st;
}

static void client_main(void *arg)
{
    struct client *c = arg;

    for (uint32_t i = 0, n_calls = 0; i < N_EACH; i++) {
        struct engine_stats s;
        struct wake *bell = NULL;
        rd_status st;

        if (wake_create(&bell) != RD_OK) break;
        while ((st = one_request(c, bell)) == RD_E_FULL) thread_yield();
        /* the engine rings after it has stored `ended`: one turn later the bell is ours alone */
        while (engine_call(c->e, nothing, &n_calls) == RD_E_FULL) thread_yield();
        wake_destroy(bell);
        engine_get_stats(c->e, &s);
        if (s.pages_free + s.pages_ready + s.pages_locked + s.pages_pending + s.pages_quarantined != s.pages_total)
            c->n_wrong++;
        if (st == RD_E_CLOSED) break;
    }
}

static bool open_engine(struct sim_executor *x, struct engine **e)
{
    struct engine_options o;

    log_set_sink(ignore_line, NULL);
    if (!sim_init(x, 60, 4, test_seed())) return false;
    o = (struct engine_options){.executor = sim_view(x, 32, 4),
                                .clock = clock_system(),
                                .n_pages = 60,
                                .page_tokens = 4,
                                .n_ctx = 256,
                                .max_running = 4,
                                .max_queue = 3,
                                .max_chunk = 32,
                                .step_target_ns = 100000000,
                                .kv_bytes = 1 << 20,
                                .namespace_name = "sim",
                                .namespace_bytes = 3};
    if (engine_create(&o, e) != RD_OK) return false;
    x->engine = *e;
    return engine_start(*e) == RD_OK;
}

TEST(threads_that_submit_read_and_cancel_all_get_what_is_theirs)
{
    struct sim_executor x;
    struct engine *e = NULL;
    struct client c[N_THREADS];
    uint32_t n_done = 0, n_cancelled = 0;
    struct engine_stats s;

    CHECK(open_engine(&x, &e));
    memset(c, 0, sizeof(c));
    for (uint32_t i = 0; i < N_THREADS; i++) {
        c[i].e = e;
        random_init(&c[i].random, test_seed() + i);
        CHECK_OK(thread_start(&c[i].thread, "client", client_main, &c[i]));
    }
    for (uint32_t i = 0; i < N_THREADS; i++) {
        thread_join(&c[i].thread);
        CHECK_EQ(c[i].n_stuck + c[i].n_wrong + c[i].n_closed, 0);
        n_done += c[i].n_done;
        n_cancelled += c[i].n_cancelled;
    }
    engine_get_stats(e, &s);
    test_note("%u done, %u cancelled, %llu preempted, %llu steps", n_done, n_cancelled,
              (unsigned long long)s.n_preempted, (unsigned long long)s.n_steps);
    CHECK_EQ(n_done + n_cancelled, N_THREADS * N_EACH);
    CHECK_EQ(s.n_stop + s.n_length, n_done);
    CHECK_EQ(s.n_cancelled, n_cancelled);
    CHECK_EQ(atomic_load(&e->n_places), 0);
    CHECK_EQ(x.n_wrong_rows, 0);
    engine_destroy(e);
    sim_deinit(&x);
}

static void submit_until_closed(void *arg)
{
    struct client *c = arg;

    for (rd_status st = RD_OK; st != RD_E_CLOSED && c->n_closed == 0;) st = one_request(c, c->bell);
}

TEST(a_stop_under_running_clients_ends_every_request)
{
    struct sim_executor x;
    struct engine *e = NULL;
    struct client c[N_THREADS];
    struct engine_stats s;

    CHECK(open_engine(&x, &e));
    memset(c, 0, sizeof(c));
    for (uint32_t i = 0; i < N_THREADS; i++) {
        c[i].e = e;
        random_init(&c[i].random, test_seed() + 100 + i);
        CHECK_OK(wake_create(&c[i].bell));
        CHECK_OK(thread_start(&c[i].thread, "client", submit_until_closed, &c[i]));
    }
    do {
        engine_get_stats(e, &s);
        thread_yield();
    } while (s.n_submitted < 100);
    engine_stop(e);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        thread_join(&c[i].thread);
        CHECK_EQ(c[i].n_stuck + c[i].n_wrong, 0);
        wake_destroy(c[i].bell);
    }
    CHECK_EQ(atomic_load(&e->n_places), 0);
    engine_destroy(e);
    sim_deinit(&x);
}
