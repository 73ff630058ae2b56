/* model/packed_weights.c - the backend's packing as a digest, and the thread that writes. */
#include "model/packed_weights.h"
#include <assert.h>
#include <string.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/thread.h"
#include "format/model_file.h"

/* The sample of a type: rows and columns that are neither few nor whole tiles, of any block size. */
#define SAMPLE_OUT  35u
#define SAMPLE_IN   768u
#define SAMPLE_SEED 0x7061636b6564u

#define TYPE_OF(name, gguf, text, n, bytes) name,
static const enum dtype types[] = {DTYPE_LIST(TYPE_OF)};
#undef TYPE_OF

struct packed_weights {
    struct packed_options o;
    const struct model_file *g;
    const struct backend_ops *ops;
    struct backend *be;
    struct packed_key key;
    struct packed_file *file; /* NULL: none was found */
    uint64_t n_taken;         /* of its tensors */
    bool is_complete;         /* every matrix so far came from it */

    struct packed_tensor *tensors; /* [n] what was noted, and where it is */
    const void **data;
    size_t n, cap_tensors, cap_data;
    bool no_memory;

    struct thread writer;
    atomic_bool stop; /* the loading thread sets it, the writer reads it; relaxed: a request to end */
    struct mutex lock;
    struct cond ended; /* has_ended, under lock */
    bool has_ended;
};

/* ---- which packing ---- */

static rd_status add_sample(const struct backend_ops *ops, struct backend *be, enum dtype t, uint8_t *bytes,
                            struct hash128 *digest)
{
    struct host_tensor host = {"sample", t, SAMPLE_OUT, SAMPLE_IN, bytes, false, NULL, 0};
    struct {
        uint32_t dtype, format;
        int64_t status;
        uint64_t n_bytes;
        struct hash128 before, data;
    } all;
    struct weight w = {0};
    rd_status st = ops->weights.load(be, &host, WEIGHT_MATRIX, &w, NULL);

    if (st == RD_E_NOMEM) return st;
    memset(&all, 0, sizeof(all));
    all.dtype = (uint32_t)t;
    all.status = st;
    all.before = *digest;
    if (st == RD_OK) {
        all.format = w.format;
        all.n_bytes = w.bytes;
        all.data = hash128_of(w.data, (size_t)w.bytes);
        ops->weights.unload(be, &w);
    }
    *digest = hash128_of(&all, sizeof(all));
    return RD_OK;
}

static rd_status packing_digest(const struct backend_ops *ops, struct backend *be, struct hash128 *out)
{
    size_t n = SAMPLE_OUT * SAMPLE_IN * sizeof(float); /* no type has larger weights */
    uint8_t *bytes = mem_alloc_aligned(n);
    struct random random;
    rd_status st = bytes ? RD_OK : RD_E_NOMEM;

    *out = (struct hash128){0, 0};
    random_init(&random, SAMPLE_SEED);
    for (size_t i = 0; st == RD_OK && i < n; i += sizeof(uint64_t)) {
        uint64_t v = random_u64(&random);

        memcpy(bytes + i, &v, sizeof(v));
    }
    for (size_t i = 0; st == RD_OK && i < sizeof(types) / sizeof(types[0]); i++)
        st = add_sample(ops, be, types[i], bytes, out);
    mem_free_aligned(bytes);
    return st;
}

/* ---- reading ---- */

rd_status packed_weights_create(const struct packed_options *o, const struct model_file *g,
                                const struct backend_ops *ops, struct backend *be, struct packed_weights **out,
                                struct rd_error *err)
{
    struct packed_weights *p;
    struct hash128 packing;
    struct rd_error why = {RD_OK, ""};
    rd_status st;

    *out = NULL;
    if (!ops->weights.adopt || model_file_n_maps(g) == 0) return RD_OK;
    p = mem_zalloc(1, sizeof(*p));
    if (!p) return error_set(err, RD_E_NOMEM, "model: out of memory");
    p->o = *o;
    p->g = g;
    p->ops = ops;
    p->be = be;
    p->is_complete = true;
    atomic_init(&p->stop, false);
    mutex_init(&p->lock);
    cond_init(&p->ended);
    st = packing_digest(ops, be, &packing);
    if (st == RD_OK) st = packed_open(o, g, packing, &p->key, &p->file, &why);
    if (st == RD_E_NOMEM) {
        packed_weights_destroy(p);
        return error_set(err, RD_E_NOMEM, "model: out of memory");
    }
    if (st == RD_E_FORMAT)
        log_warn("packed weights: %s", why.text);
    else if (st != RD_OK && st != RD_E_NOT_FOUND)
        log_info("packed weights are not used: %s", why.text);
    *out = p;
    return RD_OK;
}

