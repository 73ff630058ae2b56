/* server/params.c - the table of request parameters and its interpreter. docs/api.md lists the same rows. */
#include "server/params.h"
#include <math.h>
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"
#include "server/params_custom.h"

#define AT(field)  offsetof(struct gen_params, field)
#define INT_TOP    2147483647.0
#define SEED_TOP   9007199254740991.0    /* 2^53 - 1: what every JSON reader keeps exactly */

static const struct param_spec table[] = {
    /* name, alias, type, endpoints, min, max, default, at, has_at, custom, help */
    {"model", NULL, PARAM_CUSTOM, FOR_BOTH, 0, 0, "the loaded model", 0, 0, param_ignored,
     "another name: 404 model_not_found"},
    {"messages", NULL, PARAM_CUSTOM, FOR_CHAT, 0, 0, "required", 0, 0, param_ignored,
     "list of {role, content, ...}: see Messages"},
    {"add_generation_prompt", NULL, PARAM_CUSTOM, FOR_CHAT, 0, 0, "true, but after an assistant message", 0, 0,
     param_ignored, "false: the prompt ends with the last message"},
    {"continue_final_message", NULL, PARAM_CUSTOM, FOR_CHAT, 0, 0, "true after an assistant message with text", 0, 0,
     param_ignored, "the last message is left open and the answer continues it"},
    {"prompt", NULL, PARAM_CUSTOM, FOR_TEXT, 0, 0, "required", 0, 0, param_prompt,
     "string, list of strings, token ids, or list of lists of token ids"},
    {"stream", NULL, PARAM_BOOL, FOR_BOTH, 0, 0, "false", AT(stream), 0, NULL, "server-sent events"},
    {"stream_options", NULL, PARAM_CUSTOM, FOR_BOTH, 0, 0, "none", 0, 0, param_stream_options, "{include_usage: bool}"},
    {"max_tokens", NULL, PARAM_INT, FOR_BOTH, -1, INT_TOP, "chat: until the context is full; completions: 16",
     AT(max_tokens), AT(has_max_tokens), NULL, "tokens to generate; 0: prefill only; -1: until the context is full"},
    {"max_completion_tokens", "n_predict", PARAM_INT, FOR_BOTH, -1, INT_TOP, "max_tokens", AT(max_tokens),
     AT(has_max_tokens), NULL, "as max_tokens"},
    {"temperature", NULL, PARAM_NUMBER, FOR_BOTH, 0, 100, "1", AT(temperature), 0, NULL, "0: greedy"},
    {"top_p", NULL, PARAM_NUMBER, FOR_BOTH, 0, 1, "1", AT(top_p), 0, NULL, "1: off"},
    {"top_k", NULL, PARAM_INT, FOR_BOTH, -1, INT_TOP, "0", AT(top_k), 0, NULL, "0 or -1: off"},
    {"min_p", NULL, PARAM_NUMBER, FOR_BOTH, 0, 1, "0", AT(min_p), 0, NULL, "0: off"},
    {"repetition_penalty", "repeat_penalty", PARAM_NUMBER, FOR_BOTH, 0.01, 100, "1", AT(repetition_penalty), 0, NULL,
     "1: off"},
    {"presence_penalty", NULL, PARAM_NUMBER, FOR_BOTH, -2, 2, "0", AT(presence_penalty), 0, NULL, "0: off"},
    {"frequency_penalty", NULL, PARAM_NUMBER, FOR_BOTH, -2, 2, "0", AT(frequency_penalty), 0, NULL, "0: off"},
    {"repeat_last_n", NULL, PARAM_INT, FOR_BOTH, -1, INT_TOP, "-1", AT(repeat_last_n), 0, NULL,
     "the three penalties see so many of the last tokens; 0: none; -1: all"},
    {"typical_p", "typ_p", PARAM_NUMBER, FOR_BOTH, 0, 1, "1", AT(typical_p), 0, NULL, "1: off"},
    {"top_n_sigma", NULL, PARAM_NUMBER, FOR_BOTH, -1, 100, "-1", AT(top_n_sigma), 0, NULL, "0 or below: off"},
    {"xtc_probability", NULL, PARAM_NUMBER, FOR_BOTH, 0, 1, "0", AT(xtc_probability), 0, NULL,
     "0: off; how often all tokens above xtc_threshold but the least likely one are left out"},
    {"xtc_threshold", NULL, PARAM_NUMBER, FOR_BOTH, 0, 1, "0.1", AT(xtc_threshold), 0, NULL, "above 0.5: off"},
    {"dynatemp_range", NULL, PARAM_NUMBER, FOR_BOTH, 0, 100, "0", AT(dynatemp_range), 0, NULL,
     "0: off; else the temperature goes from temperature - range to + range with the entropy"},
    {"dynatemp_exponent", NULL, PARAM_NUMBER, FOR_BOTH, 0, 100, "1", AT(dynatemp_exponent), 0, NULL,
     "of the entropy, of dynatemp_range"},
    {"dry_multiplier", NULL, PARAM_NUMBER, FOR_BOTH, 0, 100, "0", AT(dry_multiplier), 0, NULL,
     "0: off; a token that lengthens a repetition loses multiplier * base ^ (length - allowed_length)"},
    {"dry_base", NULL, PARAM_NUMBER, FOR_BOTH, 0, 100, "1.75", AT(dry_base), 0, NULL, "below 1: off"},
    {"dry_allowed_length", NULL, PARAM_INT, FOR_BOTH, 0, INT_TOP, "2", AT(dry_allowed_length), 0, NULL,
     "repetitions up to so many tokens are free"},
    {"dry_penalty_last_n", NULL, PARAM_INT, FOR_BOTH, -1, INT_TOP, "-1", AT(dry_last_n), 0, NULL,
     "repetitions are looked for in so many of the last tokens; 0: off; -1: all"},
    {"dry_sequence_breakers", NULL, PARAM_CUSTOM, FOR_BOTH, 0, 0, "[\"\\n\", \":\", \"\\\"\", \"*\"]", 0, 0,
     param_dry_breakers, "list of at most 64 texts that no repetition reaches over"},
    {"mirostat", NULL, PARAM_INT, FOR_BOTH, 0, 2, "0", AT(mirostat), 0, NULL, "0: off; 2: in place of all cuts"},
    {"mirostat_tau", NULL, PARAM_NUMBER, FOR_BOTH, 0, 100, "5", AT(mirostat_tau), 0, NULL, "surprise wanted, in bits"},
    {"mirostat_eta", NULL, PARAM_NUMBER, FOR_BOTH, 0, 1, "0.1", AT(mirostat_eta), 0, NULL, "rate of learning"},
    {"samplers", NULL, PARAM_CUSTOM, FOR_BOTH, 0, 0,
     "penalties, dry, temperature, top_n_sigma, top_k, typ_p, top_p, min_p, xtc", 0, 0, param_samplers,
     "the stages in their order: list of names, or their letters as a string (edtskypmx); the others do nothing"},
    {"logit_bias", NULL, PARAM_CUSTOM, FOR_BOTH, -100, 100, "none", 0, 0, param_logit_bias,
     "{\"token id or text\": bias} or [[token id or text, bias or false]], at most 4096 entries"},
    {"allowed_token_ids", NULL, PARAM_CUSTOM, FOR_BOTH, 0, 0, "all", 0, 0, param_allowed,
     "only these tokens are drawn"},
    {"bad_words", NULL, PARAM_CUSTOM, FOR_BOTH, 0, 0, "none", 0, 0, param_bad_words,
     "list of at most 1024 texts whose tokens are not written one after the other"},
    {"min_tokens", "min_new_tokens", PARAM_INT, FOR_BOTH, 0, INT_TOP, "0", AT(min_tokens), 0, NULL,
     "neither end tokens nor stop strings or tokens end the text before so many tokens"},
    {"stop_token_ids", NULL, PARAM_CUSTOM, FOR_BOTH, 0, 0, "none", 0, 0, param_stop_tokens,
     "list of at most 1024 token ids that end the text, also with ignore_eos"},
    {"include_stop_str_in_output", "no_stop_trim", PARAM_BOOL, FOR_BOTH, 0, 0, "false", AT(include_stop), 0, NULL,
     "the stop string, or the text of the stop token, is part of the output"},
    {"prompt_logprobs", NULL, PARAM_INT, FOR_BOTH, 0, LIMIT_TOP_LOGPROBS, "none", AT(prompt_logprobs),
     AT(has_prompt_logprobs), NULL,
     "log probabilities of the prompt's tokens with so many alternatives; computes the whole prompt; not with stream"},
    {"n_probs", NULL, PARAM_CUSTOM, FOR_BOTH, 0, LIMIT_TOP_LOGPROBS, "0", 0, 0, param_n_probs,
     "as logprobs with so many alternatives; 0: none"},
    {"seed", NULL, PARAM_INT, FOR_BOTH, -SEED_TOP, SEED_TOP, "random", AT(seed), AT(has_seed), NULL,
     "the same seed gives the same text"},
    {"stop", NULL, PARAM_CUSTOM, FOR_BOTH, 0, 0, "none", 0, 0, param_stop,
     "string or list of at most 64; not part of the output but with include_stop_str_in_output"},
    {"ignore_eos", NULL, PARAM_BOOL, FOR_BOTH, 0, 0, "false", AT(ignore_eos), 0, NULL, "end tokens are never drawn"},
    {"cache_prompt", NULL, PARAM_BOOL, FOR_BOTH, 0, 0, "true", AT(cache_prompt), 0, NULL,
     "false: neither uses nor fills the cache"},
    {"speculation", NULL, PARAM_BOOL, FOR_BOTH, 0, 0, "true", AT(speculation), 0, NULL,
     "false: no drafts from earlier text; the output is the same"},
    {"n", NULL, PARAM_INT, FOR_BOTH, 1, LIMIT_N_CHOICES, "1", AT(n), 0, NULL, "choices per prompt"},
    {"best_of", NULL, PARAM_INT, FOR_TEXT, 1, LIMIT_N_CHOICES, "n", AT(best_of), 0, NULL,
     "generates so many and returns the n most likely per token; not with stream"},
    {"echo", NULL, PARAM_BOOL, FOR_TEXT, 0, 0, "false", AT(echo), 0, NULL,
     "the prompt is part of the text and of the logprobs"},
    {"logprobs", NULL, PARAM_BOOL, FOR_CHAT, 0, 0, "false", AT(logprobs), 0, NULL,
     "log probabilities of the output tokens"},
    {"top_logprobs", NULL, PARAM_INT, FOR_CHAT, 0, LIMIT_TOP_LOGPROBS, "0", AT(top_logprobs), 0, NULL,
     "alternatives per token; needs logprobs"},
    {"logprobs", NULL, PARAM_INT, FOR_TEXT, 0, LIMIT_TOP_LOGPROBS, "none", AT(top_logprobs), AT(logprobs), NULL,
     "log probabilities with so many alternatives"},
    {"tools", NULL, PARAM_CUSTOM, FOR_CHAT, 0, 0, "none", 0, 0, param_ignored,
     "functions that the model may call (not with tool_choice \"none\"); others are skipped"},
    {"tool_choice", NULL, PARAM_CUSTOM, FOR_CHAT, 0, 0, "\"auto\"", 0, 0, param_ignored,
     "none, auto, required, or {type: function, function: {name}}"},
    {"parallel_tool_calls", NULL, PARAM_BOOL, FOR_CHAT, 0, 0, "true", AT(parallel_tool_calls), 0, NULL,
     "false: the answer ends with its first call"},
    {"enable_thinking", NULL, PARAM_CUSTOM, FOR_CHAT, 0, 0, "the template's", 0, 0, param_enable_thinking,
     "thinking on or off, for models that can"},
    {"thinking", NULL, PARAM_CUSTOM, FOR_CHAT, 0, 0, "the template's", 0, 0, param_thinking,
     "{type: enabled, disabled or adaptive, budget_tokens}, or a bool"},
    {"reasoning", NULL, PARAM_CUSTOM, FOR_CHAT, 0, 0, "the template's", 0, 0, param_reasoning,
     "{effort, enabled, max_tokens}"},
    {"reasoning_effort", NULL, PARAM_CUSTOM, FOR_CHAT, 0, 0, "the template's", 0, 0, param_effort,
     "none turns thinking off; minimal, low, medium, high, xhigh, max reach the template"},
    {"thinking_budget", "thinking_token_budget", PARAM_INT, FOR_CHAT, -1, INT_TOP, "-1", AT(thinking_tokens), 0, NULL,
     "tokens of thinking; then it is closed and the answer begins; 0: none; -1: no limit"},
    {"reasoning_budget", "reasoning_budget_tokens", PARAM_INT, FOR_CHAT, -1, INT_TOP, "-1", AT(thinking_tokens), 0,
     NULL, "as thinking_budget"},
    {"reasoning_format", NULL, PARAM_CUSTOM, FOR_CHAT, 0, 0, "\"auto\"", 0, 0, param_reasoning_format,
     "none: thinking stays in the content; auto: in reasoning_content and reasoning"},
    {"separate_reasoning", NULL, PARAM_BOOL, FOR_CHAT, 0, 0, "true", AT(split_thinking), 0, NULL,
     "false: as reasoning_format none"},
    {"include_reasoning", NULL, PARAM_BOOL, FOR_CHAT, 0, 0, "true", AT(include_reasoning), 0, NULL,
     "false: the thinking is not sent"},
    {"chat_template_kwargs", NULL, PARAM_CUSTOM, FOR_CHAT, 0, 0, "none", 0, 0, param_ignored,
     "object of variables for the chat template"},
    {"response_format", NULL, PARAM_CUSTOM, FOR_BOTH, 0, 0, "{\"type\":\"text\"}", 0, 0, param_response_format,
     "only type text"},
    {"suffix", NULL, PARAM_CUSTOM, FOR_TEXT, 0, 0, "none", 0, 0, param_suffix, "not supported: 400 unless empty"},
};

