/* tests/fuzz/fuzz_page_store.c - any bytes as a segment file of the disk cache whose checks are right (F115: whoever can
 * write the folder can compute them): opened, listed, read, verified, pruned, written to; nothing is read outside.
 *
 * Input: flags, then the file. Flags say which of its checks, numbers and keys are made right first; with none of them the
 * file is as it comes (F114). Pages that come must come from the file: their checksum is right, or they do not.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "store/page_store.h"
#include "store/segment.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define PAGES       4u
#define PAGE_TOKENS 4u
#define PAGE_BYTES  64u
#define ID          7u
#define CAP_BYTES   (64u << 20)
#define MOST_BYTES  (1u << 17)

enum { HEAD = 1, RECORDS = 2, PAGE_CHECKS = 4, KEY = 8, PLACE = 16, CHAIN = 32, TRUNCATE = 64 };

static char dir[64];
static struct clock *fake;
static struct sip_key key;
static struct hash128 space_seed, digests[PAGES];
static uint32_t tokens[PAGES * PAGE_TOKENS];

static void expect(bool fact)
{
    if (!fact) abort();
}

static void ignore(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

static void path_of(const char *name, char *path, size_t cap)
{
    snprintf(path, cap, "%s/%s", dir, name);
}

static void write_file(const char *name, const void *p, size_t n)
{
    char path[256];
    int fd;

    path_of(name, path, sizeof(path));
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    expect(fd >= 0 && write(fd, p, n) == (ssize_t)n);
    close(fd);
}

static void remove_pages(void)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[512];

    expect(d);
    while ((e = readdir(d)))
        if (strstr(e->d_name, ".pages")) {
            path_of(e->d_name, path, sizeof(path));
            unlink(path);
        }
    closedir(d);
}

static struct page_store *open_store(struct store_space **space)
{
    struct store_options o = {
        .dir = dir, .cap_bytes = CAP_BYTES, .segment_bytes = 8192, .clock = fake, .about = "m\nf16"};
    struct page_store *s = NULL;

    expect(page_store_open(&o, &s, NULL) == RD_OK);
    expect(page_store_space(s, "a", 1, PAGE_TOKENS, PAGE_BYTES, space) == RD_OK);
    return s;
}

/* A good segment with two pages, and what the folder's key and the text's digests are. */
static void learn(void)
{
    struct store_space *space;
    struct page_store *s = open_store(&space);
    struct segment_head head;
    uint8_t page[PAGE_BYTES] = {1, 2, 3};
    DIR *d;
    struct dirent *e;
    char path[512];
    int fd;

    for (uint32_t i = 0; i < PAGES * PAGE_TOKENS; i++) tokens[i] = i;
    page_store_chain(s, space, tokens, 0, PAGES, digests);
    for (uint32_t i = 0; i < 2; i++)
        expect(page_store_put(s, space, digests, i, tokens + i * PAGE_TOKENS, page) == RD_OK);
    page_store_close(s);
    expect((d = opendir(dir)) != NULL);
    while ((e = readdir(d)))
        if (strstr(e->d_name, ".pages")) {
            path_of(e->d_name, path, sizeof(path));
            fd = open(path, O_RDONLY | O_CLOEXEC);
            expect(fd >= 0 && read(fd, &head, sizeof(head)) == sizeof(head));
            close(fd);
            key = head.key;
            space_seed = head.space;
        }
    closedir(d);
    remove_pages();
}

static void begin(void)
{
    if (fake) return;
    log_set_sink(ignore, NULL);
    snprintf(dir, sizeof(dir), "%s/radish-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    expect(mkdtemp(dir) != NULL);
    fake = clock_fake_create(1, clock_wall_s(clock_system()));
    expect(fake != NULL);
    learn();
}

/* Records within the file whose numbers let them be one. */
static void mend_record(const struct segment_head *h, uint32_t slot, uint8_t *at, const uint8_t *file, size_t n,
                        unsigned flags)
{
    struct segment_record *r = (struct segment_record *)(void *)at;
    uint64_t page = segment_slot_offset(h, slot);

    if (flags & PLACE) {
        r->segment = h->id;
        r->slot = slot;
    }
    if ((flags & CHAIN) && slot < PAGES) {
        r->digest = digests[slot];
        r->before = slot ? digests[slot - 1] : space_seed;
    }
    if ((flags & PAGE_CHECKS) && page < n && h->page_bytes <= n - page)
        r->page = hash128_of(file + page, h->page_bytes);
    r->check = hash64_of(at + sizeof(r->check), h->record_bytes - sizeof(r->check));
}

static void mend(uint8_t *file, size_t n, unsigned flags)
{
    struct segment_head h;

    if (n < SEGMENT_HEAD_BYTES) return;
    memcpy(&h, file, sizeof(h));
    if (flags & HEAD) memcpy(h.magic, "radishKV", 8);
    if (flags & HEAD) h.version = SEGMENT_VERSION;
    if (flags & PLACE) h.id = ID;
    if (flags & KEY) h.key = key;
    if (flags & KEY) h.space = space_seed;
    if (flags & HEAD) h.check = hash128_of(&h, offsetof(struct segment_head, check));
    memcpy(file, &h, sizeof(h));
    if (!(flags & RECORDS) || h.record_bytes < sizeof(struct segment_record) || h.record_bytes % 16) return;
    for (uint32_t i = 0; i < h.n_slots && i < 64; i++) {
        uint64_t at = segment_record_offset(&h, i);

        if (at > n || h.record_bytes > n - at) return;
        if (!segment_record_is_empty(&h, (const void *)(file + at))) mend_record(&h, i, file + at, file, n, flags);
    }
}

static void use(void)
{
    static uint8_t pages[PAGES][PAGE_BYTES];
    void *to[PAGES] = {pages[0], pages[1], pages[2], pages[3]};
    static struct store_space_info list[64];
    struct store_counts counts;
    struct store_space *space;
    struct page_store *s = open_store(&space);
    uint64_t n_good, n_bad, n_dropped;
    uint32_t n = page_store_find(s, digests, PAGES), n_list;
    uint8_t page[PAGE_BYTES] = {9};

    expect(n <= PAGES && page_store_read(s, space, digests, tokens, 0, n, to, NULL) <= n);
    n_list = page_store_list(s, list, 64);
    for (uint32_t i = 0; i < n_list; i++) expect(memchr(list[i].about, 0, sizeof(list[i].about)));
    page_store_verify(s, &n_good, &n_bad);
    for (uint32_t i = 0; i < PAGES; i++) (void)page_store_put(s, space, digests, i, tokens + i * PAGE_TOKENS, page);
    (void)page_store_flush(s);
    (void)page_store_prune(s, &space, 1, tokens, 2 * PAGE_TOKENS, &n_dropped);
    page_store_refresh(s);
    page_store_get_counts(s, &counts);
    expect(counts.n_bytes <= CAP_BYTES);
    for (uint32_t i = 0; i < n_list; i++) (void)page_store_drop_listed(s, list[i].space);
    page_store_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static _Alignas(64) uint8_t file[MOST_BYTES];
    char name[SEGMENT_NAME_BYTES];

    if (n < 2 || n > MOST_BYTES) return 0;
    begin();
    memcpy(file, data + 1, n - 1);
    mend(file, n - 1, data[0]);
    segment_name(ID, name);
    write_file(name, file, n - 1);
    use();
    remove_pages();
    return 0;
}
