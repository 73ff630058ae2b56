"""What the server says of itself is true: ignored fields, refusals, causes of misses, tenants' numbers, the log."""

import json
import re

import pytest
from radish_server import TINY

CHAT, RESPONSES, MESSAGES, EXPLAIN = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/cache/explain"
SCHEMA = {"type": "object", "properties": {}}
ASK = [{"role": "user", "content": "Hi"}]
SHORT = {"max_tokens": 1, "temperature": 0}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


def ignored(server, path, body):
    status, headers, answer = server.request("POST", path, body)
    assert status == 200, answer
    return headers.get("x-radish-ignored-fields")


def result(i):
    return {"role": "tool", "tool_call_id": f"call_{i}", "content": "1"}


def test_a_strict_function_is_told_where_it_cannot_be_held(make_server, server):
    """Where calls are Python; in all other forms they are held to their schemas, and nothing is told."""
    held, server = server, make_server("--threads", "1", "--kv-tokens", "8192", "--tool-parser", "pythonic")
    f = {"name": "f", "parameters": SCHEMA, "strict": True}
    body = SHORT | {"messages": ASK, "tools": [{"type": "function", "function": f}]}
    assert ignored(server, CHAT, body) == "tools.function.strict"
    assert (
        ignored(
            server,
            "/api/chat",
            {"model": "", "messages": ASK, "stream": False, "options": {"num_predict": 1}, "tools": body["tools"]},
        )
        == "tools.function.strict"
    )
    assert (
        ignored(server, RESPONSES, {"input": "Hi", "max_output_tokens": 1, "tools": [f | {"type": "function"}]})
        == "tools.strict"
    )
    assert (
        ignored(
            server,
            MESSAGES,
            {"messages": ASK, "max_tokens": 1, "tools": [{"name": "f", "input_schema": SCHEMA, "strict": True}]},
        )
        == "tools.strict"
    )
    assert ignored(held, CHAT, body) is None
    body["tools"][0]["function"] = f | {"strict": False}
    assert ignored(server, CHAT, body) is None


@pytest.mark.parametrize(
    "path,body,param",
    [
        (
            CHAT,
            {"messages": ASK, "tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]},
            "tools[0].function.parameters",
        ),
        (
            CHAT,
            {
                "messages": ASK,
                "tools": [
                    {"type": "function", "function": {"name": "e"}},
                    {"type": "function", "name": "f", "parameters": []},
                ],
            },
            "tools[1].parameters",
        ),
        (
            RESPONSES,
            {"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": 3}]},
            "tools[0].parameters",
        ),
        (
            MESSAGES,
            {"messages": ASK, "max_tokens": 1, "tools": [{"name": "f", "input_schema": "x"}]},
            "tools.0.input_schema",
        ),
        (
            "/api/chat",
            {"messages": ASK, "tools": [{"type": "function", "function": {"name": "f", "parameters": True}}]},
            "tools[0].function.parameters",
        ),
    ],
)
def test_parameters_that_are_no_object(server, path, body, param):
    status, answer = server.post(path, body)
    assert status == 400 and param in json.dumps(answer), answer
    if path in (CHAT, RESPONSES):
        assert answer["error"]["param"] == param


def test_unknown_roles_and_orphans_are_told(server):
    assert (
        ignored(server, CHAT, SHORT | {"messages": [*ASK, {"role": "narrator", "content": "x"}, *ASK]})
        == "messages[1].role"
    )
    assert ignored(server, CHAT, SHORT | {"messages": [*ASK, CALL, result(1)]}) is None
    assert ignored(server, CHAT, SHORT | {"messages": [*ASK, CALL, result(1), result(2)]}) == "messages[3].tool_call_id"
    many = ignored(server, CHAT, SHORT | {"messages": [*ASK, *[result(i) for i in range(40)]]})
    assert many.startswith("messages[1].tool_call_id, messages[2]") and many.endswith("and 24 more")
    block = {"type": "tool_result", "tool_use_id": "toolu_9", "content": "1"}
    assert (
        ignored(server, MESSAGES, {"max_tokens": 1, "messages": [{"role": "user", "content": [block]}]})
        == "messages[0].content[0].tool_use_id"
    )
    item = {"type": "function_call_output", "call_id": "c", "output": "1"}
    assert ignored(server, RESPONSES, {"input": [item], "max_output_tokens": 1}) == "input[0].call_id"
    own = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    assert ignored(server, RESPONSES, {"input": [own, item], "max_output_tokens": 1}) is None


