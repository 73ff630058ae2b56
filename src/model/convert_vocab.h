/* model/convert_vocab.h - a directory's tokenizer as tokenizer.ggml keys. Thread  any. */
#pragma once
#include "format/gguf/gguf_write.h"

rd_status convert_vocab(const struct model_file *g, const char *pre, struct gguf_writer *w, struct rd_error *err);
