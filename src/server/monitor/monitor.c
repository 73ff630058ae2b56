/* server/monitor/monitor.c - the columns, two rings of rows, and their JSON. */
#include "server/monitor/monitor.h"
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "base/thread.h"
#include "server/monitor/pressure.h"
#include "server/params/json_out.h"

#define N_SECONDS    3600u
#define N_MINUTES    1440u
#define PER_MINUTE   60u
#define SECOND_NS    1000000000ull
#define N_RUNNING    64u
#define N_RECENT     100u /* told at once */
#define N_EVENT_ENDS 32u  /* requests that ended, in one event */

/* NOW: the number as it is. RATE: how much it grew, per second. QUANTILE: of what a histogram counted meanwhile. */
enum how { NOW, NOW_F64, RATE, RATE_F64, P50, P95, P99 };

#define STAT(field) offsetof(struct rd_stats, field)
static const struct column {
    const char *name, *unit;
    enum how how;
    size_t offset;
    enum rd_histogram_id histogram;
} columns[] = {
    {"preparing", "requests", NOW, STAT(n_preparing), 0},
    {"queued", "requests", NOW, STAT(n_queued), 0},
    {"loading", "requests", NOW, STAT(n_loading), 0},
    {"waiting", "requests", NOW, STAT(n_waiting), 0},
    {"prefill", "requests", NOW, STAT(n_prefill), 0},
    {"decode", "requests", NOW, STAT(n_decode), 0},
    {"paused", "requests", NOW, STAT(n_paused), 0},
    {"submitted", "requests/s", RATE, STAT(n_submitted), 0},
    {"stop", "requests/s", RATE, STAT(n_stop), 0},
    {"length", "requests/s", RATE, STAT(n_length), 0},
    {"cancelled", "requests/s", RATE, STAT(n_cancelled), 0},
    {"failed", "requests/s", RATE, STAT(n_failed), 0},
    {"rejected", "requests/s", RATE, STAT(n_rejected), 0},
    {"computed", "tokens/s", RATE, STAT(prompt_tokens_computed), 0},
    {"device", "tokens/s", RATE, STAT(prompt_tokens_device), 0},
    {"joined", "tokens/s", RATE, STAT(prompt_tokens_joined), 0},
    {"ram", "tokens/s", RATE, STAT(prompt_tokens_ram), 0},
    {"disk", "tokens/s", RATE, STAT(prompt_tokens_disk), 0},
    {"generated", "tokens/s", RATE, STAT(tokens_generated), 0},
    {"drafted", "tokens/s", RATE, STAT(tokens_drafted), 0},
    {"draft_accepted", "tokens/s", RATE, STAT(tokens_draft_accepted), 0},
    {"prefill_speed", "tokens/s", NOW_F64, STAT(prefill_tok_s), 0},
    {"decode_speed", "tokens/s", NOW_F64, STAT(decode_tok_s), 0},
    {"match_miss", "requests/s", RATE, STAT(matches[RD_MATCH_MISS]), 0},
    {"match_exact", "requests/s", RATE, STAT(matches[RD_MATCH_EXACT]), 0},
    {"match_prefix", "requests/s", RATE, STAT(matches[RD_MATCH_PREFIX]), 0},
    {"match_supersequence", "requests/s", RATE, STAT(matches[RD_MATCH_SUPERSEQUENCE]), 0},
    {"match_lcp", "requests/s", RATE, STAT(matches[RD_MATCH_LCP]), 0},
    {"ttft_p50", "s", P50, 0, RD_HIST_TTFT},
    {"ttft_p95", "s", P95, 0, RD_HIST_TTFT},
    {"gap_p50", "s", P50, 0, RD_HIST_INTER_TOKEN},
    {"gap_p99", "s", P99, 0, RD_HIST_INTER_TOKEN},
    {"queue_p95", "s", P95, 0, RD_HIST_QUEUE},
    {"steps", "1/s", RATE, STAT(n_steps), 0},
    {"step_tokens", "tokens/s", RATE, STAT(step_rows), 0},
    {"step_sequences", "1/s", RATE, STAT(step_runs), 0},
    {"plan", "ms/s", RATE_F64, STAT(plan_ms), 0},
    {"forward", "ms/s", RATE_F64, STAT(forward_ms), 0},
    {"sample", "ms/s", RATE_F64, STAT(sample_ms), 0},
    {"output", "ms/s", RATE_F64, STAT(output_ms), 0},
    {"pages_free", "pages", NOW, STAT(pages_free), 0},
    {"pages_ready", "pages", NOW, STAT(pages_ready), 0},
    {"pages_locked", "pages", NOW, STAT(pages_locked), 0},
    {"pages_pending", "pages", NOW, STAT(pages_pending), 0},
    {"pages_quarantined", "pages", NOW, STAT(pages_quarantined), 0},
    {"ram_pages", "pages", NOW, STAT(ram_pages), 0},
    {"disk_bytes", "bytes", NOW, STAT(disk_bytes), 0},
    {"evicted", "pages/s", RATE, STAT(pages_evicted), 0},
    {"evicted_bytes", "bytes/s", RATE, STAT(bytes_evicted), 0},
    {"evicted_age_p50", "s", P50, 0, RD_HIST_EVICTED_AGE},
    {"expired", "pages/s", RATE, STAT(pages_expired), 0},
    {"disk_written", "bytes/s", RATE, STAT(disk_bytes_written), 0},
    {"disk_read", "bytes/s", RATE, STAT(disk_bytes_read), 0},
    {"tree_nodes", "nodes", NOW, STAT(tree_nodes), 0},
    {"tree_tokens", "tokens", NOW, STAT(tree_keys), 0},
    {"depth_256", "nodes", NOW, STAT(depth_nodes[0]), 0},
    {"depth_1k", "nodes", NOW, STAT(depth_nodes[1]), 0},
    {"depth_4k", "nodes", NOW, STAT(depth_nodes[2]), 0},
    {"depth_16k", "nodes", NOW, STAT(depth_nodes[3]), 0},
    {"depth_64k", "nodes", NOW, STAT(depth_nodes[4]), 0},
    {"depth_more", "nodes", NOW, STAT(depth_nodes[5]), 0},
    {"rss_anon", "bytes", NOW, STAT(rss_anon_bytes), 0},
    {"memory_used", "bytes", NOW, STAT(memory_used_bytes), 0},
};
#define N_COLUMNS (sizeof(columns) / sizeof(columns[0]))

