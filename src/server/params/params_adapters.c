/* server/params/params_adapters.c - which adapters a body asks for: by the name of a model, or as llama-server's list. */
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "server/params/params_custom.h"

static int no_memory(struct api_error *e)
{
    return api_error_set(e, 503, NULL, "out of memory");
}

bool param_is_scale(const json_t *v)
{
    return json_is_number(v) && fabs(json_number_value(v)) <= 1000;
}

int param_lora(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    size_t n = json_array_size(v);

    mem_free(p->lora);
    p->n_lora = 0;
    p->lora = mem_zalloc(n + 1, sizeof(*p->lora));
    if (!p->lora) return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_object_get(json_array_get(v, i), "id"),
                     *scale = json_object_get(json_array_get(v, i), "scale");

        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return api_error_set(e, 400, name, "%s: element %zu: id: the number of an adapter wanted", name, i);
        if (scale && !param_is_scale(scale))
            return api_error_set(e, 400, name, "%s: element %zu: scale: a number within -1000 and 1000 wanted", name,
                                 i);
        p->lora[p->n_lora++] = (struct lora_scale){json_integer_value(id), scale ? json_number_value(scale) : 1};
    }
    return 0;
}

/* Room for all that the body can name, and the list. */
struct finding {
    struct rd_adapter *known;
    uint32_t n_known;
    struct gen_params *p;
};

static int use(struct finding *f, const struct rd_adapter *a, double scale, struct api_error *e)
{
    struct gen_params *p = f->p;

    for (uint32_t i = 0; i < p->n_adapters; i++)
        if (strcmp(p->adapters[i].name, a->name) == 0)
            return api_error_set(e, 400, "lora", "lora: the adapter `%s` is asked for twice", a->name);
    p->adapters[p->n_adapters].name = mem_strdup(a->name);
    if (!p->adapters[p->n_adapters].name) return no_memory(e);
    p->adapters[p->n_adapters++].scale = scale;
    return 0;
}

/* "NAME", "MODEL:NAME"; NULL: there is none of that name. */
static const struct rd_adapter *find_named(const struct finding *f, const char *model_id, const char *name)
{
    size_t n = strlen(model_id);
    const char *behind = strncmp(name, model_id, n) == 0 && name[n] == ':' ? name + n + 1 : name;

    for (uint32_t i = 0; i < f->n_known; i++)
        if (strcmp(f->known[i].name, name) == 0 || strcmp(f->known[i].name, behind) == 0) return &f->known[i];
    return NULL;
}

static int use_listed(struct finding *f, const struct lora_scale *l, struct api_error *e)
{
    for (uint32_t i = 0; i < f->n_known; i++)
        if (f->known[i].id == l->id) return use(f, &f->known[i], l->scale, e);
    return api_error_set(e, 400, "lora", "lora: there is no adapter %lld; GET /lora-adapters lists them",
                         (long long)l->id);
}

static int find_all(struct finding *f, const json_t *body, const struct served_model *m, struct api_error *e)
{
    const char *name = json_plain(json_object_get(body, "model"));
    const struct rd_adapter *a =
        name && *name && !param_is_model(name, &m->info) ? find_named(f, m->info.model_id, name) : NULL;
    int rc = a ? 0 : param_check_model(body, &m->info, e);

    if (rc == 0 && (a || f->p->lora)) {
        f->p->adapters = mem_zalloc((size_t)f->p->n_lora + 2, sizeof(*f->p->adapters));
        if (!f->p->adapters) rc = no_memory(e);
    }
    if (rc == 0 && a) {
        f->p->model = mem_strdup(name);
        rc = f->p->model ? use(f, a, NAN, e) : no_memory(e);
    }
    for (uint32_t i = 0; rc == 0 && i < f->p->n_lora; i++) rc = use_listed(f, &f->p->lora[i], e);
    return rc;
}

int param_adapters(const json_t *body, const struct served_model *m, struct gen_params *p, struct api_error *e)
{
    struct finding f = {.p = p};
    const char *name = json_plain(json_object_get(body, "model"));
    int rc;

    if (!p->lora && (!name || !*name || param_is_model(name, &m->info))) return param_check_model(body, &m->info, e);
    f.known = served_adapters(m->engine, &f.n_known);
    if (!f.known) return no_memory(e);
    rc = find_all(&f, body, m, e);
    mem_free(f.known);
    return rc;
}

int param_check_alone(const json_t *body, const struct served_model *m, struct api_error *e)
{
    const char *name = json_plain(json_object_get(body, "model"));
    struct finding f = {0};
    int rc = param_check_model(body, &m->info, e);

    if (rc == 0 || !name) return rc;
    f.known = served_adapters(m->engine, &f.n_known);
    if (f.known && find_named(&f, m->info.model_id, name))
        rc =
            api_error_set(e, 400, "model", "model: an adapter is for answers that are generated; here it is `%s` alone",
                          m->info.model_id);
    mem_free(f.known);
    return rc;
}
