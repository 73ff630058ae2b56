/* server/request_body.h - the body of a connection's request, checked against the table of parameters.
 * Thread  io thread that owns the connection. */
#pragma once
#include "server/http_conn.h"
#include "server/params.h"

/* Parses the body and walks the endpoint's rows (params_read); p as there. The body's bytes are freed. Fields that
 * no row names, and those of odd_fields.h, go into the header X-Radish-Ignored-Fields of the response, whatever that is. *out is the caller's, NULL
 * on failure. */
int request_body(struct http_conn *c, unsigned endpoint, struct gen_params *p, json_t **out, struct api_error *e);
