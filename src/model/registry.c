/* model/registry.c - the list of architectures. A new one is one line here. */
#include <string.h>
#include "model/model_arch.h"

#define ARCH_LIST(FIRST, NEXT)                                                                                         \
    FIRST(gemma2)                                                                                                      \
    NEXT(gemma3)                                                                                                       \
    NEXT(llama)                                                                                                        \
    NEXT(qwen2)                                                                                                        \
    NEXT(qwen3)

#define ARCH_EXTERN(name) extern const struct model_arch model_##name;
ARCH_LIST(ARCH_EXTERN, ARCH_EXTERN)

#define ARCH_ENTRY(name) &model_##name,
static const struct model_arch *const archs[] = {ARCH_LIST(ARCH_ENTRY, ARCH_ENTRY)};

const struct model_arch *model_arch_find(const char *name, size_t n)
{
    for (size_t a = 0; a < sizeof(archs) / sizeof(archs[0]); a++)
        for (size_t i = 0; i < sizeof(archs[a]->names) / sizeof(archs[a]->names[0]) && archs[a]->names[i]; i++)
            if (strlen(archs[a]->names[i]) == n && !memcmp(archs[a]->names[i], name, n)) return archs[a];
    return NULL;
}

#define ARCH_FIRST_NAME(name) #name
#define ARCH_NEXT_NAME(name)  ", " #name

const char *model_known_archs(void)
{
    return ARCH_LIST(ARCH_FIRST_NAME, ARCH_NEXT_NAME);
}
