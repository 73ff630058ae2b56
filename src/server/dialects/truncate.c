/* server/dialects/truncate.c - the fewest turns that must go, by bisection: fewer messages never have more tokens. */
#include "server/dialects/truncate.h"
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "server/dialects/foreign.h"
#include "server/dialects/prompt_only.h"
#include "server/dialects/prompt_cost.h"
#include "server/dialects/request_body.h"

#define MESSAGE_MARKS  512u  /* bytes that a template writes around a message, at most, */
#define TEMPLATE_WORDS 8192u /* and by itself */

struct conversation {
    struct http_conn *conn;
    json_t *chat;
    size_t n_system; /* messages at the beginning, which stay */
    size_t *turns;   /* [n_turns] the messages that turns begin with; the first may be an assistant's */
    uint32_t n_turns;
};

static bool has_role(const json_t *message, const char *role)
{
    const char *its = json_plain(json_object_get(message, "role"));

    return its && strcmp(its, role) == 0;
}

static int find_turns(struct conversation *v, struct api_error *e)
{
    const json_t *messages = json_object_get(v->chat, "messages"), *m;
    size_t i;

    v->turns = mem_alloc(json_array_size(messages) + 1, sizeof(*v->turns));
    if (!v->turns) return foreign_no_memory(e);
    json_array_foreach(messages, i, m)
    {
        bool in_front = v->n_turns == 0 && (has_role(m, "system") || has_role(m, "developer"));

        if (in_front)
            v->n_system = i + 1;
        else if (v->n_turns == 0 || has_role(m, "user"))
            v->turns[v->n_turns++] = i;
    }
    return 0;
}

/* The messages without the first n turns, as a new list; NULL: out of memory. */
static json_t *messages_behind(const struct conversation *v, uint32_t n)
{
    const json_t *messages = json_object_get(v->chat, "messages");
    json_t *kept = json_array();

    for (size_t i = 0; kept && i < json_array_size(messages); i++) {
        if (i >= v->n_system && i < v->turns[n]) continue;
        if (json_array_append(kept, json_array_get(messages, i)) == 0) continue;
        json_decref(kept);
        kept = NULL;
    }
    return kept;
}

/* Its prompt is so short that it need not be counted. */
static bool is_short(const struct gen_params *p, size_t n_messages, uint32_t n_max)
{
    uint64_t n = strlen(p->messages) + (p->tools ? strlen(p->tools) : 0);

    return n + (uint64_t)n_messages * MESSAGE_MARKS + TEMPLATE_WORDS <= n_max;
}

/* Tokens of the prompt without the first n turns; 0: certainly not more than n_max. */
static int count(const struct conversation *v, uint32_t n, uint32_t n_max, uint32_t *n_tokens, struct api_error *e)
{
    const struct served_model *s = served_of(v->conn);
    json_t *chat = json_copy(v->chat), *kept = messages_behind(v, n);
    struct gen_params p;
    int32_t *ids = NULL;
    int rc = 0;

    *n_tokens = 0;
    gen_params_init(&p, true);
    if (!chat || !kept || json_object_set(chat, "messages", kept)) rc = foreign_no_memory(e);
    if (rc == 0) rc = gen_params_parse(chat, s, true, &p, e);
    if (rc == 0 && !is_short(&p, json_array_size(kept), n_max)) {
        rc = request_reserve(v->conn, prompt_messages_cost(p.messages, strlen(p.messages)), e);
        if (rc == 0) rc = prompt_only_tokens(v->conn, &p, &ids, n_tokens, e);
    }
    rd_free(ids);
    gen_params_deinit(&p);
    json_decref(kept);
    json_decref(chat);
    return rc;
}

/* The longest prompt that the engine takes. */
static uint32_t longest_prompt(const struct rd_info *info)
{
    uint64_t stored = info->kv_tokens > 2 * (uint64_t)info->page_tokens ? info->kv_tokens - info->page_tokens : 2;

    return (uint32_t)u64_min(stored, info->n_ctx) - 1;
}

static uint32_t room_wanted(const json_t *chat, uint32_t n_max)
{
    const json_t *most = json_object_get(chat, "max_tokens");

    if (!json_is_integer(most) || json_integer_value(most) <= 0) return n_max / 8;
    return json_integer_value(most) < n_max / 2 ? (uint32_t)json_integer_value(most) : n_max / 2;
}

int chat_truncate(struct http_conn *c, json_t *chat, struct api_error *e)
{
    struct conversation v = {.conn = c, .chat = chat};
    uint32_t n_max = longest_prompt(&served_of(c)->info), n = 0, low = 0, high;
    json_t *kept;
    int rc = find_turns(&v, e);

    if (rc == 0 && v.n_turns > 1) rc = count(&v, 0, n_max, &n, e);
    if (rc || n <= n_max) goto done;
    n_max -= room_wanted(chat, n_max);
    high = v.n_turns - 1; /* without the first `low` it does not fit; high: it may */
    while (rc == 0 && high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        rc = count(&v, middle, n_max, &n, e);
        if (n > n_max)
            low = middle;
        else
            high = middle;
    }
    if (rc) goto done;
    kept = messages_behind(&v, high);
    if (!kept || json_object_set_new(chat, "messages", kept)) rc = foreign_no_memory(e);
done:
    mem_free(v.turns);
    return rc;
}
