/* server/params/params.h - the one table of request parameters: it drives parsing, validation, documentation and tests.
 *
 * A row is a field of a request body: where it may stand, which JSON it may be, its range, and where its value goes.
 * Every body is first walked against the rows of its endpoint (params_read): a field of the wrong kind or out of range
 * is a 400 that names it as the client wrote it, null means absent, and a field that no row names is ignored and told
 * (request_body.h). A name "a.b" is member b of the object a.
 *
 * Endpoints with a form of their own (Messages, Responses, Ollama) are checked against their rows, then translated into
 * a body of chat completions (foreign.h), which goes through the same table: rows that carry both bits are passed on.
 *
 * `radish api --json` prints the table; tools/make-api-docs writes docs/api.md from that, and
 * tests/server/test_parameter_table.py sends every row what it must refuse.
 *
 * Thread  any thread.
 * Errors  -1 with *e filled (400, param = the field's name as the client wrote it).
 */
#pragma once
#include <jansson.h>
#include "radish/radish.h"
#include "server/http/errors.h"
#include "server/params/served_model.h"

/* The name of each bit is in params_list.c, its path in a row of routes/route_list.h. */
enum endpoint_bits {
    FOR_CHAT = 1,
    FOR_TEXT = 2,
    FOR_MESSAGES = 4,
    FOR_COUNT = 8,
    FOR_RESPONSES = 16,
    FOR_TOKENIZE = 32,
    FOR_DETOKENIZE = 64,
    FOR_TEMPLATE = 128,
    FOR_EMBEDDINGS = 256,
    FOR_RERANK = 512,
    FOR_CLASSIFY = 1024,
    FOR_OLLAMA_CHAT = 2048,
    FOR_OLLAMA_GENERATE = 4096,
    FOR_OLLAMA_EMBED = 8192,
    FOR_OLLAMA_SHOW = 16384,
    FOR_BOTH = FOR_CHAT | FOR_TEXT,
    FOR_CHATS = FOR_CHAT | FOR_MESSAGES | FOR_RESPONSES, /* what generates from messages */
    FOR_COMPLETION = 131072,
    FOR_INFILL = 262144,
    FOR_LLAMA_SERVER = FOR_COMPLETION | FOR_INFILL, /* of its own what generates */
    FOR_SCORE = 524288,
    FOR_EMBEDDING = 1048576, /* llama-server's */
    FOR_GENERATION = FOR_CHATS | FOR_TEXT | FOR_LLAMA_SERVER,
    FOR_BOTH_AND_LLAMA_SERVER = FOR_BOTH | FOR_LLAMA_SERVER,
    FOR_TEMPLATES = FOR_CHAT | FOR_TEMPLATE | FOR_TOKENIZE | FOR_CLASSIFY, /* what renders OpenAI's messages */
    FOR_RENDERING = FOR_TEMPLATES | FOR_CHATS | FOR_COUNT,                 /* what renders a template */
    FOR_OLLAMA = FOR_OLLAMA_CHAT | FOR_OLLAMA_GENERATE,
    FOR_CACHE_NAMES = 32768,
    FOR_CACHE_NAME = 65536, /* list; save and drop */
    FOR_ANY = 2097151
};

enum param_type {
    PARAM_NUMBER, /* double */
    PARAM_REAL,
    PARAM_WHOLE, /* float, int32_t: radish/sampling.h */
    PARAM_INT,   /* int64_t; 3.0 is an integer */
    PARAM_BOOL,  /* bool */
    PARAM_CUSTOM /* what `kinds` says; goes to custom, or is read elsewhere */
};

/* The JSON that a CUSTOM row takes. */
enum json_kinds {
    KIND_NUMBER = 1,
    KIND_INT = 2,
    KIND_BOOL = 4,
    KIND_STRING = 8,
    KIND_LIST = 16,
    KIND_OBJECT = 32,
    KIND_NULL = 64
};

struct prompt { /* one of text, tokens; or messages */
    char *text;
    size_t n_text;
    int32_t *tokens;
    uint32_t n_tokens;
};

struct text_list {
    char **items;
    uint32_t n;
}; /* items NULL: not given */

/* What bodies are read into, whatever the endpoint. */
/* An element of "lora": llama-server's number of an adapter, and how much of it. */
struct lora_scale {
    int64_t id;
    double scale;
};

