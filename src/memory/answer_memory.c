/* memory/answer_memory.c - two short lists, newest first: sequences of tokens, and answers with calls. */
#include "memory/answer_memory.h"
#include <stdlib.h>
#include <string.h>
#include "memory/conversation.h"
#include "memory/memory_record.h"
#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/thread.h"
#include "text/tokenizer/special_marks.h"

#define MAX_SEQUENCES 128u
#define MAX_ANSWERS   1024u
#define MAX_CALLS     256u /* of an answer that is kept */

struct kept_sequence {
    struct kv_space owner;
    uint32_t *ids, n;
};
struct kept_answer {
    struct kv_space owner;
    char *raw, *content, *reasoning;
    size_t n_raw, n_thinking;
    json_t *calls;
    uint64_t *ids; /* [calls] hashes of their ids */
    uint32_t n_messages, n_prefix;
    struct hash128 prefix; /* of the first n_prefix ids */
    uint64_t serial;       /* rises from one to the next, from 1 on */
    size_t n_bytes;
};

struct answer_memory {
    const struct tokenizer *t;
    size_t max_bytes;
    struct mutex lock; /* guards what follows */
    struct kept_sequence sequences[MAX_SEQUENCES];
    struct kept_answer answers[MAX_ANSWERS];
    uint32_t n_sequences, n_answers;
    uint64_t last_serial;
    size_t sequence_bytes, answer_bytes; /* each at most half of max_bytes */
    memory_record_fn tell;               /* or NULL */
    void *tell_arg;
};

rd_status answer_memory_create(const struct tokenizer *t, size_t max_bytes, struct answer_memory **out)
{
    struct answer_memory *m = mem_zalloc(1, sizeof(*m));

    *out = m;
    if (!m) return RD_E_NOMEM;
    m->t = t;
    m->max_bytes = max_bytes;
    mutex_init(&m->lock);
    return RD_OK;
}

static void free_answer(struct kept_answer *a)
{
    mem_free(a->raw);
    mem_free(a->content);
    mem_free(a->reasoning);
    mem_free(a->ids);
    json_decref(a->calls);
}

void answer_memory_clear(struct answer_memory *m)
{
    mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->n_sequences; i++) mem_free(m->sequences[i].ids);
    for (uint32_t i = 0; i < m->n_answers; i++) free_answer(&m->answers[i]);
    m->n_sequences = m->n_answers = 0;
    m->sequence_bytes = m->answer_bytes = 0;
    mutex_unlock(&m->lock);
}

void answer_memory_destroy(struct answer_memory *m)
{
    if (!m) return;
    answer_memory_clear(m);
    mutex_deinit(&m->lock);
    mem_free(m);
}

/* ---- keeping ---- */

static void drop_sequence(struct answer_memory *m, uint32_t i)
{
    m->sequence_bytes -= m->sequences[i].n * sizeof(uint32_t);
    mem_free(m->sequences[i].ids);
    m->n_sequences--;
    memmove(m->sequences + i, m->sequences + i + 1, (m->n_sequences - i) * sizeof(*m->sequences));
}

/* A sequence that another one begins with is not needed beside it. */
static void keep_sequence(struct answer_memory *m, const struct kept_sequence *s)
{
    size_t n_bytes = s->n * sizeof(uint32_t);

    for (uint32_t i = 0; i < m->n_sequences;) {
        const struct kept_sequence *old = &m->sequences[i];

        if (old->n <= s->n && kv_space_equal(&old->owner, &s->owner) &&
            memcmp(old->ids, s->ids, old->n * sizeof(uint32_t)) == 0)
            drop_sequence(m, i);
        else
            i++;
    }
    while (m->n_sequences && (m->n_sequences == MAX_SEQUENCES || m->sequence_bytes + n_bytes > m->max_bytes / 2))
        drop_sequence(m, m->n_sequences - 1);
    memmove(m->sequences + 1, m->sequences, m->n_sequences * sizeof(*m->sequences));
    m->sequences[0] = *s;
    m->n_sequences++;
    m->sequence_bytes += n_bytes;
}

static void keep_answer(struct answer_memory *m, const struct kept_answer *a)
{
    while (m->n_answers && (m->n_answers == MAX_ANSWERS || m->answer_bytes + a->n_bytes > m->max_bytes / 2)) {
        m->answer_bytes -= m->answers[--m->n_answers].n_bytes;
        free_answer(&m->answers[m->n_answers]);
    }
    memmove(m->answers + 1, m->answers, m->n_answers * sizeof(*m->answers));
    m->answers[0] = *a;
    m->answers[0].serial = ++m->last_serial;
    m->n_answers++;
    m->answer_bytes += a->n_bytes;
}

