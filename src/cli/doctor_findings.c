/* cli/doctor_findings.c - see doctor_findings.h. */
#include "cli/doctor_findings.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define GIB (1ull << 30)

enum { FEW_FILES = 1024 };

struct list {
    struct finding *at;
    size_t n;
};

/* remedy stays a literal; what is printed. */
static void add(struct list *l, const char *id, bool is_fault, const char *remedy, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static void add(struct list *l, const char *id, bool is_fault, const char *remedy, const char *format, ...)
{
    struct finding *f = l->at + l->n;
    va_list args;

    if (l->n == FINDINGS_MAX) return;
    l->n++;
    f->id = id;
    f->is_fault = is_fault;
    va_start(args, format);
    vsnprintf(f->what, sizeof(f->what), format, args);
    va_end(args);
    snprintf(f->remedy, sizeof(f->remedy), "%s", remedy);
}

static const char *text(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));

    return s ? s : "";
}

static void look_at_cpu(struct list *l, const json_t *cpu)
{
    uint64_t memory = (uint64_t)json_integer_value(json_object_get(cpu, "memory_bytes")),
             memory_free = (uint64_t)json_integer_value(json_object_get(cpu, "memory_free_bytes"));

    if (strcmp(text(cpu, "instruction_set"), "ref") == 0)
        add(l, "cpu-plain", false,
            "On a machine of one's own there is no remedy; of a virtual one, show it the host's CPU (qemu: -cpu host).",
            "This CPU has no instruction set that radish has kernels for: plain C computes, ten times slower or more.");
    if (strcmp(text(cpu, "huge_pages"), "never") == 0)
        add(l, "huge-pages", false, "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
            "Huge pages are off: models are read more slowly from memory.");
    if (memory >= 2 * GIB && memory_free && memory_free < GIB)
        add(l, "memory-in-use", false, "Stop other programs (radish ps shows servers), or take a smaller model.",
            "Of %.1f GiB of memory, %.1f GiB are free: few models fit now.", (double)memory / GIB,
            (double)memory_free / GIB);
    if (strcmp(text(cpu, "instruction_set"), "avx2") == 0 && strstr(text(cpu, "features"), "avx512_vnni"))
        add(l, "cpu-avx512-hidden", false, "In a virtual machine, show it the host's CPU whole (qemu: -cpu host).",
            "The CPU has AVX-512, of which parts are missing or not saved by the system: AVX2 computes, more slowly.");
    if (memory && memory < 2 * GIB)
        add(l, "little-memory", false,
            "Take a model of a few hundred million parameters, and --kv-bytes 128M; or raise the limit (MemoryMax, "
            "docker -m).",
            "There are %.1f GiB of memory for this process: few models fit.", (double)memory / GIB);
}

static void look_at_folders(struct list *l, const struct doctor_facts *f)
{
    static const struct {
        const char *name, *remedy, *full;
        uint64_t least;
    } folders[] = {
        {"models", "Make the folder writable, or set RADISH_MODELS to one that is.",
         "Remove models (radish list, radish rm), or set RADISH_MODELS to a folder on a larger disk.", 1},
        {"packed",
         "Make the folder writable, or set RADISH_PACKED to one that is; until then every start repacks the weights.",
         "Make room, set RADISH_PACKED to a larger disk, or let it take less (--packed-bytes).", 2},
        {"cache",
         "Make the folder writable, or set RADISH_CACHE to one that is; until then nothing survives a restart.",
         "Make room, set RADISH_CACHE to a larger disk, or let it take less (--cache-disk).", 1}};
    static const char *const ids[3][2] = {
        {"models-folder", "models-room"}, {"packed-folder", "packed-room"}, {"cache-folder", "cache-room"}};

    for (size_t i = 0; i < 3; i++) {
        const json_t *folder = json_object_get(json_object_get(f->report, "folders"), folders[i].name);
        const json_t *room = json_object_get(folder, "free_bytes");

        if (!*text(folder, "path")) continue; /* none is wanted */
        if (f->unusable[i])
            add(l, ids[i][0], true, folders[i].remedy, "Nothing can be written to %s: %s.", text(folder, "path"),
                f->unusable[i]);
        else if (json_is_integer(room) && (uint64_t)json_integer_value(room) < folders[i].least * GIB)
            add(l, ids[i][1], false, folders[i].full, "Where %s lies, only %.0f MiB are free.", text(folder, "path"),
                (double)json_integer_value(room) / (1 << 20));
    }
}

