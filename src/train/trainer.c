/* train/trainer.c - see the header.
 *
 *     samples -> passes of at most max_rows rows -> states of the rows before targets
 *             -> logits of some rows at a time, their loss, and the states' gradient
 *             -> back through the tape
 */
#include "train/trainer.h"
#include <math.h>
#include <string.h>
#include "backend/backend_registry.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/sysinfo.h"
#include "format/model_file.h"
#include "grad/record.h"
#include "model/model.h"

#define PAGE_TOKENS 16u
#define MAX_RUNS    256u
#define LOGIT_FLOATS                                                                                                   \
    (32u << 20) /* of the rows that the head computes at a time: its weights are opened for each such piece */
#define DEVICE_LOGITS (128u << 20) /* on a GPU, of more memory and of more rows at once */
#define MAX_HEAD_ROWS 1024u

struct pair_place {
    struct adapter_pair_view v;
    uint64_t at; /* of A in the numbers; B follows */
};

struct trainer {
    struct trainer_options o;
    struct model_file *g;
    struct backend_ops ops; /* the recording ones */
    struct backend *be;
    const struct grad_device_ops *dev;
    struct grad_device *device;
    struct model *m;
    struct kv_storage kv;
    struct adapter *adapter;
    struct adapter_mix *mix;
    struct pair_place *pairs;
    uint32_t n_pairs, head_rows, n_recomputed;
    uint64_t n_params, n_steps, n_passes; /* n_passes: in this step */
    float *grads, *moments, *squares;     /* [n_params], the device's */
    float *masters;                       /* [n_params] what A and B are rounded from; NULL: not o.bf16 */
    struct grad_half *halves;             /* [2 n_pairs] */
    struct model_batch batch;
    kv_page *tables; /* [n_pages] */
    uint32_t n_pages;
    int32_t *next;  /* [max_rows] the target of a wanted row */
    double *losses; /* [max_rows] its loss */
    float *logits;  /* [head_rows, n_vocab], where the device shares host memory */
    void *d_logits; /* the same, else the device's */
};

static rd_status check(const struct trainer_options *o, struct rd_error *err)
{
    if (o->max_rows < 2) return error_set(err, RD_E_INVALID, "a pass of %u tokens; at least 2", o->max_rows);
    if (!(o->dropout >= 0 && o->dropout < 1)) return error_set(err, RD_E_INVALID, "dropout must be from 0 to below 1");
    if (!(o->clip >= 0)) return error_set(err, RD_E_INVALID, "clip must be 0 or more");
    if (!(o->adamw.beta1 >= 0 && o->adamw.beta1 < 1 && o->adamw.beta2 >= 0 && o->adamw.beta2 < 1))
        return error_set(err, RD_E_INVALID, "betas must be from 0 to below 1");
    if (!(o->adamw.eps > 0) || !(o->adamw.decay >= 0))
        return error_set(err, RD_E_INVALID, "eps must be above 0, weight decay 0 or more");
    return RD_OK;
}

/* Bytes that a layer keeps of a row. */
static uint64_t layer_bytes(const struct trainer *t)
{
    const struct model_config *c = model_config(t->m);
    const uint64_t q = (uint64_t)c->n_heads * c->head_dim, kv = (uint64_t)c->n_kv_heads * c->head_dim,
                   kept = 2 * (uint64_t)c->hidden + 2 * q + 3 * (uint64_t)c->ffn + (c->qk_norms ? q + kv : 0) +
                          (c->post_norms ? 2 * (uint64_t)c->hidden : 0);

    return 2 * (uint64_t)c->hidden * sizeof(float) + kept * dtype_block_bytes(t->dev->kept_type);
}

/* On a GPU: what is free, without what a layer's gradients and the head take, and a sixteenth. */
static uint64_t free_for_tape(struct trainer *t)
{
    const struct model_config *c = model_config(t->m);
    const uint64_t q = (uint64_t)c->n_heads * c->head_dim,
                   row = (4 * (uint64_t)c->hidden + 4 * q + 4 * (uint64_t)c->ffn) * sizeof(float),
                   segments = 2 * (uint64_t)c->n_layers * c->hidden * sizeof(float),
                   left = t->ops.memory.free_bytes(t->be), used = (row + segments) * t->o.max_rows + left / 16;

    return left > used ? left - used : 1;
}

