/* server/routes/load_settings.c - GET, POST /v1/settings: what the next load of a model takes; that load, now; and to
 * keep it for the server's next start.
 *
 * The values are kept and checked by whoever loads models (struct server_settings): here they are texts with names.
 */
#include <stdio.h>
#include <string.h>
#include "server/dialects/request_body.h"
#include "server/routes/model_gate.h"
#include "server/routes/routes.h"

enum { MAX_SET = 16, NUMBER_BYTES = 32 };

static bool has_settings(struct http_conn *c)
{
    struct api_error e;

    if (!route_for_owner(c, "the settings are")) return false;
    if (server_of(c)->settings) return true;
    api_error_set(&e, 501, NULL, "this server's settings are fixed");
    http_reply_error(c, &e);
    return false;
}

void route_settings(struct http_conn *c)
{
    struct server *s = server_of(c);
    struct buf body = {0};

    if (!has_settings(c)) return;
    buf_printf(&body, "{\"object\":\"settings\",\"reloading\":%s,",
               model_gate_is_reloading(s->gate) ? "true" : "false");
    s->settings->put(s->settings->user, &body);
    buf_puts(&body, "}");
    http_reply_json(c, &body);
    buf_deinit(&body);
}

/* A value as it would be typed; NULL in *text: null. */
static int take_value(const char *name, const json_t *v, char number[NUMBER_BYTES], const char **text,
                      struct api_error *e)
{
    *text = number;
    if (json_is_null(v))
        *text = NULL;
    else if (json_is_integer(v))
        snprintf(number, NUMBER_BYTES, "%lld", (long long)json_integer_value(v));
    else if (json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v))
        *text = json_string_value(v);
    else
        return api_error_set(e, 400, name, "%.40s: a string, a whole number or null wanted", name);
    return 0;
}

/* values NULL: none. */
static int set(struct server *s, const json_t *values, bool save, struct api_error *e)
{
    struct server_setting list[MAX_SET];
    char numbers[MAX_SET][NUMBER_BYTES];
    struct rd_error err = {RD_OK, ""};
    const char *name;
    json_t *value;
    size_t n = 0, at = 0;

    json_object_foreach((json_t *)(uintptr_t)values, name, value)
    {
        if (n == MAX_SET) return api_error_set(e, 400, "settings", "settings: at most %d", MAX_SET);
        list[n].name = name;
        if (take_value(name, value, numbers[n], &list[n].text, e)) return -1;
        n++;
    }
    if ((n == 0 && !save) || s->settings->set(s->settings->user, list, n, save, &at, &err) == RD_OK) return 0;
    if (at == n) return api_error_set(e, 409, "save", "save: %.300s; nothing was changed", err.text);
    return api_error_set(e, 400, list[at].name, "%.60s: %s", list[at].name, err.text);
}

void route_settings_set(struct http_conn *c)
{
    struct server *s = server_of(c);
    const json_t *values, *reload, *save;
    json_t *body = NULL;
    struct api_error e;
    int rc;

    if (!has_settings(c)) return;
    rc = request_json(c, &body, &e);
    values = json_object_get(body, "settings");
    reload = json_object_get(body, "reload");
    save = json_object_get(body, "save");
    if (rc == 0 && !json_is_object(body)) rc = api_error_set(&e, 400, NULL, "an object wanted");
    if (rc == 0 && values && !json_is_object(values))
        rc = api_error_set(&e, 400, "settings", "settings: an object of names and values wanted");
    if (rc == 0 && reload && !json_is_boolean(reload)) rc = api_error_set(&e, 400, "reload", "reload: a bool wanted");
    if (rc == 0 && save && !json_is_boolean(save)) rc = api_error_set(&e, 400, "save", "save: a bool wanted");
    if (rc == 0) rc = set(s, values, json_is_true(save), &e);
    if (rc == 0 && json_is_true(reload)) model_gate_reload(s->gate);
    json_decref(body);
    if (rc)
        http_reply_error(c, &e);
    else
        route_settings(c);
}
