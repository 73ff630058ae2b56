#!/usr/bin/env python3
"""Writes quants.bin: blocks of every type radish reads and the floats the `gguf` Python package turns them into.

Per type, little endian: u32 GGUF type number, u32 bytes, u32 weights, the bytes, the floats. The blocks are random bytes
whose half-precision scales are then set: random finite ones, and the edges (zero, minus zero, smallest and largest
subnormal, smallest normal, largest, one), so that no result is a NaN from a NaN scale. Seeded: the output is reproducible.

    python3 make_quants.py        (needs numpy and gguf; writes beside itself)
"""

import struct
from pathlib import Path

import gguf
import numpy as np

# type name -> byte offsets of the half-precision scales within a block
SCALES = {
    "F32": [],
    "F16": [],
    "BF16": [],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
EDGES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00]
N_RANDOM = 3


def finite_half(rng):
    while True:
        h = int(rng.integers(0, 0x10000))
        if (h >> 10) & 31 != 31:
            return h


def blocks_of(name, rng):
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    offsets = SCALES[name]
    if not offsets:
        raw = rng.integers(0, 256, size=(64, size), dtype=np.uint8)
        raw[:, -1] &= 0xBB  # clears an exponent bit: neither infinity nor NaN
        return raw
    raw = rng.integers(0, 256, size=(N_RANDOM + len(EDGES), size), dtype=np.uint8)
    for i, row in enumerate(raw):
        for j, at in enumerate(offsets):
            h = finite_half(rng) if i < N_RANDOM else EDGES[(i - N_RANDOM + 3 * j) % len(EDGES)]
            row[at : at + 2] = [h & 255, h >> 8]
    return raw


def main():
    rng = np.random.default_rng(20240601)
    out = bytearray()
    for name in SCALES:
        qtype = gguf.GGMLQuantizationType[name]
        raw = blocks_of(name, rng)
        floats = gguf.dequantize(raw.reshape(1, -1), qtype).astype("<f4").ravel()
        assert np.isfinite(floats).all(), name
        out += struct.pack("<III", int(qtype), raw.size, floats.size) + raw.tobytes() + floats.tobytes()
    Path(__file__).with_name("quants.bin").write_bytes(out)


if __name__ == "__main__":
    main()
