/* base/linux/kernel_file.h - the small files below /proc and /sys, which tell no size. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Until its end, at most cap - 1 bytes, terminated; how many: 0 also where there is none. */
size_t kernel_file_read(const char *path, char *text, size_t cap);
/* Its first line, without the line's end; false: none. */
bool kernel_file_line(const char *path, char *line, size_t cap);
/* The next of a list's ranges, "0-3,8", and past its comma; false: at **at there is none. */
bool kernel_list_next(const char **at, uint64_t *first, uint64_t *last);
