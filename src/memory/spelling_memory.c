/* memory/spelling_memory.c - a ring of keys, the oldest first, which share the texts they stand for. */
#include "memory/spelling_memory.h"
#include <string.h>
#include "memory/memory_record.h"
#include "base/mem.h"
#include "base/thread.h"

#define MAX_SPELLINGS 4096u
#define N_BUCKETS     4096u /* a power of two */

enum spelling_kind { SPELLING_TOOLS, SPELLING_CALLS };

struct kept_text {
    uint32_t refs;
    size_t n;
    struct hash128 hash;
    char s[];
};
/* text NULL: spelled in two ways. */
struct spelling {
    struct kv_space owner;
    uint32_t kind;
    struct hash128 said;
    struct kept_text *text;
    uint32_t next; /* in its bucket: 1 + an index of the ring, 0: none */
};

struct spelling_memory {
    size_t max_bytes;
    struct mutex lock;                   /* guards what follows */
    struct spelling ring[MAX_SPELLINGS]; /* oldest at `first` */
    uint32_t first, n;
    uint32_t buckets[N_BUCKETS]; /* by `said`, the newest first: 1 + an index of the ring */
    size_t n_bytes;              /* of texts, each once */
    memory_record_fn tell;
    void *tell_arg;
};

rd_status spelling_memory_create(size_t max_bytes, struct spelling_memory **out)
{
    struct spelling_memory *m = mem_zalloc(1, sizeof(*m));

    *out = m;
    if (!m) return RD_E_NOMEM;
    m->max_bytes = max_bytes;
    mutex_init(&m->lock);
    return RD_OK;
}

static struct spelling *at(struct spelling_memory *m, uint32_t i)
{
    return &m->ring[(m->first + i) % MAX_SPELLINGS];
}

static void let_go(struct spelling_memory *m, struct kept_text *t)
{
    if (!t || --t->refs > 0) return;
    m->n_bytes -= t->n;
    mem_free(t);
}

static uint32_t *bucket_of(struct spelling_memory *m, struct hash128 said)
{
    return &m->buckets[said.low & (N_BUCKETS - 1)];
}

static void drop_oldest(struct spelling_memory *m)
{
    uint32_t *link = bucket_of(m, at(m, 0)->said);

    while (*link != m->first + 1) link = &m->ring[*link - 1].next;
    *link = at(m, 0)->next;
    let_go(m, at(m, 0)->text);
    m->first = (m->first + 1) % MAX_SPELLINGS;
    m->n--;
}

void spelling_memory_clear(struct spelling_memory *m)
{
    mutex_lock(&m->lock);
    while (m->n) drop_oldest(m);
    mutex_unlock(&m->lock);
}

void spelling_memory_destroy(struct spelling_memory *m)
{
    if (!m) return;
    spelling_memory_clear(m);
    mutex_deinit(&m->lock);
    mem_free(m);
}

/* ---- keeping and finding; the lock is held ---- */

static struct spelling *find(struct spelling_memory *m, const struct kv_space *owner, enum spelling_kind kind,
                             struct hash128 said)
{
    for (uint32_t i = *bucket_of(m, said); i > 0; i = m->ring[i - 1].next) {
        struct spelling *s = &m->ring[i - 1];

        if (hash128_equal(s->said, said) && s->kind == kind && kv_space_equal(&s->owner, owner)) return s;
    }
    return NULL;
}

static struct kept_text *find_hashed(struct spelling_memory *m, struct hash128 hash)
{
    for (uint32_t i = m->n; i > 0; i--) {
        struct kept_text *t = at(m, i - 1)->text;

        if (t && hash128_equal(t->hash, hash)) return t;
    }
    return NULL;
}

/* The hash is only an index. */
static struct kept_text *find_text(struct spelling_memory *m, const char *s, size_t n)
{
    struct kept_text *t = find_hashed(m, hash128_of(s, n));

    return t && t->n == n && memcmp(t->s, s, n) == 0 ? t : NULL;
}

static struct kept_text *new_text(struct spelling_memory *m, const char *s, size_t n)
{
    struct kept_text *t = n <= m->max_bytes / 8 ? mem_alloc(sizeof(*t) + n + 1, 1) : NULL;

    if (!t) return NULL;
    *t = (struct kept_text){.n = n, .hash = hash128_of(s, n)};
    memcpy(t->s, s, n);
    t->s[n] = 0;
    m->n_bytes += n;
    return t;
}

/* One more entry that stands for t (NULL: two spellings). */
static void put(struct spelling_memory *m, struct spelling s)
{
    if (s.text) s.text->refs++;
    while (m->n && (m->n == MAX_SPELLINGS || m->n_bytes > m->max_bytes)) drop_oldest(m);
    s.next = *bucket_of(m, s.said);
    *bucket_of(m, s.said) = (m->first + m->n) % MAX_SPELLINGS + 1;
    *at(m, m->n++) = s;
}

