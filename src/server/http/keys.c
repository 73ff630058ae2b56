/* server/http/keys.c - a set of digests that is replaced as a whole, and tenants that are never forgotten.
 *
 * A set does not change once it is in use, except what it remembers of keys that it let in; who looks in it holds it. The lock
 * is taken to hold a set, to let go of it, and to remember: never while anything is hashed.
 *
 * paid_until of a sender runs ahead of the clock by what its wrong keys took, at the rate that is allowed: it may not be ahead by
 * more than a burst. Two senders may share one by chance; nobody can choose to, as the seed is drawn.
 */
#include "server/http/keys.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/key_digest.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/thread.h"

#define FILE_BYTES (4u << 20)
#define FIELDS     3u
#define SENDERS    1024u
#define SECOND_NS  1000000000ull
#define BLOCK_NS   (SECOND_NS / KEY_BLOCKS_PER_S)

struct digest {
    uint32_t salt, place; /* of the set's; as it was read: of equal ones the last counts */
    bool is_admin;
    const char *tenant;
    char hex[SHA_HEX_BYTES];
};

struct known {
    char hex[SHA_HEX_BYTES]; /* of a key, with own_salt; "": free */
    const struct digest *is;
};

struct key_set {
    uint32_t n_holders; /* the keys that use it, and each find that looks in it */
    struct digest *digests;
    size_t n_digests, cap_digests;
    char (*salts)[KEY_SALT_MOST + 1];
    size_t n_salts, cap_salts;
    uint32_t n_admins;
    bool is_needed;
    struct known *known; /* [n_known]: a power of two, at least twice n_digests; hashed by the digest, linear */
    size_t n_known;
};

struct keys {
    struct mutex lock; /* over which set is used, n_holders and known of each */
    struct key_set *set;
    atomic_bool is_needed;            /* set->is_needed: one writes, any reads; relaxed */
    char own_salt[KEY_SALT_MOST + 1]; /* of keys that came as they are; drawn, and told to nobody */
    struct digest own, admin;         /* hex "": there is none */
    const struct clock *clock;
    uint64_t seed;                /* of the places of senders */
    uint64_t paid_until[SENDERS]; /* ns of the clock; under the lock */
    char *file;
    char *tenants[LIMIT_TENANTS]; /* [n_tenants]: one appends, then raises the number (release); any reads (acquire) */
    atomic_uint n_tenants;
};

static void free_set(struct key_set *set)
{
    if (!set) return;
    mem_free(set->digests);
    mem_free(set->salts);
    mem_free(set->known);
    mem_free(set);
}

static struct key_set *hold(struct keys *k)
{
    k->set->n_holders++;
    return k->set;
}

/* The last holder frees it, when the lock is released. */
static bool is_last(struct key_set *set)
{
    return --set->n_holders == 0;
}

/* ---- building a set ---- */

static uint32_t n_tenants(const struct keys *k)
{
    return atomic_load_explicit(&k->n_tenants, memory_order_acquire);
}

/* The tenant's text, the same for the same name; NULL: *st says why. */
static const char *tenant_of(struct keys *k, const char *name, rd_status *st)
{
    uint32_t n = n_tenants(k);

    for (uint32_t i = 0; i < n; i++)
        if (strcmp(k->tenants[i], name) == 0) return k->tenants[i];
    *st = n < LIMIT_TENANTS ? RD_E_NOMEM : RD_E_LIMIT;
    if (n == LIMIT_TENANTS || !(k->tenants[n] = mem_strdup(name))) return NULL;
    atomic_store_explicit(&k->n_tenants, n + 1, memory_order_release);
    return k->tenants[n];
}

static bool find_salt(struct key_set *set, const char *salt, uint32_t *out)
{
    for (*out = 0; *out < set->n_salts; (*out)++)
        if (strcmp(set->salts[*out], salt) == 0) return true;
    if (!mem_grow((void **)&set->salts, &set->cap_salts, set->n_salts + 1, sizeof(*set->salts))) return false;
    snprintf(set->salts[set->n_salts++], sizeof(*set->salts), "%s", salt);
    return true;
}

static rd_status add(struct key_set *set, const char *salt, const char *hex, const char *tenant, bool is_admin)
{
    struct digest d = {.place = (uint32_t)set->n_digests, .is_admin = is_admin, .tenant = tenant};

    if (!find_salt(set, salt, &d.salt) ||
        !mem_grow((void **)&set->digests, &set->cap_digests, set->n_digests + 1, sizeof(*set->digests)))
        return RD_E_NOMEM;
    memcpy(d.hex, hex, sizeof(d.hex));
    set->digests[set->n_digests++] = d;
    set->n_admins += is_admin;
    return RD_OK;
}

