#!/usr/bin/env python3
"""Makes tests/golden/train/ops.ref: torch autograd's gradients of the ops of radish/grad.h. tests/grad/test_grad.c has the formulas.

Usage: make_grad.py OUTFILE         (needs torch, numpy; CPU is enough)

A line an op: its number in test_grad.c, then the gradients of sum(y * (exp(y / 8) - y / 4)) by its inputs 0 .. 3, f32 as
decimals, an input after the other; 0 where it is not read.
"""

import sys

import torch
import torch.nn.functional as F

ROWS, COLS = 5, 8
POSITIONS = torch.tensor([0, 3, 4, 7, 900], dtype=torch.float64)
IDS = torch.tensor([3, 0, 4, 3, 1])
WEIGHTS = torch.tensor([1, 0, 2, 0.5, 1])


def rope(x, n_heads, interleaved):
    dim = COLS // n_heads
    angle = POSITIONS[:, None] * 10000 ** (-2 * torch.arange(dim // 2, dtype=torch.float64) / dim)
    c, s = torch.cos(angle).float()[:, None], torch.sin(angle).float()[:, None]
    x = x.view(ROWS, n_heads, dim)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., : dim // 2], x[..., dim // 2 :])
    u, v = a * c - b * s, a * s + b * c
    y = torch.stack([u, v], -1).flatten(-2) if interleaved else torch.cat([u, v], -1)
    return y.reshape(ROWS, COLS)


def attend(q, k, v):
    split = [t.view(ROWS, 2, COLS // 2).transpose(0, 1) for t in (q, k, v)]
    return F.scaled_dot_product_attention(*split, is_causal=True, scale=0.5).transpose(0, 1).reshape(ROWS, COLS)


OPS = {
    0: lambda a, b, w, c: a + b,
    1: lambda a, b, w, c: a + w,
    2: lambda a, b, w, c: a - w,
    3: lambda a, b, w, c: a * b,
    4: lambda a, b, w, c: a * w,
    5: lambda a, b, w, c: a * -1.5,
    6: lambda a, b, w, c: F.silu(a),
    7: lambda a, b, w, c: F.gelu(a, approximate="tanh"),
    8: lambda a, b, w, c: torch.tanh(a),
    9: lambda a, b, w, c: torch.exp(a),
    10: lambda a, b, w, c: a @ b.T,
    11: lambda a, b, w, c: F.linear(a, b),
    12: lambda a, b, w, c: a.reshape(COLS, ROWS),
    13: lambda a, b, w, c: a.T,
    14: lambda a, b, w, c: F.rms_norm(a, (COLS,), w[0], 1e-5),
    15: lambda a, b, w, c: F.layer_norm(a, (COLS,), w[0], c[0], 1e-5),
    16: lambda a, b, w, c: torch.softmax(a, -1),
    17: lambda a, b, w, c: rope(a, 2, False),
    18: lambda a, b, w, c: rope(a, 1, True),
    19: lambda a, b, w, c: attend(a, b, a * w),
    21: lambda a, b, w, c: F.embedding(IDS, a),
    22: lambda a, b, w, c: F.cross_entropy(a, IDS)[None],
    23: lambda a, b, w, c: ((F.cross_entropy(a, IDS, reduction="none") * WEIGHTS).sum() / WEIGHTS.sum())[None],
    24: lambda a, b, w, c: F.mse_loss(a, b)[None],
}


def main():
    with open(sys.argv[1], "w") as f:
        for op, fn in OPS.items():
            inputs = []
            for k, rows in enumerate((ROWS, ROWS, 1, 1)):
                i = torch.arange(rows * COLS, dtype=torch.float64)
                inputs.append(torch.sin(0.9 * i + 1.7 * k + op).float().view(rows, COLS).requires_grad_())
            y = fn(*inputs)
            (y * (torch.exp(y / 8) - y / 4)).sum().backward()
            flat = [x.grad if x.grad is not None else torch.zeros_like(x) for x in inputs]
            f.write("%d %s\n" % (op, " ".join("%.9g" % v for g in flat for v in g.flatten().tolist())))


if __name__ == "__main__":
    main()
