"""Random templates through jinja2, configured as transformers does for chat templates, and through `radish template`: the
same text, or an error from both. RADISH_SEED chooses the seed, RADISH_LONG=1 runs many more."""

import datetime
import json
import os
import random

import jinja2
import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

LONG = bool(os.environ.get("RADISH_LONG"))
SEED = int(os.environ.get("RADISH_SEED", "20"))
BATCH = 1000
UNKNOWN = " object at 0x"
CONTEXT = {
    "i": 7,
    "neg": -3,
    "zero": 0,
    "f": 2.5,
    "tiny": 1e-7,
    "big": 123456789012,
    "yes": True,
    "no": False,
    "nil": None,
    "e": "",
    "s": "Hello World",
    "u": "Zażółć ß 日本 🦜",
    "h": "<a href=\"x\">'&'</a>",
    "t": "one two\n  three-four\n\nfive",
    "p": " pad\t",
    "l": [3, 1, 2],
    "w": ["pear", "Apple", "fig"],
    "m": [1, 2.5, True, None, "s", [1], {"k": "v"}],
    "el": [],
    "d": {"b": 1, "a": [1, 2], "c": {"x": "y"}},
    "ed": {},
    "users": [{"n": "ann", "a": 30, "ok": True}, {"n": "Bob", "a": 25}, {"n": "cid", "a": 30, "ok": False}],
}
NAMES = {
    "num": ["i", "neg", "zero", "f", "big", "yes"],
    "str": ["e", "s", "u", "h", "t", "p"],
    "list": ["l", "w", "m", "el", "users"],
    "dict": ["d", "ed"],
    "any": ["nil", "yes", "no", "missing", "tiny"],
}


