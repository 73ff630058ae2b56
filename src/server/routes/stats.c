/* server/routes/stats.c - GET /stats: struct rd_stats as nested JSON, by a table of its fields; a key of --api-key-file
 * sees its own numbers alone: what others do, and when, is theirs. */
#include <stddef.h>
#include <string.h>
#include "server/monitor/monitor.h"
#include "server/monitor/pressure.h"
#include "server/params/json_out.h"
#include "server/routes/routes.h"

#define U64(group, name, field)                                                                                        \
    {                                                                                                                  \
        group, name, offsetof(struct rd_stats, field), false                                                           \
    }
#define F64(group, name, field)                                                                                        \
    {                                                                                                                  \
        group, name, offsetof(struct rd_stats, field), true                                                            \
    }

static const struct stat_row {
    const char *group, *name;
    size_t offset;
    bool is_double;
} rows[] = {
    U64("requests", "preparing", n_preparing),
    U64("requests", "queued", n_queued),
    U64("requests", "loading", n_loading),
    U64("requests", "waiting", n_waiting),
    U64("requests", "prefill", n_prefill),
    U64("requests", "decode", n_decode),
    U64("requests", "paused", n_paused),
    U64("requests", "submitted", n_submitted),
    U64("requests", "stop", n_stop),
    U64("requests", "length", n_length),
    U64("requests", "cancelled", n_cancelled),
    U64("requests", "failed", n_failed),
    U64("requests", "rejected", n_rejected),
    U64("requests", "preempted", n_preempted),
    U64("tokens", "prompt_computed", prompt_tokens_computed),
    U64("tokens", "prompt_cached", prompt_tokens_cached),
    U64("tokens", "prompt_joined", prompt_tokens_joined),
    U64("tokens", "generated", tokens_generated),
    U64("tokens", "recomputed", tokens_recomputed),
    U64("tokens", "prompt_device", prompt_tokens_device),
    U64("cancelled", "preparing", cancelled_in[RD_PHASE_PREPARING]),
    U64("cancelled", "queued", cancelled_in[RD_PHASE_QUEUED]),
    U64("cancelled", "loading", cancelled_in[RD_PHASE_LOADING]),
    U64("cancelled", "waiting", cancelled_in[RD_PHASE_WAITING]),
    U64("cancelled", "prefill", cancelled_in[RD_PHASE_PREFILL]),
    U64("cancelled", "decode", cancelled_in[RD_PHASE_DECODE]),
    U64("speculation", "drafted", tokens_drafted),
    U64("speculation", "accepted", tokens_draft_accepted),
    U64("matches", "miss", matches[RD_MATCH_MISS]),
    U64("matches", "exact", matches[RD_MATCH_EXACT]),
    U64("matches", "prefix", matches[RD_MATCH_PREFIX]),
    U64("matches", "supersequence", matches[RD_MATCH_SUPERSEQUENCE]),
    U64("matches", "lcp", matches[RD_MATCH_LCP]),
    U64("misses", "none", misses[RD_MISS_NONE]),
    U64("misses", "new", misses[RD_MISS_NEW]),
    U64("misses", "new_end", misses[RD_MISS_NEW_END]),
    U64("misses", "different", misses[RD_MISS_DIFFERENT]),
    U64("misses", "evicted", misses[RD_MISS_EVICTED]),
    U64("misses", "expired", misses[RD_MISS_EXPIRED]),
    U64("misses", "cleared", misses[RD_MISS_CLEARED]),
    U64("misses", "window", misses[RD_MISS_WINDOW]),
    U64("pages", "total", pages_total),
    U64("pages", "free", pages_free),
    U64("pages", "ready", pages_ready),
    U64("pages", "locked", pages_locked),
    U64("pages", "pending", pages_pending),
    U64("pages", "quarantined", pages_quarantined),
    U64("pages", "evicted", pages_evicted),
    U64("pages", "expired", pages_expired),
    U64("pages", "cleared", pages_cleared),
    U64("pages", "tokens_per_page", page_tokens),
    U64("windows", "tokens", window_tokens),
    U64("windows", "total", windows_total),
    U64("windows", "free", windows_free),
    U64("windows", "kept", windows_kept),
    U64("windows", "used", windows_used),
    U64("windows", "dropped", windows_dropped),
    U64("windows", "cuts", window_cuts),
    U64("windows", "cut_tokens", window_cut_tokens),
    U64("tree", "nodes", tree_nodes),
    U64("tree", "keys", tree_keys),
    U64("tree", "bytes", tree_bytes),
    U64("tree", "kept_plain", kept_plain),
    U64("tree", "kept_short", kept_short),
    U64("tree", "kept_shared", kept_shared),
    U64("tree", "kept_held", kept_held),
    U64("tree", "kept_long", kept_long),
    U64("tree", "kept_day", kept_day),
    U64("tree", "tokens_evicted", tokens_evicted),
    U64("tree", "bytes_evicted", bytes_evicted),
    U64("tree", "tokens_expired", tokens_expired),
    U64("tree", "tokens_cleared", tokens_cleared),
    U64("tree", "insert_failed", tree_insert_failed),
    U64("tree", "rows_copied", rows_copied),
    U64("engine", "steps", n_steps),
    U64("engine", "steps_ahead", n_steps_ahead),
    U64("engine", "step_rows", step_rows),
    U64("engine", "steps_after_cancel", n_steps_after_cancel),
    U64("engine", "device_errors", device_errors),
    U64("engine", "accounting_errors", accounting_errors),
    F64("engine", "plan_ms", plan_ms),
    F64("engine", "forward_ms", forward_ms),
    F64("engine", "sample_ms", sample_ms),
    F64("engine", "output_ms", output_ms),
    F64("engine", "step_ms_last", step_ms_last),
    F64("speed", "prefill_tok_s", prefill_tok_s),
    F64("speed", "decode_tok_s", decode_tok_s),
    U64("ram", "prompt_tokens", prompt_tokens_ram),
    U64("ram", "pages", ram_pages),
    U64("ram", "cap_pages", ram_cap_pages),
    U64("ram", "pages_saved", ram_pages_saved),
    U64("ram", "pages_dropped", ram_pages_dropped),
    U64("ram", "loads", ram_loads),
    U64("ram", "pages_loaded", ram_pages_loaded),
    U64("ram", "pages_moving", ram_pages_moving),
    U64("ram", "copy_errors", ram_copy_errors),
    F64("ram", "load_ms", ram_load_ms),
    U64("disk", "prompt_tokens", prompt_tokens_disk),
    U64("disk", "pages_loading", pages_loading),
    U64("disk", "loads", disk_loads),
    U64("disk", "loads_late", disk_loads_late),
    U64("disk", "loads_declined", disk_declined),
    U64("disk", "pages", disk_pages),
    U64("disk", "bytes", disk_bytes),
    U64("disk", "cap_bytes", disk_cap_bytes),
    U64("disk", "segments", disk_segments),
    U64("disk", "pages_written", disk_pages_written),
    U64("disk", "bytes_written", disk_bytes_written),
    U64("disk", "pages_known", disk_pages_known),
    U64("disk", "pages_read", disk_pages_read),
    U64("disk", "bytes_read", disk_bytes_read),
    U64("disk", "pages_evicted", disk_pages_evicted),
    U64("disk", "pages_dropped", disk_pages_dropped),
    U64("disk", "damaged", disk_damaged),
    U64("disk", "read_errors", disk_read_errors),
    U64("disk", "write_errors", disk_write_errors),
    U64("disk", "remove_errors", disk_remove_errors),
    U64("disk", "is_writer", disk_is_writer),
    U64("disk", "is_failing", disk_is_failing),
    U64("kv_events", "stored", events_stored),
    U64("kv_events", "removed", events_removed),
    U64("kv_events", "dropped", events_dropped),
    U64("kv_events", "cleared", events_cleared),
    U64("kv_events", "batches", events_batches),
    U64("kv_events", "replays", events_replays),
    U64("shared_store", "prompt_tokens", prompt_tokens_shared),
    U64("shared_store", "lookups", shared_lookups),
    U64("shared_store", "lookups_late", shared_lookups_late),
    U64("shared_store", "lookup_us", shared_lookup_us),
    U64("shared_store", "pages_found", shared_pages_found),
    U64("shared_store", "loads", shared_loads),
    U64("shared_store", "loads_declined", shared_declined),
    U64("shared_store", "page_us", shared_page_us),
    U64("shared_store", "pages_read", shared_pages_read),
    U64("shared_store", "bytes_read", shared_bytes_read),
    U64("shared_store", "refused", shared_refused),
    U64("shared_store", "pages_written", shared_pages_written),
    U64("shared_store", "bytes_written", shared_bytes_written),
    U64("shared_store", "pages_known", shared_pages_known),
    U64("shared_store", "pages_dropped", shared_pages_dropped),
    U64("shared_store", "pages_removed", shared_pages_removed),
    U64("shared_store", "queue_bytes", shared_queue_bytes),
    U64("shared_store", "read_errors", shared_read_errors),
    U64("shared_store", "write_errors", shared_write_errors),
    U64("shared_store", "is_on", shared_is_on),
    U64("shared_store", "reads", shared_reads),
    U64("shared_store", "writes", shared_writes),
    U64("verify", "waiting", verify_waiting),
    U64("verify", "verified", verify_verified),
    U64("verify", "tokens", verify_tokens),
    U64("verify", "skipped", verify_skipped),
    U64("verify", "mismatches", verify_mismatches),
    U64("images", "prompts", images),
    U64("images", "encoded", images_encoded),
    U64("images", "joined", images_joined),
    U64("images", "kept", images_kept),
    U64("images", "stored", images_stored),
    U64("images", "waiting", images_waiting),
    U64("images", "kept_bytes", image_kept_bytes),
    U64("grammars", "count", n_grammars),
    U64("grammars", "used_bytes", grammar_bytes),
    U64("grammars", "limit_bytes", grammar_limit_bytes),
    U64("process", "starts", process_starts),
    U64("memory", "weight_bytes", weight_bytes),
    U64("memory", "packed_bytes", packed_bytes),
    U64("memory", "workspace_bytes", workspace_bytes),
    U64("memory", "kv_bytes", kv_bytes),
    U64("memory", "kv_used_bytes", kv_used_bytes),
    U64("memory", "rss_anon_bytes", rss_anon_bytes),
    U64("memory", "rss_file_bytes", rss_file_bytes),
    U64("memory", "used_bytes", memory_used_bytes),
    U64("memory", "peak_bytes", memory_peak_bytes),
    U64("memory", "limit_bytes", memory_limit_bytes),
    U64("memory", "library_active_bytes", library_active_bytes),
    U64("memory", "library_peak_bytes", library_peak_bytes),
    U64("memory", "library_cache_bytes", library_cache_bytes),
    U64("memory", "library_limit_bytes", library_limit_bytes),
};

