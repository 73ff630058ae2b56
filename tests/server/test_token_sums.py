"""Prompt tokens add up, whatever happens to requests: what was computed and what was cached, told by answers, by records of
requests, by /stats, /metrics, the monitor and to each tenant, are the same numbers."""

import contextlib
import json
import random
import re
import socket
import threading

import pytest
from radish_server import Server, token_ids
from test_monitor import events, monitor

TEXT = "/v1/completions"
PHASES = ("queued", "waiting", "prefill", "decode")
N_CLIENTS, N_EACH = 6, 15
OWN = {"Authorization": "Bearer own-key"}


@pytest.fixture
def server(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice-key\nbob-key\n")
    s = Server(
        *("--api-key", "own-key", "--api-key-file", str(keys), "--threads", "1", "--kv-tokens", "8192"),
        *("--max-running", "2", "--max-queue", "12", "--max-chunk", "64"),
    )
    yield s
    assert s.stop() == 0


class Told:
    """Every request that ended, as the page is told of it."""

    def __init__(self, s):
        self.s, self.records, self.totals, self.stop = s, {}, {}, threading.Event()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()
        self.ready.wait(60)

    def listen(self):
        with events(self.s, "Authorization: Bearer own-key\r\n") as stream:
            self.ready.set()
            for event in stream:
                self.records |= {r["number"]: r for r in event["recent"]}
                self.totals = event["totals"]
                if self.stop.is_set() and not event["running"] and len(self.records) == self.n_ended():
                    return

    def n_ended(self):
        t = self.totals
        return t["stop"] + t["length"] + t["cancelled"] + t["failed"]

    def all(self):
        self.stop.set()
        self.thread.join(120)
        assert not self.thread.is_alive()
        return list(self.records.values())


def post(s, body, who, path=TEXT):
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", s.port), timeout=600)
    sock.sendall(s.post_bytes(path, data, [f"Authorization: {who['Authorization']}"]))
    return sock


def hang_up_in(s, phase, seed, who):
    """One that leaves there; what it needs beside it leaves, too, later."""
    stats = lambda: s.get("/stats", OWN)[1]  # noqa: E731
    before, others = stats()["cancelled"][phase], []
    ask = {"max_tokens": 2000, "ignore_eos": True, "stream": True}
    if phase == "queued":
        for i in range(2):
            others.append(post(s, ask | {"prompt": token_ids(6, seed=seed + i)}, who))
        s.wait_until(lambda: stats()["requests"]["decode"] == 2, 120)
    if phase == "waiting":
        others.append(post(s, ask | {"prompt": token_ids(1500, seed=seed)}, who))
        s.wait_until(lambda: stats()["requests"]["prefill"] == 1, 120)
    long = phase in ("waiting", "prefill")
    one = post(s, ask | {"prompt": token_ids(1500 if long else 7, seed=seed + (phase == "queued") * 5)}, who)
    s.wait_until(lambda: stats()["requests"][phase] >= 1, 120)
    one.close()
    s.wait_until(lambda: stats()["cancelled"][phase] > before, 120)
    for sock in others:
        sock.close()
    s.wait_until(lambda: sum(stats()["requests"][k] for k in ("preparing", "queued", *PHASES[1:])) == 0, 120)


def one_of_many(s, draw, who, sums):
    """Any request: whole, streamed, refused, cancelled from the monitor, left at some time."""
    n = draw.choice([3, 40, 90, 200, 400])
    prompt = token_ids(n, seed=draw.randrange(4))
    if draw.random() < 0.5:
        prompt = prompt[: n // 2] + token_ids(n // 2 + 1, seed=100 + draw.randrange(50))
    ask = {"prompt": prompt, "max_tokens": draw.choice([1, 5, 40]), "ignore_eos": True}
    what = draw.random()
    if what < 0.3:
        sock = post(s, ask | {"stream": draw.random() < 0.5, "max_tokens": 300}, who)
        sock.settimeout(draw.choice([0.001, 0.02, 0.1, 0.5]))
        with contextlib.suppress(TimeoutError):
            sock.recv(1000)
        sock.close()
        return
    if what < 0.4:
        bad = draw.choice([{"temperature": -1}, {"prompt": token_ids(9000)}, {"max_tokens": "x"}, {"prompt": [-1]}])
        assert s.request("POST", TEXT, ask | bad, who)[0] in (400, 429)
        return
    if what < 0.5:
        running = s.get("/v1/monitor", OWN)[1]["running"]
        if running:
            s.request("DELETE", f"/v1/monitor/requests/{draw.choice(running)['id']}", headers=OWN)
        return
    if what < 0.7:
        status, _, raw = s.request("POST", TEXT, ask | {"stream": True, "stream_options": {"include_usage": True}}, who)
        usages = [
            json.loads(line[6:]).get("usage")
            for line in raw.decode().splitlines()
            if line.startswith("data: {") and '"usage":{' in line
        ]
        usage = usages[-1] if status == 200 and usages else None
        assert status in (200, 429, 503), raw
    else:
        more = {"n": 2, "temperature": 1} if draw.random() < 0.2 else {}
        status, body = s.post(TEXT, ask | more, who)
        assert status in (200, 429, 503), body
        usage = body["usage"] if status == 200 and not more else None
        sums["several"] += status == 200 and bool(more)
    if usage:
        sums[usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]] = (
            sums.get(
                (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]), 0
            )
            + 1
        )


