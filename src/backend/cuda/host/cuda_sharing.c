/* backend/cuda/host/cuda_sharing.c - groups by comparing block tables, first run by first run. */
#include "backend/cuda/host/cuda_sharing.h"
#include <string.h>
#include "base/checked.h"

#define SEGMENT_KEYS  128u
#define MOST_ROWS     4u    /* of a run that takes part: more are prompts */
#define MOST_SEGMENTS 1024u /* that are shared */
#define LEAST_SAVED   8u    /* segments: less is not worth a group */

uint64_t cuda_sharing_bytes(uint32_t n_runs)
{
    return sizeof(struct cuda_shared_head) +
           n_runs * (sizeof(struct cuda_group) + sizeof(struct cuda_shared_run) + MOST_ROWS * sizeof(uint32_t));
}

struct cuda_shared cuda_sharing_view(const void *memory, uint32_t n_runs)
{
    struct cuda_shared s = {.head = memory};

    s.groups = (const struct cuda_group *)(s.head + 1);
    s.runs = (const struct cuda_shared_run *)(s.groups + n_runs);
    s.rows = (const uint32_t *)(s.runs + n_runs);
    return s;
}

static uint32_t common_segments(const struct cuda_run *a, const struct cuda_run *b, const uint32_t *tables,
                                uint32_t page_tokens)
{
    const uint32_t *x = tables + a->table, *y = tables + b->table;
    uint32_t n_pages = u32_min(a->pos0, b->pos0) / page_tokens, n = 0;

    while (n + 16 <= n_pages && memcmp(x + n, y + n, 16 * sizeof(*x)) == 0) n += 16;
    while (n < n_pages && x[n] == y[n]) n++;
    return u32_min(n * page_tokens / SEGMENT_KEYS, MOST_SEGMENTS);
}

static bool may_share(const struct cuda_run *run)
{
    return run->n_rows <= MOST_ROWS && run->pos0 >= SEGMENT_KEYS;
}

/* What to share below a run that has segments in common with others, count[c] of them c: where those that have as much
 * save most. */
static uint32_t best_common(const uint32_t *count, uint32_t most, uint64_t *saved)
{
    uint32_t best = 0, n = 0;

    *saved = 0;
    for (uint32_t c = most; c > 0; c--) {
        n += count[c];
        if ((uint64_t)n * c <= *saved) continue;
        *saved = (uint64_t)n * c;
        best = c;
    }
    return best;
}

uint64_t cuda_sharing_make(const struct cuda_run *runs, uint32_t n_runs, const uint32_t *tables, uint32_t page_tokens,
                           void *memory)
{
    struct cuda_shared_head *head = memory;
    struct cuda_group *groups = (struct cuda_group *)(head + 1);
    struct cuda_shared_run *shared = (struct cuda_shared_run *)(groups + n_runs);
    uint32_t *rows = (uint32_t *)(shared + n_runs), count[MOST_SEGMENTS + 1];
    uint64_t all_saved = 0;

    memset(memory, 0, (size_t)cuda_sharing_bytes(n_runs));
    for (uint32_t i = 0; i + 1 < n_runs; i++) {
        uint32_t most = 0, first = head->n_members, best;
        uint64_t saved;

        if (shared[i].n_segments || !may_share(&runs[i])) continue;
        for (uint32_t j = i + 1; j < n_runs; j++) { /* member: what it has in common, until it is in a group */
            if (shared[j].n_segments) continue;
            shared[j].member = may_share(&runs[j]) ? common_segments(&runs[i], &runs[j], tables, page_tokens) : 0;
            if (shared[j].member > most) {
                memset(count + most + 1, 0, (shared[j].member - most) * sizeof(*count));
                most = shared[j].member;
            }
            if (shared[j].member) count[shared[j].member]++;
        }
        best = best_common(count, most, &saved);
        if (saved < LEAST_SAVED) continue;
        shared[i].member = best;
        for (uint32_t j = i; j < n_runs; j++) {
            if (shared[j].n_segments || shared[j].member < best) continue;
            shared[j] = (struct cuda_shared_run){best, head->n_members};
            for (uint32_t r = 0; r < runs[j].n_rows; r++) rows[head->n_members++] = runs[j].row0 + r;
        }
        groups[head->n_groups++] = (struct cuda_group){runs[i].table, first, head->n_members - first, best};
        head->longest = u32_max(head->longest, best);
        all_saved += saved;
    }
    return all_saved;
}
