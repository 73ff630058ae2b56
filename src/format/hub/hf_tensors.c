/* format/hub/hf_tensors.c - the shards' tensors as those of a struct model_file, and the bytes of those that need work. */
#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include "base/arena.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/thread.h"
#include "format/hub/hf_vision.h"

#define NAME_BYTES   1024
#define QUOTED       200
#define MAX_HELPERS  16u
#define ROWS_AT_ONCE 64u

static const uint8_t *data_of(const struct hf_dir *dir, const struct st_tensor *t)
{
    return dir->maps[t->shard].data + t->offset;
}

static bool ends_with(const struct st_tensor *t, const char *end)
{
    size_t n = strlen(end);

    return t->n_name > n && !strcmp(t->name + t->n_name - n, end);
}

/* The tensor beside this one: NAME.weight -> NAME.other. */
static const struct st_tensor *sibling(const struct hf_dir *dir, const struct st_tensor *t, const char *other)
{
    const char *dot = strrchr(t->name, '.');
    char name[NAME_BYTES];

    if (!dot || snprintf(name, sizeof(name), "%.*s%s", (int)(dot - t->name), t->name, other) >= (int)sizeof(name))
        return NULL;
    return safetensors_find(&dir->table, name);
}

static rd_status open_mlx(const struct hf_dir *dir, const struct st_tensor *t, struct hf_part *part,
                          struct model_tensor *out, struct rd_error *err)
{
    const struct st_tensor *scales = sibling(dir, t, ".scales"), *biases = sibling(dir, t, ".biases");
    char base[NAME_BYTES], label[QUOTED];
    struct rd_error why = {RD_OK, ""};
    uint32_t bits, group;
    uint64_t row_bytes, n_bytes;
    rd_status st;

    snprintf(base, sizeof(base), "%.*s", (int)(t->n_name < 7 ? 0 : t->n_name - 7), t->name);
    hf_matrix_bits(dir, base, &bits, &group);
    st = mlx_check(error_quote(label, sizeof(label), base, strlen(base)), t, scales, biases, bits, group, &part->mlx,
                   &why);
    if (st != RD_OK) return error_set(err, st, "%s: %s", dir->names[t->shard], why.text);
    part->way = HF_MLX;
    part->mlx.weight = data_of(dir, t);
    part->mlx.scales = data_of(dir, scales);
    part->mlx.biases = data_of(dir, biases);
    part->groups = mlx_groups(&part->mlx);
    out->groups = &part->groups;
    out->dtype = part->dtype = mlx_dtype(&part->mlx);
    out->n_dims = 2;
    out->dims[0] = part->mlx.n_in;
    out->dims[1] = part->mlx.n_out;
    out->hub_dtype = mlx_hub_dtype(&part->mlx);
    if (out->hub_dtype != DTYPE_NONE && dtype_row_bytes(out->hub_dtype, part->mlx.n_in, &row_bytes) &&
        checked_mul(row_bytes, part->mlx.n_out, &n_bytes))
        out->n_hub_bytes = n_bytes;
    return RD_OK;
}

static rd_status open_fp8(const struct hf_dir *dir, const struct st_tensor *t, struct hf_part *part,
                          struct model_tensor *out, struct rd_error *err)
{
    const struct st_tensor *scale = sibling(dir, t, ".weight_scale_inv");
    char base[NAME_BYTES], label[QUOTED];
    struct rd_error why = {RD_OK, ""};
    uint64_t row_bytes, n_bytes;
    rd_status st;

    if (!scale) scale = sibling(dir, t, ".weight_scale");
    snprintf(base, sizeof(base), "%.*s", (int)(t->n_name - strlen(".weight")), t->name);
    error_quote(label, sizeof(label), base, strlen(base));
    st = fp8_check(label, t, scale, dir->block_out, dir->block_in, &part->fp8, &why);
    if (st == RD_OK) {
        part->fp8.weight = data_of(dir, t);
        part->fp8.scales = data_of(dir, scale);
        st = fp8_check_scales(label, &part->fp8, &why);
    }
    if (st != RD_OK) return error_set(err, st, "%s: %s", dir->names[t->shard], why.text);
    part->way = HF_FP8;
    out->dtype = part->dtype = DTYPE_BF16;
    out->n_dims = 2;
    out->dims[0] = part->fp8.n_in;
    out->dims[1] = part->fp8.n_out;
    if (fp8_has_blocks(&part->fp8) && dtype_row_bytes(DTYPE_E4M3_128, part->fp8.n_in, &row_bytes) &&
        checked_mul(row_bytes, part->fp8.n_out, &n_bytes)) {
        out->hub_dtype = DTYPE_E4M3_128;
        out->n_hub_bytes = n_bytes;
    }
    return RD_OK;
}

