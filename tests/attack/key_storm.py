#!/usr/bin/env python3
"""A key file that changes all the time, whole, torn, of other kinds than a file, with a SIGHUP each time, while clients ask.

A client whose key is in every whole file must be let in each time, one whose key is in none never; the server reads all of
what it can, says of the rest why not, and neither waits for a pipe nor grows.
"""

import argparse
import collections
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import attack
from radish_server import TINY, Server

STAYS, NEVER = "key-of-one-who-stays", "key-of-nobody"


def line(name, key, rest=""):
    return f"{name} sha256:salt:{hashlib.sha256(b'salt' + key.encode()).hexdigest()}{rest}\n"


def whole(rng):
    lines = [line(f"tenant-{rng.randrange(300)}", f"key-{rng.random()}") for _ in range(rng.randrange(20))]
    lines += ["# a comment\n", line("stays", STAYS)]
    rng.shuffle(lines)
    return "".join(lines).encode()


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put(path, data):
    """As an editor does that saves in one step."""
    other = path.with_suffix(".new")
    other.write_bytes(data)
    if path.is_dir() and not path.is_symlink():
        remove(path)
    other.replace(path)


def put_wrong(path, rng):
    """Makes of the file what must change nothing; says what."""
    kind = rng.choice(
        ["torn", "binary", "NUL", "empty", "huge", "endless line", "gone", "folder", "pipe", "circle", "device"]
    )
    good = whole(rng)
    if kind == "torn":  # in a digest
        put(path, good.rstrip()[:-1] if good.rstrip()[-64:].isalnum() else b"x sha256:salt:00")
    elif kind in ("binary", "NUL", "empty"):
        put(path, {"binary": rng.randbytes(4096), "NUL": good + b"a\0b\n", "empty": b""}[kind])
    elif kind in ("huge", "endless line"):
        put(path, b"x" * (5 << 20) if kind == "huge" else good + b"k" * (1 << 20))
    else:
        remove(path)
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind != "gone":
            path.symlink_to({"circle": path.name, "device": "/dev/zero"}[kind])
    return kind


def storm(n, seconds, folder, seed=1):
    """n clients and one who edits; the figures."""
    rng, keys, log = random.Random(seed), folder / "keys", folder / "log"
    put(keys, whole(rng))
    with open(log, "wb") as f:
        server = Server(
            "--threads", "1", "--kv-tokens", "8192", "--drain", "1", "--api-key-file", keys, model=TINY, log=f
        )
    asked, wrong, until = collections.Counter(), [], time.monotonic() + seconds

    def ask(key, wanted):
        while time.monotonic() < until and not wrong:
            status = server.get("/v1/models", {"Authorization": f"Bearer {key}"})[0]
            asked[status] += 1
            if status != wanted:
                wrong.append((key, status))

    def ask_all():
        threads = [threading.Thread(target=ask, args=(k, w)) for _ in range(n) for k, w in ((STAYS, 200), (NEVER, 401))]
        for t in threads:
            t.start()
        return threads

    try:
        kinds, before, threads = collections.Counter(), attack.memory_kib(server), ask_all()
        prober = attack.Prober(server)
        prober.start()
        while time.monotonic() < until:
            kinds[put_wrong(keys, rng) if rng.random() < 0.6 else (put(keys, whole(rng)), "whole")[1]] += 1
            for _ in range(rng.choice([1, 1, 20])):
                server.process.send_signal(signal.SIGHUP)
            time.sleep(rng.random() * 0.02)
        for t in threads:
            t.join()
        figures = {
            "files": sum(kinds.values()),
            "kinds": dict(kinds),
            "answers": dict(asked),
            "wrong": wrong,
            "health": prober.end(),
        }
        figures["memory_mib"] = {"before": before >> 10, "most": prober.most >> 10}
        assert server.process.poll() is None, "the server has ended"
        put(keys, whole(rng) + line("last", "the-last-key").encode())
        server.process.send_signal(signal.SIGHUP)
        server.wait_until(lambda: server.get("/v1/models", {"Authorization": "Bearer the-last-key"})[0] == 200)
        said = log.read_text()
        figures["read_again"], figures["kept"] = said.count("read again"), said.count("stay as they were")
        print(json.dumps(figures), flush=True)
        assert not wrong and not figures["health"]["wrong"], figures
        assert STAYS not in said and "sha256" not in said.replace("sha256:SALT", ""), (
            "a key, or its digest, is in the log"
        )
        assert server.stop() == 0
        return figures
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        with contextlib.suppress(OSError):
            remove(keys)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--n", type=int, default=4, help="how many clients of each kind [%(default)s]")
    p.add_argument("--seconds", type=float, default=60, help="how long [%(default)s]")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as d:
        storm(a.n, a.seconds, Path(d), a.seed)
    sys.exit(0)
