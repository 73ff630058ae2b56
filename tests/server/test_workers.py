"""What routers and those who run many servers ask of one: what it serves, its load, prompts as tokens, computing in advance, and
being taken out of service."""

import contextlib
import json
import signal
import time

import pytest
from radish_server import TINY, token_ids

CHAT = {"messages": [{"role": "user", "content": "Name a river."}], "max_tokens": 4}
WARM = "/v1/cache/warm"


def warm(s, body, headers=None):
    status, answer = s.post(WARM, body, headers)
    assert status == 200, answer
    assert answer["object"] == "cache.warmed"
    assert answer["prompt_tokens"] == answer["cached_tokens"] + answer["computed_tokens"]
    return answer


def test_what_sglangs_router_reads(server):
    info = server.get("/server_info")[1]
    model = server.get("/v1/models")[1]["data"][0]
    assert info == server.get("/get_server_info")[1]
    assert info["served_model_name"] == model["id"] and info["context_length"] == model["max_model_len"]
    assert info["max_total_num_tokens"] >= 65536 and info["dp_size"] == 1 and "model_path" not in info
    about = server.get("/model_info")[1]
    assert about == server.get("/get_model_info")[1]
    assert about["model_path"] == model["id"] and about["is_generation"] is True
    assert server.get("/health_generate") == (200, {"status": "ok"})
    assert server.get("/version")[1]["version"] == info["version"]


def test_load_is_what_runs(small):
    idle = small.get("/get_load")[1]
    assert idle == [{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}]
    body = {"prompt": token_ids(64), "max_tokens": 8000, "ignore_eos": True, "stream": True}
    opened = [small.open_request("/v1/completions", body | {"prompt": token_ids(64, k)}) for k in range(3)]
    small.wait_until(lambda: small.stats()["requests"]["decode"] == 2 and small.stats()["requests"]["queued"] == 1)
    (load,) = small.get("/get_load")[1]
    assert load["num_reqs"] == 3 and load["num_waiting_reqs"] == 1 and load["num_tokens"] >= 2 * 64
    newer = small.get("/v1/loads")[1]
    assert newer["loads"][0]["num_running_reqs"] == 2 and newer["loads"][0]["num_waiting_reqs"] == 1
    assert newer["aggregate"]["total_reqs"] == 3 and 0 < newer["loads"][0]["token_usage"] < 1
    assert small.get("/load")[1] == {"server_load": 3}
    for s in opened:
        s.close()
    small.wait_idle()


def test_a_rendered_prompt_is_the_prompt(server):
    rendered = server.ok("/v1/chat/completions/render", CHAT)
    as_vllm = server.ok("/tokenize", {"messages": CHAT["messages"]})
    answer = server.ok("/v1/chat/completions", CHAT)
    assert rendered["token_ids"] == as_vllm["tokens"]
    assert len(rendered["token_ids"]) == answer["usage"]["prompt_tokens"]
    texts = server.ok("/v1/completions/render", {"prompt": ["a red house", "a blue one"], "max_tokens": 4})
    assert [t["token_ids"] for t in texts] == [
        server.ok("/tokenize", {"prompt": p})["tokens"] for p in ("a red house", "a blue one")
    ]
    assert server.ok("/v1/completions/render", {"prompt": [5, 6, 7]})[0]["token_ids"] == [5, 6, 7]
    for path in ("/v1/chat/completions/render", "/v1/completions/render"):
        assert server.post(path, {"messages": 3, "prompt": {}})[0] == 400


def test_flush_cache_is_a_clear(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "1024", model=TINY)
    s.ok("/v1/completions", {"prompt": token_ids_of_tiny(40), "max_tokens": 1})
    status, _, body = s.request("POST", "/flush_cache", b"")
    assert status == 200 and json.loads(body)["pages"] > 0
    assert s.get("/v1/cache")[1]["nodes"] == []


def token_ids_of_tiny(n, seed=0):
    return [5 + (seed * 7 + i * 31 + i * i) % 80 for i in range(n)]


# ---- computed in advance ----


def test_a_warmed_prompt_is_found_by_its_request(server):
    text = "A story of " + " ".join(f"{i} winters" for i in range(150))
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 3, "temperature": 0}
    first = warm(server, body)
    assert first["cached_tokens"] < 30 < 300 < first["computed_tokens"]
    again = warm(server, body)
    assert again["prompt_tokens"] - again["cached_tokens"] <= 1
    used = server.ok("/v1/chat/completions", body)["usage"]
    assert used["prompt_tokens"] == first["prompt_tokens"]
    assert used["prompt_tokens_details"]["cached_tokens"] >= used["prompt_tokens"] - 1
    assert used["completion_tokens"] > 0


