/* tests/memory/test_memory_file.c - first spellings, and what of answers and spellings is there after a restart. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "memory/memory_file.h"
#include "memory/memory_record.h"
#include "memory/spelling_memory.h"
#include "base/data_file.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/random.h"
#include "test.h"
#include "text/tiny_vocab.h"

/* jansson's memory is ours, as rd_open has it. */
static void *json_alloc(size_t n)
{
    return mem_alloc(1, n);
}
__attribute__((constructor)) static void set_json_memory(void)
{
    json_set_alloc_funcs(json_alloc, mem_free);
}

static const struct kv_space nobody, somebody = {.salt = {7, 8}};

/* A conversation of n messages: user, assistant, user, ... */
static json_t *talk(uint32_t n)
{
    json_t *messages = json_array();

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(
            messages, json_pack("{s:s, s:s}", "content", i ? "go on" : "hi", "role", i % 2 ? "assistant" : "user"));
    return messages;
}

/* What becomes of one tool in a request of n messages, as a text; "": it stays. */
static const char *recalled_at(struct spelling_memory *m, struct kv_space owner, const char *text, uint32_t n,
                               struct spelled *keep)
{
    static char out[4096];
    json_t *tools = json_pack("[o]", json_loads(text, JSON_DECODE_ANY, NULL)), *messages = talk(n);
    char *dumped, *before = json_dumps(json_array_get(tools, 0), JSON_COMPACT);

    spelling_memory_recall(m, owner, tools, messages, keep);
    dumped = json_dumps(json_array_get(tools, 0), JSON_COMPACT);
    snprintf(out, sizeof(out), "%s", dumped && before && strcmp(dumped, before) ? dumped : "");
    mem_free(dumped);
    mem_free(before);
    json_decref(tools);
    json_decref(messages);
    return out;
}

/* The same of a request in mid conversation, which is kept. */
static const char *recalled(struct spelling_memory *m, struct kv_space owner, const char *text)
{
    struct spelled kept;
    const char *out = recalled_at(m, owner, text, 3, &kept);

    spelling_memory_release(m, &kept);
    return out;
}

TEST(a_tool_is_spelled_as_its_conversation_had_it_first)
{
    struct spelling_memory *m;

    CHECK_OK(spelling_memory_create(1 << 16, &m));
    CHECK_STR(recalled(m, nobody, "{\"name\":\"look\",\"in\":{\"b\":1,\"a\":[1,{\"y\":2,\"x\":3}]}}"), "");
    CHECK_STR(recalled(m, nobody, "{\"name\":\"look\",\"in\":{\"b\":1,\"a\":[1,{\"y\":2,\"x\":3}]}}"), "");
    CHECK_STR(recalled(m, nobody, "{\"in\":{\"a\":[1,{\"x\":3,\"y\":2}],\"b\":1},\"name\":\"look\"}"),
              "{\"name\":\"look\",\"in\":{\"b\":1,\"a\":[1,{\"y\":2,\"x\":3}]}}");
    CHECK_STR(recalled(m, nobody, "{\"in\":{\"a\":[{\"x\":3,\"y\":2},1],\"b\":1},\"name\":\"look\"}"),
              ""); /* lists have an order */
    CHECK_STR(recalled(m, somebody, "{\"in\":{\"a\":[1,{\"x\":3,\"y\":2}],\"b\":1},\"name\":\"look\"}"), "");
    CHECK_STR(recalled(m, nobody, "{\"n\":1.0,\"m\":1}"), "");
    CHECK_STR(recalled(m, nobody, "{\"m\":1,\"n\":1}"), ""); /* 1 is not 1.0 to a template */
    spelling_memory_clear(m);
    CHECK_STR(recalled(m, nobody, "{\"m\":1,\"n\":1.0}"), "");
    spelling_memory_destroy(m);
}

#define ONE "{\"a\":1,\"b\":2}"
#define TWO "{\"b\":2,\"a\":1}"

TEST(a_look_keeps_no_spelling)
{
    struct spelling_memory *m;

    CHECK_OK(spelling_memory_create(1 << 16, &m));
    CHECK_STR(recalled_at(m, nobody, ONE, 3, NULL), "");
    CHECK_STR(recalled(m, nobody, TWO), ""); /* the first that ran */
    CHECK_STR(recalled_at(m, nobody, ONE, 3, NULL), TWO);
    spelling_memory_destroy(m);
}

