/* base/sip_hash.h - SipHash-2-4 with 128 bits: digests of which no two can be made equal without the key.
 *
 * For names that depend on what a client sends (chains of token digests): an attacker without the key cannot find
 * two texts with one name. About 1 GB/s; the digests of base/hash.h are faster, and are for checks against damage.
 * The values are the same on every machine and may be stored in files.
 *
 * Thread  any thread.
 * Source  Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012; the 128-bit variant of its reference
 *         implementation.
 */
#pragma once
#include "base/hash.h"

struct sip_key {
    uint64_t k0, k1;
};

struct hash128 sip_hash128(struct sip_key key, const void *data, size_t n);
