/* tests/api/test_api_adapters.c - requests with adapters through the public library: each alone, cached, and in one batch with
 * others; what is stored with one is found by nobody else; loading and unloading while requests run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/thread.h"
#include "lora_make.h"
#include "radish/radish.h"
#include "test.h"

#define MODEL    "tests/golden/llama/tiny-llama.gguf"
#define N_SORTS  4u
#define N_TOKENS 24u

static char dirs[2][64], gguf[80];

static void make_files(void)
{
    const struct lora_options o[2] = {{.seed = 11}, {.seed = 12, .rank = 9, .matrices = 0x55}};

    for (int i = 0; i < 2; i++) CHECK(lora_make(test_path(MODEL), true, &o[i], dirs[i]));
    snprintf(gguf, sizeof(gguf), "%s/lora.gguf", dirs[1]);
}

static void remove_files(void)
{
    for (int i = 0; i < 2; i++) lora_remove(dirs[i]);
}

/* NULL: the CPU. bench/gpu/session says "cuda". */
static const char *device(void)
{
    return getenv("RADISH_TEST_DEVICE");
}

static rd_engine *open_tiny(const struct rd_adapter_file *files, uint32_t n, uint64_t bytes, struct rd_error *err)
{
    struct rd_options o;
    rd_engine *engine = NULL;

    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    rd_options_default(&o);
    o.model = test_path(MODEL);
    o.device = device();
    o.n_threads = 1;
    o.kv_tokens = 2048;
    o.max_running = 8;
    o.adapters = files;
    o.n_adapters = n;
    o.adapter_bytes = bytes;
    (void)rd_open(&o, &engine, err);
    return engine;
}

/* The four sorts of requests: none, a, b at half, both. */
static struct rd_request_options ask(uint32_t sort)
{
    static const struct rd_adapter_use uses[N_SORTS][2] = {
        {{NULL, 0}}, {{"a", NAN}}, {{"b", 0.5}}, {{"b", 1}, {"a", -0.25}}};
    struct rd_request_options q;

    rd_request_options_default(&q);
    q.prompt = "abcabcabcabcabcabcabcabcabcabcabcabcabcabc";
    q.prompt_bytes = strlen(q.prompt);
    q.max_tokens = N_TOKENS;
    q.ignore_eos = true;
    q.sampling.temperature = 0.7f;
    q.sampling.has_seed = true;
    q.sampling.seed = 5;
    q.adapters = sort ? uses[sort] : NULL;
    q.n_adapters = sort == 0 ? 0 : sort == 3 ? 2 : 1;
    return q;
}

struct heard {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS];
    uint32_t n, n_cached;
};

static int hear(void *user, uint32_t index, const struct rd_event *ev)
{
    struct heard *h = (struct heard *)user + index;

    if (ev->type == RD_EVENT_TOKEN && h->n < N_TOKENS) {
        h->logprobs[h->n] = ev->logprob;
        h->tokens[h->n++] = ev->token;
    }
    if (ev->type == RD_EVENT_DONE) h->n_cached = ev->usage.n_cached;
    return 0;
}

static rd_status generate(rd_engine *engine, uint32_t sort, struct heard *h)
{
    struct rd_request_options q = ask(sort);
    struct rd_error err = {RD_OK, ""};

    memset(h, 0, sizeof(*h));
    q.logprobs = true;
    return rd_generate(engine, &q, hear, h, &err);
}

static bool same(const struct heard *a, const struct heard *b)
{
    return a->n == N_TOKENS && a->n == b->n && memcmp(a->tokens, b->tokens, sizeof(a->tokens)) == 0 &&
           memcmp(a->logprobs, b->logprobs, sizeof(a->logprobs)) == 0;
}

