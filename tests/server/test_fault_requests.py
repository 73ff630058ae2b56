"""Requests at and beyond their limits: faults F20 to F26 and F30 of the list of faults, on the wire.

F22 is test_parameter_table.py; F20 and F26 also test_bad_requests.py and tests/fuzz/fuzz_json_body.c; F27 and F28 are
tests/fuzz/fuzz_utf8.c, tests/text/test_stop.c and test_openai.py; F30 is tests/text/test_output_random.c and
tests/fuzz/fuzz_output_parser.c.
"""

import contextlib
import json
import os
import shutil
import time

import pytest
from radish_server import SANITIZED, TINY, Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def tiny():
    s = Server("--threads", "1", "--kv-tokens", "4096", "--ctx", "64", model=TINY)
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def refused(server, path, body, param, within_s=20):
    start = time.monotonic()
    status, answer = server.post(path, body)
    assert status == 400 and answer["error"]["param"] == param, answer
    assert time.monotonic() - start < within_s
    return answer["error"]


def peak_mib(server):
    for line in open(f"/proc/{server.process.pid}/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024


def cpu_s(server):
    total = 0
    with open(f"/proc/{server.process.pid}/schedstat") as f:  # of the main thread: parsing is the io thread's
        total += int(f.read().split()[0])
    return total / 1e9


def test_F20_a_large_body_takes_at_most_three_times_its_size(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "1024", model=TINY)
    s.post(CHAT, {"messages": [USER], "max_tokens": 1})
    before, size = peak_mib(s), 24
    refused(s, CHAT, json.dumps({"messages": [{"role": 5, "content": "a" * (size << 20)}]}).encode(), "messages")
    assert peak_mib(s) - before < 3 * size + 8


def test_F20_numbers_at_their_edges(tiny):
    base = {"messages": [USER], "max_tokens": 1}
    for raw, status in (
        (b"-0", 200),
        (b"-0.0", 200),
        (b"0e10", 200),
        (b"1E0", 200),
        (b"1e-400", 200),
        (b"99999999999999999999", 400),
        (b"1e999", 400),
        (b"-1e999", 400),
        (b"0x1", 400),
        (b"1_0", 400),
    ):
        body = json.dumps(base).encode()[:-1] + b',"temperature":' + raw + b"}"
        got, answer = tiny.post(CHAT, body)
        assert got == status, (raw, answer)


@pytest.mark.parametrize(
    "field,value",
    [
        ("messages", b"[" + b",".join([b"{}"] * 1_000_000) + b"]"),
        ("messages", b'[{"role":"user","content":[' + b",".join([b'""'] * 1_000_000) + b"]}]"),
        ("tools", b"[" + b",".join([b"{}"] * 1_000_000) + b"]"),
        ("stop", b"[" + b",".join([b'"a"'] * 1_000_000) + b"]"),
        ("logit_bias", b"{" + b",".join(b'"%d":1' % i for i in range(1_000_000)) + b"}"),
        ("bad_words", b"[" + b",".join([b'"a"'] * 1_000_000) + b"]"),
    ],
    ids=["messages", "parts", "tools", "stop", "logit_bias", "bad_words"],
)
def test_F21_a_million_of_anything_is_refused(tiny, field, value):
    start = b"{" if field == "messages" else b'{"messages":[{"role":"user","content":"a"}],'
    error = refused(tiny, CHAT, start + b'"%s":%s}' % (field.encode(), value), field)
    assert "at most" in error["message"]


def test_F21_at_the_limit_time_is_linear(tiny):
    """Ten times as many parts take the io thread about ten times as long."""

    def cost(n):
        body = json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * n}]}).encode()
        before = cpu_s(tiny)
        assert tiny.post(CHAT, body)[1]["error"]["code"] == "context_length_exceeded"
        return cpu_s(tiny) - before

    few, many = min(cost(6500) for _ in range(3)), min(cost(65000) for _ in range(3))
    assert many < 25 * few + 0.02, (few, many)


