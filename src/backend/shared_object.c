/* backend/shared_object.c - loads and checks shared objects, and says backend.h's calls in the words of radish/backend.h. */
#include "backend/shared_object.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os_file.h"
#include "radish/backend.h"

/* What there was in the first version; more may be missing at the ends. */
#define LEAST_LIBRARY (uint32_t)sizeof(struct rd_backend_library)
#define LEAST_OPS     (uint32_t)sizeof(struct rd_backend_ops)
#define KV_TYPES      (RD_TYPE_BIT(RD_TYPE_F32) | RD_TYPE_BIT(RD_TYPE_F16) | RD_TYPE_BIT(RD_TYPE_BF16))

struct backend {
    struct backend_ops ops; /* what this object has */
    const struct rd_backend_library *library;
    const struct rd_backend_ops *theirs;
    rd_backend *be;
    uint64_t build;              /* of the file: never 0 */
    struct rd_backend_run *runs; /* of the attention that was called last */
    size_t cap_runs;
};

/* ---- what radish does for them ---- */

static void host_to_float(uint32_t type, const void *from, float *to, uint64_t n)
{
    dtype_to_float((enum dtype)type, from, to, n);
}

static void host_from_float(uint32_t type, const float *from, void *to, uint64_t n)
{
    uint16_t *half = to;

    if (type == RD_TYPE_F32) memcpy(to, from, n * sizeof(*from));
    for (uint64_t i = 0; type == RD_TYPE_F16 && i < n; i++) half[i] = float_to_half(from[i]);
    for (uint64_t i = 0; type == RD_TYPE_BF16 && i < n; i++) half[i] = float_to_bf16(from[i]);
}

static uint64_t host_type_bytes(uint32_t type, uint64_t n)
{
    uint64_t bytes = 0;

    return dtype_from_gguf(type) != DTYPE_NONE && dtype_row_bytes((enum dtype)type, n, &bytes) ? bytes : 0;
}

static void host_log(int level, const char *line)
{
    log_line(level < LOG_ERROR || level > LOG_DEBUG ? LOG_INFO : (enum log_level)level, "%s", line);
}

static const struct rd_backend_host host = {.abi = RD_BACKEND_ABI,
                                            .size = sizeof(host),
                                            .to_float = host_to_float,
                                            .from_float = host_from_float,
                                            .type_bytes = host_type_bytes,
                                            .log = host_log};

/* ---- loading ---- */

bool shared_object_is_path(const char *device)
{
    return device[strcspn(device, "/:")] == '/';
}

