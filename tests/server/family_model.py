"""Makes a GGUF file with a family's own vocabulary and chat template and a tiny random model, from its tokenizer.json.

The vocabulary is written as llama.cpp's converter does; the model is one layer of width 32 that makes random text. Files
are kept beside the build, as they are the same each time.
"""

import json
import lzma
import os
import struct
from pathlib import Path

import numpy as np
from radish_server import BUILD, ROOT

FOLDER = Path(os.environ.get("RADISH_TOKENIZERS") or ROOT.parent / "shared/tokenizers")
PRE = {
    "deepseek_v3": "deepseek-v3",
    "gptoss": "gpt-4o",
    "llama3_1": "llama-bpe",
    "mistral_nemo": "tekken",
    "qwen2_5": "qwen2",
    "qwen3": "qwen2",
}
ARCH = {"qwen3": "qwen3", "qwen2_5": "qwen2"}
CONTEXT = 4096
WIDTH, HEADS, HEAD_DIM = 32, 2, 16
U32, I32, F32, BOOL, STR, ARR = 4, 5, 6, 7, 8, 9
NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
FORMATS = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<B"}


def files(family):
    """(tokenizer.json, tokenizer_config.json) as objects; None: the family's files are not here."""
    paths = [FOLDER / family / f"{name}.json.xz" for name in ("tokenizer", "tokenizer_config")]
    return [json.loads(lzma.open(p).read()) for p in paths] if all(p.is_file() for p in paths) else None


def string(s):
    data = s.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    if not isinstance(value, list):
        return (
            string(key)
            + struct.pack("<I", kind)
            + (string(value) if kind == STR else struct.pack(FORMATS[kind], value))
        )
    head = string(key) + struct.pack("<IIQ", ARR, kind, len(value))
    if kind == STR:
        return head + b"".join(map(string, value))
    return head + np.array(value, {I32: "<i4", F32: "<f4"}[kind]).tobytes()


def text_of(token):
    return token["content"] if isinstance(token, dict) else token


def vocabulary(family, tokenizer, config, eos):
    """GGUF entries. Gemma and Llama 2 are SentencePiece there: a score is the rank of the merge that makes the token."""
    model = tokenizer["model"]
    ids = dict(model["vocab"])
    types = {}
    for added in tokenizer["added_tokens"]:
        ids[added["content"]] = added["id"]
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    n = max(ids.values()) + 1
    tokens = [f"[PAD{i}]" for i in range(n)]
    kinds = [UNUSED] * n
    for token, i in ids.items():
        tokens[i] = token
        kinds[i] = types.get(i, NORMAL)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    out = [("tokenizer.ggml.tokens", STR, tokens)]
    if family in PRE:
        out += [
            ("tokenizer.ggml.model", STR, "gpt2"),
            ("tokenizer.ggml.pre", STR, PRE[family]),
            ("tokenizer.ggml.merges", STR, merges),
        ]
    else:
        scores = [-1e6] * n
        for rank, merge in enumerate(merges):
            left, right = merge.split(" ") if merge.count(" ") == 1 else ("", "")
            scores[ids.get(left + right, 0)] = max(scores[ids.get(left + right, 0)], -float(rank))
        kinds = [BYTE if t.startswith("<0x") and len(t) == 6 else k for t, k in zip(tokens, kinds)]
        out += [
            ("tokenizer.ggml.model", STR, "llama"),
            ("tokenizer.ggml.scores", F32, scores),
            ("tokenizer.ggml.add_space_prefix", BOOL, int(family == "llama2")),
        ]
    for name, token in (("bos", text_of(config.get("bos_token"))), ("eos", eos or text_of(config.get("eos_token")))):
        if token:
            out.append((f"tokenizer.ggml.{name}_token_id", U32, ids[token]))
    out.append(("tokenizer.ggml.token_type", I32, kinds))
    out.append(("tokenizer.ggml.add_bos_token", BOOL, int(bool(config.get("add_bos_token", family == "llama3_1")))))
    if config.get("chat_template"):
        out.append(("tokenizer.chat_template", STR, config["chat_template"]))
    return out, n


def weights(arch, n_vocab):
    """name -> array, [rows, columns]; f16 for matrices, f32 for vectors."""
    r = np.random.default_rng(1)
    kv = HEAD_DIM
    shapes = {
        "attn_q": (HEADS * HEAD_DIM, WIDTH),
        "attn_k": (kv, WIDTH),
        "attn_v": (kv, WIDTH),
        "attn_output": (WIDTH, HEADS * HEAD_DIM),
        "ffn_gate": (WIDTH, WIDTH),
        "ffn_up": (WIDTH, WIDTH),
        "ffn_down": (WIDTH, WIDTH),
    }
    out = {
        "token_embd.weight": r.standard_normal((n_vocab, WIDTH), "f4").astype("f2"),
        "output_norm.weight": np.ones(WIDTH, "f4"),
    }
    for name, shape in shapes.items():
        out[f"blk.0.{name}.weight"] = (r.standard_normal(shape, "f4") / 6).astype("f2")
    for name in ("attn_norm", "ffn_norm"):
        out[f"blk.0.{name}.weight"] = np.ones(WIDTH, "f4")
    if arch == "qwen3":
        for name in ("attn_q_norm", "attn_k_norm"):
            out[f"blk.0.{name}.weight"] = np.ones(HEAD_DIM, "f4")
    if arch == "qwen2":
        for name, n in (("attn_q", HEADS * HEAD_DIM), ("attn_k", kv), ("attn_v", kv)):
            out[f"blk.0.{name}.bias"] = np.zeros(n, "f4")
    return out


def write_gguf(path, entries, tensors):
    out = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(entries))] + [entry(*e) for e in entries]
    at = 0
    for name, a in tensors.items():
        dims = a.shape[::-1]
        out.append(
            string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, {"f2": 1, "f4": 0}[a.dtype.str[1:]], at)
        )
        at += -(-a.nbytes // 32) * 32
    head = b"".join(out)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        for a in tensors.values():
            data = a.tobytes()
            f.write(data + bytes(-len(data) % 32))


def family_model(family, eos=None):
    """The path of the file; None where the family's own files are not here. eos: another end token than its config says."""
    path = BUILD / "families" / f"{family}{'-' + str(len(eos)) if eos else ''}.gguf"
    if path.is_file():
        return path
    found = files(family)
    if not found:
        return None
    arch = ARCH.get(family, "llama")
    entries, n_vocab = vocabulary(family, *found, eos)
    numbers = {
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "feed_forward_length": WIDTH,
        "block_count": 1,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 1,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
    }
    entries = [
        ("general.architecture", STR, arch),
        ("general.name", STR, f"tiny {family}"),
        *[(f"{arch}.{k}", U32, v) for k, v in numbers.items()],
        (f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-6),
        (f"{arch}.rope.freq_base", F32, 1e4),
        *entries,
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    write_gguf(part, entries, weights(arch, n_vocab))
    part.rename(path)
    return path
