/* api/train_run.c - rd_train: data in an order that the seed decides, step after step, what is saved and when.
 *
 *     out/checkpoint.radish      all that the next step depends on; written after log.jsonl, so that the log has its steps
 *     out/log.jsonl, loss.svg    a line a step; rewritten with every checkpoint, cut to its steps when resuming
 *     out/adapter_*, adapter.gguf
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "api/api_sizes.h"
#include "api/api_trainer.h"
#include "base/cache_dir.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/data_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_out.h"
#include "base/mem.h"
#include "base/philox.h"
#include "model/model.h"

struct train_run {
    const struct rd_train_options *o;
    rd_trainer *t;
    struct train_data data, eval; /* eval: of a file of its own */
    const struct rd_train_sample *eval_samples;
    struct rd_train_sample *batch;
    uint32_t *order; /* [n_train] of this epoch */
    uint64_t n_train, n_eval, n_steps, epoch, per_epoch;
    enum lr_schedule schedule;
    struct buf lines;            /* data and schedule for people: struct checkpoint_more */
    struct checkpoint_more more; /* the same, with what decides */
    struct train_point *points;
    size_t n_points, cap_points;
    double best;
    uint32_t n_worse;
    bool has_adapter;                      /* the best one is saved */
    uint32_t max_tokens;                   /* of a sample */
    bool made_folder;                      /* there was none before */
    struct data_file lock;                 /* the folder's: one training at a time writes there */
    uint64_t begun_ns, tokens, first_step; /* of this run: steps that were there */
};

void rd_train_options_default(struct rd_train_options *o)
{
    *o = (struct rd_train_options){.size = sizeof(*o),
                                   .batch = 8,
                                   .epochs = 3,
                                   .lr = 2e-4,
                                   .warm_up = 0.05,
                                   .save_every = 50,
                                   .eval_every = 50,
                                   .seed = 1};
    rd_trainer_options_default(&o->trainer);
}

