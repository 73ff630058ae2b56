/* cli/serve_models.c - see serve_models.h. */
#include "cli/serve_models.h"
#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/error.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/thread.h"

struct entry {
    char *name, *path; /* path: guarded by lock once the server runs */
};

struct serve_models {
    struct mutex lock;
    struct entry *list[LIMIT_SERVED_MODELS]; /* [n]: they stay where they are */
    atomic_uint n;                           /* whoever adds counts (release), any thread reads (acquire) */
    uint32_t n_first;                        /* named at the start */
    bool by_us;                              /* no other program computes them, which may know more kinds of model */
};

rd_status serve_models_create(struct serve_models **out)
{
    struct serve_models *m = mem_zalloc(1, sizeof(*m));

    if (!m) return RD_E_NOMEM;
    mutex_init(&m->lock);
    *out = m;
    return RD_OK;
}

static void free_entry(struct entry *e)
{
    if (e) mem_free(e->name);
    if (e) mem_free(e->path);
    mem_free(e);
}

void serve_models_destroy(struct serve_models *m)
{
    if (!m) return;
    for (uint32_t i = 0; i < serve_models_count(m); i++) free_entry(m->list[i]);
    mutex_deinit(&m->lock);
    mem_free(m);
}

uint32_t serve_models_count(const struct serve_models *m)
{
    return atomic_load_explicit(&m->n, memory_order_acquire);
}

const char *serve_models_name(const struct serve_models *m, uint32_t model)
{
    return m->list[model]->name;
}

void serve_models_path(struct serve_models *m, uint32_t model, char path[CLI_PATH_BYTES])
{
    mutex_lock(&m->lock);
    snprintf(path, CLI_PATH_BYTES, "%s", m->list[model]->path);
    mutex_unlock(&m->lock);
}

bool serve_models_was_fetched(const struct serve_models *m, uint32_t model)
{
    return model >= m->n_first;
}

static rd_status add(struct serve_models *m, const char *name, size_t n_name, const char *path, struct rd_error *err)
{
    uint32_t n = serve_models_count(m);
    struct entry *e;

    if (n == LIMIT_SERVED_MODELS) return error_set(err, RD_E_FULL, "a server has at most %u models", n);
    if (n_name >= sizeof(((struct rd_info *)0)->model_id))
        return error_set(err, RD_E_INVALID, "%.300s: the name is too long", name);
    e = mem_zalloc(1, sizeof(*e));
    if (e) e->name = mem_memdup(name, n_name);
    if (e) e->path = mem_strdup(path);
    if (!e || !e->name || !e->path) {
        free_entry(e);
        return error_set(err, RD_E_NOMEM, "out of memory");
    }
    m->list[n] = e;
    atomic_store_explicit(&m->n, n + 1, memory_order_release);
    return RD_OK;
}

/* ---- the command line ---- */

static bool add_named(struct serve_models *m, const char *name, const char *path)
{
    size_t n = strlen(name);
    struct rd_error err = {RD_OK, ""};

    if (n > 5 && strcmp(name + n - 5, ".gguf") == 0) n -= 5;
    for (uint32_t i = 0; i < serve_models_count(m); i++)
        if (strlen(m->list[i]->name) == n && memcmp(m->list[i]->name, name, n) == 0)
            return cli_fail("two models are called %.*s: clients could not tell them apart", (int)n, name), false;
    if (add(m, name, n, path, &err) != RD_OK) return cli_fail("%s", err.text), false;
    return true;
}

/* Of a folder of models every one. */
static bool add_folder(struct serve_models *m, const char *folder)
{
    struct model_entry *list;
    size_t n;
    bool ok = true;

    if (!model_list(folder, &list, &n)) return cli_fail("out of memory"), false;
    if (n == 0) ok = (cli_fail("%s: a folder without models", folder), false);
    for (size_t i = 0; i < n && ok; i++) ok = add_named(m, list[i].name, list[i].path);
    mem_free(list);
    return ok;
}

static bool is_folder_of_models(const char *path)
{
    char config[CLI_PATH_BYTES];
    struct stat s;

    snprintf(config, sizeof(config), "%.4000s/config.json", path);
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode) && !file_exists(config);
}

