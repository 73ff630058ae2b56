/* cli/args.c - the walk over a command's table: once to parse, once to print. */
#include "cli/args.h"
#include <stdarg.h>
#include <string.h>
#include "base/checked.h"
#include "cli/settings.h"

enum { HELP_COLUMN = 26, HELP_WIDTH = 100, MAX_NAMES = 160, MAX_NAME = 32 };

static int usage_error(const struct command *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int usage_error(const struct command *c, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "radish %s: ", c->name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nradish %s --help shows all flags.\n", c->name);
    return EXIT_USAGE;
}

static bool is_choice(const char *choices, const char *value)
{
    size_t n = strlen(value);

    for (const char *p = choices; *p;) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, value, n) == 0) return true;
        p += len + (p[len] == '|');
    }
    return false;
}

const char *arg_wanted(const struct arg *a, char *buf, size_t cap)
{
    switch (a->kind) {
    case ARG_SWITCH:
        return "no value";
    case ARG_TEXT:
    case ARG_TEXTS:
        if (!a->choices) return "a text";
        snprintf(buf, cap, "one of %s", a->choices);
        return buf;
    case ARG_BYTES:
        return "a size in bytes such as 512M or 8G";
    case ARG_U32:
    case ARG_U64:
    case ARG_I32:
        if (a->max > 0)
            snprintf(buf, cap, "a whole number from %.0f to %.0f", a->min, a->max);
        else if (a->min > 0)
            snprintf(buf, cap, "a whole number, at least %.0f", a->min);
        else
            snprintf(buf, cap, "a whole number, 0 or more");
        return buf;
    case ARG_REAL:
    case ARG_FLOAT:
        if (a->max > 0)
            snprintf(buf, cap, "a number from %g to %g", a->min, a->max);
        else
            snprintf(buf, cap, "a number, at least %g", a->min);
        return buf;
    }
    return "";
}

static bool in_range(const struct arg *a, double v)
{
    return v >= a->min && (a->max <= 0 || v <= a->max);
}

bool arg_store(const struct arg *a, const char *text, void *field)
{
    uint64_t n = 0;
    double real = 0;

    switch (a->kind) {
    case ARG_SWITCH:
        *(bool *)field = true;
        return true;
    case ARG_TEXT:
        if (a->choices && !is_choice(a->choices, text)) return false;
        *(const char **)field = text;
        return true;
    case ARG_TEXTS: {
        struct arg_texts *list = field;
        if (list->n == LIMIT_STOP_STRINGS) return false;
        list->items[list->n++] = text;
        return true;
    }
    case ARG_U32:
        if (!parse_u64(text, strlen(text), &n) || n > UINT32_MAX || !in_range(a, (double)n)) return false;
        *(uint32_t *)field = (uint32_t)n;
        return true;
    case ARG_U64:
        if (!parse_u64(text, strlen(text), &n) || !in_range(a, (double)n)) return false;
        *(uint64_t *)field = n;
        return true;
    case ARG_BYTES:
        return parse_bytes(text, (uint64_t *)field);
    case ARG_I32:
        if (text == a->fallback && *text == '-') {
            *(int32_t *)field = -(int32_t)(text[1] - '0');
            return true;
        }
        if (!parse_u64(text, strlen(text), &n) || n > INT32_MAX || !in_range(a, (double)n)) return false;
        *(int32_t *)field = (int32_t)n;
        return true;
    case ARG_FLOAT:
        if (!parse_f64(text, strlen(text), &real) || !in_range(a, real)) return false;
        *(float *)field = (float)real;
        return true;
    case ARG_REAL:
        if (!parse_f64(text, strlen(text), &real) || !in_range(a, real)) return false;
        *(double *)field = real;
        return true;
    }
    return false;
}

static void store_fallbacks(const struct command *c, char *out)
{
    FOR_EACH_ARG(c, group, a)
    if (a->fallback) arg_store(a, a->fallback, out + group->at + a->at);
}

static const struct arg *find_flag(const struct command *c, const char *flag, size_t n, size_t *base)
{
    FOR_EACH_ARG(c, group, a)
    {
        bool by_letter = n == 2 && flag[0] == '-' && a->letter && flag[1] == a->letter;
        if (by_letter || (strlen(a->flag) == n && memcmp(a->flag, flag, n) == 0)) {
            *base = group->at;
            return a;
        }
    }
    return NULL;
}

