/* engine/events/block_hash.c - as much of CBOR as that takes. */
#include "engine/events/block_hash.h"
#include <string.h>
#include "base/sha.h"

enum { CBOR_NUMBER = 0, CBOR_BYTES = 2, CBOR_TEXT = 3, CBOR_LIST = 4, CBOR_NULL = 0xf6 };

/* The head of an item, in as few bytes as it takes. */
static void put_head(struct sha *s, uint8_t kind, uint32_t n)
{
    uint8_t out[5] = {(uint8_t)(kind << 5)};

    if (n < 24) {
        out[0] |= (uint8_t)n;
        sha_add(s, out, 1);
    } else if (n < 1u << 8) {
        out[0] |= 24;
        out[1] = (uint8_t)n;
        sha_add(s, out, 2);
    } else if (n < 1u << 16) {
        out[0] |= 25;
        out[1] = (uint8_t)(n >> 8);
        out[2] = (uint8_t)n;
        sha_add(s, out, 3);
    } else {
        out[0] |= 26;
        for (int i = 0; i < 4; i++) out[1 + i] = (uint8_t)(n >> (24 - 8 * i));
        sha_add(s, out, 5);
    }
}

static void put_text(struct sha *s, const char *text)
{
    put_head(s, CBOR_TEXT, (uint32_t)strlen(text));
    sha_add(s, text, strlen(text));
}

static void end(struct sha *s, struct block_hash *out)
{
    char hex[SHA_HEX_BYTES];

    sha_end(s, hex);
    for (size_t i = 0; i < sizeof(out->bytes); i++) out->bytes[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

void block_hash_seed(const char *seed, struct block_hash *out)
{
    struct sha s;

    sha256_begin(&s);
    put_text(&s, seed);
    end(&s, out);
}

void block_hash_next(const struct block_hash *before, const uint32_t *tokens, uint32_t n, const char *extra,
                     struct block_hash *out)
{
    const uint8_t none = CBOR_NULL;
    struct sha s;

    sha256_begin(&s);
    put_head(&s, CBOR_LIST, 3);
    put_head(&s, CBOR_BYTES, sizeof(before->bytes));
    sha_add(&s, before->bytes, sizeof(before->bytes));
    put_head(&s, CBOR_LIST, n);
    for (uint32_t i = 0; i < n; i++) put_head(&s, CBOR_NUMBER, tokens[i]);
    if (extra) {
        put_head(&s, CBOR_LIST, 1);
        put_text(&s, extra);
    } else {
        sha_add(&s, &none, 1);
    }
    end(&s, out);
}

uint64_t block_hash_number(const struct block_hash *h)
{
    uint64_t n = 0;

    for (int i = 24; i < 32; i++) n = n << 8 | h->bytes[i];
    return n;
}