/* How many layers are computed again: those whose tape has no room. */
static void plan_memory(struct trainer *t)
{
    const uint64_t layer = layer_bytes(t) * t->o.max_rows;
    const uint32_t n_layers = model_config(t->m)->n_layers;
    uint64_t budget = t->o.memory_bytes;

    if (budget == 0) budget = t->ops.memory.free_bytes ? free_for_tape(t) : sysinfo_memory() / 4;
    t->n_recomputed = budget / layer >= n_layers ? 0 : n_layers - (uint32_t)(budget / layer);
}

static float *take_numbers(struct trainer *t)
{
    const uint64_t n_bytes = t->n_params * sizeof(float);
    float *p = t->dev->take(t->device, n_bytes);

    if (p && t->dev->zero(t->device, p, n_bytes) == RD_OK) return p;
    t->dev->give(t->device, p);
    return NULL;
}

static void list_halves(struct trainer *t)
{
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        const struct pair_place *p = &t->pairs[i];
        const uint64_t n_a = (uint64_t)p->v.rank * p->v.n_in;

        t->halves[2 * i] = (struct grad_half){p->v.a, p->at, n_a};
        t->halves[2 * i + 1] = (struct grad_half){p->v.b, p->at + n_a, (uint64_t)p->v.rank * p->v.n_out};
    }
}

static rd_status list_pairs(struct trainer *t, struct rd_error *err)
{
    struct adapter_pair_view v;

    while (adapter_pair_at(t->adapter, t->n_pairs, &v)) t->n_pairs++;
    if (t->n_pairs == 0) return error_set(err, RD_E_INVALID, "no matrix is to be trained");
    t->pairs = mem_zalloc(t->n_pairs, sizeof(*t->pairs));
    t->halves = mem_zalloc(2 * (size_t)t->n_pairs, sizeof(*t->halves));
    if (!t->pairs || !t->halves) return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        adapter_pair_at(t->adapter, i, &t->pairs[i].v);
        t->pairs[i].at = t->n_params;
        t->n_params += (uint64_t)t->pairs[i].v.rank * (t->pairs[i].v.n_in + t->pairs[i].v.n_out);
    }
    list_halves(t);
    t->grads = take_numbers(t);
    t->moments = take_numbers(t);
    t->squares = take_numbers(t);
    if (!t->grads || !t->moments || !t->squares) return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        const struct pair_place *p = &t->pairs[i];
        const struct record_pair pair = {p->v.a_weight, p->v.b_weight, t->grads + p->at,
                                         t->grads + p->at + (uint64_t)p->v.rank * p->v.n_in, i};

        if (record_pair(t->be, &pair) != RD_OK) return error_set(err, RD_E_NOMEM, "out of memory");
    }
    return RD_OK;
}

/* Numbers of all halves to host memory, or from it. */
static rd_status read_values(struct trainer *t, float *out)
{
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < 2 * t->n_pairs && st == RD_OK; i++)
        st = t->dev->read(t->device, out + t->halves[i].at, t->halves[i].values, t->halves[i].n * sizeof(float));
    return st;
}

static rd_status write_values(struct trainer *t, const float *in)
{
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < 2 * t->n_pairs && st == RD_OK; i++)
        st = t->dev->write(t->device, t->halves[i].values, in + t->halves[i].at, t->halves[i].n * sizeof(float));
    return st;
}

static rd_status round_values(struct trainer *t)
{
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < 2 * t->n_pairs && st == RD_OK; i++)
        st = t->dev->round(t->device, t->masters + t->halves[i].at, t->halves[i].values, t->halves[i].n);
    return st;
}

