/* server/params/params.c - the table of request parameters, and what its rows do not decide alone. */
#include "server/params/params.h"
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"
#include "server/params/params_custom.h"
#include "server/params/params_retention.h"

#define AT(field)  offsetof(struct gen_params, field)
#define INT_TOP    2147483647.0
#define SEED_TOP   9223372036854775808.0 /* 2^63: every 64-bit integer */
#define FOR_OPENAI (FOR_TEMPLATES | FOR_RESPONSES)     /* what their templates share */
#define EFFORTS    "none|minimal|low|medium|high|xhigh|max"

/* What a row's value may be and where it goes. READ_LATER: it is checked here and read elsewhere. */
#define NUMBER(field, low, high)  .type = PARAM_NUMBER, .offset = AT(field), .min = low, .max = high
#define INTEGER(field, low, high) .type = PARAM_INT, .offset = AT(field), .min = low, .max = high
#define SAMPLING(kind, field, name, other, fallback, low, high, text)                                                  \
    {name,       FOR_GENERATION, #fallback,     text, .type = PARAM_##kind, .offset = AT(sampling.field),              \
     .min = low, .max = high,    .alias = other},
#define BOOL(field)               .type = PARAM_BOOL, .offset = AT(field)
#define JSON(which, function)     .type = PARAM_CUSTOM, .kinds = which, .custom = function
#define INTEGER_READ_LATER(low, high) .type = PARAM_INT, .min = low, .max = high
#define NUMBER_READ_LATER(low, high)  .type = PARAM_NUMBER, .min = low, .max = high
#define BOOL_READ_LATER           .type = PARAM_BOOL

