/* format/adapter/adapter_parts.h - what both kinds of adapter files build. Shared by adapter_*.c. */
#pragma once
#include <stddef.h>
#include "format/adapter/adapter_file.h"

/* The pair's place, made where it is new. NULL: no memory. */
struct adapter_tensor *adapter_add(struct adapter_file *f, uint32_t layer, const char *matrix, const char *name);
/* One half of it: its two dims, the contiguous one last. */
rd_status adapter_set(struct adapter_tensor *t, bool is_b, enum dtype dtype, uint64_t rows, uint64_t row,
                      const uint8_t *data, struct rd_error *err);

rd_status adapter_open_peft(const char *path, struct adapter_file *f, struct rd_error *err);
rd_status adapter_open_gguf(const char *path, struct adapter_file *f, struct rd_error *err);
void adapter_close_gguf(struct adapter_file *f);
