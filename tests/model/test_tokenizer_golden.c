/* tests/model/test_tokenizer_golden.c - ids and texts of the real GGUF vocabularies, equal to llama.cpp's on 2,600
 * strings.
 *
 * Format of the files: tests/golden/tokenizer/make_tokenizer.py. smollm2 is always there; the other models are tested
 * where they have been fetched.
 */
#include "test.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/gguf/gguf.h"
#include "model/vocab.h"

struct corpus {
    char *data, **strings;
    size_t *sizes;
    size_t n;
};

static uint64_t varint(const unsigned char **p, const unsigned char *end)
{
    uint64_t v = 0;

    for (unsigned shift = 0; *p < end && shift < 63; shift += 7) {
        unsigned char b = *(*p)++;

        v |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) break;
    }
    return v;
}

static bool corpus_read(struct corpus *c)
{
    size_t n, n_fragments;
    const unsigned char *p, *end;
    struct {
        const unsigned char *s;
        size_t n;
    } fragments[4096];

    memset(c, 0, sizeof(*c));
    if (file_read_all(test_path("tests/golden/tokenizer/corpus.bin"), 8u << 20, &c->data, &n, NULL) != RD_OK)
        return false;
    p = (const unsigned char *)c->data;
    end = p + n;
    n_fragments = varint(&p, end);
    if (n_fragments > 4096) return false;
    for (size_t i = 0; i < n_fragments; i++) {
        fragments[i].n = varint(&p, end);
        fragments[i].s = p;
        p += fragments[i].n;
    }
    c->n = varint(&p, end);
    c->strings = mem_zalloc(c->n, sizeof(*c->strings));
    c->sizes = mem_zalloc(c->n, sizeof(*c->sizes));
    for (size_t i = 0; i < c->n; i++) {
        size_t n_items = varint(&p, end), cap = 0;

        if (!mem_grow((void **)&c->strings[i], &cap, 1, 1)) return false;
        for (size_t k = 0; k < n_items; k++) {
            uint64_t item = varint(&p, end), repeat = item & 1 ? varint(&p, end) : 1;

            if (item / 2 >= n_fragments) return false;
            for (uint64_t r = 0; r < repeat; r++) {
                if (!mem_grow((void **)&c->strings[i], &cap, c->sizes[i] + fragments[item / 2].n + 1, 1)) return false;
                memcpy(c->strings[i] + c->sizes[i], fragments[item / 2].s, fragments[item / 2].n);
                c->sizes[i] += fragments[item / 2].n;
            }
        }
    }
    return p == end;
}

static void corpus_free(struct corpus *c)
{
    for (size_t i = 0; i < c->n; i++) mem_free(c->strings[i]);
    mem_free(c->strings);
    mem_free(c->sizes);
    mem_free(c->data);
}

