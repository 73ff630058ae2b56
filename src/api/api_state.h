/* api/api_state.h - what stands behind the handles of radish/radish.h.
 *
 * Thread  rd_engine: read-only after open, except its queues and atomics. rd_request: groups below.
 */
#pragma once
#include <stdatomic.h>
#include "memory/answer_memory.h"
#include "api/grammar_store.h"
#include "api/turns.h"
#include "memory/memory_file.h"
#include "memory/spelling_memory.h"
#include "memory/salt_ring.h"
#include "base/arena.h"
#include "base/buf.h"
#include "base/queue.h"
#include "base/sip_hash.h"
#include "base/thread.h"
#include "backend/process/process_backend.h"
#include "engine/engine.h"
#include "engine/executor.h"
#include "format/model_file.h"
#include "radish/radish.h"
#include "text/chat/chat_template.h"
#include "text/output/output_parser.h"
#include "text/tokenizer/stop.h"
#include "text/tokenizer/token_memory.h"
#include "text/tokenizer/tokenizer.h"
#include "vision/processor.h"
#include "api/api_images.h"
#include "api/image_pot.h"
#include "api/image_source.h"

#define API_N_PREP 2u
#define API_N_FAR  4u

/* What the model's chat template tells about its output; read-only after open. */
struct api_style {
    enum output_style tools;
    const struct think_tags *think; /* NULL: no thinking */
    bool own_tools;                 /* the template has a tool format; else the prompt explains one */
    int32_t *visible;               /* control tokens that the output parser must see */
    uint32_t n_visible;
    int32_t *ends; /* every token that ends a turn */
    uint32_t n_ends;
    int32_t *open, *close, *forced; /* of the thinking tags, for budgets; see think_budget.h */
    uint32_t n_open, n_close, n_forced;
};

/* What the client got so far; see api_replay.c. */
struct api_answer {
    struct buf content, reasoning, arguments;
    json_t *calls;
    bool shown; /* calls are in the content, too */
    bool failed;
};

/* The output of a request, split; see api_output.c. */
struct api_output {
    struct output_parser *parser; /* NULL: all is content */
    json_t *tools;
    struct rd_delta *deltas; /* of this event; text and id are offsets into `text` until handed out */
    size_t cap_deltas;
    uint32_t n_deltas;
    struct buf text;
    const char *head; /* a call that the prompt began: the parser sees it first. arena, or NULL */
    struct api_answer answer;
    uint32_t n_reasoning;
    bool has_call;   /* single_call: the call is there, perhaps without its closing tag */
    uint32_t n_tail; /* pieces of text since then */
    bool has_all;    /* with its closing tag */
    bool satisfied;  /* and a token came behind it: nothing more is wanted */
    bool failed;
};

struct rd_engine {
    struct rd_info info;
    struct model_file *gguf;
    struct tokenizer *tokenizer;
    struct token_memory *texts; /* prompts that were tokenised last; locks itself */
    struct chat_template *chat;
    struct api_style style;
    struct grammar_store *grammars;    /* locks itself */
    struct answer_memory *answers;     /* NULL: none are kept */
    struct spelling_memory *spellings; /* NULL with answers */
    struct memory_file *names;         /* saved named caches; NULL: they end with the process */
    struct memory_file *memory;        /* of both; NULL: they end with the process */
    struct salt_ring salts;
    struct sip_key salt_key;            /* of this process */
    bool keep_volatile;                 /* volatile lines are rendered too */
    bool no_replay;                     /* nothing is put back as it was sampled */
    bool sort_keys;                     /* of tools and arguments */
    bool sets_thinking, thinks_unasked; /* rd_options.thinking: whether it says so, and what */
    bool context_shift;                 /* of requests that do not say */
    atomic_bool left_out_logged;        /* it is told once; relaxed would do */
    struct executor *executor;          /* NULL: a tokenizer without weights */
    struct executor_traits traits;      /* of it */
    struct model_file *eyes;            /* the encoder's, where it is a file by itself; or NULL */
    struct pointer_tokens pointer;      /* of a model that points */
    bool sees;                          /* images are taken, as this makes them: */
    struct image_processor processor;   /* read-only after load */
    struct image_sources sources;
    char blind[320];          /* a sentence: why not, where there is more to say than that the model is blind */
    struct api_draft *draft;  /* NULL: no draft model */
    struct kv_events *events; /* NULL: no one is told */
    struct store_link *store; /* NULL: no disk cache; then with the model file's digest: */
    struct hash128 content;
    struct ram_link *ram;            /* NULL: no tier in host memory */
    struct engine *engine;           /* NULL: a tokenizer without weights, or: */
    struct process_backend *process; /* another program computes; then there is neither file nor tokenizer */
    struct api_adapters *adapters;   /* likewise; locks itself */
    uint64_t opened_ns;
    struct queue *prep; /* rd_request, each with a reference */
    struct thread prep_threads[API_N_PREP];
    struct turns slow;                    /* requests whose form takes long, each with a reference: by turn */
    struct thread slow_thread;            /* compiles them, when no other wants its core */
    struct turns far;                     /* requests whose images are got from elsewhere, likewise */
    struct thread far_threads[API_N_FAR]; /* none: nothing is */
    atomic_ullong next_id;                /* relaxed: only unique */
    struct image_pot pot;                 /* of requests' images */
    atomic_ullong n_preparing;            /* for rd_get_stats, as are, relaxed: */
    atomic_ullong n_rejected, n_cancelled_preparing;
};

