/* api/api_sampling.c - how a request's tokens are chosen: options to the sampler's parameters, texts to token ids.
 *
 * Bad words are banned as vLLM does: as the tokens of the word, and of the word behind a space where that is one other
 * first token. Sequence breakers of DRY as llama.cpp does: tokens that hold the text, and those that end with its
 * beginning, followed by the tokens of the rest.
 */
#include <string.h>
#include "api/api_state.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"

#define DRY_WORDS_MAX (1u << 18) /* tokens that end with the beginning of a sequence breaker */

/* ---- the order of the stages ---- */

struct stage_name {
    const char *name;
    char letter;
    int stage;
};
static const struct stage_name stage_names[] = {
    {"penalties", 'e', SAMPLER_PENALTIES},
    {"dry", 'd', SAMPLER_DRY},
    {"temperature", 't', SAMPLER_TEMPERATURE},
    {"temp", 0, SAMPLER_TEMPERATURE},
    {"top_n_sigma", 's', SAMPLER_TOP_N_SIGMA},
    {"top_k", 'k', SAMPLER_TOP_K},
    {"typ_p", 'y', SAMPLER_TYPICAL_P},
    {"typical_p", 0, SAMPLER_TYPICAL_P},
    {"typical", 0, SAMPLER_TYPICAL_P},
    {"typ", 0, SAMPLER_TYPICAL_P},
    {"top_p", 'p', SAMPLER_TOP_P},
    {"nucleus", 0, SAMPLER_TOP_P},
    {"min_p", 'm', SAMPLER_MIN_P},
    {"xtc", 'x', SAMPLER_XTC},
    {"infill", 'i', -1}, /* llama.cpp's; without effect here */
    {"adaptive_p", 'a', -1},
};
#define N_STAGE_NAMES (sizeof(stage_names) / sizeof(stage_names[0]))

static bool is_name(const char *name, const char *s, size_t n)
{
    if (strlen(name) != n) return false;
    for (size_t i = 0; i < n; i++)
        if ((s[i] == '-' ? '_' : s[i]) != name[i]) return false;
    return true;
}

static const struct stage_name *find_name(const char *s, size_t n)
{
    for (size_t i = 0; i < N_STAGE_NAMES; i++)
        if (is_name(stage_names[i].name, s, n)) return &stage_names[i];
    return NULL;
}

static const struct stage_name *find_letter(char letter)
{
    for (size_t i = 0; i < N_STAGE_NAMES; i++)
        if (letter && stage_names[i].letter == letter) return &stage_names[i];
    return NULL;
}

static rd_status add_stage(const struct stage_name *found, const char *s, size_t n, struct sampler_params *p,
                           struct rd_error *err)
{
    char quoted[80];

    if (!found) {
        error_quote(quoted, sizeof(quoted), s, n);
        return error_set(err, RD_E_INVALID,
                         "samplers: %s is unknown; penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc and "
                         "temperature, or the letters edskypmxt, are known",
                         quoted);
    }
    if (found->stage < 0) return RD_OK;
    if (p->n_stages == SAMPLER_MAX_STAGES)
        return error_set(err, RD_E_INVALID, "samplers: at most %u", SAMPLER_MAX_STAGES);
    p->stages[p->n_stages++] = (uint8_t)found->stage;
    return RD_OK;
}

/* "top_k;temperature", one name, or letters. */
static rd_status fill_stages(const char *s, struct sampler_params *p, struct rd_error *err)
{
    bool names;
    rd_status st = RD_OK;

    if (!s || !*s) return RD_OK;
    names = strpbrk(s, ";, ") || find_name(s, strlen(s));
    p->has_stages = true;
    while (*s && st == RD_OK) {
        size_t n = names ? strcspn(s, ";, ") : 1;

        if (n) st = add_stage(names ? find_name(s, n) : find_letter(*s), s, n, p, err);
        s += n;
        if (names) s += strspn(s, ";, ");
    }
    return st;
}

/* ---- numbers and ids ---- */

