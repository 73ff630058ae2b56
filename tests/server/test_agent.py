"""What a coding agent does to a cache: keys in another order each turn, a header that is always new, a second agent, a
restart. Every turn computes its new text and no more."""

import json
import random
import signal
import time

import pytest

from radish_server import SANITIZED, Server

CHAT = "/v1/chat/completions"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "a file of the repository"},
                    "start": {"type": "integer"},
                    "deep": {"type": "boolean", "default": False},
                },
                "required": ["path"],
            },
        },
    }
    for name, about in (
        ("read_file", "Reads lines of a file."),
        ("search", "Searches text."),
        ("run_tests", "Runs the tests."),
    )
]
SYSTEM = "You are a coding agent. " + "Read before you write, and say what you do. " * 20


def reordered(value, r):
    if isinstance(value, dict):
        return {k: reordered(value[k], r) for k in r.sample(list(value), len(value))}
    return [reordered(v, r) for v in value] if isinstance(value, list) else value


class Agent:
    def __init__(self, seed, task):
        self.random, self.history, self.end = random.Random(seed), [{"role": "user", "content": task}], 0

    def body(self):
        r = self.random
        header = "x-anthropic-billing-header: cc_version=2.1.177.%03x; cc_entrypoint=cli; cch=%05x;\n" % (
            r.getrandbits(12),
            r.getrandbits(20),
        )
        messages = [{"role": "system", "content": header + SYSTEM}]
        for m in self.history:
            calls = [
                {
                    **c,
                    "function": {
                        **c["function"],
                        "arguments": json.dumps(
                            reordered(json.loads(c["function"]["arguments"]), r), indent=r.choice([None, 1])
                        ),
                    },
                }
                for c in m.get("tool_calls", [])
            ]
            messages.append({**m, "tool_calls": calls} if calls else m)
        return {"messages": messages, "tools": [reordered(t, r) for t in TOOLS], "max_tokens": 12, "temperature": 0}

    def turn(self, server):
        """Tokens computed beyond the text that is new."""
        answer = server.ok(CHAT, self.body())
        usage, timings = answer["usage"], answer["timings"]
        beyond = timings["prompt_n"] - (usage["prompt_tokens"] - self.end)
        self.end = usage["prompt_tokens"] + usage["completion_tokens"]
        n = len(self.history)
        call = {
            "id": "call_%d" % n,
            "type": "function",
            "function": {
                "name": "read_file",
                "arguments": json.dumps({"path": "src/%d.c" % n, "start": n, "deep": n % 2 == 0}),
            },
        }
        self.history += [
            {
                "role": "assistant",
                "content": answer["choices"][0]["message"]["content"] or "I read.",
                "reasoning_content": "I should look at file %d." % n,
                "tool_calls": [call],
            },
            {"role": "tool", "tool_call_id": call["id"], "content": "line %d: nothing to see" % n},
        ]
        return beyond, timings["prompt_n"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("agent"))


def all_is_written(server):
    """Pages go to disk behind the answers, slowly in a slow build: until no more have come for a second, or for thirty of those."""
    before, since = -1, time.monotonic()
    while time.monotonic() - since < (30 if SANITIZED else 1):
        now = server.stats()["disk"]["pages_written"]
        if now != before:
            before, since = now, time.monotonic()
        time.sleep(0.05)
    assert before > 0


def test_every_turn_computes_its_new_text(folder):
    server = Server("--cache-dir", folder)
    try:
        agent = Agent(1, "Why do the tests fail?")
        whole = agent.turn(server)[1]
        assert all(agent.turn(server)[0] <= 32 for _ in range(5))
        # a new conversation is spelled as it is sent: nothing of another one's comes into its prompt
        assert Agent(2, "Add a flag.").turn(server)[1] > 100
        # another order of a list is another value, and so is another tool
        other = Agent(3, "Why do the tests fail?")
        body = other.body()
        body["tools"] = body["tools"][::-1]
        assert server.ok(CHAT, body)["timings"]["prompt_n"] > 100
        # keys as they come, where nothing earlier is known of them
        text = server.ok(
            "/apply-template",
            {
                "messages": body["messages"],
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "parameters": {
                                "type": "object",
                                "properties": {"z": {"type": "string"}, "a": {"type": "string"}},
                            },
                            "name": "last",
                        },
                    }
                ],
            },
        )["prompt"]
        assert text.index('"parameters"') < text.index('"last"') and text.index('"z"') < text.index('"a"')
        agent.turn(server)
        all_is_written(server)
    finally:
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(60)
    server = Server("--cache-dir", folder)
    try:
        assert agent.turn(server)[0] <= 32
        salted = agent.body() | {"cache_salt": "another"}
        assert server.ok(CHAT, salted)["timings"]["prompt_n"] > 100
    finally:
        assert server.stop() == 0


def test_sorted_keys_are_shared_by_all_who_shuffle():
    server = Server("--sort-keys")
    try:
        whole = Agent(1, "Why do the tests fail?").turn(server)[1]
        agent = Agent(2, "Add a flag.")
        assert agent.turn(server)[1] < 32 < whole and agent.turn(server)[0] <= 32
    finally:
        assert server.stop() == 0


def test_nothing_is_put_back_when_asked(coder_calls):
    """The request field and the flag: the prompt is then that of a server that knows nothing."""
    server, body, fresh = coder_calls
    kept = server.ok(CHAT, body)
    assert kept["timings"]["restored_n"] == 1
    plain = server.ok(CHAT, body | {"replay": False})
    assert plain["timings"]["restored_n"] == 0
    assert (
        plain["usage"]["prompt_tokens"]
        == server.ok(CHAT, body | {"cache_prompt": False})["usage"]["prompt_tokens"]
        == fresh
    )


@pytest.fixture
def coder_calls():
    """A server that has made one call, the request that goes on from it with its arguments respelled, and the length of
    that prompt on a server that has not."""
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    ask = [{"role": "user", "content": "What is the weather in Paris? Call get_weather."}]
    servers = [
        Server("--threads", "2", "--kv-tokens", "8192", *more, model="qwen2.5-coder-0.5b")
        for more in ([], ["--no-replay"])
    ]
    body = {"messages": ask, "tools": [tool], "temperature": 0, "max_tokens": 60}
    message = servers[0].ok(CHAT, body)["choices"][0]["message"]
    call = message["tool_calls"][0]
    arguments = json.dumps(json.loads(call["function"]["arguments"]), indent=4)
    back = {
        "role": "assistant",
        "content": message["content"],
        "tool_calls": [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["function"]["name"], "arguments": arguments},
            }
        ],
    }
    body = body | {
        "max_tokens": 1,
        "messages": [*ask, back, {"role": "tool", "tool_call_id": call["id"], "content": "17 degrees"}],
    }
    yield servers[0], body, servers[1].ok(CHAT, body)["usage"]["prompt_tokens"]
    for s in servers:
        assert s.stop() == 0


def test_keys_stay_where_they_are_when_asked():
    server = Server("--no-normalise")
    try:
        agent = Agent(1, "Why do the tests fail?")
        agent.turn(server)
        assert agent.turn(server)[1] > 100
    finally:
        assert server.stop() == 0
