"""The openai package against the server: chat, streaming, the shapes of both endpoints."""

import openai
import pytest

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)


def streamed_turn(client, messages):
    text, usage, reasons = "", None, []
    for chunk in client.chat.completions.create(
        model="smollm2",
        messages=messages,
        stream=True,
        temperature=0,
        max_tokens=24,
        stream_options={"include_usage": True},
    ):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            reasons.append(chunk.choices[0].finish_reason)
        usage = chunk.usage or usage
    assert [r for r in reasons if r] == [reasons[-1]] and reasons[-1] in ("stop", "length")
    return text, usage


def test_second_turn_is_served_from_the_first(client):
    messages = [{"role": "user", "content": "Name three colours of the rainbow, please."}]
    text, first = streamed_turn(client, messages)
    assert text
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And two more?"}]
    _, second = streamed_turn(client, messages)
    assert second.prompt_tokens_details.cached_tokens >= first.prompt_tokens
    assert second.prompt_tokens > second.prompt_tokens_details.cached_tokens


def test_chat_response_shape(server):
    r = server.ok(CHAT, {"messages": HI, "max_tokens": 4, "model": "smollm2", "user": "u", "unknown_field": [1]})
    assert r["object"] == "chat.completion" and r["id"].startswith("chatcmpl-") and r["model"] == "smollm2"
    assert r["choices"][0]["message"]["role"] == "assistant"
    u = r["usage"]
    assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"]
    assert u["prompt_tokens_details"]["cached_tokens"] >= 0
    t = r["timings"]
    assert set(t) >= {
        "cache_n",
        "prompt_n",
        "prompt_ms",
        "prompt_per_token_ms",
        "prompt_per_second",
        "predicted_n",
        "predicted_ms",
        "predicted_per_token_ms",
        "predicted_per_second",
    }
    assert t["cache_n"] + t["prompt_n"] == u["prompt_tokens"] and t["predicted_n"] == u["completion_tokens"]


def test_stream_order(server):
    chunks = server.stream(
        CHAT, {"messages": HI, "max_tokens": 6, "temperature": 0, "stream_options": {"include_usage": True}}
    )
    assert len({c["id"] for c in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 6
    finish = [c["choices"][0]["finish_reason"] for c in chunks[:-1]]
    assert finish[-1] == "length" and not any(finish[:-1])
    assert chunks[-2]["choices"][0]["delta"] == {} and "timings" in chunks[-2]
    assert all(c["usage"] is None for c in chunks[:-1])
    plain = server.stream(CHAT, {"messages": HI, "max_tokens": 2})
    assert all("usage" not in c for c in plain)


def test_models(client, server):
    model = client.models.list().data[0]
    assert model.id == "smollm2" and model.max_model_len == 8192 and model.meta["n_params"] > 1e8
    assert client.models.retrieve("smollm2").id == "smollm2"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_unknown_model_is_404(client):
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="gpt-4", messages=HI)
    assert e.value.code == "model_not_found" and e.value.param == "model"


def test_context_overflow(server):
    status, r = server.post(TEXT, {"prompt": [5] * 9000, "max_tokens": 1})
    assert status == 400 and r["error"]["code"] == "context_length_exceeded"
    assert "maximum context length" in r["error"]["message"]
    status, r = server.post(TEXT, {"prompt": [5] * 9000, "max_tokens": 1, "stream": True})
    assert status == 400 and r["error"]["code"] == "context_length_exceeded"


def test_the_tokens_of_a_prompt_are_counted(server):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    for more in ({}, {"tools": [tool], "tool_choice": "required"}):
        n = server.ok("/v1/chat/completions/input_tokens", {"messages": HI} | more)["input_tokens"]
        assert (
            n == server.ok("/v1/chat/completions", {"messages": HI, "max_tokens": 1} | more)["usage"]["prompt_tokens"]
        )
    long = {"messages": [{"role": "user", "content": "word " * 9000}]}
    assert (
        server.ok("/v1/chat/completions/input_tokens", long)["input_tokens"] > 9000
    )  # more than the context: a number too
    assert server.post("/v1/chat/completions/input_tokens", {"messages": []})[0] == 400


def test_allowed_tools_are_all_that_the_model_hears_of(server):
    """Those that are not listed can be neither called nor chosen."""

    def tools(*names):
        return [
            {"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": {}}}}
            for n in names
        ]

    def flat(*names):
        return [t["function"] | {"type": "function"} for t in tools(*names)]

    def allowed(mode, *names):
        return {
            "mode": mode,
            "tools": [{"type": "function", "function": {"name": n}} for n in names] + [{"type": "web_search"}],
        }

    def count(tools, choice):
        return server.ok("/v1/chat/completions/input_tokens", {"messages": HI, "tools": tools, "tool_choice": choice})[
            "input_tokens"
        ]

    three = tools("look", "listen", "touch_it_gently")
    for mode in ("auto", "required"):
        n = count(tools("look"), mode)
        assert count(three, {"type": "allowed_tools", "allowed_tools": allowed(mode, "look")}) == n < count(three, mode)
        choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "look"}]}
        ask = {
            "input": "Hi",
            "tools": flat("look", "listen", "touch_it_gently"),
            "tool_choice": choice,
            "max_output_tokens": 1,
        }
        r = server.ok("/v1/responses", ask)
        one = server.ok("/v1/responses", ask | {"tools": flat("look"), "tool_choice": mode})
        assert r["tool_choice"] == choice and r["usage"]["input_tokens"] == one["usage"]["input_tokens"]
    for bad in (allowed("sometimes", "look"), allowed("auto", "nobody"), {"mode": "auto"}, allowed("required")):
        status, answer = server.post(
            "/v1/chat/completions",
            {"messages": HI, "tools": three, "tool_choice": {"type": "allowed_tools", "allowed_tools": bad}},
        )
        assert status == 400 and answer["error"]["param"] == "tool_choice", answer


