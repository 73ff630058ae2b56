/* cli/cmd_chat.c - `radish chat`: a conversation in the terminal. Every turn sends the whole conversation; the tree has
 * all of it except the new message. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/limits.h"
#include "base/utf8.h"
#include "cli/adapter_flags.h"
#include "cli/cli_flags.h"
#include "cli/cli_model.h"
#include "cli/cli_stream.h"
#include "cli/commands.h"
#include "cli/settings.h"
#include "cli/transcript.h"
#include "cli/line_editor.h"
#include "cli/text_wrap.h"

struct chat_flags {
    struct rd_options engine;
    struct sample_flags sample;
    struct adapter_flags adapters;
    const char *system;
    bool verbose;
    const char *config;
    struct settings settings;
};

struct chat {
    const struct chat_flags *f;
    rd_engine *engine;
    char model[CLI_PATH_BYTES];
    const char *first;          /* the model that the chat began with */
    char saved[CLI_PATH_BYTES]; /* where /save wrote to, or /load read from; "": nowhere yet */
    struct transcript talk;
    struct line_editor *editor; /* NULL: lines as they come */
    bool terminal;              /* a person types */
    struct buf said, json;
    uint32_t n_retries; /* of the last question */
    int rc;
};

struct chat_command {
    const char *name, *alias; /* alias: NULL, or another name */
    const char *words;        /* what may follow it; NULL: nothing */
    const char *help;
    bool (*run)(struct chat *chat, const char *words); /* false: the chat ends */
};

static const struct arg chat_args[] = {
    {.flag = "--system",
     .kind = ARG_TEXT,
     .value = "TEXT",
     .at = offsetof(struct chat_flags, system),
     .fallback_text = "none",
     .help = "system message before the conversation"},
    {.flag = "--verbose",
     .letter = 'v',
     .kind = ARG_SWITCH,
     .at = offsetof(struct chat_flags, verbose),
     .help = "a line on stderr after each answer: tokens, cached tokens, milliseconds"},
    {0}};

static const struct arg_group chat_groups[] = {
    {"Conversation", chat_args, 0},
    {"Configuration", config_args, offsetof(struct chat_flags, config)},
    {"Sampling", sample_args, offsetof(struct chat_flags, sample)},
    {"Model and memory", context_args, offsetof(struct chat_flags, engine)},
    {"Model and memory", engine_args, offsetof(struct chat_flags, engine)},
    {"Model and memory", adapter_args, offsetof(struct chat_flags, adapters)},
    {NULL, NULL, 0}};

/* A message to the person, wrapped as answers are. */
static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    struct text_wrap wrap;
    char text[2048];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    text_wrap_init(&wrap, stderr, isatty(STDERR_FILENO) ? text_wrap_columns(STDERR_FILENO) : 0);
    text_wrap_put(&wrap, text, utf8_valid_prefix(text, strlen(text)));
}

/* ---- a turn ---- */

static uint32_t context_of(const struct chat *chat)
{
    struct rd_info info = {.size = sizeof(info)};

    rd_get_info(chat->engine, &info);
    return info.n_ctx;
}

/* Below an answer, where a person reads it. */
static void say_turn(const struct chat *chat, rd_status st, enum stream_end end, const struct rd_usage *u)
{
    uint32_t n_ctx = context_of(chat), n_used = u->n_prompt + u->n_generated;

    if (st == RD_E_CONTEXT || end == STREAM_FULL)
        say("The context of %u tokens is full. /undo takes the last question back, /clear starts afresh "
            "(/save first keeps the conversation); --ctx N makes it longer.\n",
            n_ctx);
    if (end == STREAM_CUT)
        say("The answer was cut after %u tokens (--max-tokens); say \"go on\", or /retry.\n", u->n_generated);
    if (chat->f->verbose && u->n_prompt)
        stream_print_usage(u);
    else if (chat->terminal && u->n_generated)
        say("[%u tokens, %.1f tok/s; %u of %u prompt tokens from the cache; context %u %% full]\n", u->n_generated,
            u->predicted_ms > 0 ? u->n_generated * 1000.0 / u->predicted_ms : 0, u->n_cached, u->n_prompt,
            (uint32_t)((uint64_t)n_used * 100 / (n_ctx ? n_ctx : 1)));
    if (chat->terminal) fputc('\n', stderr);
}

