/* server/dialects/request_body.h - the body of a connection's request, checked against the table of parameters.
 * Thread  io thread that owns the connection, or a worker with its copy (offload.h). */
#pragma once
#include "server/http/http_conn.h"
#include "server/params/params.h"

/* Parses the body, whose bytes are freed. Its tree is charged (client_memory.h) until the request is answered or its
 * generation begins. */
int request_json(struct http_conn *c, json_t **out, struct api_error *e);
/* The same of any value: request_json wants an object. */
int request_value(struct http_conn *c, json_t **out, struct api_error *e);
/* For handlers that make tokens of the body's texts, or write much: charged until the request is answered. */
int request_reserve(struct http_conn *c, uint64_t n_bytes, struct api_error *e);
int request_reserve_texts(struct http_conn *c, struct api_error *e);
/* request_json, with its_texts after request_reserve_texts. NULL: an error is the answer. */
json_t *request_json_or_answer(struct http_conn *c, bool its_texts);
/* Walks the endpoint's rows (params_read); p as there. Fields that no row names, and those of odd_fields.h, go into the
 * header X-Radish-Ignored-Fields of the response, whatever that is. */
int request_fields(struct http_conn *c, unsigned endpoint, const json_t *body, struct gen_params *p,
                   struct api_error *e);
/* request_json and request_fields. *out is the caller's, NULL on failure. */
int request_body(struct http_conn *c, unsigned endpoint, struct gen_params *p, json_t **out, struct api_error *e);
