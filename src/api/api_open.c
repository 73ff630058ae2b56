/* api/api_open.c - options, loading a model, closing it.
 *
 * The text side (vocabulary, template) is built on a second thread while the weights are repacked.
 */
#include <stdio.h>
#include <string.h>
#include "api/api_sizes.h"
#include "api/api_state.h"
#include "api/api_tokenizer.h"
#include "backend/backend_registry.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "format/gguf/gguf_dump.h"
#include "format/model_file.h"
#include "model/vocab.h"

#define DEFAULT_PAGE_TOKENS 16u
#define DEFAULT_RUNNING     64u
#define DEFAULT_QUEUE       256u
#define PROMPT_STEP_MS      180u /* on a CPU: so long waits who comes during a prompt, at most */
#define DEFAULT_STEP_MS     50u
#define DEFAULT_TTL_S       1800u
#define PREP_QUEUE          4096u

const char *rd_version(void)
{
    return RADISH_VERSION;
}
void rd_free(void *p)
{
    mem_free(p);
}

void rd_options_default(struct rd_options *o)
{
    memset(o, 0, sizeof(*o));
    o->size = sizeof(*o);
    o->cache_ram_bytes = RD_CACHE_RAM_AUTO;
}

/* The family's format for a model without a template: by the architecture, or by the turn markers of its vocabulary. */
static const char *family_template(const rd_engine *e)
{
    static const struct {
        const char *marker, *format;
    } markers[] = {{"<|start_header_id|>", "llama3"}, {"<|im_start|>", "chatml"}, {"<start_of_turn>", "gemma"}};
    const char *format = model_chat_format(e->info.arch);

    for (size_t i = 0; !format && i < sizeof(markers) / sizeof(markers[0]); i++)
        if (tokenizer_find(e->tokenizer, markers[i].marker, (uint32_t)strlen(markers[i].marker)) != TOKEN_NONE)
            format = markers[i].format;
    return format ? format : "llama2";
}

static rd_status load_template(rd_engine *e, const char *file, struct rd_error *err)
{
    struct model_str source = {NULL, 0};
    char bos[256] = "", eos[256] = "", *text = NULL;
    struct text_span b = tokenizer_piece(e->tokenizer, tokenizer_bos(e->tokenizer), true);
    struct text_span o = tokenizer_piece(e->tokenizer, tokenizer_eos(e->tokenizer), true);
    size_t n = 0;
    rd_status st;

    snprintf(bos, sizeof(bos), "%.*s", (int)b.n, b.n ? b.s : "");
    snprintf(eos, sizeof(eos), "%.*s", (int)o.n, o.n ? o.s : "");
    if (file && !file_exists(file) && !strpbrk(file, "/.")) return chat_template_builtin(file, bos, eos, &e->chat, err);
    if (file) {
        st = file_read_all(file, LIMIT_TEMPLATE_BYTES, &text, &n, err);
        if (st == RD_OK) st = chat_template_create(text, n, bos, eos, &e->chat, err);
        mem_free(text);
        return st;
    }
    st = vocab_chat_template(e->gguf, &source);
    e->info.has_chat_template = st == RD_OK && source.n > 0;
    if (!e->info.has_chat_template) return chat_template_builtin(family_template(e), bos, eos, &e->chat, err);
    st = chat_template_create(source.s, source.n, bos, eos, &e->chat, err);
    if (st == RD_OK || st == RD_E_NOMEM) return st;
    log_warn("the model's chat template is not usable (%s); its family's format takes its place",
             err ? err->text : rd_status_text(st));
    return chat_template_builtin(family_template(e), bos, eos, &e->chat, err);
}

/* The text side, on its own thread. */
struct text_job {
    rd_engine *engine;
    const struct rd_options *o;
    rd_status st;
    struct rd_error err;
    double ms;
};

static double ms_since(uint64_t began_ns)
{
    return (double)(clock_now_ns(clock_system()) - began_ns) / 1e6;
}

