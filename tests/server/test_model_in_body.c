/* tests/server/test_model_in_body.c - the model's name is found in a body as a parser finds it. */
#include <jansson.h>
#include "base/random.h"
#include "server/routes/model_gate.h"
#include "test.h"

static const char *found(const char *body)
{
    static char name[64];

    return model_in_body(body, strlen(body), name, sizeof(name)) ? name : NULL;
}

TEST(a_stream_is_one_where_the_member_says_true)
{
    static const struct {
        const char *body;
        bool is;
    } bodies[] = {{"{\"stream\":true}", true},
                  {"{\"a\":[{\"stream\":true}],\"stream\" : false}", false},
                  {"{\"prompt\":\"\\\"stream\\\":true\",\"stream\": true }", true},
                  {"{\"stream\":tru", false},
                  {"{\"streams\":true}", false},
                  {"", false}};

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
        CHECK_EQ(stream_in_body(bodies[i].body, strlen(bodies[i].body)), bodies[i].is);
}

TEST(a_query_names_a_model)
{
    char name[8];

    CHECK(model_in_query("limit=3&model=a%2Fb+c", name, sizeof(name)) && strcmp(name, "a/b c") == 0);
    CHECK(model_in_query("model=1234567", name, sizeof(name)) && strcmp(name, "1234567") == 0);
    CHECK(!model_in_query("model=12345678", name, sizeof(name))); /* too long */
    CHECK(!model_in_query("models=a&xmodel=b", name, sizeof(name)));
    CHECK(!model_in_query("model=", name, sizeof(name)) && !model_in_query("", name, sizeof(name)));
    CHECK(!model_in_query("model=a%00b", name, sizeof(name)) && !model_in_query(NULL, name, sizeof(name)));
    CHECK(model_in_query("model=a%2", name, sizeof(name)) && strcmp(name, "a%2") == 0);
}

TEST(the_member_of_the_outermost_object)
{
    CHECK_STR(found("{\"model\":\"a\"}"), "a");
    CHECK_STR(found(" { \"x\" : [1,{\"model\":\"no\"}], \"model\"\n:\t\"org\\/b\" } "), "org/b");
    CHECK_STR(found("{\"messages\":[{\"content\":\"\\\"model\\\":\\\"no\\\" \\\\\"}],\"model\":\"\\u00e9\"}"),
              "\xc3\xa9");
    CHECK_STR(found("{\"a\":\"model\",\"model\":\"b\"}"), "b");
    CHECK(!found("{\"a\":{\"model\":\"no\"}}") && !found("[\"model\",\"no\"]") && !found("[{\"model\":\"no\"}]"));
    CHECK(!found("{\"model\":5}") && !found("{\"model\":null}") && !found("{\"model\":\"\"}") &&
          !found("{\"Model\":\"x\"}"));
    CHECK(!found("") && !found("{") && !found("{\"model") && !found("{\"model\"") && !found("{\"model\":") &&
          !found("{\"model\":\"") && !found("{\"model\":\"a") && !found("\"model\":\"a\""));
    CHECK(!found("{\"model\":\"0123456789012345678901234567890123456789012345678901234567890123\"}"));
}

/* Bodies of pieces that could mislead: what is JSON is read as jansson reads it, what is not does no harm. */
TEST(as_a_parser_finds_it)
{
    static const char *const pieces[] = {"{",         "}",     "[",          "]",        ",",         ":",
                                         "\"model\"", "\"m\"", "\"a\\\"b\"", "\"\\\\\"", "1",         "null",
                                         "\"x/y\"",   "\"{\"", "\"}\"",      " ",        "\"model\":"};
    struct random r;
    uint32_t n_read = 0;

    random_init(&r, test_seed());
    for (int round = 0; round < 300000; round++) {
        char body[256] = "{", name[64] = "";
        size_t n = 1, n_pieces = random_below(&r, 9);
        json_t *tree;
        bool has;

        for (size_t i = 0; i < n_pieces; i++)
            n += (size_t)snprintf(body + n, sizeof(body) - n, "%s", pieces[random_below(&r, 17)]);
        if (random_below(&r, 2)) n += (size_t)snprintf(body + n, sizeof(body) - n, "}");
        has = model_in_body(body, n, name, sizeof(name));
        tree = json_loadb(body, n, JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(tree)) {
            const char *wanted = json_string_value(json_object_get(tree, "model"));

            n_read++;
            CHECK_EQ(has, wanted && *wanted);
            if (has) CHECK_STR(name, wanted);
        }
        json_decref(tree);
    }
    test_note("%u of 300000 bodies were JSON", n_read);
    CHECK(n_read > 1000);
}