/* ---- lines ---- */

/* "sha256:SALT:DIGEST" */
static bool split_digest(char *text, char **salt, char hex[SHA_HEX_BYTES])
{
    char *digest;

    if (strncmp(text, "sha256:", 7) != 0) return false;
    *salt = text + 7;
    digest = strchr(*salt, ':');
    if (!digest) return false;
    *digest++ = 0;
    if (!key_is_salt(*salt) || strlen(digest) != 64 || digest[strspn(digest, "0123456789abcdefABCDEF")]) return false;
    for (size_t i = 0; i <= 64; i++) hex[i] = digest[i] >= 'A' && digest[i] <= 'F' ? (char)(digest[i] + 32) : digest[i];
    return true;
}

static rd_status bad_line(const struct keys *k, uint32_t line, const char *what, struct rd_error *err)
{
    return error_set(err, RD_E_FORMAT, "%s:%u: %s", k->file, line, what);
}

static rd_status add_line(struct keys *k, struct key_set *set, char **field, uint32_t n, uint32_t line,
                          struct rd_error *err)
{
    char hex[SHA_HEX_BYTES], name[KEY_NAME_MOST + 2], *salt;
    const char *tenant = NULL;
    bool is_admin = n == 3;
    rd_status st = RD_OK;

    if (n == 1) {
        if (strlen(field[0]) > KEY_MOST)
            return error_set(err, RD_E_LIMIT, "%s:%u: a key has at most %u bytes", k->file, line, KEY_MOST);
        key_digest(k->own_salt, field[0], hex);
        tenant = tenant_of(k, field[0], &st);
        salt = k->own_salt;
    } else {
        if (!key_is_name(field[0]))
            return bad_line(k, line, "wanted NAME sha256:SALT:DIGEST, as radish key prints it", err);
        if (!split_digest(field[1], &salt, hex))
            return bad_line(k, line, "wanted sha256:SALT:DIGEST behind the name, as radish key prints it", err);
        if (is_admin && strcmp(field[2], "admin") != 0)
            return bad_line(k, line, "behind the digest stands admin, or nothing", err);
        snprintf(name, sizeof(name), "\t%s", field[0]); /* no key of a line by itself has a tab */
        if (!is_admin) tenant = tenant_of(k, name, &st);
    }
    if (!tenant && !is_admin && st == RD_E_LIMIT)
        return error_set(err, st, "%s: more than %u tenants since the start", k->file, LIMIT_TENANTS);
    if ((!tenant && !is_admin) || add(set, salt, hex, tenant, is_admin) != RD_OK)
        return error_set(err, RD_E_NOMEM, "%s: out of memory", k->file);
    return RD_OK;
}

/* The words of a line; n: FIELDS + 1 where there are more. */
static uint32_t split_line(char *line, char *field[FIELDS])
{
    uint32_t n = 0;

    for (char *at = line + strspn(line, " \t\r"); *at && *at != '#'; at += strspn(at, " \t\r")) {
        size_t len = strcspn(at, " \t\r");

        if (n == FIELDS) return n + 1;
        field[n++] = at;
        at += len;
        if (*at) *at++ = 0;
    }
    return n;
}

static rd_status read_file(struct keys *k, struct key_set *set, struct rd_error *err)
{
    char *text = NULL, *field[FIELDS] = {NULL};
    uint32_t line = 0;
    size_t n = 0, n_before = set->n_digests;
    struct rd_error why = {RD_OK, ""};
    rd_status st = file_read_all(k->file, FILE_BYTES, &text, &n, &why);

    if (st != RD_OK) return error_set(err, st, "--api-key-file: %s", *why.text ? why.text : rd_status_text(st));

    for (char *at = text, *next; st == RD_OK && at < text + n; at = next) {
        uint32_t n_fields;
        bool is_cut;

        next = memchr(at, '\n', (size_t)(text + n - at));
        is_cut = !next;
        next = next ? next : text + n;
        *next++ = 0;
        line++;
        if (strlen(at) + 1 != (size_t)(next - at)) st = bad_line(k, line, "wanted text", err);
        n_fields = st == RD_OK ? split_line(at, field) : 0;
        if (n_fields > 0 && is_cut)
            st = bad_line(k, line, "the last line has no newline at its end: it may have been cut", err);
        if (st == RD_OK && n_fields > FIELDS) st = bad_line(k, line, "more than NAME sha256:SALT:DIGEST admin", err);
        if (st == RD_OK && n_fields > 0) st = add_line(k, set, field, n_fields, line, err);
        if (st == RD_OK && set->n_digests - n_before > LIMIT_API_KEYS)
            st = error_set(err, RD_E_LIMIT, "%s: more than %u keys", k->file, LIMIT_API_KEYS);
    }
    if (st == RD_OK && set->n_digests == n_before) st = error_set(err, RD_E_FORMAT, "%s: no key in it", k->file);
    if (text) memset(text, 0, n);
    mem_free(text);
    return st;
}

