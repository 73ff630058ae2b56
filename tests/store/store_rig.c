#include "store_rig.h"
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

static void ignore_line(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

void rig_init(struct store_rig *g, uint64_t page_bytes, uint64_t cap_bytes, uint64_t segment_bytes)
{
    *g = (struct store_rig){.page_bytes = page_bytes, .cap_bytes = cap_bytes, .segment_bytes = segment_bytes};
    log_set_sink(ignore_line, NULL);
    /* in memory where there is such a place: tests truncate and sync a lot */
    snprintf(g->dir, sizeof(g->dir), "%s/radish-store-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(g->dir)) abort();
    g->clock = clock_fake_create(1, clock_wall_s(clock_system()));
}

void rig_deinit(struct store_rig *g)
{
    char path[1024];
    DIR *d;
    struct dirent *e;

    rig_close(g);
    d = opendir(g->dir);
    while (d && (e = readdir(d))) {
        snprintf(path, sizeof(path), "%s/%s", g->dir, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(g->dir);
    clock_fake_destroy(g->clock);
}

bool rig_open(struct store_rig *g)
{
    struct store_options o = {.dir = g->dir,
                              .cap_bytes = g->cap_bytes,
                              .segment_bytes = g->segment_bytes,
                              .clock = g->clock,
                              .keep_free_bytes = g->keep_free_bytes,
                              .max_spaces = g->max_spaces,
                              .about = "a model\nf16\n"};
    struct rd_error err = {RD_OK, ""};

    if (page_store_open(&o, &g->s, &err) != RD_OK) return false;
    if (page_store_space(g->s, "a", 1, RIG_P, g->page_bytes, &g->space) == RD_OK) return true;
    rig_close(g);
    return false;
}

void rig_close(struct store_rig *g)
{
    page_store_close(g->s);
    g->s = NULL;
}

void rig_fill(const struct store_rig *g, const char *space, const uint32_t *tokens, uint32_t i, uint8_t *page)
{
    uint64_t seed = hash64_of(space, strlen(space)) ^ hash64_of(tokens, (i + 1) * RIG_P * sizeof(*tokens));

    for (uint64_t k = 0; k < g->page_bytes; k += 8) {
        uint64_t word = random_at(seed, k);
        memcpy(page + k, &word, g->page_bytes - k < 8 ? g->page_bytes - k : 8);
    }
}

rd_status rig_put(struct store_rig *g, struct store_space *space, const char *name, const uint32_t *tokens, uint32_t n)
{
    struct hash128 digests[RIG_MAX_PAGES];
    uint8_t *page = malloc(g->page_bytes);
    rd_status st = RD_OK;

    page_store_chain(g->s, space, tokens, 0, n, digests);
    for (uint32_t i = 0; i < n; i++) {
        rd_status put;

        rig_fill(g, name, tokens, i, page);
        put = page_store_put(g->s, space, digests, i, tokens + i * RIG_P, page);
        if (put != RD_OK) st = put;
    }
    free(page);
    return st;
}

uint32_t rig_get(struct store_rig *g, struct store_space *space, const char *name, const uint32_t *tokens, uint32_t n)
{
    struct hash128 digests[RIG_MAX_PAGES];
    uint8_t *bytes = malloc(g->page_bytes * (n + 1)), *want = bytes + g->page_bytes * n;
    void *pages[RIG_MAX_PAGES];
    uint32_t n_found, n_read;

    for (uint32_t i = 0; i < n; i++) pages[i] = bytes + i * g->page_bytes;
    page_store_chain(g->s, space, tokens, 0, n, digests);
    n_found = page_store_find(g->s, digests, n);
    n_read = page_store_read(g->s, space, digests, tokens, 0, n_found, pages, NULL);
    for (uint32_t i = 0; i < n_read; i++) {
        rig_fill(g, name, tokens, i, want);
        if (memcmp(pages[i], want, g->page_bytes))
            test_fail(__FILE__, __LINE__, "page %u of %u has bytes that were never put there", i, n_read);
    }
    free(bytes);
    return n_read;
}

void rig_text(uint64_t k, uint32_t *tokens, uint32_t n_pages)
{
    for (uint32_t i = 0; i < n_pages * RIG_P; i++)
        tokens[i] = (uint32_t)random_at(i < n_pages * RIG_P / 2 ? k / 4 + 1000000 : k, i) % 50000;
}

struct store_counts rig_counts(const struct store_rig *g)
{
    struct store_counts c;

    page_store_get_counts(g->s, &c);
    return c;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Names into names (up to 256), their number returned. */
static uint32_t list(const struct store_rig *g, char names[256][SEGMENT_NAME_BYTES])
{
    DIR *d = opendir(g->dir);
    struct dirent *e;
    uint32_t n = 0;
    uint64_t id;

    while (d && (e = readdir(d)))
        if (segment_parse_name(e->d_name, &id) && n < 256) memcpy(names[n++], e->d_name, SEGMENT_NAME_BYTES);
    if (d) closedir(d);
    qsort(names, n, SEGMENT_NAME_BYTES, by_name);
    return n;
}

uint64_t rig_dir_bytes(const struct store_rig *g)
{
    static char names[256][SEGMENT_NAME_BYTES];
    uint32_t n = list(g, names);
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        char path[256];
        struct stat st;

        snprintf(path, sizeof(path), "%s/%.24s", g->dir, names[i]);
        if (stat(path, &st) == 0) sum += (uint64_t)st.st_size;
    }
    return sum;
}

const char *rig_segment_path(const struct store_rig *g, uint32_t k)
{
    static char names[256][SEGMENT_NAME_BYTES], path[512];

    path[0] = 0;
    if (k < list(g, names)) snprintf(path, sizeof(path), "%s/%s", g->dir, names[k]);
    return path;
}
