/* store/shared_page.c - see shared_page.h. */
#include "store/shared_page.h"
#include <stdio.h>
#include <string.h>
#include "base/sha.h"

#define MAGIC      "radpage1"
#define NO_SECRET  "radish: no secret"
#define SEAL_BYTES 16u

static struct sip_key sip_key_of(const char hex[SHA_HEX_BYTES])
{
    struct sip_key key = {0, 0};

    for (int i = 0; i < 32; i++) {
        uint64_t *k = i < 16 ? &key.k0 : &key.k1;

        *k = *k << 4 | (uint64_t)(hex[i] <= '9' ? hex[i] - '0' : hex[i] - 'a' + 10);
    }
    return key;
}

void shared_keys_make(const char *secret, struct shared_keys *out)
{
    const char *text = secret && *secret ? secret : NO_SECRET;
    char root[SHA_HEX_BYTES], hex[SHA_HEX_BYTES];
    struct sha s;

    sha256_begin(&s); /* of any length */
    sha_add(&s, text, strlen(text));
    sha_end(&s, root);
    sha_hmac256(root, 64, "digests", 7, hex);
    out->digests = sip_key_of(hex);
    sha_hmac256(root, 64, "seals", 5, hex);
    out->seals = sip_key_of(hex);
    sha_hmac256(root, 64, "salts", 5, hex);
    out->salts = sip_key_of(hex);
    sha_hmac256(root, 64, "names", 5, hex);
    memcpy(out->names, hex, sizeof(out->names));
}

struct hash128 shared_seed(const struct shared_keys *k, const void *name, size_t n)
{
    return sip_hash128(k->digests, name, n);
}

struct hash128 shared_digest(const struct shared_keys *k, struct hash128 before, const uint32_t *tokens,
                             uint32_t page_tokens)
{
    uint8_t text[sizeof(before) + 4 * LIMIT_STORE_PAGE_TOKENS];

    memcpy(text, &before, sizeof(before));
    memcpy(text + sizeof(before), tokens, 4 * page_tokens);
    return sip_hash128(k->digests, text, sizeof(before) + 4 * page_tokens);
}

void shared_page_name(const struct shared_keys *k, const char *prefix, uint64_t generation, struct hash128 digest,
                      uint32_t page_tokens, uint64_t page_bytes, char out[SHARED_NAME_BYTES])
{
    struct {
        struct hash128 digest;
        uint64_t page_tokens, page_bytes;
    } text = {digest, page_tokens, page_bytes};
    char hex[SHA_HEX_BYTES];

    sha_hmac256(k->names, sizeof(k->names), &text, sizeof(text), hex);
    snprintf(out, SHARED_NAME_BYTES, "%.*s:%llx:%.32s", (int)SHARED_PREFIX_MOST, prefix, (unsigned long long)generation,
             hex);
}

static void put_head(const struct shared_page *p, uint8_t head[SHARED_PAGE_HEAD])
{
    uint32_t sizes[2] = {p->page_tokens, 0};

    memset(head, 0, SEAL_BYTES);
    memcpy(head + 16, MAGIC, 8);
    memcpy(head + 24, sizes, 8);
    memcpy(head + 32, &p->page_bytes, 8);
    memcpy(head + 40, &p->before, 16);
    memcpy(head + 56, &p->digest, 16);
}

void shared_page_seal(const struct shared_keys *k, const struct shared_page *p, const void *page, void *value)
{
    uint8_t *out = value;
    size_t n = shared_page_value_bytes(p->page_tokens, p->page_bytes);
    struct hash128 seal;

    put_head(p, out);
    memcpy(out + SHARED_PAGE_HEAD, p->tokens, 4 * p->page_tokens);
    memcpy(out + SHARED_PAGE_HEAD + 4 * p->page_tokens, page, p->page_bytes);
    seal = sip_hash128(k->seals, out + SEAL_BYTES, n - SEAL_BYTES);
    memcpy(out, &seal, SEAL_BYTES);
}

bool shared_page_open(const struct shared_keys *k, const struct shared_page *p, const void *value, size_t n, void *page)
{
    const uint8_t *in = value;
    uint8_t head[SHARED_PAGE_HEAD];
    struct hash128 seal;

    if (n != shared_page_value_bytes(p->page_tokens, p->page_bytes)) return false;
    put_head(p, head);
    if (memcmp(in + SEAL_BYTES, head + SEAL_BYTES, SHARED_PAGE_HEAD - SEAL_BYTES) != 0 ||
        memcmp(in + SHARED_PAGE_HEAD, p->tokens, 4 * p->page_tokens) != 0)
        return false;
    seal = sip_hash128(k->seals, in + SEAL_BYTES, n - SEAL_BYTES);
    if (memcmp(in, &seal, SEAL_BYTES) != 0) return false;
    memcpy(page, in + SHARED_PAGE_HEAD + 4 * p->page_tokens, p->page_bytes);
    return true;
}
