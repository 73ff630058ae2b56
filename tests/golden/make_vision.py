#!/usr/bin/env python3
"""Makes tests/golden/vision/FAMILY/: tiny seeded models of every family that sees, with transformers' logits.

Usage: make_vision.py OUTDIR [CONVERTER]     (needs torch, transformers 5.24 or later, numpy; CPU is enough)

FAMILY/model.safetensors, config.json   BF16 weights as transformers saves them
FAMILY/tokenizer.json                   94 characters, so that the directory opens as a model
FAMILY/FAMILY.bin                       little endian: u32 n_prompts, n_vocab, hidden; a prompt:
    u32 n_images, n_tokens; i32 tokens[n_tokens]; u32 axes[3][n_tokens]
    an image: u32 begin, t, h, w, merge, n_rows, n_values; i8 values[n_values], 32 times what they are
    f32 logits[n_tokens][n_vocab]
With CONVERTER (convert_hf_to_gguf.py of llama.cpp) also FAMILY/text.gguf and FAMILY/mmproj.gguf.

Pixel values are random, as transformers' processors would lay them out. Everything that the families have of their own
matters within these sizes: windows and full layers, several frames' groups, DeepStack, sections, merging, pooling, windows of
the text model shorter than an image.
"""

import copy
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers as tr

VOCAB = 112
IMAGE, VIDEO, START, END = 96, 97, 98, 99
CONTEXT = 512


def text(**more):
    base = dict(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=95,
        eos_token_id=95,
        pad_token_id=None,
    )
    return dict(base, **more)


def rope(sections, theta):
    return dict(rope_type="default", rope_theta=theta, mrope_section=sections)


def make_gemma3():
    config = tr.Gemma3Config(
        text_config=text(
            head_dim=16,
            query_pre_attn_scalar=16,
            num_hidden_layers=7,
            sliding_window=10,
            layer_types=[
                "full_attention" if i == 5 else "sliding_attention" for i in range(7)
            ],  # as files of GGUF mean
        ),
        vision_config=dict(
            hidden_size=32,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=80,
            patch_size=10,
            vision_use_head=False,
        ),
        mm_tokens_per_image=16,
        image_token_index=IMAGE,
        boi_token_index=START,
        eoi_token_index=END,
    )
    return tr.Gemma3ForConditionalGeneration, config


VISION = dict(num_heads=2, in_channels=3, temporal_patch_size=2, spatial_merge_size=2)
IDS = dict(image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END)


def make_qwen2vl():
    config = tr.Qwen2VLConfig(
        text_config=text(head_dim=None, rope_parameters=rope([2, 2, 2], 1e4)),
        vision_config=dict(VISION, depth=3, embed_dim=32, hidden_size=48, mlp_ratio=2, patch_size=6),
        **IDS,
    )
    return tr.Qwen2VLForConditionalGeneration, config


def make_qwen25vl():
    config = tr.Qwen2_5_VLConfig(
        text_config=text(head_dim=None, rope_parameters=rope([2, 2, 2], 1e4)),
        vision_config=dict(
            VISION,
            depth=4,
            hidden_size=32,
            intermediate_size=44,
            out_hidden_size=48,
            patch_size=14,
            window_size=112,
            fullatt_block_indexes=[1, 3],
        ),
        **IDS,
    )
    return tr.Qwen2_5_VLForConditionalGeneration, config


def make_qwen3vl():
    config = tr.Qwen3VLConfig(
        text_config=text(head_dim=16, rope_parameters=dict(rope([4, 2, 2], 1e4), mrope_interleaved=True)),
        vision_config=dict(
            VISION,
            depth=4,
            hidden_size=32,
            intermediate_size=40,
            out_hidden_size=48,
            patch_size=6,
            num_position_embeddings=49,
            deepstack_visual_indexes=[0, 2],
        ),
        **IDS,
    )
    return tr.Qwen3VLForConditionalGeneration, config


FAMILIES = {"gemma3": make_gemma3, "qwen2vl": make_qwen2vl, "qwen25vl": make_qwen25vl, "qwen3vl": make_qwen3vl}
GRIDS = [[], [(1, 10, 14)], [(1, 6, 10), (1, 2, 2), (1, 18, 4)]]  # images of the prompts, in patches


def tokenizer(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:95]
    vocab = {c: i for i, c in enumerate(alphabet)}
    for i in range(len(vocab), VOCAB):
        vocab[f"<t{i}>"] = i
    t = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.save(os.path.join(folder, "tokenizer.json"))


def randomise(model):
    """Weights large enough that every part matters, of BF16; norms about 1."""
    for name, p in model.named_parameters():
        with torch.no_grad():
            if p.ndim == 1 and "bias" not in name:
                p.add_(torch.randn_like(p) * 0.1)
            else:
                p.copy_(torch.randn_like(p) * (0.25 if "embed" in name else 0.15))
            p.copy_(p.bfloat16().float())


