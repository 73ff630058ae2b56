/* cli/line_editor.c - libedit behind a reader of our own, which knows Ctrl-C and pasted text. */
#include "cli/line_editor.h"
#ifdef RADISH_LIBEDIT
#include <errno.h>
#include <histedit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/cli_stream.h"
#include "cli/history_file.h"
#include "cli/text_wrap.h"

enum {
    MAX_PASTES = 64,
    SHOWN_PASTE_LINES = 10,
    SHOWN_PASTE_BYTES = 2000, /* a longer one is shown by its size */
    MAX_PASTE_BYTES = 32 << 20,
    N_HISTORY = 1000
};

struct paste {
    wchar_t mark[64];
    struct buf text;
};

struct line_editor {
    EditLine *el;
    HistoryW *history;
    const char *const *commands;
    wchar_t prompt[64];
    struct paste pastes[MAX_PASTES]; /* those with marks; numbered through the whole chat */
    uint32_t n_pastes;
    char input[4096]; /* read from the terminal and not yet used */
    size_t n_input, at;
    bool interrupted;
    bool asked; /* the terminal was told to mark what is pasted */
    struct history_file file;
};

static const char PASTE_END[] = "\033[201~";

static struct line_editor *editor_of(EditLine *el)
{
    void *e = NULL;

    el_wget(el, EL_CLIENTDATA, &e);
    return e;
}

static wchar_t *prompt_of(EditLine *el)
{
    return editor_of(el)->prompt;
}

/* Waits until there is input. 1, 0 at the end, -1 with errno after Ctrl-C or an error. */
static int fill(struct line_editor *e)
{
    while (e->at == e->n_input) {
        ssize_t n;

        if (!stream_wait_input(STDIN_FILENO)) {
            if (!stream_interrupted()) continue; /* another signal: the window's size, mostly */
            e->interrupted = true;
            errno = EINTR;
            return -1;
        }
        n = read(STDIN_FILENO, e->input, sizeof(e->input));
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n <= 0) return (int)n;
        e->at = 0;
        e->n_input = (size_t)n;
    }
    return 1;
}

/* Keeps the start of a character and waits for its end. */
static int fill_character(struct line_editor *e)
{
    for (;;) {
        size_t n = e->n_input - e->at;
        ssize_t more;

        if (n >= UTF8_MAX_BYTES || utf8_unfinished_tail(e->input + e->at, n) < n) return 1;
        memmove(e->input, e->input + e->at, n);
        e->at = 0;
        e->n_input = n;
        more = read(STDIN_FILENO, e->input + n, sizeof(e->input) - n);
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) return 1;
        e->n_input += (size_t)more;
    }
}

/* libedit's source of characters. */
static int read_character(EditLine *el, wchar_t *out)
{
    struct line_editor *e = editor_of(el);
    uint32_t cp;
    int got, n;

    if (!e->asked) fputs("\033[?2004h", stderr); /* here the terminal is ours, not before */
    e->asked = true;
    got = fill(e);
    if (got <= 0) return got;
    (void)fill_character(e);
    n = utf8_decode(e->input + e->at, e->n_input - e->at, &cp);
    e->at += (size_t)(n > 0 ? n : -n);
    *out = (wchar_t)cp;
    return 1;
}

/* s[0..n) of UTF-8 at the cursor. */
static bool insert(struct line_editor *e, const char *s, size_t n)
{
    wchar_t *wide = mem_zalloc(n + 1, sizeof(*wide));
    size_t n_wide = 0;
    bool ok;

    if (!wide) return false;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int step = utf8_decode(s + i, n - i, &cp);
        wide[n_wide++] = (wchar_t)cp;
        i += (size_t)(step > 0 ? step : -step);
    }
    ok = el_winsertstr(e->el, wide) == 0;
    mem_free(wide);
    return ok;
}

/* A byte of pasted text: line ends become newlines; what a terminal would obey is dropped. */
static void add_pasted(struct buf *text, char c, char *before)
{
    if (c == '\r')
        buf_putc(text, '\n');
    else if (c == '\n' && *before == '\r') {
    } else if (c == '\n' || c == '\t' || (unsigned char)c >= ' ')
        buf_putc(text, c);
    *before = c;
}

