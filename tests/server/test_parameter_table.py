"""The table of parameters, as the binary prints it: every row refuses what it must (F22), on every endpoint that has it; what no
row knows is ignored and told; docs/api.md is the table's.

For each row at least twelve values are bad by its types, range, choices, items and sizes; what a row takes is left out by these
alone. On top come values that are no JSON at all, in the field's place.
"""

import contextlib
import json
import math
import subprocess
import sys

import pytest
from radish_server import BUILD, JSON, ROOT, TINY, Server

TABLE = json.loads(subprocess.run([BUILD / "radish", "api"], check=True, capture_output=True).stdout)
PATHS = {e["name"]: e["path"] for e in TABLE["endpoints"]}
M = [{"role": "user", "content": "hi"}]
# the least that each endpoint asks for; not more than one token is ever generated
BASE = {
    "chat": {"messages": M, "max_tokens": 1},
    "completions": {"prompt": "hi", "max_tokens": 1},
    "completion": {"prompt": "hi", "n_predict": 1},
    "infill": {"input_prefix": "hi", "n_predict": 1},
    "responses": {"input": "hi", "max_output_tokens": 1},
    "messages": {"messages": M, "max_tokens": 1},
    "count_tokens": {"messages": M},
    "tokenize": {"content": "hi"},
    "detokenize": {"tokens": [5]},
    "apply-template": {"messages": M},
    "cache_names": {},
    "cache_name": {"cache_name": "hi"},
    "embeddings": {"input": "hi"},
    "rerank": {"query": "a", "documents": ["b"]},
    "embedding": {"content": "hi"},
    "score": {"text_1": "a", "text_2": ["b"]},
    "classify": {"input": "hi", "labels": ["a"]},
    "ollama_chat": {"messages": M, "stream": False, "options": {"num_predict": 1}},
    "ollama_generate": {"prompt": "hi", "stream": False, "options": {"num_predict": 1}},
    "ollama_embed": {"input": "hi"},
    "ollama_show": {},
}
# further bad values of single rows, beside those that follow from what a row says
MORE = {
    "prompt": ("completions", ["", [""], ["a", 5], [5, -1], [2**31], [[5, -1]], [[]]]),
    "input": (
        "responses",
        [
            ["a"],
            [{}],
            [{"type": "no such type"}],
            [{"role": "no such role", "content": "a"}],
            [{"role": "user", "content": 5}],
        ],
    ),
    "text": ("responses", [{"format": 5}, {"format": {}}, {"format": {"type": "no such type"}}]),
    "stop": ("chat completions completion", ["a" * 5000, ["a", "b" * 5000]]),
    "logit_bias": (
        "chat completions completion infill messages responses",
        [
            {"5": 200},
            {"5": "1"},
            {"": 1},
            {"5": None},
            {"a": 101},
            [[5]],
            [[5, 1, 2]],
            [[None, 1]],
            [[-1, 1]],
            [[2**31, 1]],
        ],
    ),
    "samplers": ("chat completions completion", [["no such stage", "top_k", 5], [None]]),
    "mirostat": ("chat completions completion", [1]),
    "min_tokens": ("chat completions messages responses", [2]),
    "stop_token_ids": ("chat completions completion messages responses", [[-1], [2**31]]),
    "allowed_token_ids": ("chat completions completion messages responses", [[-1], [2**31]]),
    "bad_words": ("chat completions completion messages responses", [[""], ["a" * 5000]]),
    "tokens": ("detokenize", [[-1], [2**31]]),
    "thinking": ("chat apply-template", [{"type": "maybe"}, {"budget_tokens": "5"}]),
    "tool_choice": ("chat", [{"type": "function"}, {"type": "function", "function": {"name": "unknown"}}]),
    "response_format": ("chat completions completion", [{}, {"type": "no such type"}, {"type": 5}]),
    "grammar": ("chat completions completion messages responses", ["root ::= yes", "root ::= root", 'rot ::= "a"']),
    "ebnf": ("chat completions", ["root ::= yes"]),
    "guided_grammar": ("chat completions", ["root ::= yes"]),
    "json_schema": ("chat completions completion", [{"type": "objects"}, False]),
    "guided_json": ("chat completions", [{"type": "objects"}, "no JSON"]),
    "choice": ("chat completions completion", [[[]]]),
    "guided_choice": ("chat completions", [["yes", 3]]),
    "structured_outputs": (
        "chat completions completion",
        [{"json": {"type": "objects"}}, {"regex": "a", "choice": ["b"]}],
    ),
    "structural_tag": ("chat completions", [{"type": "structural_tag", "structures": 3}]),
    "regex": ("chat completions completion", ["(a", "a{3,1}"]),
    "guided_regex": ("chat completions", ["(a"]),
    "tools": (
        "chat apply-template",
        [[{}], [{"type": "function"}], [{"type": "function", "function": {}}], [{"name": ""}], [{"name": "n" * 300}]],
    ),
}
NO_JSON = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"-1e999",
    b"nan",
    b"'a'",
    b"01",
    b"+1",
    b".5",
    b"0x10",
    b"1.",
    b"tru",
    b"[1,]",
    b'{"a":}',
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'"\xff"',
    b'"\xc0\xaf"',
    b'"\xed\xa0\x80"',
    b'"a\x00"',
    b'"\\x41"',
    b'"\n"',
    b"123456789012345678901234567890",
    b"[" * 200 + b"]" * 200,
]
RAW = {"null": None, "bool": True, "integer": 5, "number": 0.5, "string": "a", "list": [], "object": {}}


