#!/usr/bin/env python3
"""Makes tests/golden/quants/convert.bin: rows of weights, the gguf package's Q8_0 bytes, and the reference's error.

Usage: make_quantise.py OUTFILE LIBGGML_BASE.so        (needs numpy, gguf, and llama.cpp's library for Q4_K and Q6_K)

Little endian: u32 n_rows; f32 rows[n_rows][256]; u8 q8_0[n_rows][272]; f64 error[n_rows][2]: the sum of squared
differences of ggml_quantize_chunk's Q4_K and Q6_K.
"""

import ctypes
import struct
import sys

import gguf
import numpy as np

N = 256


def rows():
    rng = np.random.default_rng(5)
    for scale in (1e-6, 0.02, 1.0, 300.0):
        yield rng.normal(0, scale, N)
    yield rng.uniform(-1, 1, N)
    yield rng.standard_t(2, N) * 0.02
    yield rng.normal(0.5, 0.1, N)
    yield rng.normal(-0.5, 0.1, N)
    yield np.zeros(N)
    yield np.where(np.arange(N) % 32 == 7, 3.0, 0.0)
    yield np.round(rng.uniform(-8, 7, N)) / 8
    yield np.abs(rng.normal(0, 1, N))


def main():
    x = np.stack(list(rows())).astype(np.float32)
    lib = ctypes.CDLL(sys.argv[2])
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = (
        [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    )
    errors = []
    for kind, size in ((gguf.GGMLQuantizationType.Q4_K, 144), (gguf.GGMLQuantizationType.Q6_K, 210)):
        out = np.zeros((len(x), size), np.uint8)
        lib.ggml_quantize_chunk(int(kind), x.ctypes.data, out.ctypes.data, 0, len(x), N, None)
        back = gguf.dequantize(out, kind).astype(np.float64)
        errors.append(((back - x) ** 2).sum(1))
    q8 = gguf.quantize(x, gguf.GGMLQuantizationType.Q8_0)
    with open(sys.argv[1], "wb") as f:
        f.write(struct.pack("<I", len(x)) + x.astype("<f4").tobytes() + q8.tobytes())
        f.write(np.stack(errors, 1).astype("<f8").tobytes())


if __name__ == "__main__":
    main()
