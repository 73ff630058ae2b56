/* cli/settings.h - what a command's flags are set to besides the command line: by a configuration file and by the environment,
 * both by the names of the same table (args.h).
 *
 *     --kv-bytes 4G          the command line; wins over
 *     RADISH_KV_BYTES=4G     the environment (empty: not set; of lists, values with commas between them), which wins over
 *     kv-bytes = "4G"        the file, which wins over
 *                            the default
 *
 * A list is taken from one of them, never put together. Switches are true or false; on the command line also
 * --switch=false. `models` in the file stands for the words of the command line.
 *
 * The file and the variables are serve's. Other commands (settings_of) take of the file what they have a flag for, and of
 * `models` the first; the environment does not set them: RADISH_SEED means something else to our tests.
 *
 * The file is (base/config_text.h) the one of --config, else of $RADISH_CONFIG (empty: none), else the first of these that is
 * there: $XDG_CONFIG_HOME/radish/radish.toml (~/.config), /etc/radish/radish.toml.
 *
 * Thread  main thread.
 * Errors  a text in err: "FILE:LINE: ..", "RADISH_PORT: ..". Values of rows that are secret are in none.
 */
#pragma once
#include "base/config_text.h"
#include "cli/args.h"

#define SETTINGS_MOST_ROWS 160u

enum setting_source { FROM_DEFAULT, FROM_FILE, FROM_ENVIRONMENT, FROM_LINE };

struct setting {
    enum setting_source source;
    uint32_t line; /* of the file */
};

struct settings {
    struct config file;
    char path[LIMIT_PATH_BYTES];             /* "": there is none */
    struct setting rows[SETTINGS_MOST_ROWS]; /* by the rows' order in the command's table */
    const struct config_key *words;          /* `models` of the file; or NULL */
    uint32_t n_words;                        /* of these, how many may stand for words */
    char *copies[SETTINGS_MOST_ROWS];        /* of lists in the environment */
    uint32_t n_copies;
};

/* Sets the fields in out, whose fallbacks are there already. path: of --config, or NULL. */
rd_status settings_read(const struct command *c, const char *path, struct settings *s, void *out, struct rd_error *err);
/* Before a row is set from the command line: it is FROM_LINE from here on, and what others said of a list is forgotten. */
void settings_from_line(const struct command *c, struct settings *s, const struct arg *a, void *field);
/* Every row as a line of such a file, and where its value came from; no secret. */
void settings_print(const struct command *c, const struct settings *s, const void *out, const char *const *words,
                    uint32_t n_words, FILE *to);
/* "RADISH_KV_BYTES" of "--kv-bytes" */
void settings_variable(const struct arg *a, char *name, size_t size);
/* What fields point to, too. Zeroed ones are fine. */
void settings_free(struct settings *s);
