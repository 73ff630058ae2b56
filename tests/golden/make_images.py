#!/usr/bin/env python3
"""Makes tests/golden/images.txt: what transformers' image processors make of pictures (tests/vision/test_processor.c).

    python tests/golden/make_images.py            needs transformers 5.24, torch, torchvision, Pillow

The pictures are a formula of (x, y, channel), which the test has, too. A line for each: processor, width, height, frames'
grid t h w, then 24 samples "index:value" of pixel_values, spread over it by a fixed step.
"""

import random
from pathlib import Path

import numpy as np
from PIL import Image
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

N_SAMPLES = 24


def picture(w, h):
    x, y, c = np.meshgrid(
        np.arange(w, dtype=np.uint64), np.arange(h, dtype=np.uint64), np.arange(3, dtype=np.uint64), indexing="xy"
    )
    noise = (x * 73856093 ^ y * 19349663 ^ c * 83492791) & 0xFFFFFFFF
    noise ^= noise >> 13
    noise = (noise * 0x5BD1E995) & 0xFFFFFFFF
    v = (x * 128 // w + (noise >> 15) % 128 + y * 64 // h) % 256
    return Image.fromarray(v.astype(np.uint8))


SIZES = [(1, 1), (2, 3), (28, 28), (27, 29), (56, 56), (200, 1), (1, 200), (1000, 5), (5, 1000), (896, 896), (895, 897)]


def main():
    random.seed(22)
    sizes = SIZES + [(random.randint(1, 1400), random.randint(1, 900)) for _ in range(55)] + [(3000, 40), (4000, 2250)]
    qwen2 = Qwen2VLImageProcessor()
    qwen3 = Qwen2VLImageProcessor(
        patch_size=16,
        size={"shortest_edge": 65536, "longest_edge": 1048576},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )
    gemma = Gemma3ImageProcessor(
        size={"height": 896, "width": 896}, image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5]
    )
    lines = []
    for w, h in sizes:
        for name, processor in (("qwen2", qwen2), ("qwen3", qwen3), ("gemma3", gemma)):
            if name == "gemma3" and random.random() > 0.2:
                continue
            try:
                out = processor(images=[picture(w, h)], return_tensors="np")
            except ValueError:
                lines.append(f"{name} {w} {h} refused")
                continue
            values = np.asarray(out["pixel_values"], dtype=np.float32).reshape(-1)
            grid = [1, 64, 64] if name == "gemma3" else [int(v) for v in out["image_grid_thw"][0]]
            step = max(1, values.size // N_SAMPLES) | 1
            samples = [f"{i % values.size}:{values[i % values.size]:.5f}" for i in range(0, step * N_SAMPLES, step)]
            lines.append(f"{name} {w} {h} {' '.join(map(str, grid))} {' '.join(samples)}")
    Path(__file__).with_name("images.txt").write_text("\n".join(lines) + "\n")


main()