static struct kept_sequence copy_sequence(struct kv_space owner, const void *ids, uint32_t n)
{
    return (struct kept_sequence){owner, (uint32_t *)mem_memdup(ids, n * sizeof(uint32_t)), n};
}

static const char *id_of(const json_t *calls, size_t i)
{
    return json_string_value(json_object_get(json_array_get(calls, i), "id"));
}

/* Hashes of the calls' ids; returns how many have one. */
static uint32_t hash_ids(const json_t *calls, uint64_t *out)
{
    uint32_t n = 0;

    for (size_t i = 0; i < json_array_size(calls); i++)
        if (id_of(calls, i)) out[n++] = hash64_of(id_of(calls, i), strlen(id_of(calls, i)));
    return n;
}

/* raw is NULL when there is no memory. */
static struct kept_answer copy_answer(struct kv_space owner, const struct answer_parts *parts, struct hash128 prefix)
{
    struct kept_answer a = {.owner = owner,
                            .n_raw = parts->n_raw,
                            .n_thinking = parts->n_thinking,
                            .n_messages = parts->n_messages,
                            .n_prefix = parts->n_prefix,
                            .prefix = prefix};

    a.raw = mem_memdup(parts->raw, parts->n_raw);
    a.content = mem_strdup(parts->content);
    a.reasoning = mem_strdup(parts->reasoning);
    a.calls = json_incref(parts->calls);
    a.ids = mem_zalloc(json_array_size(parts->calls), sizeof(*a.ids));
    a.n_bytes = sizeof(a) + 4 * parts->n_raw; /* the calls are about as long again */
    if (a.ids) (void)hash_ids(a.calls, a.ids);
    if (a.raw && a.content && a.reasoning && a.ids) return a;
    free_answer(&a);
    return (struct kept_answer){.raw = NULL};
}

static bool sequence_fits(const struct answer_memory *m, uint32_t n)
{
    return n > 0 && n * sizeof(uint32_t) <= m->max_bytes / 8;
}

static bool answer_fits(const struct answer_memory *m, const struct answer_parts *parts)
{
    const size_t n = json_array_size(parts->calls);

    return n > 0 && n <= MAX_CALLS && parts->n_raw > 0 && parts->n_raw < m->max_bytes / 64;
}

static void tell_sequence(memory_record_fn fn, void *arg, const struct kept_sequence *s)
{
    struct buf record = {0};

    record_begin(&record, RECORD_SEQUENCE, &s->owner);
    record_put_bytes(&record, s->ids, s->n * sizeof(*s->ids));
    if (!record.failed) fn(arg, record.data, record.n);
    buf_deinit(&record);
}

static void tell_answer(memory_record_fn fn, void *arg, const struct kept_answer *a)
{
    struct buf record = {0};
    char *calls = json_dumps(a->calls, JSON_COMPACT);

    record_begin(&record, RECORD_ANSWER, &a->owner);
    record_put_u32(&record, (uint32_t)a->n_thinking);
    record_put_u32(&record, a->n_messages);
    record_put_u32(&record, a->n_prefix);
    buf_append(&record, &a->prefix, sizeof(a->prefix));
    record_put_bytes(&record, a->raw, a->n_raw);
    record_put_bytes(&record, a->content, strlen(a->content) + 1);
    record_put_bytes(&record, a->reasoning, strlen(a->reasoning) + 1);
    if (calls) record_put_bytes(&record, calls, strlen(calls));
    if (calls && !record.failed) fn(arg, record.data, record.n);
    mem_free(calls);
    buf_deinit(&record);
}

void answer_memory_keep(struct answer_memory *m, struct kv_space owner, const uint32_t *ids, uint32_t n,
                        const struct answer_parts *parts)
{
    struct kept_sequence s;
    struct kept_answer a = {.raw = NULL};

    if (!sequence_fits(m, n)) return;
    s = copy_sequence(owner, ids, n);
    if (parts && answer_fits(m, parts) && parts->n_prefix <= n)
        a = copy_answer(owner, parts, hash128_of(ids, parts->n_prefix * sizeof(*ids)));
    mutex_lock(&m->lock);
    if (s.ids) keep_sequence(m, &s);
    if (a.raw) keep_answer(m, &a);
    if (s.ids && m->tell) tell_sequence(m->tell, m->tell_arg, &s);
    if (a.raw && m->tell) tell_answer(m->tell, m->tell_arg, &m->answers[0]);
    mutex_unlock(&m->lock);
}

