"""`radish tokenize --tokenizer` against what the `tokenizers` package said: tokenizer/hub_golden.json.

The families' files are not part of the tree: RADISH_TOKENIZERS names the folder (default ../shared/tokenizers beside the
checkout). Where it is absent those tests are skipped, and say so. Where the `tokenizers` package is installed, it is asked
again, and must still say what the golden file has.
"""

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/golden/tokenizer"), str(ROOT / "tests/golden")]
from component_cases import component_cases  # noqa: E402
from hard_strings import hard_strings  # noqa: E402
from make_hub_golden import component_strings, digest, groups  # noqa: E402

BUILD = Path(os.environ.get("RADISH_BUILD") or ROOT / "build")
FOLDER = Path(os.environ.get("RADISH_TOKENIZERS") or ROOT.parent / "shared/tokenizers")
GOLDEN = json.loads((ROOT / "tests/golden/tokenizer/hub_golden.json").read_text())


def ask(path, lines):
    data = "".join(json.dumps(line) + "\n" for line in lines)
    r = subprocess.run(
        [BUILD / "radish", "tokenize", "--tokenizer", path, "--jsonl"],
        input=data.encode(),
        capture_output=True,
        timeout=600,
    )
    assert r.returncode == 0, r.stderr.decode()
    return [json.loads(line) for line in r.stdout.split(b"\n") if line]


def ours(path, texts, fails=()):
    ids = [
        a["tokens"]
        for a in ask(
            path, [{"op": "tokenize", "content": t, "add_special": True, "parse_special": True} for t in texts]
        )
    ]
    asked = [{"op": "detokenize", "tokens": i, "special": s} for s in (True, False) for i in ids]
    decoded = [a["content"] for a in ask(path, asked)]
    columns = [ids, decoded[: len(ids)], decoded[len(ids) :]]
    for i in fails:
        for column in columns:
            column[i] = None
    return columns


@pytest.fixture(scope="module", params=sorted(GOLDEN["families"]))
def family(request, tmp_path_factory):
    packed = FOLDER / request.param / "tokenizer.json.xz"
    if not packed.is_file():
        pytest.skip(
            f"no {packed}: the files of {request.param} are absent, nothing was compared (RADISH_TOKENIZERS names their folder)"
        )
    text = lzma.open(packed).read()
    path = tmp_path_factory.mktemp(request.param)
    (path / "tokenizer.json").write_bytes(text)
    return request.param, text.decode(), path


def test_family_is_equal_on_5000_hard_strings(family):
    name, text, path = family
    texts = hard_strings([t["content"] for t in json.loads(text)["added_tokens"]])
    ids, full, plain = ours(path, texts)
    golden = GOLDEN["families"][name]
    assert groups(ids) == golden["ids"]
    assert groups(full) == golden["full"]
    assert groups(plain) == golden["plain"]


def test_every_component_is_equal(tmp_path):
    texts = component_strings()
    wrong = []
    for name, config in component_cases():
        golden = GOLDEN["components"][name]
        if golden is None:  # the package itself does nothing sensible here: make_hub_golden.py
            continue
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config))
        columns = ours(path, texts, golden["fails"])
        if [digest(c) for c in columns] != [golden["ids"], golden["full"], golden["plain"]]:
            wrong.append(name)
    assert wrong == []


def test_the_package_still_says_so(family):
    tokenizers = pytest.importorskip(
        "tokenizers", reason="the tokenizers package is not installed: golden values alone were used"
    )
    name, text, path = family
    if tokenizers.__version__ != GOLDEN["tokenizers"]:
        pytest.skip(f"tokenizers {tokenizers.__version__}, the golden values are of {GOLDEN['tokenizers']}")
    texts = hard_strings([t["content"] for t in json.loads(text)["added_tokens"]])[:500]
    tokenizer = tokenizers.Tokenizer.from_str(text)
    assert digest([tokenizer.encode(t).ids for t in texts]) == GOLDEN["families"][name]["ids"][0]


def test_the_tokenizer_that_gguf_to_hub_writes_is_read_by_those_of_today(tmp_path):
    """They want every member of an added token and of a decoder."""
    tokenizers, gguf = pytest.importorskip("tokenizers"), pytest.importorskip("gguf")
    import gguf_to_hub  # needs gguf and numpy itself

    out = subprocess.run([ROOT / "tools/fetch-model", "smollm2"], check=True, capture_output=True, text=True)
    model = out.stdout.strip().splitlines()[-1]
    gguf_to_hub.write_tokenizer(tmp_path, gguf_to_hub.fields(gguf.GGUFReader(model)))
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = ["Hello world", "  12345 <|im_start|>user\n\tdon't", "日本語 ŝ"]
    ids = [peer.encode(text, add_special_tokens=False).ids for text in texts]
    asked = [{"op": "tokenize", "content": t, "add_special": False, "parse_special": True} for t in texts]
    assert ids == [a["tokens"] for a in ask(tmp_path / "tokenizer.json", asked)]
    assert texts == [peer.decode(i, skip_special_tokens=False) for i in ids]
