/* tests/fuzz/fuzz_http_stream.c - any bytes as what a client sends on one connection, in any pieces, to the real connection
 * code over a socket: what comes back is whole responses one after the other, never more than there were requests, and
 * every byte of memory comes back (F40, F41, F48).
 *
 * Input: a byte that chooses the pieces' sizes, then the stream. Routes answer with a tokenizer for a model: what would
 * compute is refused.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "server/dialects/prompt_prints.h"
#include "server/dialects/responses_store.h"
#include "server/http/http_conn.h"
#include "server/http/http_pace.h"
#include "server/http/keys.h"
#include "server/monitor/monitor.h"
#include "server/monitor/progress.h"
#include "server/routes/routes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define VOCABULARY RADISH_SOURCE_DIR "/tests/golden/qwen3/tiny-qwen3.gguf"
#define OUT_BYTES  (8u << 20)
#define TURNS      64 /* of the loop, for what is left to do */

static struct server server;
static struct progress progress;
static struct http_io io;
static char *out;

static void expect(bool fact)
{
    if (!fact) abort();
}

static void ignore(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

static void begin(void)
{
    if (out) return;
    log_set_sink(ignore, NULL);
    out = malloc(OUT_BYTES + 1);
    server.http = (struct http_server){.service = &route_service,
                                       .service_arg = &server,
                                       .o = {.max_body_bytes = 1 << 16, .send_timeout_s = 30},
                                       .n_io = 1,
                                       .max_conns = 16,
                                       .io = &io,
                                       .loopback = true};
    server.progress = &progress;
    io.max_conns = 16;
    expect(out && rd_open_tokenizer(VOCABULARY, NULL, &server.only.engine, NULL) == RD_OK);
    rd_get_info(server.only.engine, &server.only.info);
    expect(responses_store_create(1 << 16, &server.responses) == RD_OK &&
           prompt_prints_create(&server.prints) == RD_OK && monitor_create(&server.monitor) == RD_OK &&
           keys_create(&(struct keys_options){NULL, NULL, NULL, NULL}, &server.http.keys, NULL) == RD_OK);
    atomic_store(&server.http.phase, HTTP_READY);
    io.server = &server.http;
    mutex_init(&io.wake_lock);
    io.base = event_base_new();
    expect(io.base && http_pace_init(&io) == RD_OK);
}

static size_t take(int fd, size_t have)
{
    ssize_t got;

    while ((got = read(fd, out + have, OUT_BYTES - have)) > 0) have += (size_t)got;
    return have;
}

/* Behind the chunks that begin at s; NULL: the last is missing. */
static const char *behind_chunks(const char *s)
{
    for (;;) {
        char *end;
        size_t n = strtoul(s, &end, 16);

        if (end == s || strncmp(end, "\r\n", 2) || strlen(end) < n + 4) return NULL;
        s = end + 2 + n + 2;
        if (n == 0) return s;
    }
}

/* Whole responses: a status line, lines, an empty one, and the body that the head told of. */
static size_t count_responses(void)
{
    size_t n = 0;

    for (const char *s = out; s && *s;) {
        const char *end = strstr(s, "\r\n\r\n"), *length, *coding;
        size_t body;

        expect(strncmp(s, "HTTP/1.1 ", 9) == 0 && s[9] >= '1' && s[9] <= '5' && end);
        if (strncmp(s, "HTTP/1.1 100", 12) == 0) {
            s = end + 4;
            continue;
        }
        n++;
        length = strstr(s, "Content-Length: ");
        coding = strstr(s, "Transfer-Encoding: ");
        s = end + 4;
        if (coding && coding < end) s = behind_chunks(s);
        if ((coding && coding < end) || !length || length > end) continue;
        body = strtoul(length + 16, NULL, 10);
        if (strncmp(s, "HTTP/1.1 ", 9) == 0 || !*s) continue; /* to HEAD */
        expect(strlen(s) >= body);
        s += body;
    }
    return n;
}

/* A request needs a line of its own, and no answer comes without one. */
static size_t most_requests(const uint8_t *data, size_t n)
{
    size_t most = 1;

    for (size_t i = 0; i < n; i++) most += data[i] == '\n';
    return most;
}

static void feed(int fd, const uint8_t *data, size_t n, uint8_t sizes)
{
    size_t have = 0;

    for (size_t at = 0, i = 0; at < n; i++) {
        size_t most = sizes < 16 ? n : 1 + random_at(sizes, i) % (sizes < 128 ? 32 : 700);
        ssize_t went = send(fd, data + at, n - at < most ? n - at : most, MSG_NOSIGNAL | MSG_DONTWAIT);

        event_base_loop(io.base, EVLOOP_NONBLOCK);
        have = take(fd, have);
        if (went < 0 && (errno != EAGAIN || !io.conns)) break;
        at += went > 0 ? (size_t)went : 0;
    }
    shutdown(fd, SHUT_WR);
    for (int i = 0; i < TURNS && io.conns; i++) {
        event_base_loop(io.base, EVLOOP_NONBLOCK);
        have = take(fd, have);
    }
    out[have] = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    int fds[2];
    uint64_t alive;

    if (n < 2 || n > 1 << 18 || memchr(data, 0, n)) return 0;
    begin();
    alive = mem_n_alive();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds)) return 0;
    atomic_fetch_add(&io.n_conns, 1);
    http_conn_open(&io, fds[0]);
    feed(fds[1], data + 1, n - 1, data[0]);
    expect(count_responses() <= most_requests(data + 1, n - 1));
    while (io.conns) http_conn_close(io.conns);
    close(fds[1]);
    event_base_loop(io.base, EVLOOP_NONBLOCK);
    buf_deinit(&io.frame);
    buf_deinit(&io.scratch);
    expect(atomic_load(&io.n_conns) == 0 && atomic_load(&server.http.n_busy) == 0);
    if (mem_n_alive() > alive + 64) abort(); /* a few blocks stay: event maps, vocabularies' caches */
    return 0;
}
