/* cli/model_list.h - the models in a folder: NAME.gguf files, and directories NAME with a config.json. Main thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model_entry {
    char name[256];                      /* as commands take it */
    bool is_dir;
    uint64_t n_bytes;                    /* of the file, or of the directory's *.safetensors */
};

/* Sorted by name. *list is the caller's (mem_free); a folder that is not there has none. false: out of memory. */
bool model_list(const char *folder, struct model_entry **list, size_t *n);
