/* base/philox.h - Philox4x32-10 (Salmon et al. 2011, section 3.3): four random words of a counter and a key.
 *
 * For C and for CUDA alike, the same words. Thread  any.
 */
#pragma once
#include <stdint.h>

#ifdef __CUDACC__
#define DEVICE_INLINE static __device__ __forceinline__
#else
#define DEVICE_INLINE static inline
#endif

struct philox_words {
    uint32_t w[4];
};

DEVICE_INLINE struct philox_words philox_4x32(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key)
{
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);

#ifdef __CUDACC__
#pragma unroll
#endif
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ key0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ key1;
        c3 = (uint32_t)p0;
        key0 += 0x9E3779B9u; /* Weyl sequence: golden ratio, sqrt(3) - 1 */
        key1 += 0xBB67AE85u;
    }

    struct philox_words words = {{c0, c1, c2, c3}};

    return words;
}
