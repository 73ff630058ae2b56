/* tests/base/test_file.c - mapping, reading, writing, what is refused, the fault hook, and files that shrink. */
#include "base/file.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/thread.h"
#include "test.h"

static char dir[64];

/* A fresh folder for one test, removed by leave(). */
static bool enter(void)
{
    snprintf(dir, sizeof(dir), "/tmp/radish-test-XXXXXX");
    return mkdtemp(dir) != NULL;
}

static const char *in_dir(const char *name)
{
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

static int n_in_dir(void)
{
    DIR *d = opendir(dir);
    int n = 0;

    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void leave(void)
{
    DIR *d = opendir(dir);

    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') remove(in_dir(e->d_name));
    if (d) closedir(d);
    rmdir(dir);
}

static int n_open_files(void)
{
    int n = 0;

    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

TEST(what_is_written_is_read_and_mapped)
{
    struct file_map map;
    char *data;
    size_t n;
    int n_open = n_open_files();

    CHECK(enter());
    CHECK_OK(file_write_all(in_dir("a"), "one\0two", 7, NULL));
    CHECK_OK(file_read_all(in_dir("a"), 7, &data, &n, NULL));
    CHECK_EQ(n, 7);
    CHECK_EQ(memcmp(data, "one\0two", 8), 0); /* terminated beyond n */
    mem_free(data);
    CHECK_OK(file_map_open(in_dir("a"), &map, NULL));
    CHECK_EQ(map.n_bytes, 7);
    CHECK_EQ(memcmp(map.data, "one\0two", 7), 0);
    CHECK(file_map_unchanged(&map));
    CHECK_EQ(truncate(in_dir("a"), 3), 0);
    CHECK(!file_map_unchanged(&map));
    file_map_close(&map);
    file_map_close(&map); /* closed already: nothing happens */
    CHECK(file_exists(in_dir("a")) && !file_exists(in_dir("b")));
    CHECK_EQ(n_in_dir(), 1);
    CHECK_EQ(n_open_files(), n_open);
    leave();
}

TEST(an_empty_file_maps_to_nothing)
{
    struct file_map map = {.data = (const uint8_t *)"x"};
    char *data;
    size_t n;

    CHECK(enter());
    CHECK_OK(file_write_all(in_dir("empty"), NULL, 0, NULL));
    CHECK_OK(file_map_open(in_dir("empty"), &map, NULL));
    CHECK(!map.data && map.n_bytes == 0);
    CHECK(file_map_unchanged(&map));
    file_map_close(&map);
    CHECK_OK(file_read_all(in_dir("empty"), 0, &data, &n, NULL));
    CHECK_EQ(n, 0);
    CHECK_STR(data, "");
    mem_free(data);
    leave();
}

TEST(replacing_a_file_is_all_or_nothing)
{
    struct rd_error err;
    rd_status st = RD_E_IO;
    char *data;
    size_t n;
    int i, n_open = n_open_files();

    CHECK(enter());
    CHECK_OK(file_write_all(in_dir("a"), "old", 3, NULL));
    for (i = 0; st; i++) {
        file_fail_after(i);
        st = file_write_all(in_dir("a"), "new", 3, &err);
        file_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_IO);
        CHECK_OK(file_read_all(in_dir("a"), 100, &data, &n, NULL));
        CHECK_STR(data, st ? "old" : "new");
        mem_free(data);
        CHECK_EQ(n_in_dir(), 1);
        CHECK_EQ(n_open_files(), n_open);
        if (st) CHECK(strncmp(err.text, "a: ", 3) == 0);
    }
    CHECK_EQ(i, 5); /* open, write, close, rename, and none */
    leave();
}

TEST(reading_and_mapping_survive_every_fault)
{
    struct file_map map;
    uint64_t alive = mem_n_alive();
    int n_open = n_open_files();
    rd_status st;
    char *data;
    size_t n;

    CHECK(enter());
    CHECK_OK(file_write_all(in_dir("a"), "text", 4, NULL));
    for (int i = 0; i < 10; i++) {
        file_fail_after(i);
        st = file_read_all(in_dir("a"), 100, &data, &n, NULL);
        file_fail_after(-1);
        if (st == RD_OK) mem_free(data);
        CHECK_EQ(st, i < 4 ? RD_E_IO : RD_OK); /* stat, open, fstat, read */
        file_fail_after(i);
        st = file_map_open(in_dir("a"), &map, NULL);
        file_fail_after(-1);
        if (st == RD_OK) file_map_close(&map);
        CHECK_EQ(st, i < 4 ? RD_E_IO : RD_OK);
    }
    mem_fail_after(0);
    CHECK_EQ(file_read_all(in_dir("a"), 100, &data, &n, NULL), RD_E_NOMEM);
    mem_fail_after(0);
    CHECK_EQ(file_write_all(in_dir("b"), "x", 1, NULL), RD_E_NOMEM);
    CHECK_EQ(mem_n_alive(), alive);
    CHECK_EQ(n_open_files(), n_open);
    leave();
}

TEST(only_regular_files_are_opened)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct file_map map;
    struct rd_error err;
    char *data;
    size_t n;
    int s;

    CHECK(enter());
    CHECK_EQ(mkfifo(in_dir("fifo"), 0600), 0);
    CHECK_EQ(symlink("/dev/zero", in_dir("link")), 0);
    s = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", in_dir("socket"));
    CHECK_EQ(bind(s, (struct sockaddr *)&address, sizeof(address)), 0);
    close(s);
    const char *bad[] = {in_dir("fifo"), dir, in_dir("socket"), in_dir("link")};
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(file_map_open(bad[i], &map, &err), RD_E_INVALID);
        CHECK(strstr(err.text, "wanted a regular file"));
        CHECK_EQ(file_read_all(bad[i], 10, &data, &n, &err), RD_E_INVALID);
    }
    CHECK_EQ(file_map_open(in_dir("none"), &map, &err), RD_E_NOT_FOUND);
    CHECK_STR(err.text, "none: there is no such file");
    CHECK_EQ(file_write_all(in_dir("none/a"), "", 0, &err), RD_E_NOT_FOUND);
    CHECK_OK(file_write_all(in_dir("real"), "x", 1, NULL));
    CHECK_EQ(symlink("real", in_dir("good")), 0); /* links to regular files are followed */
    CHECK_OK(file_map_open(in_dir("good"), &map, NULL));
    file_map_close(&map);
    CHECK_EQ(file_read_all(in_dir("real"), 0, &data, &n, &err), RD_E_LIMIT);
    leave();
}

