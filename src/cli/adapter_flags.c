/* cli/adapter_flags.c - see the header. */
#include "cli/adapter_flags.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "cli/cli_model.h"

const struct arg adapter_args[] = {
    {.flag = "--lora",
     .kind = ARG_TEXTS,
     .value = "NAME=PATH",
     .at = offsetof(struct adapter_flags, lora),
     .is_served = true,
     .help = "an adapter (LoRA): a folder of PEFT's or a GGUF file; NAME=PATH:SCALE for "
             "more or less of it; without NAME= it "
             "is called as its file; may be given again"},
    {.flag = "--lora-bytes",
     .kind = ARG_BYTES,
     .value = "SIZE",
     .at = offsetof(struct adapter_flags, bytes),
     .fallback_text = "a quarter of memory; on a GPU half of what its cache leaves",
     .help = "what adapters in memory may take together; the one used longest ago leaves, and is read "
             "again when a request names it"},
    {0}};

/* "name=path:scale", cut apart in place. */
static bool parse(char *text, struct rd_adapter_file *out)
{
    char *equals = strchr(text, '='), *path = equals ? equals + 1 : text, *colon = strrchr(path, ':'), *end = NULL;
    size_t n = strlen(path);

    out->scale = 1;
    if (colon && colon[1]) {
        double scale = strtod(colon + 1, &end);

        if (*end == 0) { /* "nan", too: that it is no scale is said when it is loaded */
            out->scale = scale;
            *colon = 0;
        }
    }
    while ((n = strlen(path)) > 1 && path[n - 1] == '/') path[n - 1] = 0;
    out->path = path;
    if (equals) {
        *equals = 0;
        out->name = text;
    } else {
        out->name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    }
    return *out->name && *out->path;
}

bool adapter_flags_apply(struct adapter_flags *f, bool applied, struct rd_options *o)
{
    for (uint32_t i = 0; i < f->lora.n; i++) {
        f->names[i] = mem_strdup(f->lora.items[i]);
        if (!f->names[i]) {
            cli_fail("out of memory");
            return false;
        }
        if (!parse(f->names[i], &f->files[i])) {
            cli_fail("--lora %s: NAME=PATH or NAME=PATH:SCALE wanted", f->lora.items[i]);
            return false;
        }
        if (applied) f->files[i].applied = f->files[i].scale;
    }
    o->adapters = f->files;
    o->n_adapters = f->lora.n;
    o->adapter_bytes = f->bytes;
    return true;
}

void adapter_flags_deinit(struct adapter_flags *f)
{
    for (uint32_t i = 0; i < f->lora.n; i++) mem_free(f->names[i]);
    memset(f->names, 0, sizeof(f->names));
}
