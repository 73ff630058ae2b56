/* radish/radish.h - radish as a library: load a model, ask it, look at it, close it. C17, usable from C++.
 *
 * An rd_engine is a loaded model with its KV cache (a radix tree over pages), its tokenizer, its chat template and its
 * engine thread. Any number of threads submit requests; requests run together in one batch, share every common prefix,
 * and join and leave at any step. The text of a request depends on its tokens, parameters and seed alone (never on the
 * cache or the batch).
 *
 * A whole program, which `cc hello.c $(pkg-config --cflags --libs radish)` builds:
 *
 *     #include <radish/radish.h>
 *     #include <stdio.h>
 *
 *     static int on_event(void *user, uint32_t index, const struct rd_event *ev)
 *     {
 *         fwrite(ev->text, 1, ev->text_bytes, stdout);
 *         return 0; // anything else stops the answer
 *     }
 *
 *     int main(int argc, char **argv)
 *     {
 *         struct rd_error err = {RD_OK, ""};
 *         struct rd_options o;
 *         struct rd_request_options q;
 *         rd_engine *engine;
 *
 *         rd_options_default(&o);
 *         o.model = argc > 1 ? argv[1] : "model.gguf";
 *         rd_request_options_default(&q);
 *         q.messages_json = "[{\"role\": \"user\", \"content\": \"Hi\"}]";
 *         if (rd_open(&o, &engine, &err) == RD_OK) {
 *             rd_generate(engine, &q, on_event, NULL, &err);
 *             rd_close(engine);
 *         }
 *         if (err.status != RD_OK) fprintf(stderr, "%s\n", err.text);
 *         return err.status != RD_OK;
 *     }
 *
 * That is all a simple program needs. The sections below, in their order: open and close; text (tokens, templates); conversations; requests
 * (asynchronous ones, and at their end rd_generate and rd_generate_batch, which wait); the low level (logits, cache
 * handles); statistics, memory and the cache; the log.
 *
 * Options begin with their size, which their _default function sets, so that a program that was built with another
 * version's header is refused (RD_E_INVALID), not misread: fill them by that function, then change what you want.
 *
 * What the library fills begins with its size, too: set it to that of your struct (`struct rd_stats s = {.size = sizeof(s)}`)
 * before each call. Members are only ever added at the end, and only what lies within size is written, so a program goes on
 * with newer libraries than it was built with. With an older library size is less afterwards: of the members beyond it
 * nothing was written. A size shorter than that of version 0.1 (0, or none set) is taken for this header's.
 *
 * Strings are UTF-8. Times are milliseconds unless named otherwise, sizes bytes, lengths tokens.
 * Thread  any thread unless stated. One rd_request is polled by one thread at a time.
 * Errors  rd_status; where a struct rd_error *err (may be NULL) is given it says what was found and what was wanted.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/adapter.h"
#include "radish/grammar.h"
#include "radish/inspect.h"
#include "radish/sampling.h"
#include "radish/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rd_engine rd_engine;
typedef struct rd_request rd_request;
typedef struct rd_kv rd_kv;
typedef struct rd_chat rd_chat;

#define RD_NO_LIMIT  UINT32_MAX
#define RD_KEEP_HEAD UINT32_MAX

/* "0.1.0" */
RD_API const char *rd_version(void);
/* What rd_options.device may be in this version: "auto, cpu, mlx, cuda or cuda:N"; a path of a shared object beside them. */
RD_API const char *rd_known_devices(void);
/* What can compute here, and what cannot, and why. docs/backends.md. */
struct rd_backend_info {
    size_t size; /* see above; rd_backends: an array of this header's alone */
    char name[32], title[128];
    bool is_built;                        /* in this build, or loaded from its file */
    bool is_available;                    /* and this machine has what it needs */
    char reason[256];                     /* a sentence, either way */
    char devices[256];                    /* "NVIDIA H100 (9.0), ..."; "": it has none of its own */
    bool exact;                           /* as rd_info.exact */
    char weight_types[160], kv_types[64]; /* "f32, f16, ..": computed with as they are; others are opened to f32 */
    bool page_copies, graphs, states, soft_caps, lora, images;
};
/* name: one of rd_backends', the path of a shared object, which is loaded and asked (radish/backend.h), or "process:COMMAND",
 * whose program is looked for and not started. RD_E_NOT_FOUND, RD_E_UNSUPPORTED: no such thing, or nothing of this machine and
 * version. RD_E_INVALID: a command without an end. */
RD_API rd_status rd_backend_about(const char *name, struct rd_backend_info *out, struct rd_error *err);
/* Those of this version, in the order of rd_known_devices, and last "process": at most n_max; returns how many there are. */
RD_API uint32_t rd_backends(struct rd_backend_info *out, uint32_t n_max);
/* Frees what this library returned as caller's (text, tokens). NULL is fine. */
RD_API void rd_free(void *p);

/* ---- open and close ---- */

/* What takes the bytes of an image that is fetched. is_cancelled: nobody waits for it any more: to be asked several times a
 * second. put: false: no more is taken, and the fetch ends with RD_E_LIMIT. */
struct rd_image_sink {
    void *arg;
    bool (*put)(void *arg, const void *data, size_t n);
    bool (*is_cancelled)(void *arg);
};