def test_F23_what_is_nearly_nothing_has_a_defined_result(tiny):
    # the tiny model's template writes nothing of a system message: that prompt is empty
    for messages, status in (
        ([], 400),
        ([{"role": "user", "content": ""}], 200),
        ([{"role": "system", "content": "Be brief."}], 400),
        ([USER, {"role": "assistant", "content": "He"}], 200),
        ([{"role": "assistant", "content": "He"}], 200),
        ([USER, {"role": "assistant", "content": ""}], 200),
        ([{"role": "user", "content": []}], 200),
    ):
        got, answer = tiny.post(CHAT, {"messages": messages, "max_tokens": 2})
        assert got == status, (messages, answer)
    for prompt in ("", [], [""], [[]]):
        refused(tiny, TEXT, {"prompt": prompt}, "prompt")
    empty = tiny.ok(TEXT, {"prompt": "a", "max_tokens": 0})["choices"][0]
    assert empty["text"] == "" and empty["finish_reason"] == "length"


def test_F24_at_the_end_of_the_context(tiny):
    """--ctx 64: what fits with one token to spare is answered, and cut by the length; what does not is refused, in the words
    that agents look for."""
    for n, want in ((62, 200), (63, 200), (64, None), (65, 400), (500, 400)):
        status, answer = tiny.post(TEXT, {"prompt": [5] * n, "max_tokens": 1000, "ignore_eos": True})
        if status == 200:
            assert (
                n <= 64
                and answer["choices"][0]["finish_reason"] == "length"
                and answer["usage"]["completion_tokens"] <= 64 - n + 1
            )
        else:
            error = answer["error"]
            assert (
                n >= 64
                and status == 400
                and error["code"] == "context_length_exceeded"
                and "maximum context length" in error["message"]
            )
        assert want in (None, status), (n, status)
    tiny.wait_idle()
    status, answer = tiny.post("/v1/messages", {"messages": [{"role": "user", "content": "a" * 500}], "max_tokens": 5})
    assert status == 400 and answer["type"] == "error" and "prompt is too long" in answer["error"]["message"]


def test_F24_a_request_larger_than_the_pool_is_refused_at_once(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "64", "--ctx", "64", model=TINY)
    error = s.post(TEXT, {"prompt": [5] * 80, "max_tokens": 1})[1]["error"]
    assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
    answer = s.ok(TEXT, {"prompt": [5] * 40, "max_tokens": 1000, "ignore_eos": True})
    assert answer["choices"][0]["finish_reason"] == "length"
    s.wait_idle()


def test_F25_most_choices_and_logprobs_and_one_more(tiny):
    r = tiny.ok(
        TEXT, {"prompt": "a", "n": 16, "best_of": 16, "logprobs": 20, "max_tokens": 2, "seed": 1, "ignore_eos": True}
    )
    assert len(r["choices"]) == 16 and len(r["choices"][0]["logprobs"]["top_logprobs"][0]) >= 20
    for more, param in (
        ({"n": 17}, "n"),
        ({"best_of": 17}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"n": 2, "best_of": 1}, "best_of"),
    ):
        refused(tiny, TEXT, {"prompt": "a", "max_tokens": 1} | more, param)
    refused(tiny, TEXT, {"prompt": ["a"] * 129, "n": 16, "max_tokens": 1}, "n")


def test_F26_broken_utf8_is_refused_and_names_its_field(tiny):
    for raw in (
        b"\xff",
        b"\xc0\xaf",
        b"\xe2\x82",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
        b"\x80",
    ):
        error = refused(tiny, TEXT, b'{"prompt":"a' + raw + b'"}', "prompt")
        assert "UTF-8" in error["message"]