/* "radish run MODEL [PROMPT]" */
static const char *call_of(const struct command *c, char *text, size_t size)
{
    bool has_words = c->words && *c->words;

    snprintf(text, size, "radish %s%s%s", c->name, has_words ? " " : "", has_words ? c->words : "");
    return text;
}

/* Of "MODEL [PROMPT]", where n words are given: the next one, and what follows it. */
static const char *missing_word(const struct command *c, uint32_t n)
{
    const char *at = c->words ? c->words : "a word";

    for (; n > 0 && strchr(at, ' '); n--) at = strchr(at, ' ') + 1;
    return at + strspn(at, "[");
}

/* "MODEL", of "[MODEL]" or "ORG/NAME[:QUANT]" what is one. */
static size_t n_missing(const char *word)
{
    size_t n = strcspn(word, " ");

    return n > 0 && word[n - 1] == ']' && !memchr(word, '[', n) ? n - 1 : n;
}

static int unknown_flag(const struct command *c, const char *flag, size_t n)
{
    const char *names[MAX_NAMES], *near;
    size_t n_names = 0;
    char name[MAX_NAME];

    FOR_EACH_ARG(c, group, a)
    if (n_names < MAX_NAMES) names[n_names++] = a->flag;
    snprintf(name, sizeof(name), "%.*s", (int)n, flag);
    near = args_nearest(name, names, n_names);
    if (near) return usage_error(c, "unknown flag %s; did you mean %s?", name, near);
    return usage_error(c, "unknown flag %s", name);
}

/* What others than the command line say; the line is looked through for --config first. */
static int read_settings(const struct command *c, int argc, char **argv, struct settings *s, void *out)
{
    struct rd_error err = {RD_OK, ""};
    const char *path = NULL;

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return ARGS_GO; /* helps with a file that is wrong */
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            path = argv[++i];
        else if (strncmp(argv[i], "--config=", 9) == 0)
            path = argv[i] + 9;
    }
    if (settings_read(c, path, s, out, &err) == RD_OK) return ARGS_GO;
    return usage_error(c, "%s", err.text);
}

/* --switch=false, where a file may say otherwise. */
static bool store_switch(const char *text, bool *field)
{
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) return false;
    *field = *text == 't';
    return true;
}

int args_parse(const struct command *c, int argc, char **argv, void *out, const char *words[ARGS_MAX_WORDS],
               uint32_t *n_words)
{
    struct settings *settings = c->settings_at ? (struct settings *)((char *)out + c->settings_at) : NULL;
    bool flags_end = false, only_asks = false;
    char call[MAX_NAME * 2];
    int rc;

    *n_words = 0;
    store_fallbacks(c, out);
    if (settings && (rc = read_settings(c, argc, argv, settings, out)) != ARGS_GO) return rc;
    for (int i = 1; i < argc; i++) {
        const char *s = argv[i], *text;
        size_t n = strcspn(s, "="), base = 0;
        const struct arg *a;
        char want[128];

        if (flags_end || s[0] != '-' || s[1] == 0) { /* "-" alone is a word: standard input */
            if (*n_words == c->max_words)
                return usage_error(c, "unexpected \"%s\"; wanted: %s [FLAGS]", s, call_of(c, want, sizeof(want)));
            words[(*n_words)++] = s;
            continue;
        }
        if (strcmp(s, "--") == 0) {
            flags_end = true;
            continue;
        }
        if (strcmp(s, "--help") == 0 || strcmp(s, "-h") == 0) {
            args_help(c, stdout);
            return EXIT_DONE;
        }
        a = find_flag(c, s, n, &base);
        if (!a) return unknown_flag(c, s, n);
        text = s[n] ? s + n + 1 : NULL;
        only_asks = only_asks || (settings && strcmp(a->flag, "--print-config") == 0);
        if (settings) settings_from_line(c, settings, a, (char *)out + base + a->at);
        if (a->kind == ARG_SWITCH && text && settings && store_switch(text, (bool *)((char *)out + base + a->at)))
            continue;
        if (a->kind == ARG_SWITCH && text) return usage_error(c, "%s takes no value, got \"%s\"", a->flag, text);
        if (a->kind != ARG_SWITCH && !text) {
            if (i + 1 == argc) return usage_error(c, "%s wants %s", a->flag, arg_wanted(a, want, sizeof(want)));
            text = argv[++i];
        }
        if (!arg_store(a, text, (char *)out + base + a->at))
            return usage_error(c, "%s: got \"%s\", wanted %s", a->flag, text, arg_wanted(a, want, sizeof(want)));
        if (a->given_at) *(bool *)((char *)out + base + a->given_at) = true;
    }
    for (uint32_t i = 0; settings && settings->words && i < settings->n_words && (i > 0 || *n_words == 0); i++) {
        if (*n_words == c->max_words)
            return usage_error(c, "%s:%u: too many values", settings->path, settings->words->line);
        words[(*n_words)++] = settings->file.values[settings->words->at + i].text;
    }
    if (*n_words < c->min_words && !only_asks)
        return usage_error(c, "%.*s is missing; wanted: %s [FLAGS]", (int)n_missing(missing_word(c, *n_words)),
                           missing_word(c, *n_words), call_of(c, call, sizeof(call)));
    return ARGS_GO;
}

