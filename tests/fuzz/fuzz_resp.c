/* tests/fuzz/fuzz_resp.c - any bytes as the answers of a shared store (store/resp_conn.h): whole and cut anywhere, the same
 * answers come, none longer than allowed; and any text as its address (store/store_url.h).
 *
 * Input: the bytes.
 */
#include <stdlib.h>
#include <string.h>
#include "store/resp_conn.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define MOST 4096u

static void expect(bool fact)
{
    if (!fact) abort();
}

static void see(void *arg, const struct resp_reply *r)
{
    uint64_t *sum = arg;

    expect(r->kind <= RESP_ERROR && r->n <= MOST && r->bytes && r->bytes[r->n] == 0);
    for (size_t i = 0; i < r->n; i++) *sum = *sum * 31 + (uint8_t)r->bytes[i];
    *sum = *sum * 31 + (uint64_t)r->kind + (uint64_t)r->number;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint64_t once = 0, again = 0;
    char *text = malloc(n + 1), shown[STORE_URL_SHOWN];
    struct store_url url;
    uint32_t n_once;

    if (!text) return 0;
    n_once = resp_parse(data, n, MOST, see, &once);
    expect(resp_parse(data, n, MOST, see, &again) == n_once && once == again);
    memcpy(text, data, n);
    text[n] = 0;
    if (store_url_parse(text, &url, NULL) == RD_OK) {
        store_url_show(&url, shown);
        expect(strlen(shown) > 0 && (*url.host != 0) == (*url.path == 0));
    }
    free(text);
    return 0;
}
