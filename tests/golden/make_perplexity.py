#!/usr/bin/env python3
"""Writes tests/golden/perplexity/llamacpp.json: llama.cpp's perplexity of text.txt for the real models.

    tests/golden/make_perplexity.py LLAMA_PERPLEXITY       the binary of that name, built from llama-cpp-python's source package

text.txt is about 4,500 tokens of radish's own design documents. Chunks of 512 tokens, the second half of each is scored.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent / "perplexity"
MODELS = Path(os.environ.get("RADISH_MODELS") or Path.home() / ".cache/radish/models")
NAMES = ["smollm2", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]


def main():
    found = {}
    for name in NAMES:
        r = subprocess.run(
            [sys.argv[1], "-m", MODELS / (name + ".gguf"), "-f", HERE / "text.txt", "-c", "512", "-t", "2"],
            capture_output=True,
            text=True,
            check=True,
        )
        found[name] = float(re.search(r"Final estimate: PPL = ([0-9.]+)", r.stdout + r.stderr).group(1))
        print(name, found[name])
    (HERE / "llamacpp.json").write_text(json.dumps({"n_ctx": 512, "perplexity": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
