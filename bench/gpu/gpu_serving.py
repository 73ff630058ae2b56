"""What the workloads on a GPU share: the limit of a card and a model, a server, requests.

Limit         seconds that the card needs at least: bytes of weights and of keys and values at the read bandwidth, or
              arithmetic at FLOPS, whichever is longer, step by step
Server        radish serve on the GPU, for a with block; get() asks it
ask           one completion; together() runs many
tokens        a random prompt
"""

import contextlib
import heapq
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import bench_http  # noqa: E402
from make_random_models import SHAPES, split  # noqa: E402

FLOPS = 791e12
PORT = 8431
BYTES = {"bf16": 2, "q8_0": 34 / 32, "q4_0": 18 / 32}


class Limit:
    """name: a shape of make_random_models.py; read: bytes a second."""

    def __init__(self, name, read):
        shape, kind = split(name)
        layers, hidden, ffn, heads, kv_heads, dim, vocab, _ = SHAPES[shape]
        self.linear = layers * (hidden * dim * (heads + 2 * kv_heads) + heads * dim * hidden + 3 * hidden * ffn)
        self.head, self.read = vocab * hidden, read
        self.weight_bytes = (self.linear + self.head) * BYTES[kind]
        self.kv_bytes, self.pair_flops = layers * 2 * kv_heads * dim * 2, 4 * layers * heads * dim

    def decode(self, rows, n_keys):
        """A step of so many sequences that have n_keys together."""
        return max(
            (self.weight_bytes + n_keys * self.kv_bytes) / self.read,
            (2 * rows * (self.linear + self.head) + n_keys * self.pair_flops) / FLOPS,
        )

    def prefill(self, n, cached=0):
        """n new tokens behind so many cached ones."""
        return (2 * self.linear * n + self.pair_flops * n * (cached + n / 2) + 2 * self.head) / FLOPS

    def run(self, prompts, answers):
        """All prompts, then all answers together; lengths."""
        at = sum(self.prefill(n) for n in prompts)
        for t in range(1, max(answers)):
            contexts = [p + t for p, a in zip(prompts, answers) if a > t]
            at += self.decode(len(contexts), sum(contexts))
        return at

    def serve(self, requests, max_running=256):
        """Mean seconds from arrival to the end of requests [(arrival s, new tokens, cached, answer)], first come first
        served by a server that runs at the limit, prompts before answers."""
        requests, ends = sorted(requests), []  # ends: (step, arrival, keys at that step)
        now = total = 0.0
        step = n_keys = at = 0
        while at < len(requests) or ends:
            if at < len(requests) and len(ends) < max_running and (requests[at][0] <= now or not ends):
                arrival, new, cached, answer = requests[at]
                now = max(now, arrival) + self.prefill(new, cached)
                heapq.heappush(ends, (step + answer - 1, arrival, new + cached + answer - 1))
                n_keys += new + cached
                at += 1
                continue
            if ends[0][0] > step:
                n_keys += len(ends)
                now += self.decode(len(ends), n_keys)
                step += 1
            while ends and ends[0][0] <= step:
                _, arrival, keys = heapq.heappop(ends)
                n_keys -= keys
                total += now - arrival
        return total / len(requests)


class Server:
    """a: parsed options with radish, model, device and log."""

    def __init__(self, a, *flags):
        self.log = open(a.log, "ab")
        self.process = subprocess.Popen(
            [
                a.radish,
                "serve",
                a.model,
                "--device",
                a.device,
                "--port",
                str(PORT),
                "--no-speculation",
                "--no-disk-cache",
                "--max-running",
                "256",
                "--max-queue",
                "1024",
                "--log-level",
                "debug",
                *map(str, flags),
            ],
            stdout=self.log,
            stderr=self.log,
        )
        for _ in range(600):
            with contextlib.suppress(OSError, ValueError, KeyError):
                if get("/health")["status"] == "ok":
                    return
            time.sleep(0.2)
        raise SystemExit("the server did not start: see " + a.log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)


def get(path):
    return json.loads(bench_http.get(PORT, path)[1])


def ask(prompt, n, temperature=0.0, on_chunk=None, **more):
    """One completion: its timings; on_chunk is called with the time of every chunk of a stream."""
    body = {
        "prompt": prompt,
        "max_tokens": n,
        "ignore_eos": True,
        "temperature": temperature,
        "seed": 1,
        "top_p": 1,
        "top_k": 0,
        "min_p": 0,
        **more,
    }
    if on_chunk is None:
        return bench_http.must_post(PORT, "/v1/completions", body)
    c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    c.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    r = c.getresponse()
    if r.status != 200:
        raise SystemExit(f"HTTP {r.status}: {r.read()[:300]}")
    last = {}
    for line in r:
        if line.startswith(b"data: {"):
            on_chunk(time.perf_counter())
            if b'"timings"' in line:
                last = json.loads(line[6:])
    return last


def together(calls):
    threads = [threading.Thread(target=f, args=args, kwargs=more) for f, args, more in calls]
    begin = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return time.perf_counter() - begin


def tokens(n, seed, top=10000):
    r = random.Random(seed)
    return [r.randint(0, top) for _ in range(n)]
