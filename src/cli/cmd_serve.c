/* cli/cmd_serve.c - `radish serve`: the OpenAI-compatible server. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sysinfo.h"
#include "base/supervisor.h"
#include "cli/cli_flags.h"
#include "cli/cli_model.h"
#include "cli/commands.h"
#include "cli/model_list.h"
#include "cli/adapter_flags.h"
#include "cli/next_load.h"
#include "cli/run_dir.h"
#include "cli/serve_downloads.h"
#include "cli/serve_models.h"
#include "cli/settings.h"
#include "cli/warm_file.h"
#include "hub/hub_http.h"
#include "hub/hub_image.h"
#include "server/server.h"

#define PROGRESS_NS     2000000000ull /* between two lines of progress */
#define LOADING_MORE_US 120000000u    /* that a service manager waits for the next one, or for the end of loading */

struct serve_flags {
    struct rd_options engine;
    struct settings settings;
    const char *config;
    bool print_config;
    const char *host, *api_key, *log_level, *log_format, *warm, *shared, *key_file, *pooling, *rerank;
    uint64_t client_memory;
    uint32_t port, n_io_threads, sse_ping_s, send_timeout_s, drain_s, drain_wait_s;
    uint64_t memory_limit;
    struct arg_texts allow_hosts, allow_origins, listen, image_hosts;
    struct fetch_hosts image_list;
    struct hub_image_from image_from;
    struct adapter_flags adapters;
    const char *lora_dir;
    const char *admin_key;
    bool log_prompts;
    bool has_host, has_port;
    const char *socket_mode;
    uint32_t stall_s;
    uint32_t idle_unload_s, swap_wait_s, max_models;
    uint64_t models_memory;
    const struct server_load_watch *watch; /* of the load that goes on; or NULL */
    struct serve_models *models;
    uint32_t n_models;     /* named at the start */
    const char *only_name; /* of the only one, as it is told */
    struct next_load *next;
    struct serve_downloads *downloads;
    struct load_bar bar;
    void (*bar_progress)(void *bar, double fraction); /* NULL: there is no terminal */
    uint64_t told_ns;                                 /* of the progress line before */
    struct run_entry entry;                           /* what radish ps sees */
    int entry_fd;
};

