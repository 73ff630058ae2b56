#!/usr/bin/env python3
"""What a storm of requests gets, each of them gets alone: bodies drawn from the table of parameters, in every combination of it.

    tests/attack/alike.py [--requests N] [--clients C] [--seed S] [--kind text|ranks|sees|windows|real] [--family F] [--model FILE]

Clients send at once what a seed draws, to a server on few pages whose flags the seed draws, too: every API that generates,
valid and odd values of any number of fields together, adapters by name and by list, salts, named caches, forms, tools, shifts,
images, streams. Some hang up; meanwhile adapters are loaded and unloaded, named caches saved and dropped, the cache is cleared
and explained. Each answer is then asked for on a fresh server, one after the other, whole and without its cache: status, text,
tokens, calls, log probabilities and how it ended must be the same, to the bit. In between the pages add up, nothing stays
locked, descriptors are what they were, and the server ends with 0. RADISH_BUILD=build/server-asan: with sanitizers. Prints its
figures and what differs; exit 1 where something does. (kind real: a model of one's own, no adapters.)
"""

import argparse
import collections
import contextlib
import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))
from lora_files import SHAPES, write_peft  # noqa: E402
from radish_server import BUILD, JSON, ROOT, TINY, Server  # noqa: E402
from vision_model import b64, make_model, picture, url  # noqa: E402

TABLE = json.loads(subprocess.run([BUILD / "radish", "api"], check=True, capture_output=True).stdout)
PATHS = {e["name"]: e["path"] for e in TABLE["endpoints"]}
GENERATE = ["chat", "completions", "completion", "messages", "responses", "ollama_chat", "ollama_generate"]
APIS = GENERATE * 4 + ["embeddings", "classify", "rerank", "score"]
WORDS = "a b c d e f g h the of and to in is it".split()
# Fields that are drawn below, or that make an answer depend on more than its own body.
APART = set(
    "model messages prompt input system instructions previous_response_id stream background conversation query documents "
    "labels template context suffix images raw lora cache_salt cache_name truncation replay tools tool_choice seed n options "
    "diagnostics cache_prompt speculation temperature context_shift mm_processor_kwargs max_completion_tokens n_predict n_cmpl "
    "response_fields timings_per_token".split()
)
FORMS = [
    {"regex": "[a-f]{3,9}"},
    {"choice": ["a b", "c", "the"]},
    {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"response_format": {"type": "json_object"}},
    {"grammar": 'root ::= ("a" | "b" root)'},
    {"guided_json": {"enum": ["a", 1]}},
]
CALL = {"name": "look", "parameters": {"type": "object", "properties": {"p": {"type": "string"}}}}
# What no answer may depend on.
FLAGS = [
    ["--threads", "1"],
    ["--max-running", "3"],
    ["--max-chunk", "16"],
    ["--step-ms", "1"],
    ["--isolate"],
    ["--cache-verify", "0.5"],
    ["--io-threads", "2"],
    ["--page-tokens", "8"],
    ["--no-speculation"],
    ["--cache-ttl", "1"],
    ["--no-disk-cache"],
    ["--draft", str(TINY)],
    ["--lora-bytes", "100k"],  # two adapters of the tiny model
    ["--tp", "2"],
    ["--threads", "2", "--no-packed-cache"],
    ["--cpu-isa", "ref"],
]
# What answers may depend on: both servers have the same.
BOTH = [
    ["--kv-type", "bf16"],
    ["--kv-type", "f32"],
    ["--context-shift"],
    ["--sort-keys"],
    ["--no-normalise"],
]
KEPT = set(
    "choices content tokens stop_type stopping_word completion_probabilities output message response done_reason status incomplete_details stop_reason stop_sequence data results "
    "embeddings error logprobs prompt_logprobs".split()
)
OF_THE_MOMENT = {"id", "call_id", "created", "created_at", "completed_at", "timings", "usage"}
REFUSED = (429, 503)  # by the load, not for what the request says
OF_THE_LOAD = ("try again", "queue", "device error")  # the same in a stream


