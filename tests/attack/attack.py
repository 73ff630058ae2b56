"""What the attacks share: a server with the tiny model, somebody who asks /health all the while, figures at the end.

An attack is a function f(server, n, seconds) -> its own figures as a dict; it ends its connections by itself. run() starts a
server, lets it be attacked, and checks what must hold of each: the server lives, every /health was answered, all requests end,
pages add up, no accounting error, and the memory that stayed.
"""

import argparse
import contextlib
import json
import resource
import socket
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))
from radish_server import TINY, Server

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
PROBE_S = 0.02


def connect(server, timeout=10, receive=None):
    s = socket.socket()
    if receive:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    s.settimeout(timeout)
    s.connect(("127.0.0.1", server.port))
    return s


def memory_kib(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon"))


class Prober(threading.Thread):
    """Asks /health on a new connection each time; milliseconds to the answer, and the most memory seen."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.ms, self.wrong, self.most = server, [], [], memory_kib(server)
        self.ending = threading.Event()

    def run(self):
        while not self.ending.wait(PROBE_S):
            begun = time.perf_counter()
            try:
                with connect(self.server) as s:
                    s.sendall(HEALTH)
                    out = s.recv(4096)
                if not out.startswith(b"HTTP/1.1 200 OK"):
                    self.wrong.append(out[:100].decode(errors="replace"))
            except OSError as e:
                self.wrong.append(repr(e))
            self.ms.append((time.perf_counter() - begun) * 1000)
            with contextlib.suppress(OSError, StopIteration):
                self.most = max(self.most, memory_kib(self.server))

    def end(self):
        self.ending.set()
        self.join()
        ms = sorted(self.ms)
        at = lambda share: round(ms[min(len(ms) - 1, int(len(ms) * share))], 2)
        return {"probes": len(ms), "wrong": self.wrong[:5], "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1)}


def run(name, attack, n, seconds, flags=()):
    """The figures; raises when something does not hold. Prints them as a line of JSON."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = Server("--threads", "1", "--kv-tokens", "8192", "--send-timeout", "2", "--drain", "1", *flags, model=TINY)
    try:
        server.ok(TEXT, {"prompt": "a", "max_tokens": 2})
        before = memory_kib(server)
        prober = Prober(server)
        prober.start()
        begun = time.monotonic()
        own = attack(server, n, seconds)
        figures = {"attack": name, "n": n, "seconds": round(time.monotonic() - begun, 1), **own, "health": prober.end()}
        assert server.process.poll() is None, "the server has ended"
        server.wait_idle(60)
        stats = server.stats()
        figures["memory_mib"] = {"before": before >> 10, "most": prober.most >> 10, "after": memory_kib(server) >> 10}
        figures["accounting_errors"] = stats["engine"]["accounting_errors"]
        figures["requests"] = {
            k: stats["requests"][k] for k in ("submitted", "stop", "length", "cancelled", "failed", "rejected")
        }
        print(json.dumps(figures), flush=True)
        r = stats["requests"]
        assert figures["accounting_errors"] == 0
        assert r["submitted"] == sum(r[k] for k in ("stop", "length", "cancelled", "failed")), r
        assert not figures["health"]["wrong"], figures["health"]
        assert server.stop() == 0
        return figures
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


def main(name, attack, n, seconds):
    p = argparse.ArgumentParser(description=attack.__doc__)
    p.add_argument("--n", type=int, default=n, help="how many clients at once [%(default)s]")
    p.add_argument("--seconds", type=float, default=seconds, help="how long [%(default)s]")
    p.add_argument("flags", nargs="*", help="for the server, after --")
    a = p.parse_args()
    f = run(name, attack, a.n, a.seconds, a.flags)
    slow = f["health"]["p99_ms"] > 100
    print(f"{name}: /health p99 {f['health']['p99_ms']} ms, bar 100: {'MISSED' if slow else 'holds'}")
    return 1 if slow else 0
