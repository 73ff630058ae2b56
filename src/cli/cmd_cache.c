/* cli/cmd_cache.c - `radish cache`: what a running server's cache holds and would do, or what is in a folder on disk. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/cli_model.h"
#include "cli/commands.h"
#include "cli/http_client.h"

#define DEFAULT_URL "http://127.0.0.1:8000"
#define TEXT_SHOWN  60

struct cache_flags {
    const char *url, *dir, *key, *subtree, *model, *salt;
    bool all, json;
    uint32_t limit;
};

static const struct arg where_args[] = {
    {.flag = "--url",
     .kind = ARG_TEXT,
     .value = "URL",
     .at = offsetof(struct cache_flags, url),
     .fallback_text = DEFAULT_URL,
     .help = "the server to ask: http://HOST:PORT"},
    {.flag = "--api-key",
     .kind = ARG_TEXT,
     .value = "KEY",
     .at = offsetof(struct cache_flags, key),
     .fallback_text = "$RADISH_API_KEY",
     .help = "the server's key"},
    {.flag = "--cache-dir",
     .kind = ARG_TEXT,
     .value = "DIR",
     .at = offsetof(struct cache_flags, dir),
     .fallback_text = "none; verify: the one that radish serve uses",
     .help = "look at this folder of the disk cache instead of asking a server"},
    {0},
};

static const struct arg what_args[] = {
    {.flag = "--limit",
     .kind = ARG_U32,
     .value = "N",
     .at = offsetof(struct cache_flags, limit),
     .fallback = "200",
     .min = 1,
     .max = 10000,
     .help = "list, of a server: nodes to show at most"},
    {.flag = "--salt",
     .kind = ARG_TEXT,
     .value = "SALT",
     .at = offsetof(struct cache_flags, salt),
     .fallback_text = "none",
     .help = "names, save, drop: of this cache_salt"},
    {.flag = "--subtree",
     .kind = ARG_TEXT,
     .value = "FILE",
     .at = offsetof(struct cache_flags, subtree),
     .fallback_text = "none",
     .help = "clear, of a server: only the end of this request's prompt and all that goes on from there, in "
             "memory (a request body as JSON; -: standard input)"},
    {.flag = "--model",
     .kind = ARG_TEXT,
     .value = "NAME",
     .at = offsetof(struct cache_flags, model),
     .fallback_text = "none",
     .help = "clear, of a folder: only what this model stored, or the entry with this id"},
    {.flag = "--all",
     .kind = ARG_SWITCH,
     .at = offsetof(struct cache_flags, all),
     .help = "clear, of a folder: everything"},
    {.flag = "--json",
     .kind = ARG_SWITCH,
     .at = offsetof(struct cache_flags, json),
     .help = "print the answer as it came, one JSON object"},
    {0}};

static const struct arg_group cache_groups[] = {{"Where", where_args, 0}, {"What", what_args, 0}, {NULL, NULL, 0}};

/* ---- numbers out of JSON ---- */

static const json_t *at_path(const json_t *v, const char *group, const char *name)
{
    return json_object_get(group ? json_object_get(v, group) : v, name);
}

static long long number(const json_t *v, const char *group, const char *name)
{
    return (long long)json_number_value(at_path(v, group, name));
}

static const char *text(const json_t *v, const char *name, const char *fallback)
{
    const char *s = json_string_value(json_object_get(v, name));

    return s ? s : fallback;
}

/* "12.3 MiB" */
static const char *size_text(long long n, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)n;
    int i = 0;

    for (; x >= 1024 && i < 4; i++) x /= 1024;
    snprintf(out, 32, i ? "%.1f %s" : "%.0f %s", x, units[i]);
    return out;
}

static const char *age_text(double s, char out[32])
{
    if (s < 120)
        snprintf(out, 32, "%.0f s", s);
    else if (s < 7200)
        snprintf(out, 32, "%.0f min", s / 60);
    else if (s < 172800)
        snprintf(out, 32, "%.0f h", s / 3600);
    else
        snprintf(out, 32, "%.0f d", s / 86400);
    return out;
}