static void load_text(void *arg)
{
    struct text_job *job = arg;
    uint64_t began = clock_now_ns(clock_system());

    job->st = vocab_load(job->engine->gguf, job->o->pre, &job->engine->tokenizer, &job->err);
    if (job->st == RD_OK) job->st = api_texts_init(job->engine, &job->err);
    if (job->st == RD_OK) job->st = load_template(job->engine, job->o->chat_template_file, &job->err);
    if (job->st == RD_OK) job->st = api_style_init(job->engine, job->o->tool_parser, &job->err);
    if (job->st == RD_OK)
        job->st = grammar_store_create(job->engine->tokenizer, job->o->grammar_bytes, &job->engine->grammars);
    job->ms = ms_since(began);
}

static void fill_names(rd_engine *e, const struct rd_options *o)
{
    size_t n;

    if (o->model_id)
        snprintf(e->info.model_id, sizeof(e->info.model_id), "%s", o->model_id);
    else
        model_name_of(o->model, e->info.model_id, sizeof(e->info.model_id));
    n = strlen(e->info.model_id);
    if (!o->model_id && n > 5 && strcmp(e->info.model_id + n - 5, ".gguf") == 0) e->info.model_id[n - 5] = 0;
}

/* The longest sequence: as asked for or the model's own, no longer than the KV budget. */
static uint32_t context_of(const rd_engine *e, const struct rd_options *o)
{
    uint32_t wanted = o->n_ctx ? u32_min(o->n_ctx, LIMIT_CONTEXT) : e->info.n_ctx_train;
    uint32_t n_ctx = (uint32_t)u64_min(wanted, e->info.kv_tokens);

    if (o->n_ctx && n_ctx < o->n_ctx)
        log_warn("context %u instead of %u: the KV budget holds no more (a larger --kv-bytes or --kv-tokens, or a "
                 "smaller --kv-type)",
                 n_ctx, o->n_ctx);
    if (e->info.n_ctx_train && n_ctx > e->info.n_ctx_train)
        log_warn("context %u: the model was made for %u, text beyond that may be poor", n_ctx, e->info.n_ctx_train);
    return n_ctx;
}

static uint32_t or_default(uint32_t v, uint32_t d)
{
    return v ? v : d;
}

static rd_status make_engine(rd_engine *e, const struct rd_options *o, struct rd_error *err)
{
    const uint32_t page_tokens = e->traits.layout.page_tokens;
    const uint64_t page_bytes = e->executor->page_bytes;
    struct engine_options eo = {0};
    char name[512];
    rd_status st;

    if (!(o->cache_verify >= 0 && o->cache_verify <= 1))
        return error_set(err, RD_E_INVALID, "cache_verify %g: a share from 0 to 1 is wanted", o->cache_verify);
    if ((st = api_store_check(e, o, err)) != RD_OK) return st;
    if (o->draft_model && !o->no_speculation) {
        st = api_draft_open(e, o->draft_model, or_default(o->max_running, DEFAULT_RUNNING), page_tokens, err);
        if (st != RD_OK) return st;
    }
    snprintf(name, sizeof(name), "%s|%s|%llu|%s", e->info.arch, e->info.name, (unsigned long long)e->info.file_bytes,
             e->info.kv_type);
    e->info.n_ctx = context_of(e, o);
    api_store_open(e, o, e->info.kv_type, page_tokens, page_bytes, name, sizeof(name));
    api_ram_open(e, o, page_tokens, page_bytes);
    if ((st = api_events_open(e, o, page_tokens, err)) != RD_OK) return st;
    e->info.max_running = or_default(o->max_running, DEFAULT_RUNNING);
    eo = (struct engine_options){.executor = *e->executor,
                                 .clock = clock_system(),
                                 .n_pages = e->traits.n_pages,
                                 .page_tokens = page_tokens,
                                 .n_ctx = e->info.n_ctx,
                                 .max_running = or_default(o->max_running, DEFAULT_RUNNING),
                                 .max_queue = or_default(o->max_queue, DEFAULT_QUEUE),
                                 .max_chunk = e->traits.max_chunk,
                                 .step_target_ns = (uint64_t)or_default(o->step_target_ms, DEFAULT_STEP_MS) * 1000000,
                                 .prompt_target_ns = e->traits.device.slow_prompts ? PROMPT_STEP_MS * 1000000ull : 0,
                                 .ttl_ns = (uint64_t)or_default(o->cache_ttl_s, DEFAULT_TTL_S) * 1000000000,
                                 .kv_bytes = e->info.kv_bytes,
                                 .speculate = !o->no_speculation,
                                 .draft_model = api_draft_model(e),
                                 .events = e->events,
                                 .store = e->store,
                                 .ram = e->ram,
                                 .isolate = o->isolate,
                                 .verify_share = o->cache_verify,
                                 .namespace_name = name,
                                 .namespace_bytes = strlen(name)};
    if (!e->info.exact && o->cache_verify > 0) {
        log_warn("--cache-verify: backend %s is not exact, so that nothing can be verified", e->info.backend);
        eo.verify_share = 0;
    }
    random_os(&eo.verify_seed, sizeof(eo.verify_seed));
    st = engine_create(&eo, &e->engine);
    return st == RD_OK ? st : error_set(err, st, "cannot create the engine: %s", rd_status_text(st));
}

