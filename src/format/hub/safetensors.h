/* format/hub/safetensors.h - the table of one safetensors file, checked before any byte of a tensor is touched.
 *
 *     u64 n, little endian;  n bytes of JSON {"NAME": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__"};
 *     the data: tensors one after the other, offsets counted from its start
 *
 * Refused: a header longer than the file or LIMIT_SAFETENSORS_HEADER, JSON that is not of this shape, a type that is not
 * known, a shape whose bytes are not end - begin, offsets beyond the file, overlaps, holes and bytes that belong to no
 * tensor (docs/faults.md F07).
 *
 * Thread  any. Errors  RD_E_FORMAT, RD_E_UNSUPPORTED, RD_E_LIMIT, RD_E_NOMEM; the text begins with the file's name.
 * Source  the safetensors format, github.com/huggingface/safetensors (README, "Format").
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "radish/status.h"

/*      enum     name       bytes of an element */
#define ST_TYPE_LIST(X)                                                                                                \
    X(ST_F32, "F32", 4)                                                                                                \
    X(ST_F16, "F16", 2)                                                                                                \
    X(ST_BF16, "BF16", 2)                                                                                              \
    X(ST_U32, "U32", 4)                                                                                                \
    X(ST_U8, "U8", 1)                                                                                                  \
    X(ST_F64, "F64", 8)                                                                                                \
    X(ST_I64, "I64", 8)                                                                                                \
    X(ST_I32, "I32", 4)                                                                                                \
    X(ST_I16, "I16", 2)                                                                                                \
    X(ST_I8, "I8", 1)                                                                                                  \
    X(ST_U16, "U16", 2)                                                                                                \
    X(ST_U64, "U64", 8)                                                                                                \
    X(ST_BOOL, "BOOL", 1)                                                                                              \
    X(ST_F8_E4M3, "F8_E4M3", 1)                                                                                        \
    X(ST_F8_E5M2, "F8_E5M2", 1)                                                                                        \
    X(ST_F8_E8M0, "F8_E8M0", 1)                                                                                        \
    X(ST_C64, "C64", 8)

#define ST_ENUM(id, name, bytes) id,
enum st_type { ST_TYPE_LIST(ST_ENUM) ST_N_TYPES };
#undef ST_ENUM

#define ST_MAX_DIMS 8u

struct st_tensor {
    const char *name; /* in the table's arena; terminated, without a 0 byte inside */
    size_t n_name;
    enum st_type type;
    uint32_t n_dims;
    uint64_t dims[ST_MAX_DIMS]; /* the contiguous one last; those not used are 1 */
    uint64_t offset, n_bytes;   /* from the start of the file */
    uint32_t shard;             /* as given to safetensors_read() */
};

/* The tensors of any number of files. Zeroed it is empty. */
struct st_table {
    struct arena arena;
    struct st_tensor *tensors;
    size_t n, cap;
};

/* Header bytes of a file that begins with these 8 bytes, they included, or 0 and an error. */
rd_status safetensors_header_bytes(const char *file, const uint8_t first[8], uint64_t n_file, uint64_t *out,
                                   struct rd_error *err);
/* Appends the tensors of one file. header: its first safetensors_header_bytes(). */
rd_status safetensors_read(const char *file, uint32_t shard, const uint8_t *header, uint64_t n_header, uint64_t n_file,
                           struct st_table *table, struct rd_error *err);
/* Sorts by name. RD_E_FORMAT when one is there twice. files: names by shard, for the error. */
rd_status safetensors_sort(struct st_table *table, char *const *files, struct rd_error *err);
/* After sorting; NULL: none. */
const struct st_tensor *safetensors_find(const struct st_table *table, const char *name);
void safetensors_deinit(struct st_table *table);
const char *st_type_name(enum st_type t);
