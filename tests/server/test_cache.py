"""The cache explains itself: what it would do for a request, what it holds, why a request missed."""

import json
import re
import time

import pytest
from radish_server import TINY, Server

CHAT, TEXT, EXPLAIN = "/v1/chat/completions", "/v1/completions", "/v1/cache/explain"
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def small():
    s = Server("--threads", "1", "--kv-tokens", "1024")
    yield s
    assert s.stop() == 0


def talk(*texts, system="You are a clerk."):
    roles = ["user", "assistant"] * len(texts)
    return [{"role": "system", "content": system}] + [{"role": r, "content": t} for r, t in zip(roles, texts)]


def test_explain_finds_the_first_difference(small):
    small.request("DELETE", "/v1/cache")
    base = {"messages": talk("How many boxes?", "Seven.", "And crates?"), "max_tokens": 1}
    x = small.ok(EXPLAIN, base)
    assert (x["stored_tokens"], x["cause"], x["lost_tokens"]) == (0, "new", x["prompt_tokens"])
    small.ok(CHAT, base)
    x = small.ok(EXPLAIN, base)
    assert (
        x["stored_tokens"] == x["computed_tokens"] == x["prompt_tokens"]
        and x["cause"] == "none"
        and x["difference"] is None
    )
    other = small.ok(EXPLAIN, base | {"messages": talk("How many boxes?", "Eight.", "And crates?")})
    d = other["difference"]
    assert other["cause"] == "different" and (d["message"], d["part"]) == (2, "message")
    assert d["sent"].startswith("E") and d["stored"].startswith("S")
    system = small.ok(EXPLAIN, base | {"messages": talk("How many boxes?", system="You are a cook.")})["difference"]
    assert (system["message"], system["part"]) == (0, "system")
    tools = small.ok(EXPLAIN, base | {"tools": [TOOL]})["difference"]
    assert tools["part"] == "tools"
    longer = small.ok(EXPLAIN, base | {"messages": talk("How many boxes?", "Seven.", "And crates?", "Two.", "Sure?")})
    assert longer["difference"]["message"] == 4


def test_explain_of_completions_and_salts(small):
    ask = {"prompt": "The explained completion goes on", "max_tokens": 1}
    small.ok(TEXT, ask)
    assert small.ok(EXPLAIN, ask)["cause"] == "none"
    salted = small.ok(EXPLAIN, ask | {"cache_salt": "other"})
    assert (salted["cause"], salted["stored_tokens"]) == ("new", 0)
    assert small.post(EXPLAIN, {"max_tokens": 1})[0] == 400
    assert small.post(EXPLAIN, {"messages": "no"})[0] == 400


def test_causes_of_misses(small):
    ask = {"prompt": "An entry that is going to be evicted by others, all of it and at once", "max_tokens": 1}
    small.ok(TEXT, ask)
    assert small.ok(TEXT, ask)["timings"]["cache_miss"] == "none"
    for i in range(4):
        small.ok(TEXT, {"prompt": [1000 + i] + list(range(2000, 2600)), "max_tokens": 1})
    assert small.ok(EXPLAIN, ask)["cause"] == "evicted"
    assert small.ok(TEXT, ask)["timings"]["cache_miss"] == "evicted"
    status, _, body = small.request("DELETE", "/v1/cache")
    assert status == 200 and b"cache.cleared" in body
    assert small.ok(TEXT, ask)["timings"]["cache_miss"] == "cleared"
    misses = small.stats()["misses"]
    assert misses["evicted"] >= 1 and misses["cleared"] >= 1 and misses["new"] >= 1


def test_the_list_of_what_is_stored(small):
    small.request("DELETE", "/v1/cache")
    small.ok(TEXT, {"prompt": "Listed: one two three four five", "max_tokens": 2})
    nodes = small.get("/v1/cache")[1]
    assert nodes["more"] is False and nodes["nodes"][0]["text"].startswith("Listed") and nodes["nodes"][0]["depth"] == 1
    assert sum(n["tokens"] for n in nodes["nodes"]) == small.stats()["tree"]["keys"]
    assert len(small.get("/v1/cache?limit=1")[1]["nodes"]) == 1


