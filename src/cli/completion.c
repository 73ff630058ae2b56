/* cli/completion.c - see completion.h. */
#include "cli/completion.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/os_process.h"
#include "cli/cli_model.h"
#include "cli/commands.h"
#include "cli/model_list.h"
#include "cli/run_dir.h"

struct asked {
    const char *typed;  /* the word that is being typed, or the value's part of it */
    const char *before; /* what stands before the value in the same word: "--kv-type="; or "" */
    struct buf *out;
};

static bool starts_with(const char *s, const char *start)
{
    return strncmp(s, start, strlen(start)) == 0;
}

/* s[0..n), if that is how what is typed may go on. */
static void offer(const struct asked *a, const char *s, size_t n, const char *meaning)
{
    size_t n_typed = strlen(a->typed);

    if (n < n_typed || memcmp(s, a->typed, n_typed) != 0) return;
    buf_puts(a->out, a->before);
    buf_append(a->out, s, n);
    buf_printf(a->out, "\t%s\n", meaning ? meaning : "");
}

/* "a|b|c" */
static void offer_each(const struct asked *a, const char *choices)
{
    for (const char *p = choices; *p;) {
        size_t n = strcspn(p, "|");

        offer(a, p, n, NULL);
        p += n + (p[n] == '|');
    }
}

/* part: what the name must have in it, or "". */
static void offer_models(const struct asked *a, const char *part)
{
    char folder[CLI_PATH_BYTES / 2];
    struct model_entry *list;
    size_t n;

    cli_model_folder(folder, sizeof(folder));
    if (!model_list_all(folder, &list, &n)) return;
    for (size_t i = 0; i < n; i++)
        if (strstr(list[i].name, part) && !strpbrk(list[i].name, "\t\n"))
            offer(a, list[i].name, strlen(list[i].name), NULL);
    mem_free(list);
}

/* The names in models.json, which lies beside fetch-model. */
static void offer_fetchable(const struct asked *a)
{
    static const char *const places[] = {"../libexec/radish", "../tools"};
    char self[CLI_PATH_BYTES / 2], path[CLI_PATH_BYTES];
    const char *name;
    json_t *table = NULL, *model;

    if (!os_program_path(self, sizeof(self))) return;
    *strrchr(self, '/') = 0;
    for (size_t i = 0; i < 2 && !table; i++) {
        snprintf(path, sizeof(path), "%s/%s/models.json", self, places[i]);
        table = json_load_file(path, 0, NULL);
    }
    json_object_foreach(table, name, model)
        offer(a, name, strlen(name), json_string_value(json_object_get(model, "what")));
    json_decref(table);
}

static void offer_commands(const struct asked *a)
{
    for (const struct command *const *c = all_commands; *c; c++)
        offer(a, (*c)->name, strlen((*c)->name), (*c)->summary);
}

static void offer_servers(const struct asked *a)
{
    struct run_entry *list;
    size_t n;

    if (run_dir_list(&list, &n, NULL) != RD_OK) return;
    for (size_t i = 0; i < n; i++) {
        char pid[16], meaning[RUN_ADDRESS_BYTES + 128];
        int n_pid = snprintf(pid, sizeof(pid), "%d", (int)list[i].pid);

        snprintf(meaning, sizeof(meaning), "%.*s at %s", (int)strcspn(list[i].models, "\n\t"), list[i].models,
                 list[i].address);
        offer(a, pid, (size_t)n_pid, meaning);
    }
    mem_free(list);
}

/* What a value or word of this name can be: "MODEL", "FILE|JSON". */
static void offer_kind(const struct asked *a, const char *kind)
{
    if (starts_with(kind, "MODEL")) offer_models(a, "");
    if (starts_with(kind, "ORG/NAME")) offer_models(a, "/");
    if (starts_with(kind, "COMMAND")) offer_commands(a);
    if (starts_with(kind, "SERVER")) offer_servers(a);
    if (starts_with(kind, "MODEL") || starts_with(kind, "FILE") || starts_with(kind, "ORG/NAME"))
        buf_puts(a->out, ":files\n");
    if (starts_with(kind, "DIR")) buf_puts(a->out, ":folders\n");
}

