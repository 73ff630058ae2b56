"""tools/bridges/: what they share, with a toy engine; and, with RADISH_LONG=1, those whose engines are there, with SmolLM2.

RADISH_BRIDGE_PYTHON: the interpreter that has the engines (default: this one). It needs one of llama_cpp, mlx_lm, transformers with
torch; for the last two gguf_to_hub.py makes a directory of SmolLM2. What is not there is skipped, and named.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from radish_server import ROOT, Server, model_path

LONG = os.environ.get("RADISH_LONG") == "1"
PYTHON = os.environ.get("RADISH_BRIDGE_PYTHON", sys.executable)
ENGINES = {"llama_cpp": "llama_cpp", "mlx_lm": "mlx_lm", "transformers": "torch, transformers"}


def has(module):
    return subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


FOUND = [name for name, module in ENGINES.items() if LONG and has(module)]


def ask(server, text, **more):
    return server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more})


def test_what_bridges_share(make_server):
    s = make_server("--backend", f"process:{sys.executable} {ROOT / 'tests/server/toy_bridge.py'}", model=Path("toy"))
    status, r = ask(s, "one two")
    assert status == 200 and r["choices"][0]["message"]["content"] == "one two ", r
    assert r["usage"]["prompt_tokens"] == 2 and r["usage"]["completion_tokens"] == 2
    assert ask(s, "one two", max_tokens=1)[1]["choices"][0]["finish_reason"] == "length"
    status, r = ask(s, "x REFUSE")
    assert status == 400 and r["error"]["message"] == "too long"
    status, r = ask(s, "x RAISE")
    assert status == 503 and r["error"]["message"] == "toy: ValueError"  # and nothing of what it said
    for _ in range(20):
        s.open_request(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "a LONG"}], "stream": True}
        ).close()
    s.wait_until(lambda: s.active() == 0)
    assert ask(s, "still here")[1]["choices"][0]["message"]["content"] == "still here "
    assert s.ok("/tokenize", {"content": "ab"})["tokens"] == [97, 98]
    assert s.stats()["process"]["starts"] == 1


@pytest.fixture(scope="session")
def hub_dir(tmp_path_factory):
    """SmolLM2 as it comes from the hub."""
    out = tmp_path_factory.mktemp("hub") / "smollm2"
    subprocess.run(
        [sys.executable, ROOT / "tests/golden/gguf_to_hub.py", model_path(), out, "--type", "f16"], check=True
    )
    template = out / "chat_template.jinja"
    if not template.exists():
        config = out / "tokenizer_config.json"
        assert "chat_template" in json.loads(config.read_text())
    return out


@pytest.mark.parametrize("name", ENGINES)
def test_a_real_model(make_server, request, name):
    """Chat, stream, seed, stop strings, cancel, tokens and classes."""
    if name not in FOUND:
        pytest.skip(f"{PYTHON} (RADISH_BRIDGE_PYTHON) has no {ENGINES[name]}" if LONG else "RADISH_LONG=1 only")
    model = Path(model_path()) if name == "llama_cpp" else request.getfixturevalue("hub_dir")
    s = make_server(
        "--backend",
        f"process:{PYTHON} {ROOT / f'tools/bridges/{name}_bridge.py'}",
        model=model,
        env={"OMP_NUM_THREADS": "2"},
    )
    wish = {"temperature": 0, "max_tokens": 16}
    status, r = ask(s, "What is the capital of France?", **wish)
    assert status == 200 and "Paris" in r["choices"][0]["message"]["content"], r
    assert r["usage"]["prompt_tokens"] > 20 and 0 < r["usage"]["completion_tokens"] <= 16
    chunks = s.stream(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "What is the capital of France?"}], **wish}
    )
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text == r["choices"][0]["message"]["content"] and len(chunks) > 5
    drawn = [
        ask(s, "Tell me a story", seed=7, temperature=1, max_tokens=12)[1]["choices"][0]["message"]["content"]
        for _ in "ab"
    ]
    assert drawn[0] == drawn[1]
    cut = ask(s, "What is the capital of France?", stop=["Paris"], **wish)[1]["choices"][0]
    assert "Paris" not in cut["message"]["content"] and cut["finish_reason"] == "stop"
    for _ in range(5):
        s.open_request(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "Count to 1000"}], "stream": True}
        ).close()
    s.wait_until(lambda: s.active() == 0)
    ids = s.ok("/tokenize", {"content": "Hello world"})["tokens"]
    assert len(ids) == 2 and s.ok("/detokenize", {"tokens": ids})["content"] == "Hello world"
    assert s.ok("/v1/completions", {"prompt": "The capital of France is", **wish})["choices"][0]["text"]
    assert s.stats()["process"]["starts"] == 1
    assert s.get("/health")[0] == 200