rd_status api_check_reduce(const struct rd_options *o, struct rd_error *err)
{
    enum join_way way;

    if (join_way_parse(o->reduce, &way)) return RD_OK;
    return error_set(err, RD_E_INVALID, "reduce \"%.32s\": auto, peer, nccl or host is wanted", o->reduce);
}

struct executor_options api_executor_options(const struct rd_options *o, const struct model_file *file,
                                             const struct kv_layout *types)
{
    enum join_way way = JOIN_AUTO;

    join_way_parse(o->reduce, &way); /* api_check_reduce has looked at it */
    return (struct executor_options){.file = file,
                                     .device = o->device,
                                     .isa = o->isa,
                                     .n_threads = o->n_threads,
                                     .n_ranks = o->n_ranks,
                                     .join_way = way,
                                     .rank_patience_ns = o->rank_patience_s * 1000000000ull,
                                     .no_graphs = o->no_graphs,
                                     .no_warm_up = o->no_warm_up,
                                     .max_running = or_default(o->max_running, DEFAULT_RUNNING),
                                     .max_chunk = o->max_chunk,
                                     .page_tokens = or_default(o->page_tokens, DEFAULT_PAGE_TOKENS),
                                     .dtype_k = types->dtype_k,
                                     .dtype_v = types->dtype_v,
                                     .kv_bytes = o->kv_bytes,
                                     .kv_tokens = o->kv_tokens,
                                     .packed_dir = o->no_packed_cache ? NULL : o->packed_dir,
                                     .packed_bytes = o->packed_bytes,
                                     .progress = {o->progress, o->progress_user, o->cancelled}};
}

/* Device, weights, pages. */
static rd_status open_executor(rd_engine *e, const struct rd_options *o, const struct kv_layout *types,
                               struct rd_error *err)
{
    struct executor_options xo = api_executor_options(o, e->gguf, types);
    const struct executor_traits *t = &e->traits;
    rd_status st;

    xo.vision_file = e->eyes;
    st = executor_open(&xo, &e->executor, &e->traits, err);

    if (st != RD_OK) return st;
    snprintf(e->info.backend, sizeof(e->info.backend), "%s", t->about);
    e->info.on_host = t->device.shares_memory;
    e->info.exact = !t->device.is_inexact;
    e->info.weights_ms = t->weights_ms;
    e->info.packed_bytes = t->packed_bytes;
    e->info.weight_bytes = t->weight_bytes;
    e->info.workspace_bytes = t->workspace_bytes;
    api_kv_type_name(&t->layout, e->info.kv_type, sizeof(e->info.kv_type));
    e->info.page_tokens = t->layout.page_tokens;
    e->info.kv_bytes = t->kv_bytes;
    e->info.kv_tokens = (uint64_t)t->n_pages * t->layout.page_tokens;
    e->info.kv_bytes_per_token = t->kv_bytes / e->info.kv_tokens;
    return RD_OK;
}