/* A request whose context goes on when it is full: see api_shift.c. */
struct api_shift {
    bool is_on;
    uint32_t n_keep, n_wanted; /* tokens of the beginning that stay; tokens to generate in all */
    int thinks;                /* enum api_thinking, at the beginning */
    atomic_bool last_wake;     /* of the running part: the engine stores it before its last ring */
    /* consumer */
    int32_t last_token; /* that came */
    int32_t *generated; /* by the parts that ended */
    size_t cap_generated;
    uint32_t n_generated, n_shifts, n_dropped;
    struct request *first;    /* the first part; NULL: it is the only one */
    struct request_usage sum; /* of the parts that ended */
};

enum request_phase { PHASE_PREPARING, PHASE_RUNNING, PHASE_FAILED, PHASE_PROCESS };

struct rd_request {
    rd_engine *engine;
    struct rd_request_options o; /* pointers into arena; read-only after rd_submit */
    struct arena arena;
    struct adapter_mix *adapters; /* a reference, or NULL */
    uint64_t asked_ns;            /* when rd_submit was called */

    /* the prep worker writes, then stores phase (release); the consumer reads after loading it (acquire) */
    struct process_job *job; /* NULL unless PROCESS */
    struct request *request; /* NULL unless RUNNING; with shift the consumer puts the next part there */
    struct api_shift shift;
    rd_status fail_status;
    char fail_message[512];
    atomic_int phase;
    atomic_bool cancelled; /* sequentially consistent with phase: either the worker or the canceller tells the engine */
    atomic_int refs;       /* consumer, and worker or engine until the last wake */

    struct mutex lock; /* guards wake, wake_user, rung */
    struct cond cond;
    void (*wake)(void *user);
    void *wake_user;
    bool rung;

    struct { /* prep worker, then perhaps the slow one: all but the form is there */
        struct request_params params;
        int32_t *tokens;
        uint32_t n_tokens;
        int thinks; /* enum api_thinking */
        struct turn turn;
    } ready;

    /* consumer */
    struct token_decoder decoder;
    struct stop_matcher *stops;
    struct api_output output;
    struct buf text;                 /* text of the event that was handed out last */
    const char *left_out;            /* see struct rd_usage; arena; written by the prep worker */
    bool taught;                     /* likewise: its instructions show calls as text (text/output/taught_calls.h) */
    struct spelled spelled;          /* likewise: what the answer is kept under */
    uint32_t n_messages, n_restored; /* likewise */
    struct api_images images;        /* likewise */
    int stop_hit;                    /* index of the stop string found, or -1 */
    uint32_t n_tokens_out;
    bool started_sent, ended_sent;
    bool has_held; /* PROCESS: an event that comes behind STARTED */
    struct process_event held;
    double first_ms; /* PROCESS: from the submit to the first text */
};

