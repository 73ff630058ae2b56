"""Connections and HTTP under attack: faults F40 to F54 of the list of faults.

Also: F41 test_http.py and tests/fuzz/fuzz_http.c; F44 test_disconnect.py; F45 test_half_open.py;
F46 test_door.py; F48 test_http_limits.py; F49 test_http_guard.c; F90 test_conn_memory.py; F52 radish_server.py looks at every error of the whole suite.

What libevent decides is in src/server/http/http_conn.h.
"""

import concurrent.futures
import contextlib
import json
import re
import resource
import shutil
import socket
import subprocess
import threading
import time

import pytest
from radish_server import BUILD, ROOT, SANITIZED, TINY, Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def tiny():
    s = Server(
        "--threads", "1", "--kv-tokens", "8192", "--io-threads", "2", "--send-timeout", "2", "--drain", "1", model=TINY
    )
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def status_of(raw):
    return int(raw.split(b" ", 2)[1]) if raw else 0


def connect(server, timeout=30):
    return socket.create_connection(("127.0.0.1", server.port), timeout=timeout)


def status_number(server, key):
    with open(f"/proc/{server.process.pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(key))


def test_F40_memory_of_a_connection_before_its_key_is_known(tiny):
    """200 clients each send 30 KB of a head that never ends: at most 64 KiB each."""
    before, held = status_number(tiny, "VmRSS"), []
    for _ in range(200):
        held.append(connect(tiny))
        held[-1].sendall(GET + b"".join(b"X-%d: " % i + b"a" * 1000 + b"\r\n" for i in range(30)))
    assert tiny.get("/health")[0] == 200
    grown = status_number(tiny, "VmRSS") - before
    for s in held:
        s.close()
    assert grown / 200 < 64, grown


def test_F40_chunked_bodies_have_the_same_limit(tiny):
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(tiny) as s, contextlib.suppress(ConnectionError):
        s.sendall(head)
        for _ in range(90):
            s.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
    with connect(tiny) as s:
        s.sendall(head + b"500000\r\n" + b" " * 0x500000 + b"\r\n")
        assert status_of(s.recv(1000)) == 413


TE, CL = b"Transfer-Encoding", b"Content-Length"
FIRST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
NEXT = b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"
AMBIGUOUS = [
    *(
        b"%s: %s\r\n" % (TE, v)
        for v in (
            b"Chunked, identity",
            b"identity",
            b"chunked;q=1",
            b"chunked, chunked",
            b"\x0bchunked",
            b"chunked\x0b",
            b'"chunked"',
            b"gzip",
            b"",
            b"chunke",
            b"chunkedd",
            b"deflate, chunked",
            b"chunked identity",
        )
    ),
    *(
        b"%s: %s\r\n" % (CL, v)
        for v in (
            b"5,",
            b",5",
            b"5;",
            b"5 5",
            b"0x5",
            b"5.0",
            b"5e0",
            b"\xb2",
            b"five",
            b"-0",
            b"+0",
            b"1_0",
            b"5\x00",
            b"9" * 30,
            b"18446744073709551621",
            b"'5'",
        )
    ),
    *(b"%s%s: 5\r\n" % (CL, c) for c in (b" ", b"\t", b"\x00", b"\x0b", b"\r")),
    *(b"%s%s: chunked\r\n" % (TE, c) for c in (b" ", b"\t", b"\x00", b"\x0b")),
    *(c + b"%s: 5\r\n" % CL for c in (b" ", b"\t", b"\x00", b":")),
    b"%s: 5\r\n%s: 6\r\n" % (CL, CL),
    b"%s: 5\r\n%s: 5\r\n" % (CL, CL),
    b"%s: 5\r\n%s: chunked\r\n" % (CL, TE),
    b"%s: chunked\r\n%s: 0\r\n" % (TE, CL),
    b"%s: chunked\r\n%s: x\r\n" % (TE, TE),
    b"X: a\r\n b\r\n%s: 5\r\n" % CL,
    b"X: a\r\n\tb\r\n%s: 5\r\n" % CL,
    b"X: a\n%s: 5\r\n" % CL,
    b"X: a\r%s: 5\r\n" % CL,
    b"X\xff: a\r\n%s: 5\r\n" % CL,
    b"(X): a\r\n%s: 5\r\n" % CL,
    b"Host: evil\r\n%s: 5\r\n" % CL,
    b"%s: 5\r\nX: \x7f\r\n" % CL,
]


def test_F41_eighty_ways_to_read_a_request_differently(tiny):
    """With the table of test_http.py more than eighty: one answer, 400, and nothing of what follows is executed."""
    assert len(AMBIGUOUS) >= 50
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda case: tiny.raw(FIRST + case + b"\r\n" + b"0\r\n\r\n" + NEXT), AMBIGUOUS))
    for case, out in zip(AMBIGUOUS, answers):
        assert status_of(out) == 400 and out.count(b"HTTP/1.1 ") == 1, (case, out[:300])


