/* engine/events/event_batch.c - as much of msgpack as that takes. */
#include "engine/events/event_batch.h"
#include <string.h>

#define MEDIUM "GPU" /* what vLLM calls the memory that computes, and indexers know; also where that is a CPU's */

static void put_number(struct buf *out, uint8_t head, uint64_t v, int n_bytes)
{
    buf_putc(out, (char)head);
    for (int i = n_bytes - 1; i >= 0; i--) buf_putc(out, (char)(v >> (8 * i)));
}

static void put_u64(struct buf *out, uint64_t v)
{
    if (v < 128)
        buf_putc(out, (char)v);
    else if (v < 1u << 8)
        put_number(out, 0xcc, v, 1);
    else if (v < 1u << 16)
        put_number(out, 0xcd, v, 2);
    else if (v < 1ull << 32)
        put_number(out, 0xce, v, 4);
    else
        put_number(out, 0xcf, v, 8);
}

static void put_text(struct buf *out, const char *s)
{
    put_number(out, 0xd9, strlen(s), 1);
    buf_puts(out, s);
}

static void put_list(struct buf *out, uint32_t n)
{
    put_number(out, 0xdd, n, 4);
}

static void put_nil(struct buf *out)
{
    buf_putc(out, (char)0xc0);
}

static void put_hash(struct buf *out, const struct event_form *f, const struct block_hash *h)
{
    if (f->numbers) {
        put_u64(out, block_hash_number(h));
        return;
    }
    put_number(out, 0xc4, sizeof(h->bytes), 1);
    buf_append(out, h->bytes, sizeof(h->bytes));
}

/* An event begins; each field follows its name, where it is a map. */
static void begin(struct buf *out, const struct event_form *f, uint32_t n)
{
    if (f->maps)
        put_number(out, 0xdf, n, 4);
    else
        put_list(out, n);
}

static void field(struct buf *out, const struct event_form *f, const char *name)
{
    if (f->maps) put_text(out, name);
}

void event_batch_begin(struct buf *out, double time_s, uint32_t n)
{
    uint64_t bits;

    memcpy(&bits, &time_s, sizeof(bits));
    put_list(out, 3);
    put_number(out, 0xcb, bits, 8);
    put_list(out, n);
}

void event_batch_end(struct buf *out)
{
    put_u64(out, 0);
}

static void put_stored(struct buf *out, const struct event_form *f, const struct kv_event *e)
{
    begin(out, f, 9);
    field(out, f, "type");
    put_text(out, "BlockStored");
    field(out, f, "block_hashes");
    put_list(out, 1);
    put_hash(out, f, &e->hash);
    field(out, f, "parent_block_hash");
    if (e->has_parent)
        put_hash(out, f, &e->parent);
    else
        put_nil(out);
    field(out, f, "token_ids");
    put_list(out, f->page_tokens);
    for (uint32_t i = 0; i < f->page_tokens; i++) put_u64(out, e->tokens[i]);
    field(out, f, "block_size");
    put_u64(out, f->page_tokens);
    field(out, f, "lora_id");
    put_nil(out);
    field(out, f, "medium");
    put_text(out, MEDIUM);
    field(out, f, "lora_name");
    put_nil(out);
    field(out, f, "extra_keys");
    put_list(out, 1);
    if (*e->extra) {
        put_list(out, 1);
        put_text(out, e->extra);
    } else {
        put_nil(out);
    }
}

void event_batch_put(struct buf *out, const struct event_form *f, const struct kv_event *e)
{
    if (e->kind == KV_EVENT_STORED) {
        put_stored(out, f, e);
        return;
    }
    begin(out, f, e->kind == KV_EVENT_REMOVED ? 3 : 1);
    field(out, f, "type");
    put_text(out, e->kind == KV_EVENT_REMOVED ? "BlockRemoved" : "AllBlocksCleared");
    if (e->kind == KV_EVENT_CLEARED) return;
    field(out, f, "block_hashes");
    put_list(out, 1);
    put_hash(out, f, &e->hash);
    field(out, f, "medium");
    put_text(out, MEDIUM);
}