/* Scales, and numbers about activations and the KV cache, which are computed without them. */
static bool belongs_to_fp8(const struct hf_dir *dir, const struct st_tensor *t)
{
    static const char *const others[] = {".input_scale", ".input_scale_ub", ".output_scale", ".activation_scale",
                                         ".q_scale",     ".k_scale",        ".v_scale"};
    const struct st_tensor *weight = sibling(dir, t, ".weight");

    if (ends_with(t, ".weight_scale") || ends_with(t, ".weight_scale_inv")) return weight && weight->type == ST_F8_E4M3;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (ends_with(t, others[i])) return true;
    return false;
}

static rd_status open_plain(const struct hf_dir *dir, const struct st_tensor *t, enum hf_use use, struct hf_part *part,
                            struct model_tensor *out, struct rd_error *err)
{
    static const struct {
        enum st_type from;
        enum dtype to;
    } rows[] = {{ST_F32, DTYPE_F32}, {ST_F16, DTYPE_F16}, {ST_BF16, DTYPE_BF16}};
    char quoted[QUOTED];

    error_quote(quoted, sizeof(quoted), t->name, t->n_name);
    part->dtype = DTYPE_NONE;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].from == t->type) part->dtype = rows[i].to;
    if (part->dtype == DTYPE_NONE)
        return error_set(err, RD_E_UNSUPPORTED, "%s: tensor \"%s\": type %s; expected F32, F16 or BF16",
                         dir->names[t->shard], quoted, st_type_name(t->type));
    if (t->n_dims < 1 || t->n_dims > 4 || t->n_bytes == 0)
        return error_set(err, RD_E_FORMAT,
                         "%s: tensor \"%s\": %u dims and %llu bytes, expected 1 .. 4 dims and a weight",
                         dir->names[t->shard], quoted, t->n_dims, (unsigned long long)t->n_bytes);
    part->data = data_of(dir, t);
    part->way = use == HF_NORM ? HF_PLUS_ONE : HF_COPY;
    out->dtype = part->way == HF_PLUS_ONE ? DTYPE_F32 : part->dtype;
    out->n_dims = t->n_dims;
    for (uint32_t d = 0; d < t->n_dims; d++) out->dims[d] = t->dims[t->n_dims - 1 - d];
    if (part->way == HF_COPY && (uintptr_t)part->data % dtype_block_bytes(part->dtype) == 0) out->data = part->data;
    return RD_OK;
}

/* ---- bytes ---- */

static const struct hf_part *part_of(const struct model_tensor *t)
{
    return (const struct hf_part *)(const void *)t->recipe; /* its first member */
}

/* any thread takes the next rows: relaxed, only unique; failed: a weight is NaN, looked at when all have ended */
struct fill_job {
    const struct hf_part *part;
    enum dtype as;
    uint8_t *dst;
    uint64_t n_rows, row_bytes;
    atomic_uint_fast64_t next;
    atomic_bool failed;
};

static void fill_rows(void *arg)
{
    struct fill_job *j = arg;
    uint64_t row;

    while ((row = atomic_fetch_add_explicit(&j->next, ROWS_AT_ONCE, memory_order_relaxed)) < j->n_rows) {
        uint64_t n = u64_min(ROWS_AT_ONCE, j->n_rows - row);
        uint8_t *dst = j->dst + row * j->row_bytes;

        if (j->part->way == HF_MLX)
            mlx_open_rows(&j->part->mlx, j->as, row, n, dst);
        else if (!fp8_open_rows(&j->part->fp8, j->as, row, n, dst))
            atomic_store_explicit(&j->failed, true, memory_order_relaxed);
    }
}

