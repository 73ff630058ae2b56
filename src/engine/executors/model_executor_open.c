/* engine/executors/model_executor_open.c - the front door: device, weights, pages; what is left of memory decides how many. */
#include <stdio.h>
#include <string.h>
#include "backend/backend_registry.h"
#include "backend/compose.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sysinfo.h"
#include "base/thread.h"
#include "engine/executors/model_executor.h"
#include "engine/executors/rank_executor.h"
#include "engine/request.h"
#include "format/packed_file.h"
#include "model/share.h"

#define KV_MIN_BYTES     (256ull << 20)
#define CHUNK_SLOW       1024u /* as far as the engine's target time allows */
#define CHUNK_FAST       2048u
#define PACKED_MAX_BYTES (16ull << 30)
#define PACKED_MIN_BYTES (16ull << 20)
#define LOGITS_BYTES     (24ull << 20) /* rows of logits: big vocabularies get fewer, their sequences take turns */
#define LOGITS_MIN_ROWS  8u
#define WINDOW_TEXT      8192u /* tokens */
#define WINDOW_SPARE     1248u
#define WINDOW_CHUNK     512u
#define WINDOW_EDGES     4u /* pages: on either side of a window, a copy on write, the next token's */

/* What executor_open made; the view's self is x. */
struct open_model {
    struct model_executor x;
    struct executor face;
    bool owns_backend;
    struct vision_encoder *eyes;
    struct backend *eyes_backend; /* a CPU's, beside a device that computes no encoders; NULL: the model's */
    char *packed_dir;             /* the thread that writes may need it until the model is gone */
};

static struct open_model *of_executor(const struct executor *x)
{
    return (struct open_model *)x->self; /* its first member */
}

struct model_executor *model_executor_of(const struct executor *x)
{
    return &of_executor(x)->x;
}

static double ms_since(uint64_t began_ns)
{
    return (double)(clock_now_ns(clock_system()) - began_ns) / 1e6;
}

static void close_model(void *self)
{
    struct open_model *m = self;

    model_executor_deinit(&m->x);
    vision_encoder_close(m->eyes);
    if (m->eyes_backend) backend_cpu_ops.life.destroy(m->eyes_backend);
    model_destroy(m->x.model);
    if (m->x.backend && m->owns_backend) m->x.ops->life.destroy(m->x.backend);
    mem_free(m->packed_dir);
    mem_free(m);
}

static rd_status open_device(struct open_model *m, const struct executor_options *o, struct executor_traits *t,
                             struct rd_error *err)
{
    const struct backend_options bo = {.n_threads = o->n_threads,
                                       .isa = o->isa,
                                       .rank = o->as_rank ? o->as_rank->rank : 0,
                                       .n_ranks = o->as_rank ? o->as_rank->n_ranks : 1,
                                       .join_way = o->join_way,
                                       .no_graphs = o->no_graphs};
    rd_status st = RD_OK;

    if (o->beside) {
        m->x.ops = model_executor_of(rank_executor_first(o->beside))->ops;
        m->x.backend = model_executor_of(rank_executor_first(o->beside))->backend;
    } else {
        st = backend_open(o->device, &bo, &m->x.ops, &m->x.backend, err);
        m->owns_backend = st == RD_OK;
    }
    if (st != RD_OK) return st;
    t->device = m->x.ops->traits;
    t->in_host_memory = !m->x.ops->memory.free_bytes;
    m->x.ops->life.describe(m->x.backend, t->about, sizeof(t->about));
    if (t->device.build)
        snprintf(t->computes, sizeof(t->computes), "%s %016llx", m->x.ops->name, (unsigned long long)t->device.build);
    else
        snprintf(t->computes, sizeof(t->computes), "%s", t->device.same_everywhere ? m->x.ops->name : t->about);
    return RD_OK;
}

/* What the backend cannot do with rows of these images; NULL: it can. */
static const char *missing_op(const struct backend_ops *ops, const struct vision_traits *v)
{
    return v->both_ways && !ops->traits.sees_both_ways ? "attention in both directions"
           : v->three_axes && !ops->traits.turns_axes  ? "RoPE by three positions"
                                                       : NULL;
}

