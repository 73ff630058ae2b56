/* hub/hub_variants.c - labels of quantisations, the parts of split models, and the choice among them. */
#include "hub/hub_variants.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"

/* Best first, of those that fit. Four bits with the better tables lose little and are read fastest; more bits than five
 * cost speed and gain almost nothing; fewer than four are for models that do not fit otherwise. */
static const char *const preferred[] = {
    "Q4_K_M", "Q4_K_L",  "Q4_K_XL", "Q4_K", "Q5_K_M", "Q5_K_S", "Q5_K",    "Q5_K_L",  "Q5_K_XL", "Q4_K_S",  "Q6_K",
    "Q6_K_L", "Q6_K_XL", "Q5_1",    "Q5_0", "Q4_1",   "Q4_0",   "Q8_0",    "Q8_K_XL", "Q3_K_L",  "Q3_K_XL", "Q3_K_M",
    "Q3_K",   "BF16",    "F16",     "FP16", "Q3_K_S", "Q2_K_L", "Q2_K_XL", "Q2_K",    "Q2_K_S",  "F32",     "FP32"};
/* What radish cannot compute with. */
static const char *const foreign[] = {"IQ1_S",  "IQ1_M",     "IQ2_XXS", "IQ2_XS",   "IQ2_S",    "IQ2_M",   "IQ3_XXS",
                                      "IQ3_XS", "IQ3_S",     "IQ3_M",   "IQ4_XS",   "IQ4_NL",   "TQ1_0",   "TQ2_0",
                                      "MXFP4",  "MXFP4_MOE", "NVFP4",   "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8"};
#define COUNT(list) (sizeof(list) / sizeof(*(list)))

enum { DYNAMIC_ORDER = 100 }; /* "UD-": some tensors may be of types that are foreign to us */
static const uint64_t small_bytes = 1ull << 30;

