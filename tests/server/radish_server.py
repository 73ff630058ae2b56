"""A radish server as a child process, and small clients for it: JSON requests, streams, raw bytes."""

import contextlib
import http.client
import json
import os
import random
import re
import shlex
import socket
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RADISH_BUILD", ROOT / "build"))
PATIENCE_S = (
    600  # for an answer: a bound on hanging, no promise; a busy machine with sanitizers takes minutes for a full queue
)
# What such a build takes of memory and stack is not the program's.
MORE_FLAGS = shlex.split(os.environ.get("RADISH_SERVER_FLAGS", ""))  # of every server: "--backend mlx"
SANITIZED = BUILD.name.endswith(("asan", "tsan", "msan"))
os.environ["RADISH_CACHE"] = ""  # no disk cache but where a test asks for one
os.environ["RADISH_CONFIG"] = ""  # nor what this machine's servers are set to
JSON = {"Content-Type": "application/json"}
TINY = ROOT / "tests/golden/llama/tiny-llama.gguf"  # 96 tokens, a context of 256, answers of noise within milliseconds


def model_path(name="smollm2"):
    if isinstance(name, Path):
        return name
    out = subprocess.run([ROOT / "tools/fetch-model", name], check=True, capture_output=True, text=True)
    return out.stdout.strip().splitlines()[-1]


SECRET = re.compile(rb"0x[0-9a-fA-F]{6,}|/root/|/home/|/tmp/|/work/|\.gguf|src/|\.c:\d")


def reveals_nothing(error):
    """F52: no error of the whole suite holds an address or a path of this machine."""
    found = SECRET.search(error)
    assert not found, (found.group(), error[:1000])


def free_port():
    """Of those that the system gives to no connection by itself, where it could be taken before the server has it."""
    for _ in range(1000):
        port = random.SystemRandom().randrange(12000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def is_alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def gone(pid, seconds=10):
    end = time.monotonic() + seconds
    while is_alive(pid):
        assert time.monotonic() < end, f"{pid} still runs"
        time.sleep(0.02)


class Server:
    def __init__(
        self, *flags, wait=True, model="smollm2", log=subprocess.DEVNULL, before=(), env=None, port=None, fds=()
    ):
        """before: words of a command that starts it (prlimit ...). log: a file for its log. port: 0 for no --port; the
        caller sets it. fds: descriptors that it inherits. model None: said elsewhere."""
        self.port = free_port() if port is None else port
        self.process = subprocess.Popen(
            [
                *before,
                BUILD / "radish",
                "serve",
                *([] if model is None else [model_path(model)]),
                *(["--port", str(self.port)] if self.port else []),
                *flags,
                *MORE_FLAGS,
            ],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=os.environ | (env or {}),
            pass_fds=fds,
        )
        if wait:
            self.wait_ready()

    def wait_ready(self):
        for _ in range(20 * PATIENCE_S):
            assert self.process.poll() is None, "the server ended by itself"
            with contextlib.suppress(OSError):
                if self.get("/health")[0] == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"not ready within {PATIENCE_S} s")

    def stop(self):
        self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def connect(self, timeout=PATIENCE_S):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=PATIENCE_S):
        """(status, headers in lower case, body bytes)"""
        with contextlib.closing(self.connect(timeout)) as c:
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            c.request(method, path, body, JSON | (headers or {}) if body is not None else headers or {})
            r = c.getresponse()
            data = r.read()
            if r.status >= 400:
                reveals_nothing(data)
            return r.status, {k.lower(): v for k, v in r.getheaders()}, data

    def get(self, path, headers=None):
        status, _, body = self.request("GET", path, headers=headers)
        return status, json.loads(body)

    def post(self, path, body, headers=None):
        status, _, answer = self.request("POST", path, body, headers)
        return status, json.loads(answer)

    def ok(self, path, body):
        status, answer = self.post(path, body)
        assert status == 200, answer
        return answer

    def stats(self):
        return self.get("/stats")[1]

    def stream(self, path, body):
        """The chunks of a stream; every line is checked to be valid UTF-8 and JSON, the last to be [DONE]."""
        with contextlib.closing(self.connect()) as c:
            c.request("POST", path, json.dumps(body | {"stream": True}), JSON)
            r = c.getresponse()
            assert r.status == 200, r.read()
            assert r.getheader("Content-Type") == "text/event-stream"
            events = r.read().decode("utf-8").split("\n\n")
        assert events.pop() == "" and events.pop() == "data: [DONE]"
        return [json.loads(e.removeprefix("data: ")) for e in events if not e.startswith(":")]

    def raw(self, data, timeout=20, until_close=True):
        """Sends bytes, returns what comes until the server closes (or the first read)."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            s.sendall(data)
            out = b""
            while part := s.recv(65536):
                out += part
                if not until_close:
                    break
            return out

    def post_bytes(self, path, body, headers=()):
        """The raw bytes of a POST request."""
        head = [
            f"POST {path} HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *headers,
        ]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + body

    def open_request(self, path, body):
        """A socket on which a request was sent and nothing read."""
        s = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        s.sendall(self.post_bytes(path, json.dumps(body).encode()))
        return s

    def active(self):
        r = self.stats()["requests"]
        return sum(r[k] for k in ("preparing", "queued", "waiting", "prefill", "decode"))

    def cpu_s(self):
        """Seconds of the processor that all its threads have had, exact to the nanosecond: /proc counts ticks of 10 ms."""
        return time.clock_gettime(~self.process.pid << 3 | 2)  # the kernel's clock id of another process

    def wait_until(self, what, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if what():
                return
            time.sleep(0.02)
        raise AssertionError(f"not within {seconds} s: {self.stats()}")

    def wait_idle(self, seconds=60):
        self.wait_until(lambda: self.active() == 0, seconds)
        pages = self.stats()["pages"]
        assert pages["locked"] == 0 and pages["pending"] == 0, pages
        assert pages["total"] == pages["free"] + pages["ready"] + pages["quarantined"], pages


def words(n, seed=0):
    """Text of about n tokens that no other seed shares a prefix with."""
    names = ["red", "blue", "house", "river", "stone", "cloud", "paper", "glass", "wheel", "garden", "winter", "music"]
    state = seed * 2654435761 + 12345
    out = [f"{seed}:"]
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(names[(state >> 33) % len(names)])
    return " ".join(out)


def token_ids(n, seed=0):
    """n token ids, different from the first on for each seed."""
    return [1000 + (seed * 7919 + i * 31 + i * i) % 20000 for i in range(n)]
