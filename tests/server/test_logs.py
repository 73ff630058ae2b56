"""What a server writes: a line for each request, prompts only when asked, the last words of a crash."""

import json
import os
import re
import signal
import subprocess
import subprocess

import pytest
from radish_server import BUILD, ROOT, TINY

TEXT = "/v1/completions"
# A sanitizer would take these signals for its own finding, after the report, and exit by itself.
LEFT_ALONE = {
    name: os.environ.get(name, "") + ":handle_segv=0:handle_sigbus=0:handle_abort=0"
    for name in ("ASAN_OPTIONS", "TSAN_OPTIONS")
}


@pytest.fixture
def logged(make_server, tmp_path):
    """A server, and its log's lines so far."""

    def make(*flags, **options):
        with open(tmp_path / "log", "wb") as log:
            s = make_server("--threads", "1", "--kv-tokens", "8192", *flags, model=TINY, log=log, **options)
        return s, lambda: (tmp_path / "log").read_text().splitlines()

    return make


def lines_of(lines, request_id):
    return [line for line in lines() if request_id in line]


def test_each_request_has_one_line_with_its_id(logged):
    s, lines = logged()
    body = json.dumps({"prompt": "abc", "max_tokens": 3, "ignore_eos": True}).encode()
    asked = {
        "whole": ("POST", TEXT, body, 200),
        "stream": ("POST", TEXT, body.replace(b"{", b'{"stream": true, ', 1), 200),
        "tokens": ("POST", "/tokenize", b'{"content": "abc"}', 200),
        "list": ("GET", "/v1/models", None, 200),
        "nothing": ("GET", "/nothing", None, 404),
        "malformed": ("POST", TEXT, b"{", 400),
        "too-long": ("POST", TEXT, json.dumps({"prompt": "a b " * 500}).encode(), 400),
        "cancel-none": ("DELETE", "/v1/monitor/requests/99", None, 404),
    }
    for name, (method, path, data, status) in asked.items():
        got, headers, _ = s.request(method, path, data, {"X-Request-Id": f"mine-{name}"})
        assert (got, headers["x-request-id"]) == (status, f"mine-{name}")
    gone = s.open_request(TEXT, {"prompt": "abc", "max_tokens": 200, "ignore_eos": True, "n": 8})
    gone.close()
    s.wait_until(lambda: any(" 499 " in line for line in lines()))
    for name, (_, path, _, status) in asked.items():
        found = lines_of(lines, f"mine-{name}")
        assert len(found) == 1, (name, found)
        assert f"{path} {status} " in found[0] and "client 127.0.0.1:" in found[0] and " ms" in found[0]
    assert "generated 3 (cut)" in lines_of(lines, "mine-whole")[0]
    assert ": no such endpoint" in lines_of(lines, "mine-nothing")[0]
    assert re.search(r" ms: .*context", lines_of(lines, "mine-too-long")[0])
    assert not any("/health" in line for line in lines())  # probes come every second


@pytest.mark.parametrize(
    "sent", ["a b", "x" * 129, 'quo"te', "tab\there", "<script>", "é", ""], ids=lambda s: ascii(s)[:20]
)
def test_an_id_that_is_none_is_replaced(logged, sent):
    s, _ = logged()
    raw = s.raw(
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: "
        + sent.encode()
        + b"\r\n\r\n"
    )
    told = re.search(rb"^X-Request-Id: (.*)\r$", raw, re.M)[1].decode()
    assert re.fullmatch(r"req_[0-9a-f]{24}", told), told


def test_prompts_are_logged_only_when_asked_for(logged):
    secret = "the quick brown secret"
    for flags, wanted in ((), False), (("--log-prompts",), True), (("--log-prompts", "--log-format", "json"), True):
        s, lines = logged(*flags)
        s.request("POST", TEXT, {"prompt": secret + "\nline two\x1b[31m", "max_tokens": 1}, {"X-Request-Id": "p-1"})
        s.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": secret}]})
        found = [line for line in lines() if secret in line]
        assert len(found) == (2 if wanted else 0), found
        if wanted:
            assert "p-1 asks /v1/completions: " in found[0] and "\x1b" not in found[0]
        if "json" in flags:
            assert all(secret in json.loads(line)["message"] and secret in json.loads(line)["body"] for line in found)
        assert s.stop() == 0


def test_a_long_prompt_is_cut_in_the_log(logged):
    s, lines = logged("--log-prompts")
    s.request("POST", "/tokenize", {"content": "z" * 100000})
    found = [line for line in lines() if "asks /tokenize" in line]
    assert len(found) == 1 and 1900 < len(found[0]) < 2200 and "zzz ..." in found[0]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS], ids=lambda n: n.name)
