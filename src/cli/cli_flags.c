/* cli/cli_flags.c - the shared tables themselves. */
#include "cli/cli_flags.h"

#define ENGINE(field) .at = offsetof(struct rd_options, field)
#define SAMPLE(field) .at = offsetof(struct sample_flags, field)

const struct arg context_args[] = {
    {.flag = "--ctx", .letter = 'c', .kind = ARG_U32, .value = "N", ENGINE(n_ctx), .max = LIMIT_CONTEXT,
     .fallback_text = "the model's own, at most what the KV budget holds", .help = "longest sequence, in tokens"},
    {0}
};

const struct arg engine_args[] = {
    {.flag = "--threads", .letter = 't', .kind = ARG_U32, .value = "N", ENGINE(n_threads),
     .fallback_text = "all cores of this process", .max = LIMIT_CPU_THREADS, .help = "CPU threads that compute"},
    {.flag = "--kv-bytes", .kind = ARG_BYTES, .value = "SIZE", ENGINE(kv_bytes),
     .fallback_text = "20 % of memory, 256M to 8G",
     .help = "budget of the KV cache in bytes; k, M, G are powers of 1024"},
    {.flag = "--kv-tokens", .kind = ARG_U64, .value = "N", ENGINE(kv_tokens), .fallback_text = "--kv-bytes decides",
     .help = "budget of the KV cache in tokens instead"},
    {.flag = "--kv-type", .kind = ARG_TEXT, .value = "TYPE", ENGINE(kv_type), .fallback = "f16",
     .help = "how keys and values are stored: f16, bf16, f32, q8_0 or q4_0; q8_0/q4_0: keys and values"},
    {.flag = "--kv-force", .kind = ARG_SWITCH, ENGINE(kv_force),
     .help = "take q4_0 keys even where they are known to ruin the model"},
    {.flag = "--page-tokens", .kind = ARG_U32, .value = "N", ENGINE(page_tokens), .fallback_text = "16", .max = 4096,
     .help = "tokens in one KV page, a power of two"},
    {.flag = "--cpu-isa", .kind = ARG_TEXT, .value = "NAME", ENGINE(isa), .choices = "ref|avx2|avx512|amx",
     .fallback_text = "the best this CPU has", .help = "instruction set: ref (plain C), avx2, avx512 or amx"},
    {.flag = "--pre", .kind = ARG_TEXT, .value = "NAME", ENGINE(pre), .fallback_text = "the file's",
     .help = "pre-tokenizer: gpt-2, smollm, llama-bpe, qwen2, deepseek-r1-qwen"},
    {.flag = "--tool-parser", .kind = ARG_TEXT, .value = "NAME", ENGINE(tool_parser),
     .fallback_text = "by the chat template",
     .help = "how the model writes tool calls: hermes, qwen3_coder, llama3_json, pythonic, gemma, mistral, deepseek "
             "or none"},
    {.flag = "--chat-template", .kind = ARG_TEXT, .value = "FILE", ENGINE(chat_template_file),
     .fallback_text = "the model's",
     .help = "a Jinja file, or a built-in format by name: chatml, qwen, llama2, llama3, llama4, gemma, mistral, "
             "mistral-tekken, deepseek, phi3, phi4, zephyr, granite, falcon3, command-r, openchat, vicuna, alpaca"},
    {.flag = "--packed-dir", .kind = ARG_TEXT, .value = "DIR", ENGINE(packed_dir),
     .fallback_text = "$RADISH_PACKED, else ~/.cache/radish/packed",
     .help = "where repacked weights are kept, so that the next start is fast and servers share them"},
    {.flag = "--packed-bytes", .kind = ARG_BYTES, .value = "SIZE", ENGINE(packed_bytes), .fallback_text = "16G",
     .help = "what they may take there; the least recently used go"},
    {.flag = "--no-normalise", .kind = ARG_SWITCH, ENGINE(no_normalise),
     .help = "lines of system prompts that are new in every request (Claude Code's billing header, request ids) reach "
             "the model too; by default they are left out, so that the cache holds"},
    {.flag = "--no-packed-cache", .kind = ARG_SWITCH, ENGINE(no_packed_cache),
     .help = "neither use nor keep repacked weights"},
    {.flag = "--draft", .kind = ARG_TEXT, .value = "MODEL", ENGINE(draft_model), .fallback_text = "none",
     .help = "smaller model with the same vocabulary that guesses ahead (guesses are verified: same output)"},
    {.flag = "--no-speculation", .kind = ARG_SWITCH, ENGINE(no_speculation),
     .help = "no drafts, neither from text that was seen before nor from --draft (the output is the same)"},
    {0}
};

