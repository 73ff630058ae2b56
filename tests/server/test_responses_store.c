/* tests/server/test_responses_store.c - answers that run, end, are cancelled and evicted. */
#include "server/dialects/responses_store.h"
#include <stdio.h>
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

#define MOST (1u << 20)
#define BIG  (MOST / 4)

static const struct buf none = {0};

static struct buf text_of(const char *s)
{
    struct buf b = {0};

    buf_puts(&b, s);
    return b;
}

static struct buf big_text(size_t n)
{
    struct buf b = {0};

    while (b.n < n) buf_append(&b, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", 64);
    return b;
}

/* An ended answer whose response is its own id. */
static rd_status put(struct responses_store *s, const char *id, const char *parent, const char *input,
                     const char *output)
{
    struct responses_turn *turn = NULL;
    struct buf response = text_of(id);
    rd_status st = RD_OK;

    if (parent) st = responses_store_turn(s, parent, true, &turn);
    if (st == RD_OK) st = responses_store_begin(s, id, turn, &none, input, false);
    if (st == RD_OK) {
        st = responses_store_finish(s, id, &response, output, &none);
        if (st != RD_OK) (void)responses_store_remove(s, id);
    }
    responses_turn_release(s, turn);
    buf_deinit(&response);
    return st;
}

static bool is_there(struct responses_store *s, const char *id)
{
    struct buf out = {0};
    rd_status st = responses_store_get(s, id, &out);

    buf_deinit(&out);
    return st == RD_OK;
}

/* Every item up to id, as JSON without spaces. */
static rd_status items_of(struct responses_store *s, const char *id, char *text, size_t n_text)
{
    struct responses_turn *turn = NULL;
    json_t *items = NULL;
    rd_status st = responses_store_turn(s, id, true, &turn);

    if (st == RD_OK) st = responses_turn_items(turn, true, &items);
    if (st == RD_OK) {
        size_t n = json_dumpb(items, text, n_text - 1, JSON_COMPACT);

        text[n < n_text ? n : n_text - 1] = 0;
    }
    json_decref(items);
    responses_turn_release(s, turn);
    return st;
}

TEST(a_conversation_outlives_the_answers_that_it_went_on_from)
{
    struct responses_store *s = NULL;
    char text[64];

    CHECK_OK(responses_store_create(MOST, &s));
    CHECK_OK(put(s, "resp_a", NULL, "[1]", "[2]"));
    CHECK_OK(put(s, "resp_b", "resp_a", "[3]", "[4,5]"));
    CHECK_OK(responses_store_remove(s, "resp_a"));
    CHECK_EQ(responses_store_remove(s, "resp_a"), RD_E_NOT_FOUND);
    CHECK_OK(items_of(s, "resp_b", text, sizeof(text)));
    CHECK_STR(text, "[1,2,3,4,5]");
    CHECK_EQ(items_of(s, "resp_a", text, sizeof(text)), RD_E_NOT_FOUND);
    responses_store_destroy(s);
}

TEST(what_runs_is_shown_as_it_is_and_not_gone_on_from)
{
    struct responses_store *s = NULL;
    struct responses_turn *turn = NULL;
    struct buf a = text_of("queued"), b = text_of("running"), c = text_of("done"), out = {0};

    CHECK_OK(responses_store_create(MOST, &s));
    CHECK_OK(responses_store_begin(s, "resp_a", NULL, &a, "[1]", false));
    CHECK_EQ(responses_store_turn(s, "resp_a", true, &turn), RD_E_AGAIN);
    CHECK_OK(responses_store_append(s, "resp_a", &b, &none));
    CHECK_OK(responses_store_get(s, "resp_a", &out));
    CHECK_STR(out.data, "running");
    CHECK_OK(responses_store_finish(s, "resp_a", &c, "[2]", &none));
    buf_clear(&out);
    CHECK_OK(responses_store_get(s, "resp_a", &out));
    CHECK_STR(out.data, "done");
    CHECK_EQ(responses_store_cancel(s, "resp_a", &a), RD_E_INVALID);
    CHECK_OK(responses_store_turn(s, "resp_a", true, &turn));
    responses_turn_release(s, turn);
    responses_store_destroy(s);
    buf_deinit(&a);
    buf_deinit(&b);
    buf_deinit(&c);
    buf_deinit(&out);
}

TEST(a_cancelled_answer_stays_cancelled_and_its_log_ends_with_the_last_words)
{
    struct responses_store *s = NULL;
    struct buf now = text_of("running"), gone = text_of("cancelled"), done = text_of("done"), e1 = text_of("one,"),
               e2 = text_of("two"), out = {0};
    size_t at = 0;
    bool ended = true;

    CHECK_OK(responses_store_create(MOST, &s));
    CHECK_OK(responses_store_begin(s, "resp_a", NULL, &now, "[]", true));
    CHECK_OK(responses_store_append(s, "resp_a", NULL, &e1));
    CHECK_OK(responses_store_cancel(s, "resp_a", &gone));
    CHECK_EQ(responses_store_append(s, "resp_a", NULL, &e2), RD_E_CANCELLED);
    CHECK_OK(responses_store_log(s, "resp_a", &at, 2, &out, &ended));
    CHECK(at == 2 && !ended);
    CHECK_OK(responses_store_log(s, "resp_a", &at, 100, &out, &ended));
    CHECK(at == 4 && !ended);
    CHECK_OK(responses_store_finish(s, "resp_a", &done, "[9]", &e2));
    CHECK_OK(responses_store_log(s, "resp_a", &at, 100, &out, &ended));
    CHECK(ended);
    CHECK_STR(out.data, "one,two");
    buf_clear(&out);
    CHECK_OK(responses_store_get(s, "resp_a", &out));
    CHECK_STR(out.data, "cancelled");
    CHECK_OK(put(s, "resp_b", NULL, "[]", "[]"));
    CHECK_EQ(responses_store_log(s, "resp_b", &at, 1, &out, &ended), RD_E_UNSUPPORTED);
    responses_store_destroy(s);
    buf_deinit(&now);
    buf_deinit(&gone);
    buf_deinit(&done);
    buf_deinit(&e1);
    buf_deinit(&e2);
    buf_deinit(&out);
}

TEST(an_item_is_found_by_its_id)
{
    struct responses_store *s = NULL;
    json_t *item = NULL;

    CHECK_OK(responses_store_create(MOST, &s));
    CHECK_OK(put(s, "resp_0123456789abcdef01234567", NULL, "[]",
                 "[{\"id\":\"rs_0123456789abcdef0123456700\"},{\"id\":\"msg_0123456789abcdef0123456701\",\"v\":7}]"));
    CHECK_OK(responses_store_item(s, NULL, "msg_0123456789abcdef0123456701", &item));
    CHECK_EQ(json_integer_value(json_object_get(item, "v")), 7);
    json_decref(item);
    CHECK_EQ(responses_store_item(s, NULL, "msg_0123456789abcdef0123456702", &item), RD_E_NOT_FOUND);
    CHECK_EQ(responses_store_item(s, NULL, "msg_1123456789abcdef0123456701", &item), RD_E_NOT_FOUND);
    CHECK_EQ(responses_store_item(s, NULL, "msg_", &item), RD_E_NOT_FOUND);
    CHECK_EQ(responses_store_item(s, NULL, "", &item), RD_E_NOT_FOUND);
    responses_store_destroy(s);
}

TEST(a_tenant_finds_its_own_alone)
{
    static const char *const id = "resp_0123456789abcdef01234567", *const tenants[] = {"alice", "bob", NULL};
    struct responses_store *s = NULL;
    char keys[3][RESPONSES_KEY_BYTES];
    json_t *item = NULL;

    CHECK_OK(responses_store_create(MOST, &s));
    for (int i = 0; i < 3; i++) responses_key(tenants[i], id, keys[i]);
    CHECK_OK(put(s, keys[0], NULL, "[]", "[{\"id\":\"msg_0123456789abcdef0123456700\"}]"));
    CHECK(is_there(s, keys[0]) && !is_there(s, keys[1]) && !is_there(s, keys[2]));
    for (int i = 0; i < 3; i++)
        CHECK_EQ(responses_store_item(s, tenants[i], "msg_0123456789abcdef0123456700", &item),
                 i ? RD_E_NOT_FOUND : RD_OK);
    json_decref(item);
    responses_key("alice", "a client that sends much more than any id has, as far as it likes", keys[0]);
    CHECK(strlen(keys[0]) < RESPONSES_KEY_BYTES);
    responses_store_destroy(s);
}

TEST(the_least_recently_used_goes_first_and_what_runs_stays)
{
    struct responses_store *s = NULL;
    struct buf big = big_text(BIG), out = {0};
    char id[16];

    CHECK_OK(responses_store_create(MOST, &s));
    CHECK_OK(responses_store_begin(s, "running", NULL, &big, "[]", true));
    CHECK_OK(put(s, "used", NULL, "[]", "[]"));
    CHECK_OK(put(s, "idle", NULL, "[]", "[]"));
    for (int i = 0; i < 6; i++) {
        snprintf(id, sizeof(id), "big%d", i);
        CHECK_OK(responses_store_begin(s, id, NULL, &none, "[]", false));
        CHECK_OK(responses_store_finish(s, id, &big, "[]", &none));
        CHECK(is_there(s, "used") && is_there(s, "running") && is_there(s, id));
    }
    CHECK(!is_there(s, "idle") && !is_there(s, "big3"));
    CHECK_OK(responses_store_append(s, "running", NULL, &big)); /* its log pushes others out */
    CHECK(is_there(s, "used") && !is_there(s, "big4") && is_there(s, "big5"));
    CHECK_OK(responses_store_append(s, "running", NULL, &big));
    CHECK_EQ(responses_store_append(s, "running", NULL, &big), RD_E_LIMIT);
    CHECK_EQ(responses_store_begin(s, "other", NULL, &big, "[]", false), RD_E_LIMIT);
    CHECK_OK(responses_store_remove(s, "running"));
    CHECK_OK(responses_store_begin(s, "other", NULL, &big, "[]", false));
    responses_store_destroy(s);
    buf_deinit(&big);
    buf_deinit(&out);
}

TEST(the_number_of_answers_is_bounded)
{
    struct responses_store *s = NULL;
    char id[24];

    CHECK_OK(responses_store_create(MOST, &s));
    for (uint32_t i = 0; i < LIMIT_STORED_RESPONSES + 10; i++) {
        snprintf(id, sizeof(id), "resp_%u", i);
        CHECK_OK(put(s, id, NULL, "[]", "[]"));
    }
    CHECK(!is_there(s, "resp_9") && is_there(s, "resp_10") && is_there(s, id));
    responses_store_destroy(s);
}

/* 40 ids; what is asked of the store is asked of the model too. Few answers: nothing is evicted. */
TEST(long_random_run_beside_a_table)
{
    enum { ABSENT, RUNNING, ENDED, CANCELLED } model[40] = {0};
    uint64_t n_before = mem_n_alive();
    struct responses_store *s = NULL;
    struct buf event = text_of("e"), response = text_of("r");
    char id[16], parent[16], text[65536];

    CHECK_OK(responses_store_create(MOST, &s));
    for (uint64_t i = 0; i < 20000; i++) {
        uint32_t k = (uint32_t)(random_at(7, 3 * i) % 40), p = (uint32_t)(random_at(7, 3 * i + 1) % 40);
        struct responses_turn *turn = NULL;
        rd_status st;

        snprintf(id, sizeof(id), "resp_%u", k);
        snprintf(parent, sizeof(parent), "resp_%u", p);
        switch (random_at(7, 3 * i + 2) % 6) {
        case 0:
            if (model[k] != ABSENT) break;
            st = responses_store_turn(s, parent, true, &turn);
            CHECK_EQ(st, model[p] == ABSENT ? RD_E_NOT_FOUND : model[p] == RUNNING ? RD_E_AGAIN : RD_OK);
            CHECK_OK(responses_store_begin(s, id, i % 8 ? turn : NULL, &none, "[1]", i % 2));
            responses_turn_release(s, turn);
            model[k] = RUNNING;
            break;
        case 1:
            st = responses_store_append(s, id, i % 2 ? &response : NULL, &event);
            if (model[k] != ENDED) /* nobody appends to what has ended */
                CHECK_EQ(st, model[k] == ABSENT ? RD_E_NOT_FOUND : model[k] == CANCELLED ? RD_E_CANCELLED : RD_OK);
            break;
        case 2:
            if (model[k] == ENDED) break;
            CHECK_EQ(responses_store_finish(s, id, &response, "[2]", &event),
                     model[k] == ABSENT ? RD_E_NOT_FOUND : RD_OK);
            if (model[k] == RUNNING) model[k] = ENDED;
            break;
        case 3:
            st = responses_store_cancel(s, id, &response);
            CHECK_EQ(st, model[k] == ABSENT ? RD_E_NOT_FOUND : model[k] == RUNNING ? RD_OK : RD_E_INVALID);
            if (model[k] == RUNNING) model[k] = CANCELLED;
            break;
        case 4:
            if (i % 3) break;
            CHECK_EQ(responses_store_remove(s, id), model[k] == ABSENT ? RD_E_NOT_FOUND : RD_OK);
            model[k] = ABSENT;
            break;
        default:
            st = items_of(s, id, text, sizeof(text));
            CHECK_EQ(st, model[k] == ABSENT ? RD_E_NOT_FOUND : model[k] == RUNNING ? RD_E_AGAIN : RD_OK);
            if (st == RD_OK) CHECK_STR(text + strlen(text) - 2, model[k] == ENDED ? "2]" : "1]");
            break;
        }
    }
    responses_store_destroy(s);
    buf_deinit(&event);
    buf_deinit(&response);
    CHECK_EQ(mem_n_alive(), n_before);
}

TEST(memory_that_runs_out_changes_nothing)
{
    uint64_t n_before = mem_n_alive();
    bool done = false;

    for (int64_t i = 0; !done; i++) {
        struct responses_store *s = NULL;
        char text[64];
        rd_status st;

        CHECK_OK(responses_store_create(MOST, &s));
        CHECK_OK(put(s, "resp_a", NULL, "[1]", "[2]"));
        mem_fail_after(i);
        st = put(s, "resp_b", "resp_a", "[3]", "[4]");
        mem_fail_after(-1);
        done = st == RD_OK;
        if (!done) CHECK_EQ(st, RD_E_NOMEM);
        CHECK_EQ(is_there(s, "resp_b"), done);
        CHECK_OK(items_of(s, "resp_a", text, sizeof(text)));
        CHECK_STR(text, "[1,2]");
        responses_store_destroy(s);
        CHECK_EQ(mem_n_alive(), n_before);
    }
}
