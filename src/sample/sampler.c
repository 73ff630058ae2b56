/* sample/sampler.c - the usual ways through a row: greedy, or temperature, top_k, top_p, min_p and one draw.
 *
 * Candidates are (logit, id) pairs ordered by logit, ties by the lower id. top_k and top_p take only as many as they
 * need from a supply that looks where the best are (vocab_scan.h): a vocabulary of 262,144 is never sorted, and where
 * nothing edits the row it is not copied. Sums are doubles in a fixed order: the outcome is a pure function of its
 * inputs. Other stages and other orders: sampler_chain.c.
 */
#include "sample/sampler.h"
#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/checked.h"
#include "base/draw.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"
#include "sample/sampler_parts.h"

#define BIAS_NEVER   (-100.0f)
#define XTC_KEY      0x5854435f64726177ull /* any constant: XTC's random numbers are others than the draw's */
#define USUAL_CUT    64u                   /* candidates that top_p and min_p mostly leave */
#define GUMBEL_SLACK 1e-3f                 /* far more than the polynomial's error */
#define MANY         512u                  /* more are drawn from bins, without an order of all */
#define N_BINS       2048u
#define PIECE        64u /* blocks that are checked at once */

rd_status sampler_scratch_create(uint32_t n_vocab, struct sampler_scratch **out)
{
    struct sampler_scratch *s = mem_zalloc(1, sizeof(*s));

    if (!s) return RD_E_NOMEM;
    s->n_vocab = n_vocab;
    s->kernels = vocab_kernels_best();
    s->best = mem_alloc(VOCAB_N_BLOCKS(n_vocab), sizeof(*s->best));
    s->spare = mem_alloc(VOCAB_N_BLOCKS(n_vocab), sizeof(*s->spare));
    s->sums = mem_alloc(VOCAB_N_BLOCKS(n_vocab), sizeof(*s->sums));
    s->logits = mem_alloc(n_vocab, sizeof(*s->logits));
    s->heap = mem_alloc(n_vocab, sizeof(*s->heap));
    s->order = mem_alloc(n_vocab, sizeof(*s->order));
    s->weights = mem_alloc(n_vocab, sizeof(*s->weights));
    s->marks = mem_zalloc(n_vocab, sizeof(*s->marks));
    for (uint32_t k = 0; k < DRAW_N_LEADS; k++) s->most_gumbel[k] = draw_gumbel(~(0x80000000u >> k)) + GUMBEL_SLACK;
    if (!s->best || !s->spare || !s->sums || !s->logits || !s->heap || !s->order || !s->weights || !s->marks) {
        sampler_scratch_destroy(s);
        return RD_E_NOMEM;
    }
    *out = s;
    return RD_OK;
}

void sampler_scratch_destroy(struct sampler_scratch *s)
{
    if (!s) return;
    mem_free(s->best);
    mem_free(s->spare);
    mem_free(s->sums);
    mem_free(s->logits);
    mem_free(s->heap);
    mem_free(s->order);
    mem_free(s->weights);
    mem_free(s->marks);
    mem_free(s);
}

void sampler_scratch_know(struct sampler_scratch *s, const float *logits, const float *best)
{
    s->known_row = logits;
    s->known_best = best;
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
    if (s->p.mirostat && !is_prompt && token == s->drawn) /* a forced token tells nothing about the draw */
        s->mu -= (double)s->p.mirostat_eta * (s->surprise - (double)s->p.mirostat_tau);
}

/* x->best and the largest logit; RD_E_MODEL_OUTPUT for NaN, +inf, or a row of -inf. */
static rd_status scan(struct sampler_scratch *x, const float *row, uint32_t n, float *max)
{
    const uint32_t n_blocks = VOCAB_N_BLOCKS(n);
    float most = -INFINITY;

    if (x->known_best && row == x->known_row)
        memcpy(x->best, x->known_best, n_blocks * sizeof(*x->best));
    else if (!x->kernels->best(row, n, x->best))
        return RD_E_MODEL_OUTPUT;
    if (!x->kernels->best(x->best, n_blocks, x->spare)) return RD_E_MODEL_OUTPUT;
    for (uint32_t b = 0; b < VOCAB_N_BLOCKS(n_blocks); b++) most = x->spare[b] > most ? x->spare[b] : most;
    *max = most;
    return most > -INFINITY ? RD_OK : RD_E_MODEL_OUTPUT;
}

