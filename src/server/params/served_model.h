/* server/params/served_model.h - a loaded model, as what reads bodies sees it. */
#pragma once
#include "radish/radish.h"

/* Read-only as long as a request that was given it is answered. */
struct served_model {
    rd_engine *engine; /* NULL: not loaded */
    struct rd_info info;
};
