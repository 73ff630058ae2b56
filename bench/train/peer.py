#!/usr/bin/env python3
"""Training tokens a second and peak memory, radish beside torch + PEFT: the same model, samples, rank, batch and threads.

Usage: peer.py MODEL.gguf HUB_DIR [STEPS [THREADS [avx2]]]
       HUB_DIR: the same model for transformers (tests/golden/gguf_to_hub.py makes one). Needs torch, transformers, peft.
       avx2: both sides as on a CPU that has no more than AVX2, whatever this one has.

A step is 8 samples of 128 tokens, F32 in torch; rank 16, all linear layers. The sides take turns, three times each; the best
of each counts, and of the pairs the median ratio. Loading is not counted, nor is the first step. "of CPU": tokens per second of
CPU time of all threads, which other work on the machine changes less.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RADISH = str(Path(__file__).resolve().parents[2] / "build/radish")
BATCH, TOKENS, RANK = 8, 128, 16
AVX2_TORCH = {"ATEN_CPU_CAPABILITY": "avx2", "DNNL_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
TORCH = (
    """
import json, sys, time, resource, torch
from transformers import AutoModelForCausalLM
from peft import LoraConfig, get_peft_model
path, ids, steps, threads = sys.argv[1], json.load(open(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(threads)
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
lora = LoraConfig(r=%d, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
model = get_peft_model(model, lora).train()
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
x = torch.tensor(ids)
for step in range(steps + 1):
    if step == 1: begin, used = time.monotonic(), time.process_time()
    loss = model(x, labels=x, use_cache=False).loss
    opt.zero_grad(); loss.backward(); opt.step()
took, used = time.monotonic() - begin, time.process_time() - used
print(json.dumps([x.numel() * steps / took, x.numel() * steps / used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""
    % RANK
)


def cpu_s(pid):
    total = 0
    for task in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/schedstat" % (pid, task)) as f:
            total += int(f.read().split()[0])
    return total / 1e9


def radish_side(model, data, steps, threads, isa, folder):
    out = "%s/%d" % (folder, time.monotonic_ns())
    flags = [
        "--steps",
        steps + 1,
        "--batch",
        BATCH,
        "--rank",
        RANK,
        "-t",
        threads,
        "--pass-tokens",
        2 * TOKENS * BATCH,
        *isa,
    ]  # 128 words are a few more tokens: one pass
    begin_of = {}
    p = subprocess.Popen(
        [RADISH, "train", model, "--data", data, "-o", out, "--schedule", "constant", *map(str, flags)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    for line in p.stderr:  # "[##..] 2/5  loss .."
        if "loss" in line:
            step = int(line.split("] ")[1].split("/")[0])
            begin_of[step] = time.monotonic(), cpu_s(p.pid)
    _, _, usage = os.wait4(p.pid, 0)
    tokens = sum([json.loads(x)["tokens"] for x in open(out + "/log.jsonl")][1:])
    wall, used = (b - a for a, b in zip(begin_of[1], begin_of[max(begin_of)]))
    return tokens / wall, tokens / used, usage.ru_maxrss / 1024


def main():
    model, hub = sys.argv[1], sys.argv[2]
    steps, threads = (int(x) for x in (sys.argv[3:] + ["4", "2"][len(sys.argv) - 3 :])[:2])
    avx2 = sys.argv[5:] == ["avx2"]
    text = "The quick brown fox jumps over the lazy dog, and the dog dreams of foxes that are slower. " * 40
    sides = {"torch + PEFT": [], "radish": []}
    with tempfile.TemporaryDirectory() as folder:
        ids = json.loads(
            subprocess.run([RADISH, "tokenize", model, text, "--ids"], capture_output=True, text=True).stdout
        )
        rows = [ids[i : i + TOKENS] for i in range(BATCH)]
        Path(folder, "ids.json").write_text(json.dumps(rows))
        with open(folder + "/data.jsonl", "w") as f:
            for i in range(BATCH):
                f.write(json.dumps({"text": " ".join(text.split()[i : i + TOKENS])}) + "\n")
        for _ in range(3):
            r = subprocess.run(
                [sys.executable, "-c", TORCH, hub, folder + "/ids.json", str(steps), str(threads)],
                capture_output=True,
                text=True,
                env={**os.environ, **(AVX2_TORCH if avx2 else {})},
            )
            if r.returncode != 0:
                sys.exit(r.stderr[-1000:])
            for name, side in (
                ("torch + PEFT", json.loads(r.stdout.splitlines()[-1])),
                (
                    "radish",
                    radish_side(
                        model, folder + "/data.jsonl", steps, threads, ["--cpu-isa", "avx2"] if avx2 else [], folder
                    ),
                ),
            ):
                sides[name].append(side)
                print("%-14s %7.1f tokens/s  %7.1f of CPU  %6.0f MiB" % (name, *side), flush=True)
    best = [max(side[i] for side in sides["radish"]) / max(side[i] for side in sides["torch + PEFT"]) for i in range(2)]
    pairs = [statistics.median(a[i] / b[i] for a, b in zip(sides["radish"], sides["torch + PEFT"])) for i in range(3)]
    print(
        "radish: %.2f times the tokens (%.2f of CPU), median pair %.2f (%.2f); %.2f times the memory" % (*best, *pairs)
    )


if __name__ == "__main__":
    main()