static rd_status make_masters(struct trainer *t, struct rd_error *err)
{
    const uint64_t n_bytes = t->n_params * sizeof(float);
    float *first = mem_alloc(t->n_params, sizeof(float));
    rd_status st = RD_E_NOMEM;

    t->masters = t->dev->take(t->device, n_bytes);
    if (first && t->masters) st = read_values(t, first);
    if (st == RD_OK) st = t->dev->write(t->device, t->masters, first, n_bytes);
    if (st == RD_OK) st = round_values(t);
    mem_free(first);
    return st == RD_OK ? st : error_set(err, st, "%s", rd_status_text(st));
}

static rd_status make_room(struct trainer *t, struct rd_error *err)
{
    const struct model_config *c = model_config(t->m);
    const enum dtype type = t->o.kv_type;
    const struct kv_layout layout = {c->n_layers, c->n_kv_heads, c->head_dim, PAGE_TOKENS, type, type};
    uint32_t rows = t->o.max_rows;
    rd_status st;

    t->n_pages = u32_ceil_div(rows, PAGE_TOKENS) + MAX_RUNS;
    t->tables = mem_zalloc(t->n_pages, sizeof(*t->tables));
    t->next = mem_zalloc(rows, sizeof(*t->next));
    t->losses = mem_zalloc(rows, sizeof(*t->losses));
    if (t->ops.traits.shares_memory)
        t->d_logits = t->logits = mem_alloc_aligned((size_t)t->head_rows * c->n_vocab * sizeof(float));
    else
        t->d_logits = t->dev->take(t->device, (uint64_t)t->head_rows * c->n_vocab * t->dev->out_bytes);
    if (!t->tables || !t->next || !t->losses || !t->d_logits) return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < t->n_pages; i++) t->tables[i] = i;
    st = model_batch_init(&t->batch, (struct model_batch_room){rows, MAX_RUNS, 0, rows});
    if (st == RD_OK) st = t->ops.pages.create(t->be, &layout, t->n_pages, &t->kv);
    return st == RD_OK ? st : error_set(err, st, "no memory for keys and values of %u tokens", rows);
}

static rd_status open_backend(struct trainer *t, struct rd_error *err)
{
    const struct backend_options o = {.n_threads = t->o.n_threads, .isa = t->o.isa, .no_graphs = true};
    const struct backend_ops *ops;
    struct backend *inner;
    rd_status st = backend_open(t->o.device ? t->o.device : "cpu", &o, &ops, &inner, err);

    if (st == RD_OK) st = record_create(&o, ops, inner, &t->be, err);
    if (st != RD_OK) return st;
    record_ops(ops, &t->ops);
    t->dev = record_device(t->be, &t->device);
    return RD_OK;
}

static rd_status open_model(struct trainer *t, const char *path, struct rd_error *err)
{
    struct model_config c;
    uint32_t most;
    rd_status st;

    if ((st = model_file_open(path, model_hub_families(), &t->g, err)) != RD_OK) return st;
    if ((st = model_read_config(t->g, &c, err)) != RD_OK) return st;
    if (t->o.max_rows > c.n_ctx_train) t->o.max_rows = c.n_ctx_train;
    if ((st = open_backend(t, err)) != RD_OK) return st;
    most = t->ops.traits.shares_memory ? LOGIT_FLOATS / c.n_vocab : DEVICE_LOGITS / c.n_vocab;
    t->head_rows = u32_max(1, u32_min(u32_min(MAX_HEAD_ROWS, t->o.max_rows), most));
    return model_load(t->g, &t->ops, t->be, t->o.max_rows, t->head_rows, NULL, &t->m, err);
}

rd_status trainer_open(const char *model, const struct trainer_options *o, struct trainer **out, struct rd_error *err)
{
    struct trainer *t = mem_zalloc(1, sizeof(*t));
    rd_status st;

    *out = NULL;
    if (!t) return error_set(err, RD_E_NOMEM, "out of memory");
    t->o = *o;
    st = check(o, err);
    if (st == RD_OK) st = open_model(t, model, err);
    if (st == RD_OK) st = adapter_create(t->m, &o->shape, &t->adapter, err);
    if (st == RD_OK) st = adapter_mix_create(&(struct adapter_use){t->adapter, 1}, 1, &t->mix, err);
    if (st == RD_OK) st = list_pairs(t, err);
    if (st == RD_OK && o->bf16) st = make_masters(t, err);
    if (st == RD_OK) st = make_room(t, err);
    if (st != RD_OK) {
        trainer_close(t);
        return st;
    }
    plan_memory(t);
    *out = t;
    return RD_OK;
}