static const struct param_spec table[] = {
    /* name, endpoints, default, meaning, what it may be and where it goes; then by name: struct param_spec */
    {"model", FOR_ANY & ~FOR_DETOKENIZE, "the loaded model", "another name: 404 model_not_found",
     JSON(KIND_STRING, NULL)},

    /* ---- the prompt ---- */
    {"messages", FOR_TEMPLATES, "required", "{role, content, ...}: see Messages", JSON(KIND_LIST, NULL),
     .items = KIND_OBJECT, .n_min = 1, .n_max = LIMIT_MESSAGES, .required = FOR_CHAT | FOR_TEMPLATE},
    {"messages", FOR_MESSAGES | FOR_COUNT, "required", "{role, content}, content a string or blocks",
     JSON(KIND_LIST, NULL), .items = KIND_OBJECT, .n_min = 1, .n_max = LIMIT_MESSAGES,
     .required = FOR_MESSAGES | FOR_COUNT},
    {"system", FOR_MESSAGES | FOR_COUNT, "none", "text, or blocks of type text", JSON(KIND_STRING | KIND_LIST, NULL),
     .items = KIND_OBJECT, .is_text = true},
    {"input", FOR_RESPONSES, "required", "a string, or a list of items: see responses.md",
     JSON(KIND_STRING | KIND_LIST, NULL), .items = KIND_OBJECT, .n_min = 1, .n_max = LIMIT_MESSAGES,
     .required = FOR_RESPONSES, .is_text = true},
    {"instructions", FOR_RESPONSES, "none", "a system message before everything", JSON(KIND_STRING, NULL),
     .is_text = true},
    {"previous_response_id", FOR_RESPONSES, "none", "an answer in the store that this one goes on from",
     JSON(KIND_STRING, NULL)},
    {"add_generation_prompt", FOR_TEMPLATES, "true, but after an assistant message",
     "false: the prompt ends with the last message", BOOL_READ_LATER},
    {"continue_final_message", FOR_TEMPLATES, "true after an assistant message with text",
     "the last message is left open and the answer continues it", BOOL_READ_LATER},
    {"prompt", FOR_TEXT, "required", "string, list of strings, token ids, or list of lists of token ids",
     JSON(KIND_STRING | KIND_LIST, param_prompt), .items = KIND_STRING | KIND_INT | KIND_LIST, .n_min = 1,
     .required = FOR_TEXT, .is_text = true},
    {"content", FOR_TOKENIZE, "this, prompt or messages", "the text, as llama-server has it", JSON(KIND_STRING, NULL),
     .is_text = true},
    {"prompt", FOR_TOKENIZE, "this, content or messages", "the text, as vLLM has it", JSON(KIND_STRING, NULL),
     .is_text = true},
    {"tokens", FOR_DETOKENIZE, "required", "token ids", JSON(KIND_LIST, NULL), .items = KIND_INT,
     .required = FOR_DETOKENIZE},
    {"add_special", FOR_TOKENIZE, "true with prompt, else false",
     "the tokens that the model wants around a text, such as BOS", BOOL(add_special), .has_offset = AT(has_add_special),
     .alias = "add_special_tokens"},
    {"parse_special", FOR_TOKENIZE, "true", "special tokens written in the text become those tokens",
     BOOL(parse_special)},
    {"with_pieces", FOR_TOKENIZE, "false", "tokens are {id, piece}", BOOL(with_pieces)},
    {"return_token_strs", FOR_TOKENIZE, "false", "also a list of the tokens' texts", BOOL(with_strings)},
    {"special", FOR_DETOKENIZE, "true", "false: special tokens have no text", BOOL(special)},
    {"prompt", FOR_OLLAMA_GENERATE, "\"\"",
     "the user's message; with raw or suffix the text itself; empty: the model is loaded", JSON(KIND_STRING, NULL),
     .is_text = true},
    {"messages", FOR_OLLAMA_CHAT, "[]", "{role, content, thinking, tool_calls, tool_name}; none: the model is loaded",
     JSON(KIND_LIST, NULL), .items = KIND_OBJECT, .n_max = LIMIT_MESSAGES},
    {"system", FOR_OLLAMA_GENERATE, "none", "a system message before the prompt", JSON(KIND_STRING, NULL),
     .is_text = true},
    {"raw", FOR_OLLAMA_GENERATE, "false", "the prompt is the text as it shall be, without a chat template",
     BOOL_READ_LATER},
    {"template", FOR_OLLAMA_GENERATE, "none", "400 unless empty", JSON(KIND_STRING, NULL)},
    {"suffix", FOR_OLLAMA_GENERATE, "none", "text behind the gap to fill, for models with tokens for that",
     JSON(KIND_STRING, NULL), .is_text = true},
    {"images", FOR_OLLAMA_GENERATE, "none", "400 unless empty", JSON(KIND_LIST, NULL), .items = KIND_STRING},
    {"context", FOR_OLLAMA_GENERATE, "none", "400 unless empty", JSON(KIND_LIST, NULL), .items = KIND_INT},
    {"input", FOR_EMBEDDINGS | FOR_OLLAMA_EMBED, "required",
     "string, list of strings, token ids, or list of lists of token ids", JSON(KIND_STRING | KIND_LIST, NULL),
     .items = KIND_STRING | KIND_INT | KIND_LIST, .n_min = 1, .required = FOR_EMBEDDINGS | FOR_OLLAMA_EMBED,
     .is_text = true},
    {"input", FOR_CLASSIFY, "this, prompt or messages", "as for embeddings", JSON(KIND_STRING | KIND_LIST, NULL),
     .items = KIND_STRING | KIND_INT | KIND_LIST, .n_min = 1, .alias = "prompt", .is_text = true},
    {"query", FOR_RERANK, "required", "what is looked for", JSON(KIND_STRING, NULL), .required = FOR_RERANK,
     .is_text = true},
    {"documents", FOR_RERANK, "required", "strings, or objects with text", JSON(KIND_LIST, NULL),
     .items = KIND_STRING | KIND_OBJECT, .n_min = 1, .n_max = LIMIT_PROMPTS - 1, .required = FOR_RERANK,
     .is_text = true},
    {"instruction", FOR_RERANK, "that of web search", "what the query is for; only rerankers read it",
     JSON(KIND_STRING, NULL), .is_text = true},
    {"labels", FOR_CLASSIFY, "this or label_token_ids", "texts, token ids, or lists of token ids",
     JSON(KIND_LIST, NULL), .items = KIND_STRING | KIND_INT | KIND_LIST, .n_min = 1, .n_max = LIMIT_LABELS,
     .alias = "label_token_ids", .is_text = true},
    {"encoding_format", FOR_EMBEDDINGS, "float", "base64: of little-endian 32-bit floats", JSON(KIND_STRING, NULL),
     .choices = "float|base64"},
    {"dimensions", FOR_EMBEDDINGS | FOR_OLLAMA_EMBED, "the model's", "keeps this many values, scaled to length 1 again",
     INTEGER_READ_LATER(1, LIMIT_HIDDEN)},
    {"truncate", FOR_EMBEDDINGS, "false", "inputs that are longer than the context lose their end", BOOL_READ_LATER},
    {"truncate", FOR_OLLAMA_EMBED, "true", "inputs that are longer than the context lose their end", BOOL_READ_LATER},
    {"top_n", FOR_RERANK, "all", "how many results to return", INTEGER_READ_LATER(1, INT_TOP)},
    {"return_documents", FOR_RERANK, "false", "results hold their document", BOOL_READ_LATER},
    {"suffix", FOR_TEXT, "none", "text behind the gap to fill, for models with tokens for that",
     JSON(KIND_STRING, param_suffix), .is_text = true},

    /* ---- the answer ---- */
    {"stream", FOR_GENERATION, "false", "server-sent events", BOOL(stream)},
    {"stream_options", FOR_BOTH, "none", "{include_usage}", JSON(KIND_OBJECT, NULL)},
    {"stream_options.include_usage", FOR_BOTH, "false", "a last chunk with the usage", BOOL(include_usage)},
    {"return_progress", FOR_BOTH, "false",
     "chunks with prompt_progress {total, cache, processed, time_ms} while the "
     "prompt is computed",
     BOOL(return_progress)},
    {"sse_ping_interval", FOR_GENERATION, "--sse-ping",
     "seconds of silence after which a stream sends a comment; 0 or -1: never", INTEGER(ping_s, -1, 3600),
     .has_offset = AT(has_ping)},
    {"max_tokens", FOR_BOTH, "chat: until the context is full; completions: 16",
     "tokens to generate; 0: prefill only; -1: until the context is full", INTEGER(max_tokens, -1, INT_TOP),
     .has_offset = AT(has_max_tokens)},
    {"max_tokens", FOR_MESSAGES | FOR_COUNT, "none", "tokens to generate", INTEGER_READ_LATER(0, INT_TOP),
     .required = FOR_MESSAGES},
    {"max_output_tokens", FOR_RESPONSES, "until the context is full", "tokens to generate; 0: prefill only",
     INTEGER_READ_LATER(0, INT_TOP)},
    {"max_completion_tokens", FOR_BOTH, "max_tokens", "as max_tokens", INTEGER(max_tokens, -1, INT_TOP),
     .has_offset = AT(has_max_tokens), .alias = "n_predict"},
    {"stop", FOR_BOTH, "none",
     "string or list of at most 64; not part of the output but with include_stop_str_in_output",
     JSON(KIND_STRING | KIND_LIST, param_stop), .items = KIND_STRING, .n_max = LIMIT_STOP_STRINGS},
    {"stop_sequences", FOR_MESSAGES, "none", "at most 64; not part of the output", JSON(KIND_LIST, NULL),
     .items = KIND_STRING, .n_max = LIMIT_STOP_STRINGS},
    {"stop_token_ids", FOR_GENERATION, "none", "token ids that end the text, also with ignore_eos",
     JSON(KIND_LIST, param_stop_tokens), .items = KIND_INT, .n_max = LIMIT_STOP_TOKENS},
    {"include_stop_str_in_output", FOR_GENERATION, "false",
     "the stop string, or the text of the stop token, is part of the output", BOOL(include_stop),
     .alias = "no_stop_trim"},
    {"min_tokens", FOR_GENERATION, "0",
     "the text does not end, by an end token or a stop string, before it has this many tokens",
     INTEGER(min_tokens, 0, INT_TOP), .alias = "min_new_tokens"},
    {"ignore_eos", FOR_GENERATION, "false", "end tokens are never drawn", BOOL(ignore_eos)},
    {"n", FOR_BOTH, "1", "choices per prompt", INTEGER(n, 1, LIMIT_N_CHOICES)},
    {"best_of", FOR_TEXT, "n", "how many to generate; the n most likely per token are returned; not with stream",
     INTEGER(best_of, 1, LIMIT_N_CHOICES)},
    {"echo", FOR_TEXT, "false", "the prompt is part of the text and of the logprobs", BOOL(echo)},
    {"logprobs", FOR_CHAT, "false", "log probabilities of the output tokens", BOOL(logprobs)},
    {"top_logprobs", FOR_CHAT, "0", "alternatives per token; needs logprobs",
     INTEGER(top_logprobs, 0, LIMIT_TOP_LOGPROBS)},
    {"logprobs", FOR_TEXT, "none", "log probabilities, with this many alternatives",
     INTEGER(top_logprobs, 0, LIMIT_TOP_LOGPROBS), .has_offset = AT(logprobs)},
    {"n_probs", FOR_BOTH, "0", "as logprobs, with this many alternatives; 0: none", JSON(KIND_INT, param_n_probs),
     .max = LIMIT_TOP_LOGPROBS},
    {"prompt_logprobs", FOR_BOTH, "none",
     "log probabilities of the prompt's tokens, with alternatives; computes the whole prompt; not with stream",
     INTEGER(prompt_logprobs, 0, LIMIT_TOP_LOGPROBS), .has_offset = AT(has_prompt_logprobs)},
    {"return_token_ids", FOR_BOTH, "false", "token_ids of each choice, and prompt_token_ids", BOOL(return_token_ids)},
    {"response_format", FOR_BOTH, "{\"type\":\"text\"}",
     "{type: text, json_object, json_schema (with json_schema.schema), structural_tag, regex, grammar or choice}: the "
     "output is of this form, see docs/structured-output.md; one form per request",
     JSON(KIND_OBJECT, param_response_format)},
    {"json_schema", FOR_GENERATION, "none", "the output is JSON that this schema accepts",
     JSON(KIND_OBJECT | KIND_STRING, param_form)},
    {"guided_json", FOR_GENERATION, "none", "as json_schema", JSON(KIND_OBJECT | KIND_STRING, param_form)},
    {"regex", FOR_GENERATION, "none", "the whole output matches it", JSON(KIND_STRING, param_form)},
    {"guided_regex", FOR_GENERATION, "none", "as regex", JSON(KIND_STRING, param_form)},
    {"choice", FOR_GENERATION, "none", "the output is one of these", JSON(KIND_LIST, param_form), .items = KIND_STRING},
    {"guided_choice", FOR_GENERATION, "none", "as choice", JSON(KIND_LIST, param_form), .items = KIND_STRING},
    {"grammar", FOR_GENERATION, "none", "a grammar in llama.cpp's GBNF", JSON(KIND_STRING, param_form)},
    {"ebnf", FOR_GENERATION, "none", "a grammar in XGrammar's EBNF or in Lark's syntax", JSON(KIND_STRING, param_form)},
    {"guided_grammar", FOR_GENERATION, "none", "as ebnf", JSON(KIND_STRING, param_form)},
    {"structural_tag", FOR_GENERATION, "none", "XGrammar's structural tags", JSON(KIND_OBJECT | KIND_STRING, param_form)},
    {"structured_outputs", FOR_GENERATION, "none", "{json, regex, choice, grammar, json_object, structural_tag}: one of them",
     JSON(KIND_OBJECT, param_structured_outputs)},
    {"jump_ahead", FOR_GENERATION, "true", "false: what a form leaves no choice about is asked of the model, too",
     BOOL(jump_ahead)},

    {"text", FOR_RESPONSES, "{\"format\":{\"type\":\"text\"}}", "{format, verbosity}", JSON(KIND_OBJECT, NULL)},
    {"text.format", FOR_RESPONSES, "{\"type\":\"text\"}", "as response_format", JSON(KIND_OBJECT, NULL)},
    {"text.verbosity", FOR_RESPONSES, "none", "has no effect", JSON(KIND_STRING, NULL)},
    {"store", FOR_RESPONSES, "true", "the answer is kept, can be asked for and gone on from", BOOL_READ_LATER},
    {"background", FOR_RESPONSES, "false", "the answer is made without its client; needs store", BOOL_READ_LATER},

    /* ---- sampling ---- */
    RD_SAMPLING_NUMBERS(SAMPLING){"dry_sequence_breakers", FOR_GENERATION, "[\"\\n\", \":\", \"\\\"\", \"*\"]",
                                  "texts that no repetition reaches over", JSON(KIND_LIST, param_dry_breakers),
                                  .items = KIND_STRING, .n_max = LIMIT_DRY_BREAKERS},
    {"samplers", FOR_GENERATION, "penalties, dry, temperature, top_n_sigma, top_k, typ_p, top_p, min_p, xtc",
     "the stages in their order: list of names, or their letters as a string (edtskypmx); the others do nothing",
     JSON(KIND_STRING | KIND_LIST, param_samplers), .items = KIND_STRING},
    {"logit_bias", FOR_GENERATION, "none",
     "{\"token id or text\": bias} or [[token id or text, bias or false]], biases within -100 and 100",
     JSON(KIND_OBJECT | KIND_LIST, param_logit_bias), .items = KIND_LIST, .n_max = LIMIT_LOGIT_BIAS},
    {"allowed_token_ids", FOR_GENERATION, "all", "only these tokens are drawn", JSON(KIND_LIST, param_allowed),
     .items = KIND_INT, .n_min = 1, .n_max = LIMIT_VOCAB},
    {"bad_words", FOR_GENERATION, "none", "texts whose tokens are not written one after the other",
     JSON(KIND_LIST, param_bad_words), .items = KIND_STRING, .n_max = LIMIT_BAD_WORDS},
    {"seed", FOR_GENERATION, "random",
     "the same seed gives the same text, whatever else runs and whatever is cached; -1: random",
     INTEGER(seed, -SEED_TOP, SEED_TOP), .custom = param_seed},

    /* ---- the engine ---- */
    {"cache_prompt", FOR_GENERATION, "true", "false: neither uses nor fills the cache", BOOL(cache_prompt)},
    {"cache_salt", FOR_GENERATION, "none",
     "what is stored is shared with requests of the same salt only; 1 to 256 bytes",
     JSON(KIND_STRING, param_cache_salt)},
    {"prompt_cache_key", FOR_BOTH | FOR_RESPONSES, "none",
     "others will come with the same beginning: what of the prompt is stored already is kept longer",
     JSON(KIND_STRING, param_cache_key)},
    {"prompt_cache_retention", FOR_BOTH | FOR_RESPONSES, "in_memory",
     "24h: prompt and answer are kept longer (cache.md)", JSON(KIND_STRING, param_cache_retention),
     .choices = "in_memory|in-memory|24h"},
    {"prompt_cache_options", FOR_BOTH | FOR_RESPONSES, "none", "{ttl, comparison_response_id}",
     JSON(KIND_OBJECT, NULL)},
    {"prompt_cache_options.ttl", FOR_BOTH | FOR_RESPONSES, "none",
     "how long prompt and answer are worth keeping: \"30m\", \"24h\", or seconds",
     JSON(KIND_STRING | KIND_INT, param_cache_ttl)},
    {"prompt_cache_options.comparison_response_id", FOR_CHAT | FOR_RESPONSES, "none",
     "an earlier answer: prompt_cache_diagnostics says why less was found stored than that prompt left (cache.md)",
     JSON(KIND_STRING, param_compare_id)},
    {"cache_control", FOR_CHAT, "none", "as in messages; also on parts of messages, and on tools",
     JSON(KIND_OBJECT, NULL)},
    {"replay", FOR_GENERATION, "true", "false: messages are rendered as they are sent, no answer as it was sampled",
     BOOL(replay)},
    {"speculation", FOR_GENERATION, "true", "false: no drafts from earlier text; the output is the same",
     BOOL(speculation)},

    /* ---- tools ---- */
    {"tools", FOR_TEMPLATES, "none",
     "functions that the model may call (not with tool_choice \"none\"); others are skipped", JSON(KIND_LIST, NULL),
     .items = KIND_OBJECT, .n_max = LIMIT_TOOLS},
    {"tools", FOR_MESSAGES | FOR_COUNT, "none",
     "{name, description, input_schema}; those that a server would run itself are skipped", JSON(KIND_LIST, NULL),
     .items = KIND_OBJECT, .n_max = LIMIT_TOOLS},
    {"tools", FOR_RESPONSES, "none",
     "{type: function, name, description, parameters}; tools of other types are skipped", JSON(KIND_LIST, NULL),
     .items = KIND_OBJECT, .n_max = LIMIT_TOOLS},
    {"tool_choice", FOR_RESPONSES, "\"auto\"",
     "auto, none, required, {type: function, name}, or {type: allowed_tools, mode: auto or required, tools}",
     JSON(KIND_STRING | KIND_OBJECT, NULL), .choices = "auto|none|required"},
    {"tool_choice", FOR_TEMPLATES, "\"auto\"",
     "auto, none, required (any), {type: function, function: {name}}, or {type: allowed_tools, allowed_tools: {mode: "
     "auto or required, tools}}",
     JSON(KIND_STRING | KIND_OBJECT, NULL), .choices = "auto|none|required|any"},
    {"tool_choice", FOR_MESSAGES | FOR_COUNT, "{\"type\":\"auto\"}", "{type, name, disable_parallel_tool_use}",
     JSON(KIND_OBJECT, NULL), .n_min = 1},
    {"tool_choice.type", FOR_MESSAGES | FOR_COUNT, "auto", "tool needs a name", JSON(KIND_STRING, NULL),
     .choices = "auto|any|tool|none"},
    {"tool_choice.name", FOR_MESSAGES | FOR_COUNT, "none", "of one of the tools", JSON(KIND_STRING, NULL)},
    {"tool_choice.disable_parallel_tool_use", FOR_MESSAGES | FOR_COUNT, "false", "the answer ends with its first call",
     BOOL_READ_LATER},
    {"parallel_tool_calls", FOR_CHAT | FOR_RESPONSES, "true", "false: the answer ends with its first call",
     BOOL(parallel_tool_calls)},

    /* ---- thinking ---- */
    {"enable_thinking", FOR_RENDERING, "the template's", "thinking on or off, for models that can",
     JSON(KIND_BOOL, param_enable_thinking)},
    {"thinking", FOR_OPENAI, "the template's", "{type, budget_tokens}, or a bool",
     JSON(KIND_OBJECT | KIND_BOOL, param_thinking), .n_min = 1},
    {"thinking", FOR_MESSAGES | FOR_COUNT, "{\"type\":\"disabled\"}", "{type, budget_tokens}", JSON(KIND_OBJECT, NULL)},
    {"thinking.type", FOR_RENDERING, "the template's", "adaptive: the template's", JSON(KIND_STRING, NULL),
     .choices = "enabled|disabled|adaptive"},
    {"thinking.budget_tokens", FOR_OPENAI, "-1", "as thinking_budget", INTEGER(thinking_tokens, -1, INT_TOP)},
    {"thinking.budget_tokens", FOR_MESSAGES | FOR_COUNT, "none",
     "tokens of thinking; then it is closed and the answer begins", INTEGER_READ_LATER(1, INT_TOP)},
    {"reasoning", FOR_OPENAI, "the template's", "{effort, enabled, max_tokens}", JSON(KIND_OBJECT, NULL)},
    {"reasoning.enabled", FOR_OPENAI, "the template's", "as enable_thinking", JSON(KIND_BOOL, param_enable_thinking)},
    {"reasoning.effort", FOR_OPENAI, "the template's", "as reasoning_effort", JSON(KIND_STRING, param_effort),
     .choices = EFFORTS},
    {"reasoning.max_tokens", FOR_OPENAI, "-1", "as thinking_budget", INTEGER(thinking_tokens, -1, INT_TOP)},
    {"reasoning.summary", FOR_RESPONSES, "none", "has no effect: summaries are not made", JSON(KIND_STRING, NULL)},
    {"reasoning_effort", FOR_OPENAI, "the template's", "none turns thinking off; the others reach the template",
     JSON(KIND_STRING, param_effort), .choices = EFFORTS},
    {"output_config", FOR_MESSAGES | FOR_COUNT, "none", "{effort, format}", JSON(KIND_OBJECT, NULL)},
    {"output_config.effort", FOR_MESSAGES | FOR_COUNT, "the template's", "how hard to think, where thinking is on",
     JSON(KIND_STRING, NULL), .choices = EFFORTS},
    {"output_config.format", FOR_MESSAGES | FOR_COUNT, "text", "as response_format", JSON(KIND_OBJECT, NULL)},
    {"thinking_budget", FOR_RENDERING, "-1",
     "tokens of thinking; then it is closed and the answer begins; 0: none; -1: no limit",
     INTEGER(thinking_tokens, -1, INT_TOP), .alias = "thinking_token_budget"},
    {"reasoning_budget", FOR_RENDERING, "-1", "as thinking_budget", INTEGER(thinking_tokens, -1, INT_TOP),
     .alias = "reasoning_budget_tokens"},
    {"reasoning_format", FOR_CHATS, "\"auto\"",
     "none, raw: thinking stays in the content; hidden: it is not sent; others: in reasoning_content and reasoning",
     JSON(KIND_STRING, param_reasoning_format), .choices = "none|auto|deepseek|deepseek-legacy|parsed|hidden|raw"},
    {"separate_reasoning", FOR_CHATS, "true", "false: as reasoning_format none", BOOL(split_thinking)},
    {"include_reasoning", FOR_CHATS, "true", "false: the thinking is not sent", BOOL(include_reasoning)},
    {"chat_template_kwargs", FOR_RENDERING, "none",
     "variables for the chat template; the server's own (messages, tools, bos_token, functions, ...) are a 400",
     JSON(KIND_OBJECT, NULL)},

    /* ---- Ollama ---- */
    {"stream", FOR_OLLAMA, "true", "lines of JSON", BOOL_READ_LATER},
    {"tools", FOR_OLLAMA_CHAT, "none", "as in chat completions", JSON(KIND_LIST, NULL), .items = KIND_OBJECT,
     .n_max = LIMIT_TOOLS},
    {"think", FOR_OLLAMA, "the template's", "thinking on or off, or how hard", JSON(KIND_BOOL | KIND_STRING, NULL),
     .choices = EFFORTS},
    {"format", FOR_OLLAMA, "none", "json, or a schema", JSON(KIND_STRING | KIND_OBJECT, NULL)},
    {"logprobs", FOR_OLLAMA, "false", "log probabilities of the output tokens", BOOL_READ_LATER},
    {"top_logprobs", FOR_OLLAMA, "0", "alternatives per token, with logprobs",
     INTEGER_READ_LATER(0, LIMIT_TOP_LOGPROBS)},
    {"options", FOR_OLLAMA, "none", "those below; others are ignored", JSON(KIND_OBJECT, NULL)},
    {"options.num_predict", FOR_OLLAMA, "-1", "tokens to generate; below 1: until the context is full",
     INTEGER_READ_LATER(-2, INT_TOP)},
    {"options.temperature", FOR_OLLAMA, "0.8", "0: greedy", NUMBER_READ_LATER(0, 100)},
    {"options.top_k", FOR_OLLAMA, "40", "0 or -1: off", INTEGER_READ_LATER(-1, INT_TOP)},
    {"options.top_p", FOR_OLLAMA, "0.9", "1: off", NUMBER_READ_LATER(0, 1)},
    {"options.min_p", FOR_OLLAMA, "0", "0: off", NUMBER_READ_LATER(0, 1)},
    {"options.typical_p", FOR_OLLAMA, "1", "1: off", NUMBER_READ_LATER(0, 1)},
    {"options.repeat_penalty", FOR_OLLAMA, "1.1", "1: off", NUMBER_READ_LATER(0.01, 100)},
    {"options.repeat_last_n", FOR_OLLAMA, "64", "how many of the last tokens the penalties see",
     INTEGER_READ_LATER(-1, INT_TOP)},
    {"options.presence_penalty", FOR_OLLAMA, "0", "0: off", NUMBER_READ_LATER(-2, 2)},
    {"options.frequency_penalty", FOR_OLLAMA, "0", "0: off", NUMBER_READ_LATER(-2, 2)},
    {"options.mirostat", FOR_OLLAMA, "0", "0: off; 2: in place of all cuts", INTEGER_READ_LATER(0, 2)},
    {"options.mirostat_tau", FOR_OLLAMA, "5", "surprise wanted, in bits", NUMBER_READ_LATER(0, 100)},
    {"options.mirostat_eta", FOR_OLLAMA, "0.1", "rate of learning", NUMBER_READ_LATER(0, 1)},
    {"options.seed", FOR_OLLAMA, "random", "the same seed gives the same text; below 0: random",
     INTEGER_READ_LATER(-SEED_TOP, SEED_TOP)},
    {"options.stop", FOR_OLLAMA, "none", "string or list of at most 64; not part of the output",
     JSON(KIND_STRING | KIND_LIST, NULL), .items = KIND_STRING, .n_max = LIMIT_STOP_STRINGS},
    {"verbose", FOR_OLLAMA_SHOW, "false", "has no effect", BOOL_READ_LATER},

    /* ---- taken, and without effect here ---- */
    {"metadata", FOR_MESSAGES, "none", "has no effect", JSON(KIND_OBJECT, NULL)},
    {"metadata", FOR_RESPONSES, "{}", "comes back in the response", JSON(KIND_OBJECT, NULL)},
    {"user", FOR_RESPONSES, "none", "comes back in the response", JSON(KIND_STRING, NULL), .is_text = true},
    {"safety_identifier", FOR_RESPONSES, "none", "comes back in the response", JSON(KIND_STRING, NULL),
     .is_text = true},
    {"max_tool_calls", FOR_RESPONSES, "none", "comes back in the response", INTEGER_READ_LATER(0, INT_TOP)},
    {"truncation", FOR_RESPONSES, "disabled", "has no effect: what does not fit is a 400", JSON(KIND_STRING, NULL),
     .choices = "auto|disabled"},
    {"include", FOR_RESPONSES, "none", "has no effect", JSON(KIND_LIST, NULL), .items = KIND_STRING},
    {"top_logprobs", FOR_RESPONSES, "0", "has no effect", INTEGER_READ_LATER(0, LIMIT_TOP_LOGPROBS)},
    {"stream_options", FOR_RESPONSES, "none", "has no effect", JSON(KIND_OBJECT, NULL)},
    {"conversation", FOR_RESPONSES, "none", "not supported: 400", JSON(KIND_STRING | KIND_OBJECT, NULL)},
    {"prompt", FOR_RESPONSES, "none", "not supported: 400", JSON(KIND_OBJECT, NULL)},
    {"service_tier", FOR_MESSAGES | FOR_RESPONSES, "none", "has no effect", JSON(KIND_STRING, NULL)},
    {"cache_control", FOR_MESSAGES | FOR_COUNT, "none",
     "{type, ttl}, here or on blocks and tools: what is new in the prompt counts as written to the cache, and is kept "
     "longer",
     JSON(KIND_OBJECT, NULL)},
    {"diagnostics", FOR_MESSAGES, "none", "{previous_message_id}", JSON(KIND_OBJECT, NULL)},
    {"diagnostics.previous_message_id", FOR_MESSAGES, "none",
     "an earlier answer: diagnostics says why less was found stored than that prompt left (cache.md)",
     JSON(KIND_STRING, NULL)},
};

