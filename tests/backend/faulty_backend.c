/* tests/backend/faulty_backend.c - the example of a shared object, whose activations fail while RADISH_FAULTY is set. The example is
 * compiled beside it, with its library called plain_library. */
#include <stdlib.h>
#include "radish/backend.h"

extern const struct rd_backend_library plain_library;
extern struct rd_backend_library rd_backend_library;
RD_BACKEND_EXPORT struct rd_backend_library rd_backend_library;
static struct rd_backend_ops ops;

static rd_status glu(rd_backend *be, bool gelu, uint64_t n, struct rd_backend_span gate, struct rd_backend_span up,
                     struct rd_backend_span out)
{
    return getenv("RADISH_FAULTY") ? RD_E_DEVICE : plain_library.ops->glu(be, gelu, n, gate, up, out);
}

__attribute__((constructor)) static void make(void)
{
    ops = *plain_library.ops;
    ops.glu = glu;
    rd_backend_library = plain_library;
    rd_backend_library.ops = &ops;
}
