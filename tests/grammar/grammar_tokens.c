/* tests/grammar/grammar_tokens.c - whether texts are of a JSON schema, asked in many tokenisations: for test_tokens.py.
 *
 *     grammar_tokens MODEL SPLITS SEED      MODEL: whose vocabulary
 *
 * Lines of {"schema", "texts"} on standard input are answered with {"accept": [..], "n_tokens"} or {"error"}. Each text is
 * followed byte by byte, in the longest tokens, and in SPLITS random ways to spell it with the vocabulary's tokens. What
 * must hold: every way has the same end; a token is in the mask exactly where it can be taken; a mask is never empty but at
 * an end. Where it does not, the answer is {"broken": what}.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "api/form_node.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/mem.h"
#include "cli/cli_lines.h"
#include "radish/radish.h"
#include "text/grammar/grammar.h"

#define SPACE    ((size_t)32 << 20)
#define MAX_WAYS 64u

struct words {
    const char *s;
    uint32_t n;
    int32_t id;
};
struct run {
    struct grammar_vocab *vocab;
    struct words *sorted; /* tokens by their bytes */
    uint32_t n_tokens, n_sorted, n_splits;
    uint64_t random, n_taken;
    struct buf broken;
};

static uint32_t next_random(struct run *r)
{
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->random >> 33);
}

static int by_bytes(const void *a, const void *b)
{
    const struct words *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);

    return c ? c : (x->n > y->n) - (x->n < y->n);
}

/* Tokens that text begins with, the longest last. */
static uint32_t beginnings(const struct run *r, const char *text, size_t n, const struct words **out)
{
    uint32_t low = 0, high = r->n_sorted, n_out = 0;

    for (uint32_t depth = 0; depth < n && low < high && n_out < MAX_WAYS; depth++) {
        uint8_t byte = (uint8_t)text[depth];
        uint32_t a = low, b = high;

        while (a < b) { /* the first with this byte there */
            uint32_t mid = a + (b - a) / 2;
            const struct words *w = &r->sorted[mid];

            if (w->n <= depth || (uint8_t)w->s[depth] < byte)
                a = mid + 1;
            else
                b = mid;
        }
        low = a;
        for (b = high; a < b;) { /* the first beyond */
            uint32_t mid = a + (b - a) / 2;

            if ((uint8_t)r->sorted[mid].s[depth] == byte)
                a = mid + 1;
            else
                b = mid;
        }
        high = a;
        if (low < high && r->sorted[low].n == depth + 1) out[n_out++] = &r->sorted[low];
    }
    return n_out;
}

static bool any_bit(const uint32_t *bits, uint32_t n_tokens)
{
    for (uint32_t i = 0; i < (n_tokens + 31) / 32; i++)
        if (bits[i]) return true;
    return false;
}

enum spelling { BYTES, LONGEST, RANDOM };

/* One step: -1 an error, 0 refused, 1 taken; *n bytes. */
static int step(struct run *r, struct grammar_matcher *m, const char *text, size_t n_text, enum spelling how, size_t *n)
{
    const struct words *ways[MAX_WAYS], *token;
    const uint32_t *bits;
    uint32_t n_ways;
    bool in_mask;
    rd_status st;

    *n = 1;
    if (how == BYTES) return grammar_accept_bytes(m, (const uint8_t *)text, 1) == RD_OK;
    n_ways = beginnings(r, text, n_text, ways);
    if (!n_ways) { /* a byte that is no token */
        return grammar_accept_bytes(m, (const uint8_t *)text, 1) == RD_OK;
    }
    token = ways[how == LONGEST ? n_ways - 1 : next_random(r) % n_ways];
    *n = token->n;
    if (grammar_mask(m, UINT32_MAX, &bits) != RD_OK) return -1;
    if (!any_bit(bits, r->n_tokens) && !grammar_can_end(m)) {
        buf_printf(&r->broken, "an empty mask where the text cannot end");
        return -1;
    }
    in_mask = bits[token->id >> 5] >> (token->id & 31) & 1;
    st = grammar_accept(m, token->id);
    if (in_mask != (st == RD_OK)) {
        buf_printf(&r->broken, "token %d is %sin the mask and %s", (int)token->id, in_mask ? "" : "not ",
                   st == RD_OK ? "taken" : "refused");
        return -1;
    }
    r->n_taken++;
    return st == RD_OK;
}

/* -1, 0, 1 */
static int follow(struct run *r, struct grammar *g, const char *text, size_t n, enum spelling how)
{
    struct grammar_matcher *m = NULL;
    int taken = 1;
    size_t i = 0, k;

    if (grammar_matcher_create(g, (uint32_t)n + 1, &m) != RD_OK) return -1;
    for (; i < n && taken == 1; i += k) taken = step(r, m, text + i, n - i, how, &k);
    if (taken == 1) taken = grammar_can_end(m);
    grammar_matcher_destroy(m);
    return taken;
}

