/* cli/serve_models.h - the models of `radish serve`, by number: those that its command line names, then those that are fetched
 * while it runs (serve_downloads.h).
 *
 * A number and its name hold until the end. A path does not: a name that is fetched again, in another revision, has another
 * file, which the next load takes; the one before stays in the cache of the hub, so whoever has it open keeps it.
 *
 * Thread  serve_models_find: before the server runs. The rest: any thread; serve_models_fetched is one at a time.
 */
#pragma once
#include "cli/cli_model.h"
#include "cli/model_list.h"
#include "server/server.h"

struct serve_models;

/* RD_E_NOMEM. */
rd_status serve_models_create(struct serve_models **out);
/* NULL is fine. */
void serve_models_destroy(struct serve_models *m);

/* Those that the words of a command line name: a model each, or a folder of them. o: for what is to compute it. false: a
 * message says why. */
bool serve_models_find(struct serve_models *m, const struct rd_options *o, const char *const *words, uint32_t n_words);

/* A model that lies at path, in the cache of the hub: served from now on, as `radish list` calls it or as it is called here
 * already. name: that one.
 * RD_E_UNSUPPORTED, RD_E_FORMAT ..: this build cannot load it; RD_E_INVALID: its name is too long; RD_E_FULL: there are
 * LIMIT_SERVED_MODELS; RD_E_NOMEM. Nothing has changed then. */
rd_status serve_models_fetched(struct serve_models *m, const char *path, char name[MODEL_NAME_BYTES],
                               struct rd_error *err);

uint32_t serve_models_count(const struct serve_models *m);
/* Until m is destroyed. */
const char *serve_models_name(const struct serve_models *m, uint32_t model);
void serve_models_path(struct serve_models *m, uint32_t model, char path[CLI_PATH_BYTES]);
/* Whether it could be loaded, as far as its file tells without its weights: RD_E_UNSUPPORTED, RD_E_FORMAT, RD_E_IO .. */
rd_status serve_models_check(struct serve_models *m, uint32_t model, struct rd_error *err);
/* It was not named at the start: what the command line says of its own model does not hold for it. */
bool serve_models_was_fetched(const struct serve_models *m, uint32_t model);

/* For server_options; valid as long as m. Of a server that began with one model, that one names itself. */
struct server_models serve_models_seam(struct serve_models *m);