const struct param_spec *param_table(size_t *n)
{
    *n = sizeof(table) / sizeof(table[0]);
    return table;
}

static int wrong_type(const char *name, const char *wanted, const json_t *v, struct api_error *e)
{
    static const char *const names[] = {"an object", "a list", "a string", "an integer",
                                        "a number",  "true",   "false",    "null"};

    return api_error_set(e, 400, name, "%s: %s wanted, found %s", name, wanted, names[json_typeof(v)]);
}

static int out_of_range(const struct param_spec *s, const char *name, struct api_error *e)
{
    return api_error_set(e, 400, name, "%s: must be within %.10g and %.10g", name, s->min, s->max);
}

static int set_number(const struct param_spec *s, const char *name, const json_t *v, void *at, struct api_error *e)
{
    double x;

    if (!json_is_number(v)) return wrong_type(name, "a number", v, e);
    x = json_number_value(v);
    if (!(x >= s->min && x <= s->max)) return out_of_range(s, name, e);
    memcpy(at, &x, sizeof(x));
    return 0;
}

static int set_int(const struct param_spec *s, const char *name, const json_t *v, void *at, struct api_error *e)
{
    double x;
    int64_t i;

    if (!json_is_number(v)) return wrong_type(name, "an integer", v, e);
    x = json_number_value(v);
    if (!(x >= s->min && x <= s->max)) return out_of_range(s, name, e);
    if (x != floor(x)) return wrong_type(name, "an integer", v, e);
    i = json_is_integer(v) ? (int64_t)json_integer_value(v) : (int64_t)x;
    memcpy(at, &i, sizeof(i));
    return 0;
}

