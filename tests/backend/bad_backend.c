/* tests/backend/bad_backend.c - shared objects that must be refused: BAD_what says what is wrong with this one. */
#include <stdio.h>
#include <string.h>
#include "radish/backend.h"

#ifndef BAD_nothing
static rd_status create(const struct rd_backend_create *o, rd_backend **out, struct rd_error *err)
{
    (void)o;
    (void)out;
    snprintf(err->text, sizeof(err->text), "the device is out of order");
    return RD_E_DEVICE;
}

static void never(void)
{
    __builtin_trap();
}

static bool probe(char *why, size_t n)
{
#ifdef BAD_probe
    snprintf(why, n, "there is no such card");
    return false;
#else
    (void)why;
    (void)n;
    return true;
#endif
}

#define NEVER (void *)(uintptr_t)&never
static const struct rd_backend_ops ops = {.size = sizeof(ops),
                                          .create = create,
                                          .destroy = NEVER,
                                          .describe = NEVER,
                                          .alloc = NEVER,
                                          .free = NEVER,
                                          .read = NEVER,
                                          .write = NEVER,
                                          .sync = NEVER,
                                          .weight_load = NEVER,
                                          .weight_free = NEVER,
                                          .pages_create = NEVER,
                                          .pages_destroy = NEVER,
                                          .pages_copy_rows = NEVER,
                                          .pages_read = NEVER,
                                          .pages_write = NEVER,
                                          .embed = NEVER,
                                          .residual_norm = NEVER,
                                          .linear = NEVER,
                                          .qkv_rope_write = NEVER,
#ifndef BAD_op
                                          .attention = NEVER,
#endif
                                          .glu = NEVER,
                                          .gather = NEVER};

extern const struct rd_backend_library rd_backend_library;
RD_BACKEND_EXPORT const struct rd_backend_library rd_backend_library = {
#ifdef BAD_magic
    .magic = 1,
#else
    .magic = RD_BACKEND_MAGIC,
#endif
#ifdef BAD_abi
    .abi = 77,
#else
    .abi = RD_BACKEND_ABI,
#endif
#ifdef BAD_short
    .size = 16,
#else
    .size = sizeof(rd_backend_library),
#endif
#ifdef BAD_name
    .name = "Bad Name",
#else
    .name = "bad",
#endif
    .title = "bad",
    .exact = true,
#ifndef BAD_types
    .weight_types = RD_TYPE_BIT(RD_TYPE_F32),
#endif
#ifdef BAD_kv
    .kv_types = RD_TYPE_BIT(RD_TYPE_Q8_0),
#else
    .kv_types = RD_TYPE_BIT(RD_TYPE_F32),
#endif
    .probe = probe,
    .ops = &ops};
#else
extern const int nothing_of_this_kind;
const int nothing_of_this_kind = 1;
#endif
