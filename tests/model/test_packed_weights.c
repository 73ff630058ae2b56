/* tests/model/test_packed_weights.c - weights from a packed file: the same bits, found by content, never a damaged or
 * foreign one, and no failure of the folder is more than a slower start. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/cache_dir.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "format/model_file.h"
#include "format/packed_file.h"
#include "hub_make.h"
#include "model/model.h"
#include "test.h"

#define N_TOKENS 5u
#define MODEL    "tests/golden/qwen2/tiny-qwen2.gguf"

static char dir[64], folder[80], model[80];

/* A fresh folder with a copy of a tiny model in it; packed files go to a folder that is not there yet. */
static bool enter(void)
{
    char *data;
    size_t n;
    bool ok;

    log_set_level(LOG_ERROR);
    snprintf(dir, sizeof(dir), "/tmp/radish-test-XXXXXX");
    if (!mkdtemp(dir)) return false;
    snprintf(folder, sizeof(folder), "%s/packed", dir);
    snprintf(model, sizeof(model), "%s/m.gguf", dir);
    if (file_read_all(test_path(MODEL), 64 << 20, &data, &n, NULL) != RD_OK) return false;
    ok = file_write_all(model, data, n, NULL) == RD_OK;
    mem_free(data);
    return ok;
}

static void remove_all(const char *path)
{
    DIR *d = opendir(path);
    char name[400];

    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
        if (remove(name)) remove_all(name);
    }
    if (d) closedir(d);
    rmdir(path);
}

static void leave(void)
{
    remove_all(dir);
}

struct count {
    uint32_t n;
    const char *suffix;
    char last[128];
};

static bool count_one(void *arg, const char *name)
{
    struct count *c = arg;
    size_t n = strlen(name), k = strlen(c->suffix);

    if (n < k || strcmp(name + n - k, c->suffix)) return true;
    c->n++;
    snprintf(c->last, sizeof(c->last), "%s", name);
    return true;
}

static uint32_t n_entries(void)
{
    struct count c = {.suffix = ".packed"};

    cache_dir_list(folder, count_one, &c);
    return c.n;
}

/* The path of the only entry. */
static const char *entry_path(void)
{
    static char path[256];
    struct count c = {.suffix = ".packed"};

    cache_dir_list(folder, count_one, &c);
    snprintf(path, sizeof(path), "%s/%s", folder, c.last);
    return path;
}

static uint32_t n_temporaries(void)
{
    DIR *d = opendir(folder);
    uint32_t n = 0;

    for (struct dirent *e; d && (e = readdir(d));) n += strncmp(e->d_name, "writing-", 8) == 0;
    if (d) closedir(d);
    return n;
}

/* Loads a model, runs a prompt, closes (which waits for what is being written). */
struct run {
    rd_status st;
    uint64_t n_packed, n_own; /* bytes of weights */
    uint32_t n_vocab;
    float *logits; /* of the last token */
};

static rd_status forward(struct model *m, struct backend *be, struct run *r)
{
    const struct model_config *c = model_config(m);
    const struct kv_layout layout = {c->n_layers, c->n_kv_heads, c->head_dim, 16, DTYPE_F32, DTYPE_F32};
    int32_t tokens[N_TOKENS] = {1, 7, 3, 9, 4};
    uint32_t positions[N_TOKENS] = {0, 1, 2, 3, 4}, last = N_TOKENS - 1;
    kv_page pages[N_TOKENS] = {0};
    struct seq_run run = {0, N_TOKENS, 0, pages, 0, 0};
    const struct model_batch b = {.n_rows = N_TOKENS,
                                  .tokens = tokens,
                                  .positions = positions,
                                  .row_page = pages,
                                  .row_slot = positions,
                                  .n_runs = 1,
                                  .runs = &run,
                                  .n_logits = 1,
                                  .logit_rows = &last};
    struct kv_storage kv;
    rd_status st;

    r->n_vocab = c->n_vocab;
    mem_free(r->logits);
    r->logits = mem_zalloc(c->n_vocab, sizeof(float));
    if (!r->logits) return RD_E_NOMEM;
    st = backend_cpu_ops.pages.create(be, &layout, 1, &kv);
    if (st != RD_OK) return st;
    st = model_forward(m, &kv, &b, r->logits);
    backend_cpu_ops.pages.destroy(be, &kv);
    return st;
}

struct opened {
    struct model_file *g;
    struct backend *be;
    struct model *m;
};

