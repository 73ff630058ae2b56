/* cli/next_load.c - see next_load.h. */
#include "cli/next_load.h"
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/json_write.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "cli/cli_flags.h"
#include "cli/settings_save.h"

enum { VALUE_BYTES = 64, MAX_ITEMS = 16 };

struct item {
    const struct arg *row;
    enum setting_source source;
    char start[VALUE_BYTES], next[VALUE_BYTES], trying[VALUE_BYTES], now[VALUE_BYTES]; /* "": the library's default */
    char kept[VALUE_BYTES];                                                            /* what the next start has */
    char known[VALUE_BYTES]; /* kept before something that no load has had yet */
};

struct next_load {
    const struct command *command;
    struct rd_options start, defaults;
    char path[LIMIT_PATH_BYTES]; /* of the file to keep them in; "": none, and no_path says why */
    const char *no_path;
    struct mutex saving; /* held while the file is written, before lock */
    struct mutex lock;   /* guards what follows; of an item `trying` is the loading thread's while it loads */
    struct item items[MAX_ITEMS];
    size_t n;
    bool has_loaded;
    char failure[512]; /* why the settings went back; "": they did not */
};

/* In the order in which a person would look for them. */
static const char *const settable[] = {"--ctx",        "--kv-type",     "--kv-bytes",  "--kv-tokens", "--cache-ram",
                                       "--cache-disk", "--max-running", "--max-queue", "--threads",   "--thinking"};

static const struct arg *find_row(const char *flag)
{
    static const struct arg *const tables[] = {context_args, engine_args, schedule_args};

    for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++)
        for (const struct arg *a = tables[t]; a->flag; a++)
            if (strcmp(a->flag, flag) == 0) return a;
    return NULL;
}

/* 8589934592 -> 8G */
static void put_bytes(uint64_t n, char *out)
{
    static const char *const units[] = {"", "k", "M", "G"};
    int i = 0;

    for (; i < 3 && n && n % 1024 == 0; i++) n /= 1024;
    snprintf(out, VALUE_BYTES, "%llu%s", (unsigned long long)n, units[i]);
}

/* Of the kinds that rows here have. */
static size_t field_bytes(const struct arg *a)
{
    return a->kind == ARG_U32 ? sizeof(uint32_t) : a->kind == ARG_TEXT ? sizeof(char *) : sizeof(uint64_t);
}

/* The field as it would be typed; "": it is the default. */
static void put_field(const struct arg *a, const void *field, const void *fallback, char *out)
{
    uint32_t small;
    uint64_t n;
    const char *text;

    *out = 0;
    if (memcmp(field, fallback, field_bytes(a)) == 0) return;
    switch (a->kind) {
    case ARG_TEXT:
        memcpy(&text, field, sizeof(text));
        snprintf(out, VALUE_BYTES, "%s", text ? text : "");
        break;
    case ARG_U32:
        memcpy(&small, field, sizeof(small));
        snprintf(out, VALUE_BYTES, "%u", small);
        break;
    case ARG_BYTES:
        memcpy(&n, field, sizeof(n));
        put_bytes(n, out);
        break;
    default:
        memcpy(&n, field, sizeof(n));
        snprintf(out, VALUE_BYTES, "%llu", (unsigned long long)n);
        break;
    }
}

static enum setting_source source_of(const struct command *c, const struct settings *said, const struct arg *row)
{
    uint32_t i = 0;

    FOR_EACH_ARG(c, group, a)
    {
        if (a == row) return said->rows[i].source;
        i++;
    }
    return FROM_DEFAULT;
}

rd_status next_load_create(const struct command *c, const struct rd_options *o, const struct settings *said,
                           struct next_load **out)
{
    struct next_load *s = mem_zalloc(1, sizeof(*s));

