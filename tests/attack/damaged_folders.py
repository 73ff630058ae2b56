#!/usr/bin/env python3
"""Damaged cache folders: a server starts on each, answers as if nothing had been stored, and ends in order. (F114 to F118)

    tests/attack/damaged_folders.py [--kinds N] [--seed S]      N of all kinds of damage, drawn by the seed; default: all

A folder is filled by a server (stored pages under two keys, answers, secret keys, packed weights), copied, and damaged:
each kind of file by each kind of damage, and the folder itself. Then the same questions are asked again, and the answers
must be those of a server without a cache. Prints a line per kind that fails, and its figures; exit 1 if there is one.
"""

import argparse
import os
import random
import re
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))
from radish_server import TINY, Server  # noqa: E402

PROMPTS = [("the of and to in is it for on as " * 3)[: 60 + 7 * i] + " %d" % i for i in range(4)]
FLAGS = ("--threads", "1", "--kv-tokens", "4096")


def ask(server):
    """The texts of all questions, twice: the second time from the cache."""
    texts = []
    for _ in range(2):
        for i, prompt in enumerate(PROMPTS):
            answer = server.ok(
                "/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0, "cache_salt": "ab"[i % 2]}
            )
            texts.append(answer["choices"][0]["text"])
    return texts


def overwrite(path, at, data):
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(data)


def replace(path, make):
    path.unlink()
    make(path)


def make_socket(path):
    s = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(path.parent)  # socket names are short
    try:
        s.bind(path.name)
    finally:
        os.chdir(here)
        s.close()


def flip(path, rnd, low, high):
    n = path.stat().st_size
    if n:
        at = min(n - 1, int(n * (low + (high - low) * rnd.random())))
        overwrite(path, at, bytes([path.read_bytes()[at] ^ 1 << rnd.randrange(8)]))


def shuffle(path, rnd, block):
    data = path.read_bytes()
    parts = [data[i : i + block] for i in range(0, len(data), block)]
    rnd.shuffle(parts)
    path.write_bytes(b"".join(parts))


