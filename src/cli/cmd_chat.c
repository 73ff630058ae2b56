/* cli/cmd_chat.c - `radish chat`: a conversation in the terminal. Every turn sends the whole conversation; the tree has
 * all of it but the new message. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/limits.h"
#include "cli/cli_flags.h"
#include "cli/cli_model.h"
#include "cli/cli_stream.h"
#include "cli/commands.h"

struct chat_flags {
    struct rd_options engine;
    struct sample_flags sample;
    const char *system;
    bool verbose;
};

static const char commands_text[] =
    "/clear starts afresh, /exit or Ctrl-D ends, Ctrl-C stops an answer.\n"
    "\"\"\" begins and ends a message of several lines.";

static const struct arg chat_args[] = {
    {.flag = "--system", .kind = ARG_TEXT, .value = "TEXT", .at = offsetof(struct chat_flags, system),
     .fallback_text = "none", .help = "system message before the conversation"},
    {.flag = "--verbose", .letter = 'v', .kind = ARG_SWITCH, .at = offsetof(struct chat_flags, verbose),
     .help = "a line on stderr after each answer: tokens, cached tokens, milliseconds"},
    {0}
};

static const struct arg_group chat_groups[] = {
    {"Conversation", chat_args, 0},
    {"Sampling", sample_args, offsetof(struct chat_flags, sample)},
    {"Model and memory", context_args, offsetof(struct chat_flags, engine)},
    {"Model and memory", engine_args, offsetof(struct chat_flags, engine)},
    {NULL, NULL, 0}
};

/* history is the messages array without its closing bracket. */
static void add_message(struct buf *history, const char *role, const char *text, size_t n)
{
    buf_printf(history, "%s{\"role\":\"%s\",\"content\":\"", history->n > 1 ? "," : "", role);
    buf_put_json(history, text, n);
    buf_puts(history, "\"}");
}

static void start_history(struct buf *history, const char *system)
{
    buf_clear(history);
    buf_putc(history, '[');
    if (system) add_message(history, "system", system, strlen(system));
}

enum line { LINE_END, LINE_TEXT, LINE_INTERRUPTED };

/* One line of standard input without its end. Ctrl-C throws it away. */
static enum line read_line(struct buf *line, bool terminal)
{
    char piece[4096];

    buf_clear(line);
    for (;;) {
        if (terminal && !stream_wait_input(STDIN_FILENO) && stream_interrupted()) return LINE_INTERRUPTED;
        errno = 0;
        if (!fgets(piece, sizeof(piece), stdin)) {
            bool interrupted = ferror(stdin) && errno == EINTR;
            clearerr(stdin);
            if (interrupted && stream_interrupted()) return LINE_INTERRUPTED;
            return line->n ? LINE_TEXT : LINE_END;
        }
        buf_puts(line, piece);
        if (line->n && line->data[line->n - 1] == '\n') {
            line->data[--line->n] = 0;
            return LINE_TEXT;
        }
    }
}

static bool take_quotes(struct buf *message)
{
    if (message->n < 3 || memcmp(message->data + message->n - 3, "\"\"\"", 3) != 0) return false;
    message->n -= 3;
    if (message->n && message->data[message->n - 1] == '\n') message->n--;
    message->data[message->n] = 0;
    return true;
}

/* A line; or, where it begins with three quotes, all up to a line that ends with three. */
static enum line read_message(struct buf *message, struct buf *line, bool terminal)
{
    enum line got = read_line(message, terminal);
    bool is_open = got == LINE_TEXT && message->n >= 3 && memcmp(message->data, "\"\"\"", 3) == 0;

    if (!is_open) return got;
    message->n -= 3;
    memmove(message->data, message->data + 3, message->n + 1);
    while (!message->failed && !take_quotes(message)) {
        if (terminal) {
            fprintf(stderr, "... ");
            fflush(stderr);
        }
        got = read_line(line, terminal);
        if (got == LINE_INTERRUPTED) return got;
        if (got == LINE_END) return LINE_TEXT;
        if (message->n) buf_putc(message, '\n');
        buf_append(message, line->data ? line->data : "", line->n);
    }
    return LINE_TEXT;
}

