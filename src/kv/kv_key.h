/* kv/kv_key.h - what a sequence is a line of: keys. A key below 2^31 is a token; the others are reserved for rows of an
 * image, interned, which come from a buffer and have no token.
 *
 * The tree, the pages and the disk compare keys and never ask what they are. Who needs a token (the model's table, the
 * sampler, a detokenizer) says so with key_token.
 *
 * Thread  any thread.
 */
#pragma once
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

typedef uint32_t kv_key;

#define KV_NO_KEY  UINT32_MAX  /* of no text: what fills a page behind an end */
#define KV_KEY_ROW 0x80000000u /* set: a row of an image */

static inline bool key_is_token(kv_key key)
{
    return key < KV_KEY_ROW;
}
static inline int32_t key_token(kv_key key)
{
    assert(key_is_token(key));
    return (int32_t)key;
}
static inline kv_key token_key(int32_t token)
{
    assert(token >= 0);
    return (kv_key)token;
}
/* Lines of tokens alone, seen as the other. */
static inline const kv_key *token_keys(const int32_t *tokens)
{
    return (const kv_key *)(const void *)tokens;
}
static inline const int32_t *key_tokens(const kv_key *keys)
{
    return (const int32_t *)(const void *)keys;
}
