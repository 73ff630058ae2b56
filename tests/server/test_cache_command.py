"""`radish cache` against a running server and against a folder on disk."""

import json
import os
import subprocess
import time

import pytest
from radish_server import BUILD, Server

TEXT = "/v1/completions"
BOXES = (
    "The boxes are counted by a clerk who never sleeps, and who never guesses a number, so that all of them are known. "
    * 3
)


def cache(*words, code=0, stdin=None, **env):
    done = subprocess.run(
        [BUILD / "radish", "cache", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        input=stdin,
        env=os.environ | env,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    assert (code == 0) == (done.stderr == "") or code == 1
    return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture(scope="module")
def small():
    s = Server("--threads", "1", "--kv-tokens", "2048", "--api-key", "secret")
    yield s
    s.process.terminate()
    assert s.process.wait(60) == 0


@pytest.fixture
def at(small):
    return "--url", f"http://127.0.0.1:{small.port}", "--api-key", "secret"


def ask(server, prompt, **more):
    status, _, body = server.request(
        "POST", TEXT, {"prompt": prompt, "max_tokens": 1} | more, {"Authorization": "Bearer secret"}
    )
    assert status == 200, body
    return json.loads(body)


def test_list_stats_and_explain(small, at, tmp_path):
    cache("clear", *at)
    assert "Nothing is stored" in cache("list", *at)
    ask(small, BOXES)
    out = cache("list", *at)
    assert '"The boxes are counted' in out and "used 0 s ago" in out
    assert json.loads(cache("list", "--json", "--limit", "1", *at))["nodes"][0]["depth"] == 1
    out = cache("stats", *at)
    assert "computed" in out and "misses" in out and "disk" in out
    assert json.loads(cache("stats", "--json", *at))["tree"]["keys"] > 10
    body = tmp_path / "request.json"
    body.write_text(json.dumps({"prompt": BOXES + "Really?"}))
    out = cache("explain", body, *at)
    assert "prompt tokens are stored; cause: different" in out and "Really?" in out
    assert "cause: new" in cache("explain", "-", *at, stdin='{"prompt": "Unknown"}')
    assert json.loads(cache("explain", "-", "--json", *at, stdin='{"prompt": "Unknown"}'))["cause"] == "new"


def test_clear_of_a_subtree(small, at, tmp_path):
    cache("clear", *at)
    ask(small, BOXES + "One of them is red, as everybody knows by now.")
    ask(small, BOXES + "Another one is blue, which nobody has ever seen.")
    body = tmp_path / "request.json"
    body.write_text(json.dumps({"prompt": BOXES + "One of them is red"}))
    before = json.loads(cache("stats", "--json", *at))["tree"]["keys"]
    assert "pages are free again" in cache("clear", "--subtree", body, *at)
    after = json.loads(cache("stats", "--json", *at))["tree"]["keys"]
    assert before - 30 < after < before
    assert ask(small, BOXES + "Another one is blue, which nobody has ever seen.")["timings"]["prompt_n"] <= 1
    again = ask(small, BOXES + "One of them is red, as everybody knows by now.")["timings"]
    assert again["prompt_n"] > 5 and again["cache_miss"] in ("cleared", "different")
    assert "0 pages" in cache("clear", "--subtree", "-", *at, stdin='{"prompt": "Never stored"}')


def test_errors_say_what_is_wrong(small, at):
    url = at[:2]
    assert "HTTP 401" in cache("stats", *url, code=1)
    assert "HTTP 401" not in cache("stats", *url, RADISH_API_KEY="secret")
    assert "HTTP 400" in cache("explain", "-", *at, stdin='{"prompt": 5}', code=1)
    assert "nothing listens on" in cache("stats", "--url", "http://127.0.0.1:9", code=1)
    assert "wanted http://" in cache("stats", "--url", "ftp://x", code=1)
    assert "did you mean list?" in cache("lst", code=2)
    for words in (
        ("explain",),
        ("list", "x.json"),
        ("clear", "--cache-dir", "x"),
        ("list", "--all"),
        ("verify", "--url", "http://x"),
        ("list", "--url", "http://x", "--cache-dir", "y"),
        ("list", "--subtree", "x"),
    ):
        assert "radish cache" in cache(*words, code=2)
    assert "no disk cache in it" in cache("list", "--cache-dir", "/nonexistent", code=1)


def test_a_stopped_servers_folder(tmp_path):
    folder = tmp_path / "kv"
    s = Server("--threads", "1", "--cache-dir", folder, "--model-id", "little")
    s.ok(TEXT, {"prompt": BOXES * 3, "max_tokens": 1})
    for _ in range(400):
        if s.stats()["disk"]["pages"] >= 8:
            break
        time.sleep(0.05)
    assert "in use by a running process" in cache("list", "--cache-dir", folder)
    assert "a running process writes there" in cache("clear", "--all", "--cache-dir", folder, code=1)
    assert s.stop() == 0
    out = cache("list", "--cache-dir", folder)
    assert "little" in out and "f16" in out and "in use" not in out
    listed = json.loads(cache("list", "--json", "--cache-dir", folder))
    assert (
        [e["model"] for e in listed["entries"]].count("little") >= 1 and listed["pages"] >= 8 and listed["damaged"] == 0
    )
    assert "0 damaged" in cache("verify", "--cache-dir", folder)
    assert "0 damaged" in cache("verify", RADISH_CACHE=str(folder))
    assert json.loads(cache("stats", "--json", "--cache-dir", folder))["bytes"] == listed["bytes"]
    segment = max(folder.glob("*.pages"), key=lambda p: p.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[-100] ^= 1
    segment.write_bytes(data)
    assert " 1 damaged and dropped" in cache("verify", "--cache-dir", folder, code=1)
    assert "0 damaged" in cache("verify", "--cache-dir", folder)
    assert "nothing of a model or with an id" in cache("clear", "--model", "other", "--cache-dir", folder, code=1)
    assert "are gone" in cache("clear", "--model", "little", "--cache-dir", folder)
    assert "are gone" in cache("clear", "--all", "--cache-dir", folder)
    left = json.loads(cache("list", "--json", "--cache-dir", folder))
    assert (left["pages"], left["entries"]) == (0, [])
