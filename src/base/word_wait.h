/* base/word_wait.h - threads that sleep until a word changes, with no lock in between: one that is stopped anywhere in here keeps
 * nobody from going on.
 *
 *     sleeper:  seen = load(word);  what it waits for is there? go on : word_wait_ns(word, seen, ..), look again
 *     waker:    makes it so;  add 1 to the word;  word_wake_all(word)
 *
 * A wake-up may be lost only with its waker, or come without any: sleepers wait in slices, and look again.
 *
 * Thread  any thread. Linux: futex(2); elsewhere short sleeps, and waking does nothing.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* While the word is `seen`, for timeout_ns at most; false: that time has passed. */
bool word_wait_ns(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);
void word_wake_all(_Atomic uint32_t *word);
