"""The tree seen from outside: equal prompts at once are computed once, shared parts are joined, leaving hurts nobody."""

import threading

from radish_server import token_ids

TEXT = "/v1/completions"


def together(server, bodies):
    """Sends all at the same moment; [(status, answer)] in order."""
    out = [None] * len(bodies)
    gate = threading.Barrier(len(bodies))

    def one(i):
        gate.wait()
        out[i] = server.post(TEXT, bodies[i])

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(bodies))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


def computed(server):
    return server.stats()["tokens"]["prompt_computed"]


def test_eight_equal_cold_prompts_are_computed_once(server):
    before = server.stats()["tokens"]
    answers = together(server, [{"prompt": token_ids(2000, seed=1), "max_tokens": 4, "temperature": 0}] * 8)
    assert all(status == 200 for status, _ in answers)
    assert len({a["choices"][0]["text"] for _, a in answers}) == 1
    after = server.stats()["tokens"]
    assert after["prompt_computed"] - before["prompt_computed"] <= 2000 + 8 * 32
    assert after["prompt_joined"] > before["prompt_joined"]
    for _, a in answers:
        assert a["timings"]["cache_n"] + a["timings"]["prompt_n"] == 2000
    server.wait_idle()


def test_a_prompt_that_shares_half_joins_in_mid_computation(server):
    first = token_ids(2000, seed=2)
    other = first[:1000] + token_ids(1000, seed=3)
    before = computed(server)
    s = server.open_request(TEXT, {"prompt": first, "max_tokens": 1})
    server.wait_until(lambda: server.stats()["requests"]["prefill"] == 1)
    r = server.ok(TEXT, {"prompt": other, "max_tokens": 1})
    assert r["usage"]["prompt_tokens_details"]["cached_tokens"] >= 1000 - 32
    assert b"HTTP/1.1 200" in s.recv(65536)
    s.close()
    assert computed(server) - before <= 3000 + 64
    server.wait_idle()


def test_killing_the_first_in_mid_prefill_costs_the_others_nothing(server):
    prompt = token_ids(2000, seed=4)
    ask = {"prompt": prompt, "max_tokens": 2, "temperature": 0}
    before = computed(server)
    first = server.open_request(TEXT, ask)
    server.wait_until(lambda: server.stats()["requests"]["prefill"] == 1)
    others = [server.open_request(TEXT, ask) for _ in range(3)]
    server.wait_until(lambda: server.active() == 4)
    first.close()
    texts = []
    for s in others:
        s.settimeout(120)
        texts.append(s.recv(65536))
        s.close()
    assert all(b"HTTP/1.1 200" in t for t in texts)
    assert computed(server) - before <= 2000 + 4 * 32 + 256  # at most the chunk that was running is done again
    server.wait_idle()


def test_streams_equal_their_plain_text(server):
    asks = [{"prompt": f"Story {i}: the", "max_tokens": 16, "temperature": 0.8, "seed": i} for i in range(32)]
    streamed = [None] * len(asks)

    def one(i):
        streamed[i] = "".join(c["choices"][0]["text"] for c in server.stream(TEXT, asks[i]))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asks))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    plain = [a["choices"][0]["text"] for _, a in together(server, asks)]
    assert streamed == plain


def test_saturation_ends_every_request(make_server):
    """64 prompts of 400 tokens at once on a cache of 2,048: each ends with an answer or a 429, and memory does not grow."""
    s = make_server("--kv-tokens", "2048", "--threads", "2", "--max-queue", "8")
    bodies = [{"prompt": token_ids(400, seed=100 + i), "max_tokens": 4, "temperature": 0} for i in range(64)]
    memory = []
    for wave in (bodies, bodies[32:]):
        answers = together(s, wave)
        for status, a in answers:
            assert status in (200, 429), a
            assert status == 200 or a["error"]["code"] == "queue_full"
        assert sum(status == 200 for status, _ in answers) >= 8
        s.wait_idle()
        memory.append(s.stats()["memory"]["rss_anon_bytes"])
    assert memory[1] - memory[0] < 16 << 20, memory
    assert s.stats()["engine"]["accounting_errors"] == 0


def test_429_has_retry_after(make_server):
    s = make_server("--kv-tokens", "4096", "--threads", "1", "--max-queue", "1", "--max-running", "1")
    held = []
    for i in range(2):  # one after the other: a place is free once the first one runs
        held.append(s.open_request(TEXT, {"prompt": token_ids(8, seed=i), "max_tokens": 2000, "ignore_eos": True}))
        s.wait_until(lambda: s.stats()["requests"]["decode"] == 1 and s.active() == i + 1)
    status, headers, body = s.request("POST", TEXT, {"prompt": "hi", "max_tokens": 1})
    assert status == 429 and headers["retry-after"] == "1" and b"rate_limit_error" in body
    for h in held:
        h.close()
    s.wait_idle()
    assert s.post(TEXT, {"prompt": "hi", "max_tokens": 1})[0] == 200
