/* sample/sampler_history.c - what was written so far: penalties on tokens, DRY on repeated sequences, bad words. */
#include <math.h>
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "sample/sampler_parts.h"

#define MOST_PENALTY 1e30 /* of DRY: its power overflows soon, and -inf would mean banned */

static bool has_penalty(const struct sampler_params *p)
{
    return p->repeat_last_n != 0 &&
           (p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0);
}

static bool has_stage(const struct sampler_params *p, enum sampler_stage stage)
{
    for (uint32_t i = 0; p->has_stages && i < p->n_stages; i++)
        if (p->stages[i] == stage) return true;
    return !p->has_stages;
}

static bool index_break_words(struct sampler *s)
{
    const struct sampler_words *w = &s->p.dry_break_words;

    s->break_ends = mem_zalloc(((size_t)s->n_vocab + 63) / 64, sizeof(*s->break_ends));
    for (uint32_t i = 0; s->break_ends && i < w->n; i++) {
        uint32_t last = (uint32_t)w->tokens[w->ends[i] - 1];

        s->break_ends[last / 64] |= 1ull << (last % 64);
    }
    return s->break_ends != NULL;
}

rd_status sampler_history_create(struct sampler *s, uint32_t max_tokens)
{
    const struct sampler_params *p = &s->p;
    bool dry = p->dry_multiplier > 0 && p->dry_base >= 1 && p->dry_last_n != 0 && has_stage(p, SAMPLER_DRY);
    bool penalty = has_penalty(p) && has_stage(p, SAMPLER_PENALTIES);
    uint32_t n_distinct = u32_min(max_tokens, s->n_vocab);

    if (dry || p->bad_words.n || (penalty && p->repeat_last_n > 0)) {
        s->cap_history = max_tokens + 1;
        s->history = mem_alloc(s->cap_history, sizeof(*s->history));
        if (!s->history) return RD_E_NOMEM;
    }
    if (dry && !(s->z = mem_alloc(s->cap_history, sizeof(*s->z)))) return RD_E_NOMEM;
    if (dry && p->dry_break_words.n && !index_break_words(s)) return RD_E_NOMEM;
    if (!penalty) return RD_OK;
    for (s->n_places = 16; s->n_places < n_distinct * 2;) s->n_places *= 2;
    s->seen = mem_alloc(s->n_places, sizeof(*s->seen));
    if (!s->seen) return RD_E_NOMEM;
    for (uint32_t i = 0; i < s->n_places; i++) s->seen[i] = (struct seen_token){-1, 0, 0};
    return RD_OK;
}

static struct seen_token *place_of(struct sampler *s, int32_t token)
{
    uint32_t at = (uint32_t)token * 2654435761u & (s->n_places - 1);

    while (s->seen[at].token >= 0 && s->seen[at].token != token) at = (at + 1) & (s->n_places - 1);
    return &s->seen[at];
}

/* Do the n tokens end with this sequence? */
static bool ends_with(const int32_t *tokens, uint32_t n, const int32_t *word, uint32_t n_word)
{
    return n_word <= n && memcmp(tokens + n - n_word, word, n_word * sizeof(*word)) == 0;
}

void sampler_remember(struct sampler *s, int32_t token, bool is_prompt)
{
    if (s->seen) {
        struct seen_token *t = place_of(s, token);
        uint32_t window = s->p.repeat_last_n > 0 ? (uint32_t)s->p.repeat_last_n : 0;

        t->token = token;
        t->n++;
        if (!is_prompt) t->n_out++;
        if (window && s->n_history >= window) { /* the oldest leaves the window */
            uint32_t oldest = s->n_history - window;

            t = place_of(s, s->history[oldest]);
            t->n--;
            if (oldest >= s->n_prompt) t->n_out--;
        }
    }
    if (!s->history || s->n_history >= s->cap_history) return;
    s->history[s->n_history++] = token;
    if (is_prompt) s->n_prompt++;
}

