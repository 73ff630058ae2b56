/* api/memory_record.h - the fields of a record of answer_memory or spelling_memory: a kind, then numbers and strings.
 *
 *     u32 kind, owner: u32 salted, u64 low, u64 high;  then what the kind has: u32, or u32 n and n bytes
 *
 * Numbers as the machine has them: the files are this machine's own. A reader that meets an end too early is `bad` and
 * gives zeros.
 */
#pragma once
#include <string.h>
#include "api/answer_memory.h"
#include "base/buf.h"

/* 2 and 3 were answers and spellings that did not know what they stood behind. */
enum memory_record_kind { RECORD_SEQUENCE = 1, RECORD_ANSWER = 4, RECORD_SPELLING };

static inline void record_put_u32(struct buf *b, uint32_t v)
{
    buf_append(b, &v, sizeof(v));
}
static inline void record_put_bytes(struct buf *b, const void *p, size_t n)
{
    record_put_u32(b, (uint32_t)n);
    buf_append(b, p, n);
}
static inline void record_begin(struct buf *b, enum memory_record_kind kind, const struct answer_owner *owner)
{
    record_put_u32(b, kind);
    record_put_u32(b, owner->salted);
    buf_append(b, &owner->salt, sizeof(owner->salt));
}

struct record_reader { const uint8_t *p; size_t left; bool bad; };

/* NULL when they are not there. */
static inline const void *record_bytes(struct record_reader *r, size_t n)
{
    const uint8_t *p = r->p;

    if (r->bad || n > r->left) {
        r->bad = true;
        return NULL;
    }
    r->p += n;
    r->left -= n;
    return p;
}
static inline uint32_t record_u32(struct record_reader *r)
{
    const void *p = record_bytes(r, sizeof(uint32_t));
    uint32_t v = 0;

    if (p) memcpy(&v, p, sizeof(v));
    return v;
}
/* The bytes of record_put_bytes; NULL when bad. */
static inline const void *record_string(struct record_reader *r, size_t *n)
{
    const void *p;

    *n = record_u32(r);
    p = record_bytes(r, *n);
    if (!p) *n = 0;
    return p;
}
/* The kind; 0: not a record. */
static inline uint32_t record_open(struct record_reader *r, const void *record, size_t n, struct answer_owner *owner)
{
    uint32_t kind;
    const void *salt;

    *r = (struct record_reader){.p = record, .left = n};
    kind = record_u32(r);
    owner->salted = record_u32(r) != 0;
    salt = record_bytes(r, sizeof(owner->salt));
    if (salt) memcpy(&owner->salt, salt, sizeof(owner->salt));
    return r->bad ? 0 : kind;
}
