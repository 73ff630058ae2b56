/* engine/verify.c - the cache proves itself: a share of its hits is computed again while nothing else is to do, and the
 * bytes are compared.
 *
 * A hit (prompt tokens that were not computed, from memory or from disk) is drawn by a counter-based random. While no
 * request is queued or live, its tokens are computed block by block, as a prefill would, into pages of its own, and each
 * page is compared with the tree's; then the hidden state kept at its end. A block reads the tree's pages before it: they
 * were compared already, so that each block needs a few pages only, and a request that comes waits for one block at most;
 * the rest is done when the engine is idle again. What was evicted meanwhile is skipped, also where only the windows are
 * gone that a block sees; windows are compared where the tree has them.
 *
 * A MISMATCH (there must be none) is counted and logged: namespace, position, tokens around it, the first byte that
 * differs. From that page on the path and everything below it is dropped, handles that hold it do not match it any more,
 * and everything of the namespace goes from the disk, as it is unknown which of its pages were computed from the
 * wrong one. Other namespaces that share the page (public prompts) lose it likewise, and then all of the disk cache goes.
 * No request is live then, so none is ended.
 *
 * Thread  engine thread only.
 * Errors  create: RD_E_NOMEM. Nothing here fails a request.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine_state.h"
#include "engine/images.h"
#include "engine/listener.h"

#define MAX_WAITING  32u /* hits; their tokens are copies */
#define BLOCK_TOKENS 64u /* a request that comes waits no longer than for an idle prompt's chunk */
#define SHOWN_TOKENS 16u /* on either side of a mismatch */

struct verify_job {
    kv_key *keys;
    uint32_t n, n_done;
    struct kv_space space;
    struct adapter_mix *adapters; /* a reference */
};

struct verifier {
    struct verify_counts counts;
    uint64_t seed;
    uint32_t block;                      /* tokens of one block: whole pages */
    struct verify_job jobs[MAX_WAITING]; /* a ring */
    uint32_t head, n_jobs;
    struct request shell;  /* what the batch's run belongs to: keys and namespace, never queued */
    kv_page *kept, *table; /* [n_ctx / page_tokens + 1]: the tree's pages; those that the block reads */
    kv_page *own;          /* [block / page_tokens] */
    uint32_t *windows;     /* as table */
};

/* One block of a hit: positions [from, to) of a path that is locked meanwhile. */
struct verify_block {
    struct radix_node *root, *node;
    uint32_t from, to, n_pages;
    bool at_end;
};

static rd_status begin(struct engine *e)
{
    uint32_t P = e->o.page_tokens;
    struct verifier *v;

    if (!(e->o.verify_share > 0) || !e->o.executor.differs) return RD_OK;
    v = mem_zalloc(1, sizeof(*v));
    if (!v) return RD_E_NOMEM;
    v->seed = e->o.verify_seed;
    v->block = P < BLOCK_TOKENS ? BLOCK_TOKENS / P * P : P;
    v->kept = mem_alloc(e->o.n_ctx / P + 2, sizeof(*v->kept));
    v->table = mem_alloc(e->o.n_ctx / P + 2, sizeof(*v->table));
    v->own = mem_alloc(v->block / P, sizeof(*v->own));
    v->windows = mem_zalloc(e->o.n_ctx / P + 2, sizeof(*v->windows));
    e->verifier = v;
    return v->kept && v->table && v->own && v->windows ? RD_OK : RD_E_NOMEM;
}

static void drop_head(struct verifier *v)
{
    mem_free(v->jobs[v->head].keys);
    adapter_mix_unref(v->jobs[v->head].adapters);
    v->jobs[v->head].keys = NULL;
    v->head = (v->head + 1) % MAX_WAITING;
    v->n_jobs--;
}

