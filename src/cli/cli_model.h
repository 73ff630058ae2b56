/* cli/cli_model.h - from what stands on the command line to an open model, with a progress bar on the way.
 *
 * MODEL is a GGUF file, a directory of the hub, or a name: NAME.gguf, or a directory NAME, in $RADISH_MODELS, else in
 * ~/.cache/radish/models (radish fetch puts it there); or ORG/NAME[:QUANT|/FILE], in the cache of the hub (radish pull).
 * Thread  main thread (the bar: the thread that loads).
 * Errors  messages on stderr.
 */
#pragma once
#include <stdbool.h>
#include "base/buf.h"
#include "radish/radish.h"

enum { CLI_PATH_BYTES = 4096 };

/* Prints "radish: ..." and returns EXIT_FAILED. */
int cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A line below it that says what to do; no "radish: ". */
void cli_hint(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same for a file: "radish: NAME: what err says", or st's text where err says nothing. */
int cli_fail_at(const char *name, rd_status st, const struct rd_error *err);
/* A text that says of a file what it is may begin with the last part of its name (base/file.h): the text behind that. */
const char *cli_without_name(const char *name, const char *text);

/* false: no such model; a message said what is there and how to get one. */
bool cli_find_model(const char *model, char path[CLI_PATH_BYTES]);
/* The same for what is to compute it: a program (process:COMMAND) may know names that nobody here does. */
bool cli_find_model_for(const struct rd_options *o, const char *model, char path[CLI_PATH_BYTES]);

/* Replaces o->draft_model, when given, by the path found for it. */
bool cli_find_draft(struct rd_options *o, char path[CLI_PATH_BYTES]);

struct load_bar {
    const char *model;
    int shown;
    const char *verb;
}; /* shown: percent on the screen; -1: no bar */
/* Installs a progress bar on stderr, when that is a terminal, into o. bar lives as long as the loading. */
void load_bar_init(struct load_bar *bar, const char *model, struct rd_options *o);
/* Takes the bar off the screen. */
void load_bar_end(struct load_bar *bar);

/* Where models are looked for by name: $RADISH_MODELS, else ~/.cache/radish/models. */
void cli_model_folder(char *folder, size_t cap);

/* Where repacked weights are kept, when no flag says so: $RADISH_PACKED, else $XDG_CACHE_HOME/radish/packed, else
 * ~/.cache/radish/packed. o refers to dir. */
void cli_packed_dir(struct rd_options *o, char dir[CLI_PATH_BYTES]);

/* Where computed prompts are kept, when no flag says so: $RADISH_CACHE (empty: nowhere), else
 * $XDG_CACHE_HOME/radish/kv, else ~/.cache/radish/kv. o refers to dir. */
void cli_cache_dir(struct rd_options *o, char dir[CLI_PATH_BYTES]);

/* Finds and opens. NULL: a message was printed. */
rd_engine *cli_open(struct rd_options *o, const char *model);
rd_engine *cli_open_tokenizer(const char *model, const char *pre);

/* The text for a command: word, or all of standard input when word is NULL or "-". false: a message was printed. */
bool cli_read_text(const char *word, const char *what, struct buf *text);

/* The prompt of `radish run`: as cli_read_text; what a pipe or file on standard input holds follows word, after
 * `between`. Refused with a message: bytes that are not UTF-8, and a prompt without a visible character, unless
 * may_be_blank. */
bool cli_read_prompt(const char *word, const char *between, bool may_be_blank, struct buf *prompt);

/* false, after a message: `what` is not UTF-8. The offset is told counting from n_before. */
bool cli_check_utf8(const char *text, size_t n, size_t n_before, const char *what);