static int verdict(struct run *r, struct grammar *g, const char *text, size_t n)
{
    int first = follow(r, g, text, n, BYTES);

    for (uint32_t i = 0; i <= r->n_splits && first >= 0; i++) {
        uint64_t seed = r->random;
        int other = follow(r, g, text, n, i ? RANDOM : LONGEST);

        if (other < 0) return -1;
        if (other == first) continue;
        buf_printf(&r->broken, "%s byte by byte, %s in tokens (way %u, state %llu)", first ? "accepted" : "refused",
                   other ? "accepted" : "refused", i, (unsigned long long)seed);
        return -1;
    }
    return first;
}

static int append(const char *s, size_t n, void *to)
{
    buf_append(to, s, n);
    return 0;
}

static struct grammar *compile(struct run *r, const json_t *schema, struct rd_error *err)
{
    struct buf text = {0};
    struct grammar_builder *b = NULL;
    struct grammar *g = NULL;
    rd_status st = grammar_builder_create(&form_limits, &b);

    json_dump_callback(schema, append, &text, JSON_ENCODE_ANY);
    if (st == RD_OK)
        st =
            grammar_compile(b, form_node(b, RD_GRAMMAR_JSON_SCHEMA, text.data, text.n, NULL), r->vocab, SPACE, &g, err);
    if (st == RD_OK) st = grammar_warm(g);
    if (st != RD_OK) {
        if (!*err->text) error_set(err, st, "%s", rd_status_text(st));
        grammar_unref(g);
        g = NULL;
    }
    grammar_builder_destroy(b);
    buf_deinit(&text);
    return g;
}

static void answer(void *user, const json_t *line)
{
    struct run *r = user;
    const json_t *texts = json_object_get(line, "texts");
    struct rd_error err = {RD_OK, ""};
    struct grammar *g = compile(r, json_object_get(line, "schema"), &err);
    struct buf out = {0};

    if (!g) {
        cli_answer_error(err.text);
        return;
    }
    r->n_taken = 0;
    buf_clear(&r->broken);
    for (size_t i = 0; i < json_array_size(texts) && !r->broken.n; i++) {
        const json_t *text = json_array_get(texts, i);
        int taken = verdict(r, g, json_string_value(text), json_string_length(text));

        if (taken < 0 && !r->broken.n) buf_printf(&r->broken, "too ambiguous, or out of memory");
        if (r->broken.n) buf_printf(&r->broken, "; text %zu", i);
        buf_printf(&out, "%s%s", i ? ", " : "", taken > 0 ? "true" : "false");
    }
    if (r->broken.n)
        printf("{\"broken\": \"%s\"}\n", r->broken.data);
    else
        printf("{\"accept\": [%s], \"n_tokens\": %llu}\n", out.data ? out.data : "", (unsigned long long)r->n_taken);
    buf_deinit(&out);
    grammar_unref(g);
}

/* The tokens of a model that have bytes, as a vocabulary and sorted. */
static bool open_vocab(struct run *r, const rd_engine *engine)
{
    struct buf bytes = {0};
    uint64_t *offsets;
    struct rd_info info = {.size = sizeof(info)};

    rd_get_info(engine, &info);
    r->n_tokens = info.n_vocab;
    offsets = mem_zalloc((size_t)r->n_tokens + 1, sizeof(*offsets));
    r->sorted = mem_zalloc(r->n_tokens, sizeof(*r->sorted));
    for (uint32_t i = 0; offsets && r->sorted && i < r->n_tokens; i++) {
        size_t n = 0;
        const char *s = rd_token_bytes(engine, (int32_t)i, &n);

        buf_append(&bytes, s ? s : "", s ? n : 0);
        offsets[i + 1] = bytes.n;
        if (s && n) r->sorted[r->n_sorted++] = (struct words){s, (uint32_t)n, (int32_t)i};
    }
    if (offsets && r->sorted && !bytes.failed && r->n_sorted) {
        qsort(r->sorted, r->n_sorted, sizeof(*r->sorted), by_bytes);
        grammar_vocab_create(r->n_tokens, (const uint8_t *)bytes.data, offsets, NULL, &r->vocab);
    }
    mem_free(offsets);
    buf_deinit(&bytes);
    return r->vocab != NULL;
}

int main(int argc, char **argv)
{
    struct run r = {0};
    struct rd_error err = {RD_OK, ""};
    rd_engine *engine = NULL;
    int rc = 1;

    if (argc != 4) {
        fprintf(stderr, "usage: grammar_tokens MODEL SPLITS SEED < lines of {\"schema\", \"texts\"}\n");
        return 2;
    }
    r.n_splits = (uint32_t)strtoul(argv[2], NULL, 10);
    r.random = strtoull(argv[3], NULL, 10);
    if (rd_open_tokenizer(argv[1], NULL, &engine, &err) != RD_OK)
        fprintf(stderr, "grammar_tokens: %s\n", err.text);
    else if (!open_vocab(&r, engine))
        fprintf(stderr, "grammar_tokens: out of memory\n");
    else
        rc = cli_answer_lines(answer, &r);
    buf_deinit(&r.broken);
    grammar_vocab_unref(r.vocab);
    mem_free(r.sorted);
    rd_close(engine);
    return rc;
}
