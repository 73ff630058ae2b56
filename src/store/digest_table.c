/* store/digest_table.c - linear probing, backward shifts. */
#include "store/digest_table.h"
#include <assert.h>
#include "base/mem.h"

#define EMPTY        UINT32_MAX
#define FIRST_PLACES 256u

void digest_table_deinit(struct digest_table *t)
{
    mem_free(t->places);
    *t = (struct digest_table){0};
}

/* The digest's place, or the empty one where it would go. The table is never full. */
static uint64_t seek(const struct digest_table *t, struct hash128 digest)
{
    uint64_t i = digest.low & (t->n_places - 1);

    while (t->places[i].segment != EMPTY && !hash128_equal(t->places[i].digest, digest))
        i = (i + 1) & (t->n_places - 1);
    return i;
}

const struct digest_place *digest_table_find(const struct digest_table *t, struct hash128 digest)
{
    uint64_t i;

    if (t->n == 0) return NULL;
    i = seek(t, digest);
    return t->places[i].segment == EMPTY ? NULL : &t->places[i];
}

static rd_status grow(struct digest_table *t)
{
    uint64_t n = t->n_places ? t->n_places * 2 : FIRST_PLACES;
    struct digest_table larger = {mem_alloc(n, sizeof(struct digest_place)), n, t->n};

    if (!larger.places) return RD_E_NOMEM;
    for (uint64_t i = 0; i < n; i++) larger.places[i].segment = EMPTY;
    for (uint64_t i = 0; i < t->n_places; i++)
        if (t->places[i].segment != EMPTY) larger.places[seek(&larger, t->places[i].digest)] = t->places[i];
    mem_free(t->places);
    *t = larger;
    return RD_OK;
}

rd_status digest_table_insert(struct digest_table *t, struct digest_place place)
{
    uint64_t i;

    if ((t->n + 1) * 4 > t->n_places * 3) {
        rd_status st = grow(t);
        if (st != RD_OK) return st;
    }
    i = seek(t, place.digest);
    assert(t->places[i].segment == EMPTY && place.segment != EMPTY);
    t->places[i] = place;
    t->n++;
    return RD_OK;
}

/* Empties place i and moves up what was pushed behind it. */
static void close_up(struct digest_table *t, uint64_t i)
{
    uint64_t mask = t->n_places - 1;

    t->n--;
    for (uint64_t k = (i + 1) & mask; t->places[k].segment != EMPTY; k = (k + 1) & mask) {
        uint64_t home = t->places[k].digest.low & mask;

        if (((k - home) & mask) < ((k - i) & mask)) continue; /* its home lies behind the gap */
        t->places[i] = t->places[k];
        i = k;
    }
    t->places[i].segment = EMPTY;
}

void digest_table_remove(struct digest_table *t, struct hash128 digest)
{
    uint64_t i;

    if (t->n == 0) return;
    i = seek(t, digest);
    if (t->places[i].segment != EMPTY) close_up(t, i);
}

uint64_t digest_table_remove_segment(struct digest_table *t, uint32_t segment)
{
    uint64_t n = t->n;

    /* what closes up may come around the table's end to places that were looked at already: until none is left */
    for (bool again = true; again;) {
        again = false;
        for (uint64_t i = 0; i < t->n_places; i++)
            while (t->places[i].segment == segment) {
                close_up(t, i);
                again = true;
            }
    }
    return n - t->n;
}
