/* tests/model/test_registry.c - what an architecture means for others is read from its row. */
#include <string.h>
#include "format/hub/hub_family.h"
#include "model/model_arch.h"
#include "test.h"

TEST(every_architecture_has_its_columns)
{
    static const char *const names[] = {"gemma2", "gemma3", "llama", "qwen2", "qwen3"};

    CHECK_STR(model_known_archs(), "gemma2, gemma3, llama, qwen2, qwen3, qwen2vl, qwen3vl");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct model_arch *a = model_arch_find(names[i], strlen(names[i]));

        CHECK(a && a->read_config && a->forward && a->n_weights > 0 && a->n_hub > 0);
    }
    CHECK(model_arch_find("llama4", 6) == NULL);
}

TEST(a_chat_format_is_a_column)
{
    CHECK_STR(model_chat_format("gemma3"), "gemma");
    CHECK_STR(model_chat_format("qwen2"), "chatml");
    CHECK(model_chat_format("llama") == NULL); /* its vocabulary tells */
    CHECK(model_chat_format("unknown") == NULL);
}

TEST(every_model_type_of_the_hub_leads_to_an_architecture)
{
    static const char *const types[] = {"gemma2", "gemma3_text", "gemma3",   "llama",      "mistral",
                                        "qwen2",  "qwen3",       "qwen2_vl", "qwen2_5_vl", "qwen3_vl"};
    const struct hub_families *families = model_hub_families();
    const struct hub_family *f;
    const char *arch;
    uint32_t i;

    for (i = 0; (f = families->at(i, &arch)); i++) {
        CHECK(i < sizeof(types) / sizeof(types[0]) && model_arch_find(arch, strlen(arch)));
        CHECK_STR(f->model_type, types[i]);
        CHECK(f->act && f->act_key && f->n_heads > 0 && f->n_ctx > 0 && f->theta > 0);
    }
    CHECK_EQ(i, sizeof(types) / sizeof(types[0]));
}
