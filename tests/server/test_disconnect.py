"""A client that leaves, in any phase, frees everything and stops nobody else; slow readers do not hold others up."""

import contextlib
import json
import socket
import struct
import threading
import zlib

import pytest
from radish_server import token_ids

TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def small():
    """Two may run, the rest queues."""
    from radish_server import Server

    s = Server("--threads", "1", "--kv-tokens", "16384", "--max-running", "2", "--drain", "1")
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert_no_late_steps(s)
    assert s.stop() == 0


def assert_no_late_steps(server):
    """F44, counted by the engine: who is cancelled has rows in one step more at most, the one that was being begun."""
    assert server.stats()["engine"]["steps_after_cancel"] <= 1


def leave(s, how):
    if how == "reset":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half-close":
        s.shutdown(socket.SHUT_WR)
        return
    s.close()


def gone_within(server, before, n, seconds):
    """n more were cancelled; seconds is generous: one step of a busy machine."""
    server.wait_until(lambda: server.stats()["requests"]["cancelled"] >= before + n, seconds)


def assert_counted(server, before, phase, n):
    """Each is counted once, where it was: the last in phase (a prompt may be done when its client is found gone)."""
    now = server.stats()["cancelled"]
    more = {k: now[k] - before[k] for k in now}
    assert sum(more.values()) == n, more
    where = ("prefill", "decode") if phase == "prefill" else (phase,)
    assert sum(more[k] for k in where) >= 1, more
    assert sum(now.values()) == server.stats()["requests"]["cancelled"] + now["preparing"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize("phase", ["prefill", "decode", "queued"])
def test_leaving_frees_everything(small, phase, how, stream):
    seed = zlib.crc32(repr((phase, how, stream)).encode()) % 100000
    long = {
        "prompt": token_ids(6 if phase != "prefill" else 4000, seed=seed),
        "max_tokens": 3000,
        "ignore_eos": True,
        "stream": stream,
    }
    before = small.stats()["requests"]["cancelled"]
    at = small.stats()["cancelled"]
    sockets = []
    if phase == "queued":  # requests prepared at one time may pass each other: two run first
        sockets = [small.open_request(TEXT, long | {"prompt": token_ids(6, seed=seed + i)}) for i in range(2)]
        small.wait_until(lambda: small.stats()["requests"]["decode"] == 2)
    sockets.append(small.open_request(TEXT, long))
    small.wait_until(lambda: small.stats()["requests"][phase] >= 1)
    if phase == "queued":
        leave(sockets[2], how)
        gone_within(small, before, 1, 30)
        assert small.stats()["requests"]["decode"] == 2  # the others run on
    for s in sockets[:2]:
        leave(s, how)
    gone_within(small, before, len(sockets), 30)
    small.wait_idle()
    assert_no_late_steps(small)
    assert_counted(small, at, phase, len(sockets))
    for s in sockets:
        s.close()


def test_leaving_while_waiting_for_a_pending_prefix(small):
    ask = {"prompt": token_ids(1500, seed=77), "max_tokens": 1}
    before = small.stats()["requests"]["cancelled"]
    first = small.open_request(TEXT, ask)
    small.wait_until(lambda: small.stats()["requests"]["prefill"] == 1)
    second = small.open_request(TEXT, ask)
    small.wait_until(lambda: small.stats()["requests"]["waiting"] == 1)
    at = small.stats()["cancelled"]["waiting"]
    second.close()
    gone_within(small, before, 1, 30)
    assert small.stats()["cancelled"]["waiting"] == at + 1
    assert b"HTTP/1.1 200" in first.recv(65536)
    first.close()
    small.wait_idle()


def test_leaving_in_the_head_and_in_the_body(small):
    whole = small.post_bytes(TEXT, json.dumps({"prompt": "hi", "max_tokens": 1}).encode())
    for n in range(1, len(whole), 9):
        with socket.create_connection(("127.0.0.1", small.port)) as s:
            s.sendall(whole[:n])
    small.wait_idle()
    small.ok(TEXT, {"prompt": "hi", "max_tokens": 1})


def test_leaving_right_away_leaves_nothing(small):
    """The prep workers still have it when the client leaves."""
    for i in range(30):
        small.open_request(
            TEXT, {"prompt": token_ids(500, seed=900 + i), "max_tokens": 500, "ignore_eos": True}
        ).close()
    small.wait_idle()


def test_the_computed_prefix_stays(small):
    prompt = token_ids(1500, seed=55)
    s = small.open_request(TEXT, {"prompt": prompt, "max_tokens": 1})
    start = small.stats()["tokens"]["prompt_computed"]
    small.wait_until(lambda: small.stats()["requests"]["prefill"] == 1)
    small.wait_until(lambda: small.stats()["tokens"]["prompt_computed"] > start or small.active() == 0)
    s.close()
    small.wait_idle()
    assert small.ok(TEXT, {"prompt": prompt, "max_tokens": 1})["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_reader_that_stops_pauses_its_own_request_only(small):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", small.port))
    body = json.dumps(
        {"prompt": token_ids(6, seed=5), "max_tokens": 3000, "ignore_eos": True, "stream": True, "logprobs": 20}
    ).encode()
    s.sendall(small.post_bytes(TEXT, body))
    small.wait_until(lambda: small.stats()["requests"]["decode"] == 1)
    for i in range(3):
        small.ok(TEXT, {"prompt": token_ids(20, seed=300 + i), "max_tokens": 8})
    leave(s, "reset")
    small.wait_idle()


def test_pings_while_nothing_is_sent(small):
    """Two requests run; the stream of a third has its headers at once and comments until its turn comes."""
    held = [
        small.open_request(TEXT, {"prompt": token_ids(6, seed=40 + i), "max_tokens": 8000, "ignore_eos": True})
        for i in range(2)
    ]
    small.wait_until(lambda: small.stats()["requests"]["decode"] == 2)
    s = small.open_request(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 2}
    )
    s.settimeout(20)
    seen = b""
    while b": ping\n\n" not in seen:
        part = s.recv(65536)
        assert part, seen
        seen += part
    assert b"text/event-stream" in seen and b'"role":"assistant"' in seen
    for h in held:
        h.close()
    while b"[DONE]" not in seen:
        seen += s.recv(65536)
    s.close()
    small.wait_idle()


def test_many_connections_come_and_go(small):
    def visits():
        for _ in range(20):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", small.port)) as s:
                s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                s.recv(10)

    threads = [threading.Thread(target=visits) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert small.get("/health")[0] == 200
