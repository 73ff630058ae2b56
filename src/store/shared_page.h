/* store/shared_page.h - a page as a value of a store that many machines share: what it is called there, and how it is sealed.
 *
 * Who shares a store shares a secret; from it come the keys of all that follows. A page is known by a chain of digests as in
 * page_store.h, which begins with the name of its namespace: the model's file, the KV type, the build that computed, the
 * client's salt. Other namespaces, tenants and builds have other chains.
 *
 *     name    PREFIX ":" GENERATION ":" HMAC-SHA-256 of digest and sizes, 32 hexadecimal digits of it
 *     value   at 0   16 bytes   seal: SipHash-2-4 (128 bits) of all that follows
 *                16   8         "radpage1"
 *                24   4, 4      page_tokens, 0
 *                32   8         page_bytes
 *                40  16, 16     digest of the page before it (of the first: the namespace's seed), and its own
 *                72             tokens, 4 bytes each; then the page's bytes
 *
 * Numbers are little-endian. The seal is a check against damage and, where the secret is one, against whoever can write to
 * the store: a value without the right seal, or one put under another's name, is never used.
 *
 * Thread  any thread.  Errors  none but false.
 */
#pragma once
#include <stdbool.h>
#include "base/hash.h"
#include "base/limits.h"
#include "base/sip_hash.h"

#define SHARED_PAGE_HEAD   72u
#define SHARED_PREFIX_MOST 64u
#define SHARED_NAME_BYTES  (SHARED_PREFIX_MOST + 64u)

struct shared_keys {
    struct sip_key digests, seals, salts; /* salts: of clients' cache salts, so that every machine knows them alike */
    char names[64];                       /* of the HMAC */
};

/* secret NULL or "": a key that everybody knows. */
void shared_keys_make(const char *secret, struct shared_keys *out);
/* The digest in front of a namespace's first page; name: as page_store_space has it. */
struct hash128 shared_seed(const struct shared_keys *k, const void *name, size_t n);
/* That of the page with these tokens behind the one with digest `before`. */
struct hash128 shared_digest(const struct shared_keys *k, struct hash128 before, const uint32_t *tokens,
                             uint32_t page_tokens);
void shared_page_name(const struct shared_keys *k, const char *prefix, uint64_t generation, struct hash128 digest,
                      uint32_t page_tokens, uint64_t page_bytes, char out[SHARED_NAME_BYTES]);

static inline uint64_t shared_page_value_bytes(uint32_t page_tokens, uint64_t page_bytes)
{
    return SHARED_PAGE_HEAD + 4ull * page_tokens + page_bytes;
}

struct shared_page {
    struct hash128 before, digest;
    const uint32_t *tokens; /* [page_tokens] */
    uint32_t page_tokens;
    uint64_t page_bytes;
};
/* Writes shared_page_value_bytes() bytes. */
void shared_page_seal(const struct shared_keys *k, const struct shared_page *p, const void *page, void *value);
/* true: value is this page, whole and unchanged, and its bytes are in page; else page is as it was. */
bool shared_page_open(const struct shared_keys *k, const struct shared_page *p, const void *value, size_t n,
                      void *page);