/* One user message and its answer. A turn that failed, or was stopped before its first word, leaves the conversation as
 * it was. */
static void turn(struct chat *chat, const char *text, size_t n)
{
    struct rd_request_options q;
    struct rd_usage usage;
    enum stream_end end = STREAM_DONE;
    rd_status st = RD_E_NOMEM;

    rd_request_options_default(&q);
    sample_flags_apply(&chat->f->sample, &q);
    q.sampling.seed += chat->n_retries;
    buf_clear(&chat->said);
    memset(&usage, 0, sizeof(usage));
    if (transcript_add(&chat->talk, "user", text, n) && transcript_dump(&chat->talk, &chat->json)) {
        q.messages_json = chat->json.data;
        st = stream_request(chat->engine, &q, &chat->said, &usage, &end);
        if (st == RD_OK || st == RD_E_CANCELLED) printf(chat->terminal ? "\n" : "\n\n");
        fflush(stdout);
    } else {
        cli_fail("the conversation is longer than %u MiB, or memory is out", LIMIT_BODY_BYTES >> 20);
        buf_deinit(&chat->json);
    }
    stream_interrupted();
    if (st == RD_OK || (st == RD_E_CANCELLED && chat->said.n))
        transcript_add(&chat->talk, "assistant", chat->said.data ? chat->said.data : "", chat->said.n);
    else
        transcript_undo(&chat->talk, NULL);
    if (st != RD_OK && st != RD_E_CANCELLED) chat->rc = EXIT_FAILED;
    say_turn(chat, st, end, &usage);
}

/* ---- commands ---- */

static bool do_help(struct chat *chat, const char *words);

static bool do_clear(struct chat *chat, const char *words)
{
    const char *system = transcript_system(&chat->talk);
    struct transcript fresh;

    if (!transcript_init(&fresh, system)) {
        transcript_deinit(&fresh);
        cli_fail("out of memory");
        return true;
    }
    transcript_deinit(&chat->talk);
    chat->talk = fresh;
    if (chat->terminal) say("A new conversation%s.\n\n", system ? ", with the same system message" : "");
    return true;
}

static bool do_system(struct chat *chat, const char *words)
{
    const char *system = transcript_system(&chat->talk);

    if (!words) {
        say("%s%s\n\n", system ? "The system message: " : "There is no system message.", system ? system : "");
        return true;
    }
    if (!transcript_set_system(&chat->talk, strcmp(words, "-") == 0 ? "" : words))
        cli_fail("out of memory");
    else if (chat->terminal)
        say("From the next message on.\n\n");
    return true;
}

static bool do_model(struct chat *chat, const char *words)
{
    char path[CLI_PATH_BYTES];
    struct rd_options options = chat->f->engine;

    if (!words) {
        say("The model: %s\n\n", chat->model);
        return true;
    }
    if (!cli_find_model_for(&options, words, path)) return true;
    if (strcmp(words, chat->first) != 0) options.n_adapters = 0; /* they are the first one's */
    rd_close(chat->engine);                                      /* first: two models may not fit */
    chat->engine = cli_open(&options, words);
    if (chat->engine) {
        snprintf(chat->model, sizeof(chat->model), "%s", words);
        if (chat->terminal) say("%s goes on with this conversation.\n\n", words);
        return true;
    }
    options = chat->f->engine;
    if (strcmp(chat->model, chat->first) != 0) options.n_adapters = 0;
    chat->engine = cli_open(&options, chat->model);
    if (chat->engine)
        say("Still %s.\n\n", chat->model);
    else
        chat->rc = EXIT_FAILED;
    return chat->engine != NULL;
}