struct row {
    int64_t wall_s;
    float values[N_COLUMNS];
};

/* The latest of what the engine told, to see what changed since. */
struct seen {
    bool is_set;
    uint64_t at_ns;
    struct rd_stats s;
    struct rd_histogram of[RD_N_HISTOGRAMS];
};

struct ring {
    struct row *rows;
    uint32_t n_max;
    uint64_t n;
}; /* row i is at i % n_max */

struct monitor {
    struct mutex lock; /* over seconds, minutes, event */
    struct ring seconds, minutes;
    struct buf event;
    uint64_t n_events;
    atomic_uint n_readers; /* relaxed: an event more or less */
    struct pressure pressure;
    /* io[0] */
    struct seen second, minute, now;
    uint64_t next_ended; /* rd_ended_requests: what the next event begins with */
    struct rd_record records[N_RUNNING > N_EVENT_ENDS ? N_RUNNING : N_EVENT_ENDS];
};

rd_status monitor_create(struct monitor **out)
{
    struct monitor *m = mem_zalloc(1, sizeof(*m));

    if (!m) return RD_E_NOMEM;
    mutex_init(&m->lock);
    m->seconds = (struct ring){mem_zalloc(N_SECONDS, sizeof(struct row)), N_SECONDS, 0};
    m->minutes = (struct ring){mem_zalloc(N_MINUTES, sizeof(struct row)), N_MINUTES, 0};
    if (!m->seconds.rows || !m->minutes.rows) {
        monitor_destroy(m);
        return RD_E_NOMEM;
    }
    *out = m;
    return RD_OK;
}

