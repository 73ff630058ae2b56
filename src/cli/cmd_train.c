/* cli/cmd_train.c - `radish train`: an adapter that learns from a file of samples. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "cli/cli_model.h"
#include "cli/cli_signals.h"
#include "cli/commands.h"
#include "radish/train.h"

#define TRAINER(member) (offsetof(struct rd_train_options, trainer) + offsetof(struct rd_trainer_options, member))
#define RUN(member)     offsetof(struct rd_train_options, member)

static const struct arg data_args[] = {
    {.flag = "--data",
     .kind = ARG_TEXT,
     .at = RUN(data),
     .value = "FILE.jsonl",
     .fallback_text = "must be given",
     .help = "a sample a line: {\"messages\": [..], \"tools\": [..]}, {\"prompt\": .., \"completion\": ..} or "
             "{\"text\": ..}"},
    {.flag = "--eval-data",
     .kind = ARG_TEXT,
     .at = RUN(eval_data),
     .value = "FILE.jsonl",
     .fallback_text = "none",
     .help = "samples to evaluate with"},
    {.flag = "--eval-share",
     .kind = ARG_REAL,
     .at = RUN(eval_share),
     .value = "X",
     .max = 0.9,
     .fallback = "0",
     .help = "this share of the data is evaluated with, not learned from"},
    {.flag = "--all-tokens",
     .kind = ARG_SWITCH,
     .at = RUN(all_tokens),
     .help = "prompts are learned, too; else what the assistant says alone"},
    {.flag = "--output",
     .letter = 'o',
     .kind = ARG_TEXT,
     .at = RUN(out),
     .value = "DIR",
     .fallback_text = "must be given",
     .help = "folder of the adapter (PEFT's files), checkpoint.radish, log.jsonl and loss.svg"},
    {.flag = "--gguf", .kind = ARG_SWITCH, .at = RUN(gguf), .help = "adapter.gguf, too, as llama.cpp's"},
    {.flag = "--resume",
     .kind = ARG_SWITCH,
     .at = RUN(resume),
     .help = "go on from the folder's checkpoint, to the same bytes; without one, begin"},
    {0},
};

static const struct arg adapter_args_of_train[] = {
    {.flag = "--rank",
     .kind = ARG_U32,
     .at = TRAINER(rank),
     .value = "N",
     .min = 1,
     .max = 512,
     .fallback = "16",
     .help = "of A and B"},
    {.flag = "--alpha",
     .kind = ARG_REAL,
     .at = TRAINER(alpha),
     .value = "X",
     .fallback = "32",
     .help = "what they do is multiplied by alpha / rank"},
    {.flag = "--rslora", .kind = ARG_SWITCH, .at = TRAINER(rslora), .help = "by alpha / sqrt(rank) instead"},
    {.flag = "--bf16",
     .kind = ARG_SWITCH,
     .at = TRAINER(bf16),
     .help = "A and B are BF16 when computed with, and saved so; the optimiser keeps them as F32"},
    {.flag = "--dropout",
     .kind = ARG_REAL,
     .at = TRAINER(dropout),
     .value = "X",
     .max = 0.95,
     .fallback = "0",
     .help = "share of what A reads that is left out"},
    {.flag = "--targets",
     .kind = ARG_TEXT,
     .at = TRAINER(targets),
     .value = "NAMES",
     .fallback = "all",
     .help = "matrices with an adapter: all, or some of q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"},
    {0},
};

static const struct arg step_args[] = {
    {.flag = "--batch",
     .kind = ARG_U32,
     .at = RUN(batch),
     .value = "N",
     .min = 1,
     .max = 65536,
     .fallback = "8",
     .help = "samples of a step, in as many passes as they need"},
    {.flag = "--epochs",
     .kind = ARG_REAL,
     .at = RUN(epochs),
     .value = "X",
     .fallback = "3",
     .help = "times through the data"},
    {.flag = "--steps",
     .kind = ARG_U32,
     .at = RUN(n_steps),
     .value = "N",
     .fallback_text = "by epochs",
     .help = "in place of epochs"},
    {.flag = "--lr", .kind = ARG_REAL, .at = RUN(lr), .value = "X", .fallback = "2e-4", .help = "learning rate"},
    {.flag = "--schedule",
     .kind = ARG_TEXT,
     .at = RUN(schedule),
     .value = "NAME",
     .choices = "cosine|linear|constant",
     .fallback = "cosine",
     .help = "how it falls"},
    {.flag = "--warm-up",
     .kind = ARG_REAL,
     .at = RUN(warm_up),
     .value = "X",
     .max = 1,
     .fallback = "0.05",
     .help = "share of the steps over which it rises"},
    {.flag = "--clip",
     .kind = ARG_REAL,
     .at = TRAINER(clip),
     .value = "X",
     .fallback = "1",
     .help = "the gradient's norm at most; 0: as it is"},
    {.flag = "--weight-decay",
     .kind = ARG_REAL,
     .at = TRAINER(weight_decay),
     .value = "X",
     .fallback = "0",
     .help = "AdamW's, decoupled"},
    {.flag = "--beta1",
     .kind = ARG_REAL,
     .at = TRAINER(beta1),
     .value = "X",
     .max = 0.999999,
     .fallback = "0.9",
     .help = "AdamW's"},
    {.flag = "--beta2",
     .kind = ARG_REAL,
     .at = TRAINER(beta2),
     .value = "X",
     .max = 0.999999,
     .fallback = "0.999",
     .help = "AdamW's"},
    {.flag = "--eps", .kind = ARG_REAL, .at = TRAINER(eps), .value = "X", .fallback = "1e-8", .help = "AdamW's"},
    {.flag = "--seed",
     .kind = ARG_U64,
     .at = RUN(seed),
     .value = "N",
     .fallback = "1",
     .help = "of the order of samples, the first numbers, dropout"},
    {.flag = "--save-every",
     .kind = ARG_U32,
     .at = RUN(save_every),
     .value = "N",
     .min = 1,
     .fallback = "50",
     .help = "steps from checkpoint to checkpoint"},
    {.flag = "--eval-every",
     .kind = ARG_U32,
     .at = RUN(eval_every),
     .value = "N",
     .min = 1,
     .fallback = "50",
     .help = "steps from evaluation to evaluation"},
    {.flag = "--patience",
     .kind = ARG_U32,
     .at = RUN(patience),
     .value = "N",
     .fallback_text = "no end",
     .help = "evaluations without a better one, then it ends"},
    {0},
};

static const struct arg machine_args[] = {
    {.flag = "--device",
     .kind = ARG_TEXT,
     .at = TRAINER(device),
     .value = "NAME",
     .fallback = "cpu",
     .help = "what computes: cpu, or cuda: a GPU (cuda:1: that one), where the way back is in bf16"},
    {.flag = "--pass-tokens",
     .kind = ARG_U32,
     .at = TRAINER(pass_tokens),
     .value = "N",
     .min = 2,
     .fallback = "1024",
     .help = "computed at once; longer samples are cut"},
    {.flag = "--memory",
     .kind = ARG_BYTES,
     .at = TRAINER(memory_bytes),
     .value = "SIZE",
     .fallback_text = "a quarter",
     .help = "of activations; beyond it layers are computed again, to the same bits"},
    {.flag = "--kv-type",
     .kind = ARG_TEXT,
     .at = TRAINER(kv_type),
     .value = "TYPE",
     .choices = "f16|bf16|f32",
     .fallback = "f16",
     .help = "of keys and values, as they will be served: f16, bf16 or f32"},
    {.flag = "--threads",
     .letter = 't',
     .kind = ARG_U32,
     .at = TRAINER(n_threads),
     .value = "N",
     .fallback_text = "all cores",
     .help = "threads"},
    {.flag = "--cpu-isa",
     .kind = ARG_TEXT,
     .at = TRAINER(isa),
     .value = "NAME",
     .fallback_text = "the best",
     .help = "instruction set, as for serve"},
    {0},
};

static const struct arg_group train_groups[] = {{"Data", data_args, 0},
                                                {"Adapter", adapter_args_of_train, 0},
                                                {"Steps", step_args, 0},
                                                {"Machine", machine_args, 0},
                                                {NULL, NULL, 0}};

/* Ctrl-C, and a terminal that goes away: the step is finished and saved. A second time, or while there is no step to save
 * (the model and the data are read, the first step is computed): at once; what was saved before stays. */