/* {"256":{"nodes":..,"tokens":..},"1k":..,"more":..}: by where a node ends */
static void put_depths(const struct rd_stats *s, struct buf *out)
{
    static const char *const names[RD_N_DEPTHS] = {"256", "1k", "4k", "16k", "64k", "more"};

    for (unsigned i = 0; i < RD_N_DEPTHS; i++)
        buf_printf(out, "%s\"%s\":{\"nodes\":%llu,\"tokens\":%llu}", i ? "," : "{", names[i],
                   (unsigned long long)s->depth_nodes[i], (unsigned long long)s->depth_tokens[i]);
    buf_putc(out, '}');
}

static void put_budgets(const struct server *server, const struct rd_stats *s, struct buf *out)
{
    struct budget_use uses[N_BUDGETS];

    budget_uses(s, uses);
    for (unsigned i = 0; i < N_BUDGETS; i++)
        buf_printf(out, "%s\"%s\":{\"used\":%llu,\"limit\":%llu,\"above\":%s}", i ? "," : "{", budget_name(i),
                   (unsigned long long)uses[i].used, (unsigned long long)uses[i].limit,
                   pressure_is_above(monitor_pressure(server->monitor), i) ? "true" : "false");
    buf_putc(out, '}');
}

static void reply_tenant(struct http_conn *c, struct tenant_stats *t)
{
    uint64_t n_prompt = tenant_count(&t->n_prompt), n_cached = tenant_count(&t->n_cached);
    struct buf body = {0};

    buf_printf(&body,
               "{\"tenant\":true,\"requests\":{\"running\":%llu,\"done\":%llu,\"failed\":%llu,\"cancelled\":%llu},"
               "\"tokens\":{\"prompt\":%llu,\"prompt_cached\":%llu,\"prompt_computed\":%llu,\"generated\":%llu}}",
               (unsigned long long)tenant_count(&t->n_running), (unsigned long long)tenant_count(&t->n_done),
               (unsigned long long)tenant_count(&t->n_failed), (unsigned long long)tenant_count(&t->n_cancelled),
               (unsigned long long)n_prompt, (unsigned long long)n_cached,
               (unsigned long long)(n_prompt > n_cached ? n_prompt - n_cached : 0),
               (unsigned long long)tenant_count(&t->n_generated));
    http_reply_json(c, &body);
    buf_deinit(&body);
}