static uint64_t fnv(const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static uint64_t take(const unsigned char **p, size_t n)
{
    uint64_t v = 0;

    memcpy(&v, *p, n);
    *p += n;
    return v;
}

/* 1: equal. Says what differs. */
static bool check_string(const struct tokenizer *t, const struct corpus *c, size_t i, const unsigned char **p)
{
    bool ok = true;

    for (unsigned special = 0; special < 2; special++) {
        uint32_t want_n = (uint32_t)take(p, 4), n = 0;
        uint64_t want = take(p, 8);
        int32_t *ids = NULL;
        char *text = NULL;
        size_t n_text = 0;
        struct rd_error err = {0};
        bool same;

        if (tokenizer_encode(t, c->strings[i], c->sizes[i], special, special, &ids, &n, &err) != RD_OK) {
            test_note("string %zu: %s", i, err.text);
            ok = false;
        }
        same = n == want_n && fnv(ids, n * sizeof(*ids)) == want;
        if (!same)
            test_note("string %zu (%zu bytes) special %u: %u ids, wanted %u", i, c->sizes[i], special, n, want_n);
        ok = ok && same;
        if (special) {
            want = take(p, 8);
            if (tokenizer_decode(t, ids, n, true, &text, &n_text) != RD_OK || (same && fnv(text, n_text) != want)) {
                test_note("string %zu: decoded text differs", i);
                ok = false;
            }
            for (uint32_t k = 0; i % 16 == 0 && want_n <= 400 && k < want_n; k++) {
                int32_t want_id = (int32_t)take(p, 4);

                if (!same && k < n && ids[k] != want_id)
                    test_note("string %zu id %u: %d, wanted %d", i, k, ids[k], want_id);
            }
        }
        mem_free(text);
        mem_free(ids);
    }
    return ok;
}

static void check_model(const char *model, const char *golden)
{
    const char *path = test_model(model);
    struct model_file *g = NULL;
    struct tokenizer *t = NULL;
    struct corpus c;
    struct rd_error err = {0};
    char name[96], *ids = NULL;
    size_t n_ids = 0, n_wrong = 0, n_bytes = 0;
    uint64_t start, created, done;
    const unsigned char *p;

    if (!path) {
        test_skip("%s has not been fetched (tools/fetch-model %s)", model, model);
        return;
    }
    CHECK(corpus_read(&c));
    CHECK(c.n >= 2000);
    snprintf(name, sizeof(name), "tests/golden/tokenizer/%s", golden);
    CHECK_OK(file_read_all(test_path(name), 8u << 20, &ids, &n_ids, &err));
    CHECK_OK(gguf_open(path, &g, &err));
    start = clock_now_ns(clock_system());
    if (vocab_load(g, NULL, &t, &err) != RD_OK) test_note("%s", err.text);
    CHECK(t);
    created = clock_now_ns(clock_system());
    model_file_close(g); /* the tokenizer keeps nothing of the file */
    p = (const unsigned char *)ids;
    for (size_t i = 0; i < c.n; i++) {
        n_wrong += !check_string(t, &c, i, &p);
        n_bytes += c.sizes[i];
    }
    done = clock_now_ns(clock_system());
    CHECK_EQ(p - (const unsigned char *)ids, n_ids);
    test_note("%s: vocabulary loaded in %.1f ms; %zu strings, %.1f MB twice in %.0f ms", model,
              (double)(created - start) / 1e6, c.n, (double)n_bytes / 1e6, (double)(done - created) / 1e6);
    CHECK_EQ(n_wrong, 0);
    tokenizer_destroy(t);
    mem_free(ids);
    corpus_free(&c);
}

TEST(smollm2_equals_llama_cpp)
{
    check_model("smollm2", "ids_smollm2.bin");
}
TEST(gemma3_equals_llama_cpp)
{
    check_model("gemma3-270m", "ids_gemma3-270m.bin");
}
TEST(qwen_0_5b_equals_llama_cpp)
{
    check_model("qwen2.5-coder-0.5b", "ids_qwen2.5-coder.bin");
}
TEST(qwen_1_5b_equals_llama_cpp)
{
    check_model("qwen2.5-coder-1.5b", "ids_qwen2.5-coder.bin");
}

TEST(end_tokens_and_template_of_a_real_file)
{
    const char *path = test_model("smollm2");
    struct model_file *g = NULL;
    struct tokenizer *t = NULL;
    struct model_str source;
    struct rd_error err = {0};

    if (!path) {
        test_skip("smollm2 has not been fetched (tools/fetch-model smollm2)");
        return;
    }
    CHECK_OK(gguf_open(path, &g, &err));
    CHECK_OK(vocab_load(g, NULL, &t, &err));
    CHECK(tokenizer_is_end(t, tokenizer_find(t, "<|im_end|>", 10)));
    CHECK(tokenizer_is_end(t, tokenizer_find(t, "<|endoftext|>", 13)));
    CHECK(!tokenizer_is_end(t, tokenizer_find(t, "<|im_start|>", 12)));
    CHECK_EQ(tokenizer_type(t, tokenizer_find(t, "<|im_start|>", 12)), TOKEN_CONTROL);
    CHECK_OK(vocab_chat_template(g, &source));
    CHECK(source.n > 100 && memmem(source.s, source.n, "im_start", 8));
    tokenizer_destroy(t);
    t = NULL;
    CHECK_EQ(vocab_load(g, "no-such-split", &t, &err), RD_E_UNSUPPORTED);
    CHECK(!t && strstr(err.text, "no-such-split") && strstr(err.text, "qwen2") && strstr(err.text, "--pre"));
    model_file_close(g);
}
