/* tests/support/sim_executor.c - see the header. */
#include "engine/draft/draft_model.h"
#include "sim_executor.h"
#include "sim_images.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool sim_init(struct sim_executor *x, uint32_t n_pages, uint32_t page_tokens, uint64_t seed)
{
    memset(x, 0, sizeof(*x));
    x->n_pages = n_pages;
    x->page_tokens = page_tokens;
    x->rows = calloc((size_t)n_pages * page_tokens, sizeof(*x->rows));
    random_init(&x->random, seed);
    x->moves = calloc(SIM_MOVES, sizeof(*x->moves));
    pin_map_init(&x->pins);
    return x->rows && x->moves;
}

bool sim_make_windows(struct sim_executor *x, uint32_t n_windows, uint32_t window)
{
    x->n_windows = n_windows;
    x->window = window;
    x->window_rows = calloc((size_t)n_windows * x->page_tokens, sizeof(*x->rows));
    return x->window_rows;
}

void sim_deinit(struct sim_executor *x)
{
    pin_map_deinit(&x->pins);
    free(x->window_rows);
    free(x->rows);
    free(x->moves);
}

uint64_t sim_digest(uint64_t before, uint32_t token)
{
    uint64_t h = (before ^ (token + 0x9e3779b97f4a7c15ull)) * 0xbf58476d1ce4e5b9ull;

    return h ^ (h >> 29);
}

void sim_logits(uint64_t digest, float *logits)
{
    for (uint32_t v = 0; v < SIM_VOCAB; v++) {
        uint64_t h = sim_digest(digest, v + 1000);

        logits[v] = (float)(h >> 44) / 65536.0f;
    }
    logits[SIM_END_TOKEN] -= 6.0f;
}

uint32_t sim_greedy(uint64_t digest, uint32_t max_tokens, int32_t *out)
{
    float logits[SIM_VOCAB];
    uint32_t n = 0;

    while (n < max_tokens) {
        uint32_t best = 0;

        sim_logits(digest, logits);
        for (uint32_t v = 1; v < SIM_VOCAB; v++)
            if (logits[v] > logits[best]) best = v;
        if (best == SIM_END_TOKEN) break;
        out[n++] = (int32_t)best;
        digest = sim_digest(digest, best);
    }
    return n;
}

static uint64_t *row_at(struct sim_executor *x, const kv_page *table, uint32_t pos)
{
    return &x->rows[(size_t)table[pos / x->page_tokens] * x->page_tokens + pos % x->page_tokens];
}

/* NULL: there is none. */
static uint64_t *window_row(struct sim_executor *x, uint32_t window, uint32_t slot)
{
    return window < x->n_windows ? &x->window_rows[(size_t)window * x->page_tokens + slot] : NULL;
}

/* The row at pos0 and those behind it see what the windows of the batch's table say. */
static bool window_is_right(struct sim_executor *x, const struct model_batch *b, uint32_t i, uint32_t pos,
                            uint64_t digest)
{
    uint32_t k = pos / x->page_tokens, window;
    const uint64_t *row;

    if (!x->window || pos + x->window <= b->runs[i].pos0) return true;
    window = b->run_windows[i][k];
    row = window_row(x, window, pos % x->page_tokens);
    return row && *row == digest && x->window_of[b->runs[i].block_table[k]] == window;
}

static const struct step_plan *plan_of(const struct sim_executor *x, const struct model_batch *b)
{
    return b == &x->engine->next.batch ? &x->engine->next : &x->engine->plan;
}

/* The step that this one goes on from has failed, which nobody knows yet. */
static bool is_behind_failure(const struct sim_executor *x)
{
    return x->n_late == 2 && x->late[x->first_late].fail;
}

