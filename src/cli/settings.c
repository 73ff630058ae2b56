/* cli/settings.c - two walks over the table: file to fields, environment to fields; and one back. */
#include "cli/settings.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"

#define NAME_BYTES 64u
#define WORDS_KEY  "models" /* of the file: the words of the command line */

static const char *key_of(const struct arg *a)
{
    return a->flag + 2;
}

/* ---- one value ---- */

/* "radish.toml:3", "RADISH_PORT" */
struct place {
    char text[LIMIT_PATH_BYTES + 16];
};

static rd_status refuse(const struct place *at, const struct arg *a, const char *value, struct rd_error *err)
{
    char want[128], quoted[80] = "";

    if (!a->is_secret) error_quote(quoted, sizeof(quoted), value, strlen(value));
    return error_set(err, RD_E_INVALID, "%s: %s: got %s%s%s, wanted %s", at->text, key_of(a), a->is_secret ? "" : "\"",
                     a->is_secret ? "a value" : quoted, a->is_secret ? "" : "\"",
                     a->kind == ARG_SWITCH ? "true or false" : arg_wanted(a, want, sizeof(want)));
}

static bool is_true(const char *text)
{
    return strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
}

static rd_status set(const struct place *at, const struct arg *a, const char *text, void *field, struct rd_error *err)
{
    if (a->kind == ARG_SWITCH) {
        if (!is_true(text) && strcmp(text, "false") != 0 && strcmp(text, "0") != 0) return refuse(at, a, text, err);
        *(bool *)field = is_true(text);
        return RD_OK;
    }
    return arg_store(a, text, field) ? RD_OK : refuse(at, a, text, err);
}

static void *field_of(void *out, const struct arg_group *group, const struct arg *a)
{
    return (char *)out + group->at + a->at;
}

static void mark(struct settings *s, uint32_t row, enum setting_source source, uint32_t line,
                 const struct arg_group *group, const struct arg *a, void *out)
{
    s->rows[row] = (struct setting){source, line};
    if (a->given_at) *(bool *)((char *)out + group->at + a->given_at) = true;
}

/* ---- the file ---- */

static bool try_path(struct settings *s, const char *folder, const char *rest)
{
    int n = folder && *folder == '/' ? snprintf(s->path, sizeof(s->path), "%s%s", folder, rest) : -1;

    if (n > 0 && (size_t)n < sizeof(s->path) && file_exists(s->path)) return true;
    *s->path = 0;
    return false;
}

static void find_file(struct settings *s, const char *path)
{
    const char *said = getenv("RADISH_CONFIG"), *xdg = getenv("XDG_CONFIG_HOME");

    if (!path) path = said;
    if (path) {
        snprintf(s->path, sizeof(s->path), "%s", path);
        return;
    }
    if (xdg && *xdg ? try_path(s, xdg, "/radish/radish.toml")
                    : try_path(s, getenv("HOME"), "/.config/radish/radish.toml"))
        return;
    (void)try_path(s, "/etc", "/radish/radish.toml");
}

/* Values of any kind are texts to a row: 8000 and "8000" mean the same to --port. */
static rd_status set_from_key(struct settings *s, const struct config_key *key, const struct arg *a, void *field,
                              struct rd_error *err)
{
    const struct config_value *v = s->file.values + key->at;
    struct place at;

    snprintf(at.text, sizeof(at.text), "%s:%u", s->path, key->line);
    if (key->is_list && a->kind != ARG_TEXTS)
        return error_set(err, RD_E_INVALID, "%s: %s takes one value, no list", at.text, key->name);
    if ((a->kind == ARG_SWITCH) != (v[0].kind == CONFIG_BOOL) && key->n > 0) return refuse(&at, a, v[0].text, err);
    for (uint32_t i = 0; i < key->n; i++) {
        rd_status st = set(&at, a, v[i].text, field, err);

        if (st != RD_OK) return st;
    }
    return RD_OK;
}

static bool is_unset(const struct arg *a)
{
    return strcmp(key_of(a), "config") == 0 || strcmp(key_of(a), "print-config") == 0;
}

static bool has_key(const struct command *c, const char *key)
{
    FOR_EACH_ARG(c, group, a)
    if (!is_unset(a) && !(c->settings_of && a->is_served) && strcmp(key, key_of(a)) == 0) return true;
    return false;
}

