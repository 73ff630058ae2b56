/* tests/fuzz/fuzz_replay.c - any parts as a request for a replay of KV events (engine/events/event_socket.h), through real sockets: what
 * is one is answered with all batches from the one it names, in order, and an end; what is none is not answered; and who asks
 * next is.
 *
 * Input: a byte (parts - 1, modulo 4), then for each part a byte (its length; 255: 1,000) and its bytes; the last takes the rest.
 */
#include "engine/events/event_socket.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#if __has_include(<zmq.h>)
#include <errno.h>
#include <stdio.h>
#include <unistd.h>
#include <zmq.h>
#include "base/mem.h"

#define N_BATCHES 5u

static struct event_socket *events;
static void *context, *asker;

static void must(bool ok)
{
    if (!ok) abort();
}

static void clean(void)
{
    zmq_close(asker);
    zmq_ctx_term(context);
    event_socket_close(events);
}

static void begin(void)
{
    char publish[128], replay[128];
    struct event_socket_options o = {.endpoint = publish, .replay = replay};
    int none = 0;

    snprintf(publish, sizeof(publish), "ipc:///tmp/radish-fuzz-%d-publish", (int)getpid());
    snprintf(replay, sizeof(replay), "ipc:///tmp/radish-fuzz-%d-replay", (int)getpid());
    if (event_socket_open(&o, &events, NULL) == RD_E_UNSUPPORTED) _exit(0); /* built without libzmq */
    must(events != NULL);
    for (unsigned i = 0; i < N_BATCHES; i++) event_socket_publish(events, mem_memdup("batch", 6), 6);
    context = zmq_ctx_new();
    asker = zmq_socket(context, ZMQ_DEALER);
    must(asker && zmq_setsockopt(asker, ZMQ_LINGER, &none, sizeof(none)) == 0 && zmq_connect(asker, replay) == 0);
    atexit(clean);
}

/* libFuzzer's clock is a signal, which ends calls. */
static bool again(int result)
{
    return result < 0 && zmq_errno() == EINTR;
}

static int receive(void *bytes, size_t n)
{
    int got;

    do got = zmq_recv(asker, bytes, n, 0);
    while (again(got));
    return got;
}

static void send(const void *bytes, size_t n, int flags)
{
    int sent;

    do sent = zmq_send(asker, bytes, n, flags);
    while (again(sent));
    must(sent >= 0);
}

/* The next answer's number: its parts are an empty one, 8 bytes, and the batch or nothing. */
static uint64_t take(void)
{
    uint8_t bytes[8];
    char batch[16];
    uint64_t number = 0;
    zmq_pollitem_t item = {asker, 0, ZMQ_POLLIN, 0};
    int n;

    while (zmq_poll(&item, 1, 0) <= 0) event_socket_replay(events);
    must(receive(batch, sizeof(batch)) == 0);
    must(receive(bytes, sizeof(bytes)) == 8);
    n = receive(batch, sizeof(batch));
    for (int i = 0; i < 8; i++) number = number << 8 | bytes[i];
    must(n == (number == UINT64_MAX ? 0 : 6));
    return number;
}

/* All from first on, and the end. */
static void take_all(uint64_t first)
{
    for (; first < N_BATCHES; first++) must(take() == first);
    must(take() == UINT64_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const uint8_t whole[8] = {0};
    unsigned n_parts = n ? data[0] % 4 + 1 : 1;
    bool is_one = n_parts == 2;
    uint64_t first = 0;
    size_t at = n > 0;

    if (!events) begin();
    for (unsigned i = 0; i < n_parts; i++) {
        bool is_last = i + 1 == n_parts;
        size_t n_part = !is_last && at < n ? data[at] : 0;

        if (!is_last && at < n) at++;
        if (n_part == 255) n_part = 1000;
        if (is_last || n_part > n - at) n_part = n - at;
        send(data + at, n_part, is_last ? 0 : ZMQ_SNDMORE);
        if (i == 0 && n_part != 0) is_one = false;
        if (i == 1 && !event_replay_parse(data + at, n_part, &first)) is_one = false;
        at += n_part;
    }
    if (is_one) take_all(first);
    send("", 0, ZMQ_SNDMORE);
    send(whole, 8, 0);
    take_all(0);
    return 0;
}
#else
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint64_t first;

    if (event_replay_parse(data, n, &first) != (n == 8)) abort();
    return 0;
}
#endif
