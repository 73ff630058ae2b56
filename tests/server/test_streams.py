"""Streams: 32 at once deliver byte for byte what the same requests give unstreamed, in every API; pings; progress."""

import concurrent.futures
import contextlib
import json
import time

import pytest
from radish_server import JSON, TINY, Server

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
N = 32


@pytest.fixture(scope="module", params=[1, 3], ids=["1 io thread", "3 io threads"])
def tiny(request):
    s = Server("--threads", "1", "--kv-tokens", "32768", "--io-threads", str(request.param), model=TINY)
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def ask(i):
    """(path, body): all different, of all three APIs, drawn at random from a seed."""
    body = {"max_tokens": 60 + i, "temperature": 1.2, "seed": 1000 + i, "ignore_eos": True}
    text = f"{i} says: " + "ab cd " * (i % 5)
    path = (CHAT, TEXT, MESSAGES)[i % 3]
    return path, body | ({"prompt": text} if path == TEXT else {"messages": [{"role": "user", "content": text}]})


def whole_text(path, answer):
    if path == MESSAGES:
        return answer["content"][0]["text"]
    return answer["choices"][0]["text"] if path == TEXT else answer["choices"][0]["message"]["content"]


def streamed_text(server, path, body):
    """The text of a stream's events, in bytes; each event is valid UTF-8 and JSON by itself."""
    with contextlib.closing(server.connect()) as c:
        c.request("POST", path, json.dumps(body | {"stream": True}), JSON)
        r = c.getresponse()
        assert r.status == 200, r.read()
        frames = r.read().split(b"\n\n")
    assert frames.pop() == b""
    out, last = b"", frames[-1]
    assert last == (b'event: message_stop\ndata: {"type":"message_stop"}' if path == MESSAGES else b"data: [DONE]")
    for f in frames:
        if f.startswith(b":") or f == b"data: [DONE]":
            continue
        data = json.loads(f.split(b"data: ", 1)[1].decode())
        if path == MESSAGES:
            piece = data["delta"].get("text", "") if data["type"] == "content_block_delta" else ""
        else:
            choice = data["choices"][0]
            piece = choice["text"] if path == TEXT else choice["delta"].get("content") or ""
        out += piece.encode()
    return out


def test_32_streams_at_once_are_what_unstreamed_requests_give(tiny):
    asks = [ask(i) for i in range(N)]
    with concurrent.futures.ThreadPoolExecutor(N) as pool:
        streamed = list(pool.map(lambda a: streamed_text(tiny, *a), asks))
        together = list(pool.map(lambda a: whole_text(a[0], tiny.ok(*a)), asks))
    alone = [whole_text(path, tiny.ok(path, body)) for path, body in asks]
    assert [s.decode() for s in streamed] == alone == together
    assert len(set(alone)) == N and all(alone)


def test_choices_of_one_stream_are_those_of_the_whole(tiny):
    body = {
        "prompt": ["one", "two", "three"],
        "n": 4,
        "max_tokens": 40,
        "temperature": 1.1,
        "seed": 3,
        "ignore_eos": True,
    }
    whole = [c["text"] for c in tiny.ok(TEXT, body)["choices"]]
    got = [""] * 12
    for chunk in tiny.stream(TEXT, body):
        for c in chunk["choices"]:
            got[c["index"]] += c["text"]
    assert got == whole and len(set(whole)) == 12


def test_progress_of_the_prompt(tiny):
    """llama-server's prompt_progress: from nothing to all of it; the second time nearly all is cached."""
    body = {"prompt": "abcdefgh" * 25, "max_tokens": 2, "return_progress": True, "seed": 1, "ignore_eos": True}
    for turn in range(2):
        chunks = tiny.stream(TEXT, body | {"stream_options": {"include_usage": True}})
        told = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
        usage = chunks[-1]["usage"]
        assert len(told) >= 2 and {p["total"] for p in told} == {usage["prompt_tokens"]}
        assert [p["processed"] for p in told] == sorted(p["processed"] for p in told)
        assert told[0]["processed"] == 0 and told[-1]["processed"] == usage["prompt_tokens"]
        assert told[-1]["cache"] == usage["prompt_tokens_details"]["cached_tokens"] and (told[-1]["cache"] > 100) == (
            turn == 1
        )
        assert all(set(p) == {"total", "cache", "processed", "time_ms"} and p["time_ms"] >= 0 for p in told)
    assert not any("prompt_progress" in c for c in tiny.stream(TEXT, body | {"return_progress": False}))


def test_pings_come_when_a_request_asks_for_them_and_not_otherwise(make_server):
    """One may run; the streams of others wait: comments come after the request's own interval."""
    s = make_server("--threads", "1", "--kv-tokens", "8192", "--max-running", "1", "--sse-ping", "0", "--drain", "1")
    held = s.open_request(TEXT, {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True})
    s.wait_until(lambda: s.stats()["requests"]["decode"] == 1)
    waiting = [
        s.open_request(CHAT, {"messages": [{"role": "user", "content": "hi"}], "stream": True} | more)
        for more in ({"sse_ping_interval": 1}, {}, {"sse_ping_interval": -1})
    ]
    time.sleep(2.2)
    seen = []
    for w in waiting:
        w.settimeout(10)
        seen.append(w.recv(65536))
    assert [b": ping\n\n" in text for text in seen] == [True, False, False] and all(
        b"text/event-stream" in text for text in seen
    )
    for w in [held, *waiting]:
        w.close()
    s.wait_idle()