def test_what_is_told_of_an_entry(small):
    small.request("DELETE", "/v1/cache")
    begin = int(time.time())
    prompt = [1000 + i for i in range(100)]
    small.ok(TEXT, {"prompt": prompt, "max_tokens": 1})
    small.ok(TEXT, {"prompt": [*prompt[:60], *range(3000, 3040)], "max_tokens": 1})
    small.ok(TEXT, {"prompt": [*prompt[:60], *range(4000, 4010)], "max_tokens": 1})
    nodes = small.get("/v1/cache")[1]["nodes"]
    assert [(n["start"], n["hits"]) for n in nodes if n["start"] < 60] == [(0, 2)]
    assert sorted(n["tokens"] for n in nodes if n["start"] == 60) == [10, 40, 40]
    assert {n["hits"] for n in nodes if n["start"] == 60} == {0}
    stats = small.stats()
    page = stats["kv"]["bytes_per_token"] * stats["pages"]["tokens_per_page"]
    assert sum(n["bytes"] for n in nodes) == page * (stats["pages"]["total"] - stats["pages"]["free"])
    for n in nodes:
        assert begin - 1 <= n["created"] <= n["last_use"] <= time.time() + 1 and n["images"] == 0
        assert n["kept"] in ("plain", "shared")
    assert sum(d["nodes"] for d in stats["depths"].values()) == len(nodes)
    assert stats["depths"]["256"]["tokens"] == stats["tree"]["keys"]


def test_what_had_to_go_is_counted(small):
    before = small.stats()
    for i in range(4):
        small.ok(TEXT, {"prompt": [1000 + i, *range(2000, 2600)], "max_tokens": 1})
    small.wait_until(lambda: small.stats()["budgets"]["kv"]["above"])
    s = small.stats()
    gone = s["pages"]["evicted"] - before["pages"]["evicted"]
    page = s["kv"]["bytes_per_token"] * s["pages"]["tokens_per_page"]
    assert gone > 0 and s["tree"]["bytes_evicted"] - before["tree"]["bytes_evicted"] == gone * page
    assert s["tree"]["tokens_evicted"] > before["tree"]["tokens_evicted"]
    text = small.request("GET", "/metrics")[2].decode()
    ages = int(re.search(r"radish_evicted_age_seconds_count (\d+)", text)[1])
    assert ages == s["pages"]["evicted"] and 'radish_budget_warning{budget="kv"} 1' in text
    assert "kv" in small.get("/v1/monitor")[1]["totals"]["above"]
    used = s["budgets"]["kv"]
    assert used["limit"] == s["pages"]["total"] and used["used"] > 0.8 * used["limit"]
    cleared = s["pages"]["cleared"]
    n = json.loads(small.request("DELETE", "/v1/cache")[2])["pages"]
    assert n > 0 and small.stats()["pages"]["cleared"] == cleared + n
    small.wait_until(lambda: not small.stats()["budgets"]["kv"]["above"])


def test_the_log_tells_once_that_a_budget_is_nearly_used_up(make_server, tmp_path):
    with (tmp_path / "log").open("wb") as log:
        s = make_server("--threads", "1", "--kv-tokens", "1024", model=TINY, log=log)
    for i in range(20):
        s.ok(TEXT, {"prompt": [5 + i, *(6 + k % 80 for k in range(200))], "max_tokens": 1})
    s.wait_until(lambda: s.stats()["budgets"]["kv"]["above"])
    told = [line for line in (tmp_path / "log").read_text().splitlines() if "KV pages that hold anything" in line]
    assert len(told) == 1 and "--kv-bytes" in told[0]


def test_a_tenant_sees_its_own_entries(tenants):
    s, alice, bob, own = tenants
    for who, token in ((alice, 5), (bob, 6)):
        status, _ = s.post(TEXT, {"prompt": [token] * 40, "max_tokens": 2, "ignore_eos": True}, who)
        assert status == 200

    def listed(who):
        status, answer = s.get("/v1/cache", who)
        assert status == 200
        return answer["nodes"]

    assert len(listed(own)) == len(listed(alice)) + len(listed(bob))
    assert sum(n["tokens"] for n in listed(alice)) == 41
    assert [n["text"] for n in listed(alice)] != [n["text"] for n in listed(bob)]
    s.post(TEXT, {"prompt": [5] * 40, "max_tokens": 2, "ignore_eos": True}, bob)
    assert {n["hits"] for n in listed(alice)} == {0}  # nothing tells what another one asks
    assert s.request("GET", "/v1/cache")[0] == 401
    assert s.request("DELETE", "/v1/cache", headers=alice)[0] == 403


def test_another_salt_is_told_to_its_own_key_alone(make_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice-key\nbob-key\n")
    s = make_server("--api-key-file", str(keys), "--threads", "1", "--kv-tokens", "4096")
    ask = {
        "prompt": "A long prompt that is stored under one salt, and asked for under another one, as may happen by mistake.",
        "max_tokens": 1,
    }

    def explain(who, **more):
        return json.loads(s.request("POST", EXPLAIN, ask | more, {"Authorization": f"Bearer {who}-key"})[2])["cause"]

    assert s.request("POST", TEXT, ask | {"cache_salt": "one"}, {"Authorization": "Bearer alice-key"})[0] == 200
    assert explain("alice", cache_salt="one") == "none"
    assert explain("alice", cache_salt="two") == explain("alice") == "salt"
    assert explain("bob", cache_salt="one") == explain("bob") == "new"
