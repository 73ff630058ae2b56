/* engine/events/block_hash.c - as much of CBOR and of pickle as that takes. */
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

static void put_block(struct sha *s, const struct block_hash *before, const uint32_t *tokens, uint32_t n,
                      const char *extra)
{
    const uint8_t none = CBOR_NULL;

    put_head(s, CBOR_LIST, 3);
    put_head(s, CBOR_BYTES, sizeof(before->bytes));
    sha_add(s, before->bytes, sizeof(before->bytes));
    put_head(s, CBOR_LIST, n);
    for (uint32_t i = 0; i < n; i++) put_head(s, CBOR_NUMBER, tokens[i]);
    if (extra) {
        put_head(s, CBOR_LIST, 1);
        put_text(s, extra);
    } else {
        sha_add(s, &none, 1);
    }
}

/* ---- pickle: what it writes of a frame goes to `s`, or (NULL) is counted, since the frame's length stands before it ---- */

struct pickle {
    struct sha *s;
    uint64_t n;
};

/* Operations, as Python's Lib/pickletools.py has them. */
enum {
    PICKLE_PROTOCOL = 0x80,
    PICKLE_FRAME = 0x95,
    PICKLE_MEMOIZE = 0x94,
    PICKLE_TEXT = 0x8c,
    PICKLE_BYTES = 'C',
    PICKLE_NONE = 'N',
    PICKLE_MARK = '(',
    PICKLE_TUPLE = 't', /* from the mark on */
    PICKLE_TUPLE_0 = ')',
    PICKLE_TUPLE_1 = 0x85, /* of the last one; two and three follow */
    PICKLE_TUPLE_3 = 0x87,
    PICKLE_INT_1 = 'K', /* bytes, unsigned */
    PICKLE_INT_2 = 'M',
    PICKLE_INT_4 = 'J', /* signed */
    PICKLE_LONG = 0x8a, /* a count, so many bytes */
    PICKLE_STOP = '.'
};

static void put(struct pickle *p, const void *bytes, size_t n)
{
    p->n += n;
    if (p->s) sha_add(p->s, bytes, n);
}

static void put_op(struct pickle *p, int op)
{
    const uint8_t byte = (uint8_t)op;

    put(p, &byte, 1);
}

/* Bytes or a text: both shorter than 256. */
static void put_short(struct pickle *p, int op, const void *bytes, size_t n)
{
    put_op(p, op);
    put_op(p, (int)n);
    put(p, bytes, n);
    put_op(p, PICKLE_MEMOIZE);
}

static void put_int(struct pickle *p, uint32_t n)
{
    const uint8_t le[5] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24), 0};

    if (n < 1u << 8) {
        put_op(p, PICKLE_INT_1);
        put(p, le, 1);
    } else if (n < 1u << 16) {
        put_op(p, PICKLE_INT_2);
        put(p, le, 2);
    } else if (n < 1u << 31) {
        put_op(p, PICKLE_INT_4);
        put(p, le, 4);
    } else {
        put_op(p, PICKLE_LONG);
        put_op(p, 5);
        put(p, le, 5);
    }
}

static void pickle_block(struct pickle *p, const struct block_hash *before, const uint32_t *tokens, uint32_t n,
                         const char *extra)
{
    put_short(p, PICKLE_BYTES, before->bytes, sizeof(before->bytes));
    if (n > 3) put_op(p, PICKLE_MARK);
    for (uint32_t i = 0; i < n; i++) put_int(p, tokens[i]);
    put_op(p, n > 3 ? PICKLE_TUPLE : n == 0 ? PICKLE_TUPLE_0 : PICKLE_TUPLE_1 + (int)n - 1);
    if (n > 0) put_op(p, PICKLE_MEMOIZE);
    if (extra) {
        put_short(p, PICKLE_TEXT, extra, strlen(extra));
        put_op(p, PICKLE_TUPLE_1);
        put_op(p, PICKLE_MEMOIZE);
    } else {
        put_op(p, PICKLE_NONE);
    }
    put_op(p, PICKLE_TUPLE_3);
    put_op(p, PICKLE_MEMOIZE);
    put_op(p, PICKLE_STOP);
}

static void put_frame(struct sha *s, uint64_t n)
{
    const uint8_t head[3] = {PICKLE_PROTOCOL, 5, PICKLE_FRAME};
    uint8_t le[8];

    for (int i = 0; i < 8; i++) le[i] = (uint8_t)(n >> 8 * i);
    sha_add(s, head, sizeof(head));
    sha_add(s, le, sizeof(le));
}

/* ---- both ---- */

void block_hash_seed(enum block_hash_kind kind, const char *seed, struct block_hash *out)
{
    size_t n = strlen(seed);
    struct sha s;

    sha256_begin(&s);
    if (kind == BLOCK_HASH_CBOR) {
        put_text(&s, seed);
    } else {
        put_frame(&s, n + 4);
        put_short(&(struct pickle){&s, 0}, PICKLE_TEXT, seed, n);
        put_op(&(struct pickle){&s, 0}, PICKLE_STOP);
    }
    sha_end_bytes(&s, out->bytes);
}

void block_hash_next(enum block_hash_kind kind, const struct block_hash *before, const uint32_t *tokens, uint32_t n,
                     const char *extra, struct block_hash *out)
{
    struct pickle length = {NULL, 0};
    struct sha s;

    sha256_begin(&s);
    if (kind == BLOCK_HASH_CBOR) {
        put_block(&s, before, tokens, n, extra);
    } else {
        pickle_block(&length, before, tokens, n, extra);
        put_frame(&s, length.n);
        pickle_block(&(struct pickle){&s, 0}, before, tokens, n, extra);
    }
    sha_end_bytes(&s, out->bytes);
}

uint64_t block_hash_number(const struct block_hash *h)
{
    uint64_t n = 0;

    for (int i = 24; i < 32; i++) n = n << 8 | h->bytes[i];
    return n;
}