const struct arg schedule_args[] = {
    {.flag = "--max-running", .kind = ARG_U32, .value = "N", ENGINE(max_running), .fallback_text = "64",
     .help = "sequences computed together in one step"},
    {.flag = "--max-queue", .kind = ARG_U32, .value = "N", ENGINE(max_queue), .fallback_text = "256",
     .help = "requests that may wait beyond those; then HTTP 429"},
    {.flag = "--max-chunk", .kind = ARG_U32, .value = "N", ENGINE(max_chunk), .fallback_text = "256",
     .help = "prompt tokens in one step at most"},
    {.flag = "--step-ms", .kind = ARG_U32, .value = "N", ENGINE(step_target_ms), .fallback_text = "100",
     .help = "milliseconds that a step should take at most while others generate: prompts are cut accordingly"},
    {.flag = "--cache-ttl", .kind = ARG_U32, .value = "S", ENGINE(cache_ttl_s), .fallback_text = "1800",
     .help = "seconds after which an unused cache entry is dropped"},
    {0}
};

const struct arg sample_args[] = {
    {.flag = "--max-tokens", .letter = 'n', .kind = ARG_U32, .value = "N", SAMPLE(max_tokens), .fallback = "1024",
     .help = "tokens to generate at most; 0: until the context is full"},
    {.flag = "--temperature", .kind = ARG_REAL, .value = "X", SAMPLE(temperature), .fallback = "0.7", .max = 100,
     .help = "0 takes the likeliest token always"},
    {.flag = "--top-k", .kind = ARG_U32, .value = "N", SAMPLE(top_k), .fallback = "40", .max = LIMIT_VOCAB,
     .help = "draw among the N likeliest tokens; 0: off"},
    {.flag = "--top-p", .kind = ARG_REAL, .value = "X", SAMPLE(top_p), .fallback = "0.95", .max = 1,
     .help = "draw among the likeliest tokens that make up this probability; 1: off"},
    {.flag = "--min-p", .kind = ARG_REAL, .value = "X", SAMPLE(min_p), .fallback = "0.05", .max = 1,
     .help = "drop tokens below X times the likeliest one's probability; 0: off"},
    {.flag = "--repetition-penalty", .kind = ARG_REAL, .value = "X", SAMPLE(repetition_penalty), .fallback = "1",
     .min = 0.01, .max = 100, .help = "above 1: tokens seen before become less likely"},
    {.flag = "--presence-penalty", .kind = ARG_REAL, .value = "X", SAMPLE(presence_penalty), .fallback = "0",
     .min = -2, .max = 2, .help = "taken from the score of every token generated before"},
    {.flag = "--frequency-penalty", .kind = ARG_REAL, .value = "X", SAMPLE(frequency_penalty), .fallback = "0",
     .min = -2, .max = 2, .help = "the same for each time it was generated"},
    {.flag = "--seed", .kind = ARG_U64, .value = "N", SAMPLE(seed),
     .given_at = offsetof(struct sample_flags, has_seed), .fallback_text = "random",
     .help = "the same seed and prompt give the same text"},
    {.flag = "--stop", .kind = ARG_TEXTS, .value = "TEXT", SAMPLE(stop),
     .help = "end before this text; may be given again"},
    {.flag = "--ignore-eos", .kind = ARG_SWITCH, SAMPLE(ignore_eos), .help = "go on where the model would end"},
    {0}
};

void sample_flags_apply(const struct sample_flags *f, struct rd_request_options *q)
{
    q->max_tokens = f->max_tokens ? f->max_tokens : RD_NO_LIMIT;
    q->temperature = (float)f->temperature;
    q->top_k = (int32_t)f->top_k;
    q->top_p = (float)f->top_p;
    q->min_p = (float)f->min_p;
    q->repetition_penalty = (float)f->repetition_penalty;
    q->presence_penalty = (float)f->presence_penalty;
    q->frequency_penalty = (float)f->frequency_penalty;
    q->seed = f->seed;
    q->has_seed = f->has_seed;
    q->ignore_eos = f->ignore_eos;
    q->stop = f->stop.items;
    q->n_stop = f->stop.n;
}
