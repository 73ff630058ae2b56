/* store/segment.h - the format of a segment file: pages of one namespace, appended, each with a checked record.
 *
 *     0                   struct segment_head                  what all of it is about, with a check of its own
 *     SEGMENT_HEAD_BYTES  struct segment_record[n_slots]       record i tells what slot i holds; zeros: nothing
 *     data_offset         slot 0 | slot 1 | ...                the file ends behind the last one written
 *
 * The records ARE the index on disk. One is written only when its page has been synced; it carries a check of itself,
 * its segment's and slot's number, and the check of its page. So whatever is torn, cut off, flipped or moved somewhere
 * else is seen before a byte of it is used, and a start reads some hundred bytes per page, in one piece per segment,
 * whether the last process closed the store or was killed.
 *
 * Why no database for the index: LMDB was tried. Its file carries no checks and is mapped: of 300 single flipped bits in
 * one with 20,000 such records, one ended the process by a signal. A damaged cache file must cost a recomputation, never
 * the server.
 *
 * Numbers are little endian, this machine's. Everything read from a file is foreign.
 *
 * Thread  any thread; no state.
 */
#pragma once
#include <stdbool.h>
#include "base/data_file.h"
#include "base/sip_hash.h"

#define SEGMENT_VERSION     1u
#define SEGMENT_HEAD_BYTES  4096u
#define SEGMENT_MAX_SLOTS   65536u
#define SEGMENT_ABOUT       2048u /* here in the head: a text for people, terminated; no check covers it */
#define SEGMENT_ABOUT_BYTES 320u
#define SEGMENT_NAME_BYTES  24u /* "0123456789abcdef.pages" and its end */

struct segment_head {
    char magic[8];
    uint32_t version, page_tokens;
    uint64_t id; /* the file's name, too */
    uint64_t page_bytes, slot_bytes, data_offset;
    uint32_t n_slots, record_bytes;
    struct sip_key key;   /* of the folder's digests */
    struct hash128 space; /* digest of the namespace's name */
    struct hash128 check; /* of all before */
};

struct segment_record {
    uint64_t check; /* of all behind it, tokens included */
    uint64_t segment;
    uint32_t slot, n_tokens;
    struct hash128 digest, before; /* of the chain up to this page; up to the page before it */
    struct hash128 page;           /* XXH3 of the page's bytes */
    uint32_t tokens[];             /* [n_tokens] */
};

/* A head for pages of that many tokens and bytes in a file of about segment_bytes; at least one slot. */
struct segment_head segment_make_head(uint64_t id, struct sip_key key, struct hash128 space, uint32_t page_tokens,
                                      uint64_t page_bytes, uint64_t segment_bytes);
/* Whole, of this version, of that id, its numbers consistent and within limits. */
bool segment_head_is_good(const struct segment_head *h, uint64_t id);
uint64_t segment_slot_offset(const struct segment_head *h, uint32_t slot);
uint64_t segment_record_offset(const struct segment_head *h, uint32_t slot);

/* Fills a record of h->record_bytes bytes. */
void segment_make_record(const struct segment_head *h, uint32_t slot, struct hash128 digest, struct hash128 before,
                         const uint32_t *tokens, const void *page, struct segment_record *out);
bool segment_record_is_empty(const struct segment_head *h, const struct segment_record *r);
bool segment_record_is_good(const struct segment_head *h, uint32_t slot, const struct segment_record *r);

/* Zeros where the record was: nothing is there. */
rd_status segment_erase_record(const struct segment_head *h, const struct data_file *f, uint32_t slot);

void segment_name(uint64_t id, char name[SEGMENT_NAME_BYTES]);
bool segment_parse_name(const char *name, uint64_t *id);
