/* sample/sampler_chain.c - the stages in any order over a list of candidates, and mirostat.
 *
 * A candidate's logit is that of x->logits; the temperature is a factor beside them (scale), so that it rewrites
 * nothing. Stages that only cut keep the candidates' order (by id); top_k, top_p and typical_p leave them in the order
 * that they cut by. The draw goes through them in the order they then have.
 */
#include <float.h>
#include <math.h>
#include <string.h>
#include "base/checked.h"
#include "sample/sampler_parts.h"

#define COLDEST 1e-6 /* below: the best one alone */

struct chain {
    const struct sampler *s;
    struct sampler_scratch *x;
    struct candidate *c; /* [n], n >= 1 */
    uint32_t n;
    double scale; /* logits count divided by this */
};

static void load(struct chain *ch)
{
    const float *logits = ch->x->logits;

    ch->n = 0;
    for (uint32_t i = 0; i < ch->s->n_vocab; i++)
        if (logits[i] > -INFINITY) ch->c[ch->n++] = (struct candidate){logits[i], (int32_t)i};
}

/* Is this stage without effect, or a temperature, which leaves the order? */
static bool keeps_order(const struct sampler *s, uint8_t stage)
{
    const struct sampler_params *p = &s->p;

    switch ((enum sampler_stage)stage) {
    case SAMPLER_PENALTIES:
        return !s->seen;
    case SAMPLER_DRY:
        return !s->z;
    case SAMPLER_TEMPERATURE:
        return p->dynatemp_range <= 0;
    case SAMPLER_TOP_N_SIGMA:
        return p->top_n_sigma <= 0;
    case SAMPLER_TOP_K:
        return p->top_k <= 0;
    case SAMPLER_TYPICAL_P:
        return p->typical_p >= 1;
    case SAMPLER_TOP_P:
        return p->top_p >= 1;
    case SAMPLER_MIN_P:
        return p->min_p <= 0;
    default:
        return false;
    }
}

/* When top_k is the first to cut, only the k best are loaded. False: it is not, or it would cut nothing. */
static bool load_top_k(struct chain *ch, uint32_t stage)
{
    const struct sampler *s = ch->s;
    struct vocab_supply supply;
    struct candidate c;
    uint32_t n = 0, k = (uint32_t)s->p.top_k;

    while (stage < s->p.n_stages && keeps_order(s, s->p.stages[stage])) stage++;
    if (stage == s->p.n_stages || s->p.stages[stage] != SAMPLER_TOP_K || k >= s->n_vocab / 4) return false;
    vocab_supply_init(&supply, ch->x->logits, s->n_vocab, ch->x->best, ch->x->spare, ch->x->heap, k);
    while (n < k && vocab_supply_next(&supply, &c)) {
        ch->x->order[n] = c.id;
        n++;
    }
    if (n < k || !vocab_supply_next(&supply, &c)) return false;
    for (uint32_t i = 0; i < k; i++) ch->c[i] = (struct candidate){ch->x->logits[ch->x->order[i]], ch->x->order[i]};
    ch->n = k;
    return true;
}

static uint32_t best(const struct chain *ch)
{
    uint32_t at = 0;

    for (uint32_t i = 1; i < ch->n; i++)
        if (ch->c[i].logit > ch->c[at].logit || (ch->c[i].logit == ch->c[at].logit && ch->c[i].id < ch->c[at].id))
            at = i;
    return at;
}

static double weight(const struct chain *ch, float logit, float max)
{
    return exp(((double)logit - (double)max) / ch->scale);
}

/* weights[i] = e^(distance from the best), and their sum. */
static double weigh(struct chain *ch)
{
    double max = (double)ch->c[best(ch)].logit, total = 0, weights[VOCAB_BLOCK];
    float logits[VOCAB_BLOCK];

    for (uint32_t begin = 0; begin < ch->n; begin += VOCAB_BLOCK) {
        uint32_t n = u32_min(ch->n - begin, VOCAB_BLOCK);

        for (uint32_t i = 0; i < n; i++) logits[i] = ch->c[begin + i].logit;
        ch->x->kernels->weights(logits, n, max, 1 / ch->scale, weights);
        for (uint32_t i = 0; i < n; i++) total += ch->x->weights[begin + i] = weights[i];
    }
    return total;
}

