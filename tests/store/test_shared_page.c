/* tests/store/test_shared_page.c - names and seals of shared pages: who finds what, and that nothing wrong is opened. */
#include "store/shared_page.h"
#include <string.h>
#include "base/random.h"
#include "test.h"

#define P     4u
#define BYTES 100u
#define VALUE (SHARED_PAGE_HEAD + 4 * P + BYTES)

static const uint32_t tokens[2 * P] = {1, 2, 3, 4, 5, 6, 7, 8};

struct page {
    struct shared_keys keys;
    struct shared_page p;
    uint8_t bytes[BYTES], value[VALUE];
};

static void make(struct page *g, const char *secret, const char *space)
{
    struct random rng;

    random_init(&rng, test_seed());
    shared_keys_make(secret, &g->keys);
    for (uint32_t i = 0; i < BYTES; i++) g->bytes[i] = (uint8_t)random_u64(&rng);
    g->p = (struct shared_page){.tokens = tokens, .page_tokens = P, .page_bytes = BYTES};
    g->p.before = shared_seed(&g->keys, space, strlen(space));
    g->p.digest = shared_digest(&g->keys, g->p.before, tokens, P);
    shared_page_seal(&g->keys, &g->p, g->bytes, g->value);
}

TEST(a_sealed_page_comes_back)
{
    uint8_t out[BYTES] = {0};
    struct page g;

    make(&g, "secret", "space");
    CHECK_EQ(shared_page_value_bytes(P, BYTES), VALUE);
    CHECK(shared_page_open(&g.keys, &g.p, g.value, VALUE, out));
    CHECK(!memcmp(out, g.bytes, BYTES));
}

TEST(no_flipped_bit_and_no_other_length_is_opened)
{
    uint8_t out[BYTES], none[BYTES] = {0};
    struct page g;

    make(&g, NULL, "space");
    memset(out, 0, sizeof(out));
    for (uint32_t bit = 0; bit < 8 * VALUE; bit++) {
        g.value[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(!shared_page_open(&g.keys, &g.p, g.value, VALUE, out));
        g.value[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t n = 0; n < VALUE; n++) CHECK(!shared_page_open(&g.keys, &g.p, g.value, n, out));
    CHECK(!memcmp(out, none, BYTES)); /* nothing of them was handed out */
    CHECK(shared_page_open(&g.keys, &g.p, g.value, VALUE, out));
}

TEST(what_is_sealed_for_another_place_is_not_opened)
{
    uint8_t out[BYTES];
    struct page g, h;

    make(&g, "secret", "space");
    make(&h, "secret", "other space"); /* another model, build, KV type or tenant */
    CHECK(!hash128_equal(g.p.digest, h.p.digest));
    CHECK(!shared_page_open(&g.keys, &g.p, h.value, VALUE, out));
    make(&h, "another secret", "space");
    CHECK(!hash128_equal(g.p.digest, h.p.digest));
    CHECK(!shared_page_open(&g.keys, &g.p, h.value, VALUE, out));
    h.p = g.p; /* made up by someone who knows the digests, but not the secret */
    shared_page_seal(&h.keys, &h.p, h.bytes, h.value);
    CHECK(!shared_page_open(&g.keys, &g.p, h.value, VALUE, out));
    h = g;
    h.p.tokens = tokens + P;
    CHECK(!shared_page_open(&g.keys, &h.p, g.value, VALUE, out));
    h = g;
    h.p.before.low ^= 1;
    CHECK(!shared_page_open(&g.keys, &h.p, g.value, VALUE, out));
}

TEST(names_differ_by_secret_generation_digest_and_size)
{
    char a[SHARED_NAME_BYTES], b[SHARED_NAME_BYTES];
    struct page g, h;

    make(&g, "secret", "space");
    make(&h, "another secret", "space");
    shared_page_name(&g.keys, "radish", 0, g.p.digest, P, BYTES, a);
    CHECK(!strncmp(a, "radish:0:", 9) && strlen(a) == 9 + 32);
    shared_page_name(&g.keys, "radish", 0, g.p.digest, P, BYTES, b);
    CHECK(!strcmp(a, b));
    shared_page_name(&h.keys, "radish", 0, g.p.digest, P, BYTES, b);
    CHECK(strcmp(a, b));
    shared_page_name(&g.keys, "radish", 1, g.p.digest, P, BYTES, b);
    CHECK(strcmp(a, b));
    shared_page_name(&g.keys, "radish", 0, g.p.before, P, BYTES, b);
    CHECK(strcmp(a, b));
    shared_page_name(&g.keys, "radish", 0, g.p.digest, P, BYTES + 1, b);
    CHECK(strcmp(a, b));
}
