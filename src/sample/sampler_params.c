/* sample/sampler_params.c - what the parameters of a sampler may be. */
#include "base/error.h"
#include "base/limits.h"
#include "sample/sampler.h"

void sampler_params_default(struct sampler_params *p)
{
    *p = (struct sampler_params){.temperature = 1,
                                 .dynatemp_exponent = 1,
                                 .top_p = 1,
                                 .typical_p = 1,
                                 .top_n_sigma = -1,
                                 .xtc_threshold = 0.1f,
                                 .repetition_penalty = 1,
                                 .repeat_last_n = -1,
                                 .dry_base = 1.75f,
                                 .dry_allowed_length = 2,
                                 .dry_last_n = -1,
                                 .mirostat_tau = 5,
                                 .mirostat_eta = 0.1f};
}

static rd_status check_numbers(const struct sampler_params *p, struct rd_error *err)
{
    const struct { const char *name; float value, min, max; } numbers[] = {
        {"temperature", p->temperature, 0, 100},
        {"dynatemp_range", p->dynatemp_range, 0, 100},
        {"dynatemp_exponent", p->dynatemp_exponent, 0, 100},
        {"top_p", p->top_p, 0, 1},
        {"min_p", p->min_p, 0, 1},
        {"typical_p", p->typical_p, 0, 1},
        {"top_n_sigma", p->top_n_sigma, -1, 100},
        {"xtc_probability", p->xtc_probability, 0, 1},
        {"xtc_threshold", p->xtc_threshold, 0, 1},
        {"presence_penalty", p->presence_penalty, -2, 2},
        {"frequency_penalty", p->frequency_penalty, -2, 2},
        {"dry_multiplier", p->dry_multiplier, 0, 100},
        {"dry_base", p->dry_base, 0, 100},
        {"mirostat_tau", p->mirostat_tau, 0, 100},
        {"mirostat_eta", p->mirostat_eta, 0, 1},
    };

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (!(numbers[i].value >= numbers[i].min && numbers[i].value <= numbers[i].max))
            return error_set(err, RD_E_INVALID, "%s: must be within %g and %g", numbers[i].name,
                             (double)numbers[i].min, (double)numbers[i].max);
    if (!(p->repetition_penalty > 0 && p->repetition_penalty <= 100))
        return error_set(err, RD_E_INVALID, "repetition_penalty: must be above 0 and at most 100");
    if (p->dry_allowed_length < 0) return error_set(err, RD_E_INVALID, "dry_allowed_length: must not be negative");
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