static bool do_save(struct chat *chat, const char *words)
{
    char name[CLI_PATH_BYTES];
    time_t now = time(NULL);
    struct tm local;

    if (words)
        snprintf(name, sizeof(name), "%s", words);
    else if (*chat->saved)
        snprintf(name, sizeof(name), "%s", chat->saved);
    else
        strftime(name, sizeof(name), "chat-%Y%m%d-%H%M%S.json", localtime_r(&now, &local));
    if (!transcript_save(&chat->talk, chat->model, name, strcmp(name, chat->saved) == 0)) return true;
    snprintf(chat->saved, sizeof(chat->saved), "%s", name);
    say("Saved to %s.\n\n", name);
    return true;
}

static bool do_load(struct chat *chat, const char *words)
{
    if (!words) {
        cli_fail("/load wants the name of a file that /save wrote");
        return true;
    }
    if (!transcript_load(&chat->talk, words)) return true;
    snprintf(chat->saved, sizeof(chat->saved), "%s", words);
    say("%zu messages from %s.\n\n", json_array_size(chat->talk.messages), words);
    return true;
}

static bool do_image(struct chat *chat, const char *words)
{
    if (!words)
        cli_fail("/image wants the name of a JPEG, PNG or WebP file");
    else if (transcript_attach(&chat->talk, words))
        say("The next question goes with %s.\n\n", words);
    return true;
}

static bool do_undo(struct chat *chat, const char *words)
{
    if (!transcript_undo(&chat->talk, NULL))
        say("There is nothing to take back.\n\n");
    else if (chat->terminal)
        say("The last question and its answer are gone.\n\n");
    return true;
}

static bool do_retry(struct chat *chat, const char *words)
{
    struct buf question = {.n = 0};

    if (!transcript_undo(&chat->talk, &question) || question.failed) {
        say("There is no question yet.\n\n");
    } else {
        if (chat->f->sample.sampling.temperature <= 0) say("(at temperature 0 the answer will be the same)\n");
        chat->n_retries++;
        turn(chat, question.data ? question.data : "", question.n);
    }
    buf_deinit(&question);
    return true;
}

static bool do_quit(struct chat *chat, const char *words)
{
    return false;
}

static const struct chat_command commands[] = {
    {"/help", "/?", NULL, "this list", do_help},
    {"/clear", "/new", NULL, "a new conversation, with the same system message", do_clear},
    {"/retry", NULL, NULL, "another answer to the last question", do_retry},
    {"/undo", NULL, NULL, "takes the last question and its answer back", do_undo},
    {"/system", NULL, "TEXT", "sets the system message; \"-\" removes it; without TEXT: shows it", do_system},
    {"/model", NULL, "NAME", "goes on with another model; without NAME: shows which it is", do_model},
    {"/image", NULL, "FILE", "the next question goes with this image, too", do_image},
    {"/save", NULL, "FILE", "writes the conversation as JSON; without FILE: to the one before, or a new one", do_save},
    {"/load", NULL, "FILE", "goes on with a saved conversation", do_load},
    {"/quit", "/exit", NULL, "ends the chat, as Ctrl-D and /bye do", do_quit},
    {"/bye", NULL, NULL, NULL, do_quit},
};
enum { N_COMMANDS = sizeof(commands) / sizeof(*commands) };

static bool do_help(struct chat *chat, const char *words)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (commands[i].help)
            fprintf(stderr, "  %-8s%-6s%s\n", commands[i].name, commands[i].words ? commands[i].words : "",
                    commands[i].help);
    say("Ctrl-C stops an answer. \"\"\" begins and ends a message of several lines%s\n\n",
        chat->editor ? "; Alt-Enter begins a new line, and what is pasted is one message. Up and Ctrl-R find what you "
                       "typed before."
                     : ".");
    return true;
}

