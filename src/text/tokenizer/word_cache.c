/* text/tokenizer/word_cache.c - filling the table of words. */
#include "text/tokenizer/word_cache.h"
#include "base/mem.h"
#include "base/random.h"

#define CACHE_BYTES (sizeof(struct word_slot) << WORD_CACHE_BITS)

bool word_cache_init(struct word_cache *c)
{
    random_os(&c->seed, sizeof(c->seed));
    c->slots = mem_map(CACHE_BYTES);
    return c->slots != NULL;
}

void word_cache_deinit(struct word_cache *c)
{
    if (c->slots) mem_unmap(c->slots, CACHE_BYTES);
    c->slots = NULL;
}

void word_cache_put(const struct word_cache *c, const char *s, size_t n, const int32_t *ids, size_t n_ids)
{
    uint64_t key[3], head, busy, pairs[WORD_CACHE_IDS / 2] = {0};
    struct word_slot *slot;

    if (n > WORD_CACHE_BYTES || n_ids == 0 || n_ids > WORD_CACHE_IDS) return;
    word_cache_key(s, n, n, key);
    slot = word_cache_slot(c, key, n);
    head = atomic_load_explicit(&slot->words[0], memory_order_relaxed);
    busy = (head | (uint64_t)1 << 32) & ~(uint64_t)0xffff;
    if (head >> 32 & 1) return; /* another thread writes here: its word is as good */
    if (!atomic_compare_exchange_strong_explicit(&slot->words[0], &head, busy, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return;
    memcpy(pairs, ids, n_ids * sizeof(*ids));
    for (unsigned i = 0; i < 3; i++) atomic_store_explicit(&slot->words[1 + i], key[i], memory_order_release);
    for (unsigned i = 0; i < WORD_CACHE_IDS / 2; i++)
        atomic_store_explicit(&slot->words[4 + i], pairs[i], memory_order_release);
    atomic_store_explicit(&slot->words[0], busy + ((uint64_t)1 << 32) + (n_ids << 8 | n), memory_order_release);
}
