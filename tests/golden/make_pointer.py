#!/usr/bin/env python3
"""Makes tests/golden/vision/guiactor/: a tiny seeded GUI-Actor, with the scores and points of its own code.

Usage: make_pointer.py OUTDIR GUI_ACTOR     (needs torch, transformers 5.24 or later, numpy; CPU is enough)

GUI_ACTOR   a checkout of github.com/microsoft/GUI-Actor: its VisionHead_MultiPatch and get_prediction_region_point are what is
            compared with; the model under them is transformers' Qwen2-VL

OUTDIR/model.safetensors, config.json, tokenizer.json   as make_vision.py's, with multi_patch_pointer_head.* beside them
OUTDIR/pointer.bin      little endian: u32 n_prompts, n_vocab, hidden; a prompt:
    u32 n_images, n_tokens; i32 tokens[n_tokens]; u32 axes[3][n_tokens]; its images, all as make_vision.py's
    u32 position of <|pointer_pad|>, n_scores; f32 scores[n_scores]
    u32 n_points, by falling value, of a prompt with one image; f64 x, y, value of each
OUTDIR/points.json      what a conversation about a picture gives: the pictures and the template of tests/server/vision_model.py, an
    answer of <|pointer_start|><|pointer_pad|><|pointer_end|> twice and a <|pointer_start|>: the points of both
"""

import ast
import copy
import io
import json
import os
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers as tr
from make_vision import IDS, IMAGE, VISION, VOCAB, prompt, put, randomise, rope, text, tokenizer
from safetensors.torch import load_file, save_file

HIDDEN = 64
POINTER = [104, 105, 106]
PAD = POINTER[1]
GRIDS = [[(1, 10, 14)], [(1, 24, 6)], [(1, 6, 10), (1, 8, 4)]]


def taken_from(path, name, names):
    """One class or function of a file whose imports are not here."""
    tree = ast.parse(open(path).read())
    tree.body = [node for node in tree.body if getattr(node, "name", None) == name]
    exec(compile(tree, path, "exec"), names)
    return names[name]


def conversation(model, head, regions, seed, width, height, words):
    """What tests/server/test_pointer.py asks: pixels by transformers' processor, tokens by tokenizers."""
    from PIL import Image
    from tokenizers import Tokenizer
    from vision_model import make_model, picture

    told = json.loads((make_model(tempfile.mkdtemp(), "guiactor") / "tokenizer.json").read_text())
    told["added_tokens"] = [dict(t, single_word=False, lstrip=False, rstrip=False) for t in told["added_tokens"]]
    t = Tokenizer.from_str(json.dumps(told))
    processor = tr.Qwen2VLImageProcessor(patch_size=6, merge_size=2, min_pixels=3136, max_pixels=12845056)
    pixels = processor(Image.open(io.BytesIO(picture(seed, width, height))).convert("RGB"), return_tensors="pt")
    _, h, w = pixels["image_grid_thw"][0].tolist()
    ids = t.encode("<|im_start|>user\n<|vision_start|>", add_special_tokens=False).ids + [IMAGE] * (h * w // 4)
    ids += t.encode(f"<|vision_end|>{words}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids
    ids += POINTER * 2 + POINTER[:1]
    ids = torch.tensor(ids)[None]
    with torch.no_grad():
        seen = model(input_ids=ids, mm_token_type_ids=(ids == IMAGE).long(), **pixels, output_hidden_states=True)
        embeds = seen.hidden_states[0][0][ids[0] == IMAGE]
        scores, _ = head(embeds, seen.hidden_states[-1][0][ids[0] == PAD])
    pointers = []
    for one in scores:
        _, centres, values, _ = regions(one[None], w // 2, h // 2)
        pointers.append([[round(v, 7) for v in (*c, value)] for c, value in zip(centres, values)])
    return {"pictures": [[seed, width, height]], "text": words, "pointers": pointers}


def main():
    folder, checkout = sys.argv[1:3]
    names = {"nn": torch.nn, "F": torch.nn.functional, "torch": torch}
    exec("from typing import *", names)
    head_class = taken_from(os.path.join(checkout, "src/gui_actor/modeling.py"), "VisionHead_MultiPatch", names)
    regions = taken_from(os.path.join(checkout, "src/gui_actor/inference.py"), "get_prediction_region_point", names)
    torch.manual_seed(23)
    rng = np.random.default_rng(23)
    config = tr.Qwen2VLConfig(
        text_config=dict(text(head_dim=None, rope_parameters=rope([4, 2, 2], 1e4)), hidden_size=HIDDEN),
        vision_config=dict(VISION, depth=2, embed_dim=32, hidden_size=HIDDEN, mlp_ratio=2, patch_size=6),
        **IDS,
    )
    config._attn_implementation = "eager"
    model = tr.Qwen2VLForConditionalGeneration(config).eval().float()
    randomise(model)
    head = head_class(HIDDEN, HIDDEN).eval().float()
    randomise(head)
    os.makedirs(folder, exist_ok=True)
    copy.deepcopy(model).bfloat16().save_pretrained(folder)
    file = os.path.join(folder, "model.safetensors")
    tensors = load_file(file)
    for name, t in head.state_dict().items():
        tensors["multi_patch_pointer_head." + name] = t.bfloat16().contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
    tokenizer(folder)
    with open(os.path.join(folder, "pointer.bin"), "wb") as out:
        put(out, len(GRIDS), VOCAB, HIDDEN)
        for grids in GRIDS:
            tokens, images, ids, more = prompt("qwen2vl", config, grids, rng)
            at = len(tokens) - 2
            tokens[at] = PAD
            ids[0, at] = PAD
            with torch.no_grad():
                seen = model(input_ids=ids, **more, output_hidden_states=True)
                embeds = seen.hidden_states[0][0][ids[0] == IMAGE]
                scores, _ = head(embeds, seen.hidden_states[-1][0][at : at + 1])
            positions, _ = model.model.get_rope_index(
                ids, mm_token_type_ids=more["mm_token_type_ids"], image_grid_thw=more["image_grid_thw"]
            )
            put(out, len(images), len(tokens))
            out.write(tokens.astype("<i4").tobytes())
            out.write(positions[:, 0].numpy().astype("<u4").tobytes())
            for begin, (t, h, w), merge, n, values in images:
                put(out, begin, t, h, w, merge, n, values.size)
                out.write(values.tobytes())
            put(out, at, scores.shape[1])
            out.write(scores[0].numpy().astype("<f4").tobytes())
            points = []
            if len(grids) == 1:
                _, h, w = grids[0]
                _, centres, values, _ = regions(scores, w // 2, h // 2)
                points = [(x, y, v) for (x, y), v in zip(centres, values)]
            put(out, len(points))
            out.write(np.array(points, "<f8").tobytes())
            print(f"{len(images)} images: scores {scores.min():.4f} .. {scores.max():.4f}, points {points}")
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "server"))
    cases = [(1, 96, 72, "Close the window."), (2, 60, 180, "Where is the button?")]
    with open(os.path.join(folder, "points.json"), "w") as out:
        json.dump([conversation(model, head, regions, *case) for case in cases], out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