/* The command that the message is; NULL: it is text. *words: what follows the command, NULL: nothing. Sets *unknown for a
 * "/word" that is none. */
static const struct chat_command *find_command(char *message, const char **words, bool *unknown)
{
    const char *names[2 * N_COMMANDS], *near;
    char name[16];
    size_t n = strspn(message + 1, "?abcdefghijklmnopqrstuvwxyz") + 1, n_names = 0;
    bool alone = !message[n], spaced = message[n] == ' ';

    *words = NULL;
    *unknown = false;
    if (message[0] != '/' || n == 1 || n >= sizeof(name) || (!alone && !spaced)) return NULL;
    memcpy(name, message, n);
    name[n] = 0;
    if (spaced && message[n + strspn(message + n, " ")]) *words = message + n + strspn(message + n, " ");
    for (int i = 0; i < N_COMMANDS; i++) {
        names[n_names++] = commands[i].name;
        if (commands[i].alias) names[n_names++] = commands[i].alias;
        if (strcmp(name, commands[i].name) != 0 && (!commands[i].alias || strcmp(name, commands[i].alias) != 0))
            continue;
        if (*words && !commands[i].words) return NULL; /* "/clear the table": text */
        return &commands[i];
    }
    near = args_nearest(name, names, n_names);
    *unknown = alone || (near && n > 4);
    if (!*unknown) return NULL;
    say("There is no %s", name);
    if (near) say("; did you mean %s?", near);
    say("%s /help shows all commands; a space before it makes it text.\n\n", near ? "" : ".");
    return NULL;
}

/* ---- reading ---- */

/* One line of standard input without its end. Ctrl-C throws it away. */
static enum line read_plain_line(struct buf *line, bool terminal)
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

static enum line read_line(struct chat *chat, const char *prompt, struct buf *line)
{
    if (chat->editor) return line_editor_read(chat->editor, prompt, line);
    if (chat->terminal) {
        fputs(prompt, stderr);
        fflush(stderr);
    }
    return read_plain_line(line, chat->terminal);
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
static enum line read_message(struct chat *chat, struct buf *message, struct buf *line)
{
    enum line got = read_line(chat, "> ", message);
    bool is_open = got == LINE_TEXT && message->n >= 3 && memcmp(message->data, "\"\"\"", 3) == 0;