def text(rnd, most=40):
    """Words, of which some begin as others do."""
    shared = random.Random(rnd.randrange(6))
    begin = [shared.choice(WORDS) for _ in range(shared.randrange(30))]
    return " ".join(begin + [rnd.choice(WORDS) for _ in range(rnd.randrange(1, most))])


def drawn(rnd, row):
    """A value that the row takes, mostly."""
    kind = rnd.choice(row["types"])
    if row["choices"] and kind == "string":
        return rnd.choice(row["choices"])
    if kind == "bool":
        return rnd.random() < 0.5
    if kind in ("integer", "number"):
        low, high = row.get("min", -3), row.get("max", 40)
        value = rnd.choice([low, high] + [min(high, max(low, x)) for x in (0, 1, rnd.randrange(40))])
        return rnd.uniform(low, high) if kind == "number" and high - low < 1000 and rnd.random() < 0.3 else int(value)
    if kind == "string":
        return text(rnd, 4)
    if kind != "list":
        return {}
    item, n = rnd.choice(row["items"] or ["string"]), rnd.randrange(max(1, row.get("min_items", 0)), 4)
    of = {
        "integer": lambda: rnd.randrange(96),
        "list": lambda: [rnd.randrange(96), rnd.choice([-100, 5, 2.5, False])],
        "string": lambda: rnd.choice(WORDS),
    }
    return [of.get(item, dict)() for _ in range(n)]


class Drawer:
    """Bodies from the table."""

    def __init__(self, kind):
        self.has_adapters = kind != "real"
        self.pictures = [picture(i, 32 + 16 * (i % 3), 32 + 8 * (i % 4)) for i in range(6)] if kind == "sees" else []
        rows = [r for r in TABLE["parameters"] if "." not in r["name"] and r["name"] not in APART]
        self.rows = {api: [r for r in rows if api in r["endpoints"]] for api in APIS}

    def content(self, rnd, api):
        if not self.pictures or rnd.random() < 0.3:
            return text(rnd)
        words, image = {"type": "text", "text": text(rnd, 12)}, rnd.choice(self.pictures)
        if api == "messages":
            part = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64(image)}}
        elif api == "responses":
            words["type"] = "input_text"
            part = {"type": "input_image", "image_url": url(image)}
        else:
            part = {"type": "image_url", "image_url": {"url": url(image)}}
        parts = [part, words] + ([part] if rnd.random() < 0.3 else [])
        rnd.shuffle(parts)
        return parts

    def turns(self, rnd, api):
        out = [{"role": "user", "content": self.content(rnd, api)}]
        for _ in range(rnd.choice([0, 0, 1, 2])):
            out += [{"role": "assistant", "content": text(rnd, 9)}, {"role": "user", "content": self.content(rnd, api)}]
        if api in ("chat", "ollama_chat") and rnd.random() < 0.3:
            out.insert(0, {"role": "system", "content": text(rnd, 9)})
        for m in out if api == "ollama_chat" else []:
            if isinstance(m["content"], list):
                m["images"] = [p["image_url"]["url"].split(",", 1)[1] for p in m["content"] if "image_url" in p]
                m["content"] = next(p["text"] for p in m["content"] if "text" in p)
        return out

    def prompt(self, rnd):
        if rnd.random() < 0.2:
            return [text(rnd), text(rnd)]
        return text(rnd) if rnd.random() < 0.5 else [rnd.randrange(3, 96) for _ in range(rnd.randrange(1, 60))]

    def body(self, rnd):
        """(path, body)"""
        api = rnd.choice(APIS)
        rows = self.rows[api]
        b = {r["name"]: drawn(rnd, r) for r in rnd.sample(rows, min(len(rows), rnd.choice([0, 0, 1, 2, 4, 9])))}
        if api in ("chat", "messages", "ollama_chat"):
            b["messages"] = self.turns(rnd, api)
        elif api == "responses":
            b |= {"input": text(rnd) if rnd.random() < 0.4 else self.turns(rnd, api), "store": rnd.random() < 0.2}
            b |= {"instructions": text(rnd, 8)} if rnd.random() < 0.3 else {}
            b |= {"truncation": rnd.choice(["auto", "disabled"])} if rnd.random() < 0.3 else {}
        elif api == "ollama_generate":
            b["prompt"] = text(rnd)
        elif api == "embeddings":
            b["input"] = self.prompt(rnd)
        elif api == "classify":
            b |= {"input": text(rnd), "labels": ["a", "b c"]}
        elif api == "rerank":
            b |= {"query": text(rnd, 5), "documents": [text(rnd) for _ in range(rnd.randrange(1, 5))]}
        elif api == "score":
            b |= {"text_1": text(rnd, 5), "text_2": [text(rnd) for _ in range(rnd.randrange(1, 5))]}
        else:
            b["prompt"] = self.prompt(rnd)
        if api in GENERATE:
            self.generating(rnd, api, b)
        return PATHS[api], b

    def generating(self, rnd, api, b):
        how = {"temperature": 0 if rnd.random() < 0.6 else rnd.uniform(0.2, 2), "seed": rnd.randrange(1000)}
        n = rnd.choice([1, 4, 16, 40, 90])
        b["stream"] = False
        if api.startswith("ollama"):
            b["options"] = how | {"num_predict": n}
            if "format" in b:
                b["format"] = rnd.choice(["json", {"type": "object", "properties": {"a": {"enum": [1, "b"]}}}])
            return
        # replay: what this server said before comes back as it was sampled, which another one cannot know
        b |= how | {"max_output_tokens" if api == "responses" else "max_tokens": n, "replay": False}
        if self.has_adapters and rnd.random() < 0.5:
            b["model"] = rnd.choice(["a0", "a1", "a2", "base:a0"])
        if self.has_adapters and rnd.random() < 0.2:
            one, two = {"id": 0, "scale": rnd.choice([0, 0.5, 1, -1, 2])}, {"id": 1, "scale": 0.25}
            b["lora"] = rnd.choice([[], [one], [one, two]])
        for share, more in (
            (0.3, {"cache_salt": "salt %d" % rnd.randrange(3)}),
            (0.2, {"cache_name": "name %d" % rnd.randrange(3)}),
            (0.2, {"context_shift": True}),
            (0.3 if api in ("chat", "completions") else 0, {"n": rnd.randrange(1, 4)}),
            (0.25 if api != "messages" else 0, rnd.choice(FORMS)),
            (0.1 if api == "chat" else 0, {"tools": [{"type": "function", "function": CALL}]}),
            (0.1 if api == "chat" else 0, {"tool_choice": rnd.choice(["auto", "required", "none"])}),
        ):
            b |= more if rnd.random() < share else {}