def test_keep_alive_0_does_not_claim_an_unload(server):
    status, headers, answer = server.request("POST", "/api/generate", {"model": "", "keep_alive": 0})
    assert status == 200 and json.loads(answer)["done_reason"] == "load"
    assert headers["x-radish-ignored-fields"] == "keep_alive"
    assert server.ok("/api/generate", {"model": ""})["done_reason"] == "load"


def test_rerank_scores_are_in_range_and_cohere_finds_them(server):
    body = {
        "query": "What is the capital of France?",
        "documents": ["What is the capital of France?", "bread", "\n", "-", "0", "%%%"],
    }
    answer = server.ok("/v2/rerank", body | {"model": "smollm2", "max_tokens_per_doc": 4096})
    scores = [r["relevance_score"] for r in answer["results"]]
    assert (
        all(0 <= s <= 1 for s in scores)
        and scores == sorted(scores, reverse=True)
        and answer["results"][0]["index"] == 0
    )
    assert answer["meta"]["api_version"]["version"] == "2" and answer["id"]
    assert server.ok("/v1/rerank", body)["meta"]["api_version"]["version"] == "1"


# ---- the cache ----


def grow(server, turns, **more):
    messages, causes = [{"role": "system", "content": "You count."}], []
    for i in range(turns):
        messages.append({"role": "user", "content": f"What comes after {i}?"})
        answer = server.ok(CHAT, {"messages": messages, "max_tokens": 6, "temperature": 0} | more)
        messages.append(answer["choices"][0]["message"])
        causes.append(answer["timings"]["cache_miss"])
    return messages, causes


def test_a_healthy_turn_is_no_difference(server):
    server.request("DELETE", "/v1/cache")
    messages, causes = grow(server, 4)
    assert causes[0] in ("new", "cleared") and set(causes[1:]) == {"new_end"}
    assert server.ok(CHAT, SHORT | {"messages": messages[:-1]})["timings"]["cache_miss"] == "none"
    changed = [*messages[:2], {"role": "assistant", "content": "Elephants."}, *messages[3:]]
    assert server.ok(CHAT, SHORT | {"messages": changed})["timings"]["cache_miss"] == "different"
    assert server.stats()["misses"]["new_end"] >= 3


def test_every_body_is_explained(server):
    server.request("DELETE", "/v1/cache")
    tool = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}
    bodies = [
        (
            RESPONSES,
            {
                "input": "Say one word of Rome.",
                "instructions": "Be brief.",
                "tools": [tool],
                "max_output_tokens": 2,
                "temperature": 0,  # the turn after it is asked for below: a drawn one may begin a call, which is dropped
            },
        ),
        (
            MESSAGES,
            {
                "system": "Be a clerk.",
                "messages": [{"role": "user", "content": "A word?"}],
                "max_tokens": 2,
                "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
            },
        ),
        (
            "/api/chat",
            {
                "model": "",
                "messages": [{"role": "user", "content": "Ollama asks."}],
                "stream": False,
                "options": {"num_predict": 2},
            },
        ),
        (
            "/api/generate",
            {"model": "", "prompt": "Ollama says.", "system": "Be.", "stream": False, "options": {"num_predict": 2}},
        ),
    ]
    for path, body in bodies:
        x = server.ok(EXPLAIN, body)
        assert x["cause"] != "none" and x["prompt_tokens"] > x["stored_tokens"]
        server.ok(path, body)
        y = server.ok(EXPLAIN, body)
        assert (y["cause"], y["stored_tokens"], y["difference"]) == ("none", x["prompt_tokens"], None)
    first = server.ok(RESPONSES, bodies[0][1])
    follow = {
        "input": "Another.",
        "previous_response_id": first["id"],
        "instructions": "Be brief.",
        "tools": [tool],
        "max_output_tokens": 1,
    }
    assert server.ok(EXPLAIN, follow)["cause"] == "new_end"
    other = server.ok(EXPLAIN, bodies[1][1] | {"system": "Be a cook."})["difference"]
    assert other["part"] == "system" and "cook" in other["sent"]
    for bad in (
        {"input": 3},
        {"input": "x", "previous_response_id": "resp_0"},
        {"system": "x", "messages": [{"role": "nobody", "content": "x"}]},
        {"options": {}, "messages": []},
    ):
        assert server.post(EXPLAIN, bad)[0] in (400, 404), bad