/* In nats, of the weights. With w = e^power and p = w / total: - log p = log total - power. */
static double entropy(const struct chain *ch, double total)
{
    double max = (double)ch->c[best(ch)].logit, sum = 0;

    for (uint32_t i = 0; i < ch->n; i++)
        if (ch->x->weights[i] > 0) sum += ch->x->weights[i] * (((double)ch->c[i].logit - max) / ch->scale);
    return log(total) - sum / total;
}

/* k candidates were taken from the heap of n and lie at its end, the first one last: now they are the list. */
static void keep_taken(struct chain *ch, uint32_t k)
{
    struct candidate *taken = ch->c + ch->n - k;

    for (uint32_t i = 0; i < k / 2; i++) {
        struct candidate swap = taken[i];

        taken[i] = taken[k - 1 - i];
        taken[k - 1 - i] = swap;
    }
    memmove(ch->c, taken, k * sizeof(*taken));
    ch->n = k;
}

static void keep_best(struct chain *ch)
{
    ch->c[0] = ch->c[best(ch)];
    ch->n = 1;
}

static void cut_top_k(struct chain *ch)
{
    int32_t k = ch->s->p.top_k;

    if (k <= 0 || (uint32_t)k >= ch->n) return;
    vocab_heap_build(ch->c, ch->n);
    for (uint32_t i = 0; i < (uint32_t)k; i++) vocab_heap_take(ch->c, ch->n - i);
    keep_taken(ch, (uint32_t)k);
}

static void cut_top_p(struct chain *ch)
{
    double total, sum = 0, p = (double)ch->s->p.top_p;
    float max = ch->c[best(ch)].logit;
    uint32_t k = 0;

    if (p >= 1) return;
    total = weigh(ch);
    vocab_heap_build(ch->c, ch->n);
    do sum += weight(ch, vocab_heap_take(ch->c, ch->n - k).logit, max);
    while (++k < ch->n && sum < p * total);
    keep_taken(ch, k);
}

static void cut_min_p(struct chain *ch)
{
    double p = (double)ch->s->p.min_p;
    uint32_t n = 0;

    if (p <= 0) return;
    weigh(ch);
    for (uint32_t i = 0; i < ch->n; i++)
        if (ch->x->weights[i] >= p) ch->c[n++] = ch->c[i];
    ch->n = n;
}

/* Those whose surprise is nearest to the entropy, until their sum is above p. */
static void cut_typical(struct chain *ch)
{
    double total, log_total, h, sum = 0, p = (double)ch->s->p.typical_p;
    float max = ch->c[best(ch)].logit;
    uint32_t k = 0;

    if (p >= 1) return;
    total = weigh(ch);
    log_total = log(total);
    h = entropy(ch, total);
    for (uint32_t i = 0; i < ch->n; i++) {
        double surprise = log_total - ((double)ch->c[i].logit - (double)max) / ch->scale;

        ch->c[i].logit = (float)-fabs(surprise - h);
    }
    vocab_heap_build(ch->c, ch->n);
    do sum += weight(ch, ch->x->logits[vocab_heap_take(ch->c, ch->n - k).id], max);
    while (++k < ch->n && sum <= p * total);
    keep_taken(ch, k);
    for (uint32_t i = 0; i < k; i++) ch->c[i].logit = ch->x->logits[ch->c[i].id];
}

static void cut_top_n_sigma(struct chain *ch)
{
    double sum = 0, squares = 0, mean, least;
    float max = ch->c[best(ch)].logit;
    uint32_t n = 0;

    if (ch->s->p.top_n_sigma <= 0 || ch->n < 2) return;
    for (uint32_t i = 0; i < ch->n; i++) sum += (double)ch->c[i].logit;
    mean = sum / ch->n;
    for (uint32_t i = 0; i < ch->n; i++) {
        double d = (double)ch->c[i].logit - mean;

        squares += d * d;
    }
    least = (double)max - (double)ch->s->p.top_n_sigma * sqrt(squares / ch->n);
    for (uint32_t i = 0; i < ch->n; i++)
        if ((double)ch->c[i].logit >= least) ch->c[n++] = ch->c[i];
    ch->n = n;
}

/* Of the candidates above the threshold all but the least likely leave, now and then. */
static void cut_xtc(struct chain *ch, double unit)
{
    const struct sampler_params *p = &ch->s->p;
    uint32_t n_above = 0, least = 0, n = 0;
    double bound;

    if (unit >= (double)p->xtc_probability || p->xtc_threshold > 0.5f || ch->n < 2) return;
    bound = (double)p->xtc_threshold * weigh(ch);
    for (uint32_t i = 0; i < ch->n; i++) {
        const struct candidate *c = &ch->c[i], *l = &ch->c[least];

        if (ch->x->weights[i] < bound) continue;
        if (n_above++ == 0 || c->logit < l->logit || (c->logit == l->logit && c->id > l->id)) least = i;
    }
    if (n_above < 2) return;
    for (uint32_t i = 0; i < ch->n; i++)
        if (ch->x->weights[i] < bound || i == least) ch->c[n++] = ch->c[i];
    ch->n = n;
}

