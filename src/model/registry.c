/* model/registry.c - finds architectures, and what they mean for others, by the rows of arch_list.h. */
#include <string.h>
#include "model/model_arch.h"

#define ARCH(name) extern const struct model_arch model_##name;
#include "model/arch_list.h"
#undef ARCH

#define ARCH(name) &model_##name,
static const struct model_arch *const archs[] = {
#include "model/arch_list.h"
};
#undef ARCH

#define ARCH(name) ", " #name
static const char known[] =
#include "model/arch_list.h"
    ;
#undef ARCH

const struct model_arch *model_arch_find(const char *name, size_t n)
{
    for (size_t a = 0; a < sizeof(archs) / sizeof(archs[0]); a++)
        for (size_t i = 0; i < sizeof(archs[a]->names) / sizeof(archs[a]->names[0]) && archs[a]->names[i]; i++)
            if (strlen(archs[a]->names[i]) == n && !memcmp(archs[a]->names[i], name, n)) return archs[a];
    return NULL;
}

const char *model_known_archs(void)
{
    return known + strlen(", ");
}

const char *model_chat_format(const char *arch)
{
    const struct model_arch *a = model_arch_find(arch, strlen(arch));

    return a ? a->chat : NULL;
}

static const struct hub_family *family_at(uint32_t i, const char **arch)
{
    for (size_t a = 0; a < sizeof(archs) / sizeof(archs[0]); i -= archs[a++]->n_hub)
        if (i < archs[a]->n_hub) {
            *arch = archs[a]->names[0];
            return &archs[a]->hub[i];
        }
    return NULL;
}

const struct hub_families *model_hub_families(void)
{
    static const struct hub_families families = {family_at};

    return &families;
}
