/* sample/sampler.c - the usual ways through a row: greedy, or temperature, top_k, top_p, min_p and one draw.
 *
 * Candidates are (logit, id) pairs ordered by logit, ties by the lower id. top_k and top_p take from a heap only as
 * many as they need, so a vocabulary of 150,000 is never sorted. Sums are doubles in the order of the candidates: the
 * outcome is a pure function of its inputs. Other stages and other orders: sampler_chain.c.
 */
#include "sample/sampler.h"
#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"
#include "sample/sampler_parts.h"

#define BIAS_NEVER (-100.0f)
#define XTC_KEY    0x5854435f64726177ull      /* any constant: XTC's random numbers are others than the draw's */
#define LEAST_POWER (-60.0) /* e^-60 of the best: a million such tokens would be drawn once in 10^20 times */

rd_status sampler_scratch_create(uint32_t n_vocab, struct sampler_scratch **out)
{
    struct sampler_scratch *s = mem_zalloc(1, sizeof(*s));

    if (!s) return RD_E_NOMEM;
    s->n_vocab = n_vocab;
    s->logits = mem_alloc(n_vocab, sizeof(*s->logits));
    s->heap = mem_alloc(n_vocab, sizeof(*s->heap));
    s->weights = mem_alloc(n_vocab, sizeof(*s->weights));
    s->marks = mem_zalloc(n_vocab, sizeof(*s->marks));
    if (!s->logits || !s->heap || !s->weights || !s->marks) {
        sampler_scratch_destroy(s);
        return RD_E_NOMEM;
    }
    *out = s;
    return RD_OK;
}

void sampler_scratch_destroy(struct sampler_scratch *s)
{
    if (!s) return;
    mem_free(s->logits);
    mem_free(s->heap);
    mem_free(s->weights);
    mem_free(s->marks);
    mem_free(s);
}

static bool copy_words(struct sampler_words *w)
{
    if (w->n == 0) {
        *w = (struct sampler_words){NULL, NULL, 0};
        return true;
    }
    w->tokens = (const int32_t *)(void *)mem_memdup(w->tokens, w->ends[w->n - 1] * sizeof(*w->tokens));
    w->ends = (const uint32_t *)(void *)mem_memdup(w->ends, w->n * sizeof(*w->ends));
    return w->tokens && w->ends;
}

/* Copies what p borrows. On failure destroy frees what was copied: the rest is NULL. */
static bool copy_params(struct sampler *s, const struct sampler_params *p)
{
    bool ok;

    s->p = *p;
    s->p.bias = p->n_bias ? (const void *)mem_memdup(p->bias, p->n_bias * sizeof(*p->bias)) : NULL;
    s->p.allowed = p->allowed ? (const void *)mem_memdup(p->allowed, p->n_allowed * sizeof(*p->allowed)) : NULL;
    s->p.dry_breakers = NULL;
    if (p->dry_breakers && p->dry_multiplier > 0)
        s->p.dry_breakers = (const void *)mem_memdup(p->dry_breakers, ((size_t)s->n_vocab + 63) / 64 * 8);
    ok = copy_words(&s->p.dry_break_words);
    ok &= copy_words(&s->p.bad_words);
    return ok && !s->p.bias == !p->n_bias && !s->p.allowed == !p->allowed &&
           (s->p.dry_breakers || !p->dry_breakers || p->dry_multiplier <= 0);
}

static void choose_way(struct sampler *s)
{
    struct sampler_params *p = &s->p;
    bool scaled = !p->has_stages;

    if (!p->has_stages) {
        for (uint32_t i = 0; i < SAMPLER_N_STAGES; i++) p->stages[i] = (uint8_t)i;
        p->n_stages = SAMPLER_N_STAGES;
    }
    for (uint32_t i = 0; i < p->n_stages; i++) scaled |= p->stages[i] == SAMPLER_TEMPERATURE;
    s->greedy = p->temperature <= 0 && (p->dynatemp_range <= 0 || p->mirostat) && scaled;
    s->simple = !p->has_stages && p->typical_p >= 1 && p->top_n_sigma <= 0 && p->xtc_probability <= 0 &&
                p->dynatemp_range <= 0 && !p->mirostat;
    s->edits = p->n_bias || p->allowed || p->bad_words.n || s->seen || s->z;
    s->mu = 2 * (double)p->mirostat_tau;
    s->drawn = -1;
}

