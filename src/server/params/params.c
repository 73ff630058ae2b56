/* server/params/params.c - what the rows of the table do not decide alone. */
#include "server/params/params.h"
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"

static int check_together(struct gen_params *p, struct api_error *e)
{
    if (!p->has_max_tokens) p->max_tokens = p->chat ? -1 : 16;
    if (p->max_tokens >= 0 && p->min_tokens > p->max_tokens)
        return api_error_set(e, 400, "min_tokens", "min_tokens: must not be above max_tokens");
    if (p->sampling.mirostat == 1) return api_error_set(e, 400, "mirostat", "mirostat: must be 0 or 2");
    if (p->has_prompt_logprobs && p->stream)
        return api_error_set(e, 400, "prompt_logprobs", "prompt_logprobs: not with stream");
    if (p->best_of == 0) p->best_of = p->n;
    if (p->best_of < p->n) return api_error_set(e, 400, "best_of", "best_of: must be at least n");
    if (p->best_of > p->n && p->stream)
        return api_error_set(e, 400, "best_of", "best_of: larger than n cannot be streamed");
    if (p->top_logprobs > 0 && !p->logprobs)
        return api_error_set(e, 400, "top_logprobs", "top_logprobs: needs logprobs: true");
    if ((uint64_t)p->n_prompts * (uint64_t)p->best_of > LIMIT_PROMPTS)
        return api_error_set(e, 400, "n", "n: prompts times choices must be at most %u", LIMIT_PROMPTS);
    return 0;
}

void gen_params_init(struct gen_params *p, bool chat)
{
    memset(p, 0, sizeof(*p));
    p->chat = chat;
    rd_sampling_default(&p->sampling);
    p->n = 1;
    p->parallel_tool_calls = p->split_thinking = p->include_reasoning = true;
    p->thinking_tokens = p->n_keep = -1;
    p->cache_prompt = p->speculation = p->replay = p->jump_ahead = true;
    p->parse_special = p->special = true;
}

int gen_params_rendering(const json_t *body, struct gen_params *p, struct api_error *e)
{
    if (param_messages(body, &p->messages, e) || param_prompt_end(body, &p->prompt_end, e)) return -1;
    return param_tools(body, p, e) || param_template_kwargs(body, p, e) ? -1 : 0;
}

int gen_params_finish(const json_t *body, const struct served_model *m, struct gen_params *p, struct api_error *e)
{
    if (param_adapters(body, m, p, e)) return -1;
    if (p->chat && gen_params_rendering(body, p, e)) return -1;
    if (p->chat) (void)params_cache_marks(body, p);
    return check_together(p, e);
}

int gen_params_parse(const json_t *body, const struct served_model *m, bool chat, struct gen_params *p,
                     struct api_error *e)
{
    gen_params_init(p, chat);
    if (params_read(body, chat ? FOR_CHAT : FOR_TEXT, p, e)) return -1;
    return gen_params_finish(body, m, p, e);
}

void gen_params_deinit(struct gen_params *p)
{
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        mem_free(p->prompts[i].text);
        mem_free(p->prompts[i].tokens);
    }
    for (uint32_t i = 0; i < p->n_stop; i++) mem_free(p->stop[i]);
    mem_free(p->prompts);
    mem_free(p->suffix);
    mem_free(p->stop);
    mem_free(p->bias);
    for (uint32_t i = 0; i < p->n_text_bias; i++) mem_free((void *)(uintptr_t)p->text_bias[i].text);
    mem_free(p->text_bias);
    text_list_deinit(&p->dry_breakers);
    text_list_deinit(&p->bad_words);
    text_list_deinit(&p->response_fields);
    mem_free(p->samplers);
    mem_free(p->allowed);
    mem_free(p->stop_tokens);
    mem_free(p->messages);
    mem_free(p->tools);
    mem_free(p->kwargs);
    mem_free(p->forced_tool);
    mem_free(p->grammar);
    mem_free(p->model);
    for (uint32_t i = 0; i < p->n_adapters; i++) mem_free((void *)(uintptr_t)p->adapters[i].name);
    mem_free(p->adapters);
    mem_free(p->lora);
    mem_free(p->cache_salt);
    mem_free(p->cache_key);
    mem_free(p->cache_name);
    mem_free(p->compare_id);
    memset(p, 0, sizeof(*p));
}
