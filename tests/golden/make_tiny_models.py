#!/usr/bin/env python3
"""Makes tests/golden/ARCH/tiny-NAME.gguf and .ref: tiny seeded models of every architecture, with transformers' logits.

Usage: make_tiny_models.py OUTDIR         (needs torch, transformers 4.56 or later, gguf, numpy; CPU is enough)

NAME.gguf  F32 weights, a tokenizer of 94 characters, one merge and one end token.
NAME.ref   little endian: u32 n_tokens, u32 n_vocab, i32 tokens[n_tokens], f32 logits[n_tokens][n_vocab].

The layouts differ from transformers' where GGUF files do: wq and wk of Llama have their rows permuted for interleaved
RoPE, Gemma's norms have 1 added, Llama 3.1's RoPE scaling is a tensor of divisors.
"""

import math
import os
import struct
import sys

import numpy as np

VOCAB = 96
N_TOKENS = 40
CONTEXT = 256


def variants():
    """name -> (architecture, config). Small windows, caps and contexts, so that each matters within 40 tokens."""
    base = dict(
        vocab_size=VOCAB,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-6,
        bos_token_id=95,
        eos_token_id=95,
        pad_token_id=None,
        attn_implementation="eager",
    )
    small = dict(
        hidden_size=48,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        head_dim=16,
    )
    large = dict(
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=3,
        head_dim=16,
    )

    def layer_types(n, every):
        return ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(n)]

    return {
        "llama": (
            "llama",
            dict(base, **large, rope=dict(rope_type="default", rope_theta=10000.0), tie_word_embeddings=False),
        ),
        "llama31": (
            "llama",
            dict(
                base,
                **small,
                tie_word_embeddings=True,
                rope=dict(
                    rope_type="llama3",
                    rope_theta=10000.0,
                    factor=8.0,
                    low_freq_factor=1.0,
                    high_freq_factor=4.0,
                    original_max_position_embeddings=32,
                ),
            ),
        ),
        "qwen2": (
            "qwen2",
            dict(
                base,
                **{k: v for k, v in large.items() if k != "head_dim"},
                tie_word_embeddings=False,
                rope=dict(rope_type="default", rope_theta=1000000.0),
            ),
        ),
        "qwen2-yarn": (
            "qwen2",
            dict(
                base,
                **dict(small, hidden_size=64, head_dim=None),
                tie_word_embeddings=True,
                rope=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32),
            ),
        ),
        "qwen3": (
            "qwen3",
            dict(
                base,
                **dict(small, head_dim=32),
                tie_word_embeddings=False,
                rope=dict(rope_type="default", rope_theta=1000000.0),
            ),
        ),
        "qwen3-tied": (
            "qwen3",
            dict(base, **small, tie_word_embeddings=True, rope=dict(rope_type="default", rope_theta=1000000.0)),
        ),
        "gemma2": (
            "gemma2",
            dict(
                base,
                **dict(small, num_hidden_layers=4),
                tie_word_embeddings=True,
                query_pre_attn_scalar=16,
                sliding_window=8,
                attn_logit_softcapping=5.0,
                final_logit_softcapping=8.0,
                layer_types=layer_types(4, 2),
                rope=dict(rope_type="default", rope_theta=10000.0),
            ),
        ),
        "gemma3": (
            "gemma3",
            dict(
                base,
                **dict(small, num_hidden_layers=7, num_key_value_heads=1),
                tie_word_embeddings=True,
                query_pre_attn_scalar=16,
                sliding_window=12,
                layer_types=layer_types(7, 6),
                rope=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
                rope_local=10000.0,
            ),
        ),
    }


def make_model(arch, config, seed):
    import torch
    import transformers

    classes = {
        "llama": ("LlamaConfig", "LlamaForCausalLM"),
        "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
        "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
        "gemma2": ("Gemma2Config", "Gemma2ForCausalLM"),
        "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    }
    config = {k: v for k, v in config.items() if v is not None or k == "pad_token_id"}
    rope = config.pop("rope")
    local = config.pop("rope_local", None)
    if int(transformers.__version__.split(".")[0]) >= 5:
        config["rope_parameters"] = (
            rope
            if local is None
            else {"full_attention": rope, "sliding_attention": dict(rope_type="default", rope_theta=local)}
        )
    else:
        config["rope_theta"] = rope["rope_theta"]
        if rope["rope_type"] != "default":
            config["rope_scaling"] = {k: v for k, v in rope.items() if k != "rope_theta"}
        if local is not None:
            config["rope_local_base_freq"] = local
    implementation = config.pop("attn_implementation")
    cfg = getattr(transformers, classes[arch][0])(**config)
    cfg._attn_implementation = implementation
    model = getattr(transformers, classes[arch][1])(cfg).float().eval()

    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if name.endswith("norm.weight"):
                v = rng.normal(0.0 if arch.startswith("gemma") else 1.0, 0.15, p.shape)
            elif name.endswith("bias"):
                v = rng.normal(0, 0.5, p.shape)
            elif "embed_tokens" in name:
                v = rng.normal(0, 0.5, p.shape)
            else:
                gain = 2.0 if "q_proj" in name or "lm_head" in name else 1.0
                v = rng.normal(0, gain / math.sqrt(p.shape[1]), p.shape)
            p.copy_(torch.from_numpy(v.astype(np.float32)))
    tokens = rng.integers(0, VOCAB, N_TOKENS)
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens)[None], use_cache=False).logits[0].float().numpy()
    return model, tokens.astype("<i4"), logits.astype("<f4")


