/* server/params/served_model.c - see the header. */
#include "server/params/served_model.h"
#include <string.h>
#include "base/mem.h"

struct rd_adapter *served_adapters(const rd_engine *engine, uint32_t *n)
{
    const uint32_t cap = engine ? rd_adapters(engine, NULL, 0) : 0;
    struct rd_adapter *list = mem_zalloc((size_t)cap + 1, sizeof(*list));

    *n = list && cap ? rd_adapters(engine, list, cap) : 0;
    if (*n > cap) *n = cap;
    return list;
}

const char *served_adapter_file(const struct rd_adapter *a)
{
    const char *slash = strrchr(a->path, '/');

    return slash ? slash + 1 : a->path;
}