TEST(each_sort_is_the_same_cold_cached_and_among_others_and_finds_its_own_alone)
{
    struct rd_request_options q[4 * N_SORTS];
    struct heard cold[N_SORTS], h, all[4 * N_SORTS];
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine;

    make_files();
    engine = open_tiny((struct rd_adapter_file[]){{"a", dirs[0], 1, 0}, {"b", gguf, 1, 0}}, 2, 0, &err);
    CHECK_EQ(err.status, RD_OK);
    for (uint32_t s = 0; s < N_SORTS; s++) {
        CHECK_EQ(generate(engine, s, &cold[s]), RD_OK);
        CHECK_EQ(cold[s].n_cached, 0);
        for (uint32_t t = 0; t < s; t++) CHECK(!same(&cold[s], &cold[t]));
    }
    for (uint32_t s = 0; s < N_SORTS; s++) {
        CHECK_EQ(generate(engine, s, &h), RD_OK);
        CHECK(same(&cold[s], &h) && h.n_cached > 30);
    }
    rd_cache_clear(engine);
    memset(all, 0, sizeof(all));
    for (uint32_t i = 0; i < 4 * N_SORTS; i++) {
        q[i] = ask(i % N_SORTS);
        q[i].logprobs = true;
    }
    CHECK_EQ(rd_generate_batch(engine, q, 4 * N_SORTS, hear, all, &err), RD_OK);
    for (uint32_t i = 0; i < 4 * N_SORTS; i++) CHECK(same(&cold[i % N_SORTS], &all[i]));
    rd_close(engine);
    remove_files();
}

/* 20 sequences that want no log probabilities, so that a device chooses, in recorded steps that begin ahead; rounds with other
 * texts, between which an adapter leaves and comes back in other memory. */
static void write_together(bool no_graphs, struct heard *out, uint32_t n_rounds, uint64_t *n_ahead)
{
    enum { BATCH = 20 };
    struct rd_stats s = {.size = sizeof(s)};
    struct rd_adapter_file files[] = {{"a", dirs[0], 1, 0}, {"b", gguf, 1, 0}};
    struct rd_error err = {RD_OK, ""};
    struct rd_request_options q[BATCH];
    struct rd_options o;
    rd_engine *engine = NULL;

    rd_options_default(&o);
    o.model = test_path(MODEL);
    o.device = device();
    o.n_threads = 2;
    o.kv_tokens = 4096;
    o.max_running = BATCH;
    o.adapters = files;
    o.n_adapters = 2;
    o.no_graphs = no_graphs;
    CHECK_EQ(rd_open(&o, &engine, &err), RD_OK);
    for (uint32_t round = 0; round < n_rounds; round++) {
        for (uint32_t i = 0; i < BATCH; i++) {
            q[i] = ask((i + round) % N_SORTS);
            q[i].sampling.seed = i + 100 * round;
            q[i].speculation = false;
            q[i].max_tokens = N_TOKENS - i % 7;
        }
        CHECK_EQ(rd_generate_batch(engine, q, BATCH, hear, out + (size_t)round * BATCH, &err), RD_OK);
        if (round % 2 == 1) {
            CHECK_EQ(rd_adapter_unload(engine, "a", &err), RD_OK);
            CHECK_EQ(rd_adapter_unload(engine, "b", &err), RD_OK);
            CHECK_EQ(rd_adapter_load(engine, "b", gguf, 1, &err), RD_OK);
            CHECK_EQ(rd_adapter_load(engine, "a", dirs[0], 1, &err), RD_OK);
        }
    }
    rd_get_stats(engine, &s);
    *n_ahead = s.n_steps_ahead;
    rd_close(engine);
}

TEST(mixed_sequences_are_the_same_in_recorded_steps_ahead_and_op_by_op)
{
    enum { ROUNDS = 6, ALL = 20 * ROUNDS };
    static struct heard recorded[ALL], plain[ALL];
    uint64_t n_ahead, n_plain;

    make_files();
    memset(recorded, 0, sizeof(recorded));
    memset(plain, 0, sizeof(plain));
    write_together(false, recorded, ROUNDS, &n_ahead);
    write_together(true, plain, ROUNDS, &n_plain);
    for (uint32_t i = 0; i < ALL; i++) {
        CHECK_EQ(recorded[i].n, N_TOKENS - i % 20 % 7);
        CHECK(recorded[i].n == plain[i].n && memcmp(recorded[i].tokens, plain[i].tokens, sizeof(plain[i].tokens)) == 0);
    }
    CHECK_EQ(n_plain, 0);
    if (device() && strcmp(device(), "cuda") == 0) CHECK(n_ahead > ROUNDS * 10);
    remove_files();
}

