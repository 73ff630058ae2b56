/* server/routes/embeddings.c - POST /v1/embeddings: {input, encoding_format, dimensions} -> a vector per input; POST
 * /embedding, llama-server's own: {content}.
 */
#include "server/dialects/embedding.h"
#include "server/dialects/request_body.h"
#include "server/routes/routes.h"

static void run(struct http_conn *c, const char *const names[2], enum embedding_shape shape)
{
    json_t *body = NULL;
    struct api_error e;
    int rc = request_body(c, route_of(c)->params, NULL, &body, &e);

    if (rc == 0) {
        const json_t *v = json_object_get(body, names[1]);

        embedding_start(c, body, names[v && !json_is_null(v)], shape);
    } else {
        http_reply_error(c, &e);
    }
    json_decref(body);
}

void route_embeddings(struct http_conn *c)
{
    run(c, (const char *const[]){"input", "input"}, EMBEDDING_OPENAI);
}

void route_embedding(struct http_conn *c)
{
    run(c, (const char *const[]){"content", "input"}, EMBEDDING_LLAMA_SERVER);
}
