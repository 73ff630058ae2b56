/* tests/backend/test_join_way.c - which way ranks' devices join where nothing is said, and what is said of one that cannot be; with a
 * driver and an NCCL that are fakes. */
#include "backend/join_way.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include "backend/cuda/nccl_probe.h"
#include "backend/device_probe.h"
#include "test.h"

extern const struct backend_about backend_cuda_about;

TEST(names_are_those_of_the_flag)
{
    static const char *const all[] = {"auto", "peer", "nccl", "host"};
    enum join_way way;

    CHECK(join_way_parse(NULL, &way) && way == JOIN_AUTO);
    for (size_t i = 0; i < 4; i++) {
        CHECK(join_way_parse(all[i], &way));
        CHECK_STR(join_way_name(way), all[i]);
    }
    CHECK(!join_way_parse("", &way) && !join_way_parse("NCCL", &way));
}

#define APART "GPU 0 cannot write to the memory of GPU 1: no peer access"
#define TWICE "ranks 0 and 1 are both on GPU 0"
#define NONE  "there is no NCCL (no such file)"

TEST(every_choice_and_its_reason)
{
    static const struct {
        enum join_way wanted, got;
        struct join_facts facts; /* apart, shared, nccl */
        const char *why;         /* of JOIN_AUTO: the error */
    } cases[] = {
        {JOIN_AUTO, JOIN_PEER, {"", "", NONE}, "every GPU"},
        {JOIN_AUTO, JOIN_PEER, {"", TWICE, ""}, "every GPU"},
        {JOIN_AUTO, JOIN_HOST, {APART, "", ""}, APART "; slower"},
        {JOIN_AUTO, JOIN_HOST, {APART, TWICE, NONE}, APART "; slower"},
        {JOIN_PEER, JOIN_PEER, {"", "", ""}, "--reduce"},
        {JOIN_NCCL, JOIN_NCCL, {"", "", ""}, "--reduce"},
        {JOIN_HOST, JOIN_HOST, {APART, TWICE, NONE}, "--reduce"},
        {JOIN_PEER, JOIN_AUTO, {APART, "", ""}, "--reduce peer: " APART "; --reduce nccl or host"},
        {JOIN_NCCL, JOIN_AUTO, {"", TWICE, ""}, "a GPU for each rank, and " TWICE},
        {JOIN_NCCL, JOIN_AUTO, {"", "", NONE}, "--reduce nccl: " NONE "; install it (libnccl2"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rd_error err = {RD_OK, ""};
        enum join_way got = JOIN_AUTO;
        char why[640] = "";
        rd_status st = join_way_choose(cases[i].wanted, &cases[i].facts, &got, why, sizeof(why), &err);

        CHECK_EQ(st, cases[i].got == JOIN_AUTO ? RD_E_UNSUPPORTED : RD_OK);
        CHECK_EQ(got, cases[i].got);
        if (!strstr(st == RD_OK ? why : err.text, cases[i].why))
            test_fail(__FILE__, __LINE__, "case %zu: %s%s", i, why, err.text);
    }
}

TEST(a_library_that_is_not_there_or_lacks_something_is_told)
{
    struct nccl_library l;
    char why[256] = "", version[32];

    setenv("RADISH_NCCL", "/nowhere/libnccl.so.2", 1);
    CHECK_EQ(nccl_library_open(&l, why, sizeof(why)), RD_E_UNSUPPORTED);
    CHECK(strstr(why, "there is no NCCL (/nowhere/libnccl.so.2: ") == why);
    setenv("RADISH_NCCL", FAKE_NCCL_LACKS, 1);
    CHECK_EQ(nccl_library_open(&l, why, sizeof(why)), RD_E_UNSUPPORTED);
    CHECK(strstr(why, "it lacks ncclAllGather") != NULL);
    nccl_library_close(&l);
    setenv("RADISH_NCCL", FAKE_NCCL, 1);
    CHECK_OK(nccl_library_open(&l, why, sizeof(why)));
    nccl_version_text(l.version, version, sizeof(version));
    CHECK_STR(version, "2.28.9");
    nccl_version_text(2804, version, sizeof(version));
    CHECK_STR(version, "2.8.4");
    CHECK_STR(l.error_string(1), "an error");
    nccl_library_close(&l);
    CHECK(!l.handle);
}

/* What doctor says of a machine with these GPUs. */
static struct device_probe ask(const char *n_gpus, const char *peer)
{
    struct device_probe p;

    memset(&p, 0, sizeof(p));
    setenv("FAKE_GPUS", n_gpus, 1);
    setenv("FAKE_PEER", peer, 1);
    backend_cuda_about.probe(&p);
    return p;
}

TEST(doctor_says_how_ranks_would_join)
{
    void *driver = dlopen(FAKE_DRIVER, RTLD_NOW); /* its name is libcuda.so.1: that is found from now on */
    struct device_probe p;

    CHECK(driver != NULL);
    p = ask("1", "0");
    CHECK_EQ(p.n_devices, 1);
    CHECK_STR(p.ranks, "");
    p = ask("2", "1");
    CHECK_EQ(p.n_devices, 2);
    CHECK(strcmp(p.devices[1].name, "fake 1") == 0 && p.is_usable);
    CHECK_STR(p.ranks, "peer");
    p = ask("3", "0");
    CHECK_STR(p.ranks, "host");
    CHECK(strstr(p.ranks_why, "GPU 0 cannot write to the memory of GPU 1: no peer access; slower") == p.ranks_why);
    dlclose(driver);
}
