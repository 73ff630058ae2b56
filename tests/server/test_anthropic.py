"""The Messages API: the anthropic package against the server, the exact events, what is refused and how."""

import json
import socket

import anthropic
import pytest
from radish_server import ROOT, Server

MESSAGES = "/v1/messages"
HI = [{"role": "user", "content": "Say hello."}]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
GREEDY = {"temperature": 0}


def client(s, key="none"):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{s.port}", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def coder():
    s = Server("--threads", "2", "--kv-tokens", "16384", model="qwen2.5-coder-0.5b")
    yield client(s)
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


@pytest.fixture(scope="module")
def thinker():
    s = Server(
        "--threads",
        "2",
        "--kv-tokens",
        "16384",
        "--chat-template",
        str(ROOT / "tests/server/think.jinja"),
        model="qwen2.5-coder-0.5b",
    )
    yield client(s)
    assert s.stop() == 0


def events(server, body):
    """[(event, data)] of a stream; each data's type is its event."""
    status, headers, raw = server.request(
        "POST", MESSAGES, {"messages": HI, "max_tokens": 8, "stream": True} | GREEDY | body
    )
    assert status == 200 and headers["content-type"] == "text/event-stream", raw
    out = []
    for frame in raw.decode().split("\n\n")[:-1]:
        if frame.startswith(":"):
            continue
        name, data = frame.split("\n")
        out.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        assert out[-1][0] == out[-1][1]["type"]
    return out


def test_message_shape(server):
    m = server.ok(
        MESSAGES,
        {"model": "smollm2", "messages": HI, "max_tokens": 6, "metadata": {"user_id": "u"}, "unknown": 1} | GREEDY,
    )
    assert (
        m["type"] == "message" and m["role"] == "assistant" and m["id"].startswith("msg_") and m["model"] == "smollm2"
    )
    assert (
        [b["type"] for b in m["content"]] == ["text"]
        and m["stop_reason"] == "max_tokens"
        and m["stop_sequence"] is None
    )
    assert m["usage"]["output_tokens"] == 6


def test_models_are_what_the_package_knows(server):
    c = client(server)
    for m in (c.models.list().data[0], c.models.retrieve("smollm2"), *c.models.list()):
        assert (m.id, m.type, m.display_name, m.lifecycle) == ("smollm2", "model", "smollm2", "active")
        assert m.max_input_tokens == 8192 and m.created_at.year > 2000
    assert c.models.list().has_more is False and c.models.list().last_id == "smollm2"


def test_stream_events_are_the_message(server):
    whole = server.ok(MESSAGES, {"messages": HI, "max_tokens": 8} | GREEDY)
    got = events(server, {})
    names = [n for n, _ in got if n != "ping"]
    n_deltas = names.count("content_block_delta")
    assert names == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * n_deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start = got[0][1]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]["output_tokens"] == 0
    assert "".join(d["delta"]["text"] for n, d in got if n == "content_block_delta") == whole["content"][0]["text"]
    end = got[-2][1]
    assert end["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None} and end["usage"]["output_tokens"] == 8
    assert start["usage"]["cache_read_input_tokens"] == end["usage"]["cache_read_input_tokens"] > 0


def test_the_package_streams(server):
    with client(server).messages.stream(
        model="smollm2", max_tokens=8, messages=HI, system="Be brief.", extra_body=GREEDY
    ) as s:
        text = "".join(s.text_stream)
        final = s.get_final_message()
    assert text and final.content[0].text == text and final.usage.output_tokens == 8


def test_usage_adds_up_and_marks_count_as_written(server):
    text = "Tell me about the number " + str(id(object())) + ". "
    marked = [{"role": "user", "content": [{"type": "text", "text": text * 4, "cache_control": {"type": "ephemeral"}}]}]
    total = server.ok(MESSAGES + "/count_tokens", {"messages": marked})["input_tokens"]
    plain = [{"role": "user", "content": text * 4}]
    used = [server.ok(MESSAGES, {"messages": m, "max_tokens": 1})["usage"] for m in (marked, marked, plain)]
    assert all(
        u["input_tokens"] + u["cache_creation_input_tokens"] + u["cache_read_input_tokens"] == total for u in used
    )
    assert used[0]["cache_creation_input_tokens"] > 20 and used[1]["cache_read_input_tokens"] > 20
    assert used[1]["cache_creation_input_tokens"] == used[2]["cache_creation_input_tokens"] == 0


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}, {"type": "none"}])
def test_a_call_that_is_begun_is_counted_too(server, choice):
    ask = {"messages": HI, "tools": [WEATHER], "tool_choice": choice}
    u = server.ok(MESSAGES, ask | {"max_tokens": 1})["usage"]
    total = u["input_tokens"] + u["cache_creation_input_tokens"] + u["cache_read_input_tokens"]
    assert server.ok(MESSAGES + "/count_tokens", ask)["input_tokens"] == total


