"""Clients that leave before their request is queued, or while its prompt comes from the disk: counted where they were, and nothing
of theirs is left."""

import contextlib
import json
import re
import subprocess

import pytest
from radish_server import ROOT, SANITIZED, TINY, Server

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = {"prompt": [5 + i % 80 for i in range(230)], "max_tokens": 2, "temperature": 0, "ignore_eos": True}


def told(s, phase):
    """The same number everywhere."""
    n = s.stats()["cancelled"][phase]
    text = s.request("GET", "/metrics")[2].decode()
    assert int(re.search(rf'^radish_requests_cancelled_total{{.*phase="{phase}".*}} (\d+)$', text, re.M)[1]) == n
    return n


def until_quiet(s):
    s.wait_until(lambda: s.active() + s.stats()["requests"]["loading"] == 0)


def test_who_leaves_while_it_is_prepared(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "1024", model=TINY)
    with contextlib.ExitStack() as stack:
        for i in range(10):  # tenths of a second of compiling each, one after the other
            c = stack.enter_context(contextlib.closing(s.connect()))
            body = {"messages": [{"role": "user", "content": "x"}], "regex": "(a|b)*a(a|b){%d}c" % (40 + i)}
            c.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
        s.wait_until(lambda: s.stats()["requests"]["preparing"] >= 5)
        assert told(s, "preparing") == 0
    s.wait_until(lambda: s.stats()["requests"]["preparing"] == 0)
    assert told(s, "preparing") >= 1
    s.ok(CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1})
    assert s.stats()["engine"]["accounting_errors"] == 0


@pytest.mark.skipif(SANITIZED, reason="a sanitizer wants to be the first library")
def test_who_leaves_while_its_prompt_is_read_from_the_disk(make_server, tmp_path):
    library, slow = tmp_path / "slow_disk.so", tmp_path / "slow"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, ROOT / "tests/server/slow_disk.c", "-ldl"],
        check=True,
    )
    flags = ("--threads", "1", "--kv-tokens", "1024", "--cache-dir", str(tmp_path / "kv"))
    first = Server(*flags, model=TINY)
    whole = first.ok(TEXT, PROMPT)["choices"][0]["text"]
    assert first.stop() == 0
    s = make_server(*flags, model=TINY, env={"LD_PRELOAD": str(library), "SLOW_DISK": str(slow)})
    slow.touch()
    clients = [s.connect() for _ in range(3)]
    for c in clients:
        c.request("POST", TEXT, json.dumps(PROMPT), {"Content-Type": "application/json"})
    s.wait_until(lambda: s.stats()["requests"]["loading"] >= 1)
    other = s.ok(TEXT, PROMPT | {"prompt": [7, 8, 9]})  # nobody else waits for the disk
    assert other["usage"]["completion_tokens"] == 2
    for c in clients:
        c.close()
    s.wait_until(lambda: sum(s.stats()["cancelled"].values()) == 3)
    assert told(s, "loading") >= 1
    slow.unlink()
    until_quiet(s)
    again = s.ok(TEXT, PROMPT)
    assert again["choices"][0]["text"] == whole
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 208
    totals = s.stats()["tokens"]
    assert totals["prompt_computed"] + totals["prompt_cached"] == s.get("/v1/monitor")[1]["totals"]["prompt"]
    assert s.stats()["engine"]["accounting_errors"] == 0
