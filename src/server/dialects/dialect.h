/* server/dialects/dialect.h - the APIs that clients speak, by how each says that something failed.
 *
 *     openai      {"error":{"message","type","param","code"}}
 *     anthropic   {"type":"error","error":{"type","message"}}, and its statuses
 *     ollama      {"error":"text"}
 *
 * Thread  any thread. Errors  the buffer's sticky `failed`.
 */
#pragma once
#include "server/http/errors.h"

struct dialect {
    const char *name;
    int (*status)(const struct api_error *e); /* that its clients expect */
    void (*put_error)(const struct api_error *e, struct buf *out);
};

extern const struct dialect dialect_openai, dialect_anthropic, dialect_ollama;
