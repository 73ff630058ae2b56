/* tests/api/test_image_pot.c - who may have how much. */
#include "api/image_pot.h"
#include "test.h"

#define MIB (1ull << 20)

TEST(a_tenant_alone_has_three_quarters)
{
    struct image_pot p;

    image_pot_init(&p);
    CHECK_EQ(image_pot_take(&p, 1, 769 * MIB), RD_E_LIMIT); /* never */
    CHECK_OK(image_pot_take(&p, 1, 700 * MIB));
    CHECK_EQ(image_pot_take(&p, 1, 69 * MIB), RD_E_FULL); /* not now */
    CHECK_OK(image_pot_take(&p, 1, 68 * MIB));
    CHECK_EQ(image_pot_take(&p, 1, 1 * MIB), RD_E_FULL);
    image_pot_give(&p, 1, 768 * MIB);
    CHECK_OK(image_pot_take(&p, 1, 768 * MIB));
    image_pot_give(&p, 1, 768 * MIB);
    image_pot_deinit(&p);
}

TEST(whoever_comes_next_finds_some)
{
    struct image_pot p;
    uint64_t had[4] = {0};

    image_pot_init(&p);
    for (uint64_t t = 0; t < 4; t++) {
        while (image_pot_take(&p, t, MIB) == RD_OK) had[t] += MIB;
        CHECK(had[t] >= MIB);
        CHECK(p.total < IMAGE_POT_BYTES);
    }
    CHECK(had[0] == 768 * MIB && had[1] == 192 * MIB);
    for (uint64_t t = 0; t < 4; t++) image_pot_give(&p, t, had[t]);
    CHECK_EQ(p.total, 0);
    image_pot_deinit(&p);
}
