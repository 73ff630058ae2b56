/* tests/torture/torture_client.h - a client on loopback that takes whatever a failing server does, and a judge of it.
 *
 * Thread  the caller's, which must be exempt from faults (faults.h).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How a request ended. From WRONG on: none of it may ever be. */
enum ending {
    END_SAME,     /* the answer that it has without a fault */
    END_REFUSED,  /* whole: 5xx, or 429 */
    END_TOLD,     /* a stream that says within that it failed */
    END_CUT,      /* began, and the connection ended before its time */
    END_CLOSED,   /* closed, reset, or not to be had, without a byte */
    END_LEFT,     /* the client went away, as was planned */
    END_WRONG,    /* whole, 2xx, and another answer */
    END_BLAMED,   /* 4xx: the client is told that it was its fault */
    END_HEADLESS, /* bytes that are no response */
    END_HANG,     /* nothing for CLIENT_PATIENCE_MS */
    N_ENDINGS
};
extern const char *const ending_names[N_ENDINGS];

#define CLIENT_PATIENCE_MS 8000
#define CLIENT_REPLY_BYTES (4u << 20)

struct reply {
    char *bytes; /* [CLIENT_REPLY_BYTES], terminated */
    size_t n;
    char *body; /* within bytes; its chunks put together; NULL: no whole head */
    size_t n_body;
    int status;
    bool whole, hang;
    uint32_t ms;
};

bool reply_init(struct reply *r);
void reply_deinit(struct reply *r);

/* Sends, reads to the end of the connection. leave_after: closes when so many bytes came (0: never). waiting(): called
 * once when nothing has come for a while. */
void client_ask(uint16_t port, const char *request, size_t n, size_t leave_after, void (*waiting)(void),
                struct reply *r);

/* A digest of what was answered: of the values of content, text, embedding ... wherever they stand; not of their order, nor of
 * ids and times. */
uint64_t reply_words(const struct reply *r);
bool reply_tells_error(const struct reply *r);
/* The value of the first "id" of the body; "" without one. */
void reply_id(const struct reply *r, char *out, size_t cap);
/* What it answers without a fault. */
struct answer {
    int status;
    bool any;
    uint64_t words;
};
enum ending reply_judge(const struct reply *r, const struct answer *wanted);
