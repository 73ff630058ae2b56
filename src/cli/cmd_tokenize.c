/* cli/cmd_tokenize.c - `radish tokenize`: text to token ids, or with --jsonl a service over lines of JSON. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"
#include "cli/cli_lines.h"
#include "cli/cli_model.h"
#include "cli/commands.h"

struct tokenize_flags {
    const char *pre, *tokenizer;
    bool plain, parse_special, ids, jsonl;
};

static const struct arg tokenize_args[] = {
    {.flag = "--no-special",
     .kind = ARG_SWITCH,
     .at = offsetof(struct tokenize_flags, plain),
     .help = "no BOS or EOS token around the text, even if the model wants one"},
    {.flag = "--parse-special",
     .kind = ARG_SWITCH,
     .at = offsetof(struct tokenize_flags, parse_special),
     .help = "special tokens written in the text, like <|im_end|>, become those tokens"},
    {.flag = "--ids",
     .kind = ARG_SWITCH,
     .at = offsetof(struct tokenize_flags, ids),
     .help = "one JSON array of ids instead of a line per token"},
    {.flag = "--jsonl",
     .kind = ARG_SWITCH,
     .at = offsetof(struct tokenize_flags, jsonl),
     .help = "answer lines of JSON on standard input, one line each (see above)"},
    {.flag = "--pre",
     .kind = ARG_TEXT,
     .value = "NAME",
     .at = offsetof(struct tokenize_flags, pre),
     .fallback_text = "the file's",
     .help = "pre-tokenizer: gpt-2, smollm, llama-bpe, qwen2, deepseek-r1-qwen, gpt-4o, tekken, "
             "deepseek-v3"},
    {.flag = "--tokenizer",
     .kind = ARG_TEXT,
     .value = "DIR",
     .at = offsetof(struct tokenize_flags, tokenizer),
     .fallback_text = "none",
     .help = "a tokenizer.json, or the folder it is in, instead of MODEL"},
    {0}};

static const struct arg_group tokenize_groups[] = {{"Tokens", tokenize_args, 0}, {NULL, NULL, 0}};

/* ---- one text ---- */

static void print_ids(const int32_t *tokens, uint32_t n)
{
    putchar('[');
    for (uint32_t i = 0; i < n; i++) printf("%s%d", i ? "," : "", tokens[i]);
    printf("]\n");
}

static void print_pieces(const rd_engine *engine, const int32_t *tokens, uint32_t n)
{
    struct buf piece;
    size_t n_bytes;

    buf_init(&piece);
    for (uint32_t i = 0; i < n; i++) {
        const char *bytes = rd_token_bytes(engine, tokens[i], &n_bytes);
        buf_clear(&piece);
        if (bytes) buf_put_json(&piece, bytes, n_bytes);
        printf("%8d  \"%s\"\n", tokens[i], piece.data && piece.n ? piece.data : "");
    }
    buf_deinit(&piece);
}

static int tokenize_text(const rd_engine *engine, const struct tokenize_flags *f, const char *word)
{
    struct rd_error err = {RD_OK, ""};
    struct buf text;
    int32_t *tokens = NULL;
    uint32_t n = 0;
    rd_status st;

    if (!cli_read_text(word, "Type the text", &text)) return EXIT_FAILED;
    st = rd_tokenize(engine, text.data ? text.data : "", text.n, !f->plain, f->parse_special, &tokens, &n, &err);
    buf_deinit(&text);
    if (st != RD_OK) return cli_fail("%s", *err.text ? err.text : rd_status_text(st));
    if (f->ids)
        print_ids(tokens, n);
    else
        print_pieces(engine, tokens, n);
    rd_free(tokens);
    return EXIT_DONE;
}

/* ---- lines of JSON ---- */

/* A boolean member; *problem says when it is something else. */
static bool get_bool(const json_t *line, const char *name, bool fallback, const char **problem)
{
    const json_t *v = json_object_get(line, name);

    if (!v) return fallback;
    if (!json_is_boolean(v)) *problem = "add_special, parse_special and special: wanted true or false";
    return json_is_true(v);
}

static void answer_tokenize(const rd_engine *engine, const json_t *line)
{
    const json_t *content = json_object_get(line, "content");
    const char *problem = NULL;
    bool add = get_bool(line, "add_special", false, &problem), parse = get_bool(line, "parse_special", true, &problem);
    struct rd_error err = {RD_OK, ""};
    int32_t *tokens = NULL;
    uint32_t n = 0;
    rd_status st;

    if (!json_is_string(content)) problem = "content: wanted a string";
    if (problem) {
        cli_answer_error(problem);
        return;
    }
    st = rd_tokenize(engine, json_string_value(content), json_string_length(content), add, parse, &tokens, &n, &err);
    if (st != RD_OK) {
        cli_answer_error(*err.text ? err.text : rd_status_text(st));
        return;
    }
    printf("{\"tokens\": ");
    putchar('[');
    for (uint32_t i = 0; i < n; i++) printf("%s%d", i ? "," : "", tokens[i]);
    printf("]}\n");
    rd_free(tokens);
}