def prompt(name, config, grids, rng):
    """tokens, images (begin, grid, rows, values), arguments of forward."""
    is_gemma = name == "gemma3"
    tokens, images = list(rng.integers(0, 95, 5)), []
    merge = 2
    if is_gemma:
        side = config.vision_config.image_size // config.vision_config.patch_size
        grids = [(1, side, side) for _ in grids]
        merge = side // int(config.mm_tokens_per_image**0.5)
    for t, h, w in grids:
        n = t * h * w // merge**2
        patch = config.vision_config.patch_size
        if is_gemma:
            values = rng.standard_normal((3, h * patch, w * patch))
        else:
            values = rng.standard_normal((t * h * w, 3 * 2 * patch * patch))
        tokens += [START]
        values = np.clip(np.rint(values * 32), -128, 127).astype(np.int8)
        images.append((len(tokens), (t, h, w), merge, n, values))
        tokens += [IMAGE] * n + [END] + list(rng.integers(0, 95, 7))
    tokens = np.array(tokens, np.int32)
    ids = torch.tensor(tokens, dtype=torch.long)[None]
    more = {}
    types = (ids == IMAGE).long()
    if images and is_gemma:
        more["pixel_values"] = torch.tensor(np.stack([i[4] for i in images])) / 32
    elif images:
        more["pixel_values"] = torch.tensor(np.concatenate([i[4] for i in images])) / 32
        more["image_grid_thw"] = torch.tensor([i[1] for i in images])
    if is_gemma:
        more["token_type_ids"] = types
    else:
        more["mm_token_type_ids"] = types
    return tokens, images, ids, more


def axes_of(model, name, ids, more):
    n = ids.shape[1]
    if name == "gemma3" or "image_grid_thw" not in more:
        return np.tile(np.arange(n, dtype=np.uint32), (3, 1))
    positions, _ = model.model.get_rope_index(
        ids, mm_token_type_ids=more["mm_token_type_ids"], image_grid_thw=more["image_grid_thw"]
    )
    return positions[:, 0].numpy().astype(np.uint32)


def put(out, *values):
    out.write(struct.pack(f"<{len(values)}I", *values))


def make(name, folder):
    torch.manual_seed(22)
    rng = np.random.default_rng(22)
    cls, config = FAMILIES[name]()
    config._attn_implementation = "eager"
    model = cls(config).eval().float()
    randomise(model)
    os.makedirs(folder, exist_ok=True)
    copy.deepcopy(model).bfloat16().save_pretrained(folder)  # a copy: frequencies of RoPE stay F32
    tokenizer(folder)
    with open(os.path.join(folder, name + ".bin"), "wb") as out:
        put(out, len(GRIDS), VOCAB, 48)
        for grids in GRIDS:
            tokens, images, ids, more = prompt(name, config, grids, rng)
            with torch.no_grad():
                logits = model(input_ids=ids, **more).logits[0].float().numpy()
            put(out, len(images), len(tokens))
            out.write(tokens.astype("<i4").tobytes())
            out.write(axes_of(model, name, ids, more).astype("<u4").tobytes())
            for begin, (t, h, w), merge, n, values in images:
                put(out, begin, t, h, w, merge, n, values.size)
                out.write(values.tobytes())
            out.write(np.ascontiguousarray(logits, "<f4").tobytes())
            print(
                f"{name}: {len(images)} images, {len(tokens)} tokens, logits {logits.min():.2f} .. {logits.max():.2f}"
            )


# The converter, but for the tokenizer: the models here have none that it knows.
WITHOUT_VOCAB = """
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.path[:0] = [os.path.dirname(sys.argv[0]), os.path.join(os.path.dirname(sys.argv[0]), "gguf-py")]
from conversion import base
base.TextModel._set_vocab_gpt2 = base.TextModel._set_vocab_sentencepiece = lambda self: None
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def hub_names(name, folder, to):
    """The directory with the names that the hub has, which the converter knows; transformers 5 saves others."""
    from safetensors.torch import load_file, save_file

    os.makedirs(to)
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    if name == "gemma3":
        tensors = {k.replace("vision_tower.", "vision_tower.vision_model."): v for k, v in tensors.items()}
    save_file(tensors, os.path.join(to, "model.safetensors"))
    for file in ("config.json", "tokenizer.json"):
        shutil.copy(os.path.join(folder, file), to)
    with open(os.path.join(to, "preprocessor_config.json"), "w") as f:
        json.dump({"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "image_seq_length": 16}, f)


def convert(name, folder, converter):
    old = os.path.join(tempfile.mkdtemp(), "model")
    hub_names(name, folder, old)
    for out, more in (("text", []), ("mmproj", ["--mmproj"])):
        path = os.path.join(folder, out + ".gguf")
        command = [sys.executable, "-c", WITHOUT_VOCAB, converter, old, "--outtype", "bf16", "--outfile", path, *more]
        subprocess.run(command, check=True)
    shutil.rmtree(os.path.dirname(old))


def main():
    outdir = sys.argv[1]
    for name in FAMILIES:
        folder = os.path.join(outdir, name)
        make(name, folder)
        if len(sys.argv) > 2:
            convert(name, folder, sys.argv[2])


if __name__ == "__main__":
    main()
