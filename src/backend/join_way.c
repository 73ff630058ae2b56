/* backend/join_way.c - see the header. */
#include "backend/join_way.h"
#include <stdio.h>
#include <string.h>
#include "base/error.h"

#define GET_NCCL "install it (libnccl2 of NVIDIA's packages), or name its file in $RADISH_NCCL"

static const char *const names[] = {"auto", "peer", "nccl", "host"};

bool join_way_parse(const char *name, enum join_way *out)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name ? name : "auto", names[i]) == 0) {
            *out = (enum join_way)i;
            return true;
        }
    return false;
}

const char *join_way_name(enum join_way way)
{
    return names[way];
}

static rd_status refuse(enum join_way wanted, const struct join_facts *f, struct rd_error *err)
{
    if (wanted == JOIN_PEER && *f->apart)
        return error_set(err, RD_E_UNSUPPORTED, "--reduce peer: %s; --reduce nccl or host goes through host memory",
                         f->apart);
    if (wanted == JOIN_NCCL && *f->shared)
        return error_set(err, RD_E_UNSUPPORTED, "--reduce nccl: NCCL wants a GPU for each rank, and %s", f->shared);
    if (wanted == JOIN_NCCL && *f->nccl)
        return error_set(err, RD_E_UNSUPPORTED, "--reduce nccl: %s; " GET_NCCL ", or take --reduce peer or host",
                         f->nccl);
    return RD_OK;
}

rd_status join_way_choose(enum join_way wanted, const struct join_facts *f, enum join_way *out, char *why, size_t cap,
                          struct rd_error *err)
{
    rd_status st = refuse(wanted, f, err);

    if (st != RD_OK) return st;
    *out = wanted;
    snprintf(why, cap, "as --reduce says");
    if (wanted != JOIN_AUTO) return RD_OK;
    *out = *f->apart ? JOIN_HOST : JOIN_PEER;
    if (*out == JOIN_PEER)
        snprintf(why, cap, "every GPU writes into the memory of the others");
    else
        snprintf(why, cap, "%s; slower than peer access", f->apart);
    return RD_OK;
}
