/* server/foreign.c - what both translations need: copies, checks, names. */
#include "server/foreign.h"
#include <stdio.h>
#include <string.h>

int foreign_no_memory(struct api_error *e)
{
    return api_error_set(e, 503, NULL, "out of memory");
}

bool foreign_set(json_t *object, const char *name, json_t *value)
{
    return json_object_set_new(object, name, value) == 0;
}

bool foreign_add(json_t *list, json_t *value)
{
    return json_array_append_new(list, value) == 0;
}

json_t *foreign_body(const json_t *body, const char *const *drop)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)body);

    for (; copy && *drop; drop++) json_object_del(copy, *drop);
    return copy;
}

static bool is_of_type(const json_t *v, char type)
{
    switch (type) {
    case 's': return json_is_string(v);
    case 'o': return json_is_object(v);
    case 'l': return json_is_array(v);
    case 'b': return json_is_boolean(v);
    default: return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= INT32_MAX;
    }
}

int foreign_check_types(const json_t *body, const struct foreign_check *checks, size_t n, struct api_error *e)
{
    for (size_t i = 0; i < n; i++) {
        const char *name = checks[i].name;
        const json_t *v = json_object_get(body, name);

        if (!v || json_is_null(v) || is_of_type(v, checks[i].type)) continue;
        return api_error_set(e, 400, name, "%s: %s wanted", name,
                             checks[i].type == 's'   ? "a string"
                             : checks[i].type == 'o' ? "an object"
                             : checks[i].type == 'l' ? "a list"
                             : checks[i].type == 'b' ? "true or false"
                                                     : "a whole number, 0 or more,");
    }
    return 0;
}

void foreign_rename(struct api_error *e, const char *from, const char *to)
{
    char rest[sizeof(e->message)];
    size_t n = strlen(from);

    if (strcmp(e->param, from) != 0) return;
    snprintf(e->param, sizeof(e->param), "%s", to);
    if (strncmp(e->message, from, n) != 0) return;
    memcpy(rest, e->message + n, sizeof(rest) - n);
    snprintf(e->message, sizeof(e->message), "%s%.560s", to, rest);
}

json_t *foreign_tool(const json_t *tool, const char *schema)
{
    static const char *const same[] = {"name", "description", "strict"};
    json_t *function = json_object(), *parameters = json_object_get(tool, schema);
    bool ok = function != NULL;

    for (size_t i = 0; ok && i < sizeof(same) / sizeof(same[0]); i++) {
        json_t *v = json_object_get(tool, same[i]);

        if (v && !json_is_null(v)) ok = json_object_set(function, same[i], v) == 0;
    }
    if (ok && json_is_object(parameters)) ok = json_object_set(function, "parameters", parameters) == 0;
    if (ok) return json_pack("{s:s, s:o}", "type", "function", "function", function);
    json_decref(function);
    return NULL;
}
