"""The door (src/server/http/http_door.h): /health is answered whatever other clients hold, and whatever the io threads do."""

import contextlib
import ctypes
import json
import os
import resource
import shutil
import socket
import time

import pytest
from radish_server import TINY, Server

TEXT = "/v1/completions"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b'{"status":"ok"}'
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=8)


def probe(server):
    """Seconds to an answer on a new connection; who waits for deadlines of others needs 10."""
    begun = time.monotonic()
    with connect(server) as s:
        s.sendall(HEALTH)
        out = b""
        while BODY not in out:
            part = s.recv(4096)
            assert part, out
            out += part
    assert out.startswith(b"HTTP/1.1 200 OK\r\n")
    return time.monotonic() - begun


@contextlib.contextmanager
def stopped_thread(tid):
    """That thread alone stands still."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4

    def ptrace(what):
        if libc.ptrace(what, tid, 0, 0):
            raise OSError(ctypes.get_errno(), f"ptrace {what:#x}")

    try:
        ptrace(PTRACE_SEIZE)
    except PermissionError as e:
        pytest.skip(f"threads cannot be stopped here: {e}")
    ptrace(PTRACE_INTERRUPT)
    os.waitpid(tid, 0x40000000)  # __WALL
    yield
    ptrace(PTRACE_DETACH)


def test_health_under_4300_half_sent_heads(make_server):
    """More than there may be connections. Others are served again when the oldest heads had a second."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 9000:
        pytest.skip("fewer than 9,000 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    s = make_server("--threads", "1", "--kv-tokens", "8192", "--io-threads", "2", model=TINY)
    held = []
    for _ in range(4300):
        held.append(connect(s))
        held[-1].sendall(b"GET /health HTTP/1.1\r\nHost: loc")
    times = sorted(probe(s) for _ in range(200))
    print(f"/health: median {times[100] * 1000:.1f} ms, p99 {times[198] * 1000:.1f} ms, max {times[199] * 1000:.1f} ms")
    assert times[-1] < 8 and times[100] < 1  # who waits for deadlines of others needs 10
    for _ in range(20):
        status, _, body = s.request("POST", TEXT, {"prompt": "a", "max_tokens": 1}, timeout=8)
        if status == 200:
            break
        assert status == 503 and json.loads(body)["error"]["message"]
        time.sleep(0.3)
    assert status == 200
    for c in held:
        c.close()
    assert s.stats()["engine"]["accounting_errors"] == 0 and s.stop() == 0


def test_health_with_64_descriptors(make_server):
    """Half heads, heads of other requests and idle connections take all that there are; a request that runs goes on."""
    s = make_server(
        "--threads", "1", "--kv-tokens", "8192", model=TINY, before=(shutil.which("prlimit"), "--nofile=64:64")
    )
    running = s.open_request(TEXT, {"prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True, "n": 2})
    held = []
    for i in range(100):
        with contextlib.suppress(OSError):
            held.append(connect(s))
            if i % 3:
                held[-1].sendall(
                    b"GET /health HT"
                    if i % 3 == 1
                    else b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
                )
        if i % 5 == 0:
            probe(s)
    assert max(probe(s) for _ in range(50)) < 4
    assert len(os.listdir(f"/proc/{s.process.pid}/fd")) < 64
    got = b""
    while b"[DONE]" not in got:
        part = running.recv(65536)
        assert part, got[-200:]
        got += part
    for c in (*held, running):
        c.close()
    s.wait_until(lambda: s.post(TEXT, {"prompt": "a", "max_tokens": 2})[0] == 200)


def test_health_while_the_io_thread_is_busy(make_server):
    """The only io thread stands still. Kept connections and new ones are answered, and those that ask for more when it goes on."""
    s = make_server("--threads", "1", "--kv-tokens", "8192", model=TINY)
    with connect(s) as kept, connect(s) as other:
        kept.sendall(HEALTH)
        assert kept.recv(4096).endswith(BODY)
        with stopped_thread(s.process.pid):
            for _ in range(20):
                probe(s)
                kept.sendall(HEALTH)
                assert kept.recv(4096).endswith(BODY)
            other.sendall(b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert other.recv(65536).startswith(b"HTTP/1.1 200")


def test_one_connection_asks_health_and_other_things(make_server):
    """It moves from the door to an io thread, which answers in the same words; pipelined and cut requests too."""
    s = make_server("--threads", "1", "--kv-tokens", "8192", model=TINY)
    post = s.post_bytes(TEXT, json.dumps({"prompt": "a", "max_tokens": 1}).encode())

    def answer(c):
        out = b""
        while b"\r\n\r\n" not in out:
            part = c.recv(1)
            assert part, out
            out += part
        n = next(int(line.split(b":")[1]) for line in out.split(b"\r\n") if line.lower().startswith(b"content-length"))
        lines = [line for line in out.split(b"\r\n") if not line.startswith(b"X-Request-Id")]
        return lines, b"".join(c.recv(1) for _ in range(n))

    with connect(s) as c:
        seen = []
        for ask in (HEALTH, HEALTH, post, HEALTH):
            c.sendall(ask)
            seen.append(answer(c))
        assert seen[0] == seen[1] == seen[3] and seen[0][1] == BODY
        assert b"200 OK" in seen[2][0][0]
        c.sendall(HEALTH[:20])
        time.sleep(0.05)
        c.sendall(HEALTH[20:] + HEALTH + post)
        assert [answer(c)[1][:9] for _ in range(3)] == [BODY[:9], BODY[:9], b'{"id":"cm']
    for ask, status, more in (
        (HEALTH.replace(b"GET", b"HEAD"), b"200", b"Content-Length: 15"),
        (HEALTH.replace(b"localhost", b"evil.example"), b"403", b"Host header"),
        (HEALTH.replace(b"1.1", b"1.0"), b"200", b"Connection: close"),
        (
            HEALTH.replace(b"\r\n\r\n", b"\r\nOrigin: http://localhost:3\r\n\r\n"),
            b"200",
            b"Access-Control-Allow-Origin: http://localhost:3",
        ),
    ):
        with connect(s) as c:
            c.sendall(ask)
            out = c.recv(4096)
            assert out.split(b" ")[1] == status and more in out, out


def test_health_says_that_the_server_ends(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "8192", "--drain", "1", model=TINY)
    held = s.open_request(TEXT, {"prompt": "a", "max_tokens": 200, "n": 16, "ignore_eos": True})
    s.wait_until(lambda: s.stats()["requests"]["decode"] > 0)
    s.process.terminate()
    seen = set()
    with contextlib.suppress(OSError):
        while s.process.poll() is None:
            status, headers, body = s.request("GET", "/health", timeout=5)
            seen.add(status)
            if status == 503:
                assert headers["retry-after"] == "1" and b"shutting down" in body and headers["connection"] == "close"
    assert 503 in seen
    held.close()
    assert s.process.wait(20) == 0
