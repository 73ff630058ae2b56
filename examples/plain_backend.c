/* plain_backend.c - a whole backend in one file: radish/backend.h with plain loops over host memory. It is slow, exact, and
 * computes every model that radish loads. With radish installed:
 *
 *     cc -O3 -shared -fPIC $(pkg-config --cflags radish) plain_backend.c -o libradish-plain.so -lm
 *     radish run MODEL --backend ./libradish-plain.so "Hello"
 *
 * Weights are opened to f32 by radish, because weight_types says that there is nothing else. Keys and values are f32 or f16.
 * Every sum runs over one row alone, in one order: that is all that "exact" takes. */
#include <math.h>
#include <radish/backend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rd_backend {
    const struct rd_backend_host *host;
    float *row; /* scratch: keys or values of one token and head */
};

struct rd_backend_weight {
    uint32_t n_out, n_in;
    float w[];
};

struct rd_backend_pages {
    struct rd_backend_layout l;
    uint64_t row[2], page; /* bytes of one token's K or V of one head; of a page */
    unsigned char *bytes;
};

static float *at(struct rd_backend_span s)
{
    return (float *)(void *)((char *)s.buffer + s.at);
}

/* ---- life and memory ---- */

static rd_status create(const struct rd_backend_create *o, rd_backend **out, struct rd_error *err)
{
    rd_backend *be = calloc(1, sizeof(*be));

    if (!be) {
        snprintf(err->text, sizeof(err->text), "no memory");
        return RD_E_NOMEM;
    }
    be->host = o->host;
    *out = be;
    return RD_OK;
}

static void destroy(rd_backend *be)
{
    free(be->row);
    free(be);
}

static void describe(const rd_backend *be, char *text, size_t n)
{
    (void)be;
    snprintf(text, n, "plain, 1 thread");
}

static rd_status alloc(rd_backend *be, uint64_t n_bytes, void **buffer)
{
    (void)be;
    *buffer = calloc(1, n_bytes ? n_bytes : 1);
    return *buffer ? RD_OK : RD_E_NOMEM;
}

static void release(rd_backend *be, void *buffer)
{
    (void)be;
    free(buffer);
}

static rd_status read_bytes(rd_backend *be, void *to, struct rd_backend_span from, uint64_t n)
{
    (void)be;
    memcpy(to, at(from), n);
    return RD_OK;
}

static rd_status write_bytes(rd_backend *be, struct rd_backend_span to, const void *from, uint64_t n)
{
    (void)be;
    memcpy(at(to), from, n);
    return RD_OK;
}

static rd_status sync_all(rd_backend *be)
{
    (void)be; /* everything is done when it returns */
    return RD_OK;
}

/* ---- weights ---- */

static rd_status weight_load(rd_backend *be, const struct rd_backend_tensor *t, rd_backend_weight **out,
                             uint64_t *n_bytes, struct rd_error *err)
{
    const uint64_t n = (uint64_t)t->n_out * t->n_in;
    rd_backend_weight *w = malloc(sizeof(*w) + n * sizeof(float));

    (void)be;
    if (!w) {
        snprintf(err->text, sizeof(err->text), "no memory for %llu weights", (unsigned long long)n);
        return RD_E_NOMEM;
    }
    w->n_out = t->n_out;
    w->n_in = t->n_in;
    memcpy(w->w, t->data, n * sizeof(float));
    *n_bytes = n * sizeof(float);
    *out = w;
    return RD_OK;
}

static void weight_free(rd_backend *be, rd_backend_weight *w)
{
    (void)be;
    free(w);
}

/* ---- pages ---- */

