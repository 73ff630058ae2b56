/* memory/memory_file.h - what answers and spellings were kept, over a restart: one file beside the stored pages.
 *
 *     file    16 bytes: magic, version; then records, appended as they come:
 *             u32 magic, u32 n, u64 hash of the n bytes behind it; n bytes
 *
 * Without it a restarted server would have the pages of a conversation, but not the spelling that finds them. The file
 * is read when it is opened; a thread appends, and writes the file anew from memory when it has outgrown max_bytes. A
 * clear is synced, and no full queue or lack of memory loses it; so is what a sync waits for. What a crash leaves ends at
 * the first record that is not whole, and is cut there. Losing the file costs time, never an answer. One process writes a
 * file (it has the lock NAME.lock); others only read it.
 *
 * Thread  open, close: the loading thread; put, clear: any thread, never block (a full queue drops the record); settle:
 *         any thread but that which dumps.
 * Errors  RD_E_NOMEM, RD_E_INTERNAL (no thread). What goes wrong with the file is logged once, and nothing is written
 *         from then on.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

struct memory_file;

struct memory_file_owner {
    void *arg;
    void (*load)(void *arg, const void *record, size_t n); /* a record of the file, when it is opened */
    void (*dump)(void *arg, struct memory_file *f);        /* puts again what is to stay: memory_file_again */
};

rd_status memory_file_open(const char *dir, const char *name, uint64_t max_bytes, const struct memory_file_owner *owner,
                           struct memory_file **out);
/* Writes what is queued. NULL is fine. */
void memory_file_close(struct memory_file *f);
/* Copies the record. f NULL: nothing. */
void memory_file_put(struct memory_file *f, const void *record, size_t n);
/* For dump alone: a record of the new file. */
void memory_file_again(struct memory_file *f, const void *record, size_t n);
/* What was put before is on the disk when this returns: not even a power cut takes it back. Waits for that. f NULL, or
 * what failed before: RD_E_IO. */
rd_status memory_file_sync(struct memory_file *f);
/* Nothing that was put before is found again, once it is settled. f NULL: nothing, as in settle. */
void memory_file_clear(struct memory_file *f);
/* Waits until what was cleared is off the disk, for at most so long. */
void memory_file_settle(struct memory_file *f, uint64_t timeout_ns);
