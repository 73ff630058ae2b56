/* cli/transcript.h - the messages of a chat, and the file that keeps them.
 *
 * A saved conversation is {"model": NAME, "messages": [{"role", "content"}, ...]}, mode 0600; a bare array of messages is
 * loaded, too. Both are what POST /v1/chat/completions takes.
 * Thread  main thread.
 * Errors  a message on stderr, and the conversation is as it was.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "base/buf.h"

struct transcript {
    json_t *messages;
    json_t *images; /* parts that the next user message begins with; NULL: none */
};

/* system: NULL or empty: none. false: out of memory. */
bool transcript_init(struct transcript *c, const char *system);
void transcript_deinit(struct transcript *c);

/* The system message's text; NULL: none. */
const char *transcript_system(const struct transcript *c);
/* Replaced where there is one; empty: taken away. */
bool transcript_set_system(struct transcript *c, const char *text);

bool transcript_add(struct transcript *c, const char *role, const char *text, size_t n);
/* The next user message has this file's image before its text. */
bool transcript_attach(struct transcript *c, const char *path);
/* Takes the last user message, and what follows it, away; question gets its text, and its images are the next one's again;
 * may be NULL. false: there is none. */
bool transcript_undo(struct transcript *c, struct buf *question);
/* The messages as a JSON array. */
bool transcript_dump(const struct transcript *c, struct buf *json);

/* replace: the file may be there already. */
bool transcript_save(const struct transcript *c, const char *model, const char *path, bool replace);
bool transcript_load(struct transcript *c, const char *path);
