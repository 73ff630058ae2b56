/* tests/store/test_store_damage.c - what somebody or something did to the files: every flipped bit, every length, files
 * swapped, replaced, linked, of another folder. Either the right bytes come back or none, and it is counted. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "sanitized.h"
#include "store_rig.h"

static bool read_file(const char *path, uint8_t **data, size_t *n)
{
    return file_read_all(path, 64 << 20, (char **)data, n, NULL) == RD_OK;
}

static bool write_file(const char *path, const uint8_t *data, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    bool ok = fd >= 0 && write(fd, data, n) == (ssize_t)n;

    if (fd >= 0) close(fd);
    return ok;
}

/* A folder with one text of n pages in one segment file. */
static bool make_one(struct store_rig *g, uint32_t *tokens, uint32_t n, uint64_t page_bytes)
{
    rig_init(g, page_bytes, 1ull << 30, 16 << 20);
    rig_text(7, tokens, n);
    if (!rig_open(g) || rig_put(g, g->space, "a", tokens, n) != RD_OK) return false;
    rig_close(g);
    return true;
}

/* Opens the folder with this file in it. Right bytes or a miss (rig_get looks); returns the pages that came, or -1. */
static int try_file(struct store_rig *g, const char *path, const uint8_t *data, size_t n_data, const uint32_t *tokens,
                    uint32_t n, uint64_t *n_damaged)
{
    int got;

    if (!write_file(path, data, n_data) || !rig_open(g)) return -1;
    got = (int)rig_get(g, g->space, "a", tokens, n);
    *n_damaged += rig_counts(g).n_damaged;
    rig_close(g);
    return got;
}

/* Where a flipped bit can matter: the head, the records that hold something, the pages; not the padding. */
static bool matters(const struct segment_head *h, size_t at, uint32_t n)
{
    if (at < sizeof(*h)) return true;
    if (at >= SEGMENT_HEAD_BYTES && at < SEGMENT_HEAD_BYTES + (size_t)n * h->record_bytes) return true;
    return at >= h->data_offset && (at - h->data_offset) % h->slot_bytes < h->page_bytes;
}

/* F114 */
TEST(every_flipped_bit_of_a_small_entry_is_seen)
{
    struct store_rig g;
    struct segment_head head;
    uint32_t tokens[RIG_P];
    uint8_t *data;
    char path[512];
    size_t n;
    uint32_t n_flips = 0;

    rig_init(&g, 100, 1 << 20, 4600); /* room for two slots */
    rig_text(7, tokens, 1);
    CHECK(rig_open(&g));
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 1));
    rig_close(&g);
    strcpy(path, rig_segment_path(&g, 0));
    CHECK(read_file(path, &data, &n));
    memcpy(&head, data, sizeof(head));
    for (size_t bit = 0; bit < n * 8; bit++) {
        uint64_t n_damaged = 0;
        int got;

        if (bit / 8 >= sizeof(head) && bit / 8 < SEGMENT_HEAD_BYTES && bit % 64) continue; /* padding: a sample */
        if (IS_SANITIZED && bit / 8 >= SEGMENT_HEAD_BYTES && bit % 5) continue;            /* of the rest as well */
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        got = try_file(&g, path, data, n, tokens, 1, &n_damaged);
        if (matters(&head, bit / 8, 1)) {
            CHECK_EQ(got, 0);
            CHECK_EQ(n_damaged, 1);
        } else {
            CHECK(got == 1);
        }
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        n_flips++;
    }
    test_note("%u flips of a file of %zu bytes", n_flips, n);
    mem_free(data);
    rig_deinit(&g);
}

