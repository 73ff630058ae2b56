/* base/linux/kernel_file.c - see kernel_file.h. */
#include "base/linux/kernel_file.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "base/checked.h"

size_t kernel_file_read(const char *path, char *text, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    ssize_t got = 0;

    text[0] = 0;
    if (fd < 0) return 0;
    while (n + 1 < cap && ((got = read(fd, text + n, cap - 1 - n)) > 0 || (got < 0 && errno == EINTR)))
        n += got > 0 ? (size_t)got : 0;
    close(fd);
    text[n] = 0;
    return n;
}

bool kernel_file_line(const char *path, char *line, size_t cap)
{
    size_t n = kernel_file_read(path, line, cap);

    line[strcspn(line, "\n")] = 0;
    return n > 0;
}

static bool next_number(const char **at, uint64_t *n)
{
    const size_t n_digits = strspn(*at, "0123456789");
    const bool is_number = parse_u64(*at, n_digits, n);

    *at += n_digits;
    return is_number;
}

bool kernel_list_next(const char **at, uint64_t *first, uint64_t *last)
{
    if (!next_number(at, first)) return false;
    *last = *first;
    if (**at == '-') {
        ++*at;
        if (!next_number(at, last)) return false;
    }
    if (**at != ',') return **at == 0;
    ++*at;
    return **at != 0;
}
