/* backend/cuda/tensor_map.h - describing a matrix to the bulk tensor copy engine (TMA). Host only. */
#pragma once
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

/* Whether the driver has the encoder. */
bool tensor_map_ready(void);

/* [rows, cols] elements of `type`, stride_bytes a row (a multiple of 16), copied in boxes of box_rows x box_cols;
 * what is outside reads as 0. p: 16-byte aligned. false: the driver refused. */
bool tensor_map(CUtensorMap *map, const void *p, CUtensorMapDataType type, uint32_t rows, uint32_t cols,
                uint64_t stride_bytes, uint32_t box_rows, uint32_t box_cols, CUtensorMapSwizzle swizzle);
/* The same, where a miss brings other than 256 bytes into the L2. */
bool tensor_map_as(CUtensorMap *map, const void *p, CUtensorMapDataType type, uint32_t rows, uint32_t cols,
                   uint64_t stride_bytes, uint32_t box_rows, uint32_t box_cols, CUtensorMapSwizzle swizzle,
                   CUtensorMapL2promotion promotion);
