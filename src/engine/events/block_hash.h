/* engine/events/block_hash.h - what a block of tokens is called in KV events: vLLM's sha256_cbor or sha256, a chain of SHA-256.
 *
 *     hash = SHA-256 of (hash of the block before it, (tokens), None or (extra))
 *
 * as CBOR (RFC 8949, canonical) for sha256_cbor, as Python's pickle writes it with protocol 5 for sha256, which is vLLM's default.
 * In front of the first block stands the SHA-256 of a text written likewise, the seed, which with vLLM is $PYTHONHASHSEED. So who
 * knows the tokens can name the blocks. As a number it is the last 8 bytes, the most significant first.
 *
 * Thread  any thread.  Errors  none.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct block_hash {
    uint8_t bytes[32];
};

enum block_hash_kind { BLOCK_HASH_CBOR, BLOCK_HASH_PICKLE };

/* seed, extra: at most 255 bytes. */
void block_hash_seed(enum block_hash_kind kind, const char *seed, struct block_hash *out);
/* extra: a text that keeps such blocks apart, or NULL. */
void block_hash_next(enum block_hash_kind kind, const struct block_hash *before, const uint32_t *tokens, uint32_t n,
                     const char *extra, struct block_hash *out);
uint64_t block_hash_number(const struct block_hash *h);
