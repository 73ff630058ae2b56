/* train/trainer.c - see the header.
 *
 *     samples -> passes of at most max_rows rows -> states of the rows before targets
 *             -> logits of some rows at a time, their loss, and the states' gradient
 *             -> back through the tape
 */
#include "train/trainer.h"
#include <math.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/sysinfo.h"
#include "format/model_file.h"
#include "grad/record.h"
#include "model/model.h"

#define OPS           backend_recording_ops
#define PAGE_TOKENS   16u
#define MAX_RUNS      256u
#define LOGIT_FLOATS  (16u << 20) /* of the rows that the head computes at a time */
#define MAX_HEAD_ROWS 512u

struct pair_place {
    struct adapter_pair_view v;
    uint64_t at; /* of A in the numbers; B follows */
};

struct trainer {
    struct trainer_options o;
    struct model_file *g;
    struct backend *be;
    struct model *m;
    struct kv_storage kv;
    struct adapter *adapter;
    struct adapter_mix *mix;
    struct pair_place *pairs;
    uint32_t n_pairs, head_rows, n_recomputed;
    uint64_t n_params, n_steps, n_passes; /* n_passes: in this step */
    float *grads, *moments, *squares;     /* [n_params] */
    float *masters;                       /* [n_params] what A and B are rounded from; NULL: not o.bf16 */
    struct model_batch batch;
    kv_page *tables; /* [n_pages] */
    uint32_t n_pages;
    int32_t *next; /* [max_rows] the target of a wanted row */
    float *states, *d_states, *logits;
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

/* How many layers are computed again: those whose tape has no room. */
static void plan_memory(struct trainer *t)
{
    const struct model_config *c = model_config(t->m);
    uint64_t q = (uint64_t)c->n_heads * c->head_dim, kv = (uint64_t)c->n_kv_heads * c->head_dim,
             width = 4 * (uint64_t)c->hidden + 2 * q + 3 * (uint64_t)c->ffn + (c->qk_norms ? q + kv : 0) +
                     (c->post_norms ? 2 * (uint64_t)c->hidden : 0),
             layer = width * t->o.max_rows * sizeof(float), budget = t->o.memory_bytes;

    if (budget == 0) budget = sysinfo_memory() / 4;
    t->n_recomputed = budget / layer >= c->n_layers ? 0 : c->n_layers - (uint32_t)(budget / layer);
}

static rd_status list_pairs(struct trainer *t, struct rd_error *err)
{
    struct adapter_pair_view v;

    while (adapter_pair_at(t->adapter, t->n_pairs, &v)) t->n_pairs++;
    if (t->n_pairs == 0) return error_set(err, RD_E_INVALID, "no matrix is to be trained");
    t->pairs = mem_zalloc(t->n_pairs, sizeof(*t->pairs));
    if (!t->pairs) return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        adapter_pair_at(t->adapter, i, &t->pairs[i].v);
        t->pairs[i].at = t->n_params;
        t->n_params += (uint64_t)t->pairs[i].v.rank * (t->pairs[i].v.n_in + t->pairs[i].v.n_out);
    }
    t->grads = mem_zalloc(t->n_params, sizeof(float));
    t->moments = mem_zalloc(t->n_params, sizeof(float));
    t->squares = mem_zalloc(t->n_params, sizeof(float));
    if (!t->grads || !t->moments || !t->squares) return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        const struct pair_place *p = &t->pairs[i];
        const struct record_pair pair = {p->v.a_weight, p->v.b_weight, t->grads + p->at,
                                         t->grads + p->at + (uint64_t)p->v.rank * p->v.n_in, i};

        if (record_pair(t->be, &pair) != RD_OK) return error_set(err, RD_E_NOMEM, "out of memory");
    }
    return RD_OK;
}

static float *half_of(const struct trainer *t, uint32_t half, uint64_t *at, uint64_t *n)
{
    const struct pair_place *p = &t->pairs[half / 2];
    const uint64_t n_a = (uint64_t)p->v.rank * p->v.n_in;

    *at = p->at + (half % 2 ? n_a : 0);
    *n = half % 2 ? (uint64_t)p->v.rank * p->v.n_out : n_a;
    return half % 2 ? p->v.b : p->v.a;
}

/* What is computed with, of the numbers that are kept. */
static void round_half(const struct trainer *t, uint32_t half)
{
    uint64_t at, n;
    float *to = half_of(t, half, &at, &n);

    for (uint64_t i = 0; i < n; i++) to[i] = bf16_to_float(float_to_bf16(t->masters[at + i]));
}

