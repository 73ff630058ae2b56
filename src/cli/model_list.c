/* cli/model_list.c - see model_list.h. */
#include "cli/model_list.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/limits.h"
#include "base/mem.h"
#include "hub/hub_contents.h"
#include "hub/hub_listing.h"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);

    return n > k && !strcmp(s + n - k, end);
}

/* Adds the size of a regular file; false: none. */
static bool add_size(const char *folder, const char *name, uint64_t *n_bytes)
{
    char path[LIMIT_PATH_BYTES];
    struct stat s;

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path)) return false;
    if (stat(path, &s) != 0 || !S_ISREG(s.st_mode)) return false;
    *n_bytes += (uint64_t)s.st_size;
    return true;
}

static bool read_dir(const char *folder, const char *name, struct model_entry *e)
{
    char path[LIMIT_PATH_BYTES];
    struct dirent *entry;
    uint64_t unused = 0;
    bool has_weights = false;
    DIR *dir;

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path)) return false;
    if (!add_size(path, "config.json", &unused)) return false;
    dir = opendir(path);
    if (!dir) return false;
    e->is_dir = true;
    while ((entry = readdir(dir)))
        if (ends_with(entry->d_name, ".safetensors")) has_weights |= add_size(path, entry->d_name, &e->n_bytes);
    closedir(dir);
    return has_weights;
}

/* NAME-00001-of-00003.gguf: its number and their count; false: the name of a whole model. */
static bool is_part(const char *name, unsigned *number, unsigned *count)
{
    const char form[] = "-00000-of-00000.gguf";
    size_t n = strlen(name), k = sizeof(form) - 1;
    const char *end;

    if (n <= k) return false;
    end = name + n - k;
    for (size_t i = 0; i < k; i++)
        if (form[i] == '0' ? end[i] < '0' || end[i] > '9' : end[i] != form[i]) return false;
    *number = (unsigned)strtoul(end + 1, NULL, 10);
    *count = (unsigned)strtoul(end + sizeof("-00000-of-") - 1, NULL, 10);
    return true;
}

/* The other parts of a split model, of which `first` is the first; those that are missing count nothing. */
static void add_parts(const char *folder, const char *first, unsigned count, uint64_t *n_bytes)
{
    char name[LIMIT_PATH_BYTES];
    size_t n = strlen(first) - (sizeof("-00000-of-00000.gguf") - 1);

    for (unsigned no = 2; no <= count && no <= LIMIT_SHARDS; no++) {
        snprintf(name, sizeof(name), "%.*s-%05u-of-%05u.gguf", (int)n, first, no, count);
        (void)add_size(folder, name, n_bytes);
    }
}

static bool read_entry(const char *folder, const char *name, struct model_entry *e)
{
    unsigned number, count;

    ssize_t n_target;

    *e = (struct model_entry){.n_bytes = 0};
    if (name[0] == '.' || strlen(name) >= sizeof(e->name)) return false;
    if (snprintf(e->path, sizeof(e->path), "%s/%s", folder, name) >= (int)sizeof(e->path)) return false;
    n_target = readlink(e->path, e->target, sizeof(e->target) - 1);
    e->target[n_target > 0 ? n_target : 0] = 0;
    snprintf(e->name, sizeof(e->name), "%s", name);
    if (!ends_with(name, ".gguf")) return read_dir(folder, name, e);
    e->name[strlen(name) - 5] = 0;
    if (!is_part(name, &number, &count)) return add_size(folder, name, &e->n_bytes);
    if (number != 1 || !add_size(folder, name, &e->n_bytes)) return false; /* its first part stands for all */
    add_parts(folder, name, count, &e->n_bytes);
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct model_entry *)a)->name, ((const struct model_entry *)b)->name);
}

struct listing {
    struct model_entry *list;
    size_t n, cap;
};

static bool add(struct listing *l, const struct model_entry *e)
{
    if (!mem_grow((void **)&l->list, &l->cap, l->n + 1, sizeof(*e))) return false;
    l->list[l->n++] = *e;
    return true;
}

static bool list_folder(const char *folder, struct listing *l)
{
    DIR *dir = opendir(folder);
    struct model_entry *e = mem_alloc(1, sizeof(*e));
    struct dirent *entry;
    bool ok = e;

    while (dir && ok && (entry = readdir(dir)))
        if (read_entry(folder, entry->d_name, e)) ok = add(l, e);
    if (dir) closedir(dir);
    mem_free(e);
    if (ok && l->n) qsort(l->list, l->n, sizeof(*l->list), by_name);
    return ok;
}

static bool give(struct listing *l, bool ok, struct model_entry **list, size_t *n)
{
    if (!ok) mem_free(l->list);
    *list = ok ? l->list : NULL;
    *n = ok ? l->n : 0;
    return ok;
}

bool model_list(const char *folder, struct model_entry **list, size_t *n)
{
    struct listing l = {NULL, 0, 0};

    return give(&l, list_folder(folder, &l), list, n);
}

bool model_list_dangling(const char *folder, struct model_entry **list, size_t *n)
{
    struct listing l = {NULL, 0, 0};
    DIR *dir = opendir(folder);
    struct model_entry *e = mem_alloc(1, sizeof(*e));
    struct dirent *entry;
    bool ok = e;

    while (dir && ok && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.') continue;
        (void)read_entry(folder, entry->d_name, e);
        if (*e->target && access(e->path, F_OK) != 0) ok = add(&l, e);
    }
    if (dir) closedir(dir);
    mem_free(e);
    return give(&l, ok, list, n);
}

