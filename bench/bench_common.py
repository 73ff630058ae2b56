"""What the programs of bench/ share: options, the machine's description, the lock, medians, tables, result files.

A result file is {"bench": NAME, "when": ISO time, "machine": {...}, "programs": {...}, "settings": {...}, "rows":
[...]}, each row a flat object; bench/report turns these files into docs/performance.md.
"""

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("RADISH_CACHE", "")  # what is measured is computed: no disk cache, but where a script says so
MODELS = Path(os.environ.get("RADISH_MODELS") or Path.home() / ".cache/radish/models")
FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)


def options(doc, **defaults):
    """The parser with the options that every program has. doc: the program's docstring, its help."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=Path, default=ROOT / "build", help="folder with the radish program; default build/")
    p.add_argument(
        "--peer-dir",
        type=Path,
        help="folder with llama.cpp's programs, or to build them in; default $RADISH_PEERS or ~/.cache/radish/peers",
    )
    p.add_argument("--no-peer", action="store_true", help="radish alone")
    p.add_argument(
        "--isa",
        choices=("native", "avx2", "avx512", "amx"),
        default="native",
        help="both programs with this and no more (radish by --cpu-isa, the peer by its build); default: what is here",
    )
    p.add_argument("--cpu-isa", help="passed to radish; default: what --isa names")
    p.add_argument("--threads", type=int, default=min(len(os.sched_getaffinity(0)), defaults.get("threads", 64)))
    p.add_argument("--rounds", type=int, default=defaults.get("rounds", 3))
    p.add_argument("--limit", type=float, metavar="S", help="begin no round that would not end within S seconds")
    p.add_argument("--quick", action="store_true", help="few points, one round: does it run, and roughly where is it")
    p.add_argument("--out", type=Path, help="result file (JSON)")
    p.add_argument(
        "--lock",
        type=Path,
        help="hold this file's lock (flock) while something is timed: for several people on one machine",
    )
    return p


def find_model(name):
    for path in (Path(name), MODELS / (name + ".gguf")):
        if path.is_file():
            return path
    sys.exit("no model %s: neither a file nor in %s (tools/fetch-model %s)" % (name, MODELS, name))


def all_models():
    found = sorted(MODELS.glob("*.gguf"), key=lambda f: f.stat().st_size)
    return found or sys.exit("no models in %s (tools/fetch-model smollm2)" % MODELS)


def machine():
    cpu, flags = platform.machine(), set()
    with open("/proc/cpuinfo") as f:
        for line in f:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                cpu = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = set(value.split())
    meminfo = dict(line.split(":", 1) for line in open("/proc/meminfo"))
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "flags": [f for f in FLAGS if f in flags],
        "memory_gib": round(int(meminfo["MemTotal"].split()[0]) / 2**20, 1),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
    }


def machine_text(m):
    return "%s, %d cores, %s GiB, Linux %s (%s); load average %.1f" % (
        m["cpu"],
        m["cores"],
        m["memory_gib"],
        m["kernel"],
        " ".join(m["flags"]),
        m["load"],
    )


def isa_flags(a):
    """What radish gets to compute with the instructions that --isa and --cpu-isa name."""
    isa = a.cpu_isa or (a.isa if a.isa != "native" else None)
    return ["--cpu-isa", isa] if isa else []


class Rounds:
    """for r in Rounds(a): the numbers of rounds, as many as --rounds and --limit allow, but one at least."""

    def __init__(self, a):
        self.wanted, self.limit, self.done = a.rounds, a.limit, 0
        self.begin, self.next_s = time.monotonic(), None

    def expect(self, seconds):
        """How long the next round takes, where that is not as long as the one before."""
        self.next_s = seconds

    def __iter__(self):
        while self.done < self.wanted:
            start, self.next_s = time.monotonic(), None
            yield self.done
            self.done += 1
            end = time.monotonic()
            next_s = self.next_s if self.next_s is not None else end - start
            if self.limit and end - self.begin + next_s > self.limit and self.done < self.wanted:
                say("%d of %d rounds: the next would take %.0f s", self.done, self.wanted, next_s)
                return


def radish_version(build):
    if (build / "commit").is_file():  # made elsewhere, by bench/pack
        return "radish %s" % (build / "commit").read_text().strip()
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    dirty = subprocess.run(
        ["git", "-C", str(ROOT), "status", "--porcelain", "-uno", "src", "include"], capture_output=True, text=True
    ).stdout.strip()
    program = build / "radish"
    if not program.is_file():
        sys.exit("no %s: build radish first (cmake --preset release && cmake --build build), or say --build" % program)
    return "radish %s%s" % (commit.stdout.strip() or "?", "+" if dirty else "")


@contextlib.contextmanager
def timing(lock):
    """with timing(a.lock): the machine is ours (as far as the others ask for the same lock)."""
    if not lock:
        yield
        return
    with open(lock, "a") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def run(args, **more):
    """Standard output of a program; ends this one with the program's own words when it fails."""
    r = subprocess.run([str(a) for a in args], capture_output=True, text=True, **more)
    if r.returncode:
        raise RuntimeError("%s: exit %d\n%s" % (" ".join(map(str, args)), r.returncode, (r.stderr or r.stdout)[-1500:]))
    return r.stdout


def kernels_program(build):
    """bench_kernels, of the build folder or of build/bench, made there if need be."""
    own = ROOT / "build/bench"
    for folder in (build, own):
        if (folder / "bench/kernels/bench_kernels").is_file():
            return folder / "bench/kernels/bench_kernels"
    say("building bench_kernels in %s", own)
    return build_kernels(own)


def build_kernels(folder):
    folder.mkdir(parents=True, exist_ok=True)
    run(["cmake", "-S", ROOT, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", "-DRADISH_BENCH=ON", "-DRADISH_TESTS=OFF"])
    run(["cmake", "--build", folder, "-j", str(os.cpu_count()), "--target", "bench_kernels"])
    return folder / "bench/kernels/bench_kernels"


def holds(bar, value):
    """ "<= 200: holds" or "<= 200: MISSED" for a bar such as ("<=", 200); "" without one."""
    if bar is None or value is None:
        return ""
    met = value <= bar[1] if bar[0] == "<=" else value >= bar[1]
    return "%s %g: %s" % (bar[0], bar[1], "holds" if met else "MISSED")


def median(values):
    return statistics.median(values) if values else None


def percentile(values, p):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))] if ordered else None


def number(v):
    """Three digits that matter."""
    if v is None:
        return "-"
    if isinstance(v, str):
        return v
    return "%.0f" % v if abs(v) >= 100 else "%.1f" % v if abs(v) >= 10 else "%.2f" % v


def table(heads, rows):
    """A markdown table, columns aligned."""
    cells = [list(map(str, heads))] + [[number(c) for c in row] for row in rows]
    width = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    lines = ["| %s |" % " | ".join(c.ljust(w) for c, w in zip(row, width)) for row in cells]
    return "\n".join([lines[0], "|%s|" % "|".join("-" * (w + 2) for w in width), *lines[1:]])


def say(text, *values):
    print(text % values if values else text, file=sys.stderr, flush=True)


def save(path, bench, settings, programs, rows):
    result = {
        "bench": bench,
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "programs": programs,
        "settings": settings,
        "rows": rows,
    }
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
        say("written: %s", path)
    return result
