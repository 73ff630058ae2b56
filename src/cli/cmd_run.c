/* cli/cmd_run.c - `radish run`: one prompt in, streamed text out. */
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/adapter_flags.h"
#include "cli/cli_flags.h"
#include "cli/cli_model.h"
#include "cli/image_part.h"
#include "cli/cli_stream.h"
#include "cli/commands.h"
#include "cli/settings.h"

struct run_flags {
    struct rd_options engine;
    struct sample_flags sample;
    struct adapter_flags adapters;
    const char *system, *schema, *grammar, *regex;
    struct arg_texts images;
    bool raw, verbose, json;
    const char *config;
    struct settings settings;
};

static const struct arg run_args[] = {
    {.flag = "--raw",
     .kind = ARG_SWITCH,
     .at = offsetof(struct run_flags, raw),
     .help = "the model continues the prompt as plain text, without chat template"},
    {.flag = "--system",
     .kind = ARG_TEXT,
     .value = "TEXT",
     .at = offsetof(struct run_flags, system),
     .fallback_text = "none",
     .help = "system message before the prompt"},
    {.flag = "--image",
     .kind = ARG_TEXTS,
     .value = "FILE",
     .at = offsetof(struct run_flags, images),
     .fallback_text = "none",
     .help = "a JPEG, PNG or WebP file before the prompt's text, for models that see; may be given again"},
    {.flag = "--json",
     .kind = ARG_SWITCH,
     .at = offsetof(struct run_flags, json),
     .help = "the answer is a JSON object"},
    {.flag = "--json-schema",
     .kind = ARG_TEXT,
     .value = "FILE|JSON",
     .at = offsetof(struct run_flags, schema),
     .fallback_text = "none",
     .help = "the answer is JSON that this schema accepts"},
    {.flag = "--grammar",
     .kind = ARG_TEXT,
     .value = "FILE",
     .at = offsetof(struct run_flags, grammar),
     .fallback_text = "none",
     .help = "the answer follows this grammar: GBNF, or by the name's end Lark or EBNF"},
    {.flag = "--regex",
     .kind = ARG_TEXT,
     .value = "TEXT",
     .at = offsetof(struct run_flags, regex),
     .fallback_text = "none",
     .help = "the whole answer matches this regular expression"},
    {.flag = "--verbose",
     .letter = 'v',
     .kind = ARG_SWITCH,
     .at = offsetof(struct run_flags, verbose),
     .help = "a line on stderr at the end: tokens, milliseconds, tokens per second"},
    {0}};

static const struct arg_group run_groups[] = {{"Prompt", run_args, 0},
                                              {"Configuration", config_args, offsetof(struct run_flags, config)},
                                              {"Sampling", sample_args, offsetof(struct run_flags, sample)},
                                              {"Model and memory", context_args, offsetof(struct run_flags, engine)},
                                              {"Model and memory", engine_args, offsetof(struct run_flags, engine)},
                                              {"Model and memory", adapter_args, offsetof(struct run_flags, adapters)},
                                              {NULL, NULL, 0}};

static void put_message(struct buf *json, const char *role, const char *text, size_t n)
{
    buf_printf(json, "%s{\"role\":\"%s\",\"content\":\"", json->n > 1 ? "," : "", role);
    buf_put_json(json, text, n);
    buf_puts(json, "\"}");
}

/* The prompt, behind its images. false: it was told why. */
static bool put_question(const struct run_flags *f, const struct buf *prompt, struct buf *json)
{
    const char *text = prompt->data ? prompt->data : "";

    if (f->images.n == 0) {
        put_message(json, "user", text, prompt->n);
        return true;
    }
    buf_printf(json, "%s{\"role\":\"user\",\"content\":[", json->n > 1 ? "," : "");
    for (uint32_t i = 0; i < f->images.n; i++) {
        if (!image_part_put(json, f->images.items[i])) return false;
        buf_putc(json, ',');
    }
    buf_puts(json, "{\"type\":\"text\",\"text\":\"");
    buf_put_json(json, text, prompt->n);
    buf_puts(json, "\"}]}");
    return true;
}

/* The request for a prompt; messages keeps the JSON alive. false: it was told why. */
static bool make_request(const struct run_flags *f, const struct buf *prompt, struct buf *messages,
                         struct rd_request_options *q)
{
    rd_request_options_default(q);
    sample_flags_apply(&f->sample, q);
    if (f->raw) {
        q->prompt = prompt->data ? prompt->data : "";
        q->prompt_bytes = prompt->n;
        if (f->images.n > 0) cli_fail("--image goes into a chat: not with --raw");
        return f->images.n == 0;
    }
    buf_putc(messages, '[');
    if (f->system) put_message(messages, "system", f->system, strlen(f->system));
    if (!put_question(f, prompt, messages)) return false;
    buf_putc(messages, ']');
    q->messages_json = messages->data;
    if (messages->failed) cli_fail("the prompt does not fit into memory");
    return !messages->failed;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), n_end = strlen(end);

    return n >= n_end && strcmp(s + n - n_end, end) == 0;
}

