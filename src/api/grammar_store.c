/* api/grammar_store.c - forms to grammars: one list of all that are kept or in use, and one budget for them. */
#include "api/grammar_store.h"
#include <string.h>
#include "api/form_node.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/sysinfo.h"
#include "base/thread.h"
#include "text/grammar/node_list.h"
#include "text/output/tool_grammar.h"

#define SPACE         (16u << 20)  /* the most for sets and masks of one grammar */
#define PROMISED      (512u << 10) /* what each has in any case, or PROMISE_SHARE of a small budget */
#define PROMISE_SHARE 64u
#define DEFAULT_BYTES (512ull << 20)
#define LEAST_BYTES   (64ull << 20)
#define QUICK_NS      10000000ull /* of the thread's own time, for what is compiled quickly */
#define FULL_SHARE    4u          /* so much of the budget is kept free of grammars that nobody uses */

/* By the form's whole text: a digest could be made to meet another's. */
struct kept_grammar {
    struct kept_grammar *next; /* the one used last is first */
    uint64_t hash;
    char *key;
    size_t n_key;
    struct grammar *grammar;
};

struct grammar_store {
    const struct tokenizer *tokenizer;
    uint32_t n_vocab;
    const struct clock *clock; /* NULL: the machine's */
    struct grammar_budget budget;
    struct mutex lock;           /* guards all below */
    struct grammar_vocab *vocab; /* made for the first form */
    struct kept_grammar *kept;   /* all grammars there are */
};

static size_t entry_bytes(const struct kept_grammar *k)
{
    return sizeof(*k) + k->n_key;
}

static void drop(struct grammar_store *s, struct kept_grammar *k)
{
    if (!k) return;
    grammar_unref(k->grammar);
    grammar_budget_give(&s->budget, entry_bytes(k));
    mem_free(k->key);
    mem_free(k);
}

bool output_form_binds(const struct output_form *f)
{
    return f->kind != RD_GRAMMAR_NONE || f->forced_tool || f->strict_tools;
}

rd_status grammar_store_create(const struct tokenizer *t, uint64_t limit, struct grammar_store **out)
{
    struct grammar_store *s = mem_zalloc(1, sizeof(*s));
    uint64_t share = sysinfo_memory() / 16;

    if (!s) return RD_E_NOMEM;
    s->tokenizer = t;
    s->n_vocab = tokenizer_n_tokens(t);
    s->budget.limit = limit ? limit : u64_max(LEAST_BYTES, u64_min(share, DEFAULT_BYTES));
    mutex_init(&s->lock);
    *out = s;
    return RD_OK;
}

void grammar_store_destroy(struct grammar_store *s)
{
    if (!s) return;
    while (s->kept) {
        struct kept_grammar *k = s->kept;

        s->kept = k->next;
        drop(s, k);
    }
    mutex_deinit(&s->lock);
    grammar_vocab_unref(s->vocab);
    mem_free(s);
}

/* ---- the vocabulary ---- */

static rd_status make_vocab(const struct grammar_store *s, struct grammar_vocab **out)
{
    uint64_t *offsets = mem_zalloc((size_t)s->n_vocab + 1, sizeof(*offsets));
    bool *special = mem_zalloc(s->n_vocab, sizeof(*special));
    struct buf bytes = {0};
    rd_status st = RD_E_NOMEM;

    if (!offsets || !special) goto done;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        enum token_type type = tokenizer_type(s->tokenizer, (int32_t)i);
        struct text_span piece = {"", 0};

        special[i] = type == TOKEN_CONTROL;
        if (type == TOKEN_NORMAL || type == TOKEN_USER_DEFINED || type == TOKEN_BYTE)
            piece = tokenizer_piece(s->tokenizer, (int32_t)i, false);
        buf_append(&bytes, piece.s, piece.n);
        offsets[i + 1] = bytes.n;
    }
    if (!bytes.failed)
        st = grammar_vocab_create(s->n_vocab, (const uint8_t *)(bytes.data ? bytes.data : ""), offsets, special, out);
