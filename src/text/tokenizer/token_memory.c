/* text/tokenizer/token_memory.c - a short list of histories, newest first. */
#include "text/tokenizer/token_memory.h"
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/thread.h"
#include "text/tokenizer/token_history.h"
#include "text/tokenizer/tokenizer_impl.h"

#define SHORT_TEXT 1024u /* bytes: what is shorter, or shares less, is as quickly tokenised anew */

struct token_memory {
    const struct tokenizer *t;
    size_t max_bytes;
    struct mutex lock;                             /* guards what follows; a history in use is not in the list */
    struct token_history *texts[LIMIT_KEPT_TEXTS]; /* newest first */
    size_t n_texts, n_bytes;
};

rd_status token_memory_create(const struct tokenizer *t, size_t max_bytes, struct token_memory **out)
{
    struct token_memory *m = mem_zalloc(1, sizeof(*m));

    if (!m) return RD_E_NOMEM;
    m->t = t;
    m->max_bytes = max_bytes;
    mutex_init(&m->lock);
    *out = m;
    return RD_OK;
}

void token_memory_destroy(struct token_memory *m)
{
    if (!m) return;
    for (size_t i = 0; i < m->n_texts; i++) token_history_destroy(m->texts[i]);
    mutex_deinit(&m->lock);
    mem_free(m);
}

static struct token_history *take_out(struct token_memory *m, size_t at)
{
    struct token_history *h = m->texts[at];

    m->n_bytes -= token_history_bytes(h);
    m->n_texts--;
    memmove(m->texts + at, m->texts + at + 1, (m->n_texts - at) * sizeof(*m->texts));
    return h;
}

/* A history to go on from, or NULL. One of which the text has nearly all is taken, of another a copy. */
static struct token_history *find(struct token_memory *m, const char *text, size_t n_bytes)
{
    size_t best = 0, at = 0, n_text = 0;
    struct token_history *h = NULL;

    mutex_lock(&m->lock);
    for (size_t i = 0; i < m->n_texts; i++) {
        size_t shared = token_history_shared(m->texts[i], text, n_bytes, NULL);

        if (shared > best) best = shared, at = i;
    }
    if (best >= SHORT_TEXT) {
        token_history_shared(m->texts[at], text, n_bytes, &n_text);
        h = best >= n_text - n_text / 4 ? take_out(m, at) : token_history_copy(m->texts[at]);
    }
    mutex_unlock(&m->lock);
    return h;
}

static void put(struct token_memory *m, struct token_history *h)
{
    size_t n_bytes = token_history_bytes(h);

    if (n_bytes > m->max_bytes / 4) {
        token_history_destroy(h);
        return;
    }
    mutex_lock(&m->lock);
    while (m->n_texts && (m->n_texts == LIMIT_KEPT_TEXTS || m->n_bytes + n_bytes > m->max_bytes))
        token_history_destroy(take_out(m, m->n_texts - 1));
    memmove(m->texts + 1, m->texts, m->n_texts * sizeof(*m->texts));
    m->texts[0] = h;
    m->n_texts++;
    m->n_bytes += n_bytes;
    mutex_unlock(&m->lock);
}

/* A text without marks; breaks may be NULL. */
static rd_status encode(struct token_memory *m, const char *text, size_t n_bytes, bool add_special, bool parse_special,
                        const struct text_breaks *breaks, int32_t **ids, uint32_t *n, size_t *n_kept,
                        struct rd_error *err)
{
    struct token_history *h = NULL;
    rd_status st;

    if (n_bytes < SHORT_TEXT || n_bytes > m->max_bytes / 4)
        return encode_with_breaks(m->t, text, n_bytes, add_special, parse_special, breaks, ids, n, err);
    h = find(m, text, n_bytes);
    if (!h && (st = token_history_create(m->t, &h)) != RD_OK)
        return error_set(err, st, "tokenising %zu bytes: out of memory", n_bytes);
    st = token_history_encode(h, text, n_bytes, add_special, parse_special, breaks, ids, n, n_kept, err);
    if (st == RD_OK)
        put(m, h);
    else
        token_history_destroy(h);
    return st;
}

rd_status token_memory_encode(struct token_memory *m, const char *text, size_t n_bytes, bool add_special,
                              enum token_names names, int32_t **ids, uint32_t *n, size_t *n_kept, struct rd_error *err)
{
    struct unmarked u = {.text = NULL};
    rd_status st;

    if (n_kept) *n_kept = 0;
    if (names != NAMES_MARKED)
        return encode(m, text, n_bytes, add_special, names == NAMES_TOKENS, NULL, ids, n, n_kept, err);
    st = unmarked_init(m->t, text, n_bytes, &u, err);
    if (st == RD_OK) st = encode(m, u.text, u.n, add_special, true, &u.breaks, ids, n, n_kept, err);
    unmarked_deinit(&u);
    return st;
}

void token_memory_count(struct token_memory *m, size_t *n_texts, size_t *n_bytes)
{
    mutex_lock(&m->lock);
    *n_texts = m->n_texts;
    *n_bytes = m->n_bytes;
    mutex_unlock(&m->lock);
}