class Maker:
    """Expressions by the type they most likely have, so that most of them do not fail."""

    def __init__(self, rng):
        self.r = rng

    def pick(self, *options):
        return self.r.choice(options)

    def expr(self, kind=None, depth=0):
        if kind is None or self.r.random() < 0.06:
            kind = self.pick("num", "str", "list", "dict", "bool", "any")
        if depth > 3 or self.r.random() < 0.2:
            return self.leaf(kind)
        return getattr(self, kind)(depth + 1)

    def leaf(self, kind):
        if kind == "num":
            return self.pick("0", "1", "2", "-1", "3.5", "10", "0.1", "1e3", "255", *NAMES["num"])
        if kind == "str":
            return self.pick(
                "''", "'a'", "'x y'", "'é'", '"it\'s"', "'%s'", "'a,b,,c'", "'12'", "'<b>'", "'\\n'", *NAMES["str"]
            )
        if kind == "list":
            return self.pick("[]", "[1, 2]", "['b', 'a']", "(1, 'x')", "range(4)", *NAMES["list"])
        if kind == "dict":
            return self.pick("{}", "{'a': 1}", "{'z': 'y', 'k': [1]}", *NAMES["dict"])
        if kind == "bool":
            return self.pick("true", "false", "yes", "no")
        return self.pick("none", *NAMES["any"], *NAMES["num"], *NAMES["str"], *NAMES["list"], *NAMES["dict"])

    def any(self, d):
        x = self.expr
        return self.pick(
            lambda: "(%s if %s else %s)" % (x(None, d), x("bool", d), x(None, d)),
            lambda: "(%s or %s)" % (x(None, d), x(None, d)),
            lambda: "(%s and %s)" % (x(None, d), x(None, d)),
            lambda: "%s[%s]" % (x("list", d), self.pick("0", "-1", "1", "9")),
            lambda: "%s.%s" % (x("dict", d), self.pick("a", "b", "zz")),
            lambda: "%s.get(%s, %s)" % (x("dict", d), self.pick("'a'", "'q'"), x(None, d)),
            lambda: "(%s | default(%s%s))" % (x(None, d), x(None, d), self.pick("", ", true")),
            lambda: "(%s | %s)" % (x("list", d), self.pick("first", "last", "max", "min", "sum")),
        )()

    def num(self, d):
        x = self.expr
        return self.pick(
            lambda: "(%s %s %s)" % (x("num", d), self.pick("+", "-", "*", "/", "//", "%"), x("num", d)),
            lambda: "%s ** 2" % self.leaf("num"),
            lambda: "(-%s)" % x("num", d),
            lambda: "(%s | length)" % x(self.pick("str", "list", "dict"), d),
            lambda: "(%s | %s)" % (x("str", d), self.pick("int", "float", "int(5)", "wordcount", "int(base=16)")),
            lambda: (
                "(%s | %s)"
                % (
                    x("num", d),
                    self.pick("abs", "round", "round(1)", "round(2, 'floor')", "int", "float", "round(0, 'ceil')"),
                )
            ),
            lambda: "%s.%s(%s)" % (x("str", d), self.pick("find", "rfind", "count"), x("str", d)),
        )()

    def bool(self, d):
        x = self.expr
        return self.pick(
            lambda: "(%s %s %s)" % (x("num", d), self.pick("<", "<=", "==", "!=", ">", ">="), x("num", d)),
            lambda: "(%s %s %s)" % (x("str", d), self.pick("<", "==", "!=", "in", "not in"), x("str", d)),
            lambda: "(%s in %s)" % (x(None, d), x(self.pick("list", "dict", "str"), d)),
            lambda: "(not %s)" % x(None, d),
            lambda: (
                "(%s is %s%s)"
                % (
                    x(None, d),
                    self.pick("", "not "),
                    self.pick(
                        "defined",
                        "none",
                        "string",
                        "number",
                        "mapping",
                        "iterable",
                        "sequence",
                        "boolean",
                        "integer",
                        "float",
                        "true",
                        "callable",
                        "eq(1)",
                        "in([1, 'a'])",
                        "sameas(none)",
                        "lower",
                        "upper",
                        "odd",
                        "even",
                        "divisibleby(2)",
                        "escaped",
                        "undefined",
                    ),
                )
            ),
            lambda: "(%s %s %s < %s)" % (x("num", d), self.pick("<", "<="), x("num", d), x("num", d)),
            lambda: (
                "%s.%s"
                % (
                    x("str", d),
                    self.pick(
                        "isdigit()",
                        "isalpha()",
                        "isupper()",
                        "islower()",
                        "isspace()",
                        "startswith('a')",
                        "endswith(('d', 'x'))",
                        "isalnum()",
                        "istitle()",
                        "isnumeric()",
                        "isidentifier()",
                    ),
                )
            ),
            lambda: "(%s == %s)" % (x("list", d), x("list", d)),
        )()

    def str(self, d):
        x = self.expr
        return self.pick(
            lambda: "(%s + %s)" % (x("str", d), x("str", d)),
            lambda: "(%s ~ %s)" % (x(None, d), x(None, d)),
            lambda: "(%s * %s)" % (x("str", d), self.pick("0", "2", "3")),
            lambda: "%s[%s]" % (x("str", d), self.slice()),
            lambda: (
                "(%s | %s)"
                % (
                    x("str", d),
                    self.pick(
                        "upper",
                        "lower",
                        "title",
                        "capitalize",
                        "trim",
                        "replace('a', 'b')",
                        "replace('e', '', 1)",
                        "truncate(5)",
                        "truncate(8, true, '-', 0)",
                        "indent(2)",
                        "indent(1, true)",
                        "e",
                        "escape",
                        "forceescape",
                        "safe",
                        "string",
                        "reverse",
                        "center(9)",
                        "wordwrap(5)",
                        "wordwrap(4, false)",
                        "striptags",
                        "urlencode",
                        "pprint",
                        "trim('a')",
                        "urlize",
                        "first",
                        "last",
                    ),
                )
            ),
            lambda: (
                "(%s | %s)"
                % (
                    x(None, d),
                    self.pick(
                        "string",
                        "tojson",
                        "tojson(indent=2)",
                        "tojson(sort_keys=true)",
                        "e",
                        "pprint",
                        "upper",
                        "tojson(separators=(',', ':'))",
                        "tojson(ensure_ascii=true)",
                        "join('-')",
                    ),
                )
            ),
            lambda: "(%s | join(%s))" % (x("list", d), x("str", d)),
            lambda: (
                "%s.%s"
                % (
                    x("str", d),
                    self.pick(
                        "upper()",
                        "lower()",
                        "title()",
                        "strip()",
                        "lstrip('H ')",
                        "rstrip()",
                        "capitalize()",
                        "swapcase()",
                        "zfill(6)",
                        "center(8, '*')",
                        "ljust(7)",
                        "rjust(7, '.')",
                        "replace('l', 'L')",
                        "removeprefix('He')",
                        "removesuffix('d')",
                        "casefold()",
                        "expandtabs(4)",
                        "format(1, 'a')",
                        "join(w)",
                    ),
                )
            ),
            lambda: "('%s' %% %s)" % (self.pick("%s", "%r", "[%5s]", "%-6s|", "%.2s"), x("str", d)),
            lambda: (
                "('%s' %% %s)"
                % (
                    self.pick("%d", "%5d", "%05d", "%+d", "%x", "%.2f", "%8.3f", "%e", "%g", "%i", "%-6d|", "%o", "%s"),
                    x("num", d),
                )
            ),
            lambda: (
                "'%s'.format(%s, %s)"
                % (
                    self.pick("{}{}", "{0}-{1}", "{1}{0}", "{:>8}{!r}", "{!s:^9}|{}", "{:5}|{:<4}", "{!a}{}", "{{}}{}"),
                    x(None, d),
                    x(None, d),
                )
            ),
            lambda: (
                "'%s'.format(%s)"
                % (
                    self.pick(
                        "{:d}",
                        "{:05}",
                        "{:,}",
                        "{:.2f}",
                        "{:+}",
                        "{:x}",
                        "{:e}",
                        "{:.3}",
                        "{:%}",
                        "{:_}",
                        "{:08.2f}",
                        "{:^9}",
                        "{:b}",
                        "{:#x}",
                        "{:g}",
                    ),
                    x("num", d),
                )
            ),
        )()

    def slice(self):
        p = lambda: self.pick("", "0", "1", "2", "-1", "-3", "5")
        return self.pick("%s:%s" % (p(), p()), "%s:%s:%s" % (p(), p(), self.pick("1", "2", "-1", "-2")))

    def list(self, d):
        x = self.expr
        return self.pick(
            lambda: "[%s]" % ", ".join(x(None, d) for _ in range(self.r.randint(0, 3))),
            lambda: "(%s + %s)" % (x("list", d), x("list", d)),
            lambda: "%s[%s]" % (x("list", d), self.slice()),
            lambda: (
                "%s.%s"
                % (
                    x("str", d),
                    self.pick(
                        "split()",
                        "split(',')",
                        "split('l', 1)",
                        "rsplit(none, 1)",
                        "splitlines()",
                        "partition(' ')",
                        "rsplit('o')",
                        "rpartition('x')",
                    ),
                )
            ),
            lambda: (
                "(%s | %s)"
                % (
                    x("list", d),
                    self.pick(
                        "sort",
                        "sort(reverse=true)",
                        "list",
                        "reverse | list",
                        "unique | list",
                        "map('string') | list",
                        "select | list",
                        "reject('none') | list",
                        "batch(2) | list",
                        "slice(2) | list",
                        "batch(2, 'x') | list",
                        "map('upper') | list",
                        "select('string') | list",
                        "map('length') | list",
                        "selectattr('a') | list",
                        "map(attribute='n') | list",
                        "groupby('a') | list",
                        "select('gt', 1) | list",
                        "slice(3, 0) | list",
                    ),
                )
            ),
            lambda: (
                "(%s | %s)"
                % (
                    x("dict", d),
                    self.pick("list", "dictsort", "items | list", "dictsort(by='value')", "dictsort(reverse=true)"),
                )
            ),
            lambda: "(%s.%s | list)" % (x("dict", d), self.pick("keys()", "values()", "items()")),
            lambda: (
                "(users | %s)"
                % self.pick(
                    "sort(attribute='a') | map(attribute='n') | list",
                    "selectattr('ok', 'defined') | list",
                    "rejectattr('ok') | map(attribute='n') | list",
                    "sum(attribute='a')",
                    "groupby('a') | map('first') | list",
                    "map(attribute='zip', default='-') | list",
                    "sort(attribute='a,n', reverse=true) | list",
                )
            ),
            lambda: "(%s | list)" % x("str", d),
        )()

    def dict(self, d):
        x = self.expr
        return self.pick(
            lambda: (
                "{%s}"
                % ", ".join(
                    "%s: %s" % (self.pick("'a'", "'b'", "1", "none", x("str", d)), x(None, d))
                    for _ in range(self.r.randint(0, 3))
                )
            ),
            lambda: "dict(%s, q=%s)" % (x("dict", d), x(None, d)),
            lambda: "%s.copy()" % x("dict", d),
        )()

    def body(self, d):
        return "".join(self.statement(d) for _ in range(self.r.randint(1, 3)))

    def statement(self, d=0):
        x = lambda kind=None: self.expr(kind, d)
        gap = lambda: self.pick("", "", " ", "\n", "\n  ", " \n\n ")
        o = lambda text: "{%" + self.pick("", "", "-", "+") + " " + text + " " + self.pick("", "", "-", "+") + "%}"
        options = [
            lambda: "{{%s %s %s}}" % (self.pick("", "", "-"), x(), self.pick("", "", "-")),
            lambda: self.pick("text", " ", "\n", "a\n  b", "{# c #}", "{#- c -#}\n"),
            lambda: o("set v = " + x()) + "{{ v }}",
        ]
        if d < 3:
            options += [
                lambda: (
                    o("if " + x("bool"))
                    + gap()
                    + self.body(d + 1)
                    + o("elif " + x())
                    + gap()
                    + o("else")
                    + self.body(d + 1)
                    + o("endif")
                ),
                lambda: (
                    o("for x in " + x("list"))
                    + gap()
                    + "{{ loop.%s }}{{ x }}" % self.pick("index", "last", "revindex0", "length", "first")
                    + self.pick("", self.body(d + 1))
                    + self.pick("", o("if loop.index == 2") + o(self.pick("break", "continue")) + o("endif"))
                    + self.pick("", o("else") + "none")
                    + o("endfor")
                ),
                lambda: o("for k, y in (%s).items()" % x("dict")) + "{{ k }}={{ y }};" + o("endfor"),
                lambda: o("set b") + gap() + self.body(d + 1) + o("endset") + "[{{ b }}]",
                lambda: (
                    o("filter " + self.pick("upper", "trim", "indent(2)", "replace('a', 'b') | title"))
                    + self.body(d + 1)
                    + o("endfilter")
                ),
                lambda: o("with q = %s" % x()) + "{{ q }}" + self.body(d + 1) + o("endwith"),
                lambda: (
                    o("macro mac(a, b=%s)" % x())
                    + "{{ a }}{{ b }}"
                    + self.pick("", "{{ varargs }}{{ kwargs }}", "{{ caller() if caller }}")
                    + o("endmacro")
                    + self.pick(
                        "{{ mac(%s) }}" % x(),
                        "{{ mac(%s, %s) }}" % (x(), x()),
                        "{{ mac(b=%s, a=1) }}" % x(),
                        "{{ mac(1, 2, 3, k=4) }}",
                        o("call mac(1)") + self.body(d + 1) + o("endcall"),
                    )
                ),
                lambda: (
                    o("set ns = namespace(c=%s)" % x())
                    + o("for x in " + x("list"))
                    + o("set ns.c = x")
                    + o("endfor")
                    + "{{ ns.c }}"
                ),
                lambda: o("raw") + " {{ x }} {% y %}" + o("endraw"),
                lambda: (
                    o("autoescape " + self.pick("true", "false"))
                    + "<i>{{ %s }}{{ %s }}" % (x("str"), x())
                    + o("endautoescape")
                ),
            ]
        return self.r.choice(options)()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=lambda f: datetime.datetime.now().strftime(f))
    return env


