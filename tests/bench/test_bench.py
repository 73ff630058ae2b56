"""The programs of bench/ run, small, and their results become a document. No figure is judged: machines differ.

The peer is played by scripts: llama-bench and llama-batched-bench print what the real ones print, llama-server is
radish behind llama-server's flags. Programs that take half a minute each and share their parts with the others run here
with RADISH_LONG=1, as all do then by bench/all.
"""

import importlib.machinery
import importlib.util
import json
import os
import stat
import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RADISH_BUILD", ROOT / "build"))

LLAMA_BENCH = """
import json, sys
a = dict(zip(sys.argv[1::2], sys.argv[2::2]))
numbers = lambda flag: [int(v) for v in a.get(flag, "0").split(",")]
rows = [{"n_prompt": p, "n_gen": 0, "n_depth": 0, "avg_ts": 100.0 + p} for p in numbers("-p") if p]
rows += [{"n_prompt": 0, "n_gen": n, "n_depth": d, "avg_ts": 50.0} for n in numbers("-n") if n for d in numbers("-d")]
print(json.dumps(rows))
"""
LLAMA_BATCHED = """
import json, sys
a = sys.argv
for n in a[a.index("-npl") + 1].split(","):
    print(json.dumps({"pl": int(n), "speed_tg": 70.0}))
"""
LLAMA_SERVER = """
import os, sys
a = sys.argv
if "--version" in a:
    print("version: 1 (stub)")
    sys.exit()
model, port = a[a.index("-m") + 1], a[a.index("--port") + 1]
os.execv(%r, ["radish", "serve", model, "--port", port, "--threads", "1", "--log-level", "warn"])
"""

long_only = pytest.mark.skipif(not os.environ.get("RADISH_LONG"), reason="RADISH_LONG=1 only")


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peer")
    radish = str(BUILD / "radish")
    for name, text in (
        ("llama-bench", LLAMA_BENCH),
        ("llama-batched-bench", LLAMA_BATCHED),
        ("llama-server", LLAMA_SERVER % radish),
    ):
        program = folder / name
        program.write_text("#!%s\n%s" % (sys.executable, text))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


def run(program, *args):
    r = subprocess.run(
        [sys.executable, "-B", ROOT / "bench" / program, *map(str, args)], capture_output=True, text=True, timeout=600
    )
    assert r.returncode == 0, r.stderr[-3000:] + r.stdout[-1000:]
    return r.stdout


def bench(program, peer, results, *args):
    said = run(
        program,
        "--quick",
        "--build",
        BUILD,
        "--peer-dir",
        peer,
        "--threads",
        2,
        "--out",
        results / (program + ".json"),
        *args,
    )
    return said, json.loads((results / (program + ".json")).read_text())


def test_cpu_compares_with_the_peer(peer, results):
    said, result = bench("cpu", peer, results, "--prefill", "32", "smollm2")
    rows = {(r["what"], r["n"]): r for r in result["rows"]}
    assert rows["prefill", 512]["llama.cpp"] == 612.0  # --quick sets the points
    assert rows["prefill", 512]["ratio"] == pytest.approx(rows["prefill", 512]["radish"] / 612.0)
    assert rows["batched", 16]["llama.cpp"] == 70.0
    assert all(r["radish"] > 0 for r in result["rows"] if r["what"] != "second_mib")
    assert rows["start_ms", 0]["llama.cpp"] > 0
    assert "| smollm2" in said and result["machine"]["cores"] >= 1


@long_only
def test_serve_goes_through_all_measurements(peer, results):
    said, result = bench("serve", peer, results, "--prompt", "300", "--gen", "8", "smollm2")
    rows = {r["figure"]: r for r in result["rows"]}
    assert {
        "cold_ms",
        "cached_ms",
        "four_x",
        "streams_tok_s",
        "hangup_ms",
        "flood_keeps",
        "busy_keeps",
        "idle_cpu",
    } <= set(rows)
    assert rows["same_text"]["radish"] == 4
    assert rows["flood_served"]["radish"] == 32
    assert "ratio <= 0.15" in rows["cached_ms"]["bar"]


@long_only
def test_agent_counts_every_token_once(peer, results):
    _, result = bench("agent", peer, results, "--gen", "4", "smollm2")
    turns = [r for r in result["rows"] if r["turn"] > 0]
    assert len(turns) == 2 * (4 + 1 + 4)
    assert all(r["cached"] + r["computed"] == r["prompt"] > 2000 for r in turns)


@long_only
def test_agent_without_nonce_finds_its_history_in_the_cache(peer, results, tmp_path):
    out = tmp_path / "agent.json"
    run(
        "agent",
        "--quick",
        "--build",
        BUILD,
        "--no-peer",
        "--gen",
        4,
        "--volatile",
        0,
        "--reorder",
        0,
        "--out",
        out,
        "smollm2",
    )
    turns = [r for r in json.loads(out.read_text())["rows"] if r["turn"] > 1]
    assert all(r["cached"] > 2000 for r in turns)


