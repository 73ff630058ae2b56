"""tokenize and inspect."""

import json
import os
import subprocess


def lines(radish, model, *asked):
    data = b"".join(a if isinstance(a, bytes) else json.dumps(a).encode() + b"\n" for a in asked)
    r = radish("tokenize", model, "--jsonl", stdin=data)
    assert r.returncode == 0, r.err
    return [json.loads(line) for line in r.out.splitlines()]


def test_a_line_per_token(radish, model):
    r = radish("tokenize", model, "Hello, world")
    assert r.returncode == 0
    assert [line.split("  ", 1)[1].strip() for line in r.out.strip().split("\n")] != []
    assert "".join(json.loads(line.split(None, 1)[1]) for line in r.out.splitlines()) == "Hello, world"


def test_ids_are_a_json_array_and_stdin_is_the_same_text(radish, model):
    a = json.loads(radish("tokenize", model, "--ids", "Hello, world").out)
    assert a == json.loads(radish("tokenize", model, "--ids", stdin="Hello, world").out)
    assert a == json.loads(radish("tokenize", model, "-", "--ids", stdin="Hello, world").out)


def test_special_tokens_in_a_text_are_text_unless_asked(radish, model):
    plain = json.loads(radish("tokenize", model, "--ids", "<|im_end|>").out)
    special = json.loads(radish("tokenize", model, "--ids", "--parse-special", "<|im_end|>").out)
    assert len(plain) > 1 and len(special) == 1


def test_jsonl_there_and_back(radish, model):
    texts = ["Hello", "", "naïve café", "日本語 😀‍👩", "a\u0000b", "tab\tline\nend", "<|im_start|>user"]
    ids = [a["tokens"] for a in lines(radish, model, *({"op": "tokenize", "content": t} for t in texts))]
    back = lines(radish, model, *({"op": "detokenize", "tokens": i} for i in ids))
    assert [b["content"] for b in back] == texts


def test_a_bad_line_gets_an_error_and_the_next_line_its_answer(radish, model):
    good = {"op": "tokenize", "content": "ok"}
    bad = [
        b"nonsense\n",
        b"[1, 2]\n",
        b"3\n",
        b'{"op": "tokenize"}\n',
        b'{"op": "tokenize", "content": 4}\n',
        b'{"op": "tokenize", "content": "a", "add_special": 1}\n',
        b'{"op": "detokenize"}\n',
        b'{"op": "detokenize", "tokens": [1.5]}\n',
        b'{"op": "detokenize", "tokens": [-1]}\n',
        b'{"op": "detokenize", "tokens": [99999999]}\n',
        b'{"op": "other"}\n',
        b"\xff\xfe\n",
        b'{"op": "tokenize", "content": "\xff"}\n',
        b"[" * 10000 + b"\n",
    ]
    asked = [x for b in bad for x in (b, good)]
    got = lines(radish, model, *asked)
    assert len(got) == len(asked)
    for i in range(0, len(got), 2):
        assert list(got[i]) == ["error"] and got[i]["error"], asked[i]
        assert got[i + 1]["tokens"] == got[1]["tokens"]


def test_the_last_line_needs_no_newline_and_empty_lines_are_skipped(radish, model):
    data = b'\n\n{"op": "tokenize", "content": "x"}\n\n{"op": "tokenize", "content": "y"}'
    assert len(lines(radish, model, data)) == 2


def test_answers_come_line_by_line(radish, model):
    p = radish.start("tokenize", model, "--jsonl", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for text in ("one", "two"):
        p.stdin.write(json.dumps({"op": "tokenize", "content": text}).encode() + b"\n")
        p.stdin.flush()
        assert json.loads(p.stdout.readline())["tokens"]
    p.stdin.close()
    assert p.wait(20) == 0


def test_inspect_text_and_json_agree(radish, model):
    text, data = radish("inspect", model), json.loads(radish("inspect", model, "--json").out)
    assert text.returncode == 0
    for word in ("general.architecture", "token_embd.weight", "memory", "KV per token", "chat template"):
        assert word in text.out
    metadata = {m["key"]: m.get("value") for m in data["metadata"]}
    assert metadata["general.architecture"] == "llama" and data["file_bytes"] == os.path.getsize(model)
    assert any(t["name"] == "token_embd.weight" for t in data["tensors"])
    assert "<|im_start|>" in data["chat_template"]


def test_a_name_is_looked_up_in_the_model_folder(radish, model):
    folder, name = os.path.split(model)
    r = radish("inspect", name[:-5], env={"RADISH_MODELS": folder})
    assert r.returncode == 0 and r.out == radish("inspect", model).out