    if (!is_open) return got;
    message->n -= 3;
    memmove(message->data, message->data + 3, message->n + 1);
    while (!message->failed && !take_quotes(message)) {
        got = read_line(chat, "... ", line);
        if (got == LINE_INTERRUPTED) return got;
        if (got == LINE_END) return LINE_TEXT;
        if (message->n) buf_putc(message, '\n');
        buf_append(message, line->data ? line->data : "", line->n);
    }
    return LINE_TEXT;
}

/* false: the chat ends. */
static bool take_message(struct chat *chat, struct buf *message)
{
    const struct chat_command *command;
    const char *words;
    bool unknown;

    if (message->failed) {
        chat->rc = cli_fail("the message is longer than %u MiB, or memory is out", LIMIT_BODY_BYTES >> 20);
        buf_deinit(message);
        return chat->terminal;
    }
    line_editor_remember(chat->editor, message->data, message->n);
    if (!cli_check_utf8(message->data, message->n, 0, chat->terminal ? "the message" : "standard input")) {
        chat->rc = EXIT_FAILED;
        return chat->terminal;
    }
    command = find_command(message->data, &words, &unknown);
    if (command) return command->run(chat, words);
    if (unknown) return true;
    chat->n_retries = 0;
    turn(chat, message->data, message->n);
    return true;
}

static void converse(struct chat *chat)
{
    struct buf message = {.limit = LIMIT_BODY_BYTES}, line = {.limit = LIMIT_BODY_BYTES};
    bool goes_on = true, is_empty = true;

    if (chat->terminal)
        say("%s, context %u tokens. /help shows what a chat can do; Ctrl-D ends it.\n\n", chat->model,
            context_of(chat));
    while (goes_on) {
        enum line got = read_message(chat, &message, &line);

        if (got == LINE_END) {
            if (chat->terminal) fputc('\n', stderr);
            break;
        }
        if (got == LINE_INTERRUPTED) {
            if (!chat->editor) fputc('\n', stderr);
            if (message.n == 0) say("(Ctrl-D or /quit ends the chat)\n");
            continue;
        }
        if (message.n == 0 && !message.failed) continue;
        is_empty = false;
        goes_on = take_message(chat, &message);
    }
    if (is_empty && !chat->terminal)
        chat->rc = cli_fail("standard input is empty: there is nothing to answer. Pipe in one message a line");
    buf_deinit(&line);
    buf_deinit(&message);
}

static int run_chat(const struct command *self, int argc, char **argv)
{
    static const char *const completions[] = {"/help",  "/clear", "/retry", "/undo", "/system", "/model",
                                              "/image", "/save",  "/load",  "/quit", NULL};
    struct chat_flags f;
    struct chat chat = {.f = &f, .rc = EXIT_DONE, .json = {.limit = LIMIT_BODY_BYTES}};
    const char *words[ARGS_MAX_WORDS];
    struct rd_options options;
    uint32_t n_words;
    int rc;

    memset(&f, 0, sizeof(f));
    rd_options_default(&f.engine);
    rc = args_parse(self, argc, argv, &f, words, &n_words);
    if (rc != ARGS_GO) return rc;
    rd_set_log(RD_LOG_WARN, NULL, NULL);
    if (f.system && !cli_check_utf8(f.system, strlen(f.system), 0, "--system")) return EXIT_FAILED;
    if (!adapter_flags_apply(&f.adapters, true, &f.engine)) return EXIT_USAGE;
    chat.first = words[0];
    options = f.engine; /* cli_open changes it; /model opens again */
    chat.engine = cli_open(&options, words[0]);
    snprintf(chat.model, sizeof(chat.model), "%s", words[0]);
    if (!chat.engine) {
        settings_free(&f.settings);
        return EXIT_FAILED;
    }
    stream_catch_interrupt();
    chat.terminal = isatty(STDIN_FILENO);
    chat.editor = line_editor_create(completions);
    if (transcript_init(&chat.talk, f.system))
        converse(&chat);
    else
        chat.rc = cli_fail("out of memory");
    line_editor_destroy(chat.editor);
    transcript_deinit(&chat.talk);
    buf_deinit(&chat.said);
    buf_deinit(&chat.json);
    rd_close(chat.engine);
    settings_free(&f.settings);
    adapter_flags_deinit(&f.adapters);
    return chat.rc;
}

const struct command cmd_chat = {
    .name = "chat",
    .section = "Talk to a model",
    .summary = "a conversation in the terminal",
    .words = "MODEL",
    .about =
        "Type a line, read the answer; /help shows the commands of a chat (/clear, /retry, /undo, /system, /model, "
        "/image, /save, /load, /quit). Ctrl-C stops an answer, Ctrl-D ends the chat. Lines are edited as in a shell: "
        "arrows, "
        "Ctrl-R, history ($XDG_STATE_HOME/radish/chat_history, else ~/.local/state/radish/chat_history). What is "
        "pasted is one message. Without a terminal, each line of standard input is a message, and the exit status is "
        "1 when one of them got no answer.",
    .examples = "  radish chat smollm2\n  radish chat qwen2.5-coder-1.5b --system \"Answer in one sentence.\" -v\n",
    .groups = chat_groups,
    .min_words = 1,
    .max_words = 1,
    .settings_at = offsetof(struct chat_flags, settings),
    .settings_of = &cmd_serve,
    .run = run_chat,
};
