"""A backend that is another program (docs/process-backend.md): answers, refusals, and every way in which it can go wrong.

fake_backend.py is the program; the last word of a prompt says what it does.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from radish_server import ROOT, Server, gone, is_alive

FAKE = ROOT / "tests/server/fake_backend.py"
SILENCE_S = 2


def command(*options):
    return f"process:{sys.executable} {FAKE} " + " ".join(options)


class Made:
    """A server over the fake program, with the file in which that notes its starts and ends."""

    def __init__(self, tmp_path, *options, **more):
        self.state = tmp_path / "state"
        self.state.touch()
        self.server = Server(
            "--backend",
            command(f"state={self.state}", *options),
            "--process-silence",
            str(SILENCE_S),
            model=Path("fake"),
            **more,
        )

    def noted(self, what):
        return [s.split() for s in self.state.read_text().splitlines() if s.startswith(what)]

    def pids(self):
        return [int(s[1]) for s in self.noted("start")]

    def chat(self, text, **more):
        return self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more})


@pytest.fixture
def make(tmp_path):
    made = []

    def start(*options, **more):
        made.append(Made(tmp_path, *options, **more))
        return made[-1]

    yield start
    for m in made:
        if m.server.process.poll() is None:
            assert m.server.stop() == 0
        for pid in m.pids():
            gone(pid)


def test_answers_streams_and_counts(make):
    m = make()
    status, r = m.chat("one two three")
    assert status == 200, r
    assert r["choices"][0]["message"]["content"] == "echo: one two three "
    assert r["choices"][0]["finish_reason"] == "stop"
    assert r["usage"]["prompt_tokens"] == 3 and r["usage"]["completion_tokens"] == 4
    chunks = m.server.stream(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a b cached"}], "stream_options": {"include_usage": True}},
    )
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text == "echo: a b cached "
    assert len(chunks) > 4  # a word at a time
    assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
    assert m.server.ok("/v1/completions", {"prompt": "x y"})["choices"][0]["text"] == "echo: x y "
    cut = m.server.ok("/v1/completions", {"prompt": "one two three four", "stop": [" three"]})
    assert cut["choices"][0]["text"] == "echo: one two" and cut["choices"][0]["finish_reason"] == "stop"
    short = m.chat("one two three", max_tokens=2)[1]["choices"][0]
    assert short["message"]["content"] == "echo: one " and short["finish_reason"] == "length"
    over = m.chat("one two three BEYOND", max_tokens=2)[1]["choices"][0]
    assert over["finish_reason"] == "length"
    assert m.server.get("/props")[1]["exact"] is False
    assert m.server.get("/health")[0] == 200
    m.server.wait_until(lambda: m.server.active() == 0)
    assert m.server.stats()["process"]["starts"] == 1


def test_a_template_that_it_tells_is_used_here(make):
    m = make("template", "no-chat")
    assert m.chat("hello")[1]["choices"][0]["message"]["content"] == "echo: <user>hello <assistant> "
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    message = m.chat("what is there?", tools=[tool])[1]["choices"][0]
    assert message["finish_reason"] == "tool_calls", message
    call = message["message"]["tool_calls"][0]["function"]
    assert call["name"] == "look" and json.loads(call["arguments"]) == {"at": "sky"}
    applied = m.server.ok("/apply-template", {"messages": [{"role": "user", "content": "x"}]})
    assert applied["prompt"] == "<user>x\n<assistant>"


def test_tools_without_a_template_are_its_own(make):
    m = make()
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    choice = m.chat("what is there?", tools=[tool])[1]["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "look", choice


def test_tokens_are_the_programs(make):
    m = make()
    assert m.server.ok("/tokenize", {"content": "abc"})["tokens"] == [97, 98, 99]
    assert m.server.ok("/detokenize", {"tokens": [104, 105]})["content"] == "hi"


@pytest.mark.parametrize(
    "wish, word",
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"mirostat": 2}, "mirostat"),
        ({"repetition_penalty": 1.5}, "repetition_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(make, wish, word):
    m = make()
    status, r = m.chat("x", **wish)
    assert status == 400 and word in r["error"]["message"], r
    assert m.chat("x", seed=5, temperature=0.5, top_k=3)[0] == 200


def test_its_own_errors_are_passed_on(make):
    m = make()
    status, r = m.chat("long REFUSE")
    assert status == 400 and r["error"]["message"] == "the prompt is too long"
    assert r["error"]["code"] == "context_length_exceeded"
    assert m.server.stats()["process"]["starts"] == 1


FAULTS = {
    "KILL": "signal 9",
    "EXIT": "exit 3",
    "STOP": "said nothing",
    "HANG": "said nothing",
    "GARBAGE": "no JSON object",
    "BINARY": "no JSON object",
    "HALF": "began a line",
    "LONG": "more than 4194304 bytes",
    "FLOOD": "in a second",
    "LINES": "in a second",
    "STRANGER": "does not have",
    "UNKNOWN": "which there is not",
    "CLOSE": "closed its stdout",
}


@pytest.mark.parametrize("word", FAULTS)
def test_a_fault_ends_its_requests_and_the_next_one_works(make, word):
    """503 with the reason, within the deadline; a flood has begun its answer by then, and may have outrun its reader."""
    m = make()
    began = time.monotonic()
    if word == "FLOOD":
        body = {"messages": [{"role": "user", "content": word}], "stream": True}
        status, _, answer = m.server.request("POST", "/v1/chat/completions", body)
        ends = FAULTS[word] in answer.decode()
        assert status == 200 and (ends or "too slow" in answer.decode()), answer[-500:]
    else:
        status, r = m.chat(f"please {word}")
        assert status == 503 and FAULTS[word] in r["error"]["message"], r
        ends = True
    assert (
        time.monotonic() - began < 600
    )  # a bound on hanging, with a sanitizer on a busy machine; the deadline is SILENCE_S
    assert m.chat("again")[1]["choices"][0]["message"]["content"] == "echo: again "
    if ends or len(m.pids()) == 2:
        assert m.server.stats()["process"]["starts"] == 2
        first, second = m.pids()
        gone(first)
        assert is_alive(second)
    else:  # a reader that was outrun is its request's own end, and the program was told to stop
        assert m.server.stats()["process"]["starts"] == 1 and is_alive(*m.pids())
    m.server.wait_until(lambda: m.server.get("/health")[0] == 200)


def test_only_the_requests_that_it_had_fail(make):
    """With one at a time, those that wait go to the next program."""
    m = make("parallel=1")
    answers = {}

    def ask(text):
        answers[text] = m.chat(text)

    threads = [threading.Thread(target=ask, args=("first SLOW",))]
    threads[0].start()
    m.server.wait_until(lambda: m.server.stats()["requests"]["decode"] == 1)
    threads += [threading.Thread(target=ask, args=(f"waits {i}",)) for i in range(3)]
    for t in threads[1:]:
        t.start()
    m.server.wait_until(lambda: m.server.stats()["requests"]["queued"] == 3)
    os.kill(m.pids()[0], 9)
    for t in threads:
        t.join(60)
    assert answers.pop("first SLOW")[0] == 503
    assert [a[0] for a in answers.values()] == [200] * 3, answers


def test_a_program_that_does_not_come_back(make):
    """Health says so; requests are refused once it has failed three times."""
    m = make("load=later")
    assert m.chat("fine")[0] == 200
    os.kill(m.pids()[0], 9)
    m.server.wait_until(lambda: m.server.get("/health")[0] == 503)
    assert "started again" in m.server.get("/health")[1]["error"]["message"]
    m.server.wait_until(lambda: len(m.pids()) >= 4)
    status, r = m.chat("now")
    assert status == 503 and "exit 6" in r["error"]["message"], r


@pytest.mark.parametrize("fault, word", [("exit", "exit 5"), ("error", "no such model"), ("protocol", "version 2")])
def test_a_program_that_does_not_load_is_no_server(make, fault, word, tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as f:
        m = make(f"load={fault}", wait=False, log=f)
        assert m.server.process.wait(60) != 0
    assert word in log.read_text()


def test_a_program_that_loads_too_long(make, tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as f:
        server = Server(
            "--backend",
            command("load=hang", f"state={tmp_path / 'hang'}"),
            "--process-load",
            "1",
            model=Path("fake"),
            wait=False,
            log=f,
        )
        assert server.process.wait(60) != 0
    assert "had not loaded after 1 s" in log.read_text()
    gone(int((tmp_path / "hang").read_text().split()[1]))


def test_a_thousand_cancels_leave_nothing_busy(make):
    m = make("parallel=8")
    body = {"messages": [{"role": "user", "content": "on and on ENDLESS"}], "stream": True}

    def leave(n):
        for i in range(n):
            with m.server.open_request("/v1/chat/completions", body) as s:
                if i % 2:
                    s.recv(4096)

    threads = [threading.Thread(target=leave, args=(100,)) for _ in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)
    m.server.wait_until(lambda: m.server.active() == 0)
    assert m.chat("still here")[1]["choices"][0]["message"]["content"] == "echo: still here "
    s = m.server.stats()
    assert s["process"]["starts"] == 1
    assert s["requests"]["cancelled"] >= 500
    # what it began it has ended, this last one included
    begun = s["requests"]["stop"]
    m.server.wait_until(lambda: len({e[1] for e in m.noted("end")}) == len(m.noted("end")) >= begun)
    time.sleep(0.1)
    busy = subprocess.run(["ps", "-o", "nlwp=", "-p", str(m.pids()[0])], capture_output=True, text=True, check=True)
    assert int(busy.stdout) <= 1  # its main thread: one more for every request that runs


def test_no_orphan_after_kill_9_of_radish(make):
    m = make()
    body = {"messages": [{"role": "user", "content": "on ENDLESS"}], "stream": True}
    with m.server.open_request("/v1/chat/completions", body) as s:
        assert s.recv(4096)
        m.server.process.kill()
        m.server.process.wait(10)
    gone(m.pids()[0])


def test_a_stopped_program_dies_with_radish(make):
    m = make()
    os.kill(m.pids()[0], 19)
    m.server.process.kill()
    m.server.process.wait(10)
    gone(m.pids()[0])


def test_it_is_told_to_quit(make):
    m = make()
    assert m.server.stop() == 0
    assert m.noted("quit")


def test_its_environment_holds_no_secret(make, tmp_path):
    seen = tmp_path / "env"
    script = tmp_path / "look.py"
    script.write_text(
        f"import os, runpy, sys\nopen({str(seen)!r}, 'w').write(repr(dict(os.environ)))\nsys.argv = ['fake']\nrunpy.run_path({str(FAKE)!r})\n"
    )
    server = Server(
        "--backend",
        f"process:{sys.executable} '{script}'",
        model=Path("fake"),
        env={"RADISH_API_KEY": "", "HF_TOKEN": "hidden", "AWS_SECRET_ACCESS_KEY": "hidden", "PYTHONHASHSEED": "1"},
    )
    assert server.stop() == 0
    env = eval(seen.read_text())
    assert "hidden" not in env.values() and env["PYTHONHASHSEED"] == "1" and "PATH" in env


def test_its_stderr_is_in_the_log(make, tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as f:
        m = make(log=f)
        m.chat("x")
        assert m.server.stop() == 0
    assert "backend process: fake backend: here I am" in log.read_text()


def test_what_it_has_no_ids_of_is_told_without(make):
    """It says text, not tokens."""
    m = make()
    body = {"prompt": "one two", "n_predict": 20, "timings_per_token": True}
    whole = m.server.ok("/completion", body | {"return_tokens": True})
    assert whole["content"] == "echo: one two " and (whole["tokens"], whole["prompt"]) == ([], "one two")
    raw = m.server.request("POST", "/completion", body | {"stream": True})[2].decode()
    events = [json.loads(e[6:]) for e in raw.split("\n\n") if e.startswith("data: ")]
    assert "".join(e["content"] for e in events) == whole["content"] and all(e["tokens"] == [] for e in events)
    assert all(e["timings"]["prompt_ms"] > 0 for e in events)
    choice = m.server.ok("/v1/completions", {"prompt": "one two", "return_token_ids": True})["choices"][0]
    assert choice["token_ids"] == []
