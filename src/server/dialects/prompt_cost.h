/* server/dialects/prompt_cost.h - what memory it takes to make tokens of a request's texts, before any is made.
 *
 * Of a text, or of the strings in a JSON, names left out, which a template may put one behind the other: most of it for the
 * longest stretch without a blank, which a tokenizer works on as a whole. Measured: 5 to 12 bytes for each of prose, 37 to 46
 * for each of "aaaa...". Parts of messages that are images or videos become keys, not tokens, and are left out: only where
 * the library looks for them (api_images.h), so that no text passes for one.
 * Thread  any thread.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

uint64_t prompt_text_cost(const char *s, size_t n);
/* Of a body as it came, or any other JSON, valid or not: parts are those of messages or input. */
uint64_t prompt_json_cost(const char *s, size_t n);
/* Of a list of messages. */
uint64_t prompt_messages_cost(const char *s, size_t n);
