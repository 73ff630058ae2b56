/* hub/hub_ref.h - what a person writes to name a model of a hub, and which names of a hub may become paths.
 *
 *     ORG/NAME  ORG/NAME:QUANT  ORG/NAME/FOLDER/FILE  each with @REVISION behind NAME;  hf.co/ORG/NAME ...
 *
 * Everything that a hub says is foreign: what is to become a part of a path passes a check here first.
 * Thread  any thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "radish/status.h"

enum {
    HUB_REPO_BYTES = 200, /* "org/name", its end included */
    HUB_REVISION_BYTES = 200,
    HUB_LABEL_BYTES = 32,  /* of a quantisation, upper case */
    HUB_FILE_BYTES = 1024, /* a path inside a repository */
    HUB_DEPTH = 32         /* folders and file of such a path */
};

struct hub_ref {
    char repo[HUB_REPO_BYTES];
    char revision[HUB_REVISION_BYTES]; /* "main" when none was named */
    char label[HUB_LABEL_BYTES];       /* "": none was named */
    char file[HUB_FILE_BYTES];         /* "": none was named; else label is "" */
};

/* RD_E_INVALID: err says what is wrong with it. */
rd_status hub_ref_parse(const char *word, struct hub_ref *out, struct rd_error *err);
/* Whether word has the form of one: a name, a slash, a name. Neither it nor its parts need exist. */
bool hub_ref_is(const char *word);

/* A relative path without empty parts, ".", "..", backslashes, control characters, and no part that a file system would
 * refuse. */
bool hub_path_is_safe(const char *path);
/* 40 hexadecimal digits, lower case. */
bool hub_commit_is_safe(const char *commit);
/* As a path, and without what git refuses in names. */
bool hub_revision_is_safe(const char *revision);
/* A blob's name: 40 or 64 hexadecimal digits, lower case. */
bool hub_digest_is_safe(const char *digest);