/* The ids of a JSON array; NULL with *problem set. */
static int32_t *read_ids(const json_t *array, uint32_t *n, const char **problem)
{
    size_t count = json_array_size(array);
    int32_t *ids;

    *problem = "tokens: wanted an array of token ids";
    if (!json_is_array(array) || count > LIMIT_CONTEXT) return NULL;
    ids = mem_alloc(count, sizeof(*ids));
    if (!ids) {
        *problem = "out of memory";
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *v = json_array_get(array, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX) {
            mem_free(ids);
            return NULL;
        }
        ids[i] = (int32_t)id;
    }
    *n = (uint32_t)count;
    return ids;
}

static void answer_detokenize(const rd_engine *engine, const json_t *line)
{
    const char *problem = NULL;
    bool special = get_bool(line, "special", true, &problem);
    struct rd_error err = {RD_OK, ""};
    struct buf out;
    uint32_t n = 0;
    int32_t *ids;
    char *text = NULL;
    size_t n_bytes = 0;
    rd_status st;

    if (problem) {
        cli_answer_error(problem);
        return;
    }
    ids = read_ids(json_object_get(line, "tokens"), &n, &problem);
    if (!ids) {
        cli_answer_error(problem);
        return;
    }
    st = rd_detokenize(engine, ids, n, special, &text, &n_bytes, &err);
    mem_free(ids);
    if (st != RD_OK) {
        cli_answer_error(*err.text ? err.text : rd_status_text(st));
        return;
    }
    buf_init(&out);
    buf_put_json(&out, text, n_bytes);
    if (out.failed)
        cli_answer_error("out of memory");
    else
        printf("{\"content\": \"%s\"}\n", out.data ? out.data : "");
    buf_deinit(&out);
    rd_free(text);
}

static void answer_line(void *user, const json_t *line)
{
    const rd_engine *engine = user;
    const char *op = json_string_value(json_object_get(line, "op"));

    if (op && strcmp(op, "tokenize") == 0)
        answer_tokenize(engine, line);
    else if (op && strcmp(op, "detokenize") == 0)
        answer_detokenize(engine, line);
    else
        cli_answer_error("op: wanted \"tokenize\" or \"detokenize\"");
}

/* A tokenizer.json or its folder. NULL: a message was printed. */
static rd_engine *open_files(const char *path)
{
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine = NULL;
    rd_status st = rd_open_tokenizer(path, NULL, &engine, &err);

    if (st != RD_OK) cli_fail_at(path, st, &err);
    return engine;
}

static int run_tokenize(const struct command *self, int argc, char **argv)
{
    struct tokenize_flags f;
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words, first_text;
    rd_engine *engine;
    int rc;

    memset(&f, 0, sizeof(f));
    rc = args_parse(self, argc, argv, &f, words, &n_words);
    if (rc != ARGS_GO) return rc;
    rd_set_log(RD_LOG_WARN, NULL, NULL);
    if (!f.tokenizer && n_words == 0)
        return cli_fail("a MODEL is wanted, or --tokenizer DIR (see radish tokenize --help)");
    if (f.tokenizer && n_words > 1) return cli_fail("--tokenizer takes the place of MODEL: at most a TEXT beside it");
    first_text = f.tokenizer ? 0 : 1;
    engine = f.tokenizer ? open_files(f.tokenizer) : cli_open_tokenizer(words[0], f.pre);
    if (!engine) return EXIT_FAILED;
    rc = f.jsonl ? cli_answer_lines(answer_line, engine)
                 : tokenize_text(engine, &f, n_words > first_text ? words[first_text] : NULL);
    rd_close(engine);
    return rc;
}

const struct command cmd_tokenize = {
    .name = "tokenize",
    .section = "Look inside",
    .summary = "text to token ids, and back with --jsonl",
    .words = "[MODEL] [TEXT]",
    .about = "Prints a line per token: id and text. TEXT comes from standard input when it is left out. "
             "--jsonl reads lines such as\n"
             "{\"op\": \"tokenize\", \"content\": \"Hi\", \"add_special\": false, \"parse_special\": true}\n"
             "{\"op\": \"detokenize\", \"tokens\": [1, 2, 3], \"special\": true}\n"
             "and answers each with one line: {\"tokens\": [...]}, {\"content\": \"...\"} or {\"error\": \"...\"}. "
             "The values shown are the defaults.",
    .examples = "  radish tokenize smollm2 \"Hello, world\"\n"
                "  radish tokenize smollm2 --ids < README.md\n"
                "  radish tokenize smollm2 --jsonl < lines.jsonl\n"
                "  radish tokenize --tokenizer models/qwen3 \"Hello, world\"\n",
    .groups = tokenize_groups,
    .min_words = 0,
    .max_words = 2,
    .run = run_tokenize,
};
