/* kv/kv_space.c - see the header. */
#include "kv/kv_space.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool is_none(struct hash128 h)
{
    return (h.low | h.high) == 0;
}

bool kv_space_equal(const struct kv_space *a, const struct kv_space *b)
{
    return hash128_equal(a->salt, b->salt) && hash128_equal(a->adapter, b->adapter);
}

bool kv_space_is_open(const struct kv_space *s)
{
    return is_none(s->salt);
}

struct kv_space kv_space_opened(const struct kv_space *s)
{
    return (struct kv_space){.adapter = s->adapter};
}

size_t kv_space_name(const struct kv_space *s, void *out)
{
    bool has_adapter = !is_none(s->adapter);
    size_t n = has_adapter ? sizeof(s->salt) + sizeof(s->adapter) : kv_space_is_open(s) ? 0 : sizeof(s->salt);

    if (n > 0) memcpy(out, &s->salt, sizeof(s->salt));
    if (has_adapter) memcpy((char *)out + sizeof(s->salt), &s->adapter, sizeof(s->adapter));
    return n;
}

static void print_part(struct hash128 h, char *out, size_t cap)
{
    if (is_none(h))
        snprintf(out, cap, "none");
    else
        snprintf(out, cap, "%016" PRIx64 "%016" PRIx64, h.high, h.low);
}

void kv_space_print(const struct kv_space *s, char *out, size_t cap)
{
    char salt[40], adapter[40];

    print_part(s->salt, salt, sizeof(salt));
    print_part(s->adapter, adapter, sizeof(adapter));
    snprintf(out, cap, "salt %s, adapter %s", salt, adapter);
}
