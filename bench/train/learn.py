#!/usr/bin/env python3
"""Teaches a model an output format by 200 examples; accuracy on 50 held-out prompts before and after. docs/lora.md has figures.

Usage: learn.py MODEL [FLAGS of radish train]        e.g. learn.py smollm2 --epochs 4

The format: a booking in words becomes "<city=OSLO;nights=3;guests=2>", cities in capitals, numbers as digits. Exact match.
"""

import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RADISH = str(Path(__file__).resolve().parents[2] / "build/radish")
CITIES = (
    "Oslo Paris Lima Rome Kyoto Cairo Quito Delhi Perth Malmo Turin Osaka Lagos Dakar Hanoi Bern Porto Accra".split()
)
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
FORMS = [
    "Book {n} nights in {c} for {g} people.",
    "We are {g} and want to stay in {c} for {n} nights.",
    "I need a room in {c}, {n} nights, {g} guests.",
    "{c} please, {g} of us, {n} nights.",
]


def example(rng):
    n, g, c = rng.randint(1, 9), rng.randint(1, 9), rng.choice(CITIES)
    said = rng.choice(FORMS).format(n=NUMBERS[n - 1], g=NUMBERS[g - 1], c=c)
    return said, "<city=%s;nights=%d;guests=%d>" % (c.upper(), n, g)


def ask(port, model, said):
    body = {"model": model, "messages": [{"role": "user", "content": said}], "temperature": 0, "max_tokens": 40}
    r = urllib.request.Request(
        "http://127.0.0.1:%d/v1/chat/completions" % port,
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(r, timeout=300) as f:
        return json.load(f)["choices"][0]["message"]["content"].strip()


def main():
    model, more = sys.argv[1], sys.argv[2:]
    rng = random.Random(11)
    seen = {}
    while len(seen) < 250:
        said, want = example(rng)
        seen.setdefault(said, want)
    learn, held_out = list(seen.items())[:200], list(seen.items())[200:]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.jsonl"
        with data.open("w") as f:
            for said, want in learn:
                messages = [{"role": "user", "content": said}, {"role": "assistant", "content": want}]
                f.write(json.dumps({"messages": messages}) + "\n")
        begin = time.monotonic()
        subprocess.run([RADISH, "train", model, "--data", data, "-o", folder + "/a", *more], check=True)
        print("training: %.0f s" % (time.monotonic() - begin))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        server = subprocess.Popen(
            [RADISH, "serve", model, "--port", str(port), "--lora", "a=%s/a" % folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen("http://127.0.0.1:%d/health" % port, timeout=5)
                    break
                except OSError:
                    time.sleep(0.5)
            with urllib.request.urlopen("http://127.0.0.1:%d/v1/models" % port) as f:
                base = next(m["id"] for m in json.load(f)["data"] if not m.get("parent"))
            for name, what in ((base, "before"), ("a", "after")):
                with ThreadPoolExecutor(8) as pool:
                    got = list(pool.map(lambda x: ask(port, name, x[0]), held_out))
                right = sum(a == want for a, (_, want) in zip(got, held_out))
                form = sum(bool(re.fullmatch(r"<city=[A-Z]+;nights=\d;guests=\d>", a)) for a in got)
                print("%s: %d of %d right, %d in the format; e.g. %r" % (what, right, len(held_out), form, got[0]))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