rd_status sampler_create(const struct sampler_params *p, uint32_t n_vocab, uint32_t max_tokens, struct sampler **out)
{
    struct sampler *s = mem_zalloc(1, sizeof(*s));

    if (!s) return RD_E_NOMEM;
    s->n_vocab = n_vocab;
    if (!copy_params(s, p) || sampler_history_create(s, max_tokens) != RD_OK) {
        sampler_destroy(s);
        return RD_E_NOMEM;
    }
    choose_way(s);
    *out = s;
    return RD_OK;
}

void sampler_destroy(struct sampler *s)
{
    if (!s) return;
    mem_free((void *)(uintptr_t)s->p.bias);
    mem_free((void *)(uintptr_t)s->p.allowed);
    mem_free((void *)(uintptr_t)s->p.dry_breakers);
    mem_free((void *)(uintptr_t)s->p.dry_break_words.tokens);
    mem_free((void *)(uintptr_t)s->p.dry_break_words.ends);
    mem_free((void *)(uintptr_t)s->p.bad_words.tokens);
    mem_free((void *)(uintptr_t)s->p.bad_words.ends);
    mem_free(s->seen);
    mem_free(s->history);
    mem_free(s->z);
    mem_free(s->break_ends);
    mem_free(s);
}

void sampler_accept(struct sampler *s, int32_t token, bool is_prompt)
{
    if (token < 0 || (uint32_t)token >= s->n_vocab) return;
    sampler_remember(s, token, is_prompt);
    if (s->p.mirostat && !is_prompt && token == s->drawn)   /* a forced token tells nothing about the draw */
        s->mu -= (double)s->p.mirostat_eta * (s->surprise - (double)s->p.mirostat_tau);
}

#define LANES 16u

/* The largest logit; RD_E_MODEL_OUTPUT for NaN, +inf, or a row of -inf. Lanes of their own: the compiler may not change
 * the order of one chain of comparisons, and a quarter of a million of them is a fair part of a small model's step. */
static rd_status find_max(const float *logits, uint32_t n, float *max)
{
    float best[LANES], most = -INFINITY;
    uint32_t bad[LANES] = {0}, any_bad = 0, i = 0;

    for (uint32_t k = 0; k < LANES; k++) best[k] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) {
            float v = logits[i + k];

            bad[k] |= !(v < INFINITY);                      /* NaN compares false */
            best[k] = v > best[k] ? v : best[k];
        }
    for (; i < n; i++) {
        any_bad |= !(logits[i] < INFINITY);
        most = logits[i] > most ? logits[i] : most;
    }
    for (uint32_t k = 0; k < LANES; k++) {
        any_bad |= bad[k];
        most = best[k] > most ? best[k] : most;
    }
    *max = most;
    return any_bad || most == -INFINITY ? RD_E_MODEL_OUTPUT : RD_OK;
}

/* The first index of a value that is there. */
static int32_t index_of(const float *logits, uint32_t n, float value)
{
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        uint32_t hits = 0;

        for (uint32_t k = 0; k < LANES; k++) hits |= logits[i + k] == value;
        if (hits) break;
    }
    while (i + 1 < n && logits[i] != value) i++;
    return (int32_t)i;
}

rd_status sampler_check_logits(const float *logits, uint32_t n_vocab)
{
    float max;

    return find_max(logits, n_vocab, &max);
}

static uint32_t count_above(const float *logits, uint32_t n, float value)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i++) count += logits[i] > value;
    return count;
}

static double log_sum_exp(const float *logits, uint32_t n, float max)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) sum += (double)expf(logits[i] - max);
    return (double)max + log(sum);
}

static bool before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void heap_down(struct candidate *heap, uint32_t n, uint32_t at)
{
    struct candidate c = heap[at];

    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], c)) break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

void sampler_heap_build(struct candidate *heap, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;) heap_down(heap, n, i);
}