static rd_status pages_create(rd_backend *be, const struct rd_backend_layout *l, uint32_t n_pages,
                              rd_backend_pages **out)
{
    rd_backend_pages *p = calloc(1, sizeof(*p));
    float *row = realloc(be->row, l->head_dim * sizeof(float));

    if (row) be->row = row;
    if (!p || !row) {
        free(p);
        return RD_E_NOMEM;
    }
    p->l = *l;
    p->row[0] = be->host->type_bytes(l->type_k, l->head_dim);
    p->row[1] = be->host->type_bytes(l->type_v, l->head_dim);
    p->page = (p->row[0] + p->row[1]) * l->page_tokens * l->n_kv_heads * l->n_layers;
    p->bytes = calloc(n_pages, p->page);
    if (!p->bytes) {
        free(p);
        return RD_E_NOMEM;
    }
    *out = p;
    return RD_OK;
}

static void pages_destroy(rd_backend *be, rd_backend_pages *p)
{
    (void)be;
    free(p->bytes);
    free(p);
}

/* Row `slot` of K (which 0) or V (1) of a layer and head. */
static unsigned char *row_of(const rd_backend_pages *p, uint32_t page, uint32_t layer, int which, uint32_t head,
                             uint32_t slot)
{
    const uint64_t layer_bytes = (p->row[0] + p->row[1]) * p->l.page_tokens * p->l.n_kv_heads;
    uint64_t where = page * p->page + layer * layer_bytes;

    if (which) where += p->row[0] * p->l.page_tokens * p->l.n_kv_heads;
    return p->bytes + where + ((uint64_t)head * p->l.page_tokens + slot) * p->row[which];
}

static rd_status pages_copy_rows(rd_backend *be, rd_backend_pages *p, uint32_t to, uint32_t from, uint32_t n_rows)
{
    (void)be;
    for (uint32_t layer = 0; layer < p->l.n_layers; layer++)
        for (int which = 0; which < 2; which++)
            for (uint32_t head = 0; head < p->l.n_kv_heads; head++)
                memmove(row_of(p, to, layer, which, head, 0), row_of(p, from, layer, which, head, 0),
                        n_rows * p->row[which]);
    return RD_OK;
}

static rd_status pages_read(rd_backend *be, const rd_backend_pages *p, void *to, uint32_t from)
{
    (void)be;
    memcpy(to, p->bytes + from * p->page, p->page);
    return RD_OK;
}

static rd_status pages_write(rd_backend *be, rd_backend_pages *p, uint32_t to, const void *from)
{
    (void)be;
    memcpy(p->bytes + to * p->page, from, p->page);
    return RD_OK;
}

/* ---- ops ---- */

static rd_status embed(rd_backend *be, const rd_backend_weight *w, uint32_t n_rows, const int32_t *tokens, float scale,
                       struct rd_backend_span out)
{
    (void)be;
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < w->n_in; i++)
            at(out)[(uint64_t)r * w->n_in + i] = scale * w->w[(uint64_t)tokens[r] * w->n_in + i];
    return RD_OK;
}

static float rms_scale(const float *x, uint32_t n, float eps)
{
    float sum = 0;

    for (uint32_t i = 0; i < n; i++) sum += x[i] * x[i];
    return 1 / sqrtf(sum / (float)n + eps);
}

/* out may be x. */
static void rmsnorm(const float *x, const float *norm, uint32_t n, float eps, float *out)
{
    const float scale = rms_scale(x, n, eps);

    for (uint32_t i = 0; i < n; i++) out[i] = x[i] * scale * norm[i];
}

static rd_status residual_norm(rd_backend *be, const struct rd_backend_residual_norm *a)
{
    (void)be;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        float *x = at(a->x) + (uint64_t)r * a->width;
        const float *delta = a->delta.buffer ? at(a->delta) + (uint64_t)r * a->width : NULL;
        const float scale = delta && a->delta_norm ? rms_scale(delta, a->width, a->eps) : 1;

        for (uint32_t i = 0; delta && i < a->width; i++)
            x[i] += a->delta_norm ? delta[i] * scale * a->delta_norm->w[i] : delta[i];
        if (a->norm) rmsnorm(x, a->norm->w, a->width, a->eps, at(a->out) + (uint64_t)r * a->width);
    }
    return RD_OK;
}

