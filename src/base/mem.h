/* base/mem.h - the one facade for memory: heap, big mappings, counts, a limit, and a fail-the-Nth hook.
 *
 * No other code calls malloc, calloc, realloc, free, mmap of anonymous memory. Libraries that take allocators
 * (jansson, libevent, pcre2) are given these.
 * Units   bytes.
 * Thread  any thread.
 * Errors  NULL when memory is out, beyond the limit, when n * size overflows, or when the test hook says so.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* n items of size bytes, zeroed. n * size == 0 gives a valid pointer that can be freed. */
void *mem_zalloc(size_t n, size_t size);
/* Uninitialised. */
void *mem_alloc(size_t n, size_t size);
/* Grows or shrinks to n * size; on failure returns NULL and the old block is untouched. p may be NULL. */
void *mem_realloc(void *p, size_t n, size_t size);
/* NULL is fine. */
void mem_free(void *p);
/* Copies; the result is terminated with a 0 byte beyond n. */
char *mem_strdup(const char *s);
char *mem_memdup(const void *p, size_t n);

/* From now on blocks of MEM_OWN_MAPPING bytes or more are mappings of their own, which the system has back as soon as they
 * are freed, and grow without a copy. Without it the C library raises that border with every such block that is freed,
 * and a process that once read a big request keeps its size. Likewise all threads share one heap: with one for each,
 * 50 models that were loaded and closed leave 6 MiB of holes. */
#define MEM_OWN_MAPPING ((size_t)256 << 10)
#define MEM_ARENAS      1
void mem_keep_little(void);
/* Gives all free pages of the heap back to the system: milliseconds, during which others may wait for the heap. */
void mem_give_back(void);

/* Aligned to 64 bytes, zeroed, for tensors; MEM_HUGE_PAGE bytes or more lie in huge pages. Free with mem_free_aligned. */
void *mem_alloc_aligned(size_t n_bytes);
void mem_free_aligned(void *p);

/* Anonymous, page-aligned, zero on first touch, touched lazily: for the KV pages and repacked weights. From
 * MEM_HUGE_PAGE bytes on it begins at a huge page and asks for such pages, which is a sixth more read bandwidth; the
 * last one may reach beyond what was touched. */
#define MEM_HUGE_PAGE ((size_t)2 << 20)
void *mem_map(size_t n_bytes);
void mem_unmap(void *p, size_t n_bytes);
/* Asks for huge pages in a mapping (from mmap, page-aligned), of a file as well: only where the file's cached pages are
 * that big, as they are after writes of whole huge pages at multiples of their size, or after a read through a mapping
 * so advised. A hint: does nothing where the system knows no such thing. */
void mem_advise_huge(const void *p, size_t n_bytes);
/* Makes the system put a huge page together and frees it at once: a file write of such a page that follows finds it.
 * (For files it takes only what lies ready, and on a machine that has run for a while that is rare.) A hint as well. */
void mem_make_huge_page(void);

/* Makes *items (capacity *cap, items of size bytes) hold at least want; doubles. false: out of memory, unchanged. */
bool mem_grow(void **items, size_t *cap, size_t want, size_t size);

/* Whether an allocation of the calling thread has failed since mem_clear_failed(). For libraries that do not tell all:
 * libevent 2.1 returns a bufferevent whose output callback could not be stored as if it were whole, and it never writes;
 * jansson calls a string that it has no memory for a syntax error. */
void mem_clear_failed(void);
bool mem_has_failed(void);

/* ---- how much, and how much at most ----
 * Bytes that are held by all of the above together: blocks as the heap rounds them, mappings from the moment they are
 * reserved, touched or not. Mapped files, stacks, the memory of a GPU and what libraries without allocators of their own
 * take are not among them. */
struct mem_usage {
    uint64_t n_bytes, peak_bytes; /* now; the most since the start, or since mem_reset_peak() */
    uint64_t limit_bytes;         /* 0: none */
};
struct mem_usage mem_usage(void);
void mem_reset_peak(void);
/* From now on an allocation that would go beyond it fails. 0: none. false, and nothing changed: more is held now. */
bool mem_set_limit(uint64_t n_bytes);

/* ---- test hook and counts (all builds; some relaxed atomics per call) ---- */
/* The i-th allocation from now (0 = the next one) fails once; negative switches the hook off. */
void mem_fail_after(int64_t i);
/* The i-th and every later one fail. */
void mem_fail_from(int64_t i);
/* fails() is asked before each allocation, on its thread; true: that one fails. It must not allocate. NULL: none is. */
void mem_set_fault(bool (*fails)(void));
/* Allocations made since process start (the step loop's count must not move); blocks alive now (leak test). */
uint64_t mem_n_allocs(void);
uint64_t mem_n_alive(void);