const struct param_spec *param_table(size_t *n)
{
    *n = sizeof(table) / sizeof(table[0]);
    return table;
}

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
    p->thinking_tokens = -1;
    p->cache_prompt = p->speculation = p->replay = p->jump_ahead = true;
    p->parse_special = p->special = true;
}

int gen_params_rendering(const json_t *body, struct gen_params *p, struct api_error *e)
{
    if (param_messages(body, &p->messages, e) || param_prompt_end(body, &p->prompt_end, e)) return -1;
    return param_tools(body, p, e) || param_template_kwargs(body, p, e) ? -1 : 0;
}

int gen_params_finish(const json_t *body, const struct rd_info *info, struct gen_params *p, struct api_error *e)
{
    if (param_check_model(body, info, e)) return -1;
    if (p->chat && gen_params_rendering(body, p, e)) return -1;
    if (p->chat) (void)params_cache_marks(body, p);
    return check_together(p, e);
}

int gen_params_parse(const json_t *body, const struct rd_info *info, bool chat, struct gen_params *p,
                     struct api_error *e)
{
    gen_params_init(p, chat);
    if (params_read(body, chat ? FOR_CHAT : FOR_TEXT, p, e)) return -1;
    return gen_params_finish(body, info, p, e);
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
    mem_free(p->samplers);
    mem_free(p->allowed);
    mem_free(p->stop_tokens);
    mem_free(p->messages);
    mem_free(p->tools);
    mem_free(p->kwargs);
    mem_free(p->forced_tool);
    mem_free(p->grammar);
    mem_free(p->cache_salt);
    mem_free(p->cache_key);
    mem_free(p->compare_id);
    memset(p, 0, sizeof(*p));
}
