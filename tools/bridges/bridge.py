"""What the bridges share: the protocol of docs/process-backend.md, so that a bridge is what its engine does.

One request is computed at a time. Lines are read by a thread of its own, so that a request is answered for, and a cancel seen,
while another is computed. What an engine prints goes to stderr, never between the lines.
"""

import contextlib
import json
import os
import queue
import sys
import threading
import traceback


class Refused(Exception):
    """Of a request: code (docs/process-backend.md) and what to tell."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Request:
    """prompt, is_whole, max_tokens (None: no limit), sampling; the bridge sets n_prompt, n_cached and finish."""

    def __init__(self, q):
        self.id = q["id"]
        self.prompt, self.is_whole = q["prompt"], q.get("is_whole", False)
        self.max_tokens, self.sampling = q.get("max_tokens"), q.get("sampling", {})
        self.n_prompt = self.n_cached = self.n_text = 0
        self.finish = "stop"
        self.cancelled = threading.Event()


class Bridge:
    """name, version; then load(q) -> members of "loaded"; generate(request) yields (text, tokens); calls are methods by op."""

    name, version, parameters = "bridge", "0", ["seed"]
    ops = ["generate", "info"]

    def load(self, q):
        raise NotImplementedError

    def generate(self, request):
        raise NotImplementedError

    def info(self, q):
        return {"name": self.name, "version": self.version}

    def metrics(self, q):
        with open("/proc/self/statm") as f:
            return {"memory_bytes": int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")}

    def batch(self, q):
        return {"results": [getattr(self, r["op"])(r) for r in q["requests"]]}

    def without_bos(self, prompt, bos):
        """A whole prompt that a template wrote may begin with BOS: then none is added."""
        return prompt.removeprefix(bos) if bos else prompt


class Server:
    def __init__(self, bridge):
        self.bridge = bridge
        self.out = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
        os.dup2(2, 1)
        self.lock = threading.Lock()
        self.requests = {}
        self.work = queue.SimpleQueue()

    def say(self, **event):
        with self.lock:
            self.out.write(json.dumps(event) + "\n")
            self.out.flush()

    def read(self):
        """Does not return: when radish has gone, or said so, nothing that is computed is of use."""
        try:
            self.read_lines()
            os._exit(0)
        except Exception:
            traceback.print_exc()
            os._exit(1)

    def read_lines(self):
        for line in sys.stdin:
            q = json.loads(line)
            if q["op"] == "quit":
                break
            if q["op"] == "cancel":
                request = self.requests.get(q["id"])
                if request:
                    request.cancelled.set()
                continue
            if q["op"] == "generate":
                request = self.requests[q["id"]] = Request(q)
                self.say(event="started", id=request.id)
                q = request
            self.work.put(q)

    def run(self, request):
        n = 0
        for text, n_tokens in self.bridge.generate(request):
            n += n_tokens
            if request.cancelled.is_set():
                request.finish = "cancelled"
                break
            if text or n_tokens:
                self.say(event="text", id=request.id, text=text, tokens=n_tokens)
        self.requests.pop(request.id)
        self.say(
            event="done",
            id=request.id,
            finish=request.finish,
            prompt_tokens=request.n_prompt,
            cached_tokens=request.n_cached,
            completion_tokens=n,
        )

    def answer(self, q):
        number = q.id if isinstance(q, Request) else q["id"]
        try:
            if isinstance(q, Request):
                self.run(q)
            elif q["op"] == "load":
                b = self.bridge
                about = {"name": b.name, "version": b.version, "ops": b.ops, "parameters": b.parameters}
                self.say(event="loaded", id=number, protocol=1, parallel=1, **about | b.load(q))
            elif q["op"] in self.bridge.ops:
                self.say(event="result", id=number, **getattr(self.bridge, q["op"])(q))
            else:
                raise Refused("unsupported", q["op"] + ": not in this bridge")
        except Refused as e:
            self.requests.pop(number, None)
            self.say(event="error", id=number, code=e.code, message=str(e))
        except Exception as e:
            self.requests.pop(number, None)
            traceback.print_exc()
            self.say(event="error", id=number, code="internal", message=f"{self.bridge.name}: {type(e).__name__}")


def serve(bridge):
    server = Server(bridge)
    threading.Thread(target=server.read, daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        while True:
            server.answer(server.work.get())
