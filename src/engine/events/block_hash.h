/* engine/events/block_hash.h - what a block of tokens is called in KV events: vLLM's sha256_cbor, a chain of SHA-256.
 *
 *     hash = SHA-256 of the CBOR (RFC 8949, canonical) of [hash of the block before it, [tokens], null or [extra]]
 *
 * In front of the first block stands the SHA-256 of the CBOR of a text, the seed, which with vLLM is $PYTHONHASHSEED. So who
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

void block_hash_seed(const char *seed, struct block_hash *out);
/* extra: a text that keeps such blocks apart, or NULL. */
void block_hash_next(const struct block_hash *before, const uint32_t *tokens, uint32_t n, const char *extra,
                     struct block_hash *out);
uint64_t block_hash_number(const struct block_hash *h);
