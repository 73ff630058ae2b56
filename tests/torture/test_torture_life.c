/* tests/torture/test_torture_life.c - every system call and allocation of a life of the library, and of the server's start,
 * fails: opening with packed weights, disk cache and the file of answers, asking, closing, opening again, looking at the
 * folder, converting; and a server from its socket to its end.
 *
 * Whatever fails, once or for ever: it is told, or made up for; what is answered is right; the next life over the same folder is
 * as it should be and leaves no temporary file; no memory, no descriptor stays.
 * Short: a sample by test_seed(). RADISH_LONG=1: everything. TORTURE_POINTS, TORTURE_TOLD, TORTURE_VERBOSE: test_torture_server.c.
 */
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/random.h"
#include "faults.h"
#include "test.h"
#include "torture_client.h"
#include "torture_server.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHORT_LIVES  30u
#define SHORT_STARTS 6u
#define LONG_POINTS  1000u
#else
#define SHORT_LIVES  100u
#define SHORT_STARTS 10u
#define LONG_POINTS  100000u
#endif
#define PATIENCE_S 60u /* for a point: then it hangs */

static struct torture_server server;
static struct point {
    const struct fault_site *site;
    struct fault fault;
} now_at;
static struct {
    uint64_t n_points, n_injected, n_told, n_done, n_bad;
} figures;

static void print_point(const char *what)
{
    printf("    %s: %s %s %s\n", what, fault_kind_name(now_at.fault.kind), fault_error_name(now_at.fault.error),
           now_at.fault.for_ever ? "for ever" : "once");
    if (now_at.site) fault_print(now_at.site);
    fflush(stdout);
}

static void on_end(int number)
{
    signal(number, SIG_DFL);
    fault_stop();
    print_point(number == SIGALRM ? "HANG" : strsignal(number));
    fault_print_here();
    raise(number == SIGALRM ? SIGABRT : number);
}

static uint32_t number_of(const char *name, uint32_t otherwise)
{
    const char *given = getenv(name);

    return given ? (uint32_t)strtoul(given, NULL, 10) : otherwise;
}

static void bad(const char *format, const char *what)
{
    char text[600];

    snprintf(text, sizeof(text), format, what);
    if (figures.n_bad++ < number_of("TORTURE_TOLD", 12)) print_point(text);
}

/* ---- a life ---- */

struct heard {
    char text[64];
    size_t n;
};

static int hear(void *user, uint32_t index, const struct rd_event *ev)
{
    struct heard *h = user;

    if (ev->text_bytes && h->n + ev->text_bytes < sizeof(h->text)) memcpy(h->text + h->n, ev->text, ev->text_bytes);
    h->n += ev->text_bytes;
    return 0;
}

static char wanted[64]; /* the answer */

/* A status that is no success has words, unless it was never asked for any. */
static bool check(rd_status st, const struct rd_error *err, const char *what)
{
    if (st == RD_OK) return true;
    figures.n_told++;
    if (!err->text[0]) bad("%s failed without a word", what);
    if (st == RD_E_INTERNAL) bad("internal error: %s", err->text);
    return false;
}

static void ask(rd_engine *engine)
{
    struct rd_request_options q;
    struct rd_error err = {RD_OK, ""};
    struct heard h = {.n = 0};

    rd_request_options_default(&q);
    q.messages_json = "[{\"role\":\"user\",\"content\":\"a question that is as long as some pages of the cache, so "
                      "that they are stored\"}]";
    q.max_tokens = 8;
    q.sampling.temperature = 0;
    q.ignore_eos = true;
    if (!check(rd_generate(engine, &q, hear, &h, &err), &err, "rd_generate")) return;
    figures.n_done++;
    if (!wanted[0]) memcpy(wanted, h.text, sizeof(wanted));
    if (memcmp(wanted, h.text, sizeof(wanted))) bad("another answer: %s", h.text);
}

static void open_ask_close(void)
{
    struct rd_error err = {RD_OK, ""};
    struct rd_options o;
    rd_engine *engine = NULL;

    torture_options(&server, &o);
    if (!check(rd_open(&o, &engine, &err), &err, "rd_open")) return;
    ask(engine);
    ask(engine);
    rd_close(engine);
}

static void look_and_convert(void)
{
    struct rd_convert_options o = {.size = sizeof(o), .type = "q8_0", .n_threads = 1};
    struct rd_error err = {RD_OK, ""};
    char path[128], *json = NULL;

    (void)check(rd_cache_dir(server.dir, RD_CACHE_DIR_LIST, NULL, &json, &err), &err, "LIST");
    rd_free(json);
    json = NULL;
    (void)check(rd_cache_dir(server.dir, RD_CACHE_DIR_VERIFY, NULL, &json, &err), &err, "VERIFY");
    rd_free(json);
    json = NULL;
    (void)check(rd_inspect(server.model, true, &json, &err), &err, "rd_inspect");
    rd_free(json);
    snprintf(path, sizeof(path), "%s/converted.gguf", server.dir);
    (void)check(rd_convert(server.model, path, &o, &err), &err, "rd_convert");
}

static void live(void)
{
    open_ask_close();
    open_ask_close();
    look_and_convert();
}