/* *build: another for another file, or for the same one when it was written again. */
static rd_status check_file(const char *path, uint64_t *build, struct rd_error *err)
{
    struct timespec changed;
    uint64_t of_file[4];
    struct stat s;
    off_t end;

    if (stat(path, &s) != 0)
        return error_set(err, errno == ENOENT ? RD_E_NOT_FOUND : RD_E_IO, "backend %s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode)) return error_set(err, RD_E_UNSUPPORTED, "backend %s: not a file", path);
    if (s.st_mode & S_IWOTH)
        return error_set(err, RD_E_UNSUPPORTED, "backend %s: anybody may change this file; chmod o-w it first", path);
    end = os_object_end(path);
    if (end > s.st_size)
        return error_set(err, RD_E_UNSUPPORTED, "backend %s: cut short: %lld bytes of at least %lld", path,
                         (long long)s.st_size, (long long)end);
    of_file[0] = (uint64_t)s.st_dev, of_file[1] = s.st_ino, of_file[2] = (uint64_t)s.st_size;
    changed = os_changed(&s);
    of_file[3] = (uint64_t)changed.tv_sec * 1000000000u + (uint64_t)changed.tv_nsec;
    *build = hash128_of(of_file, sizeof(of_file)).low | 1;
    return RD_OK;
}

static const char *missing_op(const struct rd_backend_ops *o)
{
    const struct {
        const char *name;
        bool there;
    } all[] = {
#define OP(name) {#name, o->name != NULL}
        OP(create),          OP(destroy),    OP(describe),    OP(alloc),       OP(free),          OP(read),
        OP(write),           OP(sync),       OP(weight_load), OP(weight_free), OP(pages_create),  OP(pages_destroy),
        OP(pages_copy_rows), OP(pages_read), OP(pages_write), OP(embed),       OP(residual_norm), OP(linear),
        OP(qkv_rope_write),  OP(attention),  OP(glu),         OP(gather)
#undef OP
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!all[i].there) return all[i].name;
    return NULL;
}

static bool is_name(const char *s)
{
    size_t n = s ? strlen(s) : 0;

    return n > 0 && n < 32 && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-_") == n;
}

static rd_status check_library(const char *path, const struct rd_backend_library *l, struct rd_error *err)
{
    const char *missing;

    if (!l) return error_set(err, RD_E_UNSUPPORTED, "backend %s: it exports no %s", path, RD_BACKEND_SYMBOL);
    if (l->magic != RD_BACKEND_MAGIC)
        return error_set(err, RD_E_UNSUPPORTED, "backend %s: %s begins with %#x, expected %#x", path, RD_BACKEND_SYMBOL,
                         l->magic, RD_BACKEND_MAGIC);
    if (l->abi != RD_BACKEND_ABI)
        return error_set(err, RD_E_UNSUPPORTED,
                         "backend %s: made for version %u of radish/backend.h, this radish has %u", path, l->abi,
                         RD_BACKEND_ABI);
    if (l->size < LEAST_LIBRARY || !l->ops || l->ops->size < LEAST_OPS)
        return error_set(err, RD_E_UNSUPPORTED,
                         "backend %s: its tables have %u and %u bytes, at least %u and %u are wanted", path, l->size,
                         l->size < LEAST_LIBRARY || !l->ops ? 0 : l->ops->size, LEAST_LIBRARY, LEAST_OPS);
    if (!is_name(l->name) || !l->title || !l->probe)
        return error_set(err, RD_E_UNSUPPORTED,
                         "backend %s: name (small letters, digits, - and _), title and probe are wanted", path);
    if (!(l->weight_types & RD_TYPE_BIT(RD_TYPE_F32)))
        return error_set(err, RD_E_UNSUPPORTED, "backend %s: weight_types lacks F32", path);
    if (!(l->kv_types & KV_TYPES) || (l->kv_types & ~KV_TYPES))
        return error_set(err, RD_E_UNSUPPORTED, "backend %s: kv_types must be some of F32, F16, BF16", path);
    missing = missing_op(l->ops);
    return missing ? error_set(err, RD_E_UNSUPPORTED, "backend %s: no function %s", path, missing) : RD_OK;
}

static rd_status load(const char *path, const struct rd_backend_library **out, uint64_t *build, struct rd_error *err)
{
    rd_status st = check_file(path, build, err);
    void *object;

    if (st != RD_OK) return st;
    object = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!object) return error_set(err, RD_E_UNSUPPORTED, "backend %s", dlerror());
    *out = dlsym(object, RD_BACKEND_SYMBOL);
    st = check_library(path, *out, err);
    dlclose(object); /* it stays: NODELETE */
    return st;
}

static bool probe(const struct rd_backend_library *l, char *why, size_t n)
{
    bool usable;

    why[0] = 0;
    usable = l->probe(why, n);
    why[n - 1] = 0;
    if (!why[0]) snprintf(why, n, "%s", usable ? "its probe found what it needs" : "its probe says no more than that");
    return usable;
}

rd_status shared_object_about(const char *path, struct shared_object_about *out, struct rd_error *err)
{
    const struct rd_backend_library *l = NULL;
    uint64_t build = 0;
    rd_status st = load(path, &l, &build, err);

    memset(out, 0, sizeof(*out));
    if (st != RD_OK) return st;
    snprintf(out->name, sizeof(out->name), "%s", l->name);
    snprintf(out->title, sizeof(out->title), "%s", l->title);
    out->exact = l->exact;
    out->has_softcap = l->ops->softcap != NULL;
    out->weight_types = l->weight_types;
    out->kv_types = l->kv_types;
    out->is_usable = probe(l, out->why, sizeof(out->why));
    return RD_OK;
}

/* ---- the calls ---- */

static struct rd_backend_span at(struct span s)
{
    return (struct rd_backend_span){s.buffer, s.at};
}

static rd_backend_weight *of(const struct weight *w)
{
    return w ? (rd_backend_weight *)(uintptr_t)w->data : NULL;
}

