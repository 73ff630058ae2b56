#!/usr/bin/env python3
"""Writes tests/golden/embeddings/MODEL.json: llama.cpp's embeddings of a few texts, pooled by the last token and by the mean.

    make_embeddings.py LLAMA_SERVER MODEL.gguf [...]

Per text a base64 string of little-endian 16-bit floats. tests/server/test_embeddings.py compares directions.
"""

import base64
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy

TEXTS = ["The capital of France is Paris.", "def quicksort(a):\n    return a", "Grüße aus Köln, 你好! " * 8]
PORT = 18199
URL = f"http://127.0.0.1:{PORT}"


def ready():
    try:
        return urllib.request.urlopen(f"{URL}/health").status == 200
    except OSError:
        return False


def embed(server, model, pooling):
    process = subprocess.Popen(
        [server, "-m", model, "--port", str(PORT), "--embeddings", "--pooling", pooling, "-c", "1024"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not ready():
            time.sleep(0.1)
        request = urllib.request.Request(
            f"{URL}/v1/embeddings", json.dumps({"input": TEXTS}).encode(), {"Content-Type": "application/json"}
        )
        data = json.load(urllib.request.urlopen(request))["data"]
    finally:
        process.terminate()
        process.wait()
    return [base64.b64encode(numpy.array(d["embedding"], "<f2").tobytes()).decode() for d in data]


def main():
    for model in sys.argv[2:]:
        out = Path(__file__).parent / "embeddings" / (Path(model).stem + ".json")
        out.parent.mkdir(exist_ok=True)
        golden = {"texts": TEXTS} | {pooling: embed(sys.argv[1], model, pooling) for pooling in ("last", "mean")}
        out.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


main()
