/* support/mem_disk.h - a disk in memory with one folder, that remembers what was written and synced, and can lose its
 * power at any instant.
 *
 * It takes the place of the system's table (base/file_calls.h). While it records, every change of a file or a name goes
 * into a log. mem_disk_cut makes the disk that a machine might find after its power failed behind the first n entries of
 * the log: what was synced is there; of the rest each write is kept, lost, torn at 512 bytes or 4 KiB, or applied out of
 * order, sizes and data apart, names apart from both; what was lost reads as zeros or as something that lay there before.
 *
 *     log:   create a | write a | size a | SYNC a | write a | create b | write b | rename b c   <- power fails here
 *            `------- there for certain -------'   `------------ any of it, in parts ----------'
 *
 * Thread  one at a time. Paths: the last part counts, there is one folder. No links, no maps.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/random.h"

struct mem_disk;

enum mem_cut {
    MEM_CUT_KEPT,        /* a process killed, the machine goes on: everything is there */
    MEM_CUT_LOST,        /* whatever was not synced is lost */
    MEM_CUT_TORN,        /* in order up to some write, that one in part */
    MEM_CUT_MIXED,       /* each block kept, lost or stale by itself, in any order */
    MEM_CUT_NAMES_FIRST, /* all names and sizes, and little of the data */
    MEM_CUT_KINDS
};

struct mem_disk *mem_disk_create(void);
void mem_disk_destroy(struct mem_disk *d);
/* File calls of data_file.c and cache_dir.c go there from now on; NULL: to the system. */
void mem_disk_use(struct mem_disk *d);
/* unlink says EPERM, as in a folder that may not be written to any more. */
void mem_disk_refuse_removals(struct mem_disk *d, bool refuses);
/* The process is gone: its descriptors and locks, too. */
void mem_disk_close_all(struct mem_disk *d);
/* What is there now counts as durable, and the log is empty; from here on it grows. */
void mem_disk_record(struct mem_disk *d);
size_t mem_disk_log_length(const struct mem_disk *d);
/* out becomes what is left of d when its power fails behind log entry n. */
void mem_disk_cut(const struct mem_disk *d, size_t n, enum mem_cut kind, struct random *r, struct mem_disk *out);
/* out becomes d as it is now, without log or open files. */
void mem_disk_copy(const struct mem_disk *d, struct mem_disk *out);
uint64_t mem_disk_bytes(const struct mem_disk *d, const char *suffix);
uint32_t mem_disk_n_files(const struct mem_disk *d);
/* For damage by hand: the bytes of a file; NULL: not there. */
uint8_t *mem_disk_file(struct mem_disk *d, const char *name, size_t *n);