void trainer_close(struct trainer *t)
{
    if (!t) return;
    if (t->dev) {
        if (!t->logits) t->dev->give(t->device, t->d_logits);
        t->dev->give(t->device, t->grads);
        t->dev->give(t->device, t->moments);
        t->dev->give(t->device, t->squares);
        t->dev->give(t->device, t->masters);
    }
    if (t->kv.base) t->ops.pages.destroy(t->be, &t->kv);
    model_batch_deinit(&t->batch);
    adapter_mix_unref(t->mix);
    adapter_unref(t->adapter);
    model_destroy(t->m);
    if (t->be) t->ops.life.destroy(t->be);
    model_file_close(t->g);
    mem_free(t->pairs);
    mem_free(t->halves);
    mem_free(t->tables);
    mem_free(t->next);
    mem_free(t->losses);
    mem_free_aligned(t->logits);
    mem_free(t);
}

struct model *trainer_model(struct trainer *t)
{
    return t->m;
}
struct adapter *trainer_adapter(struct trainer *t)
{
    return t->adapter;
}
uint64_t trainer_n_params(const struct trainer *t)
{
    return t->n_params;
}
uint64_t trainer_n_steps(const struct trainer *t)
{
    return t->n_steps;
}
bool trainer_has_matrix_unit(const struct trainer *t)
{
    return t->dev->has_matrix_unit && t->dev->has_matrix_unit(t->device);
}
rd_status trainer_gradients_get(struct trainer *t, float *out)
{
    return t->dev->read(t->device, out, t->grads, t->n_params * sizeof(float));
}

/* ---- passes ---- */

/* The samples from `from` on that one pass holds; returns the first that it does not. */
static uint32_t fill_pass(struct trainer *t, const struct train_sample *samples, uint32_t from, uint32_t n)
{
    uint32_t page = 0, i = from;

    model_batch_clear(&t->batch);
    for (; i < n && t->batch.n_runs < MAX_RUNS; i++) {
        const struct train_sample *s = &samples[i];

        if (t->batch.n_rows + s->n > t->o.max_rows) break;
        model_batch_begin_run(&t->batch, 0, t->tables + page, t->mix);
        page += u32_ceil_div(s->n, PAGE_TOKENS);
        for (uint32_t k = 0; k < s->n; k++) { /* the last token's row writes keys alone */
            uint32_t row = model_batch_add_row(&t->batch, s->tokens[k], PAGE_TOKENS);

            if (k + 1 >= s->n || !s->targets[k + 1]) continue;
            t->next[t->batch.n_hidden] = s->tokens[k + 1];
            model_batch_want_hidden(&t->batch, row);
        }
    }
    return i;
}

/* The loss of rows first .. first + n of those that are wanted, and where there is weight the gradient of their states. */
static rd_status piece_loss(struct trainer *t, uint32_t first, uint32_t n, double weight, float *d_states)
{
    const struct model_config *c = model_config(t->m);
    struct grad_loss a = {.n_rows = n,
                          .n_vocab = c->n_vocab,
                          .first = first,
                          .n_all = t->batch.n_hidden,
                          .targets = t->next + first,
                          .cap = c->final_softcap,
                          .weight = weight,
                          .gradient = t->d_logits};
    rd_status st = model_head_of_pass(t->m, first, n, t->logits, &a.logits);

    if (st == RD_OK) st = t->dev->loss(t->device, &a);
    if (st != RD_OK || weight == 0) return st;
    return t->dev->linear_back(t->device, &(struct grad_linear){.n_rows = n,
                                                                .n = 1,
                                                                .of = {{model_head_weight(t->m), t->d_logits}},
                                                                .dx = d_states + (uint64_t)first * c->hidden});
}

