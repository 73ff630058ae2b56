#!/usr/bin/env python3
"""Makes tests/golden/vision/FAMILY/video.bin of the Qwens: transformers' logits of the tiny models there for prompts with videos.

    python tests/golden/make_vision_video.py          (needs torch, transformers 5.24 or later, numpy; CPU is enough)

The form is make_vision.py's, but that an image has one number more behind merge: f32 t_step (struct vision_image), 0 for pictures.
Qwen2-VL and Qwen2.5-VL have a picture and two videos, each in one piece; Qwen3-VL sees a video as an image for each pair of frames,
behind some text (its time).

Positions behind a video: the papers and the models' own code go on from the largest position on any axis, transformers 5.24 from the
largest of height and width. Here no video is longer in time than on its longer side, so that both agree; tests/vision/test_vision.c
has those that are.
"""

import struct
from pathlib import Path

import numpy as np
import torch
import transformers as tr
from make_vision import END, IMAGE, START, VIDEO, VOCAB, put

HERE = Path(__file__).parent / "vision"
CLASSES = {
    "qwen2vl": tr.Qwen2VLForConditionalGeneration,
    "qwen25vl": tr.Qwen2_5_VLForConditionalGeneration,
    "qwen3vl": tr.Qwen3VLForConditionalGeneration,
}
# kind, grid, seconds of a pair of frames
PROMPTS = [
    [("video", (3, 6, 10), 0.5)],
    [("image", (1, 4, 6), 0), ("video", (4, 4, 12), 0.35), ("video", (2, 6, 4), 0.3)],
]


def prompt(name, config, parts, rng):
    """tokens, images (begin, grid, t_step, values), values by kind, grids by kind"""
    tokens, images, pixels, grids = list(rng.integers(0, 95, 4)), [], {}, {}
    patch = config.vision_config.patch_size
    for kind, (t, h, w), seconds in parts:
        values = np.clip(np.rint(rng.standard_normal((t * h * w, 6 * patch * patch)) * 32), -128, 127).astype(np.int8)
        pixels.setdefault(kind, []).append(values)
        grids.setdefault(kind, []).append((t, h, w))
        one = IMAGE if kind == "image" else VIDEO
        apart = name == "qwen3vl" and kind == "video"
        step = getattr(config.vision_config, "tokens_per_second", 0) * seconds if name == "qwen25vl" else 0
        for k in range(t if apart else 1):
            tokens += list(rng.integers(0, 95, 3)) if apart else []  # "<0.3 seconds>"
            tokens.append(START)
            n = (1 if apart else t) * h * w
            images.append((len(tokens), (1 if apart else t, h, w), 0 if apart else step, values[k * n : (k + 1) * n]))
            tokens += [one] * (n // 4) + [END]
        tokens += list(rng.integers(0, 95, 5))
    return np.array(tokens, np.int32), images, pixels, grids


def arguments(name, ids, parts, pixels, grids):
    more = {"mm_token_type_ids": (ids == IMAGE).long() + 2 * (ids == VIDEO).long()}
    for kind, value, grid in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        if kind in pixels:
            more[value] = torch.tensor(np.concatenate(pixels[kind])) / 32
            more[grid] = torch.tensor(grids[kind])
    if name == "qwen25vl":
        more["second_per_grid_ts"] = torch.tensor([s for kind, _, s in parts if kind == "video"])
    return more


def make(name):
    folder, rng = HERE / name, np.random.default_rng(23)
    model = CLASSES[name].from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with open(folder / "video.bin", "wb") as out:
        put(out, len(PROMPTS), VOCAB, 48)
        for parts in PROMPTS:
            tokens, images, pixels, grids = prompt(name, model.config, parts, rng)
            ids = torch.tensor(tokens, dtype=torch.long)[None]
            more = arguments(name, ids, parts, pixels, grids)
            where = {k: v for k, v in more.items() if not k.startswith("pixel")}
            with torch.no_grad():
                logits = model(input_ids=ids, **more).logits[0].float().numpy()
            axes = model.model.get_rope_index(ids, **where)[0][:, 0].numpy()
            put(out, len(images), len(tokens))
            out.write(tokens.astype("<i4").tobytes())
            out.write(axes.astype("<u4").tobytes())
            for begin, (t, h, w), step, values in images:
                put(out, begin, t, h, w, 2)
                out.write(struct.pack("<f", step))
                put(out, t * h * w // 4, values.size)
                out.write(values.tobytes())
            out.write(np.ascontiguousarray(logits, "<f4").tobytes())
            print(f"{name}: {len(images)} images, {len(tokens)} tokens, {logits.min():.2f} .. {logits.max():.2f}")


for family in CLASSES:
    make(family)