/* A permutation of n: Fisher and Yates, drawn from seed and epoch. */
static void shuffle(uint32_t *order, uint64_t n, uint64_t seed, uint32_t epoch)
{
    for (uint64_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    for (uint64_t i = n; i > 1; i--) {
        struct philox_words w = philox_4x32((uint32_t)i, (uint32_t)(i >> 32), epoch, 0x0d, seed);
        uint64_t k = (((uint64_t)w.w[0] << 32 | w.w[1]) >> 11) % i;
        uint32_t x = order[i - 1];

        order[i - 1] = order[k];
        order[k] = x;
    }
}

static rd_status check(const struct rd_train_options *o, struct train_run *r, struct rd_error *err)
{
    const char *s = o->schedule ? o->schedule : "cosine";

    if (api_check_size(o->size, sizeof(*o), "rd_train_options_default", err) != RD_OK) return RD_E_INVALID;
    if (!o->trainer.model || !o->data || !o->out)
        return error_set(err, RD_E_INVALID, "a model, data and a folder for the output must be given");
    if (o->batch < 1) return error_set(err, RD_E_INVALID, "a step of no samples");
    if (!(o->lr > 0) || !isfinite(o->lr)) return error_set(err, RD_E_INVALID, "the learning rate must be above 0");
    if (!(o->epochs > 0 && o->epochs <= 1e6) && o->n_steps == 0)
        return error_set(err, RD_E_INVALID, "epochs must be above 0");
    if (!(o->eval_share >= 0 && o->eval_share < 1))
        return error_set(err, RD_E_INVALID, "the share for evaluation must be from 0 to below 1");
    if (!(o->warm_up >= 0 && o->warm_up <= 1)) return error_set(err, RD_E_INVALID, "warm-up is a share: 0 to 1");
    if (o->save_every < 1 || o->eval_every < 1) return error_set(err, RD_E_INVALID, "every 0 steps");
    if (strcmp(s, "cosine") == 0)
        r->schedule = LR_COSINE;
    else if (strcmp(s, "linear") == 0)
        r->schedule = LR_LINEAR;
    else if (strcmp(s, "constant") == 0)
        r->schedule = LR_CONSTANT;
    else
        return error_set(err, RD_E_INVALID, "schedule \"%.32s\": known are cosine, linear, constant", s);
    return RD_OK;
}

static rd_status read_data(struct train_run *r, struct rd_error *err)
{
    const struct rd_train_options *o = r->o;
    uint32_t most = u32_min(o->trainer.pass_tokens, model_config(trainer_model(r->t->trainer))->n_ctx_train);
    rd_engine *texts = NULL;
    rd_status st = rd_open_tokenizer(o->trainer.model, NULL, &texts, err);

    if (st != RD_OK) return st;
    st = train_data_read(&r->data, texts, o->data, most, o->all_tokens, err);
    if (st == RD_OK && o->eval_data) st = train_data_read(&r->eval, texts, o->eval_data, most, o->all_tokens, err);
    rd_close(texts);
    if (st != RD_OK) return st;
    r->n_train = r->data.n;
    r->n_eval = o->eval_data ? r->eval.n : (uint64_t)((double)r->data.n * o->eval_share);
    if (!o->eval_data) r->n_train -= r->n_eval;
    r->order = mem_alloc(r->data.n + 1, sizeof(*r->order));
    r->batch = mem_alloc(o->batch, sizeof(*r->batch));
    if (!r->order || !r->batch) return error_set(err, RD_E_NOMEM, "out of memory");
    r->max_tokens = most;
    if (r->n_train == 0 && r->data.n_dropped > 0)
        return error_set(err, RD_E_INVALID,
                         "%.300s: no sample to learn from: in none of %llu is anything to be learned within %u tokens",
                         o->data, (unsigned long long)r->data.n_dropped, most);
    if (r->n_train == 0) return error_set(err, RD_E_INVALID, "%.300s: no sample to learn from", o->data);
    if (r->n_eval == 0 && o->eval_data)
        return error_set(err, RD_E_INVALID, "%.300s: no sample to evaluate with", o->eval_data);
    if (r->n_eval == 0 && o->eval_share > 0)
        return error_set(err, RD_E_INVALID, "a share of %g of %zu samples: none to evaluate with", o->eval_share,
                         r->data.n);
    if (!o->eval_data && r->n_eval > 0) { /* some of all: the order of the file may mean something */
        shuffle(r->order, r->data.n, o->seed, UINT32_MAX);
        for (uint64_t i = 0; i < r->data.n; i++) /* a permutation applied in place: follow it from each place */
            for (uint64_t k = r->order[i]; k != i; k = r->order[i]) {
                struct rd_train_sample x = r->data.samples[i];

                r->data.samples[i] = r->data.samples[k];
                r->data.samples[k] = x;
                r->order[i] = r->order[k];
                r->order[k] = (uint32_t)k;
            }
    }
    r->eval_samples = o->eval_data ? r->eval.samples : r->data.samples + r->n_train;
    r->per_epoch = (r->n_train + o->batch - 1) / o->batch;
    r->n_steps = o->n_steps > 0 ? o->n_steps : (uint64_t)ceil(o->epochs * (double)r->per_epoch);
    r->epoch = UINT64_MAX;
    return RD_OK;
}

static void make_digest(struct train_run *r)
{
    const struct rd_train_options *o = r->o;
    const double numbers[] = {o->batch,      (double)r->n_steps,  o->lr,
                              o->warm_up,    (double)r->schedule, (double)r->n_train,
                              o->eval_every, (double)r->n_eval,   o->patience};
    struct hash128 parts[3] = {r->data.digest, r->eval.digest, hash128_of(numbers, sizeof(numbers))};

    r->more.digest = hash128_of(parts, sizeof(parts));
    buf_printf(
        &r->lines,
        "steps %llu\nlr %.9g\nschedule %s\nwarm-up %.9g\nbatch %u\nsamples %llu\neval-samples %llu\neval-every %u\n"
        "patience %u\ndata %016llx\neval-data %016llx\n",
        (unsigned long long)r->n_steps, o->lr, o->schedule ? o->schedule : "cosine", o->warm_up, o->batch,
        (unsigned long long)r->n_train, (unsigned long long)r->n_eval, o->eval_every, o->patience,
        (unsigned long long)r->data.digest.high, (unsigned long long)r->eval.digest.high);
    buf_putc(&r->lines, 0);
    r->more.lines = r->lines.failed ? NULL : r->lines.data;
}

/* ---- files ---- */

static rd_status path_in(const struct train_run *r, const char *name, char path[LIMIT_PATH_BYTES], struct rd_error *err)
{
    if (snprintf(path, LIMIT_PATH_BYTES, "%s/%s", r->o->out, name) < (int)LIMIT_PATH_BYTES) return RD_OK;
    return error_set(err, RD_E_LIMIT, "the path of the output is too long");
}

/* A whole file or none. */
static rd_status write_text(const struct train_run *r, const char *name, struct buf *b, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];
    rd_status st = b->failed ? error_set(err, RD_E_NOMEM, "out of memory") : path_in(r, name, path, err);

    if (st == RD_OK) st = file_out_all(path, b->data ? b->data : "", b->n, err);
    buf_deinit(b);
    return st;
}

