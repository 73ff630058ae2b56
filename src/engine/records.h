/* engine/records.h - requests one by one, for people who look: those that ended last, and those that are there now.
 *
 * The engine thread writes into memory of its own (base/seq_words.h), nothing allocates, and any thread reads copies. Of
 * those that ended a ring keeps the last; of those that are there now the first are listed, a few times a second.
 *
 * Times in a record are the clock's; readers make ages of them.
 *
 * Thread  as said.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "radish/inspect.h"

#define RECORDS_ENDED   256u
#define RECORDS_RUNNING 64u

_Static_assert(sizeof(struct rd_record) % sizeof(uint64_t) == 0, "whole words");
#define RECORD_WORDS (sizeof(struct rd_record) / sizeof(uint64_t))

struct record_slot {
    atomic_uint version;
    _Atomic uint64_t words[RECORD_WORDS];
};

struct records {
    struct record_slot ended[RECORDS_ENDED]; /* number i is in slot i % RECORDS_ENDED */
    atomic_ullong n_ended;                   /* release: the slots below it are written */
    struct record_slot running[RECORDS_RUNNING];
    atomic_uint n_running; /* listed; slots beside it may be older or newer by one turn */
    uint64_t listed_ns;    /* engine thread: when */
};

/* Engine thread. */
void records_add_ended(struct records *r, const struct rd_record *record);
void records_set_running(struct records *r, uint32_t i, const struct rd_record *record);
void records_set_n_running(struct records *r, uint32_t n);

/* Any thread: as rd_ended_requests and rd_running_requests, ages not yet filled. */
uint32_t records_ended(const struct records *r, uint64_t *from, struct rd_record *out, uint32_t n_max);
uint32_t records_running(const struct records *r, struct rd_record *out, uint32_t n_max);
