/* tests/base/test_net.c - listening, ports in use, addresses that do not parse. */
#include "base/net.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "test.h"

TEST(a_listening_socket_takes_connections_and_tunes_them)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    uint16_t port = 0;
    int fd = -1, client, server, value = 0;
    socklen_t n = sizeof(value);

    CHECK_OK(net_listen("127.0.0.1", 0, 8, &fd, &port, NULL));
    CHECK(port != 0);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    a.sin_port = htons(port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(connect(client, (struct sockaddr *)&a, sizeof(a)), 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK_EQ(poll(&p, 1, 5000), 1);
    server = accept(fd, NULL, NULL);
    CHECK(server >= 0);
    net_tune(server);
    CHECK_EQ(getsockopt(server, IPPROTO_TCP, TCP_NODELAY, &value, &n), 0);
    CHECK(value != 0);
    CHECK_EQ(getsockopt(server, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &n), 0);
    CHECK(value > 0);
    net_tune(-1);                                       /* harmless */
    close(client);
    net_close(server);
    net_close(fd);
    net_close(-1);
}

TEST(a_port_in_use_is_an_error_that_names_it)
{
    struct rd_error err;
    char want[64];
    uint16_t port, other = 1;
    int fd, second = -7;

    CHECK_OK(net_listen("localhost", 0, 8, &fd, &port, NULL));
    CHECK_EQ(net_listen("127.0.0.1", port, 8, &second, &other, &err), RD_E_IO);
    snprintf(want, sizeof(want), "port %u: bind: Address already in use", (unsigned)port);
    CHECK(strstr(err.text, want));
    CHECK(second == -7 && other == 1);                  /* nothing changed */
    net_close(fd);
}

TEST(names_are_not_looked_up)
{
    static const char *const bad[] = {"",      "example.org", "127.0.0.1:80", "256.0.0.1",
                                      "[::1]", "1",           " 127.0.0.1",   "a\nb"};
    struct rd_error err;
    uint16_t port;
    int fd;

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        CHECK_EQ(net_listen(bad[i], 0, 8, &fd, &port, &err), RD_E_INVALID);
        CHECK(strstr(err.text, "wanted a numeric"));
        CHECK(!strchr(err.text, '\n'));
    }
    if (net_listen("::1", 0, 8, &fd, &port, &err) == RD_OK)
        net_close(fd);
    else
        test_note("no IPv6 here: %s", err.text);
}
