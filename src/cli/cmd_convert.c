/* cli/cmd_convert.c - `radish convert`: a model as a GGUF file. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "cli/cli_model.h"
#include "cli/cli_signals.h"
#include "cli/commands.h"

struct convert_flags {
    const char *output, *type, *pre, *lora;
    double scale;
    uint32_t n_threads;
    bool force;
};

static const struct arg convert_args[] = {
    {.flag = "--output",
     .letter = 'o',
     .kind = ARG_TEXT,
     .at = offsetof(struct convert_flags, output),
     .value = "FILE",
     .fallback_text = "must be given",
     .help = "the GGUF file to write; it appears when it is complete"},
    {.flag = "--type",
     .kind = ARG_TEXT,
     .at = offsetof(struct convert_flags, type),
     .value = "TYPE",
     .choices = "f16|bf16|q8_0|q4_k_m",
     .fallback = "f16",
     .help = "of the matrices; norms and biases stay f32"},
    {.flag = "--merge-lora",
     .kind = ARG_TEXT,
     .at = offsetof(struct convert_flags, lora),
     .value = "PATH",
     .fallback_text = "none",
     .help = "an adapter, PEFT's folder or a GGUF file, that is added to the weights"},
    {.flag = "--merge-scale",
     .kind = ARG_REAL,
     .at = offsetof(struct convert_flags, scale),
     .value = "X",
     .fallback = "1",
     .help = "what the adapter is multiplied by"},
    {.flag = "--force",
     .kind = ARG_SWITCH,
     .at = offsetof(struct convert_flags, force),
     .help = "a file that is there already is replaced"},
    {.flag = "--pre",
     .kind = ARG_TEXT,
     .at = offsetof(struct convert_flags, pre),
     .value = "NAME",
     .fallback_text = "found",
     .help = "name of the pre-tokenizer, where tokenizer.json's is not recognised"},
    {.flag = "--threads",
     .letter = 't',
     .kind = ARG_U32,
     .at = offsetof(struct convert_flags, n_threads),
     .value = "N",
     .fallback_text = "all cores",
     .help = "threads"},
    {0},
};

static const struct arg_group convert_groups[] = {{"Output", convert_args, 0}, {NULL, NULL, 0}};

/* Ctrl-C: what is half written goes. A second time: at once. */
static volatile sig_atomic_t is_stopped;

static void stop(int signal)
{
    (void)signal;
    if (is_stopped) _exit(EXIT_INTERRUPTED);
    is_stopped = 1;
}

static bool was_stopped(void *user)
{
    (void)user;
    return is_stopped;
}

static int run_convert(const struct command *self, int argc, char **argv)
{
    const struct sigaction a = {.sa_handler = stop, .sa_flags = SA_RESTART};
    struct convert_flags f = {0};
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words;
    char path[CLI_PATH_BYTES];
    struct rd_error err = {RD_OK, ""};
    struct rd_options bar_options = {0};
    struct rd_convert_options o;
    struct load_bar bar;
    rd_status st;
    int rc = args_parse(self, argc, argv, &f, words, &n_words);

    if (rc != ARGS_GO) return rc;
    if (!f.output) {
        cli_fail("convert: where to? -o OUT.gguf is missing");
        return EXIT_USAGE;
    }
    if (!cli_find_model(words[0], path)) return EXIT_FAILED;
    if (!f.force && file_exists(f.output)) return cli_fail("%s: there already; --force replaces it", f.output);
    load_bar_init(&bar, f.output, &bar_options);
    bar.verb = "writing";
    rd_convert_options_default(&o);
    o.type = f.type;
    o.pre = f.pre;
    o.merge_lora = f.lora;
    o.merge_scale = f.scale;
    o.n_threads = f.n_threads;
    o.progress = bar_options.progress;
    o.progress_user = bar_options.progress_user;
    o.cancelled = was_stopped;
    cli_on_stop(&a);
    st = rd_convert(path, f.output, &o, &err);
    load_bar_end(&bar);
    if (st == RD_E_CANCELLED) return EXIT_INTERRUPTED;
    return st == RD_OK ? EXIT_DONE : cli_fail_at(words[0], st, &err);
}

const struct command cmd_convert = {
    .name = "convert",
    .section = "Look inside",
    .summary = "write a model, also a directory of safetensors, as a GGUF file",
    .words = "MODEL",
    .about = "MODEL is a directory as it comes from the Hugging Face hub (config.json, tokenizer.json, *.safetensors, "
             "also MLX's 2 to 8 bit), or a GGUF file. The output is for radish and llama.cpp. "
             "q4_k_m is Q4_K with Q6_K for the head and half of the layers' value and down matrices.",
    .examples = "  radish convert ./Qwen3-0.6B -o qwen3-0.6b.gguf --type q8_0\n"
                "  radish convert model-f16.gguf -o model-q4.gguf --type q4_k_m\n"
                "  radish convert smollm2 -o pirate.gguf --merge-lora ./pirate\n",
    .groups = convert_groups,
    .min_words = 1,
    .max_words = 1,
    .run = run_convert,
};
