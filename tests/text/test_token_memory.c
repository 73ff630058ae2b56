/* tests/text/test_token_memory.c - conversations that grow beside each other have the ids of their whole texts. */
#include "text/tokenizer/token_memory.h"
#include "test.h"
#include "tiny_vocab.h"
#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/thread.h"

#define N_TALKS 5u
#define ROOM    ((size_t)8 << 20)

static struct tokenizer *make(enum tokenizer_model model)
{
    static struct tiny_vocab vocab;
    struct tokenizer *t = NULL;

    tiny_vocab_init(&vocab, model);
    tiny_vocab_add(&vocab, "<|im_end|>", TOKEN_CONTROL, 0);
    if (model == TOKENIZER_BPE) {
        tiny_vocab_add(&vocab, "th", TOKEN_NORMAL, 0);
        tiny_vocab_add(&vocab, "the", TOKEN_NORMAL, 0);
        tiny_vocab_merge(&vocab, "t", "h");
        tiny_vocab_merge(&vocab, "th", "e");
    }
    return tokenizer_create(&vocab.spec, &t, NULL) == RD_OK ? t : NULL;
}

static void put_message(struct random *r, struct buf *text, unsigned n_words)
{
    static const char *const words[] = {"the ",     "theatre", " ",  "\n\n", "  ",   "12",
                                        "\xc3\xa9", "\xff",    "!?", "'s",   "<|im_"};

    for (unsigned i = 0; i < n_words; i++) buf_puts(text, words[random_below(r, sizeof(words) / sizeof(words[0]))]);
    buf_puts(text, "<|im_end|>");
}

/* Both ways; *n_kept grows. */
static bool alike(struct token_memory *m, const struct tokenizer *t, const struct buf *text, bool special,
                  size_t *n_kept)
{
    int32_t *a = NULL, *b = NULL;
    uint32_t n_a = 0, n_b = 0;
    size_t kept = 0;
    bool good = token_memory_encode(m, text->data, text->n, special, true, &a, &n_a, &kept, NULL) == RD_OK &&
                tokenizer_encode(t, text->data, text->n, special, true, &b, &n_b, NULL) == RD_OK && n_a == n_b &&
                memcmp(a, b, n_a * sizeof(*a)) == 0;

    *n_kept += kept;
    mem_free(a);
    mem_free(b);
    return good;
}

/* Several conversations with one system prompt, in turns; now and then one is edited, or begins anew. */
static bool talks_are_alike(struct token_memory *m, const struct tokenizer *t, struct random *r, unsigned n_turns,
                            size_t *n_kept, size_t *n_all)
{
    struct buf talks[N_TALKS] = {{0}}, system = {0};
    bool good = true;

    put_message(r, &system, 600);
    for (unsigned turn = 0; good && turn < n_turns; turn++) {
        struct buf *talk = &talks[random_below(r, N_TALKS)];

        if (talk->n == 0 || random_below(r, 16) == 0) talk->n = 0, buf_append(talk, system.data, system.n);
        if (random_below(r, 6) == 0) talk->n -= random_below(r, 300);
        put_message(r, talk, (unsigned)random_below(r, 200));
        good = alike(m, t, talk, random_below(r, 4) != 0, n_kept);
        *n_all += talk->n;
    }
    for (unsigned i = 0; i < N_TALKS; i++) buf_deinit(&talks[i]);
    buf_deinit(&system);
    return good;
}

TEST(conversations_in_turns_have_the_ids_of_their_whole_texts)
{
    struct random r;
    uint64_t alive = mem_n_alive();

    random_init(&r, test_seed());
    for (unsigned model = 0; model < 2; model++) {
        struct tokenizer *t = make(model ? TOKENIZER_SPM : TOKENIZER_BPE);
        size_t n_kept = 0, n_all = 0;

        CHECK(t);
        for (unsigned i = 0; i < (test_is_long() ? 100 : 10); i++) {
            struct token_memory *m = NULL;

            CHECK_OK(token_memory_create(t, i % 2 ? ROOM : 60000, &m));
            CHECK(talks_are_alike(m, t, &r, 60, &n_kept, &n_all));
            token_memory_destroy(m);
        }
        test_note("%s: %.0f %% of the bytes kept their ids", model ? "SPM" : "BPE",
                  100.0 * (double)n_kept / (double)n_all);
        CHECK(n_kept > n_all / 4);
        tokenizer_destroy(t);
    }
    CHECK_EQ(mem_n_alive(), alive);
}

