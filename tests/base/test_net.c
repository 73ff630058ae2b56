/* tests/base/test_net.c - listening, ports in use, addresses that do not parse. */
#include "base/net.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
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
    net_tune(-1); /* harmless */
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
    snprintf(want, sizeof(want), "port %u of 127.0.0.1 is in use", (unsigned)port);
    CHECK(strstr(err.text, want));
    CHECK(second == -7 && other == 1); /* nothing changed */
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

static int connect_unix(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    if (connect(fd, (const struct sockaddr *)&a, sizeof(a)) == 0) return fd;
    close(fd);
    return -1;
}

TEST(a_unix_socket_has_its_mode_and_replaces_only_one_that_nobody_listens_to)
{
    char folder[] = "/tmp/radish-net-XXXXXX", path[64], other[64];
    struct rd_error err;
    struct stat s;
    int fd = -1, second = -7, client;
    mode_t before = umask(0077);

    CHECK(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/s", folder);
    snprintf(other, sizeof(other), "%s/file", folder);
    CHECK_OK(net_listen_unix(path, 0660, 8, &fd, &err));
    CHECK(stat(path, &s) == 0 && (s.st_mode & 07777) == 0660); /* whatever the umask */
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    client = connect_unix(path);
    CHECK(client >= 0);
    close(client);
    CHECK_EQ(net_listen_unix(path, 0660, 8, &second, &err), RD_E_IO); /* someone listens */
    CHECK(strstr(err.text, "in use") && second == -7);
    net_remove_unix(path); /* nor is it removed */
    CHECK(stat(path, &s) == 0);
    net_close(fd);

    CHECK(stat(path, &s) == 0); /* left over, as by a crash */
    CHECK_OK(net_listen_unix(path, 0600, 8, &fd, &err));
    CHECK(stat(path, &s) == 0 && (s.st_mode & 07777) == 0600);
    net_close(fd);
    net_remove_unix(path);
    CHECK(stat(path, &s) != 0);
    net_remove_unix(path); /* nothing there */

    fclose(fopen(other, "w")); /* a file that is no socket stays */
    CHECK_EQ(net_listen_unix(other, 0600, 8, &second, &err), RD_E_IO);
    net_remove_unix(other);
    CHECK(stat(other, &s) == 0);
    unlink(other);
    rmdir(folder);
    CHECK_EQ(net_listen_unix(path, 0600, 8, &second, &err), RD_E_IO); /* no folder */
    CHECK_EQ(net_listen_unix("", 0600, 8, &second, &err), RD_E_INVALID);
    CHECK_EQ(net_listen_unix("/a-name-of-more-bytes-than-the-system-has-room-for-in-the-address-of-a-socket/"
                             "which-are-a-hundred-and-eight",
                             0600, 8, &second, &err),
             RD_E_INVALID);
    CHECK_EQ(second, -7);
    umask(before);
}

/* Of many that start at once over a file that was left, one gets it. */
TEST(a_socket_that_was_left_goes_to_one_of_many)
{
    char folder[] = "/tmp/radish-net-XXXXXX", path[64];
    enum { N = 16 };
    pid_t children[N];
    int fd = -1, go[2], stay[2], n_won = 0;
    char byte;

    CHECK(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/s", folder);
    CHECK_OK(net_listen_unix(path, 0600, 8, &fd, NULL));
    net_close(fd);
    CHECK(pipe(go) == 0 && pipe(stay) == 0);
    for (int i = 0; i < N; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            bool won;

            close(go[1]);
            close(stay[1]);
            (void)!read(go[0], &byte, 1);
            won = net_listen_unix(path, 0600, 8, &fd, NULL) == RD_OK;
            close(go[0]);
            if (won) (void)!read(stay[0], &byte, 1); /* listens until all have tried */
            _exit(won);
        }
    }
    close(stay[0]);
    close(go[1]); /* go */
    for (int i = 0; i < N - 1; i++) {
        int status = 0;

        CHECK(wait(&status) > 0);
        n_won += WEXITSTATUS(status);
    }
    CHECK_EQ(n_won, 0); /* the winner still listens */
    close(stay[1]);
    CHECK(wait(&n_won) > 0 && WEXITSTATUS(n_won) == 1);
    close(go[0]);
    unlink(path);
    rmdir(folder);
}

TEST(what_was_passed_to_listen_on_is_told_and_checked)
{
    char folder[] = "/tmp/radish-net-XXXXXX", path[64], host[160], want[80];
    struct rd_error err;
    uint16_t port, found;
    bool local;
    int fd, pair[2];

    CHECK(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/s", folder);
    CHECK_OK(net_listen("127.0.0.1", 0, 8, &fd, &port, NULL));
    CHECK_OK(net_adopt(fd, host, sizeof(host), &found, &local, &err));
    CHECK(local && found == port && strcmp(host, "127.0.0.1") == 0);
    net_close(fd);
    CHECK_OK(net_listen("0.0.0.0", 0, 8, &fd, &port, NULL));
    CHECK_EQ(fcntl(fd, F_SETFL, 0), 0);
    CHECK_OK(net_adopt(fd, host, sizeof(host), &found, &local, &err));
    CHECK(!local && found == port && (fcntl(fd, F_GETFL) & O_NONBLOCK));
    net_close(fd);
    CHECK_OK(net_listen_unix(path, 0600, 8, &fd, NULL));
    CHECK_OK(net_adopt(fd, host, sizeof(host), &found, &local, &err));
    snprintf(want, sizeof(want), "unix:%s", path);
    CHECK(local && found == 0 && strcmp(host, want) == 0);
    net_close(fd);
    unlink(path);
    rmdir(folder);

    CHECK_EQ(net_adopt(-1, host, sizeof(host), &found, &local, &err), RD_E_INVALID);
    CHECK_EQ(net_adopt(0, host, sizeof(host), &found, &local, &err), RD_E_INVALID);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK_EQ(net_adopt(pair[0], host, sizeof(host), &found, &local, &err), RD_E_INVALID); /* does not listen */
    CHECK(strstr(err.text, "was passed to listen on"));
    close(pair[0]);
    close(pair[1]);
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK_EQ(net_adopt(fd, host, sizeof(host), &found, &local, &err), RD_E_INVALID);
    close(fd);
}
