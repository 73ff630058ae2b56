#!/usr/bin/env python3
"""Soak: a server lives through very many requests of every kind, clients that hang up, errors and a disk cache. (F100)

    tests/attack/soak.py [--requests N] [--clients C] [--bodies N] [--model FILE] [--seed S]      make soak: 100,000, twice

Once with a few hundred bodies, sent again and again in another order each time: what the server keeps within a bound is
full soon, and the smallest growth shows. Once with --bodies 0: no body is ever sent twice, and there are kinds of which the
server keeps something under a name of its own each time: stored responses and those that go on from them, tools,
prompt_cache_keys; and 300 salts, of which the disk cache keeps a name each, for good (LIMIT_STORE_SPACES). What is bounded
fills first (1,024 answers and as many responses, 4,096 spellings): half of the requests warm up.

The tiny model of tests/golden answers within milliseconds. Every second: the accounting of pages adds up and the server
has counted no error of it; anonymous memory (RssAnon + VmSwap) and descriptors are noted. At the end: memory has not
grown by 1 % between the tenth behind the warm-up (the first two tenths; half where bodies differ) and the last one
(medians), descriptors are what they
were, every answer had the status that it should have, nothing is queued, running or locked. Prints its figures; exit 1
where one of these does not hold.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/server"))
from radish_server import TINY, Server  # noqa: E402

WORDS = "a b c d e f g h the of and to in is it".split()


def text(rnd, n):
    return " ".join(rnd.choice(WORDS) for _ in range(n))


def chat(rnd, **more):
    shared = text(random.Random(rnd.randrange(20)), 12)  # beginnings that many share
    return {
        "messages": [{"role": "user", "content": shared + " " + text(rnd, rnd.randrange(1, 12))}],
        "max_tokens": rnd.randrange(1, 24),
        "seed": rnd.randrange(1000),
        **more,
    }


KINDS = [*range(20), 25, 26]
KINDS_THAT_STORE = [20, 20, 21, 21, 22, 23, 24]  # where no body is sent twice
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
}


def stored(rnd, known):
    """One that is stored, half of them behind one that was; known: ids that were answered lately."""
    body = {"input": text(rnd, 6), "max_output_tokens": 16, "metadata": {"n": text(rnd, 3)}}
    if known and rnd.random() < 0.5:
        body["previous_response_id"] = rnd.choice(known)
    return body


def tool_turn(rnd, n):
    """A conversation with a call in it, spelled as only this client does."""
    call = {"id": "call_%d" % n, "type": "function", "function": {"name": "look", "arguments": '{"path": "%d"}' % n}}
    tool = json.loads(json.dumps(TOOL))
    tool["function"]["description"] = text(rnd, 8)
    return {
        "messages": [
            {"role": "user", "content": text(rnd, 5)},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": text(rnd, 9)},
        ],
        "tools": [tool],
        "max_tokens": 8,
    }


# (path, body, wanted status); None: GET, or any status
def some_request(rnd, known=()):
    kind = rnd.choice(KINDS)
    if kind < 5:
        return "/v1/chat/completions", chat(rnd), 200
    if kind < 9:
        return "/v1/chat/completions", chat(rnd, stream=True), 200
    if kind == 9:
        return "/v1/chat/completions", chat(rnd, n=2, logprobs=True, top_logprobs=3), 200
    if kind < 12:
        return "/v1/completions", {"prompt": text(rnd, 9), "max_tokens": 8, "temperature": 0}, 200
    if kind == 12:
        return "/v1/responses", {"input": text(rnd, 6), "max_output_tokens": 16, "store": False}, 200
    if kind == 13:
        return (
            "/v1/messages",
            {"model": "any", "max_tokens": 8, "messages": [{"role": "user", "content": text(rnd, 5)}]},
            None,
        )
    if kind == 14:
        return "/v1/embeddings", {"input": [text(rnd, 4), text(rnd, 7)]}, 200
    if kind == 15:
        return "/tokenize", {"content": text(rnd, 20)}, 200
    if kind == 16:
        return "/v1/chat/completions", {"messages": 3}, 400
    if kind == 17:
        return "/v1/models", None, 200
    if kind == 18:
        return "/stats", None, 200
    if kind in (20, 21):
        return "/v1/responses", stored(rnd, known), None if known else 200  # the one before may be gone by now
    if kind == 22:
        return "/v1/chat/completions", tool_turn(rnd, rnd.randrange(1 << 40)), 200
    if kind == 23:
        return (
            "/v1/chat/completions",
            chat(rnd, cache_salt="salt %d" % rnd.randrange(300), prompt_cache_retention="24h"),
            200,
        )
    if kind == 24:
        return "/v1/chat/completions", chat(rnd, prompt_cache_key=text(rnd, 12), n=2), 200
    if kind == 25:
        prompt = [text(rnd, 5), rnd.randrange(3, 90)] if rnd.random() < 0.5 else text(rnd, 9)
        body = {"prompt": prompt, "n_predict": 8, "n_probs": rnd.randrange(3), "stream": rnd.random() < 0.5}
        return "/completion", body, 200
    if kind == 26:
        return "/slots", None, 200
    return "/health", None, 200


class Client(threading.Thread):
    def __init__(self, soak, seed):
        super().__init__(daemon=True)
        self.soak, self.rnd = soak, random.Random(seed)
        self.connection = None

    def run(self):
        while self.soak.take():
            try:
                self.one()
            except Exception as e:  # a connection that ends is an error here: the server never ends one
                self.soak.fail("%s: %s" % (type(e).__name__, e))
                self.connection = None

    def one(self):
        rnd = random.Random(self.rnd.randrange(self.soak.n_bodies)) if self.soak.n_bodies else self.rnd
        path, body, wanted = some_request(rnd, list(self.soak.known))
        if self.connection is None:
            self.connection = self.soak.server.connect(60)
        data = None if body is None else json.dumps(body).encode()
        self.connection.request(
            "GET" if data is None else "POST", path, data, {"Content-Type": "application/json"} if data else {}
        )
        if self.rnd.random() < 0.08:  # hangs up: at once, or in the middle of the answer
            if self.rnd.random() < 0.5:
                self.connection.getresponse().read(20)
            self.connection.close()
            self.connection = None
            self.soak.n_hung_up += 1
            return
        response = self.connection.getresponse()
        answer = response.read()
        if path == "/v1/responses" and response.status == 200 and body.get("store", True):
            self.soak.known.append(json.loads(answer)["id"])
        if response.will_close:
            self.connection.close()
            self.connection = None
        if response.status == 429:
            self.soak.n_429 += 1
        elif wanted is not None and response.status != wanted:
            self.soak.fail("%s: status %d, wanted %d: %r" % (path, response.status, wanted, answer[:200]))


class Soak:
    def __init__(self, args, folder):
        self.n, self.n_taken, self.n_hung_up, self.n_429 = args.requests, 0, 0, 0
        self.n_bodies = args.bodies
        self.known = deque(maxlen=200)
        self.warm = 0.2 if args.bodies else 0.5
        self.lock, self.failures = threading.Lock(), []
        # the tiny model's context is too short for an explanation of tools: a template that knows them
        template = () if args.bodies else ("--chat-template", str(ROOT / "tests/api/tools.jinja"))
        self.server = Server(
            "--threads",
            "1",
            "--kv-tokens",
            "4096",
            "--cache-dir",
            folder,
            "--cache-disk",
            "8M",
            *template,
            model=Path(args.model),
        )
        self.samples = []  # (requests so far, bytes, descriptors)

    def take(self):
        with self.lock:
            self.n_taken += 1
            return self.n_taken <= self.n

    def fail(self, what):
        with self.lock:
            self.failures.append(what)

    def sample(self):
        proc = Path("/proc/%d" % self.server.process.pid)
        fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
        anonymous = sum(int(fields[k].split()[0]) * 1024 for k in ("RssAnon", "VmSwap"))
        self.samples.append((min(self.n_taken, self.n), anonymous, len(os.listdir(proc / "fd"))))
        stats = self.server.stats()
        pages, errors = stats["pages"], stats["engine"]["accounting_errors"]
        if sum(pages[k] for k in ("free", "ready", "locked", "pending", "quarantined")) != pages["total"] or errors:
            self.fail("accounting: %s, %d errors" % (pages, errors))

    def run(self, n_clients, seed):
        clients = [Client(self, seed * 1000 + i) for i in range(n_clients)]
        for c in clients:
            c.start()
        while any(c.is_alive() for c in clients):
            if self.server.process.poll() is not None:
                self.fail("the server ended by itself: %d" % self.server.process.returncode)
                return
            self.sample()
            time.sleep(1)
        for c in clients:
            if c.connection:
                c.connection.close()

    def settle(self):
        """What is left when everybody has gone."""
        for _ in range(100):
            pages = self.server.stats()["pages"]
            if pages["locked"] == pages["pending"] == 0:
                return
            time.sleep(0.1)
        self.fail("still locked or pending: %s" % pages)

    def figures(self):
        def window(low, high):
            return [s for s in self.samples if low * self.n <= s[0] <= high * self.n] or self.samples[-1:]

        early, late = window(self.warm, self.warm + 0.1), window(0.9, 1.0)
        before, after = statistics.median(s[1] for s in early), statistics.median(s[1] for s in late)
        shown = self.samples[:: max(1, len(self.samples) // 12)]
        print("soak: MiB by requests: " + ", ".join("%d: %.1f" % (s[0], s[1] / 2**20) for s in shown))
        growth = 100.0 * (after - before) / before
        idle = len(os.listdir("/proc/%d/fd" % self.server.process.pid))
        print(
            "soak: %d requests%s, %d hung up, %d got 429; %d samples; anonymous memory %.2f -> %.2f MiB (%+.2f %%); "
            "descriptors at most %d, then %d"
            % (
                self.n,
                "" if self.n_bodies else " of which no two are alike",
                self.n_hung_up,
                self.n_429,
                len(self.samples),
                before / 2**20,
                after / 2**20,
                growth,
                max(s[2] for s in self.samples),
                idle,
            )
        )
        if growth >= 1.0:
            self.fail("memory grew by %.2f %%" % growth)
        if max(s[2] for s in late) > max(s[2] for s in early) + 2:
            self.fail("descriptors grew from %d to %d" % (max(s[2] for s in early), max(s[2] for s in late)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--model", default=str(TINY))
    parser.add_argument("--bodies", type=int, default=400, help="so many that are sent again and again; 0: each is new")
    parser.add_argument("--kinds", help="numbers in some_request, with commas: to find what grows")
    args = parser.parse_args()
    if args.bodies == 0:
        KINDS.extend(KINDS_THAT_STORE)
    if args.kinds:
        KINDS[:] = [int(k) for k in args.kinds.split(",")]
    print("soak: seed %d" % args.seed, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(args, folder)
        try:
            soak.run(args.clients, args.seed)
            if soak.server.process.poll() is None:
                soak.settle()
                soak.figures()
                code = soak.server.stop()
                if code:
                    soak.fail("exit status %d" % code)
        finally:
            if soak.server.process.poll() is None:
                soak.server.process.kill()
                soak.server.process.wait()
    for failure in sorted(set(soak.failures))[:20]:
        print("soak: %s (%d times)" % (failure, soak.failures.count(failure)))
    return 1 if soak.failures else 0


sys.exit(main())
