/* engine/draft/draft_model.c - see the header. */
#include "engine/draft/draft_model.h"
#include <string.h>
#include "base/checked.h"
#include "base/log.h"
#include "base/mem.h"

#define SHORT_ROWS   8u /* a shadow that lacks no more catches up while it drafts */
#define EXPIRE_NODES 64u
#define SMOOTH       8u

struct draft_model {
    struct draft_model_options o;
    struct page_pool *pool;
    struct kv_cache cache;
    struct radix_node *root;
    bool failed; /* the device did: no drafts any more */
    uint64_t step_ns;
    float *logits; /* [max_running, n_vocab of the small model], mapped */
    uint64_t logits_bytes;
    struct model_batch batch;
    struct request **who; /* [max_running] */
};

static void copy_rows(void *arg, kv_page to, kv_page from, uint32_t n_rows)
{
    struct draft_model *m = arg;

    m->o.executor.copy_rows(m->o.executor.self, to, from, n_rows);
}

rd_status draft_model_create(const struct draft_model_options *o, struct draft_model **out)
{
    struct draft_model *m = mem_zalloc(1, sizeof(*m));
    uint32_t n_rows = o->executor.max_rows, n_runs = o->max_running;
    rd_status st = RD_E_NOMEM;

    if (!m) return st;
    m->o = *o;
    m->logits_bytes = (uint64_t)n_runs * o->executor.n_vocab * sizeof(float);
    m->logits = mem_map(m->logits_bytes);
    m->who = mem_zalloc(n_runs, sizeof(struct request *));
    if (!m->logits || !m->who) goto fail;
    if ((st = model_batch_init(&m->batch, (struct model_batch_room){n_rows, n_runs, n_runs, 0})) != RD_OK) goto fail;
    if ((st = page_pool_create(o->n_pages, o->page_tokens, &m->pool)) != RD_OK) goto fail;
    if ((st = radix_create(m->pool, &m->cache.tree)) != RD_OK) goto fail;
    if ((st = radix_namespace(m->cache.tree, "draft", 5, &m->root)) != RD_OK) goto fail;
    m->cache.pool = m->pool;
    m->cache.copy_rows = copy_rows;
    m->cache.copy_arg = m;
    radix_hand_over(m->cache.tree);
    *out = m;
    return RD_OK;

fail:
    draft_model_destroy(m);
    return st;
}

void draft_model_destroy(struct draft_model *m)
{
    if (!m) return;
    radix_destroy(m->cache.tree);
    page_pool_destroy(m->pool);
    mem_unmap(m->logits, m->logits_bytes);
    model_batch_deinit(&m->batch);
    mem_free(m->who);
    mem_free(m);
}

/* ---- shadows ---- */

void draft_model_leave(struct request *r)
{
    struct kv_seq *shadow = r->draft.shadow;

    if (!shadow) return;
    kv_seq_finish(shadow, true, r->draft.shadow_ns);
    kv_seq_deinit(shadow);
    mem_free(shadow);
    r->draft.shadow = NULL;
}

static struct kv_seq *shadow_of(struct draft_model *m, struct request *r)
{
    struct request_draft *d = &r->draft;
    struct kv_seq *s;

    d->shadow_ns = clock_now_ns(m->o.clock);
    if (d->shadow) return d->shadow;
    s = mem_zalloc(1, sizeof(*s));
    if (!s) return NULL;
    if (kv_seq_init(s, &m->cache, r->seq.keys, r->seq.n_keys, r->seq.n_keys_cap + DRAFT_MAX) != RD_OK) {
        mem_free(s);
        return NULL;
    }
    if (kv_seq_admit(s, r->p.cached && kv_space_is_open(&r->p.space) ? m->root : NULL, d->shadow_ns) != RD_OK) {
        kv_seq_deinit(s);
        mem_free(s);
        return NULL;
    }
    d->n_synced = r->seq.n_keys;
    d->shadow = s;
    return s;
}

/* What the served model said takes the place of what was guessed. */
static void sync_keys(struct request *r)
{
    struct kv_seq *s = r->draft.shadow;
    uint32_t n = r->draft.n_synced;

    while (n < s->n_keys && n < r->seq.n_keys && s->keys[n] == r->seq.keys[n]) n++;
    kv_seq_truncate(s, n);
    while (s->n_keys < r->seq.n_keys) kv_seq_push(s, r->seq.keys[s->n_keys]);
    r->draft.n_synced = s->n_keys;
}

