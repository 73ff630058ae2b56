/* cli/cmd_show.c - `radish show`: where a model is, where it came from, and whether it runs. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "base/json_write.h"
#include "base/mem.h"
#include "cli/cli_model.h"
#include "cli/commands.h"
#include "cli/model_list.h"
#include "hub/hub_contents.h"
#include "hub/hub_listing.h"

struct show_flags {
    bool json;
};

static const struct arg show_args[] = {{.flag = "--json",
                                        .kind = ARG_SWITCH,
                                        .at = offsetof(struct show_flags, json),
                                        .help = "one JSON object instead of text"},
                                       {0}};

static const struct arg_group show_groups[] = {{"Output", show_args, 0}, {NULL, NULL, 0}};

/* What is known of a model before it is opened. */
struct shown {
    const char *name;
    char path[CLI_PATH_BYTES], repo[HUB_REPO_BYTES], commit[HUB_COMMIT_BYTES], file[HUB_FILE_BYTES];
    struct model_entry *others; /* every model there is */
    size_t n_others;
    uint64_t n_bytes;
    bool is_pulled;
};

static bool is_of_it(const struct shown *s, const struct model_entry *e)
{
    return !strcmp(e->path, s->path) || (*e->target && !strcmp(e->target, s->path));
}

static bool find(struct shown *s)
{
    char folder[CLI_PATH_BYTES / 2];

    if (!cli_find_model(s->name, s->path)) return false;
    cli_model_folder(folder, sizeof(folder));
    if (!model_list_all(folder, &s->others, &s->n_others)) return cli_fail("out of memory"), false;
    s->is_pulled = hub_whose_path(s->path, s->repo, s->commit, s->file);
    for (size_t i = 0; i < s->n_others; i++)
        if (is_of_it(s, s->others + i)) s->n_bytes = s->others[i].n_bytes;
    return true;
}

/* fn is given the files of a pulled model that belong to it: a GGUF file and its parts, or all of the snapshot. */
static void each_file(const struct shown *s, void (*fn)(void *arg, const struct hub_file *f), void *arg)
{
    struct hub_listing m = {.n_files = 0};
    struct hub_ref ref = {.revision = ""};
    struct buf why = {.limit = 0};
    struct hub_repo r;
    uint32_t first;

    if (!s->is_pulled || hub_repo_open(s->repo, false, &r, NULL) != RD_OK) return;
    snprintf(ref.file, sizeof(ref.file), "%s", s->file);
    if (hub_listing_read(&r, s->commit, &m, NULL) == RD_OK &&
        (!ref.file[0] || hub_listing_choose(&m, &ref, UINT64_MAX, &first, &why, NULL) == RD_OK))
        for (size_t i = 0; i < m.n_files; i++)
            if (m.files[i].is_wanted || !ref.file[0]) fn(arg, m.files + i);
    buf_deinit(&why);
    hub_listing_deinit(&m);
    hub_repo_close(&r);
}

/* ---- as text ---- */

static void print_file(void *arg, const struct hub_file *f)
{
    (void)arg;
    printf("file          %s, %.1f MiB%s%s\n", f->path, (double)f->n_bytes / (1 << 20),
           strlen(f->digest) == 64 ? ", SHA-256 "
           : *f->digest            ? ", git "
                                   : "",
           f->digest);
}

static void print_names(const struct shown *s)
{
    const char *between = "names         ";

    for (size_t i = 0; i < s->n_others; i++)
        if (is_of_it(s, s->others + i)) {
            printf("%s%s", between, s->others[i].name);
            between = ", ";
        }
    if (*between == ',') putchar('\n');
}

/* The first paragraph of radish inspect. */
static void print_summary(const struct shown *s)
{
    struct rd_error err = {RD_OK, ""};
    char *text = NULL, *end;
    rd_status st = rd_inspect(s->path, false, &text, &err);

    if (st != RD_OK) {
        printf("runs          no: %s\n", *err.text ? err.text : rd_status_text(st));
        return;
    }
    end = strstr(text, "\n\n");
    if (end) end[1] = 0;
    fputs(text, stdout);
    rd_free(text);
}

static void print_text(const struct shown *s)
{
    print_names(s);
    printf("path          %s\n", s->path);
    if (s->is_pulled) printf("pulled        %s, commit %s\n", s->repo, s->commit);
    each_file(s, print_file, NULL);
    print_summary(s);
}

/* ---- as JSON ---- */

static void put_file(void *arg, const struct hub_file *f)
{
    json_array_append_new(
        arg, json_pack("{s:s, s:I, s:s}", "path", f->path, "bytes", (json_int_t)f->n_bytes, "digest", f->digest));
}

static int print_json(const struct shown *s)
{
    json_t *out = json_object(), *names = json_array(), *files = json_array(), *about = NULL;
    struct rd_error err = {RD_OK, ""};
    char *text = NULL, *whole;
    rd_status st = rd_inspect(s->path, true, &text, &err);

    for (size_t i = 0; i < s->n_others; i++)
        if (is_of_it(s, s->others + i)) json_array_append_new(names, json_string(s->others[i].name));
    each_file(s, put_file, files);
    if (st == RD_OK) about = json_loads(text, 0, NULL);
    rd_free(text);
    json_object_set_new(out, "names", names);
    json_object_set_new(out, "path", json_string(s->path));
    json_object_set_new(out, "bytes", json_integer((json_int_t)s->n_bytes));
    if (s->is_pulled) {
        json_object_set_new(out, "repo", json_string(s->repo));
        json_object_set_new(out, "commit", json_string(s->commit));
    }
    json_object_set_new(out, "files", files);
    json_object_set_new(out, "error", st == RD_OK ? json_null() : json_string(err.text));
    json_object_set_new(out, "model", about ? about : json_null());
    whole = json_dumps(out, JSON_INDENT(1));
    json_decref(out);
    if (!whole) return cli_fail("out of memory");
    puts(whole);
    mem_free(whole);
    return EXIT_DONE;
}

static int run_show(const struct command *self, int argc, char **argv)
{
    struct show_flags f = {false};
    const char *words[ARGS_MAX_WORDS];
    struct shown *s;
    uint32_t n_words;
    int rc = args_parse(self, argc, argv, &f, words, &n_words);

    if (rc != ARGS_GO) return rc;
    s = mem_zalloc(1, sizeof(*s));
    if (!s) return cli_fail("out of memory");
    s->name = words[0];
    rc = EXIT_FAILED;
    if (find(s)) {
        rc = EXIT_DONE;
        if (f.json)
            rc = print_json(s);
        else
            print_text(s);
    }
    mem_free(s->others);
    mem_free(s);
    return rc;
}

const struct command cmd_show = {
    .name = "show",
    .section = "Look inside",
    .summary = "where a model is, where it came from, whether it runs",
    .words = "MODEL",
    .about = "Its names, its path, of a pulled one the commit and each file with its digest, then the first lines of "
             "radish inspect.",
    .examples = "  radish show smollm2\n  radish show org/name:Q4_K_M --json | jq -r .path\n",
    .groups = show_groups,
    .min_words = 1,
    .max_words = 1,
    .run = run_show,
};