@long_only
def test_speculation_gives_the_same_bytes(peer, results):
    _, result = bench("speculation", peer, results, "--lines", "12", "--gen", "8", "smollm2")
    assert [r["same_bytes"] for r in result["rows"]] == [True] * 4


@long_only
def test_sweep_tries_each_setting(peer, results):
    _, result = bench("sweep", peer, results, "smollm2")
    assert {r["what"] for r in result["rows"]} == {"threads", "chunk", "KV type"}


@long_only
def test_kv_types_asks_for_perplexity_and_tool_calls(peer, results):
    _, result = bench("kv-types", peer, results, "--types", "f16,q8_0", "--tools", "smollm2", "smollm2")
    assert [r["type"] for r in result["rows"]] == ["f16", "q8_0"] * 2
    assert all(abs(r["change_percent"]) < 0.2 for r in result["rows"] if "perplexity" in r)
    assert all(r["asked"] == 4 for r in result["rows"] if "right" in r)


def test_report_fills_sections_and_keeps_the_rest(tmp_path):
    doc, notes = tmp_path / "performance.md", tmp_path / "kernels.md"
    notes.write_text((ROOT / "bench/notes/kernels.md").read_text())
    text = (ROOT / "docs/performance.md").read_text()
    doc.write_text(text.replace("# Performance\n", "# Performance\n\nkept words\n"))
    common = {
        "when": "2026-01-01T00:00:00+00:00",
        "programs": {},
        "settings": {"threads": 1},
        "machine": {"cpu": "some CPU", "cores": 1, "flags": [], "memory_gib": 1, "kernel": "k", "load": 0.5},
    }
    kernel = {
        "kernel": "linear Q4_1, 1 rows",
        "version": "avx2",
        "us": 1.0,
        "gb_s": 2.0,
        "gop_s": 3.0,
        "bound": "memory",
        "share": 0.5,
        "check": "same bits as ref",
    }
    speed = {
        "model": "smollm2",
        "kv": "f16",
        "what": "prefill",
        "n": 512,
        "radish": 300.0,
        "llama.cpp": 100.0,
        "ratio": 3.0,
        "setting": "fa 1 repack 1",
    }
    (tmp_path / "kernels.json").write_text(json.dumps({"bench": "kernels", "rows": [kernel], **common}))
    (tmp_path / "cpu-a.json").write_text(json.dumps({"bench": "cpu", "rows": [speed], **common}))
    (tmp_path / "cpu-b.json").write_text(json.dumps({"bench": "cpu", "rows": [dict(speed, model="another")], **common}))
    run("report", "--results", tmp_path, "--doc", doc, "--notes", notes, "--no-plots")
    written = doc.read_text(), notes.read_text()
    for part in ("kept words", "| smollm2 ", "| another ", "some CPU", "_Not measured yet._"):
        assert part in written[0]
    assert "linear Q4_1, 1 rows" in written[1] and "_Not measured yet._" in written[1]
    run("report", "--results", tmp_path, "--doc", doc, "--notes", notes, "--no-plots")
    assert (doc.read_text(), notes.read_text()) == written  # again: nothing piles up


def test_decode_disturbed_is_measured_with_new_prompts_and_without_drafts(monkeypatch):
    """An answer that was given before is drafted from the tree: its speed says nothing about a flood."""
    monkeypatch.syspath_prepend(ROOT / "bench")
    loader = importlib.machinery.SourceFileLoader("bench_serve", str(ROOT / "bench/serve"))
    serve = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_serve", loader))
    loader.exec_module(serve)
    sent = []

    class Stream:
        def __init__(self, port, path, body):
            sent.append(body)

        def summary(self):
            return {"tokens": [(0.0, "a"), (1.0, "b")], "usage": {"completion_tokens": 2}, "timings": None}

    class Disturbance:
        said = {"not_ok": 0, "lost": 0, "fewest": 1, "per_s": 1.0}

        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(serve.bench_http, "Stream", Stream)
    monkeypatch.setattr(serve.bench_http, "run_streams", lambda streams: streams)
    monkeypatch.setattr(serve.bench_http, "tokenize", lambda port, text: text.split())
    monkeypatch.setattr(serve, "Flood", Disturbance)
    monkeypatch.setattr(serve, "Busy", Disturbance)
    figures = {}
    serve.measure_disturbed(types.SimpleNamespace(quick=False, only={"flood", "busy"}), 0, 1, figures)
    assert len(sent) == 13 and len({body["prompt"] for body in sent}) == 13  # 3 rounds of 4, behind one to begin with
    assert all(body.get("speculation") is False for body in sent)
    assert figures["flood_keeps"] == figures["storm_keeps"] == figures["busy_keeps"] == 1.0
