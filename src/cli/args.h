/* cli/args.h - one table per command: it parses the command line and prints --help, so the two cannot disagree.
 *
 * A command's flags come in groups; a group is a table of struct arg whose values are written into a struct at
 * `group.at + arg.at` inside the command's own struct. So tables can be shared between commands (cli_flags.h).
 *
 *     --flag VALUE and --flag=VALUE mean the same;  "--" ends the flags;  words are what is not a flag.
 *
 * Units   said by each row's help text; sizes accept k, M, G (powers of 1024).
 * Thread  main thread.
 * Errors  a message on stderr that names the flag, what was found and what was wanted; exit status 2.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "base/limits.h"

enum {
    EXIT_DONE = 0,
    EXIT_FAILED = 1,        /* the work failed: a message says why */
    EXIT_USAGE = 2,         /* the command line is wrong */
    EXIT_DEVICE = 70,       /* serve: the device, or the model's file, failed for good */
    EXIT_INTERRUPTED = 130, /* Ctrl-C */
    ARGS_GO = -1            /* args_parse: no reason to exit, carry on */
};

enum arg_kind {
    ARG_SWITCH, /* bool: true when given */
    ARG_TEXT,   /* const char *, a view of argv */
    ARG_U32,    /* uint32_t, decimal */
    ARG_U64,    /* uint64_t, decimal */
    ARG_BYTES,  /* uint64_t: "512", "64k", "8M", "1.5G" */
    ARG_I32,    /* int32_t, 0 or more; a fallback may be negative */
    ARG_REAL,   /* double, finite */
    ARG_FLOAT,  /* float, finite */
    ARG_TEXTS   /* struct arg_texts: the flag may be given again */
};

struct arg_texts {
    const char *items[LIMIT_STOP_STRINGS];
    uint32_t n;
};

struct arg {
    const char *flag; /* "--max-tokens"; NULL ends a table */
    char letter;      /* 'v' for -v; 0: none */
    enum arg_kind kind;
    const char *value;         /* its name in --help: "N"; NULL for a switch */
    size_t at;                 /* where in the group's struct the value goes */
    size_t given_at;           /* where a bool "was given" goes; 0: nowhere */
    const char *fallback;      /* parsed before the command line; NULL: the field stays zero */
    const char *fallback_text; /* what --help says instead of fallback: "all cores" */
    const char *choices;       /* ARG_TEXT: "f16|bf16|f32"; NULL: any text */
    const char *known;         /* ARG_TEXT without choices: values that a shell offers; others are taken too */
    double min, max;           /* numbers; max 0: what the type holds */
    bool is_served;            /* other commands that read serve's file leave it: it means another thing to them */
    bool is_secret;            /* its value is never printed */
    const char *help;
    const char *(*help_end)(void); /* what is known at run time, after help; or NULL */
};

struct arg_group {
    const char *title; /* equal to the previous group's: printed under the same heading */
    const struct arg *args;
    size_t at; /* where the group's struct lies in the command's struct */
};

struct command {
    const char *name, *section;     /* section: the heading in `radish --help` */
    const char *summary;            /* one line */
    const char *words;              /* "MODEL [PROMPT]"; NULL: none */
    const char *about;              /* a paragraph; may be NULL */
    const char *examples;           /* lines; may be NULL */
    const struct arg_group *groups; /* ended by a group without args; NULL: no flags */
    const char *first_words;        /* "list|stats": what the first word may be; NULL: words says what kind it is */
    uint32_t min_words, max_words;
    size_t settings_at; /* where its struct settings (settings.h) lies in its own; 0: the command line is all */
    const struct command *settings_of; /* whose file it reads, for the keys that are its own, too; NULL: its own */
    /* argv[0] is the command's name; gives an exit status */
    int (*run)(const struct command *self, int argc, char **argv);
};

enum { ARGS_MAX_WORDS = 64 };

#define FOR_EACH_ARG(c, group, row)                                                                                    \
    for (const struct arg_group *group = (c)->groups; group && group->args; group++)                                   \
        for (const struct arg *row = group->args; row->flag; row++)

/* Fills *out (zeroed by the caller) and words. ARGS_GO, or the status to exit with: 0 after --help, 2 after a
 * message. */
int args_parse(const struct command *c, int argc, char **argv, void *out, const char *words[ARGS_MAX_WORDS],
               uint32_t *n_words);
/* false: the text is not what the row wants; the field is unchanged then. */
bool arg_store(const struct arg *a, const char *text, void *field);
/* What a value of this row has to be, for messages. */
const char *arg_wanted(const struct arg *a, char *buf, size_t cap);
void args_help(const struct command *c, FILE *out);
/* A paragraph, as --help wraps it, and the end of its line. */
void args_put_wrapped(FILE *out, const char *text);
/* The nearest of names[0..n) when it is at most two edits away from s; else NULL. */
const char *args_nearest(const char *s, const char *const *names, size_t n);
