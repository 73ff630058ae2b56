/* store/page_store_space.c - namespaces by name, who holds them, and the chains of digests that begin with their seeds.
 *
 * A client makes up a salt, and so a namespace, with each request: only those in use are kept, and STORE_IDLE_SPACES of
 * the others, the latest, so that requests one behind the other allocate nothing. Which pages are of a namespace follows
 * from its seed, which follows from the key and the name: nothing is lost with one that is forgotten.
 */
#include <assert.h>
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"
#include "store/page_store_state.h"

/* ---- seeds ---- */

static void seed_space(const struct page_store *s, struct store_space *space)
{
    space->seed = sip_hash128(s->key, space->name, space->n_name);
    space->seed.low += s->n_forsaken + space->n_forsaken;
}

void store_seed_spaces(struct page_store *s)
{
    for (uint32_t i = 0; i < STORE_SPACE_BUCKETS; i++)
        for (struct store_space *space = s->spaces[i]; space; space = space->next) seed_space(s, space);
}

/* ---- those that nobody holds ---- */

static void idle_add(struct page_store *s, struct store_space *space)
{
    space->idle_before = s->idle_last;
    space->idle_next = NULL;
    *(s->idle_last ? &s->idle_last->idle_next : &s->idle_first) = space;
    s->idle_last = space;
    s->n_idle++;
}

static void idle_remove(struct page_store *s, struct store_space *space)
{
    *(space->idle_before ? &space->idle_before->idle_next : &s->idle_first) = space->idle_next;
    *(space->idle_next ? &space->idle_next->idle_before : &s->idle_last) = space->idle_before;
    s->n_idle--;
}

static struct store_space **space_bucket(struct page_store *s, const void *name, size_t n)
{
    return &s->spaces[hash64_of(name, n) % STORE_SPACE_BUCKETS];
}

static void forget_oldest(struct page_store *s)
{
    struct store_space *space = s->idle_first, **at = space_bucket(s, space->name, space->n_name);

    idle_remove(s, space);
    while (*at != space) at = &(*at)->next;
    *at = space->next;
    s->n_spaces--;
    mem_free(space);
}

void store_free_spaces(struct page_store *s)
{
    for (uint32_t i = 0; i < STORE_SPACE_BUCKETS; i++)
        for (struct store_space *space = s->spaces[i], *next; space; space = next) {
            next = space->next;
            mem_free(space);
        }
}

/* ---- holding ---- */

const void *page_store_space_name(const struct store_space *space, size_t *n)
{
    *n = space->n_name;
    return space->name;
}

/* name: the full one. Under the lock. */
static rd_status find_or_make(struct page_store *s, const void *name, size_t n, uint32_t page_tokens,
                              uint64_t page_bytes, struct store_space **out)
{
    uint32_t n_most = s->o.max_spaces ? s->o.max_spaces : LIMIT_STORE_SPACES;
    struct store_space **bucket = space_bucket(s, name, n), *space = *bucket;

    while (space && (space->n_name != n || memcmp(space->name, name, n))) space = space->next;
    if (!space) {
        if (s->n_spaces >= n_most && s->n_idle > 0) forget_oldest(s);
        if (s->n_spaces >= n_most) return RD_E_LIMIT;
        space = mem_zalloc(1, sizeof(*space) + n);
        if (!space) return RD_E_NOMEM;
        space->page_tokens = page_tokens;
        space->page_bytes = page_bytes;
        space->n_name = n;
        memcpy(space->name, name, n);
        seed_space(s, space);
        space->next = *bucket;
        *bucket = space;
        s->n_spaces++;
    } else if (space->n_holders == 0) {
        idle_remove(s, space);
    }
    space->n_holders++;
    *out = space;
    return RD_OK;
}

rd_status page_store_space(struct page_store *s, const void *name, size_t n, uint32_t page_tokens, uint64_t page_bytes,
                           struct store_space **out)
{
    uint8_t full[LIMIT_STORE_NAME_BYTES + 12];
    rd_status st;

    if (n > LIMIT_STORE_NAME_BYTES || page_tokens == 0 || page_tokens > LIMIT_STORE_PAGE_TOKENS || page_bytes == 0 ||
        page_bytes > LIMIT_STORE_PAGE_BYTES)
        return RD_E_LIMIT;
    memcpy(full, &page_tokens, 4); /* the shape of the pages belongs to the name */
    memcpy(full + 4, &page_bytes, 8);
    memcpy(full + 12, name, n);
    mutex_lock(&s->lock);
    st = find_or_make(s, full, n + 12, page_tokens, page_bytes, out);
    mutex_unlock(&s->lock);
    return st;
}

void page_store_say(struct page_store *s, struct store_space *space, const char *what)
{
    mutex_lock(&s->lock);
    space->what = what;
    mutex_unlock(&s->lock);
}

struct store_space *page_store_ref(struct page_store *s, struct store_space *space)
{
    if (!space) return NULL;
    mutex_lock(&s->lock);
    assert(space->n_holders > 0);
    space->n_holders++;
    mutex_unlock(&s->lock);
    return space;
}

static void release(struct page_store *s, struct store_space *space)
{
    assert(space->n_holders > 0);
    if (--space->n_holders > 0) return;
    idle_add(s, space);
    if (s->n_idle > STORE_IDLE_SPACES) forget_oldest(s);
}

void page_store_unref(struct page_store *s, struct store_space *space)
{
    if (!space) return;
    mutex_lock(&s->lock);
    release(s, space);
    mutex_unlock(&s->lock);
}

/* How often it was forsaken must not be forgotten: it is held for good. Our own faults lead here, no client does. */
void page_store_forsake(struct page_store *s, struct store_space *space)
{
    mutex_lock(&s->lock);
    if (!space) {
        s->n_forsaken++;
        store_seed_spaces(s);
    } else {
        assert(space->n_holders > 0);
        if (space->n_forsaken++ == 0) space->n_holders++;
        seed_space(s, space);
    }
    mutex_unlock(&s->lock);
}

/* ---- chains ---- */

void page_store_chain(struct page_store *s, const struct store_space *space, const uint32_t *tokens, uint32_t first,
                      uint32_t n, struct hash128 *digests)
{
    uint8_t link[sizeof(struct hash128) + LIMIT_STORE_PAGE_TOKENS * sizeof(uint32_t)];
    size_t n_bytes = space->page_tokens * sizeof(uint32_t);
    struct hash128 before;
    struct sip_key key;

    mutex_lock(&s->lock);
    before = space->seed;
    key = s->key;
    mutex_unlock(&s->lock);
    for (uint32_t i = first; i < n; i++) {
        if (i > 0) before = digests[i - 1];
        memcpy(link, &before, sizeof(before));
        memcpy(link + sizeof(before), tokens + (size_t)i * space->page_tokens, n_bytes);
        digests[i] = sip_hash128(key, link, sizeof(before) + n_bytes);
    }
}
