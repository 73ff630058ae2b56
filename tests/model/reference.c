/* tests/model/reference.c - see the header. File: two u32 (tokens, vocabulary), the tokens, a row of f32 for each. */
#include "reference.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "test.h"

const char *reference_file(const char *model, const char *ending)
{
    char name[128];

    snprintf(name, sizeof(name), "%s.%s", model, ending);
    return test_path(name);
}

bool reference_read(const char *model, struct reference *out)
{
    uint32_t head[2];
    size_t n;

    if (file_read_all(reference_file(model, "ref"), 1 << 20, &out->bytes, &n, NULL) != RD_OK) return false;
    memcpy(head, out->bytes, sizeof(head));
    out->n_tokens = head[0];
    out->n_vocab = head[1];
    out->tokens = (const int32_t *)(out->bytes + 8);
    out->logits = (const float *)(out->bytes + 8 + 4 * (size_t)head[0]);
    return n == 8 + 4 * ((size_t)head[0] + (size_t)head[0] * head[1]);
}

double reference_error(const struct reference *ref, const float *logits)
{
    double low = INFINITY, high = -INFINITY, worst = 0;

    for (uint32_t i = 0; i < ref->n_tokens * ref->n_vocab; i++) {
        double e = fabs((double)logits[i] - (double)ref->logits[i]);

        low = fmin(low, (double)ref->logits[i]);
        high = fmax(high, (double)ref->logits[i]);
        worst = e <= worst ? worst : e;
    }
    return worst / (high - low);
}