static void set_temperature(struct chain *ch)
{
    const struct sampler_params *p = &ch->s->p;
    double t = (double)p->temperature, range = (double)p->dynatemp_range;

    if (range > 0) {
        double lowest = t > range ? t - range : 0;

        if (ch->n < 2) return;
        t = lowest + (t + range - lowest) * pow(entropy(ch, weigh(ch)) / log(ch->n), (double)p->dynatemp_exponent);
    }
    if (t < COLDEST)
        keep_best(ch);
    else
        ch->scale *= t;
}

static float bounded(double v)
{
    if (v < (double)FLT_MAX) return v > -(double)FLT_MAX ? (float)v : -FLT_MAX;
    return v >= (double)FLT_MAX ? FLT_MAX : -FLT_MAX; /* not a number: the least */
}

/* Penalties behind a temperature or a cut: they see the logits as these left them. */
static void penalise(struct chain *ch, bool dry)
{
    float *logits = ch->x->logits;

    for (uint32_t i = 0; i < ch->n; i++) logits[ch->c[i].id] = bounded((double)ch->c[i].logit / ch->scale);
    ch->scale = 1;
    if (dry)
        sampler_dry(ch->s, ch->x);
    else
        sampler_penalties(ch->s, logits);
    for (uint32_t i = 0; i < ch->n; i++) {
        float *logit = &logits[ch->c[i].id];

        *logit = bounded((double)*logit);
        ch->c[i].logit = *logit;
    }
}

static uint32_t draw_from(struct chain *ch, double unit)
{
    double at = unit * weigh(ch);
    uint32_t last = 0;

    for (uint32_t i = 0; i < ch->n; i++) {
        if (ch->x->weights[i] <= 0) continue;
        last = i;
        at -= ch->x->weights[i];
        if (at < 0) break;
    }
    return last;
}

int32_t sampler_chain(const struct sampler *s, struct sampler_scratch *x, uint32_t stage, double unit, double xtc_unit)
{
    struct chain ch = {.s = s, .x = x, .c = x->heap, .scale = 1};

    if (!load_top_k(&ch, stage)) load(&ch);
    for (; stage < s->p.n_stages; stage++) {
        switch ((enum sampler_stage)s->p.stages[stage]) {
        case SAMPLER_PENALTIES:
            penalise(&ch, false);
            break;
        case SAMPLER_DRY:
            penalise(&ch, true);
            break;
        case SAMPLER_TEMPERATURE:
            set_temperature(&ch);
            break;
        case SAMPLER_TOP_N_SIGMA:
            cut_top_n_sigma(&ch);
            break;
        case SAMPLER_TOP_K:
            cut_top_k(&ch);
            break;
        case SAMPLER_TYPICAL_P:
            cut_typical(&ch);
            break;
        case SAMPLER_TOP_P:
            cut_top_p(&ch);
            break;
        case SAMPLER_MIN_P:
            cut_min_p(&ch);
            break;
        case SAMPLER_XTC:
            cut_xtc(&ch, xtc_unit);
            break;
        case SAMPLER_N_STAGES:
            break;
        }
    }
    return ch.c[draw_from(&ch, unit)].id;
}

int32_t sampler_mirostat(struct sampler *s, struct sampler_scratch *x, double unit)
{
    struct chain ch = {.s = s, .x = x, .c = x->heap, .scale = 1};
    double least, kept = 0;
    uint32_t n = 0, at, top;

    if ((double)s->p.temperature >= COLDEST) ch.scale = (double)s->p.temperature;
    load(&ch);
    least = weigh(&ch) * exp2(-s->mu); /* whose surprise is mu */
    top = best(&ch);
    for (uint32_t i = 0; i < ch.n; i++) {
        if (i != top && x->weights[i] < least) continue;
        kept += x->weights[i];
        ch.c[n++] = ch.c[i];
    }
    ch.n = n;
    at = draw_from(&ch, unit);
    s->surprise = log2(kept / x->weights[at]);
    s->drawn = ch.c[at].id;
    return s->drawn;
}
