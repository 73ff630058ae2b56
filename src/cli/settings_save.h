/* cli/settings_save.h - the configuration file (settings.h) written by the server, so that what was set while it ran holds at
 * its next start. It is read again before, so what others wrote into it meanwhile stays; it keeps its mode and owner, and
 * a link stays a link to it. It appears whole or not at all.
 *
 * Thread  any; the caller sees to it that one saves at a time.
 * Errors  a text for clients, without paths; what the system said of the path is in the log.
 */
#pragma once
#include "cli/settings.h"

struct setting_change {
    const char *key, *text; /* text NULL: out of the file */
};

/* The file that is written: the one that was read, else the one that documentation names first. false: RADISH_CONFIG is
 * empty, or there is no home; *why says so. */
bool settings_save_path(const struct settings *s, char path[LIMIT_PATH_BYTES], const char **why);
/* NULL: it could be written, as far as can be seen without doing it; else why not. */
const char *settings_save_refused(const char *path);
/* All changes or none. RD_E_UNSUPPORTED: it may not be written; RD_E_FORMAT: it cannot be read any more; RD_E_IO, .. */
rd_status settings_save(const char *path, const struct setting_change *list, size_t n, struct rd_error *err);
