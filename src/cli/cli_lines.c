/* cli/cli_lines.c - lines of JSON in, lines of JSON out. */
#include "cli/cli_lines.h"
#include <stdio.h>
#include <string.h>
#include "base/buf.h"
#include "base/limits.h"
#include "cli/args.h"
#include "cli/cli_model.h"

void cli_answer_error(const char *text)
{
    struct buf out;

    buf_init(&out);
    buf_put_json(&out, text, strlen(text));
    printf("{\"error\": \"%s\"}\n", out.data ? out.data : "out of memory");
    buf_deinit(&out);
}

static void answer_line(const struct buf *text, void (*answer)(void *user, const json_t *line), void *user)
{
    json_error_t why;
    json_t *line;
    char message[256];

    if (text->failed) {
        cli_answer_error("the line is too long");
        return;
    }
    line = json_loadb(text->data ? text->data : "", text->n, JSON_ALLOW_NUL, &why);
    if (!line) {
        snprintf(message, sizeof(message), "not JSON: %s", why.text);
        cli_answer_error(message);
        return;
    }
    answer(user, line);
    json_decref(line);
}

int cli_answer_lines(void (*answer)(void *user, const json_t *line), void *user)
{
    struct buf line;
    int c;

    buf_init(&line);
    line.limit = LIMIT_BODY_BYTES;
    do {
        c = getc(stdin);
        if (c != '\n' && c != EOF) {
            buf_putc(&line, (char)c);
            continue;
        }
        if (line.n || line.failed) {
            answer_line(&line, answer, user);
            fflush(stdout); /* whoever asks may wait for each answer */
        }
        if (line.failed) {
            buf_deinit(&line);
            line.limit = LIMIT_BODY_BYTES;
        }
        buf_clear(&line);
    } while (c != EOF);
    buf_deinit(&line);
    return ferror(stdin) ? cli_fail("standard input cannot be read") : EXIT_DONE;
}