STREAMS = [
    (CHAT, {"messages": ASK, "max_tokens": 2}),
    ("/v1/completions", {"prompt": "Hi there, all of you", "max_tokens": 2}),
    (RESPONSES, {"input": "Hi there, all of you", "max_output_tokens": 2}),
    (MESSAGES, {"messages": ASK, "max_tokens": 2}),
    ("/api/chat", {"messages": ASK, "options": {"num_predict": 2}}),
]


@pytest.mark.parametrize(("path", "body"), STREAMS, ids=[path for path, _ in STREAMS])
def test_a_stream_tells_behind_it_what_the_cache_did(server, path, body):
    """The trailer of a stream says what the header of the same answer as a whole does, and only to who takes trailers."""
    raw = json.dumps(body | {"stream": True}).encode()

    def stream(*headers, version=b"1.1"):
        request = server.post_bytes(path, raw, [*headers, "Connection: close"])
        head, _, rest = server.raw(request.replace(b"HTTP/1.1", b"HTTP/" + version, 1)).partition(b"\r\n\r\n")
        return head.lower(), rest

    server.ok(path, body | {"stream": False})  # from now on all of it is stored
    whole = server.request("POST", path, body | {"stream": False})[1]["x-radish-cache"]
    head, rest = stream("TE: gzip, trailers")
    assert b"trailer: x-radish-cache" in head
    assert rest.endswith(b"\r\n0\r\nX-Radish-Cache: " + whole.encode() + b"\r\n\r\n"), rest[-200:]
    for headers, version in (((), b"1.1"), (("TE: gzip",), b"1.1"), (("TE: trailers",), b"1.0")):
        head, rest = stream(*headers, version=version)
        assert b"trailer" not in head and b"X-Radish-Cache" not in rest
        assert rest.endswith(b"\r\n0\r\n\r\n") == (version == b"1.1")


def test_an_answer_is_explained_after_the_fact(server, make_server, tmp_path):
    server.request("DELETE", "/v1/cache")
    status, headers, body = server.request("POST", CHAT, SHORT | {"messages": ASK})
    answer = json.loads(body)
    n = answer["usage"]["prompt_tokens"]
    cause = answer["timings"]["cache_miss"]
    assert cause in ("new", "cleared") and headers["x-radish-cache"] == f"prompt={n}; cached=0; cause={cause}"
    x = server.ok(EXPLAIN, {"response_id": answer["id"]})
    assert (x["prompt_tokens"], x["cached_tokens"], x["lost_tokens"], x["cause"]) == (n, 0, n, cause)
    chunk = server.stream(CHAT, SHORT | {"messages": ASK})[0]
    assert server.ok(EXPLAIN, {"response_id": chunk["id"]})["cause"] == "none"
    for path, body in (
        (RESPONSES, {"input": "Hi", "max_output_tokens": 1}),
        (MESSAGES, {"messages": ASK, "max_tokens": 1}),
        ("/v1/completions", {"prompt": "Hi there", "max_tokens": 1}),
    ):
        assert server.ok(EXPLAIN, {"response_id": server.ok(path, body)["id"]})["prompt_tokens"] > 0
    assert (
        server.post(EXPLAIN, {"response_id": "chatcmpl-1"})[0] == 404
        and server.post(EXPLAIN, {"response_id": 1})[0] == 404
    )
    keys = tmp_path / "keys"
    keys.write_text("alice-key\nbob-key\n")
    s = make_server("--api-key-file", str(keys), "--threads", "1", "--kv-tokens", "1024", model=TINY)
    alice, bob = {"Authorization": "Bearer alice-key"}, {"Authorization": "Bearer bob-key"}
    own = s.post("/v1/completions", {"prompt": [5, 6], "max_tokens": 1}, alice)[1]["id"]
    assert (
        s.post(EXPLAIN, {"response_id": own}, alice)[0] == 200 and s.post(EXPLAIN, {"response_id": own}, bob)[0] == 404
    )


