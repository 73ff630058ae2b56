/* cli/main.c - finds the command and hands it the rest of the line. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "cli/commands.h"
#include "cli/variables.h"

const struct command *const all_commands[] = {
    &cmd_run,        &cmd_chat,     &cmd_serve,   &cmd_ps,         &cmd_stop,    &cmd_key, /* by section */
    &cmd_fetch,      &cmd_pull,     &cmd_list,    &cmd_show,       &cmd_rm,      &cmd_inspect, &cmd_convert,
    &cmd_tokenize,   &cmd_template, &cmd_grammar, &cmd_doctor,     &cmd_cache,   &cmd_api,     &cmd_bench,
    &cmd_perplexity, &cmd_train,    &cmd_help,    &cmd_completion, &cmd_version, NULL,
};

static int run(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;

    if (!name) {
        help_overview(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        help_overview(stdout);
        return EXIT_DONE;
    }
    if (strcmp(name, "--version") == 0) name = "version";
    for (const struct command *const *c = all_commands; *c; c++)
        if (strcmp((*c)->name, name) == 0) {
            if ((*c)->settings_at) variables_warn();
            return (*c)->run(*c, argc - 1, argv + 1);
        }
    return help_unknown_command(name);
}

int main(int argc, char **argv)
{
    int rc;

    file_keep_standard_streams();
    rc = run(argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout)) return rc;
    /* A full disk, mostly. Of a write that failed long ago the reason may be gone: errno is 0 then. */
    fprintf(stderr, "radish: standard output cannot be written%s%s\n", errno ? ": " : "", errno ? strerror(errno) : "");
    return rc == EXIT_DONE ? EXIT_FAILED : rc;
}
