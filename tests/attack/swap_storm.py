#!/usr/bin/env python3
"""Models behind one server that clients swap all the time: they hang up while one loads, name models in hostile ways, while files
of models vanish, come back, change, and settings of the next load change, too, by a second tenant as well, who may not.

Whoever stays gets an answer or a refusal that says why, and the answers of a model that is there are those it gives alone.
"""

import argparse
import collections
import contextlib
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import attack
from radish_server import JSON, ROOT, Server

MODELS = {
    name: ROOT / f"tests/golden/{folder}/{name}.gguf"
    for name, folder in (("tiny-llama", "llama"), ("tiny-qwen2", "qwen2"))
}
OWN, TENANT = ({"Authorization": f"Bearer {k}"} for k in ("own-key", "tenant-key"))
ASK = {"prompt": [3, 4, 5, 6], "max_tokens": 6, "temperature": 0, "ignore_eos": True}
NAMES = [
    "",
    " ",
    "..",
    "../tiny-llama",
    "tiny-llama/..",
    "tiny-llama\0",
    "TINY-LLAMA",
    "\u202etiny",
    "x" * 100000,
    "/etc/passwd",
    "%00",
    "-m",
    7,
]
NAMES += [
    None,
    True,
    [],
    {},
    ["tiny-llama"],
    {"id": "tiny-llama"},
    "\ud800",
    "tiny-llama.gguf",
    "tiny-llama:latest",
    "vanishes",
    "\n",
    1e999,
]
SETTINGS = [
    {"ctx": 64},
    {"ctx": None},
    {"ctx": -1},
    {"kv-tokens": 1024},
    {"kv-tokens": 1},
    {"kv-tokens": 10**18},
    {"kv-type": "q8_0"},
]
SETTINGS += [
    {"kv-type": "bf16"},
    {"max-running": 1},
    {"max-running": 2**64},
    {"max-running": None},
    {"ctx": [1]},
    {"x" * 9000: 1},
    {"ctx": 1e999},
]
SETTINGS += [
    {f"s{i}": i for i in range(5000)},
    {"ctx": "\0"},
    {"ctx": "9" * 5000},
    {"host": "0.0.0.0"},
    {"kv-bytes": "1T"},
    {"kv-bytes": ""},
]


def ask(server, method, path, body, headers=OWN):
    with contextlib.closing(server.connect(120)) as c:
        c.request(method, path, None if body is None else json.dumps(body), JSON | headers)
        r = c.getresponse()
        return r.status, json.loads(r.read())


class Storm:
    def __init__(self, server, folder, seconds, seed):
        self.server, self.folder, self.seed = server, folder, seed
        self.until, self.counts, self.troubles = time.monotonic() + seconds, collections.Counter(), []
        self.texts = collections.defaultdict(set)

    def run(self, n):
        kinds = [self.answers, self.hangs_up, self.names_oddly, self.sets]
        threads = [
            threading.Thread(target=self.one, args=(kinds[i % len(kinds)], random.Random(f"{self.seed} {i}")))
            for i in range(n)
        ]
        threads.append(threading.Thread(target=self.one, args=(self.files_change, random.Random(f"{self.seed} files"))))
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def one(self, what, rng):
        try:
            while time.monotonic() < self.until and not self.troubles:
                what(rng)
        except Exception as e:  # noqa: BLE001
            self.troubles.append(f"{what.__name__}: {e!r}")

    def count(self, what, status, wanted, answer):
        self.counts[f"{what} {status}"] += 1
        if status not in wanted:
            self.troubles.append((what, status, str(answer)[:300]))

    def answers(self, rng):
        model = rng.choice([*MODELS])
        status, answer = ask(self.server, "POST", attack.TEXT, ASK | {"model": model})
        # 400: the context that is set is too small; 503: too many wait, or the settings of a load were no good
        self.count("asks", status, {200, 400, 429, 503}, answer)
        if status == 200:
            self.texts[model].add(answer["choices"][0]["text"])

    def hangs_up(self, rng):
        model = rng.choice([*MODELS, "vanishes"])
        with attack.connect(self.server) as c:
            body = json.dumps(ASK | {"model": model, "max_tokens": 50, "stream": rng.random() < 0.5}).encode()
            c.sendall(self.server.post_bytes(attack.TEXT, body, ["Authorization: Bearer own-key"]))
            time.sleep(rng.random() * 0.1)
        self.counts["hung up"] += 1

    def names_oddly(self, rng):
        path = rng.choice([attack.TEXT, attack.CHAT, "/v1/messages", "/api/chat", "/v1/embeddings"])
        body = {
            "model": rng.choice(NAMES),
            "prompt": "a",
            "input": "a",
            "messages": [{"role": "user", "content": "a"}],
            "max_tokens": 1,
            "stream": False,
        }
        status, answer = ask(self.server, "POST", path, body)
        # 500: the Messages API's word for a model whose file is broken, as the one that vanishes may be
        broken = {500} if b"cannot be loaded" in bytes(str(answer), "utf-8") else set()
        self.count("names", status, {200, 400, 404, 413, 429, 501, 503, 529} | broken, answer)

    def sets(self, rng):
        who = rng.choice([OWN, TENANT, {}])
        body = rng.choice(
            [{"settings": rng.choice(SETTINGS), "reload": rng.random() < 0.3}, {"reload": True}, [], {"settings": 1}]
        )
        status, answer = ask(self.server, "POST", "/v1/settings", body, who)
        self.count("sets", status, {200, 400} if who is OWN else {403} if who is TENANT else {401}, answer)
        time.sleep(rng.random() * 0.05)

    def files_change(self, rng):
        path, other = self.folder / "vanishes.gguf", self.folder / "other"
        kind = rng.choice(["gone", "back", "cut", "another", "folder", "text", "circle"])
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        if kind in ("gone", "folder", "circle"):
            path.unlink(missing_ok=True)
        if kind == "folder":
            path.mkdir()
        if kind == "circle":
            path.symlink_to(path.name)
        if kind in ("back", "cut", "another", "text"):
            data = MODELS[rng.choice([*MODELS])].read_bytes()
            other.write_bytes({"cut": data[: rng.randrange(len(data))], "text": b"no model"}.get(kind, data))
            other.replace(path)
        self.counts["file: " + kind] += 1
        time.sleep(rng.random() * 0.1)