static void tell(memory_record_fn fn, void *arg, const struct spelling *s, bool with_text)
{
    const struct hash128 none = {0, 0};
    struct buf record = {0};

    record_begin(&record, RECORD_SPELLING, &s->owner);
    record_put_u32(&record, s->kind);
    buf_append(&record, &s->said, sizeof(s->said));
    buf_append(&record, s->text ? &s->text->hash : &none, sizeof(none));
    record_put_bytes(&record, s->text && with_text ? s->text->s : "", s->text && with_text ? s->text->n : 0);
    if (!record.failed) fn(arg, record.data, record.n);
    buf_deinit(&record);
}

/* The first spelling stays; of tools a second one makes that nobody's is known. held: the same text, or NULL. */
static void keep(struct spelling_memory *m, const struct kv_space *owner, enum spelling_kind kind, struct hash128 said,
                 const char *text, size_t n, struct kept_text *held)
{
    struct spelling *old = find(m, owner, kind, said), s = {.owner = *owner, .kind = kind, .said = said};
    bool is_new = false;

    if (old && (kind == SPELLING_CALLS || !old->text || (old->text->n == n && memcmp(old->text->s, text, n) == 0)))
        return;
    if (old) {
        let_go(m, old->text);
        old->text = NULL;
        s = *old;
    } else {
        s.text = find_text(m, text, n);
        is_new = !s.text;
        if (is_new) s.text = held && held->n == n ? held : new_text(m, text, n);
        if (!s.text) return;
        put(m, s);
    }
    if (m->tell) tell(m->tell, m->tell_arg, &s, is_new);
}

/* ---- records ---- */

void spelling_memory_tell(struct spelling_memory *m, memory_record_fn fn, void *arg)
{
    mutex_lock(&m->lock);
    m->tell = fn;
    m->tell_arg = arg;
    mutex_unlock(&m->lock);
}

void spelling_memory_dump(struct spelling_memory *m, memory_record_fn fn, void *arg)
{
    mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->n; i++) {
        const struct spelling *s = at(m, i);
        bool told = false;

        for (uint32_t k = 0; k < i && s->text && !told; k++) told = at(m, k)->text == s->text;
        tell(fn, arg, s, !told);
    }
    mutex_unlock(&m->lock);
}

bool spelling_memory_load(struct spelling_memory *m, const void *record, size_t n)
{
    const struct hash128 none = {0, 0};
    struct record_reader r;
    struct kv_space owner;
    struct spelling s = {.kind = 0}, *old;
    struct hash128 hash = none;
    const void *said, *digest, *text;
    size_t n_text;

    if (record_open(&r, record, n, &owner) != RECORD_SPELLING) return false;
    s.kind = record_u32(&r);
    said = record_bytes(&r, sizeof(s.said));
    digest = record_bytes(&r, sizeof(hash));
    text = record_string(&r, &n_text);
    if (r.bad || s.kind > SPELLING_CALLS) return false;
    memcpy(&s.said, said, sizeof(s.said));
    memcpy(&hash, digest, sizeof(hash));
    s.owner = owner;
    if (n_text && !hash128_equal(hash128_of(text, n_text), hash)) return false;
    mutex_lock(&m->lock);
    old = find(m, &owner, (enum spelling_kind)s.kind, s.said);
    if (old) {
        if (hash128_equal(hash, none)) {
            let_go(m, old->text);
            old->text = NULL;
        }
    } else {
        s.text = find_hashed(m, hash);
        if (!s.text && n_text) s.text = new_text(m, text, n_text);
        if (s.text || hash128_equal(hash, none)) put(m, s);
    }
    mutex_unlock(&m->lock);
    return true;
}

/* ---- recall ---- */

static char *spelled(const json_t *value, size_t *n)
{
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

    *n = text ? strlen(text) : 0;
    return text;
}

/* What is kept, as JSON, if it is equal to value: a new reference. *known: something is, be it two spellings. */
static json_t *recall(struct spelling_memory *m, const struct kv_space *owner, enum spelling_kind kind,
                      struct hash128 said, const json_t *value, bool *known)
{
    const struct spelling *s;
    json_t *kept = NULL;
    char *text = NULL;

    mutex_lock(&m->lock);
    s = find(m, owner, kind, said);
    *known = s != NULL;
    if (s && s->text) text = mem_strdup(s->text->s);
    mutex_unlock(&m->lock);
    if (text) kept = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    mem_free(text);
    if (kind == SPELLING_TOOLS && kept && !json_equal(kept, value)) { /* two of one digest */
        json_decref(kept);
        kept = NULL;
    }
    return kept;
}

/* hold: takes a reference on the text, or NULL is given. */
static void remember(struct spelling_memory *m, const struct kv_space *owner, enum spelling_kind kind,
                     struct hash128 said, const json_t *value, struct kept_text **hold)
{
    size_t n;
    char *text = spelled(value, &n);

    mutex_lock(&m->lock);
    if (text && hold) {
        *hold = find_text(m, text, n);
        if (!*hold) *hold = new_text(m, text, n);
        if (*hold) (*hold)->refs++;
    }
    if (text) keep(m, owner, kind, said, text, n, hold ? *hold : NULL);
    mutex_unlock(&m->lock);
    mem_free(text);
}

