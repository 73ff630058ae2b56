/* cli/variables.c - see variables.h. */
#include "cli/variables.h"
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/os_process.h"
#include "cli/cli_facts.h"
#include "cli/commands.h"
#include "cli/settings.h"

enum { NAME_BYTES = 64 };

/* RADISH_SERVICE_HOST, RADISH_PORT_8000_TCP_ADDR, RADISH_WEB_SERVICE_PORT: of a service called radish or radish-web. */
static bool is_of_kubernetes(const char *name, const char *value)
{
    const char *port = strstr(name, "_PORT_");

    return strstr(name, "_SERVICE_HOST") || strstr(name, "_SERVICE_PORT") || strncmp(value, "tcp://", 6) == 0 ||
           strncmp(value, "udp://", 6) == 0 || (port && port[6] >= '0' && port[6] <= '9');
}

static size_t known_variables(char names[][NAME_BYTES], size_t cap)
{
    size_t n = 0;

    for (const struct variable_row *v = variable_rows; v->name && n < cap; v++)
        snprintf(names[n++], NAME_BYTES, "%s", v->name);
    for (const char *const *v = other_variables; *v && n < cap; v++) snprintf(names[n++], NAME_BYTES, "%s", *v);
    FOR_EACH_ARG(&cmd_serve, group, a)
    if (n < cap) settings_variable(a, names[n++], NAME_BYTES);
    return n;
}

void variables_warn(void)
{
    static char known[SETTINGS_MOST_ROWS + 64][NAME_BYTES];
    const char *names[SETTINGS_MOST_ROWS + 64];
    size_t n = known_variables(known, SETTINGS_MOST_ROWS + 64);

    for (size_t i = 0; i < n; i++) names[i] = known[i];
    for (char **at = os_environment(); at && *at; at++) {
        size_t n_name = strcspn(*at, "=");
        char name[NAME_BYTES], quoted[NAME_BYTES * 4];
        const char *near, *value = *at + n_name + ((*at)[n_name] == '=');
        bool is_known = false;

        if (strncmp(*at, "RADISH_", 7) != 0 || n_name >= sizeof(name)) continue;
        snprintf(name, sizeof(name), "%.*s", (int)n_name, *at);
        for (size_t i = 0; i < n && !is_known; i++) is_known = strcmp(name, names[i]) == 0;
        if (is_known || is_of_kubernetes(name, value)) continue;
        near = args_nearest(name, names, n);
        fprintf(stderr, "radish: the environment has %s, which radish does not know%s%s%s\n",
                error_quote(quoted, sizeof(quoted), name, strlen(name)), near ? "; did you mean " : "",
                near ? near : "", near ? "?" : "");
    }
}
