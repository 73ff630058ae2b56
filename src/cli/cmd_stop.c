/* cli/cmd_stop.c - `radish stop`: ends a server of this user as SIGTERM does, and waits until it has ended. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/checked.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cli/cli_model.h"
#include "cli/cli_stream.h"
#include "cli/commands.h"
#include "cli/server_view.h"

#define TICK_NS 100000000ull

enum {
    TICKS_A_LOOK = 10, /* asking costs the server something */
    NOW_TICKS = 100    /* a server that lives so long after two signals is stuck */
};

struct stop_flags {
    const char *key;
    bool now, all;
};

static const struct arg stop_args[] = {
    {.flag = "--now",
     .kind = ARG_SWITCH,
     .at = offsetof(struct stop_flags, now),
     .help = "requests that run are cut: the second SIGTERM follows at once"},
    {.flag = "--all", .kind = ARG_SWITCH, .at = offsetof(struct stop_flags, all), .help = "every server of yours"},
    {.flag = "--api-key",
     .kind = ARG_TEXT,
     .value = "KEY",
     .at = offsetof(struct stop_flags, key),
     .fallback_text = "$RADISH_API_KEY",
     .help = "for the count of requests that are waited for; stopping needs none"},
    {0}};

static const struct arg_group stop_groups[] = {{"How", stop_args, 0}, {NULL, NULL, 0}};

static bool has_model(const struct run_entry *e, const char *name)
{
    for (const char *line = e->models; *line;) {
        size_t n = strcspn(line, "\n");

        if (strlen(name) == n && memcmp(line, name, n) == 0) return true;
        line += n + (line[n] == '\n');
    }
    return false;
}

/* "8000", ":8000", "127.0.0.1:8000" and "http://127.0.0.1:8000/v1" name what listens there. */
static bool has_address(const struct run_entry *e, const char *name)
{
    const char *at = strncmp(e->address, "http://", 7) == 0 ? e->address + 7 : e->address, *port = strrchr(at, ':');
    size_t n;

    if (strncmp(name, "http://", 7) == 0) name += 7;
    n = strlen(name);
    if (n >= 3 && strcmp(name + n - 3, "/v1") == 0) n -= 3;
    if (n && name[n - 1] == '/') n--;
    if (strlen(at) == n && memcmp(at, name, n) == 0) return true;
    if (!port) return false;
    if (*name == ':') name++, n--;
    return strlen(port + 1) == n && n > 0 && memcmp(port + 1, name, n) == 0;
}

/* How well name fits: 3 a process, 2 an address, 1 a model, 0 not. */
static int fit_of(const struct run_entry *e, const char *name)
{
    uint64_t pid;

    if (parse_u64(name, strlen(name), &pid) && pid == (uint64_t)e->pid) return 3;
    return has_address(e, name) ? 2 : has_model(e, name) ? 1 : 0;
}

static void say_servers(const struct run_entry *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fprintf(stderr, "  %-8d %-28s ", (int)list[i].pid, list[i].address);
        for (const char *p = list[i].models; *p; p++) {
            if (*p == '\n')
                fputs(", ", stderr);
            else
                fputc(*p, stderr);
        }
        fputc('\n', stderr);
    }
}

/* Moves those that are meant to the front of the list; how many. 0: it was said why. */
static size_t choose(const struct stop_flags *f, const char *name, struct run_entry *list, size_t n)
{
    size_t n_meant = 0;
    int best = 0;

    if (n == 0) {
        cli_fail("no server of yours runs here%s%s", name ? ", so none is called " : "", name ? name : "");
        return 0;
    }
    if (f->all) return n;
    if (!name && n > 1) {
        cli_fail("%zu servers run: name one by its process, address or model, or say --all", n);
        say_servers(list, n);
        return 0;
    }
    if (!name) return 1;
    for (size_t i = 0; i < n; i++) best = fit_of(list + i, name) > best ? fit_of(list + i, name) : best;
    for (size_t i = 0; i < n && best; i++) {
        struct run_entry meant = list[i];

        if (fit_of(&meant, name) != best) continue;
        list[i] = list[n_meant];
        list[n_meant++] = meant;
    }
    if (n_meant == 1) return 1;
    if (n_meant == 0)
        cli_fail("no server of yours is called %s; these run:", name);
    else
        cli_fail("%zu servers are called %s: name one by its process or address", n_meant, name);
    say_servers(list, n_meant ? n_meant : n);
    return 0;
}

