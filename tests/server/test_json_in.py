"""Request bodies as JSON: what passes through them whole, what they may cost in time and memory (F20, F21, F90).

Costs are compared with each other, never with a clock: of twice as many fields, or of fields that have the same size.
"""

import json

import pytest
from radish_server import TINY, Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hi"}
HUGE = (2**63, 2**64 - 1, 12345678901234567890, -(2**63) - 1, 10**40)


@pytest.fixture(scope="module")
def tiny():
    s = Server("--threads", "1", "--kv-tokens", "4096", "--ctx", "64", model=TINY)
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def memory_mib(server, line):
    with open(f"/proc/{server.process.pid}/status") as f:
        return next(int(row.split()[1]) / 1024 for row in f if row.startswith(line))


def cost(server, path, body, status, rounds=5):
    """Seconds of the processor for the cheapest of some such requests."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    times = []
    for _ in range(rounds):
        before = server.cpu_s()
        got, _, answer = server.request("POST", path, data)
        assert got == status, answer[:300]
        times.append(server.cpu_s() - before)
    return min(times)


# ---- what passes through ----


@pytest.mark.parametrize(
    "path,body",
    [
        (CHAT, {"messages": [{"role": "user", "content": "a\0b"}], "max_tokens": 1}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a\0b"}]}], "max_tokens": 1}),
        (
            CHAT,
            {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":"\\u0000"}'}}
                        ],
                    },
                    {"role": "tool", "tool_call_id": "c", "content": "\0\0"},
                ],
                "max_tokens": 1,
            },
        ),
        (TEXT, {"prompt": "a\0b", "max_tokens": 1}),
        (TEXT, {"prompt": ["a\0b", "\0"], "max_tokens": 1}),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a\0b"}]}], "max_tokens": 1},
        ),
        (
            "/v1/messages",
            {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "i", "name": "f", "input": {"a": "\0"}}],
                    },
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": "a\0b"}]},
                ],
                "max_tokens": 1,
            },
        ),
        ("/v1/responses", {"input": "a\0b", "max_output_tokens": 1}),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "a\0b"}], "stream": False, "options": {"num_predict": 1}},
        ),
        ("/api/generate", {"prompt": "a\0b", "stream": False, "options": {"num_predict": 1}}),
        ("/v1/embeddings", {"input": ["a\0b"]}),
        ("/v1/rerank", {"query": "a\0b", "documents": ["\0", "b"]}),
        ("/classify", {"input": "a\0b", "labels": ["\0", "b"]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a\0b"}]}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_NUL_character_in_a_content_is_taken(server, path, body):
    server.ok(path, body)


def test_a_NUL_character_reaches_the_prompt_and_comes_back(server):
    text = "a\0b\0"
    prompt = server.ok("/apply-template", {"messages": [{"role": "user", "content": text}]})["prompt"]
    assert text in prompt
    assert (
        server.ok("/apply-template", {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]})[
            "prompt"
        ]
        == prompt
    )
    ids = server.ok("/tokenize", {"content": text})["tokens"]
    assert server.ok("/detokenize", {"tokens": ids})["content"] == text
    r = server.ok("/v1/responses", {"input": text, "max_output_tokens": 1})
    assert server.get(f"/v1/responses/{r['id']}/input_items")[1]["data"][0]["content"][0]["text"] == text
    thinking = [
        {"type": "thinking", "thinking": "a\0"},
        {"type": "thinking", "thinking": "b"},
        {"type": "text", "text": "c"},
    ]
    n = [
        server.ok("/v1/messages/count_tokens", {"messages": [USER, {"role": "assistant", "content": c}, USER]})[
            "input_tokens"
        ]
        for c in (thinking, [{"type": "thinking", "thinking": "a"}, *thinking[1:]])
    ]
    assert n[0] >= n[1]


@pytest.mark.parametrize(
    "field,value",
    [
        ("model", "radish\0"),
        ("stop", "a\0"),
        ("stop", ["a\0"]),
        ("cache_salt", "a\0"),
        ("bad_words", ["\0"]),
        ("tool_choice", "none\0"),
        ("messages", [{"role": "user\0", "content": "a"}]),
        ("messages", [{"role": "user", "content": [{"type": "text\0", "text": "a"}]}]),
        ("tools", [{"type": "function", "function": {"name": "f\0g"}}]),
        ("prompt_cache_key", "\0"),
    ],
)
def test_a_NUL_character_in_a_name_is_refused(tiny, field, value):
    status, answer = tiny.post(CHAT, {"messages": [USER], "max_tokens": 1} | {field: value})
    assert status == 400 and answer["error"]["param"] == field, answer


WRITTEN = [
    *map(str, HUGE),
    "9223372036854775807",
    "1e400",
    "-1E+400",
    "0.10000000000000000000001",
    "0.10",
    "-0",
    "-0.0",
    "1E5",
]


@pytest.mark.parametrize("n", WRITTEN)
def test_a_number_that_is_only_passed_on_stays_as_it_was_written(server, n):
    """In the prompt: a tool's schema, a call's arguments, a result; in what is echoed."""
    chat = (
        '{"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"c","type":"function",'
        '"function":{"name":"f","arguments":{"a":[%s]}}}]}],"tools":[{"type":"function","function":{"name":"f",'
        '"parameters":{"type":"object","properties":{"a":{"type":"number","maximum":%s}}}}}]}' % (n, n)
    )
    status, _, answer = server.request("POST", "/apply-template", chat.encode())
    prompt = json.loads(answer)["prompt"]
    assert status == 200 and '"maximum": %s}' % n in prompt and '"arguments": {"a": [%s]}' % n in prompt, prompt
    body = '{"input":"a","metadata":{"n":%s},"max_output_tokens":1}' % n
    status, _, answer = server.request("POST", "/v1/responses", body.encode())
    assert status == 200 and b'"metadata":{"n":%s}' % n.encode() in answer, answer
    status, _, again = server.request("GET", "/v1/responses/%s" % json.loads(answer)["id"])
    assert status == 200 and b'"metadata":{"n":%s}' % n.encode() in again, again


def test_a_long_number_in_a_call_of_messages_is_counted_whole(server):
    def count(n):
        call = {"type": "tool_use", "id": "i", "name": "f", "input": {"a": n}}
        body = {"messages": [USER, {"role": "assistant", "content": [call]}, USER]}
        return server.ok("/v1/messages/count_tokens", body)["input_tokens"]

    assert count(int("123456789" * 8)) == count("123456789" * 8) - 2 or count(int("123456789" * 8)) > count(1) + 20


def test_integers_beyond_64_bits_pass_where_they_are_only_passed_on(server):
    for n in HUGE:
        tool = {
            "type": "function",
            "function": {
                "name": "f",
                "parameters": {"type": "object", "properties": {"a": {"type": "integer", "maximum": n}}},
            },
        }
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": n}}}
        server.ok(
            CHAT,
            {
                "messages": [
                    USER,
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c", "content": "b"},
                ],
                "tools": [tool],
                "max_tokens": 1,
            },
        )
        server.ok(
            "/v1/messages",
            {
                "messages": [USER],
                "tools": [{"name": "f", "input_schema": tool["function"]["parameters"]}],
                "max_tokens": 1,
            },
        )
    for field in ("seed", "max_tokens", "top_k", "n", "temperature", "logit_bias"):
        for n in (str(2**64), "1e400", "-1e400"):
            value = '{"1":%s}' % n if field == "logit_bias" else n
            body = '{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"%s":%s}' % (field, value)
            status, _, answer = server.request("POST", CHAT, body.replace('"max_tokens":1,"max', '"max').encode())
            assert status == 400 and json.loads(answer)["error"]["param"] == field, answer
    for field in ("stop_token_ids", "allowed_token_ids"):
        status, answer = server.post(CHAT, {"messages": [USER], "max_tokens": 1, field: [2**64]})
        assert status == 400 and answer["error"]["param"] == field, answer


# ---- time ----


def test_F21_a_field_that_no_row_names_costs_no_more_than_one_inside_a_field(tiny):
    fields = {f"field_{i}": 1 for i in range(60000)}
    base = {"messages": [{"role": "user"}]}
    outside, inside = cost(tiny, CHAT, base | fields, 400), cost(tiny, CHAT, base | {"metadata": fields}, 400)
    assert outside < 6 * inside, (outside, inside)


def test_F21_unknown_fields_are_told_and_counted(tiny):
    fields = {f"field_{i}": 1 for i in range(5000)}
    for path, body in (
        (CHAT, {"messages": [USER], "max_tokens": 1}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 1}),
    ):
        _, headers, _ = tiny.request("POST", path, body | fields)
        told = headers["x-radish-ignored-fields"]
        assert told.startswith("field_0, field_1, ") and told.endswith(f", and {5000 - 16} more")


def test_F21_a_list_of_allowed_tools_takes_linear_time(tiny):
    """A hundred times as many tools beside it: the list's own length decides."""

    def choose(n_tools):
        tools = [{"type": "function", "function": {"name": f"tool_{i}"}} for i in range(n_tools)]
        allowed = [{"type": "function", "function": {"name": f"tool_{n_tools - 1 - i % 10}"}} for i in range(30000)]
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed}}
        return cost(
            tiny,
            CHAT,
            {"messages": [{"role": "user", "content": "a" * 5000}], "tools": tools, "tool_choice": choice},
            400,
        )

    few, many = choose(10), choose(1000)
    assert many < 4 * few, (few, many)