struct gen_params {
    bool chat;                   /* first: offset 0 is no field of a row */
    struct rd_sampling sampling; /* its numbers; what is a list or a text is below, and ours */
    int64_t max_tokens, n, best_of, top_logprobs, seed, n_keep;
    bool has_max_tokens, has_seed, stream, include_usage, ignore_eos, cache_prompt, replay, speculation, echo, logprobs;
    bool context_shift, has_context_shift;
    int pan_and_scan;                /* rd_request_options' */
    bool messages_special;           /* its parse_special */
    char *messages, *tools, *kwargs; /* JSON text */
    enum rd_prompt_end prompt_end;
    char *cache_salt, *cache_key, *cache_name; /* or NULL */
    char *model;                               /* the adapter's name, as "model" has it; NULL: the model itself */
    struct rd_adapter_use *adapters;           /* what it is computed with, names ours; NULL: it says nothing of that */
    uint32_t n_adapters;
    struct lora_scale *lora; /* "lora", as given; NULL: absent */
    uint32_t n_lora;
    char *compare_id;                               /* of the answer to compare with: prompt_prints.h; or NULL */
    bool diagnoses;                                 /* Anthropic: diagnostics were asked for */
    int64_t keep_head_s, keep_prompt_s, keep_all_s; /* as rd_request_options has them */
    char *forced_tool;                              /* tool_choice: a name, "" for any, or NULL */
    enum rd_grammar_kind grammar_kind;              /* what the output is held to */
    char *grammar;
    size_t n_grammar;
    const char *grammar_name; /* the field; a constant */
    bool jump_ahead;
    bool parallel_tool_calls, split_thinking, include_reasoning;
    enum { THINKING_DEFAULT, THINKING_ON, THINKING_OFF } thinking;
    const char *effort;      /* reasoning_effort or NULL; a constant */
    int64_t thinking_tokens; /* -1: no limit */
    struct prompt *prompts;  /* completions */
    uint32_t n_prompts;
    uint64_t n_text_cost; /* what it takes to make tokens of them: prompt_cost.h */
    char *suffix;         /* of every prompt, NULL: none */
    size_t n_suffix;
    char **stop;
    uint32_t n_stop;
    struct rd_bias *bias;
    uint32_t n_bias;
    int64_t min_tokens;
    struct text_list dry_breakers, bad_words;
    char *samplers;
    struct rd_text_bias *text_bias; /* its texts are ours */
    int32_t *allowed, *stop_tokens;
    uint32_t n_text_bias, n_allowed, n_stop_tokens;
    bool include_stop, has_prompt_logprobs, return_token_ids;
    int64_t prompt_logprobs; /* alternatives per token of the prompt, with has_prompt_logprobs */
    int64_t ping_s;          /* with has_ping */
    bool return_progress, has_ping;
    bool timings_per_token;           /* llama-server's */
    struct text_list response_fields; /* likewise: members of the answer, all others are left out */
    bool add_special, has_add_special, parse_special, has_parse_special, with_pieces, with_strings,
        special; /* tokenize, detokenize */
};