static struct packed_options options(void)
{
    return (struct packed_options){.dir = folder, .cap_bytes = 1ull << 30, .n_threads = 2};
}

static rd_status open_model(const char *path, const struct packed_options *o, struct opened *out)
{
    const struct backend_options bo = {.n_threads = 2};
    struct model_source s = {.ops = &backend_cpu_ops, .max_rows = N_TOKENS, .max_logits = 1, .packed = o};
    rd_status st = model_file_open(path, model_hub_families(), &out->g, NULL);

    if (st == RD_OK) st = backend_cpu_ops.life.create(&bo, &out->be, NULL);
    s.g = out->g;
    s.be = out->be;
    if (st == RD_OK) st = model_load_packed(&s, &out->m, NULL);
    return st;
}

static void close_model(struct opened *x)
{
    model_destroy(x->m);
    if (x->be) backend_cpu_ops.life.destroy(x->be);
    model_file_close(x->g);
    *x = (struct opened){0};
}

static struct run run_with(const char *path, const struct packed_options *o)
{
    struct opened x = {0};
    struct run r = {0};

    r.st = open_model(path, o, &x);
    if (r.st == RD_OK) {
        r.n_packed = model_packed_bytes(x.m);
        r.n_own = model_weight_bytes(x.m);
        r.st = forward(x.m, x.be, &r);
    }
    close_model(&x);
    return r;
}

static struct run run_model(void)
{
    const struct packed_options o = options();

    return run_with(model, &o);
}

static bool same(const struct run *a, const struct run *b)
{
    return a->st == RD_OK && b->st == RD_OK && a->n_vocab == b->n_vocab &&
           !memcmp(a->logits, b->logits, a->n_vocab * sizeof(float));
}

/* A run, its outcome compared with `cold`, and where its weights came from. */
static bool run_is(const struct run *cold, bool packed)
{
    struct run r = run_model();
    bool ok = same(cold, &r) && (r.n_packed > 0) == packed;

    if (!ok) test_note("status %s, %llu bytes packed", rd_status_name(r.st), (unsigned long long)r.n_packed);
    mem_free(r.logits);
    return ok;
}

TEST(the_second_start_maps_what_the_first_packed_and_gives_the_same_bits)
{
    CHECK(enter());
    struct run cold = run_with(model, NULL);

    CHECK_OK(cold.st);
    CHECK_EQ(cold.n_packed, 0);
    CHECK(run_is(&cold, false));
    CHECK_EQ(n_entries(), 1);
    struct run warm = run_model();
    CHECK(same(&cold, &warm));
    CHECK_EQ(warm.n_packed + warm.n_own, cold.n_own); /* every matrix, nothing twice */
    mem_free(warm.logits);
    struct stat st;
    CHECK_EQ(stat(folder, &st), 0);
    CHECK_EQ(st.st_mode & 0777, 0700);
    CHECK_EQ(stat(entry_path(), &st), 0);
    CHECK_EQ(st.st_mode & 0777, 0600);
    mem_free(cold.logits);
    leave();
}

TEST(every_architecture_and_weight_type_gives_the_same_bits)
{
    static const char *const models[] = {"tests/golden/llama/tiny-llama.gguf", "tests/golden/gemma2/tiny-gemma2.gguf",
                                         "tests/golden/gemma3/tiny-gemma3.gguf",
                                         "tests/golden/qwen3/tiny-qwen3-tied.gguf"};
    const struct packed_options o = {.dir = folder, .cap_bytes = 1ull << 30, .n_threads = 2};

    CHECK(enter());
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        char path[256];

        snprintf(path, sizeof(path), "%s", test_path(models[i]));
        CHECK(file_exists(path));
        struct run cold = run_with(path, NULL), first = run_with(path, &o), second = run_with(path, &o);
        CHECK(same(&cold, &first) && same(&cold, &second));
        CHECK(first.n_packed == 0 && second.n_packed > 0);
        mem_free(cold.logits);
        mem_free(first.logits);
        mem_free(second.logits);
    }
    leave();
}