def bad_values(row):
    """What the row's types, range, choices, items and sizes rule out."""
    types, out = set(row["types"]), []
    if not types & {"integer", "number"}:
        out += [0, 1, -1, 1.5, 1e17, -0.25, 2**53, 12345]
    elif row["types"] and "min" in row:
        low, high = row["min"], row["max"]
        out += [
            v for v in (low - 1, high + 1, low - 1e9, high + 1e9, -1e17, 1e18, -1e300, 1e300) if not low <= v <= high
        ]
        if "number" not in types:
            out += [v for v in (low + 0.5, 1e-9, -0.5) if v != int(v)]
    if "bool" not in types:
        out += [True, False]
    if "string" not in types:
        out += ["", "1", "true", "null", "a" * 10000, "\u2028"]
    elif row["choices"]:
        out += ["", "no such choice", "AUTO", "a" * 10000, row["choices"][0] + " ", "|".join(row["choices"][:2]) + "|"]
    if "list" not in types:
        out += [[], [1], [[]], ["a"], [None], [{}]]
    else:
        if row["items"]:
            out += [
                [value]
                for kind, value in RAW.items()
                if kind not in row["items"] and not (kind == "integer" and "number" in row["items"])
            ]
        if row.get("min_items"):
            out.append([])
        if row.get("max_items"):
            filler = RAW[row["items"][0]] if row["items"] else "a"
            out.append([filler] * (row["max_items"] + 1))
    if "object" not in types:
        out += [{}, {"a": 1}, {"type": "x"}]
    elif row.get("max_items"):
        out.append({str(i): 0 for i in range(row["max_items"] + 1)})
    return out


def put(body, name, value):
    """The body with the field; a dotted name is a member of an object."""
    outer, _, inner = name.partition(".")
    return body | {outer: {inner: value} if inner else value}


def message_and_param(endpoint, answer):
    """Anthropic's and Ollama's errors have no param: the message begins with the field."""
    error = answer["error"]
    if endpoint.startswith("ollama_"):
        assert set(answer) == {"error"} and isinstance(error, str), answer
        return error, None
    if endpoint in ("messages", "count_tokens"):
        assert answer["type"] == "error" and set(error) == {"type", "message"}, answer
        return error["message"], None
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error", answer
    return error["message"], error["param"]


class Refusals:
    """Requests on one connection, of which each must be refused."""

    def __init__(self, server):
        self.connection = server.connect()
        self.n = 0

    def expect(self, endpoint, raw, name, what):
        self.connection.request("POST", PATHS[endpoint], raw, JSON)
        r = self.connection.getresponse()
        answer = json.loads(r.read())
        assert r.status == 400, (endpoint, name, what, r.status, answer)
        message, param = message_and_param(endpoint, answer)
        # about a member: under its own name, or under that of the object that holds it
        outer = name.partition(".")[0]
        assert (
            param is None
            and ("messages" in PATHS[endpoint] or "/api/" in PATHS[endpoint])
            or param in (name, outer)
            or param.startswith(name + ".")
        ), (endpoint, name, what, answer)
        assert message.startswith((outer + ":", outer + ".", outer + "[")), (endpoint, name, what, answer)
        self.n += 1


@pytest.fixture(scope="module")
def server():
    s = Server("--threads", "1", "--kv-tokens", "16384", model=TINY)
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


@pytest.fixture
def refusals(server):
    r = Refusals(server)
    with contextlib.closing(r.connection):
        yield r


@pytest.mark.parametrize("endpoint", PATHS)
def test_every_parameter_refuses_twelve_bad_values_and_names_itself(refusals, endpoint):
    """F22"""
    for row in TABLE["parameters"]:
        if endpoint not in row["endpoints"]:
            continue
        bad = bad_values(row)
        assert len(bad) >= 12, (row["name"], len(bad))
        for name in [row["name"], *row["aliases"]]:
            endpoints, more = MORE.get(name, ("", []))
            for value in bad + (more if endpoint in endpoints.split() else []):
                raw = json.dumps(put(BASE[endpoint], name, value)).encode()
                refusals.expect(
                    endpoint, raw, name, value if len(str(value)) < 200 else f"{type(value).__name__}, long"
                )
    assert refusals.n > 0