/* Quantised matrices. false: a weight is NaN. */
static bool fill_matrix(const struct model_tensor *t, enum dtype as, uint8_t *dst)
{
    struct fill_job job = {.part = part_of(t), .as = as, .dst = dst, .n_rows = t->dims[1]};
    struct thread helpers[MAX_HELPERS] = {0};
    uint32_t n = u32_min(thread_n_physical_cores(), MAX_HELPERS);

    if (!dtype_row_bytes(as, t->dims[0], &job.row_bytes)) return false; /* checked when it was opened */
    atomic_init(&job.next, 0);
    atomic_init(&job.failed, false);
    for (uint32_t i = 1; i < n && job.n_rows > ROWS_AT_ONCE; i++)
        if (thread_start(&helpers[i], "open", fill_rows, &job) != RD_OK) break; /* fewer hands, the same work */
    fill_rows(&job);
    for (uint32_t i = 1; i < n; i++) thread_join(&helpers[i]);
    return !atomic_load_explicit(&job.failed, memory_order_relaxed);
}

static rd_status open_as(const struct model_tensor *t, enum dtype as, struct tensor_bytes *out, struct rd_error *err)
{
    const struct hf_part *part = part_of(t);
    const uint64_t n_bytes = as == t->dtype ? t->n_bytes : t->n_hub_bytes;
    rd_status st = RD_OK;
    float *f;

    out->owned = mem_alloc_aligned(n_bytes);
    out->data = out->owned;
    if (!out->owned)
        return error_set(err, RD_E_NOMEM, "%s: no memory for %llu bytes", t->source, (unsigned long long)n_bytes);
    switch (part->way) {
    case HF_COPY:
        memcpy(out->owned, part->data, n_bytes);
        break;
    case HF_PLUS_ONE:
        f = out->owned;
        dtype_to_float(part->dtype, part->data, f, n_bytes / sizeof(*f));
        for (uint64_t i = 0; i < n_bytes / sizeof(*f); i++) f[i] += 1;
        break;
    case HF_MLX:
    case HF_FP8:
        if (!fill_matrix(t, as, out->owned))
            st = error_set(err, RD_E_FORMAT, "%s: a weight is no number (byte 0x7f or 0xff of F8_E4M3)", t->source);
        break;
    }
    if (st != RD_OK) model_tensor_close(out);
    return st;
}

/* ---- the table ---- */

/* name: the GGUF one. */
static rd_status open_tensor(struct model_file *g, const struct st_tensor *t, const char *name, enum hf_use use,
                             struct model_tensor *out, bool *skip, struct rd_error *err)
{
    struct hf_dir *dir = g->own;
    struct arena *arena = &dir->table.arena;
    char source[512], quoted[QUOTED];
    bool is_mlx = dir->quantised && t->type == ST_U32 && ends_with(t, ".weight");
    bool is_fp8 = dir->is_fp8 && t->type == ST_F8_E4M3 && ends_with(t, ".weight");
    struct hf_part *part;
    uint64_t n = 1, row_bytes;
    rd_status st;

    *skip = use == HF_SKIP ||
            (dir->quantised && (ends_with(t, ".scales") || ends_with(t, ".biases")) && sibling(dir, t, ".weight")) ||
            (dir->is_fp8 && belongs_to_fp8(dir, t));
    if (*skip) return RD_OK;
    *out = (struct model_tensor){.dims = {1, 1, 1, 1}, .offset = t->offset};
    part = arena_alloc(arena, 1, sizeof(*part));
    if (!part) return error_set(err, RD_E_NOMEM, "out of memory for the tensor table");
    if (is_mlx)
        st = open_mlx(dir, t, part, out, err);
    else if (is_fp8)
        st = open_fp8(dir, t, part, out, err);
    else
        st = open_plain(dir, t, use, part, out, err);
    if (st != RD_OK) return st;
    if (!dtype_row_bytes(out->dtype, out->dims[0], &row_bytes)) st = RD_E_FORMAT;
    for (int d = 1; st == RD_OK && d < 4; d++)
        if (!checked_mul(n, out->dims[d], &n)) st = RD_E_FORMAT;
    if (st != RD_OK || !checked_mul(n, row_bytes, &out->n_bytes) || out->n_bytes > SIZE_MAX / 2)
        return error_set(err, RD_E_FORMAT, "%s: %s: too large", dir->names[t->shard], name);
    snprintf(source, sizeof(source), "%s: %s", dir->names[t->shard],
             error_quote(quoted, sizeof(quoted), t->name, t->n_name));
    out->name.s = arena_memdup(arena, name, strlen(name));
    out->name.n = strlen(name);
    out->source = arena_memdup(arena, source, strlen(source));
    part->recipe.open_as = open_as;
    out->recipe = &part->recipe;
    return out->name.s && out->source ? RD_OK : error_set(err, RD_E_NOMEM, "out of memory for the tensor table");
}

