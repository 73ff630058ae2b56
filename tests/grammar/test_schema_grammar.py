"""JSON schemas as grammars, against the jsonschema package: the public suite, random schemas, schemas of tools and APIs.

What a grammar accepts must be valid; there is no exception. What it refuses although it is valid is counted by cause.
"""

import json
import os
from collections import Counter, defaultdict
from pathlib import Path

import jsonschema
import pytest
import schema_gen
import schema_suite


# Refused or accepted otherwise than the suite has it, and why.
HERE = Path(__file__).parent
LONG = os.environ.get("RADISH_LONG") == "1"
FORMATS_HOLD = "format"  # the suite takes format as an annotation by default; here it holds
KNOWN_REFUSED = {
    ("vocabulary", "schema that uses custom metaschema with with no validation vocabulary"),
    ("dependentRequired", "dependencies with escaped characters"),  # the order of members that no schema orders
}


def dialect(draft, schema):
    if draft == "draft7" and isinstance(schema, dict) and "$schema" not in schema:
        return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    return schema


def suite_results(ask, draft):
    """{keyword: Counter of ok, unsound, refused, unsupported}, [what is unsound], [what is refused]."""
    groups = list(schema_suite.cases(draft))
    answers = ask([{"schema": dialect(draft, g[2]), "instances": [t["data"] for t in g[3]]} for g in groups])
    counts, unsound, refused = defaultdict(Counter), [], []
    for (keyword, group, schema, tests), answer in zip(groups, answers):
        if "error" in answer:
            empty = "without any text" in answer["error"]
            right = empty and not any(t["valid"] for t in tests)
            counts[keyword]["ok" if right else "unsupported"] += len(tests)
            assert not empty or right, (group, answer)
            continue
        for test, accepted in zip(tests, answer["accept"]):
            case = (keyword, group, test["description"])
            if accepted == test["valid"]:
                counts[keyword]["ok"] += 1
            elif accepted:
                counts[keyword]["unsound"] += 1
                unsound.append(case)
            else:
                counts[keyword]["refused"] += 1
                refused.append(case)
    return counts, unsound, refused


@pytest.mark.parametrize("draft", ["draft7", "draft2020-12"])
def test_public_suite_nothing_invalid_is_accepted(ask, draft):
    counts, unsound, refused = suite_results(ask, draft)
    assert unsound == []
    unexpected = [c for c in refused if c[0] != FORMATS_HOLD and c[:2] not in KNOWN_REFUSED]
    assert unexpected == []
    total = sum(counts.values(), Counter())
    print(draft, dict(total))
    assert total["ok"] >= {"draft7": 780, "draft2020-12": 950}[draft]


@pytest.mark.parametrize("draft", ["draft7", "draft2020-12"])
def test_public_suite_formats_are_grammars_of_their_own(ask, draft):
    groups = [
        g
        for g in schema_suite.formats(draft)
        if not g[0].endswith(("regex", "uri-template", "unknown", "ecmascript-regex"))
    ]
    answers = ask([{"schema": dialect(draft, g[2]), "instances": [t["data"] for t in g[3]]} for g in groups])
    for (keyword, group, schema, tests), answer in zip(groups, answers):
        assert "error" not in answer, (keyword, group, answer)
        for test, accepted in zip(tests, answer["accept"]):
            assert test["valid"] or not accepted, (keyword, group, test)


def compare(ask, cases):
    """cases: [(schema, instances)]. Counts; nothing invalid may be accepted."""
    lines, verdicts = [], []
    for schema, instances in cases:
        validator = jsonschema.Draft202012Validator(schema)
        verdicts.append([validator.is_valid(v) for v in instances])
        lines.append({"schema": schema, "instances": instances})
    counts, refused, errors = Counter(), [], []
    for line, verdict, answer in zip(lines, verdicts, ask(lines)):
        if "error" in answer:
            assert "without any text" not in answer["error"] or not any(verdict), (line, answer)
            counts["unsupported"] += 1
            errors.append((line["schema"], answer["error"]))
            continue
        for v, valid, accepted in zip(line["instances"], verdict, answer["accept"]):
            assert valid or not accepted, "accepted, but invalid: %s of %s" % (
                json.dumps(v),
                json.dumps(line["schema"]),
            )
            counts["valid, accepted" if accepted else "valid, refused" if valid else "invalid, refused"] += 1
            if valid and not accepted:
                refused.append((line["schema"], v))
    return counts, refused, errors


@pytest.mark.parametrize("part", range(8 if LONG else 1))
def test_random_schemas_and_values_agree_with_the_validator(ask, part):
    cases = []
    for i in range(4000 if LONG else 500):
        rng = schema_gen.seeded(1_000_000 * part + i)
        schema = schema_gen.schema(rng)
        values = []
        for _ in range(8):
            values.append(schema_gen.make(rng, schema, schema))
            values.append(schema_gen.mutated(rng, values[-1]))
        cases.append((schema, values))
    counts, refused, _ = compare(ask, cases)
    print(dict(counts))
    assert counts["valid, accepted"] > 2000 and counts["invalid, refused"] > 1000
    assert counts["valid, refused"] <= counts["valid, accepted"] / 500, refused[:5]