def test_stop_sequences(server):
    ask = {
        "messages": [
            {"role": "user", "content": "Count: 1, 2, 3, 4, 5, 6, 7"},
            {"role": "assistant", "content": "1, 2, 3, 4,"},
        ],
        "max_tokens": 30,
    } | GREEDY
    whole = server.ok(MESSAGES, ask)["content"][0]["text"]
    cut = whole[4:7]
    m = server.ok(MESSAGES, ask | {"stop_sequences": [cut, "zebra"]})
    assert m["stop_reason"] == "stop_sequence" and m["stop_sequence"] == cut
    assert m["content"][0]["text"] == whole[: whole.index(cut)]


def test_every_block_reaches_the_template(server):
    seen = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "One"},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Doc"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Two"},
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Bern"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "is_error": True,
                    "content": [{"type": "text", "text": "Rain"}],
                },
                {"type": "tool_result", "tool_use_id": "toolu_1"},
                {"type": "text", "text": "Three"},
            ],
        },
        {"role": "ctx", "content": "Four"},
        {"role": "system", "content": "Five"},
        {"role": "user", "content": []},
    ]
    chat = [
        {"role": "system", "content": "Sys"},
        {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Doc"}]},
        {
            "role": "assistant",
            "content": "Two",
            "reasoning_content": "Hm",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain"},
        {"role": "tool", "tool_call_id": "call_1", "content": ""},
        {"role": "user", "content": "Three"},
        {"role": "user", "content": "Four"},
        {"role": "system", "content": "Five"},
        {"role": "user", "content": ""},
    ]
    tools = [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": WEATHER["description"],
                "parameters": WEATHER["input_schema"],
            },
        }
    ]
    n = server.ok(
        MESSAGES + "/count_tokens",
        {
            "system": [{"type": "text", "text": "Sys"}],
            "messages": seen,
            "tools": [WEATHER, {"type": "web_search_20250305", "name": "web_search"}],
        },
    )["input_tokens"]
    assert (
        n
        == server.ok(
            "/tokenize", {"messages": chat, "tools": tools, "chat_template_kwargs": {"enable_thinking": False}}
        )["count"]
    )
    assert server.ok(MESSAGES, {"messages": seen, "max_tokens": 1})["usage"]["output_tokens"] == 1


def test_agent_traffic(coder):
    """A turn as Claude Code sends it: beta query and headers, marked blocks, tools of all types, a history with everything."""

    def tool(i):
        return {
            "name": f"Tool{i}",
            "description": "Does a thing.",
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "additionalProperties": False,
            },
            "eager_input_streaming": True,
        }

    mark = {"type": "ephemeral", "ttl": "1h"}
    body = {
        "model": "",
        "max_tokens": 12,
        "system": [
            {"type": "text", "text": "You are an agent.", "cache_control": mark},
            {"type": "text", "text": "Env: x"},
        ],
        "tools": [
            *(tool(i) for i in range(4)),
            {"type": "custom", **WEATHER, "cache_control": mark, "defer_loading": True},
            {"type": "bash_20250124", "name": "bash"},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>x</system-reminder>"},
                    {"type": "text", "text": "Read a.txt", "cache_control": mark},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm", "signature": "EqQB"},
                    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
                    {"type": "text", "text": "I read."},
                    {"type": "tool_use", "id": "toolu_01", "name": "Tool0", "input": {"path": "a"}},
                    {"type": "tool_use", "id": "toolu_02", "name": "Tool1", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_01", "content": "one"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_02",
                        "content": [{"type": "tool_reference", "tool_name": "Tool2"}],
                        "is_error": False,
                        "cache_control": mark,
                    },
                    {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "two"}]}},
                    {
                        "type": "search_result",
                        "source": "x",
                        "title": "y",
                        "content": [{"type": "text", "text": "three"}],
                    },
                    {"type": "text", "text": "Go on"},
                ],
            },
        ],
        "metadata": {"user_id": "user_1"},
        "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14"],
    }
    more = {
        "extra_body": GREEDY
        | {
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "medium"},
            "speed": "standard",
        }
    }
    m = coder.beta.messages.create(**body, **more, thinking={"type": "adaptive"})
    assert m.type == "message" and 0 < m.usage.output_tokens <= 12
    with coder.beta.messages.stream(**body, **more, thinking={"type": "adaptive"}) as s:
        final = s.get_final_message()
    assert [b.type for b in final.content] == [b.type for b in m.content] and final.usage.cache_read_input_tokens > 100
    n = coder.beta.messages.count_tokens(
        **{k: v for k, v in body.items() if k not in ("max_tokens", "metadata")}, thinking={"type": "adaptive"}
    ).input_tokens
    assert n == sum((m.usage.input_tokens, m.usage.cache_creation_input_tokens, m.usage.cache_read_input_tokens))