TEST(a_copy_with_the_same_contents_finds_the_entry)
{
    char *data, copy[100];
    size_t n;
    const struct packed_options o = {.dir = folder, .cap_bytes = 1ull << 30, .n_threads = 2};

    CHECK(enter());
    struct run cold = run_model();
    snprintf(copy, sizeof(copy), "%s/other.gguf", dir);
    CHECK_OK(file_read_all(model, 64 << 20, &data, &n, NULL));
    CHECK_OK(file_write_all(copy, data, n, NULL));
    mem_free(data);
    for (int i = 0; i < 2; i++) { /* by digest, then by the note that was made */
        struct run r = run_with(copy, &o);

        CHECK(same(&cold, &r) && r.n_packed > 0);
        mem_free(r.logits);
    }
    CHECK_EQ(n_entries(), 1);
    mem_free(cold.logits);
    leave();
}

TEST(a_directorys_weights_are_found_under_another_name_but_not_under_another_config)
{
    const struct packed_options o = {.dir = folder, .cap_bytes = 1ull << 30, .n_threads = 2};
    const struct hub_options hub = {.n_shards = 2};
    char at[64], moved[80], config[128], *text;
    size_t n;

    CHECK(enter());
    CHECK(hub_make(test_path(MODEL), &hub, at));
    struct run cold = run_with(at, NULL), first = run_with(at, &o), second = run_with(at, &o);
    CHECK(same(&cold, &first) && same(&cold, &second));
    CHECK(first.n_packed == 0 && second.n_packed > 0);
    snprintf(moved, sizeof(moved), "%s-moved", at);
    CHECK_EQ(rename(at, moved), 0);
    struct run third = run_with(moved, &o);
    CHECK(same(&cold, &third) && third.n_packed > 0);
    CHECK_EQ(n_entries(), 1);
    snprintf(config, sizeof(config), "%s/config.json", moved);
    CHECK_OK(file_read_all(config, 1 << 20, &text, &n, NULL));
    *strstr(text, "rms_norm_eps") = 'R'; /* its default then, which is the same number */
    CHECK_OK(file_write_all(config, text, n, NULL));
    mem_free(text);
    struct run fourth = run_with(moved, &o);
    CHECK(fourth.st == RD_OK && fourth.n_packed > 0);
    CHECK_OK(file_read_all(config, 1 << 20, &text, &n, NULL));
    *strstr(text, "rope_theta") = 'R'; /* another base */
    CHECK_OK(file_write_all(config, text, n, NULL));
    mem_free(text);
    struct run fifth = run_with(moved, &o);
    CHECK(fifth.st == RD_OK && fifth.n_packed == 0);
    mem_free(cold.logits);
    mem_free(first.logits);
    mem_free(second.logits);
    mem_free(third.logits);
    mem_free(fourth.logits);
    mem_free(fifth.logits);
    hub_remove(moved);
    leave();
}

/* One byte of the last tensor, in place: size and times as they were, as far as a program can set them. */
TEST(a_model_rewritten_in_place_with_its_old_times_is_another_model)
{
    struct stat st;
    uint8_t byte;
    int fd;

    CHECK(enter());
    struct run cold = run_model();
    CHECK(run_is(&cold, true));
    CHECK_EQ(stat(model, &st), 0);
    clock_sleep_ns(20000000); /* past the file system's clock tick */
    fd = open(model, O_RDWR);
    CHECK(fd >= 0);
    CHECK_EQ(pread(fd, &byte, 1, st.st_size - 200), 1);
    byte ^= 0x15;
    CHECK_EQ(pwrite(fd, &byte, 1, st.st_size - 200), 1);
    CHECK_EQ(futimens(fd, (const struct timespec[]){st.st_atim, st.st_mtim}), 0);
    close(fd);
    struct run changed = run_with(model, NULL), r = run_model();
    CHECK(same(&changed, &r));
    CHECK_EQ(r.n_packed, 0);
    CHECK(!same(&cold, &changed));
    CHECK_EQ(n_entries(), 2);
    CHECK(run_is(&changed, true));
    mem_free(cold.logits);
    mem_free(changed.logits);
    mem_free(r.logits);
    leave();
}

TEST(a_model_that_changed_a_moment_ago_is_not_kept)
{
    struct packed_options o = options();

    CHECK(enter());
    o.settle_ns = 3600ull * 1000000000;
    struct run r = run_with(model, &o);
    CHECK_OK(r.st);
    CHECK_EQ(n_entries(), 0);
    mem_free(r.logits);
    leave();
}

static bool flip(const char *path, uint64_t at, unsigned bit)
{
    int fd = open(path, O_RDWR);
    uint8_t byte = 0;
    bool ok = fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1;

    byte ^= (uint8_t)(1u << bit);
    ok = ok && pwrite(fd, &byte, 1, (off_t)at) == 1;
    if (fd >= 0) close(fd);
    return ok;
}

