/* tests/text/test_jinja.c - the language against jinja2 (tests/golden/templates/snippets.jsonl), and what goes beyond
 * or against it. */
#include <jansson.h>
#include "base/file.h"
#include "base/mem.h"
#include "test.h"
#include "text/jinja/jinja.h"

static rd_status render(const char *source, size_t n, const json_t *vars, char **text, size_t *n_text,
                        struct rd_error *err)
{
    struct jinja *t = NULL;
    rd_status st = jinja_create(source, n, &t, err);

    if (st == RD_OK) st = jinja_render(t, vars, 1700000000, text, n_text, err);
    jinja_destroy(t);
    return st;
}

TEST(every_snippet_gives_the_text_of_jinja2_or_fails_as_it_does)
{
    json_t *context = json_load_file(test_path("tests/golden/templates/snippet_context.json"), 0, NULL);
    char line[16384];
    int n = 0, bad = 0;
    FILE *f = fopen(test_path("tests/golden/templates/snippets.jsonl"), "r");

    CHECK(context && f);
    while (fgets(line, sizeof(line), f)) {
        json_t *snippet = json_loads(line, 0, NULL), *source = json_object_get(snippet, "t"),
               *want = json_object_get(snippet, "e");
        struct rd_error err = {0};
        char *text = NULL;
        size_t n_text = 0;
        rd_status st = render(json_string_value(source), json_string_length(source), context, &text, &n_text, &err);
        bool ok =
            want ? st == RD_OK && !strcmp(text, json_string_value(want)) : st == RD_E_TEMPLATE || st == RD_E_LIMIT;

        if (!ok) {
            test_note("%s\n     got %s%s\n  wanted %s", json_string_value(source),
                      st == RD_OK ? text : "error: ", st == RD_OK ? "" : err.text,
                      want ? json_string_value(want) : json_string_value(json_object_get(snippet, "error")));
            bad++;
        }
        mem_free(text);
        json_decref(snippet);
        n++;
    }
    fclose(f);
    json_decref(context);
    CHECK_EQ(bad, 0);
    CHECK(n >= 600);
}

static char *text_of(const char *source)
{
    static char out[4096];
    struct rd_error err = {0};
    char *text = NULL;
    size_t n;
    rd_status st = render(source, strlen(source), NULL, &text, &n, &err);

    snprintf(out, sizeof(out), "%s", st == RD_OK ? text : err.text);
    mem_free(text);
    return out;
}

TEST(lists_and_dicts_cannot_be_changed_as_in_an_immutable_sandbox)
{
    CHECK_STR(text_of("{% set l = [1] %}{{ l.append is defined }}{{ l.append }}{{ l.copy() }}"), "False[1]");
    CHECK_STR(text_of("{{ [1].append(2) }}"), "line 1: access to attribute 'append' of 'list' object is unsafe");
    CHECK_STR(text_of("{{ {}.update(a=1) }}"), "line 1: access to attribute 'update' of 'dict' object is unsafe");
    CHECK_STR(text_of("{{ {'update': 5}['update'] }}{{ {'a': 1}.get('a') }}"), "51");
}

TEST(statements_that_need_a_loader_fail_when_they_are_reached)
{
    CHECK_STR(text_of("{% if false %}{% include 'x' %}{% endif %}ok"), "ok");
    CHECK_STR(text_of("a\n{% include 'x' %}"),
              "line 2: 'include' is not available here: there is no loader for other templates");
    CHECK_STR(text_of("{% from 'x' import a as b, c with context %}"),
              "line 1: 'from' is not available here: there is no loader for other templates");
}

TEST(random_draws_the_same_every_time)
{
    char first[64];

    snprintf(first, sizeof(first), "%s", text_of("{% for i in range(20) %}{{ range(9) | random }}{% endfor %}"));
    CHECK_EQ(strlen(first), 20);
    CHECK_STR(text_of("{% for i in range(20) %}{{ range(9) | random }}{% endfor %}"), first);
}

TEST(errors_name_their_line)
{
    CHECK_STR(text_of("a\nb\n{{ x.y }}"), "line 3: 'x' is undefined");
    CHECK_STR(text_of("a\n{% if %}"), "line 2: found '%}', expected an expression");
    CHECK_STR(text_of("{{ raise_exception('no such role') }}"), "line 1: no such role");
}

TEST(generation_blocks_render_as_they_are)
{
    CHECK_STR(text_of("{% generation %}a{{ 1 }}{% endgeneration %}b"), "a1b");
}

/* Known ways out of other template sandboxes: nothing here leads anywhere. */
TEST(injection_payloads_are_errors)
{
    static const char *const payloads[] = {
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ [].__class__.__base__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ joiner.__init__ }}",
        "{{ namespace.__init__ }}",
        "{{ lipsum.__globals__ }}",
        "{{ request.application }}",
        "{{ config.items() }}",
        "{{ ''|attr('__class__') }}",
        "{{ ''|attr('__cla' ~ 'ss__') }}",
        "{{ '{0.__class__}'.format('') }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{a.__class__}'.format(a=1) }}",
        "{{ '{0[__class__]}'.format('') }}",
        "{{ '{x.__init__.__globals__}'.format_map({'x': cycler}) }}",
        "{{ ('%s' | safe).__class__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% from 'os' import system %}",
        "{% extends 'x' %}",
        "{{ get_flashed_messages.__globals__ }}",
        "{{ url_for.__globals__ }}",
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ range.__class__ }}",
        "{{ dict.__base__ }}",
        "{{ (1).__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ loop.__class__ }}",
        "{{ ''|map('attr', '__class__')|list }}x{{ x.y }}",
        "{{ ['']|map(attribute='__class__')|list }}",
        "{{ open('/etc/passwd') }}",
        "{{ eval('1') }}",
        "{{ __import__('os') }}",
        "{% set x.y = 1 %}",
        "{{ ''.format.__self__ }}",
        "{{ '%(a.b)s' % 1 }}",
    };

    for (size_t i = 0; i < sizeof(payloads) / sizeof(payloads[0]); i++) {
        struct rd_error err = {0};
        char *text = NULL;
        size_t n;
        if (render(payloads[i], strlen(payloads[i]), NULL, &text, &n, &err) == RD_OK)
            test_note("renders: %s -> %s", payloads[i], text);
        CHECK(text == NULL);
        CHECK(err.text[0] != 0);
    }
}

TEST(running_out_of_memory_anywhere_is_an_error_without_leaks)
{
    static const char source[] =
        "{% macro m(a) %}{{ a|upper }}{% endmacro %}{% for x in [1,2] %}{{ m('v' ~ x) }}{% endfor %}"
        "{{ {'a': [1]}|tojson(indent=2) }}{% set b %}x{% endset %}{{ b.split('x')|join('y') }}";
    uint64_t alive = mem_n_alive();
    rd_status st = RD_E_NOMEM;

    for (int64_t i = 0; st != RD_OK; i++) {
        char *text = NULL;
        size_t n;
        mem_fail_after(i);
        st = render(source, sizeof(source) - 1, NULL, &text, &n, NULL);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        mem_free(text);
        CHECK_EQ(mem_n_alive(), alive);
        CHECK(i < 10000);
    }
}
