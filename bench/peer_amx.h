/* bench/peer_amx.h - included before everything when the peer's C++ is compiled, see bench_peer.py.
 *
 * gcc 12's tile intrinsics do not declare the memory that they read, so the optimiser may drop the stores that prepare
 * it: a program that configures its tiles from a local struct then crashes at ldtilecfg. The same instructions with
 * their memory declared. Other compilers are left alone.
 */
#pragma once
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

struct peer_amx_config {
    char bytes[64];
};

#undef _tile_loadd
#undef _tile_stream_loadd
#define PEER_TILE_LOAD(name, dst, base, stride)                                                                        \
    __asm__ volatile(name " (%0,%1,1), %%tmm" #dst : : "r"((const void *)(base)), "r"((long)(stride)) : "memory")
#define _tile_loadd(dst, base, stride)        PEER_TILE_LOAD("tileloadd", dst, base, stride)
#define _tile_stream_loadd(dst, base, stride) PEER_TILE_LOAD("tileloaddt1", dst, base, stride)
#define _tile_loadconfig(at)                  __asm__ volatile("ldtilecfg %0" : : "m"(*(const struct peer_amx_config *)(at)) : "memory")
#define _tile_storeconfig(at)                 __asm__ volatile("sttilecfg %0" : "=m"(*(struct peer_amx_config *)(at)) : : "memory")
#endif