struct rd_options {
    size_t size;             /* of this struct, set by rd_options_default */
    const char *model;       /* a GGUF file */
    const char *model_id;    /* the name clients use; NULL: the file's name without .gguf */
    const char *device;      /* "auto" (NULL): the first GPU that can be used, else the CPU; "cpu"; "cuda",
                              * "cuda:1": RD_E_UNSUPPORTED says what is missing; "/path/libradish-x.so" or
                              * "./x.so": a backend of your own (radish/backend.h);
                              * "process:COMMAND": a program that has the model (docs/process-backend.md) */
    bool no_graphs;          /* cuda: every kernel is launched by itself; mlx: no steps ahead (same output, slower) */
    bool no_warm_up;         /* cuda: the first steps of a kind are recorded when they come, not while idle */
    uint32_t n_threads;      /* CPU threads for computing; 0 = all cores of this process */
    uint32_t n_ranks;        /* ranks that compute the model together, each a part of it: 1 (0) .. 8; the same output;
                              * on GPUs one on each, device "cuda" or "cuda:0,2,.." (docs/tensor-parallel.md) */
    uint32_t n_ctx;          /* longest sequence in tokens; 0 = the model's own, at most what the KV budget holds */
    uint64_t kv_bytes;       /* KV budget; 0 = 20 % of memory within 256 MiB .. 8 GiB */
    uint64_t kv_tokens;      /* KV budget in tokens instead; 0 = use kv_bytes */
    uint32_t page_tokens;    /* a power of two; 0 = 16 */
    const char *kv_type;     /* "f16" (default, NULL), "bf16", "f32", "q8_0", "f8_e4m3", "q4_0"; "q8_0/q4_0" */
    bool kv_force;           /* q4_0, f8_e4m3 keys even where they are known to ruin the model: docs/kv-types.md */
    uint32_t max_running;    /* sequences computed in one step; 0 = 64 */
    uint32_t max_queue;      /* requests waiting beyond those; then RD_E_FULL; 0 = 256 */
    uint32_t max_chunk;      /* prompt tokens in one step at most; 0 = 1024, on a GPU 2048. On a CPU, beyond
                                256 only as many as 180 ms allow, by measured speed */
    uint32_t step_target_ms; /* a step with running decodes should stay under this; 0 = 50 */
    const char *draft_model; /* a GGUF file with the same vocabulary: drafts from it too; NULL: none */
    const char *mmproj; /* the encoder of images, a GGUF file of its own as llama.cpp writes it; NULL: what a directory
                              * has, or the one *mmproj*.gguf beside the model's file that fits it. RD_E_FORMAT: not this
                              * model's */
    const char *image_dir; /* images below it may be named by requests, "file:///DIR/x.png" or "/DIR/x.png": regular
                            * files, whatever links say; NULL: none may */
    /* Gets what is behind an http: or https: URL of a request, on a thread of its own. RD_E_INVALID: err says why not, and
     * the client reads it. NULL: such URLs are refused. */
    rd_status (*fetch_image)(void *user, const char *url, const struct rd_image_sink *sink, struct rd_error *err);
    void *fetch_user;
    uint32_t fetch_ms;       /* that all images which one request names may take; 0: 60,000 */
    bool image_pan_and_scan; /* Gemma 3 sees long pictures whole and in parts; requests may say otherwise */
    bool no_speculation;     /* no drafts from text seen before (they are verified: same output, sooner) */
    uint32_t cache_ttl_s;    /* unused cache entries are dropped after this; 0 = 1800 */
    const char *isa;         /* NULL: best; "ref", "avx2", "avx512", "amx", "neon", "neon-dotprod", "neon-i8mm" */
    const char *pre;         /* overrides the GGUF's pre-tokenizer name */
    const char *chat_template_file; /* replaces the model's template: a Jinja file, or a name of
                                     * rd_chat_template_names(); NULL: the model's */
    const char *tool_parser;        /* how tool calls are written: "hermes", "qwen3_coder", "llama3_json", "pythonic",
                                     * "gemma", "mistral", "deepseek", "none"; NULL: by the chat template */
    const char *packed_dir;         /* folder where repacked weights are kept for the next start; NULL: none are */
    uint64_t packed_bytes;          /* what they may take there; 0 = 16 GiB */
    bool no_packed_cache;           /* packed_dir is not used */
    const char *cache_dir;          /* folder where computed prompts are kept, also for later starts; NULL: none are */
    uint64_t cache_disk_bytes;      /* what they may take there; 0 = 8 GiB */
    bool no_disk_cache;             /* cache_dir is not used */
    const char *cache_store;        /* behind it, a server that other machines use, too: "redis://host:port/db",
                                     * "unix:///path" (docs/shared-store.md); NULL: none. It needs cache_dir */
    const char *cache_store_secret; /* of all machines that share it; NULL: none */
    const char *cache_store_prefix; /* of names there; NULL: "radish" */
    uint32_t cache_store_expiry_s;  /* what is not written again for so long goes; 0 = a day */
    uint64_t cache_store_queue;     /* bytes that may wait to be written there; 0 = 64 MiB */
    uint64_t cache_store_rate;      /* bytes a second written there at most; 0: no bound */
    const char *kv_events;          /* who is told what is cached: "tcp://127.0.0.1:5557", "ipc:///path", bound
                                     * (docs/kv-events.md); NULL: no one */
    const char *kv_events_replay;   /* a second address, where what was missed is told again; NULL: none */
    const char *kv_events_topic;    /* NULL: "" */
    const char *kv_events_form;     /* NULL, "lists"; "maps": as vLLM from late 2026 on */
    const char *kv_events_hash; /* NULL, "bytes": 32 bytes; "numbers": the last 8 of them; "sha256", "sha256-numbers":
                                     * by vLLM's default instead of its sha256_cbor */
    uint64_t cache_ram_bytes;   /* on a GPU: host memory for pages that leave it; 0: none; RD_CACHE_RAM_AUTO: a
                                     * quarter of the host's. On a CPU it is not used: pages are in memory already */
    const char *store_kv;       /* NULL: as they are; "q8_0": f16 keys and values of positions from store_kv_min on are
                             * kept there as 8-bit integers: half the room, and answers that may differ */
    uint32_t store_kv_min;      /* 0 = 256 */
    double cache_verify;        /* 0 .. 1: this share of the cache's hits is computed again while nothing else is to
                             * do, and compared byte by byte (docs/cache.md); 0: none */
    uint64_t grammar_bytes;     /* compiled grammars with their masks, all together; 0 = 512 MiB, or a sixteenth of
                             * memory where that is less */
    bool isolate;               /* memory of keys and values is made zeros when it passes from one cache salt (API
                             * key) to another */
    bool no_normalise;          /* lines of system prompts that are new in every request (a billing header, request
                             * ids) reach the model too; by default they are left out, see docs/api.md */
    bool sort_keys;             /* tools and arguments are rendered with sorted keys: for clients that shuffle them */
    bool no_replay;             /* no message is rendered as it was sampled or first spelled; see docs/cache.md */
    bool context_shift;         /* of requests that say nothing else: rd_request_options.context_shift */
    const struct rd_adapter_file *adapters; /* [n_adapters] loaded with the model; radish/adapter.h */
    uint32_t n_adapters;
    uint64_t
        adapter_bytes; /* what adapters may take together; 0 = a quarter of memory; on a GPU half of what its cache leaves */
    const char *thinking;    /* "on", "off": of conversations whose kwargs_json says nothing about it (enable_thinking,
                             * thinking); NULL: as the template does. RD_E_INVALID: another word */
    uint32_t process_load_s; /* process: it has loaded within this; 0 = 600 */
    uint32_t process_silence_s;                    /* process: the longest that it says nothing of a request; 0 = 120 */
    void (*progress)(void *user, double fraction); /* 0 .. 1 while loading; may be NULL */
    void *progress_user;
    bool (*cancelled)(void *user); /* asked between the weights, by the thread that loads: true ends rd_open with
                                     * RD_E_CANCELLED; may be NULL; user: progress_user */
    const char *reduce; /* how ranks' GPUs put their parts together, with the same bits: "auto" (NULL), "peer", "nccl",
                         * "host": RD_E_UNSUPPORTED says what is missing */
    uint32_t rank_patience_s; /* a rank that the others wait for longer is lost, and the engine with it; 0 = 60 */
};
#define RD_CACHE_RAM_AUTO UINT64_MAX
RD_API void rd_options_default(struct rd_options *o);
/* Loads, checks, starts the engine thread. On failure *out is NULL and nothing is left behind. */
RD_API rd_status rd_open(const struct rd_options *o, rd_engine **out, struct rd_error *err);
/* Cancels what runs, joins every thread, frees everything. Requests and rd_kv handles must be released before. NULL is
 * fine. */
RD_API void rd_close(rd_engine *engine);

/* How the hidden states of a text become one vector. */
enum rd_pooling {
    RD_POOL_NONE,
    RD_POOL_MODEL, /* as the model's file says (rd_info.pooling) */
    RD_POOL_MEAN,  /* of all tokens: computes the whole text, without the cache */
    RD_POOL_FIRST, /* the first token's: likewise */
    RD_POOL_LAST   /* the last token's: the same bytes with any cached prefix */
};