TEST(a_damaged_entry_is_found_out_and_made_again)
{
    struct random random;
    struct stat st;

    CHECK(enter());
    struct run cold = run_model();
    random_init(&random, test_seed());
    CHECK_EQ(stat(entry_path(), &st), 0);
    for (uint32_t i = 0; i < 304; i++) { /* every byte of the head, then 200 anywhere */
        uint64_t at = i < 104 ? i : random_below(&random, (uint64_t)st.st_size);

        CHECK(flip(entry_path(), at, (unsigned)random_below(&random, 8)));
        CHECK(run_is(&cold, false));
        CHECK_EQ(n_entries(), 1);
        if (i % 16 == 0) CHECK(run_is(&cold, true));
    }
    for (uint64_t size = (uint64_t)st.st_size; size > 0; size = size * 2 / 3) { /* cut short, any length */
        CHECK_EQ(truncate(entry_path(), (off_t)(size - 1)), 0);
        CHECK(run_is(&cold, false));
    }
    CHECK_EQ(truncate(entry_path(), st.st_size + 4096), 0);
    CHECK(run_is(&cold, false));
    CHECK(run_is(&cold, true));
    mem_free(cold.logits);
    leave();
}

TEST(a_damaged_note_costs_a_digest_only)
{
    struct count c = {.suffix = ".id"};
    char path[256];
    struct stat st;

    CHECK(enter());
    struct run cold = run_model();
    cache_dir_list(folder, count_one, &c);
    CHECK_EQ(c.n, 1);
    snprintf(path, sizeof(path), "%s/%s", folder, c.last);
    CHECK_EQ(stat(path, &st), 0);
    for (uint64_t at = 0; at < (uint64_t)st.st_size; at++) {
        CHECK(flip(path, at, at % 8));
        CHECK(run_is(&cold, true));
    }
    mem_free(cold.logits);
    leave();
}

TEST(every_file_call_may_fail)
{
    CHECK(enter());
    struct run cold = run_with(model, NULL);
    uint32_t n_kept = 0;

    for (int64_t i = 0; i < 60; i++) { /* writing, reading: the model opens or says what failed */
        remove_all(folder);
        for (int pass = 0; pass < 2; pass++) {
            file_fail_after(i);
            struct run r = run_model();
            file_fail_after(-1);
            CHECK(same(&cold, &r) || (r.st == RD_E_IO && i < 4)); /* the model file itself: stat, open, fstat, mmap */
            mem_free(r.logits);
            CHECK_EQ(n_temporaries(), 0);
        }
        n_kept += n_entries();
        CHECK(run_is(&cold, n_entries() > 0));
    }
    CHECK(n_kept > 30);
    mem_free(cold.logits);
    leave();
}

TEST(every_allocation_may_fail)
{
    uint64_t alive;
    rd_status st = RD_E_NOMEM;
    int64_t i;

    CHECK(enter());
    alive = mem_n_alive();
    struct run cold = run_with(model, NULL);
    for (int warm = 0; warm < 2; warm++) {
        for (i = 0, st = RD_E_NOMEM; st != RD_OK && i < 2000; i++) {
            if (!warm) remove_all(folder);
            mem_fail_after(i);
            struct run r = run_model();
            mem_fail_after(-1);
            st = r.st;
            CHECK(st == RD_E_NOMEM || same(&cold, &r));
            mem_free(r.logits);
        }
        CHECK(i > 5 && i < 2000);
        CHECK(run_is(&cold, n_entries() > 0));
    }
    mem_free(cold.logits);
    CHECK_EQ(mem_n_alive(), alive);
    leave();
}

/* ---- other processes ---- */

static pid_t start_child(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        struct run r = run_model();

        _exit(r.st == RD_OK ? 0 : 1);
    }
    return pid;
}

TEST(two_processes_at_once_both_run_and_leave_one_entry)
{
    CHECK(enter());
    struct run cold = run_with(model, NULL);
    for (int round = 0; round < 10; round++) {
        pid_t a, b;
        int status_a = 1, status_b = 1;

        remove_all(folder);
        a = start_child();
        b = start_child();
        CHECK(a > 0 && b > 0);
        CHECK_EQ(waitpid(a, &status_a, 0), a);
        CHECK_EQ(waitpid(b, &status_b, 0), b);
        CHECK(status_a == 0 && status_b == 0);
        CHECK_EQ(n_entries(), 1);
        CHECK_EQ(n_temporaries(), 0);
        CHECK(run_is(&cold, true));
    }
    mem_free(cold.logits);
    leave();
}

