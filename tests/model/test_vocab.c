/* tests/model/test_vocab.c - vocab_load() on GGUF metadata made on the spot: what is wrong is named. */
#include "model/vocab.h"
#include "test.h"
#include "base/buf.h"
#include "base/mem.h"
#include "format/gguf/gguf.h"

/* A GGUF file of metadata alone. */
struct meta {
    struct buf b;
    uint64_t n_kv;
};

static void put(struct meta *m, const void *p, size_t n)
{
    buf_append(&m->b, p, n);
}
static void put_u32(struct meta *m, uint32_t v)
{
    put(m, &v, 4);
}
static void put_u64(struct meta *m, uint64_t v)
{
    put(m, &v, 8);
}

static void put_text(struct meta *m, const char *s)
{
    put_u64(m, strlen(s));
    put(m, s, strlen(s));
}

static void key(struct meta *m, const char *name, enum meta_type type)
{
    char full[96];

    snprintf(full, sizeof(full), "tokenizer.ggml.%s", name);
    put_text(m, full);
    put_u32(m, type);
    m->n_kv++;
}

static void key_text(struct meta *m, const char *name, const char *value)
{
    key(m, name, META_STRING);
    put_text(m, value);
}

static void key_u32(struct meta *m, const char *name, uint32_t value)
{
    key(m, name, META_U32);
    put_u32(m, value);
}

static void key_texts(struct meta *m, const char *name, const char *const *values)
{
    uint64_t n = 0;

    while (values[n]) n++;
    key(m, name, META_ARRAY);
    put_u32(m, META_STRING);
    put_u64(m, n);
    for (uint64_t i = 0; i < n; i++) put_text(m, values[i]);
}

static void key_zeros(struct meta *m, const char *name, enum meta_type type, uint64_t n)
{
    key(m, name, META_ARRAY);
    put_u32(m, type);
    put_u64(m, n);
    for (uint64_t i = 0; i < n; i++) put_u32(m, type == META_I32 ? 1 : 0);
}

