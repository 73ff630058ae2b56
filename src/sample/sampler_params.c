/* sample/sampler_params.c - what the parameters of a sampler may be. */
#include "base/error.h"
#include "base/limits.h"
#include "sample/sampler.h"

#define DEFAULT(kind, field, name, alias, fallback, least, most, text) .field = (RD_SAMPLING_##kind)(fallback),
/* least and most as a float has them: 0.01 is in its own range. */
#define CHECKED(kind, field, name, alias, fallback, least, most, text)                                                 \
    {name, (double)p->field, (double)(RD_SAMPLING_##kind)(least), (double)(RD_SAMPLING_##kind)(most)},

void sampler_params_default(struct sampler_params *p)
{
    *p = (struct sampler_params){RD_SAMPLING_NUMBERS(DEFAULT)};
}

static rd_status check_numbers(const struct sampler_params *p, struct rd_error *err)
{
    const struct {
        const char *name;
        double value, least, most;
    } numbers[] = {RD_SAMPLING_NUMBERS(CHECKED)};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (!(numbers[i].value >= numbers[i].least && numbers[i].value <= numbers[i].most))
            return error_set(err, RD_E_INVALID, "%s: must be within %.9g and %.9g", numbers[i].name, numbers[i].least,
                             numbers[i].most);
    if (p->mirostat != 0 && p->mirostat != 2) return error_set(err, RD_E_INVALID, "mirostat: must be 0 or 2");
    if (p->n_top_logprobs > LIMIT_TOP_LOGPROBS)
        return error_set(err, RD_E_INVALID, "top_logprobs: at most %u", LIMIT_TOP_LOGPROBS);
    return RD_OK;
}

static rd_status check_bias(const struct sampler_params *p, uint32_t n_vocab, struct rd_error *err)
{
    if (p->n_bias > LIMIT_LOGIT_BIAS)
        return error_set(err, RD_E_INVALID, "logit_bias: at most %u entries", LIMIT_LOGIT_BIAS);
    for (uint32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token < 0 || (uint32_t)p->bias[i].token >= n_vocab)
            return error_set(err, RD_E_INVALID, "logit_bias: token %d is not in the vocabulary of %u", p->bias[i].token,
                             n_vocab);
        if (!(p->bias[i].bias >= -100 && p->bias[i].bias <= 100))
            return error_set(err, RD_E_INVALID, "logit_bias: values must be within -100 and 100");
    }
    return RD_OK;
}

static rd_status check_tokens(const char *name, const int32_t *tokens, uint32_t n, uint32_t n_vocab,
                              struct rd_error *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= n_vocab)
            return error_set(err, RD_E_INVALID, "%s: token %d is not in the vocabulary of %u", name, tokens[i],
                             n_vocab);
    return RD_OK;
}

static rd_status check_words(const char *name, const struct sampler_words *w, uint32_t n_vocab, struct rd_error *err)
{
    for (uint32_t i = 0, begin = 0; i < w->n; begin = w->ends[i++])
        if (w->ends[i] <= begin) return error_set(err, RD_E_INVALID, "%s: an empty sequence", name);
    return w->n ? check_tokens(name, w->tokens, w->ends[w->n - 1], n_vocab, err) : RD_OK;
}

rd_status sampler_params_check(const struct sampler_params *p, uint32_t n_vocab, struct rd_error *err)
{
    rd_status st = check_numbers(p, err);

    if (st == RD_OK) st = check_bias(p, n_vocab, err);
    if (st == RD_OK) st = check_words("bad_words", &p->bad_words, n_vocab, err);
    if (st == RD_OK) st = check_words("dry_sequence_breakers", &p->dry_break_words, n_vocab, err);
    if (st != RD_OK) return st;
    if (p->allowed && (p->n_allowed == 0 || p->n_allowed > n_vocab))
        return error_set(err, RD_E_INVALID, "allowed_token_ids: 1 to %u tokens wanted", n_vocab);
    if (p->allowed) st = check_tokens("allowed_token_ids", p->allowed, p->n_allowed, n_vocab, err);
    if (st == RD_OK && p->n_stages > SAMPLER_MAX_STAGES)
        return error_set(err, RD_E_INVALID, "samplers: at most %u", SAMPLER_MAX_STAGES);
    for (uint32_t i = 0; st == RD_OK && p->has_stages && i < p->n_stages; i++)
        if (p->stages[i] >= SAMPLER_N_STAGES) return error_set(err, RD_E_INVALID, "samplers: an unknown stage");
    return st;
}