static volatile sig_atomic_t is_stopped, has_stepped;

static void stop(int signal)
{
    static const char note[] = "\nradish: this step is finished and saved; once more: it ends at once\n";

    (void)signal;
    if (is_stopped || !has_stepped) _exit(EXIT_INTERRUPTED);
    is_stopped = 1;
    if (write(STDERR_FILENO, note, sizeof(note) - 1) < 0) return; /* nobody reads it */
}

struct train_bar {
    bool is_terminal, has_line;
    uint64_t drawn_ns;
};

static void clear(struct train_bar *bar)
{
    if (bar->has_line) fprintf(stderr, "\r\033[K");
    bar->has_line = false;
}

/* A line that is drawn over on a terminal; elsewhere one for every evaluation, and every tenth of the way. */
static int show(void *user, const struct rd_train_progress *p)
{
    enum { WIDTH = 24 };
    struct train_bar *bar = user;
    uint64_t now = clock_now_ns(clock_system()), tenth = p->n_steps > 10 ? p->n_steps / 10 : 1;
    char line[WIDTH + 1] = "";
    bool is_last = p->step == p->n_steps;

    has_stepped = 1;
    if (!isnan(p->eval_loss)) {
        clear(bar);
        fprintf(stderr, "step %llu: evaluation %.4f\n", (unsigned long long)p->step, p->eval_loss);
    }
    if (bar->is_terminal ? now - bar->drawn_ns < 100000000u && !is_last : p->step % tenth != 0 && !is_last)
        return is_stopped;
    bar->drawn_ns = now;
    for (int i = 0; i < WIDTH; i++) line[i] = (uint64_t)i * p->n_steps < p->step * WIDTH ? '#' : '.';
    fprintf(stderr, "%s[%s] %llu/%llu  loss %.4f  %.0f tokens/s  %.0f s left%s", bar->is_terminal ? "\r\033[K" : "",
            line, (unsigned long long)p->step, (unsigned long long)p->n_steps, p->loss, p->tokens_per_s,
            p->seconds_left, bar->is_terminal ? "" : "\n");
    bar->has_line = bar->is_terminal;
    return is_stopped;
}

