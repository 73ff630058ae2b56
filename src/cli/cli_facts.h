/* cli/cli_facts.h - what holds for every command, told once: `radish --help`, the man pages and docs/cli.md say the same.
 * Read-only; any thread. */
#pragma once

struct exit_row {
    int status;
    const char *command; /* NULL: of every command */
    const char *text;
};
extern const struct exit_row exit_rows[]; /* ended by a NULL text; by status */

struct variable_row {
    const char *name, *text;
};
extern const struct variable_row variable_rows[]; /* of the environment; ended by a NULL name */

/* What our own tests, benches and tools read beside these; ended by NULL. */
extern const char *const other_variables[];

extern const char fact_tagline[];  /* what radish is, a line */
extern const char fact_model[];    /* what MODEL may be */
extern const char fact_examples[]; /* lines */