/* A line's worth of a text, control characters as spaces: what a client sent must not steer a terminal. */
static void put_excerpt(const char *s)
{
    int n = 0;

    putchar('"');
    for (; *s && n < TEXT_SHOWN; s++) {
        bool is_c1 = (unsigned char)s[0] == 0xC2 && (unsigned char)s[1] < 0xA0;

        if (is_c1) s++;
        putchar(is_c1 || (unsigned char)*s < 32 || *s == 127 ? ' ' : *s);
        n += ((unsigned char)*s & 0xC0) != 0x80;
    }
    while (((unsigned char)*s & 0xC0) == 0x80) putchar(*s++);
    printf("%s\"", *s ? "..." : "");
}

/* ---- what is printed ---- */

static void print_nodes(const json_t *v)
{
    const json_t *nodes = json_object_get(v, "nodes"), *node;
    char age[32], images[32];
    size_t i;

    json_array_foreach(nodes, i, node)
    {
        const long long n_images = number(node, NULL, "images");

        snprintf(images, sizeof(images), n_images == 1 ? ", 1 image" : ", %lld images", n_images);
        printf("%*s%lld tokens from %lld, %lld hits%s, used %s ago%s  ", 2 * ((int)number(node, NULL, "depth") - 1), "",
               number(node, NULL, "tokens"), number(node, NULL, "start"), number(node, NULL, "hits"),
               n_images ? images : "", age_text(json_number_value(json_object_get(node, "age_s")), age),
               number(node, NULL, "locks") ? ", in use" : "");
        put_excerpt(text(node, "text", ""));
        putchar('\n');
    }
    if (json_array_size(nodes) == 0) puts("Nothing is stored.");
    if (json_is_true(json_object_get(v, "more"))) puts("... and more (--limit).");
}

static void print_explanation(const json_t *v)
{
    const json_t *d = json_object_get(v, "difference"), *message = json_object_get(d, "message");

    printf("%lld of %lld prompt tokens are stored", number(v, NULL, "stored_tokens"), number(v, NULL, "prompt_tokens"));
    if (number(v, NULL, "disk_tokens")) printf(", %lld more on disk", number(v, NULL, "disk_tokens"));
    printf("; cause: %s", text(v, "cause", "?"));
    if (*text(v, "stored_kv_type", "")) printf(" (more of it is on disk as %s)", text(v, "stored_kv_type", ""));
    putchar('\n');
    if (!json_is_object(d)) return;
    printf("It parts at token %lld", number(d, NULL, "token"));
    if (json_is_integer(message)) printf(", in message %lld", (long long)json_integer_value(message));
    if (*text(d, "part", "")) printf(" (%s)", text(d, "part", ""));
    printf("\n  sent    ");
    put_excerpt(text(d, "sent", ""));
    printf("\n  stored  ");
    put_excerpt(text(d, "stored", ""));
    putchar('\n');
}

static void print_group(const json_t *v, const char *title, const char *group)
{
    const json_t *item;
    const char *name;
    bool first = true;

    printf("%-10s", title);
    json_object_foreach(json_object_get(v, group), name, item)
    {
        if (json_number_value(item) == 0) continue;
        printf("%s%s %.0f", first ? "" : ", ", name, json_number_value(item));
        first = false;
    }
    puts(first ? "-" : "");
}

static void print_names(const json_t *v)
{
    const json_t *list = json_object_get(v, "data"), *name;
    char size[32], age[32];
    size_t i;

    json_array_foreach(list, i, name)
    {
        put_excerpt(text(name, "cache_name", ""));
        printf("  %lld tokens, %lld of them its own (%s), %lld on disk, %lld texts, used %s ago%s%s\n",
               number(name, NULL, "tokens"), number(name, NULL, "own_tokens"),
               size_text(number(name, NULL, "own_bytes"), size), number(name, NULL, "disk_tokens"),
               number(name, NULL, "texts"), age_text(json_number_value(json_object_get(name, "age_s")), age),
               json_is_true(json_object_get(name, "saved")) ? ", saved" : "",
               number(name, NULL, "running") ? ", in use" : "");
    }
    if (json_array_size(list) == 0) puts("There are no named caches.");
}