/* own: the only row's token; NULL: b has it. */
static void run_sequence(struct sim_executor *x, const struct model_batch *b, uint32_t i, const int32_t *own, bool fail)
{
    const struct seq_run *run = &b->runs[i];
    const struct kv_seq *seq = x->draft ? draft_model_run(x->draft, i) : &plan_of(x, b)->run_request[i]->seq;
    const struct request_params *p = x->draft ? NULL : &plan_of(x, b)->run_request[i]->p;
    uint64_t of_salt = p ? p->space.salt.low : 0, digest = p ? sim_adapter(p) : 0;

    for (uint32_t pos = 0; pos < run->pos0; pos++) {
        if (pos == x->public_tokens) digest += of_salt;
        digest = sim_digest(digest, seq->keys[pos]);
        x->n_wrong_rows += (*row_at(x, run->block_table, pos) != digest || !window_is_right(x, b, i, pos, digest)) &&
                           !is_behind_failure(x);
    }
    x->n_rows_checked += run->pos0;
    if (x->images && p)
        x->n_wrong_rows += !sim_images_are_right(x->images, b, i, &plan_of(x, b)->run_request[i]->images, seq);
    for (uint32_t k = 0; k < run->n_rows; k++) {
        uint32_t row = run->row0 + k, token;

        if (run->pos0 + k == x->public_tokens) digest += of_salt;
        token = (uint32_t)(own ? *own : b->tokens[row]);
        if (b->embeds && b->embeds[row]) memcpy(&token, b->embeds[row], sizeof(token));
        digest = sim_digest(digest, token);
        x->rows[(size_t)b->row_page[row] * x->page_tokens + b->row_slot[row]] = fail ? random_u64(&x->random) : digest;
        if (x->window) {
            uint64_t *at = window_row(x, x->window_of[b->row_page[row]], b->row_slot[row]);

            if (at) *at = fail ? random_u64(&x->random) : digest;
            x->n_wrong_rows += !at;
        }
    }
}

static uint64_t digest_of_row(struct sim_executor *x, const struct model_batch *b, uint32_t row)
{
    return x->rows[(size_t)b->row_page[row] * x->page_tokens + b->row_slot[row]];
}

static void break_logits(const struct sim_executor *x, const struct model_batch *b, float *logits)
{
    const struct step_plan *p = &x->engine->plan;

    for (uint32_t i = 0; i < b->n_runs; i++) {
        uint32_t end = i + 1 < b->n_runs ? p->run_logits[i + 1] : b->n_logits;

        for (uint32_t k = p->run_logits[i]; p->run_request[i] == x->broken && k < end; k++)
            logits[(size_t)k * SIM_VOCAB + 3] = NAN;
    }
}

/* The tokens that the last step's rows choose; greedy ones are the best, drawn ones any. */
static void choose(struct sim_executor *x, const struct model_batch *b, struct row_choice *choices)
{
    for (uint32_t i = 0; i < b->n_logits; i++) {
        const float *logits = x->last_logits + (size_t)i * SIM_VOCAB;
        int32_t best = 0;

        for (int32_t v = 1; v < (int32_t)SIM_VOCAB; v++)
            if (logits[v] > logits[best]) best = v;
        if (b->draws[i].temperature > 0)
            best = (int32_t)(random_at(b->draws[i].seed, b->draws[i].position) % SIM_VOCAB);
        x->chosen[i] = best;
        choices[i] = (struct row_choice){best, logits[best]};
    }
}

static rd_status begin(void *self, const struct model_batch *b, const uint32_t *from)
{
    struct sim_executor *x = self;
    struct sim_late *late = &x->late[(x->first_late + x->n_late++) % 2];

    late->fail = x->fail_next || (x->fail_one_in && random_below(&x->random, x->fail_one_in) == 0);
    x->fail_next = false;
    x->n_forward++;
    x->n_begun_ahead += from != NULL;
    x->n_failed += late->fail;
    for (uint32_t i = 0; i < b->n_runs; i++)
        run_sequence(x, b, i, from && from[i] != MODEL_OWN_TOKEN ? &x->chosen[from[i]] : NULL, late->fail);
    for (uint32_t i = 0; i < b->n_logits; i++) {
        uint64_t digest = digest_of_row(x, b, b->logit_rows[i]);

        sim_logits(digest, x->last_logits + (size_t)i * SIM_VOCAB);
        memcpy(late->states + (size_t)i * SIM_STATE, &digest, sizeof(digest));
    }
    choose(x, b, late->choices);
    return RD_OK;
}

