/* cli/cmd_template.c - `radish template`: a Jinja template and its variables to text, or with --jsonl a service over
 * lines of JSON. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "base/buf.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/cli_lines.h"
#include "cli/cli_model.h"
#include "cli/commands.h"

struct template_flags {
    const char *context;
    uint64_t now;
    bool has_now, jsonl;
};

static const struct arg template_args[] = {
    {.flag = "--context",
     .kind = ARG_TEXT,
     .value = "JSON",
     .at = offsetof(struct template_flags, context),
     .fallback_text = "{}",
     .help = "the variables, an object; @FILE: from a file"},
    {.flag = "--now",
     .kind = ARG_U64,
     .value = "S",
     .at = offsetof(struct template_flags, now),
     .given_at = offsetof(struct template_flags, has_now),
     .fallback_text = "the clock",
     .help = "what strftime_now sees, seconds since 1970"},
    {.flag = "--jsonl",
     .kind = ARG_SWITCH,
     .at = offsetof(struct template_flags, jsonl),
     .help = "answer lines of JSON on standard input, one line each (see above)"},
    {0},
};

static const struct arg_group template_groups[] = {{"Template", template_args, 0}, {NULL, NULL, 0}};

static int64_t now_of(const struct template_flags *f)
{
    return f->has_now && f->now <= INT32_MAX ? (int64_t)f->now : -1;
}

static int append_json(const char *s, size_t n, void *to)
{
    buf_append(to, s, n);
    return 0;
}

static void answer_template(void *user, const json_t *line)
{
    const json_t *source = json_object_get(line, "template"), *context = json_object_get(line, "context");
    struct rd_error err = {RD_OK, ""};
    struct buf out, vars = {0};
    char *text = NULL;
    size_t n = 0;
    rd_status st;

    if (!json_is_string(source)) {
        cli_answer_error("template: wanted a string");
        return;
    }
    if (context && !json_is_null(context)) json_dump_callback(context, append_json, &vars, JSON_ENCODE_ANY);
    st = vars.failed ? RD_E_NOMEM
                     : rd_template_render(json_string_value(source), json_string_length(source), vars.data, vars.n,
                                          now_of(user), &text, &n, &err);
    buf_deinit(&vars);
    if (st != RD_OK) {
        cli_answer_error(*err.text ? err.text : rd_status_text(st));
        return;
    }
    buf_init(&out);
    buf_put_json(&out, text, n);
    if (out.failed)
        cli_answer_error("out of memory");
    else
        printf("{\"text\": \"%s\"}\n", out.data ? out.data : "");
    buf_deinit(&out);
    rd_free(text);
}

/* The variables of --context; *json is the caller's (mem_free) when they came from a file. */
static rd_status read_context(const char *context, char **json, size_t *n, struct rd_error *err)
{
    if (context[0] == '@') return file_read_all(context + 1, LIMIT_BODY_BYTES, json, n, err);
    *json = mem_strdup(context);
    *n = strlen(context);
    return *json ? RD_OK : RD_E_NOMEM;
}

static int render_file(const struct template_flags *f, const char *path)
{
    struct rd_error err = {RD_OK, ""};
    char *source = NULL, *context = NULL, *text = NULL;
    size_t n_source = 0, n_context = 0, n = 0;
    struct buf piped = {0};
    rd_status st;

    if (strcmp(path, "-") == 0) {
        if (!cli_read_text(NULL, "Type the template", &piped)) return EXIT_FAILED;
        source = piped.data ? buf_take(&piped, &n_source) : mem_strdup("");
        st = source ? RD_OK : RD_E_NOMEM;
    } else {
        st = file_read_all(path, LIMIT_TEMPLATE_BYTES, &source, &n_source, &err);
    }
    if (st == RD_OK && f->context) st = read_context(f->context, &context, &n_context, &err);
    if (st == RD_OK) st = rd_template_render(source, n_source, context, n_context, now_of(f), &text, &n, &err);
    if (st == RD_OK) fwrite(text, 1, n, stdout);
    mem_free(source);
    mem_free(context);
    rd_free(text);
    return st == RD_OK ? EXIT_DONE : cli_fail_at(path, st, &err);
}

static int run_template(const struct command *self, int argc, char **argv)
{
    struct template_flags f;
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words;
    int rc;

    memset(&f, 0, sizeof(f));
    rc = args_parse(self, argc, argv, &f, words, &n_words);
    if (rc != ARGS_GO) return rc;
    if (f.jsonl) return cli_answer_lines(answer_template, &f);
    return render_file(&f, n_words ? words[0] : "-");
}

const struct command cmd_template = {
    .name = "template",
    .section = "Look inside",
    .summary = "a chat template and its variables to text",
    .words = "[FILE]",
    .about = "Renders the Jinja template FILE (standard input when it is left out or \"-\") as the server renders chat "
             "templates. --jsonl reads lines such as\n"
             "{\"template\": \"Hi {{ name }}\", \"context\": {\"name\": \"you\"}}\n"
             "and answers each with one line: {\"text\": \"...\"} or {\"error\": \"...\"}.",
    .examples = "  radish template chat.jinja --context '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'\n"
                "  radish template --jsonl < lines.jsonl\n",
    .groups = template_groups,
    .max_words = 1,
    .run = run_template,
};
