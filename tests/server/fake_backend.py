#!/usr/bin/env python3
"""A program that speaks docs/process-backend.md, and breaks it when it is asked to.

    fake_backend.py [OPTION ...]        parallel=N, template, no-chat, load=FAULT, state=FILE

The last word of a prompt, or of the last message, says what happens: see FAULTS. Anything else is answered by "echo: " and the
prompt, a word at a time. state=FILE: a line for each start, and for each end of a request, so that a test can look.
"""

import json
import os
import sys
import threading
import time

OPTIONS = dict(a.partition("=")[::2] for a in sys.argv[1:])
STATE = OPTIONS.get("state")
PARALLEL = int(OPTIONS.get("parallel", "4"))
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if tools %}<tool_call>{% endif %}<assistant>"
)
lock = threading.Lock()
cancelled = set()
running = {}
peak = 0


def say(o):
    line = json.dumps(o) + "\n"
    with lock:
        sys.stdout.write(line)
        sys.stdout.flush()


def note(text):
    if STATE:
        with open(STATE, "a") as f:
            f.write(text + "\n")


def stop_here():
    os.kill(os.getpid(), 19)


def write_raw(text):
    with lock:
        sys.stdout.write(text)
        sys.stdout.flush()


def flood(i):
    while True:
        write_raw(json.dumps({"event": "text", "id": i, "text": "x" * 1000}) + "\n" * 1)


FAULTS = {
    "KILL": lambda i: os.kill(os.getpid(), 9),
    "EXIT": lambda i: os._exit(3),
    "STOP": lambda i: stop_here(),
    "HANG": lambda i: time.sleep(1000),
    "GARBAGE": lambda i: write_raw("this is not JSON\n"),
    "BINARY": lambda i: os.write(1, bytes(range(256)) + b"\n"),
    "HALF": lambda i: (write_raw('{"event":"text","id":%d,"te' % i), time.sleep(1000)),
    "LONG": lambda i: [write_raw("x" * 1_000_000) for _ in range(100)] + [write_raw("\n")],
    "FLOOD": flood,
    "LINES": lambda i: write_raw("\n" * 60000),
    "STRANGER": lambda i: say({"event": "text", "id": 987654321, "text": "?"}),
    "UNKNOWN": lambda i: say({"event": "dance", "id": i}),
    "CLOSE": lambda i: os.close(1),
}


def answer(i, prompt, limit, calls):
    word = prompt.split()[-1] if prompt.split() else ""
    say(
        {
            "event": "started",
            "id": i,
            "prompt_tokens": len(prompt.split()),
            "cached_tokens": 1 if "cached" in prompt else 0,
        }
    )
    if word in FAULTS:
        FAULTS[word](i)
        return
    if word == "REFUSE":
        say({"event": "error", "id": i, "code": "context", "message": "the prompt is too long"})
        return
    words = ["echo:"] + prompt.split()
    if calls:
        words = ['<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call>']
    if word == "ENDLESS":
        words = ["again"] * 1_000_000
    n = 0
    for w in words:
        if i in cancelled:
            say({"event": "done", "id": i, "finish": "cancelled", "completion_tokens": n})
            return
        if limit is not None and n >= limit and word != "BEYOND":
            say({"event": "done", "id": i, "finish": "length", "completion_tokens": n})
            return
        say({"event": "text", "id": i, "text": w if calls else w + " ", "tokens": 1})
        n += 1
        if word in ("ENDLESS", "SLOW", "BEYOND"):
            time.sleep(0.3 if word == "SLOW" else 0.002)
    say({"event": "done", "id": i, "finish": "stop", "completion_tokens": n, "prompt_tokens": len(prompt.split())})


def work(q, prompt):
    try:
        answer(q["id"], prompt, q.get("max_tokens"), "<tool_call>" in prompt or bool(q.get("tools")))
    finally:
        with lock:
            running.pop(q["id"], None)
        note("end %d" % q["id"])


def begin(q, prompt):
    global peak
    with lock:
        running[q["id"]] = True
        peak = max(peak, len(running))
    threading.Thread(target=work, args=(q, prompt), daemon=True).start()


def ops():
    all_ops = ["generate", "chat", "tokenize", "detokenize", "classify", "batch", "metrics"]
    return [o for o in all_ops if o != "chat" or "no-chat" not in OPTIONS]


def result(q):
    op = q["op"]
    if op == "tokenize":
        return {"tokens": list(q["text"].encode())}
    if op == "detokenize":
        return {"text": bytes(q["tokens"]).decode(errors="replace")}
    if op == "classify":
        return {"logprobs": [-abs(label - q["tokens"][-1]) - 0.5 for label in q["labels"]]}
    if op == "batch":
        return {"results": [result(r) for r in q["requests"]]}
    return {"running": len(running), "peak": peak, "memory_bytes": 12345678}


def load(q):
    fault = OPTIONS.get("load")
    if fault == "exit":
        sys.exit(5)
    if fault == "hang":
        time.sleep(1000)
    if fault == "error":
        say({"event": "error", "id": q["id"], "code": "internal", "message": "there is no such model"})
        time.sleep(1000)
    if fault == "later" and sum(1 for s in open(STATE) if s.startswith("start")) > 1:
        sys.exit(6)
    o = {
        "event": "loaded",
        "id": q["id"],
        "protocol": 2 if fault == "protocol" else 1,
        "name": "fake",
        "version": "1.0",
        "model": q["model"],
        "arch": "echo",
        "n_ctx": 4096,
        "n_vocab": 256,
        "parallel": PARALLEL,
        "ops": ops(),
        "parameters": ["seed"],
    }
    if "template" in OPTIONS:
        o["chat_template"] = TEMPLATE
    say(o)


def main():
    note("start %d" % os.getpid())
    print("fake backend: here I am", file=sys.stderr)
    for line in sys.stdin:
        q = json.loads(line)
        if q["op"] == "load":
            load(q)
        elif q["op"] == "generate":
            begin(q, q["prompt"])
        elif q["op"] == "chat":
            begin(q, q["messages"][-1]["content"])
        elif q["op"] == "cancel":
            cancelled.add(q["id"])
        elif q["op"] == "quit":
            note("quit")
            return
        else:
            say({"event": "result", "id": q["id"], **result(q)})


main()