static rd_status end(void *self)
{
    struct sim_executor *x = self;
    struct sim_late *late = &x->late[x->first_late];
    const struct model_batch *b = &x->engine->plan.batch; /* what is waited for is plan's, or is dropped */

    x->first_late = (x->first_late + 1) % 2;
    x->n_late--;
    for (uint32_t i = 0; i < b->n_runs && x->n_late == 0 && !x->engine->has_next;
         i++) /* until now it computed with them */
        if (b->adapters[i]) x->adapter_seen = adapter_mix_id(b->adapters[i]).low;
    memcpy(b->choices, late->choices, b->n_logits * sizeof(*b->choices));
    memcpy(b->states, late->states, b->n_logits * SIM_STATE * sizeof(float));
    return late->fail ? RD_E_DEVICE : RD_OK;
}

static rd_status read_logits(void *self, uint32_t row, float *logits)
{
    struct sim_executor *x = self;

    memcpy(logits, x->last_logits + (size_t)row * SIM_VOCAB, SIM_VOCAB * sizeof(float));
    return RD_OK;
}

/* What is unread is not there. */
static void keep_unread(struct sim_executor *x, const struct model_batch *b, float *logits)
{
    memcpy(x->last_logits, logits, (size_t)b->n_logits * SIM_VOCAB * sizeof(float));
    choose(x, b, b->choices);
    for (uint32_t i = 0; i < b->n_logits; i++)
        if (b->unread[i]) logits[(size_t)i * SIM_VOCAB] = NAN;
}

static rd_status forward(void *self, const struct model_batch *b, float *logits)
{
    struct sim_executor *x = self;
    bool fail = x->fail_next || (x->fail_one_in && random_below(&x->random, x->fail_one_in) == 0);

    x->n_forward++;
    if (x->leaves) request_cancel(x->leaves, CANCEL_GONE);
    x->leaves = NULL;
    if (b->is_moot && b->is_moot(b->moot_arg)) {
        for (uint32_t i = 0; i < b->n_runs; i++) run_sequence(x, b, i, NULL, true);
        x->n_moot++;
        return RD_E_CANCELLED;
    }
    for (uint32_t i = 0; i < b->n_runs; i++) run_sequence(x, b, i, NULL, fail);
    for (uint32_t i = 0; i < b->n_logits; i++) {
        uint64_t digest = digest_of_row(x, b, b->logit_rows[i]);

        if (x->wrong_one_in && random_below(&x->random, x->wrong_one_in) == 0) digest++;
        sim_logits(digest, logits + (size_t)i * SIM_VOCAB);
        if (b->states) memcpy(b->states + (size_t)i * SIM_STATE, &digest, sizeof(digest));
    }
    if (!x->draft) break_logits(x, b, logits);
    if (x->chooses) keep_unread(x, b, logits);
    if (x->clock) clock_fake_advance(x->clock, x->step_ns + b->n_rows * x->row_ns);
    x->fail_next = false;
    x->n_failed += fail;
    return fail ? RD_E_DEVICE : RD_OK;
}

static rd_status head(void *self, uint32_t n, const float *const *states, float *logits)
{
    struct sim_executor *x = self;
    bool fail = x->fail_next_head || (x->fail_one_in && random_below(&x->random, x->fail_one_in) == 0);

    x->fail_next_head = false;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t digest;

        memcpy(&digest, states[i], sizeof(digest));
        sim_logits(digest, logits + (size_t)i * SIM_VOCAB);
    }
    if (x->clock) clock_fake_advance(x->clock, x->row_ns);
    x->n_heads += n;
    x->n_failed += fail;
    return fail ? RD_E_DEVICE : RD_OK;
}