    if (!s) return RD_E_NOMEM;
    mutex_init(&s->lock);
    mutex_init(&s->saving);
    (void)settings_save_path(said, s->path, &s->no_path);
    s->command = c;
    s->start = *o;
    rd_options_default(&s->defaults);
    for (size_t i = 0; i < sizeof(settable) / sizeof(settable[0]); i++) {
        struct item *t = &s->items[s->n];

        t->row = find_row(settable[i]);
        if (!t->row) continue;
        put_field(t->row, (const char *)o + t->row->at, (const char *)&s->defaults + t->row->at, t->start);
        memcpy(t->next, t->start, VALUE_BYTES);
        memcpy(t->now, t->start, VALUE_BYTES);
        memcpy(t->kept, t->start, VALUE_BYTES);
        memcpy(t->known, t->start, VALUE_BYTES);
        t->source = source_of(c, said, t->row);
        s->n++;
    }
    *out = s;
    return RD_OK;
}

void next_load_destroy(struct next_load *s)
{
    if (!s) return;
    mutex_deinit(&s->saving);
    mutex_deinit(&s->lock);
    mem_free(s);
}

/* ---- loads ---- */

void next_load_begin(struct next_load *s, struct rd_options *o)
{
    mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n; i++) {
        struct item *t = &s->items[i];
        char *field = (char *)o + t->row->at;

        memcpy(t->trying, t->next, VALUE_BYTES);
        if (strcmp(t->trying, t->start) == 0)
            memcpy(field, (const char *)&s->start + t->row->at, field_bytes(t->row));
        else if (*t->trying)
            (void)arg_store(t->row, t->trying, field); /* it was checked when it was set */
        else
            memcpy(field, (const char *)&s->defaults + t->row->at, field_bytes(t->row));
    }
    mutex_unlock(&s->lock);
}

/* Lock held. */
static bool is_tried_anew(const struct next_load *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->items[i].trying, s->items[i].now) != 0) return true;
    return false;
}

/* saving held, after a load that failed with what was kept: the file has again what it had. */
static void keep_no_longer(struct next_load *s)
{
    struct setting_change list[MAX_ITEMS];
    struct rd_error err = {RD_OK, ""};
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++) {
        struct item *t = &s->items[i];

        if (strcmp(t->kept, t->known) == 0 || strcmp(t->kept, t->trying) != 0) continue;
        list[n++] = (struct setting_change){t->row->flag + 2, *t->known ? t->known : NULL};
        mutex_lock(&s->lock);
        memcpy(t->kept, t->known, VALUE_BYTES);
        mutex_unlock(&s->lock);
    }
    if (n && settings_save(s->path, list, n, &err) != RD_OK)
        log_warn("settings that no model can be loaded with are still in the configuration file: %s", err.text);
}

bool next_load_end(struct next_load *s, rd_status st, const struct rd_error *err)
{
    bool again;

    mutex_lock(&s->saving);
    mutex_lock(&s->lock);
    again = st != RD_OK && s->has_loaded && is_tried_anew(s);
    if (st == RD_OK) s->has_loaded = true;
    if (again) snprintf(s->failure, sizeof(s->failure), "%s", *err->text ? err->text : rd_status_text(st));
    for (size_t i = 0; i < s->n; i++) {
        struct item *t = &s->items[i];

        if (st == RD_OK) memcpy(t->now, t->trying, VALUE_BYTES);
        if (st == RD_OK && strcmp(t->kept, t->trying) == 0) memcpy(t->known, t->kept, VALUE_BYTES);
        if (again && strcmp(t->next, t->trying) == 0) memcpy(t->next, t->now, VALUE_BYTES);
    }
    mutex_unlock(&s->lock);
    if (again) keep_no_longer(s);
    mutex_unlock(&s->saving);
    if (again) log_warn("the settings that were asked for cannot be had, those before them are taken: %s", err->text);
    return again;
}

/* ---- for the server ---- */

static void put_text(struct buf *out, const char *name, const char *text)
{
    buf_printf(out, ",\"%s\":\"", name);
    buf_put_json(out, text, strlen(text));
    buf_putc(out, '"');
}