static void print_stats(const json_t *v)
{
    char used[32], all[32];
    long long computed = number(v, "tokens", "prompt_computed"), cached = number(v, "tokens", "prompt_cached");

    printf("%-10s%lld computed, %lld from the cache (%.1f %%): %lld of them joined in flight, %lld from disk\n",
           "prompts", computed, cached, computed + cached ? 100.0 * (double)cached / (double)(computed + cached) : 0.0,
           number(v, "tokens", "prompt_joined"), number(v, "disk", "prompt_tokens"));
    print_group(v, "matches", "matches");
    print_group(v, "misses", "misses");
    printf("%-10s%lld of %lld pages hold something, %lld in use, %lld were evicted\n", "memory",
           number(v, "pages", "total") - number(v, "pages", "free"), number(v, "pages", "total"),
           number(v, "pages", "locked") + number(v, "pages", "pending"), number(v, "pages", "evicted"));
    print_group(v, "tree", "tree");
    printf("%-10s%lld pages, %s of %s\n", "disk", number(v, "disk", "pages"),
           size_text(number(v, "disk", "bytes"), used), size_text(number(v, "disk", "cap_bytes"), all));
}

static void print_folder(const json_t *v, bool entries)
{
    const json_t *list = json_object_get(v, "entries"), *entry;
    char size[32], age[32];
    size_t i;

    printf("%s: %s in %lld pages%s\n", text(v, "dir", ""), size_text(number(v, NULL, "bytes"), size),
           number(v, NULL, "pages"), json_is_true(json_object_get(v, "in_use")) ? ", in use by a running process" : "");
    if (number(v, NULL, "damaged")) printf("%lld damaged records or files\n", number(v, NULL, "damaged"));
    json_array_foreach(list, i, entry)
    {
        if (!entries) break;
        printf("  %s  %-28s %-10s %9s  ", text(entry, "id", "?"), text(entry, "model", "(unknown)"),
               text(entry, "kv_type", ""), size_text(number(entry, NULL, "bytes"), size));
        if (strcmp(text(entry, "what", "pages"), "pages") == 0)
            printf("%8lld tokens", number(entry, NULL, "tokens"));
        else
            printf("%15s", text(entry, "what", ""));
        printf("  used %s ago\n", age_text((double)number(entry, NULL, "age_s"), age));
    }
}

/* ---- a running server ---- */

/* 0: *v is the answer, which was printed if that was asked for; else an exit status. */
static int ask(const struct cache_flags *f, const char *method, const char *path, const char *body, json_t **v)
{
    const char *url = f->url ? f->url : DEFAULT_URL, *key = f->key ? f->key : getenv("RADISH_API_KEY");
    struct rd_error err = {RD_OK, ""};
    struct buf answer = {0};
    int status = 0, rc = EXIT_DONE;

    *v = NULL;
    if (http_ask(url, 0, method, path, key && *key ? key : NULL, body, &status, &answer, &err) != RD_OK) {
        buf_deinit(&answer);
        return cli_fail("%s%s", err.text, f->url ? "" : "; --url names another server, --cache-dir a folder on disk");
    }
    *v = json_loadb(answer.n ? answer.data : "", answer.n, 0, NULL);
    if (status != 200) {
        const char *why = json_string_value(at_path(*v, "error", "message"));

        rc = cli_fail("%s: HTTP %d: %s", url, status, why ? why : "no reason was given");
    } else if (!json_is_object(*v)) {
        rc = cli_fail("%s: the answer is no JSON object: is this a radish server?", url);
    } else if (f->json) {
        printf("%s\n", answer.data);
    }
    buf_deinit(&answer);
    return rc;
}

/* A request's body: of a file, or standard input. */
static bool read_body(const char *file, struct buf *body)
{
    struct rd_error err = {RD_OK, ""};
    char *data = NULL;
    size_t n = 0;

    if (strcmp(file, "-") == 0) return cli_read_text(NULL, "request", body);
    if (file_read_all(file, LIMIT_BODY_BYTES, &data, &n, &err) != RD_OK) {
        cli_fail("%s", err.text);
        return false;
    }
    buf_append(body, data, n);
    mem_free(data);
    return !body->failed;
}

static bool is_about_names(const char *action)
{
    return strcmp(action, "names") == 0 || strcmp(action, "save") == 0 || strcmp(action, "drop") == 0;
}

