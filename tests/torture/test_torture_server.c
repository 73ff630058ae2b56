/* tests/torture/test_torture_server.c - every allocation and every system call behind every route fails, once and for ever.
 *
 * A point is a scenario, a site within it (faults.h), an error, and once or for ever. At each: the scenario's requests; every
 * one must end in a way that is allowed (torture_client.h), in time; then nothing runs or is locked any more, the accounts
 * are right, and the next request has its right answer, which no tick has to bring. When the server is closed, no memory
 * and no descriptor is left.
 *
 * Short: each site in the scenario that meets it first, a sample of them by test_seed(). RADISH_LONG=1: each allocation of
 * each scenario by its number, and each error of each call (a sample with sanitizers). `make torture` prints the figures.
 *     TORTURE_SCENARIO=NAME  that one alone     TORTURE_POINTS=N  the size of the sample     TORTURE_VERBOSE=1  each point
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "faults.h"
#include "scenarios.h"
#include "server/http/deadline_clock.h"
#include "test.h"
#include "torture_client.h"
#include "torture_server.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHORT_POINTS 100u
#define LONG_POINTS  4000u
#else
#define SHORT_POINTS 400u
#define LONG_POINTS  MAX_POINTS
#endif
#define MAX_POINTS 400000u
#define TICK_MS    (DEADLINE_TICK_NS / 1000000)
#define MAX_TICKED 16u /* answers in a row, each of which took most of a tick: nothing wakes the server but its clock */
#define MAX_TOLD   12u /* complaints that are printed */
#define MAX_BAD    100u /* after so many no further points */

struct point {
    uint32_t scenario;
    struct fault fault;
    const struct fault_site *site;
};

static struct torture_server server;
static struct reply reply;
static struct answer wanted[64][SCENARIO_STEPS], probe_wanted;

static struct figures {
    uint64_t n_points, n_injected, n_not_reached, endings[N_ENDINGS], n_hangs, n_bad, n_leaks;
    uint32_t slowest_ms, n_ticked;
} figures;

/* What the process was at when it crashed. */
static struct point now_at;

static void print_point(const struct point *p, const char *what)
{
    printf("    %s: \"%s\", %s", what, scenarios[p->scenario].name, fault_kind_name(p->fault.kind));
    if (!p->fault.site) printf(" %llu", (unsigned long long)p->fault.number);
    printf(" %s %s\n", fault_error_name(p->fault.error), p->fault.for_ever ? "for ever" : "once");
    fflush(stdout);
}

static void on_crash(int number)
{
    signal(number, SIG_DFL);
    fault_stop();
    print_point(&now_at, strsignal(number));
    fault_print(now_at.site ? now_at.site : fault_last());
    fault_print_here();
    raise(number);
}

static uint32_t number_of(const char *name, uint32_t otherwise)
{
    const char *given = getenv(name);

    return given ? (uint32_t)strtoul(given, NULL, 10) : otherwise;
}

/* With the answer: where it is about that. */
static void bad(const struct point *p, const char *what, bool shows_answer)
{
    figures.n_bad++;
    if (figures.n_bad > number_of("TORTURE_TOLD", MAX_TOLD)) return;
    print_point(p, what);
    if (shows_answer) printf("      %d %.*s\n", reply.status, 300, reply.body ? reply.body : reply.bytes);
    fault_print(p->site ? p->site : fault_last());
}

/* ---- requests ---- */

static bool is_chosen(uint32_t i)
{
    const char *name = getenv("TORTURE_SCENARIO");

    return !name || strcmp(name, scenarios[i].name) == 0;
}

static void ask(const struct step *s, const char *id)
{
    static char request[8192];
    size_t n = scenario_request(s, id, request, sizeof(request));

    client_ask(server.port, request, n, s->flags & STEP_LEAVE ? 200 : 0, fault_stop, &reply);
}

static enum ending judge(const struct step *s, const struct answer *a)
{
    enum ending e = reply_judge(&reply, a);

    if ((s->flags & STEP_RAW) && (s->flags & STEP_ANY) && e > END_LEFT && e != END_HEADLESS && e != END_HANG)
        return END_SAME;
    return (s->flags & STEP_LEAVE) && (e == END_SAME || e == END_CUT) ? END_LEFT : e;
}

static bool needs_id(const struct step *s)
{
    return strstr(s->path, "{id}") || (s->body && strstr(s->body, "{id}"));
}

