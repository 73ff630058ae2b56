#!/usr/bin/env python3
"""Makes tests/golden/train/NAME.ref: what PEFT and torch make of an adapter of each tiny model of make_tiny_models.py.

Usage: make_train.py OUTDIR         (needs torch, transformers, peft, numpy; CPU is enough)

Little endian: u32 n_params, n_steps; f32 loss and gradient[n_params] at the numbers of first(); f32 losses[n_steps] of a run
from A of first() and B = 0; f16 numbers[n_params] after it. Numbers: A [rank, n_in], then B [n_out, rank], of q, k, v, o, gate,
up, down of each layer. Samples, numbers and schedule are formulas, which tests/train/test_trainer.c has, too.
"""

import math
import os
import struct
import sys

import numpy as np
import torch
from make_tiny_models import make_model, variants

RANK, ALPHA, N_STEPS, WARM_UP, LR = 2, 4, 50, 5, 4e-3
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def sample(step, k):
    n = 6 + (5 * step + 3 * k) % 15
    tokens = [(7 * i * i + 11 * i * (k + 1) + 13 * step) % 94 for i in range(n)]
    return tokens, [i > 0 and i % 3 != 1 for i in range(n)]


def first(pair, shape, is_b):
    """Numbers in double, then rounded."""
    i = np.arange(shape[0] * shape[1], dtype=np.float64).reshape(shape)
    scale = 0.05 if is_b else 1 / math.sqrt(shape[1])
    return torch.from_numpy((np.sin(0.7 * i + pair + (0.5 if is_b else 0.25)) * scale).astype(np.float32))


def pairs(model, n_layers):
    named = dict(model.named_parameters())
    for layer in range(n_layers):
        for m in MODULES:
            part = "self_attn" if m in MODULES[:4] else "mlp"
            name = f"base_model.model.model.layers.{layer}.{part}.{m}.lora_%s.default.weight"
            yield named[name % "A"], named[name % "B"]


def loss_of(model, samples):
    total, n = 0, 0
    for tokens, targets in samples:
        logits = model(torch.tensor(tokens)[None], use_cache=False).logits[0].float()
        logp = torch.log_softmax(logits, -1)
        for i, is_target in enumerate(targets):
            if is_target:
                total = total - logp[i - 1, tokens[i]]
                n += 1
    return total / n


def main():
    from peft import LoraConfig, get_peft_model

    os.makedirs(sys.argv[1], exist_ok=True)
    for seed, (name, (arch, config)) in enumerate(variants().items()):
        torch.manual_seed(0)
        base, _, _ = make_model(arch, dict(config), seed + 1)
        lora = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0, target_modules=MODULES, task_type="CAUSAL_LM")
        model = get_peft_model(base, lora).eval()
        halves = [p for ab in pairs(model, config["num_hidden_layers"]) for p in ab]
        with torch.no_grad():
            for i, p in enumerate(halves):
                p.copy_(first(i // 2, p.shape, i % 2))
        loss = loss_of(model, [sample(0, k) for k in range(4)])
        loss.backward()
        grads = torch.cat([p.grad.flatten() for p in halves]).numpy()
        with torch.no_grad():
            for i, p in enumerate(halves):
                p.grad = None
                if i % 2:
                    p.zero_()
        opt = torch.optim.AdamW(halves, lr=LR, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.01)
        losses = []
        for step in range(N_STEPS):
            lr = LR * (step + 1) / WARM_UP
            if step + 1 > WARM_UP:
                lr = LR * (1 - (step - WARM_UP) / (N_STEPS - WARM_UP))
            opt.param_groups[0]["lr"] = lr
            opt.zero_grad()
            now = loss_of(model, [sample(step % 4, k) for k in range(4)])
            now.backward()
            torch.nn.utils.clip_grad_norm_(halves, 1.0)
            opt.step()
            losses.append(now.item())
        numbers = torch.cat([p.detach().flatten() for p in halves]).numpy()
        with open(os.path.join(sys.argv[1], name + ".ref"), "wb") as f:
            f.write(struct.pack("<IIf", len(numbers), N_STEPS, loss.item()))
            f.write(grads.astype("<f4").tobytes())
            f.write(np.array(losses, "<f4").tobytes())
            f.write(numbers.astype("<f2").tobytes())
        print(name, len(numbers), "numbers, loss", losses[0], "->", losses[-1])


if __name__ == "__main__":
    main()
