/* server/dialects/shapes.h - the shapes of responses (generation.h), and the states that requests begin some of them
 * with: mem_zalloc'd, then whatever says "asked" is set; generation_start() takes them.
 * Thread  io thread that owns the connection, or a worker until then.
 */
#pragma once
#include "server/dialects/generation.h"
#include "server/dialects/responses_store.h"

/* OpenAI's chat and legacy completions: no state. */
extern const struct response_shape chat_shape, text_shape;

/* Anthropic's messages. */
extern const struct response_shape messages_shape;
enum block { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_TOOL };
struct messages_state {
    enum block open;
    uint32_t n_blocks; /* begun */
    bool caches;       /* the client marked what is to be cached */
    struct buf blocks; /* not streaming: their JSON, comma separated */
    struct buf text;   /* not streaming: of the open block */
};
void messages_state_destroy(void *state);

/* OpenAI's responses; those of the background are made without a client. */
extern const struct response_shape responses_shape, responses_background_shape;
enum item { ITEM_NONE, ITEM_MESSAGE, ITEM_REASONING, ITEM_CALL };
#define RESPONSES_PENDING 8u /* tokens whose text may be held back at once */

struct responses_state {
    struct responses_store *store;
    struct responses_turn *parent; /* retained; NULL: the conversation begins here */
    const char *tenant;            /* http_conn.h */
    char key[RESPONSES_KEY_BYTES]; /* in the store */
    bool keep;                     /* the answer goes into the store */
    bool registered, kept;         /* it is there, running; it is there, complete */
    bool background, queued;       /* queued: nothing was generated yet */
    bool changed;                  /* queued became false since the store was told */
    char *input;                   /* this request's items, a JSON list */
    char *echo;                    /* {"instructions":.., ..}: the request as every response has it */
    uint32_t sequence, n_items;    /* events sent; items begun */
    enum item open;
    char item_id[64];
    struct buf output;          /* items that are done, comma separated */
    struct buf text;            /* of the open item */
    const struct buf *logprobs; /* ITEM_MESSAGE: of its tokens, JSON elements; NULL: none yet */
    uint32_t n_pending;         /* tokens collected since, the last RESPONSES_PENDING of them here */
    struct {
        size_t at, n_bytes;
    } pending[RESPONSES_PENDING]; /* in choice.logprobs; bytes of its text */
    struct buf call;              /* ITEM_CALL: "call_id":..,"name":.. */
    struct buf name;              /* ITEM_CALL: the name as a JSON string */
    struct buf final;             /* the response, once finished */
};
void responses_state_destroy(void *state);

/* Ollama's chat and generate. */
extern const struct response_shape ollama_shape;
struct ollama_state {
    bool generate;                    /* /api/generate: "response" instead of a message */
    struct buf text, thinking, calls; /* not streaming: all of it */
    struct buf name, arguments;       /* of the call that is being written */
    char id[64];                      /* likewise */
    uint32_t n_calls;
};
/* {"model":..,"created_at":..: how each of its lines begins. */
void ollama_begin_line(const char *model, struct buf *out);

/* llama-server's /completion and /infill: no state. */
extern const struct response_shape llama_server_shape;