struct candidate sampler_heap_take(struct candidate *heap, uint32_t n)
{
    struct candidate top = heap[0];

    heap[0] = heap[n - 1];
    heap[n - 1] = top;
    if (n > 1) heap_down(heap, n - 1, 0);
    return top;
}

static void top_logprobs(struct sampler_scratch *scratch, const float *logits, uint32_t n, double norm, uint32_t n_top,
                         struct sampler_result *out)
{
    out->n_top = u32_min(u32_min(n_top, n), LIMIT_TOP_LOGPROBS);
    if (out->n_top == 0) return;
    for (uint32_t i = 0; i < n; i++) scratch->heap[i] = (struct candidate){logits[i], (int32_t)i};
    sampler_heap_build(scratch->heap, n);
    for (uint32_t i = 0; i < out->n_top; i++) {
        struct candidate c = sampler_heap_take(scratch->heap, n - i);

        out->top[i] = (struct token_logprob){c.id, (float)((double)c.logit - norm)};
    }
}

rd_status sampler_logprobs(struct sampler_scratch *scratch, const float *logits, uint32_t n_vocab, int32_t token,
                           uint32_t n_top, struct sampler_result *out)
{
    float max;
    double norm;

    assert(n_vocab <= scratch->n_vocab && token >= 0 && (uint32_t)token < n_vocab);
    if (find_max(logits, n_vocab, &max) != RD_OK) return RD_E_MODEL_OUTPUT;
    norm = log_sum_exp(logits, n_vocab, max);
    out->token = token;
    out->logprob = (float)((double)logits[token] - norm);
    out->rank = 1 + count_above(logits, n_vocab, logits[token]);
    top_logprobs(scratch, logits, n_vocab, norm, n_top, out);
    return RD_OK;
}

/* What holds before every stage, on a copy. */
static void adjust(const struct sampler *s, struct sampler_scratch *x, const int32_t *banned, uint32_t n_banned)
{
    const struct sampler_params *p = &s->p;
    float *logits = x->logits;

    for (uint32_t i = 0; i < p->n_bias; i++) {
        const struct sampler_bias *b = &p->bias[i];

        logits[b->token] = b->bias <= BIAS_NEVER ? -INFINITY : logits[b->token] + b->bias;
    }
    if (p->allowed) {
        for (uint32_t i = 0; i < p->n_allowed; i++) x->weights[i] = (double)logits[p->allowed[i]];
        for (uint32_t i = 0; i < s->n_vocab; i++) logits[i] = -INFINITY;
        for (uint32_t i = 0; i < p->n_allowed; i++) logits[p->allowed[i]] = (float)x->weights[i];
    }
    if (p->bad_words.n) sampler_ban_words(s, logits);
    for (uint32_t i = 0; i < n_banned; i++)
        if (banned[i] >= 0 && (uint32_t)banned[i] < s->n_vocab) logits[banned[i]] = -INFINITY;
}

/* The penalties that lead the stages; all of them when nothing else counts. */
static uint32_t lead(const struct sampler *s, struct sampler_scratch *x)
{
    uint32_t i = 0;

    for (; i < s->p.n_stages; i++) {
        if (s->p.stages[i] == SAMPLER_PENALTIES) sampler_penalties(s, x->logits);
        else if (s->p.stages[i] == SAMPLER_DRY) sampler_dry(s, x);
        else if (!s->greedy && !s->p.mirostat) break;
    }
    return i;
}

