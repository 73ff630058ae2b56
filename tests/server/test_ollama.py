"""Ollama's native API: the ollama package against the server, the exact lines, what is refused and how."""

import json

import ollama
import pytest
from radish_server import Server

MODEL = "qwen2.5-coder-0.5b"
HI = [{"role": "user", "content": "Say hello."}]
GREEDY = {"temperature": 0, "num_predict": 8, "repeat_penalty": 1.0}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIMES = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")


@pytest.fixture(scope="module")
def coder():
    s = Server("--threads", "2", "--kv-tokens", "2048", model=MODEL)
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


@pytest.fixture(scope="module")
def client(coder):
    return ollama.Client(host=f"http://127.0.0.1:{coder.port}")


def lines(server, path, body):
    status, headers, raw = server.request("POST", path, body)
    assert status == 200 and headers["content-type"] == "application/x-ndjson", raw
    out = [json.loads(line) for line in raw.decode().splitlines()]
    assert [line["done"] for line in out] == [False] * (len(out) - 1) + [True]
    return out


def test_chat_streams_by_default_and_the_lines_are_the_message(coder):
    whole = coder.ok("/api/chat", {"model": MODEL, "messages": HI, "stream": False, "options": GREEDY})
    got = lines(coder, "/api/chat", {"model": MODEL, "messages": HI, "options": GREEDY})
    assert (
        whole["done"] is True and whole["done_reason"] in ("stop", "length") and whole["message"]["role"] == "assistant"
    )
    assert all(line["message"]["role"] == "assistant" and line["model"] == MODEL and line["created_at"] for line in got)
    assert "".join(line["message"]["content"] for line in got) == whole["message"]["content"] != ""
    assert got[-1]["message"]["content"] == "" and got[-1]["done_reason"] == whole["done_reason"]
    for last in (whole, got[-1]):
        assert all(isinstance(last[name], int) for name in TIMES) and last["eval_count"] <= 8
    assert whole["prompt_eval_count"] == got[-1]["prompt_eval_count"] > 5


def test_the_package_chats(client):
    answer = client.chat(MODEL, messages=HI, options=GREEDY, keep_alive="5m")
    assert answer.message.content and answer.done and answer.eval_count > 0 and answer.total_duration > 0
    parts = list(client.chat(MODEL + ":latest", messages=HI, options=GREEDY, stream=True))
    assert (
        "".join(p.message.content for p in parts) == answer.message.content
        and parts[-1].done_reason == answer.done_reason
    )


def test_log_probabilities(client, coder):
    ask = {"logprobs": True, "top_logprobs": 2, "options": GREEDY}
    answer = client.chat(MODEL, messages=HI, **ask)
    assert len(answer.logprobs) == answer.eval_count and all(
        len(t.top_logprobs) == 2 and t.logprob <= 0 for t in answer.logprobs
    )
    parts = list(client.chat(MODEL, messages=HI, stream=True, **ask))
    assert [t for p in parts for t in p.logprobs or []] == list(answer.logprobs)
    raw = client.generate(MODEL, "One, two,", raw=True, **ask)
    assert "".join(t.token for t in raw.logprobs) == raw.response and len(raw.logprobs[0].top_logprobs) == 2
    assert client.generate(MODEL, "Hi", logprobs=True, options=GREEDY).logprobs[0].top_logprobs in (None, [])
    assert client.chat(MODEL, messages=HI, options=GREEDY, top_logprobs=3).logprobs is None
    assert coder.post("/api/chat", {"messages": HI, "logprobs": True, "top_logprobs": 21})[0] == 400


def test_the_package_generates(client):
    answer = client.generate(MODEL, "Say hello.", system="Be brief.", options=GREEDY)
    parts = list(client.generate(MODEL, "Say hello.", system="Be brief.", options=GREEDY, stream=True))
    assert answer.response and "".join(p.response for p in parts) == answer.response
    raw = client.generate(MODEL, "def add(a, b):\n    return", raw=True, options=GREEDY | {"stop": ["\n"]})
    assert "a + b" in raw.response and "\n" not in raw.response and raw.done_reason == "stop"
    assert raw.prompt_eval_count < answer.prompt_eval_count


def test_a_gap_is_filled(client):
    answer = client.generate(MODEL, "def add(a, b):\n    return ", suffix="\n\nprint(add(1, 2))\n", options=GREEDY)
    assert "a + b" in answer.response


def test_options_reach_the_sampler(client, coder):
    texts = {
        client.generate(MODEL, "Name a colour.", options={"seed": 7, "num_predict": 12}).response for _ in range(3)
    }
    assert len(texts) == 1
    one = client.generate(MODEL, "Name a colour.", options={"num_predict": 1, "temperature": 0})
    assert one.eval_count == 1 and one.done_reason == "length"
    for name, bad in (
        ("temperature", "hot"),
        ("top_p", 3),
        ("num_predict", 1.5),
        ("stop", 4),
        ("repeat_penalty", 0),
        ("top_k", "a"),
    ):
        status, e = coder.post("/api/chat", {"messages": HI, "options": {name: bad}})
        assert status == 400 and isinstance(e["error"], str) and name in e["error"], (name, e)
    assert coder.ok(
        "/api/chat", {"messages": HI, "stream": False, "options": GREEDY | {"num_ctx": 4096, "unknown": 1, "seed": -1}}
    )


