/* tests/model/test_kv_fidelity.c - q4_0 and f8_e4m3 keys are refused where they ruin a model, and only there. */
#include "base/log.h"
#include "model/model.h"
#include "test.h"

static rd_status check(const char *arch, uint32_t head_dim, enum dtype keys, struct rd_error *err)
{
    struct model_config c = {.head_dim = head_dim};

    snprintf(c.arch, sizeof(c.arch), "%s", arch);
    return model_check_kv_types(&c, keys, err);
}

TEST(q4_0_keys_are_refused_where_they_ruin_the_model)
{
    struct rd_error err;

    CHECK_EQ(check("qwen2", 64, DTYPE_Q4_0, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "--kv-force") && strstr(err.text, "q8_0"));
    CHECK_EQ(check("qwen2", 128, DTYPE_Q4_0, &err), RD_E_INVALID);
    CHECK_EQ(check("gemma3", 256, DTYPE_Q4_0, &err), RD_E_INVALID);
    CHECK_OK(check("llama", 64, DTYPE_Q4_0, &err));
}

TEST(f8_e4m3_keys_are_refused_where_they_ruin_the_model)
{
    struct rd_error err;

    CHECK_EQ(check("qwen2", 128, DTYPE_F8_E4M3, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "--kv-force") && strstr(err.text, "q8_0/f8_e4m3"));
    CHECK_OK(check("qwen2", 64, DTYPE_F8_E4M3, &err));
    CHECK_OK(check("gemma3", 256, DTYPE_F8_E4M3, &err));
}

TEST(all_other_types_are_taken_everywhere)
{
    static const enum dtype types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_Q8_0};
    struct rd_error err;

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        CHECK_OK(check("qwen2", 128, types[i], &err));
        CHECK_OK(check("llama", 64, types[i], &err));
    }
}

static void count_lines(void *arg, enum log_level level, const char *line)
{
    (void)line;
    if (level == LOG_WARN) ++*(unsigned *)arg;
}

TEST(what_was_never_measured_is_taken_with_a_warning)
{
    struct rd_error err;
    unsigned n = 0;

    log_set_sink(count_lines, &n);
    CHECK_OK(check("unheard-of", 80, DTYPE_Q4_0, &err));
    log_set_sink(NULL, NULL);
    CHECK_EQ(n, 1);
}