static void end_if_damaged(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level;
    if (strstr(line, "damaged")) _exit(3);
}

/* Loads n times; exits with 3 when it meets a damaged entry. forget: without one in the folder, so that it writes. */
static pid_t start_loader(uint32_t n, bool forget)
{
    pid_t pid = fork();

    if (pid != 0) return pid;
    log_set_level(LOG_WARN);
    log_set_sink(end_if_damaged, NULL);
    for (uint32_t i = 0; i < n; i++) {
        struct run r;

        if (forget && n_entries() > 0) (void)unlink(entry_path());
        r = run_model();
        if (r.st != RD_OK) _exit(1);
        mem_free(r.logits);
    }
    _exit(0);
}

TEST(readers_never_see_half_of_what_others_write)
{
    enum { N = 4, N_ROUNDS = 40 };
    pid_t pids[N];
    int status;

    CHECK(enter());
    struct run cold = run_with(model, NULL);
    for (uint32_t i = 0; i < N; i++) pids[i] = start_loader(N_ROUNDS, i % 2 == 0);
    for (uint32_t i = 0; i < N; i++) {
        CHECK(pids[i] > 0);
        CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
        CHECK(WIFEXITED(status));
        CHECK_EQ(WEXITSTATUS(status), 0);
    }
    CHECK_EQ(n_temporaries(), 0);
    mem_free(cold.logits);
    leave();
}

TEST(a_writer_killed_at_any_moment_leaves_nothing_that_is_served)
{
    struct random random;
    uint32_t n_left = 0;

    CHECK(enter());
    struct run cold = run_with(model, NULL);
    random_init(&random, test_seed());
    for (int round = 0; round < 40; round++) {
        pid_t pid;

        remove_all(folder);
        pid = start_child();
        CHECK(pid > 0);
        clock_sleep_ns(random_below(&random, 30000000));
        kill(pid, SIGKILL);
        CHECK_EQ(waitpid(pid, NULL, 0), pid);
        n_left += n_temporaries();
        CHECK(run_is(&cold, n_entries() > 0)); /* whole or not there */
        CHECK(n_entries() == 1);
    }
    CHECK_OK(cache_dir_make(folder, NULL));
    cache_dir_tidy(folder, ".packed", UINT64_MAX, NULL);
    CHECK_EQ(n_temporaries(), 0);
    test_note("%u temporaries were left by 40 killed writers, all removed later", n_left);
    mem_free(cold.logits);
    leave();
}

/* ---- files that are cut short while they are used ---- */

TEST(cutting_the_packed_file_short_fails_requests_and_nothing_else)
{
    const struct packed_options o = options();
    struct opened x = {0};
    struct run r = {0};

    CHECK(enter());
    struct run cold = run_model();
    CHECK_OK(open_model(model, &o, &x));
    CHECK(model_packed_bytes(x.m) > 0);
    CHECK_OK(forward(x.m, x.be, &r));
    CHECK_EQ(truncate(entry_path(), 4096), 0);
    CHECK_EQ(forward(x.m, x.be, &r), RD_E_DEVICE);
    CHECK_EQ(forward(x.m, x.be, &r), RD_E_DEVICE);
    close_model(&x);
    CHECK(run_is(&cold, false));
    CHECK(run_is(&cold, true));
    mem_free(r.logits);
    mem_free(cold.logits);
    leave();
}

TEST(removing_the_packed_file_does_not_matter_to_who_has_it)
{
    const struct packed_options o = options();
    struct opened x = {0};
    struct run r = {0};

    CHECK(enter());
    struct run cold = run_model();
    CHECK_OK(open_model(model, &o, &x));
    CHECK_EQ(unlink(entry_path()), 0);
    r.st = forward(x.m, x.be, &r);
    CHECK(same(&cold, &r));
    close_model(&x);
    mem_free(r.logits);
    mem_free(cold.logits);
    leave();
}

