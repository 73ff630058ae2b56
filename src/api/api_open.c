/* api/api_open.c - options, loading a model, closing it.
 *
 * The text side (vocabulary, template) is built on a second thread while the weights are repacked.
 */
#include <stdio.h>
#include <string.h>
#include "api/api_state.h"
#include "backend/backend_registry.h"
#include "api/api_tokenizer.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/sysinfo.h"
#include "format/gguf/gguf_dump.h"
#include "format/model_file.h"
#include "format/packed_file.h"
#include "model/vocab.h"

#define KV_MIN_BYTES (256ull << 20)
#define KV_MAX_BYTES (8ull << 30)
#define DEFAULT_PAGE_TOKENS 16u
#define DEFAULT_RUNNING 64u
#define DEFAULT_QUEUE 256u
#define DEFAULT_CHUNK 1024u              /* as far as PROMPT_STEP_MS allows */
#define PROMPT_STEP_MS 180u              /* on a CPU: so long waits who comes during a prompt, at most */
#define DEFAULT_CHUNK_DEVICE 2048u
#define DEFAULT_STEP_MS 50u
#define DEFAULT_TTL_S 1800u
#define PREP_QUEUE 4096u
#define PACKED_MAX_BYTES (16ull << 30)
#define PACKED_MIN_BYTES (16ull << 20)
#define LOGITS_BYTES                                                                                                   \
    (24ull << 20) /* rows of logits at once: big vocabularies get fewer, their sequences take turns                    \
                   */
#define LOGITS_MIN_ROWS 8u

const char *rd_version(void) { return RADISH_VERSION; }
void rd_free(void *p) { mem_free(p); }

void rd_options_default(struct rd_options *o)
{
    memset(o, 0, sizeof(*o));
    o->cache_ram_bytes = RD_CACHE_RAM_AUTO;
}

/* The family's format for a model without a template: by the architecture, or by the turn markers of its vocabulary. */
static const char *family_template(const rd_engine *e)
{
    static const struct { const char *marker, *format; } markers[] = {
        {"<|start_header_id|>", "llama3"}, {"<|im_start|>", "chatml"}, {"<start_of_turn>", "gemma"}};
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
struct text_job { rd_engine *engine; const struct rd_options *o; rd_status st; struct rd_error err; double ms; };

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
    job->ms = ms_since(began);
}

static void fill_names(rd_engine *e, const struct rd_options *o)
{
    size_t n;

    if (o->model_id) snprintf(e->info.model_id, sizeof(e->info.model_id), "%s", o->model_id);
    else model_name_of(o->model, e->info.model_id, sizeof(e->info.model_id));
    n = strlen(e->info.model_id);
    if (!o->model_id && n > 5 && strcmp(e->info.model_id + n - 5, ".gguf") == 0) e->info.model_id[n - 5] = 0;
}

/* A GPU's memory is the cache's, but for what the driver and a later kernel may want. */
static uint64_t default_kv_bytes(const rd_engine *e)
{
    uint64_t left = e->ops->free_bytes ? e->ops->free_bytes(e->backend) : 0;

    if (e->ops->free_bytes) return left / 100 * 92 > KV_MIN_BYTES ? left / 100 * 92 : left;
    return u64_min(KV_MAX_BYTES, u64_max(KV_MIN_BYTES, sysinfo_memory() / 5));
}

/* Pages for the budget; at least one page more than one token needs. */
static rd_status size_cache(rd_engine *e, const struct rd_options *o, struct kv_layout *layout, uint32_t *n_pages,
                            struct rd_error *err)
{
    const struct model_config *c = model_config(e->model);
    uint64_t bytes = o->kv_bytes, page_bytes, n;
    rd_status st;

