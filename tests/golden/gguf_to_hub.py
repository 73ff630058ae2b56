#!/usr/bin/env python3
"""Makes a directory as it comes from the hub (safetensors shards, config.json, tokenizer.json) from a GGUF model.

Usage: gguf_to_hub.py MODEL.gguf OUTDIR [--type f16|bf16|f32] [--shards N] [--mlx BITS,GROUP[,f16|bf16|f32]]
                                        [--tokenizer FOLDER] [--gguf FILE]

Needs numpy and gguf. Weights are dequantised by the gguf package and rounded to --type. --mlx quantises the matrices as
mlx.core.quantize does ("affine"); --gguf also writes what the directory says as a GGUF file (F16, or F32 with --mlx, for
comparison). The tokenizer comes from the file's vocabulary, or from FOLDER (tokenizer.json, tokenizer_config.json, plain
or .xz), for vocabularies that are no byte-level BPE.
"""

import argparse
import json
import lzma
import os
import struct

import gguf
import numpy as np

LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
PATTERNS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def fields(reader):
    out = {}
    for key, f in reader.fields.items():
        out[key] = f.contents()
    return out


def hub_name(name, gemma):
    stem, kind = name.rsplit(".", 1)
    if stem in OUTER:
        return f"{OUTER[stem]}.{kind}"
    _, layer, part = stem.split(".", 2)
    if part == "ffn_norm":
        part = "pre_feedforward_layernorm" if gemma else "post_attention_layernorm"
    return f"model.layers.{layer}.{LAYER.get(part, part)}.{kind}"


def to_bf16(v):
    bits = np.ascontiguousarray(v, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(v):
    return (v.astype(np.uint32) << 16).view(np.float32)


def encode(v, kind):
    if kind == "bf16":
        return "BF16", to_bf16(v)
    return ("F16", v.astype(np.float16)) if kind == "f16" else ("F32", v.astype(np.float32))


def decode(dtype, v):
    return from_bf16(v) if dtype == "BF16" else v.astype(np.float32)


def mlx_quantise(w, bits, group, kind):
    """weight (u32), scales, biases and what they stand for: per group, scale = range / (2^bits - 1), bias = least."""
    g = w.reshape(w.shape[0], -1, group).astype(np.float32)
    low, high = g.min(-1), g.max(-1)
    scale = np.maximum((high - low) / (2**bits - 1), 1e-7)
    names, scale = encode(scale, kind)
    _, bias = encode(low, kind)
    s, b = decode(names, scale)[..., None], decode(names, bias)[..., None]
    q = np.clip(np.rint((g - b) / s), 0, 2**bits - 1).astype(np.uint8)
    value = (s * q.astype(np.float32) + b).reshape(w.shape)
    stream = np.unpackbits(q.reshape(w.shape)[..., None], axis=-1, bitorder="little")[..., :bits]
    packed = np.packbits(stream.reshape(w.shape[0], -1), axis=-1, bitorder="little")
    return packed.view("<u4"), (names, scale), (names, bias), value


def write_safetensors(path, tensors):
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, v) in tensors.items():
        head[name] = {"dtype": dtype, "shape": list(v.shape), "data_offsets": [at, at + v.nbytes]}
        at += v.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, v in tensors.values():
            f.write(np.ascontiguousarray(v).tobytes())


def write_tokenizer(out, kv):
    tokens, types = kv["tokenizer.ggml.tokens"], kv["tokenizer.ggml.token_type"]
    pre = kv["tokenizer.ggml.pre"]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": pre in ("smollm", "gpt-2"),
    }
    first = []
    if pre in PATTERNS:
        first = [{"type": "Split", "pattern": {"Regex": PATTERNS[pre]}, "behavior": "Isolated", "invert": False}]
    elif pre == "smollm":
        first = [{"type": "Digits", "individual_digits": True}]
    added = [
        {
            "id": i,
            "content": t,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": types[i] == 3,
        }
        for i, t in enumerate(tokens)
        if types[i] in (3, 4)
    ]
    vocab = {t: i for i, t in enumerate(tokens) if types[i] in (1, 3, 4)}  # else tokenizers counts special ones anew
    tok = {
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": first + [byte_level]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": kv["tokenizer.ggml.merges"]},
    }
    config = {}
    for name in ("bos", "eos"):
        key = f"tokenizer.ggml.{name}_token_id"
        if key in kv and (name == "eos" or kv.get("tokenizer.ggml.add_bos_token")):
            config[f"{name}_token"] = tokens[kv[key]]
    json.dump(tok, open(os.path.join(out, "tokenizer.json"), "w"), ensure_ascii=False)
    return config


