/* tests/ops/test_isa.c - the names of instruction sets, and which of them this machine is said to have. */
#include <stdlib.h>
#include "op_fixture.h"

TEST(what_the_machine_has_can_be_asked_for_and_nothing_else)
{
    struct rd_error err;

    for (int i = 0; i < CPU_N_ISA; i++) {
        enum cpu_isa isa = CPU_N_ISA;
        rd_status st = cpu_isa_parse(cpu_isa_name((enum cpu_isa)i), &isa, &err);

        if (i <= (int)cpu_isa_best()) {
            CHECK_OK(st);
            CHECK_EQ((int)isa, i);
        } else {
            CHECK_EQ(st, RD_E_UNSUPPORTED);
            CHECK(strstr(err.text, cpu_isa_name(cpu_isa_best())));
        }
    }
}

TEST(an_unknown_name_is_answered_with_the_known_ones)
{
    enum cpu_isa isa;
    struct rd_error err;

    CHECK_EQ(cpu_isa_parse("mmx", &isa, &err), RD_E_UNSUPPORTED);
    CHECK(strstr(err.text, "mmx"));
    for (int i = 0; i < CPU_N_ISA; i++) CHECK(strstr(err.text, cpu_isa_name((enum cpu_isa)i)));
}

TEST(every_kernel_is_there)
{
    for (int i = 0; i < CPU_N_ISA; i++) {
        const struct cpu_kernels *k = &cpu_kernels[i];

        CHECK(k->name && k->rows && k->attn && k->lin);
    }
}

/* The tests of an emulated processor say what it must be taken for. */
TEST(the_best_is_what_the_processor_has)
{
    const char *want = getenv("RADISH_EXPECT_ISA");

    if (want) CHECK_STR(cpu_isa_name(cpu_isa_best()), want);
    test_note("the best here is %s", cpu_isa_name(cpu_isa_best()));
}
