/* text/tokenizer/stop.c - an Aho-Corasick automaton over the stop strings.
 *
 * A state is a prefix of some stop string: the longest one that the text so far ends with. What it spells is exactly
 * what must be held back. Children are lists of siblings: memory is linear in the stop strings, and a step looks at no
 * more than LIMIT_STOP_STRINGS. Source: Aho and Corasick, "Efficient string matching", CACM 18 (1975).
 */
#include "text/tokenizer/stop.h"
#include <assert.h>
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"

struct stop_state {
    uint32_t child, sibling; /* 0: none (the root is nobody's child) */
    uint32_t fail;           /* the longest proper suffix that is a state */
    uint32_t depth;
    int32_t stop; /* the longest stop string that ends here, or -1 */
    unsigned char byte;
};

struct stop_matcher {
    struct stop_state *states;
    uint32_t n_states, at;
    uint32_t stop_bytes[LIMIT_STOP_STRINGS];
    char *buf; /* held text, then the text just fed */
    size_t cap, n_held;
    bool done; /* a stop string was found, or memory ran out */
};

static uint32_t child_of(const struct stop_matcher *m, uint32_t state, unsigned char byte)
{
    uint32_t c = m->states[state].child;

    while (c && m->states[c].byte != byte) c = m->states[c].sibling;
    return c;
}

static uint32_t step(const struct stop_matcher *m, uint32_t state, unsigned char byte)
{
    for (;;) {
        uint32_t c = child_of(m, state, byte);

        if (c || state == 0) return c;
        state = m->states[state].fail;
    }
}

static void add_string(struct stop_matcher *m, struct text_span s, int32_t index)
{
    uint32_t at = 0;

    for (size_t i = 0; i < s.n; i++) {
        uint32_t c = child_of(m, at, (unsigned char)s.s[i]);

        if (!c) {
            c = m->n_states++;
            m->states[c] =
                (struct stop_state){0, m->states[at].child, 0, m->states[at].depth + 1, -1, (unsigned char)s.s[i]};
            m->states[at].child = c;
        }
        at = c;
    }
    if (m->states[at].stop < 0) m->states[at].stop = index; /* of equal strings the first */
}

/* Breadth first: a state's fail link needs those of all shorter states. queue: [n_states]. */
static void link_fails(struct stop_matcher *m, uint32_t *queue)
{
    uint32_t head = 0, tail = 0;

    queue[tail++] = 0;
    while (head < tail) {
        uint32_t state = queue[head++];

        for (uint32_t c = m->states[state].child; c; c = m->states[c].sibling) {
            struct stop_state *s = &m->states[c];

            s->fail = state ? step(m, m->states[state].fail, s->byte) : 0;
            if (s->stop < 0) s->stop = m->states[s->fail].stop;
            queue[tail++] = c;
        }
    }
}

rd_status stop_matcher_create(const struct text_span *stops, size_t n, struct stop_matcher **out)
{
    struct stop_matcher *m = NULL;
    uint32_t *queue = NULL;
    size_t total = 1;
    rd_status st = RD_E_NOMEM;

    if (n > LIMIT_STOP_STRINGS) return RD_E_LIMIT;
    for (size_t i = 0; i < n; i++) {
        if (stops[i].n == 0) return RD_E_INVALID;
        if (stops[i].n > LIMIT_STOP_BYTES) return RD_E_LIMIT;
        total += stops[i].n;
    }
    m = mem_zalloc(1, sizeof(*m));
    if (!m) goto fail;
    m->states = mem_zalloc(total, sizeof(*m->states));
    queue = mem_alloc(total, sizeof(*queue));
    if (!m->states || !queue) goto fail;
    m->n_states = 1;
    m->states[0].stop = -1;
    for (size_t i = 0; i < n; i++) {
        m->stop_bytes[i] = (uint32_t)stops[i].n;
        add_string(m, stops[i], (int32_t)i);
    }
    link_fails(m, queue);
    mem_free(queue);
    *out = m;
    return RD_OK;

fail:
    mem_free(queue);
    stop_matcher_destroy(m);
    return st;
}

void stop_matcher_destroy(struct stop_matcher *m)
{
    if (!m) return;
    mem_free(m->states);
    mem_free(m->buf);
    mem_free(m);
}

size_t stop_matcher_feed(struct stop_matcher *m, const char *s, size_t n, const char **text, int *hit)
{
    size_t total, safe, old_held = m->n_held;

    *hit = -1;
    *text = "";
    if (m->done || n == 0) return 0;
    if (m->n_states == 1) {
        *text = s;
        return n;
    }
    /* Held bytes and s, then room for the safe part of both. */
    total = old_held + n;
    if (!mem_grow((void **)&m->buf, &m->cap, total * 2, 1)) {
        m->done = true;
        *hit = STOP_NOMEM;
        return 0;
    }
    memcpy(m->buf + old_held, s, n);
    for (size_t i = 0; i < n; i++) {
        int32_t stop;

        m->at = step(m, m->at, (unsigned char)s[i]);
        stop = m->states[m->at].stop;
        if (stop < 0) continue;
        m->done = true;
        m->n_held = 0;
        *hit = stop;
        *text = m->buf;
        return old_held + i + 1 - m->stop_bytes[stop];
    }
    safe = total - m->states[m->at].depth;
    m->n_held = total - safe;
    /* Given text is moved behind the held bytes, so that it stays valid while the held bytes are at the front. */
    memmove(m->buf + total, m->buf, safe);
    memmove(m->buf, m->buf + safe, m->n_held);
    *text = m->buf + total;
    return safe;
}

size_t stop_matcher_flush(struct stop_matcher *m, const char **text)
{
    size_t n = m->done ? 0 : m->n_held;

    *text = n ? m->buf : "";
    m->n_held = 0;
    m->at = 0;
    return n;
}
