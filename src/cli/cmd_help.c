/* cli/cmd_help.c - `radish help [COMMAND]`, `radish --help`, `radish version`, the man pages. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "cli/cli_facts.h"
#include "cli/cli_model.h"
#include "cli/commands.h"
#include "cli/man_page.h"
#include "radish/radish.h"

enum { MAX_COMMANDS = 64 };

void help_overview(FILE *out)
{
    const char *section = "";

    fprintf(out,
            "radish %s: %s\n\n"
            "Usage: radish COMMAND [ARGUMENTS] [FLAGS]\n",
            rd_version(), fact_tagline);
    for (const struct command *const *c = all_commands; *c; c++) {
        if (strcmp((*c)->section, section) != 0) fprintf(out, "\n%s\n", (*c)->section);
        section = (*c)->section;
        fprintf(out, "  %-12s%s\n", (*c)->name, (*c)->summary);
    }
    fprintf(out, "\nExamples\n%s\n", fact_examples);
    args_put_wrapped(out, fact_model);
    fprintf(
        out,
        "radish COMMAND --help shows each flag with its unit and default; man radish-COMMAND, too.\n\nExit status\n");
    for (const struct exit_row *row = exit_rows; row->text; row++)
        fprintf(out, "  %-6d%s%s%s\n", row->status, row->command ? row->command : "", row->command ? ": " : "",
                row->text);
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

struct help_flags {
    const char *man;
};

static const struct arg help_args[] = {{.flag = "--man",
                                        .kind = ARG_TEXT,
                                        .value = "DIR",
                                        .at = offsetof(struct help_flags, man),
                                        .fallback_text = "none",
                                        .help = "writes the man pages of all commands into this folder"},
                                       {0}};
static const struct arg_group help_groups[] = {{"Man pages", help_args, 0}, {NULL, NULL, 0}};

/* With c its page, else what put writes. */
static bool write_page(const char *dir, const char *name, const struct command *c, void (*put)(FILE *out))
{
    char path[CLI_PATH_BYTES];
    FILE *out;
    bool ok;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    out = fopen(path, "w");
    if (out && c) man_page(c, out);
    if (out && !c) put(out);
    ok = out && !ferror(out);
    if (out) ok = fclose(out) == 0 && ok;
    if (!ok) cli_fail("%s cannot be written: %s", path, strerror(errno));
    return ok;
}

static int write_pages(const char *dir)
{
    bool ok =
        write_page(dir, "radish.1", NULL, man_page_overview) && write_page(dir, "radish.toml.5", NULL, man_page_config);
    char name[64];

    for (const struct command *const *c = all_commands; *c && ok; c++) {
        snprintf(name, sizeof(name), "radish-%s.1", (*c)->name);
        ok = write_page(dir, name, *c, NULL);
    }
    return ok ? EXIT_DONE : EXIT_FAILED;
}

static int run_help(const struct command *self, int argc, char **argv)
{
    struct help_flags f = {NULL};
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words;
    int rc = args_parse(self, argc, argv, &f, words, &n_words);

    if (rc != ARGS_GO) return rc;
    if (f.man) return write_pages(f.man);
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
    .groups = help_groups,
    .max_words = 1,
    .run = run_help,
};

const struct command cmd_version = {
    .name = "version",
    .section = "About",
    .summary = "the version",
    .run = run_version,
};