static void copy_rows(void *self, kv_page to, kv_page from, uint32_t n_rows)
{
    struct sim_executor *x = self;

    memcpy(x->rows + (size_t)to * x->page_tokens, x->rows + (size_t)from * x->page_tokens, n_rows * sizeof(*x->rows));
    if (x->window)
        memcpy(window_row(x, x->window_of[to], 0), window_row(x, x->window_of[from], 0), n_rows * sizeof(*x->rows));
}

static void use_windows(void *self, const uint32_t *of)
{
    ((struct sim_executor *)self)->window_of = of;
}

/* A page, its window, whether it has one. */
static rd_status page_out(void *self, kv_page id, void *to)
{
    struct sim_executor *x = self;
    const uint64_t *window = window_row(x, x->window_of[id], 0);
    uint64_t n = x->page_tokens, *out = to;

    memcpy(out, x->rows + id * n, n * sizeof(*out));
    if (window)
        memcpy(out + n, window, n * sizeof(*out));
    else
        memset(out + n, 0, n * sizeof(*out));
    out[2 * n] = window != NULL;
    return RD_OK;
}

static rd_status page_in(void *self, kv_page id, const void *from)
{
    struct sim_executor *x = self;
    uint64_t *window = window_row(x, x->window_of[id], 0), n = x->page_tokens;
    const uint64_t *in = from;

    memcpy(x->rows + id * n, in, n * sizeof(*in));
    if (window) memcpy(window, in + n, n * sizeof(*in));
    return RD_OK;
}

static void *page(void *self, kv_page id)
{
    struct sim_executor *x = self;

    return x->rows + (size_t)id * x->page_tokens;
}

static void pin(void *self, void *p, uint64_t n_bytes, bool on)
{
    struct sim_executor *x = self;
    uintptr_t begin = (uintptr_t)p;
    uint32_t i = 0;

    if (on)
        (void)pin_map_add(&x->pins, p, n_bytes);
    else
        (void)pin_map_remove(&x->pins, p);
    while (i < x->n_pinned && x->pinned[i].begin != begin) i++;
    if (on && x->n_pinned < SIM_PINS) {
        x->pinned[x->n_pinned].begin = begin;
        x->pinned[x->n_pinned++].end = begin + n_bytes;
    } else if (!on && i < x->n_pinned) {
        x->pinned[i] = x->pinned[--x->n_pinned];
    }
}

/* As CUDA does, where they touch, too: memory that was pinned in two calls, or in part. */
static bool driver_takes(const struct sim_executor *x, uintptr_t begin, uintptr_t end)
{
    for (uint32_t i = 0; i < x->n_pinned; i++)
        if (begin < x->pinned[i].end && end > x->pinned[i].begin)
            return begin >= x->pinned[i].begin && end <= x->pinned[i].end;
    return true;
}

/* Joins neighbours as a backend does. */
static bool copies_begin(struct sim_executor *x, uint32_t n, const kv_page *ids, void *const *host)
{
    uint64_t n_bytes = x->page_tokens * sizeof(*x->rows);
    bool ok = true;

    for (uint32_t i = 0, k; i < n; i += k) {
        void *device[SIM_RUN];
        uint32_t most = n - i < SIM_RUN ? n - i : SIM_RUN;

        for (k = 0; k < most; k++) device[k] = page(x, ids[i + k]);
        k = pin_map_run(&x->pins, most, device, host + i, n_bytes);
        x->n_joined += k > 1;
        x->n_at_border += k < most && (char *)host[i + k] == (char *)host[i + k - 1] + n_bytes &&
                          (char *)device[k] == (char *)device[k - 1] + n_bytes;
        if (driver_takes(x, (uintptr_t)host[i], (uintptr_t)host[i] + k * n_bytes)) continue;
        x->n_refused++;
        ok = false;
    }
    return ok;
}

/* The window that goes with a page, as page_out has it: which says at once whether there is one. */
static uint32_t moved_window(const struct sim_executor *x, bool out, kv_page id, void *host)
{
    uint64_t *word = (uint64_t *)host + (uint64_t)2 * x->page_tokens;
    const uint32_t window = x->window ? x->window_of[id] : KV_NO_PAGE;

    if (!x->window) return KV_NO_PAGE;
    if (out) *word = window != KV_NO_PAGE;
    return *word ? window : KV_NO_PAGE;
}