def test_tools_round_trip(coder):
    m = coder.messages.create(
        model="", max_tokens=80, tools=[WEATHER], tool_choice={"type": "any"}, messages=ASK, extra_body=GREEDY
    )
    call = m.content[-1]
    assert (
        m.stop_reason == "tool_use"
        and call.type == "tool_use"
        and call.id.startswith("toolu_")
        and "Paris" in call.input["city"]
    )
    with coder.messages.stream(
        model="",
        max_tokens=80,
        tools=[WEATHER],
        tool_choice={"type": "tool", "name": "get_weather"},
        messages=ASK,
        extra_body=GREEDY,
    ) as s:
        pieces = [e.partial_json for e in s if e.type == "input_json"]
        final = s.get_final_message()
    assert json.loads("".join(pieces)) == final.content[-1].input == call.input and final.stop_reason == "tool_use"
    history = ASK + [
        {"role": "assistant", "content": m.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "17 degrees"}]},
    ]
    answer = coder.messages.create(
        model="", max_tokens=40, tools=[WEATHER], tool_choice={"type": "none"}, messages=history, extra_body=GREEDY
    )
    assert answer.content[0].type == "text" and answer.content[0].text
    cut = coder.messages.create(
        model="", max_tokens=12, tools=[WEATHER], tool_choice={"type": "any"}, messages=ASK, extra_body=GREEDY
    )
    assert cut.stop_reason == "max_tokens" and cut.content[-1].type == "tool_use"


def test_thinking_is_a_block_before_the_text(thinker):
    ask = {
        "model": "",
        "max_tokens": 40,
        "messages": [{"role": "user", "content": "What is 17 + 25?"}],
        "extra_body": GREEDY,
    }
    m = thinker.messages.create(thinking={"type": "enabled", "budget_tokens": 5}, **ask)
    assert [b.type for b in m.content] == ["thinking", "text"] and m.content[0].thinking and m.content[0].signature
    assert 0 < m.usage.output_tokens_details.thinking_tokens < m.usage.output_tokens
    with thinker.messages.stream(thinking={"type": "enabled", "budget_tokens": 5}, **ask) as s:
        kinds = [e.delta.type for e in s if e.type == "content_block_delta"]
        final = s.get_final_message()
    assert kinds.index("signature_delta") == kinds.index("text_delta") - 1 and kinds[0] == "thinking_delta"
    assert [(b.type, getattr(b, "text", None) or b.thinking) for b in final.content] == [
        (b.type, getattr(b, "text", None) or b.thinking) for b in m.content
    ]
    for off in ({}, {"thinking": {"type": "disabled"}}):
        assert [b.type for b in thinker.messages.create(**ask, **off).content] == ["text"]
    again = thinker.messages.create(
        **ask | {"messages": ask["messages"] + [{"role": "assistant", "content": m.content}, HI[0]]}
    )
    assert again.content[0].text