/* Reads up to the end of the paste. false: Ctrl-C, or the input's end. */
static bool read_paste(struct line_editor *e, struct buf *text)
{
    size_t n_end = 0;
    char before = 0;

    while (fill(e) > 0) {
        char c = e->input[e->at++];

        if (c == PASTE_END[n_end]) {
            if (!PASTE_END[++n_end]) return true;
            continue;
        }
        for (size_t i = 0; i < n_end; i++) add_pasted(text, PASTE_END[i], &before);
        n_end = c == PASTE_END[0];
        if (!n_end) add_pasted(text, c, &before);
    }
    return false;
}

static uint32_t count_lines(const struct buf *text)
{
    uint32_t n = 1;

    for (size_t i = 0; i < text->n; i++) n += text->data[i] == '\n';
    return n;
}

static unsigned char on_paste(EditLine *el, wint_t key)
{
    struct line_editor *e = editor_of(el);
    struct buf text = {.limit = MAX_PASTE_BYTES};
    uint32_t n_lines;
    bool ok;

    if (!read_paste(e, &text)) {
        buf_deinit(&text);
        return CC_EOF;
    }
    n_lines = count_lines(&text);
    if (text.failed || text.n == 0) {
        buf_deinit(&text);
        return text.failed ? CC_ERROR : CC_NORM;
    }
    if ((n_lines > SHOWN_PASTE_LINES || text.n > SHOWN_PASTE_BYTES) && e->n_pastes < MAX_PASTES) {
        struct paste *paste = &e->pastes[e->n_pastes];
        swprintf(paste->mark, sizeof(paste->mark) / sizeof(wchar_t), L"[paste %u: %u lines, %zu bytes]",
                 e->n_pastes + 1, n_lines, text.n);
        paste->text = text;
        e->n_pastes++;
        return el_winsertstr(el, paste->mark) == 0 ? CC_REFRESH : CC_ERROR;
    }
    ok = insert(e, text.data, text.n);
    buf_deinit(&text);
    return ok ? CC_REFRESH : CC_ERROR;
}

/* The end of a paste that Ctrl-C cut short. */
static unsigned char on_paste_end(EditLine *el, wint_t key)
{
    return CC_NORM;
}

static unsigned char on_new_line(EditLine *el, wint_t key)
{
    return el_winsertstr(el, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
}

/* The one command that begins as the line does. */
static unsigned char on_tab(EditLine *el, wint_t key)
{
    struct line_editor *e = editor_of(el);
    const LineInfoW *line = el_wline(el);
    size_t n = (size_t)(line->cursor - line->buffer);
    const char *found = NULL;

    if (n == 0 || line->buffer[0] != L'/' || line->cursor != line->lastchar) return CC_ERROR;
    for (const char *const *c = e->commands; *c; c++) {
        size_t i = 0;
        while (i < n && (*c)[i] && line->buffer[i] == (wchar_t)(*c)[i]) i++;
        if (i < n) continue;
        if (found) return CC_ERROR;
        found = *c;
    }
    if (!found || !insert(e, found + n, strlen(found + n))) return CC_ERROR;
    return el_winsertstr(el, L" ") == 0 ? CC_REFRESH : CC_ERROR;
}

static void bind_keys(EditLine *el)
{
    static const wchar_t *const keys[][2] = {
        {L"\\e[200~", L"radish-paste"},  {L"\\e[201~", L"radish-paste-end"}, {L"\\e^M", L"radish-new-line"},
        {L"\\e^J", L"radish-new-line"},  {L"^I", L"radish-complete"},        {L"^R", L"em-inc-search-prev"},
        {L"^W", L"ed-delete-prev-word"}, {L"\\e[A", L"ed-prev-history"},     {L"\\e[B", L"ed-next-history"},
        {L"\\eOA", L"ed-prev-history"},  {L"\\eOB", L"ed-next-history"},     {L"\\e[C", L"ed-next-char"},
        {L"\\e[D", L"ed-prev-char"},     {L"\\e[H", L"ed-move-to-beg"},      {L"\\e[F", L"ed-move-to-end"},
        {L"\\e[1~", L"ed-move-to-beg"},  {L"\\e[4~", L"ed-move-to-end"},     {L"\\e[3~", L"ed-delete-next-char"},
        {L"\\e[1;5C", L"em-next-word"},  {L"\\e[1;5D", L"ed-prev-word"},
    };

    el_wset(el, EL_EDITOR, L"emacs");
    el_wset(el, EL_ADDFN, L"radish-paste", L"takes pasted text as one piece", on_paste);
    el_wset(el, EL_ADDFN, L"radish-paste-end", L"ends pasted text", on_paste_end);
    el_wset(el, EL_ADDFN, L"radish-new-line", L"a newline in the message", on_new_line);
    el_wset(el, EL_ADDFN, L"radish-complete", L"completes a command", on_tab);
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) el_wset(el, EL_BIND, keys[i][0], keys[i][1], NULL);
}