static const struct arg serve_args[] = {
    {.flag = "--config",
     .kind = ARG_TEXT,
     .value = "FILE",
     .at = offsetof(struct serve_flags, config),
     .fallback_text = "$RADISH_CONFIG, else ~/.config/radish/radish.toml, else /etc/radish/radish.toml, where they are",
     .help =
         "key = value lines: each flag without its dashes, and models = [..]. Flags win over $RADISH_FLAG variables "
         "(RADISH_KV_BYTES), these over the file"},
    {.flag = "--print-config",
     .kind = ARG_SWITCH,
     .at = offsetof(struct serve_flags, print_config),
     .help = "print every value and where it comes from, as such a file (without keys), and end"},
    {.flag = "--host",
     .kind = ARG_TEXT,
     .value = "ADDRESS",
     .at = offsetof(struct serve_flags, host),
     .given_at = offsetof(struct serve_flags, has_host),
     .fallback = "127.0.0.1",
     .help = "numeric address to listen on, or localhost; 0.0.0.0 lets other machines in: set --api-key then"},
    {.flag = "--port",
     .letter = 'p',
     .kind = ARG_U32,
     .value = "N",
     .at = offsetof(struct serve_flags, port),
     .given_at = offsetof(struct serve_flags, has_port),
     .fallback = "8000",
     .max = 65535,
     .help = "TCP port; 0: any free one, printed"},
    {.flag = "--listen",
     .kind = ARG_TEXTS,
     .value = "ADDRESS",
     .at = offsetof(struct serve_flags, listen),
     .fallback_text = "--host and --port",
     .help =
         "where to listen instead: ADDRESS:PORT, [V6]:PORT, or unix:PATH for a socket in the file system; may be given "
         "again. Sockets that systemd passes are listened to without a flag"},
    {.flag = "--socket-mode",
     .kind = ARG_TEXT,
     .value = "MODE",
     .at = offsetof(struct serve_flags, socket_mode),
     .fallback = "600",
     .help = "permissions of the files of unix:PATH, in octal: who may write may ask"},
    {.flag = "--api-key",
     .is_secret = true,
     .kind = ARG_TEXT,
     .value = "KEY",
     .at = offsetof(struct serve_flags, api_key),
     .fallback_text = "none",
     .help = "clients must send it as bearer token; better set as $RADISH_API_KEY, which other users cannot see"},
    {.flag = "--api-key-file",
     .kind = ARG_TEXT,
     .value = "FILE",
     .at = offsetof(struct serve_flags, key_file),
     .fallback_text = "none",
     .help = "further keys, a tenant a line, as radish key makes them; read again on SIGHUP. What is stored under one "
             "tenant "
             "is never used for another"},
    {.flag = "--admin-key",
     .is_secret = true,
     .kind = ARG_TEXT,
     .value = "KEY",
     .at = offsetof(struct serve_flags, admin_key),
     .fallback_text = "--api-key",
     .help = "only its holder, and the admins of --api-key-file, may list and clear the whole cache, see the monitor "
             "and cancel "
             "requests of others"},
    {.flag = "--allow-origin",
     .kind = ARG_TEXTS,
     .value = "ORIGIN",
     .at = offsetof(struct serve_flags, allow_origins),
     .fallback_text = "pages of this machine; with a key all",
     .help = "origin of web pages that may call (https://name:port), beside the server's own pages; may be given "
             "again; * for "
             "every page"},
    {.flag = "--allow-host",
     .kind = ARG_TEXTS,
     .value = "NAME",
     .at = offsetof(struct serve_flags, allow_hosts),
     .fallback_text = "none",
     .help = "without a key: a name under which clients reach this server (their Host header), beside addresses, names "
             "without a dot and those of private networks; may be given again; * for every name"},
    {.flag = "--model-id",
     .kind = ARG_TEXT,
     .value = "NAME",
     .at = offsetof(struct serve_flags, engine) + offsetof(struct rd_options, model_id),
     .fallback_text = "the file's name without .gguf",
     .help = "the name that clients use"},
    {.flag = "--lora-dir",
     .kind = ARG_TEXT,
     .value = "DIR",
     .at = offsetof(struct serve_flags, lora_dir),
     .fallback_text = "none",
     .help = "adapters below it may be loaded by POST /v1/load_lora_adapter while the server runs"},
    {.flag = "--image-url-hosts",
     .kind = ARG_TEXTS,
     .value = "HOST[,HOST..]",
     .at = offsetof(struct serve_flags, image_hosts),
     .fallback_text = "none",
     .help =
         "where images may be fetched from that requests name by http: or https: URL: images.example.org, "
         "*.example.org, example.org:8443; only at addresses of the internet, but for private:HOST (docs/vision.md); "
         "may be given again"},
    {.flag = "--image-url-timeout",
     .kind = ARG_U32,
     .value = "S",
     .at = offsetof(struct serve_flags, image_from.timeout_s),
     .fallback = "20",
     .min = 1,
     .max = 600,
     .help = "seconds that fetching one image may take, redirects included; all images of a request: three times that"},
    {.flag = "--image-dir",
     .kind = ARG_TEXT,
     .value = "DIR",
     .at = offsetof(struct serve_flags, engine) + offsetof(struct rd_options, image_dir),
     .fallback_text = "none",
     .help =
         "images below it may be named by requests: file:///DIR/x.png, or the path alone; every client may see them"},
    {.flag = "--idle-unload",
     .kind = ARG_U32,
     .value = "S",
     .at = offsetof(struct serve_flags, idle_unload_s),
     .fallback = "0",
     .max = 31536000,
     .help =
         "seconds without a request after which the model's memory is given back; the next request loads it again, or "
         "another; 0: never"},
    {.flag = "--swap-wait",
     .kind = ARG_U32,
     .value = "S",
     .at = offsetof(struct serve_flags, swap_wait_s),
     .fallback = "120",
     .min = 1,
     .max = 86400,
     .help = "of several models: seconds that a request waits for its own to be loaded, then 503"},
    {.flag = "--max-models",
     .kind = ARG_U32,
     .value = "N",
     .at = offsetof(struct serve_flags, max_models),
     .fallback = "1",
     .min = 1,
     .max = 64,
     .help = "of several models: how many may be loaded at once, where --models-memory allows it; each has a "
             "--kv-bytes of its "
             "own"},
    {.flag = "--models-memory",
     .kind = ARG_BYTES,
     .value = "SIZE",
     .at = offsetof(struct serve_flags, models_memory),
     .fallback_text = "--memory-limit, else three quarters of memory",
     .help = "what loaded models may take together, their KV caches included; one is loaded in any case"},
    {.flag = "--io-threads",
     .kind = ARG_U32,
     .value = "N",
     .at = offsetof(struct serve_flags, n_io_threads),
     .fallback = "1",
     .min = 1,
     .max = 64,
     .help = "threads for HTTP; one is enough for hundreds of clients"},
    {.flag = "--client-memory",
     .kind = ARG_BYTES,
     .value = "SIZE",
     .at = offsetof(struct serve_flags, client_memory),
     .fallback_text = "256M, or a sixteenth of memory",
     .help = "for all that clients make the server hold (bodies, prompts, answers that wait, stored ones); beyond it: "
             "429"},
    {.flag = "--sse-ping",
     .kind = ARG_U32,
     .value = "S",
     .at = offsetof(struct serve_flags, sse_ping_s),
     .fallback = "5",
     .max = 3600,
     .help = "seconds of silence after which a stream sends a comment, so that a long prefill is not taken for a dead "
             "server; 0: never"},
    {.flag = "--send-timeout",
     .kind = ARG_U32,
     .value = "S",
     .at = offsetof(struct serve_flags, send_timeout_s),
     .fallback = "30",
     .min = 1,
     .max = 86400,
     .help = "seconds after which a client that reads nothing of its answer is cut and its request cancelled"},
    {.flag = "--warm",
     .kind = ARG_TEXT,
     .value = "FILE",
     .at = offsetof(struct serve_flags, warm),
     .fallback_text = "none",
     .help = "prompts to compute in advance, while the engine is idle: a JSON line each with messages (and "
             "tools) or prompt"},
    {.flag = "--shared-prefix",
     .kind = ARG_TEXT,
     .value = "FILE",
     .at = offsetof(struct serve_flags, shared),
     .fallback_text = "none",
     .help = "public prompts, lines as for --warm: computed in advance, and found by requests that begin with "
             "them "
             "under every API key and cache_salt"},
    {.flag = "--drain",
     .kind = ARG_U32,
     .value = "S",
     .at = offsetof(struct serve_flags, drain_s),
     .fallback = "30",
     .min = 1,
     .max = 86400,
     .help = "seconds that running requests have to end after SIGTERM or Ctrl-C"},
    {.flag = "--drain-wait",
     .kind = ARG_U32,
     .value = "S",
     .at = offsetof(struct serve_flags, drain_wait_s),
     .fallback = "0",
     .max = 86400,
     .help = "seconds before that, after SIGTERM, in which /health is 503 and new requests are still answered: so that "
             "whoever spreads them notices first"},
    {.flag = "--stall",
     .kind = ARG_U32,
     .value = "S",
     .at = offsetof(struct serve_flags, stall_s),
     .fallback = "120",
     .max = 86400,
     .help =
         "seconds without any progress, with requests to be computed, after which /health says unhealthy and a systemd "
         "watchdog is told nothing more; 0: never"},
    {.flag = "--memory-limit",
     .kind = ARG_BYTES,
     .value = "SIZE",
     .at = offsetof(struct serve_flags, memory_limit),
     .fallback_text = "none",
     .help = "the most that this process takes from the system, the KV cache included (mapped model files and a GPU's "
             "memory are not): beyond it requests fail, and the server goes on"},
    {.flag = "--pooling",
     .kind = ARG_TEXT,
     .value = "HOW",
     .at = offsetof(struct serve_flags, pooling),
     .fallback = "auto",
     .choices = "auto|mean|cls|last",
     .help = "embeddings: mean of all tokens, the first or the last token; auto: as the file says, else last"},
    {.flag = "--rerank",
     .kind = ARG_TEXT,
     .value = "HOW",
     .at = offsetof(struct serve_flags, rerank),
     .fallback = "auto",
     .choices = "auto|embedding|yes-no",
     .help = "score documents by the cosine of embeddings, or by how likely the model answers yes (auto: rerankers)"},
    {.flag = "--log-level",
     .kind = ARG_TEXT,
     .value = "LEVEL",
     .at = offsetof(struct serve_flags, log_level),
     .fallback = "info",
     .choices = "error|warn|info|debug",
     .help = "error, warn, info or debug; below debug no prompt text is logged without --log-prompts"},
    {.flag = "--log-prompts",
     .kind = ARG_SWITCH,
     .at = offsetof(struct serve_flags, log_prompts),
     .help = "log the body of every request that is posted, up to 1,900 bytes of it: what clients write, keys and "
             "secrets in it "
             "included"},
    {.flag = "--log-format",
     .kind = ARG_TEXT,
     .value = "FORM",
     .at = offsetof(struct serve_flags, log_format),
     .fallback = "text",
     .choices = "text|json",
     .help = "lines of the log: text, or a JSON object each with time, level and message"},
    {0}};

