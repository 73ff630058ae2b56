"""Two clients with the same tools on one server, with a real model: each has the prompts that it would have on a server of its own,
and finds its conversation in the cache.

Random turns: questions, calls that the model makes and their results, arguments spelled anew, messages taken back and changed,
conversations that begin alike. A turn counts where a client only appended to what it had, behind an answer that was not cut; of
those with calls that it spelled in another way than they were delivered a least number is required (turns go on until then).
12 turns each; 1,000 with RADISH_LONG=1. RADISH_THREADS: of each of the three servers.
"""

import json
import os
import random
import threading

from radish_server import Server

TURNS = 1000 if os.environ.get("RADISH_LONG") else 12
LEAST_ANEW = TURNS // 12  # counted turns of each client behind calls that were spelled anew
MODEL = "qwen2.5-coder-0.5b"
SEED = int(os.environ.get("RADISH_SEED", random.randrange(2**32)))
LONGEST = 900  # tokens of a prompt; the conversation ends behind it
FLAGS = ("--threads", os.environ.get("RADISH_THREADS", "1"), "--ctx", "2048")
WORDS = "red blue house river stone cloud paper glass wheel garden winter music".split()


def tool(name, **properties):
    schema = {
        "type": "object",
        "properties": {k: {"type": t} for k, t in properties.items()},
        "required": [*properties],
    }
    return {"type": "function", "function": {"name": name, "description": "To %s." % name, "parameters": schema}}


TOOLS = [
    tool("read", path="string", line="integer"),
    tool("weather", city="string"),
    tool("add", a="number", b="number"),
]


