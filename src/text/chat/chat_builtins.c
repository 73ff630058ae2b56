/* text/chat/chat_builtins.c - the built-in chat templates.
 *
 * Each goes over the messages once. TEXT gives a message's text, whether its content is a text, parts or nothing;
 * SYSTEM_FIRST keeps the system's text for the first user message, for formats without a place for it.
 */
#include "text/chat/chat_builtins.h"
#include <string.h>

#define TEXT                                                                                                           \
    "{%- macro text_of(m) -%}\n"                                                                                       \
    "{%- if m.content is string -%}{{ m.content }}\n"                                                                  \
    "{%- elif m.content -%}\n"                                                                                         \
    "{{ m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}\n"                         \
    "{%- endif -%}\n"                                                                                                  \
    "{%- endmacro -%}\n"

/* A message between two marks, named by its role. */
#define TURNS(before, behind, after, prompt)                                                                           \
    TEXT "{%- for m in messages -%}\n"                                                                                 \
         "{{ '" before "' + m.role + '" behind "' + text_of(m) + '" after "' }}\n"                                     \
         "{%- endfor -%}\n"                                                                                            \
         "{%- if add_generation_prompt -%}{{ '" prompt "' }}{%- endif -%}"

/* Format: Gemma's model card. */
static const char gemma[] = TEXT "{{ bos_token }}\n"
                                 "{%- set ns = namespace(system='') -%}\n"
                                 "{%- for m in messages -%}\n"
                                 "{%- set text = text_of(m) | trim -%}\n"
                                 "{%- if m.role == 'system' -%}\n"
                                 "{%- set ns.system = ns.system + text + '\\n\\n' -%}\n"
                                 "{%- else -%}\n"
                                 "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}\n"
                                 "{%- if m.role == 'user' and ns.system -%}\n"
                                 "{{ ns.system }}\n"
                                 "{%- set ns.system = '' -%}\n"
                                 "{%- endif -%}\n"
                                 "{{ text + '<end_of_turn>\\n' }}\n"
                                 "{%- endif -%}\n"
                                 "{%- endfor -%}\n"
                                 "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}";

static const char chatml[] = TURNS("<|im_start|>", "\\n", "<|im_end|>\\n", "<|im_start|>assistant\\n");
static const char phi4[] = TURNS("<|im_start|>", "<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>");
static const char phi3[] = TURNS("<|", "|>\\n", "<|end|>\\n", "<|assistant|>\\n");
static const char granite[] =
    TURNS("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>\\n", "<|start_of_role|>assistant<|end_of_role|>");
static const char falcon3[] = TURNS("<|", "|>\\n", "\\n", "<|assistant|>\\n");

/* Format: Zephyr's model card; the end token closes each turn. */
static const char zephyr[] = TEXT "{%- for m in messages -%}\n"
                                  "{{ '<|' + m.role + '|>\\n' + text_of(m) + eos_token + '\\n' }}\n"
                                  "{%- endfor -%}\n"
                                  "{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}";

/* [INST] around user texts, the system text inside the first in <<SYS>>. Format: Llama 2's model card. */
static const char llama2[] = TEXT "{%- set ns = namespace(system='') -%}\n"
                                  "{%- for m in messages -%}\n"
                                  "{%- set text = text_of(m) | trim -%}\n"
                                  "{%- if m.role == 'system' -%}\n"
                                  "{%- set ns.system = '<<SYS>>\\n' + text + '\\n<</SYS>>\\n\\n' -%}\n"
                                  "{%- elif m.role == 'assistant' -%}\n"
                                  "{{ ' ' + text + ' ' + eos_token }}\n"
                                  "{%- else -%}\n"
                                  "{{ bos_token + '[INST] ' + ns.system + text + ' [/INST]' }}\n"
                                  "{%- set ns.system = '' -%}\n"
                                  "{%- endif -%}\n"
                                  "{%- endfor -%}";

/* A header per message. Formats: the model cards of Llama 3 and 4. */
#define LLAMA_HEADERS(open, close, end)                                                                                \
    TEXT "{{ bos_token }}\n"                                                                                           \
         "{%- for m in messages -%}\n"                                                                                 \
         "{{ '" open "' + m.role + '" close "\\n\\n' + text_of(m) | trim + '" end "' }}\n"                             \
         "{%- endfor -%}\n"                                                                                            \
         "{%- if add_generation_prompt -%}{{ '" open "assistant" close "\\n\\n' }}{%- endif -%}"
