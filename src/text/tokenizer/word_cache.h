/* text/tokenizer/word_cache.h - words that were encoded before, and their ids: shared by all threads without a lock.
 *
 * A table of 64-byte slots, one word each; the newest word of a slot stays. Bounded, filled only by use.
 *
 *     slot: [turn:32 | n_ids:8 | n_key:8 in word 0] [key, 24 bytes, zero behind it] [8 ids]
 *
 * turn is odd while a thread writes; a reader looks at word 0 before and after, and takes what changed for a miss. Data
 * words are stored with release and loaded with acquire: who sees a new one also sees the odd turn before it.
 * Thread  any thread.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define WORD_CACHE_BITS  16
#define WORD_CACHE_BYTES 24u /* longest word */
#define WORD_CACHE_IDS   8u  /* most ids of a word */

struct word_slot {
    _Alignas(64) atomic_uint_least64_t words[8];
};
struct word_cache {
    struct word_slot *slots;
    uint64_t seed;
};

/* false: out of memory. */
bool word_cache_init(struct word_cache *c);
void word_cache_deinit(struct word_cache *c);
void word_cache_put(const struct word_cache *c, const char *s, size_t n, const int32_t *ids, size_t n_ids);

/* n bytes as three numbers, zeros behind. n_readable: bytes that may be read at s. */
static inline void word_cache_key(const char *s, size_t n, size_t n_readable, uint64_t key[3])
{
    key[0] = key[1] = key[2] = 0;
    if (n_readable < WORD_CACHE_BYTES) {
        memcpy(key, s, n);
        return;
    }
    if (n <= 8) {
        memcpy(key, s, 8);
        key[0] &= UINT64_MAX >> (64 - 8 * n);
        return;
    }
    memcpy(key, s, WORD_CACHE_BYTES);
    if (n <= 16)
        key[1] &= UINT64_MAX >> (128 - 8 * n), key[2] = 0;
    else
        key[2] &= UINT64_MAX >> (192 - 8 * n);
}

static inline struct word_slot *word_cache_slot(const struct word_cache *c, const uint64_t key[3], size_t n)
{
    uint64_t h = (key[0] ^ c->seed) * 0x9e3779b97f4a7c15u;

    h = (h ^ h >> 32 ^ key[1] ^ n) * 0xd6e8feb86659fd93u;
    h = (h ^ h >> 32 ^ key[2]) * 0xa0761d6478bd642fu;
    return &c->slots[h >> (64 - WORD_CACHE_BITS)];
}

/* The ids of a word of 1 .. WORD_CACHE_BYTES bytes: written to ids (room for WORD_CACHE_IDS), their number returned; 0
 * when it is not there. */
static inline size_t word_cache_get(const struct word_cache *c, const char *s, size_t n, size_t n_readable,
                                    int32_t *ids)
{
    uint64_t key[3], head, pair;
    struct word_slot *slot;
    size_t n_ids;

    word_cache_key(s, n, n_readable, key);
    slot = word_cache_slot(c, key, n);
    head = atomic_load_explicit(&slot->words[0], memory_order_acquire);
    if ((head & 0xff) != n || head >> 32 & 1) return 0;
    for (unsigned i = 0; i < 3; i++)
        if (atomic_load_explicit(&slot->words[1 + i], memory_order_acquire) != key[i]) return 0;
    n_ids = head >> 8 & 0xff;
    for (size_t i = 0; i < n_ids; i += 2) {
        pair = atomic_load_explicit(&slot->words[4 + i / 2], memory_order_acquire);
        memcpy(ids + i, &pair, sizeof(pair));
    }
    return atomic_load_explicit(&slot->words[0], memory_order_relaxed) == head ? n_ids : 0;
}
