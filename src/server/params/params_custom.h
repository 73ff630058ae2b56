/* server/params/params_custom.h - the parameters that are more than a number or a bool: functions of rows of the table in
 * params.c, called once the row's kinds, choices and sizes hold.
 * Thread any thread. Errors -1 with *e filled. */
#pragma once
#include "server/params/params.h"

int param_prompt(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_stop(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_logit_bias(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_processor_kwargs(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_context_shift(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_cache_name(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_lora(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_cache_salt(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_seed(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
/* What would hold the output to a form, which we cannot: ignoring it would answer with what the client must not get. */
/* params_form.c: one form per request, under any of its names. */
int param_form(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_structured_outputs(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_response_format(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
/* params_sampling.c */
int param_samplers(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_dry_breakers(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_bad_words(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_stop_tokens(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_allowed(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_response_fields(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_n_probs(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
/* params_tools.c */
int param_enable_thinking(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_effort(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_thinking(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_reasoning_format(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_suffix(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
