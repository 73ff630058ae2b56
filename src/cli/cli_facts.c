/* cli/cli_facts.c - see cli_facts.h. */
#include "cli/cli_facts.h"
#include <stddef.h>
#include "cli/args.h"

const struct exit_row exit_rows[] = {
    {EXIT_DONE, NULL, "what was asked for is done"},
    {EXIT_FAILED, NULL, "it failed; a message on standard error says why"},
    {EXIT_USAGE, NULL, "the command line is wrong; nothing was done"},
    {EXIT_DEVICE, "serve", "the GPU, or the model's file, failed for good: start again"},
    {EXIT_INTERRUPTED, NULL, "Ctrl-C stopped it"},
    {0, NULL, NULL}};

const struct variable_row variable_rows[] = {
    {"RADISH_MODELS", "folder of the models that have a name; ~/.cache/radish/models when it is not set"},
    {"RADISH_PACKED", "folder of repacked weights; $XDG_CACHE_HOME/radish/packed, else ~/.cache/radish/packed"},
    {"RADISH_CACHE", "folder of computed prompts, empty: none; $XDG_CACHE_HOME/radish/kv, else ~/.cache/radish/kv"},
    {"RADISH_API_KEY", "the key that serve asks clients for, and that cache, ps and stop send"},
    {"RADISH_RUN_DIR", "folder of the servers that run; $XDG_RUNTIME_DIR/radish, else /tmp/radish-UID"},
    {"RADISH_NCCL", "NCCL's library, for --reduce nccl; libnccl.so.2 when it is not set"},
    {"RADISH_CONFIG",
     "the configuration file, empty: none; ~/.config/radish/radish.toml, else /etc/radish/radish.toml"},
    {"RADISH_FLAG", "of serve: any flag by its name, RADISH_KV_BYTES for --kv-bytes; empty: not set"},
    {"HF_ENDPOINT", "the hub that pull asks; https://huggingface.co when it is not set"},
    {"HF_TOKEN", "opens what is private or gated there; else what `hf auth login` stored"},
    {"HF_HUB_CACHE", "where pulled models lie; $HF_HOME/hub, else ~/.cache/huggingface/hub"},
    {"HF_HUB_OFFLINE", "1: pull only looks into the cache"},
    {NULL, NULL}};

const char *const other_variables[] = {"RADISH_BRIDGE_PYTHON",
                                       "RADISH_BENCH",
                                       "RADISH_BOMBS",
                                       "RADISH_BUILD",
                                       "RADISH_CONFORMANCE",
                                       "RADISH_CUDA_COMPUTE",
                                       "RADISH_CUDA_PEER",
                                       "RADISH_CUTS",
                                       "RADISH_EXPECT_ISA",
                                       "RADISH_FETCH_NAME",
                                       "RADISH_FETCH_TABLE",
                                       "RADISH_HEALTH_FLOOD",
                                       "RADISH_JOIN_APART",
                                       "RADISH_KV_OPS",
                                       "RADISH_LIBRARY",
                                       "RADISH_LONG",
                                       "RADISH_MODEL",
                                       "RADISH_PAGE",
                                       "RADISH_PEERS",
                                       "RADISH_PICTURES",
                                       "RADISH_SCHEDULES",
                                       "RADISH_SCHED_ONE",
                                       "RADISH_SEED",
                                       "RADISH_SIM_REQUESTS",
                                       "RADISH_TOKENIZERS",
                                       "RADISH_TEST_DEVICE",
                                       "RADISH_THREADS",
                                       "RADISH_TEMPLATE_GOLDENS",
                                       NULL};

const char fact_tagline[] = "runs language models and computes every common prefix once";

const char fact_model[] =
    "MODEL is a GGUF file, a directory of the Hugging Face hub, a name that `radish fetch` fetched "
    "(found in $RADISH_MODELS, else ~/.cache/radish/models), or ORG/NAME[:QUANT] that `radish pull` pulled.";

const char fact_examples[] =
    "  radish run smollm2 \"What is the capital of Japan?\"\n"
    "  git diff | radish run qwen2.5-coder-1.5b --system \"Write a commit message for this diff.\"\n"
    "  radish serve smollm2 --port 8000\n"
    "  radish bench smollm2 --threads 4 --batch 1,4,16\n";
