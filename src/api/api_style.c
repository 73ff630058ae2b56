/* api/api_style.c - how a loaded model writes: read off its chat template once, when it opens.
 *
 * The end of a turn is found by rendering one: what stands behind an assistant's message is the token that ends it,
 * whatever the model's configuration says (Qwen 3 names <|endoftext|>, its template <|im_end|>).
 */
#include <string.h>
#include "api/api_state.h"
#include "base/error.h"
#include "base/mem.h"

#define PROBE_TEXT "radish-probe-7f3a"

static bool add_id(int32_t *ids, uint32_t *n, int32_t id)
{
    for (uint32_t i = 0; i < *n; i++)
        if (ids[i] == id) return false;
    ids[(*n)++] = id;
    return true;
}

/* The control token at the front of text, or TOKEN_NONE. */
static int32_t leading_control(const rd_engine *e, const char *text, size_t n)
{
    int32_t *ids = NULL, id = TOKEN_NONE;
    uint32_t n_ids = 0;

    while (n && (*text == ' ' || *text == '\n')) text++, n--;
    if (tokenizer_encode(e->tokenizer, text, n, false, true, &ids, &n_ids, NULL) == RD_OK && n_ids > 0 &&
        tokenizer_type(e->tokenizer, ids[0]) == TOKEN_CONTROL && ids[0] != tokenizer_bos(e->tokenizer))
        id = ids[0];
    mem_free(ids);
    return id;
}

/* The token behind an assistant's message; TOKEN_NONE when the template says nothing of the kind. */
static int32_t template_end(const rd_engine *e)
{
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"Hi\"},"
                                   "{\"role\":\"assistant\",\"content\":\"" PROBE_TEXT "\"}]";
    struct api_rendering r = {.messages = messages, .end = RD_PROMPT_CLOSED};
    struct rd_error ignored;
    char *text = NULL, *at;
    size_t n = 0;
    int32_t id = TOKEN_NONE;

    if (api_render(e, &r, &text, &n, &ignored) != RD_OK) return id;
    at = strstr(text, PROBE_TEXT);
    if (at) id = leading_control(e, at + strlen(PROBE_TEXT), n - (size_t)(at - text) - strlen(PROBE_TEXT));
    mem_free(text);
    return id;
}

static rd_status find_ends(rd_engine *e)
{
    struct api_style *s = &e->style;
    uint32_t n = 0;
    const int32_t *ends = tokenizer_end_tokens(e->tokenizer, &n);
    int32_t own = template_end(e);

    s->ends = mem_alloc((size_t)n + 1, sizeof(*s->ends));
    if (!s->ends) return RD_E_NOMEM;
    if (n) memcpy(s->ends, ends, n * sizeof(*ends));
    s->n_ends = n;
    if (own != TOKEN_NONE) add_id(s->ends, &s->n_ends, own);
    return RD_OK;
}

static void see_marker(rd_engine *e, const char *text, int32_t *ids, uint32_t *n)
{
    int32_t id = tokenizer_find(e->tokenizer, text, strlen(text));

    if (id != TOKEN_NONE && tokenizer_type(e->tokenizer, id) == TOKEN_CONTROL) add_id(ids, n, id);
}

static rd_status find_visible(rd_engine *e)
{
    struct api_style *s = &e->style;
    uint32_t n_markers = 0;

    while (output_style_marker(s->tools, n_markers)) n_markers++;
    s->visible = mem_alloc((size_t)n_markers + 2, sizeof(*s->visible));
    if (!s->visible) return RD_E_NOMEM;
    for (uint32_t i = 0; i < n_markers; i++) see_marker(e, output_style_marker(s->tools, i), s->visible, &s->n_visible);
    if (!s->think) return RD_OK;
    see_marker(e, s->think->open, s->visible, &s->n_visible);
    see_marker(e, s->think->close, s->visible, &s->n_visible);
    return RD_OK;
}

static rd_status encode(rd_engine *e, const char *text, int32_t **ids, uint32_t *n, struct rd_error *err)
{
    return tokenizer_encode(e->tokenizer, text, strlen(text), false, true, ids, n, err);
}

/* Where a tag takes several tokens the last may also begin the next word: it is not waited for. */
static rd_status find_think_tokens(rd_engine *e, struct rd_error *err)
{
    struct api_style *s = &e->style;
    char text[128];
    rd_status st;

    if (!s->think) return RD_OK;
    snprintf(text, sizeof(text), "\n%s\n\n", s->think->close);
    st = encode(e, s->think->open, &s->open, &s->n_open, err);
    if (st == RD_OK) st = encode(e, s->think->close, &s->close, &s->n_close, err);
    if (st == RD_OK) st = encode(e, text, &s->forced, &s->n_forced, err);
    if (s->n_open > 1) s->n_open--;
    if (s->n_close > 1) s->n_close--;
    return st;
}

rd_status api_style_find(rd_engine *e, const char *tool_parser, struct rd_error *err)
{
    if (!tool_parser || output_style_find(tool_parser, &e->style.tools)) return RD_OK;
    return error_set(
        err, RD_E_INVALID,
        "tool parser \"%.40s\": hermes, qwen3_coder, llama3_json, pythonic, gemma, mistral, deepseek or none "
        "wanted",
        tool_parser);
}

rd_status api_style_init(rd_engine *e, const char *tool_parser, struct rd_error *err)
{
    struct api_style *s = &e->style;
    const char *source = chat_template_source(e->chat);
    enum output_style found = output_style_detect(source);
    rd_status st;

    s->own_tools = chat_template_has_tools(e->chat);
    s->tools = s->own_tools || found == OUTPUT_GEMMA ? found : OUTPUT_HERMES;
    s->think = output_think_detect(source);
    if (api_style_find(e, tool_parser, err) != RD_OK) return RD_E_INVALID;
    st = find_visible(e);
    if (st == RD_OK) st = find_ends(e);
    if (st != RD_OK) return error_set(err, st, "out of memory");
    return find_think_tokens(e, err);
}

void api_style_deinit(struct api_style *s)
{
    mem_free(s->visible);
    mem_free(s->ends);
    mem_free(s->open);
    mem_free(s->close);
    mem_free(s->forced);
    memset(s, 0, sizeof(*s));
}
