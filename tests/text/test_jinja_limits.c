/* tests/text/test_jinja_limits.c - hostile templates end by a limit: the fuel bounds their time (F12). */
#include "base/mem.h"
#include "base/limits.h"
#include "test.h"
#include "text/jinja/jinja.h"

static rd_status run(const char *source, size_t n, struct rd_error *err)
{
    struct jinja *t = NULL;
    char *text = NULL;
    size_t n_text;
    rd_status st = jinja_create(source, n, &t, err);

    if (st == RD_OK) st = jinja_render(t, NULL, 0, &text, &n_text, err);
    jinja_destroy(t);
    mem_free(text);
    return st;
}

TEST(sixty_bombs_end_in_an_error)
{
    static const char *const bombs[] = {
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% macro m(x) %}{{ m(x + x) }}{% endmacro %}{{ m('a') }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ range(10**9) | list }}",
        "{{ range(-(10**9), 10**9) | sum }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ 'a' * 10**18 }}",
        "{{ [0] * 10**9 }}",
        "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(99999) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(99999) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(150) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | "
        "tojson }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(150) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l == "
        "[ns.l, 1] }}{{ ns.l | string }}",
        "{% set l = [] %}{{ l.append(l) }}{{ l }}",
        "{% set l = [] %}{{ l.append(l) }}{{ l | tojson }}",
        "{% set l = [1] %}{% for x in range(99999) %}{% set _ = l.extend(l) %}{% endfor %}",
        "{% set d = {} %}{% set _ = d.update(a=d) %}{{ d }}",
        "{{ 2 ** 10 ** 9 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%1000000000d' % 1 }}{{ '%99999d' % 1 * 10**6 }}",
        "{{ 'a'.center(10**9) }}",
        "{{ 'a'.zfill(10**9) }}{{ 'a'.ljust(10**15) }}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{{ s }}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% set t = s.replace('a', 'bb') %}{% endfor %}",
        "{% set s = 'ż' * 1000000 %}{% for i in range(99999) %}{% set t = s[-1] %}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% set t = s.replace('', s) %}{% endfor %}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{{ loop([1, 2]) }}{% endfor %}",
        "{% set s = 'ab' * 500000 %}{% for i in range(99999) %}{% set t = 'aab' in s %}{% endfor %}",
        "{{ [[1] * 99999] * 9999 | map('sum') | list }}{% for i in range(9999) %}{{ range(99999) | sum }}{% endfor %}",
        "{% for i in range(9999) %}{{ range(99999) | sort(reverse=true) | first }}{% endfor %}",
        "{% for i in range(9999) %}{{ range(99999) | groupby('x') | list }}{% endfor %}",
        "{% for i in range(9999) %}{{ [1, 2] | slice(10**9) | list }}{% endfor %}",
        "{{ [1] | batch(10**9, 'x') | list }}",
        "{{ 'a\n' * 9999 | indent(10**9) }}{{ ('a\n' * 99999) | indent(999) | indent(999) | indent(999) }}",
        "{{ [[[1]]] | tojson(indent=10**9) }}",
        "{% set s = 'x' * 100000 %}{% for i in range(99999) %}{{ s | upper | lower | title | wordcount }}{% endfor %}",
        "{% macro m(x) %}{% call m(x) %}{{ caller() }}{% endcall %}{% endmacro %}{{ m(1) }}",
        "{% for i in range(99999) %}{% set s = '{:.4000f}'.format(1e300) %}{% endfor %}",
        "{% for i in range(99999) %}{% set s = '%.4000f' % 1e300 %}{% endfor %}",
        "{% for i in range(99999) %}{% set s = '%4096d' % 1 %}{% endfor %}",
        "{% for i in range(99999) %}{% set s = 1.1e300 | round(30) %}{% endfor %}",
        "{% for i in range(99999) %}{{ [1.1e-300, 1.2e300] | tojson }}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% set t = s.rfind('a' * 999 ~ 'b') %}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% set t = s.rsplit('a' * 999 ~ 'b') %}{% endfor %}",
        "{{ ('-' * 2000000) | wordwrap(3) | length }}",
        "{{ ('a' * 800000) | wordwrap(1, wrapstring='x' * 10000) | length }}",
        "{% for i in range(99999) %}{{ strftime_now('%A %B %c' * 10) }}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | "
        "pprint }}",
        "{{ ('.' * 300000 ~ ('\\u03a3' ~ '.' * 300) * 3000) | lower | length }}",
        "{% for i in range(99999) %}{{ '1' * 400 | int }}{{ ('1' * 400) | float }}{% endfor %}",
        "{{ ('x' * 60000).join('y' * 100000) | length }}",
        "{{ range(99999) | list | tojson(indent='x' * 100000) }}",
        "{{ ('&' * 800000) | striptags | length }}{{ ('(' * 400000 ~ ')' * 400000) | urlize | length }}",
        "{% set s = '{}' * 400000 %}{{ s.format(*range(4096)) }}",
        "{{ ('{' * 400001 ~ '}' * 400000).format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(60) }}",
    };

    for (size_t i = 0; i < sizeof(bombs) / sizeof(bombs[0]); i++) {
        struct rd_error err = {0};
        rd_status st = run(bombs[i], strlen(bombs[i]), &err);
        if (st != RD_E_TEMPLATE && !(st == RD_E_LIMIT && !strncmp(err.text, "template_limit: ", 16)))
            test_note("%s: %s %s", bombs[i], rd_status_name(st), err.text);
        CHECK(st == RD_E_TEMPLATE || (st == RD_E_LIMIT && !strncmp(err.text, "template_limit: ", 16)));
    }
}