def real_schemas():
    return [json.loads(line) for line in (HERE / "real_schemas.jsonl").read_text().splitlines()]


def test_schemas_of_tools_and_apis(ask):
    cases = []
    schemas = real_schemas()
    assert len(schemas) >= 100
    for i, schema in enumerate(schemas):
        rng = schema_gen.seeded(i)
        values = []
        for _ in range(250 if LONG else 25):
            values.append(schema_gen.make(rng, schema, schema))
            values.append(schema_gen.mutated(rng, values[-1]))
        cases.append((schema, values))
    counts, refused, errors = compare(ask, cases)
    print(dict(counts))
    assert errors == []
    checker = jsonschema.FormatChecker()
    held = [r for r in refused if jsonschema.Draft202012Validator(r[0], format_checker=checker).is_valid(r[1])]
    assert held == []
    assert counts["valid, accepted"] > 20 * len(schemas)


PREFIXES = [
    (
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "é"]}}, "required": ["a"]},
        '{"a": 1, "b": "é"}',
    ),
    ({"type": "string", "pattern": '^"\\\\\\d+$'}, '"\\"\\\\123"'),
    ({"type": "array", "items": {"type": "number"}, "minItems": 2}, "[1.5e3, -0.25]"),
]


@pytest.mark.parametrize("schema,text", PREFIXES)
def test_a_text_is_whole_at_its_end_only(ask, schema, text):
    texts = [text[:i] for i in range(len(text) + 1)]
    (answer,) = ask([{"schema": schema, "texts": texts}])
    assert answer["accept"] == [False] * len(text) + [True]


def test_both_spellings_of_json_dumps_are_accepted(ask):
    values = ['é\u2028\U0001f600\n\t"\\/\x7f\x01', {"grün": ["日本", None, 1e-07, 1e16, -0.0, 12345678901234567890]}]
    texts = [json.dumps(v, ensure_ascii=e) for v in values for e in (True, False)]
    assert ask([{"schema": True, "texts": texts}]) == [{"accept": [True] * 4, "begins": [True] * 4}]
    const = [
        {"schema": {"const": v}, "texts": [json.dumps(v, ensure_ascii=e) for e in (True, False)]}
        for v in ("é\U0001f600", {"ü": "ß"})
    ]
    assert [a["accept"] for a in ask(const)] == [[True, True]] * 2


def test_lone_surrogates_are_no_characters(ask):
    texts = ['"\\ud800"', '"\\udc00"', '"\\ud83d\\ude00"', '"\\ud83dx"']
    assert ask([{"schema": {"type": "string"}, "texts": texts}])[0]["accept"] == [False, False, True, False]


# What pydantic, and whoever writes OpenAPI, says beside the standard's formats; lengths as they give them.
OTHER_FORMATS = {
    "uuid4": (["123e4567-e89b-42d3-a456-426614174000"], ["123e4567-e89b-12d3-a456-426614174000", "x"]),
    "ipvanyaddress": (["10.0.0.1", "::1"], ["10.0.0.256", "g"]),
    "ipv4network": (["10.0.0.0/8", "192.168.1.0/24", "1.2.3.4/32"], ["10.0.0.1/8", "10.0.0.0/33"]),
    "ipv4interface": (["10.0.0.1/8", "10.0.0.1"], ["10.0.0.1/33"]),
    "base64": (["", "YQ==", "YWJj"], ["a", "Y"]),
    "regex": (["^a+[0-9]?$", "x\\.y"], ["(", "[", "*"]),
    "multi-host-uri": (["postgres://u@localhost:5432/db"], ["localhost"]),
    "path": (["/tmp/a b"], []),
    "binary": (["any \u00e9"], []),
}


def test_formats_that_pydantic_writes(ask):
    lines = [{"schema": {"type": "string", "format": f}, "instances": g + b} for f, (g, b) in OTHER_FORMATS.items()]
    for (name, (good, bad)), answer in zip(OTHER_FORMATS.items(), ask(lines)):
        assert answer == {"accept": [True] * len(good) + [False] * len(bad)}, name


