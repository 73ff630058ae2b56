#!/usr/bin/env python3
"""A hub that lies: names with paths, sizes and digests that are none, bodies without end, redirects in circles, silence.

Clients start downloads from it, thousands in a minute, cancel them and list them. The server must answer, stay small, end each
download as done, failed or cancelled, and write nothing outside its cache nor more than was announced.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import attack
from radish_server import JSON, TINY, Server

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from hub_server import HubServer, cut, git_sha, sha256, stall, status, swap, to

MODEL = b"GGUF\x03\0\0\0" + bytes(range(256)) * 400  # 100 KiB
FILE = "tiny-Q4_K_M.gguf"
ENDED = ("done", "failed", "cancelled")
PATHS = [
    "../../../out.gguf",
    "/tmp/out.gguf",
    "a/../../../out.gguf",
    "..",
    ".",
    "",
    "a//b.gguf",
    "a\0b.gguf",
    "x" * 5000,
    "-rf.gguf",
]
PATHS += [
    "\u202egguf.exe",
    "a\nb.gguf",
    "con.gguf ",
    ".git/config",
    "refs/main",
    "blobs",
    "a\\..\\b.gguf",
    "\ud800.gguf",
]
SIZES = [0, -1, 2**63 - 1, 2**64, 10**30, 1.5, "7", None, True, [], len(MODEL) - 1, len(MODEL) + 1, 2**40]
DIGESTS = ["", "x", "../" * 21 + "x", "0" * 63, "0" * 65, "G" * 64, None, 7, sha256(b"other"), "\0" * 64]


def entry(path, size=len(MODEL), oid=sha256(MODEL)):
    return {"type": "file", "oid": git_sha(MODEL), "size": size, "path": path, "lfs": {"oid": oid, "size": size}}


def lie(hub, rng):
    """What the hub says of its files, and how it gives them, from now on."""
    url = hub.url
    lists = [
        lambda e: e,
        lambda e: e,
        lambda e: [entry(rng.choice(PATHS))] + e,
        lambda e: [entry(FILE, size=rng.choice(SIZES))],
        lambda e: [entry(FILE, oid=rng.choice(DIGESTS))],
        lambda e: [entry(f"{i}/{FILE}") for i in range(20000)],
        lambda e: {"error": "x" * 100000},
        lambda e: [rng.choice([7, None, [], "x", {}, {"path": 5}, [[[[]]]]])] + e,
    ]
    bodies = [cut(50000), stall(1000, 3), swap(MODEL + b"more"), swap(b"x" * len(MODEL)), swap(MODEL * 30), status(404)]
    bodies += [
        status(500),
        status(429, {"Retry-After": "99999999999"}),
        status(200, {"Content-Length": "99999999999999"}),
    ]
    bodies += [status(206, {"Content-Range": "bytes 5-1/0"}), status(416), status(301, {"Location": ""})]
    redirects = [
        to(u)
        for u in (f"{url}/org/tiny-GGUF/resolve/main/{FILE}", "file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://a")
    ]
    redirects += [to(u) for u in ("http://127.0.0.1:1/x", "//", "http://[::", "a" * 70000)]
    redirects += [("status", (200, {}, b"GGUF" + b"y" * 3000000))]
    answers = [
        status(500),
        ("status", (200, {}, b"[" * 3000000)),
        ("status", (200, {}, b'["' + b"x" * 9000000)),
        to(url + "/api/models/x/y"),
    ]
    hub.edit = rng.choice(lists)
    hub.faults = {FILE: [rng.choice(bodies) for _ in range(3)]} if rng.random() < 0.5 else {}
    if rng.random() < 0.3:
        hub.faults["resolve/" + FILE] = [rng.choice(redirects) for _ in range(3)]
    if rng.random() < 0.3:
        hub.faults[rng.choice(["api/tree", "api/revision", "api/search"])] = [rng.choice(answers)]


def tree_of(folder):
    return {Path(at) / name for at, _, names in os.walk(folder) for name in names}


def asked(server, method, path, body=None):
    """(status, JSON or None); errors of a hub name its files, which Server.request would take for one of this machine."""
    with contextlib.closing(server.connect()) as c:
        c.request(method, path, json.dumps(body) if body else None, JSON if body else {})
        r = c.getresponse()
        text = r.read()
        assert b"/hf/" not in text, text
        return r.status, json.loads(text) if text else None


def ask_for_all(server, rng, until, counts, troubles):
    """Starts, cancels, lists, looks and searches."""
    try:
        while time.monotonic() < until:
            kind = rng.random()
            if kind < 0.5:
                name = rng.choice(
                    [
                        "org/tiny-GGUF",
                        "org/tiny-GGUF:Q4_K_M",
                        "org/tiny-GGUF:Q8_0",
                        "org/none",
                        f"org/m{rng.randrange(9999)}",
                    ]
                )
                code = asked(server, "POST", "/v1/downloads", {"model": name})[0]
                wanted = {200, 429}
            elif kind < 0.8:
                listed = server.get("/v1/downloads")[1]["data"]
                code = asked(server, "DELETE", f"/v1/downloads/{rng.choice(listed)['id'] if listed else 1}")[0]
                wanted = {200, 404, 409}
            elif kind < 0.9:
                code = asked(server, "GET", rng.choice(["/v1/hub/models/org/tiny-GGUF", "/v1/hub/models?search=tiny"]))[
                    0
                ]
                wanted = {200, 404, 429, 503, 400}
            else:
                code, wanted = (
                    asked(server, "DELETE", "/v1/downloads/" + rng.choice(["0", "-1", "9" * 30, "x", "%00", ""]))[0],
                    {400, 404, 405},
                )
            counts[code] += 1
            if code not in wanted:
                troubles.append((kind, code))
    except Exception as e:  # noqa: BLE001
        troubles.append(repr(e))


def lying(n, seconds, home, seed=1):
    """n clients; the figures."""
    rng, hub = random.Random(seed), HubServer()
    hub.add("org/tiny-GGUF", {FILE: MODEL, "tiny-Q8_0.gguf": MODEL + b"8", "README.md": b"# tiny"})
    inside = home / "home"
    inside.mkdir()
    own = {name: "" for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))}
    own |= {"HOME": str(inside), "HF_HOME": str(inside / "hf"), "HF_ENDPOINT": hub.url, "no_proxy": "*"}
    server = Server("--threads", "1", "--kv-tokens", "8192", "--drain", "1", model=TINY, env=own)
    counts, troubles, until = collections.Counter(), [], time.monotonic() + seconds
    try:
        before, prober = attack.memory_kib(server), attack.Prober(server)
        prober.start()
        clients = [
            threading.Thread(target=ask_for_all, args=(server, random.Random(f"{seed} {i}"), until, counts, troubles))
            for i in range(n)
        ]
        for c in clients:
            c.start()
        while time.monotonic() < until:
            lie(hub, rng)
            time.sleep(0.05)
        for c in clients:
            c.join()
        hub.edit, hub.faults = (lambda e: e), {}
        for d in server.get("/v1/downloads")[1]["data"]:
            asked(server, "DELETE", f"/v1/downloads/{d['id']}")
        server.wait_until(lambda: all(d["state"] in ENDED for d in server.get("/v1/downloads")[1]["data"]), 120)
        ended = server.post("/v1/downloads", {"model": "org/tiny-GGUF:Q4_K_M"})[1]["id"]  # the cache is fit for use
        one = lambda: next(d for d in server.get("/v1/downloads")[1]["data"] if d["id"] == ended)
        server.wait_until(lambda: one()["state"] in ENDED, 120)
        figures = {
            "answers": dict(counts),
            "asked_of_the_hub": len(hub.seen),
            "troubles": troubles[:5],
            "health": prober.end(),
        }
        figures["memory_mib"] = {
            "before": before >> 10,
            "most": prober.most >> 10,
            "after": attack.memory_kib(server) >> 10,
        }
        figures["files"] = len(tree_of(inside))
        figures["biggest"] = max(f.stat().st_size for f in tree_of(inside))
        print(json.dumps(figures), flush=True)
        assert server.process.poll() is None, "the server has ended"
        assert one()["state"] == "done", one()
        assert not troubles and not figures["health"]["wrong"], figures
        assert all(inside in f.parents for f in tree_of(home)), tree_of(home)
        assert not Path("/tmp/out.gguf").exists()
        blobs = [f for f in tree_of(inside / "hf/hub") if f.parent.name == "blobs" and len(f.name) == 64]
        assert blobs and all(sha256(f.read_bytes()) == f.name for f in blobs), blobs
        assert server.stop() == 0
        return figures
    finally:
        hub.close()
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--n", type=int, default=8, help="how many clients at once [%(default)s]")
    p.add_argument("--seconds", type=float, default=60, help="how long [%(default)s]")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as d:
        lying(a.n, a.seconds, Path(d), a.seed)