def copy_tokenizer(out, folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = os.path.join(folder, name)
        data = open(path, "rb").read() if os.path.exists(path) else lzma.open(path + ".xz").read()
        open(os.path.join(out, name), "wb").write(data)


def config_of(kv, arch, tensors):
    def get(name, default=None):
        return kv.get(f"{arch}.{name}", default)

    gemma = arch.startswith("gemma")
    c = {
        "model_type": "gemma3_text" if arch == "gemma3" else arch,
        "num_hidden_layers": get("block_count"),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": float(f"{get('attention.layer_norm_rms_epsilon'):.7g}"),
        "rope_theta": float(f"{get('rope.freq_base', 10000.0):.9g}"),
        "vocab_size": len(kv["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": "output.weight" not in tensors,
        "hidden_act": "gelu_pytorch_tanh" if gemma else "silu",
        "head_dim": get("attention.key_length") or get("embedding_length") // get("attention.head_count"),
    }
    if gemma:
        c["query_pre_attn_scalar"] = c["head_dim"]
        c["sliding_window"] = get("attention.sliding_window")
        every = 6 if arch == "gemma3" else 2
        c["layer_types"] = [
            "sliding_attention" if (i + 1) % every else "full_attention" for i in range(c["num_hidden_layers"])
        ]
        if arch == "gemma3":
            c["rope_local_base_freq"] = float(get("rope.freq_base_swa", 10000.0))
            c["attn_logit_softcapping"] = c["final_logit_softcapping"] = None
    return c


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--type", default="f16")
    p.add_argument("--shards", type=int, default=1)
    p.add_argument("--mlx")
    p.add_argument("--tokenizer")
    p.add_argument("--gguf")
    a = p.parse_args()
    reader = gguf.GGUFReader(a.model)
    kv = fields(reader)
    arch = kv["general.architecture"]
    gemma = arch.startswith("gemma")
    names = {t.name for t in reader.tensors}
    config = config_of(kv, arch, names)
    os.makedirs(a.out, exist_ok=True)
    mlx = a.mlx.split(",") if a.mlx else None
    writer = None
    if a.gguf:
        writer = gguf.GGUFWriter(a.gguf, arch)
        for key, f in reader.fields.items():
            if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
                continue
            sub = f.types[1] if len(f.types) > 1 else None
            writer.add_key_value(key, f.contents(), f.types[0], sub)
    out = {}
    for t in reader.tensors:
        v = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        v = v.reshape(t.shape[::-1])
        name = hub_name(t.name, gemma)
        is_norm = t.name.endswith("norm.weight")
        kept = v
        if arch == "llama" and (".attn_q." in t.name or ".attn_k." in t.name):
            heads = config["num_attention_heads" if ".attn_q." in t.name else "num_key_value_heads"]
            v = v.reshape(heads, v.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(v.shape)
        if gemma and is_norm:
            v = v - np.float32(1)
        if mlx and v.ndim == 2:
            w, s, b, value = mlx_quantise(v, int(mlx[0]), int(mlx[1]), mlx[2] if len(mlx) > 2 else "bf16")
            base = name[: -len(".weight")]
            out[name], out[base + ".scales"], out[base + ".biases"] = ("U32", w), s, b
            if arch == "llama" and (".attn_q." in t.name or ".attn_k." in t.name):
                value = value.reshape(heads, 2, v.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(v.shape)
            kept = value
        else:
            out[name] = encode(v, "f32" if is_norm else a.type)
            if v.ndim == 2:
                kept = v.astype(np.float16)
                if arch == "llama" and (".attn_q." in t.name or ".attn_k." in t.name):
                    kept = kept.reshape(heads, 2, v.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(v.shape)
            elif not is_norm:
                kept = decode(*out[name])
        if writer:
            writer.add_tensor(t.name, np.ascontiguousarray(kept))
    if mlx:
        config["quantization"] = {"bits": int(mlx[0]), "group_size": int(mlx[1])}
    keys = list(out)
    if a.shards == 1:
        write_safetensors(os.path.join(a.out, "model.safetensors"), out)
    else:
        index = {}
        for i in range(a.shards):
            file = f"model-{i + 1:05d}-of-{a.shards:05d}.safetensors"
            part = {k: out[k] for k in keys[i :: a.shards]}
            write_safetensors(os.path.join(a.out, file), part)
            index.update({k: file for k in part})
        json.dump({"weight_map": index}, open(os.path.join(a.out, "model.safetensors.index.json"), "w"))
    json.dump(config, open(os.path.join(a.out, "config.json"), "w"), indent=1)
    if a.tokenizer:
        copy_tokenizer(a.out, a.tokenizer)
    else:
        tok_config = write_tokenizer(a.out, kv)
        if "tokenizer.chat_template" in kv:
            tok_config["chat_template"] = kv["tokenizer.chat_template"]
        json.dump(tok_config, open(os.path.join(a.out, "tokenizer_config.json"), "w"))
    json.dump(
        {"eos_token_id": kv["tokenizer.ggml.eos_token_id"]}, open(os.path.join(a.out, "generation_config.json"), "w")
    )
    if writer:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


if __name__ == "__main__":
    main()
