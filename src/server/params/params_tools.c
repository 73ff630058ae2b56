/* server/params/params_tools.c - tools, the choice among them, and thinking, in the spellings that clients use. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "server/params/params_custom.h"

static int no_memory(struct api_error *e)
{
    return api_error_set(e, 503, NULL, "out of memory");
}

static int dump(const json_t *v, char **to, struct api_error *e)
{
    *to = json_text(v, JSON_ENCODE_ANY);
    return *to ? 0 : no_memory(e);
}

/* ---- tools ---- */

/* {"type":"function","function":{"name":..}}, or the function without the wrapper; NULL: of another type. */
static const char *tool_name(const json_t *tool)
{
    const json_t *f = json_object_get(tool, "function"), *type = json_object_get(tool, "type");

    if (json_is_string(type) && strcmp(json_string_value(type), "function") != 0) return NULL;
    return json_plain(json_object_get(json_is_object(f) ? f : tool, "name"));
}

static int not_an_object(size_t i, const char *field, struct api_error *e)
{
    char path[64];

    snprintf(path, sizeof(path), "tools[%zu].%s", i, field);
    return api_error_set(e, 400, path, "%s: a JSON schema, which is an object, wanted", path);
}

/* The functions among the tools, as a new list; others are skipped, as OpenAI's clients expect of servers. */
static int keep_functions(const json_t *list, json_t **functions, struct api_error *e)
{
    json_t *kept = json_array(), *tool;
    size_t i;

    if (!kept) return no_memory(e);
    json_array_foreach((json_t *)(uintptr_t)list, i, tool)
    {
        const json_t *type = json_object_get(tool, "type");
        const char *name = tool_name(tool);
        int rc = 0;

        if (name) {
            const json_t *f = json_object_get(tool, "function"),
                         *schema = json_object_get(json_is_object(f) ? f : tool, "parameters");

            if (schema && !json_is_object(schema) && !json_is_null(schema))
                rc = not_an_object(i, json_is_object(f) ? "function.parameters" : "parameters", e);
            else if (strlen(name) > LIMIT_TOOL_NAME_BYTES || !*name)
                rc = api_error_set(e, 400, "tools", "tools: element %zu: the name must have 1 to %u bytes", i,
                                   LIMIT_TOOL_NAME_BYTES);
            else if (json_array_append(kept, tool))
                rc = no_memory(e);
        } else if (!type || (json_is_string(type) && strcmp(json_string_value(type), "function") == 0)) {
            rc = api_error_set(e, 400, "tools", "tools: element %zu needs a function with a name", i);
        }
        if (rc) {
            json_decref(kept);
            return rc;
        }
    }
    *functions = kept;
    return 0;
}

static bool has_tool(const json_t *functions, const char *name)
{
    size_t i;
    const json_t *tool;

    json_array_foreach(functions, i, tool)
    {
        const char *its = tool_name(tool);

        if (its && strcmp(its, name) == 0) return true;
    }
    return false;
}

/* The names of the functions among the tools, as members of a new object; NULL: out of memory. */
static json_t *names_of(const json_t *tools)
{
    json_t *names = json_object();
    const json_t *tool;
    size_t i;

    json_array_foreach(tools, i, tool)
    {
        const char *name = tool_name(tool);

        if (!names || !name || json_object_set_new(names, name, json_true()) == 0) continue;
        json_decref(names);
        names = NULL;
    }
    return names;
}

/* Every function that is listed must be one of ours; those of ours that are not listed go. Both lists are as long as
 * the client likes. */
static int keep_listed(json_t *functions, const json_t *list, struct api_error *e)
{
    json_t *known = names_of(functions), *listed = names_of(list);
    char quoted[80];
    const char *name;
    json_t *v;
    int rc = known && listed ? 0 : no_memory(e);

    if (rc == 0) {
        json_object_foreach(listed, name, v)
        {
            if (json_object_get(known, name)) continue;
            rc = api_error_set(e, 400, "tool_choice", "tool_choice: tools has no function named %s",
                               error_quote(quoted, sizeof(quoted), name, strlen(name)));
            break;
        }
    }
    for (size_t i = json_array_size(functions); rc == 0 && i-- > 0;)
        if (!json_object_get(listed, tool_name(json_array_get(functions, i)))) json_array_remove(functions, i);
    json_decref(known);
    json_decref(listed);
    return rc;
}

/* {type: allowed_tools, mode, tools: [..]}, as it stands (Responses) or under its own name (chat completions): of the
 * functions those stay that are listed, *choice becomes its mode. */
static int keep_allowed(json_t *functions, const json_t **choice, struct api_error *e)
{
    const json_t *type = json_object_get(*choice, "type"), *inner = json_object_get(*choice, "allowed_tools");
    const json_t *allowed = json_is_object(inner) ? inner : *choice, *mode = json_object_get(allowed, "mode");
    const json_t *list = json_object_get(allowed, "tools");
    const char *text = json_string_value(mode);

    if (!json_is_string(type) || strcmp(json_string_value(type), "allowed_tools") != 0) return 0;
    if (!text || (strcmp(text, "auto") != 0 && strcmp(text, "required") != 0))
        return api_error_set(e, 400, "tool_choice", "tool_choice.mode: auto or required wanted");
    if (!json_is_array(list)) return api_error_set(e, 400, "tool_choice", "tool_choice.tools: a list wanted");
    if (keep_listed(functions, list, e)) return -1;
    *choice = mode;
    return 0;
}

