"""What a coding agent does to a cache: keys in another order each turn, a header that is always new, a second agent, a
restart. Every turn computes its new text and no more."""
import json
import random
import signal
import time

import pytest

from radish_server import Server

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": name, "description": about, "parameters": {"type": "object", "properties": {
    "path": {"type": "string", "description": "a file of the repository"}, "start": {"type": "integer"}, "deep": {
        "type": "boolean", "default": False}}, "required": ["path"]}}}
    for name, about in (("read_file", "Reads lines of a file."), ("search", "Searches text."), ("run_tests", "Runs the tests."))]
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
            r.getrandbits(12), r.getrandbits(20))
        messages = [{"role": "system", "content": header + SYSTEM}]
        for m in self.history:
            calls = [{**c, "function": {**c["function"], "arguments": json.dumps(reordered(json.loads(
                c["function"]["arguments"]), r), indent=r.choice([None, 1]))}} for c in m.get("tool_calls", [])]
            messages.append({**m, "tool_calls": calls} if calls else m)
        return {"messages": messages, "tools": [reordered(t, r) for t in TOOLS], "max_tokens": 12, "temperature": 0}

    def turn(self, server):
        """Tokens computed beyond the text that is new."""
        answer = server.ok(CHAT, self.body())
        usage, timings = answer["usage"], answer["timings"]
        beyond = timings["prompt_n"] - (usage["prompt_tokens"] - self.end)
        self.end = usage["prompt_tokens"] + usage["completion_tokens"]
        n = len(self.history)
        call = {"id": "call_%d" % n, "type": "function", "function": {"name": "read_file", "arguments": json.dumps(
            {"path": "src/%d.c" % n, "start": n, "deep": n % 2 == 0})}}
        self.history += [{"role": "assistant", "content": answer["choices"][0]["message"]["content"] or "I read.",
                          "reasoning_content": "I should look at file %d." % n, "tool_calls": [call]},
                         {"role": "tool", "tool_call_id": call["id"], "content": "line %d: nothing to see" % n}]
        return beyond, timings["prompt_n"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("agent"))


def test_every_turn_computes_its_new_text(folder):
    server = Server("--cache-dir", folder)
    try:
        agent = Agent(1, "Why do the tests fail?")
        whole = agent.turn(server)[1]
        assert all(agent.turn(server)[0] <= 32 for _ in range(5))
        assert Agent(2, "Add a flag.").turn(server)[1] < 32 < whole
        # another order of a list is another value, and so is another tool
        other = Agent(3, "Why do the tests fail?")
        body = other.body()
        body["tools"] = body["tools"][::-1]
        assert server.ok(CHAT, body)["timings"]["prompt_n"] > 100
        # keys as they come, where nothing earlier is known of them
        text = server.ok("/apply-template", {"messages": body["messages"], "tools": [{"type": "function", "function": {
            "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "string"}}}, "name": "last"}}]})["prompt"]
        assert text.index('"parameters"') < text.index('"last"') and text.index('"z"') < text.index('"a"')
        agent.turn(server)
        time.sleep(0.5)                  # written behind: what is not on disk yet would be computed again
    finally:
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(60)
    server = Server("--cache-dir", folder)
    try:
        again = Agent(4, "Why do the tests fail?")
        assert all(again.turn(server)[1] <= 32 for _ in range(6))
        assert agent.turn(server)[0] <= 32
        salted = again.body() | {"cache_salt": "another"}
        assert server.ok(CHAT, salted)["timings"]["prompt_n"] > 100
    finally:
        assert server.stop() == 0


def test_keys_stay_where_they_are_when_asked():
    server = Server("--no-normalise")
    try:
        agent = Agent(1, "Why do the tests fail?")
        agent.turn(server)
        assert agent.turn(server)[1] > 100
    finally:
        assert server.stop() == 0
