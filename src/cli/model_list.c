/* cli/model_list.c - see model_list.h. */
#include "cli/model_list.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/limits.h"
#include "base/mem.h"

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

static bool read_entry(const char *folder, const char *name, struct model_entry *e)
{
    *e = (struct model_entry){.n_bytes = 0};
    if (name[0] == '.' || strlen(name) >= sizeof(e->name)) return false;
    snprintf(e->name, sizeof(e->name), "%s", name);
    if (!ends_with(name, ".gguf")) return read_dir(folder, name, e);
    e->name[strlen(name) - 5] = 0;
    return add_size(folder, name, &e->n_bytes);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct model_entry *)a)->name, ((const struct model_entry *)b)->name);
}

bool model_list(const char *folder, struct model_entry **list, size_t *n)
{
    DIR *dir = opendir(folder);
    struct model_entry *found = NULL, e;
    struct dirent *entry;
    size_t cap = 0;
    bool ok = true;

    *list = NULL;
    *n = 0;
    while (dir && ok && (entry = readdir(dir))) {
        if (!read_entry(folder, entry->d_name, &e)) continue;
        ok = mem_grow((void **)&found, &cap, *n + 1, sizeof(*found));
        if (ok) found[(*n)++] = e;
    }
    if (dir) closedir(dir);
    if (!ok) {
        mem_free(found);
        *n = 0;
        return false;
    }
    if (*n) qsort(found, *n, sizeof(*found), by_name);
    *list = found;
    return true;
}
