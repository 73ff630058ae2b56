/* tests/base/test_file_beneath.c - what a path below a folder leads to, with the system's call and without. */
#include "base/file_beneath.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "test.h"

/* Below a fresh folder: d/a.png "inside", d/sub/b, d/fifo, d/in -> a.png, d/out -> ../secret, d/abs -> its own absolute path,
 * d/up -> .., d/proc -> /proc/self; secret beside d. */
static char root[64];

static const char *at(const char *name)
{
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", root, name);
    return path;
}

static int enter(void)
{
    snprintf(root, sizeof(root), "/tmp/radish-test-XXXXXX");
    if (!mkdtemp(root) || mkdir(at("d"), 0700) || mkdir(at("d/sub"), 0700) || mkfifo(at("d/fifo"), 0600)) return -1;
    if (file_write_all(at("d/a.png"), "inside", 6, NULL) || file_write_all(at("secret"), "outside", 7, NULL) ||
        file_write_all(at("d/sub/b"), "below", 5, NULL) || symlink("a.png", at("d/in")) ||
        symlink("../secret", at("d/out")) || symlink(at("secret"), at("d/abs")) || symlink("..", at("d/up")) ||
        symlink("/proc/self", at("d/proc")) || symlink("loop", at("d/loop")))
        return -1;
    return file_beneath_open_dir(at("d"));
}

static void leave(int dir)
{
    char command[128];

    close(dir);
    snprintf(command, sizeof(command), "rm -r %s", root);
    if (system(command)) test_note("%s stays", root);
}

/* The bytes, or the status' name. */
static const char *read_of(int dir, const char *path, bool walk)
{
    static char text[128];
    void *data = NULL;
    size_t n = 0;
    struct rd_error err = {RD_OK, ""};
    rd_status st = file_beneath_read(dir, path, 64, walk, &data, &n, &err);

    snprintf(text, sizeof(text), "%.*s", (int)n, st == RD_OK ? (const char *)data : "");
    mem_free(data);
    return st == RD_OK ? text : rd_status_name(st);
}

TEST(paths_stay_below)
{
    static const struct {
        const char *path, *called, *walked;
    } cases[] = {{"a.png", "inside", "inside"},
                 {"sub/b", "below", "below"},
                 {"sub//b", "below", "below"},
                 {"in", "inside", NULL},
                 {"sub/../a.png", "inside", NULL},
                 {"out", NULL, NULL},
                 {"abs", NULL, NULL},
                 {"up/secret", NULL, NULL},
                 {"../secret", NULL, NULL},
                 {"sub/../../secret", NULL, NULL},
                 {"proc/cmdline", NULL, NULL},
                 {"/etc/passwd", NULL, NULL},
                 {"a.png/x", NULL, NULL},
                 {"loop", NULL, NULL},
                 {"nothing", NULL, NULL},
                 {"", NULL, NULL},
                 {"fifo", "RD_E_INVALID", "RD_E_INVALID"},
                 {"sub", "RD_E_INVALID", "RD_E_INVALID"}};
    int dir = enter();

    CHECK(dir >= 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const char *called = cases[i].called ? cases[i].called : "RD_E_NOT_FOUND";
        const char *walked = cases[i].walked ? cases[i].walked : "RD_E_NOT_FOUND";

        if (strcmp(read_of(dir, cases[i].path, true), walked))
            test_fail(__FILE__, __LINE__, "walk %s: %s", cases[i].path, read_of(dir, cases[i].path, true));
        if (strcmp(read_of(dir, cases[i].path, false), called))
            test_fail(__FILE__, __LINE__, "call %s: %s", cases[i].path, read_of(dir, cases[i].path, false));
    }
    leave(dir);
}

TEST(sizes_faults_and_memory)
{
    int dir = enter();
    char big[65] = "";
    void *data;
    size_t n;
    bool ok = false;

    CHECK(dir >= 0);
    CHECK_OK(file_write_all(at("d/big"), big, 65, NULL));
    CHECK_STR(read_of(dir, "big", false), "RD_E_LIMIT");
    CHECK_OK(file_write_all(at("d/big"), big, 64, NULL));
    CHECK_OK(file_beneath_read(dir, "big", 64, false, &data, &n, NULL));
    CHECK_EQ(n, 64);
    mem_free(data);
    for (int64_t i = 0; i < 16 && !ok; i++) {
        rd_status st;

        file_fail_after(i);
        st = file_beneath_read(dir, "a.png", 64, false, &data, &n, NULL);
        file_fail_after(-1);
        ok = st == RD_OK;
        CHECK(ok || (st == RD_E_IO && !data && n == 0));
        mem_free(data);
    }
    CHECK(ok);
    mem_fail_after(0);
    CHECK_STR(read_of(dir, "a.png", false), "RD_E_NOMEM");
    mem_fail_after(-1);
    CHECK_EQ(file_beneath_open_dir(at("nowhere")), -1);
    CHECK_EQ(file_beneath_open_dir(at("secret")), -1);
    leave(dir);
}