def storm(n, seconds, folder, seed=1):
    """n clients; the figures."""
    for name, path in MODELS.items():
        shutil.copy(path, folder / f"{name}.gguf")
    shutil.copy(MODELS["tiny-llama"], folder / "vanishes.gguf")
    (folder / "keys").write_text("tenant-key\n")
    flags = (
        "--threads",
        "1",
        "--kv-tokens",
        "1024",
        "--drain",
        "1",
        "--api-key",
        "own-key",
        "--api-key-file",
        folder / "keys",
    )
    server = Server(*flags, model=folder)
    try:
        alone = {m: ask(server, "POST", attack.TEXT, ASK | {"model": m})[1]["choices"][0]["text"] for m in MODELS}
        before, prober, s = attack.memory_kib(server), attack.Prober(server), Storm(server, folder, seconds, seed)
        prober.start()
        s.run(n)
        figures = {"counts": dict(sorted(s.counts.items())), "troubles": s.troubles[:5], "health": prober.end()}
        assert server.process.poll() is None, f"the server has ended: {server.process.poll()}, {figures}"
        end = time.monotonic() + 60
        back = {"settings": dict.fromkeys(("ctx", "kv-tokens", "kv-type", "max-running", "kv-bytes")), "reload": True}
        assert ask(server, "POST", "/v1/settings", back)[0] == 200
        while ask(server, "GET", "/v1/settings", None)[1]["reloading"] and time.monotonic() < end:
            time.sleep(0.05)
        after = {m: ask(server, "POST", attack.TEXT, ASK | {"model": m})[1] for m in MODELS}
        stats = ask(server, "GET", "/stats", None)[1]
        figures["memory_mib"] = {
            "before": before >> 10,
            "most": prober.most >> 10,
            "after": attack.memory_kib(server) >> 10,
        }
        print(json.dumps(figures), flush=True)
        assert not s.troubles, s.troubles
        assert not figures["health"]["wrong"], figures
        assert {m: a["choices"][0]["text"] for m, a in after.items()} == alone, (after, alone)
        assert all(len(t) <= 2 for t in s.texts.values()), s.texts  # 2: keys and values in bf16
        assert stats["engine"]["accounting_errors"] == 0
        assert server.stop() == 0
        return figures
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--n", type=int, default=12, help="how many clients at once [%(default)s]")
    p.add_argument("--seconds", type=float, default=60, help="how long [%(default)s]")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as d:
        storm(a.n, a.seconds, Path(d), a.seed)
    sys.exit(0)