static int set_bool(const char *name, const json_t *v, void *at, struct api_error *e)
{
    bool b = json_is_true(v);

    if (!json_is_boolean(v)) return wrong_type(name, "true or false", v, e);
    memcpy(at, &b, sizeof(b));
    return 0;
}

static int apply(const struct param_spec *s, const char *name, const json_t *v, struct gen_params *p,
                 struct api_error *e)
{
    char *at = (char *)p + s->offset;
    bool given = true;
    int rc = 0;

    switch (s->type) {
    case PARAM_NUMBER: rc = set_number(s, name, v, at, e); break;
    case PARAM_INT: rc = set_int(s, name, v, at, e); break;
    case PARAM_BOOL: rc = set_bool(name, v, at, e); break;
    case PARAM_CUSTOM: rc = s->custom(name, v, p, e); break;
    }
    if (rc == 0 && s->has_offset) memcpy((char *)p + s->has_offset, &given, sizeof(given));
    return rc;
}

static int check_together(struct gen_params *p, struct api_error *e)
{
    if (!p->has_max_tokens) p->max_tokens = p->chat ? -1 : 16;
    if (p->max_tokens >= 0 && p->min_tokens > p->max_tokens)
        return api_error_set(e, 400, "min_tokens", "min_tokens: must not be above max_tokens");
    if (p->mirostat == 1) return api_error_set(e, 400, "mirostat", "mirostat: must be 0 or 2");
    if (p->has_prompt_logprobs && p->stream)
        return api_error_set(e, 400, "prompt_logprobs", "prompt_logprobs: not with stream");
    if (p->best_of == 0) p->best_of = p->n;
    if (p->best_of < p->n) return api_error_set(e, 400, "best_of", "best_of: must be at least n");
    if (p->best_of > p->n && p->stream)
        return api_error_set(e, 400, "best_of", "best_of: larger than n cannot be streamed");
    if (p->top_logprobs > 0 && !p->logprobs)
        return api_error_set(e, 400, "top_logprobs", "top_logprobs: needs logprobs: true");
    if (!p->chat && p->n_prompts == 0) return api_error_set(e, 400, "prompt", "prompt: missing");
    if ((uint64_t)p->n_prompts * (uint64_t)p->best_of > LIMIT_PROMPTS)
        return api_error_set(e, 400, "n", "n: prompts times choices must be at most %u", LIMIT_PROMPTS);
    return 0;
}