/* A backend with devices of its own: an object of the report with "gpus". */
static void look_at_devices(struct list *l, const char *name, const json_t *part)
{
    bool built = json_is_true(json_object_get(part, "built_in")),
         has_driver = json_is_true(json_object_get(part, "driver"));
    const json_t *gpus = json_object_get(part, "gpus");
    char remedy[FINDING_TEXT];
    size_t i;
    json_t *gpu;

    if (!built && json_array_size(gpus) > 0) {
        snprintf(remedy, sizeof(remedy), "Build with it: cmake --preset %s && cmake --build build/%s", name, name);
        add(l, "gpu-not-built-in", false, remedy, "There is a GPU (%s), and this build cannot use it.",
            text(json_array_get(gpus, 0), "name"));
    }
    if (built && !has_driver)
        add(l, "gpu-no-driver", false,
            "Install the GPU's driver; in a container, hand the GPU in (docker run --gpus all). Without a GPU all is "
            "well.",
            "This build could use a GPU, and no driver is found: %s.", text(part, "trouble"));
    else if (has_driver && *text(part, "trouble"))
        add(l, "gpu-trouble", true, "Restart the machine after an update of the driver; nvidia-smi must list the GPU.",
            "The GPU's driver does not work: %s.", text(part, "trouble"));
    if (*text(json_object_get(part, "ranks"), "reduce") &&
        strcmp(text(json_object_get(part, "ranks"), "reduce"), "peer") != 0)
        add(l, "gpus-apart", false,
            "GPUs with NVLink, or on one PCIe root without isolation (ACS off; of a virtual machine its host decides). "
            "One "
            "GPU needs none of it.",
            "Several GPUs work together (--tp) more slowly than they might, --reduce %s: %s.",
            text(json_object_get(part, "ranks"), "reduce"), text(json_object_get(part, "ranks"), "why"));
    json_array_foreach(gpus, i, gpu)
    {
        if (json_is_true(json_object_get(gpu, "usable"))) continue;
        add(l, "gpu-too-old", false, "Use --device cpu, or another GPU.",
            "%s (compute capability %s) is older than radish's kernels.", text(gpu, "name"),
            text(gpu, "compute_capability"));
    }
}

size_t doctor_findings(const struct doctor_facts *f, struct finding out[FINDINGS_MAX])
{
    struct list l = {out, 0};
    const char *name;
    json_t *part;

    look_at_cpu(&l, json_object_get(f->report, "cpu"));
    look_at_folders(&l, f);
    json_object_foreach((json_t *)f->report, name, part)
    {
        if (json_is_array(json_object_get(part, "gpus"))) look_at_devices(&l, name, part);
    }
    if (f->n_open_files && f->n_open_files < FEW_FILES)
        add(&l, "open-files", false, "ulimit -n 65536, or LimitNOFILE=65536 in the systemd unit.",
            "A process may have %llu files open: a server takes fewer clients than that.",
            (unsigned long long)f->n_open_files);
    if (f->run_dir_error)
        add(&l, "run-folder", true, "Remove what stands there, or set RADISH_RUN_DIR to a folder of your own.",
            "radish ps and stop will find no server: %s.", f->run_dir_error);
    if (f->n_models == 0)
        add(&l, "no-models", false, "radish fetch smollm2, or radish pull ORG/NAME; radish fetch --list shows some.",
            "There is no model yet.");
    return l.n;
}
