"""Adapters of tests/golden/llama/tiny-llama.gguf in PEFT's form, of random numbers from a seed."""

import json
import random
import struct

HIDDEN, Q, KV, FFN, LAYERS = 64, 64, 32, 96, 3
SHAPES = {
    "self_attn.q_proj": (Q, HIDDEN),
    "self_attn.k_proj": (KV, HIDDEN),
    "self_attn.v_proj": (KV, HIDDEN),
    "self_attn.o_proj": (HIDDEN, Q),
    "mlp.gate_proj": (FFN, HIDDEN),
    "mlp.up_proj": (FFN, HIDDEN),
    "mlp.down_proj": (HIDDEN, FFN),
}


def write_peft(folder, seed, rank=4, alpha=8, shapes=SHAPES, **config):
    """The folder, which is made. shapes: of a layer's matrices, (n_out, n_in)."""
    draw = random.Random(seed)
    head, data = {}, b""
    for layer in range(LAYERS):
        for name, (n_out, n_in) in shapes.items():
            for half, shape in (("A", (rank, n_in)), ("B", (n_out, rank))):
                n = shape[0] * shape[1]
                part = struct.pack(f"<{n}f", *(draw.uniform(-0.3, 0.3) for _ in range(n)))
                head[f"base_model.model.model.layers.{layer}.{name}.lora_{half}.weight"] = {
                    "dtype": "F32",
                    "shape": list(shape),
                    "data_offsets": [len(data), len(data) + len(part)],
                }
                data += part
    text = json.dumps(head).encode()
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none"} | config
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