static rd_status write_log(struct train_run *r, struct rd_error *err)
{
    struct buf b = {0};
    rd_status st;

    for (size_t i = 0; i < r->n_points; i++) {
        const struct train_point *p = &r->points[i];

        buf_printf(&b, "{\"step\": %llu, \"loss\": %.17g, \"lr\": %.17g, \"norm\": %.17g, \"tokens\": %llu",
                   (unsigned long long)p->step, p->loss, p->lr, p->norm, (unsigned long long)p->n_tokens);
        if (!isnan(p->eval)) buf_printf(&b, ", \"eval_loss\": %.17g", p->eval);
        buf_puts(&b, "}\n");
    }
    st = write_text(r, "log.jsonl", &b, err);
    if (st != RD_OK) return st;
    train_plot(r->points, r->n_points, &b);
    return write_text(r, "loss.svg", &b, err);
}

static rd_status save_checkpoint(struct train_run *r, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];
    rd_status st = write_log(r, err);

    if (st == RD_OK) st = path_in(r, "checkpoint.radish", path, err);
    return st == RD_OK ? api_checkpoint_write(r->t, path, &r->more, err) : st;
}

static rd_status save_adapter(struct train_run *r, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];
    rd_status st = rd_trainer_save(r->t, r->o->out, false, err);

    if (st == RD_OK && r->o->gguf && (st = path_in(r, "adapter.gguf", path, err)) == RD_OK)
        st = rd_trainer_save(r->t, path, true, err);
    r->has_adapter |= st == RD_OK;
    return st;
}

static bool note(struct train_run *r, struct train_point p)
{
    if (!mem_grow((void **)&r->points, &r->cap_points, r->n_points + 1, sizeof(p))) return false;
    r->points[r->n_points++] = p;
    if (isnan(p.eval)) return true;
    if (p.eval < r->best) {
        r->best = p.eval;
        r->n_worse = 0;
        r->has_adapter = true; /* saved right before, or by the run before this one */
    } else {
        r->n_worse++;
    }
    return true;
}

/* The log's lines of the checkpoint's steps. */
static rd_status read_log(struct train_run *r, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES], *bytes = NULL;
    size_t n = 0;
    rd_status st = path_in(r, "log.jsonl", path, err);

    if (st == RD_OK) st = file_read_all(path, (size_t)1 << 30, &bytes, &n, err);
    for (char *at = bytes, *end; st == RD_OK && at && (end = strchr(at, '\n')); at = end + 1) {
        json_error_t why = {.text = ""};
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_DECODE_INT_AS_REAL, &why);
        const json_t *eval = json_object_get(line, "eval_loss");
        struct train_point p = {.step = (uint64_t)json_number_value(json_object_get(line, "step")),
                                .loss = json_number_value(json_object_get(line, "loss")),
                                .lr = json_number_value(json_object_get(line, "lr")),
                                .norm = json_number_value(json_object_get(line, "norm")),
                                .n_tokens = (uint64_t)json_number_value(json_object_get(line, "tokens")),
                                .eval = eval ? json_number_value(eval) : NAN};

        if (!line && json_error_code(&why) == json_error_out_of_memory)
            st = error_set(err, RD_E_NOMEM, "out of memory");
        else if (!line || p.step != r->n_points + 1)
            st = error_set(err, RD_E_FORMAT, "%.300s: no log of a training, or changed", path);
        else if (p.step <= rd_trainer_n_steps(r->t) && !note(r, p))
            st = error_set(err, RD_E_NOMEM, "out of memory");
        bool is_done = p.step >= rd_trainer_n_steps(r->t);

        json_decref(line);
        if (is_done) break;
    }
    if (st == RD_OK && r->n_points != rd_trainer_n_steps(r->t))
        st = error_set(err, RD_E_FORMAT, "%.300s: the log ends before the checkpoint", path);
    mem_free(bytes);
    return st;
}

