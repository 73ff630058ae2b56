/* store/page_store_state.h - inside of the page store: shared by page_store.c (opening, finding, dropping),
 * page_store_space.c (namespaces), page_store_put.c (the writer), page_store_get.c (reading pages) and page_store_prune.c
 * (taking a text out). */
#pragma once
#include "base/thread.h"
#include "store/digest_table.h"
#include "store/page_store.h"
#include "store/segment.h"

#define STORE_KEY_FILE        "key"
#define STORE_LOCK_FILE       "lock"
#define STORE_FLUSH_BYTES     (32ull << 20) /* pending at most */
#define STORE_MAX_STRAYS      64u           /* as many, and nothing is written until they can be removed */
#define STORE_SPACE_BUCKETS   1024u
#define STORE_IDLE_SPACES     256u          /* kept although they are not held */
#define STORE_ROOM_NS         1000000000ull /* the disk's room is asked for so often */
#define STORE_FIRST_PAUSE_S   10u
#define STORE_LONGEST_PAUSE_S 300u

/* A segment file that is there and whose head is good. */
struct store_segment {
    struct segment_head head;
    uint64_t file_bytes;
    int64_t used_s;   /* wall time of the last use */
    bool used_moved;  /* and the file does not say so yet */
    uint32_t n_taken; /* slots [0, n_taken) hold something, or did */
    uint32_t n_seen;  /* reader: records looked at */
};

struct store_space {
    struct store_space *next;
    struct store_space *idle_before, *idle_next; /* while it is not held: those let go before and after it */
    struct hash128 seed;
    uint32_t page_tokens, n_holders;
    uint64_t page_bytes, n_forsaken;
    const char *what; /* NULL: KV of texts */
    size_t n_name;
    uint8_t name[];
};

struct page_store {
    struct store_options o;
    char *dir, *about;          /* about: NULL: none */
    struct data_file lock_file; /* closed: a reader */
    struct sip_key key;
    bool has_key;

    struct mutex lock; /* guards all below up to the writer's part */
    struct digest_table table;
    struct store_segment **segments; /* [n_segments of cap_segments]; NULL: a free place */
    size_t cap_segments;
    uint32_t n_segments;
    struct store_space *spaces[STORE_SPACE_BUCKETS];
    uint32_t n_spaces, n_idle;
    struct store_space *idle_first, *idle_last; /* not held, in the order in which they were let go */
    uint64_t n_forsaken;                        /* how often all of them were */
    struct store_counts counts;

    /* the writer's: saver thread */
    struct data_file file;             /* of the current segment */
    uint32_t current;                  /* its place; UINT32_MAX: none */
    uint32_t first_pending, n_pending; /* slots that are written and not synced */
    uint8_t *records;                  /* [n_slots of the current segment] */
    uint64_t next_id, retry_ns, pause_s;
    uint64_t room_seen_ns, full_bytes; /* when the disk's room was asked for; what the files took when it ran out */
    bool room_was_seen, is_full;
    uint64_t strays[STORE_MAX_STRAYS]; /* ids of files that are listed no more and could not be removed */
    uint32_t n_strays;
    bool cannot_remove; /* a file, lately; it was said */
};

/* page_store.c, all but the first under the lock. */
/* Places of segments; RD_E_NOMEM. */
rd_status store_add_segment(struct page_store *s, const struct store_segment *seg, uint32_t *place);
struct store_segment *store_segment_at(struct page_store *s, uint32_t place);
void store_touch(struct page_store *s, uint32_t place);
/* Unlinks a segment's file and takes it out of the index; where unlinking fails it stays in both. Not under the lock;
 * saver thread. */
rd_status store_drop_segment(struct page_store *s, uint32_t place);
/* The same for one that must not be used any more: its file, if it stays, is a stray. */
void store_condemn_segment(struct page_store *s, uint32_t place);
/* Removes a segment's file, or remembers it as a stray. */
void store_remove_file(struct page_store *s, uint64_t id);
/* Removes the strays. RD_E_IO: some are still there; nothing may be written, for the cap's sake. */
rd_status store_sweep(struct page_store *s);

/* page_store_space.c. Under the lock: the seeds anew, of another key; at the end: all of them. */
void store_seed_spaces(struct page_store *s);
void store_free_spaces(struct page_store *s);

/* page_store_put.c, saver thread. */
void store_writer_reset(struct page_store *s); /* forgets the current segment and what is pending in it */
/* A write failed: counts, backs off, says so once. reason: errno is looked at. */
rd_status store_write_failed(struct page_store *s);
/* Drops least recently used segments until n_bytes more fit. */
rd_status store_make_room(struct page_store *s, uint64_t n_bytes);
