/* api/api_trainer.c - rd_trainer: options, checkpoints.
 *
 *     checkpoint:  magic, version | digest of what decides the numbers' meaning | steps | n | 3 n floats | digest of all before
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

rd_status rd_trainer_save(rd_trainer *t, const char *path, bool gguf, struct rd_error *err)
{
    const struct adapter_save s = {&t->o.shape, t->o.dropout, t->base, gguf, t->o.bf16, NULL};
    rd_status st = gguf ? RD_OK : file_out_folder(path, err);

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

rd_status api_checkpoint_write(rd_trainer *t, const char *path, struct hash128 more, struct rd_error *err)
{
    struct checkpoint_head head = {CHECKPOINT_MAGIC, options_digest(t, trainer_has_matrix_unit(t->trainer)),
                                   rd_trainer_n_steps(t), rd_trainer_n_params(t)};
    size_t n = sizeof(head) + (size_t)head.n_params * 3 * sizeof(float);
    char *bytes = mem_alloc(1, n + sizeof(struct hash128));
    struct hash128 digest;
    rd_status st;

    if (!bytes) return error_set(err, RD_E_NOMEM, "no memory for a checkpoint");
    head.of.high ^= more.high;
    head.of.low ^= more.low;
    memcpy(bytes, &head, sizeof(head));
    st = trainer_state_get(t->trainer, (float *)(void *)(bytes + sizeof(head)));
    if (st != RD_OK) error_set(err, st, "%s: the numbers could not be read from the device", path);
    digest = hash128_of(bytes, n);
    memcpy(bytes + n, &digest, sizeof(digest));
    if (st == RD_OK) st = file_out_all(path, bytes, n + sizeof(digest), err);
    mem_free(bytes);
    return st;
}

/* Why it is not this one's: of is what it has. */
static rd_status refuse(const rd_trainer *t, const char *path, struct hash128 of, struct hash128 more,
                        struct rd_error *err)
{
    const bool here = trainer_has_matrix_unit(t->trainer);
    struct hash128 other = options_digest(t, !here);

    other.high ^= more.high;
    other.low ^= more.low;
    if (!hash128_equal(of, other))
        return error_set(err, RD_E_INVALID, "%s: a checkpoint of other options, other data or another model", path);
    if (here)
        return error_set(err, RD_E_INVALID,
                         "%s: it was computed without AMX, whose bits are others: --cpu-isa avx512 goes on with it",
                         path);
    return error_set(err, RD_E_INVALID,
                     "%s: it was computed with AMX, whose bits are others: only a processor that has it goes on", path);
}

rd_status api_checkpoint_read(rd_trainer *t, const char *path, struct hash128 more, struct rd_error *err)
{
    struct checkpoint_head head;
    struct hash128 digest, want = options_digest(t, trainer_has_matrix_unit(t->trainer));
    size_t size = sizeof(head) + (size_t)rd_trainer_n_params(t) * 3 * sizeof(float), n = 0;
    char *bytes = NULL;
    rd_status st = file_read_all(path, (size_t)1 << 40, &bytes, &n, err);

    if (st != RD_OK) return st;
    want.high ^= more.high;
    want.low ^= more.low;
    if (n < sizeof(head) + sizeof(digest)) {
        st = error_set(err, RD_E_FORMAT, "%s: no checkpoint, or cut short", path);
    } else {
        memcpy(&head, bytes, sizeof(head));
        memcpy(&digest, bytes + n - sizeof(digest), sizeof(digest));
        if (head.magic != CHECKPOINT_MAGIC || !hash128_equal(digest, hash128_of(bytes, n - sizeof(digest))))
            st = error_set(err, RD_E_FORMAT, "%s: no checkpoint, or damaged", path);
        else if (!hash128_equal(head.of, want) || n != size + sizeof(digest))
            st = refuse(t, path, head.of, more, err);
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
    return api_checkpoint_write(t, path, (struct hash128){0, 0}, err);
}

rd_status rd_trainer_resume(rd_trainer *t, const char *path, struct rd_error *err)
{
    return api_checkpoint_read(t, path, (struct hash128){0, 0}, err);
}