/* The first token of the largest logit, of a row that was scanned. */
static int32_t index_of(const struct sampler_scratch *x, const float *row, float max)
{
    uint32_t i = 0;

    while (x->best[i] != max) i++;
    for (i *= VOCAB_BLOCK; row[i] != max; i++) {}
    return (int32_t)i;
}

rd_status sampler_check_logits(const float *logits, uint32_t n_vocab)
{
    const struct vocab_kernels *kernels = vocab_kernels_best();
    bool any = false;

    for (uint32_t begin = 0; begin < n_vocab; begin += PIECE * VOCAB_BLOCK) {
        uint32_t n = u32_min(n_vocab - begin, PIECE * VOCAB_BLOCK);
        float best[PIECE];

        if (!kernels->best(logits + begin, n, best)) return RD_E_MODEL_OUTPUT;
        for (uint32_t b = 0; b < VOCAB_N_BLOCKS(n); b++) any |= best[b] > -INFINITY;
    }
    return any ? RD_OK : RD_E_MODEL_OUTPUT;
}

static uint32_t count_above(const float *logits, uint32_t n, float value)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i++) count += logits[i] > value;
    return count;
}

/* Of e^((row[i] - max) * factor); x->sums has the parts. */
static double sum_weights(struct sampler_scratch *x, const float *row, uint32_t n, float max, double factor)
{
    double total = 0;

    x->kernels->sums(row, n, (double)max, factor, x->sums);
    for (uint32_t b = 0; b < VOCAB_N_BLOCKS(n); b++) total += x->sums[b];
    return total;
}

static void top_logprobs(struct sampler_scratch *x, const float *logits, uint32_t n, double norm, uint32_t n_top,
                         struct sampler_result *out)
{
    struct vocab_supply supply;
    struct candidate c;

    out->n_top = u32_min(u32_min(n_top, n), LIMIT_TOP_LOGPROBS);
    if (out->n_top == 0) return;
    vocab_supply_init(&supply, logits, n, x->best, x->spare, x->heap, out->n_top);
    for (uint32_t i = 0; i < out->n_top; i++) {
        if (!vocab_supply_next(&supply, &c)) { /* the rest is impossible */
            out->n_top = i;
            return;
        }
        out->top[i] = (struct token_logprob){c.id, (float)((double)c.logit - norm)};
    }
}

rd_status sampler_logprobs(struct sampler_scratch *scratch, const float *logits, uint32_t n_vocab, int32_t token,
                           uint32_t n_top, struct sampler_result *out)
{
    float max;
    double norm;

    assert(n_vocab <= scratch->n_vocab && token >= 0 && (uint32_t)token < n_vocab);
    if (scan(scratch, logits, n_vocab, &max) != RD_OK) return RD_E_MODEL_OUTPUT;
    norm = (double)max + log(sum_weights(scratch, logits, n_vocab, max, 1));
    out->token = token;
    out->logprob = (float)((double)logits[token] - norm);
    out->rank = 1 + count_above(logits, n_vocab, logits[token]);
    top_logprobs(scratch, logits, n_vocab, norm, n_top, out);
    return RD_OK;
}

rd_status sampler_score(struct sampler_scratch *scratch, const float *logits, uint32_t n_vocab, const int32_t *tokens,
                        uint32_t n, float *out)
{
    float max;
    double norm;

    if (scan(scratch, logits, n_vocab, &max) != RD_OK) return RD_E_MODEL_OUTPUT;
    norm = (double)max + log(sum_weights(scratch, logits, n_vocab, max, 1));
    for (uint32_t i = 0; i < n; i++) {
        assert(tokens[i] >= 0 && (uint32_t)tokens[i] < n_vocab);
        out[i] = (float)((double)logits[tokens[i]] - norm);
    }
    return RD_OK;
}

