/* cli/model_list.h - the models that commands find by name.
 *
 * In the folder of models: NAME.gguf files, directories NAME with a config.json, and links to either (radish pull --name).
 * In the cache of the hub: ORG/NAME:QUANT, or ORG/NAME/FILE where a file's name tells no quantisation of its own, or
 * ORG/NAME for a model as published; with @REVISION behind NAME unless that is main.
 * Thread  main thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/limits.h"

enum { MODEL_NAME_BYTES = 1536 };

struct model_entry {
    char name[MODEL_NAME_BYTES];   /* as commands take it */
    char path[LIMIT_PATH_BYTES];   /* its first file, or its directory */
    char target[LIMIT_PATH_BYTES]; /* of a link; "": it is none */
    bool is_dir, is_pulled;        /* is_pulled: in the cache of the hub */
    uint64_t n_bytes;              /* of the file and its other parts, or of the directory's *.safetensors */
};

/* Those in a folder, sorted by name. *list is the caller's (mem_free); a folder that is not there has none. false: out of
 * memory. */
bool model_list(const char *folder, struct model_entry **list, size_t *n);
/* Behind them those in the cache of the hub; what cannot be read there is left out. */
bool model_list_all(const char *folder, struct model_entry **list, size_t *n);
/* Links in the folder whose target is gone: name, path and target alone. */
bool model_list_dangling(const char *folder, struct model_entry **list, size_t *n);
/* The path of a model's part, from 1 on; a whole file is one part. false: it has fewer. */
bool model_part(const struct model_entry *e, unsigned number, char path[LIMIT_PATH_BYTES]);
