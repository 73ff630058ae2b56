/* server/routes/metrics.c - GET /metrics for Prometheus: sums, gauges and histograms under radish's names and under those
 * of other servers; a key of --api-key-file sees its own numbers alone. */
#include <stdio.h>
#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "server/monitor/monitor.h"
#include "server/monitor/pressure.h"
#include "server/params/prom_out.h"
#include "server/routes/metric_rows.h"

double metric_load_s(const struct metric_view *v)
{
    return v->info.load_ms / 1e3;
}
static double uptime(const struct metric_view *v)
{
    return v->s.uptime_s;
}
static double plan_s(const struct metric_view *v)
{
    return v->s.plan_ms / 1e3;
}
static double forward_s(const struct metric_view *v)
{
    return v->s.forward_ms / 1e3;
}
static double sample_s(const struct metric_view *v)
{
    return v->s.sample_ms / 1e3;
}
static double output_s(const struct metric_view *v)
{
    return v->s.output_ms / 1e3;
}
static double encoder_s(const struct metric_view *v)
{
    return v->s.encoder_ms / 1e3;
}
double metric_ram_load_s(const struct metric_view *v)
{
    return v->s.ram_load_ms / 1e3;
}
double metric_prefill_speed(const struct metric_view *v)
{
    return v->s.prefill_tok_s;
}
double metric_decode_speed(const struct metric_view *v)
{
    return v->s.decode_tok_s;
}
static double device_dead(const struct metric_view *v)
{
    return v->s.device_dead;
}
static double kv_tokens(const struct metric_view *v)
{
    return (double)v->info.kv_tokens;
}

double metric_prompt_tokens(const struct metric_view *v)
{
    return (double)(v->s.prompt_tokens_computed + v->s.prompt_tokens_cached);
}

double metric_queued_for_room(const struct metric_view *v)
{
    return v->s.n_queued > v->s.n_loading ? (double)(v->s.n_queued - v->s.n_loading) : 0;
}

static double client_used(const struct metric_view *v)
{
    return (double)atomic_load_explicit(&v->server->http.memory.used, memory_order_relaxed);
}

static double client_limit(const struct metric_view *v)
{
    return (double)v->server->http.memory.limit;
}

static double client_refused(const struct metric_view *v)
{
    return (double)atomic_load_explicit(&v->server->http.memory.n_refused, memory_order_relaxed);
}

static double budget_ratio(const struct metric_view *v, enum budget b)
{
    struct budget_use uses[N_BUDGETS];

    budget_uses(&v->s, uses);
    return uses[b].limit ? (double)uses[b].used / (double)uses[b].limit : 0;
}

#define BUDGET_VALUES(id, name, what)                                                                                  \
    static double ratio_of_##id(const struct metric_view *v)                                                           \
    {                                                                                                                  \
        return budget_ratio(v, id);                                                                                    \
    }                                                                                                                  \
    static double warning_of_##id(const struct metric_view *v)                                                         \
    {                                                                                                                  \
        return pressure_is_above(monitor_pressure(v->server->monitor), id);                                            \
    }
BUDGETS(BUDGET_VALUES)
#undef BUDGET_VALUES
#define BUDGET_RATIO(id, name, what)                                                                                   \
    METRIC_VALUE("radish_budget_used_ratio", "budget=\"" name "\"", ratio_of_##id,                                     \
                 id == BUDGET_KV ? "Used of each budget of memory, from 0 to 1; 0: it has no limit" : "")
#define BUDGET_WARNING(id, name, what)                                                                                 \
    METRIC_VALUE("radish_budget_warning", "budget=\"" name "\"", warning_of_##id,                                      \
                 id == BUDGET_KV ? "1: it went above 80 %, and has not been below 70 % since" : "")

static double connections(const struct metric_view *v)
{
    unsigned n = 0;

    for (uint32_t i = 0; i < v->server->http.n_io; i++)
        n += atomic_load_explicit(&v->server->http.io[i].n_conns, memory_order_relaxed);
    return n;
}

#define OWN_HISTOGRAM(id, name, unit, help) METRIC_SPREAD("radish_" name, id, help)