static void so_destroy(struct backend *b)
{
    if (!b) return;
    if (b->be) b->theirs->destroy(b->be);
    mem_free(b->runs);
    mem_free(b);
}

static bool so_is_dead(const struct backend *b)
{
    return b->theirs->is_dead(b->be);
}

static void so_describe(const struct backend *b, char *buf, size_t n)
{
    if (n == 0) return;
    buf[0] = 0;
    b->theirs->describe(b->be, buf, n);
    buf[n - 1] = 0;
    if (!buf[0]) snprintf(buf, n, "%s", b->library->name);
}

static uint64_t so_free_bytes(struct backend *b)
{
    return b->theirs->free_bytes(b->be);
}

static rd_status so_alloc(struct backend *b, uint64_t n_bytes, struct buffer **out)
{
    void *buffer = NULL;
    rd_status st = b->theirs->alloc(b->be, n_bytes, &buffer);

    *out = buffer;
    return st;
}

static void so_free(struct backend *b, struct buffer *buffer)
{
    if (buffer) b->theirs->free(b->be, buffer);
}

static rd_status so_read(struct backend *b, void *to, struct span from, uint64_t n_bytes)
{
    return b->theirs->read(b->be, to, at(from), n_bytes);
}

static rd_status so_write(struct backend *b, struct span to, const void *from, uint64_t n_bytes)
{
    return b->theirs->write(b->be, at(to), from, n_bytes);
}

static rd_status so_sync(struct backend *b)
{
    return b->theirs->sync(b->be);
}

static rd_status so_weight_load(struct backend *b, const struct host_tensor *t, enum weight_role role,
                                struct weight *out, struct rd_error *err)
{
    struct rd_backend_tensor theirs = {sizeof(theirs), RD_WEIGHT_VECTOR, (uint32_t)t->dtype, t->n_out, t->n_in,
                                       t->name,        t->data};
    struct rd_error why = {RD_OK, ""};
    rd_backend_weight *w = NULL;
    const uint64_t n = (uint64_t)t->n_out * t->n_in;
    float *opened = NULL;
    uint64_t bytes = 0;
    rd_status st;

    if (role != WEIGHT_VECTOR) theirs.role = role == WEIGHT_EMBED ? RD_WEIGHT_EMBED : RD_WEIGHT_MATRIX;
    if (t->dtype != DTYPE_F32 &&
        (role == WEIGHT_VECTOR || (unsigned)t->dtype >= 64 || !(b->library->weight_types & RD_TYPE_BIT(t->dtype)))) {
        opened = mem_alloc(n, sizeof(*opened));
        if (!opened)
            return error_set(err, RD_E_NOMEM, "%s: no memory to open %llu weights", t->name, (unsigned long long)n);
        dtype_to_float(t->dtype, t->data, opened, n);
        theirs.type = RD_TYPE_F32;
        theirs.data = opened;
    }
    st = b->theirs->weight_load(b->be, &theirs, &w, &bytes, &why);
    mem_free(opened);
    if (st == RD_OK && !w) st = RD_E_INTERNAL;
    if (st != RD_OK) {
        why.text[sizeof(why.text) - 1] = 0;
        return error_set(err, st, "%s: %.400s", t->name, why.text[0] ? why.text : rd_status_text(st));
    }
    *out =
        (struct weight){.dtype = t->dtype, .role = role, .n_out = t->n_out, .n_in = t->n_in, .data = w, .bytes = bytes};
    return RD_OK;
}

static void so_weight_unload(struct backend *b, struct weight *w)
{
    if (w->data) b->theirs->weight_free(b->be, of(w));
    w->data = NULL;
}

static rd_status so_pages_create(struct backend *b, const struct kv_layout *l, uint32_t n_pages, struct kv_storage *out)
{
    const struct rd_backend_layout layout = {sizeof(layout), l->n_layers,          l->n_kv_heads,       l->head_dim,
                                             l->page_tokens, (uint32_t)l->dtype_k, (uint32_t)l->dtype_v};
    rd_backend_pages *pages = NULL;
    rd_status st = b->theirs->pages_create(b->be, &layout, n_pages, &pages);

    if (st == RD_OK && !pages) st = RD_E_INTERNAL;
    if (st != RD_OK) return st;
    *out = (struct kv_storage){.layout = *l,
                               .n_pages = n_pages,
                               .row_bytes = {kv_row_bytes(l, 0), kv_row_bytes(l, 1)},
                               .page_bytes = kv_page_bytes(l),
                               .base = pages};
    return RD_OK;
}