int gen_params_parse(const json_t *body, const struct rd_info *info, bool chat, struct gen_params *p,
                     struct api_error *e)
{
    memset(p, 0, sizeof(*p));
    p->chat = chat;
    p->temperature = p->top_p = p->repetition_penalty = 1;
    p->n = 1;
    p->parallel_tool_calls = p->split_thinking = p->include_reasoning = true;
    p->thinking_tokens = -1;
    p->typical_p = p->dynatemp_exponent = 1;
    p->top_n_sigma = p->repeat_last_n = p->dry_last_n = -1;
    p->xtc_threshold = p->mirostat_eta = 0.1;
    p->dry_base = 1.75;
    p->dry_allowed_length = 2;
    p->mirostat_tau = 5;
    p->cache_prompt = p->speculation = true;
    if (param_check_model(body, info, e)) return -1;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const struct param_spec *s = &table[i];
        const char *names[] = {s->name, s->alias};

        if (!(s->endpoints & (chat ? FOR_CHAT : FOR_TEXT))) continue;
        for (size_t k = 0; k < 2; k++) {
            const json_t *v = names[k] ? json_object_get(body, names[k]) : NULL;

            if (v && !json_is_null(v) && apply(s, names[k], v, p, e)) return -1;
        }
    }
    if (chat && (param_messages(body, &p->messages, e) || param_prompt_end(body, &p->prompt_end, e))) return -1;
    if (chat && (param_tools(body, p, e) || param_template_kwargs(body, p, e))) return -1;
    return check_together(p, e);
}

void gen_params_deinit(struct gen_params *p)
{
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        mem_free(p->prompts[i].text);
        mem_free(p->prompts[i].tokens);
    }
    for (uint32_t i = 0; i < p->n_stop; i++) mem_free(p->stop[i]);
    mem_free(p->prompts);
    mem_free(p->stop);
    mem_free(p->bias);
    for (uint32_t i = 0; i < p->n_text_bias; i++) mem_free((void *)(uintptr_t)p->text_bias[i].text);
    mem_free(p->text_bias);
    text_list_deinit(&p->dry_breakers);
    text_list_deinit(&p->bad_words);
    mem_free(p->samplers);
    mem_free(p->allowed);
    mem_free(p->stop_tokens);
    mem_free(p->messages);
    mem_free(p->tools);
    mem_free(p->kwargs);
    mem_free(p->forced_tool);
    memset(p, 0, sizeof(*p));
}
