/* server/dialects/fim.c - pieces of text to one list of tokens. */
#include "server/dialects/fim.h"
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"
#include "server/dialects/token_list.h"

/* keep: this many at most; from_end: the last of them, else the first. */
static rd_status add_text(const rd_engine *engine, struct fim_text text, uint32_t keep, bool from_end,
                          struct token_list *to)
{
    int32_t *ids = NULL;
    uint32_t n = 0, skip;
    rd_status st = RD_OK;

    if (text.n == 0) return RD_OK;
    st = rd_tokenize(engine, text.s, text.n, false, false, &ids, &n, NULL);
    skip = st == RD_OK && from_end && n > keep ? n - keep : 0;
    if (st == RD_OK) st = token_list_add(to, ids + skip, n - skip < keep ? n - skip : keep);
    rd_free(ids);
    return st;
}

static struct fim_text text_of(const json_t *v, const char *otherwise)
{
    if (json_is_string(v)) return (struct fim_text){json_string_value(v), json_string_length(v)};
    return (struct fim_text){otherwise, strlen(otherwise)};
}

/* Other files of the project, as models that know file separators were taught; others get none. */
static rd_status add_extra(const rd_engine *engine, const struct rd_info *info, const struct fim_parts *p,
                           uint32_t keep, struct token_list *to)
{
    static const struct fim_text project = {"myproject\n", 10}, line = {"\n", 1}, name = {"filename\n", 9};
    const json_t *file;
    rd_status st;
    size_t i;

    if (json_array_size(p->extra) == 0 || info->fim_file < 0) return RD_OK;
    if (info->fim_repository >= 0) {
        if ((st = token_list_add_one(to, info->fim_repository)) != RD_OK) return st;
        if ((st = add_text(engine, project, UINT32_MAX, false, to)) != RD_OK) return st;
    }
    json_array_foreach(p->extra, i, file)
    {
        st = token_list_add_one(to, info->fim_file);
        if (st == RD_OK) st = add_text(engine, text_of(json_object_get(file, "filename"), "tmp"), keep, false, to);
        if (st == RD_OK) st = add_text(engine, line, UINT32_MAX, false, to);
        if (st == RD_OK) st = add_text(engine, text_of(json_object_get(file, "text"), ""), keep, false, to);
        if (st != RD_OK) return st;
        if (to->n >= keep) break;
    }
    if ((st = token_list_add_one(to, info->fim_file)) != RD_OK) return st;
    return add_text(engine, name, UINT32_MAX, false, to);
}

/* When all is too much, three quarters are for what is before the gap and one for what is behind it; other files get
 * what is left. */
static rd_status put_parts(const rd_engine *engine, const struct rd_info *info, const struct fim_parts *p,
                           struct token_list *to)
{
    struct token_list gap = {0}, front = {0};
    uint32_t keep = p->n_keep ? p->n_keep : UINT32_MAX;
    uint32_t keep_before = p->n_keep ? keep - keep / 4 : keep, keep_after = p->n_keep ? keep / 4 : keep;
    rd_status st;
    int32_t *bos = NULL;
    uint32_t n_bos = 0;

    st = token_list_add_one(&gap, info->fim_prefix);
    if (st == RD_OK) st = add_text(engine, p->before, keep_before, true, &gap);
    if (st == RD_OK) st = token_list_add_one(&gap, info->fim_suffix);
    if (st == RD_OK) st = add_text(engine, p->after, keep_after, false, &gap);
    if (st == RD_OK) st = token_list_add_one(&gap, info->fim_middle);
    if (st == RD_OK) st = add_text(engine, p->begun, UINT32_MAX, false, &gap);
    if (st == RD_OK) st = add_extra(engine, info, p, keep > gap.n ? keep - gap.n : 0, &front);
    if (st == RD_OK) st = rd_tokenize(engine, "", 0, true, false, &bos, &n_bos, NULL);
    if (st == RD_OK && n_bos > 0 && bos[0] == info->bos) st = token_list_add_one(to, info->bos);
    if (st == RD_OK) st = token_list_add(to, front.ids, front.n);
    if (st == RD_OK) st = token_list_add(to, gap.ids, gap.n);
    rd_free(bos);
    mem_free(gap.ids);
    mem_free(front.ids);
    return st;
}

int fim_prompt(const rd_engine *engine, const struct fim_parts *parts, const char *param, struct prompt *to,
               struct api_error *e)
{
    struct token_list list = {0};
    struct rd_info info = {.size = sizeof(info)};
    rd_status st;

    rd_get_info(engine, &info);
    if (info.fim_middle < 0)
        return api_error_set(e, 400, param, "%s: this model has no tokens for filling in the middle", param);
    if (parts->before.n + parts->after.n > LIMIT_FIM_BYTES)
        return api_error_set(e, 400, param, "%s: with the prompt at most %u bytes", param, LIMIT_FIM_BYTES);
    st = put_parts(engine, &info, parts, &list);
    if (st != RD_OK) {
        mem_free(list.ids);
        api_error_from_status(e, st, NULL);
        return -1;
    }
    mem_free(to->text);
    mem_free(to->tokens);
    *to = (struct prompt){.tokens = list.ids, .n_tokens = list.n};
    return 0;
}
