/* base/key_file.c - see the header. */
#include "base/key_file.h"
#include "base/cache_dir.h"
#include "base/data_file.h"
#include "base/hash.h"

#define MAGIC 0x79656b2068736964ull

struct contents {
    uint64_t magic;
    struct sip_key key;
    struct hash128 check;
};

static struct hash128 check_of(const struct contents *c)
{
    return hash128_of(c, sizeof(*c) - sizeof(c->check));
}

bool key_file_read(const char *dir, const char *name, struct sip_key *out)
{
    struct data_file f;
    struct contents c;
    rd_status st = data_file_open(dir, name, DATA_FILE_READ, &f);

    if (st != RD_OK) return false;
    st = data_file_read(&f, 0, &c, sizeof(c));
    data_file_close(&f);
    if (st != RD_OK || c.magic != MAGIC || !hash128_equal(c.check, check_of(&c))) return false;
    *out = c.key;
    return true;
}

rd_status key_file_write(const char *dir, const char *name, struct sip_key key, struct rd_error *err)
{
    struct contents c = {.magic = MAGIC, .key = key};
    struct cache_file f;
    rd_status st;

    c.check = check_of(&c);
    st = cache_file_create(dir, sizeof(c), &f, err);
    if (st == RD_OK) st = cache_file_write(&f, 0, &c, sizeof(c), err);
    if (st == RD_OK) st = cache_file_sync(&f, err);
    if (st == RD_OK) return cache_file_commit(&f, dir, name, err);
    cache_file_abandon(&f);
    return st;
}
