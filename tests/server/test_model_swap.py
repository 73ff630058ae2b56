"""A server has the model that it was started with (F99): what names another one is refused, and what runs goes on."""

import json

import pytest

from radish_server import TINY, Server

LONG = {"prompt": "the of and to in is it", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
OTHERS = [
    ("/v1/chat/completions", CHAT | {"model": "another"}),
    ("/v1/completions", {"model": "another", "prompt": "a", "max_tokens": 1}),
    ("/v1/responses", {"model": "another", "input": "a"}),
    ("/v1/embeddings", {"model": "another", "input": "a"}),
    ("/api/chat", {"model": "another", "messages": CHAT["messages"], "stream": False}),
    ("/api/generate", {"model": "another", "prompt": "a", "stream": False}),
    ("/api/generate", {"model": "another"}),  # Ollama: load it
    ("/api/create", {"model": "another", "from": "tiny-llama"}),
]


@pytest.fixture(scope="module")
def tiny():
    s = Server("--threads", "1", model=TINY)
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


@pytest.mark.parametrize("path,body", OTHERS)
def test_another_model_is_refused_while_one_runs(tiny, path, body):
    alone = tiny.ok("/v1/completions", LONG)["choices"][0]["text"]
    before = tiny.get("/v1/models")[1]
    c = tiny.connect()
    c.request("POST", "/v1/completions", json.dumps(LONG | {"stream": True}), {"Content-Type": "application/json"})
    r = c.getresponse()
    first = r.readline()
    status, answer = tiny.post(path, body)
    assert status == (501 if path == "/api/create" else 404), answer
    text = ""
    for line in [first, *r]:
        if line.startswith(b"data: {"):
            text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
    c.close()
    assert text == alone
    assert tiny.get("/v1/models")[1] == before
