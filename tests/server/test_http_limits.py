"""What one client can make a connection cost: pipelined floods, a stopped process."""

import contextlib
import os
import signal
import socket
import threading
import time

import pytest
from radish_server import SANITIZED, TINY, Server

TEXT = "/v1/completions"
MODELS = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def tiny():
    s = Server("--threads", "1", "--kv-tokens", "8192", "--send-timeout", "2", "--drain", "1", model=TINY)
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def memory(server):
    """KiB of anonymous memory."""
    with open(f"/proc/{server.process.pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon"))


def is_open(server, s):
    """The server's end is established, as the kernel lists it; a close moves it to another state."""
    here, there = f":{server.port:04X} ", f":{s.getsockname()[1]:04X} 01 "
    with open("/proc/net/tcp") as f:
        return any(here in line and there in line for line in f)


def small_receiver(server):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", server.port))
    return s


def test_a_client_that_pipelines_and_never_reads_costs_little_and_is_dropped(tiny):
    """Each of eight sends what it can of 16 MiB of requests, whose answers would be 400 MiB."""
    assert tiny.get("/v1/models")[0] == 200
    before, taken, clients = memory(tiny), [], [small_receiver(tiny) for _ in range(8)]
    most = before
    flood = MODELS * 4096
    for s in clients:
        s.setblocking(False)
        n = 0
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while n < 16 << 20:
                n += s.send(flood)
        taken.append(n)
        most = max(most, memory(tiny))
    end = time.monotonic() + 20
    cut = set()
    while len(cut) < 8 and time.monotonic() < end:
        for i, s in enumerate(clients):
            with contextlib.suppress(BlockingIOError):
                try:
                    s.send(MODELS)
                except ConnectionError:
                    cut.add(i)
        most = max(most, memory(tiny))
        assert tiny.get("/v1/models")[0] == 200  # others have their turns
        time.sleep(0.05)
    for s in clients:
        s.close()
    assert len(cut) == 8, (cut, taken)
    assert SANITIZED or most - before < 8 * 1024, (
        most - before,
        taken,
    )  # a MiB each; the answers of one turn, and its input


def test_pipelined_requests_are_answered_in_order_however_slowly_they_are_read(tiny):
    """More answers than the output limit, of two kinds; the reader stops in between."""
    n = 3000
    kinds = [MODELS, b"GET /v1/models/none HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: n%d\r\n\r\n"]
    with small_receiver(tiny) as s:
        sender = threading.Thread(
            target=lambda: s.sendall(b"".join(kinds[i % 2] % i if i % 2 else MODELS for i in range(n)))
        )
        sender.start()
        s.settimeout(20)
        f = s.makefile("rb")
        for i in range(n):
            status, length, rid = int(f.readline().split()[1]), 0, b""
            while (line := f.readline()) != b"\r\n":
                name, value = line.lower().split(b":", 1)
                length = int(value) if name == b"content-length" else length
                rid = value.strip() if name == b"x-request-id" else rid
            assert len(f.read(length)) == length
            assert status == (404 if i % 2 else 200) and (i % 2 == 0 or rid == b"n%d" % i), i
            if i % 1000 == 0:
                time.sleep(0.3)
        sender.join()


def test_pipelined_requests_before_a_half_close_are_all_answered(tiny):
    with socket.create_connection(("127.0.0.1", tiny.port), timeout=20) as s:
        s.sendall(MODELS * 100)
        s.shutdown(socket.SHUT_WR)
        out = b""
        while part := s.recv(1 << 16):
            out += part
    assert out.count(b"HTTP/1.1 200 OK") == 100 and out.endswith(b"}")


def test_411_ends_the_connection(tiny):
    """What follows a POST without a length is its body for its sender, not a request."""
    out = tiny.raw(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    assert out.startswith(b"HTTP/1.1 411") and out.count(b"HTTP/1.1 ") == 1 and b"Connection: close" in out
    out = tiny.raw(
        b"POST /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    assert out.startswith(b"HTTP/1.1 404") and out.count(b"HTTP/1.1 ") == 1


@pytest.mark.skipif(
    not os.environ.get("RADISH_LONG"), reason="stands still for 11 s; test_deadline_clock.c is its short form"
)
def test_F98_a_stopped_process_does_not_take_its_pause_for_the_clients(make_server):
    """SIGSTOP for longer than a head may take: after SIGCONT all of the heads that were begun can be ended."""
    s = make_server("--threads", "1", "--kv-tokens", "8192", model=TINY)
    clients = [socket.create_connection(("127.0.0.1", s.port), timeout=20) for _ in range(100)]
    for c in clients:
        c.sendall(MODELS[:10])
    assert s.get("/v1/models")[0] == 200
    time.sleep(0.6)
    os.kill(s.process.pid, signal.SIGSTOP)
    time.sleep(11)
    os.kill(s.process.pid, signal.SIGCONT)
    assert s.get("/v1/models")[0] == 200  # it has run,
    time.sleep(0.6)  # and looked at its deadlines
    for c in clients:
        c.sendall(MODELS[10:])
    assert {c.recv(1000).split(b" ", 2)[1] for c in clients} == {b"200"}
    for c in clients:
        c.close()
    s.ok(TEXT, {"prompt": "a", "max_tokens": 1})