/* names, save NAME, drop NAME. */
static int of_names(const struct cache_flags *f, const char *action, const char *name)
{
    json_t *body = json_object(), *v = NULL;
    char path[64], *sent = NULL;
    int rc;

    if (f->salt) json_object_set_new(body, "cache_salt", json_string(f->salt));
    if (name) json_object_set_new(body, "cache_name", json_string(name));
    sent = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (!sent) return cli_fail("out of memory, or a name that is no UTF-8");
    snprintf(path, sizeof(path), "/v1/cache/names%s%s", name ? "/" : "", name ? action : "");
    rc = ask(f, "POST", path, sent, &v);
    if (rc == 0 && !f->json && !name)
        print_names(v);
    else if (rc == 0 && !f->json && strcmp(action, "save") == 0)
        printf("%lld tokens are on disk, and stay there.\n", number(v, NULL, "disk_tokens"));
    else if (rc == 0 && !f->json)
        printf("%lld tokens of its own are gone, %lld pages are free again%s.\n", number(v, NULL, "own_tokens"),
               number(v, NULL, "pages"), number(v, NULL, "running") ? "; what runs goes when it has ended" : "");
    mem_free(sent);
    json_decref(v);
    return rc;
}

static int of_server(const struct cache_flags *f, const char *action, const char *file)
{
    char path[64];
    struct buf body = {0};
    json_t *v = NULL;
    int rc = EXIT_DONE;

    if (is_about_names(action)) return of_names(f, action, file);
    if (strcmp(action, "list") == 0) {
        snprintf(path, sizeof(path), "/v1/cache?limit=%u", f->limit);
        rc = ask(f, "GET", path, NULL, &v);
        if (rc == 0 && !f->json) print_nodes(v);
    } else if (strcmp(action, "stats") == 0) {
        rc = ask(f, "GET", "/stats", NULL, &v);
        if (rc == 0 && !f->json) print_stats(v);
    } else if (strcmp(action, "explain") == 0) {
        if (!read_body(file, &body)) return EXIT_FAILED;
        rc = ask(f, "POST", "/v1/cache/explain", body.data, &v);
        if (rc == 0 && !f->json) print_explanation(v);
    } else {
        if (f->subtree && !read_body(f->subtree, &body)) return EXIT_FAILED;
        rc = ask(f, "DELETE", "/v1/cache", f->subtree ? body.data : NULL, &v);
        if (rc == 0 && !f->json) {
            printf("%lld pages are free again", number(v, NULL, "pages"));
            if (f->subtree) printf(", %lld left the disk", number(v, NULL, "disk_entries"));
            puts(".");
        }
    }
    buf_deinit(&body);
    json_decref(v);
    return rc;
}

/* ---- a folder ---- */

static int of_folder(const struct cache_flags *f, const char *action, const char *dir)
{
    enum rd_cache_dir_job job = strcmp(action, "verify") == 0  ? RD_CACHE_DIR_VERIFY
                                : strcmp(action, "clear") == 0 ? RD_CACHE_DIR_CLEAR
                                                               : RD_CACHE_DIR_LIST;
    struct rd_error err = {RD_OK, ""};
    char *json = NULL, size[32];
    json_t *v;
    int rc = EXIT_DONE;
    rd_status st = rd_cache_dir(dir, job, f->model, &json, &err);

    if (st != RD_OK) return cli_fail_at(dir, st, &err);
    v = json_loads(json, 0, NULL);
    if (f->json)
        puts(json);
    else if (job == RD_CACHE_DIR_LIST)
        print_folder(v, strcmp(action, "list") == 0);
    else if (job == RD_CACHE_DIR_CLEAR)
        printf("%lld entries of %s are gone.\n", number(v, NULL, "entries"), size_text(number(v, NULL, "bytes"), size));
    else
        printf("%lld pages are whole, %lld damaged%s.\n", number(v, NULL, "pages"), number(v, NULL, "damaged"),
               !number(v, NULL, "damaged")                   ? ""
               : json_is_true(json_object_get(v, "dropped")) ? " and dropped"
                                                             : "");
    if (job == RD_CACHE_DIR_VERIFY && number(v, NULL, "damaged")) rc = EXIT_FAILED;
    json_decref(v);
    rd_free(json);
    return rc;
}

static int wrong(const char *what)
{
    fprintf(stderr, "radish cache: %s\nradish cache --help shows all flags.\n", what);
    return EXIT_USAGE;
}