/* ---- records ---- */

void answer_memory_tell(struct answer_memory *m, memory_record_fn fn, void *arg)
{
    mutex_lock(&m->lock);
    m->tell = fn;
    m->tell_arg = arg;
    mutex_unlock(&m->lock);
}

void answer_memory_dump(struct answer_memory *m, memory_record_fn fn, void *arg)
{
    mutex_lock(&m->lock);
    for (uint32_t i = m->n_sequences; i > 0; i--) tell_sequence(fn, arg, &m->sequences[i - 1]);
    for (uint32_t i = m->n_answers; i > 0; i--) tell_answer(fn, arg, &m->answers[i - 1]);
    mutex_unlock(&m->lock);
}

static bool load_sequence(struct answer_memory *m, struct record_reader *r, const struct kv_space *owner)
{
    size_t n_bytes;
    const void *ids = record_string(r, &n_bytes);
    struct kept_sequence s;

    if (!ids || n_bytes % sizeof(uint32_t) != 0 || !sequence_fits(m, (uint32_t)(n_bytes / sizeof(uint32_t))))
        return false;
    s = copy_sequence(*owner, ids, (uint32_t)(n_bytes / sizeof(uint32_t)));
    for (uint32_t i = 0; s.ids && i < s.n; i++)
        if (s.ids[i] >= tokenizer_n_tokens(m->t)) { /* another model's */
            mem_free(s.ids);
            return false;
        }
    mutex_lock(&m->lock);
    if (s.ids) keep_sequence(m, &s);
    mutex_unlock(&m->lock);
    return s.ids != NULL;
}

/* Every call has an id, a name and arguments, all of them texts. */
static bool calls_are_whole(const json_t *calls)
{
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);

        if (!json_is_string(json_object_get(call, "id")) || !json_is_string(json_object_get(call, "name")) ||
            !json_is_string(json_object_get(call, "arguments")))
            return false;
    }
    return json_array_size(calls) > 0;
}

static bool load_answer(struct answer_memory *m, struct record_reader *r, const struct kv_space *owner)
{
    struct answer_parts parts = {.n_thinking = record_u32(r)};
    struct kept_answer a = {.raw = NULL};
    size_t n_content, n_reasoning, n_calls;
    struct hash128 prefix = {0, 0};
    const void *digest;
    const char *calls;

    parts.n_messages = record_u32(r);
    parts.n_prefix = record_u32(r);
    digest = record_bytes(r, sizeof(prefix));
    if (digest) memcpy(&prefix, digest, sizeof(prefix));
    parts.raw = record_string(r, &parts.n_raw);
    parts.content = record_string(r, &n_content);
    parts.reasoning = record_string(r, &n_reasoning);
    calls = record_string(r, &n_calls);
    if (r->bad || n_content == 0 || parts.content[n_content - 1] || n_reasoning == 0 ||
        parts.reasoning[n_reasoning - 1] || parts.n_thinking > parts.n_raw)
        return false;
    parts.calls = json_loadb(calls, n_calls, JSON_ALLOW_NUL, NULL);
    if (calls_are_whole(parts.calls) && answer_fits(m, &parts)) a = copy_answer(*owner, &parts, prefix);
    json_decref(parts.calls);
    mutex_lock(&m->lock);
    if (a.raw) keep_answer(m, &a);
    mutex_unlock(&m->lock);
    return a.raw != NULL;
}

bool answer_memory_load(struct answer_memory *m, const void *record, size_t n)
{
    struct record_reader r;
    struct kv_space owner;

    switch (record_open(&r, record, n, &owner)) {
    case RECORD_SEQUENCE:
        return load_sequence(m, &r, &owner);
    case RECORD_ANSWER:
        return load_answer(m, &r, &owner);
    default:
        return false;
    }
}

/* ---- restore ---- */

static bool same_calls(const json_t *kept, const json_t *sent)
{
    if (json_array_size(kept) != json_array_size(sent)) return false;
    for (size_t i = 0; i < json_array_size(kept); i++) {
        const json_t *k = json_array_get(kept, i), *function = json_object_get(json_array_get(sent, i), "function");
        const char *name = json_string_value(json_object_get(function, "name"));

        if (!name || strcmp(name, json_string_value(json_object_get(k, "name"))) != 0) return false;
        if (!conversation_same_arguments(json_object_get(k, "arguments"), json_object_get(function, "arguments")))
            return false;
    }
    return true;
}

