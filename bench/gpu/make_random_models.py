#!/usr/bin/env python3
"""Random weights of real shapes, as GGUF files: what the GPU is measured on.

    make_random_models.py header TOKENIZER.gguf OUT_DIR NAME ..     writes OUT_DIR/NAME.hdr.xz (needs the gguf package)
    make_random_models.py sample MODEL.gguf OUT_DIR NAME            the same of a real file: its form, 200 blocks a tensor
    make_random_models.py fill HEADER_DIR OUT_DIR NAME ..           writes OUT_DIR/NAME.gguf from it (needs numpy)
    make_random_models.py thin HEADER_DIR OUT_DIR NAME ..           likewise, but the first GiB alone: the rest is a hole, where
                                                                    bench/gpu/repeat_map.c shows that GiB again and again

TOKENIZER.gguf: any file with a vocabulary of 151936 tokens (Qwen 2.5); Llama gets the same one, filled up. A header is
1 or 2 MB and can be carried to the machine with the GPU, where `fill` makes the gigabytes. Matrices are normal with
standard deviation 0.02, norms 1; those of a sample repeat its blocks. Names: qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, qwen3-14b, qwen3-32b, llama3.1-8b,
llama3-70b, each with an ending -bf16 (default), -q8_0 or -q4_0.
"""

import json
import lzma
import sys
from pathlib import Path

# layers, hidden, ffn, heads, kv heads, head_dim, vocabulary, tied head
SHAPES = {
    "qwen3-0.6b": (28, 1024, 3072, 16, 8, 128, 151936, True),
    "qwen3-1.7b": (28, 2048, 6144, 16, 8, 128, 151936, True),
    "qwen3-4b": (36, 2560, 9728, 32, 8, 128, 151936, True),
    "qwen3-8b": (36, 4096, 12288, 32, 8, 128, 151936, False),
    "qwen3-14b": (40, 5120, 17408, 40, 8, 128, 151936, False),
    "qwen3-32b": (64, 5120, 25600, 64, 8, 128, 151936, False),
    "llama3-70b": (80, 8192, 28672, 64, 8, 128, 151936, False),
    "llama3.1-8b": (32, 4096, 14336, 32, 8, 128, 151936, False),
}
TYPES = {"bf16": (30, 1, 2), "q8_0": (8, 32, 34), "q4_0": (2, 32, 18), "f32": (0, 1, 4)}


THIN_BYTES = (1 << 30) + (1 << 26)  # repeat_map.c's


def split(name):
    for ending in TYPES:
        if name.endswith("-" + ending):
            return name[: -len(ending) - 1], ending
    return name, "bf16"


def tensors(shape, arch, kind):
    layers, hidden, ffn, heads, kv_heads, dim, vocab, tied = shape
    yield "token_embd.weight", (vocab, hidden), kind
    yield "output_norm.weight", (hidden,), "f32"
    if not tied:
        yield "output.weight", (vocab, hidden), kind
    for i in range(layers):
        b = "blk.%d." % i
        yield b + "attn_norm.weight", (hidden,), "f32"
        yield b + "attn_q.weight", (heads * dim, hidden), kind
        yield b + "attn_k.weight", (kv_heads * dim, hidden), kind
        yield b + "attn_v.weight", (kv_heads * dim, hidden), kind
        yield b + "attn_output.weight", (hidden, heads * dim), kind
        if arch == "qwen3":
            yield b + "attn_q_norm.weight", (dim,), "f32"
            yield b + "attn_k_norm.weight", (dim,), "f32"
        yield b + "ffn_norm.weight", (hidden,), "f32"
        yield b + "ffn_gate.weight", (ffn, hidden), kind
        yield b + "ffn_up.weight", (ffn, hidden), kind
        yield b + "ffn_down.weight", (hidden, ffn), kind


def n_bytes(shape, kind):
    n = 1
    for d in shape:
        n *= d
    return n // TYPES[kind][1] * TYPES[kind][2]


