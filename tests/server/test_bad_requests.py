"""Malformed requests: each gets its status and an OpenAI error object, and the server goes on."""

import json

import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
M = [{"role": "user", "content": "hi"}]


def chat(**fields):
    return CHAT, json.dumps({"messages": M, "max_tokens": 1} | fields).encode()


def text(**fields):
    return TEXT, json.dumps({"prompt": "hi", "max_tokens": 1} | fields).encode()


def body(raw):
    return CHAT, raw


# name: (path and body, status, param or None)
CASES = {
    "empty body": (body(b""), 400, None),
    "not json": (body(b"hello"), 400, None),
    "cut json": (body(b'{"messages":['), 400, None),
    "array body": (body(b"[]"), 400, None),
    "string body": (body(b'"x"'), 400, None),
    "trailing bytes": (body(json.dumps({"messages": M}).encode() + b"x"), 400, None),
    "byte order mark": (body(b"\xef\xbb\xbf" + json.dumps({"messages": M}).encode()), 400, None),
    "duplicate keys": (body(b'{"messages":[],"messages":[]}'), 400, None),
    "NUL byte": (body(b'{"messages":\x00[]}'), 400, None),
    "NUL escape in a name": (body(b'{"messages":[{"role":"user\\u0000","content":"ab"}]}'), 400, "messages"),
    "NUL escape in a field's name": (body(b'{"messages":[{"role":"user","content":"ab"}],"a\\u0000":1}'), 400, None),
    "invalid UTF-8": (body(b'{"messages":[{"role":"user","content":"\xff\xfe"}]}'), 400, None),
    "overlong UTF-8": (body(b'{"messages":[{"role":"user","content":"\xc0\xaf"}]}'), 400, None),
    "lone surrogate": (body(b'{"messages":[{"role":"user","content":"\\ud800"}]}'), 400, None),
    "1e999": (body(b'{"messages":[{"role":"user","content":"a"}],"temperature":1e999}'), 400, None),
    "20 digits": (body(b'{"messages":[{"role":"user","content":"a"}],"seed":12345678901234567890}'), 400, None),
    "bare NaN": (body(b'{"messages":[{"role":"user","content":"a"}],"temperature":NaN}'), 400, None),
    "depth 200": (body(b'{"x":' + b"[" * 200 + b"]" * 200 + b"}"), 400, None),
    "depth 1000000": (body(b'{"x":' + b"[" * 1000000), 400, None),
    "10 MB of spaces": (body(b" " * 10_000_000), 400, None),
    "10 MB string as a role": (
        body(json.dumps({"messages": [{"role": 1, "content": "a" * 10_000_000}]}).encode()),
        400,
        "messages",
    ),
    "no messages": (body(b"{}"), 400, "messages"),
    "messages null": (chat(messages=None), 400, "messages"),
    "messages empty": (chat(messages=[]), 400, "messages"),
    "messages a string": (chat(messages="hi"), 400, "messages"),
    "messages of numbers": (chat(messages=[1]), 400, "messages"),
    "message without role": (chat(messages=[{"content": "a"}]), 400, "messages"),
    "message with number role": (chat(messages=[{"role": 5, "content": "a"}]), 400, "messages"),
    "message without content": (chat(messages=[{"role": "user"}]), 400, "messages"),
    "message with number content": (chat(messages=[{"role": "user", "content": 5}]), 400, "messages"),
    "image part": (
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        400,
        "messages",
    ),
    "part without type": (chat(messages=[{"role": "user", "content": [{"text": "x"}]}]), 400, "messages"),
    "70000 messages": (chat(messages=M * 70000), 400, "messages"),
    "unknown model": (chat(model="gpt-9"), 404, "model"),
    "model a number": (chat(model=3), 400, "model"),
    "temperature negative": (chat(temperature=-0.1), 400, "temperature"),
    "temperature huge": (chat(temperature=1e30), 400, "temperature"),
    "temperature a string": (chat(temperature="1"), 400, "temperature"),
    "temperature a list": (chat(temperature=[1]), 400, "temperature"),
    "top_p above 1": (chat(top_p=1.5), 400, "top_p"),
    "top_k negative": (chat(top_k=-5), 400, "top_k"),
    "top_k fraction": (chat(top_k=1.5), 400, "top_k"),
    "min_p negative": (chat(min_p=-1), 400, "min_p"),
    "repetition_penalty 0": (chat(repetition_penalty=0), 400, "repetition_penalty"),
    "repeat_penalty alias": (chat(repeat_penalty=-1), 400, "repeat_penalty"),
    "presence_penalty 3": (chat(presence_penalty=3), 400, "presence_penalty"),
    "frequency_penalty true": (chat(frequency_penalty=True), 400, "frequency_penalty"),
    "max_tokens -2": (chat(max_tokens=-2), 400, "max_tokens"),
    "max_tokens 1e12": (chat(max_tokens=1e12), 400, "max_tokens"),
    "max_tokens a string": (chat(max_tokens="5"), 400, "max_tokens"),
    "n 0": (chat(n=0), 400, "n"),
    "n 17": (chat(n=17), 400, "n"),
    "best_of below n": (text(n=3, best_of=2), 400, "best_of"),
    "best_of streamed": (text(best_of=2, stream=True), 400, "best_of"),
    "seed a fraction": (chat(seed=0.5), 400, "seed"),
    "stream a string": (chat(stream="yes"), 400, "stream"),
    "stream_options a list": (chat(stream_options=[]), 400, "stream_options"),
    "stop a number": (chat(stop=5), 400, "stop"),
    "stop with numbers": (chat(stop=["a", 5]), 400, "stop"),
    "65 stop strings": (chat(stop=["a"] * 65), 400, "stop"),
    "long stop string": (chat(stop="a" * 5000), 400, "stop"),
    "logit_bias a list": (chat(logit_bias=[1]), 400, "logit_bias"),
    "logit_bias of nothing": (chat(logit_bias={"": 1}), 400, "logit_bias"),
    "logit_bias of 200": (chat(logit_bias={"5": 200}), 400, "logit_bias"),
    "logit_bias beyond the vocabulary": (chat(logit_bias={"99999999": 1}), 400, "logit_bias"),
    "logprobs a number in chat": (chat(logprobs=5), 400, "logprobs"),
    "top_logprobs without logprobs": (chat(top_logprobs=5), 400, "top_logprobs"),
    "top_logprobs 21": (chat(logprobs=True, top_logprobs=21), 400, "top_logprobs"),
    "logprobs 21 in completions": (text(logprobs=21), 400, "logprobs"),
    "tools an object": (chat(tools={}), 400, "tools"),
    "kwargs a list": (chat(chat_template_kwargs=[]), 400, "chat_template_kwargs"),
    "response_format xml": (chat(response_format={"type": "xml"}), 400, "response_format"),
    "no prompt": ((TEXT, b"{}"), 400, "prompt"),
    "empty prompt": (text(prompt=""), 400, "prompt"),
    "empty prompt list": (text(prompt=[]), 400, "prompt"),
    "prompt an object": (text(prompt={}), 400, "prompt"),
    "prompt of mixed kinds": (text(prompt=["a", 5]), 400, "prompt"),
    "negative token": (text(prompt=[5, -1]), 400, "prompt"),
    "token beyond the vocabulary": (text(prompt=[5, 99999999]), 400, "prompt"),
    "2100 prompts": (text(prompt=["a"] * 2100), 400, "prompt"),
    "suffix": (text(suffix="x"), 400, "suffix"),
    "prompt longer than the context": (text(prompt=[5] * 8200), 400, "prompt"),
    "tokenize nothing": (("/tokenize", b"{}"), 400, "content"),
    "tokenize a number": (("/tokenize", b'{"content":5}'), 400, "content"),
    "detokenize words": (("/detokenize", b'{"tokens":["a"]}'), 400, "tokens"),
    "detokenize beyond": (("/detokenize", b'{"tokens":[99999999]}'), 400, None),
    "template of nothing": (("/apply-template", b"{}"), 400, "messages"),
}