/* The tools of the longest conversation that this one goes on from. said[k]: with the first k of n messages. */
static void recall_tools(struct spelling_memory *m, const struct kv_space *owner, json_t *tools,
                         const struct conversation *said, size_t n, size_t first_answer)
{
    for (size_t k = n; k > 0; k--) {
        bool known;
        json_t *kept;

        if (k == n && first_answer >= n) continue; /* a beginning: maybe another client's */
        kept = recall(m, owner, SPELLING_TOOLS, said[k].said, tools, &known);
        if (kept && json_array_clear(tools) == 0) (void)json_array_extend(tools, kept);
        json_decref(kept);
        if (known) return;
    }
}

/* [arguments, ..] of a message's calls; NULL: it has none. */
static json_t *arguments_of(const json_t *calls)
{
    json_t *list = json_array_size(calls) ? json_array() : NULL;

    for (size_t i = 0; list && i < json_array_size(calls); i++) {
        json_t *arguments = json_object_get(json_object_get(json_array_get(calls, i), "function"), "arguments");

        if (json_array_append_new(list, arguments ? json_incref(arguments) : json_null()) == 0) continue;
        json_decref(list);
        list = NULL;
    }
    return list;
}

static void recall_calls(struct spelling_memory *m, const struct kv_space *owner, json_t *message, struct hash128 said,
                         bool keeps)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    json_t *sent = arguments_of(calls), *kept;
    bool known = false;

    if (!sent) return;
    kept = recall(m, owner, SPELLING_CALLS, said, sent, &known);
    for (size_t i = 0; i < json_array_size(calls) && json_array_size(kept) == json_array_size(calls); i++) {
        json_t *function = json_object_get(json_array_get(calls, i), "function"), *first = json_array_get(kept, i);

        if (json_is_object(function) &&
            json_is_string(first) == json_is_string(json_object_get(function, "arguments")) &&
            conversation_same_arguments(first, json_object_get(function, "arguments")))
            (void)json_object_set(function, "arguments", first);
    }
    if (!known && keeps) remember(m, owner, SPELLING_CALLS, said, sent, NULL);
    json_decref(kept);
    json_decref(sent);
}

void spelling_memory_recall(struct spelling_memory *m, struct kv_space owner, json_t *tools, json_t *messages,
                            struct spelled *keep)
{
    size_t n = json_array_size(messages), first_answer = n;
    bool has_json = json_array_size(tools) > 0;
    struct conversation *said;

    if (keep) *keep = (struct spelled){{{0, 0}, true}, NULL};
    for (size_t i = 0; i < n && !has_json; i++)
        has_json = json_array_size(json_object_get(json_array_get(messages, i), "tool_calls")) > 0;
    said = has_json ? mem_alloc(n + 1, sizeof(*said)) : NULL; /* a plain chat is not digested */
    if (!said) return;
    said[0] = conversation_begin(tools);
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));

        if (first_answer == n && role && strcmp(role, "assistant") == 0) first_answer = i;
        said[i + 1] = conversation_add(said[i], message);
    }
    if (!said[n].failed) {
        if (json_array_size(tools)) recall_tools(m, &owner, tools, said, n, first_answer);
        for (size_t i = first_answer; i < n; i++)
            recall_calls(m, &owner, json_array_get(messages, i), said[i + 1].said, keep != NULL);
        if (keep) keep->said = said[n];
        if (keep && json_array_size(tools)) remember(m, &owner, SPELLING_TOOLS, said[n].said, tools, &keep->tools);
    }
    mem_free(said);
}

void spelling_memory_answer(struct spelling_memory *m, struct kv_space owner, const struct spelled *c,
                            const char *content, size_t n, const json_t *calls)
{
    struct conversation after = conversation_add_answer(c->said, content, n, calls);
    json_t *arguments = json_array_size(calls) ? json_array() : NULL;

    for (size_t i = 0; arguments && i < json_array_size(calls); i++)
        (void)json_array_append(arguments, json_object_get(json_array_get(calls, i), "arguments"));
    if (!after.failed && c->tools) {
        mutex_lock(&m->lock);
        keep(m, &owner, SPELLING_TOOLS, after.said, c->tools->s, c->tools->n, c->tools);
        mutex_unlock(&m->lock);
    }
    if (!after.failed && arguments && json_array_size(arguments) == json_array_size(calls))
        remember(m, &owner, SPELLING_CALLS, after.said, arguments, NULL);
    json_decref(arguments);
}

void spelling_memory_release(struct spelling_memory *m, struct spelled *c)
{
    if (!c->tools) return;
    mutex_lock(&m->lock);
    let_go(m, c->tools);
    mutex_unlock(&m->lock);
    c->tools = NULL;
}

const char *spelling_memory_tools(const struct spelled *c)
{
    return c->tools ? c->tools->s : NULL;
}
