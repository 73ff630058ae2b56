/* api/spelling_memory.c - a ring of first spellings, looked up by the hash of the value and by that of the text. */
#include "api/spelling_memory.h"
#include <string.h>
#include "api/memory_record.h"
#include "base/mem.h"
#include "base/thread.h"

#define MAX_SPELLINGS 2048u

/* meaning: of the text with sorted keys. */
struct spelling { struct answer_owner owner; struct hash128 meaning, spelled; char *text; size_t n; };

struct spelling_memory {
    size_t max_bytes;
    struct mutex lock;                   /* guards what follows */
    struct spelling ring[MAX_SPELLINGS]; /* oldest at `first` */
    uint32_t first, n;
    size_t n_bytes;
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

static void drop_oldest(struct spelling_memory *m)
{
    m->n_bytes -= at(m, 0)->n;
    mem_free(at(m, 0)->text);
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

/* ---- records ---- */

static void tell(memory_record_fn fn, void *arg, const struct spelling *s)
{
    struct buf record = {0};

    record_begin(&record, RECORD_SPELLING, &s->owner);
    buf_append(&record, &s->meaning, sizeof(s->meaning));
    record_put_bytes(&record, s->text, s->n);
    if (!record.failed) fn(arg, record.data, record.n);
    buf_deinit(&record);
}

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
    for (uint32_t i = 0; i < m->n; i++) tell(fn, arg, at(m, i));
    mutex_unlock(&m->lock);
}

/* ---- keeping and finding; the lock is held ---- */

static struct spelling *find(struct spelling_memory *m, const struct answer_owner *owner, struct hash128 meaning)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (hash128_equal(at(m, i)->meaning, meaning) && answer_owner_equal(&at(m, i)->owner, owner)) return at(m, i);
    return NULL;
}

static bool is_first(struct spelling_memory *m, const struct answer_owner *owner, struct hash128 spelled)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (hash128_equal(at(m, i)->spelled, spelled) && answer_owner_equal(&at(m, i)->owner, owner)) return true;
    return false;
}

static const struct spelling *keep(struct spelling_memory *m, const struct answer_owner *owner, struct hash128 meaning,
                                   const char *text, size_t n)
{
    struct spelling s = {*owner, meaning, hash128_of(text, n), NULL, n};

    if (n > m->max_bytes / 8) return NULL;
    s.text = mem_alloc(n + 1, 1);
    if (!s.text) return NULL;
    memcpy(s.text, text, n);
    s.text[n] = 0;
    while (m->n && (m->n == MAX_SPELLINGS || m->n_bytes + n > m->max_bytes)) drop_oldest(m);
    *at(m, m->n) = s;
    m->n_bytes += n;
    return at(m, m->n++);
}

bool spelling_memory_load(struct spelling_memory *m, const void *record, size_t n)
{
    struct record_reader r;
    struct answer_owner owner = {false, {0, 0}};
    struct hash128 meaning = {0, 0};
    const void *hash, *text;
    size_t n_text;

    if (record_open(&r, record, n, &owner) != RECORD_SPELLING) return false;
    hash = record_bytes(&r, sizeof(meaning));
    text = record_string(&r, &n_text);
    if (!text) return false;
    memcpy(&meaning, hash, sizeof(meaning));
    mutex_lock(&m->lock);
    if (!find(m, &owner, meaning)) keep(m, &owner, meaning, text, n_text);
    mutex_unlock(&m->lock);
    return true;
}

/* ---- recall ---- */

static char *spelled(const json_t *value, size_t flags, size_t *n)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | flags);

    *n = text ? strlen(text) : 0;
    return text;
}

/* The first spelling of a text of that meaning, mem_free'd by the caller; NULL: it is this one, or there was none. */
static char *first_spelling(struct spelling_memory *m, const struct answer_owner *owner, const char *text, size_t n,
                            const char *sorted, size_t n_sorted, bool keeps)
{
    struct hash128 meaning = hash128_of(sorted, n_sorted);
    const struct spelling *s;
    char *first = NULL;

    mutex_lock(&m->lock);
    s = find(m, owner, meaning);
    if (s && (s->n != n || memcmp(s->text, text, n) != 0)) first = mem_strdup(s->text);
    if (!s && keeps && (s = keep(m, owner, meaning, text, n)) && m->tell) tell(m->tell, m->tell_arg, s);
    mutex_unlock(&m->lock);
    return first;
}

json_t *spelling_memory_recall(struct spelling_memory *m, struct answer_owner owner, const json_t *value, bool keep)
{
    size_t n, n_sorted;
    char *text = spelled(value, 0, &n), *sorted = spelled(value, JSON_SORT_KEYS, &n_sorted), *first = NULL;
    json_t *other = NULL;

    if (text && sorted) first = first_spelling(m, &owner, text, n, sorted, n_sorted, keep);
    if (first) other = json_loads(first, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (other && !json_equal(other, value)) {                /* two of one hash */
        json_decref(other);
        other = NULL;
    }
    mem_free(first);
    mem_free(sorted);
    mem_free(text);
    return other;
}

/* Arguments as a text: what is replaced is the text, byte for byte. */
static json_t *recall_text(struct spelling_memory *m, const struct answer_owner *owner, const char *text, size_t n,
                           bool keep)
{
    json_t *value, *first = NULL;
    char *sorted, *earlier = NULL;
    size_t n_sorted;
    bool known;

    mutex_lock(&m->lock);
    known = is_first(m, owner, hash128_of(text, n));
    mutex_unlock(&m->lock);
    if (known) return NULL;
    value = json_loadb(text, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);     /* an object or an array */
    sorted = value ? spelled(value, JSON_SORT_KEYS, &n_sorted) : NULL;
    if (sorted) earlier = first_spelling(m, owner, text, n, sorted, n_sorted, keep);
    if (earlier) {
        json_t *other = json_loads(earlier, JSON_ALLOW_NUL, NULL);

        if (other && json_equal(other, value)) first = json_string(earlier);
        json_decref(other);
    }
    mem_free(earlier);
    mem_free(sorted);
    json_decref(value);
    return first;
}

bool spelling_memory_recall_calls(struct spelling_memory *m, struct answer_owner owner, json_t *messages, bool keep)
{
    bool any = false;

    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls");

        for (size_t c = 0; c < json_array_size(calls); c++) {
            json_t *function = json_object_get(json_array_get(calls, c), "function");
            json_t *arguments = json_object_get(function, "arguments"), *first = NULL;

            if (json_is_string(arguments))
                first = recall_text(m, &owner, json_string_value(arguments), json_string_length(arguments), keep);
            else if (json_is_object(arguments)) first = spelling_memory_recall(m, owner, arguments, keep);
            if (first && json_object_set_new(function, "arguments", first) == 0) any = true;
        }
    }
    return any;
}
