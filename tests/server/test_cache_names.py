"""Named caches: what requests with a cache_name computed is listed, saved and dropped as one thing (docs/cache.md)."""

import json
import subprocess
import threading

import pytest
from radish_server import BUILD, TINY, Server, words

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
SYSTEM = "You are a clerk who counts boxes. Be short, be right, and never guess a number that nobody told you. " * 3


@pytest.fixture(scope="module")
def server():
    s = Server("--threads", "1", "--kv-tokens", "4096")
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


@pytest.fixture
def empty(server):
    assert server.request("DELETE", "/v1/cache")[0] == 200
    assert names(server) == {}
    return server


def names(server, **body):
    status, _, raw = server.request("POST", "/v1/cache/names", body)
    assert status == 200, raw
    return {n["cache_name"]: n for n in json.loads(raw)["data"]}


def chat(text, **more):
    return {
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
        "max_tokens": 2,
        "temperature": 0,
    } | more


def cached(server, body):
    return server.ok(CHAT, body)["timings"]["cache_n"]


def drop(server, name, status=200, **more):
    got, _, raw = server.request("POST", "/v1/cache/names/drop", {"cache_name": name} | more)
    assert got == status, raw
    return json.loads(raw)


def test_a_drop_takes_what_nobody_else_uses(empty):
    a, b, c = (f"Count the {x} boxes in the hall, please, and tell me how many." for x in ("red", "blue", "green"))
    cached(empty, chat(a, cache_name="a"))
    cached(empty, chat(b, cache_name="b"))
    n_c = empty.ok(CHAT, chat(c))["usage"]["prompt_tokens"]
    have = names(empty)
    assert list(have) == ["b", "a"]
    assert 0 < have["a"]["own_tokens"] < have["a"]["tokens"] and not have["a"]["saved"]
    assert have["a"]["own_bytes"] > 0 and have["a"]["age_s"] < 60
    gone = drop(empty, "a")
    assert gone["own_tokens"] == have["a"]["own_tokens"] and gone["pages"] >= 0
    assert list(names(empty)) == ["b"]
    explained = empty.ok("/v1/cache/explain", chat(a))
    assert explained["stored_tokens"] < explained["prompt_tokens"] - 5 and explained["cause"] == "cleared"
    assert explained["stored_tokens"] > 50  # the system prompt is everybody's
    assert cached(empty, chat(c)) == n_c
    drop(empty, "b")
    assert cached(empty, chat(c)) == n_c
    assert drop(empty, "b", 404)["error"]["param"] == "cache_name"


def test_every_api_that_generates_takes_the_name(empty):
    one = {"max_tokens": 1, "cache_name": "agent"}
    empty.ok(TEXT, {"prompt": "Once upon a time there was a box"} | one)
    empty.ok(CHAT, {"messages": [{"role": "user", "content": "Hi"}]} | one)
    empty.ok(MESSAGES, {"messages": [{"role": "user", "content": "Hello there"}]} | one)
    empty.ok(RESPONSES, {"input": "Good morning", "max_output_tokens": 1, "cache_name": "agent"})
    assert names(empty)["agent"]["texts"] == 4


def test_a_salt_has_names_of_its_own(empty):
    for salt in "one", "two":
        empty.ok(TEXT, {"prompt": "The same text for both", "max_tokens": 1, "cache_name": "x", "cache_salt": salt})
    assert names(empty) == {} and list(names(empty, cache_salt="one")) == ["x"]
    drop(empty, "x", 404)
    drop(empty, "x", cache_salt="one")
    assert names(empty, cache_salt="one") == {} and list(names(empty, cache_salt="two")) == ["x"]


def test_a_name_that_is_dropped_while_it_runs(empty):
    body = {"prompt": "Count to a thousand: one, two,", "max_tokens": 200, "ignore_eos": True, "cache_name": "busy"}
    got = []
    t = threading.Thread(target=lambda: got.append(empty.ok(TEXT, body)))
    t.start()
    while names(empty).get("busy", {}).get("running") != 1:
        pass
    assert drop(empty, "busy")["running"] == 1
    t.join()
    assert got[0]["usage"]["completion_tokens"] == 200
    for _ in range(200):
        left = empty.ok("/v1/cache/explain", {"prompt": body["prompt"]})["stored_tokens"]
        if left == 0:
            break
    assert left == 0 and names(empty) == {}


def test_saving_wants_a_disk_cache(empty):
    empty.ok(TEXT, {"prompt": "A text", "max_tokens": 1, "cache_name": "x"})
    status, _, raw = empty.request("POST", "/v1/cache/names/save", {"cache_name": "x"})
    assert status == 400 and "disk cache" in json.loads(raw)["error"]["message"]


