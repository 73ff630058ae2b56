/* cli/cmd_inspect.c - `radish inspect`: what is in a model and what it needs to run. */
#include <stdio.h>
#include <string.h>
#include "cli/cli_model.h"
#include "cli/commands.h"

struct inspect_flags {
    bool json;
};

static const struct arg inspect_args[] = {
    {.flag = "--json",
     .kind = ARG_SWITCH,
     .at = offsetof(struct inspect_flags, json),
     .help = "one JSON object instead of text"},
    {0},
};

static const struct arg_group inspect_groups[] = {{"Output", inspect_args, 0}, {NULL, NULL, 0}};

static int run_inspect(const struct command *self, int argc, char **argv)
{
    struct inspect_flags f = {false};
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words;
    char path[CLI_PATH_BYTES], *text = NULL;
    struct rd_error err = {RD_OK, ""};
    rd_status st;
    int rc = args_parse(self, argc, argv, &f, words, &n_words);

    if (rc != ARGS_GO) return rc;
    if (!cli_find_model(words[0], path)) return EXIT_FAILED;
    st = rd_inspect(path, f.json, &text, &err);
    if (st != RD_OK) return cli_fail_at(words[0], st, &err);
    fputs(text, stdout);
    if (*text && text[strlen(text) - 1] != '\n') putchar('\n');
    rd_free(text);
    return EXIT_DONE;
}

const struct command cmd_inspect = {
    .name = "inspect",
    .section = "Look inside",
    .summary = "metadata, tensors, memory need and chat template of a model",
    .words = "MODEL",
    .about = "Sizes are in bytes, KiB or MiB as written; lengths in tokens. "
             "The file is checked but no weights are loaded.",
    .examples = "  radish inspect smollm2\n  radish inspect model.gguf --json | jq .metadata\n",
    .groups = inspect_groups,
    .min_words = 1,
    .max_words = 1,
    .run = run_inspect,
};
