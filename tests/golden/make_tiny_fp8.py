#!/usr/bin/env python3
"""Makes tests/golden/fp8/tiny-qwen3-fp8/ and .ref: a tiny seeded Qwen3 whose matrices transformers made e4m3.

Usage: make_tiny_fp8.py OUTDIR            (needs torch and a GPU, transformers 5, numpy)

The directory is what save_pretrained() of a model with FineGrainedFP8Config writes (quant_method "fp8", blocks of 128 x
128), and a tokenizer of 94 characters. NAME.ref (make_tiny_models.py has its layout): the logits of the same directory,
loaded by transformers with its weights opened to bf16, computed in f32.
"""

import json
import os
import struct
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, Qwen3Config, Qwen3ForCausalLM

VOCAB = 96
N_TOKENS = 40


def write_tokenizer(path):
    vocab = {"\u0120": 0} | {chr(c): c - 0x20 for c in range(0x21, 0x7E)} | {"th": 94}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    tokenizer = {
        "added_tokens": [{"id": 95, "content": "<|end|>", "special": True}],
        "pre_tokenizer": level,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "merges": ["t h"], "vocab": vocab},
    }
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        json.dump(tokenizer, f)


def main():
    out = sys.argv[1]
    plain, fp8 = os.path.join(out, "plain"), os.path.join(out, "tiny-qwen3-fp8")
    torch.manual_seed(11)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=0.15,
        bos_token_id=95,
        eos_token_id=95,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(plain)
    q = AutoModelForCausalLM.from_pretrained(
        plain, dtype=torch.bfloat16, device_map="cuda", quantization_config=FineGrainedFP8Config()
    )
    q.save_pretrained(fp8)
    write_tokenizer(fp8)
    opened = AutoModelForCausalLM.from_pretrained(
        fp8,
        dtype=torch.bfloat16,
        device_map="cuda",
        quantization_config=FineGrainedFP8Config(dequantize=True),
        attn_implementation="eager",
    )
    assert opened.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    tokens = [(i * 29 + 7) % VOCAB for i in range(N_TOKENS)]
    with torch.no_grad():
        logits = opened.cpu().float()(torch.tensor([tokens])).logits[0].numpy().astype(np.float32)
    with open(os.path.join(out, "tiny-qwen3-fp8.ref"), "wb") as f:
        f.write(struct.pack("<2I", N_TOKENS, VOCAB) + struct.pack(f"<{N_TOKENS}i", *tokens) + logits.tobytes())
    print("range", logits.min(), logits.max(), sorted(os.listdir(fp8)))


if __name__ == "__main__":
    main()
