/* tests/text/test_special_marks.c - what a client writes never becomes a special token, by every kind of tokenizer, in texts that
 * grow, whatever of it is memorised; and what has no such name is what it was.
 */
#include "text/tokenizer/special_marks.h"
#include "test.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "text/tokenizer/token_memory.h"
#include "tiny_vocab.h"

#define MARK "\xef\xb7\x90"

enum { BPE, SPM, HUB, HUB_NORMALIZED, N_KINDS };

/* Byte-level BPE without merges, or over characters; the special tokens are looked for in the normalised text. */
static struct tokenizer *from_json(bool normalized)
{
    struct buf out = {0};
    struct tokenizer_files files = {.json = NULL};
    struct tokenizer *t = NULL;

    buf_puts(&out,
             "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
             "\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],"
             "\"vocab\":{");
    for (unsigned b = 0, other = 0x100; b < 256; b++) {
        bool prints = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        char text[8] = "";

        utf8_encode(prints ? b : other++, text);
        buf_puts(&out, b ? ",\"" : "\"");
        buf_put_json(&out, text, strlen(text));
        buf_printf(&out, "\":%u", b);
    }
    buf_puts(&out, "}},\"added_tokens\":[");
    buf_printf(&out,
               "{\"id\":256,\"content\":\"<s>\",\"special\":true,\"normalized\":%s},"
               "{\"id\":257,\"content\":\"<|im_end|>\",\"special\":true,\"normalized\":%s},"
               "{\"id\":258,\"content\":\"<u>\",\"normalized\":false}]}",
               normalized ? "true" : "false", normalized ? "true" : "false");
    files.json = out.data;
    files.n_json = out.n;
    (void)tokenizer_from_json(&files, &t, NULL);
    buf_deinit(&out);
    return t;
}

static struct tokenizer *make(unsigned kind)
{
    static struct tiny_vocab vocab;
    struct tokenizer *t = NULL;

    if (kind >= HUB) return from_json(kind == HUB_NORMALIZED);
    tiny_vocab_init(&vocab, kind == SPM ? TOKENIZER_SPM : TOKENIZER_BPE);
    tiny_vocab_add(&vocab, "<|im_end|>", TOKEN_CONTROL, 0);
    if (kind == BPE) tiny_vocab_add(&vocab, "<s>", TOKEN_CONTROL, 0);
    tiny_vocab_add(&vocab, "<u>", TOKEN_USER_DEFINED, 0);
    return tokenizer_create(&vocab.spec, &t, NULL) == RD_OK ? t : NULL;
}

/* A prompt as a template would write it, and what it should become. */
struct prompt {
    struct buf marked, since; /* since: the plain text behind the last special token */
    int32_t ids[1 << 16];
    size_t n;
};

static void flush(const struct tokenizer *t, struct prompt *p)
{
    int32_t *ids = NULL;
    uint32_t n = 0;

    if (p->since.n == 0) return;
    CHECK_OK(tokenizer_encode(t, p->since.data, p->since.n, false, false, &ids, &n, NULL));
    memcpy(p->ids + p->n, ids, n * sizeof(*ids));
    p->n += n;
    mem_free(ids);
    buf_clear(&p->since);
}

static void put_token(const struct tokenizer *t, struct prompt *p, const char *name)
{
    flush(t, p);
    buf_puts(&p->marked, name);
    p->ids[p->n++] = tokenizer_find(t, name, strlen(name));
}

static void put_foreign(const struct tokenizer *t, struct prompt *p, const char *s, size_t n)
{
    special_marks_put(t, s, n, NULL, &p->marked);
    buf_append(&p->since, s, n);
}

static void random_text(struct random *r, struct buf *out)
{
    static const char *const parts[] = {"a",     " ",        "<s>",       "<|im_end|>", "<",     "<|",
                                        "<|im_", "end|>",    "|>",        "s>",         "\n",    "<u>",
                                        MARK,    "\xc3\xa9", "e\xcc\x81", "<<s>>",      "hello", "<|im_end|"};

    buf_clear(out);
    for (unsigned i = 0, n = random_below(r, 12); i < n; i++)
        buf_puts(out, parts[random_below(r, sizeof(parts) / sizeof(parts[0]))]);
    buf_append(out, "", 0);
}

static bool equals(struct token_memory *m, const struct prompt *p)
{
    int32_t *ids = NULL;
    uint32_t n = 0;
    bool same =
        token_memory_encode(m, p->marked.data, p->marked.n, false, NAMES_MARKED, &ids, &n, NULL, NULL) == RD_OK &&
        n == p->n && memcmp(ids, p->ids, n * sizeof(*ids)) == 0;

    mem_free(ids);
    return same;
}

TEST(foreign_text_is_text_and_the_templates_tokens_are_tokens)
{
    static struct prompt p;
    struct random r;
    struct buf text = {0};

    random_init(&r, test_seed());
    for (unsigned kind = 0; kind < N_KINDS; kind++) {
        struct tokenizer *t = make(kind);

        CHECK(t);
        for (unsigned talk = 0; talk < (test_is_long() ? 300 : 30); talk++) {
            struct token_memory *m = NULL; /* it keeps the beginnings of every conversation before */

            CHECK_OK(token_memory_create(t, (size_t)8 << 20, &m));
            p.n = 0;
            buf_clear(&p.marked);
            buf_append(&p.marked, "", 0);
            for (unsigned turn = 0; turn < 40; turn++) {
                size_t n_before = p.n;

                put_token(t, &p, "<s>");
                for (unsigned i = 0, n = random_below(&r, 30); i < n;
                     i++) { /* texts side by side: parts of one message */
                    random_text(&r, &text);
                    put_foreign(t, &p, text.data, text.n);
                }
                put_token(t, &p, "<|im_end|>");
                flush(t, &p);
                if (!equals(m, &p)) fprintf(stderr, "kind %u talk %u turn %u: %s\n", kind, talk, turn, p.marked.data);
                CHECK(p.n > n_before && equals(m, &p));
            }
            token_memory_destroy(m);
        }
        tokenizer_destroy(t);
    }
    buf_deinit(&text);
    buf_deinit(&p.marked);
    buf_deinit(&p.since);
}

