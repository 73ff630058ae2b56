#!/usr/bin/env python3
"""Writes the seeds of fuzz_gguf: small GGUF files that are valid, and some that are wrong in one place.

python3 make_gguf_corpus.py     (standard library only; writes corpus/fuzz_gguf/ beside itself)
"""

import struct
from pathlib import Path

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def string(s):
    return struct.pack("<Q", len(s)) + s


def kv(key, kind, value):
    return string(key) + struct.pack("<I", kind) + value


def array(key, kind, n, values):
    return kv(key, ARRAY, struct.pack("<IQ", kind, n) + values)


def tensor(name, dims, kind, offset):
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf(kvs, tensors, data=b"", version=3, n_kv=None, n_tensors=None, align=32):
    n_kv = len(kvs) if n_kv is None else n_kv
    n_tensors = len(tensors) if n_tensors is None else n_tensors
    out = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_kv) + b"".join(kvs) + b"".join(tensors)
    return out + bytes(-len(out) % align) + data


ARCH = kv(b"general.architecture", STRING, string(b"llama"))
SCALARS = [
    kv(b"t%d" % i, i, bytes(range(1, n + 1)))
    for i, n in ((0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (10, 8), (11, 8), (12, 8))
]
ARRAYS = [
    array(b"tokens", STRING, 3, string(b"a") + string(b"") + string(b"\xe4\xbd")),
    array(b"scores", F32, 2, struct.pack("<2f", -1, float("inf"))),
    array(b"flags", BOOL, 2, b"\0\1"),
    array(b"types", U32, 0, b""),
]
TENSORS = [tensor(b"f", [4, 2], 0, 0), tensor(b"q4", [64], 2, 32), tensor(b"q6k", [256], 14, 96)]
DATA = bytes(i & 255 for i in range(96 + 210))
ALIGN8 = kv(b"general.alignment", U32, struct.pack("<I", 8))

SEEDS = {
    "empty": b"",
    "magic": b"GGUF",
    "nothing_inside": gguf([], []),
    "metadata_v2": gguf([ARCH] + SCALARS, [], version=2),
    "metadata_v3": gguf([ARCH] + SCALARS + ARRAYS, []),
    "tensors": gguf([ARCH], TENSORS, DATA),
    "all": gguf([ARCH] + SCALARS + ARRAYS + [kv(b"b", BOOL, b"\1")], TENSORS, DATA),
    "align8": gguf([ALIGN8], [tensor(b"a", [1], 0, 0), tensor(b"b", [1], 30, 8)], bytes(10), align=8),
    "bad_count": gguf([ARCH], [], n_kv=1 << 63),
    "bad_tensor_count": gguf([ARCH], [], n_tensors=(1 << 64) - 1),
    "bad_array_length": gguf([array(b"x", U64, 1 << 61, bytes(16))], []),
    "bad_string_length": gguf([kv(b"x", STRING, struct.pack("<Q", (1 << 64) - 8))], []),
    "bad_dims": gguf([], [tensor(b"x", [1 << 32, 1 << 32], 0, 0)], DATA),
    "bad_overlap": gguf([], [tensor(b"x", [16], 0, 0), tensor(b"y", [1], 0, 32)], DATA),
    "bad_offset": gguf([], [tensor(b"x", [1], 0, (1 << 64) - 32)], DATA),
    "bad_twice": gguf([ARCH, ARCH], []),
    "bad_big_endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
}


def main():
    folder = Path(__file__).with_name("corpus") / "fuzz_gguf"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in SEEDS.items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
