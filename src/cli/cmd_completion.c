/* cli/cmd_completion.c - `radish completion`: the scripts of src/cli/shell/, and what they ask. */
#include <stdio.h>
#include <string.h>
#include "cli/cli_model.h"
#include "cli/commands.h"
#include "cli/completion.h"

/* Embedded by CMake (cmake/embed.cmake). */
extern const char shell_radish_bash[], shell__radish[], shell_radish_fish[];
extern const size_t shell_radish_bash_n, shell__radish_n, shell_radish_fish_n;

struct completion_flags {
    bool words;
};

static const struct arg completion_args[] = {
    {.flag = "--words",
     .kind = ARG_SWITCH,
     .at = offsetof(struct completion_flags, words),
     .help = "what the scripts ask: the words of a command line follow, after --; a line for each way to go on"},
    {0}};

static const struct arg_group completion_groups[] = {{"Answers", completion_args, 0}, {NULL, NULL, 0}};

static int answer(const char *const *words, size_t n)
{
    struct buf out = {.limit = 0};
    int rc = EXIT_DONE;

    completion_answer(words, n, &out);
    if (out.failed)
        rc = cli_fail("out of memory");
    else if (out.n)
        fputs(out.data, stdout);
    buf_deinit(&out);
    return rc;
}

static int run_completion(const struct command *self, int argc, char **argv)
{
    struct completion_flags f = {false};
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words;
    int rc;

    /* Before args_parse: the line that is being typed may be wrong in any way. */
    if (argc > 2 && strcmp(argv[1], "--words") == 0 && strcmp(argv[2], "--") == 0)
        return answer((const char *const *)argv + 3, (size_t)argc - 3);
    rc = args_parse(self, argc, argv, &f, words, &n_words);
    if (rc != ARGS_GO) return rc;
    if (n_words == 1 && strcmp(words[0], "bash") == 0)
        return fwrite(shell_radish_bash, 1, shell_radish_bash_n, stdout), 0;
    if (n_words == 1 && strcmp(words[0], "zsh") == 0) return fwrite(shell__radish, 1, shell__radish_n, stdout), 0;
    if (n_words == 1 && strcmp(words[0], "fish") == 0)
        return fwrite(shell_radish_fish, 1, shell_radish_fish_n, stdout), 0;
    fprintf(stderr, "radish: completion: wanted bash, zsh or fish (echo $SHELL says which one this is)\n");
    return EXIT_USAGE;
}

const struct command cmd_completion = {
    .name = "completion",
    .section = "About",
    .summary = "lets the Tab key complete commands, flags, values and models",
    .words = "SHELL",
    .about =
        "Prints the script for SHELL: bash, zsh or fish. A package installs it; by hand, put one of the lines below "
        "into the shell's start file (.bashrc, .zshrc, config.fish).",
    .examples = "  source <(radish completion bash)\n"
                "  source <(radish completion zsh)\n"
                "  radish completion fish | source\n",
    .groups = completion_groups,
    .first_words = "bash|zsh|fish",
    .min_words = 0,
    .max_words = 1,
    .run = run_completion,
};