BAD = [
    ("messages", v)
    for v in (
        None,
        "x",
        3,
        {},
        [],
        ["x"],
        [{}],
        [{"role": "user"}],
        [{"role": "robot", "content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{}]}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "hologram"}]}],
        [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": ""}}]}],
        [{"role": "user", "content": [{"type": "tool_result"}]}],
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": 3}]}],
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": [{}]}]}],
        [{"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "y", "input": {}}]}],
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "y", "input": []}]}],
        [{"role": "assistant", "content": [{"type": "thinking"}]}],
    )
]
BAD += [("max_tokens", v) for v in (None, "x", -1, 1.5, [], {}, True, 1 << 40)]
BAD += [("system", v) for v in (3, {}, [3], [{"type": "text"}], [{"type": "image"}], True)]
BAD += [("tools", v) for v in ("x", {}, [3], [{}], [{"name": "a"}], [{"name": "", "input_schema": {}}], [{"type": 3}])]
BAD += [
    ("tool_choice", v)
    for v in (
        "auto",
        3,
        {},
        {"type": "maybe"},
        {"type": "tool"},
        {"type": "any"},
        {"type": "tool", "name": "nobody"},
        {"type": "auto", "disable_parallel_tool_use": 1},
    )
]
BAD += [
    ("thinking", v)
    for v in (
        "x",
        3,
        {},
        {"type": "loud"},
        {"type": "enabled", "budget_tokens": "x"},
        {"type": "enabled", "budget_tokens": 0},
    )
]
BAD += [("stop_sequences", v) for v in ("x", 3, {}, [3], [None], ["x"] * 65)]
BAD += [(name, v) for name in ("temperature", "top_p", "top_k") for v in ("x", [], {}, True, -2)]
BAD += [
    ("top_p", 1.5),
    ("stream", "x"),
    ("stream", 1),
    ("metadata", "x"),
    ("metadata", []),
    ("model", 3),
    ("output_config", 3),
    ("output_config", {"effort": 3}),
    ("output_config", {"format": 3}),
    ("service_tier", 3),
]


NOT_COUNTED = (
    "stop_sequences",
    "temperature",
    "top_p",
    "top_k",
    "stream",
    "metadata",
    "service_tier",
)  # ignored by count_tokens


@pytest.mark.parametrize("path", [MESSAGES, MESSAGES + "/count_tokens"])
def test_what_is_wrong_is_named(server, path):
    for name, bad in BAD:
        if path != MESSAGES and (name in NOT_COUNTED or (name, bad) == ("max_tokens", None)):
            continue
        status, answer = server.post(path, {"messages": HI, "max_tokens": 4} | {name: bad})
        assert status == 400 and answer["type"] == "error" and set(answer) == {"type", "error"}, (name, bad, answer)
        assert answer["error"]["type"] == "invalid_request_error" and set(answer["error"]) == {"type", "message"}
        assert name in answer["error"]["message"], (name, bad, answer)


def test_errors_in_their_shape(server, make_server):
    c = client(server)
    with pytest.raises(anthropic.NotFoundError):
        c.messages.create(model="other", max_tokens=1, messages=HI)
    long = [{"role": "user", "content": "word " * 9000}]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        c.messages.create(model="", max_tokens=1, messages=long)
    status, headers, body = server.request("POST", MESSAGES, b"{", {"Content-Type": "application/json"})
    assert status == 400 and json.loads(body)["type"] == "error"
    status, _, body = server.request("GET", MESSAGES)
    assert status == 405 and json.loads(body)["error"]["type"] == "invalid_request_error"
    locked = make_server("--api-key", "secret", "--kv-tokens", "4096")
    with pytest.raises(anthropic.AuthenticationError):
        client(locked, "wrong").messages.create(model="", max_tokens=1, messages=HI)
    assert client(locked, "secret").messages.create(model="", max_tokens=1, messages=HI).usage.output_tokens == 1


def test_leaving_in_mid_stream_frees_everything(server):
    for n in (1, 200, 1200):
        s = server.open_request(MESSAGES, {"messages": HI, "max_tokens": 4000, "stream": True, "ignore_eos": True})
        seen = b""
        while len(seen) < n:
            seen += s.recv(n - len(seen))
        s.shutdown(socket.SHUT_RDWR)
        s.close()
    server.wait_idle()
