/* format/hub/hf_text.c - the text side of a directory: tokenizer files as they are, the chat template, the tokens that end
 * a text. */
#include <stdio.h>
#include "base/arena.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "format/hub/hf_inside.h"

static rd_status read_text(struct hf_dir *dir, const char *name, size_t max, char **text, size_t *n,
                           struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];
    rd_status st = hf_path(dir, name, path, sizeof(path), err);

    if (st != RD_OK || !file_exists(path)) return st;
    return file_read_all(path, max, text, n, err);
}

/* Of tokenizer_config.json: a text, or a list of {"name", "template"} with a "default". */
static const json_t *find_template(const json_t *config)
{
    const json_t *v = json_object_get(config, "chat_template");

    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(one, "name"));

        if (name && !strcmp(name, "default")) return json_object_get(one, "template");
    }
    return v;
}

static rd_status put_template(struct hf_dir *dir, struct gguf_writer *w, struct rd_error *err)
{
    static const char key[] = "tokenizer.chat_template";
    json_t *config = NULL;
    const json_t *text;
    char *jinja = NULL;
    json_error_t why;
    size_t n = 0;
    rd_status st = read_text(dir, "chat_template.jinja", LIMIT_TEMPLATE_BYTES, &jinja, &n, err);

    if (st != RD_OK) return st;
    if (jinja) {
        gguf_add_str(w, key, jinja, n);
        mem_free(jinja);
        return RD_OK;
    }
    if (!dir->text.config) return RD_OK;
    config = json_loadb(dir->text.config, dir->text.n_config, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &why);
    if (!config && (json_error_code(&why) == json_error_out_of_memory || !why.text[0]))
        return error_set(err, RD_E_NOMEM, "tokenizer_config.json: out of memory");
    if (!config) return error_set(err, RD_E_FORMAT, "tokenizer_config.json: line %d: %.150s", why.line, why.text);
    text = find_template(config);
    if (json_is_string(text)) gguf_add_str(w, key, json_string_value(text), json_string_length(text));
    json_decref(config);
    return RD_OK;
}

static void add_end(struct model_text *t, const json_t *v)
{
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < LIMIT_VOCAB &&
        t->n_ends < MODEL_TEXT_ENDS)
        t->ends[t->n_ends++] = (int32_t)json_integer_value(v);
}

/* "eos_token_id": one, or a list. */
static void add_ends(struct model_text *t, const json_t *object)
{
    const json_t *v = json_object_get(object, "eos_token_id");

    add_end(t, v);
    for (size_t i = 0; i < json_array_size(v); i++) add_end(t, json_array_get(v, i));
}

static rd_status find_ends(struct hf_dir *dir, struct rd_error *err)
{
    json_t *generation = NULL;
    rd_status st = hf_read_json(dir, "generation_config.json", LIMIT_CONFIG_BYTES, false, &generation, err);

    if (st != RD_OK) return st;
    add_ends(&dir->text, generation);
    json_decref(generation);
    add_ends(&dir->text, dir->config);
    add_ends(&dir->text, json_object_get(dir->config, "text_config"));
    return RD_OK;
}

rd_status hf_open_text(struct hf_dir *dir, struct gguf_writer *w, struct rd_error *err)
{
    struct model_text *t = &dir->text;
    rd_status st = read_text(dir, "tokenizer.json", LIMIT_TOKENIZER_BYTES, &dir->texts[0], &t->n_json, err);

    if (st == RD_OK)
        st = read_text(dir, "tokenizer_config.json", LIMIT_TOKENIZER_BYTES, &dir->texts[1], &t->n_config, err);
    t->json = dir->texts[0];
    t->config = dir->texts[1];
    if (st == RD_OK) st = put_template(dir, w, err);
    return st == RD_OK ? find_ends(dir, err) : st;
}