TEST(a_beginning_is_spelled_as_it_came_and_what_goes_on_as_it_began)
{
    struct spelling_memory *m;
    struct spelled a, b;

    CHECK_OK(spelling_memory_create(1 << 16, &m));
    CHECK_STR(recalled_at(m, nobody, ONE, 1, &a), "");
    CHECK_STR(recalled_at(m, nobody, TWO, 3, NULL), ONE);    /* goes on from it */
    CHECK_STR(recalled_at(m, nobody, TWO, 1, &b), "");       /* another client says the same */
    CHECK_STR(recalled_at(m, nobody, TWO, 3, NULL), "");     /* whose is this? Nobody's spelling is foreign to it */
    spelling_memory_answer(m, nobody, &a, "go on", 5, NULL); /* the answer that one of them got */
    CHECK_STR(recalled_at(m, nobody, TWO, 3, NULL), ONE);
    CHECK_STR(recalled_at(m, nobody, TWO, 5, NULL), ONE);
    spelling_memory_answer(m, nobody, &b, "go on", 5, NULL); /* and the other one, too */
    CHECK_STR(recalled_at(m, nobody, ONE, 3, NULL), "");
    CHECK_STR(recalled_at(m, nobody, TWO, 3, NULL), "");
    spelling_memory_release(m, &a);
    spelling_memory_release(m, &a);
    spelling_memory_release(m, &b);
    spelling_memory_destroy(m);
}

TEST(arguments_keep_the_bytes_of_their_first_text)
{
    static const char *const turns[] = {
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"b\\\": 1,  "
        "\\\"a\\\":2}\"}}]}]",
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":2,\\\"b\\\":"
        "1}\"}}]}]",
        "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":\"{\\\"a\\\":2,\\\"b\\\":1}\"}}]}]"};
    struct spelling_memory *m;
    struct spelled kept;
    json_t *first = json_loads(turns[0], 0, NULL), *second = json_loads(turns[1], 0, NULL);
    json_t *third = json_loads(turns[2], 0, NULL), *other = json_loads(turns[2], 0, NULL);

    CHECK_OK(spelling_memory_create(1 << 16, &m));
    spelling_memory_recall(m, nobody, NULL, first, &kept);
    spelling_memory_recall(m, nobody, NULL, second, &kept);
    CHECK(json_equal(first, second));
    spelling_memory_recall(m, nobody, NULL, third, &kept); /* another conversation */
    CHECK(json_equal(third, other));
    json_decref(first);
    json_decref(second);
    json_decref(third);
    json_decref(other);
    spelling_memory_destroy(m);
}

TEST(spellings_stay_within_their_bytes)
{
    struct spelling_memory *m;
    char text[64];

    CHECK_OK(spelling_memory_create(4096, &m));
    for (int i = 0; i < 5000; i++) {
        snprintf(text, sizeof(text), "{\"b\":%d,\"a\":0}", i);
        CHECK_STR(recalled(m, nobody, text), "");
    }
    CHECK_STR(recalled(m, nobody, "{\"a\":0,\"b\":4999}"), "{\"b\":4999,\"a\":0}");
    CHECK_STR(recalled(m, nobody, "{\"a\":0,\"b\":1}"), "");
    spelling_memory_destroy(m);
}

/* ---- the file ---- */

struct world {
    char dir[64];
    struct spelling_memory *m;
    struct memory_file *f;
    uint32_t n_loaded;
};

static void load(void *arg, const void *record, size_t n)
{
    struct world *w = arg;

    w->n_loaded += spelling_memory_load(w->m, record, n);
}

static void again(void *f, const void *record, size_t n)
{
    memory_file_again(f, record, n);
}
static void put(void *f, const void *record, size_t n)
{
    memory_file_put(f, record, n);
}

static void dump(void *arg, struct memory_file *f)
{
    struct world *w = arg;

    spelling_memory_dump(w->m, again, f);
}

static bool start(struct world *w, uint64_t max_bytes)
{
    const struct memory_file_owner owner = {w, load, dump};

    w->n_loaded = 0;
    if (spelling_memory_create(1 << 16, &w->m) != RD_OK) return false;
    if (memory_file_open(w->dir, "answers", max_bytes, &owner, &w->f) != RD_OK) return false;
    if (w->f) spelling_memory_tell(w->m, put, w->f);
    return true;
}

static void stop(struct world *w)
{
    memory_file_close(w->f);
    spelling_memory_destroy(w->m);
}

static void new_dir(struct world *w)
{
    snprintf(w->dir, sizeof(w->dir), "/tmp/radish-memory-XXXXXX");
    if (!mkdtemp(w->dir)) test_fail(__FILE__, __LINE__, "no folder");
}

