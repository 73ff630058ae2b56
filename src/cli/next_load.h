/* cli/next_load.h - flags of `radish serve` that may be changed while it runs: what the next load of a model takes.
 *
 * The values are texts as on the command line, and rows of its tables check them. A load that fails because of them goes
 * back to those of the load before, so that a server does not lose its model by a number that somebody typed.
 *
 *     start (command line) -> next (set by clients) -> now (of the last load that succeeded)
 *                                  |
 *                                  +-> kept (in the configuration file: settings_save.h), if a client asks for it
 *
 * What the command line or the environment says wins over the file, so it cannot be kept there, and is refused. Kept
 * settings that a load fails with are taken out of the file again: the next start must not fail with them.
 *
 * Thread  next_load_begin and _end: the thread that loads; the rest: any thread.
 */
#pragma once
#include "cli/args.h"
#include "cli/settings.h"
#include "radish/radish.h"
#include "server/server.h"

struct next_load;

/* c: whose rows; o: as the command line filled it; said: where from. All outlive it. RD_E_NOMEM. */
rd_status next_load_create(const struct command *c, const struct rd_options *o, const struct settings *said,
                           struct next_load **out);
/* NULL is fine. */
void next_load_destroy(struct next_load *s);

/* Before a load: writes what was set since the start into *o; its strings stay valid until the next begin. */
void next_load_begin(struct next_load *s, struct rd_options *o);
/* After it. true: it failed with settings that no load had before; they are gone, begin again. */
bool next_load_end(struct next_load *s, rd_status st, const struct rd_error *err);

/* For server_options; valid as long as s. */
struct server_settings next_load_seam(struct next_load *s);