struct rd_info {
    size_t size; /* see above */
    char model_id[256], arch[32], name[128], backend[64], pre[32], kv_type[32];
    uint32_t n_vocab, n_ctx, n_ctx_train, n_layers, hidden, page_tokens, max_running;
    /* weight_bytes: this process's own; packed_bytes: mapped from packed_dir, one copy for all processes */
    uint64_t n_params, file_bytes, weight_bytes, packed_bytes, workspace_bytes, kv_bytes, kv_tokens, kv_bytes_per_token;
    int32_t bos, eos;  /* -1: none */
    int64_t created_s; /* wall clock at load */
    double load_ms;
    double weights_ms;       /* of load_ms: reading the weights, on a GPU sending them there */
    uint64_t tensor_bytes;   /* that the weights take in the file */
    bool has_chat_template;  /* the model's own; otherwise its family's format is used */
    char quantization[16];   /* of most of the weights, as the file says: "Q4_K_M"; "": it does not */
    bool thinks;             /* the template knows thinking */
    bool holds_calls;        /* forced and strict calls are held to their schemas: not Python's form of calls */
    enum rd_pooling pooling; /* MEAN, FIRST or LAST: the file's, else LAST */
    bool is_reranker;        /* made to answer yes or no to a query and a document (Qwen3-Reranker's form) */
    /* Filling in the middle: [bos] fim_prefix TEXT fim_suffix TEXT fim_middle; repository and file names before that.
     * -1: none. */
    int32_t fim_prefix, fim_suffix, fim_middle, fim_repository, fim_file;
    bool
        exact; /* what the cache gives is bit for bit what would be computed; false: the backend keeps no order of sums */
    bool on_host; /* computed by the CPU: for good nothing can fail there but the model's file */
};
RD_API void rd_get_info(const rd_engine *engine, struct rd_info *out);

/* `radish convert`: a model (a GGUF file, or a directory as it comes from the hub) written as a GGUF file. The output
 * appears whole or not at all. type: "f16", "bf16", "q8_0", "q4_k_m" (NULL: f16). */
struct rd_convert_options {
    size_t size; /* of this struct, set by rd_convert_options_default */
    const char *type;
    const char *pre;    /* name of the pre-tokenizer; NULL: found */
    uint32_t n_threads; /* 0: all cores */
    void (*progress)(void *user, double fraction);
    void *progress_user;
    const char *merge_lora; /* an adapter's path: its product is added to the weights; NULL: none */
    double merge_scale;     /* 1 */
    bool (*cancelled)(
        void *progress_user); /* asked between the tensors: true ends it with RD_E_CANCELLED; NULL: never */
};
RD_API void rd_convert_options_default(struct rd_convert_options *o);
RD_API rd_status rd_convert(const char *model, const char *out_path, const struct rd_convert_options *o,
                            struct rd_error *err);
/* `radish inspect`: metadata, tensors, sizes, memory need, chat template of a GGUF file; *text is the caller's
 * (rd_free). */
RD_API rd_status rd_inspect(const char *path, bool json, char **text, struct rd_error *err);

/* `radish doctor`: CPU and what of it is used, kernels for each type of weights, memory, huge pages, folders with their free room, NVIDIA driver and GPUs, and which device
 * "auto" takes and why, all backends and why those that cannot be used cannot. Folders may be NULL. *text is the caller's (rd_free). */
struct rd_doctor_paths {
    const char *models, *packed, *cache;
    const char *backend; /* not a folder: a shared object to be asked, too; or NULL */
};
RD_API rd_status rd_doctor(const struct rd_doctor_paths *paths, bool json, char **text, struct rd_error *err);

/* ---- text ---- */

/* add_special: BOS and EOS as the model wants; parse_special: special tokens written in the text become those tokens.
 * *tokens is the caller's (rd_free). */
RD_API rd_status rd_tokenize(const rd_engine *engine, const char *text, size_t n_bytes, bool add_special,
                             bool parse_special, int32_t **tokens, uint32_t *n_tokens, struct rd_error *err);
/* One text in parts: names of special tokens become those tokens in parts of your own, and are text in foreign ones, or where
 * parts meet. add_special, *tokens: as above. RD_E_UNSUPPORTED: the model's backend is a process that tokenises itself. */
struct rd_text_part {
    const char *text;
    size_t n_bytes;
    bool is_foreign;
};
RD_API rd_status rd_tokenize_parts(const rd_engine *engine, const struct rd_text_part *parts, size_t n_parts,
                                   bool add_special, int32_t **tokens, uint32_t *n_tokens, struct rd_error *err);
/* Valid UTF-8 (invalid bytes become U+FFFD), terminated; the caller's (rd_free). RD_E_INVALID for an id outside the
 * vocabulary. */
RD_API rd_status rd_detokenize(const rd_engine *engine, const int32_t *tokens, uint32_t n_tokens, bool special,
                               char **text, size_t *n_bytes, struct rd_error *err);
/* The bytes of one token (may be part of a UTF-8 sequence; a view that lives as long as the engine). */
RD_API const char *rd_token_bytes(const rd_engine *engine, int32_t token, size_t *n_bytes);
/* A tokenizer without weights: for `radish tokenize`. model: a GGUF file, a tokenizer.json, or a folder with one. Only
 * rd_tokenize, rd_tokenize_parts, rd_detokenize, rd_token_bytes, rd_apply_template, rd_prompt_text, rd_prompt_tokens, rd_get_info and
 * rd_close work on it. */
RD_API rd_status rd_open_tokenizer(const char *model, const char *pre, rd_engine **out, struct rd_error *err);
/* How the prompt of a conversation ends. */
enum rd_prompt_end {
    RD_PROMPT_CLOSED,   /* with the last message */
    RD_PROMPT_AUTO,     /* a last assistant message with text is continued, an empty one answered; else NEW */
    RD_PROMPT_NEW,      /* with the beginning of a new assistant message */
    RD_PROMPT_CONTINUED /* the last message is left open; RD_E_INVALID when it has no text */
};
/* messages_json: an array as OpenAI's, in every form that clients send (docs/api.md); tools_json, kwargs_json may be
 * NULL. RD_E_INVALID: a message or a key of kwargs_json cannot be. *prompt is the caller's (rd_free). */
RD_API rd_status rd_apply_template(const rd_engine *engine, const char *messages_json, const char *tools_json,
                                   const char *kwargs_json, enum rd_prompt_end end, char **prompt, size_t *n_bytes,
                                   struct rd_error *err);
/* The names that chat_template_file takes for built-in formats: "chatml, qwen, ...". A constant. */
RD_API const char *rd_chat_template_names(void);

/* A template without a model: Jinja source and its variables (a JSON object; NULL: none) to text. now_s: what
 * strftime_now sees, seconds since 1970; negative: the clock. Limits as for models. *text is the caller's (rd_free). */
RD_API rd_status rd_template_render(const char *source, size_t n_source, const char *context_json, size_t n_context,
                                    int64_t now_s, char **text, size_t *n_bytes, struct rd_error *err);

/* ---- conversations ---- */

/* Messages, tools and template variables, grown message by message and asked again and again: rd_request_options.chat.
 * Messages are OpenAI's, in every form that messages_json takes; each is checked as JSON when it is added, and as a message
 * when it is rendered. What an answer said is added from its events, with its calls and their ids, so that the next request
 * finds it as it was sampled (docs/cache.md, "Replay").
 *
 *     rd_chat_new(NULL, tools, NULL, &chat, &err);
 *     rd_chat_say(chat, "user", "What is a radish?", 17, &err);
 *     q.chat = chat, q.parse_tools = q.parse_thinking = true;
 *     rd_generate(engine, &q, on_event, chat, &err);        // on_event calls rd_chat_hear(chat, ev, NULL)
 *     rd_chat_say(chat, "user", "And a turnip?", 13, &err);
 *     rd_generate(engine, &q, on_event, chat, &err);        // only the new message is computed
 *
 * Thread  one at a time; not while rd_submit reads it. Requests copy what they need.
 * Errors  RD_E_INVALID, RD_E_LIMIT (65,536 messages), RD_E_NOMEM: the conversation is what it was. */