    layout->n_layers = c->n_layers;
    layout->n_kv_heads = c->n_kv_heads;
    layout->head_dim = c->head_dim;
    layout->page_tokens = o->page_tokens ? o->page_tokens : DEFAULT_PAGE_TOKENS;
    if (layout->page_tokens > 1024 || (layout->page_tokens & (layout->page_tokens - 1)))
        return error_set(err, RD_E_INVALID, "page_tokens %u: must be a power of two up to 1024", layout->page_tokens);
    if ((st = api_kv_type_parse(o->kv_type, layout, err)) != RD_OK) return st;
    if ((st = api_kv_type_check(e, o, layout, err)) != RD_OK) return st;
    api_kv_type_name(layout, e->info.kv_type, sizeof(e->info.kv_type));
    page_bytes = kv_page_bytes(layout);
    if (bytes == 0) bytes = default_kv_bytes(e);
    n = o->kv_tokens ? (o->kv_tokens - 1) / layout->page_tokens + 1 : bytes / page_bytes;
    if (n < 2)
        return error_set(err, RD_E_INVALID, "KV budget of %llu bytes: one page needs %llu, at least 2 pages are wanted",
                         (unsigned long long)bytes, (unsigned long long)page_bytes);
    *n_pages = (uint32_t)u64_min(u64_min(n, UINT32_MAX - 1), INT64_MAX / page_bytes);
    /* Pages get memory as they are first used: without this a budget that is too large ends by the kernel, later. */
    if ((o->kv_bytes || o->kv_tokens) && e->ops->traits.shares_memory && *n_pages * page_bytes > sysinfo_memory())
        return error_set(err, RD_E_NOMEM, "KV budget of %llu MiB: this machine, or its control group, has %llu MiB of "
                         "memory in all", (unsigned long long)(*n_pages * page_bytes >> 20),
                         (unsigned long long)(sysinfo_memory() >> 20));
    e->info.page_tokens = layout->page_tokens;
    e->info.kv_bytes = *n_pages * page_bytes;
    e->info.kv_tokens = (uint64_t)*n_pages * layout->page_tokens;
    e->info.kv_bytes_per_token = page_bytes / layout->page_tokens;
    return RD_OK;
}

/* The longest sequence: as asked for or the model's own, no longer than the KV budget. */
static uint32_t context_of(const rd_engine *e, const struct rd_options *o)
{
    uint32_t wanted = o->n_ctx ? u32_min(o->n_ctx, LIMIT_CONTEXT) : e->info.n_ctx_train;
    uint32_t n_ctx = (uint32_t)u64_min(wanted, e->info.kv_tokens);

    if (o->n_ctx && n_ctx < o->n_ctx)
        log_warn("context %u instead of %u: the KV budget holds no more (a larger --kv-bytes or --kv-tokens, or a "
                 "smaller --kv-type)", n_ctx, o->n_ctx);
    if (e->info.n_ctx_train && n_ctx > e->info.n_ctx_train)
        log_warn("context %u: the model was made for %u, text beyond that may be poor", n_ctx, e->info.n_ctx_train);
    return n_ctx;
}

static uint32_t or_default(uint32_t v, uint32_t d) { return v ? v : d; }

static uint32_t default_chunk(const rd_engine *e)
{
    return e->ops->traits.slow_prompts ? DEFAULT_CHUNK : DEFAULT_CHUNK_DEVICE;
}

static rd_status make_engine(rd_engine *e, const struct rd_options *o, uint32_t max_rows, uint32_t max_logits,
                             struct rd_error *err)
{
    struct kv_layout layout = {0};
    char name[512];
    uint32_t n_pages = 0;
    struct engine_options eo = {0};
    rd_status st = size_cache(e, o, &layout, &n_pages, err);