/* Eight adapters and the model alone, 32 sequences in one batch. */
TEST(eight_adapters_and_the_model_in_one_batch_of_32_are_each_what_they_are_alone)
{
    enum { ADAPTERS = 8, SORTS = ADAPTERS + 1, BATCH = 32 };
    static struct heard cold[SORTS], all[BATCH];
    static const char *const names[ADAPTERS] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    char folders[ADAPTERS][64];
    struct rd_adapter_file files[ADAPTERS];
    struct rd_adapter_use uses[SORTS];
    struct rd_request_options q[BATCH];
    struct rd_error err = {RD_OK, ""};
    struct rd_options o;
    rd_engine *engine = NULL;

    for (uint32_t i = 0; i < ADAPTERS; i++) {
        const struct lora_options made = {.seed = 40 + i, .rank = 1 + 2 * i, .bf16 = i % 2 == 1};

        CHECK(lora_make(test_path(MODEL), true, &made, folders[i]));
        files[i] = (struct rd_adapter_file){names[i], folders[i], 1, 0};
        uses[i + 1] = (struct rd_adapter_use){names[i], NAN};
    }
    rd_options_default(&o);
    o.model = test_path(MODEL);
    o.device = device();
    o.n_threads = 2;
    o.kv_tokens = 4096;
    o.max_running = BATCH;
    o.adapters = files;
    o.n_adapters = ADAPTERS;
    CHECK_EQ(rd_open(&o, &engine, &err), RD_OK);
    memset(cold, 0, sizeof(cold));
    for (uint32_t s = 0; s < SORTS; s++) {
        q[s] = ask(0);
        q[s].logprobs = true;
        q[s].adapters = s ? &uses[s] : NULL;
        q[s].n_adapters = s > 0;
        CHECK_EQ(rd_generate(engine, &q[s], hear, &cold[s], &err), RD_OK);
        CHECK(cold[s].n_cached == 0 && (s == 0 || !same(&cold[s], &cold[s - 1])));
    }
    for (uint32_t round = 0; round < 2; round++) { /* cold, then cached */
        if (round == 0) rd_cache_clear(engine);
        memset(all, 0, sizeof(all));
        for (uint32_t i = 0; i < BATCH; i++) q[i] = q[i % SORTS];
        CHECK_EQ(rd_generate_batch(engine, q, BATCH, hear, all, &err), RD_OK);
        for (uint32_t i = 0; i < BATCH; i++) CHECK(same(&cold[i % SORTS], &all[i]));
        if (round == 1) CHECK(all[0].n_cached > 30 && all[SORTS - 1].n_cached > 30);
    }
    rd_close(engine);
    for (uint32_t i = 0; i < ADAPTERS; i++) lora_remove(folders[i]);
}