# What is done to one file: (path, random, every file of its kind)
DAMAGE = {
    "removed": lambda p, r, all: p.unlink(),
    "empty": lambda p, r, all: p.write_bytes(b""),
    "cut in half": lambda p, r, all: os.truncate(p, p.stat().st_size // 2),
    "cut by a byte": lambda p, r, all: os.truncate(p, max(p.stat().st_size - 1, 0)),
    "cut to a byte": lambda p, r, all: os.truncate(p, 1),
    "longer": lambda p, r, all: p.open("ab").write(r.randbytes(5000)),
    "a terabyte long": lambda p, r, all: os.truncate(p, 1 << 40),
    "zeros": lambda p, r, all: p.write_bytes(bytes(p.stat().st_size)),
    "ones": lambda p, r, all: p.write_bytes(b"\xff" * p.stat().st_size),
    "random bytes": lambda p, r, all: p.write_bytes(r.randbytes(p.stat().st_size)),
    "a bit at its beginning": lambda p, r, all: flip(p, r, 0, 0.01),
    "a bit in its middle": lambda p, r, all: flip(p, r, 0.3, 0.7),
    "a bit at its end": lambda p, r, all: flip(p, r, 0.99, 1),
    "its first 4 KiB zeros": lambda p, r, all: overwrite(p, 0, bytes(min(4096, p.stat().st_size))),
    "blocks in another order": lambda p, r, all: shuffle(p, r, 512),
    "text": lambda p, r, all: p.write_text('{"version": null}\n' * 50),
    "a folder": lambda p, r, all: replace(p, lambda q: q.mkdir()),
    "a folder with files": lambda p, r, all: replace(p, lambda q: (q.mkdir(), (q / "x").write_text("x"))),
    "a FIFO": lambda p, r, all: replace(p, os.mkfifo),
    "a socket": lambda p, r, all: replace(p, make_socket),
    "a link to nothing": lambda p, r, all: replace(p, lambda q: q.symlink_to("nothing")),
    "a link to itself": lambda p, r, all: replace(p, lambda q: q.symlink_to(q.name)),
    "a link to a device": lambda p, r, all: replace(p, lambda q: q.symlink_to("/dev/zero")),
    "a link to its own copy": lambda p, r, all: (
        shutil.copy(p, str(p) + ".moved"),
        replace(p, lambda q: q.symlink_to(q.name + ".moved")),
    ),
    "writable by others": lambda p, r, all: p.chmod(0o666),
    "twice": lambda p, r, all: os.link(p, p.with_name("0" * 15 + "7" + p.suffix)),
    "under the last number": lambda p, r, all: p.rename(p.with_name("f" * 16 + p.suffix)),
    "with another's bytes": lambda p, r, all: p.write_bytes(
        all[-1].read_bytes() if all[-1] != p else p.read_bytes()[::-1]
    ),
}


def everything(folder, make):
    for path in list(folder.iterdir()):
        make(path)


def regular(folder):
    return [p for p in sorted(folder.rglob("*")) if p.is_file()]


# What is done to the folder itself.
FOLDER = {
    "nothing at all": lambda f, r: None,
    "every file empty": lambda f, r: [p.write_bytes(b"") for p in regular(f)],
    "every file cut": lambda f, r: [os.truncate(p, p.stat().st_size // 3) for p in regular(f)],
    "every file random": lambda f, r: [p.write_bytes(r.randbytes(p.stat().st_size)) for p in regular(f)],
    "a bit of every file": lambda f, r: [flip(p, r, 0, 1) for p in regular(f)],
    "every other file removed": lambda f, r: [p.unlink() for p in regular(f)[::2]],
    "removed": lambda f, r: shutil.rmtree(f),
    "a file": lambda f, r: (shutil.rmtree(f), f.write_text("x")),
    "a link to nothing": lambda f, r: (shutil.rmtree(f), f.symlink_to("nothing")),
    "a link to itself": lambda f, r: (shutil.rmtree(f), f.symlink_to(f.name)),
    "a thousand strange names": lambda f, r: [
        (f / ("%s%d" % (r.choice(["x", "-", "writing-", " ", "\u00e4"]), i))).write_bytes(r.randbytes(9))
        for i in range(1000)
    ],
    "a thousand empty segments": lambda f, r: [(f / ("%016x.pages" % i)).touch(0o600) for i in range(1, 1001)],
    "a thousand leftovers": lambda f, r: [(f / ("writing-%016x" % i)).touch(0o600) for i in range(1000)],
    "the longest name": lambda f, r: (f / ("p" * 255)).touch(),
    "names that are no text": lambda f, r: open(os.fsencode(f) + b"/\xff\xfe\x80.pages", "wb").close(),
    "folders as segments": lambda f, r: [(f / ("%016x.pages" % i)).mkdir() for i in range(100, 120)],
    "writable by others": lambda f, r: f.chmod(0o777),
}


def kinds_of(folder):
    """{kind of file: the files of that kind}: numbers in names do not count."""
    found = {}
    for path in regular(folder):
        kind = re.sub(r"[0-9a-f]{8,}", "#", str(path.relative_to(folder)))
        found.setdefault(kind, []).append(path.relative_to(folder))
    return found


def cases(folder):
    """[(name, what it does to a copy of the folder)]"""
    made = [("folder: " + name, make) for name, make in FOLDER.items()]
    for kind, paths in kinds_of(folder).items():
        for name, make in DAMAGE.items():

            def damage(copy, rnd, make=make, paths=paths):
                make(copy / paths[0], rnd, [copy / p for p in paths])

            made.append(("%s: %s" % (kind, name), damage))
    return made


def try_case(good, wanted, place, damage, rnd):
    """What went wrong, or None."""
    copy = place / "kv"
    shutil.copytree(good, copy, symlinks=True)
    damage(copy, rnd)
    server = Server(*FLAGS, "--cache-dir", copy, model=TINY)
    try:
        if ask(server) != wanted:
            return "another answer"
        if server.get("/health")[0] != 200 or server.stats()["engine"]["accounting_errors"]:
            return "not healthy"
        code = server.stop()
        return "exit status %d" % code if code else None
    except (AssertionError, OSError) as e:
        return "%s: %s" % (type(e).__name__, e)
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        if copy.is_symlink() or copy.is_file():
            copy.unlink()
        else:
            shutil.rmtree(copy, ignore_errors=True)


def fill(place):
    """(a good folder, the answers that are right)"""
    good = place / "good"
    server = Server(*FLAGS, "--no-disk-cache", model=TINY)
    wanted = ask(server)
    assert server.stop() == 0
    for _ in range(2):  # twice, so that there are several segments
        server = Server(*FLAGS, "--cache-dir", good, model=TINY)
        assert ask(server) == wanted
        for _ in range(100):
            if server.stats()["disk"]["pages"] > 8:
                break
            time.sleep(0.05)
        assert server.stop() == 0
    return good, wanted


def run(n_kinds=None, seed=1):
    """Prints; returns how many failed, and how many kinds there are."""
    rnd, failed = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        good, wanted = fill(place)
        everything_there_is = cases(good)
        chosen = everything_there_is if n_kinds is None else rnd.sample(everything_there_is, n_kinds)
        for name, damage in chosen:
            trouble = try_case(good, wanted, place, damage, rnd)
            if trouble:
                failed += 1
                print("%s: %s" % (name, trouble), flush=True)
        print(
            "damaged folders: %d of %d kinds of damage to %d kinds of files tried, %d failed (seed %d)"
            % (len(chosen), len(everything_there_is), len(kinds_of(good)), failed, seed),
            flush=True,
        )
    return failed, len(everything_there_is)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", type=int)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    sys.exit(1 if run(args.kinds, args.seed)[0] else 0)