static void offer_value(const struct asked *a, const struct arg *arg)
{
    if (arg->choices)
        offer_each(a, arg->choices);
    else if (arg->known)
        offer_each(a, arg->known);
    offer_kind(a, arg->value);
}

static const struct arg *find_arg(const struct command *c, const char *flag, size_t n)
{
    for (const struct arg_group *group = c->groups; group && group->args; group++)
        for (const struct arg *a = group->args; a->flag; a++)
            if ((strlen(a->flag) == n && memcmp(a->flag, flag, n) == 0) ||
                (n == 2 && flag[0] == '-' && a->letter && flag[1] == a->letter))
                return a;
    return NULL;
}

/* Whether the flag stands among the words already; one that may be given again never does. */
static bool is_given(const struct command *c, const struct arg *a, const char *const *words, size_t n)
{
    if (a->kind == ARG_TEXTS) return false;
    for (size_t i = 0; i < n; i++)
        if (find_arg(c, words[i], strcspn(words[i], "=")) == a) return true;
    return false;
}

static void offer_flags(const struct asked *a, const struct command *c, const char *const *words, size_t n)
{
    for (const struct arg_group *group = c->groups; group && group->args; group++)
        for (const struct arg *arg = group->args; arg->flag; arg++)
            if (!is_given(c, arg, words, n)) offer(a, arg->flag, strlen(arg->flag), arg->help);
    offer(a, "--help", 6, "the flags, with units and defaults");
}

/* The k-th word of "MODEL [PROMPT]", without its brackets; the last one stands for those that ".." lets follow. */
static void offer_word(const struct asked *a, const struct command *c, uint32_t k)
{
    const char *p = c->words ? c->words : "";

    if (k >= c->max_words) return;
    if (c == &cmd_fetch) offer_fetchable(a);
    if (k == 0 && c->first_words) {
        offer_each(a, c->first_words);
        return;
    }
    for (; k > 0 && strchr(p, ' '); k--) {
        const char *next = strchr(p, ' ') + 1;

        if (starts_with(next, "..")) break;
        p = next;
    }
    if (k == 0 || strstr(p, "..")) offer_kind(a, p + strspn(p, "["));
}

static void answer_command(const struct command *c, const char *const *words, size_t n, struct buf *out)
{
    const struct arg *pending = NULL; /* a flag whose value comes next */
    struct asked a = {words[n - 1], "", out};
    bool flags_end = false;
    uint32_t n_words = 0;
    size_t n_name = strcspn(a.typed, "=");
    char before[64];

    for (size_t i = 0; i + 1 < n; i++) {
        const char *s = words[i];

        if (pending) {
            pending = NULL;
        } else if (flags_end || s[0] != '-' || !s[1]) {
            n_words++;
        } else if (strcmp(s, "--") == 0) {
            flags_end = true;
        } else {
            const struct arg *arg = find_arg(c, s, strcspn(s, "="));
            if (arg && arg->kind != ARG_SWITCH && !strchr(s, '=')) pending = arg;
        }
    }
    if (pending) {
        offer_value(&a, pending);
    } else if (flags_end || a.typed[0] != '-') {
        offer_word(&a, c, n_words);
    } else if (a.typed[n_name] && n_name + 2 < sizeof(before)) {
        const struct arg *arg = find_arg(c, a.typed, n_name);

        if (!arg || arg->kind == ARG_SWITCH) return;
        memcpy(before, a.typed, n_name + 1);
        before[n_name + 1] = 0;
        a.before = before;
        a.typed += n_name + 1;
        offer_value(&a, arg);
    } else {
        offer_flags(&a, c, words, n - 1);
    }
}

void completion_answer(const char *const *words, size_t n, struct buf *out)
{
    struct asked a = {n ? words[n - 1] : "", "", out};

    if (n <= 1) {
        offer_commands(&a);
        if (a.typed[0] == '-') offer_each(&a, "--help|--version");
        return;
    }
    for (const struct command *const *c = all_commands; *c; c++)
        if (strcmp((*c)->name, words[0]) == 0) answer_command(*c, words + 1, n - 1, out);
}
