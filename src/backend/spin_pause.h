/* backend/spin_pause.h - a step of a thread that spins: the core's other thread may go on meanwhile. Thread  any. */
#pragma once
#include <stdatomic.h>

static inline void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}
