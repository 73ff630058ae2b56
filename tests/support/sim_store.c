#include "sim_store.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PAGES 4096u
#define STAGED    64u

bool sim_store_init(struct sim_store *s)
{
    memset(s, 0, sizeof(*s));
    snprintf(s->dir, sizeof(s->dir), "%s/radish-link-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return mkdtemp(s->dir) != NULL;
}

/* Packed: another size, and another byte in front. */
static void pack(const void *codec, const void *page, void *out)
{
    memset(out, 0xaa, 8);
    memcpy((uint8_t *)out + 8, page, ((const struct sim_store *)codec)->page_bytes);
}

static void unpack(const void *codec, const void *in, void *page)
{
    memcpy(page, (const uint8_t *)in + 8, ((const struct sim_store *)codec)->page_bytes);
}

bool sim_store_open(struct sim_store *s, uint32_t page_tokens, uint64_t page_bytes, uint64_t cap_bytes,
                    const struct clock *clock, bool threads)
{
    struct store_options o = {.dir = s->dir, .cap_bytes = cap_bytes, .clock = clock, .max_spaces = s->max_spaces};
    struct store_link_options lo = {.clock = clock,
                                    .page_tokens = page_tokens,
                                    .max_pages = MAX_PAGES,
                                    .page_bytes = page_bytes,
                                    .staging_bytes = STAGED * page_bytes,
                                    .lossy_from = s->lossy_from,
                                    .packed_bytes = page_bytes + 8,
                                    .codec = s,
                                    .pack = pack,
                                    .unpack = unpack,
                                    .threads = threads};

    s->page_bytes = page_bytes;
    s->link = NULL;
    return page_store_open(&o, &lo.store, NULL) == RD_OK && store_link_create(&lo, &s->link) == RD_OK;
}

void sim_store_close(struct sim_store *s)
{
    store_link_destroy(s->link);
    s->link = NULL;
}

void sim_store_deinit(struct sim_store *s)
{
    char path[512];
    DIR *d;
    struct dirent *e;

    sim_store_close(s);
    d = opendir(s->dir);
    while (d && (e = readdir(d))) {
        snprintf(path, sizeof(path), "%s/%s", s->dir, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(s->dir);
}
