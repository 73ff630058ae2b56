"""What every attack here shares: a small server, clients that run beside each other, and a watch over it meanwhile.

An attack is a script of its own: `python tests/attack/NAME.py [--seconds N] [--clients N]` prints its figures; pytest runs
all of them in their short form (test_memory_attacks.py). They bind to loopback, bound their counts and their time, and end
what they started.
"""

import argparse
import collections
import contextlib
import http.client
import json
import multiprocessing
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))
from radish_server import JSON, TINY, Server  # noqa: E402

SLACK_MIB = 64
HEALTH_MS = 100  # what 99 of 100 /health take at most; a script says so by its exit status, the short form cannot know
TOLD = {200, 400, 413, 429, "cut"}  # how a request may end under an attack
PARTS = ("bodies", "trees", "requests", "answers", "unread", "stored")


def anonymous_mib(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        rows = dict(line.split(":", 1) for line in f)
    return (int(rows["RssAnon"].split()[0]) + int(rows.get("VmSwap", "0").split()[0])) / 1024


class Watch:
    """Asks for /health and looks at the memory until it is stopped: in a process of its own, as bodies of megabytes that
    the clients' threads make and write hold Python's lock for longer than an answer takes."""

    def __init__(self, server, period_s=0.02):
        self.server, self.period_s = server, period_s
        self.peak_mib, self.health_ms, self.unhealthy = anonymous_mib(server), [], collections.Counter()

    def run(self, ending):
        while not ending.poll(self.period_s):
            with contextlib.suppress(OSError, KeyError):  # a server that has ended is found by what comes after
                self.peak_mib = max(self.peak_mib, anonymous_mib(self.server))
            start = time.monotonic()
            try:
                status = self.server.get("/health")[0]
            except OSError as e:
                status = type(e).__name__
            self.health_ms.append((time.monotonic() - start) * 1000)
            if status != 200:
                self.unhealthy[status] += 1
        ending.send((self.peak_mib, self.health_ms, self.unhealthy))

    def __enter__(self):
        forked = multiprocessing.get_context("fork")  # nothing else runs here yet
        self.ending, there = forked.Pipe()
        self.process = forked.Process(target=self.run, args=(there,), daemon=True)
        self.process.start()
        there.close()
        return self

    def __exit__(self, *_):
        self.ending.send("end")
        self.peak_mib, self.health_ms, self.unhealthy = self.ending.recv()
        self.process.join()


class Attack:
    """A server, the budget it was given, and the statuses its clients got."""

    def __init__(self, budget_mib, *flags, **options):
        self.budget_mib = budget_mib
        self.server = Server(
            "--threads",
            "1",
            "--kv-tokens",
            "4096",
            "--ctx",
            "64",
            "--client-memory",
            f"{budget_mib}M",
            *flags,
            model=TINY,
            **options,
        )
        self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})
        self.statuses, self.lock = collections.Counter(), threading.Lock()
        self.before_mib = anonymous_mib(self.server)

    def send(self, path, body, headers=None, method="POST"):
        """One request; what came is counted. A refusal in the middle of a body may cut the connection."""
        try:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)) as c:
                c.request(method, path, body, JSON | (headers or {}))
                r = c.getresponse()
                answer = r.read()
                status = r.status
                if status == 429:
                    assert r.getheader("Retry-After"), r.getheaders()
        except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
            status, answer = "cut", b""
        with self.lock:
            self.statuses[status] += 1
        return status, answer

    def beside(self, n_clients, one):
        """one(k) in n_clients threads; an exception in one of them is raised here."""
        errors = []

        def run(k):
            try:
                one(k)
            except Exception as e:  # noqa: BLE001
                errors.append(e)

        threads = [threading.Thread(target=run, args=(k,)) for k in range(n_clients)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if errors:
            raise errors[0]

    def memory(self):
        m = self.server.stats()["client_memory"]
        assert m["used"] == sum(m[p] for p in PARTS) or m["used"] > 0, m
        return m

    def watched(self, clients, client, stored=False):
        """client(k) from so many clients at once, /health asked all the while; the figures. stored: answers may stay."""
        with Watch(self.server) as w:
            self.beside(clients, client)
        return self.finish(w, stored)

    def finish(self, watch, stored=False):
        """The figures; and what must hold after every attack."""
        self.server.wait_idle(60)
        self.server.wait_until(lambda: stored or self.memory()["used"] == 0, 30)
        m, stats = self.memory(), self.server.stats()
        health = sorted(watch.health_ms) or [0.0]
        figures = {
            "statuses": dict(sorted(self.statuses.items(), key=str)),
            "budget_mib": self.budget_mib,
            "used_peak_mib": round(m["peak"] / 2**20, 1),
            "rss_anon_grown_mib": round(watch.peak_mib - self.before_mib, 1),
            "rss_anon_left_mib": round(anonymous_mib(self.server) - self.before_mib, 1),
            "health": {
                "asked": len(watch.health_ms),
                "median_ms": round(health[len(health) // 2], 1),
                "p99_ms": round(health[int(len(health) * 0.99)], 1),
                "worst_ms": round(health[-1], 1),
                "not_200": dict(watch.unhealthy),
            },
            "refused": m["refused"],
            "used_at_the_end": {p: m[p] for p in PARTS if m[p]},
        }
        print(json.dumps(figures))
        assert m["used"] == sum(m[p] for p in PARTS), m
        assert m["peak"] <= self.budget_mib * 2**20 + m["unread"], m
        assert figures["rss_anon_grown_mib"] <= self.budget_mib + SLACK_MIB, figures
        assert not watch.unhealthy, figures
        assert stats["engine"]["accounting_errors"] == 0
        assert set(figures["statuses"]) <= TOLD, figures
        return figures

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.server.process.poll() is None:
            self.server.process.kill()
            self.server.process.wait()


def main(attack):
    p = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--clients", type=int, default=32)
    a = p.parse_args()
    p99 = attack(a.seconds, a.clients)["health"]["p99_ms"]
    print(f"/health p99 {p99} ms, bar {HEALTH_MS}: {'holds' if p99 <= HEALTH_MS else 'MISSED'}")
    sys.exit(p99 > HEALTH_MS)