/* The scenario's steps of one sort. Endings are counted when there is a point. */
static void run_steps(uint32_t scenario, bool setup, const struct point *p)
{
    char id[64] = "";

    for (uint32_t i = 0; i < SCENARIO_STEPS && scenarios[scenario].steps[i].path; i++) {
        const struct step *s = &scenarios[scenario].steps[i];
        struct answer *a = &wanted[scenario][i];
        enum ending e;

        if (((s->flags & STEP_SETUP) != 0) != setup) continue;
        if (needs_id(s) && !id[0]) return;
        ask(s, id);
        if (!needs_id(s)) reply_id(&reply, id, sizeof(id));
        if (!p) continue;
        e = judge(s, a);
        if (e == END_BLAMED && reply.status == 404 && needs_id(s) && fault_n_failed() > 0)
            e = END_REFUSED; /* it was not kept */
        figures.endings[e]++;
        if (reply.ms > figures.slowest_ms) figures.slowest_ms = reply.ms;
        if (e == END_HANG) figures.n_hangs++;
        if (e > END_LEFT) bad(p, ending_names[e], true);
        if (e != END_SAME) id[0] = 0;
    }
}

/* Answers without a fault; twice, because they must not differ. */
static bool learn(uint32_t scenario)
{
    for (int round = 0; round < 2; round++) {
        char id[64] = "";

        for (uint32_t i = 0; i < SCENARIO_STEPS && scenarios[scenario].steps[i].path; i++) {
            const struct step *s = &scenarios[scenario].steps[i];
            struct answer a;

            ask(s, id);
            if (!needs_id(s)) reply_id(&reply, id, sizeof(id));
            /* who leaves has what came until then, at times all of it */
            a = (struct answer){reply.status, (s->flags & (STEP_ANY | STEP_LEAVE)) != 0, reply_words(&reply)};
            if (!(s->flags & (STEP_LEAVE | STEP_RAW)) && !reply.whole) break;
            if (round && !a.any && (a.words != wanted[scenario][i].words || a.status != 200) &&
                !(s->flags & STEP_LEAVE)) {
                test_fail(__FILE__, __LINE__, "\"%s\" step %u: %d: %.300s", scenarios[scenario].name, i, reply.status,
                          reply.body ? reply.body : reply.bytes);
                return false;
            }
            wanted[scenario][i] = a;
        }
    }
    return true;
}

static const struct step probe = {
    "POST", "/v1/completions", "{\"prompt\":\"are you there\",\"max_tokens\":5,\"temperature\":0,\"ignore_eos\":true}",
    0};

static void check_life(const struct point *p)
{
    const char *why;

    if (!torture_is_settled(&server, &why)) bad(p, why, false);
    ask(&probe, "");
    if (reply_judge(&reply, &probe_wanted) != END_SAME)
        bad(p, "the next request is not answered as it should be", true);
    figures.n_ticked = reply.ms > TICK_MS / 2 ? figures.n_ticked + 1 : 0;
    if (figures.n_ticked == MAX_TICKED) bad(p, "answers wait for a tick since some points before", false);
}

static void run_point(const struct point *p)
{
    now_at = *p;
    if (getenv("TORTURE_VERBOSE")) print_point(p, "point");
    run_steps(p->scenario, true, NULL);
    fault_arm(&p->fault);
    run_steps(p->scenario, false, p);
    fault_stop();
    figures.n_points++;
    figures.n_injected += fault_n_failed();
    if (fault_n_failed() == 0) figures.n_not_reached++;
    check_life(p);
}

/* ---- points ---- */

static struct point *points;
static uint32_t n_points;

static void add_point(uint32_t scenario, const struct fault_site *site, struct fault f)
{
    if (n_points < MAX_POINTS) points[n_points++] = (struct point){scenario, f, site};
}

/* The sites of all scenarios, and how many allocations each makes. */
static void record(uint64_t *n_memory)
{
    for (uint32_t i = 0; i < n_scenarios; i++) {
        const char *why;

        if (!is_chosen(i)) continue;
        for (int round = 0; round < 2; round++) {
            run_steps(i, true, NULL);
            fault_record(i);
            run_steps(i, false, NULL);
            torture_is_settled(&server, &why);
            fault_stop();
            if (fault_n_memory() > n_memory[i]) n_memory[i] = fault_n_memory();
        }
    }
}

