/* tests/base/test_cache_dir.c - whole files or none, whose they are, and which go first. */
#include "base/cache_dir.h"
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"
#include "test.h"

static char top[64], dir[96];

static bool enter(void)
{
    snprintf(top, sizeof(top), "/tmp/radish-test-XXXXXX");
    if (!mkdtemp(top)) return false;
    snprintf(dir, sizeof(dir), "%s/a/b", top);
    return cache_dir_make(dir, NULL) == RD_OK && cache_dir_make(dir, NULL) == RD_OK;
}

static bool remove_one(void *arg, const char *name)
{
    (void)arg;
    cache_dir_remove(dir, name);
    return true;
}

static void leave(void)
{
    char above[96];

    cache_dir_list(dir, remove_one, NULL);
    snprintf(above, sizeof(above), "%s/a", top);
    rmdir(dir);
    rmdir(above);
    rmdir(top);
}

static rd_status put(const char *name, size_t n)
{
    struct cache_file f;
    rd_status st = cache_file_create(dir, n, &f, NULL);

    if (st == RD_OK) st = cache_file_write(&f, n - 1, "x", 1, NULL);
    if (st == RD_OK) st = cache_file_commit(&f, dir, name, NULL);
    cache_file_abandon(&f);
    return st;
}

static bool is_there(const char *name)
{
    struct file_map map;

    if (cache_dir_map(dir, name, &map, NULL) != RD_OK) return false;
    file_map_close(&map);
    return true;
}

static bool concatenate(void *arg, const char *name)
{
    strcat(arg, name);
    return true;
}

TEST(a_file_is_seen_when_it_is_complete_and_not_before)
{
    struct cache_file f;
    struct file_map map;
    char names[400] = "";

    CHECK(enter());
    CHECK_OK(cache_file_create(dir, 10000, &f, NULL));
    CHECK_OK(cache_file_write(&f, 9999, "z", 1, NULL));
    cache_dir_list(dir, concatenate, names);
    CHECK_STR(names, "");
    cache_dir_tidy(dir, ".x", 0, NULL); /* its writer lives: it stays */
    CHECK_OK(cache_file_commit(&f, dir, "one.x", NULL));
    CHECK_OK(cache_dir_map(dir, "one.x", &map, NULL));
    CHECK(map.n_bytes == 10000 && map.data[0] == 0 && map.data[9999] == 'z');
    cache_dir_remove(dir, "one.x");
    CHECK_EQ(map.data[9999], 'z'); /* who has it mapped keeps it */
    file_map_close(&map);
    CHECK_EQ(cache_dir_map(dir, "one.x", &map, NULL), RD_E_NOT_FOUND);
    leave();
}

TEST(what_a_dead_writer_left_is_removed)
{
    char path[160];
    int fd;

    CHECK(enter());
    snprintf(path, sizeof(path), "%s/writing-0123", dir);
    fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0);
    CHECK_EQ(flock(fd, LOCK_EX), 0);
    cache_dir_tidy(dir, ".x", 100, NULL);
    CHECK(file_exists(path));
    close(fd); /* as the system does when a process ends */
    cache_dir_tidy(dir, ".x", 100, NULL);
    CHECK(!file_exists(path));
    leave();
}

TEST(the_least_recently_used_go_first)
{
    CHECK(enter());
    CHECK_OK(put("1.x", 1000));
    CHECK_OK(put("2.x", 1000));
    CHECK_OK(put("3.x", 1000));
    CHECK_OK(put("4.y", 1000));
    for (int i = 1; i <= 3; i++) { /* used in this order, long ago */
        char path[160];
        const struct timespec at[2] = {{i * 1000, 0}, {i * 1000, 0}};

        snprintf(path, sizeof(path), "%s/%d.x", dir, i);
        CHECK_EQ(utimensat(AT_FDCWD, path, at, 0), 0);
    }
    cache_dir_touch(dir, "1.x"); /* and one again */
    cache_dir_tidy(dir, ".x", 3000, NULL);
    CHECK(is_there("1.x") && is_there("2.x") && is_there("3.x"));
    cache_dir_tidy(dir, ".x", 2999, "2.x");
    CHECK(is_there("1.x") && is_there("2.x") && !is_there("3.x"));
    cache_dir_tidy(dir, ".x", 1999, NULL);
    CHECK(is_there("1.x") && !is_there("2.x"));
    cache_dir_tidy(dir, ".x", 0, "1.x");
    CHECK(is_there("1.x") && is_there("4.y"));
    leave();
}

TEST(what_others_may_write_to_is_refused)
{
    struct file_map map;
    struct rd_error err;
    char path[160];

    CHECK(enter());
    CHECK_OK(put("1.x", 10));
    snprintf(path, sizeof(path), "%s/1.x", dir);
    CHECK_EQ(chmod(path, 0620), 0);
    CHECK_EQ(cache_dir_map(dir, "1.x", &map, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "1.x: belongs to user"));
    CHECK_EQ(chmod(dir, 0770), 0);
    CHECK_EQ(cache_dir_make(dir, &err), RD_E_INVALID);
    CHECK_EQ(chmod(dir, 0700), 0);
    CHECK_EQ(cache_dir_make(path, &err), RD_E_INVALID); /* a file */
    leave();
}

TEST(every_call_may_fail_and_leaves_no_file)
{
    uint64_t alive = mem_n_alive();
    int n_failed = 0;

    CHECK(enter());
    for (int i = 0; i < 12; i++) {
        rd_status st;

        file_fail_after(i);
        st = put("1.x", 5000);
        file_fail_after(-1);
        CHECK_EQ(is_there("1.x"), st == RD_OK);
        n_failed += st != RD_OK;
        cache_dir_remove(dir, "1.x");
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK_EQ(n_failed, 5); /* open, lock, reserve, write, rename */
    mem_fail_after(0);
    CHECK_EQ(put("1.x", 10), RD_E_NOMEM);
    leave();
}
