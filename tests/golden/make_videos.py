#!/usr/bin/env python3
"""Makes tests/golden/videos.txt: what transformers' processors make of videos, and of pictures that are seen in parts
(tests/vision/test_processor.c).

    python tests/golden/make_videos.py            needs transformers 5.24, torch, torchvision, Pillow

Frame k is the picture of make_images.py, k * 31 brighter, modulo 256. Lines:
    FAMILY frames width height t h w            then samples "index:value" of pixel_values_videos
    parts width height n                        then "image:index:value" of pixel_values: image 0 is the whole
"""

import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

N_SAMPLES = 24


def picture(w, h, k=0):
    x, y, c = np.meshgrid(
        np.arange(w, dtype=np.uint64), np.arange(h, dtype=np.uint64), np.arange(3, dtype=np.uint64), indexing="xy"
    )
    noise = (x * 73856093 ^ y * 19349663 ^ c * 83492791) & 0xFFFFFFFF
    noise ^= noise >> 13
    noise = (noise * 0x5BD1E995) & 0xFFFFFFFF
    v = (x * 128 // w + (noise >> 15) % 128 + y * 64 // h + 31 * k) % 256
    return v.astype(np.uint8)


def samples(values, before=""):
    values = np.asarray(values, dtype=np.float32).reshape(-1)
    step = max(1, values.size // N_SAMPLES) | 1
    return [f"{before}{i % values.size}:{values[i % values.size]:.5f}" for i in range(0, step * N_SAMPLES, step)]


def main():
    random.seed(22)
    qwen2 = Qwen2VLVideoProcessor()
    qwen3 = Qwen3VLVideoProcessor(size={"shortest_edge": 4096, "longest_edge": 25165824})
    gemma = Gemma3ImageProcessor(
        size={"height": 896, "width": 896},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        do_pan_and_scan=True,
        pan_and_scan_min_crop_size=256,
        pan_and_scan_max_num_crops=4,
        pan_and_scan_min_ratio_to_activate=1.2,
    )
    lines = []
    sizes = [(2, 64, 64), (1, 56, 56), (3, 200, 120), (4, 640, 360), (5, 320, 20), (64, 30, 40), (7, 1000, 700)]
    sizes += [(random.randint(1, 9), random.randint(8, 700), random.randint(8, 500)) for _ in range(13)]
    for n, w, h in sizes:
        video = np.stack([picture(w, h, k).transpose(2, 0, 1) for k in range(n)])
        for name, processor in (("qwen2", qwen2), ("qwen3", qwen3)):
            if name == "qwen3" and n < 2:
                continue
            out = processor(videos=[torch.tensor(video)], return_tensors="pt", do_sample_frames=False)
            grid = [int(v) for v in out["video_grid_thw"][0]]
            lines.append(
                f"{name} {n} {w} {h} {' '.join(map(str, grid))} {' '.join(samples(out['pixel_values_videos']))}"
            )
    sizes = [(896, 896), (1024, 768), (768, 1024), (1000, 256), (256, 1300), (2000, 300), (511, 1000), (511, 400)]
    sizes += [(random.randint(200, 2200), random.randint(200, 900)) for _ in range(10)]
    for w, h in sizes:
        out = gemma(images=[Image.fromarray(picture(w, h))], return_tensors="pt")
        values = out["pixel_values"]
        line = [s for i, v in enumerate(values) for s in samples(v, f"{i}:")]
        lines.append(f"parts {w} {h} {len(values) - 1} {' '.join(line)}")
    Path(__file__).with_name("videos.txt").write_text("\n".join(lines) + "\n")


main()