static rd_status unknown_key(const struct command *c, const struct settings *s, const struct config_key *key,
                             struct rd_error *err)
{
    const char *names[SETTINGS_MOST_ROWS + 1], *near;
    size_t n = 0;

    names[n++] = WORDS_KEY;
    FOR_EACH_ARG(c, group, a)
    if (n < SETTINGS_MOST_ROWS && !is_unset(a)) names[n++] = key_of(a);
    near = args_nearest(key->name, names, n);
    return error_set(err, RD_E_INVALID, "%s:%u: unknown key %.60s%s%s%s", s->path, key->line, key->name,
                     near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static rd_status read_file(const struct command *c, struct settings *s, void *out, struct rd_error *err)
{
    char *text = NULL;
    size_t n = 0;
    rd_status st = file_read_all(s->path, CONFIG_MOST_BYTES, &text, &n, err);

    if (st == RD_E_NOT_FOUND) return error_set(err, st, "--config %s: there is no such file", s->path);
    if (st != RD_OK) return st;
    st = config_read(text, n, s->path, &s->file, err);
    mem_free(text);
    for (size_t i = 0; i < s->file.n_keys && st == RD_OK; i++) {
        const struct config_key *key = &s->file.keys[i];
        bool found = false;
        uint32_t row = 0;

        if (c->max_words > 0 && strcmp(key->name, WORDS_KEY) == 0) {
            s->words = key;
            s->n_words = c->settings_of ? u32_min(key->n, 1) : key->n;
            continue;
        }
        if (c->settings_of && !has_key(c->settings_of, key->name)) return unknown_key(c->settings_of, s, key, err);
        if (c->settings_of && !has_key(c, key->name)) continue;
        FOR_EACH_ARG(c, group, a)
        {
            if (!found && st == RD_OK && !is_unset(a) && strcmp(key->name, key_of(a)) == 0) {
                found = true;
                st = set_from_key(s, key, a, field_of(out, group, a), err);
                mark(s, row, FROM_FILE, key->line, group, a, out);
            }
            row++;
        }
        if (!found) st = unknown_key(c, s, key, err);
    }
    return st;
}

/* ---- the environment ---- */

void settings_variable(const struct arg *a, char *name, size_t size)
{
    snprintf(name, size, "RADISH_%s", key_of(a));
    for (char *at = name; *at; at++) *at = *at == '-' ? '_' : *at >= 'a' && *at <= 'z' ? (char)(*at - 32) : *at;
}

/* "a,b" as a list. */
static rd_status set_list(struct settings *s, const struct place *at, const struct arg *a, const char *value,
                          void *field, struct rd_error *err)
{
    char *copy = s->n_copies < SETTINGS_MOST_ROWS ? mem_strdup(value) : NULL;

    if (!copy) return error_set(err, RD_E_NOMEM, "%s: out of memory", at->text);
    s->copies[s->n_copies++] = copy;
    while (copy) {
        char *comma = strchr(copy, ',');

        if (comma) *comma++ = 0;
        copy += strspn(copy, " ");
        copy[strcspn(copy, " ")] = 0;
        if (*copy && !arg_store(a, copy, field)) return refuse(at, a, copy, err);
        copy = comma;
    }
    return RD_OK;
}

static rd_status read_environment(const struct command *c, struct settings *s, void *out, struct rd_error *err)
{
    uint32_t row = 0;
    rd_status st = RD_OK;

    FOR_EACH_ARG(c, group, a)
    {
        char name[NAME_BYTES];
        struct place at;
        const char *value;
        void *field = field_of(out, group, a);

        settings_variable(a, name, sizeof(name));
        value = is_unset(a) ? NULL : getenv(name);
        if (value && strncmp(value, "tcp://", 6) == 0) value = NULL; /* Kubernetes, of a service called radish */
        if (value && *value && st == RD_OK) {
            snprintf(at.text, sizeof(at.text), "%s", name);
            if (a->kind == ARG_TEXTS) ((struct arg_texts *)field)->n = 0;
            st = a->kind == ARG_TEXTS ? set_list(s, &at, a, value, field, err) : set(&at, a, value, field, err);
            mark(s, row, FROM_ENVIRONMENT, 0, group, a, out);
        }
        row++;
    }
    return st;
}

/* ---- all of it ---- */

rd_status settings_read(const struct command *c, const char *path, struct settings *s, void *out, struct rd_error *err)
{
    rd_status st = RD_OK;

    find_file(s, path);
    if (*s->path) st = read_file(c, s, out, err);
    return st == RD_OK && !c->settings_of ? read_environment(c, s, out, err) : st;
}

void settings_from_line(const struct command *c, struct settings *s, const struct arg *row, void *field)
{
    uint32_t i = 0;

    FOR_EACH_ARG(c, group, a)
    {
        if (a == row && s->rows[i].source != FROM_LINE) {
            s->rows[i].source = FROM_LINE;
            if (a->kind == ARG_TEXTS) ((struct arg_texts *)field)->n = 0;
        }
        i++;
    }
}

void settings_free(struct settings *s)
{
    for (uint32_t i = 0; i < s->n_copies; i++) mem_free(s->copies[i]);
    s->n_copies = 0;
    config_free(&s->file);
}

/* ---- and back ---- */

static void put_text(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text; text++) {
        if ((unsigned char)*text < 32 || *text == 127)
            fprintf(to, "\\u%04x", (unsigned)*text);
        else
            fprintf(to, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    }
    fputc('"', to);
}

static void put_texts(FILE *to, const char *const *items, uint32_t n)
{
    fputc('[', to);
    for (uint32_t i = 0; i < n; i++) {
        if (i) fputs(", ", to);
        put_text(to, items[i]);
    }
    fputc(']', to);
}

static void put_value(FILE *to, const struct arg *a, const void *field)
{
    switch (a->kind) {
    case ARG_SWITCH:
        fputs(*(const bool *)field ? "true" : "false", to);
        break;
    case ARG_TEXT:
        put_text(to, *(const char *const *)field);
        break;
    case ARG_TEXTS:
        put_texts(to, ((const struct arg_texts *)field)->items, ((const struct arg_texts *)field)->n);
        break;
    case ARG_U32:
        fprintf(to, "%" PRIu32, *(const uint32_t *)field);
        break;
    case ARG_I32:
        fprintf(to, "%" PRId32, *(const int32_t *)field);
        break;
    case ARG_U64:
    case ARG_BYTES:
        fprintf(to, "%" PRIu64, *(const uint64_t *)field);
        break;
    case ARG_REAL:
        fprintf(to, "%.17g", *(const double *)field);
        break;
    case ARG_FLOAT:
        fprintf(to, "%.9g", (double)*(const float *)field);
        break;
    }
}

static void put_source(FILE *to, const struct settings *s, const struct setting *row, const struct arg *a)
{
    char name[NAME_BYTES];

    switch (row->source) {
    case FROM_DEFAULT:
        fputs("    # default\n", to);
        break;
    case FROM_FILE:
        fprintf(to, "    # %s:%u\n", s->path, row->line);
        break;
    case FROM_ENVIRONMENT:
        settings_variable(a, name, sizeof(name));
        fprintf(to, "    # $%s\n", name);
        break;
    case FROM_LINE:
        fputs("    # command line\n", to);
        break;
    }
}

void settings_print(const struct command *c, const struct settings *s, const void *out, const char *const *words,
                    uint32_t n_words, FILE *to)
{
    uint32_t i = 0;

    fprintf(to, "# %s%s\n", *s->path ? "with " : "no configuration file", s->path);
    fputs(WORDS_KEY " = ", to);
    put_texts(to, words, n_words);
    fprintf(to, "    # %s",
            s->words && n_words > 0 && words[0] == s->file.values[s->words->at].text ? "" : "command line\n");
    if (s->words && n_words > 0 && words[0] == s->file.values[s->words->at].text)
        fprintf(to, "%s:%u\n", s->path, s->words->line);
    FOR_EACH_ARG(c, group, a)
    {
        const struct setting *row = &s->rows[i++];
        const void *field = (const char *)out + group->at + a->at;
        bool is_default = row->source == FROM_DEFAULT;

        if (is_unset(a)) continue;
        if (a->is_secret && !is_default) {
            fprintf(to, "# %s = (set, not shown)", key_of(a));
        } else if (is_default && !a->fallback && a->kind != ARG_SWITCH) {
            fprintf(to, "# %s = (%s)", key_of(a), a->fallback_text ? a->fallback_text : "none");
        } else {
            fprintf(to, "%s = ", key_of(a));
            put_value(to, a, field);
        }
        put_source(to, s, row, a);
    }
}