/* clang-format off */
static const struct metric rows[] = {
    METRIC_VALUE("radish_uptime_seconds", "", uptime, "Since the engine was opened")
    METRIC_VALUE("radish_load_seconds", "", metric_load_s, "What loading the model took")
    METRIC_VALUE("radish_http_connections", "", connections, "Open connections")

    METRIC_NOW("radish_requests", "state=\"preparing\"", n_preparing, "Requests now, by what they do or wait for")
    METRIC_VALUE("radish_requests", "state=\"queued\"", metric_queued_for_room, "")
    METRIC_NOW("radish_requests", "state=\"loading\"", n_loading, "")
    METRIC_NOW("radish_requests", "state=\"waiting\"", n_waiting, "")
    METRIC_NOW("radish_requests", "state=\"prefill\"", n_prefill, "")
    METRIC_NOW("radish_requests", "state=\"decode\"", n_decode, "")
    METRIC_NOW("radish_requests_paused", "", n_paused, "Requests in the batch whose reader is slow: they rest")
    METRIC_COUNT("radish_requests_submitted_total", "", n_submitted, "Requests that the engine took in")
    METRIC_COUNT("radish_requests_ended_total", "outcome=\"stop\"", n_stop, "Requests that ended, by how")
    METRIC_COUNT("radish_requests_ended_total", "outcome=\"length\"", n_length, "")
    METRIC_COUNT("radish_requests_ended_total", "outcome=\"cancelled\"", n_cancelled, "")
    METRIC_COUNT("radish_requests_ended_total", "outcome=\"failed\"", n_failed, "")
    METRIC_COUNT("radish_requests_cancelled_total", "phase=\"preparing\"", cancelled_in[RD_PHASE_PREPARING], "Requests that were cancelled, or whose client went away, by where they were")
    METRIC_COUNT("radish_requests_cancelled_total", "phase=\"queued\"", cancelled_in[RD_PHASE_QUEUED], "")
    METRIC_COUNT("radish_requests_cancelled_total", "phase=\"loading\"", cancelled_in[RD_PHASE_LOADING], "")
    METRIC_COUNT("radish_requests_cancelled_total", "phase=\"waiting\"", cancelled_in[RD_PHASE_WAITING], "")
    METRIC_COUNT("radish_requests_cancelled_total", "phase=\"prefill\"", cancelled_in[RD_PHASE_PREFILL], "")
    METRIC_COUNT("radish_requests_cancelled_total", "phase=\"decode\"", cancelled_in[RD_PHASE_DECODE], "")
    METRIC_COUNT("radish_requests_rejected_total", "", n_rejected, "Requests that were refused because the queue was full")
    METRIC_COUNT("radish_requests_corrupted_total", "", n_corrupted, "Requests that failed because the model gave logits that are no numbers")
    METRIC_COUNT("radish_preemptions_total", "", n_preempted, "Times that a request made way for others, and was continued later")

    METRIC_SUM("radish_prompt_tokens_total", "", metric_prompt_tokens, "Prompt tokens: computed and cached together")
    METRIC_COUNT("radish_prompt_tokens_computed_total", "", prompt_tokens_computed, "Prompt tokens that were computed")
    METRIC_COUNT("radish_prompt_tokens_cached_total", "", prompt_tokens_cached, "Prompt tokens that were not computed, counted once their prompt is known whole")
    METRIC_COUNT("radish_cached_tokens_total", "source=\"device\"", prompt_tokens_device, "Cached prompt tokens, by where they were")
    METRIC_COUNT("radish_cached_tokens_total", "source=\"joined\"", prompt_tokens_joined, "")
    METRIC_COUNT("radish_cached_tokens_total", "source=\"ram\"", prompt_tokens_ram, "")
    METRIC_COUNT("radish_cached_tokens_total", "source=\"disk\"", prompt_tokens_disk, "")
    METRIC_COUNT("radish_recomputed_tokens_total", "", tokens_recomputed, "Prompt tokens that were computed again, after a preemption: in no other count")
    METRIC_COUNT("radish_generated_tokens_total", "", tokens_generated, "Tokens that were generated")
    METRIC_COUNT("radish_drafts_total", "", n_drafts, "Speculation: drafts that were checked")
    METRIC_COUNT("radish_draft_tokens_total", "", tokens_drafted, "Tokens of those drafts")
    METRIC_COUNT("radish_draft_tokens_accepted_total", "", tokens_draft_accepted, "Those of them that were right")
    METRIC_NOW("radish_longest_sequence_tokens", "", longest_tokens, "The longest sequence that ended, its prompt included")
    METRIC_COUNT("radish_matches_total", "kind=\"miss\"", matches[RD_MATCH_MISS], "Requests by how their prompt matched what was stored")
    METRIC_COUNT("radish_matches_total", "kind=\"exact\"", matches[RD_MATCH_EXACT], "")
    METRIC_COUNT("radish_matches_total", "kind=\"prefix\"", matches[RD_MATCH_PREFIX], "")
    METRIC_COUNT("radish_matches_total", "kind=\"supersequence\"", matches[RD_MATCH_SUPERSEQUENCE], "")
    METRIC_COUNT("radish_matches_total", "kind=\"lcp\"", matches[RD_MATCH_LCP], "")
    METRIC_COUNT("radish_misses_total", "cause=\"none\"", misses[RD_MISS_NONE], "Requests by why not all of their prompt was stored")
    METRIC_COUNT("radish_misses_total", "cause=\"new\"", misses[RD_MISS_NEW], "")
    METRIC_COUNT("radish_misses_total", "cause=\"new_end\"", misses[RD_MISS_NEW_END], "")
    METRIC_COUNT("radish_misses_total", "cause=\"different\"", misses[RD_MISS_DIFFERENT], "")
    METRIC_COUNT("radish_misses_total", "cause=\"evicted\"", misses[RD_MISS_EVICTED], "")
    METRIC_COUNT("radish_misses_total", "cause=\"expired\"", misses[RD_MISS_EXPIRED], "")
    METRIC_COUNT("radish_misses_total", "cause=\"cleared\"", misses[RD_MISS_CLEARED], "")
    METRIC_COUNT("radish_misses_total", "cause=\"window\"", misses[RD_MISS_WINDOW], "")

    METRIC_NOW("radish_pages", "state=\"free\"", pages_free, "KV pages by state")
    METRIC_NOW("radish_pages", "state=\"ready\"", pages_ready, "")
    METRIC_NOW("radish_pages", "state=\"locked\"", pages_locked, "")
    METRIC_NOW("radish_pages", "state=\"pending\"", pages_pending, "")
    METRIC_NOW("radish_pages", "state=\"quarantined\"", pages_quarantined, "")
    METRIC_NOW("radish_page_tokens", "", page_tokens, "Tokens of a page")
    METRIC_NOW("radish_windows", "state=\"free\"", windows_free, "Pages' parts of layers that see the last tokens alone, by state")
    METRIC_NOW("radish_windows", "state=\"kept\"", windows_kept, "")
    METRIC_NOW("radish_windows", "state=\"used\"", windows_used, "")
    METRIC_COUNT("radish_windows_dropped_total", "", windows_dropped, "Kept ones of them that gave way")
    METRIC_COUNT("radish_window_cut_tokens_total", "", window_cut_tokens, "Stored tokens that were computed again where those of them were gone")
    METRIC_VALUE("radish_kv_capacity_tokens", "", kv_tokens, "Tokens that fit into all pages")
    METRIC_COUNT("radish_pages_evicted_total", "", pages_evicted, "Pages that were given up for others")
    METRIC_COUNT("radish_evicted_bytes_total", "", bytes_evicted, "Their bytes")
    METRIC_COUNT("radish_pages_dropped_total", "cause=\"expired\"", pages_expired, "Pages that were dropped though nothing needed them: not used for --cache-ttl, or cleared")
    METRIC_COUNT("radish_pages_dropped_total", "cause=\"cleared\"", pages_cleared, "")
    METRIC_COUNT("radish_tokens_dropped_total", "cause=\"evicted\"", tokens_evicted, "Tokens that are not stored any more, by why")
    METRIC_COUNT("radish_tokens_dropped_total", "cause=\"expired\"", tokens_expired, "")
    METRIC_COUNT("radish_tokens_dropped_total", "cause=\"cleared\"", tokens_cleared, "")
    BUDGETS(BUDGET_RATIO)
    BUDGETS(BUDGET_WARNING)
    METRIC_NOW("radish_tree_nodes", "", tree_nodes, "Nodes of the radix tree")
    METRIC_NOW("radish_tree_depth_nodes", "depth=\"256\"", depth_nodes[0], "Nodes by where they end: up to this many tokens from the beginning")
    METRIC_NOW("radish_tree_depth_nodes", "depth=\"1k\"", depth_nodes[1], "")
    METRIC_NOW("radish_tree_depth_nodes", "depth=\"4k\"", depth_nodes[2], "")
    METRIC_NOW("radish_tree_depth_nodes", "depth=\"16k\"", depth_nodes[3], "")
    METRIC_NOW("radish_tree_depth_nodes", "depth=\"64k\"", depth_nodes[4], "")
    METRIC_NOW("radish_tree_depth_nodes", "depth=\"more\"", depth_nodes[5], "")
    METRIC_NOW("radish_tree_depth_tokens", "depth=\"256\"", depth_tokens[0], "Their tokens")
    METRIC_NOW("radish_tree_depth_tokens", "depth=\"1k\"", depth_tokens[1], "")
    METRIC_NOW("radish_tree_depth_tokens", "depth=\"4k\"", depth_tokens[2], "")
    METRIC_NOW("radish_tree_depth_tokens", "depth=\"16k\"", depth_tokens[3], "")
    METRIC_NOW("radish_tree_depth_tokens", "depth=\"64k\"", depth_tokens[4], "")
    METRIC_NOW("radish_tree_depth_tokens", "depth=\"more\"", depth_tokens[5], "")
    METRIC_NOW("radish_tree_tokens", "", tree_keys, "Tokens that are stored in it")
    METRIC_NOW("radish_tree_bytes", "", tree_bytes, "Memory of the tree itself")
    METRIC_NOW("radish_tree_kept_tokens", "class=\"plain\"", kept_plain, "Stored tokens by how long they are worth keeping")
    METRIC_NOW("radish_tree_kept_tokens", "class=\"short\"", kept_short, "")
    METRIC_NOW("radish_tree_kept_tokens", "class=\"shared\"", kept_shared, "")
    METRIC_NOW("radish_tree_kept_tokens", "class=\"held\"", kept_held, "")
    METRIC_NOW("radish_tree_kept_tokens", "class=\"long\"", kept_long, "")
    METRIC_NOW("radish_tree_kept_tokens", "class=\"day\"", kept_day, "")
    METRIC_COUNT("radish_tree_insert_failures_total", "", tree_insert_failed, "Requests whose keys were not stored for want of memory")
    METRIC_COUNT("radish_rows_copied_total", "", rows_copied, "Rows of pages that were copied where a text forks within a page")

    METRIC_COUNT("radish_steps_total", "", n_steps, "Forward passes")
    METRIC_COUNT("radish_steps_ahead_total", "", n_steps_ahead, "Those that were begun while the one before ran")
    METRIC_COUNT("radish_step_sequences_total", "", step_runs, "Sequences of all forward passes")
    METRIC_COUNT("radish_step_tokens_total", "", step_rows, "Tokens of all forward passes")
    METRIC_SUM("radish_step_seconds_total", "part=\"plan\"", plan_s, "Where the time of the steps went; forward is waiting for the device")
    METRIC_SUM("radish_step_seconds_total", "part=\"forward\"", forward_s, "")
    METRIC_SUM("radish_step_seconds_total", "part=\"sample\"", sample_s, "")
    METRIC_SUM("radish_step_seconds_total", "part=\"output\"", output_s, "")
    METRIC_VALUE("radish_prefill_tokens_per_second", "", metric_prefill_speed, "Of the latest large steps, smoothed")
    METRIC_VALUE("radish_decode_tokens_per_second", "", metric_decode_speed, "Of the latest decode steps, all sequences together, smoothed")
    METRIC_NOW("radish_steps_after_cancel", "", n_steps_after_cancel, "The most steps that a request took part in after it was cancelled")
    METRIC_COUNT("radish_device_errors_total", "", device_errors, "Steps that the device failed")
    METRIC_VALUE("radish_device_dead", "", device_dead, "1: the device failed for good")
    METRIC_COUNT("radish_accounting_errors_total", "", accounting_errors, "Times that the states of pages did not add up, which must never be")

    METRIC_COUNT("radish_images_total", "", images, "Images of prompts")
    METRIC_COUNT("radish_images_encoded_total", "", images_encoded, "Images that the encoder ran for")
    METRIC_COUNT("radish_images_found_total", "source=\"joined\"", images_joined, "Images that were wanted and not encoded for that: another request's was under way, they were kept from before, or read from disk")
    METRIC_COUNT("radish_images_found_total", "source=\"kept\"", images_kept, "")
    METRIC_COUNT("radish_images_found_total", "source=\"disk\"", images_stored, "")
    METRIC_SUM("radish_image_encoder_seconds_total", "", encoder_s, "What the encoder took")
    METRIC_NOW("radish_images_waiting", "", images_waiting, "Images that wait for the encoder")
    METRIC_NOW("radish_image_kept_bytes", "", image_kept_bytes, "Bytes of encoded images that are kept")
    METRIC_NOW("radish_ram_pages", "", ram_pages, "Pages in host memory behind a GPU")
    METRIC_NOW("radish_ram_capacity_pages", "", ram_cap_pages, "Pages that fit there")
    METRIC_NOW("radish_ram_pages_moving", "", ram_pages_moving, "Pages on their way there or back")
    METRIC_COUNT("radish_ram_pages_saved_total", "", ram_pages_saved, "Pages that were copied there")
    METRIC_COUNT("radish_ram_pages_loaded_total", "", ram_pages_loaded, "Pages that were copied back")
    METRIC_COUNT("radish_ram_pages_dropped_total", "", ram_pages_dropped, "Pages that were given up there")
    METRIC_COUNT("radish_ram_loads_total", "", ram_loads, "Loads for requests")
    METRIC_SUM("radish_ram_load_seconds_total", "", metric_ram_load_s, "What they took")
    METRIC_COUNT("radish_ram_copy_errors_total", "", ram_copy_errors, "Copies that failed")
    METRIC_NOW("radish_disk_pages", "", disk_pages, "Pages on disk")
    METRIC_NOW("radish_disk_bytes", "", disk_bytes, "Their bytes")
    METRIC_NOW("radish_disk_capacity_bytes", "", disk_cap_bytes, "Bytes that the disk cache may have")
    METRIC_NOW("radish_disk_segments", "", disk_segments, "Its files")
    METRIC_NOW("radish_disk_pages_loading", "", pages_loading, "Pages that are being read for requests")
    METRIC_COUNT("radish_disk_loads_total", "", disk_loads, "Loads for requests")
    METRIC_COUNT("radish_disk_loads_late_total", "", disk_loads_late, "Loads that took too long: the request computed instead")
    METRIC_COUNT("radish_disk_loads_declined_total", "", disk_declined, "Loads that were not worth it")
    METRIC_COUNT("radish_disk_pages_written_total", "", disk_pages_written, "Pages written")
    METRIC_COUNT("radish_disk_written_bytes_total", "", disk_bytes_written, "Bytes written")
    METRIC_COUNT("radish_disk_pages_read_total", "", disk_pages_read, "Pages read")
    METRIC_COUNT("radish_disk_read_bytes_total", "", disk_bytes_read, "Bytes read")
    METRIC_COUNT("radish_disk_pages_known_total", "", disk_pages_known, "Pages that were there already when they were to be written")
    METRIC_COUNT("radish_disk_pages_evicted_total", "", disk_pages_evicted, "Pages that were given up for others")
    METRIC_COUNT("radish_disk_pages_dropped_total", "", disk_pages_dropped, "Pages that were not written, because the disk was too slow")
    METRIC_COUNT("radish_disk_damaged_total", "", disk_damaged, "Pages whose checksum was wrong")
    METRIC_COUNT("radish_disk_errors_total", "operation=\"read\"", disk_read_errors, "Errors of the disk")
    METRIC_COUNT("radish_disk_errors_total", "operation=\"write\"", disk_write_errors, "")
    METRIC_COUNT("radish_disk_errors_total", "operation=\"remove\"", disk_remove_errors, "")
    METRIC_NOW("radish_disk_is_writer", "", disk_is_writer, "1: this process writes to the disk cache")
    METRIC_NOW("radish_disk_is_failing", "", disk_is_failing, "1: the disk cache cannot be written now")
    METRIC_NOW("radish_shared_store_up", "direction=\"read\"", shared_reads, "1: there is a shared store, and this direction works")
    METRIC_NOW("radish_shared_store_up", "direction=\"write\"", shared_writes, "")
    METRIC_COUNT("radish_shared_store_errors_total", "direction=\"read\"", shared_read_errors, "Times that a direction of the shared store failed")
    METRIC_COUNT("radish_shared_store_errors_total", "direction=\"write\"", shared_write_errors, "")
    METRIC_COUNT("radish_shared_store_lookups_total", "", shared_lookups, "Prompts that were looked up in the shared store")
    METRIC_COUNT("radish_shared_store_lookups_late_total", "", shared_lookups_late, "Those whose answer did not come in time")
    METRIC_COUNT("radish_shared_store_loads_total", "", shared_loads, "Loads for requests")
    METRIC_COUNT("radish_shared_store_loads_declined_total", "", shared_declined, "Loads that were not worth it")
    METRIC_COUNT("radish_shared_store_pages_read_total", "", shared_pages_read, "Pages that were read and right")
    METRIC_COUNT("radish_shared_store_read_bytes_total", "", shared_bytes_read, "Their bytes")
    METRIC_COUNT("radish_shared_store_refused_total", "", shared_refused, "Pages that were damaged, or not what their names said")
    METRIC_COUNT("radish_shared_store_pages_written_total", "", shared_pages_written, "Pages written")
    METRIC_COUNT("radish_shared_store_written_bytes_total", "", shared_bytes_written, "Their bytes")
    METRIC_COUNT("radish_shared_store_pages_known_total", "", shared_pages_known, "Pages that were there already when they were to be written")
    METRIC_COUNT("radish_shared_store_pages_dropped_total", "", shared_pages_dropped, "Pages that were not written: no room in the queue, or the store did not take them")
    METRIC_NOW("radish_shared_store_queue_bytes", "", shared_queue_bytes, "Bytes that wait to be written")
    METRIC_COUNT("radish_kv_events_total", "kind=\"stored\"", events_stored, "Blocks that were told to be stored, or to be gone")
    METRIC_COUNT("radish_kv_events_total", "kind=\"removed\"", events_removed, "")
    METRIC_COUNT("radish_kv_events_dropped_total", "", events_dropped, "Events that found the queue full")
    METRIC_COUNT("radish_kv_events_cleared_total", "", events_cleared, "Times that everything was told to be gone because of that")
    METRIC_COUNT("radish_kv_events_batches_total", "", events_batches, "Messages published")
    METRIC_COUNT("radish_kv_events_replays_total", "", events_replays, "Requests for what was missed that were answered")
    METRIC_COUNT("radish_verify_hits_total", "", verify_verified, "Hits that were computed again and compared whole")
    METRIC_COUNT("radish_verify_tokens_total", "", verify_tokens, "Their tokens")
    METRIC_COUNT("radish_verify_skipped_total", "", verify_skipped, "Hits that could not be compared any more")
    METRIC_COUNT("radish_verify_mismatches_total", "", verify_mismatches, "Hits that were found wrong, which must never be")
    METRIC_NOW("radish_verify_waiting", "", verify_waiting, "Hits that wait to be computed again")

    METRIC_NOW("radish_grammars", "", n_grammars, "Compiled grammars that are kept or in use")
    METRIC_NOW("radish_grammar_bytes", "", grammar_bytes, "Their memory")
    METRIC_NOW("radish_grammar_limit_bytes", "", grammar_limit_bytes, "The most they may have")
    METRIC_NOW("radish_weight_bytes", "kind=\"own\"", weight_bytes, "Memory of the weights: the process's own, and mapped from packed files")
    METRIC_NOW("radish_weight_bytes", "kind=\"packed\"", packed_bytes, "")
    METRIC_NOW("radish_workspace_bytes", "", workspace_bytes, "Memory that a step works in")
    METRIC_NOW("radish_kv_bytes", "", kv_bytes, "Memory of all pages")
    METRIC_NOW("radish_kv_used_bytes", "", kv_used_bytes, "Of it, pages and windows that hold something")
    METRIC_NOW("radish_resident_bytes", "kind=\"anonymous\"", rss_anon_bytes, "Memory of the process that is in RAM")
    METRIC_NOW("radish_resident_bytes", "kind=\"file\"", rss_file_bytes, "")
    METRIC_NOW("radish_memory_used_bytes", "", memory_used_bytes, "Memory that was taken from the system")
    METRIC_NOW("radish_memory_peak_bytes", "", memory_peak_bytes, "The most of it so far")
    METRIC_NOW("radish_memory_limit_bytes", "", memory_limit_bytes, "The most it may be; 0: no limit")
    METRIC_VALUE("radish_client_memory_bytes", "", client_used, "Memory that is held for clients")
    METRIC_VALUE("radish_client_memory_limit_bytes", "", client_limit, "The most it may be")
    METRIC_SUM("radish_client_memory_refused_total", "", client_refused, "Requests that were refused because of it")
    RD_HISTOGRAMS(OWN_HISTOGRAM)
};
/* clang-format on */

