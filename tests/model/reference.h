/* tests/model/reference.h - logits of tests/golden/ that transformers gave: NAME.ref, beside the model. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct reference {
    char *bytes;
    uint32_t n_tokens, n_vocab;
    const int32_t *tokens;
    const float *logits; /* [n_tokens, n_vocab] */
};

/* tests/golden/NAME.ENDING; good until test_path is called again. */
const char *reference_file(const char *model, const char *ending);
/* bytes are the caller's. */
bool reference_read(const char *model, struct reference *out);
/* Largest error as a share of the reference's range. */
double reference_error(const struct reference *ref, const float *logits);