struct rd_kv {
    rd_engine *engine;
    int32_t *tokens;
    uint32_t n;
    struct radix_node *node; /* held; engine thread */
};

/* api_prep.c */
void api_prep_main(void *arg); /* rd_engine */
void api_slow_main(void *arg); /* likewise: forms that take long */
void api_far_main(void *arg);  /* likewise: images that are elsewhere */
struct api_prompt_notes;
/* Renders and tokenizes; *tokens is mem_free'd by the caller. notes: as of struct api_rendering. */
rd_status api_prompt_tokens(const rd_engine *engine, const struct rd_request_options *o, struct api_prompt_notes *notes,
                            int32_t **tokens, uint32_t *n, struct rd_error *err);
/* A control token other than the thinking tags: a turn reaches back to one. */
bool api_bounds_turn(const rd_engine *engine, int32_t token);
/* api_sampling.c. Numbers and ids; the lists stay the options'. RD_E_INVALID: samplers. */
rd_status api_sampling_fill(const struct rd_request_options *o, struct sampler_params *p, struct rd_error *err);
/* Everything that can be told without the tokenizer. RD_E_INVALID names the parameter. */
rd_status api_sampling_check(const rd_engine *engine, const struct rd_request_options *o, struct rd_error *err);
/* Prep worker: bad words, sequence breakers and biases of texts, as tokens in the arena. */
rd_status api_sampling_texts(const rd_engine *engine, const struct rd_request_options *o, struct arena *a,
                             struct sampler_params *p, struct rd_error *err);
/* api_form.c. Whether thinking may come first: the prompt has opened it, it may be opened, or neither. */
enum api_thinking { API_THINKING_NONE, API_THINKING_MAY, API_THINKING_OPEN };
/* The grammar that the output is held to, compiled or known; p->grammar is a reference for the caller, NULL: the output is
 * free. Prep worker: quickly, RD_E_AGAIN: it takes long. RD_E_INVALID, RD_E_UNSUPPORTED: what is wrong with it. */
rd_status api_form_fill(struct rd_request *r, enum api_thinking thinking, bool quickly, struct constraint_params *p,
                        struct rd_error *err);
/* Calls can be held to a grammar: it knows their form, and the vocabulary has every character by itself. Once the style is
 * known; then it is info.holds_calls. */
bool api_holds_calls(const rd_engine *engine);
/* A forced call is begun in the prompt, because no grammar can hold it. */
bool api_begins_call(const rd_engine *engine, const struct rd_request_options *o);
/* api_embed.c: pooling, rank and the tokens for filling in the middle, off the file; after the tokenizer is there. */
void api_embed_init(rd_engine *engine);
/* What of a prompt of n tokens is pooled; *cached: a cached prefix may be used. */
void api_embed_wish(const rd_engine *engine, enum rd_pooling pooling, uint32_t n, struct prefill_wish *wish,
                    bool *cached);
/* api_style.c. tool_parser: a style's name or NULL. */
rd_status api_style_init(rd_engine *engine, const char *tool_parser, struct rd_error *err);
/* The engine's style of calls becomes the one of this name; NULL: stays. */
rd_status api_style_find(rd_engine *engine, const char *tool_parser, struct rd_error *err);
void api_style_deinit(struct api_style *s);
/* api_output.c. Prep worker: makes the parser, if the options want one. thinks: the prompt ended inside the thinking.
 */
rd_status api_output_init(struct rd_request *r, bool thinks, struct rd_error *err);
void api_output_deinit(struct api_output *out);
/* Consumer: a token's text, valid UTF-8. special: of a control token. */
void api_output_feed(struct rd_request *r, const char *s, size_t n, bool special);
void api_output_finish(struct rd_request *r);
/* Nothing more of the output leaves: a stop string or the only call was found. */
bool api_output_is_cut(const struct rd_request *r);
void api_output_hand_out(struct rd_request *r, struct rd_event *ev);
/* api_retain.c: what of the prompt is kept longer; without memory, nothing. tools: as they were rendered, or NULL: as in
 * o. */