void rd_sampling_default(struct rd_sampling *s)
{
#define DEFAULT(kind, field, name, alias, fallback, least, most, text) .field = (RD_SAMPLING_##kind)(fallback),
    *s = (struct rd_sampling){.size = sizeof(*s), RD_SAMPLING_NUMBERS(DEFAULT)};
#undef DEFAULT
}

rd_status api_sampling_fill(const struct rd_request_options *o, struct sampler_params *p, struct rd_error *err)
{
    if (o->sampling.size != sizeof(o->sampling))
        return error_set(err, RD_E_INVALID, "sampling.size: %zu, wanted %zu: rd_sampling_default sets it",
                         o->sampling.size, sizeof(o->sampling));
    sampler_params_default(p);
#define COPY(kind, field, name, alias, fallback, least, most, text) p->field = o->sampling.field;
    RD_SAMPLING_NUMBERS(COPY)
#undef COPY
    p->bias = o->sampling.bias;
    p->n_bias = o->sampling.n_bias;
    p->allowed = o->sampling.allowed;
    p->n_allowed = o->sampling.n_allowed;
    p->n_top_logprobs = o->n_top_logprobs;
    p->want_logprob = o->logprobs;
    p->seed = o->sampling.seed;
    if (!o->sampling.has_seed) random_os(&p->seed, sizeof(p->seed));
    return fill_stages(o->sampling.samplers, p, err);
}

static rd_status check_words(const char *name, const char *const *words, uint32_t n, uint32_t most,
                             struct rd_error *err)
{
    if (n > most) return error_set(err, RD_E_INVALID, "%s: at most %u", name, most);
    for (uint32_t i = 0; i < n; i++) {
        size_t bytes = strlen(words[i]);

        if (bytes == 0 || bytes > LIMIT_WORD_BYTES)
            return error_set(err, RD_E_INVALID, "%s: each must have 1 to %u bytes", name, LIMIT_WORD_BYTES);
    }
    return RD_OK;
}

rd_status api_sampling_check(const rd_engine *engine, const struct rd_request_options *o, struct rd_error *err)
{
    uint32_t n_vocab = engine->info.n_vocab;
    struct sampler_params p;
    rd_status st = api_sampling_fill(o, &p, err);

    if (st == RD_OK) st = sampler_params_check(&p, n_vocab, err);
    if (st == RD_OK)
        st = check_words("bad_words", o->sampling.bad_words, o->sampling.n_bad_words, LIMIT_BAD_WORDS, err);
    if (st == RD_OK)
        st = check_words("dry_sequence_breakers", o->sampling.dry_breakers, o->sampling.n_dry_breakers,
                         LIMIT_DRY_BREAKERS, err);
    if (st != RD_OK) return st;
    if (o->sampling.n_text_bias > LIMIT_LOGIT_BIAS)
        return error_set(err, RD_E_INVALID, "logit_bias: at most %u entries", LIMIT_LOGIT_BIAS);
    for (uint32_t i = 0; i < o->sampling.n_text_bias; i++) {
        const struct rd_text_bias *b = &o->sampling.text_bias[i];

        if ((st = check_words("logit_bias", &b->text, 1, 1, err)) != RD_OK) return st;
        if (!(b->bias >= -100 && b->bias <= 100))
            return error_set(err, RD_E_INVALID, "logit_bias: values must be within -100 and 100");
    }
    if (o->n_stop_tokens > LIMIT_STOP_TOKENS)
        return error_set(err, RD_E_INVALID, "stop_token_ids: at most %u", LIMIT_STOP_TOKENS);
    for (uint32_t i = 0; i < o->n_stop_tokens; i++)
        if (o->stop_tokens[i] < 0 || (uint32_t)o->stop_tokens[i] >= n_vocab)
            return error_set(err, RD_E_INVALID, "stop_token_ids: token %d is not in the vocabulary of %u",
                             o->stop_tokens[i], n_vocab);
    if (o->min_tokens > o->max_tokens) return error_set(err, RD_E_INVALID, "min_tokens: must not be above max_tokens");
    return RD_OK;
}

/* ---- texts ---- */

/* Sequences of tokens while they are gathered. */
struct gathered {
    int32_t *tokens;
    uint32_t *ends;
    size_t n_tokens, n, cap_tokens, cap_ends;
};

