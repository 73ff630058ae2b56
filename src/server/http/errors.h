/* server/http/errors.h - what a client is told when something fails, before it is written in the words of its API
 * (http_service.put_error).
 * Messages are ours or name what the client sent; never addresses, paths of this machine or other prompts (F52).
 * Thread  any thread.
 */
#pragma once
#include "base/buf.h"
#include "radish/status.h"

struct api_error {
    int http;                /* 400 .. 503 */
    const char *type, *code; /* code NULL: null, or the HTTP status for 503 (llama-server's form) */
    char param[64];          /* "": null */
    char message[640];
    bool is_broken; /* of 503: something of the server is, so that trying again later may not help: not overload */
};

/* Fills *e; type and code by the HTTP status unless set afterwards. Returns -1, for `return api_error_set(...)`. */
int api_error_set(struct api_error *e, int http, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* From the library: RD_E_INVALID 400, RD_E_CONTEXT 400 context_length_exceeded, RD_E_FULL 429, RD_E_DEVICE and
 * RD_E_CLOSED 503 ... */
void api_error_from_status(struct api_error *e, rd_status st, const char *message);
/* "Not Found" */
const char *http_status_text(int status);