def test_a_disk_that_is_full_is_told(tmp_path):
    """What was not written is not said to be saved; and a name's age is not the machine's."""
    limit = ("prlimit", "--fsize=600000")
    flags = ("--threads", "1", "--kv-tokens", "2048", "--cache-dir", str(tmp_path), "--cache-disk", "1G")
    s = Server(*flags, before=limit)
    try:
        s.ok(TEXT, {"prompt": words(12), "max_tokens": 1, "cache_name": "small"})
        assert s.ok("/v1/cache/names/save", {"cache_name": "small"})["saved"]
        s.ok(TEXT, {"prompt": words(200, 1), "max_tokens": 1, "cache_name": "large"})
        status, _, raw = s.request("POST", "/v1/cache/names/save", {"cache_name": "large"})
        assert status == 503 and "cannot be written" in json.loads(raw)["error"]["message"], raw
        assert s.ok("/v1/cache/names/save", {"cache_name": "small"})["saved"]  # nothing of it is missing
    finally:
        assert s.stop() == 0
    s = Server(*flags)
    try:
        assert names(s)["small"]["age_s"] < 60
    finally:
        assert s.stop() == 0


def test_names_that_cannot_be(empty):
    for bad in "", "x" * 129, "a\nb", "a\u0000b", "\u007f", 5, ["a"]:
        status, _, raw = empty.request("POST", TEXT, {"prompt": "A", "max_tokens": 1, "cache_name": bad})
        assert status == 400 and json.loads(raw)["error"]["param"] == "cache_name", (bad, raw)
    empty.ok(TEXT, {"prompt": "A", "max_tokens": 1, "cache_name": "\u00e9" * 64})
    assert list(names(empty)) == ["\u00e9" * 64]


def test_a_saved_name_outlives_a_kill(tmp_path):
    flags = ("--threads", "1", "--kv-tokens", "2048", "--cache-dir", str(tmp_path))
    env = {"RADISH_CACHE": str(tmp_path)}
    s = Server(*flags, env=env)
    a, b = (
        chat(f"Count the {x} boxes in the hall, please, all of them, and tell me how many.") for x in ("red", "blue")
    )
    s.ok(CHAT, a | {"cache_name": "a"})
    n = s.ok(CHAT, b)["usage"]["prompt_tokens"]
    saved = s.ok("/v1/cache/names/save", {"cache_name": "a"})
    assert saved["saved"] and saved["disk_tokens"] >= n // 16 * 16 - 16
    s.process.kill()
    s.process.wait(60)
    s = Server(*flags, env=env)
    assert names(s)["a"]["saved"] and names(s)["a"]["tokens"] == 0
    assert names(s)["a"]["disk_tokens"] == saved["disk_tokens"]
    answer = s.ok(CHAT, a | {"cache_name": "a"})
    assert answer["timings"]["cache_n"] >= saved["disk_tokens"] - 16
    drop(s, "a")
    assert s.stop() == 0
    s = Server(*flags, env=env)
    assert names(s) == {}
    explained = s.ok("/v1/cache/explain", a)
    other = s.ok("/v1/cache/explain", b)
    assert explained["stored_tokens"] + explained["disk_tokens"] < other["stored_tokens"] + other["disk_tokens"]
    assert s.stop() == 0


def test_tenants_see_their_own_alone(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice\nbob\n")
    s = Server("--threads", "1", "--api-key", "root", "--api-key-file", str(keys), model=TINY)

    def ask(who, method, path, body=None):
        status, _, raw = s.request(method, path, body, {"Authorization": f"Bearer {who}"})
        return status, json.loads(raw)

    for who in "alice", "bob":
        assert ask(who, "POST", TEXT, {"prompt": "abc", "max_tokens": 1, "cache_name": "mine"})[0] == 200
    assert ask("alice", "POST", "/v1/cache/names/drop", {"cache_name": "mine"})[0] == 200
    assert ask("alice", "GET", "/v1/cache/names")[1]["data"] == []
    assert [n["cache_name"] for n in ask("bob", "GET", "/v1/cache/names")[1]["data"]] == ["mine"]
    assert ask("root", "GET", "/v1/cache/names")[1]["data"] == []
    assert s.stop() == 0


def test_the_command(empty):
    def cache(*words, code=0):
        done = subprocess.run(
            [BUILD / "radish", "cache", *words, "--url", f"http://127.0.0.1:{empty.port}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    assert "no named caches" in cache("names")
    empty.ok(TEXT, {"prompt": "Once upon a time there was a box", "max_tokens": 1, "cache_name": "agent-7"})
    assert '"agent-7"  ' in cache("names") and "of them its own" in cache("names")
    assert "disk cache" in cache("save", "agent-7", code=1)
    assert "tokens of its own are gone" in cache("drop", "agent-7")
    assert "there is no such named cache" in cache("drop", "agent-7", code=1)
    cache("drop", code=2)
    cache("list", "--salt", "x", code=2)