static void tell_summary(const struct rd_train_options *o, const struct rd_train_summary *s)
{
    if (s->n_cut > 0)
        fprintf(stderr, "%llu samples were longer than %u tokens and were cut\n", (unsigned long long)s->n_cut,
                s->max_tokens);
    if (s->n_dropped > 0)
        fprintf(stderr, "%llu samples held nothing to learn and were left out\n", (unsigned long long)s->n_dropped);
    printf("%s: %llu steps of %llu samples, %llu numbers, loss %.4f", o->out, (unsigned long long)s->n_steps,
           (unsigned long long)s->n_samples, (unsigned long long)s->n_params, s->loss);
    if (!isnan(s->best_eval)) printf(", best evaluation %.4f", s->best_eval);
    printf("%s\n", s->stopped_early ? ", stopped early" : "");
}

static int run_train(const struct command *self, int argc, char **argv)
{
    const struct sigaction a = {.sa_handler = stop};
    struct rd_train_summary sum = {.size = sizeof(sum)};
    struct rd_error err = {RD_OK, ""};
    struct train_bar bar = {.is_terminal = isatty(STDERR_FILENO)};
    struct rd_train_options o;
    const char *words[ARGS_MAX_WORDS];
    uint32_t n_words;
    char path[CLI_PATH_BYTES];
    rd_status st;
    int rc;

    rd_train_options_default(&o);
    rc = args_parse(self, argc, argv, &o, words, &n_words);
    if (rc != ARGS_GO) return rc;
    if (!o.data || !o.out) {
        cli_fail("train: %s", o.data ? "where to? -o DIR is missing" : "learn what? --data FILE.jsonl is missing");
        return EXIT_USAGE;
    }
    if (!cli_find_model(words[0], path)) return EXIT_FAILED;
    o.trainer.model = path;
    o.progress = show;
    o.progress_user = &bar;
    cli_on_stop(&a);
    st = rd_train(&o, &sum, &err);
    if (bar.has_line) fputc('\n', stderr);
    if (st == RD_E_CANCELLED) {
        fprintf(stderr, "radish: %s; --resume goes on\n", err.text);
        return EXIT_INTERRUPTED;
    }
    if (st != RD_OK) return cli_fail_at(words[0], st, &err);
    tell_summary(&o, &sum);
    return EXIT_DONE;
}

const struct command cmd_train = {
    .name = "train",
    .section = "Train",
    .summary = "train an adapter (LoRA) on samples",
    .words = "MODEL",
    .about = "MODEL may be quantised; it stays as it is. Conversations are rendered by its chat template, and what the "
             "assistant says is learned. The folder is an adapter for `radish serve --lora`, PEFT and, with --gguf, "
             "llama.cpp. The result depends on data, flags and seed alone: not on threads, memory or interruptions. "
             "Processors with AMX compute gradients on it, which gives others than the bits of all processors "
             "without; --cpu-isa avx512 gives those there.",
    .examples = "  radish train smollm2 --data pirate.jsonl -o pirate\n"
                "  radish train smollm2 --data pirate.jsonl -o pirate --resume\n"
                "  radish serve smollm2 --lora pirate=pirate\n",
    .groups = train_groups,
    .min_words = 1,
    .max_words = 1,
    .run = run_train,
};
