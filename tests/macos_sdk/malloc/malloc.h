#pragma once
#include <stddef.h>
typedef struct _malloc_zone_t malloc_zone_t;
size_t malloc_size(const void *);
size_t malloc_zone_pressure_relief(malloc_zone_t *, size_t);