/* Nothing stays that only a dead writer would have left. */
static void check_folder(void)
{
    DIR *d = opendir(server.dir);
    struct dirent *e;

    while (d && (e = readdir(d)))
        if (strstr(e->d_name, "writing-") || strstr(e->d_name, ".part-")) bad("%s is left", e->d_name);
    if (d) closedir(d);
}

static void clear_folder(void)
{
    char command[256];

    snprintf(command, sizeof(command), "find %s -type f ! -name template.jinja ! -name torture.gguf -delete",
             server.dir);
    if (system(command)) bad("%s", command);
}

static void run_life(void)
{
    uint64_t alive = mem_n_alive(), n_told;
    unsigned n_files = torture_n_files();

    fault_arm(&now_at.fault);
    live();
    fault_stop();
    figures.n_injected += fault_n_failed();
    n_told = figures.n_told;
    live();
    if (figures.n_told != n_told) bad("%s", "the life after it fails, too");
    if (mem_n_alive() != alive) bad("%s", "memory is left");
    if (torture_n_files() != n_files) bad("%s", "a descriptor is left");
    check_folder();
    if (random_at(test_seed(), figures.n_points) % 4 == 0) clear_folder();
}

/* ---- a server's start ---- */

static struct reply reply;

static bool answers(void)
{
    static const char probe[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

    for (int i = 0; i < 200; i++) {
        client_ask(server.port, probe, sizeof(probe) - 1, 0, NULL, &reply);
        if (reply.status == 200) return true;
        usleep(10000);
    }
    return false;
}

static void run_start(void)
{
    uint64_t alive = mem_n_alive();
    unsigned n_files = torture_n_files();
    bool ready;

    fault_arm(&now_at.fault);
    fault_exempt(true);
    ready = torture_start(&server);
    if (now_at.fault.for_ever) fault_stop();
    if (ready && !answers()) {
        ready = !torture_has_ended(&server);
        if (ready) bad("%s", "it does not answer");
    }
    if (!ready && !server.ended) bad("%s", "it neither started nor ended");
    if (!ready && server.ended && (server.status == RD_OK || !server.err.text[0])) bad("%s", "it ended without a word");
    if (!ready) figures.n_told++;
    if (ready) figures.n_done++;
    if (ready && !torture_stop(&server)) bad("%s", "it does not end");
    fault_stop();
    fault_exempt(false);
    figures.n_injected += fault_n_failed();
    if (mem_n_alive() != alive) bad("%s", "memory is left");
    if (torture_n_files() != n_files) bad("%s", "a descriptor is left");
}

/* ---- points ---- */

static void run_points(const char *what, void (*run)(void), uint32_t n_most)
{
    uint32_t n_all = 0;
    double share;

    memset(&figures, 0, sizeof(figures));
    for (uint32_t i = 0; i < fault_n_sites(); i++)
        for (unsigned k = 0; fault_error(fault_site(i)->kind, k); k++) n_all += 2;
    share = (double)number_of("TORTURE_POINTS", test_is_long() ? LONG_POINTS : n_most) / (double)n_all;
    for (uint32_t i = 0, n = 0; i < fault_n_sites(); i++) {
        const struct fault_site *s = fault_site(i);

        for (unsigned k = 0; fault_error(s->kind, k); k++)
            for (int ever = 0; ever < 2; ever++) {
                if (random_at_unit(test_seed(), n++) >= share) continue;
                now_at = (struct point){s, {s->kind, s->key, 0, fault_error(s->kind, k), ever}};
                if (getenv("TORTURE_VERBOSE")) print_point("point");
                alarm(PATIENCE_S);
                run();
                figures.n_points++;
            }
    }
    alarm(0);
    test_note("%s: %u sites, %llu of %u points, %llu failures injected; done %llu, told %llu, hangs 0, complaints %llu",
              what, fault_n_sites(), (unsigned long long)figures.n_points, n_all,
              (unsigned long long)figures.n_injected, (unsigned long long)figures.n_done,
              (unsigned long long)figures.n_told, (unsigned long long)figures.n_bad);
}

static bool begin(void)
{
    signal(SIGALRM, on_end);
    signal(SIGSEGV, on_end);
    signal(SIGABRT, on_end);
    fault_init();
    fault_forget();
    return torture_init(&server);
}

TEST(whatever_fails_in_a_life_the_next_one_is_whole)
{
    CHECK(begin());
    live(); /* once: what is kept for good */
    CHECK_EQ(figures.n_told, 0);
    clear_folder();
    for (int i = 0; i < 2; i++) { /* from nothing; over what there is */
        fault_record((uint32_t)i);
        live();
        fault_stop();
    }
    clear_folder();
    run_points("lives", run_life, SHORT_LIVES);
    torture_deinit(&server);
    CHECK_EQ(figures.n_bad, 0);
}

TEST(whatever_fails_at_its_start_a_server_ends_with_words_or_serves)
{
    CHECK(begin() && reply_init(&reply));
    for (int i = 0; i < 2; i++) {
        if (i) fault_record(0);
        CHECK(torture_start(&server) && answers() && torture_stop(&server));
        fault_stop();
    }
    run_points("starts", run_start, SHORT_STARTS);
    torture_deinit(&server);
    reply_deinit(&reply);
    CHECK_EQ(figures.n_bad, 0);
}
