#!/usr/bin/env python3
"""Makes tests/golden/lora/NAME/: an adapter of a tiny model as PEFT saves it, the same as llama.cpp's converter writes it, and the
logits that PEFT computes with it.

Usage: make_lora.py OUTDIR LLAMA_CPP        (needs torch, transformers, peft; LLAMA_CPP: its sources, with convert_lora_to_gguf.py)

adapter_config.json, adapter_model.safetensors, adapter.gguf, and logits.ref: f32 [24, vocab] of the tokens 37 i % 96. Every other
model's adapter is rank-stabilised (rsLoRA), or has ranks and alphas of its own for some matrices; those the converter cannot say.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from make_tiny_models import make_model, variants
from peft import LoraConfig, get_peft_model

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MODELS = {
    "llama": {},
    "llama31": {"use_rslora": True},
    "qwen2": {"rank_pattern": {"k_proj": 3, "down_proj": 1}, "alpha_pattern": {"k_proj": 5}},
    "qwen3": {"target_modules": ["q_proj", "v_proj"]},
    "gemma2": {},
    "gemma3": {},
}


def main():
    out, llama_cpp = Path(sys.argv[1]), Path(sys.argv[2])
    tokens = torch.tensor([[37 * i % 96 for i in range(24)]])
    for seed, (name, (arch, config)) in enumerate(variants().items()):
        if name not in MODELS:
            continue
        base, _, _ = make_model(arch, dict(config), seed + 1)
        with tempfile.TemporaryDirectory() as folder:
            base.save_pretrained(folder)
            torch.manual_seed(seed)
            options = {"target_modules": MODULES, "r": 2, "lora_alpha": 6} | MODELS[name]
            model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **options)).eval()
            with torch.no_grad():
                for key, p in model.named_parameters():
                    if "lora_B" in key:
                        p.normal_(0, 0.1)
                logits = model(tokens, use_cache=False).logits[0].float()
            to = out / name
            model.save_pretrained(to)
            (to / "README.md").unlink(missing_ok=True)
            (to / "logits.ref").write_bytes(logits.numpy().astype("<f4").tobytes())
            if "rank_pattern" in options or "use_rslora" in options:
                print(name)
                continue
            subprocess.run(
                [sys.executable, llama_cpp / "convert_lora_to_gguf.py", to, "--base", folder, "--outtype", "f32"]
                + ["--outfile", to / "adapter.gguf"],
                check=True,
                env=os.environ | {"PYTHONPATH": str(llama_cpp / "gguf-py")},
            )
        print(name, (to / "adapter.gguf").stat().st_size)


if __name__ == "__main__":
    main()
