/* server/routes/slots.c - GET /slots: llama-server's list of what runs.
 *
 * There are no slots here: a request has the whole context, and as many run as --max-running says. So that dashboards and
 * balancers can count, the list has that many entries: those of the running requests first, then idle ones; an entry's
 * id says nothing of who had it before. No prompt, no answer and no key is told, but who runs is of all keys: a key of
 * --api-key-file is refused. What is not known here (samplers, has_new_line) is left out.
 *
 * With ?fail_on_no_slot=1 it is 503 while as many run as may.
 * Source  llama.cpp, tools/server; as of 2026: next_token is a list of one object there.
 */
#include "base/checked.h"
#include "base/mem.h"
#include "server/http/http_guard.h"
#include "server/routes/routes.h"

#define N_TOLD 64u /* requests that the library tells one by one */

/* Of the batch, not of the queue. */
static bool is_in_slot(const struct rd_record *d)
{
    return d->phase == RD_PHASE_WAITING || d->phase == RD_PHASE_PREFILL || d->phase == RD_PHASE_DECODE;
}

static uint32_t n_busy(const struct http_conn *c)
{
    struct rd_stats s = {.size = sizeof(s)};

    rd_get_stats(served_of(c)->engine, &s);
    return (uint32_t)u64_min(s.n_waiting + s.n_prefill + s.n_decode, UINT32_MAX);
}

static bool fails_without(const struct http_conn *c)
{
    const char *rest = c->head.query, *v;
    size_t n;

    while ((v = http_query_next(&rest, "fail_on_no_slot", &n)))
        if (n > 0) return *v != '0';
    return false;
}

static void put_request(const struct rd_record *d, struct buf *out)
{
    long long most = d->max_tokens == RD_NO_LIMIT ? -1 : (long long)d->max_tokens;
    uint32_t n_left = d->max_tokens > d->n_generated ? d->max_tokens - d->n_generated : 0;

    buf_printf(out,
               ",\"id_task\":%llu,\"n_prompt_tokens\":%u,\"n_prompt_tokens_processed\":%u,\"n_prompt_tokens_cache\":%u",
               (unsigned long long)d->id, d->n_prompt, d->n_computed, d->n_cached);
    buf_printf(out, ",\"params\":{\"n_predict\":%lld,\"max_tokens\":%lld}", most, most);
    buf_printf(out, ",\"next_token\":[{\"has_next_token\":%s,\"n_remain\":%lld,\"n_decoded\":%u}]",
               most < 0 || n_left > 0 ? "true" : "false", most < 0 ? -1 : (long long)n_left, d->n_generated);
}

static void put_slots(const struct http_conn *c, struct rd_record *records, struct buf *out)
{
    const struct rd_info *info = &served_of(c)->info;
    uint32_t n = rd_running_requests(served_of(c)->engine, records, N_TOLD), n_listed = n_busy(c), n_told = 0;

    for (uint32_t i = 0; i < n; i++)
        if (is_in_slot(&records[i])) records[n_told++] = records[i];
    buf_putc(out, '[');
    for (uint32_t i = 0; i < info->max_running; i++) {
        const struct rd_record *d = i < n_told ? &records[i] : NULL;

        buf_printf(out, "%s{\"id\":%u,\"n_ctx\":%u,\"speculative\":%s,\"is_processing\":%s", i ? "," : "", i,
                   info->n_ctx, d && d->n_drafted ? "true" : "false", d || i < n_listed ? "true" : "false");
        if (d) put_request(d, out);
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
}

void route_slots(struct http_conn *c)
{
    struct rd_record *records;
    struct buf body = {0};
    struct api_error e;

    if (http_refuse_tenant(c, "the list of slots")) return;
    if (fails_without(c) && n_busy(c) >= served_of(c)->info.max_running) {
        api_error_set(&e, 503, NULL, "no slot available");
        http_reply_error(c, &e);
        return;
    }
    records = mem_zalloc(N_TOLD, sizeof(*records));
    if (records)
        put_slots(c, records, &body);
    else
        body.failed = true;
    http_reply_json(c, &body);
    mem_free(records);
    buf_deinit(&body);
}