void api_retain_fill(const rd_engine *engine, const struct rd_request_options *o, const char *tools,
                     const int32_t *tokens, uint32_t n, struct request_params *p);
/* api_backends.c: the types of weights, as people are told of them. */
#define API_WEIGHT_TYPES 13u
extern const enum dtype api_weight_types[API_WEIGHT_TYPES];
/* api_adapters.c: open loads those of o; close once no request has any. mix: a reference, or NULL: none are wanted. */
rd_status api_adapters_open(rd_engine *e, const struct rd_options *o, struct rd_error *err);
void api_adapters_close(rd_engine *e);
rd_status api_adapters_mix(const rd_engine *e, const struct rd_request_options *o, struct adapter_mix **mix,
                           struct rd_error *err);
/* api_replay.c: the namespace of such a request. Of adapters that are not there: one in which nothing is stored. */
struct kv_space api_space(const rd_engine *engine, const struct rd_request_options *o);
void api_answer_add(struct api_answer *a, enum rd_delta_type type, const char *id, const char *s, size_t n);
void api_answer_deinit(struct api_answer *a);
/* Consumer, once the request has ended. */
void api_answer_keep(struct rd_request *r);
/* What answer_memory_keep() and the spellings get of an answer that ended by itself; ids: the prompt's and its own. */
struct api_kept {
    struct kv_space owner;
    const uint32_t *ids;
    uint32_t n_prompt, n_ids, n_messages;
    const struct spelled *spelled;
    bool whole; /* its calls are all that the model wrote, and all was delivered */
};
void api_answer_keep_as(rd_engine *engine, const struct api_kept *k, struct api_answer *a);
/* api_memory.c: init with the tokenizer; open reads and writes what there is under dir of this model. */
rd_status api_memory_init(rd_engine *e);
void api_memory_open(rd_engine *e, const char *dir, struct hash128 model);
void api_memory_clear(rd_engine *e);
void api_memory_close(rd_engine *e); /* once nothing is prepared or kept any more */
/* api_chat.c: with what chat says in place of it; chat stays where it is given beside others. */
rd_status api_options(const struct rd_request_options *o, struct rd_request_options *own, struct rd_error *err);
/* api_text.c: a JSON text of a given kind; *out NULL when text is NULL. */
rd_status api_parse_json(const char *text, const char *what, bool array, json_t **out, struct rd_error *err);
/* api_prep.c: of a tenant's key; a collision makes two keys share a turn. */
uint64_t api_fair_hash(const char *key);
/* api_shift.c */
bool api_shift_is_on(const rd_engine *engine, const struct rd_request_options *o);
/* Prep worker: what is kept; a prompt that is too long is cut. */
void api_shift_begin(struct rd_request *r, int32_t *tokens, uint32_t *n);
/* Consumer, once the running part has ended and all its tokens were taken: the answer would go on. */
bool api_shift_is_due(const struct rd_request *r);
/* Consumer: the next part runs. On failure nothing has changed: the request ends as it did. */
rd_status api_shift_go_on(struct rd_request *r);
const struct request *api_shift_first(const struct rd_request *r);
void api_shift_deinit(struct rd_request *r);
/* api_prep.c: the parameters of a part with this prompt, without its form; thinks as it was for the first. */
rd_status api_request_params(struct rd_request *r, const int32_t *tokens, uint32_t n, int thinks,
                             struct request_params *p, struct rd_error *err);
/* api_retain.c: tokens of the prompt that its tools and first system messages make. */
uint32_t api_head_tokens(const rd_engine *engine, const struct rd_request_options *o, const int32_t *tokens,
                         uint32_t n);
/* api_open.c: of a model's file and types that were parsed; no images. */
rd_status api_check_reduce(const struct rd_options *o, struct rd_error *err); /* before: */
struct executor_options api_executor_options(const struct rd_options *o, const struct model_file *file,
                                             const struct kv_layout *types);
