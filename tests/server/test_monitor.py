"""GET /v1/monitor and its events: history, who runs, who ran; cancelling; readers that stall; other tenants."""

import contextlib
import json
import socket
import time

import pytest
from radish_server import TINY, token_ids

TEXT = "/v1/completions"


@pytest.fixture
def tiny(make_server):
    return make_server("--threads", "1", "--kv-tokens", "4096", model=TINY)


def monitor(s, query="", headers=None):
    status, m = s.get("/v1/monitor" + query, headers)
    assert status == 200, m
    assert len({c["name"] for c in m["columns"]}) == len(m["columns"])
    for rows in (m["seconds"], m["minutes"]):
        assert all(len(r) == len(m["columns"]) for r in rows)
        assert [r[0] for r in rows] == sorted(r[0] for r in rows)
    return m


def column(m, name, rows="seconds"):
    at = [c["name"] for c in m["columns"]].index(name)
    return [r[at] for r in m[rows]]


@contextlib.contextmanager
def events(s, headers=""):
    with socket.create_connection(("127.0.0.1", s.port), timeout=30) as sock:
        sock.sendall(f"GET /v1/monitor/events HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
        f = sock.makefile("rb")
        assert f.readline().split()[1] == b"200"
        assert any(line.lower().startswith(b"content-type: text/event-stream") for line in iter(f.readline, b"\r\n"))
        yield (json.loads(line[6:]) for line in f if line.startswith(b"data: "))


def test_a_request_is_told_as_it_was(tiny):
    prompt = [5 + i % 80 for i in range(100)]
    ask = {"prompt": prompt, "max_tokens": 20, "ignore_eos": True}
    answers = [tiny.ok(TEXT, ask), tiny.ok(TEXT, ask | {"prompt": [*prompt, 9, 9]})]
    first, second = monitor(tiny)["recent"]
    assert [first["label"], second["label"]] == [a["id"] for a in answers]
    assert (first["phase"], first["end"], first["status"]) == ("decode", "length", "RD_OK")
    assert first["match"] == {"kind": "miss", "tokens": 0, "percent": 0, "miss": "new"}
    assert second["match"]["kind"] == "lcp" and second["match"]["percent"] > 90
    for told, answer in ((first, answers[0]), (second, answers[1])):
        t, ms, u = told["tokens"], told["ms"], answer["usage"]
        assert t["prompt"] == t["done"] == u["prompt_tokens"] == t["computed"] + t["cached"]
        assert t["cached"] == u["prompt_tokens_details"]["cached_tokens"]
        assert t["cached"] == t["device"] + t["joined"] + t["ram"] + t["disk"]
        assert t["generated"] == u["completion_tokens"]
        assert 0 < ms["ttft"] <= ms["total"] and 0 < ms["gap_p50"] <= ms["gap_p99"] and ms["decode"] < ms["total"]
        assert told["decode_tok_s"] > 0
    totals = monitor(tiny)["totals"]
    assert totals["prompt"] == totals["computed"] + totals["cached"] == 202
    assert totals["cached"] == second["tokens"]["cached"] and totals["generated"] == 40


def test_the_ring_is_bounded_and_in_order(tiny):
    for i in range(3):
        tiny.ok(TEXT, {"prompt": [[5 + i, 6, k] for k in range(90)], "max_tokens": 1})
    m = monitor(tiny)
    numbers = [r["number"] for r in m["recent"]]
    assert numbers == list(range(170, 270))


def test_seconds_are_kept_and_sum_up(tiny):
    tiny.ok(TEXT, {"prompt": [5, 6, 7], "max_tokens": 100, "ignore_eos": True})
    tiny.wait_until(lambda: sum(column(monitor(tiny), "generated")) > 0)
    m = monitor(tiny)
    assert round(sum(column(m, "generated"))) in range(60, 141)  # a second is not exactly one
    assert sum(column(m, "submitted")) > 0 and column(m, "pages_free")[-1] > 0
    assert [v for v in column(m, "ttft_p50") if v is not None]
    assert len(monitor(tiny, "?seconds=1&minutes=0")["seconds"]) == 1
    assert monitor(tiny, "?seconds=0")["seconds"] == []
    for bad in ("seconds=x", "minutes=-1", "seconds=99999999999", "seconds="):
        assert tiny.get("/v1/monitor?" + bad)[0] == 400


def test_events_come_each_second_and_tell_who_runs(small):
    long = {"prompt": token_ids(30, seed=1), "max_tokens": 4000, "ignore_eos": True, "stream": True}
    before = monitor(small)
    with events(small) as stream, contextlib.closing(small.open_request(TEXT, long)):
        for event in stream:
            assert len(event["row"]) == len(before["columns"])
            if event["running"] and event["running"][0]["tokens"]["generated"]:
                break
        one = event["running"][0]
        assert one["phase"] == "decode" and one["end"] == "" and one["tokens"]["done"] == 30
        rows = [event["row"][0], *(e["row"][0] for e, _ in zip(stream, range(2), strict=False))]
        assert rows == sorted(set(rows))
        assert small.request("DELETE", f"/v1/monitor/requests/{one['id']}")[0] == 200
        for event in stream:
            if event["recent"]:
                break
        gone = event["recent"][0]
        assert (gone["id"], gone["end"], gone["phase"]) == (one["id"], "cancelled", "decode")
    small.wait_idle()
    assert small.request("DELETE", f"/v1/monitor/requests/{one['id']}")[0] == 404
    assert small.request("DELETE", "/v1/monitor/requests/x")[0] == 404


def test_a_cancelled_client_is_told_why_and_others_go_on(small):
    ask = {"max_tokens": 3000, "ignore_eos": True}
    first = small.open_request(TEXT, ask | {"prompt": token_ids(6, seed=2)})
    second = small.open_request(TEXT, ask | {"prompt": token_ids(6, seed=3)})
    small.wait_until(lambda: [r["phase"] for r in monitor(small)["running"]] == ["decode", "decode"])
    queued = small.open_request(TEXT, ask | {"prompt": token_ids(6, seed=4)})
    small.wait_until(lambda: len(monitor(small)["running"]) == 3)
    by_phase = sorted(monitor(small)["running"], key=lambda r: r["phase"] == "queued")
    last = by_phase[-1]
    assert last["phase"] == "queued"
    assert small.request("DELETE", f"/v1/monitor/requests/{last['id']}")[0] == 200
    assert queued.recv(65536).split()[1] == b"503"
    small.wait_until(lambda: [r["phase"] for r in monitor(small)["running"]] == ["decode", "decode"])
    for r in by_phase[:2]:
        small.request("DELETE", f"/v1/monitor/requests/{r['id']}")
    assert [s.recv(65536).split()[1] for s in (first, second)] == [b"503", b"503"]
    for s in (first, second, queued):
        s.close()
    small.wait_idle()
    assert small.stats()["cancelled"]["queued"] >= 1


def test_readers_that_stall_cost_an_event_each(tiny):
    stalled = []
    for _ in range(100):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        s.connect(("127.0.0.1", tiny.port))
        s.sendall(b"GET /v1/monitor/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        stalled.append(s)
    end = time.monotonic() + 6
    unread = []
    while time.monotonic() < end:
        tiny.ok(TEXT, {"prompt": [[5, 6, k] for k in range(60)], "max_tokens": 1})
        unread.append(tiny.stats()["client_memory"]["unread"])
    assert max(unread) < 100 * 64_000
    with events(tiny) as stream:
        assert next(stream)["row"]
    for s in stalled:
        s.close()
    tiny.wait_until(lambda: tiny.stats()["client_memory"]["unread"] == 0)


def test_an_open_page_does_not_keep_the_server(make_server):
    s = make_server("--kv-tokens", "1024", "--drain", "50", model=TINY)
    with events(s) as stream:
        next(stream)
        begin = time.monotonic()
        assert s.stop() == 0
        assert time.monotonic() - begin < 40


def test_tenants_see_and_stop_nothing(make_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice-key\n")
    s = make_server("--api-key", "own-key", "--api-key-file", str(keys), "--kv-tokens", "1024", model=TINY)
    alice, own = ({"Authorization": f"Bearer {k}-key"} for k in ("alice", "own"))
    for method, path in (("GET", ""), ("GET", "/events"), ("DELETE", "/requests/0")):
        assert s.request(method, "/v1/monitor" + path)[0] == 401
        assert s.request(method, "/v1/monitor" + path, headers=alice)[0] == 403
    assert monitor(s, headers=own)["totals"]["requests"] == 0
    assert s.request("HEAD", "/v1/monitor/events", headers=own)[0] == 200
