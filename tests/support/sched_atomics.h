/* support/sched_atomics.h - included before all else by what sched.h schedules (-include): another thread may run before
 * every atomic operation. All are sequentially consistent here. */
#pragma once
#include <stdatomic.h>

void sched_point(void);

#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_exchange
#undef atomic_exchange_explicit
#undef atomic_fetch_add
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub
#undef atomic_fetch_sub_explicit
#undef atomic_compare_exchange_strong
#undef atomic_compare_exchange_strong_explicit
#undef atomic_compare_exchange_weak
#undef atomic_compare_exchange_weak_explicit

#ifdef __clang__
#define SCHED_LOAD(p)        __c11_atomic_load(p, __ATOMIC_SEQ_CST)
#define SCHED_STORE(p, v)    __c11_atomic_store(p, v, __ATOMIC_SEQ_CST)
#define SCHED_EXCHANGE(p, v) __c11_atomic_exchange(p, v, __ATOMIC_SEQ_CST)
#define SCHED_ADD(p, v)      __c11_atomic_fetch_add(p, v, __ATOMIC_SEQ_CST)
#define SCHED_SUB(p, v)      __c11_atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST)
#define SCHED_CAS(p, e, v)   __c11_atomic_compare_exchange_strong(p, e, v, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
#else
#define SCHED_LOAD(p)        __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define SCHED_STORE(p, v)    __atomic_store_n(p, v, __ATOMIC_SEQ_CST)
#define SCHED_EXCHANGE(p, v) __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST)
#define SCHED_ADD(p, v)      __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST)
#define SCHED_SUB(p, v)      __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST)
#define SCHED_CAS(p, e, v)   __atomic_compare_exchange_n(p, e, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
#endif

#define atomic_load(p)                                         (sched_point(), SCHED_LOAD(p))
#define atomic_load_explicit(p, o)                             (sched_point(), SCHED_LOAD(p))
#define atomic_store(p, v)                                     (sched_point(), SCHED_STORE(p, v))
#define atomic_store_explicit(p, v, o)                         (sched_point(), SCHED_STORE(p, v))
#define atomic_exchange(p, v)                                  (sched_point(), SCHED_EXCHANGE(p, v))
#define atomic_exchange_explicit(p, v, o)                      (sched_point(), SCHED_EXCHANGE(p, v))
#define atomic_fetch_add(p, v)                                 (sched_point(), SCHED_ADD(p, v))
#define atomic_fetch_add_explicit(p, v, o)                     (sched_point(), SCHED_ADD(p, v))
#define atomic_fetch_sub(p, v)                                 (sched_point(), SCHED_SUB(p, v))
#define atomic_fetch_sub_explicit(p, v, o)                     (sched_point(), SCHED_SUB(p, v))
#define atomic_compare_exchange_strong(p, e, v)                (sched_point(), SCHED_CAS(p, e, v))
#define atomic_compare_exchange_strong_explicit(p, e, v, a, b) (sched_point(), SCHED_CAS(p, e, v))
#define atomic_compare_exchange_weak(p, e, v)                  (sched_point(), SCHED_CAS(p, e, v))
#define atomic_compare_exchange_weak_explicit(p, e, v, a, b)   (sched_point(), SCHED_CAS(p, e, v))
