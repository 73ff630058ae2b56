/* bench/grammar/bench_grammar.c - JSON schemas and masks as plain functions, for a program that measures them beside other
 * libraries in one process (bench/grammar/masks). Compiled and followed as the server does it: the same limits, space and
 * warming.
 *
 *     cmake -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DRADISH_BENCH=ON -DRADISH_TESTS=OFF
 *     cmake --build build/bench --target bench_grammar
 *
 * Thread  one.
 */
#include <stdio.h>
#include <string.h>
#include "api/form_node.h"
#include "text/grammar/grammar.h"

#define SPACE  ((size_t)16 << 20)
#define SHARED __attribute__((visibility("default")))

SHARED struct grammar_vocab *bench_vocab(uint32_t n_tokens, const uint8_t *bytes, const uint64_t *offsets,
                                         const uint8_t *special);
SHARED void bench_vocab_free(struct grammar_vocab *v);
SHARED struct grammar *bench_compile(struct grammar_vocab *v, const char *schema, size_t n, char *why, size_t n_why);
SHARED void bench_grammar_free(struct grammar *g);
SHARED struct grammar_matcher *bench_matcher(struct grammar *g, uint32_t max_tokens);
SHARED void bench_matcher_free(struct grammar_matcher *m);
SHARED int bench_mask(struct grammar_matcher *m, uint32_t *bits, size_t n_words);
SHARED int bench_accept(struct grammar_matcher *m, int32_t token);
SHARED int bench_can_end(struct grammar_matcher *m);

struct grammar_vocab *bench_vocab(uint32_t n_tokens, const uint8_t *bytes, const uint64_t *offsets,
                                  const uint8_t *special)
{
    struct grammar_vocab *v = NULL;
    bool flags[1u << 18] = {false};

    if (n_tokens > sizeof(flags)) return NULL;
    for (uint32_t i = 0; i < n_tokens; i++) flags[i] = special[i] != 0;
    return grammar_vocab_create(n_tokens, bytes, offsets, flags, &v) == RD_OK ? v : NULL;
}

void bench_vocab_free(struct grammar_vocab *v)
{
    grammar_vocab_unref(v);
}

/* NULL: why tells. */
struct grammar *bench_compile(struct grammar_vocab *v, const char *schema, size_t n, char *why, size_t n_why)
{
    struct grammar_builder *b = NULL;
    struct grammar *g = NULL;
    struct rd_error err = {RD_OK, ""};
    rd_status st = grammar_builder_create(&form_limits, &b);

    if (st == RD_OK) st = grammar_compile(b, form_node(b, RD_GRAMMAR_JSON_SCHEMA, schema, n, NULL), v, SPACE, &g, &err);
    if (st == RD_OK) st = grammar_warm(g);
    if (st != RD_OK) {
        snprintf(why, n_why, "%s", *err.text ? err.text : rd_status_text(st));
        grammar_unref(g);
        g = NULL;
    }
    grammar_builder_destroy(b);
    return g;
}

void bench_grammar_free(struct grammar *g)
{
    grammar_unref(g);
}

struct grammar_matcher *bench_matcher(struct grammar *g, uint32_t max_tokens)
{
    struct grammar_matcher *m = NULL;

    return grammar_matcher_create(g, max_tokens, &m) == RD_OK ? m : NULL;
}

void bench_matcher_free(struct grammar_matcher *m)
{
    grammar_matcher_destroy(m);
}

/* The mask, copied as the others fill theirs; 0: done. */
int bench_mask(struct grammar_matcher *m, uint32_t *bits, size_t n_words)
{
    const uint32_t *mask;
    rd_status st = grammar_mask(m, UINT32_MAX, &mask);

    if (st == RD_OK) memcpy(bits, mask, n_words * sizeof(*bits));
    return (int)st;
}

int bench_accept(struct grammar_matcher *m, int32_t token)
{
    return (int)grammar_accept(m, token);
}

int bench_can_end(struct grammar_matcher *m)
{
    return grammar_can_end(m);
}