/* F114 */
TEST(random_flips_of_a_large_entry_are_seen)
{
    enum { N = 8 };
    struct store_rig g;
    struct segment_head head;
    struct random r;
    uint32_t tokens[N * RIG_P];
    uint8_t *data;
    char path[512];
    size_t n;
    uint64_t n_damaged = 0;
    uint32_t n_flips = IS_SANITIZED ? 2000 : 10000, n_seen = 0;

    CHECK(make_one(&g, tokens, N, 30000));
    random_init(&r, test_seed());
    strcpy(path, rig_segment_path(&g, 0));
    CHECK(read_file(path, &data, &n));
    memcpy(&head, data, sizeof(head));
    for (uint32_t i = 0; i < n_flips; i++) {
        size_t bit = random_below(&r, n * 8), at = bit / 8;
        uint32_t slot = at < head.data_offset ? 0 : (uint32_t)((at - head.data_offset) / head.slot_bytes);
        uint64_t before = n_damaged;
        bool hit = matters(&head, at, N);
        int got;

        data[at] ^= (uint8_t)(1u << bit % 8);
        got = try_file(&g, path, data, n, tokens, N, &n_damaged);
        CHECK(got >= 0);
        if (hit) {
            CHECK(got < N);
            CHECK(n_damaged > before);
            n_seen++;
            if (at >= head.data_offset) CHECK_EQ(got, slot); /* what is before it is still good */
        }
        data[at] ^= (uint8_t)(1u << bit % 8);
    }
    test_note("%u random flips of a file of %zu bytes, %u of them where it matters: all seen", n_flips, n, n_seen);
    mem_free(data);
    rig_deinit(&g);
}

/* F114 */
TEST(every_truncation_is_seen)
{
    enum { N = 4 };
    struct store_rig g;
    struct random r;
    uint32_t tokens[N * RIG_P];
    uint8_t *data;
    char path[512];
    size_t n;

    CHECK(make_one(&g, tokens, N, 500));
    random_init(&r, test_seed());
    strcpy(path, rig_segment_path(&g, 0));
    CHECK(read_file(path, &data, &n));
    for (size_t cut = 0; cut < n; cut += 1 + random_below(&r, cut < 4096 ? 200 : n > 400000 ? 4001 : 41)) {
        uint64_t n_damaged = 0;
        int got = try_file(&g, path, data, cut, tokens, N, &n_damaged);

        CHECK(got >= 0);
        CHECK(got == N ? cut + 64 > n : n_damaged > 0); /* the last slot's padding alone may go */
    }
    mem_free(data);
    rig_deinit(&g);
}

/* F114, F116 */
TEST(swapped_files_and_those_of_other_folders_are_refused)
{
    struct store_rig g, other;
    uint32_t a[4 * RIG_P], b[4 * RIG_P], theirs[4 * RIG_P];
    uint8_t *x, *y, *z;
    char first[512], second[512];
    size_t nx, ny, nz;

    rig_init(&g, 500, 1 << 20, 4000); /* a segment per page */
    rig_text(1, a, 1);
    rig_text(100, b, 1);
    CHECK(rig_open(&g));
    CHECK_OK(rig_put(&g, g.space, "a", a, 1));
    CHECK_OK(rig_put(&g, g.space, "a", b, 1));
    rig_close(&g);
    CHECK(make_one(&other, theirs, 4, 500));
    strcpy(first, rig_segment_path(&g, 0));
    strcpy(second, rig_segment_path(&g, 1));
    CHECK(read_file(first, &x, &nx) && read_file(second, &y, &ny) && read_file(rig_segment_path(&other, 0), &z, &nz));
    CHECK(write_file(first, y, ny) && write_file(second, x, nx));
    CHECK(rig_open(&g));
    CHECK_EQ(rig_get(&g, g.space, "a", a, 1), 0);
    CHECK_EQ(rig_get(&g, g.space, "a", b, 1), 0);
    CHECK_EQ(rig_counts(&g).n_damaged, 2);
    CHECK_EQ(rig_dir_bytes(&g), 0);
    rig_close(&g);
    CHECK(write_file(second, y, ny) && write_file(first, z, nz)); /* the id fits, the folder's key does not */
    CHECK(rig_open(&g));
    CHECK_EQ(rig_get(&g, g.space, "a", b, 1), 1);
    CHECK_EQ(rig_get(&g, g.space, "a", theirs, 4), 0);
    CHECK_EQ(rig_counts(&g).n_damaged, 1);
    /* while it is open: listed, but the file is another one, a link, gone */
    CHECK(unlink(second) == 0 && symlink("/etc/passwd", second) == 0);
    CHECK_EQ(rig_get(&g, g.space, "a", b, 1), 0);
    rig_close(&g);
    CHECK(unlink(second) == 0 && write_file(second, y, ny));
    CHECK(rig_open(&g));
    CHECK(write_file(second, x, nx));
    CHECK_EQ(rig_get(&g, g.space, "a", b, 1), 0);
    CHECK_EQ(rig_counts(&g).n_damaged, 1);
    rig_close(&g);
    CHECK(write_file(second, y, ny));
    CHECK(rig_open(&g));
    CHECK(unlink(second) == 0);
    CHECK_EQ(rig_get(&g, g.space, "a", b, 1), 0);
    CHECK_EQ(rig_counts(&g).n_read_errors, 1);
    mem_free(x), mem_free(y), mem_free(z);
    rig_deinit(&other);
    rig_deinit(&g);
}