void monitor_destroy(struct monitor *m)
{
    if (!m) return;
    mem_free(m->seconds.rows);
    mem_free(m->minutes.rows);
    buf_deinit(&m->event);
    mutex_deinit(&m->lock);
    mem_free(m);
}

/* ---- samples ---- */

/* Of what was counted between two readings, evenly spread within its bounds; NaN: nothing was. */
static double quantile_between(const struct rd_histogram *before, const struct rd_histogram *after, double share)
{
    double want = share * (double)(after->count - before->count), seen = 0;

    if (after->count <= before->count) return NAN;
    for (uint32_t i = 0; i < after->n_bounds; i++) {
        double n = (double)(after->counts[i] - before->counts[i]), low = i > 0 ? after->bounds[i - 1] : 0;

        if (n > 0 && seen + n >= want) return low + (after->bounds[i] - low) * (want - seen) / n;
        seen += n;
    }
    return after->bounds[after->n_bounds - 1];
}

static double at_offset(const struct rd_stats *s, size_t offset, bool is_f64)
{
    const void *p = (const char *)s + offset;

    return is_f64 ? *(const double *)p : (double)*(const uint64_t *)p;
}

static double value_of(const struct column *c, const struct seen *before, const struct seen *after)
{
    double seconds = (double)(after->at_ns - before->at_ns) / 1e9;
    bool is_f64 = c->how == NOW_F64 || c->how == RATE_F64;

    switch (c->how) {
    case NOW:
    case NOW_F64:
        return at_offset(&after->s, c->offset, is_f64);
    case RATE:
    case RATE_F64:
        return (at_offset(&after->s, c->offset, is_f64) - at_offset(&before->s, c->offset, is_f64)) / seconds;
    case P50:
        return quantile_between(&before->of[c->histogram], &after->of[c->histogram], 0.5);
    case P95:
        return quantile_between(&before->of[c->histogram], &after->of[c->histogram], 0.95);
    case P99:
        return quantile_between(&before->of[c->histogram], &after->of[c->histogram], 0.99);
    }
    return NAN;
}

static void look(rd_engine *engine, uint64_t now_ns, struct seen *out)
{
    out->is_set = true;
    out->at_ns = now_ns;
    rd_get_stats(engine, &out->s);
    for (int i = 0; i < RD_N_HISTOGRAMS; i++) rd_get_histogram(engine, (enum rd_histogram_id)i, &out->of[i]);
}

static struct row *next_row(struct ring *r, int64_t wall_s)
{
    struct row *row = &r->rows[r->n++ % r->n_max];

    row->wall_s = wall_s;
    return row;
}

static void fill_row(struct row *row, const struct seen *before, const struct seen *after)
{
    for (size_t i = 0; i < N_COLUMNS; i++) row->values[i] = (float)value_of(&columns[i], before, after);
}

/* What is told as it is, is over a minute the mean of its seconds. */
static void average(const struct ring *seconds, struct row *minute)
{
    uint64_t n = u64_min(seconds->n, PER_MINUTE);

    for (size_t i = 0; i < N_COLUMNS; i++) {
        double sum = 0;

        if (columns[i].how != NOW && columns[i].how != NOW_F64) continue;
        for (uint64_t k = seconds->n - n; k < seconds->n; k++)
            sum += (double)seconds->rows[k % seconds->n_max].values[i];
        minute->values[i] = (float)(sum / (double)n);
    }
}

/* ---- JSON ---- */

static void put_float(double v, struct buf *out)
{
    if (isfinite(v))
        buf_printf(out, "%.5g", v);
    else
        buf_puts(out, "null");
}

static void put_row(const struct row *r, struct buf *out)
{
    buf_printf(out, "[%lld", (long long)r->wall_s);
    for (size_t i = 0; i < N_COLUMNS; i++) {
        buf_putc(out, ',');
        put_float((double)r->values[i], out);
    }
    buf_putc(out, ']');
}

