/* backend/join_way.h - how the devices of ranks put their columns together (op.join), and which way is taken where nothing is said.
 *
 *     peer   a device writes into the others' memory (NVLink, or PCIe without isolation)
 *     nccl   NCCL's all-gather, a library that is looked for at run time, then a kernel that puts the columns in their places
 *     host   through pinned host memory that all devices have mapped
 *
 * By every way a rank gets the same columns, which are copied and never summed (ranks.h): the bits are those of one rank.
 * `auto` is peer where every two devices reach each other, else host: NCCL without peer access took up to 1.7 times as long
 * (docs/tensor-parallel.md).
 * Thread  any.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "radish/status.h"

enum join_way { JOIN_AUTO, JOIN_PEER, JOIN_NCCL, JOIN_HOST };

/* What is known of the ranks' devices. */
struct join_facts {
    const char *apart;  /* which two do not reach each other, a part of a sentence; "": all do */
    const char *shared; /* which two ranks have the same device, likewise; "": none */
    const char *nccl;   /* why there is no NCCL; "": there is; asked for with JOIN_NCCL alone */
};

/* "auto" or NULL, "peer", "nccl", "host"; false: no such. */
bool join_way_parse(const char *name, enum join_way *out);
const char *join_way_name(enum join_way way);
/* *out is none of JOIN_AUTO; why [cap]: a sentence for the log. RD_E_UNSUPPORTED: the wanted one cannot be, and what to do. */
rd_status join_way_choose(enum join_way wanted, const struct join_facts *f, enum join_way *out, char *why, size_t cap,
                          struct rd_error *err);