TEST(a_damaged_page_is_erased_and_can_be_stored_again)
{
    struct store_rig g;
    uint32_t tokens[4 * RIG_P];
    struct segment_head head;
    uint8_t *data;
    char path[512];
    size_t n;
    uint64_t n_damaged = 0, n_good, n_bad;

    CHECK(make_one(&g, tokens, 4, 500));
    strcpy(path, rig_segment_path(&g, 0));
    CHECK(read_file(path, &data, &n));
    memcpy(&head, data, sizeof(head));
    data[head.data_offset + head.slot_bytes * 2 + 17] ^= 4;
    CHECK_EQ(try_file(&g, path, data, n, tokens, 4, &n_damaged), 2);
    CHECK_EQ(n_damaged, 1);
    CHECK(rig_open(&g)); /* the record is gone: not seen again */
    CHECK_EQ(rig_counts(&g).n_damaged, 0);
    CHECK_EQ(rig_counts(&g).n_pages, 3);
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 4), 2);
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 4));
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 4), 4);
    page_store_verify(g.s, &n_good, &n_bad);
    CHECK_EQ(n_good, 4);
    CHECK_EQ(n_bad, 0);
    rig_close(&g);
    mem_free(data);
    CHECK(read_file(path, &data, &n));
    data[head.data_offset + 3] ^= 1;
    CHECK(write_file(path, data, n));
    CHECK(rig_open(&g));
    page_store_verify(g.s, &n_good, &n_bad);
    CHECK_EQ(n_good, 3);
    CHECK_EQ(n_bad, 1);
    CHECK_EQ(rig_counts(&g).n_pages, 3);
    mem_free(data);
    rig_deinit(&g);
}

TEST(a_damaged_key_is_taken_from_a_segment)
{
    struct store_rig g;
    uint32_t tokens[4 * RIG_P];
    uint8_t *data;
    char path[512];
    size_t n;

    CHECK(make_one(&g, tokens, 4, 500));
    snprintf(path, sizeof(path), "%s/key", g.dir);
    CHECK(read_file(path, &data, &n));
    for (size_t bit = 0; bit < n * 8; bit += 7) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(write_file(path, data, n));
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(rig_open(&g));
        CHECK_EQ(rig_get(&g, g.space, "a", tokens, 4), 4);
        rig_close(&g);
    }
    CHECK(unlink(path) == 0);
    CHECK(rig_open(&g));
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 4), 4);
    mem_free(data);
    rig_deinit(&g);
}

/* Somebody who can write the files and makes the checks fit: nothing beyond the page's own bytes can be wrong. (F115) */
TEST(hostile_numbers_with_right_checks_are_bounded)
{
    static const uint64_t numbers[] = {0, 1, 3, 63, 64, 4096, UINT32_MAX, 1ull << 40, UINT64_MAX};
    struct store_rig g;
    struct segment_head head;
    uint32_t tokens[4 * RIG_P];
    uint8_t *data;
    char path[512];
    size_t n;

    CHECK(make_one(&g, tokens, 4, 500));
    strcpy(path, rig_segment_path(&g, 0));
    CHECK(read_file(path, &data, &n));
    memcpy(&head, data, sizeof(head));
    for (int field = 0; field < 6; field++) {
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
            struct segment_head h = head;
            uint64_t n_damaged = 0;

            if (field == 0) h.page_tokens = (uint32_t)numbers[i];
            if (field == 1) h.page_bytes = numbers[i];
            if (field == 2) h.slot_bytes = numbers[i];
            if (field == 3) h.data_offset = numbers[i];
            if (field == 4) h.n_slots = (uint32_t)numbers[i];
            if (field == 5) h.record_bytes = (uint32_t)numbers[i];
            h.check = hash128_of(&h, offsetof(struct segment_head, check));
            memcpy(data, &h, sizeof(h));
            CHECK_EQ(try_file(&g, path, data, n, tokens, 4, &n_damaged), 0);
            CHECK(n_damaged > 0);
        }
    }
    mem_free(data);
    rig_deinit(&g);
}

