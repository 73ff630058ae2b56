/* server/routes/metrics_foreign.c - the metrics of vLLM, SGLang and llama-server that say what radish knows, under their
 * names, labels and units, so that dashboards, autoscalers and routers made for them read radish unchanged: Gateway API's
 * inference extension wants vllm:num_requests_waiting, vllm:num_requests_running and vllm:kv_cache_usage_perc.
 *
 * A name whose number radish does not have is left out, not told as 0.
 *
 * Source  vllm/v1/metrics/loggers.py, sglang/srt/metrics/collector.py, llama.cpp tools/server; as of 2026.
 */
#include "server/routes/metric_rows.h"

static double over(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static double running(const struct metric_view *v)
{
    return (double)(v->s.n_waiting + v->s.n_prefill + v->s.n_decode);
}
static double queued(const struct metric_view *v)
{
    return (double)(v->s.n_preparing + v->s.n_queued);
}
static double waits_for_room(const struct metric_view *v)
{
    return (double)v->s.n_preparing + metric_queued_for_room(v);
}

/* What is stored and held by nobody gives way to whoever needs the page: it is as good as free. */
static double pages_used(const struct metric_view *v)
{
    return (double)(v->s.pages_total - v->s.pages_free - v->s.pages_ready);
}

static double usage(const struct metric_view *v)
{
    return over(pages_used(v), (double)v->s.pages_total);
}
static double tokens_of(const struct metric_view *v, double pages)
{
    return pages * (double)v->s.page_tokens;
}
static double used_tokens(const struct metric_view *v)
{
    return tokens_of(v, pages_used(v));
}
static double total_tokens(const struct metric_view *v)
{
    return tokens_of(v, (double)v->s.pages_total);
}
static double free_tokens(const struct metric_view *v)
{
    return tokens_of(v, (double)v->s.pages_free);
}
static double ready_tokens(const struct metric_view *v)
{
    return tokens_of(v, (double)v->s.pages_ready);
}
static double evicted_tokens(const struct metric_view *v)
{
    return tokens_of(v, (double)v->s.pages_evicted);
}
static double ram_tokens(const struct metric_view *v)
{
    return tokens_of(v, (double)v->s.ram_pages);
}
static double ram_cap_tokens(const struct metric_view *v)
{
    return tokens_of(v, (double)v->s.ram_cap_pages);
}
static double ram_loaded_tokens(const struct metric_view *v)
{
    return tokens_of(v, (double)v->s.ram_pages_loaded);
}
static double written_tokens(const struct metric_view *v)
{
    return tokens_of(v, (double)v->s.disk_pages_written);
}

static double ram_bytes(const struct metric_view *v, uint64_t pages)
{
    return tokens_of(v, (double)pages) * (double)v->info.kv_bytes_per_token;
}

static double ram_bytes_saved(const struct metric_view *v)
{
    return ram_bytes(v, v->s.ram_pages_saved);
}
static double ram_bytes_loaded(const struct metric_view *v)
{
    return ram_bytes(v, v->s.ram_pages_loaded);
}
static double brought_tokens(const struct metric_view *v)
{
    return (double)(v->s.prompt_tokens_ram + v->s.prompt_tokens_disk);
}

static double local_hits(const struct metric_view *v)
{
    return (double)(v->s.prompt_tokens_device + v->s.prompt_tokens_joined);
}

static double hit_rate(const struct metric_view *v)
{
    return over((double)v->s.prompt_tokens_cached, metric_prompt_tokens(v));
}
static double requests_ended(const struct metric_view *v)
{
    return (double)(v->s.n_stop + v->s.n_length + v->s.n_cancelled + v->s.n_failed);
}

static double accept_rate(const struct metric_view *v)
{
    return over((double)v->s.tokens_draft_accepted, (double)v->s.tokens_drafted);
}

/* Tokens of a step that had a draft: those that were right, and the one that is drawn behind them. */
static double accept_length(const struct metric_view *v)
{
    return v->s.n_drafts ? 1 + over((double)v->s.tokens_draft_accepted, (double)v->s.n_drafts) : 0;
}

static double decode_speed(const struct metric_view *v)
{
    return v->s.n_decode ? v->s.decode_tok_s : 0;
}
static double prefill_s(const struct metric_view *v)
{
    return v->of[RD_HIST_PREFILL].sum;
}
static double decode_s(const struct metric_view *v)
{
    return v->of[RD_HIST_DECODE].sum;
}
static double per_step(const struct metric_view *v)
{
    return over((double)v->s.step_runs, (double)v->s.n_steps);
}

/* clang-format off */
static const struct metric vllm[] = {
    METRIC_VALUE("vllm:num_requests_running", "", running, "Requests in the batch")
    METRIC_VALUE("vllm:num_requests_waiting", "", queued, "Requests that are prepared, or wait to be scheduled")
    METRIC_VALUE("vllm:num_requests_waiting_by_reason", "reason=\"capacity\"", waits_for_room, "The same by reason; deferred: loading from another tier")
    METRIC_NOW("vllm:num_requests_waiting_by_reason", "reason=\"deferred\"", n_loading, "")
    METRIC_VALUE("vllm:kv_cache_usage_perc", "", usage, "Pages that running requests hold; 1: all")
    METRIC_VALUE("vllm:gpu_cache_usage_perc", "", usage, "The same under its old name")
    METRIC_SUM("vllm:prefix_cache_queries_total", "", metric_prompt_tokens, "Prompt tokens that were looked up")
    METRIC_COUNT("vllm:prefix_cache_hits_total", "", prompt_tokens_cached, "Those of them that were not computed")
    METRIC_COUNT("vllm:num_preemptions_total", "", n_preempted, "Preemptions")
    METRIC_SUM("vllm:prompt_tokens_total", "", metric_prompt_tokens, "Prompt tokens")
    METRIC_COUNT("vllm:prompt_tokens_by_source_total", "source=\"local_compute\"", prompt_tokens_computed, "Prompt tokens by where they came from")
    METRIC_SUM("vllm:prompt_tokens_by_source_total", "source=\"local_cache_hit\"", local_hits, "")
    METRIC_SUM("vllm:prompt_tokens_by_source_total", "source=\"external_kv_transfer\"", brought_tokens, "")
    METRIC_COUNT("vllm:prompt_tokens_cached_total", "", prompt_tokens_cached, "Cached prompt tokens")
    METRIC_COUNT("vllm:generation_tokens_total", "", tokens_generated, "Generated tokens")
    METRIC_COUNT("vllm:request_success_total", "finished_reason=\"stop\"", n_stop, "Requests that ended, by how")
    METRIC_COUNT("vllm:request_success_total", "finished_reason=\"length\"", n_length, "")
    METRIC_COUNT("vllm:request_success_total", "finished_reason=\"abort\"", n_cancelled, "")
    METRIC_COUNT("vllm:request_success_total", "finished_reason=\"error\"", n_failed, "")
    METRIC_COUNT("vllm:corrupted_requests_total", "", n_corrupted, "Requests with logits that are no numbers")
    METRIC_COUNT("vllm:admission_rejections_total", "reason=\"queue_full\"", n_rejected, "Requests that were refused")
    METRIC_COUNT("vllm:spec_decode_num_drafts_total", "", n_drafts, "Drafts")
    METRIC_COUNT("vllm:spec_decode_num_draft_tokens_total", "", tokens_drafted, "Tokens of drafts")
    METRIC_COUNT("vllm:spec_decode_num_accepted_tokens_total", "", tokens_draft_accepted, "Those of them that were right")
    METRIC_SUM("vllm:kv_offload_total_bytes_total", "transfer_type=\"GPU_to_CPU\"", ram_bytes_saved, "Bytes that went to host memory and back")
    METRIC_SUM("vllm:kv_offload_total_bytes_total", "transfer_type=\"CPU_to_GPU\"", ram_bytes_loaded, "")
    METRIC_SUM("vllm:kv_offload_total_time_total", "transfer_type=\"CPU_to_GPU\"", metric_ram_load_s, "Seconds that loads from host memory took")
    METRIC_SPREAD("vllm:time_to_first_token_seconds", RD_HIST_TTFT, "Time to the first token")
    METRIC_SPREAD("vllm:inter_token_latency_seconds", RD_HIST_INTER_TOKEN, "Time between tokens")
    METRIC_SPREAD("vllm:request_time_per_output_token_seconds", RD_HIST_PER_TOKEN, "Decode time per token of a request")
    METRIC_SPREAD("vllm:time_per_output_token_seconds", RD_HIST_INTER_TOKEN, "Time between tokens under its old name")
    METRIC_SPREAD("vllm:e2e_request_latency_seconds", RD_HIST_E2E, "From the call to the end")
    METRIC_SPREAD("vllm:request_queue_time_seconds", RD_HIST_QUEUE, "In the queue")
    METRIC_SPREAD("vllm:request_inference_time_seconds", RD_HIST_RUN, "From the queue to the end")
    METRIC_SPREAD("vllm:request_prefill_time_seconds", RD_HIST_PREFILL, "Prompt")
    METRIC_SPREAD("vllm:request_decode_time_seconds", RD_HIST_DECODE, "From the first token to the end")
    METRIC_SPREAD("vllm:request_prompt_tokens", RD_HIST_PROMPT_TOKENS, "Tokens of prompts")
    METRIC_SPREAD("vllm:request_generation_tokens", RD_HIST_GENERATED_TOKENS, "Tokens of answers")
    METRIC_SPREAD("vllm:request_max_num_generation_tokens", RD_HIST_GENERATED_TOKENS, "The same: each choice is a request")
    METRIC_SPREAD("vllm:request_params_max_tokens", RD_HIST_MAX_TOKENS, "The most that a request could have generated")
    METRIC_SPREAD("vllm:request_prefill_kv_computed_tokens", RD_HIST_COMPUTED_TOKENS, "Prompt tokens that were computed")
    METRIC_SPREAD("vllm:iteration_tokens_total", RD_HIST_STEP_ROWS, "Tokens of a step")
};

static const struct metric sglang[] = {
    METRIC_SUM("sglang:prompt_tokens_total", "", metric_prompt_tokens, "Prompt tokens")
    METRIC_COUNT("sglang:generation_tokens_total", "", tokens_generated, "Generated tokens")
    METRIC_SUM("sglang:cached_tokens_total", "cache_source=\"device\"", local_hits, "Cached prompt tokens by where they were")
    METRIC_COUNT("sglang:cached_tokens_total", "cache_source=\"host\"", prompt_tokens_ram, "")
    METRIC_COUNT("sglang:cached_tokens_total", "cache_source=\"storage\"", prompt_tokens_disk, "")
    METRIC_SUM("sglang:num_requests_total", "", requests_ended, "Requests that ended")
    METRIC_COUNT("sglang:num_aborted_requests_total", "", n_cancelled, "Requests that were cancelled")
    METRIC_COUNT("sglang:num_retracted_requests_total", "", n_preempted, "Preemptions")
    METRIC_VALUE("sglang:num_running_reqs", "", running, "Requests in the batch")
    METRIC_VALUE("sglang:num_queue_reqs", "", queued, "Requests that wait")
    METRIC_VALUE("sglang:num_used_tokens", "", used_tokens, "Tokens that running requests hold, in whole pages")
    METRIC_VALUE("sglang:max_total_num_tokens", "", total_tokens, "Tokens that fit")
    METRIC_VALUE("sglang:token_usage", "", usage, "Their share; 1: all")
    METRIC_VALUE("sglang:cache_hit_rate", "", hit_rate, "Cached over all prompt tokens, since the start")
    METRIC_VALUE("sglang:gen_throughput", "", decode_speed, "Generated tokens per second")
    METRIC_VALUE("sglang:kv_available_tokens", "", free_tokens, "Free")
    METRIC_VALUE("sglang:kv_evictable_tokens", "", ready_tokens, "Stored, and given up when they are needed")
    METRIC_VALUE("sglang:kv_used_tokens", "", used_tokens, "Held")
    METRIC_SUM("sglang:evicted_tokens_total", "", evicted_tokens, "Tokens of pages that were given up")
    METRIC_SUM("sglang:load_back_tokens_total", "", ram_loaded_tokens, "Tokens that came back from host memory")
    METRIC_VALUE("sglang:hicache_host_used_tokens", "", ram_tokens, "Tokens in host memory")
    METRIC_VALUE("sglang:hicache_host_total_tokens", "", ram_cap_tokens, "Tokens that fit there")
    METRIC_COUNT("sglang:prefetched_tokens_total", "", prompt_tokens_disk, "Tokens that came from disk")
    METRIC_SUM("sglang:backuped_tokens_total", "", written_tokens, "Tokens that were written to disk")
    METRIC_VALUE("sglang:spec_accept_length", "", accept_length, "Tokens of a step with a draft")
    METRIC_VALUE("sglang:spec_accept_rate", "", accept_rate, "Right over drafted tokens")
    METRIC_SPREAD("sglang:time_to_first_token_seconds", RD_HIST_TTFT, "Time to the first token")
    METRIC_SPREAD("sglang:inter_token_latency_seconds", RD_HIST_INTER_TOKEN, "Time between tokens")
    METRIC_SPREAD("sglang:time_per_output_token_seconds", RD_HIST_PER_TOKEN, "Decode time per token of a request")
    METRIC_SPREAD("sglang:e2e_request_latency_seconds", RD_HIST_E2E, "From the call to the end")
    METRIC_SPREAD("sglang:queue_time_seconds", RD_HIST_QUEUE, "In the queue")
    METRIC_COUNT("sglang:realtime_tokens_total", "mode=\"prefill_compute\"", prompt_tokens_computed, "Tokens by what was done")
    METRIC_COUNT("sglang:realtime_tokens_total", "mode=\"prefill_cache\"", prompt_tokens_cached, "")
    METRIC_COUNT("sglang:realtime_tokens_total", "mode=\"decode\"", tokens_generated, "")
    METRIC_VALUE("sglang:engine_startup_time", "", metric_load_s, "Seconds that loading took")
};

static const struct metric llama_server[] = {
    METRIC_COUNT("llamacpp:prompt_tokens_total", "", prompt_tokens_computed, "Prompt tokens that were computed")
    METRIC_SUM("llamacpp:prompt_seconds_total", "", prefill_s, "Time of prompts")
    METRIC_VALUE("llamacpp:prompt_tokens_seconds", "", metric_prefill_speed, "Prompt tokens per second")
    METRIC_COUNT("llamacpp:tokens_predicted_total", "", tokens_generated, "Generated tokens")
    METRIC_SUM("llamacpp:tokens_predicted_seconds_total", "", decode_s, "Time of answers")
    METRIC_VALUE("llamacpp:predicted_tokens_seconds", "", metric_decode_speed, "Generated tokens per second")
    METRIC_VALUE("llamacpp:requests_processing", "", running, "Requests in the batch")
    METRIC_VALUE("llamacpp:requests_deferred", "", queued, "Requests that wait")
    METRIC_NOW("llamacpp:n_tokens_max", "", longest_tokens, "The longest sequence that ended")
    METRIC_COUNT("llamacpp:n_decode_total", "", n_steps, "Forward passes")
    METRIC_VALUE("llamacpp:n_busy_slots_per_decode", "", per_step, "Sequences of a forward pass, on average")
    METRIC_COUNT("llamacpp:spec_decode_num_drafts_total", "", n_drafts, "Drafts")
    METRIC_COUNT("llamacpp:spec_decode_num_draft_tokens_total", "", tokens_drafted, "Tokens of drafts")
    METRIC_COUNT("llamacpp:spec_decode_num_accepted_tokens_total", "", tokens_draft_accepted, "Those of them that were right")
};
/* clang-format on */

const struct metric_list metrics_of_vllm = {vllm, sizeof(vllm) / sizeof(vllm[0]), true, true};
const struct metric_list metrics_of_sglang = {sglang, sizeof(sglang) / sizeof(sglang[0]), true, false};
const struct metric_list metrics_of_llama_server = {llama_server, sizeof(llama_server) / sizeof(llama_server[0]), false,
                                                    false};