def test_F42_slow_clients_are_cut_and_hold_nobody_up(tiny):
    """300 clients send a byte of their head, or of their body, now and then, while others ask; the slow get 408 in time. So does
    who begins a body with a megabyte and then stops: what was sent quickly does not pay for minutes of silence."""
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    slow = [connect(tiny) for _ in range(300)]
    for i, s in enumerate(slow):
        s.sendall(head if i % 2 else b"P")
    slow[2].sendall(b"OST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n" + b" " * (1 << 20))
    start, times = time.monotonic(), []
    while time.monotonic() - start < 8:
        for s in slow[::10]:
            s.sendall(b"O")
        for _ in range(20):
            begun = time.monotonic()
            assert tiny.get("/health")[0] == 200
            times.append(time.monotonic() - begun)
        time.sleep(0.5)
    times.sort()
    assert times[len(times) * 99 // 100] < 4, times[-5:]  # of a busy machine; who waited for the slow would need 10
    for s in (slow[0], slow[1], slow[2], slow[10], slow[11], slow[299]):
        s.settimeout(20)
        assert status_of(s.recv(1000)) == 408
    assert time.monotonic() - start < 30
    for s in slow:
        s.close()


def test_F43_a_client_that_does_not_read_is_cut_and_its_request_cancelled(tiny):
    """--send-timeout 2. Its queue stays bounded, others are served, and what it held comes back."""

    def established():
        """The server's end, as the kernel lists it; after a close it is there in another state."""
        here, there = f":{tiny.port:04X} ", f":{s.getsockname()[1]:04X} 01 "
        with open("/proc/net/tcp") as f:
            return any(here in line and there in line for line in f)

    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", tiny.port))
    body = json.dumps(
        {"prompt": ["a"] * 60, "n": 16, "max_tokens": 200, "ignore_eos": True, "stream": True, "logprobs": 20}
    ).encode()
    s.sendall(tiny.post_bytes(TEXT, body))  # some 200 MB of events
    assert established()
    start, rss = time.monotonic(), status_number(tiny, "VmRSS")
    while established():
        assert tiny.ok(TEXT, {"prompt": "hello", "max_tokens": 4})["choices"]
        assert time.monotonic() - start < 20
        time.sleep(0.05)
    assert time.monotonic() - start > 1.5
    if not SANITIZED:  # whose own memory grows with what is touched
        assert status_number(tiny, "VmRSS") - rss < 20 << 10
    tiny.wait_idle()
    s.close()


def test_F44_leaving_after_the_last_event_and_between_requests(tiny):
    for n in (1, 5, 60):
        with connect(tiny) as s:
            s.sendall(
                tiny.post_bytes(
                    TEXT, json.dumps({"prompt": "a", "max_tokens": n, "stream": True, "ignore_eos": True}).encode()
                )
            )
            seen = b""
            while b"[DONE]" not in seen:
                seen += s.recv(65536)
        before = tiny.stats()["requests"]
        with connect(tiny) as s:  # a half-close after the whole request cancels it, or it is answered
            s.sendall(tiny.post_bytes(TEXT, json.dumps({"prompt": "a", "max_tokens": n, "ignore_eos": True}).encode()))
            s.shutdown(socket.SHUT_WR)
            out = b""
            while part := s.recv(65536):
                out += part
            assert out == b"" or json.loads(out.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == n
        tiny.wait_idle()
        after = tiny.stats()["requests"]
        taken, cancelled, length = (after[k] - before[k] for k in ("submitted", "cancelled", "length"))
        assert taken == cancelled + length <= 1 and (length or out == b""), (before, after, out)
    tiny.wait_idle()


def test_F46_no_files_left_for_connections(make_server):
    """64 files: 32 are kept back. More clients than that come; /health answers new ones all the while, because idle ones make
    room; a request that runs is not touched; when they are gone everything is as before."""
    s = make_server(
        "--threads", "1", "--kv-tokens", "8192", model=TINY, before=(shutil.which("prlimit"), "--nofile=64:64")
    )
    running = s.open_request(TEXT, {"prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True, "n": 2})
    idle = [connect(s) for _ in range(100)]
    for _ in range(20):
        assert s.get("/health")[0] == 200
    slow = []
    for i in range(60):  # not idle: each has begun a head
        slow.append(connect(s))
        slow[i].sendall(b"GET")
    got = b""
    while b"[DONE]" not in got:
        part = running.recv(65536)
        assert part, got[-200:]
        got += part
    for c in (*idle, *slow, running):
        c.close()
    s.wait_until(lambda: s.get("/health")[0] == 200)
    s.ok(TEXT, {"prompt": "a", "max_tokens": 2})
    assert s.process.poll() is None


def test_F46_a_limit_that_lets_no_client_in_is_refused(tmp_path):
    """With 14 files a server said that it was ready, and accepted nobody: what is kept back and two clients must fit."""
    line = [BUILD / "radish", "serve", TINY, "--threads", "1", "--kv-tokens", "8192", "--port", "0"]
    r = subprocess.run(
        [shutil.which("prlimit"), "--nofile=37:37", *line],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    assert r.returncode == 1 and b"37 files may be open at once (ulimit -n); wanted at least 38" in r.stderr, r


def test_F47_short_interrupted_and_repeated_socket_calls(make_server, tmp_path):
    """Every read, write and accept may fail with EINTR or EAGAIN or do a part of its work: nobody notices. A client that is gone
    when something is written to it (SIGPIPE) ends nothing."""
    library = tmp_path / "io_faults.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, ROOT / "tests/server/io_faults.c", "-ldl"],
        check=True,
    )
    # a sanitizer's own library would have to come first: this test is of the plain build
    s = make_server("--threads", "1", "--kv-tokens", "8192", model=TINY, env={"LD_PRELOAD": str(library)})
    body = {"prompt": "hello", "max_tokens": 100, "seed": 5, "temperature": 1, "ignore_eos": True, "logprobs": 5}
    want = s.ok(TEXT, body)["choices"][0]["text"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for chunks in pool.map(lambda _: s.stream(TEXT, body), range(16)):
            assert "".join(c["choices"][0]["text"] for c in chunks) == want
    big = {"content": "abc " * 50000}
    assert s.ok("/tokenize", big)["count"] > 50000
    for _ in range(20):
        s.open_request(TEXT, body | {"stream": True}).close()
    s.wait_idle()
    assert s.get("/health")[0] == 200 and s.process.poll() is None


def test_F48_ten_thousand_requests_on_one_connection(tiny):
    n, seen = 10_000, 0
    with connect(tiny) as s:
        sender = threading.Thread(target=lambda: [s.sendall((GET + b"\r\n") * 100) for _ in range(n // 100)])
        sender.start()
        tail = b""
        while seen < n:
            part = s.recv(1 << 20)
            assert part, seen
            data = tail + part
            seen += data.count(b'{"status":"ok"}')
            tail = data[data.rfind(b'{"status":"ok"}') + 15 :]
        sender.join()
    assert seen == n


ROUTES = [
    "/v1/models",
    "/v1/models/x",
    "/stats",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/nothing",
    "/v1",
]


def spellings(path):
    yield path
    for old, new in (("/", "//"), ("/", "/./"), ("/", "/../"), ("/", "%2f"), ("/", "/%2e%2e/")):
        yield path.replace(old, new)
        yield new + path[1:]
    yield from (path + tail for tail in ("/", ";", ";x=1", "?", "?key=1", "%20", "..", "/..", "%2f", "%3b"))
    yield path.upper()
    yield "http://localhost" + path
    yield "".join("%%%02x" % ord(c) for c in path[1:]).join(("/", ""))


def test_F49_F50_no_spelling_of_a_path_goes_without_the_key(make_server):
    """More than 100 paths, with and without wrong keys: 401 for all that is not public, whatever the route would have been."""
    s = make_server("--api-key", "s3cret", "--kv-tokens", "4096", "--threads", "1", model=TINY)
    public = {"/", "/health"}
    wrong = [
        b"",
        b"Authorization: Bearer s3cre\r\n",
        b"X-Api-Key: s3crets\r\n",
        b"Authorization: s3cret\r\n",
        b"Cookie: api_key=s3cret\r\n",
    ]
    n = 0
    with connect(s) as c:
        f = c.makefile("rb")
        for path in ROUTES:
            for target in spellings(path):
                for method in (b"GET", b"POST"):
                    c.sendall(
                        b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n%s\r\n"
                        % (method, target.encode(), wrong[n % len(wrong)])
                    )
                    status, length, close = int(f.readline().split()[1]), 0, False
                    while (line := f.readline()) != b"\r\n":
                        length = int(line.split(b":")[1]) if line.lower().startswith(b"content-length") else length
                        close = close or line.lower().startswith(b"connection: close")
                    f.read(length)
                    n += 1
                    assert status == 401 or status == 400 and "%" in target or target in public, (
                        method,
                        target,
                        status,
                    )
                    if close:
                        c.close()
                        c = connect(s)
                        f = c.makefile("rb")
        c.close()
    assert n > 400
    assert s.get("/stats", {"Authorization": "Bearer s3cret"})[0] == 200


def test_F51_pages_of_other_hosts_and_names_that_point_here(tiny):
    ask = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    for host in (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "localhost:80:80",
        "127.0.0.1@evil.example",
        "2130706433",
        "0x7f.1",
        "",
    ):
        assert tiny.post(TEXT, ask, {"Host": host})[0] in (400, 403), host
    for origin in (
        "http://evil.example",
        "https://localhost.evil.example",
        "null",
        "file://",
        "http://127.0.0.1.evil.example",
    ):
        status, headers, _ = tiny.request("POST", TEXT, ask, {"Origin": origin})
        assert status == 403 and "access-control-allow-origin" not in headers, origin
    for kind in (
        "text/plain",
        "text/plain;application/json",
        "multipart/form-data",
        "application/octet-stream",
        "application/jsonx",
    ):
        assert tiny.post(TEXT, ask, {"Content-Type": kind})[0] == 415, kind
    status, headers, _ = tiny.request("POST", TEXT, ask, {"Origin": "http://localhost:5173"})
    assert (
        status == 200
        and headers["access-control-allow-origin"] != "*"
        and "access-control-allow-credentials" not in headers
    )


def test_F52_errors_hold_nothing_of_other_requests(tiny):
    canary = "canary-5831"
    tiny.ok(TEXT, {"prompt": canary, "max_tokens": 1})
    for path, body in (
        (TEXT, {"prompt": ""}),
        (CHAT, {"messages": 5}),
        ("/v1/messages", {}),
        ("/tokenize", {}),
        ("/nothing", {}),
        (TEXT, {"prompt": [5] * 5000}),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "model": "x" * 500}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/apply-template", {"messages": [{"role": "user"}]}),
    ):
        status, _, raw = tiny.request("POST", path, body)  # which also looks for addresses and paths
        assert status >= 400 and canary.encode() not in raw


def test_F53_what_clients_send_cannot_write_the_log(make_server, tmp_path):
    """Each line of the log is one of ours, in its form; no control character, no line of a client's making."""
    path = tmp_path / "log"
    with open(path, "wb") as log:
        s = make_server("--kv-tokens", "1024", "--threads", "1", "--log-level", "debug", model=TINY, log=log)
        for target in (
            b"/a%0d%0aERROR forged",
            b"/%1b[31mred",
            b"/a%00b",
            "/\u2028x".encode(),
            b"/\xff\xfe",
            b"/" + b"a" * 3000,
            b"/%e2%80%a8ERROR",
            b"/a%7fb",
        ):
            s.raw(b"GET %s HTTP/1.1\r\nHost: localhost\r\nUser-Agent: x\x1b[2J\r\nConnection: close\r\n\r\n" % target)
            s.raw(b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % target)
        s.post(
            CHAT,
            {
                "messages": [{"role": "user", "content": "a\r\nERROR forged"}],
                "model": "a\nERROR forged",
                "user": "\x1b[31m",
            },
        )
        s.stop()
    text = path.read_bytes()
    assert len(text.splitlines()) > 5
    for line in text.split(b"\n"):
        assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", line), line
        assert not line.startswith(b"ERROR") and b"\xe2\x80\xa8" not in line and len(line) < 4000, line


def test_F54_what_http_has_beside(tiny):
    """TRACE, HEAD, OPTIONS, 1.0 and Expect: test_http.py. Here what asks for another protocol, and it gets this one."""
    for lines in (
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n",
        b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n",
    ):
        out = tiny.raw(GET + lines + b"\r\n", until_close=False)
        assert status_of(out) == 200
    assert status_of(tiny.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")) == 505
    assert status_of(tiny.raw(b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")) in (
        400,
        405,
    )
    assert status_of(tiny.raw(b"TRACE /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")) == 405
    assert status_of(tiny.raw(b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")) == 204
    assert status_of(tiny.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello of TLS\r\n\r\n")) == 400
    out = tiny.raw(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert status_of(out) == 200 and out.endswith(b"\r\n\r\n")


def test_several_io_threads_share_the_clients(tiny):
    """--io-threads 2: each accepts by itself; libevent gives every new client to whichever thread wakes first."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert set(pool.map(lambda i: tiny.get("/health")[0], range(400))) == {200}
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64