uint64_t hub_memory_for(uint64_t n_bytes)
{
    return n_bytes + n_bytes / 8 + (512ull << 20);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static bool is_gguf(const char *path)
{
    size_t n = strlen(path);

    return n > 5 && !strcasecmp(path + n - 5, ".gguf");
}

/* Bytes of path before "-00001-of-00003.gguf" or ".gguf"; the part's number and their count, 1 of 1 for a whole file. */
static size_t stem_length(const char *path, uint64_t *number, uint64_t *count)
{
    static const char form[] = "-00000-of-00000.gguf";
    size_t n = strlen(path), k = sizeof(form) - 1;
    const char *end;

    *number = *count = 1;
    if (n <= k) return n - 5;
    end = path + n - k;
    if (*end != '-' || strncmp(end + 6, "-of-", 4)) return n - 5;
    if (!parse_u64(end + 1, 5, number) || !parse_u64(end + 10, 5, count) || !*number || *number > *count) {
        *number = *count = 1;
        return n - 5;
    }
    return n - k;
}

static bool is_mark(char c)
{
    return !c || strchr("-._/ ", c);
}

/* Where `label` last stands in s[0..n) as a word of its own; NULL: nowhere. */
static const char *find_word(const char *s, size_t n, const char *label)
{
    size_t k = strlen(label);

    for (size_t at = n >= k ? n - k + 1 : 0; at-- > 0;)
        if (!strncasecmp(s + at, label, k) && (at == 0 || is_mark(s[at - 1])) && (at + k == n || is_mark(s[at + k])))
            return s + at;
    return NULL;
}

static void find_longest(const char *s, size_t n, const char *const *list, size_t n_list, const char **best)
{
    for (size_t i = 0; i < n_list; i++)
        if ((!*best || strlen(list[i]) > strlen(*best)) && find_word(s, n, list[i])) *best = list[i];
}

void hub_label_of(const char *path, char label[HUB_LABEL_BYTES])
{
    const char *name = base_name(path), *found = NULL, *at;
    uint64_t number, count;
    size_t n = is_gguf(path) ? stem_length(name, &number, &count) : 0;

    label[0] = 0;
    find_longest(name, n, preferred, COUNT(preferred), &found);
    find_longest(name, n, foreign, COUNT(foreign), &found);
    if (!found) return;
    at = find_word(name, n, found);
    snprintf(label, HUB_LABEL_BYTES, "%s%s", at - name >= 3 && !strncasecmp(at - 3, "UD-", 3) ? "UD-" : "", found);
}

static uint32_t order_of(const char *label)
{
    bool is_dynamic = !strncmp(label, "UD-", 3);

    if (!*label) return DYNAMIC_ORDER - 1; /* the only one, perhaps */
    for (uint32_t i = 0; i < COUNT(preferred); i++)
        if (!strcmp(label + (is_dynamic ? 3 : 0), preferred[i])) return i + (is_dynamic ? DYNAMIC_ORDER : 0);
    return HUB_NEVER;
}

/* A model's weights: not an eye for it (mmproj), nor statistics for quantising. */
static bool is_weights(const char *path)
{
    const char *name = base_name(path);

    return is_gguf(path) && strncasecmp(name, "mmproj", 6) && strncasecmp(name, "imatrix", 7) &&
           !strcasestr(name, "-mmproj") && !strcasestr(name, "imatrix.gguf");
}

static int by_size(const void *a, const void *b)
{
    const struct hub_variant *x = a, *y = b;

    if (x->n_bytes != y->n_bytes) return x->n_bytes < y->n_bytes ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* The variant that begins with file i; parts of one name follow each other. */
static struct hub_variant variant_at(const struct hub_listing *m, uint32_t i)
{
    struct hub_variant v = {.first = i};
    uint64_t number, count, next, next_count;
    const char *path = m->files[i].path;
    size_t n = stem_length(path, &number, &count);

    hub_label_of(path, v.label);
    v.order = order_of(v.label);
    v.is_whole = number == 1;
    for (; i < m->n_files && v.n_files < count; i++) {
        const char *other = m->files[i].path;

        if (!is_gguf(other) || stem_length(other, &next, &next_count) != n || strncmp(other, path, n)) break;
        if (next_count != count || next != number + v.n_files) break;
        if (!checked_add(v.n_bytes, m->files[i].n_bytes, &v.n_bytes)) v.n_bytes = UINT64_MAX;
        v.n_files++;
    }
    v.is_whole = v.is_whole && v.n_files == count && count <= LIMIT_SHARDS;
    return v;
}

bool hub_find_variants(struct hub_listing *m)
{
    m->n_variants = 0;
    for (uint32_t i = 0; i < m->n_files;) {
        struct hub_variant v;

        if (!is_weights(m->files[i].path)) {
            i++;
            continue;
        }
        v = variant_at(m, i);
        if (!mem_grow((void **)&m->variants, &m->cap_variants, m->n_variants + 1, sizeof(v))) return false;
        m->variants[m->n_variants++] = v;
        i += v.n_files ? v.n_files : 1;
    }
    if (m->n_variants) qsort(m->variants, m->n_variants, sizeof(*m->variants), by_size);
    return true;
}

/* ---- the choice ---- */

static void put_gib(struct buf *out, uint64_t n)
{
    if (n >= 1ull << 30)
        buf_printf(out, "%.1f GiB", (double)n / (1ull << 30));
    else
        buf_printf(out, "%.0f MiB", (double)n / (1 << 20));
}

static const char *name_of(const struct hub_listing *m, const struct hub_variant *v)
{
    return v->label[0] ? v->label : base_name(m->files[v->first].path);
}

/* "Q2_K (310 MiB), Q4_K_M (380 MiB)", without `but`. */
static void put_variants(struct buf *out, const struct hub_listing *m, const struct hub_variant *but)
{
    const char *between = "";

    for (size_t i = 0; i < m->n_variants && i < 40; i++) {
        if (m->variants + i == but || !m->variants[i].is_whole) continue;
        buf_printf(out, "%s%s (", between, name_of(m, m->variants + i));
        put_gib(out, m->variants[i].n_bytes);
        buf_putc(out, ')');
        between = ", ";
    }
}

#define THERE_IS_NO "there is no "

bool hub_lacks_part(const struct rd_error *err)
{
    return !strncmp(err->text, THERE_IS_NO, sizeof(THERE_IS_NO) - 1);
}

static rd_status not_there(const struct hub_listing *m, const char *what, struct rd_error *err)
{
    struct buf list = {.limit = 0};

    put_variants(&list, m, NULL);
    error_set(err, RD_E_NOT_FOUND, THERE_IS_NO "%.100s; there is: %.350s", what, list.n ? list.data : "no GGUF file");
    buf_deinit(&list);
    return RD_E_NOT_FOUND;
}

static void want(struct hub_listing *m, const struct hub_variant *v, uint32_t *first)
{
    for (uint32_t i = 0; i < v->n_files; i++) m->files[v->first + i].is_wanted = true;
    *first = v->first;
}

static rd_status choose_file(struct hub_listing *m, const char *path, uint32_t *first, struct rd_error *err)
{
    for (size_t i = 0; i < m->n_variants; i++) {
        const struct hub_variant *v = m->variants + i;

        for (uint32_t j = 0; j < v->n_files; j++)
            if (!strcmp(m->files[v->first + j].path, path)) {
                if (!v->is_whole) return error_set(err, RD_E_FORMAT, "%.200s: the other parts of it are missing", path);
                want(m, v, first); /* with its parts */
                return RD_OK;
            }
    }
    for (uint32_t i = 0; i < m->n_files; i++)
        if (!strcmp(m->files[i].path, path)) {
            m->files[i].is_wanted = true;
            *first = i;
            return RD_OK;
        }
    return not_there(m, path, err);
}

static rd_status choose_label(struct hub_listing *m, const char *label, uint32_t *first, struct buf *why,
                              uint64_t n_memory, struct rd_error *err)
{
    const struct hub_variant *found = NULL;

    for (size_t i = 0; i < m->n_variants; i++) {
        if (strcmp(m->variants[i].label, label) || !m->variants[i].is_whole) continue;
        if (found)
            return error_set(err, RD_E_INVALID,
                             "%s is the name of several files, %.150s and %.150s: name one of them "
                             "(ORG/NAME/FILE)",
                             label, m->files[found->first].path, m->files[m->variants[i].first].path);
        found = m->variants + i;
    }
    if (!found) return not_there(m, label, err);
    want(m, found, first);
    buf_printf(why, "%s, ", label);
    put_gib(why, found->n_bytes);
    if (found->order == HUB_NEVER)
        buf_puts(why, "; radish cannot compute with this type");
    else if (hub_memory_for(found->n_bytes) > n_memory)
        buf_puts(why, "; it may not fit in the memory of this machine");
    return RD_OK;
}

/* The best of those that fit. *is_small: because it is small anyway. */
static const struct hub_variant *best_variant(const struct hub_listing *m, uint64_t n_memory, bool *is_small)
{
    const struct hub_variant *best = NULL;

    *is_small = false;
    for (size_t i = 0; i < m->n_variants; i++) {
        const struct hub_variant *v = m->variants + i;

        if (!v->is_whole || v->order == HUB_NEVER || hub_memory_for(v->n_bytes) > n_memory) continue;
        if (!strcmp(v->label, "Q8_0") && v->n_bytes <= small_bytes && v->n_bytes <= n_memory / 8) {
            *is_small = true;
            return v;
        }
        if (!best || v->order < best->order) best = v;
    }
    return best;
}

static rd_status choose_variant(struct hub_listing *m, uint64_t n_memory, uint32_t *first, struct buf *why,
                                struct rd_error *err)
{
    const struct hub_variant *best, *least = NULL;
    struct buf others = {.limit = 0};
    bool is_small;

    best = best_variant(m, n_memory, &is_small);
    for (size_t i = m->n_variants; i-- > 0;)
        if (m->variants[i].is_whole && m->variants[i].order != HUB_NEVER) least = m->variants + i;
    if (!least) return not_there(m, "quantisation that radish can compute with", err);
    if (!best)
        return error_set(err, RD_E_LIMIT,
                         "the smallest, %s, has %.1f GiB and wants %.1f GiB to run; there are %.1f GiB of "
                         "memory. Name one to have it all the same (ORG/NAME:%s)",
                         name_of(m, least), (double)least->n_bytes / (1ull << 30),
                         (double)hub_memory_for(least->n_bytes) / (1ull << 30), (double)n_memory / (1ull << 30),
                         name_of(m, least));
    want(m, best, first);
    buf_printf(why, "%s, ", name_of(m, best));
    put_gib(why, best->n_bytes);
    put_variants(&others, m, best);
    if (!others.n) {
        buf_puts(why, ": the only one");
    } else {
        if (is_small)
            buf_puts(why, ": small models lose most by fewer bits, and this one is small");
        else if (best->order == 0)
            buf_puts(why, ": near the quality of the original at a quarter of its size");
        else
            buf_puts(why, ": the best there is");
        buf_puts(why, " that fits in ");
        put_gib(why, n_memory);
        buf_printf(why, " of memory with room for a context. Also: %s", others.data);
    }
    buf_deinit(&others);
    return RD_OK;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);

    return n > k && !strcmp(s + n - k, end);
}

/* A model as its makers published it: weights, configuration and tokenizer, all at the top. */
static bool is_of_original(const char *path)
{
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "model.safetensors.index.json"};

    for (size_t i = 0; i < COUNT(names); i++)
        if (!strcmp(path, names[i])) return true;
    return !strchr(path, '/') && ends_with(path, ".safetensors") && !strncmp(path, "model", 5);
}

