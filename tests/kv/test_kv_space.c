/* tests/kv/test_kv_space.c - namespaces: equal, named, printed. */
#include <string.h>
#include "kv/kv_space.h"
#include "test.h"

static const struct kv_space spaces[] = {{{0, 0}, {0, 0}}, {{1, 2}, {0, 0}}, {{0, 0}, {1, 2}}, {{1, 2}, {1, 2}},
                                         {{1, 2}, {3, 4}}, {{0, 5}, {0, 0}}, {{0, 0}, {0, 5}}};
#define N_SPACES (sizeof(spaces) / sizeof(spaces[0]))

TEST(spaces_are_equal_when_both_parts_are_and_their_names_tell_them_apart)
{
    for (size_t i = 0; i < N_SPACES; i++)
        for (size_t k = 0; k < N_SPACES; k++) {
            uint8_t a[KV_SPACE_NAME_MAX], b[KV_SPACE_NAME_MAX];
            size_t n_a = kv_space_name(&spaces[i], a), n_b = kv_space_name(&spaces[k], b);

            CHECK_EQ(kv_space_equal(&spaces[i], &spaces[k]), i == k);
            CHECK_EQ(n_a == n_b && memcmp(a, b, n_a) == 0, i == k);
        }
}

/* Folders of a cache outlive versions: a name without an adapter is what it was before there were adapters. */
TEST(a_name_without_an_adapter_is_the_salt)
{
    uint8_t name[KV_SPACE_NAME_MAX];

    CHECK_EQ(kv_space_name(&spaces[0], name), 0);
    CHECK_EQ(kv_space_name(&spaces[1], name), 16);
    CHECK(memcmp(name, "\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0", 16) == 0);
    CHECK_EQ(kv_space_name(&spaces[2], name), 32);
}

TEST(only_the_salt_closes_a_space)
{
    struct kv_space open = kv_space_opened(&spaces[4]);

    CHECK(kv_space_is_open(&spaces[0]) && kv_space_is_open(&spaces[2]) && kv_space_is_open(&open));
    CHECK(!kv_space_is_open(&spaces[1]) && !kv_space_is_open(&spaces[5]));
    CHECK(hash128_equal(open.adapter, spaces[4].adapter));
}

TEST(a_space_is_printed)
{
    char text[96];

    kv_space_print(&spaces[0], text, sizeof(text));
    CHECK_STR(text, "salt none, adapter none");
    kv_space_print(&spaces[4], text, sizeof(text));
    CHECK_STR(text, "salt 00000000000000020000000000000001, adapter 00000000000000040000000000000003");
    kv_space_print(&spaces[4], text, 6);
    CHECK_STR(text, "salt ");
}
