/* cli/cmd_grammar.c - `radish grammar`: looks at the forms that an output can be held to. check explains one; match answers
 * lines of JSON with which values a JSON schema's grammar accepts. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "base/buf.h"
#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/cli_lines.h"
#include "cli/cli_model.h"
#include "cli/commands.h"
#include "cli/instance_order.h"
#include "radish/grammar.h"
#include "radish/radish.h"

struct grammar_flags {
    const char *kind;
    bool jsonl;
};

static const struct arg grammar_args[] = {
    {.flag = "--kind",
     .kind = ARG_TEXT,
     .value = "KIND",
     .at = offsetof(struct grammar_flags, kind),
     .fallback_text = "by the file's name",
     .choices = "json_schema|json_object|regex|choice|gbnf|ebnf|structural_tag",
     .help = "what FILE holds: .json is a json_schema, .gbnf a gbnf, .ebnf and .lark an ebnf, others a regex"},
    {.flag = "--jsonl",
     .kind = ARG_SWITCH,
     .at = offsetof(struct grammar_flags, jsonl),
     .help = "match: answer lines of JSON on standard input, one line each (see above)"},
    {0}};

static const struct arg_group grammar_groups[] = {{"Grammar", grammar_args, 0}, {NULL, NULL, 0}};

static const char *const kind_names[] = {
#define NAME(name, text, note) text,
    RD_GRAMMAR_LIST(NAME)
#undef NAME
};

static enum rd_grammar_kind kind_named(const char *name)
{
    for (int i = 0; i < RD_GRAMMAR_N_KINDS; i++)
        if (strcmp(name, kind_names[i]) == 0) return (enum rd_grammar_kind)i;
    return RD_GRAMMAR_NONE;
}

static enum rd_grammar_kind kind_of_file(const char *path)
{
    const char *dot = strrchr(path, '.');

    if (dot && strcmp(dot, ".json") == 0) return RD_GRAMMAR_JSON_SCHEMA;
    if (dot && strcmp(dot, ".gbnf") == 0) return RD_GRAMMAR_GBNF;
    if (dot && (strcmp(dot, ".ebnf") == 0 || strcmp(dot, ".lark") == 0)) return RD_GRAMMAR_EBNF;
    return RD_GRAMMAR_REGEX;
}

/* --- check -------------------------------------------------------------------------------------------------------- */

static int explain(const char *path, enum rd_grammar_kind kind, rd_grammar *g)
{
    struct rd_grammar_info info;
    char *example = NULL;
    size_t n = 0;
    rd_status st = rd_grammar_example(g, &example, &n);

    rd_grammar_get_info(g, &info);
    printf("%s: a %s that radish holds an output to\n", path, kind_names[kind]);
    printf("  rules     %u\n  states    %u\n  memory    %zu bytes\n  compiled  in %.2f ms\n", info.n_rules,
           info.n_states, info.bytes, info.compile_ms);
    if (st == RD_OK) printf("  example   %.*s\n", (int)(n < 4096 ? n : 4096), example);
    if (st == RD_E_LIMIT) printf("  example   none: even a shortest text is long, or takes long to find\n");
    rd_free(example);
    return st == RD_OK || st == RD_E_LIMIT ? EXIT_DONE : cli_fail("%s: %s", path, rd_status_text(st));
}

static int check(const struct grammar_flags *f, const char *path)
{
    enum rd_grammar_kind kind = f->kind ? kind_named(f->kind) : kind_of_file(path);
    struct rd_error err = {RD_OK, ""};
    char *text = NULL;
    rd_grammar *g = NULL;
    size_t n = 0;
    rd_status st;
    int rc;

    st = file_read_all(path, LIMIT_BODY_BYTES, &text, &n, &err);
    if (st == RD_OK) { /* an editor's last line end is not of the expression */
        if (kind == RD_GRAMMAR_REGEX && n && text[n - 1] == '\n') n--;
        st = rd_grammar_compile(kind, text, n, &g, &err);
    }
    mem_free(text);
    rc = st == RD_OK ? explain(path, kind, g) : cli_fail_at(path, st, &err);
    rd_grammar_free(g);
    return rc;
}

/* --- match -------------------------------------------------------------------------------------------------------- */

static int append_json(const char *s, size_t n, void *to)
{
    buf_append(to, s, n);
    return 0;
}

/* Whether a value is accepted: written as it stands, or with its members in the schema's order. */
static rd_status match_value(rd_grammar *g, const json_t *schema, const json_t *v, bool *accepts)
{
    struct buf text = {0};
    json_t *ordered;
    rd_status st;

    instance_text(v, &text);
    st = text.failed ? RD_E_NOMEM : rd_grammar_match(g, text.data ? text.data : "", text.n, accepts, NULL);
    if (st == RD_OK && !*accepts) {
        ordered = instance_ordered(schema, v);
        buf_clear(&text);
        if (ordered) instance_text(ordered, &text);
        st = text.failed || !ordered ? RD_E_NOMEM
                                     : rd_grammar_match(g, text.data ? text.data : "", text.n, accepts, NULL);
        json_decref(ordered);
    }
    buf_deinit(&text);
    return st;
}