static const struct arg_group serve_groups[] = {
    {"Server", serve_args, 0},
    {"Requests", schedule_args, offsetof(struct serve_flags, engine)},
    {"Model and memory", context_args, offsetof(struct serve_flags, engine)},
    {"Model and memory", engine_args, offsetof(struct serve_flags, engine)},
    {"Model and memory", adapter_args, offsetof(struct serve_flags, adapters)},
    {NULL, NULL, 0}};

/* Where no terminal shows a bar, the log tells now and then how far it is. */
static void on_progress(void *user, double fraction)
{
    struct serve_flags *f = user;
    uint64_t now = clock_now_ns(clock_system());

    if (f->watch) f->watch->progress(f->watch->arg, fraction);
    if (f->bar_progress) {
        f->bar_progress(&f->bar, fraction);
        return;
    }
    if (!f->told_ns) f->told_ns = now;
    if (now - f->told_ns < PROGRESS_NS || fraction >= 1) return;
    f->told_ns = now;
    log_event(LOG_INFO, "loading", LOG_FIELDS(LOG_F_TEXT("model", f->bar.model), LOG_F_REAL("percent", fraction * 100)),
              "loading %s: %.0f %%", f->bar.model, fraction * 100);
    supervisor_notify("EXTEND_TIMEOUT_USEC=%u\nSTATUS=loading: %.0f %%", LOADING_MORE_US, fraction * 100);
}