/* Losses of the pass's targets; with weight, the gradient of its states. */
static rd_status pass_loss(struct trainer *t, double weight, float *d_states, float *log_p, double *sum)
{
    rd_status st = RD_OK;

    for (uint32_t first = 0, n; first < t->batch.n_hidden && st == RD_OK; first += n) {
        n = u32_min(t->head_rows, t->batch.n_hidden - first);
        st = piece_loss(t, first, n, weight, d_states);
    }
    if (st == RD_OK) st = t->dev->losses_of(t->device, t->batch.n_hidden, t->losses);
    for (uint32_t i = 0; i < t->batch.n_hidden && st == RD_OK; i++) {
        *sum += t->losses[i];
        if (log_p) log_p[i] = (float)-t->losses[i];
    }
    return st;
}

static rd_status run_pass(struct trainer *t, double weight, float *log_p, double *sum, uint64_t *tape_bytes)
{
    const struct record_pass pass = {(float)t->o.dropout, t->o.dropout_seed,
                                     (uint32_t)(t->n_steps << 12) + (uint32_t)t->n_passes++, t->n_recomputed};
    const uint32_t hidden = model_config(t->m)->hidden;
    float *d_states = NULL;
    rd_status st = RD_OK;

    if (t->batch.n_hidden == 0) return RD_OK;
    if (weight != 0) st = record_begin(t->be, &pass);
    if (st == RD_OK) st = model_forward(t->m, &t->kv, &t->batch, NULL);
    if (weight != 0) record_pause(t->be);
    if (st == RD_OK && weight != 0) {
        d_states = t->dev->take(t->device, (uint64_t)t->batch.n_hidden * hidden * sizeof(float));
        if (!d_states) st = RD_E_NOMEM;
    }
    if (st == RD_OK) st = pass_loss(t, weight, d_states, log_p, sum);
    if (st == RD_OK && weight != 0)
        st = record_backward(t->be, d_states, t->batch.n_hidden, hidden);
    else
        t->dev->give(t->device, d_states);
    record_bytes(t->be, tape_bytes);
    record_end(t->be);
    return st;
}

static rd_status check_samples(const struct trainer *t, const struct train_sample *samples, uint32_t n,
                               uint64_t *n_targets, uint64_t *n_tokens, struct rd_error *err)
{
    *n_targets = *n_tokens = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (samples[i].n < 2 || samples[i].n > t->o.max_rows)
            return error_set(err, RD_E_INVALID, "a sample of %u tokens; 2 to %u fit", samples[i].n, t->o.max_rows);
        *n_tokens += samples[i].n;
        for (uint32_t k = 0; k < samples[i].n; k++) {
            if (samples[i].tokens[k] < 0 || (uint32_t)samples[i].tokens[k] >= model_config(t->m)->n_vocab)
                return error_set(err, RD_E_INVALID, "token %d is not of the vocabulary", samples[i].tokens[k]);
            *n_targets += k > 0 && samples[i].targets[k];
        }
    }
    if (*n_targets == 0) return error_set(err, RD_E_INVALID, "no token of these samples is to be learned");
    return RD_OK;
}

static rd_status run_passes(struct trainer *t, const struct train_sample *samples, uint32_t n, bool learn, float *log_p,
                            struct train_result *out, struct rd_error *err)
{
    uint64_t most = 0;
    double sum = 0;
    rd_status st;

    *out = (struct train_result){0};
    st = check_samples(t, samples, n, &out->n_targets, &out->n_tokens, err);
    if (st != RD_OK) return st;
    t->n_passes = 0;
    for (uint32_t i = 0; i < n && st == RD_OK;) {
        i = fill_pass(t, samples, i, n);
        st = run_pass(t, learn ? 1.0 / (double)out->n_targets : 0, log_p, &sum, &most);
        if (log_p) log_p += t->batch.n_hidden;
        out->tape_bytes = u64_max(out->tape_bytes, most);
    }
    if (st == RD_E_NOMEM && t->ops.memory.free_bytes)
        return error_set(err, st, "a pass: no room on the GPU; --memory or --pass-tokens that are less take less");
    if (st != RD_OK) return error_set(err, st, "a pass: %s", rd_status_text(st));
    out->loss = sum / (double)out->n_targets;
    if (!isfinite(out->loss)) return error_set(err, RD_E_MODEL_OUTPUT, "the loss is no number");
    return RD_OK;
}