/* What a killed training was writing. */
static bool is_half(void *arg, const char *name)
{
    if (strstr(name, ".part-")) cache_dir_remove(arg, name);
    return true;
}

/* Before the model and the data are read, which takes a while: that there is a place for the result. */
static rd_status look_at_folder(struct train_run *r, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES], config[LIMIT_PATH_BYTES];
    rd_status st;

    r->made_folder = !file_exists(r->o->out);
    st = file_out_folder(r->o->out, err);

    if (st == RD_OK) st = path_in(r, "checkpoint.radish", path, err);
    if (st == RD_OK) st = path_in(r, "adapter_config.json", config, err);
    if (st != RD_OK) return st;
    if (data_file_lock_dir(r->o->out, &r->lock) == RD_E_AGAIN) /* where there are no locks it goes without */
        return error_set(err, RD_E_INVALID, "%.300s: another training writes there", r->o->out);
    if (!r->o->resume && (file_exists(path) || file_exists(config)))
        return error_set(err, RD_E_INVALID, "%.300s holds a training already: resume it, or choose another folder",
                         r->o->out);
    if (r->o->resume) (void)cache_dir_list(r->o->out, is_half, (void *)(uintptr_t)r->o->out);
    return RD_OK;
}

static rd_status begin(struct train_run *r, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];
    rd_status st = path_in(r, "checkpoint.radish", path, err);

    if (st != RD_OK || !r->o->resume || !file_exists(path)) return st;
    st = api_checkpoint_read(r->t, path, &r->more, err);
    return st == RD_OK ? read_log(r, err) : st;
}

/* ---- steps ---- */

/* The samples of a step (from 0); the epoch's last may be fewer. */
static uint32_t fill_batch(struct train_run *r, uint64_t step)
{
    uint64_t epoch = step / r->per_epoch, at = step % r->per_epoch * r->o->batch;
    uint32_t n = (uint32_t)u64_min(r->o->batch, r->n_train - at);

    if (epoch != r->epoch) shuffle(r->order, r->n_train, r->o->seed, (uint32_t)epoch);
    r->epoch = epoch;
    for (uint32_t i = 0; i < n; i++) r->batch[i] = r->data.samples[r->order[at + i]];
    return n;
}

static rd_status evaluate(struct train_run *r, double *loss, struct rd_error *err)
{
    double sum = 0;
    uint64_t n_targets = 0;
    rd_status st = RD_OK;

    for (uint64_t i = 0; i < r->n_eval && st == RD_OK; i += 64) {
        struct rd_train_result part;

        st = rd_trainer_loss(r->t, r->eval_samples + i, (uint32_t)u64_min(64, r->n_eval - i), NULL, &part, err);
        if (st != RD_OK) break;
        sum += part.loss * (double)part.n_targets;
        n_targets += part.n_targets;
    }
    *loss = sum / (double)n_targets;
    return st;
}

static int tell(struct train_run *r, const struct train_point *p, const struct rd_train_result *res)
{
    struct rd_train_progress now = {.step = p->step,
                                    .n_steps = r->n_steps,
                                    .loss = p->loss,
                                    .lr = p->lr,
                                    .norm = p->norm,
                                    .eval_loss = p->eval,
                                    .n_tokens = res->n_tokens};

    if (!r->o->progress) return 0;
    now.seconds = (double)(clock_now_ns(clock_system()) - r->begun_ns) * 1e-9;
    r->tokens += res->n_tokens;
    now.tokens_per_s = (double)r->tokens / fmax(now.seconds, 1e-9);
    now.seconds_left = now.seconds / (double)(p->step - r->first_step) * (double)(r->n_steps - p->step);
    return r->o->progress(r->o->progress_user, &now);
}