static void show_wait(const struct stop_flags *f, const struct run_entry *e, uint32_t n_ticks)
{
    const char *key = f->key ? f->key : getenv("RADISH_API_KEY");
    struct server_view v;
    uint64_t n;

    server_view_read(e, key && *key ? key : NULL, &v);
    n = v.n_running + v.n_waiting;
    fprintf(stderr, "\r\033[Kstopping %s: ", e->address);
    if (v.has_requests && n) fprintf(stderr, "%llu request%s left, ", (unsigned long long)n, n == 1 ? "" : "s");
    fprintf(stderr, "%u s (Ctrl-C: no longer wait)", n_ticks / 10);
}

/* Until it has ended. */
static int wait_for(const struct stop_flags *f, const struct run_entry *e)
{
    bool is_shown = false, shows = isatty(STDERR_FILENO);
    int rc = EXIT_DONE;

    for (uint32_t n_ticks = 0; rc == EXIT_DONE && run_entry_is_alive(e); n_ticks++) {
        if (f->now && n_ticks == NOW_TICKS)
            rc = cli_fail("%s does not end; kill -KILL %d ends it in any case", e->address, (int)e->pid);
        else if (f->now && n_ticks % 2 == 1)
            (void)run_entry_signal(e, SIGTERM, NULL); /* two at once may arrive as one */
        if (shows && n_ticks % TICKS_A_LOOK == TICKS_A_LOOK - 1) {
            show_wait(f, e, n_ticks);
            is_shown = true;
        }
        clock_sleep_ns(TICK_NS);
        if (stream_interrupted()) rc = EXIT_INTERRUPTED;
    }
    if (is_shown) fputs("\r\033[K", stderr);
    if (rc == EXIT_INTERRUPTED)
        fprintf(stderr, "radish: %s ends when its requests have; --now cuts them\n", e->address);
    return rc;
}

static int stop(const struct stop_flags *f, const struct run_entry *e)
{
    struct rd_error err = {RD_OK, ""};
    rd_status st = run_entry_signal(e, SIGTERM, &err);
    int rc = EXIT_DONE;

    if (st != RD_OK && st != RD_E_NOT_FOUND) return cli_fail("%s", err.text);
    rc = wait_for(f, e);
    if (rc == EXIT_DONE) printf("stopped %s (process %d)\n", e->address, (int)e->pid);
    fflush(stdout);
    return rc;
}

static int run_stop(const struct command *self, int argc, char **argv)
{
    struct stop_flags f = {NULL, false, false};
    struct rd_error err = {RD_OK, ""};
    const char *words[ARGS_MAX_WORDS];
    struct run_entry *list;
    uint32_t n_words;
    size_t n, n_meant;
    int rc = args_parse(self, argc, argv, &f, words, &n_words);

    if (rc != ARGS_GO) return rc;
    if (f.all && n_words) {
        fprintf(stderr, "radish: stop: --all goes without a name\n");
        return EXIT_USAGE;
    }
    if (run_dir_list(&list, &n, &err) != RD_OK) return cli_fail("%s", err.text);
    n_meant = choose(&f, n_words ? words[0] : NULL, list, n);
    rc = n_meant ? EXIT_DONE : EXIT_FAILED;
    stream_catch_interrupt();
    for (size_t i = 0; i < n_meant && rc != EXIT_INTERRUPTED; i++) {
        int one = stop(&f, list + i);
        rc = one != EXIT_DONE ? one : rc;
    }
    mem_free(list);
    return rc;
}

const struct command cmd_stop = {
    .name = "stop",
    .section = "Talk to a model",
    .summary = "ends a server: no new requests, running ones may end",
    .words = "[SERVER]",
    .about =
        "SERVER is a process, an address, a port or a model, as radish ps shows them; without it, the one server that "
        "runs. Waits until it has ended: running requests have as long as its --drain says. Ctrl-C ends the waiting, "
        "not the stopping.",
    .examples = "  radish stop\n  radish stop 8000\n  radish stop smollm2 --now\n",
    .groups = stop_groups,
    .max_words = 1,
    .run = run_stop,
};