static void put_ring(const struct ring *r, uint32_t n_most, struct buf *out)
{
    uint64_t n = u64_min(u64_min(r->n, r->n_max), n_most);

    buf_putc(out, '[');
    for (uint64_t i = r->n - n; i < r->n; i++) {
        if (i > r->n - n) buf_putc(out, ',');
        put_row(&r->rows[i % r->n_max], out);
    }
    buf_putc(out, ']');
}

static const char *phase_name(int32_t phase)
{
#define PHASE_NAME(id, name, note) [id] = name,
    static const char *const names[] = {RD_PHASES(PHASE_NAME)};
#undef PHASE_NAME

    return phase >= 0 && phase < RD_N_PHASES ? names[phase] : "";
}

/* Why it ended; a request that runs has none. */
static const char *end_name(const struct rd_record *d)
{
    static const char *const names[] = {"stop", "length", "cancelled", "error"};

    return d->ended && d->finish >= 0 && d->finish <= RD_FINISH_ERROR ? names[d->finish] : "";
}

static void put_record(const struct rd_record *d, struct buf *out)
{
    static const char *const matches[RD_N_MATCH_KINDS] = {"miss", "exact", "prefix", "supersequence", "lcp"};
    uint32_t n_brought = d->n_joined + d->n_ram + d->n_disk;

    buf_printf(out, "{\"number\":%llu,\"id\":%llu,\"label\":", (unsigned long long)d->number,
               (unsigned long long)d->id);
    json_put_string(out, d->label, strlen(d->label));
    buf_printf(out, ",\"phase\":\"%s\",\"end\":\"%s\",\"status\":\"%s\",\"warms\":%s,\"continues\":%s",
               phase_name(d->phase), end_name(d), d->ended ? rd_status_name((rd_status)d->status) : "",
               d->is_idle ? "true" : "false", d->continues ? "true" : "false");
    buf_printf(out, ",\"match\":{\"kind\":\"%s\",\"tokens\":%u,\"percent\":%.1f,\"miss\":\"%s\"}",
               d->match >= 0 && d->match < RD_N_MATCH_KINDS ? matches[d->match] : "", d->n_match,
               d->n_prompt ? 100.0 * d->n_match / d->n_prompt : 0, rd_miss_cause_name((enum rd_miss_cause)d->miss));
    buf_printf(
        out,
        ",\"tokens\":{\"prompt\":%u,\"done\":%u,\"computed\":%u,\"cached\":%u,\"device\":%u,\"joined\":%u,\"ram\":%u,"
        "\"disk\":%u,\"generated\":%u,\"drafted\":%u,\"draft_accepted\":%u},\"preempted\":%u",
        d->n_prompt, d->n_done, d->n_computed, d->n_cached, d->n_cached > n_brought ? d->n_cached - n_brought : 0,
        d->n_joined, d->n_ram, d->n_disk, d->n_generated, d->n_drafted, d->n_draft_accepted, d->n_preempted);
    buf_printf(out,
               ",\"age_s\":%.1f,\"ms\":{\"prepare\":%.3f,\"queue\":%.3f,\"ttft\":%.3f,\"prefill\":%.3f,\"decode\":%.3f,"
               "\"total\":%.3f,\"gap_p50\":%.3f,\"gap_p99\":%.3f},\"prefill_tok_s\":%.2f,\"decode_tok_s\":%.2f}",
               d->age_s, d->prepare_ms, d->queue_ms, d->ttft_ms, d->prefill_ms, d->decode_ms, d->total_ms,
               d->gap_p50_ms, d->gap_p99_ms, d->prefill_tok_s, d->decode_tok_s);
}

static void put_records(const struct rd_record *d, uint32_t n, struct buf *out)
{
    buf_putc(out, '[');
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0) buf_putc(out, ',');
        put_record(&d[i], out);
    }
    buf_putc(out, ']');
}