def test_tools_come_as_objects(coder, client):
    ask = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
    options = {"temperature": 0, "num_predict": 60}
    answer = client.chat(MODEL, messages=ask, tools=[WEATHER], options=options)
    if answer.message.tool_calls:
        call = answer.message.tool_calls[0]
        assert call.function.name == "get_weather" and isinstance(dict(call.function.arguments), dict)
    parts = lines(coder, "/api/chat", {"messages": ask, "tools": [WEATHER], "options": options})
    calls = [c for p in parts for c in p["message"].get("tool_calls", [])]
    assert len(calls) == len(answer.message.tool_calls or [])
    again = [
        *ask,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}],
        },
        {"role": "tool", "content": "18 degrees, sunny", "tool_name": "get_weather"},
    ]
    openai = [
        ask[0],
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "18 degrees, sunny"},
    ]
    want = coder.ok("/v1/chat/completions", {"messages": openai, "tools": [WEATHER], "max_tokens": 1})
    n = client.chat(MODEL, messages=again, tools=[WEATHER], options=options).prompt_eval_count
    assert abs(n - want["usage"]["prompt_tokens"]) <= 2  # the spaces of the arguments


def test_nothing_to_say_loads_the_model(coder, client):
    assert client.generate(MODEL, "").done_reason == "load"
    assert coder.ok("/api/chat", {"model": MODEL, "messages": []})["done_reason"] == "load"
    assert coder.ok("/api/generate", {"model": MODEL, "keep_alive": 0})["done_reason"] == "load"


def test_models_as_clients_list_them(coder, client):
    tag = client.list().models[0]
    assert (
        tag.model == MODEL + ":latest" and tag.size > 10**8 and len(tag.digest) == 64 and tag.details.format == "gguf"
    )
    assert tag.details.family == "qwen2" and tag.details.quantization_level and tag.details.parameter_size.endswith("M")
    show = client.show(tag.model)
    assert "completion" in show.capabilities and "tools" in show.capabilities and "insert" in show.capabilities
    assert show.modelinfo["general.architecture"] == "qwen2" and show.modelinfo["qwen2.context_length"] == 2048
    running = client.ps().models[0]
    assert running.model == tag.model and running.digest == tag.digest and running.expires_at.year > 2200
    major, minor, _ = coder.get("/api/version")[1]["version"].split(".")
    assert (int(major), int(minor)) >= (0, 6)


def test_embeddings(coder, client):
    two = client.embed(MODEL, ["cats purr", "dogs bark"])
    assert len(two.embeddings) == 2 and len(two.embeddings[0]) == 896 and two.prompt_eval_count > 3
    assert client.embed(MODEL, "cats purr").embeddings[0] == two.embeddings[0]
    assert list(client.embeddings(MODEL, "cats purr").embedding) == list(two.embeddings[0])
    assert coder.ok("/v1/embeddings", {"input": "cats purr"})["data"][0]["embedding"] == list(two.embeddings[0])
    assert len(client.embed(MODEL, "a", dimensions=16).embeddings[0]) == 16
    assert client.embed(MODEL, "word " * 3000).prompt_eval_count <= 2048  # truncated unless told not to
    with pytest.raises(ollama.ResponseError, match="maximum context length"):
        client.embed(MODEL, "word " * 3000, truncate=False)


def test_what_is_refused_says_so(coder, client):
    with pytest.raises(ollama.ResponseError) as e:
        client.chat("llama3", messages=HI)
    assert e.value.status_code == 404 and "llama3" in e.value.error and MODEL in e.value.error
    for path, body, word in [
        ("/api/chat", {"messages": [HI[0] | {"images": ["aGk="]}]}, "images"),
        ("/api/generate", {"prompt": "a", "images": ["aGk="]}, "images"),
        ("/api/generate", {"prompt": "a", "template": "{{ .Prompt }}"}, "template"),
        ("/api/generate", {"prompt": "a", "context": [1]}, "context"),
        ("/api/generate", {"prompt": 3}, "prompt"),
        ("/api/chat", {"messages": "hi"}, "messages"),
        ("/api/chat", {"messages": [3]}, "messages"),
        ("/api/chat", {"messages": HI, "stream": "yes"}, "stream"),
        ("/api/chat", {"messages": HI, "options": []}, "options"),
        ("/api/chat", {"messages": HI, "format": "xml"}, "format"),
        ("/api/chat", {"messages": HI, "think": 3}, "think"),
        ("/api/embed", {}, "input"),
        ("/api/embeddings", {}, "prompt"),
        ("/api/show", {"model": 3}, "model"),
        ("/api/chat", b"{", "JSON"),
    ]:
        status, e = coder.post(path, body)
        assert status == 400 and set(e) == {"error"} and word in e["error"], (path, body, e)
    for path in ("/api/push", "/api/create", "/api/copy"):
        status, e = coder.post(path, {"model": "x"})
        assert status == 501 and isinstance(e["error"], str)
    assert client.pull(MODEL).status == "success"
    with pytest.raises(ollama.ResponseError):
        client.pull("llama3")


def test_a_knock_at_the_door(coder):
    status, headers, page = coder.request("GET", "/")
    assert status == 200 and page == b"Ollama is running" and headers["content-type"].startswith("text/plain")
    assert coder.request("HEAD", "/")[0] == 200
    status, headers, page = coder.request("GET", "/", headers={"Accept": "text/html,*/*"})
    assert status == 200 and headers["content-type"].startswith("text/html") and b"radish" in page