static const char llama3[] = LLAMA_HEADERS("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>");
static const char llama4[] = LLAMA_HEADERS("<|header_start|>", "<|header_end|>", "<|eot|>");

/* The system's text before the next user's. Formats: Mistral's tokenizer versions 1 and 3 (Tekken). */
#define MISTRAL(open, close, answer)                                                                                   \
    TEXT "{{ bos_token }}\n"                                                                                           \
         "{%- set ns = namespace(system='') -%}\n"                                                                     \
         "{%- for m in messages -%}\n"                                                                                 \
         "{%- if m.role == 'system' -%}\n"                                                                             \
         "{%- set ns.system = ns.system + text_of(m) + '\\n\\n' -%}\n"                                                 \
         "{%- elif m.role == 'assistant' -%}\n"                                                                        \
         "{{ '" answer "' + text_of(m) + eos_token }}\n"                                                               \
         "{%- else -%}\n"                                                                                              \
         "{{ '" open "' + ns.system + text_of(m) + '" close "' }}\n"                                                   \
         "{%- set ns.system = '' -%}\n"                                                                                \
         "{%- endif -%}\n"                                                                                             \
         "{%- endfor -%}"
static const char mistral[] = MISTRAL("[INST] ", " [/INST]", " ");
static const char mistral_tekken[] = MISTRAL("[INST]", "[/INST]", "");

/* Formats: DeepSeek V3's model card; Vicuna 1.1; Alpaca; OpenChat 3.5; Command R. */
static const char deepseek[] = TEXT "{{ bos_token }}\n"
                                    "{%- for m in messages -%}\n"
                                    "{%- if m.role == 'assistant' -%}\n"
                                    "{{ '<｜Assistant｜>' + text_of(m) + '<｜end▁of▁sentence｜>' }}\n"
                                    "{%- elif m.role == 'user' -%}\n"
                                    "{{ '<｜User｜>' + text_of(m) }}\n"
                                    "{%- else -%}\n"
                                    "{{ text_of(m) }}\n"
                                    "{%- endif -%}\n"
                                    "{%- endfor -%}\n"
                                    "{%- if add_generation_prompt -%}{{ '<｜Assistant｜>' }}{%- endif -%}";

static const char vicuna[] = TEXT "{{ bos_token }}\n"
                                  "{%- for m in messages -%}\n"
                                  "{%- if m.role == 'system' -%}\n"
                                  "{{ text_of(m) + '\\n\\n' }}\n"
                                  "{%- elif m.role == 'assistant' -%}\n"
                                  "{{ 'ASSISTANT: ' + text_of(m) + eos_token + '\\n' }}\n"
                                  "{%- else -%}\n"
                                  "{{ 'USER: ' + text_of(m) + '\\n' }}\n"
                                  "{%- endif -%}\n"
                                  "{%- endfor -%}\n"
                                  "{%- if add_generation_prompt -%}{{ 'ASSISTANT:' }}{%- endif -%}";

static const char alpaca[] = TEXT "{{ bos_token }}\n"
                                  "{%- for m in messages -%}\n"
                                  "{%- if m.role == 'system' -%}\n"
                                  "{{ text_of(m) + '\\n\\n' }}\n"
                                  "{%- elif m.role == 'assistant' -%}\n"
                                  "{{ '### Response:\\n' + text_of(m) + eos_token + '\\n\\n' }}\n"
                                  "{%- else -%}\n"
                                  "{{ '### Instruction:\\n' + text_of(m) + '\\n\\n' }}\n"
                                  "{%- endif -%}\n"
                                  "{%- endfor -%}\n"
                                  "{%- if add_generation_prompt -%}{{ '### Response:\\n' }}{%- endif -%}";

static const char openchat[] = TEXT "{{ bos_token }}\n"
                                    "{%- for m in messages -%}\n"
                                    "{%- if m.role == 'system' -%}\n"
                                    "{{ text_of(m) + '<|end_of_turn|>' }}\n"
                                    "{%- else -%}\n"
                                    "{{ 'GPT4 Correct ' + ('Assistant' if m.role == 'assistant' else 'User') + ': ' + "
                                    "text_of(m) + '<|end_of_turn|>' }}\n"
                                    "{%- endif -%}\n"
                                    "{%- endfor -%}\n"
                                    "{%- if add_generation_prompt -%}{{ 'GPT4 Correct Assistant:' }}{%- endif -%}";