static struct text_span trimmed(const char *s)
{
    struct text_span t = {s ? s : "", s ? strlen(s) : 0};

    while (t.n && strchr(" \t\r\n", t.s[0])) t.s++, t.n--;
    while (t.n && strchr(" \t\r\n", t.s[t.n - 1])) t.n--;
    return t;
}

static bool same_text(const char *a, const char *b)
{
    struct text_span x = trimmed(a), y = trimmed(b);

    return x.n == y.n && memcmp(x.s, y.s, x.n) == 0;
}

/* A message's text: a string, or its one text part. NULL: nothing, or more. */
static const char *content_of(const json_t *message)
{
    const json_t *content = json_object_get(message, "content");

    if (json_is_array(content) && json_array_size(content) == 1)
        content = json_object_get(json_array_get(content, 0), "text");
    if (json_string_length(content) != strlen(json_is_string(content) ? json_string_value(content) : ""))
        return NULL; /* a NUL in it: nothing of ours */
    return json_string_value(content);
}

/* The ids of calls that were sent, as hashes in order: a client may send many, and many answers are kept. */
struct sent_ids {
    uint32_t n;
    uint64_t hashes[MAX_CALLS];
};

static int in_order(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* One of the ids that were given to a's calls. */
static bool has_id(const struct kept_answer *a, const struct sent_ids *sent)
{
    for (size_t k = 0; k < json_array_size(a->calls); k++)
        if (bsearch(&a->ids[k], sent->hashes, sent->n, sizeof(*sent->hashes), in_order)) return true;
    return false;
}

/* Clients may leave out the text beside a call whose id tells which one it is. */
static bool is_answer(const struct kept_answer *a, const json_t *message, bool by_id)
{
    const json_t *calls = json_object_get(message, "tool_calls"), *content = json_object_get(message, "content");
    const char *text = content_of(message);

    if (json_array_size(content) > 1 || (!text && json_array_size(content) == 1)) return false;
    if (json_is_string(content) && !text) return false;
    if (!same_text(a->content, text) && !(by_id && trimmed(text).n == 0)) return false;
    return same_calls(a->calls, calls);
}

struct answer_pick answer_memory_pick(struct answer_memory *m, struct kv_space owner, const json_t *messages, size_t i,
                                      uint64_t after, const int32_t *ids, uint32_t n_ids)
{
    const json_t *message = json_array_get(messages, i), *calls = json_object_get(message, "tool_calls");
    const char *role = json_string_value(json_object_get(message, "role"));
    struct answer_pick pick = {.serial = 0};
    struct sent_ids sent;
    bool known = false;

    if (!role || strcmp(role, "assistant") != 0 || !json_array_size(calls) || json_array_size(calls) > MAX_CALLS)
        return pick; /* more than any kept answer has */
    sent.n = hash_ids(calls, sent.hashes);
    qsort(sent.hashes, sent.n, sizeof(*sent.hashes), in_order);
    mutex_lock(&m->lock);
    for (uint32_t k = 0; k < m->n_answers && !known; k++)
        known = kv_space_equal(&m->answers[k].owner, &owner) && has_id(&m->answers[k], &sent);
    for (uint32_t k = m->n_answers; k > 0 && !pick.serial; k--) {
        const struct kept_answer *a = &m->answers[k - 1];
        const struct answer_pick p = {a->serial, a->n_prefix, a->prefix};

        if (a->serial <= after || a->n_messages != i || !kv_space_equal(&a->owner, &owner)) continue;
        if (known && !has_id(a, &sent)) continue;
        if (is_answer(a, message, known) && (!ids || answer_pick_fits(&p, ids, n_ids))) pick = p;
    }
    mutex_unlock(&m->lock);
    return pick;
}

bool answer_pick_fits(const struct answer_pick *p, const int32_t *ids, uint32_t n_ids)
{
    return p->n_prefix <= n_ids && hash128_equal(hash128_of(ids, p->n_prefix * sizeof(*ids)), p->prefix);
}

/* NULL: no memory, or the model's text is not UTF-8. */
static json_t *restored_message(const struct kept_answer *a, const json_t *sent)
{
    json_t *message = json_copy((json_t *)(uintptr_t)sent), *text;
    const char *reasoning = json_string_value(json_object_get(sent, "reasoning_content"));
    size_t skip = a->n_thinking;

    if (!reasoning) reasoning = json_string_value(json_object_get(sent, "reasoning"));
    if (skip && reasoning && same_text(a->reasoning, reasoning)) skip = 0;
    text = json_stringn(a->raw + skip, a->n_raw - skip);
    if (json_object_set_new(message, "content", text) != 0) { /* takes NULL for either */
        json_decref(message);
        return NULL;
    }
    json_object_del(message, "tool_calls");
    if (a->n_thinking && skip == 0) {
        json_object_del(message, "reasoning_content");
        json_object_del(message, "reasoning");
    }
    return message;
}

json_t *answer_memory_restore(struct answer_memory *m, const json_t *messages, struct answer_pick *picks)
{
    json_t *restored = json_copy((json_t *)(uintptr_t)messages);
    uint32_t n = 0;

    mutex_lock(&m->lock);
    for (size_t i = 0; restored && i < json_array_size(messages); i++) {
        json_t *now = NULL;

        for (uint32_t k = 0; picks[i].serial && k < m->n_answers && !now; k++)
            if (m->answers[k].serial == picks[i].serial)
                now = restored_message(&m->answers[k], json_array_get(messages, i));
        if (!now || json_array_set_new(restored, i, now) != 0) picks[i].serial = 0;
        n += picks[i].serial != 0;
    }
    mutex_unlock(&m->lock);
    if (n > 0) return restored;
    json_decref(restored);
    return NULL;
}

/* ---- replay ---- */

/* A token that stands for its text; others are equal to themselves only. */
static struct text_span plain_piece(const struct tokenizer *t, int32_t id)
{
    return special_marks_guard(t, id) ? (struct text_span){"", 0} : tokenizer_piece(t, id, false);
}

/* How far two sequences are the same bytes: at *n_kept and *n_sent both have a token boundary. */
static void walk(const struct tokenizer *t, const struct kept_sequence *kept, const int32_t *sent, uint32_t n_sent,
                 uint32_t *kept_end, uint32_t *sent_end)
{
    struct text_span a = {"", 0}, b = {"", 0};
    uint32_t i = 0, j = 0;

    *kept_end = *sent_end = 0;
    for (;;) {
        size_t n;

        if (a.n == 0 && b.n == 0) {
            while (i < kept->n && j < n_sent && kept->ids[i] == (uint32_t)sent[j]) i++, j++;
            *kept_end = i;
            *sent_end = j;
        }
        if (a.n == 0) {
            if (i == kept->n) return;
            a = plain_piece(t, (int32_t)kept->ids[i++]);
            if (a.n == 0) return;
        }
        if (b.n == 0) {
            if (j == n_sent) return;
            b = plain_piece(t, sent[j++]);
            if (b.n == 0) return;
        }
        n = a.n < b.n ? a.n : b.n;
        if (memcmp(a.s, b.s, n) != 0) return;
        a.s += n, a.n -= n;
        b.s += n, b.n -= n;
    }
}

static bool begins_alike(const struct kept_sequence *s, const int32_t *ids, uint32_t n)
{
    const uint32_t n_look = 4; /* a template's first tokens: special ones, and its begin */

    return s->n >= n_look && n >= n_look && memcmp(s->ids, ids, n_look * sizeof(*ids)) == 0;
}

uint32_t answer_memory_replay(struct answer_memory *m, struct kv_space owner, int32_t **ids, uint32_t *n)
{
    const struct kept_sequence *best = NULL;
    uint32_t best_kept = 0, best_sent = 0, n_other = 0, n_changed;
    int32_t *out = NULL;

    mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->n_sequences; i++) {
        const struct kept_sequence *s = &m->sequences[i];
        uint32_t kept_end, sent_end;

        if (!kv_space_equal(&s->owner, &owner) || !begins_alike(s, *ids, *n)) continue;
        walk(m->t, s, *ids, *n, &kept_end, &sent_end);
        if (sent_end < best_sent || sent_end == 0) continue;
        n_changed = 0;
        for (uint32_t k = 0; k < kept_end; k++) n_changed += k >= sent_end || s->ids[k] != (uint32_t)(*ids)[k];
        if (best && sent_end == best_sent && n_changed >= n_other) continue;
        best = s, best_kept = kept_end, best_sent = sent_end, n_other = n_changed;
    }
    if (n_other > 0) out = mem_alloc((size_t)best_kept + (*n - best_sent) + 1, sizeof(*out));
    if (out) {
        memcpy(out, best->ids, best_kept * sizeof(*out));
        memcpy(out + best_kept, *ids + best_sent, (*n - best_sent) * sizeof(*out));
        mem_free(*ids);
        *ids = out;
        *n = best_kept + (*n - best_sent);
    }
    mutex_unlock(&m->lock);
    return out ? n_other : 0;
}