static bool is_one_of(const int32_t *tokens, uint32_t n, int32_t token)
{
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] == token) return true;
    return false;
}

bool sampler_may_draw(const struct sampler_bounds *b, int32_t token)
{
    if (is_one_of(b->banned, b->n_banned, token)) return false;
    if (!b->mask || (b->mask[(uint32_t)token / 32] >> ((uint32_t)token % 32) & 1)) return true;
    return is_one_of(b->also, b->n_also, token);
}

static bool is_token(const struct sampler *s, int32_t token)
{
    return token >= 0 && (uint32_t)token < s->n_vocab;
}

/* What the mask has no bit for is impossible. Words without any bit are the most, and cost a store each. */
static void apply_mask(struct sampler_scratch *x, const struct sampler_bounds *bounds, uint32_t n)
{
    float *logits = x->logits;

    for (uint32_t i = 0; i < bounds->n_also; i++) x->weights[i] = (double)logits[bounds->also[i]];
    for (uint32_t begin = 0; begin < n; begin += 32) {
        uint32_t word = bounds->mask[begin / 32], end = u32_min(begin + 32, n);

        if (word == UINT32_MAX) continue;
        for (uint32_t i = begin; i < end; i++, word >>= 1) logits[i] = word & 1 ? logits[i] : -INFINITY;
    }
    for (uint32_t i = 0; i < bounds->n_also; i++) logits[bounds->also[i]] = (float)x->weights[i];
}

/* What holds before every stage, on a copy. */
static void adjust(const struct sampler *s, struct sampler_scratch *x, const struct sampler_bounds *bounds)
{
    const struct sampler_params *p = &s->p;
    float *logits = x->logits;

    for (uint32_t i = 0; i < p->n_bias; i++) {
        const struct rd_bias *b = &p->bias[i];

        logits[b->token] = b->bias <= BIAS_NEVER ? -INFINITY : logits[b->token] + b->bias;
    }
    if (p->allowed) {
        for (uint32_t i = 0; i < p->n_allowed; i++) x->weights[i] = (double)logits[p->allowed[i]];
        for (uint32_t i = 0; i < s->n_vocab; i++) logits[i] = -INFINITY;
        for (uint32_t i = 0; i < p->n_allowed; i++) logits[p->allowed[i]] = (float)x->weights[i];
    }
    if (p->bad_words.n) sampler_ban_words(s, logits);
    if (bounds->mask) apply_mask(x, bounds, s->n_vocab);
    for (uint32_t i = 0; i < bounds->n_banned; i++)
        if (is_token(s, bounds->banned[i])) logits[bounds->banned[i]] = -INFINITY;
}

/* The penalties that lead the stages; all of them when nothing else counts. */
static uint32_t lead(const struct sampler *s, struct sampler_scratch *x)
{
    uint32_t i = 0;

    for (; i < s->p.n_stages; i++) {
        if (s->p.stages[i] == SAMPLER_PENALTIES)
            sampler_penalties(s, x->logits);
        else if (s->p.stages[i] == SAMPLER_DRY)
            sampler_dry(s, x);
        else if (!s->greedy && !s->p.mirostat)
            break;
    }
    return i;
}

static double weight(const struct sampler *s, struct candidate c, float max)
{
    return exp(((double)c.logit - (double)max) / (double)s->p.temperature);
}

/* top_p's share is of the sum of all, or of the top_k: those are listed in x->order and x->weights then. */
static double total_weight(const struct sampler *s, struct sampler_scratch *x, const float *row, float max,
                           struct vocab_supply *supply, uint32_t *n_listed)
{
    struct candidate c;
    double total = 0;

    *n_listed = 0;
    if (s->p.top_p >= 1) return 0;
    if (s->p.top_k <= 0) return sum_weights(x, row, s->n_vocab, max, 1 / (double)s->p.temperature);
    while (*n_listed < (uint32_t)s->p.top_k && vocab_supply_next(supply, &c)) {
        x->order[*n_listed] = c.id;
        total += x->weights[(*n_listed)++] = weight(s, c, max);
    }
    return total;
}