@pytest.mark.parametrize("name", CASES)
def test_malformed(server, name):
    (path, raw), status, param = CASES[name]
    got, answer = server.post(path, raw)
    error = answer["error"]
    assert got == status, answer
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    if param:
        assert error["param"] == param
    for secret in ("/root", "/home", "0x", ".gguf", "src/"):
        assert secret not in error["message"]


def test_numbers_of_every_kind(server):
    """Each numeric parameter with values that no parameter takes: 400 that names it, or the value is in range."""
    names = [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "max_tokens",
        "max_completion_tokens",
        "n_predict",
        "n",
        "seed",
        "top_logprobs",
    ]
    for name in names:
        for value in (-1e19, 1e19, "1", [], {}, True):
            status, answer = server.post(*chat(**{name: value}))
            assert status == 400 and answer["error"]["param"] == name, (name, value, answer)
        other = "n_predict" if name == "max_tokens" else "max_tokens"
        assert server.post(*chat(**{other: 1, name: None}))[0] == 200


def test_body_over_the_limit_is_413(server):
    status, answer = server.post(CHAT, b" " * (33 << 20))
    assert status == 413 and answer["error"]["type"] == "invalid_request_error"
    assert server.post("/tokenize", b" " * (5 << 20))[0] == 413


def test_server_still_answers(server):
    server.ok(CHAT, {"messages": M, "max_tokens": 2})
    server.wait_idle()