static rd_status add_tensor(struct model_file *g, const struct st_tensor *t, const char *name, enum hf_use use,
                            struct rd_error *err)
{
    struct model_tensor out;
    bool skip = false;
    rd_status st = open_tensor(g, t, name, use, &out, &skip, err);

    if (st != RD_OK || skip) return st;
    if (g->n_tensors == LIMIT_GGUF_TENSORS)
        return error_set(err, RD_E_LIMIT, "more than %u tensors", LIMIT_GGUF_TENSORS);
    if (!mem_grow((void **)&g->tensors, &g->cap_tensors, g->n_tensors + 1, sizeof(*g->tensors)))
        return error_set(err, RD_E_NOMEM, "out of memory for the tensor table");
    g->tensors[g->n_tensors++] = out;
    return RD_OK;
}

rd_status hf_add_vision_tensors(struct model_file *vision, struct rd_error *err)
{
    const struct hf_dir *dir = vision->own;

    for (size_t i = 0; i < dir->table.n; i++) {
        struct st_tensor t = dir->table.tensors[i];
        char name[NAME_BYTES];
        bool plus_one;
        rd_status st;

        if (!hf_vision_name(dir, t.name, name, sizeof(name), &plus_one)) continue;
        if (t.n_dims > 2) { /* a convolution over patches that do not overlap is a matrix */
            for (uint32_t d = 2; d < t.n_dims; d++) {
                if (!checked_mul(t.dims[1], t.dims[d], &t.dims[1]))
                    return error_set(err, RD_E_FORMAT, "%s: too large", name);
                t.dims[d] = 1;
            }
            t.n_dims = 2;
        }
        st = add_tensor(vision, &t, name, plus_one ? HF_NORM : HF_TENSOR, err);
        if (st != RD_OK) return st;
    }
    mem_free(vision->tensors_by_name); /* that of no tensors */
    vision->tensors_by_name = NULL;
    return model_file_index_names(vision, err);
}

static rd_status check_vocab(const struct model_file *g, struct rd_error *err)
{
    const struct model_tensor *t = model_file_find_tensor(g, "token_embd.weight");
    const struct hf_dir *dir = g->own;

    if (!t || dir->model.n_vocab == 0 || t->dims[1] == dir->model.n_vocab) return RD_OK;
    return error_set(err, RD_E_FORMAT, "%s: %llu rows, but config.json says \"vocab_size\": %u", t->source,
                     (unsigned long long)t->dims[1], dir->model.n_vocab);
}

rd_status hf_add_tensors(struct model_file *g, struct rd_error *err)
{
    const struct hf_dir *dir = g->own;
    const struct st_table *table = &dir->table;
    rd_status st;

    for (size_t i = 0; i < table->n; i++) {
        char name[NAME_BYTES];
        enum hf_use use = hf_gguf_name(&dir->model, table->tensors[i].name, name, sizeof(name));

        st = add_tensor(g, &table->tensors[i], name, use, err);
        if (st != RD_OK) return st;
    }
    mem_free(g->tensors_by_name); /* that of no tensors */
    g->tensors_by_name = NULL;
    if (g->n_tensors == 0) return error_set(err, RD_E_FORMAT, "the directory's files have no tensors");
    if (!dir->model.tied && !safetensors_find(table, "lm_head.weight") &&
        !safetensors_find(table, "language_model.lm_head.weight"))
        return error_set(err, RD_E_FORMAT,
                         "tensor \"lm_head.weight\" is missing, and config.json does not say "
                         "\"tie_word_embeddings\": true");
    st = model_file_index_names(g, err);
    return st == RD_OK ? check_vocab(g, err) : st;
}