/* What top_k, top_p and min_p leave, best first, in x->order and x->weights; returns how many, MANY: there may be more.
 */
static uint32_t select_candidates(const struct sampler *s, struct sampler_scratch *x, const float *row, float max,
                                  double *total_out)
{
    const struct sampler_params *p = &s->p;
    uint32_t n = 0, n_listed, n_most = p->top_k > 0 ? (uint32_t)p->top_k : MANY;
    struct vocab_supply supply;
    double total, sum = 0;

    vocab_supply_init(&supply, row, s->n_vocab, x->best, x->spare, x->heap, p->top_k > 0 ? n_most : USUAL_CUT);
    *total_out = total = total_weight(s, x, row, max, &supply, &n_listed);
    for (; n < n_most; n++) {
        struct candidate c;

        if (n >= n_listed) {
            if (n_listed > 0 || !vocab_supply_next(&supply, &c)) break;
            x->order[n] = c.id;
            x->weights[n] = weight(s, c, max);
        }
        if (n > 0 &&
            ((p->top_p < 1 && sum >= (double)p->top_p * total) || x->weights[n] < (double)p->min_p * x->weights[0]))
            break;
        sum += x->weights[n];
    }
    return n;
}

/* ---- many candidates: bins by their logits instead of an order of all ---- */

struct bins {
    double sums[N_BINS]; /* of weights; bin 0 has the best */
    double per_logit;    /* bins */
    float max;
};

static uint32_t bin_of(const struct bins *b, float logit)
{
    double at = ((double)b->max - (double)logit) * b->per_logit;

    return at < N_BINS - 1 ? (uint32_t)at : N_BINS - 1;
}

static void fill_bins(const struct sampler *s, struct sampler_scratch *x, const float *row, float max, struct bins *b)
{
    double weights[VOCAB_BLOCK], least = (double)s->p.min_p;

    memset(b->sums, 0, sizeof(b->sums));
    b->max = max;
    b->per_logit = N_BINS / (-VOCAB_LEAST_POWER * (double)s->p.temperature);
    for (uint32_t begin = 0; begin < s->n_vocab; begin += VOCAB_BLOCK) {
        uint32_t n = u32_min(s->n_vocab - begin, VOCAB_BLOCK);

        x->kernels->weights(row + begin, n, (double)max, 1 / (double)s->p.temperature, weights);
        for (uint32_t i = 0; i < n; i++)
            if (weights[i] > 0 && weights[i] >= least) b->sums[bin_of(b, row[begin + i])] += weights[i];
    }
}

/* A bin's candidates, best first, in x->order and x->weights: as many as it takes for their sum to reach `most`. */
static uint32_t open_bin(const struct sampler *s, struct sampler_scratch *x, const float *row, const struct bins *b,
                         uint32_t bin, double most, double *sum)
{
    uint32_t n_heap = 0, n = 0;

    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (row[i] > -INFINITY && bin_of(b, row[i]) == bin) x->heap[n_heap++] = (struct candidate){row[i], (int32_t)i};
    vocab_heap_build(x->heap, n_heap);
    for (*sum = 0; n < n_heap && (n == 0 || *sum < most); n++) {
        struct candidate c = vocab_heap_take(x->heap, n_heap - n);
        double w = weight(s, c, b->max);

        if (w < (double)s->p.min_p) break;
        x->order[n] = c.id;
        *sum += x->weights[n] = w;
    }
    return n;
}