static rd_status choose_original(struct hub_listing *m, uint64_t n_memory, struct buf *why, struct rd_error *err)
{
    uint64_t n_bytes = 0;
    bool has_weights = false, has_config = false;

    for (size_t i = 0; i < m->n_files; i++) {
        struct hub_file *f = m->files + i;

        f->is_wanted = is_of_original(f->path);
        if (!f->is_wanted) continue;
        has_config |= !strcmp(f->path, "config.json");
        has_weights |= ends_with(f->path, ".safetensors");
        if (!checked_add(n_bytes, f->n_bytes, &n_bytes)) n_bytes = UINT64_MAX;
    }
    if (!has_weights || !has_config)
        return error_set(err, RD_E_NOT_FOUND,
                         "there is neither a GGUF file nor a config.json with model*.safetensors: "
                         "nothing that radish can load");
    buf_puts(why, "no GGUF file; the original weights, ");
    put_gib(why, n_bytes);
    if (hub_memory_for(n_bytes) > n_memory) buf_puts(why, "; they may not fit in the memory of this machine");
    return RD_OK;
}

rd_status hub_listing_choose(struct hub_listing *m, const struct hub_ref *ref, uint64_t n_memory, uint32_t *first,
                             struct buf *why, struct rd_error *err)
{
    rd_status st;

    *first = UINT32_MAX;
    if (ref->file[0])
        st = choose_file(m, ref->file, first, err);
    else if (ref->label[0])
        st = choose_label(m, ref->label, first, why, n_memory, err);
    else if (m->n_variants)
        st = choose_variant(m, n_memory, first, why, err);
    else
        st = choose_original(m, n_memory, why, err);
    if (st == RD_OK && why->failed) return error_set(err, RD_E_NOMEM, "out of memory");
    return st;
}
