/* api/api_trainer.c - rd_trainer: options, checkpoints.
 *
 *     checkpoint:  magic, version | digest of what decides the numbers' meaning | steps | n | 3 n floats | the same in words,
 *                  lines of "NAME VALUE" (none in older ones) | digest of all before
 */
#include "api/api_sizes.h"
#include "api/api_trainer.h"
#include <math.h>
#include <string.h>
#include "base/buf.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_out.h"
#include "base/hash.h"
#include "base/mem.h"
#include "model/model.h"

#define CHECKPOINT_MAGIC 0x314e415254445241ull /* "ARDTRAN1" */

struct checkpoint_head {
    uint64_t magic;
    struct hash128 of;
    uint64_t n_steps, n_params;
};

void rd_trainer_options_default(struct rd_trainer_options *o)
{
    *o = (struct rd_trainer_options){.size = sizeof(*o),
                                     .rank = 16,
                                     .alpha = 32,
                                     .beta1 = 0.9,
                                     .beta2 = 0.999,
                                     .eps = 1e-8,
                                     .clip = 1,
                                     .seed = 1,
                                     .pass_tokens = 1024};
}

static rd_status read_targets(const char *text, uint32_t *out, struct rd_error *err)
{
    const char *end;

    *out = 0;
    for (const char *s = text ? text : "all"; s; s = *end ? end + 1 : NULL) {
        size_t n = strcspn(s, ",");
        uint32_t bits = adapter_target_bit(s, n);

        end = s + n;
        if (bits == 0)
            return error_set(
                err, RD_E_INVALID,
                "target \"%.*s\": known are all, q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
                (int)(n < 64 ? n : 64), s);
        *out |= bits;
    }
    return RD_OK;
}

static rd_status read_kv_type(const char *name, enum dtype *out, struct rd_error *err)
{
    *out = DTYPE_F16;
    if (!name || strcmp(name, "f16") == 0) return RD_OK;
    *out = DTYPE_BF16;
    if (strcmp(name, "bf16") == 0) return RD_OK;
    *out = DTYPE_F32;
    if (strcmp(name, "f32") == 0) return RD_OK;
    return error_set(err, RD_E_INVALID, "KV type \"%.32s\": training knows f16, bf16 and f32", name);
}

rd_status rd_trainer_open(const struct rd_trainer_options *o, rd_trainer **out, struct rd_error *err)
{
    struct trainer_options to = {.device = o->device,
                                 .n_threads = o->n_threads,
                                 .isa = o->isa,
                                 .max_rows = o->pass_tokens,
                                 .memory_bytes = o->memory_bytes,
                                 .shape = {.rank = o->rank, .alpha = o->alpha, .by_root = o->rslora, .seed = o->seed},
                                 .bf16 = o->bf16,
                                 .dropout = o->dropout,
                                 .dropout_seed = o->seed,
                                 .clip = o->clip};
    rd_trainer *t;
    rd_status st;

    *out = NULL;
    if (api_check_size(o->size, sizeof(*o), "rd_trainer_options_default", err) != RD_OK) return RD_E_INVALID;
    if (!o->model) return error_set(err, RD_E_INVALID, "no model given");
    to.adamw = (struct adamw){.beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps, .decay = o->weight_decay};
    if ((st = read_targets(o->targets, &to.shape.targets, err)) != RD_OK) return st;
    if ((st = read_kv_type(o->kv_type, &to.kv_type, err)) != RD_OK) return st;
    json_set_alloc_funcs(api_json_alloc, mem_free);
    t = mem_zalloc(1, sizeof(*t));
    if (!t) return error_set(err, RD_E_NOMEM, "out of memory");
    t->o = to;
    t->base = mem_strdup(o->model);
    st = t->base ? trainer_open(o->model, &to, &t->trainer, err) : error_set(err, RD_E_NOMEM, "out of memory");
    if (st == RD_OK)
        *out = t;
    else
        rd_trainer_close(t);
    return st;
}

void rd_trainer_close(rd_trainer *t)
{
    if (!t) return;
    trainer_close(t->trainer);
    mem_free(t->base);
    mem_free(t);
}

static void give(const struct train_result *r, struct rd_train_result *out)
{
    if (out) *out = (struct rd_train_result){r->loss, r->norm, r->n_targets, r->n_tokens, r->tape_bytes};
}

/* struct train_sample is rd_train_sample's twin. */
_Static_assert(sizeof(struct rd_train_sample) == sizeof(struct train_sample), "samples are handed on as they are");

rd_status rd_trainer_step(rd_trainer *t, const struct rd_train_sample *samples, uint32_t n, double lr,
                          struct rd_train_result *out, struct rd_error *err)
{
    struct train_result r;
    rd_status st = trainer_step(t->trainer, (const struct train_sample *)samples, n, lr, &r, err);

    give(&r, out);
    return st;
}

rd_status rd_trainer_loss(rd_trainer *t, const struct rd_train_sample *samples, uint32_t n, float *log_p,
                          struct rd_train_result *out, struct rd_error *err)
{
    struct train_result r;
    rd_status st = trainer_loss(t->trainer, (const struct train_sample *)samples, n, log_p, &r, err);