static rd_status open_eyes(struct open_model *m, const struct executor_options *o, const struct model_config *c,
                           struct executor_traits *t, struct rd_error *err)
{
    const struct model_file *g = o->vision_file ? o->vision_file : model_file_vision(o->file);
    const struct backend_options bo = {.n_threads = o->n_threads};
    const struct backend_ops *ops = m->x.ops;
    struct backend *be = m->x.backend;
    const char *missing;
    rd_status st;

    if (!g || (o->as_rank && o->as_rank->rank > 0)) return RD_OK;
    if (!ops->op.attend) {
        ops = &backend_cpu_ops;
        st = ops->life.create(&bo, &m->eyes_backend, err);
        if (st != RD_OK) return st;
        be = m->eyes_backend;
    }
    st = vision_encoder_open(g, ops, be, c->hidden, &m->eyes, err);
    if (st != RD_OK) return st;
    missing = missing_op(m->x.ops, vision_encoder_traits(m->eyes));
    if (missing) {
        log_warn("images are not taken: backend %s does not have %s", m->x.ops->name, missing);
        vision_encoder_close(m->eyes);
        m->eyes = NULL;
        return RD_OK;
    }
    if (vision_encoder_traits(m->eyes)->n_deep != c->n_deep)
        return error_set(err, RD_E_FORMAT, "the vision file has %u layers of DeepStack, the text model wants %u",
                         vision_encoder_traits(m->eyes)->n_deep, c->n_deep);
    t->vision_bytes = vision_encoder_bytes(m->eyes);
    if (vision_encoder_is_local(m->eyes)) {
        const size_t n = strlen(t->computes);

        snprintf(t->computes + n, sizeof(t->computes) - n, ", images by bf16 products");
    }
    return RD_OK;
}

static uint32_t logits_rows(const struct executor_options *o, const struct executor_traits *t, uint32_t n_vocab)
{
    uint64_t n = t->device.shares_memory ? LOGITS_BYTES / ((uint64_t)n_vocab * sizeof(float)) : o->max_running;

    if (o->max_logits) return o->max_logits;
    /* one sequence with all its drafts fits in any case */
    return u32_min(u32_max(o->max_running, DRAFT_MAX + 1), u32_max((uint32_t)n, LOGITS_MIN_ROWS));
}

static rd_status load_weights(struct open_model *m, const struct executor_options *o, uint32_t max_rows,
                              uint32_t max_logits, struct executor_traits *t, struct rd_error *err)
{
    struct packed_options packed = {.cap_bytes = o->packed_bytes ? o->packed_bytes : PACKED_MAX_BYTES,
                                    .min_bytes = PACKED_MIN_BYTES,
                                    .settle_ns = PACKED_SETTLE_NS,
                                    .n_threads = o->n_threads ? o->n_threads : thread_n_physical_cores()};
    struct model_source source = {o->file, m->x.ops, m->x.backend, max_rows, max_logits, &o->progress, NULL,
                                  0,       1,        NULL};
    uint64_t began = clock_now_ns(clock_system());
    rd_status st;

    if (o->as_rank) {
        source.rank = o->as_rank->rank;
        source.n_ranks = o->as_rank->n_ranks;
        source.group = o->as_rank->group;
    }
    if (o->packed_dir) {
        m->packed_dir = mem_strdup(o->packed_dir);
        if (!m->packed_dir) return error_set(err, RD_E_NOMEM, "out of memory");
        packed.dir = m->packed_dir;
        source.packed = &packed;
    }
    st = model_load_packed(&source, &m->x.model, err);
    if (st != RD_OK) return st;
    t->weights_ms = ms_since(began);
    t->weight_bytes = model_weight_bytes(m->x.model);
    t->packed_bytes = model_packed_bytes(m->x.model);
    t->workspace_bytes = model_workspace_bytes(m->x.model);
    return RD_OK;
}

/* A device's memory is the cache's, except what the driver and a later kernel may want; all ranks', where every one has a
 * device and a part of the heads. */
