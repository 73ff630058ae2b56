"""Which feature works on which backend: asked of servers over each, and compared with the table of docs/backends.md.

RADISH_WRITE_TABLE=1 writes it there. A cell is "yes", or "no" where the server refuses with 400 and says why. Of a backend that
this build lacks nothing is asked: its column is what a build that has it wrote (RADISH_BUILD=build/mlx).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lora_files import write_peft
from radish_server import BUILD, ROOT, TINY, Server

PAGE = ROOT / "docs/backends.md"
BEGIN, END = "<!-- made by tests/server/test_backend_table.py -->\n", "<!-- end -->\n"
FAKE = f"process:{sys.executable} {ROOT / 'tests/server/fake_backend.py'} template"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SHORT = {"max_tokens": 4}


def chat(s, **more):
    return s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b"}], **SHORT, **more})


def completion(s, **more):
    return s.post("/v1/completions", {"prompt": "a b c", **SHORT, **more})


def streams(s):
    body = {"messages": [{"role": "user", "content": "a b"}], **SHORT}
    return (200, {}) if len(s.stream("/v1/chat/completions", body)) > 2 else (500, {})


def cancels(s):
    body = {"messages": [{"role": "user", "content": "a b ENDLESS"}], "stream": True, "max_tokens": 200}
    s.open_request("/v1/chat/completions", body).close()
    s.wait_until(lambda: s.active() == 0)
    return 200, {}


def hits(s):
    prompt = {"prompt": "a b c d e f g h i j k l m n o p", "max_tokens": 1}
    s.ok("/v1/completions", prompt)
    used = s.ok("/v1/completions", prompt)["usage"]["prompt_tokens_details"]["cached_tokens"]
    return (200, {}) if used > 8 else (400, {"error": {"message": "nothing was cached"}})


def adapted(s):
    status, answer = s.post("/v1/load_lora_adapter", {"lora_name": "clerk", "lora_path": "clerk"})
    return (status, answer) if status != 200 else completion(s, model="clerk")


def explained(s):
    return s.post("/v1/cache/explain", {"messages": [{"role": "user", "content": "a"}]})


FEATURES = {
    "chat, completions": lambda s: max(chat(s), completion(s), key=lambda a: a[0]),
    "streams": streams,
    "a client that goes away ends its request": cancels,
    "several at once": lambda s: chat(s, n=2),
    "temperature, top_p, top_k, min_p, seed": lambda s: chat(s, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, seed=3),
    "the other samplers": lambda s: chat(s, mirostat=2, dry_multiplier=0.5),
    "stop strings": lambda s: chat(s, stop=["x"]),
    "tools": lambda s: chat(s, tools=[TOOL]),
    "forced calls": lambda s: chat(s, tools=[TOOL], tool_choice="required"),
    "JSON schemas and grammars": lambda s: chat(s, response_format={"type": "json_object"}),
    "logprobs": lambda s: chat(s, logprobs=True),
    "prompts of token ids": lambda s: completion(s, prompt=[5, 6, 7]),
    "tokenize, detokenize": lambda s: s.post("/tokenize", {"content": "ab"}),
    "LoRA adapters": adapted,
    "embeddings": lambda s: s.post("/v1/embeddings", {"input": "a b"}),
    "radish's cache of prompts": hits,
    "why a prompt missed": explained,
}


def ask(server, feature):
    status, answer = FEATURES[feature](server)
    assert status in (200, 400), (feature, status, answer)
    if status == 400:
        assert answer["error"]["message"]
    return "yes" if status == 200 else "no"


@pytest.fixture
def plain(tmp_path):
    """The example as its first lines say that it is made; a build with a sanitizer has no tests of its own."""
    out = tmp_path / "libradish-plain.so"
    line = [
        "cc",
        "-O3",
        "-shared",
        "-fPIC",
        f"-I{ROOT / 'include'}",
        ROOT / "examples/plain_backend.c",
        "-o",
        out,
        "-lm",
    ]
    subprocess.run(line, check=True)
    return out


def is_here(backend):
    report = subprocess.run([BUILD / "radish", "doctor", "--json"], capture_output=True, check=True)
    known = {b["name"]: b["available"] for b in json.loads(report.stdout)["backends"]}
    return known.get(backend, True)


def cells_of(table):
    """Row and column to what the cell says."""
    head, _, *rows = [[c.strip() for c in line.strip("|").split("|")] for line in table.strip().split("\n")]
    return {(row[0], column): cell for row in rows for column, cell in zip(head[1:], row[1:], strict=True)}


def test_the_table_of_the_page_is_what_the_servers_do(plain, tmp_path):
    write_peft(tmp_path / "adapters/clerk", 5)
    columns = {
        "cpu": ("cpu", TINY),
        "shared object": (str(plain), TINY),
        "process": (FAKE, Path("fake")),
        "mlx": ("mlx", TINY),
    }
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    old, after = rest.split(END)
    cells = cells_of(old)
    for column, (backend, model) in columns.items():
        if not is_here(backend):
            assert cells["exact", column], f"{column}: write it with a build that has it"
            continue
        flags = ["--ctx", "8192", "--kv-tokens", "16384", "--lora-dir", str(tmp_path / "adapters")]
        s = Server("--backend", backend, *flags, model=model)
        try:
            for feature in FEATURES:
                cells[feature, column] = ask(s, feature)
            cells["exact", column] = "yes" if s.get("/props")[1]["exact"] else "no"
        finally:
            assert s.stop() == 0
    rows = [*FEATURES, "exact"]
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    lines += [f"| {r} | " + " | ".join(cells[r, c] for c in columns) + " |" for r in rows]
    table = "\n".join(lines) + "\n"
    if os.environ.get("RADISH_WRITE_TABLE") == "1":
        PAGE.write_text(before + BEGIN + table + END + after)
        return
    assert old == table
