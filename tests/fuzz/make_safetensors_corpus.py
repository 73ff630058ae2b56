#!/usr/bin/env python3
"""Writes the seeds of fuzz_safetensors: a config.json, a 0 byte and a shard; some of them wrong in one place.

python3 make_safetensors_corpus.py     (standard library only; writes corpus/fuzz_safetensors/ beside itself)
"""

import json
import struct
from pathlib import Path

BASE = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "head_dim": 4}
CONFIGS = {
    "llama": {
        "model_type": "llama",
        "rope_theta": 1e4,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "qwen2": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 16,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "attention_factor": 1.1},
    },
    "gemma2": {"model_type": "gemma2", "attn_logit_softcapping": None, "layer_types": ["sliding_attention"]},
    "gemma3": {
        "model_type": "gemma3_text",
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}


def shard(entries, n_data, header=None):
    text = json.dumps({k: dict(zip(("dtype", "shape", "data_offsets"), v)) for k, v in entries.items()}).encode()
    text = header or text
    return struct.pack("<Q", len(text)) + text + bytes(n_data)


def main():
    out = Path(__file__).parent / "corpus" / "fuzz_safetensors"
    out.mkdir(parents=True, exist_ok=True)
    good = shard(
        {
            "model.embed_tokens.weight": ("BF16", [4, 8], [0, 64]),
            "model.layers.0.self_attn.q_proj.weight": ("F32", [1, 4], [64, 80]),
            "model.layers.0.post_attention_layernorm.weight": ("F16", [2], [80, 84]),
        },
        84,
    )
    for name, config in CONFIGS.items():
        (out / name).write_bytes(json.dumps({**BASE, **config}).encode() + b"\0" + good)
    text = {"model_type": "gemma3", "text_config": {**BASE}, "tie_word_embeddings": True}
    (out / "text_config").write_bytes(json.dumps(text).encode() + b"\0" + good)
    (out / "bare").write_bytes(good)
    (out / "short").write_bytes(good[:-1])
    (out / "overlap").write_bytes(shard({"a": ("U8", [4], [0, 4]), "b": ("U8", [4], [2, 6])}, 6))
    (out / "mlx").write_bytes(
        shard(
            {
                "a.weight": ("U32", [1, 4], [0, 16]),
                "a.scales": ("F16", [1, 1], [16, 18]),
                "a.biases": ("F16", [1, 1], [18, 20]),
            },
            20,
        )
    )
    (out / "deep").write_bytes(shard({}, 0, b'{"a": ' + b"[" * 200))


if __name__ == "__main__":
    main()