/* Each JSON as rd_request_options has it, or NULL. */
RD_API rd_status rd_chat_new(const char *messages_json, const char *tools_json, const char *kwargs_json, rd_chat **out,
                             struct rd_error *err);
/* NULL is fine. */
RD_API void rd_chat_free(rd_chat *chat);
RD_API rd_status rd_chat_say(rd_chat *chat, const char *role, const char *text, size_t n_bytes, struct rd_error *err);
/* What a tool said to a call of the last answer (rd_delta.id). */
RD_API rd_status rd_chat_result(rd_chat *chat, const char *call_id, const char *text, size_t n_bytes,
                                struct rd_error *err);
/* A message as JSON: with parts, names, calls. */
RD_API rd_status rd_chat_add(rd_chat *chat, const char *message_json, struct rd_error *err);
struct rd_event;
/* Every event of one request, in order: with DONE its answer is the last message; with ERROR nothing is added. Calls that
 * were cut are left out. */
RD_API rd_status rd_chat_hear(rd_chat *chat, const struct rd_event *ev, struct rd_error *err);
/* Messages; and without those from number n_messages on. */
RD_API uint32_t rd_chat_length(const rd_chat *chat);
RD_API rd_status rd_chat_cut(rd_chat *chat, uint32_t n_messages, struct rd_error *err);
/* The messages as JSON, to be kept: the caller's (rd_free). NULL: out of memory. */
RD_API char *rd_chat_json(const rd_chat *chat);
/* As rd_apply_template. */
RD_API rd_status rd_chat_render(const rd_engine *engine, const rd_chat *chat, enum rd_prompt_end end, char **prompt,
                                size_t *n_bytes, struct rd_error *err);

/* ---- requests ---- */

struct rd_request_options {
    size_t size; /* of this struct, set by rd_request_options_default */
    /* the prompt: exactly one of chat, messages_json, prompt, tokens */
    const rd_chat *chat;           /* in place of messages_json, tools_json and kwargs_json */
    const char *messages_json;     /* JSON array; rendered through the chat template */
    const char *tools_json;        /* JSON array or NULL */
    const char *kwargs_json;       /* JSON object or NULL: chat_template_kwargs */
    enum rd_prompt_end prompt_end; /* of messages_json; default RD_PROMPT_AUTO */
    const char *prompt;            /* plain text, BOS added as the model wants, special tokens in it are recognised */
    size_t prompt_bytes;
    const int32_t *tokens;
    uint32_t n_tokens;
    /* 1: where prompt and answer reach the end of the context the older half of the tokens behind the first n_keep is
     * dropped and the rest computed as a new prompt, and the answer goes on: with another text than a longer context would
     * give. A prompt that is too long is cut likewise. Then RD_NO_LIMIT means as many tokens as the context has. -1: it ends
     * there; 0: as rd_options.context_shift says. */
    int context_shift;
    uint32_t n_keep; /* default RD_KEEP_HEAD: tools and first system messages; of a text or tokens, the first
                      * token. At most half of the context */
    bool truncate;   /* a prompt that is longer than the context loses its end; false: RD_E_CONTEXT */

    uint32_t max_tokens;         /* 0: prefill only; RD_NO_LIMIT: until the context is full */
    struct rd_sampling sampling; /* radish/sampling.h */
    const char *const *stop;     /* stop strings; not part of the output */
    uint32_t n_stop;
    bool ignore_eos;         /* end tokens are never drawn */
    bool cache_prompt;       /* default true; false: neither matches nor stores */
    bool speculation;        /* default true; false: no drafts for this request */
    bool replay;             /* default true; false: its messages are rendered as they are sent, none as it was
                              * sampled or first spelled, and its answer is not kept for that; see docs/cache.md */
    bool logprobs;           /* of every output token */
    uint32_t n_top_logprobs; /* 0 .. 20 */
    bool prompt_logprobs;    /* of every prompt token but the first (computes the whole prompt: implies no cache) */
    bool idle;               /* computed only when nothing else is to do; makes way for everything else */
    const char *cache_salt;  /* NULL: what is stored is shared with every request without one; else only with
                              * requests of the same salt */
    /* What it is computed with (rd_adapter_load): one named twice, or more than RD_REQUEST_ADAPTERS: RD_E_INVALID; one that is
     * not there: RD_E_NOT_FOUND. NULL: what rd_adapter_apply said, at first nothing; not NULL, n_adapters 0: nothing. */
    const struct rd_adapter_use *adapters;
    uint32_t n_adapters;
    const char *cache_name; /* what it computes belongs to this named cache (rd_cache_names), within its salt; 1 to
                              * 128 bytes without control characters; NULL: to none */
    /* How long, unused, parts of this request are worth more than what else is stored: about 5 minutes (1 .. 300), an
     * hour (.. 3600) or a day (more); 0: no more than others. Weights within the budget, never pins: docs/cache.md. */
    uint32_t keep_head_s;     /* the tools and the system messages that come first */
    uint32_t keep_prompt_s;   /* the prompt */
    uint32_t keep_all_s;      /* the prompt and its answer */
    bool keep_found;          /* the part of the prompt that is stored already: others will come with it */
    const char *label;        /* what rd_ended_requests calls it; NULL: nothing */
    const char *fairness_key; /* requests queue round robin between keys; NULL: one common key */

    /* messages_json only: what the output is split into (rd_event.deltas) */
    bool parse_tools;         /* calls of tools_json's tools; false: they are text */
    bool single_call;         /* ends after the first call */
    bool parse_thinking;      /* thinking apart from content; false: it is content, with its tags */
    uint32_t thinking_tokens; /* longest thinking; then it is closed and the answer begins; default RD_NO_LIMIT.
                               * Without effect on models whose template knows no thinking. */
    const char *forced_tool;  /* parse_tools: the answer is a call of this tool ("": of any); NULL: as the model
                               * likes. Its arguments follow the tool's schema. */

    /* The output is held to this form: whatever is generated is the beginning of a text of it, and ends as one unless
     * max_tokens or a cancel come first. Thinking comes before it, free; calls of tools_json may take its place. Tools
     * with "strict": true hold their calls to their schemas by themselves. docs/structured-output.md. */
    enum rd_grammar_kind grammar_kind;
    const char *grammar;
    size_t grammar_bytes;
    const char *grammar_name; /* what error messages about it begin with; NULL: "grammar" */
    bool jump_ahead;          /* default true: what the form leaves no choice about is not asked of the model */

    const int32_t *stop_tokens; /* they end the text as an end token does, ignore_eos or not */
    uint32_t n_stop_tokens;
    uint32_t min_tokens; /* neither end tokens nor stop strings or tokens end the text before this many */
    bool include_stop;   /* the stop string, or the stop token's text, is part of the output */

    enum rd_pooling embed;       /* not NONE: the prompt's vector (rd_request_embedding); implies max_tokens 0 */
    const int32_t *score_tokens; /* with max_tokens 0: how likely is each as the next (rd_request_scores) */
    uint32_t n_score_tokens;

    int pan_and_scan; /* 1, -1: long pictures are seen in parts, too, or are not; 0: as rd_options.image_pan_and_scan says */

    /* Default false: names of special tokens in messages and tools ("<|im_end|>") are text, whoever wrote them. true: they are
     * those tokens, as in other servers, so that foreign text can end its message and begin another. */
    bool parse_special;
};
/* All defaults, and the sizes. */
RD_API void rd_sampling_default(struct rd_sampling *s);
RD_API void rd_request_options_default(struct rd_request_options *o);