    if (st != RD_OK) return st;
    if (!(o->cache_verify >= 0 && o->cache_verify <= 1))
        return error_set(err, RD_E_INVALID, "cache_verify %g: a share from 0 to 1 is wanted", o->cache_verify);
    st = model_executor_init(&e->executor, e->ops, e->backend, e->model, &layout, n_pages);
    if (st != RD_OK)
        return error_set(err, st, "cannot reserve %llu MiB for the KV cache",
                         (unsigned long long)(e->info.kv_bytes >> 20));
    if ((st = api_store_check(e, o, err)) != RD_OK) return st;
    if (o->draft_model && !o->no_speculation) {
        st = api_draft_open(e, o->draft_model, or_default(o->max_running, DEFAULT_RUNNING), layout.page_tokens, err);
        if (st != RD_OK) return st;
    }
    snprintf(name, sizeof(name), "%s|%s|%llu|%s", e->info.arch, e->info.name, (unsigned long long)e->info.file_bytes,
             e->info.kv_type);
    e->info.n_ctx = context_of(e, o);
    api_store_open(e, o, e->info.kv_type, layout.page_tokens, e->executor.kv.page_bytes, name, sizeof(name));
    api_ram_open(e, o, layout.page_tokens, e->executor.kv.page_bytes);
    e->info.max_running = or_default(o->max_running, DEFAULT_RUNNING);
    eo = (struct engine_options){.executor = model_executor_view(&e->executor, max_rows, max_logits),
                                 .clock = clock_system(),
                                 .n_pages = n_pages,
                                 .page_tokens = layout.page_tokens,
                                 .n_ctx = e->info.n_ctx,
                                 .max_running = or_default(o->max_running, DEFAULT_RUNNING),
                                 .max_queue = or_default(o->max_queue, DEFAULT_QUEUE),
                                 .max_chunk = or_default(o->max_chunk, default_chunk(e)),
                                 .step_target_ns = (uint64_t)or_default(o->step_target_ms, DEFAULT_STEP_MS) * 1000000,
                                 .prompt_target_ns = e->ops->traits.slow_prompts ? PROMPT_STEP_MS * 1000000ull : 0,
                                 .ttl_ns = (uint64_t)or_default(o->cache_ttl_s, DEFAULT_TTL_S) * 1000000000,
                                 .kv_bytes = e->info.kv_bytes,
                                 .speculate = !o->no_speculation,
                                 .draft_model = api_draft_model(e),
                                 .store = e->store,
                                 .ram = e->ram,
                                 .isolate = o->isolate,
                                 .verify_share = o->cache_verify,
                                 .namespace_name = name,
                                 .namespace_bytes = strlen(name)};
    random_os(&eo.verify_seed, sizeof(eo.verify_seed));
    st = engine_create(&eo, &e->engine);
    return st == RD_OK ? st : error_set(err, st, "cannot create the engine: %s", rd_status_text(st));
}

static rd_status load_weights(rd_engine *e, const struct rd_options *o, uint32_t max_rows, uint32_t max_logits,
                              struct rd_error *err)
{
    struct model_progress progress = {o->progress, o->progress_user};
    struct packed_options packed = {.cap_bytes = o->packed_bytes ? o->packed_bytes : PACKED_MAX_BYTES,
                                    .min_bytes = PACKED_MIN_BYTES,
                                    .settle_ns = PACKED_SETTLE_NS,
                                    .n_threads = o->n_threads ? o->n_threads : thread_n_physical_cores()};
    struct model_source source = {e->gguf, e->ops, e->backend, max_rows, max_logits, &progress, NULL};
    uint64_t began;
    rd_status st;

    if (o->packed_dir && !o->no_packed_cache) {
        e->packed_dir = mem_strdup(o->packed_dir);      /* the thread that writes may need it until rd_close */
        if (!e->packed_dir) return error_set(err, RD_E_NOMEM, "out of memory");
        packed.dir = e->packed_dir;
        source.packed = &packed;
    }
    began = clock_now_ns(clock_system());
    st = model_load_packed(&source, &e->model, err);
    if (st != RD_OK) return st;
    e->info.weights_ms = ms_since(began);
    e->info.packed_bytes = model_packed_bytes(e->model);
    e->ops->describe(e->backend, e->info.backend, sizeof(e->info.backend));
    e->info.weight_bytes = model_weight_bytes(e->model);
    e->info.workspace_bytes = model_workspace_bytes(e->model);
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

static rd_status fill_model_info(rd_engine *e, struct rd_error *err)
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
    return RD_OK;
}

static rd_status open_file(const char *model, rd_engine **out, struct rd_error *err)
{
    rd_engine *e;
    rd_status st;

    json_set_alloc_funcs(api_json_alloc, mem_free);
    if (!model) return error_set(err, RD_E_INVALID, "no model given");
    e = mem_zalloc(1, sizeof(*e));
    if (!e) return error_set(err, RD_E_NOMEM, "out of memory");
    e->ops = &backend_cpu_ops;
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

    if (st == RD_OK) st = engine_start(e->engine);
    for (uint32_t i = 0; st == RD_OK && i < API_N_PREP; i++)
        st = thread_start(&e->prep_threads[i], "prep", api_prep_main, e);
    return st == RD_OK ? st : error_set(err, st, "cannot start threads: %s", rd_status_text(st));
}

static uint32_t logits_rows(const rd_engine *e, uint32_t max_running)
{
    uint64_t n = LOGITS_BYTES / ((uint64_t)e->info.n_vocab * sizeof(float));

    if (!e->ops->traits.shares_memory) n = max_running;
    /* one sequence with all its drafts fits in any case */
    return u32_min(u32_max(max_running, DRAFT_MAX + 1), u32_max((uint32_t)n, LOGITS_MIN_ROWS));
}