static void fill_text_info(rd_engine *e)
{
    struct model_str name = {NULL, 0};

    e->info.n_vocab = tokenizer_n_tokens(e->tokenizer);
    e->info.bos = tokenizer_bos(e->tokenizer);
    e->info.eos = tokenizer_eos(e->tokenizer);
    if (model_file_str(e->gguf, "tokenizer.ggml.pre", &name, NULL) == RD_OK)
        error_quote(e->info.pre, sizeof(e->info.pre), name.s, name.n);
    api_embed_init(e);
}

static rd_status fill_model_info(rd_engine *e, const struct rd_options *o, const struct kv_layout *types,
                                 struct rd_error *err)
{
    struct model_config c;
    rd_status st = model_read_config(e->gguf, &c, err);

    if (st != RD_OK) return st;
    snprintf(e->info.arch, sizeof(e->info.arch), "%s", c.arch);
    snprintf(e->info.name, sizeof(e->info.name), "%s", c.name);
    e->info.n_ctx_train = c.n_ctx_train;
    e->info.n_vocab = c.n_vocab;
    e->info.n_layers = c.n_layers;
    e->info.hidden = c.hidden;
    e->info.file_bytes = model_file_bytes(e->gguf);
    for (uint64_t i = 0; i < model_file_n_tensors(e->gguf); i++) {
        const struct model_tensor *t = model_file_tensor(e->gguf, i);

        e->info.n_params += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        e->info.tensor_bytes += t->n_hub_bytes ? t->n_hub_bytes : t->n_bytes;
    }
    return api_kv_type_check(&c, o, types, err);
}

static rd_status open_file(const char *model, rd_engine **out, struct rd_error *err)
{
    rd_engine *e;
    rd_status st;

    json_set_alloc_funcs(api_json_alloc, mem_free);
    if (!model) return error_set(err, RD_E_INVALID, "no model given");
    e = mem_zalloc(1, sizeof(*e));
    if (!e) return error_set(err, RD_E_NOMEM, "out of memory");
    image_pot_init(&e->pot);
    e->opened_ns = clock_now_ns(clock_system());
    e->info.created_s = clock_wall_s(clock_system());
    st = model_file_open(model, model_hub_families(), &e->gguf, err);
    if (st == RD_OK) {
        struct model_str arch = {NULL, 0};

        if (model_file_str(e->gguf, "general.architecture", &arch, NULL) == RD_OK)
            error_quote(e->info.arch, sizeof(e->info.arch), arch.s, arch.n);
        *out = e;
        return st;
    }
    mem_free(e);
    return st;
}

static rd_status start_threads(rd_engine *e, struct rd_error *err)
{
    rd_status st = queue_create(PREP_QUEUE, &e->prep);

    if (st == RD_OK) {
        turns_init(&e->slow);
        turns_init(&e->far);
        if (e->engine) st = engine_start(e->engine);
    }
    if (st == RD_OK) st = thread_start(&e->slow_thread, "forms", api_slow_main, e);
    for (uint32_t i = 0; st == RD_OK && i < API_N_FAR && (e->sources.fetch || e->sources.dir); i++)
        st = thread_start(&e->far_threads[i], "far", api_far_main, e);
    for (uint32_t i = 0; st == RD_OK && i < API_N_PREP; i++)
        st = thread_start(&e->prep_threads[i], "prep", api_prep_main, e);
    return st == RD_OK ? st : error_set(err, st, "cannot start threads: %s", rd_status_text(st));
}

const char *rd_known_devices(void)
{
    return backend_devices();
}

/* Another program has the model: its file is not looked at here. */
static rd_status open_process(const struct rd_options *o, rd_engine **out, struct rd_error *err)
{
    rd_engine *e = mem_zalloc(1, sizeof(*e));
    rd_status st;

    json_set_alloc_funcs(api_json_alloc, mem_free);
    if (!e) return error_set(err, RD_E_NOMEM, "out of memory");
    image_pot_init(&e->pot);
    e->opened_ns = clock_now_ns(clock_system());
    e->info.created_s = clock_wall_s(clock_system());
    e->keep_volatile = o->no_normalise;
    e->sort_keys = o->sort_keys;
    e->sets_thinking = o->thinking;
    e->thinks_unasked = o->thinking && strcmp(o->thinking, "on") == 0;
    st = o->model ? RD_OK : error_set(err, RD_E_INVALID, "no model given");
    if (st == RD_OK) fill_names(e, o);
    if (st == RD_OK) st = api_process_open(e, o, err);
    if (st == RD_OK) st = start_threads(e, err);
    if (st != RD_OK) {
        rd_close(e);
        return st;
    }
    e->info.load_ms = ms_since(e->opened_ns);
    log_info("%s: %s, %.1f ms; context %u, %u at once", e->info.model_id, e->info.backend, e->info.load_ms,
             e->info.n_ctx, e->info.max_running);
    *out = e;
    return RD_OK;
}