static void put_words(struct buf *out, const char *name, const char *words)
{
    if (!words) return;
    buf_printf(out, ",\"%s\":[\"", name);
    for (; *words; words++)
        if (*words == '|')
            buf_puts(out, "\",\"");
        else
            buf_putc(out, *words);
    buf_puts(out, "\"]");
}

static void put_row(struct buf *out, const struct arg *a)
{
    const char *fallback = a->fallback_text ? a->fallback_text : a->fallback;

    buf_puts(out, "{\"name\":\"");
    buf_put_json(out, a->flag + 2, strlen(a->flag + 2));
    buf_putc(out, '"');
    put_text(out, "flag", a->flag);
    put_text(out, "help", a->help);
    put_text(out, "default", fallback ? fallback : "");
}

static const char *kind_of(const struct arg *a)
{
    return a->kind == ARG_TEXT ? "text" : a->kind == ARG_BYTES ? "bytes" : "number";
}

static bool is_settable(const struct next_load *s, const struct arg *a)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->items[i].row == a) return true;
    return false;
}

static const char *const source_names[] = {
    [FROM_DEFAULT] = "default", [FROM_FILE] = "file", [FROM_ENVIRONMENT] = "environment", [FROM_LINE] = "flag"};

/* Where they would be kept, and why they cannot be. */
static void put_config(const struct next_load *s, struct buf *out)
{
    const char *refused = *s->path ? settings_save_refused(s->path) : s->no_path;

    buf_puts(out, ",\"config\":{\"file\":\"");
    buf_put_json(out, s->path, strlen(s->path));
    buf_puts(out, "\"");
    put_text(out, "refused", refused ? refused : "");
    buf_putc(out, '}');
}

static void put(void *user, struct buf *out)
{
    struct next_load *s = user;
    bool first = true;

    buf_puts(out, "\"settings\":[");
    mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n; i++) {
        const struct item *t = &s->items[i];

        buf_puts(out, i ? "," : "");
        put_row(out, t->row);
        put_text(out, "kind", kind_of(t->row));
        put_words(out, "choices", t->row->choices);
        put_words(out, "known", t->row->known);
        buf_printf(out, ",\"min\":%.0f,\"max\":%.0f", t->row->min, t->row->max);
        put_text(out, "start", t->start);
        put_text(out, "now", t->now);
        put_text(out, "next", t->next);
        put_text(out, "kept", t->kept);
        put_text(out, "source", source_names[t->source]);
        buf_putc(out, '}');
    }
    buf_puts(out, "]");
    put_text(out, "failure", s->failure);
    mutex_unlock(&s->lock);
    buf_puts(out, ",\"needs_restart\":[");
    for (const struct arg_group *g = s->command->groups; g->args; g++)
        for (const struct arg *a = g->args; a->flag; a++) {
            if (is_settable(s, a)) continue;
            buf_puts(out, first ? "" : ",");
            put_row(out, a);
            buf_putc(out, '}');
            first = false;
        }
    buf_putc(out, ']');
    put_config(s, out);
}

/* "q8_0/q4_0": both are known. */
static bool is_known(const struct arg *a, const char *text)
{
    for (const char *part = text; a->known && *part;) {
        size_t n = strcspn(part, "/");
        bool found = false;

        for (const char *k = a->known; *k && !found; k += strcspn(k, "|"), k += *k == '|')
            found = strcspn(k, "|") == n && memcmp(k, part, n) == 0;
        if (!found || (part[n] == '/' && !part[n + 1])) return false;
        part += n + (part[n] == '/');
    }
    return true;
}

static rd_status check(const struct item *t, const char *text, struct rd_error *err)
{
    union {
        uint32_t u32;
        uint64_t u64;
        const char *text;
    } field;
    char want[128];

    memset(&field, 0, sizeof(field));
    if (!*text) return RD_OK;
    if (strlen(text) < VALUE_BYTES && arg_store(t->row, text, &field) && is_known(t->row, text)) return RD_OK;
    return error_set(err, RD_E_INVALID, "got \"%.100s\", wanted %s", text,
                     t->row->known ? t->row->known : arg_wanted(t->row, want, sizeof(want)));
}