/* The form of the answer; *file holds what was read. false: it was told why. */
static bool take_form(const struct run_flags *f, char **file, struct rd_request_options *q)
{
    const char *path = f->schema ? f->schema : f->grammar;
    struct rd_error err = {RD_OK, ""};
    size_t n = 0;

    *file = NULL;
    if ((f->json + !!f->schema + !!f->grammar + !!f->regex) > 1) {
        cli_fail("--json, --json-schema, --grammar and --regex exclude each other");
        return false;
    }
    if (f->json) q->grammar_kind = RD_GRAMMAR_JSON_OBJECT;
    if (f->regex) q->grammar_kind = RD_GRAMMAR_REGEX;
    if (f->schema) q->grammar_kind = RD_GRAMMAR_JSON_SCHEMA;
    if (f->grammar)
        q->grammar_kind = ends_with(path, ".lark") || ends_with(path, ".ebnf") ? RD_GRAMMAR_EBNF : RD_GRAMMAR_GBNF;
    q->grammar = f->regex ? f->regex : f->schema && f->schema[strspn(f->schema, " \n\t")] == '{' ? f->schema : NULL;
    if (q->grammar) q->grammar_bytes = strlen(q->grammar);
    if (q->grammar || !path) return true;
    if (file_read_all(path, LIMIT_BODY_BYTES, file, &n, &err) != RD_OK) {
        cli_fail("%s", err.text);
        return false;
    }
    q->grammar = *file;
    q->grammar_bytes = n;
    return true;
}

static void say_end(enum stream_end end, const struct rd_usage *usage)
{
    if (end == STREAM_CUT)
        fprintf(stderr, "radish: the answer was cut after %u token%s; --max-tokens N allows more\n", usage->n_generated,
                usage->n_generated == 1 ? "" : "s");
    if (end == STREAM_FULL)
        fprintf(stderr, "radish: the answer was cut: prompt and answer fill the context; --ctx N allows more\n");
}

/* f: zeroed. */
static int run(const struct command *self, int argc, char **argv, struct run_flags *f)
{
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words;
    struct buf prompt, messages;
    struct rd_request_options q;
    char path[CLI_PATH_BYTES], *form = NULL;
    struct rd_usage usage;
    enum stream_end end;
    rd_engine *engine = NULL;
    rd_status st = RD_E_NOMEM;
    int rc;

    rd_options_default(&f->engine);
    rc = args_parse(self, argc, argv, f, words, &n_words);
    if (rc != ARGS_GO) return rc;
    rd_set_log(RD_LOG_WARN, NULL, NULL);
    if (!adapter_flags_apply(&f->adapters, true, &f->engine)) return EXIT_USAGE;
    if (!cli_find_model_for(&f->engine, words[0], path)) return EXIT_FAILED; /* before a person types a prompt */
    if (!cli_read_prompt(n_words > 1 ? words[1] : NULL, f->raw ? "" : "\n\n", f->raw, &prompt)) return EXIT_FAILED;
    buf_init(&messages);
    if (!make_request(f, &prompt, &messages, &q)) {
        /* it was told */
    } else if (!take_form(f, &form, &q)) {
        /* likewise */
    } else if ((engine = cli_open(&f->engine, words[0]))) {
        stream_catch_interrupt();
        st = stream_request(engine, &q, NULL, &usage, &end);
        if (st == RD_OK || st == RD_E_CANCELLED) putchar('\n');
        fflush(stdout);
        say_end(end, &usage);
        if (f->verbose && usage.n_prompt) stream_print_usage(&usage);
    }
    rd_close(engine);
    buf_deinit(&messages);
    buf_deinit(&prompt);
    mem_free(form);
    if (st == RD_E_CANCELLED) return EXIT_INTERRUPTED;
    return st == RD_OK ? EXIT_DONE : EXIT_FAILED;
}

static int run_run(const struct command *self, int argc, char **argv)
{
    struct run_flags f = {.config = NULL};
    int rc = run(self, argc, argv, &f);

    settings_free(&f.settings);
    adapter_flags_deinit(&f.adapters);
    return rc;
}

const struct command cmd_run = {
    .name = "run",
    .section = "Talk to a model",
    .summary = "one prompt in, streamed text out",
    .words = "MODEL [PROMPT]",
    .about = "PROMPT goes through the model's chat template as a user message and the answer streams to stdout. "
             "Without PROMPT, or with -, it is read from standard input. A text piped in beside PROMPT follows it "
             "(after an empty line; with --raw, directly). Ctrl-C ends the answer. Exit status: 0, 1 when it failed, 2 "
             "for a wrong command line, 130 after Ctrl-C.",
    .examples = "  radish run smollm2 \"What is the capital of Japan?\"\n"
                "  radish run gemma3-270m --raw --temperature 0 --max-tokens 40 \"The capital of France is\"\n"
                "  radish run qwen2.5-coder-0.5b --regex \"(yes|no)\" \"Is water wet?\"\n"
                "  git diff | radish run qwen2.5-coder-1.5b \"Write a commit message for this diff:\" -v\n",
    .groups = run_groups,
    .min_words = 1,
    .max_words = 2,
    .settings_at = offsetof(struct run_flags, settings),
    .settings_of = &cmd_serve,
    .run = run_run,
};
