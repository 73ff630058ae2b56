/* tests/fuzz/fuzz_grammar.c - any bytes as a grammar and a stream of tokens together.
 *
 * The first byte says how many of the others are the grammar: a program for a stack of nodes. The rest picks tokens of a
 * small vocabulary, some by the mask, which has to tell the truth, and some against it; a few roll back. Nothing leaks,
 * and grammars that grow end at the limits.
 */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "text/grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define STACK    16u
#define N_TOKENS 48u
#define N_RULES  4u
#define STEPS    64u

/* Aborts, so that the fuzzer keeps the input. */
static void expect(bool fact)
{
    if (!fact) abort();
}

struct program {
    struct grammar_builder *b;
    grammar_node stack[STACK], rules[N_RULES];
    bool defined[N_RULES];
    uint32_t n;
};

static void push(struct program *p, grammar_node node)
{
    if (p->n < STACK) p->stack[p->n++] = node;
}

static grammar_node pop(struct program *p)
{
    return p->n ? p->stack[--p->n] : grammar_empty(p->b);
}

static void step(struct program *p, uint8_t op, uint8_t arg)
{
    static const uint32_t counts[] = {0, 1, 2, 3, 300, 70000, 1000000000, GRAMMAR_UNBOUNDED};
    const char letters[3] = {(char)('a' + arg % 4), (char)('a' + arg / 4 % 4), (char)('a' + arg / 16 % 4)};
    struct grammar_range range = {arg, arg + (arg & 15) * 1000u};
    grammar_node kids[2];

    switch (op % 11) {
    case 0:
        push(p, grammar_text(p->b, letters, 1 + arg % 3u));
        break;
    case 1:
        push(p, grammar_class(p->b, &range, arg != 0, arg & 128));
        break;
    case 2:
        push(p, grammar_token(p->b, arg % (N_TOKENS + 1)));
        break;
    case 3:
        push(p, p->rules[arg % N_RULES]);
        break;
    case 4:
    case 5:
    case 6:
    case 7:
        kids[1] = pop(p);
        kids[0] = pop(p);
        if (grammar_status(p->b, NULL) != RD_OK) return;
        if (op % 11 == 4) push(p, grammar_seq(p->b, kids, 2));
        if (op % 11 == 5) push(p, grammar_alt(p->b, kids, 2));
        if (op % 11 == 6) push(p, grammar_both(p->b, kids[0], kids[1]));
        if (op % 11 == 7) push(p, grammar_except(p->b, kids[0], kids[1]));
        break;
    case 8:
        kids[0] = pop(p);
        if (grammar_status(p->b, NULL) != RD_OK) return;
        push(p, grammar_repeat(p->b, kids[0], counts[arg % 8 < arg / 8 % 8 ? arg % 8 : arg / 8 % 8],
                               counts[arg % 8 < arg / 8 % 8 ? arg / 8 % 8 : arg % 8]));
        break;
    case 9:
        kids[0] = pop(p);
        if (p->defined[arg % N_RULES] || grammar_status(p->b, NULL) != RD_OK) return;
        p->defined[arg % N_RULES] = true;
        grammar_define(p->b, p->rules[arg % N_RULES], kids[0]);
        break;
    default:
        push(p, p->n ? p->stack[p->n - 1] : grammar_empty(p->b));
        break;
    }
}

static struct grammar_vocab *vocabulary(void)
{
    static const char *const texts[] = {"a",  "b",    "c",    "d",        "ab",   "abc",
                                        "dd", "\xC3", "\xA9", "\xC3\xA9", "aaaa", "ba"};
    uint8_t bytes[N_TOKENS * 32];
    uint64_t offsets[N_TOKENS + 1] = {0};
    bool special[N_TOKENS] = {false};
    struct grammar_vocab *v = NULL;

    for (uint32_t i = 0; i < N_TOKENS; i++) {
        const char *text = texts[i % 12];
        size_t size = i < 12 ? strlen(text) : i < 42 ? i - 12 : 0;

        for (size_t k = 0; k < size; k++) bytes[offsets[i] + k] = (uint8_t)(i < 12 ? text[k] : "abdc"[(i + k) % 4]);
        offsets[i + 1] = offsets[i] + size;
        special[i] = i >= 45;
    }
    return grammar_vocab_create(N_TOKENS, bytes, offsets, special, &v) == RD_OK ? v : NULL;
}

static void follow(struct grammar_matcher *m, const uint8_t *data, size_t n)
{
    uint32_t n_steps = 0;

    for (size_t i = 0; i < n && n_steps < STEPS; i++) {
        const uint32_t *bits;
        uint32_t has[2];
        int32_t t = data[i] % N_TOKENS;
        rd_status st = grammar_mask(m, data[i] & 64 ? data[i] % 7u : UINT32_MAX, &bits);

        if (st == RD_E_LIMIT) return; /* too ambiguous to be followed */
        expect(st == RD_OK);
        memcpy(has, bits, sizeof(has));
        expect(has[0] || has[1] || grammar_can_end(m));
        if (data[i] & 128) { /* the mask's next token at or after t */
            for (uint32_t k = 0; k < N_TOKENS && !(has[t / 32] >> (t % 32) & 1); k++) t = (t + 1) % (int32_t)N_TOKENS;
        }
        st = grammar_accept(m, t);
        if (st == RD_E_LIMIT) return;
        expect(st == RD_OK || st == RD_E_INVALID);
        if (has[t / 32] >> (t % 32) & 1)
            expect(st == RD_OK);
        else if (!(data[i] & 64))
            expect(st == RD_E_INVALID);
        n_steps += st == RD_OK;
        if (data[i] % 13 == 12 && n_steps) {
            grammar_rollback(m, 1);
            n_steps--;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct grammar_limits limits = {2000, 20000, (size_t)8 << 20, 200000000, 0, NULL};
    uint64_t alive = mem_n_alive();
    struct program p = {0};
    struct grammar_vocab *v;
    struct grammar *g = NULL;
    struct grammar_matcher *m = NULL;
    struct rd_error err = {0};
    size_t n_program = n ? data[0] % 96u : 0;

    if (n < 3 || grammar_builder_create(&limits, &p.b) != RD_OK) return 0;
    v = vocabulary();
    for (uint32_t i = 0; i < N_RULES; i++) p.rules[i] = grammar_rule(p.b, "rule", 4);
    for (size_t i = 1; i + 1 < n && i < n_program; i += 2) step(&p, data[i], data[i + 1]);
    if (v && grammar_compile(p.b, grammar_status(p.b, NULL) == RD_OK ? pop(&p) : 0, v, 20000, &g, &err) == RD_OK) {
        rd_status st = grammar_warm(g);

        expect(st == RD_OK || st == RD_E_LIMIT);
        expect(grammar_matcher_create(g, STEPS, &m) == RD_OK);
        if (n > n_program) follow(m, data + n_program, n - n_program < 40 ? n - n_program : 40);
    } else {
        expect(!g && err.text[0]);
    }
    grammar_matcher_destroy(m);
    grammar_unref(g);
    grammar_vocab_unref(v);
    grammar_builder_destroy(p.b);
    expect(mem_n_alive() == alive);
    return 0;
}
