/* base/seq_words.h - a struct that one thread writes and any thread reads whole, without a lock: a sequence lock.
 *
 * The version is odd while the writer writes. A reader copies the words, and takes the copy where the version was even and
 * is the same behind it. Sequentially consistent: of use for what is written now and then, not for each token.
 *
 * Thread  seq_words_write: one. seq_words_read: any.
 * Source  Lameter, "Effective synchronization on Linux/NUMA systems", 2005; Boehm, "Can seqlocks get along with programming
 *         language memory models?", MSPC 2012.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* from, to: n_words * 8 bytes of the caller's struct. */
static inline void seq_words_write(atomic_uint *version, _Atomic uint64_t *words, const void *from, size_t n_words)
{
    unsigned v = atomic_load_explicit(version, memory_order_relaxed);

    atomic_store(version, v + 1);
    for (size_t i = 0; i < n_words; i++) {
        uint64_t word;

        memcpy(&word, (const char *)from + i * sizeof(word), sizeof(word));
        atomic_store(&words[i], word);
    }
    atomic_store(version, v + 2);
}

/* false: it was written meanwhile; to holds nothing of use. */
static inline bool seq_words_read(const atomic_uint *version, const _Atomic uint64_t *words, void *to, size_t n_words)
{
    unsigned before = atomic_load(version);

    for (size_t i = 0; i < n_words; i++) {
        uint64_t word = atomic_load(&words[i]);

        memcpy((char *)to + i * sizeof(word), &word, sizeof(word));
    }
    return !(before & 1) && atomic_load(version) == before;
}
