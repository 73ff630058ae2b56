/* tests/base/test_sha.c - digests against published ones, in pieces of every size. */
#include "base/sha.h"
#include "base/mem.h"
#include "test.h"

static void digest(void (*begin)(struct sha *), const void *data, size_t n, size_t piece, char hex[SHA_HEX_BYTES])
{
    struct sha s;

    begin(&s);
    for (size_t at = 0; at < n; at += piece) sha_add(&s, (const char *)data + at, n - at < piece ? n - at : piece);
    sha_end(&s, hex);
}

/* FIPS 180-4's examples (NIST, Cryptographic Standards and Guidelines). */
TEST(published_digests)
{
    static const struct {
        const char *text, *one, *two;
    } known[] = {
        {"", "da39a3ee5e6b4b0d3255bfef95601890afd80709",
         "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "a9993e364706816aba3e25717850c26c9cd0d89d",
         "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", "84983e441c3bd26ebaae4aa1f95129e5e54670f1",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    char hex[SHA_HEX_BYTES];

    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        digest(sha1_begin, known[i].text, strlen(known[i].text), 64, hex);
        CHECK_STR(hex, known[i].one);
        digest(sha256_begin, known[i].text, strlen(known[i].text), 64, hex);
        CHECK_STR(hex, known[i].two);
    }
}

TEST(a_million_bytes)
{
    enum { N = 1000000 };
    char hex[SHA_HEX_BYTES], *text = mem_alloc(N, 1);

    CHECK(text);
    memset(text, 'a', N);
    digest(sha1_begin, text, N, 1000, hex);
    CHECK_STR(hex, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
    digest(sha256_begin, text, N, 1000, hex);
    CHECK_STR(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    mem_free(text);
}

TEST(pieces_do_not_matter)
{
    char whole[SHA_HEX_BYTES], parts[SHA_HEX_BYTES], text[300];

    for (size_t i = 0; i < sizeof(text); i++) text[i] = (char)(i * 7);
    for (size_t n = 0; n <= sizeof(text); n++)
        for (size_t piece = 1; piece < 140; piece += 1 + piece / 9) {
            digest(sha256_begin, text, n, n + 1, whole);
            digest(sha256_begin, text, n, piece, parts);
            CHECK_STR(parts, whole);
        }
}

TEST(an_hmac_is_that_of_rfc_4231)
{
    char hex[SHA_HEX_BYTES], key[20], data[50];

    memset(key, 0x0b, sizeof(key));
    sha_hmac256(key, 20, "Hi There", 8, hex);
    CHECK_STR(hex, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    sha_hmac256("Jefe", 4, "what do ya want for nothing?", 28, hex);
    CHECK_STR(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof(key));
    memset(data, 0xdd, sizeof(data));
    sha_hmac256(key, 20, data, 50, hex);
    CHECK_STR(hex, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
}