static int by_salt(const void *x, const void *y)
{
    const struct digest *a = x, *b = y;

    if (a->salt != b->salt) return a->salt < b->salt ? -1 : 1;
    return (a->place > b->place) - (a->place < b->place);
}

/* Room for every key that can be let in. */
static bool make_known(struct key_set *set)
{
    for (set->n_known = 4; set->n_known < 2 * set->n_digests;) set->n_known *= 2;
    set->known = mem_zalloc(set->n_known, sizeof(*set->known));
    return set->known != NULL;
}

static rd_status build(struct keys *k, struct key_set **out, struct rd_error *err)
{
    struct key_set *set = mem_zalloc(1, sizeof(*set));
    rd_status st = set ? RD_OK : RD_E_NOMEM;

    if (st == RD_OK && *k->admin.hex) st = add(set, k->own_salt, k->admin.hex, NULL, true);
    if (st == RD_OK && k->file) st = read_file(k, set, err);
    if (st == RD_OK) set->is_needed = *k->own.hex || set->n_digests > (*k->admin.hex != 0);
    if (st == RD_OK && *k->own.hex) st = add(set, k->own_salt, k->own.hex, NULL, false);
    if (st == RD_OK && set->n_digests > 1) qsort(set->digests, set->n_digests, sizeof(*set->digests), by_salt);
    if (st == RD_OK && !make_known(set)) st = RD_E_NOMEM;
    if (st != RD_OK) {
        free_set(set);
        return st == RD_E_NOMEM ? error_set(err, st, "out of memory for keys") : st;
    }
    set->n_holders = 1;
    *out = set;
    return RD_OK;
}

/* ---- life ---- */

rd_status keys_create(const struct keys_options *o, struct keys **out, struct rd_error *err)
{
    struct keys *k = mem_zalloc(1, sizeof(*k));
    rd_status st = RD_E_NOMEM;

    if (!k) return error_set(err, st, "out of memory for keys");
    mutex_init(&k->lock);
    k->clock = o->clock ? o->clock : clock_system();
    random_os(&k->seed, sizeof(k->seed));
    if ((o->own && strlen(o->own) > KEY_MOST) || (o->admin && strlen(o->admin) > KEY_MOST)) {
        st = error_set(err, RD_E_LIMIT, "%s: a key has at most %u bytes",
                       o->own && strlen(o->own) > KEY_MOST ? "--api-key" : "--admin-key", KEY_MOST);
        goto fail;
    }
    key_draw_salt(k->own_salt);
    if (o->own) key_digest(k->own_salt, o->own, k->own.hex);
    if (o->admin) key_digest(k->own_salt, o->admin, k->admin.hex);
    if (o->file && !(k->file = mem_strdup(o->file))) {
        error_set(err, st, "out of memory for keys");
        goto fail;
    }
    st = build(k, &k->set, err);
    if (st != RD_OK) goto fail;
    atomic_store_explicit(&k->is_needed, k->set->is_needed, memory_order_relaxed);
    *out = k;
    return RD_OK;

fail:
    keys_destroy(k);
    return st;
}

void keys_destroy(struct keys *k)
{
    if (!k) return;
    free_set(k->set);
    for (uint32_t i = 0; i < n_tenants(k); i++) mem_free(k->tenants[i]);
    mem_free(k->file);
    mutex_deinit(&k->lock);
    mem_free(k);
}

rd_status keys_reload(struct keys *k, uint32_t *n, struct rd_error *err)
{
    struct key_set *set, *old;
    rd_status st = build(k, &set, err);
    bool is_needed, is_unused;

    if (st != RD_OK) return st;
    is_needed = set->is_needed;
    *n = (uint32_t)set->n_digests - (*k->own.hex != 0) - (*k->admin.hex != 0);
    mutex_lock(&k->lock);
    old = k->set;
    k->set = set;
    is_unused = is_last(old);
    mutex_unlock(&k->lock);
    atomic_store_explicit(&k->is_needed, is_needed, memory_order_relaxed);
    if (is_unused) free_set(old);
    return RD_OK;
}

bool keys_has_file(const struct keys *k)
{
    return k->file != NULL;
}

/* ---- asking ---- */

