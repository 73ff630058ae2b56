/* server/dialects/embedding.h - texts to vectors, in the shapes of OpenAI, llama-server and Ollama.
 *
 * Every input is a choice of one generation that generates nothing. Vectors have length 1; with `dimensions` their
 * first values, brought to length 1 again.
 * Thread  io thread that owns the connection.
 */
#pragma once
#include "server/dialects/generation.h"

enum embedding_shape { EMBEDDING_OPENAI, EMBEDDING_LLAMA_SERVER, EMBEDDING_OLLAMA, EMBEDDING_OLLAMA_OLD };

/* input: the field of body that holds the inputs. Answers now, or when they are computed. */
void embedding_start(struct http_conn *c, const json_t *body, const char *input, enum embedding_shape shape);

/* The first n values of a choice's vector, of length 1, to to[n]. false: there is none. */
bool embedding_take(const struct choice *c, float *to, uint32_t n);
/* Parameters of prompts that only are computed; takes prompts (also on failure). name: of the field, for errors. */
int embedding_params(const struct served_model *m, const char *name, json_t *prompts, struct gen_params *p,
                     struct api_error *e);