static const char command_r[] = TEXT
    "{{ bos_token }}\n"
    "{%- set names = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT', 'tool': 'SYSTEM'} -%}\n"
    "{%- for m in messages -%}\n"
    "{{ '<|START_OF_TURN_TOKEN|><|' + names[m.role] + '_TOKEN|>' + text_of(m) | trim + '<|END_OF_TURN_TOKEN|>' }}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{%- endif -%}";

/* ChatML with tools as Qwen 2.5 and 3 are taught them (the Hermes format); enable_thinking=false closes the thinking
 * before it begins; thinking of earlier turns is left out. Format: Qwen's documentation on function calling. */
static const char qwen[] = TEXT
    "{%- set ns = namespace(last_user=-1, system='') -%}\n"
    "{%- for m in messages -%}\n"
    "{%- if m.role == 'user' -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}\n"
    "{%- if m.role == 'system' and loop.first -%}{%- set ns.system = text_of(m) -%}{%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if tools -%}\n"
    "{{ '<|im_start|>system\\n' + (ns.system + '\\n\\n' if ns.system) }}\n"
    "{{- '# Tools\\n\\nCall functions when they help. Their signatures stand within <tools></tools>:\\n<tools>' }}\n"
    "{%- for t in tools -%}{{ '\\n' + t | tojson }}{%- endfor -%}\n"
    "{{ '\\n</tools>\\n\\nWrite each call as a JSON object within <tool_call></tool_call>:\\n<tool_call>\\n' }}\n"
    "{{- '{\"name\": <function>, \"arguments\": <object>}\\n</tool_call><|im_end|>\\n' }}\n"
    "{%- elif ns.system -%}\n"
    "{{ '<|im_start|>system\\n' + ns.system + '<|im_end|>\\n' }}\n"
    "{%- endif -%}\n"
    "{%- for m in messages -%}\n"
    "{%- if m.role == 'system' and loop.first -%}{%- continue -%}{%- endif -%}\n"
    "{%- if m.role == 'tool' -%}\n"
    "{%- if loop.first or loop.previtem.role != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}\n"
    "{{ '\\n<tool_response>\\n' + text_of(m) + '\\n</tool_response>' }}\n"
    "{%- if loop.last or loop.nextitem.role != 'tool' -%}{{ '<|im_end|>\\n' }}{%- endif -%}\n"
    "{%- else -%}\n"
    "{{ '<|im_start|>' + m.role + '\\n' }}\n"
    "{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last_user -%}\n"
    "{{ '<think>\\n' + m.reasoning_content | trim + '\\n</think>\\n\\n' }}\n"
    "{%- endif -%}\n"
    "{{ text_of(m) }}\n"
    "{%- for call in m.tool_calls or [] -%}\n"
    "{%- set f = call.function or call -%}\n"
    "{{ ('\\n' if not loop.first or text_of(m)) + '<tool_call>\\n{\"name\": \"' + f.name + '\", \"arguments\": ' }}\n"
    "{{- (f.arguments if f.arguments is string else f.arguments | tojson) + '}\\n</tool_call>' }}\n"
    "{%- endfor -%}\n"
    "{{ '<|im_end|>\\n' }}\n"
    "{%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "{{ '<|im_start|>assistant\\n' }}\n"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif "
    "-%}\n"
    "{%- endif -%}";

static const struct {
    const char *name, *source;
} table[] = {
    {"chatml", chatml},     {"qwen", qwen},       {"llama2", llama2},       {"llama3", llama3},
    {"llama4", llama4},     {"gemma", gemma},     {"mistral", mistral},     {"mistral-tekken", mistral_tekken},
    {"deepseek", deepseek}, {"phi3", phi3},       {"phi4", phi4},           {"zephyr", zephyr},
    {"granite", granite},   {"falcon3", falcon3}, {"command-r", command_r}, {"openchat", openchat},
    {"vicuna", vicuna},     {"alpaca", alpaca},
};

const char *chat_builtin_source(const char *name)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (!strcmp(name, table[i].name)) return table[i].source;
    return NULL;
}

const char *chat_builtin_names(void)
{
    return "chatml, qwen, llama2, llama3, llama4, gemma, mistral, mistral-tekken, deepseek, phi3, phi4, zephyr, "
           "granite, "
           "falcon3, command-r, openchat, vicuna, alpaca";
}