@pytest.mark.parametrize("endpoint", PATHS)
def test_what_is_no_json_names_the_field_where_it_stands(refusals, endpoint):
    """F20, F22, F26: numbers out of every range, lone surrogates, broken UTF-8, NUL, depth, in place of each field's value."""
    for row in TABLE["parameters"]:
        name = row["name"]
        if endpoint not in row["endpoints"] or "." in name:
            continue
        rest = {k: v for k, v in BASE[endpoint].items() if k != name}
        for value in NO_JSON:
            before = json.dumps(rest).encode()[1:-1]
            raw = b"{" + before + (b"," if before else b"") + b'"' + name.encode() + b'":' + value + b"}"
            refusals.expect(endpoint, raw, name, value[:40])


@pytest.mark.parametrize("endpoint", PATHS)
def test_what_is_required_must_be_there_and_null_is_absent(server, refusals, endpoint):
    for row in TABLE["parameters"]:
        name = row["name"]
        if endpoint in row["required"]:
            rest = {k: v for k, v in BASE[endpoint].items() if k != name}
            refusals.expect(endpoint, json.dumps(rest).encode(), name, "missing")
            refusals.expect(endpoint, json.dumps(rest | {name: None}).encode(), name, "null")
    optional = [
        r["name"]
        for r in TABLE["parameters"]
        if endpoint in r["endpoints"] and "." not in r["name"] and r["name"] not in BASE[endpoint]
    ]
    body = BASE[endpoint] | dict.fromkeys(optional)
    if endpoint == "cache_name":  # nothing has that name: the body was taken
        assert server.post(PATHS[endpoint], body)[0] == 404
    elif endpoint == "infill":  # likewise; the model has no tokens for it
        assert "middle" in server.post(PATHS[endpoint], body)[1]["error"]["message"]
    else:
        server.ok(PATHS[endpoint], body)


def test_edges_of_ranges_are_taken(server):
    for endpoint in ("chat", "completions", "completion"):
        for row in TABLE["parameters"]:
            if endpoint not in row["endpoints"] or "min" not in row or "." in row["name"]:
                continue
            values = [row["min"], row["max"]]
            if row["name"] in ("n", "n_cmpl", "best_of"):
                values = [1]  # many choices belong together
            if row["name"] in ("top_logprobs", "max_tokens", "max_completion_tokens", "n_predict", "min_tokens"):
                values = [0]
            for v in values:
                v = min(int(v), 2**63 - 1) if float(v).is_integer() else v  # 2^63 - 1 has no double
                assert not math.isinf(v)
                server.ok(PATHS[endpoint], BASE[endpoint] | {row["name"]: v})


def test_unknown_fields_are_ignored_and_told(server):
    def told(path, body):
        status, headers, answer = server.request("POST", path, body)
        assert status == 200, answer
        return headers.get("x-radish-ignored-fields")

    assert told(PATHS["chat"], BASE["chat"]) is None
    assert told(PATHS["chat"], BASE["chat"] | {"temperature": 0, "mood": "good", "x.y": None}) == "mood, x.y"
    assert told(PATHS["tokenize"], {"content": "a", "temperature": 0}) == "temperature"
    assert told(PATHS["messages"], BASE["messages"] | {"n": 5, "stop": "x"}) == "n, stop"
    # no name can be more than a name, and the list is bounded
    assert told(PATHS["chat"], BASE["chat"] | {"a\r\nSet-Cookie: b=1": 1}) == "a%0D%0ASet-Cookie%3A%20b%3D1"
    assert told(PATHS["chat"], BASE["chat"] | {"\u00e9": 1, "": 2}) == "%C3%A9, "
    many = told(PATHS["chat"], BASE["chat"] | {f"field{i}": i for i in range(1000)})
    assert many.endswith(", and 984 more") and many.startswith("field0, field1, ") and len(many) < 1000
    assert len(told(PATHS["chat"], BASE["chat"] | {"n" * 100000: 1})) < 60
    # a stream and a refusal tell it too
    status, headers, _ = server.request("POST", PATHS["chat"], BASE["chat"] | {"stream": True, "mood": 1})
    assert status == 200 and headers["x-radish-ignored-fields"] == "mood"
    status, headers, _ = server.request("POST", PATHS["chat"], BASE["chat"] | {"n": 0, "mood": 1})
    assert status == 400 and headers["x-radish-ignored-fields"] == "mood"


def test_aliases_mean_the_same(server):
    for row in TABLE["parameters"]:
        for name in [row["name"], *row["aliases"]]:
            assert name and name.strip() == name and row["help"] and row["default"], row
    names = [(e, n) for r in TABLE["parameters"] for n in [r["name"], *r["aliases"]] for e in r["endpoints"]]
    assert len(names) == len(set(names)), "two rows for one field of one endpoint"
    one = server.ok(PATHS["completions"], {"prompt": "hi", "n_predict": 3, "repeat_penalty": 1.5, "temperature": 0})
    two = server.ok(
        PATHS["completions"], {"prompt": "hi", "max_completion_tokens": 3, "repetition_penalty": 1.5, "temperature": 0}
    )
    assert one["choices"] == two["choices"] and one["usage"]["completion_tokens"] == 3


def test_docs_are_the_tables():
    subprocess.run([sys.executable, ROOT / "tools/make-api-docs", "--check", BUILD / "radish"], check=True)
