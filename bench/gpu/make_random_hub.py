#!/usr/bin/env python3
"""Random weights of real shapes as directories of the hub, in forms that GGUF files do not have.

    make_random_hub.py OUT_DIR NAME-FORM ..      writes OUT_DIR/NAME-FORM/ (needs numpy)

Names as make_random_models.py has them (and "tiny"), forms: fp8 (blocks of 128 x 128, bf16 weight_scale_inv, embedding and
head bf16, as Qwen3-8B-FP8), mlx8 and mlx6 (groups of 64, bf16 scales; everything but norms). The vocabulary has a token a
byte, and rows without a token.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

from make_random_models import SHAPES

SHAPES = dict(SHAPES, tiny=(2, 256, 512, 4, 2, 64, 512, False))
N_RANDOM = 1 << 24


def matrices(shape):
    layers, hidden, ffn, heads, kv_heads, dim, _, _ = shape
    for i in range(layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (hidden,)
        yield p + "self_attn.q_proj.weight", (heads * dim, hidden)
        yield p + "self_attn.k_proj.weight", (kv_heads * dim, hidden)
        yield p + "self_attn.v_proj.weight", (kv_heads * dim, hidden)
        yield p + "self_attn.o_proj.weight", (hidden, heads * dim)
        yield p + "self_attn.q_norm.weight", (dim,)
        yield p + "self_attn.k_norm.weight", (dim,)
        yield p + "post_attention_layernorm.weight", (hidden,)
        yield p + "mlp.gate_proj.weight", (ffn, hidden)
        yield p + "mlp.up_proj.weight", (ffn, hidden)
        yield p + "mlp.down_proj.weight", (hidden, ffn)


def bf16(x):
    return ((np.asarray(x, np.float32).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


class Maker:
    def __init__(self, form):
        rng = np.random.default_rng(1)
        self.form = form
        self.bytes = rng.integers(0, 256, N_RANDOM, dtype=np.uint8)
        if form == "fp8":
            self.bytes &= 0xBB  # no NaN, and not only the largest
        self.normal = bf16(rng.standard_normal(N_RANDOM // 2, dtype=np.float32) * 0.02).view(np.uint8)
        self.scales = {
            "fp8": bf16(rng.random(N_RANDOM // 2, dtype=np.float32) * 1e-3 + 1e-4),
            "mlx8": bf16(rng.random(N_RANDOM // 2, dtype=np.float32) * 5e-4 + 1e-5),
            "mlx6": bf16(rng.random(N_RANDOM // 2, dtype=np.float32) * 2e-3 + 1e-5),
        }[form]
        half = {"fp8": 0, "mlx8": 128, "mlx6": 32}[form]
        scales = (self.scales.astype(np.uint32) << 16).view(np.float32)
        self.biases = bf16(-scales * half).view(np.uint8)
        self.scales = self.scales.view(np.uint8)
        self.at = 0

    def take(self, source, n):
        self.at = (self.at + 7920) % (len(source) // 2)
        at = self.at
        while n > 0:
            part = source[at : at + min(n, len(source) - at)]
            yield part
            n -= len(part)

    def parts(self, name, dims):
        """(name, type, dims, bytes' source) of what one tensor becomes."""
        n = int(np.prod(dims))
        if len(dims) == 1:
            yield name, "BF16", dims, [bf16(np.ones(n)).view(np.uint8)]
        elif self.form == "fp8" and ".layers." in name:
            blocks = tuple(-(-d // 128) for d in dims)
            yield name, "F8_E4M3", dims, self.take(self.bytes, n)
            yield name + "_scale_inv", "BF16", blocks, self.take(self.scales, 2 * int(np.prod(blocks)))
        elif self.form == "fp8":
            yield name, "BF16", dims, self.take(self.normal, 2 * n)
        else:
            bits = int(self.form[3:])
            groups = (dims[0], dims[1] // 64)
            yield name, "U32", (dims[0], dims[1] * bits // 32), self.take(self.bytes, n * bits // 8)
            self.at = 0  # a scale and its bias
            yield name[:-6] + "scales", "BF16", groups, self.take(self.scales, n // 32)
            self.at = 0
            yield name[:-6] + "biases", "BF16", groups, self.take(self.biases, n // 32)


def write_tensors(file, maker, shape):
    sizes = {"F8_E4M3": 1, "BF16": 2, "U32": 4}
    all_dims = [("model.embed_tokens.weight", (shape[6], shape[1])), ("model.norm.weight", (shape[1],))]
    all_dims += [] if shape[7] else [("lm_head.weight", (shape[6], shape[1]))]
    all_dims += list(matrices(shape))
    head, at = {}, 0
    for name, dims in all_dims:
        for part, kind, part_dims, _ in maker.parts(name, dims):
            n = int(np.prod(part_dims)) * sizes[kind]
            head[part] = {"dtype": kind, "shape": list(part_dims), "data_offsets": [at, at + n]}
            at += n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, dims in all_dims:
            for _, _, _, source in maker.parts(name, dims):
                for piece in source:
                    f.write(piece.tobytes())


def write_config(out, shape, form):
    layers, hidden, ffn, heads, kv_heads, dim, vocab, tied = shape
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "vocab_size": vocab,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": tied,
    }
    if form == "fp8":
        config["quantization_config"] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        }
    else:
        config["quantization"] = {"bits": int(form[3:]), "group_size": 64}
    (out / "config.json").write_text(json.dumps(config))
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    rest = [b for b in range(256) if b not in shown]
    vocab_of = {chr(b): i for i, b in enumerate(shown)} | {chr(256 + i): len(shown) + i for i in range(len(rest))}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    tokenizer = {
        "added_tokens": [{"id": 256, "content": "<|end|>", "special": True}],
        "pre_tokenizer": level,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "merges": [], "vocab": vocab_of},
    }
    (out / "tokenizer.json").write_text(json.dumps(tokenizer))
    (out / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))


def main():
    for name in sys.argv[2:]:
        base, form = name.rsplit("-", 1)
        out = Path(sys.argv[1]) / name
        out.mkdir(parents=True, exist_ok=True)
        write_config(out, SHAPES[base], form)
        write_tensors(out / "model.safetensors", Maker(form), SHAPES[base])


if __name__ == "__main__":
    main()
