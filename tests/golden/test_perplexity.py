"""Perplexity of a 4,500-token text is within 1 % of llama.cpp's (golden: make_perplexity.py), for every real model that is there."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RADISH = Path(os.environ.get("RADISH_BUILD", ROOT / "build")) / "radish"
MODELS = Path(os.environ.get("RADISH_MODELS") or Path.home() / ".cache/radish/models")
TEXT = ROOT / "tests/golden/perplexity/text.txt"
GOLDEN = json.loads((ROOT / "tests/golden/perplexity/llamacpp.json").read_text())
PRESENT = [name for name in GOLDEN["perplexity"] if (MODELS / (name + ".gguf")).exists()]
NOW = PRESENT if os.environ.get("RADISH_LONG") else PRESENT[:1]  # the others take minutes: ./check --long


def test_the_default_model_is_there():
    assert PRESENT[:1] == ["smollm2"], "tools/fetch-model smollm2"


@pytest.mark.parametrize("name", NOW)
def test_perplexity_is_within_one_per_cent_of_llama_cpp(name):
    r = subprocess.run(
        [RADISH, "perplexity", name, TEXT, "--ctx", str(GOLDEN["n_ctx"])], capture_output=True, text=True, check=True
    )
    found = float(re.search(r"PPL = ([0-9.]+)", r.stdout).group(1))
    want = GOLDEN["perplexity"][name]
    print("%s: %.4f, llama.cpp %.4f (%+.2f %%)" % (name, found, want, 100 * (found / want - 1)))
    assert abs(found / want - 1) < 0.01
