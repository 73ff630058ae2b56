/* tests/base/test_key_file.c - a key is whole or none. */
#include <fcntl.h>
#include <unistd.h>
#include "base/file.h"
#include "base/key_file.h"
#include "test.h"

static void write_bytes(const char *path, const void *p, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    if (fd < 0 || write(fd, p, n) != (ssize_t)n) abort();
    close(fd);
}

/* A power cut may leave a file's size and not its bytes. 16 zeros were once taken for a key. */
TEST(what_is_not_whole_is_no_key)
{
    char dir[] = "/tmp/radish-key-XXXXXX", path[64];
    const struct sip_key key = {0x0123456789abcdef, 42};
    struct sip_key got = {7, 7};
    uint8_t bytes[64] = {0}, whole[64];
    ssize_t n;
    int fd;

    CHECK(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/k", dir);
    CHECK(!key_file_read(dir, "k", &got));
    CHECK_OK(key_file_write(dir, "k", key, NULL));
    CHECK(key_file_read(dir, "k", &got) && got.k0 == key.k0 && got.k1 == key.k1);
    fd = open(path, O_RDONLY);
    n = read(fd, whole, sizeof(whole));
    close(fd);
    CHECK(n > 0 && n < (ssize_t)sizeof(whole));
    for (ssize_t size = 0; size < n; size++) {
        write_bytes(path, bytes, (size_t)size); /* zeros, as an unsynced file has them */
        CHECK(!key_file_read(dir, "k", &got));
        write_bytes(path, whole, (size_t)size); /* cut */
        CHECK(!key_file_read(dir, "k", &got));
    }
    write_bytes(path, bytes, (size_t)n);
    CHECK(!key_file_read(dir, "k", &got));
    for (ssize_t bit = 0; bit < n * 8; bit++) {
        whole[bit / 8] ^= (uint8_t)(1 << bit % 8);
        write_bytes(path, whole, (size_t)n);
        CHECK(!key_file_read(dir, "k", &got));
        whole[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    unlink(path);
    rmdir(dir);
}

TEST(a_key_that_cannot_be_written_leaves_the_old_one)
{
    char dir[] = "/tmp/radish-key-XXXXXX", path[64];
    struct sip_key got;
    bool wrote = false;

    CHECK(mkdtemp(dir));
    CHECK_OK(key_file_write(dir, "k", (struct sip_key){1, 1}, NULL));
    for (int64_t i = 0; !wrote; i++) {
        file_fail_after(i);
        wrote = key_file_write(dir, "k", (struct sip_key){2, 2}, NULL) == RD_OK;
        file_fail_after(-1);
        CHECK(key_file_read(dir, "k", &got) && got.k0 == (wrote ? 2u : 1u));
        CHECK(i < 100);
    }
    snprintf(path, sizeof(path), "%s/k", dir);
    unlink(path);
    CHECK_EQ(rmdir(dir), 0); /* and no temporary */
}
