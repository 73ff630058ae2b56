/* text/output/output_style.h - how a model family writes tool calls and thinking, read off its chat template.
 *
 *     OUTPUT_HERMES       <tool_call>{"name": .., "arguments": {..}}</tool_call>          (Hermes, Qwen 2.5 and 3)
 *     OUTPUT_QWEN_XML     <tool_call><function=f><parameter=a>value</parameter></function></tool_call>  (Qwen3-Coder)
 *     OUTPUT_LLAMA_JSON   {"name": .., "parameters": {..}}, also after <|python_tag|>      (Llama 3.x)
 *     OUTPUT_PYTHONIC     [f(a=1), g(b="x")]                                               (Llama 3.2, 4)
 *     OUTPUT_GEMMA        ```tool_code f(a=1)```, or the forms that Gemma's prompting guide teaches
 *     OUTPUT_MISTRAL      [TOOL_CALLS][{..}, {..}], or [TOOL_CALLS]f[ARGS]{..}
 *     OUTPUT_DEEPSEEK     <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>.. (V3, R1, V3.1)
 *     OUTPUT_NO_CALLS     everything is text
 *
 * Thread  any thread: constant tables.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum output_style {
    OUTPUT_NO_CALLS,
    OUTPUT_HERMES,
    OUTPUT_QWEN_XML,
    OUTPUT_LLAMA_JSON,
    OUTPUT_PYTHONIC,
    OUTPUT_GEMMA,
    OUTPUT_MISTRAL,
    OUTPUT_DEEPSEEK,
    OUTPUT_N_STYLES
};

/* A pair of tags around the thinking. */
struct think_tags {
    const char *open, *close;
};

/* By the template's source (0-terminated). OUTPUT_HERMES when nothing tells: the fallback prompt teaches it. */
enum output_style output_style_detect(const char *template_source);
/* "hermes", "qwen3_coder", "llama3_json", "pythonic", "gemma", "mistral", "deepseek", "none". */
const char *output_style_name(enum output_style style);
/* false: no such name. */
bool output_style_find(const char *name, enum output_style *style);

/* The pair that the template's source mentions, or NULL. A view of a constant. */
const struct think_tags *output_think_detect(const char *template_source);
/* True when the prompt ends inside a thinking block that it opened: the tag, then white space only. */
bool output_prompt_thinks(const struct think_tags *think, const char *prompt, size_t n);
/* True when a turn, as far as it is written, ends inside a thinking block: its last opening tag is not closed. */
bool output_turn_thinks(const struct think_tags *think, const char *turn, size_t n);

/* Texts that the parser must see even where the vocabulary has them as control tokens (whose text is otherwise never
 * shown): marker i of the style, or NULL beyond the last. */
const char *output_style_marker(enum output_style style, uint32_t i);

#define OUTPUT_CALL_ID_BYTES 32u
/* A new call id from 128 random bits: "call_" and 24 letters or digits; Mistral's templates demand 9 of them alone. */
void output_call_id(enum output_style style, const uint64_t random[2], char id[OUTPUT_CALL_ID_BYTES]);
