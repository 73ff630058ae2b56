/* engine/records.c - slots under sequence locks. */
#include "engine/records.h"
#include "base/checked.h"
#include "base/seq_words.h"

static void put(struct record_slot *s, const struct rd_record *record)
{
    seq_words_write(&s->version, s->words, record, RECORD_WORDS);
}

static bool get(const struct record_slot *s, struct rd_record *out)
{
    for (int i = 0; i < 100; i++) /* the writer is quick; what it writes over and over is gone anyway */
        if (seq_words_read(&s->version, s->words, out, RECORD_WORDS)) return true;
    return false;
}

void records_add_ended(struct records *r, const struct rd_record *record)
{
    uint64_t n = atomic_load_explicit(&r->n_ended, memory_order_relaxed);

    put(&r->ended[n % RECORDS_ENDED], record);
    atomic_store_explicit(&r->n_ended, n + 1, memory_order_release);
}

void records_set_running(struct records *r, uint32_t i, const struct rd_record *record)
{
    if (i < RECORDS_RUNNING) put(&r->running[i], record);
}

void records_set_n_running(struct records *r, uint32_t n)
{
    atomic_store_explicit(&r->n_running, u32_min(n, RECORDS_RUNNING), memory_order_release);
}

uint32_t records_ended(const struct records *r, uint64_t *from, struct rd_record *out, uint32_t n_max)
{
    uint64_t n = atomic_load_explicit(&r->n_ended, memory_order_acquire);
    uint32_t n_out = 0;

    if (*from > n) *from = n;
    if (n - *from > RECORDS_ENDED) *from = n - RECORDS_ENDED;
    while (*from < n && n_out < n_max) {
        /* the ring may have come round meanwhile: then the slot holds a later one, which comes in its turn */
        if (get(&r->ended[*from % RECORDS_ENDED], &out[n_out]) && out[n_out].number == *from) n_out++;
        ++*from;
    }
    return n_out;
}

uint32_t records_running(const struct records *r, struct rd_record *out, uint32_t n_max)
{
    uint32_t n = u32_min(atomic_load_explicit(&r->n_running, memory_order_acquire), n_max), n_out = 0;

    for (uint32_t i = 0; i < n; i++) n_out += get(&r->running[i], &out[n_out]);
    return n_out;
}