static struct item *find_item(struct next_load *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->items[i].row->flag + 2, name) == 0) return &s->items[i];
    return NULL;
}

static bool is_flag(const struct command *c, const char *name)
{
    for (const struct arg_group *g = c->groups; g->args; g++)
        for (const struct arg *a = g->args; a->flag; a++)
            if (strcmp(a->flag + 2, name) == 0) return true;
    return false;
}

static rd_status check_all(struct next_load *s, const struct server_setting *list, size_t n, size_t *at,
                           struct rd_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct item *t = find_item(s, list[i].name);

        *at = i;
        if (!t && is_flag(s->command, list[i].name))
            return error_set(err, RD_E_INVALID, "this takes a restart: radish serve --%s", list[i].name);
        if (!t) return error_set(err, RD_E_INVALID, "there is no such setting");
        if (list[i].text && check(t, list[i].text, err) != RD_OK) return RD_E_INVALID;
    }
    *at = n;
    return RD_OK;
}

/* saving held. What the next load takes goes into the file where that has something else. */
static rd_status keep(struct next_load *s, const char want[][VALUE_BYTES], struct rd_error *err)
{
    struct setting_change list[MAX_ITEMS];
    size_t n = 0;
    rd_status st;

    for (size_t i = 0; i < s->n; i++) {
        const struct item *t = &s->items[i];
        char variable[64];

        if (strcmp(want[i], t->kept) == 0) continue;
        settings_variable(t->row, variable, sizeof(variable));
        if (t->source == FROM_LINE || t->source == FROM_ENVIRONMENT)
            return error_set(err, RD_E_UNSUPPORTED,
                             "%s is set by the %s%s, which wins over the configuration file: change it there",
                             t->row->flag, t->source == FROM_LINE ? "command line" : "environment variable ",
                             t->source == FROM_LINE ? "" : variable);
        list[n++] = (struct setting_change){t->row->flag + 2, *want[i] ? want[i] : NULL};
    }
    if (!*s->path) return error_set(err, RD_E_UNSUPPORTED, "%s", s->no_path);
    st = settings_save(s->path, list, n, err);
    if (st == RD_OK && n) log_info("%zu settings were kept in %s", n, s->path);
    return st;
}

static rd_status set(void *user, const struct server_setting *list, size_t n, bool save, size_t *at,
                     struct rd_error *err)
{
    struct next_load *s = user;
    char want[MAX_ITEMS][VALUE_BYTES];
    rd_status st = check_all(s, list, n, at, err);

    if (st != RD_OK) return st;
    mutex_lock(&s->saving); /* the loading thread changes `next` under it, too */
    for (size_t i = 0; i < s->n; i++) memcpy(want[i], s->items[i].next, VALUE_BYTES);
    for (size_t i = 0; i < n; i++) {
        const struct item *t = find_item(s, list[i].name);

        snprintf(want[t - s->items], VALUE_BYTES, "%s", list[i].text ? list[i].text : t->start);
    }
    if (save) st = keep(s, (const char(*)[VALUE_BYTES])want, err);
    if (st == RD_OK) {
        mutex_lock(&s->lock);
        for (size_t i = 0; i < s->n; i++) {
            memcpy(s->items[i].next, want[i], VALUE_BYTES);
            if (save) memcpy(s->items[i].kept, want[i], VALUE_BYTES);
        }
        if (n) s->failure[0] = 0;
        mutex_unlock(&s->lock);
    }
    mutex_unlock(&s->saving);
    return st;
}

struct server_settings next_load_seam(struct next_load *s)
{
    return (struct server_settings){.user = s, .put = put, .set = set};
}