rd_status rd_open(const struct rd_options *o, rd_engine **out, struct rd_error *err)
{
    uint32_t max_running;
    struct text_job job = {0};
    struct thread text_thread = {0};
    struct kv_layout types = {0};
    rd_engine *e = NULL;
    char rate[64] = "";
    double map_ms;
    rd_status st;

    *out = NULL;
    if (err) *err = (struct rd_error){RD_OK, ""};
    if (api_check_size(o->size, sizeof(*o), "rd_options_default", err) != RD_OK) return RD_E_INVALID;
    max_running = or_default(o->max_running, DEFAULT_RUNNING);
    if (max_running > 4096 || o->max_chunk > 65536)
        return error_set(err, RD_E_INVALID, "max_running: at most 4096; max_chunk: at most 65536");
    if (o->thinking && strcmp(o->thinking, "on") != 0 && strcmp(o->thinking, "off") != 0)
        return error_set(err, RD_E_INVALID, "thinking: on or off is wanted");
    st = api_check_reduce(o, err);
    if (st == RD_OK) st = api_kv_type_parse(o->kv_type, &types, err); /* before anything is loaded */
    if (st != RD_OK) return st;
    if (api_is_process(o->device) && o->n_ranks > 1)
        return error_set(err, RD_E_INVALID, "%u ranks: a program of its own (%s) has the model to itself", o->n_ranks,
                         o->device);
    if (api_is_process(o->device)) return open_process(o, out, err);
    st = open_file(o->model, &e, err);
    if (st != RD_OK) goto fail;
    e->keep_volatile = o->no_normalise;
    e->no_replay = o->no_replay;
    e->context_shift = o->context_shift;
    e->sort_keys = o->sort_keys;
    e->sets_thinking = o->thinking;
    e->thinks_unasked = o->thinking && strcmp(o->thinking, "on") == 0;
    fill_names(e, o);
    st = fill_model_info(e, o, &types, err);
    if (st != RD_OK) goto fail;
    job = (struct text_job){.engine = e, .o = o};
    if (thread_start(&text_thread, "vocab", load_text, &job) != RD_OK) load_text(&job);
    map_ms = ms_since(e->opened_ns);
    st = api_eyes_find(e, o, err);
    if (st == RD_OK) st = open_executor(e, o, &types, err);
    if (st == RD_OK) st = api_eyes_open(e, o, err);
    if (st == RD_OK) st = image_sources_init(&e->sources, o, err);
    thread_join(&text_thread);
    if (st == RD_OK && job.st != RD_OK) {
        st = job.st;
        if (err) *err = job.err;
    }
    if (st == RD_OK) api_eyes_check(e);
    if (st != RD_OK) goto fail;
    fill_text_info(e);
    if (e->info.n_vocab != e->executor->n_vocab) {
        st = error_set(err, RD_E_FORMAT, "tokenizer.ggml.tokens: %u tokens, but token_embd.weight has %u rows",
                       e->info.n_vocab, e->executor->n_vocab);
        goto fail;
    }
    st = make_engine(e, o, err);
    if (st == RD_OK) st = api_adapters_open(e, o, err);
    if (st == RD_OK) st = start_threads(e, err);
    if (st == RD_OK && e->store) api_names_open(e, o->cache_dir);
    if (st != RD_OK) goto fail;
    e->info.load_ms = ms_since(e->opened_ns);
    log_debug("load: file %.1f ms, device %.1f ms; beside that and weights: vocabulary and template %.1f ms; weights "
              "%.1f ms (%llu MiB packed copy, %llu MiB own); until ready %.1f ms",
              map_ms, e->traits.device_ms, job.ms, e->info.weights_ms, (unsigned long long)(e->info.packed_bytes >> 20),
              (unsigned long long)(e->info.weight_bytes >> 20), e->info.load_ms);
    if (!e->traits.device.shares_memory)
        snprintf(rate, sizeof(rate), " (weights %.1f ms, %.1f GB/s)", e->info.weights_ms,
                 (double)e->info.tensor_bytes / e->info.weights_ms / 1e6);
    log_event(LOG_INFO, "model_opened",
              LOG_FIELDS(LOG_F_TEXT("model", e->info.model_id), LOG_F_TEXT("arch", e->info.arch),
                         LOG_F_TEXT("backend", e->info.backend), LOG_F_REAL("ms", e->info.load_ms),
                         LOG_F_NUMBER("kv_tokens", e->info.kv_tokens), LOG_F_NUMBER("context", e->info.n_ctx)),
              "%s: %s, %s, %.1f ms%s; KV cache for %llu tokens, context %u", e->info.model_id, e->info.arch,
              e->info.backend, e->info.load_ms, rate, (unsigned long long)e->info.kv_tokens, e->info.n_ctx);
    if (e->traits.n_windows)
        log_info("%s: layers that see %u tokens have %u windows of %u tokens, %.1f MiB, beside %u pages",
                 e->info.model_id, e->traits.window, e->traits.n_windows, e->traits.layout.page_tokens,
                 (double)e->traits.n_windows * (double)e->traits.window_bytes / (1 << 20), e->traits.n_pages);
    *out = e;
    return RD_OK;

fail:
    rd_close(e);
    if (err && !err->text[0]) error_set(err, st, "cannot open the model: %s", rd_status_text(st));
    return st;
}

