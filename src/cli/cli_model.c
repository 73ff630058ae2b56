/* cli/cli_model.c - model names, the progress bar, text from standard input. */
#include "cli/cli_model.h"
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sysinfo.h"
#include "base/utf8.h"
#include "cli/args.h"
#include "cli/model_list.h"
#include "hub/hub_pull.h"

enum {
    BAR_CELLS = 30,
    MAX_LISTED = 32,
    PATIENCE_MS = 3000 /* then a person is told what the program waits for */
};

int cli_fail(const char *format, ...)
{
    va_list args;

    if (log_is_json()) { /* serve, whose standard error is read by a program */
        char text[1024];

        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        log_event(LOG_ERROR, "failed", NULL, 0, "%s", text);
        return EXIT_FAILED;
    }
    fputs("radish: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return EXIT_FAILED;
}

void cli_hint(const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (log_is_json())
        log_event(LOG_INFO, "hint", NULL, 0, "%s", text);
    else
        fprintf(stderr, "%s\n", text);
}

const char *cli_without_name(const char *name, const char *text)
{
    const char *slash = strrchr(name, '/'), *last = slash ? slash + 1 : name;
    size_t n = strlen(last);

    return strncmp(text, last, n) == 0 && strncmp(text + n, ": ", 2) == 0 ? text + n + 2 : text;
}

int cli_fail_at(const char *name, rd_status st, const struct rd_error *err)
{
    return cli_fail("%s: %s", name, *err->text ? cli_without_name(name, err->text) : rd_status_text(st));
}

void cli_model_folder(char *folder, size_t cap)
{
    const char *set = getenv("RADISH_MODELS"), *home = getenv("HOME");

    if (set && *set)
        snprintf(folder, cap, "%s", set);
    else
        snprintf(folder, cap, "%s/.cache/radish/models", home && *home ? home : ".");
}

void cli_packed_dir(struct rd_options *o, char dir[CLI_PATH_BYTES])
{
    const char *set = getenv("RADISH_PACKED"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;

    if (o->packed_dir || o->no_packed_cache) return;
    if (set && *set)
        n = snprintf(dir, CLI_PATH_BYTES, "%s", set);
    else if (cache && *cache == '/')
        n = snprintf(dir, CLI_PATH_BYTES, "%s/radish/packed", cache);
    else if (home && *home)
        n = snprintf(dir, CLI_PATH_BYTES, "%s/.cache/radish/packed", home);
    if (n > 0 && n < CLI_PATH_BYTES) o->packed_dir = dir;
}

void cli_cache_dir(struct rd_options *o, char dir[CLI_PATH_BYTES])
{
    const char *set = getenv("RADISH_CACHE"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;

    if (o->cache_dir || o->no_disk_cache) return;
    if (set)
        n = snprintf(dir, CLI_PATH_BYTES, "%s", set);
    else if (cache && *cache == '/')
        n = snprintf(dir, CLI_PATH_BYTES, "%s/radish/kv", cache);
    else if (home && *home)
        n = snprintf(dir, CLI_PATH_BYTES, "%s/.cache/radish/kv", home);
    if (n > 0 && n < CLI_PATH_BYTES) o->cache_dir = dir;
}

/* The models in a folder, as " a b c"; how many there are. Says which of them the wanted name may have meant. */
static size_t name_models(const char *folder, const char *wanted, struct buf *names)
{
    const char *known[MAX_LISTED], *near;
    struct model_entry *list;
    size_t n;

    if (!model_list_all(folder, &list, &n)) return 0;
    for (size_t i = 0; i < n && i < MAX_LISTED; i++) known[i] = list[i].name;
    near = args_nearest(wanted, known, n < MAX_LISTED ? n : MAX_LISTED);
    if (near) cli_hint("Did you mean %s?", near);
    for (size_t i = 0; i < n && i < MAX_LISTED; i++) buf_printf(names, " %s", list[i].name);
    mem_free(list);
    return n;
}

/* Another name of a model (radish pull --name) is a link to its file: the parts of a split one lie beside that. */
static void follow_name(char path[CLI_PATH_BYTES])
{
    char target[CLI_PATH_BYTES];
    ssize_t n = readlink(path, target, sizeof(target) - 1);

    if (n <= 0 || target[0] != '/') return;
    target[n] = 0;
    memcpy(path, target, (size_t)n + 1);
}

/* ORG/NAME.. in the cache of the hub. */
static bool find_pulled(const char *model, const struct hub_ref *ref, char path[CLI_PATH_BYTES])
{
    struct rd_error err = {RD_OK, ""};
    size_t n = strlen(ref->file);
    rd_status st = hub_find_pulled(ref, sysinfo_memory(), path, &err);

    if (st == RD_OK) return true;
    if (st == RD_E_NOT_FOUND) {
        cli_fail("%s: no such file, nor is it in the cache of the hub", model);
        if (hub_lacks_part(&err)) cli_hint("Of this model %s", err.text);
    } else {
        cli_fail_at(model, st, &err);
    }
    if (n < 5 || strcmp(ref->file + n - 5, ".gguf") != 0) cli_hint("Get it with:  radish pull %s", model);
    return false;
}

bool cli_find_model(const char *model, char path[CLI_PATH_BYTES])
{
    char folder[CLI_PATH_BYTES / 2];
    struct hub_ref ref;
    struct buf names;
    size_t n = strlen(model);

    if (n >= CLI_PATH_BYTES / 4) return cli_fail("the model's name has %zu bytes: that is no file", n), false;
    snprintf(path, CLI_PATH_BYTES, "%s", model);
    if (file_exists(path)) return true;
    if (hub_ref_is(model) && hub_ref_parse(model, &ref, NULL) == RD_OK) return find_pulled(model, &ref, path);
    if (strchr(model, '/') || (n > 5 && strcmp(model + n - 5, ".gguf") == 0)) {
        cli_fail("%s: no such file", model);
        return false;
    }
    cli_model_folder(folder, sizeof(folder));
    snprintf(path, CLI_PATH_BYTES, "%s/%s.gguf", folder, model);
    if (!file_exists(path)) path[strlen(path) - strlen(".gguf")] = 0; /* a directory */
    if (file_exists(path)) {
        follow_name(path);
        return true;
    }
    buf_init(&names);
    cli_fail("no model \"%s\": it is neither a file nor in %s", model, folder);
    if (name_models(folder, model, &names))
        cli_hint("Models there:%s", names.data ? names.data : "");
    else
        cli_hint("There are no models yet.");
    cli_hint("Get one with:  radish fetch NAME (radish fetch --list shows some), or radish pull ORG/NAME from a hub");
    buf_deinit(&names);
    return false;
}

void load_bar_end(struct load_bar *bar)
{
    if (bar->shown >= 0) fputs("\r\033[K", stderr);
    bar->shown = -1;
}

static void show_bar(void *user, double fraction)
{
    struct load_bar *bar = user;
    int percent = (int)(fraction * 100), cells = (int)(fraction * BAR_CELLS);
    char line[BAR_CELLS + 1];

    if (percent >= 100) {
        load_bar_end(bar); /* what is logged next begins its own line */
        return;
    }
    if (percent == bar->shown) return;
    bar->shown = percent;
    for (int i = 0; i < BAR_CELLS; i++) line[i] = i < cells ? '#' : '.';
    line[BAR_CELLS] = 0;
    fprintf(stderr, "\r\033[K%s %s [%s] %3d %%", bar->verb, bar->model, line, percent);
}

bool cli_find_model_for(const struct rd_options *o, const char *model, char path[CLI_PATH_BYTES])
{
    char folder[CLI_PATH_BYTES / 2];

    if (!o->device || strncmp(o->device, "process:", 8) != 0) return cli_find_model(model, path);
    if (strlen(model) >= CLI_PATH_BYTES / 4) return cli_fail("the model's name has %zu bytes", strlen(model)), false;
    cli_model_folder(folder, sizeof(folder));
    snprintf(path, CLI_PATH_BYTES, "%s/%s.gguf", folder, model);
    if (file_exists(model) || strchr(model, '/') || !file_exists(path)) snprintf(path, CLI_PATH_BYTES, "%s", model);
    return true;
}

void load_bar_init(struct load_bar *bar, const char *model, struct rd_options *o)
{
    const char *slash = strrchr(model, '/');

    *bar = (struct load_bar){slash ? slash + 1 : model, -1, "loading"};
    if (!isatty(STDERR_FILENO)) return;
    o->progress = show_bar;
    o->progress_user = bar;
}

bool cli_find_draft(struct rd_options *o, char path[CLI_PATH_BYTES])
{
    if (!o->draft_model) return true;
    if (!cli_find_model(o->draft_model, path)) return false;
    o->draft_model = path;
    return true;
}

rd_engine *cli_open(struct rd_options *o, const char *model)
{
    char path[CLI_PATH_BYTES], draft_path[CLI_PATH_BYTES], packed[CLI_PATH_BYTES], kv[CLI_PATH_BYTES];
    struct rd_error err = {RD_OK, ""};
    struct load_bar bar;
    rd_engine *engine = NULL;
    rd_status st;

    if (!cli_find_model_for(o, model, path) || !cli_find_draft(o, draft_path)) return NULL;
    o->model = path;
    cli_packed_dir(o, packed);
    cli_cache_dir(o, kv);
    load_bar_init(&bar, model, o);
    st = rd_open(o, &engine, &err);
    load_bar_end(&bar);
    o->model = NULL;
    o->packed_dir = o->cache_dir = NULL;
    if (st != RD_OK) cli_fail_at(model, st, &err);
    return engine;
}

rd_engine *cli_open_tokenizer(const char *model, const char *pre)
{
    char path[CLI_PATH_BYTES];
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine = NULL;
    rd_status st;

    if (!cli_find_model(model, path)) return NULL;
    st = rd_open_tokenizer(path, pre, &engine, &err);
    if (st != RD_OK) cli_fail_at(model, st, &err);
    return engine;
}

/* All of standard input behind what text has. */
static bool read_standard_input(struct buf *text)
{
    char piece[65536];
    size_t n;

    do { /* a short count is the end: another read would want a second Ctrl-D; what has no room need not be waited for */
        n = fread(piece, 1, sizeof(piece), stdin);
        buf_append(text, piece, n);
    } while (n == sizeof(piece) && !text->failed);
    if (!ferror(stdin)) return true;
    cli_fail("standard input cannot be read");
    return false;
}

static bool check_size(const struct buf *text)
{
    if (!text->failed) return true;
    cli_fail("the text is longer than %u MiB, or memory is out", LIMIT_TEXT_BYTES >> 20);
    return false;
}

bool cli_read_text(const char *word, const char *what, struct buf *text)
{
    bool ok = true;

    buf_init(text);
    text->limit = LIMIT_TEXT_BYTES;
    if (word && strcmp(word, "-") != 0) {
        buf_puts(text, word);
    } else {
        if (isatty(STDIN_FILENO)) fprintf(stderr, "%s, then Ctrl-D:\n", what);
        ok = read_standard_input(text);
    }
    ok = ok && check_size(text);
    if (!ok) buf_deinit(text);
    return ok;
}

/* A pipe, a file or a socket: it was given on purpose. A terminal or /dev/null gives nothing. */
static bool input_is_given(void)
{
    struct stat s;

    return fstat(STDIN_FILENO, &s) == 0 && (S_ISFIFO(s.st_mode) || S_ISREG(s.st_mode) || S_ISSOCK(s.st_mode));
}

/* Appends what is piped in to a prompt that is there already. */
static bool append_piped(struct buf *prompt, const char *between)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    struct buf piped = {.limit = LIMIT_TEXT_BYTES};
    bool ok;

    if (poll(&input, 1, PATIENCE_MS) == 0)
        fprintf(stderr, "radish: waiting for standard input, which follows the prompt (\"< /dev/null\": there is "
                        "none)\n");
    ok = read_standard_input(&piped) && check_size(&piped);
    if (ok && piped.n) {
        buf_puts(prompt, between);
        buf_append(prompt, piped.data, piped.n);
    }
    buf_deinit(&piped);
    return ok;
}

bool cli_check_utf8(const char *text, size_t n, size_t n_before, const char *what)
{
    size_t good = utf8_valid_prefix(text, n);

    if (good == n) return true;
    cli_fail("%s is not UTF-8: byte 0x%02x at offset %zu. Convert it first: iconv -f LATIN1 -t UTF-8", what,
             (unsigned char)text[good], good - n_before);
    return false;
}

static bool is_blank(const struct buf *text)
{
    for (size_t i = 0; i < text->n; i++)
        if (!strchr(" \t\r\n", text->data[i]) || !text->data[i]) return false;
    return true;
}

/* What the prompt must be; a message says what it is instead. */
static bool check_prompt(const struct buf *prompt, size_t n_word, bool has_word, bool may_be_blank)
{
    bool in_word = has_word && utf8_valid_prefix(prompt->data, prompt->n) < n_word;
    size_t n_before = has_word && !in_word ? n_word : 0;

    if (!check_size(prompt)) return false;
    if (prompt->n && !cli_check_utf8(prompt->data, prompt->n, n_before, in_word ? "the prompt" : "standard input"))
        return false;
    if (prompt->n ? !is_blank(prompt) || may_be_blank : has_word && may_be_blank) return true;
    if (has_word)
        cli_fail("the prompt is empty");
    else
        cli_fail("standard input is empty: there is no prompt. Write it behind the model's name, or pipe a text in");
    return false;
}

bool cli_read_prompt(const char *word, const char *between, bool may_be_blank, struct buf *prompt)
{
    bool has_word = word && strcmp(word, "-") != 0, ok;
    size_t n_word = 0;

    ok = cli_read_text(word, "Type the prompt", prompt);
    if (!ok) return false;
    if (has_word && input_is_given()) {
        n_word = prompt->n;
        ok = append_piped(prompt, between);
        if (prompt->n > n_word) n_word += strlen(between);
    } else if (has_word) {
        n_word = prompt->n;
    }
    ok = ok && check_prompt(prompt, n_word, has_word, may_be_blank);
    if (!ok) buf_deinit(prompt);
    return ok;
}
