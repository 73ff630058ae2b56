/* cli/cmd_rm.c - `radish rm`: takes models away, by name. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "cli/cli_model.h"
#include "cli/commands.h"
#include "cli/model_list.h"
#include "hub/hub_listing.h"
#include "hub/hub_remove.h"

struct rm_flags {
    bool is_dry;
};

static const struct arg rm_args[] = {{.flag = "--dry-run",
                                      .kind = ARG_SWITCH,
                                      .at = offsetof(struct rm_flags, is_dry),
                                      .help = "only say what would be removed, and how much it takes"},
                                     {0}};

static const struct arg_group rm_groups[] = {{"What", rm_args, 0}, {NULL, NULL, 0}};

static void tell(bool is_dry, const char *what, uint64_t n_bytes)
{
    printf("%s %s, %.1f MiB\n", is_dry ? "would remove" : "removed", what, (double)n_bytes / (1 << 20));
}

/* ---- from the cache of the hub ---- */

static bool is_wanted(void *arg, const char *path)
{
    const struct hub_listing *m = arg;

    for (size_t i = 0; i < m->n_files; i++)
        if (!strcmp(m->files[i].path, path)) return m->files[i].is_wanted;
    return false;
}

static bool is_any(void *arg, const char *path)
{
    (void)arg, (void)path;
    return true;
}

/* A quantisation, a file or a revision. */
static rd_status remove_part(const struct hub_ref *ref, bool is_dry, uint64_t *n_bytes, struct rd_error *err)
{
    struct hub_listing m = {.n_files = 0};
    struct buf why = {.limit = 0};
    char commit[HUB_COMMIT_BYTES];
    struct hub_repo r;
    uint32_t first;
    bool is_part = ref->label[0] || ref->file[0];
    rd_status st = hub_repo_open(ref->repo, false, &r, err);

    if (st != RD_OK) return st;
    st = hub_repo_commit(&r, ref->revision, commit, err);
    if (st == RD_OK && is_part) st = hub_listing_read(&r, commit, &m, err);
    if (st == RD_OK && is_part) st = hub_listing_choose(&m, ref, UINT64_MAX, &first, &why, err);
    hub_repo_close(&r);
    if (st == RD_OK) st = hub_repo_remove(ref->repo, commit, is_part ? is_wanted : is_any, &m, is_dry, n_bytes, err);
    hub_listing_deinit(&m);
    buf_deinit(&why);
    return st;
}

/* Names of what is gone. */
static void remove_names(const char *repo)
{
    char folder[CLI_PATH_BYTES / 2], whose[HUB_REPO_BYTES], commit[HUB_COMMIT_BYTES], file[HUB_FILE_BYTES];
    struct model_entry *list;
    size_t n;

    cli_model_folder(folder, sizeof(folder));
    if (!model_list_dangling(folder, &list, &n)) return;
    for (size_t i = 0; i < n; i++)
        if (hub_whose_path(list[i].target, whose, commit, file) && !strcmp(whose, repo) && unlink(list[i].path) == 0)
            printf("removed %s, which was another name of it\n", list[i].name);
    mem_free(list);
}

static int remove_pulled(const char *word, const struct hub_ref *ref, bool is_dry)
{
    struct rd_error err = {RD_OK, ""};
    uint64_t n_bytes = 0;
    bool is_part = ref->label[0] || ref->file[0] || strchr(word, '@');
    rd_status st =
        is_part ? remove_part(ref, is_dry, &n_bytes, &err) : hub_repo_remove_all(ref->repo, is_dry, &n_bytes, &err);

    if (st == RD_E_NOT_FOUND && !hub_lacks_part(&err))
        return cli_fail("%s is not in the cache of the hub (radish list)", word);
    if (st != RD_OK) return cli_fail_at(word, st, &err);
    tell(is_dry, word, n_bytes);
    if (!is_dry) remove_names(ref->repo);
    return EXIT_DONE;
}

/* ---- from the folder of models ---- */

/* A file and its other parts, those that are missing apart. */
static bool remove_parts(const struct model_entry *e, bool is_dry)
{
    char path[LIMIT_PATH_BYTES];

    for (unsigned i = 1; model_part(e, i, path); i++)
        if (!is_dry && unlink(path) && errno != ENOENT) return cli_fail("%s: %s", path, strerror(errno)), false;
    return true;
}

static int remove_entry(const struct model_entry *e, bool is_dry)
{
    if (!*e->target && e->is_dir)
        return cli_fail("%s is a folder of files; remove it with  rm -r %s", e->name, e->path);
    if (*e->target) {
        if (!is_dry && unlink(e->path)) return cli_fail("%s: %s", e->path, strerror(errno));
        printf("%s the name %s; %s stays\n", is_dry ? "would remove" : "removed", e->name, e->target);
        return EXIT_DONE;
    }
    if (!remove_parts(e, is_dry)) return EXIT_FAILED;
    tell(is_dry, e->name, e->n_bytes);
    return EXIT_DONE;
}

static int remove_named(const char *word, bool is_dry)
{
    char folder[CLI_PATH_BYTES / 2], path[CLI_PATH_BYTES];
    struct model_entry *list;
    size_t n, found;
    int rc;

    cli_model_folder(folder, sizeof(folder));
    if (!model_list(folder, &list, &n)) return cli_fail("out of memory");
    for (found = 0; found < n && strcmp(list[found].name, word); found++) continue;
    if (found < n)
        rc = remove_entry(list + found, is_dry);
    else if (file_exists(word))
        rc = cli_fail("%s is a path; models are removed by the names of radish list", word);
    else
        rc = cli_find_model(word, path) ? cli_fail("%s cannot be removed", word) : EXIT_FAILED; /* says what there is */
    mem_free(list);
    return rc;
}

static int run_rm(const struct command *self, int argc, char **argv)
{
    struct rm_flags f = {false};
    const char *words[ARGS_MAX_WORDS];
    struct hub_ref ref;
    uint32_t n_words;
    int rc = args_parse(self, argc, argv, &f, words, &n_words), one;

    if (rc != ARGS_GO) return rc;
    rc = EXIT_DONE;
    for (uint32_t i = 0; i < n_words; i++) {
        if (hub_ref_is(words[i]) && hub_ref_parse(words[i], &ref, NULL) == RD_OK && !file_exists(words[i]))
            one = remove_pulled(words[i], &ref, f.is_dry);
        else
            one = remove_named(words[i], f.is_dry);
        if (one != EXIT_DONE) rc = one;
    }
    return rc;
}

const struct command cmd_rm = {
    .name = "rm",
    .section = "Look inside",
    .summary = "removes models by the names of radish list",
    .words = "MODEL [MODEL ..]",
    .about =
        "ORG/NAME:QUANT and ORG/NAME/FILE: these files, in the cache that programs of the hub share; "
        "ORG/NAME@REVISION: "
        "that revision; ORG/NAME: all of it, beginnings of broken pulls included. What another revision has stays, and "
        "so does what is being pulled. A name that is a link (radish pull --name) goes alone. A server that has the "
        "file open goes on with it.",
    .examples = "  radish rm org/name:Q8_0 --dry-run\n  radish rm org/name smollm2\n",
    .groups = rm_groups,
    .min_words = 1,
    .max_words = ARGS_MAX_WORDS,
    .run = run_rm,
};
