/* tests/hub/test_hub_ref.c - names of models, and what may become a path. */
#include "hub/hub_ref.h"
#include "test.h"

static const char *parsed(const char *word)
{
    static char text[2048];
    struct hub_ref r;
    struct rd_error err;
    rd_status st = hub_ref_parse(word, &r, &err);

    if (st != RD_OK) return rd_status_name(st);
    snprintf(text, sizeof(text), "%s %s %s %s", r.repo, r.revision, r.label, r.file);
    return text;
}

TEST(forms_of_a_name)
{
    CHECK_STR(parsed("org/name"), "org/name main  ");
    CHECK_STR(parsed("org/name:q4_k_m"), "org/name main Q4_K_M ");
    CHECK_STR(parsed("org/name@v1.0:Q8_0"), "org/name v1.0 Q8_0 ");
    CHECK_STR(parsed("org/name/a/b c.gguf"), "org/name main  a/b c.gguf");
    CHECK_STR(parsed("org/name@v1/x:y.gguf"), "org/name v1  x:y.gguf");
    CHECK_STR(parsed("hf.co/Org_1/na.me-2"), "Org_1/na.me-2 main  ");
    CHECK_STR(parsed("hf://org/name"), "org/name main  ");
}

TEST(what_is_no_name)
{
    static const char *const words[] = {
        "",          "org",           "org/",          "/name",     "org/name:",   "org/name@",   "org/name@:x",
        "org/name/", "org/name/../x", "org/name//x",   "a--b/c",    "a/b..c",      ".a/b",        "a/b.",
        "-a/b",      "org/name:a b",  "org/name@a..b", "org/na me", "org/name\\x", "org/name/x\n"};

    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) CHECK_STR(parsed(words[i]), "RD_E_INVALID");
}

TEST(long_names_are_refused_at_their_limits)
{
    char word[4096];

    memset(word, 'a', sizeof(word));
    word[96] = '/';
    word[193] = 0;
    CHECK(hub_ref_is(word)); /* 96 and 96 */
    word[193] = 'a';
    word[194] = 0;
    CHECK(!hub_ref_is(word));
    memcpy(word, "org/name/", 9);
    memset(word + 9, 'b', 4000);
    word[9 + 255] = 0;
    CHECK(strcmp(parsed(word), "RD_E_INVALID"));
    word[9 + 255] = 'b';
    word[9 + 256] = 0;
    CHECK_STR(parsed(word), "RD_E_INVALID");
    for (size_t i = 9; i < 4000; i += 2) memcpy(word + i, "c/", 2);
    word[9 + 2 * 31 - 1] = 0;
    CHECK(strcmp(parsed(word), "RD_E_INVALID")); /* 31 deep */
    word[9 + 2 * 31 - 1] = '/';
    word[9 + 2 * 40 - 1] = 0;
    CHECK_STR(parsed(word), "RD_E_INVALID");
}

TEST(revisions_commits_and_digests)
{
    CHECK(hub_revision_is_safe("main") && hub_revision_is_safe("refs/pr/1") && hub_revision_is_safe("v1.0-rc_2"));
    CHECK(!hub_revision_is_safe("-x") && !hub_revision_is_safe("a b") && !hub_revision_is_safe("../x"));
    CHECK(!hub_revision_is_safe("") && !hub_revision_is_safe("/x") && !hub_revision_is_safe("x^") &&
          !hub_revision_is_safe("x..y"));
    CHECK(hub_commit_is_safe("0123456789abcdef0123456789abcdef01234567"));
    CHECK(!hub_commit_is_safe("0123456789ABCDEF0123456789abcdef01234567"));
    CHECK(!hub_commit_is_safe("0123456789abcdef0123456789abcdef0123456"));
    CHECK(!hub_commit_is_safe("0123456789abcdef0123456789abcdef012345678"));
    CHECK(!hub_digest_is_safe("../../0123456789abcdef0123456789abcdef01"));
    CHECK(!hub_digest_is_safe(""));
}
