#!/usr/bin/env python3
"""Writes corpus/fuzz_vocab/: small GGUF files with vocabularies, right and nearly right. No arguments."""

import struct
from pathlib import Path

OUT = Path(__file__).parent / "corpus/fuzz_vocab"
U32, I32, F32, BOOL, STR, ARR = 4, 5, 6, 7, 8, 9


def string(s):
    data = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, v):
    if kind == STR:
        return string(v)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<B"}[kind], v)


def gguf(*entries):
    out = b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries))
    for key, kind, v in entries:
        out += string(key)
        if isinstance(v, list):
            out += struct.pack("<IIQ", ARR, kind, len(v)) + b"".join(value(kind, x) for x in v)
        else:
            out += struct.pack("<I", kind) + value(kind, v)
    return out + bytes(-len(out) % 32)


def alphabet():
    """The 256 bytes as byte-level BPE writes them."""
    printed = [b for b in range(256) if 0x20 < b < 0x7F or 0xA0 < b and b != 0xAD]
    other = iter(range(256, 512))
    return [chr(b) if b in printed else chr(next(other)) for b in range(256)]


def bpe(pre="gpt-2", **more):
    tokens = alphabet() + ["th", "the", "\u0120the", "<|im_start|>", "<|im_end|>", "<u>", ""]
    types = [1] * 259 + [3, 3, 4, 1]
    fields = {
        "model": (STR, "gpt2"),
        "pre": pre and (STR, pre),
        "tokens": (STR, tokens),
        "token_type": (I32, types),
        "merges": (STR, ["t h", "th e", "\u0120 the", "\u0120t he"]),
        "eos_token_id": (U32, 260),
    } | more
    return gguf(*[("tokenizer.ggml." + k, *v) for k, v in fields.items() if v])


def spm(**more):
    words = [
        "\u2581",
        "t",
        "h",
        "e",
        "\u2581t",
        "he",
        "\u2581the",
        "\u65e5",
        "a",
        "\u2581\u2581",
        "<u>",
        "<0x0",
        "<0x410>",
    ]
    tokens = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)] + words
    types = [2, 3, 3] + [6] * 256 + [1] * 10 + [4, 1, 6]
    fields = {
        "model": (STR, "llama"),
        "tokens": (STR, tokens),
        "token_type": (I32, types),
        "scores": (F32, [-float(i % 37) for i in range(len(tokens))]),
        "bos_token_id": (U32, 1),
    } | more
    return gguf(*[("tokenizer.ggml." + k, *v) for k, v in fields.items() if v])


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    files = {f"bpe_{pre}": bpe(pre) for pre in ("gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-r1-qwen", "nobody")}
    files |= {
        "bpe_without_pre": bpe(None),
        "bpe_bad_merge": bpe(merges=(STR, ["t h", "thh", " ", "t q", "th e", "t h"])),
        "bpe_no_types": bpe(token_type=None, merges=None),
        "bpe_twice": bpe(tokens=(STR, ["a"] * 20 + ["\u0100", "b\xffc"]), token_type=None, eos_token_id=(U32, 3)),
        "bpe_bytes": bpe(tokens=(STR, [b"\xff\xfe", b"a\0b", "x" * 300, "a", "b"]), token_type=None, eos_token_id=None),
        "bpe_bos": bpe(bos_token_id=(U32, 259), add_bos_token=(BOOL, 1), add_eos_token=(BOOL, 1)),
        "spm": spm(),
        "spm_no_space": spm(add_space_prefix=(BOOL, 0), remove_extra_whitespaces=(BOOL, 1)),
        "spm_nan": spm(scores=(F32, [float("nan"), float("inf"), -float("inf")] + [0.0] * 269)),
        "spm_no_bytes": spm(
            tokens=(STR, ["<unk>", "a", "\u2581"]),
            token_type=(I32, [2, 1, 1]),
            scores=(F32, [0, 1, 2]),
            bos_token_id=None,
        ),
        "spm_types": spm(token_type=(I32, [i % 9 - 1 for i in range(272)])),
        "template": gguf(("tokenizer.chat_template", STR, "{{ messages }}"), ("tokenizer.ggml.model", STR, "bert")),
    }
    for name, data in files.items():
        (OUT / name.replace(".", "_")).write_bytes(data)
    print(len(files), "files,", sum(map(len, files.values())), "bytes")


main()