enum rd_finish { RD_FINISH_STOP, RD_FINISH_LENGTH, RD_FINISH_CANCELLED, RD_FINISH_ERROR };

struct rd_logprob {
    int32_t token;
    float logprob;
};

struct rd_usage {
    uint32_t n_prompt;    /* = n_cached + n_computed at the end of the prefill */
    uint32_t n_cached;    /* prompt tokens taken from the tree, those computed by others meanwhile included */
    uint32_t n_joined;    /* of n_cached: computed by another request while this one waited for them */
    uint32_t n_ram;       /* of n_cached: copied back from host memory to the GPU for this request */
    uint32_t n_disk;      /* of n_cached: this request waited for them to be read from disk, or the shared store */
    uint32_t n_shared;    /* of n_disk: from the shared store */
    uint32_t n_lossy;     /* of n_cached: in pages that were kept as 8-bit integers (rd_options.store_kv) */
    uint32_t n_generated; /* the end token, when one was drawn, is not counted */
    uint32_t n_reasoning; /* parse_thinking: of n_generated, those inside the thinking */
    uint32_t n_drafted, n_draft_accepted; /* speculation: tokens drafted, and those of them that were right */
    uint32_t n_forced;                    /* of n_generated, those that a grammar left no choice about */
    uint32_t n_shifts,
        n_dropped;       /* context_shift: how often the context was full; tokens dropped, of the prompt, too */
    uint32_t n_restored; /* answers among the messages that were put back as the model had written them */
    double queue_ms, prompt_ms, predicted_ms, ttft_ms;
    int miss;             /* enum rd_miss_cause */
    const char *left_out; /* lines of the system prompt that were not rendered, each ended by a newline; NULL:
                           * none. Until the request is freed */
    uint32_t n_images,
        n_images_encoded;   /* of the prompt; of them, encoded for it: neither cached nor kept from before */
    double encoder_ms;      /* that it took */
    double images_ready_ms; /* from where queue_ms begins until the last of those was encoded; 0: none was */
};

enum rd_event_type {
    RD_EVENT_STARTED, /* the prompt is accepted and queued: usage.n_prompt is known */
    RD_EVENT_TOKEN,   /* one more token; text may be empty (held back: UTF-8, stop strings);
                       * usage.n_prompt, n_cached and prompt_ms are known */
    RD_EVENT_DONE,    /* the last event: finish, usage; text may hold the rest */
    RD_EVENT_ERROR    /* the last event: status and message; text that came before stands */
};

/* A piece of the output by what it is. Pieces of a call come between its BEGIN and END; index counts calls from 0. */
enum rd_delta_type {
    RD_DELTA_CONTENT,
    RD_DELTA_REASONING,
    RD_DELTA_CALL_BEGIN,     /* text: the tool's name; id: made for this call */
    RD_DELTA_CALL_ARGUMENTS, /* text: the next piece of a JSON object's text */
    RD_DELTA_CALL_END        /* complete: the model wrote it to its end */
};
struct rd_delta {
    enum rd_delta_type type;
    uint32_t index;
    const char *text; /* valid UTF-8; may be empty */
    size_t text_bytes;
    const char *id; /* CALL_BEGIN; else "" */
    bool complete;
};

struct rd_event {
    size_t size; /* see above */
    enum rd_event_type type;
    /* The content: valid UTF-8, may be empty, valid until the next call on this request */
    const char *text;
    size_t text_bytes;
    const struct rd_delta *deltas; /* of TOKEN, DONE: everything there is, the content included; as long valid */
    uint32_t n_deltas;
    int32_t token;
    float logprob;
    uint32_t n_top;
    struct rd_logprob top[20];
    enum rd_finish finish;
    const char *stop_string; /* DONE by a stop string: which one (valid until the request is released); else NULL */
    int32_t stop_token;      /* DONE by an end token: which one; else -1 */
    rd_status status;
    const char *message;   /* ERROR: a fixed text, safe to show to the client */
    struct rd_usage usage; /* the last member: what is added is added to it */
};

/* The tokens of the prompt that rd_submit would make of o (rd_free). A conversation that grew since it was last asked
 * for, or submitted, is tokenised from its last safe place on. */
RD_API rd_status rd_prompt_tokens(const rd_engine *engine, const struct rd_request_options *o, int32_t **tokens,
                                  uint32_t *n_tokens, struct rd_error *err);

/* What the template writes of o's messages_json, tools_json, kwargs_json and prompt_end, as rd_apply_template. Its images are
 * decoded with the memory that o's fairness_key has for them (RD_E_FULL: others have it now). *prompt: rd_free. */
RD_API rd_status rd_prompt_text(const rd_engine *engine, const struct rd_request_options *o, char **prompt,
                                size_t *n_bytes, struct rd_error *err);

/* Rows of images are negative numbers there, which say whose image they are; this is the token that other programs write for
 * each. -1: there is none. */
RD_API int32_t rd_image_token(const rd_engine *engine);

/* Stores o's prompt, when nothing else is to do, for requests to come. max_tokens and what belongs to the answer do not
 * matter. o is copied. RD_E_FULL: half of the queue waits already. Errors of template, length and tokens are logged. */
RD_API rd_status rd_warm(rd_engine *engine, const struct rd_request_options *o, struct rd_error *err);

/* Declares o's prompt public, and stores it as rd_warm does: requests that begin as it does find that part stored
 * whatever their cache_salt, which o has none of. At most 256. RD_E_LIMIT beyond. */
RD_API rd_status rd_share_prefix(rd_engine *engine, const struct rd_request_options *o, struct rd_error *err);

/* Asynchronous. wake(wake_user) is called (from radish's threads; must be quick, must not call back) whenever
 * rd_request_next may have something new. o is copied. RD_E_FULL: the queue is full (HTTP 429). RD_E_CLOSED.
 * RD_E_INVALID names the parameter. Errors of template, length and tokens come as an RD_EVENT_ERROR, because they are
 * found by another thread. */
RD_API rd_status rd_submit(rd_engine *engine, const struct rd_request_options *o, void (*wake)(void *user),
                           void *wake_user, rd_request **out, struct rd_error *err);
/* RD_OK: *ev is the next event. RD_E_AGAIN: nothing now. After DONE or ERROR: RD_E_CLOSED. Never blocks. */
RD_API rd_status rd_request_next(rd_request *request, struct rd_event *ev);
/* The same, but waits up to timeout_ms for an event. */
RD_API rd_status rd_request_wait(rd_request *request, uint32_t timeout_ms, struct rd_event *ev);
/* Stops it within one step; what was computed stays in the cache. Idempotent. */
RD_API void rd_request_cancel(rd_request *request);
/* Gives the request back (cancels it if it runs). wake is not called any more once this has returned. NULL is fine. */
RD_API void rd_request_release(rd_request *request);
/* How far the prompt is: n_done of its n_prompt tokens, n_cached of them from the tree. All 0 before STARTED; while it
 * waits for others the two are 0. */
struct rd_progress {
    uint32_t n_prompt, n_done, n_cached;
};
RD_API void rd_request_progress(const rd_request *request, struct rd_progress *out);
/* The prompt's tokens, known after STARTED; a view that lives as long as the request. */
RD_API const int32_t *rd_request_prompt(const rd_request *request, uint32_t *n);
/* prompt_logprobs: entry i belongs to prompt token i (entry 0 has no value: n_top 0, logprob 0); complete at the first
 * TOKEN or DONE event. top: n_top_logprobs entries per token, row-major. */
