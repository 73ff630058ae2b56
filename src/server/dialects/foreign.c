/* server/dialects/foreign.c - what both translations need: copies, checks, names. */
#include "server/dialects/foreign.h"
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
