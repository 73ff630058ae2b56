/* tests/base/test_json_read.c - the reader of JSON beside jansson's own, and without memory. */
#undef json_loadb /* jansson's own, to compare with */
#undef json_equal
#include "base/json_read.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

static void *take(size_t n)
{
    return mem_alloc(1, n);
}
__attribute__((constructor)) static void set_json_memory(void)
{
    json_set_alloc_funcs(take, mem_free);
}

static const char *const documents[] = {
    "{\"a\":[1,-2,3.5,1e3,-0,0,-0.0,1E-2,2e+5],\"b\":{\"c\":{},\"d\":[]},\"e\":\"\\u00e9\\ud83d\\ude00\\n\\\"\\/"
    "\",\"\":null}",
    "[true,false,null,\"\",\"a string that is longer than sixteen bytes, so that a buffer has to grow while it is "
    "read\"]",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"h\\u0069 "
    "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"}],\"n\":9223372036854775807,\"m\":-9223372036854775808}",
    " \t\r\n[ [ [ [ ] , [ 1 ] ] ] , { \"k\" : { \"k\" : [ { } ] } } ] \n",
    "\"text\"",
    "12",
    "-1.5e300",
    "true",
    "[1,2,]",
    "{\"a\":1,\"a\":2}",
    "{\"a\\u0000b\":1}",
    "[\"\\u0000\"]",
    "[01]",
    "[1.]",
    "[.5]",
    "[-]",
    "[1e]",
    "[9223372036854775808]",
    "[1e999]",
    "[\"\\ud800\"]",
    "[\"\\udc00\"]",
    "[\"\\ud800\\u0041\"]",
    "[\"\x01\"]",
    "[\"\xc3\"]",
    "[\"\\x\"]",
    "[truex]",
    "[nul]",
    "{\"a\" 1}",
    "{a:1}",
    "[1 2]",
    "[",
    "{\"a\":",
    "\"abc",
    "",
    "   ",
    "[1]x",
    "\xef\xbb\xbf[]",
    "{\"a\":1,}",
    "[,1]",
    "[\"\\u12g4\"]",
    "[+1]",
    "[1.5e+]",
    "[0x1]",
    "[\"\xed\xa0\x80\"]",
    "[\"\xf4\x90\x80\x80\"]",
};
#define N_DOCUMENTS (sizeof(documents) / sizeof(documents[0]))

static const size_t flag_sets[] = {0,
                                   JSON_REJECT_DUPLICATES,
                                   JSON_DECODE_ANY,
                                   JSON_ALLOW_NUL,
                                   JSON_DECODE_INT_AS_REAL | JSON_DECODE_ANY,
                                   JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY};

/* Numbers that jansson does not know: beyond 64 bits and doubles it refuses them, -0 is 0 to it. */
static bool has_other_numbers(const char *s, size_t n, const json_t *theirs, const json_error_t *why)
{
    if (!theirs) return json_error_code(why) == json_error_numeric_overflow;
    return memmem(s, n, "-0", 2) != NULL;
}

static void compare(const char *s, size_t n, size_t flags)
{
    json_error_t why = {.line = 0}, whys = {.line = 0};
    json_t *ours = json_read(s, n, flags, &why), *theirs = json_loadb(s, n, flags, &whys);
    bool other = has_other_numbers(s, n, theirs, &whys);
    bool same = other ? ours || !theirs : ours && theirs ? json_equal(ours, theirs) : !ours && !theirs;

    if (!same || (!ours && (!why.text[0] || why.position < 1 || (size_t)why.position > n + 1)))
        test_fail(__FILE__, __LINE__, "flags %zu, \"%.*s\": ours %s (%s), jansson's %s (%s)", flags, (int)n, s,
                  ours ? "read" : "refused", why.text, theirs ? "read" : "refused", whys.text);
    json_decref(ours);
    json_decref(theirs);
}