def test_a_crash_says_where_each_thread_was_and_what_was_counted(logged, number):
    s, lines = logged("--max-running", "2", env=LEFT_ALONE)
    mark = "a prompt that no report may show"
    held = [
        s.open_request(TEXT, {"prompt": mark, "max_tokens": 200, "ignore_eos": True, "n": 16, "stream": True})
        for _ in range(4)
    ]
    s.wait_until(lambda: s.stats()["requests"]["submitted"] >= 16)
    s.process.send_signal(number)
    assert s.process.wait(30) == -number  # as without a report: supervisors, and cores
    said = "\n".join(lines())
    assert f"radish: crashed by signal {int(number)} ({number.name}) of process " in said
    assert re.search(r"radish: version \d\S*, \d+\.\d s after the start", said)
    state = re.search(r"radish: requests being answered (\d+), .*in decode (\d+), .*pages (\d+), free (\d+)", said)
    assert state, said
    numbers = dict(re.findall(r"(pages|free|ready|locked|pending|quarantined) (\d+)", state.string[state.start() :]))
    assert int(numbers.pop("pages")) == sum(map(int, numbers.values()))
    threads = re.findall(r"^radish: thread (\S+)$", said, re.M)
    assert {"radish", "engine", "radish-door", "prep"} <= set(threads), threads
    assert len(re.findall(r"\(\+0x[0-9a-f]+\)", said)) > 10  # frames
    assert mark not in said
    for h in held:
        h.close()


def test_a_watchdogs_abort_shows_the_thread_that_is_stuck(logged):
    s, lines = logged()
    s.process.send_signal(signal.SIGABRT)
    assert s.process.wait(30) == -signal.SIGABRT
    assert sum(line == "radish: thread engine" for line in lines()) == 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_slow_load_says_how_far_it_is(make_server, tmp_path, form):
    """A line every two seconds, from a load in which each tensor takes long."""
    library, log = tmp_path / "stall_thread.so", tmp_path / "log"
    source = ROOT / "tests/server/stall_thread.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, source, "-ldl"], check=True)
    slow = {"LD_PRELOAD": str(library), "STALL_THREAD": "radish-load", "STALL_MS": "80"}
    with open(log, "wb") as f:
        s = make_server("--threads", "1", "--kv-tokens", "8192", "--log-format", form, model=TINY, log=f, env=slow)
    s.wait_until(lambda: "ready: " in log.read_text())
    found = re.findall(r"loading tiny-llama.gguf: (\d+) %", log.read_text())
    assert found and found == sorted(found, key=int) and len(set(found)) == len(found), log.read_text()
    assert all(0 <= int(n) < 100 for n in found)
    assert log.read_text().rindex("loading tiny-llama.gguf: ") < log.read_text().index("ready: ")
    if form == "json":
        told = [line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "loading"]
        assert [line["model"] for line in told] == ["tiny-llama.gguf"] * len(found)
        assert [f"{line['percent']:.0f}" for line in told] == found
    assert s.stop() == 0


# ---- as JSON ----

ALWAYS = ["time", "level", "event", "message"]
REQUEST = ["request_id", "method", "route", "status", "ms", "client", "error"]
TOKENS = ["prompt_tokens", "cached_tokens", "generated_tokens", "queue_ms", "ttft_ms", "cut", "ignored"]
EVENTS = {  # event: the fields behind ALWAYS, in this order, which docs/operate.md names
    "loading": ["model", "percent"],
    "model_opened": ["model", "arch", "backend", "ms", "kv_tokens", "context"],
    "ready": ["model", "seconds", "version"],
    "request": [*REQUEST],
    "prompt": ["request_id", "route", "body", "body_bytes"],
    "statistics": [
        *["connections", "answering", "prefill", "decode", "waiting", "submitted", "cancelled", "failed"],
        *["computed_tokens", "cached_tokens", "generated_tokens", "pages_free", "pages", "rss_bytes"],
    ],
    "keys": ["keys"],
    "model_loaded": ["model", "seconds"],
    "model_unloaded": ["model", "reason"],
    "model_failed": ["model", "error"],
    "download": ["download", "state", "model", "error"],
    "memory": ["budget", "used", "limit"],
    "stalled": ["seconds"],
    "recovered": [],
    "dropped": ["lines"],
    "stop": ["drain_seconds"],
    "leaving": ["seconds"],
    "failed": [],
    "hint": [],
    "note": [],
}


def parsed(lines):
    """Every line is an object, of an event that is known, with its fields."""
    found = [json.loads(line) for line in lines]
    for line in found:
        assert list(line)[:4] == ALWAYS and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line["time"])
        if line["event"] == "request" and "id" in line:
            fields = ["request_id", "id", *REQUEST[1:], *TOKENS]
        elif line["event"] == "crash":
            assert set(line) - set(ALWAYS) <= {"signal", "thread"}
            continue
        elif line["event"] == "download" and line["state"] == "started":
            fields = ["download", "state", "model", "request_id"]
        else:
            fields = EVENTS[line["event"]]
        assert list(line)[4:] == (fields if len(line) > 4 or line["event"] != "stop" else [])
    return found