/* A row's own labels behind those that all rows of its list have. */
static const char *join_labels(const struct buf *common, const char *own, struct buf *out)
{
    buf_clear(out);
    if (common->n) buf_append(out, common->data, common->n);
    buf_printf(out, "%s%s", common->n && *own ? "," : "", own);
    return out->failed ? "" : out->data;
}

static void put_rows(const struct metric_view *v, const struct metric_list *list, struct buf *out)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    struct buf common = {0}, joined = {0};

    if (list->by_model) prom_label(&common, "model_name", v->info.model_id);
    if (list->by_engine) prom_label(&common, "engine", "0");
    for (size_t i = 0; i < list->n; i++) {
        const struct metric *m = &list->rows[i];
        const char *labels = join_labels(&common, m->labels, &joined);

        if (*m->help) prom_head(out, m->name, types[m->type], m->help);
        if (m->type == METRIC_HISTOGRAM)
            prom_histogram(out, m->name, labels, &v->of[m->histogram]);
        else if (m->value)
            prom_value(out, m->name, labels, m->value(v));
        else
            prom_count(out, m->name, labels, *(const uint64_t *)(const void *)((const char *)&v->s + m->offset));
    }
    out->failed |= common.failed || joined.failed;
    buf_deinit(&common);
    buf_deinit(&joined);
}