static void let_go(struct engine *e)
{
    struct verifier *v = e->verifier;

    if (!v) return;
    while (v->n_jobs > 0) drop_head(v);
    mem_free(v->kept);
    mem_free(v->table);
    mem_free(v->own);
    mem_free(v->windows);
    mem_free(v);
    e->verifier = NULL;
}

static void gather(const struct engine *e, struct engine_stats *s)
{
    if (!e->verifier) return;
    s->verify = e->verifier->counts;
    s->verify.n_waiting = e->verifier->n_jobs;
}

/* The first r->usage.n_cached tokens of r's prompt were a hit. Rows of images would need their encoder. */
static void note_hit(struct engine *e, struct request *r)
{
    struct verifier *v = e->verifier;
    struct verify_job job = {.n = r->usage.n_cached, .space = r->p.space};

    if (!v || job.n == 0 || !r->p.cached || engine_may_differ(e, job.n)) return;
    if (random_at_unit(v->seed, v->counts.n_hits++) >= e->o.verify_share) return;
    if (v->n_jobs < MAX_WAITING && images_before(r, job.n) == 0)
        job.keys = (kv_key *)(void *)mem_memdup(r->seq.keys, job.n * sizeof(*job.keys));
    if (!job.keys) {
        v->counts.n_skipped++;
        return;
    }
    job.adapters = adapter_mix_ref(r->p.adapters);
    v->jobs[(v->head + v->n_jobs++) % MAX_WAITING] = job;
}

/* ---- one block ---- */

static void give_pages(struct engine *e, struct kv_loan *loan, const struct verify_block *b)
{
    if (b->n_pages > 0) kv_loan_end(&e->cache, loan);
}

/* The windows that the block's rows see are used while it is computed, or not any more. */
static void use_windows(struct engine *e, const struct verify_block *b, bool on)
{
    uint32_t end = b->from / e->o.page_tokens;

    for (uint32_t k = e->cache.window ? kv_window_first(&e->cache, b->from) : end; k < end; k++)
        (on ? page_pool_use_window : page_pool_leave_window)(e->pool, e->verifier->kept[k]);
}

/* Whether they are there. */
static bool has_windows(const struct engine *e, const struct verify_block *b)
{
    uint32_t end = b->from / e->o.page_tokens;

    for (uint32_t k = e->cache.window ? kv_window_first(&e->cache, b->from) : end; k < end; k++)
        if (page_pool_window(e->pool, e->verifier->kept[k]) == KV_NO_PAGE) return false;
    return true;
}

/* Pages of our own; the least recently used of others go where there are none. */
static bool take_pages(struct engine *e, struct kv_loan *loan, struct verify_block *b)
{
    struct verifier *v = e->verifier;
    uint32_t P = e->o.page_tokens, n = u32_ceil_div(b->to - b->from, P);

    while (page_pool_n_free(e->pool) < n)
        if (engine_evict(e, n - page_pool_n_free(e->pool)) == 0) return false;
    if (page_pool_take(e->pool, n, v->own) != RD_OK) return false;
    b->n_pages = n;
    kv_loan_begin(&e->cache, loan, v->own, n);
    if (kv_loan_open_windows(&e->cache, loan, 0) != RD_OK) return false;
    kv_isolate(&e->cache, NULL, v->own, n);
    memcpy(v->table, v->kept, u32_ceil_div(b->to, P) * sizeof(*v->table));
    for (uint32_t k = 0; k < n; k++) {
        v->table[b->from / P + k] = v->own[k];
        page_pool_set_fill(e->pool, v->own[k], u32_min(P, b->to - b->from - k * P));
    }
    for (uint32_t k = e->cache.window ? kv_window_first(&e->cache, b->from) : UINT32_MAX; k < u32_ceil_div(b->to, P);
         k++)
        v->windows[k] = page_pool_window(e->pool, v->table[k]);
    return true;
}

