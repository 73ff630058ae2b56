/* cli/commands.h - every command, in the order of `radish --help`. A new command is one file cmd_NAME.c, a line here
 * and one in the table of main.c. */
#pragma once
#include "cli/args.h"

extern const struct command cmd_run, cmd_chat, cmd_serve, cmd_inspect, cmd_tokenize, cmd_template, cmd_bench;
extern const struct command cmd_perplexity, cmd_convert, cmd_fetch, cmd_list, cmd_doctor, cmd_cache, cmd_api;
extern const struct command cmd_help, cmd_version, cmd_grammar, cmd_pull, cmd_show, cmd_rm, cmd_completion;
extern const struct command cmd_ps, cmd_stop, cmd_train;

extern const struct command cmd_key;

/* Ended by NULL; in main.c. */
extern const struct command *const all_commands[];

/* The overview that `radish --help` prints. */
void help_overview(FILE *out);

/* Says so on stderr, with the nearest name; EXIT_USAGE. */
int help_unknown_command(const char *name);