def test_n_choices_and_seeds(server):
    ask = {"messages": HI, "max_tokens": 12, "temperature": 1.5, "n": 3, "seed": 7}
    texts = [[c["message"]["content"] for c in server.ok(CHAT, ask)["choices"]] for _ in range(2)]
    assert texts[0] == texts[1] and len(set(texts[0])) == 3
    r = server.ok(CHAT, ask)
    assert [c["index"] for c in r["choices"]] == [0, 1, 2] and r["usage"]["prompt_tokens"] < 60
    chunks = server.stream(CHAT, ask)
    for i in range(3):
        assert (
            "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"][0]["index"] == i)
            == texts[0][i]
        )
    other = server.ok(CHAT, ask | {"seed": 8})["choices"][0]["message"]["content"]
    assert other != texts[0][0]


def test_best_of(server):
    r = server.ok(
        TEXT, {"prompt": "Once", "max_tokens": 5, "n": 2, "best_of": 4, "temperature": 1.2, "logprobs": 0, "seed": 3}
    )
    sums = [sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["tokens"]) for c in r["choices"]]
    assert [c["index"] for c in r["choices"]] == [0, 1] and sums[0] >= sums[1]
    assert r["usage"]["completion_tokens"] <= 20


def test_prompts_in_every_form(server):
    ask = {"max_tokens": 6, "temperature": 0}
    a, b = "The capital of France is", "One two three four"
    ids = [server.ok("/tokenize", {"prompt": t})["tokens"] for t in (a, b)]
    want = [server.ok(TEXT, ask | {"prompt": t})["choices"][0]["text"] for t in (a, b)]
    for prompt in ([a, b], ids):
        r = server.ok(TEXT, ask | {"prompt": prompt})
        assert [c["text"] for c in r["choices"]] == want and [c["index"] for c in r["choices"]] == [0, 1]
        assert r["usage"]["prompt_tokens"] == sum(map(len, ids)) and r["object"] == "text_completion"
    assert server.ok(TEXT, ask | {"prompt": ids[0]})["choices"][0]["text"] == want[0]
    many = server.ok(TEXT, ask | {"prompt": [a] * 39 + [b]})["choices"]  # more than are given to the engine at once
    assert [c["text"] for c in many] == want[:1] * 39 + want[1:]