RD_API const struct rd_logprob *rd_request_prompt_logprobs(const rd_request *request, const struct rd_logprob **top,
                                                           uint32_t *n);
/* As long, beside it: 1 + how many tokens were more likely than the prompt's; entry 0: 0. */
RD_API const uint32_t *rd_request_prompt_ranks(const rd_request *request, uint32_t *n);

/* embed: the prompt's vector of rd_info.hidden floats, of length 1 (zeros if it has no direction); NULL before DONE. A
 * view that lives as long as the request. */
RD_API const float *rd_request_embedding(const rd_request *request, uint32_t *n);
/* Where a model of the GUI-Actor kind points (docs/vision.md): per <|pointer_pad|> of the answer at most five, the best
 * first. Complete at DONE; n 0 before, and for answers that do not point. A view that lives as long as the request. */
struct rd_point {
    double x, y;      /* 0 .. 1 of the image, from its upper left corner */
    double score;     /* mean of its patches' */
    uint32_t pointer; /* which <|pointer_pad|> of the answer, from 0 */
    uint32_t image;   /* which image of the conversation, from 0 */
};
RD_API const struct rd_point *rd_request_points(const rd_request *request, uint32_t *n);
/* score_tokens: their log probabilities after the prompt, in the same order; NULL before DONE. As long valid. */
RD_API const float *rd_request_scores(const rd_request *request, uint32_t *n);

/* Blocking: every event goes to on_event (NULL: none) until the request has ended; a non-zero return cancels it. The
 * status is the request's: RD_OK for stop and length, RD_E_CANCELLED, or the error. */
typedef int (*rd_event_fn)(void *user, uint32_t index, const struct rd_event *ev);
RD_API rd_status rd_generate(rd_engine *engine, const struct rd_request_options *o, rd_event_fn on_event, void *user,
                             struct rd_error *err);
/* n requests at once, run as one batch; index tells which. The first error is returned, the others run on. */
RD_API rd_status rd_generate_batch(rd_engine *engine, const struct rd_request_options *o, uint32_t n,
                                   rd_event_fn on_event, void *user, struct rd_error *err);

/* ---- low level: tokens in, logits out, cache handles ---- */

/* Computes tokens[0..n) after base (NULL: the empty sequence). logits [n_vocab] of the last token, or NULL. *out (NULL:
 * not wanted) is a handle on base + tokens: its pages stay until rd_kv_free. Blocking. n >= 1. */
RD_API rd_status rd_forward(rd_engine *engine, const rd_kv *base, const int32_t *tokens, uint32_t n, float *logits,
                            rd_kv **out, struct rd_error *err);
/* The first keep tokens of base, without copying tensors. keep <= length. */
RD_API rd_status rd_kv_slice(const rd_kv *base, uint32_t keep, rd_kv **out, struct rd_error *err);
RD_API uint32_t rd_kv_length(const rd_kv *kv);
/* Sets *kv to NULL, so that a second call does nothing. */
RD_API void rd_kv_free(rd_kv **kv);
/* Prefill only: logits [n_vocab] after the prompt, cached as usual. Blocking. */
RD_API rd_status rd_classify(rd_engine *engine, const int32_t *tokens, uint32_t n, float *logits, struct rd_error *err);
/* One prompt of rd_classify_batch, and what was found. */
struct rd_classify_item {
    size_t size;           /* of this struct, the same in all items: see above */
    const int32_t *tokens; /* the prompt; n >= 1 */
    uint32_t n;
    const int32_t *labels; /* the tokens to choose from; NULL: the caller wants logits alone */
    uint32_t n_labels;
    float *logprobs; /* [n_labels] of the labels, or NULL: not wanted */
    float *logits;   /* [n_vocab] after the prompt, or NULL: not wanted */
    uint32_t best;   /* out: index of the most likely label */
    rd_status status;
};
/* Many prompts at once, as one batch: prefill only, cached as usual, a common beginning computed once. Blocking. The first
 * error is returned, each item has its own, the others run on. */
RD_API rd_status rd_classify_batch(rd_engine *engine, struct rd_classify_item *items, uint32_t n, struct rd_error *err);
/* Log probability of every token given those before it: logprobs[0] = 0. n <= n_ctx. Not cached. Blocking. */
RD_API rd_status rd_score(rd_engine *engine, const int32_t *tokens, uint32_t n, float *logprobs, struct rd_error *err);
/* The vector of a text (rd_request_options.embed): out [rd_info.hidden], of length 1. Blocking. */
RD_API rd_status rd_embed(rd_engine *engine, const int32_t *tokens, uint32_t n, enum rd_pooling pooling, float *out,
                          struct rd_error *err);
/* The same as rd_forward without cache: computes everything. For tests of exactness. */
RD_API rd_status rd_forward_cold(rd_engine *engine, const int32_t *tokens, uint32_t n, float *logits,
                                 struct rd_error *err);

/* ---- adapters (radish/adapter.h) ---- */

/* Any thread, while requests run; blocks for as long as its file is read. name: 1 to 128 bytes without control characters, not
 * taken yet and not the model's (RD_E_INVALID). RD_E_FORMAT, RD_E_UNSUPPORTED: the file, or it is another model's; RD_E_LIMIT: adapter_bytes. */
RD_API rd_status rd_adapter_load(rd_engine *engine, const char *name, const char *path, double scale,
                                 struct rd_error *err);
/* Requests that run with it go on. RD_E_NOT_FOUND. */
RD_API rd_status rd_adapter_unload(rd_engine *engine, const char *name, struct rd_error *err);
/* Requests that say nothing of adapters are computed with it from now on, at this scale; 0: no more. RD_E_NOT_FOUND. */
RD_API rd_status rd_adapter_apply(rd_engine *engine, const char *name, double scale, struct rd_error *err);
/* Up to n_max of those that are loaded, by id; returns how many there are. */
RD_API uint32_t rd_adapters(const rd_engine *engine, struct rd_adapter *out, uint32_t n_max);

/* ---- what is going on ---- */

enum { RD_MATCH_MISS, RD_MATCH_EXACT, RD_MATCH_PREFIX, RD_MATCH_SUPERSEQUENCE, RD_MATCH_LCP, RD_N_MATCH_KINDS };

/* Why not all of a prompt was stored: it was (NONE), nothing of it ever was (NEW), it goes on from the end of what is
 * (NEW_END: as a conversation does that only grew), it differs from what is (DIFFERENT),
 * or what it needs was dropped: for room (EVICTED), unused for too long (EXPIRED), or on demand (CLEARED). What
 * rd_cache_explain alone tells: more of it is stored under another cache_salt of the same fairness_key (SALT), or on disk
 * with another KV type of this model (KV_TYPE). */
enum rd_miss_cause {
    RD_MISS_NONE,
    RD_MISS_NEW,
    RD_MISS_DIFFERENT,
    RD_MISS_EVICTED,
    RD_MISS_EXPIRED,
    RD_MISS_CLEARED,
    RD_MISS_SALT,
    RD_MISS_KV_TYPE,
    RD_MISS_NEW_END,
    RD_MISS_WINDOW,
    RD_N_MISS_CAUSES
};
/* "none", "new", "different", "evicted", "expired", "cleared", "salt", "kv_type", "new_end", "window" */
RD_API const char *rd_miss_cause_name(enum rd_miss_cause cause);

