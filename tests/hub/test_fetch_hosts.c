/* tests/hub/test_fetch_hosts.c - entries of --image-url-hosts, what they allow, and whose an address is. */
#include "hub/fetch_hosts.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include "base/mem.h"
#include "test.h"

static bool is_public(const char *text)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};

    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) return fetch_address_is_public((const struct sockaddr *)&v4);
    if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1) return fetch_address_is_public((const struct sockaddr *)&v6);
    return false;
}

TEST(addresses_of_the_internet)
{
    static const char *const yes[] = {
        "1.1.1.1",      "8.8.8.8",      "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0",
        "169.253.0.1",  "169.255.0.1",  "192.0.1.0",      "192.167.1.1", "192.169.1.1",    "198.17.255.255",
        "198.20.0.0",   "223.255.1.1",  "11.0.0.0",       "9.255.255.1", "126.0.0.1",      "128.0.0.1",
        "2606:4700::1", "2a00:1450::1", "2001:4860::1",   "2003::1"};

    for (size_t i = 0; i < sizeof(yes) / sizeof(*yes); i++)
        if (!is_public(yes[i])) test_fail(__FILE__, __LINE__, "%s", yes[i]);
}

TEST(addresses_of_nobody_else)
{
    static const char *const no[] = {"0.0.0.0",
                                     "0.1.2.3",
                                     "10.0.0.1",
                                     "10.255.255.255",
                                     "100.64.0.1",
                                     "100.100.100.200",
                                     "100.127.255.255",
                                     "127.0.0.1",
                                     "127.255.255.254",
                                     "169.254.169.254",
                                     "172.16.0.1",
                                     "172.31.255.255",
                                     "192.0.0.192",
                                     "192.0.2.1",
                                     "192.88.99.1",
                                     "192.168.0.1",
                                     "198.18.0.1",
                                     "198.19.255.255",
                                     "198.51.100.1",
                                     "203.0.113.1",
                                     "224.0.0.1",
                                     "239.1.1.1",
                                     "240.0.0.1",
                                     "255.255.255.255",
                                     "168.63.129.16",
                                     "::",
                                     "::1",
                                     "::ffff:1.1.1.1",
                                     "::ffff:127.0.0.1",
                                     "::127.0.0.1",
                                     "64:ff9b::1.1.1.1",
                                     "64:ff9b:1::1",
                                     "fc00::1",
                                     "fd00:ec2::254",
                                     "fe80::1",
                                     "fec0::1",
                                     "ff02::1",
                                     "2001::1",
                                     "2001:1ff::1",
                                     "2001:db8::1",
                                     "2002:7f00:1::",
                                     "3fff:fff::1",
                                     "100::1",
                                     "5f00::1"};

    for (size_t i = 0; i < sizeof(no) / sizeof(*no); i++)
        if (is_public(no[i])) test_fail(__FILE__, __LINE__, "%s", no[i]);
    CHECK(!fetch_address_is_public(&(struct sockaddr){.sa_family = AF_UNIX}));
}

static const char *found(const struct fetch_hosts *h, const char *host, uint32_t port, bool is_https)
{
    const struct fetch_host *e = fetch_hosts_find(h, host, port, is_https);

    return !e ? "no" : e->is_private ? "private" : "yes";
}

TEST(what_a_list_allows)
{
    static const char *const texts[] = {"Images.Example.org,*.pics.net", "example.org:8443,private:nas.local:9000",
                                        "private:[fd00::7],both.net,private:both.net"};
    struct fetch_hosts h;

    CHECK_OK(fetch_hosts_init(texts, 3, &h, NULL));
    CHECK_STR(found(&h, "images.example.org", 443, true), "yes");
    CHECK_STR(found(&h, "IMAGES.example.ORG.", 80, false), "yes");
    CHECK_STR(found(&h, "images.example.org", 80, true), "no"); /* the other scheme's */
    CHECK_STR(found(&h, "images.example.org", 22, false), "no");
    CHECK_STR(found(&h, "ximages.example.org", 443, true), "no");
    CHECK_STR(found(&h, "images.example.org.evil.net", 443, true), "no");
    CHECK_STR(found(&h, "a.pics.net", 443, true), "yes");
    CHECK_STR(found(&h, "a.b.pics.net", 443, true), "yes");
    CHECK_STR(found(&h, "pics.net", 443, true), "no");
    CHECK_STR(found(&h, ".pics.net", 443, true), "no");
    CHECK_STR(found(&h, "evilpics.net", 443, true), "no");
    CHECK_STR(found(&h, "example.org", 8443, true), "yes");
    CHECK_STR(found(&h, "example.org", 8443, false), "yes");
    CHECK_STR(found(&h, "example.org", 443, true), "no");
    CHECK_STR(found(&h, "nas.local", 9000, false), "private");
    CHECK_STR(found(&h, "[fd00::7]", 80, false), "private");
    CHECK_STR(found(&h, "both.net", 80, false), "private");
    CHECK_STR(found(&h, "", 80, false), "no");
    CHECK_STR(found(&h, ".", 80, false), "no");
    fetch_hosts_deinit(&h);
}

TEST(what_is_no_entry)
{
    static const char *const texts[] = {
        "",        "*",         "*.",     "a,,b",    ",",           "a.",          "a..b",
        ".a",      "-a",        "a b",    "a/b",     "http://a",    "user@a",      "a:0",
        "a:65536", "a:",        "a:b",    "*.*.a",   "a.*",         "private:",    "private:*.a",
        "[::1",    "[1.2.3.4]", "[::1]x", "[zz::1]", "[fe80::1%1]", "\xc3\xa9.fr", "private:private:a"};
    struct fetch_hosts h;

    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        struct rd_error err;

        if (fetch_hosts_init(&texts[i], 1, &h, &err) != RD_E_INVALID || h.list)
            test_fail(__FILE__, __LINE__, "%s", texts[i]);
    }
}

TEST(no_more_than_it_holds_and_no_memory)
{
    char many[4096] = "a";
    const char *texts[] = {many};
    struct fetch_hosts h;
    struct rd_error err;

    for (int i = 1; i < 256; i++) strcat(many, ",a");
    CHECK_OK(fetch_hosts_init(texts, 1, &h, NULL));
    CHECK_EQ(h.n, 256);
    fetch_hosts_deinit(&h);
    strcat(many, ",a");
    CHECK_EQ(fetch_hosts_init(texts, 1, &h, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "256"));
    mem_fail_after(0);
    CHECK_EQ(fetch_hosts_init(texts, 1, &h, NULL), RD_E_NOMEM);
    mem_fail_after(-1);
}