static void put_pressure(const struct pressure *p, const struct rd_stats *s, struct buf *out)
{
    struct budget_use uses[N_BUDGETS];
    unsigned n = 0;

    budget_uses(s, uses);
    buf_puts(out, ",\"budgets\":{");
    for (unsigned i = 0; i < N_BUDGETS; i++)
        buf_printf(out, "%s\"%s\":{\"used\":%llu,\"limit\":%llu}", i ? "," : "", budget_name(i),
                   (unsigned long long)uses[i].used, (unsigned long long)uses[i].limit);
    buf_putc(out, '}');

    buf_puts(out, ",\"above\":[");
    for (unsigned i = 0; i < N_BUDGETS; i++)
        if (pressure_is_above(p, i)) buf_printf(out, "%s\"%s\"", n++ ? "," : "", budget_name(i));
    buf_putc(out, ']');
}

/* Since the start, and limits. */
static void put_totals(const struct monitor *m, const struct rd_stats *s, struct buf *out)
{
    const struct {
        const char *name;
        uint64_t value;
    } totals[] = {
        {"requests", s->n_submitted},
        {"stop", s->n_stop},
        {"length", s->n_length},
        {"cancelled", s->n_cancelled},
        {"failed", s->n_failed},
        {"rejected", s->n_rejected},
        {"preempted", s->n_preempted},
        {"prompt", s->prompt_tokens_computed + s->prompt_tokens_cached},
        {"computed", s->prompt_tokens_computed},
        {"cached", s->prompt_tokens_cached},
        {"device", s->prompt_tokens_device},
        {"joined", s->prompt_tokens_joined},
        {"ram", s->prompt_tokens_ram},
        {"disk", s->prompt_tokens_disk},
        {"generated", s->tokens_generated},
        {"evicted", s->pages_evicted},
        {"evicted_bytes", s->bytes_evicted},
        {"pages", s->pages_total},
        {"page_tokens", s->page_tokens},
        {"ram_cap_pages", s->ram_cap_pages},
        {"disk_cap_bytes", s->disk_cap_bytes},
        {"mismatches", s->verify_mismatches},
        {"accounting_errors", s->accounting_errors},
    };

    buf_puts(out, "{\"uptime_s\":");
    json_put_number(out, s->uptime_s);
    for (size_t i = 0; i < sizeof(totals) / sizeof(totals[0]); i++)
        buf_printf(out, ",\"%s\":%llu", totals[i].name, (unsigned long long)totals[i].value);
    json_put_field(out, "prefill_tok_s", s->prefill_tok_s);
    put_pressure(&m->pressure, s, out);
    buf_putc(out, '}');
}

static void put_model(const struct rd_info *info, struct buf *out)
{
    const struct {
        const char *name, *value;
    } texts[] = {
        {"id", info->model_id},     {"arch", info->arch},       {"quantization", info->quantization},
        {"kv_type", info->kv_type}, {"backend", info->backend}, {"version", rd_version()},
    };

    buf_puts(out, "{");
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        buf_printf(out, "%s\"%s\":", i > 0 ? "," : "", texts[i].name);
        json_put_string(out, texts[i].value, strlen(texts[i].value));
    }
    buf_printf(out, ",\"context\":%u,\"kv_bytes_per_token\":%llu}", info->n_ctx,
               (unsigned long long)info->kv_bytes_per_token);
}

static void put_columns(struct buf *out)
{
    buf_puts(out, "[{\"name\":\"time\",\"unit\":\"s\"}");
    for (size_t i = 0; i < N_COLUMNS; i++)
        buf_printf(out, ",{\"name\":\"%s\",\"unit\":\"%s\"}", columns[i].name, columns[i].unit);
    buf_putc(out, ']');
}

/* How many there were. */
static uint64_t n_ended(const rd_engine *engine)
{
    uint64_t n = UINT64_MAX;

    (void)rd_ended_requests(engine, &n, NULL, 0);
    return n;
}

