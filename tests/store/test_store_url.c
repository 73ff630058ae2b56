/* tests/store/test_store_url.c - addresses of shared stores: what is taken, what is refused, and that no password shows. */
#include "store/store_url.h"
#include <string.h>
#include "test.h"

static void takes(const char *text, const char *host, uint32_t port, uint32_t db, const char *user,
                  const char *password, const char *path)
{
    struct store_url u;

    CHECK_OK(store_url_parse(text, &u, NULL));
    CHECK(!strcmp(u.host, host) && !strcmp(u.user, user) && !strcmp(u.password, password) && !strcmp(u.path, path));
    CHECK_EQ(u.port, port);
    CHECK_EQ(u.db, db);
}

TEST(addresses_of_every_form)
{
    takes("redis://store", "store", 6379, 0, "", "", "");
    takes("redis://store:7000/3", "store", 7000, 3, "", "", "");
    takes("redis://10.0.0.1/", "10.0.0.1", 6379, 0, "", "", "");
    takes("redis://[::1]:7000/1", "::1", 7000, 1, "", "", "");
    takes("redis://[::1]", "::1", 6379, 0, "", "", "");
    takes("redis://:word@store", "store", 6379, 0, "", "word", "");
    takes("redis://me:w%40rd%3a@store:1", "store", 1, 0, "me", "w@rd:", "");
    takes("unix:///run/redis.sock", "", 0, 0, "", "", "/run/redis.sock");
    takes("unix://me:word@/run/redis.sock?db=7", "", 0, 7, "me", "word", "/run/redis.sock");
}

TEST(others_are_refused_and_no_password_is_said)
{
    static const char *const bad[] = {
        "",
        "store:6379",
        "rediss://store",
        "redis://",
        "redis://:secret@",
        "redis://secret@store",
        "redis://me:@store",
        "redis://store:0",
        "redis://store:65536",
        "redis://store:secret",
        "redis://store/secret",
        "redis://store/16384",
        "redis://[::1",
        "redis://[::1]secret",
        "redis://me:secret%4@store",
        "redis://me:secret%00@store",
        "redis://me:secret%0d%0aFLUSHALL@store",
        "unix://secret/path",
        "unix:///path?secret",
        "unix:///path?db=x",
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct rd_error err = {RD_OK, ""};
        struct store_url u;

        CHECK_EQ(store_url_parse(bad[i], &u, &err), RD_E_INVALID);
        CHECK(*err.text && !strstr(err.text, "secret"));
    }
}

TEST(long_parts_are_refused_whole)
{
    char text[2048] = "redis://me:";
    struct store_url u;

    memset(text + 11, 'x', 1000);
    strcpy(text + 1011, "@store");
    CHECK_EQ(store_url_parse(text, &u, NULL), RD_E_INVALID);
    strcpy(text, "unix:///");
    memset(text + 8, 'x', 200);
    text[208] = 0;
    CHECK_EQ(store_url_parse(text, &u, NULL), RD_E_INVALID);
}

TEST(what_is_shown_holds_neither_user_nor_password)
{
    char shown[STORE_URL_SHOWN];
    struct store_url u;

    CHECK_OK(store_url_parse("redis://me:word@[::1]:7000/1", &u, NULL));
    store_url_show(&u, shown);
    CHECK(!strcmp(shown, "redis://[::1]:7000/1"));
    CHECK_OK(store_url_parse("unix://:word@/run/redis.sock?db=7", &u, NULL));
    store_url_show(&u, shown);
    CHECK(!strcmp(shown, "unix:///run/redis.sock?db=7"));
}
