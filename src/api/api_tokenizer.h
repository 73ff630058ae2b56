/* api/api_tokenizer.h - a tokenizer from the files of a model on the hub, without a model. */
#pragma once
#include <stdbool.h>
#include "radish/radish.h"

/* path is a tokenizer.json, or a folder with one in it. */
bool api_is_tokenizer_json(const char *path);
/* rd_open_tokenizer() for it: tokenizer_config.json beside it, when there, gives BOS, EOS and the chat template. */
rd_status api_open_tokenizer_json(const char *path, rd_engine **out, struct rd_error *err);