static uint64_t default_kv_bytes(const struct open_model *m, const struct executor_options *o,
                                 const struct model_config *c)
{
    uint64_t left = backend_free_bytes(m->x.ops, m->x.backend);

    if (m->x.ops->traits.shares_memory) return left;
    left = left / 100 * 92 > KV_MIN_BYTES ? left / 100 * 92 : left;
    return o->as_rank ? left / u32_ceil_div(c->n_kv_heads, o->as_rank->n_ranks) * c->n_kv_heads : left;
}

/* Windows beside n pages: for every WINDOW_TEXT tokens a window, and some more for prompts that go on elsewhere than at an
 * end; at least what one sequence needs to get on. */
static uint64_t windows_beside(const struct model_config *c, uint32_t page_tokens, uint64_t n)
{
    const uint64_t beside = u64_min((uint64_t)c->window + WINDOW_SPARE, WINDOW_TEXT);
    const uint64_t least = ((uint64_t)c->window + WINDOW_CHUNK) / page_tokens + WINDOW_EDGES;

    return u64_min(n, u64_max(n * beside / WINDOW_TEXT + 1, least));
}

/* Pages in this many bytes, with their windows. */
static uint64_t pages_within(const struct executor_options *o, const struct model_config *c, uint64_t bytes,
                             uint64_t page_bytes, uint64_t window_bytes)
{
    uint64_t low = 0, high = bytes / page_bytes;

    while (window_bytes && low < high) {
        uint64_t mid = high - (high - low) / 2;

        if (mid * page_bytes + windows_beside(c, o->page_tokens, mid) * window_bytes <= bytes)
            low = mid;
        else
            high = mid - 1;
    }
    return high;
}

/* Of device_traits: 0 is all. */
static bool holds(uint64_t types, enum dtype t)
{
    return types == 0 || ((unsigned)t < 64 && (types >> (unsigned)t & 1));
}

/* Pages for the budget; at least one page more than one token needs. */
static rd_status make_pages(struct open_model *m, const struct executor_options *o, const struct model_config *c,
                            uint32_t max_rows, struct executor_traits *t, struct rd_error *err)
{
    const struct kv_layout layout = {c->n_layers, c->n_kv_heads, c->head_dim, o->page_tokens, o->dtype_k, o->dtype_v};
    const uint32_t n_local = o->whole_pages ? 0 : model_executor_window_layers(m->x.ops, c);
    const uint64_t whole_bytes = kv_page_bytes(&layout), window_bytes = whole_bytes / c->n_layers * n_local;
    const uint64_t page_bytes = whole_bytes - window_bytes,
                   bytes = o->kv_bytes ? o->kv_bytes : default_kv_bytes(m, o, c);
    const uint64_t n =
        o->kv_tokens ? (o->kv_tokens - 1) / o->page_tokens + 1 : pages_within(o, c, bytes, page_bytes, window_bytes);
    struct kv_layout own = layout; /* this rank's part of it */
    rd_status st;

    if (o->as_rank) own.n_kv_heads = model_share_of(c, o->as_rank->rank, o->as_rank->n_ranks).kv_heads.n;
    if (!holds(t->device.kv_types, o->dtype_k) || !holds(t->device.kv_types, o->dtype_v))
        return error_set(err, RD_E_UNSUPPORTED, "backend %s does not store keys and values as %s: --kv-type %s",
                         m->x.ops->name, dtype_name(holds(t->device.kv_types, o->dtype_k) ? o->dtype_v : o->dtype_k),
                         holds(t->device.kv_types, DTYPE_F16)    ? "f16"
                         : holds(t->device.kv_types, DTYPE_BF16) ? "bf16"
                                                                 : "f32");
    if (n < 2)
        return error_set(err, RD_E_INVALID, "KV budget of %llu bytes: one page needs %llu, at least 2 pages are wanted",
                         (unsigned long long)bytes, (unsigned long long)whole_bytes);
    t->layout = layout;
    t->n_pages = (uint32_t)u64_min(u64_min(n, UINT32_MAX - 1), INT64_MAX / whole_bytes);
    t->n_windows = n_local ? (uint32_t)windows_beside(c, o->page_tokens, t->n_pages) : 0;
    t->window = n_local ? c->window : 0;
    t->page_bytes = page_bytes;
    t->window_bytes = window_bytes;
    t->kv_bytes = t->n_pages * page_bytes + t->n_windows * window_bytes;
    /* Pages get memory as they are first used: without this a budget that is too large ends by the kernel, later. */
    if ((o->kv_bytes || o->kv_tokens) && t->device.shares_memory && t->kv_bytes > sysinfo_memory())
        return error_set(err, RD_E_NOMEM,
                         "KV budget of %llu MiB: this machine, or its control group, has %llu MiB of memory in all",
                         (unsigned long long)(t->kv_bytes >> 20), (unsigned long long)(sysinfo_memory() >> 20));
    st = t->n_windows ? model_executor_init_windows(&m->x, m->x.ops, m->x.backend, m->x.model, &own, t->n_pages,
                                                    t->n_windows, max_rows)
                      : model_executor_init(&m->x, m->x.ops, m->x.backend, m->x.model, &own, t->n_pages);
    t->adapter_bytes =
        m->x.ops->traits.shares_memory ? sysinfo_memory() / 4 : backend_free_bytes(m->x.ops, m->x.backend) / 2;
    if (st == RD_OK) return st;
    return error_set(err, st, "cannot reserve %llu MiB for the KV cache", (unsigned long long)(t->kv_bytes >> 20));
}