/* What tool_choice asks for: NULL, "" for any tool, or a name. *none: no tool. */
static int read_choice(const json_t *choice, const json_t *functions, const char **forced, bool *none,
                       struct api_error *e)
{
    const char *text = json_string_value(choice), *name;
    const json_t *f = json_object_get(choice, "function");
    char quoted[80];

    *forced = NULL;
    *none = false;
    if (!choice || json_is_null(choice) || (text && strcmp(text, "auto") == 0)) return 0;
    if (text && strcmp(text, "none") == 0) {
        *none = true;
        return 0;
    }
    if (text && (strcmp(text, "required") == 0 || strcmp(text, "any") == 0)) {
        if (json_array_size(functions) == 0)
            return api_error_set(e, 400, "tool_choice", "tool_choice: a call is required, and there are no functions");
        *forced = "";
        return 0;
    }
    name = json_plain(json_object_get(json_is_object(f) ? f : choice, "name"));
    if (!name)
        return api_error_set(e, 400, "tool_choice",
                             "tool_choice: none, auto, required, or a function by its name wanted");
    if (!has_tool(functions, name))
        return api_error_set(e, 400, "tool_choice", "tool_choice: tools has no function named %s",
                             error_quote(quoted, sizeof(quoted), name, strlen(name)));
    *forced = name;
    return 0;
}

int param_tools(const json_t *body, struct gen_params *p, struct api_error *e)
{
    const json_t *list = json_object_get(body, "tools"), *choice = json_object_get(body, "tool_choice");
    json_t *functions = NULL;
    const char *forced = NULL;
    bool none = false;
    int rc = 0;

    if (json_is_array(list) && keep_functions(list, &functions, e)) return -1;
    rc = keep_allowed(functions, &choice, e);
    if (rc == 0) rc = read_choice(choice, functions, &forced, &none, e);
    if (rc == 0 && !none && json_array_size(functions) > 0) rc = dump(functions, &p->tools, e);
    if (rc == 0 && forced && !(p->forced_tool = mem_strdup(forced))) rc = no_memory(e);
    json_decref(functions);
    return rc;
}

/* ---- thinking ---- */

int param_enable_thinking(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    (void)name;
    (void)e;
    p->thinking = json_is_true(v) ? THINKING_ON : THINKING_OFF;
    return 0;
}

int param_effort(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    static const char *const levels[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    const char *text = json_string_value(v);

    (void)name;
    (void)e;
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (strcmp(text, levels[i]) != 0) continue;
        p->effort = levels[i];
        p->thinking = i == 0 ? THINKING_OFF : THINKING_ON;
    }
    return 0;
}

/* Anthropic's {type, budget_tokens}; a bool as some chat servers have it. */
int param_thinking(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    const json_t *type = json_object_get(v, "type");

    if (json_is_boolean(v)) return param_enable_thinking(name, v, p, e);
    if (!json_is_string(type)) return api_error_set(e, 400, name, "%s: an object with a type wanted", name);
    if (*json_string_value(type) != 'a') p->thinking = *json_string_value(type) == 'e' ? THINKING_ON : THINKING_OFF;
    return 0;
}

int param_reasoning_format(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    const char *text = json_string_value(v);

    (void)name;
    (void)e;
    p->split_thinking = strcmp(text, "none") != 0 && strcmp(text, "raw") != 0;
    if (strcmp(text, "hidden") == 0) p->include_reasoning = false;
    return 0;
}

/* Templates name the switch differently; what the client set itself stays. */
static int set_default(json_t *vars, const char *name, json_t *value, struct api_error *e)
{
    if (json_object_get(vars, name)) {
        json_decref(value);
        return 0;
    }
    return json_object_set_new(vars, name, value) ? no_memory(e) : 0;
}

int param_template_kwargs(const json_t *body, struct gen_params *p, struct api_error *e)
{
    const json_t *given = json_object_get(body, "chat_template_kwargs");
    json_t *vars;
    int rc = 0;

    vars = json_is_object(given) ? json_copy((json_t *)(uintptr_t)given) : json_object();
    if (!vars) return no_memory(e);
    if (p->thinking_tokens == 0 && p->thinking == THINKING_DEFAULT) p->thinking = THINKING_OFF;
    if (json_is_false(json_object_get(vars, "enable_thinking"))) p->thinking = THINKING_OFF;
    if (p->thinking == THINKING_OFF) p->thinking_tokens = 0;
    if (p->thinking != THINKING_DEFAULT) {
        rc = set_default(vars, "enable_thinking", json_boolean(p->thinking == THINKING_ON), e);
        if (rc == 0) rc = set_default(vars, "thinking", json_boolean(p->thinking == THINKING_ON), e);
    }
    if (rc == 0 && p->effort) rc = set_default(vars, "reasoning_effort", json_string(p->effort), e);
    if (rc == 0 && json_object_size(vars) > 0) rc = dump(vars, &p->kwargs, e);
    json_decref(vars);
    return rc;
}