#define RD_N_DEPTHS 6
/* What is wrong with the shared store, by what it says. Identifier, word. */
#define RD_STORE_TROUBLES(X)                                                                                           \
    X(RD_STORE_WELL, "ok")                                                                                             \
    X(RD_STORE_DOWN, "down")                                                                                           \
    X(RD_STORE_PASSWORD, "wrong password")                                                                             \
    X(RD_STORE_FULL, "full")                                                                                           \
    X(RD_STORE_READ_ONLY, "read-only")                                                                                 \
    X(RD_STORE_ODD, "no store")                                                                                        \
    X(RD_STORE_CLUSTER, "a cluster")
#define RD_STORE_ENUM(id, word) id,
enum rd_store_trouble { RD_STORE_TROUBLES(RD_STORE_ENUM) RD_N_STORE_TROUBLES };
#undef RD_STORE_ENUM

struct rd_stats {
    size_t size; /* see above */
    /* requests by state now; ended since the start by outcome */
    uint64_t n_preparing, n_queued, n_waiting, n_prefill, n_decode;
    uint64_t n_loading; /* of n_queued: their beginning is read from disk or host memory */
    uint64_t n_paused;  /* of those that are not queued: their reader is slow */
    uint64_t n_submitted, n_stop, n_length, n_cancelled, n_failed, n_rejected, n_preempted;
    uint64_t cancelled_in[RD_N_PHASES]; /* where they were; those in PREPARING are not part of n_cancelled */
    uint64_t n_corrupted;               /* of n_failed: the model gave logits that are no numbers */
    /* tokens since the start: prompt = computed + cached (each admission) */
    uint64_t prompt_tokens_computed, prompt_tokens_cached, prompt_tokens_joined, tokens_generated, tokens_recomputed;
    uint64_t prompt_tokens_device; /* of prompt_tokens_cached: not joined, and not brought from host memory or disk */
    uint64_t n_drafts, tokens_drafted, tokens_draft_accepted; /* speculation */
    uint64_t longest_tokens;                                  /* the longest sequence that ended, its prompt included */
    uint64_t matches[RD_N_MATCH_KINDS];
    uint64_t misses[16]; /* by cause: admitted requests by what was not stored of them; room for causes to come */
    /* pages: total = free + ready + locked + pending + quarantined */
    uint64_t pages_total, pages_free, pages_ready, pages_locked, pages_pending, pages_quarantined, pages_evicted,
        page_tokens;
    uint64_t tree_nodes, tree_keys, tree_bytes, tree_insert_failed, rows_copied;
    uint64_t kept_plain, kept_short, kept_shared, kept_held, kept_long,
        kept_day; /* of tree_keys, by how long they are kept */
    /* Of tree_nodes and tree_keys, by where a node ends: up to 256 tokens from the beginning, 1 Ki, 4 Ki, 16 Ki, 64 Ki,
     * beyond. */
    uint64_t depth_nodes[RD_N_DEPTHS], depth_tokens[RD_N_DEPTHS];
    /* What left the tree since the start: for others, by age (cache_ttl_s), or because it was cleared. */
    uint64_t bytes_evicted, tokens_evicted, pages_expired, tokens_expired, pages_cleared, tokens_cleared;
    uint64_t n_steps, n_steps_ahead /* begun while the one before ran */, step_rows, device_errors, accounting_errors;
    uint64_t step_runs;                               /* sequences, of all steps; step_rows: tokens */
    double plan_ms, forward_ms, sample_ms, output_ms; /* where the time of all steps went */
    uint64_t n_steps_after_cancel; /* the most steps that any request took part in after it was cancelled: 1 at most */
    bool device_dead; /* the device, or the model's file, failed for good: every request ends with RD_E_DEVICE */
    double step_ms_last, prefill_tok_s, decode_tok_s; /* of the latest steps, smoothed */
    /* the disk cache (zeros without one), see docs/disk-cache.md; prompt_tokens_disk is part of prompt_tokens_cached */
    uint64_t prompt_tokens_disk, pages_loading, disk_loads, disk_loads_late, disk_declined;
    uint64_t disk_pages, disk_bytes, disk_cap_bytes, disk_segments; /* now */
    uint64_t disk_pages_written, disk_bytes_written, disk_pages_known, disk_pages_read, disk_bytes_read,
        disk_pages_evicted, disk_pages_dropped, disk_damaged, disk_read_errors, disk_write_errors, disk_remove_errors;
    uint64_t disk_is_writer, disk_is_failing; /* 0 or 1 */
    /* the shared store (zeros without one), see docs/shared-store.md; prompt_tokens_shared is part of prompt_tokens_disk */
    uint64_t prompt_tokens_shared, shared_lookups, shared_lookups_late, shared_pages_found, shared_lookup_us;
    uint64_t shared_loads, shared_declined, shared_page_us, shared_pages_read, shared_bytes_read, shared_refused;
    uint64_t shared_pages_written, shared_bytes_written, shared_pages_known, shared_pages_dropped, shared_pages_removed,
        shared_queue_bytes, shared_read_errors, shared_write_errors;
    uint64_t events_stored, events_removed, events_dropped, events_cleared, events_batches,
        events_replays; /* kv_events */
    uint64_t shared_is_on, shared_reads,
        shared_writes; /* 0 or 1; the latter: that direction works, as far as is known */
    uint64_t shared_read_trouble, shared_write_trouble; /* enum rd_store_trouble: why it does not */
    /* host memory behind a GPU (zeros without), see docs/gpu.md; prompt_tokens_ram is part of prompt_tokens_cached */
    uint64_t prompt_tokens_ram, ram_pages, ram_cap_pages, ram_pages_saved, ram_pages_dropped, ram_loads,
        ram_pages_loaded, ram_pages_moving, ram_copy_errors;
    double ram_load_ms; /* all loads together */
    /* hits computed again (rd_options.cache_verify): drawn and waiting now; compared whole, and their tokens; given up
     * (evicted meanwhile); found wrong, which must never be */
    uint64_t verify_waiting, verify_verified, verify_tokens, verify_skipped, verify_mismatches;
    uint64_t n_grammars, grammar_bytes, grammar_limit_bytes; /* compiled and kept or in use; rd_options.grammar_bytes */
    /* memory */
    uint64_t weight_bytes, packed_bytes, workspace_bytes, kv_bytes, rss_anon_bytes, rss_file_bytes;
    uint64_t memory_used_bytes, memory_peak_bytes, memory_limit_bytes; /* struct rd_memory */
    double uptime_s;
    uint64_t process_starts; /* of a backend that is another program */
    bool process_is_down;    /* it is being started again */
    uint64_t n_turns;        /* of the engine's loop: at least one a second, unless a step is long */
    uint64_t n_beats;        /* signs of getting on within steps: on a CPU while prompts are computed */
    /* Where some layers see the last window_tokens alone (0: in this model, or on this device, none does), their part of a
     * page is a window: total = free + kept (nobody uses it now) + used. dropped: kept ones that gave way, since the start.
     * cuts: prompts that were found up to where windows are gone; cut_tokens: computed again for that. */
    uint64_t window_tokens, windows_total, windows_free, windows_kept, windows_used, windows_dropped, window_cuts,
        window_cut_tokens;
    uint64_t kv_used_bytes; /* of kv_bytes: pages and windows that hold something */
    uint64_t library_active_bytes, library_peak_bytes, library_cache_bytes, library_limit_bytes; /* struct rd_memory */
    /* Images of prompts; encoded; of those that were wanted: while another request's was being encoded, and encoded before; now
     * waiting; rows kept for the next ones; whose rows came from the disk */
    uint64_t images, images_encoded, images_joined, images_kept, images_waiting, image_kept_bytes, images_stored;
    double encoder_ms; /* in all */
};
RD_API void rd_get_stats(rd_engine *engine, struct rd_stats *out);

