/* base/word_wait.c - the checked face of os_word_wait_ns. */
#include "base/word_wait.h"
#include "base/checked.h"
#include "base/os_thread.h"

bool word_wait_ns(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    if (atomic_load(word) != seen) return true;
    return os_word_wait_ns(word, seen, u64_min(timeout_ns, UINT64_C(1) << 60)); /* as cond_wait_ns */
}

void word_wake_all(_Atomic uint32_t *word)
{
    os_word_wake_all(word);
}
