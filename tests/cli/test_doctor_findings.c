/* tests/cli/test_doctor_findings.c - each finding of radish doctor, from a report that has it. */
#include "cli/doctor_findings.h"
#include <string.h>
#include "test.h"

static const char HEALTHY[] =
    "{\"cpu\": {\"instruction_set\": \"avx512\", \"huge_pages\": \"madvise\", \"memory_bytes\": 34359738368},"
    " \"folders\": {\"models\": {\"path\": \"/m\", \"free_bytes\": 99999999999},"
    "  \"packed\": {\"path\": \"/p\", \"free_bytes\": 99999999999}, \"cache\": {\"path\": \"/c\", \"free_bytes\": "
    "99999999999}},"
    " \"cuda\": {\"built_in\": true, \"driver\": true, \"trouble\": null,"
    "  \"gpus\": [{\"name\": \"H100\", \"compute_capability\": \"9.0\", \"usable\": true}]}}";

static struct finding found[FINDINGS_MAX];

/* What is found when `from` in the healthy report becomes `to`. */
static size_t with(const char *from, const char *to, struct doctor_facts facts)
{
    char text[2048];
    const char *at = strstr(HEALTHY, from);
    json_t *report;
    size_t n;

    if (!at) return SIZE_MAX; /* which no test wants */
    snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - HEALTHY), HEALTHY, to, at + strlen(from));
    report = json_loads(text, 0, NULL);
    if (!report) return SIZE_MAX;
    facts.report = report;
    n = doctor_findings(&facts, found);
    json_decref(report);
    return n;
}

static const struct doctor_facts GOOD = {.n_models = 1, .n_open_files = 65536};

static void one(size_t n, const char *id, bool is_fault, const char *word, const char *remedy)
{
    CHECK_EQ(n, 1);
    CHECK_STR(found[0].id, id);
    CHECK_EQ(found[0].is_fault, is_fault);
    CHECK(strstr(found[0].what, word));
    CHECK(strstr(found[0].remedy, remedy));
}

TEST(a_healthy_machine_has_none)
{
    CHECK_EQ(with("avx512", "avx512", GOOD), 0);
}

TEST(the_cpu_and_its_memory)
{
    one(with("avx512", "ref", GOOD), "cpu-plain", false, "plain C", "-cpu host");
    one(with("madvise", "never", GOOD), "huge-pages", false, "off", "transparent_hugepage/enabled");
    one(with("34359738368", "34359738368, \"memory_free_bytes\": 1000000", GOOD), "memory-in-use", false,
        "32.0 GiB of memory, 0.0 GiB are free", "radish ps");
    one(with("\"avx512\"", "\"avx2\", \"features\": \"avx2 avx512f avx512_vnni\"", GOOD), "cpu-avx512-hidden", false,
        "AVX2 computes", "-cpu host");
    one(with("34359738368", "1073741824", GOOD), "little-memory", false, "1.0 GiB", "--kv-bytes");
}

TEST(folders_that_cannot_be_written_or_are_full)
{
    struct doctor_facts f = GOOD;

    f.unusable[0] = "Permission denied";
    one(with("avx512", "avx512", f), "models-folder", true, "/m: Permission denied", "RADISH_MODELS");
    f = GOOD;
    f.unusable[1] = "Read-only file system";
    one(with("avx512", "avx512", f), "packed-folder", true, "/p: Read-only", "RADISH_PACKED");
    f = GOOD;
    f.unusable[2] = "Not a directory";
    one(with("avx512", "avx512", f), "cache-folder", true, "/c", "RADISH_CACHE");
    CHECK_EQ(with("\"path\": \"/c\"", "\"path\": null", f), 0); /* it is switched off */
    one(with("\"/m\", \"free_bytes\": 99999999999", "\"/m\", \"free_bytes\": 1048576", GOOD), "models-room", false,
        "only 1 MiB", "radish rm");
    one(with("\"/p\", \"free_bytes\": 99999999999", "\"/p\", \"free_bytes\": 1048576", GOOD), "packed-room", false,
        "/p", "--packed-bytes");
    one(with("\"/c\", \"free_bytes\": 99999999999", "\"/c\", \"free_bytes\": 1048576", GOOD), "cache-room", false, "/c",
        "--cache-disk");
}

TEST(gpus)
{
    one(with("\"built_in\": true", "\"built_in\": false", GOOD), "gpu-not-built-in", false, "H100",
        "cmake --preset cuda");
    one(with("\"driver\": true, \"trouble\": null", "\"driver\": false, \"trouble\": \"libcuda.so.1 is missing\"",
             GOOD),
        "gpu-no-driver", false, "libcuda.so.1", "--gpus all");
    one(with("\"trouble\": null", "\"trouble\": \"version mismatch\"", GOOD), "gpu-trouble", true, "mismatch",
        "nvidia-smi");
    one(with("\"trouble\": null", "\"trouble\": null, \"ranks\": {\"reduce\": \"host\", \"why\": \"no peer access\"}",
             GOOD),
        "gpus-apart", false, "--reduce host: no peer access", "ACS off");
    CHECK_EQ(with("\"trouble\": null", "\"trouble\": null, \"ranks\": {\"reduce\": \"peer\", \"why\": \"x\"}", GOOD),
             0);
    one(with("\"usable\": true", "\"usable\": false", GOOD), "gpu-too-old", false, "9.0", "--device cpu");
    CHECK_EQ(with("{\"name\": \"H100\", \"compute_capability\": \"9.0\", \"usable\": true}", "", GOOD), 0);
}

TEST(files_servers_models)
{
    struct doctor_facts f = GOOD;

    f.n_open_files = 256;
    one(with("avx512", "avx512", f), "open-files", false, "256 files", "ulimit -n");
    f = GOOD;
    f.run_dir_error = "/tmp/radish-0 is a link";
    one(with("avx512", "avx512", f), "run-folder", true, "is a link", "RADISH_RUN_DIR");
    f = GOOD;
    f.n_models = 0;
    one(with("avx512", "avx512", f), "no-models", false, "no model", "radish fetch");
}