/* --model-id */
static bool rename_only(struct serve_models *m, const char *name)
{
    char *own = mem_strdup(name);

    if (!own) return cli_fail("out of memory"), false;
    mem_free(m->list[0]->name);
    m->list[0]->name = own;
    return true;
}

bool serve_models_find(struct serve_models *m, const struct rd_options *o, const char *const *words, uint32_t n_words)
{
    char path[CLI_PATH_BYTES];

    m->by_us = !o->device || strncmp(o->device, "process:", 8) != 0;
    for (uint32_t i = 0; i < n_words; i++) {
        const char *slash = strrchr(words[i], '/');

        if (is_folder_of_models(words[i])) {
            if (!add_folder(m, words[i])) return false;
            continue;
        }
        if (!cli_find_model_for(o, words[i], path)) return false;
        if (!add_named(m, slash && file_exists(words[i]) ? slash + 1 : words[i], path)) return false;
    }
    m->n_first = serve_models_count(m);
    return m->n_first != 1 || !o->model_id || rename_only(m, o->model_id);
}

/* ---- while the server runs ---- */

static rd_status check_path(const char *path, bool by_us, struct rd_error *err)
{
    char *text = NULL;
    rd_status st = rd_inspect(path, true, &text, err);
    json_t *root = st == RD_OK ? json_read_text(text, 0, NULL) : NULL;
    const char *why = json_string_value(json_object_get(json_object_get(root, "run"), "error"));

    if (st == RD_OK && !root) st = error_set(err, RD_E_NOMEM, "out of memory");
    if (why && by_us) st = error_set(err, RD_E_UNSUPPORTED, "%s", *why ? why : rd_status_text(RD_E_UNSUPPORTED));
    json_decref(root);
    rd_free(text);
    return st;
}

rd_status serve_models_check(struct serve_models *m, uint32_t model, struct rd_error *err)
{
    char path[CLI_PATH_BYTES];

    serve_models_path(m, model, path);
    return check_path(path, m->by_us, err);
}

/* As `radish list` calls it. */
static rd_status find_name(const char *path, char name[MODEL_NAME_BYTES], struct rd_error *err)
{
    struct model_entry *list;
    size_t n, i = 0;

    if (!model_list_all("", &list, &n)) return error_set(err, RD_E_NOMEM, "out of memory");
    while (i < n && strcmp(list[i].path, path) != 0) i++;
    if (i < n) snprintf(name, MODEL_NAME_BYTES, "%s", list[i].name);
    mem_free(list);
    return i < n ? RD_OK : error_set(err, RD_E_NOT_FOUND, "it is not in the cache of the hub any more");
}

/* The place of a model that is known; the count: it is new. Its path: what the next load takes. */
static uint32_t find_known(const struct serve_models *m, const char *path, const char *name)
{
    uint32_t n = serve_models_count(m), i = 0;

    while (i < n && strcmp(m->list[i]->path, path) != 0) i++;
    if (i < n) return i;
    for (i = 0; i < n && strcmp(m->list[i]->name, name) != 0;) i++;
    return i;
}

rd_status serve_models_fetched(struct serve_models *m, const char *path, char name[MODEL_NAME_BYTES],
                               struct rd_error *err)
{
    char *own;
    rd_status st = find_name(path, name, err);
    uint32_t i;

    if (st == RD_OK) st = check_path(path, m->by_us, err);
    if (st != RD_OK) return st;
    i = find_known(m, path, name); /* only this thread changes a path */
    if (i == serve_models_count(m)) return add(m, name, strlen(name), path, err);
    snprintf(name, MODEL_NAME_BYTES, "%s", m->list[i]->name);
    if (strcmp(m->list[i]->path, path) == 0) return RD_OK;
    own = mem_strdup(path);
    if (!own) return error_set(err, RD_E_NOMEM, "out of memory");
    mutex_lock(&m->lock);
    mem_free(m->list[i]->path);
    m->list[i]->path = own;
    mutex_unlock(&m->lock);
    return RD_OK;
}

/* ---- for the server ---- */

static uint32_t seam_count(void *user)
{
    return serve_models_count(user);
}

static const char *seam_name(void *user, uint32_t model)
{
    const struct serve_models *m = user;

    return m->n_first == 1 && model == 0 ? "" : serve_models_name(m, model);
}

struct server_models serve_models_seam(struct serve_models *m)
{
    return (struct server_models){m, seam_count, seam_name};
}
