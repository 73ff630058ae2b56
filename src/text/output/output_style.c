/* text/output/output_style.c - marks in a template that tell a style; the strings of each style. */
#include "text/output/output_style.h"
#include <string.h>
#include "text/output/output_openers.h"

/* The first row whose marks are all in the template wins. */
static const struct {
    const char *mark, *second;
    enum output_style style;
} marks[] = {
    {"<｜tool▁call▁begin｜>", NULL, OUTPUT_DEEPSEEK},
    {"<function=", "<parameter=", OUTPUT_QWEN_XML},
    {"[TOOL_CALLS]", NULL, OUTPUT_MISTRAL},
    {"<tool_call>", NULL, OUTPUT_HERMES},
    {"func_name1(", NULL, OUTPUT_PYTHONIC},
    {"<|python_start|>", NULL, OUTPUT_PYTHONIC},
    {"<|python_tag|>", NULL, OUTPUT_LLAMA_JSON},
    {"<|start_header_id|>", NULL, OUTPUT_LLAMA_JSON},
    {"tool_code", NULL, OUTPUT_GEMMA},
    {"<start_of_turn>", NULL, OUTPUT_GEMMA},
};

static const char *const names[OUTPUT_N_STYLES] = {"none",     "hermes", "qwen3_coder", "llama3_json",
                                                   "pythonic", "gemma",  "mistral",     "deepseek"};

static const struct think_tags pairs[] = {
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
    {"<|START_THINKING|>", "<|END_THINKING|>"},
    {"<seed:think>", "</seed:think>"},
    {"<|begin_of_thought|>", "<|end_of_thought|>"},
    {"<reasoning>", "</reasoning>"},
};

static const struct output_opener hermes[] = {{"<tool_call>", HEAD_TAG, ANYWHERE, false},
                                              {"<tools>", HEAD_TAG, ANYWHERE, true},
                                              {"<function_call>", HEAD_TAG, ANYWHERE, false},
                                              {"```json", HEAD_JSON, AT_LINE, true},
                                              {"```\n{", HEAD_JSON, AT_LINE, true},
                                              {"{", HEAD_JSON, AT_LINE, true},
                                              {NULL, 0, ANYWHERE, false}};
static const struct output_opener qwen_xml[] = {
    {"<tool_call>", HEAD_TAG, ANYWHERE, false}, {"<function=", HEAD_XML, ANYWHERE, false}, {NULL, 0, ANYWHERE, false}};
static const struct output_opener llama_json[] = {{"<|python_tag|>", HEAD_JSON, ANYWHERE, false},
                                                  {"<tool_call>", HEAD_TAG, ANYWHERE, false},
                                                  {"<function=", HEAD_XML, ANYWHERE, false},
                                                  {"```json", HEAD_JSON, AT_LINE, true},
                                                  {"{", HEAD_JSON, AT_LINE, true},
                                                  {NULL, 0, ANYWHERE, false}};
static const struct output_opener pythonic[] = {{"<|python_start|>", HEAD_PY_LIST, ANYWHERE, false},
                                                {"<|python_tag|>", HEAD_PY_LIST, ANYWHERE, false},
                                                {"[", HEAD_PY_LIST, AT_START, true},
                                                {NULL, 0, ANYWHERE, false}};
static const struct output_opener gemma[] = {{"```tool_code", HEAD_PY_CODE, ANYWHERE, false},
                                             {"<tool_call>", HEAD_TAG, ANYWHERE, false},
                                             {"```json", HEAD_JSON, AT_LINE, true},
                                             {"[", HEAD_PY_LIST, AT_START, true},
                                             {"{", HEAD_JSON, AT_LINE, true},
                                             {NULL, 0, ANYWHERE, false}};
static const struct output_opener mistral[] = {{"[TOOL_CALLS]", HEAD_MISTRAL, ANYWHERE, false},
                                               {NULL, 0, ANYWHERE, false}};
static const struct output_opener deepseek[] = {{DEEPSEEK_CALLS, HEAD_DEEPSEEK, ANYWHERE, false},
                                                {DEEPSEEK_CALL, HEAD_DEEPSEEK_CALL, ANYWHERE, false},
                                                {NULL, 0, ANYWHERE, false}};
