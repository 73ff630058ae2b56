/* cli/serve_downloads.h - downloads that clients of `radish serve` ask for: as `radish pull`, one after the other, on a thread of
 * their own that begins with the first. What was fetched is served from then on (serve_models.h).
 *
 * The hub and what it may be asked are the process's environment, as for pull: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE.
 *
 * Thread  any thread. Searches and looks are one at a time: a second is RD_E_FULL.
 */
#pragma once
#include "server/server.h"

struct serve_downloads;
struct serve_models;

/* models outlives it. RD_E_NOMEM. */
rd_status serve_downloads_create(struct serve_models *models, struct serve_downloads **out);
/* Cancels what runs and waits for it; what came stays, and is gone on with by the next. NULL is fine. */
void serve_downloads_destroy(struct serve_downloads *d);

/* For server_options; valid as long as d. */
struct server_downloads serve_downloads_seam(struct serve_downloads *d);
