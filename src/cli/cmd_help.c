/* cli/cmd_help.c - `radish help [COMMAND]`, `radish --help`, `radish version`. */
#include <stdio.h>
#include <string.h>
#include "cli/commands.h"
#include "radish/radish.h"

enum { MAX_COMMANDS = 64 };

void help_overview(FILE *out)
{
    const char *section = "";

    fprintf(out,
            "radish %s: runs language models and computes every common prefix once\n\n"
            "Usage: radish COMMAND [ARGUMENTS] [FLAGS]\n",
            rd_version());
    for (const struct command *const *c = all_commands; *c; c++) {
        if (strcmp((*c)->section, section) != 0) fprintf(out, "\n%s\n", (*c)->section);
        section = (*c)->section;
        fprintf(out, "  %-12s%s\n", (*c)->name, (*c)->summary);
    }
    fprintf(
        out,
        "\nExamples\n"
        "  radish run smollm2 \"What is the capital of Japan?\"\n"
        "  git diff | radish run qwen2.5-coder-1.5b --system \"Write a commit message for this diff.\"\n"
        "  radish serve smollm2 --port 8000\n"
        "  radish bench smollm2 --threads 4 --batch 1,4,16\n"
        "\nMODEL is a GGUF file, a directory of the Hugging Face hub, or a name that `radish fetch` fetched\n"
        "(found in $RADISH_MODELS, else ~/.cache/radish/models).\n"
        "radish COMMAND --help shows each flag with its unit and default.\n"
        "Exit status: 0; 1 when the work failed; 2 for a wrong command line; 70 when a server's device or model file\n"
        "failed for good; 130 after Ctrl-C.\n");
}

int help_unknown_command(const char *name)
{
    const char *names[MAX_COMMANDS], *near;
    size_t n = 0;

    for (const struct command *const *c = all_commands; *c && n < MAX_COMMANDS; c++) names[n++] = (*c)->name;
    near = args_nearest(name, names, n);
    fprintf(stderr, "radish: unknown command %s", name);
    if (near) fprintf(stderr, "; did you mean %s?", near);
    fprintf(stderr, "\nradish --help shows all commands.\n");
    return EXIT_USAGE;
}

static int run_help(const struct command *self, int argc, char **argv)
{
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words;
    char none = 0;
    int rc = args_parse(self, argc, argv, &none, words, &n_words);

    if (rc != ARGS_GO) return rc;
    if (n_words == 0) {
        help_overview(stdout);
        return EXIT_DONE;
    }
    for (const struct command *const *c = all_commands; *c; c++) {
        if (strcmp((*c)->name, words[0]) != 0) continue;
        args_help(*c, stdout);
        return EXIT_DONE;
    }
    return help_unknown_command(words[0]);
}

static int run_version(const struct command *self, int argc, char **argv)
{
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words;
    char none = 0;
    int rc = args_parse(self, argc, argv, &none, words, &n_words);

    if (rc != ARGS_GO) return rc;
    printf("radish %s\n", rd_version());
    return EXIT_DONE;
}

const struct command cmd_help = {
    .name = "help",
    .section = "About",
    .summary = "this overview, or the flags of a command",
    .words = "[COMMAND]",
    .max_words = 1,
    .run = run_help,
};

const struct command cmd_version = {
    .name = "version",
    .section = "About",
    .summary = "the version",
    .run = run_version,
};