static const struct output_opener none[] = {{NULL, 0, ANYWHERE, false}};

static const struct output_opener *const openers[OUTPUT_N_STYLES] = {none,     hermes, qwen_xml, llama_json,
                                                                     pythonic, gemma,  mistral,  deepseek};

static const char *const tag_tails[] = {"</tool_call>", "</tools>", "</function_call>", NULL};
static const char *const python_tails[] = {"<|python_end|>", NULL};
static const char *const deepseek_tails[] = {"```", DEEPSEEK_CALL_END, DEEPSEEK_CALLS_END, NULL};
static const char *const no_tails[] = {NULL};
static const char *const *const tails[OUTPUT_N_STYLES] = {no_tails,     tag_tails, tag_tails, tag_tails,
                                                          python_tails, tag_tails, no_tails,  deepseek_tails};

/* Control tokens inside a call. */
static const char *const inner[OUTPUT_N_STYLES][3] = {
    [OUTPUT_MISTRAL] = {"[ARGS]", "[CALL_ID]"}, [OUTPUT_DEEPSEEK] = {DEEPSEEK_SEP}};

const struct output_opener *output_style_openers(enum output_style style)
{
    return openers[style];
}

const char *const *output_style_tails(enum output_style style)
{
    return tails[style];
}

enum output_style output_style_detect(const char *template_source)
{
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        if (strstr(template_source, marks[i].mark) && (!marks[i].second || strstr(template_source, marks[i].second)))
            return marks[i].style;
    return OUTPUT_HERMES;
}

const char *output_style_name(enum output_style style)
{
    return names[style];
}

bool output_style_find(const char *name, enum output_style *style)
{
    for (int i = 0; i < OUTPUT_N_STYLES; i++)
        if (strcmp(name, names[i]) == 0) {
            *style = (enum output_style)i;
            return true;
        }
    return false;
}

const struct think_tags *output_think_detect(const char *template_source)
{
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        if (strstr(template_source, pairs[i].open) || strstr(template_source, pairs[i].close)) return &pairs[i];
    return NULL;
}

bool output_prompt_thinks(const struct think_tags *think, const char *prompt, size_t n)
{
    size_t n_open = think ? strlen(think->open) : 0;

    while (n && output_is_space(prompt[n - 1])) n--;
    return think && n >= n_open && memcmp(prompt + n - n_open, think->open, n_open) == 0;
}

bool output_turn_thinks(const struct think_tags *think, const char *turn, size_t n)
{
    const char *at = think ? memmem(turn, n, think->open, strlen(think->open)) : NULL, *open = NULL;

    while (at) {
        open = at + strlen(think->open);
        at = memmem(open, n - (size_t)(open - turn), think->open, strlen(think->open));
    }
    return open && !memmem(open, n - (size_t)(open - turn), think->close, strlen(think->close));
}

const char *output_style_marker(enum output_style style, uint32_t i)
{
    for (const struct output_opener *o = openers[style]; o->text; o++)
        if (o->place == ANYWHERE && i-- == 0) return o->text;
    for (const char *const *t = tails[style]; *t; t++)
        if (i-- == 0) return *t;
    for (uint32_t k = 0; k < 3 && inner[style][k]; k++)
        if (i-- == 0) return inner[style][k];
    return NULL;
}

void output_call_id(enum output_style style, const uint64_t random[2], char id[OUTPUT_CALL_ID_BYTES])
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    uint32_t n = style == OUTPUT_MISTRAL ? 9 : 24, at = 0;
    uint64_t bits[2] = {random[0], random[1]};

    if (style != OUTPUT_MISTRAL) {
        memcpy(id, "call_", 5);
        at = 5;
    }
    for (uint32_t i = 0; i < n; i++) { /* 12 letters of 62 use 71 of 64 bits: mixed once between */
        uint64_t *b = &bits[i & 1];

        id[at++] = letters[*b % 62];
        *b = *b / 62 + (*b << 59);
    }
    id[at] = 0;
}
