/* tests/text/template_golden.h - reads a golden of tests/golden/templates/make_templates.py and compares. */
#pragma once
#include <jansson.h>
#include <stdbool.h>

/* Renders every conversation by the golden's template (a file of `gguf` or `tokenizers`). Returns how many differ; *n:
 * how many there were; the first difference is noted. Negative: a file is missing or malformed. */
int template_golden_differences(const char *golden_path, const char *conversations_path, size_t *n);