/* top_p, with min_p or not, when it leaves many: whole bins up to the one where top_p is reached, and the best part of that. */
static int32_t draw_many(const struct sampler *s, struct sampler_scratch *x, const float *row, float max, double total,
                         double unit)
{
    double most = (double)s->p.top_p * total, kept = 0, last_sum = 0, at;
    uint32_t cut = 0, bin = 0, n = 0;
    struct bins b;

    fill_bins(s, x, row, max, &b);
    while (cut < N_BINS - 1 && kept + b.sums[cut] < most) kept += b.sums[cut++];
    n = open_bin(s, x, row, &b, cut, most - kept, &last_sum);
    at = unit * (kept + last_sum);
    for (; bin < cut; bin++) {
        if (b.sums[bin] > 0 && at < b.sums[bin]) break;
        at -= b.sums[bin];
    }
    if (bin < cut) n = open_bin(s, x, row, &b, bin, INFINITY, &last_sum);
    while (n == 0 && bin > 0) n = open_bin(s, x, row, &b, --bin, INFINITY, &last_sum); /* rounding, at the very end */
    for (uint32_t i = 0; i < n; i++) {
        at -= x->weights[i];
        if (at < 0) return x->order[i];
    }
    return x->order[n - 1];
}

/* ---- nothing but temperature and min_p: the token of the largest score (base/draw.h), as a device chooses ---- */

struct drawing {
    const struct sampler *s;
    struct sampler_scratch *x;
    float inverse, from, least;
    uint32_t position;
    float score; /* the best so far, and its token */
    int32_t token;
    double enough; /* what may be below it cannot win */
};

/* Whether a token of this logit can, whose word begins with `lead` ones. In double, and with some room: only a filter. */
static bool may_win(const struct drawing *d, float logit, uint32_t lead)
{
    return !((double)(logit - d->from) * (double)d->inverse + (double)d->x->most_gumbel[lead] < d->enough);
}

static void draw_in_block(struct drawing *d, const float *row, uint32_t block)
{
    const uint32_t begin = block * VOCAB_BLOCK, n = u32_min(d->s->n_vocab - begin, VOCAB_BLOCK);
    uint32_t words[VOCAB_BLOCK];

    d->x->kernels->words(d->s->p.seed, d->position, begin, words);
    for (uint32_t i = 0; i < n; i++) {
        const float logit = row[begin + i];
        const int32_t id = (int32_t)(begin + i);
        float score;

        if (!(logit >= d->least && logit > -INFINITY)) continue;
        if (!may_win(d, logit, (uint32_t)__builtin_clz(~words[i] | 0x1ff))) continue;
        score = draw_score(logit, d->from, d->inverse, words[i]);
        if (score < d->score || (score == d->score && id > d->token)) continue;
        d->score = score;
        d->token = id;
        d->enough = (double)score - fabs((double)score) * 1e-6 - 1e-6;
    }
}

/* The block of the largest logit first: what it has lets most others be skipped. */
static int32_t draw_plain(const struct sampler *s, struct sampler_scratch *x, const float *row, float max,
                          uint64_t position)
{
    const float t = s->p.temperature, min_p = s->p.min_p;
    struct drawing d = {.s = s,
                        .x = x,
                        .inverse = draw_inverse(t),
                        .from = draw_is_local(t, min_p) ? 0 : max,
                        .least = draw_least(t, min_p, max),
                        .position = (uint32_t)position,
                        .score = -INFINITY,
                        .token = INT32_MAX,
                        .enough = -INFINITY};
    uint32_t first = (uint32_t)index_of(x, row, max) / VOCAB_BLOCK;

    draw_in_block(&d, row, first);
    for (uint32_t b = 0; b < VOCAB_N_BLOCKS(s->n_vocab); b++)
        if (b != first && x->best[b] >= d.least && may_win(&d, x->best[b], DRAW_N_LEADS - 1)) draw_in_block(&d, row, b);
    return d.token;
}

static bool is_plain_draw(const struct sampler *s)
{
    return s->simple && !s->greedy && s->p.top_k <= 0 && s->p.top_p >= 1;
}

static int32_t draw(const struct sampler *s, struct sampler_scratch *x, const float *row, float max, uint64_t position)
{
    double total = 0, all, at, unit;
    uint32_t n;

    if (is_plain_draw(s)) return draw_plain(s, x, row, max, position);
    unit = random_at_unit(s->p.seed, position);
    n = select_candidates(s, x, row, max, &all);
    if (n == MANY && s->p.top_k <= 0) return draw_many(s, x, row, max, all, unit);
    for (uint32_t i = 0; i < n; i++) total += x->weights[i];
    at = unit * total;
    for (uint32_t i = 0; i < n; i++) {
        at -= x->weights[i];
        if (at < 0 || i + 1 == n) return x->order[i];
    }
    return 0;
}