def metric(text, name, labels=""):
    return int(re.search(rf"^{name}{labels} (\d+)$", text, re.M)[1])


def test_tokens_add_up_everywhere(server):
    s = server
    told = Told(s)
    who = [{"Authorization": f"Bearer {k}-key"} for k in ("alice", "bob", "own")]
    for i, phase in enumerate(PHASES):
        hang_up_in(s, phase, 7000 + 10 * i, who[i % 3])
    sums, lock = [], threading.Lock()

    def client(i):
        draw, mine = random.Random(i), {"several": 0}
        for _ in range(N_EACH):
            one_of_many(s, draw, who[i % 3], mine)
        with lock:
            sums.append(mine)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(N_CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(sums) == N_CLIENTS  # none of them failed
    s.wait_until(lambda: not s.get("/v1/monitor", OWN)[1]["running"], 120)
    records = told.all()
    stats = s.get("/stats", OWN)[1]
    tokens = stats["tokens"]

    # one by one
    for r in records:
        t = r["tokens"]
        assert t["computed"] + t["cached"] <= t["prompt"], r
        assert t["cached"] == t["device"] + t["joined"] + t["ram"] + t["disk"], r
        if r["end"] in ("stop", "length") or r["phase"] == "decode":
            assert t["computed"] + t["cached"] == t["prompt"], r
    assert {r["end"] for r in records} >= {"length", "cancelled"}

    # their sums
    computed, cached = (sum(r["tokens"][k] for r in records) for k in ("computed", "cached"))
    assert computed == tokens["prompt_computed"] and cached == tokens["prompt_cached"] > 0
    assert sum(r["tokens"]["generated"] for r in records) == tokens["generated"]
    assert len(records) == stats["requests"]["submitted"]

    # the page's totals and the metrics
    for totals in (told.totals, monitor(s, headers=OWN)["totals"]):
        assert (totals["computed"], totals["cached"]) == (computed, cached)
        assert totals["prompt"] == computed + cached
        assert totals["cached"] == sum(totals[k] for k in ("device", "joined", "ram", "disk"))
    text = s.request("GET", "/metrics", headers=OWN)[2].decode()
    assert metric(text, "radish_prompt_tokens_computed_total") == computed
    assert metric(text, "radish_prompt_tokens_cached_total") == cached
    assert metric(text, "radish_prompt_tokens_total") == computed + cached
    by_source = [int(n) for n in re.findall(r"^radish_cached_tokens_total\{.*\} (\d+)$", text, re.M)]
    assert sum(by_source) == cached

    # every phase in which a client may leave, in each of them
    phases = {p: sum(r["phase"] == p and r["end"] == "cancelled" for r in records) for p in PHASES}
    assert min(phases.values()) >= 1, phases
    for phase, n in phases.items():
        assert (
            stats["cancelled"][phase] == n == metric(text, "radish_requests_cancelled_total", rf'\{{phase="{phase}"\}}')
        )

    # what clients were told is what the records say of as many requests
    left = {}
    for r in records:
        if r["end"] in ("stop", "length"):
            key = r["tokens"]["prompt"], r["tokens"]["cached"], r["tokens"]["generated"]
            left[key] = left.get(key, 0) + 1
    n_answers = 0
    for mine in sums:
        mine.pop("several")
        for key, n in mine.items():
            assert left.get(key, 0) >= n, (key, n)
            left[key] -= n
            n_answers += n
    assert n_answers > N_CLIENTS * N_EACH / 10

    # tenants: their own, and nobody's beside
    of_tenants = [0, 0]
    for key in who[:2]:
        mine = s.get("/stats", key)[1]["tokens"]
        assert mine["prompt"] == mine["prompt_cached"] + mine["prompt_computed"]
        own = s.request("GET", "/metrics", headers=key)[2].decode()
        name = "radish_tenant_prompt_tokens_total"
        assert metric(own, name, r'\{source="cached"\}') == mine["prompt_cached"]
        assert metric(own, name, r'\{source="computed"\}') == mine["prompt_computed"]
        of_tenants[0] += mine["prompt_cached"]
        of_tenants[1] += mine["prompt_computed"]
    assert 0 < of_tenants[0] <= cached and 0 < of_tenants[1] <= computed  # nothing of what was never begun
    assert stats["engine"]["accounting_errors"] == 0
