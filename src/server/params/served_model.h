/* server/params/served_model.h - a loaded model, as what reads bodies sees it. */
#pragma once
#include "radish/radish.h"

/* Read-only as long as a request that was given it is answered. */
struct served_model {
    rd_engine *engine; /* NULL: not loaded */
    struct rd_info info;
};

/* All adapters that are loaded: mem_free. NULL: out of memory; engine NULL: none. */
struct rd_adapter *served_adapters(const rd_engine *engine, uint32_t *n);
/* The last part of its path: where it lies is not for every client. */
const char *served_adapter_file(const struct rd_adapter *a);
