/* model/vocab.h - the tokenizer and the chat template inside a GGUF file.
 *
 * Keys  tokenizer.ggml.model ("gpt2": byte-level BPE, "llama": SentencePiece), .pre, .tokens, .scores, .token_type,
 * .merges, the ids .bos_token_id and so on, .add_bos_token, .add_eos_token, .add_space_prefix; tokenizer.chat_template.
 * Defaults as llama.cpp's. Thread  any thread. Nothing of the file is kept. Errors  RD_E_FORMAT, RD_E_UNSUPPORTED
 * (other models and pre-tokenizers; err lists the known ones), RD_E_NOT_FOUND, RD_E_LIMIT, RD_E_NOMEM.
 */
#pragma once
#include "format/model_file.h"
#include "radish/status.h"
#include "text/tokenizer/tokenizer.h"

/* pre_override: the value of --pre, or NULL to use the file's. */
rd_status vocab_load(const struct model_file *g, const char *pre_override, struct tokenizer **out,
                     struct rd_error *err);
/* RD_E_NOT_FOUND: the file has none (or it is not a string). *out is a view into the file. */
rd_status vocab_chat_template(const struct model_file *g, struct model_str *out);