/* api_process.c: what the calls do where engine->process is. */
bool api_is_process(const char *device);
rd_status api_process_open(rd_engine *e, const struct rd_options *o, struct rd_error *err);
/* RD_E_UNSUPPORTED names what the program cannot do. */
rd_status api_process_check(const rd_engine *e, const struct rd_request_options *o, struct rd_error *err);
void api_process_prepare(struct rd_request *r); /* preparing thread, which gives its reference */
rd_status api_process_next(struct rd_request *r, struct rd_event *ev);
rd_status api_process_tokenize(const rd_engine *e, const char *text, size_t n_bytes, bool add_special,
                               bool parse_special, int32_t **tokens, uint32_t *n_tokens, struct rd_error *err);
rd_status api_process_detokenize(const rd_engine *e, const int32_t *tokens, uint32_t n_tokens, bool special,
                                 char **text, size_t *n_bytes, struct rd_error *err);
rd_status api_process_classify(const rd_engine *e, struct rd_classify_item *items, uint32_t n, struct rd_error *err);
void api_process_stats(rd_engine *e, struct rd_stats *out);
/* api_names.c: open with the engine's thread; close before the engine goes. */
void api_names_open(rd_engine *e, const char *dir);
void api_names_clear(rd_engine *e);
void api_names_close(rd_engine *e);
rd_status api_name_check(const char *name, struct rd_error *err);
/* api_request.c */
void api_request_fail(struct rd_request *r, rd_status st, const char *message);
/* Tells whoever waits or asked for a wake; any thread with a reference. */
void api_request_ring(struct rd_request *r);
void api_request_wake(void *request);
void api_request_unref(struct rd_request *r);
/* api_text.c. jansson's allocator: it tells parse_json, which jansson itself does not reliably do, that memory was out.
 */
void *api_json_alloc(size_t n);
/* The memory of prompts, once the tokenizer is there. */
rd_status api_texts_init(rd_engine *engine, struct rd_error *err);
/* Encode with BOS as the model wants, unless the text begins with it already (a template wrote it); chat: a text that may have
 * marks. */
rd_status api_encode_whole(const rd_engine *engine, const char *text, size_t n, enum token_names names, int32_t **ids,
                           uint32_t *n_ids, struct rd_error *err);
rd_status api_encode_chat(const rd_engine *engine, const char *text, size_t n, int32_t **ids, uint32_t *n_ids,
                          struct rd_error *err);
/* What preparing a request found out beside its prompt. Zeroed; deinit any number of times. */
struct api_prompt_notes {
    struct buf left_out;             /* volatile lines that were not rendered (text/chat/volatile_lines.h) */
    struct spelled spelled;          /* what was said, and how its tools are spelled */
    uint32_t n_messages, n_restored; /* messages of the request; answers put back as they were sampled */
    const atomic_bool *cancelled;    /* whoever asked has left; NULL: nobody can */
    struct api_images images;        /* that are in the prompt */
    enum api_images_far far;         /* zero: none is fetched */
    bool looks;                      /* images are all that is asked for, and it leaves no trace */
};
void api_notes_deinit(const rd_engine *engine, struct api_prompt_notes *notes);
struct api_rendering {
    const char *messages, *tools, *kwargs;
    enum rd_prompt_end end;
    const struct kv_space *owner;   /* whose spellings and answers are recalled; NULL: none, all as it was sent */
    bool as_sent;                   /* answers are not put back */
    bool raw;                       /* keys are not sorted either */
    struct api_prompt_notes *notes; /* NULL: the request is only looked at, and leaves no trace */
    bool ends_thinking;             /* set by api_render: rd_options.thinking turned it off */
    bool keeps_marks;               /* the text has marks for the tokenizer (api_marks.c), for api_encode_chat() */
    bool trusts;                    /* names of special tokens in messages are those tokens */
};
rd_status api_render(const rd_engine *engine, struct api_rendering *r, char **text, size_t *n, struct rd_error *err);
/* api_restore.c: chat_template_prompt() of these messages, which are changed where tools that the template knows nothing of
 * must be explained in them first. picks: see api_mark_messages(). */
rd_status api_render_messages(const rd_engine *engine, struct chat_input *in, json_t *messages,
                              const struct answer_pick *picks, bool trusts, char **text, size_t *n,
                              struct rd_error *err);
