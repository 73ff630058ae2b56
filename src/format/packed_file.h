/* format/packed_file.h - weights in a backend's own packing, kept in a cache folder from one start to the next.
 *
 * A packed file holds the packed matrices of one model file in one packing. It is mapped, checked and shared: any
 * number of processes cost one copy in memory. It can always be made again from the model, so nothing here is fatal: a
 * file that is missing, damaged or in the way means packing as if there were none.
 *
 * WHICH MODEL. An entry belongs to contents: its name holds the digest of the whole model file. Reading a gigabyte to
 * compute that on every start would cost more than it saves, so a note (*.id) says which digest a file had whose
 * device, inode, size, mtime and ctime were these (struct file_identity of base/file.h). A rewrite in place changes the
 * ctime, which no program can set back; a note is only made when the file had been still for a while before. Without a
 * note that fits (a copy, a touch, a new folder) the digest is computed, and a new note kept.
 *
 *     IDENTITY.id            packed_note: identity, packing, digest
 *     HEAD-DIGEST.packed     HEAD: digest of metadata, size and packing: whether computing the whole one is worth it
 *
 * FORMAT, version 2, little endian, this machine's (the packing is, too):
 *     struct packed_head                 magic, version, sizes, packing, digest of the model, check of the head
 *     struct packed_tensor[n_tensors]    what it is, offset, bytes; in the loader's order
 *     u64 checks[n_blocks]               XXH3 of each PACKED_BLOCK bytes from data_offset to the end
 *     data                               from a multiple of PACKED_BLOCK on; tensors at multiples of PACKED_ALIGN
 * All before the data is checked by a digest of its own. All blocks are checked when the file is opened, by
 * several threads, before any tensor is handed out. A block is a huge page, and written as a whole: where the file
 * system keeps such pages in its cache (ext4 of Linux 6.16, XFS), the map consists of them, as anonymous memory would.
 *
 * The packing is a digest of how the backend packs samples (model/packed_weights.c): a changed tile layout finds no
 * entry of the old one.
 *
 * Thread  any thread; an open file is read-only.
 * Errors  RD_E_NOT_FOUND: no entry; RD_E_FORMAT: a damaged one (removed already); RD_E_IO, RD_E_INVALID, RD_E_NOMEM
 *         from the folder; from saving those that packed_save names.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/file.h"
#include "base/hash.h"
#include "radish/status.h"

struct model_file;

#define PACKED_BLOCK (2u << 20) /* part of an entry's name, as the version is */
#define PACKED_ALIGN 4096u      /* of a tensor; the data as a whole begins at a block */

struct packed_options {
    const char *dir;
    uint64_t cap_bytes; /* of all entries together: the least recently used go */
    uint64_t min_bytes; /* smaller models are not kept: packing them is as fast */
    uint64_t settle_ns; /* how long a model file must have been still: PACKED_SETTLE_NS, tests less */
    uint32_t n_threads; /* for digests and checks */
};
#define PACKED_SETTLE_NS 2000000000u

/* What a tensor is; tensors are told apart by their place in the loader's order, the rest must fit. */
struct packed_tensor {
    uint64_t name_hash;                  /* hash64_of the loader's label */
    uint32_t dtype, n_out, n_in, format; /* struct weight's */
    uint64_t offset, n_bytes;            /* from the start of the file */
};

/* The model file that a lookup found or did not find, for saving later. */
struct packed_key {
    struct file_identity identity;
    struct hash128 packing, content;
    uint64_t head; /* 0: not known yet */
    bool settled, has_content;
};

struct packed_file;

/* The model's entry, mapped and checked; *key is filled either way. RD_E_NOT_FOUND: none, or g is no file. */
rd_status packed_open(const struct packed_options *o, const struct model_file *g, struct hash128 packing,
                      struct packed_key *key, struct packed_file **out, struct rd_error *err);
/* The digest of the whole model file: from a note in o->dir, which must be there, else computed and noted. Only dir,
 * settle_ns and n_threads of o are used. RD_E_NOT_FOUND: g is no file. */
rd_status packed_content(const struct packed_options *o, const struct model_file *g, struct hash128 *content,
                         struct rd_error *err);
/* NULL is fine. */
void packed_close(struct packed_file *p);
uint64_t packed_n_tensors(const struct packed_file *p);
const struct packed_tensor *packed_tensor_at(const struct packed_file *p, uint64_t i);
const void *packed_data(const struct packed_file *p, const struct packed_tensor *t);
uint64_t packed_file_bytes(const struct packed_file *p);
/* The file was cut short meanwhile, or its disk failed; see model_file_broken(). */
bool packed_broken(const struct packed_file *p);

/* Writes an entry, then tidies the folder. tensors: offset is ignored; data[i]: tensor i's n_bytes, unchanged
 * meanwhile. stop (any thread sets it): give up soon, RD_E_CANCELLED. RD_E_LIMIT: not worth keeping (too small, or
 * larger than the cap). RD_E_AGAIN: the model file changed since the lookup, or shortly before it. */
rd_status packed_save(const struct packed_options *o, const struct model_file *g, const struct packed_key *key,
                      const struct packed_tensor *tensors, const void *const *data, uint64_t n_tensors,
                      const atomic_bool *stop, struct rd_error *err);
