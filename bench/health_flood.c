/* bench/health_flood.c - asks one server for /health over keep-alive connections as fast as it answers.
 *
 *     health_flood PORT CONNECTIONS SECONDS [PER_SECOND]
 *
 * Each connection sends its next request when the answer to the last one is complete; with PER_SECOND not before its
 * turn, so that all of them together ask no more often than that. One thread, epoll. Prints one
 * line of JSON: answers of all connections, the fewest and most of one, answers other than 200, connections that the
 * server closed between two answers (opened again) and within one (lost), requests per second, and the seconds of CPU
 * that this program took itself. Compiled by bench/serve and bench/pack.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 1024, MAX_ANSWER = 4096 };

static const char request[] = "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: keep-alive\r\n\r\n";

struct connection {
    int fd;
    size_t n;      /* bytes of the answer so far */
    double next_s; /* with a rate: when it asks again */
    int waits;     /* its last answer is complete */
    unsigned long answers;
    char answer[MAX_ANSWER];
};
static struct connection connections[MAX_CONNECTIONS];
static unsigned long not_ok, reopened, lost;
static int server_port;
static double between_s; /* two requests of one connection; 0: at once */

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int send_request(const struct connection *c)
{
    return send(c->fd, request, sizeof(request) - 1, MSG_NOSIGNAL) == (ssize_t)sizeof(request) - 1;
}

static int open_connection(struct connection *c, int epoll)
{
    struct epoll_event wanted = {.events = EPOLLIN, .data = {.ptr = c}};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)server_port)};
    int on = 1;

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof(to)) != 0) return 0;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    c->n = 0;
    return epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &wanted) == 0;
}

/* Bytes of the whole answer, 0 while its head is not complete. */
static size_t answer_bytes(const struct connection *c)
{
    const char *end = memmem(c->answer, c->n, "\r\n\r\n", 4), *line;
    size_t head, body = 0;

    if (!end) return 0;
    head = (size_t)(end - c->answer) + 4;
    for (line = c->answer; line < end; line = strchr(line, '\n') + 1)
        if (strncasecmp(line, "content-length:", 15) == 0) body = (size_t)strtoul(line + 15, NULL, 10);
    return head + body;
}

static void reopen(struct connection *c, int epoll)
{
    if (c->n > 0)
        lost++;
    else
        reopened++;
    close(c->fd);
    if (!open_connection(c, epoll) || !send_request(c)) lost++;
}

static void on_readable(struct connection *c, int epoll)
{
    ssize_t n = recv(c->fd, c->answer + c->n, MAX_ANSWER - 1 - c->n, MSG_DONTWAIT);
    size_t want;

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        reopen(c, epoll);
        return;
    }
    c->n += (size_t)n;
    c->answer[c->n] = 0;
    want = answer_bytes(c);
    if (want >= MAX_ANSWER) {
        reopen(c, epoll);
        return;
    }
    if (want == 0 || c->n < want) return;
    if (strncmp(c->answer, "HTTP/1.1 200", 12) != 0) not_ok++;
    c->answers++;
    c->n = 0;
    if (between_s > 0)
        c->waits = 1;
    else if (!send_request(c))
        reopen(c, epoll);
}

/* Those whose turn it is ask again. */
static void send_due(int n, int epoll)
{
    double now = now_s();

    for (int i = 0; i < n; i++) {
        struct connection *c = &connections[i];

        if (!c->waits || c->next_s > now) continue;
        c->waits = 0;
        c->next_s += between_s;
        if (!send_request(c)) reopen(c, epoll);
    }
}

static void report(int n_connections, double seconds)
{
    unsigned long all = 0, fewest = connections[0].answers, most = 0;
    struct rusage used;

    for (int i = 0; i < n_connections; i++) {
        unsigned long mine = connections[i].answers;
        all += mine;
        if (mine < fewest) fewest = mine;
        if (mine > most) most = mine;
    }
    getrusage(RUSAGE_SELF, &used);
    printf("{\"answers\": %lu, \"fewest\": %lu, \"most\": %lu, \"not_ok\": %lu, \"reopened\": %lu, "
           "\"lost\": %lu, \"per_s\": %.1f, \"cpu_s\": %.3f}\n",
           all, fewest, most, not_ok, reopened, lost, (double)all / seconds,
           (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
               (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6);
}

int main(int argc, char **argv)
{
    int is_whole = argc == 4 || argc == 5, n = is_whole ? atoi(argv[2]) : 0, epoll = epoll_create1(EPOLL_CLOEXEC);
    double seconds = is_whole ? atof(argv[3]) : 0, per_s = argc == 5 ? atof(argv[4]) : 0, start;

    server_port = is_whole ? atoi(argv[1]) : 0;
    if (server_port <= 0 || server_port > 65535 || n <= 0 || n > MAX_CONNECTIONS || !(seconds > 0) || epoll < 0) {
        fprintf(stderr, "health_flood PORT CONNECTIONS SECONDS [PER_SECOND]\n");
        return 2;
    }
    for (int i = 0; i < n; i++) {
        if (!open_connection(&connections[i], epoll)) {
            perror("health_flood: connect");
            return 1;
        }
    }
    start = now_s();
    between_s = per_s > 0 ? n / per_s : 0;
    for (int i = 0; i < n; i++) {
        connections[i].waits = 1;
        connections[i].next_s = start + i * between_s / n;
    }
    if (per_s <= 0) send_due(n, epoll);
    while (now_s() - start < seconds) {
        struct epoll_event got[64];
        int n_got = epoll_wait(epoll, got, 64, per_s > 0 ? 1 : 50);

        for (int i = 0; i < n_got; i++) on_readable(got[i].data.ptr, epoll);
        if (per_s > 0) send_due(n, epoll);
    }
    report(n, now_s() - start);
    return 0;
}
