/* tests/api/test_device.c - which device computes, what is said when it cannot, and `radish doctor`. */
#include <jansson.h>
#include "backend/backend_registry.h"
#include "base/mem.h"
#include "radish/radish.h"
#include "test.h"

static rd_status open_on(const char *device, struct rd_error *err)
{
    struct rd_options o;
    rd_engine *e = NULL;
    rd_status st;

    rd_options_default(&o);
    o.model = test_path("tests/golden/llama/tiny-llama.gguf");
    o.device = device;
    st = rd_open(&o, &e, err);
    rd_close(e);
    return st;
}

TEST(a_device_that_is_not_known_is_named)
{
    struct rd_error err = {RD_OK, ""};

    CHECK_EQ(open_on("gpu", &err), RD_E_INVALID);
    CHECK(strstr(err.text, "\"gpu\"") && strstr(err.text, "auto, cpu, mlx, cuda or cuda:N"));
    CHECK_EQ(open_on("cuda:", &err), RD_E_INVALID);
    CHECK_EQ(open_on("cuda:4096", &err), RD_E_INVALID);
}

/* F94: a list of GPUs is one for each rank. */
TEST(a_list_of_gpus_has_one_for_each_rank)
{
    struct rd_error err = {RD_OK, ""};

    CHECK_EQ(open_on("cuda:0,1", &err), RD_E_INVALID);
    CHECK_STR(err.text, "device cuda:0,1 names 2, and --tp has 1: one for each rank");
}

/* Refused by name, never taken for one that is. */
TEST(lists_that_are_none_and_other_processes_are_refused)
{
    static const char *const devices[] = {"cuda:0,cuda:1",
                                          "cuda:0,",
                                          "cuda:,1",
                                          "cuda:0,1,2,3,4,5,6,7,8",
                                          "cuda:0-3",
                                          "cuda:all",
                                          "cuda:0 cuda:1",
                                          "cuda,cpu",
                                          "nccl",

                                          "subprocess",
                                          "subprocess:./worker",
                                          "rpc:127.0.0.1:50052",
                                          ""};

    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        struct rd_error err = {RD_OK, ""};

        CHECK_EQ(open_on(devices[i], &err), RD_E_INVALID);
        CHECK(strstr(err.text, "expected auto, cpu, mlx, cuda or cuda:N"));
    }
}

TEST(cuda_that_cannot_be_used_is_explained)
{
    struct rd_error err = {RD_OK, ""};
    rd_status st = open_on("cuda", &err);

    if (st == RD_OK || strstr(err.text, "tokenizer")) return; /* this machine has a GPU */
    CHECK_EQ(st, RD_E_UNSUPPORTED);
    CHECK(strstr(err.text, backend_find("cuda")->ops ? "driver" : "cmake --preset cuda") != NULL);
}

TEST(the_doctor_says_what_there_is_as_text_and_json)
{
    const struct rd_doctor_paths paths = {"/", NULL, "/nowhere/at/all", NULL};
    struct rd_error err = {RD_OK, ""};
    char *text = NULL;
    json_t *root;

    CHECK_OK(rd_doctor(&paths, false, &text, &err));
    CHECK(strstr(text, "instruction set") && strstr(text, "--device auto") && strstr(text, "cuda"));
    rd_free(text);
    CHECK_OK(rd_doctor(&paths, true, &text, &err));
    root = json_loads(text, 0, NULL);
    rd_free(text);
    CHECK(json_is_object(root));
    CHECK(json_integer_value(json_object_get(json_object_get(root, "cpu"), "cores")) >= 1);
    CHECK(json_is_boolean(json_object_get(json_object_get(root, "cuda"), "built_in")));
    CHECK(json_is_string(json_object_get(json_object_get(root, "choice"), "device")));
    CHECK(json_is_null(json_object_get(json_object_get(json_object_get(root, "folders"), "packed"), "path")));
    json_decref(root);
}