def test_F21_many_blocks_of_thinking_take_linear_time(tiny):
    def think(n):
        blocks = [{"type": "thinking", "thinking": "a" * 40}] * n
        return cost(
            tiny,
            "/v1/messages",
            {"messages": [{"role": "assistant", "content": [*blocks, {"type": "nonsense"}]}], "max_tokens": 1},
            400,
        )

    few, many = think(6000), think(60000)
    assert many < 40 * few, (few, many)  # of ten times as many; each with each would be a hundred


# ---- memory ----

BOMBS = {
    "objects": (b'{"x":[', b"{},", b"{}]}"),
    "lists": (b'{"x":[', b"[],", b"[]]}"),
    "numbers": (b'{"x":[', b"1,", b"1]}"),
    "strings": (b'{"x":[', b'"",', b'""]}'),
    "messages": (b'{"messages":[', b"{},", b"{}]}"),
    "nested": (b'{"x":[', b'[[[{"a":[{}]}]]],', b"1]}"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_F20_a_body_of_many_values_is_refused_before_it_is_built(tiny, name):
    head, unit, tail = BOMBS[name]
    body = head + unit * ((10 << 20) // len(unit)) + tail
    tiny.post(CHAT, body)
    before = memory_mib(tiny, "VmHWM")
    status, answer = tiny.post(CHAT, body)
    assert (
        status == 400 and "at most" in answer["error"]["message"] and answer["error"]["param"] == head[2:-3].decode()
    ), answer
    assert memory_mib(tiny, "VmHWM") - before < 1 and memory_mib(tiny, "VmHWM") < 120


def test_F90_labels_that_are_too_many_are_given_back(tiny):
    """Each refused request left its label's tokens behind: 4 bytes for each."""
    body = {"input": "a", "labels": ["b" * 1_000_000]}
    for _ in range(3):
        assert "at most 4096 tokens" in tiny.post("/classify", body)[1]["error"]["message"]
    before = memory_mib(tiny, "RssAnon")
    for _ in range(20):
        tiny.post("/classify", body)
    assert memory_mib(tiny, "RssAnon") - before < 30


def test_classify_refuses_an_input_that_no_context_holds_before_it_is_multiplied(tiny):
    labels = [[1, i % 90, i // 90] for i in range(500)]
    before = memory_mib(tiny, "VmHWM")
    status, answer = tiny.post("/classify", {"input": [1] * 300_000, "labels": labels})
    assert (
        status == 400 and answer["error"]["code"] == "context_length_exceeded" and answer["error"]["param"] == "input"
    ), answer
    assert memory_mib(tiny, "VmHWM") - before < 80
