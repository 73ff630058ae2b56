/* api/api_eyes.c - the encoder's file of an engine (--mmproj, or found beside the model's), and how pictures are processed.
 *
 *     a directory           sees by itself; --mmproj replaces that
 *     --mmproj FILE         must fit the text model, or nothing is opened
 *     MODEL.gguf            beside it *mmproj*.gguf, of those that fit the text model the only one: several, and images are not
 *                           taken, which the log says and requests with images are told
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "api/api_state.h"
#include "base/cache_dir.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/model.h"

/* Those beside a model's file. */
struct search {
    const char *model, *arch;
    uint32_t hidden;
    char folder[LIMIT_PATH_BYTES];
    struct model_file *file; /* the first that fits */
    char path[LIMIT_PATH_BYTES];
    char names[200]; /* of all that fit, "a, b" */
    uint32_t n;
    bool out_of_memory;
};

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static bool is_mmproj(const char *name)
{
    const size_t n = strlen(name);

    return name[0] != '.' && n > 5 && strcasecmp(name + n - 5, ".gguf") == 0 && strcasestr(name, "mmproj");
}

/* A file that cannot be opened, or is another model's, is none of ours: it was not asked for. */
static void consider(struct search *s, const char *path)
{
    struct rd_error why = {RD_OK, ""};
    struct model_file *g = NULL;
    rd_status st = model_file_open(path, model_hub_families(), &g, &why);

    if (st == RD_OK) st = vision_file_fits(g, s->arch, s->hidden, &why);
    if (st == RD_E_NOMEM) s->out_of_memory = true;
    if (st != RD_OK) {
        log_debug("%s is not this model's: %s", last_part(path), why.text);
        model_file_close(g);
        return;
    }
    s->n++;
    snprintf(s->names + strlen(s->names), sizeof(s->names) - strlen(s->names), "%s%s", s->n > 1 ? ", " : "",
             last_part(path));
    if (s->file) {
        model_file_close(g);
    } else {
        s->file = g;
        snprintf(s->path, sizeof(s->path), "%s", path);
    }
}

static bool look_at(void *arg, const char *name)
{
    struct search *s = arg;
    char path[LIMIT_PATH_BYTES];

    if (is_mmproj(name) && strcmp(name, last_part(s->model)) != 0 &&
        snprintf(path, sizeof(path), "%s/%s", s->folder, name) < (int)sizeof(path))
        consider(s, path);
    return true;
}

static void search_folder(struct search *s)
{
    const int n = (int)(last_part(s->model) - s->model);

    if (n >= (int)sizeof(s->folder)) return;
    snprintf(s->folder, sizeof(s->folder), "%.*s", n ? n : 1, n ? s->model : ".");
    (void)cache_dir_list(s->folder, look_at, s); /* a folder that cannot be read has nothing for us */
}

static rd_status find_beside(rd_engine *e, const char *model, struct rd_error *err)
{
    struct search *s = mem_zalloc(1, sizeof(*s));

    if (!s) return error_set(err, RD_E_NOMEM, "out of memory");
    s->model = model;
    s->arch = e->info.arch;
    s->hidden = e->info.hidden;
    search_folder(s);
    if (s->out_of_memory) {
        model_file_close(s->file);
        mem_free(s);
        return error_set(err, RD_E_NOMEM, "out of memory for an encoder's file");
    }
    if (s->n == 1) {
        e->eyes = s->file;
        log_info("images: %s", s->path);
    } else {
        model_file_close(s->file);
    }
    if (s->n > 1) {
        snprintf(e->blind, sizeof(e->blind),
                 "several files beside the model could be its encoder (%s): --mmproj says which", s->names);
        log_warn("images are not taken: %s", e->blind);
    }
    mem_free(s);
    return RD_OK;
}

rd_status api_eyes_find(rd_engine *e, const struct rd_options *o, struct rd_error *err)
{
    struct rd_error why = {RD_OK, ""};
    rd_status st;

    if (!o->mmproj) {
        if (model_file_vision(e->gguf) || model_file_text(e->gguf) || !*e->info.arch) return RD_OK; /* a directory */
        return find_beside(e, o->model, err);
    }
    st = model_file_open(o->mmproj, model_hub_families(), &e->eyes, &why);
    if (st == RD_OK) st = vision_file_fits(e->eyes, e->info.arch, e->info.hidden, &why);
    if (st == RD_OK) return st;
    return error_set(err, st, "--mmproj %s, with %s: %s", last_part(o->mmproj), last_part(o->model), why.text);
}

rd_status api_eyes_open(rd_engine *e, const struct rd_options *o, struct rd_error *err)
{
    const struct vision_traits *v = e->executor->vision;
    const struct model_file *g = e->eyes ? e->eyes : model_file_vision(e->gguf);
    struct rd_error why = {RD_OK, ""};
    rd_status st;

    if (!v) {
        if (o->mmproj && !*e->blind) snprintf(e->blind, sizeof(e->blind), "%s computes no images", e->info.backend);
        return RD_OK;
    }
    st = image_processor_open(o->model, g, v->max_rows, &e->processor, &why);
    if (st == RD_OK) {
        e->processor.pan_scan.is_on |= o->image_pan_and_scan;
        e->sees = true;
        return st;
    }
    if (st == RD_E_NOMEM || o->mmproj)
        return error_set(err, st, "%s: %s", last_part(o->mmproj ? o->mmproj : o->model), why.text);
    snprintf(e->blind, sizeof(e->blind), "%.300s", why.text);
    log_warn("images are not taken: %s", e->blind);
    return RD_OK;
}

/* A pointer head is of use where the vocabulary has the words that stand around it. */
static void find_pointer(rd_engine *e)
{
    static const char *const words[] = {"<|pointer_start|>", "<|pointer_pad|>", "<|pointer_end|>"};
    int32_t ids[3];
    bool all = true;

    for (size_t i = 0; i < 3; i++) all &= (ids[i] = tokenizer_find(e->tokenizer, words[i], strlen(words[i]))) >= 0;
    e->pointer = (struct pointer_tokens){all, ids[0], ids[1], ids[2]};
    if (!all)
        log_warn("the model's pointer is not used: its vocabulary lacks one of <|pointer_start|>, .._pad and .._end");
}

void api_eyes_check(rd_engine *e)
{
    const char *missing = e->sees ? api_images_missing(e) : NULL;

    if (e->sees && !missing && e->executor->point_begin) find_pointer(e);
    if (!missing) return;
    e->sees = false;
    snprintf(e->blind, sizeof(e->blind), "%s", missing);
    log_warn("images are not taken: %s", e->blind);
}

void api_eyes_close(rd_engine *e)
{
    model_file_close(e->eyes);
    e->eyes = NULL;
}
