"""/v1/embeddings: shapes, the openai package, llama.cpp's directions, what the cache may and may not change."""

import base64
import json
import math
import struct

import numpy
import openai
import pytest
from radish_server import ROOT, words

GOLDEN = ROOT / "tests/golden/embeddings"
PATH = "/v1/embeddings"


def vectors(server, body):
    answer = server.ok(PATH, body)
    assert answer["object"] == "list" and [d["index"] for d in answer["data"]] == list(range(len(answer["data"])))
    assert all(d["object"] == "embedding" for d in answer["data"])
    return [d["embedding"] for d in answer["data"]]


def length(v):
    return math.sqrt(sum(x * x for x in v))


def test_directions_are_llamacpps(server):
    golden = json.loads((GOLDEN / "smollm2.json").read_text())
    for mine, theirs in zip(vectors(server, {"input": golden["texts"]}), golden["last"]):
        v = numpy.frombuffer(base64.b64decode(theirs), "<f2").astype(float)
        assert numpy.dot(mine, v) / numpy.linalg.norm(v) >= 0.999


@pytest.mark.parametrize(
    "model, pooling", [("smollm2", "mean"), ("qwen2.5-coder-0.5b", "mean"), ("qwen2.5-coder-0.5b", "auto")]
)
def test_directions_of_other_poolings_and_models(make_server, model, pooling):
    s = make_server("--threads", "2", "--kv-tokens", "4096", "--pooling", pooling, model=model)
    golden = json.loads((GOLDEN / f"{model}.json").read_text())
    mine = vectors(s, {"input": golden["texts"]})
    for m, theirs in zip(mine, golden["last" if pooling == "auto" else pooling]):
        v = numpy.frombuffer(base64.b64decode(theirs), "<f2").astype(float)
        assert numpy.dot(m, v) / numpy.linalg.norm(v) >= 0.999
    assert vectors(s, {"input": golden["texts"][::-1]}) == mine[::-1]


def test_forms_of_input_and_usage(server):
    text = "A radish is a root."
    ids = server.ok("/tokenize", {"content": text, "add_special": True})["tokens"]
    one = server.ok(PATH, {"input": text, "model": "smollm2", "user": "u"})
    v = one["data"][0]["embedding"]
    assert abs(length(v) - 1) < 1e-5 and one["model"] == "smollm2"
    assert one["usage"]["prompt_tokens"] == one["usage"]["total_tokens"] == len(ids)
    assert (
        vectors(server, {"input": [text]})
        == vectors(server, {"input": ids})
        == vectors(server, {"input": [ids]})
        == [v]
    )
    two = server.ok(PATH, {"input": [text, "Other."]})
    assert two["data"][0]["embedding"] == v and two["usage"]["prompt_tokens"] > len(ids)


def test_base64_is_the_same_floats(server):
    v = vectors(server, {"input": "hello"})[0]
    packed = vectors(server, {"input": "hello", "encoding_format": "base64"})[0]
    assert struct.unpack(f"<{len(v)}f", base64.b64decode(packed)) == struct.unpack(
        f"<{len(v)}f", struct.pack(f"<{len(v)}f", *v)
    )


def test_dimensions_cut_and_make_the_length_one_again(server):
    v = vectors(server, {"input": "hello"})[0]
    cut = vectors(server, {"input": "hello", "dimensions": 64})[0]
    assert len(cut) == 64 and abs(length(cut) - 1) < 1e-5
    assert numpy.allclose(cut, numpy.array(v[:64]) / length(v[:64]), atol=1e-6)
    for bad in (0, -1, 577, 1.5, "64"):
        status, e = server.post(PATH, {"input": "hello", "dimensions": bad})
        assert status == 400 and e["error"]["param"] == "dimensions"


def test_a_cached_prefix_changes_nothing_and_is_counted(server):
    head = words(120, seed=501)
    cold = server.ok(PATH, {"input": head + " and then"})
    warm = server.ok(PATH, {"input": [head + " and then", head + " or else"]})
    assert warm["data"][0]["embedding"] == cold["data"][0]["embedding"]
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


def test_the_openai_package(server):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
    texts = ["cats purr", "dogs bark", "the stock market fell"]
    answer = client.embeddings.create(model="smollm2", input=texts)  # the package asks for base64
    plain = client.embeddings.create(model="smollm2", input=texts, encoding_format="float")
    assert len(answer.data) == 3 and len(answer.data[0].embedding) == 576
    assert numpy.allclose(answer.data[2].embedding, plain.data[2].embedding, atol=1e-7)
    assert client.embeddings.create(model="smollm2", input=texts, dimensions=32).data[0].embedding[0] != 0
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="another", input="x")


@pytest.mark.parametrize(
    "body, param",
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": ["a", 3]}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "encoding_format": 1}, "encoding_format"),
    ],
)
def test_bad_bodies_name_the_field(server, body, param):
    status, e = server.post(PATH, body)
    assert status == 400 and e["error"]["param"] == param and param in e["error"]["message"], e


def test_too_long_a_text_says_maximum_context_length(server):
    status, e = server.post(PATH, {"input": [list(range(100, 9000))]})
    assert (
        status == 400
        and "maximum context length" in e["error"]["message"]
        and e["error"]["code"] == "context_length_exceeded"
    )


def test_a_thousand_inputs_come_in_order(server):
    ids = [[100 + i, 7] for i in range(600)]
    got = vectors(server, {"input": ids, "dimensions": 8})
    assert len(got) == 600 and got[17] == vectors(server, {"input": [ids[17]], "dimensions": 8})[0]
    server.wait_idle()