static rd_backend_pages *pages_of(const struct kv_storage *kv)
{
    return kv->base;
}

static void so_pages_destroy(struct backend *b, struct kv_storage *kv)
{
    b->theirs->pages_destroy(b->be, pages_of(kv));
    kv->base = NULL;
}

static rd_status so_copy_rows(struct backend *b, struct kv_storage *kv, kv_page to, kv_page from, uint32_t n_rows)
{
    return b->theirs->pages_copy_rows(b->be, pages_of(kv), to, from, n_rows);
}

static rd_status so_page_read(struct backend *b, const struct kv_storage *kv, void *to, kv_page from)
{
    return b->theirs->pages_read(b->be, pages_of(kv), to, from);
}

static rd_status so_page_write(struct backend *b, const struct kv_storage *kv, kv_page to, const void *from)
{
    return b->theirs->pages_write(b->be, pages_of(kv), to, from);
}

static rd_status so_embed(struct backend *b, const struct weight *w, uint32_t n, const int32_t *tokens, float scale,
                          struct span out)
{
    return b->theirs->embed(b->be, of(w), n, tokens, scale, at(out));
}

static rd_status so_residual_norm(struct backend *b, const struct residual_norm_args *a)
{
    const struct rd_backend_residual_norm args = {.size = sizeof(args),
                                                  .n_rows = a->n_rows,
                                                  .width = a->width,
                                                  .eps = a->eps,
                                                  .x = at(a->x),
                                                  .delta = at(a->delta),
                                                  .out = at(a->out),
                                                  .delta_norm = of(a->delta_norm),
                                                  .norm = of(a->norm)};

    return b->theirs->residual_norm(b->be, &args);
}

static rd_status so_linear(struct backend *b, const struct linear_args *a)
{
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < a->n_outs && st == RD_OK; i++) {
        const struct rd_backend_linear args = {.size = sizeof(args),
                                               .n_rows = a->n_rows,
                                               .x_stride = a->x_stride,
                                               .out_stride = a->outs[i].out_stride,
                                               .x = at(a->x),
                                               .out = at(a->outs[i].out),
                                               .w = of(a->outs[i].w),
                                               .bias = of(a->outs[i].bias)};

        st = b->theirs->linear(b->be, &args);
    }
    return st;
}

static rd_status so_qkv_rope_write(struct backend *b, const struct qkv_args *a)
{
    const struct rd_backend_qkv args = {.size = sizeof(args),
                                        .n_rows = a->n_rows,
                                        .layer = a->layer,
                                        .n_heads = a->n_heads,
                                        .n_kv_heads = a->n_kv_heads,
                                        .head_dim = a->head_dim,
                                        .q = at(a->q),
                                        .k = at(a->k),
                                        .v = at(a->v),
                                        .q_stride = a->q_stride,
                                        .k_stride = a->k_stride,
                                        .v_stride = a->v_stride,
                                        .n_rot = a->n_rot,
                                        .q_norm = of(a->q_norm),
                                        .k_norm = of(a->k_norm),
                                        .inv_freq = of(a->inv_freq),
                                        .norm_eps = a->norm_eps,
                                        .rope_mscale = a->rope_mscale,
                                        .interleaved = a->layout == ROPE_INTERLEAVED,
                                        .positions = a->positions,
                                        .row_page = a->row_page,
                                        .row_slot = a->row_slot,
                                        .pages = pages_of(a->kv)};

    return b->theirs->qkv_rope_write(b->be, &args);
}

