/* engine/events/event_socket_none.c - event_socket.h in a radish that was built without libzmq. */
#include "base/error.h"
#include "base/mem.h"
#include "engine/events/event_socket.h"

rd_status event_socket_open(const struct event_socket_options *o, struct event_socket **out, struct rd_error *err)
{
    (void)o;
    *out = NULL;
    return error_set(err, RD_E_UNSUPPORTED,
                     "this radish was built without libzmq and publishes no KV events (Debian: apt-get install "
                     "libzmq3-dev, then build again)");
}

void event_socket_close(struct event_socket *s)
{
    (void)s;
}

void event_socket_publish(struct event_socket *s, char *batch, size_t n)
{
    (void)s, (void)n;
    mem_free(batch);
}

uint32_t event_socket_replay(struct event_socket *s)
{
    (void)s;
    return 0;
}
