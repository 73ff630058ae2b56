/* tests/api/test_train_memory.c - rd_train where memory fails, at every third allocation and each where data and log are read: no
 * memory is what it says, nothing stays behind, and a training that goes on all the same has the bytes of one that had all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "radish/radish.h"
#include "radish/train.h"
#include "test.h"

#define MODEL "tests/golden/llama/tiny-llama.gguf"

static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors", "checkpoint.radish",
                                    "log.jsonl", "loss.svg"};
static char dir[64], data[80], out[80];

static void path_of(const char *name, char path[160])
{
    snprintf(path, 160, "%s/%s", out, name);
}

static void make_data(void)
{
    static const char lines[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
                                "\"content\": \"b c\"}]}\n{\"prompt\": \"a \", \"completion\": \"b\"}\n{\"text\": "
                                "\"the\\u0000of\"}\n";

    snprintf(dir, sizeof(dir), "/tmp/train-memory-XXXXXX");
    CHECK(mkdtemp(dir) != NULL);
    snprintf(data, sizeof(data), "%s/data", dir);
    snprintf(out, sizeof(out), "%s/out", dir);
    CHECK_OK(file_write_all(data, lines, sizeof(lines) - 1, NULL));
}

static void remove_out(void)
{
    char path[160];

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        path_of(files[i], path);
        (void)unlink(path);
    }
    if (file_exists(out)) CHECK_EQ(rmdir(out), 0); /* nothing half written lies there */
}

static rd_status train(bool resume, struct rd_error *err)
{
    struct rd_train_options o;

    *err = (struct rd_error){RD_OK, ""};
    rd_train_options_default(&o);
    o.trainer.model = test_path(MODEL);
    o.trainer.n_threads = 1;
    o.trainer.rank = 2;
    o.trainer.pass_tokens = 32;
    o.data = data;
    o.out = out;
    o.batch = 2;
    o.n_steps = 2;
    o.save_every = 1;
    o.resume = resume;
    return rd_train(&o, NULL, err);
}

static char *read_adapter(size_t *n)
{
    char path[160], *bytes = NULL;

    path_of("adapter_model.safetensors", path);
    return file_read_all(path, 1u << 20, &bytes, n, NULL) == RD_OK ? bytes : NULL;
}

/* One with allocation i failing; *has_failed: one did. */
static void one(int64_t i, bool resume, const char *want, size_t n_want, bool *has_failed)
{
    struct rd_error err;
    uint64_t before = mem_n_allocs(), alive = mem_n_alive();
    rd_status st;
    size_t n = 0;
    char *bytes;

    mem_fail_after(i);
    st = train(resume, &err);
    mem_fail_after(-1);
    *has_failed = mem_n_allocs() - before > (uint64_t)i;
    if (st != RD_OK && st != RD_E_NOMEM) fprintf(stderr, "allocation %lld: %d %s\n", (long long)i, st, err.text);
    CHECK(st == RD_OK || st == RD_E_NOMEM);
    CHECK_EQ(mem_n_alive(), alive);
    if (st == RD_OK) {
        bytes = read_adapter(&n);
        CHECK(bytes && n == n_want && memcmp(bytes, want, n) == 0);
        mem_free(bytes);
    }
}

TEST(a_training_without_memory_says_so_and_leaves_nothing)
{
    struct rd_error err;
    size_t n_want;
    char *want;
    bool has_failed = true;

    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    make_data();
    CHECK_OK(train(false, &err));
    want = read_adapter(&n_want);
    CHECK(want != NULL);
    for (int64_t i = 0; has_failed; i++) one(i, true, want, n_want, &has_failed); /* nothing is left to compute */
    remove_out();
    has_failed = true;
    for (int64_t i = 0; has_failed; i += 3) {
        one(i, false, want, n_want, &has_failed);
        remove_out();
    }
    mem_free(want);
    (void)unlink(data);
    CHECK_EQ(rmdir(dir), 0);
}
