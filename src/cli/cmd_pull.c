/* cli/cmd_pull.c - `radish pull`: a model from a hub, from a URL, or a file that lies here, under a name. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/sysinfo.h"
#include "cli/cli_model.h"
#include "cli/commands.h"
#include "cli/pull_bar.h"
#include "hub/hub_pull.h"

enum { MOST_ANEW = 3 }; /* times that a file may change on the server while it is downloaded */

struct pull_flags {
    const char *revision, *name, *sha256;
    uint64_t memory;
    uint32_t n_connections, n_retries, timeout_s;
    bool only_list;
};

static const struct arg what_args[] = {{.flag = "--list",
                                        .kind = ARG_SWITCH,
                                        .at = offsetof(struct pull_flags, only_list),
                                        .help = "only show which quantisations the hub has, and which would be pulled"},
                                       {.flag = "--revision",
                                        .kind = ARG_TEXT,
                                        .value = "REV",
                                        .at = offsetof(struct pull_flags, revision),
                                        .fallback_text = "main",
                                        .help = "branch, tag or commit of the hub; ORG/NAME@REV means the same"},
                                       {.flag = "--memory",
                                        .kind = ARG_BYTES,
                                        .value = "SIZE",
                                        .at = offsetof(struct pull_flags, memory),
                                        .fallback_text = "this machine's",
                                        .help = "that the model may take, when the quantisation is chosen"},
                                       {.flag = "--name",
                                        .kind = ARG_TEXT,
                                        .value = "NAME",
                                        .at = offsetof(struct pull_flags, name),
                                        .fallback_text = "of a URL or file: its own",
                                        .help = "commands find the model by this name, too"},
                                       {.flag = "--sha256",
                                        .kind = ARG_TEXT,
                                        .value = "HEX",
                                        .at = offsetof(struct pull_flags, sha256),
                                        .fallback_text = "of a hub: as it says",
                                        .help = "the file of a URL has this digest, or is thrown away"},
                                       {0}};

static const struct arg how_args[] = {
    {.flag = "--connections",
     .kind = ARG_U32,
     .value = "N",
     .at = offsetof(struct pull_flags, n_connections),
     .fallback = "4",
     .min = 1,
     .max = HUB_MAX_CONNECTIONS,
     .help = "for a file of 8 MiB and more, each with a part of it; 1 where the server gives no parts"},
    {.flag = "--retries",
     .kind = ARG_U32,
     .value = "N",
     .at = offsetof(struct pull_flags, n_retries),
     .fallback = "5",
     .max = 1000,
     .help = "tries after one that failed, while no byte comes: after 1, 2, 4 .. 32 s, or what the server asks for"},
    {.flag = "--timeout",
     .kind = ARG_U32,
     .value = "S",
     .at = offsetof(struct pull_flags, timeout_s),
     .fallback = "30",
     .min = 1,
     .max = 3600,
     .help = "seconds to connect, and of silence, after which it is tried again"},
    {0}};

static const struct arg_group pull_groups[] = {{"What", what_args, 0}, {"Network", how_args, 0}, {NULL, NULL, 0}};

/* Ctrl-C: what is downloaded stays. */
static volatile sig_atomic_t is_stopped;

static void stop(int signal)
{
    (void)signal;
    is_stopped = 1;
}

static void catch_signals(void)
{
    struct sigaction a = {.sa_handler = stop};

    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    a.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &a, NULL); /* a write that fails says why */
    sigaction(SIGPIPE, &a, NULL);
}

struct pull {
    const struct pull_flags *f;
    struct hub_pull hub;
    struct hub_fetch *file; /* of a URL; NULL: hub.now */
    struct pull_bar bar;
    const char *word;
};

/* ---- what is told meanwhile ---- */

static void tell(void *user, const char *text)
{
    struct pull *p = user;

    pull_bar_clear(&p->bar);
    fprintf(stderr, "radish: %s\n", text);
}

static void tick(void *user)
{
    struct pull *p = user;
    const struct hub_fetch *now = p->file ? p->file : &p->hub.now;
    const char *slash;

    if (!p->file && !p->hub.file) return;
    slash = strrchr(now->shown, '/');
    pull_bar_show(&p->bar, slash ? slash + 1 : now->shown, p->hub.n_done + now->n_there, p->hub.n_total,
                  now->is_checking);
}