/* With the settings that hold now; those that no model can be loaded with are given up. */
static rd_status open_engine(struct serve_flags *f, struct rd_options *o, rd_engine **out, struct rd_error *why)
{
    rd_status st;

    do {
        next_load_begin(f->next, o);
        why->text[0] = 0;
        st = rd_open(o, out, why);
    } while (st != RD_E_CANCELLED && next_load_end(f->next, st, why));
    return st;
}

static bool is_cancelled(void *user)
{
    const struct serve_flags *f = user;

    return f->watch && f->watch->cancelled(f->watch->arg);
}

/* What the command line says of a model that it names: of one that is fetched later its own files say that. */
static void forget_own(struct rd_options *o)
{
    o->mmproj = o->draft_model = o->chat_template_file = o->tool_parser = o->pre = NULL;
    o->adapters = NULL;
    o->n_adapters = 0;
}

/* On the server's loading thread. */
static rd_status load(void *user, uint32_t model, const struct server_load_watch *watch, rd_engine **out,
                      struct rd_error *err)
{
    struct serve_flags *f = user;
    struct rd_error why = {RD_OK, ""};
    char path[CLI_PATH_BYTES], packed[CLI_PATH_BYTES], kv[CLI_PATH_BYTES];
    struct rd_options o = f->engine;
    bool is_only = f->n_models == 1 && model == 0; /* it may name itself */
    rd_status st;

    if (!is_only) o.model_id = f->bar.model = serve_models_name(f->models, model);
    if (is_only) f->bar.model = f->only_name;
    if (serve_models_was_fetched(f->models, model)) forget_own(&o);
    serve_models_path(f->models, model, path);
    o.model = path;
    f->told_ns = 0;
    f->watch = watch;
    cli_packed_dir(&o, packed);
    cli_cache_dir(&o, kv);
    st = open_engine(f, &o, out, &why);
    load_bar_end(&f->bar);
    if (st == RD_E_NOMEM && f->memory_limit)
        return error_set(err, st, "%s: --memory-limit is too little for it%s%s", f->bar.model, *why.text ? ": " : "",
                         cli_without_name(path, why.text));
    if (st != RD_OK)
        return error_set(err, st, "%s: %s", f->bar.model,
                         *why.text ? cli_without_name(path, why.text) : rd_status_text(st));
    if (f->shared) st = warm_file(*out, f->shared, true, err);
    if (st == RD_OK && f->warm) st = warm_file(*out, f->warm, false, err);
    if (st != RD_OK) {
        rd_close(*out);
        *out = NULL;
    }
    return st;
}

