/* format/gguf/gguf_split.c - a model in several GGUF files, as llama.cpp's gguf-split writes them:
 *
 *     NAME-00001-of-00003.gguf   all metadata, split.count 3, split.no 0, and perhaps tensors
 *     NAME-00002-of-00003.gguf   split.count 3, split.no 1, more tensors; ...
 *
 * The first is opened; the others lie beside it. Their tensors join its table, their maps stay theirs.
 */
#include <stdio.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "format/gguf/gguf_inside.h"

#define SUFFIX_BYTES 40

static void put_suffix(char suffix[SUFFIX_BYTES], uint64_t number, uint64_t count)
{
    snprintf(suffix, SUFFIX_BYTES, "-%05u-of-%05u.gguf", (unsigned)number, (unsigned)count);
}

/* A part's split.no and split.count are those that its name says. */
static rd_status check_part(const struct model_file *part, uint32_t no, uint64_t count, struct rd_error *err)
{
    uint64_t found_no = UINT64_MAX, found_count = 0;
    rd_status st = model_file_u64(part, "split.no", 0, UINT32_MAX, &found_no, err);

    if (st == RD_OK) st = model_file_u64(part, "split.count", 0, UINT32_MAX, &found_count, err);
    if (st == RD_E_NOT_FOUND) return error_set(err, RD_E_FORMAT, "is no part of a split model");
    if (st != RD_OK || (found_no == no && found_count == count)) return st;
    return error_set(err, RD_E_FORMAT, "is part %llu of %llu by its metadata, expected %u of %llu",
                     (unsigned long long)found_no + 1, (unsigned long long)found_count, no + 1,
                     (unsigned long long)count);
}

static rd_status join_tensors(struct model_file *g, const struct model_file *part, struct rd_error *err)
{
    uint64_t n = g->n_tensors + part->n_tensors;

    if (n > LIMIT_GGUF_TENSORS) return error_set(err, RD_E_LIMIT, "more than %u tensors", LIMIT_GGUF_TENSORS);
    if (part->n_tensors == 0) return RD_OK;
    if (!mem_grow((void **)&g->tensors, &g->cap_tensors, n, sizeof(*g->tensors)))
        return error_set(err, RD_E_NOMEM, "out of memory for the tensor table");
    memcpy(g->tensors + g->n_tensors, part->tensors, part->n_tensors * sizeof(*g->tensors));
    g->n_tensors = n;
    return RD_OK;
}

/* first: the first file's path, which ends in its suffix of n_suffix bytes. Errors begin with the part's name. */
static rd_status open_part(struct model_file *g, const char *first, size_t n_suffix, uint32_t no, uint64_t count,
                           struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES], suffix[SUFFIX_BYTES];
    struct gguf_maps *own = g->own;
    const char *name;
    struct rd_error why = {RD_OK, ""};
    rd_status st;

    put_suffix(suffix, no + 1, count);
    snprintf(path, sizeof(path), "%.*s%s", (int)(strlen(first) - n_suffix), first, suffix);
    name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (!file_exists(path))
        return error_set(err, RD_E_NOT_FOUND, "%s is missing: the model is split into %llu files", name,
                         (unsigned long long)count);
    st = gguf_open_one(path, &own->parts[own->n_parts], &why);
    if (st == RD_OK) st = check_part(own->parts[own->n_parts++], no, count, &why);
    if (st == RD_OK) st = join_tensors(g, own->parts[own->n_parts - 1], &why);
    return st == RD_OK ? st : error_set(err, st, "%s: %s", name, why.text);
}

static rd_status check_first(const struct model_file *g, const char *path, uint64_t count, char suffix[SUFFIX_BYTES],
                             struct rd_error *err)
{
    uint64_t no = 0;
    size_t n_path = strlen(path), n;
    rd_status st = model_file_u64(g, "split.no", 0, count - 1, &no, err);

    put_suffix(suffix, 1, count);
    if (st != RD_OK && st != RD_E_NOT_FOUND) return st;
    if (no != 0)
        return error_set(err, RD_E_INVALID,
                         "is part %llu of %llu of a split model, open the first: its name ends in %s",
                         (unsigned long long)no + 1, (unsigned long long)count, suffix);
    n = strlen(suffix);
    if (n_path <= n || n_path >= LIMIT_PATH_BYTES || memcmp(path + n_path - n, suffix, n) != 0)
        return error_set(err, RD_E_INVALID,
                         "is part 1 of %llu of a split model; the others are found by its name, "
                         "which must end in %s",
                         (unsigned long long)count, suffix);
    return RD_OK;
}

rd_status gguf_open_parts(struct model_file *g, const char *path, struct rd_error *err)
{
    struct gguf_maps *own = g->own;
    uint64_t count = 0, n_tensors;
    char suffix[SUFFIX_BYTES];
    rd_status st = model_file_u64(g, "split.count", 0, LIMIT_SHARDS, &count, err);

    if (st == RD_E_NOT_FOUND || (st == RD_OK && count < 2)) return RD_OK;
    if (st == RD_OK) st = check_first(g, path, count, suffix, err);
    if (st != RD_OK) return st;
    own->parts = mem_zalloc(count, sizeof(*own->parts));
    if (!own->parts) return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t no = 1; st == RD_OK && no < count; no++) st = open_part(g, path, strlen(suffix), no, count, err);
    if (st != RD_OK) return st;
    n_tensors = g->n_tensors;
    st = model_file_u64(g, "split.tensors.count", 0, UINT32_MAX, &n_tensors, err);
    if (st != RD_OK && st != RD_E_NOT_FOUND) return st;
    if (n_tensors != g->n_tensors)
        return error_set(err, RD_E_FORMAT, "the %llu files have %llu tensors, split.tensors.count says %llu",
                         (unsigned long long)count, (unsigned long long)g->n_tensors, (unsigned long long)n_tensors);
    for (uint32_t i = 0; i < own->n_parts; i++) g->n_bytes += own->parts[i]->n_bytes;
    mem_free(g->tensors_by_name);
    g->tensors_by_name = NULL;
    return model_file_index_names(g, err);
}