/* Rows [pos, pos + n) as the only run of the step; wants_state: of the last one. */
static rd_status forward(struct engine *e, const struct verify_job *job, uint32_t pos, uint32_t n, bool wants_state)
{
    struct verifier *v = e->verifier;
    struct step_plan *p = &e->plan;
    rd_status st;

    v->shell.p.space = job->space;
    v->shell.store = (struct request_store){0};
    v->shell.seq.keys = job->keys;
    v->shell.seq.n_keys = job->n;
    model_batch_clear(&p->batch);
    model_batch_begin_run(&p->batch, pos, v->table, job->adapters);
    model_batch_set_windows(&p->batch, v->windows);
    p->run_request[0] = &v->shell;
    p->run_logits[0] = p->run_hidden[0] = 0;
    for (uint32_t i = 0; i < n; i++) model_batch_add_row(&p->batch, key_token(job->keys[pos + i]), e->o.page_tokens);
    if (wants_state) model_batch_want_logits(&p->batch, n - 1, &(struct row_draw){0});
    st = e->o.executor.forward(e->o.executor.self, &p->batch, e->logits);
    model_batch_clear(&p->batch);
    if (st == RD_OK) return st;
    log_error("computing %u rows of a hit again failed: %s", n, rd_status_name(st));
    e->stats.device_errors++;
    return st;
}

static rd_status compute(struct engine *e, const struct verify_job *job, const struct verify_block *b)
{
    rd_status st = RD_OK;

    for (uint32_t pos = b->from, n; st == RD_OK && pos < b->to; pos += n) {
        n = u32_min(b->to - pos, e->o.executor.max_rows);
        st = forward(e, job, pos, n, b->at_end && pos + n == b->to);
    }
    return st;
}

/* ---- what differs ---- */

static void put_tokens(const struct verify_job *job, uint32_t at, char *out, size_t size)
{
    uint32_t first = at < SHOWN_TOKENS ? 0 : at - SHOWN_TOKENS, n = u32_min(job->n, at + SHOWN_TOKENS);
    size_t len = 0;

    out[0] = 0;
    for (uint32_t i = first; i < n && len + 16 < size; i++)
        len +=
            (size_t)snprintf(out + len, size - len, "%s%s%u", i == first ? "" : " ", i == at ? "> " : "", job->keys[i]);
}

/* at: the first position that is not what it should be, of those that were looked at. */
static void tell(const struct engine *e, const struct verify_job *job, uint32_t at, const char *what)
{
    char tokens[SHOWN_TOKENS * 2 * 16], space[96];
    struct hash128 all = hash128_of(job->keys, job->n * sizeof(*job->keys));

    put_tokens(job, at, tokens, sizeof(tokens));
    kv_space_print(&job->space, space, sizeof(space));
    log_error("THE CACHE IS WRONG (please report this): position %u of a hit of %u tokens, %s; radish %s, namespace "
              "\"%.*s\", %s, pages of %u tokens; token ids from %u on: %s; XXH3 of all "
              "token ids %016" PRIx64 "%016" PRIx64,
              at, job->n, what, RADISH_VERSION, (int)e->o.namespace_bytes,
              e->o.namespace_bytes ? (const char *)e->o.namespace_name : "", space, e->o.page_tokens,
              at < SHOWN_TOKENS ? 0 : at - SHOWN_TOKENS, tokens, all.high, all.low);
    for (uint32_t i = 0; i < job->n; i += SHOWN_TOKENS) {
        struct verify_job part = {.keys = job->keys + i, .n = u32_min(SHOWN_TOKENS, job->n - i)};

        put_tokens(&part, SHOWN_TOKENS, tokens, sizeof(tokens));
        log_debug("token ids of that hit from %u on: %s", i, tokens);
    }
}