def of(found, event, **fields):
    return [x for x in found if x["event"] == event and all(x.get(k) == v for k, v in fields.items())]


def test_as_json_each_line_has_its_fields_apart(logged, tmp_path):
    (tmp_path / "keys").write_text("k\n")
    s, lines = logged("--log-format", "json", "--log-prompts", "--api-key-file", str(tmp_path / "keys"))
    key = {"Authorization": "Bearer k"}
    body = {"prompt": 'say "a\\b\n\x1b[31m\u202e', "max_tokens": 3, "ignore_eos": True, "unheard": 1}
    for name in ("one", "two"):
        assert s.request("POST", TEXT, body, {"X-Request-Id": name} | key)[0] == 200
    s.request("POST", TEXT, b"{", {"X-Request-Id": "bad"} | key)
    s.request("GET", '/no"thing\\', None, {"X-Request-Id": "none"} | key)
    s.process.send_signal(signal.SIGUSR1)
    s.process.send_signal(signal.SIGHUP)
    s.wait_until(lambda: any('"keys"' in line for line in lines()) and any('"statistics"' in line for line in lines()))
    assert s.stop() == 0
    found = parsed(lines())
    first, second = of(found, "request", request_id="one")[0], of(found, "request", request_id="two")[0]
    assert (first["route"], first["status"], first["method"], first["error"]) == (TEXT, 200, "POST", None)
    assert first["generated_tokens"] == 3 and first["cut"] == "length" and first["ms"] > 0
    assert second["cached_tokens"] == second["prompt_tokens"] == first["prompt_tokens"] > first["cached_tokens"] == 0
    assert of(found, "request", request_id="bad", status=400)[0]["error"]
    assert of(found, "request", request_id="none", status=404)[0]["route"].startswith("/no")
    assert of(found, "prompt", request_id="one")[0]["body_bytes"] > 20
    assert of(found, "ready")[0]["version"] and of(found, "model_opened")[0]["arch"] == "llama"
    assert of(found, "keys", keys=1) and of(found, "statistics")[0]["submitted"] == 2 and of(found, "stop")


def test_as_json_a_crash_is_lines_like_the_others(logged):
    s, lines = logged("--log-format", "json", env=LEFT_ALONE)
    s.process.send_signal(signal.SIGSEGV)
    assert s.process.wait(30) == -signal.SIGSEGV
    crash = of(parsed(lines()), "crash")
    assert crash[0]["signal"] == 11 and "crashed by signal 11 (SIGSEGV) of process" in crash[0]["message"]
    assert {"radish"} <= {x.get("thread") for x in crash} and len({x.get("thread") for x in crash}) > 3
    assert sum(bool(re.search(r"\(\+0x|\[0x", x["message"])) for x in crash) > 10


def test_as_json_a_start_that_fails_is_told_so(tmp_path):
    r = subprocess.run(
        [BUILD / "radish", "serve", "no-such-model", "--log-format", "json"],
        capture_output=True,
        text=True,
        env=os.environ | {"RADISH_MODELS": str(tmp_path)},
    )
    found = parsed(r.stderr.splitlines())
    assert r.returncode == 1 and found[0]["event"] == "failed" and "no-such-model" in found[0]["message"]
    assert of(found, "hint")


def test_the_page_names_each_event_and_its_fields():
    page = (ROOT / "docs/operate.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` +\| (.*?) +\|", page[page.index("## Logs") : page.index("## Crashes")], re.M))
    assert set(rows) == set(EVENTS) | {"crash"}
    for event, fields in EVENTS.items():
        assert set(fields) <= set(re.findall(r"`(\w+)`", rows[event])), event
    assert set(TOKENS) <= set(re.findall(r"`(\w+)`", rows["request"]))


def test_windows_are_told_when_a_model_that_has_them_is_loaded(make_server, tmp_path):
    with open(tmp_path / "log", "wb") as log:
        s = make_server(
            "--threads", "1", "--kv-tokens", "8192", model=ROOT / "tests/golden/gemma3/tiny-gemma3.gguf", log=log
        )
    told = re.search(
        r"layers that see (\d+) tokens have (\d+) windows of (\d+) tokens, [\d.]+ MiB, beside (\d+) pages",
        (tmp_path / "log").read_text(),
    )
    windows = s.stats()["windows"]
    assert told and [int(told[1]), int(told[2])] == [windows["tokens"], windows["total"]]
    assert windows["total"] < int(told[4]) == s.stats()["pages"]["total"]