static rd_status so_attention(struct backend *b, const struct attention_args *a)
{
    struct rd_backend_attention args = {.size = sizeof(args),
                                        .n_rows = a->n_rows,
                                        .layer = a->layer,
                                        .n_heads = a->n_heads,
                                        .n_kv_heads = a->n_kv_heads,
                                        .head_dim = a->head_dim,
                                        .q = at(a->q),
                                        .out = at(a->out),
                                        .q_stride = a->q_stride,
                                        .out_stride = a->out_stride,
                                        .window = a->window,
                                        .n_runs = a->n_runs,
                                        .scale = a->scale,
                                        .softcap = a->softcap,
                                        .pages = pages_of(a->kv)};

    /* The same runs for every layer of a step: what was written for the layer before may still be read. */
    if (!mem_grow((void **)&b->runs, &b->cap_runs, a->n_runs, sizeof(*b->runs))) return RD_E_NOMEM;
    for (uint32_t i = 0; i < a->n_runs; i++)
        b->runs[i] =
            (struct rd_backend_run){a->runs[i].row0, a->runs[i].n_rows, a->runs[i].pos0, a->runs[i].block_table};
    args.runs = b->runs;
    return b->theirs->attention(b->be, &args);
}

static rd_status so_glu(struct backend *b, enum activation act, uint32_t n_rows, uint32_t width, struct span gate,
                        struct span up, struct span out)
{
    return b->theirs->glu(b->be, act == ACT_GELU_TANH, (uint64_t)n_rows * width, at(gate), at(up), at(out));
}

static rd_status so_gather(struct backend *b, uint32_t n, uint32_t width, struct span x, const uint32_t *rows,
                           struct span out)
{
    return b->theirs->gather(b->be, n, width, at(x), rows, at(out));
}

static rd_status so_softcap(struct backend *b, struct span x, uint64_t n, float cap)
{
    return b->theirs->softcap(b->be, at(x), n, cap);
}

static void fill_ops(struct backend *b)
{
    const struct rd_backend_library *l = b->library;
    const struct rd_backend_ops *t = b->theirs;

    b->ops = (struct backend_ops){
        .name = l->name,
        .traits = {.slow_prompts = l->slow_prompts,
                   .is_inexact = !l->exact,
                   .build = b->build,
                   .weight_types = l->weight_types,
                   .kv_types = l->kv_types},
        .life = {.destroy = so_destroy, .is_dead = t->is_dead ? so_is_dead : NULL, .describe = so_describe},
        .memory = {.free_bytes = t->free_bytes ? so_free_bytes : NULL,
                   .alloc = so_alloc,
                   .free = so_free,
                   .read = so_read,
                   .write = so_write,
                   .sync = so_sync},
        .weights = {.load = so_weight_load, .unload = so_weight_unload},
        .pages = {.create = so_pages_create,
                  .destroy = so_pages_destroy,
                  .copy_rows = so_copy_rows,
                  .read = so_page_read,
                  .write = so_page_write},
        .op = {.embed = so_embed,
               .residual_norm = so_residual_norm,
               .linear = so_linear,
               .qkv_rope_write = so_qkv_rope_write,
               .attention = so_attention,
               .glu = so_glu,
               .gather = so_gather,
               .softcap = t->softcap ? so_softcap : NULL}};
}

rd_status shared_object_open(const char *path, const struct backend_options *o, const struct backend_ops **ops,
                             struct backend **out, struct rd_error *err)
{
    const struct rd_backend_create theirs = {sizeof(theirs), o->n_threads, &host};
    const struct rd_backend_library *l = NULL;
    struct rd_error why = {RD_OK, ""};
    struct backend *b;
    char said[256];
    uint64_t build = 0;
    rd_status st = load(path, &l, &build, err);

    if (st != RD_OK) return st;
    if (!probe(l, said, sizeof(said))) return error_set(err, RD_E_UNSUPPORTED, "backend %s: %s", path, said);
    b = mem_zalloc(1, sizeof(*b));
    if (!b) return error_set(err, RD_E_NOMEM, "out of memory");
    b->library = l;
    b->build = build;
    b->theirs = l->ops;
    st = b->theirs->create(&theirs, &b->be, &why);
    if (st == RD_OK && !b->be) st = RD_E_INTERNAL;
    if (st != RD_OK) {
        b->be = NULL;
        so_destroy(b);
        why.text[sizeof(why.text) - 1] = 0;
        return error_set(err, st, "backend %s: %.400s", l->name, why.text[0] ? why.text : rd_status_text(st));
    }
    fill_ops(b);
    *ops = &b->ops;
    *out = b;
    return RD_OK;
}