ADDRESSES = {
    "uri": (["https://example.com/a/b?c=d#e", "mailto:a@b.org", "x:/y", "http://a.b:80"], ["//a", "a b", "http://a b"]),
    "url": (["https://example.com/a/b?c=d#e", "http://a.b:80"], ["ftp://a.b", "x"]),
    "uri-reference": (["/a/b?c#d", "a", "https://example.com/a"], ["a b", "1:b"]),
    "email": (["ada.b@example.com"], ["a..b@c.d", "@x", "a@", ".a@b.c"]),
    "hostname": (["www.example.com"], ["-a.b", "a..b", "a_b"]),
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_addresses_of_any_length(ask, name):
    """pydantic's HttpUrl is a uri of 1 to 2,083 characters: counting those over the whole expression takes for ever."""
    good, bad = ADDRESSES[name]
    lengths = (36, 64, 100, 128, 255, 320, 500, 2083, 8192, 100000)
    tail = {"email": "@example.com", "hostname": ".com"}.get(name, "")
    head = "" if tail else "" if name == "uri-reference" else "http://example.com/"
    lines = []
    for n in lengths:
        filled = [head + "a" * (m - len(head) - len(tail)) + tail for m in (n + 1, 2 * n)]
        schema = {"type": "string", "format": name, "minLength": 1, "maxLength": n}
        lines.append({"schema": schema, "instances": good + bad + filled})
    for n, answer in zip(lengths, ask(lines)):
        assert "accept" in answer, (n, answer)
        assert answer["accept"] == [True] * len(good) + [False] * (len(bad) + 2), n


BIG = 81826593152189936116  # a double would make ..939712 of it
NUMBERS = [
    ({"enum": [BIG]}, [str(BIG)], ["81826593152189939712", "8.182659315218994e+19"]),
    ({"type": "integer", "minimum": BIG}, [str(BIG), "81826593152189939712"], [str(BIG - 1)]),
    ({"type": "integer", "maximum": BIG}, [str(BIG)], [str(BIG + 1), "81826593152189939712"]),
    ({"const": -0.0}, ["0", "-0.0"], ["1"]),
    ({"const": 1e16}, ["1e+16", "10000000000000000"], ["1"]),
    (
        {"type": "number", "not": {"type": "integer"}},
        ["1000000.5", "4642096.97236378", "22.302748592762114", "0.125", "-99999999999999.5"],
        ["1.0", "22.000000000000001", "21.999999999999999", "0.0", "7"],
    ),
]


@pytest.mark.parametrize("schema,good,bad", NUMBERS, ids=lambda x: json.dumps(x)[:30])
def test_numbers_that_a_double_cannot_tell(ask, schema, good, bad):
    (answer,) = ask([{"schema": schema, "texts": good + bad}])
    assert answer["accept"] == [True] * len(good) + [False] * len(bad)


def test_the_years_of_the_first_thousand_are_dates(ask):
    texts = ['"0509-10-09"', '"0004-02-29"', '"0001-01-01"', '"0000-01-01"', '"0100-02-29"', '"0003-02-29"']
    (answer,) = ask([{"schema": {"type": "string", "format": "date"}, "texts": texts}])
    assert answer["accept"] == [True] * 3 + [False] * 3


TRUE_TWICE = {"oneOf": [{"enum": [True]}, {"enum": [True]}]}
NEEDY = {"type": "object", "dependentRequired": {"a": []}}


@pytest.mark.parametrize("schema", [TRUE_TWICE, {"oneOf": [NEEDY, TRUE_TWICE]}, {"oneOf": [TRUE_TWICE, NEEDY]}])
def test_a_value_of_two_ways_is_of_no_one_of_them(ask, schema):
    (answer,) = ask([{"schema": {"properties": {"p": schema}}, "texts": ['{"p": true}', "{}"]}])
    assert answer["accept"] == [False, True]


UNSUPPORTED = [
    ({"type": "object", "properties": {"a": {"$dynamicRef": "#x"}}}, "#/properties/a/$dynamicRef"),
    ({"items": {"uniqueItems": True}}, "#/items/uniqueItems"),
    ({"$ref": "https://example.org/other.json"}, "#/$ref"),
    ({"anyOf": [{"type": "string", "format": "marvel"}]}, "#/anyOf/0/format"),
    ({"properties": {"p": {"pattern": "(?<=a)b"}}}, "#/properties/p/pattern"),
    ({"$defs": {"x": {"maxLenght": 3}}, "items": {"$ref": "#/$defs/x"}}, "#/$defs/x/maxLenght"),
    ({"type": "object", "minProperties": 3}, "#/minProperties"),
    ({"not": {"format": "date"}}, "#/not/format"),
]


@pytest.mark.parametrize("schema,path", UNSUPPORTED)
def test_what_is_not_supported_is_named_with_its_path(ask, schema, path):
    (answer,) = ask([{"schema": schema, "instances": []}])
    assert answer["error"].startswith(path + ":"), answer


WRONG = [
    {"type": "strnig"},
    {"properties": 3},
    {"required": "a"},
    {"minLength": -1},
    {"anyOf": []},
    {"pattern": "("},
    {"items": 3},
    {"$ref": "#/nowhere"},
    {"enum": 3},
    {"maximum": "1"},
    {"type": "integer", "multipleOf": 0},
    [],
    3,
]


@pytest.mark.parametrize("schema", WRONG, ids=json.dumps)
def test_a_wrong_schema_is_an_error(ask, schema):
    (answer,) = ask([{"schema": schema, "instances": []}])
    assert answer["error"]