done:
    mem_free(offsets);
    mem_free(special);
    buf_deinit(&bytes);
    return st;
}

/* A reference for the caller. */
static rd_status vocab_of(struct grammar_store *s, struct grammar_vocab **out)
{
    rd_status st = RD_OK;

    mutex_lock(&s->lock);
    if (!s->vocab) st = make_vocab(s, &s->vocab);
    if (st == RD_OK) *out = grammar_vocab_ref(s->vocab);
    mutex_unlock(&s->lock);
    return st;
}

static int32_t token_of(void *arg, const char *text, size_t n)
{
    const struct grammar_store *s = arg;
    int32_t id = tokenizer_find(s->tokenizer, text, n);

    return id >= 0 && tokenizer_type(s->tokenizer, id) == TOKEN_CONTROL ? id : -1;
}

/* ---- a form's node ---- */

/* Line ends that models write between thinking and answer. */
static grammar_node behind_thinking(struct grammar_builder *b, grammar_node node)
{
    return grammar_pair(b, grammar_repeat(b, grammar_word(b, "\n"), 0, 2), node);
}

static grammar_node output_node(struct grammar_store *s, struct grammar_builder *b, const struct output_form *f)
{
    struct tag_tokens tokens = {token_of, s};
    struct tool_grammar g = {f->style, f->template_source, NULL, f->forced_tool, f->single, &tokens};
    grammar_node content = 0, calls = 0, node;
    json_t *tools = NULL;

    if (f->kind != RD_GRAMMAR_NONE && !f->forced_tool) content = form_node(b, f->kind, f->text, f->n_text, &tokens);
    if (f->tools && (f->forced_tool || f->strict_tools || content)) {
        g.tools = tools = form_json(b, f->tools, strlen(f->tools));
        if (tools && tool_grammar_knows(f->style))
            calls = f->taught                   ? tool_grammar_taught(b, &g, f->stop, f->n_stop)
                    : f->forced_tool || content ? tool_grammar_calls(b, &g)
                                                : tool_grammar_free(b, &g);
    }
    node = content ? content : calls;
    if (content && calls) node = grammar_either(b, content, calls);
    json_decref(tools);
    return f->thinks ? behind_thinking(b, node) : node;
}

/* ---- what was compiled ---- */

/* NULL: no memory. */
static char *key_of(const struct output_form *f, size_t *n)
{
    struct buf all = {0};

    buf_printf(&all, "%d %d %d %d %d %d %u %zu ", (int)f->kind, (int)f->style, f->strict_tools, f->single, f->thinks,
               f->taught, f->taught ? f->n_stop : 0, f->n_text);
    if (f->kind != RD_GRAMMAR_NONE) buf_append(&all, f->text, f->n_text);
    buf_printf(&all, "|%s|", f->forced_tool ? f->forced_tool : "\n");
    for (uint32_t i = 0; f->taught && i < f->n_stop; i++) buf_printf(&all, "%zu %s|", strlen(f->stop[i]), f->stop[i]);
    if (f->tools) buf_puts(&all, f->tools);
    return buf_take(&all, n);
}

/* A reference, or NULL. Locked. */
static struct grammar *find(struct grammar_store *s, const struct kept_grammar *wanted)
{
    for (struct kept_grammar **at = &s->kept; *at; at = &(*at)->next) {
        struct kept_grammar *k = *at;

        if (k->hash != wanted->hash || k->n_key != wanted->n_key || memcmp(k->key, wanted->key, k->n_key) != 0)
            continue;
        *at = k->next;
        k->next = s->kept;
        s->kept = k;
        return grammar_ref(k->grammar);
    }
    return NULL;
}

static struct grammar *find_locked(struct grammar_store *s, const struct kept_grammar *wanted)
{
    struct grammar *g;