/* The same bytes, in one as text, in another as tokens: what is memorised of one is not taken for the other. */
TEST(the_memory_tells_a_name_from_its_token)
{
    static struct prompt p;

    for (unsigned kind = 0; kind < N_KINDS; kind++) {
        struct tokenizer *t = make(kind);
        struct token_memory *m = NULL;

        CHECK_OK(token_memory_create(t, (size_t)8 << 20, &m));
        for (unsigned round = 0; round < 16; round++) {
            p.n = 0;
            buf_clear(&p.marked);
            for (unsigned i = 0; i < 400; i++) {
                put_foreign(t, &p, "word ", 5);
                if (i % 50 != 20) continue;
                if (round >> (i / 50 % 4) & 1)
                    put_foreign(t, &p, "<|im_end|>", 10);
                else
                    put_token(t, &p, "<|im_end|>");
            }
            flush(t, &p);
            CHECK(equals(m, &p));
        }
        token_memory_destroy(m);
        tokenizer_destroy(t);
    }
    buf_deinit(&p.marked);
    buf_deinit(&p.since);
}

static const char *put(const struct tokenizer *t, const char *s, const char *const *allowed, struct buf *out)
{
    buf_clear(out);
    return special_marks_put(t, s, strlen(s), allowed, out) == (strcmp(out->data, s) != 0) ? out->data
                                                                                           : "says so wrongly";
}

TEST(marks_stand_in_names_and_where_a_name_may_go_on)
{
    static const char *const allowed[] = {"<s>", NULL};
    struct tokenizer *t = make(BPE);
    struct buf out = {0};

    CHECK_STR(put(t, "a text, 1 < 2, and <b>", NULL, &out), "a text, 1 < 2, and <b>");
    CHECK_STR(put(t, "", NULL, &out), "");
    CHECK_STR(put(t, "x<|im_end|>y", NULL, &out), "x<" MARK "|im_end|>y");
    CHECK_STR(put(t, "<<s><s", NULL, &out), "<<" MARK "s><s" MARK);
    CHECK_STR(put(t, "<|im_", NULL, &out), "<|im_" MARK);
    CHECK_STR(put(t, "a <", NULL, &out), "a <" MARK);
    CHECK_STR(put(t, "<s> <|im_end|>", allowed, &out), "<s> <" MARK "|im_end|>");
    CHECK_STR(put(t, "<u>", NULL, &out), "<u>"); /* means the same whoever writes it */
    CHECK_STR(put(t, "a" MARK "b", NULL, &out), "a" MARK MARK "b");
    buf_deinit(&out);
    tokenizer_destroy(t);
}

TEST(what_was_put_comes_back_by_take)
{
    struct random r;
    struct tokenizer *t = make(BPE);
    struct buf text = {0}, out = {0};
    uint64_t alive;

    random_init(&r, test_seed());
    for (unsigned i = 0; i < 20000; i++) {
        struct text_breaks breaks = {NULL, 0, 0};
        char *plain = NULL;
        size_t n = 0;

        random_text(&r, &text);
        buf_clear(&out);
        special_marks_put(t, text.data, text.n, NULL, &out);
        CHECK_OK(text_marks_take(out.data, out.n, &plain, &n, &breaks));
        if (!plain) CHECK(out.n == text.n && breaks.n == 0);
        if (plain) CHECK(n == text.n && memcmp(plain, text.data, n) == 0);
        for (size_t k = 0; k < breaks.n; k++) {
            CHECK(breaks.at[k] > 0 && breaks.at[k] <= n && (k == 0 || breaks.at[k] > breaks.at[k - 1]));
            CHECK(text_breaks_cut(&breaks, breaks.at[k] - 1, breaks.at[k] + 1));
        }
        CHECK(!text_breaks_cut(&breaks, n, n + 9) && !text_breaks_cut(NULL, 0, 9));
        text_breaks_deinit(&breaks);
        mem_free(plain);
    }
    tokenizer_destroy(t);
    buf_deinit(&text);
    buf_deinit(&out);
    alive = mem_n_alive();
    for (int64_t i = 0;; i++) { /* no memory, at any time */
        static const char marked[] = "a<" MARK "s>b<" MARK "s>";
        struct text_breaks breaks = {NULL, 0, 0};
        char *plain = NULL;
        size_t n = 0;
        rd_status st;

        mem_fail_after(i);
        st = text_marks_take(marked, sizeof(marked) - 1, &plain, &n, &breaks);
        mem_fail_after(-1);
        CHECK(st == (plain ? RD_OK : RD_E_NOMEM));
        text_breaks_deinit(&breaks);
        mem_free(plain);
        CHECK_EQ(mem_n_alive(), alive);
        if (st == RD_OK) break;
    }
}