def test_F29_bombs_of_grammars_are_refused_within_a_second(tiny):
    twice = [{"$ref": f"#/$defs/a{i}"} for i in range(60)]
    deep = {f"a{i + 1}": {"allOf": [twice[i], twice[i]]} for i in range(59)} | {"a0": {"minLength": 1}}
    wide = {f"a{i + 1}": {"anyOf": [twice[i], {"items": twice[i]}]} for i in range(59)} | {"a0": {"type": "string"}}
    bombs = [
        ("json_schema", {"$defs": deep, "$ref": "#/$defs/a59"}),
        ("json_schema", {"$defs": wide, "$ref": "#/$defs/a59"}),
        ("json_schema", {"enum": [str(i) * 9 for i in range(10_000)]}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}),
        ("json_schema", {"type": "array", "minItems": 10**9, "items": {"type": "string"}}),
        ("json_schema", {"type": "string", "pattern": "(a{1,1000}){1,1000}(b|a)*a.{20}"}),
        ("regex", "(((a{1,100}){1,100}){1,100}){1,100}"),
        ("regex", "(a|b)*a(a|b){25}"),
        ("regex", "(" * 5000 + "a" + ")" * 5000),
        ("regex", "a{0,1000000000}b" * 20),
        ("grammar", "root ::= root"),
        ("grammar", "root ::= " + " ".join("(" * 5000 + '"a"' + ")" * 5000)),
        ("grammar", 'root ::= ("a"? "b"? "c"?){0,1000000000}'),
    ]
    for name, value in bombs:
        began = time.monotonic()
        status, _, answer = tiny.request("POST", CHAT, {"messages": [USER], "max_tokens": 4, name: value})
        took = time.monotonic() - began
        assert status in (200, 400), (name, str(value)[:60], answer[:300])
        if status == 400:
            assert json.loads(answer)["error"]["param"] == name, answer
        # its own limit is a second of a quiet machine; with a sanitizer CLOCK_SLOWDOWN times as much, on an idle core
        assert SANITIZED or took < 20, (name, str(value)[:60], took)
    tiny.ok(CHAT, {"messages": [USER], "max_tokens": 4})


def slow_form(i):
    """Some tenths of a second of compiling; then it is refused by its states or bytes."""
    return {"regex": "(a|b)*a(a|b){%d}c" % (40 + i)}


@contextlib.contextmanager
def sent(server, forms):
    """Connections on which requests with these forms were sent; what is not answered by the end is hung up."""
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(contextlib.closing(server.connect())) for _ in forms]
        for c, form in zip(clients, forms):
            body = {"messages": [USER], "max_tokens": 1, **form}
            c.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
        yield clients


def until_prepared(server):
    while server.stats()["requests"]["preparing"] > 0:
        time.sleep(0.001)


def test_F29_who_sends_slow_forms_waits_for_himself(tiny):
    """A request without a form comes through while ten forms are compiled, one after the other."""
    with sent(tiny, [slow_form(i) for i in range(10)]):
        while tiny.stats()["requests"]["preparing"] < 8:
            time.sleep(0.001)
        tiny.ok(CHAT, {"messages": [USER], "max_tokens": 1})
        assert tiny.stats()["requests"]["preparing"] > 2
    until_prepared(tiny)


def test_F29_slow_forms_have_a_tenth_of_a_core_that_others_want(tiny):
    """Less than the threads that compute, but not only what they leave: where all cores compute that is nothing, and a
    request with strict tools would never begin."""
    policies, niceness = {}, {}
    for task in os.listdir(f"/proc/{tiny.process.pid}/task"):
        stat = open(f"/proc/{tiny.process.pid}/task/{task}/stat").read()
        name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
        policies[name], niceness[name] = int(rest[38]), int(rest[16])  # fields 41 and 19 of proc(5)
    assert policies["forms"] == policies["prep"] == os.SCHED_OTHER
    assert niceness["forms"] == min(niceness["prep"] + 10, 19)


def test_F29_more_slow_forms_than_may_wait_are_asked_to_come_again(tiny):
    """32 of a tenant wait. Those whose clients hang up are not compiled."""
    with sent(tiny, [slow_form(100 + i) for i in range(48)]) as clients:
        answer = clients[-1].getresponse()
        assert answer.status == 429, answer.read()
        assert "try again later" in json.loads(answer.read())["error"]["message"]
        assert tiny.stats()["requests"]["preparing"] > 8
    until_prepared(tiny)
    tiny.ok(CHAT, {"messages": [USER], "max_tokens": 1})


def test_F08_a_model_file_that_is_cut_under_a_running_server_ends_it_for_the_supervisor(make_server, tmp_path):
    model = tmp_path / "tiny.gguf"
    shutil.copy(TINY, model)
    s = make_server("--threads", "1", "--kv-tokens", "1024", "--no-packed-cache", model=model)
    prompt = {"prompt": [5, 6, 7, 8], "max_tokens": 4}
    s.ok(TEXT, prompt)
    os.truncate(model, 4096)
    status, _, _ = s.request("POST", TEXT, prompt)  # the head over what is cached
    assert status == 503
    assert s.process.wait(30) == 70
