/* server/params/params_retention.c - see the header. */
#include "server/params/params_retention.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

#define DEFAULT_S  300   /* of a mark without ttl */
#define LONGEST_S  86400 /* a day: what is asked for beyond counts as this */
#define LIST_DEPTH 3     /* message, block, block of a tool's result */

/* "90s", "5m", "1h", "2d", or a number of seconds; 0: none of these. */
static int64_t seconds_of(const char *s)
{
    char *end = NULL;
    double n = s && *s >= '0' && *s <= '9' ? strtod(s, &end) : 0, unit = 0;

    if (!end || (*end && end[1])) return 0;
    switch (*end) {
    case 0:
    case 's':
        unit = 1;
        break;
    case 'm':
        unit = 60;
        break;
    case 'h':
        unit = 3600;
        break;
    case 'd':
        unit = 86400;
        break;
    default:
        break;
    }
    if (!(n * unit >= 1)) return 0;
    return n * unit < LONGEST_S ? (int64_t)(n * unit) : LONGEST_S;
}

int param_cache_key(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    (void)name;
    mem_free(p->cache_key);
    p->cache_key = mem_strdup(json_string_value(v));
    return p->cache_key ? 0 : api_error_set(e, 503, NULL, "out of memory");
}

int param_compare_id(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    (void)name;
    mem_free(p->compare_id);
    p->compare_id = mem_strdup(json_string_value(v));
    return p->compare_id ? 0 : api_error_set(e, 503, NULL, "out of memory");
}

int params_diagnostics(const json_t *body, struct gen_params *p, struct api_error *e)
{
    const json_t *v = json_object_get(body, "diagnostics"), *id = json_object_get(v, "previous_message_id");

    p->diagnoses = json_is_object(v);
    return json_is_string(id) ? param_compare_id("diagnostics", id, p, e) : 0;
}

int param_cache_retention(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    (void)name, (void)e;
    if (strcmp(json_string_value(v), "24h") == 0) p->keep_all_s = LONGEST_S;
    return 0;
}

int param_cache_ttl(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    int64_t seconds = json_is_string(v) ? seconds_of(json_string_value(v)) : json_integer_value(v);

    if (seconds < 1)
        return api_error_set(e, 400, name, "%s: a time such as \"30m\" or \"24h\" wanted, or seconds", name);
    p->keep_all_s = seconds < LONGEST_S ? seconds : LONGEST_S;
    return 0;
}

/* The longest that a mark on v, or on what it lists, asks for; 0: there is none. */
static int64_t marked(const json_t *v, int depth)
{
    const json_t *mark = json_object_get(v, "cache_control"), *content = json_object_get(v, "content"), *item;
    int64_t seconds = 0, s;
    size_t i;

    if (json_is_object(mark)) {
        seconds = seconds_of(json_plain(json_object_get(mark, "ttl")));
        if (seconds == 0) seconds = DEFAULT_S;
    }
    if (depth == 0) return seconds;
    json_array_foreach(json_is_array(v) ? v : content, i, item) if ((s = marked(item, depth - 1)) > seconds) seconds =
        s;
    return seconds;
}

static void raise_to(int64_t *seconds, int64_t s)
{
    if (s > *seconds) *seconds = s;
}

bool params_cache_marks(const json_t *body, struct gen_params *p)
{
    const json_t *message;
    size_t i;

    raise_to(&p->keep_prompt_s, marked(body, 0));
    raise_to(&p->keep_head_s, marked(json_object_get(body, "system"), 1));
    raise_to(&p->keep_head_s, marked(json_object_get(body, "tools"), 1));
    json_array_foreach(json_object_get(body, "messages"), i, message)
    {
        const char *role = json_plain(json_object_get(message, "role"));
        bool is_head = role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);

        raise_to(is_head ? &p->keep_head_s : &p->keep_prompt_s, marked(message, LIST_DEPTH));
    }
    return p->keep_head_s > 0 || p->keep_prompt_s > 0;
}
