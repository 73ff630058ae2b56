/* api/api_sizes.c - how much of a result fits into the caller's struct. */
#include "api/api_sizes.h"
#include <string.h>
#include "base/error.h"

#define LONGEST 65536u /* beyond it a size was never set, either */

rd_status api_check_size(size_t said, size_t n, const char *maker, struct rd_error *err)
{
    if (said == n) return RD_OK;
    return error_set(err, RD_E_INVALID, "options of %zu bytes, expected %zu: fill them by %s", said, n, maker);
}

size_t api_size(size_t said, size_t n, size_t n_first)
{
    return said < n_first || said > LONGEST ? n : said;
}

void api_give(void *out, const void *all, size_t n, size_t n_first)
{
    size_t size;

    memcpy(&size, out, sizeof(size));
    size = api_size(size, n, n_first);
    if (size > n) size = n;
    memcpy(out, all, size);
    memcpy(out, &size, sizeof(size));
}
