/* backend/cuda/rows/join_waits.cuh - what the ways of joining ranks share: flags that ranks raise for each other, waiting for one
 * (but not in vain), where a value goes, and what is aligned. */
#pragma once
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/rows/join_ranks.h"

#define SPINS_A_LOOK 1024u

static __device__ __forceinline__ void release_flag(uint32_t *flag, uint32_t round)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(round) : "memory");
}

static __device__ __forceinline__ uint32_t acquire_flag(const uint32_t *flag)
{
    uint32_t v;

    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
    return v;
}

static __device__ __forceinline__ uint64_t now_ns(void)
{
    uint64_t ns;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

/* Whether rank p, for which this thread has waited since *began (0: it begins), is waited for in vain. */
static __device__ bool is_vain(const struct cuda_join_args &a, uint32_t p, uint64_t *began)
{
    volatile uint32_t *words = a.words;

    if (words[0]) return true;
    if (!*began) *began = now_ns();
    if (now_ns() - *began < a.patience_ns) return false;
    if (!words[1]) words[1] = p + 1;
    words[0] = 1;
    __threadfence_system();
    return true;
}

/* Until rank p's flag is at round, or it is in vain. */
static __device__ void wait_for(const struct cuda_join_args &a, uint32_t p, uint32_t round)
{
    const uint32_t *flag = a.joints[a.rank]->flags + p * CUDA_JOIN_BLOCKS + blockIdx.x;
    uint64_t began = 0;

    for (uint32_t spins = 1; (int32_t)(acquire_flag(flag) - round) < 0; spins++)
        if (spins % SPINS_A_LOOK == 0 && is_vain(a, p, &began)) return;
}

/* After all threads' stores, and those of kernels before: the block's next round begins for the others, and has for this rank.
 * A release is of what a barrier, or a kernel's end, has put before it, too (PTX ISA, causality order): a fence besides would wait
 * for the same once more, 5 us in each layer of two ranks. */
static __device__ __forceinline__ void meet(const struct cuda_join_args &a, uint32_t round)
{
    const uint32_t p = threadIdx.x;

    if (p < a.n_ranks && p != a.rank) {
        release_flag(a.joints[p]->flags + a.rank * CUDA_JOIN_BLOCKS + blockIdx.x, round);
        wait_for(a, p, round);
    }
    if (p == 0) a.counts->rounds[blockIdx.x] = round;
}

/* out = v, or x += v; `at` in items of v. */
static __device__ __forceinline__ void deliver(const struct cuda_join_args &a, uint64_t at, uint4 v)
{
    float4 *x = (float4 *)a.add_to + at;

    if (!a.add_to) {
        ((uint4 *)a.outs[a.rank])[at] = v;
        return;
    }
    const float4 old = *x;

    *x = make_float4(__fadd_rn(old.x, __uint_as_float(v.x)), __fadd_rn(old.y, __uint_as_float(v.y)),
                     __fadd_rn(old.z, __uint_as_float(v.z)), __fadd_rn(old.w, __uint_as_float(v.w)));
}

static __device__ __forceinline__ void deliver(const struct cuda_join_args &a, uint64_t at, uint32_t v)
{
    if (a.add_to)
        a.add_to[at] = __fadd_rn(a.add_to[at], __uint_as_float(v));
    else
        ((uint32_t *)a.outs[a.rank])[at] = v;
}

static __device__ __forceinline__ void deliver(const struct cuda_join_args &a, uint64_t at, uint16_t v)
{
    ((uint16_t *)a.outs[a.rank])[at] = v;
}

/* Own and outs in items of n_bytes. */
static inline bool is_whole(const struct cuda_join_args *a, uint32_t n_bytes)
{
    const uint32_t per = n_bytes / a->value_bytes;
    uintptr_t odd = (uintptr_t)a->own % n_bytes | a->own_stride % per | a->width % per | a->first % per | a->n % per;

    for (uint32_t p = 0; p < a->n_ranks; p++) odd |= (uintptr_t)a->outs[p] % n_bytes;
    return odd == 0;
}

/* All ranks' columns in items of 16. */
static inline bool ends_are_whole(const struct cuda_join_args *a)
{
    uint32_t odd = 0;

    for (uint32_t p = 0; p < a->n_ranks; p++) odd |= a->ends[p] % (16 / a->value_bytes);
    return odd == 0;
}

/* Of what is the same for all ranks. */
static inline bool fits_letters(const struct cuda_join_args *a)
{
    return ends_are_whole(a) && (uint64_t)a->n_rows * a->most * a->value_bytes <= a->letter_bytes;
}

/* The others' columns, too, in 16 bytes. */
static inline bool is_whole_for_all(const struct cuda_join_args *a)
{
    return ends_are_whole(a) && is_whole(a, 16) && (uintptr_t)a->add_to % 16 == 0;
}

/* ---- of the other files ---- */

int cuda_join_letters(const struct cuda_launch *l, const struct cuda_join_args *a);
int cuda_join_letters_load(void);
int cuda_join_staged_load(void);
int cuda_join_gathered_load(void);