struct param_spec {
    const char *name;
    unsigned endpoints;
    const char *fallback; /* the default, as documented */
    const char *help;
    enum param_type type;
    double min, max;   /* of numbers */
    size_t offset;     /* into gen_params: by type; 0: none */
    size_t has_offset; /* of a bool that says it was given; 0: none */
    unsigned kinds;    /* of PARAM_CUSTOM */
    int (*custom)(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
    const char *alias;     /* further names, separated by spaces; NULL: none */
    unsigned items;        /* kinds of a list's elements; 0: custom looks at them */
    const char *choices;   /* what a string may be: "auto|none"; NULL: anything */
    uint32_t n_min, n_max; /* elements of a list, members of an object; n_max 0: no bound */
    unsigned required;     /* the endpoints that refuse a body without it */
    bool is_text;          /* its strings may hold the character NUL: they are text for the model */
};

/* Every row, in the order in which they are read: of two names for one field the later wins. */
const struct param_spec *param_table(size_t *n);

/* An endpoint with parameters. */
struct param_endpoint {
    unsigned bit;
    const char *method, *path;
};
/* The table as JSON; of endpoints with the same bit the first tells its path. */
void params_list(const struct param_endpoint *endpoints, size_t n, struct buf *out);

/* Walks the endpoint's rows: checks the body and, where p is not NULL, fills it (after gen_params_init). */
int params_read(const json_t *body, unsigned endpoint, struct gen_params *p, struct api_error *e);
/* Appends the names of the fields that the endpoint has no row for, "a, b": bounded, and safe in a header. */
void params_ignored(const json_t *body, unsigned endpoint, struct buf *out);
/* A new object of the fields whose rows carry both bits, under their own names; NULL: out of memory. */
json_t *params_shared(const json_t *body, unsigned from, unsigned to);

/* What the tree of a body's JSON takes. */
struct json_size {
    size_t n_tree;    /* bytes for its values, at most LIMIT_JSON_TREE_BYTES, */
    size_t n_text;    /* and for the characters of its strings */
    size_t n_longest; /* the longest string, which the parser holds twice for a moment */
};

/* A body's JSON: an object, UTF-8, no duplicate keys, no trailing bytes, depth within LIMIT_JSON_DEPTH. A string may
 * hold the character NUL (a tool's output has it), an integer beyond 64 bits becomes a real. Where the text is broken
 * inside a field of the object, *e names that field. json_body_check looks at the bytes in one pass, without building
 * anything; json_body_tree builds what was checked; json_body_parse does both. */
int json_body_check(struct buf *body, struct json_size *size, struct api_error *e);
int json_body_tree(const struct buf *body, json_t **out, struct api_error *e);
/* The same of any value. */
int json_body_value(const struct buf *body, json_t **out, struct api_error *e);
int json_body_parse(struct buf *body, json_t **out, struct api_error *e);
/* json_size.n_tree of a JSON text. */
size_t json_tree_bytes(const char *s, size_t n);
/* The string without the character NUL; NULL: something else. For names, types and roles, that are compared. */
const char *json_plain(const json_t *v);
/* json_dumps without its second copy of the text; mem_free. NULL: out of memory. */
char *json_text(const json_t *v, size_t flags);
/* The defaults. */
void gen_params_init(struct gen_params *p, bool chat);
/* After params_read: what no row decides alone (model, messages, tools, what excludes each other). */
int gen_params_finish(const json_t *body, const struct served_model *m, struct gen_params *p, struct api_error *e);
/* All three, for a body of FOR_CHAT or FOR_TEXT. gen_params_deinit in any case. */
int gen_params_parse(const json_t *body, const struct served_model *m, bool chat, struct gen_params *p,
                     struct api_error *e);
void gen_params_deinit(struct gen_params *p);
void text_list_deinit(struct text_list *list);
/* Of gen_params_finish: what a template needs (messages, prompt_end, tools, kwargs). */
int gen_params_rendering(const json_t *body, struct gen_params *p, struct api_error *e);

/* The marks in a body as the client wrote it (chat completions, or Messages): on the whole, on system, tools, messages
 * and what they list. True: there are some. */
bool params_cache_marks(const json_t *body, struct gen_params *p);

/* NAME or, as Ollama's clients call it, NAME:latest. */
bool param_is_model(const char *name, const struct rd_info *info);
/* As param_check_model, but "model" may also name an adapter ("NAME", "MODEL:NAME"), and "lora" lists some: p->adapters. */
int param_adapters(const json_t *body, const struct served_model *m, struct gen_params *p, struct api_error *e);
/* How much of an adapter: a number within -1000 and 1000. */
bool param_is_scale(const json_t *v);
/* 404 model_not_found unless absent, empty or this server's. */
int param_check_model(const json_t *body, const struct rd_info *info, struct api_error *e);
/* The same where the model alone computes, whatever adapters there are: one that is named is 400, not a model that is missing. */
int param_check_alone(const json_t *body, const struct served_model *m, struct api_error *e);
/* messages: checked, as JSON text (mem_free). */
int param_messages(const json_t *body, char **messages, struct api_error *e);
/* Whether a part of this type is an image or a video, which the library looks at (api_images.h). */
bool param_part_is_image(const char *type, size_t n);
/* add_generation_prompt and continue_final_message. */
int param_prompt_end(const json_t *body, enum rd_prompt_end *end, struct api_error *e);
/* tools and tool_choice to p->tools, p->forced_tool; after the table: chat_template_kwargs with what the thinking
 * parameters add to p->kwargs. */
int param_tools(const json_t *body, struct gen_params *p, struct api_error *e);
int param_template_kwargs(const json_t *body, struct gen_params *p, struct api_error *e);
/* An optional bool. */
int param_bool(const json_t *body, const char *name, bool *value, struct api_error *e);
/* A list of token ids; *tokens is mem_free'd by the caller. Does not look at the vocabulary. */
int param_tokens(const char *name, const json_t *v, int32_t **tokens, uint32_t *n, struct api_error *e);
