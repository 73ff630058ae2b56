/* api/api_stats.c - what is going on: counters and gauges in one plain struct; the log. */
#include <string.h>
#include "api/api_sizes.h"
#include "api/api_state.h"
#include "backend/backend_registry.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sysinfo.h"
#include "engine/tiers/store_link.h"

void rd_memory_usage(struct rd_memory *out)
{
    const struct mem_usage u = mem_usage();
    const struct library_memory library = backend_library_memory();
    const struct rd_memory all = {.used_bytes = u.n_bytes,
                                  .peak_bytes = u.peak_bytes,
                                  .limit_bytes = u.limit_bytes,
                                  .library_active_bytes = library.active_bytes,
                                  .library_peak_bytes = library.peak_bytes,
                                  .library_cache_bytes = library.cache_bytes,
                                  .library_limit_bytes = library.limit_bytes};

    api_give(out, &all, sizeof(all), API_FIRST_MEMORY);
}

void rd_memory_reset_peak(void)
{
    mem_reset_peak();
}

rd_status rd_memory_limit(uint64_t n_bytes, struct rd_error *err)
{
    if (mem_set_limit(n_bytes)) return RD_OK;
    return error_set(err, RD_E_LIMIT, "memory limit: %llu bytes, but %llu are in use", (unsigned long long)n_bytes,
                     (unsigned long long)mem_usage().n_bytes);
}

