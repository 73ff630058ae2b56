"""Regular expressions, GBNF, EBNF, Lark, choices and structural tags: what they accept, and what is refused by name."""

import re

import pytest

GBNF = 'root ::= item ("," item)* # a comment\nitem ::= [a-z]+ | "\\"" [^"\\n]{1,3} "\\""\n'
SUM = 'root ::= expr\nexpr ::= term (\n  [-+] term )*\nterm ::= num | "(" expr ")"\nnum ::= [0-9]+\n  | "x"'
LARK = 'start: "a" NAME ("," NAME)* [tail]\nNAME: /[a-z]+/\ntail: "!"~2\n%ignore /[ ]+/\n'
LEFT = '%import common.INT\nstart: expr\n?expr: expr "+" INT -> add\n     | INT\n'
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<function=f>", "schema": {"type": "integer"}, "end": "</function>"}],
    "triggers": ["<function="],
}
THINK = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}
SEQUENCE = {"type": "sequence", "elements": [THINK, {"type": "json_schema", "json_schema": {"type": "boolean"}}]}
# As guidance writes them for vLLM: select, gen with a stop text or a stop expression, substring, json.
GUIDED = """%llguidance {"no_forcing": true}

start: "It is " a ": " b c SUBSTRING d
a[capture]: A
A: "good"
     | "bad"
b[capture, max_tokens=20, stop="\\n"]: B
B: /(?s:.*)/
c[capture="c", temperature=0.3, suffix=/x+y/]: /[a-z]*/
SUBSTRING: %regex {
  "substring_chunks": ["a", " ", "bc"]
}
d[capture, max_tokens=100]: %json {
  "type": "integer"
}
"""
CASES = [
    (
        "ebnf",
        GUIDED,
        ["It is bad: free text\naxxya bc7", "It is good: \nxy12"],
        ["It is bad: free\ntext\nxy1", "It is bad: a\nxyxy1", "It is bad: a\nxyac1", "It is bad: a\nxy"],
    ),
    (
        "ebnf",
        'start: %regex {"substring_words": "one two"}',
        ["one two", "two", "", "one "],
        ["onetwo", "two one", "on"],
    ),
    ("ebnf", 'start: %regex {"substring_chars": "añb"}', ["añ", "ñb", "", "b"], ["ab", "ba"]),
    ("gbnf", GBNF, ["a,bc", '"xy"'], ['"wxyz"', ",a", "a,"]),
    ("gbnf", SUM, ["1+2", "(1-x)+3"], ["(1", "1+"]),
    ("gbnf", 'root ::= root root | "a"', ["a" * 30], ["", "ab"]),
    ("gbnf", "root ::= [^\\x00-\\u00ff] .", ["Āa", "日\n"], ["aa"]),
    ("ebnf", GBNF, ["a,bc"], [",a"]),
    ("ebnf", LARK, ["a b , c !!", "ab", "  a b"], ["a b!", "a"]),
    ("ebnf", LEFT, ["1+2+33", "4"], ["1+"]),
    ("ebnf", 'start: %json {"type": "integer"} "x"i "a".."c"', ["1xa", "2Xc"], ["1xd"]),
    ("choice", ["yes", 'no"x'], ["yes", 'no"x'], ["n", "yesno"]),
    ("structural_tag", TAG, ["hi", "hi <function=f>3</function> ok"], ["hi <function=g>", "<function=f>x</function>"]),
    (
        "structural_tag",
        {"type": "structural_tag", "format": SEQUENCE},
        ["<think>hm</think>true"],
        ["<think>true", "true"],
    ),
    ("json_object", "", ['{"a": [1, {}]}', "{}"], ["[]", '"a"', '{"a"}']),
]


@pytest.mark.parametrize("kind,source,good,bad", CASES, ids=lambda x: str(x)[:20])
def test_accepts_and_refuses(ask, kind, source, good, bad):
    (answer,) = ask([{"kind": kind, "schema": source, "texts": good + bad}])
    assert answer["accept"] == [True] * len(good) + [False] * len(bad)
    assert answer["begins"][: len(good)] == [True] * len(good)