    give(&r, out);
    return st;
}

static rd_status no_path(const char *path, struct rd_error *err)
{
    return path ? RD_OK : error_set(err, RD_E_INVALID, "no path given");
}

rd_status rd_trainer_save(rd_trainer *t, const char *path, bool gguf, struct rd_error *err)
{
    const struct adapter_save s = {&t->o.shape, t->o.dropout, t->base, gguf, t->o.bf16, NULL};
    rd_status st = no_path(path, err);

    if (st == RD_OK && !gguf) st = file_out_folder(path, err);
    return st == RD_OK ? trainer_save(t->trainer, path, &s, err) : st;
}

uint64_t rd_trainer_n_steps(const rd_trainer *t)
{
    return trainer_n_steps(t->trainer);
}
uint64_t rd_trainer_n_params(const rd_trainer *t)
{
    return trainer_n_params(t->trainer);
}

/* What a checkpoint must agree with: the adapter's shape, what is drawn, the optimiser, the model's shape, whose bits gradients have;
 * not the threads. */
static struct hash128 options_digest(const rd_trainer *t, bool matrix_unit)
{
    const struct trainer_options *o = &t->o;
    const struct model_config *c = model_config(trainer_model(t->trainer));
    const double numbers[] = {
        o->shape.rank, o->shape.alpha, o->shape.by_root, o->shape.targets,
        o->dropout,    o->clip,        o->adamw.beta1,   o->adamw.beta2,
        o->adamw.eps,  o->adamw.decay, o->max_rows,      o->kv_type + (o->bf16 ? 256u : 0u) + (matrix_unit ? 512u : 0u),
        c->n_layers,   c->hidden,      c->ffn,           c->n_vocab};
    uint64_t parts[2 + sizeof(numbers) / sizeof(numbers[0])] = {o->shape.seed, o->dropout_seed};

    memcpy(parts + 2, numbers, sizeof(numbers));
    return hash128_of(parts, sizeof(parts));
}

static void put_targets(uint32_t targets, struct buf *out)
{
    static const char *const names[] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
    const char *before = "targets ";

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!(targets & adapter_target_bit(names[i], strlen(names[i])))) continue;
        buf_printf(out, "%s%s", before, names[i]);
        before = ",";
    }
    buf_putc(out, '\n');
}

/* What options_digest has, by the names of `radish train`; and more's lines. */
static void put_lines(const rd_trainer *t, const struct checkpoint_more *more, struct buf *out)
{
    const struct trainer_options *o = &t->o;
    const struct model_config *c = model_config(trainer_model(t->trainer));
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"rank", o->shape.rank},      {"alpha", o->shape.alpha},
                   {"rslora", o->shape.by_root}, {"bf16", o->bf16},
                   {"dropout", o->dropout},      {"clip", o->clip},
                   {"beta1", o->adamw.beta1},    {"beta2", o->adamw.beta2},
                   {"eps", o->adamw.eps},        {"weight-decay", o->adamw.decay},
                   {"pass-tokens", o->max_rows}};

    put_targets(o->shape.targets, out);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        buf_printf(out, "%s %.9g\n", numbers[i].name, numbers[i].value);
    buf_printf(out, "seed %llu\nkv-type %s\nmodel %u x %u, %u, %u tokens\n%s", (unsigned long long)o->shape.seed,
               o->kv_type == DTYPE_F32    ? "f32"
               : o->kv_type == DTYPE_BF16 ? "bf16"
                                          : "f16",
               c->n_layers, c->hidden, c->ffn, c->n_vocab, more->lines ? more->lines : "");
}

/* The value of a line of that name. */
static const char *find_line(const char *lines, const char *name, size_t n_name, size_t *n)
{
    for (const char *s = lines; *s; s += strcspn(s, "\n"), s += *s != 0) {
        if (strncmp(s, name, n_name) != 0 || s[n_name] != ' ') continue;
        *n = strcspn(s + n_name + 1, "\n");
        return s + n_name + 1;
    }
    return NULL;
}

/* Up to three that are other, as ": lr 0.01 there, 0.001 here"; nothing where there has no lines. */
static void tell_differences(const char *here, const char *there, struct buf *out)
{
    uint32_t n_told = 0;

    for (const char *s = here; *s && n_told < 3; s += strcspn(s, "\n"), s += *s != 0) {
        size_t n_name = strcspn(s, " \n"), n_here = strcspn(s + n_name, "\n"), n_there = 0;
        const char *value = find_line(there, s, n_name, &n_there);

        if (n_here == 0 || !value) continue;
        if (n_here - 1 == n_there && memcmp(s + n_name + 1, value, n_there) == 0) continue;
        buf_printf(out, "%s%.*s %.*s there, %.*s here", n_told++ ? "; " : ": ", (int)n_name, s,
                   (int)(n_there < 60 ? n_there : 60), value, (int)(n_here < 60 ? n_here - 1 : 59), s + n_name + 1);
    }
}

