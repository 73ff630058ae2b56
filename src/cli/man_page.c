/* cli/man_page.c - see man_page.h. */
#include "cli/man_page.h"
#include <ctype.h>
#include <string.h>
#include "cli/cli_facts.h"
#include "cli/commands.h"
#include "radish/radish.h"

enum { SOURCE_WIDTH = 60 };

static void put_char(FILE *out, char c)
{
    switch (c) {
    case '\\':
        fputs("\\e", out);
        break;
    case '-':
        fputs("\\-", out);
        break;
    case '\'':
        fputs("\\(aq", out);
        break;
    case '`':
        fputs("\\(ga", out);
        break;
    case '^':
        fputs("\\(ha", out);
        break;
    case '~':
        fputs("\\(ti", out);
        break;
    default:
        fputc(c, out);
    }
}

static bool is_flag_char(char c)
{
    return c == '-' || islower((unsigned char)c) || isdigit((unsigned char)c);
}

/* A paragraph's words: --flags are bold, a new line stays one. The source's lines end between words. */
static void put_text(FILE *out, const char *text)
{
    int column = 0;

    for (const char *p = text; *p; p++) {
        int n_word = (int)strcspn(p, " \n");

        if (*p == '\n') fputs("\n.br", out);
        if (*p == '\n' || (*p == ' ' && column > SOURCE_WIDTH)) {
            fputc('\n', out);
            column = 0;
        } else if (*p == ' ' && column > 0) {
            fputc(' ', out);
        }
        if (n_word == 0) continue;
        if (column == 0 && *p == '.') fputs("\\&", out); /* else it were a request */
        column += n_word + 1;
        if (strncmp(p, "--", 2) == 0 && is_flag_char(p[2])) {
            fputs("\\fB", out);
            for (; is_flag_char(*p); p++, n_word--) put_char(out, *p);
            fputs("\\fR", out);
        }
        for (; n_word > 0; p++, n_word--) put_char(out, *p);
        p--;
    }
}

/* "MODEL [PROMPT]": names of values in italics. */
static void put_words(FILE *out, const char *words)
{
    bool is_name = false;

    for (const char *p = words; *p; p++) {
        bool upper = isupper((unsigned char)*p);

        if (upper != is_name) fputs(upper ? "\\fI" : "\\fR", out);
        is_name = upper;
        put_char(out, *p);
    }
    if (is_name) fputs("\\fR", out);
}

static void put_head(FILE *out, const char *name, int section, const char *summary)
{
    char title[64];
    size_t n = 0;

    for (; name[n] && n + 1 < sizeof(title); n++) title[n] = (char)toupper((unsigned char)name[n]);
    title[n] = 0;
    fprintf(out, ".\\\" Made by radish help --man from the tables of its command line.\n.TH ");
    for (size_t i = 0; i < n; i++) put_char(out, title[i]);
    fprintf(out, " %d %s \"radish %s\" \"radish manual\"\n.SH NAME\n", section, RADISH_DATE, rd_version());
    put_text(out, name);
    fputs(" \\- ", out);
    put_text(out, summary);
    fputs("\n.SH SYNOPSIS\n", out);
}

static void put_exits(FILE *out, const char *command)
{
    fputs(".SH EXIT STATUS\n", out);
    for (const struct exit_row *row = exit_rows; row->text; row++) {
        if (row->command && command && strcmp(row->command, command) != 0) continue;
        fprintf(out, ".TP\n.B %d\n", row->status);
        if (row->command && !command) fprintf(out, "of \\fB%s\\fR: ", row->command);
        put_text(out, row->text);
        fputs(".\n", out);
    }
}

static void put_examples(FILE *out, const char *examples)
{
    fputs(".SH EXAMPLES\n.EX\n", out);
    for (const char *p = examples; *p; p++) {
        if ((p == examples || p[-1] == '\n') && (*p == ' ' || *p == '.' || *p == '\'')) fputs("\\&", out);
        if (*p == '\n')
            fputc('\n', out);
        else
            put_char(out, *p);
    }
    fputs(".EE\n", out);
}

/* What a row's value means, and its default. */
static void put_meaning(FILE *out, const struct arg *a)
{
    const char *fallback = a->fallback_text ? a->fallback_text : a->fallback;

    put_text(out, a->help);
    if (a->help_end) {
        fputc('\n', out);
        put_text(out, a->help_end());
    }
    if (fallback) {
        fputs("\n[", out);
        put_text(out, fallback);
        fputc(']', out);
    }
    fputc('\n', out);
}

static void put_arg(FILE *out, const struct arg *a)
{
    fputs(".TP\n", out);
    if (a->letter) fprintf(out, "\\fB\\-%c\\fR, ", a->letter);
    fputs("\\fB", out);
    for (const char *p = a->flag; *p; p++) put_char(out, *p);
    fputs("\\fR", out);
    if (a->value) {
        fputc(' ', out);
        put_words(out, a->value);
    }
    fputc('\n', out);
    put_meaning(out, a);
}