TEST(an_unloaded_adapter_is_gone_and_what_it_stored_is_found_when_it_is_back)
{
    struct heard cold, h;
    struct rd_adapter list[4];
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine;

    make_files();
    engine = open_tiny(NULL, 0, 0, &err);
    CHECK_EQ(generate(engine, 1, &h), RD_E_NOT_FOUND);
    CHECK_EQ(rd_adapter_load(engine, "a", dirs[0], 1, &err), RD_OK);
    CHECK_EQ(rd_adapter_load(engine, "a", dirs[1], 1, &err), RD_E_INVALID);
    CHECK_EQ(rd_adapter_load(engine, "b", gguf, 2, &err), RD_OK);
    CHECK_EQ(generate(engine, 1, &cold), RD_OK);
    CHECK_EQ(rd_adapters(engine, list, 4), 2);
    CHECK(!strcmp(list[0].name, "a") && list[0].id == 0 && list[0].rank == 4 && !strcmp(list[0].base, "org/tiny"));
    CHECK(!strcmp(list[1].path, gguf) && list[1].id == 1 && list[1].scale == 2 && list[1].n_bytes > 0);
    CHECK_EQ(rd_adapter_unload(engine, "a", &err), RD_OK);
    CHECK_EQ(rd_adapter_unload(engine, "a", &err), RD_E_NOT_FOUND);
    CHECK_EQ(generate(engine, 1, &h), RD_E_NOT_FOUND);
    CHECK_EQ(rd_adapter_load(engine, "a", dirs[0], 1, &err), RD_OK);
    CHECK_EQ(generate(engine, 1, &h), RD_OK);
    CHECK(same(&cold, &h) && h.n_cached > 30);
    CHECK_EQ(rd_adapters(engine, list, 4), 2);
    CHECK_EQ(list[1].id, 2);
    rd_close(engine);
    remove_files();
}

TEST(an_applied_adapter_is_in_requests_that_say_nothing)
{
    struct rd_request_options q = ask(0);
    struct rd_adapter_use none = {NULL, 0};
    struct heard base, with, h;
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine;

    make_files();
    engine = open_tiny((struct rd_adapter_file[]){{"a", dirs[0], 1, 0}}, 1, 0, &err);
    CHECK_EQ(generate(engine, 0, &base), RD_OK);
    CHECK_EQ(generate(engine, 1, &with), RD_OK);
    CHECK_EQ(rd_adapter_apply(engine, "a", 1, &err), RD_OK);
    CHECK_EQ(generate(engine, 0, &h), RD_OK);
    CHECK(same(&with, &h) && h.n_cached > 30);
    memset(&h, 0, sizeof(h));
    q.logprobs = true;
    q.adapters = &none;
    CHECK_EQ(rd_generate(engine, &q, hear, &h, &err), RD_OK);
    CHECK(same(&base, &h));
    CHECK_EQ(rd_adapter_apply(engine, "a", 0, &err), RD_OK);
    CHECK_EQ(generate(engine, 0, &h), RD_OK);
    CHECK(same(&base, &h));
    CHECK_EQ(rd_adapter_apply(engine, "z", 1, &err), RD_E_NOT_FOUND);
    rd_close(engine);
    remove_files();
}

TEST(what_cannot_be_is_refused)
{
    struct rd_request_options q = ask(1);
    const struct rd_adapter_use twice[2] = {{"a", 1}, {"a", 2}}, nan_scale[1] = {{"a", INFINITY}};
    struct heard h = {.n = 0};
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine;

    make_files();
    engine = open_tiny((struct rd_adapter_file[]){{"a", "/nowhere", 1, 0}}, 1, 0, &err);
    CHECK(!engine && err.status == RD_E_NOT_FOUND && strstr(err.text, "\"a\""));
    engine = open_tiny((struct rd_adapter_file[]){{"a", dirs[0], 1, 0}}, 1, 40000, &err);
    CHECK(!engine && err.status == RD_E_LIMIT && strstr(err.text, "more than the"));
    engine = open_tiny((struct rd_adapter_file[]){{"a", dirs[0], 1, 0}}, 1, 0, &err);
    CHECK_EQ(rd_adapter_load(engine, "", dirs[0], 1, &err), RD_E_INVALID);
    CHECK_EQ(rd_adapter_load(engine, "tiny-llama", dirs[0], 1, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "the model itself"));
    CHECK_EQ(rd_adapter_load(engine, "x\n", dirs[0], 1, &err), RD_E_INVALID);
    CHECK_EQ(rd_adapter_load(engine, "x", dirs[0], NAN, &err), RD_E_INVALID);
    q.adapters = twice;
    q.n_adapters = 2;
    CHECK_EQ(rd_generate(engine, &q, hear, &h, &err), RD_E_INVALID);
    q.adapters = nan_scale;
    q.n_adapters = 1;
    CHECK_EQ(rd_generate(engine, &q, hear, &h, &err), RD_E_INVALID);
    rd_close(engine);
    remove_files();
}