def make_header(tokenizer, out_dir, name):
    import gguf
    import numpy as np

    base, kind = split(name)
    shape = SHAPES[base]
    layers, hidden, ffn, heads, kv_heads, dim, vocab, _ = shape
    arch = base.split("-")[0].rstrip("0123456789.") if base.startswith("llama") else "qwen3"
    path = Path(out_dir) / (name + ".hdr")
    w = gguf.GGUFWriter(str(path), arch)
    w.add_name(name)
    w.add_block_count(layers)
    w.add_context_length(40960)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(dim)
    w.add_value_length(dim)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(1000000.0)
    w.add_vocab_size(vocab)
    source = gguf.GGUFReader(tokenizer)
    for key, field in source.fields.items():
        if not key.startswith("tokenizer."):
            continue
        kind_of = field.types[0]
        if kind_of == gguf.GGUFValueType.ARRAY:
            w.add_array(key, field.contents())
        else:
            w.add_key_value(key, field.contents(), kind_of)
    plan = []
    for tensor, dims, t in tensors(shape, arch, kind):
        size = n_bytes(dims, t)
        quant = gguf.GGMLQuantizationType(TYPES[t][0])
        stored = dims if TYPES[t][1] == 1 else dims[:-1] + (dims[-1] // TYPES[t][1] * TYPES[t][2],)
        w.add_tensor_info(
            tensor, stored, np.dtype(np.uint8) if t != "f32" else np.dtype(np.float32), size, raw_dtype=quant
        ) if TYPES[t][1] > 1 or t == "f32" else w.add_tensor_info(
            tensor, dims[:-1] + (dims[-1] * 2,), np.dtype(np.uint8), size, raw_dtype=quant
        )
        plan.append((t, size))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    w.close()
    header = path.read_bytes()
    path.unlink()
    save(out_dir, name, header + b"\0" * (-len(header) % 32), plan)


def save(out_dir, name, header, plan):
    (Path(out_dir) / (name + ".hdr.xz")).write_bytes(lzma.compress(header))
    (Path(out_dir) / (name + ".json")).write_text(json.dumps(plan))


def make_sample(model, out_dir, name):
    import gguf

    source = gguf.GGUFReader(model)
    header = bytes(source.data[: source.data_offset])
    plan = []
    for t in sorted(source.tensors, key=lambda t: t.data_offset):
        whole = t.tensor_type.name == "F32" or t.n_bytes < 1 << 16
        part = t.n_bytes if whole else 211 * gguf.GGML_QUANT_SIZES[t.tensor_type][1]  # no divisor of a row
        header += source.data[t.data_offset : t.data_offset + part].tobytes()
        plan.append((part, int(t.n_bytes)))
    save(out_dir, name, header, {"header": source.data_offset, "parts": plan})


def random_block(np, kind):
    rng = np.random.default_rng(1)
    n = 1 << 24
    if kind == "bf16":
        x = (rng.standard_normal(n, dtype=np.float32) * 0.02).view(np.uint32)
        return ((x + 0x8000) >> 16).astype(np.uint16).tobytes()
    _, weights, size = TYPES[kind]
    b = rng.integers(0, 256, (n // weights, size), dtype=np.uint8)
    d = (rng.random(n // weights, dtype=np.float32) * (0.0005 if kind == "q8_0" else 0.005)).astype(np.float16)
    b[:, :2] = d.view(np.uint8).reshape(-1, 2)
    return b.tobytes()


def fill_sample(plan, data, path):
    at = plan["header"]
    with open(path, "wb") as f:
        f.write(data[:at])
        for part, size in plan["parts"]:
            f.write((data[at : at + part] * (size // part + 1))[:size])
            f.write(b"\0" * (-size % 32))
            at += part


def fill(header_dir, out_dir, name):
    plan = json.loads((Path(header_dir) / (name + ".json")).read_text())
    header = lzma.decompress((Path(header_dir) / (name + ".hdr.xz")).read_bytes())
    if isinstance(plan, dict):
        fill_sample(plan, header, Path(out_dir) / (name + ".gguf"))
        return
    import numpy as np

    block = random_block(np, split(name)[1])
    unit = TYPES[split(name)[1]][2]
    with open(Path(out_dir) / (name + ".gguf"), "wb") as f:
        f.write(header)
        at = 0
        for t, size in plan:
            if t == "f32":
                f.write(np.ones(size // 4, dtype=np.float32).tobytes())
            else:
                left = size
                at = (at + 7919 * unit) % (len(block) // 2) // unit * unit
                while left > 0:
                    part = block[at : at + min(left, len(block) - at)]
                    f.write(part)
                    left -= len(part)
            f.write(b"\0" * (-size % 32))


def thin(header_dir, out_dir, name):
    import numpy as np

    if (
        split(name)[1] != "bf16"
    ):  # a GiB is no whole number of blocks of 18 or 34 bytes: scales would be any bits, also infinite
        sys.exit(name + ": thin is for bf16 alone, fill the others")
    plan = json.loads((Path(header_dir) / (name + ".json")).read_text())
    header = lzma.decompress((Path(header_dir) / (name + ".hdr.xz")).read_bytes())
    block = random_block(np, "bf16")
    with open(Path(out_dir) / (name + ".gguf"), "wb") as f:
        f.write(header)
        while f.tell() < THIN_BYTES:
            f.write(block)
        f.truncate(len(header) + sum((size + 31) // 32 * 32 for _, size in plan))


def main():
    what, source, out = sys.argv[1:4]
    Path(out).mkdir(parents=True, exist_ok=True)
    for name in sys.argv[4:]:
        {"header": make_header, "sample": make_sample, "fill": fill, "thin": thin}[what](source, out, name)


if __name__ == "__main__":
    main()