static rd_status linear(rd_backend *be, const struct rd_backend_linear *a)
{
    const rd_backend_weight *w = a->w;

    (void)be;
    for (uint32_t o = 0; o < w->n_out; o++) /* a weight's row is read once for all rows of x */
        for (uint32_t r = 0; r < a->n_rows; r++) {
            const float *x = at(a->x) + (uint64_t)r * a->x_stride, *row = w->w + (uint64_t)o * w->n_in;
            float part[8] = {0}, sum;
            uint32_t i = 0;

            for (; i + 8 <= w->n_in; i += 8) /* eight sums at once: what a compiler makes vectors of */
                for (int k = 0; k < 8; k++) part[k] += x[i + k] * row[i + k];
            sum = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
            for (; i < w->n_in; i++) sum += x[i] * row[i];
            at(a->out)[(uint64_t)r * a->out_stride + o] = sum + (a->bias ? a->bias->w[o] : 0);
        }
    return RD_OK;
}

static void rotate(float *x, const struct rd_backend_qkv *a, uint32_t position)
{
    const uint32_t half = a->n_rot / 2;

    for (uint32_t i = 0; i < half; i++) {
        const float angle = (float)position * a->inv_freq->w[i];
        const float c = cosf(angle) * a->rope_mscale, s = sinf(angle) * a->rope_mscale;
        float *first = a->interleaved ? x + 2 * i : x + i, *second = a->interleaved ? first + 1 : first + half;
        const float u = *first, v = *second;

        *first = u * c - v * s;
        *second = u * s + v * c;
    }
}

static rd_status qkv_rope_write(rd_backend *be, const struct rd_backend_qkv *a)
{
    const rd_backend_pages *p = a->pages;

    for (uint32_t r = 0; r < a->n_rows; r++) {
        for (uint32_t h = 0; h < a->n_heads; h++) {
            float *q = at(a->q) + (uint64_t)r * a->q_stride + (uint64_t)h * a->head_dim;

            if (a->q_norm) rmsnorm(q, a->q_norm->w, a->head_dim, a->norm_eps, q);
            rotate(q, a, a->positions[r]);
        }
        for (uint32_t h = 0; h < a->n_kv_heads; h++) {
            float *k = at(a->k) + (uint64_t)r * a->k_stride + (uint64_t)h * a->head_dim;
            const float *v = at(a->v) + (uint64_t)r * a->v_stride + (uint64_t)h * a->head_dim;

            if (a->k_norm) rmsnorm(k, a->k_norm->w, a->head_dim, a->norm_eps, k);
            rotate(k, a, a->positions[r]);
            be->host->from_float(p->l.type_k, k, row_of(p, a->row_page[r], a->layer, 0, h, a->row_slot[r]),
                                 a->head_dim);
            be->host->from_float(p->l.type_v, v, row_of(p, a->row_page[r], a->layer, 1, h, a->row_slot[r]),
                                 a->head_dim);
        }
    }
    return RD_OK;
}

/* One row and head: softmax as it goes (arXiv:2307.08691), a token at a time from the first that is seen to the row's own. */
static void attend(rd_backend *be, const struct rd_backend_attention *a, const uint32_t *table, uint32_t pos,
                   uint32_t head, const float *q, float *out)
{
    const rd_backend_pages *p = a->pages;
    const uint32_t kv_head = head / (a->n_heads / a->n_kv_heads), d = a->head_dim, per = p->l.page_tokens;
    float most = -INFINITY, sum = 0;

    for (uint32_t i = 0; i < d; i++) out[i] = 0;
    for (uint32_t t = a->window && pos + 1 > a->window ? pos + 1 - a->window : 0; t <= pos; t++) {
        float score = 0, weight, before = 1;

        be->host->to_float(p->l.type_k, row_of(p, table[t / per], a->layer, 0, kv_head, t % per), be->row, d);
        for (uint32_t i = 0; i < d; i++) score += q[i] * be->row[i];
        score *= a->scale;
        if (a->softcap > 0) score = a->softcap * tanhf(score / a->softcap);
        if (score > most) {
            before = expf(most - score);
            most = score;
        }
        weight = expf(score - most);
        sum = sum * before + weight;
        be->host->to_float(p->l.type_v, row_of(p, table[t / per], a->layer, 1, kv_head, t % per), be->row, d);
        for (uint32_t i = 0; i < d; i++) out[i] = out[i] * before + weight * be->row[i];
    }
    for (uint32_t i = 0; i < d; i++) out[i] /= sum;
}

