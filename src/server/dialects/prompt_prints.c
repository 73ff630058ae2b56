/* server/dialects/prompt_prints.c - see the header. */
#include "server/dialects/prompt_prints.h"
#include <string.h>
#include "base/hash.h"
#include "base/mem.h"
#include "base/thread.h"

#define N_PRINTS 4096u

struct entry {
    struct hash128 name;
    struct prompt_print print;
    struct cache_record record;
};
struct prompt_prints {
    struct mutex lock;              /* guards entries */
    struct entry entries[N_PRINTS]; /* n_tokens 0: none */
};

rd_status prompt_prints_create(struct prompt_prints **out)
{
    struct prompt_prints *t = mem_zalloc(1, sizeof(*t));

    if (!t) return RD_E_NOMEM;
    mutex_init(&t->lock);
    *out = t;
    return RD_OK;
}

void prompt_prints_destroy(struct prompt_prints *t)
{
    if (t) mutex_deinit(&t->lock);
    mem_free(t);
}

/* ---- prints ---- */

static uint64_t digest(const char *s)
{
    return s ? hash64_of(s, strlen(s)) : 0;
}

/* The end of the JSON value at s, which is whole. */
static const char *value_end(const char *s)
{
    uint32_t depth = 0;

    for (bool quoted = false; *s; s++) {
        if (quoted) {
            if (*s == '\\')
                s++;
            else if (*s == '"')
                quoted = false;
        } else if (*s == '"') {
            quoted = true;
        } else if (*s == '{' || *s == '[') {
            depth++;
        } else if (depth > 0 && (*s == '}' || *s == ']')) {
            depth--;
        } else if (depth == 0 && (*s == ',' || *s == ']')) {
            return s;
        }
    }
    return s;
}

static bool is_system(const char *s, size_t n)
{
    char role[24];
    json_t *v = json_loadb(s, n, JSON_ALLOW_NUL, NULL);
    const char *text = json_string_value(json_object_get(v, "role"));

    strncpy(role, text ? text : "", sizeof(role) - 1);
    role[sizeof(role) - 1] = 0;
    json_decref(v);
    return strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
}

/* Of p's prompt, and of at most n_max messages behind those of the system that come first. */
static struct prompt_print print_of(const struct gen_params *p, uint32_t n_max)
{
    struct prompt_print x = {.tools = digest(p->tools), .settings = digest(p->kwargs), .salt = digest(p->cache_salt)};
    bool head = true;

    for (const char *s = p->messages ? p->messages + 1 : "", *end; *s && *s != ']'; s = *end == ',' ? end + 1 : end) {
        uint64_t *sum = &x.messages, link[2];

        end = value_end(s);
        head = head && is_system(s, (size_t)(end - s));
        if (head)
            sum = &x.system;
        else if (x.n_messages++ == n_max)
            break;
        link[0] = *sum;
        link[1] = hash64_of(s, (size_t)(end - s));
        *sum = hash64_of(link, sizeof(link));
    }
    return x;
}

static struct hash128 name_of(const char *tenant, const char *id)
{
    uint64_t both[2] = {tenant ? digest(tenant) + 1 : 0, digest(id)};

    return hash128_of(both, sizeof(both));
}

void prompt_prints_keep(struct prompt_prints *t, const char *tenant, const char *id, const struct gen_params *p,
                        const struct rd_usage *u)
{
    struct entry e = {name_of(tenant, id),
                      print_of(p, UINT32_MAX),
                      {u->n_prompt, u->n_cached, u->n_joined, u->n_ram, u->n_disk, u->n_lossy, (uint32_t)u->miss}};

    e.print.n_tokens = u->n_prompt;
    mutex_lock(&t->lock);
    t->entries[e.name.low % N_PRINTS] = e;
    mutex_unlock(&t->lock);
}

static bool find(struct prompt_prints *t, const char *tenant, const char *id, struct entry *e)
{
    struct hash128 name = name_of(tenant, id);

    mutex_lock(&t->lock);
    *e = t->entries[name.low % N_PRINTS];
    mutex_unlock(&t->lock);
    return e->print.n_tokens > 0 && hash128_equal(e->name, name);
}

bool prompt_prints_find(struct prompt_prints *t, const char *tenant, const char *id, struct cache_record *out)
{
    struct entry e;
    bool found = find(t, tenant, id, &e);

    if (found) *out = e.record;
    return found;
}