uint64_t packed_weights_take(struct packed_weights *p, const struct host_tensor *t, struct weight *w)
{
    const struct packed_tensor *packed;

    if (!p || !p->file || p->n_taken == packed_n_tensors(p->file)) return 0;
    packed = packed_tensor_at(p->file, p->n_taken++);
    if (packed->name_hash != hash64_of(t->name, strlen(t->name)) || packed->dtype != (uint32_t)t->dtype ||
        packed->n_out != t->n_out || packed->n_in != t->n_in)
        return 0;
    if (p->ops->weights.adopt(p->be, t, packed->format, packed_data(p->file, packed), packed->n_bytes, w) != RD_OK)
        return 0;
    return packed->n_bytes;
}

void packed_weights_note(struct packed_weights *p, const struct host_tensor *t, const struct weight *w)
{
    const struct packed_tensor *last;
    uint64_t n_bytes = w->bytes;

    if (!p) return;
    if (n_bytes == 0) { /* taken just now */
        last = packed_tensor_at(p->file, p->n_taken - 1);
        n_bytes = last->n_bytes;
    } else {
        p->is_complete = false;
    }
    if (!mem_grow((void **)&p->tensors, &p->cap_tensors, p->n + 1, sizeof(*p->tensors)) ||
        !mem_grow((void **)&p->data, &p->cap_data, p->n + 1, sizeof(*p->data))) {
        p->no_memory = true;
        return;
    }
    p->tensors[p->n] = (struct packed_tensor){.name_hash = hash64_of(t->name, strlen(t->name)),
                                              .dtype = (uint32_t)t->dtype,
                                              .n_out = t->n_out,
                                              .n_in = t->n_in,
                                              .format = w->format,
                                              .n_bytes = n_bytes};
    p->data[p->n++] = w->data;
}

bool packed_weights_broken(const struct packed_weights *p)
{
    return p && p->file && packed_broken(p->file);
}

/* ---- writing ---- */

static void writer_main(void *arg)
{
    struct packed_weights *p = arg;
    struct rd_error why = {RD_OK, ""};
    uint64_t began = clock_now_ns(clock_system());
    rd_status st;

    thread_set_idle();
    st = packed_save(&p->o, p->g, &p->key, p->tensors, p->data, p->n, &p->stop, &why);
    if (st == RD_OK)
        log_info("packed weights are kept for the next start (%.1f s)",
                 (double)(clock_now_ns(clock_system()) - began) / 1e9);
    else if (st == RD_E_LIMIT || st == RD_E_CANCELLED)
        log_debug("packed weights are not kept: %s", st == RD_E_LIMIT ? why.text : "closing");
    else
        log_info("packed weights are not kept: %s", why.text[0] ? why.text : rd_status_text(st));
    mutex_lock(&p->lock);
    p->has_ended = true;
    cond_signal(&p->ended);
    mutex_unlock(&p->lock);
}

void packed_weights_save(struct packed_weights *p)
{
    if (!p || p->is_complete || p->no_memory) return;
    if (thread_start(&p->writer, "packed", writer_main, p) != RD_OK)
        log_info("packed weights are not kept: no thread to write them");
}

void packed_weights_destroy(struct packed_weights *p)
{
    uint64_t now, deadline;

    if (!p) return;
    if (p->writer.started) {
        deadline = clock_now_ns(clock_system()) + MODEL_SAVE_WAIT_NS;
        mutex_lock(&p->lock);
        while (!p->has_ended && (now = clock_now_ns(clock_system())) < deadline)
            cond_wait_ns(&p->ended, &p->lock, deadline - now);
        mutex_unlock(&p->lock);
        atomic_store_explicit(&p->stop, true, memory_order_relaxed);
        thread_join(&p->writer);
    }
    packed_close(p->file);
    mutex_deinit(&p->lock);
    cond_deinit(&p->ended);
    mem_free(p->tensors);
    mem_free(p->data);
    mem_free(p);
}