static bool gather(struct gathered *g, const int32_t *head, uint32_t n_head, const int32_t *tail, uint32_t n_tail)
{
    if (!mem_grow((void **)&g->tokens, &g->cap_tokens, g->n_tokens + n_head + n_tail, sizeof(*g->tokens)) ||
        !mem_grow((void **)&g->ends, &g->cap_ends, g->n + 1, sizeof(*g->ends)))
        return false;
    memcpy(g->tokens + g->n_tokens, head, n_head * sizeof(*head));
    if (n_tail) memcpy(g->tokens + g->n_tokens + n_head, tail, n_tail * sizeof(*tail));
    g->n_tokens += n_head + n_tail;
    g->ends[g->n++] = (uint32_t)g->n_tokens;
    return true;
}

static void gathered_deinit(struct gathered *g)
{
    mem_free(g->tokens);
    mem_free(g->ends);
}

/* Into the arena, which outlives the parameters. */
static rd_status keep_gathered(struct arena *a, const struct gathered *g, struct sampler_words *w)
{
    if (g->n == 0) return RD_OK;
    w->tokens = (const int32_t *)(void *)arena_memdup(a, g->tokens, g->n_tokens * sizeof(*g->tokens));
    w->ends = (const uint32_t *)(void *)arena_memdup(a, g->ends, g->n * sizeof(*g->ends));
    w->n = (uint32_t)g->n;
    return w->tokens && w->ends ? RD_OK : RD_E_NOMEM;
}

static rd_status gather_bad_word(const rd_engine *engine, const char *word, struct gathered *g, struct rd_error *err)
{
    const char *bare = word + strspn(word, " ");
    char spaced[LIMIT_WORD_BYTES + 2] = " ";
    int32_t *ids = NULL, *with = NULL;
    uint32_t n = 0, n_with = 0;
    rd_status st;

    strncat(spaced, bare, LIMIT_WORD_BYTES);
    st = tokenizer_encode(engine->tokenizer, bare, strlen(bare), false, false, &ids, &n, err);
    if (st == RD_OK)
        st = tokenizer_encode(engine->tokenizer, spaced, strlen(spaced), false, false, &with, &n_with, err);
    if (st == RD_OK && n > 0 && !gather(g, ids, n, NULL, 0)) st = RD_E_NOMEM;
    if (st == RD_OK && n_with > 0 && (n == 0 || (n_with == n && with[0] != ids[0])) &&
        !gather(g, with, n_with, NULL, 0))
        st = RD_E_NOMEM;
    mem_free(ids);
    mem_free(with);
    return st;
}

static rd_status fill_bad_words(const rd_engine *engine, const struct rd_request_options *o, struct arena *a,
                                struct sampler_params *p, struct rd_error *err)
{
    struct gathered g = {0};
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < o->sampling.n_bad_words && st == RD_OK; i++)
        st = gather_bad_word(engine, o->sampling.bad_words[i], &g, err);
    if (st == RD_OK) st = keep_gathered(a, &g, &p->bad_words);
    gathered_deinit(&g);
    return st;
}

static rd_status fill_text_bias(const rd_engine *engine, const struct rd_request_options *o, struct arena *a,
                                struct sampler_params *p, struct rd_error *err)
{
    struct rd_bias *all = arena_alloc(a, LIMIT_LOGIT_BIAS, sizeof(*all));
    uint32_t n_all = o->sampling.n_bias;

    if (!all) return RD_E_NOMEM;
    if (n_all) memcpy(all, o->sampling.bias, n_all * sizeof(*all));
    for (uint32_t i = 0; i < o->sampling.n_text_bias; i++) {
        const struct rd_text_bias *b = &o->sampling.text_bias[i];
        int32_t *ids = NULL;
        uint32_t n = 0;
        rd_status st = tokenizer_encode(engine->tokenizer, b->text, strlen(b->text), false, false, &ids, &n, err);

        if (st != RD_OK) return st;
        for (uint32_t k = 0; k < n && n_all < LIMIT_LOGIT_BIAS; k++) all[n_all++] = (struct rd_bias){ids[k], b->bias};
        mem_free(ids);
    }
    p->bias = all;
    p->n_bias = n_all;
    return RD_OK;
}