/* The position from which on the path is wrong; UINT32_MAX: nothing is. */
static uint32_t compare(const struct engine *e, const struct verify_job *job, const struct verify_block *b)
{
    const struct verifier *v = e->verifier;
    uint32_t P = e->o.page_tokens, state_bytes = e->cache.state_bytes;
    const void *state = b->at_end ? radix_node_state(b->node) : NULL;
    char what[200];

    for (uint32_t k = 0; k < b->n_pages; k++) {
        uint32_t start = b->from + k * P;
        struct page_difference d = {0};

        if (!e->o.executor.differs(e->o.executor.self, v->kept[start / P], v->own[k], u32_min(P, b->to - start), &d))
            continue;
        snprintf(what, sizeof(what), "%s of layer %u, KV head %u, byte %u: 0x%02x is kept, 0x%02x was computed",
                 d.is_value ? "value" : "key", d.layer, d.kv_head, d.byte, d.a, d.b);
        tell(e, job, start + d.row, what);
        return start;
    }
    if (!state || memcmp(state, e->plan.states, state_bytes) == 0) return UINT32_MAX;
    tell(e, job, b->to - 1, "the hidden state that is kept with it is another");
    return (b->to - 1) / P * P;
}

static void condemn(struct engine *e, const struct verify_block *b, uint32_t from)
{
    kv_page page = e->verifier->kept[from / e->o.page_tokens];

    e->verifier->counts.n_mismatches++;
    page_pool_retain(e->pool, page); /* so that it is no other's before all have let go */
    radix_condemn(e->cache.tree, b->node, from);
    if (radix_condemn_page(e->cache.tree, page) > 0)
        ENGINE_TELL(condemned, (e, NULL)); /* others share it */
    else
        ENGINE_TELL(condemned, (e, &e->verifier->shell));
    page_pool_release(e->pool, page);
}

/* ---- a step ---- */

/* True: the block was compared and is right. */
static bool verify(struct engine *e, const struct verify_job *job, struct verify_block *b)
{
    struct verifier *v = e->verifier;
    struct kv_loan loan;
    uint32_t wrong = UINT32_MAX;
    bool done = false;

    radix_lock(e->cache.tree, b->node);
    radix_path_pages(e->cache.tree, b->node, b->to, v->kept);
    if (has_windows(e, b)) {
        use_windows(e, b, true);
        if (take_pages(e, &loan, b) && compute(e, job, b) == RD_OK) {
            wrong = compare(e, job, b);
            done = wrong == UINT32_MAX;
        }
        use_windows(e, b, false);
        give_pages(e, &loan, b);
    }
    radix_unlock(e->cache.tree, b->node);
    if (wrong != UINT32_MAX)
        condemn(e, b, wrong);
    else if (!done)
        v->counts.n_skipped++;
    return done;
}

/* Computes and compares one block. False: nothing to do. */
static bool step(struct engine *e)
{
    struct verifier *v = e->verifier;
    struct verify_job *job;
    struct verify_block b = {0};
    struct radix_match m;

    if (!v || v->n_jobs == 0 || engine_n_out(e) > 0) return false;
    job = &v->jobs[v->head];
    b.root = engine_root_of(e, &job->space);
    if (b.root) m = radix_match(e->cache.tree, b.root, job->keys, job->n, clock_now_ns(e->o.clock));
    if (!b.root || m.n_ready < job->n) {
        v->counts.n_skipped++;
        drop_head(v);
        return true;
    }
    b.node = m.node;
    b.from = job->n_done;
    b.to = u32_min(job->n, b.from + v->block);
    b.at_end = e->cache.state_bytes > 0 && b.to == job->n && m.n_in_node == radix_node_n_keys(m.node) &&
               radix_node_state(m.node);
    if (!verify(e, job, &b)) {
        drop_head(v);
        return true;
    }
    v->counts.n_tokens += b.to - b.from;
    job->n_done = b.to;
    if (b.to < job->n) return true;
    v->counts.n_verified++;
    drop_head(v);
    return true;
}

const struct engine_listener listens_verifier = {
    .begin = begin, .let_go = let_go, .gather = gather, .prompt_known = note_hit, .idle = step};