def expected(env, template):
    """The text, None for an error, or UNKNOWN: jinja2 stumbled while it computed constants, as over {{}: 1} in a branch that is
    never taken."""
    try:
        compiled = env.from_string(template)
    except TypeError:
        return UNKNOWN
    except Exception:
        return None
    try:
        return compiled.render(**json.loads(json.dumps(CONTEXT)))
    except Exception:  # whatever it is, it must be an error here too
        return None


def beyond(text, answer):
    """Where the two may part: addresses of objects, numbers beyond 64 bits, complex numbers; and slices of what has none, which
    jinja2 takes for undefined where it computes constants while it compiles, and refuses elsewhere."""
    if text is not None and (
        " object at 0x" in text or "<function" in text or "<class" in text or "<built-in" in text or "j)" in text
    ):
        return True
    return (
        "by these bounds" in answer.get("error", "")
        or "64 bits" in answer.get("error", "")
        or "too large" in answer.get("error", "")
    )


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("batch", range(60 if LONG else 3))
def test_random_templates_give_what_jinja2_gives(radish, batch):
    maker, env = Maker(random.Random("%d/%d" % (SEED, batch))), environment()
    templates = [maker.body(0) if k % 3 == 0 else "{{ %s }}" % maker.expr() for k in range(BATCH)]
    asked = "".join(json.dumps({"template": t, "context": CONTEXT}) + "\n" for t in templates)
    r = radish("template", "--jsonl", stdin=asked)
    answers = [json.loads(line) for line in r.out.split("\n") if line]
    assert r.returncode == 0 and len(answers) == len(templates), r.err
    n_texts, bad = 0, []
    for template, answer in zip(templates, answers):
        want = expected(env, template)
        n_texts += want is not None
        if answer.get("text") != want and not beyond(want, answer):
            bad.append("%r\n   radish: %r\n   jinja2: %r" % (template, answer, want))
    assert not bad, "%d of %d differ (RADISH_SEED=%d)\n%s" % (len(bad), len(templates), SEED, "\n".join(bad[:8]))
    assert n_texts > BATCH / 4, "too few templates rendered: %d" % n_texts
