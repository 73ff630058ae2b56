/* base/sha.h - SHA-256 and SHA-1 of bytes as they come: what model hubs name files by.
 *
 * For equality with a published digest. SHA-1 is what git names small files by; it tells damage, not malice.
 * Thread  the owner of the struct.
 * Source  FIPS 180-4.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define SHA_BYTES     32u /* of the longest digest */
#define SHA_HEX_BYTES 65u /* of the longest digest in hexadecimal, its end included */

struct sha {
    uint32_t state[8];
    uint64_t n_bytes;  /* so far */
    uint8_t block[64]; /* the first n_bytes % 64 of it wait for the rest */
    void (*mix)(uint32_t state[8], const uint8_t block[64]);
    uint32_t n_words; /* of the state that make the digest */
};

void sha256_begin(struct sha *s);
void sha1_begin(struct sha *s);
void sha_add(struct sha *s, const void *data, size_t n);
/* The digest: 32 bytes of SHA-256, 20 of SHA-1; or in hexadecimal, lower case. s has to begin anew then. */
void sha_end_bytes(struct sha *s, uint8_t *digest);
void sha_end(struct sha *s, char hex[SHA_HEX_BYTES]);
/* HMAC-SHA-256 (RFC 2104) of data under a key of at most 64 bytes, lower case. */
void sha_hmac256(const void *key, size_t n_key, const void *data, size_t n, char hex[SHA_HEX_BYTES]);