TEST(every_backend_says_whether_it_can_be_used_and_why_not)
{
    struct rd_backend_info list[8], one = {.size = sizeof(one)};
    struct rd_error err = {RD_OK, ""};
    const uint32_t n = rd_backends(list, 8);

    CHECK(n >= 2 && n <= 8);
    CHECK_EQ(rd_backends(NULL, 0), n);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(list[i].name[0] && list[i].title[0] && list[i].reason[0] && (list[i].is_built || !list[i].is_available));
        CHECK_OK(rd_backend_about(list[i].name, &one, &err));
        CHECK_STR(one.reason, list[i].reason);
    }
    CHECK_STR(list[0].name, "cpu");
    CHECK_STR(list[n - 1].name, "process");
    CHECK(list[n - 1].is_available && !list[n - 1].exact && !list[n - 1].kv_types[0]);
    CHECK_OK(rd_backend_about("process:'sh' -c true", &one, &err));
    CHECK(one.is_available && strstr(one.reason, "/sh is there"));
    CHECK_OK(rd_backend_about("process:/bin/sh", &one, &err));
    CHECK_EQ(rd_backend_about("process:no-such-program --x", &one, &err), RD_E_NOT_FOUND);
    CHECK(strstr(err.text, "no-such-program"));
    CHECK_EQ(rd_backend_about("process:/tmp", &one, &err), RD_E_NOT_FOUND); /* a folder may be entered, not run */
    CHECK_EQ(rd_backend_about("process:\"sh", &one, &err), RD_E_INVALID);
    CHECK_EQ(rd_backend_about("process:", &one, &err), RD_E_INVALID);
    CHECK(list[0].is_available && list[0].exact && list[0].page_copies && list[0].soft_caps);
    CHECK(strstr(list[0].weight_types, "q4_k") && strstr(list[0].kv_types, "q8_0"));
    CHECK_EQ(rd_backend_about("abacus", &one, &err), RD_E_NOT_FOUND);
    CHECK_EQ(rd_backend_about("/nowhere/lib.so", &one, &err), RD_E_NOT_FOUND);
}

TEST(a_doctor_says_what_is_wrong_with_a_shared_object)
{
    const struct rd_doctor_paths paths = {"/", NULL, NULL, "/nowhere/lib.so"};
    struct rd_error err = {RD_OK, ""};
    char *text = NULL;
    json_t *root, *list;

    CHECK_OK(rd_doctor(&paths, false, &text, &err));
    CHECK(strstr(text, "/nowhere/lib.so") && strstr(text, "No such file"));
    rd_free(text);
    CHECK_OK(rd_doctor(&paths, true, &text, &err));
    root = json_loads(text, 0, NULL);
    rd_free(text);
    list = json_object_get(root, "backends");
    CHECK_EQ(json_array_size(list), rd_backends(NULL, 0) + 1);
    CHECK(json_is_true(json_object_get(json_array_get(list, 0), "available")));
    CHECK(json_is_false(json_object_get(json_array_get(list, json_array_size(list) - 1), "available")));
    json_decref(root);
}

TEST(a_doctor_without_memory_says_so_and_leaks_nothing)
{
    const struct rd_doctor_paths paths = {"/", NULL, NULL, NULL};
    uint64_t alive = 0;
    rd_status st = RD_E_NOMEM;
    char *text = NULL;

    CHECK_OK(rd_doctor(&paths, true, &text, NULL)); /* what libraries keep for good is there now */
    rd_free(text);
    for (int json = 0; json < 2; json++) {
        alive = mem_n_alive();
        st = RD_E_NOMEM;
        for (int64_t i = 0; st == RD_E_NOMEM && i < 1000; i++) {
            mem_fail_after(i);
            st = rd_doctor(&paths, json, &text, NULL);
            mem_fail_after(-1);
            if (st == RD_OK) rd_free(text);
            CHECK(st == RD_OK || st == RD_E_NOMEM);
            CHECK_EQ(mem_n_alive(), alive);
        }
        CHECK_OK(st);
    }
}