@pytest.mark.parametrize(
    "body",
    [
        {"system": "You are kind.", "messages": [{"role": "user", "content": "What is a kiln?"}], "max_tokens": 9},
        {"input": "What is a loom?", "instructions": "You are brief.", "stream": True},
        {"prompt": "What is a mill?", "options": {"num_predict": 3}},
        {"prompt": ["What is a quern?", "What is a sieve?"], "n": 3, "best_of": 4, "logprobs": 2, "echo": True},
        {
            "messages": [{"role": "user", "content": "What is an awl?"}],
            "response_format": {"type": "json_object"},
            "stream": True,
            "n": 2,
        },
    ],
    ids=["messages", "responses", "ollama", "completions", "stream and form"],
)
def test_bodies_of_every_api_are_warmed(server, body):
    first, again = warm(server, body), warm(server, body)
    assert first["computed_tokens"] > 0
    assert again["prompt_tokens"] == first["prompt_tokens"]
    assert again["computed_tokens"] <= (2 if isinstance(body.get("prompt"), list) else 1)


def test_what_is_no_prompt_is_refused(server):
    for body, field in (
        ({"messages": []}, "messages"),
        ({"messages": "a"}, "messages"),
        ({}, "prompt"),
        ({"prompt": "a", "model": "another"}, "model"),
    ):
        status, answer = server.post(WARM, body)
        assert status in (400, 404) and answer["error"]["param"] == field, answer
    assert server.request("POST", WARM, b"{")[0] == 400
    assert server.request("GET", WARM)[0] == 405


def test_a_prompt_beyond_the_context_is_refused(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "1024", model=TINY)
    status, answer = s.post(WARM, {"prompt": token_ids_of_tiny(300)})
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded", answer
    assert warm(s, {"prompt": token_ids_of_tiny(256)})["computed_tokens"] == 256  # as many as the context has


def test_tenants_warm_for_themselves(tenants):
    s, alice, bob, _ = tenants
    body = {"prompt": token_ids_of_tiny(100), "max_tokens": 1}
    assert s.post(WARM, body)[0] == 401
    assert warm(s, body, alice)["computed_tokens"] == 100
    assert warm(s, body, bob)["computed_tokens"] == 100  # not told apart by time either: nothing of hers is found
    assert s.post("/v1/completions", body, alice)[1]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 99


def test_warming_makes_way(small):
    """A request that comes in the middle is answered first."""
    long = small.open_request(WARM, {"prompt": token_ids(7000, 5)})
    small.wait_until(lambda: small.stats()["requests"]["prefill"] == 1)
    begun = time.monotonic()
    small.ok("/v1/completions", {"prompt": token_ids(20, 6), "max_tokens": 4})
    assert time.monotonic() - begun < 20
    assert small.active() == 1, "the answer came while the long prompt was still to be computed"
    long.close()
    small.wait_idle()


# ---- taken out of service ----


def test_drained_by_a_request(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "4096", model=TINY)
    assert s.get("/v1/drain")[1] == {"object": "drain", "draining": False, "requests": 0}
    assert s.get("/health/ready")[0] == s.get("/health/live")[0] == 200
    with contextlib.closing(s.connect()) as kept:
        kept.request("GET", "/v1/models")
        assert kept.getresponse().read()
        status, answer = s.post("/v1/drain", {})
        assert status == 200 and answer["draining"] is True
        status, answer = s.get("/health")
        assert status == 503 and answer["status"] == "draining"
        assert s.get("/health/ready")[0] == 503 and s.get("/health/live") == (200, {"status": "ok"})
        kept.request(
            "POST",
            "/v1/completions",
            json.dumps({"prompt": [5, 6], "max_tokens": 2}),
            {"Content-Type": "application/json"},
        )
        r = kept.getresponse()
        assert r.status == 200 and r.getheader("Connection") == "close" and r.read()
    assert s.request("DELETE", "/v1/drain")[0] == 200
    assert s.get("/health")[0] == 200
    assert s.stop() == 0


def test_drain_counts_who_is_answered(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "4096", model=TINY)
    stream = s.open_request(
        "/v1/completions", {"prompt": [5, 6], "max_tokens": 200, "ignore_eos": True, "stream": True}
    )
    s.post("/v1/drain", {})
    with contextlib.closing(stream):
        data = b""
        while b"[DONE]" not in data:  # the connection stays, where the drain came after it
            part = stream.recv(65536)
            assert part, data[-200:]
            data += part
        assert data.count(b"data: ") > 100  # what began before goes on to its end
    s.wait_until(lambda: s.get("/v1/drain")[1] == {"object": "drain", "draining": True, "requests": 0})


def test_only_the_owner_drains(tenants):
    s, alice, _, own = tenants
    assert s.post("/v1/drain", {})[0] == 401
    assert s.post("/v1/drain", {}, alice)[0] == 403 and s.request("DELETE", "/v1/drain", headers=alice)[0] == 403
    assert s.get("/health")[0] == 200
    assert s.post("/v1/drain", {}, own)[0] == 200
    assert s.get("/health")[0] == 503


def test_drain_wait_answers_what_comes_after_the_signal(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "4096", "--drain-wait", "2", model=TINY)
    s.process.send_signal(signal.SIGTERM)
    s.wait_until(lambda: s.get("/health")[0] == 503)
    begun = time.monotonic()
    assert s.get("/health/live")[0] == 200
    assert s.ok("/v1/completions", {"prompt": [5, 6], "max_tokens": 2})["usage"]["completion_tokens"] > 0
    assert s.process.wait(30) == 0
    assert time.monotonic() - begun > 1
