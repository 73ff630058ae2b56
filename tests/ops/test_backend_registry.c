/* tests/ops/test_backend_registry.c - which backends there are, what is said of those that are not, and which `auto` takes. */
#include "backend/backend_registry.h"
#include "test.h"

TEST(the_rows_are_the_backends)
{
    CHECK_STR(backend_at(0)->name, "cpu");
    CHECK(backend_find("cpu")->ops == &backend_cpu_ops && !backend_find("cpu")->has_numbers);
    CHECK(backend_find("cuda") && backend_find("cuda")->has_numbers);
    CHECK(backend_find("mlx") && backend_find("mlx")->about->by_name && backend_find("opencl") == NULL);
    CHECK_STR(backend_devices(), "auto, cpu, mlx, cuda or cuda:N");
    for (uint32_t i = 0; backend_at(i); i++) {
        const struct backend_entry *e = backend_at(i);

        CHECK(e->about->title && e->about->probe && (!e->ops || strcmp(e->ops->name, e->name) == 0));
    }
}

TEST(auto_takes_what_the_probes_say)
{
    struct device_probe probes[BACKEND_MAX];
    struct backend_options o = {.n_threads = 1};
    const struct backend_ops *ops = NULL;
    const struct backend_entry *choice;
    struct rd_error err = {RD_OK, ""};
    struct backend *be = NULL;
    const char *why = NULL;

    choice = backend_choice(probes, &why);
    CHECK(choice && choice->ops && !choice->about->by_name && why && why[0]);
    CHECK_EQ(probes[0].n_devices, 1);
    CHECK_OK(backend_open(NULL, &o, &ops, &be, &err));
    CHECK(ops == choice->ops);
    ops->life.destroy(be);
}

TEST(a_device_is_refused_by_what_is_missing)
{
    struct backend_options o = {.n_threads = 1};
    const struct backend_ops *ops = NULL;
    struct rd_error err = {RD_OK, ""};
    struct backend *be = NULL;

    CHECK_EQ(backend_open("cpu:0", &o, &ops, &be, &err), RD_E_INVALID);
    CHECK_EQ(backend_open("cudax", &o, &ops, &be, &err), RD_E_INVALID);
    CHECK_EQ(backend_open("cuda:1024", &o, &ops, &be, &err), RD_E_INVALID);
    CHECK(strstr(err.text, backend_devices()) != NULL);
    if (!backend_find("mlx")->ops) {
        CHECK_EQ(backend_open("mlx", &o, &ops, &be, &err), RD_E_UNSUPPORTED);
        CHECK(strstr(err.text, "without MLX") && strstr(err.text, "cmake --preset mlx"));
    }
    if (backend_find("cuda")->ops) return;
    CHECK_EQ(backend_open("cuda:1", &o, &ops, &be, &err), RD_E_UNSUPPORTED);
    CHECK(strstr(err.text, "without CUDA") && strstr(err.text, "cmake --preset cuda"));
    CHECK(ops == NULL && be == NULL);
}
