/* tests/model/test_model_load.c - the tensor table: names, shapes, types, left-overs; ops that a backend lacks; running
 * out of memory. */
#include "format/gguf/gguf.h"
#include "base/mem.h"
#include "gguf_edit.h"
#include "model/model.h"
#include "test.h"

static const char *const files[] = {"llama/tiny-llama.gguf", "llama/tiny-llama31.gguf", "qwen2/tiny-qwen2.gguf",
                                    "qwen3/tiny-qwen3.gguf", "gemma2/tiny-gemma2.gguf", "gemma3/tiny-gemma3.gguf"};
#define N_FILES (sizeof(files) / sizeof(files[0]))

static struct backend *one_thread(void)
{
    const struct backend_options options = {.n_threads = 1};
    struct backend *be = NULL;

    return backend_cpu_ops.life.create(&options, &be, NULL) == RD_OK ? be : NULL;
}

/* Loads an edited copy of g and drops it; RD_E_INTERNAL when the copy cannot be made. */
static rd_status load_with(const struct model_file *g, struct backend *be, struct gguf_edit edit, struct rd_error *err)
{
    struct model_file *edited = NULL;
    struct model *m = NULL;
    struct buf bytes = {0};
    rd_status st = RD_E_INTERNAL;

    memset(err, 0, sizeof(*err));
    if (gguf_rewrite(g, &edit, 1, &bytes) == RD_OK &&
        gguf_open_bytes((const uint8_t *)bytes.data, bytes.n, &edited, err) == RD_OK)
        st = model_load(edited, &backend_cpu_ops, be, 4, 4, NULL, &m, err);
    model_destroy(m);
    model_file_close(edited);
    buf_deinit(&bytes);
    return st;
}

static void tensor_name(const struct model_file *g, uint64_t i, char *name, size_t cap)
{
    struct model_str s = model_file_tensor(g, i)->name;

    snprintf(name, cap, "%.*s", (int)s.n, s.s);
}

TEST(a_missing_tensor_is_refused_by_layer_field_and_name)
{
    struct backend *be = one_thread();
    struct rd_error err;

    for (size_t f = 0; f < N_FILES; f++) {
        struct model_file *g = NULL;

        CHECK_OK(gguf_open(test_path(files[f]), &g, &err));
        for (uint64_t i = 0; i < model_file_n_tensors(g); i++) {
            char name[96];
            rd_status st;

            tensor_name(g, i, name, sizeof(name));
            st = load_with(g, be, (struct gguf_edit){EDIT_DROP_TENSOR, name, 0, 0, NULL, {0}}, &err);
            if (!strcmp(name, "output.weight") || !strcmp(name, "rope_freqs.weight"))
                CHECK_OK(st);
            else
                CHECK_EQ(st, RD_E_FORMAT);
            CHECK(st == RD_OK || strstr(err.text, name));
        }
        if (f == 0) {
            CHECK_EQ(
                load_with(g, be, (struct gguf_edit){EDIT_DROP_TENSOR, "blk.2.ffn_up.weight", 0, 0, NULL, {0}}, &err),
                RD_E_FORMAT);
            CHECK_STR(err.text, "layer 2 up (blk.2.ffn_up.weight): tensor is missing");
        }
        model_file_close(g);
    }
    backend_cpu_ops.life.destroy(be);
}

TEST(every_tensor_of_another_shape_is_refused)
{
    struct backend *be = one_thread();
    struct rd_error err;

    for (size_t f = 0; f < N_FILES; f++) {
        struct model_file *g = NULL;

        CHECK_OK(gguf_open(test_path(files[f]), &g, &err));
        for (uint64_t i = 0; i < model_file_n_tensors(g); i++) {
            const struct model_tensor *t = model_file_tensor(g, i);
            char name[96];

            tensor_name(g, i, name, sizeof(name));
            for (int d = 0; d < 2; d++) {
                struct gguf_edit edit = {EDIT_RESHAPE_TENSOR, name, 0, 0, NULL, {t->dims[0], t->dims[1]}};

                edit.dims[d] += d && t->n_dims == 1 ? 2 : 1;
                CHECK_EQ(load_with(g, be, edit, &err), RD_E_FORMAT);
                CHECK(strstr(err.text, strcmp(name, "token_embd.weight") || d == 0 ? name : "tokenizer.ggml.tokens"));
            }
        }
        model_file_close(g);
    }
    backend_cpu_ops.life.destroy(be);
}