/* Reads a byte of every page in a thread of its own. */
struct reader {
    const struct file_map *map;
    uint32_t sum;
};

static void read_pages(void *arg)
{
    struct reader *r = arg;

    for (uint64_t i = 0; i < r->map->n_bytes; i += 4096) r->sum += ((const volatile uint8_t *)r->map->data)[i];
}

TEST(a_watched_file_that_is_cut_short_reads_as_zeros_from_there_and_says_so)
{
    enum { N_PAGES = 64 };
    char *ones = mem_alloc(N_PAGES, 4096);
    struct sigaction before, after;
    struct file_map map, whole;
    struct reader r = {&map, 0};
    struct thread t = {0};

    CHECK(enter() && ones);
    sigaction(SIGBUS, NULL, &before);
    memset(ones, 1, N_PAGES * 4096);
    CHECK_OK(file_write_all(in_dir("a"), ones, N_PAGES * 4096, NULL));
    CHECK_OK(file_write_all(in_dir("b"), ones, N_PAGES * 4096, NULL));
    mem_free(ones);
    CHECK_OK(file_map_open(in_dir("a"), &map, NULL));
    CHECK_OK(file_map_open(in_dir("b"), &whole, NULL));
    CHECK_OK(file_map_watch(&map, NULL));
    CHECK_OK(file_map_watch(&map, NULL)); /* again: nothing happens */
    CHECK_OK(file_map_watch(&whole, NULL));
    read_pages(&r);
    CHECK_EQ(r.sum, N_PAGES);
    CHECK(!file_map_broken(&map));
    CHECK_EQ(truncate(in_dir("a"), 10 * 4096), 0);
    r.sum = 0;
    CHECK_OK(thread_start(&t, "reader", read_pages, &r)); /* any thread */
    thread_join(&t);
    CHECK_EQ(r.sum, 10);
    CHECK(file_map_broken(&map) && !file_map_broken(&whole));
    file_map_close(&map);
    CHECK(!file_map_broken(&map));
    r = (struct reader){&whole, 0};
    read_pages(&r);
    CHECK_EQ(r.sum, N_PAGES);
    file_map_close(&whole);
    sigaction(SIGBUS, NULL, &after);
    CHECK(before.sa_handler == after.sa_handler); /* ours is gone */
    leave();
}

static rd_status read_pages_guarded(void *arg)
{
    read_pages(arg);
    return RD_OK;
}

TEST(a_guard_goes_before_a_watch)
{
    struct file_map map;
    struct reader r = {&map, 0};
    struct rd_error err;

    CHECK(enter());
    CHECK_OK(file_write_all(in_dir("a"), dir, sizeof(dir), NULL));
    CHECK_EQ(truncate(in_dir("a"), 8192), 0);
    CHECK_OK(file_map_open(in_dir("a"), &map, NULL));
    CHECK_OK(file_map_watch(&map, NULL));
    CHECK_EQ(truncate(in_dir("a"), 0), 0);
    CHECK_EQ(file_map_guard(&map, read_pages_guarded, &r, &err), RD_E_IO);
    CHECK(!file_map_broken(&map));
    file_map_close(&map);
    leave();
}

