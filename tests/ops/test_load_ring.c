/* tests/ops/test_load_ring.c - pieces of files through the ring to a device that is slow, fails, or is none. */
#include "backend/load_ring.h"
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

#define MAX_STAGES  5u
#define MAX_PIECES  200u
#define STAGE_BYTES (3u * LOAD_SLICE_BYTES + 4321u)
#define FAILED      77

/* Reads a stage as late as it may: when it is waited for, or at the end. Looks at the order meanwhile. */
struct late_device {
    char *stages[MAX_STAGES];
    uint32_t n_stages;
    char *out; /* what arrived, piece after piece */
    uint64_t n_out;
    struct {
        uint64_t at, n_bytes;
        bool is_pending;
    } sent[MAX_STAGES];
    uint64_t n_sent, fail_at; /* fail_at: the first send that fails */
    atomic_bool in_send;
    bool is_wrong; /* two sends at once, another stage than the next one, a stage sent unread */
};

static void read_stage(struct late_device *d, uint32_t stage)
{
    if (!d->sent[stage].is_pending) return;
    memcpy(d->out + d->sent[stage].at, d->stages[stage], d->sent[stage].n_bytes);
    d->sent[stage].is_pending = false;
}

static int late_send(void *arg, uint32_t stage, uint64_t n_bytes)
{
    struct late_device *d = arg;

    if (atomic_exchange(&d->in_send, true) || stage != d->n_sent % d->n_stages || d->sent[stage].is_pending)
        d->is_wrong = true;
    if (d->n_sent++ >= d->fail_at) {
        if (d->n_sent - 1 > d->fail_at) d->is_wrong = true; /* it was told */
        atomic_store(&d->in_send, false);
        return FAILED;
    }
    d->sent[stage].at = d->n_out;
    d->sent[stage].n_bytes = n_bytes;
    d->sent[stage].is_pending = true;
    d->n_out += n_bytes;
    atomic_store(&d->in_send, false);
    return 0;
}

static int late_wait(void *arg, uint32_t stage)
{
    read_stage(arg, stage);
    return 0;
}

static bool make_device(struct late_device *d, uint32_t n_stages, uint64_t n_out)
{
    memset(d, 0, sizeof(*d));
    d->n_stages = n_stages;
    d->fail_at = UINT64_MAX;
    d->out = mem_zalloc(n_out, 1);
    for (uint32_t i = 0; i < n_stages; i++) d->stages[i] = mem_alloc(STAGE_BYTES, 1);
    return d->out != NULL;
}

static void free_device(struct late_device *d)
{
    for (uint32_t i = 0; i < d->n_stages; i++) mem_free(d->stages[i]);
    mem_free(d->out);
}

static char *random_bytes(struct random *r, uint64_t n)
{
    char *p = mem_alloc(n, 1);

    for (uint64_t i = 0; i < n; i += 8) {
        uint64_t v = random_u64(r);

        memcpy(p + i, &v, n - i < 8 ? n - i : 8);
    }
    return p;
}

TEST(what_is_put_arrives_whole_and_in_order_with_any_number_of_threads_and_stages)
{
    enum { N = 24 << 20 };
    struct random r;
    char *bytes;

    random_init(&r, test_seed());
    bytes = random_bytes(&r, N);
    for (uint32_t round = 0; round < 24; round++) {
        uint32_t n_threads = round % 8, n_stages = 1 + round % MAX_STAGES, stage;
        struct load_target target = {late_send, late_wait, NULL};
        struct load_ring *ring = NULL;
        struct late_device d;
        uint64_t at = 0, n;

        CHECK(make_device(&d, n_stages, N));
        target.arg = &d;
        CHECK_OK(load_ring_create(d.stages, n_stages, n_threads, &target, &ring));
        CHECK(load_ring_n_threads(ring) <= n_threads);
        for (; at < N; at += n) {
            n = random_below(&r, 4) ? 1 + random_below(&r, 9000) : 1 + random_below(&r, STAGE_BYTES);
            n = n < N - at ? n : N - at;
            CHECK_EQ(load_ring_take(ring, &stage), 0);
            CHECK(stage < n_stages && !d.sent[stage].is_pending);
            load_ring_put(ring, bytes + at, n);
            if (random_below(&r, 50) == 0) CHECK_EQ(load_ring_drain(ring), 0);
        }
        CHECK_EQ(load_ring_drain(ring), 0);
        for (uint32_t i = 0; i < n_stages; i++) read_stage(&d, i);
        CHECK_EQ(d.n_out, N);
        CHECK(!d.is_wrong);
        CHECK_EQ(memcmp(d.out, bytes, N), 0);
        load_ring_destroy(ring);
        free_device(&d);
    }
    mem_free(bytes);
}

