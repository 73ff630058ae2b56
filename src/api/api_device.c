/* api/api_device.c - which device computes: --device and its default. */
#include <stdio.h>
#include <string.h>
#include "api/api_state.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"

static rd_status open_cpu(rd_engine *e, const struct rd_options *o, struct rd_error *err)
{
    const struct backend_options bo = {o->n_threads, o->isa, 0, false};

    e->ops = &backend_cpu_ops;
    return e->ops->create(&bo, &e->backend, err);
}

#ifdef RADISH_CUDA
static rd_status open_cuda(rd_engine *e, const struct rd_options *o, uint32_t index, struct rd_error *err)
{
    const struct backend_options bo = {o->n_threads, NULL, index, o->no_graphs};
    rd_status st = backend_cuda_ops.create(&bo, &e->backend, err);

    if (st == RD_OK) e->ops = &backend_cuda_ops;
    return st;
}
#else
static rd_status open_cuda(rd_engine *e, const struct rd_options *o, uint32_t index, struct rd_error *err)
{
    (void)e;
    (void)o;
    (void)index;
    return error_set(err, RD_E_UNSUPPORTED, "device cuda: this radish was built without CUDA; build one with "
                     "`cmake --preset cuda && cmake --build --preset cuda` (needs nvcc 13)");
}
#endif

bool api_has_cuda(void)
{
#ifdef RADISH_CUDA
    return true;
#else
    return false;
#endif
}

/* "cuda" or "cuda:N". */
static bool parse_cuda(const char *device, uint32_t *index)
{
    uint64_t n = 0;

    *index = 0;
    if (strncmp(device, "cuda", 4) != 0) return false;
    if (device[4] == 0) return true;
    if (device[4] != ':' || !parse_u64(device + 5, strlen(device + 5), &n) || n > 1023) return false;
    *index = (uint32_t)n;
    return true;
}

rd_status api_device_open(rd_engine *e, const struct rd_options *o, struct rd_error *err)
{
    struct rd_error why = {RD_OK, ""};
    char quoted[64];
    uint32_t index;

    if (o->device && strcmp(o->device, "cpu") == 0) return open_cpu(e, o, err);
    if (o->device && strcmp(o->device, "auto") != 0) {
        if (parse_cuda(o->device, &index)) return open_cuda(e, o, index, err);
        return error_set(err, RD_E_INVALID, "device \"%s\": expected auto, cpu, cuda or cuda:N",
                         error_quote(quoted, sizeof(quoted), o->device, strlen(o->device)));
    }
    if (open_cuda(e, o, 0, &why) == RD_OK) return RD_OK;
#ifdef RADISH_CUDA
    log_info("%s; the CPU computes", why.text);
#endif
    return open_cpu(e, o, err);
}
