/* text/grammar/rule_reader.c - places in a text, and a table of names. */
#include "text/grammar/rule_reader.h"
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"

bool reader_init(struct rule_reader *r, struct grammar_builder *b, const char *text, size_t n)
{
    *r = (struct rule_reader){.b = b, .text = text, .n = n};
    if (string_table_init(&r->names, 16, 256) == RD_OK) return true;
    grammar_fail(b, RD_E_NOMEM, "out of memory");
    return false;
}

void reader_fail(struct rule_reader *r, rd_status st, size_t at, const char *what)
{
    unsigned line = 1, column = 1;

    for (size_t i = 0; i < at && i < r->n; i++, column++) {
        if (r->text[i] != '\n') continue;
        line++;
        column = 0;
    }
    if (!r->failed) grammar_fail(r->b, st, "line %u, column %u: %s", line, column, what);
    r->failed = true;
}

void reader_wrong(struct rule_reader *r, const char *what)
{
    reader_fail(r, RD_E_INVALID, r->at, what);
}

char reader_peek(const struct rule_reader *r)
{
    return !r->failed && r->at < r->n ? r->text[r->at] : 0;
}

bool reader_pass(struct rule_reader *r, const char *word)
{
    size_t n = strlen(word);

    if (r->failed || r->n - r->at < n || memcmp(r->text + r->at, word, n) != 0) return false;
    r->at += n;
    return true;
}

uint32_t reader_hex(struct rule_reader *r, int n_digits)
{
    uint32_t value = 0;

    for (int i = 0; i < n_digits; i++) {
        char c = reader_peek(r), small = (char)(c | 0x20);

        if (!(c >= '0' && c <= '9') && !(small >= 'a' && small <= 'f')) {
            reader_wrong(r, "wanted hexadecimal digits");
            return 0;
        }
        value = value * 16 + (uint32_t)(c <= '9' ? c - '0' : small - 'a' + 10);
        r->at++;
    }
    return value;
}

uint32_t reader_number(struct rule_reader *r)
{
    uint64_t v = 0;
    size_t from = r->at;

    for (; reader_peek(r) >= '0' && reader_peek(r) <= '9'; r->at++)
        if (v < GRAMMAR_UNBOUNDED) v = v * 10 + (uint64_t)(reader_peek(r) - '0');
    if (r->at == from) reader_wrong(r, "wanted a number");
    if (v >= GRAMMAR_UNBOUNDED) reader_wrong(r, "a number that is too large");
    return (uint32_t)v;
}

struct named_rule *reader_rule(struct rule_reader *r, const char *name, size_t n)
{
    uint32_t id;
    bool is_new;

    if (r->failed) return NULL;
    if (string_table_add(&r->names, name, n, &id, &is_new) != RD_OK ||
        !mem_grow((void **)&r->rules, &r->cap_rules, id + 1, sizeof(*r->rules))) {
        reader_fail(r, RD_E_NOMEM, r->at, "out of memory");
        return NULL;
    }
    if (is_new) r->rules[id] = (struct named_rule){.node = grammar_rule(r->b, name, n), .used_at = r->at};
    return &r->rules[id];
}

grammar_node reader_define(struct rule_reader *r, const char *name, size_t n)
{
    struct named_rule *rule = reader_rule(r, name, n);

    if (!rule) return 0;
    if (rule->defined) reader_fail(r, RD_E_INVALID, (size_t)(name - r->text), "a name that is defined already");
    rule->defined = true;
    return rule->node;
}

grammar_node reader_finish(struct rule_reader *r, const char *root)
{
    grammar_node node = 0;
    char quoted[80], what[128];

    for (uint32_t id = 0; id < r->names.n && !r->failed; id++) {
        size_t n;
        const char *name = string_table_at(&r->names, id, &n);

        if (r->rules[id].defined) continue;
        snprintf(what, sizeof(what), "no rule is named %s", error_quote(quoted, sizeof(quoted), name, n));
        reader_fail(r, RD_E_INVALID, r->rules[id].used_at, what);
    }
    if (!r->failed) { /* without memory a name can be there and its rule not */
        uint32_t id = string_table_find(&r->names, root, strlen(root));

        snprintf(what, sizeof(what), "no rule is named %s", root);
        if (id == STRING_NONE)
            reader_fail(r, RD_E_INVALID, 0, what);
        else
            node = r->rules[id].node;
    }
    string_table_deinit(&r->names);
    mem_free(r->rules);
    return node;
}
