/* hub/hub_search.c - see hub_search.h. */
#include "hub/hub_search.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/limits.h"

static uint64_t count(const json_t *entry, const char *name)
{
    json_int_t n = json_integer_value(json_object_get(entry, name));

    return n > 0 ? (uint64_t)n : 0;
}

static bool has_tag(const json_t *entry, const char *tag)
{
    const json_t *tags = json_object_get(entry, "tags");

    for (size_t i = 0; i < json_array_size(tags); i++) {
        const char *one = json_string_value(json_array_get(tags, i));

        if (one && strcmp(one, tag) == 0) return true;
    }
    return false;
}

/* {"id": "org/name", "downloads", "likes", "tags": [..], "gated": false | "auto" | "manual"} */
static bool take_entry(const json_t *entry, struct hub_found *out)
{
    const char *id = json_string_value(json_object_get(entry, "id"));
    const json_t *gated = json_object_get(entry, "gated");
    struct hub_ref ref;

    if (!id || hub_ref_parse(id, &ref, NULL) != RD_OK || strcmp(ref.repo, id) != 0) return false;
    *out = (struct hub_found){.n_downloads = count(entry, "downloads"),
                              .n_likes = count(entry, "likes"),
                              .has_gguf = has_tag(entry, "gguf"),
                              .is_gated = gated && !json_is_false(gated) && !json_is_null(gated)};
    snprintf(out->repo, sizeof(out->repo), "%s", ref.repo);
    return true;
}

rd_status hub_search(struct hub_http *http, const char *endpoint, const char *words,
                     struct hub_found out[HUB_FOUND_MOST], size_t *n, struct rd_error *err)
{
    struct buf url = {.limit = 0}, text = {.limit = 0};
    json_t *list = NULL;
    json_error_t why;
    rd_status st;

    *n = 0;
    buf_printf(&url, "%s/api/models?limit=%d&sort=downloads&direction=-1&search=", endpoint, HUB_FOUND_MOST);
    hub_put_url_path(&url, words);
    st = url.failed ? error_set(err, RD_E_NOMEM, "out of memory")
                    : hub_http_text(http, url.data, LIMIT_HUB_ANSWER_BYTES, &text, NULL, err);
    if (st == RD_OK) list = text.n ? json_loadb(text.data, text.n, JSON_REJECT_DUPLICATES, &why) : NULL;
    if (st == RD_OK && !json_is_array(list))
        st = error_set(err, RD_E_FORMAT, "what the hub answers is no list of models");
    for (size_t i = 0; st == RD_OK && i < json_array_size(list) && *n < HUB_FOUND_MOST; i++)
        *n += take_entry(json_array_get(list, i), &out[*n]);
    json_decref(list);
    buf_deinit(&url);
    buf_deinit(&text);
    return st;
}