TEST(errors_say_what_was_found_and_what_was_wanted)
{
    struct backend *be = one_thread();
    struct model_file *g = NULL;
    struct rd_error err;

    CHECK_OK(gguf_open(test_path(files[0]), &g, &err));
    CHECK_EQ(
        load_with(g, be, (struct gguf_edit){EDIT_RESHAPE_TENSOR, "blk.1.attn_k.weight", 0, 0, NULL, {64, 16}}, &err),
        RD_E_FORMAT);
    CHECK_STR(err.text, "layer 1 wk (blk.1.attn_k.weight): shape [64,16], expected [64,32]");
    CHECK_EQ(load_with(g, be, (struct gguf_edit){EDIT_RESHAPE_TENSOR, "output_norm.weight", 0, 0, NULL, {65, 0}}, &err),
             RD_E_FORMAT);
    CHECK_STR(err.text, "output_norm (output_norm.weight): shape [65], expected [64]");
    CHECK_EQ(load_with(g, be, (struct gguf_edit){EDIT_RETYPE_TENSOR, "blk.0.ffn_norm.weight", DTYPE_Q8_0, 0, NULL, {0}},
                       &err),
             RD_E_FORMAT);
    CHECK_STR(err.text, "layer 0 ffn_norm (blk.0.ffn_norm.weight): type Q8_0, expected F32, F16 or BF16");
    CHECK_EQ(load_with(g, be,
                       (struct gguf_edit){EDIT_RENAME_TENSOR, "output.weight", 0, 0, "blk.0.attn_sinks.weight", {0}},
                       &err),
             RD_E_UNSUPPORTED);
    CHECK_STR(err.text, "tensor blk.0.attn_sinks.weight: not a part of llama with 3 layers");
    CHECK_EQ(load_with(g, be, (struct gguf_edit){EDIT_SET_U32, "llama.block_count", 2, 0, NULL, {0}}, &err),
             RD_E_UNSUPPORTED);
    CHECK(strstr(err.text, "tensor blk.2."));
    CHECK_EQ(load_with(g, be, (struct gguf_edit){EDIT_SET_U32, "llama.block_count", 1024, 0, NULL, {0}}, &err),
             RD_E_FORMAT);
    CHECK_STR(err.text, "layer 3 attn_norm (blk.3.attn_norm.weight): tensor is missing");
    model_file_close(g);
    backend_cpu_ops.life.destroy(be);
}

TEST(left_over_names_are_refused_however_they_are_spelt)
{
    static const char *const names[] = {"blk.3.attn_q.bias",
                                        "blk.03.attn_q.bias",
                                        "blk.0.output.weight",
                                        "blk..attn_q.weight",
                                        "blk.attn_q.bias",
                                        "blk.99999999999999999999.attn_q.bias",
                                        "attn_q.bias",
                                        "blk.",
                                        "x"};
    struct backend *be = one_thread();
    struct model_file *g = NULL;
    struct rd_error err;

    CHECK_OK(gguf_open(test_path(files[0]), &g, &err));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        CHECK_EQ(load_with(g, be, (struct gguf_edit){EDIT_RENAME_TENSOR, "output.weight", 0, 0, names[i], {0}}, &err),
                 RD_E_UNSUPPORTED);
    model_file_close(g);
    backend_cpu_ops.life.destroy(be);
}

TEST(rope_divisors_must_be_positive)
{
    struct backend *be = one_thread();
    struct model_file *g = NULL;
    struct rd_error err;
    uint8_t zero[4] = {0};

    CHECK_OK(gguf_open(test_path("llama/tiny-llama31.gguf"), &g, &err));
    struct buf bytes;
    struct model_file *copy = NULL;
    struct model *m = NULL;
    CHECK_OK(gguf_rewrite(g, NULL, 0, &bytes));
    CHECK_OK(gguf_open_bytes((const uint8_t *)bytes.data, bytes.n, &copy, &err));
    memcpy(bytes.data + model_file_find_tensor(copy, "rope_freqs.weight")->offset + 4, zero, 4);
    CHECK_EQ(model_load(copy, &backend_cpu_ops, be, 4, 4, NULL, &m, &err), RD_E_FORMAT);
    CHECK_STR(err.text, "rope_freqs.weight: factor 1 is 0, expected > 0");
    model_file_close(copy);
    buf_deinit(&bytes);
    model_file_close(g);
    backend_cpu_ops.life.destroy(be);
}