static rd_status attention(rd_backend *be, const struct rd_backend_attention *a)
{
    for (uint32_t i = 0; i < a->n_runs; i++)
        for (uint32_t j = 0; j < a->runs[i].n_rows; j++)
            for (uint32_t h = 0; h < a->n_heads; h++) {
                const uint64_t r = a->runs[i].row0 + j, head = (uint64_t)h * a->head_dim;

                attend(be, a, a->runs[i].table, a->runs[i].pos0 + j, h, at(a->q) + r * a->q_stride + head,
                       at(a->out) + r * a->out_stride + head);
            }
    return RD_OK;
}

static rd_status glu(rd_backend *be, bool gelu, uint64_t n, struct rd_backend_span gate, struct rd_backend_span up,
                     struct rd_backend_span out)
{
    (void)be;
    for (uint64_t i = 0; i < n; i++) {
        const float g = at(gate)[i], cube = 0.7978845608f * (g + 0.044715f * g * g * g);

        at(out)[i] = (gelu ? 0.5f * g * (1 + tanhf(cube)) : g / (1 + expf(-g))) * at(up)[i];
    }
    return RD_OK;
}

static rd_status gather(rd_backend *be, uint32_t n, uint32_t width, struct rd_backend_span x, const uint32_t *rows,
                        struct rd_backend_span out)
{
    (void)be;
    for (uint32_t i = 0; i < n; i++)
        memcpy(at(out) + (uint64_t)i * width, at(x) + (uint64_t)rows[i] * width, width * sizeof(float));
    return RD_OK;
}

static rd_status softcap(rd_backend *be, struct rd_backend_span x, uint64_t n, float cap)
{
    (void)be;
    for (uint64_t i = 0; i < n; i++) at(x)[i] = cap * tanhf(at(x)[i] / cap);
    return RD_OK;
}

static bool probe(char *why, size_t n)
{
    snprintf(why, n, "plain loops run everywhere");
    return true;
}

static const struct rd_backend_ops ops = {
    .size = sizeof(ops),
    .create = create,
    .destroy = destroy,
    .describe = describe,
    .alloc = alloc,
    .free = release,
    .read = read_bytes,
    .write = write_bytes,
    .sync = sync_all,
    .weight_load = weight_load,
    .weight_free = weight_free,
    .pages_create = pages_create,
    .pages_destroy = pages_destroy,
    .pages_copy_rows = pages_copy_rows,
    .pages_read = pages_read,
    .pages_write = pages_write,
    .embed = embed,
    .residual_norm = residual_norm,
    .linear = linear,
    .qkv_rope_write = qkv_rope_write,
    .attention = attention,
    .glu = glu,
    .gather = gather,
    .softcap = softcap,
};

extern const struct rd_backend_library rd_backend_library;
RD_BACKEND_EXPORT const struct rd_backend_library rd_backend_library = {
    .magic = RD_BACKEND_MAGIC,
    .abi = RD_BACKEND_ABI,
    .size = sizeof(rd_backend_library),
    .name = "plain",
    .title = "plain loops over host memory",
    .exact = true,
    .slow_prompts = true,
    .weight_types = RD_TYPE_BIT(RD_TYPE_F32),
    .kv_types = RD_TYPE_BIT(RD_TYPE_F32) | RD_TYPE_BIT(RD_TYPE_F16),
    .probe = probe,
    .ops = &ops,
};