    mutex_lock(&s->lock);
    g = find(s, wanted);
    mutex_unlock(&s->lock);
    return g;
}

/* Of those that nobody uses, the one that was used longest ago goes. References are given here alone, under the lock: one
 * that is not shared now stays so. */
static bool evict_one(struct grammar_store *s)
{
    struct kept_grammar **last = NULL, *k;

    mutex_lock(&s->lock);
    for (struct kept_grammar **at = &s->kept; *at; at = &(*at)->next)
        if (!grammar_is_shared((*at)->grammar)) last = at;
    k = last ? *last : NULL;
    if (k) *last = k->next;
    mutex_unlock(&s->lock);
    drop(s, k); /* out of the lock: much is freed */
    return k != NULL;
}

/* Until so much more would leave room for those in use to grow. */
static void make_room(struct grammar_store *s, uint64_t n)
{
    uint64_t most = s->budget.limit - s->budget.limit / FULL_SHARE;

    while (atomic_load_explicit(&s->budget.used, memory_order_relaxed) + n > most && evict_one(s)) continue;
}

static rd_status charge(struct grammar_store *s, struct grammar *g, struct rd_error *err)
{
    uint64_t promised = u64_min(PROMISED, s->budget.limit / PROMISE_SHARE);
    rd_status st;

    make_room(s, promised);
    do st = grammar_charge(g, &s->budget, promised);
    while (st == RD_E_FULL && evict_one(s));
    if (st == RD_E_LIMIT)
        return error_set(err, RD_E_LIMIT, "the grammar takes more memory than one may: %llu MiB",
                         (unsigned long long)(s->budget.limit / GRAMMAR_BUDGET_SHARE >> 20));
    if (st == RD_E_FULL)
        return error_set(err, RD_E_FULL, "the grammars in use take all of their memory, %llu MiB: try again later",
                         (unsigned long long)(s->budget.limit >> 20));
    return st;
}

static rd_status compile(struct grammar_store *s, const struct output_form *f, bool quickly, struct grammar **out,
                         struct rd_error *err)
{
    struct grammar_limits limits = form_limits;
    struct grammar_builder *b = NULL;
    struct grammar_vocab *vocab = NULL;
    rd_status st = vocab_of(s, &vocab);

    limits.clock = s->clock;
    if (quickly) limits.max_ns = QUICK_NS;
    if (st == RD_OK) st = grammar_builder_create(&limits, &b);
    if (st != RD_OK) error_set(err, st, "out of memory for a grammar");
    if (st == RD_OK) {
        st = grammar_compile(b, output_node(s, b, f), vocab, SPACE, out, err);
        if (st != RD_OK && quickly && grammar_worked_out(b)) st = RD_E_AGAIN;
    }
    grammar_builder_destroy(b);
    grammar_vocab_unref(vocab);
    return st;
}

/* Compiled, charged and warm; nobody else has it yet. */
static rd_status make(struct grammar_store *s, const struct output_form *f, bool quickly, struct grammar **out,
                      struct rd_error *err)
{
    struct grammar *g = NULL;
    rd_status st = compile(s, f, quickly, &g, err);

    if (st != RD_OK) return st;
    st = charge(s, g, err);
    if (st == RD_OK) {
        st = quickly ? grammar_warm_quickly(g) : grammar_warm(g);
        if (st != RD_OK) error_set(err, st, "%s for the masks of a grammar", rd_status_text(st));
    }
    if (st == RD_OK)
        *out = g;
    else
        grammar_unref(g);
    return st;
}