static void enter_history(struct line_editor *e, const char *text, size_t n)
{
    wchar_t *wide = mem_zalloc(n + 1, sizeof(*wide));
    HistEventW event;
    size_t n_wide = 0;

    if (!wide) return;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int step = utf8_decode(text + i, n - i, &cp);
        wide[n_wide++] = (wchar_t)cp;
        i += (size_t)(step > 0 ? step : -step);
    }
    history_w(e->history, &event, H_ENTER, wide);
    mem_free(wide);
}

static void load_line(void *user, const char *text, size_t n)
{
    enter_history(user, text, n);
}

struct line_editor *line_editor_create(const char *const *commands)
{
    const char *term = getenv("TERM");
    struct line_editor *e;
    HistEventW event;

    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO) || !term || strcmp(term, "dumb") == 0) return NULL;
    text_wrap_locale();
    e = mem_zalloc(1, sizeof(*e));
    if (!e) return NULL;
    e->file.fd = -1;
    e->commands = commands;
    e->el = el_init("radish", stdin, stderr, stderr);
    e->history = history_winit();
    if (!e->el || !e->history) {
        line_editor_destroy(e);
        return NULL;
    }
    history_w(e->history, &event, H_SETSIZE, N_HISTORY);
    history_w(e->history, &event, H_SETUNIQUE, 1);
    el_wset(e->el, EL_CLIENTDATA, e);
    el_wset(e->el, EL_PROMPT, prompt_of);
    el_wset(e->el, EL_SIGNAL, 1); /* the terminal is put right before a signal ends or stops us */
    el_wset(e->el, EL_GETCFN, read_character);
    el_wset(e->el, EL_HIST, history_w, e->history);
    bind_keys(e->el);
    el_source(e->el, NULL); /* ~/.editrc */
    history_file_open(&e->file, N_HISTORY, load_line, e);
    return e;
}

void line_editor_destroy(struct line_editor *e)
{
    if (!e) return;
    if (e->el) el_end(e->el);
    if (e->history) history_wend(e->history);
    for (uint32_t i = 0; i < e->n_pastes; i++) buf_deinit(&e->pastes[i].text);
    history_file_close(&e->file);
    mem_free(e);
}

/* line[0..n) as UTF-8, with the texts that marks stand for. */
static void take_line(struct line_editor *e, const wchar_t *line, size_t n, struct buf *message)
{
    for (size_t i = 0; i < n;) {
        const struct paste *paste = NULL;
        char bytes[UTF8_MAX_BYTES];

        for (uint32_t p = 0; line[i] == L'[' && p < e->n_pastes && !paste; p++)
            if (wcsncmp(line + i, e->pastes[p].mark, wcslen(e->pastes[p].mark)) == 0) paste = &e->pastes[p];
        if (paste) {
            buf_append(message, paste->text.data, paste->text.n);
            i += wcslen(paste->mark);
            continue;
        }
        buf_append(message, bytes, (size_t)utf8_encode((uint32_t)line[i++], bytes));
    }
}

enum line line_editor_read(struct line_editor *e, const char *prompt, struct buf *message)
{
    const wchar_t *line;
    int n = 0;

    buf_clear(message);
    swprintf(e->prompt, sizeof(e->prompt) / sizeof(wchar_t), L"%s", prompt);
    e->interrupted = e->asked = false;
    line = el_wgets(e->el, &n);
    fputs("\033[?2004l", stderr);
    if (e->interrupted) {
        fputc('\n', stderr);
        return LINE_INTERRUPTED;
    }
    if (!line || n <= 0) return LINE_END;
    if (line[n - 1] == L'\n') n--;
    take_line(e, line, (size_t)n, message);
    return LINE_TEXT;
}

void line_editor_remember(struct line_editor *e, const char *text, size_t n)
{
    if (!e || n == 0 || n > HISTORY_LINE_BYTES || memchr(text, 0, n)) return;
    enter_history(e, text, n);
    history_file_add(&e->file, text, n);
}

#else /* built without libedit: lines are read as the terminal gives them */

struct line_editor *line_editor_create(const char *const *commands)
{
    return NULL;
}
void line_editor_destroy(struct line_editor *e) {}
enum line line_editor_read(struct line_editor *e, const char *prompt, struct buf *message)
{
    return LINE_END;
}
void line_editor_remember(struct line_editor *e, const char *text, size_t n) {}
#endif
