/* hub/hub_search.h - which models a hub has whose names fit some words, the most downloaded first.
 *
 * Thread  the owner of http.
 * Errors  as hub_http_text; RD_E_FORMAT: what the hub says is no list of models. Entries whose names could be no model's are
 *         left out.
 */
#pragma once
#include "hub/hub_http.h"
#include "hub/hub_ref.h"

struct hub_found {
    char repo[HUB_REPO_BYTES];
    uint64_t n_downloads, n_likes;
    bool has_gguf, is_gated; /* gated: its makers let in by name; a token is wanted */
};

enum { HUB_FOUND_MOST = 30 };

rd_status hub_search(struct hub_http *http, const char *endpoint, const char *words,
                     struct hub_found out[HUB_FOUND_MOST], size_t *n, struct rd_error *err);
