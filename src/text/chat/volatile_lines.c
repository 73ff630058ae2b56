/* text/chat/volatile_lines.c - see the header. */
#include "text/chat/volatile_lines.h"
#include <string.h>
#include <strings.h>

struct text_range {
    const char *s;
    size_t n;
};

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* "name=value;" one or more times, separated by spaces; the last semicolon may be missing. */
static bool is_pairs(struct text_range v)
{
    size_t i = 0, n_pairs = 0;

    while (i < v.n) {
        size_t begin = i;

        while (i < v.n && (is_word(v.s[i]) || v.s[i] == '_')) i++;
        if (i == begin || i == v.n || v.s[i++] != '=') return false;
        while (i < v.n && (is_word(v.s[i]) || strchr("._-", v.s[i]))) i++;
        if (i < v.n && v.s[i++] != ';') return false;
        while (i < v.n && v.s[i] == ' ') i++;
        n_pairs++;
    }
    return n_pairs > 0;
}

static bool is_uuid(struct text_range v)
{
    if (v.n != 36) return false;
    for (size_t i = 0; i < v.n; i++)
        if (i == 8 || i == 13 || i == 18 || i == 23 ? v.s[i] != '-' : !is_hex(v.s[i])) return false;
    return true;
}

/* A UUID, 16 or more hexadecimal digits, or such as req_011CS4T7Yh6ZTjwmNuZQpu1n. */
static bool is_id(struct text_range v)
{
    const size_t n_least = 16;
    bool hex = v.n >= n_least, named = v.n >= 4 + n_least && memcmp(v.s, "req_", 4) == 0;

    for (size_t i = 0; i < v.n && hex; i++) hex = is_hex(v.s[i]);
    for (size_t i = 4; i < v.n && named; i++) named = is_word(v.s[i]);
    return hex || named || is_uuid(v);
}

static const struct rule {
    const char *name;
    bool (*value)(struct text_range v);
} rules[] = {
    {"x-anthropic-billing-header", is_pairs},
    {"x-request-id", is_id},
    {"request-id", is_id},
    {"request_id", is_id},
    {"request id", is_id},
    {"x-correlation-id", is_id},
    {"x-trace-id", is_id},
    {"trace_id", is_id},
};

bool volatile_line_is(const char *line, size_t n)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        size_t n_name = strlen(rules[i].name);
        struct text_range value = {line + n_name + 1, n - n_name - 1};

        if (n <= n_name + 1 || line[n_name] != ':' || strncasecmp(line, rules[i].name, n_name) != 0) continue;
        while (value.n > 0 && *value.s == ' ') value.s++, value.n--;
        while (value.n > 0 && value.s[value.n - 1] == ' ') value.n--;
        if (rules[i].value(value)) return true;
    }
    return false;
}

/* kept: the text without its volatile lines. False: there is none. */
static bool strip(const char *s, size_t n, struct buf *kept, struct buf *report)
{
    bool any = false;

    for (size_t i = 0, next; i < n; i = next) {
        const char *end = memchr(s + i, '\n', n - i);
        size_t n_line = end ? (size_t)(end - s) - i : n - i;

        next = i + n_line + (end != NULL);
        if (n_line > 0 && s[i + n_line - 1] == '\r') n_line--;
        if (!volatile_line_is(s + i, n_line)) {
            buf_append(kept, s + i, next - i);
            continue;
        }
        any = true;
        buf_append(report, s + i, n_line);
        buf_puts(report, "\n");
    }
    return any;
}

/* *now: the text without its volatile lines as a new string, or NULL when it has none. */
static rd_status strip_string(const json_t *text, struct buf *report, json_t **now)
{
    struct buf kept = {0};
    rd_status st = RD_OK;

    *now = NULL;
    if (strip(json_string_value(text), json_string_length(text), &kept, report)) {
        *now = json_stringn_nocheck(kept.n ? kept.data : "", kept.n);
        if (!*now || kept.failed || report->failed) st = RD_E_NOMEM;
    }
    if (st != RD_OK) {
        json_decref(*now);
        *now = NULL;
    }
    buf_deinit(&kept);
    return st;
}

/* Empty is set when nothing is left of the message's text. */
static rd_status strip_message(json_t *message, struct buf *report, bool *empty)
{
    json_t *content = json_object_get(message, "content"), *now;
    rd_status st;

    *empty = false;
    if (json_is_string(content)) {
        st = strip_string(content, report, &now);
        if (st != RD_OK || !now) return st;
        *empty = json_string_length(now) == 0;
        return json_object_set_new_nocheck(message, "content", now) == 0 ? RD_OK : RD_E_NOMEM;
    }
    for (size_t i = 0; i < json_array_size(content);) {
        json_t *part = json_array_get(content, i), *text = json_object_get(part, "text");

        st = json_is_string(text) ? strip_string(text, report, &now) : (now = NULL, RD_OK);
        if (st != RD_OK) return st;
        if (now && json_string_length(now) == 0) {
            json_decref(now);
            json_array_remove(content, i);
            *empty = json_array_size(content) == 0;
            continue;
        }
        if (now && json_object_set_new_nocheck(part, "text", now) != 0) return RD_E_NOMEM;
        i++;
    }
    return RD_OK;
}

static bool is_instruction(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));

    return role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
}

rd_status volatile_lines_leave_out(json_t *messages, struct buf *report)
{
    for (size_t i = 0; i < json_array_size(messages);) {
        json_t *message = json_array_get(messages, i);
        bool empty = false;
        rd_status st = is_instruction(message) ? strip_message(message, report, &empty) : RD_OK;

        if (st != RD_OK) return st;
        if (empty)
            json_array_remove(messages, i);
        else
            i++;
    }
    return RD_OK;
}