TEST(cutting_the_model_file_short_fails_requests_and_nothing_else)
{
    struct opened x = {0};
    struct run r = {0};
    struct stat st;

    CHECK(enter());
    CHECK_OK(open_model(model, NULL, &x));
    CHECK_OK(forward(x.m, x.be, &r));
    CHECK_EQ(stat(model, &st), 0);
    CHECK_EQ(truncate(model, 0), 0); /* the embedding's rows are read from there */
    CHECK_EQ(forward(x.m, x.be, &r), RD_E_DEVICE);
    close_model(&x);
    mem_free(r.logits);
    leave();
}

/* ---- the folder ---- */

TEST(a_folder_that_cannot_be_used_costs_the_copy_only)
{
    struct packed_options o = options();
    char path[200], entry[256];

    CHECK(enter());
    struct run cold = run_with(model, NULL), r;
    o.dir = model; /* a file */
    r = run_with(model, &o);
    CHECK(same(&cold, &r));
    mem_free(r.logits);
    o.dir = "/proc/no/such/folder";
    r = run_with(model, &o);
    CHECK(same(&cold, &r));
    mem_free(r.logits);
    CHECK_EQ(mkdir(folder, 0777), 0);
    CHECK_EQ(chmod(folder, 0777), 0); /* others may write: what is there is not to be trusted */
    CHECK(run_is(&cold, false));
    CHECK_EQ(n_entries(), 0);
    CHECK_EQ(chmod(folder, 0700), 0);
    CHECK(run_is(&cold, false));
    CHECK_EQ(chmod(entry_path(), 0666), 0);
    CHECK(run_is(&cold, false)); /* and replaced */
    CHECK(run_is(&cold, true));
    snprintf(path, sizeof(path), "%s/elsewhere", dir); /* a link in an entry's place is not followed */
    snprintf(entry, sizeof(entry), "%s", entry_path());
    CHECK_EQ(rename(entry, path), 0);
    CHECK_EQ(symlink(path, entry), 0);
    CHECK(run_is(&cold, false));
    CHECK(run_is(&cold, true)); /* a file took its place */
    mem_free(cold.logits);
    leave();
}

TEST(the_least_recently_used_entries_go_when_room_is_short)
{
    struct packed_options o = options();
    uint64_t n_bytes;
    struct stat st;

    CHECK(enter());
    struct run cold = run_model();
    CHECK_EQ(stat(entry_path(), &st), 0);
    n_bytes = (uint64_t)st.st_size;
    o.cap_bytes = n_bytes - 1; /* one alone is too large */
    remove_all(folder);
    struct run r = run_with(model, &o);
    CHECK(same(&cold, &r));
    CHECK_EQ(n_entries(), 0);
    mem_free(r.logits);
    CHECK(run_is(&cold, false));
    o.cap_bytes = n_bytes * 3 / 2; /* one, not two */
    CHECK(flip(model, 400000, 0)); /* another model of that size */
    mem_free(run_with(model, &o).logits);
    CHECK_EQ(n_entries(), 1);
    o.min_bytes = n_bytes + 1; /* too small to keep */
    remove_all(folder);
    mem_free(run_with(model, &o).logits);
    CHECK_EQ(n_entries(), 0);
    mem_free(cold.logits);
    leave();
}

/* The digest of the model as it is now; false: it could not be told. */
static bool digest_now(struct hash128 *out)
{
    struct packed_options o = {.dir = folder, .settle_ns = 0, .n_threads = 2};
    struct model_file *g;
    bool ok = model_file_open(model, model_hub_families(), &g, NULL) == RD_OK;

    if (ok) {
        ok = packed_content(&o, g, out, NULL) == RD_OK;
        model_file_close(g);
    }
    return ok;
}

TEST(a_models_digest_is_its_contents_and_is_noted)
{
    struct hash128 first, again, other;
    struct count notes = {.suffix = ".id"};
    char *data;
    size_t n;

    CHECK(enter());
    CHECK_OK(cache_dir_make(folder, NULL));
    CHECK(digest_now(&first));
    cache_dir_list(folder, count_one, &notes);
    CHECK_EQ(notes.n, 1);
    CHECK(digest_now(&again) && hash128_equal(first, again)); /* by the note */
    cache_dir_remove(folder, notes.last);
    CHECK(digest_now(&again) && hash128_equal(first, again)); /* computed */
    CHECK_OK(file_read_all(model, 64 << 20, &data, &n, NULL));
    data[n - 5] ^= 1; /* a fine-tuned one: same name, shape and size */
    CHECK_OK(file_write_all(model, data, n, NULL));
    mem_free(data);
    CHECK(digest_now(&other) && !hash128_equal(first, other));
    leave();
}