static rd_status move_begin(void *self, bool out, uint32_t n, const kv_page *ids, void *const *host, uint64_t *ticket)
{
    struct sim_executor *x = self;

    if (!copies_begin(x, n, ids, host)) return RD_E_IO;
    if (x->begin_fail_one_in && random_below(&x->random, x->begin_fail_one_in) == 0) return RD_E_IO;
    for (uint32_t i = 0; i < n; i++)
        x->moves[x->n_moves++ % SIM_MOVES] =
            (struct sim_move){out, x->move_fail_one_in && random_below(&x->random, x->move_fail_one_in) == 0, ids[i],
                              moved_window(x, out, ids[i], host[i]), host[i]};
    *ticket = x->n_moves;
    return RD_OK;
}

/* The bytes move as late as they may: what is used too early is wrong. */
static rd_status move_end(void *self, bool out, uint64_t ticket, bool wait)
{
    struct sim_executor *x = self;
    size_t n_bytes = x->page_tokens * sizeof(*x->rows);
    rd_status st = RD_OK;

    if (!wait && x->n_slow > 0 && random_below(&x->random, x->n_slow) > 0) return RD_E_AGAIN;
    for (uint64_t *i = &x->n_moved[out]; *i < ticket; (*i)++) {
        const struct sim_move *m = &x->moves[*i % SIM_MOVES];
        void *rows = page(x, m->page);

        if (m->out != out) continue;
        memcpy(out ? m->host : rows, out ? rows : m->host, n_bytes);
        if (m->window != KV_NO_PAGE) {
            void *window = window_row(x, m->window, 0), *beside = (uint8_t *)m->host + n_bytes;

            memcpy(out ? beside : window, out ? window : beside, n_bytes);
        }
        if (!m->failed) continue;
        st = RD_E_IO;
        memset(out ? m->host : rows, 0x5a, n_bytes);
    }
    return st;
}

static bool differs(void *self, kv_page a, kv_page b, uint32_t n_rows, struct page_difference *where)
{
    struct sim_executor *x = self;

    for (uint32_t i = 0; i < n_rows; i++) {
        const uint64_t *wa = x->window ? window_row(x, x->window_of[a], i) : NULL;
        const uint64_t *wb = x->window ? window_row(x, x->window_of[b], i) : NULL;

        if (x->rows[(size_t)a * x->page_tokens + i] == x->rows[(size_t)b * x->page_tokens + i] &&
            (!wa || !wb || *wa == *wb))
            continue;
        *where = (struct page_difference){.row = i};
        return true;
    }
    return false;
}

static bool is_dead(void *self)
{
    return ((struct sim_executor *)self)->is_dead;
}

struct executor sim_view(struct sim_executor *x, uint32_t max_rows, uint32_t max_logits)
{
    return (struct executor){.self = x,
                             .n_vocab = SIM_VOCAB,
                             .max_rows = max_rows,
                             .max_logits = max_logits,
                             .forward = forward,
                             .n_state = SIM_STATE,
                             .head = head,
                             .gives_choices = x->chooses,
                             .read_logits = read_logits,
                             .begin = x->chooses ? begin : NULL,
                             .end = end,
                             .begins_adapted = x->chooses,
                             .is_dead = is_dead,
                             .pin = x->has_driver ? pin : NULL,
                             .copy_rows = copy_rows,
                             .window = x->window,
                             .n_windows = x->n_windows,
                             .use_windows = use_windows,
                             .page = x->window ? NULL : page,
                             .page_out = x->window ? page_out : NULL,
                             .page_in = x->window ? page_in : NULL,
                             .move_begin = move_begin,
                             .move_end = move_end,
                             .page_bytes = (x->window ? 2 * x->page_tokens + 1 : x->page_tokens) * sizeof(*x->rows),
                             .differs = differs};
}
