#!/usr/bin/env python3
"""Writes corpus/fuzz_schema/, fuzz_regex/ and fuzz_rules/: texts of every language, with what chooses tokens behind a 0 byte.
No arguments."""

import json
from pathlib import Path

OUT = Path(__file__).parent / "corpus"
STREAM = bytes([0]) + bytes((37 * i + 2) % 256 for i in range(40))
SCHEMAS = [
    True,
    {},
    {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"type": "integer"}},
        "required": ["b"],
    },
    {"type": "array", "items": {"type": "number", "minimum": 0, "exclusiveMaximum": 9.5}, "minItems": 1, "maxItems": 3},
    {"type": "string", "pattern": "^[a-z]{2,4}-\\d+$", "minLength": 4},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uri", "minLength": 1, "maxLength": 80},
    {"enum": [1, "a", None, {"b": [True]}, 2.5]},
    {"const": {"x": "\u00e9"}},
    {"anyOf": [{"type": "string"}, {"type": "null"}], "default": 1},
    {"oneOf": [{"type": "integer", "multipleOf": 3}, {"type": "boolean"}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"const": 1}}},
            {"required": ["a"]},
            {"additionalProperties": False},
        ]
    },
    {
        "$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}, "additionalProperties": False}},
        "$ref": "#/$defs/n",
    },
    {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": {"type": "string"}, "minProperties": 1},
    {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
    {"not": {"type": "string"}, "if": {"type": "integer"}, "then": {"minimum": 5}, "else": True},
    {"type": ["integer", "null"], "minimum": -100, "maximum": 250, "multipleOf": 7},
    {"dependentRequired": {"a": ["b"]}, "propertyNames": {"maxLength": 3}, "maxProperties": 2},
    {"contains": {"const": 1}, "minContains": 1, "uniqueItems": True},
]
REGEXES = [
    rb"[a-z]+\d{2,5}",
    rb"^(?:a|bc)*?(?P<n>x)\.$",
    rb"\p{L}+\s\w\b\W",
    rb"(?i)straSSe|[^\x00-\x7f]{1,3}",
    rb"a{0,1000}b{3,}|\u00e9|\cA\t",
    rb"((a{1,100}){1,100}){1,9}",
    rb"[\d\-x&&z]|.[^]",
]
RULES = [
    (0, b'root ::= "a" [b-d]+ ("x" | y){2,5} # c\ny ::= [^\\n"]* "\\x41\\u00e9"?\n'),
    (0, b'root ::= item ("," item)*\nitem ::= "[" root? "]" | [0-9]\n'),
    (0, b'root ::= root "a" | ""\n'),
    (1, b'root ::= "<" name ">" \n name ::= [a-z]{1,10}\n'),
    (1, b'start: "a" B (c | "x"~2..3)+\nB: /[0-9]+/i\nc: %json {"type": "integer"}\n%import common.WORD\n'),
    (1, b'?start: expr\nexpr: expr "+" term | term\nterm: NUMBER\n%import common.NUMBER\n%ignore " "\n'),
    (1, b'start: <[7]> "x" start | "y"\n'),
    (1, b'%llguidance {}\nstart: a[0]\na[capture="c", stop=/x+/, max_tokens=9]: /[a-z]*/\n'),
    (1, b'start[suffix="!"]: b\nb: %regex {"substring_words": "a bc d"} | %regex {"substring_chunks": ["a", "b"]}\n'),
    (2, b'["yes", "no", "\\u00e9", ""]'),
    (
        3,
        b'{"type": "structural_tag", "structures": [{"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"}], "triggers": ["<f="]}',
    ),
    (
        3,
        b'{"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<special>"], "tags": [{"begin": '
        b'"<special>", "content": {"type": "json_schema", "json_schema": {"const": 1}}, "end": "</x>"}], "at_least_one": true}}',
    ),
    (
        3,
        b'{"type": "structural_tag", "format": {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}, '
        b'{"type": "or", "elements": [{"type": "regex", "pattern": "b+"}, {"type": "any_text"}]}]}}',
    ),
]


def main():
    files = {"fuzz_schema": [json.dumps(s).encode() for s in SCHEMAS]}
    files["fuzz_regex"] = [bytes([i % 2]) + r for i, r in enumerate(REGEXES)]
    files["fuzz_rules"] = [bytes([kind]) + text for kind, text in RULES]
    for target, texts in files.items():
        (OUT / target).mkdir(parents=True, exist_ok=True)
        for i, text in enumerate(texts):
            (OUT / target / f"text-{i:02}").write_bytes(text + STREAM)


if __name__ == "__main__":
    main()