/* The row as a key of the configuration file. */
static void put_key(FILE *out, const struct arg *a)
{
    bool is_number = a->kind != ARG_TEXT && a->kind != ARG_TEXTS && a->kind != ARG_BYTES;

    if (strcmp(a->flag, "--config") == 0 || strcmp(a->flag, "--print-config") == 0) return;
    fputs(".TP\n\\fB", out);
    for (const char *p = a->flag + 2; *p; p++) put_char(out, *p);
    fputs("\\fR = ", out);
    if (a->kind == ARG_SWITCH) fputs("true | false", out);
    if (a->kind == ARG_TEXTS) fputc('[', out);
    if (a->value && !is_number) fputc('"', out);
    if (a->value) put_words(out, a->value);
    if (a->value && !is_number) fputc('"', out);
    if (a->kind == ARG_TEXTS) fputs(", ..]", out);
    fputc('\n', out);
    put_meaning(out, a);
}

static void put_options(FILE *out, const struct command *c)
{
    const char *title = "";

    fputs(".SH OPTIONS\nDefaults stand in [brackets].\n", out);
    for (const struct arg_group *group = c->groups; group && group->args; group++) {
        if (strcmp(group->title, title) != 0) fprintf(out, ".SS %s\n", group->title);
        title = group->title;
        for (const struct arg *a = group->args; a->flag; a++) put_arg(out, a);
    }
    fputs(".SS Help\n.TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nprints this in short\n", out);
}

/* One page in .BR; the others follow. */
static void put_reference(FILE *out, const char *name, bool is_last)
{
    fputs(".BR ", out);
    for (const char *p = name; *p; p++) put_char(out, *p);
    fprintf(out, " (1)%s\n", is_last ? "" : ",");
}

void man_page(const struct command *c, FILE *out)
{
    char name[48];

    snprintf(name, sizeof(name), "radish-%s", c->name);
    put_head(out, name, 1, c->summary);
    fprintf(out, "\\fBradish %s\\fR ", c->name);
    if (c->words) {
        put_words(out, c->words);
        fputc(' ', out);
    }
    fputs("[\\fIFLAGS\\fR]\n", out);
    fputs(".SH DESCRIPTION\n", out);
    put_text(out, c->about ? c->about : c->summary);
    fputs(c->about ? "\n" : ".\n", out);
    put_options(out, c);
    put_exits(out, c->name);
    if (c->examples) put_examples(out, c->examples);
    fputs(".SH SEE ALSO\n", out);
    put_reference(out, "radish", true);
}

void man_page_overview(FILE *out)
{
    const char *section = "", *other = NULL;
    char name[48];

    put_head(out, "radish", 1, fact_tagline);
    fputs("\\fBradish\\fR \\fICOMMAND\\fR [\\fIARGUMENTS\\fR] [\\fIFLAGS\\fR]\n.SH DESCRIPTION\n", out);
    put_text(out, fact_model);
    fputs("\n.PP\n\\fBradish\\fR \\fICOMMAND\\fR \\fB\\-\\-help\\fR shows each flag with its unit and default.\n.SH "
          "COMMANDS\n",
          out);
    for (const struct command *const *c = all_commands; *c; c++) {
        if (strcmp((*c)->section, section) != 0) fprintf(out, ".SS %s\n", (*c)->section);
        section = (*c)->section;
        fprintf(out, ".TP\n\\fB%s\\fR%s", (*c)->name, (*c)->words ? " " : "");
        put_words(out, (*c)->words ? (*c)->words : "");
        fputc('\n', out);
        put_text(out, (*c)->summary);
        fputc('\n', out);
    }
    put_exits(out, NULL);
    fputs(".SH ENVIRONMENT\n", out);
    for (const struct variable_row *row = variable_rows; row->name; row++) {
        fprintf(out, ".TP\n.B %s\n", row->name);
        put_text(out, row->text);
        fputc('\n', out);
    }
    put_examples(out, fact_examples);
    fputs(".SH SEE ALSO\n", out);
    for (const struct command *const *c = all_commands; *c; c++) {
        if (other) put_reference(out, other, false);
        snprintf(name, sizeof(name), "radish-%s", (*c)->name);
        other = name;
    }
    if (other) put_reference(out, other, true);
}

void man_page_config(FILE *out)
{
    const char *title = "";

    put_head(out, "radish.toml", 5, "what radish serve is set to");
    put_text(out, "~/.config/radish/radish.toml, else /etc/radish/radish.toml");
    fputs("\n.SH DESCRIPTION\n", out);
    put_text(
        out,
        "Lines of key = value, and comments behind #. Each flag of radish serve is a key without its dashes; a list "
        "may "
        "hold several values, a switch is true or false. models = [\"NAME\", ..] stands for the words of the command "
        "line. A variable RADISH_KEY (RADISH_KV_BYTES for kv-bytes) wins over the file, and a flag over both.");
    fputs("\n.PP\n\\fBradish serve \\-\\-print\\-config\\fR shows every value and where it comes from.\n.SH KEYS\n",
          out);
    fputs("Defaults stand in [brackets].\n", out);
    for (const struct arg_group *group = cmd_serve.groups; group && group->args; group++) {
        if (strcmp(group->title, title) != 0) fprintf(out, ".SS %s\n", group->title);
        title = group->title;
        for (const struct arg *a = group->args; a->flag; a++) put_key(out, a);
    }
    put_examples(out, "  models = [\"smollm2\"]\n  port = 9000\n  kv-bytes = \"4G\"\n  no-speculation = true\n");
    fputs(".SH SEE ALSO\n", out);
    put_reference(out, "radish-serve", true);
}