/* *stop: the caller, or patience, wants no more. */
static rd_status one_step(struct train_run *r, bool *stop, struct rd_error *err)
{
    const struct rd_train_options *o = r->o;
    struct train_point p = {.step = rd_trainer_n_steps(r->t) + 1, .eval = NAN};
    struct rd_train_result res;
    uint32_t n = fill_batch(r, p.step - 1);
    rd_status st;

    p.lr = lr_at(r->schedule, o->lr, p.step, (uint64_t)ceil(o->warm_up * (double)r->n_steps), r->n_steps);
    st = rd_trainer_step(r->t, r->batch, n, p.lr, &res, err);
    if (st != RD_OK) return st;
    p.loss = res.loss;
    p.norm = res.norm;
    p.n_tokens = res.n_tokens;
    if (r->n_eval > 0 && (p.step % o->eval_every == 0 || p.step == r->n_steps)) {
        st = evaluate(r, &p.eval, err);
        if (st == RD_OK && p.eval < r->best) st = save_adapter(r, err);
    }
    if (st == RD_OK && !note(r, p)) st = error_set(err, RD_E_NOMEM, "out of memory");
    if (st == RD_OK && (p.step % o->save_every == 0 || p.step == r->n_steps)) st = save_checkpoint(r, err);
    if (st == RD_OK && tell(r, &p, &res) != 0) {
        st = p.step % o->save_every == 0 ? RD_OK : save_checkpoint(r, err);
        if (st == RD_OK)
            st = error_set(err, RD_E_CANCELLED, "stopped after step %llu, which is saved", (unsigned long long)p.step);
    }
    *stop = o->patience > 0 && r->n_worse >= o->patience;
    return st;
}

static rd_status run(struct train_run *r, struct rd_train_summary *sum, struct rd_error *err)
{
    bool stop = r->o->patience > 0 && r->n_worse >= r->o->patience;
    rd_status st = RD_OK;

    r->begun_ns = clock_now_ns(clock_system());
    r->first_step = rd_trainer_n_steps(r->t);
    while (st == RD_OK && !stop && rd_trainer_n_steps(r->t) < r->n_steps) st = one_step(r, &stop, err);
    if (st == RD_OK && stop) st = save_checkpoint(r, err);
    if (st == RD_OK && (r->n_eval == 0 || !r->has_adapter)) st = save_adapter(r, err);
    sum->stopped_early = stop;
    return st;
}

static void fill_summary(const struct train_run *r, struct rd_train_summary *sum)
{
    sum->n_steps = r->t ? rd_trainer_n_steps(r->t) : 0;
    sum->n_params = r->t ? rd_trainer_n_params(r->t) : 0;
    sum->n_samples = r->n_train;
    sum->n_eval = r->n_eval;
    sum->max_tokens = r->max_tokens;
    sum->n_cut = r->data.n_cut + r->eval.n_cut;
    sum->n_dropped = r->data.n_dropped + r->eval.n_dropped;
    sum->loss = r->n_points > 0 ? r->points[r->n_points - 1].loss : NAN;
    sum->best_eval = isfinite(r->best) ? r->best : NAN;
}

rd_status rd_train(const struct rd_train_options *o, struct rd_train_summary *out, struct rd_error *err)
{
    struct train_run r = {.o = o, .best = INFINITY, .lock = DATA_FILE_CLOSED};
    struct rd_train_summary sum = {.size = sizeof(sum)};
    struct rd_trainer_options to;
    rd_status st = check(o, &r, err);

    if (st != RD_OK) return st;
    to = o->trainer;
    to.seed = o->seed;
    json_set_alloc_funcs(api_json_alloc, mem_free);
    st = look_at_folder(&r, err);
    if (st == RD_OK) st = rd_trainer_open(&to, &r.t, err);
    if (st == RD_OK) st = read_data(&r, err);
    if (st == RD_OK) {
        make_digest(&r);
        st = begin(&r, err);
    }
    if (st == RD_OK) st = run(&r, &sum, err);
    if (st != RD_OK && r.made_folder) file_out_no_folder(o->out);
    fill_summary(&r, &sum);
    if (out) api_give(out, &sum, sizeof(sum), sizeof(sum));
    rd_trainer_close(r.t);
    train_data_deinit(&r.data);
    train_data_deinit(&r.eval);
    mem_free(r.order);
    mem_free(r.batch);
    mem_free(r.points);
    buf_deinit(&r.lines);
    data_file_close(&r.lock);
    return st;
}
