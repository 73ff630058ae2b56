/* memory/memory_record.h - the fields of a record of answer_memory or spelling_memory: a kind, then numbers and strings.
 *
 *     u32 kind, owner: u32 flags, the salt (zeros: none), with OWNER_HAS_ADAPTER the adapter;
 *     then what the kind has: u32, or u32 n and n bytes
 *
 * Numbers as the machine has them: the files are this machine's own. A reader that meets an end too early is `bad` and
 * gives zeros.
 */
#pragma once
#include <string.h>
#include "memory/answer_memory.h"
#include "base/buf.h"

/* 2 and 3 were answers and spellings that did not know what they stood behind. */
enum memory_record_kind {
    RECORD_SEQUENCE = 1,
    RECORD_ANSWER = 4,
    RECORD_SPELLING,
    RECORD_NAME_END,
    RECORD_NAME_DROPPED
};

/* Flags of an owner; a record with others is of a version to come, and is passed over. */
#define OWNER_HAS_SALT    1u
#define OWNER_HAS_ADAPTER 2u

static inline void record_put_u32(struct buf *b, uint32_t v)
{
    buf_append(b, &v, sizeof(v));
}
static inline void record_put_bytes(struct buf *b, const void *p, size_t n)
{
    record_put_u32(b, (uint32_t)n);
    buf_append(b, p, n);
}
static inline void record_begin(struct buf *b, enum memory_record_kind kind, const struct kv_space *owner)
{
    bool has_adapter = (owner->adapter.low | owner->adapter.high) != 0;

    record_put_u32(b, kind);
    record_put_u32(b, (kv_space_is_open(owner) ? 0 : OWNER_HAS_SALT) | (has_adapter ? OWNER_HAS_ADAPTER : 0));
    buf_append(b, &owner->salt, sizeof(owner->salt));
    if (has_adapter) buf_append(b, &owner->adapter, sizeof(owner->adapter));
}

struct record_reader {
    const uint8_t *p;
    size_t left;
    bool bad;
};

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
static inline uint32_t record_open(struct record_reader *r, const void *record, size_t n, struct kv_space *owner)
{
    uint32_t kind, flags;
    const void *salt, *adapter = NULL;

    *owner = (struct kv_space){0};
    *r = (struct record_reader){.p = record, .left = n};
    kind = record_u32(r);
    flags = record_u32(r);
    salt = record_bytes(r, sizeof(owner->salt));
    if (flags & OWNER_HAS_ADAPTER) adapter = record_bytes(r, sizeof(owner->adapter));
    if (salt && (flags & OWNER_HAS_SALT)) memcpy(&owner->salt, salt, sizeof(owner->salt));
    if (adapter) memcpy(&owner->adapter, adapter, sizeof(owner->adapter));
    return r->bad || (flags & ~(OWNER_HAS_SALT | OWNER_HAS_ADAPTER)) != 0 ? 0 : kind;
}
