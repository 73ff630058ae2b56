"""F90 on a living server: each allocation of the io thread fails once, in every kind of exchange. The client gets a whole answer,
an error, or the connection ends; never a part that looks whole, never a body without its head, and nobody waits in vain."""

import contextlib
import json
import mmap
import socket
import struct
import subprocess

import pytest
from radish_server import ROOT, TINY

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
ASK = {"prompt": "abc", "max_tokens": 30, "seed": 3, "temperature": 1, "ignore_eos": True}
SAID = {
    "messages": [{"role": "user", "content": "abc"}],
    "max_tokens": 30,
    "seed": 3,
    "temperature": 1,
    "logprobs": True,
    "top_logprobs": 2,
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    """(server, arm): arm(n) lets the io thread's n-th allocation from now fail; arm(-1) none, and returns how many have."""
    from radish_server import Server

    folder = tmp_path_factory.mktemp("faults")
    library, control = folder / "alloc_faults.so", folder / "control"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, ROOT / "tests/server/alloc_faults.c"], check=True
    )
    control.write_bytes(struct.pack("qqq", 0, -1, 0) + bytes(4096 - 24))
    s = Server(
        "--threads",
        "1",
        "--kv-tokens",
        "8192",
        "--drain",
        "1",
        model=TINY,
        env={"LD_PRELOAD": str(library), "ALLOC_FAULTS": str(control)},
    )
    with open(control, "r+b") as f, mmap.mmap(f.fileno(), 4096) as shared:
        struct.pack_into("q", shared, 0, s.process.pid)

        def arm(n):
            struct.pack_into("q", shared, 8, -1)
            (failed,) = struct.unpack_from("q", shared, 16)
            struct.pack_into("q", shared, 16, 0)
            struct.pack_into("q", shared, 8, n)
            return failed

        yield s, arm
        arm(-1)
        assert s.stats()["engine"]["accounting_errors"] == 0
        assert s.stop() == 0


def exchange(server, parts):
    """What comes back until the server closes. A client that waits 20 s has waited in vain."""
    out = b""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        for part in parts:
            s.sendall(part)
        while data := s.recv(1 << 16):
            out += data
    return out


def answers(raw):
    """[(status, type, body, whole)] of the bytes; every one but the last must be whole, and all of them begin with a head."""
    found = []
    while raw:
        assert raw.startswith(b"HTTP/1.1 "), raw[:200]
        assert all(whole for *_, whole in found), raw[:200]
        head, end, raw = raw.partition(b"\r\n\r\n")
        if not end:
            return [*found, (0, "", b"", False)]
        fields = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:])
        status, kind = int(head.split(b" ")[1]), fields.get("content-type", "")
        if status == 100:
            continue
        if "content-length" in fields:
            n = int(fields["content-length"])
            found.append((status, kind, raw[:n], len(raw) >= n))
            raw = raw[n:]
            continue
        body, whole = b"", False
        while raw and not whole:
            size, end, rest = raw.partition(b"\r\n")
            n = int(size, 16) if end else 0
            if not end or len(rest) < n + 2:
                break
            assert rest[n : n + 2] == b"\r\n", rest[:100]
            body, raw, whole = body + rest[:n], rest[n + 2 :], n == 0
        found.append((status, kind, body, whole))
        raw = raw if whole else b""
    return found


def text_of(body):
    """The text of a stream, or None where an error ended it."""
    events = [e.removeprefix(b"data: ") for e in body.split(b"\n\n") if e and not e.startswith(b":")]
    if any(b'"error":' in e for e in events):
        return None
    assert events and events[-1] == b"[DONE]", body[-300:]
    choices = [json.loads(e)["choices"][0] for e in events[:-1]]
    assert choices[-1]["finish_reason"] == "length", body[-600:]
    return "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices)


def close(request):
    return request.replace(b"Host: localhost\r\n", b"Host: localhost\r\nConnection: close\r\n", 1)


def scenarios(s):
    ask, said = json.dumps(ASK).encode(), json.dumps(SAID).encode()
    stream = json.dumps(ASK | {"stream": True, "return_token_ids": True}).encode()
    talk = json.dumps(SAID | {"stream": True}).encode()
    chunked = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return {
        "get": [LAST],
        "refused": [close(s.post_bytes("/nothing", b"{}"))],
        "pipelined": [GET * 40 + LAST],
        "whole": [close(s.post_bytes(TEXT, ask))],
        "expect": [close(s.post_bytes(TEXT, ask, ["Expect: 100-continue"]))],
        "chunked": [chunked] + [b"%x\r\n%b\r\n" % (len(p), p) for p in (ask[:7], ask[7:])] + [b"0\r\n\r\n"],
        "stream": [close(s.post_bytes(TEXT, stream))],
        "chat": [close(s.post_bytes(CHAT, said))],
        "chat stream": [close(s.post_bytes(CHAT, talk))],
    }


NAMES = ["get", "refused", "pipelined", "whole", "expect", "chunked", "stream", "chat", "chat stream"]


@pytest.mark.parametrize("name", NAMES)
def test_F90_every_allocation_of_the_io_thread_fails_once(rig, name):
    s, arm = rig
    parts = scenarios(s)[name]
    arm(-1)
    want = answers(exchange(s, parts))
    assert want and all(whole for *_, whole in want)
    texts = [text_of(body) if "event-stream" in kind else body for _, kind, body, _ in want]
    n, outcomes = 0, {"whole": 0, "error": 0, "cut": 0}
    while True:
        arm(n)
        got = answers(exchange(s, parts))
        if arm(-1) == 0:
            break
        n += 1
        for i, (status, kind, body, whole) in enumerate(got):
            if not whole:
                outcomes["cut"] += 1
                continue
            text = text_of(body) if "event-stream" in kind else body
            failed = text is None or (status != want[i][0] and status in (500, 503))
            outcomes["error" if failed else "whole"] += 1
            if failed:
                continue
            assert status == want[i][0], (n, status, body)
            if "event-stream" in kind:
                assert text == texts[i], (n, text, texts[i])
            elif status == 200 and "choices" in json.loads(body):
                assert json.loads(body)["choices"] == json.loads(texts[i])["choices"], n
        outcomes["cut"] += len(want) - len(got)
    print(f"{name}: {n} allocations failed: {outcomes}")
    assert n > 3
    s.wait_idle()
    assert answers(exchange(s, parts))[-1][0] == want[-1][0]