/* Texts only: whether each could be the beginning of one that is accepted. */
static rd_status match_beginnings(rd_grammar *g, const json_t *list, struct buf *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        bool accepts = false;
        size_t n = json_string_length(v), n_good = 0;
        rd_status st = rd_grammar_match(g, json_string_value(v) ? json_string_value(v) : "", n, &accepts, &n_good);

        if (st != RD_OK) return st;
        buf_printf(out, "%s%s", i ? ", " : "", n_good == n ? "true" : "false");
    }
    return out->failed ? RD_E_NOMEM : RD_OK;
}

static rd_status match_all(rd_grammar *g, const json_t *schema, const json_t *list, bool are_texts, struct buf *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        bool accepts = false;
        rd_status st;

        if (are_texts)
            st = rd_grammar_match(g, json_string_value(v) ? json_string_value(v) : "", json_string_length(v), &accepts,
                                  NULL);
        else
            st = match_value(g, schema, v, &accepts);
        if (st != RD_OK) return st;
        buf_printf(out, "%s%s", i ? ", " : "", accepts ? "true" : "false");
    }
    return out->failed ? RD_E_NOMEM : RD_OK;
}

static void answer_match(void *user, const json_t *line)
{
    const json_t *schema = json_object_get(line, "schema"), *texts = json_object_get(line, "texts");
    const json_t *kind_name = json_object_get(line, "kind"), *list = texts ? texts : json_object_get(line, "instances");
    enum rd_grammar_kind kind = RD_GRAMMAR_JSON_SCHEMA;
    struct rd_error err = {RD_OK, ""};
    struct buf source = {0}, out = {0}, begins = {0};
    rd_grammar *g = NULL;
    rd_status st;

    (void)user;
    if (json_is_string(kind_name)) kind = kind_named(json_string_value(kind_name));
    if (kind == RD_GRAMMAR_NONE) {
        cli_answer_error("kind: wanted json_schema, json_object, regex, choice, gbnf, ebnf or structural_tag");
        return;
    }
    if (!schema || !json_is_array(list)) {
        cli_answer_error("wanted {\"schema\": .., \"instances\": [..]}");
        return;
    }
    if (kind != RD_GRAMMAR_JSON_SCHEMA && json_is_string(schema))
        buf_append(&source, json_string_value(schema), json_string_length(schema));
    else
        json_dump_callback(schema, append_json, &source, JSON_ENCODE_ANY);
    st = source.failed ? RD_E_NOMEM : rd_grammar_compile(kind, source.data ? source.data : "", source.n, &g, &err);
    buf_deinit(&source);
    if (st == RD_OK) st = match_all(g, schema, list, texts != NULL, &out);
    if (st == RD_OK && texts) st = match_beginnings(g, list, &begins);
    if (st != RD_OK)
        cli_answer_error(*err.text ? err.text : rd_status_text(st));
    else if (texts)
        printf("{\"accept\": [%s], \"begins\": [%s]}\n", out.data ? out.data : "", begins.data ? begins.data : "");
    else
        printf("{\"accept\": [%s]}\n", out.data ? out.data : "");
    buf_deinit(&out);
    buf_deinit(&begins);
    rd_grammar_free(g);
}

static int run_grammar(const struct command *self, int argc, char **argv)
{
    struct grammar_flags f;
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words;
    int rc;

    memset(&f, 0, sizeof(f));
    rc = args_parse(self, argc, argv, &f, words, &n_words);
    if (rc != ARGS_GO) return rc;
    if (strcmp(words[0], "match") == 0 && n_words == 1 && f.jsonl) return cli_answer_lines(answer_match, &f);
    if (strcmp(words[0], "check") == 0 && n_words == 2) return check(&f, words[1]);
    fprintf(stderr, "radish: grammar: wanted check FILE, or match --jsonl\n");
    return EXIT_USAGE;
}

const struct command cmd_grammar = {
    .name = "grammar",
    .section = "Look inside",
    .summary = "what an output can be held to: explained, matched",
    .words = "check FILE | match --jsonl",
    .about =
        "check says whether FILE (a JSON schema, a grammar or a regular expression) can hold an output, how large its "
        "automaton is, and shows a shortest text; or which keyword at which path is not supported. match reads lines "
        "such as\n"
        "{\"schema\": {\"type\": \"integer\"}, \"instances\": [1, \"a\"]}\n"
        "and answers each with one line: {\"accept\": [true, false]} or {\"error\": \"...\"}. A member \"texts\" in "
        "place of \"instances\" holds texts as a model would write them, and \"begins\" of the answer says of each "
        "whether it could be the beginning of one; \"kind\": \"regex\" (and so on) takes "
        "\"schema\" as such a text.",
    .examples = "  radish grammar check person.json\n"
                "  radish grammar check --kind gbnf list.txt\n"
                "  radish grammar match --jsonl < lines.jsonl\n",
    .groups = grammar_groups,
    .first_words = "check|match",
    .min_words = 1,
    .max_words = 2,
    .run = run_grammar,
};