/* ---- sequence breakers ---- */

struct breaker {
    struct text_span text;
    int32_t *tails[LIMIT_WORD_BYTES];
    uint32_t n_tails[LIMIT_WORD_BYTES];
};

/* The tokens of what follows the first `from` bytes. */
static rd_status find_tail(const rd_engine *engine, struct breaker *b, size_t from, struct rd_error *err)
{
    if (b->tails[from]) return RD_OK;
    return tokenizer_encode(engine->tokenizer, b->text.s + from, b->text.n - from, false, false, &b->tails[from],
                            &b->n_tails[from], err);
}

/* One token and one breaker: is it inside, or does the token end with its beginning? */
static rd_status meet(const rd_engine *engine, struct breaker *b, int32_t token, uint64_t *bits, struct gathered *g,
                      struct rd_error *err)
{
    struct text_span piece = tokenizer_piece(engine->tokenizer, token, true);
    const char *end = piece.s + piece.n;

    if (piece.n == 0) return RD_OK;
    for (const char *s = piece.s; s < end && (s = memchr(s, b->text.s[0], (size_t)(end - s))); s++) {
        size_t n = (size_t)(end - s) < b->text.n ? (size_t)(end - s) : b->text.n;
        rd_status st;

        if (memcmp(s, b->text.s, n) != 0) continue;
        if (n == b->text.n) {
            bits[token / 64] |= 1ull << (token % 64);
            return RD_OK;
        }
        if ((st = find_tail(engine, b, n, err)) != RD_OK) return st;
        if (g->n == DRY_WORDS_MAX)
            return error_set(err, RD_E_INVALID, "dry_sequence_breakers: more than %u tokens begin one", DRY_WORDS_MAX);
        if (!gather(g, &token, 1, b->tails[n], b->n_tails[n])) return RD_E_NOMEM;
    }
    return RD_OK;
}

static rd_status fill_breakers(const rd_engine *engine, const struct rd_request_options *o, struct arena *a,
                               struct sampler_params *p, struct rd_error *err)
{
    static const char *const usual[] = {"\n", ":", "\"", "*"};
    const char *const *texts = o->sampling.dry_breakers ? o->sampling.dry_breakers : usual;
    uint32_t n_vocab = engine->info.n_vocab, n = o->sampling.dry_breakers ? o->sampling.n_dry_breakers : 4;
    uint64_t *bits = arena_alloc(a, ((size_t)n_vocab + 63) / 64, sizeof(*bits));
    struct breaker *b = arena_alloc(a, 1, sizeof(*b));
    struct gathered g = {0};
    rd_status st = bits && b ? RD_OK : RD_E_NOMEM;

    for (uint32_t i = 0; i < n && st == RD_OK; i++) {
        memset(b, 0, sizeof(*b));
        b->text = (struct text_span){texts[i], strlen(texts[i])};
        for (uint32_t t = 0; t < n_vocab && st == RD_OK; t++) st = meet(engine, b, (int32_t)t, bits, &g, err);
        for (size_t k = 0; k < b->text.n; k++) mem_free(b->tails[k]);
    }
    if (st == RD_OK) st = keep_gathered(a, &g, &p->dry_break_words);
    gathered_deinit(&g);
    p->dry_breakers = bits;
    return st;
}

rd_status api_sampling_texts(const rd_engine *engine, const struct rd_request_options *o, struct arena *a,
                             struct sampler_params *p, struct rd_error *err)
{
    rd_status st = RD_OK;

    if (o->sampling.n_bad_words) st = fill_bad_words(engine, o, a, p, err);
    if (st == RD_OK && o->sampling.n_text_bias) st = fill_text_bias(engine, o, a, p, err);
    if (st == RD_OK && o->sampling.dry_multiplier > 0) st = fill_breakers(engine, o, a, p, err);
    if (st != RD_OK && err && !err->text[0]) error_set(err, st, "%s", rd_status_text(st));
    return st;
}