static void print_variants(const struct hub_listing *m, uint64_t n_memory)
{
    for (size_t i = 0; i < m->n_variants; i++) {
        const struct hub_variant *v = m->variants + i;
        const char *note = !v->is_whole                            ? "parts are missing"
                           : v->order == HUB_NEVER                 ? "radish cannot compute with it"
                           : hub_memory_for(v->n_bytes) > n_memory ? "too big for the memory here"
                           : m->files[v->first].is_wanted          ? "would be pulled"
                                                                   : "";

        printf("%-12s %9.1f MiB  %s%s%s\n", v->label[0] ? v->label : "-", (double)v->n_bytes / (1 << 20),
               m->files[v->first].path, *note ? "  # " : "", note);
    }
    for (size_t i = 0; i < m->n_files && !m->n_variants; i++)
        if (m->files[i].is_wanted)
            printf("%-12s %9.1f MiB  %s\n", "-", (double)m->files[i].n_bytes / (1 << 20), m->files[i].path);
}

static void chosen(void *user, const struct hub_listing *m, const char *why)
{
    struct pull *p = user;

    if (p->f->only_list) print_variants(m, p->hub.n_memory);
    if (*why) fprintf(stderr, "%s: %s\n", p->word, why);
}

/* ---- names ---- */

/* What cli_find_model finds in the folder of models. */
static bool is_model_name(const char *name)
{
    size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");

    return n && !name[n] && n < 200 && !strchr(".-", name[0]);
}

/* NAME of NAME.gguf; a copy for the caller. NULL: no such name, or out of memory (a message was printed). */
static char *plain_name(const char *name)
{
    size_t n = strlen(name);
    char *plain;

    if (n > 5 && !strcasecmp(name + n - 5, ".gguf")) n -= 5;
    plain = mem_memdup(name, n);
    if (plain && is_model_name(plain)) return plain;
    if (!plain)
        cli_fail("out of memory");
    else
        cli_fail("\"%.200s\" is no name for a model: letters, digits, dots, dashes and underscores (--name NAME)",
                 plain);
    mem_free(plain);
    return NULL;
}

/* Makes `path` known as `name`; false: a message was printed. */
static bool add_name(const char *name, const char *path)
{
    char folder[CLI_PATH_BYTES / 2], link[256], *target;
    struct rd_error err = {RD_OK, ""};
    struct stat s;
    int dir;
    rd_status st;

    cli_model_folder(folder, sizeof(folder));
    if (stat(path, &s)) return cli_fail("%s: %s", path, strerror(errno)), false;
    if (path[0] == '/') {
        target = mem_strdup(path);
    } else {
        char here[CLI_PATH_BYTES], whole[2 * CLI_PATH_BYTES];

        if (!getcwd(here, sizeof(here))) return cli_fail("the current folder: %s", strerror(errno)), false;
        snprintf(whole, sizeof(whole), "%s/%s", here, path);
        target = mem_strdup(whole);
    }
    snprintf(link, sizeof(link), "%s%s", name, S_ISDIR(s.st_mode) ? "" : ".gguf");
    st = target ? hub_open_root(folder, true, &dir, &err) : error_set(&err, RD_E_NOMEM, "out of memory");
    if (st == RD_OK) {
        st = hub_make_link(dir, link, target, &err);
        close(dir);
    }
    mem_free(target);
    if (st != RD_OK) return cli_fail_at(folder, st, &err), false;
    fprintf(stderr, "radish: %s is another name of it\n", name);
    return true;
}

static int ended(struct pull *p, rd_status st, const struct rd_error *err)
{
    pull_bar_clear(&p->bar);
    if (st == RD_E_CANCELLED) {
        fprintf(stderr, "radish: stopped; the same command goes on from here\n");
        return EXIT_INTERRUPTED;
    }
    (void)cli_fail_at(p->word, st, err);
    if (strstr(err->text, "connect to") || strstr(err->text, "resolve"))
        cli_hint("Is there a network, and a proxy to name (https_proxy)? HF_ENDPOINT names another hub. The same "
                 "command goes on from here.");
    return EXIT_FAILED;
}

/* ---- from a hub ---- */