# ---- what of an answer may not depend on who else is there ----


def without(x, names):
    if isinstance(x, dict):
        return {k: without(v, names) for k, v in x.items() if k not in names}
    return [without(v, names) for v in x] if isinstance(x, list) else x


def essence(status, answer):
    def kept(a):
        return {k: v for k, v in a.items() if k in KEPT} if isinstance(a, dict) else a

    a = json.loads(answer)
    return status, without([kept(x) for x in a] if isinstance(a, list) else kept(a), OF_THE_MOMENT)


def add_choice(o, c):
    m, p = c.get("delta") or c.get("message") or {"content": c.get("text")}, c.get("logprobs") or {}
    for k in ("content", "reasoning_content"):
        o[k] += m.get(k) or ""
    for i, call in enumerate(m.get("tool_calls") or []):
        f = call["function"]
        o["call %d" % call.get("index", i)] += (f.get("name") or "") + (f.get("arguments") or "")
    for k in ("content", "tokens", "token_logprobs", "top_logprobs", "text_offset"):
        o["logprobs " + k] += "".join(json.dumps(x) for x in p.get(k) or [])
    o["end"] += "%s%s" % (c.get("finish_reason") or "", c.get("stop_reason") or "")


def add_message(out, e):
    """Of /v1/messages, an event or the whole."""
    kind = e["type"]
    if kind == "message":
        for i, b in enumerate(e["content"]):
            called = b["name"] + json.dumps(b["input"]) if b["type"] == "tool_use" else ""
            out[i]["text"] += b.get("text") or b.get("thinking") or called
        out["end"]["end"] = "%s %s" % (e["stop_reason"], e["stop_sequence"])
    elif kind == "content_block_start" and e["content_block"]["type"] == "tool_use":
        out[e["index"]]["text"] += e["content_block"]["name"]
    elif kind == "content_block_delta":
        out[e["index"]]["text"] += "".join(e["delta"].get(k) or "" for k in ("text", "thinking", "partial_json"))
    elif kind == "message_delta":
        out["end"]["end"] = "%s %s" % (e["delta"]["stop_reason"], e["delta"]["stop_sequence"])


