#!/usr/bin/env python3
"""Trains an adapter of every tiny model with radish, loads it with PEFT, and compares the losses.

Usage: check_peft.py RADISH         (needs torch, transformers, peft; RADISH: the program). Exit 1: one differs by more than 1e-4.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from make_tiny_models import make_model, variants
from peft import PeftModel

HERE = Path(__file__).resolve().parent
TEXTS = ["the quick %d" % i for i in range(8)]
END = 95


def radish(*args):
    return subprocess.run([sys.argv[1], *map(str, args)], check=True, capture_output=True, text=True).stdout


def peft_loss(model, path):
    total, n = 0, 0
    for text in TEXTS:
        ids = [*json.loads(radish("tokenize", path, text, "--ids")), END]
        logp = torch.log_softmax(model(torch.tensor(ids)[None], use_cache=False).logits[0].float(), -1)
        total -= sum(logp[i - 1, ids[i]].item() for i in range(1, len(ids)))
        n += len(ids) - 1
    return total / n


def main():
    worst = 0
    for seed, (name, (arch, config)) in enumerate(variants().items()):
        path = HERE / arch / ("tiny-%s.gguf" % name)
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data.jsonl"
            data.write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
            flags = ["--steps", 20, "--lr", "1e-2", "--rank", 4, "--kv-type", "f32", "--eval-every", 20]
            radish("train", path, "--data", data, "--eval-data", data, "-o", folder + "/a", *flags)
            ours = json.loads((Path(folder) / "a/log.jsonl").read_text().splitlines()[-1])["eval_loss"]
            base, _, _ = make_model(arch, dict(config), seed + 1)
            theirs = peft_loss(PeftModel.from_pretrained(base, folder + "/a").eval(), path)
        worst = max(worst, abs(ours - theirs) / theirs)
        print("%s: radish %.7f, PEFT %.7f" % (name, ours, theirs))
    return worst > 1e-4


if __name__ == "__main__":
    sys.exit(main())
