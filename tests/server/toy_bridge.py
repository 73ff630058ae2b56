#!/usr/bin/env python3
"""tools/bridges/bridge.py with an engine of three lines, for test_bridges.py."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools/bridges"))
from bridge import Bridge, Refused, serve  # noqa: E402


class Toy(Bridge):
    name, version = "toy", "1"
    ops = ["generate", "tokenize", "classify", "batch", "info", "metrics"]

    def load(self, q):
        print("an engine that prints")
        return {"model": q["model"], "chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}"}

    def generate(self, request):
        print("and prints again")
        words = request.prompt.split()
        request.n_prompt = len(words)
        if words[-1] == "RAISE":
            raise ValueError("a secret: /root/file")
        if words[-1] == "REFUSE":
            raise Refused("context", "too long")
        for i, w in enumerate(words * (1000 if words[-1] == "LONG" else 1)):
            if i == request.max_tokens:
                request.finish = "length"
                return
            time.sleep(0.005 if words[-1] == "LONG" else 0)
            yield w + " ", 1

    def tokenize(self, q):
        return {"tokens": list(q["text"].encode())}

    def classify(self, q):
        return {"logprobs": [-float(label) for label in q["labels"]]}


serve(Toy())
