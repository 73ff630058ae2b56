"""radish convert against the gguf package, and a directory's tokenizer against the converted file's.

The `gguf` package reads what was written: names, shapes, types, Q8_0 bytes equal to its own quantiser's. Vocabularies of
real families are those of RADISH_TOKENIZERS (default ../shared/tokenizers); without them their test is skipped.
"""

import json
import lzma
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
gguf = pytest.importorskip("gguf")
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import gguf_to_hub  # noqa: E402

RADISH = Path(os.environ.get("RADISH_BUILD", HERE.parents[1] / "build")) / "radish"
TOKENIZERS = Path(os.environ.get("RADISH_TOKENIZERS", HERE.parents[1].parent / "shared" / "tokenizers"))
HIDDEN = 256


def make_dir(out, rows, tokenizer):
    """A model of one layer whose matrices all have rows of 256, with this tokenizer folder's files."""
    rng = np.random.default_rng(1)
    shapes = {"self_attn.q_proj": HIDDEN, "self_attn.k_proj": 128, "self_attn.v_proj": 128, "self_attn.o_proj": HIDDEN}
    shapes.update({"mlp.gate_proj": HIDDEN, "mlp.up_proj": HIDDEN, "mlp.down_proj": HIDDEN})
    width = HIDDEN if rows < 1000 else 32
    t = {"model.embed_tokens.weight": ("F16", rng.normal(0, 1, (rows, width)).astype(np.float16))}
    for name, n in shapes.items():
        n = n if width == HIDDEN else 32
        t[f"model.layers.0.{name}.weight"] = ("F16", rng.normal(0, 0.05, (n, width)).astype(np.float16))
    for name in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        t[f"model.{name}.weight"] = ("F16", rng.normal(1, 0.1, width).astype(np.float16))
    out.mkdir()
    gguf_to_hub.write_safetensors(out / "model.safetensors", t)
    heads = (4, 2) if width == HIDDEN else (2, 2)
    config = dict(model_type="llama", num_hidden_layers=1, hidden_size=width, intermediate_size=width)
    config.update(num_attention_heads=heads[0], num_key_value_heads=heads[1], max_position_embeddings=512)
    config.update(tie_word_embeddings=True, rms_norm_eps=1e-5, eos_token_id=1)
    (out / "config.json").write_text(json.dumps(config))
    for name, data in tokenizer.items():
        (out / name).write_bytes(data)
    return t


def small_tokenizer():
    vocab = {chr(0x120): 0, **{chr(c): c - 0x20 for c in range(0x21, 0x7E)}, "th": 94}
    return {
        "tokenizer.json": json.dumps(
            {
                "added_tokens": [{"id": 95, "content": "<|end|>", "special": True}],
                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
                "decoder": {"type": "ByteLevel"},
                "model": {"type": "BPE", "merges": ["t h"], "vocab": vocab},
            }
        ).encode(),
        "tokenizer_config.json": json.dumps({"eos_token": "<|end|>", "chat_template": "{{ bos_token }}x"}).encode(),
    }


def convert(model, out, *flags):
    return subprocess.run([RADISH, "convert", model, "-o", out, *flags], capture_output=True, text=True)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("convert") / "small"
    return folder, make_dir(folder, 100, small_tokenizer())