/* Prints text from the given column on, wrapped at HELP_WIDTH between words. */
static void put_wrapped(FILE *out, const char *text, int indent, int column)
{
    while (*text) {
        size_t n = strcspn(text, " \n");
        bool line_end = text[n] == '\n';

        if (column > indent && column + 1 + (int)n > HELP_WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        }
        column += fprintf(out, "%s%.*s", column > indent ? " " : "", (int)n, text);
        text += n + (text[n] != 0);
        if (line_end) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        }
    }
    fputc('\n', out);
}

void args_put_wrapped(FILE *out, const char *text)
{
    put_wrapped(out, text, 0, 0);
}

static void put_arg(FILE *out, const struct arg *a)
{
    char text[1024];
    const char *fallback = a->fallback_text ? a->fallback_text : a->fallback;
    int column = a->letter ? fprintf(out, "  -%c, %s", a->letter, a->flag) : fprintf(out, "  %s", a->flag);

    if (a->value) column += fprintf(out, " %s", a->value);
    snprintf(text, sizeof(text), "%s%s%s%s%s", a->help, a->help_end ? a->help_end() : "", fallback ? " [" : "",
             fallback ? fallback : "", fallback ? "]" : "");
    if (column > HELP_COLUMN - 2) {
        fputc('\n', out);
        column = 0;
    }
    fprintf(out, "%*s", HELP_COLUMN - column, "");
    put_wrapped(out, text, HELP_COLUMN, HELP_COLUMN);
}

void args_help(const struct command *c, FILE *out)
{
    const char *title = "";
    char call[MAX_NAME * 2];

    fprintf(out, "radish %s: %s\n\nUsage: %s [FLAGS]\n", c->name, c->summary, call_of(c, call, sizeof(call)));
    if (c->about) {
        fputc('\n', out);
        put_wrapped(out, c->about, 0, 0);
    }
    for (const struct arg_group *group = c->groups; group && group->args; group++) {
        if (strcmp(group->title, title) != 0) fprintf(out, "\n%s\n", group->title);
        title = group->title;
        for (const struct arg *a = group->args; a->flag; a++) put_arg(out, a);
    }
    fprintf(out, "\n  %-*s%s\n", HELP_COLUMN - 2, "-h, --help", "this text");
    fprintf(out, "\nDefaults stand in [brackets].\n");
    if (c->examples) fprintf(out, "\nExamples\n%s", c->examples);
}

/* Levenshtein distance of two short names; more than MAX_NAME bytes count as far away. */
static size_t distance(const char *a, const char *b)
{
    size_t row[MAX_NAME + 1], n = strlen(b);

    if (n > MAX_NAME) return MAX_NAME;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

const char *args_nearest(const char *s, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t least = 3;

    for (size_t i = 0; i < n; i++) {
        size_t d = distance(s, names[i]);
        if (d < least) {
            least = d;
            best = names[i];
        }
    }
    return best;
}