TEST(what_is_json_to_jansson_is_json_here_with_the_same_tree)
{
    uint64_t alive = mem_n_alive();

    for (size_t i = 0; i < N_DOCUMENTS; i++)
        for (size_t f = 0; f < sizeof(flag_sets) / sizeof(flag_sets[0]); f++)
            compare(documents[i], strlen(documents[i]), flag_sets[f]);
    CHECK_EQ(mem_n_alive(), alive);
}

/* Bytes changed, left out, doubled; parts of other documents put in. */
static size_t mutate(struct random *rnd, char *out, size_t cap)
{
    static const char signs[] = "{}[]\",:\\u0eE+-.1 9tfn\n\x01\xc3\xa9\x80";
    const char *from = documents[random_below(rnd, N_DOCUMENTS)], *other = documents[random_below(rnd, N_DOCUMENTS)];
    size_t n = strlen(from), m = strlen(other), at, part;

    memcpy(out, from, n);
    for (uint64_t k = 1 + random_below(rnd, 4); k > 0 && n > 0; k--) {
        at = random_below(rnd, n);
        switch (random_below(rnd, 4)) {
        case 0:
            out[at] = signs[random_below(rnd, sizeof(signs) - 1)];
            break;
        case 1:
            memmove(out + at, out + at + 1, --n - at);
            break;
        case 2:
            n = at;
            break;
        default:
            part = m ? random_below(rnd, m) : 0;
            if (n + part > cap) break;
            memmove(out + at + part, out + at, n - at);
            memcpy(out + at, other + random_below(rnd, m - part + 1), part);
            n += part;
        }
    }
    return n;
}

TEST(random_texts_are_read_or_refused_as_jansson_does)
{
    struct random rnd;
    char text[4096];

    random_init(&rnd, test_seed());
    for (int i = 0; i < (test_is_long() ? 3000000 : 100000); i++)
        compare(text, mutate(&rnd, text, sizeof(text)),
                flag_sets[random_below(&rnd, sizeof(flag_sets) / sizeof(flag_sets[0]))]);
}

TEST(nesting_ends_at_the_limit_and_takes_no_stack)
{
    static char deep[2 * JSON_READ_DEPTH + 8];

    for (size_t n = JSON_READ_DEPTH - 1; n <= JSON_READ_DEPTH + 1; n++) {
        memset(deep, '[', n);
        memset(deep + n, ']', n);
        deep[2 * n] = 0;
        compare(deep, 2 * n, 0);
    }
}

/* jansson 2.14 read another string, or ended the process. */
TEST(an_allocation_that_fails_is_an_error_and_nothing_else)
{
    for (size_t d = 0; d < 4; d++)
        for (int ever = 0; ever < 2; ever++) {
            json_t *whole = json_read_text(documents[d], 0, NULL), *v = NULL;
            uint64_t alive = mem_n_alive();
            int64_t i = 0;

            for (; !v && i < 1000; i++) {
                json_error_t why;

                if (ever)
                    mem_fail_from(i);
                else
                    mem_fail_after(i);
                v = json_read_text(documents[d], 0, &why);
                mem_fail_after(-1);
                if (!v) CHECK_EQ(json_error_code(&why), json_error_out_of_memory);
                if (!v) CHECK_EQ(mem_n_alive(), alive);
            }
            CHECK(i > 5 && json_equal(v, whole));
            json_decref(v);
            json_decref(whole);
        }
}

/* jansson's json_copy() lacks what there was no memory for, and says nothing. */
TEST(a_copy_is_whole_or_none)
{
    for (size_t d = 0; d < 2; d++) {
        json_t *v = json_read_text(d ? documents[0] : documents[1], 0, NULL), *copy = NULL;
        uint64_t alive = mem_n_alive();

        for (int64_t i = 0; !copy && i < 1000; i++) {
            mem_fail_after(i);
            copy = json_copied(v);
            mem_fail_after(-1);
            if (!copy) CHECK_EQ(mem_n_alive(), alive);
        }
        CHECK(json_equal(copy, v));
        json_decref(copy);
        json_decref(v);
    }
    CHECK(!json_copied(NULL));
}