static void fill_stats(rd_engine *engine, struct rd_stats *out)
{
    struct engine_stats s;
    struct rd_memory memory = {.size = sizeof(memory)};
    struct grammar_store_counts grammars;

    memset(out, 0, sizeof(*out));
    sysinfo_resident(&out->rss_anon_bytes, &out->rss_file_bytes);
    rd_memory_usage(&memory);
    out->memory_used_bytes = memory.used_bytes;
    out->memory_peak_bytes = memory.peak_bytes;
    out->memory_limit_bytes = memory.limit_bytes;
    out->library_active_bytes = memory.library_active_bytes, out->library_peak_bytes = memory.library_peak_bytes;
    out->library_cache_bytes = memory.library_cache_bytes, out->library_limit_bytes = memory.library_limit_bytes;
    out->uptime_s = (double)(clock_now_ns(clock_system()) - engine->opened_ns) / 1e9;
    if (engine->process) {
        api_process_stats(engine, out);
        return;
    }
    grammars = grammar_store_counts(engine->grammars);
    out->n_grammars = grammars.n_grammars;
    out->grammar_bytes = grammars.used;
    out->grammar_limit_bytes = grammars.limit;
    if (!engine->engine) return;
    out->n_preparing = atomic_load(&engine->n_preparing); /* before the engine's: see prepare_and_submit */
    engine_get_stats(engine->engine, &s);
    out->n_rejected = atomic_load_explicit(&engine->n_rejected, memory_order_relaxed);
    out->n_queued = s.n_queued, out->n_waiting = s.n_waiting, out->n_prefill = s.n_prefill, out->n_decode = s.n_decode;
    out->n_submitted = s.n_submitted, out->n_stop = s.n_stop, out->n_length = s.n_length;
    out->n_cancelled = s.n_cancelled, out->n_failed = s.n_failed, out->n_preempted = s.n_preempted;
    out->images = s.images, out->images_encoded = s.images_encoded, out->images_joined = s.images_joined;
    out->images_stored = s.images_stored;
    out->images_kept = s.images_kept, out->images_waiting = s.images_waiting, out->image_kept_bytes = s.image_bytes;
    out->encoder_ms = (double)s.encoder_ns / 1e6;
    out->n_loading = s.n_loading, out->n_paused = s.n_paused, out->n_corrupted = s.n_corrupted;
    memcpy(out->cancelled_in, s.n_cancelled_in, sizeof(out->cancelled_in));
    out->cancelled_in[RD_PHASE_PREPARING] = atomic_load_explicit(&engine->n_cancelled_preparing, memory_order_relaxed);
    out->prompt_tokens_device = s.prompt_device, out->n_drafts = s.drafts, out->longest_tokens = s.keys_max;
    out->plan_ms = (double)s.plan_ns / 1e6, out->forward_ms = (double)s.forward_ns / 1e6;
    out->sample_ms = (double)s.sample_ns / 1e6, out->output_ms = (double)s.output_ns / 1e6;
    out->prompt_tokens_computed = s.prompt_computed, out->prompt_tokens_cached = s.prompt_cached;
    out->prompt_tokens_joined = s.prompt_joined, out->tokens_generated = s.generated,
    out->tokens_recomputed = s.recomputed;
    out->tokens_drafted = s.drafted, out->tokens_draft_accepted = s.draft_accepted;
    _Static_assert((int)RD_N_MATCH_KINDS == (int)RADIX_N_KINDS && (int)RD_MATCH_LCP == (int)RADIX_LCP,
                   "match kinds are the tree's");
    memcpy(out->matches, s.matches, sizeof(out->matches));
    _Static_assert((int)RD_N_MISS_CAUSES == (int)MISS_N_CAUSES && (int)RD_MISS_CLEARED == (int)MISS_CLEARED,
                   "causes are the engine's");
    _Static_assert(sizeof(s.misses) <= sizeof(out->misses), "another member would move");
    memcpy(out->misses, s.misses, sizeof(s.misses));
    out->pages_total = s.pages_total, out->pages_free = s.pages_free, out->pages_ready = s.pages_ready;
    out->pages_locked = s.pages_locked, out->pages_pending = s.pages_pending,
    out->pages_quarantined = s.pages_quarantined;
    out->pages_evicted = s.pages_evicted, out->page_tokens = engine->info.page_tokens;
    out->window_tokens = engine->traits.window, out->windows_total = s.windows_total;
    out->windows_free = s.windows_free, out->windows_kept = s.windows_kept, out->windows_used = s.windows_used;
    out->windows_dropped = s.windows_dropped;
    out->window_cuts = s.window_cuts, out->window_cut_tokens = s.window_cut_tokens;
    out->kv_used_bytes = api_kv_used_bytes(engine, &s);
    out->tree_nodes = s.tree_nodes, out->tree_keys = s.tree_keys, out->tree_bytes = s.tree_bytes;
    out->kept_plain = s.class_keys[RADIX_PLAIN], out->kept_short = s.class_keys[RADIX_SHORT];
    out->kept_shared = s.class_keys[RADIX_SHARED], out->kept_held = s.class_keys[RADIX_HELD];
    out->kept_long = s.class_keys[RADIX_LONG], out->kept_day = s.class_keys[RADIX_DAY];
    _Static_assert(RD_N_DEPTHS == RADIX_N_DEPTHS, "depths are the tree's");
    memcpy(out->depth_nodes, s.depth_nodes, sizeof(out->depth_nodes));
    memcpy(out->depth_tokens, s.depth_keys, sizeof(out->depth_tokens));
    out->bytes_evicted = s.pages_evicted * engine->traits.page_bytes;
    out->tokens_evicted = s.keys_gone[GHOST_EVICTED];
    out->pages_expired = s.pages_gone[GHOST_EXPIRED], out->tokens_expired = s.keys_gone[GHOST_EXPIRED];
    out->pages_cleared = s.pages_gone[GHOST_CLEARED], out->tokens_cleared = s.keys_gone[GHOST_CLEARED];
    out->tree_insert_failed = s.insert_failed, out->rows_copied = s.rows_copied;
    out->n_steps = s.n_steps, out->n_steps_ahead = s.n_steps_ahead, out->step_rows = s.step_rows;
    out->step_runs = s.step_runs;
    out->device_errors = s.device_errors, out->accounting_errors = s.accounting_errors;
    out->n_steps_after_cancel = s.steps_after_cancel;
    out->device_dead = s.device_dead != 0;
    out->n_turns = s.n_turns, out->n_beats = s.n_beats;
    out->step_ms_last = (double)s.step_ns_last / 1e6;
    api_store_stats(&s, out);
    out->prompt_tokens_ram = s.prompt_ram, out->ram_pages = s.ram.n_pages, out->ram_cap_pages = s.ram.n_slots;
    out->ram_pages_saved = s.ram.n_saved, out->ram_pages_dropped = s.ram.n_dropped, out->ram_loads = s.ram.n_loads;
    out->ram_pages_loaded = s.ram.n_pages_loaded, out->ram_pages_moving = s.ram.n_loading + s.ram.n_leaving;
    out->ram_copy_errors = s.ram.n_failed, out->ram_load_ms = (double)s.ram.load_ns / 1e6;
    out->verify_waiting = s.verify.n_waiting, out->verify_verified = s.verify.n_verified;
    out->verify_tokens = s.verify.n_tokens, out->verify_skipped = s.verify.n_skipped;
    out->verify_mismatches = s.verify.n_mismatches;
    out->prefill_tok_s = (double)s.prefill_milli_tok_s / 1e3;
    out->decode_tok_s = (double)s.decode_milli_tok_s / 1e3;
    out->weight_bytes = engine->info.weight_bytes, out->packed_bytes = engine->info.packed_bytes,
    out->workspace_bytes = engine->info.workspace_bytes, out->kv_bytes = engine->info.kv_bytes;
}

