/* cli/adapter_flags.h - --lora NAME=PATH:SCALE of the commands that load a model. Thread  main. */
#pragma once
#include <stdbool.h>
#include "cli/args.h"
#include "radish/radish.h"

struct adapter_flags {
    struct arg_texts lora;
    uint64_t bytes;
    /* what adapter_flags_apply makes of them */
    char *names[LIMIT_STOP_STRINGS];
    struct rd_adapter_file files[LIMIT_STOP_STRINGS];
};

/* -> struct adapter_flags */
extern const struct arg adapter_args[];
/* Into o, which refers to f from then on. applied: every request is computed with all of them. false: it was told why. */
bool adapter_flags_apply(struct adapter_flags *f, bool applied, struct rd_options *o);
void adapter_flags_deinit(struct adapter_flags *f);
