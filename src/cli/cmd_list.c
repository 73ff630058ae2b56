/* cli/cmd_list.c - `radish list`: the models that commands find by name. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "cli/cli_model.h"
#include "cli/commands.h"
#include "cli/model_list.h"

struct list_flags {
    bool json;
};

static const struct arg list_args[] = {
    {.flag = "--json",
     .kind = ARG_SWITCH,
     .at = offsetof(struct list_flags, json),
     .help = "an array of objects instead of text: name, format, bytes; of a link also target, of a pulled one path"},
    {0},
};

static const struct arg_group list_groups[] = {{"Output", list_args, 0}, {NULL, NULL, 0}};

static void put_member(struct buf *out, const char *name, const char *value)
{
    if (!*value) return;
    buf_printf(out, ", \"%s\": \"", name);
    buf_put_json(out, value, strlen(value));
    buf_putc(out, '"');
}

static void print_json(const struct model_entry *list, size_t n)
{
    struct buf out;

    buf_init(&out);
    buf_putc(&out, '[');
    for (size_t i = 0; i < n; i++) {
        buf_puts(&out, i ? ",\n {\"name\": \"" : "{\"name\": \"");
        buf_put_json(&out, list[i].name, strlen(list[i].name));
        buf_printf(&out, "\", \"format\": \"%s\", \"bytes\": %llu", list[i].is_dir ? "safetensors" : "gguf",
                   (unsigned long long)list[i].n_bytes);
        put_member(&out, "target", list[i].target);
        put_member(&out, "path", list[i].is_pulled ? list[i].path : "");
        buf_putc(&out, '}');
    }
    buf_puts(&out, "]\n");
    if (!out.failed) fputs(out.data, stdout);
    buf_deinit(&out);
}

/* What a link stands for, as short as it can be said. */
static const char *name_of_target(const struct model_entry *list, size_t n, const char *target)
{
    for (size_t i = 0; i < n; i++)
        if (list[i].is_pulled && !strcmp(list[i].path, target)) return list[i].name;
    return target;
}

static void print_text(const struct model_entry *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct model_entry *e = list + i;
        const char *target = *e->target ? name_of_target(list, n, e->target) : "";
        char name[512], stands_for[512];

        printf("%-40s %-12s %10.1f MiB%s%s\n", error_quote(name, sizeof(name), e->name, strlen(e->name)),
               e->is_dir ? "safetensors" : "gguf", (double)e->n_bytes / (1 << 20), *target ? "  -> " : "",
               error_quote(stands_for, sizeof(stands_for), target, strlen(target)));
    }
}

static int run_list(const struct command *self, int argc, char **argv)
{
    struct list_flags f = {false};
    const char *words[ARGS_MAX_WORDS];
    char folder[CLI_PATH_BYTES / 2];
    struct model_entry *list;
    uint32_t n_words;
    size_t n;
    int rc = args_parse(self, argc, argv, &f, words, &n_words);

    if (rc != ARGS_GO) return rc;
    cli_model_folder(folder, sizeof(folder));
    if (!model_list_all(folder, &list, &n)) return cli_fail("out of memory");
    if (f.json)
        print_json(list, n);
    else if (n == 0)
        printf("no models in %s, and none pulled; radish fetch --list shows some that can be fetched, radish pull gets "
               "others\n",
               folder);
    else
        print_text(list, n);
    mem_free(list);
    return EXIT_DONE;
}

const struct command cmd_list = {
    .name = "list",
    .section = "Look inside",
    .summary = "the models that commands find by name",
    .about = "GGUF files, and directories as they come from the Hugging Face hub, in $RADISH_MODELS, else in "
             "~/.cache/radish/models; behind them what was pulled (radish pull), by whatever program.",
    .examples = "  radish list\n  radish list --json | jq -r .[].name\n",
    .groups = list_groups,
    .min_words = 0,
    .max_words = 0,
    .run = run_list,
};
