"""The scripts that bench/agent and bench/speculation play: a coding session with tools, and a file to be repeated."""

import json
import random

import bench_text

SYSTEM = """You are a coding agent that works in a repository through tools. Read before you write. Change as
little as the task needs, keep the style of the file, and run the tests after every change. Never
invent file contents. Say in one sentence what you are about to do, then call a tool. When the tests
pass, say what was changed and stop."""

TOOLS = (
    "read_file",
    "write_file",
    "apply_patch",
    "run_shell",
    "list_directory",
    "search_text",
    "run_tests",
    "git_diff",
)


def tool_schema(name, seed):
    r = random.Random(seed)
    keys = ["path", "pattern", "start_line", "end_line", "timeout_s", "recursive", "content", "reason"]
    properties = {
        k: {
            "type": r.choice(["string", "integer", "boolean"]),
            "description": "The %s: %s." % (k, bench_text.words(12, seed + i)),
        }
        for i, k in enumerate(keys)
    }
    about = "%s. %s." % (name.replace("_", " "), bench_text.words(30, seed))
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {"type": "object", "properties": properties, "required": keys[:2]},
        },
    }


def reordered(value, r):
    """The same JSON with the keys of every object in another order, as some clients send it each turn."""
    if isinstance(value, dict):
        keys = list(value)
        r.shuffle(keys)
        return {k: reordered(value[k], r) for k in keys}
    return [reordered(v, r) for v in value] if isinstance(value, list) else value


class Session:
    """A session of n_turns: every turn the whole history goes to the server, as agents do it. Clients of one seed have
    one system prompt and the same tools; `task` is what the user wants, `order` seeds what the client shuffles."""

    def __init__(
        self,
        seed=1,
        n_system_words=300,
        task="The tests of the parser fail since yesterday. Find out why and repair it.",
        order=1,
        volatile=True,
        reorder=True,
    ):
        self.random, self.turn = random.Random(order), 0
        self.volatile, self.reorder = volatile, reorder
        self.tools = [tool_schema(name, 100 * i) for i, name in enumerate(TOOLS)]
        self.system = SYSTEM + "\n\n" + bench_text.words(n_system_words, seed)
        self.history = [{"role": "user", "content": task}]

    def request(self, max_tokens):
        """The body of the next turn: the header of Claude Code's kind differs each time, and the keys of tools and of
        arguments move, as in clients that keep them in hash tables."""
        r = self.random
        header = "x-anthropic-billing-header: cc_version=2.1.177.%03x; cc_entrypoint=cli; cch=%05x;\n" % (
            r.getrandbits(12),
            r.getrandbits(20),
        )
        system = {"role": "system", "content": (header if self.volatile else "") + self.system}
        return {
            "messages": [system] + [self.sent(m) for m in self.history],
            "tools": [reordered(t, r) if self.reorder else t for t in self.tools],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream_options": {"include_usage": True},
        }

    def sent(self, message):
        """A message of the history as the client writes it today."""
        if not self.reorder or "tool_calls" not in message:
            return message
        calls = [
            {
                **c,
                "function": {
                    **c["function"],
                    "arguments": json.dumps(reordered(json.loads(c["function"]["arguments"]), self.random)),
                },
            }
            for c in message["tool_calls"]
        ]
        return {**message, "tool_calls": calls}

    def answer(self, text):
        """What the model said becomes history, with a scripted tool call, its result, and thoughts."""
        self.turn += 1
        arguments = {
            "path": "src/file_%d.c" % self.turn,
            "pattern": bench_text.words(2, self.turn),
            "start_line": self.turn,
        }
        call = {
            "id": "call_%d" % self.turn,
            "type": "function",
            "function": {"name": TOOLS[self.turn % len(TOOLS)], "arguments": json.dumps(arguments)},
        }
        self.history += [
            {
                "role": "assistant",
                "content": text or "I will look at the file.",
                "tool_calls": [call],
                "reasoning_content": "I should " + bench_text.words(40, 7 * self.turn) + ".",
            },
            {"role": "tool", "tool_call_id": call["id"], "content": bench_text.words(150, 11 * self.turn)},
        ]


def source_file(n_lines=200):
    """A file as a model is asked to repeat it."""
    lines = [
        "# inventory.py - items in a warehouse",
        "",
        "class Inventory:",
        "    def __init__(self):",
        "        self.items = {}",
    ]
    number = 0
    while len(lines) < n_lines:
        name = bench_text.words(1, 31 * number).strip()
        lines += [
            "",
            "    def %s_%d(self, key, count):" % (name, number),
            "        current = self.items.get(key, %d)" % (number * 7 % 13),
            "        if count > current + %d:" % (number * 5 % 17),
            '            raise ValueError("%s: not enough" % key)',
            "        self.items[key] = current - count",
            "        return self.items[key]",
        ]
        number += 1
    return "\n".join(lines[:n_lines]) + "\n"


def edit_request(n_lines=200):
    code = source_file(n_lines)
    task = "Rename the class Inventory to Warehouse in this file. Answer with the complete new file and nothing else."
    return "%s\n\n```python\n%s```\n" % (task, code), code


FREE = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle. Make it vivid and original.",
    "Explain to a curious teenager how a refrigerator moves heat from a cold place to a warm one.",
    "Compare three ways to travel from a small village to a big city, and say which you would take.",
)
