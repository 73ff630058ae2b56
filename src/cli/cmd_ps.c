/* cli/cmd_ps.c - `radish ps`: the servers of this user that run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "cli/cli_model.h"
#include "cli/commands.h"
#include "cli/server_view.h"

struct ps_flags {
    const char *key;
    bool json;
};

static const struct arg ps_args[] = {{.flag = "--api-key",
                                      .kind = ARG_TEXT,
                                      .value = "KEY",
                                      .at = offsetof(struct ps_flags, key),
                                      .fallback_text = "$RADISH_API_KEY",
                                      .help = "of servers that want one: without it they tell their state alone"},
                                     {.flag = "--json",
                                      .kind = ARG_SWITCH,
                                      .at = offsetof(struct ps_flags, json),
                                      .help = "an array of objects instead of text: pid, address, state, models, "
                                              "loaded, rss_bytes, running, waiting, uptime_s, "
                                              "version"},
                                     {0}};

static const struct arg_group ps_groups[] = {{"Output", ps_args, 0}, {NULL, NULL, 0}};

/* "a\nb" as JSON. */
static void put_lines(struct buf *out, const char *lines)
{
    buf_putc(out, '[');
    for (const char *line = lines; *line;) {
        size_t n = strcspn(line, "\n");

        buf_puts(out, line == lines ? "\"" : ", \"");
        buf_put_json(out, line, n);
        buf_putc(out, '"');
        line += n + (line[n] == '\n');
    }
    buf_putc(out, ']');
}

static void put_number(struct buf *out, const char *name, bool is_known, uint64_t n)
{
    buf_printf(out, ", \"%s\": ", name);
    if (is_known)
        buf_printf(out, "%llu", (unsigned long long)n);
    else
        buf_puts(out, "null");
}

static void put_object(struct buf *out, const struct run_entry *e, const struct server_view *v, int64_t uptime_s)
{
    buf_printf(out, "{\"pid\": %d, \"address\": \"", (int)e->pid);
    buf_put_json(out, e->address, strlen(e->address));
    buf_printf(out, "\", \"state\": \"%s\", \"models\": ", server_state_name(v->state));
    put_lines(out, e->models);
    buf_puts(out, ", \"loaded\": ");
    put_lines(out, v->loaded);
    put_number(out, "rss_bytes", v->rss_bytes > 0, v->rss_bytes);
    put_number(out, "running", v->has_requests, v->n_running);
    put_number(out, "waiting", v->has_requests, v->n_waiting);
    put_number(out, "uptime_s", true, (uint64_t)uptime_s);
    buf_puts(out, ", \"version\": \"");
    buf_put_json(out, e->version, strlen(e->version));
    buf_puts(out, "\"}");
}

static const char *span_text(int64_t s, char text[24])
{
    if (s < 60)
        snprintf(text, 24, "%lld s", (long long)s);
    else if (s < 3600)
        snprintf(text, 24, "%lld min", (long long)s / 60);
    else if (s < 172800)
        snprintf(text, 24, "%lld h %02lld min", (long long)s / 3600, (long long)s / 60 % 60);
    else
        snprintf(text, 24, "%lld days", (long long)s / 86400);
    return text;
}

static const char *size_text(uint64_t n, char text[24])
{
    if (n == 0) return "?";
    if (n < 1ull << 30)
        snprintf(text, 24, "%.0f MiB", (double)n / (1 << 20));
    else
        snprintf(text, 24, "%.1f GiB", (double)n / (1ull << 30));
    return text;
}

static const char *count_text(const struct server_view *v, uint64_t n, char text[24])
{
    if (!v->has_requests) return "?";
    snprintf(text, 24, "%llu", (unsigned long long)n);
    return text;
}