static void remove_dir(const struct world *w)
{
    data_file_remove(w->dir, "answers");
    data_file_remove(w->dir, "answers.lock");
    rmdir(w->dir);
}

TEST(spellings_are_there_after_a_restart)
{
    struct world w;

    new_dir(&w);
    CHECK(start(&w, 1 << 20));
    CHECK_STR(recalled(w.m, nobody, "{\"b\":1,\"a\":2}"), "");
    CHECK_STR(recalled(w.m, somebody, "{\"a\":2,\"b\":1}"), "");
    stop(&w);
    CHECK(start(&w, 1 << 20));
    CHECK_EQ(w.n_loaded, 2);
    CHECK_STR(recalled(w.m, nobody, "{\"a\":2,\"b\":1}"), "{\"b\":1,\"a\":2}");
    CHECK_STR(recalled(w.m, somebody, "{\"b\":1,\"a\":2}"), "{\"a\":2,\"b\":1}");
    memory_file_clear(w.f);
    stop(&w);
    CHECK(start(&w, 1 << 20));
    CHECK_EQ(w.n_loaded, 0);
    stop(&w);
    remove_dir(&w);
}

TEST(a_second_process_reads_and_does_not_write)
{
    struct world w, other;

    new_dir(&w);
    CHECK(start(&w, 1 << 20));
    recalled(w.m, nobody, "{\"b\":1,\"a\":2}");
    stop(&w);
    CHECK(start(&w, 1 << 20));
    memcpy(other.dir, w.dir, sizeof(w.dir));
    CHECK(start(&other, 1 << 20));
    CHECK(other.f == NULL);
    CHECK_STR(recalled(other.m, nobody, "{\"a\":2,\"b\":1}"), "{\"b\":1,\"a\":2}");
    recalled(other.m, nobody, "{\"only\":1,\"here\":2}");
    stop(&other);
    stop(&w);
    CHECK(start(&w, 1 << 20));
    CHECK_EQ(w.n_loaded, 1);
    stop(&w);
    remove_dir(&w);
}

TEST(a_file_of_old_things_is_written_anew)
{
    struct world w;
    char text[64];
    char *data = NULL;
    size_t n = 0;
    char path[128];

    new_dir(&w);
    CHECK(start(&w, 4096));
    for (int round = 0; round < 20; round++) {
        spelling_memory_clear(w.m);
        for (int i = 0; i < 10; i++) {
            snprintf(text, sizeof(text), "{\"b\":%d,\"a\":0}", i);
            recalled(w.m, nobody, text);
        }
    }
    stop(&w);
    snprintf(path, sizeof(path), "%s/answers", w.dir);
    CHECK_OK(file_read_all(path, 1 << 20, &data, &n, NULL));
    mem_free(data);
    CHECK(n <= 4096 + 128);
    CHECK(start(&w, 4096));
    CHECK_STR(recalled(w.m, nobody, "{\"a\":0,\"b\":9}"), "{\"b\":9,\"a\":0}");
    stop(&w);
    remove_dir(&w);
}

/* Whatever happens to the bytes: the records before the damage, or none, and it goes on. */
TEST(damage_costs_what_is_behind_it)
{
    struct world w;
    struct random r;
    char path[128], text[64], *data = NULL;
    size_t n = 0;

    new_dir(&w);
    CHECK(start(&w, 1 << 20));
    for (int i = 0; i < 20; i++) {
        snprintf(text, sizeof(text), "{\"b\":%d,\"a\":0}", i);
        recalled(w.m, nobody, text);
    }
    stop(&w);
    snprintf(path, sizeof(path), "%s/answers", w.dir);
    CHECK_OK(file_read_all(path, 1 << 20, &data, &n, NULL));
    random_init(&r, 1);
    for (size_t flip = 0; flip < n + 50; flip++) {
        char *bad = mem_memdup(data, n);
        size_t n_bad = flip < n ? n : (size_t)random_below(&r, n);
        struct data_file file;

        if (flip < n) bad[flip] ^= (char)(1 << random_below(&r, 8));
        data_file_remove(w.dir, "answers");
        CHECK_OK(data_file_open(w.dir, "answers", DATA_FILE_NEW, &file));
        CHECK_OK(data_file_write(&file, 0, bad, n_bad));
        data_file_close(&file);
        mem_free(bad);
        CHECK(start(&w, 1 << 20));
        CHECK(w.n_loaded < 20);
        recalled(w.m, nobody, "{\"z\":1,\"y\":0}");
        stop(&w);
        CHECK(start(&w, 1 << 20));
        CHECK_STR(recalled(w.m, nobody, "{\"y\":0,\"z\":1}"), "{\"z\":1,\"y\":0}");
        stop(&w);
    }
    mem_free(data);
    remove_dir(&w);
}