/* Any bytes of the head and of the records, with checks that are right again: nothing is read that is out of bounds, and
 * nothing wrong comes back. (F115) */
TEST(hostile_records_with_right_checks_do_no_harm)
{
    enum { N = 6 };
    struct store_rig g;
    struct segment_head head, h;
    struct random r;
    uint32_t tokens[N * RIG_P], n_rounds = test_is_long() ? 100000 : IS_SANITIZED ? 500 : 1500, n_came = 0;
    uint8_t *data, *work;
    char path[512];
    uint64_t n_damaged = 0, n_good, n_bad;
    size_t n;

    random_init(&r, test_seed());
    CHECK(make_one(&g, tokens, N, 500));
    strcpy(path, rig_segment_path(&g, 0));
    CHECK(read_file(path, &data, &n));
    memcpy(&head, data, sizeof(head));
    work = mem_alloc(n, 1);
    for (uint32_t i = 0; i < n_rounds; i++) {
        int got;

        memcpy(work, data, n);
        memcpy(&h, data, sizeof(h));
        if (random_below(&r, 3) == 0)
            ((uint8_t *)&h)[random_below(&r, sizeof(h))] ^= (uint8_t)(1u << random_below(&r, 8));
        h.check = hash128_of(&h, offsetof(struct segment_head, check));
        memcpy(work, &h, sizeof(h));
        for (uint32_t k = 0; k < 1 + random_below(&r, 3); k++) {
            uint64_t at = segment_record_offset(&head, (uint32_t)random_below(&r, N + 2)), check;

            for (uint32_t m = (uint32_t)random_below(&r, 4); m > 0; m--)
                work[at + 8 + random_below(&r, head.record_bytes - 8)] = (uint8_t)random_u64(&r);
            check = hash64_of(work + at + 8, head.record_bytes - 8);
            memcpy(work + at, &check, sizeof(check));
        }
        got = try_file(&g, path, work, random_below(&r, 8) ? n : random_below(&r, n), tokens, N, &n_damaged);
        CHECK(got >= 0 && got <= N);
        n_came += (uint32_t)got;
        CHECK(write_file(path, work, n) && rig_open(&g));
        page_store_verify(g.s, &n_good, &n_bad);
        CHECK(n_good <= N + 2);
        rig_close(&g);
    }
    test_note("%u hostile files, %llu records refused, %u pages came, all right", n_rounds,
              (unsigned long long)n_damaged, n_came);
    mem_free(data);
    mem_free(work);
    rig_deinit(&g);
}

/* The number of a segment is in its name, and whoever writes to the folder chooses it. (F80) */
TEST(names_at_the_end_of_all_numbers_do_no_harm)
{
    static const char *const names[] = {"ffffffffffffffff.pages", "fffffffffffffffe.pages", "fffffffffffffffd.pages",
                                        "0000000000000000.pages"};
    uint32_t tokens[12 * RIG_P];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct store_rig g;
        char path[256];
        FILE *f;

        rig_init(&g, 600, 1 << 20, 9000);
        CHECK(rig_open(&g));
        rig_close(&g);
        snprintf(path, sizeof(path), "%s/%s", g.dir, names[i]);
        f = fopen(path, "w");
        CHECK(f && fwrite("no segment", 10, 1, f) == 1);
        fclose(f);
        chmod(path, 0600);
        CHECK(rig_open(&g));
        for (uint32_t k = 0; k < 4; k++) { /* some segments */
            rig_text(k * 4, tokens, 12);
            CHECK_OK(rig_put(&g, g.space, "a", tokens, 12));
            CHECK_OK(page_store_flush(g.s));
            CHECK_EQ(rig_get(&g, g.space, "a", tokens, 12), 12);
        }
        CHECK(rig_counts(&g).n_segments > 3);
        CHECK_EQ(rig_counts(&g).n_read_errors, 0);
        rig_close(&g);
        CHECK(rig_open(&g));
        for (uint32_t k = 0; k < 4; k++) {
            rig_text(k * 4, tokens, 12);
            CHECK_EQ(rig_get(&g, g.space, "a", tokens, 12), 12);
        }
        rig_deinit(&g);
    }
}
