/* base/os_memory.h - the heap and the machine's memory: linux/os_memory_linux.c, darwin/os_memory_darwin.c. Any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Bytes that a block of malloc really has. */
size_t os_heap_bytes(const void *p);
/* Blocks from own_mapping bytes on are given back when they are freed; at most n_arenas heaps. A wish. */
void os_heap_keep_little(size_t own_mapping, int n_arenas);
void os_heap_give_back(void);
/* Pages of 2 MiB where the system has them. */
void os_advise_huge(void *p, size_t n);
/* "always", "madvise", "never"; empty: this system has no such setting. */
void os_huge_pages(char *out, size_t cap);
/* What this process may use of the machine's memory, UINT64_MAX: all of it. What nobody uses; 0: not known. */
uint64_t os_memory_limit(void);
uint64_t os_memory_free(void);
/* Of this process: its own, and pages of files; 0: not known. */
void os_memory_resident(uint64_t *anon, uint64_t *file);