def test_echo_and_logprobs(server):
    prompt = "The capital of France is"
    r = server.ok(TEXT, {"prompt": prompt, "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 2})
    c, lp = r["choices"][0], r["choices"][0]["logprobs"]
    assert c["text"].startswith(prompt) and "".join(lp["tokens"]) == c["text"]
    assert len(lp["tokens"]) == len(lp["token_logprobs"]) == len(lp["top_logprobs"]) == len(lp["text_offset"])
    assert lp["token_logprobs"][0] is None and all(v <= 0 for v in lp["token_logprobs"][1:])
    for i, (token, at) in enumerate(zip(lp["tokens"], lp["text_offset"])):
        assert c["text"][at : at + len(token)] == token
        assert i == 0 or lp["top_logprobs"][i][token] == lp["token_logprobs"][i]
    chunks = server.stream(TEXT, {"prompt": prompt, "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 2})
    assert "".join(x["choices"][0]["text"] for x in chunks) == c["text"]
    assert (
        sum((x["choices"][0]["logprobs"]["tokens"] for x in chunks if x["choices"][0]["logprobs"]), []) == lp["tokens"]
    )
    scored = server.ok(TEXT, {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 0})["choices"][0]
    assert (
        scored["text"] == prompt
        and scored["logprobs"]["token_logprobs"][1:] == lp["token_logprobs"][1 : len(scored["logprobs"]["tokens"])]
    )


def test_tokens_that_are_no_whole_characters_are_kept_apart(server):
    prompt = "na\u00efve \u4e2d\U0001f642 x"
    ask = {"prompt": prompt, "echo": True, "logprobs": 5, "max_tokens": 0}
    lp = server.ok(TEXT, ask)["choices"][0]["logprobs"]

    def bytes_of(token):
        return bytes.fromhex(token[6:].replace("\\x", "")) if token.startswith("bytes:") else token.encode()

    assert b"".join(map(bytes_of, lp["tokens"])) == prompt.encode()
    assert sum(t.startswith("bytes:\\x") for t in lp["tokens"]) >= 2
    # as JSON objects have them: tokens that looked the same would be one
    assert all(len(top) in (5, 6) and token in top for token, top in zip(lp["tokens"][1:], lp["top_logprobs"][1:]))
    assert all("\ufffd" not in t for top in lp["top_logprobs"][1:] for t in top)


def test_chat_logprobs(server):
    ask = {"messages": HI, "max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    r = server.ok(CHAT, ask)
    content = r["choices"][0]["logprobs"]["content"]
    assert len(content) == 4
    for t in content:
        assert bytes(t["bytes"]).decode() == t["token"] and len(t["top_logprobs"]) == 3
        assert t["logprob"] == t["top_logprobs"][0]["logprob"]
    chunks = server.stream(CHAT, ask)
    streamed = sum((c["choices"][0]["logprobs"]["content"] for c in chunks if c["choices"][0]["logprobs"]), [])
    assert streamed == content
    assert server.ok(CHAT, {"messages": HI, "max_tokens": 1})["choices"][0]["logprobs"] is None


def test_stop_strings(server):
    ask = {"prompt": "1, 2, 3, 4, 5,", "max_tokens": 40, "temperature": 0}
    whole = server.ok(TEXT, ask)["choices"][0]["text"]
    assert ", 9" in whole
    r = server.ok(TEXT, ask | {"stop": [", 9", "zebra"]})["choices"][0]
    assert r["text"] == whole[: whole.index(", 9")] and r["finish_reason"] == "stop" and r["stop_reason"] == ", 9"
    chunks = server.stream(TEXT, ask | {"stop": ", 9"})
    assert "".join(c["choices"][0]["text"] for c in chunks) == r["text"]


def test_ignore_eos_and_logit_bias(server):
    r = server.ok(CHAT, {"messages": HI, "max_tokens": 80, "ignore_eos": True, "temperature": 0})
    assert r["usage"]["completion_tokens"] == 80
    r = server.ok(TEXT, {"prompt": "a", "max_tokens": 5, "logit_bias": {"28": 100}, "temperature": 0})
    piece = server.ok("/detokenize", {"tokens": [28]})["content"]
    assert r["choices"][0]["text"] == piece * 5


def test_cache_prompt_false_neither_matches_nor_stores(server):
    ask = {"prompt": list(range(2000, 2100)), "max_tokens": 1}
    for _ in range(2):
        r = server.ok(TEXT, ask | {"cache_prompt": False})
        assert r["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert server.ok(TEXT, ask)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert server.ok(TEXT, ask)["usage"]["prompt_tokens_details"]["cached_tokens"] >= 96
    assert server.ok(TEXT, ask | {"cache_prompt": False})["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_tokenize_detokenize_template(server):
    text = "Hello wörld 👩‍🚀"
    r = server.ok("/tokenize", {"content": text, "with_pieces": True})
    assert r["count"] == len(r["tokens"]) and r["max_model_len"] == 8192
    ids = [t["id"] for t in r["tokens"]]
    back = server.ok("/detokenize", {"tokens": ids})
    assert back["content"] == back["prompt"] == text
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    prompt = server.ok("/apply-template", {"messages": messages})["prompt"]
    assert "user\nab<" in prompt and prompt.endswith("assistant\n")
    assert (
        server.ok("/tokenize", {"messages": messages})["tokens"]
        == server.ok("/tokenize", {"content": prompt})["tokens"]
    )
    used = server.ok(CHAT, {"messages": messages, "max_tokens": 1})["usage"]["prompt_tokens"]
    assert used == server.ok("/tokenize", {"messages": messages})["count"]


def test_utf8_is_whole_in_every_event(server):
    ask = {
        "prompt": "Ünïcödé: 日本語 👩‍🚀 日本語 👩‍🚀 日本語",
        "max_tokens": 60,
        "temperature": 1.3,
        "seed": 5,
        "ignore_eos": True,
    }
    whole = server.ok(TEXT, ask)["choices"][0]["text"]
    assert "".join(c["choices"][0]["text"] for c in server.stream(TEXT, ask)) == whole
    assert any(ord(ch) > 127 for ch in whole)


def test_a_line_that_is_new_in_every_request_does_not_spoil_the_cache(server):
    def turn(i, **extra):
        header = f"x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee{i};"
        system = {"role": "system", "content": f"{header}\nYou are a clerk who counts boxes."}
        return server.ok(
            "/v1/chat/completions",
            {"messages": [system, {"role": "user", "content": "Count."}], "max_tokens": 2, **extra},
        )

    first, second = turn(1), turn(2)
    assert first["timings"]["left_out"] == [
        "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee1;"
    ]
    assert second["timings"]["cache_n"] == second["usage"]["prompt_tokens"] and second["timings"]["prompt_n"] == 0
    plain = server.ok("/v1/chat/completions", {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 2})
    assert "left_out" not in plain["timings"]