rd_status trainer_loss(struct trainer *t, const struct train_sample *samples, uint32_t n, float *log_p,
                       struct train_result *out, struct rd_error *err)
{
    return run_passes(t, samples, n, false, log_p, out, err);
}

rd_status trainer_gradient(struct trainer *t, const struct train_sample *samples, uint32_t n, struct train_result *out,
                           struct rd_error *err)
{
    double sum = 0;
    rd_status st = t->dev->zero(t->device, t->grads, t->n_params * sizeof(*t->grads));

    if (st == RD_OK) st = run_passes(t, samples, n, true, NULL, out, err);
    if (st == RD_OK && (st = t->dev->sum_squares(t->device, t->grads, t->n_params, &sum)) != RD_OK)
        error_set(err, st, "the gradient: %s", rd_status_text(st));
    if (st != RD_OK) return st;
    out->norm = sqrt(sum);
    return isfinite(sum) ? RD_OK : error_set(err, RD_E_MODEL_OUTPUT, "the gradient is no number");
}

/* ---- numbers ---- */

rd_status trainer_step(struct trainer *t, const struct train_sample *samples, uint32_t n, double lr,
                       struct train_result *out, struct rd_error *err)
{
    struct grad_update u = {t->o.adamw, 1, 2 * t->n_pairs, t->halves, t->masters, t->grads, t->moments, t->squares};
    rd_status st;

    *out = (struct train_result){0};
    if (!isfinite(lr) || lr < 0) return error_set(err, RD_E_INVALID, "a learning rate of %g: 0 or more wanted", lr);
    st = trainer_gradient(t, samples, n, out, err);
    if (st != RD_OK) return st;
    u.o.lr = lr;
    u.o.step = t->n_steps + 1;
    if (t->o.clip > 0 && out->norm > t->o.clip) u.scale = t->o.clip / (out->norm + 1e-6);
    st = t->dev->update(t->device, &u);
    if (st != RD_OK) return error_set(err, st, "the update: %s", rd_status_text(st));
    t->n_steps++;
    return RD_OK;
}

rd_status trainer_state_get(struct trainer *t, float *out)
{
    const uint64_t n = t->n_params, n_bytes = n * sizeof(float);
    rd_status st = t->masters ? t->dev->read(t->device, out, t->masters, n_bytes) : read_values(t, out);

    if (st == RD_OK) st = t->dev->read(t->device, out + n, t->moments, n_bytes);
    return st == RD_OK ? t->dev->read(t->device, out + 2 * n, t->squares, n_bytes) : st;
}

rd_status trainer_state_set(struct trainer *t, uint64_t n_steps, const float *in)
{
    const uint64_t n = t->n_params, n_bytes = n * sizeof(float);
    rd_status st = t->masters ? t->dev->write(t->device, t->masters, in, n_bytes) : write_values(t, in);

    if (st == RD_OK && t->masters) st = round_values(t);
    if (st == RD_OK) st = t->dev->write(t->device, t->moments, in + n, n_bytes);
    if (st == RD_OK) st = t->dev->write(t->device, t->squares, in + 2 * n, n_bytes);
    t->n_steps = n_steps;
    return st;
}

rd_status trainer_save(struct trainer *t, const char *path, const struct adapter_save *s, struct rd_error *err)
{
    struct adapter_save save = *s;
    float *numbers = mem_alloc(t->n_params, sizeof(float));
    rd_status st = numbers ? read_values(t, numbers) : RD_E_NOMEM;

    save.numbers = numbers;
    if (st == RD_OK)
        st = adapter_save(t->m, t->adapter, path, &save, err);
    else
        error_set(err, st, "%s: %s", path, rd_status_text(st));
    mem_free(numbers);
    return st;
}