static void list_points(const uint64_t *n_memory)
{
    for (uint32_t i = 0; i < fault_n_sites(); i++) {
        const struct fault_site *s = fault_site(i);

        for (unsigned k = 0; fault_error(s->kind, k); k++)
            for (int ever = 0; ever < 2; ever++)
                if (s->kind != FAULT_MEMORY || !test_is_long())
                    add_point(s->scenario, s, (struct fault){s->kind, s->key, 0, fault_error(s->kind, k), ever});
    }
    for (uint32_t i = 0; test_is_long() && i < n_scenarios; i++)
        for (uint64_t k = 0; k < n_memory[i]; k++)
            for (int ever = 0; ever < 2; ever++) add_point(i, NULL, (struct fault){FAULT_MEMORY, 0, k, ENOMEM, ever});
}

/* The first n of a random order; all of them: as they are. */
static uint32_t sample(uint32_t n)
{
    struct random rnd;

    random_init(&rnd, test_seed());
    for (uint32_t i = 0; n < n_points && i < n; i++) {
        uint32_t k = i + (uint32_t)random_below(&rnd, n_points - i);
        struct point swap = points[i];

        points[i] = points[k];
        points[k] = swap;
    }
    return n < n_points ? n : n_points;
}

static bool begin(void)
{
    if (!torture_start(&server)) {
        test_fail(__FILE__, __LINE__, "the server did not start: %s", server.err.text);
        return false;
    }
    do ask(&probe, ""); /* the engine is there a moment before it is served */
    while (reply.status == 503);
    probe_wanted = (struct answer){200, false, reply_words(&reply)};
    for (uint32_t i = 0; i < n_scenarios; i++)
        if (is_chosen(i) && !learn(i)) return false;
    return true;
}

static void stop(void)
{
    if (!torture_stop(&server)) test_fail(__FILE__, __LINE__, "the server does not end");
}

static void end(uint64_t alive, unsigned n_files)
{
    stop();
    if (mem_n_alive() != alive) {
        figures.n_leaks += mem_n_alive() - alive;
        test_fail(__FILE__, __LINE__, "%lld blocks of memory are left", (long long)(mem_n_alive() - alive));
    }
    if (torture_n_files() != n_files)
        test_fail(__FILE__, __LINE__, "%u descriptors are left", torture_n_files() - n_files);
}

static void print_figures(void)
{
    test_note("%u scenarios, %u sites, %llu points, %llu failures injected, %llu points not reached, seed %llu",
              n_scenarios, fault_n_sites(), (unsigned long long)figures.n_points,
              (unsigned long long)figures.n_injected, (unsigned long long)figures.n_not_reached,
              (unsigned long long)test_seed());
    printf("    endings:");
    for (int e = 0; e < N_ENDINGS; e++)
        if (figures.endings[e] || e > END_LEFT)
            printf(" %s %llu", ending_names[e], (unsigned long long)figures.endings[e]);
    printf("\n    hangs %llu, leaks %llu, other complaints %llu, slowest answer %u ms\n",
           (unsigned long long)figures.n_hangs, (unsigned long long)figures.n_leaks, (unsigned long long)figures.n_bad,
           figures.slowest_ms);
}

TEST(whatever_fails_behind_a_route_the_server_lives_and_tells_the_truth)
{
    static uint64_t n_memory[64];
    uint64_t alive;
    unsigned n_files;
    uint32_t n;

    signal(SIGSEGV, on_crash);
    signal(SIGABRT, on_crash);
    points = calloc(MAX_POINTS, sizeof(*points));
    CHECK(points && reply_init(&reply) && torture_init(&server));
    fault_exempt(true);
    fault_init();
    if (!begin()) return; /* once: what libevent and others keep for good */
    record(n_memory);
    stop();
    alive = mem_n_alive();
    n_files = torture_n_files();
    list_points(n_memory);
    n = sample(number_of("TORTURE_POINTS", test_is_long() ? LONG_POINTS : SHORT_POINTS));
    test_note("%u of %u points", n, n_points);
    if (!begin()) return;
    for (uint32_t i = 0; i < n && figures.n_bad < number_of("TORTURE_BAD", MAX_BAD); i++) {
        if (test_is_long() && i > 0 && points[i].scenario != points[i - 1].scenario) {
            end(alive, n_files); /* whose leak it is */
            if (!begin()) return;
        }
        run_point(&points[i]);
    }
    end(alive, n_files);
    print_figures();
    CHECK_EQ(figures.n_bad, 0);
    torture_deinit(&server);
    reply_deinit(&reply);
    free(points);
}