# ---- tenants, and the log ----


def test_tenants_see_their_own_numbers(tenants):
    s, alice, bob, own = tenants
    for _ in range(2):
        assert s.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 2, "ignore_eos": True}, alice)[0] == 200
    assert s.post("/v1/completions", {"prompt": [5] * 999, "max_tokens": 2}, alice)[0] == 400
    assert s.get("/stats", alice)[1] == {
        "tenant": True,
        "requests": {"running": 0, "done": 2, "failed": 1, "cancelled": 0},
        "tokens": {"prompt": 6, "prompt_cached": 3, "prompt_computed": 3, "generated": 4},
    }
    assert s.get("/stats", bob)[1]["tokens"] == {"prompt": 0, "prompt_cached": 0, "prompt_computed": 0, "generated": 0}
    assert s.get("/stats", own)[1]["tokens"]["generated"] == 4
    assert s.get("/stats")[0] == 401


def test_the_log_says_what_an_operator_looks_for(make_server, tmp_path):
    path = tmp_path / "log"
    with open(path, "w") as log:
        s = make_server("--threads", "1", "--kv-tokens", "1024", model=TINY, log=log)
        for _ in range(3):
            assert s.get("/health")[0] == 200
        assert s.post("/v1/completions", {"prompt": [5], "max_tokens": -7})[0] == 400
        s.request(
            "POST",
            "/v1/completions",
            {"prompt": [5], "max_tokens": 3, "ignore_eos": True, "surprise": 1},
            {"X-Request-Id": "mine-1"},
        )
        s.request("GET", "/evil%0a2026-01-01T00:00:00Z%20error%20forged%1b[31m")
        s.raw(b"GET /no\x1bthing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert s.stop() == 0
    lines = path.read_text().splitlines()
    text = "\n".join(lines)
    assert len([x for x in lines if " ready: tiny-llama, " in x and x.endswith("s after the start")]) == 1
    assert "/health" not in text
    assert re.search(
        r"info  POST /v1/completions 400 [0-9.]+ ms: max_tokens: .*; client 127\.0\.0\.1:\d+, req_[0-9a-f]{24}", text
    )
    assert re.search(
        r"cmpl-[0-9a-f]+ /v1/completions 200 prompt 1 cached 0 generated 3 \(cut\), .*; client 127\.0\.0\.1:\d+, mine-1; ignored: surprise",
        text,
    )
    assert all(
        re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (info|warn|error|debug) ", x) for x in lines
    )  # no line of a client's making (F53)
    assert "\x1b" not in text and not any(x.startswith("2026-01-01T") for x in lines)


def test_the_log_as_json(make_server, tmp_path):
    path = tmp_path / "log"
    with open(path, "w") as log:
        s = make_server(
            "--threads", "1", "--kv-tokens", "1024", "--log-format", "json", "--log-level", "debug", model=TINY, log=log
        )
        s.request("GET", "/%22%5c%0a")
        assert s.post("/v1/completions", {"prompt": '"\\', "max_tokens": '"x\\'})[0] == 400
        assert s.stop() == 0
    lines = [json.loads(x) for x in path.read_text().splitlines()]
    assert all(
        {"time", "level", "event", "message"} <= set(x) and x["level"] in ("debug", "info", "warn", "error")
        for x in lines
    )
    assert any(x["message"].startswith("ready: ") for x in lines) and any("GET /health" in x["message"] for x in lines)


def test_README_s_first_question_is_answered_right(server):
    """Of the model that quickstart fetches, in a draw of its own and the surest one."""
    ask = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
        "max_tokens": 40,
    }
    for how in {"temperature": 0}, {"seed": 1}:
        answer = server.ok(CHAT, ask | how)["choices"][0]
        assert "Tokyo" in answer["message"]["content"], answer
