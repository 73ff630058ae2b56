/* tests/rooms/toy_backend.c - a backend of one file: what must be there and nothing optional, with memory of its own. It
 * computes with the CPU's reference kernels. */
#include "backend/backend.h"
#include "backend/device_probe.h"

#define CPU backend_cpu_ops
#define ASK(group, name, params, args)                                                                                 \
    static rd_status name params                                                                                       \
    {                                                                                                                  \
        return CPU.group.name args;                                                                                    \
    }

static rd_status create(const struct backend_options *o, struct backend **out, struct rd_error *err)
{
    const struct backend_options plain = {.n_threads = 1, .isa = "ref"};

    (void)o;
    return CPU.life.create(&plain, out, err);
}

static void destroy(struct backend *be)
{
    CPU.life.destroy(be);
}
static void describe(const struct backend *be, char *buf, size_t n)
{
    CPU.life.describe(be, buf, n);
}
static void release(struct backend *be, struct buffer *b)
{
    CPU.memory.free(be, b);
}
static void unload(struct backend *be, struct weight *w)
{
    CPU.weights.unload(be, w);
}
static void pages_destroy(struct backend *be, struct kv_storage *kv)
{
    CPU.pages.destroy(be, kv);
}

static rd_status pages_create(struct backend *be, const struct kv_layout *l, uint32_t n, struct kv_storage *out)
{
    return CPU.pages.create(be, l, n, out);
}

static rd_status page_read(struct backend *be, const struct kv_storage *kv, void *to, kv_page from)
{
    return CPU.pages.read(be, kv, to, from);
}
static rd_status page_write(struct backend *be, const struct kv_storage *kv, kv_page to, const void *from)
{
    return CPU.pages.write(be, kv, to, from);
}

ASK(memory, alloc, (struct backend * be, uint64_t n, struct buffer **out), (be, n, out))
ASK(memory, read, (struct backend * be, void *to, struct span from, uint64_t n), (be, to, from, n))
ASK(memory, write, (struct backend * be, struct span to, const void *from, uint64_t n), (be, to, from, n))
ASK(memory, sync, (struct backend * be), (be))
ASK(weights, load,
    (struct backend * be, const struct host_tensor *t, enum weight_role role, struct weight *out, struct rd_error *err),
    (be, t, role, out, err))
ASK(pages, copy_rows, (struct backend * be, struct kv_storage *kv, kv_page to, kv_page from, uint32_t n),
    (be, kv, to, from, n))
ASK(op, embed,
    (struct backend * be, const struct weight *w, uint32_t n, const int32_t *tokens, float scale, struct span out),
    (be, w, n, tokens, scale, out))
ASK(op, residual_norm, (struct backend * be, const struct residual_norm_args *a), (be, a))
ASK(op, linear, (struct backend * be, const struct linear_args *a), (be, a))
ASK(op, qkv_rope_write, (struct backend * be, const struct qkv_args *a), (be, a))
ASK(op, attention, (struct backend * be, const struct attention_args *a), (be, a))
ASK(op, glu,
    (struct backend * be, enum activation act, uint32_t n, uint32_t width, struct span gate, struct span up,
     struct span out),
    (be, act, n, width, gate, up, out))
ASK(op, gather, (struct backend * be, uint32_t n, uint32_t width, struct span x, const uint32_t *rows, struct span out),
    (be, n, width, x, rows, out))

extern const struct backend_ops backend_toy_ops;
const struct backend_ops backend_toy_ops = {
    .name = "toy",
    .life = {.create = create, .destroy = destroy, .describe = describe},
    .memory = {.alloc = alloc, .free = release, .read = read, .write = write, .sync = sync},
    .weights = {.load = load, .unload = unload},
    .pages = {.create = pages_create,
              .destroy = pages_destroy,
              .copy_rows = copy_rows,
              .read = page_read,
              .write = page_write},
    .op = {.embed = embed,
           .residual_norm = residual_norm,
           .linear = linear,
           .qkv_rope_write = qkv_rope_write,
           .attention = attention,
           .glu = glu,
           .gather = gather},
};

static void probe(struct device_probe *out)
{
    out->why = "a toy does not choose itself";
}

extern const struct backend_about backend_toy_about;
const struct backend_about backend_toy_about = {
    .title = "toys", .version = "toys", .needs = "a box", .least = "", .probe = probe};
