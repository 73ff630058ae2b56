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

    *e = (struct model_entry){.n_bytes = 0};
    if (name[0] == '.' || strlen(name) >= sizeof(e->name)) return false;
    snprintf(e->name, sizeof(e->name), "%s", name);
    if (!ends_with(name, ".gguf")) return read_dir(folder, name, e);
    e->name[strlen(name) - 5] = 0;
    if (!is_part(name, &number, &count)) return add_size(folder, name, &e->n_bytes);
    if (number != 1 || !add_size(folder, name, &e->n_bytes)) return false;  /* its first part stands for all */
    add_parts(folder, name, count, &e->n_bytes);
    return true;
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