REGEXES = [
    r"(?:foo|ba[rz])+\d{2,}",
    r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?",
    r"(a|b)*abb",
    r"\w+@\w+\.(com|org)",
    r"(?i)hello|world",
    r"[^a-c\d]+",
    r"a{2,4}b{0,3}?",
    r"(?=.*\d)(?=.*[a-z])[a-z\d]{3,5}",
    r"(?!ab)[a-c]{2,3}",
    r"\.\*\\\/\[\]",
    r"^x*$",
    r"\x41\u0042|[\t ]\S",
    r"(?:(?:a?b?)*c)?",
]


@pytest.mark.parametrize("pattern", REGEXES)
def test_regular_expressions_agree_with_python(ask, pattern):
    alphabet = [
        "a",
        "b",
        "c",
        "x",
        "1",
        "9",
        "-",
        "@",
        ".",
        " ",
        "A",
        "foo",
        "bar",
        "baz",
        "com",
        "hello",
        "HELLO",
        "abb",
        "*\\/[]",
        "\t",
    ]
    texts = (
        [""] + alphabet + [x + y for x in alphabet for y in alphabet] + ["AB", "foobar12", "a@b.com", "abc12", "12abc"]
    )
    whole, searched = ask(
        [
            {"kind": "regex", "schema": pattern, "texts": texts},
            {"schema": {"type": "string", "pattern": pattern}, "instances": texts},
        ]
    )
    for text, accepted, found in zip(texts, whole["accept"], searched["accept"]):
        assert accepted == bool(re.fullmatch(pattern, text)), (pattern, text)
        assert found == bool(re.search(pattern, text)), (pattern, text)


REFUSED = [
    ("regex", r"(a)\1", "offset 5: a back reference"),
    ("regex", r"(?<=a)b", "look-behind"),
    ("regex", r"a**", "nothing to repeat"),
    ("regex", "[a", "without its ]"),
    ("regex", r"\bfoo", "word boundary"),
    ("gbnf", "root ::= foo", "line 1, column 10: no rule is named foo"),
    ("gbnf", 'a ::= "x"', "no rule is named root"),
    ("gbnf", 'root ::= "a" | (', "line 1, column 17"),
    ("ebnf", 'start: "a" & "b"', "operator"),
    ("ebnf", "start: x\n%import python.NAME", "import"),
    ("ebnf", 'start[lazy]: "a"', "line 1, column 7: an attribute"),
    ("ebnf", 'start[stop=x]: "a"', "an attribute"),
    ("ebnf", 'start[capture: "a"', "without their ]"),
    ("ebnf", 'start: %regex {"substring": "a"}', "only substring_chunks"),
    ("ebnf", "%llguidance {", "not a JSON object"),
    ("ebnf", 'start: "\\x 1"', "line 1, column 11: wanted hexadecimal digits"),
    ("ebnf", 'start: "\\u0x41"', "wanted hexadecimal digits"),
    ("ebnf", "start: foo", "line 1, column 8: no rule is named foo"),
    ("ebnf", 'start: "a"\nstart: "b"', "line 2, column 1: a name that is defined already"),
    ("gbnf", 'root ::= "a"\nroot ::= "b"', "line 2, column 1: a name that is defined already"),
    ("choice", [], "at least one string"),
    ("structural_tag", {"format": {"type": "qwen_xml_parameter"}}, "#/format/type"),
    ("structural_tag", {**TAG, "triggers": ["<other"]}, "begins with none of the triggers"),
    ("nonsense", "x", None),
]


@pytest.mark.parametrize("kind,source,message", REFUSED, ids=lambda x: str(x)[:20])
def test_what_is_wrong_is_named(ask, kind, source, message):
    (answer,) = ask([{"kind": kind, "schema": source, "texts": ["x"]}])
    if message is None:
        assert answer == {"error": "kind: wanted json_schema, json_object, regex, choice, gbnf, ebnf or structural_tag"}
    else:
        assert message in answer["error"]