rd_status executor_open(const struct executor_options *o, struct executor **out, struct executor_traits *traits,
                        struct rd_error *err)
{
    struct open_model *m;
    struct model_config c;
    uint32_t max_rows, max_logits;
    uint64_t began = clock_now_ns(clock_system());
    rd_status st;

    if (o->n_ranks > 1) return rank_executor_open(o, out, traits, err);
    st = model_read_config(o->file, &c, err);
    memset(traits, 0, sizeof(*traits));
    if (st != RD_OK) return st;
    if (o->page_tokens > LIMIT_STORE_PAGE_TOKENS || (o->page_tokens & (o->page_tokens - 1)))
        return error_set(err, RD_E_INVALID, "page_tokens %u: must be a power of two up to %u", o->page_tokens,
                         LIMIT_STORE_PAGE_TOKENS);
    m = mem_zalloc(1, sizeof(*m));
    if (!m) return error_set(err, RD_E_NOMEM, "out of memory");
    st = open_device(m, o, traits, err);
    if (st != RD_OK) goto fail;
    traits->device_ms = ms_since(began);
    traits->max_chunk = o->max_chunk ? o->max_chunk : traits->device.slow_prompts ? CHUNK_SLOW : CHUNK_FAST;
    st = open_eyes(m, o, &c, traits, err);
    if (st != RD_OK) goto fail;
    max_rows = u32_max(traits->max_chunk, o->max_running);
    if (m->eyes && vision_encoder_traits(m->eyes)->both_ways) /* an image comes in one piece, and a row behind it */
        max_rows = u32_max(max_rows, vision_encoder_traits(m->eyes)->max_rows + 1);
    if (o->as_rank) max_rows = u32_max(max_rows, o->as_rank->least_rows);
    max_logits = logits_rows(o, traits, c.n_vocab);
    st = load_weights(m, o, max_rows, max_logits, traits, err);
    if (st == RD_OK) st = make_pages(m, o, &c, max_rows, traits, err);
    if (st != RD_OK) goto fail;
    m->x.eyes = m->eyes; /* after init, which clears x */
    m->face = model_executor_view(&m->x, max_rows, max_logits);
    m->face.close = close_model;
    if (o->no_warm_up) m->face.warm_up = NULL;
    *out = &m->face;
    return RD_OK;

fail:
    close_model(m);
    return st;
}

uint64_t executor_kv_bytes(const struct model_config *c, const struct kv_layout *layout, uint64_t n_tokens)
{
    const uint32_t n_local = model_executor_window_layers(&backend_cpu_ops, c);
    const uint64_t layer_bytes = kv_page_bytes(layout) / c->n_layers, n = (n_tokens - 1) / layout->page_tokens + 1;

    return n * layer_bytes * (c->n_layers - n_local) +
           (n_local ? windows_beside(c, layout->page_tokens, n) * layer_bytes * n_local : 0);
}

void executor_close(struct executor *x)
{
    if (x && x->close) x->close(x->self);
}