/* ---- comparing ---- */

enum change { NOT_FOUND, HIT, SAME, TOOLS, SYSTEM, MESSAGES, COMPACTED, SETTINGS, SALT };

static enum change compare(const struct prompt_print *before, const struct gen_params *p)
{
    struct prompt_print now = print_of(p, before->n_messages);

    if (now.salt != before->salt) return SALT;
    if (now.tools != before->tools) return TOOLS;
    if (now.system != before->system) return SYSTEM;
    if (now.n_messages < before->n_messages) return COMPACTED;
    if (now.messages != before->messages) return MESSAGES;
    return now.settings != before->settings ? SETTINGS : SAME;
}

/* *n_missed: prompt tokens that the earlier one had, and this one did not find. */
static enum change diagnose(struct prompt_prints *t, const char *tenant, const struct gen_params *p,
                            const struct rd_usage *u, uint32_t slack, uint32_t *n_missed, uint32_t *n_before)
{
    struct entry e;
    uint32_t n_expected;

    if (!find(t, tenant, p->compare_id, &e)) return NOT_FOUND;
    *n_before = e.print.n_tokens;
    n_expected = e.print.n_tokens < u->n_prompt ? e.print.n_tokens : u->n_prompt;
    *n_missed = n_expected > u->n_cached ? n_expected - u->n_cached : 0;
    return *n_missed <= slack ? HIT : compare(&e.print, p);
}

void prompt_prints_put_openai(struct prompt_prints *t, const char *tenant, const struct gen_params *p,
                              const struct rd_usage *u, uint32_t slack, struct buf *out)
{
    static const char *const reasons[] = {[TOOLS] = "tools_changed",
                                          [SYSTEM] = "input_changed",
                                          [MESSAGES] = "input_changed",
                                          [COMPACTED] = "context_compacted",
                                          [SETTINGS] = "reasoning_effort_changed",
                                          [SALT] = "prompt_cache_key_changed"};
    const char *cause = rd_miss_cause_name((enum rd_miss_cause)u->miss);
    uint32_t n_missed = 0, n_before = 0;
    enum change change;

    if (!p->compare_id) return;
    change = diagnose(t, tenant, p, u, slack, &n_missed, &n_before);
    buf_puts(out, ",\"prompt_cache_diagnostics\":{\"type\":");
    if (change == NOT_FOUND)
        buf_puts(out, "\"comparison_response_not_found\"}");
    else if (change == HIT)
        buf_puts(out, "\"cache_hit\"}");
    else if (change == SAME)
        buf_printf(out, "\"unavailable\",\"cause\":\"%s\"}", cause);
    else
        buf_printf(out,
                   "\"cache_miss\",\"reason\":\"%s\",\"cache_missed_tokens\":%u,\"comparison_reusable_tokens\":%u,"
                   "\"cause\":\"%s\"}",
                   reasons[change], n_missed, n_before, cause);
}

void prompt_prints_put_anthropic(struct prompt_prints *t, const char *tenant, const struct gen_params *p,
                                 const struct rd_usage *u, uint32_t slack, struct buf *out)
{
    static const char *const reasons[] = {[TOOLS] = "tools_changed",
                                          [SYSTEM] = "system_changed",
                                          [MESSAGES] = "messages_changed",
                                          [COMPACTED] = "messages_changed",
                                          [SETTINGS] = "messages_changed"};
    const char *cause = rd_miss_cause_name((enum rd_miss_cause)u->miss);
    uint32_t n_missed = 0, n_before = 0;
    enum change change;

    if (!p->diagnoses) return;
    change = p->compare_id ? diagnose(t, tenant, p, u, slack, &n_missed, &n_before) : HIT;
    buf_puts(out, ",\"diagnostics\":");
    if (change == HIT)
        buf_puts(out, "null");
    else if (change == NOT_FOUND)
        buf_puts(out, "{\"cache_miss_reason\":{\"type\":\"previous_message_not_found\"}}");
    else if (change == SAME || change == SALT)
        buf_printf(out, "{\"cache_miss_reason\":{\"type\":\"unavailable\",\"cause\":\"%s\"}}", cause);
    else
        buf_printf(out, "{\"cache_miss_reason\":{\"type\":\"%s\",\"cache_missed_input_tokens\":%u,\"cause\":\"%s\"}}",
                   reasons[change], n_missed, cause);
}
