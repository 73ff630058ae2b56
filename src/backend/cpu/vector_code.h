/* backend/cpu/vector_code.h - how kernels that are compiled once an instruction set ask for their code. */
#pragma once

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Before a loop of n, a constant: arrays of vectors that it goes through must become registers. */
#define UNROLL_TEXT(x) _Pragma(#x)
#ifdef __clang__
#define UNROLL(n) UNROLL_TEXT(clang loop unroll(full))
#else
#define UNROLL(n) UNROLL_TEXT(GCC unroll n)
#endif