/* The memory that radish takes from the system in this process, all engines together: heap, KV cache and workspaces, which
 * count whole from the moment they are reserved. Not in it: mapped model files, stacks, and the memory of a GPU. */
struct rd_memory {
    size_t size;                     /* see above */
    uint64_t used_bytes, peak_bytes; /* now; the most since the start, or since rd_memory_reset_peak() */
    uint64_t limit_bytes;            /* 0: none */
    /* What a backend's library (MLX) keeps for arrays, which is counted apart: in use now and at most so far, freed and kept
     * for the next arrays, and from where on it frees those first. 0: no such library in this build. */
    uint64_t library_active_bytes, library_peak_bytes, library_cache_bytes, library_limit_bytes;
};
RD_API void rd_memory_usage(struct rd_memory *out);
RD_API void rd_memory_reset_peak(void);
/* A hard limit: what would take more fails as it does when the system has no more (RD_E_NOMEM; a request is refused or
 * ends with an error, an rd_open fails), and everything else goes on. Set it before rd_open. 0: none. RD_E_LIMIT, and
 * nothing changed: more is in use now. */
RD_API rd_status rd_memory_limit(uint64_t n_bytes, struct rd_error *err);

/* Requests are queued or run; cheaper than all statistics. */
RD_API bool rd_is_busy(rd_engine *engine);
/* What the cache would do for a request, without running it. */
struct rd_cache_explanation {
    size_t size;                          /* see above */
    uint32_t n_prompt, n_stored, n_ready; /* tokens; ready: computed already, and to be used */
    uint32_t n_disk;                      /* behind n_stored: on disk, whole pages of them; they would be loaded */
    uint32_t n_ram;                       /* behind n_stored: in host memory (a GPU's second tier) */
    uint32_t n_lossy;                     /* of n_ready: in pages that were kept as 8-bit integers */
    enum rd_miss_cause cause;
    int32_t message;             /* index in messages_json of where it differs; -1: in none of them */
    const char *part;            /* "system", "tools", "message", "template" or "" : a constant */
    char other_kv_type[48];      /* KV_TYPE: which */
    char sent[256], stored[256]; /* the text from the first token that differs on, UTF-8; stored "": nothing follows */
};
/* Any thread; nothing is computed or stored. Errors as rd_prompt_tokens. */
RD_API rd_status rd_cache_explain(rd_engine *engine, const struct rd_request_options *o,
                                  struct rd_cache_explanation *out, struct rd_error *err);
/* The stored tree as JSON: {"nodes":[{"depth","start","tokens","computed","locks","bytes","hits","images","created",
 * "last_use","age_s","kept","text"}],"more":bool}, parents first, at most n_max nodes. bytes: of the KV pages that its
 * parent does not hold, too; hits: prompts that were found to begin with it; images: rows of images among its tokens;
 * created, last_use: seconds since 1970; age_s: since the last use; kept: as what (docs/cache.md); text: the beginning of a
 * node's own. Caller's (rd_free); NULL: out of memory. */
RD_API char *rd_cache_list(rd_engine *engine, uint32_t n_max);
/* The same of what requests with this cache_salt (NULL: none) share. */
RD_API char *rd_cache_list_of(rd_engine *engine, const char *cache_salt, uint32_t n_max);
/* Drops everything unlocked from the cache, and all of the disk cache; returns the pages freed in memory. */
RD_API uint64_t rd_cache_clear(rd_engine *engine);

/* Drops what is unlocked of the end of o's prompt and of all that goes on behind it, in memory and on disk; *n_pages: pages
 * freed in memory, *n_disk: entries of the disk cache. Errors as rd_prompt_tokens. */
RD_API rd_status rd_cache_clear_behind(rd_engine *engine, const struct rd_request_options *o, uint64_t *n_pages,
                                       uint64_t *n_disk, struct rd_error *err);

/* Named caches: what the requests with a cache_name computed, as one thing, among those of a cache_salt (NULL: none): see
 * docs/cache.md. A name is there from its first request on; the least recently used are forgotten where there are too
 * many of them, never a saved one. */
struct rd_cache_name {
    uint32_t n_texts, n_running;       /* texts that are told apart; requests that run */
    uint64_t n_tokens, n_own_tokens;   /* in memory; of those, this name's alone */
    uint64_t n_disk_tokens, own_bytes; /* on disk, in whole pages; keys and values of n_own_tokens */
    double age_s;                      /* since its last use */
    bool is_saved;
};
/* {"object":"list","data":[{"cache_name","texts","running","tokens","own_tokens","own_bytes","disk_tokens","saved",
 * "age_s"}]}, the one used last first. Caller's (rd_free); NULL: out of memory. */
RD_API char *rd_cache_names(rd_engine *engine, const char *cache_salt);
/* All of it is on disk when this returns, and outlives a power cut; the name outlives a restart, and what it has counts as
 * used, in memory for a day after its last use, on disk for good. RD_E_NOT_FOUND. RD_E_UNSUPPORTED: there is no disk cache.
 * RD_E_LIMIT: 64 names of a fairness_key are saved, or what is saved would take more than a quarter of the disk cache.
 * RD_E_AGAIN, RD_E_IO: the disk cache cannot be written. May take seconds. */
RD_API rd_status rd_cache_save_name(rd_engine *engine, const char *cache_salt, const char *name,
                                    struct rd_cache_name *out, struct rd_error *err);
/* What is the name's alone goes, from memory and disk, and the name is forgotten; *was: what it had. Requests of it that run
 * go on, and what they leave is dropped when they end. *n_pages: pages that are free now. RD_E_NOT_FOUND. */
RD_API rd_status rd_cache_drop_name(rd_engine *engine, const char *cache_salt, const char *name,
                                    struct rd_cache_name *was, uint64_t *n_pages, struct rd_error *err);

/* The disk cache in a folder, without a model, even while a process uses it (CLEAR excepted). *json is the caller's
 * (rd_free):
 *     LIST     {"dir", "in_use", "bytes", "pages", "segments", "damaged", "entries": [{"id", "model" and "kv_type" (null:
 *              unknown), "pages", "tokens", "bytes", "segments", "age_s"}]}
 *     VERIFY   {"pages", "damaged", "dropped"}: every page is read and checked; damaged ones are dropped unless another
 *              process writes there
 *     CLEAR    {"entries", "bytes"}: of that model or entry (id), or (model NULL) everything
 * RD_E_NOT_FOUND: no such folder, no cache in it, nothing of that model. RD_E_AGAIN: CLEAR, and another process writes. */
enum rd_cache_dir_job { RD_CACHE_DIR_LIST, RD_CACHE_DIR_VERIFY, RD_CACHE_DIR_CLEAR };
RD_API rd_status rd_cache_dir(const char *dir, enum rd_cache_dir_job job, const char *model, char **json,
                              struct rd_error *err);

/* ---- log ---- */
enum rd_log_level { RD_LOG_ERROR, RD_LOG_WARN, RD_LOG_INFO, RD_LOG_DEBUG };
/* Where log lines go (NULL: stderr) and from which level on; process wide. */
RD_API void rd_set_log(enum rd_log_level level, void (*fn)(void *user, enum rd_log_level level, const char *line),
                       void *user);

#ifdef __cplusplus
}
#endif
