#!/usr/bin/env python3
"""radish against llama.cpp: `radish bench` and `llama-bench` in turns on the same files; medians and ratios.

    bench/vs_llamacpp.py --peer DIR [--build DIR] [--threads N] [--prompt N] [--gen N] [--rounds R] [--out FILE] [MODEL...]

    --peer DIR     the folder that holds llama-bench
    --build DIR    the folder that holds radish; default build/
    --threads N    for both; default 2
    --prompt N     tokens of the prefill; default 512          --gen N      tokens of the decode; default 64
    --rounds R     rounds; default 5. Each round runs both on each model, the first one first in every other round.
    --out FILE     every single figure as JSON
    MODEL          files, or names in $RADISH_MODELS or ~/.cache/radish/models; default: all that are there

Each program warms up by itself before it measures. prefill: --prompt tokens into an empty cache. decode: --gen tokens
after none (llama-bench) or one (radish). Figures are tokens per second, higher is better; the ratio is radish / llama.cpp.
The load average says how calm the machine was: figures from a busy one are worth little.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = Path(os.environ.get("RADISH_MODELS") or Path.home() / ".cache/radish/models")


def run(args):
    r = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    if r.returncode:
        sys.exit("%s\n%s" % (" ".join(map(str, args)), r.stderr[-2000:]))
    return json.loads(r.stdout)


def radish(a, model):
    d = run([a.build / "radish", "bench", model, "--threads", a.threads, "--prompt", a.prompt, "--gen", a.gen, "--reps", 1,
             "--json"])
    return {"prefill": d["prefill_tok_s"], "decode": d["decode_tok_s"]}, d["backend"]


def llamacpp(a, model):
    rows = run([a.peer / "llama-bench", "-m", model, "-t", a.threads, "-p", a.prompt, "-n", a.gen, "-r", 1, "-o", "json"])
    figures = {"prefill" if row["n_prompt"] else "decode": row["avg_ts"] for row in rows}
    return figures, "llama.cpp %s (build %s)" % (rows[0]["build_commit"], rows[0]["build_number"])


def machine():
    cpu = "unknown CPU"
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return "%s, %d cores for this process" % (cpu, len(os.sched_getaffinity(0)))


def find(name):
    for path in (Path(name), MODELS / (name + ".gguf")):
        if path.is_file():
            return path
    sys.exit("no model %s: neither a file nor in %s" % (name, MODELS))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--peer", type=Path, required=True)
    p.add_argument("--build", type=Path, default=ROOT / "build")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--gen", type=int, default=64)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--out", type=Path)
    p.add_argument("models", nargs="*")
    a = p.parse_args()
    models = [find(m) for m in a.models] or sorted(MODELS.glob("*.gguf"), key=lambda f: f.stat().st_size)
    programs = {"radish": radish, "llama.cpp": llamacpp}
    seen = {(m, name): [] for m in models for name in programs}
    says, loads = {}, []

    for r in range(a.rounds):
        for m in models:
            for name in list(programs)[:: 1 if r % 2 == 0 else -1]:
                loads.append(os.getloadavg()[0])
                figures, says[name] = programs[name](a, m)
                seen[m, name].append(figures)
                print("round %d of %d: %-10s %-24s prefill %8.1f  decode %8.1f" %
                      (r + 1, a.rounds, name, m.stem, figures["prefill"], figures["decode"]), file=sys.stderr)

    print("machine   %s; load average %.1f to %.1f" % (machine(), min(loads), max(loads)))
    print("programs  radish (%s); %s" % (says["radish"], says["llama.cpp"]))
    print("settings  %d threads, prefill %d tokens, decode %d tokens, medians of %d rounds (least to most), tokens per second\n" %
          (a.threads, a.prompt, a.gen, a.rounds))
    print("| model | what | radish | llama.cpp | ratio |")
    print("|---|---|---|---|---|")
    for m in models:
        for what in ("prefill", "decode"):
            ours, theirs = ([f[what] for f in seen[m, name]] for name in programs)
            cells = ["%.1f (%.1f to %.1f)" % (statistics.median(v), min(v), max(v)) for v in (ours, theirs)]
            print("| %s | %s | %s | %s | %.2f |" % (m.stem, what, *cells, statistics.median(ours) / statistics.median(theirs)))
    if a.out:
        a.out.write_text(json.dumps({"settings": {k: str(v) for k, v in vars(a).items()}, "machine": machine(), "loads": loads,
                                     "figures": [{"model": m.stem, "program": n, "rounds": v} for (m, n), v in seen.items()]},
                                    indent=1))


if __name__ == "__main__":
    main()