/* Loads it; the text of the error, "" for none, in a static buffer. */
static const char *load(struct meta *m, const char *pre, rd_status *st, struct tokenizer **out)
{
    static struct rd_error err;
    struct buf file = {0};
    struct model_file *g = NULL;
    struct tokenizer *t = NULL;

    buf_append(&file, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0", 16);
    buf_append(&file, &m->n_kv, 8);
    buf_append(&file, m->b.data, m->b.n);
    err.text[0] = 0;
    *st = gguf_open_bytes((const uint8_t *)file.data, file.n, &g, &err);
    if (*st == RD_OK) *st = vocab_load(g, pre, &t, &err);
    model_file_close(g);
    buf_deinit(&file);
    buf_deinit(&m->b);
    memset(m, 0, sizeof(*m));
    if (out)
        *out = t;
    else
        tokenizer_destroy(t);
    return err.text;
}

static const char *const tokens[] = {"a", "b", "ab", "<s>", NULL}, *const merges[] = {"a b", NULL};

static void base(struct meta *m, const char *model)
{
    memset(m, 0, sizeof(*m));
    key_text(m, "model", model);
    key_texts(m, "tokens", tokens);
}

static bool refused(struct meta *m, rd_status want, const char *mentions)
{
    rd_status st;
    uint64_t alive = mem_n_alive() - (m->b.data != NULL);
    const char *text = load(m, NULL, &st, NULL);

    if (st != want || !strstr(text, mentions))
        test_note("%s: \"%s\", wanted \"%s\"", rd_status_name(st), text, mentions);
    return st == want && strstr(text, mentions) && mem_n_alive() == alive;
}

TEST(a_small_vocabulary_loads_and_encodes)
{
    struct meta m;
    struct tokenizer *t = NULL;
    rd_status st;
    int32_t *ids = NULL;
    uint32_t n = 0;

    base(&m, "gpt2");
    key_texts(&m, "merges", merges);
    key_text(&m, "pre", "nobody knows");
    key_u32(&m, "eos_token_id", 3);
    load(&m, "qwen2", &st, &t); /* --pre goes before the file */
    CHECK_OK(st);
    CHECK_EQ(tokenizer_eos(t), 3);
    CHECK(tokenizer_is_end(t, 3));
    CHECK_OK(tokenizer_encode(t, "abb", 3, true, false, &ids, &n, NULL));
    CHECK_EQ(n, 2);
    CHECK_EQ(ids[0], 2);
    CHECK_EQ(ids[1], 1);
    mem_free(ids);
    tokenizer_destroy(t);
}

TEST(a_padding_token_that_is_none_does_no_harm)
{
    const uint32_t ids[] = {4, UINT32_MAX};

    for (int i = 0; i < 2; i++) {
        struct meta m;
        struct tokenizer *t = NULL;
        rd_status st;

        base(&m, "gpt2");
        key_texts(&m, "merges", merges);
        key_text(&m, "pre", "gpt-2");
        key_u32(&m, "padding_token_id", ids[i]);
        load(&m, NULL, &st, &t);
        CHECK_OK(st);
        tokenizer_destroy(t);
    }
}

TEST(metadata_that_does_not_add_up_is_refused_by_name)
{
    struct meta m = {0};

    CHECK(refused(&m, RD_E_FORMAT, "tokenizer.ggml.model is missing"));
    base(&m, "bert");
    CHECK(refused(&m, RD_E_UNSUPPORTED, "\"bert\"; known are gpt2 and llama"));
    key_text(&m, "model", "gpt2");
    CHECK(refused(&m, RD_E_FORMAT, "tokens is missing"));
    key_text(&m, "model", "gpt2");
    key_zeros(&m, "tokens", META_I32, 4);
    CHECK(refused(&m, RD_E_FORMAT, "tokenizer.ggml.tokens is an array of"));
    key_text(&m, "model", "gpt2");
    key_u32(&m, "tokens", 4);
    CHECK(refused(&m, RD_E_FORMAT, "expected an array"));
    base(&m, "gpt2");
    CHECK(refused(&m, RD_E_FORMAT, "merges is missing"));
    base(&m, "gpt2");
    key_texts(&m, "merges", merges);
    CHECK(refused(&m, RD_E_UNSUPPORTED, "--pre"));
    base(&m, "gpt2");
    key_texts(&m, "merges", merges);
    key_text(&m, "pre", "pre-of-tomorrow");
    CHECK(refused(&m, RD_E_UNSUPPORTED, "\"pre-of-tomorrow\" is unknown; known are gpt-2, smollm"));
    base(&m, "gpt2");
    key_texts(&m, "merges", merges);
    key_text(&m, "pre", "gpt-2");
    key_u32(&m, "eos_token_id", 4);
    CHECK(refused(&m, RD_E_FORMAT, "eos_token_id"));
    base(&m, "gpt2");
    key_zeros(&m, "token_type", META_I32, 3);
    CHECK(refused(&m, RD_E_FORMAT, "token_type has 3 elements, the vocabulary 4"));
    base(&m, "llama");
    CHECK(refused(&m, RD_E_FORMAT, "scores"));
    base(&m, "llama");
    key_zeros(&m, "scores", META_F32, 5);
    CHECK(refused(&m, RD_E_FORMAT, "scores has 5 elements"));
    base(&m, "llama");
    key_zeros(&m, "scores", META_U32, 4);
    CHECK(refused(&m, RD_E_FORMAT, "scores is an array of"));
}

TEST(no_memory_leaves_nothing_behind)
{
    uint64_t alive = mem_n_alive();
    rd_status st = RD_E_NOMEM;

    for (int64_t i = 0; st != RD_OK; i++) {
        struct meta m;

        base(&m, "llama");
        key_zeros(&m, "scores", META_F32, 4);
        key_zeros(&m, "token_type", META_I32, 4);
        mem_fail_after(i);
        load(&m, NULL, &st, NULL);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM || st == RD_E_FORMAT); /* FORMAT: the test's own file was cut short */
        CHECK_EQ(mem_n_alive(), alive);
    }
}