/* Before another model is closed for this one. */
static rd_status check(void *user, uint32_t model, struct rd_error *err)
{
    return serve_models_check(((const struct serve_flags *)user)->models, model, err);
}

/* For radish ps and stop, once, at the first of its addresses; a server that they cannot see serves as well. */
static void register_server(struct serve_flags *f, const char *host, uint16_t port)
{
    const char *open = strchr(host, ':') ? "[" : "", *close = *open ? "]" : "", *path = host + 5;
    struct rd_error err = {RD_OK, ""};
    char folder[sizeof(f->entry.address)];
    size_t n = 0;

    if (f->entry.address[0]) return;
    if (strncmp(host, "unix:", 5) != 0)
        snprintf(f->entry.address, sizeof(f->entry.address), "http://%s%s%s:%u", open, host, close, port);
    else if (*path != '/' && getcwd(folder, sizeof(folder)))
        snprintf(f->entry.address, sizeof(f->entry.address), "unix:%.120s/%.120s", folder, path);
    else
        snprintf(f->entry.address, sizeof(f->entry.address), "%s", host);
    for (uint32_t i = 0; i < f->n_models; i++) {
        const char *name = serve_models_name(f->models, i);

        if (n + strlen(name) + 2 >= sizeof(f->entry.models)) break;
        n += (size_t)snprintf(f->entry.models + n, sizeof(f->entry.models) - n, "%s%s", n ? "\n" : "", name);
    }
    if (run_dir_enter(&f->entry, &f->entry_fd, &err) != RD_OK)
        log_warn("radish ps and stop will not find this server: %s", err.text);
}

/* What its file has; what is made of that is about as much. */
static uint64_t size(void *user, uint32_t model)
{
    const struct serve_flags *f = user;
    char path[CLI_PATH_BYTES];
    struct stat s;

    serve_models_path(f->models, model, path);
    return stat(path, &s) == 0 && S_ISREG(s.st_mode) ? (uint64_t)s.st_size : 0;
}

static uint64_t models_memory(const struct serve_flags *f)
{
    if (f->models_memory) return f->models_memory;
    return f->memory_limit ? f->memory_limit : sysinfo_memory() / 4 * 3;
}

static void on_listen(void *user, const char *host, uint16_t port)
{
    struct serve_flags *f = user;
    const char *open = strchr(host, ':') ? "[" : "", *close = *open ? "]" : "";
    char name[512];

    register_server(f, host, port);
    error_quote(name, sizeof(name), f->bar.model, strlen(f->bar.model));
    /* Past the buffer: that nobody can read it is no failure of a server, and stays no mark on stdout for main(). */
    if (strncmp(host, "unix:", 5) == 0)
        dprintf(STDOUT_FILENO, "radish serves %s at %s\n", name, host);
    else
        dprintf(STDOUT_FILENO, "radish serves %s at http://%s%s%s:%u/v1\n", name, open, host, close, port);
}

static enum rd_log_level level_of(const char *name)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};

    for (int i = 0; i < 4; i++)
        if (strcmp(names[i], name) == 0) return (enum rd_log_level)i;
    return RD_LOG_INFO;
}

static enum rd_pooling pooling_of(const char *name)
{
    static const struct {
        const char *name;
        enum rd_pooling pooling;
    } known[] = {{"mean", RD_POOL_MEAN}, {"cls", RD_POOL_FIRST}, {"last", RD_POOL_LAST}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].name, name) == 0) return known[i].pooling;
    return RD_POOL_MODEL;
}

/* "660" */
static bool mode_of(const char *text, uint32_t *mode)
{
    *mode = 0;
    for (const char *at = text; *at; at++) {
        if (*at < '0' || *at > '7' || at - text == 4) return false;
        *mode = *mode * 8 + (uint32_t)(*at - '0');
    }
    return *text && *mode <= 0777;
}