def spelled_anew(text, rng):
    """The same arguments as another JSON library writes them; what is no JSON stays."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, dict) and rng.random() < 0.5:
        value = dict(rng.sample([*value.items()], len(value)))
    return json.dumps(value, separators=rng.choice([(",", ":"), (", ", ": ")]), ensure_ascii=rng.random() < 0.5)


class Client:
    """One client's turns on one server; the same for every server that answers the same."""

    def __init__(self, server, name, end):
        self.server, self.name, self.end = server, name, end
        self.rng = random.Random("%d/%s" % (SEED, name))
        self.messages, self.last, self.turns, self.grown, self.found = [], None, [], 0, 0
        self.is_anew, self.n_anew = False, 0
        self.error = None

    def says(self):
        a, b = self.rng.choices(WORDS, k=2)
        n, m = self.rng.randrange(1, 900), self.rng.randrange(1, 900)
        asks = [
            "Read line %d of the file %s/%s.txt." % (n, a, b),
            "What is the weather in %s %s?" % (a.title(), b),
            "Add %d and %d." % (n, m),
            " ".join(self.rng.choices(WORDS, k=self.rng.randint(1, 8))),
        ]
        return {"role": "user", "content": self.rng.choice(asks)}

    def begin(self):
        self.messages = [{"role": "system", "content": "Answer in a few words."}] if self.rng.random() < 0.5 else []
        alike = self.rng.random() < 0.3
        self.messages.append({"role": "user", "content": "Hello"} if alike else self.says())
        self.last = None

    def go_on(self):
        """The answer, as this client sends it, and what follows."""
        answer = self.last["message"]
        message = {"role": "assistant", "content": answer["content"]}
        anew = self.rng.random() < 0.5
        if answer.get("tool_calls"):
            message["tool_calls"] = [
                {**c, "function": {"name": c["function"]["name"], "arguments": c["function"]["arguments"]}}
                for c in answer["tool_calls"]
            ]
            for c in message["tool_calls"] if anew else []:
                was = c["function"]["arguments"]
                c["function"]["arguments"] = spelled_anew(was, self.rng)
                self.is_anew |= c["function"]["arguments"] != was
        self.messages.append(message)
        for c in message.get("tool_calls", []):
            self.messages.append(
                {"role": "tool", "tool_call_id": c["id"], "content": " ".join(self.rng.choices(WORDS, k=3))}
            )
        if not message.get("tool_calls"):
            self.messages.append(self.says())

    def next_turn(self):
        """Is it the last one and more?"""
        what = self.rng.random()
        users = [i for i, m in enumerate(self.messages) if m["role"] == "user"]
        if self.last is None or len(self.last["prompt"]) > LONGEST or what < 0.04:
            self.begin()
            return False
        if what < 0.09:  # the same again
            return False
        if what < 0.14:  # something else instead
            self.messages = [*self.messages[: users[-1]], self.says()]
            return False
        before = [dict(m) for m in self.messages]
        self.is_anew = False
        self.go_on()
        if what < 0.18:
            self.messages[users[0]] = self.says()
        return self.messages[: len(before)] == before

    def turn(self, i):
        appends, before = self.next_turn(), self.last
        body = {"messages": self.messages, "tools": TOOLS, "max_tokens": 48, "temperature": 0.7, "seed": i}
        body |= {"logit_bias": {str(self.end): 4}, "return_token_ids": True}
        if self.rng.random() < 0.2:
            body["tool_choice"] = "required"
        if self.rng.random() < 0.5:
            body["parallel_tool_calls"] = False
        r = self.server.ok("/v1/chat/completions", body)
        choice = r["choices"][0]
        self.last = {
            "prompt": r["prompt_token_ids"],
            "answer": choice["token_ids"],
            "message": choice["message"],
            "whole": choice["finish_reason"] in ("stop", "tool_calls"),
            # where the end is forced, the token before it was never computed
            "uncomputed": "tool_choice" in body,
        }
        self.turns.append((self.last["prompt"], self.last["answer"]))
        if appends and before["whole"]:
            held = before["prompt"] + [t for t in before["answer"] if t != self.end]
            cached = r["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.grown += 1
            self.n_anew += self.is_anew
            self.found += cached >= len(held) - before["uncomputed"] and self.last["prompt"][: len(held)] == held

    def run(self, is_enough):
        try:
            i = 0
            while i < TURNS or (not is_enough(self) and i < 5 * TURNS):
                self.turn(i)
                i += 1
        except Exception as e:  # told by the test, which waits for all
            self.error = e


def run_all(clients, is_enough):
    threads = [threading.Thread(target=c.run, args=(is_enough,)) for c in clients]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for c in clients:
        assert c.error is None, "client %s, seed %d: %r" % (c.name, SEED, c.error)


def end_token(server):
    (end,) = server.ok("/tokenize", {"content": "<|im_end|>", "parse_special": True})["tokens"]
    return end


def test_two_clients_share_a_server_and_nothing_of_what_they_say():
    servers = [Server(*FLAGS, model=MODEL) for _ in range(3)]
    try:
        end = end_token(servers[0])
        together = [Client(servers[0], name, end) for name in "ab"]
        apart = [Client(server, name, end) for server, name in zip(servers[1:], "ab", strict=True)]
        run_all(together + apart, lambda c: c.n_anew >= LEAST_ANEW)
        for one, other in zip(together, apart, strict=True):
            for i, (x, y) in enumerate(zip(one.turns, other.turns, strict=True)):
                assert x == y, "client %s, turn %d, seed %d" % (one.name, i, SEED)
            for c in one, other:
                assert c.found == c.grown, "%d of %d, seed %d" % (c.found, c.grown, SEED)
                assert c.n_anew >= LEAST_ANEW, "%d of %d turns, seed %d" % (c.n_anew, len(c.turns), SEED)
        print(
            "%d + %d turns: prompts as apart; all of %d + %d that only appended found whole, %d + %d of them behind calls "
            "spelled anew"
            % (
                *[len(c.turns) for c in together],
                *[c.grown for c in together],
                *[c.n_anew for c in together],
            )
        )
    finally:
        status = [s.stop() for s in servers]
    assert status == [0, 0, 0]


def test_without_replay_what_was_spelled_anew_is_not_found():
    """What the other test counts can fail."""
    server = Server(*FLAGS, "--no-replay", model=MODEL)
    try:
        client = Client(server, "a", end_token(server))
        run_all([client], lambda c: c.found < c.grown)
        assert client.found < client.grown
    finally:
        assert server.stop() == 0
