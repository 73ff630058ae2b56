/* server/routes/responses.c - POST /v1/responses: OpenAI's Responses API; /v1/responses/input_tokens counts a prompt. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "server/dialects/foreign.h"
#include "server/dialects/prompt_only.h"
#include "server/dialects/request_body.h"
#include "server/dialects/responses_store.h"
#include "server/dialects/shapes.h"
#include "server/dialects/truncate.h"
#include "server/http/offload.h"
#include "server/routes/routes.h"

#define TRUNCATED_BYTES 2048u /* a body that may have turns to lose */

/* A field as the client sent it, or the default. */
static json_t *field_or(const json_t *body, const char *name, json_t *fallback)
{
    json_t *v = json_object_get(body, name);

    if (!v || json_is_null(v)) return fallback;
    json_decref(fallback);
    return json_incref(v);
}

/* 0.7, not what the nearest float is in decimals. */
static double as_written(float x)
{
    char text[32];

    snprintf(text, sizeof(text), "%.7g", (double)x);
    return strtod(text, NULL);
}

static char *echo_of(const json_t *body, const struct gen_params *p, bool keep)
{
    static const char *const as_sent[] = {"instructions",   "max_output_tokens", "previous_response_id", "user",
                                          "max_tool_calls", "prompt_cache_key",  "safety_identifier"};
    const json_t *reasoning = json_object_get(body, "reasoning");
    json_t *o = json_object();
    bool ok = o != NULL;
    char *text;

    for (size_t i = 0; ok && i < sizeof(as_sent) / sizeof(as_sent[0]); i++)
        ok = foreign_set(o, as_sent[i], field_or(body, as_sent[i], json_null()));
    ok = ok && foreign_set(o, "parallel_tool_calls", json_boolean(p->parallel_tool_calls)) &&
         foreign_set(o, "reasoning",
                     json_pack("{s:o, s:o}", "effort", field_or(reasoning, "effort", json_null()), "summary",
                               field_or(reasoning, "summary", json_null()))) &&
         foreign_set(o, "store", json_boolean(keep)) &&
         foreign_set(o, "temperature", json_real(as_written(p->sampling.temperature))) &&
         foreign_set(o, "top_p", json_real(as_written(p->sampling.top_p))) &&
         foreign_set(o, "top_logprobs", json_integer(p->top_logprobs)) &&
         foreign_set(o, "text", field_or(body, "text", json_pack("{s:{s:s}}", "format", "type", "text"))) &&
         foreign_set(o, "tool_choice", field_or(body, "tool_choice", json_string("auto"))) &&
         foreign_set(o, "tools", field_or(body, "tools", json_array())) &&
         foreign_set(o, "truncation", field_or(body, "truncation", json_string("disabled"))) &&
         foreign_set(o, "service_tier", json_string("default")) &&
         foreign_set(o, "metadata", field_or(body, "metadata", json_object()));
    text = ok ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}

/* item_reference: the item itself. */
static int resolve_references(const struct responses_state *s, json_t *items, struct api_error *e)
{
    json_t *item, *found;
    char quoted[80];
    uint32_t n = 0;
    size_t i;

    json_array_foreach(items, i, item)
    {
        const char *type = json_plain(json_object_get(item, "type")), *id;
        rd_status st;

        if (strcmp(type, "item_reference") != 0) continue;
        if (n++ == LIMIT_ITEM_REFERENCES)
            return api_error_set(e, 400, "input", "input: at most %u references to items", LIMIT_ITEM_REFERENCES);
        id = json_plain(json_object_get(item, "id"));
        st = responses_store_item(s->store, s->tenant, id, &found);
        if (st == RD_E_NOT_FOUND)
            return api_error_set(e, 404, "input", "input[%zu]: there is no item %s", i,
                                 error_quote(quoted, sizeof(quoted), id, strlen(id)));
        if (st != RD_OK || json_array_set_new(items, i, found)) return foreign_no_memory(e);
    }
    return 0;
}

/* What went before, with its own items after it. */
static int gather_items(struct http_conn *c, struct responses_state *s, const json_t *body, json_t *own, json_t **items,
                        struct api_error *e)
{
    struct client_charge *memory = &c->memory;
    const char *id = json_plain(json_object_get(body, "previous_response_id"));
    rd_status st = RD_OK;
    char key[RESPONSES_KEY_BYTES], quoted[80];

    if (id) {
        responses_key(s->tenant, id, key);
        st = responses_store_turn(s->store, key, true, &s->parent);
    }