/* "/word" alone is a command, known or not; with anything behind it, or before it, it is text. */
static bool is_command(const struct buf *message)
{
    static const char letters[] = "?abcdefghijklmnopqrstuvwxyz";

    return message->n > 1 && message->data[0] == '/' && strspn(message->data + 1, letters) == message->n - 1;
}

/* One user message and its answer. A failed or cancelled turn leaves the history as it was, but for what was said. */
static rd_status turn(rd_engine *engine, const struct chat_flags *f, struct buf *history, const struct buf *line,
                      struct buf *said)
{
    struct rd_request_options q;
    struct rd_usage usage;
    size_t before = history->n;
    rd_status st;

    add_message(history, "user", line->data, line->n);
    buf_putc(history, ']');
    if (history->failed) return RD_E_NOMEM;
    rd_request_options_default(&q);
    sample_flags_apply(&f->sample, &q);
    q.messages_json = history->data;
    buf_clear(said);
    st = stream_request(engine, &q, said, &usage, NULL);
    printf("\n\n");
    if (f->verbose && usage.n_prompt) stream_print_usage(&usage);
    stream_interrupted();
    history->n--;                                           /* the bracket */
    if (st != RD_OK && st != RD_E_CANCELLED) history->n = before;
    else add_message(history, "assistant", said->data ? said->data : "", said->n);
    history->data[history->n] = 0;
    return st;
}

static int converse(rd_engine *engine, const struct chat_flags *f)
{
    bool terminal = isatty(STDIN_FILENO);
    struct buf history, message, line, said;
    enum line got;
    int rc = EXIT_DONE;

    buf_init(&history);
    buf_init(&message);
    buf_init(&line);
    buf_init(&said);
    history.limit = message.limit = line.limit = LIMIT_BODY_BYTES;
    start_history(&history, f->system);
    if (terminal) fprintf(stderr, "%s\n\n", commands_text);
    for (;;) {
        if (terminal) {
            fprintf(stderr, "> ");
            fflush(stderr);
        }
        got = read_message(&message, &line, terminal);
        if (got == LINE_END || (got == LINE_TEXT && message.n && strcmp(message.data, "/exit") == 0)) break;
        if (got == LINE_INTERRUPTED) {
            fprintf(stderr, "\n");
            continue;
        }
        if (message.n == 0) continue;
        if (strcmp(message.data, "/clear") == 0) start_history(&history, f->system);
        else if (is_command(&message)) fprintf(stderr, "%s\n\n", commands_text);
        else turn(engine, f, &history, &message, &said);
        if (message.failed || line.failed || history.failed) {
            rc = cli_fail("the conversation is longer than %u MiB, or memory is out", LIMIT_BODY_BYTES >> 20);
            break;
        }
    }
    if (terminal && got == LINE_END) fprintf(stderr, "\n");
    buf_deinit(&said);
    buf_deinit(&line);
    buf_deinit(&message);
    buf_deinit(&history);
    return rc;
}

static int run_chat(const struct command *self, int argc, char **argv)
{
    struct chat_flags f;
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words;
    rd_engine *engine;
    int rc;

    memset(&f, 0, sizeof(f));
    rd_options_default(&f.engine);
    rc = args_parse(self, argc, argv, &f, words, &n_words);
    if (rc != ARGS_GO) return rc;
    rd_set_log(RD_LOG_WARN, NULL, NULL);
    engine = cli_open(&f.engine, words[0]);
    if (!engine) return EXIT_FAILED;
    stream_catch_interrupt();
    rc = converse(engine, &f);
    rd_close(engine);
    return rc;
}

const struct command cmd_chat = {
    .name = "chat", .section = "Talk to a model", .summary = "a conversation in the terminal", .words = "MODEL",
    .about = "Type a line, read the answer. /clear starts a new conversation, /exit or Ctrl-D ends, Ctrl-C stops an "
             "answer. A message of several lines begins with \"\"\" and ends with \"\"\".",
    .examples = "  radish chat smollm2\n  radish chat qwen2.5-coder-1.5b --system \"Answer in one sentence.\" -v\n",
    .groups = chat_groups, .min_words = 1, .max_words = 1, .run = run_chat,
};
