/* tests/rooms/test_rooms.c - docs/architecture.md, "What it takes to add something": a backend is a folder and a row, an
 * architecture a file and a row. The build adds the rows to copies of backend_list.h and arch_list.h, and compiles the two
 * registries with them; nothing else knows of toys. */
#include <string.h>
#include "backend/backend_registry.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/executor.h"
#include "format/gguf/gguf.h"
#include "format/hub/hub_family.h"
#include "test.h"

enum { N_ROWS = 6, PAGE_TOKENS = 8, MOST_VOCAB = 4096 };

/* tiny-llama.gguf, its architecture called `name` of five letters wherever "llama" stands. */
static struct model_file *open_as(const char *name, char **bytes)
{
    struct model_file *f = NULL;
    size_t n = 0;

    if (file_read_all(test_path("tests/golden/llama/tiny-llama.gguf"), 64u << 20, bytes, &n, NULL) != RD_OK)
        return NULL;
    for (char *at = *bytes; (at = memmem(at, n - (size_t)(at - *bytes), "llama", 5)); at += 5) memcpy(at, name, 5);
    return gguf_open_bytes((const uint8_t *)*bytes, n, &f, NULL) == RD_OK ? f : NULL;
}

/* The logits of all rows of one pass; pages leave the device and come back in between. */
static void compute(const char *arch, const char *device, float *logits, uint32_t *n_vocab)
{
    int32_t tokens[N_ROWS] = {1, 5, 9, 2, 7, 3};
    uint32_t positions[N_ROWS] = {0, 1, 2, 3, 4, 5}, slots[N_ROWS] = {0, 1, 2, 3, 4, 5}, last[1] = {N_ROWS - 1};
    kv_page pages[N_ROWS] = {0}, table[1] = {0};
    struct seq_run first = {0, N_ROWS - 1, 0, table, 0, 0}, second = {0, 1, N_ROWS - 1, table, 0, 0};
    struct model_batch b = {.n_rows = N_ROWS - 1,
                            .tokens = tokens,
                            .positions = positions,
                            .row_page = pages,
                            .row_slot = slots,
                            .n_runs = 1,
                            .runs = &first};
    struct executor_options o = {.device = device,
                                 .isa = strcmp(device, "cpu") == 0 ? "ref" : NULL,
                                 .max_running = 2,
                                 .max_chunk = 8,
                                 .page_tokens = PAGE_TOKENS,
                                 .dtype_k = DTYPE_F16,
                                 .dtype_v = DTYPE_F16,
                                 .kv_tokens = 32};
    struct executor_traits t;
    struct executor *x = NULL;
    struct rd_error err = {RD_OK, ""};
    char *bytes = NULL;
    struct model_file *f = open_as(arch, &bytes);
    void *page;

    CHECK(f != NULL);
    o.file = f;
    CHECK_OK(executor_open(&o, &x, &t, &err));
    CHECK((x->page == NULL) == !t.device.shares_memory);
    CHECK_OK(x->forward(x->self, &b, logits));
    page = mem_alloc(1, x->page_bytes);
    CHECK_OK(x->page_out(x->self, 0, page));
    CHECK_OK(x->page_in(x->self, 1, page));
    x->copy_rows(x->self, 2, 1, N_ROWS - 1);
    b = (struct model_batch){.n_rows = 1,
                             .tokens = tokens + N_ROWS - 1,
                             .positions = last,
                             .row_page = &(kv_page){2},
                             .row_slot = last,
                             .n_runs = 1,
                             .runs = &(struct seq_run){0, 1, second.pos0, &(kv_page){2}, 0, 0},
                             .n_logits = 1,
                             .logit_rows = &(uint32_t){0}};
    CHECK(x->n_vocab <= MOST_VOCAB);
    CHECK_OK(x->forward(x->self, &b, logits));
    *n_vocab = x->n_vocab;
    mem_free(page);
    executor_close(x);
    model_file_close(f);
    mem_free(bytes);
}

TEST(a_backend_is_a_folder_and_a_row)
{
    struct device_probe probes[BACKEND_MAX];
    const char *why;

    CHECK(backend_find("toy") && backend_find("toy")->ops);
    CHECK(strstr(backend_devices(), ", toy") != NULL);
    CHECK_STR(backend_choice(probes, &why)->name, "cpu");
}

TEST(an_architecture_is_a_file_and_a_row)
{
    const struct hub_families *families = model_hub_families();
    const struct hub_family *f;
    const char *arch;
    bool found = false;

    CHECK(strstr(model_known_archs(), "toyla") != NULL);
    CHECK_STR(model_chat_format("toyla"), "zephyr");
    for (uint32_t i = 0; (f = families->at(i, &arch)); i++)
        found |= strcmp(f->model_type, "toy") == 0 && strcmp(arch, "toyla") == 0;
    CHECK(found);
}

TEST(both_compute_what_their_models_do)
{
    static float want[MOST_VOCAB], got[MOST_VOCAB];
    uint32_t n = 0, n_toy = 0;

    compute("llama", "cpu", want, &n);
    compute("toyla", "cpu", got, &n_toy);
    CHECK(n > 0 && n == n_toy && memcmp(want, got, n * sizeof(float)) == 0);
    memset(got, 0, sizeof(got));
    compute("toyla", "toy", got, &n_toy);
    CHECK(n == n_toy && memcmp(want, got, n * sizeof(float)) == 0);
}