def interleave(w, n_heads):
    """Rows of each head from half-split to interleaved order."""
    return w.reshape(n_heads, 2, w.shape[0] // n_heads // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def llama3_divisors(rope, head_dim):
    freqs = rope["rope_theta"] ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    wavelength = 2 * math.pi / freqs
    n, low, high, factor = (
        rope["original_max_position_embeddings"],
        rope["low_freq_factor"],
        rope["high_freq_factor"],
        rope["factor"],
    )
    smooth = (n / wavelength - low) / (high - low)
    blend = 1 / ((1 - smooth) / factor + smooth)
    return np.where(wavelength < n / high, 1.0, np.where(wavelength > n / low, factor, blend)).astype(np.float32)


def write_gguf(path, arch, config, model):
    import gguf

    w = gguf.GGUFWriter(path, arch)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    w.add_name("tiny " + os.path.basename(path)[5:-5])
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_rope_freq_base(config["rope"]["rope_theta"])
    if config["rope"]["rope_type"] in ("linear", "yarn"):
        w.add_string(f"{arch}.rope.scaling.type", config["rope"]["rope_type"])
        w.add_float32(f"{arch}.rope.scaling.factor", config["rope"]["factor"])
    if config["rope"]["rope_type"] == "yarn":
        w.add_uint32(f"{arch}.rope.scaling.original_context_length", config["rope"]["original_max_position_embeddings"])
    if "sliding_window" in config:
        w.add_sliding_window(config["sliding_window"])
    if "attn_logit_softcapping" in config:
        w.add_float32(f"{arch}.attn_logit_softcapping", config["attn_logit_softcapping"])
        w.add_float32(f"{arch}.final_logit_softcapping", config["final_logit_softcapping"])
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(["\u0120"] + [chr(c) for c in range(0x21, 0x7E)] + ["th", "<|end|>"])
    w.add_token_types([1] * (VOCAB - 1) + [3])
    w.add_token_merges(["t h"])
    w.add_bos_token_id(95)
    w.add_eos_token_id(95)
    w.add_add_bos_token(False)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "input_layernorm": "attn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    gemma = arch.startswith("gemma")
    names.update(
        {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
        if gemma
        else {"post_attention_layernorm": "ffn_norm"}
    )
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    for name, p in sorted(model.state_dict().items()):
        v = p.numpy().astype(np.float32)
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if name in outer:
            target = outer[name]
        else:
            _, _, layer, rest = name.split(".", 3)
            stem, kind = rest.rsplit(".", 1)
            target = f"blk.{layer}.{names[stem]}.{kind}"
        if arch == "llama" and ".attn_q." in target:
            v = interleave(v, config["num_attention_heads"])
        if arch == "llama" and ".attn_k." in target:
            v = interleave(v, config["num_key_value_heads"])
        if gemma and target.endswith("norm.weight"):
            v = v + np.float32(1)
        w.add_tensor(target, np.ascontiguousarray(v))
    if config["rope"]["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_divisors(config["rope"], head_dim))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    for seed, (name, (arch, config)) in enumerate(variants().items()):
        model, tokens, logits = make_model(arch, dict(config), seed + 1)
        folder = os.path.join(sys.argv[1], arch)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"tiny-{name}")
        write_gguf(path + ".gguf", arch, config, model)
        with open(path + ".ref", "wb") as f:
            f.write(struct.pack("<II", N_TOKENS, VOCAB) + tokens.tobytes() + logits.tobytes())
        print(name, os.path.getsize(path + ".gguf"), "bytes, logits", float(logits.min()), "..", float(logits.max()))
        for module_name, buffer in model.named_buffers():
            if "inv_freq" in module_name and "original" not in module_name:
                print("   ", module_name, buffer.numpy())


if __name__ == "__main__":
    main()