TEST(a_conversation_that_branches_off_leaves_the_other_one_its_ids)
{
    struct tokenizer *t = make(TOKENIZER_BPE);
    struct token_memory *m = NULL;
    struct buf one = {0}, other = {0};
    struct random r;
    size_t n_kept, n_texts, n_bytes;

    random_init(&r, 1);
    CHECK_OK(token_memory_create(t, ROOM, &m));
    put_message(&r, &one, 1000);
    buf_append(&other, one.data, one.n);
    put_message(&r, &one, 3000);
    put_message(&r, &other, 20);
    CHECK(alike(m, t, &one, true, &n_kept));
    n_kept = 0;
    CHECK(alike(m, t, &other, true, &n_kept));
    CHECK(n_kept > other.n - 400); /* the common part */
    token_memory_count(m, &n_texts, &n_bytes);
    CHECK_EQ(n_texts, 2);
    n_kept = 0;
    CHECK(alike(m, t, &one, true, &n_kept));
    CHECK_EQ(n_kept, one.n); /* all of it is still there */
    token_memory_count(m, &n_texts, &n_bytes);
    CHECK_EQ(n_texts, 2);
    token_memory_destroy(m);
    buf_deinit(&one);
    buf_deinit(&other);
    tokenizer_destroy(t);
}

TEST(number_and_bytes_of_the_kept_texts_are_bounded)
{
    struct tokenizer *t = make(TOKENIZER_BPE);
    struct token_memory *m = NULL;
    struct random r;
    size_t n_texts, n_bytes, n_kept = 0;

    random_init(&r, 1);
    for (unsigned round = 0; round < 2; round++) {
        size_t room = round ? 300000 : ROOM;

        CHECK_OK(token_memory_create(t, room, &m));
        for (unsigned i = 0; i < LIMIT_KEPT_TEXTS + 20; i++) {
            struct buf text = {0};

            buf_printf(&text, "%u ", i);
            put_message(&r, &text, i % 10 ? 400 : 20000);
            CHECK(alike(m, t, &text, true, &n_kept));
            token_memory_count(m, &n_texts, &n_bytes);
            CHECK(n_texts <= LIMIT_KEPT_TEXTS && n_bytes <= room);
            buf_deinit(&text);
        }
        if (!round)
            CHECK_EQ(n_texts, LIMIT_KEPT_TEXTS);
        else
            CHECK(n_texts > 2);
        token_memory_destroy(m);
    }
    tokenizer_destroy(t);
}

TEST(without_memory_it_fails_and_forgets_no_more_than_one_text)
{
    struct tokenizer *t = make(TOKENIZER_BPE);
    struct token_memory *m = NULL;
    struct buf text = {0}, branch = {0};
    struct random r;
    uint64_t alive = mem_n_alive();
    size_t n_kept = 0;

    random_init(&r, 1);
    for (int64_t i = 0; !m; i++) {
        mem_fail_after(i);
        token_memory_create(t, ROOM, &m);
        mem_fail_after(-1);
    }
    put_message(&r, &text, 1000);
    buf_append(&branch, text.data, text.n / 2);
    for (unsigned round = 0; round < 2; round++) {
        struct buf *b = round ? &branch : &text;
        int32_t *ids = NULL;
        uint32_t n;

        put_message(&r, b, 30);
        for (int64_t i = 0; !ids; i++) {
            rd_status st;

            mem_fail_after(i);
            st = token_memory_encode(m, b->data, b->n, true, true, &ids, &n, NULL, NULL);
            mem_fail_after(-1);
            CHECK(st == (ids ? RD_OK : RD_E_NOMEM));
        }
        mem_free(ids);
        CHECK(alike(m, t, b, true, &n_kept));
    }
    token_memory_destroy(m);
    buf_deinit(&text);
    buf_deinit(&branch);
    CHECK_EQ(mem_n_alive(), alive);
    tokenizer_destroy(t);
}

struct worker {
    struct token_memory *m;
    const struct tokenizer *t;
    uint64_t seed;
    bool good;
};

static void work(void *arg)
{
    struct worker *w = arg;
    struct random r;
    size_t n_kept = 0, n_all = 0;

    random_init(&r, w->seed / 2); /* two each have the same conversations */
    w->good = true;
    for (unsigned i = 0; i < 4 && w->good; i++) w->good = talks_are_alike(w->m, w->t, &r, 40, &n_kept, &n_all);
}

TEST(threads_share_it)
{
    struct tokenizer *t = make(TOKENIZER_BPE);
    struct token_memory *m = NULL;
    struct worker workers[4];
    struct thread threads[4] = {{0}};

    CHECK_OK(token_memory_create(t, 200000, &m));
    for (unsigned i = 0; i < 4; i++) {
        workers[i] = (struct worker){m, t, i, false};
        CHECK_OK(thread_start(&threads[i], "talk", work, &workers[i]));
    }
    for (unsigned i = 0; i < 4; i++) thread_join(&threads[i]);
    for (unsigned i = 0; i < 4; i++) CHECK(workers[i].good);
    token_memory_destroy(m);
    tokenizer_destroy(t);
}