/* Filters and orders candidates; returns how many are left, best first at heap[n_vocab-1], then downwards. */
static uint32_t select_candidates(const struct sampler *s, struct sampler_scratch *x, float max, uint32_t *n_all)
{
    const struct sampler_params *p = &s->p;
    uint32_t n = 0, n_kept = 0, n_most;
    double total = 0, sum = 0;

    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (x->logits[i] > -INFINITY) x->heap[n++] = (struct candidate){x->logits[i], (int32_t)i};
    *n_all = n;
    sampler_heap_build(x->heap, n);
    n_most = p->top_k > 0 ? u32_min((uint32_t)p->top_k, n) : n;
    if (n_most == n) {
        for (uint32_t i = 0; i < n; i++) total += exp(((double)x->heap[i].logit - max) / p->temperature);
    } else {
        for (uint32_t i = 0; i < n_most; i++)
            total += exp(((double)sampler_heap_take(x->heap, n - i).logit - max) / p->temperature);
        memmove(x->heap, x->heap + n - n_most, n_most * sizeof(*x->heap));
        sampler_heap_build(x->heap, n_most);
        *n_all = n = n_most;
    }
    while (n_kept < n) {
        double w = exp(((double)x->heap[0].logit - max) / p->temperature);

        if (n_kept > 0 && (sum >= (double)p->top_p * total || w < (double)p->min_p * x->weights[0])) break;
        sampler_heap_take(x->heap, n - n_kept);
        x->weights[n_kept++] = w;
        sum += w;
    }
    return n_kept;
}

static int32_t draw_all(const struct sampler *s, struct sampler_scratch *x, float max, double unit)
{
    double total = 0, at;
    int32_t last = 0;

    for (uint32_t i = 0; i < s->n_vocab; i++) {
        double power = ((double)x->logits[i] - max) / s->p.temperature;

        x->weights[i] = power > LEAST_POWER ? exp(power) : 0;
        total += x->weights[i];
    }
    at = unit * total;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (x->weights[i] <= 0) continue;
        last = (int32_t)i;
        at -= x->weights[i];
        if (at < 0) break;
    }
    return last;
}

static int32_t draw(const struct sampler *s, struct sampler_scratch *x, float max, double unit)
{
    double total = 0, at;
    uint32_t n_all, n;

    if (s->p.top_k <= 0 && s->p.top_p >= 1 && s->p.min_p <= 0) return draw_all(s, x, max, unit);
    n = select_candidates(s, x, max, &n_all);
    for (uint32_t i = 0; i < n; i++) total += x->weights[i];
    at = unit * total;
    for (uint32_t i = 0; i < n; i++) {
        at -= x->weights[i];
        if (at < 0 || i + 1 == n) return x->heap[n_all - 1 - i].id;
    }
    return 0;
}

static bool is_one_of(const int32_t *tokens, uint32_t n, int32_t token)
{
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] == token) return true;
    return false;
}

static rd_status with_logprobs(const struct sampler *s, struct sampler_scratch *scratch, const float *logits,
                               struct sampler_result *out)
{
    if (!s->p.want_logprob) return RD_OK;
    return sampler_logprobs(scratch, logits, s->n_vocab, out->token, s->p.n_top_logprobs, out);
}

rd_status sampler_sample(struct sampler *s, struct sampler_scratch *scratch, const float *logits, const int32_t *banned,
                         uint32_t n_banned, uint64_t position, struct sampler_result *out)
{
    float max;
    uint32_t stage;
    double unit;

    assert(s->n_vocab <= scratch->n_vocab);
    out->n_top = 0;
    out->logprob = 0;
    if (find_max(logits, s->n_vocab, &max) != RD_OK) return RD_E_MODEL_OUTPUT;
    if (s->greedy && !s->edits) {
        out->token = index_of(logits, s->n_vocab, max);
        if (!is_one_of(banned, n_banned, out->token)) return with_logprobs(s, scratch, logits, out);     /* no copy */
    }
    memcpy(scratch->logits, logits, s->n_vocab * sizeof(float));
    adjust(s, scratch, banned, n_banned);
    stage = lead(s, scratch);
    if (find_max(scratch->logits, s->n_vocab, &max) != RD_OK)      /* everything was banned */
        return s->p.allowed || s->p.bad_words.n ? RD_E_INVALID : RD_E_MODEL_OUTPUT;
    unit = random_at_unit(s->p.seed, position);
    if (s->greedy) out->token = index_of(scratch->logits, s->n_vocab, max);
    else if (s->simple) out->token = draw(s, scratch, max, unit);
    else if (s->p.mirostat) out->token = sampler_mirostat(s, scratch, unit);
    else out->token = sampler_chain(s, scratch, stage, unit, random_at_unit(s->p.seed ^ XTC_KEY, position));
    return with_logprobs(s, scratch, logits, out);
}