void monitor_put(struct monitor *m, rd_engine *engine, uint32_t n_seconds, uint32_t n_minutes, struct buf *out)
{
    struct rd_record *records = mem_zalloc(N_RECENT, sizeof(*records));
    struct rd_stats s = {.size = sizeof(s)};
    struct rd_info info = {.size = sizeof(info)};
    uint64_t n = n_ended(engine), from = n > N_RECENT ? n - N_RECENT : 0;

    if (!records) {
        out->failed = true;
        return;
    }
    rd_get_stats(engine, &s);
    rd_get_info(engine, &info);
    buf_puts(out, "{\"object\":\"monitor\",\"model\":");
    put_model(&info, out);
    buf_puts(out, ",\"columns\":");
    put_columns(out);
    mutex_lock(&m->lock);
    buf_puts(out, ",\"seconds\":");
    put_ring(&m->seconds, n_seconds, out);
    buf_puts(out, ",\"minutes\":");
    put_ring(&m->minutes, n_minutes, out);
    mutex_unlock(&m->lock);
    buf_puts(out, ",\"running\":");
    put_records(records, rd_running_requests(engine, records, N_RUNNING), out);
    buf_puts(out, ",\"recent\":");
    put_records(records, rd_ended_requests(engine, &from, records, N_RECENT), out);
    buf_puts(out, ",\"totals\":");
    put_totals(m, &s, out);
    buf_putc(out, '}');
    mem_free(records);
}

/* ---- events ---- */

static void write_event(struct monitor *m, rd_engine *engine, const struct row *row)
{
    struct buf out = {0}, old;
    uint32_t n;

    buf_puts(&out, "data: {\"row\":");
    put_row(row, &out);
    n = rd_running_requests(engine, m->records, N_RUNNING);
    buf_puts(&out, ",\"running\":");
    put_records(m->records, n, &out);
    n = rd_ended_requests(engine, &m->next_ended, m->records, N_EVENT_ENDS);
    buf_puts(&out, ",\"recent\":");
    put_records(m->records, n, &out);
    buf_puts(&out, ",\"totals\":");
    put_totals(m, &m->now.s, &out);
    buf_puts(&out, "}\n\n");
    mutex_lock(&m->lock);
    old = m->event;
    m->event = out;
    m->n_events++;
    mutex_unlock(&m->lock);
    buf_deinit(&old);
}

void monitor_tick(struct monitor *m, rd_engine *engine, uint64_t now_ns, int64_t wall_s)
{
    struct row row;

    if (!engine) {
        m->second.is_set = m->minute.is_set = false;
        m->next_ended = 0;
        pressure_look(&m->pressure, NULL);
        return;
    }
    if (m->second.is_set && now_ns - m->second.at_ns < SECOND_NS) return;
    look(engine, now_ns, &m->now);
    pressure_look(&m->pressure, &m->now.s);
    if (m->second.is_set) {
        fill_row(&row, &m->second, &m->now);
        row.wall_s = wall_s;
        mutex_lock(&m->lock);
        *next_row(&m->seconds, wall_s) = row;
        if (now_ns - m->minute.at_ns >= PER_MINUTE * SECOND_NS) {
            struct row *minute = next_row(&m->minutes, wall_s);

            fill_row(minute, &m->minute, &m->now);
            average(&m->seconds, minute);
        }
        mutex_unlock(&m->lock);
        if (atomic_load_explicit(&m->n_readers, memory_order_relaxed) > 0)
            write_event(m, engine, &row);
        else
            m->next_ended = n_ended(engine);
    }
    if (!m->minute.is_set || now_ns - m->minute.at_ns >= PER_MINUTE * SECOND_NS) m->minute = m->now;
    m->second = m->now;
}

const struct pressure *monitor_pressure(const struct monitor *m)
{
    return &m->pressure;
}

void monitor_join(struct monitor *m)
{
    atomic_fetch_add_explicit(&m->n_readers, 1, memory_order_relaxed);
}

void monitor_leave(struct monitor *m)
{
    atomic_fetch_sub_explicit(&m->n_readers, 1, memory_order_relaxed);
}

bool monitor_event(struct monitor *m, uint64_t *seen, struct buf *out)
{
    bool is_new;

    mutex_lock(&m->lock);
    is_new = m->n_events > *seen && !m->event.failed;
    if (is_new) buf_append(out, m->event.data, m->event.n);
    *seen = m->n_events;
    mutex_unlock(&m->lock);
    return is_new;
}
