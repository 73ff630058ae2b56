"""Schemas and grammars made to take for ever (docs/faults.md, F29), as lines of `radish grammar match --jsonl`: for
tests/grammar/test_bombs.py and bench/grammar/gaps."""

import json


def props(n):
    return [
        {"type": "object", "properties": {"k%d" % i: {"type": "integer"}}, "required": ["k%d" % i]} for i in range(n)
    ]


def schema(s):
    return json.dumps({"schema": s, "instances": [1]})


def text(kind, s):
    return json.dumps({"kind": kind, "schema": s, "texts": ["a"]})


def conditions(n):
    test = [{"properties": {"k": {"const": i}}, "required": ["k"]} for i in range(n)]
    return {"type": "object", "allOf": [{"if": t, "then": {"required": ["v%d" % i]}} for i, t in enumerate(test)]}


def chain(n, first=""):
    """Rules that contain themselves, each called by the one before."""
    rules = "\n".join('r%d ::= r%d "x" | "(" r%d ")"' % (i, i + 1, i) for i in range(n))
    return 'root ::= "(" a ")"\na ::= "q" | %s r0 "z"\n%s\nr%d ::= "b"\ne ::= "z"{30000}\n' % (first, rules, n)


BOMBS = {
    "nested 100,000 deep": '{"schema":' + '{"items":' * 100000 + "true" + "}" * 100000 + ',"instances":[1]}',
    "nested 1,000 deep": '{"schema":' + '{"items":' * 1000 + "true" + "}" * 1000 + ',"instances":[1]}',
    "10,000 values": schema({"enum": ["v%d" % i for i in range(10000)]}),
    "10,000 alternatives": schema({"anyOf": props(10000)}),
    "1,000 exclusive ones": schema({"oneOf": props(1000)}),
    "a product of alternatives": schema(
        {"allOf": [{"anyOf": [{"minLength": i}, {"maxLength": i + 3}]} for i in range(40)]}
    ),
    "40 conditions": schema(conditions(40)),
    "refs in circles": schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
    "a billion times": schema({"type": "string", "pattern": "^a{0,1000000000}$"}),
    "counts within counts": text("regex", "(((a{1000}){1000}){1000}){1000}"),
    "a billion characters": schema({"type": "string", "maxLength": 1000000000}),
    "a pattern and ten million": schema({"type": "string", "pattern": "^[a-z]+( [a-z]+)*$", "maxLength": 10000000}),
    "a billion items": schema({"type": "array", "maxItems": 1000000000, "minItems": 999999}),
    "2^40 states": text("regex", "(a|b)*a(a|b){40}"),
    "20 look-aheads": text("regex", "".join("(?=.*%s)" % c for c in "abcdefghijklmnopqrst") + ".*"),
    "100,000 groups": text("regex", "(" * 100000),
    "100,000 groups of GBNF": text("gbnf", "root ::= " + "(" * 100000),
    "100,000 groups of Lark": text("ebnf", "start: " + "(" * 100000),
    "a rule of itself": text("gbnf", "root ::= root"),
    "ambiguity": text("gbnf", 'root ::= root root | "a" | ""'),
    "10^18 in GBNF": text("gbnf", 'root ::= a{1000000}\na ::= b{1000000}\nb ::= "x"{1000000}'),
    "20,000 rules": text(
        "gbnf", "root ::= r0\n" + "\n".join("r%d ::= r%d" % (i, i + 1) for i in range(20000)) + '\nr20000 ::= "b"'
    ),
    "2,000 optional members": schema(
        {"type": "object", "properties": {"p%d" % i: {"type": "string"} for i in range(2000)}}
    ),
    "patterns of names": schema({"patternProperties": {"^(a|b)*a(a|b){12}%d$" % i: {} for i in range(5)}}),
    "10,000 rules that contain themselves": text("gbnf", chain(10000)),
    "10,000 ways out, each through another": text(
        "gbnf", chain(10000, "".join("r%d e | " % (i * 4231 % 10000) for i in range(1, 10000)))
    ),
    "10,000 rules in one circle": text(
        "gbnf",
        "root ::= r0\n"
        + "\n".join('r%d ::= "a" r%d | "b" r%d | "c"' % (i, (i + 1) % 10000, i * 7919 % 10000) for i in range(10000)),
    ),
    "unbalanced": text("regex", ")" * 1000),
}
