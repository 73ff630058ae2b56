/* tests/server/test_keys.c - key files: what they may say, reloading, tenants that stay. */
#include "server/http/keys.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/key_digest.h"
#include "base/mem.h"
#include "base/thread.h"
#include "test.h"

static char path[] = "/tmp/radish-keys-XXXXXX";
static bool is_made;

static const char *file_with(const char *text)
{
    FILE *f;

    if (!is_made) close(mkstemp(path));
    is_made = true;
    f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
    return path;
}

/* "NAME sha256:SALT:DIGEST\n" */
static const char *line_of(const char *name, const char *salt, const char *key, const char *rest)
{
    static char lines[4][256];
    static int n;
    char hex[SHA_HEX_BYTES];

    n = (n + 1) % 4;
    key_digest(salt, key, hex);
    snprintf(lines[n], sizeof(lines[n]), "%s sha256:%s:%s%s\n", name, salt, hex, rest);
    return lines[n];
}

static const char *join(const char *a, const char *b, const char *c, const char *d)
{
    static char all[4096];

    snprintf(all, sizeof(all), "%.999s%.999s%.999s%.999s", a, b, c, d);
    return all;
}

TEST(a_digest_is_sha_256_of_salt_and_key)
{
    char hex[SHA_HEX_BYTES];

    key_digest("ab", "c", hex); /* of "abc", FIPS 180-4 */
    CHECK(strcmp(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad") == 0);
}

TEST(each_kind_of_line_lets_its_key_in)
{
    struct keys *k;
    struct rd_error err = {RD_OK, ""};
    struct keys_options o = {.own = "own"};
    struct key_holder a, b;

    o.file = file_with(join(line_of("alice", "s1", "key-a", ""), "# bob has two\n\n  plain-key \r\n",
                            line_of("alice", "s2", "key-b", " # new"), line_of("root", "s1", "key-r", " admin")));
    CHECK_OK(keys_create(&o, &k, &err));
    CHECK(keys_are_needed(k) && !keys_find(k, NULL, 0).ok && !keys_find(k, "", 0).ok && !keys_find(k, "x", 0).ok);
    a = keys_find(k, "key-a", 0);
    b = keys_find(k, "key-b", 0);
    CHECK(a.ok && b.ok && a.tenant && a.tenant == b.tenant && !a.is_admin); /* two keys of one tenant */
    b = keys_find(k, "plain-key", 0);
    CHECK(b.ok && b.tenant && strcmp(b.tenant, "plain-key") == 0 && b.tenant != a.tenant);
    CHECK_EQ(keys_tenant_index(k, a.tenant), 0);
    CHECK_EQ(keys_tenant_index(k, NULL), UINT32_MAX);
    b = keys_find(k, "key-r", 0);
    CHECK(b.ok && !b.tenant && b.is_admin);
    b = keys_find(k, "own", 0);
    CHECK(b.ok && !b.tenant && !b.is_admin); /* there is an admin now */
    CHECK(!keys_find(k, "alice", 0).ok && !keys_find(k, "\talice", 0).ok);
    keys_destroy(k);
}

TEST(who_is_the_admin)
{
    struct keys *k;

    CHECK_OK(keys_create(&(struct keys_options){NULL, NULL, NULL, NULL}, &k, NULL));
    CHECK(!keys_are_needed(k) && keys_find(k, NULL, 0).ok && keys_find(k, NULL, 0).is_admin);
    keys_destroy(k);
    CHECK_OK(keys_create(&(struct keys_options){"own", NULL, NULL, NULL}, &k, NULL));
    CHECK(keys_find(k, "own", 0).is_admin && !keys_find(k, NULL, 0).ok && !keys_find(k, NULL, 0).is_admin);
    keys_destroy(k);
    CHECK_OK(keys_create(&(struct keys_options){"own", "root", NULL, NULL}, &k, NULL));
    CHECK(keys_find(k, "own", 0).ok && !keys_find(k, "own", 0).is_admin && keys_find(k, "root", 0).ok &&
          keys_find(k, "root", 0).is_admin);
    keys_destroy(k);
    CHECK_OK(keys_create(&(struct keys_options){NULL, "root", NULL, NULL}, &k, NULL));
    CHECK(!keys_are_needed(k) && keys_find(k, NULL, 0).ok && !keys_find(k, NULL, 0).is_admin &&
          keys_find(k, "root", 0).is_admin);
    CHECK(keys_find(k, "wrong", 0).ok && !keys_find(k, "wrong", 0).is_admin);
    keys_destroy(k);
}

TEST(a_file_that_is_wrong_changes_nothing_and_its_keys_are_not_told)
{
    static const struct {
        const char *text, *told;
    } cases[] = {
        {"", "no key in it"},
        {"# only this\n", "no key in it"},
        {"ok\nalice md5:x:y\n", ":2: wanted sha256:SALT:DIGEST"},
        {"alice sha256:x\n", ":1: wanted sha256:SALT:DIGEST"},
        {"alice sha256:s:00\n", ":1: wanted sha256:SALT:DIGEST"},
        {"secret-key more words here\n", ":1: more than NAME"},
        {"secret key\n", ":1: wanted sha256:SALT:DIGEST"},
        {"alice! sha256:s:00\n", ":1: wanted NAME sha256"},
        {"ok\nsecret-ke", ":2: the last line has no newline at its end"},
        {"a sha256::ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n", ":1: wanted sha256"},
        {"a sha256:s:ga7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n", ":1: wanted sha256"},
        {"a sha256:s:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad root\n", ":1: behind the digest"},
    };
    struct keys_options o = {.file = file_with("first\n")};
    struct rd_error err;
    struct keys *k, *none = NULL;
    const char *tenant;
    uint32_t n = 7;

    CHECK_OK(keys_create(&o, &k, &err));
    tenant = keys_find(k, "first", 0).tenant;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        file_with(cases[i].text);
        CHECK_EQ(keys_reload(k, &n, &err), RD_E_FORMAT);
        if (!strstr(err.text, cases[i].told)) printf("%s: %s\n", cases[i].text, err.text);
        CHECK(strstr(err.text, cases[i].told) && !strstr(err.text, "secret"));
        CHECK(n == 7 && keys_find(k, "first", 0).tenant == tenant && !keys_find(k, "ok", 0).ok);
        CHECK_EQ(keys_create(&o, &none, &err), RD_E_FORMAT);
    }
    unlink(path);
    CHECK(keys_reload(k, &n, &err) != RD_OK && keys_find(k, "first", 0).ok);
    file_with("second\nthird\n");
    CHECK_OK(keys_reload(k, &n, &err));
    CHECK(n == 2 && !keys_find(k, "first", 0).ok && keys_find(k, "second", 0).ok);
    CHECK(strcmp(tenant, "first") == 0); /* requests of it may still run */
    file_with("first\n");
    CHECK_OK(keys_reload(k, &n, &err));
    CHECK(keys_find(k, "first", 0).tenant == tenant);
    keys_destroy(k);
}

/* Half a key is no key, half a name is none, and an admin is not made a tenant. */
TEST(a_file_that_is_cut_anywhere_has_whole_lines_or_is_refused)
{
    char whole[4096], part[4096];
    struct keys_options o = {0};
    struct keys *k;
    size_t n, n_good = 0;

    snprintf(whole, sizeof(whole), "%s",
             join("plain-key\n", "# of alice\n", line_of("alice", "s1", "a", " # new"),
                  line_of("root", "s1", "r", " admin")));
    n = strlen(whole);
    for (size_t i = 0; i <= n; i++) {
        const char *line = whole;
        uint32_t n_lines = 0;

        for (const char *end; (end = strchr(line, '\n')) && end < whole + i; line = end + 1) n_lines += *line != '#';
        snprintf(part, i + 1, "%s", whole);
        o.file = file_with(part);
        if (keys_create(&o, &k, NULL) != RD_OK) continue;
        n_good++;
        CHECK(line == whole + i || *line == '#');
        CHECK_EQ(keys_find(k, "plain-key", 0).ok, n_lines > 0);
        CHECK_EQ(keys_find(k, "a", 0).ok, n_lines > 1);
        CHECK_EQ(keys_find(k, "r", 0).ok, n_lines > 2);
        CHECK(n_lines < 3 || keys_find(k, "r", 0).is_admin);
        CHECK(!keys_find(k, "plain", 0).ok && !keys_find(k, "alice", 0).ok && !keys_find(k, "root", 0).ok);
        keys_destroy(k);
    }
    CHECK_EQ(n_good, 3 + strlen("# of alice\n")); /* behind each line, and in the comment */
}

TEST(a_key_has_512_bytes_at_most_and_what_is_longer_is_refused_everywhere)
{
    char longest[KEY_MOST + 1], longer[KEY_MOST + 2], text[2 * KEY_MOST + 512];
    struct keys_options o = {0};
    struct rd_error err;
    struct keys *k;
    uint32_t n;

    memset(longest, 'k', sizeof(longest));
    memset(longer, 'k', sizeof(longer));
    longest[KEY_MOST] = longer[KEY_MOST + 1] = 0;
    /* a digest of a longer one may stand there, as nobody can tell: it lets nobody in */
    snprintf(text, sizeof(text), "%s%s%s\n", line_of("a", "s1", longest, ""), line_of("b", "s2", longer, ""), "c");
    o.file = file_with(text);
    CHECK_OK(keys_create(&o, &k, &err));
    CHECK(keys_find(k, longest, 0).ok && !keys_find(k, longer, 0).ok && !keys_find(k, longer, 0).is_held_back);
    snprintf(text, sizeof(text), "c\n%s\n", longest);
    file_with(text);
    CHECK_OK(keys_reload(k, &n, &err));
    CHECK(n == 2 && keys_find(k, longest, 0).ok);
    snprintf(text, sizeof(text), "c\n%s\n", longer);
    file_with(text);
    CHECK_EQ(keys_reload(k, &n, &err), RD_E_LIMIT);
    CHECK(strstr(err.text, ":2: a key has at most 512 bytes") && !strstr(err.text, "kkk"));
    CHECK(keys_find(k, longest, 0).ok);
    keys_destroy(k);
    o = (struct keys_options){.own = longest, .admin = longer};
    CHECK_EQ(keys_create(&o, &k, &err), RD_E_LIMIT);
    CHECK(strstr(err.text, "--admin-key: a key has at most 512 bytes"));
    o = (struct keys_options){.own = longer};
    CHECK_EQ(keys_create(&o, &k, &err), RD_E_LIMIT);
    CHECK(strstr(err.text, "--api-key: a key has at most 512 bytes"));
}

/* n keys, each with a salt of its own */
static void file_of_salts(int n)
{
    FILE *f;

    file_with("");
    f = fopen(path, "w");
    for (int i = 0; i < n; i++) {
        char salt[32], key[32];

        snprintf(salt, sizeof(salt), "salt-%d", i);
        snprintf(key, sizeof(key), "key-%d", i);
        fputs(line_of("x", salt, key, ""), f);
    }
    fclose(f);
}

TEST(wrong_keys_are_held_back_by_sender_and_right_ones_never)
{
    struct clock *clock = clock_fake_create(1, 0);
    struct keys_options o = {.clock = clock};
    struct keys *k;
    char key[32];
    int n = 0;

    file_of_salts(4096);
    o.file = path;
    CHECK_OK(keys_create(&o, &k, NULL));
    CHECK(keys_find(k, "key-7", 1).ok);
    for (; n < 100 && !keys_find(k, "wrong", 1).is_held_back; n++) CHECK(!keys_find(k, NULL, 1).is_held_back);
    CHECK(n >= 4 && n <= 32);                     /* a person who mistypes is not held back */
    CHECK(keys_find(k, "key-7", 1).ok);           /* it is known */
    CHECK(keys_find(k, "key-8", 1).is_held_back); /* it is not, and nobody can tell */
    CHECK(!keys_find(k, "key-8", 1).ok && keys_find(k, "key-8", 2).ok);
    CHECK(keys_find(k, "key-8", 1).ok);
    clock_fake_advance(clock, 1000000000);
    CHECK(keys_find(k, "key-9", 1).ok && !keys_find(k, "wrong", 1).is_held_back);
    for (int i = 0; i < 4096; i++) { /* as behind a proxy after a restart: what was right costs nothing */
        snprintf(key, sizeof(key), "key-%d", i % 200);
        CHECK(keys_find(k, key, 3).ok);
    }
    keys_destroy(k);

    file_with(line_of("x", "s", "right", ""));
    CHECK_OK(keys_create(&o, &k, NULL));
    for (int i = 0; i < 10000; i++) CHECK(!keys_find(k, "wrong", 1).is_held_back);
    keys_destroy(k);
    clock_fake_destroy(clock);
}

TEST(what_is_known_of_a_key_goes_with_the_file_that_had_it)
{
    struct keys_options o = {
        .file = file_with(join(line_of("a", "s", "first", ""), line_of("b", "t", "stays", ""), "", ""))};
    struct keys *k;
    uint32_t n;

    CHECK_OK(keys_create(&o, &k, NULL));
    for (int i = 0; i < 3; i++) CHECK(keys_find(k, "first", 0).ok && keys_find(k, "stays", 0).ok);
    file_with(join(line_of("a", "s", "other", ""), line_of("c", "t", "stays", " admin"), "", ""));
    CHECK_OK(keys_reload(k, &n, NULL));
    CHECK(!keys_find(k, "first", 0).ok && keys_find(k, "other", 0).ok);
    CHECK(keys_find(k, "stays", 0).is_admin && !keys_find(k, "stays", 0).tenant);
    keys_destroy(k);
}

TEST(memory_that_runs_out_leaves_what_was)
{
    struct keys_options o = {
        .own = "own", .admin = "root", .file = file_with(join("a\n", line_of("b", "s", "kb", ""), "c\n", ""))};
    struct rd_error err;
    struct keys *k = NULL;
    rd_status st = RD_E_NOMEM;
    uint32_t n;

    for (int64_t i = 0; st != RD_OK; i++) {
        mem_fail_after(i);
        st = keys_create(&o, &k, &err);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
    }
    file_with("d\ne\n");
    st = RD_E_NOMEM;
    for (int64_t i = 0; st != RD_OK; i++) {
        CHECK(keys_find(k, "kb", 0).ok);
        mem_fail_after(i);
        st = keys_reload(k, &n, &err);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
    }
    CHECK(keys_find(k, "d", 0).ok && !keys_find(k, "kb", 0).ok);
    keys_destroy(k);
}

static void ask(void *arg)
{
    struct keys *k = arg;

    for (int i = 0; i < 3000; i++) {
        struct key_holder h = keys_find(k, "stays", 0);

        if (!h.ok || keys_tenant_index(k, h.tenant) == UINT32_MAX) abort();
        h = keys_find(k, "x", 0);
        if (h.ok) abort();
    }
}

TEST(a_key_that_stays_is_let_in_while_the_file_is_read_again)
{
    struct keys_options o = {.file = file_with("stays\n")};
    struct thread t[3] = {{0}};
    struct keys *k;
    uint32_t n;
    char text[64];

    CHECK_OK(keys_create(&o, &k, NULL));
    for (int i = 0; i < 3; i++) CHECK_OK(thread_start(&t[i], "ask", ask, k));
    for (int i = 0; i < 300; i++) {
        snprintf(text, sizeof(text), "new-%d\nstays\n", i);
        file_with(text);
        CHECK_OK(keys_reload(k, &n, NULL));
    }
    for (int i = 0; i < 3; i++) thread_join(&t[i]);
    keys_destroy(k);
}

TEST(drawn_keys_differ_and_are_made_of_plain_letters)
{
    char a[KEY_DRAWN_BYTES], b[KEY_DRAWN_BYTES], salt[KEY_SALT_MOST + 1];

    key_draw(a);
    key_draw(b);
    key_draw_salt(salt);
    CHECK(strcmp(a, b) != 0 && strlen(a) == 46 && strncmp(a, "rk-", 3) == 0);
    CHECK(key_is_salt(a) && key_is_salt(salt) && strlen(salt) == 22);
    CHECK(key_is_name("a.b@c-D_9") && !key_is_name("") && !key_is_name("a b") && !key_is_name("a:b") &&
          !key_is_salt("a.b"));
    unlink(path);
}