static rd_status open_device(rd_engine *e, const struct rd_options *o, struct rd_error *err)
{
    const struct backend_options bo = {.n_threads = o->n_threads, .isa = o->isa, .no_graphs = o->no_graphs};

    return backend_open(o->device, &bo, &e->ops, &e->backend, err);
}

const char *rd_known_devices(void)
{
    return backend_devices();
}

rd_status rd_open(const struct rd_options *o, rd_engine **out, struct rd_error *err)
{
    uint32_t max_running = or_default(o->max_running, DEFAULT_RUNNING);
    uint32_t max_rows, max_logits;
    struct text_job job = {0};
    struct thread text_thread = {0};
    struct kv_layout types = {0};
    rd_engine *e = NULL;
    char rate[64] = "";
    double map_ms;
    rd_status st;

    *out = NULL;
    if (err) *err = (struct rd_error){RD_OK, ""};
    if (max_running > 4096 || o->max_chunk > 65536)
        return error_set(err, RD_E_INVALID, "max_running: at most 4096; max_chunk: at most 65536");
    st = api_kv_type_parse(o->kv_type, &types, err);            /* before anything is loaded */
    if (st != RD_OK) return st;
    st = open_file(o->model, &e, err);
    if (st != RD_OK) goto fail;
    e->keep_volatile = o->no_normalise;
    e->no_replay = o->no_replay;
    e->sort_keys = o->sort_keys;
    fill_names(e, o);
    st = fill_model_info(e, err);
    if (st != RD_OK) goto fail;
    job = (struct text_job){.engine = e, .o = o};
    if (thread_start(&text_thread, "vocab", load_text, &job) != RD_OK) load_text(&job);
    st = open_device(e, o, err);
    max_rows = u32_max(or_default(o->max_chunk, default_chunk(e)), max_running);
    max_logits = logits_rows(e, max_running);
    map_ms = ms_since(e->opened_ns);
    if (st == RD_OK) st = load_weights(e, o, max_rows, max_logits, err);
    thread_join(&text_thread);
    if (st == RD_OK && job.st != RD_OK) {
        st = job.st;
        if (err) *err = job.err;
    }
    if (st != RD_OK) goto fail;
    fill_text_info(e);
    if (e->info.n_vocab != model_config(e->model)->n_vocab) {
        st = error_set(err, RD_E_FORMAT, "tokenizer.ggml.tokens: %u tokens, but token_embd.weight has %u rows",
                       e->info.n_vocab, model_config(e->model)->n_vocab);
        goto fail;
    }
    st = make_engine(e, o, max_rows, max_logits, err);
    if (st == RD_OK) st = start_threads(e, err);
    if (st != RD_OK) goto fail;
    e->info.load_ms = ms_since(e->opened_ns);
    log_debug("load: file and device %.1f ms; beside that and weights: vocabulary and template %.1f ms; weights "
              "%.1f ms (%llu MiB packed copy, %llu MiB own); until ready %.1f ms",
              map_ms, job.ms, e->info.weights_ms, (unsigned long long)(e->info.packed_bytes >> 20),
              (unsigned long long)(e->info.weight_bytes >> 20), e->info.load_ms);
    if (!e->ops->traits.shares_memory)
        snprintf(rate, sizeof(rate), " (weights %.1f ms, %.1f GB/s)", e->info.weights_ms,
                 (double)e->info.tensor_bytes / e->info.weights_ms / 1e6);
    log_info("%s: %s, %s, %.1f ms%s; KV cache for %llu tokens, context %u", e->info.model_id, e->info.arch,
             e->info.backend, e->info.load_ms, rate, (unsigned long long)e->info.kv_tokens, e->info.n_ctx);
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
    for (uint32_t i = 0; i < API_N_PREP; i++) thread_join(&e->prep_threads[i]);
    engine_destroy(e->engine);
    api_store_close(e);
    api_draft_close(e);
    queue_destroy(e->prep);
    model_executor_deinit(&e->executor);
    model_destroy(e->model);
    if (e->backend) e->ops->destroy(e->backend);
    chat_template_destroy(e->chat);
    api_style_deinit(&e->style);
    token_memory_destroy(e->texts);
    salt_ring_deinit(&e->salts);
    api_memory_close(e);
    tokenizer_destroy(e->tokenizer);
    model_file_close(e->gguf);
    mem_free(e->packed_dir);
    mem_free(e);
}

void rd_get_info(const rd_engine *engine, struct rd_info *out)
{
    *out = engine->info;
}
