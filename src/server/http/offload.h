/* server/http/offload.h - work that is too long for an io thread, done by a few threads of the server.
 *
 * An io thread owns thousands of connections; 100 KiB of JSON to read would make all of them wait. So the handler of a
 * big request runs on a worker, with a copy of its connection (http_conn.job is set) that owns the head, the body and
 * the charge. What it ends with - a reply, or something that goes on with the connection - is kept, and the io thread that owns the
 * connection carries it out:
 *
 *     io thread      offload_if(c) -> true: the handler returns; the connection is BUSY, so pipelined requests wait
 *     worker         on_request(copy): parse, check, render, tokenise, write; http_reply and offload_keep keep the end
 *     io thread      http_reply of the connection, or what was kept goes on with it
 *
 * A client that hangs up meanwhile: a job that waits is not begun, what a begun one ends with is dropped. Jobs wait in
 * the order in which they came; the queue is bounded, beyond it the answer is 429. What they hold is charged
 * (client_memory.h). After big ones the heap is given back to the system.
 *
 * Handlers see no difference as long as they use of the connection what a request is made of (head, body, tenant, the
 * server) and end with http_reply* or offload_keep. Streams are not for workers.
 *
 * Thread  as said at each function. A job's connection belongs to its io thread, everything else in it to the worker
 *         until it is on the io thread's list of those that are done (wake_lock).
 */
#pragma once
#include "server/http/http_state.h"

#define OFFLOAD_BYTES (64u << 10) /* of JSON or text: more leaves the io thread */

struct offload;

/* Any thread. */
rd_status offload_create(struct offload **out);
/* Waits for the jobs that run; what they end with is still to be collected. NULL is fine. */
void offload_stop(struct offload *o);
void offload_destroy(struct offload *o);

/* io thread, in a handler or before it: is there work for more than OFFLOAD_BYTES? true: it was handed to a worker, or
 * refused. n_bytes: of input and of what is made of it. On a worker always false. */
bool offload_if(struct http_conn *c, size_t n_bytes);
/* Any thread: a worker gives the heap's free pages back to the system, soon. */
void offload_give_back(struct offload *o);

/* Worker, with a copy (copy->job): instead of a reply go_on(c, arg) is called on the io thread, with the connection
 * that has got the head and what is charged for JSON (CLIENT_TREES) back; or drop(arg), when its client is gone. */
void offload_keep(struct http_conn *copy, void (*go_on)(struct http_conn *c, void *arg), void (*drop)(void *arg),
                  void *arg);
