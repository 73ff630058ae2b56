/* hub/hub_ranges.h - one file over several connections: each asks for a piece of it, then for the next that is missing.
 *
 *     first connection:  piece 0 .. is answered with 206: this server gives ranges
 *     the others:        pieces 1, 2, 3 ..., straight from where the first was redirected to
 *     a piece that breaks off goes back, and is asked for from its last byte on
 *
 * Patience is hub_http.h's, for all connections together: while one has to wait, none asks for more, and what runs goes on.
 * A server that refuses for now (429, 503 ...) sees half as many connections from then on. Connections are of their own
 * (no HTTP/2 streams of one), and the token goes where hub_http.h lets it go.
 *
 * Thread  its owner.
 * Errors  as hub_http_get. RD_E_AGAIN: err says why pieces cannot be had from here: the server gives no ranges, or the file
 *         is not the same any more. What is there is to be thrown away, and one connection may try.
 */
#pragma once
#include "hub/hub_http.h"

/* Who keeps the pieces: piece i has bytes i * piece_bytes and on, as many but for the last. n_bytes >= 1. */
struct hub_pieces {
    void *arg;
    uint64_t n_bytes, piece_bytes;
    /* How many bytes of a piece are there, from its start. */
    uint64_t (*have)(void *arg, uint64_t piece);
    /* The next bytes of a piece: never more than it wants. */
    rd_status (*put)(void *arg, uint64_t piece, const void *data, size_t n, struct rd_error *err);
};

/* if_range: a strong etag that the file must have, or NULL. n_connections: 1 .. HUB_MAX_CONNECTIONS. */
rd_status hub_http_get_pieces(struct hub_http *h, const char *url, const char *if_range, uint32_t n_connections,
                              const struct hub_pieces *pieces, struct rd_error *err);
