/* radish/status.h - the one list of what can go wrong.
 *
 * Every fallible function returns rd_status: RD_OK (0) or a negative code. Where a person reads the outcome, the
 * function also fills a struct rd_error, whose text says what was found and what was wanted.
 */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */
/*        name               value  text */
#define RD_STATUS_LIST(X)                                                        \
    X(RD_OK,                  0,   "ok")                                         \
    X(RD_E_NOMEM,            -1,   "out of memory")                              \
    X(RD_E_INVALID,          -2,   "invalid argument")                           \
    X(RD_E_IO,               -3,   "input/output error")                         \
    X(RD_E_FORMAT,           -4,   "malformed file or data")                     \
    X(RD_E_UNSUPPORTED,      -5,   "not supported")                              \
    X(RD_E_NOT_FOUND,        -6,   "not found")                                  \
    X(RD_E_NO_PAGES,         -7,   "no free KV pages")                           \
    X(RD_E_FULL,             -8,   "queue full, try again later")                \
    X(RD_E_CONTEXT,          -9,   "maximum context length exceeded")            \
    X(RD_E_LIMIT,            -10,  "limit exceeded")                             \
    X(RD_E_TEMPLATE,         -11,  "chat template error")                        \
    X(RD_E_CANCELLED,        -12,  "cancelled")                                  \
    X(RD_E_DEVICE,           -13,  "device error")                               \
    X(RD_E_MODEL_OUTPUT,     -14,  "the model produced invalid numbers")         \
    X(RD_E_CLOSED,           -15,  "shutting down")                              \
    X(RD_E_AGAIN,            -16,  "nothing yet, try again")                     \
    X(RD_E_INTERNAL,         -17,  "internal error")
/* clang-format on */

#define RD_STATUS_ENUM(name, value, text) name = value,
typedef enum rd_status { RD_STATUS_LIST(RD_STATUS_ENUM) } rd_status;
#undef RD_STATUS_ENUM

/* A fixed buffer that says what was found and what was wanted, e.g.
 * "layer 3 wq: shape [4096,512], expected [4096,1024]". text is always terminated. */
struct rd_error {
    rd_status status;
    char text[512];
};

#if defined(__GNUC__)
#define RD_API __attribute__((visibility("default")))
#else
#define RD_API
#endif

/* "RD_E_NOMEM" and "out of memory"; unknown codes give "RD_E_?" and "unknown status". Any thread. */
RD_API const char *rd_status_name(rd_status st);
RD_API const char *rd_status_text(rd_status st);

#ifdef __cplusplus
}
#endif
