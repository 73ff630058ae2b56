#!/usr/bin/env python3
"""Training on a GPU, tokens a second and peak device memory: radish beside torch with LoRA, the same shapes, random weights.

Usage: peer_gpu.py torch SHAPE [SAMPLES TOKENS RANK STEPS]     one line of JSON for each way that torch does it
       peer_gpu.py radish BENCH_TRAIN MODEL.gguf [SAMPLES TOKENS RANK STEPS]

SHAPE: qwen3-0.6b or qwen3-8b. MODEL.gguf: bench/gpu/make_random_models.py fill. torch: the model of transformers in bf16 with its
fastest attention, adapters as PEFT computes them (y + scale B(A x), A and B in bf16), AdamW; with and without gradient checkpointing. Needs torch and
transformers on one side, build/cuda/tests/bench_train on the other.
"""

import json
import subprocess
import sys
import threading
import time

SHAPES = {"qwen3-0.6b": (28, 1024, 3072, 16, 8, True), "qwen3-8b": (36, 4096, 12288, 32, 8, False)}


def torch_side(shape, samples, tokens, rank, steps):
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    layers, hidden, ffn, heads, kv_heads, tied = SHAPES[shape]
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        tie_word_embeddings=tied,
        max_position_embeddings=4096,
        attn_implementation="sdpa",
    )

    class Lora(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.scale = base, 2.0
            self.a = torch.nn.Parameter(torch.randn(rank, base.in_features, device="cuda", dtype=torch.bfloat16) * 0.01)
            self.b = torch.nn.Parameter(torch.zeros(base.out_features, rank, device="cuda", dtype=torch.bfloat16))

        def forward(self, x):
            linear = torch.nn.functional.linear
            return self.base(x) + self.scale * linear(linear(x, self.a), self.b)

    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config)
    model.requires_grad_(False)
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
                if hasattr(part, name):
                    setattr(part, name, Lora(getattr(part, name)))
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    x = torch.randint(0, 100000, (samples, tokens), device="cuda")
    for keep in (True, False):
        if not keep:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        try:
            torch.cuda.reset_peak_memory_stats()
            for step in range(steps + 2):
                if step == 2:
                    torch.cuda.synchronize()
                    begin = time.monotonic()
                loss = model(input_ids=x, labels=x, use_cache=False).loss
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            torch.cuda.synchronize()
            took = (time.monotonic() - begin) / steps
            peak = torch.cuda.max_memory_reserved() / 2**20
            said = {
                "tokens_per_s": round(samples * tokens / took),
                "step_ms": round(took * 1e3, 1),
                "peak_mib": round(peak),
            }
        except torch.OutOfMemoryError:
            said = {"out_of_memory": True}
            optimiser.zero_grad()
            torch.cuda.empty_cache()
        print(json.dumps({"side": "torch", "shape": shape, "checkpointing": not keep, **said}), flush=True)


def watch_memory(stop, most):
    while not stop.is_set():
        text = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True
        ).stdout
        most[0] = max(most[0], int(text.split()[0]))
        stop.wait(0.2)


def radish_side(bench, model, numbers):
    stop, most = threading.Event(), [0]
    watcher = threading.Thread(target=watch_memory, args=(stop, most))
    watcher.start()
    samples, tokens, rank, steps = map(str, numbers)
    for memory in ("0", "1"):
        most[0] = 0
        r = subprocess.run([bench, model, "cuda", samples, tokens, rank, steps, memory], capture_output=True, text=True)
        said = json.loads(r.stdout) if r.returncode == 0 else {"error": r.stderr[-300:], "rc": r.returncode}
        print(
            json.dumps({"side": "radish", "model": model, "checkpointing": memory == "1", **said, "peak_mib": most[0]}),
            flush=True,
        )
    stop.set()
    watcher.join()


def main():
    args = sys.argv[2:]
    n_names = 1 if sys.argv[1] == "torch" else 2
    numbers = [int(x) for x in args[n_names:]] or [8, 512, 16, 6]
    if sys.argv[1] == "torch":
        torch_side(args[0], *numbers)
    else:
        radish_side(args[0], args[1], numbers)


if __name__ == "__main__":
    main()