def test_the_gguf_package_reads_what_was_written(small, tmp_path):
    folder, tensors = small
    types = {"f16": {"F16"}, "bf16": {"BF16"}, "q8_0": {"Q8_0"}, "q4_k_m": {"Q4_K", "Q6_K"}}
    for kind, wanted in types.items():
        out = tmp_path / f"{kind}.gguf"
        r = convert(folder, out, "--type", kind)
        assert r.returncode == 0, r.stderr
        reader = gguf.GGUFReader(out)
        assert {t.tensor_type.name for t in reader.tensors} == wanted | {"F32"}
        assert len(reader.tensors) == len(tensors)
        for t in reader.tensors:
            if t.tensor_type.name == "F32":
                assert t.name.endswith("norm.weight")
            name = gguf_to_hub.hub_name(t.name, False)
            x = tensors[name][1].astype(np.float32)
            if ".attn_q." in t.name or ".attn_k." in t.name:
                heads = 4 if ".attn_q." in t.name else 2
                x = x.reshape(heads, 2, -1, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
            back = gguf.dequantize(t.data, t.tensor_type).reshape(x.shape)
            if kind == "q8_0" and x.ndim == 2:
                want = gguf.quantize(np.ascontiguousarray(x), gguf.GGMLQuantizationType.Q8_0)
                assert np.array_equal(want.reshape(-1), t.data.reshape(-1)), t.name
            limit = {"f16": 0, "bf16": 2**-8, "q8_0": 0.02, "q4_k_m": 0.2}[kind] if x.ndim == 2 else 0
            assert np.abs(back - x).max() <= limit * np.abs(x).max(), t.name
        keys = {k: f.contents() for k, f in reader.fields.items()}
        assert keys["general.architecture"] == "llama" and keys["llama.attention.head_count_kv"] == 2
        assert len(keys["tokenizer.ggml.tokens"]) == 100 and keys["tokenizer.ggml.tokens"][99] == "[PAD99]"
        assert keys["tokenizer.ggml.merges"] == ["t h"] and keys["tokenizer.ggml.pre"] == "gpt-2"
        assert keys["tokenizer.ggml.token_type"][94:97] == [1, 3, 5] and keys["tokenizer.ggml.eos_token_id"] == 95
        assert keys["tokenizer.chat_template"] == "{{ bos_token }}x"


def test_a_file_that_is_there_is_kept_and_a_wrong_type_is_named(small, tmp_path):
    folder, _ = small
    out = tmp_path / "x.gguf"
    out.write_text("mine")
    r = convert(folder, out)
    assert r.returncode == 1 and "--force replaces it" in r.stderr and out.read_text() == "mine"
    r = convert(folder, out, "--force", "--type", "q9")
    assert r.returncode == 2 and "q4_k_m" in r.stderr and out.read_text() == "mine"
    r = convert(folder, tmp_path / "no" / "where.gguf")
    assert r.returncode == 1 and "where.gguf: cannot be made: No such file" in r.stderr
    assert convert(folder, out, "--force").returncode == 0 and out.read_bytes()[:4] == b"GGUF"
    r = subprocess.run([RADISH, "convert", folder], capture_output=True, text=True)
    assert r.returncode == 2 and "-o OUT.gguf is missing" in r.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]


def test_a_directory_answers_as_its_converted_file(small, tmp_path):
    folder, _ = small
    out = tmp_path / "x.gguf"
    assert convert(folder, out).returncode == 0
    texts = []
    for model in (folder, out):
        r = subprocess.run(
            [RADISH, "run", model, "the way", "--raw", "-n", "12", "--temperature", "0", "--no-disk-cache"],
            capture_output=True,
            text=True,
        )
        assert r.returncode == 0, r.stderr
        texts.append(r.stdout)
    assert texts[0] == texts[1] and texts[0].strip()
    r = subprocess.run([RADISH, "inspect", folder], capture_output=True, text=True)
    assert r.returncode == 0 and "safetensors" in r.stdout and "token_embd.weight" in r.stdout


@pytest.mark.parametrize("family", ["gemma3", "llama2", "llama3_1", "qwen3"])
def test_a_familys_tokenizer_gives_the_same_ids_as_a_gguf_file(family, tmp_path):
    source = TOKENIZERS / family
    if not source.is_dir():
        pytest.skip(f"the files of {family} are absent: RADISH_TOKENIZERS names their folder")
    files = {n: lzma.open(source / f"{n}.xz").read() for n in ("tokenizer.json", "tokenizer_config.json")}
    tokenizer = json.loads(files["tokenizer.json"])
    rows = max([len(tokenizer["model"]["vocab"])] + [1 + t["id"] for t in tokenizer["added_tokens"]]) + 5
    make_dir(tmp_path / "m", rows, files)
    r = convert(tmp_path / "m", tmp_path / "m.gguf")
    assert r.returncode == 0, r.stderr
    rng = random.Random(3)
    texts = [
        "  Hello   world 12345, it's\n\n\tfine",
        "Привет 你好世界 🙂",
        "<|im_start|>user\nhi<|im_end|>",
        "I'LL ▁x\xa0",
    ]
    for _ in range(100):
        texts.append("".join(rng.choice("abc ABC  123.,'\n\té中𝄞xyz-_/#") for _ in range(rng.randrange(1, 40))))
    lines = "".join(json.dumps({"op": "tokenize", "content": t, "add_special": True}) + "\n" for t in texts)
    ids = [
        subprocess.run([RADISH, "tokenize", model, "--jsonl"], input=lines, capture_output=True, text=True).stdout
        for model in (tmp_path / "m", tmp_path / "m.gguf")
    ]
    assert ids[0].count("tokens") == len(texts) and ids[0] == ids[1]
