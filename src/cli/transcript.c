/* cli/transcript.c - a JSON array of messages. */
#include "cli/transcript.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/cli_model.h"
#include "cli/image_part.h"

static const char *text_of(const json_t *message, const char *key)
{
    return json_string_value(json_object_get(message, key));
}

static bool has_role(const json_t *message, const char *role)
{
    const char *is = text_of(message, "role");

    return is && strcmp(is, role) == 0;
}

static json_t *make_message(const char *role, const char *text, size_t n)
{
    return json_pack("{s:s, s:o}", "role", role, "content", json_stringn(text, n));
}

bool transcript_init(struct transcript *c, const char *system)
{
    c->images = NULL;
    c->messages = json_array();
    return c->messages && (!system || transcript_set_system(c, system));
}

static void drop_images(struct transcript *c)
{
    json_decref(c->images);
    c->images = NULL;
}

void transcript_deinit(struct transcript *c)
{
    json_decref(c->messages);
    c->messages = NULL;
    drop_images(c);
}

const char *transcript_system(const struct transcript *c)
{
    const json_t *first = json_array_get(c->messages, 0);

    return has_role(first, "system") ? text_of(first, "content") : NULL;
}

bool transcript_set_system(struct transcript *c, const char *text)
{
    bool has = transcript_system(c) != NULL;

    if (!*text) return !has || json_array_remove(c->messages, 0) == 0;
    if (has) return json_array_set_new(c->messages, 0, make_message("system", text, strlen(text))) == 0;
    return json_array_insert_new(c->messages, 0, make_message("system", text, strlen(text))) == 0;
}

bool transcript_attach(struct transcript *c, const char *path)
{
    struct buf part = {.n = 0};
    bool ok = image_part_put(&part, path);

    if (ok && !c->images) c->images = json_array();
    if (ok && (part.failed || json_array_append_new(c->images, json_loadb(part.data, part.n, 0, NULL)))) {
        cli_fail("%s does not fit into memory", path);
        ok = false;
    }
    buf_deinit(&part);
    return ok;
}

bool transcript_add(struct transcript *c, const char *role, const char *text, size_t n)
{
    if (c->images && strcmp(role, "user") == 0) {
        json_t *parts = c->images;

        c->images = NULL;
        if (json_array_append_new(parts, json_pack("{s:s, s:o}", "type", "text", "text", json_stringn(text, n))) == 0)
            return json_array_append_new(c->messages, json_pack("{s:s, s:o}", "role", role, "content", parts)) == 0;
        json_decref(parts);
        return false;
    }
    return json_array_append_new(c->messages, make_message(role, text, n)) == 0;
}

bool transcript_undo(struct transcript *c, struct buf *question)
{
    size_t n = json_array_size(c->messages);

    while (n > 0 && !has_role(json_array_get(c->messages, n - 1), "user")) n--;
    if (n == 0) return false;
    if (question) {
        json_t *text = json_object_get(json_array_get(c->messages, n - 1), "content");

        if (json_array_size(text) > 0) { /* images, then the text */
            drop_images(c);
            c->images = json_copy(text);
            text = json_object_get(json_array_get(text, json_array_size(text) - 1), "text");
            if (c->images) json_array_remove(c->images, json_array_size(c->images) - 1);
        }
        buf_clear(question);
        buf_append(question, json_string_value(text), json_string_length(text));
    }
    while (json_array_size(c->messages) >= n) json_array_remove(c->messages, json_array_size(c->messages) - 1);
    return true;
}

static int append(const char *text, size_t n, void *user)
{
    struct buf *out = user;

    buf_append(out, text, n);
    return out->failed ? -1 : 0;
}

bool transcript_dump(const struct transcript *c, struct buf *json)
{
    buf_clear(json);
    return json_dump_callback(c->messages, append, json, JSON_COMPACT) == 0;
}

bool transcript_save(const struct transcript *c, const char *model, const char *path, bool replace)
{
    json_t *file = json_pack("{s:s, s:O}", "model", model, "messages", c->messages);
    struct buf text = {.n = 0};
    bool ok = file && json_dump_callback(file, append, &text, JSON_INDENT(1)) == 0;
    int fd = -1;

    json_decref(file);
    buf_putc(&text, '\n');
    if (ok && !text.failed) {
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (replace ? O_TRUNC : O_EXCL), 0600);
        ok = fd >= 0 && write(fd, text.data, text.n) == (ssize_t)text.n;
        if (fd >= 0) ok = close(fd) == 0 && ok;
        if (!ok) cli_fail("%s: %s", path, errno == EEXIST ? "is there already; choose another name" : strerror(errno));
    } else {
        ok = false;
        cli_fail("out of memory");
    }
    buf_deinit(&text);
    return ok;
}

/* An array of {"role": text, "content": text}. */
static bool is_conversation(const json_t *messages)
{
    size_t i;
    const json_t *message;

    if (!json_is_array(messages)) return false;
    json_array_foreach((json_t *)messages, i,
                       message) if (!text_of(message, "role") || !text_of(message, "content")) return false;
    return true;
}

bool transcript_load(struct transcript *c, const char *path)
{
    struct rd_error err = {RD_OK, ""};
    json_error_t why;
    json_t *file, *messages;
    char *text = NULL;
    size_t n = 0;
    rd_status st = file_read_all(path, LIMIT_BODY_BYTES, &text, &n, &err);

    if (st != RD_OK) {
        cli_fail_at(path, st, &err);
        return false;
    }
    file = json_loadb(text, n, JSON_ALLOW_NUL, &why);
    mem_free(text);
    messages = json_is_object(file) ? json_object_get(file, "messages") : file;
    if (!is_conversation(messages)) {
        if (!file)
            cli_fail("%s: not JSON: line %d: %s", path, why.line, why.text);
        else
            cli_fail("%s: wanted messages, each with \"role\" and \"content\" as text", path);
        json_decref(file);
        return false;
    }
    json_incref(messages);
    json_decref(c->messages);
    c->messages = messages;
    json_decref(file);
    return true;
}
