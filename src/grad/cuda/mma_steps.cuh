/* grad/cuda/mma_steps.cuh - mma.sync m16n8k16 with f32 sums, and ldmatrix, as the kernels of gradients use them.
 *
 * Of a warp's fragment lane l has g = l / 4, c = l % 4: a[0] row g, a[1] row g + 8 at k 2c, 2c + 1; a[2], a[3] the same at k + 8;
 * b[0] column g at k 2c, 2c + 1, b[1] at k + 8; d[0], d[1] row g, columns 2c, 2c + 1; d[2], d[3] row g + 8.
 * Source: PTX ISA, 9.7.14 (mma), ldmatrix. */
#pragma once
#include <stdint.h>

static __device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 16 bytes to shared memory, zeros where they are not there; there after copies_wait, for the thread that asked. */
static __device__ __forceinline__ void copy16_async(void *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void copies_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8 in shared memory. */
static __device__ __forceinline__ void matrices(uint32_t (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p))
                 : "memory");
}
static __device__ __forceinline__ void matrices_turned(uint32_t (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p))
                 : "memory");
}

/* a of rows m0 .., columns k0 .. of tile [][pitch], m its rows. */
static __device__ __forceinline__ void load_a(uint32_t (&a)[4], const uint16_t *tile, uint32_t pitch, uint32_t m0,
                                              uint32_t k0)
{
    const uint32_t lane = threadIdx.x % 32;

    matrices(a, tile + (m0 + lane % 16) * pitch + k0 + lane / 16 * 8);
}
/* The same of a tile whose rows are k, columns m. */
static __device__ __forceinline__ void load_a_turned(uint32_t (&a)[4], const uint16_t *tile, uint32_t pitch,
                                                     uint32_t m0, uint32_t k0)
{
    const uint32_t lane = threadIdx.x % 32;

    matrices_turned(a, tile + (k0 + lane % 8 + lane / 16 * 8) * pitch + m0 + lane / 8 % 2 * 8);
}
/* b of columns n0 .. n0 + 15 (b[0], b[1] the first eight) at k0 .., of a tile whose rows are n, columns k. */
static __device__ __forceinline__ void load_b(uint32_t (&b)[4], const uint16_t *tile, uint32_t pitch, uint32_t n0,
                                              uint32_t k0)
{
    const uint32_t lane = threadIdx.x % 32;

    matrices(b, tile + (n0 + lane % 8 + lane / 16 * 8) * pitch + k0 + lane / 8 % 2 * 8);
}
/* The same of a tile whose rows are k, columns n. */
static __device__ __forceinline__ void load_b_turned(uint32_t (&b)[4], const uint16_t *tile, uint32_t pitch,
                                                     uint32_t n0, uint32_t k0)
{
    const uint32_t lane = threadIdx.x % 32;

    matrices_turned(b, tile + (k0 + lane % 16) * pitch + n0 + lane / 16 * 8);
}