static bool find_pages(struct draft_model *m, struct kv_seq *s, uint32_t n)
{
    uint32_t need = kv_seq_pages_needed(s, n), n_free = page_pool_n_free(m->pool);

    if (need > n_free) radix_evict(m->cache.tree, need - n_free);
    return kv_seq_reserve(s, n) == RD_OK;
}

/* The next n rows of r's shadow join the batch. */
static bool add_run(struct draft_model *m, struct request *r, uint32_t n, bool logits)
{
    struct kv_seq *s = r->draft.shadow;
    struct model_batch *b = &m->batch;

    if (!find_pages(m, s, n)) return false;
    m->who[b->n_runs] = r;
    model_batch_begin_run(b, s->n_computed, s->pages, NULL);
    for (uint32_t i = 0; i < n; i++) model_batch_add_row(b, key_token(s->keys[s->n_computed + i]), m->o.page_tokens);
    if (logits) model_batch_want_logits(b, b->n_rows - 1, NULL);
    return true;
}

static bool forward(struct draft_model *m)
{
    rd_status st = m->o.executor.forward(m->o.executor.self, &m->batch, m->logits);

    for (uint32_t i = 0; i < m->batch.n_runs; i++) {
        if (st == RD_OK)
            kv_seq_commit(m->who[i]->draft.shadow);
        else
            kv_seq_poison(m->who[i]->draft.shadow);
    }
    if (st == RD_OK) return true;
    log_error("the draft model failed (%s): no more drafts from it", rd_status_name(st));
    m->failed = true;
    return false;
}

static void begin_batch(struct draft_model *m)
{
    model_batch_clear(&m->batch);
}

bool draft_model_catch_up(struct draft_model *m, struct request *r, uint32_t *n_rows_left)
{
    struct kv_seq *s;
    uint32_t n;

    if (m->failed || r->images.n > 0 || !(s = shadow_of(m, r)) || s->state != KV_SEQ_RUNNABLE) return false;
    sync_keys(r);
    n = s->n_keys - s->n_computed;
    if (n <= SHORT_ROWS) return n > 0; /* 0: r has not moved since its last draft was written */
    n = u32_min(u32_min(n - 1, *n_rows_left), m->o.executor.max_rows);
    begin_batch(m);
    if (n == 0 || !add_run(m, r, n, false) || !forward(m)) return false;
    *n_rows_left -= n;
    return s->n_keys - s->n_computed <= SHORT_ROWS;
}

static kv_key likeliest(const struct draft_model *m, const float *logits)
{
    uint32_t n = u32_min(m->o.n_vocab, m->o.executor.n_vocab), best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static void learn_step_ns(struct draft_model *m, uint64_t ns)
{
    m->step_ns = m->step_ns ? (m->step_ns * (SMOOTH - 1) + ns) / SMOOTH : ns;
}

void draft_model_write(struct draft_model *m, struct request **who, uint32_t n)
{
    for (uint32_t round = 0; !m->failed; round++) {
        uint64_t begin = clock_now_ns(m->o.clock);

        begin_batch(m);
        for (uint32_t i = 0; i < n && m->batch.n_runs < m->o.max_running; i++) {
            struct kv_seq *s = who[i]->draft.shadow;

            if (who[i]->draft.n_wanted > round && m->batch.n_rows + SHORT_ROWS <= m->o.executor.max_rows &&
                !add_run(m, who[i], s->n_keys - s->n_computed, true))
                who[i]->draft.n_wanted = 0;
        }
        if (m->batch.n_runs == 0 || !forward(m)) return;
        for (uint32_t i = 0; i < m->batch.n_runs; i++) {
            struct request_draft *d = &m->who[i]->draft;
            kv_key token = likeliest(m, m->logits + (size_t)i * m->o.executor.n_vocab);

            d->tokens[d->n++] = token;
            kv_seq_push(d->shadow, token);
        }
        if (round > 0) learn_step_ns(m, clock_now_ns(m->o.clock) - begin); /* the first one also catches up */
    }
}

uint64_t draft_model_step_ns(const struct draft_model *m)
{
    return m->step_ns;
}

void draft_model_expire(struct draft_model *m, uint64_t before_ns, uint64_t now)
{
    radix_expire(m->cache.tree, before_ns, now, EXPIRE_NODES);
}

void draft_model_clear(struct draft_model *m)
{
    radix_clear(m->cache.tree, NULL);
}

void draft_model_hand_over(struct draft_model *m)
{
    radix_hand_over(m->cache.tree);
}

const struct kv_seq *draft_model_run(const struct draft_model *m, uint32_t run)
{
    return m->who[run]->draft.shadow;
}

rd_status draft_model_check(const struct draft_model *m, struct rd_error *err)
{
    return kv_check(&m->cache, err);
}