static int pull_from_hub(struct pull *p, const struct hub_ref *ref, const struct hub_settings *s)
{
    char path[CLI_PATH_BYTES];
    struct rd_error err = {RD_OK, ""};
    rd_status st;

    if (p->f->sha256) return cli_fail("--sha256 is for URLs: a hub names the digests of its files itself");
    p->hub.n_memory = p->f->memory ? p->f->memory : sysinfo_memory();
    p->hub.chosen = chosen;
    p->hub.only_list = p->f->only_list;
    if (s->is_offline) {
        st = hub_find_pulled(ref, p->hub.n_memory, path, &err);
        if (st != RD_OK)
            return cli_fail("%s: not in the cache, and HF_HUB_OFFLINE forbids to ask for it (%s)", p->word, err.text);
    } else {
        st = hub_pull(&p->hub, ref, path, &err);
        if (st != RD_OK) return ended(p, st, &err);
        pull_bar_clear(&p->bar);
        if (p->f->only_list) return EXIT_DONE;
    }
    if (p->f->name && !add_name(p->f->name, path)) return EXIT_FAILED;
    printf("%s\n", path);
    return EXIT_DONE;
}

/* ---- from a URL ---- */

/* The last part of the path. false: a message was printed. */
static bool name_in_url(const char *url, char name[256])
{
    const char *path = strstr(url, "://") + 3, *last;
    size_t n = strcspn(path, "?#");

    for (last = path + n; last > path && last[-1] != '/';) last--;
    n -= (size_t)(last - path);
    if (last == path || n < 6 || n > 200 || strncasecmp(last + n - 5, ".gguf", 5))
        return cli_fail("%.300s: the URL does not end in the name of a GGUF file; give it one with --name NAME", url),
               false;
    snprintf(name, 256, "%.*s", (int)n, last);
    return true;
}

/* Where the beginning of this very file is kept. */
static void partial_name(char out[320], const char *name, const char *url, const struct hub_answer *head)
{
    char identity[512];
    int n = snprintf(identity, sizeof(identity), "%016" PRIx64 " %s %" PRIu64, hash64_of(url, strlen(url)), head->etag,
                     head->n_bytes);

    snprintf(out, 320, ".%s.%016" PRIx64 ".incomplete", name, hash64_of(identity, (size_t)n));
}

/* head: what the server says of the file. */
static rd_status fetch_url_once(struct pull *p, const char *url, const char *name, struct hub_http *http, int dir,
                                const struct hub_answer *head, struct rd_error *err)
{
    struct hub_fetch file = {.http = http,
                             .options = &p->hub.http,
                             .dir = dir,
                             .shown = name,
                             .name = name,
                             .url = url,
                             .digest = p->f->sha256,
                             .magic = "GGUF",
                             .n_bytes = head->n_bytes};
    char partial[320];
    rd_status st;

    p->hub.n_total = head->n_bytes;
    if (head->etag[0] && !head->is_weak) file.if_range = head->etag;
    partial_name(partial, name, url, head);
    file.partial = partial;
    if (!file.if_range && !file.digest) unlinkat(dir, partial, 0); /* nothing would tell bytes of two files apart */
    p->file = &file;
    st = hub_fetch_file(&file, err);
    p->file = NULL;
    return st;
}

static rd_status ask_head(struct hub_http *http, const char *url, struct hub_answer *head, struct rd_error *err)
{
    rd_status st = hub_http_head(http, url, head, err);

    if (st == RD_E_CANCELLED || st == RD_E_NOMEM) return st;
    if (st != RD_OK) *head = (struct hub_answer){.n_bytes = UINT64_MAX}; /* some servers know GET alone */
    return RD_OK;
}

static rd_status fetch_url(struct pull *p, const char *url, const char *name, struct hub_http *http, int dir,
                           struct rd_error *err)
{
    struct hub_answer head, now;
    struct rd_error unseen;
    struct stat s;
    char text[400];
    rd_status st = ask_head(http, url, &head, err);

    if (st != RD_OK) return st;
    if (!fstatat(dir, name, &s, 0)) {
        if (S_ISREG(s.st_mode) && (uint64_t)s.st_size == head.n_bytes && !p->f->sha256) return RD_OK;
        return error_set(err, RD_E_INVALID, "%s is there already: remove it, or give this one another --name", name);
    }
    for (int n_anew = 0;; n_anew++) {
        st = fetch_url_once(p, url, name, http, dir, &head, err);
        if (st != RD_E_FORMAT || n_anew == MOST_ANEW) return st;
        if (ask_head(http, url, &now, &unseen) != RD_OK) return st;
        if (now.n_bytes == head.n_bytes && !strcmp(now.etag, head.etag)) return st; /* the same, and no model */
        head = now;
        snprintf(text, sizeof(text), "%.200s has changed on the server; starting over", name);
        tell(p, text);
    }
}

