/* tests/fuzz/fuzz_json_body.c - any bytes as the body of a request: refused with a whole error object, or parameters
 * within their ranges whose messages a template renders and a tokenizer encodes.
 *
 * Input: a byte that chooses the endpoint, then the body. The model is a vocabulary of 96 tokens.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "server/dialects/dialect.h"
#include "server/dialects/foreign.h"
#include "server/dialects/llama_server.h"
#include "server/params/params.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define VOCABULARY RADISH_SOURCE_DIR "/tests/golden/qwen3/tiny-qwen3.gguf"

enum endpoint { CHAT, COMPLETIONS, MESSAGES, COUNT, RESPONSES, COMPLETION, N_ENDPOINTS };

static void expect(bool fact)
{
    if (!fact) abort();
}

static rd_engine *engine(void)
{
    static rd_engine *e;

    if (!e) expect(rd_open_tokenizer(VOCABULARY, NULL, &e, NULL) == RD_OK);
    return e;
}

/* Both shapes are JSON that names what is wrong. */
static void check_error(const struct api_error *e)
{
    for (unsigned i = 0; i < 2; i++) {
        struct buf out = {0};
        json_t *v;

        if (i)
            dialect_anthropic.put_error(e, &out);
        else
            dialect_openai.put_error(e, &out);
        v = json_loadb(out.data, out.n, JSON_REJECT_DUPLICATES, NULL);
        expect(json_string_length(json_object_get(json_object_get(v, "error"), "message")) > 0);
        json_decref(v);
        buf_deinit(&out);
    }
    expect(e->http >= 400 && e->http <= 503 && e->http != 500);
    expect(memchr(e->param, 0, sizeof(e->param)) && utf8_valid(e->param, strlen(e->param)));
}

static void check_prompt(const struct gen_params *p, struct api_error *e)
{
    struct rd_error err = {0};
    char *text = NULL;
    int32_t *ids = NULL;
    uint32_t n_ids = 0;
    size_t n = 0;
    rd_status st = rd_apply_template(engine(), p->messages, p->tools, p->kwargs, p->prompt_end, &text, &n, &err);

    if (st == RD_OK) {
        expect(utf8_valid(text, n));
        st = rd_tokenize(engine(), text, n, false, true, &ids, &n_ids, &err);
    }
    if (st != RD_OK) {
        api_error_from_status(e, st, err.text);
        check_error(e);
    }
    rd_free(text);
    rd_free(ids);
}

static void check_numbers(const struct gen_params *p)
{
    expect(p->sampling.temperature >= 0 && p->sampling.temperature <= 100 && p->sampling.top_p >= 0 &&
           p->sampling.top_p <= 1 && p->sampling.min_p >= 0 && p->sampling.min_p <= 1);
    expect(p->sampling.repetition_penalty > 0 && isfinite(p->sampling.repetition_penalty));
    expect(fabs(p->sampling.presence_penalty) <= 2 && fabs(p->sampling.frequency_penalty) <= 2);
    expect(p->n >= 1 && p->n <= LIMIT_N_CHOICES && p->best_of >= p->n && p->best_of <= LIMIT_N_CHOICES);
    expect(p->max_tokens >= -1 && p->max_tokens <= INT32_MAX && p->thinking_tokens >= -1);
    expect(p->top_logprobs >= 0 && p->top_logprobs <= LIMIT_TOP_LOGPROBS);
    expect(p->n_stop <= LIMIT_STOP_STRINGS && p->n_bias <= LIMIT_LOGIT_BIAS && p->n_prompts <= LIMIT_PROMPTS);
    for (uint32_t i = 0; i < p->n_stop; i++) expect(strlen(p->stop[i]) <= LIMIT_STOP_BYTES);
    for (uint32_t i = 0; i < p->n_prompts; i++) expect(p->prompts[i].text || p->prompts[i].tokens);
    if (p->chat)
        expect(p->messages && p->n_prompts == 0);
    else
        expect(p->n_prompts > 0);
}

/* A body of another API as one of chat completions. */
static int translate(enum endpoint from, const json_t *in, json_t **chat, struct api_error *e)
{
    unsigned rows = from == RESPONSES ? FOR_RESPONSES : from == COUNT ? FOR_COUNT : FOR_MESSAGES;
    json_t *items = NULL;
    int rc = params_read(in, rows, NULL, e);

    if (rc) return rc;
    if (from != RESPONSES) return anthropic_to_chat(in, from == COUNT, chat, e);
    rc = responses_items(in, &items, e);
    expect(rc == 0 ? json_is_array(items) : !items);
    if (rc == 0) rc = responses_to_chat(in, items, chat, e);
    json_decref(items);
    return rc;
}

/* llama-server's: texts beside ids are tokenised on the way. */
static int read_completion(const json_t *in, const struct served_model *m, struct gen_params *p, struct api_error *e)
{
    llama_server_init(p);
    if (params_read(in, FOR_COMPLETION, p, e) || llama_server_finish(in, m, p, e)) return -1;
    return llama_server_prompts(in, m, p, e);
}

static void try_body(enum endpoint to, const json_t *in)
{
    struct gen_params p = {0};
    struct api_error e = {0};
    struct served_model m = {.engine = engine()};
    json_t *chat = NULL;
    int rc = 0;

    rd_get_info(m.engine, &m.info);
    if (to >= MESSAGES && to <= RESPONSES) rc = translate(to, in, &chat, &e);
    expect(rc == 0 || !chat);
    if (rc == 0)
        rc = to == COMPLETION ? read_completion(in, &m, &p, &e)
                              : gen_params_parse(chat ? chat : in, &m, to != COMPLETIONS, &p, &e);
    if (rc && chat && to == RESPONSES)
        responses_error(&e);
    else if (rc && chat)
        anthropic_error(&e);
    if (rc) {
        check_error(&e);
    } else {
        check_numbers(&p);
        if (p.chat) check_prompt(&p, &e);
    }
    gen_params_deinit(&p);
    json_decref(chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf body = {0};
    struct api_error e = {0};
    json_t *in = NULL;

    if (n == 0) return 0;
    engine();
    buf_append(&body, (const char *)data + 1, n - 1);
    if (json_body_parse(&body, &in, &e))
        check_error(&e);
    else
        try_body((enum endpoint)(data[0] % N_ENDPOINTS), in);
    json_decref(in);
    buf_deinit(&body);
    return 0;
}
