"""A context that goes on when it is full (--context-shift, "context_shift": true): what comes is what a new request with the
shorter prompt would give, part by part, and nobody else's answer changes."""

import json
import threading

import pytest
from radish_server import TINY, Server

TEXT, CHAT, MESSAGES, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"
CONTEXT = 256
ON = {"context_shift": True, "ignore_eos": True, "temperature": 0, "return_token_ids": True}


@pytest.fixture(scope="module")
def server():
    s = Server("--threads", "1", model=TINY)
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


@pytest.fixture(scope="module")
def shifting():
    s = Server("--threads", "1", "--context-shift", model=TINY)
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def ids(server, prompt, n, **more):
    body = ON | {"context_shift": False, "prompt": prompt, "max_tokens": n, "cache_prompt": False, "speculation": False}
    return server.ok(TEXT, body | more)["choices"][0]["token_ids"]


def by_hand(server, prompt, n, n_keep):
    """The same with requests that end where the context does; each part's prompt is made here."""
    prompt, out, shifts = list(prompt), [], 0
    while len(out) < n:
        part = ids(server, prompt, n - len(out))
        out += part
        prompt += part
        if len(out) < n:
            drop = (len(prompt) - n_keep) // 2
            prompt = prompt[:n_keep] + prompt[n_keep + drop :]
            shifts += 1
    return out, shifts