static bool is_folder(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static rd_status fetch_image(void *user, const char *url, const struct rd_image_sink *sink, struct rd_error *err)
{
    return hub_image_get(user, url, sink, err);
}

/* EXIT_DONE: requests may name what --image-url-hosts allows. */
static int allow_image_hosts(struct serve_flags *f)
{
    struct rd_error err = {RD_OK, ""};

    if (f->image_hosts.n == 0) return EXIT_DONE;
    if (!hub_http_is_built()) return cli_fail("--image-url-hosts: this radish was built without libcurl");
    if (fetch_hosts_init(f->image_hosts.items, f->image_hosts.n, &f->image_list, &err) != RD_OK) {
        cli_fail("--image-url-hosts: %s", err.text);
        return EXIT_USAGE;
    }
    if (!hub_http_start()) return cli_fail("--image-url-hosts: libcurl.so.4 cannot be used (Debian: libcurl4)");
    f->image_from.hosts = &f->image_list;
    f->engine.fetch_image = fetch_image;
    f->engine.fetch_user = &f->image_from;
    f->engine.fetch_ms = 3 * 1000 * f->image_from.timeout_s;
    return EXIT_DONE;
}

/* f: zeroed. */
static int serve(const struct command *self, int argc, char **argv, struct serve_flags *f)
{
    struct server_options o;
    struct rd_error err = {RD_OK, ""};
    const char *words[ARGS_MAX_WORDS];
    char draft_path[CLI_PATH_BYTES];
    int passed[LIMIT_LISTENERS];
    uint32_t n_words, n_passed = supervisor_listeners(passed);
    rd_status st;
    int rc;

    crash_install(rd_version());
    rd_options_default(&f->engine);
    rc = args_parse(self, argc, argv, f, words, &n_words);
    if (rc != ARGS_GO) return rc;
    if (f->print_config) {
        settings_print(self, &f->settings, f, words, n_words, stdout);
        return EXIT_DONE;
    }
    log_set_json(strcmp(f->log_format, "json") == 0);
    crash_set_json(log_is_json());
    if (f->api_key && !*f->api_key) { /* --api-key "$UNSET" must not mean: for everybody */
        cli_fail("--api-key: the key is empty; leave the flag out if no key is wanted");
        return EXIT_USAGE;
    }
    if (f->admin_key && !*f->admin_key) {
        cli_fail("--admin-key: the key is empty; leave the flag out if no key is wanted");
        return EXIT_USAGE;
    }
    server_options_default(&o);
    if (!mode_of(f->socket_mode, &o.socket_mode)) {
        cli_fail("--socket-mode: got \"%s\", wanted an octal number from 0 to 777", f->socket_mode);
        return EXIT_USAGE;
    }
    if (!adapter_flags_apply(&f->adapters, false, &f->engine)) return EXIT_USAGE;
    if (rd_memory_limit(f->memory_limit, &err) != RD_OK) return cli_fail("--memory-limit: %s", err.text);
    if (serve_models_create(&f->models) != RD_OK) return cli_fail("out of memory");
    if (!serve_models_find(f->models, &f->engine, words, n_words)) return EXIT_FAILED;
    f->n_models = serve_models_count(f->models);
    if (f->n_models > 1 && (f->engine.model_id || f->engine.draft_model || f->engine.mmproj))
        return cli_fail("--model-id, --draft and --mmproj are for a server with one model");
    if (!cli_find_draft(&f->engine, draft_path)) return EXIT_FAILED;
    if ((rc = allow_image_hosts(f)) != EXIT_DONE) return rc;
    if (f->engine.image_dir && !is_folder(f->engine.image_dir))
        return cli_fail("--image-dir %s: there is no such folder", f->engine.image_dir);
    if (f->lora_dir && !is_folder(f->lora_dir)) return cli_fail("--lora-dir %s: there is no such folder", f->lora_dir);
    if (f->adapters.lora.n && f->n_models > 1) {
        cli_fail("--lora: an adapter belongs to one model; with several, load it by POST /v1/load_lora_adapter "
                 "(--lora-dir)");
        return EXIT_USAGE;
    }
    if (!f->engine.model_id && !file_exists(words[0]))
        f->engine.model_id = words[0]; /* the name that it was called by */
    rd_set_log(level_of(f->log_level), NULL, NULL);
    load_bar_init(&f->bar, f->n_models > 1 ? serve_models_name(f->models, 0) : words[0], &f->engine);
    f->only_name = f->bar.model;
    f->bar_progress = f->engine.progress;
    f->engine.progress = on_progress;
    f->engine.cancelled = is_cancelled;
    f->engine.progress_user = f;

    o.host = f->has_host || f->has_port || (f->listen.n == 0 && n_passed == 0) ? f->host : NULL;
    o.port = (uint16_t)f->port;
    o.listen = f->listen.items;
    o.n_listen = f->listen.n;
    o.passed_fds = passed;
    o.n_passed_fds = n_passed;
    o.stall_s = f->stall_s;
    o.n_io_threads = f->n_io_threads;
    o.sse_ping_s = f->sse_ping_s;
    o.send_timeout_s = f->send_timeout_s;
    o.drain_s = f->drain_s;
    o.drain_wait_s = f->drain_wait_s;
    o.client_memory_bytes = f->client_memory;
    o.api_key = f->api_key;
    o.log_prompts = f->log_prompts;
    o.admin_key = f->admin_key;
    o.key_file = f->key_file;
    o.allow_origins = f->allow_origins.items;
    o.n_allow_origins = f->allow_origins.n;
    o.allow_hosts = f->allow_hosts.items;
    o.n_allow_hosts = f->allow_hosts.n;
    o.pooling = pooling_of(f->pooling);
    o.rank_by_embedding = strcmp(f->rerank, "embedding") == 0;
    o.rank_by_answer = strcmp(f->rerank, "yes-no") == 0;
    o.models = serve_models_seam(f->models);
    o.idle_unload_s = f->idle_unload_s;
    o.swap_wait_s = f->swap_wait_s;
    o.has_adapters = f->adapters.lora.n > 0;
    o.lora_dir = f->lora_dir;
    if (next_load_create(self, &f->engine, &f->settings, &f->next) != RD_OK ||
        serve_downloads_create(f->models, &f->downloads) != RD_OK)
        return cli_fail("out of memory");
    o.settings = next_load_seam(f->next);
    o.downloads = serve_downloads_seam(f->downloads);
    o.max_loaded = f->max_models;
    o.models_bytes = models_memory(f);
    o.size = size;
    o.check = check;
    o.on_listen = on_listen;
    o.on_listen_user = f;
    f->entry_fd = -1;
    st = server_run(&o, load, f, &err);
    run_dir_leave(&f->entry, f->entry_fd);
    load_bar_end(&f->bar);
    serve_downloads_destroy(f->downloads);
    next_load_destroy(f->next);
    if (st == RD_E_DEVICE && *err.text) cli_fail("serve: %s", err.text);
    if (st == RD_E_DEVICE) return EXIT_DEVICE;
    if (st == RD_E_NOMEM && f->memory_limit && !*err.text) return cli_fail("--memory-limit is too little for a server");
    if (st != RD_OK) return cli_fail("%s", *err.text ? err.text : rd_status_text(st));
    return EXIT_DONE;
}

static int run_serve(const struct command *self, int argc, char **argv)
{
    struct serve_flags f;
    int rc;

    memset(&f, 0, sizeof(f));
    rc = serve(self, argc, argv, &f);
    serve_models_destroy(f.models);
    fetch_hosts_deinit(&f.image_list);
    settings_free(&f.settings);
    adapter_flags_deinit(&f.adapters);
    return rc;
}

const struct command cmd_serve = {
    .name = "serve",
    .section = "Talk to a model",
    .summary = "OpenAI-compatible server on 127.0.0.1:8000",
    .words = "MODEL [MODEL ..]",
    .about =
        "Of several models, or a folder of them, the first is loaded; a request that names another has it loaded in "
        "beside it (--max-models), or in its place, when those that run have ended. GET /health answers 503 while the "
        "first one loads, then 200. "
        "Ctrl-C, SIGTERM, SIGQUIT or a closed terminal: no new requests, running ones may end, then out; a second "
        "time, or while the model loads: out at once. SIGHUP reads the key file again. SIGUSR1 logs a line of "
        "statistics; SIGUSR2 and SIGALRM are "
        "ignored. Exit status 70: the GPU, or the model's file, failed; start again.",
    .examples = "  radish serve smollm2\n"
                "  radish serve qwen2.5-coder-1.5b --port 9000 --kv-bytes 4G --ctx 32768\n"
                "  radish serve smollm2 org/name:Q4_K_M --idle-unload 600\n"
                "  RADISH_API_KEY=secret radish serve model.gguf --host 0.0.0.0\n",
    .groups = serve_groups,
    .min_words = 1,
    .max_words = ARGS_MAX_WORDS,
    .settings_at = offsetof(struct serve_flags, settings),
    .run = run_serve,
};
