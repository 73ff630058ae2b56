/* server/routes/embeddings.c - POST /v1/embeddings: {input, encoding_format, dimensions} -> a vector per input. */
#include "server/dialects/embedding.h"
#include "server/dialects/request_body.h"
#include "server/routes/routes.h"

void route_embeddings(struct http_conn *c)
{
    json_t *body = NULL;
    struct api_error e;
    int rc = request_body(c, route_of(c)->params, NULL, &body, &e);

    if (rc == 0)
        embedding_start(c, body, "input", EMBEDDING_OPENAI);
    else
        http_reply_error(c, &e);
    json_decref(body);
}