def add_response(out, e):
    """Of /v1/responses, an event or the whole."""
    whole = e.get("object") == "response"
    if whole or e["type"] in ("response.completed", "response.incomplete"):
        r = e if whole else e["response"]
        out["end"]["end"] = r["status"] + json.dumps(r["incomplete_details"])
        for i, item in enumerate(r["output"]):
            out[i]["item"] = json.dumps(without(item, OF_THE_MOMENT))
    if whole:
        out["text"]["text"] = "".join(c["text"] for i in e["output"] if i["type"] == "message" for c in i["content"])
    elif e["type"] == "response.output_text.delta":
        out["text"]["text"] += e["delta"]


def add_piece(o, e):
    """Of llama-server's, or the whole."""
    o["content"] += e["content"]
    o["logprobs"] += "".join(json.dumps(x) for x in e.get("completion_probabilities") or [])
    o["end"] += "%s%s" % (e.get("stop_type", ""), e.get("stopping_word", ""))


def add_line(o, e):
    """Of Ollama's."""
    m = e.get("message", {"content": e.get("response", ""), "thinking": e.get("thinking", "")})
    for k in ("content", "thinking"):
        o[k] += m.get(k) or ""
    o["calls"] += "".join(json.dumps(x) for x in m.get("tool_calls") or [])
    o["logprobs"] += "".join(json.dumps(x) for x in e.get("logprobs") or [])
    o["end"] += e.get("done_reason") or ""


def said(error):
    return error if isinstance(error, str) else error["message"]


def joined(path, answer):
    """A stream, or a whole answer: texts, calls, log probabilities, ends; or the error that a stream ended with."""
    lines = answer.decode().split("\n")
    if path.startswith("/api/") or answer.startswith((b"{", b"[")):
        events = [json.loads(x) for x in lines if x]
        events = events[0] if isinstance(events[0], list) else events
    else:
        events = [json.loads(x[6:]) for x in lines if x.startswith("data: ") and x != "data: [DONE]"]
    out = collections.defaultdict(lambda: collections.defaultdict(str))
    for e in events:
        if e.get("error") or e.get("type") == "response.failed":
            return said(e.get("error") or e["response"]["error"])
        if path.startswith("/api/"):
            add_line(out[0], e)
        elif path == "/v1/messages":
            add_message(out, e)
        elif path == "/v1/responses":
            add_response(out, e)
        elif path == "/completion":
            add_piece(out[e["index"]], e)
        else:
            for c in e["choices"]:
                add_choice(out[c["index"]], c)
    return {str(k): {n: x for n, x in v.items() if x} for k, v in sorted(out.items(), key=str) if any(v.values())}


def shapes_of(model):
    """(n_out, n_in) of a layer's matrices of a model's directory."""
    config = json.loads((model / "config.json").read_text())
    c = config.get("text_config", config)
    hidden, ffn, n_heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    head = c.get("head_dim") or hidden // n_heads
    q, kv = n_heads * head, c["num_key_value_heads"] * head
    rows = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q)}
    mlp = {"gate_proj": (ffn, hidden), "up_proj": (ffn, hidden), "down_proj": (hidden, ffn)}
    return {f"self_attn.{k}": v for k, v in rows.items()} | {f"mlp.{k}": v for k, v in mlp.items()}


