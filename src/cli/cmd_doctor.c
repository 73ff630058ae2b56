/* cli/cmd_doctor.c - `radish doctor`: what this machine has and what radish would choose on it. */
#include <stdio.h>
#include <string.h>
#include "cli/cli_model.h"
#include "cli/commands.h"

struct doctor_flags { bool json; };

static const struct arg doctor_args[] = {
    {.flag = "--json", .kind = ARG_SWITCH, .at = offsetof(struct doctor_flags, json),
     .help = "one JSON object instead of text"},
    {0}
};

static const struct arg_group doctor_groups[] = {{"Output", doctor_args, 0}, {NULL, NULL, 0}};

static int run_doctor(const struct command *self, int argc, char **argv)
{
    struct doctor_flags f = {false};
    const char *words[ARGS_MAX_WORDS];
    char models[CLI_PATH_BYTES], packed[CLI_PATH_BYTES], cache[CLI_PATH_BYTES], *text = NULL;
    struct rd_doctor_paths paths;
    struct rd_options o;
    struct rd_error err = {RD_OK, ""};
    uint32_t n_words;
    rd_status st;
    int rc = args_parse(self, argc, argv, &f, words, &n_words);

    if (rc != ARGS_GO) return rc;
    rd_options_default(&o);
    cli_packed_dir(&o, packed);
    cli_cache_dir(&o, cache);
    cli_model_folder(models, sizeof(models));
    paths = (struct rd_doctor_paths){models, o.packed_dir, o.cache_dir};
    st = rd_doctor(&paths, f.json, &text, &err);
    if (st != RD_OK) return cli_fail_at("doctor", st, &err);
    fputs(text, stdout);
    if (*text && text[strlen(text) - 1] != '\n') putchar('\n');
    rd_free(text);
    return EXIT_DONE;
}

const struct command cmd_doctor = {
    .name = "doctor", .section = "Look inside",
    .summary = "what this machine has: CPU, memory, folders, NVIDIA driver and GPUs, and what radish would choose",
    .about = "Starts nothing and writes nothing. Says why a GPU is not used.",
    .examples = "  radish doctor\n  radish doctor --json | jq .choice\n",
    .groups = doctor_groups, .min_words = 0, .max_words = 0, .run = run_doctor,
};
