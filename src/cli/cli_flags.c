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
    {.flag = "--device", .kind = ARG_TEXT, .value = "NAME", ENGINE(device), .fallback_text = "auto",
     .help = "what computes: auto (a GPU if there is one and this build can use it), cpu, cuda or cuda:N"},
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
    {.flag = "--cpu-isa", .kind = ARG_TEXT, .value = "NAME", ENGINE(isa),
     .choices = "ref|avx2|avx512|amx|neon|neon-dotprod|neon-i8mm", .fallback_text = "the best this CPU has",
     .help = "instruction set: ref (plain C), avx2, avx512 or amx; neon, neon-dotprod or neon-i8mm"},
    {.flag = "--pre", .kind = ARG_TEXT, .value = "NAME", ENGINE(pre), .fallback_text = "the file's",
     .help = "pre-tokenizer: gpt-2, smollm, llama-bpe, qwen2, deepseek-r1-qwen, gpt-4o, tekken, "
             "deepseek-v3"},
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
             "the model too, and tools and arguments with their keys in the order of each request; by default such lines are "
             "left out and keys stay as they came first, so that the cache holds"},
    {.flag = "--no-packed-cache", .kind = ARG_SWITCH, ENGINE(no_packed_cache),
     .help = "neither use nor keep repacked weights"},
    {.flag = "--cache-dir", .kind = ARG_TEXT, .value = "DIR", ENGINE(cache_dir),
     .fallback_text = "$RADISH_CACHE, else ~/.cache/radish/kv",
     .help = "where computed prompts are kept, so that they survive a restart and do not need memory"},
    {.flag = "--cache-disk", .kind = ARG_BYTES, .value = "SIZE", ENGINE(cache_disk_bytes), .fallback_text = "8G",
     .help = "what they may take there; the least recently used go"},
    {.flag = "--no-disk-cache", .kind = ARG_SWITCH, ENGINE(no_disk_cache),
     .help = "keep computed prompts in memory only"},
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
    {.flag = "--step-ms", .kind = ARG_U32, .value = "N", ENGINE(step_target_ms), .fallback_text = "50",
     .help = "milliseconds that a step should take at most while others generate: prompts are cut accordingly"},
    {.flag = "--cache-ttl", .kind = ARG_U32, .value = "S", ENGINE(cache_ttl_s), .fallback_text = "1800",
     .help = "seconds after which an unused cache entry is dropped"},
    {.flag = "--cache-verify", .kind = ARG_REAL, .value = "P", ENGINE(cache_verify), .fallback = "0", .max = 1,
     .help = "compute this share of the cache's hits again while idle and compare every byte: /stats counts mismatches, "
             "which must be 0"},
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
    {.flag = "--repeat-last-n", .kind = ARG_U32, .value = "N", SAMPLE(repeat_last_n),
     .given_at = offsetof(struct sample_flags, has_repeat_last_n), .fallback_text = "all", .max = LIMIT_CONTEXT,
     .help = "these three penalties see so many of the last tokens"},
    {.flag = "--typical-p", .kind = ARG_REAL, .value = "X", SAMPLE(typical_p), .fallback = "1", .max = 1,
     .help = "draw among the tokens whose surprise is nearest to the average, until this probability; 1: off"},
    {.flag = "--top-n-sigma", .kind = ARG_REAL, .value = "X", SAMPLE(top_n_sigma), .fallback = "0", .max = 100,
     .help = "drop tokens more than X standard deviations below the best; 0: off"},
    {.flag = "--xtc-probability", .kind = ARG_REAL, .value = "X", SAMPLE(xtc_probability), .fallback = "0", .max = 1,
     .help = "how often the likeliest tokens are left out, but for the last above --xtc-threshold; 0: off"},
    {.flag = "--xtc-threshold", .kind = ARG_REAL, .value = "X", SAMPLE(xtc_threshold), .fallback = "0.1", .max = 1,
     .help = "probability from which on a token counts as likely there"},
    {.flag = "--dynatemp-range", .kind = ARG_REAL, .value = "X", SAMPLE(dynatemp_range), .fallback = "0", .max = 100,
     .help = "temperature goes up and down by so much with the model's uncertainty; 0: off"},
    {.flag = "--dynatemp-exp", .kind = ARG_REAL, .value = "X", SAMPLE(dynatemp_exponent), .fallback = "1", .max = 100,
     .help = "exponent of the uncertainty there"},
    {.flag = "--dry-multiplier", .kind = ARG_REAL, .value = "X", SAMPLE(dry_multiplier), .fallback = "0", .max = 100,
     .help = "a token that lengthens a repetition loses X times base to the power of its length; 0: off"},
    {.flag = "--dry-base", .kind = ARG_REAL, .value = "X", SAMPLE(dry_base), .fallback = "1.75", .max = 100,
     .help = "that base"},
    {.flag = "--dry-allowed-length", .kind = ARG_U32, .value = "N", SAMPLE(dry_allowed_length), .fallback = "2",
     .max = LIMIT_CONTEXT, .help = "repetitions up to so many tokens are free"},
    {.flag = "--dry-last-n", .kind = ARG_U32, .value = "N", SAMPLE(dry_last_n),
     .given_at = offsetof(struct sample_flags, has_dry_last_n), .fallback_text = "all", .max = LIMIT_CONTEXT,
     .help = "repetitions are looked for in so many of the last tokens"},
    {.flag = "--dry-sequence-breaker", .kind = ARG_TEXTS, .value = "TEXT", SAMPLE(dry_breakers),
     .fallback_text = "line end, colon, quote, star", .help = "no repetition reaches over this text; may be given again"},
    {.flag = "--mirostat", .kind = ARG_U32, .value = "N", SAMPLE(mirostat), .fallback = "0", .max = 2,
     .help = "2: keeps the surprise at --mirostat-tau instead of cutting; 0: off"},
    {.flag = "--mirostat-tau", .kind = ARG_REAL, .value = "X", SAMPLE(mirostat_tau), .fallback = "5", .max = 100,
     .help = "surprise wanted, in bits"},
    {.flag = "--mirostat-eta", .kind = ARG_REAL, .value = "X", SAMPLE(mirostat_eta), .fallback = "0.1", .max = 1,
     .help = "how fast it is corrected"},
    {.flag = "--samplers", .kind = ARG_TEXT, .value = "NAMES", SAMPLE(samplers),
     .fallback_text = "penalties;dry;temperature;top_n_sigma;top_k;typ_p;top_p;min_p;xtc",
     .help = "the stages in their order, by name or by letter (edtskypmx); those left out do nothing"},
    {.flag = "--bad-word", .kind = ARG_TEXTS, .value = "TEXT", SAMPLE(bad_words), .fallback_text = "none",
     .help = "its tokens are not written one after the other; may be given again"},
    {.flag = "--min-tokens", .kind = ARG_U32, .value = "N", SAMPLE(min_tokens), .fallback = "0", .max = LIMIT_CONTEXT,
     .help = "nothing ends the text before so many tokens"},
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
    if (f->has_repeat_last_n) q->repeat_last_n = (int32_t)f->repeat_last_n;
    q->typical_p = (float)f->typical_p;
    q->top_n_sigma = (float)f->top_n_sigma;
    q->xtc_probability = (float)f->xtc_probability;
    q->xtc_threshold = (float)f->xtc_threshold;
    q->dynatemp_range = (float)f->dynatemp_range;
    q->dynatemp_exponent = (float)f->dynatemp_exponent;
    q->dry_multiplier = (float)f->dry_multiplier;
    q->dry_base = (float)f->dry_base;
    q->dry_allowed_length = (int32_t)f->dry_allowed_length;
    if (f->has_dry_last_n) q->dry_last_n = (int32_t)f->dry_last_n;
    q->dry_breakers = f->dry_breakers.n ? f->dry_breakers.items : NULL;
    q->n_dry_breakers = f->dry_breakers.n;
    q->mirostat = (int32_t)f->mirostat;
    q->mirostat_tau = (float)f->mirostat_tau;
    q->mirostat_eta = (float)f->mirostat_eta;
    q->samplers = f->samplers;
    q->bad_words = f->bad_words.items;
    q->n_bad_words = f->bad_words.n;
    q->min_tokens = f->min_tokens;
    q->seed = f->seed;
    q->has_seed = f->has_seed;
    q->ignore_eos = f->ignore_eos;
    q->stop = f->stop.items;
    q->n_stop = f->stop.n;
}