TEST(so_many_maps_are_watched_and_no_more)
{
    static struct file_map maps[FILE_MAX_WATCHES + 1];
    struct rd_error err;

    CHECK(enter());
    CHECK_OK(file_write_all(in_dir("a"), "x", 1, NULL));
    for (unsigned i = 0; i <= FILE_MAX_WATCHES; i++) {
        CHECK_OK(file_map_open(in_dir("a"), &maps[i], NULL));
        CHECK_EQ(file_map_watch(&maps[i], &err), i < FILE_MAX_WATCHES ? RD_OK : RD_E_LIMIT);
    }
    file_map_close(&maps[7]);
    CHECK_OK(file_map_watch(&maps[FILE_MAX_WATCHES], &err));
    for (unsigned i = 0; i <= FILE_MAX_WATCHES; i++)
        if (i != 7) file_map_close(&maps[i]);
    leave();
}

TEST(an_identity_changes_with_every_write_and_cannot_be_set_back)
{
    struct file_identity a, b;
    struct file_map map;
    struct stat st;
    bool settled;
    int fd;

    CHECK(enter());
    CHECK_OK(file_write_all(in_dir("a"), "one", 3, NULL));
    CHECK_OK(file_map_open(in_dir("a"), &map, NULL));
    CHECK_OK(file_map_identity(&map, 0, &a, &settled));
    CHECK(settled);
    CHECK_OK(file_map_identity(&map, 3600ull * 1000000000, &b, &settled));
    CHECK(!settled && a.ctime_ns == b.ctime_ns && a.inode == b.inode && a.n_bytes == 3);
    CHECK_EQ(stat(in_dir("a"), &st), 0);
    for (int i = 0; i < 1000 && b.ctime_ns == a.ctime_ns; i++) { /* until the file system's clock has moved on */
        fd = open(in_dir("a"), O_WRONLY);
        CHECK_EQ(pwrite(fd, "two", 3, 0), 3);
        CHECK_EQ(futimens(fd, (const struct timespec[]){st.st_atim, st.st_mtim}), 0);
        close(fd);
        CHECK_OK(file_map_identity(&map, 0, &b, &settled));
    }
    CHECK(b.mtime_ns == a.mtime_ns && b.ctime_ns != a.ctime_ns);
    file_map_close(&map);
    leave();
}

struct touch {
    const struct file_map *map;
    uint64_t at;
    uint32_t sum;
};

static rd_status touch_byte(void *arg)
{
    struct touch *t = arg;

    t->sum += ((const volatile uint8_t *)t->map->data)[t->at];
    return t->at == 1 ? RD_E_FORMAT : RD_OK;
}

TEST(a_file_that_shrinks_under_a_guarded_reader_is_an_error)
{
    static char big[65536];
    struct file_map map;
    struct rd_error err;
    struct sigaction before, after;
    struct touch t = {.map = &map};

    CHECK(enter());
    sigaction(SIGBUS, NULL, &before);
    CHECK_OK(file_write_all(in_dir("a"), big, sizeof(big), NULL));
    CHECK_OK(file_map_open(in_dir("a"), &map, NULL));
    CHECK_OK(file_map_guard(&map, touch_byte, &t, &err));
    t.at = 1;
    CHECK_EQ(file_map_guard(&map, touch_byte, &t, &err), RD_E_FORMAT); /* fn's own result passes through */
    CHECK_EQ(truncate(in_dir("a"), 4096), 0);
    for (int i = 0; i < 3; i++) {
        t.at = sizeof(big) - 1;
        err.text[0] = 0;
        CHECK_EQ(file_map_guard(&map, touch_byte, &t, &err), RD_E_IO);
        CHECK(strstr(err.text, "65536"));
        t.at = 0;
        CHECK_OK(file_map_guard(&map, touch_byte, &t, &err));
    }
    sigaction(SIGBUS, NULL, &after);
    CHECK(before.sa_handler == after.sa_handler); /* the process has its own handling back */
    file_map_close(&map);
    leave();
}

static _Atomic int n_wrong;

static void guard_often(void *arg)
{
    const struct file_map *map = arg;

    for (int i = 0; i < 200; i++) {
        struct touch t = {.map = map, .at = i % 2 ? 65535 : 0};
        if (file_map_guard(map, touch_byte, &t, NULL) != (i % 2 ? RD_E_IO : RD_OK)) n_wrong++;
    }
}

TEST(guards_of_several_threads_do_not_meet)
{
    static char big[65536];
    struct thread threads[4] = {0};
    struct file_map map;

    CHECK(enter());
    CHECK_OK(file_write_all(in_dir("a"), big, sizeof(big), NULL));
    CHECK_OK(file_map_open(in_dir("a"), &map, NULL));
    CHECK_EQ(truncate(in_dir("a"), 4096), 0);
    for (int i = 0; i < 4; i++) CHECK_OK(thread_start(&threads[i], "guard", guard_often, &map));
    for (int i = 0; i < 4; i++) thread_join(&threads[i]);
    CHECK_EQ(n_wrong, 0);
    file_map_close(&map);
    leave();
}