/* The same, with their answers as they were sampled where that is right. */
rd_status api_render_restored(const rd_engine *engine, struct kv_space owner, struct chat_input *in, json_t *messages,
                              bool trusts, char **text, size_t *n, uint32_t *n_restored, struct rd_error *err);
/* api_marks.c: *value (NULL: nothing to do), or the messages of a conversation, become a copy in which names of special tokens
 * are marked, where there are any. picks: [messages] which of them are put back, or NULL. */
rd_status api_mark(const rd_engine *engine, json_t **value, struct rd_error *err);
rd_status api_mark_messages(const rd_engine *engine, json_t **messages, const struct answer_pick *picks,
                            struct rd_error *err);
/* The text without marks; a template may quote one in its error. */
rd_status api_unmark(char **text, size_t *n, struct rd_error *err);
void api_unmark_error(struct rd_error *err);
/* rd_prompt_text(), with marks. */
rd_status api_prompt_marked(const rd_engine *engine, const struct rd_request_options *o, char **prompt, size_t *n_bytes,
                            struct rd_error *err);

/* api_draft.c: after the weights and the size of the cache are known, before the engine is made. */
/* Before the executor: e->eyes, of o->mmproj or found beside the model. RD_E_FORMAT names both files that do not fit. */
rd_status api_eyes_find(rd_engine *e, const struct rd_options *o, struct rd_error *err);
/* With the vocabulary: whether it has what stands around images. */
void api_eyes_check(rd_engine *e);
/* With it: e->sees, e->processor, or e->blind. */
rd_status api_eyes_open(rd_engine *e, const struct rd_options *o, struct rd_error *err);
void api_eyes_close(rd_engine *e); /* after the executor */
rd_status api_draft_open(rd_engine *e, const char *path, uint32_t max_running, uint32_t page_tokens,
                         struct rd_error *err);
struct draft_model *api_draft_model(const rd_engine *e); /* or NULL */
void api_draft_close(rd_engine *e);                      /* after the engine is gone */

/* api_kv_type.c: "q8_0", or "q8_0/q4_0" (keys, values), NULL f16; and back, in small letters. */
rd_status api_kv_type_parse(const char *name, struct kv_layout *l, struct rd_error *err);
void api_kv_type_name(const struct kv_layout *l, char *out, size_t n);
/* Whether this model can have the types. */
rd_status api_kv_type_check(const struct model_config *c, const struct rd_options *o, const struct kv_layout *l,
                            struct rd_error *err);
/* The i-th pair of types, i < n_others; false: it is l's own, or heads of l's length cannot have it. */
uint32_t api_kv_type_n_others(void);
bool api_kv_type_other(const struct kv_layout *l, uint32_t i, struct kv_layout *out);

/* api_store.c: before the engine is made; name: the namespace of the pages, written where there is a disk cache. Nothing
 * here fails: without a usable folder there is a line in the log, and no disk cache. */
void api_store_open(rd_engine *e, const struct rd_options *o, const char *kv_type, uint32_t page_tokens,
                    uint64_t page_bytes, char *name, size_t cap);
/* The name that the same model's pages have with another KV type, "" where there is no disk cache. */
void api_store_name(const rd_engine *e, const char *kv_type, char *name, size_t cap);
/* Of the KV cache, what holds something: pages and windows that are not free. */
uint64_t api_kv_used_bytes(const rd_engine *e, const struct engine_stats *s);
/* Bytes of a page on disk, of the engine's model with keys and values like these. */
uint64_t api_page_bytes(const rd_engine *e, const struct kv_layout *layout);
/* RD_E_INVALID: store_kv does not go with this model's cache. */
rd_status api_store_check(const rd_engine *e, const struct rd_options *o, struct rd_error *err);
/* Host memory behind a GPU; nothing fails without it. */
rd_status api_events_open(rd_engine *e, const struct rd_options *o, uint32_t page_tokens, struct rd_error *err);
void api_ram_open(rd_engine *e, const struct rd_options *o, uint32_t page_tokens, uint64_t page_bytes);
void api_store_close(rd_engine *e); /* after the engine is gone */
void api_store_stats(const struct engine_stats *s, struct rd_stats *out);
