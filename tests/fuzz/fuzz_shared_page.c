/* tests/fuzz/fuzz_shared_page.c - any bytes as a page of a shared store (store/shared_page.h): nothing is opened that was not
 * sealed for that place, and what is not opened is not handed out.
 *
 * Input: a byte (1: the rest is put over a page that was well sealed), then the value.
 */
#include <stdlib.h>
#include <string.h>
#include "store/shared_page.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define P     4u
#define BYTES 64u
#define VALUE (SHARED_PAGE_HEAD + 4 * P + BYTES)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const uint32_t tokens[P] = {1, 2, 3, 4};
    static const uint8_t page[BYTES] = {9, 8, 7};
    uint8_t good[VALUE], value[VALUE], out[BYTES] = {0}, zeros[BYTES] = {0};
    struct shared_page p = {.tokens = tokens, .page_tokens = P, .page_bytes = BYTES};
    struct shared_keys keys;
    bool opened;

    shared_keys_make("secret", &keys);
    p.before = shared_seed(&keys, "space", 5);
    p.digest = shared_digest(&keys, p.before, tokens, P);
    shared_page_seal(&keys, &p, page, good);
    if (n > 1 && data[0] == 1) {
        size_t n_put = n - 1 < VALUE ? n - 1 : VALUE;

        memcpy(value, good, VALUE);
        memcpy(value, data + 1, n_put);
        opened = shared_page_open(&keys, &p, value, VALUE, out);
        if (opened != (memcmp(value, good, VALUE) == 0)) abort();
    } else {
        opened = shared_page_open(&keys, &p, data, n, out);
        if (opened != (n == VALUE && memcmp(data, good, VALUE) == 0)) abort();
    }
    if (memcmp(out, opened ? page : zeros, BYTES) != 0) abort();
    return 0;
}