static uint32_t n_in_memory(rd_engine *engine)
{
    struct rd_adapter list[8];
    uint32_t n = rd_adapters(engine, list, 8), in = 0;

    for (uint32_t i = 0; i < n; i++) in += list[i].in_memory != 0;
    return in;
}

/* Room for one of the two: who is named comes back, with the same bits, and finds what it stored. */
TEST(the_one_used_longest_ago_leaves_and_comes_back_when_it_is_named)
{
    struct heard cold[N_SORTS], h;
    struct rd_error err = {RD_OK, ""};
    struct rd_adapter list[2];
    rd_engine *engine;

    make_files();
    engine = open_tiny((struct rd_adapter_file[]){{"a", dirs[0], 1, 0}, {"b", gguf, 1, 0}}, 2, 0, &err);
    CHECK_EQ(n_in_memory(engine), 2);
    for (uint32_t s = 0; s < N_SORTS; s++) CHECK_EQ(generate(engine, s, &cold[s]), RD_OK);
    CHECK_EQ(rd_adapters(engine, list, 2), 2);
    rd_close(engine);

    engine = open_tiny((struct rd_adapter_file[]){{"a", dirs[0], 1, 0}, {"b", gguf, 1, 0}}, 2,
                       list[0].n_bytes > list[1].n_bytes ? list[0].n_bytes : list[1].n_bytes, &err);
    CHECK(engine && n_in_memory(engine) == 1);
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t s = i % 3;

        CHECK_EQ(generate(engine, s, &h), RD_OK);
        CHECK(same(&cold[s], &h) && (i < 3) == (h.n_cached == 0));
        CHECK_EQ(n_in_memory(engine), 1);
    }
    CHECK_EQ(generate(engine, 3, &h), RD_E_FULL); /* both at once are too many */
    CHECK_EQ(rd_adapter_unload(engine, "a", &err), RD_OK);
    CHECK_EQ(rd_adapter_unload(engine, "b", &err), RD_OK);
    CHECK_EQ(rd_adapters(engine, list, 2), 0);
    rd_close(engine);
    remove_files();
}

TEST(one_that_left_whose_file_is_another_or_gone_is_not_taken_for_itself)
{
    char moved[80];
    struct heard h;
    struct rd_adapter list[2];
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine;

    make_files();
    snprintf(moved, sizeof(moved), "%s.away", dirs[0]);
    engine = open_tiny((struct rd_adapter_file[]){{"a", dirs[0], 1, 0}}, 1, 0, &err);
    CHECK_EQ(rd_adapters(engine, list, 2), 1);
    rd_close(engine);
    engine = open_tiny((struct rd_adapter_file[]){{"a", dirs[0], 1, 0}, {"b", gguf, 1, 0}}, 2, 3 * list[0].n_bytes / 2,
                       &err);
    CHECK(engine && n_in_memory(engine) == 1);
    CHECK(rename(dirs[0], moved) == 0);
    CHECK(generate(engine, 1, &h) != RD_OK);
    CHECK(rename(dirs[1], dirs[0]) == 0);
    CHECK_EQ(generate(engine, 1, &h), RD_E_FORMAT);
    CHECK(rename(dirs[0], dirs[1]) == 0 && rename(moved, dirs[0]) == 0);
    CHECK_EQ(generate(engine, 1, &h), RD_OK);
    rd_close(engine);
    remove_files();
}

/* Many threads over more adapters than fit: nobody has another's, none that runs is taken away. */
struct crowd {
    rd_engine *engine;
    const struct heard *cold;
    uint32_t first, n_wrong, n_full;
};

