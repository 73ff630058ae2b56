/* tests/format/test_gguf_split.c - a model in several GGUF files: the first finds the others, and has all tensors. */
#include <stdio.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "format/gguf/gguf.h"
#include "gguf_make.h"
#include "test.h"

#define N_PARTS 3

static const char *part_path(int no, int count)
{
    static char path[300];

    snprintf(path, sizeof(path), "%s/split_test_%ld-%05d-of-%05d.gguf", RADISH_BUILD_DIR, (long)getpid(), no, count);
    return path;
}

static const char *part_name(int no)
{
    return strrchr(part_path(no, N_PARTS), '/') + 1;
}

/* Part no (from 1) with two tensors of 4 KiB, "a1" and "b1" of part 1; `named` instead of the second. */
static void write_part(int no, uint32_t split_no, uint32_t split_count, uint32_t n_tensors, const char *named)
{
    struct buf b = {0};
    char first[8], second[8];
    struct rd_error err;

    snprintf(first, sizeof(first), "a%d", no);
    snprintf(second, sizeof(second), "b%d", no);
    gguf_put_header(&b, 3, 2, 4);
    gguf_put_kv_str(&b, "k", first);
    gguf_put_kv_u32(&b, "split.no", split_no);
    gguf_put_kv_u32(&b, "split.count", split_count);
    gguf_put_kv_u32(&b, "split.tensors.count", n_tensors);
    gguf_put_tensor(&b, first, 1, (uint64_t[]){1024}, DTYPE_F32, 0);
    gguf_put_tensor(&b, named ? named : second, 1, (uint64_t[]){1024}, DTYPE_F32, 4096);
    gguf_put_padding(&b, 32);
    for (int i = 0; i < 8192; i++) buf_putc(&b, (char)(no * 10 + i / 4096));
    CHECK_OK(file_write_all(part_path(no, N_PARTS), b.data, b.n, &err));
    buf_deinit(&b);
}

static void write_parts(void)
{
    for (int no = 1; no <= N_PARTS; no++) write_part(no, (uint32_t)no - 1, N_PARTS, 2 * N_PARTS, NULL);
}

static void remove_parts(void)
{
    for (int no = 1; no <= N_PARTS; no++) unlink(part_path(no, N_PARTS));
}

/* Opening the first part fails with st, and says what begins with `want`. */
static void check_refusal(rd_status st, const char *want)
{
    struct rd_error err = {RD_OK, ""};
    struct model_file *g = NULL;
    uint64_t alive = mem_n_alive();

    CHECK_EQ(gguf_open(part_path(1, N_PARTS), &g, &err), st);
    CHECK(!g);
    CHECK_EQ(mem_n_alive(), alive);
    err.text[strnlen(want, sizeof(err.text) - 1)] = 0;
    CHECK_STR(err.text, want);
}

TEST(the_first_file_has_the_tensors_of_all)
{
    struct model_file *g = NULL;
    struct rd_error err;
    struct model_str s;

    write_parts();
    CHECK_OK(gguf_open(part_path(1, N_PARTS), &g, &err));
    CHECK_EQ(model_file_n_tensors(g), 2 * N_PARTS);
    CHECK_EQ(model_file_n_maps(g), N_PARTS);
    CHECK_EQ(model_file_bytes(g),
             model_file_map_at(g, 0)->n_bytes + model_file_map_at(g, 1)->n_bytes + model_file_map_at(g, 2)->n_bytes);
    CHECK_OK(model_file_str(g, "k", &s, &err));
    CHECK(s.n == 2 && !memcmp(s.s, "a1", 2)); /* metadata is the first file's */
    for (int no = 1; no <= N_PARTS; no++) {
        char name[16];
        snprintf(name, sizeof(name), "b%d", no);
        const struct model_tensor *t = model_file_find_tensor(g, name);
        CHECK(t);
        CHECK_EQ(t->data[0], no * 10 + 1);
        CHECK_EQ(t->data[4095], no * 10 + 1);
    }
    CHECK(model_file_unchanged(g) && !model_file_broken(g));
    CHECK_EQ(truncate(part_path(3, N_PARTS), 100), 0); /* F08, of any of them */
    CHECK(!model_file_unchanged(g));
    model_file_close(g);
    remove_parts();
}

TEST(what_does_not_belong_together_is_refused_by_name)
{
    struct model_file *g = NULL;
    struct rd_error err;
    char want[200];

    write_parts();
    CHECK_EQ(gguf_open(part_path(2, N_PARTS), &g, &err), RD_E_INVALID);
    CHECK_STR(err.text, "is part 2 of 3 of a split model, open the first: its name ends in -00001-of-00003.gguf");
    write_part(3, 1, N_PARTS, 6, NULL);
    snprintf(want, sizeof(want), "%s: is part 2 of 3 by its metadata, expected 3 of 3", part_name(3));
    check_refusal(RD_E_FORMAT, want);
    write_part(3, 2, N_PARTS, 6, "a1");
    check_refusal(RD_E_FORMAT, "tensor \"a1\": the name is there twice");
    write_part(3, 2, N_PARTS, 6, NULL);
    write_part(1, 0, N_PARTS, 7, NULL);
    check_refusal(RD_E_FORMAT, "the 3 files have 6 tensors, split.tensors.count says 7");
    write_part(1, 0, 4, 6, NULL);
    check_refusal(RD_E_INVALID, "is part 1 of 4 of a split model; the others are found by its name, which must end "
                                "in -00001-of-00004.gguf");
    write_part(1, 0, 4000000, 6, NULL);
    check_refusal(RD_E_FORMAT, "metadata \"split.count\": 4000000, expected 0 .. 200");
    write_part(1, 0, N_PARTS, 6, NULL);
    CHECK_EQ(truncate(part_path(2, N_PARTS), 6000), 0);
    snprintf(want, sizeof(want), "%s: tensor \"b2\": offset ", part_name(2));
    check_refusal(RD_E_FORMAT, want);
    unlink(part_path(2, N_PARTS));
    snprintf(want, sizeof(want), "%s is missing: the model is split into 3 files", part_name(2));
    check_refusal(RD_E_NOT_FOUND, want);
    remove_parts();
}

TEST(a_single_file_may_say_so)
{
    struct model_file *g = NULL;
    struct rd_error err;

    for (uint32_t count = 0; count <= 1; count++) { /* what gguf-split --merge leaves is 0 */
        write_part(1, 0, count, 2, NULL);
        CHECK_OK(gguf_open(part_path(1, N_PARTS), &g, &err));
        CHECK_EQ(model_file_n_tensors(g), 2);
        model_file_close(g);
    }
    remove_parts();
}

TEST(failures_at_every_allocation_leave_nothing)
{
    struct model_file *g = NULL;
    struct rd_error err;
    uint64_t alive = mem_n_alive();
    int64_t i = 0;

    write_parts();
    for (;; i++) {
        mem_fail_after(i);
        rd_status st = gguf_open(part_path(1, N_PARTS), &g, &err);
        mem_fail_after(-1);
        if (st == RD_OK) break;
        CHECK_EQ(st, RD_E_NOMEM);
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK(i >= 15);
    model_file_close(g);
    CHECK_EQ(mem_n_alive(), alive);
    remove_parts();
}
