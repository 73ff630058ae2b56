#!/usr/bin/env python3
"""Speed of tokenising one text, beside the `tokenizers` package, one thread each, in turns.

    bench/tokenizer.py [--lib build/libradish.so] [--text FILE] FOLDER...

FOLDER holds tokenizer.json or tokenizer.json.xz. Prints per folder: radish's first run (nothing cached) and the median of its
later ones, the package's median, and the ratio of the medians. Ids are compared first. With --grow the text is that of a
conversation which grows by 1 KB and is asked for as a prompt each time: radish keeps the ids of what it had before, the package
begins anew.
"""

import argparse
import contextlib
import ctypes as c
import lzma
import os
import statistics
import tempfile
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
        status = self.lib.rd_tokenize(
            self.engine, data, c.c_size_t(len(data)), False, True, c.byref(ids), c.byref(n), None
        )
        took = time.perf_counter() - start
        assert status == 0
        self.ids = ids[: n.value]
        self.lib.rd_free(ids)
        return took

    def prompt(self, data):
        o, ids, n = Options(), c.POINTER(c.c_int32)(), c.c_uint32()
        self.lib.rd_request_options_default(c.byref(o))
        o.prompt, o.n_prompt = data, len(data)
        start = time.perf_counter()
        status = self.lib.rd_prompt_tokens(self.engine, c.byref(o), c.byref(ids), c.byref(n), None)
        took = time.perf_counter() - start
        assert status == 0
        self.ids = ids[: n.value]
        self.lib.rd_free(ids)
        return took


class Options(c.Structure):
    """The beginning of struct rd_request_options, and room for its rest."""

    _fields_ = [
        ("size", c.c_size_t),
        ("chat_and_json", c.c_void_p * 4),
        ("end", c.c_int),
        ("prompt", c.c_char_p),
        ("n_prompt", c.c_size_t),
        ("rest", c.c_char * 4096),
    ]


def grow(ours, theirs, data, rounds):
    """Milliseconds of a turn: radish as it goes, radish anew, the package; medians over the last turns."""
    ends = range(len(data) - 1024 * rounds, len(data) + 1, 1024)
    kept, anew, peer = [], [], []
    for end in ends:
        part = data[:end].decode(errors="ignore")
        kept.append(ours.prompt(part.encode()))
        anew.append(ours.encode(part.encode()))
        start = time.perf_counter()
        want = theirs.encode(part).ids
        peer.append(time.perf_counter() - start)
        ours.prompt(part.encode())
        assert ours.ids == want, "ids differ"
    return [1e3 * statistics.median(x[1:]) for x in (kept, anew, peer)]


@contextlib.contextmanager
def unpacked(folder):
    """The folder, or one with its tokenizer.json.xz unpacked."""
    if (folder / "tokenizer.json").exists():
        yield folder
        return
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "tokenizer.json").write_bytes(lzma.open(folder / "tokenizer.json.xz").read())
        yield Path(made)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", default="build/libradish.so")
    p.add_argument("--text", help="a file; default: the pages of docs/, one after the other")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--grow", action="store_true")
    p.add_argument("folders", nargs="+", type=Path)
    args = p.parse_args()
    lib = c.CDLL(os.path.abspath(args.lib))
    pages = [Path(args.text)] if args.text else sorted((Path(__file__).resolve().parent.parent / "docs").glob("*.md"))
    text = "".join(page.read_text() for page in pages)
    data = text.encode()
    rate = lambda seconds: len(data) / seconds / 1e6
    print(f"{len(data)} bytes of {args.text or 'docs/*.md'}; MB/s; {args.rounds} rounds")
    for folder in args.folders:
        with unpacked(folder) as at:
            ours, theirs = Radish(lib, at), Tokenizer.from_file(str(at / "tokenizer.json"))
        if args.grow:
            print(
                "%-14s turn of %d bytes: radish %.2f ms, without its memory %.2f ms, tokenizers %.1f ms"
                % (folder.name, len(data), *grow(ours, theirs, data, args.rounds)),
                flush=True,
            )
            continue
        first = ours.encode(data)
        same = ours.ids == theirs.encode(text, add_special_tokens=False).ids
        a, b = [], []
        for _ in range(args.rounds):
            a.append(ours.encode(data))
            start = time.perf_counter()
            theirs.encode(text, add_special_tokens=False)
            b.append(time.perf_counter() - start)
        mine, peer = statistics.median(a), statistics.median(b)
        print(
            f"{folder.name:14} first {rate(first):6.1f}  radish {rate(mine):6.1f}  tokenizers {rate(peer):5.2f}  ratio {peer / mine:5.1f}"
            f"  first ratio {peer / first:5.1f}  ids {'equal' if same else 'DIFFER'}",
            flush=True,
        )


main()