/* A fact: labels of the value 1. pairs: name, value, ... NULL. */
static void put_fact(const char *name, const char *help, const char *const *pairs, struct buf *out)
{
    struct buf labels = {0};

    for (; *pairs; pairs += 2) prom_label(&labels, pairs[0], pairs[1]);
    prom_head(out, name, "gauge", help);
    prom_count(out, name, labels.failed ? "" : labels.data, 1);
    out->failed |= labels.failed;
    buf_deinit(&labels);
}

static void put_facts(const struct rd_info *m, const struct rd_stats *s, struct buf *out)
{
    char tokens[24], pages[24];

    snprintf(tokens, sizeof(tokens), "%llu", (unsigned long long)s->page_tokens);
    snprintf(pages, sizeof(pages), "%llu", (unsigned long long)s->pages_total);
    put_fact("radish_info", "What is served, and by what",
             (const char *[]){"version", rd_version(), "model", m->model_id, "arch", m->arch, "quantization",
                              m->quantization, "kv_type", m->kv_type, "backend", m->backend, NULL},
             out);
    put_fact(
        "vllm:cache_config_info", "The pages of the KV cache",
        (const char *[]){"model_name", m->model_id, "engine", "0", "block_size", tokens, "num_gpu_blocks", pages, NULL},
        out);
    put_fact("sglang:cache_config_info", "The pages of the KV cache",
             (const char *[]){"model_name", m->model_id, "page_size", tokens, "num_pages", pages, NULL}, out);
}

