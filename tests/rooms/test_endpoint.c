/* tests/rooms/test_endpoint.c - docs/architecture.md, "What it takes to add something": an endpoint is a file and a row. The
 * build adds the row to a copy of route_list.h and compiles routes.c with it; nothing else knows of /toy. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/thread.h"
#include "radish/radish.h"
#include "server/server.h"
#include "test.h"

enum { ANSWER_BYTES = 64 << 10, PATIENCE_S = 60 };

struct toy_server {
    struct thread thread;
    struct mutex lock;
    struct cond changed;
    bool ready, ended;
    uint16_t port;
    rd_status status;
};

static rd_status load(void *user, uint32_t model, const struct server_load_watch *watch, rd_engine **out,
                      struct rd_error *err)
{
    struct toy_server *s = user;
    struct rd_options o;
    rd_status st;

    rd_options_default(&o);
    o.model = test_path("tests/golden/qwen3/tiny-qwen3.gguf");
    o.device = "cpu";
    o.n_threads = 1;
    o.kv_tokens = 256;
    st = rd_open(&o, out, err);
    mutex_lock(&s->lock);
    s->ready = true;
    cond_broadcast(&s->changed);
    mutex_unlock(&s->lock);
    return st;
}

static void on_listen(void *user, const char *host, uint16_t port)
{
    ((struct toy_server *)user)->port = port;
}

static void serve(void *arg)
{
    struct toy_server *s = arg;
    struct server_options o;
    struct rd_error err = {RD_OK, ""};

    server_options_default(&o);
    o.port = 0;
    o.drain_s = 1;
    o.on_listen = on_listen;
    o.on_listen_user = s;
    s->status = server_run(&o, load, s, &err);
    mutex_lock(&s->lock);
    s->ended = true;
    cond_broadcast(&s->changed);
    mutex_unlock(&s->lock);
}

/* The whole answer to one request; body NULL: none. */
static const char *ask(uint16_t port, const char *head, const char *body)
{
    static char answer[ANSWER_BYTES], request[8192];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {PATIENCE_S, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t n = 0;
    ssize_t got;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    snprintf(request, sizeof(request),
             "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", head,
             body ? strlen(body) : 0, body ? body : "");
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0) (void)!send(fd, request, strlen(request), MSG_NOSIGNAL);
    while ((got = recv(fd, answer + n, sizeof(answer) - 1 - n, 0)) > 0) n += (size_t)got;
    answer[n] = 0;
    close(fd);
    return answer;
}

static bool has(const char *answer, const char *what)
{
    if (strstr(answer, what)) return true;
    fprintf(stderr, "no %s in: %s\n", what, answer);
    return false;
}

TEST(an_endpoint_is_a_file_and_a_row)
{
    struct toy_server s = {.port = 0};
    uint64_t end = clock_now_ns(clock_system()) + PATIENCE_S * 1000000000ull;
    char text[256], piece[300], huge[1200];
    struct buf listed = {0};
    const char *at;

    mutex_init(&s.lock);
    cond_init(&s.changed);
    CHECK_OK(thread_start(&s.thread, "serve", serve, &s));
    mutex_lock(&s.lock);
    while (!s.ready && !s.ended && clock_now_ns(clock_system()) < end) cond_wait_ns(&s.changed, &s.lock, 100000000);
    mutex_unlock(&s.lock);
    CHECK(s.ready && !s.ended);
    while (!strstr(ask(s.port, "GET /health", NULL), " 200 ") && clock_now_ns(clock_system()) < end) {}

    at = ask(s.port, "POST /toy", "{\"text\":\"one two\"}");
    CHECK(has(at, "HTTP/1.1 200 OK") && has(at, "Content-Type: application/json") && has(at, "X-Radish-Cache: "));
    at = strstr(at, "{\"toy\":");
    CHECK(at && strlen(at) < sizeof(text));
    snprintf(text, sizeof(text), "%s", at);
    at = ask(s.port, "POST /toy/", "{\"text\":\"one two\",\"stream\":true}");
    CHECK(has(at, "Content-Type: text/plain") && has(at, "Transfer-Encoding: chunked") && has(at, "8 tokens\n"));
    snprintf(piece, sizeof(piece), "\n%.1s\n", text + strlen("{\"toy\":\""));
    CHECK(has(at, piece));

    /* its dialect, limit, title and method are columns of the row */
    at = ask(s.port, "POST /toy", "{\"text\":1}");
    CHECK(has(at, "HTTP/1.1 400 ") && has(at, "\r\n\r\n{\"error\":\"text: a string wanted\"}"));
    memset(huge, ' ', sizeof(huge) - 1);
    huge[sizeof(huge) - 1] = 0;
    CHECK(has(ask(s.port, "POST /toy", huge), "HTTP/1.1 413 "));
    CHECK(has(ask(s.port, "GET /toy", NULL), "Allow: POST, OPTIONS"));
    at = ask(s.port, "GET / HTTP/1.1\r\nAccept: text/html\r\nX:", NULL);
    CHECK(has(at, "<li><code>POST /toy</code>: a toy</li>"));
    server_list_parameters(&listed);
    CHECK(listed.n > 0 && strstr(listed.data, "\"path\":\"/v1/chat/completions\"") != NULL);
    buf_deinit(&listed);

    server_stop();
    thread_join(&s.thread);
    CHECK_OK(s.status);
    cond_deinit(&s.changed);
    mutex_deinit(&s.lock);
}