bool model_part(const struct model_entry *e, unsigned number, char path[LIMIT_PATH_BYTES])
{
    const char *slash = strrchr(e->path, '/'), *name = slash ? slash + 1 : e->path;
    unsigned first, count = 1;
    size_t n = strlen(e->path);
    bool is_split = is_part(name, &first, &count) && first == 1;

    if (!number || number > (is_split ? count : 1) || number > LIMIT_SHARDS) return false;
    memcpy(path, e->path, n + 1);
    if (is_split) snprintf(path + n - (sizeof("00001-of-00000.gguf") - 1), 6, "%05u", number % 100000);
    if (is_split) path[n - (sizeof("-of-00000.gguf") - 1)] = '-';
    return true;
}

/* ---- the cache of the hub ---- */

static bool is_only_one(const struct hub_listing *m, const char *label)
{
    uint32_t n = 0;

    for (size_t i = 0; i < m->n_variants; i++) n += m->variants[i].is_whole && !strcmp(m->variants[i].label, label);
    return n == 1;
}

/* "ORG/NAME" or "ORG/NAME@REVISION"; a slash in a revision would begin a file: its commit then. */
static void put_repo(char *out, size_t cap, const char *repo, const struct hub_revision *v)
{
    if (!strcmp(v->name, "main"))
        snprintf(out, cap, "%s", repo);
    else
        snprintf(out, cap, "%s@%s", repo, strpbrk(v->name, "/:") ? v->commit : v->name);
}

static bool add_variant(struct listing *l, const struct hub_repo *r, const char *repo, const struct hub_listing *m,
                        const struct hub_variant *v, struct model_entry *e)
{
    size_t n = strlen(repo);
    const char *path = m->files[v->first].path;

    *e = (struct model_entry){.is_pulled = true, .n_bytes = v->n_bytes};
    if (!v->is_whole || hub_repo_path(r, m->commit, path, e->path, NULL) != RD_OK) return true;
    snprintf(e->name, sizeof(e->name), "%s", repo);
    if (v->label[0] && is_only_one(m, v->label))
        snprintf(e->name + n, sizeof(e->name) - n, ":%s", v->label);
    else
        snprintf(e->name + n, sizeof(e->name) - n, "/%s", path);
    return add(l, e);
}

/* A model as published. */
static bool add_directory(struct listing *l, const struct hub_repo *r, const char *repo, const struct hub_listing *m,
                          struct model_entry *e)
{
    bool has_config = false;

    *e = (struct model_entry){.is_pulled = true, .is_dir = true};
    for (size_t i = 0; i < m->n_files; i++) {
        has_config |= !strcmp(m->files[i].path, "config.json");
        if (ends_with(m->files[i].path, ".safetensors") && !strchr(m->files[i].path, '/'))
            e->n_bytes += m->files[i].n_bytes;
    }
    if (!has_config || !e->n_bytes || hub_repo_path(r, m->commit, "", e->path, NULL) != RD_OK) return true;
    snprintf(e->name, sizeof(e->name), "%s", repo);
    return add(l, e);
}

static bool list_revision(struct listing *l, const struct hub_repo *r, const char *repo, const struct hub_revision *v,
                          struct model_entry *e)
{
    char name[HUB_REPO_BYTES + HUB_REVISION_BYTES];
    struct hub_listing m = {.n_files = 0};
    rd_status st = hub_listing_read(r, v->commit, &m, NULL);
    bool ok = st != RD_E_NOMEM;

    put_repo(name, sizeof(name), repo, v);
    for (size_t i = 0; i < m.n_variants && st == RD_OK && ok; i++) ok = add_variant(l, r, name, &m, m.variants + i, e);
    if (!m.n_variants && st == RD_OK) ok = add_directory(l, r, name, &m, e);
    hub_listing_deinit(&m);
    return ok;
}

static bool list_repo(struct listing *l, const char *repo, struct model_entry *e)
{
    struct hub_revision *revisions = NULL;
    struct hub_repo r;
    size_t n = 0;
    bool ok = true;

    if (hub_repo_open(repo, false, &r, NULL) != RD_OK) return true;
    ok = hub_repo_revisions(&r, &revisions, &n, NULL) != RD_E_NOMEM;
    for (size_t i = 0; i < n && ok; i++) ok = list_revision(l, &r, repo, revisions + i, e);
    mem_free(revisions);
    hub_repo_close(&r);
    return ok;
}

bool model_list_all(const char *folder, struct model_entry **list, size_t *n)
{
    struct listing l = {NULL, 0, 0};
    struct hub_repo_name *repos = NULL;
    struct model_entry *e = mem_alloc(1, sizeof(*e));
    size_t n_repos = 0;
    bool ok = e && list_folder(folder, &l) && hub_cache_repos(&repos, &n_repos, NULL) != RD_E_NOMEM;

    for (size_t i = 0; i < n_repos && ok; i++) ok = list_repo(&l, repos[i].text, e);
    mem_free(repos);
    mem_free(e);
    return give(&l, ok, list, n);
}
