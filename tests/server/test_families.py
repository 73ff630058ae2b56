"""Every family's own vocabulary and chat template through the endpoints: /tokenize, /detokenize and /apply-template give what
the `tokenizers` package and jinja2 give.

The families' files are not part of the tree: RADISH_TOKENIZERS names their folder (default ../shared/tokenizers beside the
checkout). Where it is absent the templates and strings of the golden files are tried on the default model alone.
"""

import contextlib
import http.client
import json
import sys
import unicodedata

import pytest
from family_model import PRE, family_model, files
from radish_server import JSON, ROOT, Server
from tokenizers import Tokenizer

sys.path[:0] = [str(ROOT / "tests/golden/tokenizer"), str(ROOT / "tests/golden/templates")]
from hard_strings import hard_strings  # noqa: E402
from make_templates import from_config  # noqa: E402

CONVERSATIONS = json.loads((ROOT / "tests/golden/templates/conversations.json").read_text())
TEMPLATES = ROOT / "tests/golden/templates"
N_STRINGS = 150


class Asker:
    """Many small requests on one connection."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def __call__(self, path, body):
        self.connection.request("POST", path, json.dumps(body).encode(), JSON)
        r = self.connection.getresponse()
        return r.status, json.loads(r.read())

    def ok(self, path, body):
        status, answer = self(path, body)
        assert status == 200, answer
        return answer


@contextlib.contextmanager
def serving(model, *flags):
    s = Server("--threads", "1", "--kv-tokens", "4096", *flags, model=model)
    try:
        ask = Asker(s)
        yield ask
        ask.connection.close()
    finally:
        assert s.stop() == 0


def body_of(c):
    """A golden conversation as a request: the template sees the same variables."""
    last = c["messages"][-1]
    body = {
        "messages": c["messages"],
        "add_generation_prompt": c["add_generation_prompt"],
        "chat_template_kwargs": c.get("kwargs", {}),
    }
    if last["role"] == "assistant":
        body["continue_final_message"] = False
    return body | ({"tools": c["tools"]} if "tools" in c else {})


def is_plain(c):
    """What the server changes before it renders is tried in test_messages.py: no parts, nothing absent, arguments as objects."""
    calls = [call for m in c["messages"] for call in m.get("tool_calls", [])]
    return all(isinstance(m.get("content"), str) for m in c["messages"]) and all(
        isinstance(call.get("function", {}).get("arguments"), dict) for call in calls
    )


def compare_templates(ask, golden):
    """Tools reach a template that knows none through the system message instead; what a template refuses is repaired."""
    n, wrong = 0, []
    for i, (c, want) in enumerate(zip(CONVERSATIONS, golden["expected"])):
        if not is_plain(c) or "e" not in want or "tools" in c and "tools" not in golden["source"]:
            continue
        n += 1
        status, answer = ask("/apply-template", body_of(c))
        if status != 200 or answer["prompt"] != want["e"]:
            wrong.append((i, want, answer))
    assert wrong == [] and n > 15


@pytest.mark.parametrize("name", ["gguf_smollm2", "gguf_qwen2.5-coder-0.5b"])
def test_golden_templates_by_file(name, tmp_path):
    golden = json.loads((TEMPLATES / f"{name}.json").read_text())
    path = tmp_path / "template.jinja"
    path.write_text(golden["source"])
    with serving("smollm2", "--chat-template", str(path)) as ask:
        compare_templates(ask, golden)


@pytest.mark.parametrize("family", sorted(set(PRE) - {"qwen2_5"}))  # as qwen3
def test_a_family_has_its_own_prompts_and_tokens(family):
    model = family_model(family)
    if not model:
        pytest.skip(f"the files of {family} are absent: RADISH_TOKENIZERS names their folder")
    tokenizer, config = files(family)
    normal = (
        (lambda s: unicodedata.normalize("NFC", s)) if "NFC" in json.dumps(tokenizer["normalizer"]) else (lambda s: s)
    )
    texts = hard_strings([t["content"] for t in tokenizer["added_tokens"]], N_STRINGS)
    texts = [t for t in texts if "\0" not in t]  # refused in JSON
    package = Tokenizer.from_str(json.dumps(tokenizer))
    want = [package.encode(t, add_special_tokens=False).ids for t in texts]
    with serving(model) as ask:
        if config.get("chat_template"):
            compare_templates(ask, from_config(config))
        ids = [ask.ok("/tokenize", {"prompt": normal(t), "add_special_tokens": False})["tokens"] for t in texts]
        full = [ask.ok("/detokenize", {"tokens": i})["content"] for i in ids]
    assert ids == want
    assert full == [package.decode(i, skip_special_tokens=False) for i in want]
