/* api/api_tokenizer.c - tokenizer.json and tokenizer_config.json from disk. */
#include "api/api_tokenizer.h"
#include <stdio.h>
#include <string.h>
#include "api/api_state.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"

#define NAME     "tokenizer.json"
#define CONFIG   "tokenizer_config.json"
#define TEMPLATE "chat_template.jinja"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), n_end = strlen(end);

    return n >= n_end && strcmp(s + n - n_end, end) == 0;
}

bool api_is_tokenizer_json(const char *path)
{
    char inside[4096];

    if (!path) return false;
    if (ends_with(path, ".json")) return true;
    return snprintf(inside, sizeof(inside), "%s/" NAME, path) < (int)sizeof(inside) && file_exists(inside);
}

/* The template of tokenizer_config.json: a string, or a list of {"name", "template"} with a "default". */
static const char *find_template(const json_t *config)
{
    const json_t *v = json_object_get(config, "chat_template");

    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(one, "name"));

        if (name && strcmp(name, "default") == 0) return json_string_value(json_object_get(one, "template"));
    }
    return json_string_value(v);
}

/* jinja: the file beside, which goes first; or NULL. */
static rd_status load_template(rd_engine *e, const char *config, size_t n, const char *jinja, struct rd_error *err)
{
    struct text_span bos = tokenizer_piece(e->tokenizer, tokenizer_bos(e->tokenizer), true);
    struct text_span eos = tokenizer_piece(e->tokenizer, tokenizer_eos(e->tokenizer), true);
    char bos_text[256], eos_text[256];
    json_t *json = config ? json_loadb(config, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL) : NULL;
    const char *text = jinja ? jinja : find_template(json);
    rd_status st;

    snprintf(bos_text, sizeof(bos_text), "%.*s", (int)bos.n, bos.n ? bos.s : "");
    snprintf(eos_text, sizeof(eos_text), "%.*s", (int)eos.n, eos.n ? eos.s : "");
    e->info.has_chat_template = text != NULL;
    st = text ? chat_template_create(text, strlen(text), bos_text, eos_text, &e->chat, err)
              : chat_template_builtin("chatml", bos_text, eos_text, &e->chat, err);
    json_decref(json);
    return st;
}

static void fill_info(rd_engine *e, const char *folder)
{
    const char *base = strrchr(folder, '/');

    snprintf(e->info.model_id, sizeof(e->info.model_id), "%.255s", base && base[1] ? base + 1 : folder);
    e->info.created_s = clock_wall_s(clock_system());
    e->info.n_vocab = tokenizer_n_tokens(e->tokenizer);
    e->info.bos = tokenizer_bos(e->tokenizer);
    e->info.eos = tokenizer_eos(e->tokenizer);
    api_embed_init(e);
}

rd_status api_open_tokenizer_json(const char *path, rd_engine **out, struct rd_error *err)
{
    char folder[4096], name[4096 + 32];
    bool is_file = ends_with(path, ".json");
    const char *slash = strrchr(path, '/');
    struct tokenizer_files files = {0};
    char *json = NULL, *config = NULL, *jinja = NULL;
    size_t n_jinja;
    rd_engine *e;
    rd_status st;

    *out = NULL;
    if (strlen(path) >= sizeof(folder)) return error_set(err, RD_E_INVALID, "the path is too long");
    json_set_alloc_funcs(api_json_alloc, mem_free);
    snprintf(folder, sizeof(folder), "%.*s", is_file ? (int)(slash ? slash - path : 0) : (int)strlen(path), path);
    if (is_file && !slash) snprintf(folder, sizeof(folder), ".");
    e = mem_zalloc(1, sizeof(*e));
    if (!e) return error_set(err, RD_E_NOMEM, "out of memory");
    image_pot_init(&e->pot);
    snprintf(name, sizeof(name), "%s/" NAME, folder);
    st = file_read_all(is_file ? path : name, LIMIT_TOKENIZER_BYTES, &json, &files.n_json, err);
    snprintf(name, sizeof(name), "%s/" CONFIG, folder);
    if (st == RD_OK && file_exists(name))
        st = file_read_all(name, LIMIT_TOKENIZER_BYTES, &config, &files.n_config, err);
    snprintf(name, sizeof(name), "%s/" TEMPLATE, folder);
    if (st == RD_OK && file_exists(name)) st = file_read_all(name, LIMIT_TEMPLATE_BYTES, &jinja, &n_jinja, err);
    files.json = json;
    files.config = config;
    if (st == RD_OK) st = tokenizer_from_json(&files, &e->tokenizer, err);
    mem_free(json);
    if (st == RD_OK) st = api_texts_init(e, err);
    if (st == RD_OK) st = load_template(e, config, files.n_config, jinja, err);
    mem_free(jinja);
    mem_free(config);
    if (st == RD_OK) {
        fill_info(e, folder);
        *out = e;
    } else {
        rd_close(e);
    }
    return st;
}