/* part n times, between head and tail. */
static rd_status run_nested(const char *head, const char *part, size_t n, const char *tail, struct rd_error *err)
{
    size_t n_head = strlen(head), n_part = strlen(part), total = n_head + n * n_part + strlen(tail);
    char *source = mem_alloc(total + 1, 1);
    rd_status st;

    memcpy(source, head, n_head);
    for (size_t i = 0; i < n; i++) memcpy(source + n_head + i * n_part, part, n_part);
    memcpy(source + n_head + n * n_part, tail, strlen(tail) + 1);
    st = run(source, total, err);
    mem_free(source);
    return st;
}

TEST(nesting_of_a_hundred_thousand_levels_is_refused)
{
    static const struct {
        const char *head, *part, *tail;
    } table[] = {
        {"{{ ", "(", "1 }}"},
        {"{{ ", "[", "1 }}"},
        {"{{ ", "{1:", "1 }}"},
        {"{{ ", "-", "1 }}"},
        {"{{ ", "not ", "1 }}"},
        {"", "{% if 1 %}", ""},
        {"", "{% for x in y %}", ""},
        {"{{ ", "1 + ", "1 }}"},
        {"{{ x", ".a", " }}"},
        {"{{ x", "[0]", " }}"},
        {"{{ x", "()", " }}"},
        {"{{ 1", "|abs", " }}"},
        {"{{ ", "1 if 1 else ", "1 }}"},
        {"{{ ", "1 is odd(", "1 }}"},
        {"", "{% set x %}", ""},
        {"", "{% macro m() %}", ""},
        {"{{ ", "f(", "1 }}"},
        {"{{ ", "1 and ", "1 }}"},
        {"{% for ", "(", "a in b %}"},
        {"{{ ", "1 ** ", "1 }}"},
        {"{% filter upper", "|upper", "%}a{% endfilter %}"},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct rd_error err = {0};
        rd_status st =
            run_nested(table[i].head, table[i].part, 100000 / strlen(table[i].part) * 4, table[i].tail, &err);
        if (st != RD_E_LIMIT && st != RD_E_TEMPLATE)
            test_note("%s%s...: %s %s", table[i].head, table[i].part, rd_status_name(st), err.text);
        CHECK(st == RD_E_LIMIT || st == RD_E_TEMPLATE);
    }
}

TEST(a_template_larger_than_the_limit_is_refused)
{
    struct rd_error err = {0};

    CHECK_EQ(run_nested("", "a", LIMIT_TEMPLATE_BYTES, "b", &err), RD_E_LIMIT);
    CHECK_OK(run_nested("", "a", LIMIT_TEMPLATE_BYTES - 1, "b", &err));
}