/* Under a mask of the masked row, which x->logits is where the token was not found without a copy. */
static rd_status with_logprobs(const struct sampler *s, struct sampler_scratch *x, const float *logits,
                               const struct sampler_bounds *bounds, struct sampler_result *out)
{
    if (!s->p.want_logprob) return RD_OK;
    if (bounds->mask) {
        memcpy(x->logits, logits, s->n_vocab * sizeof(float));
        apply_mask(x, bounds, s->n_vocab);
        logits = x->logits;
    }
    return sampler_logprobs(x, logits, s->n_vocab, out->token, s->p.n_top_logprobs, out);
}

bool sampler_is_plain(const struct sampler *s, float *temperature, float *min_p, uint64_t *seed)
{
    const struct sampler_params *p = &s->p;

    *temperature = s->greedy ? 0 : p->temperature;
    *min_p = s->greedy ? 0 : p->min_p;
    *seed = p->seed;
    if (s->edits || p->want_logprob || p->n_top_logprobs > 0) return false;
    return s->greedy || (is_plain_draw(s) && p->temperature > 0);
}

/* Nothing edits the row, and what is drawn of it is mostly within the bounds: then no copy is needed. Where a mask or
 * banned tokens change what the others weigh, it is. */
static bool draws_from_row(const struct sampler *s, const struct sampler_bounds *bounds)
{
    if (s->edits) return false;
    return s->greedy || is_plain_draw(s) || (s->simple && bounds->n_banned == 0 && !bounds->mask);
}

/* Every token was ruled out: by what was asked for, as the model's own row was looked at before. */
static bool is_empty(const float *logits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!(logits[i] == -INFINITY)) return false;
    return true;
}

rd_status sampler_sample(struct sampler *s, struct sampler_scratch *scratch, const float *logits,
                         const struct sampler_bounds *bounds, uint64_t position, struct sampler_result *out)
{
    static const struct sampler_bounds none;
    float max;
    uint32_t stage;
    double unit;

    assert(s->n_vocab <= scratch->n_vocab);
    bounds = bounds ? bounds : &none;
    out->n_top = 0;
    out->logprob = 0;
    if (scan(scratch, logits, s->n_vocab, &max) != RD_OK) return RD_E_MODEL_OUTPUT;
    unit = random_at_unit(s->p.seed, position);
    if (draws_from_row(s, bounds)) {
        out->token = s->greedy ? index_of(scratch, logits, max) : draw(s, scratch, logits, max, position);
        if (sampler_may_draw(bounds, out->token)) return with_logprobs(s, scratch, logits, bounds, out);
    }
    memcpy(scratch->logits, logits, s->n_vocab * sizeof(float));
    adjust(s, scratch, bounds);
    stage = lead(s, scratch);
    if (scan(scratch, scratch->logits, s->n_vocab, &max) != RD_OK)
        return is_empty(scratch->logits, s->n_vocab) ? RD_E_INVALID : RD_E_MODEL_OUTPUT;
    if (s->greedy)
        out->token = index_of(scratch, scratch->logits, max);
    else if (s->simple)
        out->token = draw(s, scratch, scratch->logits, max, position);
    else if (s->p.mirostat)
        out->token = sampler_mirostat(s, scratch, unit);
    else
        out->token = sampler_chain(s, scratch, stage, unit, random_at_unit(s->p.seed ^ XTC_KEY, position));
    return with_logprobs(s, scratch, logits, bounds, out);
}

rd_status sampler_take(struct sampler *s, struct sampler_scratch *scratch, const float *logits,
                       const struct sampler_bounds *bounds, int32_t token, struct sampler_result *out)
{
    *out = (struct sampler_result){.token = token};
    return with_logprobs(s, scratch, logits, bounds, out);
}
