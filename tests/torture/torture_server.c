/* tests/torture/torture_server.c - see the header. */
#include "format/gguf/gguf.h"
#include "torture_server.h"
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/file.h"
#include "model/gguf_edit.h"
#include "scenarios.h"
#include "test.h"

#define PATIENCE_NS 20000000000ull
#define SETTLE_NS   8000000000ull
#define LOOK_NS     200000

static void swallow(void *user, enum rd_log_level level, const char *line)
{
    if (getenv("TORTURE_LOG")) fprintf(stderr, "log %d: %s\n", (int)level, line);
}

/* The tiny model, with tokens for filling in the middle. */
static bool make_model(const char *path)
{
    const struct gguf_edit edits[] = {{.kind = EDIT_SET_U32, .name = "tokenizer.ggml.fim_pre_token_id", .number = 3},
                                      {.kind = EDIT_SET_U32, .name = "tokenizer.ggml.fim_suf_token_id", .number = 4},
                                      {.kind = EDIT_SET_U32, .name = "tokenizer.ggml.fim_mid_token_id", .number = 5}};
    struct model_file *g = NULL;
    struct buf bytes = {0};
    bool ok = gguf_open(test_path("tests/golden/qwen3/tiny-qwen3.gguf"), &g, NULL) == RD_OK &&
              gguf_rewrite(g, edits, 3, &bytes) == RD_OK && file_write_all(path, bytes.data, bytes.n, NULL) == RD_OK;

    buf_deinit(&bytes);
    model_file_close(g);
    return ok;
}

bool torture_init(struct torture_server *s)
{
    memset(s, 0, sizeof(*s));
    snprintf(s->dir, sizeof(s->dir), "/tmp/radish-torture-XXXXXX");
    if (!mkdtemp(s->dir)) return false;
    snprintf(s->template_file, sizeof(s->template_file), "%s/template.jinja", s->dir);
    mutex_init(&s->lock);
    cond_init(&s->changed);
    rd_set_log(RD_LOG_INFO, swallow, NULL);
    snprintf(s->model, sizeof(s->model), "%s/torture.gguf", s->dir);
    return make_model(s->model) &&
           file_write_all(s->template_file, scenario_template, strlen(scenario_template), NULL) == RD_OK;
}

void torture_deinit(struct torture_server *s)
{
    char command[96];

    snprintf(command, sizeof(command), "rm -rf %s", s->dir);
    if (system(command)) test_fail(__FILE__, __LINE__, "%s stayed", s->dir);
    cond_deinit(&s->changed);
    mutex_deinit(&s->lock);
}

void torture_options(const struct torture_server *s, struct rd_options *o)
{
    rd_options_default(o);
    o->model = s->model;
    o->device = "cpu";
    o->n_threads = 1;
    o->kv_tokens = 512;
    o->max_running = 4;
    o->max_queue = 8;
    o->max_chunk = 32;
    o->chat_template_file = s->template_file;
    o->tool_parser = "hermes";
    o->cache_dir = s->dir;
    o->cache_disk_bytes = 1 << 20;
    o->packed_dir = s->dir;
}

static rd_status load(void *user, uint32_t model, const struct server_load_watch *watch, rd_engine **out,
                      struct rd_error *err)
{
    struct torture_server *s = user;
    struct rd_options o;
    rd_status st;

    torture_options(s, &o);
    st = rd_open(&o, out, err);
    mutex_lock(&s->lock);
    s->engine = st == RD_OK ? *out : NULL;
    cond_broadcast(&s->changed);
    mutex_unlock(&s->lock);
    return st;
}

static void on_listen(void *user, const char *host, uint16_t port)
{
    ((struct torture_server *)user)->port = port;
}

static void serve(void *arg)
{
    struct torture_server *s = arg;
    struct server_options o;

    server_options_default(&o);
    o.port = 0;
    o.drain_s = 1;
    o.send_timeout_s = 2;
    o.on_listen = on_listen;
    o.on_listen_user = s;
    s->err = (struct rd_error){RD_OK, ""};
    s->status = server_run(&o, load, s, &s->err);
    mutex_lock(&s->lock);
    s->ended = true;
    s->engine = NULL;
    cond_broadcast(&s->changed);
    mutex_unlock(&s->lock);
}

bool torture_start(struct torture_server *s)
{
    uint64_t end = clock_now_ns(clock_system()) + PATIENCE_NS;
    bool ready;

    s->ended = false;
    s->engine = NULL;
    if (thread_start(&s->thread, "serve", serve, s) != RD_OK) return false;
    mutex_lock(&s->lock);
    while (!s->engine && !s->ended && clock_now_ns(clock_system()) < end)
        cond_wait_ns(&s->changed, &s->lock, 100000000);
    ready = s->engine && !s->ended;
    mutex_unlock(&s->lock);
    if (s->ended) thread_join(&s->thread);
    return ready;
}

bool torture_has_ended(struct torture_server *s)
{
    bool ended;

    mutex_lock(&s->lock);
    ended = s->ended;
    mutex_unlock(&s->lock);
    if (ended) thread_join(&s->thread);
    return ended;
}

bool torture_stop(struct torture_server *s)
{
    uint64_t end = clock_now_ns(clock_system()) + PATIENCE_NS;

    kill(getpid(), SIGTERM);
    mutex_lock(&s->lock);
    while (!s->ended && clock_now_ns(clock_system()) < end) cond_wait_ns(&s->changed, &s->lock, 100000000);
    mutex_unlock(&s->lock);
    if (s->ended) thread_join(&s->thread);
    return s->ended;
}

static const char *unsettled(struct torture_server *s)
{
    struct rd_stats t = {.size = sizeof(t)};

    rd_get_stats(s->engine, &t);
    if (t.n_preparing + t.n_queued + t.n_waiting + t.n_prefill + t.n_decode) return "requests still run";
    if (t.pages_pending) return "pages are pending";
    if (t.pages_locked) return "pages are locked";
    if (t.pages_total != t.pages_free + t.pages_ready + t.pages_quarantined) return "pages do not add up";
    if (t.accounting_errors) return "accounting errors";
    if (t.device_dead) return "the device is dead";
    return NULL;
}

bool torture_is_settled(struct torture_server *s, const char **why)
{
    uint64_t end = clock_now_ns(clock_system()) + SETTLE_NS;

    while ((*why = unsettled(s)) && clock_now_ns(clock_system()) < end) clock_sleep_ns(LOOK_NS);
    return !*why;
}

unsigned torture_n_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}
