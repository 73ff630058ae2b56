/* server/params.h - the one table of request parameters: it drives parsing, validation and the documentation.
 *
 * A field that no row names is ignored; null means absent. Rows of type CUSTOM have a function of their own.
 * Thread  any thread.
 * Errors  -1 with *e filled (400, param = the field's name as the client wrote it).
 */
#pragma once
#include <jansson.h>
#include "radish/radish.h"
#include "server/errors.h"

enum endpoint_bits { FOR_CHAT = 1, FOR_TEXT = 2, FOR_BOTH = 3 };
enum param_type { PARAM_NUMBER, PARAM_INT, PARAM_BOOL, PARAM_CUSTOM };

struct prompt {                          /* one of text, tokens; or messages */
    char *text;
    size_t n_text;
    int32_t *tokens;
    uint32_t n_tokens;
};

struct text_list { char **items; uint32_t n; };      /* items NULL: not given */

struct gen_params {
    bool chat;
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, max_tokens, n, best_of, top_logprobs, seed;
    bool has_max_tokens, has_seed, stream, include_usage, ignore_eos, cache_prompt, speculation, echo, logprobs;
    char *messages, *tools, *kwargs;     /* JSON text */
    enum rd_prompt_end prompt_end;
    char *forced_tool;                   /* tool_choice: a name, "" for any, or NULL */
    bool parallel_tool_calls, split_thinking, include_reasoning;
    enum { THINKING_DEFAULT, THINKING_ON, THINKING_OFF } thinking;
    const char *effort;                  /* reasoning_effort or NULL; a constant */
    int64_t thinking_tokens;             /* -1: no limit */
    struct prompt *prompts;              /* completions */
    uint32_t n_prompts;
    char **stop;
    uint32_t n_stop;
    struct rd_bias *bias;
    uint32_t n_bias;
    double typical_p, top_n_sigma, xtc_probability, xtc_threshold, dynatemp_range, dynatemp_exponent;
    double dry_multiplier, dry_base, mirostat_tau, mirostat_eta;
    int64_t repeat_last_n, dry_allowed_length, dry_last_n, mirostat, min_tokens;
    struct text_list dry_breakers, bad_words;
    char *samplers;
    struct rd_text_bias *text_bias;      /* its texts are ours */
    int32_t *allowed, *stop_tokens;
    uint32_t n_text_bias, n_allowed, n_stop_tokens;
    bool include_stop, has_prompt_logprobs;
    int64_t prompt_logprobs;             /* alternatives per token of the prompt, with has_prompt_logprobs */
};

struct param_spec {
    const char *name, *alias;
    enum param_type type;
    unsigned endpoints;
    double min, max;
    const char *fallback;                /* as documented */
    size_t offset;                       /* into gen_params: double, int64_t or bool by type */
    size_t has_offset;                   /* of a bool that says it was given; 0: none */
    int (*custom)(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
    const char *help;
};

const struct param_spec *param_table(size_t *n);

/* A body's JSON: an object, UTF-8, no duplicate keys, no trailing bytes, depth within LIMIT_JSON_DEPTH. */
int json_body_parse(const struct buf *body, json_t **out, struct api_error *e);
/* Fills *p (from zero) with defaults and the body's fields. gen_params_deinit in any case. */
int gen_params_parse(const json_t *body, const struct rd_info *info, bool chat, struct gen_params *p,
                     struct api_error *e);
void gen_params_deinit(struct gen_params *p);
void text_list_deinit(struct text_list *list);

/* 404 model_not_found unless absent, empty or this server's. */
int param_check_model(const json_t *body, const struct rd_info *info, struct api_error *e);
/* messages: checked, as JSON text (mem_free). */
int param_messages(const json_t *body, char **messages, struct api_error *e);
/* add_generation_prompt and continue_final_message. */
int param_prompt_end(const json_t *body, enum rd_prompt_end *end, struct api_error *e);
/* tools and tool_choice to p->tools, p->forced_tool; after the table: chat_template_kwargs with what the thinking
 * parameters add to p->kwargs. */
int param_tools(const json_t *body, struct gen_params *p, struct api_error *e);
int param_template_kwargs(const json_t *body, struct gen_params *p, struct api_error *e);
/* A list of token ids; *tokens is mem_free'd by the caller. Does not look at the vocabulary. */
int param_tokens(const char *name, const json_t *v, int32_t **tokens, uint32_t *n, struct api_error *e);
/* An optional bool. */
int param_bool(const json_t *body, const char *name, bool *value, struct api_error *e);
