/* sample/vocab_scan.c - which kernels, the order of candidates, and where the next ones are. */
#include "sample/vocab_scan.h"
#include <float.h>
#include "base/checked.h"
#include "sample/vocab_scan_body.h"

#define GROWTH 8u /* this many times more candidates when those at hand were not enough */

const struct vocab_kernels vocab_kernels_base = {scan_best, scan_sums, scan_weights, scan_words};

const struct vocab_kernels *vocab_kernels_best(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
        return &vocab_kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &vocab_kernels_avx2;
#endif
    return &vocab_kernels_base;
}

/* ---- order ---- */

static bool before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void heap_down(struct candidate *heap, uint32_t n, uint32_t at)
{
    struct candidate c = heap[at];

    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], c)) break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

void vocab_heap_build(struct candidate *heap, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;) heap_down(heap, n, i);
}

struct candidate vocab_heap_take(struct candidate *heap, uint32_t n)
{
    struct candidate top = heap[0];

    heap[0] = heap[n - 1];
    heap[n - 1] = top;
    if (n > 1) heap_down(heap, n - 1, 0);
    return top;
}

/* ---- supply ---- */

static float middle(float a, float b, float c)
{
    if (a < b) return b < c ? b : a < c ? c : a;
    return a < c ? a : b < c ? c : b;
}

/* The k-th largest of v[0..n), k >= 1; changes their order. */
static float kth_largest(float *v, uint32_t n, uint32_t k)
{
    uint32_t low = 0, high = n - 1, at = k - 1;

    while (low < high) {
        float pivot = middle(v[low], v[low + (high - low) / 2], v[high]);
        uint32_t i = low, j = high;

        for (;;) { /* [low .. j] >= pivot >= [i .. high] */
            while (v[i] > pivot) i++;
            while (v[j] < pivot) j--;
            if (i >= j) break;
            float swap = v[i];

            v[i++] = v[j];
            v[j--] = swap;
        }
        if (i == j && v[i] == pivot) {
            if (at == i) return pivot;
            if (at < i)
                high = i - 1;
            else
                low = i + 1;
        } else if (at <= j) {
            high = j;
        } else {
            low = i;
        }
    }
    return v[at];
}

void vocab_supply_init(struct vocab_supply *s, const float *row, uint32_t n, const float *best, float *spare,
                       struct candidate *heap, uint32_t n_first)
{
    *s = (struct vocab_supply){.row = row,
                               .best = best,
                               .spare = spare,
                               .heap = heap,
                               .n = n,
                               .n_wanted = u32_max(n_first, 1),
                               .low = INFINITY};
}

/* Everything in [low, s->low) becomes the heap. */
static void gather(struct vocab_supply *s, float low)
{
    uint32_t n_blocks = VOCAB_N_BLOCKS(s->n), n = 0;

    for (uint32_t b = 0; b < n_blocks; b++) {
        uint32_t end = u32_min((b + 1) * VOCAB_BLOCK, s->n);

        if (s->best[b] < low) continue;
        for (uint32_t i = b * VOCAB_BLOCK; i < end; i++)
            if (s->row[i] >= low && s->row[i] < s->low) s->heap[n++] = (struct candidate){s->row[i], (int32_t)i};
    }
    s->n_heap = n;
    s->low = low;
    vocab_heap_build(s->heap, n);
}

static void fill(struct vocab_supply *s)
{
    uint32_t n_blocks = VOCAB_N_BLOCKS(s->n);
    float low = -FLT_MAX;

    if (s->n_wanted < n_blocks / 2) {
        for (uint32_t b = 0; b < n_blocks; b++) s->spare[b] = s->best[b];
        low = kth_largest(s->spare, n_blocks, s->n_wanted);
        s->n_wanted *= GROWTH;
    }
    if (!(low > -FLT_MAX)) {
        low = -FLT_MAX;
        s->all = true;
    }
    gather(s, low);
}

bool vocab_supply_next(struct vocab_supply *s, struct candidate *out)
{
    while (s->n_heap == 0) {
        if (s->all) return false;
        fill(s);
    }
    *out = vocab_heap_take(s->heap, s->n_heap--);
    return true;
}