/* As vLLM tells a router which adapters a server has: names with commas between, and when this was. Those that are loaded
 * cost a request nothing to begin with, so all of them are told as running. */
static void put_adapters(const rd_engine *engine, struct buf *out)
{
    static const char name[] = "vllm:lora_requests_info";
    uint32_t n;
    struct rd_adapter *list = served_adapters(engine, &n);
    struct buf labels = {0}, names = {0};
    char most[16];

    for (uint32_t i = 0; list && i < n; i++) buf_printf(&names, "%s%s", i ? "," : "", list[i].name);
    snprintf(most, sizeof(most), "%u", LIMIT_ADAPTERS);
    prom_label(&labels, "max_lora", most);
    prom_label(&labels, "running_lora_adapters", names.n ? names.data : "");
    prom_label(&labels, "waiting_lora_adapters", "");
    prom_head(out, name, "gauge",
              "The adapters (LoRA) that are loaded; the value: when this was, in seconds since 1970");
    prom_count(out, name, labels.failed ? "" : labels.data, (uint64_t)clock_wall_s(clock_system()));
    out->failed |= !list || labels.failed || names.failed;
    mem_free(list);
    buf_deinit(&labels);
    buf_deinit(&names);
}

static void put_tenant(struct tenant_stats *t, struct buf *out)
{
    static const char requests[] = "radish_tenant_requests_ended_total", prompt[] = "radish_tenant_prompt_tokens_total";
    uint64_t n_prompt = tenant_count(&t->n_prompt), n_cached = tenant_count(&t->n_cached);

    prom_head(out, "radish_tenant_requests", "gauge", "Requests of this key that run");
    prom_count(out, "radish_tenant_requests", "", tenant_count(&t->n_running));
    prom_head(out, requests, "counter", "Requests of this key that ended, by how");
    prom_count(out, requests, "outcome=\"done\"", tenant_count(&t->n_done));
    prom_count(out, requests, "outcome=\"failed\"", tenant_count(&t->n_failed));
    prom_count(out, requests, "outcome=\"cancelled\"", tenant_count(&t->n_cancelled));
    prom_head(out, prompt, "counter", "Prompt tokens of those requests");
    prom_count(out, prompt, "source=\"cached\"", n_cached);
    prom_count(out, prompt, "source=\"computed\"", n_prompt > n_cached ? n_prompt - n_cached : 0);
    prom_head(out, "radish_tenant_generated_tokens_total", "counter", "Tokens that were generated for them");
    prom_count(out, "radish_tenant_generated_tokens_total", "", tenant_count(&t->n_generated));
}

static void put_all(const struct server *s, const struct served_model *served, struct buf *out)
{
    static const struct metric_list own = {rows, sizeof(rows) / sizeof(rows[0]), false, false};
    const struct metric_list *const lists[] = {&own, &metrics_of_vllm, &metrics_of_sglang, &metrics_of_llama_server};
    struct metric_view v = {.server = s};

    rd_get_stats(served->engine, &v.s);
    rd_get_info(served->engine, &v.info);
    for (int i = 0; i < RD_N_HISTOGRAMS; i++) rd_get_histogram(served->engine, (enum rd_histogram_id)i, &v.of[i]);
    put_facts(&v.info, &v.s, out);
    put_adapters(served->engine, out);
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) put_rows(&v, lists[i], out);
}

void route_metrics(struct http_conn *c)
{
    struct tenant_stats *tenant = server_tenant(server_of(c), c->tenant);
    struct buf body = {0};

    if (tenant)
        put_tenant(tenant, &body);
    else
        put_all(server_of(c), served_of(c), &body);
    if (body.failed)
        http_reply_json(c, &body); /* which says so */
    else
        http_reply(c, 200, PROM_TYPE, "", &body);
    buf_deinit(&body);
}
