/* store/resp_conn_none.c - resp_conn.h in a radish that was built without libhiredis: there is no shared store. */
#include "base/error.h"
#include "store/resp_conn.h"

bool resp_is_built(void)
{
    return false;
}

rd_status resp_open(const struct store_url *url, size_t max_reply, uint64_t deadline_ns, struct resp_conn **out,
                    struct rd_error *err)
{
    (void)url, (void)max_reply, (void)deadline_ns;
    *out = NULL;
    return error_set(err, RD_E_UNSUPPORTED,
                     "this radish was built without libhiredis and knows no shared store (Debian: apt-get install "
                     "libhiredis-dev, then build again)");
}

void resp_close(struct resp_conn *c)
{
    (void)c;
}

rd_status resp_ask(struct resp_conn *c, uint32_t n, const char *const *parts, const size_t *n_bytes)
{
    (void)c, (void)n, (void)parts, (void)n_bytes;
    return RD_E_UNSUPPORTED;
}

size_t resp_n_unsent(const struct resp_conn *c)
{
    (void)c;
    return 0;
}

rd_status resp_next(struct resp_conn *c, uint64_t deadline_ns, struct resp_reply *out, struct rd_error *err)
{
    (void)c, (void)deadline_ns, (void)out, (void)err;
    return RD_E_UNSUPPORTED;
}

uint32_t resp_parse(const void *s, size_t n, size_t max_reply, void (*see)(void *arg, const struct resp_reply *r),
                    void *arg)
{
    (void)s, (void)n, (void)max_reply, (void)see, (void)arg;
    return 0;
}