TEST(failing_files_and_memory_cost_nothing_but_the_file)
{
    struct world w;
    uint64_t alive = mem_n_alive();

    new_dir(&w);
    for (int i = 0; i < 40; i++) {
        file_fail_after(i);
        if (start(&w, 256)) {
            recalled(w.m, nobody, "{\"b\":1,\"a\":2}");
            CHECK_STR(recalled(w.m, nobody, "{\"a\":2,\"b\":1}"), "{\"b\":1,\"a\":2}");
        }
        stop(&w);
        file_fail_after(-1);
    }
    for (int i = 0; i < 40; i++) {
        w.m = NULL;
        w.f = NULL;
        mem_fail_after(i);
        if (start(&w, 256)) recalled(w.m, nobody, "{\"b\":1,\"a\":2}");
        mem_fail_after(-1);
        stop(&w);
    }
    CHECK_EQ(mem_n_alive(), alive);
    remove_dir(&w);
}

/* While its thread is busy with the file, more comes than the queue takes, and behind all of it a clear. */
struct busy {
    struct world w;
    bool is_open;
    uint32_t n_dumps;
    int policy;
};

static void load_none(void *arg, const void *record, size_t n)
{
    (void)arg, (void)record, (void)n;
}

static void dump_and_clear(void *arg, struct memory_file *f)
{
    struct busy *b = arg;

    memory_file_again(f, "{\"old\":1}", 9);
    if (!b->is_open || b->n_dumps++ > 0) return; /* the file's own beginning is written before it has a thread */
    b->policy = sched_getscheduler(0);
    for (uint32_t i = 0; i < 1000; i++) memory_file_put(f, "{\"old\":1}", 9);
    memory_file_clear(f);
}

TEST(a_clear_is_never_lost_however_full_the_queue_is)
{
    struct busy b = {.n_dumps = 0};
    const struct memory_file_owner owner = {&b, load_none, dump_and_clear};
    struct memory_file *f = NULL;
    rd_status st;
    char *data = NULL, path[128];
    size_t n = 0;

    new_dir(&b.w);
    CHECK_OK(memory_file_open(b.w.dir, "answers", 8, &owner, &f));
    b.is_open = true;
    memory_file_put(f, "{\"new\":1}", 9); /* more than eight bytes: the file is written anew */
    while ((st = memory_file_sync(f)) == RD_E_FULL) thread_yield();
    CHECK_OK(st);
    memory_file_close(f);
    CHECK(b.n_dumps > 0);
    CHECK_EQ(b.policy, sched_getscheduler(0)); /* who dumps has the locks of what it dumps: no idle thread may */
    snprintf(path, sizeof(path), "%s/answers", b.w.dir);
    CHECK_OK(file_read_all(path, 1 << 20, &data, &n, NULL));
    CHECK_EQ(n, 16); /* its head */
    mem_free(data);
    remove_dir(&b.w);
}

TEST(what_comes_behind_a_clear_is_kept_and_no_failure_keeps_what_came_before)
{
    struct world w;
    uint64_t alive = mem_n_alive();

    new_dir(&w);
    CHECK(start(&w, 1 << 20));
    recalled(w.m, nobody, "{\"b\":1,\"a\":2}");
    memory_file_clear(w.f);
    recalled(w.m, nobody, "{\"d\":1,\"c\":2}");
    memory_file_clear(NULL);
    memory_file_settle(NULL, 1);
    stop(&w);
    CHECK(start(&w, 1 << 20));
    CHECK_EQ(w.n_loaded, 1);
    for (int i = 0; i < 12; i++) { /* the file cannot be written: it is removed */
        stop(&w);
        CHECK(start(&w, 1 << 20));
        recalled(w.m, nobody, "{\"f\":1,\"e\":2}");
        file_fail_after(i);
        memory_file_clear(w.f);
        memory_file_settle(w.f, 10000000000ull);
        file_fail_after(-1);
        stop(&w);
        CHECK(start(&w, 1 << 20));
        if (w.n_loaded > 0) test_note("a file call that fails once, number %d: %u records stay", i, w.n_loaded);
    }
    mem_fail_after(0); /* a clear asks for no memory */
    memory_file_clear(w.f);
    mem_fail_after(-1);
    memory_file_settle(w.f, 10000000000ull);
    stop(&w);
    CHECK(start(&w, 1 << 20));
    CHECK_EQ(w.n_loaded, 0);
    stop(&w);
    CHECK_EQ(mem_n_alive(), alive);
    remove_dir(&w);
}

