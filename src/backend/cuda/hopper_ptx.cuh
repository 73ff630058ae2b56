/* backend/cuda/hopper_ptx.cuh - the PTX instructions of sm_90 that the kernels here use, one small function each.
 *
 * Barriers in shared memory (mbarrier), the bulk tensor copy engine (TMA), clusters, and programmatic dependent launch.
 * What each does: PTX ISA 8.x, sections 9.7.9 (data movement), 9.7.13 (synchronisation), 9.7.14 (wgmma).
 * Shared memory addresses are 32-bit, as cvta gives them (smem_u32).
 */
#pragma once
#include <cuda.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t smem_u32(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ float4 shared_load4(uint32_t at)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
static __device__ __forceinline__ float2 shared_load2(uint32_t at)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}
static __device__ __forceinline__ void shared_store(uint32_t at, float v)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
static __device__ __forceinline__ void shared_store4(uint32_t at, float4 v)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

/* ---- mbarrier: a phase ends when `count` threads arrived and all expected bytes have landed ---- */
static __device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
static __device__ __forceinline__ void mbar_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void mbar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* Returns once the phase of parity `parity` has ended. */
static __device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* ---- TMA ---- */
static __device__ __forceinline__ uint64_t policy_evict_first(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
static __device__ __forceinline__ uint64_t policy_evict_normal(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
static __device__ __forceinline__ uint64_t policy_evict_last(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
/* The box at (x, y) of a 2-d tensor -> shared memory; its bytes count on `bar`. What lies outside reads as 0. */
static __device__ __forceinline__ void tma_load_2d(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y,
                                                   uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"((uint64_t)map), "r"(bar), "r"(x), "r"(y), "l"(policy)
                 : "memory");
}
/* The same to both blocks of a cluster of two, at the same address; each one's bytes count on its own barrier there. */
static __device__ __forceinline__ void tma_load_2d_pair(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y,
                                                        uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(to),
                 "l"((uint64_t)map), "r"(bar), "r"(x), "r"(y), "h"((uint16_t)3), "l"(policy)
                 : "memory");
}
/* n_bytes in a row, multiples of 16 all; they count on `bar`. */
static __device__ __forceinline__ void bulk_load(uint32_t to, const void *from, uint32_t n_bytes, uint32_t bar,
                                                 uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3],"
        " %4;" ::"r"(to),
        "l"(from), "r"(n_bytes), "r"(bar), "l"(policy)
        : "memory");
}
static __device__ __forceinline__ void tma_prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"((uint64_t)map) : "memory");
}

/* Shared memory -> the box at (x, y); what lies outside is left out. add: f32, the box += . In bulk groups. */
static __device__ __forceinline__ void tma_store_2d(const CUtensorMap *map, int x, int y, uint32_t from, bool add)
{
    if (add)
        asm volatile(
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                (uint64_t)map),
            "r"(x), "r"(y), "r"(from)
            : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"((uint64_t)map),
            "r"(x), "r"(y), "r"(from)
            : "memory");
}
/* n_bytes in a row, multiples of 16 all; in bulk groups. */
static __device__ __forceinline__ void bulk_store(void *to, uint32_t from, uint32_t n_bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(n_bytes)
                 : "memory");
}
static __device__ __forceinline__ void bulk_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* At most N of this thread's groups still read shared memory. */
template <int N> static __device__ __forceinline__ void bulk_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
/* All of this thread's groups are written. */
static __device__ __forceinline__ void bulk_wait_all(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* ---- registers of a warpgroup: given back, or more of them ---- */
template <int N> static __device__ __forceinline__ void registers_less(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> static __device__ __forceinline__ void registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- clusters ---- */
static __device__ __forceinline__ uint32_t cluster_rank(void)
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/* All threads of all blocks of the cluster; shared memory written before is seen after. */
static __device__ __forceinline__ void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* The two halves of cluster_sync. */
static __device__ __forceinline__ void cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
/* The first of them where no shared memory is to be seen after, but barriers that mbar_init_fence has told of. */
static __device__ __forceinline__ void cluster_arrive_relaxed(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
static __device__ __forceinline__ void cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* Address `at` of this block, in block `rank` of the cluster. */
static __device__ __forceinline__ uint32_t cluster_address(uint32_t at, uint32_t rank)
{
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}
/* Arrives on a barrier of any block: an address as cluster_address gives it. */
static __device__ __forceinline__ void mbar_arrive_there(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* 16 bytes at address `at` (of this block) as block `rank` of the cluster has them. */
static __device__ __forceinline__ float4 cluster_load4(uint32_t at, uint32_t rank)
{
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(cluster_address(at, rank))
                 : "memory");
    return v;
}
/* v to address `to`; its bytes count on barrier `bar` there: addresses as cluster_address gives them, of one block, that
 * must have begun. */
static __device__ __forceinline__ void cluster_store(uint32_t to, uint32_t bar, float v)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(v), "r"(bar)
                 : "memory");
}
static __device__ __forceinline__ void cluster_store2(uint32_t to, uint32_t bar, float x, float y)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(x),
                 "f"(y), "r"(bar)
                 : "memory");
}
/* n_bytes of this block's shared memory, at `from`, to address `to` of another; they count on barrier `bar` there: addresses
 * as cluster_address gives them, of a block that has begun. Multiples of 16 all. */
static __device__ __forceinline__ void bulk_to_block(uint32_t to, uint32_t from, uint32_t n_bytes, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "r"(from), "r"(n_bytes), "r"(bar)
        : "memory");
}
/* mbar_wait where blocks of the cluster stored. */
static __device__ __forceinline__ void cluster_mbar_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* ---- programmatic dependent launch: harmless in a kernel that was launched without it ---- */
/* Everything that the kernel before has written is visible after it. */
static __device__ __forceinline__ void dependency_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* The kernel after may be started once all blocks have come here: it shares the machine until dependency_wait. */
static __device__ __forceinline__ void dependents_launch(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- wgmma: ordering; the products are in wgmma_bf16.cuh ---- */
static __device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* A tile of rows of 64 two-byte numbers (128 bytes), 128-byte swizzled, 1,024-byte aligned; both operands K-major. */
static __device__ __forceinline__ uint64_t wgmma_desc(uint32_t at)
{
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
/* The same tile as an operand whose rows are k: 64 columns (128 bytes) of groups of 8 rows, 1,024 bytes each. */
static __device__ __forceinline__ uint64_t wgmma_desc_t(uint32_t at)
{
    const uint64_t stride = 1024 >> 4;
    return (uint64_t)((at & 0x3FFFF) >> 4) | stride << 16 | stride << 32 | (uint64_t)1 << 62;
}
/* What this thread wrote to shared memory may be read by the tensor cores and the copy engine after a barrier. */
static __device__ __forceinline__ void shared_written_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* A barrier of the first n threads of a block (n a multiple of 32), by number 1 .. 15. */
static __device__ __forceinline__ void named_barrier(uint32_t id, uint32_t n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}