static rd_status make_masters(struct trainer *t, struct rd_error *err)
{
    t->masters = mem_alloc(t->n_params, sizeof(float));
    if (!t->masters) return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < 2 * t->n_pairs; i++) {
        uint64_t at, n;
        const float *from = half_of(t, i, &at, &n);

        memcpy(t->masters + at, from, n * sizeof(float));
        round_half(t, i);
    }
    return RD_OK;
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
    t->states = mem_alloc((size_t)rows * c->hidden, sizeof(float));
    t->d_states = mem_alloc((size_t)rows * c->hidden, sizeof(float));
    t->logits = mem_alloc((size_t)t->head_rows * c->n_vocab, sizeof(float));
    if (!t->tables || !t->next || !t->states || !t->d_states || !t->logits)
        return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < t->n_pages; i++) t->tables[i] = i;
    st = model_batch_init(&t->batch, (struct model_batch_room){rows, MAX_RUNS, 0, rows});
    if (st == RD_OK) st = OPS.pages.create(t->be, &layout, t->n_pages, &t->kv);
    return st == RD_OK ? st : error_set(err, st, "no memory for keys and values of %u tokens", rows);
}

static rd_status open_model(struct trainer *t, const char *path, struct rd_error *err)
{
    const struct backend_options o = {.n_threads = t->o.n_threads, .isa = t->o.isa};
    struct model_config c;
    rd_status st;

    if ((st = model_file_open(path, model_hub_families(), &t->g, err)) != RD_OK) return st;
    if ((st = model_read_config(t->g, &c, err)) != RD_OK) return st;
    if (t->o.max_rows > c.n_ctx_train) t->o.max_rows = c.n_ctx_train;
    t->head_rows = u32_max(1, u32_min(u32_min(MAX_HEAD_ROWS, t->o.max_rows), LOGIT_FLOATS / c.n_vocab));
    if ((st = OPS.life.create(&o, &t->be, err)) != RD_OK) return st;
    return model_load(t->g, &OPS, t->be, t->o.max_rows, t->head_rows, NULL, &t->m, err);
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
    if (t->kv.base) OPS.pages.destroy(t->be, &t->kv);
    model_batch_deinit(&t->batch);
    adapter_mix_unref(t->mix);
    adapter_unref(t->adapter);
    model_destroy(t->m);
    OPS.life.destroy(t->be);
    model_file_close(t->g);
    mem_free(t->pairs);
    mem_free(t->grads);
    mem_free(t->moments);
    mem_free(t->squares);
    mem_free(t->masters);
    mem_free(t->tables);
    mem_free(t->next);
    mem_free(t->states);
    mem_free(t->d_states);
    mem_free(t->logits);
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
const float *trainer_gradients(const struct trainer *t)
{
    return t->grads;
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
    t->batch.hidden = t->states;
    return i;
}

/* Logits of rows first .. first + n, of the states that the pass gave. */
static rd_status head_logits(struct trainer *t, uint32_t first, uint32_t n)
{
    const float *states[MAX_HEAD_ROWS];

    for (uint32_t i = 0; i < n; i++) states[i] = t->states + (uint64_t)(first + i) * model_config(t->m)->hidden;
    return model_head(t->m, n, states, t->logits);
}

struct loss_job {
    struct trainer *t;
    uint32_t first;
    double weight; /* of a row's loss */
    double losses[MAX_HEAD_ROWS];
};

/* One row's loss; its logits become their gradient, behind the cap, too. */
static void loss_row(void *arg, uint32_t row, uint32_t thread)
{
    struct loss_job *j = arg;
    const struct model_config *c = model_config(j->t->m);
    const struct grad_kernels *k = grad_kernels_of(record_compute(j->t->be));
    float *x = j->t->logits + (uint64_t)row * c->n_vocab, cap = c->final_softcap, *slope = NULL;
    int32_t target = j->t->next[j->first + row];

    (void)thread;
    if (cap > 0 && j->weight != 0) {
        slope = mem_alloc(c->n_vocab, sizeof(*slope));
        if (!slope) {
            j->losses[row] = NAN;
            return;
        }
        for (uint32_t i = 0; i < c->n_vocab; i++) slope[i] = 1 - (x[i] / cap) * (x[i] / cap);
    }
    j->losses[row] = k->cross_entropy(x, c->n_vocab, (uint32_t)target, (float)j->weight);
    if (slope)
        for (uint32_t i = 0; i < c->n_vocab; i++) x[i] *= slope[i];
    mem_free(slope);
}

/* Losses of the pass's targets; with weight, the gradient of its states. */
static rd_status pass_loss(struct trainer *t, double weight, float *log_p, double *sum)
{
    const struct model_config *c = model_config(t->m);
    struct loss_job j = {.t = t, .weight = weight};
    rd_status st = RD_OK;

    for (uint32_t n; j.first < t->batch.n_hidden && st == RD_OK; j.first += n) {
        n = u32_min(t->head_rows, t->batch.n_hidden - j.first);
        st = head_logits(t, j.first, n);
        if (st != RD_OK) break;
        grad_run(record_compute(t->be), loss_row, &j, n);
        for (uint32_t i = 0; i < n; i++) {
            *sum += j.losses[i];
            if (log_p) log_p[j.first + i] = (float)-j.losses[i];
        }
        if (weight != 0)
            st = record_weight_back(t->be, model_head_weight(t->m), t->logits, n, false,
                                    t->d_states + (uint64_t)j.first * c->hidden);
    }
    return st;
}

static rd_status run_pass(struct trainer *t, double weight, float *log_p, double *sum, uint64_t *tape_bytes)
{
    const struct record_pass pass = {(float)t->o.dropout, t->o.dropout_seed,
                                     (uint32_t)(t->n_steps << 12) + (uint32_t)t->n_passes++, t->n_recomputed};
    rd_status st;

    if (t->batch.n_hidden == 0) return RD_OK;
    if (weight != 0) record_begin(t->be, &pass);
    st = model_forward(t->m, &t->kv, &t->batch, NULL);
    if (weight != 0) record_pause(t->be);
    if (st == RD_OK) st = pass_loss(t, weight, log_p, sum);
    if (st == RD_OK && weight != 0)
        st = record_backward(t->be, t->d_states, t->batch.n_hidden, model_config(t->m)->hidden);
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
    rd_status st;

    memset(t->grads, 0, t->n_params * sizeof(*t->grads));
    st = run_passes(t, samples, n, true, NULL, out, err);
    if (st != RD_OK) return st;
    for (uint64_t i = 0; i < t->n_params; i++) sum += (double)t->grads[i] * (double)t->grads[i];
    out->norm = sqrt(sum);
    return isfinite(sum) ? RD_OK : error_set(err, RD_E_MODEL_OUTPUT, "the gradient is no number");
}

/* ---- numbers ---- */

struct update_job {
    struct trainer *t;
    struct adamw o;
    double scale;
};

static void update_half(void *arg, uint32_t half, uint32_t thread)
{
    const struct update_job *j = arg;
    const struct trainer *t = j->t;
    uint64_t at, n;
    float *values = half_of(t, half, &at, &n);

    (void)thread;
    adamw_update(&j->o, j->scale, t->masters ? t->masters + at : values, t->grads + at, t->moments + at,
                 t->squares + at, n);
    if (t->masters) round_half(t, half);
}

rd_status trainer_step(struct trainer *t, const struct train_sample *samples, uint32_t n, double lr,
                       struct train_result *out, struct rd_error *err)
{
    struct update_job j = {t, t->o.adamw, 1};
    rd_status st = trainer_gradient(t, samples, n, out, err);

    if (st != RD_OK) return st;
    j.o.lr = lr;
    j.o.step = ++t->n_steps;
    if (t->o.clip > 0 && out->norm > t->o.clip) j.scale = t->o.clip / (out->norm + 1e-6);
    grad_run(record_compute(t->be), update_half, &j, 2 * t->n_pairs);
    return RD_OK;
}

void trainer_state_get(const struct trainer *t, float *out)
{
    for (uint32_t i = 0; i < 2 * t->n_pairs; i++) {
        uint64_t at, n;
        const float *values = half_of(t, i, &at, &n);

        memcpy(out + at, t->masters ? t->masters + at : values, n * sizeof(float));
    }
    memcpy(out + t->n_params, t->moments, t->n_params * sizeof(float));
    memcpy(out + 2 * t->n_params, t->squares, t->n_params * sizeof(float));
}

void trainer_state_set(struct trainer *t, uint64_t n_steps, const float *in)
{
    for (uint32_t i = 0; i < 2 * t->n_pairs; i++) {
        uint64_t at, n;
        float *values = half_of(t, i, &at, &n);

        memcpy(t->masters ? t->masters + at : values, in + at, n * sizeof(float));
        if (t->masters) round_half(t, i);
    }
    memcpy(t->moments, in + t->n_params, t->n_params * sizeof(float));
    memcpy(t->squares, in + 2 * t->n_params, t->n_params * sizeof(float));
    t->n_steps = n_steps;
}