    if (st == RD_E_AGAIN)
        return api_error_set(e, 400, "previous_response_id", "previous_response_id: this response is not complete yet");
    if (st != RD_OK) {
        api_error_set(e, 404, "previous_response_id", "previous_response_id: there is no response %s",
                      error_quote(quoted, sizeof(quoted), id, strlen(id)));
        e->code = "previous_response_not_found";
        return -1;
    }
    if (client_charge_set(memory, CLIENT_TREES, memory->parts[CLIENT_TREES] + responses_turn_cost(s->parent), e))
        return -1;
    if (resolve_references(s, own, e)) return -1;
    st = responses_turn_items(s->parent, true, items);
    if (st == RD_E_LIMIT)
        return api_error_set(e, 400, "previous_response_id",
                             "previous_response_id: what went before has too many values: at most %u MiB of them",
                             LIMIT_JSON_TREE_BYTES >> 20);
    if (st != RD_OK) return foreign_no_memory(e);
    return json_array_extend(*items, own) ? foreign_no_memory(e) : 0;
}

static bool truncates(const json_t *body)
{
    const char *text = json_plain(json_object_get(body, "truncation"));

    return text && strcmp(text, "auto") == 0;
}

static int read_request(struct http_conn *c, const json_t *body, struct responses_state *s, struct gen_params *p,
                        struct api_error *e)
{
    json_t *own = NULL, *items = NULL, *chat = NULL;
    int rc = responses_items(body, &own, e);

    s->keep = !json_is_false(json_object_get(body, "store"));
    s->background = json_is_true(json_object_get(body, "background"));
    if (rc == 0 && s->background && !s->keep)
        rc = api_error_set(e, 400, "background",
                           "background: the answer can only be had from the store, and store is false");
    if (rc == 0) rc = gather_items(c, s, body, own, &items, e);
    if (rc == 0) rc = responses_to_chat(body, items, &chat, e);
    if (rc == 0 && truncates(body) && chat_truncate(c, chat, e)) {
        responses_error(e);
        rc = -1;
    }
    if (rc == 0 && gen_params_parse(chat, served_of(c), true, p, e)) {
        responses_error(e);
        rc = -1;
    }
    if (rc == 0) {
        s->input = json_dumps(own, JSON_COMPACT);
        s->echo = echo_of(body, p, s->keep);
        if (!s->input || !s->echo) rc = foreign_no_memory(e);
    }
    json_decref(own);
    json_decref(items);
    json_decref(chat);
    return rc;
}

int responses_chat(struct http_conn *c, const json_t *body, json_t **chat, struct api_error *e)
{
    struct responses_state *s = mem_zalloc(1, sizeof(*s));
    json_t *own = NULL, *items = NULL;
    int rc;

    *chat = NULL;
    if (!s) return foreign_no_memory(e);
    s->store = server_of(c)->responses;
    s->tenant = c->tenant;
    rc = responses_items(body, &own, e);
    if (rc == 0) rc = gather_items(c, s, body, own, &items, e);
    if (rc == 0) rc = responses_to_chat(body, items, chat, e);
    if (rc == 0 && truncates(body) && chat_truncate(c, *chat, e)) {
        json_decref(*chat);
        *chat = NULL;
        rc = -1;
    }
    json_decref(own);
    json_decref(items);
    responses_state_destroy(s);
    return rc;
}

/* The body into s and p, which are the caller's in any case. */
static int read_body(struct http_conn *c, struct responses_state *s, struct gen_params *p, struct api_error *e)
{
    json_t *body = NULL;
    int rc;

    s->store = server_of(c)->responses;
    s->tenant = c->tenant;
    rc = request_body(c, route_of(c)->params, NULL, &body, e);
    if (rc == 0) rc = read_request(c, body, s, p, e);
    json_decref(body);
    return rc;
}

void route_responses(struct http_conn *c)
{
    struct responses_state *s = mem_zalloc(1, sizeof(*s));
    struct gen_params p = {0};
    struct api_error e;

    if (!s) {
        api_error_set(&e, 503, NULL, "out of memory");
    } else if (read_body(c, s, &p, &e) == 0) {
        generation_start(c, s->background ? &responses_background_shape : &responses_shape, &p, s);
        return;
    }
    gen_params_deinit(&p);
    responses_state_destroy(s);
    http_reply_error(c, &e);
}

/* What went before is read as well; and to truncate, tokens are made. */
size_t weigh_conversation(const struct http_conn *c)
{
    bool goes_on = route_body_has(c, "previous_response_id") || route_body_has(c, "item_reference");
    size_t stored = goes_on ? responses_store_size(server_of(c)->responses, NULL) : 0;

    if ((goes_on || c->body.n > TRUNCATED_BYTES) && route_body_has(c, "truncation")) stored += OFFLOAD_BYTES;
    return stored + weigh_images(c);
}

void route_responses_count(struct http_conn *c)
{
    struct responses_state *s = mem_zalloc(1, sizeof(*s));
    struct gen_params p = {0};
    struct api_error e;

    if (!s) {
        api_error_set(&e, 503, NULL, "out of memory");
        http_reply_error(c, &e);
    } else if (request_reserve_texts(c, &e) || read_body(c, s, &p, &e)) {
        http_reply_error(c, &e);
    } else {
        prompt_only_reply_count(c, &p, "response.input_tokens");
    }
    gen_params_deinit(&p);
    responses_state_destroy(s);
}