void sampler_penalties(const struct sampler *s, float *logits)
{
    const struct sampler_params *p = &s->p;

    for (uint32_t i = 0; s->seen && i < s->n_places; i++) {
        const struct seen_token *t = &s->seen[i];

        if (t->token < 0 || t->n == 0) continue;
        if (logits[t->token] > 0)
            logits[t->token] /= p->repetition_penalty;
        else
            logits[t->token] *= p->repetition_penalty;
        if (t->n_out) logits[t->token] -= p->presence_penalty + p->frequency_penalty * (float)t->n_out;
    }
}

void sampler_ban_words(const struct sampler *s, float *logits)
{
    const struct sampler_words *w = &s->p.bad_words;

    for (uint32_t i = 0, begin = 0; i < w->n; begin = w->ends[i++]) {
        uint32_t n = w->ends[i] - begin;

        if (ends_with(s->history + s->n_prompt, s->n_history - s->n_prompt, w->tokens + begin, n - 1))
            logits[w->tokens[w->ends[i] - 1]] = -INFINITY;
    }
}

/* ---- DRY ---- */

static bool has_bit(const uint64_t *bits, uint32_t token)
{
    return bits && bits[token / 64] >> (token % 64) & 1;
}

/* How many tokens at the end lie behind the last sequence breaker. */
static uint32_t since_breaker(const struct sampler *s, const int32_t *h, uint32_t n)
{
    const struct sampler_words *w = &s->p.dry_break_words;

    for (uint32_t end = n; end > 0; end--) {
        uint32_t token = (uint32_t)h[end - 1];

        if (has_bit(s->p.dry_breakers, token)) return n - end;
        if (!has_bit(s->break_ends, token)) continue;
        for (uint32_t i = 0, begin = 0; i < w->n; begin = w->ends[i++])
            if (ends_with(h, end, w->tokens + begin, w->ends[i] - begin)) return n - end;
    }
    return n;
}

/* z[k]: how many of the last tokens, read backwards, are also found backwards from the k-th before the last (the Z
 * function: linear). */
static void match_backwards(const int32_t *h, uint32_t n, uint32_t *z)
{
    uint32_t left = 0, right = 0; /* the match that reaches farthest: [left, right) */

    z[0] = n;
    for (uint32_t k = 1; k < n; k++) {
        uint32_t m = k < right ? u32_min(right - k, z[k - left]) : 0;

        while (k + m < n && h[n - 1 - m] == h[n - 1 - k - m]) m++;
        z[k] = m;
        if (k + m > right) {
            left = k;
            right = k + m;
        }
    }
}

static float dry_penalty(const struct sampler_params *p, uint32_t n_match)
{
    double v = (double)p->dry_multiplier * pow((double)p->dry_base, (double)n_match - p->dry_allowed_length);

    return (float)(v < MOST_PENALTY ? v : MOST_PENALTY);
}

/* A token that would make a repetition longer: less likely by multiplier * base^(length - allowed). */
void sampler_dry(const struct sampler *s, struct sampler_scratch *x)
{
    const struct sampler_params *p = &s->p;
    uint32_t n = s->n_history, limit, allowed = (uint32_t)p->dry_allowed_length;
    const int32_t *h;

    if (!s->z) return;
    if (p->dry_last_n > 0) n = u32_min(n, (uint32_t)p->dry_last_n);
    if (n <= allowed) return;
    h = s->history + s->n_history - n;
    limit = since_breaker(s, h, n);
    if (limit < allowed) return;
    match_backwards(h, n, s->z);
    for (uint32_t k = 1; k < n; k++) {
        uint32_t m = u32_min(s->z[k], limit);
        int32_t next = h[n - k];

        if (m >= allowed) x->marks[next] = u32_max(x->marks[next], m + 1);
    }
    for (uint32_t k = 1; k < n; k++) {
        int32_t next = h[n - k];

        if (x->marks[next]) x->logits[next] -= dry_penalty(p, x->marks[next] - 1);
        x->marks[next] = 0;
    }
}