@pytest.mark.parametrize("n_keep", [0, 1, 40, 9999])
def test_each_part_is_what_its_shorter_prompt_gives(server, n_keep):
    prompt = [(i * 37) % 90 + 3 for i in range(100)]
    body = ON | {"prompt": prompt, "max_tokens": 900, "n_keep": n_keep}
    got = server.ok(TEXT, body)
    want, shifts = by_hand(server, prompt, 900, min(n_keep, 100, (CONTEXT - 1) // 2))
    assert got["choices"][0]["token_ids"] == want
    assert got["timings"]["context_shifts"] == shifts > 2 and got["timings"]["dropped_n"] > 300
    assert got["usage"]["prompt_tokens"] == 100 and got["usage"]["completion_tokens"] == 900
    assert got["choices"][0]["finish_reason"] == "length"
    assert server.ok(TEXT, body)["choices"][0]["token_ids"] == want  # from the cache
    assert server.ok(TEXT, body | {"cache_prompt": False, "speculation": False})["choices"][0]["token_ids"] == want


def test_it_is_off_unless_it_is_asked_for(server):
    body = {k: v for k, v in ON.items() if k != "context_shift"} | {"prompt": "abc", "max_tokens": 900}
    got = server.ok(TEXT, body)
    assert got["usage"]["total_tokens"] == CONTEXT + 1 and got["choices"][0]["finish_reason"] == "length"
    assert "context_shifts" not in got["timings"]
    status, _, raw = server.request("POST", TEXT, body | {"prompt": [5] * 300})
    assert status == 400 and "context" in json.loads(raw)["error"]["message"]


def test_the_server_may_do_it_for_all_and_a_request_decline(shifting):
    body = {"prompt": "abc", "max_tokens": 900, "ignore_eos": True}
    assert shifting.ok(TEXT, body)["usage"]["completion_tokens"] == 900
    assert shifting.ok(TEXT, body | {"context_shift": False})["usage"]["total_tokens"] == CONTEXT + 1
    del body["max_tokens"]
    assert (
        shifting.ok(TEXT, body | {"max_tokens": None})["usage"]["completion_tokens"] <= CONTEXT
    )  # no end is the context's


def test_a_prompt_that_is_too_long_is_cut_behind_its_head(server):
    prompt = [(i * 37) % 90 + 3 for i in range(1000)]
    got = server.ok(TEXT, ON | {"prompt": prompt, "max_tokens": 10, "n_keep": 20})
    n = got["usage"]["prompt_tokens"]
    assert n < CONTEXT and got["timings"]["dropped_n"] == 1000 - n and got["timings"]["context_shifts"] == 0
    assert got["choices"][0]["token_ids"] == ids(server, prompt[:20] + prompt[20 + 1000 - n :], 10)


def test_the_system_prompt_stays(server):
    chat = {
        "messages": [{"role": "system", "content": "abc abc"}, {"role": "user", "content": "def " * 200}],
        "max_tokens": 3,
        "context_shift": True,
    }
    assert server.ok(CHAT, chat)["timings"]["dropped_n"] > 0
    short = [chat["messages"][0], {"role": "user", "content": "x"}]
    stored = server.ok("/v1/cache/explain", {"messages": short})
    assert stored["stored_tokens"] > 5  # the head of that prompt is the head of what was computed


def test_a_stream_and_its_stop_string_do_not_notice(server):
    body = ON | {"prompt": [7] * 200, "max_tokens": 600}
    text = server.ok(TEXT, body)["choices"][0]["text"]
    at = len(text) * 3 // 4
    stop = text[at : at + 12]
    first = text.index(stop)
    for stream in (False, True):
        if stream:
            pieces, finish, timings = "", None, {}
            for event in server.stream(TEXT, body | {"stream": True, "stop": stop}):
                if event.get("choices"):
                    pieces += event["choices"][0]["text"]
                    finish = event["choices"][0]["finish_reason"] or finish
                timings = event.get("timings") or timings
        else:
            got = server.ok(TEXT, body | {"stop": stop})
            pieces, finish, timings = got["choices"][0]["text"], got["choices"][0]["finish_reason"], got["timings"]
        assert pieces == text[:first] and finish == "stop"
        assert timings["context_shifts"] >= 1


def test_a_form_is_held_across_shifts(server):
    schema = {"type": "array", "items": {"enum": ["abc", "abcabc"]}, "minItems": 150, "maxItems": 150}
    got = server.ok(
        CHAT,
        {
            "messages": [{"role": "user", "content": "abc"}],
            "max_tokens": 3000,
            "context_shift": True,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
        },
    )
    assert got["timings"]["context_shifts"] >= 2
    assert got["choices"][0]["finish_reason"] == "stop"
    assert len(json.loads(got["choices"][0]["message"]["content"])) == 150


def test_a_forced_call_is_whole_across_shifts():
    server = Server("--threads", "2", "--ctx", "320")
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"enum": ["abc"]}, "minItems": 120, "maxItems": 120}},
        "required": ["a"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    got = server.ok(
        CHAT,
        {
            "messages": [{"role": "user", "content": "a"}],
            "tools": [tool],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "max_tokens": 3000,
            "context_shift": True,
        },
    )
    assert got["timings"]["context_shifts"] >= 1, got["timings"]
    calls = got["choices"][0]["message"]["tool_calls"]
    assert got["choices"][0]["finish_reason"] == "tool_calls" and len(calls) == 1
    assert len(json.loads(calls[0]["function"]["arguments"])["a"]) == 120
    assert server.stop() == 0


def test_messages_and_responses_take_it_too(server):
    got = server.ok(
        MESSAGES,
        {
            "messages": [{"role": "user", "content": "abc"}],
            "max_tokens": 600,
            "context_shift": True,
            "ignore_eos": True,
        },
    )
    assert got["usage"]["output_tokens"] == 600 and got["stop_reason"] == "max_tokens"
    got = server.ok(RESPONSES, {"input": "abc", "max_output_tokens": 600, "context_shift": True, "ignore_eos": True})
    assert got["usage"]["output_tokens"] == 600 and got["status"] == "incomplete"


def test_many_at_once_and_those_beside_them(server):
    """Promise 1 for all others: a request beside ten that shift has the tokens that it has alone."""
    prompt = [(i * 11) % 90 + 3 for i in range(60)]
    want = ids(server, prompt, 150)
    alone, _ = by_hand(server, [9] * 30, 700, 1)
    wrong = []

    def shifts(i):
        got = server.ok(TEXT, ON | {"prompt": [9] * 30, "max_tokens": 700})["choices"][0]["token_ids"]
        if got != alone:
            wrong.append(i)

    threads = [threading.Thread(target=shifts, args=(i,)) for i in range(10)]
    for t in threads:
        t.start()
    for _ in range(10):
        assert ids(server, prompt, 150, cache_prompt=True, speculation=True) == want
    for t in threads:
        t.join()
    assert not wrong
    assert ids(server, prompt, 150) == want


def test_a_client_that_leaves_ends_it(server):
    body = ON | {"prompt": [8] * 50, "max_tokens": 10_000_000, "stream": True}
    for _ in range(5):
        s = server.open_request(TEXT, body)
        got = 0
        while got < 200_000:  # hundreds of tokens: beyond a shift
            got += len(s.recv(65536))
        s.close()
    server.wait_idle()


def test_sampled_answers_come_again_with_their_seed(server):
    body = ON | {"prompt": [4, 5, 6], "max_tokens": 600, "temperature": 1, "seed": 7}
    first = server.ok(TEXT, body)["choices"][0]["token_ids"]
    assert server.ok(TEXT, body | {"cache_prompt": False})["choices"][0]["token_ids"] == first
    assert len(first) == 600 and server.ok(TEXT, body | {"seed": 8})["choices"][0]["token_ids"] != first