/* Among all, unless another thread has put the same form there meanwhile: then *g is that one. Takes k. */
static rd_status keep(struct grammar_store *s, struct kept_grammar *k, struct grammar **g, struct rd_error *err)
{
    struct grammar *other;

    while (!grammar_budget_take(&s->budget, entry_bytes(k)))
        if (!evict_one(s)) {
            grammar_unref(*g);
            *g = NULL;
            mem_free(k->key);
            mem_free(k);
            return error_set(err, RD_E_FULL, "the grammars in use take all of their memory: try again later");
        }
    k->grammar = *g;
    mutex_lock(&s->lock);
    other = find(s, k);
    if (!other) {
        grammar_ref(*g);
        k->next = s->kept;
        s->kept = k;
    }
    mutex_unlock(&s->lock);
    if (other) {
        drop(s, k);
        *g = other;
    }
    return RD_OK;
}

void grammar_store_set_clock(struct grammar_store *s, const struct clock *c)
{
    s->clock = c;
}

rd_status grammar_store_get(struct grammar_store *s, const struct output_form *f, bool quickly, struct grammar **out,
                            struct rd_error *err)
{
    struct kept_grammar *k = mem_zalloc(1, sizeof(*k));
    rd_status st = RD_OK;

    if (k) k->key = key_of(f, &k->n_key);
    if (!k || !k->key) {
        mem_free(k);
        return error_set(err, RD_E_NOMEM, "out of memory for a grammar");
    }
    k->hash = hash64_of(k->key, k->n_key);
    *out = find_locked(s, k);
    if (!*out) {
        st = make(s, f, quickly, out, err);
        if (st == RD_OK) return keep(s, k, out, err);
    }
    mem_free(k->key);
    mem_free(k);
    return st;
}

struct grammar_store_counts grammar_store_counts(struct grammar_store *s)
{
    struct grammar_store_counts c = {.limit = s->budget.limit,
                                     .used = atomic_load_explicit(&s->budget.used, memory_order_relaxed)};

    mutex_lock(&s->lock);
    for (const struct kept_grammar *k = s->kept; k; k = k->next) c.n_grammars++;
    mutex_unlock(&s->lock);
    return c;
}

/* ---- what a grammar forces, as tokens ---- */

/* Up to a tag that the vocabulary has as a token of its own: some models write the token, others its letters, and what
 * they wrote decides what they write next. That is left to them, but at the beginning, where it is the template's. */
static uint32_t encode(const struct grammar_store *s, const char *text, size_t n, bool first, int32_t **ids)
{
    uint32_t n_ids = 0, i = 0;

    *ids = NULL;
    if (tokenizer_encode(s->tokenizer, text, n, false, false, ids, &n_ids, NULL) != RD_OK) return 0;
    if (first && n_ids > 0) i++;
    while (i < n_ids && tokenizer_type(s->tokenizer, (*ids)[i]) != TOKEN_USER_DEFINED) i++;
    return i;
}

/* How the text may go on: a token is sure when none of these changes it. */
static const char *const continuations[] = {"a", "A", "0", " ", "\"", "\n", ",", "/", "_", "}", "\xc3\xa9"};

uint32_t grammar_store_tokenise(void *arg, const uint8_t *bytes, uint32_t n, struct constraint_place place,
                                int32_t *tokens, uint32_t cap)
{
    const struct grammar_store *s = arg;
    char text[512];
    int32_t *ids = NULL;
    uint32_t n_sure;

    if (n > sizeof(text) - 4) return 0;
    memcpy(text, bytes, n);
    n_sure = encode(s, text, n, place.first, &ids);
    for (size_t i = 0; !place.whole && n_sure > 0 && i < sizeof(continuations) / sizeof(continuations[0]); i++) {
        size_t n_more = strlen(continuations[i]);
        int32_t *other = NULL;
        uint32_t n_other, same = 0;

        memcpy(text + n, continuations[i], n_more);
        n_other = encode(s, text, n + n_more, place.first, &other);
        while (same < n_sure && same < n_other && ids[same] == other[same]) same++;
        n_sure = same;
        mem_free(other);
    }
    n_sure = u32_min(n_sure, cap);
    if (n_sure) memcpy(tokens, ids, n_sure * sizeof(*tokens));
    mem_free(ids);
    return n_sure;
}
