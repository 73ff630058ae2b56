/* engine/events/event_socket.h - where KV events go: a ZeroMQ publisher, and a socket that answers who missed some.
 *
 *     published   three parts: topic; number of the batch, 8 bytes, big-endian, from 0 on; the batch
 *     replay      a client (REQ or DEALER) sends the first number it wants, 8 bytes. The batches from there on that are kept
 *                 come as (number, batch), and last (eight bytes 0xff, nothing)
 *
 * Never blocks: a subscriber that does not keep up loses messages, which the numbers show it.
 *
 * Thread  one.
 * Errors  open: RD_E_INVALID, RD_E_IO, RD_E_NOMEM, RD_E_UNSUPPORTED (built without libzmq).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

struct event_socket;

struct event_socket_options {
    const char *endpoint; /* bound: tcp or ipc, and an address: "tcp://127.0.0.1:5557"; zmq is tcp */
    const char *replay;   /* likewise; NULL: none */
    const char *topic;    /* NULL: "" */
};

rd_status event_socket_open(const struct event_socket_options *o, struct event_socket **out, struct rd_error *err);
/* NULL is fine. */
void event_socket_close(struct event_socket *s);
/* Takes the batch (mem_free), publishes it, keeps it for replays. */
void event_socket_publish(struct event_socket *s, char *batch, size_t n);
/* Answers who asks, if someone does: at most one at a time. Returns how many were answered. */
uint32_t event_socket_replay(struct event_socket *s);
/* A request of n bytes as above; false: it is none. */
bool event_replay_parse(const void *request, size_t n, uint64_t *first);