void rd_get_stats(rd_engine *engine, struct rd_stats *out)
{
    struct rd_stats all = {.size = sizeof(all)};

    fill_stats(engine, &all);
    api_give(out, &all, sizeof(all), API_FIRST_STATS);
}

void rd_get_histogram(const rd_engine *engine, enum rd_histogram_id id, struct rd_histogram *out)
{
    *out = (struct rd_histogram){0};
    if (engine->engine) engine_get_histogram(engine->engine, id, out);
}

uint32_t rd_ended_requests(const rd_engine *engine, uint64_t *from, struct rd_record *out, uint32_t n_max)
{
    return engine->engine ? engine_ended_requests(engine->engine, from, out, n_max) : 0;
}

uint32_t rd_running_requests(const rd_engine *engine, struct rd_record *out, uint32_t n_max)
{
    return engine->engine ? engine_running_requests(engine->engine, out, n_max) : 0;
}

rd_status rd_cancel_request(rd_engine *engine, uint64_t id)
{
    return engine->engine ? engine_cancel_request(engine->engine, id) : RD_E_NOT_FOUND;
}

bool rd_is_busy(rd_engine *engine)
{
    struct engine_stats s;

    if (engine->process) {
        struct rd_stats now = {.size = sizeof(now)};

        rd_get_stats(engine, &now);
        return now.n_preparing + now.n_queued + now.n_decode > 0;
    }
    if (!engine->engine) return false;
    engine_get_stats(engine->engine, &s);
    return s.n_queued + s.n_waiting + s.n_prefill + s.n_decode > 0;
}

struct clear_call {
    uint64_t n_pages;
};

static void clear_on_engine(struct engine *e, void *arg)
{
    ((struct clear_call *)arg)->n_pages = engine_clear_cache(e);
}

uint64_t rd_cache_clear(rd_engine *engine)
{
    struct clear_call call = {0};

    if (engine->store) store_link_clear(engine->store); /* first: what is in the tree meanwhile goes below */
    if (engine->engine) engine_call(engine->engine, clear_on_engine, &call);
    if (engine->engine) api_names_clear(engine);
    api_memory_clear(engine);
    return call.n_pages;
}

void rd_set_log(enum rd_log_level level, void (*fn)(void *user, enum rd_log_level level, const char *line), void *user)
{
    _Static_assert((int)RD_LOG_DEBUG == (int)LOG_DEBUG, "the public levels are the log's");
    log_set_level((enum log_level)level);
    log_set_sink((log_fn)(void *)fn, user);
}
