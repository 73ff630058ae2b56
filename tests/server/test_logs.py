"""What a server writes: a line for each request, prompts only when asked, the last words of a crash."""

import json
import re
import signal

import pytest
from radish_server import TINY

TEXT = "/v1/completions"


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
            assert all(secret in json.loads(line)["message"] for line in found)
        assert s.stop() == 0


def test_a_long_prompt_is_cut_in_the_log(logged):
    s, lines = logged("--log-prompts")
    s.request("POST", "/tokenize", {"content": "z" * 100000})
    found = [line for line in lines() if "asks /tokenize" in line]
    assert len(found) == 1 and 1900 < len(found[0]) < 2200 and "zzz ..." in found[0]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS], ids=lambda n: n.name)
def test_a_crash_says_where_each_thread_was_and_what_was_counted(logged, number):
    s, lines = logged("--max-running", "2")
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