TEST(a_backend_without_an_op_is_refused_by_the_ops_name)
{
    struct backend *be = one_thread();
    struct model_file *g = NULL;
    struct rd_error err;
    struct model *m = NULL;

    CHECK_OK(gguf_open(test_path("gemma2/tiny-gemma2.gguf"), &g, &err));
#define CHECK_WITHOUT(group, entry)                                                                                    \
    do {                                                                                                               \
        struct backend_ops ops = backend_cpu_ops;                                                                      \
        ops.group.entry = NULL;                                                                                        \
        CHECK_EQ(model_load(g, &ops, be, 4, 4, NULL, &m, &err), RD_E_UNSUPPORTED);                                     \
        CHECK_STR(err.text, "architecture gemma2 needs " #group "." #entry ", which backend cpu does not have");       \
    } while (0)
    CHECK_WITHOUT(weights, load);
    CHECK_WITHOUT(weights, unload);
    CHECK_WITHOUT(memory, alloc);
    CHECK_WITHOUT(memory, free);
    CHECK_WITHOUT(op, embed);
    CHECK_WITHOUT(op, residual_norm);
    CHECK_WITHOUT(op, linear);
    CHECK_WITHOUT(op, qkv_rope_write);
    CHECK_WITHOUT(op, attention);
    CHECK_WITHOUT(op, glu);
    CHECK_WITHOUT(op, gather);
    CHECK_WITHOUT(op, softcap);
    CHECK_WITHOUT(memory, sync);
    model_file_close(g);

    struct backend_ops ops = backend_cpu_ops; /* a model without soft caps does not need the op */
    ops.op.softcap = NULL;
    CHECK_OK(gguf_open(test_path(files[0]), &g, &err));
    CHECK_OK(model_load(g, &ops, be, 4, 4, NULL, &m, &err));
    model_destroy(m);
    model_file_close(g);
    backend_cpu_ops.life.destroy(be);
}

TEST(running_out_of_memory_at_any_point_leaks_nothing)
{
    for (size_t f = 0; f < N_FILES; f++) {
        struct backend *be = one_thread();
        struct model_file *g = NULL;
        struct rd_error err;
        rd_status st = RD_E_NOMEM;

        CHECK_OK(gguf_open(test_path(files[f]), &g, &err));
        const uint64_t alive = mem_n_alive();
        for (int64_t i = 0; st != RD_OK; i++) {
            struct model *m = NULL;

            CHECK(i < 2000);
            mem_fail_after(i);
            st = model_load(g, &backend_cpu_ops, be, 8, 8, NULL, &m, &err);
            mem_fail_after(-1);
            CHECK(st == RD_OK || st == RD_E_NOMEM);
            CHECK((st == RD_OK) == (m != NULL));
            model_destroy(m);
            CHECK_EQ(mem_n_alive(), alive);
        }
        model_file_close(g);
        backend_cpu_ops.life.destroy(be);
    }
}

struct progress_log {
    double last;
    uint32_t n;
    bool fell;
};

static void note_progress(void *arg, double fraction)
{
    struct progress_log *log = arg;

    if (fraction < log->last) log->fell = true;
    log->last = fraction;
    log->n++;
}

TEST(progress_rises_to_one_and_bytes_are_counted)
{
    struct backend *be = one_thread();

    for (size_t f = 0; f < N_FILES; f++) {
        struct progress_log log = {0};
        const struct model_progress progress = {note_progress, &log, NULL};
        struct model_file *g = NULL;
        struct model *m = NULL;
        struct rd_error err;

        CHECK_OK(gguf_open(test_path(files[f]), &g, &err));
        CHECK_OK(model_load(g, &backend_cpu_ops, be, 8, 2, &progress, &m, &err));
        CHECK(log.last == 1 && !log.fell);
        CHECK_EQ(log.n, model_file_n_tensors(g));
        CHECK(model_workspace_bytes(m) > 0 && model_weight_bytes(m) > 0);
        model_destroy(m);
        model_file_close(g);
    }
    model_destroy(NULL);
    backend_cpu_ops.life.destroy(be);
}