class Storm:
    def __init__(self, a, folder):
        self.a, self.folder, self.rnd = a, folder, random.Random(a.seed)
        a.family = a.family or {"sees": "qwen2vl", "windows": "gemma3"}.get(a.kind)
        self.drawer, self.model, self.flags = Drawer(a.kind), Path(a.model) if a.model else TINY, ["--model-id", "base"]
        if a.kind == "sees":
            self.model = make_model(folder, a.family)
            self.flags += ["--ctx", "600"]
        elif a.kind == "windows":
            self.model = ROOT / f"tests/golden/{a.family}/tiny-{a.family}.gguf"
        if self.drawer.has_adapters:
            self.add_adapters(folder)
        if a.kind not in ("sees", "real"):  # an explanation of tools is too long for the tiny model
            self.flags += ["--chat-template", str(ROOT / "tests/api/tools.jinja")]
        self.lock, self.got, self.counts, self.failures = threading.Lock(), [], collections.Counter(), []
        self.server = None

    def add_adapters(self, folder):
        """a0, a1, a2 from the start, a3 for those who load and unload it. Of families but the tiny one's a file has several names."""
        paths, scales = [folder / f"a{i}" for i in range(4)], [""] * 3
        if self.a.kind == "windows":
            paths, scales = [ROOT / "tests/golden/lora" / self.a.family] * 3, ["", ":0.5", ":-2"]
            shutil.copytree(paths[0], folder / "a3")
        else:
            shapes = shapes_of(self.model) if self.a.kind == "sees" else SHAPES
            for i, path in enumerate(paths):
                write_peft(path, i, shapes=shapes)
        self.flags += [x for i in range(3) for x in ("--lora", f"a{i}={paths[i]}{scales[i]}")]
        self.flags += ["--lora-dir", str(folder)]

    def count(self, what):
        with self.lock:
            self.counts[str(what)] += 1

    def fail(self, what):
        with self.lock:
            self.failures.append(what)

    def one(self, rnd):
        path, body = self.drawer.body(rnd)
        act = rnd.random()
        can_stream = "stream" in body and "prompt_logprobs" not in body and "best_of" not in body
        sent = body | {"stream": True} if act < 0.4 and can_stream else body
        with contextlib.closing(self.server.connect()) as c:
            c.request("POST", path, json.dumps(sent).encode(), JSON)
            if act < 0.1:  # hangs up, at once or within the answer
                if act < 0.05:
                    c.getresponse().read(50)
                return self.count("hung up")
            r = c.getresponse()
            status, answer = r.status, r.read()
        self.count(status)
        if status in REFUSED:
            return None
        if status >= 500:
            return self.fail(f"{status} {answer[:300]} {path} {json.dumps(sent)[:2000]}")
        streamed = sent is not body and status == 200
        was = joined(path, answer) if streamed else essence(status, answer)
        if isinstance(was, str):
            self.count("error in a stream")
            if any(x in was for x in OF_THE_LOAD):
                return None
        with self.lock:
            self.got.append((path, body, streamed, was))

    def client(self, seed):
        rnd = random.Random(seed)
        for _ in range(self.a.requests // self.a.clients):
            if self.server.process.poll() is not None:
                return
            try:
                self.one(rnd)
            except (OSError, http.client.HTTPException) as e:
                self.fail(f"{type(e).__name__}: {e}")

    def meddle(self, done):
        """Nothing that a request says is changed by it."""
        rnd = random.Random(self.a.seed)
        while not done.wait(0.03) and self.server.process.poll() is None:
            act, name = rnd.randrange(8), {"cache_name": "name %d" % rnd.randrange(3)}
            if act == 0 and self.drawer.has_adapters:
                self.server.post("/v1/load_lora_adapter", {"lora_name": "a3", "lora_path": "a3"})
            elif act == 1 and self.drawer.has_adapters:
                self.server.post("/v1/unload_lora_adapter", {"lora_name": "a3"})
            elif act < 5:
                self.server.post("/v1/cache/names/" + ("drop" if act < 4 else "save"), name)
            elif act == 5 and rnd.random() < 0.3:
                self.server.request("DELETE", "/v1/cache")
            else:
                path, body = self.drawer.body(rnd)
                self.server.post("/v1/cache/explain", body)
                self.server.get("/v1/cache")

    def run(self):
        chosen = [f for f in FLAGS if self.rnd.random() < 0.25]
        if self.rnd.random() < 0.5:
            self.flags += self.rnd.choice(BOTH)
        # the draft has the tiny model's vocabulary
        flags = [x for f in chosen if f[0] != "--draft" or self.model == TINY for x in f]
        print("alike: seed", self.a.seed, "flags", *self.flags, "--", *flags, flush=True)
        pages = ["--kv-tokens", str(self.a.kv_tokens), "--cache-dir", str(self.folder / "kv"), "--cache-disk", "8M"]
        ranks = ["--tp", "2"] if self.a.kind == "ranks" else []
        with open(self.folder / "log", "wb") as log:
            self.server = Server(*self.flags, *ranks, *pages, *flags, model=self.model, log=log)
        n_files = len(os.listdir(f"/proc/{self.server.process.pid}/fd"))
        done = threading.Event()
        clients = [
            threading.Thread(target=self.client, args=(self.a.seed * 1000 + i,), daemon=True)
            for i in range(self.a.clients)
        ]
        meddler = threading.Thread(target=self.meddle, args=(done,), daemon=True)
        for t in [meddler, *clients]:
            t.start()
        for t in clients:
            t.join()
        done.set()
        meddler.join()
        if self.server.process.poll() is None:
            self.settle(n_files)
        if code := self.server.process.wait():
            self.fail(f"exit status {code}; " + (self.folder / "log").read_text(errors="replace")[-6000:])
        self.compare()

    def settle(self, n_files):
        """What is left when everybody has gone."""
        self.server.wait_idle(120)
        left = len(os.listdir(f"/proc/{self.server.process.pid}/fd"))
        if left > n_files + 4:
            self.fail(f"descriptors: {n_files}, then {left}")
        stats = self.server.stats()
        if errors := stats["engine"]["accounting_errors"] + stats["verify"]["mismatches"]:
            self.fail(f"{errors} errors of accounts or of what was computed again")
        self.server.stop()

    def compare(self):
        alone = Server(*self.flags, "--kv-tokens", "16384", "--no-disk-cache", model=self.model)
        seen, end = set(), time.monotonic() + self.a.compare_seconds
        for path, body, streamed, was in self.got:
            key = path + str(streamed) + json.dumps(body, sort_keys=True)
            if key in seen or time.monotonic() > end:
                continue
            seen.add(key)
            uncached = {"cache_prompt": False} if "replay" in body else {}
            status, _, answer = alone.request("POST", path, body | uncached)
            now = joined(path, answer) if streamed and status == 200 else essence(status, answer)
            if isinstance(was, str) and status != 200:
                now = said(json.loads(answer)["error"])
            if now != was:
                self.count("differ")
                self.fail(
                    f"differs: {path} {json.dumps(body)[:2000]}\n   {'streamed' if streamed else 'storm'}: "
                    f"{json.dumps(was)[:1500]}\n   alone: {json.dumps(now)[:1500]}"
                )
        self.counts["compared"] = len(seen)
        alone.stop()


def storm(requests=1000, clients=12, seed=1, kind="text", family=None, model=None, kv_tokens=1024, compare_seconds=1e9):
    """Its counts; what was wrong is raised."""
    with tempfile.TemporaryDirectory() as folder:
        s = Storm(argparse.Namespace(**locals()), Path(folder))
        try:
            s.run()
        finally:
            if s.server and s.server.process.poll() is None:
                s.server.process.kill()
                s.server.process.wait()
        print(json.dumps(s.counts))
        assert not s.failures, "\n".join(s.failures[:5])
        return s.counts


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--requests", type=int, default=20000)
    p.add_argument("--compare-seconds", type=float, default=1e9)
    p.add_argument("--clients", type=int, default=12)
    p.add_argument("--seed", type=int, default=int(time.time()))
    p.add_argument("--kind", default="text", choices=["text", "ranks", "sees", "windows", "real"])
    p.add_argument("--family", help="of kinds sees and windows")
    p.add_argument("--kv-tokens", type=int, default=1024)
    p.add_argument("--model", help="a model file in place of the tiny one")
    try:
        storm(**vars(p.parse_args()))
    except AssertionError as e:
        print("alike:", e)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
