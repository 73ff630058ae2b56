"""The cache explains itself: what it would do for a request, what it holds, why a request missed."""

import json

import pytest
from radish_server import Server

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
