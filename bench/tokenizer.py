#!/usr/bin/env python3
"""Speed of tokenising one text, beside the `tokenizers` package, one thread each, in turns.

    bench/tokenizer.py --lib build/libradish.so --text FILE FOLDER...

FOLDER holds tokenizer.json. Prints per folder: radish's first run (nothing cached) and the median of its later ones, the
package's median, and the ratio of the medians. Ids are compared first.
"""
import argparse
import ctypes as c
import os
import statistics
import time
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402


class Radish:
    def __init__(self, lib, folder):
        self.lib, self.engine = lib, c.c_void_p()
        error = c.create_string_buffer(1024)
        if lib.rd_open_tokenizer(str(folder).encode(), None, c.byref(self.engine), error):
            raise SystemExit(f"{folder}: {error.raw[4:].split(bytes(1))[0].decode()}")

    def encode(self, data):
        ids, n = c.POINTER(c.c_int32)(), c.c_uint32()
        start = time.perf_counter()
        status = self.lib.rd_tokenize(self.engine, data, c.c_size_t(len(data)), False, True, c.byref(ids), c.byref(n), None)
        took = time.perf_counter() - start
        assert status == 0
        self.ids = ids[:n.value]
        self.lib.rd_free(ids)
        return took


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", default="build/libradish.so")
    p.add_argument("--text", required=True)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("folders", nargs="+", type=Path)
    args = p.parse_args()
    lib = c.CDLL(os.path.abspath(args.lib))
    text = Path(args.text).read_text()
    data = text.encode()
    rate = lambda seconds: len(data) / seconds / 1e6
    print(f"{len(data)} bytes of {args.text}; MB/s; {args.rounds} rounds")
    for folder in args.folders:
        ours, theirs = Radish(lib, folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
        first = ours.encode(data)
        same = ours.ids == theirs.encode(text, add_special_tokens=False).ids
        a, b = [], []
        for _ in range(args.rounds):
            a.append(ours.encode(data))
            start = time.perf_counter()
            theirs.encode(text, add_special_tokens=False)
            b.append(time.perf_counter() - start)
        mine, peer = statistics.median(a), statistics.median(b)
        print(f"{folder.name:14} first {rate(first):6.1f}  radish {rate(mine):6.1f}  tokenizers {rate(peer):5.2f}  ratio {peer / mine:5.1f}"
              f"  first ratio {peer / first:5.1f}  ids {'equal' if same else 'DIFFER'}", flush=True)


main()