static int pull_from_url(struct pull *p, const char *url)
{
    char folder[CLI_PATH_BYTES / 2], name[256], *plain = NULL;
    struct rd_error err = {RD_OK, ""};
    struct hub_http *http = NULL;
    int dir = -1;
    rd_status st;

    if (p->f->only_list || p->f->revision) return cli_fail("--list and --revision are for hubs, not for a URL");
    if (!p->f->name && !name_in_url(url, name)) return EXIT_FAILED;
    plain = plain_name(p->f->name ? p->f->name : name);
    if (!plain) return EXIT_FAILED;
    snprintf(name, sizeof(name), "%s.gguf", plain);
    mem_free(plain);
    cli_model_folder(folder, sizeof(folder));
    st = hub_http_create(&p->hub.http, &http, &err);
    if (st == RD_OK) st = hub_open_root(folder, true, &dir, &err);
    if (st == RD_OK) st = fetch_url(p, url, name, http, dir, &err);
    hub_http_destroy(http);
    if (dir >= 0) close(dir);
    if (st != RD_OK) return ended(p, st, &err);
    pull_bar_clear(&p->bar);
    printf("%s/%s\n", folder, name);
    return EXIT_DONE;
}

/* ---- a file that is here ---- */

static int pull_file(struct pull *p, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *name;
    bool ok;

    if (p->f->only_list || p->f->revision || p->f->sha256)
        return cli_fail("--list, --revision and --sha256 are not for a file that is here");
    name = plain_name(p->f->name ? p->f->name : slash ? slash + 1 : path);
    if (!name) return EXIT_FAILED;
    ok = add_name(name, path);
    mem_free(name);
    if (ok) printf("%s\n", path);
    return ok ? EXIT_DONE : EXIT_FAILED;
}

/* ---- which of them ---- */

/* https://huggingface.co/ORG/NAME[/tree/REV | /blob/REV/FILE | /resolve/REV/FILE] as the reference that it is. */
static bool ref_of_url(const char *url, const struct hub_settings *s, struct hub_ref *ref)
{
    static const char *const hosts[] = {"https://huggingface.co", "https://hf.co"};
    char word[HUB_REPO_BYTES + HUB_REVISION_BYTES + HUB_FILE_BYTES], kind[16];
    const char *rest = NULL;
    size_t n;
    int at = 0;

    n = strlen(s->endpoint);
    if (!strncmp(url, s->endpoint, n) && url[n] == '/') rest = url + n + 1;
    for (size_t i = 0; i < 2 && !rest; i++) {
        n = strlen(hosts[i]);
        if (!strncmp(url, hosts[i], n) && url[n] == '/') rest = url + n + 1;
    }
    if (!rest || strchr(rest, '%')) return false;
    n = strcspn(rest, "?#");
    if (n >= sizeof(word)) return false;
    snprintf(word, sizeof(word), "%.*s", (int)n, rest);
    if (hub_ref_parse(word, ref, NULL) != RD_OK || ref->label[0]) return false;
    if (!ref->file[0]) return true;
    if (sscanf(ref->file, "%15[a-z]/%199[^/]%n", kind, ref->revision, &at) != 2) return false;
    if (!hub_revision_is_safe(ref->revision)) return false;
    if (!strcmp(kind, "tree") && !ref->file[at]) {
        ref->file[0] = 0;
        return true;
    }
    if ((strcmp(kind, "blob") && strcmp(kind, "resolve") && strcmp(kind, "raw")) || ref->file[at] != '/') return false;
    memmove(ref->file, ref->file + at + 1, strlen(ref->file + at + 1) + 1);
    return hub_path_is_safe(ref->file);
}