struct copy {
    struct answer_memory *to;
    uint32_t n, n_bad;
};

/* Every cut of a record is refused. */
static void copy_record(void *arg, const void *record, size_t n)
{
    struct copy *copy = arg;

    for (size_t cut = 0; cut < n; cut++) {
        void *part = mem_memdup(record, cut ? cut : 1);

        copy->n_bad += answer_memory_load(copy->to, part, cut);
        mem_free(part);
    }
    copy->n += answer_memory_load(copy->to, record, n);
}

/* As versions before adapters wrote them, with an adapter, and of a version that knows more. */
TEST(a_record_tells_whose_it_is)
{
    static const struct {
        const char *bytes;
        size_t n;
        struct kv_space owner;
    } old[] = {{"\5\0\0\0"
                "\0\0\0\0"
                "\0\0\0\0\0\0\0\0"
                "\0\0\0\0\0\0\0\0",
                24,
                {{0, 0}, {0, 0}}},
               {"\5\0\0\0"
                "\1\0\0\0"
                "\7\0\0\0\0\0\0\0"
                "\10\0\0\0\0\0\0\0",
                24,
                {{7, 8}, {0, 0}}}};
    static const struct kv_space owners[] = {{{0, 0}, {0, 0}}, {{7, 8}, {0, 0}}, {{0, 0}, {7, 8}}, {{7, 8}, {9, 1}}};
    struct record_reader r;
    struct kv_space owner;

    for (size_t i = 0; i < 2; i++) {
        CHECK_EQ(record_open(&r, old[i].bytes, old[i].n, &owner), RECORD_SPELLING);
        CHECK(kv_space_equal(&owner, &old[i].owner) && r.left == 0);
    }
    for (size_t i = 0; i < 4; i++) {
        struct buf b = {0};

        record_begin(&b, RECORD_ANSWER, &owners[i]);
        CHECK_EQ(record_open(&r, b.data, b.n, &owner), RECORD_ANSWER);
        CHECK(kv_space_equal(&owner, &owners[i]) && r.left == 0);
        if (i < 2) CHECK(b.n == old[i].n && memcmp(b.data + 4, old[i].bytes + 4, b.n - 4) == 0);
        for (size_t cut = 0; cut < b.n; cut++) CHECK_EQ(record_open(&r, b.data, cut, &owner), 0);
        b.data[4] |= 4;
        CHECK_EQ(record_open(&r, b.data, b.n, &owner), 0);
        buf_deinit(&b);
    }
}

TEST(answers_are_there_after_a_restart)
{
    static struct tiny_vocab v;
    struct tokenizer *t = NULL;
    struct answer_memory *m, *after;
    const uint32_t ids[] = {1, 2, 3, 4, 5, 6};
    struct answer_parts parts = {"<think>a</think>call",
                                 20,
                                 16,
                                 "c",
                                 "a",
                                 json_pack("[{s:s,s:s,s:s}]", "id", "call_1", "name", "f", "arguments", "{\"b\": 1}"),
                                 0,
                                 4};
    json_t *sent =
               json_loads("[{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":[{\"id\":\"call_1\",\"function\":"
                          "{\"name\":\"f\",\"arguments\":\"{\\\"b\\\":1}\"}}]}]",
                          0, NULL),
           *restored;

    tiny_vocab_init(&v, TOKENIZER_BPE);
    CHECK_OK(tokenizer_create(&v.spec, &t, NULL));
    CHECK_OK(answer_memory_create(t, 1 << 20, &m));
    CHECK_OK(answer_memory_create(t, 1 << 20, &after));
    answer_memory_keep(m, somebody, ids, 6, &parts);
    struct copy copy = {after, 0, 0};

    answer_memory_dump(m, copy_record, &copy);
    CHECK_EQ(copy.n, 2);
    CHECK_EQ(copy.n_bad, 0);
    CHECK_EQ(answer_memory_pick(after, nobody, sent, 0, 0, NULL, 0).serial, 0);
    struct answer_pick pick = answer_memory_pick(after, somebody, sent, 0, 0, (const int32_t *)ids, 6);

    CHECK(pick.serial && pick.n_prefix == 4);
    restored = answer_memory_restore(after, sent, &pick);
    CHECK_STR(json_string_value(json_object_get(json_array_get(restored, 0), "content")), "call");
    json_decref(restored);
    json_decref(sent);
    json_decref(parts.calls);
    answer_memory_destroy(m);
    answer_memory_destroy(after);
    tokenizer_destroy(t);
}
