/* cli/cmd_doctor.c - `radish doctor`: what this machine has and what radish would choose on it. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/sysinfo.h"
#include "cli/cli_model.h"
#include "cli/commands.h"
#include "cli/doctor_findings.h"
#include "cli/model_list.h"
#include "cli/run_dir.h"

struct doctor_flags {
    bool json;
    const char *backend;
};

static const struct arg doctor_args[] = {
    {.flag = "--json",
     .kind = ARG_SWITCH,
     .at = offsetof(struct doctor_flags, json),
     .help = "one JSON object instead of text"},
    {.flag = "--backend",
     .kind = ARG_TEXT,
     .value = "PATH",
     .at = offsetof(struct doctor_flags, backend),
     .fallback_text = "none",
     .help = "a shared object to load and ask as well (docs/backends.md)"},
    {0},
};

static const struct arg_group doctor_groups[] = {{"Output", doctor_args, 0}, {NULL, NULL, 0}};

/* Why nothing can be written to a folder, or to the nearest one above it that is there; NULL: it can. */
static const char *unusable(const char *dir)
{
    char path[CLI_PATH_BYTES], *slash;
    struct stat s;

    if (!dir || !*dir) return NULL;
    snprintf(path, sizeof(path), "%s", dir);
    while (stat(path, &s) != 0) {
        slash = strrchr(path, '/');
        if (errno != ENOENT) return strerror(errno);
        if (!slash)
            snprintf(path, sizeof(path), ".");
        else
            slash[slash == path] = 0;
    }
    if (!S_ISDIR(s.st_mode)) return strerror(ENOTDIR);
    return access(path, W_OK | X_OK) == 0 ? NULL : strerror(errno);
}

static size_t find(const json_t *report, const struct rd_doctor_paths *paths, struct finding out[FINDINGS_MAX])
{
    struct doctor_facts f = {.report = report,
                             .unusable = {unusable(paths->models), unusable(paths->packed), unusable(paths->cache)},
                             .n_open_files = sysinfo_open_files()};
    struct rd_error err = {RD_OK, ""};
    struct model_entry *models = NULL;
    struct run_entry *servers = NULL;
    size_t n;

    if (model_list_all(paths->models, &models, &f.n_models)) mem_free(models);
    if (run_dir_list(&servers, &n, &err) != RD_OK) f.run_dir_error = err.text;
    mem_free(servers);
    return doctor_findings(&f, out);
}

static void print_findings(const struct finding *list, size_t n)
{
    if (n == 0)
        printf("findings\n  none              nothing is wrong\n");
    else
        printf("findings\n");
    for (size_t i = 0; i < n; i++)
        printf("  %-17s %s%s\n%20s-> %s\n", list[i].id, list[i].is_fault ? "FAULT: " : "", list[i].what, "",
               list[i].remedy);
}

static bool add_findings(json_t *report, const struct finding *list, size_t n)
{
    json_t *array = json_array();

    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(array, json_pack("{s:s, s:b, s:s, s:s}", "id", list[i].id, "fault", list[i].is_fault,
                                                   "what", list[i].what, "remedy", list[i].remedy)) != 0)
            return false;
    return json_object_set_new(report, "findings", array) == 0;
}

/* text: of rd_doctor as JSON. */
static int show(const struct doctor_flags *f, const struct rd_doctor_paths *paths, const char *text)
{
    struct finding list[FINDINGS_MAX];
    json_t *report = json_loads(text, 0, NULL);
    size_t n = report ? find(report, paths, list) : 0;
    char *dump = NULL;
    int rc = EXIT_DONE;

    if (!report)
        rc = cli_fail("out of memory");
    else if (!f->json)
        print_findings(list, n);
    else if (!add_findings(report, list, n) || !(dump = json_dumps(report, JSON_INDENT(2))))
        rc = cli_fail("out of memory");
    else
        puts(dump);
    rd_free(dump);
    json_decref(report);
    return rc;
}

static int run_doctor(const struct command *self, int argc, char **argv)
{
    struct doctor_flags f = {.json = false};
    const char *words[ARGS_MAX_WORDS];
    char models[CLI_PATH_BYTES], packed[CLI_PATH_BYTES], cache[CLI_PATH_BYTES], *text = NULL, *report = NULL;
    struct rd_doctor_paths paths;
    struct rd_options o;
    struct rd_error err = {RD_OK, ""};
    uint32_t n_words;
    rd_status st;
    int rc = args_parse(self, argc, argv, &f, words, &n_words);

    if (rc != ARGS_GO) return rc;
    rd_options_default(&o);
    cli_packed_dir(&o, packed);
    cli_cache_dir(&o, cache);
    cli_model_folder(models, sizeof(models));
    paths = (struct rd_doctor_paths){models, o.packed_dir, o.cache_dir, f.backend};
    st = rd_doctor(&paths, true, &report, &err);
    if (st == RD_OK && !f.json) st = rd_doctor(&paths, false, &text, &err);
    if (st == RD_OK && text) fputs(text, stdout);
    rc = st == RD_OK ? show(&f, &paths, report) : cli_fail_at("doctor", st, &err);
    rd_free(text);
    rd_free(report);
    return rc;
}

const struct command cmd_doctor = {
    .name = "doctor",
    .section = "Look inside",
    .summary = "what this machine has: CPU, memory, folders, NVIDIA driver and GPUs, and what radish would choose",
    .about = "Starts nothing and writes nothing. Says why a GPU is not used, and below findings what is wrong or "
             "slower than it "
             "need be, each with its remedy. The exit status is 0 whatever is found.",
    .examples = "  radish doctor\n  radish doctor --json | jq '.findings[] | .what, .remedy'\n",
    .groups = doctor_groups,
    .min_words = 0,
    .max_words = 0,
    .run = run_doctor,
};