static int pull_word(struct pull *p, const struct hub_settings *s)
{
    const char *word = p->word;
    struct rd_error err = {RD_OK, ""};
    struct hub_ref ref;
    struct stat st;
    bool is_here = !stat(word, &st) && (S_ISREG(st.st_mode) || (S_ISDIR(st.st_mode) && strchr("./", word[0])));
    size_t n = strlen(word);

    if (strstr(word, "://") && strncmp(word, "hf://", 5)) {
        if (strncasecmp(word, "http://", 7) && strncasecmp(word, "https://", 8))
            return cli_fail("%.300s: of URLs, http and https are known", word);
        if (!ref_of_url(word, s, &ref)) return pull_from_url(p, word);
    } else if (is_here) {
        return pull_file(p, word);
    } else if (strchr("./~", word[0]) || (n > 5 && !strchr(word, '/') && !strcmp(word + n - 5, ".gguf"))) {
        return cli_fail("%s: no such file", word);
    } else if (!strchr(word, '/')) {
        cli_fail("\"%s\" is neither a model of a hub, which looks like org/name, nor a URL, nor a file", word);
        fprintf(stderr, "radish fetch --list shows models that have short names.\n");
        return EXIT_USAGE;
    } else if (hub_ref_parse(word, &ref, &err) != RD_OK) {
        cli_fail("%s", err.text);
        return EXIT_USAGE;
    }
    if (p->f->revision) {
        if (!hub_revision_is_safe(p->f->revision)) return cli_fail("\"%s\" is no revision", p->f->revision);
        snprintf(ref.revision, sizeof(ref.revision), "%s", p->f->revision);
    }
    return pull_from_hub(p, &ref, s);
}

static bool is_digest(const char *s)
{
    return strlen(s) == 64 && hub_digest_is_safe(s);
}

static int run_pull(const struct command *self, int argc, char **argv)
{
    struct pull_flags f = {.revision = NULL};
    struct pull p = {.f = &f};
    struct hub_settings settings;
    struct rd_error err = {RD_OK, ""};
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words;
    int rc = args_parse(self, argc, argv, &f, words, &n_words);

    if (rc != ARGS_GO) return rc;
    if (f.sha256 && !is_digest(f.sha256)) return cli_fail("--sha256: 64 hexadecimal digits in lower case are wanted");
    if (f.name && !is_model_name(f.name))
        return cli_fail("--name: letters, digits, dots, dashes and underscores are wanted, found \"%.200s\"", f.name);
    if (hub_settings_read(&settings, &err) != RD_OK) return cli_fail("%s", err.text);
    catch_signals();
    pull_bar_init(&p.bar);
    p.word = words[0];
    p.hub.http = (struct hub_http_options){.endpoint = settings.endpoint,
                                           .token = settings.token[0] ? settings.token : NULL,
                                           .timeout_s = f.timeout_s,
                                           .n_retries = f.n_retries,
                                           .n_connections = f.n_connections,
                                           .cancelled = &is_stopped,
                                           .tell = tell,
                                           .tick = tick,
                                           .user = &p};
    return pull_word(&p, &settings);
}

const struct command cmd_pull = {
    .name = "pull",
    .section = "Look inside",
    .summary = "downloads a model from a Hugging Face hub, or from a URL",
    .words = "ORG/NAME[:QUANT|/FILE]",
    .about =
        "Into the cache that programs of the hub share ($HF_HUB_CACHE, else $HF_HOME/hub, else "
        "~/.cache/huggingface/hub): what one has, the other finds. Without :QUANT it takes the best quantisation that "
        "fits in memory, and says why. Every file is checked against the digest that the hub names; a pull that was "
        "stopped goes on where it was. HF_ENDPOINT names another hub, HF_TOKEN opens what is private or gated, "
        "HF_HUB_OFFLINE=1 only looks into the cache. A URL of a GGUF file, or a file that is here, gets a name among "
        "those of `radish list`. The path goes to standard output. Exit status: 0, 1 when it failed, 2 for a wrong "
        "command line, 130 after Ctrl-C.",
    .examples = "  radish pull bartowski/SmolLM2-135M-Instruct-GGUF\n"
                "  radish pull Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q8_0 --name coder\n"
                "  radish serve \"$(radish pull HuggingFaceTB/SmolLM2-135M-Instruct)\"\n"
                "  radish pull https://example.org/model.gguf --sha256 ...\n",
    .groups = pull_groups,
    .min_words = 1,
    .max_words = 1,
    .run = run_pull,
};