TEST(after_a_failed_send_nothing_is_sent_and_nobody_waits_for_ever)
{
    struct random r;
    char *bytes;

    random_init(&r, test_seed());
    bytes = random_bytes(&r, STAGE_BYTES);
    for (uint32_t k = 0; k < 12; k++) {
        struct load_target target = {late_send, late_wait, NULL};
        struct load_ring *ring = NULL;
        struct late_device d;
        uint32_t stage;
        int error = 0;

        CHECK(make_device(&d, 3, 12 * (uint64_t)STAGE_BYTES));
        d.fail_at = k;
        target.arg = &d;
        CHECK_OK(load_ring_create(d.stages, 3, k % 4, &target, &ring));
        for (uint32_t i = 0; i < 12 && !error; i++) {
            error = load_ring_take(ring, &stage);
            if (!error) load_ring_put(ring, bytes, STAGE_BYTES - i);
        }
        CHECK_EQ(load_ring_drain(ring), FAILED);
        CHECK_EQ(load_ring_take(ring, &stage), FAILED);
        CHECK_EQ(d.n_sent, k + 1);
        CHECK(!d.is_wrong);
        load_ring_destroy(ring);
        free_device(&d);
    }
    mem_free(bytes);
}

TEST(a_ring_is_made_whole_or_not_at_all_and_with_fewer_threads_where_they_are_refused)
{
    struct load_target target = {late_send, late_wait, NULL};
    struct load_ring *ring = NULL;
    struct late_device d;
    rd_status st = RD_E_NOMEM;
    char byte = 'x';
    uint32_t stage;

    CHECK(make_device(&d, 2, 16));
    target.arg = &d;
    for (int64_t i = 0; st != RD_OK; i++) {
        mem_fail_after(i);
        st = load_ring_create(d.stages, 2, 3, &target, &ring);
        mem_fail_after(-1);
        CHECK(st == RD_OK || (st == RD_E_NOMEM && !ring));
    }
    CHECK_EQ(load_ring_n_threads(ring), 0); /* the first was refused: the caller does the work */
    CHECK_EQ(load_ring_take(ring, &stage), 0);
    load_ring_put(ring, &byte, 1);
    CHECK_EQ(load_ring_drain(ring), 0);
    read_stage(&d, 0);
    CHECK_EQ(d.out[0], 'x');
    load_ring_destroy(ring);
    load_ring_destroy(NULL);
    free_device(&d);
}

TEST(a_file_cut_while_it_is_mapped_arrives_as_zeros_and_is_known_to_be_broken)
{
    enum { N = 12 << 20, KEPT = 1 << 20 };
    const char *path = RADISH_BUILD_DIR "/load_ring.bytes";
    struct load_target target = {late_send, late_wait, NULL};
    struct load_ring *ring = NULL;
    struct late_device d;
    struct file_map map;
    char *bytes = mem_alloc(N, 1);
    uint32_t stage;

    memset(bytes, 'x', N);
    CHECK_OK(file_write_all(path, bytes, N, NULL));
    CHECK_OK(file_map_open(path, &map, NULL));
    CHECK_OK(file_map_watch(&map, NULL));
    CHECK_EQ(truncate(path, KEPT), 0);
    CHECK(make_device(&d, 4, N));
    target.arg = &d;
    CHECK_OK(load_ring_create(d.stages, 4, 6, &target, &ring));
    for (uint64_t at = 0; at < N; at += LOAD_SLICE_BYTES) {
        CHECK_EQ(load_ring_take(ring, &stage), 0);
        load_ring_put(ring, map.data + at, LOAD_SLICE_BYTES);
    }
    CHECK_EQ(load_ring_drain(ring), 0);
    for (uint32_t i = 0; i < 4; i++) read_stage(&d, i);
    CHECK(file_map_broken(&map));
    CHECK_EQ(memcmp(d.out, bytes, KEPT), 0);
    memset(bytes, 0, N);
    CHECK_EQ(memcmp(d.out + KEPT, bytes, N - KEPT), 0);
    load_ring_destroy(ring);
    free_device(&d);
    file_map_close(&map);
    unlink(path);
    mem_free(bytes);
}