void route_stats(struct http_conn *c)
{
    struct tenant_stats *tenant = server_tenant(server_of(c), c->tenant);
    const char *group = NULL;
    struct buf body = {0};
    struct rd_stats s = {.size = sizeof(s)};
    struct rd_info info = {.size = sizeof(info)};

    if (tenant) {
        reply_tenant(c, tenant);
        return;
    }
    rd_get_stats(served_of(c)->engine, &s);
    rd_get_info(served_of(c)->engine, &info);
    buf_puts(&body, "{\"uptime_s\":");
    json_put_number(&body, s.uptime_s);
    buf_printf(&body, ",\"kv\":{\"type\":\"%s\",\"tokens\":%llu,\"bytes_per_token\":%llu}", info.kv_type,
               (unsigned long long)info.kv_tokens, (unsigned long long)info.kv_bytes_per_token);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct stat_row *r = &rows[i];
        const char *at = (const char *)&s + r->offset;
        bool first = !group || strcmp(group, r->group) != 0;

        if (first) buf_printf(&body, "%s,\"%s\":{", group ? "}" : "", r->group);
        group = r->group;
        buf_printf(&body, "%s\"%s\":", first ? "" : ",", r->name);
        if (r->is_double)
            json_put_number(&body, *(const double *)(const void *)at);
        else
            buf_printf(&body, "%llu", (unsigned long long)*(const uint64_t *)(const void *)at);
    }
    buf_puts(&body, "},\"client_memory\":");
    client_memory_put(&c->io->server->memory, &body);
    buf_puts(&body, ",\"depths\":");
    put_depths(&s, &body);
    buf_puts(&body, ",\"budgets\":");
    put_budgets(server_of(c), &s, &body);
    buf_puts(&body, "}");
    http_reply_json(c, &body);
    buf_deinit(&body);
}