/* Every digest is compared, and every salt hashed once: they stand together (build). */
static const struct digest *look(const struct key_set *set, const char *sent)
{
    const struct digest *found = NULL;
    char hex[SHA_HEX_BYTES];

    for (size_t i = 0; i < set->n_digests; i++) {
        const struct digest *d = &set->digests[i];

        if (i == 0 || d->salt != d[-1].salt) key_digest(set->salts[d->salt], sent, hex);
        if (keys_equal(hex, 64, d->hex, 64) && (!found || !found->is_admin)) found = d;
    }
    return found;
}

bool keys_equal(const char *sent, size_t n_sent, const char *key, size_t n_key)
{
    unsigned diff = n_sent != n_key;

    for (size_t i = 0; i < n_sent; i++) diff |= (unsigned char)sent[i] ^ (unsigned char)key[n_key ? i % n_key : 0];
    return diff == 0;
}

/* Where a key of this digest stands among those that were let in, or where it would: there is always a free place. Which
 * place tells nothing to whoever does not know the salt. */
static struct known *known_at(const struct key_set *set, const char *hex)
{
    char start[9] = "";
    size_t i;

    memcpy(start, hex, 8);
    for (i = strtoul(start, NULL, 16);; i++) {
        struct known *at = &set->known[i & (set->n_known - 1)];

        if (!*at->hex || keys_equal(hex, 64, at->hex, 64)) return at;
    }
}

/* Two that were let in with equal digests are one key: no more than n_digests are remembered. */
static void remember(struct key_set *set, const char *hex, const struct digest *is)
{
    struct known *at = known_at(set, hex);

    memcpy(at->hex, hex, sizeof(at->hex));
    at->is = is;
}

static uint64_t *paid_until(struct keys *k, uint64_t sender)
{
    uint64_t both[2] = {k->seed, sender};

    return &k->paid_until[hash64_of(both, sizeof(both)) % SENDERS];
}

/* Blocks that a look takes: SHA-256 adds 9 bytes at least. */
static uint64_t cost_of(const struct key_set *set, const char *sent)
{
    return set->n_salts * ((KEY_SALT_MOST / 2 + strlen(sent) + 9 + 63) / 64);
}

/* Under the lock. false: the sender has to wait. */
static bool pay(struct keys *k, uint64_t sender, uint64_t n_blocks)
{
    uint64_t *until = paid_until(k, sender), now = clock_now_ns(k->clock);

    if (*until > now + KEY_BLOCKS_BURST * BLOCK_NS) return false;
    *until = (*until > now ? *until : now) + n_blocks * BLOCK_NS;
    return true;
}

/* Under the lock: it was no wrong key. */
static void pay_back(struct keys *k, uint64_t sender, uint64_t n_blocks)
{
    uint64_t *until = paid_until(k, sender);

    *until -= *until < n_blocks * BLOCK_NS ? *until : n_blocks * BLOCK_NS;
}

struct key_holder keys_find(struct keys *k, const char *sent, uint64_t sender)
{
    struct key_holder h = {0};
    const struct digest *d = NULL;
    char hex[SHA_HEX_BYTES];
    struct key_set *set;
    uint64_t n_blocks = 0;
    bool may_be = sent && strlen(sent) <= KEY_MOST, is_unused, is_new;

    if (may_be) key_digest(k->own_salt, sent, hex);
    mutex_lock(&k->lock);
    set = hold(k);
    if (may_be) d = known_at(set, hex)->is;
    is_new = may_be && !d && set->n_digests > 0;
    if (is_new) n_blocks = cost_of(set, sent);
    if (is_new && !pay(k, sender, n_blocks)) {
        is_new = false;
        h.is_held_back = set->is_needed;
    }
    mutex_unlock(&k->lock);

    if (is_new) d = look(set, sent);
    h.ok = d != NULL || !set->is_needed;
    h.tenant = d ? d->tenant : NULL;
    h.is_admin = set->n_admins > 0 ? d && d->is_admin : h.ok && !h.tenant;

    mutex_lock(&k->lock);
    if (is_new && d) {
        remember(set, hex, d);
        pay_back(k, sender, n_blocks);
    }
    is_unused = is_last(set);
    mutex_unlock(&k->lock);
    if (is_unused) free_set(set);
    return h;
}

bool keys_are_needed(const struct keys *k)
{
    return atomic_load_explicit(&k->is_needed, memory_order_relaxed);
}

uint32_t keys_tenant_index(const struct keys *k, const char *tenant)
{
    uint32_t n = n_tenants(k);

    for (uint32_t i = 0; tenant && i < n; i++)
        if (k->tenants[i] == tenant) return i;
    return UINT32_MAX;
}