static int check(const struct cache_flags *f, const char *action, uint32_t n_words)
{
    static const char *const actions[] = {"list", "stats", "explain", "clear", "verify", "names", "save", "drop"};
    bool is_clear = strcmp(action, "clear") == 0, is_explain = strcmp(action, "explain") == 0;
    bool is_name = is_about_names(action), is_one = is_name && strcmp(action, "names") != 0;
    const char *near = args_nearest(action, actions, sizeof(actions) / sizeof(*actions));
    char message[256];
    size_t i = 0;

    while (i < sizeof(actions) / sizeof(*actions) && strcmp(actions[i], action) != 0) i++;
    if (i == sizeof(actions) / sizeof(*actions)) {
        snprintf(message, sizeof(message),
                 "unknown action %.60s: wanted list, stats, explain, clear, verify, names, save or drop%s%s%s", action,
                 near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
        return wrong(message);
    }
    if (f->dir && f->url) return wrong("--url and --cache-dir exclude each other");
    if (is_one && n_words != 2) return wrong("save and drop want the NAME of a named cache");
    if (is_name && f->dir) return wrong("names are asked of a running server");
    if (f->salt && !is_name) return wrong("--salt goes with names, save and drop");
    if (!is_one && is_explain != (n_words == 2))
        return wrong(is_explain ? "explain wants a FILE with a request's body (-: standard input)"
                                : "only explain takes a FILE, save and drop a NAME");
    if (is_explain && f->dir) return wrong("explain asks a running server: a folder knows no tokenizer");
    if (strcmp(action, "verify") == 0 && f->url)
        return wrong("verify reads a folder (--cache-dir); a running server verifies with --cache-verify");
    if (f->subtree && (!is_clear || f->dir)) return wrong("--subtree goes with clear, of a running server");
    if ((f->model || f->all) && (!is_clear || !f->dir)) return wrong("--model and --all go with clear --cache-dir DIR");
    if (is_clear && f->dir && !f->model == !f->all)
        return wrong("clear of a folder wants one of --model NAME and --all");
    return ARGS_GO;
}

static int run_cache(const struct command *self, int argc, char **argv)
{
    struct cache_flags f;
    struct rd_options o;
    const char *words[ARGS_MAX_WORDS];
    char dir[CLI_PATH_BYTES];
    uint32_t n_words;
    int rc;

    memset(&f, 0, sizeof(f));
    rc = args_parse(self, argc, argv, &f, words, &n_words);
    if (rc == ARGS_GO) rc = check(&f, words[0], n_words);
    if (rc != ARGS_GO) return rc;
    rd_set_log(RD_LOG_ERROR, NULL, NULL); /* what is found is the answer */
    if (f.dir) return of_folder(&f, words[0], f.dir);
    if (strcmp(words[0], "verify") != 0) return of_server(&f, words[0], n_words > 1 ? words[1] : NULL);
    rd_options_default(&o);
    cli_cache_dir(&o, dir);
    if (!o.cache_dir || !*o.cache_dir) return cli_fail("there is no cache folder to verify: name it with --cache-dir");
    return of_folder(&f, words[0], o.cache_dir);
}

const struct command cmd_cache = {
    .name = "cache",
    .section = "Look inside",
    .summary = "what the cache holds, why a request misses; clear and verify it",
    .words = "ACTION [FILE | NAME]",
    .about =
        "ACTION is list (what is stored), stats (hits, misses, sizes), explain (what would be found of the "
        "request in FILE, a "
        "JSON body of a chat or completion, and where it parts from what is stored), clear, verify (every page "
        "on disk is "
        "read and checked; exit status 1 when one is damaged), names (the named caches), save NAME (on disk, for "
        "later starts), or drop NAME (what nobody else uses of it). They ask a running server, or with --cache-dir "
        "look at a "
        "folder, also while no server runs.",
    .examples = "  radish cache stats\n"
                "  radish cache explain request.json --url http://127.0.0.1:9000\n"
                "  radish cache save agent-7\n"
                "  radish cache list --cache-dir ~/.cache/radish/kv\n"
                "  radish cache clear --cache-dir ~/.cache/radish/kv --model smollm2\n",
    .groups = cache_groups,
    .first_words = "list|stats|explain|clear|verify|names|save|drop",
    .min_words = 1,
    .max_words = 2,
    .run = run_cache,
};