static void crowd_asks(void *arg)
{
    struct crowd *c = arg;
    struct heard h;

    for (uint32_t i = 0; i < 30; i++) {
        const uint32_t s = (c->first + i) % 3;
        rd_status st = generate(c->engine, s, &h);

        c->n_full += st == RD_E_FULL;
        c->n_wrong += st != RD_E_FULL && (st != RD_OK || !same(&c->cold[s], &h));
    }
}

TEST(a_crowd_with_room_for_one_adapter_gets_its_own_or_is_told_to_wait)
{
    struct heard cold[N_SORTS];
    struct rd_error err = {RD_OK, ""};
    struct rd_adapter list[2];
    struct thread threads[4] = {{0}};
    struct crowd crowd[4];
    uint32_t n_full = 0;
    rd_engine *engine;

    make_files();
    engine = open_tiny((struct rd_adapter_file[]){{"a", dirs[0], 1, 0}, {"b", gguf, 1, 0}}, 2, 0, &err);
    for (uint32_t s = 0; s < N_SORTS; s++) CHECK_EQ(generate(engine, s, &cold[s]), RD_OK);
    CHECK_EQ(rd_adapters(engine, list, 2), 2);
    rd_close(engine);
    engine = open_tiny((struct rd_adapter_file[]){{"a", dirs[0], 1, 0}, {"b", gguf, 1, 0}}, 2,
                       list[0].n_bytes > list[1].n_bytes ? list[0].n_bytes : list[1].n_bytes, &err);
    for (uint32_t i = 0; i < 4; i++) {
        crowd[i] = (struct crowd){engine, cold, i, 0, 0};
        CHECK_EQ(thread_start(&threads[i], "crowd", crowd_asks, &crowd[i]), RD_OK);
    }
    for (uint32_t i = 0; i < 4; i++) {
        thread_join(&threads[i]);
        CHECK_EQ(crowd[i].n_wrong, 0);
        n_full += crowd[i].n_full;
    }
    CHECK_EQ(n_in_memory(engine), 1);
    test_note("%u of 120 were told to try again", n_full);
    rd_close(engine);
    remove_files();
}

struct swapping {
    rd_engine *engine;
    bool failed;
};

static void swap_often(void *arg)
{
    struct swapping *s = arg;
    char name[16];

    for (int i = 0; i < 60; i++) {
        snprintf(name, sizeof(name), "c%d", i);
        s->failed |= rd_adapter_load(s->engine, name, dirs[i % 2], 1, NULL) != RD_OK;
        s->failed |= rd_adapter_unload(s->engine, name, NULL) != RD_OK;
        s->failed |= rd_adapter_unload(s->engine, "b", NULL) != RD_OK;
        s->failed |= rd_adapter_load(s->engine, "b", gguf, 1, NULL) != RD_OK;
    }
}

/* What runs keeps what it began with; what comes while b is away is told so. */
TEST(adapters_come_and_go_while_requests_run)
{
    struct heard cold[N_SORTS], h;
    struct rd_error err = {RD_OK, ""};
    struct thread swapper = {0};
    struct swapping s = {0};

    make_files();
    s.engine = open_tiny((struct rd_adapter_file[]){{"a", dirs[0], 1, 0}, {"b", gguf, 1, 0}}, 2, 0, &err);
    for (uint32_t i = 0; i < N_SORTS; i++) CHECK_EQ(generate(s.engine, i, &cold[i]), RD_OK);
    CHECK_EQ(thread_start(&swapper, "swapper", swap_often, &s), RD_OK);
    for (uint32_t i = 0; i < 120; i++) {
        rd_status st = generate(s.engine, i % N_SORTS, &h);

        CHECK(st == RD_OK ? same(&cold[i % N_SORTS], &h) : st == RD_E_NOT_FOUND && i % N_SORTS >= 2);
    }
    thread_join(&swapper);
    CHECK(!s.failed);
    for (uint32_t i = 0; i < N_SORTS; i++) {
        CHECK_EQ(generate(s.engine, i, &h), RD_OK);
        CHECK(same(&cold[i], &h));
    }
    rd_close(s.engine);
    remove_files();
}
