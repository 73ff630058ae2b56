/* tests/hub/test_hub_listing.c - which quantisations are among a model's files, and which one is taken. */
#include "base/mem.h"
#include "hub/hub_variants.h"
#include "test.h"

#define GIB (1ull << 30)

static const char *label(const char *path)
{
    static char text[HUB_LABEL_BYTES];

    hub_label_of(path, text);
    return text;
}

TEST(labels_as_hubs_write_them)
{
    CHECK_STR(label("SmolLM2-135M-Instruct-Q4_K_M.gguf"), "Q4_K_M");
    CHECK_STR(label("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"), "Q4_K_M");
    CHECK_STR(label("model.Q8_0.gguf"), "Q8_0");
    CHECK_STR(label("BF16/model-BF16-00001-of-00002.gguf"), "BF16");
    CHECK_STR(label("UD-Q4_K_XL/model-UD-Q4_K_XL-00001-of-00002.gguf"), "UD-Q4_K_XL");
    CHECK_STR(label("m-IQ2_XXS.gguf"), "IQ2_XXS");
    CHECK_STR(label("m-fp16.gguf"), "FP16");
    CHECK_STR(label("Q4_K_M-trained-Q8_0.gguf"), "Q4_K_M"); /* the longest; there is no better rule */
    CHECK_STR(label("m.gguf"), "");
    CHECK_STR(label("XQ8_0Y.gguf"), "");
    CHECK_STR(label("Q8_0.txt"), "");
    CHECK_STR(label("Q8_0/m.gguf"), "");
}

struct known {
    const char *path;
    uint64_t n_bytes;
};

/* Takes the files into m, by path. */
static bool fill(struct hub_listing *m, const struct known *files, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!mem_grow((void **)&m->files, &m->cap, m->n_files + 1, sizeof(*m->files))) return false;
        m->files[m->n_files] = (struct hub_file){.path = mem_strdup(files[i].path), .n_bytes = files[i].n_bytes};
        if (!m->files[m->n_files].path) return false;
        m->n_files++;
    }
    return hub_find_variants(m);
}

/* What is chosen of the files, in so much memory; err's text if nothing is. */
static const char *choice(const struct known *files, size_t n, const char *word, uint64_t n_memory)
{
    static char text[HUB_FILE_BYTES];
    struct hub_listing m = {.n_files = 0};
    struct hub_ref ref = {.repo = "o/n"};
    struct buf why = {.limit = 0};
    struct rd_error err = {RD_OK, ""};
    uint32_t first = 0;

    if (word) snprintf(strchr(word, '.') ? ref.file : ref.label, sizeof(ref.label), "%s", word);
    snprintf(text, sizeof(text), "no memory");
    if (fill(&m, files, n)) {
        if (hub_listing_choose(&m, &ref, n_memory, &first, &why, &err) != RD_OK)
            snprintf(text, sizeof(text), "%s", err.text);
        else
            snprintf(text, sizeof(text), "%s", first == UINT32_MAX ? "folder" : m.files[first].path);
    }
    hub_listing_deinit(&m);
    buf_deinit(&why);
    return text;
}

static const struct known many[] = {
    {"m-BF16.gguf", 16 * GIB},       {"m-IQ4_XS.gguf", 4 * GIB},          {"m-Q2_K.gguf", 3 * GIB},
    {"m-Q3_K_M.gguf", 4 * GIB - 99}, {"m-Q4_K_M.gguf", 5 * GIB},          {"m-Q4_K_S.gguf", 5 * GIB - 99},
    {"m-Q8_0.gguf", 8 * GIB},        {"m-UD-Q4_K_XL.gguf", 5 * GIB + 99}, {"mmproj-m-Q8_0.gguf", 9}};

TEST(the_best_that_fits)
{
    size_t n = sizeof(many) / sizeof(*many);

    CHECK_STR(choice(many, n, NULL, 64 * GIB), "m-Q4_K_M.gguf");
    CHECK_STR(choice(many, n, NULL, 5 * GIB + 5 * GIB / 8 + GIB / 2), "m-Q4_K_M.gguf"); /* just */
    CHECK_STR(choice(many, n, NULL, 5 * GIB + 5 * GIB / 8 + GIB / 2 - 1), "m-Q4_K_S.gguf");
    CHECK_STR(choice(many, n, NULL, 5 * GIB), "m-Q3_K_M.gguf");
    CHECK_STR(choice(many, n, NULL, 4 * GIB), "m-Q2_K.gguf");
    CHECK(strstr(choice(many, n, NULL, 3 * GIB), "the smallest, Q2_K, has 3.0 GiB and wants 3.9 GiB"));
    CHECK_STR(choice(many, n, "IQ4_XS", 1), "m-IQ4_XS.gguf");
    CHECK_STR(choice(many, n, "mmproj-m-Q8_0.gguf", 1), "mmproj-m-Q8_0.gguf");
    CHECK(strstr(choice(many, n, "Q5_0", 1), "there is no Q5_0; there is: Q2_K (3.0 GiB)"));
}

TEST(what_radish_cannot_compute_is_never_chosen)
{
    static const struct known foreign[] = {{"m-IQ4_XS.gguf", GIB}, {"m-TQ1_0.gguf", GIB}};
    static const struct known dynamic[] = {{"m-IQ4_XS.gguf", GIB}, {"m-UD-Q4_K_XL.gguf", GIB}};

    CHECK(strstr(choice(foreign, 2, NULL, 64 * GIB), "there is no quantisation that radish can compute with"));
    CHECK_STR(choice(dynamic, 2, NULL, 64 * GIB), "m-UD-Q4_K_XL.gguf");
}

TEST(parts_belong_together)
{
    static const struct known parts[] = {{"a-Q8_0-00001-of-00002.gguf", 5},
                                         {"a-Q8_0-00002-of-00002.gguf", 5},
                                         {"b-Q4_K_M-00001-of-00002.gguf", 5},
                                         {"b-Q4_K_M-00003-of-00002.gguf", 5},
                                         {"c-Q4_K_M-00002-of-00002.gguf", 5}};
    struct hub_listing m = {.n_files = 0};

    CHECK_STR(choice(parts, 5, NULL, 64 * GIB), "a-Q8_0-00001-of-00002.gguf");
    CHECK_STR(choice(parts, 5, "a-Q8_0-00002-of-00002.gguf", 1), "a-Q8_0-00001-of-00002.gguf");
    CHECK(strstr(choice(parts, 5, "c-Q4_K_M-00002-of-00002.gguf", 1), "parts of it are missing"));
    CHECK(fill(&m, parts, 2) && m.n_variants == 1 && m.variants[0].n_bytes == 10 && m.variants[0].n_files == 2);
    hub_listing_deinit(&m);
}

TEST(sizes_that_overflow_do_not_fit)
{
    static const struct known big[] = {{"a-Q8_0-00001-of-00002.gguf", UINT64_MAX - 1},
                                       {"a-Q8_0-00002-of-00002.gguf", 5}};

    CHECK(strstr(choice(big, 2, NULL, 64 * GIB), "the smallest, Q8_0"));
}

TEST(every_allocation_may_fail)
{
    uint64_t before = mem_n_alive();
    bool done = false;

    for (int64_t i = 0; !done; i++) {
        const char *text;

        mem_fail_after(i);
        text = choice(many, sizeof(many) / sizeof(*many), NULL, 64 * GIB);
        mem_fail_after(-1);
        done = !strcmp(text, "m-Q4_K_M.gguf");
        CHECK(done || strstr(text, "memory"));
        CHECK_EQ(mem_n_alive(), before);
    }
}
