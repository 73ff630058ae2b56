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