rd_status api_checkpoint_write(rd_trainer *t, const char *path, const struct checkpoint_more *more,
                               struct rd_error *err)
{
    struct checkpoint_head head = {CHECKPOINT_MAGIC, options_digest(t, trainer_has_matrix_unit(t->trainer)),
                                   rd_trainer_n_steps(t), rd_trainer_n_params(t)};
    const size_t n_numbers = sizeof(head) + (size_t)head.n_params * 3 * sizeof(float);
    struct buf lines = {0};
    struct hash128 digest;
    size_t n;
    char *bytes;
    rd_status st;

    put_lines(t, more, &lines);
    n = n_numbers + lines.n;
    bytes = lines.failed ? NULL : mem_alloc(1, n + sizeof(digest));
    if (bytes) memcpy(bytes + n_numbers, lines.data, lines.n);
    buf_deinit(&lines);
    if (!bytes) return error_set(err, RD_E_NOMEM, "no memory for a checkpoint");
    head.of.high ^= more->digest.high;
    head.of.low ^= more->digest.low;
    memcpy(bytes, &head, sizeof(head));
    st = trainer_state_get(t->trainer, (float *)(void *)(bytes + sizeof(head)));
    if (st != RD_OK) error_set(err, st, "%s: the numbers could not be read from the device", path);
    digest = hash128_of(bytes, n);
    memcpy(bytes + n, &digest, sizeof(digest));
    if (st == RD_OK) st = file_out_all(path, bytes, n + sizeof(digest), err);
    mem_free(bytes);
    return st;
}

/* Why it is not this one's; there: its lines. */
static rd_status refuse(const rd_trainer *t, const char *path, struct hash128 of, const char *there,
                        const struct checkpoint_more *more, struct rd_error *err)
{
    const bool here = trainer_has_matrix_unit(t->trainer);
    struct hash128 other = options_digest(t, !here);
    struct buf lines = {0}, told = {0};

    other.high ^= more->digest.high;
    other.low ^= more->digest.low;
    if (!hash128_equal(of, other)) {
        put_lines(t, more, &lines);
        buf_putc(&lines, 0);
        if (!lines.failed) tell_differences(lines.data, there, &told);
        buf_putc(&told, 0);
        error_set(err, RD_E_INVALID, "%.200s: a checkpoint of other options, other data or another model%.250s", path,
                  told.failed ? "" : told.data);
        buf_deinit(&lines);
        buf_deinit(&told);
        return RD_E_INVALID;
    }
    if (here)
        return error_set(err, RD_E_INVALID,
                         "%s: it was computed without AMX, whose bits are others: --cpu-isa avx512 goes on with it",
                         path);
    return error_set(err, RD_E_INVALID,
                     "%s: it was computed with AMX, whose bits are others: only a processor that has it goes on", path);
}

rd_status api_checkpoint_read(rd_trainer *t, const char *path, const struct checkpoint_more *more, struct rd_error *err)
{
    struct checkpoint_head head;
    struct hash128 digest, want = options_digest(t, trainer_has_matrix_unit(t->trainer));
    size_t n = 0, n_numbers = 0;
    char *bytes = NULL;
    rd_status st = file_read_all(path, (size_t)1 << 40, &bytes, &n, err);

    if (st != RD_OK) return st;
    want.high ^= more->digest.high;
    want.low ^= more->digest.low;
    if (n < sizeof(head) + sizeof(digest)) {
        st = error_set(err, RD_E_FORMAT, "%s: no checkpoint, or cut short", path);
    } else {
        n -= sizeof(digest);
        memcpy(&head, bytes, sizeof(head));
        memcpy(&digest, bytes + n, sizeof(digest));
        if (head.n_params <= (n - sizeof(head)) / (3 * sizeof(float)))
            n_numbers = sizeof(head) + (size_t)head.n_params * 3 * sizeof(float);
        if (head.magic != CHECKPOINT_MAGIC || n_numbers == 0 || !hash128_equal(digest, hash128_of(bytes, n))) {
            st = error_set(err, RD_E_FORMAT, "%s: no checkpoint, or damaged", path);
        } else if (!hash128_equal(head.of, want) || head.n_params != rd_trainer_n_params(t)) {
            bytes[n] = 0; /* behind its lines, where the digest began */
            st = refuse(t, path, head.of, bytes + n_numbers, more, err);
        }
    }
    if (st == RD_OK) {
        st = trainer_state_set(t->trainer, head.n_steps, (const float *)(const void *)(bytes + sizeof(head)));
        if (st != RD_OK) error_set(err, st, "%s: the device did not take it", path);
    }
    mem_free(bytes);
    return st;
}

rd_status rd_trainer_checkpoint(rd_trainer *t, const char *path, struct rd_error *err)
{
    rd_status st = no_path(path, err);

    return st == RD_OK ? api_checkpoint_write(t, path, &(struct checkpoint_more){.lines = NULL}, err) : st;
}

rd_status rd_trainer_resume(rd_trainer *t, const char *path, struct rd_error *err)
{
    rd_status st = no_path(path, err);

    return st == RD_OK ? api_checkpoint_read(t, path, &(struct checkpoint_more){.lines = NULL}, err) : st;
}