rd_status rd_open_tokenizer(const char *model, const char *pre, rd_engine **out, struct rd_error *err)
{
    struct rd_options o = {.model = model, .pre = pre};
    struct text_job job = {.o = &o};
    rd_engine *e = NULL;
    rd_status st;

    if (api_is_tokenizer_json(model)) return api_open_tokenizer_json(model, out, err);
    st = open_file(model, &e, err);
    *out = NULL;
    if (st != RD_OK) return st;
    fill_names(e, &o);
    job.engine = e;
    load_text(&job);
    if (job.st != RD_OK) {
        if (err) *err = job.err;
        rd_close(e);
        return job.st;
    }
    fill_text_info(e);
    *out = e;
    return RD_OK;
}

void rd_close(rd_engine *e)
{
    if (!e) return;
    if (e->prep) queue_close(e->prep);
    atomic_store(&e->sources.closing, true);
    for (uint32_t i = 0; i < API_N_PREP; i++) thread_join(&e->prep_threads[i]);
    if (e->prep) turns_close(&e->far);
    for (uint32_t i = 0; i < API_N_FAR; i++) thread_join(&e->far_threads[i]);
    if (e->prep) turns_close(&e->slow);
    thread_join(&e->slow_thread);
    if (e->prep) turns_deinit(&e->far);
    if (e->prep) turns_deinit(&e->slow);
    process_close(e->process);
    api_names_close(e);
    engine_destroy(e->engine);
    api_store_close(e);
    api_draft_close(e);
    queue_destroy(e->prep);
    api_adapters_close(e);
    executor_close(e->executor);
    api_eyes_close(e);
    image_sources_deinit(&e->sources);
    image_pot_deinit(&e->pot);
    chat_template_destroy(e->chat);
    api_style_deinit(&e->style);
    grammar_store_destroy(e->grammars);
    token_memory_destroy(e->texts);
    salt_ring_deinit(&e->salts);
    api_memory_close(e);
    tokenizer_destroy(e->tokenizer);
    model_file_close(e->gguf);
    mem_free(e);
}

void rd_get_info(const rd_engine *engine, struct rd_info *out)
{
    api_give(out, &engine->info, sizeof(engine->info), API_FIRST_INFO);
}
