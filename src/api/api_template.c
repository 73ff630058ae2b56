/* api/api_template.c - a chat template on its own: source and variables to text, without a model. */
#include <jansson.h>
#include "api/api_state.h"
#include "base/clock.h"
#include "base/error.h"
#include "text/jinja/jinja.h"

rd_status rd_template_render(const char *source, size_t n_source, const char *context_json, size_t n_context,
                             int64_t now_s, char **text, size_t *n_bytes, struct rd_error *err)
{
    json_error_t why = {.text = ""};
    struct jinja *template = NULL;
    json_t *context = NULL;
    rd_status st;

    if (context_json) {
        context = json_loadb(context_json, n_context, JSON_ALLOW_NUL, &why);
        if (!context && json_error_code(&why) == json_error_out_of_memory)
            return error_set(err, RD_E_NOMEM, "context: out of memory");
        if (!context) return error_set(err, RD_E_INVALID, "context: not JSON: %.200s", why.text);
        if (!json_is_object(context)) {
            json_decref(context);
            return error_set(err, RD_E_INVALID, "context: must be an object");
        }
    }
    if (now_s < 0) now_s = clock_wall_s(clock_system());
    st = jinja_create(source, n_source, &template, err);
    if (st == RD_OK) st = jinja_render(template, context, now_s, text, n_bytes, err);
    jinja_destroy(template);
    json_decref(context);
    return st;
}