/* The loaded models, with "*"; else those that it could load. A line of names, cut where it grows long. */
static void put_models(const struct run_entry *e, const struct server_view *v)
{
    const char *names = v->loaded[0] ? v->loaded : e->models, *between = "";
    size_t n_shown = 0, n_all = 0;

    for (const char *p = e->models; *p; p++) n_all += p == e->models || p[-1] == '\n';
    for (const char *line = names; *line;) {
        size_t n = strcspn(line, "\n");
        char name[512];

        if (n_shown++ < 3) printf("%s%s", between, error_quote(name, sizeof(name), line, n));
        between = ", ";
        line += n + (line[n] == '\n');
    }
    if (n_shown > 3) printf(", ..");
    if (v->loaded[0] && n_all > n_shown) printf(" (of %zu)", n_all);
}

static void print_row(const struct run_entry *e, const struct server_view *v, int64_t uptime_s)
{
    char memory[24], running[24], waiting[24], uptime[24];

    printf("%-8d %-28s %-10s %10s %8s %8s %14s  ", (int)e->pid, e->address, server_state_name(v->state),
           size_text(v->rss_bytes, memory), count_text(v, v->n_running, running), count_text(v, v->n_waiting, waiting),
           span_text(uptime_s, uptime));
    put_models(e, v);
    putchar('\n');
}

static void print(const struct ps_flags *f, const struct run_entry *list, size_t n)
{
    const char *key = f->key ? f->key : getenv("RADISH_API_KEY");
    struct buf json = {.limit = 0};
    bool is_locked = false, is_silent = false, is_elsewhere = false;

    if (!f->json && n)
        printf("%-8s %-28s %-10s %10s %8s %8s %14s  %s\n", "PID", "ADDRESS", "STATE", "MEMORY", "RUNNING", "WAITING",
               "UPTIME", "MODELS");
    buf_putc(&json, '[');
    for (size_t i = 0; i < n; i++) {
        struct server_view v;
        int64_t uptime_s = clock_wall_s(clock_system()) - list[i].started_s;

        if (uptime_s < 0) uptime_s = 0;
        server_view_read(list + i, key && *key ? key : NULL, &v);
        is_locked |= v.is_locked;
        is_silent |= v.state == SERVER_SILENT;
        is_elsewhere |= !list[i].is_here;
        if (i) buf_puts(&json, ",\n ");
        if (f->json)
            put_object(&json, list + i, &v, uptime_s);
        else
            print_row(list + i, &v, uptime_s);
    }
    buf_puts(&json, "]\n");
    if (f->json && !json.failed) fputs(json.data, stdout);
    buf_deinit(&json);
    if (f->json) return;
    if (is_locked)
        fprintf(stderr, "radish: a server with a key tells its requests to who has it: set RADISH_API_KEY\n");
    if (is_silent)
        fprintf(stderr, "radish: a silent server did not answer within 2 s; radish stop --now PID ends it\n");
    if (is_elsewhere) fprintf(stderr, "radish: memory is unknown of a server in another container; stop it there\n");
}

static int run_ps(const struct command *self, int argc, char **argv)
{
    struct ps_flags f = {NULL, false};
    struct rd_error err = {RD_OK, ""};
    const char *words[ARGS_MAX_WORDS];
    struct run_entry *list;
    uint32_t n_words;
    size_t n;
    int rc = args_parse(self, argc, argv, &f, words, &n_words);

    if (rc != ARGS_GO) return rc;
    if (run_dir_list(&list, &n, &err) != RD_OK) return cli_fail("%s", err.text);
    if (n == 0 && !f.json)
        printf("no server of yours runs; radish serve MODEL starts one\n");
    else
        print(&f, list, n);
    mem_free(list);
    return EXIT_DONE;
}

const struct command cmd_ps = {
    .name = "ps",
    .section = "Talk to a model",
    .summary = "the servers that run: models, memory, requests, address",
    .about = "Of the user who asks, on this machine. Servers register in $RADISH_RUN_DIR, else "
             "$XDG_RUNTIME_DIR/radish, else "
             "/tmp/radish-UID; one that was killed is not shown. MEMORY is what the process has resident, mapped model "
             "files "
             "included. STATE: loading, ready, draining (it ends when its requests have), unhealthy, or silent.",
    .examples = "  radish ps\n  radish ps --json | jq -r '.[] | select(.running == 0) | .pid'\n",
    .groups = ps_groups,
    .run = run_ps,
};
